"""The text of kernels: right C++ expressions and literals, stable, and malformed programs are refused."""

from __future__ import annotations

import random
import re
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda, float_literal
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
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedBuffer,
    SharedRead,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
    Var,
    WaitGroups,
)
from mirage_formal.graph.ops import OpKind
from tests.kit.kernels.emulated_programs import (
    BFLOAT,
    FLOAT,
    HALF,
    I,
    at,
    bx,
    elementwise,
    every_kernel,
    gemm,
    ix,
    masked_copy,
    program,
    reads,
    softmax,
    tid,
    writes,
)

#: What is said of a parameter that is touched too early.
BEHIND = "expected to be touched behind the wait for the launch before"


def with_body(*body: Stmt, **changes: Any) -> str:
    kernel = program("k", [reads("X", 64, HALF), writes("Y", 64)], [SharedBuffer("tile", HALF, 64, 0)], list(body))
    return emit_cuda(replace(kernel, **changes))


def expression(value: Value) -> str:
    """How a value is printed where nothing surrounds it."""
    found = re.search(r"MARK\[0\] = (.*);", with_body(Registers("MARK", 3), SetReg("MARK", Int(0), value)))
    assert found is not None
    return found[1]


def index(expr: IntExpr) -> str:
    found = re.search(r"MARK\[(.*)\] =", with_body(Registers("MARK", 3), SetReg("MARK", expr, Real(0.0))))
    assert found is not None
    return found[1]


# --- expressions -----------------------------------------------------------------------------------------------------


def random_index(rng: random.Random, depth: int) -> IntExpr:
    if depth == 0 or rng.random() < 0.15:
        leaves: list[IntExpr] = [Int(rng.randrange(9)), Var("tid"), Var("bx")]
        return rng.choice(leaves)
    return IntBin(rng.choice(list(IntOp)), random_index(rng, depth - 1), random_index(rng, depth - 1))


def meaning(expr: IntExpr, names: dict[str, int]) -> int:
    """Its value in C++; ZeroDivisionError if it has none."""
    match expr:
        case Int(value):
            return value
        case Var(name):
            return names[name]
        case IntBin(op, left, right):
            a, b = meaning(left, names), meaning(right, names)
            if op in (IntOp.DIV, IntOp.MOD):
                quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
                return quotient if op is IntOp.DIV else a - quotient * b
            results = {
                IntOp.ADD: a + b,
                IntOp.SUB: a - b,
                IntOp.MUL: a * b,
                IntOp.XOR: a ^ b,
                IntOp.LT: int(a < b),
                IntOp.EQ: int(a == b),
                IntOp.AND: int(bool(a) and bool(b)),
            }
            return results[op]


def test_parentheses_keep_the_meaning_of_indices(tmp_path: Path) -> None:
    """g++ evaluates two hundred random expressions as printed."""
    rng = random.Random(7)
    lines: list[str] = []
    expected: list[int] = []
    while len(lines) < 200:
        expr, names = random_index(rng, 4), {"tid": rng.randrange(40), "bx": rng.randrange(5)}
        try:
            value = meaning(expr, names)
        except ZeroDivisionError:
            continue
        if abs(value) < 1 << 30:
            expected.append(value)
            lines.append(
                f"{{ volatile int tid = {names['tid']}, bx = {names['bx']}; int v = {index(expr)}; show(v); }}"
            )
    source = tmp_path / "expressions.cpp"
    text = '#include <stdio.h>\nstatic void show(int v) { printf("%d\\n", v); }\nint main() {\n'
    source.write_text(text + "\n".join(lines) + "\n}\n")
    run(["g++", "-O0", "-w", "-fwrapv", str(source), "-o", str(source.with_suffix(""))], check=True)
    out = run([str(source.with_suffix(""))], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in out.split()] == expected


