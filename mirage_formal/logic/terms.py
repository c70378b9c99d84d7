"""Abstract expressions: hash-consed first-order terms, one per tensor, that forget shapes and indices.

Equal terms are one object, so equality and hashing are by identity. The cost of a term with shared subterms is linear
in its distinct nodes (a plain frozen dataclass would hash it in exponential time). Source: Wu et al., OSDI 2025,
section 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

_TABLE: Final[dict[tuple[object, ...], object]] = {}

if TYPE_CHECKING:
    # So that type checkers still see the constructors' signatures.
    _Interned = type
else:

    class _Interned(type):
        """Metaclass whose constructors return the one object with the given fields (hash-consing)."""

        def __call__(cls, *fields):
            key = (cls, *fields)
            node = _TABLE.get(key)
            if node is None:
                node = _TABLE[key] = super().__call__(*fields)
            return node


class _Node:
    """Base of all terms: copies and unpickled terms are interned again."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return type(self), tuple(getattr(self, field.name) for field in fields(type(self)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return term_to_text(self)  # type: ignore[arg-type]

    __repr__ = __str__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Variable(_Node, metaclass=_Interned):
    """Variable term: an input tensor."""

    name: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Const(_Node, metaclass=_Interned):
    """Rational constant term: a symbol named by its value, on which no arithmetic is done."""

    value: Fraction


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Add(_Node, metaclass=_Interned):
    """Elementwise sum term."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mul(_Node, metaclass=_Interned):
    """Elementwise product term."""

    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Div(_Node, metaclass=_Interned):
    """Elementwise quotient term."""

    numerator: Expr
    denominator: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sum(_Node, metaclass=_Interned):
    """Sum term over an index of a positive extent."""

    extent: int
    body: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unary(_Node, metaclass=_Interned):
    """Term for an opaque elementwise function, or for a reduction about which no equation is known."""

    function: str
    argument: Expr


Expr = Variable | Const | Add | Mul | Div | Sum | Unary

#: The binary symbols of the signature and their constructors.
#: Division is "divide" in SMT-LIB text, because div is a symbol of the integers there.
BINARY: Final[dict[str, type[Add] | type[Mul] | type[Div]]] = {"add": Add, "mul": Mul, "divide": Div}


#: Constants as written in files; the lengths keep hostile files from costing more than their size.
_RATIONAL: Final = re.compile(r"-?[0-9]{1,400}(/[0-9]{1,400})?")


def var(name: str) -> Expr:
    """Return the term of the input tensor called ``name``."""
    if not name:
        raise ValueError("a variable needs a name")
    return Variable(name)


def const(value: Fraction | int) -> Expr:
    """Return the constant of this value."""
    return Const(Fraction(value))


def add(a: Expr, b: Expr) -> Expr:
    """Return the term a + b."""
    return Add(a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """Return the term a * b."""
    return Mul(a, b)


def div(a: Expr, b: Expr) -> Expr:
    """Return the term a / b."""
    return Div(a, b)


def sum_(extent: int, body: Expr) -> Expr:
    """Return the sum of ``body`` over an index of ``extent``, which is ``body`` itself if the extent is 1."""
    if extent < 1:
        raise ValueError(f"a sum needs an extent of at least 1, got {extent}")
    return body if extent == 1 else Sum(int(extent), body)


def unary(function: str, argument: Expr) -> Expr:
    """Return the term ``function(argument)``."""
    return Unary(function, argument)


def children(e: Expr) -> tuple[Expr, ...]:
    """Return the direct arguments of a term."""
    match e:
        case Variable() | Const():
            return ()
        case Add(a, b) | Mul(a, b) | Div(a, b):
            return (a, b)
        case Sum(_, a) | Unary(_, a):
            return (a,)


def postorder(roots: Iterable[Expr]) -> Iterator[Expr]:
    """Return every term in ``roots`` once, arguments first; without recursion, so that deep terms are no problem."""
    done: set[Expr] = set()
    for root in roots:
        stack = [root]
        while stack:
            e = stack[-1]
            waiting = [c for c in children(e) if c not in done]
            if e in done:
                stack.pop()
            elif waiting:
                stack.extend(reversed(waiting))
            else:
                done.add(stack.pop())
                yield e


def head(e: Expr) -> str:
    """Return the symbol of a term's outermost operator in SMT-LIB text, such as add, sum.64 or var.Q."""
    match e:
        case Variable(name):
            return f"var.{quote(name, safe='')}"
        case Const(value):
            return f"const.{value}"
        case Add():
            return "add"
        case Mul():
            return "mul"
        case Div():
            return "divide"
        case Sum(extent, _):
            return f"sum.{extent}"
        case Unary(function, _):
            return function


def parse_symbol(symbol: str) -> Expr | None:
    """Return the variable or constant that ``head`` writes as ``symbol``; None for anything else."""
    kind, _, rest = symbol.partition(".")
    try:
        if kind == "var" and rest:
            leaf = var(unquote(rest, errors="strict"))
        elif kind == "const" and _RATIONAL.fullmatch(rest):
            leaf = const(Fraction(rest))
        else:
            return None
    except (ValueError, ZeroDivisionError):
        return None
    return leaf if head(leaf) == symbol else None


def parse_extent(symbol: str) -> int | None:
    """Return the extent of a sum symbol such as sum.64; None for anything else."""
    kind, _, digits = symbol.partition(".")
    if kind != "sum" or not (digits.isascii() and digits.isdigit()) or digits[0] == "0" or len(digits) > 18:
        return None
    return int(digits)


def term_to_text(e: Expr) -> str:
    """Return the whole term as one readable S-expression; its length may be exponential in the number of nodes."""
    text: dict[Expr, str] = {}
    for node in postorder([e]):
        below = " ".join(text[c] for c in children(node))
        text[node] = f"({head(node)} {below})" if below else head(node)
    return text[e]


_KEYS: dict[Expr, bytes] = {}


def order_key(e: Expr) -> bytes:
    """Return a key that orders terms by content, equal in every process."""
    found = _KEYS.get(e)
    if found is None:
        for node in postorder([e]):
            if node not in _KEYS:
                data = head(node).encode() + b"\0" + b"".join(_KEYS[c] for c in children(node))
                _KEYS[node] = blake2b(data, digest_size=16).digest()
        found = _KEYS[e]
    return found
