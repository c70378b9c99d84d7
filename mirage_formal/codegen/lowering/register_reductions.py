"""Reductions and accumulators in registers: within a thread, across a warp, and across warps through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate as running_products
from math import prod
from operator import mul
from typing import Final

from mirage_formal.codegen.lowering.context import (
    TID,
    LoweringContext,
    combine,
    make_conditional,
    make_loop,
    neutral_element,
)
from mirage_formal.codegen.lowering.registers import (
    Vars,
    array_name,
    coordinate,
    digit_value,
    for_each_run,
    register_index,
    register_layout,
    slot_number,
)
from mirage_formal.codegen.program.flat_graph import Accumulate, Reduce, RunningMax
from mirage_formal.codegen.program.integers import ONE
from mirage_formal.codegen.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    Int,
    IntExpr,
    Real,
    Reg,
    Registers,
    Select,
    SetReg,
    SharedRead,
    SharedVector,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    Value,
)
from mirage_formal.codegen.program.register_layout import (
    Axis,
    Distribution,
    ThreadDigit,
    is_reduced,
    lanes_per_slot,
    split_by_warp,
)
from mirage_formal.codegen.program.step import Accumulation, BlockReduce, Reduction, RunningMaximum
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType

#: Elements of the longest vector that a thread reads from a buffer of floats.
_VECTOR: Final = 16 // DType.FLOAT32.bytes


def axis_of(cx: LoweringContext, number: int, dim: int, over: Distribution) -> Axis:
    """Return the axis of a distribution that a dim of a tensor lies along."""
    if dim == len(cx.tensor(number).shape) - 1:
        return Axis.COL
    return Axis.PLANE if dim == over.plane else Axis.ROW


def _fold_own_elements(cx: LoweringContext, op: Reduce, over: Distribution, array: str) -> tuple[Stmt, ...]:
    """Combine a thread's own elements into an array of the result's registers."""
    axis = axis_of(cx, op.operand, op.dim, over)
    extent = dict(zip(Axis, cx.tensor(op.operand).extents(over.plane), strict=True))[axis]

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        to = slot_number(cx, over, at, lambda i: not is_reduced(over.slots[i], axis, op.kept))
        value = values[0]
        if over.span(axis) > extent:  # neutral where it lies outside of the tensor
            inside = cx.ix.less(coordinate(cx, over, axis, at), extent)
            value = value if inside == ONE else Select(inside, value, Real(neutral_element(cx, op)))
        return (SetReg(array, to, Combine(op.fn, Reg(array, to), value)),)

    return for_each_run(cx, over, op.operand, (op.operand,), body)


def combine_across_threads(
    cx: LoweringContext, fn: BinaryFn, array: str, count: int, digits: Sequence[ThreadDigit], scratch: str
) -> tuple[Stmt, ...]:
    """Combine an array over the threads that differ in some digits; all of them get the result.

    Digits inside a warp are shuffled; those above go through a buffer, once, with a barrier between write and read.
    """
    out: list[Stmt] = []
    low, wide = split_by_warp(digits)
    for digit in low:
        mask = digit.div
        while mask < digit.div * digit.extent:
            at = cx.iterator(count, "u")
            out += make_loop(at, count, (ShuffleReduce(array, at, fn, mask),), unroll=True)
            mask *= 2
    if wide:
        packed = lanes_per_slot(digits) > 1
        out += (_combine_packed if packed else _combine_spread)(
            cx, fn, array, count, digits if packed else wide, scratch
        )
    return tuple(out)


def _combine_packed(
    cx: LoweringContext, fn: BinaryFn, array: str, count: int, digits: Sequence[ThreadDigit], scratch: str
) -> list[Stmt]:
    """Combine through shared memory: one lane writes for all that hold the same sum, whose parts are contiguous."""
    low, wide = split_by_warp(digits)
    parts, own = prod(digit.extent for digit in wide), cx.plan.threads // lanes_per_slot(digits)
    values = cx.fresh("x")
    base = cx.ix.mul(_remove_digits(cx, (*low, *wide)), parts)
    steps = running_products((digit.extent for digit in wide), mul, initial=1)
    warp = cx.ix.add(*(cx.ix.mul(digit_value(cx, digit), step) for digit, step in zip(wide, steps, strict=False)))
    k, j = cx.iterator(count, "u"), cx.iterator(count, "u")
    write = SharedWrite(scratch, cx.ix.add(cx.ix.mul(k, own), base, warp), (Reg(array, k),))
    first = cx.ix.both(cx.ix.less(digit_value(cx, digit), 1) for digit in low)
    width = min(parts, _VECTOR)
    reads = (
        SharedVector(values, Int(i), scratch, cx.ix.add(cx.ix.mul(j, own), base, Int(i)), width)
        for i in range(0, parts, width)
    )
    total = SetReg(array, j, combine(fn, [Reg(values, Int(i)) for i in range(parts)]))
    return [
        *make_conditional(first, make_loop(k, count, (write,), unroll=True)),
        Barrier(),
        Registers(values, parts),
        *make_loop(j, count, (*reads, total), unroll=True),
    ]


def _remove_digits(cx: LoweringContext, digits: Sequence[ThreadDigit]) -> IntExpr:
    """Return the thread number with some of its digits removed and the gaps closed."""
    found: IntExpr = TID
    for digit in sorted(digits, key=lambda one: -one.div):
        above = cx.ix.mul(cx.ix.div(found, digit.div * digit.extent), digit.div)
        found = cx.ix.add(above, cx.ix.mod(found, digit.div))
    return found


def _combine_spread(
    cx: LoweringContext, fn: BinaryFn, array: str, count: int, digits: Sequence[ThreadDigit], scratch: str
) -> list[Stmt]:
    """Combine through shared memory where each thread has a place of its own."""
    threads = cx.plan.threads
    k = cx.iterator(count, "u")
    write = SharedWrite(scratch, cx.ix.add(cx.ix.mul(k, threads), TID), (Reg(array, k),))
    # The thread that stands at 0 in all digits that are summed over.
    base: IntExpr = TID
    for digit in digits:
        high = cx.ix.mul(cx.ix.div(base, digit.div * digit.extent), digit.div * digit.extent)
        base = cx.ix.add(high, cx.ix.mod(base, digit.div))
    offsets = [0]
    for digit in digits:
        offsets = [o + i * digit.div for i in range(digit.extent) for o in offsets]
    j = cx.iterator(count, "u")
    total = [SharedRead(scratch, cx.ix.add(cx.ix.mul(j, threads), base, Int(offset))) for offset in offsets]
    return [
        *make_loop(k, count, (write,), unroll=True),
        Barrier(),
        *make_loop(j, count, (SetReg(array, j, combine(fn, total)),), unroll=True),
    ]


def reduce(cx: LoweringContext, step: Reduction) -> tuple[Stmt, ...]:
    """Return the statements of a reduction in registers."""
    op, array = step.op, array_name(step.op.result)
    clear = _clear(cx, op)
    own = _fold_own_elements(cx, op, step.over, array)
    return (
        *clear,
        *own,
        *combine_across_threads(cx, op.fn, array, register_layout(cx, op.result).count, step.digits, step.scratch),
    )


def _clear(cx: LoweringContext, op: Reduce | Accumulate | RunningMax) -> tuple[Stmt, ...]:
    """Set all registers of a result to the neutral element."""
    number = op.largest if isinstance(op, RunningMax) else op.result
    count = register_layout(cx, number).count
    k = cx.iterator(count, "u")
    return make_loop(k, count, (SetReg(array_name(number), k, Real(neutral_element(cx, op))),), unroll=True)


def initialize_registers(cx: LoweringContext, op: Accumulate | RunningMax) -> tuple[Stmt, ...]:
    """Return the initial values of loop-carried tensors in registers."""
    return _clear(cx, op)


def accumulate(cx: LoweringContext, step: Accumulation) -> tuple[Stmt, ...]:
    """Return the update of an accumulator in registers by one iteration."""
    op, over, array = step.op, step.over, array_name(step.op.result)
    rescaled = rescale(cx, op) if op.factor is not None else ()
    if op.dim is not None:
        part = Reduce(op.result, op.fn, op.operand, op.dim, op.kept)
        return (*rescaled, *_fold_own_elements(cx, part, over, array))

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        k = register_index(cx, over, at)
        return (SetReg(array, k, Combine(op.fn, Reg(array, k), values[0])),)

    return (*rescaled, *for_each_run(cx, over, op.operand, (op.operand,), body))


def rescale(cx: LoweringContext, op: Accumulate) -> tuple[Stmt, ...]:
    """Multiply an accumulator in registers by its factor."""
    assert op.factor is not None
    result, array = register_layout(cx, op.result), array_name(op.result)

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        k = register_index(cx, result, at)
        return (SetReg(array, k, Combine(BinaryFn.MUL, Reg(array, k), values[0])),)

    return for_each_run(cx, result, op.result, (op.factor,), body)


def block_reduce(cx: LoweringContext, step: BlockReduce) -> tuple[Stmt, ...]:
    """Combine the partial results of an accumulator."""
    op = step.op
    return combine_across_threads(
        cx, op.fn, array_name(op.result), register_layout(cx, op.result).count, step.digits, step.scratch
    )


def update_running_maximum(cx: LoweringContext, step: RunningMaximum) -> tuple[Stmt, ...]:
    """Return the statements that update a running maximum in registers by the values of one iteration.

    They also set the rescaling factor to exp(maximum before - maximum now).
    """
    op, over = step.op, step.over
    largest, factor = array_name(op.largest), array_name(op.rescale)

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        k = register_index(cx, over, at)
        before = Reg(largest, k)
        # The factor holds the maximum so far until it is turned into one.
        return (
            SetReg(factor, k, before),
            SetReg(largest, k, Combine(BinaryFn.MAX, before, values[0])),
            SetReg(factor, k, Apply(OpKind.EXP, Combine(BinaryFn.SUB, Reg(factor, k), Reg(largest, k)))),
        )

    return for_each_run(cx, over, op.largest, (op.operand,), body)
