"""A search that its time limit ends leaves nothing in the user's directory, and a longer limit continues it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.api import request
from mirage_formal.api.request import search_into_store, stored_results
from mirage_formal.cache.cache_directory import UNFINISHED
from mirage_formal.cache.search_store import SearchCache
from mirage_formal.run.results.result import Results
from mirage_formal.support.options import CallOptions, Settings


def program() -> mf.Graph:
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((8, 16), name="x"), graph.new_input((16, 16), name="w")
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    return graph


def unfinished() -> list[Path]:
    return [path for path in (SearchCache().root / UNFINISHED).glob("*") if path.is_dir()]


@pytest.fixture(autouse=True)
def _empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_FORMAL_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("MIRAGE_FORMAL_NO_CACHE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_longer_limit_continues_a_search_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = search_into_store(program(), {"measure": 0, "workers": 1, "time_limit": 0.001})
    assert cut.cut
    assert "its time limit ended the search" in cut.extent
    (place,) = unfinished()
    assert all(one.directory.is_relative_to(place) and one.directory.is_dir() for one in cut)
    assert list(Path().iterdir()) == []
    assert (place / "run.json").is_file() or (place / "whole.json").is_file()

    opened: list[tuple[bool, Path | None]] = []
    search = request._search_and_measure

    def spy(program: object, settings: Settings, call: CallOptions, where: Path | None, begin: float) -> Results:
        opened.append((settings.resume, where))
        return search(program, settings, call, where, begin)

    monkeypatch.setattr(request, "_search_and_measure", spy)
    whole = search_into_store(program(), {"measure": 0, "workers": 1})
    assert opened == [(True, place)]
    assert not whole.cut
    assert whole.extent.startswith("the whole space was searched: ")
    assert unfinished() == []
    assert all(one.directory.is_dir() for one in whole)
    assert list(Path().iterdir()) == []
    recalled = stored_results(program(), {"measure": 0})
    assert recalled is not None
    assert [one.digest for one in recalled] == [one.digest for one in whole]


def test_another_program_does_not_continue_it() -> None:
    search_into_store(program(), {"measure": 0, "workers": 1, "time_limit": 0.001})
    other = mf.new_kernel_graph()
    other.mark_output(other.exp(other.new_input((8, 16))))
    search_into_store(other, {"measure": 0, "workers": 1})
    assert len(unfinished()) == 1
