"""Numerics: exact values where float64 overflows, tolerances that right kernels keep and wrong ones don't."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.numerics.result_comparison import (
    Inputs,
    Runner,
    check,
    compare_outputs,
    draw_all,
    draw_input,
    expected_results,
)
from mirage_formal.codegen.numerics.rounding import quantize, quantum, unit_roundoff
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import run_kernel as emulate
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.kernel_build.build import build, build_form
from mirage_formal.kernel_build.stable_forms import StableForm
from mirage_formal.semantics import float64_reference
from tests.kit.graphs import workloads as w
from tests.kit.kernels.program_interpreter import run as interpret

K = OpKind
SMALL = {
    "rmsnorm": (w.rmsnorm(n=64, k=512), w.rmsnorm_fused(n=64, k=512, grid=2, loop=4)),
    "attention": (w.attention(m=32, n=256), w.attention_one(m=32, n=256, rows=2, loop=4)),
    "attention_split": (w.attention(m=32, n=256), w.attention_split(m=32, n=256, split=4, loop=2)),
    "lora": (w.lora(k=64, n=128), w.lora_fused(k=64, n=128, grid=2, loop=2)),
    "gated_mlp": (w.gated_mlp(k=128, n=64), w.gated_mlp_fused(k=128, n=64, grid=2, loop=2)),
    "ntrans": (w.ntrans(n=512), w.ntrans_fused(n=512)),
}


def runner(programs: Sequence[Program], graph: KernelGraph, execute: Callable[..., Any] = interpret) -> Runner:
    """Runs one generated kernel after another, each on the results of those before it."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        tensors = [a.astype(np.float16) for a in arrays]
        for op, program in zip(graph.ops, programs, strict=True):
            tensors += execute(program, [tensors[i].reshape(-1) for i in op.operands])
        return [tensors[i].astype(np.float64) for i in graph.outputs]

    return run


def kernels(name: str) -> tuple[KernelGraph, KernelGraph, list[Program]]:
    """The program, the µGraph that is run, and its kernels."""
    program, candidate = SMALL[name]
    built = build(candidate, program, load_target("h200"))
    return program, built.executable.graph, list(built.programs.values())


# --- inputs and element types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_rounding_to_element_types(dtype: DType) -> None:
    """Against NumPy, subnormals and halfway cases included."""
    kind = np.dtype(dtype.value)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(4000) * 10.0 ** rng.integers(-9, 4, 4000)
    grid = x[:500].astype(kind).astype(np.float64)
    x = np.concatenate([x, grid, grid + 0.5 * quantum(grid, dtype, np), [0.0, -0.0]])
    assert np.array_equal(quantize(x, dtype, np), x.astype(kind).astype(np.float64))


def test_rounding_to_bfloat16() -> None:
    assert quantize(np.array([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 257.0]), DType.BFLOAT16, np).tolist() == [
        1.0,
        1.0,
        1 + 2.0**-6,
        256.0,
    ]
    assert unit_roundoff(DType.BFLOAT16) == 2.0**-8


def test_inputs_are_seeded_normal_and_held_by_their_type() -> None:
    item = Input("X", DTensor((64, 1000), DType.FLOAT16), (1000, 1))
    x = draw_input(item, 0, 3, 8.0)
    assert np.array_equal(x, x.astype(np.float16).astype(np.float64))
    assert np.array_equal(x, draw_input(item, 0, 3, 8.0))
    assert abs(x.mean()) < 0.1
    assert 7.9 < x.std() < 8.1
    assert abs((x**4).mean() / x.var() ** 2 - 2.7) < 0.1  # of four uniform summands: 3 - 1.2 / 4
    assert not np.array_equal(x, draw_input(item, 1, 3, 8.0))
    assert not np.array_equal(x, draw_input(item, 0, 4, 8.0))


# --- exact values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_exact_values_are_the_reference(name: str) -> None:
    program, candidate = SMALL[name]
    arrays = draw_all(program, 1, 0.3)
    found = expected_results(program, candidate, arrays)
    for value, want in zip(found.values, float64_reference.run(program, arrays), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-15)


def test_exact_values_where_float64_overflows() -> None:
    """At scale 8 some logits are above 709; softmax says what attention is there."""
    program, candidate = SMALL["attention_split"]
    q, k, v = arrays = draw_all(program, 2, 8.0)
    logits = q @ k
    assert logits.max() > 710
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    want = weights / weights.sum(axis=2, keepdims=True) @ v
    (value,) = expected_results(program, candidate, arrays).values
    np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-12)


