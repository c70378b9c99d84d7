"""Safety of the kernels that lowering makes, and of these with small mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.safety.safety import Safe, SafetyReport, discharge_safety
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from tests.kit.graphs import workloads
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.safety_programs import mutants
from tests.kit.processes import calls

FULL: list[Callable[[], KernelGraph]] = [
    workloads.rmsnorm_fused,
    workloads.attention_split,
    workloads.qk_norm_one,
    workloads.lora_fused,
    workloads.gated_mlp_fused,
    workloads.ntrans_fused,
]
SMALL: list[Callable[[], KernelGraph]] = [
    lambda: workloads.rmsnorm_fused(2, 256, 128, 2, 4),
    lambda: workloads.lora_fused(16, 64, 128, 16, 2, 2),
    lambda: workloads.gated_mlp_fused(8, 128, 128, 2, 2),
    lambda: workloads.ntrans_fused(4, 256, 2),
]


def programs(graph: KernelGraph, *, generic: bool) -> list[Program]:
    target = load_target("h200")
    kernels = [number for number, op in enumerate(graph.ops) if isinstance(op, GraphDefined)]
    return [lower(make_plan(graph, number, target, generic=generic)) for number in kernels]


@pytest.mark.parametrize("generic", [False, True], ids=["fast", "generic"])
@pytest.mark.parametrize("make", FULL, ids=lambda make: make.__name__)
def test_kernels_are_safe_at_full_size(make: Callable[[], KernelGraph], generic: bool) -> None:
    for program in programs(make(), generic=generic):
        reports: list[SafetyReport] = []
        # At most 1.5 million calls, and five questions to solvers.
        calls(partial(lambda program, reports: reports.append(discharge_safety(program)), program, reports), 15_000_000)
        (report,) = reports
        assert isinstance(report.verdict, Safe), report.verdict
        assert len({entry.results for entry in report.discharged if entry.results}) <= 20


@pytest.mark.parametrize("make", SMALL, ids=["rmsnorm", "lora", "gated_mlp", "ntrans"])
def test_mistakes_in_them_are_found(make: Callable[[], KernelGraph]) -> None:
    (program,) = programs(make(), generic=False)
    assert program_interpreter.fault(program) == ""
    every = list(mutants(program))
    unsafe = 0
    for position in range(10):
        what, mutant = every[position * len(every) // 10]
        safe = isinstance(discharge_safety(mutant, second=False).verdict, Safe)
        fault = program_interpreter.fault(mutant)
        assert safe is not bool(fault), (what, fault)
        unsafe += not safe
    assert unsafe >= 3
