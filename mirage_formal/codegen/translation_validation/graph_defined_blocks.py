"""A graph-defined kernel beside its Program: each block computes its tiles by the block graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.translation_validation.block_classes import BlockClasses, PerBlock
from mirage_formal.codegen.translation_validation.block_comparison import (
    Elements,
    KernelBlocks,
    KernelTensor,
    UndecidedError,
)
from mirage_formal.codegen.translation_validation.field_points import FieldArray, FieldPoints
from mirage_formal.codegen.translation_validation.program_evaluation import DeviceWrite
from mirage_formal.codegen.translation_validation.tile_addresses import tile_addresses
from mirage_formal.graph.graph import BlockGraph, BlockOp, GraphDefined, KernelGraph, Op, operators
from mirage_formal.graph.ops import ROUNDINGS, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import block_types

#: Most elements of a tile of one block, over all iterations of its loop.
MOST_ELEMENTS: Final = 1 << 23
_ROUNDING: Final[dict[DType | None, OpKind]] = {
    DType.FLOAT16: OpKind.ROUND_FLOAT16,
    DType.BFLOAT16: OpKind.ROUND_BFLOAT16,
}


class GraphDefinedBlocks(KernelBlocks):
    """The blocks of a graph-defined kernel.

    Args:
        block: Its block graph.
        program, operands, results: As for ``KernelBlocks``.
    """

    def __init__(
        self,
        block: BlockGraph,
        program: Program,
        operands: Sequence[KernelTensor],
        results: Sequence[KernelTensor],
    ) -> None:
        if tuple(block.grid) != tuple(program.grid):
            raise UndecidedError(f"expected the grid {block.grid}, got {program.grid}")
        self.block = _with_roundings(block, [operand.type for operand in operands])
        self.inputs = [
            tile_addresses(operand.type.shape, iterator.imap, block.grid, operand.place, operand.band)
            for operand, iterator in zip(operands, block.inputs, strict=True)
        ]
        self.outputs = [
            tile_addresses(result.type.shape, saver.omap, block.grid, result.place)
            for result, saver in zip(results, block.outputs, strict=True)
        ]
        if (most := max(tile.elements for tile in (*self.inputs, *self.outputs))) > MOST_ELEMENTS:
            raise UndecidedError(f"expected at most {MOST_ELEMENTS} elements in a tile, got {most}")
        super().__init__(program, operands, results)

    def separate_tiles(self, classes: BlockClasses) -> list[PerBlock]:
        """Implement ``KernelBlocks.separate_tiles``."""
        for tile in (*self.inputs, *self.outputs):
            for condition in tile.inside:
                classes.fix(condition, tile.extents)
        return [classes.separate(tile.address, tile.extents).block for tile in (*self.inputs, *self.outputs)]

    def operators(self) -> Sequence[Op]:
        """Implement ``KernelBlocks.operators``."""
        return list(operators(KernelGraph((), (GraphDefined((), self.block),), ())))

    def expected_elements(
        self, points: FieldPoints, number: int, written: Sequence[Sequence[DeviceWrite]]
    ) -> list[Elements]:
        """Implement ``KernelBlocks.expected_elements``: the kernel on the block's part of each operand."""
        block, families = self.block_of(number), [int(each[number]) for each in self.tile_families]
        for writes, family in zip(written, families[len(self.inputs) :], strict=True):
            if any(self.families[id(write.access)][number] != family for write in writes):
                raise UndecidedError("blocks of a class write at other distances than their tiles have")
        given: list[FieldArray] = []
        for tile, operand, family in zip(self.inputs, self.operands, families, strict=False):
            if operand.band is None:
                values = operand.elements(points, tile.evaluate(tile.address, block), family)
            else:
                values = points.fill(1.0, tile.shape)
            given.append(np.where(tile.memory_mask(block), values, np.uint64(0)))
        found = self.evaluate(
            points, GraphDefined(tuple(range(len(given))), replace(self.block, grid=(1, 1, 1))), given
        )
        stored = [tile.memory_mask(block) for tile in self.outputs]
        return [
            (tile.evaluate(tile.address, block)[here], values[:, here])
            for tile, here, values in zip(self.outputs, stored, found, strict=True)
        ]


def _with_roundings(block: BlockGraph, operands: Sequence[DTensor]) -> BlockGraph:
    """Return a block graph whose casts are roundings, if it has roundings to the same element type.

    A cast is the identity over the reals. Where roundings are functions like others, a kernel's casts are such too.
    """
    kinds = {op.kind for op in block.ops if isinstance(op, Op)} & ROUNDINGS
    if not kinds:
        return block
    types, first = block_types(block, tuple(operands)), len(block.inputs)
    ops: list[BlockOp] = []
    for op in block.ops:
        to = _ROUNDING.get(op.attrs.dtype) if isinstance(op, Op) and op.kind is OpKind.CAST else None
        narrow = (
            to in kinds and types[op.operands[0]].dtype.floating and types[op.operands[0]].dtype != types[first].dtype
        )
        ops.append(Op(to, op.operands) if to is not None and narrow else op)
        first += op.results
    return replace(block, ops=tuple(ops))


__all__ = ["GraphDefinedBlocks"]
