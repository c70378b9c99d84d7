"""Degrees and numbers of exponentials against sympy, and the error bound's formulas."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from math import log2
from typing import Any

import numpy as np
import pytest
import sympy
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.prove.identity_testing.degree_bounds import (
    ONE,
    ExponentialSum,
    OutsideTheorem,
    QuotientBounds,
    bound_degrees,
    error_bound,
)
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.semantics.straight_line_trace import NotLax, needed_parts, record_tape
from tests.kit.graphs import reference_interpreter
from tests.kit.graphs import workloads as w
from tests.kit.graphs.random_graphs import random_graph

PAIR = field_pair(31)
RATIONAL = frozenset(
    {OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.SQUARE, OpKind.SUM, OpKind.MEAN, OpKind.SCALE}
    | {OpKind.RECIPROCAL, OpKind.SHIFT, OpKind.SLICE, OpKind.PAD}
    | {OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_CONCAT}
)


class _Symbolic:
    def sqrt(self, x: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError("not rational")

    def opaque(self, kind: OpKind, x: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError(kind)

    def pair(self, kind: OpKind, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError(kind)

    def compare(self, kind: OpKind, x: NDArray[Any], y: Any) -> NDArray[Any]:
        raise AssertionError(kind)

    def select(self, mask: NDArray[Any], x: NDArray[Any], y: Any) -> NDArray[Any]:
        raise AssertionError("not rational")

    def quotient(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        raise AssertionError("not rational")

    def constant(self, value: Fraction) -> Any:
        return sympy.Rational(value.numerator, value.denominator)

    def exp(self, x: NDArray[Any]) -> NDArray[Any]:
        return self._map(sympy.exp, x)

    def silu(self, x: NDArray[Any]) -> NDArray[Any]:
        return self._map(lambda v: v / (1 + sympy.exp(-v)), x)

    def matmul(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        return np.matmul(a, b)

    def sum(self, x: NDArray[Any], axis: int) -> NDArray[Any]:
        return x.sum(axis=axis, keepdims=True)

    def _map(self, function: Callable[[Any], Any], x: NDArray[Any]) -> NDArray[Any]:
        return np.array([function(v) for v in x.ravel()], dtype=object).reshape(x.shape)


def _symbols(graph: KernelGraph) -> list[NDArray[Any]]:
    return [
        np.array(sympy.symbols(f"{source.name}_0:{source.tensor.elements}"), dtype=object).reshape(source.tensor.shape)
        for source in graph.inputs
    ]


def _growth(graph: KernelGraph) -> QuotientBounds | OutsideTheorem:
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    assert not isinstance(wanted, NotLax)
    return bound_degrees(tape, wanted)


def _degree(e: Any, symbols: list[Any]) -> int:
    return sympy.Poly(e, *symbols).total_degree() if e.free_symbols else 0


@pytest.mark.parametrize("seed", range(40))
def test_degrees_are_upper_bounds(seed: int) -> None:
    """One element of the output of a random rational program, in lowest terms."""
    rng = random.Random(seed)
    graph = random_graph(rng, RATIONAL, kernels=1)
    tensors = _symbols(graph)
    element = reference_interpreter.evaluate(graph, tensors, _Symbolic())[0].ravel()[0]
    if sympy.count_ops(element) > 80:
        return
    if element.has(sympy.zoo, sympy.nan):  # A denominator that is 0 everywhere.
        return
    above, below = sympy.fraction(sympy.cancel(sympy.together(element)))
    symbols = sorted(element.free_symbols, key=str)
    bound = _growth(graph)
    assert isinstance(bound, QuotientBounds)
    assert bound.above.degree >= _degree(above, symbols)
    assert bound.below.degree >= _degree(below, symbols)
    assert bound.above.exponent == bound.below.exponent == 0


def _terms(e: Any) -> int:
    """Different exponentials among the terms of an expanded sum (1 counts as one)."""
    found = set()
    for term in sympy.Add.make_args(sympy.expand(e)):
        power = sympy.powsimp(sympy.Mul(*[f for f in sympy.Mul.make_args(term) if f.has(sympy.exp)]), force=True)
        found.add(power)
    return len(found)


@pytest.mark.parametrize(
    "graph",
    [
        w.attention(b=1, m=1, d=2, n=3, e=1),
        w.attention_one(b=1, m=1, d=1, n=2, e=1, rows=1, loop=2),
        w.gated_mlp(b=1, k=2, n=1),
        w.gated_mlp_fused(b=1, k=2, n=1, grid=1, loop=2),
        KernelGraph((w.tensor("a", 2, 2),), (w.op(OpKind.SOFTMAX, 0, dim=1), w.op(OpKind.SUM, 1, dim=0)), (2,)),
    ],
)
def test_exponentials_are_upper_bounds(graph: KernelGraph) -> None:
    element = reference_interpreter.evaluate(graph, _symbols(graph), _Symbolic())[0].ravel()[0]
    above, below = sympy.fraction(sympy.together(element))
    bound = _growth(graph)
    assert isinstance(bound, QuotientBounds)
    assert bound.above.terms >= _terms(above)
    assert bound.below.terms >= _terms(below)
    assert max(bound.above.exponent, bound.below.exponent) >= 1


def test_exact_numbers() -> None:
    assert _growth(w.lora()) == QuotientBounds(ExponentialSum(1, 3, 0), ONE)
    assert _growth(w.lora_fused()) == QuotientBounds(ExponentialSum(1, 3, 0), ONE)
    # silu(a) b = a b / (1 + exp(-a)): one polynomial of degree 4 over two terms, exponents of degree 2.
    assert _growth(w.gated_mlp()) == QuotientBounds(ExponentialSum(1, 4, 0), ExponentialSum(2, 0, 2))
    assert _growth(w.attention_split(b=1, m=2, d=2, n=64, e=2, split=4, loop=4)) == QuotientBounds(
        ExponentialSum(64, 1, 2), ExponentialSum(64, 0, 2)
    )
    mean = KernelGraph(
        (w.tensor("a", 2, 8), w.tensor("b", 2, 8)), (w.op(OpKind.DIV, 0, 1), w.op(OpKind.SUM, 2, dim=1)), (3,)
    )
    assert _growth(mean) == QuotientBounds(ExponentialSum(1, 8, 0), ExponentialSum(1, 8, 0))


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (w.op(OpKind.SQRT, 0), "sqrt"),
        (w.op(OpKind.RMS_NORM, 0, dim=1), "sqrt"),
        (w.op(OpKind.GELU, 0), "gelu is opaque"),
    ],
)
def test_what_is_outside_the_theorem(op: Op, reason: str) -> None:
    found = _growth(KernelGraph((w.tensor("a", 2, 8),), (op,), (1,)))
    assert isinstance(found, OutsideTheorem)
    assert reason in found.reason
    bound = error_bound(found, QuotientBounds(ONE, ONE), PAIR, 1)
    assert bound.log2 is None
    assert reason in bound.reason


def test_an_exponent_with_a_division_is_outside() -> None:
    a = w.tensor("a", 2, 8)
    found = _growth(KernelGraph((a,), (w.op(OpKind.SQUARE, 0), w.op(OpKind.DIV, 0, 1), w.op(OpKind.EXP, 2)), (3,)))
    assert isinstance(found, OutsideTheorem)
    assert "division" in found.reason


@pytest.mark.parametrize(("terms", "probability"), [(1, 5.5e-3), (2, 0.27), (8, 0.93)])
def test_the_theorem(terms: int, probability: float) -> None:
    """Degree 10 and k = 2, 4, 16 exponentials at q about 2^30, as tabulated."""
    side = QuotientBounds(ExponentialSum(terms, 10, 1), ONE)
    one = error_bound(side, side, PAIR, 1)
    assert one.log2 is not None
    assert 2**one.log2 == pytest.approx(probability, rel=0.02)
    assert error_bound(side, side, PAIR, 3).log2 == pytest.approx(3 * one.log2)


def test_vacuous_bounds_say_so() -> None:
    side = QuotientBounds(ExponentialSum(64, 3, 2), ExponentialSum(64, 0, 2))
    bound = error_bound(side, side, PAIR, 5)
    assert bound.log2 is None
    assert bound.reason == "vacuous: k = 8192 exponentials, degree 3"
    huge = QuotientBounds(ExponentialSum(1, PAIR.p, 0), ONE)
    assert "vacuous" in error_bound(huge, ONE_OVER_ONE, PAIR, 1).reason


ONE_OVER_ONE = QuotientBounds(ONE, ONE)


def test_schwartz_zippel() -> None:
    cubic = QuotientBounds(ExponentialSum(1, 3, 0), ONE)
    assert error_bound(cubic, cubic, PAIR, 2).log2 == pytest.approx(2 * log2(3 / PAIR.p))
    over = QuotientBounds(ExponentialSum(1, 3, 0), ExponentialSum(1, 2, 0))
    assert error_bound(over, cubic, PAIR, 1).log2 == pytest.approx(log2(5 / (PAIR.p - 2)))


def test_the_bound_holds_where_it_can_be_counted() -> None:
    """x^3 against x for x in a field of 57,119 elements agrees at three points: within d / p = 3 / p."""
    pair = field_pair(16)
    x = np.arange(pair.p, dtype=np.uint64)
    agree = int(((x * x % pair.p * x) % pair.p == x).sum())
    cube, line = QuotientBounds(ExponentialSum(1, 3, 0), ONE), QuotientBounds(ExponentialSum(1, 1, 0), ONE)
    bound = error_bound(cube, line, pair, 1).log2
    assert bound is not None
    assert agree / pair.p == pytest.approx(2**bound)


def test_scale_and_offset_do_not_change_exponentials() -> None:
    ops = (w.op(OpKind.SCALE, 0, factor=Fraction(-1)), w.op(OpKind.EXP, 1))
    assert _growth(KernelGraph((w.tensor("a", 2),), ops, (2,))) == QuotientBounds(ExponentialSum(1, 0, 1), ONE)
