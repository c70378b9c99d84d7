"""What a Program computes, statement by statement with numpy, all blocks and threads in lockstep.

Observers watch it run, and say what no right program does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program import program as p
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from tests.kit.graphs.function_values import METHODS

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Instead of a thread: none, or several (of which each stands for any, as in a warp's loads of matrices).
NOBODY, ANYBODY = -1, -2


def unit_of(program: p.Program) -> int:
    """Bytes of a unit of shared memory."""
    return min(2, *(buffer.dtype.bytes for buffer in program.shared), 2)


class Fault(AssertionError):
    """The program does something that no right program does."""


class Kind(Enum):
    """What an access does; a copy writes when it is waited for."""

    READ = auto()
    WRITE = auto()
    COPY = auto()


@dataclass(frozen=True, slots=True)
class Access:
    """What the threads of a mask do at once to one buffer or parameter.

    Attributes:
        name: The buffer or parameter.
        kind: Read, write or copy.
        index, count: The first element [blocks, threads], and how many each thread touches.
        mask: Threads that do it [blocks, threads].
        block, thread: The same threads [accesses, 1].
        at: What they touch [accesses, units]: units of shared memory, or elements of a parameter.
    """

    name: str
    kind: Kind
    index: Ints
    count: int
    mask: Mask
    block: Ints
    thread: Ints
    at: Ints


@dataclass(slots=True)
class Copy:
    """A statement's asynchronous copies under way: to which units, by whom, of what, and in which group of a block."""

    number: int
    block: Ints
    thread: Ints
    at: Ints
    bits: NDArray[Any]
    group: Ints


class Observer:
    """Is told what a Program does, before it is done."""

    def statement(self, stmt: p.Stmt, mask: Mask) -> None:
        """A statement of the threads of a mask."""

    def register(self, array: str, slot: int) -> None:
        """A register is read or written."""

    def shared(self, access: Access) -> None:
        """Shared memory is accessed."""

    def device(self, access: Access) -> None:
        """Device memory is accessed."""

    def landed(self, copy: Copy) -> None:
        """Copies are complete for the threads that made them."""

    def barrier(self, blocks: Mask) -> None:
        """All threads of some blocks have met."""

    def end(self) -> None:
        """The program has ended."""


class Hazards(Observer):
    """Finds what depends on the order of threads or on what was there before, in shared memory.

    Between barriers, two threads that touch one unit with a write among the accesses; reads of what was not written
    through the same buffer last; accesses to the targets of copies that were not waited for.
    """

    def __init__(self, program: p.Program) -> None:
        gx, gy, gz = program.grid
        shape = (gx * gy * gz, program.shared_bytes // unit_of(program) + 2)
        self.numbers = {buffer.name: number for number, buffer in enumerate(program.shared, 1)}
        self.owner = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, bool)
        self.writer, self.reader = np.full(shape, NOBODY), np.full(shape, NOBODY)

    def shared(self, access: Access) -> None:
        """Marks it."""
        name, b, u, t = access.name, access.block, access.at, access.thread
        if self.pending[b, u].any():
            raise Fault(f"{name}: access to the target of a copy that was not waited for")
        w, r = self.writer[b, u], self.reader[b, u]
        if ((w != NOBODY) & (w != t)).any():
            raise Fault(f"{name}: access races with a write")
        if access.kind is Kind.READ:
            if (self.owner[b, u] != self.numbers[name]).any():
                raise Fault(f"{name}: read of what was never written through it, or written over")
            mine = np.where((r == NOBODY) | (r == t), t, ANYBODY)
            self.reader[b, u] = mine
            clash = self.reader[b, u] != mine
            self.reader[np.broadcast_to(b, u.shape)[clash], u[clash]] = ANYBODY
            return
        if ((r != NOBODY) & (r != t)).any():
            raise Fault(f"{name}: write races with a read")
        self.writer[b, u] = t
        if (self.writer[b, u] != t).any():
            raise Fault(f"{name}: two threads write one element")
        self.owner[b, u] = self.numbers[name]
        self.pending[b, u] = access.kind is Kind.COPY

    def landed(self, copy: Copy) -> None:
        """They count as written now."""
        self.pending[copy.block, copy.at] = False
        self.writer[copy.block, copy.at] = copy.thread

    def barrier(self, blocks: Mask) -> None:
        """What was done before disturbs nobody."""
        self.writer[blocks] = NOBODY
        self.reader[blocks] = NOBODY


