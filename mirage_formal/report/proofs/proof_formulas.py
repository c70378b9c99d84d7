"""Formulas and the proofs that are made of them, with printers of formulas for text, LaTeX and MathML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from typing import Final, assert_never

from mirage_formal.support.terminal import escape_line

#: Most characters of a name that are written.
_NAME: Final = 60


@dataclass(frozen=True, slots=True)
class IndexVariable:
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
class SumFormula:
    """Sum of terms; True marks a negative term."""

    terms: tuple[tuple[bool, Formula], ...]


@dataclass(frozen=True, slots=True)
class ProductFormula:
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
    bound: tuple[tuple[IndexVariable, int], ...]
    body: Formula
    until: tuple[Formula, Formula] | None = None
    #: Relation between the two formulas of ``until``.
    relation: str = "≤"


@dataclass(frozen=True, slots=True)
class ElidedTerm:
    """Placeholder for the omitted part of a formula that is too long."""


Formula = (
    IndexVariable | Number | Name | SumFormula | ProductFormula | Quotient | Power | Call | BoundOperator | ElidedTerm
)
_Writer = Callable[[Formula], str]
CUT: Final = ElidedTerm()
_HALF: Final = Fraction(1, 2)
_RELATIONS: Final = {"≤": ("<=", r"\le"), "=": ("=", "=")}


def _needs_no_parentheses(formula: Formula) -> bool:
    """Return whether a formula needs no parentheses as a factor."""
    match formula:
        case SumFormula(terms=terms):
            return len(terms) == 1 and not terms[0][0] and _needs_no_parentheses(terms[0][1])
        case Number(value=value):
            return value >= 0
        case BoundOperator():
            return False
        case _:
            return True


def _is_tight_base(formula: Formula) -> bool:
    """Return whether a formula needs no parentheses as the base of a power."""
    return isinstance(formula, Name | IndexVariable | Call) or (isinstance(formula, Number) and formula.value >= 0)


def _write_terms(terms: tuple[tuple[bool, Formula], ...], write: _Writer, group: _Writer) -> str:
    """Return a sum; terms that are sums are grouped."""
    out = ""
    for negative, term in terms:
        sign = ("-" if negative else "") if not out else (" - " if negative else " + ")
        out += sign + (group if isinstance(term, SumFormula) else write)(term)
    return out or "0"


def _write_factors(factors: tuple[Formula, ...], write: _Writer, group: _Writer) -> list[str]:
    """Return the factors of a product, with parentheses where they are needed."""
    return [(write if _needs_no_parentheses(one) or len(factors) == 1 else group)(one) for one in factors]


def _write_base(base: Formula, write: _Writer, group: _Writer) -> str:
    return (write if _is_tight_base(base) else group)(base)


# --- text ------------------------------------------------------------------------------------------------------------


def formula_text(formula: Formula) -> str:
    """Write a formula as one line of text."""
    match formula:
        case IndexVariable(number=number):
            return f"i{number}"
        case Number(value=value):
            return str(value)
        case Name(text=name, indices=indices):
            return escape_line(name, _NAME) + (f"[{', '.join(map(formula_text, indices))}]" if indices else "")
        case SumFormula(terms=terms):
            return _write_terms(terms, formula_text, _text_group)
        case ProductFormula(factors=factors, sign=sign):
            return f" {sign or '*'} ".join(_write_factors(factors, formula_text, _text_group))
        case Quotient(above=above, below=below):
            return " / ".join(_write_base(one, formula_text, _text_group) for one in (above, below))
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return f"sqrt({formula_text(base)})"
            head = _write_base(base, formula_text, _text_group)
            return f"{head}^{exponent}" if exponent.denominator == 1 else f"{head}^({exponent})"
        case Call(name=name, inside=inside):
            return f"{name}({', '.join(map(formula_text, inside))})"
        case BoundOperator(head=head, bound=bound, body=body, until=until):
            names = (
                [f"{formula_text(until[0])}{_RELATIONS[formula.relation][0]}{formula_text(until[1])}"] if until else []
            )
            names += [f"{formula_text(digit)}<{extent}" for digit, extent in bound]
            return f"{head}[{', '.join(names)}]({formula_text(body)})"
        case ElidedTerm():
            return "..."
        case _:
            assert_never(formula)


def _text_group(formula: Formula) -> str:
    return f"({formula_text(formula)})"


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
        case IndexVariable(number=number):
            return f"i_{{{number}}}"
        case Number(value=value):
            return str(value) if value.denominator == 1 else rf"\tfrac{{{value.numerator}}}{{{value.denominator}}}"
        case Name(text=name, indices=indices):
            return _latex_name(name) + (f"_{{{', '.join(map(latex, indices))}}}" if indices else "")
        case SumFormula(terms=terms):
            return _write_terms(terms, latex, _latex_group)
        case ProductFormula(factors=factors, sign=sign):
            return (r" \odot " if sign else r" \, ").join(_write_factors(factors, latex, _latex_group))
        case Quotient(above=above, below=below):
            return rf"\frac{{{latex(above)}}}{{{latex(below)}}}"
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return rf"\sqrt{{{latex(base)}}}"
            return f"{_write_base(base, latex, _latex_group)}^{{{exponent}}}"
        case Call(name=name, inside=inside):
            return rf"{_latex_head(name)}\left({', '.join(map(latex, inside))}\right)"
        case BoundOperator(head=head, bound=bound, body=body, until=until):
            names = [f"{latex(until[0])} {_RELATIONS[formula.relation][1]} {latex(until[1])}"] if until else []
            names += [f"{latex(digit)} < {extent}" for digit, extent in bound]
            grouped = _latex_group(body) if isinstance(body, SumFormula) else latex(body)
            return f"{_latex_head(head)}_{{{', '.join(names)}}} {grouped}"
        case ElidedTerm():
            return r"\ldots"
        case _:
            assert_never(formula)


def _latex_group(formula: Formula) -> str:
    return rf"\left({latex(formula)}\right)"


# --- MathML ----------------------------------------------------------------------------------------------------------


def mathml(*formulas: Formula, display: str = "") -> str:
    """Write formulas as a MathML element, joined by equals signs; every name is escaped."""
    inside = "<mo>=</mo>".join(map(_row, formulas))
    shown = f' display="{display}"' if display else ""
    return f"<math{shown}><mrow>{inside}</mrow></math>"


def _word(name: str) -> str:
    return f"<mi>{escape(escape_line(name, _NAME))}</mi>"


def _list(parts: list[str]) -> str:
    return "<mrow>" + "<mo>,</mo>".join(parts) + "</mrow>"


def _row_group(formula: Formula) -> str:
    return _paren(_row(formula))


def _paren(inside: str) -> str:
    return f"<mrow><mo>(</mo>{inside}<mo>)</mo></mrow>"


def _row(formula: Formula) -> str:
    match formula:
        case IndexVariable(number=number):
            return f"<msub><mi>i</mi><mn>{number}</mn></msub>"
        case Number(value=value):
            if value.denominator == 1:
                return f"<mn>{value}</mn>" if value >= 0 else f"<mrow><mo>-</mo><mn>{-value}</mn></mrow>"
            return f"<mfrac><mn>{value.numerator}</mn><mn>{value.denominator}</mn></mfrac>"
        case Name(text=name, indices=indices):
            return f"<msub>{_word(name)}{_list([_row(one) for one in indices])}</msub>" if indices else _word(name)
        case SumFormula(terms=terms):
            return _terms(terms)
        case ProductFormula(factors=factors, sign=sign):
            between = f"<mo>{sign}</mo>" if sign else '<mo lspace="0" rspace="0.17em">\u2062</mo>'
            return f"<mrow>{between.join(_write_factors(factors, _row, _row_group))}</mrow>"
        case Quotient(above=above, below=below):
            return f"<mfrac>{_row(above)}{_row(below)}</mfrac>"
        case Power(base=base, exponent=exponent):
            if exponent == _HALF:
                return f"<msqrt>{_row(base)}</msqrt>"
            return f"<msup>{_write_base(base, _row, _row_group)}<mn>{exponent}</mn></msup>"
        case Call(name=name, inside=inside):
            return f"<mrow>{_word(name)}<mo>\u2061</mo>{_paren(_list([_row(one) for one in inside]))}</mrow>"
        case BoundOperator():
            return _over(formula)
        case ElidedTerm():
            return "<mo>…</mo>"
        case _:
            assert_never(formula)


def _terms(terms: tuple[tuple[bool, Formula], ...]) -> str:
    out: list[str] = []
    for negative, term in terms:
        if out or negative:
            out.append(f"<mo>{'-' if negative else '+'}</mo>")
        out.append((_row_group if isinstance(term, SumFormula) else _row)(term))
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
    body = _paren(body) if isinstance(formula.body, SumFormula) or formula.head != "sum" else body
    return f"<mrow><munder>{head}{_list(names)}</munder>{body}</mrow>"


# --- proofs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OperatorLocation:
    """An operator of one of the two graphs of a proof.

    Attributes:
        graph: "program" or "candidate".
        node: The id of its node in the graph's levels; empty where it is in a graph that is not drawn.
        label: Its name for readers.
    """

    graph: str
    node: str
    label: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a replayed proof: a tensor and its element.

    Attributes:
        number: Its number in the proof object.
        law: Description of the step.
        minor: Whether it only renames, splits or folds digits, or moves elements.
        head: The tensor's element at its position.
        left: The operator applied to the elements of earlier steps.
        right: The normal form of its element.
        operands: Numbers of the steps that it reads.
        places: Operators of both graphs that compute this tensor.
    """

    number: int
    law: str
    minor: bool
    head: Formula
    left: Formula
    right: Formula
    operands: tuple[int, ...]
    places: tuple[OperatorLocation, ...]

    @property
    def sides(self) -> tuple[Formula, ...]:
        """Return the head and what it equals."""
        return (self.head, self.right) if self.left == self.right else (self.head, self.left, self.right)


