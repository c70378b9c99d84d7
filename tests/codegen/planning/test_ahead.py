"""Steps of later iterations: norms of tiles that are computed before the iteration whose products read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.planning.step_order import KernelSteps
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.plan import Plan, Schedule
from mirage_formal.codegen.program.register_layout import (
    WARP,
    Axis,
    Distribution,
    separate_lanes,
    vector_layout,
    warp_layout,
)
from mirage_formal.codegen.program.step import AdvanceStep, BeginProduct, EndProduct, Step
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.device.emulate import run_kernel
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.kernels.example_kernels import TARGET, alone, inputs_for

K = OpKind
#: For each attention, how many iterations ahead its steps are.
LEADS = {"plain": set(), "keys": {2}, "values": {1}, "keys and values": {1, 2}, "scores": {1}}


def attention(kind: str, iterations: int = 4) -> KernelGraph:
    """Attention of 64 queries, 64 keys in an iteration, with a norm of keys or values, or with scaled scores."""
    ops: list[Op] = []

    def emit(op: OpKind, *operands: int, dim: int | None = None) -> int:
        ops.append(Op(op, operands, Attrs(dim=dim)))
        return 2 + len(ops)

    keys, values, scale = 1, 2, None
    if "keys" in kind:
        keys = emit(K.RMS_NORM, keys, dim=1)
    if "values" in kind:
        values = emit(K.RMS_NORM, values, dim=2)
    if kind == "scores":
        scale = emit(K.RECIPROCAL, emit(K.SQRT, emit(K.MEAN, emit(K.SQUARE, 1), dim=1)))
    scores = emit(K.MATMUL, 0, keys)
    weights = emit(K.EXP, scores if scale is None else emit(K.MUL, scores, scale))
    total = emit(K.ACCUM_SUM_LAST, weights)
    found = emit(K.DIV, emit(K.ACCUM_SUM, emit(K.MATMUL, weights, values)), total)
    maps = ((0, 1, None), None), ((0, None, None), 2), ((0, None, None), 1)
    block = BlockGraph(
        grid=(2, 1, 1),
        block=(128, 1, 1),
        forloop_range=iterations,
        reduction_dimx=64,
        inputs=tuple(InputIterator(*one) for one in maps),
        ops=tuple(ops),
        outputs=(OutputSaver(found, (0, 1, None)),),
    )
    shapes = (2, 64, 64), (2, 64, 64 * iterations), (2, 64 * iterations, 64)
    return alone(GraphDefined((0, 1, 2), block), [DTensor(shape, DType.FLOAT16) for shape in shapes])


def ahead(graph: KernelGraph) -> list[Schedule]:
    return [one for one in schedules(graph, 0, TARGET) if one.ahead]


def kernel(graph: KernelGraph, schedule: Schedule) -> GeneratedKernel:
    (found,) = generate(graph, TARGET, {0: schedule}).steps
    assert isinstance(found, GeneratedKernel)
    return found


def leads(plan: Plan) -> set[int]:
    return {step.iterations for step in plan.loop if isinstance(step, AdvanceStep)}


@pytest.mark.parametrize("kind", LEADS)
def test_norms_of_tiles_are_ahead_of_the_product_that_reads_them(kind: str) -> None:
    graph = attention(kind)
    found = ahead(graph)
    assert found
    for schedule in found:
        plan = make_plan(graph, 0, TARGET, schedule)
        assert leads(plan) == LEADS[kind]
        assert sum(isinstance(step, ir.Barrier) for step in plan.loop) == 1
        begin = next(at for at, step in enumerate(plan.loop) if isinstance(step, BeginProduct))
        assert isinstance(plan.loop[-1], EndProduct)
        # The product runs beside the steps of later iterations as well.
        assert all(at > begin for at, step in enumerate(plan.loop) if isinstance(step, AdvanceStep))


@pytest.mark.parametrize("kind", LEADS)
def test_tuning_tries_them_first(kind: str) -> None:
    graph = attention(kind)
    first, second, *_ = schedules(graph, 0, TARGET)
    assert first.ahead
    assert second == make_plan(graph, 0, TARGET).schedule
    other = load_target("a100")
    assert next(schedules(graph, 0, other)) == make_plan(graph, 0, other).schedule


@pytest.mark.parametrize("kind", LEADS)
def test_they_compute_their_graphs(kind: str) -> None:
    graph = attention(kind)
    drawn = inputs_for(graph, 1, 0.1)
    (wanted,) = reference(graph, drawn)
    for schedule in ahead(graph):
        made = kernel(graph, schedule)
        assert isinstance(discharge_safety(made.program).verdict, Safe)
        assert isinstance(decide_realizes(graph, made, 1), Realizes)
        (found,) = run_kernel(made.program, [one.astype(np.float16).reshape(-1) for one in drawn])
        error = np.abs(found.astype(np.float64).reshape(wanted.shape) - wanted).max()
        assert error < 0.01 * np.abs(wanted).max()


@pytest.mark.parametrize(("iterations", "rounds"), [(6, 3), (5, 5)])
def test_results_take_turns_where_iterations_have_pairs(iterations: int, rounds: int) -> None:
    """What is begun for the next iteration is not copied; an odd number of iterations has no pairs."""
    graph = attention("keys", iterations)
    schedule = next(one for one in ahead(graph) if one.cut == 1)
    made = kernel(graph, schedule)
    (loop,) = (one for one in made.program.body if isinstance(one, ir.For) and one.var == "it")
    products = [one for one in loop.body if isinstance(one, ir.WarpgroupMma) and one.deferred]
    assert loop.extent == rounds
    assert len({one.d for one in products}) == len(products) == iterations // rounds
    copies = [one for one in ir.all_statements(loop.body) if isinstance(one, ir.SetReg) and "_next" in str(one.value)]
    assert (rounds == iterations) == any(isinstance(one.value, ir.Reg) for one in copies)
    drawn = inputs_for(graph, 2, 0.1)
    (wanted,) = reference(graph, drawn)
    (found,) = run_kernel(made.program, [one.astype(np.float16).reshape(-1) for one in drawn])
    assert np.abs(found.astype(np.float64).reshape(wanted.shape) - wanted).max() < 0.01 * np.abs(wanted).max()
    assert isinstance(discharge_safety(made.program).verdict, Safe)
    assert isinstance(decide_realizes(graph, made, 1), Realizes)


def test_more_iterations_ahead_need_more_stages() -> None:
    graph = attention("keys", 8)
    (schedule,) = (one for one in ahead(graph) if one.stages == 4 and one.cut == 1)
    with pytest.raises(UnsupportedError, match="enough stages"):
        make_plan(graph, 0, TARGET, replace(schedule, stages=3))
    plain = ahead(attention("plain", 8))
    assert min(one.stages for one in plain if one.cut == 1) == 3


def test_results_ahead_have_a_copy_for_each_iteration_that_they_are_alive_in() -> None:
    plan = make_plan(attention("keys and values"), 0, TARGET, ahead(attention("keys and values"))[0])
    staged = [
        tensor.placement.shared
        for number, tensor in enumerate(plan.tensors)
        if tensor.placement.shared is not None and tensor.placement.shared.stages > 1 and number not in plan.ring
    ]
    assert [one.stages for one in staged] == [2, 2]
    assert all(one.panels for one in staged)


@pytest.mark.parametrize("kind", ["keys", "values", "scores"])
def test_a_single_copy_of_a_result_ahead_is_found_unsafe(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Barriers are not what orders it, so the proof of safety has to see the copies."""
    graph = attention(kind)
    schedule = ahead(graph)[0]
    stage_results = KernelSteps._stage_results

    def one_copy(self: KernelSteps, step: Step, lead: int, leads: Mapping[int, int]) -> str:
        buffer = stage_results(self, step, lead, leads)
        for number, tensor in enumerate(self.tensors):
            placement = tensor.placement.shared
            if placement is not None and placement.buffer == buffer:
                self.tensors[number] = tensor.at(replace(tensor.placement, shared=replace(placement, stages=1)))
        return buffer

    monkeypatch.setattr(KernelSteps, "_stage_results", one_copy)
    assert isinstance(discharge_safety(kernel(graph, schedule).program).verdict, Unsafe)