class Writers(Observer):
    """Finds elements of outputs that two threads write, or none.

    Args:
        program: What runs.
        once: One thread may not write an element twice either.
    """

    def __init__(self, program: p.Program, *, once: bool) -> None:
        self.once, self.threads = once, program.threads
        self.owner = {item.name: np.zeros(item.elements, np.int64) for item in program.params if item.written}

    def device(self, access: Access) -> None:
        """Marks what is written."""
        if access.kind is not Kind.WRITE:
            return
        owner = self.owner[access.name]
        me = 1 + access.block * self.threads + access.thread
        before = owner[access.at]
        if ((before != 0) & (self.once | (before != me))).any():
            raise Fault(f"{access.name}: an element is written twice")
        owner[access.at] = me
        if (owner[access.at] != me).any():
            raise Fault(f"{access.name}: two threads write one element")

    def end(self) -> None:
        """Every element was written."""
        for name, owner in self.owner.items():
            if not owner.all():
                raise Fault(f"{name}: {np.count_nonzero(owner == 0)} elements never written, first {np.argmin(owner)}")


class Launches(Observer):
    """Finds what a kernel does among launches before it may.

    One that waits for the launch before touches nothing but inputs earlier, and lets the launch behind start no
    earlier.
    """

    def __init__(self, program: p.Program) -> None:
        self.early = "GridWait" in repr(program.body)
        self.given = {param.name for param in program.params if param.given and not param.written}

    def statement(self, stmt: p.Stmt, mask: Mask) -> None:
        """Marks the wait."""
        match stmt:
            case p.GridWait():
                if not self.early:
                    raise Fault("waits again for the launch before")
                self.early = False
            case p.LaunchDependents() if self.early:
                raise Fault("lets the launch behind start before it waits")

    def device(self, access: Access) -> None:
        """Nothing that is not given before the wait."""
        if self.early and access.name not in self.given:
            raise Fault(f"{access.name}: access before the wait for the launch before")


Values = NDArray[Any]
LIMIT = 2**31 - 1


