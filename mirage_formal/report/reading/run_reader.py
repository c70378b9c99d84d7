"""Reader of a run's directory: its options, its candidates, and the course of its search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    EXHAUSTED_FILE,
    KERNELS,
    MANIFEST_FILE,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    CandidateRecord,
    ExhaustedRecord,
    Identity,
    LevelName,
    RunRecord,
    SummaryRecord,
    TargetRecord,
    TimesRecord,
    UnitRecord,
    decode,
    key_of,
    open_sealed,
    read_lines,
    sha256,
)
from mirage_formal.report.model import (
    Basis,
    ReportedCandidate,
    ReportedVerdict,
    ReportModel,
    Search,
    SearchedUnit,
    Span,
    WorkBound,
)
from mirage_formal.report.reading.adjacent_files import TritonRequest, with_adjacent_files
from mirage_formal.report.reading.candidate_reader import ReadOptions, read_candidate
from mirage_formal.report.reading.decision_reader import with_decisions
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.report.reading.kernel_reader import read_kernels
from mirage_formal.search.engine_interface import add_counts, counts_by_reason
from mirage_formal.support.errors import FormatError, MirageError

#: Most bytes of a journal that are read.
_JOURNAL: Final = 32 << 20
#: Most rejected candidates that are listed.
_REJECTED: Final = 200


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Options that select how much of a run is read.

    Attributes:
        candidates: Number of candidates that are read; the others are counted.
        proofs: Number of candidates whose proofs are replayed and converted to formulas, and whose lines of code are
            linked to operators.
        assembly: Whether these lines are compiled to PTX and SASS.
    """

    candidates: int = 1000
    proofs: int = 24
    assembly: bool = False


def read_run_report(source: EvidenceReader, shown: ReadLimits) -> ReportModel:
    """Read a run; errors become its faults, and unreadable parts are left out."""
    record = source.value(RUN_FILE, lambda data: decode(data, RunRecord, RUN_FILE))
    program = source.graph(RUN_FILE, record.program) if record else None
    if record is not None and program is not None:
        source.same_digest(RUN_FILE, program, record.identity.program)
        if key_of(record.identity) != record.key:
            source.fault(RUN_FILE, "its key is not that of its identity")
    summary = None
    if source.there(SUMMARY_FILE):
        summary = source.value(SUMMARY_FILE, lambda data: open_sealed(data, SummaryRecord, SUMMARY_FILE))
    else:
        source.fault(SUMMARY_FILE, "the run has not finished: only what was asked for is known")
    if summary is not None:
        _manifest(source, summary)
    units = read_units(source, record) if record else []
    candidates, target = _candidates(source, summary, program, shown)
    if record is not None:
        candidates = with_decisions(candidates, units)
    asked = TritonRequest(program, record.identity.target if record else "", shown.proofs)
    made = () if record is None else (*sorted(record.versions.items()), *_host(record))
    return ReportModel(
        kind="run",
        name=record.name if record else summary.program if summary else source.root.name,
        source=record.source if record else "",
        place=str(source.root),
        program=program,
        candidates=with_adjacent_files(source.root, candidates, asked),
        judged=_rejected(summary),
        rejected=len(summary.rejected) if summary else 0,
        search=read_search(source, record, summary, units) if record else None,
        floor=least_work(program, target, record.identity if record else None),
        made=made,
        faults=tuple(source.faults),
    )


def _host(record: RunRecord) -> tuple[tuple[str, str], ...]:
    host = record.host
    return ("python", host.python), ("system", host.system), ("machine", host.machine), ("processors", host.cpus)


def _manifest(source: EvidenceReader, summary: SummaryRecord) -> None:
    """Check that the files beside the candidates, and the candidates' manifests, have the summary's digests."""
    # Earlier versions wrote no bound.
    own = [RUN_FILE, SEARCH_FILE, *({EXHAUSTED_FILE} & summary.manifest.keys())]
    wanted = [*own, *(f"{one.directory}/{MANIFEST_FILE}" for one in summary.candidates)]
    for name in wanted:
        with source.reading(name):
            if name not in summary.manifest:
                raise FormatError("it is not in the summary's manifest")
            if sha256(source.data(name)) != summary.manifest[name]:
                raise FormatError("its digest is not the one in the summary: the file was changed")


