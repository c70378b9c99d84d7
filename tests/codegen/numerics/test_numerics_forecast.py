"""Numerics that are foreseen: operators executed in their element types, beside what real elements do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_formal as mf
from mirage_formal import Graph, Tensor
from mirage_formal.codegen.numerics import rounding_simulation
from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.codegen.numerics.rounding import LARGEST, store_as
from mirage_formal.codegen.numerics.rounding_simulation import MAX_ELEMENTS, predict_numerics, round_to_type, simulate
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from tests.kit.graphs import workloads as w
from tests.kit.graphs.softmax_forms import TINY, built, tiny
from tests.kit.proofs.claims import program


@pytest.mark.parametrize("values", [np.linspace(-70000, 70000, 4001), np.geomspace(1e-9, 65535, 4001)])
def test_elements_are_held_as_numpy_holds_them(values: NDArray[Any]) -> None:
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            round_to_type(values, DType.FLOAT16), values.astype(np.float16).astype(np.float32)
        )
        np.testing.assert_array_equal(round_to_type(values, DType.FLOAT32), values.astype(np.float32))


def test_float16_is_rounded_as_by_its_definition() -> None:
    """At every number, between every two, and beside what lies between."""
    numbers = np.sort(np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64))
    finite = numbers[np.isfinite(numbers)]
    between = (finite[1:] + finite[:-1]) / 2
    for values in (numbers, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf)):
        with np.errstate(all="ignore"):
            expected = np.asarray(store_as(values, DType.FLOAT16, np), np.float32)
        found = round_to_type(values, DType.FLOAT16)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_bfloat16_keeps_the_range_of_float32() -> None:
    values = np.geomspace(1e-30, 3e38, 999)
    bits = values.astype(np.float32).view(np.uint32)
    nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    np.testing.assert_allclose(round_to_type(values, DType.BFLOAT16), nearest, rtol=2**-8)
    assert np.isinf(round_to_type(np.array([LARGEST[DType.BFLOAT16] * 1.01]), DType.BFLOAT16)).all()


def test_each_kernel_stores_its_results() -> None:
    """1 + 2^-11 is no float16: between two kernels it is lost, within one it is not."""
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, 8))
    graph.mark_output(graph.sub(graph.scale(graph.add(x, graph.scale(x, 2**-11)), 2048), graph.scale(x, 2048)))
    assert simulate(graph.freeze(), [np.ones((1, 8))])[0].tolist() == [[0.0] * 8]
    one = mf.new_kernel_graph()
    x = one.new_input((1, 8))
    block = mf.new_threadblock_graph(grid_dim=(1, 1, 1), block_dim=(128, 1, 1), forloop_range=1)
    b = block.new_input(x, (-1, -1, -1), -1)
    late = block.sub(block.mul_scalar(block.add(b, block.mul_scalar(b, 2**-11)), 2048), block.mul_scalar(b, 2048))
    block.new_output(block.forloop_accum(late), (-1, -1, -1))
    one.mark_output(one.customized([x], block)[0])
    assert simulate(one.freeze(), [np.ones((1, 8))])[0].tolist() == [[1.0] * 8]


def test_inputs_that_have_their_elements_are_not_rounded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a product of inputs in their own type only the result is rounded; another type's operands all are."""
    drawn = (np.random.default_rng(seed).standard_normal((16, 16)) for seed in (1, 2))
    x, w = (values.astype(np.float16).astype(np.float32) for values in drawn)
    rounded: list[int] = []
    own = rounding_simulation.round_to_type

    def counted(values: Any, dtype: DType) -> Any:
        rounded.append(values.size)
        return own(values, dtype)

    monkeypatch.setattr(rounding_simulation, "round_to_type", counted)
    half = rounding_simulation.TypedDomain(DType.FLOAT16, [x, w])
    np.testing.assert_array_equal(half.matmul(x.T[:8], w, 16), x.T[:8] @ w)
    assert rounded == []
    half.matmul(x * np.float32(1), w, 16)
    assert rounded == [256]
    np.testing.assert_array_equal(half.matmul(x / 3, w, 16), own(x / 3, DType.FLOAT16) @ w)


@pytest.mark.parametrize("case", TINY)
def test_a_softmax_without_a_running_maximum_is_outside_and_its_stable_form_is_not(case: str) -> None:
    inputs, body = tiny(case)
    _, graph = built(inputs, "", body)

    def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return g.softmax(q @ k, 2) @ v

    wanted, form = program(inputs, attention), stabilize(graph)
    assert isinstance(form, KernelGraph)
    found, stable = predict_numerics(wanted, graph), predict_numerics(wanted, form)
    assert found is not None
    assert stable is not None
    assert 8.0 in found.outside
    assert stable.outside == ()


def test_where_the_program_itself_overflows_nobody_is_outside() -> None:
    def by_hand(g: Graph, x: Tensor) -> Tensor:
        e = g.exp(g.scale(x, 2))
        return e / g.reduction(e, 1)

    wanted = program({"X": (16, 64)}, by_hand)
    found = predict_numerics(wanted, wanted)
    assert found is not None
    assert found.outside == ()


def test_what_loses_more_than_the_program_is_outside() -> None:
    """x + 4000 has few digits of x left in float16; the tolerance of such kernels is wide, the program's is not."""
    inputs = {"X": (16, 64), "Y": (16, 64)}
    plain = program(inputs, lambda g, x, y: g.sub(x, y))
    lossy = program(inputs, lambda g, x, y: g.sub((x + 4000) - 4000, y))
    found, other = predict_numerics(plain, lossy), predict_numerics(plain, plain)
    assert found is not None
    assert other is not None
    assert found.outside == (1.0,)
    assert other.outside == ()
    assert 0 < (other.rounding or 0) < (found.rounding or 0) / 100


