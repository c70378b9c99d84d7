"""Reductions over a dim before the rows, in registers: kernels that combine partial results have no barrier."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product as every
from typing import Any

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.flat_graph import Product
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.program.register_layout import (
    Axis,
    Distribution,
    batched_layout,
    reduce_layout,
    replicated_digits,
    split_by_warp,
)
from mirage_formal.codegen.program.step import GenericOperation
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import emulate
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind as K
from mirage_formal.graph.types import DTensor, DType, Shape
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels import example_kernels, program_interpreter
from tests.kit.kernels.example_kernels import TARGET, alone, compare, inputs_for

WHOLE = (None, None, None)


def generic(plan: Plan) -> list[str]:
    """Operators that are computed the generic way."""
    steps = (*plan.before, *plan.loop, *plan.after)
    return [type(step.op).__name__ for step in steps if isinstance(step, GenericOperation)]


def kernel(shapes: Sequence[Shape], ops: Sequence[Op], loop: int = 1, dim: int | None = None) -> KernelGraph:
    """A kernel of one block that writes the last result; the loop splits ``dim`` of all inputs."""
    inputs = tuple(load(WHOLE, dim) for _ in shapes)
    saver = OutputSaver(len(shapes) + len(ops) - 1, WHOLE)
    block = BlockGraph((1, 1, 1), (128, 1, 1), loop, 4, inputs, tuple(ops), (saver,))
    return alone(GraphDefined(tuple(range(len(shapes))), block), [DTensor(s, DType.FLOAT16) for s in shapes])


def combine(parts: int, rows: int, cols: int, dim: int) -> KernelGraph:
    """Partial results and their weights, added up over the parts and divided."""
    shapes = [(parts, rows, n) if dim == 0 else (rows, parts, n) for n in (cols, 1)]
    ops = [op(K.SUM, 0, dim=dim), op(K.ACCUM_SUM, 2), op(K.SUM, 1, dim=dim), op(K.ACCUM_SUM, 4), op(K.DIV, 3, 5)]
    return kernel(shapes, ops)


#: Partial results (input 0) and their weights (1), added up over the parts once the maxima (2) are taken out.
WITHOUT_MAXIMA = (
    op(K.MAX, 2, dim=0),
    op(K.SUB, 2, 3),
    op(K.EXP, 4),
    op(K.MUL, 0, 5),
    op(K.MUL, 1, 5),
    op(K.SUM, 6, dim=0),
    op(K.SUM, 7, dim=0),
)


def rescaled(parts: int, rows: int, cols: int) -> KernelGraph:
    """The same with a maximum beside each partial result, which is taken out first."""
    shapes = [(parts, rows, n) for n in (cols, 1, 1)]
    return kernel(shapes, [*WITHOUT_MAXIMA, op(K.DIV, 8, 9), op(K.ACCUM_SUM, 10)])


def in_registers(plan: Plan, program: Program) -> None:
    assert generic(plan) == []
    assert plan.barriers == 0
    assert program.shared_bytes == 0
    assert "Barrier" not in str(program.body)


def random_shapes() -> Iterator[tuple[int, int, int]]:
    """Parts, rows and columns; about half of them powers of two."""
    rng = random.Random(7)
    while True:
        shape = tuple(rng.choice([rng.randint(2, 40), 2 ** rng.randint(1, 6)]) for _ in range(3))
        if shape[0] * shape[1] * shape[2] <= 1 << 14:
            yield shape[0], shape[1], shape[2]


SHAPES = [shape for shape, _ in zip(random_shapes(), range(12), strict=False)]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_partial_results_are_combined_in_registers(shape: tuple[int, int, int], dim: int) -> None:
    graph = combine(*shape, dim)
    plan, program, _ = compare(graph, arrays=inputs_for(graph, low=0.1))
    in_registers(plan, program)
    assert isinstance(discharge_safety(program).verdict, Safe)


@pytest.mark.parametrize("shape", SHAPES)
def test_maxima_are_taken_out_in_registers(shape: tuple[int, int, int]) -> None:
    graph = rescaled(*shape)
    plan, program, _ = compare(graph, arrays=inputs_for(graph, low=0.1), tolerance=4e-3)
    in_registers(plan, program)
    assert isinstance(discharge_safety(program).verdict, Safe)


def partial_sums(parts: int, rows: int, cols: int, sums: int) -> KernelGraph:
    """The weights are sums of several terms each, which are added up here: stacks of different columns."""
    shapes = [(parts, rows, cols), (parts, rows, sums), (parts, rows, 1)]
    return kernel(shapes, [*WITHOUT_MAXIMA, op(K.SUM, 9, dim=2), op(K.DIV, 8, 10), op(K.ACCUM_SUM, 11)])


@pytest.mark.parametrize(
    ("shape", "sums"), [((16, 2, 64), 32), ((4, 8, 64), 128), ((8, 4, 64), 256), ((5, 3, 40), 12), ((3, 7, 9), 64)]
)
def test_stacks_of_different_columns_are_dealt_alike(shape: tuple[int, int, int], sums: int) -> None:
    graph = partial_sums(*shape, sums)
    for run in (program_interpreter.run, emulate.run_kernel):
        plan, program, _ = compare(graph, arrays=inputs_for(graph, low=0.1), tolerance=4e-3, run=run)
    assert generic(plan) == []
    assert isinstance(discharge_safety(program).verdict, Safe)
    if -(-sums // 8) <= 32:
        in_registers(plan, program)


@pytest.mark.parametrize("shape", [(16, 4, 64), (5, 3, 40), (3, 7, 9), (33, 1, 16)])
def test_on_the_emulator(shape: tuple[int, int, int]) -> None:
    for graph in (combine(*shape, 0), combine(*shape, 1), rescaled(*shape)):
        compare(graph, arrays=inputs_for(graph, low=0.1), run=emulate.run_kernel, tolerance=4e-3)


def example_launches() -> Iterator[Any]:
    for row, graph in example_kernels.fastest().items():
        found = stabilize(graph)
        form = found if isinstance(found, KernelGraph) else graph
        for position, item in enumerate(form.ops):
            if isinstance(item, GraphDefined):
                yield pytest.param(form, position, id=f"{row} {position}")


@pytest.mark.parametrize(("graph", "position"), list(example_launches()))
def test_no_kernel_of_an_example_is_generic(graph: KernelGraph, position: int) -> None:
    plan = make_plan(graph, position, TARGET)
    assert generic(plan) == []
    if position > 0 and isinstance(graph.ops[0], GraphDefined) and not any(isinstance(o, Product) for o in plan.ops):
        program = lower(plan)
        in_registers(plan, program)
        # One vector of 16 bytes for each part, and one for the result.
        text = emit_cuda(program)
        assert "mf::load_vector<8>" in text
        assert "mf::store_vector" in text


def test_examples_have_combining_kernels() -> None:
    forms = [stabilize(graph) for graph in example_kernels.fastest().values()]
    assert sum(isinstance(form, KernelGraph) and len(form.ops) == 2 for form in forms) >= 6


# --- other kernels with planes


def test_what_follows_a_reduction_over_planes_stays_in_registers() -> None:
    """Columns of what is combined are normed, and planes meet what has one plane."""
    ops = [
        op(K.SUM, 0, dim=0),
        op(K.SQUARE, 1),
        op(K.SUM, 2, dim=2),
        op(K.DIV, 1, 3),
        op(K.SUB, 0, 4),
        op(K.ACCUM_SUM, 5),
    ]
    graph = kernel([(6, 5, 48)], ops)
    plan, program, _ = compare(graph, arrays=inputs_for(graph, low=0.1), tolerance=4e-3)
    in_registers(plan, program)


def test_planes_of_several_iterations() -> None:
    ops = [op(K.EXP, 0), op(K.SUM, 1, dim=0), op(K.ACCUM_SUM, 2), op(K.SQUARE, 3)]
    plan, program, _ = compare(kernel([(24, 6, 40)], ops, loop=3, dim=0))
    in_registers(plan, program)


def test_planes_between_other_dims() -> None:
    ops = [op(K.MAX, 0, dim=1), op(K.SUB, 0, 1), op(K.EXP, 2), op(K.SUM, 3, dim=1), op(K.ACCUM_SUM, 4)]
    plan, program, _ = compare(kernel([(3, 5, 2, 24)], ops))
    in_registers(plan, program)


@pytest.mark.parametrize("shape", [(512, 1, 8), (512, 4, 2), (300, 1, 24), (256, 1, 64)])
def test_many_planes_are_shared_by_warps(shape: tuple[int, int, int]) -> None:
    ops = [op(K.SUM, 0, dim=0), op(K.ACCUM_SUM, 1)]
    graph = kernel([shape], ops)
    plan, program, _ = compare(graph, arrays=inputs_for(graph, low=0.1))
    assert generic(plan) == []
    assert str(program.body).count("Barrier") <= 1
    assert isinstance(discharge_safety(program).verdict, Safe)


def test_two_reduced_dims_are_not_both_planes() -> None:
    """The larger stack decides; what it does not fit goes another way, and is right."""
    ops = [op(K.SUM, 0, dim=0), op(K.SUM, 0, dim=1), op(K.MUL, 1, 2), op(K.ACCUM_SUM, 3)]
    compare(kernel([(4, 6, 16)], ops))


def test_tensors_that_stay_are_not_held_beyond_the_registers() -> None:
    """What is read once passes through the registers; what is read again after a reduction has to stay in them."""
    ops = [op(K.SUM, 0, dim=0), op(K.ACCUM_SUM, 1)]
    once = make_plan(kernel([(16, 128, 64)], ops), 0, TARGET)
    assert (generic(once), once.barriers) == ([], 0)
    ops = [op(K.MAX, 0, dim=0), op(K.SUB, 0, 1), op(K.EXP, 2), op(K.ACCUM_SUM, 3)]
    held = make_plan(kernel([(16, 64, 64)], ops), 0, TARGET)
    assert max(t.placement.registers.count for t in held.tensors if t.placement.registers is not None) <= 128


@pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")
@pytest.mark.parametrize("rows", [16, 128])
def test_many_rows_do_not_spill(rows: int) -> None:
    for graph in (combine(16, rows, 64, 0), rescaled(16, rows, 64)):
        plan = make_plan(graph, 0, TARGET)
        assert generic(plan) == []
        compiled = nvrtc.compile(emit_cuda(lower(plan)), "sm_90a")
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)


# --- distributions


def held(over: Distribution) -> dict[tuple[int, ...], set[int]]:
    """The threads that hold each element, by its plane, row and column."""
    out: dict[tuple[int, ...], set[int]] = {}
    for tid, *at in every(range(over.threads), *(range(slot.extent) for slot in over.slots)):
        place = dict.fromkeys(Axis, 0)
        for digit in over.digits:
            place[digit.axis] += tid // digit.div % digit.extent * digit.stride
        for slot, value in zip(over.slots, at, strict=True):
            place[slot.axis] += value * slot.stride
        out.setdefault(tuple(place.values()), set()).add(tid)
    return out


@pytest.mark.parametrize("threads", [32, 128, 512])
@pytest.mark.parametrize(
    ("extents", "width"),
    [
        ((16, 4, 64), 8),
        ((2, 2, 8), 8),
        ((5, 3, 40), 8),
        ((40, 1, 9), 1),
        ((3, 33, 4), 4),
        ((64, 2, 16), 8),
        ((700, 2, 16), 8),
    ],
)
def test_stacks_are_dealt_out_once(threads: int, extents: tuple[int, int, int], width: int) -> None:
    over = batched_layout(threads, 0, extents, width, 64)
    found = held(over)
    copies = 1
    for _, extent in replicated_digits(over):
        copies *= extent
    assert set(every(*(range(n) for n in extents))) <= set(found)
    assert Counter(len(tids) for tids in found.values()).keys() == {copies}
    kept = reduce_layout(over, Axis.PLANE, 1)
    assert kept is not None
    inside = split_by_warp(kept[1])[1] == ()
    assert inside or extents[0] > 512, "planes lie in one warp, unless there are many"
    assert kept[0] == over.only(frozenset({Axis.ROW, Axis.COL}))


@pytest.mark.parametrize(("rows", "cols", "loop"), [(2, 256, 1), (2, 256, 3), (4, 1024, 2), (3, 80, 1)])
def test_columns_that_are_reduced_before_the_planes_are_dealt_to_all_threads(rows: int, cols: int, loop: int) -> None:
    """As of a mean over two dims: what is left for the planes is one column, of which a thread or two have all."""
    ops = [op(K.ACCUM_SUM_LAST, 0), op(K.SUM, 1, dim=1)]
    graph = kernel([(1, rows * loop, cols)], ops, loop, 1 if loop > 1 else None)
    plan, program, _ = compare(graph, run=emulate.run_kernel)
    assert generic(plan) == []
    held = plan.tensors[0].placement.registers
    assert held is not None
    assert held.count <= max(8, -(-rows * cols // plan.threads))
    assert isinstance(discharge_safety(program).verdict, Safe)
