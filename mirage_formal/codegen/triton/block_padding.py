"""Padding of Triton blocks: the dims of each tile's block, and the padded extent of each dim.

Extents of a Triton block are powers of two, and those of a product's operands at least 16. So a dim of 48 becomes one
of 64, whose last 16 elements are padding. They are masked where they are loaded and stored, and replaced by the neutral
element where they would be summed or compared. Dims that meet in an operator are padded alike. Dims that have one
element in all tensors that meet are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from mirage_formal.codegen.planning.expand import FlatGraph
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    Product,
    Reduce,
    Repeat,
    RunningMax,
    defined_tensors,
    operands_of,
)
from mirage_formal.graph.types import Shape

_T = TypeVar("_T")
#: The least extent of a dim of tl.dot's operands.
LEAST: Final = 16


@dataclass(frozen=True, slots=True)
class Padding:
    """The Triton blocks of the tensors of a flattened block graph.

    Attributes:
        axes: For each tensor the dims that its block has, in order; empty for a block of one element.
        extents: For each tensor the padded extent of every dim.
        terms: For each product, by the number of its result, the pairs of tensors whose products are summed. There is
            one pair, unless the operands are concatenations along the summed dim.
    """

    axes: tuple[tuple[int, ...], ...]
    extents: tuple[Shape, ...]
    terms: dict[int, tuple[tuple[int, int], ...]]

    def block(self, tensor: int) -> Shape:
        """Return the extents of a tensor's block."""
        return tuple(self.extents[tensor][dim] for dim in self.axes[tensor]) or (1,)

    def axis(self, tensor: int, dim: int) -> int:
        """Return the axis of a tensor's block that holds a dim of the tensor."""
        return self.axes[tensor].index(dim)


def pad_tensors(flat: FlatGraph) -> Padding:
    """Return the blocks of a flattened block graph's tensors."""
    terms = {op.result: _terms(op.a, op.b, flat) for op in flat.ops if isinstance(op, Product)}
    classes: _DisjointSets[tuple[int, int]] = _DisjointSets()
    together: _DisjointSets[int] = _DisjointSets()
    dots: list[tuple[int, int]] = []
    products: set[int] = set()
    for op in flat.ops:
        for one, other in _aligned_dims(op, flat):
            classes.join(one, other)
        numbers = (*operands_of(op), *defined_tensors(op))
        for number in numbers[1:]:
            together.join(numbers[0], number)
        if isinstance(op, Product):
            products.add(op.result)
            for a, b in terms[op.result]:
                classes.join((a, len(flat.tensors[a].shape) - 1), (b, len(flat.tensors[b].shape) - 2))
                if on_tensor_cores(flat, a, b):
                    last = len(flat.tensors[a].shape) - 1
                    dots += [(a, last - 1), (a, last), (b, last)]
    least = {classes.root(dim) for dim in dots}
    extents = tuple(
        tuple(
            max(next_power_of_two(extent), LEAST if classes.root((number, dim)) in least else 1)
            for dim, extent in enumerate(tensor.shape)
        )
        for number, tensor in enumerate(flat.tensors)
    )
    return Padding(_axes(flat, together, products), extents, terms)


def next_power_of_two(extent: int) -> int:
    """Return the least power of two that is not less than an extent."""
    return 1 << (extent - 1).bit_length()


def on_tensor_cores(flat: FlatGraph, a: int, b: int) -> bool:
    """Return whether a product is a tl.dot; one of a row, a column or two vectors sums elementwise products."""
    (*_, rows, inner), columns = flat.tensors[a].shape, flat.tensors[b].shape[-1]
    return min(rows, inner, columns) > 1


class _DisjointSets(Generic[_T]):
    """Disjoint sets (union-find)."""

    def __init__(self) -> None:
        self._above: dict[_T, _T] = {}

    def root(self, item: _T) -> _T:
        while (above := self._above.get(item, item)) != item:
            item = above
        return item

    def join(self, one: _T, other: _T) -> None:
        self._above[self.root(one)] = self.root(other)


def _terms(a: int, b: int, flat: FlatGraph) -> tuple[tuple[int, int], ...]:
    """Return the terms of (a b) (c; d) = a c + b d, where both operands are concatenations cut at one place."""
    makers = {op.result: op for op in flat.ops if isinstance(op, Concat)}
    left, right = makers.get(a), makers.get(b)
    last = len(flat.tensors[a].shape) - 1
    if left is None or right is None or (left.dim, right.dim) != (last, last - 1):
        return ((a, b),)
    if flat.tensors[left.a].shape[last] != flat.tensors[right.a].shape[last - 1]:
        return ((a, b),)
    return (*_terms(left.a, right.a, flat), *_terms(left.b, right.b, flat))


def _aligned_dims(op: FlatOp, flat: FlatGraph) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield pairs of dims of an operator's tensors that index the same elements."""
    match op:
        case Elementwise():
            pairs = [(number, op.result, -1) for number in op.operands]
        case Reduce():
            pairs = [(op.operand, op.result, op.dim)]
        case Concat():
            pairs = [(op.a, op.result, op.dim), (op.b, op.result, op.dim)]
        case Repeat() | LoopConcat():
            pairs = [(op.operand, op.result, op.dim)]
        case Accumulate():
            pairs = [(op.operand, op.result, -1 if op.dim is None else op.dim)]
            pairs += [] if op.factor is None else [(op.factor, op.result, -1)]
        case RunningMax():
            pairs = [(op.operand, op.largest, -1), (op.operand, op.rescale, -1)]
        case Product():
            last = len(flat.tensors[op.a].shape) - 1
            yield (op.a, last - 1), (op.result, last - 1)
            yield (op.b, last), (op.result, last)
            return
    for one, other, without in pairs:
        shapes = zip(flat.tensors[one].shape, flat.tensors[other].shape, strict=True)
        for dim, (mine, its) in enumerate(shapes):
            if dim != without and mine == its:
                yield (one, dim), (other, dim)


def _axes(flat: FlatGraph, together: _DisjointSets[int], products: set[int]) -> tuple[tuple[int, ...], ...]:
    kept: dict[int, set[int]] = {}
    for number, tensor in enumerate(flat.tensors):
        found = kept.setdefault(together.root(number), set())
        rank = len(tensor.shape)
        found |= {dim for dim, extent in enumerate(tensor.shape) if extent > 1}
        found |= {rank - 2, rank - 1} if number in products else set()
    return tuple(tuple(sorted(kept[together.root(number)])) for number in range(len(flat.tensors)))
