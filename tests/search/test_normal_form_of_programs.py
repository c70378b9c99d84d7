"""Programs with slices at their inputs and merged dims at their outputs: the same function, in fewer pieces."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.graph import KernelGraph, Op, enumerate_results
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import kernel_count, storage_locations
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults
from mirage_formal.search.normalize_layout_ops import normalize_layout_ops
from mirage_formal.search.preprocess import preprocess
from mirage_formal.semantics import float64_reference
from tests.kit.fuzz.random_programs import program as random_program
from tests.kit.graphs.workloads import Build, program, same
from tests.kit.sampling import but


def stuck(graph: KernelGraph) -> list[OpKind]:
    """Slices and reshapes that are neither views of inputs nor outputs in another shape."""
    known = storage_locations(graph)
    found: list[OpKind] = []
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        assert isinstance(op, Op)
        end = first in graph.outputs and op.kind is OpKind.RESHAPE
        if op.kind in (OpKind.SLICE, OpKind.RESHAPE) and known[first].base >= len(graph.inputs) and not end:
            found.append(op.kind)
    return found


def gated(g: mf.Graph) -> mf.Tensor:
    y = g.new_input((8, 16)) @ g.new_input((16, 24))
    return g.mul(g.silu(y[:, :12]), y[:, 12:])


def grouped(g: mf.Graph) -> mf.Tensor:
    q, k, v = g.new_input((6, 4, 8)), g.new_input((2, 16, 8)), g.new_input((2, 16, 8))
    k, v = g.repeat_interleave(k, 3, 0), g.repeat_interleave(v, 3, 0)
    return g.softmax(q @ k.mT / 3) @ v


def normed(g: mf.Graph) -> mf.Tensor:
    """A slice behind a norm along the other dim, with a weight that is broadcast along the sliced one."""
    x, w = g.new_input((8, 16)), g.new_input((1, 16))
    return g.rms_norm(x * 2, weight=w)[2:5, :]


def turned(g: mf.Graph) -> mf.Tensor:
    x = g.exp(g.new_input((8, 16)))
    return g.transpose(x)[4:9, :] @ g.new_input((8, 3))


def masked(g: mf.Graph) -> mf.Tensor:
    """Repeated heads beside a mask for all heads and a bias for each."""
    k = g.repeat_interleave(g.new_input((2, 4, 8)), 3, 0)
    return g.exp(k + g.new_input((1, 4, 8))) * g.new_input((6, 1, 1))


MOVED: dict[str, Build] = {"gated": gated, "grouped": grouped, "normed": normed, "turned": turned, "masked": masked}


def along(g: mf.Graph) -> mf.Tensor:
    """Along the sliced dim nothing passes."""
    return g.softmax(g.exp(g.new_input((8, 16))))[:, :4]


def heads(g: mf.Graph) -> mf.Tensor:
    """Heads that are merged into the columns of a product's operand; a reshape of the input stands before."""
    x = g.transpose(g.exp(g.reshape(g.exp(g.new_input((32, 16))), (4, 8, 16))), 0, 1)
    return g.reshape(x, (8, 64)) @ g.new_input((64, 5))


def plain(g: mf.Graph) -> mf.Tensor:
    return g.exp(g.new_input((8, 16))) @ g.new_input((16, 4))


LEFT: dict[str, Build] = {"along": along, "heads": heads, "plain": plain}


