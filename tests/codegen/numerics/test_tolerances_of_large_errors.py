"""Tolerances where errors are not small beside their values, or are not independent of each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.codegen.numerics import nonlinear_error
from mirage_formal.codegen.numerics.result_comparison import (
    Inputs,
    Runner,
    check,
    compare_outputs,
    draw_all,
    expected_results,
)
from mirage_formal.codegen.numerics.rounding import quantize, unit_roundoff
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from tests.kit.graphs import workloads as w
from tests.kit.proofs.claims import Saved, kernel, on
from tests.kit.proofs.claims import program as program_of

K = OpKind


def typed(shape: tuple[int, ...], name: str) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


@pytest.mark.parametrize("x", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("deviation", [1e-6, 0.02, 3.0])
def test_no_value_within_six_deviations_leaves_the_tolerance(x: float, deviation: float) -> None:
    """Of values that squares may have, which are not below 0, also where the derivative would allow less."""
    least = np.array([x / 2])
    values = np.linspace(max(x - 6 * deviation, x / 2), x + 6 * deviation, 999)
    at, error = np.array([x]), np.array([deviation])
    for function, bound in (
        (lambda v: 1 / v, nonlinear_error.reciprocal(at, error, least, np)),
        (np.log, nonlinear_error.logarithm(at, error, least, np)),
        (np.sqrt, nonlinear_error.root(at, error, least, np)),
    ):
        assert np.abs(function(values) - function(at)).max() <= 6 * bound[0] * (1 + 1e-9)
    deviations, lowest = nonlinear_error.square_deviation(at, error, np)
    signed = np.linspace(x - 6 * deviation, x + 6 * deviation, 999)
    assert np.abs(signed**2 - x * x).max() <= 6 * deviations[0] * (1 + 1e-9)
    assert (signed**2 >= lowest * (1 - 1e-9)).all()


def test_where_an_interval_reaches_a_pole_the_tolerance_is_above_the_result() -> None:
    at, error = np.array([0.1, -0.1]), np.array([0.05, 0.05])
    assert (6 * nonlinear_error.reciprocal(at, error, None, np) >= 10.0).all()


def _of_squares(kind: K, offset: Fraction) -> KernelGraph:
    """A function of (X A)^2 + offset in which X A cancels in some elements, and is rounded before it is squared."""
    ops = (
        Op(K.MATMUL, (0, 1), Attrs()),
        Op(K.SQUARE, (2,), Attrs()),
        Op(K.SHIFT, (3,), Attrs(shift=offset)),
        Op(kind, (4,), Attrs()),
    )
    return KernelGraph((typed((64, 256), "X"), typed((256, 64), "A")), ops, (5,))


_EXACTLY: dict[K, Callable[[Any], Any]] = {K.RECIPROCAL: lambda x: 1 / x, K.SQRT: np.sqrt, K.LOG: np.log}


def _stored(function: Callable[[Any], Any], offset: float, wrong: float = 0.0) -> Runner:
    """The function of what float16 holds of X A, of which a share is left out."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        t = quantize((arrays[0] @ arrays[1]) * (1 - wrong), DType.FLOAT16, np)
        for step in (np.square, lambda x: x + offset, function):
            t = quantize(step(t), DType.FLOAT16, np)
        return [t]

    return run


@pytest.mark.parametrize("kind", _EXACTLY)
def test_a_function_of_what_cancels_is_within_and_a_wrong_one_is_not(kind: K) -> None:
    """The error of some t = X A is above t itself: there the derivative says too little."""
    graph = _of_squares(kind, Fraction(1, 1 << 12))
    run = partial(_stored, _EXACTLY[kind], 2.0**-12)
    at = Inputs(scales=(2.0,))
    right = check(graph, graph, "", run(), device="x", inputs=at).scales[0].outputs[0]
    assert right.answer == "within", right
    wrong = check(graph, graph, "", run(0.02), device="x", inputs=at).scales[0].outputs[0]
    assert wrong.answer == "outside"


