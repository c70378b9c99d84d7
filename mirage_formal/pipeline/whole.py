"""Programs larger than a search takes: cut into parts, each distinct part searched once, and put together again.

Every search is an ordinary run with its own directory; whole.json ties them together (docs/whole-models.md).
"""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from mirage_formal.check.equivalence import own_conditions
from mirage_formal.errors import RunError, UnsupportedError
from mirage_formal.ir.canonical import digest
from mirage_formal.ir.graph import GraphDefined, KernelGraph
from mirage_formal.ir.ops import OpKind
from mirage_formal.ir.serialize import encode, to_json
from mirage_formal.ir.verdict import Equivalent
from mirage_formal.journal import (
    CANDIDATES,
    RUN_FILE,
    SUMMARY_FILE,
    UnitRecord,
    decode,
    read,
    sealed,
    sha256,
    write_atomic,
)
from mirage_formal.journal.whole import PARTS, WHOLE_FILE, PartRecord, WholeRecord
from mirage_formal.optimize.cost import estimate
from mirage_formal.optimize.partition import Part, PartLimits, partition
from mirage_formal.pipeline.driver import Report, Result, run
from mirage_formal.pipeline.executors import make_executor
from mirage_formal.pipeline.kernels import Alternatives
from mirage_formal.pipeline.progress import Watch, silent
from mirage_formal.pipeline.settings import Job, Settings, choose_config, make_job
from mirage_formal.pipeline.stitch import stitched
from mirage_formal.search.dispatch import Executor
from mirage_formal.search.guided.axes import ProgramAxes
from mirage_formal.search.space import SearchSpace

#: Candidates that the run of a part reports, if the user does not say: the best one is taken.
KEEP: Final = 3
#: How often the program is cut: again without the parts for which nothing was found, which smaller ones replace.
_ROUNDS: Final = 3
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
    """

    part: Part
    graph: KernelGraph
    chosen: Result | None
    report: Report | None


@dataclass(frozen=True, slots=True)
class WholeReport:
    """What was found for a program of many parts.

    Attributes:
        record: whole.json as written.
        result: The whole; None if the run was interrupted.
        parts: The parts in the order in which they are computed; those that an interrupted run came to.
        directory: Where everything is.
    """

    record: WholeRecord
    result: Result | None
    parts: tuple[WholePart, ...]
    directory: Path

    @property
    def summary(self) -> WholeRecord:
        """The record, under the name that a single run's has."""
        return self.record

    @property
    def failed(self) -> tuple[UnitRecord, ...]:
        """Units of work of all searches that were given up."""
        runs = {one.report.directory: one.report for one in self.parts if one.report is not None}
        return tuple(unit for report in runs.values() for unit in report.failed)


def most_operators(space: SearchSpace) -> int:
    """Operators that a candidate of a space has at most, over all its kernels."""
    defined = min(space.max_graph_defined, space.max_kernel_ops)
    return defined * space.max_block_ops + space.max_kernel_ops - defined


def is_whole(program: KernelGraph, settings: Settings) -> bool:
    """Whether a program has more operators than any candidate of its space, so that it is searched part by part.

    Raises:
        MirageError: The program or the settings are at fault.
    """
    return len(program.ops) > most_operators(make_job(program, settings).space)


def run_whole(
    program: KernelGraph,
    settings: Settings,
    out: Path,
    *,
    name: str = "program",
    source: str = "",
    watch: Watch = silent,
    executor: Executor[Any] | None = None,
) -> WholeReport:
    """Cut a program into parts, search each distinct one, and write the whole to ``out``.

    A part takes the best of its candidates that are proved, whatever the policy of the settings, or keeps its operators
    where that is estimated to be faster or nothing was found. Ctrl-C ends the search of a part as in ``run`` and then
    the whole; with ``resume`` it is continued.

    Sound: the whole is equivalent because every part is, see ``stitched``; nothing that is only probable goes in.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
        UnsupportedError: No search takes any part of the program.
    """
    job = make_job(program, settings)
    if not any(part.searched for part in _parts(program, job, frozenset())):
        kinds = sorted({op.kind.value for op in program.ops if not isinstance(op, GraphDefined)})
        what = f"expected a part that the {job.engine} engine takes, got none in {len(program.ops)} operators"
        raise UnsupportedError(f"{what}: {', '.join(kinds)}", where=name, hint="use --engine exhaustive")
    _open(out, digest(program), resume=settings.resume)
    with nullcontext(executor) if executor is not None else make_executor(settings) as workers:
        return _Whole(program, job, settings, out, name, source, watch, workers).report()


