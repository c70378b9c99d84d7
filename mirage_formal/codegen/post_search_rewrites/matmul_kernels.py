"""Generated kernels for predefined matrix products, on the tiles with the best estimate.

A library picks the kernel of a product by its extents. It is far from the memory bandwidth where these are rare: rows
whose length is no multiple of 16 bytes, or a long sum with few results. A generated kernel handles them as well as
others, and its loop may be split over more blocks besides (``codegen.post_search_rewrites.split_k``).

A dot product (a row times a column) does not suit tensor cores, which compute 64 results or more at a time. Its column
is read as a row, and elementwise products are summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from mirage_formal.codegen.cost import CANNOT_LAUNCH_US, block_cost
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder

#: Extents of a tile along rows, columns and the inner dim, beside those of the whole product.
_ROWS: Final = (16, 32, 64, 128)
_COLUMNS: Final = (16, 32, 64, 128, 256)
_INNER: Final = tuple(1 << i for i in range(5, 13))
#: Bytes that an iteration loads at least, if there are as many, and at most.
_LEAST_BYTES: Final = 4 << 10
_MOST_BYTES: Final = 64 << 10
#: Results that a block's registers hold.
_MOST_RESULTS: Final = 1 << 15
_THREADS: Final = 128


def tile_product(graph: KernelGraph, parts: int, target: Target) -> KernelGraph | None:
    """Return a graph that computes a predefined product by a generated kernel, with the best tiles by estimate.

    Views may come before the kernel: operands get a batch of one where the loop is to be split. None if the graph has
    another operator, tensor cores do not compute this product, or no tiles divide it.

    Sound: nothing rests on this rewriting; whoever uses its result has it proved equal to the graph.

    Args:
        graph: A graph whose only operator is a product at kernel level.
        parts: The number of blocks over which the loop will be split (split-K); the tiles are the best ones for it.
        target: The GPU that estimates are for.
    """
    (op,) = graph.ops
    if not isinstance(op, Op) or op.kind is not OpKind.MATMUL:
        return None
    new = KernelGraphBuilder(graph.inputs, share=())
    left, right = op.operands
    if parts > 1 and len(new.shape(left)) == len(new.shape(right)) == 2 and new.shape(left)[0] > 1:
        # Parts that lie along a dim of their own can be added up several at a time.
        left, right = (new.emit(OpKind.RESHAPE, n, attrs=Attrs(shape=(1, *new.shape(n)))) for n in (left, right))
    a, b = new.types[left], new.types[right]
    if a.dtype is not b.dtype or a.shape[:-2] != b.shape[:-2] or sum(extent > 1 for extent in a.shape[:-2]) > 1:
        return None
    dot = a.shape[-2] == b.shape[-1] == 1
    if dot:
        right, b = new.emit(OpKind.RESHAPE, right, attrs=Attrs(shape=a.shape)), a
    found: list[tuple[float, int, BlockGraph]] = []
    for block in _dot_block_graphs(a, parts) if dot else _product_block_graphs(a, b, parts):
        dealt = _partial_sum_kernel(block, parts, len(a.shape))
        cost, _ = block_cost(dealt, (a, b), target)
        if cost.us < CANNOT_LAUNCH_US:
            found.append((round(cost.us, 3), -min(dealt.blocks, target.sms), block))
    if not found:
        return None
    best = min(found, key=lambda one: one[:2])[2]
    return new.finish(new.define(best, (left, right)))


def _product_block_graphs(a: DTensor, b: DTensor, parts: int) -> Iterator[BlockGraph]:
    """Yield block graphs of the product for all tile extents tried; ``parts`` divides the number of iterations."""
    rank = len(a.shape)
    rows, inner, cols = *a.shape[-2:], b.shape[-1]
    batches = prod(a.shape[:-2])
    batch = next((d for d, extent in enumerate(a.shape[:-2]) if extent > 1), None)
    for high in _tile_extents(rows, _ROWS):
        for wide in _tile_extents(cols, _COLUMNS):
            for deep in _tile_extents(inner, _INNER):
                loop, loaded = inner // deep, (high + wide) * deep * a.dtype.bytes
                short = loaded < _LEAST_BYTES and deep < min(inner, _INNER[-1])
                if loop % parts or short or loaded > _MOST_BYTES or high * wide > _MOST_RESULTS:
                    continue
                if parts > 1 and batches > 1 and rows > high and cols > wide:
                    continue  # no grid axis is left for the parts
                # Axes without extent come last, for the parts; blocks of one tile of columns follow one another.
                axes: list[tuple[int, int | None, int | None, int | None]] = [
                    (rows // high, rank - 2, None, rank - 2),
                    (cols // wide, None, rank - 1, rank - 1),
                    (batches, batch, batch, batch),
                ]
                axes.sort(key=lambda axis: axis[0] == 1)
                x, y, z = (axis[0] for axis in axes)
                yield BlockGraph(
                    grid=(x, y, z),
                    block=(_THREADS, 1, 1),
                    forloop_range=loop,
                    reduction_dimx=1,
                    inputs=(
                        InputIterator(_dim_map(axes, 1), rank - 1),
                        InputIterator(_dim_map(axes, 2), rank - 2),
                    ),
                    ops=(Op(OpKind.MATMUL, (0, 1)), Op(OpKind.ACCUM_SUM, (2,))),
                    outputs=(OutputSaver(3, _dim_map(axes, 3)),),
                )


def _dot_block_graphs(a: DTensor, parts: int) -> Iterator[BlockGraph]:
    """Yield block graphs of dot products along the last dim, where ``parts`` divides the number of iterations.

    The two operands have equal shapes.
    """
    rank, inner, batches = len(a.shape), a.shape[-1], prod(a.shape[:-2])
    batch = next((d for d, extent in enumerate(a.shape[:-2]) if extent > 1), None)
    for deep in _tile_extents(inner, _INNER):
        loop = inner // deep
        if loop % parts:
            continue
        read = InputIterator((batch, None, None), rank - 1)
        yield BlockGraph(
            grid=(batches, 1, 1),
            block=(_THREADS, 1, 1),
            forloop_range=loop,
            reduction_dimx=1,
            inputs=(read, read),
            ops=(Op(OpKind.MUL, (0, 1)), Op(OpKind.ACCUM_SUM_LAST, (2,))),
            outputs=(OutputSaver(3, (batch, None, None)),),
        )


def _dim_map(axes: Sequence[tuple[int, int | None, int | None, int | None]], tensor: int) -> DimMap:
    """Return the imap or omap of a tensor: the dim that each grid axis splits, None where the axis has extent 1."""
    x, y, z = (axis[tensor] if axis[0] > 1 else None for axis in axes)
    return x, y, z


def _tile_extents(whole: int, tried: Sequence[int]) -> Iterator[int]:
    """Yield tile extents along a dim: those tried that divide it, and the whole dim if it is not larger than these."""
    found = [n for n in tried if n < whole and whole % n == 0]
    yield from found
    if whole <= tried[-1]:
        yield whole


def _partial_sum_kernel(block: BlockGraph, parts: int, rank: int) -> BlockGraph:
    """Return a block graph that stands for the first split-K kernel in estimates: it writes float32 partial sums."""
    if parts == 1:
        return block
    (a, b), (saver,) = block.inputs, block.outputs
    x, y, _ = block.grid
    (ax, ay, _), (bx, by, _), (ox, oy, _) = a.imap, b.imap, saver.omap
    return BlockGraph(
        grid=(x, y, parts),
        block=block.block,
        forloop_range=block.forloop_range // parts,
        reduction_dimx=block.reduction_dimx,
        inputs=(InputIterator((ax, ay, a.fmap), a.fmap), InputIterator((bx, by, b.fmap), b.fmap)),
        ops=(*block.ops, Op(OpKind.CAST, (3,), Attrs(dtype=DType.FLOAT32))),
        outputs=(OutputSaver(4, (ox, oy, rank - 2)),),
    )


__all__ = ["tile_product"]
