"""Builders of graphs infer types, share equal operators, and number inputs first; rules replace single operators."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import block_types, faults
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder, GraphBuilder, KernelGraphBuilder
from mirage_formal.rewrite.replacement_rules import apply_rules
from mirage_formal.search.concatenated_inputs import sink_pads_to_inputs
from mirage_formal.support.errors import GraphError
from tests.kit.graphs.workloads import gated_mlp_fused, load, op, tensor

K = OpKind
N = None
INPUTS = (tensor("X", 4, 8), tensor("W", 8, 8))


def test_equal_operators_are_added_once_unless_said_otherwise() -> None:
    for share, count in ((frozenset(OpKind), 1), (frozenset({K.SQRT}), 2), (frozenset[OpKind](), 2)):
        new = KernelGraphBuilder(INPUTS, share)
        first, second = new.emit(K.EXP, 0), new.emit(K.EXP, 0)
        assert (len(new.ops), first == second) == (count, count == 1)
        assert [new.maker(first), new.maker(0)] == [op(K.EXP, 0), None]


def test_results_have_the_types_of_the_rules_and_what_does_not_fit_is_no_match() -> None:
    new = KernelGraphBuilder(INPUTS)
    product = new.emit(K.MATMUL, 0, 1)
    assert new.types[new.cast(product, DType.FLOAT32)] == DTensor((4, 8), DType.FLOAT32)
    assert new.cast(product, DType.FLOAT16) == product
    with pytest.raises(MatchFailure, match="inner dimensions differ"):
        new.emit(K.MATMUL, 1, 0)
    new.most = len(new.ops)
    assert new.emit(K.MATMUL, 0, 1) == product  # it is there
    with pytest.raises(MatchFailure, match="at most 2"):
        new.emit(K.EXP, product)


def test_a_finished_kernel_graph_has_no_dead_operators_and_distinct_outputs() -> None:
    new = KernelGraphBuilder(INPUTS)
    dead, kept = new.emit(K.EXP, 0), new.emit(K.SQRT, 1)
    assert new.finish([kept]) == KernelGraph(INPUTS, (op(K.SQRT, 1),), (2,))
    assert len(new.finish([kept, dead]).ops) == 2
    with pytest.raises(MatchFailure, match="distinct"):
        new.finish([kept, kept])


def test_a_kernel_on_other_tensors_is_typed_again() -> None:
    graph = gated_mlp_fused(b=16, k=64, n=64, grid=2, loop=2)
    (kernel,) = graph.ops
    new = KernelGraphBuilder(graph.inputs, ())
    first, second = (new.place(kernel, kernel.operands) for _ in range(2))
    assert [*first, *second] == [3, 4]
    assert new.types[3] == new.types[4]
    assert not faults(new.finish([3, 4]))
    with pytest.raises(GraphError):
        new.place(kernel, reversed(kernel.operands))


def test_iterators_that_are_added_late_are_numbered_before_operators() -> None:
    x, w = (item.tensor for item in INPUTS)
    like = gated_mlp_fused(b=16, k=64, n=64, grid=2, loop=2).ops[0]
    assert isinstance(like, GraphDefined)
    new = BlockGraphBuilder(like.graph, [load((1, N, N))], [x])
    root = new.emit(K.SQRT, 0)
    late = new.read(load((1, N, N)), w)
    total = new.emit(K.ACCUM_SUM, new.emit(K.MATMUL, root, new.read(load((N, N, N)), DTensor((4, 4), DType.FLOAT16))))
    block = new.finish([OutputSaver(new.emit(K.MUL, total, total), (1, N, N))])
    assert block.inputs == (load((1, N, N)), load((1, N, N)), load((N, N, N)))
    assert block.ops == (op(K.SQRT, 0), op(K.MATMUL, 3, 2), op(K.ACCUM_SUM, 4), op(K.MUL, 5, 5))
    assert len(block_types(block, (x, w, DTensor((4, 4), DType.FLOAT16)))) == 7
    assert new.backward_slice(late) == ((late,), ())
    read, ops = new.backward_slice(total)
    assert (len(read), ops) == (2, (op(K.SQRT, 0), op(K.MATMUL, 2, 1), op(K.ACCUM_SUM, 3)))
    with pytest.raises(MatchFailure, match="imap x"):
        new.read(load((0, N, N)), DTensor((3, 8), DType.FLOAT16))


def test_the_first_rule_that_matches_replaces_an_operator() -> None:
    def double(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
        return new.emit(K.ADD, *operands, *operands) if op.kind is K.EXP else None

    def drop(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
        return operands[0] if op.kind in (K.EXP, K.SQRT) else None

    ops = (op(K.EXP, 0), op(K.SQRT, 2), op(K.SQUARE, 3))
    for rules, expected, number in (
        ((), ops, [0, 1, 2, 3, 4]),
        ((double,), (op(K.ADD, 0, 0), *ops[1:]), [0, 1, 2, 3, 4]),
        ((double, drop), (op(K.ADD, 0, 0), op(K.SQUARE, 2)), [0, 1, 2, 2, 3]),
        ((drop, double), (op(K.SQUARE, 0),), [0, 1, 0, 0, 2]),
    ):
        new = KernelGraphBuilder(INPUTS)
        assert apply_rules(new, ops, *rules) == number
        assert tuple(new.ops) == expected


def test_only_what_does_not_apply_or_fit_is_none() -> None:
    @none_on_match_failure
    def fails(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 1

    assert [fails(None), fails(MatchFailure("no")), fails(GraphError("shapes"))] == [1, None, None]
    with pytest.raises(KeyError):
        fails(KeyError("a bug"))


def test_outputs_that_become_one_tensor_are_left_as_they_are() -> None:
    graph = KernelGraph(INPUTS[:1], (op(K.EXP, 0), op(K.EXP, 0)), (1, 2))
    assert sink_pads_to_inputs(graph) == graph
