"""Programs as torch: masks, selections, comparisons and roundings, beside the float64 reference."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.semantics import float64_reference
from mirage_formal.torch.modules.pytorch_source import torch_source
from tests.kit.kernels import masked_attention

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

TYPES = {DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}


def computed(program: KernelGraph, arrays: list[Any]) -> list[Any]:
    from mirage_formal.torch.modules.eager_execution import DTYPES, torch_program

    given = [torch.as_tensor(a).to(DTYPES[item.tensor.dtype]) for a, item in zip(arrays, program.inputs, strict=True)]
    return [one.double().numpy() for one in torch_program(program)(*given)]


@pytest.mark.parametrize("dtype", TYPES)
def test_masks_with_empty_rows_and_special_values(dtype: DType) -> None:
    """Finite where float64 is, and near it; where a row has no key, 0 with the one division and NaN with the other."""
    program = masked_attention.apart(dtype)
    arrays = masked_attention.arrays(draw_all(program, 0, 1.0), dtype)
    arrays[1][8, 2] = 0.0  # a row of scores that are all -inf is PyTorch's own affair
    found = computed(program, arrays)
    for result, wanted in zip(found, float64_reference.run(program, arrays), strict=True):
        known = np.isfinite(wanted)
        assert (np.isfinite(result) == known).all()
        assert np.allclose(result[known], wanted[known], rtol=0.03, atol=0.03)
    assert (found[0][[3, 7]] == 0).all()
    assert np.isnan(found[1][[3, 7]]).all()


def written(build: Any, dtype: object = mf.float16) -> str:
    graph = mf.new_kernel_graph()
    x = graph.new_input((4, 8), dtype=dtype)
    graph.mark_output(build(graph, x))
    return torch_source(graph.freeze())


def test_a_number_that_no_element_is_is_compared_in_float32() -> None:
    """0.1 in float16 is the element 0.0999755859375, which is less than 0.1."""

    def build(graph: mf.Graph, x: mf.Tensor) -> mf.Tensor:
        return graph.select(graph.lt(x, Fraction(1, 10)), 1, x)

    assert "torch.lt(t0.float(), 0.1)" in written(build)
    for number in (0, 1, Fraction(-1, 2), 255, -128):
        assert f"torch.ge(t0, {float(number)!r})" in written(
            lambda graph, x, n=number: graph.select(graph.ge(x, n), x, 0)
        )
    for number in (257, Fraction(1, 3), Fraction(1, 1 << 20), 1 << 20):
        assert "torch.ge(t0.float(), " in written(lambda graph, x, n=number: graph.select(graph.ge(x, n), x, 0))
    graph = mf.new_kernel_graph()
    graph.mark_output(build(graph, graph.new_input((1, 8))))
    found = computed(graph.freeze(), [np.array([[0.0999755859375, 0.10003662109375] * 4])])
    assert found[0].tolist() == [[1.0, 0.10003662109375] * 4]


def test_a_product_with_zero_reads_nothing() -> None:
    text = written(lambda graph, x: graph.shift(graph.scale(x, 0), 3))
    assert "torch.zeros_like(t0)" in text
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, 8))
    graph.mark_output(graph.shift(graph.scale(x, 0), 3))
    assert computed(graph.freeze(), [np.full((1, 8), np.nan)])[0].tolist() == [[3.0] * 8]


def test_numbers_bound_as_they_do_in_float32() -> None:
    """A bound that an element type does not have is that type's largest number."""
    text = written(lambda graph, x: graph.clamp(x, -1e30, Fraction(1, 3)))
    assert "torch.clamp_min(t0, -65504.0)" in text
    assert f"torch.clamp_max(t1, {1 / 3!r})" in text
    graph = mf.new_kernel_graph()
    x = graph.new_input((1, 8))
    graph.mark_output(graph.clamp(x, -2, 0.5))
    found = computed(graph.freeze(), [np.array([[np.nan, np.inf, -np.inf, -3.0, -2.0, 0.25, 0.5, 1.0]])])
    np.testing.assert_array_equal(found[0], [[np.nan, 0.5, -2.0, -2.0, -2.0, 0.25, 0.5, 0.5]])


def test_masks_are_joined_and_reduced_as_booleans() -> None:
    graph = mf.new_kernel_graph()
    m, n, x = (graph.new_input((4, 8), dtype=dtype) for dtype in (mf.bool_, mf.bool_, mf.float16))
    some = graph.max(graph.logical_and(m, graph.logical_not(n)), 1)
    graph.mark_output(graph.select(graph.logical_or(some, graph.eq(m, n)), x, -1))
    program = graph.freeze()
    arrays = draw_all(program, 1, 1.0)
    np.testing.assert_array_equal(computed(program, arrays)[0], float64_reference.run(program, arrays)[0])


def test_band_masks_are_made_by_the_function() -> None:
    from mirage_formal.torch.modules.eager_execution import torch_program

    for lower, upper in ((None, 0), (-2, None), (-3, 1)):
        graph = mf.new_kernel_graph()
        masks = [graph.band((4, 8), lower, upper, name=name) for name in ("first", "last")]
        x = graph.new_input((4, 8), dtype=mf.float32)
        graph.mark_output(graph.select(masks[0], x, 2))
        graph.mark_output(graph.select(masks[1], 3 * x, 0))
        values = torch.arange(32.0).reshape(4, 8) + 1
        keep = torch.ones(4, 8, dtype=torch.bool)
        keep = keep if upper is None else keep.tril(upper)
        keep = keep if lower is None else keep.triu(lower)
        found = torch_program(graph.freeze())(values)
        assert torch.equal(found[0], torch.where(keep, values, 2.0))
        assert torch.equal(found[1], torch.where(keep, 3 * values, 0.0))
