"""A predefined kernel beside its Program: each element that a block writes is the operator's at its index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.memory.storage_location import INTEGERS, IndexArithmetic, Move
from mirage_formal.graph.ops import SPECS, Attrs, Family, OpKind
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.semantics.interpreter import evaluate

Integers = NDArray[np.int64]
#: Most elements whose indices are computed for all blocks of a class at once.
_AT_ONCE: Final = 1 << 22
#: Most elements whose indices are computed for the blocks of a class one by one.
_MOST_INDICES: Final = 1 << 28
#: Coordinates of elements of an operand, and where they exist: elsewhere the element is a pad's zero.
_Elements = tuple[list[Integers], NDArray[np.bool_] | None]


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
        super().__init__(program, operands, results)

    def separate_tiles(self, classes: BlockClasses) -> list[PerBlock]:
        """Implement ``KernelBlocks.separate_tiles``: its tiles follow from what its blocks write."""
        return []

    def operators(self) -> Sequence[Op]:
        """Implement ``KernelBlocks.operators``."""
        return [self.op]

    def expected_elements(
        self, points: FieldPoints, member: ClassMember, writes: Sequence[DeviceWrite]
    ) -> Iterator[ExpectedElements]:
        """Implement ``KernelBlocks.expected_elements``.

        Sound: the elements that another block of the class writes are those of this block at a distance. For each
        operand, the elements that they are computed from are found for every block by their indices, and must be those
        of this block at a distance that is the same for all of them. The safety claim has that blocks together write
        every element once.
        """
        mine = self.writes_to(0, member, writes)
        address = np.unique(np.concatenate([write.address[here] for write, here in mine] or [np.zeros(0, np.int64)]))
        distances = self._distances(member, [write for write, _ in mine])
        families = self._families(member, address, distances)
        yield ExpectedElements(address, self._values(points, address, families))

    def _distances(self, member: ClassMember, mine: Sequence[DeviceWrite]) -> PerBlock:
        """Return, for each block of the class, the offset of its write addresses from those of the evaluated block.

        Raises:
            UndecidedError: Two writes of a block have different offsets.
        """
        first, members = self.representatives[member.number], self.members[member.number]
        found = [self.access_offsets[id(write.access)] for write in mine]
        distances = [offsets[members] - offsets[first] for offsets in found]
        if any((other != distances[0]).any() for other in distances):
            raise UndecidedError("a block writes two parts at other distances than another block of its class")
        return distances[0] if distances else np.zeros(len(members), np.int64)

    def _families(self, member: ClassMember, address: Integers, distances: PerBlock) -> list[int]:
        """Return the family of the elements of each operand that the elements at these addresses are computed from."""
        found = [np.zeros(len(distances), np.int64) for _ in self.operands]
        near = self._without_carry(address, distances)
        zero = self._sources(np.zeros(1, np.int64))
        for moved, (end, _), (start, _) in zip(found, self._sources(distances[near]), zero, strict=True):
            moved[near] = end - start
        here, others = self._sources(address), np.flatnonzero(~near)
        step = max(1, _AT_ONCE // max(1, address.size))
        if others.size * address.size > _MOST_INDICES:
            raise UndecidedError(
                f"expected at most {_MOST_INDICES} indices of blocks that differ in their rows, got more"
            )
        for first in range(0, len(others), step):
            these = others[first : first + step]
            there = self._sources(address[None, :] + distances[these, None])
            for moved, (ours, known), (theirs, exists) in zip(found, here, there, strict=True):
                if known is not None and exists is not None and (known != exists).any():
                    raise UndecidedError("blocks of a class differ in the zeros of a pad")
                used = np.ones(address.shape, bool) if known is None else known
                apart = (theirs - ours)[:, used]
                if apart.size and (apart != apart[:, :1]).any():
                    raise UndecidedError("blocks of a class read at distances that are not the same for all elements")
                moved[these] = apart[:, 0] if apart.size else 0
        return [self.family(member.number, moved) for moved in found]

    def _without_carry(self, address: Integers, distances: PerBlock) -> NDArray[np.bool_]:
        """Return for which distances all elements' coordinates move by the digits of the distance.

        Sound: coordinates are the mixed-radix digits of an address, and no sum of digits reaches its extent. An
        operand's address is a sum of coordinates times strides, so it moves by the same sum for the distance. That does
        not hold for reshapes, nor for pads and concatenations, where bounds decide.
        """
        if self.op.kind in (OpKind.RESHAPE, OpKind.PAD, OpKind.CONCAT) or not address.size:
            return np.zeros(len(distances), bool)
        shape = self.results[0].type.shape
        found = distances >= 0
        for step, extent in zip(row_major(shape), shape, strict=True):
            found &= (address // step % extent).max() + distances // step % extent < extent
        return np.asarray(found)

    def _sources(self, address: Integers) -> list[tuple[Integers, NDArray[np.bool_] | None]]:
        """Return for each operand the addresses of the elements that those of the result are computed from."""
        shape = self.results[0].type.shape
        at = [np.asarray(address // step % extent) for step, extent in zip(row_major(shape), shape, strict=True)]
        found = []
        for i, operand in enumerate(self.operands):
            coordinates, exists = self._operand_elements(i, at)
            total = np.full(address.shape, operand.place.offset, np.int64)
            for c, step in zip(coordinates, operand.place.strides, strict=True):
                total = total + c * step
            found.append((total, exists))
        return found

    def _operand_elements(self, i: int, at: list[Integers]) -> _Elements:
        """Return the coordinates in an operand of the element at a result's coordinates; of a row, its first one."""
        op, shape, attrs = self.op, self.operands[i].type.shape, self.op.attrs
        family = SPECS[op.kind].family
        if family in (Family.REDUCTION, Family.NORM):
            return [np.zeros_like(c) if d == attrs.dim or shape[d] == 1 else c for d, c in enumerate(at)], None
        if family is not Family.MOVE:
            return [np.zeros_like(c) if extent == 1 else c for c, extent in zip(at, shape, strict=True)], None
        return _moved_element(op, (i, at), [tensor.type.shape for tensor in (*self.operands, *self.results)])

    # --- values

    def _values(self, points: FieldPoints, address: Integers, families: Sequence[int]) -> FieldArray:
        if SPECS[self.op.kind].family in (Family.REDUCTION, Family.NORM):
            return self._row_values(points, address, families)
        given: list[FieldArray] = []
        masks: list[NDArray[np.bool_]] = []
        for (at, exists), operand, family in zip(self._sources(address), self.operands, families, strict=True):
            there = np.ones(at.shape, bool) if exists is None else exists
            values = points.variables(f"value {operand.place.base}", np.where(there, at, 0) + family * FAMILY)
            given.append(np.where(there, values, np.uint64(0)))
            masks.append(there)
        if SPECS[self.op.kind].family is Family.MOVE:  # of a concatenation, one operand has the element
            return given[0] if len(given) == 1 else np.where(masks[0], given[0], given[1])
        return self._evaluate(points, self.op, given, (address.size,))

    def _row_values(self, points: FieldPoints, address: Integers, families: Sequence[int]) -> FieldArray:
        """Return the elements of a reduction or norm, which are computed from whole rows along its dim."""
        dim, shape = self.op.attrs.dim or 0, self.results[0].type.shape
        extent, step = self.operands[0].type.shape[dim], row_major(shape)[dim]
        position = address // step % shape[dim]
        rows, row_of = np.unique(address - position * step, return_inverse=True)
        given: list[FieldArray] = []
        for (first, _), operand, family in zip(self._sources(rows), self.operands, families, strict=True):
            long = operand.type.shape[dim] > 1
            at = first[:, None] + np.arange(extent if long else 1) * (operand.place.strides[dim] if long else 0)
            values = points.variables(f"value {operand.place.base}", at + family * FAMILY)
            given.append(values)
        one = Op(self.op.kind, tuple(range(len(given))), Attrs(dim=1, eps=self.op.attrs.eps))
        found = self._evaluate(points, one, given, (rows.size, extent))
        return found[:, row_of.reshape(-1), position if found.shape[2] > 1 else 0]

    def _evaluate(self, points: FieldPoints, op: Op, given: Sequence[FieldArray], shape: Shape) -> FieldArray:
        shapes = [shape if len(shape) == 1 else (shape[0], values.shape[2]) for values in given]
        inputs = [
            Input(f"x{i}", DTensor(each, operand.type.dtype), row_major(each))
            for i, (each, operand) in enumerate(zip(shapes, self.operands, strict=True))
        ]
        count = len(inputs)
        alone = KernelGraph(tuple(inputs), (Op(op.kind, tuple(range(count)), op.attrs),), (count,))
        (found,) = evaluate(alone, given, FieldDomain(points))
        return found


def _moved_element(op: Op, element: tuple[int, list[Integers]], shapes: Sequence[Shape]) -> _Elements:
    """Return the coordinates in an operand of a moved element, and where the operand has it.

    Args:
        op: The operator.
        element: The operand's position, and the coordinates in the result.
        shapes: The shapes of all operands and of the result.
    """
    i, at = element
    if op.kind is OpKind.CONCAT:
        dim, found = op.attrs.dim or 0, list(at)
        found[dim] = at[dim] - (shapes[0][dim] if i else 0)
        return found, (found[dim] >= 0) & (found[dim] < shapes[i][dim])
    arrays: IndexArithmetic[Any] = INTEGERS
    coordinates, conditions = Move(op.kind, op.attrs, shapes[0], shapes[-1]).back(at, arrays)
    return coordinates, conditions[0] != 0 if conditions else None


__all__ = ["PredefinedBlocks"]
