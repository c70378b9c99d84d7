"""The generic way: one thread computes each element of a result, and reads operands one element at a time.

It supports any operator, rank and broadcast. Results lie in shared memory; element e always belongs to thread e %
threads, so that elementwise chains and accumulators over one shape need no barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mirage_formal.codegen.lowering.context import (
    TID,
    LoweringContext,
    apply_elementwise,
    make_conditional,
    make_loop,
    neutral_element,
)
from mirage_formal.codegen.program.flat_graph import (
    Accumulate,
    Concat,
    Elementwise,
    FlatOp,
    LoopConcat,
    Product,
    Reduce,
    Repeat,
    RunningMax,
)
from mirage_formal.codegen.program.integers import ZERO
from mirage_formal.codegen.program.plan import Tile
from mirage_formal.codegen.program.program import (
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
    Value,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape


def for_each_element(
    cx: LoweringContext, shape: Shape, body: Callable[[tuple[IntExpr, ...]], Sequence[Stmt]]
) -> tuple[Stmt, ...]:
    """Return ``body`` for every element, at its coordinates."""
    count = prod(shape)
    rounds = -(-count // cx.plan.threads)
    step = cx.iterator(rounds, "e")
    e = cx.ix.add(TID, cx.ix.mul(step, cx.plan.threads))
    inner = make_conditional(cx.ix.less(e, count), body(cx.ix.unravel(e, shape)))
    return make_loop(step, rounds, inner)


def store_element(cx: LoweringContext, number: int, coordinates: Sequence[IntExpr], value: Value) -> Stmt:
    """Write one element of a tensor in shared memory."""
    tensor = cx.tensor(number)
    assert tensor.placement.shared is not None
    row, col = cx.matrix_position(tensor.shape, coordinates)
    return SharedWrite(tensor.placement.shared.buffer, cx.shared_index(tensor.placement.shared, row, col), (value,))


def compute_step(cx: LoweringContext, op: FlatOp) -> tuple[Stmt, ...]:
    """Return the statements of an operator in the generic way; for an accumulator, those of one iteration."""
    match op:
        case Elementwise():
            return for_each_element(cx, cx.tensor(op.result).shape, lambda at: (_map(cx, op, at),))
        case Repeat():
            return for_each_element(
                cx,
                cx.tensor(op.result).shape,
                lambda at: (store_element(cx, op.result, at, _operand(cx, op.operand, at)),),
            )
        case Reduce():
            return for_each_element(
                cx,
                cx.tensor(op.result).shape,
                lambda at: _reduce_element(cx, op, at, lambda v: (store_element(cx, op.result, at, v),)),
            )
        case Product():
            return for_each_element(
                cx,
                cx.tensor(op.result).shape,
                lambda at: _product_element(cx, op, at, lambda v: (store_element(cx, op.result, at, v),)),
            )
        case Concat():
            return _concat(cx, op)
        case Accumulate():
            return _accumulate(cx, op)
        case LoopConcat():
            return _loop_concat(cx, op)
        case RunningMax():
            return _update_running_maximum(cx, op)


def save_result(cx: LoweringContext, tile: Tile) -> tuple[Stmt, ...]:
    """Write a result to device memory."""
    param = cx.plan.params[tile.param].name

    def body(at: tuple[IntExpr, ...]) -> tuple[Stmt, ...]:
        item = GlobalWrite(param, cx.device_index(tile, at, ZERO), (cx.element(tile.tensor, at),))
        return make_conditional(cx.in_memory(tile, at, ZERO), (item,))

    return for_each_element(cx, cx.tensor(tile.tensor).shape, body)


def _operand(cx: LoweringContext, number: int, at: Sequence[IntExpr]) -> Value:
    return cx.element(number, cx.broadcast(number, at))


def _map(cx: LoweringContext, op: Elementwise, at: Sequence[IntExpr]) -> Stmt:
    return store_element(cx, op.result, at, apply_elementwise(op, [_operand(cx, n, at) for n in op.operands]))


def _reduce_element(
    cx: LoweringContext, op: Reduce, at: Sequence[IntExpr], use: Callable[[Value], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Reduce a tensor along one dim at ``at``, and pass the value to ``use``."""
    dim = op.dim
    count = cx.tensor(op.operand).shape[dim] // op.kept
    array = cx.fresh("sum")
    index = cx.iterator(count, "k")
    position = cx.ix.add(at[dim], cx.ix.mul(index, op.kept))
    term = cx.element(op.operand, (*at[:dim], position, *at[dim + 1 :]))
    add = SetReg(array, ZERO, Combine(op.fn, Reg(array, ZERO), term))
    return (
        Registers(array, 1, initial=neutral_element(cx, op)),
        *make_loop(index, count, (add,)),
        *use(Reg(array, ZERO)),
    )


