"""Float reference with a leading batch axis of independent trials, for many inputs at once."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.float64_reference import FloatDomain
from mirage_formal.semantics.interpreter import evaluate

#: Integers up to this one are exact in float64.
_EXACT: Final = 1 << 53


class BatchedDomain(FloatDomain):
    """Domain of arrays [trials, ...] of any float type; each axis number of the interpreter is shifted by one.

    Quotients of small integers are rounded once, so that a mean of equal integers is exact.
    """

    def scale(self, a: NDArray[Any], factor: Fraction) -> NDArray[Any]:
        """Implement ``Domain.scale``."""
        if not factor:
            return np.zeros_like(a)
        if max(abs(factor.numerator), factor.denominator) > _EXACT:
            return a * float(factor)
        return a * factor.numerator / factor.denominator

    def sum(self, a: NDArray[Any], axis: int, extent: int, kept: int) -> NDArray[Any]:
        """Implement ``Domain.sum``."""
        return super().sum(a, axis + 1, extent, kept)

    def ordered(
        self, kind: OpKind, operands: tuple[NDArray[Any], ...], axis: int, extent: int
    ) -> tuple[NDArray[Any], ...]:
        """Implement ``Domain.ordered``."""
        # With the trials as the last axis, the loop axis has the position that the reference expects.
        behind = tuple(np.moveaxis(operand, 0, -1) for operand in operands)
        return tuple(np.moveaxis(found, -1, 0) for found in super().ordered(kind, behind, axis, extent))

    def softmax(self, a: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
        """Implement ``Domain.softmax``."""
        return super().softmax(a, axis + 1, extent)

    def reshape(self, a: NDArray[Any], shape: Shape) -> NDArray[Any]:
        """Implement ``Domain.reshape``."""
        return a.reshape((len(a), *shape))

    def transpose(self, a: NDArray[Any], perm: tuple[int, ...]) -> NDArray[Any]:
        """Implement ``Domain.transpose``."""
        return a.transpose((0, *(axis + 1 for axis in perm)))

    def concat(self, a: NDArray[Any], b: NDArray[Any], axis: int) -> NDArray[Any]:
        """Implement ``Domain.concat``."""
        return super().concat(a, b, axis + 1)

    def slice(self, a: NDArray[Any], axis: int, start: int, stop: int) -> NDArray[Any]:
        """Implement ``Domain.slice``."""
        return super().slice(a, axis + 1, start, stop)

    def repeat(self, a: NDArray[Any], axis: int, times: int) -> NDArray[Any]:
        """Implement ``Domain.repeat``."""
        return super().repeat(a, axis + 1, times)


def run_many(graph: KernelGraph, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Return the outputs [trials, ...] of a µGraph on inputs [trials, ...], in the float type of the inputs.

    Overflow, division by zero and roots of negative numbers give inf or nan without a warning.

    Raises:
        GraphError: The graph is not well-formed.
    """
    with np.errstate(all="ignore"):
        return evaluate(graph, arrays, BatchedDomain())
