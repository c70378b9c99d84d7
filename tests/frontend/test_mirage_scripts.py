"""Scripts for the reference system's interface: each runs here, or stops at a row of docs/mirage_api.md."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.api import request
from mirage_formal.cli.app import app
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.compile_unsearched import make_callable
from tests.frontend.mirage_scripts import SCRIPTS, Array, Entry
from tests.kit.paths import REPOSITORY
from tests.kit.sampling import share

#: Those that are searched in every run of the tests; the others take longer.
SEARCHED = (
    "benchmark: norm and product",
    "benchmark: gated perceptron",
    "demo: lists of grids and loops",
    "tutorial: what the function returns",
)
_SEARCH: Callable[..., Any] = request.superoptimize


def draw(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [(rng.random(shape) / 2 + 0.25).astype(np.float16) for shape in shapes]


def run(entry: Entry) -> set[str]:
    """Runs a script and returns what it is told; compares what it computes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for found, wanted in entry.run(mi, draw):
            np.testing.assert_allclose(np.asarray(found, np.float64), wanted, rtol=1e-2, atol=1e-2)
    said = [str(one.message) for one in caught if issubclass(one.category, mi.IgnoredOptionWarning)]
    return {name for name in entry.ignores if any(name in text for text in said)}


def not_searched(program: KernelBuilder | KernelGraph, **options: Any) -> list[Any]:
    """In the place of a search: the options are read as one reads them, and the program computes itself."""
    assert set(options) <= set(request.Options.__annotations__)
    graph = program.freeze() if isinstance(program, KernelBuilder) else program
    assert graph.outputs
    return [make_callable(graph)]


def test_there_are_enough() -> None:
    assert len(SCRIPTS) >= 45
    assert sum(not entry.stops for entry in SCRIPTS.values()) >= 36


@pytest.mark.parametrize("name", [name for name, entry in SCRIPTS.items() if not entry.stops])
def test_a_script_runs_with_the_import_changed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SCRIPTS[name]
    monkeypatch.chdir(tmp_path)

    def one_worker(program: Any, **options: Any) -> Any:
        return _SEARCH(program, **{"workers": 1, **options})

    monkeypatch.setattr(request, "superoptimize", one_worker if name in SEARCHED else not_searched)
    assert run(entry) == set(entry.ignores)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("searched_once")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    share([name for name, one in SCRIPTS.items() if one.searches and not one.stops and name not in SEARCHED], 4, 0),
)
def test_a_script_runs_with_its_searches(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(SCRIPTS[name]) == set(SCRIPTS[name].ignores)


@pytest.mark.parametrize("name", [name for name, entry in SCRIPTS.items() if entry.stops])
def test_a_script_that_cannot_run_is_told_the_row(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SCRIPTS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(request, "superoptimize", not_searched)
    with pytest.raises(mi.UnsupportedError) as raised:
        run(entry)
    assert f"row {entry.stops} of docs/mirage_api.md" in raised.value.hint
    assert "/mirage_scripts.py:" in raised.value.where
    table = (REPOSITORY / "docs" / "mirage_api.md").read_text(encoding="utf-8")
    assert f"| `{entry.stops}` |" in table


GUARDED = """\
import mirage_formal as mi

if __name__ == "__main__":
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(4, 32))
    graph.mark_output(graph.rms_norm(X))
"""


def test_a_script_behind_a_main_guard_is_told_what_to_do(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    file = tmp_path / "script.py"
    file.write_text(GUARDED)
    done = CliRunner().invoke(app, ["search", str(file)])
    assert isinstance(done.exception, mi.ProgramError)
    assert "line 4 makes one, under the main guard" in done.exception.what
    assert "make the graph at module level" in done.exception.hint
