"""Factors behind products, loops split over blocks: equal in float64, proved and replayed; what is almost so is not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.check.equivalence import replay_with_obligations
from mirage_formal.check.partitioning.subgraphs import extract_operators
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import CHANGES, Change, HoistedFactors, apply_rewrite
from mirage_formal.codegen.post_search_rewrites.scale_hoisting import hoist_scales
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference
from tests.codegen.post_search_rewrites.random_loops import mutants, products_with_factors, sums_over_the_loop
from tests.kit.graphs import workloads as w
from tests.kit.sampling import number

H200 = load_target("h200")
#: However slow a form is estimated to be.
ANY = 1e9
#: A round number of each kind of kernel.
SEEDS = range(24)
Make = Callable[[random.Random], KernelGraph]


def kinds(graph: KernelGraph) -> list[OpKind]:
    blocks = [op.graph.ops for op in graph.ops if isinstance(op, GraphDefined)]
    return [op.kind for ops in blocks for op in ops if isinstance(op, Op)]


def arrays(graph: KernelGraph, seed: int) -> list[NDArray[Any]]:
    draw = np.random.default_rng(seed)
    return [
        draw.uniform(0.5, 1.5, item.tensor.shape) * draw.choice([-1, 1], item.tensor.shape) for item in graph.inputs
    ]


def values(graph: KernelGraph, seed: int) -> NDArray[Any]:
    (found,) = float64_reference.run(graph, arrays(graph, seed))
    return found


def proof_of(program: KernelGraph, form: KernelGraph) -> bytes:
    """The proof that a form equals a graph, which the checker replays."""
    verdict = prove(program, form)
    assert isinstance(verdict, Equivalent), verdict
    assert replay_with_obligations(program, form, verdict.proof).theorem.closings
    return verdict.proof


@pytest.mark.parametrize("make", [products_with_factors, sums_over_the_loop])
def test_random_kernels_keep_their_values_and_are_proved(make: Make) -> None:
    found: dict[str, int] = {}
    for seed in SEEDS:
        graph = make(random.Random(seed))
        assert faults(graph) == []
        for change in (c for c in CHANGES[1:] if not c.only_changes_grids):  # see test_tiles
            form = apply_rewrite(graph, change, H200, ANY)
            if form == graph:
                continue
            found[change.name] = found.get(change.name, 0) + 1
            assert faults(form) == []
            assert form == apply_rewrite(graph, change, H200, ANY)
            assert from_json(to_json(form)) == form
            np.testing.assert_allclose(values(form, seed), values(graph, seed), rtol=1e-8, atol=1e-8)
            proof_of(graph, form)
    # Loops have at most so many iterations, and the products of one kind have no factors.
    plain = make is sums_over_the_loop
    most = 8 if plain else 4
    changes = [c for c in CHANGES[1:] if c.parts <= most and not c.products and not c.only_changes_grids]
    changes = [c for c in changes if not (plain and c.factors is not HoistedFactors.NONE)]
    assert set(found) == {change.name for change in changes}
    assert all(count >= 3 for count in found.values()), found


@pytest.mark.parametrize(
    ("make", "change"), [(products_with_factors, Change(HoistedFactors.ALL)), (sums_over_the_loop, Change(parts=2))]
)
def test_what_is_almost_a_form_is_not_proved(make: Make, change: Change) -> None:
    """Neither by the prover, nor by the checker with the proof of the right form."""
    tried = 0
    for seed in range(number(4, 6)):
        graph = make(random.Random(seed))
        form = apply_rewrite(graph, change, H200, ANY)
        if form == graph:
            continue
        proof, wanted = proof_of(graph, form), values(graph, seed)
        for other in mutants(form):
            with np.errstate(all="ignore"):
                if kernel_types(other)[-1] == kernel_types(form)[-1] and np.allclose(values(other, seed), wanted):
                    continue
            tried += 1
            if kernel_types(other)[-1] == kernel_types(form)[-1]:
                assert not isinstance(prove(graph, other), Equivalent)
            with pytest.raises(ProofError):
                replay_with_obligations(graph, other, proof)
    assert tried > number(13, 20)


def test_a_norm_of_keys_is_divided_by_behind_the_product() -> None:
    graph = w.qk_norm_one(b=2, m=16, d=16, n=64, e=16, rows=1, loop=4)
    form = apply_rewrite(graph, Change(HoistedFactors.BEHIND), H200, ANY)
    (op,) = form.ops
    assert isinstance(op, GraphDefined)
    # That of Q, which is the same in every iteration, stays; K is multiplied as it is read.
    assert kinds(form).count(OpKind.RMS_NORM) == 1
    (product, *_) = [item for item in op.graph.ops if isinstance(item, Op) and item.kind is OpKind.MATMUL]
    assert product.operands[1] == 1
    proof_of(w.qk_norm(b=2, m=16, d=16, n=64, e=16), form)


def norm_of_values(n: int = 64, loop: int = 4) -> KernelGraph:
    """exp(Q K) rms_norm(V), where the norm's factor belongs to the dim that the second product sums over."""
    block = w.kernel(
        (0, 1, 2),
        (2, 1, 1),
        loop,
        [w.load((0, None, None)), w.load((0, None, None), 2), w.load((0, None, None), 1)],
        [
            w.op(OpKind.MATMUL, 0, 1),
            w.op(OpKind.SILU, 3),
            w.op(OpKind.RMS_NORM, 2, dim=2),
            w.op(OpKind.MATMUL, 4, 5),
            w.op(OpKind.ACCUM_SUM, 6),
        ],
        [(7, (0, None, None))],
    )
    inputs = (w.tensor("Q", 2, 16, 16), w.tensor("K", 2, 16, n), w.tensor("V", 2, n, 16))
    return KernelGraph(inputs, (block,), (3,))


