"""Kernels with several outputs: what is united computes what it should, shares what it can, and stays within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from msgspec import structs

import mirage_formal as mf
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Dim3
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types, shared_bytes
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions, UnitResult
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.horizontal_fusion.fusion_engine import HorizontalFusionEngine
from mirage_formal.search.horizontal_fusion.outputs import require_outputs
from mirage_formal.search.horizontal_fusion.slices import backward_slices
from mirage_formal.search.horizontal_fusion.union import ResultKernel, fuse_horizontally, permute_grid
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs.workloads import gates, projections, sum_and_norm


@cache
def found(program: KernelGraph, space: SearchSpace | None = None) -> UnitResult:
    """What is found; a function of these arguments (``test_the_same_is_found_again``)."""
    engine, options = HorizontalFusionEngine(), SearchOptions()
    (unit,) = engine.units(program, space or load_space("mlp"), options)
    return engine.run(program, space or load_space("mlp"), options, unit)


def values(graph: KernelGraph) -> list[np.ndarray]:
    numbers = np.random.default_rng(5)
    return list(float64_reference.run(graph, [numbers.uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs]))


def shared_product() -> KernelGraph:
    """A product that two others read, and itself an output."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input(dims=(4, 16)), graph.new_input(dims=(16, 8))
    a, b = graph.new_input(dims=(8, 4)), graph.new_input(dims=(8, 2))
    h = graph.matmul(x, w)
    for output in (graph.matmul(h, a), h, graph.matmul(h, b)):
        graph.mark_output(output)
    return graph.freeze()


def two_views_of_a_batch() -> KernelGraph:
    """Outputs of different ranks' dims over one input: their grids name the axes differently."""
    graph = mf.new_kernel_graph()
    x, y = graph.new_input(dims=(4, 8, 16)), graph.new_input(dims=(4, 16, 8))
    graph.mark_output(graph.exp(graph.matmul(x, y)))
    graph.mark_output(graph.mul(graph.silu(x), x))
    return graph.freeze()


