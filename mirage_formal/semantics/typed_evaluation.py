"""Evaluation of a µGraph in its own element types: arithmetic in float32, every tensor rounded to its type.

The float64 reference computes a program up to rounding, and hides overflow of an element type. Here each primitive
operator gives float32, as registers of kernels hold it, so a value too large for float32 is infinite. Sums and products
add in float64 before they are rounded to float32, because the order of a kernel's additions is not known. A tensor
between two kernels is rounded to its element type, so it is infinite beyond that type's range.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.edit import extract_kernel
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.float64_reference import FloatDomain
from mirage_formal.semantics.function_table import round_to_bfloat16
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.support.errors import ShapeError

Array = NDArray[Any]
Singles = NDArray[np.float32]


class SingleDomain(FloatDomain):
    """Domain of float32 arrays, in which every primitive operator gives float32."""

    def unary(self, kind: OpKind, a: Array) -> Array:
        """Implement ``Domain.unary``."""
        return _to_float32(super().unary(kind, a))

    def binary(self, kind: OpKind, a: Array, b: Array) -> Array:
        """Implement ``Domain.binary``."""
        return _to_float32(super().binary(kind, a, b))

    def matmul(self, a: Array, b: Array, inner: int) -> Array:
        """Implement ``Domain.matmul``."""
        return _to_float32(super().matmul(a.astype(np.float64), b.astype(np.float64), inner))

    def scale(self, a: Array, factor: Fraction) -> Array:
        """Implement ``Domain.scale``."""
        return _to_float32(a * _to_float32(float(factor)) if factor else np.zeros(a.shape))

    def offset(self, a: Array, constant: Fraction) -> Array:
        """Implement ``Domain.offset``."""
        return _to_float32(a + _to_float32(float(constant)))

    def sum(self, a: Array, axis: int, extent: int, kept: int) -> Array:
        """Implement ``Domain.sum``."""
        return _to_float32(super().sum(a.astype(np.float64), axis, extent, kept))

    def ordered(self, kind: OpKind, operands: tuple[Array, ...], axis: int, extent: int) -> tuple[Array, ...]:
        """Implement ``Domain.ordered``."""
        return tuple(_to_float32(found) for found in super().ordered(kind, operands, axis, extent))

    def softmax(self, a: Array, axis: int, extent: int) -> Array:
        """Implement ``Domain.softmax``."""
        weights = np.exp(a - a.max(axis=axis, keepdims=True))
        return _to_float32(weights / self.sum(weights, axis, extent, 1))


def _to_float32(values: Any) -> Singles:
    return np.asarray(values, np.float32)


def round_to_dtype(values: Array, dtype: DType) -> Singles:
    """Return values rounded to the nearest number of an element type, ties to even, as float32.

    Args:
        values: Floating-point numbers, or booleans of a mask.
        dtype: The element type; values too large for it become infinite. Elements of a mask are not changed.
    """
    found = _to_float32(values)
    match dtype:
        case DType.FLOAT16:
            return found.astype(np.float16).astype(np.float32)
        case DType.BFLOAT16:
            return _to_float32(round_to_bfloat16(np, found))
        case DType.FLOAT32 | DType.BOOL:
            return found


def run_typed(
    graph: KernelGraph, arrays: Sequence[Array], *, stored: bool | Collection[int] = True, exact: Collection[int] = ()
) -> tuple[Singles, ...]:
    """Return the outputs of a µGraph, computed in its element types.

    Args:
        graph: A program, whose operators are a kernel each, or a candidate.
        arrays: One array for each input, of the input's shape; masks are booleans, or zeros and ones.
        stored: Whether tensors between kernels are rounded to their element types. If not, only inputs, outputs and
            results of rounding operators are rounded, as in one kernel that keeps all other tensors in registers. This
            is the meaning of a program under the condition "intermediates not rounded". Numbers of tensors: these are
            rounded as well.
        exact: Numbers of the inputs whose arrays have numbers of their element types only, which need no rounding.

    Returns:
        One array of float32 for each output, in order, of numbers that its element type has. Overflow gives an infinite
        value and an undefined operation NaN, without a warning.

    Raises:
        ShapeError: An array has not its input's shape, or there is not one for each input.
        GraphError: The graph is not well-formed.
    """
    types = kernel_types(graph)
    if len(arrays) != len(graph.inputs):
        raise ShapeError(f"expected {len(graph.inputs)} arrays, got {len(arrays)}", where="inputs")
    for source, array in zip(graph.inputs, arrays, strict=True):
        if array.shape != source.tensor.shape:
            raise ShapeError(f"expected {list(source.tensor.shape)}, got {list(array.shape)}", where=source.name)
    last = {number: index for index, op in enumerate(graph.ops) for number in op.operands}
    last.update(dict.fromkeys(graph.outputs, len(graph.ops)))
    domain = SingleDomain()
    with np.errstate(all="ignore"):
        held = {
            n: _to_float32(array) if n in exact else round_to_dtype(array, types[n].dtype)
            for n, array in enumerate(arrays)
        }
        number = len(held)
        for index, op in enumerate(graph.ops):
            operands = [held[n] for n in op.operands]
            if isinstance(op, Op) and op.kind is OpKind.SELECT:
                results: Sequence[Array] = [_select(op, operands)]
            else:
                results = evaluate(extract_kernel(op, types), operands, domain)
            for found in results:
                rounded = stored if isinstance(stored, bool) else number in stored
                held[number] = round_to_dtype(found, types[number].dtype) if rounded else found
                number += 1
            for read in set(op.operands):
                if last[read] == index:
                    del held[read]
        return tuple(round_to_dtype(held[number], types[number].dtype) for number in graph.outputs)


def _select(op: Op, operands: Sequence[Array]) -> Array:
    """Return the result of a selection, with the sign of a zero that the sum of both branches would lose."""
    mask, first, *others = operands
    return np.where(mask != 0, first, others[0] if others else _to_float32(float(op.attrs.value or 0)))


__all__ = ["Singles", "round_to_dtype", "run_typed"]
