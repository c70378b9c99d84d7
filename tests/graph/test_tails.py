"""Candidates with tails taken apart, and programs at other extents, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.canonical import canonical
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import decompose_remainder_tiles, resize
from mirage_formal.graph.remainder_tiles.padded_pair import match_extents
from mirage_formal.graph.remainder_tiles.split import split_pads_and_slices
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.semantics import float64_reference
from tests.kit.kernels.tails import Wrapped, chain, product

K = OpKind


@pytest.mark.parametrize("order", ["written", "canonical"])
@pytest.mark.parametrize("pair", [product(19, 37, 45, (16, 16, 16), K.SILU), chain((5, 9), (8, 16), (2, 2))], ids=str)
def test_what_is_taken_apart_is_put_together_again(pair: list[KernelGraph], order: str) -> None:
    program, graph = pair
    graph = canonical(graph) if order == "canonical" else graph
    found = split_pads_and_slices(graph)
    assert found is not None
    wrapping, inner = found
    assert all(isinstance(op, GraphDefined) for op in inner.ops)
    assert {op.kind for op in (*wrapping.front, *wrapping.back)} == {K.PAD, K.SLICE}
    again = wrapping.around(graph.inputs, inner)
    assert faults(again) == []
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=item.tensor.shape) for item in program.inputs]
    for mine, theirs in zip(float64_reference.run(again, arrays), float64_reference.run(graph, arrays), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_program_between_the_pads() -> None:
    program, graph = product(19, 37, 45, (16, 16, 16), K.SILU)
    found = decompose_remainder_tiles(program, graph)
    assert found is not None
    assert [item.tensor.shape for item in found.program.inputs] == [(32, 48), (48, 48)]
    assert [op.kind for op in found.program.ops if isinstance(op, Op)] == [K.MATMUL, K.SILU]
    assert match_extents(program, graph) == (found.program, found.candidate)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=item.tensor.shape) for item in program.inputs]
    for mine, theirs in zip(
        float64_reference.run(found.padded, arrays), float64_reference.run(program, arrays), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_graphs_without_pads_and_slices_are_left_alone() -> None:
    program, graph = chain((8, 16), (8, 16), (2, 2))
    assert split_pads_and_slices(graph) is None
    assert match_extents(program, graph) == (program, graph)
    assert match_extents(program, program) == (program, program)


def test_an_input_that_is_read_in_two_ways_is_not_taken_apart() -> None:
    """Padded once and as it is once: no graph over padded inputs alone is between."""
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(8, 12), name="x"), g.new_input(dims=(16, 12), name="w")
    g.mark_output(g.matmul(g.pad(x, 1, 0, 4), g.matmul(w, g.transpose(x))))
    assert split_pads_and_slices(g.freeze()) is None


def test_pads_that_are_outputs_and_slices_that_kernels_read_stay() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(8, 12), name="x")
    padded = g.pad(x, 1, 0, 4)
    g.mark_output(padded)
    g.mark_output(g.exp(padded))
    assert split_pads_and_slices(g.freeze()) is None
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(8, 12), name="x")
    g.mark_output(g.square(g.slice(g.exp(x), 1, 0, 7)))
    assert split_pads_and_slices(g.freeze()) is None


def test_pads_of_a_program_are_inputs_of_it_and_of_its_candidate() -> None:
    """Its candidate has the program's pads; the program's operators on padded inputs would pad twice."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(8, 12), name="x")
    g.mark_output(g.softmax(g.pad(x, 1, 0, 4), 1))
    program = g.freeze()
    here, there = match_extents(program, program)
    assert here == there
    assert [(item.name, item.tensor.shape) for item in here.inputs] == [("pad0", (8, 16))]
    assert [op.kind for op in here.ops if isinstance(op, Op)] == [OpKind.SOFTMAX]


