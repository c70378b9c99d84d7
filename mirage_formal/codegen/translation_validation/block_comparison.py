"""A Program beside its operator: classes of its blocks, families of its accesses, and the comparison of results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import (
    Apply,
    BinaryFn,
    Combine,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    If,
    IntExpr,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Reg,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
    WarpgroupMma,
    all_statements,
)
from mirage_formal.codegen.translation_validation.block_classes import BlockClasses, PerBlock
from mirage_formal.codegen.translation_validation.field_points import (
    EXPONENTIAL,
    Components,
    FieldArray,
    FieldPoints,
    UndefinedPointError,
)
from mirage_formal.codegen.translation_validation.program_evaluation import (
    DeviceAccess,
    DeviceWrite,
    EvaluationFault,
    evaluate_program,
    nested_values,
    values_of,
)
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import ROUNDINGS, OpKind
from mirage_formal.graph.storage_views import StorageLocation
from mirage_formal.graph.types import Band, DTensor
from mirage_formal.graph.verdict import NoTruthValue

#: Most blocks of a grid.
MOST_BLOCKS: Final = 1 << 22
#: Most statements that are evaluated, each once for a class of blocks.
MOST_STATEMENTS: Final = 1 << 18
#: Classes that are evaluated side by side, at most, and bytes of their shared memory.
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 1 << 16
#: Addresses of one family of reads.
FAMILY: Final = 1 << 40
_WITH_MAXIMA: Final = frozenset(
    {OpKind.MAX, OpKind.MAXIMUM, OpKind.RUNNING_MAX, OpKind.ACCUM_MAX, OpKind.ACCUM_RESCALED_SUM, OpKind.SOFTMAX}
)
_WITH_EXPONENTS: Final = EXPONENTIAL | {OpKind.SOFTMAX, OpKind.RUNNING_MAX, OpKind.ACCUM_RESCALED_SUM}


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


@dataclass(frozen=True, slots=True)
class ClassMember:
    """One block that stands for its class.

    Attributes:
        number: The number of the class.
        row: Its position among the blocks that are evaluated together.
        block: Its coordinates, by name.
    """

    number: int
    row: int
    block: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExpectedElements:
    """Elements of one result that a block must write: addresses and values."""

    address: NDArray[np.int64]
    values: FieldArray


class KernelBlocks(ABC):
    """A Program beside its operator.

    Args:
        program: The Program.
        operands, results: The tensors of its operator; those without a band are its parameters, in this order.
    """

    def __init__(self, program: Program, operands: Sequence[KernelTensor], results: Sequence[KernelTensor]) -> None:
        self.program, self.operands, self.results = program, operands, results
        names = [param.name for param in program.params]
        stored = [tensor for tensor in (*operands, *results) if tensor.band is None]
        if len(names) != len(stored):
            raise UndecidedError(f"expected {len(stored)} parameters, got {len(names)}")
        for i, (param, tensor) in enumerate(zip(program.params, stored, strict=True)):
            if param.dtype is not tensor.type.dtype:
                raise UndecidedError(f"{param.name}: expected {tensor.type.dtype.value}, got {param.dtype.value}")
            if param.elements != (span := tensor.place.span(tensor.type.shape)):
                raise UndecidedError(f"{param.name}: expected {span} elements, got {param.elements}")
            if param.written is not (i >= len(stored) - len(results)):
                raise UndecidedError(f"{param.name}: expected parameters that are read before those that are written")
        self.base = {name: tensor.place.base for name, tensor in zip(names, stored, strict=True)}
        self.result_of = {name: j for j, name in enumerate(names[len(names) - len(results) :])}
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
        self, points: FieldPoints, member: ClassMember, writes: Sequence[DeviceWrite]
    ) -> Iterator[ExpectedElements]:
        """Yield, for each result, the addresses that a block must write and their values."""

    # --- classes of blocks

    def _separate(self) -> None:
        """Find the classes of blocks, and the offsets of all accesses."""
        if (blocks := prod(self.program.grid)) > MOST_BLOCKS:
            raise UndecidedError(f"expected at most {MOST_BLOCKS} blocks, got {blocks}")
        classes = BlockClasses(self.program.grid)
        self.tile_offsets = self.separate_tiles(classes)
        self.access_offsets: dict[int, PerBlock] = {}
        self._separate_body(self.program.body, {"tid": self.program.threads}, classes)
        first, self.class_of = classes.classes()
        self.representatives = first
        self.class_count = len(first)
        statements = self.class_count * _count_executed(self.program.body)
        if statements > MOST_STATEMENTS:
            what = f"{self.class_count} classes of blocks execute {statements} statements"
            raise UndecidedError(f"expected at most {MOST_STATEMENTS}, got more: {what}")
        self.coordinates = classes.coordinates
        self._name_families()

    def _separate_body(self, body: Sequence[Stmt], extents: dict[str, int], classes: BlockClasses) -> None:
        for s in body:
            for value in values_of(s):
                for one in nested_values(value):
                    self._separate_value(one, extents, classes)
            for e in _plain_indices(s):
                classes.fix(e, extents)
            match s:
                case GlobalVector() | GlobalWrite():
                    self._separate_access(s, s.index, extents, classes)
                case CopyAsync():
                    self._separate_access(s, s.source, extents, classes)
                case For():
                    self._separate_body(s.body, {**extents, s.var: s.extent}, classes)
                case If():
                    self._separate_body(s.body, extents, classes)
                case _:
                    pass

    def _separate_value(self, value: Value, extents: dict[str, int], classes: BlockClasses) -> None:
        match value:
            case GlobalRead():
                self._separate_access(value, value.index, extents, classes)
            case SharedRead() | Reg():
                classes.fix(value.index, extents)
            case Select():
                classes.fix(value.condition, extents)
            case _:
                return

    def _separate_access(
        self, access: DeviceAccess, index: IntExpr, extents: dict[str, int], classes: BlockClasses
    ) -> None:
        offsets = classes.separate(index, extents).block
        known = self.access_offsets.setdefault(id(access), offsets)
        if not np.array_equal(known, offsets):
            raise UndecidedError("one access stands in two loops of other extents")

    def _name_families(self) -> None:
        """Number the offsets of accesses in each class: accesses of one number move alike from block to block."""
        self._known: list[dict[bytes, int]] = [{} for _ in range(self.class_count)]
        self.members = [np.flatnonzero(self.class_of == number) for number in range(self.class_count)]
        self.families = {key: self._numbers(offsets) for key, offsets in self.access_offsets.items()}
        self.tile_families = [self._numbers(offsets) for offsets in self.tile_offsets]

    def _numbers(self, offsets: PerBlock) -> NDArray[np.int64]:
        """Return the family of an access in each class, from its offset in each block."""
        pairs = zip(self.members, self.representatives, strict=True)
        found = [self.family(number, offsets[x] - offsets[first]) for number, (x, first) in enumerate(pairs)]
        return np.array(found, np.int64)

    def family(self, number: int, distances: PerBlock) -> int:
        """Return the family of accesses that move by these distances, for each block of a class."""
        known = self._known[number]
        return known.setdefault(distances.tobytes(), len(known))

    # --- comparison at one draw

    def compare(self, random: np.random.Generator, poison: bool) -> int:
        """Compare all classes at points drawn anew, and return the number of elements.

        Sound: a Program may divide by a value, or take its root or logarithm, only where the µGraph does the same of an
        equal value; elsewhere the result is poison. So each stored element is defined for all inputs for which the
        µGraph is, not only where its residues are.

        Args:
            random: The source of the points.
            poison: Whether values that depend on a divisor that is 0 are poison, and allowed where none is stored.

        Raises:
            UndefinedPointError: A divisor is 0 at a point.
        """
        points = FieldPoints(random, _components(self.operators(), self.program, poison))
        elements = 0
        count = max(1, min(_TOGETHER, _TOGETHER_BYTES // max(1, self.program.shared_bytes)))
        for start in range(0, self.class_count, count):
            chunk = range(start, min(start + count, self.class_count))
            blocks = {name: at[self.representatives[chunk.start : chunk.stop]] for name, at in self.coordinates.items()}
            reader = _Reader(self, points, chunk)
            writes = evaluate_program(self.program, points, blocks, reader)
            partial = points.take_partial()
            wanted = [
                (member, list(self.expected_elements(points, member, writes))) for member in self._class_members(chunk)
            ]
            allowed = points.take_partial()
            elements += self._compare_outputs(points, wanted, writes)
            if np.setdiff1d(partial, allowed).size:
                if not poison:
                    raise UndefinedPointError("a partial operation of an argument for which the µGraph has none")
                points.allowed = allowed
                writes = evaluate_program(self.program, points, blocks, reader)
                points.allowed = None
                self._compare_outputs(points, wanted, writes)
        return elements

    def _compare_outputs(
        self,
        points: FieldPoints,
        wanted: Sequence[tuple[ClassMember, Sequence[ExpectedElements]]],
        writes: Sequence[DeviceWrite],
    ) -> int:
        """Compare what blocks write with what they must write, and return the number of elements."""
        for member, results in wanted:
            for j, one in enumerate(results):
                self._compare_output(points, j, member, one, writes)
        return sum(one.address.size for _, results in wanted for one in results)

    def _class_members(self, chunk: range) -> Iterator[ClassMember]:
        """Yield the blocks that stand for some classes."""
        for row, number in enumerate(chunk):
            first = self.representatives[number]
            yield ClassMember(number, row, {name: int(at[first]) for name, at in self.coordinates.items()})

    def writes_to(
        self, j: int, member: ClassMember, writes: Sequence[DeviceWrite]
    ) -> list[tuple[DeviceWrite, NDArray[np.bool_]]]:
        """Return the writes to result j, each with the mask of its elements that the block of ``member`` writes."""
        mine = [write for write in writes if self.result_of.get(write.access.param) == j]
        return [(write, write.block == member.row) for write in mine]

    def _compare_output(
        self,
        points: FieldPoints,
        j: int,
        member: ClassMember,
        wanted: ExpectedElements,
        writes: Sequence[DeviceWrite],
    ) -> None:
        mine = self.writes_to(j, member, writes)
        none = np.zeros(0, np.int64)
        address = np.concatenate([none, *(write.address[here] for write, here in mine)])
        thread = np.concatenate([none, *(write.thread[here] for write, here in mine)])
        nothing = np.zeros((points.count, 0), np.uint64)
        got = np.concatenate([nothing, *(write.values[:, here] for write, here in mine)], axis=1)
        order, sorted_by = np.argsort(address, kind="stable"), np.argsort(wanted.address, kind="stable")
        address, thread, got = address[order], thread[order], got[:, order]
        self._expect_addresses(j, member, wanted.address[sorted_by], (address, thread))
        values = wanted.values[:, sorted_by]
        poison = points.is_poison(got) | points.is_poison(values)
        wrong = ~points.equal(got, values) & ~poison
        if wrong.any():
            first = int(np.argmax(wrong))
            what = f"{int(wrong.sum())} of {wrong.size} elements differ from the µGraph's"
            raise self.deviation(j, member, int(address[first]), int(thread[first]), what)
        if poison.any():
            raise UndefinedPointError("a stored element depends on a divisor that is 0 or on an infinity")

    def _expect_addresses(
        self, j: int, member: ClassMember, wanted: NDArray[np.int64], got: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> None:
        address, thread = got
        again = address[1:][address[1:] == address[:-1]]
        if again.size:
            raise self.deviation(j, member, int(again[0]), None, "an element is written twice")
        if (missing := np.setdiff1d(wanted, address)).size:
            raise self.deviation(j, member, int(missing[0]), None, f"{missing.size} elements are not written")
        if (more := np.setdiff1d(address, wanted)).size:
            by = int(thread[np.searchsorted(address, more[0])])
            raise self.deviation(j, member, int(more[0]), by, "an element is written that is not in the block's tile")

    def deviation(self, j: int, member: ClassMember, address: int, thread: int | None, what: str) -> DeviationError:
        """Return the error that names an element."""
        x, y, z = (member.block[name] for name in ("bx", "by", "bz"))
        return DeviationError(Deviates(j, (x, y, z), address, thread, what))


class _Reader:
    """Device memory of the blocks that are evaluated: each element is a variable, by family and address."""

    def __init__(self, work: KernelBlocks, points: FieldPoints, chunk: range) -> None:
        self.work, self.points, self.chunk = work, points, chunk

    def __call__(self, access: DeviceAccess, addresses: NDArray[np.int64]) -> FieldArray:
        work = self.work
        if access.param in work.result_of:
            raise EvaluationFault(f"{access.param} is read and written")
        family = work.families[id(access)][self.chunk.start : self.chunk.stop].reshape(-1, 1, 1)
        return self.points.variables(f"value {work.base[access.param]}", addresses + family * FAMILY)


def _plain_indices(s: Stmt) -> Iterator[IntExpr]:
    """Yield the integer expressions of a statement itself but addresses in device memory."""
    match s:
        case If():
            yield s.condition
        case SetReg() | Pack() | SharedWrite():
            yield s.index
        case SharedVector():
            yield from (s.at, s.index)
        case GlobalVector():
            yield s.at
        case CopyAsync():
            yield from (s.index, s.valid)
        case LoadMatrix():
            yield from (s.at, s.index)
        case Mma() | WarpgroupMma():
            yield from (s.d_at, s.a_at, s.b_at)
        case ShuffleReduce():
            yield s.at
        case _:
            return


def _count_executed(body: Sequence[Stmt]) -> int:
    """Return the number of statements that a block executes, those of all threads counted as one."""
    return sum(s.extent * _count_executed(s.body) if isinstance(s, For) else 1 for s in _without_conditions(body))


def _without_conditions(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Yield the statements of a body, and in place of conditions what they contain."""
    for statement in body:
        yield from _without_conditions(statement.body) if isinstance(statement, If) else (statement,)


def _components(ops: Sequence[Op], program: Program, poison: bool) -> Components:
    """Return the components that field values need for the functions of the operators and of the Program."""
    kinds = {op.kind for op in ops}
    exponents, maxima = bool(kinds & _WITH_EXPONENTS), bool(kinds & _WITH_MAXIMA)
    for statement in all_statements(program.body):
        maxima = maxima or (isinstance(statement, ShuffleReduce) and statement.fn is BinaryFn.MAX)
        for value in values_of(statement):
            for one in nested_values(value):
                maxima = maxima or (isinstance(one, Combine) and one.fn is BinaryFn.MAX)
                exponents = exponents or (isinstance(one, Apply) and one.fn in EXPONENTIAL)
    return Components(exponents, maxima, poison, frozenset(kinds & ROUNDINGS))


__all__ = [
    "FAMILY",
    "ClassMember",
    "Deviates",
    "DeviationError",
    "ExpectedElements",
    "KernelBlocks",
    "KernelTensor",
    "UndecidedError",
]
