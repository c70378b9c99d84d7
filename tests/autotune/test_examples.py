"""An introduction to ``mirage_formal/autotune``: each kernel of a candidate is a graph that is timed by itself."""

from __future__ import annotations

import numpy as np

import mirage_formal as mf
from mirage_formal.autotune.kernel_extraction import extract_kernels
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import faults
from mirage_formal.semantics import float64_reference


def program() -> KernelGraph:
    """exp(X W^T): a view, a product and its exponential."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    w = graph.new_input(dims=(16, 8), dtype=mf.float16)
    graph.mark_output(graph.exp(graph.matmul(x, graph.transpose(w, 0, 1))))
    return graph.freeze()


def test_each_launched_operator_is_a_graph_of_its_own() -> None:
    pieces = extract_kernels(program())
    assert [piece.operator for piece in pieces] == [1, 2]
    assert [fault for piece in pieces for fault in faults(piece.graph)] == []


def test_an_input_that_an_earlier_kernel_writes_is_warm() -> None:
    assert [piece.warm for piece in extract_kernels(program())] == [(False, False), (True,)]


def test_the_pieces_compute_the_program_one_after_another() -> None:
    x, w = np.linspace(0, 1, 32).reshape(4, 8), np.linspace(0, 1, 128).reshape(16, 8)
    product, exponential = (piece.graph for piece in extract_kernels(program()))
    arrays = [x if item.tensor.shape == x.shape else w for item in product.inputs]
    (between,) = float64_reference.run(product, arrays)
    np.testing.assert_allclose(
        float64_reference.run(exponential, [between])[0], float64_reference.run(program(), [x, w])[0]
    )
