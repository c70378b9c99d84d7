"""Programs from one function, and graphs that compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.semantics import reference

#: Adds operators to a graph; what it returns is the output.
Build = Callable[[mf.Graph], mf.Tensor]


def program(build: Build) -> KernelGraph:
    """The program of one output that a function builds."""
    graph = mf.new_kernel_graph()
    graph.mark_output(build(graph))
    return graph.freeze()


def same(one: KernelGraph, other: KernelGraph) -> None:
    """Assert that two graphs have the same results in float64, on normal inputs."""
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(item.tensor.shape) for item in one.inputs]
    for wanted, got in zip(reference.run(one, arrays), reference.run(other, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
