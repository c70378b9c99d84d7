"""Programs with slices at their inputs and merged dims at their outputs: the same function, in fewer pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.check import faults
from mirage_formal.graph.graph import KernelGraph, Op, numbered
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.views import kernel_count, places
from mirage_formal.meaning import reference
from mirage_formal.search.normal import normal
from mirage_formal.search.sought import sought
from tests.kit.fuzz.programs import program as random_program
from tests.kit.graphs.built import Build, program, same


def stuck(graph: KernelGraph) -> list[OpKind]:
    """Slices and reshapes that are neither views of inputs nor outputs in another shape."""
    known = places(graph)
    found: list[OpKind] = []
    for first, op in numbered(len(graph.inputs), graph.ops):
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
    """Heads that are merged into the columns of a product's operand."""
    x = g.transpose(g.exp(g.new_input((4, 8, 16))), 0, 1)
    return g.reshape(x, (8, 64)) @ g.new_input((64, 5))


def plain(g: mf.Graph) -> mf.Tensor:
    return g.exp(g.new_input((8, 16))) @ g.new_input((16, 4))


LEFT: dict[str, Build] = {"along": along, "heads": heads, "plain": plain}


@pytest.mark.parametrize("name", MOVED)
def test_slices_and_merged_dims_go_to_the_ends(name: str) -> None:
    given = program(MOVED[name])
    found = normal(given)
    assert stuck(given)
    assert found is not None
    assert stuck(found) == []
    same(given, found)


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_go_stays_as_it_was(name: str) -> None:
    assert normal(program(LEFT[name])) is None


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_random_programs_compute_the_same(first: int) -> None:
    for seed in range(first, first + 30):
        written = random_program(seed)
        names: dict[str, Any] = {}
        exec(written.text, names)
        given = next(value for value in names.values() if isinstance(value, mf.Graph)).freeze()
        for found in (normal(given), sought(given).whole):
            if found is not None and found != given:
                for wanted, got in zip(written.outputs, reference.run(found, written.inputs), strict=True):
                    np.testing.assert_allclose(got, wanted, rtol=1e-7, atol=1e-9)


def test_slices_of_one_tensor_that_overlap_are_products_of_their_own() -> None:
    def build(g: mf.Graph) -> mf.Tensor:
        y = g.new_input((8, 16)) @ g.new_input((16, 24))
        return y[:, 2:9] + y[:, 5:12]

    given = program(build)
    found = normal(given)
    assert found is not None
    assert [op.kind for op in found.ops if isinstance(op, Op)].count(OpKind.MATMUL) == 2
    same(given, found)


@pytest.mark.parametrize("name", MOVED)
def test_what_is_sought_has_no_views_and_is_wrapped_into_the_program(name: str) -> None:
    given = program(MOVED[name])
    seen = sought(given)
    assert faults(seen.program) == []
    assert all(isinstance(op, Op) and op.kind not in (OpKind.SLICE, OpKind.REPEAT) for op in seen.program.ops)
    same(given, seen.whole)


def test_an_input_that_is_read_in_two_ways_is_two_inputs() -> None:
    seen = sought(program(lambda g: (x := g.new_input((8, 16))) @ x.mT))
    assert [item.tensor.shape for item in seen.program.inputs] == [(8, 16), (16, 8)]
    assert [item.strides for item in seen.program.inputs] == [(16, 1), (1, 16)]


@pytest.mark.parametrize(("name", "kernels"), [("gated", 1), ("grouped", 1)])
def test_the_whole_program_is_one_kernel_that_check_accepts(tmp_path: Path, name: str, kernels: int) -> None:
    graph = mf.new_kernel_graph()
    graph.mark_output(MOVED[name](graph))
    best = mf.superoptimize(graph, out=tmp_path / "run", workers=1)[0]
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
    made = normal(graph)
    assert made is not None
    same(graph, made)
    cut = {n for n, op in numbered(len(made.inputs), made.ops) if isinstance(op, Op) and op.kind is OpKind.PAD}
    assert not any(isinstance(op, Op) and op.kind is OpKind.SLICE and cut.intersection(op.operands) for op in made.ops)


def test_a_slice_of_nothing_but_zeros_stays() -> None:
    graph = program(lambda g: g.pad(g.new_input(dims=(6, 5)), 0, 4, 0)[:3] * 2 + 1)
    made = normal(graph)
    assert made is None or any(isinstance(op, Op) and op.kind is OpKind.SLICE for op in made.ops)