@pytest.mark.parametrize("name", MOVED)
def test_slices_and_merged_dims_go_to_the_ends(name: str) -> None:
    given = program(MOVED[name])
    found = normalize_layout_ops(given)
    assert stuck(given)
    assert found is not None
    assert stuck(found) == []
    same(given, found)


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_go_stays_as_it_was(name: str) -> None:
    assert normalize_layout_ops(program(LEFT[name])) is None


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_random_programs_compute_the_same(first: int) -> None:
    for seed in range(first, first + 30):
        written = random_program(seed)
        names: dict[str, Any] = {}
        exec(written.text, names)
        given = next(value for value in names.values() if isinstance(value, mf.Graph)).freeze()
        for found in (normalize_layout_ops(given), preprocess(given).whole, preprocess(given, proved=False).whole):
            if found is not None and found != given:
                for wanted, got in zip(written.outputs, float64_reference.run(found, written.inputs), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


def keys(g: mf.Graph) -> mf.Tensor:
    return g.relu(g.new_input((2, 8, 4))) @ (g.relu(g.new_input((2, 16, 4))).mT @ g.new_input((2, 16, 4)))


def pooled(g: mf.Graph) -> mf.Tensor:
    """The transpose of a softmax of a product, with a bias that is broadcast."""
    x = g.new_input((10, 6))
    h = g.tanh(x @ g.new_input((6, 8)) + g.new_input((8,)))
    return g.softmax(h @ g.new_input((8, 1)), dim=0).mT @ x


def mixed(g: mf.Graph) -> mf.Tensor:
    """Behind functions and products, with a bias that is broadcast, beside an input that is read as it is."""
    x = g.square(g.new_input((2, 6, 8))) + g.new_input((8,))
    return g.gelu(g.new_input((2, 5, 6)) @ x).mT + g.new_input((2, 8, 5))


def twice(g: mf.Graph) -> mf.Tensor:
    """Transposes of a transpose that stands between operators."""
    x = g.exp(g.transpose(g.exp(g.transpose(g.new_input((3, 4, 5)), 0, 1)), 1, 2))
    return g.transpose(x[1:3], 1, 2) * g.new_input((2, 3, 1))


TURNED: dict[str, Build] = {"keys": keys, "pooled": pooled, "mixed": mixed, "twice": twice}


@pytest.mark.parametrize("name", TURNED)
def test_transposes_go_to_the_inputs(name: str) -> None:
    given = program(TURNED[name])
    seen = preprocess(given)
    assert all(isinstance(op, Op) and op.kind is not OpKind.TRANSPOSE for op in seen.program.ops)
    same(given, seen.whole)


def test_a_product_that_is_read_in_both_ways_is_computed_once() -> None:
    def build(g: mf.Graph) -> mf.Tensor:
        y = g.new_input((8, 16)) @ g.new_input((16, 8))
        return g.exp(y) + g.exp(y).mT

    assert normalize_layout_ops(program(build)) is None


def test_norms_stay_along_rows() -> None:
    assert (
        normalize_layout_ops(program(lambda g: g.new_input((4, 8)) @ g.rms_norm(g.new_input((6, 8)), eps=1e-5).mT))
        is None
    )


def test_a_transpose_that_would_be_a_copy_of_an_input_stays() -> None:
    """Neither rows nor columns of (x)^T would lie together."""
    assert normalize_layout_ops(program(lambda g: g.transpose(g.exp(g.new_input((3, 4, 5))), 0, 2) * 2)) is None


def _transposed_at_random(g: mf.Graph, rng: random.Random) -> mf.Tensor:
    """Operators of all sorts over three dims, with transposes, slices and broadcasting in between."""
    names = ["a", "b", "c"]
    extents = dict(zip(names, rng.sample((2, 3, 4, 5), 3), strict=True))

    def fresh(dims: list[str]) -> mf.Tensor:
        shape = [1 if rng.random() < 0.25 else extents[dim] for dim in dims]
        return g.new_input((shape[0], shape[1], shape[2]))

    x, dims = g.new_input((extents["a"], extents["b"], extents["c"])), list(names)
    for _ in range(rng.randint(3, 8)):
        match rng.choice(("turn", "turn", "turn", "exp", "add", "norm", "sum", "softmax", "product", "slice")):
            case "turn":
                i, j = rng.sample(range(3), 2)
                x = g.transpose(x, i, j)
                dims[i], dims[j] = dims[j], dims[i]
            case "exp":
                x = g.tanh(x)
            case "add":
                x = x + fresh(dims) if rng.random() < 0.5 else fresh(dims) * x
            case "norm":
                x = g.layer_norm(x, eps=1e-3) if rng.random() < 0.5 else g.rms_norm(x, eps=1e-3)
            case "softmax":
                x = g.softmax(x, dim=rng.randrange(3))
            case "sum":
                x = x + g.sum(x, dim=rng.randrange(3))
            case "product":
                inner, dim = rng.choice((2, 3)), rng.choice((1, 2))
                lead, rows, columns = (extents[name] for name in dims)
                left, right = g.new_input((lead, inner, rows)), g.new_input((lead, columns, inner))
                x = left @ x if dim == 1 else x @ right
                extents[dims[dim]] = inner
            case _:
                dim = rng.randrange(3)
                if extents[dims[dim]] > 2:
                    start = rng.randint(0, 1)
                    parts = [slice(None)] * 3
                    parts[dim] = slice(start, start + 2)
                    x = x[tuple(parts)]
                    extents[dims[dim]] = 2
    return x


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_programs_with_transposes_compute_the_same(first: int) -> None:
    moved = 0
    for seed in range(first, first + 100):
        try:
            given = program(partial(_transposed_at_random, rng=random.Random(seed)))
        except mf.MirageError:
            continue
        found = normalize_layout_ops(given)
        if found is None:
            continue
        same(given, found)
        moved += count(found, OpKind.TRANSPOSE, inside=True) < count(given, OpKind.TRANSPOSE, inside=True)
    assert moved > 20


def count(graph: KernelGraph, kind: OpKind, *, inside: bool) -> int:
    """Operators of a kind; ``inside``, those that are no views of inputs."""
    known = storage_locations(graph)
    return sum(
        isinstance(op, Op) and op.kind is kind and not (inside and known[first].base < len(graph.inputs))
        for first, op in enumerate_results(len(graph.inputs), graph.ops)
    )


def test_slices_of_one_tensor_that_overlap_are_products_of_their_own() -> None:
    def build(g: mf.Graph) -> mf.Tensor:
        y = g.new_input((8, 16)) @ g.new_input((16, 24))
        return y[:, 2:9] + y[:, 5:12]

    given = program(build)
    found = normalize_layout_ops(given)
    assert found is not None
    assert [op.kind for op in found.ops if isinstance(op, Op)].count(OpKind.MATMUL) == 2
    same(given, found)


@pytest.mark.parametrize("name", MOVED)
def test_what_is_sought_has_no_views_and_is_wrapped_into_the_program(name: str) -> None:
    given = program(MOVED[name])
    seen = preprocess(given)
    assert faults(seen.program) == []
    assert all(isinstance(op, Op) and op.kind not in (OpKind.SLICE, OpKind.REPEAT) for op in seen.program.ops)
    same(given, seen.whole)


def test_an_input_that_is_read_in_two_ways_is_two_inputs() -> None:
    seen = preprocess(program(lambda g: (x := g.new_input((8, 16))) @ x.mT))
    assert [item.tensor.shape for item in seen.program.inputs] == [(8, 16), (16, 8)]
    assert [item.strides for item in seen.program.inputs] == [(16, 1), (1, 16)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernels"), [(name, 1) for name in but(["gated", "grouped"], "grouped")])
def test_the_whole_program_is_one_kernel_that_check_accepts(tmp_path: Path, name: str, kernels: int) -> None:
    graph = mf.new_kernel_graph()
    graph.mark_output(MOVED[name](graph))
    best = mf.superoptimize(graph, out=tmp_path / "run", workers=1, keep=2)[0]
    assert isinstance(best.verdict, Equivalent)
    assert kernel_count(best.graph) == kernels
    assert check([str(tmp_path / "run")]) == 0


def shifted(g: mf.Graph) -> mf.Tensor:
    x = g.new_input(dims=(6, 5))
    padded = g.pad(x, 0, 2, 1)
    return padded[:6] + padded[1:7] * padded[2:8] - padded[3:9]


def padded_columns(g: mf.Graph) -> mf.Tensor:
    return g.exp(g.pad(g.new_input(dims=(6, 5)), 1, 1, 2)[2:4, 0:3])


@pytest.mark.parametrize("build", [shifted, padded_columns])
def test_slices_of_pads_are_pads_of_slices(build: Build) -> None:
    graph = program(build)
    made = normalize_layout_ops(graph)
    assert made is not None
    same(graph, made)
    cut = {n for n, op in enumerate_results(len(made.inputs), made.ops) if isinstance(op, Op) and op.kind is OpKind.PAD}
    assert not any(isinstance(op, Op) and op.kind is OpKind.SLICE and cut.intersection(op.operands) for op in made.ops)


def test_a_slice_of_nothing_but_zeros_stays() -> None:
    graph = program(lambda g: g.pad(g.new_input(dims=(6, 5)), 0, 4, 0)[:3] * 2 + 1)
    made = normalize_layout_ops(graph)
    assert made is None or any(isinstance(op, Op) and op.kind is OpKind.SLICE for op in made.ops)
