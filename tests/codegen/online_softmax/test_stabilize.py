"""The running-maximum form: it is proved, it does not overflow, and what is almost it is not proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_formal as mf
from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.check.proof.replay import replay
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm, stabilize
from mirage_formal.graph.canonical import canonical
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, ThreadDefined
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.thread import fuse_threads
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.float64_reference import FloatDomain
from mirage_formal.semantics.interpreter import evaluate
from tests.kit.graphs.softmax_forms import TINY, attention_inputs, built, candidates, one, parts_in_rows, split, tiny
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.example_kernels import alone, laid_out, planned, stored
from tests.kit.proofs.claims import Saved, Shapes, kernel, on, program


def operators(graph: KernelGraph) -> Iterator[Op]:
    for op in graph.ops:
        if isinstance(op, Op):
            yield op
        else:
            for inner in op.graph.ops:
                yield from inner.graph.ops if isinstance(inner, ThreadDefined) else (inner,)


def stable(graph: KernelGraph) -> KernelGraph:
    found = stabilize(graph)
    assert isinstance(found, KernelGraph), found
    return found


def proved(left: KernelGraph, right: KernelGraph) -> bytes | None:
    verdict = prove(left, right)
    return verdict.proof if isinstance(verdict, Equivalent) else None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("b", [1, 8, 16])
def test_every_form_of_attention_has_a_stable_form_that_is_proved(b: int) -> None:
    count = 0
    for name, inputs, norms, body in candidates(b):
        wanted, graph = built(inputs, norms, body)
        found = stable(graph)
        assert found != graph, name
        assert faults(found) == [], name
        assert stabilize(found) == found, name
        proof = proved(wanted, found)
        assert proof is not None, name
        assert replay(wanted, found, proof).closings, name
        if b == 1:
            fused = fuse_threads(found)
            proof = proved(wanted, fused)
            assert proof is not None, name
            assert stabilize(fused) == fused, name
            assert from_json(to_json(found)) == found, name
            assert proved(wanted, canonical(found)) is not None, name
        count += 1
    assert count == 57


def test_partial_maxima_lie_beside_the_parts_they_belong_to() -> None:
    _, graph = built(attention_inputs(), "", split())
    first, second = stable(graph).ops
    assert isinstance(first, GraphDefined)
    assert isinstance(second, GraphDefined)
    assert first.graph.grid == (2, 2, 32)
    assert [saver.omap for saver in first.graph.outputs] == [(0, 1, 0)] * 3
    kinds = [op.kind for op in first.graph.ops if isinstance(op, Op)]
    assert kinds.count(OpKind.RUNNING_MAX) == 1
    assert {OpKind.ACCUM_RESCALED_SUM, OpKind.ACCUM_RESCALED_SUM_LAST} <= set(kinds)
    assert OpKind.ACCUM_SUM not in kinds
    assert [op.kind for op in second.graph.ops if isinstance(op, Op)].count(OpKind.MAX) == 1
    # Written in float16, a maximum would not be the number that was subtracted.
    last = first.graph.ops[first.graph.outputs[2].operand - len(first.graph.inputs) - 1]
    assert last == Op(OpKind.CAST, last.operands, Attrs(dtype=mf.float32))


def test_one_kernel_needs_no_further_result() -> None:
    _, graph = built(attention_inputs(), "", one())
    (op,) = stable(graph).ops
    assert isinstance(op, GraphDefined)
    assert len(op.graph.outputs) == 1
    assert OpKind.ACCUM_MAX not in {inner.kind for inner in operators(stable(graph))}


def large(inputs: Shapes, seed: int, level: int = 100) -> list[NDArray[Any]]:
    """Inputs whose logits are whole numbers around a level: exact in float32."""
    draw = np.random.default_rng(seed)
    q, k, v = (draw.integers(-2, 3, size=shape).astype(np.float64) for shape in inputs.values())
    q[..., 0] = 10.0
    k[:, 0, :] = level // 10 + draw.integers(-1, 2, size=k[:, 0, :].shape)
    return [q, k, v + 0.5]


@pytest.mark.parametrize("level", [100, -200])
@pytest.mark.parametrize("case", TINY)
def test_it_does_not_overflow_in_float32(case: str, level: int) -> None:
    inputs, body = tiny(case)
    wanted, graph = built(inputs, "", body)
    found = stable(graph)
    assert proved(wanted, found) is not None
    for seed in range(3):
        arrays = large(inputs, seed, level)
        (exact,) = float64_reference.run(wanted, arrays)
        narrow: list[Any] = [array.astype(np.float32) for array in arrays]
        with np.errstate(all="ignore"):
            (before,) = evaluate(graph, narrow, FloatDomain())
        with np.errstate(all="raise", under="ignore"):
            (after,) = evaluate(found, narrow, FloatDomain())
        assert before.dtype == after.dtype == np.float32
        assert not np.isfinite(before).all()
        assert np.allclose(after, exact, rtol=1e-6, atol=1e-6)


def normalised(g: Graph, x: Tensor) -> Tensor:
    """A softmax in predefined operators, whose numerator is computed apart from what is summed."""
    return g.exp(x) / g.reduction(g.exp(x), 1)


def in_two_kernels(g: Graph, x: Tensor) -> Tensor:
    """Sums of exponentials by one kernel; quotients, of a tile that is read again, by another."""

    def sums(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.forloop_accum(t.exp(x), "sum"), on(0)

    def quotients(t: BlockBuilder, x: BlockTensor, total: BlockTensor) -> Saved:
        return t.forloop_accum(t.exp(x) / total), on(0, 1)

    total = kernel(g, (4,), [(x, on(0), 1)], sums, 4)
    return kernel(g, (4, 2), [(x, on(0, 1)), (total, on(0))], quotients)


def log_of_a_sum(g: Graph, x: Tensor) -> Tensor:
    return g.log(g.reduction(g.exp(x), 1))


def log_in_a_loop(g: Graph, x: Tensor) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.log(t.forloop_accum(t.exp(x), "sum")), on(0)

    return kernel(g, (4,), [(x, on(0), 1)], body, 4)


def log_of_parts(g: Graph, x: Tensor) -> Tensor:
    """Parts of each sum by several blocks; a second kernel adds them and takes the logarithm."""

    def parts(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.forloop_accum(t.exp(x), "sum"), on(0, 1)

    def joined(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.log(t.forloop_accum(t.reduction(x, 1))), on(0)

    return kernel(g, (4,), [(kernel(g, (4, 4), [(x, on(0, 1), 1)], parts, 2), on(0))], joined)


def less_the_log(g: Graph, x: Tensor) -> Tensor:
    return g.sub(x, log_of_a_sum(g, x))


def at_large_scores(graph: KernelGraph) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Inputs whose exponentials overflow, vanish or do both, and what a graph of one output makes of them."""
    for least, most in ((300, 900), (-900, -300), (-900, 900)):
        given = np.random.default_rng(0).integers(least, most, size=(8, 64)).astype(np.float32)
        arrays: list[Any] = [given]
        with np.errstate(all="raise", under="ignore"):
            (after,) = evaluate(graph, arrays, FloatDomain())
        yield given, after


