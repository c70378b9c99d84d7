"""The axioms, read from axioms/*.smt2: names, schemata, and instances of them.

No axiom is repeated in code: a rewriting step names an axiom and gives a binding, and the file defines the equation. Z3
forgets ``:named`` on parse, so each axiom carries the same name as ``:qid``. The law of opaque functions stands there
once, of a function f. The operator table says which functions these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mirage_formal.graph.ops import COMPARISONS, FUNCTIONS, OpKind
from mirage_formal.logic.script import Script
from mirage_formal.logic.sexpr import SExpr, format_sexpr, parse_sexprs
from mirage_formal.logic.terms import BINARY, Expr, Sum, Unary
from mirage_formal.support.errors import FormatError
from mirage_formal.support.resources import data_dir

FILES: Final = ("equivalence.smt2", "subexpression.smt2")
RELATION: Final = "subexpr"
SORTS: Final = ("Expr", "Int")
#: The function of the files that stands for every opaque function.
_ANY_FUNCTION: Final = "f"
#: Opaque functions of abstract expressions, in the order of the operator table: functions that are not written with
#: products, quotients and roots, and operators of which only the sum of their operands is known.
OPAQUE_FUNCTIONS: Final = tuple(
    kind.value
    for kind in OpKind
    if kind in FUNCTIONS - {OpKind.SQUARE, OpKind.ABS, OpKind.RECIPROCAL}
    or kind in COMPARISONS - {OpKind.GT, OpKind.GE}
    or kind in (OpKind.MAX, OpKind.MAXIMUM, OpKind.MINIMUM, OpKind.SELECT)
)

#: Values of the variables of an axiom: expressions, and extents of sums.
Binding = dict[str, "Expr | int"]


@dataclass(frozen=True, slots=True)
class Atom:
    """An atomic formula: ``=`` or ``subexpr`` between two term patterns."""

    relation: str
    left: SExpr
    right: SExpr


@dataclass(frozen=True, slots=True)
class Axiom:
    """One universally quantified axiom: premises imply the conclusion.

    Attributes:
        name: Its name in the file.
        variables: Quantified variables and their sorts, in order.
        premises: Atoms that must hold; none for an equation.
        conclusion: The atom that follows.
        body: The formula under the quantifier.
    """

    name: str
    variables: tuple[tuple[str, str], ...]
    premises: tuple[Atom, ...]
    conclusion: Atom
    body: SExpr


@dataclass(frozen=True, slots=True)
class AxiomSet:
    """Set of axioms with the signature of their functions.

    Attributes:
        axioms: By name, in the order of the files.
        functions: Names of the opaque unary functions.
        script: Their declarations and formulas as one question: are they consistent?
        text: The files' text.
        digest: SHA-256 of the text.
    """

    axioms: Mapping[str, Axiom]
    functions: frozenset[str]
    script: Script
    text: str
    digest: str


def parse_axioms(text: str, where: str = "") -> AxiomSet:
    """Read axioms from SMT-LIB text.

    Raises:
        FormatError: If a command is unknown, a name is missing, differs from the ``:qid`` or is used twice, or a
            formula uses a symbol that is not declared.
    """
    axioms: dict[str, Axiom] = {}
    functions: set[str] = set()
    commands = [copy for command in parse_sexprs(text, where) for copy in _for_each_function(command)]
    for command in commands:
        read_command(command, axioms, functions, where)
    # Without the axiom, the oracle would decompose f where the theory does not.
    stated = {(a.conclusion.relation, a.conclusion.right) for a in axioms.values() if not a.premises}
    unstated = {f for f in functions if (RELATION, (f, "x")) not in stated}
    if unstated:
        raise FormatError(f"expected an axiom that puts x in f(x) for f = {', '.join(sorted(unstated))}", where=where)
    return axiom_set(axioms, functions, commands, text, where)


def axiom_set(
    axioms: dict[str, Axiom], functions: Iterable[str], commands: Iterable[SExpr], text: str, where: str
) -> AxiomSet:
    """Return the set of axioms that commands declare and state; ``commands`` and ``text`` are all of theirs."""
    formulas = [command for command in commands if command[0] not in ("set-info", "set-logic")]
    script = Script([("set-logic", "UFNIA"), *formulas, ("check-sat",)], where)
    return AxiomSet(MappingProxyType(axioms), frozenset(functions), script, text, sha256(text.encode()).hexdigest())


def read_command(command: SExpr, axioms: dict[str, Axiom], functions: set[str], where: str) -> None:
    """Read a declaration or an axiom into the tables of axioms and of opaque functions.

    Raises:
        FormatError: As in ``parse_axioms``.
    """
    match command:
        case ("set-info" | "set-logic", *_) | ("declare-sort", "Expr", "0"):
            pass
        case ("declare-fun", str() as symbol, ("Expr",), "Expr"):
            functions.add(symbol)
        case ("declare-fun", str() as symbol, ("Expr", "Expr"), "Expr") if symbol in BINARY:
            pass
        case ("declare-fun", "sum", ("Int", "Expr"), "Expr"):
            pass
        case ("declare-fun", str() as symbol, ("Expr", "Expr"), "Bool") if symbol == RELATION:
            pass
        case ("assert", ("!", ("forall", tuple() as bound, ("!", body, ":qid", qid)), ":named", str() as name)):
            if name != qid:
                raise FormatError(f"axiom {name}: expected :qid {name}, got {format_sexpr(qid)}", where=where)
            if name in axioms:
                raise FormatError(f"expected a new name, got {name}: that axiom is stated twice", where=where)
            axioms[name] = _axiom(name, bound, body, functions, where)
        case _:
            what = f"expected a declaration or a named axiom, got {format_sexpr(command)[:120]}"
            raise FormatError(what, where=where)


def load_axioms(directory: Path | None = None) -> AxiomSet:
    """Return the axioms of a directory; by default, those that come with the project.

    Raises:
        FormatError: If a file is missing or malformed.
    """
    return _load(data_dir("axioms") if directory is None else directory)


@lru_cache(maxsize=8)
def _load(directory: Path) -> AxiomSet:
    parts = []
    for name in FILES:
        path = directory / name
        try:
            parts.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"cannot read the axioms: {error}", where=str(path)) from error
    return parse_axioms("\n".join(parts), str(directory))


def _for_each_function(command: SExpr) -> list[SExpr]:
    """Return the command for each opaque function if it is about the one that stands for all; else itself."""
    if atoms_of(command).isdisjoint((_ANY_FUNCTION, f"sub-{_ANY_FUNCTION}")):
        return [command]
    return [_with_function(command, name) for name in OPAQUE_FUNCTIONS]


def _with_function(e: SExpr, name: str) -> SExpr:
    """Return an expression with a function in the place of the one that stands for all, also in names of axioms."""
    if isinstance(e, str):
        return {_ANY_FUNCTION: name, f"sub-{_ANY_FUNCTION}": f"sub-{name}"}.get(e, e)
    return tuple(_with_function(item, name) for item in e)


def _axiom(name: str, bound: SExpr, body: SExpr, functions: set[str], where: str) -> Axiom:
    sorts: dict[str, str] = {}
    for item in bound:
        if len(item) != 2 or not isinstance(item[0], str) or item[1] not in SORTS or item[0] in sorts:
            raise FormatError(f"axiom {name}: expected distinct variables of sort Expr or Int", where=where)
        sorts[item[0]] = str(item[1])
    premises: tuple[SExpr, ...] = ()
    conclusion: SExpr = body
    match body:
        case ("=>", ("and", *several), last):
            premises, conclusion = tuple(several), last
        case ("=>", one, last):
            premises, conclusion = (one,), last
    atoms = [_atom(name, f, sorts, functions, where) for f in (*premises, conclusion)]
    return Axiom(name, tuple(sorts.items()), tuple(atoms[:-1]), atoms[-1], body)


def _atom(name: str, formula: SExpr, sorts: dict[str, str], functions: set[str], where: str) -> Atom:
    match formula:
        case (("=" | "subexpr") as relation, left, right):
            for side in (left, right):
                fault = _pattern_fault(side, sorts, functions)
                if fault is not None:
                    what = f"expected declared symbols and bound variables, got {format_sexpr(side)[:120]}: {fault}"
                    raise FormatError(f"axiom {name}: {what}", where=where)
            return Atom(str(relation), left, right)
    raise FormatError(f"axiom {name}: expected = or {RELATION}, got {format_sexpr(formula)[:120]}", where=where)


def _pattern_fault(p: SExpr, sorts: dict[str, str], functions: set[str]) -> str | None:
    match p:
        case str():
            return None if sorts.get(p) == "Expr" else f"{p} is not a variable of sort Expr"
        case (str() as op, a, b) if op in BINARY:
            return _pattern_fault(a, sorts, functions) or _pattern_fault(b, sorts, functions)
        case ("sum", extent, a):
            factors = extent[1:] if isinstance(extent, tuple) and extent[:1] == ("*",) else (extent,)
            if all(isinstance(f, str) and (f == "1" or sorts.get(f) == "Int") for f in factors) and factors:
                return _pattern_fault(a, sorts, functions)
            return f"{format_sexpr(extent)} is not an extent"
        case (str() as op, a) if op in functions:
            return _pattern_fault(a, sorts, functions)
    return f"{format_sexpr(p)} is not a term over the declared symbols"


def atoms_of(pattern: SExpr) -> frozenset[str]:
    """Return all symbols of an S-expression: those of a term pattern are its functions and its variables."""
    return frozenset({pattern}) if isinstance(pattern, str) else frozenset().union(*map(atoms_of, pattern))


def pattern_extent(pattern: SExpr, binding: Mapping[str, Expr | int]) -> int:
    """Return the value of an extent pattern: a variable, 1, or a product of such."""
    if isinstance(pattern, str):
        value = 1 if pattern == "1" else binding[pattern]
        assert isinstance(value, int)
        return value
    out = 1
    for factor in pattern[1:]:
        out *= pattern_extent(factor, binding)
    return out


def instantiate(pattern: SExpr, binding: Mapping[str, Expr | int]) -> Expr:
    """Return the term of a pattern under a binding of all its variables."""
    if isinstance(pattern, str):
        value = binding[pattern]
        assert not isinstance(value, int)
        return value
    op = pattern[0]
    assert isinstance(op, str)
    if op == "sum":
        return Sum(pattern_extent(pattern[1], binding), instantiate(pattern[2], binding))
    if op in BINARY:
        return BINARY[op](instantiate(pattern[1], binding), instantiate(pattern[2], binding))
    return Unary(op, instantiate(pattern[1], binding))
