"""Check of exhausted.json: the lower bound is derived again, without the search, and compared with what was found."""

from __future__ import annotations

from math import isclose

import msgspec

from mirage_formal.check.report import expect_equal, step
from mirage_formal.check.run import Run
from mirage_formal.codegen.lower_bound import lower_bounds
from mirage_formal.codegen.target import Target
from mirage_formal.records import EXHAUSTED_FILE, ExhaustedRecord, decode, read_file, sha256
from mirage_formal.support.errors import FormatError

#: Relative difference of two estimates that are equal but for rounding.
_ROUNDING = 1e-9


def check_lower_bound(run: Run) -> ExhaustedRecord | None:
    """Derive the lower bound of a run again; return the record, or None if an earlier version wrote the run.

    The bound is about the cost model, whose figures the run's identity names; no verdict depends on it. The counts are
    those of the summary.

    Raises:
        CheckFailed: The record is not that of the run, the bound is another one, or a candidate is estimated below it.
    """
    path = run.root / EXHAUSTED_FILE
    if EXHAUSTED_FILE not in run.summary.manifest:
        return None
    with step(path, "read the bound", corrupt=True):
        record = decode(read_file(path), ExhaustedRecord, EXHAUSTED_FILE)
        target = msgspec.json.decode(record.target, type=Target)
    with step(path, "lower bound"):
        expect_equal("key", run.record.key, record.key)
        expect_equal("figures of the target", run.record.identity.target_digest, sha256(msgspec.json.encode(target)))
        expect_equal("counters", (run.summary.stats, run.summary.pruned), (record.tried, record.pruned))
        again = lower_bounds(run.program, target)
        expect_equal("numbers of kernels", [one.kernels for one in again], [one.kernels for one in record.bounds])
        for ours, theirs in zip(again, record.bounds, strict=True):
            _expect_close(f"bound of {ours.kernels} kernels", ours.us, theirs.us)
        bound = min((one.us for one in again), default=None)
        best = min((item.estimated_us for item in run.summary.candidates), default=None)
        _expect_close("bound", bound, record.bound_us)
        _expect_close("best estimate", best, record.best_us)
        _expect_close("gap", None if bound is None or best is None else (best - bound) / best, record.gap)
        for found in (one for unit in run.units for one in unit.candidates):
            least = min((one.us for one in again if one.kernels >= found.kernels), default=0.0)
            if found.estimated_us < least * (1 - _ROUNDING):
                what = f"estimate of {found.digest[:12]}: expected at least the bound {least:.6g}"
                raise FormatError(f"{what}, got {found.estimated_us:.6g}")
    return record


def _expect_close(what: str, ours: float | None, theirs: float | None) -> None:
    """Check that two numbers are equal but for rounding, or both missing."""
    if ours is None or theirs is None or not isclose(ours, theirs, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
        expect_equal(what, ours, theirs)


__all__ = ["check_lower_bound"]
