"""Added equations as laws of normal forms, and which equations fit.

A normal form keeps an opaque function as an atom. Two shapes of equations become laws that are applied when such an
atom is made, by the abstract expressions' normal forms, by the guided search's, and by the rewriting of certificates:

- f(g(x)) = x and f(g(x)) = h(x), where h may be f or g: exp(log(x)) = x, relu(relu(x)) = relu(x);
- f(x + y) = f(x) f(y): exp(x + y) = exp(x) exp(y).

All other equations do not fit: about what rests on them, solvers and models are asked (prove/abstract/refutation.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from mirage_formal.graph.ops import FUNCTIONS, OpKind
from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, axioms_in_force
from mirage_formal.logic.axioms import OPAQUE_FUNCTIONS, Axiom
from mirage_formal.logic.sexpr import SExpr

#: Functions that are one and the same atom in all normal forms. The root is none: guided search keeps norms whole.
LAW_FUNCTIONS: Final = frozenset(
    kind.value for kind in FUNCTIONS if kind.value in OPAQUE_FUNCTIONS and kind is not OpKind.SQRT
)

F = TypeVar("F", bound=int)


class LawAlgebra(Protocol[F]):
    """Tables of normal forms to which laws are applied."""

    def summands(self, form: F) -> list[F]:
        """Return the summands of a form, each as often as it occurs."""

    def call_of(self, form: F) -> tuple[str, F] | None:
        """Return function and argument of a form that is nothing but a function's value; None for another form."""

    def atom_of(self, function: str, argument: F) -> F:
        """Return the form of a function's value to which no law is applied."""

    def mul(self, a: F, b: F) -> F | None:
        """Return the form of a product; None where it has none."""


@dataclass(frozen=True, slots=True)
class Laws:
    """Laws of opaque functions.

    Attributes:
        chains: By (f, g) the axiom f(g(x)) = x or h(x), and h or None.
        sums: By f the axiom f(x + y) = f(x) f(y).
        unfit: Names of added axioms that are no law.
    """

    chains: Mapping[tuple[str, str], tuple[Axiom, str | None]] = field(default_factory=lambda: MappingProxyType({}))
    sums: Mapping[str, Axiom] = field(default_factory=lambda: MappingProxyType({}))
    unfit: tuple[str, ...] = ()

    @property
    def functions(self) -> frozenset[str]:
        """Return the functions that occur in laws."""
        ends = {h for _, h in self.chains.values() if h is not None}
        return frozenset({name for pair in self.chains for name in pair} | ends | self.sums.keys())

    def call(self, algebra: LawAlgebra[F], function: str, argument: F) -> F:
        """Return the normal form of ``function(argument)``.

        Sound: every step is an axiom in force. A product that has no form leaves the value as it is.
        """
        if function in self.sums and len(several := algebra.summands(argument)) > 1:
            whole: F | None = None
            for number, one in enumerate(several):
                factor = self.call(algebra, function, one)
                whole = factor if number == 0 else None if whole is None else algebra.mul(whole, factor)
            return algebra.atom_of(function, argument) if whole is None else whole
        inner = algebra.call_of(argument)
        if inner is not None and (law := self.chains.get((function, inner[0]))) is not None:
            return inner[1] if law[1] is None else self.call(algebra, law[1], inner[1])
        return algebra.atom_of(function, argument)

    def above(self, algebra: LawAlgebra[F], form: F) -> dict[F, tuple[str, ...]]:
        """Return the forms that a form is a part of because laws rewrite functions of it, itself first.

        With each come the functions that make it, the innermost first. There are finitely many: a law f(g(x)) = h(x)
        makes nothing larger of g(x), and where f(x + y) = f(x) f(y) makes a sum again, another law has made less of it.
        """
        found: dict[F, tuple[str, ...]] = {form: ()}
        waiting = [form]
        for one in waiting:  # grows while it is read
            inner = algebra.call_of(one)
            applied = [f for f, g in self.chains if inner is not None and g == inner[0]]
            for function in [*applied, *(self.sums if len(algebra.summands(one)) > 1 else ())]:
                larger = self.call(algebra, function, one)
                if larger not in found:
                    found[larger] = (*found[one], function)
                    waiting.append(larger)
        return found

    def arguments(self, algebra: LawAlgebra[F], calls: list[tuple[str, F]], add: Adder[F]) -> Iterator[tuple[str, F]]:
        """Yield, for each f with f(x + y) = f(x) f(y), the sum of the arguments of several factors f(x) of a product.

        Args:
            algebra: The tables.
            calls: Function and argument of the factors that are values of functions.
            add: Returns the form of a sum.
        """
        for function in self.sums:
            mine = [argument for name, argument in calls if name == function]
            if len(mine) > 1:
                yield function, reduce(add, mine)