@pytest.mark.parametrize(
    ("body", "plain", "exact"),
    [
        (log_of_a_sum, log_of_a_sum, lambda x, log: log),
        (log_in_a_loop, log_of_a_sum, lambda x, log: log),
        (log_of_parts, log_of_a_sum, lambda x, log: log),
        (less_the_log, less_the_log, lambda x, log: x - log),
        (
            lambda g, x: g.square(log_in_a_loop(g, x)),
            lambda g, x: g.square(log_of_a_sum(g, x)),
            lambda x, log: log * log,
        ),
    ],
)
def test_a_shift_leaves_a_logarithm_as_a_term(
    body: Callable[..., Tensor], plain: Callable[..., Tensor], exact: Callable[..., NDArray[Any]]
) -> None:
    inputs = {"X": (8, 64)}
    wanted, graph = program(inputs, plain), program(inputs, body)
    found = stable(graph)
    assert proved(wanted, found) is not None
    for given, after in at_large_scores(found):
        most_of = given.max(1, keepdims=True).astype(np.float64)
        log = most_of + np.log(np.exp(given - most_of).sum(1, keepdims=True))
        np.testing.assert_allclose(after, exact(given, log), rtol=1e-5, atol=1e-4)


def less_the_log_in_one_kernel(g: Graph, x: Tensor) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.forloop_accum(x - t.log(t.reduction(t.exp(x), 1))), on(0)

    return kernel(g, (4,), [(x, on(0))], body)


