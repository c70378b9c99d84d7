"""Measured order: the candidates of a search whose kernels, tuned, ran within tolerance on this GPU, fastest first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirage_formal.errors import UnsupportedError
from mirage_formal.run.built.build import KernelWarning
from mirage_formal.run.results.result import Result
from mirage_formal.run.tuned.plans import Place
from mirage_formal.run.tuned.prepare import PRELOAD
from mirage_formal.run.tuned.timing import Device
from mirage_formal.run.tuned.tune import FINALISTS, Bench, Limits, NoTimes, tune
from mirage_formal.workers.pool import Pool, default_workers

#: Kernels that are timed for each candidate that is asked for.
_KERNELS: Final = 4


def fastest(
    results: Sequence[Result],
    root: Path,
    count: int,
    device: Device,
    place: Place | None = None,
    seconds: float | None = None,
) -> list[Result]:
    """The candidates whose kernels ran within tolerance on this GPU, fastest first.

    Kernels, numerics and times are written to ``kernels`` in the run's directory. A candidate that is refused, fails or
    is outside of its tolerance is left out, with a warning. Their calls run the kernels that were measured, and no
    others.

    Args:
        results: Best first by the cost model.
        root: The run's directory.
        count: How many candidates are measured at most; four times as many kernels are timed.
        device: The GPU.
        place: Where kernels and times are kept; the user's cache, if left out.
        seconds: For all of it. If no candidate was measured by then, all are returned as they are, with a warning.

    Raises:
        UnsupportedError: None of them runs within tolerance.
    """
    limits = Limits(_KERNELS * count, min(count, FINALISTS), seconds)
    with Pool(default_workers(), PRELOAD) as executor:
        bench = Bench(Place() if place is None else place, device, executor, _silent, device.machine.arch, limits)
        try:
            tuned = tune(root, bench)
        except NoTimes as error:
            if seconds is None:
                raise
            return _estimated(results, error.what, seconds)
    named = {result.digest[:12]: result for result in results}
    found: list[Result] = []
    reasons: list[str] = []
    for row in tuned.rows:
        result = named.get(row.name.split("-")[-1])
        if row.said or row.us is None:
            reasons.append(f"candidate {row.name}: {row.said or 'not measured'}")
            warnings.warn(f"left out: {reasons[-1]}", KernelWarning, stacklevel=3)
        elif result is not None and result.alternatives is not None:
            built = tuned.built[row.name]
            found.append(replace(result, alternatives=result.alternatives.holding(built, (device.machine.arch,))))
    if not found and seconds is not None and all(row.us is None and not row.said for row in tuned.rows):
        return _estimated(results, "no candidate was measured", seconds)
    if not found:
        what = f"expected a candidate within tolerance on this GPU, got none: {'; '.join(reasons) or 'none was timed'}"
        raise UnsupportedError(what, where="measure", hint="search again with another space, or measure=0 for no check")
    return found


def _estimated(results: Sequence[Result], why: str, seconds: float) -> list[Result]:
    """The results as they are, with a warning: there was not enough time."""
    text = f"in the order of estimates: nothing was measured within {seconds:.0f} s: {why}; give time_limit more"
    warnings.warn(text, KernelWarning, stacklevel=4)
    return list(results)


def _silent(what: str, done: int, count: int) -> None:
    """Nothing is shown."""


__all__ = ["fastest"]