def to_storage(a: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Floats as they are stored; bfloat16 as its 16 bits, and a mask as bytes."""
    a = np.asarray(a, np.float32)
    if dtype is DType.BOOL:
        return (a != 0).astype(np.uint8)
    if dtype is DType.FLOAT16:
        with np.errstate(over="ignore"):
            return a.astype(np.float16)
    if dtype is DType.BFLOAT16:
        bits = a.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(a), np.uint16(0x7FC0), rounded)
    return a


def from_storage(a: NDArray[Any], dtype: DType) -> NDArray[Any]:
    if dtype is DType.BFLOAT16:
        return (np.asarray(a).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(a).astype(np.float32)


STORAGE = {DType.FLOAT16: np.float16, DType.BFLOAT16: np.uint16, DType.FLOAT32: np.float32, DType.BOOL: np.uint8}


class Interpreter:
    """One run of a Program.

    Args:
        program: What runs.
        arrays: The parameters that it reads, flat, in order.
        observers: Who watches.
    """

    def __init__(self, program: p.Program, arrays: Sequence[Values], observers: Sequence[Observer] = ()) -> None:
        self.program, self.observers = program, observers
        gx, gy, gz = program.grid
        self.blocks, self.threads = gx * gy * gz, program.threads
        block, thread = np.indices((self.blocks, self.threads))
        self.block, self.thread = block, thread
        self.env: dict[str, Any] = {"tid": thread, "bx": block % gx, "by": block // gx % gy, "bz": block // (gx * gy)}
        given = iter(arrays)
        self.params: dict[str, Values] = {}
        for item in program.params:
            if item.written:
                self.params[item.name] = np.zeros(item.elements, STORAGE[item.dtype])
            else:
                array = np.ascontiguousarray(next(given)).reshape(-1)
                assert array.size == item.elements, (item, array.size)
                self.params[item.name] = to_storage(array, item.dtype)
        self.param = {item.name: item for item in program.params}
        self.buffer = {item.name: item for item in program.shared}
        #: Shared memory, in units of which every element has a whole number.
        self.unit = unit_of(program)
        self.raw = np.uint8 if self.unit == 1 else np.uint16
        units = (self.blocks, program.shared_bytes // self.unit + 2)
        self.memory = np.full(units, np.iinfo(self.raw).max, self.raw)
        self.registers: dict[str, Values] = {}
        self.written: dict[str, Values] = {}
        self.copies: list[Copy] = []
        self.copied = 0
        self.commits = np.zeros(self.blocks, np.int64)
        #: The producer's copies of each item, in order, with the values of its variables.
        self.items: dict[tuple[str, int], list[tuple[p.TileCopy, dict[str, Any]]]] = {}

    def run(self) -> tuple[Values, ...]:
        """Written parameters, flat, as float32.

        Raises:
            Fault: The program or an observer says so.
        """
        with np.errstate(all="ignore"):
            self.produce(self.program.producer)
            self.body(self.program.body, np.ones((self.blocks, self.threads), bool))
        for observer in self.observers:
            observer.end()
        return tuple(from_storage(self.params[i.name], i.dtype) for i in self.program.params if i.written)

    # --- integers

    def integer(self, e: p.IntExpr, mask: Mask) -> Any:
        """An int, or ints [blocks, threads] that have a meaning where the mask is set."""
        match e:
            case p.Int():
                found: Any = e.value
            case p.Var():
                found = self.env[e.name]
            case p.IntBin(op=p.IntOp.AND):
                first = self.integer(e.a, mask) != 0
                found = (first & (self.integer(e.b, mask & first) != 0)) * 1
            case p.IntBin():
                found = self.binary(e.op, self.integer(e.a, mask), self.integer(e.b, mask), mask)
        if isinstance(found, int):
            bad: Any = mask if not 0 <= found <= LIMIT else np.False_
        else:
            bad = ((found < 0) | (found > LIMIT)) & mask
        if bad.any():
            raise Fault("an integer overflows")
        return found

    def binary(self, op: p.IntOp, a: Any, b: Any, mask: Mask) -> Any:
        match op:
            case p.IntOp.ADD:
                return a + b
            case p.IntOp.SUB:
                return a - b
            case p.IntOp.MUL:
                return a * b
            case p.IntOp.DIV | p.IntOp.MOD:
                if ((b == 0) & mask).any():
                    raise Fault("division by zero")
                if not isinstance(b, int):
                    b = np.where(b == 0, 1, b)
                elif b == 0:
                    return 0
                return a // b if op is p.IntOp.DIV else a % b
            case p.IntOp.XOR:
                return a ^ b
            case p.IntOp.LT:
                return (a < b) * 1
            case p.IntOp.EQ:
                return (a == b) * 1
        raise AssertionError(op)

    def integers(self, e: p.IntExpr, mask: Mask) -> Ints:
        return np.broadcast_to(np.asarray(self.integer(e, mask)), mask.shape)

    # --- values

    def value(self, v: p.Value, mask: Mask) -> Values:
        match v:
            case p.Real():
                return np.full(mask.shape, v.value, np.float32)
            case p.Reg():
                at = self.slot(v.array, v.index, mask)
                self.expect_written(v.array, at, 1, mask)
                return self.registers[v.array][:, :, at]
            case p.SharedRead():
                return self.read_shared(v.buffer, v.index, 1, mask)[..., 0]
            case p.GlobalRead():
                return self.read_device(v.param, v.index, 1, mask)[..., 0]
            case p.Apply():
                return _UNARY[v.fn](self.value(v.a, mask))
            case p.Combine():
                return binary(v.fn, self.value(v.a, mask), self.value(v.b, mask))
            case p.Select():
                c = self.integers(v.condition, mask) != 0
                return np.where(c, self.value(v.a, mask & c), self.value(v.b, mask & ~c)).astype(np.float32)
            case p.Where():
                chosen = self.value(v.mask, mask) != 0
                return np.where(chosen, self.value(v.a, mask), self.value(v.b, mask)).astype(np.float32)

    def values(self, values: Sequence[p.Value], mask: Mask) -> Values:
        return np.stack([self.value(v, mask) for v in values], axis=-1)

    def slot(self, array: str, index: p.IntExpr, mask: Mask, count: int = 1) -> int:
        """The first of ``count`` registers, which is the same for all threads."""
        found = self.integer(index, mask)
        if not isinstance(found, int):
            used = np.unique(found[mask])
            if used.size > 1:
                raise Fault(f"{array}: index is no constant")
            found = int(used[0]) if used.size else 0
        first: int = found if mask.any() else 0
        if first + count > self.registers[array].shape[2]:
            raise Fault(f"{array}[{first}] x{count}: out of bounds")
        for observer in self.observers:
            observer.register(array, first)
        return first

    # --- memory

    def access(
        self, item: p.SharedBuffer | p.Param, e: p.IntExpr, count: int, mask: Mask, kind: Kind, *, anybody: bool = False
    ) -> Access:
        index = self.integers(e, mask)
        size, used = item.dtype.bytes, index[mask]
        if (used + count > item.elements).any():
            raise Fault(f"{item.name}[{used.max()}] x{count}: out of bounds ({item.elements})")
        block, thread = self.block[mask][:, None], self.thread[mask][:, None]
        thread = np.full_like(thread, ANYBODY) if anybody else thread
        if isinstance(item, p.Param):
            at, base = used[:, None] + np.arange(count), 0
            aligned = count == 1 or item.align % (count * size) == 0
        else:
            base, aligned = item.offset, item.offset % size == 0
            at = (base + used[:, None] * size) // self.unit + np.arange(count * size // self.unit)
        if not aligned or (count > 1 and ((base + used * size) % (count * size)).any()):
            raise Fault(f"{item.name}: misaligned")
        found = Access(item.name, kind, index, count, mask, block, thread, at)
        for observer in self.observers:
            (observer.device if isinstance(item, p.Param) else observer.shared)(found)
        return found

    def read_bits(self, buffer: str, e: p.IntExpr, count: int, mask: Mask, *, anybody: bool = False) -> Values:
        item = self.buffer[buffer]
        found = self.access(item, e, count, mask, Kind.READ, anybody=anybody)
        bits = np.zeros((*mask.shape, count * item.dtype.bytes // self.unit), self.raw)
        bits[mask] = self.memory[found.block, found.at]
        return bits

    def read_shared(self, buffer: str, e: p.IntExpr, count: int, mask: Mask) -> Values:
        dtype = self.buffer[buffer].dtype
        return from_storage(self.read_bits(buffer, e, count, mask).view(STORAGE[dtype]), dtype)

    def read_param(self, param: str, e: p.IntExpr, count: int, mask: Mask) -> Values:
        """Elements as they are stored."""
        item = self.param[param]
        if item.written:
            raise Fault(f"{param}: read of an output")
        found = self.access(item, e, count, mask, Kind.READ)
        out = np.zeros((*mask.shape, count), STORAGE[item.dtype])
        out[mask] = self.params[param][found.at]
        return out

    def read_device(self, param: str, e: p.IntExpr, count: int, mask: Mask) -> Values:
        return from_storage(self.read_param(param, e, count, mask), self.param[param].dtype)

    # --- statements

    def body(self, stmts: Sequence[p.Stmt], mask: Mask) -> None:
        for stmt in stmts:
            for observer in self.observers:
                observer.statement(stmt, mask)
            self.statement(stmt, mask)

    def everyone(self, stmt: p.Stmt, mask: Mask) -> Mask:
        """Blocks of which all threads are here; of the others none is."""
        if (mask != mask[:, :1]).any():
            raise Fault(f"{type(stmt).__name__} under a divergent condition")
        here: Mask = mask[:, 0]
        return here

    def put(self, array: str, slot: int, values: Values, mask: Mask) -> None:
        self.registers[array][:, :, slot][mask] = values[mask]
        self.written[array][:, :, slot] |= mask

    def expect_written(self, array: str, first: int, count: int, mask: Mask) -> None:
        if not self.written[array][mask][:, first : first + count].all():
            raise Fault(f"{array}[{first}] x{count}: read before it was written")

    def statement(self, s: p.Stmt, mask: Mask) -> None:  # noqa: C901
        match s:
            case p.Registers():
                if s.words:
                    self.registers[s.name] = np.full((*mask.shape, s.count, 2), 0xFFFF, np.uint16)
                else:
                    start = np.nan if s.initial is None else s.initial
                    self.registers[s.name] = np.full((*mask.shape, s.count), start, np.float32)
                self.written[s.name] = np.full((*mask.shape, s.count), s.initial is not None and not s.words)
            case p.For():
                for i in range(s.extent):
                    self.env[s.var] = i
                    self.body(s.body, mask)
            case p.If():
                met = self.integers(s.condition, mask) != 0
                if s.uniform and ((mask & met).any(axis=1) & (mask & ~met).any(axis=1)).any():
                    raise Fault("a condition called uniform is not")
                if (mask & met).any():
                    self.body(s.body, mask & met)
            case p.SetReg():
                values = self.value(s.value, mask)
                self.put(s.array, self.slot(s.array, s.index, mask), values, mask)
            case p.Pack():
                halves = to_storage(self.values((s.low, s.high), mask), s.dtype).view(np.uint16)
                self.put(s.words, self.slot(s.words, s.index, mask), halves, mask)
            case p.SharedWrite():
                item = self.buffer[s.buffer]
                bits = np.ascontiguousarray(to_storage(self.values(s.values, mask), item.dtype)).view(self.raw)
                found = self.access(item, s.index, len(s.values), mask, Kind.WRITE)
                self.memory[found.block, found.at] = bits[mask]
            case p.GlobalWrite():
                values = to_storage(self.values(s.values, mask), self.param[s.param].dtype)
                found = self.access(self.param[s.param], s.index, len(s.values), mask, Kind.WRITE)
                self.params[s.param][found.at] = values[mask]
            case p.SharedVector() | p.GlobalVector():
                if isinstance(s, p.SharedVector):
                    values = self.read_shared(s.buffer, s.index, s.count, mask)
                else:
                    values = self.read_device(s.param, s.index, s.count, mask)
                first = self.slot(s.array, s.at, mask, s.count)
                for k in range(s.count):
                    self.put(s.array, first + k, values[..., k], mask)
            case p.CopyAsync():
                self.copy(s, mask)
            case p.Commit():
                self.commits[self.everyone(s, mask)] += 1
            case p.WaitGroups():
                self.wait(self.everyone(s, mask), s.left)
            case p.Barrier():
                blocks = self.everyone(s, mask)
                for observer in self.observers:
                    observer.barrier(blocks)
            case p.GridWait() | p.LaunchDependents() | p.WarpgroupWait() | p.Release():
                self.everyone(s, mask)
            case p.Await():
                self.everyone(s, mask)
                self.receive(s, mask)
            case p.Acquire() | p.TileCopy():
                raise Fault(f"{type(s).__name__} outside of the producer")
            case p.LoadMatrix():
                self.everyone(s, mask)
                self.load_matrix(s, mask)
            case p.Mma():
                self.everyone(s, mask)
                self.mma(s, mask)
            case p.WarpgroupMma():
                self.everyone(s, mask)
                self.warpgroup_mma(s, mask)
            case p.ShuffleReduce():
                self.everyone(s, mask)
                i = self.slot(s.array, s.at, mask)
                self.expect_written(s.array, i, 1, mask)
                a = self.registers[s.array][:, :, i]
                self.put(s.array, i, binary(s.fn, a, a[:, np.arange(self.threads) ^ s.mask]), mask)
            case _:
                assert_never(s)

    def produce(self, body: Sequence[p.Stmt]) -> None:
        """Keep the copies of all items; they land when consumers have waited for these."""
        for s in body:
            match s:
                case p.For():
                    for i in range(s.extent):
                        self.env[s.var] = i
                        self.produce(s.body)
                    del self.env[s.var]
                case p.TileCopy():
                    item = self.integer(s.item, np.ones((1, 1), bool))
                    self.items.setdefault((s.pipeline, item), []).append((s, dict(self.env)))
                case p.Acquire() | p.GridWait():
                    pass
                case _:
                    raise Fault(f"{type(s).__name__} in the producer")

    def receive(self, s: p.Await, mask: Mask) -> None:
        found, here = self.integer(s.item, mask), self.env
        numbers = {found} if isinstance(found, int) else {int(n) for n in np.unique(found[mask])}
        if len(numbers) != 1 or (s.pipeline, *numbers) not in self.items:
            raise Fault(f"{s.pipeline}: no item {numbers}")
        one = np.zeros_like(mask)
        one[:, 0] = mask[:, 0]
        for copy, env in self.items.pop((s.pipeline, numbers.pop())):
            self.env = env
            for row in range(copy.rows):
                for chunk in range(p.TILE_COLUMNS // 8):
                    self.copy_chunk(copy, row, chunk, one)
        self.env = here

    def copy_chunk(self, s: p.TileCopy, row: int, chunk: int, mask: Mask) -> None:
        source = p.IntBin(p.IntOp.ADD, s.source, p.Int(s.stride * row + 8 * chunk))
        if (self.integers(s.source, mask)[mask] % s.stride + p.TILE_COLUMNS > s.stride).any():
            raise Fault(f"{s.param}: a row of the tile lies in two rows")
        bits = self.read_param(s.param, source, 8, mask).view(self.raw)
        start = p.IntBin(p.IntOp.MUL, s.at, p.Int(p.PANEL_UNIT))
        at = p.IntBin(p.IntOp.ADD, start, p.Int(p.TILE_COLUMNS * row + 8 * (chunk ^ row % 8)))
        found = self.access(self.buffer[s.buffer], at, 8, mask, Kind.WRITE)
        self.memory[found.block, found.at] = bits[mask]

    def copy(self, s: p.CopyAsync, mask: Mask) -> None:
        item = self.buffer[s.buffer]
        count = s.bytes // item.dtype.bytes
        assert item.dtype is self.param[s.param].dtype
        self.integers(s.source, mask)  # it is computed even where nothing is read
        bits = self.read_param(s.param, s.source, count, mask & (self.integers(s.valid, mask) != 0)).view(self.raw)
        found = self.access(item, s.index, count, mask, Kind.COPY)
        self.memory[found.block, found.at] = np.iinfo(self.raw).max
        group = self.commits[found.block[:, 0]]
        self.copies.append(Copy(self.copied, found.block, found.thread, found.at, bits[mask], group))
        self.copied += 1

    def wait(self, blocks: Mask, left: int) -> None:
        """Completes the copies of some blocks, but for those of the newest groups."""
        under_way = []
        for c in self.copies:
            block = c.block[:, 0]
            done = blocks[block] & (c.group < self.commits[block] - left)
            now, later = (
                Copy(c.number, c.block[x], c.thread[x], c.at[x], c.bits[x], c.group[x]) for x in (done, ~done)
            )
            if done.any():
                self.memory[now.block, now.at] = now.bits
                for observer in self.observers:
                    observer.landed(now)
            if not done.all():
                under_way.append(later)
        self.copies = under_way

    def load_matrix(self, s: p.LoadMatrix, mask: Mask) -> None:
        lanes = np.arange(32)
        self.integers(s.index, mask)  # other lanes' must be valid too
        used = mask & (np.arange(self.threads) % 32 < 8 * s.count)
        rows = self.read_bits(s.buffer, s.index, 8, used, anybody=True).view(np.uint16)  # [blocks, threads, 8]
        rows = rows.reshape(self.blocks, self.threads // 32, 4, 8, 8)
        first = self.slot(s.words, s.at, mask, s.count)
        for k in range(s.count):
            m = np.swapaxes(rows[:, :, k], 2, 3) if s.transposed else rows[:, :, k]
            pair = np.stack([m[:, :, lanes // 4, lanes % 4 * 2 + h] for h in range(2)], axis=-1)
            self.put(s.words, first + k, pair.reshape(self.blocks, self.threads, 2), mask)

    def mma(self, s: p.Mma, mask: Mask) -> None:
        warps = self.threads // 32
        lanes = np.arange(32)
        g, t = lanes // 4, lanes % 4

        def pairs(array: str, at: p.IntExpr, count: int) -> Values:
            used = count * s.dtype.bytes // 2
            first = self.slot(array, at, mask, used)
            self.expect_written(array, first, used, mask)
            bits = self.registers[array][:, :, first : first + used].reshape(self.blocks, warps, 32, count, 2)
            return from_storage(np.ascontiguousarray(bits).view(STORAGE[s.dtype]), s.dtype)

        a, b = pairs(s.a, s.a_at, 4), pairs(s.b, s.b_at, 2)
        left = np.zeros((self.blocks, warps, 16, 16), np.float32)
        right = np.zeros((self.blocks, warps, 16, 8), np.float32)
        for k in range(4):
            for h in range(2):
                left[:, :, g + 8 * (k % 2), 2 * t + h + 8 * (k // 2)] = a[:, :, :, k, h]
        for k in range(2):
            for h in range(2):
                right[:, :, 2 * t + h + 8 * k, g] = b[:, :, :, k, h]
        out = left @ right
        first = self.slot(s.d, s.d_at, mask, 4)
        self.expect_written(s.d, first, 4, mask)
        for k in range(4):
            part = out[:, :, g + 8 * (k // 2), 2 * t + k % 2].reshape(self.blocks, self.threads)
            self.put(s.d, first + k, self.registers[s.d][:, :, first + k] + part, mask)

    def warpgroup_mma(self, s: p.WarpgroupMma, mask: Mask) -> None:
        """Element by element, as the statement's docstring says."""
        tid = np.arange(self.threads)
        warp, g, t = tid % 128 // 32, tid % 32 // 4, tid % 4
        groups = self.threads // 128
        right = self.panels(s.b, s.b_at, (s.columns, s.depth, s.b_panel, s.b_across), s.dtype, mask)
        if s.a_panel:
            left = self.panels(s.a, s.a_at, (64, s.depth, s.a_panel, s.a_across), s.dtype, mask)
        else:
            first = self.slot(s.a, s.a_at, mask, s.depth // 4)
            self.expect_written(s.a, first, s.depth // 4, mask)
            bits = np.ascontiguousarray(self.registers[s.a][:, :, first : first + s.depth // 4])
            held = from_storage(bits.view(STORAGE[s.dtype]), s.dtype).reshape(self.blocks, self.threads, -1, 2)
            left = np.zeros((self.blocks, groups, 64, s.depth), np.float32)
            for word in range(s.depth // 4):
                for h in range(2):
                    row = 16 * warp + g + 8 * (word % 2)
                    inner = 16 * (word // 4) + 8 * (word // 2 % 2) + 2 * t + h
                    left[:, tid // 128, row, inner] = held[:, :, word, h]
        out = left @ np.swapaxes(right, 2, 3)
        first = self.slot(s.d, s.d_at, mask, s.columns // 2)
        if s.accumulate:
            self.expect_written(s.d, first, s.columns // 2, mask)
        for k in range(s.columns // 2):
            part = out[:, tid // 128, 16 * warp + g + 8 * (k // 2 % 2), 8 * (k // 4) + 2 * t + k % 2]
            self.put(s.d, first + k, self.registers[s.d][:, :, first + k] * s.accumulate + part, mask)

    def panels(self, name: str, at: p.IntExpr, extents: tuple[int, int, int, bool], dtype: DType, mask: Mask) -> Values:
        """[blocks, warpgroups, outer, inner] elements in shared memory, each read for the whole group."""
        outer, inner, panel, across = extents
        found = np.zeros((self.blocks, self.threads // 128, outer, inner), np.float32)
        for row in range(inner if across else outer):
            for column in range(0, outer if across else inner, 8):
                chunk = (column // 8 % 8) ^ (row % 8)
                start = p.IntBin(p.IntOp.MUL, at, p.Int(512))
                rest = p.Int(512 * panel * (column // 64) + 64 * row + 8 * chunk)
                bits = self.read_bits(name, p.IntBin(p.IntOp.ADD, start, rest), 8, mask, anybody=True)
                values = from_storage(np.ascontiguousarray(bits).view(STORAGE[dtype]), dtype)
                values = values.reshape(self.blocks, -1, 128, 8)
                assert (values == values[:, :, :1]).all(), "a warpgroup's threads give one position"
                part = values[:, :, 0]
                if across:
                    found[:, :, column : column + 8, row] = part
                else:
                    found[:, :, row, column : column + 8] = part
        return found


def _function(kind: OpKind) -> Callable[[NDArray[Any]], NDArray[Any]]:
    return lambda a: np.asarray(FUNCTION_SPECS[kind].evaluate(np, a), np.float32)


_UNARY: dict[p.UnaryFn, Callable[[NDArray[Any]], NDArray[Any]]] = {
    **{kind: _function(kind) for kind in METHODS},
    OpKind.LOGICAL_NOT: lambda a: (a == 0).astype(np.float32),
    p.KernelFn.NEG: lambda a: -a,
    p.KernelFn.RSQRT: lambda a: 1 / np.sqrt(a),
    p.KernelFn.ROUND_HALF: lambda a: from_storage(to_storage(a, DType.FLOAT16), DType.FLOAT16),
    p.KernelFn.ROUND_BFLOAT: lambda a: from_storage(to_storage(a, DType.BFLOAT16), DType.BFLOAT16),
}


def binary(fn: p.BinaryFn, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    F = p.BinaryFn
    ops: dict[p.BinaryFn, Callable[[NDArray[Any], NDArray[Any]], Any]] = {
        F.ADD: np.add,
        F.SUB: np.subtract,
        F.MUL: np.multiply,
        F.DIV: np.divide,
        F.MAX: np.maximum,
        F.MIN: np.minimum,
        F.DIV_NO_NAN: lambda a, b: np.where(b == 0, a * 0, a / b),
        F.EQ: np.equal,
        F.LT: np.less,
        F.LE: np.less_equal,
        F.GT: np.greater,
        F.GE: np.greater_equal,
    }
    return np.asarray(ops[fn](a, b), np.float32)


def watched(program: p.Program, arrays: Sequence[Values], *observers: Observer, once: bool) -> tuple[Values, ...]:
    """A run that is a fault if threads get in each other's way.

    Args:
        program: What runs.
        arrays: The parameters that it reads, flat, in order.
        observers: Who else watches.
        once: One thread may not write an element of an output twice.
    """
    own = Launches(program), Hazards(program), Writers(program, once=once)
    return Interpreter(program, arrays, (*own, *observers)).run()


def run(program: p.Program, arrays: Sequence[Values]) -> tuple[Values, ...]:
    """Written parameters, flat, as float32, after the program has run on flat arrays for the others."""
    return watched(program, arrays, once=True)


def fault(program: p.Program) -> str:
    """The first thing that goes wrong, or nothing; values make no difference to it."""
    try:
        watched(program, [np.zeros(item.elements) for item in program.params if not item.written], once=False)
    except Fault as found:
        return str(found)
    return ""