def test_readable_indices() -> None:
    assert index(ix(tid * 4 + 1)) == "tid * 4 + 1"
    assert index(ix((tid + 1) * 4)) == "(tid + 1) * 4"
    assert index(ix(tid % 4 * 2)) == "(tid % 4) * 2"
    assert index(ix(tid - (bx - 1))) == "tid - (bx - 1)"
    assert index(ix(tid // 4 ^ bx)) == "(tid / 4) ^ bx"
    assert index(ix((tid < 3).both(bx.equals(0)))) == "tid < 3 && bx == 0"


def test_readable_values() -> None:
    a, b = Reg("MARK", Int(1)), Reg("MARK", Int(2))
    add, sub, mul = (partial(Combine, fn) for fn in (BinaryFn.ADD, BinaryFn.SUB, BinaryFn.MUL))
    assert expression(add(a, mul(a, b))) == "MARK[1] + MARK[1] * MARK[2]"
    assert expression(mul(add(a, b), b)) == "(MARK[1] + MARK[2]) * MARK[2]"
    assert expression(sub(a, sub(a, b))) == "MARK[1] - (MARK[1] - MARK[2])"
    assert expression(add(a, add(a, b))) == "MARK[1] + (MARK[1] + MARK[2])"
    assert expression(Apply(KernelFn.NEG, Apply(KernelFn.NEG, a))) == "-(-MARK[1])"
    assert expression(sub(a, Real(-1.0))) == "MARK[1] - (-1.0f)"
    assert expression(Apply(OpKind.EXP, sub(a, b))) == "mf::exp(MARK[1] - MARK[2])"
    assert expression(Combine(BinaryFn.MAX, a, Real(0.0))) == "mf::max(MARK[1], 0.0f)"
    assert expression(mul(Select(ix(tid < 3), a, b), b)) == "(tid < 3 ? MARK[1] : MARK[2]) * MARK[2]"
    assert expression(SharedRead("tile", ix(tid))) == "mf::load(tile, tid)"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0f"),
        (-0.0, "-0.0f"),
        (1.0, "1.0f"),
        (0.1, "0.1f"),
        (1e-5, "1e-05f"),
        (1 / 3, "0.33333334f"),
        (float("inf"), "mf::infinity()"),
        (float("-inf"), "-mf::infinity()"),
        (1e39, "mf::infinity()"),
        (16777217.0, "16777216.0f"),
    ],
)
def test_literals(number: float, text: str) -> None:
    assert float_literal(number) == text


def test_literals_read_back_as_the_same_float() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        bits = rng.getrandbits(32)
        (number,) = struct.unpack("f", struct.pack("I", bits))
        if number == number and abs(number) != float("inf"):
            assert struct.pack("f", float(float_literal(number)[:-1])) == struct.pack("I", bits)


def test_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        float_literal(float("nan"))


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_the_text_of_a_kernel() -> None:
    assert (
        emit_cuda(masked_copy())
        == """\
// masked_copy: 1 x 1 x 1 blocks of 32 threads,
// 128 bytes of dynamic shared memory.
//   X: 24 x float16, read, aligned to 16 bytes
//   Y: 64 x float16, written, aligned to 16 bytes
#include "mirage_formal/device.cuh"

extern "C" __global__ void __launch_bounds__(32) masked_copy(MF_INPUT(mf::half) X, MF_OUTPUT(mf::half) Y) {
  MF_SHARED_MEMORY(128);
  MF_SHARED(mf::half, tile, 64, 0);  // bytes 0..127
  const int tid = mf::below<32>(threadIdx.x);
  if (tid < 8) {
    mf::copy_async(tile, tid * 8, X, tid * 8, tid < 3);
  }
  mf::commit();
  mf::wait_groups<0>();
  mf::barrier();
  for (int i = 0; i < 2; ++i) {
    mf::store(Y, tid + i * 32, mf::load(tile, tid + i * 32));
  }
}
"""
    )


def test_equal_programs_give_equal_text_and_only_they() -> None:
    texts = [emit_cuda(kernel) for kernel in every_kernel()]
    assert texts == [emit_cuda(kernel) for kernel in every_kernel()]
    assert len(set(texts)) == len(texts)


def test_loops_unroll_as_planned() -> None:
    text = emit_cuda(gemm())
    assert re.findall(r"#pragma unroll.*\n *for \(int (\w+)", text) == ["step", "kk", "j", "j", "h"]
    assert re.findall(r"#pragma unroll 1\n *for \(int (\w+)", text) == ["step"]
    assert "#pragma" not in emit_cuda(masked_copy())


