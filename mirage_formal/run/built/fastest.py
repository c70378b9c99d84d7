"""Measured order: of the cost model's best candidates, those within tolerance on this GPU, fastest first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirage_formal.device.runtime import arch_of, current_device, device_name
from mirage_formal.device.sealed import write_measurement, write_numerics
from mirage_formal.errors import MirageError, UnsupportedError
from mirage_formal.kernels.executable import moved_bytes
from mirage_formal.records import KERNELS
from mirage_formal.run.built.build import KernelWarning
from mirage_formal.run.built.save import save_built
from mirage_formal.run.driver import Result


def fastest(results: Sequence[Result], root: Path, count: int) -> list[Result]:
    """The candidates whose kernels ran within tolerance on this GPU, fastest first.

    Kernels, numerics and times are written to ``kernels`` in the run's directory. A candidate that is refused, fails or
    is outside of its tolerance is left out, with a warning; while all are, further ones are tried. Their calls run
    these kernels and no other's.

    Args:
        results: Best first by the cost model.
        root: The run's directory.
        count: How many are built, compared and timed on CuPy's current device.

    Raises:
        UnsupportedError: None of them runs within tolerance.
    """
    timed: list[tuple[float, int]] = []
    reasons: list[str] = []
    for position, result in enumerate(results):
        if position >= count and timed:
            break
        try:
            timed.append((_microseconds(result, root), position))
        except Exception as error:  # whatever fails on the device is this candidate's failure
            first = (str(error).strip().splitlines() or [""])[0]
            reasons.append(f"candidate {result.digest[:12]}: {type(error).__name__}: {first[:300]}")
            warnings.warn(f"left out: {reasons[-1]}", KernelWarning, stacklevel=4)
    if not timed:
        what = f"expected a candidate within tolerance on this GPU, got none: {'; '.join(reasons)}"
        raise UnsupportedError(what, where="measure", hint="search again with another space, or measure=0 for no check")
    return [_checked(results[position]) for _, position in sorted(timed)]


def _checked(result: Result) -> Result:
    """The result, whose calls don't fall back on others."""
    assert result.alternatives is not None
    return replace(result, alternatives=result.alternatives.first())


def _microseconds(result: Result, root: Path) -> float:
    """Builds a candidate, compares it with float64 and times it.

    Raises:
        MirageError: It has no kernels that may run, or its results are outside of their tolerance.
    """
    assert result.alternatives is not None
    # CuPy and NumPy are needed by those who have a GPU only.
    from mirage_formal.claims.numerics.numerics import Inputs, check
    from mirage_formal.device.runs import DeviceRuns

    built = result.alternatives.own((arch_of(current_device()),))
    directory = root / KERNELS / f"{result.rank:03}-{result.digest[:12]}"
    save_built(built, directory)
    executable = built.executable
    runs = DeviceRuns(executable)
    inputs = Inputs(xp=runs.cupy)
    record = check(
        executable.program, executable.graph, executable.digest, runs.run, device=device_name(), inputs=inputs
    )
    write_numerics(directory, record)
    if record.answer != "within":
        reasons = [o.reason for scale in record.scales for o in scale.outputs if o.reason]
        raise MirageError(f"expected results within tolerance, got: {'; '.join(reasons)}", where="numerics")
    return write_measurement(directory, runs.measure(), device_name(), moved_bytes(executable.program)).us
