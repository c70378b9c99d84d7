"""Distributions of matrices over the registers of a block: how they are made, compared and reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirage_formal.kernels.program.plan import BOTH, Axis, Digit, Distribution, PlanTensor, Slot, Warps

WARP: Final = 32
#: Rows, columns and inner extent of one product on the tensor cores.
MMA: Final = (16, 8, 16)

_SUBSETS: Final = (BOTH, frozenset({Axis.ROW}), frozenset({Axis.COL}), frozenset[Axis]())


def fragment(threads: int, warps: Warps, rows: int, cols: int) -> Distribution:
    """The accumulators of a product [rows, cols] over a grid of warps, padded up to whole tiles.

    Warp w has row part w % warps.rows, column part w / warps.rows % warps.cols; the rest numbers the inner part.
    """
    high = -(-rows // (MMA[0] * warps.rows))
    wide = -(-cols // (MMA[1] * warps.cols))
    digits = [Digit(1, 4, Axis.COL, 2), Digit(4, 8, Axis.ROW, 1)]
    if warps.rows > 1:
        digits.append(Digit(WARP, warps.rows, Axis.ROW, MMA[0] * high))
    if warps.cols > 1:
        digits.append(Digit(WARP * warps.rows, warps.cols, Axis.COL, MMA[1] * wide))
    slots = (Slot(Axis.ROW, high, 16), Slot(Axis.COL, wide, 8), Slot(Axis.ROW, 2, 8), Slot(Axis.COL, 2, 1))
    return Distribution(threads, tuple(digits), slots, fragment=True)


def inner_digit(warps: Warps) -> Digit:
    """The threads that hold partial sums of one element when the inner dim is cut."""
    return Digit(WARP * warps.rows * warps.cols, warps.inner, Axis.COL, 0)


def tiles(over: Distribution) -> tuple[int, int]:
    """16-row and 8-column tiles of one warp in the accumulators of a product."""
    return over.slots[0].extent, over.slots[1].extent


def vector(
    threads: int, rows: int, cols: int, width: int, *, kept: int | None = None, wide: bool = False
) -> Distribution:
    """A matrix dealt out in runs of ``width`` columns.

    A thread has as few rows as there are threads for, unless these are to be reduced: then as many as possible.

    Args:
        threads: Threads of the block.
        rows: Rows of the matrix.
        cols: Columns of the matrix.
        width: Columns of a run, a power of two.
        kept: The columns will be summed over all positions equal modulo ``kept``, which ``width`` divides; the digits
            are then cut there. Extents are powers of two times what one thread holds.
        wide: Whether rows will be reduced.
    """
    down = 1 if wide else min(_floor_power(rows), threads)
    across = min(threads // down, _ceil_power(-(-cols // width)))
    if kept is not None:
        # Digits are powers of two, and none may lie across a multiple of ``kept``.
        runs = kept // width
        across = across if runs & (runs - 1) == 0 else min(across, runs & -runs)
    down = min(_ceil_power(rows), threads // across)
    digits: list[Digit] = []
    if across > 1:
        inner = across if kept is None or across * width <= kept else kept // width
        if inner > 1:
            digits.append(Digit(1, inner, Axis.COL, width))
        if across > inner:
            digits.append(Digit(inner, across // inner, Axis.COL, width * inner))
    if down > 1:
        digits.append(Digit(across, down, Axis.ROW, 1))
    run = across * width
    slots = [Slot(Axis.ROW, -(-rows // down), down)]
    if kept is not None and run < kept and kept % run == 0:
        slots += [Slot(Axis.COL, -(-cols // kept), kept), Slot(Axis.COL, kept // run, run)]
    else:
        slots.append(Slot(Axis.COL, -(-cols // run), run))
    slots.append(Slot(Axis.COL, width, 1))
    return Distribution(threads, tuple(digits), tuple(slot for slot in slots if slot.extent > 1))


def _floor_power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _ceil_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def folded(over: Distribution, axis: Axis, kept: int) -> tuple[Distribution, tuple[Digit, ...]] | None:
    """What remains of a distribution when one axis is summed over positions equal modulo ``kept``.

    Returns:
        The distribution of the result once the threads that differ in the returned digits have added up; None if a
        digit or slot lies across the boundary.
    """
    digits: list[Digit] = []
    gone: list[Digit] = []
    slots: list[Slot] = []
    for digit in over.digits:
        if digit.axis is not axis or (digit.stride * digit.extent <= kept and kept > 1):
            digits.append(digit)
        elif digit.stride % kept == 0:
            gone.append(digit)
        else:
            return None
    for slot in over.slots:
        if slot.axis is not axis or (slot.stride * slot.extent <= kept and kept > 1):
            slots.append(slot)
        elif slot.stride % kept:
            return None
    return Distribution(over.threads, tuple(digits), tuple(slots), over.fragment and kept > 1), tuple(gone)


def folds(slot: Slot, axis: Axis, kept: int) -> bool:
    """Whether a reduction runs over a slot (see ``folded``)."""
    return slot.axis is axis and not (slot.stride * slot.extent <= kept and kept > 1)


def reads(operand: PlanTensor, rows: int, cols: int, over: Distribution) -> frozenset[Axis] | None:
    """How a computation of a [rows, cols] matrix over a distribution reads an operand in its own registers.

    Returns:
        The axes along which the operand's registers run; None if a thread does not hold what it needs.
    """
    found = operand.placement.registers
    for axes in _SUBSETS:
        if found != over.only(axes):
            continue
        row_fits = operand.rows == rows if Axis.ROW in axes else operand.rows == 1
        col_fits = operand.cols == cols if Axis.COL in axes else operand.cols == 1
        if row_fits and col_fits:
            return axes
    return None


def replicas(over: Distribution) -> tuple[tuple[int, int], ...]:
    """(div, extent) of the digits of a thread's number in which threads hold the same elements."""
    out: list[tuple[int, int]] = []
    place = 1
    for digit in sorted(over.digits, key=lambda d: d.div):
        if digit.div > place:
            out.append((place, digit.div // place))
        place = digit.div * digit.extent
    if place < over.threads:
        out.append((place, over.threads // place))
    return tuple(out)


def by_warp(digits: Sequence[Digit]) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
    """Digits cut at the size of a warp: those inside a warp, and those that number warps."""
    low: list[Digit] = []
    high: list[Digit] = []
    for digit in digits:
        inside = min(digit.extent, max(1, WARP // digit.div))
        if inside > 1:
            low.append(Digit(digit.div, inside, digit.axis, digit.stride))
        if digit.extent > inside:
            extent = digit.extent // inside
            high.append(Digit(digit.div * inside, extent, digit.axis, digit.stride * inside))
    return tuple(low), tuple(high)
