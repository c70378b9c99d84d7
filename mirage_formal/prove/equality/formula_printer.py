"""A printer of exact terms: formulas as text and as LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from mirage_formal.prove.equality.polynomials import FactorKind, Index, Monomial, Polynomial, Rational, TermInterner
from mirage_formal.semantics.function_table import FUNCTION_SPECS, UNINTERPRETED

_FUNCTIONS: Final = {
    **{kind.value: FUNCTION_SPECS[kind].latex for kind in UNINTERPRETED},
    "negative": r"\operatorname{negative}",
    "zero": r"\operatorname{zero}",
    "inv0": r"\operatorname{inv}_0",
}
#: Characters after which the text of a polynomial is cut off with " ...".
_LIMIT: Final = 4000


@dataclass(frozen=True, slots=True)
class Style:
    """The output style of formulas: text or LaTeX."""

    latex: bool

    def power(self, base: str, e: Fraction) -> str:
        """Return the text of ``base`` to the power e, as a root for e = 1/2."""
        if e == Fraction(1, 2):
            return rf"\sqrt{{{_strip_parentheses(base)}}}" if self.latex else f"sqrt({_strip_parentheses(base)})"
        if self.latex:
            return f"{base}^{{{e}}}"
        return f"{base}^{e}" if e.denominator == 1 else f"{base}^({e})"

    def times(self, factors: Iterable[str]) -> str:
        """Return the text of a product of factors."""
        return (r" \, " if self.latex else " * ").join(factors)

    def over(self, above: str, below: str) -> str:
        """Return the text of the quotient of two texts."""
        return rf"\frac{{{above}}}{{{below}}}" if self.latex else f"{above} / {below}"


TEXT: Final = Style(latex=False)
LATEX: Final = Style(latex=True)


class FormulaPrinter:
    """A printer of the terms of one interner; digits are named i0, i1, ... in order of first occurrence."""

    def __init__(self, terms: TermInterner, inputs: Sequence[str], style: Style) -> None:
        self.terms = terms
        self.inputs = inputs
        self.style = style
        self._names: dict[int, str] = {}

    def digit(self, d: int) -> str:
        """Return the printed name of a digit: i0, i1, ... in the order in which digits are first printed."""
        number = self._names.setdefault(d, str(len(self._names)))
        return f"i_{{{number}}}" if self.style.latex else f"i{number}"

    def index(self, index: Index) -> str:
        """Return the text of an index of an input: digits times their strides, then the offset."""
        offset, entries = index
        parts = [
            self.digit(d) if s == 1 else f"{s}{' ' if self.style.latex else '*'}{self.digit(d)}" for s, d in entries
        ]
        if offset or not parts:
            parts.append(str(offset))
        return " + ".join(parts)

    def polynomial(self, p: Polynomial) -> str:
        """Return the text of a polynomial, cut off where it is very long."""
        out = ""
        for m, c in p:
            term = self.term(m, abs(Fraction(c)))
            out += (f" - {term}" if c < 0 else f" + {term}") if out else (f"-{term}" if c < 0 else term)
            if len(out) > _LIMIT:
                return out[:_LIMIT] + " ..."
        return out or "0"

    def term(self, m: Monomial, c: Rational) -> str:
        """Return the text of a monomial with its coefficient, as a quotient where exponents are negative."""
        value = Fraction(c)
        above = [self.factor(f, e) for f, e in m if e > 0]
        below = [self.factor(f, -e) for f, e in m if e < 0]
        if value.numerator != 1 or not above:
            above.insert(0, str(value.numerator))
        if value.denominator != 1:
            below.insert(0, str(value.denominator))
        top = self.style.times(above)
        if not below:
            return top
        bottom = self.style.times(below)
        return self.style.over(top, bottom if self.style.latex or len(below) == 1 else f"({bottom})")

    def factor(self, f: int, e2: int) -> str:
        """Return the text of factor^(e2/2)."""
        base = self._factor(f)
        return base if e2 == 2 else self.style.power(base, Fraction(e2, 2))

    def _factor(self, f: int) -> str:
        payload = self.terms.payload[f]
        latex = self.style.latex
        match self.terms.kind[f]:
            case FactorKind.INPUT:
                number, indices = max(payload[0], ~payload[0]), payload[1]
                inside = ", ".join(self.index(index) for index in indices)
                return (
                    rf"\mathrm{{{self.inputs[number]}}}_{{{inside}}}" if latex else f"{self.inputs[number]}[{inside}]"
                )
            case FactorKind.SUM:
                return self._bound(r"\sum" if latex else "sum", payload[0], self.term(payload[1], 1))
            case FactorKind.MAX:
                return self._bound(r"\max" if latex else "max", payload[0], self.polynomial(payload[1]))
            case FactorKind.PMAX | FactorKind.CARRY as kind:
                index, u, digits, p = payload
                until = f"{self.digit(u)} {chr(92) + 'le' if latex else '<='} {self.index(index)}"
                names = ", ".join([until, *(self.digit(d) for d in digits)])
                head = (
                    (r"\max" if latex else "max")
                    if kind == FactorKind.PMAX
                    else (r"\mathrm{carry}" if latex else "carry")
                )
                return (
                    rf"\left({head}_{{{names}}} {self.polynomial(p)}\right)"
                    if latex
                    else f"{head}[{names}]({self.polynomial(p)})"
                )
            case FactorKind.EXP:
                return rf"\exp\left({self.polynomial(payload)}\right)" if latex else f"exp({self.polynomial(payload)})"
            case FactorKind.POW:
                return rf"\left({self.polynomial(payload)}\right)" if latex else f"({self.polynomial(payload)})"
            case FactorKind.TOP:
                inside = ", ".join(self.polynomial(p) for p in payload)
                return rf"\max\left({inside}\right)" if latex else f"max({inside})"
            case FactorKind.KEEP:
                inside = ", ".join(self.polynomial(p) for p in payload)
                return rf"\operatorname{{keep}}\left({inside}\right)" if latex else f"keep({inside})"
            case FactorKind.SURD:
                return f"({payload})"
            case FactorKind.FN:
                name, p = payload
                return (
                    rf"{_FUNCTIONS[name]}\left({self.polynomial(p)}\right)"
                    if latex
                    else f"{name}({self.polynomial(p)})"
                )

    def _bound(self, head: str, digits: Sequence[int], body: str) -> str:
        if self.style.latex:
            names = ", ".join(f"{self.digit(d)} < {self.terms.extent[d]}" for d in digits)
            return rf"\left({head}_{{{names}}} {body}\right)"
        names = ", ".join(f"{self.digit(d)}<{self.terms.extent[d]}" for d in digits)
        return f"{head}[{names}]({body})"


def _strip_parentheses(text: str) -> str:
    """Return the text without parentheses that a root does not need."""
    if text.startswith("(") and text.endswith(")") and _closes_last(text):
        return text[1:-1]
    return text


def _closes_last(text: str) -> bool:
    depth = 0
    for place, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return place == len(text) - 1
    return False
