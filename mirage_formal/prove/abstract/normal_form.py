"""Normal forms of abstract expressions modulo A_eq, and containment modulo A_eq and A_sub.

A normal form (a polynomial) is a multiset of monomials (n, atoms, D): n a positive integer, the product of the extents
of all sums around the product; atoms a multiset of variables, constants and opaque functions of normal forms; D the one
product of all denominators, or none. An expression E is part of T iff for T, or for some T' nested in it as denominator
or argument, a monomial context M exists such that M * E is termwise contained in T'. Denominators are divided exactly,
which is unique because A_eq is cancellative. x + x is a multiplicity, not a sum over 2.

All values are interned: a polynomial, a monomial and an atom is a number in a table.

The normal forms of guided search (search/guided/algebra/normal_forms.py) are polynomials of monomials as well, but not
these, and no table serves both:

- Here a sum is its extent, a factor of n, and which index it binds is forgotten: sums of x over two indices of one
  extent are one form. There a sum is the set of index parts that it binds, without extents. A product of monomials
  always exists here and multiplies n; there bound indices have to be renamed first, and it may have no normal form.
- Here the denominators are multiplied out to one polynomial, as the exact division needs on which containment rests.
  There they are a multiset of polynomials that are compared as they are: nothing divides by a polynomial.
- Equal numbers mean here that A_eq identifies two expressions, whose tensors may still differ; there they mean that
  the tensors are equal for every choice of extents.

Both intern sorted (monomial, multiplicity) pairs, and apply the laws that a user has added (logic/axiom_laws.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from mirage_formal.logic.axiom_laws import NO_LAWS, Laws
from mirage_formal.logic.terms import (
    Add,
    Const,
    Div,
    Expr,
    Mul,
    Sum,
    Unary,
    Variable,
    add,
    children,
    div,
    head,
    mul,
    postorder,
    sum_,
    unary,
)

#: (n, atoms in ascending order, denominator); the denominator ONE means that there is none.
Monomial = tuple[int, tuple[int, ...], int]
#: (monomial, multiplicity) pairs in ascending order.
Polynomial = tuple[tuple[int, int], ...]

#: The empty polynomial: the denominator of monomials without one.
ONE: Final = 0


class AmbiguousLeadingTerm(Exception):
    """Two distinct monomials have the same valuation, so division has no leading term; containment stays unknown."""


class InContext(Struct, frozen=True):
    """A witness step: the context times the expression is termwise contained in ``whole``."""

    context: Monomial
    whole: int


class InDenominator(Struct, frozen=True):
    """A witness step: the expression so far is the denominator of a monomial of ``whole``."""

    monomial: int
    whole: int


class InArgument(Struct, frozen=True):
    """A witness step: the expression so far is the argument of an atom of a monomial of ``whole``.

    By a law f(x + y) = f(x) f(y) it is the sum of the arguments of several atoms.
    """

    atoms: tuple[int, ...]
    monomial: int
    whole: int


class InFunction(Struct, frozen=True):
    """A witness step: a function of the expression so far, which a law rewrites, is part of ``whole``."""

    function: str


Witness = tuple[InContext | InDenominator | InArgument | InFunction, ...]


class NormalForms:
    """Interning tables of normal forms, and their algebra. Numbers are valid only within one object.

    Args:
        laws: Laws of opaque functions beside A_eq.
    """

    def __init__(self, laws: Laws = NO_LAWS) -> None:
        self._laws = laws
        self._atoms: dict[Expr | tuple[str, int], int] = {}
        self.atoms: list[Expr | tuple[str, int]] = []
        self._monomials: dict[Monomial, int] = {}
        self.monomials: list[Monomial] = []
        self._polynomials: dict[Polynomial, int] = {(): ONE}
        self.polynomials: list[Polynomial] = [()]
        self._masks: list[int] = [0]
        self._forms: dict[Expr, int] = {}
        self._products: dict[tuple[int, int], int] = {}
        self._monomial_products: dict[tuple[int, int], int] = {}
        self._quotients: dict[tuple[int, int], int | None] = {}
        self._contained: dict[tuple[int, int], Witness | None] = {}
        self._keys: dict[int, bytes] = {}
        self._random = random.Random(7)
        self._atom_values: list[int] = []
        self._monomial_values: dict[int, Fraction] = {}
        self._polynomial_values: dict[int, Fraction] = {ONE: Fraction(1)}

    # Interning

    def _atom(self, atom: Expr | tuple[str, int]) -> int:
        found = self._atoms.get(atom)
        if found is None:
            found = self._atoms[atom] = len(self.atoms)
            self.atoms.append(atom)
            self._atom_values.append(self._random.randrange(1 << 40, 1 << 41))
        return found

    def _monomial(self, monomial: Monomial) -> int:
        found = self._monomials.get(monomial)
        if found is None:
            found = self._monomials[monomial] = len(self.monomials)
            self.monomials.append(monomial)
        return found

    def _polynomial(self, counts: dict[int, int]) -> int:
        key = tuple(sorted(counts.items()))
        found = self._polynomials.get(key)
        if found is None:
            found = self._polynomials[key] = len(self.polynomials)
            self.polynomials.append(key)
            self._masks.append(self._mask(key))
        return found

    def _mask(self, polynomial: Polynomial) -> int:
        """Return all atoms in a polynomial, at any depth, as a bit set."""
        mask = 0
        for m, _ in polynomial:
            _, atoms, below = self.monomials[m]
            mask |= self._masks[below]
            for a in atoms:
                atom = self.atoms[a]
                mask |= 1 << a
                if isinstance(atom, tuple):
                    mask |= self._masks[atom[1]]
        return mask

    # Algebra

    def of(self, e: Expr) -> int:
        """Return the normal form of a term."""
        found = self._forms.get(e)
        if found is None:
            ready = all(child in self._forms for child in children(e))
            for node in [e] if ready else postorder([e]):
                if node not in self._forms:
                    self._forms[node] = self._build(node)
            found = self._forms[e]
        return found

    def _build(self, e: Expr) -> int:
        forms = self._forms
        match e:
            case Variable() | Const():
                return self._single(e)
            case Unary(function, a):
                return self._laws.call(self, function, forms[a])
            case Add(a, b):
                return self._add(forms[a], forms[b])
            case Mul(a, b):
                return self.mul(forms[a], forms[b])
            case Div(a, b):
                return self._each(forms[a], 1, forms[b])
            case Sum(extent, a):
                return self._each(forms[a], extent, ONE)

    def _single(self, atom: Expr | tuple[str, int]) -> int:
        return self._polynomial({self._monomial((1, (self._atom(atom),), ONE)): 1})

    def atom_of(self, function: str, argument: int) -> int:
        """Return the form of a function's value to which no law is applied."""
        return self._single((function, argument))

    def call_of(self, form: int) -> tuple[str, int] | None:
        """Return function and argument of a form that is nothing but a function's value; None for another form."""
        if len(self.polynomials[form]) != 1:
            return None
        ((monomial, count),) = self.polynomials[form]
        extent, atoms, below = self.monomials[monomial]
        plain = count == extent == len(atoms) == 1 and below == ONE
        atom = self.atoms[atoms[0]] if plain else None
        return atom if isinstance(atom, tuple) else None

    def summands(self, form: int) -> list[int]:
        """Return the monomials of a form, each as often as it occurs."""
        return [self._polynomial({m: 1}) for m, count in self.polynomials[form] for _ in range(count)]

    def _add(self, p: int, q: int) -> int:
        counts = dict(self.polynomials[p])
        for m, c in self.polynomials[q]:
            counts[m] = counts.get(m, 0) + c
        return self._polynomial(counts)

    def mul(self, p: int, q: int) -> int:
        """Return the product of two polynomials; ONE is neutral."""
        if p == ONE or q == ONE:
            return p or q
        key = (p, q) if p < q else (q, p)
        found = self._products.get(key)
        if found is None:
            counts: dict[int, int] = {}
            for m, c in self.polynomials[p]:
                for k, d in self.polynomials[q]:
                    n = self._times(m, k)
                    counts[n] = counts.get(n, 0) + c * d
            found = self._products[key] = self._polynomial(counts)
        return found

    def _times(self, m: int, k: int) -> int:
        key = (m, k) if m < k else (k, m)
        found = self._monomial_products.get(key)
        if found is None:
            n1, atoms1, below1 = self.monomials[m]
            n2, atoms2, below2 = self.monomials[k]
            product = (n1 * n2, tuple(sorted(atoms1 + atoms2)), self.mul(below1, below2))
            found = self._monomial_products[key] = self._monomial(product)
        return found

    def _each(self, p: int, extent: int, below: int) -> int:
        """Return the polynomial with every monomial summed over an extent and divided by a polynomial."""
        counts = {}
        for m, c in self.polynomials[p]:
            n, atoms, old = self.monomials[m]
            counts[self._monomial((n * extent, atoms, self.mul(old, below)))] = c
        return self._polynomial(counts)

    # Division

    def _monomial_value(self, m: int) -> Fraction:
        """Return a random multiplicative valuation, which orders monomials compatibly with products."""
        found = self._monomial_values.get(m)
        if found is None:
            n, atoms, below = self.monomials[m]
            for a in atoms:
                n *= self._atom_values[a]
            found = self._monomial_values[m] = Fraction(n) / self._polynomial_value(below)
        return found

    def _polynomial_value(self, p: int) -> Fraction:
        found = self._polynomial_values.get(p)
        if found is None:
            found = sum((c * self._monomial_value(m) for m, c in self.polynomials[p]), Fraction(0))
            self._polynomial_values[p] = found
        return found

    def _leading_monomial(self, monomials: Iterator[int] | list[int]) -> int:
        """Return the monomial of greatest value."""
        ranked = sorted(monomials, key=self._monomial_value, reverse=True)
        if len(ranked) > 1 and self._monomial_value(ranked[0]) == self._monomial_value(ranked[1]):
            raise AmbiguousLeadingTerm
        return ranked[0]

    def _quotient(self, p: int, q: int) -> int | None:
        """Return the denominator d with q * d = p, where ONE means none; None if there is no such d."""
        if q == ONE or p == q:
            return p if q == ONE else ONE
        if p == ONE or self._masks[q] & ~self._masks[p]:
            return None
        if (p, q) not in self._quotients:
            self._quotients[p, q] = self._divide(p, q)
        return self._quotients[p, q]

    def _divide(self, p: int, q: int) -> int | None:
        rest = dict(self.polynomials[p])
        divisor = self.polynomials[q]
        if sum(rest.values()) % sum(c for _, c in divisor):
            return None
        lead = self._leading_monomial([m for m, _ in divisor])
        lead_count = dict(divisor)[lead]
        quotient: dict[int, int] = {}
        while rest:
            top = self._leading_monomial(list(rest))
            factor = self._monomial_quotient(top, lead)
            # A quotient without atoms is a number, and numbers alone are no terms.
            if factor is None or not factor[1] or rest[top] % lead_count:
                return None
            count = rest[top] // lead_count
            f = self._monomial(factor)
            quotient[f] = quotient.get(f, 0) + count
            for m, c in divisor:
                k = self._times(f, m)
                left = rest.get(k, 0) - count * c
                if left < 0:
                    return None
                rest[k] = left
                if not left:
                    del rest[k]
        return self._polynomial(quotient)

    def _monomial_quotient(self, m: int, k: int) -> Monomial | None:
        """Return the quotient m / k as a monomial, whose atoms may be none; None if k does not divide m."""
        n1, atoms1, below1 = self.monomials[m]
        n2, atoms2, below2 = self.monomials[k]
        if n1 % n2:
            return None
        rest = list(atoms1)
        for a in atoms2:
            if a not in rest:
                return None
            rest.remove(a)
        below = self._quotient(below1, below2)
        return None if below is None else (n1 // n2, tuple(rest), below)

    def apply(self, context: Monomial, m: int) -> int:
        """Return the monomial context * m."""
        n, atoms, below = context
        n2, atoms2, below2 = self.monomials[m]
        return self._monomial((n * n2, tuple(sorted(atoms + atoms2)), self.mul(below, below2)))

    # Containment

    def _context(self, p: int, whole: int) -> Monomial | None:
        """Return a monomial context that puts ``p`` termwise into ``whole``; None if there is none."""
        part = self.polynomials[p]
        counts = dict(self.polynomials[whole])
        if len(part) > len(counts):
            return None
        first, first_count = part[0]
        for m, c in self.polynomials[whole]:
            context = self._monomial_quotient(m, first) if c >= first_count else None
            if context is not None and all(counts.get(self.apply(context, k), 0) >= d for k, d in part):
                return context
        return None

    def contained(self, p: int, whole: int) -> Witness | None:
        """Return a witness that ``p`` is part of ``whole``, innermost step first; None if it is not part of it.

        Sound: None only if no chain of A_sub and A_eq steps exists (the module's criterion is necessary and
        sufficient); raises AmbiguousLeadingTerm where leading terms are not determined.
        """
        if self._laws is NO_LAWS:
            return self._occurrence(p, whole)
        for above, functions in self._laws.above(self, p).items():
            if (witness := self._occurrence(above, whole)) is not None:
                return (*map(InFunction, functions), *witness)
        return None

    def _occurrence(self, p: int, whole: int) -> Witness | None:
        """Return a witness that ``p`` occurs in ``whole``, without laws for functions of ``p``."""
        if p == whole:
            return ()
        if self._masks[p] & ~self._masks[whole]:
            return None
        if (p, whole) not in self._contained:
            self._contained[p, whole] = self._search(p, whole)
        return self._contained[p, whole]

    def _search(self, p: int, whole: int) -> Witness | None:
        context = self._context(p, whole)
        if context is not None:
            return (InContext(context, whole),)
        for m, _ in self.polynomials[whole]:
            _, atoms, below = self.monomials[m]
            if below != ONE and (inner := self._occurrence(p, below)) is not None:
                return (*inner, InDenominator(m, whole))
            for a in atoms:
                atom = self.atoms[a]
                if isinstance(atom, tuple) and (inner := self._occurrence(p, atom[1])) is not None:
                    return (*inner, InArgument((a,), m, whole))
            calls = {a: atom for a in atoms if isinstance(atom := self.atoms[a], tuple)}
            for function, argument in self._laws.arguments(self, [calls[a] for a in atoms if a in calls], self._add):
                if (inner := self._occurrence(p, argument)) is not None:
                    mine = tuple(a for a in atoms if a in calls and calls[a][0] == function)
                    return (*inner, InArgument(mine, m, whole))
        return None

    def widest(self, p: int) -> int:
        """Return the most monomials, with multiplicity, in ``p`` or in any polynomial nested in it."""
        out, waiting, seen = 0, [p], {p}
        while waiting:
            polynomial = self.polynomials[waiting.pop()]
            out = max(out, sum(c for _, c in polynomial))
            for m, _ in polynomial:
                _, atoms, below = self.monomials[m]
                nested = [atom[1] for a in atoms if isinstance(atom := self.atoms[a], tuple)]
                fresh = {q for q in (*nested, below) if q != ONE} - seen
                seen |= fresh
                waiting.extend(sorted(fresh))
        return out

    def key(self, p: int) -> bytes:
        """Return a digest of a normal form that does not depend on the numbers of this object's tables."""
        found = self._keys.get(p)
        if found is None:
            parts = sorted((self._monomial_key(m), c) for m, c in self.polynomials[p])
            found = self._keys[p] = blake2b(repr(parts).encode(), digest_size=16).digest()
        return found

    def _monomial_key(self, m: int) -> str:
        n, atoms, below = self.monomials[m]
        return repr((n, sorted(self._atom_key(a) for a in atoms), self.key(below)))

    def _atom_key(self, a: int) -> str:
        atom = self.atoms[a]
        return repr((atom[0], self.key(atom[1]))) if isinstance(atom, tuple) else head(atom)

    # Back to terms

    def _atom_term(self, a: int) -> Expr:
        atom = self.atoms[a]
        return unary(atom[0], self.term(atom[1])) if isinstance(atom, tuple) else atom

    def function(self, a: int) -> str:
        """Return the function of an atom that is a function application."""
        atom = self.atoms[a]
        assert isinstance(atom, tuple)
        return atom[0]

    def product_term(self, atoms: tuple[int, ...]) -> Expr:
        """Return the term of a product of atoms."""
        out = self._atom_term(atoms[-1])
        for a in reversed(atoms[:-1]):
            out = mul(self._atom_term(a), out)
        return out

    def monomial_term(self, monomial: Monomial) -> Expr:
        """Return the term of a monomial."""
        n, atoms, below = monomial
        out = sum_(n, self.product_term(atoms))
        return out if below == ONE else div(out, self.term(below))

    def counts_term(self, counts: dict[int, int]) -> Expr | None:
        """Return the term of a sum of monomials with multiplicities; None for the empty sum."""
        out: Expr | None = None
        for m in sorted(counts, reverse=True):
            for _ in range(counts[m]):
                one = self.monomial_term(self.monomials[m])
                out = one if out is None else add(one, out)
        return out

    def term(self, p: int) -> Expr:
        """Return the term of a polynomial other than ONE."""
        out = self.counts_term(dict(self.polynomials[p]))
        assert out is not None
        return out
