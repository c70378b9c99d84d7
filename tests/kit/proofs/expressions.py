"""Random abstract expressions, random rewriting by the axioms, and the workloads' expressions, for tests."""

from __future__ import annotations

import random
from fractions import Fraction

from mirage_formal.logic.axioms import Axiom, AxiomSet, Binding, instantiate, load_axioms, pattern_extent
from mirage_formal.logic.sexpr import SExpr
from mirage_formal.logic.terms import (
    BINARY,
    Add,
    Const,
    Div,
    Expr,
    Mul,
    Sum,
    Unary,
    Variable,
    add,
    const,
    div,
    mul,
    postorder,
    sum_,
    unary,
    var,
)

LEAVES = (*(var(n) for n in "abcd"), const(Fraction(1, 2)))
FUNCTIONS = ("exp", "sqrt")
EXTENTS = (2, 3, 4)


def rebuilt(e: Expr, below: tuple[Expr, ...]) -> Expr:
    """The same operator on other arguments."""
    match e:
        case Variable() | Const():
            return e
        case Add() | Mul() | Div():
            return type(e)(*below)
        case Sum(extent, _):
            return Sum(extent, *below)
        case Unary(function, _):
            return Unary(function, *below)


def random_term(rng: random.Random, depth: int) -> Expr:
    """A random term; never a sum over 1."""
    if depth == 0 or rng.random() < 0.12:
        return rng.choice(LEAVES)
    kind = rng.choice(("add", "mul", "mul", "div", "sum", "sum", "unary"))
    first = random_term(rng, depth - 1)
    if kind == "sum":
        return sum_(rng.choice(EXTENTS), first)
    if kind == "unary":
        return unary(rng.choice(FUNCTIONS), first)
    second = random_term(rng, rng.randrange(depth))
    return {"add": add, "mul": mul, "div": div}[kind](first, second)


def extents_product(e: Expr) -> int:
    """Product of the extents of all sums in the term as a tree."""
    out: dict[Expr, int] = {}
    for node in postorder([e]):
        match node:
            case Variable() | Const():
                out[node] = 1
            case Add(a, b) | Mul(a, b) | Div(a, b):
                out[node] = out[a] * out[b]
            case Sum(extent, a):
                out[node] = out[a] * extent
            case Unary(_, a):
                out[node] = out[a]
    return out[e]


def positions(e: Expr) -> list[tuple[int, ...]]:
    """Paths to all subterms."""
    out: list[tuple[int, ...]] = [()]
    for i, child in enumerate(_children(e)):
        out += [(i, *path) for path in positions(child)]
    return out


def _children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Variable() | Const():
            return ()
        case Add(a, b) | Mul(a, b) | Div(a, b):
            return (a, b)
        case Sum(_, a) | Unary(_, a):
            return (a,)


def at(e: Expr, path: tuple[int, ...]) -> Expr:
    """The subterm at a path."""
    for i in path:
        e = _children(e)[i]
    return e


def replaced(e: Expr, path: tuple[int, ...], new: Expr) -> Expr:
    """The term with another subterm at a path."""
    if not path:
        return new
    below = list(_children(e))
    below[path[0]] = replaced(below[path[0]], path[1:], new)
    return rebuilt(e, tuple(below))


def without_ones(e: Expr) -> Expr:
    """The term without sums over 1."""
    out: dict[Expr, Expr] = {}
    for node in postorder([e]):
        match node:
            case Sum(1, a):
                out[node] = out[a]
            case _:
                out[node] = rebuilt(node, tuple(out[c] for c in _children(node)))
    return out[e]


def equations(axioms: AxiomSet | None = None) -> list[Axiom]:
    """The axioms of A_eq."""
    return [a for a in (axioms or load_axioms()).axioms.values() if a.conclusion.relation == "="]


def matches(pattern: SExpr, e: Expr, binding: Binding) -> bool:
    """Return whether ``e`` is an instance of a pattern; extends ``binding``, which is invalid after a False.

    A product of extents matches no term unless its variables are bound already.
    """
    if isinstance(pattern, str):
        return binding.setdefault(pattern, e) is e
    op = pattern[0]
    match e:
        case Add(a, b) | Mul(a, b) | Div(a, b):
            same = BINARY.get(str(op)) is type(e)
            return same and matches(pattern[1], a, binding) and matches(pattern[2], b, binding)
        case Sum(extent, body):
            return op == "sum" and _extent_matches(pattern[1], extent, binding) and matches(pattern[2], body, binding)
        case Unary(function, argument):
            return op == function and matches(pattern[1], argument, binding)
    return False


def _extent_matches(pattern: SExpr, extent: int, binding: Binding) -> bool:
    if isinstance(pattern, str) and pattern != "1":
        return binding.setdefault(pattern, extent) == extent
    if isinstance(pattern, tuple) and not all(f in binding for f in pattern[1:] if f != "1"):
        return False
    return pattern_extent(pattern, binding) == extent