def test_only_the_pads_that_both_have_are_inputs() -> None:
    """Another pad of the same input is another tensor, and the input itself stays one where it is read."""
    g = mf.new_kernel_graph()
    pad0 = g.new_input(dims=(8, 12), name="pad0")
    g.mark_output(g.exp(g.pad(pad0, 1, 0, 4)) + g.pad(pad0, 1, 4, 0) + g.new_input(dims=(8, 16), name="y"))
    program = g.freeze()
    ops = tuple(
        replace(op, attrs=replace(op.attrs, before=2, after=2)) if isinstance(op, Op) and op.attrs.before else op
        for op in program.ops
    )
    here, there = match_extents(program, replace(program, ops=ops))
    assert [item.name for item in here.inputs] == [item.name for item in there.inputs] == ["pad0", "y", "_pad0"]
    assert [op.attrs.before for op in here.ops if isinstance(op, Op) and op.kind is OpKind.PAD] == [4]
    assert [op.attrs.before for op in there.ops if isinstance(op, Op) and op.kind is OpKind.PAD] == [2]


def rows(given: KernelGraph, read: int, times: int = 1) -> GraphDefined:
    """A kernel that adds up the rows of a tensor, a block for each."""
    block = BlockGraph(
        (kernel_types(given)[read].shape[0], 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),) * times,
        (*(Op(K.MUL, (0, times - 1)),) * (times - 1), Op(K.ACCUM_SUM_LAST, (times,) if times > 1 else (0,))),
        (OutputSaver(times + (times > 1), (0, None, None)),),
    )
    return GraphDefined((read,) * times, block)


