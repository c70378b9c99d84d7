"""Predefined products as kernels: proved, and with the values of the product on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import ANY, CHANGES, Change, apply_rewrite
from mirage_formal.codegen.target import load_target
from mirage_formal.device.elements import bits_to_floats, floats_to_bits
from mirage_formal.emulate.runner import EmulatedExecutable
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.types import DTensor, DType, Shape, row_major
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.kernel_build.build import build_form
from mirage_formal.kernel_build.candidate_forms import forms
from mirage_formal.kernel_build.stable_forms import StableForm, stabilize_proved
from mirage_formal.kernel_build.stable_forms import rewrite_operators as operators_rewritten
from mirage_formal.semantics import float64_reference

H200 = load_target("h200")


def product(a: Shape, b: Shape, dtype: DType = DType.FLOAT16, *, turned: bool = False) -> KernelGraph:
    """A product by itself; with ``turned`` its right operand is given the other way round and read transposed."""
    given = (*b[:-2], b[-1], b[-2]) if turned else b
    inputs = tuple(Input(n, DTensor(s, dtype), row_major(s)) for n, s in (("a", a), ("b", given)))
    ops: list[Op] = []
    if turned:
        rank = len(b)
        ops.append(Op(OpKind.TRANSPOSE, (1,), Attrs(perm=(*range(rank - 2), rank - 1, rank - 2))))
    ops.append(Op(OpKind.MATMUL, (0, 2 if turned else 1)))
    return KernelGraph(inputs, tuple(ops), (1 + len(ops),))


def form_of(graph: KernelGraph, change: Change) -> StableForm:
    """The graph with its product changed, whatever that is estimated to take, and the proof."""
    return stabilize_proved(graph, lambda one: apply_rewrite(one, change, H200, ANY))


SHAPES = [
    pytest.param(product((1, 4096), (4096, 16)), id="vector"),
    pytest.param(product((3, 2048), (2048, 40)), id="3 rows"),
    pytest.param(product((5, 768), (768, 72), turned=True), id="5 rows, turned"),
    pytest.param(product((12, 640), (640, 1)), id="a column"),
    pytest.param(product((48, 196), (196, 40), turned=True), id="rows of 392 bytes"),
    pytest.param(product((40, 96), (96, 28)), id="results of 56 bytes a row"),
    pytest.param(product((2, 16, 512), (2, 512, 24)), id="batch"),
    pytest.param(product((8, 1024), (1024, 64), DType.BFLOAT16), id="bfloat16"),
    pytest.param(product((3, 1024), (1024, 40), DType.FLOAT32), id="float32"),
    pytest.param(product((20, 768), (768, 24), DType.FLOAT32, turned=True), id="float32, turned"),
    pytest.param(product((1, 2048), (2048, 1)), id="a row and a column"),
    pytest.param(product((3, 1, 1024), (3, 1024, 1)), id="rows and columns"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("parts", [1, 4, 32])
@pytest.mark.parametrize("graph", SHAPES)
def test_forms_have_the_values_of_the_product(graph: KernelGraph, parts: int) -> None:
    change = Change(parts=parts, products=True)
    form = form_of(graph, change)
    if form.graph == graph:
        assert parts > 1
        assert graph.inputs[0].tensor.shape[-1] < 1024
        return
    assert form.proof is not None
    assert faults(form.graph) == []
    kinds = [op.kind for op in form.graph.ops if isinstance(op, Op)]
    assert OpKind.MATMUL not in kinds
    assert kernel_count(form.graph) == (1 if parts == 1 else 2)
    made = build_form(form, graph, H200)
    dtype = graph.inputs[0].tensor.dtype
    rng = np.random.default_rng(0)
    arrays: list[Any] = []
    for item in graph.inputs:
        arrays.append(bits_to_floats(floats_to_bits(rng.normal(size=item.tensor.shape), dtype, np), dtype, np))
    (wanted,) = float64_reference.run(graph, arrays)
    (found,) = EmulatedExecutable(made)(arrays)
    assert found.shape == wanted.shape
    most = {DType.FLOAT16: 3e-3, DType.BFLOAT16: 2e-2, DType.FLOAT32: 3e-6}[dtype]
    assert np.abs(found - wanted).max() < most * np.abs(wanted).max()


def test_parts_are_added_up_several_at_a_time() -> None:
    """A loop over 128 parts would wait 128 times for what other blocks have written."""
    form = apply_rewrite(product((1, 1 << 18), (1 << 18, 16)), Change(parts=128, products=True), H200, ANY)
    first, second = (op.graph for op in form.ops if isinstance(op, GraphDefined))
    assert first.blocks >= 128
    assert second.forloop_range == 1
    assert first.forloop_range > 1  # so that copies are on their way while others are waited for
    rows = apply_rewrite(product((12, 1 << 16), (1 << 16, 16)), Change(parts=64, products=True), H200, ANY)
    assert [op.graph.forloop_range for op in rows.ops if isinstance(op, GraphDefined)][1] <= 4


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(product((1, 50257), (50257, 16)), id="no tiles divide the sum"),
        pytest.param(product((2, 16, 64), (64, 24)), id="one batch"),
    ],
)
def test_no_form(graph: KernelGraph) -> None:
    for change in CHANGES:
        if change.products:
            assert apply_rewrite(graph, change, H200, ANY) == graph


def test_a_row_times_a_column_is_a_sum_of_products() -> None:
    graph = product((1, 1 << 18), (1 << 18, 1))
    _, best, *_ = forms(graph, H200)
    assert best.name.startswith("products split-")
    assert best.us < estimate(graph, H200).us
    first, second = (op.graph for op in best.graph.ops if isinstance(op, GraphDefined))
    kinds = [op.kind for block in (first, second) for op in block.ops if isinstance(op, Op)]
    assert OpKind.MUL in kinds
    assert OpKind.MATMUL not in kinds
    assert first.blocks >= 32
    # The column is read as a row, where it lies: no kernel is launched for that.
    assert kernel_count(best.graph) == 2
    # One row and one element more than a column is a product as before.
    wider = apply_rewrite(product((1, 4096), (4096, 2)), Change(products=True), H200, ANY)
    inside = [op for one in wider.ops if isinstance(one, GraphDefined) for op in one.graph.ops]
    assert OpKind.MATMUL in [op.kind for op in inside if isinstance(op, Op)]


def test_other_operators_stay() -> None:
    graph = product((8, 64), (64, 32))
    more = KernelGraph(graph.inputs, (*graph.ops, Op(OpKind.SILU, (2,))), (3,))
    found = operators_rewritten(more, lambda one: apply_rewrite(one, Change(products=True), H200, ANY)).graph
    assert isinstance(found.ops[0], GraphDefined)
    assert found.ops[1] == more.ops[1]
    assert kernel_types(found)[-1] == kernel_types(more)[-1]


def test_forms_of_a_long_sum_are_estimated_faster_than_the_library() -> None:
    graph = product((1, 1 << 18), (1 << 18, 16))
    own, *others = forms(graph, H200)
    assert own.graph == graph
    assert others[0].name.startswith("products split-")
    assert others[0].us < own.us / 2
    # A product that the library does well is left to it, unless there is nothing between them.
    large = product((512, 768), (768, 4096))
    assert all(form.us <= 1.15 * estimate(large, H200).us for form in forms(large, H200))