@pytest.mark.parametrize("body", [less_the_log, less_the_log_in_one_kernel])
def test_a_logarithm_keeps_its_value_beside_large_scores(body: Callable[..., Tensor]) -> None:
    """2^100 - (2^100 + log 64) is 0 in floating point; less the maximum first, it is -log 64."""
    wanted, graph = program({"X": (8, 64)}, less_the_log), program({"X": (8, 64)}, body)
    found = stable(graph)
    assert proved(wanted, found) is not None
    arrays: list[Any] = [np.full((8, 64), 2.0**100, np.float32)]
    (after,) = evaluate(found, arrays, FloatDomain())
    np.testing.assert_allclose(after, -np.log(64), rtol=1e-6)


def entropy(g: Graph, x: Tensor) -> Tensor:
    """The sum of p log p, p a softmax that is written as the exponential of its logarithm."""
    log = less_the_log(g, x)
    return g.reduction(g.exp(log) * log, 1)


def entropy_by_hand(g: Graph, x: Tensor) -> Tensor:
    """Likewise, with the largest score put back behind the logarithm."""
    most = g.max(x, 1)
    log = x - (most + log_of_a_sum(g, x - most))
    return g.reduction(g.exp(log) * log, 1)


def entropy_in_a_loop(g: Graph, x: Tensor) -> Tensor:
    """Likewise, in a kernel that reads the scores again; the logarithm is from another."""

    def body(t: BlockBuilder, x: BlockTensor, total: BlockTensor) -> Saved:
        log = t.sub(x, total)
        return t.forloop_accum(t.exp(log) * log, "sum"), on(0)

    return kernel(g, (4,), [(x, on(0), 1), (log_of_parts(g, x), on(0))], body, 4)


@pytest.mark.parametrize("body", [entropy, entropy_by_hand, entropy_in_a_loop])
def test_an_exponential_of_the_logarithm_of_a_softmax_needs_no_maximum(body: Callable[..., Tensor]) -> None:
    inputs = {"X": (8, 64)}
    wanted, graph = program(inputs, entropy), program(inputs, body)
    found = stable(graph)
    assert faults(found) == []
    assert proved(wanted, found) is not None
    for given, after in at_large_scores(found):
        log = given - given.max(1, keepdims=True).astype(np.float64)
        log -= np.log(np.exp(log).sum(1, keepdims=True))
        np.testing.assert_allclose(after, (np.exp(log) * log).sum(1, keepdims=True), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "other",
    [
        lambda g, x: g.log(g.reduction(g.exp(g.scale(x, 2)), 1)),
        lambda g, x: g.log(g.reduction(g.exp(x) * x, 1)),
        lambda g, x: g.reduction(g.exp(x), 1),
        lambda g, x: g.scale(log_of_a_sum(g, x), Fraction(1, 2)),
    ],
)
def test_less_anything_else_it_needs_one(other: Callable[..., Tensor]) -> None:
    """A maximum does not help either: the sum itself is the result."""
    graph = program({"X": (8, 64)}, lambda g, x: g.reduction(g.exp(x - other(g, x)), 1))
    assert isinstance(stabilize(graph), NoStableForm)


@pytest.mark.parametrize("body", [normalised, in_two_kernels])
def test_a_numerator_that_is_not_summed_gets_the_maximum_of_the_sum(body: Callable[..., Tensor]) -> None:
    inputs = {"X": (8, 64)}
    wanted, graph = program(inputs, normalised), program(inputs, body)
    found = stable(graph)
    assert proved(wanted, found) is not None
    given = np.random.default_rng(0).integers(-900, 900, size=(8, 64)).astype(np.float32)
    exact = np.exp(given - given.max(1, keepdims=True))
    arrays: list[Any] = [given]
    with np.errstate(all="raise", under="ignore"):
        (after,) = evaluate(found, arrays, FloatDomain())
    np.testing.assert_allclose(after, exact / exact.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)


