"""A program equals itself, whatever it is made of, and so do equal parts of two; the kernel replays every proof."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.sympy_crosscheck import SympyAnswer, crosscheck_theorem
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.equality.explain import explain
from mirage_formal.prove.equality.prove import prove
from tests.kit.fuzz import graph_changes
from tests.kit.graphs.mutants import Decision, differs
from tests.kit.proofs.claims import Saved, kernel, on, pair, program
from tests.kit.sampling import number


def proved(left: KernelGraph, right: KernelGraph) -> Equivalent:
    """The proof, replayed."""
    verdict = prove(left, right)
    assert isinstance(verdict, Equivalent), verdict
    replay(left, right, verdict.proof)
    return verdict


def _running(axis: int, split: int) -> Callable[..., Tensor]:
    def body(b: BlockBuilder, x: BlockTensor) -> Saved:
        largest, moved = b.reduction_max(x, axis)
        factor = b.exp(moved)
        return b.forloop_accum_rescale(b.exp(x - largest), factor), on()

    return lambda g, a, b: kernel(g, (1, 1, 1), [(g.concat(a, b, split), on(), 1)], body, loop=3)


def _so_far(loop_dim: int | None, change: Callable[[BlockTensor], BlockTensor]) -> Callable[..., Tensor]:
    """A running maximum, the largest of all, and a sum rescaled by it, where the loop splits a dim or none."""

    def body(b: BlockBuilder, x: BlockTensor) -> Saved:
        largest, moved = b.reduction_max(change(x), 1)
        rescaled = b.forloop_accum_rescale(x, b.exp(moved))
        return rescaled + b.square(b.forloop_accum_max(largest)), on()

    return lambda g, x: kernel(g, (1, 1, 1), [(x, on(), loop_dim)], body, loop=3)


def _nothing(g: Graph, x: Tensor) -> Tensor:
    return x / (x - x)


def _repeated(make: Callable[[Tensor], Tensor], x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x = make(x)
    return x


def _squared(g: Graph, t: Tensor) -> Tensor:
    """Twice as many parts along both dims."""
    above = g.concat(t, g.exp(t), 0)
    return g.concat(above, g.exp(above), 1)


#: What the exact domain has no formula for, or no whole one.
HARD = {
    "largest of rows side by side": program({"A": (4, 3), "B": (4, 5)}, lambda g, a, b: g.max(g.concat(a, b, 1), 0)),
    "largest along a concatenation": program({"A": (4, 3), "B": (4, 5)}, lambda g, a, b: g.max(g.concat(a, b, 1), 1)),
    "rows of 5 as rows of 3": program({"X": (3, 5)}, lambda g, x: g.reshape(x, 5, 3)),
    "parts regrouped": program({"A": (2, 3), "B": (2, 5)}, lambda g, a, b: g.exp(g.reshape(g.concat(a, b, 1), 4, 4))),
    "a divisor that is 0": program({"X": (2, 3)}, _nothing),
    "the root of a negative number": program({"X": (2, 3)}, lambda g, x: g.sqrt(g.scale(g.square(x), -1))),
    "a loop over a concatenation": program({"A": (2, 4), "B": (2, 5)}, _running(1, 1)),
    "a loop beside a concatenation": program({"A": (2, 6), "B": (3, 6)}, _running(1, 0)),
    "a running maximum of nothing": program({"X": (2, 6)}, _so_far(1, lambda x: x - x)),
    "a running maximum of the same": program({"X": (2, 6)}, _so_far(None, lambda x: x)),
    "largest values of nothing": program({"X": (2, 6)}, lambda g, x: g.shift(g.gelu(g.relu(g.max(x - x, 1))), 1)),
    "exponentials of many terms": program(
        {"X": (2, 6), "Y": (2, 6)},
        lambda g, x, y: g.reduction(g.silu(_repeated(lambda t: t * (t + y), x, 4)) / g.silu(x - y), 1),
    ),
    "a polynomial of many terms": program(
        {"X": (2, 3), "Y": (3, 3)},
        lambda g, x, y: g.sqrt(g.square(_repeated(lambda t: g.matmul(g.sigmoid(x) + t, y), x, 6))),
    ),
    "a high power": program({"X": (2, 2)}, lambda g, x: _repeated(g.square, x, 9)),
    "nested deeply": program({"X": (2, 2)}, lambda g, x: _repeated(g.exp, x, 80)),
    "nested very deeply": program({"X": (2, 2)}, lambda g, x: _repeated(g.relu, x, 600)),
    "a large number": program({"X": (2, 2)}, lambda g, x: _repeated(g.square, g.scale(x, 1e-308), 5)),
    "many terms": program({"X": (2, 3), "Y": (2, 3)}, lambda g, x, y: _repeated(lambda t: g.mul(t, t + y), x, 7)),
    "a large proof": program({"X": (64, 2)}, lambda g, x: _repeated(lambda t: g.exp(g.concat(t, t, 1)), x, 10)),
    "many pieces": program({"X": (1, 1)}, lambda g, x: _repeated(lambda t: _squared(g, t), x, 7)),
}  # fmt: skip


@pytest.mark.parametrize("name", HARD)
def test_a_program_equals_itself_and_no_changed_one(name: str) -> None:
    graph = HARD[name]
    verdict = proved(graph, graph)
    theorem = replay(graph, graph, verdict.proof)
    assert all(one.answer is not SympyAnswer.REFUTED for one in crosscheck_theorem(theorem))
    last = graph.outputs[0]
    more = Op(OpKind.SCALE, (last,), Attrs(factor=Fraction(3)))
    other = KernelGraph(graph.inputs, (*graph.ops, more), (len(graph.inputs) + sum(op.results for op in graph.ops),))
    assert isinstance(prove(graph, other), Unknown)
    assert isinstance(prove(other, graph), Unknown)
    assert explain(graph, graph)


def _softened(g: Graph, x: Tensor) -> Tensor:
    """What a rescaling accumulator leaves: the chunks of exp(x - largest), added up."""
    chunks = g.reshape(g.exp(x - g.max(x, 1)), 5, 3, 2)
    return g.reshape(g.reduction(chunks, 1), 5, 2)


EQUAL = {
    "a concatenation either way round": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.max(g.concat(a, b, 1), 1),
        lambda g, a, b: g.max(g.concat(b, a, 1), 1),
    ),
    "both dims, in either order": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.max(g.max(g.concat(a, b, 1), 1), 0),
        lambda g, a, b: g.max(g.max(g.concat(a, b, 1), 0), 1),
    ),
    "twice the same": pair({"A": (4, 3)}, lambda g, a: g.max(g.concat(a, a, 1), 1), lambda g, a: g.max(a, 1)),
    "the largest of all taken out of an exponential": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.reduction(g.exp(g.concat(a, b, 1) - g.max(g.concat(a, b, 1), 1)), 1),
        lambda g, a, b: (g.reduction(g.exp(a), 1) + g.reduction(g.exp(b), 1)) / g.exp(g.max(g.concat(b, a, 1), 1)),
    ),
    "what has no formula, squared": pair(
        {"X": (3, 5)},
        lambda g, x: g.square(g.exp(g.reshape(x, 5, 3))),
        lambda g, x: g.exp(g.scale(g.reshape(x, 5, 3), 2)),
    ),
    "sums of what has no formula": pair(
        {"X": (3, 5), "W": (3, 4), "V": (3, 4)},
        lambda g, x, w, v: g.reshape(x, 5, 3) @ (w + v),
        lambda g, x, w, v: g.reshape(x, 5, 3) @ v + g.reshape(x, 5, 3) @ w,
    ),
    "rows of a running maximum": pair(
        {"A": (2, 6), "B": (3, 6)},
        _running(1, 0),
        lambda g, a, b: _softened(g, g.concat(a, b, 0)),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_programs_with_parts_that_have_no_formula_are_proved(name: str) -> None:
    left, right = EQUAL[name]
    assert differs(left, right) is Decision.SAME
    proved(left, right)
    proved(right, left)


UNEQUAL = {
    "one of the parts left out": pair(
        {"A": (4, 3), "B": (4, 5)}, lambda g, a, b: g.max(g.concat(a, b, 1), 1), lambda g, a, b: g.max(a, 1)
    ),
    "the sum of the largest": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.max(g.concat(a, b, 1), 1),
        lambda g, a, b: g.max(a, 1) + g.max(b, 1),
    ),
    "a factor taken out of the largest": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.max(g.concat(g.scale(a, -1), g.scale(b, -1), 1), 1),
        lambda g, a, b: g.scale(g.max(g.concat(a, b, 1), 1), -1),
    ),
    "another reshape": pair(
        {"X": (3, 5)},
        lambda g, x: g.exp(g.reshape(x, 5, 3)),
        lambda g, x: g.exp(g.transpose(x, 0, 1)),
    ),
    "the same reshape of something else": pair(
        {"X": (3, 5), "Y": (3, 5)},
        lambda g, x, y: g.reshape(x, 5, 3) + g.exp(g.reshape(y, 5, 3)),
        lambda g, x, y: g.reshape(y, 5, 3) + g.exp(g.reshape(x, 5, 3)),
    ),
    "the largest of dims one after the other, with a sum between": pair(
        {"A": (4, 3), "B": (4, 5)},
        lambda g, a, b: g.reduction(g.max(g.concat(a, b, 1), 1), 0),
        lambda g, a, b: g.max(g.reduction(g.concat(a, b, 1), 0), 1),
    ),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_programs_are_not_proved(name: str) -> None:
    left, right = UNEQUAL[name]
    assert differs(left, right) is Decision.DIFFERENT
    assert isinstance(prove(left, right), Unknown)
    assert isinstance(prove(right, left), Unknown)


@pytest.mark.slow
def test_every_program_equals_itself_and_no_proof_is_refused_or_wrong() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for label, left, right in graph_changes.pairs(20, number(200, 500)):
        verdict = prove(left, right)
        found[label == "itself", isinstance(verdict, Equivalent)] += 1
        if isinstance(verdict, Equivalent):
            replay(left, right, verdict.proof)
            assert differs(left, right) is not Decision.DIFFERENT, label
    assert found[True, False] == 0
    assert found[True, True] > number(44, 110)
    assert found[False, True] > number(32, 80)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.integers(min_value=0))
def test_any_program_equals_itself(seed: int) -> None:
    graph = graph_changes.program(random.Random(seed))
    proved(graph, graph)
