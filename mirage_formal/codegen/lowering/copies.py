"""Copies of input tiles to shared memory: asynchronous, or element by element through registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_formal.codegen.lowering.context import TID, LoweringContext, make_conditional, make_loop
from mirage_formal.codegen.program.integers import ONE
from mirage_formal.codegen.program.plan import producer_stride
from mirage_formal.codegen.program.program import (
    MOST_TILE_ROWS,
    PANEL_UNIT,
    TILE_COLUMNS,
    Acquire,
    CopyAsync,
    For,
    GlobalRead,
    Int,
    IntExpr,
    Pipeline,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedWrite,
    Stmt,
    TileCopy,
    Value,
)

#: Copies of one thread that are unrolled.
_UNROLL = 32
#: Elements that a thread has on their way at once where it copies them one by one.
_IN_FLIGHT = 16


def copy_asynchronously(cx: LoweringContext, number: int, iteration: IntExpr) -> tuple[Stmt, ...]:
    """Start the copies of an input's tile of one iteration; elements beyond the tile or the tensor become 0."""
    ix, tensor, tile = cx.ix, cx.tensor(number), cx.input_tile(number)
    placement = tensor.placement.shared
    assert placement is not None
    param = cx.plan.params[tile.param]
    _, size = param.copies(tensor.shape)
    width = size // tensor.dtype.bytes
    chunks = placement.cols // width
    step, rounds, first, chunk, mine = _distribute_chunks(cx, placement.rows, chunks)
    second = ix.mul(chunk, width)
    row, col = (second, first) if placement.transposed else (first, second)
    inside = ix.both((ix.less(row, tensor.rows), ix.less(col, tensor.cols)))
    at = cx.coordinates(tensor.shape, row, col)
    inside = ix.both((inside, cx.in_memory(tile, at, iteration)))
    copy = CopyAsync(
        placement.buffer,
        cx.shared_index(placement, row, col, iteration),
        param.name,
        cx.device_index(tile, at, iteration),
        inside,
        size,
    )
    return make_loop(step, rounds, make_conditional(mine, (copy,)), unroll=rounds <= _UNROLL)