class Adder(Protocol[F]):
    """Sum of two forms."""

    def __call__(self, a: F, b: F, /) -> F:
        """Return the form of the sum."""


NO_LAWS: Final = Laws()


@lru_cache(maxsize=8)
def laws_of(choice: AxiomChoice) -> Laws:
    """Return the laws among the added axioms.

    Sound: what remains is confluent, so that equal forms are the terms that the axioms make equal: every overlap
    f(g(h(x))) of two laws is joined, and in no law f(g(x)) = h(x) does g have a law of sums, which would make a product
    of g(x). A law that breaks this, in the order of the files, is not taken.
    """
    if choice == USUAL_AXIOMS:
        return NO_LAWS
    chains: dict[tuple[str, str], tuple[Axiom, str | None]] = {}
    sums: dict[str, Axiom] = {}
    unfit: list[str] = []
    axioms = axioms_in_force(choice).axioms
    for one in choice.added:
        axiom = axioms[one.name]
        chain, function = _chain(axiom), _sum(axiom)
        more = chains if chain is None else {chain[0]: (axiom, chain[1]), **chains}
        several = sums if function is None else {**sums, function: axiom}
        other = chain is not None and more[chain[0]][1] != chain[1]  # another law of the same two functions
        if (chain is None and function is None) or other or not _fits(more, several):
            unfit.append(one.name)
        else:
            chains, sums = more, several
    return Laws(MappingProxyType(chains), MappingProxyType(sums), tuple(unfit))


def _fits(chains: Mapping[tuple[str, str], tuple[Axiom, str | None]], sums: Mapping[str, Axiom]) -> bool:
    """Return whether laws are confluent; they end, because each makes a term smaller or has fewer summands below f."""
    ends = {pair: () if end is None else (end,) for pair, (_, end) in chains.items()}
    for (f, g), first in ends.items():
        for (g2, h), second in ends.items():
            if g == g2 and _word((*first, h), ends) != _word((f, *second), ends):
                return False
    return not any(g in sums for _, g in chains)


def _word(word: tuple[str, ...], ends: Mapping[tuple[str, str], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the normal form of a chain of functions, the outermost first."""
    at = 0
    while at + 1 < len(word):
        if (word[at], word[at + 1]) in ends:
            word, at = word[:at] + ends[word[at], word[at + 1]] + word[at + 2 :], max(at - 1, 0)
        else:
            at += 1
    return word


def _chain(axiom: Axiom) -> tuple[tuple[str, str], str | None] | None:
    """Return (f, g) and h of an equation f(g(x)) = h(x), or None in the place of h for x; None for other axioms."""
    for left, right in _sides(axiom):
        match left:
            case (str() as f, (str() as g, str() as x)) if {f, g} <= LAW_FUNCTIONS:
                match right:
                    case str() if right == x:
                        return (f, g), None
                    case (str() as h, str() as y) if y == x and h in LAW_FUNCTIONS:
                        return (f, g), h
    return None


def _sum(axiom: Axiom) -> str | None:
    """Return f of an equation f(x + y) = f(x) f(y); None for other axioms."""
    for left, right in _sides(axiom):
        match left, right:
            case (
                (str() as f, ("add", str() as x, str() as y)),
                ("mul", (str() as f1, str() as x1), (str() as f2, str() as y1)),
            ) if f == f1 == f2 and f in LAW_FUNCTIONS and x != y and {x, y} == {x1, y1}:
                return f
    return None


def _sides(axiom: Axiom) -> tuple[tuple[SExpr, SExpr], ...]:
    atom = axiom.conclusion
    if axiom.premises or atom.relation != "=":
        return ()
    return (atom.left, atom.right), (atom.right, atom.left)


__all__ = ["LAW_FUNCTIONS", "NO_LAWS", "LawAlgebra", "Laws", "laws_of"]
