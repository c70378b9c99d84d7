"""Schedules: what may be asked for, and that every one of them computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program.register_layout import Warps
from mirage_formal.codegen.target import load_target
from mirage_formal.device import emulate
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import discharge_obligations
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs import workloads as w
from tests.kit.kernels.example_kernels import inputs_for, kernels, laid_out

H200 = load_target("h200")
GRAPHS: dict[str, Callable[..., KernelGraph]] = {
    "gated_mlp": w.gated_mlp_fused,
    "attention": w.attention_one,
    "qk_norm": w.qk_norm_one,
}


@pytest.mark.parametrize("name", list(GRAPHS))
def test_schedules_are_distinct_and_begin_with_the_planner_s_own(name: str) -> None:
    """Only one that begins a product ahead may come before it."""
    graph = GRAPHS[name]()
    found = list(schedules(graph, 0, H200))
    assert found[found[0].ahead] == make_plan(graph, 0, H200).schedule
    assert len(found) == len(set(found)) > 20
    assert {one.threads for one in found} >= {64, 128, 256}
    for one in found:
        plan = make_plan(graph, 0, H200, one)
        assert plan.schedule == one
        assert lower(plan).shared_bytes <= H200.limits.shared_bytes_per_block


@pytest.mark.parametrize("name", ["gated_mlp", "attention"])
def test_every_schedule_computes_the_same(name: str) -> None:
    """A sample of them, on the emulator, at reduced extents; obligations hold for all of the sample."""
    (graph,) = kernels(GRAPHS[name]())
    found = list(schedules(graph, 0, H200))
    arrays = [a.astype(np.float64) for a in inputs_for(graph)]
    wanted = result_comparison.expected_results(graph, graph, arrays)
    for one in found[:: max(1, len(found) // 9)]:
        program = lower(make_plan(graph, 0, H200, one))
        discharge_obligations(program)
        (result,) = emulate.run_kernel(program, [laid_out(a, i) for a, i in zip(arrays, graph.inputs, strict=True)])
        off = np.abs(result.reshape(wanted.values[0].shape).astype(np.float64) - wanted.values[0])
        assert (off <= np.maximum(wanted.tolerances[0], 4e-3 * np.abs(wanted.values[0]).max())).all(), one


def test_what_is_no_schedule_of_a_kernel_is_refused() -> None:
    graph: KernelGraph = w.gated_mlp_fused()
    first = make_plan(graph, 0, H200).schedule
    wrong = {
        "power of two": replace(first, threads=96),
        "threads, got 2048": replace(first, threads=2048),
        "stages, got 0": replace(first, stages=0),
        "stages, got 9": replace(first, stages=9),
        "warps of 2 products, got 0": replace(first, warps=()),
        "expected warps that cut": replace(first, warps=tuple(Warps(3, 1, 1) for _ in first.warps)),
    }
    for said, schedule in wrong.items():
        with pytest.raises(UnsupportedError, match=said):
            make_plan(graph, 0, H200, schedule)
