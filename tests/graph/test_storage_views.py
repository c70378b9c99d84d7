"""Results that lie in the memory of another tensor, against NumPy's own views."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, KernelOp, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import is_addressable, kernel_count, storage_locations
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.kernel_build.build import build
from mirage_formal.prove.equality.prove import prove
from mirage_formal.semantics import float64_reference

H200 = load_target("h200")


def moved(seed: int) -> KernelGraph:
    """A chain of moves of one input, which may have gaps and dims in any order; then a square, so that it is read."""
    draw = random.Random(seed)
    rank = draw.randint(1, 4)
    shape = [draw.choice([1, 2, 3, 4, 6]) for _ in range(rank)]
    order = draw.sample(range(rank), rank)
    step, strides = 1, [0] * rank
    for dim in order:
        strides[dim] = step
        step *= shape[dim] + draw.choice([0, 0, 1])
    graph = mf.new_kernel_graph()
    tensor = graph.new_input(dims=tuple(shape), strides=tuple(strides), name="x")
    for _ in range(draw.randint(1, 4)):
        match draw.choice(["transpose", "reshape", "repeat", "slice"]):
            case "slice":
                dim = draw.randrange(len(tensor.shape))
                start = draw.randrange(tensor.shape[dim])
                tensor = graph.slice(tensor, dim, start, draw.randint(start + 1, tensor.shape[dim]))
            case "transpose":
                tensor = graph.transpose(tensor, perm=draw.sample(range(len(tensor.shape)), len(tensor.shape)))
            case "reshape":
                left = prod(tensor.shape)
                target: list[int] = []
                while left > 1 and len(target) < 3:
                    target.append(draw.choice([d for d in range(1, left + 1) if left % d == 0]))
                    left //= target[-1]
                target.append(left)
                draw.shuffle(target)
                tensor = graph.reshape(tensor, target)
            case _:
                ones = [dim for dim, extent in enumerate(tensor.shape) if extent == 1]
                if ones:
                    tensor = graph.repeat(tensor, draw.choice(ones), 2)
    graph.mark_output(graph.square(tensor))
    return graph.freeze()


@pytest.mark.parametrize("seed", range(300))
def test_a_view_has_the_elements_of_the_result(seed: int) -> None:
    program = moved(seed)
    given = program.inputs[0]
    span = 1 + sum((n - 1) * s for n, s in zip(given.tensor.shape, given.strides, strict=True))
    memory = np.arange(float(span)) + 1
    known = storage_locations(program)

    def seen(tensor: int, shape: tuple[int, ...]) -> np.ndarray:
        steps = tuple(8 * step for step in known[tensor].strides)
        assert known[tensor].span(shape) <= span
        return np.lib.stride_tricks.as_strided(memory[known[tensor].offset :], shape, steps)

    values = [seen(0, given.tensor.shape)]
    for position in range(len(program.ops) - 1):  # all but the square
        tensor = 1 + position
        alone = KernelGraph(program.inputs, program.ops[: position + 1], (tensor,))
        (wanted,) = float64_reference.run(alone, [values[0]])
        values.append(wanted)
        if known[tensor].base == 0:
            np.testing.assert_array_equal(seen(tensor, wanted.shape), wanted)
            assert is_addressable(wanted.shape, known[tensor].strides)
        else:
            break  # a copy, and what follows lies in it


def test_reshapes_that_numpy_views_are_views() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 6, 8), name="x")
    a = graph.reshape(x, (24, 8))
    b = graph.transpose(a)  # [8, 24]
    c = graph.reshape(b, (2, 4, 24))
    d = graph.reshape(c, (192,))  # the rows of a transpose do not follow each other: a copy
    e = graph.reshape(d, (4, 48))
    graph.mark_output(graph.square(e))
    program = graph.freeze()
    assert [place.base for place in storage_locations(program)] == [0, 0, 0, 0, 4, 4, 6]
    assert kernel_count(program) == len(estimate(program, H200).kernels) == 2


def test_slices_are_views_with_an_offset() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 6, 8), name="x")
    a = graph.slice(x, 1, 2, 5)  # [4, 3, 8] from element 16 on
    b = graph.slice(graph.transpose(a, 1, 2), 1, 3, 7)  # [4, 4, 3]
    graph.mark_output(graph.square(b))
    graph.mark_output(graph.slice(x, 0, 1, 2))  # an output is a copy
    known = storage_locations(graph.freeze())
    assert (known[1].base, known[1].strides, known[1].offset) == (0, (48, 8, 1), 16)
    assert (known[3].base, known[3].strides, known[3].offset) == (0, (48, 1, 8), 19)
    assert known[3].span((4, 4, 3)) == 19 + 144 + 3 + 16 + 1
    assert known[5].base == 5
    assert kernel_count(graph.freeze()) == 2


def test_an_output_is_no_view() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="x")
    t = graph.transpose(x)
    graph.mark_output(t)
    graph.mark_output(graph.exp(t))
    assert [place.base for place in storage_locations(graph.freeze())] == [0, 1, 2]


def test_rows_that_overlap_are_copied() -> None:
    """A matrix product wants rows that follow each other; a repeated row has a step of 0."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input(dims=(1, 8), name="x"), graph.new_input(dims=(8, 4), name="w")
    graph.mark_output(graph.matmul(graph.repeat(x, 0, 16), w))
    assert kernel_count(graph.freeze()) == 2


