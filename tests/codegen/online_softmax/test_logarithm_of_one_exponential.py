"""The logarithm of one exponential: what a logarithm of a sum of exponentials is over one element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.thread import fuse_threads
from mirage_formal.semantics.float64_reference import run
from tests.codegen.online_softmax.test_stabilize import operators, stable
from tests.kit.proofs.claims import Saved, kernel, on, program


def fused(g: Graph, x: Tensor) -> Tensor:
    """A kernel in which both stand behind a sum."""

    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        return t.log(t.exp(t.forloop_accum(x, "sum"))), on(0)

    return kernel(g, (2,), [(x, on(0))], body)


CASES: dict[str, Callable[[Graph, Tensor], Tensor]] = {
    "kernels": lambda g, x: g.log(g.exp(x + x)),
    "a block": fused,
    "read by others": lambda g, x: g.exp(g.square(x)) / g.log(g.exp(g.square(x))),
}


@pytest.mark.parametrize("threads", [False, True], ids=["plain", "thread graphs"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_argument_and_does_not_overflow(name: str, threads: bool) -> None:
    graph = program({"X": (4, 8)}, CASES[name])
    graph = fuse_threads(graph) if threads else graph
    found = stable(graph)
    assert not [op for op in operators(found) if op.kind is OpKind.LOG]
    assert isinstance(prove(graph, found), Equivalent)
    if name != "read by others":
        large = np.full((4, 8), 700.0)
        (exact,) = run(found, [large])
        assert np.isfinite(exact).all()


def test_that_of_an_input_stays_for_a_result_is_no_input() -> None:
    graph = program({"X": (4, 8)}, lambda g, x: g.log(g.exp(x)))
    assert stabilize(graph) is graph


def test_a_sum_of_several_has_its_maximum_as_before() -> None:
    def kinds(found: KernelGraph) -> list[Any]:
        return [op.kind for op in found.ops if isinstance(op, Op)]

    found = stable(program({"X": (4, 8)}, lambda g, x: g.log(g.sum(g.exp(x + x), dim=1))))
    assert OpKind.LOG in kinds(found)
    assert OpKind.MAX in kinds(found)


def test_an_exponential_with_its_maximum_taken_out_is_none_of_these() -> None:
    """exp(y - max y) is there for itself, and for exp(y), which is summed; the logarithm of that is y."""

    def body(g: Graph, x: Tensor) -> Tensor:
        y = x + x
        below = g.exp(y - g.max(y, dim=1))
        p = g.exp(y)
        return below + g.log(p) + p / g.sum(p, dim=1)

    graph = program({"X": (4, 8)}, body)
    found = stable(graph)
    assert isinstance(prove(graph, found), Equivalent)
    (exact,) = run(found, [np.full((4, 8), 700.0)])
    assert np.allclose(exact, 1.0 + 1400.0 + 1 / 8)