def test_every_operator_agrees_with_the_reference() -> None:
    """The estimating domain computes what the float64 domain computes."""
    a = Attrs
    ops = (
        Op(K.SCALE, (0,), a(factor=Fraction(1, 3))),
        Op(K.GELU, (2,), a()),
        Op(K.RELU, (0,), a()),
        Op(K.SIGMOID, (3,), a()),
        Op(K.SILU, (4,), a()),
        Op(K.CONCAT, (5, 6), a(dim=1)),
        Op(K.MAX, (7,), a(dim=1)),
        Op(K.REPEAT, (8,), a(dim=1, times=8)),
        Op(K.SUB, (7, 9), a()),
        Op(K.EXP, (10,), a()),
        Op(K.SOFTMAX, (11,), a(dim=0)),
        Op(K.LAYER_NORM, (12,), a(dim=1, eps=Fraction(1, 50))),
        Op(K.RESHAPE, (13,), a(shape=(8, 6))),
        Op(K.TRANSPOSE, (14,), a(perm=(1, 0))),
        Op(K.MATMUL, (15, 1), a()),
        Op(K.SQUARE, (16,), a()),
        Op(K.ADD, (17, 11), a()),
        Op(K.SQRT, (18,), a()),
        Op(K.DIV, (19, 11), a()),
        Op(K.SLICE, (20,), a(dim=1, start=1, stop=4)),
        Op(K.PAD, (21,), a(dim=0, before=1, after=2)),
        Op(K.SHIFT, (22,), a(shift=Fraction(1, 7))),
        Op(K.TANH, (23,), a()),
        Op(K.ERF, (24,), a()),
        Op(K.MAXIMUM, (24, 25), a()),
        Op(K.MINIMUM, (23, 26), a()),
        Op(K.ABS, (27,), a()),
        Op(K.RECIPROCAL, (28,), a()),
        Op(K.LOG, (29,), a()),
    )
    shape = (6, 4)
    inputs = (
        Input("X", DTensor(shape, DType.FLOAT16), row_major(shape)),
        Input("Y", DTensor((8, 8), DType.FLOAT16), (8, 1)),
    )
    graph = KernelGraph(inputs, ops, (20, 30))
    arrays = draw_all(graph, 0, 1.0)
    found = expected_results(graph, graph, arrays)
    for value, tolerance, wanted in zip(
        found.values, found.tolerances, float64_reference.run(graph, arrays), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-11)
        assert np.isfinite(tolerance).all()


def _masked(*ops: Op, outputs: tuple[int, ...]) -> KernelGraph:
    """A program over numbers X and Y and a mask M, inputs 0, 1 and 2."""
    shape = (6, 8)
    types = (("X", DType.FLOAT16), ("Y", DType.FLOAT16), ("M", DType.BOOL))
    inputs = tuple(Input(name, DTensor(shape, dtype), row_major(shape)) for name, dtype in types)
    return KernelGraph(inputs, ops, outputs)


def test_selections_comparisons_and_roundings_agree_with_the_reference() -> None:
    a = Attrs
    graph = _masked(
        Op(K.SELECT, (2, 0, 1), a()),
        Op(K.SELECT, (2, 0), a(value=Fraction(1, 10))),
        Op(K.LT, (0, 1), a()),
        Op(K.GE, (3,), a(value=Fraction(0))),
        Op(K.LOGICAL_NOT, (5,), a()),
        Op(K.MUL, (6, 7), a()),
        Op(K.MAXIMUM, (8, 2), a()),
        Op(K.MAX, (9,), a(dim=1)),
        Op(K.CAST, (10,), a(dtype=DType.FLOAT16)),
        Op(K.CAST, (8,), a(dtype=DType.FLOAT16)),
        Op(K.SELECT, (9, 3, 12), a()),
        Op(K.ROUND_BFLOAT16, (13,), a()),
        Op(K.LE, (0, 1), a()),
        Op(K.EQ, (0,), a(value=Fraction(0))),
        Op(K.SELECT, (16, 14), a(value=Fraction(0))),
        Op(K.EXP, (17,), a()),
        Op(K.SELECT, (15, 18), a(value=Fraction(0))),
        Op(K.SUM, (19,), a(dim=1)),
        Op(K.DIV_NO_NAN, (19, 20), a()),
        Op(K.ROUND_FLOAT16, (21,), a()),
        Op(K.SCALE, (4,), a(factor=Fraction(0))),
        Op(K.ADD, (22, 23), a()),
        outputs=(4, 11, 14, 24),
    )
    arrays = draw_all(graph, 0, 1.0)
    found = expected_results(graph, graph, arrays)
    for value, tolerance, wanted in zip(
        found.values, found.tolerances, float64_reference.run(graph, arrays), strict=True
    ):
        np.testing.assert_allclose(value, wanted, rtol=1e-11)
        assert (tolerance <= 0.02 * np.abs(value)).all()


