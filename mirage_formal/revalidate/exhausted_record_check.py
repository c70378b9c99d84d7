"""Check of exhausted.json: the record is made again, from the program, the target and the summary, and compared."""

from __future__ import annotations

from math import isclose
from typing import Final

import msgspec

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.check.run_check import Run
from mirage_formal.codegen.lower_bound import lower_bounds
from mirage_formal.codegen.target import Target
from mirage_formal.records import EXHAUSTED_FILE, ExhaustedRecord, decode, exhausted_record, read_file, sha256
from mirage_formal.search.engine_interface import LEFT_OUT, NOT_STATED, list_incompleteness
from mirage_formal.support.errors import FormatError

#: Relative difference of two estimates that are equal but for rounding.
_ROUNDING: Final = 1e-9


def check_exhausted(run: Run) -> ExhaustedRecord | None:
    """Make exhausted.json of a run again, with its lower bounds, and compare; return it, or None if the run has none.

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
        figures = msgspec.json.encode(target)
        expect_equal("figures of the target", run.record.identity.target_digest, sha256(figures))
        bounds = lower_bounds(run.program, target)
        engine = run.record.identity.engine
        # Earlier versions stated nothing about graphs of a file.
        unstated = engine not in LEFT_OUT and record.left_out == NOT_STATED
        left_out = NOT_STATED if unstated else list_incompleteness(engine)
        ours = exhausted_record(run.record, run.summary, figures, left_out, bounds)
        for name in ExhaustedRecord.__struct_fields__:
            if name != "target":
                _expect_close(name, *(msgspec.to_builtins(getattr(one, name)) for one in (ours, record)))
        for found in (one for unit in run.units for one in unit.candidates):
            least = min((one.us for one in bounds if one.kernels >= found.kernels), default=0.0)
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


__all__ = ["check_exhausted"]
