"""Measured order of a search's candidates whose tuned kernels are within tolerance on this GPU, fastest first."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mirage_formal.autotune.kernel_preparation import PRELOAD
from mirage_formal.autotune.plans import TuningDirectory
from mirage_formal.autotune.timing import Device
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.autotune.tune import NoTimesError, tune_run
from mirage_formal.autotune.tuning_result import FINALISTS, TuningLimits, TuningResources
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.kernel_build.build import KernelWarning
from mirage_formal.kernel_build.built_kernels import Acceptance
from mirage_formal.run.results.result import Result
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.resources import processor_count
from mirage_formal.workers.pool import Pool

#: Kernels that are timed for each requested candidate and each kernel of the first candidate.
_KERNELS: Final = 4
#: Most timed kernels, unless the requested candidates need more at one kernel each.
_MOST: Final = 512


@dataclass(frozen=True, slots=True)
class MeasurementLimits:
    """Limits and back end of measurements on the GPU.

    Attributes:
        count: Most candidates that are measured; four times as many kernels are timed for each kernel of the first one.
        seconds: Seconds for all measurements. If no candidate was measured by then, all are returned in their order,
            with a warning.
        backend: "cuda"; "auto", with which the first result runs its Triton file if that is faster than all CUDA
            kernels; or "triton", with which all results run Triton files. A warning gives the outcome.
        accept: Whether measured candidates may have kernels that are not proved to realize their operators.
    """

    count: int
    seconds: float | None = None
    backend: str = "cuda"
    accept: Acceptance = Acceptance.PROVED


def order_by_measurement(
    results: Sequence[Result],
    root: Path,
    wanted: MeasurementLimits,
    device: Device,
    place: TuningDirectory | None = None,
) -> list[Result]:
    """Return the candidates whose kernels are within tolerance on this GPU, fastest first.

    Kernels, numerics and times are written to ``kernels`` in the run's directory. A candidate that is refused, fails or
    is outside its tolerance is left out, with a warning. Calls of the results run the measured kernels and no others.

    Args:
        results: Best first by the cost model.
        root: The run's directory.
        wanted: Limits and back end.
        device: The GPU.
        place: Directory of kernels and times; the user's cache, if left out.

    Raises:
        UnsupportedError: None of them runs within tolerance.
    """
    count, seconds, backend = wanted.count, wanted.seconds, wanted.backend
    kernels = _KERNELS * count * max(1, kernel_count(results[0].graph) if results else 1)
    kernels = max(min(kernels, _MOST), _KERNELS * count)
    limits = TuningLimits(kernels, min(count, FINALISTS), seconds)
    with Pool(processor_count(), PRELOAD) as executor:
        bench = TuningResources(
            TuningDirectory() if place is None else place,
            device,
            executor,
            _ignore_progress,
            device.machine.arch,
            limits,
            backend,
            wanted.accept,
        )
        try:
            tuned = tune_run(root, bench)
        except NoTimesError as error:
            if seconds is None:
                raise
            return _unmeasured_results(results, error.what, seconds)
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
            for note in row.tested:
                warnings.warn(f"candidate {row.name}: {note}", KernelWarning, stacklevel=3)
            found.append(replace(result, alternatives=result.alternatives.holding(built, (device.machine.arch,))))
    if not found and seconds is not None and all(row.us is None and not row.said for row in tuned.rows):
        return _unmeasured_results(results, "no candidate was measured", seconds)
    if not found:
        what = f"expected a candidate within tolerance on this GPU, got none: {'; '.join(reasons) or 'none was timed'}"
        raise UnsupportedError(what, where="measure", hint="search again with another space, or measure=0 for no check")
    return found if tuned.triton is None else _results_in_triton(found, tuned.triton, asked=backend == "triton")


def _results_in_triton(results: Sequence[Result], beside: BackendComparison, *, asked: bool) -> list[Result]:
    """Return the results with their Triton files, fastest first.

    If Triton was asked for, only results with a measured file are returned; otherwise at most the fastest one gets its
    file.

    Raises:
        UnsupportedError: Triton files were asked for, and none was measured within tolerance.
    """
    if asked and beside.backend != "triton":
        raise UnsupportedError(f"expected a Triton file within tolerance, got none: {beside.said}", where="measure")
    warnings.warn(beside.said, KernelWarning, stacklevel=4)
    if beside.backend != "triton":
        return list(results)
    texts = beside.texts if asked else dict(list(beside.texts.items())[:1])
    named = {one.digest[:12]: one for one in results}
    found = []
    for name, text in texts.items():
        one = named.pop(name.split("-")[-1], None)
        if one is not None and one.alternatives is not None:
            found.append(replace(one, backend="triton", alternatives=one.alternatives.in_file(text)))
    return found if asked else [*found, *(one for one in results if one.digest[:12] in named)]


def _unmeasured_results(results: Sequence[Result], why: str, seconds: float) -> list[Result]:
    """Return the results unmeasured, with a warning that there was not enough time."""
    text = f"in the order of estimates: nothing was measured within {seconds:.0f} s: {why}; give time_limit more"
    warnings.warn(text, KernelWarning, stacklevel=4)
    return list(results)


def _ignore_progress(what: str, done: int, count: int) -> None:
    """Ignore a progress event."""


__all__ = ["MeasurementLimits", "order_by_measurement"]