def test_long_statements_are_wrapped() -> None:
    for kernel in (gemm(), softmax()):
        assert max(len(line) for line in emit_cuda(kernel).splitlines()) < 180
    vector = GlobalWrite("Y", ix(tid), tuple(Real(0.1 * i) for i in range(4)))
    assert "mf::store_vector(Y, tid, {0.0f, 0.1f, 0.2f, 0.3f});" in with_body(vector)


def test_a_fault_of_the_header_is_told_as_such() -> None:
    with pytest.raises(ValueError, match="cannot print kernel k: header, k: expected a grid of at least one block"):
        with_body(grid=(0, 1, 1))


def test_a_scope_ends_with_its_body() -> None:
    inner = If(ix(tid < 3), (Registers("r", 1, initial=1.0), SetReg("r", Int(0), Real(2.0))))
    assert with_body(inner, inner).count("MF_FLOATS(r, 1)") == 2
    with pytest.raises(ValueError, match="r: expected a register array"):
        with_body(inner, SetReg("r", Int(0), Real(2.0)))


R, W = Registers("r", 4), Registers("w", 4, words=True)
ZERO = Int(0)

MALFORMED: dict[str, tuple[tuple[Stmt, ...], str]] = {
    "unknown variable": ((R, SetReg("r", Var("i"), Real(0.0))), "i: expected a variable of an enclosing loop"),
    "loop variable taken": ((For("i", 2, (For("i", 2, ()),)),), "i: expected a new variable"),
    "loop variable that is a parameter": ((For("X", 2, ()),), "X: expected a new variable"),
    "array declared twice": ((R, R), "r: expected a new name"),
    "keyword": ((Registers("float", 1),), "identifier"),
    "not an identifier": ((Registers("r-1", 1),), "identifier"),
    "floats taken as words": ((R, LoadMatrix("r", ZERO, "tile", ZERO, 1)), "r: expected a register array of words"),
    "words taken as floats": ((W, SetReg("w", ZERO, Real(0.0))), "w: expected a register array of floats"),
    "unknown buffer": ((R, SetReg("r", ZERO, SharedRead("other", ZERO))), "other: expected a shared buffer"),
    "read of an output": ((R, SetReg("r", ZERO, GlobalRead("Y", ZERO))), "Y: expected a parameter that"),
    "write of an input": ((GlobalWrite("X", ZERO, (Real(0.0),)),), "X: expected a parameter that"),
    "vector of three": ((R, GlobalVector("r", ZERO, "X", ZERO, 3)), "4, 8 or 16 bytes at once"),
    "vector of 32 bytes": ((SharedWrite("tile", ZERO, (Real(0.0),) * 16),), "4, 8 or 16 bytes at once"),
    "no values": ((SharedWrite("tile", ZERO, ()),), "4, 8 or 16 bytes at once"),
    "three matrices": ((W, LoadMatrix("w", ZERO, "tile", ZERO, 3)), "1, 2 or 4"),
    "copy of 2 bytes": ((CopyAsync("tile", ZERO, "X", ZERO, bytes=2),), "4, 8 or 16 bytes"),
    "mma of float32 in words": (
        (R, W, Mma("r", ZERO, "w", ZERO, "w", ZERO, FLOAT)),
        "w: expected a register array of f",
    ),
    "mma of 16 bits in floats": (
        (R, W, Mma("r", ZERO, "r", ZERO, "w", ZERO, HALF)),
        "r: expected a register array of w",
    ),
    "shuffle by subtraction": ((R, ShuffleReduce("r", ZERO, BinaryFn.SUB, 1)), "add or max"),
    "shuffle beyond a warp": ((R, ShuffleReduce("r", ZERO, BinaryFn.ADD, 32)), "1..31"),
    "division by zero": ((R, SetReg("r", ix(tid % 0), Real(0.0))), "division by zero"),
    "negative wait": ((WaitGroups(-1),), "at least 0 groups"),
    "wait under a condition": ((GridWait(),), "once, outside of loops and conditions"),
    "dependents under a condition": ((LaunchDependents(),), "outside of loops and conditions"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_statements_are_refused(name: str) -> None:
    body, message = MALFORMED[name]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        with_body(If(ix(tid < 3), body))
    printed = {"keyword", "not an identifier", "division by zero"}  # what only the printer refuses
    assert name in printed or str(error.value).startswith("cannot print kernel k: statement 0:if/")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((SetReg("r", ZERO, GlobalRead("X", ZERO)), GridWait()), f"statement 1, X: {BEHIND}"),
        ((For("i", 2, (SetReg("r", ZERO, GlobalRead("X", ZERO)),)), GridWait()), f"statement 1:for i/0, X: {BEHIND}"),
        ((GlobalVector("r", ZERO, "X", ZERO, 2), GridWait()), f"statement 1, X: {BEHIND}"),
        ((CopyAsync("tile", ZERO, "X", ZERO), GridWait()), f"statement 0, X: {BEHIND}"),
        ((GlobalWrite("Y", ZERO, (Real(0.0),)), GridWait()), f"statement 0, Y: {BEHIND}"),
        ((GridWait(), GridWait()), "statement 1, GridWait: expected once"),
        ((For("i", 2, (GridWait(),)),), "statement 0:for i/0, GridWait: expected once, outside of loops"),
        ((LaunchDependents(), GridWait()), "statement 0, LaunchDependents: expected outside of loops"),
        ((For("i", 2, (LaunchDependents(),)),), "statement 0:for i/0, LaunchDependents: expected outside of loops"),
    ],
)
def test_nothing_is_touched_ahead_of_the_wait(body: tuple[Stmt, ...], message: str) -> None:
    """A load could see what the launch before has not written yet, and a store destroy what that still reads."""
    body = (R, *body) if '"r"' in repr(body).replace("'", '"') else body
    with pytest.raises(ValueError, match=re.escape(message)):
        with_body(*body)