@pytest.mark.parametrize(("threads", "rows", "cols"), [(128, 64, 64), (256, 64, 128), (256, 64, 64), (512, 8, 256)])
def test_a_warp_holds_whole_columns(threads: int, rows: int, cols: int) -> None:
    over = warp_layout(threads, rows, cols)
    assert over is not None
    held = [places(over, tid) for tid in range(threads)]
    assert sorted(one for own in held for one in own) == [(r, c) for r in range(rows) for c in range(cols)]
    for first in range(0, threads, WARP):
        own = {c for lane in held[first : first + WARP] for _, c in lane}
        assert len(own) == cols * WARP // threads
        # Pairs of columns that the lanes read at once lie in all 32 banks, once each.
        for at in range(0, len(held[first]), 2):
            read = [lane[at] for lane in held[first : first + WARP]]
            banks = [((c % 64 // 8 ^ r % 8) * 8 + c % 8) // 2 for r, c in read]
            assert sorted(banks) == list(range(WARP))


@pytest.mark.parametrize(("threads", "rows", "cols"), [(256, 64, 32), (128, 60, 64), (128, 64, 96), (128, 64, 512)])
def test_other_matrices_have_no_such_layout(threads: int, rows: int, cols: int) -> None:
    assert warp_layout(threads, rows, cols) is None


@pytest.mark.parametrize(("threads", "rows"), [(128, 64), (256, 128), (256, 64), (128, 16), (512, 64)])
def test_lanes_of_a_row_read_different_banks_from_those_of_its_neighbours(threads: int, rows: int) -> None:
    over = separate_lanes(vector_layout(threads, rows, 64, 8))
    held = [places(over, tid) for tid in range(threads)]
    assert sorted(one for own in held for one in own) == [(r, c) for r in range(rows) for c in range(64)]
    for first in range(0, threads, 8):  # as many as read 128 bytes at once
        for at in range(0, len(held[first]), 8):
            read = [lane[at] for lane in held[first : first + 8]]
            assert sorted(c // 8 ^ r % 8 for r, c in read) == list(range(8))


def test_other_layouts_keep_their_lanes() -> None:
    for over in (vector_layout(128, 128, 64, 8), vector_layout(128, 16, 64, 8, wide=True), warp_layout(128, 64, 64)):
        assert over is not None
        assert separate_lanes(over) == over


def places(over: Distribution, tid: int) -> list[tuple[int, int]]:
    """The rows and columns that a thread holds, in the order of its registers."""
    found = [(0, 0)]
    steps = [(one.axis, [tid // one.div % one.extent * one.stride]) for one in over.digits]
    steps += [(one.axis, [i * one.stride for i in range(one.extent)]) for one in over.slots]
    for axis, offsets in steps:
        found = [(r + by, c) if axis is Axis.ROW else (r, c + by) for r, c in found for by in offsets]
    return found
