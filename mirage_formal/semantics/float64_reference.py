"""The float64 reference: evaluation of a µGraph on real inputs, up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.batched_matmul import batched_product
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import KEEPABLE, LOOP_AXIS, UntiledDomain
from mirage_formal.support.errors import ShapeError

Floats = NDArray[np.float64]


class FloatDomain(UntiledDomain[Floats]):
    """Domain of float64 arrays; silu and softmax are computed without overflow."""

    keeps: Final = KEEPABLE

    def unary(self, kind: OpKind, a: Floats) -> Floats:
        """Implement ``Domain.unary``."""
        return np.asarray(FUNCTION_SPECS[kind].evaluate(np, a))

    def binary(self, kind: OpKind, a: Floats, b: Floats) -> Floats:
        """Implement ``Domain.binary``."""
        match kind:
            case OpKind.ADD:
                return a + b
            case OpKind.SUB:
                return a - b
            case OpKind.MUL:
                return a * b
            case OpKind.DIV:
                return a / b
            case OpKind.MAXIMUM:
                return np.maximum(a, b)
            case OpKind.MINIMUM:
                return np.minimum(a, b)
            case OpKind.SELECT:
                return np.where(a != 0, b, 0.0)
            case OpKind.EQ:
                return np.asarray(a == b, a.dtype)
            case OpKind.LT:
                return np.asarray(a < b, a.dtype)
            case OpKind.LE:
                return np.asarray(a <= b, a.dtype)
            case OpKind.DIV_NO_NAN:
                # 0 where b is 0, and NaN where a is no number: so a product may come before the division or behind it.
                return np.where(b == 0, a * 0.0, a / np.where(b == 0, 1.0, b))
            case _:
                raise AssertionError(kind)

    def matmul(self, a: Floats, b: Floats, inner: int) -> Floats:
        """Implement ``Domain.matmul``."""
        return batched_product(a, b, np.matmul)

    def scale(self, a: Floats, factor: Fraction) -> Floats:
        """Implement ``Domain.scale``."""
        return a * float(factor) if factor else np.zeros_like(a)

    def offset(self, a: Floats, constant: Fraction) -> Floats:
        """Implement ``Domain.offset``."""
        return a + float(constant)

    def sum(self, a: Floats, axis: int, extent: int, kept: int) -> Floats:
        """Implement ``Domain.sum``."""
        split = a.reshape(*a.shape[:axis], extent // kept, kept, *a.shape[axis + 1 :])
        return np.asarray(split.sum(axis=axis))

    def ordered(self, kind: OpKind, operands: tuple[Floats, ...], axis: int, extent: int) -> tuple[Floats, ...]:
        """Implement ``Domain.ordered``."""
        match kind:
            case OpKind.MAX:
                return (np.asarray(operands[0].max(axis=axis, keepdims=True)),)
            case OpKind.RUNNING_MAX:
                return _running_max(operands[0], axis)
            case OpKind.ACCUM_RESCALED_SUM:
                return (_rescaled_sum(operands[0], operands[1], axis),)
            case _:
                raise AssertionError(kind)

    def softmax(self, a: Floats, axis: int, extent: int) -> Floats:
        """Implement ``Domain.softmax``."""
        e = np.exp(a - a.max(axis=axis, keepdims=True))
        return np.asarray(e / e.sum(axis=axis, keepdims=True))

    def reshape(self, a: Floats, shape: Shape) -> Floats:
        """Implement ``Domain.reshape``."""
        return a.reshape(shape)

    def transpose(self, a: Floats, perm: tuple[int, ...]) -> Floats:
        """Implement ``Domain.transpose``."""
        return a.transpose(perm)

    def concat(self, a: Floats, b: Floats, axis: int) -> Floats:
        """Implement ``Domain.concat``."""
        return np.concatenate([a, b], axis=axis)

    def slice(self, a: Floats, axis: int, start: int, stop: int) -> Floats:
        """Implement ``Domain.slice``."""
        return a[(*(slice(None),) * axis, slice(start, stop))]

    def repeat(self, a: Floats, axis: int, times: int) -> Floats:
        """Implement ``Domain.repeat``."""
        return np.broadcast_to(a, (*a.shape[:axis], times, *a.shape[axis + 1 :]))


def _running_max(a: Floats, axis: int) -> tuple[Floats, Floats]:
    # It begins at the lowest number, not at minus infinity: exponentials of differences from it are numbers.
    lowest = np.finfo(a.dtype).min
    largest = np.maximum(np.maximum.accumulate(a.max(axis=axis, keepdims=True), axis=LOOP_AXIS), lowest)
    factor = np.zeros_like(largest)
    later = (slice(None),) * LOOP_AXIS + (slice(1, None),)
    earlier = (slice(None),) * LOOP_AXIS + (slice(None, -1),)
    factor[later] = np.exp(largest[earlier] - largest[later])
    return largest, factor


def _rescaled_sum(x: Floats, factor: Floats, axis: int) -> Floats:
    """Return the state s = s * f + x after the last iteration.

    It is the sum of x of each iteration times the product of all later factors.
    """
    ones = np.ones_like(np.take(factor, [0], axis=axis))
    backwards = np.flip(factor, axis=axis)
    earlier = np.take(backwards, range(factor.shape[axis] - 1), axis=axis)
    later = np.flip(np.cumprod(np.concatenate([ones, earlier], axis=axis), axis=axis), axis=axis)
    return np.asarray((x * later).sum(axis=axis, keepdims=True))


def run(graph: KernelGraph, arrays: Sequence[NDArray[Any]]) -> tuple[Floats, ...]:
    """Return the outputs of a µGraph on float64 inputs.

    Args:
        graph: A program or a candidate.
        arrays: One array per input, of the input's shape.

    Returns:
        One array per output, in order. Overflow, division by zero and roots of negative numbers give inf or nan, as
        numpy does, without a warning.

    Raises:
        ShapeError: An array has not its input's shape.
        GraphError: The graph is not well-formed.
    """
    for source, array in zip(graph.inputs, arrays, strict=False):
        if array.shape != source.tensor.shape:
            raise ShapeError(f"expected {list(source.tensor.shape)}, got {list(array.shape)}", where=source.name)
    with np.errstate(all="ignore"):
        return evaluate(graph, [np.asarray(array, dtype=np.float64) for array in arrays], FloatDomain())
