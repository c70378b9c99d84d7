"""Every Program that differs from a given one by one small mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mirage_formal.kernels.program.program import (
    Barrier,
    Commit,
    CopyAsync,
    For,
    GlobalVector,
    GlobalWrite,
    If,
    Int,
    IntBin,
    IntOp,
    LoadMatrix,
    Mma,
    Pack,
    Program,
    Reg,
    Registers,
    SetReg,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Var,
    WaitGroups,
)

OTHER = {
    IntOp.ADD: IntOp.MUL,
    IntOp.MUL: IntOp.ADD,
    IntOp.DIV: IntOp.MOD,
    IntOp.MOD: IntOp.DIV,
    IntOp.XOR: IntOp.ADD,
    IntOp.LT: IntOp.EQ,
    IntOp.EQ: IntOp.LT,
}


def constants(value: int) -> Iterator[int]:
    """Other values of a constant."""
    yield from (n for n in dict.fromkeys((value + 1, value - 1, 2 * value, value // 2)) if n != value and n >= 0)


def own_changes(node: Any) -> Iterator[tuple[str, Any]]:
    """Changes of the node itself."""
    match node:
        case Int(v):
            yield from ((f"{v} -> {n}", Int(n)) for n in constants(v))
        case WaitGroups(left):
            yield from ((f"wait {left} -> {n}", WaitGroups(n)) for n in (left + 1, left - 1) if n >= 0)
        case IntBin(op, a, b) if op in OTHER:
            yield f"{op} -> {OTHER[op]}", IntBin(OTHER[op], a, b)
            yield f"{op}: left only", a
        case For(var, extent, body, unroll):
            for n in dict.fromkeys((extent + 1, extent - 1, 2 * extent)):
                if n > 0:
                    yield f"for {var} < {extent} -> {n}", For(var, n, body, unroll)
        case If(_, body, uniform):
            yield "if 1", If(Int(1), body, uniform)
        case CopyAsync(valid=valid) if valid != Int(1):
            yield "valid", replace(node, valid=Int(1))


def changes(node: Any) -> Iterator[tuple[str, Any]]:
    """The node with one change somewhere in it."""
    yield from own_changes(node)
    if isinstance(node, tuple):
        for position, inner in enumerate(node):
            before, after = node[:position], node[position + 1 :]
            if isinstance(inner, Barrier | WaitGroups | Commit):
                yield f"drop {type(inner).__name__}", (*before, *after)
                if after:
                    yield f"delay {type(inner).__name__}", (*before, after[0], inner, *after[1:])
            for what, changed in changes(inner):
                yield f"[{position}] {what}", (*before, changed, *after)
    elif is_dataclass(node) and not isinstance(node, type | Int | WaitGroups | Registers | Reg):
        for f in fields(node):
            value = getattr(node, f.name)
            if isinstance(value, tuple) or is_dataclass(value):
                for what, changed in changes(value):
                    yield f"{type(node).__name__}.{f.name} {what}", replace(node, **{f.name: changed})


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """One small mistake each: statements, expressions, buffers."""
    for what, body in changes(program.body):
        yield what, replace(program, body=body)
    for position, buffer in enumerate(program.shared):
        before, after = program.shared[:position], program.shared[position + 1 :]
        for other in program.shared:
            if other.offset != buffer.offset:
                yield (
                    f"{buffer.name} at {other.name}",
                    replace(program, shared=(*before, replace(buffer, offset=other.offset), *after)),
                )
        for offset in (buffer.offset + 16, buffer.offset + 2, buffer.offset - 16):
            if offset >= 0:
                yield (
                    f"{buffer.name} at {offset}",
                    replace(program, shared=(*before, replace(buffer, offset=offset), *after)),
                )
        shorter = replace(buffer, elements=buffer.elements - 1)
        yield f"{buffer.name} shorter", replace(program, shared=(*before, shorter, *after))
        for second, other in enumerate(program.shared[:position]):
            swapped = list(program.shared)
            swapped[position], swapped[second] = (
                replace(buffer, offset=other.offset),
                replace(other, offset=buffer.offset),
            )
            yield f"swap {buffer.name}, {other.name}", replace(program, shared=tuple(swapped))
    for position, param in enumerate(program.params):
        for elements in (param.elements - 1, param.elements + 1):
            params = list(program.params)
            params[position] = replace(param, elements=elements)
            yield f"{param.name} {elements}", replace(program, params=tuple(params))
    for grid in (program.grid[0] + 1, program.grid[0] - 1):
        if grid > 0:
            yield f"grid {grid}", replace(program, grid=(grid, *program.grid[1:]))


WRITES = (SetReg, Pack, SharedWrite, SharedVector, GlobalVector, CopyAsync, LoadMatrix, Mma, ShuffleReduce, GlobalWrite)


def write_mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """One write removed, moved, made less often or conditional; or an initialisation removed."""
    for what, body in _writes(program.body):
        yield what, replace(program, body=body)


def _writes(body: tuple[Stmt, ...]) -> Iterator[tuple[str, tuple[Stmt, ...]]]:
    for position, stmt in enumerate(body):
        before, after = body[:position], body[position + 1 :]
        for what, changed in _rewritten(stmt):
            yield f"[{position}] {what}", (*before, *changed, *after)
        if after and not isinstance(stmt, Registers):
            yield f"[{position}] swap", (*before, after[0], stmt, *after[1:])


def _rewritten(stmt: Stmt) -> Iterator[tuple[str, tuple[Stmt, ...]]]:
    name = type(stmt).__name__
    if isinstance(stmt, (*WRITES, For, If)):
        yield f"drop {name}", ()
    match stmt:
        case Registers(initial=value) if value is not None:
            yield "no initial value", (replace(stmt, initial=None),)
        case For(var, extent, body):
            for n in sorted({extent - 1, extent // 2, 1} - {0, extent}):
                yield f"for {var} < {extent} -> {n}", (replace(stmt, extent=n),)
            yield from ((what, (replace(stmt, body=inner),)) for what, inner in _writes(body))
        case If(_, body):
            yield from ((what, (replace(stmt, body=inner),)) for what, inner in _writes(body))
        case SetReg():
            yield "some threads only", (If(IntBin(IntOp.LT, Var("tid"), Int(7)), (stmt,)),)
    if isinstance(stmt, SetReg | Pack | SharedVector | GlobalVector | LoadMatrix | Mma):
        for f in fields(stmt):
            if f.name in ("index", "at", "a_at", "b_at", "d_at"):
                moved = IntBin(IntOp.ADD, getattr(stmt, f.name), Int(1))
                changed: Any = {f.name: moved}
                yield f"{name}.{f.name} one further", (replace(stmt, **changed),)
