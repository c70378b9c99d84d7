"""An introduction to ``mirage_formal/semantics``: one interpreter, and a domain of values for each use."""

from __future__ import annotations

import numpy as np

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.typed_evaluation import run_typed
from mirage_formal.semantics.working_set import working_set_size


def program() -> KernelGraph:
    """exp(X W)."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    w = graph.new_input(dims=(8, 2), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    return graph.freeze()


X, W = np.linspace(-1, 1, 32).reshape(4, 8), np.linspace(0, 1, 16).reshape(8, 2)


def test_the_reference_computes_in_float64() -> None:
    (result,) = float64_reference.run(program(), [X, W])
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, np.exp(X @ W), rtol=1e-14)


def test_typed_evaluation_rounds_each_tensor_to_its_element_type() -> None:
    arrays = [a.astype(np.float16) for a in (X, W)]
    (exact,) = float64_reference.run(program(), arrays)
    (rounded,) = run_typed(program(), arrays)
    assert not np.array_equal(exact, rounded)
    np.testing.assert_array_equal(rounded, np.asarray(rounded).astype(np.float16))
    np.testing.assert_allclose(rounded, exact, rtol=1e-2)


def test_the_working_set_is_computed_from_shapes_alone() -> None:
    assert working_set_size(program()) >= X.size + W.size