def summed(build: Callable[[KernelBuilder, Tensor], Tensor]) -> KernelGraph:
    """The sums of the rows of a tensor that is made of an input of 12 x 19."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(12, 19), name="x")
    g.mark_output(g.sum(build(g, x), -1))
    return g.freeze()


def through(build: Callable[[KernelBuilder, Tensor], Tensor]) -> KernelGraph:
    """The same by a kernel."""
    program = summed(build)
    *front, _ = program.ops
    return replace(program, ops=(*front, rows(program, len(program.ops) - 1)))


@pytest.mark.parametrize(
    ("program", "candidate", "shape"),
    [
        (
            lambda g, x: g.transpose(x, 0, 1),
            lambda g, x: g.pad(g.transpose(x, 0, 1), 1, 0, 4),
            (16, 19),
        ),
        (
            lambda g, x: g.reshape(x, (3, 4, 19)),
            lambda g, x: g.pad(g.reshape(x, (3, 4, 19)), 2, 0, 13),
            (12, 32),
        ),
        (
            lambda g, x: g.pad(x, 0, 0, 3) + g.pad(x, 0, 3, 0),
            lambda g, x: g.pad(g.pad(x, 0, 0, 3), 1, 0, 5) + g.pad(g.pad(x, 0, 3, 0), 1, 0, 5),
            (15, 24),  # the program's pads are inputs
        ),
        (
            lambda g, x: g.square(x) + x,
            lambda g, x: g.pad(g.square(x) + x, 1, 0, 5),
            (12, 24),
        ),
    ],
    ids=["behind a transpose", "behind a reshape", "behind the program's pads", "behind functions"],
)
def test_tails_behind_other_operators(program: Any, candidate: Any, shape: Shape) -> None:
    """The program's sums then have as many terms as the candidate's."""
    here, there = summed(program), through(candidate)
    longer, without = match_extents(here, there)
    assert faults(longer) == faults(without) == []
    assert {item.tensor.shape for graph in (longer, without) for item in graph.inputs} == {shape}
    assert not any(isinstance(op, Op) and op.kind is K.PAD for op in without.ops)
    assert expressions(without).outputs == expressions(longer).outputs
    assert expressions(there).outputs != expressions(here).outputs


def test_an_input_that_is_read_at_two_extents_stays_as_it_is() -> None:
    program = summed(lambda g, x: x)
    made = Wrapped(program)
    padded = made.padded(0, (12, 19), (12, 32))
    graph = made.graph(made.add(rows(program, 0)))
    both = replace(graph, ops=(*graph.ops, replace(rows(program, 0), operands=(padded,))), outputs=(3,))
    assert match_extents(program, both) == (program, both)


def test_a_pad_that_is_made_twice_is_one_tail() -> None:
    program = summed(lambda g, x: g.square(x))
    made = Wrapped(program)
    one, two = (made.padded(0, (12, 19), (12, 32)) for _ in range(2))
    graph = made.graph(made.add(replace(rows(program, 0, 2), operands=(one, two))))
    longer, without = match_extents(program, graph)
    assert [item.tensor.shape for item in without.inputs] == [(12, 32)]
    assert expressions(longer).outputs == expressions(without).outputs


def test_results_in_another_order() -> None:
    """A kernel's results may be in another order than the program's outputs; each is still that output."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(5, 37), name="x")
    g.mark_output(g.exp(x))
    g.mark_output(g.sum(x, 1))
    program = g.freeze()
    made = Wrapped(program)
    padded = made.padded(0, (5, 37), (5, 48))
    block = BlockGraph(
        (5, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),),
        (Op(K.SUM, (0,), Attrs(dim=1)), Op(K.EXP, (0,)), Op(K.ACCUM_SUM, (1,)), Op(K.ACCUM_SUM, (2,))),
        (OutputSaver(3, (0, None, None)), OutputSaver(4, (0, None, None))),
    )
    first = made.add(GraphDefined((padded,), block))
    cut = made.cut(first + 1, (5, 48), (5, 37))
    found = decompose_remainder_tiles(program, made.graph(cut, first))
    assert found is not None
    types = kernel_types(found.program)
    assert [types[n].shape for n in found.program.outputs] == [(5, 1), (5, 48)]
    values = np.random.default_rng(0).normal(size=(5, 37))
    for mine, theirs in zip(
        float64_reference.run(found.padded, [values]), float64_reference.run(program, [values]), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_two_slices_of_one_result() -> None:
    """Outputs that are slices of one kernel's result, and one that is the result itself."""
    program, graph = chain((5, 9), (8, 16), (2, 2))
    made = Wrapped(program)
    made.ops, made.count = list(graph.ops[:5]), 7
    a = made.add(Op(K.SLICE, (6,), Attrs(dim=0, start=0, stop=5)))
    b = made.add(Op(K.SLICE, (a,), Attrs(dim=1, start=2, stop=9)))
    both = made.graph(a, b, 6)
    found = split_pads_and_slices(both)
    assert found is not None
    wrapping, inner = found
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(5, 9)) for _ in range(2)]
    again = wrapping.around(both.inputs, inner)
    for mine, theirs in zip(float64_reference.run(again, arrays), float64_reference.run(both, arrays), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_programs_at_other_extents() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(197, 768), name="x")
    g.mark_output(g.transpose(g.reshape(g.silu(x), (197, 12, 64)), 0, 1))
    program = g.freeze()
    found = resize(program, [(208, 768)])
    assert found is not None
    assert kernel_types(found)[found.outputs[0]].shape == (12, 208, 64)
    assert resize(program, [(197, 780)]) is None  # 12 heads of 64 are 768
    assert resize(program, [(197, 768)]) == program
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(20, 30), name="x")
    g.mark_output(g.reshape(x, (600,)))
    assert resize(g.freeze(), [(32, 30)]) is None
    _, graph = product(19, 37, 45, (16, 16, 16))
    assert resize(replace(graph), [(19, 37), (37, 45)]) is None  # not a program


@pytest.mark.parametrize("eps", [None, 1e-5])
def test_a_mean_keeps_its_divisor(eps: float | None) -> None:
    """Zeros behind the end of what means run over change nothing."""
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(5, 19), name="x"), g.new_input(dims=(19,), name="w")
    g.mark_output(g.mul(g.mean(x, 1), g.rms_norm(x, (19,), w, eps=eps)))
    g.mark_output(g.mean(x, 0))
    program = g.freeze()
    longer = resize(program, [(5, 32), (32,)])
    assert longer is not None
    assert not any(isinstance(op, Op) and op.kind is K.RMS_NORM for op in longer.ops)
    rng = np.random.default_rng(0)
    values, weight = rng.normal(size=(5, 19)), rng.normal(size=(19,))
    given = [np.pad(values, ((0, 0), (0, 13))), np.pad(weight, (0, 13))]
    for mine, theirs in zip(
        float64_reference.run(longer, given), float64_reference.run(program, [values, weight]), strict=True
    ):
        np.testing.assert_allclose(mine[:, :19], theirs, rtol=1e-12)
