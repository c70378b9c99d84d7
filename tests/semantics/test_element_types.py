"""A program in its own element types: what is rounded, what overflows, and what selections discard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.numerics.rounding import LARGEST
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.semantics.float64_reference import run
from mirage_formal.semantics.typed_evaluation import round_to_dtype, run_typed
from mirage_formal.support.errors import ShapeError

INF, NAN = float("inf"), float("nan")


def program(write: Callable[..., Any], *inputs: tuple[tuple[int, ...], Any]) -> KernelGraph:
    graph = mf.new_kernel_graph()
    found = write(graph, *(graph.new_input(shape, dtype=dtype) for shape, dtype in inputs))
    for output in found if isinstance(found, tuple) else (found,):
        graph.mark_output(output)
    return graph.freeze()


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        (DType.FLOAT16, 2049.0, 2048.0),  # a tie: the even one
        (DType.FLOAT16, 2051.0, 2052.0),
        (DType.FLOAT16, 65519.0, 65504.0),
        (DType.FLOAT16, 65520.0, INF),
        (DType.FLOAT16, 2.0**-24, 2.0**-24),
        (DType.FLOAT16, 2.0**-25, 0.0),
        (DType.BFLOAT16, 257.0, 256.0),
        (DType.BFLOAT16, 259.0, 260.0),
        (DType.BFLOAT16, 3.3961775e38, INF),
        (DType.BFLOAT16, 2.0**-133, 2.0**-133),
        (DType.BFLOAT16, 2.0**-134, 0.0),
        (DType.FLOAT32, 16777217.0, 16777216.0),
        (DType.FLOAT32, 1e39, INF),
    ],
)
def test_rounding_to_a_type(dtype: DType, value: float, wanted: float) -> None:
    with np.errstate(all="ignore"):
        assert round_to_dtype(np.array([value, -value, NAN, INF]), dtype).tolist()[:2] == [wanted, -wanted]
        assert np.isnan(round_to_dtype(np.array([NAN]), dtype)).all()
    assert round_to_dtype(np.array([LARGEST[dtype]]), dtype).tolist() == [LARGEST[dtype]]


def test_each_result_is_rounded_and_overflows_where_its_type_does() -> None:
    def twice(graph: Any, x: Any) -> Any:
        return graph.log(graph.exp(x))

    given = np.array([[1.0, 11.5, 88.0, 89.0]])
    for dtype, lost in ((mf.float16, [False, True, True, True]), (mf.float32, [False, False, False, True])):
        (found,) = run_typed(program(twice, ((1, 4), dtype)), [given])
        assert np.isinf(found[0]).tolist() == lost
    (hidden,) = run(program(twice, ((1, 4), mf.float32)), [given])
    assert np.isfinite(hidden).all()


def test_sums_and_products_are_wider_than_their_results() -> None:
    x = np.full((1, 4096), 40.0)
    total = program(lambda g, x: g.sum(x, 1), ((1, 4096), mf.float16))
    assert run_typed(total, [x])[0].item() == INF
    mean = program(lambda g, x: g.mean(x, 1), ((1, 4096), mf.float16))
    assert run_typed(mean, [x])[0].item() == 40.0
    length = program(lambda g, x: g.sqrt(g.sum(g.square(g.cast(x, mf.float32)), 1)), ((1, 4096), mf.float16))
    assert run_typed(length, [x * 10])[0].item() == 25600.0
    product = program(lambda g, x, y: x @ y, ((1, 4096), mf.bfloat16), ((4096, 1), mf.bfloat16))
    assert run_typed(product, [x, x.T])[0].item() == 4096 * 1600


def test_what_is_not_chosen_has_no_influence() -> None:
    def chosen(graph: Any, m: Any, x: Any) -> Any:
        return graph.select(m, x, 2), graph.scale(x, 0), graph.select(m, 3, x)

    x = np.array([[1.0, INF, NAN, -INF]])
    keep = np.array([[True, False, False, False]])
    found = run_typed(program(chosen, ((1, 4), "bool"), ((1, 4), mf.float16)), [keep, x])
    assert found[0].tolist() == [[1, 2, 2, 2]]
    assert found[1].tolist() == [[0, 0, 0, 0]]
    assert found[2][0, 0] == 3
    assert not np.isfinite(found[2][0, 1:]).any()
    (sign,) = run_typed(
        program(lambda g, m, x: g.select(m, x, x), ((1, 4), "bool"), ((1, 4), mf.float16)), [keep, -0.0 * keep]
    )
    assert np.signbit(sign).all()


def test_a_narrower_rounding_in_between_stays() -> None:
    def residual(graph: Any, x: Any) -> Any:
        return graph.scale(graph.sub(x, graph.round_to(x, mf.bfloat16)), 256)

    x = np.array([[1.00390625, 1.0]])  # 1 + 2^-8, halfway between two bfloat16
    (found,) = run_typed(program(residual, ((1, 2), mf.float32)), [x])
    assert found.tolist() == [[1.0, 0.0]]


def test_a_softmax_of_a_row_of_minus_infinity_has_no_value_and_one_key_has_all() -> None:
    x = np.array([[-INF, -INF, -INF], [-INF, 3.0, -INF]])
    (found,) = run_typed(program(lambda g, x: g.softmax(x, 1), ((2, 3), mf.float16)), [x])
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [0, 1, 0]


def test_a_kernel_of_several_operators_rounds_what_it_writes_only() -> None:
    """exp overflows float16 where it is written, and not between two operators of one kernel."""
    block = mf.new_kernel_graph()
    x = block.new_input((1, 64), mf.float16)
    inner = mf.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, 64)
    tile = inner.new_input(x, input_map=(-1, -1, -1), forloop_dim=-1)
    inner.new_output(inner.forloop_accum(inner.log(inner.exp(tile))), output_map=(-1, -1, -1))
    (found,) = block.customized([x], inner)
    block.mark_output(found)
    given = np.full((1, 64), 20.0)
    assert run_typed(block.freeze(), [given])[0].tolist() == [[20.0] * 64]
    plain = program(lambda g, x: g.log(g.exp(x)), ((1, 64), mf.float16))
    assert np.isinf(run_typed(plain, [given])[0]).all()


def test_arrays_that_do_not_fit_are_refused() -> None:
    graph = program(lambda g, x: g.exp(x), ((2, 3), mf.float16))
    with pytest.raises(ShapeError, match=r"expected \[2, 3\], got \[3, 2\]"):
        run_typed(graph, [np.zeros((3, 2))])
    with pytest.raises(ShapeError, match="expected 1 arrays, got 0"):
        run_typed(graph, [])
