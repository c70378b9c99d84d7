"""Recognition of log-softmax terms, whose exponentials are at most 1 and need no maximum."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from fractions import Fraction

from mirage_formal.logic.terms import Add, Const, Expr, Mul, Sum, Unary

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


__all__ = ["is_log_softmax"]
