"""Which programs are searched at rounded extents, and at which."""

from __future__ import annotations

import runpy
from collections.abc import Callable

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.pad_extents import round_extents
from mirage_formal.semantics import float64_reference
from tests.kit.paths import REPOSITORY


def program(build: Callable[..., mf.Tensor], *shapes: Shape) -> KernelGraph:
    g = mf.new_kernel_graph()
    g.mark_output(build(g, *(g.new_input(dims=shape, name=f"x{i}") for i, shape in enumerate(shapes))))
    return g.freeze()


def attention(g: mf.Graph, q: mf.Tensor, k: mf.Tensor, v: mf.Tensor) -> mf.Tensor:
    return g.matmul(g.softmax(g.matmul(q, k), 2), v)


def heads(g: mf.Graph, x: mf.Tensor) -> mf.Tensor:
    return g.transpose(g.reshape(g.silu(x), (197, 12, 64)), 0, 1)


CASES: dict[str, tuple[KernelGraph, list[Shape] | None]] = {
    "matmul": (program(lambda g, x, w: g.matmul(x, w), (197, 257), (257, 50257)), [(208, 288), (288, 50304)]),
    "zeros under an exponential, times zeros": (
        program(lambda g, x, w: g.matmul(g.exp(x), w), (31, 257), (257, 64)),
        [(32, 288), (288, 64)],
    ),
    "zeros under an exponential, and a sum": (program(lambda g, x: g.sum(g.exp(x), 1), (64, 257)), None),
    "softmax, along rows": (program(lambda g, x: g.softmax(x, 1), (197, 257)), [(208, 257)]),
    "mean": (program(lambda g, x: g.mean(x, 1), (64, 257)), [(64, 288)]),
    "maximum": (program(lambda g, x: g.max(x, 1), (64, 257)), None),
    "norm": (program(lambda g, x: g.rms_norm(x, (257,)), (48, 257)), [(48, 288)]),
    "norm of rows, some of which would be zeros": (
        program(lambda g, x: g.rms_norm(x, (257,)), (37, 257)),
        [(37, 288)],
    ),
    "norm that zeros keep above 0": (
        program(lambda g, x, w: g.rms_norm(x, (257,), w, eps=1e-5), (37, 257), (257,)),
        [(48, 288), (288,)],
    ),
    "layer norm": (program(lambda g, x: g.layer_norm(x, (257,)), (48, 257)), None),
    "quotient": (program(lambda g, x, y: g.div(x, y), (37, 257), (37, 257)), None),
    "attention: queries, not keys": (
        program(attention, (12, 197, 64), (12, 64, 61), (12, 61, 64)),
        [(12, 208, 64), (12, 64, 61), (12, 61, 64)],
    ),
    "what a reshape leaves one dim": (program(heads, (197, 768)), [(208, 768)]),
    "what a reshape joins": (program(lambda g, x: g.exp(g.reshape(x, (19 * 64,))), (19, 64)), None),
    "what a slice cuts": (program(lambda g, x: g.exp(g.slice(x, 1, 2, 35)), (64, 37)), None),
    "batches, which a grid takes whole": (program(lambda g, x, w: g.matmul(x, w), (19, 64, 32), (19, 32, 64)), None),
    "what one tile holds": (program(lambda g, x, w: g.matmul(x, w), (3, 64), (64, 64)), None),
    "multiples of 8": (program(lambda g, x, w: g.matmul(x, w), (24, 40), (40, 200)), None),
    "broadcast": (program(lambda g, x, y: g.add(x, y), (19, 257), (1, 257)), [(32, 288), (1, 288)]),
}


@pytest.mark.parametrize("name", CASES)
def test_extents_that_are_rounded(name: str) -> None:
    given, wanted = CASES[name]
    found = round_extents(given)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    assert [item.tensor.shape for item in found.program.inputs] == wanted


@pytest.mark.parametrize("name", [name for name, (_, wanted) in CASES.items() if wanted is not None])
def test_the_wrapped_program_is_the_program(name: str) -> None:
    given, _ = CASES[name]
    found = round_extents(given)
    assert found is not None
    whole = found.wrapped(found.program)
    assert isinstance(prove(given, whole), Equivalent)
    if max(n for item in given.inputs for n in item.tensor.shape) > 1000:
        return
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=item.tensor.shape) for item in given.inputs]
    for mine, theirs in zip(float64_reference.run(whole, arrays), float64_reference.run(given, arrays), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)


def test_outputs_of_two_extents() -> None:
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(61, 64), name="x"), g.new_input(dims=(64, 67), name="w")
    y = g.matmul(x, w)
    g.mark_output(g.exp(y))
    g.mark_output(g.sum(y, 1))
    found = round_extents(g.freeze())
    assert found is not None
    assert [item.tensor.shape for item in found.program.inputs] == [(64, 64), (64, 80)]
    assert [len(found.wrapping.front), len(found.wrapping.back)] == [2, 3]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_are_searched_as_they_are(path: object) -> None:
    names = runpy.run_path(str(path))
    graphs = [value for value in names.values() if isinstance(value, mf.Graph)]
    for graph in graphs:
        if graph.outputs:
            assert round_extents(graph.freeze()) is None
