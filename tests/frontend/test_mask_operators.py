"""Masks in the front end: which operators they take, and what is said where they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType


def start() -> tuple[mf.Graph, mf.Tensor, mf.Tensor]:
    graph = mf.new_kernel_graph()
    return graph, graph.new_input((4, 8), name="X"), graph.new_input((4, 8), "bool", name="M")


def test_a_number_is_an_attribute_and_no_operand() -> None:
    graph, x, m = start()
    graph.mark_output(graph.select(m, x, Fraction(-1, 3)))
    graph.mark_output(graph.select(graph.lt(x, 2), 0, x))
    assert graph.freeze().ops == (
        Op(OpKind.SELECT, (1, 0), Attrs(value=Fraction(-1, 3))),
        Op(OpKind.LT, (0,), Attrs(value=Fraction(2))),
        Op(OpKind.LOGICAL_NOT, (3,)),
        Op(OpKind.SELECT, (4, 0), Attrs(value=Fraction(0))),
    )


def test_greater_is_less_turned_around() -> None:
    graph, x, _ = start()
    y = graph.exp(x)
    for made in (graph.gt(x, y), graph.ge(x, y), graph.gt(3, x), graph.ge(3, x)):
        graph.mark_output(graph.cast(made, "float16"))
    kinds = [op for op in graph.freeze().ops if isinstance(op, Op) and op.kind is not OpKind.CAST][1:]
    assert kinds == [
        Op(OpKind.LT, (2, 0)),
        Op(OpKind.LE, (2, 0)),
        Op(OpKind.LT, (0,), Attrs(value=Fraction(3))),
        Op(OpKind.LE, (0,), Attrs(value=Fraction(3))),
    ]


def test_types_of_masks() -> None:
    graph, x, m = start()
    assert m.dtype is DType.BOOL
    assert graph.lt(x, 1).dtype is graph.logical_or(m, m).dtype is graph.max(m, 1).dtype is DType.BOOL
    assert graph.select(m, x, 1).dtype is x.dtype
    assert graph.cast(m, "float32").dtype is mf.float32
    assert graph.transpose(m).shape == (8, 4)
    assert graph.select(graph.max(m, 1), x, 0).shape == (4, 8)


Wrong = Callable[[mf.Graph, mf.Tensor, mf.Tensor], object]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda g, x, m: g.select(x, x, 1), r"select: expected a mask of booleans, got X\[4,8\] of float16"),
        (lambda g, x, m: g.select(m, 1, 0), "select: expected a tensor among the two values, got two numbers"),
        (lambda g, x, m: g.select(m, x, g.cast(x, "float32")), "expected operands of one element type"),
        (lambda g, x, m: g.select(m, m, m), r"expected floating-point operands, got M\[4,8\] bool"),
        (lambda g, x, m: g.select(m, x, float("nan")), "nan"),
        (lambda g, x, m: g.lt(x, float("inf")), "inf"),
        (lambda g, x, m: g.lt(m, 1), r"expected floating-point operands, got M\[4,8\] bool"),
        (lambda g, x, m: g.logical_and(x, m), r"logical_and: expected a mask of booleans, got X\[4,8\]"),
        (lambda g, x, m: g.logical_not(x), r"expected a mask of booleans, got X\[4,8\] float16"),
        (lambda g, x, m: g.add(m, m), r"expected floating-point operands, got M\[4,8\] bool"),
        (lambda g, x, m: g.exp(m), r"expected floating-point operands, got M\[4,8\] bool"),
        (lambda g, x, m: g.mul(x, m), r"expected operands of one element type, got X\[4,8\] float16, M\[4,8\] bool"),
        (lambda g, x, m: g.cast(x, "bool"), "expected a floating-point element type, got bool"),
        (lambda g, x, m: g.round_to(x, "float32"), "round_to: expected float16 or bfloat16, got float32"),
        (lambda g, x, m: g.round_to(m, "float16"), r"expected floating-point operands, got M\[4,8\] bool"),
    ],
)
def test_what_does_not_fit_is_said_with_its_line(wrong: Wrong, message: str) -> None:
    graph, x, m = start()
    with pytest.raises(mf.MirageError, match=message) as raised:
        wrong(graph, x, m)
    assert "test_mask_operators.py:" in str(raised.value)


def test_shapes_that_do_not_broadcast() -> None:
    graph, x, m = start()
    with pytest.raises(mf.ShapeError, match="select"):
        graph.select(m, x, graph.new_input((4, 7)))
    with pytest.raises(mf.ShapeError, match="lt"):
        graph.lt(x, graph.new_input((3, 8)))
