"""Exponentials of which masks select: what they do not select has no influence, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.check.proof.replay import replay
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm, stabilize
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics.float64_reference import FloatDomain, run
from mirage_formal.semantics.interpreter import evaluate
from tests.codegen.online_softmax.test_stabilize import lowered
from tests.kit.kernels.example_kernels import stored
from tests.kit.proofs.claims import Mask, Saved, Shapes, kernel, on, program

#: Scores S, and beside the mask of each score one of keys.
INPUTS: Shapes = {"S": (2, 8, 16), "V": (2, 16, 4), "M": Mask(1, 8, 16), "N": Mask(1, 1, 16)}
Body = Callable[[Graph, Tensor, Tensor, Tensor, Tensor], Tensor]
Floats = NDArray[Any]


def attention(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(m, g.exp(s), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


def divided_first(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(m, g.exp(s), 0)
    return g.div_no_nan(p, g.reduction(p, 2)) @ v


def in_a_loop(loop: int, rows: int = 2) -> Body:
    """One kernel, whose loop takes some keys in each iteration."""

    def body(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
        def inner(t: BlockBuilder, s: BlockTensor, v: BlockTensor, m: BlockTensor) -> Saved:
            p = t.select(m, t.exp(s), 0)
            return t.div_no_nan(t.forloop_accum(p @ v), t.forloop_accum(p, "sum")), on(0, 1)

        return kernel(g, (2, rows), [(s, on(0, 1), 2), (v, on(0), 1), (m, on(None, 1), 2)], inner, loop)

    return body


def parts(loop: int, split: int = 4) -> Body:
    """Blocks of some keys each, and a kernel that combines what they have."""

    def body(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
        def partial(t: BlockBuilder, s: BlockTensor, v: BlockTensor, m: BlockTensor) -> list[Saved]:
            p = t.select(m, t.exp(s), 0)
            return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

        def combine(t: BlockBuilder, o: BlockTensor, total: BlockTensor) -> Saved:
            return t.div_no_nan(t.forloop_accum(o, "sum_todimx"), t.forloop_accum(total, "sum")), on(0)

        reads = [(s, on(0, 2), 2), (v, on(0, 1), 1), (m, on(None, 2), 2)]
        o, total = kernel(g, (2, split), reads, partial, loop)
        return kernel(g, (2,), [(o, on(0)), (total, on(0))], combine, dimx=v.shape[2])

    return body


def quotient_outside(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    def inner(t: BlockBuilder, s: BlockTensor, v: BlockTensor, m: BlockTensor) -> list[Saved]:
        p = t.select(m, t.exp(s), 0)
        return [(t.forloop_accum(p @ v), on(0)), (t.forloop_accum(p, "sum"), on(0))]

    return g.div_no_nan(*kernel(g, (2,), [(s, on(0), 2), (v, on(0), 1), (m, on(), 2)], inner, 4))


def exponentials_first(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """The kernel that selects reads exponentials of another."""

    def inner(t: BlockBuilder, e: BlockTensor, v: BlockTensor, m: BlockTensor) -> Saved:
        p = t.select(m, e, 0)
        return t.div_no_nan(t.forloop_accum(p @ v), t.forloop_accum(p, "sum")), on(0)

    e = kernel(g, (2, 2), [(s, on(0, 2))], lambda t, s: (t.exp(t.forloop_accum(s)), on(0, 2)))
    return kernel(g, (2,), [(e, on(0), 2), (v, on(0), 1), (m, on(), 2)], inner, 2)


#: Forms of attention with one mask.
FORMS: dict[str, Body] = {
    "program": attention,
    "divided first": divided_first,
    "a loop": in_a_loop(4),
    "one iteration": in_a_loop(1),
    "parts": parts(2),
    "parts of one iteration": parts(1),
    "quotient outside": quotient_outside,
    "exponentials first": exponentials_first,
}


def both_masks(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(g.logical_and(m, n), g.exp(s), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


def one_mask_in_the_other(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(n, g.select(m, g.exp(s), 0), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


def both_in_a_loop(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    def inner(t: BlockBuilder, s: BlockTensor, v: BlockTensor, m: BlockTensor, n: BlockTensor) -> Saved:
        p = t.select(n, t.select(m, t.exp(s), 0), 0)
        return t.div_no_nan(t.forloop_accum(p @ v), t.forloop_accum(p, "sum")), on(0)

    return kernel(g, (2,), [(s, on(0), 2), (v, on(0), 1), (m, on(), 2), (n, on(), 2)], inner, 4)


def scaled_inside(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """What is selected is a multiple of the exponential."""
    p = g.select(m, g.scale(g.exp(s), 3), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


#: Larger ones, as tensor cores want them.
LARGER: Shapes = {"S": (2, 32, 64), "V": (2, 64, 16), "M": Mask(1, 32, 64), "N": Mask(1, 1, 64)}


def draws(seed: int, both: bool) -> Iterator[tuple[list[Floats], Floats, Floats]]:
    """Scores, values and masks, with the masks as one, and softmax(scores) V of what that keeps."""
    draw = np.random.default_rng(seed)
    for level in (1, 100, 10_000):
        for kept in (0.1, 0.5, 1.0):
            s = draw.integers(-level, level + 1, size=INPUTS["S"]).astype(np.float64)
            v = draw.standard_normal(INPUTS["V"])
            m, n = (draw.random(INPUTS[name]) < kept for name in ("M", "N"))
            m[:, :2] = False  # rows without a key
            m[:, 2:4, :8] = False  # and without one in the first half
            m[:, 4, 4:8] = False
            mask = np.broadcast_to(m & n if both else m, s.shape)
            # Discarded scores are larger than all others, infinite, or no numbers.
            s[~mask] = draw.choice([3e4, np.inf, -np.inf, np.nan], size=s.shape)[~mask]
            top = np.where(mask, s, -np.inf).max(2, keepdims=True)
            with np.errstate(all="ignore"):
                p = np.where(mask, np.exp(s - top), 0.0)
            total = p.sum(2, keepdims=True)
            yield [s, v, m.astype(np.float64), n.astype(np.float64)], mask, (p @ v) / np.where(total == 0, 1, total)


def stable(graph: KernelGraph) -> KernelGraph:
    found = stabilize(graph)
    assert isinstance(found, KernelGraph), found
    return found


def judged(wanted: KernelGraph, graph: KernelGraph, *, both: bool) -> KernelGraph:
    """The stable form of a graph, after it has been proved and evaluated."""
    found = stable(graph)
    assert found != graph
    assert faults(found) == []
    assert stabilize(found) == found
    verdict = prove(wanted, found)
    assert isinstance(verdict, Equivalent), verdict
    assert replay(wanted, found, verdict.proof).closings
    for arrays, _, exact in draws(0, both):
        (after,) = run(found, arrays)
        np.testing.assert_allclose(after, exact, rtol=1e-9, atol=1e-12)
        narrow: list[Any] = [array.astype(np.float32) for array in arrays]
        with np.errstate(all="ignore"):
            (after,) = evaluate(found, narrow, FloatDomain())
        assert after.dtype == np.float32
        np.testing.assert_allclose(after, exact, rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_discarded_scores_have_no_influence(form: str) -> None:
    judged(program(INPUTS, attention), program(INPUTS, FORMS[form]), both=False)


@pytest.mark.parametrize("body", [both_masks, one_mask_in_the_other, both_in_a_loop])
def test_nor_have_those_that_one_of_two_masks_discards(body: Body) -> None:
    wanted = both_masks if body is both_masks else one_mask_in_the_other
    judged(program(INPUTS, wanted), program(INPUTS, body), both=True)


def test_nor_beside_a_factor() -> None:
    judged(program(INPUTS, scaled_inside), program(INPUTS, scaled_inside), both=False)


@pytest.mark.parametrize("form", ["program", "a loop", "parts"])
def test_a_row_without_a_key_has_no_value_where_the_program_divides(form: str) -> None:
    """As a softmax of a row of minus infinity."""
    graph = program(INPUTS, FORMS[form])
    divided = KernelGraph(graph.inputs, tuple(map(_dividing, graph.ops)), graph.outputs)
    found = stable(divided)
    for arrays, mask, exact in draws(1, both=False):
        (after,) = run(found, arrays)
        rows = mask.any(2)
        assert np.isnan(after[~rows]).all()
        np.testing.assert_allclose(after[rows], exact[rows], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("body", [in_a_loop(4), in_a_loop(1), parts(2), parts(1)])
def test_kernels_keep_infinite_scores_and_empty_rows_out(body: Body) -> None:
    found = stable(program(LARGER, body))
    draw = np.random.default_rng(0)
    s = stored(draw.standard_normal(LARGER["S"]) * 30, DType.FLOAT16)
    v = stored(draw.standard_normal(LARGER["V"]), DType.FLOAT16)
    m = draw.random(LARGER["M"]) < 0.3
    m[:, :3] = False
    m[:, 3:6, :32] = False
    mask = np.broadcast_to(m, s.shape)
    with np.errstate(all="ignore"):
        p = np.where(mask, np.exp(s - np.where(mask, s, -np.inf).max(2, keepdims=True)), 0)
    total = p.sum(2, keepdims=True)
    s[~mask] = draw.choice([np.inf, -np.inf, np.nan, 3e4], size=s.shape)[~mask]
    (after,) = lowered(found, [s, v, m.astype(np.float64), np.ones(LARGER["N"])])
    np.testing.assert_allclose(after, p @ v / np.where(total == 0, 1, total), atol=3e-3)


def _dividing(op: Op | GraphDefined) -> Op | GraphDefined:
    if isinstance(op, GraphDefined):
        inner = tuple(_dividing(item) for item in op.graph.ops if isinstance(item, Op))
        return replace(op, graph=replace(op.graph, ops=tuple(item for item in inner if isinstance(item, Op))))
    return replace(op, kind=OpKind.DIV) if op.kind is OpKind.DIV_NO_NAN else op


def test_partial_maxima_of_what_is_selected_are_float32() -> None:
    first, second = stable(program(INPUTS, parts(2))).ops
    assert isinstance(first, GraphDefined)
    assert isinstance(second, GraphDefined)
    kinds = [op.kind for op in first.graph.ops if isinstance(op, Op)]
    assert kinds.count(OpKind.RUNNING_MAX) == 1
    selections = [op for op in first.graph.ops if isinstance(op, Op) and op.kind is OpKind.SELECT]
    assert [op.attrs.value for op in selections] == [2**104 - 2**128, 0]
    top = first.graph.ops[first.graph.outputs[2].operand - len(first.graph.inputs) - 1]
    assert isinstance(top, Op)
    assert top.kind is OpKind.ACCUM_MAX
    assert any(
        op.kind is OpKind.CAST and op.attrs.dtype is DType.FLOAT32 for op in first.graph.ops if isinstance(op, Op)
    )


def own_maximum(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(m, g.exp(s - g.max(g.select(m, s, -(2**128 - 2**104)), 2)), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


def test_a_program_with_the_maximum_of_what_it_selects_stays() -> None:
    graph = program(INPUTS, own_maximum)
    assert stabilize(graph) is graph


def both_ways(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """Exponentials of all scores are summed, and those that are selected: each has a maximum of its own."""
    e = g.exp(s)
    p = g.select(m, e, 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2)) + (e @ v) / g.reduction(e, 2)


def twice_selected(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """What one mask selects is summed, and a multiple of what both select."""
    p = g.select(m, g.exp(s), 0)
    r = g.select(n, g.scale(p, 3), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2)) + g.div_no_nan(r @ v, g.reduction(r, 2))


@pytest.mark.parametrize("body", [both_ways, twice_selected])
def test_exponentials_that_are_summed_in_two_ways_have_two_maxima(body: Body) -> None:
    graph = program(INPUTS, body)
    found = stable(graph)
    assert isinstance(prove(graph, found), Equivalent)
    assert [op.kind for op in found.ops if isinstance(op, Op)].count(OpKind.MAX) == 2
    draw = np.random.default_rng(0)
    s = draw.integers(-900, 900, size=INPUTS["S"]).astype(np.float64)
    v, m = draw.standard_normal(INPUTS["V"]), draw.random(INPUTS["M"]) < 0.5
    m[:, :, 0] = True
    n = np.arange(16).reshape(INPUTS["N"]) == 0
    s[..., 0] = -899.0
    (after,) = run(found, [s, v, m.astype(np.float64), n.astype(np.float64)])
    assert np.isfinite(after).all()
    if body is twice_selected:  # of both masks the first key is left, whatever its score is beside others
        p = np.where(m, np.exp(s - np.where(m, s, -np.inf).max(2, keepdims=True)), 0)
        np.testing.assert_allclose(after, p @ v / p.sum(2, keepdims=True) + v[:, :1], rtol=1e-9)


def of_two(g: Graph, s: Tensor, v: Tensor, m: Tensor, n: Tensor) -> Tensor:
    p = g.select(m, g.exp(s), g.exp(g.scale(s, 2)))
    return (p @ v) / g.reduction(p, 2)


def test_a_selection_from_two_exponentials_has_no_stable_form() -> None:
    assert isinstance(stabilize(program(INPUTS, of_two)), NoStableForm)
