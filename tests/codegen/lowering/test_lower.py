"""The six workloads and more, lowered: run on the emulator, safe, compiled without spills, no barrier to spare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.program import (
    Barrier,
    CopyAsync,
    For,
    GlobalVector,
    LoadMatrix,
    Mma,
    SharedRead,
    Stmt,
    WaitGroups,
)
from mirage_formal.codegen.program.step import Multiplication, MultiplyAccumulate, StoreResult
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import emulate
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from tests.kit.graphs import workloads as w
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.example_kernels import TARGET, alone, compare, inputs_for, laid_out, shrunk
from tests.kit.kernels.program_interpreter import Fault
from tests.kit.sampling import number

#: Right candidates at real extents: name, graph.
REAL = {
    "rmsnorm": w.rmsnorm_fused(),
    "rmsnorm by hand": w.rmsnorm_by_hand(b=16),
    "attention split": w.attention_split(),
    "attention split b8": w.attention_split(b=16, split=8, loop=16, rows=1),
    "attention one": w.attention_one(),
    "qk norm": w.qk_norm_one(),
    "lora": w.lora_fused(),
    "lora b8": w.lora_fused(b=128, rows=2),
    "gated mlp": w.gated_mlp_fused(),
    "gated mlp b16": w.gated_mlp_fused(b=128, grid=128),
    "ntrans": w.ntrans_fused(),
    "ntrans b16": w.ntrans_fused(b=128, grid=128),
    "decode": w.attention_split(b=64, m=1, d=128, e=128, split=2, loop=16),
}


def kernels() -> Iterator[Any]:
    for name, graph in REAL.items():
        types = kernel_types(graph)
        for index, op in enumerate(graph.ops):
            if isinstance(op, GraphDefined):
                yield pytest.param(op, tuple(types[n] for n in op.operands), id=f"{name} {index}")


KERNELS = pytest.mark.parametrize(("op", "operands"), list(kernels()))


def values(graph: KernelGraph) -> list[NDArray[Any]]:
    """Inputs for which no exponential overflows float16: where heads are normalised, queries and keys hardly meet."""
    arrays = inputs_for(graph)
    (first, *_) = graph.ops
    assert isinstance(first, GraphDefined)
    kinds = {item.kind.value for item in first.graph.ops if isinstance(item, Op)}
    if {"rms_norm", "exp"} <= kinds:
        arrays[0][..., 32:] *= 2.0**-7
        arrays[1][:, :32] *= 2.0**-4
    return arrays


def graph_elements(graph: KernelGraph) -> list[DTensor]:
    return [item.tensor for item in graph.inputs]


def statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        yield from statements(getattr(stmt, "body", ()))


@pytest.mark.sampled(2)
@KERNELS
def test_real_tiles_on_the_emulator(op: GraphDefined, operands: tuple[DTensor, ...]) -> None:
    graph = shrunk(op, operands)
    compare(graph, arrays=values(graph), run=emulate.run_kernel, tolerance=2e-3)


@pytest.mark.sampled(3)
@KERNELS
@pytest.mark.parametrize("generic", [False, True], ids=["auto", "generic"])
def test_real_tiles_against_the_reference(op: GraphDefined, operands: tuple[DTensor, ...], generic: bool) -> None:
    graph = shrunk(op, operands, 1 if generic else 2, 2)
    if generic and max(t.elements for t in graph_elements(graph)) > number(1 << 13, 1 << 15):
        pytest.skip("the interpreter would take long, and smaller kernels of the same operators are here")
    compare(graph, arrays=values(graph), generic=generic, tolerance=2e-3)


@KERNELS
def test_real_extents_are_safe(op: GraphDefined, operands: tuple[DTensor, ...]) -> None:
    program = lower(make_plan(alone(op, operands), 0, TARGET))
    report = discharge_safety(program)
    assert isinstance(report.verdict, Safe), report.verdict


@KERNELS
@pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")
def test_real_extents_compile_without_spills(op: GraphDefined, operands: tuple[DTensor, ...]) -> None:
    plan = make_plan(alone(op, operands), 0, TARGET)
    compiled = nvrtc.compile(emit_cuda(lower(plan)), "sm_90a")
    assert compiled.spill_bytes == 0
    assert compiled.registers * plan.threads <= TARGET.limits.registers_per_sm


@pytest.mark.sampled(2)
@KERNELS
def test_no_barrier_and_no_wait_to_spare(op: GraphDefined, operands: tuple[DTensor, ...]) -> None:
    """Every barrier and wait of a plan is needed: without it the interpreter finds a fault.

    There are more iterations than stages, so that slots of a ring are used again.
    """
    graph = shrunk(op, operands, 1, 9)
    plan = make_plan(graph, 0, TARGET)
    arrays = [laid_out(a, item) for a, item in zip(values(graph), graph.inputs, strict=True)]
    program_interpreter.run(lower(plan), arrays)
    for phase in ("before", "loop", "after"):
        steps = getattr(plan, phase)
        for position, step in enumerate(steps):
            if not isinstance(step, Barrier | WaitGroups):
                continue
            fewer: dict[str, Any] = {phase: (*steps[:position], *steps[position + 1 :])}
            without = replace(plan, **fewer)
            with pytest.raises(Fault):
                program_interpreter.run(lower(without), arrays)


def test_attention_keeps_scores_in_registers() -> None:
    graph = REAL["attention one"]
    plan = make_plan(graph, 0, TARGET)
    program = lower(plan)
    # Inside the loop shared memory holds nothing but the three inputs, and is read by ldmatrix alone.
    (loop,) = (stmt for stmt in program.body if isinstance(stmt, For) and stmt.var == "it")
    inside = list(statements(loop.body))
    assert any(isinstance(stmt, LoadMatrix) for stmt in inside)
    assert not any("Shared" in str(stmt) for stmt in inside if not hasattr(stmt, "body"))
    assert {b.name for b in program.shared if b.name.startswith("s")} == {"s0", "s1", "s2"}
    assert any(isinstance(step, Multiplication) and step.packed for step in plan.loop)
    assert plan.stages >= 3


def test_weights_are_streamed_in_a_deep_ring() -> None:
    for name in ("rmsnorm", "gated mlp"):
        plan = make_plan(REAL[name], 0, TARGET)
        program = lower(plan)
        assert plan.stages >= 4
        assert sum(isinstance(step, Barrier) for step in plan.loop) == 1
        copies = {stmt.param for stmt in statements(program.body) if isinstance(stmt, CopyAsync)}
        assert copies == {param.name for param in program.params if not param.written}
        product = next(step for step in plan.loop if isinstance(step, Multiplication))
        # Few rows: warps cut the inner dim and add up once, after the loop.
        assert product.warps.inner > 1
        assert isinstance(product, MultiplyAccumulate)


def test_rows_without_products_are_read_once() -> None:
    plan = make_plan(REAL["ntrans"], 0, TARGET)
    program = lower(plan)
    found = list(statements(program.body))
    loads = [stmt for stmt in found if isinstance(stmt, GlobalVector)]
    assert {stmt.count for stmt in loads} == {8}
    assert len({stmt.param for stmt in loads}) == len(loads) == 3
    assert program.shared_bytes <= 4096
    assert not any(isinstance(stmt, SharedRead | Mma) for stmt in found)
    assert isinstance((*plan.before, *plan.after)[-1], StoreResult)


def test_lowering_is_deterministic() -> None:
    for graph in (REAL["qk norm"], REAL["lora"]):
        assert emit_cuda(lower(make_plan(graph, 0, TARGET))) == emit_cuda(lower(make_plan(graph, 0, TARGET)))


def test_slabs_come_before_chunks() -> None:
    """A grid axis and the loop that split one dim: the block's slab first, the loop's chunk inside it."""
    op = w.op
    kernel = w.kernel(
        (0,),
        (2, 3, 1),
        4,
        [w.load((0, 0, None), 0)],
        [op(w.K.ACCUM_CONCAT, 0, dim=0)],
        [(1, (0, 0, None))],
    )
    graph = alone(kernel, [w.tensor("X", 48, 8).tensor])
    arrays = [np.arange(48 * 8, dtype=np.float32).reshape(48, 8)]
    compare(graph, arrays=arrays)
    compare(graph, arrays=arrays, run=emulate.run_kernel)
