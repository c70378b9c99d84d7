"""Recognition of normalized scores, whose exponentials are at most 1 and need no maximum."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.logic.terms import Add, Const, Expr, Mul, Sum, Unary

_MAXIMA: Final = (OpKind.MAX, OpKind.RUNNING_MAX)
_MINUS_ONE = Const(Fraction(-1))


def is_log_softmax(term: Hashable) -> bool:
    """Return whether a term has the form s - log sum exp(s) of a log-softmax.

    The form s - (m + log sum exp(s - m)) counts as well, for any m. No element is above 0, for each is a term of its
    own sum.

    No proof rests on this. Abstract expressions have no indices, so a sum over other elements is mistaken for a sum
    over the same ones. An exponential may then overflow as it did before.





    Args:
        term: The abstract expression of the tensor, or a placeholder for a tensor without one.
    """
    match term:
        case Add(scores, Mul(factor, below)) if factor is _MINUS_ONE:
            return any(total == Unary("exp", part) for total, part in _log_arguments(scores, below))
    return False


def _log_arguments(scores: Expr, below: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Yield each summed term under a subtracted logarithm, with the scores whose exponentials it should be."""
    match below:
        case Unary("log", total):
            yield _sum_body(total), scores
        case Add(left, right):
            for logarithm, rest in ((left, right), (right, left)):
                match logarithm:
                    case Unary("log", total):
                        yield _sum_body(total), Add(scores, Mul(_MINUS_ONE, rest))


def _sum_body(total: Expr) -> Expr:
    """Return the body of nested sums; a term that is no sum is returned unchanged."""
    while isinstance(total, Sum):
        total = total.body
    return total


def is_bounded_exponential(op: Op, makers: Mapping[int, Op]) -> bool:
    """Return whether an operator yields exponentials of differences from their maximum, which are at most 1.

    The same holds for a masked selection, if the maximum is over the scores selected by the same masks.

    Args:
        op: The operator.
        makers: The predefined operators of its graph by their first results.
    """
    if op.kind not in (OpKind.EXP, OpKind.SELECT):
        return False

    def maker(number: int, *kinds: OpKind) -> Op | None:
        """Return the operator of one of these kinds whose first result this is; None if there is none."""
        item = makers.get(number)
        return item if item is not None and item.kind in kinds else None

    def uncast(number: int) -> int:
        """Return the operand of a chain of casts; the tensor itself if no cast produces it."""
        cast = maker(number, OpKind.CAST)
        return number if cast is None else uncast(cast.operands[0])

    def conjuncts(mask: int) -> set[int]:
        """Return the masks whose conjunction a mask is."""
        both = maker(mask, OpKind.MUL)
        return {mask} if both is None else set().union(*map(conjuncts, both.operands))

    masks: set[int] = set()
    exponential: Op | None = op
    while exponential is not None and exponential.kind in (OpKind.SELECT, OpKind.SCALE):
        if exponential.kind is OpKind.SELECT:
            if exponential.attrs.value != 0:
                return False
            masks |= conjuncts(exponential.operands[0])
        exponential = maker(uncast(exponential.operands[-1]), OpKind.EXP, OpKind.SELECT, OpKind.SCALE)
    if exponential is None:
        return False
    difference = maker(exponential.operands[0], OpKind.SUB)
    if difference is None:
        return False
    scores, top = (uncast(number) for number in difference.operands)
    while (largest := maker(top, *_MAXIMA, OpKind.SELECT)) is not None:
        top = uncast(largest.operands[-1])
        if largest.kind is OpKind.SELECT:
            return top == scores and largest.attrs.value is not None and masks == conjuncts(largest.operands[0])
        if top == scores:
            return True
    return False


__all__ = ["is_bounded_exponential", "is_log_softmax"]
