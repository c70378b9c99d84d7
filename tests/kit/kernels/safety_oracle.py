"""What goes wrong when a small Program runs: every block, thread and iteration, all threads in step, nothing symbolic.

Written apart from mirage_formal/verify and by another method: each access of each thread becomes rows of (unit of two
bytes, thread, kind, first and last epoch); a unit with a write and a second thread in one epoch is a race.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from mirage_formal.kernels.program import program as ir
from mirage_formal.kernels.program.program import IntOp

Ints = np.ndarray[Any, np.dtype[np.int64]]
ANYBODY = -1
LIMIT = 2**31 - 1


class Fault(Exception):
    """The first thing that goes wrong."""


@dataclass
class Row:
    """Units that one statement touches: ``units[i]`` by ``threads[i]``."""

    units: Ints
    threads: Ints
    write: bool
    epochs: list[int]
    pending: bool = False


@dataclass
class Block:
    """One block that runs."""

    program: ir.Program
    variables: dict[str, Ints]
    writers: dict[str, Ints]
    number: int
    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, Row]] = field(default_factory=list)
    epoch: int = 0
    commits: int = 0

    def __post_init__(self) -> None:
        self.size = max(self.program.shared_bytes, 2)
        self.owner = np.zeros(self.size // 2 + 1, dtype=np.int64)
        self.shared = {buffer.name: buffer for buffer in self.program.shared}
        self.params = {param.name: param for param in self.program.params}

    # --- expressions ---

    def value(self, e: ir.IntExpr, mask: Ints) -> Ints:
        match e:
            case ir.Int(v):
                found = np.full(len(mask), v)
            case ir.Var(name):
                found = self.variables[name]
            case ir.IntBin(IntOp.AND, a, b):
                x = self.value(a, mask)
                y = self.value(b, mask & (x != 0))
                found = ((x != 0) & (y != 0)).astype(np.int64)
            case ir.IntBin(op, a, b):
                found = self.operate(op, self.value(a, mask), self.value(b, mask), mask)
        if ((found < 0) | (found > LIMIT))[mask].any():
            raise Fault("overflow")
        return found

    def operate(self, op: IntOp, x: Ints, y: Ints, mask: Ints) -> Ints:
        if op in (IntOp.DIV, IntOp.MOD):
            if (y == 0)[mask].any():
                raise Fault("division by zero")
            y = np.where(y == 0, 1, y)
        return {
            IntOp.ADD: np.add,
            IntOp.SUB: np.subtract,
            IntOp.MUL: np.multiply,
            IntOp.DIV: np.floor_divide,
            IntOp.MOD: np.mod,
            IntOp.XOR: np.bitwise_xor,
            IntOp.LT: np.less,
            IntOp.EQ: np.equal,
        }[op](x, y).astype(np.int64)

    def values(self, value: ir.Value, mask: Ints) -> None:
        match value:
            case ir.Real():
                pass
            case ir.Reg(array, index):
                self.register(array, index, 1, mask)
            case ir.SharedRead(name, index):
                self.touch(name, index, 1, mask)
            case ir.GlobalRead(name, index):
                self.param(name, index, 1, mask)
            case ir.Apply(_, a):
                self.values(a, mask)
            case ir.Combine(_, a, b):
                self.values(a, mask)
                self.values(b, mask)
            case ir.Select(condition, a, b):
                chosen = self.value(condition, mask) != 0
                self.values(a, mask & chosen)
                self.values(b, mask & ~chosen)

    def register(self, array: str, index: ir.IntExpr, used: int, mask: Ints) -> None:
        at = self.value(index, mask)[mask]
        if at.size and (at.min() != at.max() or at.max() + used > self.registers[array]):
            raise Fault("register")

    # --- memory ---

    def units(self, name: str, index: ir.IntExpr, count: int, mask: Ints, align: bool) -> tuple[Ints, Ints]:
        buffer = self.shared[name]
        at = self.value(index, mask)[mask]
        if at.size and at.max() + count > buffer.elements:
            raise Fault("shared bounds")
        first = buffer.offset + at * buffer.dtype.bytes
        if align and (first % (count * buffer.dtype.bytes)).any():
            raise Fault("alignment")
        threads = np.flatnonzero(mask)
        steps = np.arange(count * buffer.dtype.bytes // 2)
        return (first[:, None] // 2 + steps).ravel(), np.repeat(threads, len(steps))

    def touch(self, name: str, index: ir.IntExpr, count: int, mask: Ints, *, anybody: bool = False) -> None:
        units, threads = self.units(name, index, count, mask, count > 1)
        if (self.owner[units] != self.identity(name)).any():
            raise Fault("not live")
        self.add(Row(units, np.full_like(threads, ANYBODY) if anybody else threads, False, [self.epoch]))

    def identity(self, name: str) -> int:
        return 1 + [buffer.name for buffer in self.program.shared].index(name)

    def store(self, name: str, index: ir.IntExpr, count: int, mask: Ints) -> None:
        units, threads = self.units(name, index, count, mask, count > 1)
        self.owner[units] = self.identity(name)
        self.add(Row(units, threads, True, [self.epoch]))

    def add(self, row: Row) -> None:
        mine = set(zip(row.units.tolist(), row.threads.tolist(), strict=True))
        for _, copy in self.copies:
            if (row.write or copy.write) and copy.pending:
                theirs = zip(copy.units.tolist(), copy.threads.tolist(), strict=True)
                if any(pair in mine or (pair[0], ANYBODY) in mine for pair in theirs):
                    raise Fault("copy in flight")
        self.rows.append(row)

    def param(self, name: str, index: ir.IntExpr, count: int, mask: Ints, *, write: bool = False) -> None:
        param = self.params[name]
        at = self.value(index, mask)[mask]
        if at.size and at.max() + count > param.elements:
            raise Fault("global bounds")
        size = count * param.dtype.bytes
        if count > 1 and (param.align % size or (at * param.dtype.bytes % size).any()):
            raise Fault("alignment")
        if write:
            owners = self.writers[name]
            elements = (at[:, None] + np.arange(count)).ravel()
            me = np.repeat(1 + self.number * self.program.threads + np.flatnonzero(mask), count)
            if ((owners[elements] != 0) & (owners[elements] != me)).any():
                raise Fault("two writers")
            owners[elements] = me
            if (owners[elements] != me).any():
                raise Fault("two writers")

    # --- statements ---

    def run(self) -> None:
        self.registers: dict[str, int] = {}
        self.body(self.program.body, np.ones(self.program.threads, dtype=bool))
        for _, copy in self.copies:
            if copy.pending:
                copy.epochs = list(range(copy.epochs[0], self.epoch + 1))
        self.races()

    def races(self) -> None:
        if not self.rows:
            return
        parts = [(row, epoch) for row in self.rows for epoch in row.epochs]
        units = np.concatenate([row.units + self.size * epoch for row, epoch in parts])
        threads = np.concatenate([row.threads for row, _ in parts])
        write = np.concatenate([np.full(len(row.units), row.write) for row, _ in parts])
        order = np.argsort(units, kind="stable")
        units, threads, write = units[order], threads[order], write[order]
        starts = np.flatnonzero(np.r_[True, units[1:] != units[:-1]])[: len(units)]
        if not len(units):
            return
        mixed = np.minimum.reduceat(threads, starts) != np.maximum.reduceat(threads, starts)
        if (mixed & np.logical_or.reduceat(write, starts)).any():
            raise Fault("race")

    def body(self, body: tuple[ir.Stmt, ...], mask: Ints) -> None:
        for stmt in body:
            self.statement(stmt, mask)

    def statement(self, stmt: ir.Stmt, mask: Ints) -> None:
        match stmt:
            case ir.Registers(name, count):
                self.registers[name] = count
            case ir.For(var, extent, body):
                for i in range(extent):
                    self.variables[var] = np.full(len(mask), i)
                    self.body(body, mask)
            case ir.If(condition, body, uniform):
                met = self.value(condition, mask) != 0
                if uniform and mask.any() and met[mask].min() != met[mask].max():
                    raise Fault("not uniform")
                if (mask & met).any():
                    self.body(body, mask & met)
            case ir.Barrier():
                self.everybody(mask)
                self.epoch += 1
            case ir.Commit():
                self.everybody(mask)
                self.commits += 1
            case ir.WaitGroups(left):
                self.everybody(mask)
                for group, copy in self.copies:
                    if group < self.commits - left and copy.pending:
                        copy.pending = False
                        copy.epochs = list(range(copy.epochs[0], self.epoch + 1))
            case _:
                self.simple(stmt, mask)

    def everybody(self, mask: Ints) -> None:
        if not mask.all():
            raise Fault("divergent")

    def simple(self, stmt: ir.Stmt, mask: Ints) -> None:
        match stmt:
            case ir.SetReg(array, index, value):
                self.values(value, mask)
                self.register(array, index, 1, mask)
            case ir.Pack(words, index, low, high):
                self.values(low, mask)
                self.values(high, mask)
                self.register(words, index, 1, mask)
            case ir.SharedWrite(name, index, values):
                for value in values:
                    self.values(value, mask)
                self.store(name, index, len(values), mask)
            case ir.GlobalWrite(name, index, values):
                for value in values:
                    self.values(value, mask)
                self.param(name, index, len(values), mask, write=True)
            case ir.SharedVector(array, at, name, index, count):
                self.touch(name, index, count, mask)
                self.register(array, at, count, mask)
            case ir.GlobalVector(array, at, name, index, count):
                self.param(name, index, count, mask)
                self.register(array, at, count, mask)
            case ir.CopyAsync(name, index, param, source, valid, size):
                count = size // self.shared[name].dtype.bytes
                self.value(source, mask)
                self.param(param, source, count, mask & (self.value(valid, mask) != 0))
                units, threads = self.units(name, index, count, mask, True)
                if len(set(units.tolist())) != len(units):
                    raise Fault("race")
                row = Row(units, threads, True, [self.epoch], pending=True)
                self.add(row)
                self.owner[units] = self.identity(name)
                self.copies.append((self.commits, row))
            case ir.LoadMatrix(words, at, name, index, count):
                self.everybody(mask)
                self.value(index, mask)
                self.touch(name, index, 8, mask & (np.arange(len(mask)) % 32 < 8 * count), anybody=True)
                self.register(words, at, count, mask)
            case ir.Mma(d, d_at, a, a_at, b, b_at):
                self.everybody(mask)
                self.register(d, d_at, 4, mask)
                self.register(a, a_at, 4, mask)
                self.register(b, b_at, 2, mask)
            case ir.ShuffleReduce(array, at):
                self.everybody(mask)
                self.register(array, at, 1, mask)
            case _:
                raise AssertionError(stmt)


def fault(program: ir.Program) -> str:
    """The first thing that goes wrong in any block, or nothing."""
    writers = {p.name: np.zeros(p.elements, dtype=np.int64) for p in program.params if p.written}
    try:
        for number, (z, y, x) in enumerate(product(*(range(n) for n in reversed(program.grid)))):
            one = np.ones(program.threads, dtype=np.int64)
            variables = {"tid": np.arange(program.threads), "bx": x * one, "by": y * one, "bz": z * one}
            Block(program, variables, writers, number).run()
    except Fault as found:
        return str(found)
    for name, owners in writers.items():
        if (owners == 0).any():
            return f"{name} is not written everywhere"
    return ""
