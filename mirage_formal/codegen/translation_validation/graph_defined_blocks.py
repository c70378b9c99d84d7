"""A graph-defined kernel beside its Program: each block computes its tiles by the block graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.translation_validation.block_classes import BlockClasses, PerBlock
from mirage_formal.codegen.translation_validation.block_comparison import (
    FAMILY,
    ClassMember,
    ExpectedElements,
    KernelBlocks,
    KernelTensor,
    UndecidedError,
)
from mirage_formal.codegen.translation_validation.field_domain import FieldDomain
from mirage_formal.codegen.translation_validation.field_points import FieldArray, FieldPoints
from mirage_formal.codegen.translation_validation.program_evaluation import DeviceWrite
from mirage_formal.codegen.translation_validation.tile_addresses import (
    TileAddresses,
    band_condition,
    tile_addresses,
)
from mirage_formal.graph.graph import BlockGraph, BlockOp, GraphDefined, Input, KernelGraph, Op, operators
from mirage_formal.graph.ops import ROUNDINGS, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import block_types
from mirage_formal.semantics.interpreter import evaluate

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
            tile_addresses(operand.type.shape, iterator.imap, block.grid, operand.place)
            for operand, iterator in zip(operands, block.inputs, strict=True)
        ]
        self.outputs = [
            tile_addresses(result.type.shape, saver.omap, block.grid, result.place)
            for result, saver in zip(results, block.outputs, strict=True)
        ]
        if (most := max(tile.elements for tile in self._tiles())) > MOST_ELEMENTS:
            raise UndecidedError(f"expected at most {MOST_ELEMENTS} elements in a tile, got {most}")
        self.bands = [
            band_condition(tile.coordinates, operand.band) if operand.band is not None else ()
            for tile, operand in zip(self.inputs, operands, strict=True)
        ]
        super().__init__(program, operands, results)

    def _tiles(self) -> list[TileAddresses]:
        return [*self.inputs, *self.outputs]

    def separate_tiles(self, classes: BlockClasses) -> list[PerBlock]:
        """Implement ``KernelBlocks.separate_tiles``."""
        found = [classes.separate(tile.address, tile.extents).block for tile in self._tiles()]
        for tile in self._tiles():
            for condition in tile.inside:
                classes.fix(condition, tile.extents)
        for tile, conditions in zip(self.inputs, self.bands, strict=True):
            for condition in conditions:
                classes.fix(condition, tile.extents)
        return found

    def operators(self) -> Sequence[Op]:
        """Implement ``KernelBlocks.operators``."""
        return list(operators(KernelGraph((), (GraphDefined((), self.block),), ())))

    def expected_elements(
        self, points: FieldPoints, member: ClassMember, writes: Sequence[DeviceWrite]
    ) -> Iterator[ExpectedElements]:
        """Implement ``KernelBlocks.expected_elements``."""
        found = self._results(points, member)
        for j, (tile, values) in enumerate(zip(self.outputs, found, strict=True)):
            family = self.tile_families[len(self.inputs) + j][member.number]
            for write, _ in self.writes_to(j, member, writes):
                if self.families[id(write.access)][member.number] != family:
                    raise UndecidedError("blocks of a class write at other distances than their tiles have")
            stored = tile.memory_mask(member.block)
            yield ExpectedElements(tile.evaluate(tile.address, member.block)[stored], values[:, stored])

    def _results(self, points: FieldPoints, member: ClassMember) -> tuple[FieldArray, ...]:
        """Return the results of the µGraph for one block: its kernel on the block's part of each operand."""
        given: list[FieldArray] = []
        inputs: list[Input] = []
        for row, (tile, operand) in enumerate(zip(self.inputs, self.operands, strict=True)):
            stored = tile.memory_mask(member.block)
            if operand.band is not None:
                for condition in self.bands[row]:
                    stored &= tile.evaluate(condition, member.block) != 0
                values = points.fill(1.0, tile.shape)
            else:
                family = int(self.tile_families[row][member.number])
                address = np.where(stored, tile.evaluate(tile.address, member.block), 0) + family * FAMILY
                values = points.variables(f"value {operand.place.base}", address)
            given.append(np.where(stored, values, np.uint64(0)))
            inputs.append(Input(f"x{row}", DTensor(tile.shape, operand.type.dtype), row_major(tile.shape)))
        count = len(inputs)
        kernel = GraphDefined(tuple(range(count)), replace(self.block, grid=(1, 1, 1)))
        alone = KernelGraph(tuple(inputs), (kernel,), tuple(range(count, count + kernel.results)))
        return evaluate(alone, given, FieldDomain(points))


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
