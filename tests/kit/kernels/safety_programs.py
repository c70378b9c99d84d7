"""Programs written by hand, in the forms that kernels take, and all that differ from one by a small mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mirage_formal.codegen.program.program import (
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
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    LoadMatrix,
    Mma,
    Pack,
    Param,
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
    Var,
    WaitGroups,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType

Operand = IntExpr | int
HALF, SINGLE = DType.FLOAT16, DType.FLOAT32


def expr(x: Operand) -> IntExpr:
    return Int(x) if isinstance(x, int) else x


def operator(op: IntOp) -> Callable[[Operand, Operand], IntExpr]:
    return lambda a, b: IntBin(op, expr(a), expr(b))


add, sub, mul = operator(IntOp.ADD), operator(IntOp.SUB), operator(IntOp.MUL)
div, mod, xor = operator(IntOp.DIV), operator(IntOp.MOD), operator(IntOp.XOR)
less, equal, both = operator(IntOp.LT), operator(IntOp.EQ), operator(IntOp.AND)
tid, bx, by = Var("tid"), Var("bx"), Var("by")


def total(*terms: Operand) -> IntExpr:
    found = expr(terms[0])
    for term in terms[1:]:
        found = add(found, term)
    return found


def gemm(m: int = 16, n: int = 128, k: int = 512, *, block_n: int = 64, stages: int = 3) -> Program:
    """C[m, n] = A[m, k] B[n, k]^T: 128 threads, tiles of 64 along k in a ring of buffers, swizzled rows, m16n8k16."""
    tile, threads = 64, 128
    steps = k // tile
    a_size, b_size = m * tile, block_n * tile
    a = SharedBuffer("a_ring", HALF, stages * a_size, 0)
    b = SharedBuffer("b_ring", HALF, stages * b_size, a.bytes)
    warp, lane = div(tid, 32), mod(tid, 32)

    def copies(step: IntExpr, slot: IntExpr) -> tuple[Stmt, ...]:
        def one(buffer: SharedBuffer, rows: int, size: int, param: str, first: IntExpr) -> Stmt:
            chunk = add(tid, mul(Var("c"), threads))
            row, column = div(chunk, 8), mod(chunk, 8)
            to = total(mul(slot, size), mul(row, tile), mul(xor(column, mod(row, 8)), 8))
            source = total(mul(add(first, row), k), mul(step, tile), mul(column, 8))
            return For("c", rows * 8 // threads, (CopyAsync(buffer.name, to, param, source),), unroll=True)

        return one(a, m, a_size, "A", Int(0)), one(b, block_n, b_size, "B", mul(bx, block_n)), Commit()

    prologue: list[Stmt] = []
    for stage in range(stages - 1):
        prologue += copies(Int(stage), Int(stage))
    ahead = add(Var("i"), stages - 1)
    slot = mod(Var("i"), stages)
    row_a, column_a = mod(lane, 16), add(mul(Var("kk"), 2), div(lane, 16))
    load_a = LoadMatrix(
        "fa", Int(0), "a_ring", total(mul(slot, a_size), mul(row_a, tile), mul(xor(column_a, mod(row_a, 8)), 8)), 4
    )
    row_b = total(mul(warp, block_n // 4), mul(div(lane, 16), 8), mod(lane, 8))
    column_b = add(mul(Var("kk"), 2), mod(div(lane, 8), 2))
    load_b = LoadMatrix(
        "fb", Int(0), "b_ring", total(mul(slot, b_size), mul(row_b, tile), mul(xor(column_b, mod(row_b, 8)), 8)), 4
    )
    products = tuple(Mma("acc", Int(4 * j), "fa", Int(0), "fb", Int(2 * j), HALF) for j in range(block_n // 32))
    main = For(
        "i",
        steps,
        (
            WaitGroups(stages - 2),
            Barrier(),
            If(less(ahead, steps), copies(ahead, mod(ahead, stages))[:2], uniform=True),
            Commit(),
            For("kk", tile // 16, (load_a, load_b, *products), unroll=True),
        ),
    )
    row_c = add(div(lane, 4), mul(Var("h"), 8))
    column_c = total(mul(bx, block_n), mul(warp, block_n // 4), mul(Var("j"), 8), mul(mod(lane, 4), 2))
    at = add(mul(Var("j"), 4), mul(Var("h"), 2))
    write = GlobalWrite("C", add(mul(row_c, n), column_c), (Reg("acc", at), Reg("acc", add(at, 1))))
    epilogue = For("j", block_n // 32, (For("h", 2, (write,), unroll=True),), unroll=True)
    declared = (
        Registers("acc", block_n // 8, initial=0.0),
        Registers("fa", 4, words=True),
        Registers("fb", 4, words=True),
    )
    params = (Param("A", HALF, m * k, False), Param("B", HALF, n * k, False), Param("C", HALF, m * n, True))
    body = (*declared, *prologue, main, epilogue)
    return Program("gemm", params, (a, b), (n // block_n, 1, 1), threads, body)


def softmax(rows: int = 8, columns: int = 200) -> Program:
    """Softmax of each row by one block of 128 threads: warp shuffles, then shared memory."""
    threads = 128
    row = SharedBuffer("row", SINGLE, columns, 0)
    partial = SharedBuffer("partial", SINGLE, threads // 32, row.bytes)
    e = add(tid, mul(Var("k"), threads))
    turns = -(-columns // threads)
    at = add(mul(bx, columns), e)

    def across(fn: BinaryFn) -> tuple[Stmt, ...]:
        shuffles = tuple(ShuffleReduce("r", Int(0), fn, mask) for mask in (16, 8, 4, 2, 1))
        first = If(equal(mod(tid, 32), 0), (SharedWrite("partial", div(tid, 32), (Reg("r", Int(0)),)),))
        fold = SetReg("r", Int(0), Combine(fn, Reg("r", Int(0)), SharedRead("partial", Var("w"))))
        gather = For("w", threads // 32, (fold,))
        return *shuffles, first, Barrier(), gather

    read = If(less(e, columns), (SharedWrite("row", e, (GlobalRead("X", at),)),))
    largest = If(
        less(e, columns), (SetReg("r", Int(0), Combine(BinaryFn.MAX, Reg("r", Int(0)), SharedRead("row", e))),)
    )
    shifted = Apply(OpKind.EXP, Combine(BinaryFn.SUB, SharedRead("row", e), Reg("m", Int(0))))
    exponential = If(
        less(e, columns),
        (
            SharedWrite("row", e, (shifted,)),
            SetReg("r", Int(0), Combine(BinaryFn.ADD, Reg("r", Int(0)), SharedRead("row", e))),
        ),
    )
    quotient = Combine(BinaryFn.DIV, SharedRead("row", e), Reg("r", Int(0)))
    write = If(less(e, columns), (GlobalWrite("Y", at, (quotient,)),))
    body = (
        Registers("r", 1, initial=-1e30),
        Registers("m", 1),
        For("k", turns, (read, largest)),
        *across(BinaryFn.MAX),
        SetReg("m", Int(0), Reg("r", Int(0))),
        SetReg("r", Int(0), Real(0.0)),
        Barrier(),
        For("k", turns, (exponential,)),
        *across(BinaryFn.ADD),
        SetReg("r", Int(0), Select(equal(tid, 0), Reg("r", Int(0)), Reg("r", Int(0)))),
        For("k", turns, (write,)),
    )
    params = (Param("X", HALF, rows * columns, False), Param("Y", HALF, rows * columns, True))
    return Program("softmax", params, (row, partial), (rows, 1, 1), threads, body)


def elementwise(rows: int = 12, columns: int = 80) -> Program:
    """Y = silu(X) + S[row], eight elements at a time, no shared memory."""
    threads, chunks = 64, rows * columns // 8
    chunk = add(mul(bx, threads), tid)
    e = mul(chunk, 8)
    value = tuple(
        Combine(
            BinaryFn.ADD,
            Apply(OpKind.SILU, Reg("x", Int(j))),
            GlobalRead("S", div(e, columns)),
        )
        for j in range(8)
    )
    guarded = If(less(chunk, chunks), (GlobalVector("x", Int(0), "X", e, 8), GlobalWrite("Y", e, value)))
    params = (
        Param("X", HALF, rows * columns, False),
        Param("S", HALF, rows, False),
        Param("Y", HALF, rows * columns, True),
    )
    grid = (-(-chunks // threads), 1, 1)
    return Program("elementwise", params, (), grid, threads, (Registers("x", 8), guarded))


def generic(rows: int = 24, columns: int = 40, depth: int = 48, loops: int = 3) -> Program:
    """Y = sum over a loop of X_i W_i in shared memory, element by element, buffers that share bytes, masked tails."""
    threads = 128
    part = depth // loops
    x = SharedBuffer("x", HALF, rows * part, 0)
    w = SharedBuffer("w", HALF, part * columns, x.bytes)
    product = SharedBuffer("product", SINGLE, rows * columns, x.bytes + w.bytes)
    acc = SharedBuffer("acc", SINGLE, rows * columns, product.offset + product.bytes)
    final = SharedBuffer("final", SINGLE, rows * columns, 0)
    e = add(tid, mul(Var("k"), threads))

    def every(count: int, *body: Stmt) -> Stmt:
        return For("k", -(-count // threads), (If(less(e, count), body),))

    n = rows * columns
    x_at = add(mul(add(mul(bx, rows), div(e, part)), depth), add(mul(Var("i"), part), mod(e, part)))
    w_at = add(mul(add(mul(Var("i"), part), div(e, columns)), columns), mod(e, columns))
    load_x = every(rows * part, SharedWrite("x", e, (GlobalRead("X", x_at),)))
    load_w = every(part * columns, SharedWrite("w", e, (GlobalRead("W", w_at),)))
    term = Combine(
        BinaryFn.MUL,
        SharedRead("x", add(mul(div(e, columns), part), Var("d"))),
        SharedRead("w", add(mul(Var("d"), columns), mod(e, columns))),
    )
    multiply = every(
        n,
        SetReg("s", Int(0), Real(0.0)),
        For("d", part, (SetReg("s", Int(0), Combine(BinaryFn.ADD, Reg("s", Int(0)), term)),)),
        SharedWrite("product", e, (Reg("s", Int(0)),)),
    )
    accumulate = every(
        n, SharedWrite("acc", e, (Combine(BinaryFn.ADD, SharedRead("acc", e), SharedRead("product", e)),))
    )
    loop = For("i", loops, (load_x, load_w, Barrier(), multiply, Barrier(), accumulate))
    # The accumulator is read with columns transposed round, so this needs the barrier.
    transposed = add(mul(div(e, columns), columns), sub(columns - 1, mod(e, columns)))
    finish = every(n, SharedWrite("final", e, (Apply(OpKind.SQUARE, SharedRead("acc", transposed)),)))
    y_at = add(mul(bx, n), e)
    save = every(n, GlobalWrite("Y", y_at, (SharedRead("final", sub(n - 1, e)),)))
    body = (
        Registers("s", 1),
        every(n, SharedWrite("acc", e, (Real(0.0),))),
        loop,
        Barrier(),
        finish,
        Barrier(),
        save,
    )
    blocks = 2
    params = (
        Param("X", HALF, blocks * rows * depth, False),
        Param("W", HALF, depth * columns, False),
        Param("Y", HALF, blocks * n, True),
    )
    return Program("generic", params, (x, w, product, acc, final), (blocks, 1, 1), threads, body)


def ring(steps: int = 6, stages: int = 2, rows: int = 12) -> Program:
    """A masked tile (12 of 16 rows) through a padded ring, read by vector loads and summed; written as packed pairs."""
    threads, padded, columns = 64, 40, 32
    size = 16 * padded
    tile = SharedBuffer("tile", HALF, stages * size, 0)
    row, column = div(tid, 4), mul(mod(tid, 4), 8)

    def copy(step: IntExpr, slot: IntExpr) -> Stmt:
        source = total(mul(row, steps * columns), mul(step, columns), column)
        to = total(mul(slot, size), mul(row, padded), column)
        return CopyAsync("tile", to, "X", source, less(row, rows))

    i = Var("i")
    read_row, read_column = mod(tid, 16), mul(div(tid, 16), 8)
    slot = mod(i, stages)
    at = total(mul(slot, size), mul(read_row, padded), read_column)
    summed = Combine(BinaryFn.ADD, Reg("s", Var("j")), Reg("x", Var("j")))
    step = (
        If(
            less(add(i, stages - 1), steps),
            (copy(add(i, stages - 1), mod(add(i, stages - 1), stages)),),
            uniform=True,
        ),
        Commit(),
        WaitGroups(stages - 1),
        Barrier(),
        SharedVector("x", Int(0), "tile", at, 8),
        For("j", 8, (SetReg("s", Var("j"), summed),), unroll=True),
        Barrier(),
    )
    prologue = tuple(stmt for stage in range(stages - 1) for stmt in (copy(Int(stage), Int(stage)), Commit()))
    pairs = For(
        "j",
        4,
        (
            Pack("p", Var("j"), Reg("s", mul(Var("j"), 2)), Reg("s", add(mul(Var("j"), 2), 1)), HALF),
            GlobalWrite(
                "Y",
                total(mul(read_row, columns), read_column, mul(Var("j"), 2)),
                (Reg("s", mul(Var("j"), 2)), Reg("s", add(mul(Var("j"), 2), 1))),
            ),
        ),
        unroll=True,
    )
    body = (
        Registers("s", 8, initial=0.0),
        Registers("x", 8),
        Registers("p", 4, words=True),
        *prologue,
        For("i", steps, step),
        If(less(read_row, rows), (pairs,)),
    )
    params = (Param("X", HALF, rows * steps * columns, False), Param("Y", HALF, rows * columns, True))
    return Program("ring", params, (tile,), (1, 1, 1), threads, body)


ALL = (gemm, softmax, elementwise, generic, ring)


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