def _candidates(
    source: EvidenceReader, summary: SummaryRecord | None, program: KernelGraph | None, shown: ReadLimits
) -> tuple[tuple[ReportedCandidate, ...], TargetRecord | None]:
    out: list[ReportedCandidate] = []
    target = None
    for number, about in enumerate((summary.candidates if summary else ())[: shown.candidates]):
        with source.reading(about.directory):
            below = source.below(about.directory)
            one = read_candidate(below, program, about, ReadOptions(number < shown.proofs, number < shown.proofs))
            lines = number < shown.proofs
            one, figures = with_kernels(source, one, lines=lines, assembly=shown.assembly and lines)
            target = target or figures
            out.append(one)
    if summary is not None and len(summary.candidates) > shown.candidates:
        source.fault(SUMMARY_FILE, f"only {shown.candidates} of {len(summary.candidates)} candidates are shown")
    return tuple(out), target


def with_kernels(
    source: EvidenceReader, one: ReportedCandidate, *, lines: bool = True, assembly: bool = False
) -> tuple[ReportedCandidate, TargetRecord | None]:
    """Return a candidate with its kernels, where they were built, and their target.

    Args:
        source: The directory of its run.
        one: The candidate.
        lines: Whether lines of code are linked to operators.
        assembly: Whether these lines are compiled to PTX and SASS.
    """
    name = f"{KERNELS}/{PurePosixPath(one.directory).name}"
    if not (source.root / name).is_dir():
        return one, None
    below = source.below(name)
    built = read_kernels(below, one.digest, lines=lines, assembly=assembly)
    faults = (*one.faults, *below.faults)
    basis = Basis.FAILS if faults else one.basis
    if built is None:
        return replace(one, faults=faults, basis=basis), None
    return replace(one, code=built.code, measured=built.measured, faults=faults, basis=basis), built.target


def _rejected(summary: SummaryRecord | None) -> tuple[ReportedVerdict, ...]:
    return tuple(
        ReportedVerdict(one.digest, one.kind, one.reason) for one in (summary.rejected if summary else ())[:_REJECTED]
    )


def read_units(source: EvidenceReader, record: RunRecord) -> list[UnitRecord]:
    """Read the journal of a run: the last line of each unit. Unreadable lines are faults, and end it."""
    last: dict[int, UnitRecord] = {}
    if source.there(SEARCH_FILE):
        with source.reading(SEARCH_FILE):
            for number, line in read_lines(source.root / SEARCH_FILE, _JOURNAL):
                one = decode(line, UnitRecord, f"line {number}")
                if one.key != record.key:
                    raise FormatError(f"line {number}: expected a unit of this run, got one of another")
                last.pop(one.unit, None)
                last[one.unit] = one
    return list(last.values())


def read_search(
    source: EvidenceReader, record: RunRecord, summary: SummaryRecord | None, journal: Sequence[UnitRecord]
) -> Search:
    """Read the course of a run's search from its records and the units of its journal; contradictions are faults."""
    units: list[SearchedUnit] = []
    stats: Counter[str] = Counter()
    pruned: Counter[str] = Counter()
    pruned_at: dict[LevelName, dict[str, int]] = {}
    for one in journal:
        stats.update(one.stats)
        pruned.update(one.pruned)
        pruned_at = add_counts(pruned_at, one.pruned_at)
        if one.pruned_at and counts_by_reason(one.pruned_at) != one.pruned:
            source.fault(SEARCH_FILE, f"unit {one.unit}: pruned_at: expected the counts of pruned by level")
        units.append(unit_of(source, one))
    bound: ExhaustedRecord | None = None
    if summary is not None and EXHAUSTED_FILE in summary.manifest:
        with source.reading(EXHAUSTED_FILE):
            bound = decode(source.data(EXHAUSTED_FILE), ExhaustedRecord, EXHAUSTED_FILE)
    if summary is not None:
        stats, pruned = Counter(summary.stats), Counter(summary.pruned)
    who = record.identity
    return Search(
        engine=who.engine,
        oracle=who.oracle,
        axioms=(*who.axioms, *(f"without {name}" for name in who.without_axioms)),
        space=record.config,
        seed=who.seed,
        target=who.target,
        status=summary.status if summary else "unfinished",
        wall_s=summary.wall_s if summary else 0.0,
        workers=summary.workers if summary else 0,
        recalled=summary.recalled if summary else False,
        found=summary.found if summary else 0,
        stats=tuple(sorted(stats.items())),
        pruned=tuple(sorted(pruned.items())),
        units=tuple(units),
        allowed=tuple((name, bytes(value).decode("utf-8", "replace")) for name, value in sorted(record.space.items())),
        course=totals_over_time(units),
        audit=summary.audit if summary else None,
        bound_us=bound.bound_us if bound else None,
        gap=bound.gap if bound else None,
        pruned_at=tuple(
            (level, reason, count)
            for level, reasons in pruned_at.items()
            for reason, count in reasons.items()
            if reason in pruned
        ),
    )


