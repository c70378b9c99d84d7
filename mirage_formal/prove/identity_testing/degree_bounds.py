"""Bounds on the exponentials and degrees of a program, which the fingerprint's error bound needs.

Every value is written N / D, where N and D are sums of terms polynomial x omega^polynomial. The numbers are upper
bounds, one for all elements of a tensor, found in one pass over the tape. A sum of n elements brings all denominators
to a common one, so it may multiply the denominator n times. Elements with one denominator are treated like elements
with different ones, which makes the bound weaker, never wrong.
"""

from __future__ import annotations

from math import log2
from typing import Final, assert_never

from msgspec import Struct

from mirage_formal.graph.ops import OPAQUE, OpKind
from mirage_formal.prove.identity_testing.primes import FieldPair
from mirage_formal.semantics.straight_line_trace import (
    BinaryStep,
    ConcatStep,
    ConstantStep,
    LoadStep,
    Matmul,
    Needs,
    OrderStep,
    RepeatStep,
    Reshape,
    ResiduePart,
    SliceStep,
    Step,
    SumStep,
    Tape,
    Transpose,
    UnaryStep,
    needed_steps,
    read_part,
)

#: Numbers above this are as good as infinite: every bound is vacuous long before.
_CAP: Final = 1 << 64


class ExponentialSum(Struct, frozen=True):
    """A sum of at most ``terms`` terms polynomial x omega^polynomial, of degree at most ``degree`` in the inputs.

    ``exponent`` bounds the degree of the exponents; it is 0 where no exponential occurs.
    """

    terms: int
    degree: int
    exponent: int

    def times(self, other: ExponentialSum) -> ExponentialSum:
        """Return bounds of the product: numbers of terms multiply, degrees add, the larger exponent remains."""
        return _cap(self.terms * other.terms, self.degree + other.degree, max(self.exponent, other.exponent))

    def plus(self, other: ExponentialSum) -> ExponentialSum:
        """Return the bounds of the sum."""
        if not self.exponent and not other.exponent:
            return _cap(1, max(self.degree, other.degree), 0)
        return _cap(self.terms + other.terms, max(self.degree, other.degree), max(self.exponent, other.exponent))

    def power(self, n: int) -> ExponentialSum:
        """Return the bounds of the product of n different sums with these bounds."""
        if self == ONE:
            return ONE
        terms = _CAP if self.terms > 1 and n * log2(self.terms) > 64 else self.terms**n
        return _cap(terms, self.degree * n, self.exponent)

    def repeated(self, n: int) -> ExponentialSum:
        """Return the bounds of the sum of n different sums with these bounds."""
        return _cap(self.terms * n if self.exponent else 1, self.degree, self.exponent)


def _cap(terms: int, degree: int, exponent: int) -> ExponentialSum:
    return ExponentialSum(min(terms, _CAP), min(degree, _CAP), min(exponent, _CAP))


ONE: Final = ExponentialSum(1, 0, 0)


class QuotientBounds(Struct, frozen=True):
    """Bounds for a quotient N / D.

    Attributes:
        above: Bounds for N.
        below: Bounds for D.
    """

    above: ExponentialSum
    below: ExponentialSum

    def plus(self, other: QuotientBounds) -> QuotientBounds:
        """Return bounds for the sum (and the difference)."""
        if self.below == ONE and other.below == ONE:
            return QuotientBounds(self.above.plus(other.above), ONE)
        crossed = self.above.times(other.below).plus(other.above.times(self.below))
        return QuotientBounds(crossed, self.below.times(other.below))

    def times(self, other: QuotientBounds) -> QuotientBounds:
        """Return bounds for the product."""
        return QuotientBounds(self.above.times(other.above), self.below.times(other.below))

    def over(self, other: QuotientBounds) -> QuotientBounds:
        """Return bounds for the quotient."""
        return QuotientBounds(self.above.times(other.below), self.below.times(other.above))

    def summed(self, n: int) -> QuotientBounds:
        """Return bounds for the sum of n such quotients."""
        if self.below == ONE:
            return QuotientBounds(self.above.repeated(n), ONE)
        return QuotientBounds(self.above.times(self.below.power(n - 1)).repeated(n), self.below.power(n))

    def union(self, other: QuotientBounds) -> QuotientBounds:
        """Return bounds that hold for either."""
        return QuotientBounds(_maximum(self.above, other.above), _maximum(self.below, other.below))


def _maximum(a: ExponentialSum, b: ExponentialSum) -> ExponentialSum:
    return ExponentialSum(max(a.terms, b.terms), max(a.degree, b.degree), max(a.exponent, b.exponent))


class OutsideTheorem(Struct, frozen=True):
    """The reason why no bound applies."""

    reason: str


def bound_degrees(tape: Tape, wanted: Needs) -> QuotientBounds | OutsideTheorem:
    """Return bounds that hold for every output in Z_p."""
    known: dict[tuple[int, ResiduePart], QuotientBounds] = {}
    for number, step, parts in needed_steps(tape, wanted):
        for part in parts:
            found = _step(step, part, known)
            if isinstance(found, OutsideTheorem):
                return found
            known[number, part] = found
    total = QuotientBounds(ONE, ONE)
    for number in tape.outputs:
        total = total.union(known[number, ResiduePart.P])
    return total


