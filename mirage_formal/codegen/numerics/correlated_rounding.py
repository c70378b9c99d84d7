"""Correlated rounding: the combined effect of a µGraph's roundings at given inputs, computed and not estimated.

Rounding errors are not independent where values are equal: these are all rounded in the same direction, and the error
of their sum grows with their number, not with its root. For example, if the 156 elements of a log-softmax row are all
about -5.05, each is -5.0625 in bfloat16. The sum of their exponentials then has the same relative error as each
exponential. So the µGraph is evaluated once more with its roundings. Tensors stored between kernels and operands of
16-bit matrix products are rounded to their element types; all else, and values beyond their range, are as in the exact
evaluation. The result depends on the µGraph and the inputs alone; no kernel is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from mirage_formal.codegen.numerics.rounding import LARGEST, Array, Estimate, RoundingDomain, product_type, quantize
from mirage_formal.graph.edit import extract_kernel
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import MOVES
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.interpreter import evaluate


class RoundedDomain(RoundingDomain):
    """A domain that is exact except for stored tensors and the operands of matrix products.

    Args:
        xp: numpy or cupy.
        operands: Element type that these are rounded to; None rounds nothing.
    """

    def __init__(self, xp: Any, operands: DType | None) -> None:
        super().__init__(xp, None)
        self._operands: Final = operands

    def stored(self, a: Estimate, dtype: DType) -> Estimate:
        """Return the values rounded to an element type; those beyond its range keep their digits and their exponent."""
        if self._operands is None or not dtype.floating:
            return a
        plain = self.plain(a)
        if not bool((self.xp.abs(plain.mantissa) > LARGEST[dtype]).any()):
            return Estimate(quantize(plain.mantissa, dtype, self.xp))
        return Estimate(quantize(a.mantissa, dtype, self.xp), a.exponent)

    def matmul(self, a: Estimate, b: Estimate, inner: int) -> Estimate:
        """Implement ``Domain.matmul``."""
        if self._operands is not None and self._operands is not DType.FLOAT32:
            a, b = self.stored(a, self._operands), self.stored(b, self._operands)
        return super().matmul(a, b, inner)


def rounding_drift(candidate: KernelGraph, arrays: Sequence[Array], xp: Any = np) -> tuple[Array, ...]:
    """Return the errors of a candidate's outputs that its own roundings to element types cause together.

    Sound: both evaluations are the candidate's, so that nothing by which it differs from a program is tolerated.

    Args:
        candidate: The candidate.
        arrays: One float64 array for each input, of values that its element type holds.
        xp: numpy or cupy, whichever made the arrays.

    Returns:
        Absolute differences, 0 where one is not finite.
    """
    types = kernel_types(candidate)
    with np.errstate(all="ignore"):
        exact, found = (_outputs(candidate, types, arrays, rounds=rounds, xp=xp) for rounds in (False, True))
        differences = [xp.abs(one - other) for one, other in zip(found, exact, strict=True)]
        return tuple(xp.where(xp.isfinite(one), one, 0.0) for one in differences)


def _outputs(
    candidate: KernelGraph, types: Sequence[DTensor], arrays: Sequence[Array], *, rounds: bool, xp: Any
) -> list[Array]:
    """Return a candidate's outputs, computed kernel by kernel."""
    tensors = [Estimate(a) for a in arrays]
    for op in candidate.ops:
        domain = RoundedDomain(xp, product_type(op, types) if rounds else None)
        moved = isinstance(op, Op) and op.kind in MOVES
        for result in evaluate(extract_kernel(op, types), [tensors[number] for number in op.operands], domain):
            tensors.append(result if moved else domain.stored(result, types[len(tensors)].dtype))
    return [RoundedDomain(xp, None).plain(tensors[number]).mantissa for number in candidate.outputs]


__all__ = ["RoundedDomain", "rounding_drift"]