def test_a_mask_that_is_drawn_has_empty_rows_and_columns() -> None:
    mask = draw_input(Input("M", DTensor((2, 16, 20), DType.BOOL), (320, 20, 1)), 0, 0, 8.0)
    assert set(np.unique(mask)) == {0.0, 1.0}
    assert (mask.any(axis=(0, 2)) == 0).any()
    assert (mask.any(axis=(0, 1)) == 0).any()
    assert 0.2 < mask.mean() < 0.5
    assert np.array_equal(mask, draw_input(Input("M", DTensor((2, 16, 20), DType.BOOL), (320, 20, 1)), 0, 0, 0.1))


def test_what_a_selection_discards_has_no_error_and_no_influence() -> None:
    """Infinite and undefined values, and exponentials beyond every float: sums with them are sums without them."""
    graph = _masked(
        Op(K.EXP, (0,), Attrs()),
        Op(K.SELECT, (2, 3), Attrs(value=Fraction(0))),
        Op(K.SUM, (4,), Attrs(dim=1)),
        Op(K.DIV_NO_NAN, (4, 5), Attrs()),
        outputs=(6,),
    )
    arrays = draw_all(graph, 0, 1.0)
    plain = expected_results(graph, graph, arrays)
    for wild in (np.nan, np.inf, 1e4, -1e4):
        other = expected_results(graph, graph, [np.where(arrays[2] == 0, wild, arrays[0]), *arrays[1:]])
        for one, two in zip((*plain.values, *plain.tolerances), (*other.values, *other.tolerances), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12)
    assert (plain.values[0][arrays[2].sum(axis=1) == 0] == 0).all()


@pytest.mark.parametrize("kind", [K.LT, K.LE])
def test_a_comparison_of_what_rounding_decides_may_come_out_either_way(kind: K) -> None:
    """x + y - y against x: equal, but for what rounding makes of the sum; so is a selection by it."""
    graph = _masked(
        Op(K.ADD, (0, 1), Attrs()),
        Op(K.SUB, (3, 1), Attrs()),
        Op(kind, (4, 0), Attrs()),
        Op(K.SELECT, (5, 0, 1), Attrs()),
        Op(kind, (1, 0), Attrs()),
        Op(K.SELECT, (7, 0, 1), Attrs()),
        outputs=(6, 8),
    )
    x, y, _ = arrays = draw_all(graph, 0, 1.0)
    values, (near, clear), _ = _of(graph, arrays)
    assert (near >= np.abs(x - y)).mean() > 0.9
    assert (clear <= 0.01 * np.abs(values[1])).all()


