"""Softmaxes over one element: exp(s) / exp(s) is 1, also where the exponential overflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.semantics.float64_reference import FloatDomain
from mirage_formal.semantics.interpreter import evaluate
from tests.codegen.online_softmax.test_stabilize import proved, stable
from tests.kit.proofs.claims import Saved, kernel, on, program


def of_one(g: Graph, x: Tensor) -> Tensor:
    """A softmax over a dim of one element, whose sum asks for no maximum."""
    return g.exp(x) / g.reduction(g.exp(x), 0)


def of_one_in_a_kernel(g: Graph, x: Tensor) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        p = t.exp(x)
        return t.forloop_accum(p * x / t.reduction(p, 0)), on(1)

    return kernel(g, (4,), [(x, on(1))], body)


@pytest.mark.parametrize(("body", "exact"), [(of_one, lambda x: np.ones_like(x)), (of_one_in_a_kernel, lambda x: x)])
def test_a_quotient_by_a_sum_of_one_exponential_does_not_overflow(
    body: Callable[..., Tensor], exact: Callable[..., NDArray[Any]]
) -> None:
    graph = program({"X": (1, 64)}, body)
    found = stable(graph)
    assert proved(graph, found) is not None
    given: Any = np.random.default_rng(0).integers(-900, 900, size=(1, 64)).astype(np.float32)
    with np.errstate(all="raise", under="ignore"):
        (after,) = evaluate(found, [given], FloatDomain())
    np.testing.assert_array_equal(after, exact(given))


def test_a_quotient_by_another_exponential_of_one_row_stays() -> None:
    plain = program({"X": (1, 64)}, lambda g, x: g.exp(x) / (g.exp(g.scale(x, 2)) + g.exp(x)))
    assert stabilize(plain) is plain
