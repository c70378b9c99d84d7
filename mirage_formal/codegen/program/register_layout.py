"""Register layouts (distributions) of matrices over the threads of a block: construction, comparison and reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final

#: The number of warps that contribute to a sum from which on one lane of each writes for all; see ``lanes_per_slot``.
_MANY_WARPS: Final = 8
WARP: Final = 32
#: Rows, columns and inner extent of one product on the tensor cores.
MMA: Final = (16, 8, 16)
#: The cost of a float32 product in products of 16 bits: three products of TF32, each at half the rate.
FLOAT32_STEPS: Final = 6
#: Fewest adjacent threads that take adjacent runs, so that the loads of a warp cover whole sectors of 32 bytes if a run
#: has 8 bytes or more.
_SECTOR_THREADS: Final = 4


class Axis(StrEnum):
    """Dimensions of a batch of matrices in registers: PLANE is the number of a matrix, ROW and COL are within it."""

    PLANE = "plane"
    ROW = "row"
    COL = "col"


@dataclass(frozen=True, slots=True)
class ThreadDigit:
    """A digit of the thread number: (tid / div) % extent times ``stride`` is added to the coordinate along ``axis``."""

    div: int
    extent: int
    axis: Axis
    stride: int


@dataclass(frozen=True, slots=True)
class RegisterLoop:
    """A loop over a thread's own elements: ``extent`` of them, ``stride`` apart along ``axis``."""

    axis: Axis
    extent: int
    stride: int


@dataclass(frozen=True, slots=True)
class Distribution:
    """A register layout: the elements of a matrix that each thread holds.

    Threads that differ in an unlisted digit hold the same elements. ``slots`` number a thread's registers, the last one
    fastest.

    Attributes:
        threads: Threads of the block.
        digits: Digits of the thread number.
        slots: The elements of one thread.
        plane: The batch dim, whose positions are planes; None for a single matrix, whose rows combine all dims but the
            last.
    """

    threads: int
    digits: tuple[ThreadDigit, ...]
    slots: tuple[RegisterLoop, ...]
    plane: int | None = None

    @property
    def count(self) -> int:
        """Return the registers of one thread."""
        return prod(slot.extent for slot in self.slots)

    def span(self, axis: Axis) -> int:
        """Return one more than the largest coordinate along an axis."""
        parts: list[ThreadDigit | RegisterLoop] = [*self.digits, *self.slots]
        return 1 + sum((part.extent - 1) * part.stride for part in parts if part.axis is axis)

    def only(self, axes: frozenset[Axis]) -> Distribution:
        """Return the distribution of a tensor that has extent 1 along the other axes."""
        if axes == EVERY or (self.plane is None and axes == EVERY - {Axis.PLANE}):
            return self
        return Distribution(
            self.threads,
            tuple(digit for digit in self.digits if digit.axis in axes),
            tuple(slot for slot in self.slots if slot.axis in axes),
            plane=self.plane if Axis.PLANE in axes else None,
        )


EVERY: Final = frozenset(Axis)


@dataclass(frozen=True, slots=True)
class Fragment(Distribution):
    """The distribution of m16n8k16 accumulators, or the remainder of one after a partial reduction."""


@dataclass(frozen=True, slots=True)
class Warps:
    """The grid of warps of a product: rows, columns and the inner dim are cut into this many parts each.

    Attributes:
        rows, cols, inner: The numbers of parts.
        transposed: Whether it is computed as the transpose of the product of the transposed operands: tensor cores then
            take columns 16 and rows 8 at a time, instead of rows 16 and columns 8.
        warpgroup: Whether four warps compute 64 rows (of the transpose: 64 columns) together, by ``WarpgroupMma``.
    """

    rows: int
    cols: int
    inner: int
    transposed: bool = False
    warpgroup: bool = False

    @property
    def count(self) -> int:
        """Return the warps of a block."""
        return self.rows * self.cols * self.inner


# --- how they are made -----------------------------------------------------------------------------------------------


