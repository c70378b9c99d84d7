"""Record of a finished search: what was tried, pruned and dropped, and how far the best can be from the lower bound."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from mirage_formal.codegen.lower_bound import lower_bounds
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import (
    EXHAUSTED_FILE,
    BoundRecord,
    ExhaustedRecord,
    RunRecord,
    SummaryRecord,
    decode,
    read_file,
)
from mirage_formal.search.known_incompleteness import LEFT_OUT


def exhausted_record(run: RunRecord, summary: SummaryRecord, program: KernelGraph, target: Target) -> ExhaustedRecord:
    """Return the record exhausted.json of a run.

    Args:
        run: What was asked for.
        summary: What was found.
        program: The program.
        target: The target that candidates are ranked for.
    """
    bounds = lower_bounds(program, target)
    bound = min((one.us for one in bounds), default=None)
    best = min((item.estimated_us for item in summary.candidates), default=None)
    return ExhaustedRecord(
        key=run.key,
        space=run.config,
        target=msgspec.Raw(msgspec.json.encode(target)),
        left_out=LEFT_OUT.get(run.identity.engine, ("not stated by this engine",)),
        tried=summary.stats,
        pruned=summary.pruned,
        dropped=_dropped(run, summary),
        bounds=tuple(
            BoundRecord(kernels=one.kernels, us=one.us, launch_us=one.launch_us, body_us=one.body_us) for one in bounds
        ),
        bound_us=bound,
        best_us=best,
        gap=None if bound is None or best is None else (best - bound) / best,
    )


def read_exhausted(directory: Path) -> ExhaustedRecord | None:
    """Return the record of a run's directory; None if an earlier version wrote the run.

    Raises:
        FormatError: The file is no such record.
    """
    path = directory / EXHAUSTED_FILE
    return decode(read_file(path), ExhaustedRecord, str(path)) if path.is_file() else None


def describe_gap(record: ExhaustedRecord) -> str:
    """Return the lower bound, and how far the best is from it, as one line of text."""
    if record.bound_us is None:
        return "lower bound: the program needs no kernel"
    text = f"lower bound of every graph for the program: est. us {record.bound_us:.1f}"
    return text if record.gap is None else f"{text}; at most {record.gap:.0%} of the best's can be saved (gap)"


def _dropped(run: RunRecord, summary: SummaryRecord) -> dict[str, int]:
    """Return what was neither searched nor pruned, or found and is not reported, by reason."""
    rejected = Counter(f"candidates rejected: {one.kind}" for one in summary.rejected)
    counts = {
        "units given up": summary.units_failed,
        "units not searched": summary.units - summary.units_done - summary.units_failed,
        "units cut at max_states": summary.stats.get("cut", 0),
        "candidates behind the reported ones": summary.found - len(summary.candidates) - len(summary.rejected),
        **dict(sorted(rejected.items())),
    }
    return {name: count for name, count in counts.items() if count}


__all__ = ["describe_gap", "exhausted_record", "read_exhausted"]
