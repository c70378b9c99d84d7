"""Norms written out: the same program, and kernels that the norm as one operator does not give."""

from __future__ import annotations

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.axes import require_normal_form
from mirage_formal.search.horizontal_fusion.decompose_norms import NormDecompositionEngine, decompose_norms
from mirage_formal.search.horizontal_fusion.fusion_engine import HorizontalFusionEngine
from mirage_formal.search.space import load_space
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import UnsupportedError


def program(*, eps: float | None = 1e-5, weight: bool = True, widths: tuple[int, ...] = (64,)) -> KernelGraph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 512), name="X")
    factor = graph.new_input(dims=(1, 512), name="G") if weight else None
    h = graph.rms_norm(x, eps=eps, weight=factor)
    for width in widths:
        graph.mark_output(graph.matmul(h, graph.new_input(dims=(512, width))))
    return graph.freeze()


@pytest.mark.parametrize("weight", [True, False])
def test_it_is_the_same_program(weight: bool) -> None:
    given = program(weight=weight)
    longer = decompose_norms(given)
    assert longer is not None
    assert OpKind.RMS_NORM not in {op.kind for op in longer.ops if isinstance(op, Op)}
    assert isinstance(prove(given, longer), Equivalent)
    # An eps that counts: rows of small elements.
    arrays = [1e-3 * np.random.default_rng(1).standard_normal(item.tensor.shape) for item in given.inputs]
    (want,), (got,) = float64_reference.run(given, arrays), float64_reference.run(longer, arrays)
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_there_is_nothing_to_write_out() -> None:
    assert decompose_norms(program(eps=None)) is None
    graph = mf.new_kernel_graph()
    graph.mark_output(graph.rms_norm(graph.new_input(dims=(8, 64)), eps=1e-5))
    assert decompose_norms(graph.freeze()) is None  # no product behind it


def test_a_program_that_has_no_normal_form_written_out_is_searched_as_it_is() -> None:
    """The mean of the squares of what another norm and a bias make."""
    graph = mf.new_kernel_graph()
    x = graph.layer_norm(graph.new_input((12, 8)), dim=0, bias=graph.new_input((12,)), eps=1e-6)
    graph.mark_output(graph.rms_norm(x, dim=1, eps=1e-3) @ graph.new_input((8, 6)))
    given = graph.freeze()
    longer = decompose_norms(given)
    assert longer is not None
    with pytest.raises(UnsupportedError):
        require_normal_form(longer)
    require_normal_form(given)
    units = NormDecompositionEngine().units(given, load_space("norm"), SearchOptions())
    assert [unit.index for unit in units] == [0]


def looped(graph: KernelGraph) -> bool:
    kernel = graph.ops[0]
    return len(graph.ops) == 1 and isinstance(kernel, GraphDefined) and kernel.graph.forloop_range > 1


def test_the_norm_is_in_the_loop_of_the_product() -> None:
    given, engine, options, space = program(), NormDecompositionEngine(), SearchOptions(), load_space("norm")
    units = engine.units(given, space, options)
    assert [unit.index for unit in units] == [0, 1]
    whole, longer = ([c.graph for c in engine.run(given, space, options, unit).candidates] for unit in units)
    assert not any(looped(graph) for graph in whole)
    best = [graph for graph in longer if looped(graph)]
    assert best
    for graph in best[:3]:
        assert isinstance(prove(given, graph), Equivalent)


def test_products_of_several_widths_share_it() -> None:
    given, space = program(widths=(64, 32)), load_space("norm")
    engine, options = HorizontalFusionEngine(), SearchOptions()
    (unit,) = engine.units(given, space, options)
    found = [c.graph for c in engine.run(given, space, options, unit).candidates if looped(c.graph)]
    assert found
    shared = []
    for graph in found:
        kernel = graph.ops[0]
        assert isinstance(kernel, GraphDefined)
        kinds = [op.kind for op in kernel.graph.ops if isinstance(op, Op)]
        shared.append(kinds.count(OpKind.SQUARE) + kinds.count(OpKind.SQRT))
    assert min(shared) <= 2  # the root is computed once for both products
    assert isinstance(prove(given, found[0]), Equivalent)


def test_a_limit_counts_what_takes_the_place_of_a_norm_as_one_operator() -> None:
    given = program()
    space = load_space("norm").with_overrides(max_block_ops=5)
    engine, options = NormDecompositionEngine(), SearchOptions()
    longest = 0
    for unit in engine.units(given, space, options):
        for candidate in engine.run(given, space, options, unit).candidates:
            kernels = [op.graph for op in candidate.graph.ops if isinstance(op, GraphDefined)]
            longest = max(longest, *(len(block.ops) for block in kernels), 0)
    assert 5 < longest <= 10