@dataclass(frozen=True, slots=True)
class Lemma:
    """A checked lemma of a law: both sides, equal for all values of their free digits."""

    number: int
    law: str
    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """Identity checked at an output: the program's element and the candidate's."""

    program: Formula
    candidate: Formula
    how: str


@dataclass(frozen=True, slots=True)
class ProofPart:
    """Steps, lemmas and closing identities of one proof object.

    Attributes:
        name: Name of the part, or empty where there is only one.
        summary: Sentences on how sums are split.
        shown: Whether formulas were made; else ``steps``, ``lemmas`` and ``identities`` are empty.
    """

    name: str
    summary: tuple[str, ...]
    steps: tuple[Step, ...]
    lemmas: tuple[Lemma, ...]
    identities: tuple[OutputIdentity, ...]
    shown: bool = True


@dataclass(frozen=True, slots=True)
class ReplayedProof:
    """A proof object that the checker's proof kernel has replayed while the report was made.

    Attributes:
        parts: Its halves by name, mostly one.
        conditions: Side conditions of program and candidate.
        added: Those of the candidate that the program does not have.
        bytes: Size of the proof object.
        lemmas_open: Number of halves of the mixed-radix lemma, which ``check`` has solvers refute.
        text: The proof object itself.
    """

    parts: tuple[ProofPart, ...]
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    bytes: int
    lemmas_open: int
    text: str = field(default="", repr=False)
