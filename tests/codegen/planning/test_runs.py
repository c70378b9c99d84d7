"""Runs of elements in kernels that read and write device memory: 16 bytes of the smallest type, and whole lines."""

from __future__ import annotations

from math import prod
from typing import Final

import pytest

from mirage_formal.codegen.program.register_layout import WARP, Axis, Distribution
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from tests.codegen.lowering.test_lower_operators import NONE, kernel
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import compare, planned

K = OpKind
LINE: Final = 128
FLOATS: Final = [dtype for dtype in DType if dtype.floating]


def gated(rows: int, cols: int, dtype: DType) -> KernelGraph:
    """relu(x) y: two inputs, no sums."""
    ops = [op(K.RELU, 0), op(K.MUL, 2, 1), op(K.ACCUM_SUM, 3)]
    return kernel([(rows, cols)] * 2, [load(NONE)] * 2, ops, [(4, NONE)], dtype=dtype)


def registers(graph: KernelGraph, shape: tuple[int, int]) -> list[Distribution]:
    """The distributions of a kernel's tensors of a shape."""
    plan, _ = planned(graph)
    found = (t.placement.registers for t in plan.tensors if t.shape == shape)
    return [one for one in found if one is not None]


def run_of(over: Distribution) -> int:
    """Columns next to each other that a thread has."""
    return next((slot.extent for slot in reversed(over.slots) if (slot.axis, slot.stride) == (Axis.COL, 1)), 1)


def lines(over: Distribution, cols: int, dtype: DType) -> int:
    """Lines of memory that the first warp's first read of a row-major matrix touches."""
    found = set()
    for thread in range(WARP):
        at = {Axis.PLANE: 0, Axis.ROW: 0, Axis.COL: 0}
        for digit in over.digits:
            at[digit.axis] += thread // digit.div % digit.extent * digit.stride
        found.add((at[Axis.ROW] * cols + at[Axis.COL]) * dtype.bytes // LINE)
    return len(found)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_warp_reads_whole_lines(dtype: DType) -> None:
    """A thread reads 16 bytes at once, and those of a warp what lies next to it, for any number of rows."""
    shape = 512, 2 * LINE // dtype.bytes
    for over in (found := registers(gated(*shape, dtype), shape)):
        assert run_of(over) * dtype.bytes == 16
        assert lines(over, shape[1], dtype) == WARP * 16 // LINE
        assert prod(slot.extent for slot in over.slots) * over.threads == prod(shape)
    assert found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(16, 64), (3, 40), (1, 24), (50, 4), (7, 1)])
def test_runs_of_every_type_compute_the_same(shape: tuple[int, int], dtype: DType) -> None:
    compare(gated(*shape, dtype))


def test_rows_that_are_added_up_keep_few_columns_a_thread() -> None:
    """Sums over columns: threads have whole parts of a row, so that few of them have to exchange what they hold."""
    shape = 512, 64
    ops = [op(K.SUM, 0, dim=1), op(K.DIV, 0, 1), op(K.ACCUM_SUM, 2)]
    graph = kernel([shape], [load(NONE)], ops, [(3, NONE)], dtype=DType.FLOAT32)
    (over, *_) = registers(graph, shape)
    assert run_of(over) == 4
    assert lines(over, shape[1], DType.FLOAT32) > WARP * 16 // LINE
    compare(graph)
