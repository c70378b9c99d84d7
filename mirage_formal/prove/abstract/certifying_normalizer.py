"""A normaliser of abstract expressions that records the axiom instances it uses.

It is ordered rewriting to a sum of quotients of sums of products. Every step is an instance of an axiom, applied in one
of its two directions. Two terms that A_eq makes equal reach one term, so the instances of both prove their equality.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, axioms_in_force
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.axioms import Axiom, Binding, instantiate
from mirage_formal.logic.certificate import Certificate, Instance
from mirage_formal.logic.terms import Add, Const, Div, Expr, Mul, Sum, Unary, Variable, order_key
from mirage_formal.support.limits import CERTIFICATE_INSTANCES

#: The recursion limit for long chains of terms; Python-to-Python calls need no machine stack.
_FRAMES = 200_000


class CertificateTooLong(ValueError):
    """A certificate would need more instances than a solver is asked about."""


class Normaliser:
    """A rewriter of terms to normal form that collects the instances used, in order and without repetition.

    Args:
        expand: Whether products of sums and of quotients are multiplied out; else factors and terms are only sorted.
        most: Instances after which TooLong is raised.
        choice: The axioms; laws among those added are applied from the larger side to the smaller one.
    """

    def __init__(self, *, expand: bool = True, most: float = math.inf, choice: AxiomChoice = USUAL_AXIOMS) -> None:
        self.axioms = axioms_in_force(choice.complete)
        self._laws = laws_of(choice)
        self._expand, self._most = expand, most
        self.instances: dict[Instance, None] = {}
        self._memo: dict[Expr, Expr] = {}

    def use(self, axiom: str, binding: Binding) -> tuple[Expr, Expr]:
        """Record an axiom instance and return the two sides of its conclusion."""
        schema = self.axioms.axioms[axiom]
        self.instances[Instance(axiom, tuple(binding[name] for name, _ in schema.variables))] = None
        if len(self.instances) > self._most:
            raise CertificateTooLong(f"expected at most {self._most} instances of axioms")
        return self._sides(schema, binding)

    def normalise(self, e: Expr) -> Expr:
        """Return the normal form of a term."""
        with _deep_recursion():
            return self._normal_form(e)

    def _forward(self, axiom: str, e: Expr, **binding: Expr | int) -> Expr:
        left, right = self.use(axiom, binding)
        assert left is e, f"{axiom} does not rewrite this term from left to right"
        return right

    def _backward(self, axiom: str, e: Expr, **binding: Expr | int) -> Expr:
        left, right = self.use(axiom, binding)
        assert right is e, f"{axiom} does not rewrite this term from right to left"
        return left

    def _normal_form(self, e: Expr) -> Expr:
        found = self._memo.get(e)
        if found is not None:
            return found
        out: Expr
        match e:
            case Variable() | Const():
                out = e
            case Unary(function, a):
                out = self._call(Unary(function, self._normal_form(a)))
            case Sum(i, a):
                out = self._root(Sum(i, self._normal_form(a)))
            case Add(a, b) | Mul(a, b) | Div(a, b):
                out = self._root(type(e)(self._normal_form(a), self._normal_form(b)))
        self._memo[e] = self._memo[out] = out
        return out

    def _call(self, e: Unary) -> Expr:
        """Return the normal form of a function's value whose argument is normal."""
        match e.argument:
            case Add(x, y) if self._expand and (axiom := self._laws.sums.get(e.function)) is not None:
                return self._normal_form(self._rewrite(axiom, e, x, y))
            case Unary(inner, x) if self._expand and (e.function, inner) in self._laws.chains:
                return self._normal_form(self._rewrite(self._laws.chains[e.function, inner][0], e, x))
        return e

    def _rewrite(self, axiom: Axiom, e: Expr, *values: Expr) -> Expr:
        """Return the other side of a law that has ``e`` as one side; its variables have the values in some order."""
        names = [name for name, _ in axiom.variables]
        orders: Iterator[Binding] = (dict(zip(names, order, strict=True)) for order in (values, values[::-1]))
        left, right = self.use(axiom.name, next(order for order in orders if e in self._sides(axiom, order)))
        return right if left is e else left

    @staticmethod
    def _sides(axiom: Axiom, binding: Binding) -> tuple[Expr, Expr]:
        return instantiate(axiom.conclusion.left, binding), instantiate(axiom.conclusion.right, binding)

    def _root(self, e: Expr) -> Expr:
        """Return the normal form of a term whose arguments are normal."""
        if not self._expand:
            return self._sort(e) if isinstance(e, Add | Mul) else e
        match e:
            case Sum(1, x):
                return self._forward("sum-one", e, x=x)
            case Sum(i, Sum(j, x)):
                return self._normal_form(self._forward("sum-sum", e, i=i, j=j, x=x))
            case Sum(i, Add(x, y)):
                return self._normal_form(self._forward("sum-over-add", e, i=i, x=x, y=y))
            case Sum(i, Div(x, y)):
                return self._normal_form(self._forward("sum-div", e, i=i, x=x, y=y))
            case Div(Div(x, y), z):
                return self._normal_form(self._forward("div-div", e, x=x, y=y, z=z))
            case Div(Add(x, y), z):
                return self._normal_form(self._forward("div-over-add", e, x=x, y=y, z=z))
            case Mul():
                return self._product(e)
            case Add():
                return self._sort(e)
        return e

    def _product(self, e: Mul) -> Expr:
        match e:
            case Mul(x, Add(y, z)):
                return self._normal_form(self._forward("mul-over-add", e, x=x, y=y, z=z))
            case Mul(x, Div(y, z)):
                return self._normal_form(self._forward("mul-div", e, x=x, y=y, z=z))
            case Mul(Sum(i, x), y):
                return self._normal_form(self._backward("sum-mul", e, i=i, x=x, y=y))
            case Mul((Add() | Div()) as x, y) | Mul(x, Sum() as y):
                return self._root(self._forward("mul-comm", e, x=x, y=y))
        return self._sort(e)

    def _sort(self, e: Add | Mul) -> Expr:
        """Return a term nested to the right and sorted, given sorted arguments; an insertion is three instances."""
        kind = type(e)
        assoc, comm = ("add-assoc", "add-comm") if kind is Add else ("mul-assoc", "mul-comm")
        x, y = e.left, e.right
        if isinstance(x, kind):
            return self._normal_form(self._forward(assoc, e, x=x.left, y=x.right, z=y))
        if isinstance(y, kind):
            first, rest = y.left, y.right
            if order_key(x) <= order_key(first):
                return e
            nested = self._backward(assoc, e, x=x, y=first, z=rest)
            assert isinstance(nested, kind)
            swapped = kind(self._forward(comm, nested.left, x=x, y=first), rest)
            return self._normal_form(self._forward(assoc, swapped, x=first, y=x, z=rest))
        if order_key(x) > order_key(y):
            return self._forward(comm, e, x=x, y=y)
        return e


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def certify(
    expression: Expr, target: Expr, steps: Iterable[tuple[str, Binding]], choice: AxiomChoice = USUAL_AXIOMS
) -> Certificate:
    """Return the certificate of a chain of A_sub steps.

    Args:
        expression: The first term of the chain.
        target: The term that A_eq makes equal to the chain's end.
        steps: Axiom and binding of each step; each contains the term before it.
        choice: The axioms.

    Raises:
        ValueError: The chain does not connect the two terms.
        CertificateTooLong: It would have more instances than CERTIFICATE_INSTANCES.
    """
    proof = Normaliser(most=CERTIFICATE_INSTANCES, choice=choice)
    here = expression
    for number, (axiom, binding) in enumerate(steps):
        inner, outer = proof.use(axiom, binding)
        if inner is not here:
            raise ValueError(f"step {number} ({axiom}) does not begin where the chain is")
        if number:
            proof.use("sub-trans", {"x": expression, "y": here, "z": outer})
        here = outer
    if here is expression:
        proof.use("sub-refl", {"x": expression})
    if proof.normalise(here) is not proof.normalise(target):
        raise ValueError("the chain does not end at the target")
    return Certificate(expression, target, tuple(proof.instances))