def test_a_scale_behind_a_product_rounds_less_than_one_before_it() -> None:
    """A third is no power of 2, so scaled elements of Q are rounded again before they are multiplied."""
    inputs = {"Q": (16, 64), "K": (64, 32)}

    def kernel(g: Graph, q: Tensor, k: Tensor, *, early: bool) -> Tensor:
        block = mf.new_threadblock_graph(grid_dim=(1, 1, 1), block_dim=(128, 1, 1), forloop_range=1)
        a, b = block.new_input(q, (-1, -1, -1), -1), block.new_input(k, (-1, -1, -1), -1)
        s = block.matmul(block.mul_scalar(a, 1 / 3), b) if early else block.mul_scalar(block.matmul(a, b), 1 / 3)
        block.new_output(block.forloop_accum(block.exp(s)), (-1, -1, -1))
        return g.customized([q, k], block)[0]

    wanted = program(inputs, lambda g, q, k: g.exp(g.scale(q @ k, 1 / 3)))
    early, late = (
        predict_numerics(wanted, program(inputs, lambda g, q, k, early=early: kernel(g, q, k, early=early)))
        for early in (True, False)
    )
    assert early is not None
    assert late is not None
    assert 0 < (late.rounding or 0) < (early.rounding or 0)


def test_a_large_graph_is_not_executed() -> None:
    large = program({"X": (MAX_ELEMENTS, 2)}, lambda g, x: g.exp(x))
    assert predict_numerics(large, large) is None


def test_of_a_larger_graph_it_is_seen_whether_it_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_formal.codegen.numerics.rounding_simulation.MAX_ESTIMATED", 1024)
    inputs = {"X": (32, 64)}
    stable = program(inputs, lambda g, x: g.softmax(g.scale(x, 2), 1))

    def by_hand(g: Graph, x: Tensor) -> Tensor:
        e = g.exp(g.scale(x, 2))
        return e / g.reduction(e, 1)

    plain = program(inputs, by_hand)
    assert predict_numerics(stable, plain) == PredictedNumerics((8.0,), None)
    assert predict_numerics(stable, stable) == predict_numerics(plain, plain) == PredictedNumerics((), None)


def test_near_the_largest_number_rounding_makes_nobody_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of columns at scale 8 go up to the end of float16's range: one form is finite where another is not."""
    monkeypatch.setattr("mirage_formal.codegen.numerics.rounding_simulation.MAX_ESTIMATED", 1024)
    plain, fused = w.gated_mlp(64, 128, 512), w.gated_mlp_fused(64, 128, 512, grid=8, loop=2)
    arrays = draw_all(plain, 0, 8.0)
    (one,), (other,) = simulate(plain, arrays), simulate(fused, arrays)
    assert (np.isfinite(one) != np.isfinite(other)).any()
    assert predict_numerics(plain, fused) == PredictedNumerics((), None)


def test_errors_beyond_all_numbers_are_not_told() -> None:
    """exp(exp(9 x)) leaves float64, in the program as well."""
    wild = program({"X": (16, 64)}, lambda g, x: g.exp(g.exp(g.scale(x, 9))))
    found = predict_numerics(wild, wild)
    assert found is not None
    assert found.outside == ()
    assert found.rounding is None or np.isfinite(found.rounding)


def _norms(*, wide: bool) -> KernelGraph:
    """x / sqrt(sum x^2) of x = 60 X, in float32 inside or with all of it stored in float16."""

    def body(g: Graph, x: Tensor) -> Tensor:
        x = g.scale(x, 60)
        y = g.cast(x, mf.float32) if wide else x
        y = y / g.sqrt(g.reduction(g.square(y), 1))
        return g.cast(y, mf.float16) if wide else y

    return program({"X": (16, 64)}, body)


def test_what_stores_squares_that_the_program_does_not_store_is_outside() -> None:
    found, other = (
        predict_numerics(_norms(wide=True), _norms(wide=False)),
        predict_numerics(_norms(wide=True), _norms(wide=True)),
    )
    assert found is not None
    assert other is not None
    assert found.outside == (1.0, 8.0)
    assert other.outside == ()


def test_an_element_that_the_program_loses_excuses_no_other() -> None:
    """exp(5 x) is infinite for few elements of the program; a form that squares first loses many more."""

    def body(g: Graph, x: Tensor, y: Tensor, *, early: bool) -> Tensor:
        e = g.exp(g.scale(x, 5))
        return g.mul(g.mul(e, e), y) if early else g.mul(g.mul(e, y), e)

    wanted = program({"X": (64, 64), "Y": (64, 1)}, lambda g, x, y: body(g, x, g.scale(y, 2**-20), early=False))
    early = program({"X": (64, 64), "Y": (64, 1)}, lambda g, x, y: body(g, x, g.scale(y, 2**-20), early=True))
    arrays = draw_all(wanted, 0, 1.0)
    (plain,), (other,) = simulate(wanted, arrays), simulate(early, arrays)
    assert not np.isfinite(plain).all()
    assert (np.isfinite(plain) & ~np.isfinite(other)).any()
    found = predict_numerics(wanted, early)
    assert found is not None
    assert 1.0 in found.outside
