"""Stores of tensors in registers to shared and device memory, and of the padding zeros beside them."""

from __future__ import annotations

from collections.abc import Callable

from mirage_formal.codegen.lowering.context import TID, LoweringContext, make_conditional, make_loop
from mirage_formal.codegen.lowering.registers import (
    Vars,
    array_name,
    coordinate,
    device_width,
    for_each_slot,
    matrix_extent,
    matrix_row,
    register_index,
    vector_width,
)
from mirage_formal.codegen.program.integers import ONE, ZERO
from mirage_formal.codegen.program.plan import PlanTensor, Tile
from mirage_formal.codegen.program.program import (
    GlobalWrite,
    Int,
    IntExpr,
    Real,
    Reg,
    Select,
    SharedWrite,
    Stmt,
    Value,
)
from mirage_formal.codegen.program.register_layout import Axis, Distribution, contiguous_run, replicated_digits

#: Bytes of the widest store.
_VECTOR = 16


def _is_own_element(cx: LoweringContext, tensor: PlanTensor, over: Distribution, at: Vars) -> IntExpr:
    """Return the condition that a thread's run lies in the tensor and that this thread, of all replicas, writes it."""
    extents = dict(zip(Axis, tensor.extents(over.plane), strict=True))
    inside = [cx.ix.less(coordinate(cx, over, axis, at), extent) for axis, extent in extents.items()]
    first = [cx.ix.equal(cx.ix.mod(cx.ix.div(TID, div), extent), 0) for div, extent in replicated_digits(over)]
    return cx.ix.both((*first, *inside))


def _store_registers(
    cx: LoweringContext,
    number: int,
    over: Distribution,
    width: int,
    write: Callable[[IntExpr, IntExpr, tuple[Value, ...]], tuple[Stmt, ...]],
) -> tuple[Stmt, ...]:
    """Write a tensor in registers, ``width`` elements of a run at a time, with zeros beyond its extent."""
    tensor = cx.tensor(number)
    axis, run = contiguous_run(over)
    extent = matrix_extent(tensor, axis)

    def body(at: Vars) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for part in range(0, run, width):
            full = at if run == 1 else (*at[:-1], Int(part))
            plane, row, col = (coordinate(cx, over, axis, full) for axis in Axis)
            first, start = register_index(cx, over, full), col if axis is Axis.COL else row
            values: list[Value] = []
            for i in range(width):
                value = Reg(array_name(number), cx.ix.add(first, Int(i)))
                there = ONE if extent % width == 0 or i == 0 else cx.ix.less(cx.ix.add(start, Int(i)), extent)
                values.append(value if there == ONE else Select(there, value, Real(0.0)))
            row = matrix_row(cx, tensor, over, plane, row)
            out += make_conditional(_is_own_element(cx, tensor, over, full), write(row, col, tuple(values)))
        return tuple(out)

    return for_each_slot(cx, over, body, inner=1 if run > 1 else 0)


def mirror_width(cx: LoweringContext, number: int) -> int:
    """Return the columns that a thread writes at once to the shared-memory copy of a tensor in registers.

    A padded matrix has room for whole vectors, for any number of columns.
    """
    tensor = cx.tensor(number)
    over, placement = tensor.placement.registers, tensor.placement.shared
    assert over is not None and placement is not None
    axis, run = contiguous_run(over)
    chunk = _VECTOR // tensor.dtype.bytes
    padded = axis is Axis.COL and tensor.cols < placement.cols and tensor.cols % run and chunk % run == 0
    return run if padded else vector_width(cx, number, (axis, run))


def copy_registers_to_shared(cx: LoweringContext, number: int) -> tuple[Stmt, ...]:
    """Write a tensor in registers to its place in shared memory as well."""
    tensor = cx.tensor(number)
    over, placement = tensor.placement.registers, tensor.placement.shared
    assert over is not None and placement is not None
    width = mirror_width(cx, number)

    def write(row: IntExpr, col: IntExpr, values: tuple[Value, ...]) -> tuple[Stmt, ...]:
        return (SharedWrite(placement.buffer, cx.shared_index(placement, row, col), values),)

    return _store_registers(cx, number, over, width, write)


def padding(cx: LoweringContext, number: int) -> tuple[Stmt, ...]:
    """Write zeros to the padding of a computed matrix in shared memory."""
    tensor, placement = cx.tensor(number), cx.tensor(number).placement.shared
    assert placement is not None and not placement.transposed and not placement.mask
    width = 1 if tensor.placement.registers is None else mirror_width(cx, number)
    rows, cols = tensor.rows, -(-tensor.cols // width) * width
    chunk = _VECTOR // tensor.dtype.bytes
    most = min(placement.cols, -(-cols // chunk) * chunk)

    def zeros(height: int, width: int, first: tuple[int, int], run: int) -> tuple[Stmt, ...]:
        """Return the stores of zeros to rows and runs of columns from a first element on, spread over threads."""
        total = height * width
        if not total:
            return ()
        step = cx.iterator(-(-total // cx.plan.threads), "z")
        e = cx.ix.add(TID, cx.ix.mul(step, cx.plan.threads))
        row = cx.ix.add(cx.ix.div(e, width), Int(first[0]))
        col = cx.ix.add(cx.ix.mul(cx.ix.mod(e, width), run), Int(first[1]))
        write = SharedWrite(placement.buffer, cx.shared_index(placement, row, col), (Real(0.0),) * run)
        return make_loop(step, -(-total // cx.plan.threads), make_conditional(cx.ix.less(e, total), (write,)))

    return (
        *zeros(rows, most - cols, (0, cols), 1),
        *zeros(rows, (placement.cols - most) // chunk, (0, most), chunk),
        *zeros(placement.rows - rows, placement.cols // chunk, (rows, 0), chunk),
    )


def save_registers(cx: LoweringContext, tile: Tile) -> tuple[Stmt, ...]:
    """Write a result in registers to device memory."""
    tensor = cx.tensor(tile.tensor)
    over = tensor.placement.registers
    assert over is not None
    param = cx.plan.params[tile.param]
    width = device_width(param, tensor, contiguous_run(over))

    def write(row: IntExpr, col: IntExpr, values: tuple[Value, ...]) -> tuple[Stmt, ...]:
        at = cx.coordinates(tensor.shape, row, col)
        item = GlobalWrite(param.name, cx.device_index(tile, at, ZERO), values)
        return make_conditional(cx.in_memory(tile, at, ZERO), (item,))

    return _store_registers(cx, tile.tensor, over, width, write)
