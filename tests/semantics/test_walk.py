"""The walk against a literal evaluation, block by block and iteration by iteration."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import Dim3, DTensor, DType, row_major
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.interpreter import trace
from mirage_formal.semantics.operator_semantics import RULES
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import reference_interpreter
from tests.kit.graphs.random_graphs import random_graph, with_masks


def _input(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def _one_kernel(
    inputs: Sequence[Input],
    iterators: Sequence[InputIterator],
    ops: Sequence[Op],
    savers: Sequence[OutputSaver],
    grid: Dim3 = (1, 1, 1),
    loop: int = 1,
) -> KernelGraph:
    block = BlockGraph(grid, (128, 1, 1), loop, 2, tuple(iterators), tuple(ops), tuple(savers))
    count = len(inputs)
    op = GraphDefined(tuple(range(count)), block)
    return KernelGraph(tuple(inputs), (op,), tuple(range(count, count + len(savers))))


def test_every_operator_has_a_rule() -> None:
    assert set(RULES) == set(OpKind)


@pytest.mark.parametrize("seed", range(240))
def test_walk_equals_literal_evaluation(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, frozenset(OpKind), kernels=rng.randint(1, 3))
    numbers = np.random.default_rng(seed)
    arrays = with_masks(graph, [numbers.uniform(0.5, 1.5, source.tensor.shape) for source in graph.inputs])
    with np.errstate(all="ignore"):
        want = reference_interpreter.evaluate(graph, arrays, reference_interpreter.FloatArithmetic())
    got = float64_reference.run(graph, arrays)
    for expected, actual in zip(want, got, strict=True):
        assert actual.shape == expected.shape
        fine = np.isfinite(expected) & (np.abs(expected) < 1e100)
        np.testing.assert_allclose(actual[fine], expected[fine], rtol=1e-6, atol=1e-9)


def test_random_graphs_reach_every_operator_and_map() -> None:
    kinds, shared, slabs = set(), 0, 0
    for seed in range(240):
        rng = random.Random(seed)
        graph = random_graph(rng, frozenset(OpKind), kernels=rng.randint(1, 3))
        for op in graph.ops:
            if isinstance(op, Op):
                kinds.add(op.kind)
                continue
            kinds |= {inner.kind for inner in op.graph.ops if isinstance(inner, Op)}
            for iterator in op.graph.inputs:
                split = [d for a, d in enumerate(iterator.imap) if d is not None and op.graph.grid[a] > 1]
                shared += len(split) != len(set(split))
                slabs += op.graph.forloop_range > 1 and iterator.fmap in split
    assert kinds == set(OpKind)
    assert shared > 20
    assert slabs > 20


def test_slab_is_cut_before_the_loop_chunk() -> None:
    """Block x of 2, iteration i of 3, over 12 elements: block 0 has 0..5, its first chunk 0..1."""
    graph = _one_kernel(
        [_input("a", 12)],
        [InputIterator((0, None, None), 0)],
        [Op(OpKind.ACCUM_CONCAT, (0,), Attrs(dim=0))],
        [OutputSaver(1, (0, None, None))],
        grid=(2, 1, 1),
        loop=3,
    )
    seen = trace(graph, [np.arange(12.0)], float64_reference.FloatDomain())
    loaded = seen.blocks[0][0]
    assert loaded.shape == (2, 1, 1, 3, 2)
    assert loaded[0, 0, 0, :, :].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert loaded[1, 0, 0, 0, :].tolist() == [6, 7]
    assert seen.outputs[0].tolist() == list(range(12))


def test_grid_axes_split_one_dim_in_the_order_x_y_z() -> None:
    graph = _one_kernel(
        [_input("a", 24)],
        [InputIterator((0, 0, 0), None)],
        [Op(OpKind.ACCUM_SUM, (0,))],
        [OutputSaver(1, (0, 0, 0))],
        grid=(2, 3, 4),
    )
    seen = trace(graph, [np.arange(24.0)], float64_reference.FloatDomain())
    loaded = seen.blocks[0][0]
    assert loaded.shape == (2, 3, 4, 1, 1)
    assert loaded[1, 2, 3, 0, 0] == 23
    assert loaded[1, 0, 0, 0, 0] == 12
    assert loaded[0, 1, 0, 0, 0] == 4
    assert seen.outputs[0].tolist() == list(range(24))


def test_an_untouched_axis_stays_replicated_and_a_loop_invariant_sum_counts_iterations() -> None:
    graph = _one_kernel(
        [_input("a", 4)],
        [InputIterator((None, None, None), None)],
        [Op(OpKind.ACCUM_SUM, (0,))],
        [OutputSaver(1, (0, None, None))],
        grid=(2, 1, 1),
        loop=5,
    )
    seen = trace(graph, [np.arange(4.0)], float64_reference.FloatDomain())
    assert seen.blocks[0][0].shape == (1, 1, 1, 1, 4)
    assert seen.outputs[0].tolist() == [0, 5, 10, 15, 0, 5, 10, 15]


def _bad(**change: Any) -> KernelGraph:
    parts: dict[str, Any] = {
        "inputs": [_input("a", 4, 6)],
        "iterators": [InputIterator((0, None, None), 1)],
        "ops": [Op(OpKind.ACCUM_SUM, (0,))],
        "savers": [OutputSaver(1, (0, None, None))],
        "grid": (2, 1, 1),
        "loop": 3,
    }
    return _one_kernel(**(parts | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (3, 1, 1)}, "does not divide by 3"),
        ({"savers": [OutputSaver(0, (0, None, None))]}, "behind an accumulator"),
        ({"savers": [OutputSaver(1, (None, None, None))]}, "write the same elements"),
        ({"savers": [OutputSaver(1, (2, None, None))]}, "expected a dim in 0..1"),
        ({"savers": [OutputSaver(7, (0, None, None))]}, "tensor number"),
        ({"iterators": [InputIterator((5, None, None), 1)]}, "expected a dim in 0..1"),
        ({"iterators": []}, "expected 0 operands"),
        ({"ops": [Op(OpKind.ACCUM_SUM, (3,))]}, "tensor number"),
        ({"ops": [Op(OpKind.ACCUM_CONCAT, (0,))]}, "expected attributes"),
        ({"ops": [Op(OpKind.ACCUM_SUM, (0, 0))]}, "operands"),
        ({"grid": (1, 1, 1), "ops": [Op(OpKind.MATMUL, (0, 0))]}, "inner dimensions differ"),
    ],
)
def test_ill_formed_graphs_are_refused(change: dict[str, Any], message: str) -> None:
    assert float64_reference.run(_bad(), [np.ones((4, 6))])[0].shape == (4, 2)
    with pytest.raises(GraphError, match=message):
        float64_reference.run(_bad(**change), [np.ones((4, 6))])


def test_an_accumulator_outside_a_block_is_refused() -> None:
    graph = KernelGraph((_input("a", 4),), (Op(OpKind.ACCUM_SUM, (0,)),), (1,))
    with pytest.raises(GraphError, match="outside a block"):
        float64_reference.run(graph, [np.ones(4)])
