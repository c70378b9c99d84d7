"""Working-set size of a µGraph's evaluation, in elements, computed by interpreting it over shapes alone."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import KEEPABLE, UntiledDomain


class ShapeDomain(UntiledDomain[Shape]):
    """Domain of array shapes, leading axes included; ``elements`` adds up the elements of operators' results."""

    keeps: Final = KEEPABLE

    def __init__(self) -> None:
        self.elements = 0

    def _count_elements(self, shape: Shape) -> Shape:
        self.elements += prod(shape)
        return shape

    def unary(self, kind: OpKind, a: Shape) -> Shape:
        """Implement ``Domain.unary``."""
        return self._count_elements(a)

    def binary(self, kind: OpKind, a: Shape, b: Shape) -> Shape:
        """Implement ``Domain.binary``."""
        return self._count_elements(tuple(max(x, y) for x, y in zip(a, b, strict=True)))

    def matmul(self, a: Shape, b: Shape, inner: int) -> Shape:
        """Implement ``Domain.matmul``."""
        lead = (max(x, y) for x, y in zip(a[:-2], b[:-2], strict=True))
        return self._count_elements((*lead, a[-2], b[-1]))

    def scale(self, a: Shape, factor: Fraction) -> Shape:
        """Implement ``Domain.scale``."""
        return self._count_elements(a)

    def offset(self, a: Shape, constant: Fraction) -> Shape:
        """Implement ``Domain.offset``."""
        return self._count_elements(a)

    def sum(self, a: Shape, axis: int, extent: int, kept: int) -> Shape:
        """Implement ``Domain.sum``."""
        return self._count_elements((*a[:axis], kept, *a[axis + 1 :]))

    def ordered(self, kind: OpKind, operands: tuple[Shape, ...], axis: int, extent: int) -> tuple[Shape, ...]:
        """Implement ``Domain.ordered``."""
        if kind is OpKind.ACCUM_RESCALED_SUM:
            x, factor = operands
            return (self.sum(self.binary(OpKind.MUL, x, factor), axis, extent, 1),)
        assert kind in (OpKind.MAX, OpKind.RUNNING_MAX), kind
        reduced = self.sum(operands[0], axis, extent, 1)
        return (reduced,) if kind is OpKind.MAX else (reduced, self._count_elements(reduced))

    def softmax(self, a: Shape, axis: int, extent: int) -> Shape:
        """Implement ``Domain.softmax``."""
        return self._count_elements(a)

    def reshape(self, a: Shape, shape: Shape) -> Shape:
        """Implement ``Domain.reshape``."""
        return self._count_elements(shape)

    def transpose(self, a: Shape, perm: tuple[int, ...]) -> Shape:
        """Implement ``Domain.transpose``."""
        return tuple(a[axis] for axis in perm)

    def concat(self, a: Shape, b: Shape, axis: int) -> Shape:
        """Implement ``Domain.concat``."""
        return self._count_elements((*a[:axis], a[axis] + b[axis], *a[axis + 1 :]))

    def slice(self, a: Shape, axis: int, start: int, stop: int) -> Shape:
        """Implement ``Domain.slice``."""
        return (*a[:axis], stop - start, *a[axis + 1 :])

    def repeat(self, a: Shape, axis: int, times: int) -> Shape:
        """Implement ``Domain.repeat``."""
        return (*a[:axis], times, *a[axis + 1 :])


def working_set_size(graph: KernelGraph) -> int:
    """Return an upper bound on the elements of all arrays of one evaluation: the inputs and every operator's results.

    Raises:
        GraphError: The graph is not well-formed.
    """
    domain = ShapeDomain()
    evaluate(graph, [source.tensor.shape for source in graph.inputs], domain)
    return domain.elements + sum(source.tensor.elements for source in graph.inputs)
