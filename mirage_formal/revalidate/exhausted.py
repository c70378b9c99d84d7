"""Record of a finished search: what was tried, pruned and dropped, and how far the best can be from the lower bound.

A check makes the record again, from the program, the figures of the target and the summary, and compares.
"""

from __future__ import annotations

from collections import Counter
from math import isclose
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.check.run_check import Run
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
    sha256,
)
from mirage_formal.search.known_incompleteness import LEFT_OUT
from mirage_formal.support.errors import FormatError

#: Relative difference of two estimates that are equal but for rounding.
_ROUNDING: Final = 1e-9


def exhausted_record(run: RunRecord, summary: SummaryRecord, program: KernelGraph, target: Target) -> ExhaustedRecord:
    """Return the record exhausted.json of a run.

    Args:
        run: The request.
        summary: The findings.
        program: The program.
        target: The target that candidates are ranked for.
    """
    bounds = lower_bounds(program, target)
    bound = min((one.us for one in bounds), default=None)
    best = min((item.estimated_us for item in summary.candidates), default=None)
    rejected = Counter(f"candidates rejected: {one.kind}" for one in summary.rejected)
    dropped = {
        "units given up": summary.units_failed,
        "units not searched": summary.units - summary.units_done - summary.units_failed,
        "units cut at max_states": summary.stats.get("cut", 0),
        "candidates behind the reported ones": summary.found - len(summary.candidates) - len(summary.rejected),
        **dict(sorted(rejected.items())),
    }
    return ExhaustedRecord(
        key=run.key,
        space=run.config,
        target=msgspec.Raw(msgspec.json.encode(target)),
        left_out=LEFT_OUT.get(run.identity.engine, ("not stated by this engine",)),
        tried=summary.stats,
        pruned=summary.pruned,
        dropped={name: count for name, count in dropped.items() if count},
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
    """Return the lower bound, and the gap of the best to it, as one line of text."""
    if record.bound_us is None:
        return "lower bound: the program needs no kernel"
    text = f"no graph for the program is estimated below {record.bound_us:.2f} us"
    return text if record.gap is None else f"{text}; at most {record.gap:.1%} of the best's estimate can be saved"


def check_exhausted(run: Run) -> ExhaustedRecord | None:
    """Make the record of a run again; return it, or None if an earlier version wrote the run.

    No verdict depends on it: the bound is about the cost model, whose figures the run's identity names.

    Raises:
        CheckFailed: The record is another one, or a candidate is estimated below the bound.
    """
    path = run.root / EXHAUSTED_FILE
    if EXHAUSTED_FILE not in run.summary.manifest:
        return None
    with step(path, "read the bound", corrupt=True):
        record = decode(read_file(path), ExhaustedRecord, EXHAUSTED_FILE)
        target = msgspec.json.decode(record.target, type=Target)
    with step(path, "lower bound"):
        expect_equal("figures of the target", run.record.identity.target_digest, sha256(msgspec.json.encode(target)))
        ours = exhausted_record(run.record, run.summary, run.program, target)
        for name in (name for name in ExhaustedRecord.__struct_fields__ if name != "target"):
            _expect_close(name, msgspec.to_builtins(getattr(ours, name)), msgspec.to_builtins(getattr(record, name)))
        for found in (one for unit in run.units for one in unit.candidates):
            least = min((one.us for one in ours.bounds if one.kernels >= found.kernels), default=0.0)
            if found.estimated_us < least * (1 - _ROUNDING):
                what = f"estimate of {found.digest[:12]}: expected at least the bound {least:.6g}"
                raise FormatError(f"{what}, got {found.estimated_us:.6g}")
    return record


def _expect_close(name: str, ours: object, theirs: object) -> None:
    """Check that two values are equal, their numbers but for rounding."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            _expect_close(name, one, other)
    elif isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key, value in ours.items():
            _expect_close(f"{name}: {key}", value, theirs[key])
    elif not (isinstance(ours, float) and isinstance(theirs, float) and isclose(ours, theirs, rel_tol=_ROUNDING)):
        expect_equal(name, ours, theirs)


__all__ = ["check_exhausted", "describe_gap", "exhausted_record", "read_exhausted"]