def lowered(graph: KernelGraph, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the kernels' Programs compute, with device tensors of the graph's element types."""
    types = kernel_types(graph)
    values = [stored(array, item.tensor.dtype) for array, item in zip(arrays, graph.inputs, strict=True)]
    for op in graph.ops:
        assert isinstance(op, GraphDefined)
        alike = alone(op, [types[n] for n in op.operands])
        _, made = planned(alike)
        given = [laid_out(values[n], item) for n, item in zip(op.operands, alike.inputs, strict=True)]
        for found in program_interpreter.run(made, given):
            tensor = types[len(values)]
            values.append(stored(np.asarray(found, np.float64).reshape(tensor.shape), tensor.dtype))
    return [values[n] for n in graph.outputs]


@pytest.mark.parametrize(
    ("rows", "body"),
    [(32, one(loop=2, columns=1, rows=2)), (32, split(parts=4)), (1, parts_in_rows(parts=4, loop=2, second=2))],
)
def test_lowered_it_stays_right_beyond_the_range_of_float16(rows: int, body: Callable[..., Tensor]) -> None:
    inputs = {"Q": (2, rows, 16), "K": (2, 16, 128), "V": (2, 128, 16)}
    wanted, graph = built(inputs, "", body)
    draw = np.random.default_rng(0)
    arrays = [stored(draw.standard_normal(shape) * 4, mf.float16) for shape in inputs.values()]
    assert np.abs(arrays[0] @ arrays[1]).max() > 100
    (exact,) = float64_reference.run(wanted, arrays)
    (found,) = lowered(stable(graph), arrays)
    assert np.abs(found - exact).max() < 2e-3 * np.abs(exact).max()


def changed(graph: KernelGraph, kernel_index: int, block: BlockGraph) -> KernelGraph:
    ops = list(graph.ops)
    op = ops[kernel_index]
    assert isinstance(op, GraphDefined)
    ops[kernel_index] = replace(op, graph=block)
    return replace(graph, ops=tuple(ops))


def wrong_operators(op: Op, operands: int) -> Iterator[Op]:
    """Operators that somebody could have written instead."""
    plain = {OpKind.ACCUM_RESCALED_SUM: OpKind.ACCUM_SUM, OpKind.ACCUM_RESCALED_SUM_LAST: OpKind.ACCUM_SUM_LAST}
    if op.kind in plain:
        yield Op(plain[op.kind], op.operands[:1])
    if op.kind in (OpKind.RUNNING_MAX, OpKind.MAX):
        yield from (Op(op.kind, op.operands, Attrs(dim=dim)) for dim in range(3) if dim != op.attrs.dim)
    if op.kind is OpKind.ACCUM_MAX:
        yield Op(OpKind.ACCUM_SUM, op.operands)
    for place, _ in enumerate(op.operands):
        for other in range(operands):
            yield replace(op, operands=(*op.operands[:place], other, *op.operands[place + 1 :]))


def mutants(graph: KernelGraph) -> Iterator[KernelGraph]:
    """Every well-formed graph with one operator, operand or map changed, or with a factor used twice."""
    for index, op in enumerate(graph.ops):
        if not isinstance(op, GraphDefined):
            continue
        block, count = op.graph, len(op.graph.inputs)
        for place, inner in enumerate(block.ops):
            assert isinstance(inner, Op)
            for wrong in wrong_operators(inner, count):
                if wrong != inner:
                    ops = (*block.ops[:place], wrong, *block.ops[place + 1 :])
                    yield changed(graph, index, replace(block, ops=ops))
            if inner.kind is OpKind.ACCUM_RESCALED_SUM:
                squared = Op(OpKind.SQUARE, (inner.operands[1],))
                twice = replace(inner, operands=(inner.operands[0], count))
                later = [
                    replace(o, operands=tuple(n + (n >= count) for n in o.operands)) for o in block.ops[place + 1 :]
                ]
                ops = (*block.ops[:place], squared, twice, *later)
                savers = tuple(replace(s, operand=s.operand + (s.operand >= count)) for s in block.outputs)
                yield changed(graph, index, replace(block, ops=ops, outputs=savers))
            count += inner.results
        for place, iterator in enumerate(block.inputs):
            for axis in range(3):
                for dim in (None, 0, 1, 2):
                    x, y, z = (dim if a == axis else d for a, d in enumerate(iterator.imap))
                    imap = (x, y, z)
                    inputs = (*block.inputs[:place], InputIterator(imap, iterator.fmap), *block.inputs[place + 1 :])
                    if imap != iterator.imap:
                        yield changed(graph, index, replace(block, inputs=inputs))


@pytest.mark.parametrize(
    ("case", "least"), [("one", 30), ("split", 60), ("parts in rows", 60), ("a loop over the parts", 60)]
)
def test_what_is_almost_it_is_not_proved(case: str, least: int) -> None:
    inputs, body = tiny(case)
    wanted, graph = built(inputs, "", body)
    arrays = large(inputs, 1, 0)
    (exact,) = float64_reference.run(wanted, arrays)
    different = 0
    for mutant in mutants(stable(graph)):
        if faults(mutant):
            continue
        (got,) = float64_reference.run(mutant, arrays)
        if not (got.shape == exact.shape and np.allclose(got, exact, rtol=1e-9, atol=1e-12)):
            different += 1
            assert got.shape != exact.shape or proved(wanted, mutant) is None
    assert different >= least


def test_exponentials_that_are_not_summed_stay() -> None:
    gated = program({"X": (8, 64), "W": (64, 32), "U": (64, 32)}, lambda g, x, w, u: g.silu(x @ w) * (x @ u))
    plain = program({"X": (8, 64)}, lambda g, x: g.exp(x) / (g.exp(g.scale(x, 2)) + g.exp(x)))
    assert stabilize(gated) is gated
    assert stabilize(plain) is plain


def test_thread_graphs_of_other_kernels_are_kept() -> None:
    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def twice(t: BlockBuilder, q: BlockTensor) -> Saved:
            return t.scale(t.square(t.forloop_accum(q)), 2), on(0)

        q = kernel(g, (q.shape[0],), [(q, on(0))], twice)
        return one(loop=2, columns=2, rows=2)(g, q, k, v)

    inputs = {"Q": (2, 4, 2), "K": (2, 2, 8), "V": (2, 8, 2)}
    graph = fuse_threads(program(inputs, body))
    (first, *_) = graph.ops
    assert isinstance(first, GraphDefined)
    assert any(isinstance(op, ThreadDefined) for op in first.graph.ops)
    assert stable(graph).ops[0] == graph.ops[0]


def test_a_thread_graph_around_the_exponential_is_dissolved() -> None:
    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def inner(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(t.scale(q @ k, 0.125))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (q.shape[0],), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], inner, 2)

    inputs = {"Q": (2, 4, 2), "K": (2, 2, 8), "V": (2, 8, 2)}
    graph = fuse_threads(program(inputs, body))
    (first, *_) = graph.ops
    assert isinstance(first, GraphDefined)
    assert any(isinstance(op, ThreadDefined) for op in first.graph.ops)
    found = stable(graph)
    assert OpKind.RUNNING_MAX in {op.kind for op in operators(found)}
    assert proved(graph, found) is not None
    assert proved(graph, fuse_threads(found)) is not None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda g, x: g.reduction(g.exp(x), 1), "result of the program"),
        (lambda g, x: g.sqrt(g.reduction(g.exp(x), 1)), "sqrt"),
        (lambda g, x: g.reduction(g.exp(x), 1) / g.reduction(g.exp(g.scale(x, 2)), 1), "same exponentials"),
        (lambda g, x: x / g.reduction(g.exp(x), 1), "same exponentials"),
        (lambda g, x: g.reduction(g.exp(x), 1) + g.reduction(x, 1), "add"),
        (lambda g, x: g.reduction(g.reshape(g.exp(x), 16, 4), 1), "rearranged"),
    ],
)
def test_what_has_no_stable_form_is_said(body: Callable[..., Tensor], reason: str) -> None:
    found = stabilize(program({"X": (8, 8)}, body))
    assert isinstance(found, NoStableForm)
    assert reason in found.reason
