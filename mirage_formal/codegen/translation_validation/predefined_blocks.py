"""A predefined kernel beside its Program: each element that a block writes is the operator's at its index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
from mirage_formal.graph.graph import Op
from mirage_formal.graph.memory.storage_location import INTEGERS, IndexArithmetic, Move
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.types import row_major

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: Most elements whose indices are computed for all blocks of a class at once.
_AT_ONCE: Final = 1 << 22
#: Most elements whose indices are computed for the blocks of a class one by one.
_MOST_INDICES: Final = 1 << 28


class PredefinedBlocks(KernelBlocks):
    """The blocks of a predefined operator's kernel, whose result is row-major.

    Args:
        op: The operator; a reshape for a copy.
        program, operands, results: As for ``KernelBlocks``.
    """

    def __init__(
        self, op: Op, program: Program, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]
    ) -> None:
        if any(tensor.place.path or tensor.place.extents for tensor in (*operands, *results)):
            raise UndecidedError("a predefined operator on a tensor without strides")
        self.op = op
        self.by_rows = SPECS[op.kind].family in (Family.REDUCTION, Family.NORM)
        super().__init__(program, operands, results)

    def separate_tiles(self, classes: BlockClasses) -> list[PerBlock]:
        """Implement ``KernelBlocks.separate_tiles``: its tiles follow from what its blocks write."""
        return []

    def operators(self) -> Sequence[Op]:
        """Implement ``KernelBlocks.operators``."""
        return [self.op]

    def expected_elements(
        self, points: FieldPoints, number: int, written: Sequence[Sequence[DeviceWrite]]
    ) -> list[Elements]:
        """Implement ``KernelBlocks.expected_elements``.

        Sound: the elements that another block of the class writes are those of this block at a distance. For each
        operand, the elements that they are computed from are found for every block by their indices, and must be those
        of this block at a distance that is the same for all of them. The safety claim has that blocks together write
        every element once.
        """
        blocks, none = self.members[number], np.zeros(0, np.int64)
        address = np.unique(np.concatenate([none, *(write.address for write in written[0])]))
        offsets = [self.access_offsets[id(write.access)][blocks] for write in written[0]]
        distances = [each - each[0] for each in offsets] or [np.zeros(len(blocks), np.int64)]
        if any((other != distances[0]).any() for other in distances):
            raise UndecidedError("a block writes two parts at other distances than another block of its class")
        if not address.size:
            return [(address, points.fill(0.0, (0,)))]
        return [(address, self._values(points, address, self._families(address, distances[0])))]

    def _families(self, address: Integers, distances: PerBlock) -> list[int]:
        """Return the family of the elements of each operand that the elements at these addresses are computed from.

        Args:
            address: The addresses that the block writes that stands for a class.
            distances: Of the addresses that each block of the class writes from these.
        """
        others = np.flatnonzero(~self._without_carry(address, distances))
        if others.size * address.size > _MOST_INDICES:
            raise UndecidedError(
                f"expected at most {_MOST_INDICES} indices of blocks that differ in their rows, got more"
            )
        step, found = max(1, _AT_ONCE // address.size), []
        for i in range(len(self.operands)):
            here, known = self._source(i, address)
            first = int(np.argmax(known))
            moved = (self._source(i, address[first] + distances)[0] - here[first]) * known.any()
            for start in range(0, len(others), step):
                these = others[start : start + step]
                there, exists = self._source(i, address + distances[these, None])
                if (exists != known).any():
                    raise UndecidedError("blocks of a class differ in the zeros of a pad")
                if (there - here != moved[these, None])[:, known].any():
                    raise UndecidedError("blocks of a class read at distances that are not the same for all elements")
            found.append(self.family(moved))
        return found

    def _without_carry(self, address: Integers, distances: PerBlock) -> Mask:
        """Return for which distances all elements' coordinates move by the digits of the distance.

        Sound: coordinates are the mixed-radix digits of an address, and no sum of digits reaches its extent. An
        operand's address is a sum of coordinates times strides, so it moves by the same sum for the distance. That does
        not hold for reshapes, nor for pads and concatenations, where bounds decide.
        """
        if self.op.kind in (OpKind.RESHAPE, OpKind.PAD, OpKind.CONCAT):
            return np.zeros(len(distances), bool)
        shape = self.results[0].type.shape
        found = distances >= 0
        for step, extent in zip(row_major(shape), shape, strict=True):
            found &= (address // step % extent).max() + distances // step % extent < extent
        return np.asarray(found)

    def _source(self, i: int, address: Integers) -> tuple[Integers, Mask]:
        """Return the addresses in operand i of the elements that those of the result are computed from.

        Of a row it is the first one. The operand has none where the mask does not hold: there the result is a pad's
        zero, or another operand's.
        """
        op, operand, shape = self.op, self.operands[i], self.results[0].type.shape
        given, dim, family = operand.type.shape, op.attrs.dim or 0, SPECS[op.kind].family
        at = [np.asarray(address // step % extent) for step, extent in zip(row_major(shape), shape, strict=True)]
        exists = np.ones(address.shape, bool)
        if op.kind is OpKind.CONCAT:
            at[dim] = at[dim] - (self.operands[0].type.shape[dim] if i else 0)
            exists = (at[dim] >= 0) & (at[dim] < given[dim])
        elif family is Family.MOVE:
            arrays: IndexArithmetic[Any] = INTEGERS
            at, conditions = Move(op.kind, op.attrs, given, shape).back(at, arrays)
            for condition in conditions:
                exists = exists & (condition != 0)
        else:
            first = [extent == 1 or (self.by_rows and d == dim) for d, extent in enumerate(given)]
            at = [c * 0 if zero else c for c, zero in zip(at, first, strict=True)]
        total = np.full(address.shape, operand.place.offset, np.int64)
        for c, step in zip(at, operand.place.strides, strict=True):
            total = total + c * step
        return total, exists

    def _values(self, points: FieldPoints, address: Integers, families: Sequence[int]) -> FieldArray:
        """Return the elements of the result at some addresses; those of a reduction or norm by whole rows."""
        dim, attrs, shape, extent, step = self.op.attrs.dim or 0, self.op.attrs, self.results[0].type.shape, 1, 1
        position = np.zeros_like(address)
        if self.by_rows:
            attrs, extent, step = replace(attrs, dim=1), self.operands[0].type.shape[dim], row_major(shape)[dim]
            position = address // step % shape[dim]
        rows, row_of = np.unique(address - position * step, return_inverse=True)
        given: list[FieldArray] = []
        for i, (operand, family) in enumerate(zip(self.operands, families, strict=True)):
            at, exists = self._source(i, rows)
            whole = self.by_rows and operand.type.shape[dim] > 1
            along = np.arange(extent) * operand.place.strides[dim] if whole else np.zeros(1, np.int64)
            values = operand.elements(points, at[:, None] + along, family)
            given.append(np.where(exists[:, None], values, np.uint64(0)))
        if SPECS[self.op.kind].family is Family.MOVE:  # of a concatenation, one operand has the element
            found = reduce(np.bitwise_or, given)
        else:
            (found,) = self.evaluate(points, Op(self.op.kind, tuple(range(len(given))), attrs), given)
        return found[:, row_of.reshape(-1), position if found.shape[2] > 1 else 0]


__all__ = ["PredefinedBlocks"]
