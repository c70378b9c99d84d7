"""Stored results of whole programs: written to a directory, and returned as the reports of a search."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import msgspec

from mirage_formal.cache.search_store import evidence_of
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import is_view
from mirage_formal.partition.covers import Cover, WholePart
from mirage_formal.partition.partition import Subgraph
from mirage_formal.partition.search_directory import open_cover_directory
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records import seal_record, write_atomic, write_files
from mirage_formal.records.partition import WHOLE_FILE, CoverRecord, WholeRecord
from mirage_formal.records.store_entry import EVIDENCE
from mirage_formal.run.driver import RunArguments, write_stored_run
from mirage_formal.run.result_cache.cache_lookup import EntryClaim, RecalledEntry
from mirage_formal.run.result_cache.stored_reports import move_replay, results_of
from mirage_formal.run.results.result import Result
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Job, Settings, escape_undecodable

if TYPE_CHECKING:
    from mirage_formal.revalidate.evidence_replay import ReplayedCandidate, ReplayResult


def write_stored_answer(
    found: RecalledEntry, job: Job, settings: Settings, out: Path, **about: Unpack[RunArguments]
) -> RunReport | WholeReport:
    """Write a stored result to the directory ``out``, under the program name that the caller asks for.

    Raises:
        RunError: The directory may not be used.
    """
    if not isinstance(found.replayed.record, WholeRecord):
        return write_stored_run(found, job, settings, out, **about)
    begin, earlier = time.monotonic(), found.replayed.record
    open_cover_directory(out, earlier.config, earlier.identity, resume=False, force=settings.force)
    write_files(out, evidence_of(found.entry))
    named = {"program": about.get("name", "program"), "source": escape_undecodable(about.get("source", ""))}
    record = msgspec.structs.replace(earlier, **named, wall_s=round(time.monotonic() - begin, 3))
    write_atomic(out / WHOLE_FILE, seal_record(record))
    return whole_report(move_replay(found.replayed, found.entry.path / EVIDENCE, out), record, out, job.target)


def whole_report(found: ReplayResult, record: WholeRecord, root: Path, target: Target) -> WholeReport:
    """Return the report of a whole program that was read from the store.

    Args:
        found: Replayed evidence of ``root``.
        record: Record of whole.json there.
        root: Its directory.
        target: The target.
    """
    from mirage_formal.check.partitioning.subgraphs import partition

    candidates: dict[str, Result] = {}
    searches: dict[str, RunReport] = {}
    for name, summary in found.runs.items():
        used = [(item, found.parts.get(f"{name}/{item.directory}")) for item in summary.candidates]
        results = tuple(_result(one, item.rank) for item, one in used if one is not None)
        candidates |= {f"{name}/candidates/{result.directory.name}": result for result in results}
        searches[name] = RunReport(summary, results, root / name, (), 0.0)
    covers = []
    for one, shown in zip(record.covers, found.shown, strict=True):
        pieces = partition(found.program, [part.operators for part in one.parts])
        parts = [
            Subgraph(p.operators, x.program, x.reads, x.results, True) for p, x in zip(one.parts, pieces, strict=True)
        ]
        covers.append(_cover(found.program, one, shown, parts, (searches, candidates)))
    results = results_of(found, target)
    return WholeReport(record, results, tuple(covers), covers[0].parts, root, tuple(searches.values()), 0)


def _result(one: ReplayedCandidate, rank: int) -> Result:
    return Result(one.graph, one.digest, rank, one.verdict, one.us or 0.0, one.directory)


def _cover(
    program: KernelGraph,
    record: CoverRecord,
    shown: ReplayedCandidate,
    parts: list[Subgraph],
    known: tuple[Mapping[str, RunReport], Mapping[str, Result]],
) -> Cover:
    searches, candidates = known
    chosen = []
    for own, part in zip(record.parts, parts, strict=True):
        taken = candidates[own.directory] if own.candidate else None
        view = taken is None and len(part.results) > 0 and is_view(program, part.results[0])
        graph = part.program if taken is None else taken.graph
        chosen.append(WholePart(part, graph, taken, searches.get(own.run), view))
    return Cover(tuple(chosen), shown.graph, record.estimated_us, record.kernels)


def store_answer(claim: EntryClaim, report: RunReport | WholeReport) -> None:
    """Write a result to the store, if the same call would return the same one.

    A result is not kept if it was interrupted, lost a worker or a task, or has no candidate.
    """
    status = report.summary.status
    if status == "interrupted" or report.failed or report.lost or not report.results:
        return
    if isinstance(report, WholeReport) and not any(part.candidate for part in report.record.best.parts):
        return  # a replay does not show if its searches found candidates
    claim.keep(report.directory, report.results, status)


__all__ = ["store_answer", "whole_report", "write_stored_answer"]