def _step(
    step: Step, part: ResiduePart, known: dict[tuple[int, ResiduePart], QuotientBounds]
) -> QuotientBounds | OutsideTheorem:
    match step:
        case LoadStep(mask=True):
            return OutsideTheorem("masks have two values: outside the theorem")
        case LoadStep():
            return QuotientBounds(ExponentialSum(1, 1, 0), ONE)
        case UnaryStep():
            return _unary(step, part, known)
        case BinaryStep():
            read = read_part(step, part)
            return _binary(step, known[step.a, read], known[step.b, read])
        case ConstantStep():
            a = known[step.a, part]
            return a.plus(QuotientBounds(ONE, ONE)) if step.kind is OpKind.ADD else a
        case Matmul():
            return known[step.a, part].times(known[step.b, part]).summed(step.inner)
        case SumStep():
            return known[step.a, part].summed(step.extent // step.kept)
        case ConcatStep():
            return known[step.a, part].union(known[step.b, part])
        case Reshape() | Transpose() | SliceStep() | RepeatStep():
            return known[step.a, part]
        case OrderStep():
            raise AssertionError("needs() has refused this tape")
        case _:
            assert_never(step)


def _binary(step: BinaryStep, a: QuotientBounds, b: QuotientBounds) -> QuotientBounds | OutsideTheorem:
    match step.kind:
        case OpKind.ADD | OpKind.SUB:
            return a.plus(b)
        case OpKind.MUL | OpKind.SELECT:
            return a.times(b)
        case OpKind.DIV:
            return a.over(b)
        case OpKind.DIV_NO_NAN:
            return OutsideTheorem("a quotient that is 0 where its divisor is 0 is outside the theorem")
        case kind if kind in OPAQUE:
            return OutsideTheorem(f"{kind} is opaque: outside the theorem")
        case _:
            raise AssertionError(step.kind)


def _unary(
    step: UnaryStep, part: ResiduePart, known: dict[tuple[int, ResiduePart], QuotientBounds]
) -> QuotientBounds | OutsideTheorem:
    match step.kind:
        case OpKind.SQUARE:
            return known[step.a, part].times(known[step.a, part])
        case OpKind.RECIPROCAL:
            return QuotientBounds(ONE, ONE).over(known[step.a, part])
        case OpKind.EXP:
            inside = known[step.a, ResiduePart.Q]
            if inside.below != ONE:
                return OutsideTheorem("an exponent with a division is outside the theorem")
            return QuotientBounds(ExponentialSum(1, 0, max(1, inside.above.degree)), ONE)
        case OpKind.SQRT:
            return OutsideTheorem("sqrt is outside the theorem")
        case kind if kind in OPAQUE:
            return OutsideTheorem(f"{kind} is opaque: outside the theorem")
        case _:
            raise AssertionError(step.kind)


class Bound(Struct, frozen=True):
    """log2 of an error bound, or None with the reason why there is none."""

    log2: float | None
    reason: str


def error_bound(
    a: QuotientBounds | OutsideTheorem, b: QuotientBounds | OutsideTheorem, pair: FieldPair, rounds: int
) -> Bound:
    """Return a bound on the probability that two programs that differ over the fields agree in ``rounds`` draws.

    The draws are independent.

    Without exponentials two quotients differ by a nonzero polynomial of degree d over the product of the denominators.
    By the Schwartz-Zippel lemma, one draw with nonzero denominators hides it with probability at most d / (p - e),
    where e is the degree of the denominators. With k exponential terms and degree d the paper's theorem (section 5.3)
    gives 8 d k^4 / q + q^(-1/k^2).

    Sound: both bounds are about programs that differ as expressions over Z_p x Z_q; programs that differ over the reals
    by multiples of p only would not be told apart by any draw.
    """
    for side in (a, b):
        if isinstance(side, OutsideTheorem):
            return Bound(None, side.reason)
    assert isinstance(a, QuotientBounds)
    assert isinstance(b, QuotientBounds)
    crossed = a.above.times(b.below).plus(b.above.times(a.below))
    below = a.below.times(b.below)
    if not crossed.exponent and not below.exponent:
        if crossed.degree + below.degree >= pair.p:
            return Bound(None, f"vacuous: degree {_number(crossed.degree)} against p = {pair.p}")
        # Two constants differ or not: degree 0 leaves no error, but never claim more than one field element's worth.
        return Bound(rounds * log2(max(crossed.degree, 1) / (pair.p - below.degree)), "")
    k, d = max(crossed.terms, 1), max(crossed.degree, crossed.exponent, 1)
    if k >= 1 << 20 or d >= 1 << 40:
        return Bound(None, f"vacuous: k = {_number(k)} exponentials, degree {_number(d)}")
    one = 8 * d * k**4 / pair.q + pair.q ** (-1 / k**2)
    if one >= 1:
        return Bound(None, f"vacuous: k = {k} exponentials, degree {d}")
    return Bound(rounds * log2(one), "")


def _number(n: int) -> str:
    return "over 2^64" if n >= _CAP else str(n)