def fragment_layout(threads: int, warps: Warps, rows: int, cols: int) -> Fragment:
    """Return the distribution of a product's accumulators [rows, cols] over a grid of warps, padded to whole tiles.

    Warp w has row part w % warps.rows and column part w / warps.rows % warps.cols; the remaining digits are the inner
    part.
    """
    high, wide = mma_tiles(warps, rows, cols)
    tall, flat = (Axis.COL, Axis.ROW) if warps.transposed else (Axis.ROW, Axis.COL)
    part = {tall: MMA[0] * high, flat: MMA[1] * wide}
    digits = [ThreadDigit(1, 4, flat, 2), ThreadDigit(4, 8, tall, 1)]
    if warps.rows > 1:
        digits.append(ThreadDigit(WARP, warps.rows, Axis.ROW, part[Axis.ROW]))
    if warps.cols > 1:
        digits.append(ThreadDigit(WARP * warps.rows, warps.cols, Axis.COL, part[Axis.COL]))
    slots = (
        RegisterLoop(tall, high, 16),
        RegisterLoop(flat, wide, 8),
        RegisterLoop(tall, 2, 8),
        RegisterLoop(flat, 2, 1),
    )
    return Fragment(threads, tuple(digits), slots)


def mma_tiles(warps: Warps, rows: int, cols: int) -> tuple[int, int]:
    """Return the tiles of 16 and of 8 that one warp has of a product [rows, cols].

    The tiles of 16 run along rows and those of 8 along columns; the other way round if the product is transposed.
    """
    down, across = -(-rows // warps.rows), -(-cols // warps.cols)
    tall, flat = (across, down) if warps.transposed else (down, across)
    return -(-tall // MMA[0]), -(-flat // MMA[1])


def inner_digits(warps: Warps) -> tuple[ThreadDigit, ...]:
    """Return the digits in which threads hold partial sums of one element when the inner dim is split over warps."""
    return (ThreadDigit(WARP * warps.rows * warps.cols, warps.inner, Axis.COL, 0),) if warps.inner > 1 else ()


def fragment_tiles(over: Fragment) -> tuple[int, int]:
    """Return the tiles of 16 and of 8 of one warp in the accumulators of a product (see ``mma_tiles``)."""
    return over.slots[0].extent, over.slots[1].extent


def vector_layout(
    threads: int, rows: int, cols: int, width: int, *, kept: int | None = None, wide: bool = False
) -> Distribution:
    """Return the distribution of a matrix in runs of ``width`` columns.

    Threads are spread over rows first. If rows will be reduced, each thread takes as many rows as possible instead.

    Args:
        threads: Threads of the block.
        rows: Rows of the matrix.
        cols: Columns of the matrix.
        width: Columns of a run, a power of two.
        kept: The columns will be summed over all positions equal modulo ``kept``, which ``width`` divides; the digits
            are then cut there. Extents are powers of two times the extent of one thread.
        wide: Whether rows will be reduced.
    """
    down = 1 if wide else min(_floor_power(rows), threads)
    across = min(threads // down, _ceil_power(-(-cols // width)))
    if kept is not None:
        # Digits are powers of two, and none may lie across a multiple of ``kept``.
        runs = kept // width
        across = across if runs & (runs - 1) == 0 else min(across, runs & -runs)
    down = min(_ceil_power(rows), threads // across)
    digits: list[ThreadDigit] = []
    if across > 1:
        inner = across if kept is None or across * width <= kept else kept // width
        if inner > 1:
            digits.append(ThreadDigit(1, inner, Axis.COL, width))
        if across > inner:
            digits.append(ThreadDigit(inner, across // inner, Axis.COL, width * inner))
    if down > 1:
        digits.append(ThreadDigit(across, down, Axis.ROW, 1))
    run = across * width
    slots = [RegisterLoop(Axis.ROW, -(-rows // down), down)]
    if kept is not None and run < kept and kept % run == 0:
        slots += [RegisterLoop(Axis.COL, -(-cols // kept), kept), RegisterLoop(Axis.COL, kept // run, run)]
    else:
        slots.append(RegisterLoop(Axis.COL, -(-cols // run), run))
    slots.append(RegisterLoop(Axis.COL, width, 1))
    return Distribution(threads, tuple(digits), tuple(slot for slot in slots if slot.extent > 1))


def separate_lanes(over: Distribution) -> Distribution:
    """Return a distribution of ``vector_layout`` in which the lanes of a row are as far apart as they can be.

    Each thread then has one piece of a row. Rows of 128 bytes permute their chunks of 16, so lanes of four or more rows
    that begin next to each other would read the same banks at once.
    """
    lanes = [one for one in over.digits if one.axis is Axis.COL]
    runs = [one for one in over.slots if one.axis is Axis.COL and one.stride > 1]
    if len(lanes) != 1 or len(runs) != 1 or runs[0].stride != lanes[0].extent * lanes[0].stride:
        return over
    (lane,), (run,) = lanes, runs
    digits = tuple(replace(one, stride=one.stride * run.extent) if one is lane else one for one in over.digits)
    slots = tuple(replace(one, stride=lane.stride) if one is run else one for one in over.slots)
    return replace(over, digits=digits, slots=slots)


def warp_layout(threads: int, rows: int, cols: int) -> Distribution | None:
    """Return the distribution of a matrix of 16-bit elements in which each warp holds whole columns; None if none.

    A reduction over rows then needs no exchange between warps, and each thread has two partial results only. The lanes
    read pairs of columns. What they read at once lies in different banks if the matrix lies in panels: rows that differ
    in their last three bits permute the chunks of 8 columns in different ways.

    Args:
        threads: Threads of the block.
        rows: Rows of the matrix.
        cols: Columns of the matrix.
    """
    warps, pair, chunk, period = threads // WARP, 2, 8, 8
    own = cols // warps
    if cols % warps or own & (own - 1) or not chunk <= own <= WARP * pair or rows % period:
        return None
    across, apart = own // pair, own // chunk
    digits = (
        ThreadDigit(1, across, Axis.COL, pair),
        ThreadDigit(across, WARP // across, Axis.ROW, apart),
        ThreadDigit(WARP, warps, Axis.COL, own),
    )
    slots = (RegisterLoop(Axis.ROW, rows // period, period), RegisterLoop(Axis.ROW, apart, 1))
    used = tuple(digit for digit in digits if digit.extent > 1)
    return Distribution(threads, used, (*(s for s in slots if s.extent > 1), RegisterLoop(Axis.COL, pair, 1)))


def transposed_vector_layout(threads: int, rows: int, cols: int, width: int, *, wide: bool = False) -> Distribution:
    """Return the layout of a matrix with contiguous rows: ``vector_layout`` with axes swapped, in runs of rows.

    Args:
        threads: Threads of the block.
        rows: Rows of the matrix.
        cols: Columns of the matrix.
        width: Rows of a run, a power of two.
        wide: Whether columns will be reduced.
    """
    over = vector_layout(threads, cols, rows, width, wide=wide)
    other = {Axis.ROW: Axis.COL, Axis.COL: Axis.ROW}
    digits = tuple(ThreadDigit(d.div, d.extent, other[d.axis], d.stride) for d in over.digits)
    return Distribution(threads, digits, tuple(RegisterLoop(other[s.axis], s.extent, s.stride) for s in over.slots))


def batched_layout(
    threads: int,
    plane: int,
    extents: tuple[int, int, int],
    width: int,
    enough: int,
    cols: tuple[int, int] | None = None,
) -> Distribution:
    """Return the distribution of a batch of matrices that keeps one position of all planes in one thread or warp.

    Threads are spread over runs of columns first, then over rows. Planes get the remaining threads, as lanes of one
    warp, so that a reduction over planes needs shuffles at most. A row stays in one warp as well if a thread then has
    not too many planes. Several warps share the planes if these are many.

    Args:
        threads: Threads of the block.
        plane: The batch dim, whose positions are planes.
        extents: Planes, rows and columns.
        width: Columns of a run, a power of two.
        enough: The most elements of one thread at which its planes are not shared with another warp.
        cols: Columns and run length of a tensor that differs from the batch in its columns only; threads hold it where
            they hold the batch.
    """
    planes, rows, _ = extents
    power = _floor_power(threads)
    across = min(power, _ceil_power(-(-extents[2] // width)))
    down = min(power // across, _ceil_power(rows))
    each = -(-rows // down) * -(-extents[2] // (across * width)) * width
    lanes = min(power // (across * down), _floor_power(planes))
    # One warp has all columns of a row and its share of the planes, or all planes, if that is not too much for it.
    for most in (max(1, WARP // across), WARP):
        if -(-planes // most) * each <= enough:
            lanes = min(lanes, most)
            break
    # Runs of columns next to each other, and rows, go before the planes as long as all lanes of these fit a warp;
    # planes that do not fit leave room for whole sectors.
    low = min(across * down, WARP // lanes or _SECTOR_THREADS)
    inner, above = min(across, low), max(1, low // across)
    count, width = cols or (extents[2], width)
    parts = (
        (Axis.COL, inner, width),
        (Axis.ROW, above, 1),
        (Axis.PLANE, lanes, 1),
        (Axis.COL, across // inner, width * inner),
        (Axis.ROW, down // above, above),
    )
    digits: list[ThreadDigit] = []
    div = 1
    for axis, extent, stride in parts:
        if extent > 1:
            digits.append(ThreadDigit(div, extent, axis, stride))
        div *= extent
    slots = (
        RegisterLoop(Axis.PLANE, -(-planes // lanes), lanes),
        RegisterLoop(Axis.ROW, -(-rows // down), down),
        RegisterLoop(Axis.COL, -(-count // (across * width)), across * width),
        RegisterLoop(Axis.COL, width, 1),
    )
    return Distribution(threads, tuple(digits), tuple(slot for slot in slots if slot.extent > 1), plane=plane)


def _floor_power(n: int) -> int:
    return 1 << (n.bit_length() - 1)


def _ceil_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def reduce_layout(over: Distribution, axis: Axis, kept: int) -> tuple[Distribution, tuple[ThreadDigit, ...]] | None:
    """Return the distribution that remains when one axis is summed over positions equal modulo ``kept``.

    Returns:
        The distribution of the result once the threads that differ in the returned digits have added up; None if a
        digit or slot crosses the boundary.
    """
    digits: list[ThreadDigit] = []
    gone: list[ThreadDigit] = []
    slots: list[RegisterLoop] = []
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
    plane = over.plane if axis is not Axis.PLANE or kept > 1 else None
    kind = type(over) if kept > 1 else Distribution
    return kind(over.threads, tuple(digits), tuple(slots), plane), tuple(gone)


def is_reduced(slot: RegisterLoop, axis: Axis, kept: int) -> bool:
    """Return whether a sum over positions of ``axis`` that are equal modulo ``kept`` runs over this register loop.

    It does if the loop runs along the axis, and not only over the ``kept`` positions that remain.
    """
    return slot.axis is axis and not (slot.stride * slot.extent <= kept and kept > 1)


def contiguous_run(over: Distribution) -> tuple[Axis, int]:
    """Return the axis along which a thread's elements are contiguous, and the run length; columns and 1 if none."""
    last = over.slots[-1] if over.slots else None
    rows = last is not None and last.axis is Axis.ROW and over.plane is None
    if last is None or last.stride != 1 or not (rows or last.axis is Axis.COL):
        return Axis.COL, 1
    return last.axis, last.extent


def replicated_digits(over: Distribution) -> tuple[tuple[int, int], ...]:
    """Return (div, extent) of the digits of the thread number in which threads hold the same elements."""
    out: list[tuple[int, int]] = []
    place = 1
    for digit in sorted(over.digits, key=lambda d: d.div):
        if digit.div > place:
            out.append((place, digit.div // place))
        place = digit.div * digit.extent
    if place < over.threads:
        out.append((place, over.threads // place))
    return tuple(out)


def split_by_warp(digits: Sequence[ThreadDigit]) -> tuple[tuple[ThreadDigit, ...], tuple[ThreadDigit, ...]]:
    """Split digits at the warp size: those inside a warp (lanes), and those that number warps."""
    low: list[ThreadDigit] = []
    high: list[ThreadDigit] = []
    for digit in digits:
        inside = min(digit.extent, max(1, WARP // digit.div))
        if inside > 1:
            low.append(ThreadDigit(digit.div, inside, digit.axis, digit.stride))
        if digit.extent > inside:
            extent = digit.extent // inside
            high.append(ThreadDigit(digit.div * inside, extent, digit.axis, digit.stride * inside))
    return tuple(low), tuple(high)


def lanes_per_slot(digits: Sequence[ThreadDigit]) -> int:
    """Return the number of lanes that share one place in the buffer through which warps combine sums over some digits.

    All lanes that differ in these digits alone hold the same sum. One of them writes it if two conditions hold: many
    warps contribute to a sum, whose parts are then read as vectors, and all parts fit into one row of the banks.
    Otherwise each thread has a place of its own: the turn of one lane takes longer than reading a few parts one by one
    (benchmarks on an H200: 2 to 4 % of a kernel's time gained by 8 and 16 warps, 5 % of another's loop lost by 4).
    """
    low, wide = (prod(digit.extent for digit in part) for part in split_by_warp(digits))
    return low if _MANY_WARPS <= wide <= low else 1
