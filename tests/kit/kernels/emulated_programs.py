"""Hand-written Programs that the tests of emission, compilation and emulation share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_formal.codegen.program.program import (
    UNARY_FUNCTIONS,
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
    If,
    Int,
    IntBin,
    IntExpr,
    IntOp,
    LoadMatrix,
    Mma,
    Pack,
    Param,
    Pipeline,
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
    Value,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
    Where,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType

HALF, BFLOAT, FLOAT = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32

Term = IntExpr | int


class I:  # noqa: E742
    """Integer expressions with Python's operators."""

    def __init__(self, of: Term | str | I) -> None:
        if isinstance(of, I):
            self.expr: IntExpr = of.expr
        else:
            self.expr = Var(of) if isinstance(of, str) else Int(of) if isinstance(of, int) else of

    def _bin(self, op: IntOp, other: I | int) -> I:
        return I(IntBin(op, self.expr, I(other).expr))

    def __add__(self, other: I | int) -> I:
        return self._bin(IntOp.ADD, other)

    def __sub__(self, other: I | int) -> I:
        return self._bin(IntOp.SUB, other)

    def __mul__(self, other: I | int) -> I:
        return self._bin(IntOp.MUL, other)

    def __floordiv__(self, other: I | int) -> I:
        return self._bin(IntOp.DIV, other)

    def __mod__(self, other: I | int) -> I:
        return self._bin(IntOp.MOD, other)

    def __xor__(self, other: I | int) -> I:
        return self._bin(IntOp.XOR, other)

    def __lt__(self, other: I | int) -> I:
        return self._bin(IntOp.LT, other)

    def equals(self, other: I | int) -> I:
        return self._bin(IntOp.EQ, other)

    def both(self, other: I | int) -> I:
        return self._bin(IntOp.AND, other)


def ix(of: I | int | str) -> IntExpr:
    """The expression of an index written as I, int or a variable's name."""
    return I(of).expr


tid, bx, by, bz = I("tid"), I("bx"), I("by"), I("bz")


def program(
    name: str,
    params: list[Param],
    shared: list[SharedBuffer],
    body: list[Stmt],
    *,
    threads: int = 32,
    grid: tuple[int, int, int] = (1, 1, 1),
) -> Program:
    return Program(name, tuple(params), tuple(shared), grid, threads, tuple(body))


def reads(name: str, elements: int, dtype: DType = FLOAT) -> Param:
    return Param(name, dtype, elements, written=False)


def writes(name: str, elements: int, dtype: DType = FLOAT) -> Param:
    return Param(name, dtype, elements, written=True)


