"""Finished searches in the store: what is recalled, what is not, and entries that are in nobody's way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.cache import cache_directory, search_store
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.driver import run_search
from mirage_formal.run.result_cache import keys
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store of this test's own, in use."""
    monkeypatch.delenv(search_store.SWITCH)
    monkeypatch.setenv(search_store.STORE_VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


def program(name: str = "x", columns: int = 32) -> KernelGraph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((16, columns), name=name)
    graph.mark_output(graph.exp(graph.relu(x)))
    return graph.freeze()


def searched(out: Path, given: KernelGraph | None = None, **more: object) -> RunReport:
    settings = Settings(config="tiny", workers=1, **more)  # type: ignore[arg-type]
    return run_search(given or program(), settings, out)


def files(report: RunReport) -> dict[str, bytes]:
    """The evidence of a run: all but what says when and how it was made."""
    paths = (path for path in sorted(report.directory.rglob("*")) if path.is_file() and path.name != "summary.json")
    return {path.relative_to(report.directory).as_posix(): path.read_bytes() for path in paths}


def test_the_same_job_is_searched_once_and_has_the_same_evidence(tmp_path: Path, store: Path) -> None:
    first = searched(tmp_path / "first")
    assert not first.summary.recalled
    assert len(search_store.SearchCache().entries()) == 1
    second = searched(tmp_path / "second")
    assert second.summary.recalled
    assert any("recalled" in remark for remark in second.remarks)
    assert files(first) == files(second)
    assert first.results
    for a, b in zip(first.results, second.results, strict=True):
        assert (a.graph, a.verdict, a.cost) == (b.graph, b.verdict, b.cost)
    assert check([str(second.directory)]) == 0


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"keep": 1}, {"max_block_ops": 3}, {"max_kernel_ops": 2}, {"accept": "probable"}]
)
def test_another_option_is_another_search(tmp_path: Path, changed: dict[str, Any]) -> None:
    searched(tmp_path / "first")
    assert not searched(tmp_path / "second", **changed).summary.recalled


def test_another_program_is_another_search_and_so_are_other_names(tmp_path: Path) -> None:
    searched(tmp_path / "first")
    assert not searched(tmp_path / "second", program(columns=64)).summary.recalled
    assert not searched(tmp_path / "third", program("y")).summary.recalled


def test_other_code_is_another_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(tmp_path / "first")
    monkeypatch.setattr(keys, "installed_code", lambda: ("0.1.0", "0" * 64))
    assert not searched(tmp_path / "second").summary.recalled


def test_without_the_cache_nothing_is_recalled_or_kept(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(tmp_path / "first", cache=False)
    assert not store.exists()
    searched(tmp_path / "second")
    assert not searched(tmp_path / "third", cache=False).summary.recalled
    monkeypatch.setenv(search_store.SWITCH, "1")
    assert not searched(tmp_path / "fourth").summary.recalled


def test_a_run_that_the_clock_cut_short_is_not_kept(tmp_path: Path, store: Path) -> None:
    assert searched(tmp_path / "first", time_limit=1e-6).summary.status == "time-limit"
    assert search_store.SearchCache().entries() == []


def test_engines_of_the_users_own_are_not_kept(tmp_path: Path, store: Path) -> None:
    from tests.kit.runs.known_engine import PROGRAMS

    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", workers=1)
    run_search(PROGRAMS["attention"]()[0], settings, tmp_path / "run")
    assert search_store.SearchCache().entries() == []


def test_a_store_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(search_store.STORE_VARIABLE, str(tmp_path / "file"))
    assert searched(tmp_path / "first").results


def test_the_oldest_entries_make_room(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(tmp_path / "first")
    (oldest,) = search_store.SearchCache().entries()
    os.utime(oldest / "entry.json", (0, 0))
    foreign = store / "notes.txt"
    foreign.write_text("mine")
    os.utime(foreign, (0, 0))
    monkeypatch.setattr(cache_directory, "MOST_BYTES", search_store.SearchCache().read_record(oldest).bytes + 10)
    searched(tmp_path / "second", program(columns=64))
    assert not oldest.exists()
    assert len(search_store.SearchCache().entries()) == 1
    assert foreign.read_text() == "mine"


def test_a_run_that_is_resumed_is_verified_again(tmp_path: Path) -> None:
    searched(tmp_path / "first")
    assert not searched(tmp_path / "first", resume=True).summary.recalled