def rewrites(e: Expr) -> list[Expr]:
    """Everything that one axiom of A_eq makes of a term at its root, in either direction."""
    out: list[Expr] = []
    for axiom in equations():
        for source, goal in (
            (axiom.conclusion.left, axiom.conclusion.right),
            (axiom.conclusion.right, axiom.conclusion.left),
        ):
            binding: Binding = {}
            if matches(source, e, binding) and len(binding) == len(axiom.variables):
                out.append(instantiate(goal, binding))
    match e:
        # Products of extents do not match a pattern, so this direction of sum-sum chooses the factors here.
        case Sum(extent, body):
            for i in range(2, extent):
                if extent % i == 0:
                    out.append(Sum(i, Sum(extent // i, body)))
    return out


def random_rewriting(rng: random.Random, e: Expr, steps: int, largest: int = 60) -> Expr:
    """A term that A_eq makes equal to ``e``."""
    for _ in range(steps):
        path = rng.choice(positions(e))
        options = rewrites(at(e, path))
        if options:
            new = replaced(e, path, rng.choice(options))
            if len(positions(new)) <= largest:
                e = new
    return e


def query(rng: random.Random, target: Expr) -> Expr:
    """An expression to ask about: often part of the target, or almost."""
    kind = rng.random()
    base = random_rewriting(rng, target, rng.randrange(5))
    part = at(base, rng.choice(positions(base)))
    if kind < 0.45:
        return random_rewriting(rng, part, rng.randrange(4))
    if kind < 0.85:
        # One subterm of a part replaced by another part, or an operator put around it.
        other = at(target, rng.choice(positions(target)))
        if rng.random() < 0.5:
            return replaced(part, rng.choice(positions(part)), other)
        return rng.choice((add, mul, div))(part, other)
    return random_term(rng, rng.randrange(1, 4))


X, G, W, Q, K, V = (var(n) for n in "XGWQKV")
A, B, N, W1, W2 = (var(n) for n in ("A", "B", "N", "W1", "W2"))


def _exp(e: Expr) -> Expr:
    return unary("exp", e)


def _sqrt(e: Expr) -> Expr:
    return unary("sqrt", e)


def _silu(e: Expr) -> Expr:
    return unary("silu", e)


_WIDTH = 4096
_XX = mul(X, X)
_SCORES = _exp(sum_(64, mul(Q, K)))

WORKLOADS: dict[str, Expr] = {
    "rms": sum_(_WIDTH, mul(div(mul(X, G), _sqrt(div(sum_(_WIDTH, _XX), N))), W)),
    "attention": sum_(1024, mul(div(_SCORES, sum_(1024, _SCORES)), V)),
    "lora": add(sum_(_WIDTH, mul(X, W)), sum_(16, mul(sum_(_WIDTH, mul(X, A)), B))),
    "gated": mul(_silu(sum_(_WIDTH, mul(X, W1))), sum_(_WIDTH, mul(X, W2))),
}

#: Expressions of tiled and reordered forms, which search must keep.
PARTS: dict[str, list[Expr]] = {
    "rms": [
        X,
        mul(X, G),
        sum_(64, _XX),
        sum_(64, sum_(64, _XX)),
        mul(G, W),
        sum_(64, mul(X, mul(G, W))),
        sum_(64, sum_(64, mul(mul(X, G), W))),
        _sqrt(div(sum_(_WIDTH, _XX), N)),
        div(X, _sqrt(div(sum_(64, sum_(64, _XX)), N))),
        div(sum_(64, sum_(64, mul(mul(X, G), W))), _sqrt(sum_(64, div(sum_(64, _XX), N)))),
    ],
    "attention": [
        mul(Q, K),
        sum_(16, mul(Q, K)),
        _SCORES,
        sum_(64, _SCORES),
        mul(_SCORES, V),
        sum_(16, sum_(64, mul(_SCORES, V))),
        div(_SCORES, sum_(64, sum_(16, _SCORES))),
        div(V, sum_(1024, _SCORES)),
        div(sum_(16, sum_(64, mul(_SCORES, V))), sum_(1024, _SCORES)),
    ],
    "lora": [
        sum_(32, mul(A, B)),
        sum_(_WIDTH, mul(X, W)),
        mul(A, B),
        sum_(16, mul(A, B)),
        add(W, sum_(16, mul(A, B))),
        mul(X, add(W, sum_(16, mul(A, B)))),
        sum_(64, mul(X, add(W, sum_(16, mul(A, B))))),
        add(sum_(64, mul(X, W)), sum_(16, mul(sum_(64, mul(X, A)), B))),
    ],
    "gated": [
        sum_(_WIDTH, mul(X, W1)),
        _silu(sum_(64, sum_(64, mul(W1, X)))),
        sum_(16, mul(X, W2)),
        mul(_silu(sum_(_WIDTH, mul(X, W1))), mul(X, W2)),
        mul(_silu(sum_(_WIDTH, mul(X, W1))), sum_(64, sum_(64, mul(X, W2)))),
    ],
}

#: Expressions that lead nowhere.
STRANGERS: dict[str, list[Expr]] = {
    "rms": [
        mul(X, W1),
        add(X, G),
        mul(W, W),
        _exp(X),
        sum_(8192, _XX),
        div(X, W),
        mul(X, _XX),
        _sqrt(_XX),
        sum_(2 * _WIDTH, mul(X, W)),
        div(mul(X, G), sum_(_WIDTH, _XX)),
    ],
    "attention": [
        mul(Q, V),
        _exp(sum_(16, mul(Q, K))),
        add(_SCORES, V),
        mul(_SCORES, _SCORES),
        div(_SCORES, sum_(64, _SCORES)),
        div(_SCORES, V),
        sum_(2048, _SCORES),
        _exp(mul(Q, K)),
    ],
    "lora": [
        mul(W, A),
        add(W, A),
        add(X, W),
        _XX,
        add(mul(X, W), mul(X, B)),
        sum_(3, mul(A, B)),
        _exp(X),
    ],
    "gated": [
        _silu(sum_(64, mul(X, W1))),
        mul(W1, W2),
        _silu(X),
        add(X, W1),
        mul(mul(X, W1), mul(X, W2)),
        sum_(8192, mul(X, W2)),
    ],
}
