"""Programs written by hand with a producer and pipelines: sums of tiles, products of tiles, and two pipelines."""

from __future__ import annotations

from mirage_formal.codegen.program.program import (
    Acquire,
    Await,
    Barrier,
    BinaryFn,
    Combine,
    Commit,
    CopyAsync,
    For,
    GlobalWrite,
    Int,
    IntExpr,
    Param,
    Pipeline,
    Program,
    Reg,
    Registers,
    Release,
    SetReg,
    SharedBuffer,
    SharedVector,
    Stmt,
    TileCopy,
    Var,
    WaitGroups,
    WarpgroupMma,
)
from tests.kit.kernels.safety_programs import HALF, SINGLE, Operand, add, bx, div, expr, mod, mul, tid, total, xor

#: Consumers, rows and columns of a tile, its elements, and its positions in units of 512 elements.
CONSUMERS, ROWS, COLUMNS = 256, 64, 64
TILE = ROWS * COLUMNS
UNITS = TILE // 512
BLOCKS = 2
ITEM, JOB = Var("i"), Var("j")


def tile(slots: int, item: Operand = JOB, buffer: str = "x", param: str = "X", *, items: int, at: int = 0) -> TileCopy:
    """Return the copy of an item's tile into its slot: columns of the rows that a block has."""
    place = add(mul(mod(item, slots), UNITS), at) if at else mul(mod(item, slots), UNITS)
    source = add(mul(bx, ROWS * items * COLUMNS), mul(item, COLUMNS))
    return TileCopy("p", expr(item), buffer, place, param, source, ROWS, items * COLUMNS)


def chunk(slots: int, part: int, item: Operand = ITEM, buffer: str = "x") -> SharedVector:
    """Return a thread's read of 8 of its 16 elements of an item."""
    row = div(tid, 4)
    column = xor(add(mul(mod(tid, 4), 2), part), mod(row, 8))
    index = total(mul(mod(item, slots), TILE), mul(row, COLUMNS), mul(column, 8))
    return SharedVector("r", Int(8 * part), buffer, index, 8)


def added() -> Stmt:
    """Return the addition of what a thread has read."""
    return For("e", 16, (SetReg("s", Var("e"), Combine(BinaryFn.ADD, Reg("s", Var("e")), Reg("r", Var("e")))),), True)


def saved() -> Stmt:
    """Return the store of a thread's sums."""
    at = total(mul(bx, TILE), mul(tid, 16), Var("e"))
    return For("e", 16, (GlobalWrite("Y", at, (Reg("s", Var("e")),)),), True)


def sums(slots: int = 3, items: int = 6) -> Program:
    """Return Y = the sum of the tiles of X that a row of tiles has: each consumer reads 16 elements of every tile."""
    step = Await("p", ITEM), chunk(slots, 0), chunk(slots, 1), added(), Release("p", ITEM)
    return Program(
        "sums",
        (Param("X", HALF, BLOCKS * ROWS * items * COLUMNS, False), Param("Y", SINGLE, BLOCKS * TILE, True)),
        (SharedBuffer("x", HALF, slots * TILE, 0),),
        (BLOCKS, 1, 1),
        CONSUMERS,
        (Registers("s", 16, initial=0.0), Registers("r", 16), For("i", items, step), saved()),
        producer=(For("j", items, (Acquire("p", JOB), tile(slots, items=items))),),
        pipelines=(Pipeline("p", slots, 2 * TILE),),
    )


def product(
    buffer: str, slots: int, to: str = "acc", item: Operand = ITEM, *, across: bool, deferred: bool = False
) -> WarpgroupMma:
    """Return a product of a warpgroup's 64 rows of A and an item's tile."""
    a_at, b_at = mul(div(tid, 128), UNITS), mul(mod(item, slots), UNITS)
    left: IntExpr = a_at
    return WarpgroupMma(to, Int(0), "a", left, buffer, b_at, COLUMNS, 64, HALF, 1, False, 1, across, deferred=deferred)


def products(slots: int = 2, items: int = 4, *, apart: bool = False) -> Program:
    """Return the products of A with the tiles of K and with those of V, which are in one item, or in two pipelines."""
    other = "q" if apart else "p"
    e = add(tid, mul(Var("c"), CONSUMERS))
    row = div(e, 8)
    to = add(mul(row, COLUMNS), mul(xor(mod(e, 8), mod(row, 8)), 8))
    load = For("c", 2 * TILE // 8 // CONSUMERS, (CopyAsync("a", to, "A", mul(e, 8)),), True)
    rows = COLUMNS
    k = TileCopy("p", JOB, "k", mul(mod(JOB, slots), UNITS), "K", mul(JOB, TILE), ROWS, rows)
    v = TileCopy(other, JOB, "v", mul(mod(JOB, slots), UNITS), "V", mul(JOB, TILE), ROWS, rows)
    begun: tuple[Stmt, ...] = (Acquire("p", JOB), k, Acquire("q", JOB), v) if apart else (Acquire("p", JOB), k, v)
    first, second = product("k", slots, across=False), product("v", slots, "more", across=True)
    step: tuple[Stmt, ...] = (Await("p", ITEM), first, second, Release("p", ITEM))
    if apart:
        step = (Await("p", ITEM), first, Release("p", ITEM), Await("q", ITEM), second, Release("q", ITEM))
    stored = For(
        "e",
        32,
        tuple(
            GlobalWrite("Y", total(mul(tid, 64), 32 * n, Var("e")), (Reg(name, Var("e")),))
            for n, name in enumerate(("acc", "more"))
        ),
        True,
    )
    held = (Registers("acc", 32, initial=0.0), Registers("more", 32, initial=0.0))
    prologue = (load, Commit(), WaitGroups(0), Barrier(fenced=True))
    size = slots * TILE
    params = (
        Param("A", HALF, 2 * TILE, False),
        Param("K", HALF, items * TILE, False),
        Param("V", HALF, items * TILE, False),
        Param("Y", SINGLE, CONSUMERS * 64, True),
    )
    shared = (
        SharedBuffer("a", HALF, 2 * TILE, 0),
        SharedBuffer("k", HALF, size, 4 * TILE),
        SharedBuffer("v", HALF, size, 4 * TILE + 2 * size),
    )
    pipelines: tuple[Pipeline, ...] = (Pipeline("p", slots, 4 * TILE),)
    if apart:
        pipelines = Pipeline("p", slots, 2 * TILE), Pipeline("q", slots, 2 * TILE)
    return Program(
        "products",
        params,
        shared,
        (1, 1, 1),
        CONSUMERS,
        (*held, *prologue, For("i", items, step), stored),
        producer=(For("j", items, begun),),
        pipelines=pipelines,
    )


__all__ = ["CONSUMERS", "ITEM", "JOB", "ROWS", "TILE", "UNITS", "added", "chunk", "product", "products", "sums", "tile"]
