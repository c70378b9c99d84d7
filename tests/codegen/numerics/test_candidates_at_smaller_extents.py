"""Candidates at smaller extents: the same tiles, fewer blocks and iterations, still equal to their programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_formal as mf
from mirage_formal.codegen.numerics.shrink import ShrunkPair, evaluation_size, shrink
from mirage_formal.emulate.runner import amount_of_work, arrange_by_strides
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.kernel_build.build import build
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.working_set import working_set_size
from tests.kit.graphs import workloads as w
from tests.kit.graphs.mirage_programs import CASES, weighted, weighted_kernel
from tests.kit.kernels import example_kernels as kit


def blocks(graph: KernelGraph) -> list[GraphDefined]:
    return [op for op in graph.ops if isinstance(op, GraphDefined)]


def tiles(graph: KernelGraph) -> list[list[Shape]]:
    """For each kernel, the tiles of the program's inputs that it reads."""
    types = kernel_types(graph)
    return [
        [
            tile.shape
            for n, tile in zip(op.operands, block_types(op.graph, tuple(types[i] for i in op.operands)), strict=False)
            if n < len(graph.inputs)
        ]
        for op in blocks(graph)
    ]


@pytest.mark.parametrize("row", [row for row in kit.fastest() if row.endswith("-b1")])
def test_the_fastest_candidates_become_smaller(row: str) -> None:
    program, candidate = kit.real(row.removesuffix("-b1")), kit.fastest()[row]
    found = shrink(program, candidate)
    assert found.extents
    assert all(own % less == 0 and less < own for own, less in found.extents.items())
    assert isinstance(prove(found.program, found.candidate), Equivalent)
    assert tiles(found.candidate) == tiles(candidate)
    for small, own in zip(blocks(found.candidate), blocks(candidate), strict=True):
        pairs = [*zip(small.graph.grid, own.graph.grid, strict=True)]
        pairs.append((small.graph.forloop_range, own.graph.forloop_range))
        for less, extent in pairs:
            assert extent % less == 0
            assert (less > 1) == (extent > 1)
    size = sum(prod(op.graph.grid) * op.graph.forloop_range for op in blocks(candidate))
    assert 2 * sum(prod(op.graph.grid) * op.graph.forloop_range for op in blocks(found.candidate)) < size
    assert shrink(found.program, found.candidate) == ShrunkPair(found.program, found.candidate, {})


@pytest.mark.parametrize("row", [row for row in kit.fastest() if row.endswith("-b1")])
def test_tiles_become_smaller_where_that_is_allowed(row: str) -> None:
    program, candidate = kit.real(row.removesuffix("-b1")), kit.fastest()[row]
    found, plain = shrink(program, candidate, None, 16), shrink(program, candidate)
    assert evaluation_size(found.program, found.candidate) < evaluation_size(plain.program, plain.candidate)
    assert isinstance(prove(found.program, found.candidate), Equivalent)
    for small, own in zip(tiles(found.candidate), tiles(candidate), strict=True):
        for one, other in zip(small, own, strict=True):
            assert all(n == m or 16 <= n < m for n, m in zip(one, other, strict=True))
    for small_block, block in zip(blocks(found.candidate), blocks(candidate), strict=True):
        extents = (*block.graph.grid, block.graph.forloop_range)
        for less, extent in zip((*small_block.graph.grid, small_block.graph.forloop_range), extents, strict=True):
            assert (less > 1) == (extent > 1)


def test_extents_that_a_constant_belongs_to_stay() -> None:
    """A mean of 256 elements as a product with 1/256 is no mean of fewer."""
    size = {"b": 2, "k": 256, "n": 192}
    program, candidate = w.rmsnorm(**size), w.rmsnorm_by_hand(**size, grid=12, loop=8)
    found = shrink(program, candidate)
    assert dict(found.extents) == {192: 32}
    assert isinstance(prove(found.program, found.candidate), Equivalent)
    assert dict(shrink(program, w.rmsnorm_fused(**size, grid=12, loop=8)).extents) == {256: 64, 192: 32}


def test_strides_keep_their_order() -> None:
    program, graph = weighted().freeze(), weighted_kernel().freeze()
    found = shrink(program, graph)
    assert dict(found.extents) == {96: 32}
    assert [item.strides for item in found.program.inputs] == [(64, 1), (64, 1), (1, 64)]
    assert found.candidate.inputs == found.program.inputs


