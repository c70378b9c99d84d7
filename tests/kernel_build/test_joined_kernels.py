"""Kernels that read what another one has just written, joined to one: proved, emulated, and only where tiles agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import EmulatedExecutable
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.kernel_build.build import build_form
from mirage_formal.kernel_build.candidate_forms import forms
from mirage_formal.kernel_build.vertical_fusion import JOINED, fuse_vertically
from mirage_formal.semantics import float64_reference
from tests.kit.proofs.claims import Saved, kernel, on, program

H200 = load_target("h200")
INPUTS = {"X": (16, 64), "W": (64, 128), "H": (16, 32), "U": (32, 128), "B": (1, 128)}


def product(g: Graph, x: Tensor, w: Tensor, b: Tensor, *, blocks: int = 4) -> Tensor:
    """x w + b, by tiles of columns."""

    def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, b: BlockTensor) -> Saved:
        return t.forloop_accum(x @ w + b), on(1)

    return kernel(g, (blocks,), [(x, on()), (w, on(1)), (b, on(1))], body)


def cell(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """h u + (x w + b): the second kernel adds what the first one has written."""
    return product(g, h, u, product(g, x, w, b))


def test_two_kernels_on_one_grid_are_one() -> None:
    graph = program(INPUTS, cell)
    assert kernel_count(graph) == 2
    own, *others = forms(graph, H200)
    (form,) = [one for one in others if one.name == JOINED]
    assert form.us < own.us
    (op,) = form.graph.ops
    assert isinstance(op, GraphDefined)
    assert len(op.operands) == 5
    assert form.proof is not None
    made = build_form(form, graph, H200)
    rng = np.random.default_rng(0)
    arrays: list[Any] = [
        rng.standard_normal(item.tensor.shape).astype(np.float16).astype(float) for item in graph.inputs
    ]
    (wanted,), (found,) = float64_reference.run(graph, arrays), EmulatedExecutable(made)(arrays)
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def looped(g: Graph, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x w + b in two steps over what is summed; b comes behind the loop."""

    def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, b: BlockTensor) -> Saved:
        return t.forloop_accum(x @ w) + t.forloop_accum_max(b), on(1)

    return kernel(g, (4,), [(x, on(), 1), (w, on(1), 0), (b, on(1))], body, loop=2)


def test_what_a_loop_carries_may_be_what_the_other_loop_has_summed() -> None:
    graph = program(INPUTS, lambda g, x, w, h, u, b: looped(g, h, u, looped(g, x, w, b)))
    assert kernel_count(graph) == 2
    made = fuse_vertically(graph, H200)
    assert made is not None
    (op,) = made.graph.ops
    assert isinstance(op, GraphDefined)
    assert op.graph.forloop_range == 2
    assert len(op.operands) == 5
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(item.tensor.shape) for item in graph.inputs]
    np.testing.assert_allclose(
        float64_reference.run(made.graph, arrays)[0], float64_reference.run(graph, arrays)[0], rtol=1e-9
    )


def read_in_the_loop(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """The second kernel adds the first one's tile behind its loop, and its steps multiply by it."""

    def body(t: BlockBuilder, h: BlockTensor, u: BlockTensor, y: BlockTensor) -> Saved:
        return t.forloop_accum((h @ u) * y) + t.forloop_accum_max(y), on(1)

    return kernel(g, (4,), [(h, on(), 1), (u, on(1), 0), (looped(g, x, w, b), on(1))], body, loop=2)


def other_grid(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
    return product(g, h, u, product(g, x, w, b, blocks=8))


def read_twice(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
    first = product(g, x, w, b)
    return product(g, h, u, first) + g.exp(first)


def whole_rows(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """The second kernel's blocks read what others have written."""

    def body(t: BlockBuilder, x: BlockTensor, h: BlockTensor, u: BlockTensor) -> Saved:
        return t.forloop_accum(h @ u + t.max(x, 1)), on(1)

    return kernel(g, (4,), [(product(g, x, w, b), on()), (h, on()), (u, on(1))], body)


@pytest.mark.parametrize("body", [other_grid, read_twice, whole_rows, read_in_the_loop])
def test_what_does_not_fit_stays(body: Callable[..., Tensor]) -> None:
    graph = program(INPUTS, body)
    assert fuse_vertically(graph, H200) is None
    assert JOINED not in {form.name for form in forms(graph, H200)}


def test_views_and_other_kernels_around_them_stay() -> None:
    def around(g: Graph, x: Tensor, w: Tensor, h: Tensor, u: Tensor, b: Tensor) -> Tensor:
        return g.exp(g.transpose(cell(g, g.relu(x), w, h, u, b), 0, 1))

    graph: KernelGraph = program(INPUTS, around)
    made = fuse_vertically(graph, H200)
    assert made is not None
    assert kernel_count(made.graph) == kernel_count(graph) - 1
    rng = np.random.default_rng(1)
    arrays = [0.1 * rng.standard_normal(item.tensor.shape) for item in graph.inputs]
    np.testing.assert_allclose(
        float64_reference.run(made.graph, arrays)[0], float64_reference.run(graph, arrays)[0], rtol=1e-9
    )