def _product_element(
    cx: LoweringContext, op: Product, at: Sequence[IntExpr], use: Callable[[Value], tuple[Stmt, ...]]
) -> tuple[Stmt, ...]:
    """Compute one element of a matrix product, and pass it to ``use``."""
    inner = cx.tensor(op.a).shape[-1]
    array = cx.fresh("dot")
    k = cx.iterator(inner, "k")
    a = cx.element(op.a, (*at[:-1], k))
    b = cx.element(op.b, (*at[:-2], k, at[-1]))
    add = SetReg(array, ZERO, Combine(BinaryFn.ADD, Reg(array, ZERO), Combine(BinaryFn.MUL, a, b)))
    return (Registers(array, 1, initial=0.0), *make_loop(k, inner, (add,)), *use(Reg(array, ZERO)))


def _shift_coordinates(cx: LoweringContext, at: Sequence[IntExpr], dim: int, by: IntExpr) -> tuple[IntExpr, ...]:
    return (*at[:dim], cx.ix.add(at[dim], by), *at[dim + 1 :])


def _concat(cx: LoweringContext, op: Concat) -> tuple[Stmt, ...]:
    first = cx.tensor(op.a).shape
    shift = Int(first[op.dim])
    return (
        *for_each_element(cx, first, lambda at: (store_element(cx, op.result, at, cx.element(op.a, at)),)),
        *for_each_element(
            cx,
            cx.tensor(op.b).shape,
            lambda at: (store_element(cx, op.result, _shift_coordinates(cx, at, op.dim, shift), cx.element(op.b, at)),),
        ),
    )


def initialize_shared(cx: LoweringContext, op: Accumulate | RunningMax) -> tuple[Stmt, ...]:
    """Return the initial values of loop-carried tensors in shared memory."""
    number = op.largest if isinstance(op, RunningMax) else op.result
    return for_each_element(
        cx, cx.tensor(number).shape, lambda at: (store_element(cx, number, at, Real(neutral_element(cx, op))),)
    )


def _accumulate(cx: LoweringContext, op: Accumulate) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.result).shape

    def added(at: tuple[IntExpr, ...], term: Value) -> tuple[Stmt, ...]:
        before = cx.element(op.result, at)
        if op.factor is not None:
            before = Combine(BinaryFn.MUL, before, _operand(cx, op.factor, at))
        return (store_element(cx, op.result, at, Combine(op.fn, before, term)),)

    maker = cx.definitions.get(op.operand)
    if isinstance(maker, Product) and cx.tensor(op.operand).placement.inline:
        return for_each_element(cx, shape, lambda at: _product_element(cx, maker, at, lambda v: added(at, v)))
    if op.dim is None:
        return for_each_element(cx, shape, lambda at: added(at, _operand(cx, op.operand, at)))
    along = Reduce(op.result, op.fn, op.operand, op.dim, op.kept)
    return for_each_element(cx, shape, lambda at: _reduce_element(cx, along, at, lambda v: added(at, v)))


def _loop_concat(cx: LoweringContext, op: LoopConcat) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.operand).shape
    by = cx.ix.mul(cx.iteration, shape[op.dim])
    return for_each_element(
        cx,
        shape,
        lambda at: (store_element(cx, op.result, _shift_coordinates(cx, at, op.dim, by), cx.element(op.operand, at)),),
    )


def _update_running_maximum(cx: LoweringContext, op: RunningMax) -> tuple[Stmt, ...]:
    shape = cx.tensor(op.largest).shape
    array = cx.fresh("max")

    def body(at: tuple[IntExpr, ...]) -> tuple[Stmt, ...]:
        before = cx.element(op.largest, at)
        new = Reg(array, ZERO)
        return (
            Registers(array, 1),
            SetReg(array, ZERO, Combine(BinaryFn.MAX, before, _operand(cx, op.operand, at))),
            store_element(cx, op.rescale, at, Apply(OpKind.EXP, Combine(BinaryFn.SUB, before, new))),
            store_element(cx, op.largest, at, new),
        )

    return for_each_element(cx, shape, body)
