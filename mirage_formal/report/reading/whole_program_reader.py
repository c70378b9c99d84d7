"""Reader of a whole program's directory: covers, and the runs of their subgraphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import (
    LEVELS,
    RUN_FILE,
    SUMMARY_FILE,
    RunRecord,
    SummaryRecord,
    decode,
    open_sealed,
    sha256,
    sum_audits,
)
from mirage_formal.records.partition import WHOLE_FILE, CoverRecord, PartRecord, WholeRecord, cover_name
from mirage_formal.report.model import (
    Basis,
    PartSearch,
    ReportedCandidate,
    ReportedPart,
    ReportModel,
    Search,
)
from mirage_formal.report.reading.adjacent_files import TritonRequest, with_adjacent_files
from mirage_formal.report.reading.candidate_reader import ReadOptions, read_candidate
from mirage_formal.report.reading.decision_reader import with_decisions
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.report.reading.run_reader import least_work, read_search, read_units, with_kernels
from mirage_formal.support.errors import FormatError

#: Most searches of subgraphs that are read.
_SEARCHES: Final = 256
#: Most covers whose lines of code are linked to operators.
_LINES: Final = 24


def read_whole_report(source: EvidenceReader) -> ReportModel:
    """Read a whole program; errors become its faults."""
    whole = source.value(WHOLE_FILE, lambda data: open_sealed(data, WholeRecord, WHOLE_FILE))
    if whole is None:
        return ReportModel("whole", source.root.name, "", str(source.root), None, faults=tuple(source.faults))
    program = source.graph(WHOLE_FILE, whole.graph_of_program)
    if program is not None:
        source.same_digest(WHOLE_FILE, program, whole.identity.program)
    for name, code in whole.manifest.items():
        with source.reading(name):
            if sha256(source.data(name)) != code:
                raise FormatError("its digest is not the one in whole.json: the file was changed")
    parts = tuple(_part(source, one) for one in whole.covers[0].parts) if whole.covers else ()
    covers = tuple(_cover(source, rank, cover) for rank, cover in enumerate(whole.covers, 1))
    searches = _searches(source, whole)
    return ReportModel(
        kind="whole",
        name=whole.program,
        source=whole.source,
        place=str(source.root),
        program=program,
        candidates=with_adjacent_files(source.root, covers, TritonRequest(program, whole.identity.target, _LINES)),
        parts=parts,
        search=_search(whole, searches),
        searches=searches,
        floor=least_work(program, None, whole.identity),
        unfused=(whole.unfused_kernels, whole.unfused_us),
        faults=tuple(source.faults),
    )


def _searches(source: EvidenceReader, whole: WholeRecord) -> tuple[PartSearch, ...]:
    """Return the searches of parts that the manifest of the whole program lists, sorted by name."""
    operators = {part.run: part.operators for cover in reversed(whole.covers) for part in cover.parts}
    best = whole.covers[0].parts if whole.covers else ()
    used = {part.run: number for number, part in enumerate(best, 1) if part.candidate is not None}
    found: list[PartSearch] = []
    names = _summaries(whole)
    for name in names[:_SEARCHES]:
        run = name.removesuffix(f"/{SUMMARY_FILE}")
        with source.reading(name):
            below = source.below(run)
            record = decode(below.data(RUN_FILE), RunRecord, RUN_FILE)
            summary = open_sealed(below.data(SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
            search = read_search(below, record, summary, read_units(below, record))
            source.faults += below.faults
            found.append(
                PartSearch(
                    run, operators.get(run, ()), used.get(run, 0), summary.units_done, summary.units,
                    len(summary.candidates), search,
                )
            )  # fmt: skip
    if len(names) > _SEARCHES:
        source.fault(WHOLE_FILE, f"only {_SEARCHES} of {len(names)} searches of parts are shown")
    return tuple(found)


def _summaries(whole: WholeRecord) -> list[str]:
    """Return the paths of the summaries of all searches; the manifest lists covers as well."""
    return sorted(name for name in whole.manifest if name.endswith(f"/{SUMMARY_FILE}"))


def _search(whole: WholeRecord, searches: Sequence[PartSearch]) -> Search:
    """Return the sum of the counts of the searches of all parts."""
    who = whole.identity
    stats: Counter[str] = Counter()
    pruned: Counter[str] = Counter()
    levels: Counter[tuple[str, str]] = Counter()
    for one in searches:
        stats.update(dict(one.search.stats))
        pruned.update(dict(one.search.pruned))
        levels.update({(level, reason): count for level, reason, count in one.search.pruned_at})
    return Search(
        engine=who.engine,
        oracle=who.oracle,
        axioms=(*who.axioms, *(f"without {name}" for name in who.without_axioms)),
        space=whole.config or "chosen for each part",
        seed=who.seed,
        target=who.target,
        status=whole.status,
        wall_s=whole.wall_s,
        workers=0,
        recalled=False,
        audit=sum_audits(one.search.audit for one in searches),
        found=sum(one.search.found for one in searches),
        stats=tuple(sorted(stats.items())),
        pruned=tuple(sorted(pruned.items())),
        units=(),
        allowed=(("searches of parts", str(len(_summaries(whole)))),),
        pruned_at=tuple((*one, levels[one]) for level in LEVELS for one in sorted(levels) if one[0] == level),
    )


def _cover(source: EvidenceReader, rank: int, cover: CoverRecord) -> ReportedCandidate:
    below = EvidenceReader(source.root, source.name)
    graph = below.graph(WHOLE_FILE, cover.graph)
    if graph is not None and not below.same_digest(WHOLE_FILE, graph, cover.graph_digest):
        graph = None
    replaced = sum(part.candidate is not None for part in cover.parts)
    one = ReportedCandidate(
        rank=rank,
        digest=cover.graph_digest,
        directory=cover_name(rank, cover.graph_digest),
        verdict="equivalent",
        basis=Basis.FAILS if below.faults else Basis.RECORDED,
        graph=graph,
        kernels=cover.kernels,
        estimated_us=cover.estimated_us,
        conditions=cover.conditions,
        added=cover.added,
        remarks=(
            f"put together from {len(cover.parts)} parts: proved candidates take the place of {replaced}, "
            "the operators of the others stay; it is equivalent because its parts are (its logs: covers)",
        ),
        faults=tuple(below.faults),
    )
    return with_kernels(source, one)[0]


def _part(source: EvidenceReader, one: PartRecord) -> ReportedPart:
    report, program = None, None
    if one.candidate is not None:
        with source.reading(one.run):
            report, program = _candidate(source.below(one.run), one)
    return ReportedPart(
        one.operators, one.run, one.candidate or "", one.kernels, one.estimated_us, one.unfused_us, report, program
    )


def _candidate(run: EvidenceReader, one: PartRecord) -> tuple[ReportedCandidate | None, KernelGraph | None]:
    record = decode(run.data(RUN_FILE), RunRecord, RUN_FILE)
    summary = open_sealed(run.data(SUMMARY_FILE), SummaryRecord, SUMMARY_FILE)
    program = run.graph(RUN_FILE, record.program)
    for about in summary.candidates:
        if about.digest == one.candidate:
            found = read_candidate(run.below(about.directory), program, about, ReadOptions())
            return with_decisions([found], read_units(run, record))[0], program
    raise FormatError(f"expected candidate {one.candidate} in its search, got none")
