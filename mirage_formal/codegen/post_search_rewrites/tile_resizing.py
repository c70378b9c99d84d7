"""Conditions under which the tiles of a block graph may become larger or smaller along a dim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from mirage_formal.graph.edit import replace_axis
from mirage_formal.graph.graph import BlockGraph, BlockOp, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.types import DimMap, Shape
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure

#: The most elements that a block's registers hold, the same limit as for the tiles of kernels that searches make.
MOST_IN_REGISTERS: Final = 1 << 15
#: Columns of a product that an iteration computes at least; a plan cuts iterations down to as many.
_COLUMNS: Final = 64
#: Accumulators that join iterations element by element.
_OVER_THE_LOOP: Final = (OpKind.ACCUM_SUM, OpKind.ACCUM_MAX, OpKind.ACCUM_RESCALED_SUM)


def is_independent_along(ops: Sequence[BlockOp], dim: int) -> bool:
    """Return whether each result at one index of a dim depends only on operands at the same index of that dim.

    The operators contain no thread graphs.
    """
    for op in ops:
        assert isinstance(op, Op)
        spec, family = SPECS[op.kind], SPECS[op.kind].family
        if spec.elementwise or op.kind in (OpKind.ACCUM_SUM, OpKind.ACCUM_MAX):
            continue
        if family in (Family.REDUCTION, Family.NORM) and op.kind is not OpKind.RUNNING_MAX and op.attrs.dim != dim:
            continue
        return False
    return True


def splittable_dims(block: BlockGraph, shapes: Sequence[Shape]) -> Iterator[tuple[int, int]]:
    """Yield the dims, each with its extent, that a further grid axis may split in all tiles that are longer than 1.

    Args:
        block: A block graph without thread graphs.
        shapes: The shapes of all its tensors.
    """
    for dim in range(min(map(len, shapes))):
        extents = {shape[dim] for shape in shapes} - {1}
        written = all(shapes[saver.operand][dim] > 1 for saver in block.outputs)
        if len(extents) == 1 and written and is_independent_along(block.ops, dim):
            yield dim, extents.pop()


def split_dim(block: BlockGraph, shapes: Sequence[Shape], dim: int, axis: int, count: int) -> BlockGraph:
    """Return the block graph with an unused grid axis splitting a dim into ``count`` parts; see ``splittable_dims``."""

    def mapped(dims: DimMap, operand: int) -> DimMap:
        return replace_axis(dims, axis, dim if shapes[operand][dim] > 1 else None)

    return replace(
        block,
        grid=replace_axis(block.grid, axis, count),
        inputs=tuple(replace(one, imap=mapped(one.imap, i)) for i, one in enumerate(block.inputs)),
        outputs=tuple(replace(one, omap=mapped(one.omap, one.operand)) for one in block.outputs),
    )


def register_elements(block: BlockGraph, shapes: Sequence[Shape]) -> int:
    """Return the elements that a block holds at least: its accumulators, and its largest product beside them.

    A product that only sums over the loop take is accumulated in place. Of any other one, an iteration holds at least
    ``_COLUMNS`` columns.

    Args:
        block: A block graph without thread graphs.
        shapes: The shapes of all its tensors.
    """
    products: dict[int, int] = {}
    others: set[int] = {saver.operand for saver in block.outputs}
    accumulated = 0
    for number, item in enumerate_results(len(block.inputs), block.ops):
        assert isinstance(item, Op)
        if item.kind is not OpKind.ACCUM_SUM:
            others.update(item.operands)
        *rows, columns = shapes[number] or (1,)
        if SPECS[item.kind].accumulator:
            accumulated += prod(rows) * columns
        elif SPECS[item.kind].family is Family.PRODUCT:
            products[number] = prod(rows) * min(columns, _COLUMNS)
    return accumulated + max((products[number] for number in products.keys() & others), default=0)


def can_merge_blocks(block: BlockGraph, axis: int, shapes: Sequence[Shape]) -> bool:
    """Return whether the same kernel on fewer blocks along a grid axis, with larger tiles, computes the same.

    This holds if three conditions hold. The axis splits one dim of each tensor that depends on it. No operator mixes
    elements at different indices of that dim. The results are concatenated along that dim.

    Args:
        block: A block graph without thread graphs.
        axis: The grid axis.
        shapes: The shapes of all its tensors.
    """
    along = _merged_dims(block, axis, shapes)
    return along is not None and all(along[saver.operand] == saver.omap[axis] is not None for saver in block.outputs)


@none_on_match_failure
def _merged_dims(block: BlockGraph, axis: int, shapes: Sequence[Shape]) -> list[int | None] | None:
    """Return for each tensor the dim that grows with the tiles, if one does; None if an operator mixes its elements."""
    along = [iterator.imap[axis] for iterator in block.inputs]
    for op in block.ops:
        assert isinstance(op, Op)
        along += [_merged_dim(op, along, shapes)] * op.results
    return along


def _merged_dim(op: Op, along: Sequence[int | None], shapes: Sequence[Shape]) -> int | None:
    """Return the dim of an operator's results that grows with the tiles of its operands; None if no dim grows.

    Raises:
        MatchFailure: The operator mixes elements along that dim.
    """
    mixed = MatchFailure(f"{op.kind.value} mixes what stands along a grid axis")
    dims = [along[n] for n in op.operands]
    found = {dim for dim in dims if dim is not None}
    if not found:
        return None
    last = len(shapes[op.operands[0]]) - 1
    if op.kind is OpKind.MATMUL:
        if tuple(dims) in ((last - 1, None), (None, last)):
            return max(found)
        raise mixed
    (dim, *others) = found
    if others or any(d is None and shapes[n][dim] > 1 for n, d in zip(op.operands, dims, strict=True)):
        raise mixed
    spec = SPECS[op.kind]
    if spec.elementwise or op.kind in _OVER_THE_LOOP:
        return dim
    over = last if op.attrs.dim is None else op.attrs.dim
    if over == dim or (op.kind is OpKind.CONCAT and None in dims):
        raise mixed
    return dim


__all__ = [
    "MOST_IN_REGISTERS",
    "can_merge_blocks",
    "is_independent_along",
    "register_elements",
    "split_dim",
    "splittable_dims",
]