def _distribute_chunks(cx: LoweringContext, rows: int, chunks: int) -> tuple[IntExpr, int, IntExpr, IntExpr, IntExpr]:
    """Return the assignment of chunks to threads: (loop variable, rounds, row, chunk, condition that it exists).

    Where few threads stay idle by it, every round takes whole rows. A thread then keeps its column, and its addresses
    move by a constant from round to round.
    """
    ix, threads = cx.ix, cx.plan.threads
    per_round = threads // chunks
    busy = per_round * chunks
    if busy * 8 >= threads * 7:
        rounds = -(-rows // per_round)
        step = cx.iterator(rounds, "c")
        row = ix.add(ix.div(TID, chunks), ix.mul(step, per_round))
        return step, rounds, row, ix.mod(TID, chunks), ix.both((ix.less(TID, busy), ix.less(row, rows)))
    total = rows * chunks
    rounds = -(-total // threads)
    step = cx.iterator(rounds, "c")
    e = ix.add(TID, ix.mul(step, threads))
    return step, rounds, ix.div(e, chunks), ix.mod(e, chunks), ix.less(e, total)


def copy_elementwise(cx: LoweringContext, number: int) -> tuple[Stmt, ...]:
    """Copy an input's tile element by element, with zeros for padding.

    A thread loads several elements before it stores the first, so that it does not wait for memory after each. Loads
    are unconditional, because a compiler waits for loaded values before it leaves a conditional. Where no element
    exists, another one is loaded, and not stored.
    """
    ix, tensor, tile = cx.ix, cx.tensor(number), cx.input_tile(number)
    placement, param = tensor.placement.shared, cx.plan.params[tile.param]
    assert placement is not None
    total = placement.rows * placement.cols
    rounds = -(-total // cx.plan.threads)
    groups = -(-rounds // _IN_FLIGHT)
    count = -(-rounds // groups)
    group, array = cx.iterator(groups, "c"), cx.fresh("e")

    def each(body: Callable[[IntExpr, IntExpr, IntExpr, IntExpr], Sequence[Stmt]]) -> tuple[Stmt, ...]:
        """Apply ``body`` to a group's elements: number in the group, existence condition, row and column."""
        u = cx.iterator(count, "u")
        e = ix.add(TID, ix.mul(ix.add(ix.mul(group, count), u), cx.plan.threads))
        first, second = ix.div(e, placement.cols), ix.mod(e, placement.cols)
        row, col = (second, first) if placement.transposed else (first, second)
        return make_loop(u, count, body(u, ix.less(e, total), row, col), unroll=True)

    def read(u: IntExpr, _mine: IntExpr, row: IntExpr, col: IntExpr) -> Sequence[Stmt]:
        index = cx.device_index(tile, cx.coordinates(tensor.shape, row, col))
        return (SetReg(array, u, GlobalRead(param.name, ix.clamped(index, param.elements))),)

    def write(u: IntExpr, mine: IntExpr, row: IntExpr, col: IntExpr) -> Sequence[Stmt]:
        inside = ix.both((ix.less(row, tensor.rows), ix.less(col, tensor.cols)))
        inside = ix.both((inside, cx.in_memory(tile, cx.coordinates(tensor.shape, row, col))))
        value: Value = Reg(array, u)
        value = value if inside == ONE else Select(inside, value, Real(0.0))
        return make_conditional(mine, (SharedWrite(placement.buffer, cx.shared_index(placement, row, col), (value,)),))

    return (Registers(array, count), *make_loop(group, groups, (*each(read), *each(write))))


def prefetch(cx: LoweringContext, numbers: tuple[int, ...], iteration: IntExpr) -> tuple[Stmt, ...]:
    """Start the copies of all pipelined inputs for one iteration, if there is such an iteration."""
    body = [stmt for number in numbers for stmt in copy_asynchronously(cx, number, iteration)]
    return make_conditional(
        cx.ix.both((cx.ix.less(iteration, cx.plan.forloop_range), cx.needed(iteration))), body, uniform=True
    )


def pipeline_name(number: int) -> str:
    """Return the name of the pipeline of a tensor's tiles."""
    return f"p{number}"


def produce_tiles(cx: LoweringContext) -> tuple[tuple[Stmt, ...], tuple[Pipeline, ...]]:
    """Return the producer's statements, and the pipelines, one for each tensor: item i is its tile of iteration i."""
    plan = cx.plan
    item = cx.ix.named("item", plan.forloop_range)
    body: list[Stmt] = []
    pipelines: list[Pipeline] = []
    for number in plan.ring:
        copies = _tile_copies(cx, number, item)
        size = sum(copy.rows for copy in copies) * TILE_COLUMNS * cx.tensor(number).dtype.bytes
        pipelines.append(Pipeline(pipeline_name(number), plan.stages, size))
        body += [Acquire(pipeline_name(number), item), *copies]
    return (For(item.name, plan.forloop_range, tuple(body)),), tuple(pipelines)


def _tile_copies(cx: LoweringContext, number: int, item: IntExpr) -> list[TileCopy]:
    """Return the copies of an input's tile, panel by panel."""
    ix, tensor, tile = cx.ix, cx.tensor(number), cx.input_tile(number)
    placement, param = tensor.placement.shared, cx.plan.params[tile.param]
    assert placement is not None
    stride = producer_stride(param, tensor.shape, placement)
    assert stride is not None
    height = min(placement.rows, MOST_TILE_ROWS)
    copies: list[TileCopy] = []
    for first in range(0, placement.cols, TILE_COLUMNS):
        for row in range(0, placement.rows, height):
            begin = (first * placement.rows + row * TILE_COLUMNS) // PANEL_UNIT
            at = ix.add(cx.stage(placement, item, PANEL_UNIT), Int(begin))
            place = (Int(first), Int(row)) if placement.transposed else (Int(row), Int(first))
            source = cx.device_index(tile, cx.coordinates(tensor.shape, *place), item)
            copies.append(
                TileCopy(pipeline_name(number), item, placement.buffer, at, param.name, source, height, stride)
            )
    return copies
