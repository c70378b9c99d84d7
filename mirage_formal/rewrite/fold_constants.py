"""Constant folding: a constant tensor that an elementwise operator reads becomes an attribute of that operator.

Graphs have no operator without operands, so a constant is 0 times some tensor, plus a number. What reads it would read
that tensor, whose elements do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Final

from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, Shape, broadcast
from mirage_formal.rewrite.graph_builders import GraphBuilder

#: For each comparison, the equivalent one with exchanged operands.
_TURNED: Final = {
    OpKind.EQ: OpKind.EQ,
    OpKind.LT: OpKind.GT,
    OpKind.LE: OpKind.GE,
    OpKind.GT: OpKind.LT,
    OpKind.GE: OpKind.LE,
}


def fold_constant(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
    """Emit an operator of a tensor and a constant as one of that tensor and a number (``replacement_rules.Rule``).

    Sound: over the reals 0 x + c = c, and the other operands have the result's shape without the constant. A product
    with 0 and a quotient of 0 stay as they are: each is a constant itself.

    Args:
        new: The builder.
        op: An operator of another graph.
        operands: The builder's tensors in place of its operands.

    Returns:
        The number of the result; None if no operand is constant, if all are, or if the operator takes no number there.
    """
    selects = op.kind is OpKind.SELECT
    if not (selects or op.kind in ARITHMETIC or op.kind in COMPARISONS) or op.attrs.value is not None:
        return None
    mask, pair = operands[:selects], operands[selects:]
    numbers = [_constant(new, n) for n in pair]
    place = next((i for i, number in enumerate(numbers) if number is not None), 0)
    number, x = numbers[place], pair[1 - place]
    if number is None or None not in numbers:
        return None
    rest = reduce(_joint, (new.shape(n) for n in (*mask, x)))
    if broadcast(rest, new.shape(pair[place])) != rest:
        return None
    value = Attrs(value=number)
    if selects:
        return new.emit(op.kind, mask[0] if place else new.emit(OpKind.LOGICAL_NOT, *mask), x, attrs=value)
    if op.kind in COMPARISONS:
        return new.emit(op.kind if place else _TURNED[op.kind], x, attrs=value)
    return _arithmetic(new, op.kind, x, number, first=not place)


def _arithmetic(new: GraphBuilder[DTensor], kind: OpKind, x: int, number: Fraction, *, first: bool) -> int | None:
    """Emit an operator of ``ARITHMETIC`` on a tensor and a number, which is its first or its second operand."""
    match kind:
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            return new.emit(kind, x, attrs=Attrs(value=number))
        case OpKind.ADD | OpKind.SUB if number:
            x = new.emit(OpKind.SCALE, x, attrs=Attrs(factor=Fraction(-1))) if first and kind is OpKind.SUB else x
            return new.emit(OpKind.SHIFT, x, attrs=Attrs(shift=number if first or kind is OpKind.ADD else -number))
        case OpKind.MUL if number:
            return new.emit(OpKind.SCALE, x, attrs=Attrs(factor=number))
        case OpKind.DIV if number and first:
            return new.emit(OpKind.SCALE, new.emit(OpKind.RECIPROCAL, x), attrs=Attrs(factor=number))
        case OpKind.DIV | OpKind.DIV_NO_NAN if number and not first:
            return new.emit(OpKind.SCALE, x, attrs=Attrs(factor=1 / number))
        case _:
            return None


def _constant(new: GraphBuilder[DTensor], tensor: int) -> Fraction | None:
    """Return the number of all elements of a tensor: 0 times a tensor, possibly plus numbers."""
    op, shift = new.maker(tensor), Fraction(0)
    while op is not None and op.kind is OpKind.SHIFT:
        shift += op.attrs.shift or 0
        op = new.maker(op.operands[0])
    return shift if op is not None and op.kind is OpKind.SCALE and not op.attrs.factor else None


def _joint(a: Shape, b: Shape) -> Shape:
    return broadcast(a, b) or a


__all__ = ["fold_constant"]
