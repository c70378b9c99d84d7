"""Plans: limits, pipelining, threads, memory, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.flat_graph import defined_tensors
from mirage_formal.codegen.program.plan import Phase
from mirage_formal.codegen.program.program import Commit
from mirage_formal.codegen.program.register_layout import Fragment, Warps
from mirage_formal.codegen.program.step import Fetch, Load, Multiplication, Operation, Prefetch
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.support.errors import GraphError, UnsupportedError
from tests.kit.graphs import workloads as w

TARGET = load_target("h200")
REPOSITORY = Path(__file__).resolve().parents[3]


def limited(shared: int) -> Target:
    return replace(
        TARGET, limits=replace(TARGET.limits, shared_bytes_per_block=shared, shared_bytes_per_sm=shared + 1024)
    )


def test_predefined_kernels_have_no_plan() -> None:
    with pytest.raises(GraphError, match="graph-defined"):
        make_plan(w.rmsnorm(), 0, TARGET)


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="shared memory"):
        make_plan(w.attention_one(), 0, limited(600))


@pytest.mark.parametrize(
    ("shared", "generic"), [(232_448, False), (101_376, False), (49_152, False), (32_768, False), (101_376, True)]
)
def test_plans_keep_to_the_limit(shared: int, generic: bool) -> None:
    for graph in (w.rmsnorm_fused(), w.attention_split(rows=4), w.gated_mlp_fused(), w.ntrans_fused()):
        plan = make_plan(graph, 0, limited(shared), generic=generic)
        program = lower(plan)
        assert program.shared_bytes <= shared
        assert plan.shared_lower_bound <= program.shared_bytes or not plan.buffers
        assert plan.stages <= plan.forloop_range


def test_less_memory_means_a_shallower_pipeline() -> None:
    """Fewer iterations' tiles are on their way, in smaller pieces if they would be less than three."""
    plans = [make_plan(w.gated_mlp_fused(), 0, limited(kib << 10)) for kib in (224, 100, 48, 32)]
    ahead = [plan.stages / plan.schedule.cut for plan in plans]
    assert ahead == sorted(ahead, reverse=True)
    assert ahead[0] >= 4
    assert ahead[-1] <= 2
    assert all(plan.stages >= 3 for plan in plans)


def test_blocks_that_share_a_multiprocessor_share_its_memory() -> None:
    few, many = w.gated_mlp_fused(grid=128, loop=16), w.gated_mlp_fused(grid=256, loop=16)
    one, two = (lower(make_plan(g, 0, TARGET)).shared_bytes for g in (few, many))
    assert one > TARGET.limits.shared_bytes_per_sm // 2
    assert two + 1024 <= TARGET.limits.shared_bytes_per_sm // 2


def test_short_loops_are_copied_as_a_whole() -> None:
    """With a place for every iteration all copies start before the loop."""
    plan = make_plan(w.attention_split(split=32, loop=2, rows=2), 0, TARGET)
    assert plan.stages == 2
    assert sum(isinstance(step, Prefetch) for step in plan.before) == 2
    assert not any(isinstance(step, Prefetch) for step in plan.loop)
    assert sum(isinstance(step, Commit) for step in plan.loop) == 1


def test_loop_invariant_work_is_done_once() -> None:
    plan = make_plan(w.qk_norm_one(), 0, TARGET)
    fetched = [step.tensor for step in plan.before if isinstance(step, Fetch)]
    assert fetched == [0]
    assert plan.ring == (1, 2)
    before = [step for step in plan.before if isinstance(step, Operation)]
    assert {plan.tensors[result].phase for step in before for result in defined_tensors(step.op)} == {Phase.BEFORE}
    assert len(before) >= 4  # square, sum, scale, root, product of the queries' norm


def test_many_rows_take_more_threads() -> None:
    few = make_plan(w.attention_one(rows=4), 0, TARGET)
    many = make_plan(w.attention_one(rows=1, loop=128), 0, TARGET)
    assert (few.threads, many.threads) == (128, 256)
    for plan in (few, many):
        registers = [tensor.placement.registers for tensor in plan.tensors]
        held = sum(over.count for over in registers if isinstance(over, Fragment))
        assert held <= 255


