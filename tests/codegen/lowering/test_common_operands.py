"""Products with an operand in common: its fragments are read once, and what is added, and in which order, stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.lowering import assemble, mma_lowering
from mirage_formal.codegen.planning.layout import ProductShape, best_warps, product_cost
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import For, LoadMatrix, Program, Stmt
from mirage_formal.codegen.program.register_layout import Warps
from mirage_formal.codegen.program.step import MatrixMultiply, Multiplication, Step
from mirage_formal.codegen.source_map import kernel_lines
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from tests.codegen.lowering.test_lower_operators import NONE, kernel
from tests.codegen.lowering.test_ragged_products import products as products_of
from tests.codegen.lowering.test_ragged_products import right_everywhere
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.example_kernels import inputs_for, laid_out, planned

K = OpKind
Make = Callable[..., KernelGraph]


def gated(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """silu(X A) * X B, summed over four iterations."""
    ops = [op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.ACCUM_SUM, 3), op(K.ACCUM_SUM, 4), op(K.SILU, 5)]
    shapes = [(m, 4 * depth), (4 * depth, n), (4 * depth, n)]
    inputs = [load(NONE, 1), load(NONE, 0), load(NONE, 0)]
    return kernel(shapes, inputs, [*ops, op(K.MUL, 7, 6)], [(8, NONE)], loop=4, **more)


def stacked(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """X A * Y A: the right operand is the same."""
    ops = [op(K.MATMUL, 0, 2), op(K.MATMUL, 1, 2), op(K.ACCUM_SUM, 3), op(K.ACCUM_SUM, 4), op(K.MUL, 5, 6)]
    shapes = [(m, 4 * depth), (m, 4 * depth), (4 * depth, n)]
    inputs = [load(NONE, 1), load(NONE, 1), load(NONE, 0)]
    return kernel(shapes, inputs, ops, [(7, NONE)], loop=4, **more)


def three(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """X A * X B * X C."""
    ops = [op(K.MATMUL, 0, i) for i in (1, 2, 3)] + [op(K.ACCUM_SUM, i) for i in (4, 5, 6)]
    shapes = [(m, 4 * depth), *[(4 * depth, n)] * 3]
    inputs = [load(NONE, 1), *[load(NONE, 0)] * 3]
    return kernel(shapes, inputs, [*ops, op(K.MUL, 7, 8), op(K.MUL, 10, 9)], [(11, NONE)], loop=4, **more)


def adapter(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """X A + (X B) C in every iteration: results of their own, of which one is an operand of a third product."""
    ops = [op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.MATMUL, 5, 3), op(K.ADD, 4, 6), op(K.ACCUM_SUM, 7)]
    shapes = [(m, 4 * depth), (4 * depth, n), (4 * depth, 64), (64, n)]
    inputs = [load(NONE, 1), load(NONE, 0), load(NONE, 0), load(NONE)]
    return kernel(shapes, inputs, ops, [(8, NONE)], loop=4, **more)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the first schedule one with these warps, one for each product or the same for all."""

    def chosen(*wanted: Warps) -> None:
        def choose(shapes: list[ProductShape], count: int) -> tuple[Warps, ...]:
            return (*wanted, *[wanted[-1]] * len(shapes))[: len(shapes)]

        monkeypatch.setattr("mirage_formal.codegen.planning.schedules.choose_warps", choose)

    return chosen


def fragments(body: tuple[Stmt, ...], times: int = 1) -> Iterator[tuple[str, int]]:
    """The buffers from which fragments are read, and how often."""
    for stmt in body:
        if isinstance(stmt, For):
            yield from fragments(stmt.body, times * stmt.extent)
        elif isinstance(stmt, LoadMatrix):
            yield stmt.buffer, times


def reads(program: Program, buffer: str) -> int:
    """How often a thread reads a fragment of a buffer."""
    return sum(times for name, times in fragments(program.body) if name == buffer)


