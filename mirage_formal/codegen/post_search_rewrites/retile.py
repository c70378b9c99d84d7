"""Retiling of kernels: the same operators on another grid, with larger or smaller tiles.

For a kernel without products a search keeps one grid only, the best by estimate, and a cover has one kernel for each
part. Only timing can tell apart choices that the cost model rates alike, such as 768 blocks and 192. So the same kernel
on fewer or more blocks is a form like any other. Kernels with products are tried on grids of all extents that divide
their dims, and with loops of longer steps: for example 14,336 columns on 224 blocks instead of 256.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import Final

from mirage_formal.codegen.cost import block_cost
from mirage_formal.codegen.post_search_rewrites.tile_resizing import (
    MOST_IN_REGISTERS,
    can_merge_blocks,
    register_elements,
    split_dim,
    splittable_dims,
)
from mirage_formal.codegen.target import Target
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Op
from mirage_formal.graph.ops import SPECS, Family
from mirage_formal.graph.types import DTensor, Shape
from mirage_formal.graph.verifier import block_outputs, block_types
from mirage_formal.rewrite.failure import none_on_match_failure

#: The fewest elements of the largest tile: one for each thread of a warp.
_FEWEST: Final = 32
#: Limits of kernels with products: the fewest and the most blocks for each multiprocessor. A tile's extent along a dim
#: that is cut is a multiple of ``_COLUMNS``, the columns of a tensor-core product.
_BLOCKS: Final = (0.5, 4.0)
_COLUMNS: Final = 8
#: Factors by which the steps of their loops may become longer.
_LONGER: Final = (1, 2, 4)


def retile(
    op: GraphDefined, operands: Sequence[DTensor], factor: int, target: Target, *, larger: bool
) -> BlockGraph | None:
    """Return the kernel on ``factor`` times fewer or more blocks, on the grid with the best estimate.

    None if it has products, whose tiles are other candidates of a search, or if no axis of its grid can be cut so.

    Sound: nothing rests on this rewriting; whoever uses its result has it proved equal to the kernel.

    Args:
        op: A well-formed kernel.
        operands: The device tensors that it reads.
        factor: A power of 2.
        target: The GPU that estimates are for.
        larger: Whether tiles become larger, and blocks fewer.
    """
    block = inline_blocks(op.graph)
    if _has_products(block):
        return None
    found: list[tuple[float, int, BlockGraph]] = []
    for made in _scaled_grids(block, operands, factor, larger=larger):
        shapes = _tile_shapes(made, operands)
        if shapes is not None and _FEWEST <= max(prod(shape) for shape in shapes) <= MOST_IN_REGISTERS:
            cost, _ = block_cost(made, operands, target)
            found.append((round(cost.us, 3), -shapes[made.outputs[0].operand][-1], made))
    return min(found, key=lambda one: one[:2])[2] if found else None


def retile_product(op: GraphDefined, operands: Sequence[DTensor], rank: int, target: Target) -> BlockGraph | None:
    """Return the kernel with products on another grid: the ``rank``-th best of all others by estimate.

    For each grid only the best loop with as long or longer steps is kept. The kernel's own grid counts once for each
    loop of longer steps. None if it has no products, or there are fewer grids.

    Sound: nothing rests on this rewriting; whoever uses its result has it proved equal to the kernel.

    Args:
        op: A well-formed kernel.
        operands: The device tensors that it reads.
        rank: 1 or more.
        target: The GPU that estimates are for.
    """
    block = inline_blocks(op.graph)
    if not _has_products(block):
        return None
    best: dict[tuple[tuple[int, int, int], int], tuple[float, int, BlockGraph]] = {}
    for made in _product_grids(block, operands, target):
        shapes = _tile_shapes(made, operands)
        if shapes is None or register_elements(made, shapes) > MOST_IN_REGISTERS:
            continue
        cost, _ = block_cost(made, operands, target)
        found = (round(cost.us, 3), made.forloop_range, made)
        key = made.grid, made.forloop_range if made.grid == block.grid else 0
        if key not in best or found[:2] < best[key][:2]:
            best[key] = found
    ranked = sorted(best.values(), key=lambda one: (*one[:2], one[2].grid))
    others = [made for _, _, made in ranked if made != block]
    return others[rank - 1] if rank <= len(others) else None


@none_on_match_failure
def _tile_shapes(block: BlockGraph, operands: Sequence[DTensor]) -> list[Shape] | None:
    """Return the shapes of all tiles of a block graph; None if it is not well-formed on these operands."""
    block_outputs(block, tuple(operands))
    return [tile.shape for tile in block_types(block, tuple(operands))]


def _has_products(block: BlockGraph) -> bool:
    return any(isinstance(op, Op) and SPECS[op.kind].family is Family.PRODUCT for op in block.ops)


def _product_grids(block: BlockGraph, operands: Sequence[DTensor], target: Target) -> Iterator[BlockGraph]:
    """Yield the block graph on each grid whose extents divide the dims that they cut, with each loop step length."""
    shapes = [tile.shape for tile in block_types(block, tuple(operands))]
    extents: list[tuple[int, ...]] = []
    for axis, extent in enumerate(block.grid):
        if extent == 1 or not can_merge_blocks(block, axis, shapes):
            extents.append((extent,))
            continue
        maps = [(shapes[i], iterator.imap) for i, iterator in enumerate(block.inputs)]
        maps += [(shapes[saver.operand], saver.omap) for saver in block.outputs]
        dims = [shape[dim] for shape, along in maps if (dim := along[axis]) is not None]
        whole = extent * gcd(*dims)
        extents.append(tuple(n for n in range(1, whole + 1) if whole % n == 0 and whole // n % _COLUMNS == 0))
    least, most = (share * target.sms for share in _BLOCKS)
    for grid in product(*extents):
        if not least <= prod(grid) <= most:
            continue
        for longer in _LONGER:
            if block.forloop_range % longer == 0:
                x, y, z = grid
                yield replace(block, grid=(x, y, z), forloop_range=block.forloop_range // longer)


def _scaled_grids(block: BlockGraph, operands: Sequence[DTensor], factor: int, *, larger: bool) -> Iterator[BlockGraph]:
    """Yield the block graph with a factor distributed over its grid axes in every way."""
    shapes = [tile.shape for tile in block_types(block, tuple(operands))]
    unused = next((axis for axis, extent in enumerate(block.grid) if extent == 1), None)
    if not larger and unused is not None:
        for dim, extent in splittable_dims(block, shapes):
            if extent % factor == 0:
                yield split_dim(block, shapes, dim, unused, factor)
    free = [extent > 1 and can_merge_blocks(block, axis, shapes) for axis, extent in enumerate(block.grid)]
    shares = [1 << n for n in range(factor.bit_length())]
    for each in product(*(shares if may else [1] for may in free)):
        if prod(each) != factor:
            continue
        pairs = list(zip(block.grid, each, strict=True))
        if larger and any(extent % share for extent, share in pairs):
            continue
        x, y, z = (extent // share if larger else extent * share for extent, share in pairs)
        yield replace(block, grid=(x, y, z))


__all__ = ["retile", "retile_product"]
