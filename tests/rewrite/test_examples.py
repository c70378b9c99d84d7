"""An introduction to ``mirage_formal/rewrite``: builders make graphs operator by operator, rules replace operators."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor
from mirage_formal.rewrite.failure import MatchFailure
from mirage_formal.rewrite.graph_builders import GraphBuilder, KernelGraphBuilder
from mirage_formal.rewrite.replacement_rules import apply_rules
from tests.kit.graphs.workloads import tensor

X = tensor("X", 4, 8)


def test_a_builder_infers_types_and_numbers_tensors() -> None:
    new = KernelGraphBuilder((X, tensor("W", 8, 16)))
    product = new.emit(OpKind.MATMUL, 0, 1)
    assert product == 2
    assert new.types[product].shape == (4, 16)
    assert new.finish([product]).ops == (Op(OpKind.MATMUL, (0, 1)),)


def test_operands_that_do_not_fit_end_the_rewriting() -> None:
    with pytest.raises(MatchFailure, match="inner dimensions differ"):
        KernelGraphBuilder((X,)).emit(OpKind.MATMUL, 0, 0)


def test_a_rule_replaces_one_operator() -> None:
    def square_as_product(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
        return new.emit(OpKind.MUL, operands[0], operands[0]) if op.kind is OpKind.SQUARE else None

    new = KernelGraphBuilder((X,))
    numbers = apply_rules(new, [Op(OpKind.EXP, (0,)), Op(OpKind.SQUARE, (1,))], square_as_product)
    assert new.finish([numbers[2]]).ops == (Op(OpKind.EXP, (0,)), Op(OpKind.MUL, (1, 1)))
