"""Covers of a program: it is cut into parts, each distinct part is searched once, and all is put together again.

Every search is an ordinary run with its own directory; whole.json ties them together (docs/whole-models.md). A part of
one operator may stay as it is, so every program has a cover, and none is kept that is estimated above the operators
one by one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import msgspec

from mirage_formal.errors import UnsupportedError
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import encode, to_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.views import is_view, kernel_count
from mirage_formal.guard import orderly
from mirage_formal.kernels.cost import estimate
from mirage_formal.records import (
    CANDIDATES,
    SUMMARY_FILE,
    UnitRecord,
    read,
    sealed,
    sha256,
    write_atomic,
)
from mirage_formal.records.whole import PARTS, WHOLE_FILE, PartRecord, WholeRecord
from mirage_formal.run.driver import About, Report, Result, run, workers_of
from mirage_formal.run.place.lock import writing
from mirage_formal.run.progress import Watch, silent
from mirage_formal.run.settings import Job, Settings, choose_config, identity, make_job, readable
from mirage_formal.run.whole.partition import Part, Partition, PartLimits, Price, floor_us, partition
from mirage_formal.run.whole.stitch import stitched
from mirage_formal.run.whole.store import drop_others, earlier_search, number_of, open_whole
from mirage_formal.search.sought import sought
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.workers.dispatch import Executor

#: Candidates that the run of a part reports, if the user does not say: the best one is taken.
KEEP: Final = 3
#: How often the program is cut, each time with what the searches of all parts so far have found.
_ROUNDS: Final = 4
#: Time limit of an earlier session's search when there is no time left: what it found is verified.
NO_TIME_S: Final = 1e-6
#: Operators that only rename or move elements: a space has to list them before a search can propose them.
_MOVES: Final = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE})

Status = Literal["complete", "interrupted", "time-limit"]


@dataclass(frozen=True, slots=True)
class WholePart:
    """A part, what takes its place, and the run that found it.

    Attributes:
        part: The part.
        graph: What takes its place: a candidate, or the part's own operators.
        chosen: The candidate; None if the operators stay.
        report: The run; None if no search takes the part, or there was no time.
        view: Whether it is an operator whose result is a view in the program, for which no kernel is launched.
    """

    part: Part
    graph: KernelGraph
    chosen: Result | None
    report: Report | None
    view: bool = False


@dataclass(frozen=True, slots=True)
class WholeReport:
    """What was found for a program of many parts.

    Attributes:
        record: whole.json as written.
        result: The whole; None if the run was interrupted.
        parts: The parts in the order in which they are computed; those that an interrupted run came to.
        directory: Where everything is.
        searches: Every run, in order, also those of which nothing is used.
        limited: Operators below which the partition did not look at all sets, see ``Partition``.
    """

    record: WholeRecord
    result: Result | None
    parts: tuple[WholePart, ...]
    directory: Path
    searches: tuple[Report, ...]
    limited: int

    @property
    def summary(self) -> WholeRecord:
        """The record, under the name that a single run's has."""
        return self.record

    @property
    def failed(self) -> tuple[UnitRecord, ...]:
        """Units of work of all searches that were given up."""
        return tuple(unit for report in self.searches for unit in report.failed)


def run_whole(
    program: KernelGraph, settings: Settings, out: Path, *, tried: bool = False, **about: Unpack[About]
) -> WholeReport:
    """Cut a program into parts, search each distinct one, and write the whole to ``out``.

    A part takes the best of its candidates that are proved, whatever the policy of the settings, or keeps its operators
    where that is estimated to be faster or nothing was found. The whole is never estimated above the operators one by
    one: where it would be, they all stay. Ctrl-C ends the search of a part as in ``run`` and then the whole; with
    ``resume`` it is continued.

    Args:
        program: The program.
        settings: What was asked for.
        out: The directory.
        tried: Whether one search of the whole program was made, so that it is no part.
        about: Name, source, progress and workers.

    Sound: the whole is equivalent because every part is, see ``stitched``; nothing that is only probable goes in.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
    """
    settings = replace(settings, keep=settings.keep or KEEP)
    job = make_job(program, settings)
    with orderly(), writing(out):
        open_whole(
            out,
            settings.config and readable(settings.config),
            identity(job),
            resume=settings.resume,
            force=settings.force,
        )
        with workers_of(settings, about, out) as workers:
            return _Whole(job, settings, out, about, workers, tried=tried).report()


def takes(part: KernelGraph, job: Job, settings: Settings) -> bool:
    """Whether a search takes a part: its engine does, and its digest can be computed.

    Sound: a part that is refused stays as it is.
    """
    plain = sought(part).program
    kinds = _kinds(plain)
    listed = _operators(job.space) if settings.config is not None else _listed(part_config(part, settings))
    if job.engine == "exhaustive" and not kinds <= listed:
        return False
    if job.engine == "guided" and kinds & (_MOVES - listed):
        return False
    try:
        if job.engine == "guided":
            from mirage_formal.search.guided.axes import require_normal_form

            require_normal_form(plain)
        digest(part)
    except UnsupportedError:
        return False
    return True


