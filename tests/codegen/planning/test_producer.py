"""Schedules with a producer: a warpgroup of its own copies the tiles, and others do not meet in an iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from mirage_formal.codegen.generate import _add_wait, generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.program.step import AwaitTile, OverlapProducts, ReleaseTile
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.device.emulate import run_kernel
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.kernels.example_kernels import TARGET, alone, inputs_for

K = OpKind


def attention(
    keys: int = 256, iterations: int = 4, head: int = 64, *, norm: bool = False, dtype: DType = DType.FLOAT16
) -> KernelGraph:
    """Attention of 128 queries, of two heads in two blocks."""
    ops: list[Op] = []

    def emit(op: OpKind, *operands: int) -> int:
        ops.append(Op(op, operands, Attrs(dim=1 if op is K.RMS_NORM else None)))
        return 2 + len(ops)

    operand = emit(K.RMS_NORM, 1) if norm else 1
    weights = emit(K.EXP, emit(K.MATMUL, 0, operand))
    total = emit(K.ACCUM_SUM_LAST, weights)
    found = emit(K.DIV, emit(K.ACCUM_SUM, emit(K.MATMUL, weights, 2)), total)
    maps = ((0, None, None), None), ((0, None, None), 2), ((0, None, None), 1)
    block = BlockGraph(
        grid=(2, 1, 1),
        block=(256, 1, 1),
        forloop_range=iterations,
        reduction_dimx=64,
        inputs=tuple(InputIterator(*one) for one in maps),
        ops=tuple(ops),
        outputs=(OutputSaver(found, (0, None, None)),),
    )
    shapes = (2, 128, head), (2, head, keys), (2, keys, head)
    return alone(GraphDefined((0, 1, 2), block), [DTensor(shape, dtype) for shape in shapes])


def produced(graph: KernelGraph) -> list[Schedule]:
    return [one for one in schedules(graph, 0, TARGET) if one.producer]


def kernel(graph: KernelGraph, schedule: Schedule) -> GeneratedKernel:
    (found,) = generate(graph, TARGET, {0: schedule}).steps
    assert isinstance(found, GeneratedKernel)
    return found


def copies(program: ir.Program) -> list[ir.TileCopy]:
    return [one for one in ir.all_statements(program.producer) if isinstance(one, ir.TileCopy)]


def changed(program: ir.Program, change: Callable[[ir.Stmt], ir.Stmt | None]) -> ir.Program:
    """The Program with other statements of its producer and its body; None leaves one out."""

    def inside(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for one in body:
            new = replace(one, body=inside(one.body)) if isinstance(one, ir.For | ir.If) else change(one)
            out += [] if new is None else [new]
        return tuple(out)

    return replace(program, producer=inside(program.producer), body=inside(program.body))


def plus(e: ir.IntExpr, n: int) -> ir.IntExpr:
    return ir.IntBin(ir.IntOp.ADD, e, ir.Int(n))


def test_tuning_tries_them_first_where_there_are_warpgroups() -> None:
    graph = attention()
    first, *others = schedules(graph, 0, TARGET)
    assert first.producer
    assert first.ahead
    assert first.threads == 256
    assert any(one.producer and not one.ahead for one in others)
    assert make_plan(graph, 0, TARGET).schedule in others
    assert not any(one.producer for one in schedules(graph, 0, load_target("a100")))


@pytest.mark.parametrize("ahead", [False, True])
def test_threads_do_not_meet_in_an_iteration(ahead: bool) -> None:
    graph = attention()
    schedule = next(one for one in produced(graph) if one.ahead == ahead)
    plan = make_plan(graph, 0, TARGET, schedule)
    program = kernel(graph, schedule).program
    assert not any(isinstance(step, ir.Barrier | ir.WaitGroups) for step in plan.loop)
    assert isinstance(plan.loop[-1], ReleaseTile)
    assert any(isinstance(step, OverlapProducts) for step in plan.loop) == ahead
    assert any(isinstance(step, AwaitTile) for step in plan.before) == ahead
    # Each tile is awaited by itself: that of the second product while the first one is computed.
    places = [at for at, step in enumerate(plan.loop) if isinstance(step, AwaitTile)]
    assert len(places) == 2 - ahead
    assert places[-1] >= 2
    assert program.launch_threads == program.threads + 128 == 384
    assert not any(isinstance(one, ir.CopyAsync) and one.param != "in0_x0" for one in ir.all_statements(program.body))
    assert [pipeline.slots for pipeline in program.pipelines] == [schedule.stages] * 2
    for pipeline in program.pipelines:
        own = [one for one in copies(program) if one.pipeline == pipeline.name]
        assert pipeline.bytes == sum(128 * one.rows for one in own) == 2 * 64 * 64
    assert len(program.maps) == 2


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize(("keys", "iterations", "head"), [(256, 4, 64), (384, 3, 128), (256, 2, 64)])
def test_they_compute_their_graphs(keys: int, iterations: int, head: int, dtype: DType) -> None:
    graph = attention(keys, iterations, head, dtype=dtype)
    drawn = inputs_for(graph, 1, 0.1)
    (wanted,) = reference(graph, drawn)
    found = produced(graph)
    assert found
    for schedule in {(one.ahead, one.stages >= iterations): one for one in found}.values():
        made = kernel(graph, schedule)
        assert isinstance(discharge_safety(made.program).verdict, Safe)
        assert isinstance(decide_realizes(graph, made, 1), Realizes)
        if dtype is DType.FLOAT16:
            (got,) = run_kernel(made.program, [one.astype(np.float16).reshape(-1) for one in drawn])
            error = np.abs(got.astype(np.float64).reshape(wanted.shape) - wanted).max()
            assert error < 0.01 * np.abs(wanted).max()


@pytest.mark.parametrize("ahead", [False, True])
def test_faults_of_order_are_found_without_running_it(ahead: bool) -> None:
    graph = attention(512, 4)
    schedule = next(one for one in produced(graph) if one.ahead == ahead and one.stages == 3 and one.cut == 1)
    program = kernel(graph, schedule).program
    assert isinstance(discharge_safety(program).verdict, Safe)
    faults: dict[str, Callable[[ir.Stmt], ir.Stmt | None]] = {
        "no wait": lambda one: None if isinstance(one, ir.Await) else one,
        "no release": lambda one: None if isinstance(one, ir.Release) else one,
        "no acquire": lambda one: None if isinstance(one, ir.Acquire) else one,
        "next item awaited": lambda one: replace(one, item=plus(one.item, 1)) if isinstance(one, ir.Await) else one,
        "next item released": lambda one: replace(one, item=plus(one.item, 1)) if isinstance(one, ir.Release) else one,
        "next slot read": lambda one: replace(one, b_at=plus(one.b_at, 2)) if isinstance(one, ir.WarpgroupMma) else one,
        "a row less": lambda one: replace(one, rows=one.rows - 8) if isinstance(one, ir.TileCopy) else one,
        "next row": lambda one: replace(one, source=plus(one.source, 8)) if isinstance(one, ir.TileCopy) else one,
    }
    for name, fault in faults.items():
        verdict = discharge_safety(changed(program, fault)).verdict
        assert isinstance(verdict, Unsafe), (name, verdict)


def test_one_product_overlaps_nothing() -> None:
    """A schedule that asks for it is refused, and not a fault of the planner."""
    block = BlockGraph(
        grid=(2, 1, 1),
        block=(256, 1, 1),
        forloop_range=4,
        reduction_dimx=64,
        inputs=(InputIterator((0, None, None), 1), InputIterator((None, None, None), 0)),
        ops=(Op(K.MATMUL, (0, 1), Attrs()), Op(K.ACCUM_SUM, (2,), Attrs())),
        outputs=(OutputSaver(3, (0, None, None)),),
    )
    graph = alone(GraphDefined((0, 1), block), [DTensor(shape, DType.FLOAT16) for shape in ((256, 256), (256, 64))])
    schedule = produced(graph)[0]
    assert not schedule.ahead
    with pytest.raises(UnsupportedError, match="at the beginning of an iteration and one at its end"):
        make_plan(graph, 0, TARGET, replace(schedule, ahead=True))


def test_a_slot_too_few_is_found_unsafe() -> None:
    graph = attention(512, 4)
    schedule = next(one for one in produced(graph) if one.stages == 3 and one.cut == 1)
    program = kernel(graph, schedule).program
    more = replace(program, pipelines=tuple(replace(one, slots=4) for one in program.pipelines))
    assert isinstance(discharge_safety(more).verdict, Unsafe)


def test_other_copies_compute_something_else() -> None:
    graph = attention()
    made = kernel(graph, produced(graph)[0])
    first, *_ = copies(made.program)
    changes: tuple[Callable[[ir.TileCopy], ir.TileCopy], ...] = (
        lambda one: replace(one, source=plus(one.source, 8)) if one == first else one,
        lambda one: replace(one, at=ir.Int(0)) if one.buffer == first.buffer else one,
        lambda one: replace(one, stride=one.stride // 2) if one == first else one,
    )
    for change in changes:
        program = changed(made.program, partial(_change_copy, change))
        verdict = decide_realizes(graph, replace(made, program=program), 1)
        assert isinstance(verdict, Deviates), verdict


def _change_copy(change: Callable[[ir.TileCopy], ir.TileCopy], one: ir.Stmt) -> ir.Stmt:
    return change(one) if isinstance(one, ir.TileCopy) else one


@pytest.mark.parametrize("given", [{0, 1, 2}, {0, 1}])
def test_a_producer_waits_for_the_launch_before_unless_it_copies_inputs(given: set[int]) -> None:
    graph = attention()
    made = kernel(graph, produced(graph)[0])
    program = _add_wait(made.program, made.values, given)
    assert isinstance(program.producer[0], ir.GridWait) == (given != {0, 1, 2})
    assert isinstance(discharge_safety(program).verdict, Safe)
    early = replace(program, producer=made.program.producer)
    assert isinstance(discharge_safety(early).verdict, Safe) == (given == {0, 1, 2})


def test_norms_of_tiles_need_a_barrier_so_there_is_no_producer() -> None:
    graph = attention(norm=True)
    assert not produced(graph)
    plain = next(one for one in schedules(graph, 0, TARGET) if one.warps and one.warps[0].warpgroup and not one.ahead)
    with pytest.raises(UnsupportedError, match="no exchange through shared memory"):
        make_plan(graph, 0, TARGET, replace(plain, threads=256, producer=True))


def test_tiles_of_the_loop_share_no_memory_with_others() -> None:
    """The producer fills them while others prepare: where they overlap, the Program is found unsafe."""
    graph = attention()
    program = kernel(graph, produced(graph)[0]).program
    ring = {one.buffer for one in copies(program)}
    inside = [one for one in program.shared if one.name in ring]
    outside = [one for one in program.shared if one.name not in ring]
    assert outside
    assert all(a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset for a in inside for b in outside)
    moved = replace(program, shared=tuple(replace(one, offset=0) if one in outside else one for one in program.shared))
    assert isinstance(discharge_safety(moved).verdict, Unsafe)
