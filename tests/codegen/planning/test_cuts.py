"""Iterations that are cut, so that a pipeline has copies on their way at all times: where they may be, and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.planning.schedules import FEWEST_STAGES, LINE, most_stages
from mirage_formal.codegen.program.plan import Plan, Schedule
from mirage_formal.codegen.program.program import WaitGroups
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import emulate
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind as K
from mirage_formal.graph.types import DTensor, DType, Shape
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs import workloads as w
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels import example_kernels, program_interpreter
from tests.kit.kernels.example_kernels import TARGET, alone, error, inputs_for, laid_out

WHOLE = (None, None, None)


def stable(graph: KernelGraph) -> KernelGraph:
    found = stabilize(graph)
    assert isinstance(found, KernelGraph)
    return found


def kernel(shapes: Sequence[Shape], loops: Sequence[int | None], ops: Sequence[Op], loop: int = 4) -> KernelGraph:
    """A kernel of one block that writes the last result; the loop splits the given dims of its inputs."""
    saver = OutputSaver(len(shapes) + sum(item.results for item in ops) - 1, WHOLE)
    inputs = tuple(load(WHOLE, dim) for dim in loops)
    block = BlockGraph((1, 1, 1), (128, 1, 1), loop, 4, inputs, tuple(ops), (saver,))
    return alone(GraphDefined(tuple(range(len(shapes))), block), [DTensor(s, DType.FLOAT16) for s in shapes])


def waits(plan: Plan) -> list[int]:
    return [step.left for step in plan.loop if isinstance(step, WaitGroups)]


def cut(graph: KernelGraph, count: int, position: int = 0) -> Plan:
    """A kernel with the schedule that it has anyway, but for the cut."""
    first = make_plan(graph, position, TARGET, generic=False).schedule
    return make_plan(graph, position, TARGET, replace(first, cut=count, stages=2))


# --- pipelines


@pytest.mark.parametrize(
    "graph",
    [
        w.rmsnorm_fused(b=16, loop=8),
        w.rmsnorm_fused(b=64, grid=192, loop=8),
        w.gated_mlp_fused(b=128, grid=128, loop=8),
        stable(w.attention_one(b=512, m=1, d=128, e=128, rows=1, loop=32)),
        *(g for row, g in example_kernels.fastest().items() if row in ("decode-b8", "decode-b16", "attn-b8")),
    ],
)
def test_a_copy_is_on_its_way_while_another_is_waited_for(graph: KernelGraph) -> None:
    plan = make_plan(graph, 0, TARGET)
    assert plan.stages >= FEWEST_STAGES
    assert waits(plan) != []
    assert min(waits(plan)) >= 1
    op = graph.ops[0]
    assert isinstance(op, GraphDefined)
    assert plan.forloop_range == op.graph.forloop_range * plan.schedule.cut
    assert make_plan(graph, 0, TARGET, plan.schedule) == plan


def test_the_stage_that_is_read_is_not_in_flight() -> None:
    assert most_stages(40 << 10, 64) == 5
    assert most_stages(64 << 10, 64) == 3
    assert most_stages(200 << 10, 64) == 2
    assert most_stages(1 << 10, 64) == 8
    assert most_stages(1 << 10, 3) == 3
    assert most_stages(0, 64) == 1


def test_deep_pipelines_are_not_cut() -> None:
    for graph in (w.gated_mlp_fused(), w.rmsnorm_fused(), w.attention_split(split=32, loop=2, rows=2)):
        assert make_plan(graph, 0, TARGET).schedule.cut == 1


def test_tiles_that_fit_only_when_cut_are_not_refused() -> None:
    graph = w.rmsnorm_fused(b=128, loop=4)
    plan = make_plan(graph, 0, TARGET)
    assert plan.schedule.cut > 1
    with pytest.raises(UnsupportedError, match="shared memory"):
        make_plan(graph, 0, TARGET, replace(plan.schedule, cut=1))


def test_cache_lines_stay_together() -> None:
    """Keys lie along rows of memory: pieces of them are whole cache lines, and two blocks share a multiprocessor."""
    plan = make_plan(example_kernels.fastest()["decode-b8"], 0, TARGET)
    keys = plan.inputs[1]
    assert keys.loop is not None
    assert plan.schedule.cut > 1
    assert plan.params[1].strides[keys.loop] == 1
    assert plan.tensors[1].shape[keys.loop] * 2 >= LINE
    assert 2 * (lower(plan).shared_bytes + 1024) <= TARGET.limits.shared_bytes_per_sm


# --- results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "graph",
    [
        w.rmsnorm_fused(b=8, k=256, n=64, grid=2, loop=2),
        w.rmsnorm_by_hand(b=2, k=256, n=96, grid=2, loop=2),
        w.gated_mlp_fused(b=4, k=256, n=128, grid=2, loop=2),
        w.lora_fused(b=16, k=256, n=128, grid=2, loop=2),
        stable(w.attention_one(b=1, m=32, n=256, rows=1, loop=2)),
        stable(w.attention_split(b=1, m=32, n=512, split=2, loop=2)),
        stable(w.qk_norm_one(b=1, m=32, n=256, rows=1, loop=2)),
        kernel([(4, 128)], [1], [op(K.EXP, 0), op(K.ACCUM_SUM_TO_DIMX, 1)]),
        kernel([(4, 64)], [1], [op(K.EXP, 0), op(K.ACCUM_CONCAT, 1, dim=1)]),
        kernel([(4, 64)], [1], [op(K.MAX, 0, dim=1), op(K.ACCUM_MAX, 1)]),
        kernel([(32, 6, 8)], [0], [op(K.SUM, 0, dim=0), op(K.SUM, 1, dim=1), op(K.ACCUM_SUM, 2)]),
        kernel([(16, 64), (16, 1)], [1, None], [op(K.DIV, 0, 1), op(K.ACCUM_MEAN_LAST, 2)]),
    ],
)
def test_results_are_what_they_were(graph: KernelGraph, count: int) -> None:
    plan = cut(graph, count)
    op = graph.ops[0]
    assert isinstance(op, GraphDefined)
    assert plan.forloop_range == op.graph.forloop_range * count
    alone_ = alone(GraphDefined(op.operands, op.graph), [item.tensor for item in graph.inputs])
    arrays = inputs_for(alone_, low=0.1)
    program = lower(plan)
    given = [laid_out(a, item) for a, item in zip(arrays, graph.inputs, strict=True)]
    assert isinstance(discharge_safety(program).verdict, Safe)
    wanted = reference(alone_, arrays)
    for run in (program_interpreter.run, emulate.run_kernel):
        found = run(program, given)
        assert max(error(f, v) for f, v in zip(found, wanted, strict=True)) < 8e-3


# --- what may not be cut


def running(*later: Op) -> list[Op]:
    """Scores of two queries, their running maximum (4, 5), and the exponential (7) of what is left of them."""
    return [op(K.MATMUL, 0, 1), op(K.RUNNING_MAX, 3, dim=1), op(K.SUB, 3, 4), op(K.EXP, 6), *later]


ATTENTION = ([(2, 32), (32, 64), (64, 16)], [None, 1, 0])


@pytest.mark.parametrize(
    "graph",
    [
        # The tiles themselves are summed: pieces are smaller ones.
        kernel([(4, 64)], [1], [op(K.ACCUM_SUM, 0)]),
        # The root of a sum is not the sum of roots; nor is the sum of what does not depend on the loop.
        kernel([(4, 64)], [1], [op(K.SUM, 0, dim=1), op(K.SQRT, 1), op(K.ACCUM_SUM, 2)]),
        kernel([(4, 64)], [1], [op(K.SUM, 0, dim=1), op(K.ACCUM_MAX, 1)]),
        kernel([(4, 64), (4, 8)], [1, None], [op(K.SUM, 0, dim=1), op(K.ADD, 2, 1), op(K.ACCUM_SUM, 3)]),
        # A factor for every position of a tile, the same in all iterations.
        kernel([(4, 64), (4, 16)], [1, None], [op(K.MUL, 0, 1), op(K.ACCUM_SUM_LAST, 2)]),
        # A concatenation of sums has a place for each iteration.
        kernel([(4, 64)], [1], [op(K.SUM, 0, dim=1), op(K.ACCUM_CONCAT, 1, dim=1)]),
        # Largest elements are joined by their sum.
        kernel([(4, 64)], [1], [op(K.MAX, 0, dim=1), op(K.ACCUM_SUM, 1)]),
        # The mean over iterations has another divisor if there are more of them.
        kernel([(4, 64)], [1], [op(K.SUM, 0, dim=1), op(K.ACCUM_MEAN_LAST, 1)]),
        # A piece would lack some of the positions that are kept.
        kernel([(4, 32)], [1], [op(K.ACCUM_SUM_TO_DIMX, 0)]),
        kernel([(4, 48)], [1], [op(K.ACCUM_SUM_TO_DIMX, 0)]),
        # Sums that are relative to a running maximum, without its factor; relative in another way; or not at all.
        kernel(*ATTENTION, running(op(K.MATMUL, 7, 2), op(K.ACCUM_SUM, 8))),
        kernel(*ATTENTION, running(op(K.SQUARE, 7), op(K.MATMUL, 8, 2), op(K.ACCUM_RESCALED_SUM, 9, 5))),
        kernel(*ATTENTION, running(op(K.ADD, 7, 4), op(K.MATMUL, 8, 2), op(K.ACCUM_RESCALED_SUM, 9, 5))),
        kernel(*ATTENTION, running(op(K.MATMUL, 3, 2), op(K.ACCUM_RESCALED_SUM, 8, 5))),
        # Sums over rows of what is relative to a maximum of each row.
        kernel([(2, 32), (32, 64), (2, 2)], [None, 1, None],
               running(op(K.MATMUL, 2, 7), op(K.ACCUM_RESCALED_SUM_LAST, 8, 5))),
    ],
)  # fmt: skip
def test_other_loops_are_not_cut(graph: KernelGraph) -> None:
    with pytest.raises(UnsupportedError, match="iterations that may be cut into 2"):
        cut(graph, 2)


def test_extents_that_the_pieces_do_not_divide() -> None:
    graph = kernel([(4, 60)], [1], [op(K.ACCUM_SUM_LAST, 0)])
    assert cut(graph, 5).forloop_range == 20
    with pytest.raises(UnsupportedError, match="iterations that may be cut into 2"):
        cut(graph, 2)
    single = kernel([(4, 20)], [None], [op(K.ACCUM_SUM_LAST, 0)], loop=1)
    with pytest.raises(UnsupportedError, match="iterations that may be cut"):
        make_plan(single, 0, TARGET, Schedule(128, 1, cut=2))


def test_operators_that_no_output_needs() -> None:
    """What has no tiles of that size is not cut, even if nothing reads it."""
    dead = op(K.MATMUL, 0, 1)  # of a whole tile
    graph = kernel([(4, 64), (16, 8)], [1, None], [dead, op(K.ACCUM_SUM_LAST, 0)])
    assert make_plan(graph, 0, TARGET).forloop_range == 4
    with pytest.raises(UnsupportedError, match="iterations that may be cut into 2"):
        cut(graph, 2)
