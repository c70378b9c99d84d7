"""Kernels of a program's own operators: they compute the program, and there are none where its dims do not allow it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import block_types, kernel_types, shared_bytes
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.horizontal_fusion.fusion_engine import HorizontalFusionEngine
from mirage_formal.search.horizontal_fusion.whole_program_fusion import fuse_whole_program, is_fusible
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import load_space
from mirage_formal.semantics import float64_reference
from tests.kit.fuzz.random_programs import program as random_program
from tests.kit.graphs.workloads import long_chain, program

SPACE = load_space("mlp")


def values(graph: KernelGraph) -> list[np.ndarray]:
    numbers = np.random.default_rng(5)
    return list(float64_reference.run(graph, [numbers.uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs]))


def kernels(graph: KernelGraph) -> list[KernelGraph]:
    return [made for _, made in fuse_whole_program(graph, SPACE, lambda one: 0.0)]


def given(g: mf.Graph, *shape: int) -> mf.Tensor:
    return g.new_input(dims=shape)


def moments(g: mf.Graph) -> mf.Tensor:
    x = given(g, 24, 40)
    mean = g.mean(x, dim=-1)
    return (x - mean) * g.rsqrt(g.mean(x * x, dim=-1) - mean * mean + 1.0)


def columns(g: mf.Graph) -> mf.Tensor:
    x = given(g, 12, 64)
    return g.exp(x) / g.sum(g.exp(x), dim=0)


def pairs(g: mf.Graph) -> mf.Tensor:
    a, b, c = given(g, 4, 16, 1), given(g, 4, 16, 1), given(g, 1, 16, 1)
    return g.concat([a * c - b, a + b * c], dim=-1)


def outer(g: mf.Graph) -> mf.Tensor:
    return given(g, 16, 1) * given(g, 1, 32)


def soft(g: mf.Graph) -> mf.Tensor:
    return g.softmax(given(g, 8, 3, 32), dim=-1) * given(g, 8, 3, 32)


def whole(g: mf.Graph) -> mf.Tensor:
    return g.sum(g.square(given(g, 1, 128)), dim=-1)


def product(g: mf.Graph) -> mf.Tensor:
    return g.matmul(given(g, 16, 16), given(g, 16, 16))


def turned(g: mf.Graph) -> mf.Tensor:
    x = given(g, 16, 16)
    return x + g.transpose(g.exp(x), 0, 1)


@pytest.mark.parametrize("build", [moments, columns, pairs, outer, soft])
def test_every_tiling_computes_the_program(build: Callable[[mf.Graph], mf.Tensor]) -> None:
    one = program(build)
    assert is_fusible(one)
    (want,) = values(one)
    made = kernels(one)
    assert made
    for graph in made:
        (kernel,) = graph.ops
        assert isinstance(kernel, GraphDefined)
        assert kernel.graph.blocks > 1
        types = kernel_types(graph)
        assert shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= SPACE.limits.shared_bytes
        np.testing.assert_allclose(values(graph)[0], want, rtol=1e-9)
        assert isinstance(prove(one, graph), Equivalent)


@pytest.mark.parametrize("build", [whole, product, turned])
def test_what_has_no_dim_to_cut_or_other_operators_has_none(build: Callable[[mf.Graph], mf.Tensor]) -> None:
    assert not is_fusible(program(build))


def test_rows_that_no_block_holds_have_none() -> None:
    assert not is_fusible(program(lambda g: g.softmax(given(g, 4, 1 << 17), dim=-1)))


def test_several_outputs_are_written_by_one_kernel() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 64))
    scale = graph.max(graph.abs(x), dim=-1)
    graph.mark_output(x / scale)
    graph.mark_output(scale)
    one = graph.freeze()
    for made in kernels(one):
        (kernel,) = made.ops
        assert kernel.results == 2
        for got, want in zip(values(made), values(one), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_long_program_has_these_kernels_only_where_it_is_allowed() -> None:
    one, engine = long_chain(), HorizontalFusionEngine()
    (unit,) = engine.units(one, SPACE, SearchOptions(longer=True))
    result = engine.run(one, SPACE, SearchOptions(longer=True), unit)
    assert result.candidates
    for candidate in result.candidates:
        (made,) = candidate.graph.ops
        assert isinstance(made, GraphDefined)
        assert sorted(set(made.operands)) == list(range(6))
        assert isinstance(prove(one, candidate.graph), Equivalent)
    assert all("own" not in unit.payload for unit in engine.units(one, SPACE, SearchOptions()))


def test_a_short_program_keeps_its_searches_beside_them() -> None:
    one, engine = program(lambda g: g.exp(given(g, 16, 64)) + given(g, 16, 64)), HorizontalFusionEngine()
    alone = engine.units(one, SPACE, SearchOptions())
    assert engine.units(one, SPACE, SearchOptions(longer=True))[: len(alone)] == alone


def test_random_programs() -> None:
    tried = 0
    for seed in range(120):
        names: dict[str, Any] = {}
        exec(random_program(seed).text, names)
        one = preprocess(next(value for value in names.values() if isinstance(value, mf.Graph)).freeze()).program
        if is_fusible(one):
            tried += 1
            want = values(one)
            for graph in kernels(one)[:4]:
                for got, wanted in zip(values(graph), want, strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)
    assert tried > 10


def test_tiles_in_which_rows_are_read_again_are_left_out_where_there_are_others() -> None:
    def build(g: mf.Graph) -> mf.Tensor:
        return given(g, 16, 32, 64) * given(g, 1, 32, 64)

    for graph in kernels(program(build)):
        (kernel,) = graph.ops
        assert isinstance(kernel, GraphDefined)
        x, y = (types.shape for types in block_types(kernel.graph, tuple(kernel_types(graph)[:2]))[:2])
        assert x[0] == 1 or x[1] == 1
        assert y[:2] in ((1, 1), x[:2])
