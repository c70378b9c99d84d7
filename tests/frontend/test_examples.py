"""An introduction to ``mirage_formal/frontend``: Python code that defines a program, checked line by line."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.support.errors import ShapeError


def test_a_program_is_a_graph_of_operators() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 16), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    assert graph.freeze().ops == (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.EXP, (2,)))


def test_methods_and_operators_of_tensors_build_the_same_graph() -> None:
    frozen = []
    for method in (False, True):
        graph = mf.new_kernel_graph()
        x = graph.new_input(dims=(4, 8), dtype=mf.float16)
        y = graph.new_input(dims=(4, 8), dtype=mf.float16)
        graph.mark_output(x.exp() + y if method else graph.add(graph.exp(x), y))
        frozen.append(graph.freeze())
    assert frozen[0] == frozen[1]


def test_a_mistake_is_reported_at_its_own_line() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    with pytest.raises(ShapeError, match="inner dimensions differ") as raised:
        graph.matmul(x, x)
    assert "test_examples.py" in raised.value.where