def test_odd_thread_counts_are_replaced() -> None:
    graph = w.rmsnorm_fused(2, 256, 96, 2, 4)
    (op,) = graph.ops
    assert isinstance(op, GraphDefined)
    for block, threads in (((96, 1, 1), 128), ((2048, 1, 1), 128), ((64, 1, 1), 64), ((16, 16, 1), 256)):
        changed = replace(graph, ops=(GraphDefined(op.operands, replace(op.graph, block=block)),))
        assert make_plan(changed, 0, TARGET).threads == threads


def test_inputs_of_kernels_without_products_go_to_registers() -> None:
    plan = make_plan(w.ntrans_fused(), 0, TARGET)
    assert sum(isinstance(step, Load) for step in plan.before) == 3
    assert not any(isinstance(step, Fetch) for step in plan.before)


def test_buffers_share_memory_where_it_is_short() -> None:
    roomy = make_plan(w.rmsnorm_fused(loop=8, grid=128), 0, TARGET)
    size = max(b.offset + b.bytes for b in roomy.buffers)
    ordered = sorted(roomy.buffers, key=lambda b: b.offset)
    assert all(a.offset + a.bytes <= b.offset for a, b in pairwise(ordered))
    tight = make_plan(w.rmsnorm_fused(loop=8, grid=128), 0, limited(roomy.shared_lower_bound + 128))
    assert tight.stages == roomy.stages
    assert max(b.offset + b.bytes for b in tight.buffers) < size
    assert tight.barriers > roomy.barriers


def test_parameters_are_operands_then_results() -> None:
    graph = w.attention_split()
    first, second = (make_plan(graph, index, TARGET) for index in (0, 1))
    names = [[param.name for param in plan.params] for plan in (first, second)]
    assert names == [["in0_Q", "in1_K", "in2_V", "out0_d3", "out1_d4"], ["in0_d3", "in1_d4", "out0_d5"]]
    assert [param.written for param in first.params] == [False] * 3 + [True] * 2
    assert first.params[3:] == tuple(
        replace(param, name=f"out{i}_d{3 + i}", written=True) for i, param in enumerate(second.params[:2])
    )
    assert (first.name, second.name) == ("kernel0", "kernel1")


def test_sums_around_the_loop_are_one() -> None:
    """A sum in the loop that is accumulated, and one of what was accumulated, are kept per thread until the end."""
    graph = w.rmsnorm_by_hand(b=2, k=256, n=96, grid=2, loop=4)
    plan = make_plan(graph, 0, TARGET)
    kinds = [type(op).__name__ for op in plan.ops]
    assert "Reduce" not in kinds
    assert kinds.count("Accumulate") == 2


def test_planning_loads_no_solver() -> None:
    code = """
import sys
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.target import load_target
from tests.kit.graphs.workloads import attention_one
make_plan(attention_one(), 0, load_target("h200"))
print(sorted({"z3", "cvc5", "galois", "sympy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "graph",
    [w.rmsnorm_fused(), w.attention_one(), w.qk_norm_one(), w.ntrans_fused(), w.gated_mlp_fused(), w.lora_fused()],
    ids=["norm and product", "attention", "normed keys", "norms", "two products", "adapters"],
)
def test_a_plan_s_schedule_gives_the_plan_again(graph: KernelGraph) -> None:
    plan = make_plan(graph, 0, TARGET)
    assert make_plan(graph, 0, TARGET, plan.schedule) == plan


def test_another_schedule_gives_another_plan() -> None:
    graph = w.gated_mlp_fused()
    first = make_plan(graph, 0, TARGET)
    assert first.stages > 2
    fewer = make_plan(graph, 0, TARGET, replace(first.schedule, stages=2))
    assert (fewer.stages, fewer.threads) == (2, first.threads)
    warps = tuple(Warps(1, w.count, 1) for w in first.schedule.warps)
    other = make_plan(graph, 0, TARGET, replace(first.schedule, warps=warps))
    shared = [step.warps for step in other.loop if isinstance(step, Multiplication)]
    assert set(shared) == set(warps)


def test_schedules_that_do_not_fit_are_refused() -> None:
    graph = w.gated_mlp_fused()
    first = make_plan(graph, 0, TARGET)
    with pytest.raises(UnsupportedError, match="shared memory"):
        make_plan(graph, 0, limited(32 << 10), first.schedule)
    with pytest.raises(UnsupportedError, match="warps of 2 products, got 0"):
        make_plan(graph, 0, TARGET, replace(first.schedule, warps=()))
