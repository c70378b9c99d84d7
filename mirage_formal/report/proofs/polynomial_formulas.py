"""Formulas of the polynomials that the proof kernel has computed, read from its ring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Any, Final

from mirage_formal.check.proof.ring import Coef, Index, Mono, Ring
from mirage_formal.report.proofs.proof_formulas import (
    CUT,
    BoundOperator,
    Call,
    Formula,
    IndexVariable,
    Name,
    Number,
    Power,
    ProductFormula,
    Quotient,
    SumFormula,
)

#: Most factors of a formula that are written.
LONGEST: Final = 240
_TWO: Final = Fraction(2)


class FormulaConverter:
    """Converter of one ring's values to formulas; digits are numbered in order of occurrence.

    Args:
        ring: The kernel's ring, after a replay.
        names: Names of the inputs, then of the atoms.
    """

    def __init__(self, ring: Ring, names: Sequence[str]) -> None:
        self._ring = ring
        self._names = names
        self._digits: dict[int, IndexVariable] = {}
        self._left = LONGEST

    def digit(self, number: int) -> IndexVariable:
        """Return the variable of a digit."""
        return self._digits.setdefault(number, IndexVariable(len(self._digits)))

    def bound(self, digits: Iterable[int]) -> tuple[tuple[IndexVariable, int], ...]:
        """Return digits with their extents, in ascending order of number."""
        return tuple((self.digit(d), self._ring.extents[d]) for d in sorted(digits))

    def index(self, index: Index) -> Formula:
        """Return the formula of an index: offset + sum of stride * digit."""
        offset, terms = index
        parts: list[tuple[bool, Formula]] = []
        for d, stride in sorted(terms, key=lambda term: -term[1]):
            digit: Formula = self.digit(d)
            parts.append((False, digit if stride == 1 else ProductFormula((Number(Fraction(stride)), digit))))
        if offset or not parts:
            parts.append((False, Number(Fraction(offset))))
        return parts[0][1] if len(parts) == 1 else SumFormula(tuple(parts))

    def string(self, string: Sequence[int]) -> Formula:
        """Return the formula of the position along an axis that a string of digits denotes."""
        below = [prod(self._ring.extents[d] for d in string[at + 1 :]) for at in range(len(string))]
        return self.index((0, tuple(zip(string, below, strict=True))))

    def whole(self, poly: Iterable[tuple[Mono, Coef]]) -> Formula:
        """Return a polynomial as a formula of its own, truncated where it is very long."""
        self._left = LONGEST
        return self.polynomial(poly)

    def polynomial(self, poly: Iterable[tuple[Mono, Coef]]) -> Formula:
        """Return a polynomial as a part of a formula."""
        out: list[tuple[bool, Formula]] = []
        for mono, coef in poly:
            if self._left <= 0:
                out.append((False, CUT))
                break
            out.append((coef < 0, self.term(mono, abs(Fraction(coef)))))
        if len(out) == 1 and not out[0][0]:
            return out[0][1]
        return SumFormula(tuple(out)) if out else Number(Fraction(0))

    def term(self, mono: Mono, coef: Fraction) -> Formula:
        """Return a monomial with its coefficient, as a quotient where exponents are negative."""
        above = [self.factor(f, e) for f, e in mono if e > 0]
        below = [self.factor(f, -e) for f, e in mono if e < 0]
        if coef.numerator != 1 or not above:
            above.insert(0, Number(Fraction(coef.numerator)))
        if coef.denominator != 1:
            below.insert(0, Number(Fraction(coef.denominator)))
        return Quotient(_times(above), _times(below)) if below else _times(above)

    def factor(self, f: int, e2: int) -> Formula:
        """Return the formula of a factor to the power e2/2."""
        self._left -= 1
        if self._left <= 0:
            return CUT
        base = self._factor(self._ring.kinds[f], self._ring.payloads[f])
        return base if e2 == 2 else Power(base, e2 / _TWO)

    def _factor(self, kind: str, payload: Any) -> Formula:
        match kind:
            case "in":
                return Name(self._names[max(payload[0], ~payload[0])], tuple(self.index(index) for index in payload[1]))
            case "sum":
                return BoundOperator("sum", self.bound(payload[0]), self.term(payload[1], Fraction(1)))
            case "max":
                return BoundOperator("max", self.bound(payload[0]), self._sorted(payload[1]))
            case "pmax" | "carry":
                index, u, bound, body = payload
                until = (self.digit(u), self.index(index))
                return BoundOperator("max" if kind == "pmax" else "carry", self.bound(bound), self._sorted(body), until)
            case "exp":
                return Call("exp", (self._sorted(payload),))
            case "pow":
                return self._sorted(payload)
            case "top":
                return Call("max", tuple(self._sorted(key) for key in sorted(payload, key=sorted)))
            case "surd":
                return Number(Fraction(payload))
            case "keep":
                return Call("select", (*(self._sorted(key) for key in payload), Number(Fraction(0))))
            case "fn":
                name, inside = payload
                return Call(name, (self._sorted(inside),))
            case _:
                raise AssertionError(kind)

    def _sorted(self, key: Iterable[tuple[Mono, Coef]]) -> Formula:
        return self.polynomial(sorted(key))


def _times(factors: list[Formula]) -> Formula:
    return factors[0] if len(factors) == 1 else ProductFormula(tuple(factors))
