"""Logarithms of softmaxes, whose exponentials are at most 1 and need no maximum."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from fractions import Fraction

from mirage_formal.logic.terms import Add, Const, Expr, Mul, Sum, Unary

_MINUS_ONE = Const(Fraction(-1))


def normalize(term: Hashable) -> bool:
    """Return whether a tensor is scores less the logarithm of the sum of their exponentials: s - log sum exp(s).

    So is s - (m + log sum exp(s - m)), whatever m is. No element is above 0, for each is a term of its own sum.

    Nothing that is proved rests on this: terms forget indices, so a sum over other elements than those that it is
    subtracted from is taken for one over the same, and then an exponential may overflow as it did before.

    Args:
        term: The abstract expression of the tensor, or what stands for one that has none.
    """
    match term:
        case Add(scores, Mul(factor, below)) if factor is _MINUS_ONE:
            return any(total == Unary("exp", part) for total, part in _totals(scores, below))
    return False


def _totals(scores: Expr, below: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Return the sums under subtracted logarithms, with the scores whose exponentials they should be."""
    match below:
        case Unary("log", total):
            yield _summed(total), scores
        case Add(left, right):
            for logarithm, rest in ((left, right), (right, left)):
                match logarithm:
                    case Unary("log", total):
                        yield _summed(total), Add(scores, Mul(_MINUS_ONE, rest))


def _summed(total: Expr) -> Expr:
    """What a sum, or a sum of partial sums, is over; a term that is none is no sum of exponentials of several."""
    while isinstance(total, Sum):
        total = total.body
    return total


__all__ = ["normalize"]
