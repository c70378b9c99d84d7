"""Domain of the interpreter of µGraphs over random points of prime fields (see ``field_points``)."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Final

import numpy as np

from mirage_formal.codegen.translation_validation.field_points import FieldArray, FieldPoints
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.value_domain import LOOP_AXIS, UntiledDomain


class FieldDomain(UntiledDomain[FieldArray]):
    """Operators of a µGraph at random points; the components are an axis before all others.

    Args:
        points: The arithmetic.
    """

    keeps: Final = frozenset({OpKind.ABS, OpKind.SOFTMAX})

    def __init__(self, points: FieldPoints) -> None:
        self.points = points

    def unary(self, kind: OpKind, a: FieldArray) -> FieldArray:
        """Implement ``Domain.unary``."""
        return self.points.unary(kind, a)

    def binary(self, kind: OpKind, a: FieldArray, b: FieldArray) -> FieldArray:
        """Implement ``Domain.binary``."""
        return self.points.binary(kind, a, b)

    def matmul(self, a: FieldArray, b: FieldArray, inner: int) -> FieldArray:
        """Implement ``Domain.matmul``."""
        return self.points.matmul(a, b)

    def scale(self, a: FieldArray, factor: Fraction) -> FieldArray:
        """Implement ``Domain.scale``."""
        if factor == 1:
            return a
        return self.points.multiply(a, self.points.fill(factor, (1,) * (a.ndim - 1)))

    def offset(self, a: FieldArray, constant: Fraction) -> FieldArray:
        """Implement ``Domain.offset``."""
        return self.points.add(a, self.points.fill(constant, (1,) * (a.ndim - 1)))

    def sum(self, a: FieldArray, axis: int, extent: int, kept: int) -> FieldArray:
        """Implement ``Domain.sum``."""
        return self.points.sum(a, axis, kept)

    def ordered(self, kind: OpKind, operands: tuple[FieldArray, ...], axis: int, extent: int) -> tuple[FieldArray, ...]:
        """Implement ``Domain.ordered``."""
        points, loop = self.points, LOOP_AXIS + 1
        if kind is OpKind.MAX and axis != LOOP_AXIS:
            return (points.largest(operands[0], axis),)
        if kind is OpKind.MAX:  # over iterations, each of which may have the maximum of those before
            steps = [np.take(operands[0], [i], axis=loop) for i in range(operands[0].shape[loop])]
            return (reduce(points.maximum, steps),)
        if kind is OpKind.RUNNING_MAX:
            each = points.largest(operands[0], axis)
            rows = [np.take(each, [i], axis=loop) for i in range(each.shape[loop])]
            found, factors = [rows[0]], [np.zeros_like(rows[0])]
            for row in rows[1:]:
                found.append(points.maximum(found[-1], row))
                factors.append(points.exp(points.subtract(found[-2], found[-1])))
            return np.concatenate(found, axis=loop), np.concatenate(factors, axis=loop)
        assert kind is OpKind.ACCUM_RESCALED_SUM, kind
        x, factor = operands
        state = np.take(x, [0], axis=loop)
        for i in range(1, x.shape[loop]):
            scaled = points.multiply(state, np.take(factor, [i], axis=loop))
            state = points.add(scaled, np.take(x, [i], axis=loop))
        return (state,)

    def softmax(self, a: FieldArray, axis: int, extent: int) -> FieldArray:
        """Implement ``Domain.softmax`` with the maximum subtracted, as kernels do: so divisors are the same."""
        points = self.points
        exponentials = points.exp(points.subtract(a, points.largest(a, axis)))
        return points.multiply(exponentials, points.invert(points.sum(exponentials, axis)))

    def reshape(self, a: FieldArray, shape: Shape) -> FieldArray:
        """Implement ``Domain.reshape``."""
        return a.reshape(a.shape[0], *shape)

    def transpose(self, a: FieldArray, perm: tuple[int, ...]) -> FieldArray:
        """Implement ``Domain.transpose``."""
        return a.transpose(0, *(axis + 1 for axis in perm))

    def concat(self, a: FieldArray, b: FieldArray, axis: int) -> FieldArray:
        """Implement ``Domain.concat``."""
        return np.concatenate([a, b], axis=axis + 1)

    def slice(self, a: FieldArray, axis: int, start: int, stop: int) -> FieldArray:
        """Implement ``Domain.slice``."""
        return a[(slice(None),) * (axis + 1) + (slice(start, stop),)]

    def repeat(self, a: FieldArray, axis: int, times: int) -> FieldArray:
        """Implement ``Domain.repeat``."""
        return np.repeat(a, times, axis=axis + 1)


__all__ = ["FieldDomain"]
