"""Evaluation of a Program at random points of prime fields: some blocks at once, their threads in lockstep.

Lockstep, with asynchronous copies done at once, is one of the orders that barriers and waits allow. The safety claim
says that all of them give the same result. Conversions between element types are the identity here; the roundings that
stand in a Program as functions are functions like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.integers import variables
from mirage_formal.codegen.program.program import (
    PANEL,
    PANEL_UNIT,
    TILE_COLUMNS,
    WARPGROUP_ROWS,
    Acquire,
    Apply,
    Await,
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
    IntOp,
    KernelFn,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Real,
    Reg,
    Registers,
    Release,
    Select,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    TileCopy,
    UnaryFn,
    Value,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
    Where,
    binary_fn,
)
from mirage_formal.codegen.translation_validation.field_points import FieldArray, FieldPoints
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, OpKind
from mirage_formal.graph.types import DType

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: A statement or value that accesses device memory.
DeviceAccess = GlobalRead | GlobalVector | CopyAsync | TileCopy | GlobalWrite
#: The fields of these with the address in device memory.
ADDRESS: Final = {
    GlobalRead: "index",
    GlobalVector: "index",
    CopyAsync: "source",
    TileCopy: "source",
    GlobalWrite: "index",
}
#: Function that returns the values of elements of a parameter: of an access, at addresses [blocks, ...].
ReadDevice = Callable[[DeviceAccess, Integers], FieldArray]

_WARP: Final = 32
#: The functions of two values as operators of a µGraph.
_OPERATORS: Final = {binary_fn(kind): kind for kind in ARITHMETIC | COMPARISONS}


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

    def of_block(self, row: int) -> DeviceWrite:
        """Return the elements that one block writes."""
        here = self.block == row
        return DeviceWrite(self.access, self.block[here], self.thread[here], self.address[here], self.values[:, here])


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
        UndefinedPointError: A constant is 0 at the points.
    """
    evaluation = _Evaluation(program, points, blocks, read)
    evaluation.run(program.body, None)
    return evaluation.writes


def parts(item: object) -> Iterator[Any]:
    """Yield a statement or value and recursively all statements and values that it is made of."""
    if isinstance(item, tuple):
        for one in item:
            yield from parts(one)
    elif is_dataclass(item) and not isinstance(item, IntExpr):
        yield item
        for field in fields(item):
            yield from parts(getattr(item, field.name))


def apply_integer(op: IntOp, a: Any, b: Any) -> Any:
    """Return a op b of integers that are not negative, or of arrays of them.

    Raises:
        ZeroDivisionError: A divisor is 0.
    """
    if op in (IntOp.DIV, IntOp.MOD) and not np.all(b):
        raise ZeroDivisionError("an integer is divided by 0")
    match op:
        case IntOp.ADD:
            return a + b
        case IntOp.SUB:
            return a - b
        case IntOp.MUL:
            return a * b
        case IntOp.DIV:
            return a // b
        case IntOp.MOD:
            return a % b
        case IntOp.XOR:
            return a ^ b
        case IntOp.LT:
            return (a < b) * 1
        case IntOp.EQ:
            return (a == b) * 1
        case IntOp.AND:
            return ((a != 0) & (b != 0)) * 1