def routed() -> KernelGraph:
    """Behind a product: a softmax, its largest elements, and a norm of both along the same rows."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input(dims=(32, 64)), graph.new_input(dims=(64, 16))
    weights = graph.softmax(graph.matmul(x, w), dim=-1)
    most = graph.max(weights, -1)
    for output in (weights, most, graph.layer_norm(weights) * most):
        graph.mark_output(output)
    return graph.freeze()


MAKERS = [projections, gates, sum_and_norm, shared_product, two_views_of_a_batch, routed]


@pytest.mark.parametrize("make", MAKERS)
def test_every_union_is_the_program(make: Callable[[], KernelGraph]) -> None:
    program = make()
    result = found(program)
    assert result.candidates
    want = values(program)
    for candidate in result.candidates:
        (kernel,) = candidate.graph.ops
        assert isinstance(kernel, GraphDefined)
        assert kernel.results == len(program.outputs)
        for a, b in zip(want, values(candidate.graph), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
    for candidate in result.candidates[:3]:
        assert isinstance(prove(program, candidate.graph), Equivalent)


def test_what_reads_only_results_stands_behind_a_loop() -> None:
    loops = set()
    for candidate in found(routed()).candidates:
        (kernel,) = candidate.graph.ops
        assert isinstance(kernel, GraphDefined)
        loops.add(kernel.graph.forloop_range)
        assert len(kernel.operands) == 2  # x and w, and no result of its own
    assert max(loops) > 1


def test_equal_loads_and_operators_are_there_once() -> None:
    for candidate in found(projections()).candidates:
        (kernel,) = candidate.graph.ops
        assert isinstance(kernel, GraphDefined)
        reads = list(zip(kernel.operands, kernel.graph.inputs, strict=True))
        assert len(reads) == len(set(reads))
        assert len(kernel.graph.ops) == len(set(kernel.graph.ops))
    best = found(projections()).candidates[0].graph.ops[0]
    assert isinstance(best, GraphDefined)
    assert sorted(best.operands) == [0, 1, 2, 3]  # X is loaded once for the three products


def test_the_same_is_found_again() -> None:
    first, second = (tuple(c.graph for c in search(projections()).candidates) for search in (found, found.__wrapped__))
    assert first == second


def test_no_union_is_beyond_the_limit() -> None:
    program, space = projections((128, 128, 128)), load_space("mlp")
    sizes = []
    for bytes_ in (space.shared_bytes, 4096):
        limited = replace(space, shared_bytes=bytes_)
        for candidate in found(program, limited).candidates:
            (kernel,) = candidate.graph.ops
            assert isinstance(kernel, GraphDefined)
            types = kernel_types(candidate.graph)
            size = shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands))
            assert size <= bytes_
            sizes.append(size)
    assert max(sizes) > 4096  # the smaller limit has refused some


def test_slices_of_outputs_that_read_each_other() -> None:
    program = gates()
    first, second = backward_slices(program)
    assert [len(one.program.ops) for one in first] == [9, 3]  # from the inputs on, and behind the cell
    assert [len(one.program.ops) for one in second] == [6]
    assert program.outputs[1] in first[1].reads
    assert (first[0].result, second[0].result) == program.outputs


def test_an_output_that_no_search_takes_is_refused() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8))
    graph.mark_output(graph.exp(x))
    graph.mark_output(graph.concat([graph.exp(x), graph.max(x, 0)], dim=0))
    with pytest.raises(UnsupportedError):
        require_outputs(graph.freeze())


def kernel(read: int, result: int, kind: OpKind, grid: Dim3 = (4, 1, 1), dim: int = 0, loop: int = 1) -> ResultKernel:
    """A kernel of one operator on a matrix of which the grid splits a dim."""
    maps = (dim if grid[0] > 1 else None, 1 - dim if grid[1] > 1 else None, None)
    block = BlockGraph(
        grid=grid,
        block=(128, 1, 1),
        forloop_range=loop,
        reduction_dimx=64,
        inputs=(InputIterator(maps, None if loop == 1 else 1),),
        ops=(Op(kind, (0,)), Op(OpKind.ACCUM_SUM, (1,))),
        outputs=(OutputSaver(2, maps),),
    )
    return ResultKernel((read,), block, result, 1.0)


def test_a_tile_is_handed_on_where_it_is_the_one_that_is_read() -> None:
    exp, silu = kernel(0, 1, OpKind.EXP), kernel(1, 2, OpKind.SILU)
    made = fuse_horizontally([exp, silu], (2, 1))
    assert made is not None
    assert made.operands == (0,)
    assert [op.kind for op in made.graph.ops if isinstance(op, Op)] == [
        OpKind.EXP,
        OpKind.SILU,
        OpKind.ACCUM_SUM,
        OpKind.ACCUM_SUM,
    ]
    assert (
        fuse_horizontally([exp, kernel(1, 2, OpKind.SILU, dim=1)], (2, 1)) is None
    )  # it reads columns, and rows are there
    looped = [kernel(0, 1, OpKind.EXP, loop=2), kernel(1, 2, OpKind.SILU, loop=2)]
    assert fuse_horizontally(looped, (2, 1)) is None  # the tile is there behind the loop only


def test_behind_a_loop_stands_what_reads_nothing_but_results() -> None:
    (looped, silu) = kernel(0, 1, OpKind.EXP, loop=2), kernel(1, 2, OpKind.SILU)
    made = fuse_horizontally([looped, silu], (2, 1))
    assert made is not None
    assert made.graph.forloop_range == 2
    assert [op.kind for op in made.graph.ops if isinstance(op, Op)] == [OpKind.EXP, OpKind.ACCUM_SUM, OpKind.SILU]
    assert fuse_horizontally([looped, kernel(1, 2, OpKind.SILU, dim=1)], (2, 1)) is None
    assert silu.behind({1}, carry=False)
    assert not silu.behind({2}, carry=True)
    assert not structs.replace(silu, reads=(1, 0)).behind({1}, carry=False)  # an input's tile would be inside the loop
    assert structs.replace(silu, reads=(1, 0)).behind({1}, carry=True)
    assert not kernel(1, 2, OpKind.SILU, loop=2).behind({1}, carry=True)


def test_what_accumulates_behind_an_accumulator_does_not_fit() -> None:
    total = kernel(0, 1, OpKind.EXP)
    ops = (Op(OpKind.ACCUM_SUM_LAST, (0,)), Op(OpKind.EXP, (1,)))
    reduced = structs.replace(total, block=replace(total.block, ops=ops, outputs=(OutputSaver(2, (0, None, None)),)))
    again = structs.replace(reduced, reads=(1,), result=2)
    assert fuse_horizontally([reduced], (1,)) is not None
    assert fuse_horizontally([reduced, again], (1, 2)) is None


def test_axes_are_turned_to_the_grid_of_the_first() -> None:
    piece = kernel(0, 1, OpKind.EXP, grid=(4, 2, 1))
    (one,) = permute_grid(piece, (2, 4, 1))
    assert one.block.inputs[0].imap == (1, 0, None)
    assert one.block.outputs[0].omap == (1, 0, None)
    assert list(permute_grid(piece, (8, 1, 1))) == []
    assert piece.shape == one.shape
    same = kernel(0, 1, OpKind.EXP, grid=(4, 4, 1))
    assert {p.block.inputs[0].imap for p in permute_grid(same, (4, 4, 1))} == {(0, 1, None), (1, 0, None)}
    twice = structs.replace(same, block=replace(same.block, inputs=(InputIterator((0, 0, None), None),)))
    assert len(list(permute_grid(twice, (4, 4, 1)))) == 1  # the order of its axes has a meaning


def test_short_programs_keep_the_guided_units() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 8))
    graph.mark_output(graph.exp(graph.matmul(x, graph.new_input(dims=(8, 8)))))
    engine, guided, options, space = HorizontalFusionEngine(), GuidedEngine(), SearchOptions(), load_space("mlp")
    program = graph.freeze()
    units = engine.units(program, space, options)
    assert units == guided.units(program, space, options)
    assert engine.run(program, space, options, units[0]) == guided.run(program, space, options, units[0])
