"""Results and reports of earlier runs, made from directories whose evidence was replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.formats.json import encode
from mirage_formal.records import SummaryRecord
from mirage_formal.records.partition import WholeRecord
from mirage_formal.run.results.result import Result
from mirage_formal.run.results.run_report import RunReport

if TYPE_CHECKING:
    from mirage_formal.revalidate.evidence_replay import ReplayedCandidate, ReplayResult


def results_of(found: ReplayResult, target: Target) -> tuple[Result, ...]:
    """Return the candidates of a replayed directory as results; their kernels are generated from the µGraphs here.

    Args:
        found: The replayed evidence.
        target: Target that kernels are planned for.
    """
    from mirage_formal.kernel_build.built_kernels import COUNT
    from mirage_formal.kernel_build.candidate_preference import Alternatives

    encoded = [(one.digest[:12], encode(one.graph)) for one in found.shown]
    most = len(encoded) if isinstance(found.record, WholeRecord) else COUNT
    return tuple(
        Result(
            one.graph,
            one.digest,
            number + 1,
            one.verdict,
            estimate(one.graph, target).us if one.us is None else one.us,
            one.directory,
            Alternatives(encoded[number : number + most], found.program, target),
        )
        for number, one in enumerate(found.shown)
    )


def move_replay(found: ReplayResult, old: Path, new: Path) -> ReplayResult:
    """Return a replay for a copy of its directory: every path below ``old`` is then below ``new``."""
    parts = {name: _move_candidate(one, old, new) for name, one in found.parts.items()}
    return dataclasses.replace(found, shown=tuple(_move_candidate(one, old, new) for one in found.shown), parts=parts)


def _move_candidate(one: ReplayedCandidate, old: Path, new: Path) -> ReplayedCandidate:
    return dataclasses.replace(one, directory=new / one.directory.relative_to(old))


def report_of(
    found: ReplayResult, summary: SummaryRecord, root: Path, target: Target, remarks: Sequence[str] = ()
) -> RunReport:
    """Return the report of a run that was read from the store.

    Args:
        found: Replayed evidence of ``root``.
        summary: The summary there.
        root: The run's directory.
        target: The target.
        remarks: Remarks for the user.
    """
    unfused = estimate(found.program, target).us
    return RunReport(summary, results_of(found, target), root, (), unfused, tuple(remarks))


__all__ = ["move_replay", "report_of", "results_of"]
