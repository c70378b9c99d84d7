"""A graph that has a value is never called one that has none: random graphs over all operators, beside float64.

The graph is compared with itself where inputs are multiplied by 3 and divided by it, so that nothing of the two is the
same but what they compute.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import numpy as np
from numpy.typing import NDArray

from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.graph import KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import SPECS, Attrs, Level, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from tests.kit.graphs.graph_strategies import attributes, kernel_graphs
from tests.kit.sampling import number

UNARY = tuple(kind for kind, spec in SPECS.items() if Level.KERNEL in spec.levels and spec.min_arity == 1)
#: What the prover says of a divisor or a radicand that has no value.
NO_VALUE = ("is 0 everywhere", "negative everywhere")


@st.composite
def chains(draw: st.DrawFn) -> KernelGraph:
    """A mean, and operators of one operand behind it."""
    graph = draw(kernel_graphs(max_ops=1, kinds=(OpKind.MEAN,), blocks=False))
    for _ in range(draw(st.integers(1, 6))):
        types = kernel_types(graph)
        kind = draw(st.sampled_from(UNARY))
        op = Op(kind, (len(types) - 1,), attributes(draw, kind, types[-1].shape, 1))
        longer = KernelGraph(graph.inputs, (*graph.ops, op), (len(types),))
        graph = graph if faults(longer) else longer
    return graph


def rescaled(graph: KernelGraph) -> KernelGraph:
    """The same graph, of inputs that are multiplied by 3 and divided by it."""
    count = len(graph.inputs)
    ops: list[KernelOp] = []
    for number_, item in enumerate(graph.inputs):
        if item.tensor.dtype is DType.BOOL:
            ops.append(Op(OpKind.SCALE, (number_,), Attrs(factor=Fraction(1))))
            continue
        ops.append(Op(OpKind.SCALE, (number_,), Attrs(factor=Fraction(3))))
        ops.append(Op(OpKind.SCALE, (count + len(ops) - 1,), Attrs(factor=Fraction(1, 3))))
    moved = {n: count + 2 * n + 1 for n in range(count)}
    added = len(ops)
    for op in graph.ops:
        ops.append(replace(op, operands=tuple(moved.get(n, n + added) for n in op.operands)))
    return KernelGraph(graph.inputs, tuple(ops), tuple(moved.get(n, n + added) for n in graph.outputs))


def tensors(graph: KernelGraph, given: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Every tensor that its operators compute."""
    whole = replace(graph, outputs=tuple(range(len(graph.inputs), len(kernel_types(graph)))))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [np.asarray(found, np.float64) for found in float64_reference.run(whole, given)]


def has_a_value(graph: KernelGraph) -> bool:
    """Whether at one of some points all tensors are finite, and not by what was rounded in a difference that is 0."""
    first = len(graph.inputs) * 2
    for seed in range(6):
        random = np.random.default_rng(seed)
        given = []
        for item in graph.inputs:
            x = random.standard_normal(item.tensor.shape)
            given.append(x if seed % 3 == 0 else np.abs(x) if seed % 3 == 1 else -np.abs(x))
        mine, theirs = tensors(graph, given), tensors(rescaled(graph), given)[first:]
        if all(np.isfinite(x).all() and np.allclose(x, y, rtol=1e-6) for x, y in zip(mine, theirs, strict=True)):
            return True
    return False


def check(graph: KernelGraph) -> None:
    hypothesis.assume(all(item.tensor.dtype is not DType.BOOL for item in graph.inputs))
    other = rescaled(graph)
    assert not faults(other)
    verdict = prove(graph, other)
    match verdict:
        case Equivalent():
            replay_composed(graph, other, verdict.proof)
        case Unknown(reason):
            assert not any(text in reason for text in NO_VALUE) or not has_a_value(graph), reason


@hypothesis.given(chains())
@hypothesis.settings(max_examples=number(150, 3000), deadline=None)
def test_chains_over_a_mean(graph: KernelGraph) -> None:
    check(graph)


@hypothesis.given(kernel_graphs(max_ops=6, blocks=False))
@hypothesis.settings(max_examples=number(100, 3000), deadline=None)
def test_graphs_over_all_operators(graph: KernelGraph) -> None:
    check(graph)
