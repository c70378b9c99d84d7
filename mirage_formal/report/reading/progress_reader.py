"""Reader of what a search has recorded so far, while it runs: units, states, candidates, estimates, measured times."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import msgspec

from mirage_formal.cache.lock import lock_holder
from mirage_formal.records import (
    KERNELS,
    MEASURE_FILE,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    MeasureRecord,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    decode,
    open_sealed,
)
from mirage_formal.records.partition import PARTS
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.run_directory.run_writer import read_journal
from mirage_formal.support.errors import RunError

#: Most runs of a directory that are read.
_RUNS = 256
#: Number of the newest lines of progress.
NEWEST = 12


class RunProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one search, or of the tuning of one run.

    Attributes:
        name: Name of the program.
        place: Directory, relative to the watched one.
        state: "running", "not running", or the status in the summary.
        done, failed: Number of finished units (of tuning, timed kernels), and of those of them that failed.
        units: Number of all of them; None while it is not recorded.
        states, pruned: Number of visited states and of pruned branches.
        candidates: Number of distinct candidates. No proof of them exists before ``accepted`` counts them.
        accepted: Number of accepted candidates; None before the summary is written.
        best_us: Least estimate in microseconds; None without candidates.
        front: Numbers of kernels, estimates and names of the candidates that no other one beats in both.
        measured: Directories and measured microseconds of built candidates.
        newest: Newest lines of progress, the last one first.
        faults: What cannot be read.
    """

    name: str
    place: str
    state: str
    done: int
    failed: int
    units: int | None = None
    states: int = 0
    pruned: int = 0
    candidates: int = 0
    accepted: int | None = None
    best_us: float | None = None
    front: tuple[tuple[int, float, str], ...] = ()
    measured: tuple[tuple[str, float], ...] = ()
    newest: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def pareto_front(found: Iterable[tuple[int, float, str]]) -> tuple[tuple[int, float, str], ...]:
    """Return the candidates for which no other one has both no more kernels and no larger estimate.

    Args:
        found: Number of kernels, estimated microseconds and name of each candidate.
    """
    front: list[tuple[int, float, str]] = []
    for one in sorted(found):
        if not front or one[1] < front[-1][1]:
            front.append(one)
    return tuple(front)


class ProgressReader:
    """Reader of the runs in a directory, which may grow: a run, a whole program, or a directory of these.

    Args:
        root: The directory.

    Raises:
        RunError: There is no run in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._journals: dict[Path, tuple[tuple[int, int], list[UnitRecord]]] = {}
        if not self._runs():
            got = "no run" if root.is_dir() else "no such directory"
            hint = "give the directory of a search that has begun, or the --place of a tuning"
            raise RunError(f"expected a directory with a run, got {got}", where=str(root), hint=hint)

    def _runs(self) -> list[Path]:
        patterns = (RUN_FILE, f"{PARTS}/*/{RUN_FILE}", f"*/{RUN_FILE}", f"*/{PARTS}/*/{RUN_FILE}")
        found = (path.parent for pattern in patterns for path in sorted(self.root.glob(pattern)))
        return list(islice(dict.fromkeys(found), _RUNS))

    def read(self) -> list[RunProgress]:
        """Return the progress of all runs, as their records say now."""
        return [one for one in map(self._read, self._runs()) if one is not None]

    def _read(self, root: Path) -> RunProgress | None:
        source, summary = EvidenceReader(root), None
        record = source.value(RUN_FILE, lambda data: decode(data, RunRecord, RUN_FILE))
        if record is None:  # it is being replaced
            return None
        if source.there(SUMMARY_FILE):
            summary = source.value(SUMMARY_FILE, lambda data: open_sealed(data, SummaryRecord, SUMMARY_FILE))
        units: list[UnitRecord] = []
        with source.reading(SEARCH_FILE):
            units = self._journal(root / SEARCH_FILE, record.key)
        last = {one.unit: one for one in units}.values()
        found = {(one.kernels, one.estimated_us, one.digest[:12]) for unit in last for one in unit.candidates}
        accepted = None if summary is None else len(summary.candidates)
        front = found if summary is None else {(one.kernels, one.estimated_us, one.id) for one in summary.candidates}
        return RunProgress(
            name=record.name,
            place=root.relative_to(self.root).as_posix(),
            state=summary.status if summary else "running" if lock_holder(root) else "not running",
            done=len(last),
            failed=sum(one.status == "failed" for one in last),
            units=summary.units if summary else None,
            states=sum(one.stats.get("states", 0) for one in last),
            pruned=sum(sum(one.pruned.values()) for one in last),
            candidates=len(found),
            accepted=accepted,
            best_us=min((us for _, us, _ in front), default=None),
            front=pareto_front(front),
            measured=tuple(_measured(source)),
            newest=tuple(map(_line, reversed(units[-NEWEST:]))),
            faults=tuple(f"{one.file}: {one.what}" for one in source.faults),
        )

    def _journal(self, path: Path, key: str) -> list[UnitRecord]:
        """Return the records of a journal, which is read again only if it has changed."""
        about = path.stat()
        version = about.st_size, about.st_mtime_ns
        if self._journals.get(path, ((-1, -1), []))[0] != version:
            self._journals[path] = version, list(read_journal(path, key))
        return self._journals[path][1]


def _measured(source: EvidenceReader) -> Iterable[tuple[str, float]]:
    for path in sorted(source.root.glob(f"{KERNELS}/*/{MEASURE_FILE}")):
        name = path.relative_to(source.root).as_posix()
        one = source.value(name, lambda data, name=name: open_sealed(data, MeasureRecord, name))  # type: ignore[misc]
        if one is not None:
            yield path.parent.name, one.us


def _line(one: UnitRecord) -> str:
    states = one.stats.get("states", 0)
    end = f"{len(one.candidates)} candidates, {one.milliseconds / 1e3:.1f} s"
    return f"unit {one.unit} {one.status}: {one.label}: {states:,} states, {end}"
