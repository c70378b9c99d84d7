"""A warm store of small entries of both kinds, and edits of it that sign everything again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mirage_formal as mf
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH, SearchCache
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition import search_strategy
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records import RunRecord, decode, read_file
from mirage_formal.records.store_entry import SearchEntry
from mirage_formal.run.result_cache import cache_lookup
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings
from tests.kit.graphs.workloads import TINY, layers
from tests.kit.runs.tampering import files, sign_candidate


@dataclass(frozen=True)
class Case:
    """A call, what it found, and a store that has it.

    Attributes:
        program: The program.
        settings: What was asked for.
        out: Directory of the run.
        store: Root of the store.
    """

    program: KernelGraph
    settings: Settings
    out: Path
    store: Path

    @property
    def entry(self) -> Path:
        """The directory of the answer."""
        place = SearchCache(self.store)
        (found,) = (path for path in place.entries() if place.read_record(path).key.kind == "answer")
        return found

    def call(self, out: Path) -> RunReport | WholeReport:
        """The call again."""
        return search_strategy.search_or_cover(self.program, self.settings, out, name="case")


def single() -> tuple[KernelGraph, Settings]:
    """A program of one search, with conditions and several candidates."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((16, 32), name="x"), graph.new_input((32, 16), name="w")
    graph.mark_output(graph.relu(graph.exp(x) @ w))
    return graph.freeze(), Settings(config="mlp", workers=1, keep=3)


def several() -> tuple[KernelGraph, Settings]:
    """A program that is covered by parts."""
    return layers(1), Settings(**TINY)


@contextmanager
def using(store: Path) -> Iterator[None]:
    """The store at a place is in use, and nothing is remembered of earlier ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SWITCH, raising=False)
        patch.setenv(STORE_VARIABLE, str(store))
        cache_lookup._replayed.clear()
        yield


def warm(made: tuple[KernelGraph, Settings], root: Path) -> Case:
    """A case with a warm store."""
    case = Case(*made, root / "out", root / "store")
    with using(case.store):
        assert not case.call(case.out).failed
    return case


def copy_of(case: Case, root: Path) -> Case:
    """The case with a copy of its store."""
    shutil.copytree(case.store, root / "store")
    return Case(case.program, case.settings, case.out, root / "store")


# --- edits ------------------------------------------------------------------------------------------------------------


def sign(entry: Path, change: Callable[[SearchEntry], SearchEntry] = lambda record: record) -> None:
    """Write entry.json anew, about the files that are there."""
    record = change(SearchCache().read_record(entry))
    data = {path.relative_to(entry).as_posix(): path.read_bytes() for path in files(entry) if path.name != "entry.json"}
    shutil.rmtree(entry)
    entry.mkdir()
    SearchCache().write(entry, record.key, record.value, data)


def sign_run(run: Path) -> None:
    """Compute digests and seals of a run anew, candidates first."""
    from mirage_formal.records import SummaryRecord, seal_record, sha256

    for candidate in sorted((run / "candidates").iterdir()):
        sign_candidate(candidate)
    summary = decode(read_file(run / "summary.json"), SummaryRecord, "")
    listed = {path.relative_to(run).as_posix(): sha256(path.read_bytes()) for path in files(run)}
    del listed["summary.json"]
    (run / "summary.json").write_bytes(seal_record(msgspec.structs.replace(summary, manifest=listed)))


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    """Change a file of JSON."""
    value = msgspec.json.decode(path.read_bytes())
    change(value)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def run_record(run: Path) -> RunRecord:
    """The record of a run."""
    return decode(read_file(run / "run.json"), RunRecord, "")
