"""Formula values, and their printers for text, LaTeX and MathML."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Final, assert_never

from mirage_formal.support.terminal import escape_line

#: Most characters of a name that are written.
_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class Digit:
    """An index variable."""

    number: int


@dataclass(frozen=True, slots=True)
class Number:
    """Exact rational number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Name:
    """A named tensor, or a step of a proof; with ``indices``, one element of it."""

    text: str
    indices: tuple[Formula, ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of terms; True marks a negative term."""

    terms: tuple[tuple[bool, Formula], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Product of factors; ``sign`` is the operator between them if it is not a product of numbers or matrices."""

    factors: tuple[Formula, ...]
    sign: str = ""


@dataclass(frozen=True, slots=True)
class Quotient:
    """Quotient of two formulas."""

    above: Formula
    below: Formula


@dataclass(frozen=True, slots=True)
class Power:
    """A power with an exponent that is a multiple of a half."""

    base: Formula
    exponent: Fraction


@dataclass(frozen=True, slots=True)
class Call:
    """Application of a named function."""

    name: str
    inside: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class BoundOperator:
    """A sum, maximum or carry over digits, each below its extent; a running one has the digit it runs up to."""

    head: str
    bound: tuple[tuple[Digit, int], ...]
    body: Formula
    until: tuple[Formula, Formula] | None = None
    #: Relation between the two formulas of ``until``.
    relation: str = "≤"


@dataclass(frozen=True, slots=True)
class OmittedPart:
    """Placeholder for the omitted part of a formula that is too long."""


Formula = Digit | Number | Name | Sum | Product | Quotient | Power | Call | BoundOperator | OmittedPart
CUT: Final = OmittedPart()
_HALF: Final = Fraction(1, 2)
_RELATIONS: Final = {"≤": ("<=", r"\le"), "=": ("=", "=")}


def _needs_no_parentheses(formula: Formula) -> bool:
    """Return whether a formula needs no parentheses as a factor."""
    match formula:
        case Sum(terms=terms):
            return len(terms) == 1 and not terms[0][0] and _needs_no_parentheses(terms[0][1])
        case Number(value=value):
            return value >= 0
        case BoundOperator():
            return False
        case _:
            return True


def _is_tight_base(formula: Formula) -> bool:
    """Return whether a formula needs no parentheses as the base of a power."""
    return isinstance(formula, Name | Digit | Call) or (isinstance(formula, Number) and formula.value >= 0)


# --- text ------------------------------------------------------------------------------------------------------------


def text(formula: Formula) -> str:
    """Write a formula as one line of text."""
    match formula:
        case Digit(number=number):
            return f"i{number}"
        case Number(value=value):
            return str(value)
        case Name(text=name, indices=indices):
            return escape_line(name, _NAME) + (f"[{', '.join(map(text, indices))}]" if indices else "")
        case Sum(terms=terms):
            out = ""
            for negative, term in terms:
                sign = ("-" if negative else "") if not out else (" - " if negative else " + ")
                out += sign + (f"({text(term)})" if isinstance(term, Sum) else text(term))
            return out or "0"
        case Product(factors=factors, sign=sign):
            return f" {sign or '*'} ".join(
                text(one) if _needs_no_parentheses(one) or len(factors) == 1 else f"({text(one)})" for one in factors
            )
        case Quotient(above=above, below=below):
            parts = [text(one) if _is_tight_base(one) else f"({text(one)})" for one in (above, below)]
            return " / ".join(parts)
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return f"sqrt({text(base)})"
            head = text(base) if _is_tight_base(base) else f"({text(base)})"
            return f"{head}^{exponent}" if exponent.denominator == 1 else f"{head}^({exponent})"
        case Call(name=name, inside=inside):
            return f"{name}({', '.join(map(text, inside))})"
        case BoundOperator(head=head, bound=bound, body=body, until=until):
            names = [f"{text(until[0])}{_RELATIONS[formula.relation][0]}{text(until[1])}"] if until else []
            names += [f"{text(digit)}<{extent}" for digit, extent in bound]
            return f"{head}[{', '.join(names)}]({text(body)})"
        case OmittedPart():
            return "..."
        case _:
            assert_never(formula)


# --- LaTeX -----------------------------------------------------------------------------------------------------------

_LATEX: Final = {"sum": r"\sum", "max": r"\max", "exp": r"\exp", "log": r"\log"}
_SPECIAL: Final = {
    "\\": r"\textbackslash{}", "_": r"\_", "{": r"\{", "}": r"\}", "$": r"\$", "%": r"\%", "#": r"\#", "&": r"\&",
    "^": r"\^{}", "~": r"\~{}",
}  # fmt: skip


def _latex_name(name: str) -> str:
    return rf"\mathrm{{{''.join(_SPECIAL.get(char, char) for char in escape_line(name, _NAME))}}}"


def _latex_head(name: str) -> str:
    return _LATEX.get(name, rf"\operatorname{{{''.join(_SPECIAL.get(char, char) for char in name)}}}")


def latex(formula: Formula) -> str:
    """Write a formula as LaTeX, for math mode."""
    match formula:
        case Digit(number=number):
            return f"i_{{{number}}}"
        case Number(value=value):
            return str(value) if value.denominator == 1 else rf"\tfrac{{{value.numerator}}}{{{value.denominator}}}"
        case Name(text=name, indices=indices):
            return _latex_name(name) + (f"_{{{', '.join(map(latex, indices))}}}" if indices else "")
        case Sum(terms=terms):
            out = ""
            for negative, term in terms:
                sign = ("-" if negative else "") if not out else (" - " if negative else " + ")
                out += sign + (_latex_group(term) if isinstance(term, Sum) else latex(term))
            return out or "0"
        case Product(factors=factors, sign=sign):
            parts = (
                latex(one) if _needs_no_parentheses(one) or len(factors) == 1 else _latex_group(one) for one in factors
            )
            return (r" \odot " if sign else r" \, ").join(parts)
        case Quotient(above=above, below=below):
            return rf"\frac{{{latex(above)}}}{{{latex(below)}}}"
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return rf"\sqrt{{{latex(base)}}}"
            return f"{latex(base) if _is_tight_base(base) else _latex_group(base)}^{{{exponent}}}"
        case Call(name=name, inside=inside):
            return rf"{_latex_head(name)}\left({', '.join(map(latex, inside))}\right)"
        case BoundOperator(head=head, bound=bound, body=body, until=until):
            names = [f"{latex(until[0])} {_RELATIONS[formula.relation][1]} {latex(until[1])}"] if until else []
            names += [f"{latex(digit)} < {extent}" for digit, extent in bound]
            grouped = _latex_group(body) if isinstance(body, Sum) else latex(body)
            return f"{_latex_head(head)}_{{{', '.join(names)}}} {grouped}"
        case OmittedPart():
            return r"\ldots"
        case _:
            assert_never(formula)


def _latex_group(formula: Formula) -> str:
    return rf"\left({latex(formula)}\right)"


# --- MathML ----------------------------------------------------------------------------------------------------------


def mathml(*formulas: Formula) -> str:
    """Write formulas as a MathML element, joined by equals signs; every name is escaped."""
    inside = "<mo>=</mo>".join(map(_row, formulas))
    return f"<math><mrow>{inside}</mrow></math>"


def _word(name: str) -> str:
    return f"<mi>{escape(escape_line(name, _NAME))}</mi>"


def _list(parts: list[str]) -> str:
    return "<mrow>" + "<mo>,</mo>".join(parts) + "</mrow>"


def _paren(inside: str) -> str:
    return f"<mrow><mo>(</mo>{inside}<mo>)</mo></mrow>"


def _row(formula: Formula) -> str:
    match formula:
        case Digit(number=number):
            return f"<msub><mi>i</mi><mn>{number}</mn></msub>"
        case Number(value=value):
            if value.denominator == 1:
                return f"<mn>{value}</mn>" if value >= 0 else f"<mrow><mo>-</mo><mn>{-value}</mn></mrow>"
            return f"<mfrac><mn>{value.numerator}</mn><mn>{value.denominator}</mn></mfrac>"
        case Name(text=name, indices=indices):
            return f"<msub>{_word(name)}{_list([_row(one) for one in indices])}</msub>" if indices else _word(name)
        case Sum(terms=terms):
            return _terms(terms)
        case Product(factors=factors, sign=sign):
            parts = (
                _row(one) if _needs_no_parentheses(one) or len(factors) == 1 else _paren(_row(one)) for one in factors
            )
            between = f"<mo>{sign}</mo>" if sign else '<mo lspace="0" rspace="0.17em">\u2062</mo>'
            return f"<mrow>{between.join(parts)}</mrow>"
        case Quotient(above=above, below=below):
            return f"<mfrac>{_row(above)}{_row(below)}</mfrac>"
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return f"<msqrt>{_row(base)}</msqrt>"
            return f"<msup>{_row(base) if _is_tight_base(base) else _paren(_row(base))}<mn>{exponent}</mn></msup>"
        case Call(name=name, inside=inside):
            return f"<mrow>{_word(name)}<mo>\u2061</mo>{_paren(_list([_row(one) for one in inside]))}</mrow>"
        case BoundOperator():
            return _over(formula)
        case OmittedPart():
            return "<mo>…</mo>"
        case _:
            assert_never(formula)


def _terms(terms: tuple[tuple[bool, Formula], ...]) -> str:
    out: list[str] = []
    for negative, term in terms:
        if out or negative:
            out.append(f"<mo>{'-' if negative else '+'}</mo>")
        out.append(_paren(_row(term)) if isinstance(term, Sum) else _row(term))
    return "<mrow>" + ("".join(out) or "<mn>0</mn>") + "</mrow>"


def _over(formula: BoundOperator) -> str:
    names = (
        [f"<mrow>{_row(formula.until[0])}<mo>{formula.relation}</mo>{_row(formula.until[1])}</mrow>"]
        if formula.until
        else []
    )
    names += [f"<mrow>{_row(digit)}<mo>&lt;</mo><mn>{extent}</mn></mrow>" for digit, extent in formula.bound]
    head = "<mo>∑</mo>" if formula.head == "sum" else _word(formula.head)
    body = _row(formula.body)
    body = _paren(body) if isinstance(formula.body, Sum) or formula.head != "sum" else body
    return f"<mrow><munder>{head}{_list(names)}</munder>{body}</mrow>"