def part_config(part: KernelGraph, settings: Settings) -> str:
    """The search space of a part.

    The default one has two graph-defined kernels and more: parts that are no attention gain little by it, so they get
    the smaller one, unless that lacks an operator of theirs.
    """
    config = settings.config or choose_config(sought(part).program)
    if config != "default" or settings.config is not None:
        return config
    return "default" if _kinds(sought(part).program) & (_listed("default") - _listed("mlp")) else "mlp"


def _kinds(part: KernelGraph) -> set[OpKind]:
    return {op.kind for op in part.ops if not isinstance(op, GraphDefined)}


def _operators(space: SearchSpace) -> frozenset[OpKind]:
    return frozenset({*space.kernel_ops, *space.block_ops})


@lru_cache(maxsize=64)
def _listed(preset: str) -> frozenset[OpKind]:
    """Operators that a preset lists."""
    return _operators(load_space(preset))


class _Whole:
    def __init__(
        self,
        job: Job,
        settings: Settings,
        root: Path,
        about: About,
        workers: Executor[Any],
        *,
        tried: bool,
    ) -> None:
        self.program = job.program
        self.job = job
        self.target = job.target
        self.identity = identity(job)
        self.reports: dict[KernelGraph, Report] = {}  # programs, for a candidate's conditions name their operators
        self.known: dict[KernelGraph, float | None] = {}  # what the searches have brought parts to
        self.floors: dict[KernelGraph, float | None] = {}  # the least that searches of other parts could find
        self.limited = 0
        self.settings = settings
        self.root = root
        self.name = about.get("name", "program")
        self.source = about.get("source", "")
        self.watch = about.get("watch", silent)
        self.workers = workers
        self.tried = tried
        self.begin = time.monotonic()
        self.status: Status = "complete"

    def report(self) -> WholeReport:
        self._write((), None, "interrupted")  # what is here is ours, if we do not come to the end
        for _ in range(_ROUNDS):
            cut = self._cut(self._expected)
            self.limited = max(self.limited, cut.limited)
            fresh = [part for part in cut.parts if part.searched and part.program not in self.known]
            for part in fresh:
                report = self._search(part)
                if self.status == "interrupted":
                    found = self._filled(cut)
                    return self._reported(self._write(found, None, "interrupted"), None, found)
                if report is not None:
                    self.known[part.program] = self._brought(part, report)
            if not fresh or self.status == "time-limit":
                break
        whole, found = min(self._covers(), key=lambda cover: estimate(cover[0], self.target).us)
        record = self._write(found, whole, self.status)
        drop_others(self.root, self._runs())
        return self._reported(record, self._result(whole, record), found)

    def _covers(self) -> Iterator[tuple[KernelGraph, tuple[WholePart, ...]]]:
        """The cheapest cover by what was found, and the operators one by one.

        The first is cheaper part by part; a whole is estimated anew, because a kernel's result may stay in the L2.
        """
        for price in (self.known.get, _no_search):
            found = self._filled(self._cut(price))
            yield stitched(self.program, [(one.part, one.graph) for one in found]), found

    def _cut(self, price: Price) -> Partition:
        limits = PartLimits(self.job.space.max_block_ops, self.job.space.max_block_inputs)
        return partition(self.program, self.target, limits, price)

    def _expected(self, part: KernelGraph) -> float | None:
        """What a part costs: what its search has found, or the least that it could find."""
        if part in self.known:
            return self.known[part]
        if part not in self.floors:  # the same sets of operators are looked at in every round
            whole = self.tried and len(part.ops) == len(self.program.ops)
            searched = not whole and takes(part, self.job, self.settings)
            most = self.job.space.max_block_inputs
            self.floors[part] = floor_us(part, self.target, most) if searched else None
        return self.floors[part]

    def _brought(self, part: Part, report: Report) -> float | None:
        """What a search has brought a part to; None if it came to its end and its operators are better.

        Where a unit of it failed, or time ran out, what it would have found is not known, and the part stays one.
        """
        unfused = estimate(part.program, self.target).us
        best = self._best(report)
        if best is not None and best.cost <= unfused:
            return best.cost
        return None if report.summary.status == "complete" and not report.failed else unfused

    def _filled(self, cut: Partition) -> tuple[WholePart, ...]:
        """Every part of a partition with what takes its place."""
        return tuple(self._replaced(part, self.reports.get(part.program)) for part in cut.parts)

    def _reported(self, record: WholeRecord, result: Result | None, found: tuple[WholePart, ...]) -> WholeReport:
        return WholeReport(record, result, found, self.root, tuple(self.reports.values()), self.limited)

    def _search(self, part: Part) -> Report | None:
        """The run of a part; equal parts share one. None if there is no time left."""
        program = part.program
        if program not in self.reports:
            code, left = digest(program), self._left()
            earlier = earlier_search(self.root, code, program) if self.settings.resume else None
            if earlier is None and left is not None and left <= 0:
                self.status = "time-limit"
                return None
            number = 1 + max((number_of(report.directory) for report in self.reports.values()), default=0)
            where = earlier or self.root / PARTS / f"{number:02}-{code[:12]}"
            report = self.reports[program] = run(
                program,
                self._own_settings(part, left, resume=earlier is not None),
                where,
                name=f"{self.name}-part-{number_of(where):02}",
                source=self.source,
                watch=self._watched(number_of(where)),
                executor=self.workers,
            )
            self.status = report.summary.status if report.summary.status != "complete" else self.status
        return self.reports[program]

    def _left(self) -> float | None:
        limit = self.settings.time_limit_s
        return None if limit is None else limit - (time.monotonic() - self.begin)

    def _own_settings(self, part: Part, left: float | None, *, resume: bool) -> Settings:
        limit = None if left is None else max(left, NO_TIME_S)
        config = part_config(part.program, self.settings)
        # What lies in a part's directory is this whole's own, see open_whole.
        states = self.job.space.max_states
        return replace(
            self.settings, config=config, time_limit_s=limit, resume=resume, force=not resume, max_states=states
        )

    def _runs(self) -> list[str]:
        """Directories of all searches, relative to the root."""
        return sorted(report.directory.relative_to(self.root).as_posix() for report in self.reports.values())

    def _watched(self, number: int) -> Watch:
        """Progress that says which part is searched."""
        return lambda progress: self.watch(replace(progress, remark=progress.remark or f"part {number}"))

    def _best(self, report: Report) -> Result | None:
        """The best candidate that is proved."""
        proved = (result for result in report.results if isinstance(result.verdict, Equivalent))
        return min(proved, key=lambda result: result.rank, default=None)

    def _replaced(self, part: Part, report: Report | None) -> WholePart:
        best = None if report is None else self._best(report)
        if best is None or best.cost > estimate(part.program, self.target).us:
            return WholePart(part, part.program, None, report, is_view(self.program, part.result))
        return WholePart(part, best.graph, best, report)

    # --- records -----------------------------------------------------------------------------------------------

    def _part_record(self, one: WholePart) -> PartRecord:
        from mirage_formal.check.equivalence import own_conditions

        unfused = estimate(one.part.program, self.target)
        chosen = one.chosen
        searched = "" if one.report is None else one.report.directory.relative_to(self.root).as_posix()
        conditions, added = own_conditions(one.part.program), tuple[str, ...]()
        if chosen is not None:
            assert isinstance(chosen.verdict, Equivalent)
            conditions, added = chosen.verdict.conditions, chosen.verdict.added
        return PartRecord(
            operators=one.part.operators,
            run=searched,
            candidate=None if chosen is None else chosen.digest,
            directory="" if chosen is None else f"{searched}/{CANDIDATES}/{chosen.directory.name}",
            kernels=kernel_count(one.graph),
            estimated_us=unfused.us if chosen is None else chosen.cost,
            unfused_kernels=kernel_count(one.part.program),
            unfused_us=unfused.us,
            conditions=conditions,
            added=added,
        )

    def _write(self, found: tuple[WholePart, ...], whole: KernelGraph | None, status: Status) -> WholeRecord:
        unfused = estimate(self.program, self.target)
        parts = tuple(self._part_record(one) for one in found)
        record = WholeRecord(
            program=self.name,
            source=readable(self.source),
            config=self.settings.config and readable(self.settings.config),
            identity=self.identity,
            graph_of_program=_raw(self.program),
            status=status,
            verdict=None if whole is None else "equivalent",
            parts=parts,
            graph=msgspec.Raw(b"null") if whole is None else _raw(whole),
            graph_digest=None if whole is None else digest(whole),
            kernels=0 if whole is None else kernel_count(whole),
            estimated_us=0.0 if whole is None else estimate(whole, self.target).us,
            unfused_kernels=kernel_count(self.program),
            unfused_us=unfused.us,
            conditions=_numbered([part.conditions for part in parts]),
            added=_numbered([part.added for part in parts]),
            wall_s=round(time.monotonic() - self.begin, 3),
            manifest={f"{run}/{SUMMARY_FILE}": sha256(read(self.root / run / SUMMARY_FILE)) for run in self._runs()},
        )
        write_atomic(self.root / WHOLE_FILE, sealed(record))
        return record

    def _result(self, whole: KernelGraph, record: WholeRecord) -> Result:
        assert record.graph_digest is not None
        from mirage_formal.run.built.build import Alternatives  # as in a single run, not before there is a result

        alternatives = Alternatives(((record.graph_digest[:12], encode(whole)),), self.program, self.target)
        verdict = Equivalent(read(self.root / WHOLE_FILE), record.conditions, record.added)
        return Result(whole, record.graph_digest, 1, verdict, record.estimated_us, self.root, alternatives)


def _no_search(part: KernelGraph) -> None:
    """The price of parts where every operator stays as it is."""


def _numbered(parts: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The conditions of all parts, each with its part's number."""
    return tuple(dict.fromkeys(f"part {n}: {one}" for n, conditions in enumerate(parts, 1) for one in conditions))


def _raw(graph: KernelGraph) -> msgspec.Raw:
    return msgspec.Raw(to_json(graph).strip().encode())


__all__ = ["KEEP", "NO_TIME_S", "WholePart", "WholeReport", "part_config", "run_whole", "takes"]