def least_work(program: KernelGraph | None, target: TargetRecord | None, who: Identity | None) -> WorkBound | None:
    """Return the least work of a program on a target; None without a program or the target's figures."""
    if program is None:
        return None
    figures: TargetRecord | Target | None = target
    if figures is None and who is not None:
        try:
            figures = load_target(who.target)
        except (MirageError, OSError):  # a target of the user's own, which is not here
            return None
    if figures is None:
        return None
    types = kernel_types(program)
    flops = 0
    number = len(program.inputs)
    for op in program.ops:
        if getattr(op, "kind", None) is OpKind.MATMUL:
            flops += 2 * types[number].elements * types[op.operands[0]].shape[-1]
        number += op.results
    held = {*range(len(program.inputs)), *program.outputs}
    moved = sum(types[n].bytes for n in held)
    return WorkBound(figures.title or figures.name, flops, moved, figures.bandwidth_gbs, figures.tensor_tflops)


def read_candidate_alone(
    source: EvidenceReader, program: KernelGraph | None, verdict: str, digest: str
) -> ReportedCandidate:
    """Read a candidate's directory without its run; the figures of the run's summary are left empty."""
    about = CandidateRecord(
        id=digest[:12],
        digest=digest,
        rank=1,
        verdict="equivalent" if verdict == "equivalent" else "probable",
        error_bound_log2=None,
        kernels=0,
        estimated_us=0.0,
        directory=source.root.name,
    )
    return read_candidate(source, program, about, ReadOptions())


# --- units -----------------------------------------------------------------------------------------------------------


#: Number of points of a search's course.
POINTS: Final = 100


def unit_of(source: EvidenceReader, record: UnitRecord) -> SearchedUnit:
    """Return a unit; contradictory times are left out and become a fault of the journal."""
    stats, times, span = record.stats, record.times, None
    states, classes = stats.get("states", 0), stats.get("classes", 0)
    if times is not None:
        if wrong := _contradiction(times, states, classes):
            source.fault(SEARCH_FILE, f"times of unit {record.unit}: {wrong}")
        else:
            span = Span(times.begin, times.end, times.worker, times.samples)
    cut, found = sum(record.pruned.values()), len(record.candidates)
    return SearchedUnit(
        record.unit, record.label, record.status, states, classes, cut, found, record.milliseconds, span
    )


def _contradiction(times: TimesRecord, states: int, classes: int) -> str:
    """Return how times contradict each other, or "": seconds and counts only grow, and end with the unit."""
    seconds = [times.begin, *(one[0] for one in times.samples), times.end]
    if seconds != sorted(seconds):
        return f"expected begin, samples and end one behind another, got {seconds[0]:g} to {seconds[-1]:g} s"
    for name, at, last in (("states", 1, states), ("classes", 2, classes)):
        counts = [0, *(one[at] for one in times.samples), last]
        if counts != sorted(counts):
            return f"expected {name} that grow up to the {last} of the unit, got {max(counts)}"
    return ""


def totals_over_time(units: Iterable[SearchedUnit]) -> tuple[tuple[float, int, int], ...]:
    """Return the states and classes of all units together over time, at ``POINTS`` points.

    Args:
        units: The units; those without times are left out.
    """
    more: list[tuple[float, int, int]] = []
    for unit in units:
        if unit.span is not None:
            known = (0, 0)
            for at, states, classes in (*unit.span.samples, (unit.span.end, unit.states, unit.classes)):
                more.append((at, states - known[0], classes - known[1]))
                known = (states, classes)
    more.sort()
    found: dict[int, tuple[float, int, int]] = {}
    states = classes = 0
    for at, new, built in more:
        states, classes = states + new, classes + built
        found[int(at / more[-1][0] * POINTS) if at else 0] = (at, states, classes)
    return ((0.0, 0, 0), *found.values()) if found else ()