def test_a_norm_of_values_is_computed_first_and_goes_to_the_other_operand() -> None:
    graph = norm_of_values()
    assert hoist_scales(graph) is None
    form = hoist_scales(graph, H200)
    assert form is not None
    first, turned, op = form.ops
    assert isinstance(first, GraphDefined)
    assert isinstance(turned, Op)
    assert isinstance(op, GraphDefined)
    assert [turned.kind, turned.attrs.shape] == [OpKind.RESHAPE, (2, 1, 64)]
    assert kernel_types(form)[3].dtype is DType.FLOAT32
    assert OpKind.RMS_NORM not in kinds(form)
    proof_of(graph, form)


def test_a_norm_across_tiles_is_no_factor_of_a_whole_tensor() -> None:
    """The norm of a tile of V is over the dim that the loop splits: no kernel before the loop computes it."""
    graph = norm_of_values()
    (op,) = graph.ops
    assert isinstance(op, GraphDefined)
    ops = list(op.graph.ops)
    ops[2] = w.op(OpKind.RMS_NORM, 2, dim=1)
    other = replace(graph, ops=(replace(op, graph=replace(op.graph, ops=tuple(ops))),))
    assert hoist_scales(other, H200) is None


def test_parts_are_float32_and_what_follows_the_loop_follows_their_sum() -> None:
    graph = w.gated_mlp_fused(b=16, k=512, n=512, grid=8, loop=8)
    form = apply_rewrite(graph, Change(parts=4), H200, ANY)
    first, second = form.ops
    assert isinstance(first, GraphDefined)
    assert isinstance(second, GraphDefined)
    types = kernel_types(form)
    assert [types[n].dtype for n in second.operands] == [DType.FLOAT32] * 2
    assert types[-1].dtype is DType.FLOAT16
    assert (first.graph.forloop_range, second.graph.forloop_range) == (2, 4)
    assert OpKind.SILU not in kinds(replace(form, ops=(first,)))
    proof_of(w.gated_mlp(b=16, k=512, n=512), form)


