"""Band masks: inputs that are a function of the index, such as the causal mask, so that no caller gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirage_formal.graph.types import DType, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Band:
    """The mask whose element (..., i, j) is 1 where lower <= j - i <= upper; None is no bound.

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
        """Return what is wrong with a band of a tensor; None if nothing is."""
        if dtype is not DType.BOOL or len(shape) < 2:
            return f"expected a band of a mask of booleans with two dims or more, got {dtype.value}{list(shape)}"
        return "expected a lower or an upper bound, got none" if self.lower is None and self.upper is None else None
