"""Programs written by an adversary: each is safe and computes something else than x + y, and none has the claim."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest

from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program.program import (
    Apply,
    BinaryFn,
    Combine,
    GlobalRead,
    GlobalWrite,
    Int,
    KernelFn,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    SetReg,
    ShuffleReduce,
    Stmt,
    Value,
    Var,
    Where,
)
from mirage_formal.codegen.safety.safety import Safe, discharge_safety
from mirage_formal.codegen.translation_validation.field_points import (
    FieldPoints,
    ValueRangeError,
    draw_primes,
)
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verdict import Unknown
from tests.kit.kernels.example_kernels import H200
from tests.kit.kernels.program_interpreter import watched

F = BinaryFn
COUNT = 32
TID = Var("tid")
X, Y = GlobalRead("In0", TID), GlobalRead("In1", TID)
SUM = Combine(F.ADD, X, Y)
LARGEST = float(np.finfo(np.float32).max)
TENSOR = DTensor((COUNT,), DType.FLOAT32)
ADD = KernelGraph((Input("x", TENSOR, (1,)), Input("y", TENSOR, (1,))), (Op(OpKind.ADD, (0, 1), Attrs()),), (2,))


def kernel(value: Value, before: Sequence[Stmt] = ()) -> GeneratedKernel:
    """One block of 32 threads, each of which stores a value."""
    params = (
        Param("In0", DType.FLOAT32, COUNT, False, align=16),
        Param("In1", DType.FLOAT32, COUNT, False, align=16),
        Param("Out", DType.FLOAT32, COUNT, True, align=16),
    )
    body = (*before, GlobalWrite("Out", TID, (value,)))
    return GeneratedKernel(0, (0, 1, 2), Program("k", params, (), (1, 1, 1), COUNT, body))


def minus(a: Value, b: Value) -> Value:
    return Combine(F.SUB, a, b)


def plus(a: Value) -> Value:
    """x + y + a."""
    return Combine(F.ADD, SUM, a)


def times(a: Value) -> Value:
    """(x + y) a."""
    return Combine(F.MUL, SUM, a)


def ratio(a: Value) -> Value:
    return Combine(F.DIV, a, a)


def integer(n: int) -> Value:
    """A large integer by exact constants."""
    return Combine(F.ADD, Combine(F.MUL, Real(float(n >> 16)), Real(65536.0)), Real(float(n & 0xFFFF)))


def power(n: int) -> list[Stmt]:
    """r = x^n by repeated squaring."""
    r = Reg("r", Int(0))
    body: list[Stmt] = [Registers("r", 1, initial=1.0)]
    for bit in f"{n:b}":
        body.append(SetReg("r", Int(0), Combine(F.MUL, r, r)))
        if bit == "1":
            body.append(SetReg("r", Int(0), Combine(F.MUL, r, X)))
    return body


@dataclass(frozen=True)
class Attack:
    """A value that is stored, and statements before it."""

    value: Value
    before: tuple[Stmt, ...] = ()


def infinite_registers() -> tuple[Stmt, ...]:
    names = ("a", "b")
    return (
        *(Registers(name, 1, initial=-inf) for name in names),
        *(ShuffleReduce(name, Int(0), F.ADD, 1) for name in names),
    )


LOW = Real(-inf)
NEGATED = Apply(KernelFn.NEG, LOW)
MIXED = Where(Combine(F.LT, X, Y), LOW, X)
BOTH_MIXED = Combine(F.MAX, MIXED, Where(Combine(F.LT, X, Y), LOW, Y))
ABOVE = Combine(F.MAX, Real(inf), X)
SQRT, LOG, RELU = (Apply(kind, X) for kind in (OpKind.SQRT, OpKind.LOG, OpKind.RELU))
LESS = Combine(F.LT, X, Y)
ONE_MORE = Combine(F.ADD, X, Real(1.0))
P, Q = 2147024879, 1073512439
ATTACKS = {
    "the difference of two infinities": Attack(plus(minus(LOW, LOW))),
    "of two negated ones": Attack(plus(minus(NEGATED, NEGATED))),
    "exp of such a difference": Attack(times(Apply(OpKind.EXP, minus(LOW, LOW)))),
    "0 times the root of an infinity": Attack(plus(Combine(F.MUL, Real(0.0), Apply(OpKind.SQRT, LOW)))),
    "sums of infinities over threads": Attack(plus(minus(Reg("a", Int(0)), Reg("b", Int(0)))), infinite_registers()),
    "a selected infinity minus itself": Attack(plus(minus(MIXED, MIXED))),
    "the larger of two selected infinities minus itself": Attack(plus(minus(BOTH_MIXED, BOTH_MIXED))),
    "exp of such a difference of maxima": Attack(times(Apply(OpKind.EXP, minus(BOTH_MIXED, BOTH_MIXED)))),
    "the largest of infinity and a number minus itself": Attack(plus(minus(ABOVE, ABOVE))),
    "a comparison of differences from an infinity": Attack(
        plus(minus(Combine(F.LT, minus(LOW, X), minus(LOW, Y)), Combine(F.LT, Y, X)))
    ),
    "0 times a selected infinity": Attack(plus(Combine(F.MUL, Real(0.0), MIXED))),
    "-inf is the lowest number": Attack(times(Combine(F.EQ, LOW, Real(-LARGEST)))),
    "the largest number is another one": Attack(times(Combine(F.EQ, Real(LARGEST), Real(1e39)))),
    "0 times a root": Attack(plus(Combine(F.MUL, Real(0.0), SQRT))),
    "a logarithm minus itself": Attack(plus(minus(LOG, LOG))),
    "relu over relu": Attack(times(ratio(RELU))),
    "a comparison over itself": Attack(times(ratio(LESS))),
    "a divisor that is always 0": Attack(times(ratio(minus(Combine(F.MAX, X, ONE_MORE), ONE_MORE)))),
    "|x| - sqrt(x x) over itself": Attack(
        times(ratio(minus(Apply(OpKind.ABS, X), Apply(OpKind.SQRT, Combine(F.MUL, X, X)))))
    ),
    "a root at most itself": Attack(times(Combine(F.LE, SQRT, SQRT))),
    "a logarithm equal to itself": Attack(times(Combine(F.EQ, LOG, LOG))),
    "a multiple of a prime": Attack(plus(Combine(F.MUL, integer(P), X))),
    "exp of a multiple of a prime": Attack(
        times(Apply(OpKind.EXP, Combine(F.MUL, Combine(F.MUL, integer(Q), Real(2.0**-30)), X)))
    ),
    "a power of a prime less 1": Attack(times(Reg("r", Int(0))), tuple(power(P - 1))),
}


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(COUNT).astype(np.float32) for _ in range(2)]


def test_the_sum_itself_has_the_claim() -> None:
    assert isinstance(decide_realizes(ADD, kernel(SUM)), Realizes)


@pytest.mark.parametrize("name", ATTACKS)
def test_no_safe_program_that_computes_something_else_has_the_claim(name: str) -> None:
    wrong = kernel(ATTACKS[name].value, ATTACKS[name].before)
    assert isinstance(discharge_safety(wrong.program).verdict, Safe)
    with np.errstate(all="ignore"):
        (got,) = watched(wrong.program, inputs(), once=False)
    assert not np.isclose(got, sum(inputs()), rtol=1e-3, atol=1e-3).all()
    assert not isinstance(decide_realizes(ADD, wrong), Realizes)


@pytest.mark.parametrize(("position", "elements"), [(0, 5000), (2, 16)])
def test_a_parameter_has_the_elements_of_its_tensor(position: int, elements: int) -> None:
    wrong = kernel(SUM)
    params = list(wrong.program.params)
    params[position] = replace(params[position], elements=elements)
    wrong = replace(wrong, program=replace(wrong.program, params=tuple(params)))
    assert not isinstance(decide_realizes(ADD, wrong), Realizes)


def test_a_copy_is_of_the_output_that_it_stands_for() -> None:
    graph = replace(ADD, ops=(), outputs=(0, 1))
    copies = [step for step in generate(graph, H200).steps if isinstance(step, GeneratedKernel)]
    assert [one.values for one in copies] == [(0, 2), (1, 3)]
    for one, values in zip(copies, [(1, 2), (0, 3)], strict=True):
        assert isinstance(decide_realizes(graph, one), Realizes)
        assert not isinstance(decide_realizes(graph, replace(one, values=values)), Realizes)


def test_a_maximum_that_doubles_how_often_it_has_a_value_loses_none() -> None:
    """After 64 doublings, the word of a value that is counted modulo 2^64 would be 0."""
    points = FieldPoints(np.random.default_rng(0), maxima=True)
    found, left, right = (points.variables(name, np.arange(8)) for name in "acd")
    doublings = 0
    with contextlib.suppress(ValueRangeError):
        while doublings < 64:
            found = points.maximum(points.maximum(found, left), points.maximum(found, right))
            doublings += 1
    assert doublings < 33


def test_a_power_that_is_1_modulo_the_prime_has_too_large_a_degree() -> None:
    """Whoever knows the prime p, or writes a multiple of very many p - 1, has a power of x that is 1 in Z_p."""
    p, _ = draw_primes(np.random.default_rng((0, 0)))
    verdict = decide_realizes(ADD, kernel(times(Reg("r", Int(0))), power(p - 1)), seed=0)
    assert isinstance(verdict, Unknown)
    assert "degree" in verdict.reason


def test_primes_are_drawn() -> None:
    random = np.random.default_rng(0)
    pairs = {draw_primes(random) for _ in range(20)}
    assert len(pairs) == 20
    for p, q in pairs:
        assert p == 2 * q + 1
        assert 1 << 29 < q < p < 1 << 31
        assert p % 4 == q % 4 == 3
        assert all(pow(base, p - 1, p) == 1 == pow(base, q - 1, q) for base in (2, 3, 5, 7, 11))