def test_inputs_may_be_read_ahead_of_the_wait() -> None:
    """No launch of the call writes them; the compiler may know that, and the kernel is dependent all the same."""
    params = (replace(reads("X", 256, HALF), given=True), reads("B", 256, HALF), writes("Y", 256))
    read = SetReg("r", ZERO, GlobalRead("B", ZERO))
    body = (R, CopyAsync("tile", ZERO, "X", ZERO), GridWait(), read, Commit())
    text = with_body(*body, params=params)
    assert "MF_INPUT(mf::half) X" in text
    assert "MF_AWAITED(mf::half) B" in text
    assert text.index("mf::copy_async") < text.index("mf::grid_wait") < text.index("mf::load(B")
    with pytest.raises(ValueError, match=re.escape(f"B: {BEHIND}")):
        with_body(R, read, GridWait(), params=params)
    with pytest.raises(ValueError, match="Y: expected a parameter that is written, or one that no launch writes"):
        with_body(*body, params=(*params[:2], replace(params[2], given=True)))


def test_what_a_dependent_kernel_reads_may_still_be_written_when_it_starts() -> None:
    """The compiler must not be told that nobody writes it: it would load it before the wait."""
    read = (R, SetReg("r", ZERO, GlobalRead("X", ZERO)))
    text = with_body(GridWait(), LaunchDependents(), *read)
    assert "MF_AWAITED(mf::half) X" in text
    assert "MF_INPUT" not in text
    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("mf::grid_wait();")
    assert lines[start + 1] == "mf::launch_dependents();"
    assert not any("mf::load" in line for line in lines[:start])
    first = with_body(LaunchDependents(), *read)
    assert "MF_INPUT(mf::half) X" in first
    assert "MF_AWAITED" not in first


def test_malformed_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="distinct names"):
        with_body(params=(reads("X", 1), writes("X", 1)))
    with pytest.raises(ValueError, match="distinct names"):
        with_body(params=(reads("tid", 1),))
    with pytest.raises(ValueError, match="1024 threads"):
        with_body(threads=0)
    with pytest.raises(ValueError, match="identifier"):
        with_body(name="2k")
    with pytest.raises(ValueError, match="whole warps"):
        with_body(R, ShuffleReduce("r", ZERO, BinaryFn.ADD, 1), threads=48)
    with pytest.raises(ValueError, match="one type"):
        with_body(CopyAsync("tile", ZERO, "X", ZERO), shared=(SharedBuffer("tile", BFLOAT, 64, 0),))


def test_coordinates_are_declared_when_used() -> None:
    assert "blockIdx" not in with_body(Barrier())
    text = emit_cuda(elementwise(at("A")))
    assert "const int bx = mf::below<2>(blockIdx.x);" in text
    assert "blockIdx.y" not in text
    assert I(3).expr == Int(3)