def elementwise(value: Value, dtype: DType = FLOAT, count: int = 64) -> Program:
    """Y[i] = value, in which A and B may be read at i; two blocks of count / 2 threads."""
    return program(
        "elementwise",
        [reads("A", count, dtype), reads("B", count, dtype), writes("Y", count, dtype)],
        [],
        [GlobalWrite("Y", ix(bx * (count // 2) + tid), (value,))],
        threads=count // 2,
        grid=(2, 1, 1),
    )


def at(param: str, count: int = 64) -> GlobalRead:
    return GlobalRead(param, ix(bx * (count // 2) + tid))


def gemm(dtype: DType = HALF, m: int = 32, n: int = 32, k: int = 96) -> Program:
    """C = A B by 32 x 32 tiles of four warps: double-buffered cp.async in steps of 32, ldmatrix, mma.

    Rows of A's tile are 64 bytes; its 16-byte chunks are swizzled by (row / 2) % 4, as are those of B's tile.
    """
    steps = k // 32
    lane, warp = tid % 32, tid // 32
    row, chunk = tid // 4, tid % 4

    def load(step: I) -> list[Stmt]:
        slot = step % 2 * 1024 + row * 32 + (chunk ^ (row // 2 % 4)) * 8
        return [
            CopyAsync("As", ix(slot), "A", ix((bx * 32 + row) * k + step * 32 + chunk * 8)),
            CopyAsync("Bs", ix(slot), "B", ix((step * 32 + row) * n + by * 32 + chunk * 8)),
        ]

    step, kk = I("step"), I("kk")
    a_row, b_row = warp // 2 * 16 + lane % 16, kk * 16 + lane % 16
    a_chunk, b_chunk = kk * 2 + lane // 16, warp % 2 * 2 + lane // 16
    body: list[Stmt] = [
        Registers("acc", 8, initial=0.0),
        *load(I(0)),
        Commit(),
        For(
            "step",
            steps,
            (
                If(ix(step + 1 < steps), tuple(load(step + 1)), uniform=True),
                Commit(),
                WaitGroups(1),
                Barrier(),
                For(
                    "kk",
                    2,
                    (
                        Registers("a", 4, words=True),
                        Registers("b", 4, words=True),
                        LoadMatrix(
                            "a", ix(0), "As", ix(step % 2 * 1024 + a_row * 32 + (a_chunk ^ (a_row // 2 % 4)) * 8), 4
                        ),
                        LoadMatrix(
                            "b",
                            ix(0),
                            "Bs",
                            ix(step % 2 * 1024 + b_row * 32 + (b_chunk ^ (b_row // 2 % 4)) * 8),
                            4,
                            transposed=True,
                        ),
                        For(
                            "j",
                            2,
                            (Mma("acc", ix(I("j") * 4), "a", ix(0), "b", ix(I("j") * 2), dtype),),
                            unroll=True,
                        ),
                    ),
                    unroll=True,
                ),
                Barrier(),
            ),
        ),
    ]
    out_row = bx * 32 + warp // 2 * 16 + lane // 4
    out_column = by * 32 + warp % 2 * 16 + I("j") * 8 + lane % 4 * 2
    body.append(
        For(
            "j",
            2,
            (
                For(
                    "h",
                    2,
                    (
                        GlobalWrite(
                            "C",
                            ix((out_row + I("h") * 8) * n + out_column),
                            (Reg("acc", ix(I("j") * 4 + I("h") * 2)), Reg("acc", ix(I("j") * 4 + I("h") * 2 + 1))),
                        ),
                    ),
                    unroll=True,
                ),
            ),
            unroll=True,
        )
    )
    return program(
        "gemm",
        [reads("A", m * k, dtype), reads("B", k * n, dtype), writes("C", m * n, dtype)],
        [SharedBuffer("As", dtype, 2048, 0), SharedBuffer("Bs", dtype, 2048, 4096)],
        body,
        threads=128,
        grid=(m // 32, n // 32, 1),
    )


def softmax(columns: int = 256) -> Program:
    """Y = softmax of rows of X: one row a block of 64 threads, vectors of 4, shuffles, then shared memory."""

    def across(array: str, fn: BinaryFn, shared: str) -> list[Stmt]:
        other = SharedRead(shared, ix(tid // 32 ^ I(1)))
        return [
            *(ShuffleReduce(array, ix(0), fn, mask) for mask in (16, 8, 4, 2, 1)),
            If(ix((tid % 32).equals(0)), (SharedWrite(shared, ix(tid // 32), (Reg(array, ix(0)),)),)),
            Barrier(),
            SetReg(array, ix(0), Combine(fn, Reg(array, ix(0)), other)),
        ]

    i = I("i")
    x = Reg("x", ix(i))
    body: list[Stmt] = [
        Registers("x", 4),
        Registers("top", 1, initial=float("-inf")),
        Registers("total", 1, initial=0.0),
        GlobalVector("x", ix(0), "X", ix(bx * columns + tid * 4), 4),
        For("i", 4, (SetReg("top", ix(0), Combine(BinaryFn.MAX, Reg("top", ix(0)), x)),), unroll=True),
        *across("top", BinaryFn.MAX, "tops"),
        For(
            "i",
            4,
            (
                SetReg("x", ix(i), Apply(OpKind.EXP, Combine(BinaryFn.SUB, x, Reg("top", ix(0))))),
                SetReg("total", ix(0), Combine(BinaryFn.ADD, Reg("total", ix(0)), x)),
            ),
            unroll=True,
        ),
        *across("total", BinaryFn.ADD, "totals"),
        GlobalWrite(
            "Y",
            ix(bx * columns + tid * 4),
            tuple(Combine(BinaryFn.DIV, Reg("x", ix(j)), Reg("total", ix(0))) for j in range(4)),
        ),
    ]
    return program(
        "softmax",
        [reads("X", 3 * columns, HALF), writes("Y", 3 * columns, HALF)],
        [SharedBuffer("tops", FLOAT, 2, 0), SharedBuffer("totals", FLOAT, 2, 8)],
        body,
        threads=columns // 4,
        grid=(3, 1, 1),
    )


def reversal(dtype: DType = FLOAT) -> Program:
    """Y = X reversed within each of two blocks of 64, through shared memory by vectors of 2; masked and Select."""
    return program(
        "reversal",
        [reads("X", 128, dtype), writes("Y", 128, dtype)],
        [SharedBuffer("tile", dtype, 64, 0)],
        [
            Registers("v", 2),
            GlobalVector("v", ix(0), "X", ix(by * 64 + tid * 2), 2),
            SharedWrite("tile", ix(tid * 2), (Reg("v", ix(0)), Reg("v", ix(1)))),
            Barrier(),
            SharedVector("v", ix(0), "tile", ix(I(62) - tid * 2), 2),
            GlobalWrite("Y", ix(by * 64 + tid * 2), (Reg("v", ix(1)), Reg("v", ix(0)))),
        ],
        grid=(1, 2, 1),
    )


def fragments(dtype: DType, transposed: bool, count: int) -> Program:
    """The words of one ldmatrix of ``count`` matrices, as an A fragment, times [I; 0] and [0; I]: exact products.

    X is count * 8 rows of 8 elements; Y[lane] holds the lane's four elements of A's left half, then of its right half.
    """
    identities: list[Stmt] = [
        Registers("e", 4, words=True),
        *(
            Pack("e", ix(2 * half + h), _identity(half, h * 8), _identity(half, h * 8 + 1), dtype)
            for half in range(2)
            for h in range(2)
        ),
    ]
    body: list[Stmt] = [
        Registers("a", 4, words=True),
        *(Pack("a", ix(w), Real(0.0), Real(0.0), dtype) for w in range(4)),
        *identities,
        If(ix(tid < count * 8), (CopyAsync("tile", ix(tid * 8), "X", ix(tid * 8)),)),
        Commit(),
        WaitGroups(0),
        Barrier(),
        LoadMatrix("a", ix(0), "tile", ix(tid % (count * 8) * 8), count, transposed),
        Registers("d", 8, initial=0.0),
        *(Mma("d", ix(4 * half), "a", ix(0), "e", ix(2 * half), dtype) for half in range(2)),
        *(GlobalWrite("Y", ix(tid * 8 + 4 * half), _registers("d", 4 * half, 4)) for half in range(2)),
    ]
    return program(
        "fragments",
        [reads("X", count * 64, dtype), writes("Y", 256)],
        [SharedBuffer("tile", dtype, count * 64, 0)],
        body,
    )


def warpgroup_product(dtype: DType, columns: int, depth: int, a_across: bool | None, b_across: bool) -> Program:
    """Two warpgroups' products of 64 x depth elements of X and the same depth x columns elements of Z, twice each.

    The buffers hold X and Z as they are; ``a_across`` None: the left operand is in registers, row-major in X. Y[thread]
    holds the thread's accumulators.
    """
    rows = depth if a_across else 128  # of X's matrix, as stored
    a_panel, b_panel = rows // 8, (depth if b_across else columns) // 8
    x = 128 * depth if a_across is None else a_panel * 512 * (2 if a_across else -(-depth // 64))
    z = 512 + b_panel * 512 * -(-(columns if b_across else depth) // 64)
    body: list[Stmt] = [
        *(() if a_across is None else _copied("X", "x", x)),
        *_copied("Z", "z", z),
        Commit(),
        WaitGroups(0),
        Barrier(fenced=True),
        Registers("d", columns // 2, initial=1.0),
    ]
    operand, at, panel = "x", ix(tid // 128 * (a_panel if a_across else 8)), a_panel
    if a_across is None:
        operand, at, panel = "w", ix(0), 0
        body.append(Registers("w", depth // 4, words=True))
        for word in range(depth // 4):
            row = tid // 128 * 64 + tid % 128 // 32 * 16 + tid % 32 // 4 + word % 2 * 8
            first = row * depth + (tid % 4 * 2 + (word // 4 * 16 + word // 2 % 2 * 8))
            low, high = (GlobalRead("X", ix(first + h)) for h in range(2))
            body.append(Pack("w", ix(word), low, high, dtype))
    layouts = (panel, bool(a_across), b_panel, b_across)
    for again in (False, True):  # the second product adds to the first, and is complete at the wait
        product = WarpgroupMma("d", ix(0), operand, at, "z", ix(1), columns, depth, dtype, *layouts, again, again)
        body.append(product)
    body.append(WarpgroupWait("d", ix(0), columns))
    body += [
        GlobalWrite("Y", ix(tid * (columns // 2) + first), _registers("d", first, 4))
        for first in range(0, columns // 2, 4)
    ]
    ways = "registers" if a_across is None else "across" if a_across else "along"
    made = program(
        f"warpgroup_{columns}_{depth}_{ways}_{'across' if b_across else 'along'}",
        [reads("X", x, dtype), reads("Z", z, dtype), writes("Y", 256 * columns // 2)],
        [SharedBuffer("x", dtype, x, 0), SharedBuffer("z", dtype, z, -(-2 * x // 1024) * 1024)],
        body,
    )
    return replace(made, threads=256)


def tile_ring() -> Program:
    """Y = X of 64 x 128 by two blocks of 64 columns: four tiles of 16 rows go through a pipeline of two slots."""
    i, k = I("i"), I("k")
    at = k * 256 + tid
    tile = I("j") % 2 * 2
    producer = (
        Acquire("p", ix("j")),
        TileCopy("p", ix("j"), "tile", ix(tile), "X", ix(bx * 64 + I("j") * 2048), 16, 128),
    )
    read = SharedRead("tile", ix(i % 2 * 1024 + (at ^ (at // 64 % 8) * 8)))
    body: list[Stmt] = [
        Await("p", ix(i)),
        For("k", 4, (GlobalWrite("Y", ix(bx * 64 + (i * 16 + at // 64) * 128 + at % 64), (read,)),)),
        Release("p", ix(i)),
    ]
    made = program(
        "tile_ring",
        [reads("X", 64 * 128, HALF), writes("Y", 64 * 128, HALF)],
        [SharedBuffer("tile", HALF, 2048, 0)],
        [For("i", 4, tuple(body))],
        threads=256,
        grid=(2, 1, 1),
    )
    return replace(made, producer=(For("j", 4, producer),), pipelines=(Pipeline("p", 2, 2048),), alone=True)


def product_ring() -> Program:
    """Y = X Z of 128 x 192 and 192 x 64 by two warpgroups: three tiles of each operand, through a pipeline of each.

    Both are in registers and shared memory as in ``warpgroup_product``; Y[thread] holds the thread's accumulators.
    """
    i, j = I("i"), I("j")
    producer: tuple[Stmt, ...] = (
        Acquire("px", ix(j)),
        *(
            TileCopy("px", ix(j), "x", ix(j % 2 * 16 + 8 * half), "X", ix(j * 64 + half * 64 * 192), 64, 192)
            for half in (0, 1)
        ),
        Acquire("pz", ix(j)),
        TileCopy("pz", ix(j), "z", ix(j % 2 * 8), "Z", ix(j * 4096), 64, 64),
    )
    layouts = (16, False, 8, True, True, True)
    product = ("d", ix(0), "x", ix(i % 2 * 16 + tid // 128 * 8), "z", ix(i % 2 * 8), 64, 64, BFLOAT, *layouts)
    body: list[Stmt] = [
        Await("px", ix(i)),
        Await("pz", ix(i)),
        WarpgroupMma(*product),
        WarpgroupWait("d", ix(0), 64),
        Release("px", ix(i)),
        Release("pz", ix(i)),
        Barrier(fenced=True),
    ]
    made = program(
        "product_ring",
        [reads("X", 128 * 192, BFLOAT), reads("Z", 192 * 64, BFLOAT), writes("Y", 256 * 32)],
        [SharedBuffer("x", BFLOAT, 2 * 8192, 0), SharedBuffer("z", BFLOAT, 2 * 4096, 32768)],
        [
            Registers("d", 32, initial=0.0),
            For("i", 3, tuple(body)),
            *(GlobalWrite("Y", ix(tid * 32 + first), _registers("d", first, 4)) for first in range(0, 32, 4)),
        ],
        threads=256,
    )
    pipelines = (Pipeline("px", 2, 16384), Pipeline("pz", 2, 8192))
    return replace(made, producer=(For("j", 3, producer),), pipelines=pipelines, alone=True)


def _copied(param: str, buffer: str, elements: int) -> Iterator[Stmt]:
    """Copies of a parameter to a buffer by 256 threads."""
    at = I("c") * 2048 + tid * 8
    inside = at + 7 < elements if elements % 2048 else None
    copy = CopyAsync(buffer, ix(at), param, ix(at))
    body: tuple[Stmt, ...] = (copy,) if inside is None else (If(ix(inside), (copy,)),)
    yield For("c", -(-elements // 2048), body)


def _registers(array: str, first: int, count: int) -> tuple[Value, ...]:
    return tuple(Reg(array, ix(first + i)) for i in range(count))


def _identity(half: int, row: int) -> Value:
    """Element (2 (tid % 4) + row, (tid % 32) / 4) of a 16 x 8 matrix, one of whose halves is the identity."""
    return Select(ix((tid % 4 * 2 + row).equals(tid // 4 + 8 * half)), Real(1.0), Real(0.0))


def masked_copy() -> Program:
    """Y = X with 24 of 64 elements, zero-filled to 64 by CopyAsync's ``valid``."""
    return program(
        "masked_copy",
        [reads("X", 24, HALF), writes("Y", 64, HALF)],
        [SharedBuffer("tile", HALF, 64, 0)],
        [
            If(ix(tid < 8), (CopyAsync("tile", ix(tid * 8), "X", ix(tid * 8), ix(tid < 3)),)),
            Commit(),
            WaitGroups(0),
            Barrier(),
            For("i", 2, (GlobalWrite("Y", ix(tid + I("i") * 32), (SharedRead("tile", ix(tid + I("i") * 32)),)),)),
        ],
    )


def functions(count: int = 64) -> Program:
    """Each function of A and B into an output of its own, named Y_<function>; some outputs are 16-bit."""
    i = ix(bx * (count // 2) + tid)
    a, b = GlobalRead("A", i), GlobalRead("B", i)
    values: dict[str, Value] = {f"Y_{fn.value}": Apply(fn, a) for fn in UNARY_FUNCTIONS.values()}
    values |= {f"Y_{fn.value}": Combine(fn, a, b) for fn in BinaryFn}
    values["Y_select"] = Where(Combine(BinaryFn.LT, a, b), a, Combine(BinaryFn.MUL, b, Real(2.0)))
    return program(
        "functions",
        [reads("A", count), reads("B", count), *(writes(name, count) for name in values)],
        [],
        [GlobalWrite(name, i, (value,)) for name, value in values.items()],
        threads=count // 2,
        grid=(2, 1, 1),
    )


def conversion(source: DType, target: DType, count: int) -> Program:
    """Y = X, 1024 elements a block of 128 threads."""
    i = ix(bx * 1024 + I("k") * 128 + tid)
    return program(
        f"{source}_to_{target}",
        [reads("X", count, source), writes("Y", count, target)],
        [],
        [For("k", 8, (GlobalWrite("Y", i, (GlobalRead("X", i),)),))],
        threads=128,
        grid=(count // 1024, 1, 1),
    )


#: Each number of columns, operands that lie along and across, and left operands in registers.
WARPGROUP_PRODUCTS = (
    warpgroup_product(HALF, 8, 16, None, False),
    warpgroup_product(HALF, 16, 64, False, True),
    warpgroup_product(HALF, 32, 48, True, False),
    warpgroup_product(BFLOAT, 64, 128, None, True),
    warpgroup_product(BFLOAT, 128, 64, True, True),
    warpgroup_product(HALF, 256, 32, False, False),
)


#: Programs with a producer.
PIPELINES = (tile_ring(), product_ring())


def every_kernel() -> list[Program]:
    """Programs with each kind of statement, each element type and each function, all of them right."""
    return [
        *(replace(gemm(dtype), name=f"gemm_{dtype}") for dtype in (HALF, BFLOAT)),
        softmax(),
        *(replace(reversal(dtype), name=f"reversal_{dtype}") for dtype in DType),
        *(
            replace(fragments(HALF, transposed, count), name=f"fragments_{count}_{'t' if transposed else 'n'}")
            for transposed in (False, True)
            for count in (1, 2, 4)
        ),
        masked_copy(),
        functions(),
    ]


def without(body: tuple[Stmt, ...], index: int) -> tuple[tuple[Stmt, ...], Stmt | None, int]:
    """The body without its index-th statement (loops and ifs count, then what is in them), and that statement.

    The last of the three is the number of statements that were passed.
    """
    passed, out, dropped = 0, [], None
    for statement in body:
        if dropped is None and passed == index:
            dropped = statement
            passed += 1
            continue
        passed += 1
        if dropped is None and isinstance(statement, For | If):
            inner, dropped, count = without(statement.body, index - passed)
            passed += count
            statement = replace(statement, body=inner)
        out.append(statement)
    return tuple(out), dropped, passed


def dropped(program: Program, kinds: tuple[type, ...]) -> list[tuple[str, Program]]:
    """Every program that differs by one dropped statement of these kinds, with a label."""
    out: list[tuple[str, Program]] = []
    index = 0
    while True:
        body, statement, _ = without(program.body, index)
        if statement is None:
            return out
        if isinstance(statement, kinds):
            label = f"{program.name}-{index}-{type(statement).__name__}"
            out.append((label, replace(program, body=body)))
        index += 1