def _parts(program: KernelGraph, job: Job, barren: frozenset[str]) -> tuple[Part, ...]:
    """The cheapest partition in which nothing with a digest in ``barren`` is searched."""
    limits = PartLimits(job.space.max_block_ops, job.space.max_block_inputs)
    return partition(program, job.target, limits, lambda part: _takes(part, job) and digest(part) not in barren)


def run_any(
    program: KernelGraph,
    settings: Settings,
    out: Path,
    *,
    name: str = "program",
    source: str = "",
    watch: Watch = silent,
    executor: Executor[Any] | None = None,
) -> Report | WholeReport:
    """``run``, or ``run_whole`` for a program that is larger than its space.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
    """
    how = run_whole if is_whole(program, settings) else run
    return how(program, settings, out, name=name, source=source, watch=watch, executor=executor)


def _takes(part: KernelGraph, job: Job) -> bool:
    """Whether the engine searches a part.

    Sound: a part that is refused stays as it is.
    """
    kinds = {op.kind for op in part.ops if not isinstance(op, GraphDefined)}
    listed = {*job.space.kernel_ops, *job.space.block_ops}
    if job.engine == "exhaustive":
        return kinds <= listed
    if job.engine != "guided":
        return True
    if kinds & _MOVES - listed:
        return False
    try:
        ProgramAxes(part)
    except UnsupportedError:
        return False
    return True


def _open(root: Path, program: str, *, resume: bool) -> None:
    """Start a whole in ``root``, or see that the one that is there is continued.

    Raises:
        RunError: Not a directory, holds something other than a whole, or (with ``resume``) that of another program.
    """
    if root.exists() and not root.is_dir():
        raise RunError("expected a directory, got a file", where=str(root), hint="choose another --out")
    path = root / WHOLE_FILE
    if resume:
        if not path.is_file():
            hint = "leave --resume out to start a new run"
            raise RunError("expected a run to resume, got none of a whole program", where=str(root), hint=hint)
        earlier = decode(read(path), WholeRecord, str(path)).program_digest
        if earlier != program:
            what = f"expected the run that is being resumed, got another program ({earlier[:12]}, now {program[:12]})"
            raise RunError(what, where=str(path), hint="resume with the same program and options")
        return
    if root.is_dir() and any(root.iterdir()) and not path.is_file():
        hint = "choose another --out, or empty it yourself"
        raise RunError("expected a new directory or an earlier run of a whole program", where=str(root), hint=hint)
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(root / PARTS, ignore_errors=True)


