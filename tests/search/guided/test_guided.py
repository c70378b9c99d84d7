"""The guided engine: sharings and filters change nothing, candidates are well-formed and equal to the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.semantics.float64_reference import run
from tests.kit.sampling import THOROUGH
from tests.search.engine_comparison import latent


def _input(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def attention(batch: int, queries: int, head: int, keys: int) -> KernelGraph:
    inputs = (_input("Q", batch, queries, head), _input("K", batch, head, keys), _input("V", batch, keys, head))
    ops = (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (3,)),
        Op(OpKind.SUM, (4,), Attrs(dim=2)),
        Op(OpKind.DIV, (4, 5)),
        Op(OpKind.MATMUL, (6, 2)),
    )
    return KernelGraph(inputs, ops, (7,))


def rms_linear(rows: int, inner: int, columns: int) -> KernelGraph:
    ops = (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)), Op(OpKind.MATMUL, (2, 1)))
    return KernelGraph((_input("X", rows, inner), _input("W", inner, columns)), ops, (3,))


def gated(rows: int, inner: int, columns: int) -> KernelGraph:
    inputs = (_input("X", rows, inner), _input("A", inner, columns), _input("B", inner, columns))
    ops = (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.SILU, (3,)),
        Op(OpKind.MATMUL, (0, 2)),
        Op(OpKind.MUL, (4, 5)),
    )
    return KernelGraph(inputs, ops, (6,))


def low_rank(rows: int, inner: int, columns: int, rank: int) -> KernelGraph:
    inputs = (
        _input("X", rows, inner),
        _input("W", inner, columns),
        _input("A", inner, rank),
        _input("B", rank, columns),
    )
    ops = (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.MATMUL, (0, 2)),
        Op(OpKind.MATMUL, (5, 3)),
        Op(OpKind.ADD, (4, 6)),
    )
    return KernelGraph(inputs, ops, (7,))


PROGRAMS: dict[str, Callable[[], KernelGraph]] = {
    "attention": lambda: attention(2, 8, 4, 16),
    "norm": lambda: rms_linear(4, 16, 12),
    "mlp": lambda: gated(4, 8, 12),
    "lora": lambda: low_rank(4, 8, 12, 2),
}


@cache
def _search(
    program: KernelGraph, space: SearchSpace, *, best: int | None = 4, off: frozenset[str] = frozenset()
) -> Mapping[str, KernelGraph]:
    """What a search finds; it is a function of these arguments (``test_units_and_runs_are_deterministic``)."""
    engine = GuidedEngine(best)
    options = SearchOptions(off=off)
    found: dict[str, KernelGraph] = {}
    for unit in engine.units(program, space, options):
        for candidate in engine.run(program, space, options, unit).candidates:
            found[digest(candidate.graph)] = candidate.graph
    return MappingProxyType(found)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "attention")) for n in PROGRAMS])
def test_candidates_are_well_formed_and_equal_to_the_program(name: str) -> None:
    program = PROGRAMS[name]()
    found = _search(program, load_space(name))
    rng = np.random.default_rng(7)
    arrays = [0.3 * rng.normal(size=i.tensor.shape) for i in program.inputs]
    expected = run(program, arrays)[0]
    assert len(found) > 10
    for graph in found.values():
        assert faults(graph) == []
        np.testing.assert_allclose(run(graph, arrays)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("off", ["share", "filter"])
@pytest.mark.parametrize("name", ["norm", "mlp", "attention"])
def test_switching_a_sharing_or_filter_off_changes_no_candidate(name: str, off: str) -> None:
    program = attention(2, 4, 2, 4) if name == "attention" else PROGRAMS[name]()
    space = load_space("tiny").with_overrides(max_block_ops=6)
    on = _search(program, space, best=None)
    assert on
    assert _search(program, space, best=None, off=frozenset({off})).keys() == on.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("off", [("share",), ("filter",), ("share", "filter")], ids="+".join)
@pytest.mark.parametrize("listed", ["all", "folds only"])
@pytest.mark.parametrize("last", [OpKind.ADD, OpKind.MUL])
def test_a_second_kernel_may_fold_and_sum_no_dim_as_a_whole(last: OpKind, listed: str, off: tuple[str, ...]) -> None:
    """The parts of X @ W are added up by folding, beside a tensor that a loop over the parts could not carry."""
    ops = (Op(OpKind.MATMUL, (0, 1)), Op(last, (3, 2)))
    program = KernelGraph((_input("X", 2, 4), _input("W", 4, 2), _input("B", 2, 2)), ops, (4,))
    space = load_space("tiny").with_overrides(max_kernel_ops=2, max_block_ops=4, franges=[2])
    left = {OpKind.SUM, OpKind.ACCUM_SUM_LAST} if listed == "folds only" else set()
    block_ops = tuple(op for op in space.block_ops if op not in left)
    space = replace(space, max_graph_defined=2, max_block_outputs=1, kernel_ops=(), block_ops=block_ops)
    on = _search(program, space, best=None)
    folded = [g for g in on.values() if len(g.ops) == 2 and OpKind.ACCUM_SUM_TO_DIMX in _kinds(g)[1]]
    assert folded
    assert _search(program, space, best=None, off=frozenset(off)).keys() == on.keys()


def two_kernels() -> tuple[KernelGraph, SearchSpace]:
    """Attention in up to two kernels; without MIRAGE_THOROUGH=1 its weights alone, which take a fifth of the time."""
    if THOROUGH:
        return attention(2, 8, 4, 16), load_space("attention").with_overrides(max_block_ops=6)
    ops = (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (2,)),
        Op(OpKind.SUM, (3,), Attrs(dim=1)),
        Op(OpKind.DIV, (3, 4)),
    )
    weights = KernelGraph((_input("Q", 4, 2), _input("K", 2, 8)), ops, (5,))
    return weights, load_space("attention").with_overrides(max_block_ops=5)


@pytest.mark.slow
@pytest.mark.parametrize("off", ["share", "filter"])
def test_two_kernel_attention_is_the_same_with_a_sharing_or_filter_off(off: str) -> None:
    program, space = two_kernels()
    assert {len(graph.ops) for graph in _search(program, space).values()} == {1, 2}
    assert _search(program, space, off=frozenset({off})).keys() == _search(program, space).keys()


def _kinds(graph: KernelGraph) -> list[set[OpKind]]:
    return [
        {op.kind for op in k.graph.ops if isinstance(op, Op)} if isinstance(k, GraphDefined) else {k.kind}
        for k in graph.ops
    ]


@pytest.mark.slow
def test_attention_splits_keys_over_blocks_and_combines_them_in_a_second_kernel() -> None:
    program = attention(2, 8, 4, 16)
    found = _search(program, load_space("attention")).values()
    split = [
        g
        for g in found
        if len(g.ops) == 2
        and all(isinstance(k, GraphDefined) for k in g.ops)
        and {OpKind.EXP, OpKind.MATMUL} <= _kinds(g)[0]
        and OpKind.DIV in _kinds(g)[1]
        and OpKind.EXP not in _kinds(g)[1]
    ]
    assert split
    # K is split along its keys (dim 2) by a grid axis of the first kernel.
    assert any(2 in iterator.imap for g in split for iterator in g.ops[0].graph.inputs)  # type: ignore[union-attr]
    assert any(len(g.ops) == 1 for g in found)


def test_rms_norm_is_divided_after_the_product_in_one_kernel() -> None:
    found = _search(rms_linear(4, 16, 12), load_space("norm")).values()
    fused = [g for g in found if len(g.ops) == 1 and OpKind.ACCUM_RMS_LAST in _kinds(g)[0]]
    assert any({OpKind.MATMUL, OpKind.DIV} <= _kinds(g)[0] for g in fused)


@pytest.mark.parametrize("name", ["norm", *(["attention"] if THOROUGH else [])])
def test_carrying_every_part_by_itself_changes_no_candidate(name: str) -> None:
    program, ops = (rms_linear(2, 8, 2), 4) if name == "norm" else (attention(1, 2, 2, 4), 6)
    space = load_space("tiny").with_overrides(max_kernel_ops=2, max_block_ops=ops, franges=[2])
    space = replace(space, max_graph_defined=2, max_block_outputs=1, max_axes_per_split=1, kernel_ops=())
    on = _search(program, space, best=None)
    assert any(len(graph.ops) == 2 for graph in on.values())
    assert _search(program, space, best=None, off=frozenset({"merge"})).keys() == on.keys()


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="its search takes half a minute: MIRAGE_THOROUGH=1")
def test_latent_attention_needs_neither_keys_nor_values_in_device_memory() -> None:
    program = latent(q=4, d=2, r=6, n=16)
    fused = [
        graph
        for graph in _search(program, load_space("attention")).values()
        if len(graph.ops) <= 2 and not {(2, 16), (16, 2)} & {t.shape for t in kernel_types(graph)[len(graph.inputs) :]}
    ]
    assert fused
    for graph in fused[:6]:
        assert isinstance(prove(program, graph), Equivalent)


def test_single_kernels_are_found_first_and_once() -> None:
    """They have a unit of their own, and no state limit of the others keeps them from being found."""
    program, space, options = attention(2, 8, 4, 16), load_space("attention"), SearchOptions()
    engine = GuidedEngine()
    single, *shares = engine.units(program, replace(space, max_states=1), options)
    found = engine.run(program, space, options, single).candidates
    assert found
    assert all(len(candidate.graph.ops) == 1 for candidate in found)
    cut = [engine.run(program, replace(space, max_states=2000), options, unit) for unit in shares]
    assert any(result.stats.cut for result in cut)
    alone = {candidate.graph for candidate in found}
    assert not any(candidate.graph in alone for result in cut for candidate in result.candidates)
    (one,) = engine.units(program, replace(space, max_kernel_ops=1), options)
    assert engine.run(program, replace(space, max_kernel_ops=1), options, one).candidates == found
    (all_,) = engine.units(program, replace(space, max_graph_defined=1), options)
    assert alone <= {
        c.graph for c in engine.run(program, replace(space, max_graph_defined=1), options, all_).candidates
    }


@pytest.mark.slow
def test_units_and_runs_are_deterministic() -> None:
    (program, space), options = two_kernels(), SearchOptions()
    engine = GuidedEngine()
    units = engine.units(program, space, options)
    assert len(units) > 1
    first = [engine.run(program, space, options, u) for u in units]
    again = [GuidedEngine().run(program, space, options, u) for u in reversed(units)]
    assert [r.candidates for r in first] == [r.candidates for r in reversed(again)]
    assert [r.stats for r in first] == [r.stats for r in reversed(again)]


def test_an_axis_may_run_through_two_dims_of_the_program() -> None:
    # Scores of self-attention from one tensor: S = exp(X X^T), row by row.
    ops = (
        Op(OpKind.TRANSPOSE, (0,), Attrs(perm=(1, 0))),
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (2,)),
        Op(OpKind.SUM, (3,), Attrs(dim=1)),
        Op(OpKind.DIV, (3, 4)),
    )
    program = KernelGraph((_input("X", 4, 6),), ops, (5,))
    tiny = load_space("tiny").with_overrides(max_kernel_ops=2)
    assert not _search(program, tiny, best=None)  # no operator of the presets transposes
    found = _search(program, replace(tiny, kernel_ops=(*tiny.kernel_ops, OpKind.TRANSPOSE)), best=None)
    array = 0.3 * np.random.default_rng(5).normal(size=(4, 6))
    assert any(2 in graph.ops[1].graph.grid for graph in found.values())  # type: ignore[union-attr]
    for graph in found.values():
        assert faults(graph) == []
        np.testing.assert_allclose(run(graph, [array])[0], run(program, [array])[0], rtol=1e-9)


COPIED: dict[str, Callable[[], KernelGraph]] = {
    "norm": lambda: rms_linear(4, 16, 12),
    "mlp": lambda: gated(4, 8, 12),
    "products": lambda: KernelGraph(
        (_input("A", 4, 2), _input("B", 2, 4)),
        (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.MATMUL, (2, 0))),
        (3,),
    ),
    "sums": lambda: KernelGraph(
        (_input("X", 2, 4), _input("Y", 2, 6)),
        (
            Op(OpKind.SUM, (0,), Attrs(dim=1)),
            Op(OpKind.SUM, (1,), Attrs(dim=1)),
            Op(OpKind.MUL, (2, 3)),
        ),
        (4,),
    ),
}


@pytest.mark.parametrize("off", ["ties", "apart", "diagonal"])
@pytest.mark.parametrize("name", COPIED)
def test_switching_a_filter_of_copies_off_changes_no_candidate(name: str, off: str) -> None:
    space = load_space("tiny").with_overrides(max_block_ops=6 if name == "mlp" else 4)
    on = _search(COPIED[name](), space, best=None)
    assert on
    assert _search(COPIED[name](), space, best=None, off=frozenset({off})).keys() == on.keys()


def test_a_tensor_that_cannot_contribute_is_pruned_and_a_wrong_sum_never_reaches_the_goal() -> None:
    # X W with equal extents everywhere: an index-blind search would also pair the wrong dims.
    program = KernelGraph((_input("X", 4, 4), _input("W", 4, 4)), (Op(OpKind.MATMUL, (0, 1)),), (2,))
    found = _search(program, load_space("tiny"), best=None)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=(4, 4)) for _ in range(2)]
    assert found
    for graph in found.values():
        np.testing.assert_allclose(run(graph, arrays)[0], arrays[0] @ arrays[1], rtol=1e-12, atol=1e-12)
