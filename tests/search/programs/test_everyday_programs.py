"""Functions, extremes and constants of everyday programs: both engines find the same, all of it proved."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.exhaustive.applications import program_attributes
from tests.kit.graphs.workloads import K, op, tensor
from tests.search.engine_comparison import compare, program, tiny

SMALL = (tensor("X", 2, 4), tensor("Y", 2, 4))
PROGRAMS: dict[str, tuple[KernelGraph, int]] = {
    "tanh of a shifted number": (program(SMALL[:1], op(K.SHIFT, 0, shift=Fraction(1, 3)), op(K.TANH, 1)), 3),
    "logarithm of a reciprocal": (program(SMALL[:1], op(K.RECIPROCAL, 0), op(K.LOG, 1)), 3),
    "error function of a magnitude": (program(SMALL[:1], op(K.ABS, 0), op(K.ERF, 1)), 3),
    "larger": (program(SMALL, op(K.MAXIMUM, 0, 1), op(K.EXP, 2)), 3),
    "smaller": (program(SMALL, op(K.MUL, 0, 1), op(K.MINIMUM, 2, 0)), 3),
    "shift of a product": (
        program((tensor("X", 2, 4), tensor("W", 4, 2)), op(K.SHIFT, 0, shift=Fraction(1)), op(K.MATMUL, 2, 1)),
        3,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_engines_agree(name: str) -> None:
    source, ops = PROGRAMS[name]
    found = compare(source, tiny(max_block_ops=ops))
    assert any(len(graph.ops) == 1 and isinstance(graph.ops[0], GraphDefined) for graph in found.guided.values())
    for graph in list(found.guided.values())[:5]:
        assert isinstance(prove(source, graph), Equivalent)


NORMED: dict[str, tuple[KernelGraph, int]] = {
    "layer norm of a sum": (program(SMALL, op(K.ADD, 0, 1), op(K.LAYER_NORM, 2, dim=1, eps=Fraction(1, 100))), 3),
    "layer norm before a product": (
        program((tensor("X", 2, 4), tensor("W", 4, 2)), op(K.LAYER_NORM, 0, dim=1), op(K.MATMUL, 2, 1)),
        3,
    ),
    "layer norm with a weight": (
        program((tensor("X", 2, 4), tensor("W", 1, 4)), op(K.LAYER_NORM, 0, 1, dim=1)),
        3,
    ),
}


@pytest.mark.parametrize("name", NORMED)
def test_a_layer_norm_is_fused_with_its_neighbours(name: str) -> None:
    source, ops = NORMED[name]
    space = tiny(max_block_ops=ops)
    found = compare(source, replace(space, block_ops=(*space.block_ops, K.LAYER_NORM)))
    assert any(len(graph.ops) == 1 and isinstance(graph.ops[0], GraphDefined) for graph in found.guided.values())
    for graph in list(found.guided.values())[:5]:
        assert isinstance(prove(source, graph), Equivalent)


def test_what_a_program_does_not_use_is_not_tried() -> None:
    used = program_attributes(program(SMALL, op(K.MUL, 0, 1), op(K.TANH, 2)))
    kinds = (K.TANH, K.ERF, K.LOG, K.ABS, K.RECIPROCAL, K.SHIFT, K.MAXIMUM, K.MINIMUM, K.ADD)
    assert used.usable(kinds) == (K.TANH, K.ADD)
