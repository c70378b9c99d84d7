"""Programs with masks of booleans: both engines find the same, and selections are fused as products with masks are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.horizontal_fusion.fusion_engine import HorizontalFusionEngine
from mirage_formal.search.known_incompleteness import random_inputs
from mirage_formal.search.normalize_layout_ops import normalize_layout_ops
from mirage_formal.search.pad_extents import round_extents
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import load_space
from mirage_formal.semantics.float64_reference import run
from tests.kit.graphs.workloads import K, op, tensor
from tests.kit.proofs.claims import Mask
from tests.kit.proofs.claims import program as built
from tests.search.engine_comparison import compare, program, search, tiny

X, Y = (tensor(name, 2, 4) for name in "XY")
HALF = Fraction(1, 2)


def mask(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.BOOL), row_major(shape))


M, N = (mask(name, 2, 4) for name in "MN")
#: Programs, and how many operators a block has.
PROGRAMS: dict[str, tuple[KernelGraph, int]] = {
    "selected or 0": (program((X, M), op(K.SELECT, 1, 0, value=Fraction(0))), 2),
    "selected or another number": (program((X, M), op(K.EXP, 0), op(K.SELECT, 1, 2, value=HALF)), 3),
    "selected or another tensor": (program((X, M, Y), op(K.EXP, 0), op(K.SELECT, 1, 3, 2)), 3),
    "the other way round": (program((X, M, Y), op(K.LOGICAL_NOT, 1), op(K.SELECT, 3, 0, 2)), 3),
    "where it is positive": (program((X, Y), op(K.GT, 0, value=Fraction(0)), op(K.SELECT, 2, 1, 0)), 3),
    "where it is the larger": (program((X, Y), op(K.LT, 0, 1), op(K.SELECT, 2, 1, value=HALF)), 3),
    "where both are equal": (program((X, Y), op(K.EQ, 1, 0), op(K.SELECT, 2, 1, value=HALF)), 3),
    "where it is neither": (
        program(
            (X,), op(K.GE, 0, value=HALF), op(K.LE, 0, value=HALF), op(K.MUL, 1, 2), op(K.SELECT, 3, 0, value=HALF)
        ),
        5,
    ),
    "one of two masks": (program((X, M, N), op(K.MAXIMUM, 1, 2), op(K.SELECT, 3, 0, value=HALF)), 3),
    "both masks": (program((X, M, N), op(K.MUL, 1, 2), op(K.SELECT, 3, 0, value=HALF)), 3),
    "where masks agree": (program((X, M, N), op(K.EQ, 1, 2), op(K.SELECT, 3, 0, value=HALF)), 3),
    "a mask as numbers": (program((X, M), op(K.CAST, 1, dtype=DType.FLOAT16), op(K.MUL, 0, 2)), 3),
    "a mask of rows": (program((X, mask("M", 2, 1)), op(K.EXP, 0), op(K.SELECT, 1, 2, value=Fraction(0))), 3),
    "summed": (program((X, M), op(K.SELECT, 1, 0, value=Fraction(0)), op(K.SUM, 2, dim=1)), 3),
    "quotient or 0": (program((X, Y), op(K.SUM, 1, dim=1), op(K.DIV_NO_NAN, 0, 2)), 3),
    "rounded": (program((X, Y), op(K.ROUND_BFLOAT16, 0), op(K.MUL, 2, 1)), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_engines_agree(name: str) -> None:
    source, ops = PROGRAMS[name]
    space = tiny(max_block_ops=ops)
    if name == "quotient or 0":  # at points without a 0, which exhaustive search looks at, a quotient is one too
        space = replace(space, block_ops=tuple(kind for kind in space.block_ops if kind is not K.DIV))
    found = compare(source, space)
    fused = [g for g in found.guided.values() if len(g.ops) == 1 and isinstance(g.ops[0], GraphDefined)]
    assert fused
    for graph in fused:
        assert faults(graph) == []
        assert isinstance(prove(source, graph), Equivalent)


def plain(g: Graph, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """The mask is a factor."""
    p = g.exp(q @ k) * m
    return (p / g.reduction(p, 2)) @ v


def chosen(g: Graph, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    p = g.select(m, g.exp(q @ k), 0)
    return g.div_no_nan(p, g.reduction(p, 2)) @ v


def shapes(*of_mask: int, b: int = 2, q: int = 16, d: int = 16, n: int = 64) -> dict[str, tuple[int, ...]]:
    return {"Q": (b, q, d), "K": (b, d, n), "V": (b, n, d), "M": of_mask or (1, q, n)}


def kinds(found: dict[str, KernelGraph]) -> Counter[int]:
    """How many candidates have so many kernels that are all block graphs."""
    return Counter(len(g.ops) for g in found.values() if all(isinstance(one, GraphDefined) for one in g.ops))


@pytest.mark.slow
def test_attention_that_selects_is_fused_as_attention_with_a_factor() -> None:
    inputs = shapes()
    masked = {**inputs, "M": Mask(*inputs["M"])}
    space = load_space("attention")
    factor = search(GuidedEngine(2), built(inputs, plain), space, SearchOptions())
    source = built(masked, chosen)
    found = search(GuidedEngine(2), source, space, SearchOptions())
    assert kinds(found)[1] >= 0.8 * kinds(factor)[1] > 20
    assert kinds(found)[2] >= 0.8 * kinds(factor)[2] > 100
    arrays = next(random_inputs(source))
    (exact,) = run(source, arrays)
    for graph in list(found.values())[::20]:
        assert faults(graph) == []
        np.testing.assert_allclose(run(graph, arrays)[0], exact, rtol=1e-9, atol=1e-12)


def operators(graph: KernelGraph) -> list[K]:
    return [one.kind for one in graph.ops if isinstance(one, Op)]


def less_the_largest(g: Graph, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """As a module is imported: the largest score that the mask keeps is subtracted, and keys are transposed."""
    s = q @ k.mT
    p = g.select(m, g.exp(s - g.max(g.select(m, s, -(2**128 - 2**104)), 2)), 0)
    return g.div_no_nan(p, g.reduction(p, 2)) @ v


@pytest.mark.parametrize("of_mask", [(1, 12, 40), (2, 1, 40), (2, 12, 40)])
def test_the_largest_score_that_a_mask_keeps_is_not_sought(of_mask: tuple[int, ...]) -> None:
    source = built({"Q": (2, 12, 8), "K": (2, 40, 8), "V": (2, 40, 8), "M": Mask(*of_mask)}, less_the_largest)
    found = preprocess(source)
    assert operators(found.program) == [K.MATMUL, K.EXP, K.SELECT, K.SUM, K.DIV_NO_NAN, K.MATMUL]
    arrays = next(random_inputs(source))
    np.testing.assert_allclose(run(found.wrapped(found.program), arrays)[0], run(source, arrays)[0], rtol=1e-9)


def test_keys_behind_the_end_are_not_selected() -> None:
    source = built({**shapes(q=18, n=42), "M": Mask(1, 18, 42)}, chosen)
    found = round_extents(source)
    assert found is not None
    assert [item.tensor.shape for item in found.program.inputs] == [(2, 32, 16), (2, 16, 48), (2, 48, 16), (1, 32, 48)]
    whole = found.wrapped(found.program)
    types = kernel_types(whole)
    pads = [n for n, one in enumerate(whole.ops, 4) if isinstance(one, Op) and one.kind is K.PAD]
    assert any(types[n].dtype is DType.BOOL for n in pads)
    arrays = next(random_inputs(source))
    np.testing.assert_allclose(run(whole, arrays)[0], run(source, arrays)[0], rtol=1e-9)


def test_keys_behind_the_end_of_a_mask_that_is_negated_are_not_added() -> None:
    """Where the mask is 0 they would be selected: exp(0) is 1."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return chosen(g, q, k, v, g.logical_not(m))

    source = built({**shapes(q=16, n=42), "M": Mask(1, 16, 42)}, body)
    assert round_extents(source) is None


