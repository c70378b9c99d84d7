"""Reductions and accumulators in registers: within a thread, across a warp, and across warps through shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_formal.kernels.lowering.context import TID, Context, identity, joined, loop
from mirage_formal.kernels.lowering.registers import (
    Vars,
    elementwise,
    index,
    name,
    number_of,
    over_runs,
    place,
)
from mirage_formal.kernels.program.distribution import by_warp, folded, folds, inner_digit
from mirage_formal.kernels.program.flat import Accumulate, Elementwise, Reduce, Running
from mirage_formal.kernels.program.integers import ONE, ZERO
from mirage_formal.kernels.program.plan import Axis, Compute, Digit, Distribution, Part
from mirage_formal.kernels.program.program import (
    Apply,
    Barrier,
    BinaryFn,
    Combine,
    Int,
    IntExpr,
    Real,
    Reg,
    Select,
    SetReg,
    SharedRead,
    SharedWrite,
    ShuffleReduce,
    Stmt,
    UnaryFn,
    Value,
)


def compute(cx: Context, step: Compute) -> tuple[Stmt, ...]:
    """Statements of a step whose operator works in registers (products are elsewhere)."""
    op, over = step.op, step.over
    assert over is not None
    match op:
        case Elementwise():
            return elementwise(cx, op, over)
        case Reduce():
            return _reduce(cx, op, over, step.scratch)
        case Accumulate():
            return _accumulate(cx, op, step, over)
        case Running():
            return _running(cx, op, step.part, over)
        case _:
            raise AssertionError(op)


def axis_of(cx: Context, number: int, dim: int, over: Distribution) -> Axis:
    """The axis of a distribution that a dim of a tensor lies along."""
    if dim == len(cx.tensor(number).shape) - 1:
        return Axis.COL
    return Axis.PLANE if dim == over.plane else Axis.ROW


def _fold(cx: Context, op: Reduce, over: Distribution, array: str) -> tuple[Stmt, ...]:
    """Adds a thread's own elements into an array of the result's registers."""
    axis = axis_of(cx, op.operand, op.dim, over)
    extent = dict(zip(Axis, cx.tensor(op.operand).extents(over.plane), strict=True))[axis]

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        to = number_of(cx, over, at, lambda i: not folds(over.slots[i], axis, op.kept))
        value = values[0]
        if over.span(axis) > extent:  # neutral where it lies outside of the tensor
            inside = cx.ix.less(place(cx, over, axis, at), extent)
            value = value if inside == ONE else Select(inside, value, Real(identity(op.fn)))
        return (SetReg(array, to, Combine(op.fn, Reg(array, to), value)),)

    return over_runs(cx, over, op.operand, (op.operand,), body)


def across(
    cx: Context, fn: BinaryFn, array: str, count: int, digits: Sequence[Digit], scratch: str
) -> tuple[Stmt, ...]:
    """Combines an array over the threads that differ in some digits; all of them get the result.

    Digits inside a warp are shuffled; those above go through a buffer, once, with a barrier between write and read.
    """
    out: list[Stmt] = []
    low, wide = by_warp(digits)
    for digit in low:
        mask = digit.div
        while mask < digit.div * digit.extent:
            at = cx.iterator(count, "u")
            out += loop(at, count, (ShuffleReduce(array, at, fn, mask),), unroll=True)
            mask *= 2
    if wide:
        out += _through_shared(cx, fn, array, count, wide, scratch)
    return tuple(out)


def _through_shared(
    cx: Context, fn: BinaryFn, array: str, count: int, digits: Sequence[Digit], scratch: str
) -> list[Stmt]:
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
        *loop(k, count, (write,), unroll=True),
        Barrier(),
        *loop(j, count, (SetReg(array, j, joined(fn, total)),), unroll=True),
    ]


def _reduce(cx: Context, op: Reduce, over: Distribution, scratch: str) -> tuple[Stmt, ...]:
    found = folded(over, axis_of(cx, op.operand, op.dim, over), op.kept)
    assert found is not None
    result, digits = found
    array = name(op.result)
    start = SetReg(array, ZERO, Real(identity(op.fn)))
    k = cx.iterator(result.count, "u")
    clear = loop(k, result.count, (SetReg(array, k, start.value),), unroll=True)
    own = _fold(cx, op, over, array)
    return (*clear, *own, *across(cx, op.fn, array, result.count, digits, scratch))


def _accumulate(cx: Context, op: Accumulate, step: Compute, over: Distribution) -> tuple[Stmt, ...]:
    array = name(op.result)
    result, digits = over, tuple[Digit, ...]()
    if op.dim is not None:
        found = folded(over, axis_of(cx, op.operand, op.dim, over), op.kept)
        assert found is not None
        result, digits = found
    match step.part:
        case Part.BEGIN:
            k = cx.iterator(result.count, "u")
            return loop(k, result.count, (SetReg(array, k, Real(identity(op.fn))),), unroll=True)
        case Part.FINISH:
            if step.warps is not None and step.warps.inner > 1:
                digits = (*digits, inner_digit(step.warps))
            return across(cx, op.fn, array, result.count, digits, step.scratch)
        case _:
            rescale = _rescaled(cx, op, result) if op.factor is not None else ()
            if step.warps is not None:
                return rescale  # the product adds into the accumulator itself
            if op.dim is not None:
                part = Reduce(op.result, op.fn, op.operand, op.dim, op.kept)
                return (*rescale, *_fold(cx, part, over, array))

            def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
                k = index(cx, over, at)
                return (SetReg(array, k, Combine(op.fn, Reg(array, k), values[0])),)

            return (*rescale, *over_runs(cx, over, op.operand, (op.operand,), body))


def _rescaled(cx: Context, op: Accumulate, result: Distribution) -> tuple[Stmt, ...]:
    assert op.factor is not None
    array = name(op.result)

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        k = index(cx, result, at)
        return (SetReg(array, k, Combine(BinaryFn.MUL, Reg(array, k), values[0])),)

    return over_runs(cx, result, op.result, (op.factor,), body)


def _running(cx: Context, op: Running, part: Part, over: Distribution) -> tuple[Stmt, ...]:
    largest, rescale = name(op.largest), name(op.rescale)
    if part is Part.BEGIN:
        k = cx.iterator(over.count, "u")
        return loop(k, over.count, (SetReg(largest, k, Real(identity(BinaryFn.MAX))),), unroll=True)
    if part is Part.FINISH:
        return ()

    def body(values: list[Value], at: Vars) -> tuple[Stmt, ...]:
        k = index(cx, over, at)
        before = Reg(largest, k)
        # rescale holds the maximum so far until it is transposed into the factor.
        return (
            SetReg(rescale, k, before),
            SetReg(largest, k, Combine(BinaryFn.MAX, before, values[0])),
            SetReg(rescale, k, Apply(UnaryFn.EXP, Combine(BinaryFn.SUB, Reg(rescale, k), Reg(largest, k)))),
        )

    return over_runs(cx, over, op.largest, (op.operand,), body)
