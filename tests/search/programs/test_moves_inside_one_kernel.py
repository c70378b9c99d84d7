"""Programs that move elements between other operators: one kernel that reads or writes where the moves lead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.storage_views import kernel_count, moved_tensors
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build.build import build
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.hoist_layout_ops import hoist_layout_ops
from mirage_formal.search.horizontal_fusion.whole_program_fusion import fuse_whole_program, is_fusible
from mirage_formal.search.preprocess import preprocess
from mirage_formal.search.space import load_space
from mirage_formal.semantics import float64_reference
from tests.kit.graphs.workloads import program

H200 = load_target("h200")
SPACE = load_space("mlp")


def given(g: mf.Graph, *shape: int) -> mf.Tensor:
    return g.new_input(dims=shape)


def roll(g: mf.Graph, x: mf.Tensor, dim: int, first: int) -> mf.Tensor:
    return g.concat([g.slice(x, dim, first, x.shape[dim]), g.slice(x, dim, 0, first)], dim=dim)


def windows(g: mf.Graph, x: mf.Tensor, count: int, size: int) -> mf.Tensor:
    cut = g.reshape(x, (count, size, count, size, x.shape[-1]))
    return g.reshape(g.permute(cut, (0, 2, 1, 3, 4)), (count * count, size * size, x.shape[-1]))


def rolled_windows(g: mf.Graph) -> mf.Tensor:
    """Moves only: rolled along two dims, then cut into windows."""
    return windows(g, roll(g, roll(g, given(g, 12, 12, 16), 0, 2), 1, 2), 4, 3)


def norm_then_windows(g: mf.Graph) -> mf.Tensor:
    """Computed first, moved afterwards: the kernel writes where the windows lie."""
    x = g.layer_norm(given(g, 12, 12, 32), weight=given(g, 32), bias=given(g, 32), eps=1e-5)
    return windows(g, roll(g, roll(g, x, 0, 2), 1, 2), 4, 3)


def windows_back(g: mf.Graph) -> mf.Tensor:
    """Windows put together, rolled back, beside what was there before."""
    y = given(g, 16, 9, 16)
    x = g.reshape(g.permute(g.reshape(y, (4, 4, 3, 3, 16)), (0, 2, 1, 3, 4)), (12, 12, 16))
    return g.gelu(roll(g, roll(g, x, 0, 10), 1, 10) + given(g, 12, 12, 16))


def pixels(g: mf.Graph) -> mf.Tensor:
    """Channels to pixels, and a bias for each of the channels that are left."""
    x = g.reshape(given(g, 16, 8, 32), (4, 2, 2, 8, 32))
    x = g.reshape(g.permute(x, (0, 3, 1, 4, 2)), (4, 16, 64))
    return g.relu(x + given(g, 4, 1, 1))


def depth_norm(g: mf.Graph) -> mf.Tensor:
    """Pixels to channels, and a norm along what was four runs of them."""
    x = g.permute(g.reshape(given(g, 8, 8, 16), (4, 2, 4, 2, 16)), (0, 2, 1, 3, 4))
    return g.rms_norm(g.reshape(x, (16, 64)), weight=given(g, 64), eps=1e-6)


def taps(g: mf.Graph) -> mf.Tensor:
    """Slices of one pad, weighted and added, with heads in front at the end."""
    x, w = g.pad(given(g, 24, 64), 0, 1, 1), given(g, 3, 64)
    y = x[0:24] * w[0:1] + x[1:25] * w[1:2] + x[2:26] * w[2:3]
    return g.permute(g.reshape(y, (24, 4, 16)), (1, 0, 2))


def difference(g: mf.Graph) -> mf.Tensor:
    """A tensor beside itself, rolled, along two dims; summed over the channels."""
    x = given(g, 16, 24, 32)
    return g.sum(g.square(x - roll(g, x, 0, 15)) + g.abs(x - roll(g, x, 1, 23)), dim=-1)


def mixed(g: mf.Graph) -> mf.Tensor:
    """A factor that is computed and then shaped, beside a tensor that is moved on by one."""
    x, m = given(g, 16, 64), given(g, 64)
    before = g.slice(g.pad(x, 0, 1, 0), 0, 0, 16)
    return x * m + before * (1 - m)


def repeated(g: mf.Graph) -> mf.Tensor:
    """Pairs of rows of a rolled tensor as one row, for each of several."""
    x = g.reshape(roll(g, given(g, 32, 16), 0, 5), (16, 2, 16))
    x = g.permute(g.reshape(g.permute(x, (1, 0, 2)), (2, 4, 4, 16)), (1, 0, 2, 3))
    return g.expand(g.reshape(x, (1, 8, 64)), (3, 8, 64)) * given(g, 3, 8, 64)


BUILDS = [
    rolled_windows,
    norm_then_windows,
    windows_back,
    pixels,
    depth_norm,
    taps,
    difference,
    mixed,
    repeated,
]


def candidates(one: KernelGraph) -> list[KernelGraph]:
    """Candidates of one kernel, cheapest first."""
    plain = preprocess(one)
    assert is_fusible(plain.program)
    made = [
        plain.wrapped(graph)
        for _, graph in fuse_whole_program(plain.program, SPACE, lambda graph: estimate(graph, H200).us)
    ]
    return sorted(made, key=lambda graph: estimate(graph, H200).us)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build_one", BUILDS)
def test_one_kernel_does_what_the_program_does(build_one: Callable[[mf.Graph], mf.Tensor]) -> None:
    one = program(build_one)
    assert kernel_count(one) > 1
    assert not moved_tensors(preprocess(one).program)
    numbers = np.random.default_rng(7)
    arrays = [numbers.uniform(0.5, 1.5, item.tensor.shape) for item in one.inputs]
    (want,) = float64_reference.run(one, arrays)
    made = candidates(one)
    for graph in made[:4]:
        assert kernel_count(graph) == 1
        np.testing.assert_allclose(float64_reference.run(graph, arrays)[0], want, rtol=1e-9, atol=1e-12)
        assert isinstance(prove(one, graph, (preprocess(one).whole,)), Equivalent)
    found = build(made[0], one, H200)
    assert len(found.executable.launches) == 1
    assert compare_on_emulator(found, scales=(1.0,)).answer == "within"


def test_a_copy_that_is_one_kernel_already_is_not_searched() -> None:
    one = program(lambda g: g.reshape(g.permute(given(g, 4, 8, 16), (1, 0, 2)), (8, 64)))
    assert kernel_count(one) == 1
    assert not is_fusible(preprocess(one).program)


def test_moves_pass_operators_and_broadcasts() -> None:
    def build_one(g: mf.Graph) -> mf.Tensor:
        x = g.exp(given(g, 8, 6, 16)) + given(g, 8, 1, 16) * given(g, 1, 6, 1)
        return g.relu(g.reshape(g.permute(g.mean(x, dim=2) + x, (1, 0, 2)), (6, 2, 64)))

    one = program(build_one)
    made = hoist_layout_ops(one)
    assert made is not None
    assert isinstance(prove(one, made), Equivalent)


def test_no_move_passes_what_it_changes() -> None:
    """Zeros of a pad are no exponentials, and half of a row has another sum."""

    def padded(g: mf.Graph) -> mf.Tensor:
        return g.relu(g.pad(g.exp(given(g, 8, 16)), 0, 1, 1))

    def halved(g: mf.Graph) -> mf.Tensor:
        x = g.softmax(given(g, 8, 16), dim=1)
        return g.exp(g.slice(x, 1, 0, 8))

    for build_one in (padded, halved):
        one = program(build_one)
        made = hoist_layout_ops(one) or one
        arrays = [np.random.default_rng(1).uniform(0.5, 1.5, item.tensor.shape) for item in one.inputs]
        np.testing.assert_allclose(
            float64_reference.run(made, arrays)[0], float64_reference.run(one, arrays)[0], rtol=1e-9
        )


def test_rows_that_are_not_whole_vectors_are_not_written_elsewhere() -> None:
    one = program(lambda g: g.permute(g.exp(given(g, 8, 6, 5)), (1, 0, 2)))
    kernel = fuse_whole_program(program(lambda g: g.exp(given(g, 8, 6, 5))), SPACE, lambda graph: 0.0)[0][1]
    (made,) = kernel.ops
    assert isinstance(made, GraphDefined)
    candidate = KernelGraph(one.inputs, (made, one.ops[-1]), (2,))
    assert [tensor.shape for tensor in kernel_types(candidate)] == [(8, 6, 5), (8, 6, 5), (6, 8, 5)]
    assert kernel_count(candidate) == 2


def test_an_output_that_is_read_as_well_is_no_end() -> None:
    graph = mf.new_kernel_graph()
    x = graph.exp(given(graph, 8, 6, 16))
    shown = graph.reshape(x, (48, 16))
    graph.mark_output(shown)
    graph.mark_output(graph.relu(shown))
    one = graph.freeze()
    arrays = [np.random.default_rng(2).uniform(0.5, 1.5, item.tensor.shape) for item in one.inputs]
    for got, want in zip(
        float64_reference.run(preprocess(one).whole, arrays), float64_reference.run(one, arrays), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9)
