"""Element types, tensor types and the launch geometry of a block graph.

Vocabulary: a DTensor lives in device memory, an STensor in the shared memory of one thread block, an RTensor in
registers (paper, section 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shape = tuple[int, ...]
Dim3 = tuple[int, int, int]
#: For each grid axis x, y, z: the data dimension it splits, or None where the tensor is replicated.
DimMap = tuple[int | None, int | None, int | None]

MAX_RANK: Final = 8
MAX_EXTENT: Final = 1 << 31
MAX_ELEMENTS: Final = 1 << 40


class DType(StrEnum):
    """Element types; stored as strings so that files never depend on enum numbers."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    BOOL = "bool"

    @property
    def bytes(self) -> int:
        """Return the size of one element in bytes."""
        return {DType.FLOAT32: 4, DType.BOOL: 1}.get(self, 2)

    @property
    def floating(self) -> bool:
        """Return whether elements are floating-point numbers; those of a mask are 0 and 1."""
        return self is not DType.BOOL


@dataclass(frozen=True, slots=True)
class DTensor:
    """A tensor in device memory: its shape and element type."""

    shape: Shape
    dtype: DType

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the size in bytes."""
        return self.elements * self.dtype.bytes

    @property
    def signature(self) -> str:
        """Return its shape as text, and whether it is a mask: all properties that matter over the reals."""
        return f"{'' if self.dtype.floating else 'mask '}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class STensor:
    """A tensor in the shared memory of one block; ``after_loop`` is true behind an accumulator."""

    shape: Shape
    dtype: DType
    after_loop: bool

    @property
    def elements(self) -> int:
        """Return the number of elements of one block's copy."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the size in bytes of one block's copy."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class RTensor:
    """A tensor whose elements live in the registers of the threads of one block."""

    shape: Shape
    dtype: DType


def row_major(shape: Shape) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous tensor of this shape."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """Return the shape of an elementwise operator on equal ranks, where each dim is equal or 1.

    None if they do not match.
    """
    if len(a) != len(b):
        return None
    out: list[int] = []
    for x, y in zip(a, b, strict=True):
        if x != y and x != 1 and y != 1:
            return None
        out.append(max(x, y))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Band:
    """Band mask whose element (..., i, j) is 1 where lower <= j - i <= upper; None is no bound.

    The causal mask is ``Band(None, 0)``: query i sees the keys j up to i.
    """

    lower: int | None
    upper: int | None

    def mask(self, shape: Shape) -> NDArray[Any]:
        """Return the mask as an array of booleans, without its leading dims repeated in memory."""
        import numpy as np

        distance = np.arange(shape[-1])[None, :] - np.arange(shape[-2])[:, None]
        found = np.ones(distance.shape, bool)
        if self.lower is not None:
            found &= distance >= self.lower
        if self.upper is not None:
            found &= distance <= self.upper
        return np.broadcast_to(found, shape)

    def fault(self, shape: Shape, dtype: DType) -> str | None:
        """Return the fault of a band of a tensor; None if it has none."""
        if dtype is not DType.BOOL or len(shape) < 2:
            return f"expected a band of a mask of booleans with two dims or more, got {dtype.value}{list(shape)}"
        return "expected a lower or an upper bound, got none" if self.lower is None and self.upper is None else None
