"""Second opinion of sympy on closing identities, decided over its own polynomials.

Inputs, sums, maxima and functions are opaque: f is the square of a symbol, so that f^(e/2) is its power e. exp(c m) is
a power of one symbol for each monomial m of arguments. A power of a polynomial is expanded over these; its odd half
power is a symbol of its own. Square roots of integers are products of symbols for numbers without common divisors,
which Euclid's algorithm finds: nothing is factored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Any, Final, NoReturn

from mirage_formal.check.proof.closing_identities import Closing
from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof.ring import Coef, Mono

MAX_TERMS: Final = 5_000
#: Most products of terms for one opinion: some seconds.
MAX_WORK: Final = 2_000_000


class SympyAnswer(Enum):
    """Verdict of sympy on an identity: it holds, it does not, or sympy decides nothing within its limits.

    Sound: CONFIRMED accepts nothing by itself; REFUTED makes a check fail.
    """

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"

    def __bool__(self) -> NoReturn:
        raise TypeError("an Answer has no truth value; compare it with CONFIRMED, REFUTED or UNDECIDED")


@dataclass(frozen=True, slots=True)
class IdentityCrosscheck:
    """Verdict of sympy on one identity, and the reason if it is undecided."""

    answer: SympyAnswer
    reason: str = ""


class _Undecided(Exception):
    pass


class _Root(tuple[str, int]):
    """Name of the root of a number."""


def crosscheck_theorem(theorem: Theorem) -> tuple[IdentityCrosscheck, ...]:
    """Return sympy's verdict on each closing identity of a theorem, in their order."""
    return tuple(crosscheck_identity(closing) for closing in theorem.closings)


def crosscheck_identity(closing: Closing) -> IdentityCrosscheck:
    """Return sympy's verdict on one closing identity."""
    try:
        field = _Field(closing)
        equal = field.equal(closing.left, closing.right)
    except _Undecided:
        return IdentityCrosscheck(
            SympyAnswer.UNDECIDED,
            f"expected divisors that are not 0, and at most {MAX_TERMS} terms and {MAX_WORK} products",
        )
    return IdentityCrosscheck(SympyAnswer.CONFIRMED if equal else SympyAnswer.REFUTED)


_Terms = tuple[tuple[Mono, Coef], ...]
_Quotients = dict[Any, Any]  # denominator -> numerator, both polynomials of sympy


class _Field:
    """Factors of a closing identity as quotients of sympy's polynomials."""

    def __init__(self, closing: Closing) -> None:
        from sympy import QQ
        from sympy.polys.rings import ring

        self._powers = closing.powers
        self._rationals = QQ
        monos = [mono for mono, _ in (*closing.left, *closing.right)]
        monos += [m for kind, body in closing.powers.values() if kind == "pow" for m, _ in body]
        self._scale: dict[Mono, int] = {}
        for kind, body in closing.powers.values():
            for mono, coef in body if kind == "exp" else ():
                self._scale[mono] = lcm(self._scale.get(mono, 1), coef.denominator)
        surds = {f: n for f, (kind, n) in closing.powers.items() if kind == "surd"}
        bases = _coprime(surds.values())
        self._roots = {f: _exponents(n, bases) for f, n in surds.items()}
        names: dict[object, None] = dict.fromkeys(f for mono in monos for f, _ in mono)
        names.update(dict.fromkeys(self._scale))
        names.update(dict.fromkeys(_Root(("root", base)) for base in bases))
        made = ring([f"x{i}" for i in range(len(names) + 1)], QQ)
        self._one = made[0].one
        self._symbols = dict(zip(names, made[1:], strict=False))
        self._squares = {i: name[1] for i, name in enumerate(names) if isinstance(name, _Root)}
        self._bases: dict[int, tuple[Any, Any]] = {}
        self._work = 0

    def equal(self, left: _Terms, right: _Terms) -> bool:
        """Return whether two sums are equal as quotients of polynomials."""
        a, b = self._sum(left), self._sum(right)
        if not (a[1] and b[1]):
            raise _Undecided
        if a[1] == b[1]:
            return not self._reduced(a[0] - b[0])
        return not self._reduced(self._product(a[0], b[1]) - self._product(b[0], a[1]))

    def _sum(self, terms: _Terms) -> tuple[Any, Any]:
        groups: _Quotients = {}
        for mono, coef in terms:
            above = self._one * self._rationals(Fraction(coef).numerator, Fraction(coef).denominator)
            below = self._one
            for f, e in mono:
                up, down = self._power(f, e)
                above, below = self._times(above, up), self._times(below, down)
            groups[below] = groups.get(below, 0) + above
        above, below = self._one * 0, self._one
        for down, up in groups.items():
            sides = self._product(above, down) + self._product(up, below)
            above, below = self._checked(sides), self._times(below, down)
        return above, below

    def _power(self, f: int, e: int) -> tuple[Any, Any]:
        kind, body = self._powers.get(f, ("", ()))
        above, below = self._one, self._one
        if kind == "exp":
            for mono, coef in body:
                n = Fraction(coef * e * self._scale[mono], 2)
                if n.denominator > 1 or abs(n) > MAX_TERMS:
                    raise _Undecided
                part = self._symbols[mono] ** abs(n.numerator)
                above, below = (above * part, below) if n > 0 else (above, below * part)
            return above, below
        if kind == "pow":
            if f not in self._bases:
                self._bases[f] = self._sum(tuple(body))
            up, down = self._bases[f]
            root = self._symbols[f] if e % 2 else self._one
            for _ in range(abs(e // 2)):
                above, below = self._times(above, up), self._times(below, down)
            return (above * root, below) if e > 0 else (below * root, above)
        base = self._symbols[f]
        if kind == "surd":
            base = self._one
            for number, times in self._roots[f].items():
                base *= self._symbols[_Root(("root", number))] ** times
        return (base**e, self._one) if e > 0 else (self._one, base**-e)

    def _times(self, a: Any, b: Any) -> Any:
        return self._checked(self._product(a, b))

    def _product(self, a: Any, b: Any) -> Any:
        self._work += len(a) * len(b)
        if self._work > MAX_WORK:
            raise _Undecided
        return a * b

    def _checked(self, poly: Any) -> Any:
        if len(poly) > MAX_TERMS:
            raise _Undecided
        return self._reduced(poly)

    def _reduced(self, poly: Any) -> Any:
        """Return a polynomial with the squares of roots replaced."""
        if not self._squares:
            return poly
        out = self._one * 0
        for powers, coef in poly.terms():
            left = list(powers)
            for i, p in self._squares.items():
                coef, left[i] = coef * p ** (left[i] // 2), left[i] % 2
            out += poly.ring({tuple(left): coef})
        return out


def _coprime(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return pairwise coprime numbers, none a square, whose products and squares give the given numbers."""
    found: list[int] = []
    waiting = list(numbers)
    while waiting:
        n = waiting.pop()
        while n > 1 and isqrt(n) ** 2 == n:
            n = isqrt(n)
        clash = next((m for m in found if gcd(m, n) > 1), None)
        if clash is not None:
            common = gcd(clash, n)
            found.remove(clash)
            waiting += [common, clash // common, n // common]
        elif n > 1:
            found.append(n)
    return tuple(found)


def _exponents(n: int, bases: Iterable[int]) -> Mapping[int, int]:
    """Return the multiplicity of each base in a number."""
    out: dict[int, int] = {}
    for base in bases:
        while n % base == 0:
            n, out[base] = n // base, out.get(base, 0) + 1
    return out
