"""Scaling factors of one operand of a product that the other operand takes over, transposed in their last two dims.

A factor that is computed by operators is computed by a kernel of its own first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.codegen.cost import block_cost
from mirage_formal.codegen.post_search_rewrites.tile_resizing import is_independent_along
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType, Shape
from mirage_formal.rewrite.failure import MatchFailure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder, KernelGraphBuilder

#: Tile extents along the dim of a factor, for the kernel that computes it.
_TILES: Final = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class TransposedFactor:
    """A scaling factor with its last two dims transposed.

    Attributes:
        iterator: The input iterator from whose tile the factor is computed.
        ops: The operators that compute it; none if the factor is the tile.
        dim: The dim along which it has more than one element.
        partner: The dim that is exchanged with ``dim``.
        split: Dims of the device tensor that the iterator's blocks and iterations split.
    """

    iterator: int
    ops: tuple[Op, ...]
    dim: int
    partner: int
    split: tuple[int, ...]

    def follows(self, block: BlockGraph) -> InputIterator:
        """Return the iterator that reads the transposed factor where ``iterator`` reads its tile."""
        mine = block.inputs[self.iterator]

        def turned(dim: int | None, extent: int) -> int | None:
            if dim is None or extent == 1:
                return None
            return self.partner if dim == self.dim else dim

        x, y, z = (turned(dim, extent) for dim, extent in zip(mine.imap, block.grid, strict=True))
        return InputIterator((x, y, z), turned(mine.fmap, block.forloop_range))

    def compute(self, new: KernelGraphBuilder, tensor: int, like: BlockGraph, target: Target) -> int:
        """Add what computes the transposed factor to a graph, and return its number.

        Args:
            new: The builder of the graph.
            tensor: The number of the device tensor that the iterator reads.
            like: The block graph whose threads the new kernel gets.
            target: The GPU that estimates are for.

        Raises:
            MatchFailure: No kernel computes it.
        """
        shape = new.shape(tensor)
        if self.ops:
            (tensor,) = new.define(self._kernel(new.types[tensor], like, target), [tensor])
            shape = tuple(n if d in (self.dim, *self.split) else 1 for d, n in enumerate(shape))
        turned = list(shape)
        turned[self.dim], turned[self.partner] = shape[self.partner], shape[self.dim]
        return new.emit(OpKind.RESHAPE, tensor, attrs=Attrs(shape=tuple(turned)))

    def _kernel(self, tensor: DTensor, like: BlockGraph, target: Target) -> BlockGraph:
        """Return the kernel that computes the factor from the whole tensor, on the tiles with the best estimate."""
        found: list[tuple[float, int, BlockGraph]] = []
        extent = tensor.shape[self.dim]
        tiles = [tile for tile in _TILES if extent % tile == 0] if is_independent_along(self.ops, self.dim) else []
        for tile in tiles or [extent]:
            axes = [(d, tensor.shape[d]) for d in self.split if d != self.dim and tensor.shape[d] > 1]
            axes += [(self.dim, extent // tile)] if tile < extent else []
            if len(axes) > 3:
                raise MatchFailure("a factor lies along more dims than a grid has axes")
            # The x axis may be the longest by far.
            axes = [*sorted(axes, key=lambda axis: -axis[1]), *[(-1, 1)] * (3 - len(axes))]
            (_, x), (_, y), (_, z) = axes
            dims = [None if d < 0 else d for d, _ in axes]
            made = self._block_graph((x, y, z), (dims[0], dims[1], dims[2]), tensor, like)
            cost, _ = block_cost(made, [tensor], target)
            found.append((round(cost.us, 3), -min(made.blocks, target.sms), made))
        return min(found, key=lambda one: one[:2])[2]

    def _block_graph(self, grid: tuple[int, int, int], dims: DimMap, tensor: DTensor, like: BlockGraph) -> BlockGraph:
        new = BlockGraphBuilder(replace(like, grid=grid, forloop_range=1), [InputIterator(dims, None)], [tensor])
        values = [0]
        for op in self.ops:
            values += new.place(op, [values[n] for n in op.operands])
        total = new.emit(OpKind.ACCUM_SUM, new.cast(values[-1], DType.FLOAT32))
        return new.finish([OutputSaver(total, dims)])


def transpose_factor(
    block: BlockGraph, iterator: int, ops: Sequence[Op], shape: Shape, dim: int
) -> TransposedFactor | None:
    """Return a factor with its last dims exchanged; None if it cannot be computed from the whole tensor.

    Args:
        block: The block graph of the kernel that has it.
        iterator: The iterator from whose tile it is computed.
        ops: The operators that compute it; tensor 0 is the tile, and the last tensor is the factor.
        shape: The shape of the device tensor that the iterator reads.
        dim: The only dim, one of the last two, along which a tile of it has more than one element.
    """
    rank = len(shape)
    partner = rank - 1 if dim == rank - 2 else rank - 2
    mine = block.inputs[iterator]
    cut = {d for d, extent in zip(mine.imap, block.grid, strict=True) if d is not None and extent > 1}
    if mine.fmap is not None and block.forloop_range > 1:
        cut.add(mine.fmap)
    if partner in cut or not all(is_independent_along(ops, d) for d in cut) or (not ops and shape[partner] > 1):
        return None
    return TransposedFactor(iterator, tuple(ops), dim, partner, tuple(sorted(cut)))


__all__ = ["TransposedFactor", "transpose_factor"]
