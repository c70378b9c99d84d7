"""Error bound of a fingerprint, from the checker's own abstract expressions (docs/fingerprint.md).

Every output is a quotient N / D of sums of terms polynomial x omega^polynomial. Counting terms and degrees over the
expressions gives k and d of the paper's theorem (section 5.3), or the degree for Schwartz-Zippel without exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

from mirage_formal.check.abstract_interpretation import EITHER
from mirage_formal.logic.terms import Add, Const, Div, Expr, Mul, Sum, Unary, Variable, postorder
from mirage_formal.support.errors import FormatError

_CAP = 1 << 64  # numbers above this are as good as infinite


class TermBounds(NamedTuple):
    """Bounds of a sum of terms.

    There are at most ``many`` terms, of degree at most ``degree``, with exponents of degree ``exponent`` (0: none).
    """

    many: int
    degree: int
    exponent: int


class StatedBound(NamedTuple):
    """A bound as a record states it.

    Attributes:
        log2: Its logarithm; None if there is none.
        reason: The reason why there is none.
        loose: Whether only a bound that is too small is refused, because abstract expressions do not count
            concatenations exactly.
    """

    log2: float | None
    reason: str
    loose: bool


_ONE = TermBounds(1, 0, 0)
#: Numerator and denominator.
_Quotient = tuple[TermBounds, TermBounds]


def _cap_terms(many: int, degree: int, exponent: int) -> TermBounds:
    return TermBounds(min(many, _CAP), min(degree, _CAP), min(exponent, _CAP))


def _bound_of_product(a: TermBounds, b: TermBounds) -> TermBounds:
    return _cap_terms(a.many * b.many, a.degree + b.degree, max(a.exponent, b.exponent))


def _bound_of_term_sum(a: TermBounds, b: TermBounds) -> TermBounds:
    exponent = max(a.exponent, b.exponent)
    return _cap_terms(a.many + b.many if exponent else 1, max(a.degree, b.degree), exponent)


def _bound_of_quotient_sum(a: _Quotient, b: _Quotient) -> _Quotient:
    if a[1] == _ONE and b[1] == _ONE:
        return _bound_of_term_sum(a[0], b[0]), _ONE
    return _bound_of_term_sum(_bound_of_product(a[0], b[1]), _bound_of_product(b[0], a[1])), _bound_of_product(
        a[1], b[1]
    )


def _bound_of_sum(a: _Quotient, n: int) -> _Quotient:
    """Return the bounds of a sum of n quotients, whose denominators may all differ."""

    def repeated(terms: TermBounds) -> TermBounds:
        return _cap_terms(terms.many * n if terms.exponent else 1, terms.degree, terms.exponent)

    def power(terms: TermBounds, times: int) -> TermBounds:
        if terms == _ONE:
            return _ONE
        huge = terms.many > 1 and times * log2(terms.many) > 64
        return _cap_terms(_CAP if huge else terms.many**times, terms.degree * times, terms.exponent)

    if a[1] == _ONE:
        return repeated(a[0]), _ONE
    return repeated(_bound_of_product(a[0], power(a[1], n - 1))), power(a[1], n)


def _exponential(inside: _Quotient, faults: list[str]) -> _Quotient:
    if inside[1] != _ONE:
        faults.append("an exponent with a division is outside the theorem")
    return TermBounds(1, 0, max(1, inside[0].degree)), _ONE


def _quotient(e: Expr, known: dict[Expr, _Quotient], faults: list[str]) -> _Quotient:
    match e:
        case Variable():
            return TermBounds(1, 1, 0), _ONE
        case Const():
            return _ONE, _ONE
        case Add(a, b):
            return _bound_of_quotient_sum(known[a], known[b])
        case Mul(a, b):
            return _bound_of_product(known[a][0], known[b][0]), _bound_of_product(known[a][1], known[b][1])
        case Div(a, b):
            return _bound_of_product(known[a][0], known[b][1]), _bound_of_product(known[a][1], known[b][0])
        case Sum(extent, a):
            return _bound_of_sum(known[a], extent)
        case Unary(function, Add(a, b)) if function == EITHER:
            return _join_bounds(known[a], known[b])
        case Unary("exp", a):
            return _exponential(known[a], faults)
        case Unary("silu", a):
            below = _bound_of_quotient_sum(_exponential(known[a], faults), (_ONE, _ONE))
            return _bound_of_product(known[a][0], below[1]), _bound_of_product(known[a][1], below[0])
        case Unary("sqrt", _):
            faults.append("sqrt is outside the theorem")
        case Unary(function, _):
            faults.append(f"{function} is opaque: outside the theorem")
    return _ONE, _ONE


def _join_bounds(*either: _Quotient) -> _Quotient:
    """Return bounds that hold for each of some quotients."""

    def largest(side: int) -> TermBounds:
        return TermBounds(*(max(values) for values in zip(_ONE, *(one[side] for one in either), strict=True)))

    return largest(0), largest(1)


def _bounds(outputs: Sequence[Expr], faults: list[str]) -> _Quotient:
    """Return bounds that hold for each of the outputs."""
    known: dict[Expr, _Quotient] = {}
    for node in postorder(outputs):
        known[node] = _quotient(node, known, faults)
    return _join_bounds(*(known[e] for e in outputs))


def check_bound(
    program: Sequence[Expr],
    candidate: Sequence[Expr],
    primes: tuple[int, int],
    rounds: int,
    stated: StatedBound,
    outside: Sequence[str] = (),
) -> None:
    """Compare a stated bound, and the stated reason where there is none, with the theorem's.

    Args:
        program: Expressions of the program's outputs.
        candidate: Expressions of the candidate's.
        primes: p and q.
        rounds: Independent draws.
        stated: The bound.
        outside: Reasons why no bound applies that expressions do not show.

    Raises:
        FormatError: The stated bound is another one.
    """
    faults = list(outside)
    a, b = _bounds(program, faults), _bounds(candidate, faults)
    log, reasons = (None, faults) if faults else _theorem(a, b, primes, rounds)
    claim = stated.log2
    if stated.loose and (claim is None or (log is not None and claim >= log - 1e-6)):
        return
    same = claim is log if claim is None or log is None else abs(claim - log) <= 1e-6 * abs(log)
    if not same or stated.reason not in reasons:
        got = f"{claim} ({stated.reason or 'no reason'})"
        raise FormatError(f"expected the bound {log} ({' or '.join(sorted(set(reasons))) or 'no reason'}), got {got}")


def _theorem(a: _Quotient, b: _Quotient, primes: tuple[int, int], rounds: int) -> tuple[float | None, list[str]]:
    p, q = primes
    crossed = _bound_of_term_sum(_bound_of_product(a[0], b[1]), _bound_of_product(b[0], a[1]))
    below = _bound_of_product(a[1], b[1])
    if not crossed.exponent and not below.exponent:
        if crossed.degree + below.degree >= p:
            return None, [f"vacuous: degree {_shown(crossed.degree)} against p = {p}"]
        return rounds * log2(max(crossed.degree, 1) / (p - below.degree)), [""]
    k, d = max(crossed.many, 1), max(crossed.degree, crossed.exponent, 1)
    if k >= 1 << 20 or d >= 1 << 40:
        return None, [f"vacuous: k = {_shown(k)} exponentials, degree {_shown(d)}"]
    one = 8 * d * k**4 / q + q ** (-1 / k**2)
    if one >= 1:
        return None, [f"vacuous: k = {k} exponentials, degree {d}"]
    return rounds * log2(one), [""]


def _shown(n: int) -> str:
    return "over 2^64" if n >= _CAP else str(n)