def compile_index(e: IntExpr) -> Callable[[Mapping[str, Any]], Any]:
    """Return an expression as a function of its variables' values: integers, or arrays that broadcast."""
    match e:
        case Int(value):
            return lambda values: value
        case Var(name):
            return lambda values: values[name]
        case IntBin(op, a, b):
            left, right = compile_index(a), compile_index(b)
            return lambda values: apply_integer(op, left(values), right(values))
        case _:
            assert_never(e)


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
        self.types: dict[str, DType | None] = {}
        self.memory = {name: self._undefined(f"memory {name}", b.elements) for name, b in self.buffers.items()}
        self.overlaps = {name: _overlapping(b, program.shared) for name, b in self.buffers.items()}
        self.writes: list[DeviceWrite] = []
        self._fixed = frozenset(self.env)
        self._integers: dict[int, _Index] = {}
        self._rows = np.arange(self.blocks, dtype=np.int64)[:, None]
        #: The copies of each item of a pipeline, with the values of the producer's variables.
        self._items: dict[tuple[str, int], list[tuple[TileCopy, dict[str, Any]]]] = {}
        self.produce(program.producer)

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
            loops = tuple(sorted(variables(e) - self._fixed))
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
                return points.fill(value.value, (1, 1))
            case Reg():
                return np.asarray(self.read_registers(value.array, self.slot(value.index))[0])
            case SharedRead():
                return self.read_shared(value.buffer, value.index, 1, mask)[..., 0]
            case GlobalRead():
                return self.read_device(value, value.index, 1, mask)[..., 0]
            case Apply():
                return self.apply(value.fn, self.value(value.a, mask))
            case Combine(BinaryFn.MUL, a, Real(1.0)):
                return self.value(a, mask)
            case Combine(BinaryFn.DIV, a, Real(divisor)) if divisor:
                return points.multiply(self.value(a, mask), points.invert_nonzero(points.fill(divisor, (1, 1))))
            case Combine():
                return points.binary(_OPERATORS[value.fn], self.value(value.a, mask), self.value(value.b, mask))
            case Select():
                return self.select_value(value, mask)
            case Where():
                return points.select(*(self.value(one, mask) for one in (value.mask, value.a, value.b)))
            case _:
                assert_never(value)

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

    def apply(self, fn: UnaryFn, a: FieldArray) -> FieldArray:
        """Return a function of one value."""
        match fn:
            case KernelFn.NEG:
                return self.points.negate(a)
            case KernelFn.RSQRT:
                return self.points.invert(self.points.unary(OpKind.SQRT, a))
            case KernelFn.ROUND_HALF:
                return self.points.unary(OpKind.ROUND_FLOAT16, a)
            case KernelFn.ROUND_BFLOAT:
                return self.points.unary(OpKind.ROUND_BFLOAT16, a)
            case kind:
                return self.points.unary(kind, a)

    # --- memory

    def read_device(self, access: DeviceAccess, e: IntExpr, count: int, mask: Mask | None) -> FieldArray:
        """Return [components, blocks, threads, count] elements of a parameter."""
        return self.read(access, self.addresses(e, count, mask, self.params[access.param].elements))

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
        self.types[statement.name] = None if statement.words else DType.FLOAT32
        if statement.initial is None:
            first = self.points.variables(f"registers {statement.name}", np.zeros((1, 1)))
        else:
            first = self.points.fill(statement.initial, (1, 1))
        count = statement.count * (1 + statement.words)
        self.registers[statement.name] = np.empty((count, *first.shape[:1], self.blocks, self.threads), np.uint64)
        self.registers[statement.name][:] = first

    def make_words(self, array: str, dtype: DType) -> None:
        """Note the element type that words are made of.

        Conversions are the identity over the reals, but the bits of a float16 are no bfloat16: they are not converted.

        Raises:
            EvaluationFault: They hold elements of another type, or are floats.
        """
        if dtype is DType.FLOAT32 or self.types[array] not in (None, dtype):
            raise EvaluationFault("an array of registers holds elements of two types")
        self.types[array] = dtype

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
                self.make_words(s.words, s.dtype)
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
                self.load(s.array, self.slot(s.at), self.read_device(s, s.index, s.count, mask), mask)
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
                self.assign(s.array, slot, self.points.binary(_OPERATORS[s.fn], mine, other), mask)
            case Await():
                self.receive(s.pipeline, self.slot(s.item))
            case Barrier() | Commit() | WaitGroups() | WarpgroupWait() | GridWait() | LaunchDependents():
                return  # order in time, which the safety claim is about
            case Release():
                return
            case Acquire() | TileCopy():
                raise EvaluationFault("the producer's statements stand in the body")
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
            found.append(np.broadcast_to(self.points.indicator(one) if dtype is DType.BOOL else one, shape))
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
        values = self.read_device(s, s.source, count, valid if mask is None else valid & mask)
        values = values if valid.all() else np.where(valid[..., None], values, np.uint64(0))
        self._put(item, self.addresses(s.index, count, mask, item.elements), values, mask)

    # --- pipelines

    def produce(self, body: Sequence[Stmt]) -> None:
        """Run the producer, and keep its copies for the waits for their items.

        In a safe Program no order of events differs from this one: the item's slot is not touched between its first
        copy and the wait for the item.
        """
        for s in body:
            if isinstance(s, For):
                for i in range(s.extent):
                    self.env[s.var] = i
                    self.produce(s.body)
                del self.env[s.var]
            elif isinstance(s, TileCopy):
                found = self._items.setdefault((s.pipeline, self.slot(s.item)), [])
                found.append((s, {name: at for name, at in self.env.items() if name not in self._fixed}))
            elif not isinstance(s, Acquire | GridWait):
                raise EvaluationFault("expected loops and copies of tiles in the producer")

    def receive(self, pipeline: str, item: int) -> None:
        """Let the copies of an item take effect."""
        outside = self.env
        for s, variables_of_producer in self._items.pop((pipeline, item), []):
            self.env = {name: outside[name] for name in self._fixed} | variables_of_producer
            self.copy_tile(s)
        self.env = outside

    def copy_tile(self, s: TileCopy) -> None:
        """Copy a tile from device to shared memory."""
        item, param = self.buffers[s.buffer], self.params[s.param]
        if item.dtype is not param.dtype:
            raise EvaluationFault("a copy of a tile between element types")
        row, column = np.arange(s.rows, dtype=np.int64)[:, None], np.arange(TILE_COLUMNS, dtype=np.int64)
        within = row * TILE_COLUMNS + (column ^ 8 * (row % 8))
        base = PANEL_UNIT * np.broadcast_to(np.asarray(self.integer(s.at), np.int64).reshape(-1, 1), (self.blocks, 1))
        source = np.broadcast_to(np.asarray(self.integer(s.source), np.int64).reshape(-1, 1), (self.blocks, 1))
        at = (base + within.reshape(1, -1))[:, None, :]
        addresses = (source + (row * s.stride + column).reshape(1, -1))[:, None, :]
        for found, limit in ((at, item.elements), (addresses, param.elements)):
            if int(found.min()) < 0 or int(found.max()) >= limit:
                raise EvaluationFault(f"an index is out of bounds of {limit} elements")
        self._put(item, at, self.read(s, addresses), None)

    # --- matrix units

    def load_matrix(self, s: LoadMatrix, mask: Mask | None) -> None:
        """Load 8x8 matrices: lane 8 k + r addresses row r of matrix k.

        Lane 4 g + t gets elements 2t and 2t + 1 of row g.
        """
        self.make_words(s.words, self.buffers[s.buffer].dtype)
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
        if {self.types[s.a], self.types[s.b]} != {s.dtype}:
            raise EvaluationFault(f"a product of {s.dtype.value} has operands of another element type")
        size = 1 if s.dtype is DType.FLOAT32 else 2
        a = self.read_registers(s.a, size * self.slot(s.a_at), 8)
        b = self.read_registers(s.b, size * self.slot(s.b_at), 4)
        left = a.reshape(2, 2, 2, *lanes).transpose(3, 4, 5, 1, 6, 0, 7, 2)
        right = b.reshape(2, 2, *lanes).transpose(2, 3, 4, 0, 6, 1, 5)
        shape = lanes[:3]
        first = self.slot(s.d_at)
        added = self.read_registers(s.d, first, 4)
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
        held = self.buffers[s.a].dtype if s.a_panel else self.types[s.a]
        if {held, self.buffers[s.b].dtype} != {s.dtype}:
            raise EvaluationFault(f"a product of {s.dtype.value} has operands of another element type")
        product = points.matmul(left, np.swapaxes(right, -1, -2))
        total = product.reshape(*groups, 4, 2, 8, tiles, 4, 2).transpose(0, 6, 4, 8, 1, 2, 3, 5, 7)
        total = total.reshape(points.count, 4 * tiles, self.blocks, self.threads)
        if s.accumulate:
            total = points.add(np.moveaxis(self.read_registers(s.d, first, 4 * tiles), 1, 0), total)
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


def _overlapping(buffer: SharedBuffer, others: Sequence[SharedBuffer]) -> tuple[SharedBuffer, ...]:
    return tuple(
        other
        for other in others
        if other.name != buffer.name
        and other.offset < buffer.offset + buffer.bytes
        and buffer.offset < other.offset + other.bytes
    )


__all__ = [
    "ADDRESS",
    "DeviceAccess",
    "DeviceWrite",
    "EvaluationFault",
    "apply_integer",
    "compile_index",
    "evaluate_program",
    "parts",
]
