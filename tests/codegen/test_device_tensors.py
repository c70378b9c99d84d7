"""Sectors of 32 bytes: what a tile takes of them, and what that does to the order of candidates."""

from __future__ import annotations

import pytest

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.device_tensors import sector_overhead
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType, row_major

H200 = load_target("h200")
K = OpKind


@pytest.mark.parametrize(
    ("tile", "shape", "strides", "width", "share"),
    [
        ((8, 16), (64, 64), None, 2, 1.0),
        ((8, 8), (64, 64), None, 2, 2.0),
        ((64, 1), (64, 64), None, 2, 16.0),
        ((64, 1), (64, 64), None, 4, 8.0),
        ((64, 1), (64, 64), (1, 64), 2, 1.0),  # columns next to each other
        ((1, 64), (64, 64), (1, 64), 2, 16.0),
        ((4, 8), (64, 8), None, 2, 1.0),  # whole rows, one behind the other
        ((4, 8), (64, 8), (16, 1), 2, 2.0),  # with gaps between them
        ((16, 1), (64, 1), None, 2, 1.0),
        ((4, 16), (64, 16), (0, 1), 2, 1.0),  # the same row again
        ((2, 1, 1), (2, 4, 4), None, 2, 16.0),
    ],
)
def test_what_a_tile_takes(
    tile: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...] | None, width: int, share: float
) -> None:
    assert sector_overhead(tile, shape, strides, width) == share


def exponential(axis: int, blocks: int, strides: tuple[int, int] | None = None) -> KernelGraph:
    """exp of [1024, 1024] by blocks of rows (axis 0) or of columns."""
    item = Input("x", DTensor((1024, 1024), DType.FLOAT16), strides or row_major((1024, 1024)))
    split = (axis, None, None)
    block = BlockGraph(
        (blocks, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator(split, None),),
        (Op(K.EXP, (0,)), Op(K.ACCUM_SUM, (1,))),
        (OutputSaver(2, split),),
    )
    return KernelGraph((item,), (GraphDefined((0,), block),), (1,))


def test_columns_of_one_element_cross_sixteen_times() -> None:
    rows, columns = (estimate(exponential(axis, 1024), H200).kernels[0] for axis in (0, 1))
    assert rows.l2_bytes == 2 * 2 * 1024 * 1024
    assert columns.l2_bytes == 16 * rows.l2_bytes
    assert columns.device_bytes == rows.device_bytes  # neighbouring blocks share what L2 holds
    assert columns.us > rows.us


def test_the_strides_decide() -> None:
    """Read by columns as they lie; the result is row-major."""
    (kernel,) = estimate(exponential(1, 1024, (1, 1024)), H200).kernels
    assert kernel.l2_bytes == (1 + 16) * 2 * 1024 * 1024


def test_nothing_is_charged_for_sixteen_neighbours() -> None:
    rows, columns = (estimate(exponential(axis, 64), H200).kernels[0] for axis in (0, 1))
    assert rows == columns
