"""Results of timing the Triton files of a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TritonRow:
    """A Triton file that was tried.

    Attributes:
        name: The candidate's directory.
        options: How its functions are launched.
        us: Microseconds of a call, measured in turns with CUDA kernels if it was chosen, else in short; None if it has
            none.
        said: What went wrong, or empty.
        chosen: Whether it is within tolerance, and the fastest of its candidate.
    """

    name: str
    options: str
    us: float | None
    said: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """Result of comparing the Triton files of a run with its CUDA kernels.

    Attributes:
        backend: What results run: "cuda" or "triton".
        said: Why, in one line.
        rows: The files that were tried, those of the fastest candidate first.
        cuda_us: What the fastest CUDA kernels took in turns with the fastest file; None if they were not.
        texts: Names of candidates to the texts of their chosen files, the fastest first.
    """

    backend: str
    said: str
    rows: tuple[TritonRow, ...] = ()
    cuda_us: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


__all__ = ["Beside", "TritonRow"]