def test_kernels_that_read_views_compute_the_program() -> None:
    """Predefined products and functions, on views of inputs and of results."""
    graph = mf.new_kernel_graph()
    q, k = graph.new_input(dims=(2, 16, 32), name="q"), graph.new_input(dims=(2, 64, 32), name="k")
    scores = graph.matmul(q, graph.transpose(k, 1, 2))  # [2, 16, 64]
    heads = graph.reshape(graph.exp(graph.scale(scores, 0.125)), (2, 16, 4, 16))
    turned = graph.transpose(heads, 1, 2)  # [2, 4, 16, 16]: a view of a result
    graph.mark_output(graph.add(graph.square(turned), turned))
    program = graph.freeze()
    made = build(program, program, H200)
    assert len(made.executable.launches) == kernel_count(program) == 5
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


@pytest.mark.parametrize("shown", [1, 2])
def test_an_output_in_another_shape_is_written_by_the_kernel_itself(shown: int) -> None:
    """One output lies where the kernel writes; a second one is a copy of it."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(16, 32), name="x")
    graph.mark_output(graph.reshape(graph.exp(x), (2, 8, 32)))
    if shown == 2:
        graph.mark_output(graph.reshape(graph.exp(x), (512, 1)))
    program = graph.freeze()
    block = BlockGraph(
        (2, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),),
        (Op(OpKind.EXP, (0,)), Op(OpKind.ACCUM_SUM, (1,))),
        (OutputSaver(2, (0, None, None)),),
    )
    shapes = [(2, 8, 32), (512, 1)][:shown]
    ops: tuple[KernelOp, ...] = (
        GraphDefined((0,), block),
        *(Op(OpKind.RESHAPE, (1,), Attrs(shape=shape)) for shape in shapes),
    )
    candidate = KernelGraph(program.inputs, ops, tuple(range(2, 2 + shown)))
    assert kernel_count(candidate) == shown
    assert storage_locations(candidate)[1].base == 2
    assert isinstance(prove(program, candidate), Equivalent)
    made = build(candidate, program, H200)
    assert len(made.executable.launches) == shown
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"


@pytest.mark.parametrize("twice", [False, True])
def test_a_copy_inside_a_graph_is_written_by_the_kernel_itself(twice: bool) -> None:
    """Heads side by side, as a product reads them, have no strides; another reader of the heads keeps the copy."""
    graph = mf.new_kernel_graph()
    x, w = graph.new_input(dims=(4, 16, 16), name="x"), graph.new_input(dims=(64, 32), name="w")
    heads = graph.exp(x)
    graph.mark_output(graph.matmul(graph.reshape(graph.transpose(heads, perm=[1, 0, 2]), (16, 64)), w))
    if twice:
        graph.mark_output(graph.square(heads))
    program = graph.freeze()
    block = BlockGraph(
        (4, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),),
        (Op(OpKind.EXP, (0,)), Op(OpKind.ACCUM_SUM, (1,))),
        (OutputSaver(2, (0, None, None)),),
    )
    ops: tuple[KernelOp, ...] = (
        GraphDefined((0,), block),
        Op(OpKind.TRANSPOSE, (2,), Attrs(perm=(1, 0, 2))),
        Op(OpKind.RESHAPE, (3,), Attrs(shape=(16, 64))),
        Op(OpKind.MATMUL, (4, 1)),
        *([Op(OpKind.SQUARE, (2,))] if twice else []),
    )
    candidate = KernelGraph(program.inputs, ops, (5, 6)[: 1 + twice])
    assert kernel_count(candidate) == 2 + 2 * twice
    assert (storage_locations(candidate)[2].base == 4) is not twice
    assert isinstance(prove(program, candidate), Equivalent)
    made = build(candidate, program, H200)
    assert len(made.executable.launches) == kernel_count(candidate)
    assert compare_on_emulator(made, scales=(0.1, 1.0)).answer == "within"
