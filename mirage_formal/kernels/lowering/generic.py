"""The generic way: one thread computes each element of a result, and reads operands one element at a time.

It supports any operator, rank and broadcast. Results lie in shared memory; element e always belongs to thread e %
threads, so that elementwise chains and accumulators over one shape need no barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mirage_formal.graph.types import Shape
from mirage_formal.kernels.lowering.context import TID, Context, apply, loop, neutral, when
from mirage_formal.kernels.program.flat import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    Product,
    Reduce,
    Repeat,
    Running,
)
from mirage_formal.kernels.program.integers import ZERO
from mirage_formal.kernels.program.plan import Tile
from mirage_formal.kernels.program.program import (
    Apply,
    BinaryFn,
    Combine,
    GlobalWrite,
    Int,
    IntExpr,
    Real,
    Reg,
    Registers,
    SetReg,
    SharedWrite,
    Stmt,
    UnaryFn,
    Value,
)


def over_elements(cx: Context, shape: Shape, body: Callable[[tuple[IntExpr, ...]], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """Return ``body`` for every element, at its coordinates."""
    count = prod(shape)
    rounds = -(-count // cx.plan.threads)
    step = cx.iterator(rounds, "e")
    e = cx.ix.add(TID, cx.ix.mul(step, cx.plan.threads))
    inner = when(cx.ix.less(e, count), body(cx.ix.unravel(e, shape)))
    return loop(step, rounds, inner)


def store(cx: Context, number: int, coordinates: Sequence[IntExpr], value: Value) -> Stmt:
    """Write one element of a tensor in shared memory."""
    tensor = cx.tensor(number)
    assert tensor.placement.shared is not None
    row, col = cx.matrix_position(tensor.shape, coordinates)
    return SharedWrite(tensor.placement.shared.buffer, cx.shared_index(tensor.placement.shared, row, col), (value,))


def compute(cx: Context, op: FlatOp) -> tuple[Stmt, ...]:
    """Return the statements of an operator in the generic way; for an accumulator, those of one iteration."""
    match op:
        case Elementwise():
            return over_elements(cx, cx.tensor(op.result).shape, lambda at: (_map(cx, op, at),))
        case Repeat():
            return over_elements(
                cx, cx.tensor(op.result).shape, lambda at: (store(cx, op.result, at, _operand(cx, op.operand, at)),)
            )
        case Reduce():
            return over_elements(
                cx,
                cx.tensor(op.result).shape,
                lambda at: _folded(cx, op, at, lambda v: (store(cx, op.result, at, v),)),
            )
        case Product():
            return over_elements(
                cx,
                cx.tensor(op.result).shape,
                lambda at: _product(cx, op, at, lambda v: (store(cx, op.result, at, v),)),
            )
        case Concat():
            return _concat(cx, op)
        case Accumulate():
            return _accumulate(cx, op)
        case LoopConcat():
            return _loop_concat(cx, op)
        case Running():
            return _running(cx, op)


def save(cx: Context, tile: Tile) -> tuple[Stmt, ...]:
    """Write a result to device memory."""
    param = cx.plan.params[tile.param].name

    def body(at: tuple[IntExpr, ...]) -> tuple[Stmt, ...]:
        item = GlobalWrite(param, cx.device_index(tile, at, ZERO), (cx.element(tile.tensor, at),))
        return when(cx.in_memory(tile, at, ZERO), (item,))

    return over_elements(cx, cx.tensor(tile.tensor).shape, body)


def _operand(cx: Context, number: int, at: Sequence[IntExpr]) -> Value:
    return cx.element(number, cx.broadcast(number, at))


def _map(cx: Context, op: Elementwise, at: Sequence[IntExpr]) -> Stmt:
    return store(cx, op.result, at, apply(op, [_operand(cx, n, at) for n in op.operands]))


def _folded(
    cx: Context, op: Reduce, at: Sequence[IntExpr], use: Callable[[Value], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Reduce a tensor along one dim at ``at``, and pass the value to ``use``."""
    dim = op.dim
    count = cx.tensor(op.operand).shape[dim] // op.kept
    array = cx.fresh("sum")
    index = cx.iterator(count, "k")
    position = cx.ix.add(at[dim], cx.ix.mul(index, op.kept))
    term = cx.element(op.operand, (*at[:dim], position, *at[dim + 1 :]))
    add = SetReg(array, ZERO, Combine(op.fn, Reg(array, ZERO), term))
    return (Registers(array, 1, initial=neutral(cx, op)), *loop(index, count, (add,)), *use(Reg(array, ZERO)))