def apart(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The Program of a plan whose products are computed one after the other."""
    with monkeypatch.context() as patch:
        patch.setattr(mma_lowering, "group_products", lambda steps: ((step,) for step in steps))
        return assemble.lower(plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("make", "warps"),
    [
        (gated, Warps(1, 4, 1)),
        (gated, Warps(2, 1, 2)),
        (stacked, Warps(2, 2, 1)),
        (three, Warps(1, 2, 2)),
        (adapter, Warps(1, 4, 1)),
        (adapter, Warps(1, 1, 4)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_they_compute_the_same(
    make: Make, warps: Warps, turned: bool, shared: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated, interpreted and proved safe; to the last bit what they compute one after the other."""
    rows, cols = (8, 48) if turned else (24, 48)
    own = replace(warps, transposed=turned)
    shared(own, own, Warps(1, 4, 1, turned) if make is adapter else own)
    graph = make(rows, 64, cols)
    plan = right_everywhere(graph)
    assert all(step.warps.transposed == turned for step in products_of(plan))
    program, other = assemble.lower(plan), apart(plan, monkeypatch)
    common = plan.tensors[2 if make is stacked else 0].placement.shared
    assert common is not None
    count = 3 if make is three else 2
    joined = make is not adapter or warps.inner == 1  # partial sums of an adapter's products are exchanged at once
    assert reads(other, common.buffer) == (count if joined else 1) * reads(program, common.buffer) > 0
    arrays = [laid_out(array, item) for array, item in zip(inputs_for(graph), graph.inputs, strict=True)]
    found, wanted = (program_interpreter.run(one, arrays) for one in (program, other))
    for a, b in zip(found, wanted, strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("make", [gated, stacked])
@pytest.mark.parametrize(
    ("depth", "dtype", "tolerance"), [(5, DType.FLOAT16, 8e-3), (24, DType.BFLOAT16, 6e-2), (21, DType.FLOAT32, 2e-6)]
)
def test_ragged_depths(make: Make, depth: int, dtype: DType, tolerance: float) -> None:
    right_everywhere(make(20, depth, 21, dtype=dtype), tolerance)


def groups(plan: Plan) -> list[tuple[Step, ...]]:
    """The products of a plan's loop that are computed together."""
    return [group for group in mma_lowering.group_products(plan.loop) if len(group) > 1]


def test_other_warps_stay_apart(shared: Callable[..., None]) -> None:
    shared(Warps(1, 4, 1), Warps(2, 2, 1))
    assert not groups(right_everywhere(gated(24, 32, 48)))
    shared(Warps(1, 4, 1))
    (group,) = groups(planned(gated(40, 64, 48))[0])
    assert all(isinstance(step, Multiplication) for step in group)


def test_what_stands_between_keeps_them_apart(shared: Callable[..., None]) -> None:
    """A barrier, an exchange of partial sums, an operand in registers, a result that the other one reads."""
    shared(Warps(1, 4, 1))
    ((first, second),) = groups(planned(adapter(40, 64, 48))[0])
    assert isinstance(first, MatrixMultiply)
    assert isinstance(second, MatrixMultiply)
    assert [*mma_lowering.group_products((first, second))] == [(first, second)]
    barrier = next(step for step in planned(adapter(40, 64, 48))[0].loop if not isinstance(step, Multiplication))
    reading = replace(second, op=replace(second.op, b=first.op.result))
    for steps in (
        (first, barrier, second),
        (replace(first, scratch="x"), second),
        (replace(first, packed=True), second),
        (first, replace(second, packed=True)),
        (first, reading),
    ):
        assert [*mma_lowering.group_products(steps)] == [(step,) for step in steps]


def test_lines_of_all_that_are_computed_together(shared: Callable[..., None]) -> None:
    """Whoever reads the code is told of every product."""
    shared(Warps(1, 4, 1))
    graph = gated(40, 64, 48)
    plan, program = planned(graph)
    found = kernel_lines(program, plan, graph.ops[0], [item.tensor for item in graph.inputs])  # type: ignore[arg-type]
    assert any({"op0", "op1", "op2", "op3"} <= set(one.nodes) for one in found), found


def test_warps_in_common_are_ranked_by_what_they_save() -> None:
    """Two products of one left operand take the same warps, and cost less than two that have nothing in common."""
    one = ProductShape(64, 64, 128, 32, True)
    two = replace(one, beside=0)
    ranked = best_warps([one, two], 4, 3)
    assert all(a == b for a, b in ranked)
    assert product_cost(two, ranked[0][1], beside=True) < product_cost(two, ranked[0][1])
    assert product_cost(replace(two, beside_left=False), ranked[0][1], beside=True) < product_cost(two, ranked[0][1])
