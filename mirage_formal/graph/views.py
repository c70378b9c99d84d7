"""Kernel-level tensors that lie in the memory of another one: transposes, reshapes and repeats that nothing computes.

Such a result is a view: whoever reads it reads the other tensor's elements through other strides, so no kernel is
launched for it. A result is no view but a copy if it is an output of the graph, if no strides give its elements, or if
a reader could not address them (``addressable``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import KernelGraph, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape, row_major

_VIEWS = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of a tensor lie.

    Attributes:
        base: Number of the tensor in whose memory they lie: its own, unless it is a view.
        strides: In elements; element (i, j, ...) lies at the sum of index times stride from the base's first element.
    """

    base: int
    strides: tuple[int, ...]


@lru_cache(maxsize=256)
def places(graph: KernelGraph) -> tuple[Place, ...]:
    """Where each tensor of a well-formed graph lies: inputs as declared, results row-major, views in their bases."""
    count = len(graph.inputs)
    found = [Place(number, item.strides) for number, item in enumerate(graph.inputs)]
    types = kernel_types(graph)
    for first, op in numbered(count, graph.ops):
        for number in range(first, first + op.results):
            found.append(Place(number, row_major(types[number].shape)))
        if isinstance(op, Op) and op.kind in _VIEWS and first not in graph.outputs:
            operand, shape = op.operands[0], types[first].shape
            strides = _strides(op, types[operand].shape, found[operand].strides, shape)
            if strides is not None and addressable(shape, strides):
                found[first] = Place(found[operand].base, strides)
    return tuple(found)


def is_view(graph: KernelGraph, tensor: int) -> bool:
    """Whether a tensor lies in another one's memory."""
    return places(graph)[tensor].base != tensor


def launched(graph: KernelGraph) -> tuple[int, ...]:
    """Numbers of the operators for which a kernel is launched: all but those whose result is a view."""
    if not any(isinstance(op, Op) and op.kind in _VIEWS for op in graph.ops):
        return tuple(range(len(graph.ops)))
    firsts = [first for first, _ in numbered(len(graph.inputs), graph.ops)]
    return tuple(position for position, first in enumerate(firsts) if not is_view(graph, first))


def kernel_count(graph: KernelGraph) -> int:
    """Number of kernels that are launched for a graph."""
    return len(launched(graph))


def addressable(shape: Shape, strides: tuple[int, ...]) -> bool:
    """Whether the matrices of the last two dims have rows or columns of neighbouring elements that do not overlap."""
    (rows, columns), (by_row, by_column) = ((1, 1, *shape)[-2:], (1, 1, *strides)[-2:])
    return _neighbours(rows, columns, by_row, by_column) or _neighbours(columns, rows, by_column, by_row)


def _neighbours(count: int, length: int, step: int, within: int) -> bool:
    return (length == 1 or within == 1) and (count == 1 or step >= length)


def _strides(op: Op, given: Shape, strides: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """Strides of the operator's result in the memory of its operand; None if there are none."""
    match op.kind:
        case OpKind.TRANSPOSE:
            assert op.attrs.perm is not None
            return tuple(strides[axis] for axis in op.attrs.perm)
        case OpKind.REPEAT:
            assert op.attrs.dim is not None
            return (*strides[: op.attrs.dim], 0, *strides[op.attrs.dim + 1 :])
        case _:
            return _reshaped(given, strides, shape)


def _reshaped(given: Shape, strides: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """Strides under which a tensor has the same elements in row-major order under another shape; None if none do.

    Dims of the tensor that follow each other in memory are one run; every dim of the shape has to lie within a run.
    """
    runs: list[tuple[int, int]] = []  # elements and step of each run
    for extent, step in zip(given, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * step:
            runs[-1] = (runs[-1][0] * extent, step)
        else:
            runs.append((extent, step))
    found: list[int] = []
    left, step = runs.pop() if runs else (1, 1)
    for extent in reversed(shape):
        if left == 1 and extent > 1:
            left, step = runs.pop()
        if left % extent:
            return None
        found.append(step)
        left, step = left // extent, step * extent
    return tuple(reversed(found))


__all__ = ["Place", "addressable", "is_view", "kernel_count", "launched", "places"]