def _of(graph: KernelGraph, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
    found = expected_results(graph, graph, arrays)
    return found.values, found.tolerances, found.overflows


def test_an_element_that_a_doubtful_comparison_leaves_unknown_is_not_judged() -> None:
    """where(x + y - y < x, log(x), 0) with x < 0 somewhere: there it is not a number or 0."""
    graph = _masked(
        Op(K.ADD, (0, 1), Attrs()),
        Op(K.SUB, (3, 1), Attrs()),
        Op(K.LT, (4, 0), Attrs()),
        Op(K.LOG, (0,), Attrs()),
        Op(K.SELECT, (5, 6), Attrs(value=Fraction(0))),
        outputs=(7,),
    )
    arrays = draw_all(graph, 0, 1.0)
    _, (tolerance,), _ = _of(graph, arrays)
    assert np.isinf(tolerance[arrays[0] < 0]).mean() > 0.9
    assert np.isfinite(tolerance[arrays[0] > 0]).all()


def test_an_infinite_tolerance_excuses_its_element_and_no_other() -> None:
    value, tolerance = np.array([1.0, 2.0, 3.0]), np.array([1e-3, np.inf, 1e-3])
    found = compare_outputs(np.array([1.0, np.nan, 3.0]), value, tolerance, DType.FLOAT16)
    assert (found.answer, found.lost, found.elements) == ("within", 1, 3)
    assert compare_outputs(np.array([1.0, 2.0, 4.0]), value, tolerance, DType.FLOAT16).answer == "outside"
    assert compare_outputs(value, value, np.full(3, np.inf), DType.FLOAT16).answer == "undecided"


def test_rounding_operators_are_compared_at_their_own_steps() -> None:
    """(x - round(x)) 256 of exact operands is exact; of the product x y it is off by a step at most near a tie."""
    graph = _masked(
        Op(K.ROUND_BFLOAT16, (0,), Attrs()),
        Op(K.SUB, (0, 3), Attrs()),
        Op(K.SCALE, (4,), Attrs(factor=Fraction(256))),
        Op(K.MUL, (0, 1), Attrs()),
        Op(K.ROUND_BFLOAT16, (6,), Attrs()),
        outputs=(5, 7),
    )
    arrays = draw_all(graph, 0, 1.0)
    (exact, product), (none, some), _ = _of(graph, arrays)
    assert (exact != 0).any()
    assert (none <= 6.1 * unit_roundoff(DType.FLOAT16) * np.abs(exact)).all()
    assert (some < 0.06 * np.abs(product)).all()


# --- tolerances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_generated_kernels_are_within_tolerance(name: str) -> None:
    program, candidate, programs = kernels(name)
    record = check(
        program, candidate, "", runner(programs, candidate), device="interpreter", inputs=Inputs(scales=(0.1, 1.0))
    )
    assert record.answer == "within", record
    for scale in record.scales:
        (output,) = scale.outputs
        # The tolerance is no more than a few times what really happens.
        assert output.max_ratio is not None
        assert 0.03 < output.max_ratio < 1.0
        assert output.relative_norm is not None
        assert output.relative_norm < 1.5e-3


@pytest.mark.parametrize("name", ["attention", "attention_split"])
def test_attention_beyond_the_range_of_exp_in_the_emulator(name: str) -> None:
    """At scale 8 logits reach 1,000: exp overflows in float16 at 11, in float32 at 88, in float64 at 709."""
    program, candidate, programs = kernels(name)
    arrays = draw_all(program, 0, 8.0)
    assert np.abs(arrays[0] @ arrays[1]).max() > 1000
    record = check(
        program,
        candidate,
        "",
        runner(programs, candidate, emulate),
        device="emulator",
        inputs=Inputs(scales=(1.0, 8.0)),
    )
    assert record.answer == "within", record
    for scale in record.scales:
        assert scale.overflows == ()
        assert scale.outputs[0].relative_norm is not None
        assert scale.outputs[0].relative_norm < 1.5e-3


Change = Callable[[list[Any]], list[Any]]
WRONG: dict[str, tuple[str, Change]] = {
    "a chunk of the loop is left out": ("rmsnorm", lambda x: [np.where(np.arange(512) < 504, x[0], 0.0), x[1]]),
    "a key is left out": ("attention", lambda x: [x[0], x[1], x[2] * (np.arange(256) != 100)[:, None]]),
    "a row is another's": ("gated_mlp", lambda x: [x[0][[1, 1, *range(2, 8)]], *x[1:]]),
    "one in a thousand off": ("ntrans", lambda x: [x[0] * 1.005, *x[1:]]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_are_outside(name: str) -> None:
    workload, change = WRONG[name]
    program, candidate = SMALL[workload]

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [x.astype(np.float16).astype(np.float64) for x in float64_reference.run(program, change(list(arrays)))]

    def right(arrays: Sequence[Any]) -> list[Any]:
        return [x.astype(np.float16).astype(np.float64) for x in float64_reference.run(program, arrays)]

    assert check(program, candidate, "", right, device="x", inputs=Inputs(scales=(0.1,))).answer == "within"
    assert check(program, candidate, "", run, device="x", inputs=Inputs(scales=(0.1,))).answer == "outside"


def test_sums_in_half_precision_are_outside() -> None:
    program, candidate = SMALL["rmsnorm"]

    def run(arrays: Sequence[Any]) -> list[Any]:
        x, weight = (a.astype(np.float16) for a in arrays)
        x = (x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True))).astype(np.float16)
        total = np.zeros((2, 64), np.float16)
        for i in range(512):
            total = (total + x[:, i : i + 1] * weight[i]).astype(np.float16)
        return [total.astype(np.float64)]

    assert check(program, candidate, "", run, device="x", inputs=Inputs(scales=(1.0,))).answer == "outside"


def test_overflow_without_a_running_maximum_is_found() -> None:
    """The tensors between the kernels of split attention leave float16, and the record names them."""
    program, candidate = SMALL["attention_split"]
    programs = list(build_form(StableForm(candidate), program, load_target("h200")).programs.values())
    record = check(program, candidate, "", runner(programs, candidate), device="x", inputs=Inputs(scales=(8.0,)))
    assert record.answer == "outside"
    assert "infinite or not a number" in record.scales[0].outputs[0].reason
    assert record.scales[0].overflows == ("k3", "k4")


def test_values_beyond_the_element_type_must_be_infinite() -> None:
    value, tolerance = np.array([1e6, -1e6, 1.0]), np.array([1e3, 1e3, 1e-3])
    right = compare_outputs(np.array([np.inf, -np.inf, 1.0]), value, tolerance, DType.FLOAT16)
    assert (right.answer, right.beyond_range) == ("within", 2)
    assert compare_outputs(np.array([np.inf, np.inf, 1.0]), value, tolerance, DType.FLOAT16).answer == "outside"
    assert compare_outputs(np.array([np.nan, -np.inf, 1.0]), value, tolerance, DType.FLOAT16).answer == "outside"
    assert compare_outputs(np.array([5.0, -np.inf, 1.0]), value, tolerance, DType.FLOAT16).answer == "outside"


def test_values_whose_tolerance_reaches_beyond_the_element_type_may_be_infinite() -> None:
    value, tolerance = np.array([-65400.0, 1.0]), np.array([200.0, 1e-3])
    assert compare_outputs(np.array([-np.inf, 1.0]), value, tolerance, DType.FLOAT16).answer == "within"
    assert compare_outputs(np.array([np.inf, 1.0]), value, tolerance, DType.FLOAT16).answer == "outside"
    assert compare_outputs(np.array([-np.inf, 1.0]), value, tolerance / 10, DType.FLOAT16).answer == "outside"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_known_is_never_within(bad: float) -> None:
    one = np.ones(3)
    value = np.array([1.0, bad, 1.0])
    assert compare_outputs(value, value, 1e-3 * one, DType.FLOAT16).answer == "undecided"
    assert compare_outputs(one, one, np.array([1e-3, np.nan, 1e-3]), DType.FLOAT16).answer == "undecided"
    assert compare_outputs(value, one, 1e-3 * one, DType.FLOAT16).answer == "outside"
    assert compare_outputs(one, one, 1e9 * one, DType.FLOAT16).answer == "undecided"


def test_rounding_of_an_exact_operation_costs_nothing() -> None:
    """A product of small integers is exact, and its tolerance 0 but for the element type's own rounding."""
    shape = (4, 4)
    inputs = tuple(Input(n, DTensor(shape, DType.FLOAT16), (4, 1)) for n in "XY")
    graph = KernelGraph(inputs, (Op(K.MATMUL, (0, 1), Attrs()),), (2,))
    ones = [np.ones(shape), np.ones(shape)]
    found = expected_results(graph, graph, ones)
    assert (found.values[0] == 4.0).all()
    assert found.tolerances[0].max() <= 6.1 * unit_roundoff(DType.FLOAT16) * 4
    bfloat = replace(graph, inputs=tuple(replace(x, tensor=DTensor(shape, DType.BFLOAT16)) for x in inputs))
    assert expected_results(bfloat, bfloat, ones).tolerances[0].max() > 5 * found.tolerances[0].max()


def test_the_spacing_of_small_values_counts_also_behind_an_exponential() -> None:
    """A softmax of which nearly all is in one element: the others are below float16, and 0 is right for them."""
    x = Input("X", DTensor((2, 8), DType.FLOAT16), (8, 1))
    ops = (Op(K.EXP, (0,), Attrs()), Op(K.SUM, (1,), Attrs(dim=1)), Op(K.DIV, (1, 2), Attrs()))
    graph = KernelGraph((x,), ops, (3,))
    fused = KernelGraph((x,), (Op(K.SOFTMAX, (0,), Attrs(dim=1)),), (1,))
    values = np.zeros((2, 8))
    values[:, 0] = 18.0
    found = expected_results(graph, fused, [values])
    small = found.values[0][0, 1]
    assert 0 < small < 2.0**-25
    result = found.values[0].astype(np.float16).astype(np.float64)
    assert (result[:, 1:] == 0).all()
    assert compare_outputs(result, found.values[0], found.tolerances[0], DType.FLOAT16).answer == "within"
    assert compare_outputs(result + 2.0**-21, found.values[0], found.tolerances[0], DType.FLOAT16).answer == "outside"
