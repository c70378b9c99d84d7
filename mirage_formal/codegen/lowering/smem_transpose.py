"""Kernels with transposed operands, staged through shared memory.

An operand is transposed here if elements that are adjacent in memory are not adjacent in the result.

A block takes a tile that holds runs of the operand and runs of the result. It reads the tile along the operand's runs
into shared memory and writes it along the result's runs, so that both use whole sectors, and vectors where they are
aligned. Operands that are contiguous along the result are read directly, before the barrier, so that all loads are in
flight together. Elements of a tile beyond the end are 0 in shared memory and are not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Final

from mirage_formal.codegen.device_tensors import SECTOR
from mirage_formal.codegen.lowering.context import BLOCK, TID, make_conditional, make_loop
from mirage_formal.codegen.lowering.strided_regions import (
    VECTOR_BYTES,
    Box,
    ElementRun,
    Operation,
    RegionLayout,
    load_width,
    locate,
    read_region,
)
from mirage_formal.codegen.program.index import DigitBuilder, IndexBuilder
from mirage_formal.codegen.program.integers import ZERO
from mirage_formal.codegen.program.program import (
    Barrier,
    GlobalWrite,
    Int,
    IntExpr,
    Param,
    Program,
    Reg,
    Registers,
    SharedBuffer,
    SharedRead,
    SharedVector,
    SharedWrite,
    Stmt,
    Value,
    Var,
)
from mirage_formal.codegen.target import Target
from mirage_formal.graph.types import DType, Shape

_WARP: Final = 32
_MOST_THREADS: Final = 256
#: Vectors of an operand that a thread has in flight, if there are enough.
_IN_FLIGHT: Final = 2
#: Bytes of a tile of its smallest element type, and shared memory of a block that needs no opt-in.
_TILE_BYTES: Final = 8 << 10
_SHARED_BYTES: Final = 40 << 10
#: The least elements of a result for this kernel; a smaller one fits one multiprocessor's cache in any order.
_FEW: Final = 1024
#: The number of shared-memory banks and the bytes of each; bank conflicts of a warp are served one after another.
_BANKS: Final = 32
_BANK_BYTES: Final = 4
#: Lengths of a tile's runs along the result and along the operand, relative to those that are tried first.
_RUNS: Final = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (2, 0.5), (0.5, 0.5))
#: Elements left free behind a row, or behind the rows of a vector, in multiples of a load.
_GAPS: Final = (0, 1, 2, 4)


def transpose_in_shared_memory(
    name: str, operation: Operation, layout: RegionLayout, target: Target, params: tuple[Param, ...], number: int = 0
) -> Program | None:
    """Return the kernel of an operator that maps or moves elements; None if no operand is transposed, or it is small.

    Args:
        name: Its name.
        operation: The operator.
        layout: The result, and the regions read.
        target: The GPU that it is for.
        params: The operands and the result.
        number: The number of the tile among those tried; 0 is the one with the best estimate.
    """
    staged = _transposed_slots(layout)
    found = next(islice(_tiles(layout, staged, target, params), number, None), None)
    return None if found is None else _Writer(operation, layout, *found, params, staged).program(name)


#: The number of blocks along each grid axis, and the dims of the result that the axis covers.
_Grid = list[tuple[int, tuple[int, ...]]]


def _tiles(
    layout: RegionLayout, staged: Sequence[tuple[Box, ...]], target: Target, params: tuple[Param, ...]
) -> Iterator[tuple[Shape, _Grid]]:
    """Yield the tiles that may be tried, each with its grid, the likeliest first; none if the first does not fit.

    The others have runs that are longer along the result (a run's end may be a part of a sector), along the operand, or
    both, or shorter ones.
    """
    if not staged or prod(layout.shape) < _FEW:
        return
    size = min(param.dtype.bytes for param in params)
    orders = [_stride_order(boxes[0]) for boxes in staged]
    run = _longest_run(layout, orders, size, target.sms)
    bytes_ = sum(params[boxes[0].operand].dtype.bytes for boxes in staged)
    tried: set[Shape] = set()
    for along, across in _RUNS:
        tile = _tile_with_runs(layout.shape, orders, max(1, int(run * along)), max(1, int(run * across)))
        grid = _grid(layout.shape, tile, target.limits.grid[1])
        fits = prod(tile) * bytes_ <= _SHARED_BYTES
        fits = fits and all(n <= most for (n, _), most in zip(grid, target.limits.grid, strict=True))
        if not tried and not fits:
            return
        if not tried or (fits and prod(tile) >= _FEW and tile not in tried):
            yield tile, grid
        tried.add(tile)


# --- what lies across ------------------------------------------------------------------------------------------------


def _stride_order(box: Box) -> tuple[int, ...]:
    """Return the dims of the result along which an operand's elements differ, the smallest stride first."""
    return tuple(sorted((d for d, s in enumerate(box.strides) if s), key=lambda d: (box.strides[d], -d)))


def _is_transposed(box: Box) -> bool:
    """Return whether an operand is transposed: its smallest stride is not along the last dim of the result."""
    return box.strides[-1] > 1 and _stride_order(box)[0] != len(box.strides) - 1


def _transposed_slots(layout: RegionLayout) -> list[tuple[Box, ...]]:
    """Return the boxes of each slot that goes through shared memory: all are transposed in the same order."""
    slots: dict[int, list[Box]] = {}
    for box in layout.boxes:
        slots.setdefault(box.slot, []).append(box)
    return [
        tuple(boxes)
        for boxes in slots.values()
        if layout.shape and all(_is_transposed(box) and _stride_order(box) == _stride_order(boxes[0]) for box in boxes)
    ]


def _longest_run(layout: RegionLayout, orders: Sequence[Sequence[int]], size: int, sms: int) -> int:
    """Return the longest run, a sector at least, that leaves a block for every other multiprocessor."""
    run = SECTOR // size
    for _ in range(16):
        more = _tile_with_runs(layout.shape, orders, 2 * run, 2 * run)
        blocks = prod(-(-n // m) for n, m in zip(layout.shape, more, strict=True))
        if prod(more) * size > _TILE_BYTES or 2 * blocks < sms:
            break
        run *= 2
    return run


def _tile_with_runs(shape: Shape, orders: Sequence[Sequence[int]], along: int, across: int) -> Shape:
    """Return a tile with runs of ``along`` elements along the result, and ``across`` along each order of its dims.

    Extents are powers of two, so that indices in a tile are cheap and the threads of a block divide its vectors.
    """
    tile = [1] * len(shape)
    for needed, order in ((along, range(len(shape) - 1, -1, -1)), *((across, order) for order in orders)):
        for d in order:
            taken = min(needed, 1 << (shape[d] - 1).bit_length())
            tile[d] = max(tile[d], taken)
            needed //= taken
    return tuple(tile)


def _grid(shape: Shape, tile: Shape, most: int) -> _Grid:
    """Return the number of blocks along each grid axis, and the dims that each axis covers.

    Dims that tiles overhang have axes of their own if there are enough, so that the end condition of one does not
    depend on another. The axis with the fewest blocks comes first, if the grid limits allow it. Blocks that run
    together then share rows of the operand and of the result.
    """
    counts = [-(-n // m) for n, m in zip(shape, tile, strict=True)]
    cut = sorted((d for d, n in enumerate(counts) if n > 1), key=lambda d: (shape[d] % tile[d] == 0, -d))
    groups: list[tuple[int, ...]] = [(d,) for d in cut[:2]]
    groups += [tuple(sorted(cut[2:]))] if cut[2:] else []
    found = sorted((prod(counts[d] for d in dims), dims) for dims in groups)
    if found and found[-1][0] > most:
        found = [found[-1], *found[:-1]]
    return [*found, (1, ()), (1, ()), (1, ())][:3]


# --- shared memory ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stage:
    """The shared-memory staging of one slot's tile.

    Attributes:
        boxes: The boxes of the slot.
        buffer: The buffer.
        width: Elements of a thread's load, along the operand's contiguous dim.
        order: The dims of the tile, the contiguous one of the operand last.
        pitch: Elements from one row of the tile to the next; a row runs along the result's last dim.
        gap: Extra padding elements after the rows of one load.
        grain: Elements of a load from the buffer.
    """

    boxes: tuple[Box, ...]
    buffer: SharedBuffer
    width: int
    order: tuple[int, ...]
    pitch: int
    gap: int
    grain: int

    @property
    def slot(self) -> int:
        """Return the slot that it fills."""
        return self.boxes[0].slot


def _conflicts(words: Iterable[int]) -> int:
    """Return the bank conflict degree: the most different words that one bank is asked for."""
    banks: dict[int, set[int]] = {}
    for word in words:
        banks.setdefault(word % _BANKS, set()).add(word)
    return max(map(len, banks.values()), default=0)


def _choose_pitch(tile: Shape, order: Sequence[int], width: int, out: int, size: int) -> tuple[int, int, int]:
    """Return (pitch, gap, grain) with the fewest bank conflicts of a warp's stores and loads, then the least memory.

    Args:
        tile: Extents of the tile.
        order: Its dims, the contiguous one of the operand last.
        width: Elements of a load of the operand.
        out: Elements of a vector of the result.
        size: Bytes of an element.
    """
    near, columns, others = order[-1], tile[-1], order[:-1]
    along, rows = tile[near] // width, prod(tile[:-1])
    # The lanes of a warp as they read the operand: how far along its nearest dim, and in which column.
    behind = prod(tile[d] for d in others[others.index(len(tile) - 1) + 1 :]) if len(tile) - 1 in others else 1
    lanes = range(min(_WARP, along * prod(tile[d] for d in others)))
    written = [(lane % along * width, lane // along // behind % columns) for lane in lanes]

    def rounds(pitch: int, gap: int, grain: int) -> float:
        def at(row: int, column: int) -> int:
            return (row * pitch + row // width * gap + column) * size // _BANK_BYTES

        phase = min(_WARP, _BANKS * _BANK_BYTES // (grain * size))  # lanes that are served together
        read = [divmod(lane * out, columns) for lane in range(min(phase, rows * columns // out))]
        words = range(max(1, grain * size // _BANK_BYTES))
        loads = _conflicts(at(*place) + word for place in read for word in words) * _WARP // phase
        return _conflicts(at(*place) for place in written) + (loads + 1) / grain

    grains = [1 << i for i in range(out.bit_length())]
    gaps = [(a, b) for a, b in product(_GAPS, _GAPS if width > 1 else (0,))]
    options = [(columns + a * grain, b * grain, grain) for grain in grains for a, b in gaps]
    return min(options, key=lambda o: (rounds(*o), o[0] * rows + o[1] * (rows // width), o))


# --- statements ------------------------------------------------------------------------------------------------------


class _Writer:
    """A writer of one kernel."""

    def __init__(
        self,
        operation: Operation,
        layout: RegionLayout,
        tile: Shape,
        grid: _Grid,
        params: tuple[Param, ...],
        staged: list[tuple[Box, ...]],
    ) -> None:
        self.operation, self.layout, self.tile, self.params = operation, layout, tile, params
        self.grid = grid
        slots = {boxes[0].slot for boxes in staged}
        self.direct = [box for box in layout.boxes if box.slot not in slots]
        self.order = tuple(d for d, n in enumerate(tile) if n > 1 or d == len(tile) - 1)
        self.out = self._width(staged)
        self.stages = list(self._stages(staged))
        least = min(prod(tile) // width for width in (self.out, *(stage.width for stage in self.stages)))
        self.threads = min(_MOST_THREADS, max(_WARP, least // _IN_FLIGHT))
        self.ix = IndexBuilder({"tid": self.threads, **{axis: n for axis, (n, _) in zip(BLOCK, grid, strict=True)}})
        self.first = self._tile_start()

    def _width(self, staged: list[tuple[Box, ...]]) -> int:
        """Return the elements of a vector of the result."""
        layout, last = self.layout, len(self.layout.shape) - 1
        most = max(self.params[-1].dtype.bytes, *(self.params[boxes[0].operand].dtype.bytes for boxes in staged))
        ends = [end for box in layout.boxes for end in (box.low, box.high)] if layout.split == last else []
        width = VECTOR_BYTES // most
        while any(n % width for n in (layout.shape[last], self.tile[last], *ends)):
            width //= 2
        return width

    def _stages(self, staged: list[tuple[Box, ...]]) -> Iterator[_Stage]:
        tile, offset = self.tile, 0
        for number, boxes in enumerate(staged):
            dtype: DType = self.params[boxes[0].operand].dtype
            order = tuple(d for d in (*self._still(boxes[0]), *reversed(_stride_order(boxes[0]))) if tile[d] > 1)
            near = order[-1]
            width = min(load_width(self.layout, box, near, VECTOR_BYTES // dtype.bytes) for box in boxes)
            while tile[near] % width:
                width //= 2
            pitch, gap, grain = _choose_pitch(tile, order, width, self.out, dtype.bytes)
            rows = prod(tile) // tile[-1]
            elements = rows * pitch + rows // width * gap
            buffer = SharedBuffer(f"tile{number}", dtype, elements, offset)
            offset += -(-buffer.bytes // VECTOR_BYTES) * VECTOR_BYTES
            yield _Stage(boxes, buffer, width, order, pitch, gap, grain)

    def _still(self, box: Box) -> list[int]:
        """Return the dims along which a box has one element."""
        return [d for d, stride in enumerate(box.strides) if not stride]

    def _tile_start(self) -> tuple[IntExpr, ...]:
        """Return the coordinates of a tile's first element in the result."""
        found: list[IntExpr] = [ZERO] * len(self.tile)
        for axis, (n, dims) in zip(BLOCK, self.grid, strict=True):
            counts = tuple(-(-self.layout.shape[d] // self.tile[d]) for d in dims)
            for d, block in zip(dims, self.ix.unravel(Var(axis), counts) if n > 1 else (), strict=True):
                found[d] = self.ix.mul(block, self.tile[d])
        return tuple(found)

    def program(self, name: str) -> Program:
        """Return the Program: it loads into registers, and writes staged operands to shared memory.

        After a barrier it stores the result.
        """
        lanes = {box.slot: 1 for box in self.direct}
        lanes |= {box.slot: self.out for box in self.direct if box.strides[-1] != 0}
        body: list[Stmt] = []
        for stage in self.stages:
            body.append(Registers(f"v{stage.slot}", self._each(stage.width, stage.order) * stage.width, initial=0.0))
            body += [Registers(f"s{stage.slot}", self.out)] if stage.grain > 1 else []
        body += [Registers(f"v{slot}", self._each(self.out, self.order) * n, initial=0.0) for slot, n in lanes.items()]
        for stage in self.stages:
            body += self._fetch(stage)
        body += self._along(lanes)
        for stage in self.stages:
            body += self._write_staged(stage)
        grid = (self.grid[0][0], self.grid[1][0], self.grid[2][0])
        shared = tuple(stage.buffer for stage in self.stages)
        return Program(name, self.params, shared, grid, self.threads, (*body, Barrier(), *self._store(lanes)))

    def _vectors_per_dim(self, width: int, order: Sequence[int]) -> Shape:
        """Return the number of vectors of a tile along each dim in this order, the last innermost.

        A dim that lies wholly in the tile, and that one thread traverses, counts only its real elements: a condition on
        its end would need variables that other dims do not.
        """
        found: list[int] = []
        for d in reversed(order):
            extent = self.tile[d] // (width if d == order[-1] else 1)
            whole = self.layout.shape[d] < self.tile[d] and found and prod(found) % self.threads == 0
            found.append(self.layout.shape[d] if whole else extent)
        return tuple(reversed(found))

    def _each(self, width: int, order: Sequence[int]) -> int:
        """Return the number of vectors of ``width`` elements that each thread moves, rounded up."""
        return -(-prod(self._vectors_per_dim(width, order)) // self.threads)

    def _vectors(self, width: int, order: Sequence[int]) -> tuple[IntExpr, IntExpr, tuple[IntExpr, ...]]:
        """Return (number of a thread's vector, condition that it exists, its coordinates in the tile).

        Args:
            width: Elements of a vector.
            order: The tile's dims; vectors lie along the last.
        """
        ix, each, shape = self.ix, self._each(width, order), self._vectors_per_dim(width, order)
        u = ZERO if each == 1 else ix.variable(each, "u")
        number = ix.add(ix.mul(u, self.threads), TID)
        inside = ix.less(number, prod(shape))
        at: list[IntExpr] = [ZERO] * len(self.tile)
        for d, coordinate in zip(order, DigitBuilder(ix).unravel(number, shape), strict=True):
            at[d] = ix.mul(coordinate, width) if d == order[-1] else coordinate
        return u, inside, tuple(at)

    def _result_coordinates(self, at: tuple[IntExpr, ...]) -> tuple[tuple[IntExpr, ...], IntExpr]:
        """Return (coordinates in the result of a place in the tile, condition that these lie within the result)."""
        ix, shape = self.ix, self.layout.shape
        there = tuple(ix.add(*pair) for pair in zip(self.first, at, strict=True))
        inside = ix.both(ix.less(c, n) for c, n, m in zip(there, shape, self.tile, strict=True) if n % m)
        return there, inside

    def _fetch(self, stage: _Stage) -> tuple[Stmt, ...]:
        """Return statements that load a thread's share of a transposed operand, along the operand, into registers."""
        ix, near = self.ix, stage.order[-1]
        u, vector, at = self._vectors(stage.width, stage.order)
        there, inside = self._result_coordinates(at)
        found: list[Stmt] = []
        for box in stage.boxes:
            condition, first = locate(ix, self.layout, box, there)
            run = ElementRun(stage.width, box.strides[near], stage.width)
            found += make_conditional(condition, read_region(ix, box, ix.mul(u, stage.width), first, run))
        return make_loop(
            u, self._each(stage.width, stage.order), make_conditional(ix.both((vector, inside)), found), unroll=True
        )

    def _along(self, lanes: dict[int, int]) -> Iterator[Stmt]:
        """Load the operands that are contiguous along the result, or repeated."""
        if not self.direct:
            return
        ix, last = self.ix, len(self.tile) - 1
        u, vector, at = self._vectors(self.out, self.order)
        there, inside = self._result_coordinates(at)
        found: list[Stmt] = []
        for box in self.direct:
            n = lanes[box.slot]
            wide = min(n, load_width(self.layout, box, last, VECTOR_BYTES // self.params[box.operand].dtype.bytes))
            condition, first = locate(ix, self.layout, box, there)
            found += make_conditional(
                condition, read_region(ix, box, ix.mul(u, n), first, ElementRun(n, box.strides[last], wide))
            )
        yield from make_loop(
            u, self._each(self.out, self.order), make_conditional(ix.both((vector, inside)), found), unroll=True
        )

    def _write_staged(self, stage: _Stage) -> tuple[Stmt, ...]:
        """Write a thread's share of a transposed operand to shared memory, element by element."""
        ix, near = self.ix, stage.order[-1]
        u, vector, at = self._vectors(stage.width, stage.order)
        k = ZERO if stage.width == 1 else ix.variable(stage.width, "k")
        at = (*at[:near], ix.add(at[near], k), *at[near + 1 :])
        value = Reg(f"v{stage.slot}", ix.add(ix.mul(u, stage.width), k))
        items = make_loop(
            k, stage.width, (SharedWrite(stage.buffer.name, self._buffer_index(stage, at), (value,)),), unroll=True
        )
        return make_loop(u, self._each(stage.width, stage.order), make_conditional(vector, items), unroll=True)

    def _buffer_index(self, stage: _Stage, at: Sequence[IntExpr]) -> IntExpr:
        """Return the position of a tile element in its buffer."""
        ix, last, near = self.ix, len(self.tile) - 1, stage.order[-1]
        rows = [*(d for d in range(last) if d != near), near]
        steps = [prod(self.tile[d] for d in rows[i + 1 :]) for i in range(len(rows))]
        row = ix.ravel([at[d] for d in rows], steps)
        return ix.add(ix.mul(row, stage.pitch), ix.mul(ix.div(row, stage.width), stage.gap), at[last])

    def _store(self, lanes: dict[int, int]) -> Iterator[Stmt]:
        """Compute and write a thread's vectors of the result."""
        ix = self.ix
        u, vector, at = self._vectors(self.out, self.order)
        there, inside = self._result_coordinates(at)
        found: list[Stmt] = []
        given: dict[int, list[Value]] = {
            slot: [Reg(f"v{slot}", ix.add(ix.mul(u, n), Int(k if n > 1 else 0))) for k in range(self.out)]
            for slot, n in lanes.items()
        }
        for stage in self.stages:
            slot, buffer, grain, start = stage.slot, stage.buffer.name, stage.grain, self._buffer_index(stage, at)
            if grain == 1:
                given[slot] = [SharedRead(buffer, ix.add(start, Int(k))) for k in range(self.out)]
                continue
            given[slot] = [Reg(f"s{slot}", Int(k)) for k in range(self.out)]
            for k in range(0, self.out, grain):
                found.append(SharedVector(f"s{slot}", Int(k), buffer, ix.add(start, Int(k)), grain))
        values = tuple(self.operation([given[slot][k] for slot in sorted(given)]) for k in range(self.out))
        found.append(GlobalWrite("Out", ix.ravel(there, self.layout.steps), values))
        yield from make_loop(
            u, self._each(self.out, self.order), make_conditional(ix.both((vector, inside)), found), unroll=True
        )


__all__ = ["transpose_in_shared_memory"]
