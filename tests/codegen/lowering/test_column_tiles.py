"""Tiles whose rows are neighbours in memory: read, added up and written along rows, against the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.layout import bank_conflicts
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import SharedRead, SharedVector, SharedWrite, Stmt, Value
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import emulate
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.example_kernels import TARGET, alone, compare, inputs_for

K = OpKind
N = None
NONE: DimMap = (N, N, N)
COLUMNS: DimMap = (1, N, N)


def statements(body: Sequence[Stmt]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        yield from statements(getattr(stmt, "body", ()))


def values(value: object) -> Iterator[Value]:
    """A value and what it is computed of."""
    yield value  # type: ignore[misc]
    for name in getattr(value, "__slots__", ()):
        yield from values(getattr(value, name))


def weights(
    rows: int, inner: int, cols: int, *, how: str = "norm", loop: int = 2, grid: int = 2, dtype: DType = DType.FLOAT16
) -> KernelGraph:
    """X of [rows, inner] times what is computed of W, [inner, cols] with neighbours along ``inner``.

    Args:
        rows: Rows of X.
        inner: What is summed.
        cols: Columns of W.
        how: "norm": the product over the norms of W's columns; "square": W squared is multiplied; "scaled": W times
            another matrix in row-major order.
        loop: Iterations.
        grid: Blocks along the columns.
        dtype: Element type.
    """
    types = [DTensor((rows, inner), dtype), DTensor((inner, cols), dtype)]
    inputs = [load(NONE, 1), load(COLUMNS, 0)]
    if how == "norm":
        ops = [
            op(K.MATMUL, 0, 1),
            op(K.SQUARE, 1),
            op(K.ACCUM_SUM, 2),
            op(K.ACCUM_SUM, 3),
            op(K.SUM, 5, dim=0),
            op(K.SQRT, 6),
            op(K.DIV, 4, 7),
        ]
    elif how == "square":
        ops = [op(K.SQUARE, 1), op(K.MATMUL, 0, 2), op(K.ACCUM_SUM, 3)]
    else:
        types.append(DTensor((inner, cols), dtype))
        inputs.append(load(COLUMNS, 0))
        ops = [op(K.MUL, 1, 2), op(K.MATMUL, 0, 3), op(K.ACCUM_SUM, 4)]
    savers = (OutputSaver(len(inputs) + len(ops) - 1, COLUMNS),)
    block = BlockGraph((grid, 1, 1), (128, 1, 1), loop, 1, tuple(inputs), tuple(ops), savers)
    return alone(GraphDefined(tuple(range(len(types))), block), types, {1: (1, inner)})


CASES = [
    *(pytest.param(weights(8, 128, 256, how=how), id=how) for how in ("norm", "square", "scaled")),
    *(pytest.param(weights(5, 96, 72, how=how), id=f"5 rows {how}") for how in ("norm", "square", "scaled")),
    *(pytest.param(weights(3, 40, 48, how=how), id=f"20 inner {how}") for how in ("norm", "square")),
    *(pytest.param(weights(12, 24, 16, how=how, loop=1), id=f"24 inner {how}") for how in ("norm", "square")),
    pytest.param(weights(8, 34, 24), id="17 inner norm"),
    pytest.param(weights(8, 128, 64, dtype=DType.BFLOAT16), id="bfloat16 norm"),
    pytest.param(weights(8, 128, 64, how="square", dtype=DType.BFLOAT16), id="bfloat16 square"),
    pytest.param(weights(4, 32, 16, dtype=DType.FLOAT32), id="float32 norm"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("graph", CASES)
@pytest.mark.parametrize("run", [program_interpreter.run, emulate.run_kernel], ids=["interpreter", "emulator"])
def test_against_the_reference(graph: KernelGraph, run: Any) -> None:
    tolerance = 6e-2 if graph.inputs[0].tensor.dtype is DType.BFLOAT16 else 8e-3
    compare(graph, arrays=inputs_for(graph), tolerance=tolerance, run=run)


@pytest.mark.parametrize("graph", CASES)
def test_safe(graph: KernelGraph) -> None:
    report = discharge_safety(lower(make_plan(graph, 0, TARGET)))
    assert isinstance(report.verdict, Safe), report.verdict


def tile_of(plan: Plan, number: int) -> str:
    placement = plan.tensors[number].placement.shared
    assert placement is not None
    assert placement.transposed
    # Threads next to each other read the same chunk of rows that follow one another, as ldmatrix does.
    assert bank_conflicts(placement) == 0
    return placement.buffer


def test_norms_of_columns_are_read_in_whole_chunks() -> None:
    plan = make_plan(weights(8, 256, 1024, loop=4), 0, TARGET)
    buffer = tile_of(plan, 1)
    found = list(statements(lower(plan).body))
    wide = [s for s in found if isinstance(s, SharedVector) and s.buffer == buffer]
    assert wide
    assert all(s.count == 8 for s in wide)
    single = [v for s in found for v in values(s) if isinstance(v, SharedRead) and v.buffer == buffer]
    assert not single


def test_a_computed_operand_is_written_as_it_was_read() -> None:
    plan = make_plan(weights(8, 256, 1024, how="square", loop=4), 0, TARGET)
    tile_of(plan, 1)
    buffer = tile_of(plan, 2)
    writes = [s for s in statements(lower(plan).body) if isinstance(s, SharedWrite) and s.buffer == buffer]
    assert writes
    assert all(len(s.values) == 8 for s in writes)


def reduced(kind: OpKind, dim: int, rows: int, cols: int) -> KernelGraph:
    """A reduction without products of a matrix whose rows are neighbours in memory."""
    types = [DTensor((rows, cols), DType.FLOAT16)]
    ops = (op(kind, 0, dim=dim), op(K.ACCUM_SUM, 1))
    grid, omap = ((2, 1, 1), COLUMNS) if dim == 0 else ((1, 1, 1), NONE)
    savers = (OutputSaver(2, omap),)
    block = BlockGraph(grid, (128, 1, 1), 1, 1, (load(omap, N),), ops, savers)
    return alone(GraphDefined((0,), block), types, {0: (1, rows)})


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", [K.SUM, K.MAX])
@pytest.mark.parametrize(("rows", "cols"), [(64, 32), (40, 6), (7, 12), (257, 4)])
def test_reductions(kind: OpKind, dim: int, rows: int, cols: int) -> None:
    graph = reduced(kind, dim, rows, cols)
    compare(graph, run=emulate.run_kernel)
    assert isinstance(discharge_safety(lower(make_plan(graph, 0, TARGET))).verdict, Safe)
