"""Evaluation of a Program at random points of prime fields: some blocks at once, their threads in lockstep.

Lockstep, with asynchronous copies done at once, is one of the orders that barriers and waits allow. The safety claim
says that all of them give the same result. Conversions between element types are the identity here; the roundings that
stand in a Program as functions are functions like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import isinf
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import (
    PANEL,
    PANEL_UNIT,
    WARPGROUP_ROWS,
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    GridWait,
    If,
    Int,
    IntBin,
    IntExpr,
    KernelFn,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
    Where,
    all_statements,
)
from mirage_formal.codegen.translation_validation.block_classes import compile_index
from mirage_formal.codegen.translation_validation.field_points import FieldArray, FieldPoints
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: A statement or value that accesses device memory.
DeviceAccess = GlobalRead | GlobalVector | CopyAsync | GlobalWrite
#: Function that returns the values of elements of a parameter: of an access, at addresses [blocks, ...].
ReadDevice = Callable[[DeviceAccess, Integers], FieldArray]

_WARP: Final = 32
_ARITHMETIC: Final = frozenset(
    {BinaryFn.ADD, BinaryFn.SUB, BinaryFn.MUL, BinaryFn.DIV, BinaryFn.DIV_NO_NAN, BinaryFn.MIN}
)
_COMPARISONS: Final = {
    BinaryFn.EQ: OpKind.EQ,
    BinaryFn.LT: OpKind.LT,
    BinaryFn.LE: OpKind.LE,
    BinaryFn.GT: OpKind.GT,
    BinaryFn.GE: OpKind.GE,
}


@dataclass(frozen=True, slots=True)
class DeviceWrite:
    """Elements that one execution of a statement writes to device memory.

    Attributes:
        access: The statement.
        block: For each written element, the number of its block among those evaluated.
        thread: The thread that writes it.
        address: Its address in the parameter.
        values: Its value.
    """

    access: GlobalWrite
    block: Integers
    thread: Integers
    address: Integers
    values: FieldArray


@dataclass(frozen=True, slots=True)
class _Index:
    """An index expression with its function, its loop variables, and its values by those of the loop variables."""

    expression: IntExpr
    evaluate: Callable[[Mapping[str, Any]], Any]
    loops: tuple[str, ...]
    values: dict[tuple[int, ...], Any]


class EvaluationFault(Exception):
    """Error: the Program does something that has no meaning, such as an access out of bounds."""


def evaluate_program(
    program: Program, points: FieldPoints, blocks: Mapping[str, Integers], read: ReadDevice
) -> list[DeviceWrite]:
    """Return all that some blocks of a Program write to device memory, in order.

    Args:
        program: A safe Program.
        points: The arithmetic.
        blocks: For each of bx, by and bz, the coordinates of the blocks.
        read: The elements of parameters that are read.

    Raises:
        EvaluationFault: The Program is not safe.
        UndefinedPointError: A divisor is 0 at the points.
    """
    expect_element_types(program)
    evaluation = _Evaluation(program, points, blocks, read)
    evaluation.run(program.body, None)
    return evaluation.writes


def values_of(statement: Stmt) -> tuple[Value, ...]:
    """Return the values that a statement computes."""
    match statement:
        case SetReg(value=value):
            return (value,)
        case Pack(low=low, high=high):
            return low, high
        case SharedWrite(values=values) | GlobalWrite(values=values):
            return values
        case _:
            return ()


def nested_values(value: Value) -> Iterator[Value]:
    """Yield a value, and recursively all values that it is computed from."""
    yield value
    match value:
        case Apply(a=a):
            yield from nested_values(a)
        case Combine(a=a, b=b) | Select(a=a, b=b):
            yield from nested_values(a)
            yield from nested_values(b)
        case Where(mask=mask, a=a, b=b):
            for one in (mask, a, b):
                yield from nested_values(one)
        case Real() | Reg() | SharedRead() | GlobalRead():
            return


class _Evaluation:
    def __init__(self, program: Program, points: FieldPoints, blocks: Mapping[str, Integers], read: ReadDevice) -> None:
        self.points, self.read = points, read
        self.blocks, self.threads = len(blocks["bx"]), program.threads
        self.warps = self.threads // _WARP
        self.params = {param.name: param for param in program.params}
        self.buffers = {buffer.name: buffer for buffer in program.shared}
        single = self.blocks == 1
        self.env: dict[str, Any] = {name: int(at[0]) if single else at[:, None] for name, at in blocks.items()}
        self.env["tid"] = np.arange(self.threads, dtype=np.int64)[None, :]
        self.registers: dict[str, FieldArray] = {}
        self.words = {s.name for s in all_statements(program.body) if isinstance(s, Registers) and s.words}
        self.memory = {name: self._undefined(f"memory {name}", b.elements) for name, b in self.buffers.items()}
        self.overlaps = {name: _overlapping(b, program.shared) for name, b in self.buffers.items()}
        self.writes: list[DeviceWrite] = []
        self.indicators = indicator_arrays(program)
        infinite = [value for value in constants_of(program) if isinf(value)]
        self.infinities = [points.constant(value).reshape(-1, 1, 1) for value in infinite]
        self._selected_key, self._selected = points.key("selected infinity"), set[int]()
        self._fixed = frozenset(self.env)
        self._integers: dict[int, _Index] = {}
        self._rows = np.arange(self.blocks, dtype=np.int64)[:, None]

    def _undefined(self, name: str, elements: int) -> FieldArray:
        """Return memory of all blocks in which nothing has been written: random values."""
        one = self.points.variables(name, np.arange(elements))
        return np.tile(one, (1, self.blocks))

    # --- integers

    def integer(self, e: IntExpr) -> Any:
        """Return an expression's value: an integer, or an array that broadcasts to [blocks, threads]."""
        if isinstance(e, Int):
            return e.value
        known = self._integers.get(id(e))
        if known is None:
            loops = tuple(sorted(_names(e) - self._fixed))
            known = self._integers[id(e)] = _Index(e, compile_index(e), loops, {})
        at = tuple(self.env[name] for name in known.loops)
        found = known.values.get(at)
        if found is None:
            found = known.evaluate(self.env)
            if isinstance(found, int) or not at:  # arrays of all iterations would be large
                known.values[at] = found
        return found

    def slot(self, e: IntExpr) -> int:
        """Return the index of a register, which is the same for all threads."""
        found = self.integer(e)
        if isinstance(found, int):
            return found
        first = int(found.flat[0])
        if (found != first).any():
            raise EvaluationFault("the index of a register depends on the thread")
        return first

    def addresses(self, e: IntExpr, count: int, mask: Mask | None, limit: int) -> Integers:
        """Return [blocks, threads, count] consecutive indices, 0 where a thread does not take part."""
        found = np.broadcast_to(np.asarray(self.integer(e), np.int64), (self.blocks, self.threads))
        if mask is not None:
            found = np.where(mask, found, 0)
        if int(found.min()) < 0 or int(found.max()) + count > limit:
            raise EvaluationFault(f"an index is out of bounds of {limit} elements")
        return found[:, :, None] + np.arange(count) if count > 1 else found[:, :, None]

    # --- values

    def value(self, value: Value, mask: Mask | None) -> FieldArray:
        """Return a value: components, then axes that broadcast to [blocks, threads]."""
        points = self.points
        match value:
            case Real():
                return points.constant(value.value).reshape(-1, 1, 1)
            case Reg():
                return np.asarray(self.read_registers(value.array, self.slot(value.index))[0])
            case SharedRead():
                return self.read_shared(value.buffer, value.index, 1, mask)[..., 0]
            case GlobalRead():
                at = self.addresses(value.index, 1, mask, self.params[value.param].elements)
                return self.read(value, at)[..., 0]
            case Apply():
                return self.apply(value, mask)
            case Combine(BinaryFn.MUL, a, Real(1.0)):
                return self.value(a, mask)
            case Combine(BinaryFn.DIV, a, Real(divisor)) if divisor:
                inverse = points.invert_nonzero(points.constant(divisor).reshape(-1, 1, 1))
                return self.combine(BinaryFn.MUL, self.value(a, mask), inverse)
            case Combine(BinaryFn.MAX, a, b) if self.is_indicator(a) and self.is_indicator(b):
                return points.disjunction(self.value(a, mask), self.value(b, mask))
            case Combine():
                return self.combine(value.fn, self.value(value.a, mask), self.value(value.b, mask))
            case Select():
                return self.select_value(value, mask)
            case Where():
                chosen = self.value(value.mask, mask)
                if not self.is_indicator(value.mask):
                    chosen = points.indicator(chosen)
                first, second = self.value(value.a, mask), self.value(value.b, mask)
                found = points.select(chosen, first, second)
                if self.infinities:
                    self.remember_infinite(found, self.is_infinite(first) | self.is_infinite(second))
                return found
            case _:
                assert_never(value)

    def is_indicator(self, value: Value) -> bool:
        """Return whether a value is known to be 0 or 1 over the reals."""
        return is_indicator(value, self.indicators)

    def select_value(self, value: Select, mask: Mask | None) -> FieldArray:
        """Return a selection by an integer condition; what is not selected is not read."""
        holds = self.integer(value.condition)
        if isinstance(holds, int):
            return self.value(value.a if holds else value.b, mask)
        holds = holds != 0
        both = np.broadcast_to(holds, (self.blocks, self.threads))
        here = both if mask is None else both & mask
        there = ~both if mask is None else ~both & mask
        if not there.any():
            return self.value(value.a, mask)
        if not here.any():
            return self.value(value.b, mask)
        return np.where(holds, self.value(value.a, here), self.value(value.b, there))

    def apply(self, value: Apply, mask: Mask | None) -> FieldArray:
        """Return a function of one value: poison where it is one of an infinity, but for exp."""
        a = self.value(value.a, mask)
        found = self.apply_real(value, a)
        if not self.infinities or value.fn is OpKind.EXP:
            return found
        return self.points.poison_where(np.array(found), self.is_infinite(a))

    def apply_real(self, value: Apply, a: FieldArray) -> FieldArray:
        """Return a function of one value as if it were real."""
        points = self.points
        match value.fn:
            case KernelFn.NEG:
                return points.negate(a)
            case KernelFn.RSQRT:
                return points.invert(points.unary(OpKind.SQRT, a))
            case KernelFn.ROUND_HALF:
                return points.unary(OpKind.ROUND_FLOAT16, a)
            case KernelFn.ROUND_BFLOAT:
                return points.unary(OpKind.ROUND_BFLOAT16, a)
            case OpKind.LOGICAL_NOT:
                if not self.is_indicator(value.a):
                    a = points.indicator(a)
                return points.unary(OpKind.LOGICAL_NOT, a)
            case kind:
                return points.unary(kind, a)

    def combine(self, fn: BinaryFn, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a function of two values: poison where it is arithmetic on an infinity, which is no real number.

        What is subtracted from an infinity stays infinite, as a masked score does whose maximum is subtracted.
        """
        found = self.combine_real(fn, a, b)
        if not self.infinities or fn not in _ARITHMETIC:
            return found
        first, second = self.is_infinite(a), self.is_infinite(b)
        if fn is BinaryFn.SUB:
            self.remember_infinite(found, first)
        return self.points.poison_where(found, second if fn is BinaryFn.SUB else first | second)

    def remember_infinite(self, a: FieldArray, where: Mask) -> None:
        """Make ``is_infinite`` hold of some elements of a value."""
        if where.any():
            words = np.broadcast_to(
                self.points.words(a, self._selected_key), np.broadcast_shapes(a.shape[1:], where.shape)
            )
            self._selected |= set(words[np.broadcast_to(where, words.shape)].tolist())

    def combine_real(self, fn: BinaryFn, a: FieldArray, b: FieldArray) -> FieldArray:
        """Return a function of two values as if both were real."""
        points = self.points
        match fn:
            case BinaryFn.ADD:
                return points.add(a, b)
            case BinaryFn.SUB:
                return points.subtract(a, b)
            case BinaryFn.MUL:
                return points.multiply(a, b)
            case BinaryFn.DIV:
                return points.multiply(a, points.invert(b))
            case BinaryFn.DIV_NO_NAN:
                return points.divide_or_zero(a, b)
            case BinaryFn.MAX:
                return points.maximum(a, b)
            case BinaryFn.MIN:
                return points.minimum(a, b)
            case BinaryFn.EQ | BinaryFn.LT | BinaryFn.LE | BinaryFn.GT | BinaryFn.GE:
                return points.compare(_COMPARISONS[fn], a, b)
            case _:
                assert_never(fn)

    def is_infinite(self, a: FieldArray) -> Mask:
        """Return where a value is an infinite constant, or was selected from one, or computed from such a value."""
        found = np.isin(self.points.words(a, self._selected_key), np.fromiter(self._selected, np.uint64))
        for one in self.infinities:
            found |= self.points.equal(a, one.reshape(-1, *(1,) * (a.ndim - 1)))
        return found

    # --- shared memory

    def read_shared(self, buffer: str, e: IntExpr, count: int, mask: Mask | None) -> FieldArray:
        """Return [components, blocks, threads, count] elements."""
        elements = self.buffers[buffer].elements
        at = self.addresses(e, count, mask, elements) + self._rows[..., None] * elements
        return np.asarray(self.memory[buffer].take(at, axis=1))

    def _put(self, item: SharedBuffer, at: Integers, values: FieldArray, mask: Mask | None) -> None:
        flat = at + self._rows[..., None] * item.elements
        values = np.broadcast_to(values, (values.shape[0], *flat.shape))
        if mask is None:
            self.memory[item.name][:, flat] = values
        else:
            self.memory[item.name][:, flat[mask]] = values[:, mask]
        for other in self.overlaps[item.name]:
            self._clobber(item, other, at, mask)

    def _clobber(self, item: SharedBuffer, other: SharedBuffer, at: Integers, mask: Mask | None) -> None:
        """Make the elements of another buffer undefined that share bytes with written ones."""
        first = item.offset + at * item.dtype.bytes - other.offset
        size = other.dtype.bytes
        last = (first + item.dtype.bytes - 1) // size
        undefined = self.points.variables("clobbered", np.zeros(1, np.int64))
        for step in range(-(-item.dtype.bytes // size) + 1):
            index = first // size + step
            hit = (index >= 0) & (index <= last) & (index < other.elements)
            hit = hit if mask is None else hit & mask[..., None]
            flat = (index + self._rows[..., None] * other.elements)[hit]
            self.memory[other.name][:, flat] = undefined

    # --- registers

    def read_registers(self, array: str, first: int, count: int = 1) -> FieldArray:
        """Return consecutive registers of each thread."""
        found = self.registers[array]
        if not 0 <= first <= len(found) - count:
            raise EvaluationFault(f"{array}[{first}] x{count} is out of bounds")
        return found[first : first + count]

    def assign(self, array: str, slot: int, values: FieldArray, mask: Mask | None) -> None:
        """Set one register of each thread that takes part."""
        (target,) = self.read_registers(array, slot)
        if mask is None:
            target[...] = values
        else:
            np.copyto(target, values, where=mask)

    def declare(self, statement: Registers) -> None:
        """Give a register array its initial value: undefined ones are random."""
        count = statement.count * (2 if statement.words else 1)
        if statement.initial is None:
            first = self.points.variables(f"registers {statement.name}", np.arange(1)).reshape(-1, 1, 1)
        else:
            first = self.points.constant(statement.initial).reshape(-1, 1, 1)
        array = np.empty((count, self.points.count, self.blocks, self.threads), np.uint64)
        array[:] = first
        self.registers[statement.name] = array

    # --- statements

    def run(self, body: Sequence[Stmt], mask: Mask | None) -> None:
        """Run statements of the threads of a mask; None are all."""
        for statement in body:
            self.statement(statement, mask)

    def statement(self, s: Stmt, mask: Mask | None) -> None:  # noqa: C901
        """Run one statement."""
        match s:
            case Registers():
                self.declare(s)
            case For():
                for i in range(s.extent):
                    self.env[s.var] = i
                    self.run(s.body, mask)
            case If():
                self.condition(s, mask)
            case SetReg():
                self.assign(s.array, self.slot(s.index), self.value(s.value, mask), mask)
            case Pack():
                slot = 2 * self.slot(s.index)
                self.assign(s.words, slot, self.value(s.low, mask), mask)
                self.assign(s.words, slot + 1, self.value(s.high, mask), mask)
            case SharedWrite():
                self.shared_write(s, mask)
            case GlobalWrite():
                self.global_write(s, mask)
            case SharedVector():
                self.load(s.array, self.slot(s.at), self.read_shared(s.buffer, s.index, s.count, mask), mask)
            case GlobalVector():
                at = self.addresses(s.index, s.count, mask, self.params[s.param].elements)
                self.load(s.array, self.slot(s.at), self.read(s, at), mask)
            case CopyAsync():
                self.copy(s, mask)
            case LoadMatrix():
                self.load_matrix(s, mask)
            case Mma():
                self.mma(s, mask)
            case WarpgroupMma():
                self.warpgroup_mma(s, mask)
            case ShuffleReduce():
                slot = self.slot(s.at)
                mine = self.read_registers(s.array, slot)[0]
                other = mine[:, :, np.arange(self.threads) ^ s.mask]
                masks = s.fn is BinaryFn.MAX and s.array in self.indicators
                found = self.points.disjunction(mine, other) if masks else self.combine(s.fn, mine, other)
                self.assign(s.array, slot, found, mask)
            case Barrier() | Commit() | WaitGroups() | WarpgroupWait() | GridWait() | LaunchDependents():
                return  # order in time, which the safety claim is about
            case _:
                assert_never(s)

    def condition(self, s: If, mask: Mask | None) -> None:
        """Run the body of a condition for the threads for which it holds."""
        holds = self.integer(s.condition)
        if isinstance(holds, int):
            if holds:
                self.run(s.body, mask)
            return
        met = np.broadcast_to(holds != 0, (self.blocks, self.threads))
        met = met if mask is None else met & mask
        if met.any():
            self.run(s.body, None if met.all() else met)

    def load(self, array: str, first: int, values: FieldArray, mask: Mask | None) -> None:
        """Set consecutive registers to the elements of a vector load."""
        for k in range(values.shape[-1]):
            self.assign(array, first + k, values[..., k], mask)

    def store_values(self, values: Sequence[Value], dtype: DType, mask: Mask | None) -> FieldArray:
        """Return the values of a store as [components, blocks, threads, count]."""
        shape = (self.points.count, self.blocks, self.threads)
        found = []
        for value in values:
            one = self.value(value, mask)
            if dtype is DType.BOOL and not self.is_indicator(value):
                one = self.points.indicator(one)
            found.append(np.broadcast_to(one, shape))
        return np.stack(found, axis=-1)

    def shared_write(self, s: SharedWrite, mask: Mask | None) -> None:
        """Store values to shared memory."""
        item = self.buffers[s.buffer]
        at = self.addresses(s.index, len(s.values), mask, item.elements)
        self._put(item, at, self.store_values(s.values, item.dtype, mask), mask)

    def global_write(self, s: GlobalWrite, mask: Mask | None) -> None:
        """Record a store to device memory."""
        item = self.params[s.param]
        at = self.addresses(s.index, len(s.values), mask, item.elements)
        values = self.store_values(s.values, item.dtype, mask)
        block = np.broadcast_to(self._rows[..., None], at.shape)
        thread = np.broadcast_to(np.arange(self.threads, dtype=np.int64)[None, :, None], at.shape)
        here = np.ones((self.blocks, self.threads), bool) if mask is None else mask
        self.writes.append(
            DeviceWrite(
                s,
                block[here].reshape(-1),
                thread[here].reshape(-1),
                at[here].reshape(-1),
                values[:, here].reshape(values.shape[0], -1),
            )
        )

    def copy(self, s: CopyAsync, mask: Mask | None) -> None:
        """Copy elements from device to shared memory; zeros where the copy is not valid."""
        item, param = self.buffers[s.buffer], self.params[s.param]
        if item.dtype is not param.dtype:
            raise EvaluationFault("an asynchronous copy between element types")
        count = s.bytes // item.dtype.bytes
        valid = np.broadcast_to(np.asarray(self.integer(s.valid)) != 0, (self.blocks, self.threads))
        reading = valid if mask is None else valid & mask
        values = self.read(s, self.addresses(s.source, count, reading, param.elements))
        values = values if valid.all() else np.where(valid[..., None], values, np.uint64(0))
        self._put(item, self.addresses(s.index, count, mask, item.elements), values, mask)

    # --- matrix units

    def load_matrix(self, s: LoadMatrix, mask: Mask | None) -> None:
        """Load 8x8 matrices: lane 8 k + r addresses row r of matrix k.

        Lane 4 g + t gets elements 2t and 2t + 1 of row g.
        """
        used = np.arange(self.threads) % _WARP < 8 * s.count
        here = np.broadcast_to(used, (self.blocks, self.threads)) if mask is None else mask & used
        rows = self.read_shared(s.buffer, s.index, 8, here)
        if s.transposed:  # [..., matrix, t, h, g]
            rows = rows.reshape(self.points.count, self.blocks, self.warps, 4, 4, 2, 8)
            found = rows.transpose(3, 5, 0, 1, 2, 6, 4)
        else:  # [..., matrix, g, t, h]
            rows = rows.reshape(self.points.count, self.blocks, self.warps, 4, 8, 4, 2)
            found = rows.transpose(3, 6, 0, 1, 2, 4, 5)
        first = 2 * self.slot(s.at)
        found = found.reshape(8, self.points.count, self.blocks, self.threads)
        for k in range(2 * s.count):
            self.assign(s.words, first + k, found[k], mask)

    def mma(self, s: Mma, mask: Mask | None) -> None:
        """Add the product of a 16x16 and a 16x8 matrix, fragments as in the PTX ISA (mma.m16n8k16).

        With lane 4 g + t: element (k1, k0, h) of a is row g + 8 k0, column 2t + h + 8 k1; (k, h) of b is row
        2t + h + 8 k, column g; (k1, k0) of d is row g + 8 k1, column 2t + k0.
        """
        lanes = self.points.count, self.blocks, self.warps, 8, 4
        a_at, b_at = self.slot(s.a_at), self.slot(s.b_at)
        a_at, b_at = (2 * a_at if s.a in self.words else a_at), (2 * b_at if s.b in self.words else b_at)
        a, b = self.read_registers(s.a, a_at, 8), self.read_registers(s.b, b_at, 4)
        left = a.reshape(2, 2, 2, *lanes).transpose(3, 4, 5, 1, 6, 0, 7, 2)
        right = b.reshape(2, 2, *lanes).transpose(2, 3, 4, 0, 6, 1, 5)
        shape = lanes[:3]
        first = self.slot(s.d_at)
        added = self.read_registers(s.d, first, 4)
        if self.infinities and any(self.is_infinite(np.moveaxis(one, 1, 0)).any() for one in (a, b, added)):
            raise EvaluationFault("a product of matrices with an infinity")
        product = self.points.matmul(left.reshape(*shape, 16, 16), right.reshape(*shape, 16, 8))
        parts = product.reshape(*shape, 2, 8, 4, 2).transpose(3, 6, 0, 1, 2, 4, 5)
        parts = parts.reshape(4, self.points.count, self.blocks, self.threads)
        total = self.points.add(np.moveaxis(added, 1, 0), np.moveaxis(parts, 1, 0))
        for k in range(4):
            self.assign(s.d, first + k, total[:, k], mask)

    def warpgroup_mma(self, s: WarpgroupMma, mask: Mask | None) -> None:
        """Add the product of a matrix of 64 rows and another one for each warpgroup.

        With warp w and lane 4 g + t of a group: register (j, k1, k0) of d is row 16 w + g + 8 k1, column 8 j + 2t + k0;
        element (k, k1, k0, h) of a in registers is row 16 w + g + 8 k0, inner position 16 k + 2t + h + 8 k1.
        """
        points, tiles, first = self.points, s.columns // 8, self.slot(s.d_at)
        groups = points.count, self.blocks, self.warps // 4
        right = self.panels(s.b, s.b_at, s.columns, (s.depth, s.b_panel, s.b_across))
        if s.a_panel:
            left = self.panels(s.a, s.a_at, WARPGROUP_ROWS, (s.depth, s.a_panel, s.a_across))
        else:
            a = self.read_registers(s.a, 2 * self.slot(s.a_at), s.depth // 2)
            left = a.reshape(s.depth // 16, 2, 2, 2, *groups, 4, 8, 4).transpose(4, 5, 6, 7, 2, 8, 0, 1, 9, 3)
            left = left.reshape(*groups, WARPGROUP_ROWS, s.depth)
        added = self.read_registers(s.d, first, 4 * tiles)
        both = (left, right, np.moveaxis(added, 1, 0))
        if self.infinities and any(self.is_infinite(one).any() for one in both[: 2 + s.accumulate]):
            raise EvaluationFault("a product of matrices with an infinity")
        product = points.matmul(left, np.swapaxes(right, -1, -2))
        parts = product.reshape(*groups, 4, 2, 8, tiles, 4, 2).transpose(0, 6, 4, 8, 1, 2, 3, 5, 7)
        total = parts.reshape(points.count, 4 * tiles, self.blocks, self.threads)
        total = points.add(both[2], total) if s.accumulate else total
        for k in range(4 * tiles):
            self.assign(s.d, first + k, total[:, k], mask)

    def panels(self, name: str, at: IntExpr, outer: int, layout: tuple[int, int, bool]) -> FieldArray:
        """Return [components, blocks, warpgroups, outer, inner] elements of a matrix in shared memory.

        Args:
            name: Its buffer.
            at: Its position, as in ``WarpgroupMma``, the same for all threads of a warpgroup.
            outer: Its outer extent.
            layout: Its inner extent, the distance of panels, and whether it lies across.
        """
        inner, panel, across = layout
        every = np.broadcast_to(np.asarray(self.integer(at), np.int64), (self.blocks, self.threads))
        first = every.reshape(self.blocks, -1, 4 * _WARP)
        if (first != first[..., :1]).any():
            raise EvaluationFault("the position of a matrix differs between the threads of a warpgroup")
        o, i = np.arange(outer)[:, None], np.arange(inner)[None, :]
        row, column = (i, o) if across else (o, i)
        e = PANEL_UNIT * (first[..., :1, None] + panel * (column // PANEL)) + PANEL * row + column % PANEL
        e = e ^ 8 * (e // PANEL % 8)
        elements = self.buffers[name].elements
        if int(e.min()) < 0 or int(e.max()) >= elements:
            raise EvaluationFault(f"an index is out of bounds of {elements} elements")
        return np.asarray(self.memory[name].take(e + self._rows[..., None, None] * elements, axis=1))


def _names(e: IntExpr) -> frozenset[str]:
    """Return the names of the variables of an expression."""
    match e:
        case Int():
            return frozenset()
        case Var(name):
            return frozenset({name})
        case IntBin(_, a, b):
            return _names(a) | _names(b)


def constants_of(program: Program) -> frozenset[float]:
    """Return the constants of a Program's values."""
    statements = list(all_statements(program.body))
    found = {s.initial for s in statements if isinstance(s, Registers) and s.initial is not None}
    for s in statements:
        for value in values_of(s):
            found |= {one.value for one in nested_values(value) if isinstance(one, Real)}
    return frozenset(found)


def expect_element_types(program: Program) -> None:
    """Expect that words are multiplied as elements of the type that they were made of.

    Conversions are the identity over the reals, but the bits of a float16 are no bfloat16: words are never converted.

    Raises:
        EvaluationFault: Words of one element type are read as another one, or a product has none.
    """
    statements = list(all_statements(program.body))
    buffers = {buffer.name: buffer.dtype for buffer in program.shared}
    declared = {(s.name, s.words) for s in statements if isinstance(s, Registers)}
    made: dict[str, set[DType]] = {name: set() for name, words in declared if words}
    for s in statements:
        match s:
            case Pack():
                made.setdefault(s.words, set()).add(s.dtype)
            case LoadMatrix():
                made.setdefault(s.words, set()).add(buffers[s.buffer])
            case _:
                pass
    if any((name, False) in declared or len(kinds) > 1 for name, kinds in made.items()):
        raise EvaluationFault("an array of registers holds elements of two types")
    for s in statements:
        if isinstance(s, Mma | WarpgroupMma):
            held = ({buffers[x]} if x in buffers else made.get(x, {DType.FLOAT32}) for x in (s.a, s.b))
            if any(kinds != {s.dtype} for kinds in held):
                raise EvaluationFault(f"a product of {s.dtype.value} has operands of another element type")


def _overlapping(buffer: SharedBuffer, others: Sequence[SharedBuffer]) -> tuple[SharedBuffer, ...]:
    return tuple(
        other
        for other in others
        if other.name != buffer.name
        and other.offset < buffer.offset + buffer.bytes
        and buffer.offset < other.offset + other.bytes
    )


# --- values that are 0 or 1 ------------------------------------------------------------------------------------------


def indicator_arrays(program: Program) -> frozenset[str]:
    """Return the register arrays and shared buffers all of whose values are 0 or 1 over the reals.

    Sound: the largest set such that each assignment to a member of it is of such a value, found from all of them by
    taking out those that have another one.
    """
    statements = list(all_statements(program.body))
    declared = [s for s in statements if isinstance(s, Registers)]
    found = {s.name for s in declared} - {s.name for s in declared if s.words or s.initial not in (0.0, 1.0, None)}
    found |= {buffer.name for buffer in program.shared}
    masks = {param.name for param in program.params if param.dtype is DType.BOOL}
    masks |= {buffer.name for buffer in program.shared if buffer.dtype is DType.BOOL}
    found |= masks
    while True:
        out = {name for s in statements for name, good in _assignments(s, found) if not good} - masks
        if not out & found:
            return frozenset(found)
        found -= out


def _assignments(s: Stmt, known: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the arrays and buffers that a statement assigns to, and whether only values that are 0 or 1."""
    match s:
        case SetReg():
            yield s.array, is_indicator(s.value, known)
        case SharedWrite():
            yield s.buffer, all(is_indicator(value, known) for value in s.values)
        case CopyAsync():
            yield s.buffer, s.param in known
        case SharedVector():
            yield s.array, s.buffer in known
        case GlobalVector():
            yield s.array, s.param in known
        case Mma():
            yield s.d, False
        case ShuffleReduce():
            yield s.array, s.fn is BinaryFn.MAX and s.array in known
        case _:
            return


def is_indicator(value: Value, known: Set[str]) -> bool:
    """Return whether a value is known to be 0 or 1 over the reals.

    Args:
        value: The value.
        known: Register arrays, buffers and parameters all of whose values are.
    """
    match value:
        case Real():
            return value.value in (0.0, 1.0)
        case Reg():
            return value.array in known
        case SharedRead():
            return value.buffer in known
        case GlobalRead():
            return value.param in known
        case Apply():
            return value.fn is OpKind.LOGICAL_NOT
        case Combine():
            both = all(is_indicator(one, known) for one in (value.a, value.b))
            return value.fn in _COMPARISONS or (both and value.fn in (BinaryFn.MUL, BinaryFn.MAX, BinaryFn.MIN))
        case Select() | Where():
            return all(is_indicator(one, known) for one in (value.a, value.b))


__all__ = [
    "DeviceAccess",
    "DeviceWrite",
    "EvaluationFault",
    "evaluate_program",
    "nested_values",
    "values_of",
]