def test_a_split_loop_has_longer_steps_where_these_are_faster() -> None:
    """Sixteen steps of 128 keys, and not 32 of 64; the second kernel takes both parts at once."""
    form = apply_rewrite(w.attention_one(b=32), Change(parts=2), H200, ANY)
    first, second = (op.graph for op in form.ops if isinstance(op, GraphDefined))
    assert (first.forloop_range, second.forloop_range) == (16, 1)
    proof_of(w.attention(b=32), form)


def test_longer_steps_do_not_mix_what_iterations_keep_apart() -> None:
    """A mean over the keys of a step is another one in longer steps."""
    graph = w.attention_one(b=32)
    (op,) = graph.ops
    assert isinstance(op, GraphDefined)
    ops = (
        w.op(OpKind.MATMUL, 0, 1),
        w.op(OpKind.MEAN, 3, dim=2),
        w.op(OpKind.EXP, 3),
        w.op(OpKind.MUL, 5, 4),
        w.op(OpKind.MATMUL, 6, 2),
        w.op(OpKind.ACCUM_SUM, 7),
    )
    block = replace(op.graph, ops=ops, outputs=(replace(op.graph.outputs[0], operand=8),))
    form = apply_rewrite(replace(graph, ops=(replace(op, graph=block),)), Change(parts=2), H200, ANY)
    first, _ = form.ops
    assert isinstance(first, GraphDefined)
    assert first.graph.forloop_range == 32


def test_larger_tiles_do_not_mix_what_a_block_keeps_apart() -> None:
    """A mean over a tile of columns is another one in larger tiles."""
    for seed in range(200):
        graph = sums_over_the_loop(random.Random(seed))
        (op,) = graph.ops
        assert isinstance(op, GraphDefined)
        last = op.graph.ops[-1]
        if op.graph.grid[0] == 1 or last.operands[0] == last.operands[-1]:
            continue
        number = len(op.graph.inputs) + len(op.graph.ops) - 1
        mean = w.op(OpKind.MEAN, number, dim=1)
        block = replace(
            op.graph,
            ops=(*op.graph.ops, mean, w.op(OpKind.SUB, number, number + 1)),
            outputs=(replace(op.graph.outputs[0], operand=number + 2),),
        )
        tiled = replace(graph, ops=(replace(op, graph=block),))
        form = apply_rewrite(tiled, Change(parts=2), H200, ANY)
        np.testing.assert_allclose(values(form, seed), values(tiled, seed), rtol=1e-8, atol=1e-8)
        return
    pytest.fail("expected a kernel with columns in several tiles")


@pytest.mark.parametrize(
    "graph",
    [
        w.ntrans_fused(n=512),  # no loop
        w.rmsnorm(b=4, k=64, n=64),  # no kernel of its own
        w.attention_split(b=2, m=16, d=16, n=64, e=16, split=2, loop=2),  # all axes of its grid are used
    ],
)
def test_where_there_is_no_form_the_graph_stays(graph: KernelGraph) -> None:
    for op in range(len(graph.ops)):
        piece = extract_operators(graph, [op]).program
        assert apply_rewrite(piece, Change(parts=8), H200, ANY) == piece


def test_a_kernel_with_blocks_enough_is_not_split() -> None:
    loop = [w.load((0, None, None), 1)]
    body = [w.op(OpKind.SQUARE, 0), w.op(OpKind.ACCUM_SUM_LAST, 1)]
    for rows, split in ((4, True), (4096, False)):
        kernel = w.kernel((0,), (rows, 1, 1), 8, loop, body, [(2, (0, None, None))])
        graph = KernelGraph((w.tensor("X", rows, 4096),), (kernel,), (1,))
        assert (apply_rewrite(graph, Change(parts=8), H200, ANY) != graph) is split


def test_a_form_that_is_estimated_slow_is_left_out() -> None:
    graph = w.rmsnorm_fused(b=2, k=64, n=64, grid=4, loop=4)
    assert apply_rewrite(graph, Change(parts=2), H200, ANY) != graph
    assert apply_rewrite(graph, Change(parts=2), H200, 1.0) == graph
