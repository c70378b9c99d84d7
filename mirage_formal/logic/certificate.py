"""Ground certificates: proof that one abstract expression is part of another, as text that any SMT solver can refute.

A certificate lists instances of named axioms; together with the negated claim they are unsatisfiable in the theory of
equality alone. It covers the abstract claim only: it never says that two graphs are equal.

The text of a certificate has one form. ``audit`` reads a text, matches every assertion against the axioms' schemata,
writes the certificate again and compares. A text that asserts anything else, or differs in a single byte from the text
of those instances, is refused, whatever the solvers answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mirage_formal.logic.axioms import RELATION, AxiomSet, Binding, load_axioms
from mirage_formal.logic.sexpr import SExpr, format_sexpr, parse_sexprs
from mirage_formal.logic.terms import (
    BINARY,
    Const,
    Expr,
    Sum,
    Unary,
    Variable,
    children,
    head,
    parse_extent,
    parse_symbol,
    postorder,
)
from mirage_formal.support.errors import FormatError

GOAL: Final = "goal"


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of an axiom: its name, and the values of its variables, in the axiom's order."""

    axiom: str
    values: tuple[Expr | int, ...]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A claim and the axiom instances from which it follows.

    Attributes:
        expression: The term that is claimed to be part of ``target``.
        target: A term of a program output.
        instances: Instances of axioms that entail ``subexpr(expression, target)``.
    """

    expression: Expr
    target: Expr
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class AuditedClaim:
    """Claim of an audited text: if it is unsat, the axioms make ``expression`` part of ``target``."""

    expression: Expr
    target: Expr
    instances: int


def to_smt2(certificate: Certificate, axioms: AxiomSet | None = None) -> str:
    """Return the certificate as a self-contained SMT-LIB text in QF_UF, unsatisfiable if the certificate is right.

    Sums over different extents are different unary symbols (sum.64), so no arithmetic is needed.
    """
    axioms = load_axioms() if axioms is None else axioms
    roots = [certificate.expression, certificate.target]
    roots += [v for i in certificate.instances for v in i.values if not isinstance(v, int)]
    nodes = list(postorder(roots))
    names = _names(nodes)
    claims = [_instance_text(i, axioms, names) for i in certificate.instances]
    symbols = {head(n) for n in nodes} | {f"sum.{n}" for claim, _ in claims for n in _extents(claim)}
    lines = [
        f"; Abstract claim only: {RELATION}(E, T) follows from instances of named axioms. Not an equality of graphs.",
        f"; E = {names[certificate.expression]}, T = {names[certificate.target]}",
        "(set-info :smt-lib-version 2.6)",
        "(set-info :status unsat)",
        "(set-logic QF_UF)",
        "(declare-sort Expr 0)",
        *(f"(declare-fun {s} (Expr Expr) Expr)" for s in sorted({*BINARY} & (symbols | _heads(claims)))),
        *(f"(declare-fun {s} (Expr) Expr)" for s in sorted(symbols, key=_symbol_order) if _is_unary(s, axioms)),
        f"(declare-fun {RELATION} (Expr Expr) Bool)",
        *(f"(declare-const {head(n)} Expr)" for n in nodes if isinstance(n, Variable | Const)),
        *(f"(define-fun {names[n]} () Expr {_definition_text(n, names)})" for n in nodes if children(n)),
    ]
    for number, (claim, axiom) in enumerate(claims):
        lines.append(f"(assert (! {format_sexpr(claim)} :named {axiom}.{number}))")
    goal = f"({RELATION} {names[certificate.expression]} {names[certificate.target]})"
    lines += [f"(assert (! (not {goal}) :named {GOAL}))", "(check-sat)", ""]
    return "\n".join(lines)


def _names(nodes: list[Expr]) -> dict[Expr, str]:
    """Return names of terms: leaves stand for themselves, others are numbered, so that the text has linear length."""
    names: dict[Expr, str] = {}
    compound = 0
    for node in nodes:
        if children(node):
            names[node] = f"t{compound}"
            compound += 1
        else:
            names[node] = head(node)
    return names


def _definition_text(e: Expr, names: dict[Expr, str]) -> str:
    return f"({head(e)} {' '.join(names[c] for c in children(e))})"


def _instance_text(instance: Instance, axioms: AxiomSet, names: dict[Expr, str]) -> tuple[SExpr, str]:
    axiom = axioms.axioms[instance.axiom]
    binding = {name: value for (name, _), value in zip(axiom.variables, instance.values, strict=True)}
    text = {name: value if isinstance(value, int) else names[value] for name, value in binding.items()}
    return _substitute(axiom.body, text), instance.axiom


def _substitute(pattern: SExpr, text: dict[str, str | int]) -> SExpr:
    match pattern:
        case str():
            value = text.get(pattern, pattern)
            assert isinstance(value, str)
            return value
        case ("sum", extent, body):
            return (f"sum.{_extent(extent, text)}", _substitute(body, text))
    return tuple(_substitute(p, text) for p in pattern)


def _extent(pattern: SExpr, text: dict[str, str | int]) -> int:
    if isinstance(pattern, str):
        return int(text.get(pattern, pattern))
    out = 1
    for factor in pattern[1:]:
        out *= _extent(factor, text)
    return out


def _operators(e: SExpr) -> Iterator[str]:
    if isinstance(e, tuple):
        if e and isinstance(e[0], str):
            yield e[0]
        for part in e:
            yield from _operators(part)


def _extents(e: SExpr) -> Iterator[int]:
    for op in _operators(e):
        if (extent := parse_extent(op)) is not None:
            yield extent


def _heads(claims: list[tuple[SExpr, str]]) -> set[str]:
    return {op for claim, _ in claims for op in _operators(claim)}


def _is_unary(symbol: str, axioms: AxiomSet) -> bool:
    return symbol in axioms.functions or parse_extent(symbol) is not None


def _symbol_order(symbol: str) -> tuple[int, str]:
    return (parse_extent(symbol) or 0, symbol)


def audit(text: str, where: str = "", axioms: AxiomSet | None = None) -> AuditedClaim:
    """Check that a text is a certificate and nothing else, and return its claim.

    Sound: if this returns and a solver finds the text unsatisfiable, the claim follows from the axioms, because every
    assertion but the one negated claim is an instance of a named axiom and the text is exactly what those give.

    Raises:
        FormatError: If an assertion is no instance of the axiom it names, or anything else is out of form.
    """
    axioms = load_axioms() if axioms is None else axioms
    reader = _Reader(axioms, where)
    for command in parse_sexprs(text, where):
        reader.command(command)
    if reader.goal is None:
        raise FormatError("expected one negated claim named goal, got none", where=where)
    expression, target = reader.goal
    again = to_smt2(Certificate(expression, target, tuple(reader.instances)), axioms)
    if again != text:
        got, expected = text.split("\n"), again.split("\n")
        differing = (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b)
        line = next(differing, min(len(got), len(expected)))
        shown = [lines[line] if line < len(lines) else "the end" for lines in (expected, got)]
        raise FormatError(
            f"line {line + 1}: expected {shown[0][:120]!r}, got {shown[1][:120]!r}",
            where=where,
            hint="certificates have one form; write it again instead of editing it",
        )
    return AuditedClaim(expression, target, len(reader.instances))


class _Reader:
    """Parser that collects definitions, instances and the goal of a certificate's text."""

    def __init__(self, axioms: AxiomSet, where: str) -> None:
        self.axioms = axioms
        self.where = where
        self.terms: dict[str, Expr] = {}
        self.instances: list[Instance] = []
        self.goal: tuple[Expr, Expr] | None = None

    def command(self, command: SExpr) -> None:
        match command:
            case (("set-info" | "set-logic" | "declare-sort" | "declare-fun" | "declare-const" | "check-sat"), *_):
                pass  # compared with what the certificate itself gives
            case ("define-fun", str() as name, (), "Expr", (str() as op, *arguments)):
                self.terms[name] = self._term(op, tuple(arguments))
            case ("assert", ("!", ("not", (relation, e, t)), ":named", "goal")) if relation == RELATION:
                if self.goal is not None:
                    raise FormatError("expected one negated claim, got two", where=self.where)
                self.goal = (self._named(e), self._named(t))
            case ("assert", ("!", body, ":named", str() as name)):
                self.instances.append(self._instance(name, body))
            case _:
                raise FormatError(
                    f"expected a certificate's command, got {format_sexpr(command)[:120]}", where=self.where
                )

    def _term(self, op: str, arguments: tuple[SExpr, ...]) -> Expr:
        terms = tuple(self._named(a) for a in arguments)
        if op in BINARY and len(terms) == 2:
            return BINARY[op](terms[0], terms[1])
        if len(terms) == 1:
            if op in self.axioms.functions:
                return Unary(op, terms[0])
            if (extent := parse_extent(op)) is not None:
                return Sum(extent, terms[0])
        raise FormatError(f"expected a term over the axioms' symbols, got {op} of {len(terms)}", where=self.where)

    def _named(self, symbol: SExpr) -> Expr:
        if isinstance(symbol, str):
            found = self.terms.get(symbol) or parse_symbol(symbol)
            if found is not None:
                return found
        raise FormatError(f"expected a defined term, got {format_sexpr(symbol)[:120]}", where=self.where)

    def _instance(self, name: str, body: SExpr) -> Instance:
        axiom = self.axioms.axioms.get(name.rpartition(".")[0])
        if axiom is None:
            raise FormatError(f"assertion {name}: no axiom has this name", where=self.where)
        binding: Binding = {}
        sorts = dict(axiom.variables)
        if not self._matches(axiom.body, body, sorts, binding) or set(binding) != set(sorts):
            raise FormatError(f"assertion {name} is not an instance of {axiom.name}", where=self.where)
        return Instance(axiom.name, tuple(binding[v] for v in sorts))

    def _matches(self, pattern: SExpr, text: SExpr, sorts: dict[str, str], binding: Binding) -> bool:
        match pattern, text:
            case str(), str() if pattern in sorts:
                value = self._named(text)
                return binding.setdefault(pattern, value) is value
            case str(), _:
                return pattern == text
            case ("sum", extent, body), (str() as op, below):
                found = parse_extent(op)
                if found is None:
                    return False
                # Products and literals are compared when the certificate is written again.
                if isinstance(extent, str) and extent in sorts and binding.setdefault(extent, found) != found:
                    return False
                return self._matches(body, below, sorts, binding)
            case tuple(), tuple() if len(pattern) == len(text):
                return all(self._matches(p, t, sorts, binding) for p, t in zip(pattern, text, strict=True))
        return False