def test_a_program_without_block_graphs() -> None:
    graph = mf.new_kernel_graph()
    X = graph.new_input((48, 256))
    graph.mark_output(graph.softmax(graph.reshape(X, (48, 256, 1)), 1))
    program = graph.freeze()
    found = shrink(program, program)
    assert dict(found.extents) == {256: 32}  # 48 has no divisor from 32 up but itself
    assert found.candidate.inputs == found.program.inputs
    assert kernel_types(found.candidate)[-1].shape == (48, 32, 1)


def test_extents_that_a_reshape_ties_to_each_other_become_smaller_together() -> None:
    """The reshape joins two dims: the joined one is divided by what one of them is divided by."""
    graph = mf.new_kernel_graph()
    X = graph.new_input((64, 128))
    graph.mark_output(graph.exp(graph.reshape(X, (8192,))))
    program = graph.freeze()
    found = shrink(program, program)
    assert dict(found.extents) == {8192: 2048, 128: 32}  # 64 becomes smaller only if 2048 does once more
    assert [item.tensor.shape for item in found.program.inputs] == [(64, 32)]
    assert kernel_types(found.candidate)[-1].shape == (2048,)


def test_the_extent_of_a_constant_stays_alone() -> None:
    """Of three extents it is the one in the middle, so the others are not given up for it."""
    size = {"b": 96, "k": 256, "n": 1024}
    program, candidate = w.rmsnorm(**size), w.rmsnorm_by_hand(**size, grid=16, loop=8)
    assert dict(shrink(program, candidate).extents) == {1024: 128}
    swapped = w.rmsnorm(b=2, k=1024, n=192), w.rmsnorm_by_hand(b=2, k=1024, n=192, grid=12, loop=8)
    assert dict(shrink(*swapped).extents) == {192: 32}


def test_elements_without_a_value_are_no_difference() -> None:
    """Roots of random inputs have no value for half of the elements, in the program and in the candidate."""
    graph = mf.new_kernel_graph()
    X = graph.new_input((256, 256))
    graph.mark_output(graph.sqrt(X) + X)
    program = graph.freeze()
    assert dict(shrink(program, program).extents) == {256: 32}
    graph = mf.new_kernel_graph()
    X = graph.new_input((256, 256))
    graph.mark_output(graph.sqrt(0 - graph.square(X)))
    program = graph.freeze()
    assert shrink(program, program) == ShrunkPair(program, program, {}), "nothing was compared"


def test_what_is_too_large_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    size = {"b": 2, "k": 256, "n": 192}
    program, candidate = w.rmsnorm(**size), w.rmsnorm_by_hand(**size, grid=12, loop=8)
    sizes: list[int] = []
    own = float64_reference.run

    def run(graph: KernelGraph, arrays: Sequence[NDArray[Any]]) -> tuple[NDArray[np.float64], ...]:
        sizes.append(working_set_size(graph))
        return own(graph, arrays)

    monkeypatch.setattr("mirage_formal.codegen.numerics.shrink.float64_reference.run", run)
    most = evaluation_size(program, candidate)
    assert shrink(program, candidate, most).extents
    needed = max(sizes)
    sizes.clear()
    assert shrink(program, candidate, needed - 1) == ShrunkPair(program, candidate, {})
    assert max(sizes, default=0) < needed


def test_a_wrong_candidate_is_left_as_it_is() -> None:
    program = CASES["norm and product"].program().freeze()
    wrong = CASES["norm and product"].kernels["one kernel"]().freeze()
    op = blocks(wrong)[0]
    block = replace(op.graph, outputs=(replace(op.graph.outputs[0], operand=op.graph.outputs[0].operand - 1),))
    wrong = replace(wrong, ops=(replace(op, graph=block),))
    assert shrink(program, wrong) == ShrunkPair(program, wrong, {})


def test_work_grows_with_blocks_and_iterations() -> None:
    size = {"b": 16, "k": 128}
    made = [
        build(w.rmsnorm_fused(**size, n=n, grid=n // 16, loop=loop), w.rmsnorm(**size, n=n), kit.H200)
        for n, loop in ((32, 2), (64, 2), (32, 4))
    ]
    base, wide, long = map(amount_of_work, made)
    assert wide == 2 * base
    assert long != base


def test_elements_lie_where_strides_say() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert arrange_by_strides(array, (3, 1)) is array
    assert arrange_by_strides(array, (1, 2)).tolist() == [0, 3, 1, 4, 2, 5]
    assert arrange_by_strides(array, (4, 1)).tolist() == [0, 1, 2, 0, 3, 4, 5]