def test_what_a_square_is_not_below_bounds_its_reciprocal() -> None:
    """1 / (t^2 + 1) is at most 1 whatever the error of t is, and no tolerance is larger."""
    graph = _of_squares(K.RECIPROCAL, Fraction(1))
    arrays = draw_all(graph, 0, 8.0)
    arrays[1][:, 0] = 0.0
    found = expected_results(graph, graph, arrays)
    assert (found.values[0][:, 0] == 1.0).all()
    assert found.tolerances[0].max() < 1.01
    # Where nothing cancels it is that of the derivative: both ends of the interval are about as far away.
    t = arrays[0] @ arrays[1]
    far = (np.abs(t) > 10) & (np.abs(t) < 100)
    assert far.any()
    relative = found.tolerances[0][far] / found.values[0][far]
    assert relative.max() < 6 * 6 * unit_roundoff(DType.FLOAT16)


def _log_of_sum(g: Graph, x: Tensor) -> Tensor:
    """log sum exp along the rows, by one kernel."""

    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.forloop_accum(t.log(t.reduction(t.exp(x), 0))), on()

    return kernel(g, (1,), [(x, on())], body)


@pytest.mark.parametrize(("missing", "answer"), [(0, "within"), (1, "outside")])
def test_roundings_of_equal_values_are_not_independent(missing: int, answer: str) -> None:
    """Of 260 equal elements every logarithm of softmax is rounded alike, and so is the sum of their exponentials."""
    graph = program_of({"X": (260, 8)}, lambda g, x: _log_of_sum(g, x - _log_of_sum(g, x)))

    def run(arrays: Sequence[Any]) -> list[Any]:
        def log(x: Any) -> Any:
            return quantize(np.log(np.exp(x).sum(axis=0, keepdims=True)), DType.FLOAT16, np)

        (x,) = arrays
        return [log(quantize(x - log(x), DType.FLOAT16, np)[missing:])]

    at = Inputs(scales=(1e-4,))
    record = check(graph, graph, "", run, device="x", inputs=at)
    assert record.answer == answer, record
    arrays = draw_all(graph, 0, 1e-4)
    value = np.zeros((1, 8))
    assert (
        compare_outputs(
            run(arrays)[0], value, expected_results(graph, graph, arrays).tolerances[0], DType.FLOAT16
        ).answer
        == "outside"
    )


def test_what_roundings_do_together_excuses_no_kernel_that_leaves_something_out() -> None:
    """Each wrong kernel is outside though the tolerance was widened by the µGraph's own roundings."""
    program, candidate = w.attention(m=32, n=256), w.attention_split(m=32, n=256, split=4, loop=2)
    for key, keep in {"a key": np.arange(256) != 100, "a block's keys": np.arange(256) < 192}.items():

        def run(arrays: Sequence[Any], keep: Any = keep) -> list[Any]:
            q, k, v = arrays
            p = np.exp(q @ k) * keep
            return [quantize(p @ v / p.sum(axis=2, keepdims=True), DType.FLOAT16, np)]

        record = check(program, candidate, "", run, device="x", inputs=Inputs(scales=(0.1,)))
        assert record.answer == "outside", key


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_what_a_candidate_computes_instead_of_its_program_is_not_tolerated(scale: float) -> None:
    """A kernel that does what its µGraph says is outside where the µGraph is not the program."""
    inputs = {"X": (16, 32), "W": (32, 8)}
    program = program_of(inputs, lambda g, x, w: g.rms_norm(x) @ w)
    candidate = program_of(inputs, lambda g, x, w: x @ w)

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [quantize(arrays[0] @ arrays[1], DType.FLOAT16, np)]

    record = check(program, candidate, "", run, device="x", inputs=Inputs(scales=(scale,)))
    assert record.answer == "outside"
