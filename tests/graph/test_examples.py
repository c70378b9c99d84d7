"""An introduction to ``mirage_formal/graph``: a µGraph is a frozen value, with types, a text and a canonical form."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json, to_json
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import faults, kernel_types


def tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


#: exp(X W). Operands are numbers of tensors: 0 is X, 1 is W, 2 is the product, 3 is its exponential.
PROGRAM = KernelGraph(
    inputs=(tensor("X", 4, 8), tensor("W", 8, 16)),
    ops=(Op(OpKind.MATMUL, (0, 1)), Op(OpKind.EXP, (2,))),
    outputs=(3,),
)


def test_types_are_inferred_for_every_tensor() -> None:
    assert [t.shape for t in kernel_types(PROGRAM)] == [(4, 8), (8, 16), (4, 16), (4, 16)]


def test_the_verifier_reports_operands_that_do_not_fit() -> None:
    assert faults(PROGRAM) == []
    (fault,) = faults(replace(PROGRAM, ops=(Op(OpKind.MATMUL, (1, 0)), Op(OpKind.EXP, (2,)))))
    assert "inner dimensions differ" in str(fault)


def test_the_text_names_tensors_by_number() -> None:
    assert "d2 = matmul(d0, d1)" in to_text(PROGRAM)


def test_a_graph_survives_a_round_trip_through_json() -> None:
    assert from_json(to_json(PROGRAM)) == PROGRAM


def test_the_digest_ignores_the_order_of_independent_operators() -> None:
    first = replace(PROGRAM, ops=(Op(OpKind.EXP, (0,)), Op(OpKind.EXP, (1,)), Op(OpKind.MATMUL, (2, 3))), outputs=(4,))
    second = replace(PROGRAM, ops=(Op(OpKind.EXP, (1,)), Op(OpKind.EXP, (0,)), Op(OpKind.MATMUL, (3, 2))), outputs=(4,))
    assert first != second
    assert digest(first) == digest(second) != digest(PROGRAM)
