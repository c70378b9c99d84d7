"""What a Program computes, statement by statement with numpy, all blocks and threads in lockstep.

It refuses reads of what was never written, accesses out of bounds, misaligned vectors, unsynchronised conflicts in
shared memory (between barriers, two threads touching one 16-bit unit with a write among the accesses), asynchronous
copies read before they were waited for, collectives under divergent conditions, and outputs written twice or never.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.types import DType
from mirage_formal.kernels.program import program as p


class Fault(AssertionError):
    """The program does something that no right program does."""


def to_storage(a: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Floats as they are stored; bfloat16 as its 16 bits."""
    a = np.asarray(a, np.float32)
    if dtype is DType.FLOAT16:
        with np.errstate(over="ignore"):
            return a.astype(np.float16)
    if dtype is DType.BFLOAT16:
        bits = a.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        )
        return np.where(np.isnan(a), np.uint16(0x7FC0), rounded)
    return a


def from_storage(a: NDArray[Any], dtype: DType) -> NDArray[Any]:
    if dtype is DType.BFLOAT16:
        return (np.asarray(a).astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(a).astype(np.float32)


STORAGE = {DType.FLOAT16: np.float16, DType.BFLOAT16: np.uint16, DType.FLOAT32: np.float32}


@dataclass
class Pending:
    unit: Any
    data: Any


class Machine:
    def __init__(self, program: p.Program, arrays: Sequence[NDArray[Any]]) -> None:
        self.program = program
        gx, gy, gz = program.grid
        self.blocks, self.threads = gx * gy * gz, program.threads
        b = np.arange(self.blocks)[:, None]
        t = np.arange(self.threads)[None, :]
        self.block, self.thread = np.broadcast_arrays(b, t)
        self.env: dict[str, Any] = {
            "tid": self.thread,
            "bx": self.block % gx,
            "by": self.block // gx % gy,
            "bz": self.block // (gx * gy),
        }
        self.params: dict[str, NDArray[Any]] = {}
        self.written: dict[str, NDArray[Any]] = {}
        given = iter(arrays)
        for item in program.params:
            if item.written:
                self.params[item.name] = np.zeros(item.elements, STORAGE[item.dtype])
                self.written[item.name] = np.zeros(item.elements, bool)
            else:
                array = np.ascontiguousarray(next(given)).reshape(-1)
                assert array.size == item.elements, (item, array.size)
                self.params[item.name] = to_storage(array, item.dtype)
        self.param = {item.name: item for item in program.params}
        self.buffer = {item.name: item for item in program.shared}
        units = (program.shared_bytes + 3) // 4 * 2
        self.shared = np.full((self.blocks, units), 0xFFFF, np.uint16)
        self.live = np.zeros((self.blocks, units), bool)
        self.waiting = np.zeros((self.blocks, units), bool)
        self.writer = np.full((self.blocks, units), -1)
        self.reader = np.full((self.blocks, units), -1)
        self.open: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]] = []
        self.groups: list[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]]] = []
        self.registers: dict[str, NDArray[Any]] = {}
        self.steps: dict[str, builtins.int] = {}

    def run(self) -> tuple[NDArray[Any], ...]:
        everyone = np.ones((self.blocks, self.threads), bool)
        with np.errstate(all="ignore"):
            self.body(self.program.body, everyone)
        for name, seen in self.written.items():
            if not seen.all():
                raise Fault(f"{name}: {np.count_nonzero(~seen)} elements never written, first {np.argmin(seen)}")
        return tuple(from_storage(self.params[i.name], i.dtype) for i in self.program.params if i.written)

    # --- integers and values

    def int(self, e: p.IntExpr) -> Any:
        match e:
            case p.Int():
                return e.value
            case p.Var():
                return self.env[e.name]
            case p.IntBin():
                a, b = self.int(e.a), self.int(e.b)
                match e.op:
                    case p.IntOp.ADD:
                        return a + b
                    case p.IntOp.SUB:
                        return a - b
                    case p.IntOp.MUL:
                        return a * b
                    case p.IntOp.DIV:
                        return a // b
                    case p.IntOp.MOD:
                        return a % b
                    case p.IntOp.XOR:
                        return a ^ b
                    case p.IntOp.LT:
                        return (a < b) * 1
                    case p.IntOp.EQ:
                        return (a == b) * 1
                    case p.IntOp.AND:
                        return ((a != 0) & (b != 0)) * 1
        raise AssertionError(e)

    def ints(self, e: p.IntExpr) -> NDArray[Any]:
        return np.broadcast_to(np.asarray(self.int(e)), self.thread.shape)

    def value(self, v: p.Value, mask: NDArray[Any]) -> NDArray[Any]:
        match v:
            case p.Real():
                return np.full(self.thread.shape, v.value, np.float32)
            case p.Reg():
                return self.registers[v.array][:, :, self.slot(v.array, v.index)]
            case p.SharedRead():
                return self.read_shared(v.buffer, self.ints(v.index), 1, mask)[..., 0]
            case p.GlobalRead():
                return self.read_global(v.param, self.ints(v.index), 1, mask)[..., 0]
            case p.Apply():
                return unary(v.fn, self.value(v.a, mask))
            case p.Combine():
                return binary(v.fn, self.value(v.a, mask), self.value(v.b, mask))
            case p.Select():
                c = self.ints(v.condition) != 0
                return np.where(c, self.value(v.a, mask & c), self.value(v.b, mask & ~c)).astype(np.float32)
        raise AssertionError(v)

    def slot(self, array: str, index: p.IntExpr) -> builtins.int:
        i = self.int(index)
        if not isinstance(i, int):
            raise Fault(f"{array}: index is no constant")
        if not 0 <= i < self.registers[array].shape[2]:
            raise Fault(f"{array}[{i}]: out of bounds")
        return i

    # --- memory

    def units(self, name: str, index: NDArray[Any], count: builtins.int, mask: NDArray[Any]) -> NDArray[Any]:
        """Positions of 16-bit units [blocks, threads, units] of ``count`` elements."""
        item = self.buffer[name]
        size = item.dtype.bytes
        bad = mask & ((index < 0) | (index + count > item.elements))
        if bad.any():
            raise Fault(f"{name}[{index[bad][0]}] x{count}: out of bounds ({item.elements})")
        at = item.offset + np.where(mask, index, 0) * size
        if (count > 1 and (at[mask] % min(16, count * size)).any()) or item.offset % size:
            raise Fault(f"{name}: misaligned")
        return at[..., None] // 2 + np.arange(count * size // 2)

    def check_read(self, name: str, unit: NDArray[Any], mask: NDArray[Any], who: NDArray[Any] | None = None) -> None:
        who = self.thread if who is None else who
        b = np.broadcast_to(self.block[..., None], unit.shape)[mask]
        u = unit[mask]
        t = np.broadcast_to(who[..., None], unit.shape)[mask]
        if self.waiting[b, u].any():
            raise Fault(f"{name}: read of a copy that was not waited for")
        if not self.live[b, u].all():
            raise Fault(f"{name}: read of what was never written")
        w = self.writer[b, u]
        if ((w != -1) & (w != t)).any():
            raise Fault(f"{name}: read races with a write")
        r = self.reader[b, u]
        mine = np.where((r == -1) | (r == t), t, -2)
        self.reader[b, u] = mine
        self.reader[b, u] = np.where(self.reader[b, u] == mine, mine, -2)

    def check_write(self, name: str, unit: NDArray[Any], mask: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        b = np.broadcast_to(self.block[..., None], unit.shape)[mask]
        u = unit[mask]
        t = np.broadcast_to(self.thread[..., None], unit.shape)[mask]
        if self.waiting[b, u].any():
            raise Fault(f"{name}: write to the target of a copy under way")
        w, r = self.writer[b, u], self.reader[b, u]
        if ((w != -1) & (w != t)).any() or ((r != -1) & (r != t)).any():
            raise Fault(f"{name}: write races")
        self.writer[b, u] = t
        if (self.writer[b, u] != t).any():
            raise Fault(f"{name}: two threads write one element")
        self.live[b, u] = True
        return b, u

    def read_shared(
        self, name: str, index: NDArray[Any], count: builtins.int, mask: NDArray[Any], raw: bool = False
    ) -> NDArray[Any]:
        unit = self.units(name, index, count, mask)
        self.check_read(name, unit, mask)
        bits = self.shared[self.block[..., None], unit]
        if raw:
            return bits
        dtype = self.buffer[name].dtype
        return from_storage(np.ascontiguousarray(bits).view(STORAGE[dtype]), dtype)

    def write_shared(self, name: str, index: NDArray[Any], values: NDArray[Any], mask: NDArray[Any]) -> None:
        dtype = self.buffer[name].dtype
        unit = self.units(name, index, values.shape[-1], mask)
        b, u = self.check_write(name, unit, mask)
        bits = np.ascontiguousarray(to_storage(values, dtype)).view(np.uint16)
        self.shared[b, u] = bits[mask].reshape(-1) if b.ndim == 1 else bits[mask]

    def global_positions(self, name: str, index: NDArray[Any], count: builtins.int, mask: NDArray[Any]) -> NDArray[Any]:
        item = self.param[name]
        bad = mask & ((index < 0) | (index + count > item.elements))
        if bad.any():
            raise Fault(f"{name}[{index[bad][0]}] x{count}: out of bounds ({item.elements})")
        if count > 1 and (index[mask] * item.dtype.bytes % min(16, count * item.dtype.bytes)).any():
            raise Fault(f"{name}: misaligned")
        return np.where(mask, index, 0)[..., None] + np.arange(count)

    def read_global(self, name: str, index: NDArray[Any], count: builtins.int, mask: NDArray[Any]) -> NDArray[Any]:
        if self.param[name].written:
            raise Fault(f"{name}: read of an output")
        at = self.global_positions(name, index, count, mask)
        return from_storage(self.params[name][at], self.param[name].dtype)

    # --- statements

    def body(self, stmts: Sequence[p.Stmt], mask: NDArray[Any]) -> None:
        for stmt in stmts:
            self.statement(stmt, mask)

    def everyone(self, stmt: p.Stmt, mask: NDArray[Any]) -> None:
        if not mask.all():
            raise Fault(f"{type(stmt).__name__} under a divergent condition")

    def statement(self, s: p.Stmt, mask: NDArray[Any]) -> None:  # noqa: C901
        kind = type(s).__name__
        self.steps[kind] = self.steps.get(kind, 0) + 1
        match s:
            case p.Registers():
                if s.words:
                    new = np.full((self.blocks, self.threads, s.count, 2), 0xFFFF, np.uint16)
                else:
                    start = np.nan if s.initial is None else s.initial
                    new = np.full((self.blocks, self.threads, s.count), start, np.float32)
                self.registers[s.name] = new
            case p.For():
                for i in range(s.extent):
                    self.env[s.var] = i
                    self.body(s.body, mask)
            case p.If():
                c = self.ints(s.condition) != 0
                if s.uniform:
                    if not (c == c[:, :1]).all():
                        raise Fault("a condition called uniform is not")
                    if c.all() or not c.any():
                        if c.any():
                            self.body(s.body, mask)
                        return
                    # Blocks that differ: collectives inside see only whole blocks.
                if (mask & c).any():
                    self.body(s.body, mask & c)
            case p.SetReg():
                i = self.slot(s.array, s.index)
                array = self.registers[s.array]
                array[:, :, i] = np.where(mask, self.value(s.value, mask), array[:, :, i])
            case p.Pack():
                i = self.slot(s.words, s.index)
                halves = np.stack([self.value(s.low, mask), self.value(s.high, mask)], axis=-1)
                self.registers[s.words][:, :, i][mask] = to_storage(halves, s.dtype).view(np.uint16)[mask]
            case p.SharedWrite():
                values = np.stack([self.value(v, mask) for v in s.values], axis=-1)
                self.write_shared(s.buffer, self.ints(s.index), values, mask)
            case p.GlobalWrite():
                values = np.stack([self.value(v, mask) for v in s.values], axis=-1)
                at = self.global_positions(s.param, self.ints(s.index), len(s.values), mask)[mask]
                seen = self.written[s.param]
                if seen[at].any() or np.unique(at).size != at.size:
                    raise Fault(f"{s.param}: an element is written twice")
                seen[at] = True
                self.params[s.param][at] = to_storage(values, self.param[s.param].dtype)[mask]
            case p.SharedVector() | p.GlobalVector():
                found = (
                    self.read_shared(s.buffer, self.ints(s.index), s.count, mask)
                    if isinstance(s, p.SharedVector)
                    else self.read_global(s.param, self.ints(s.index), s.count, mask)
                )
                first = self.slot(s.array, s.at)
                for k in range(s.count):
                    i = self.slot(s.array, p.Int(first + k))
                    array = self.registers[s.array]
                    array[:, :, i] = np.where(mask, found[..., k], array[:, :, i])
            case p.CopyAsync():
                self.copy(s, mask)
            case p.Commit():
                self.everyone(s, mask)
                self.groups.append(self.open)
                self.open = []
            case p.WaitGroups():
                self.everyone(s, mask)
                while len(self.groups) > s.left:
                    for item in self.groups.pop(0):
                        self.land(item)
            case p.Barrier():
                self.everyone(s, mask)
                self.writer[:] = -1
                self.reader[:] = -1
            case p.LoadMatrix():
                self.everyone(s, mask)
                self.load_matrix(s)
            case p.Mma():
                self.everyone(s, mask)
                self.mma(s)
            case p.ShuffleReduce():
                self.everyone(s, mask)
                i = self.slot(s.array, s.at)
                array = self.registers[s.array]
                a = array[:, :, i]
                array[:, :, i] = binary(s.fn, a, a[:, np.arange(self.threads) ^ s.mask])
            case _:
                raise AssertionError(s)

    def copy(self, s: p.CopyAsync, mask: NDArray[Any]) -> None:
        item = self.buffer[s.buffer]
        count = s.bytes // item.dtype.bytes
        assert item.dtype is self.param[s.param].dtype
        unit = self.units(s.buffer, self.ints(s.index), count, mask)
        valid = mask & (self.ints(s.valid) != 0)
        at = self.global_positions(s.param, self.ints(s.source), count, valid)
        bits = np.ascontiguousarray(self.params[s.param][at]).view(np.uint16)
        bits = np.where(valid[..., None], bits, np.uint16(0))
        b, u = self.check_write(s.buffer, unit, mask)
        self.waiting[b, u] = True
        self.shared[b, u] = 0xFFFF
        t = np.broadcast_to(self.thread[..., None], unit.shape)[mask]
        self.open.append((b, u, t, bits[mask]))

    def land(self, item: tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]) -> None:
        b, u, t, bits = item
        self.waiting[b, u] = False
        self.shared[b, u] = bits
        self.writer[b, u] = t

    def load_matrix(self, s: p.LoadMatrix) -> None:
        lane = np.arange(self.threads) % 32
        used = lane < 8 * s.count
        index = self.ints(s.index)
        mask = np.broadcast_to(used, index.shape)
        rows = self.read_shared(s.buffer, index, 8, mask, raw=True)  # [blocks, threads, 8]
        warps = self.threads // 32
        rows = rows.reshape(self.blocks, warps, 4, 8, 8)
        words = self.registers[s.words]
        first = self.slot(s.words, s.at)
        lanes = np.arange(32)
        for k in range(s.count):
            m = rows[:, :, k]
            if s.transposed:
                m = np.swapaxes(m, 2, 3)
            pair = np.stack([m[:, :, lanes // 4, lanes % 4 * 2], m[:, :, lanes // 4, lanes % 4 * 2 + 1]], axis=-1)
            words[:, :, self.slot(s.words, p.Int(first + k))] = pair.reshape(self.blocks, self.threads, 2)

    def mma(self, s: p.Mma) -> None:
        warps = self.threads // 32
        lanes = np.arange(32)
        g, t = lanes // 4, lanes % 4

        def halves(words: str, first: builtins.int, count: builtins.int) -> NDArray[Any]:
            w = [self.registers[words][:, :, self.slot(words, p.Int(first + k))] for k in range(count)]
            bits = np.stack(w, axis=2).reshape(self.blocks, warps, 32, count, 2)
            return from_storage(bits.view(STORAGE[s.dtype]), s.dtype)

        a = halves(s.a, self.slot(s.a, s.a_at), 4)
        b = halves(s.b, self.slot(s.b, s.b_at), 2)
        left = np.zeros((self.blocks, warps, 16, 16), np.float32)
        right = np.zeros((self.blocks, warps, 16, 8), np.float32)
        for k in range(4):
            for h in range(2):
                left[:, :, g + 8 * (k % 2), 2 * t + h + 8 * (k // 2)] = a[:, :, :, k, h]
        for k in range(2):
            for h in range(2):
                right[:, :, 2 * t + h + 8 * k, g] = b[:, :, :, k, h]
        out = left @ right
        first = self.slot(s.d, s.d_at)
        d = self.registers[s.d]
        for k in range(4):
            part = out[:, :, g + 8 * (k // 2), 2 * t + k % 2].reshape(self.blocks, self.threads)
            d[:, :, self.slot(s.d, p.Int(first + k))] += part


_UNARY: dict[p.UnaryFn, Callable[[NDArray[Any]], NDArray[Any]]] = {
    p.UnaryFn.NEG: lambda a: -a,
    p.UnaryFn.EXP: np.exp,
    p.UnaryFn.SQRT: np.sqrt,
    p.UnaryFn.RSQRT: lambda a: 1 / np.sqrt(a),
    p.UnaryFn.SQUARE: lambda a: a * a,
    p.UnaryFn.SILU: lambda a: a / (1 + np.exp(-a)),
    p.UnaryFn.GELU: lambda a: (0.5 * a * (1 + np.vectorize(erf)(a / np.sqrt(2)))).astype(np.float32),
    p.UnaryFn.RELU: lambda a: np.maximum(a, 0),
    p.UnaryFn.SIGMOID: lambda a: 1 / (1 + np.exp(-a)),
    p.UnaryFn.TANH: np.tanh,
    p.UnaryFn.ERF: np.vectorize(erf, otypes=[np.float32]),
    p.UnaryFn.LOG: np.log,
    p.UnaryFn.ABS: np.abs,
    p.UnaryFn.RECIPROCAL: lambda a: 1 / a,
    p.UnaryFn.ROUND_HALF: lambda a: from_storage(to_storage(a, DType.FLOAT16), DType.FLOAT16),
    p.UnaryFn.ROUND_BFLOAT: lambda a: from_storage(to_storage(a, DType.BFLOAT16), DType.BFLOAT16),
}


def unary(fn: p.UnaryFn, a: NDArray[Any]) -> NDArray[Any]:
    return _UNARY[fn](a)


def binary(fn: p.BinaryFn, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    F = p.BinaryFn
    ops = {
        F.ADD: np.add,
        F.SUB: np.subtract,
        F.MUL: np.multiply,
        F.DIV: np.divide,
        F.MAX: np.maximum,
        F.MIN: np.minimum,
    }
    return ops[fn](a, b)


def run(program: p.Program, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Written parameters, flat, as float32, after the program has run on flat arrays for the others."""
    return Machine(program, arrays).run()
