"""Kernel-level tensors that lie in the memory of another one: no kernel is launched for them.

Results of transposes, reshapes, repeats and slices are views: whoever reads one reads the other tensor's elements, from
an offset on and through other strides. A result is no view but a copy if it is an output of the graph, if no strides
give its elements, or if a reader could not address them (``addressable``).

A result of a graph-defined kernel that an output shows under another shape lies in the memory of that output.

Two forms let the tiles of a graph-defined kernel overhang a tensor, so that grids and loops divide extents that the
tensor has not:

- A pad that only graph-defined kernels read is never stored. It lies in its operand's memory; elements outside of
  ``Place.starts`` and ``Place.extents`` are zeros that the reader puts in their place.
- A result of a graph-defined kernel that is read only by a slice from the start is never stored whole. It lies in the
  memory of the slice, and elements outside ``Place.extents`` are not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape, row_major

_VIEWS = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT, OpKind.SLICE})
_MOVED = _VIEWS | {OpKind.PAD}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of a tensor lie.

    Attributes:
        base: Number of the tensor in whose memory they lie: its own, unless it is a view. The base of what is stored
            only in part is the slice that reads it.
        strides: In elements; element (i, j, ...) lies at ``offset`` plus the sum of index times stride, counted from
            the base's first element.
        offset: In elements; below 0 if the first elements do not lie in memory.
        extents: Where only elements with indices below these lie in memory; others are 0 where they are read, and are
            not written. None: all do.
        starts: As ``extents``, the least indices of elements in memory; None: 0.
    """

    base: int
    strides: tuple[int, ...]
    offset: int = 0
    extents: Shape | None = None
    starts: Shape | None = None

    def span(self, shape: Shape) -> int:
        """Elements of the base up to the last one that belongs to a tensor of this shape."""
        inside = self.extents or shape
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(inside, self.strides, strict=True))

    def share(self, shape: Shape) -> float:
        """The part of a tensor of this shape that lies in memory, from above 0 to 1."""
        if self.extents is None:
            return 1.0
        starts = self.starts or (0,) * len(shape)
        return prod(end - start for start, end in zip(starts, self.extents, strict=True)) / prod(shape)


@lru_cache(maxsize=256)
def places(graph: KernelGraph) -> tuple[Place, ...]:
    """Where each tensor of a well-formed graph lies: inputs as declared, results row-major, views in their bases."""
    count = len(graph.inputs)
    found = [Place(number, item.strides) for number, item in enumerate(graph.inputs)]
    types = kernel_types(graph)
    ends, padded, reshaped = _sliced(graph), _padded(graph), _reshaped_outputs(graph)
    for first, op in numbered(count, graph.ops):
        for number in range(first, first + op.results):
            end = ends.get(number, number)
            extents = None if end == number else types[end].shape
            found.append(Place(reshaped.get(number, end), row_major(types[end].shape), extents=extents))
        if not isinstance(op, Op) or first in ends or first in ends.values() or first in graph.outputs:
            continue
        place, shape = found[op.operands[0]], types[first].shape
        if first in padded:
            found[first] = _padding(op, place, types[op.operands[0]].shape)
        elif op.kind in _VIEWS and place.extents is None:
            strides = _strides(op, types[op.operands[0]].shape, place.strides, shape)
            if strides is not None and addressable(shape, strides):
                found[first] = Place(place.base, strides, place.offset + _start(op, place.strides))
    return tuple(found)


def _sliced(graph: KernelGraph) -> dict[int, int]:
    """Results that are stored only as far as a slice reads them, and slices between: the last slice of each."""
    readers = _readers(graph)
    makers = dict(numbered(len(graph.inputs), graph.ops))

    def following(tensor: int) -> int | None:
        """The slice from the start that alone reads a tensor."""
        if tensor in graph.outputs or len(readers.get(tensor, ())) != 1:
            return None
        op = makers[readers[tensor][0]]
        return readers[tensor][0] if isinstance(op, Op) and op.kind is OpKind.SLICE and op.attrs.start == 0 else None

    ends: dict[int, int] = {}
    for first, op in makers.items():
        for number in range(first, first + op.results) if isinstance(op, GraphDefined) else ():
            chain, after = [number], following(number)
            while after is not None:
                chain.append(after)
                after = following(after)
            ends.update(dict.fromkeys(chain[:-1], chain[-1]))
    return ends


def _reshaped_outputs(graph: KernelGraph) -> dict[int, int]:
    """Results of graph-defined kernels that an output shows under another shape, each with that output."""
    makers = dict(numbered(len(graph.inputs), graph.ops))
    made = {first + i for first, op in makers.items() if isinstance(op, GraphDefined) for i in range(op.results)} - set(
        graph.outputs
    )
    found: dict[int, int] = {}
    for output in graph.outputs:
        op = makers.get(output)
        if isinstance(op, Op) and op.kind is OpKind.RESHAPE and op.operands[0] in made:
            found.setdefault(op.operands[0], output)
    return found


def _padded(graph: KernelGraph) -> frozenset[int]:
    """Results of pads that only graph-defined kernels read, through other such pads too."""
    readers, makers = _readers(graph), dict(numbered(len(graph.inputs), graph.ops))
    found: set[int] = set()
    for first, op in reversed(makers.items()):
        if not (isinstance(op, Op) and op.kind is OpKind.PAD) or first in graph.outputs:
            continue
        if all(isinstance(makers[reader], GraphDefined) or reader in found for reader in readers.get(first, ())):
            found.add(first)
    return frozenset(found)


def _readers(graph: KernelGraph) -> dict[int, list[int]]:
    """For each tensor the first results of the operators that read it."""
    found: dict[int, list[int]] = {}
    for first, op in numbered(len(graph.inputs), graph.ops):
        for operand in op.operands:
            found.setdefault(operand, []).append(first)
    return found


def is_view(graph: KernelGraph, tensor: int) -> bool:
    """Whether a tensor lies in another one's memory."""
    return places(graph)[tensor].base != tensor


def launched(graph: KernelGraph) -> tuple[int, ...]:
    """Numbers of the operators for which a kernel is launched: all but those whose result lies where it was made."""
    if not any(isinstance(op, Op) and op.kind in _MOVED for op in graph.ops):
        return tuple(range(len(graph.ops)))
    known, found = places(graph), []
    for position, (first, op) in enumerate(numbered(len(graph.inputs), graph.ops)):
        stored = known[first].base == first and all(known[operand].base != first for operand in op.operands)
        if isinstance(op, GraphDefined) or stored:
            found.append(position)
    return tuple(found)


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
        case OpKind.SLICE:
            return strides
        case OpKind.REPEAT:
            assert op.attrs.dim is not None
            return (*strides[: op.attrs.dim], 0, *strides[op.attrs.dim + 1 :])
        case _:
            return _reshaped(given, strides, shape)


def _padding(op: Op, place: Place, shape: Shape) -> Place:
    """Where a pad of a tensor of this shape lies."""
    dim, before = op.attrs.dim, op.attrs.before or 0
    assert dim is not None
    extents, starts = list(place.extents or shape), list(place.starts or (0,) * len(shape))
    extents[dim] += before
    starts[dim] += before
    offset = place.offset - before * place.strides[dim]
    return Place(place.base, place.strides, offset, tuple(extents), tuple(starts) if any(starts) else None)


def _start(op: Op, strides: tuple[int, ...]) -> int:
    """Where the first element of the operator's result lies behind that of its operand."""
    if op.kind is not OpKind.SLICE:
        return 0
    assert op.attrs.dim is not None
    assert op.attrs.start is not None
    return op.attrs.start * strides[op.attrs.dim]


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
