"""Ctrl-C and SIGTERM in each phase of each command: an exit code, no traceback, and what was finished is kept."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.records.answer import ProgressEvent
from mirage_formal.run.progress.progress_display import JsonLines
from tests.kit.processes import Command, Ended
from tests.kit.runs.small_runs import make

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16, name="X")
W = graph.new_input(dims=(8, 8), dtype=mf.float16, name="W")
graph.mark_output(graph.exp(graph.matmul(X, W)))
"""
SEARCH = "search one.py --engine tests.kit.runs.fake_engine:FakeEngine --config tiny --keep 1 --workers 1"
#: Commands and the phases that each of them shows.
PHASES: dict[str, tuple[str, ...]] = {
    SEARCH: ("planning", "searching", "certifying", "proving", "numerics", "writing"),
    "verify one.py graphs.json": ("verifying",),
    "check run --jobs 1": ("checking",),
    "tools build run --count 2": ("building",),
    "tools emulate run": ("emulating", "emulated"),
    "tools reproduce oracle --sample 1": ("rmsnorm",),
}
NUMBERS = (signal.SIGINT, signal.SIGTERM)
CASES = [
    pytest.param(
        line,
        phase,
        number,
        id=f"{line.removeprefix('tools ').split()[0]}-{phase}-{number.name}",
        # Each phase with one of the two signals; the others as well where there is time.
        marks=() if at % 2 == i and phase != "rmsnorm" else (pytest.mark.slow,),
    )
    for line, phases in PHASES.items()
    for at, phase in enumerate(phases)
    for i, number in enumerate(NUMBERS)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stopped") / "run"
    make(root, kernels=0, keep=1)
    return root


@pytest.fixture
def mirage(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check_here: None
) -> Command:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "run")
    Path("one.py").write_text(PROGRAM)
    command = Command(monkeypatch, capsys)
    one = command("tools", "show", "one.py", "--form", "json").out
    Path("graphs.json").write_text(f"[{one}, {one}]")
    return command


@pytest.fixture
def at_phase(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, signal.Signals], list[str]]:
    """Sends a signal when a phase is first shown; gives the phases that were shown."""

    def send(wanted: str, number: signal.Signals) -> list[str]:
        seen: list[str] = []

        def show(self: Any, event: ProgressEvent) -> None:
            name = event.phase.split(" ")[0]
            fresh = name not in seen
            seen.append(name)
            if fresh and name.startswith(wanted):
                signal.raise_signal(number)

        monkeypatch.setattr(JsonLines, "show", show)
        return seen

    return send


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("line", "phase", "number"), CASES)
def test_a_signal_in_a_phase(
    line: str,
    phase: str,
    number: signal.Signals,
    mirage: Command,
    at_phase: Callable[[str, signal.Signals], list[str]],
) -> None:
    seen = at_phase(phase, number)
    ended = mirage(*line.split(), "--progress", "json")
    assert any(name.startswith(phase) for name in seen), seen
    assert ended.code == 128 + number, ended
    assert len(ended.err.splitlines()) <= 20
    assert [path.name for path in Path().rglob(".*.lock")] == []  # nobody holds anything any more
    assert list(Path().rglob("*.tmp")) == []
    kept(line, mirage)


def kept(line: str, mirage: Command) -> None:
    """What was finished is there, and the same command goes on."""
    if line == SEARCH:
        assert resumed(mirage).code == 0
    elif line.startswith("tools build"):
        assert not list(Path("run/kernels").glob("*/*.tmp"))


def resumed(mirage: Command) -> Ended:
    return mirage(*SEARCH.split(), "--resume" if Path("runs/one/run.json").is_file() else "--force")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_while_check_runs_for_a_report(
    mirage: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The process of check ends with it, and no half of a page is there."""
    started: list[subprocess.Popen[str]] = []

    class Process(subprocess.Popen[str]):
        def communicate(self, *arguments: Any, **options: Any) -> tuple[Any, Any]:
            started.append(self)
            signal.raise_signal(number)
            return super().communicate(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Process)
        ended = mirage("report", "run", "--check")
    assert ended.code == 128 + number, ended
    assert len(ended.err.splitlines()) <= 20
    (one,) = started
    assert one.poll() is not None
    assert list(Path().glob("*.html*")) == []
