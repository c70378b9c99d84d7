"""A Program beside its operator: classes of its blocks, families of its accesses, and the comparison of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import (
    Apply,
    Combine,
    For,
    If,
    IntExpr,
    Program,
    ShuffleReduce,
    Stmt,
)
from mirage_formal.codegen.translation_validation.block_classes import BlockClasses, PerBlock
from mirage_formal.codegen.translation_validation.field_domain import FieldDomain
from mirage_formal.codegen.translation_validation.field_points import (
    EXPONENTIAL,
    MASK,
    NUMBER,
    POINTS,
    POISON,
    FieldArray,
    FieldPoints,
    UndefinedPointError,
)
from mirage_formal.codegen.translation_validation.program_evaluation import (
    ADDRESS,
    DeviceAccess,
    DeviceWrite,
    EvaluationFault,
    evaluate_program,
    parts,
)
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import ROUNDINGS, OpKind
from mirage_formal.graph.storage_views import StorageLocation
from mirage_formal.graph.types import Band, DTensor, DType, row_major
from mirage_formal.graph.verdict import NoTruthValue
from mirage_formal.semantics.interpreter import evaluate

#: Most blocks of a grid.
MOST_BLOCKS: Final = 1 << 22
#: Most statements that are evaluated, each once for a class of blocks.
MOST_STATEMENTS: Final = 1 << 18
#: Classes that are evaluated side by side, at most, and bytes of their shared memory.
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 1 << 16
#: Addresses of one family of reads.
_FAMILY: Final = 1 << 40
#: Operators of a µGraph or functions of a Program, by their names, that need words of maxima or residues of exponents.
_WITH_MAXIMA: Final = frozenset(
    {OpKind.MAX, OpKind.MAXIMUM, OpKind.RUNNING_MAX, OpKind.ACCUM_MAX, OpKind.ACCUM_RESCALED_SUM, OpKind.SOFTMAX}
)
_WITH_EXPONENTS: Final = EXPONENTIAL | {OpKind.SOFTMAX, OpKind.RUNNING_MAX, OpKind.ACCUM_RESCALED_SUM}

#: Elements of one result: their addresses and values.
Elements = tuple[NDArray[np.int64], FieldArray]


@dataclass(frozen=True, slots=True)
class Deviates(NoTruthValue):
    """Verdict: an element differs from the µGraph's at a random point.

    Attributes:
        output: Position of the result.
        block: The block, (x, y, z).
        address: The address of the element in the result's memory.
        thread: The thread that writes it; None if none does.
        reason: What is wrong, for people.
    """

    output: int
    block: tuple[int, int, int]
    address: int
    thread: int | None
    reason: str


class UndecidedError(Exception):
    """Error: the claim cannot be decided; says why."""


class DeviationError(Exception):
    """Error: an element deviates.

    Attributes:
        found: The element.
    """

    def __init__(self, found: Deviates) -> None:
        super().__init__(found.reason)
        self.found = found


@dataclass(frozen=True, slots=True)
class KernelTensor:
    """An operand or result of a kernel.

    Attributes:
        type: Its type.
        place: Its storage location.
        band: Its band, if it is a band mask that the kernel computes: it is no parameter.
    """

    type: DTensor
    place: StorageLocation
    band: Band | None = None

    def elements(
        self, points: FieldPoints, addresses: NDArray[np.int64], family: NDArray[np.int64] | int
    ) -> FieldArray:
        """Return the elements at some addresses, as accesses of a family see them: each is a variable."""
        kind = MASK if self.type.dtype is DType.BOOL else NUMBER
        return points.variables(f"value {self.place.base}", addresses + family * _FAMILY, kind)


class KernelBlocks(ABC):
    """A Program beside its operator.

    Args:
        program: The Program.
        operands, results: The tensors of its operator; those without a band are its parameters, in this order.
    """

    def __init__(self, program: Program, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]) -> None:
        self.program, self.operands, self.results = program, operands, results
        stored = [tensor for tensor in (*operands, *results) if tensor.band is None]
        if len(program.params) != len(stored):
            raise UndecidedError(f"expected {len(stored)} parameters, got {len(program.params)}")
        self.read = dict(zip((param.name for param in program.params), stored[: -len(results)], strict=False))
        self.written = [param.name for param in program.params[-len(results) :]]
        for param, tensor in zip(program.params, stored, strict=True):
            wanted = tensor.type.dtype.value, tensor.place.span(tensor.type.shape), param.name in self.written
            if (got := (param.dtype.value, param.elements, param.written)) != wanted:
                raise UndecidedError(f"{param.name}: expected type, elements and whether written {wanted}, got {got}")
        self._separate()

    # --- what kinds of operators differ in

    @abstractmethod
    def separate_tiles(self, classes: BlockClasses) -> list[PerBlock]:
        """Fix the conditions of tiles, and return the offsets of their addresses, inputs first, if they are known."""

    @abstractmethod
    def operators(self) -> Sequence[Op]:
        """Return the operators of the kernel."""

    @abstractmethod
    def expected_elements(
        self, points: FieldPoints, number: int, written: Sequence[Sequence[DeviceWrite]]
    ) -> list[Elements]:
        """Return for each result the elements that the block that stands for a class must write.

        Args:
            points: The arithmetic.
            number: The number of the class.
            written: For each result, what the block writes.
        """

    # --- classes of blocks

    def _separate(self) -> None:
        """Find the classes of blocks, and the families of accesses."""
        if (blocks := prod(self.program.grid)) > MOST_BLOCKS:
            raise UndecidedError(f"expected at most {MOST_BLOCKS} blocks, got {blocks}")
        classes = BlockClasses(self.program.grid)
        tile_offsets = self.separate_tiles(classes)
        self.access_offsets: dict[int, PerBlock] = {}
        self._separate_body(self.program.body, {"tid": self.program.threads}, classes)
        self._separate_body(self.program.producer, {}, classes)
        self.members = classes.classes()
        statements = len(self.members) * _count_executed((*self.program.body, *self.program.producer))
        if statements > MOST_STATEMENTS:
            what = f"{len(self.members)} classes of blocks execute {statements} statements"
            raise UndecidedError(f"expected at most {MOST_STATEMENTS}, got more: {what}")
        self._coordinates = classes.coordinates
        self._known: dict[bytes, int] = {}
        self.families = {key: self._families_of(offsets) for key, offsets in self.access_offsets.items()}
        self.tile_families = [self._families_of(offsets) for offsets in tile_offsets]

    def _separate_body(self, body: Sequence[Stmt], extents: dict[str, int], classes: BlockClasses) -> None:
        """Fix all integer expressions but the addresses in device memory, and keep the offsets of these."""
        for s in body:
            if isinstance(s, For | If):
                inner = {**extents, s.var: s.extent} if isinstance(s, For) else extents
                self._separate_body(s.body, inner, classes)
                self._separate_fields(s, extents, classes)
            else:
                for part in parts(s):
                    self._separate_fields(part, extents, classes)

    def _separate_fields(self, part: Any, extents: dict[str, int], classes: BlockClasses) -> None:
        """Separate the expressions in the fields of a statement or value."""
        for field in fields(part):
            e = getattr(part, field.name)
            if field.name == ADDRESS.get(type(part)):
                offsets = classes.separate(e, extents).block
                if not np.array_equal(self.access_offsets.setdefault(id(part), offsets), offsets):
                    raise UndecidedError("one access stands in two loops of other extents")
            elif isinstance(e, IntExpr):
                classes.fix(e, extents)

    def _families_of(self, offsets: PerBlock) -> NDArray[np.int64]:
        """Return the family of an access in each class, from its offset in each block."""
        return np.array([self.family(offsets[x] - offsets[x[0]]) for x in self.members], np.int64)

    def family(self, distances: PerBlock) -> int:
        """Return the family of accesses that move by these distances, for each block of a class."""
        return self._known.setdefault(distances.tobytes(), len(self._known))

    def evaluate(self, points: FieldPoints, op: KernelOp, given: Sequence[FieldArray]) -> tuple[FieldArray, ...]:
        """Return the results of an operator on parts of all operands."""
        tensors = [DTensor(x.shape[1:], operand.type.dtype) for x, operand in zip(given, self.operands, strict=True)]
        inputs = tuple(Input(f"x{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(tensors))
        outputs = tuple(range(len(inputs), len(inputs) + op.results))
        return evaluate(KernelGraph(inputs, (op,), outputs), given, FieldDomain(points))

    def block_of(self, number: int) -> dict[str, int]:
        """Return the coordinates of the block that stands for a class."""
        return {name: int(at[self.members[number][0]]) for name, at in self._coordinates.items()}

    # --- comparison at one draw

    def compare(self, random: np.random.Generator) -> int:
        """Compare all classes at points drawn anew, and return the number of elements.

        Sound: a Program may divide by a value, or take its root or logarithm, only where the µGraph does the same of an
        equal value; elsewhere the result is poison. So each stored element is defined for all inputs for which the
        µGraph is, not only where its residues are.

        Args:
            random: The source of the points.

        Raises:
            UndefinedPointError: A stored element is poison.
        """
        names: set[str] = {op.kind for op in self.operators()}
        rounds = ROUNDINGS & names
        names |= {part.fn for part in parts(self.program.body) if isinstance(part, Apply | Combine | ShuffleReduce)}
        points = FieldPoints(random, bool(names & _WITH_EXPONENTS), bool(names & _WITH_MAXIMA), rounds)
        count = max(1, min(_TOGETHER, _TOGETHER_BYTES // max(1, self.program.shared_bytes)))
        numbers = range(len(self.members))
        return sum(self._compare_classes(points, numbers[start : start + count]) for start in numbers[::count])

    def _compare_classes(self, points: FieldPoints, numbers: range) -> int:
        """Compare some classes side by side, and return the number of elements."""

        def read(access: DeviceAccess, addresses: NDArray[np.int64]) -> FieldArray:
            if access.param not in self.read:
                raise EvaluationFault(f"{access.param} is read and written")
            family = self.families[id(access)][numbers.start : numbers.stop].reshape(-1, 1, 1)
            return self.read[access.param].elements(points, addresses, family)

        def written() -> list[list[list[DeviceWrite]]]:
            found = evaluate_program(self.program, points, blocks, read)
            results = [[one for one in found if one.access.param == name] for name in self.written]
            return [[[one.of_block(row) for one in mine] for mine in results] for row in range(len(numbers))]

        first = [self.members[number][0] for number in numbers]
        blocks = {name: at[first] for name, at in self._coordinates.items()}
        got = written()
        divided = points.take_partial()
        wanted = [self.expected_elements(points, *each) for each in zip(numbers, got, strict=True)]
        allowed = points.take_partial()
        self._compare_outputs(numbers, wanted, got)
        if np.setdiff1d(divided, allowed).size:
            points.allowed = allowed
            self._compare_outputs(numbers, wanted, written())
            points.allowed = None
        return sum(address.size for results in wanted for address, _ in results)

    def _compare_outputs(
        self, numbers: range, wanted: Sequence[Sequence[Elements]], got: Sequence[Sequence[Sequence[DeviceWrite]]]
    ) -> None:
        """Compare what blocks write with what they must write."""
        for number, results, written in zip(numbers, wanted, got, strict=True):
            for j, (one, mine) in enumerate(zip(results, written, strict=True)):
                self._compare_output(j, number, one, mine)

    def _compare_output(self, j: int, number: int, wanted: Elements, written: Sequence[DeviceWrite]) -> None:
        none = np.zeros(0, np.int64)
        address = np.concatenate([none, *(one.address for one in written)])
        thread = np.concatenate([none, *(one.thread for one in written)])
        order, sorted_by = np.argsort(address, kind="stable"), np.argsort(wanted[0], kind="stable")
        address, thread, expected = address[order], thread[order], wanted[0][sorted_by]

        def expect_none(at: NDArray[np.int64], what: str) -> None:
            if at.size:
                by = thread[address == at[0]].tolist()
                x, y, z = self.block_of(number).values()
                raise DeviationError(Deviates(j, (x, y, z), int(at[0]), by[0] if by else None, what))

        expect_none(address[1:][address[1:] == address[:-1]], "an element is written twice")
        missing = np.setdiff1d(expected, address)
        expect_none(missing, f"{missing.size} elements are not written")
        expect_none(np.setdiff1d(address, expected), "an element is written that is not in the block's tile")
        if not address.size:
            return
        got, values = np.concatenate([one.values for one in written], axis=1)[:, order], wanted[1][:, sorted_by]
        kinds = np.maximum(got[-1], values[-1])
        wrong = (got[:POINTS] != values[:POINTS]).any(axis=0) & (kinds != POISON)
        expect_none(address[wrong], f"{int(wrong.sum())} of {wrong.size} elements differ from the µGraph's")
        if (kinds > NUMBER).any():
            raise UndefinedPointError("a stored element depends on a divisor that is 0 or on an infinity")


def _count_executed(body: Sequence[Stmt]) -> int:
    """Return the number of statements that a block executes, those of all threads counted as one."""
    return sum(
        (s.extent if isinstance(s, For) else 1) * _count_executed(s.body) if isinstance(s, For | If) else 1
        for s in body
    )


__all__ = ["Deviates", "DeviationError", "Elements", "KernelBlocks", "KernelTensor", "UndecidedError"]
