"""What the roundings of a µGraph do together at given inputs, computed and not estimated.

That errors of different roundings are independent fails where values are equal: they are all rounded in the same
direction, and the error of their sum grows with their number, not with its root. A row of log-softmax whose 156
elements are all about -5.05 is -5.0625 in bfloat16, every element of it, and the sum of their exponentials is off by as
much as each of them. So the µGraph is evaluated once more on what its own tensors hold: what is stored between kernels,
and the operands of 16-bit matrix products, rounded to their element types; all else, and what is beyond their range, as
in the exact evaluation. That is about the µGraph and the inputs alone; no kernel is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from mirage_formal.claims.numerics.rounding import LARGEST, Array, Estimate, RoundingDomain, quantised
from mirage_formal.claims.numerics.single import alone
from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import MOVES
from mirage_formal.graph.types import DType
from mirage_formal.meaning.walk import evaluate


class RealisedDomain(RoundingDomain):
    """Exact but for the operands of matrix products.

    Args:
        xp: numpy or cupy.
        operands: Element type that these are rounded to.
    """

    def __init__(self, xp: Any, operands: DType) -> None:
        super().__init__(xp, None)
        self._operands: Final = operands

    def stored(self, a: Estimate, dtype: DType) -> Estimate:
        """The values as elements of a type; those beyond its range keep their digits and their exponent."""
        plain = self.plain(a)
        if not bool((self.xp.abs(plain.mantissa) > LARGEST[dtype]).any()):
            return Estimate(quantised(plain.mantissa, dtype, self.xp))
        return Estimate(quantised(a.mantissa, dtype, self.xp), a.exponent)

    def matmul(self, a: Estimate, b: Estimate, inner: int) -> Estimate:
        """See ``Domain.matmul``."""
        if self._operands is not DType.FLOAT32:
            a, b = self.stored(a, self._operands), self.stored(b, self._operands)
        return super().matmul(a, b, inner)


def drift(candidate: KernelGraph, arrays: Sequence[Array], values: Sequence[Array], xp: Any = np) -> tuple[Array, ...]:
    """How far a candidate's outputs are off by its own roundings to element types, taken together.

    Args:
        candidate: The candidate.
        arrays: One float64 array for each input, of values that its element type holds.
        values: The exact outputs.
        xp: numpy or cupy, whichever made the arrays.

    Returns:
        Absolute differences, 0 where one is not finite.
    """
    types = kernel_types(candidate)
    domain = RealisedDomain(xp, types[0].dtype)
    tensors = [Estimate(a) for a in arrays]
    with np.errstate(all="ignore"):
        for op in candidate.ops:
            moved = isinstance(op, Op) and op.kind in MOVES
            for result in evaluate(alone(op, types), [tensors[number] for number in op.operands], domain):
                tensors.append(result if moved else domain.stored(result, types[len(tensors)].dtype))
        found = (domain.plain(tensors[number]).mantissa for number in candidate.outputs)
        differences = [xp.abs(one - value) for one, value in zip(found, values, strict=True)]
        return tuple(xp.where(xp.isfinite(one), one, 0.0) for one in differences)


__all__ = ["RealisedDomain", "drift"]