def test_slices_and_transposes_pass_selections() -> None:
    def body(g: Graph, x: Tensor, w: Tensor, m: Tensor) -> Tensor:
        return g.slice(g.transpose(g.select(m, x @ w, 0), 0, 1), 0, 8, 32)

    source = built({"X": (16, 8), "W": (8, 32), "M": Mask(16, 32)}, body)
    anew = normalize_layout_ops(source)
    assert anew is not None
    assert operators(anew)[-1] is K.SELECT
    assert isinstance(prove(source, anew), Equivalent)


def test_masks_that_are_put_together_stay() -> None:
    source = program(
        (tensor("X", 2, 8), M, N), op(K.CONCAT, 1, 2, dim=1), op(K.SELECT, 3, 0, value=Fraction(0)), op(K.SQUARE, 4)
    )
    assert normalize_layout_ops(source) is None


def test_one_kernel_computes_several_results_of_one_mask() -> None:
    def body(g: Graph, x: Tensor, w: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        p = g.select(m, x @ w, 0)
        return p, g.relu(p)

    source = built({"X": (16, 64), "W": (64, 32), "M": Mask(16, 32)}, body)
    found = search(HorizontalFusionEngine(), source, load_space("default"), SearchOptions())
    assert found
    arrays = next(random_inputs(source))
    for graph in list(found.values())[:8]:
        assert len(graph.ops) == 1
        assert faults(graph) == []
        assert isinstance(prove(source, graph), Equivalent)
        for one, exact in zip(run(graph, arrays), run(source, arrays), strict=True):
            np.testing.assert_allclose(one, exact, rtol=1e-9)


def test_the_operators_of_a_masked_softmax_are_one_kernel() -> None:
    def body(g: Graph, x: Tensor, m: Tensor) -> Tensor:
        p = g.select(m, g.exp(x - g.max(g.select(m, x, -(2**128 - 2**104)), 1)), 0)
        return p / g.reduction(p, 1)

    source = built({"X": (64, 48), "M": Mask(64, 48)}, body)
    found = search(HorizontalFusionEngine(), source, load_space("norm"), SearchOptions(longer=True))
    assert found
    for graph in found.values():
        assert len(graph.ops) == 1
        assert faults(graph) == []
        assert isinstance(prove(source, graph), Equivalent)


def test_a_mask_may_be_the_result_of_a_part() -> None:
    source = program((X, Y), op(K.LT, 0, 1), op(K.LOGICAL_NOT, 2))
    found = search(HorizontalFusionEngine(), source, tiny(max_block_ops=4), SearchOptions(longer=True))
    assert any(isinstance(graph.ops[0], GraphDefined) for graph in found.values())
    for graph in found.values():
        assert faults(graph) == []
        assert isinstance(prove(source, graph), Equivalent)