class _Whole:
    def __init__(
        self,
        program: KernelGraph,
        job: Job,
        settings: Settings,
        root: Path,
        name: str,
        source: str,
        watch: Watch,
        workers: Executor[Any],
    ) -> None:
        self.program = program
        self.job = job
        self.target = job.target
        self.reports: dict[str, Report] = {}
        self.settings = settings
        self.root = root
        self.name = name
        self.source = source
        self.watch = watch
        self.workers = workers
        self.begin = time.monotonic()
        self.status: Status = "complete"

    def report(self) -> WholeReport:
        self._write((), None, "interrupted")  # what is here is ours, if we do not come to the end
        barren: frozenset[str] = frozenset()
        found: list[WholePart] = []
        for _ in range(_ROUNDS):
            found = []
            for part in _parts(self.program, self.job, barren):
                report = self._search(part) if part.searched else None
                if self.status == "interrupted":
                    record = self._write(tuple(found), None, "interrupted")
                    return WholeReport(record, None, tuple(found), self.root)
                found.append(self._replaced(part, report))
            more = {digest(one.part.program) for one in found if _nothing(one)} - barren
            if not more:
                break
            barren |= more
        whole = stitched(self.program, [(one.part, one.graph) for one in found])
        record = self._write(tuple(found), whole, self.status)
        return WholeReport(record, self._result(whole, record), tuple(found), self.root)

    def _search(self, part: Part) -> Report | None:
        """The run of a part; equal parts share one. None if there is no time left."""
        code = digest(part.program)
        if code not in self.reports:
            left = self._left()
            if left is not None and left <= 0:
                self.status = "time-limit"
                return None
            number = len(self.reports) + 1
            where = self.root / PARTS / f"{number:02}-{code[:12]}"
            report = self.reports[code] = run(
                part.program,
                self._own_settings(part, where, left),
                where,
                name=f"{self.name}-part-{number:02}",
                source=self.source,
                watch=self._watched(number),
                executor=self.workers,
            )
            self.status = report.summary.status if report.summary.status != "complete" else self.status
        return self.reports[code]

    def _left(self) -> float | None:
        limit = self.settings.time_limit_s
        return None if limit is None else limit - (time.monotonic() - self.begin)

    def _own_settings(self, part: Part, where: Path, left: float | None) -> Settings:
        config = self.settings.config or choose_config(part.program)
        return replace(
            self.settings,
            # The default space has two graph-defined kernels and more: parts that are no attention gain little by it.
            config="mlp" if config == "default" and self.settings.config is None else config,
            keep=self.settings.keep or KEEP,
            time_limit_s=left,
            resume=self.settings.resume and (where / RUN_FILE).is_file(),
        )

    def _watched(self, number: int) -> Watch:
        """Progress that says which part is searched."""
        return lambda progress: self.watch(replace(progress, remark=progress.remark or f"part {number}"))

    def _replaced(self, part: Part, report: Report | None) -> WholePart:
        proved = [] if report is None else [r for r in report.results if isinstance(r.verdict, Equivalent)]
        best = min(proved, key=lambda result: result.rank, default=None)
        if best is None or best.cost > estimate(part.program, self.target).us:
            return WholePart(part, part.program, None, report)
        return WholePart(part, best.graph, best, report)

    # --- records -----------------------------------------------------------------------------------------------

    def _part_record(self, one: WholePart) -> PartRecord:
        unfused = estimate(one.part.program, self.target)
        chosen = one.chosen
        searched = "" if one.report is None else one.report.directory.relative_to(self.root).as_posix()
        conditions = own_conditions(one.part.program)
        if chosen is not None:
            assert isinstance(chosen.verdict, Equivalent)
            conditions = chosen.verdict.conditions
        return PartRecord(
            operators=one.part.operators,
            run=searched,
            candidate=None if chosen is None else chosen.digest,
            directory="" if chosen is None else f"{searched}/{CANDIDATES}/{chosen.directory.name}",
            kernels=one.graph.kernels,
            estimated_us=unfused.us if chosen is None else chosen.cost,
            unfused_kernels=one.part.program.kernels,
            unfused_us=unfused.us,
            conditions=conditions,
        )

    def _write(self, found: tuple[WholePart, ...], whole: KernelGraph | None, status: Status) -> WholeRecord:
        unfused = estimate(self.program, self.target)
        parts = tuple(self._part_record(one) for one in found)
        conditions = dict.fromkeys(f"part {n}: {c}" for n, part in enumerate(parts, 1) for c in part.conditions)
        runs = sorted(report.directory.relative_to(self.root).as_posix() for report in self.reports.values())
        record = WholeRecord(
            program=self.name,
            source=self.source,
            program_digest=digest(self.program),
            graph_of_program=_raw(self.program),
            target=self.target.name,
            status=status,
            verdict=None if whole is None else "equivalent",
            parts=parts,
            graph=msgspec.Raw(b"null") if whole is None else _raw(whole),
            graph_digest=None if whole is None else digest(whole),
            kernels=0 if whole is None else whole.kernels,
            estimated_us=0.0 if whole is None else estimate(whole, self.target).us,
            unfused_kernels=self.program.kernels,
            unfused_us=unfused.us,
            conditions=tuple(conditions),
            wall_s=round(time.monotonic() - self.begin, 3),
            manifest={f"{run}/{SUMMARY_FILE}": sha256(read(self.root / run / SUMMARY_FILE)) for run in runs},
        )
        write_atomic(self.root / WHOLE_FILE, sealed(record))
        return record

    def _result(self, whole: KernelGraph, record: WholeRecord) -> Result:
        assert record.graph_digest is not None
        alternatives = Alternatives(((record.graph_digest[:12], encode(whole)),), self.program, self.target)
        verdict = Equivalent(read(self.root / WHOLE_FILE), record.conditions)
        return Result(whole, record.graph_digest, 1, verdict, record.estimated_us, self.root, alternatives)


def _nothing(one: WholePart) -> bool:
    """Whether a search of several operators came to its end without a candidate that is proved."""
    report = one.report
    return (
        one.chosen is None
        and report is not None
        and len(one.part.operators) > 1
        and report.summary.status == "complete"
        and not any(isinstance(result.verdict, Equivalent) for result in report.results)
    )


def _raw(graph: KernelGraph) -> msgspec.Raw:
    return msgspec.Raw(to_json(graph).strip().encode())


__all__ = ["KEEP", "WholePart", "WholeReport", "is_whole", "most_operators", "run_any", "run_whole"]
