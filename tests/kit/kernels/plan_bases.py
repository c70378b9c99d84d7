"""Kernels of the examples' candidates at reduced extents, as Plans and Programs, for tests that put faults in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.kernels.lowering.assemble import lower
from mirage_formal.kernels.planning import planner
from mirage_formal.kernels.planning.memory import Memory, Request, allocate
from mirage_formal.kernels.planning.steps import Steps
from mirage_formal.kernels.program.plan import Plan
from mirage_formal.kernels.program.program import Program
from mirage_formal.run.kernel_build.stable import stable
from tests.kit.graphs import workloads as w
from tests.kit.kernels.lowering_kit import TARGET, alone

#: Program and candidate at reduced extents.
GRAPHS: dict[str, tuple[KernelGraph, KernelGraph]] = {
    "split": (
        w.attention(b=2, m=16, d=16, n=128, e=16),
        w.attention_split(b=2, m=16, d=16, n=128, e=16, split=2, loop=2),
    ),
    "one": (w.attention(b=1, m=32, d=32, n=160, e=16), w.attention_one(b=1, m=32, d=32, n=160, e=16, rows=2, loop=10)),
    "rmsnorm": (w.rmsnorm(2, 256, 128), w.rmsnorm_fused(2, 256, 128, grid=2, loop=16)),
    "lora": (w.lora(16, 256, 128, 16), w.lora_fused(16, 256, 128, 16, grid=2, loop=2)),
    "gated_mlp": (w.gated_mlp(8, 192, 128), w.gated_mlp_fused(8, 192, 128, grid=2, loop=12)),
    "ntrans": (w.ntrans(4, 1024), w.ntrans_fused(4, 1024, grid=4)),
    "decode": (
        w.attention(b=8, m=1, d=32, n=128, e=32),
        w.attention_split(b=8, m=1, d=32, n=128, e=32, split=2, loop=2),
    ),
}


@dataclass(frozen=True, slots=True)
class Base:
    """A kernel without faults.

    Attributes:
        name: Its name.
        graph: The kernel alone, as a µGraph.
        computed: The program.
        candidate: The candidate for it, with running maxima.
        position: Position of the kernel in the candidate.
        plan, program: Its Plan and Program.
        tight: The Plan whose buffers take the fewest bytes, and the lives of the buffers that it rests on.
    """

    name: str
    graph: KernelGraph
    computed: KernelGraph
    candidate: KernelGraph
    position: int
    plan: Plan
    program: Program
    tight: Plan
    requests: tuple[Request, ...]


@cache
def bases() -> dict[str, Base]:
    """The kernels of all candidates, with running maxima where exponentials are summed."""
    out: dict[str, Base] = {}
    for name, (program, candidate) in GRAPHS.items():
        found = stable(candidate).graph
        types = kernel_types(found)
        for position, op in enumerate(found.ops):
            assert isinstance(op, GraphDefined)
            graph = alone(op, tuple(types[n] for n in op.operands))
            plan = planner.make_plan(graph, 0, TARGET)
            tight, requests = placed(graph)
            key = name if len(found.ops) == 1 else f"{name} {position}"
            out[key] = Base(key, graph, program, found, position, plan, lower(plan), tight, requests)
    return out


def placed(graph: KernelGraph, lives: tuple[Request, ...] | None = None) -> tuple[Plan, tuple[Request, ...]]:
    """A Plan by the tightest memory plan for given lives of the buffers (those that are right, if none are given).

    Barriers are those of the right lives: the fault is in the memory plan alone.
    """
    seen: list[Memory] = []
    requests: list[tuple[Request, ...]] = []
    real = planner._placed

    def tightest(steps: Steps, most: int) -> Memory:
        requests.append(steps.requests)
        seen.append(allocate(steps.requests))
        return seen[-1]

    planner._placed = tightest
    try:
        plan = planner.make_plan(graph, 0, TARGET)
    finally:
        planner._placed = real
    chosen = next(r for r, m in zip(requests, seen, strict=True) if dict(m.offsets) == offsets(plan))
    if lives is not None:
        moved = allocate(lives).offsets
        plan = replace(plan, buffers=tuple(replace(b, offset=moved[b.name]) for b in plan.buffers))
    return plan, chosen


def offsets(plan: Plan) -> dict[str, int]:
    """Where buffers lie."""
    return {buffer.name: buffer.offset for buffer in plan.buffers}