def certify_occurrence(expression: Expr, target: Expr) -> Certificate | None:
    """Return a certificate that a term occurs in the target up to the order of factors and terms; None if not.

    It needs no normal form; that of a power of a quotient of sums may have thousands of products.



    Args:
        expression: The term.
        target: The term that it may be part of.

    Raises:
        CertificateTooLong: See ``certify``.
    """
    for sorts in (False, True):
        proof = Normaliser(expand=False, most=CERTIFICATE_INSTANCES)
        first, last = (proof.normalise(expression), proof.normalise(target)) if sorts else (expression, target)
        path = _path(first, last)
        if path is None:
            continue
        here = first
        for outer in path:
            reached = _step(proof, here, outer)
            if here is not first:
                proof.use("sub-trans", {"x": expression, "y": here, "z": reached})
            here = outer
        if here is first:
            proof.use("sub-refl", {"x": expression})
        return Certificate(expression, target, tuple(proof.instances))
    return None


def _step(proof: Normaliser, here: Expr, outer: Expr) -> Expr:
    """Return the result of one A_sub step from a term to a term that contains it, up to A_eq."""
    match outer:
        case Unary(function, _):
            proof.use(f"sub-{function}", {"x": here})
        case Sum(i, _):
            proof.use("sub-sum", {"i": i, "x": here})
        case Div(x, y):
            proof.use("sub-div-numerator" if x is here else "sub-div-denominator", {"x": x, "y": y})
        case Add(x, y) | Mul(x, y):
            name = "add" if isinstance(outer, Add) else "mul"
            other = y if x is here else x
            _, reached = proof.use(f"sub-{name}", {"x": here, "y": other})
            if reached is not outer:
                proof.use(f"{name}-comm", {"x": here, "y": other})
            return reached
    return outer


def _path(expression: Expr, target: Expr) -> list[Expr] | None:
    """Return the terms from a parent of ``expression`` up to the target; None if it is no part of the target."""
    above: dict[Expr, Expr | None] = {target: None}
    waiting = [target]
    for e in waiting:  # grows while it is read
        if e is expression:
            break
        for argument in _arguments(e):
            if argument not in above:
                above[argument] = e
                waiting.append(argument)
    if expression not in above:
        return None
    path: list[Expr] = []
    at = above[expression]
    while at is not None:
        path.append(at)
        at = above[at]
    return path


def _arguments(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Unary(_, a) | Sum(_, a):
            return (a,)
        case Add(a, b) | Mul(a, b) | Div(a, b):
            return (a, b)
    return ()
