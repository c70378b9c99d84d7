"""Inputs and outputs of autotuning: bench, limits, finalists and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.autotune.plans import TuningDirectory, Watch
from mirage_formal.autotune.timing import Device
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.kernel_build.built_kernels import Acceptance
from mirage_formal.workers.dispatch import Executor

if TYPE_CHECKING:
    from mirage_formal.kernel_build.built_kernels import BuiltKernels

#: Default numbers of kernels that are built and timed, and of candidates that are built and compared.
MOST_KERNELS: Final = 128
FINALISTS: Final = 8


@dataclass(frozen=True, slots=True)
class FinalistRow:
    """Result of one autotuning finalist: measured and estimated microseconds, model rank, error message.

    Attributes:
        name: Directory of the candidate.
        form: Name of the candidate's form.
        us: Measured microseconds; None if it was not measured, or failed.
        composed_us: Sum of the separately measured times of its kernels.
        estimated_us: Estimate of the cost model.
        model_rank: Rank by this estimate.
        said: Error message, or empty.
        tested: A remark on each of its kernels that is not proved to realize its operator; empty if all are.
    """

    name: str
    form: str
    us: float | None
    composed_us: float
    estimated_us: float
    model_rank: int
    said: str = ""
    tested: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Result of autotuning one run.

    Attributes:
        kernels: Number of distinct kernels that were considered.
        ready: Number of these that may run.
        timed: Number of these that have a time.
        rows: The finalists, fastest first; empty before kernels were timed.
        added: Number of kernels considered beyond the limit, so that whole candidates can be composed.
        left: Work that is left for another machine, or empty.
        built: The finalists' kernels by name.
    """

    kernels: int
    ready: int
    timed: int
    rows: tuple[FinalistRow, ...]
    left: str = ""
    built: Mapping[str, BuiltKernels] = field(default_factory=dict)
    added: int = 0
    triton: BackendComparison | None = None


@dataclass(frozen=True, slots=True)
class TuningLimits:
    """Limits of autotuning.

    Attributes:
        kernels: Number of kernels that are built and timed.
        finalists: Number of candidates that are built and compared.
        seconds: Seconds for the whole of autotuning; None is no limit.
    """

    kernels: int = MOST_KERNELS
    finalists: int = FINALISTS
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TuningResources:
    """Resources for autotuning a run: directory, GPU, workers and limits.

    Attributes:
        place: The tuning directory.
        device: The GPU; or the name of a file of times in ``place``; None if there is neither.
        executor: Workers that build kernels.
        watch: Callback for progress.
        arch: Architecture that kernels are compiled for.
        limits: Limits of autotuning.
        backend: "cuda"; or "auto" or "triton", with which Triton files of the fastest candidates are timed as well.
        accept: Whether finalists may have kernels that are not proved to realize their operators.
    """

    place: TuningDirectory
    device: Device | str | None
    executor: Executor[Any]
    watch: Watch
    arch: str
    limits: TuningLimits = TuningLimits()
    backend: str = "cuda"
    accept: Acceptance = Acceptance.PROVED


__all__ = ["FINALISTS", "MOST_KERNELS", "FinalistRow", "TuningLimits", "TuningResources", "TuningResult"]