def _product(
    cx: Context, op: Product, at: Sequence[IntExpr], use: Callable[[Value], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Compute one element of a matrix product, and pass it to ``use``."""
    inner = cx.tensor(op.a).shape[-1]
    array = cx.fresh("dot")
    k = cx.iterator(inner, "k")
    a = cx.element(op.a, (*at[:-1], k))
    b = cx.element(op.b, (*at[:-2], k, at[-1]))
    add = SetReg(array, ZERO, Combine(BinaryFn.ADD, Reg(array, ZERO), Combine(BinaryFn.MUL, a, b)))
    return (Registers(array, 1, initial=0.0), *loop(k, inner, (add,)), *use(Reg(array, ZERO)))


def _shifted(cx: Context, at: Sequence[IntExpr], dim: int, by: IntExpr) -> tuple[IntExpr, ...]:
    return (*at[:dim], cx.ix.add(at[dim], by), *at[dim + 1 :])


def _concat(cx: Context, op: Concat) -> tuple[Stmt, ...]:
    first = cx.tensor(op.a).shape
    shift = Int(first[op.dim])
    return (
        *over_elements(cx, first, lambda at: (store(cx, op.result, at, cx.element(op.a, at)),)),
        *over_elements(
            cx,
            cx.tensor(op.b).shape,
            lambda at: (store(cx, op.result, _shifted(cx, at, op.dim, shift), cx.element(op.b, at)),),
        ),
    )


def initialize(cx: Context, op: Accumulate | Running) -> tuple[Stmt, ...]:
    """Return the initial values of loop-carried tensors in shared memory."""
    number = op.largest if isinstance(op, Running) else op.result
    return over_elements(cx, cx.tensor(number).shape, lambda at: (store(cx, number, at, Real(neutral(cx, op))),))


def _accumulate(cx: Context, op: Accumulate) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.result).shape

    def added(at: tuple[IntExpr, ...], term: Value) -> tuple[Stmt, ...]:
        before = cx.element(op.result, at)
        if op.factor is not None:
            before = Combine(BinaryFn.MUL, before, _operand(cx, op.factor, at))
        return (store(cx, op.result, at, Combine(op.fn, before, term)),)

    maker = cx.definitions.get(op.operand)
    if isinstance(maker, Product) and cx.tensor(op.operand).placement.inline:
        return over_elements(cx, shape, lambda at: _product(cx, maker, at, lambda v: added(at, v)))
    if op.dim is None:
        return over_elements(cx, shape, lambda at: added(at, _operand(cx, op.operand, at)))
    along = Reduce(op.result, op.fn, op.operand, op.dim, op.kept)
    return over_elements(cx, shape, lambda at: _folded(cx, along, at, lambda v: added(at, v)))


def _loop_concat(cx: Context, op: LoopConcat) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.operand).shape
    by = cx.ix.mul(cx.iteration, shape[op.dim])
    return over_elements(
        cx, shape, lambda at: (store(cx, op.result, _shifted(cx, at, op.dim, by), cx.element(op.operand, at)),)
    )


def _running(cx: Context, op: Running) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.largest).shape
    array = cx.fresh("max")

    def body(at: tuple[IntExpr, ...]) -> tuple[Stmt, ...]:
        before = cx.element(op.largest, at)
        new = Reg(array, ZERO)
        return (
            Registers(array, 1),
            SetReg(array, ZERO, Combine(BinaryFn.MAX, before, _operand(cx, op.operand, at))),
            store(cx, op.rescale, at, Apply(UnaryFn.EXP, Combine(BinaryFn.SUB, before, new))),
            store(cx, op.largest, at, new),
        )

    return over_elements(cx, shape, body)
