"""What ``mirage-formal tools build`` says about machine code."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.device import compile as compiler
from mirage_formal.kernel_build import __main__ as command
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support.resources import install_command


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = mf.new_kernel_graph()
    x = graph.new_input((4, 64), name="x")
    graph.mark_output(graph.exp(x))
    out = tmp_path_factory.mktemp("run") / "run"
    settings = Settings(workers=1, keep=2)
    assert run_search(graph.freeze(), settings, out).results
    return out


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no NVRTC can be loaded."""

    def missing() -> object:
        raise compiler.CompileError("expected NVRTC, got none", where="NVRTC", hint=compiler.nvrtc_hint())

    monkeypatch.setattr(compiler, "_nvrtc", missing)


def test_it_says_that_there_is_no_nvrtc_and_no_machine_code(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without(monkeypatch)
    assert command.main([str(searched), "--count", "1"]) == 0
    said = capsys.readouterr().out
    assert ": built" in said
    assert "No machine code was written: there is no NVRTC here" in said
    assert install_command("cuda13") in said
    assert list(searched.rglob("*.cu"))
    assert not list(searched.rglob("*.cubin"))


@pytest.mark.skipif(not compiler.available(), reason="needs NVRTC")
def test_it_does_not_say_so_where_there_is_one(searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(searched), "--count", "1", "--arch", "sm_80"]) == 0
    assert "No machine code" not in capsys.readouterr().out
    assert list(searched.rglob("*.cubin"))


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "many"])
def test_a_wrong_count_is_the_usual_error(count: str, searched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([str(searched), f"--count={count}"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: --count: expected a whole number from 1 up, got ")
    assert "hint: " in errors
