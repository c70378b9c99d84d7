"""Results of timing the Triton files of a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirage_formal.records import TritonLogRecord


@dataclass(frozen=True, slots=True)
class TritonRow:
    """Result of one Triton file.

    Attributes:
        name: Directory of the candidate.
        options: Launch options of its functions.
        us: Microseconds of a call: interleaved with CUDA kernels for a chosen file, else of a short run; None if it has
            none.
        said: Error message, or empty.
        chosen: Whether it is within tolerance, and the fastest of its candidate.
    """

    name: str
    options: str
    us: float | None
    said: str = ""
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class BackendComparison:
    """Result of comparing the Triton files of a run with its CUDA kernels.

    Attributes:
        backend: Chosen back end: "cuda" or "triton".
        said: Reason for the choice, in one line.
        rows: Files that were tried, those of the fastest candidate first.
        cuda_us: Time of the fastest CUDA kernels, interleaved with the fastest file; None if not measured.
        texts: Text of the chosen file of each candidate, by the candidate's name, the fastest first.
        logs: What is established about each of these files.
    """

    backend: str
    said: str
    rows: tuple[TritonRow, ...] = ()
    cuda_us: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, TritonLogRecord] = field(default_factory=dict)


__all__ = ["BackendComparison", "TritonRow"]
