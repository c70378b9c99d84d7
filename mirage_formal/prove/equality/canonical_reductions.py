"""Canonical forms of sums and maxima.

A sum is kept flat: nested sums are flattened, and factors that do not depend on a bound digit move out. The rest is
split into connected components. In each component, digits that are adjacent in every occurrence are merged. This is the
coarsest merge, so every side of a comparison has its own canonical form, and no common refinement is needed. Bound
digits are then named by colour refinement. Every use of a law leaves a lemma for the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations, product
from math import factorial, prod
from typing import Any, Final

from mirage_formal.prove.equality.index_substitution import DigitSubstitution, Folds, SubstitutionTerms, make_renaming
from mirage_formal.prove.equality.polynomials import (
    FactorKind,
    Index,
    Monomial,
    Polynomial,
    ProofIncomplete,
    Rational,
    TermInterner,
    factor_power,
    freeze,
    scale_polynomial,
)
from mirage_formal.prove.equality.radicals import SquareRoots

#: Most orders of indistinguishable bound digits: with more, the proof is given up.
MAX_ORDERS: Final = 5040


class BinderTerms(SubstitutionTerms):
    """An interner of terms with binders.

    Sound: sums and maxima are over all values of their digits, so they may be regrouped (Fubini), split into
    independent factors, reindexed along bijections of boxes (mixed radix) and renamed; nothing else is done to them.
    """

    def __init__(self, radicals: SquareRoots | None = None) -> None:
        super().__init__(radicals)
        self._sums: dict[tuple[frozenset[int], Monomial], tuple[Polynomial, frozenset[int]]] = {}
        self._maxima: dict[tuple[frozenset[int], Polynomial], tuple[Polynomial, frozenset[int]]] = {}
        self._prefixes: dict[tuple[Index, int, frozenset[int], Polynomial], tuple[tuple[Any, ...], frozenset[int]]] = {}

    # --- sums --------------------------------------------------------------------------------------------------

    def sum(self, p: Polynomial, digits: Sequence[int]) -> Polynomial:
        """Return the sum of a polynomial over digits."""
        if not digits:
            return p
        bound = frozenset(digits)
        out: dict[Monomial, Rational] = {}
        for m, c in p:
            for n, d in self.sum_monomial(bound, m):
                out[n] = out.get(n, 0) + c * d
        return freeze(out)

    def sum_monomial(self, bound: frozenset[int], m: Monomial) -> Polynomial:
        """Return the sum of a monomial over digits."""
        used = bound & self.free_in(m)
        count = prod(self.extent[d] for d in bound - used)
        if not used:
            return ((m, count),)
        key = (used, m)
        found = self._sums.get(key)
        if found is None:
            with self.scope() as uses:
                result, body = self._sum_new(used, m)
            number = self._lemma(body, result, uses) if body is not None else frozenset[int]()
            found = self._sums[key] = result, number
        self._use(found[1])
        return scale_polynomial(found[0], count)

    def _sum_new(self, bound: frozenset[int], m: Monomial) -> tuple[Polynomial, tuple[Any, ...] | None]:
        opens, p, wider = self._open(bound, m)
        if opens and (len(p) != 1 or self._openable(wider, p[0][0])):
            return self.sum(p, tuple(wider)), ("sum", bound, m, opens, None)
        ((x, c),) = p
        used = wider & self.free_in(x)
        c *= prod(self.extent[d] for d in wider - used)
        outside: dict[int, int] = {}
        groups = self._components(used, x, outside)
        parts: list[tuple[int, Folds]] = []
        sums: dict[int, int] = {}
        for digits, items in groups:
            number, folds, k = self._component(digits, items)
            parts.append((number, folds))
            sums[number] = sums.get(number, 0) + 2
            c *= k
        result = scale_polynomial(self.mul(self.product(outside), self.product(sums)), c)
        if not opens and parts and self._unchanged(parts[0]) and result == factor_power(parts[0][0]):
            return result, None
        return result, ("sum", bound, m, opens, tuple(parts))

    @staticmethod
    def _unchanged(part: tuple[int, Folds]) -> bool:
        return all(chain == (target,) for target, chain in part[1])

    def _openable(self, bound: frozenset[int], m: Monomial) -> list[tuple[int, int]]:
        return [
            (f, e)
            for f, e in m
            if self.kind[f] == FactorKind.SUM and e > 0 and e % 2 == 0 and not bound.isdisjoint(self.free[f])
        ]

    def _open(
        self, bound: frozenset[int], m: Monomial
    ) -> tuple[tuple[tuple[int, ...], ...], Polynomial, frozenset[int]]:
        """Flatten nested sums that depend on bound digits into the sum, with fresh digits."""
        found = self._openable(bound, m)
        if not found:
            return (), ((m, 1),), bound
        rest = dict(m)
        opens: list[tuple[int, ...]] = []
        bodies: list[Polynomial] = []
        wider = set(bound)
        for f, e in found:
            del rest[f]
            digits, body = self.payload[f]
            for _ in range(e // 2):
                fresh = tuple(self.fresh(self.extent[d]) for d in digits)
                opens.append((f, *fresh))
                wider.update(fresh)
                bodies.append(self._change_monomial(body, make_renaming(zip(digits, fresh, strict=True))))
        p = self.product(rest)
        for body in bodies:
            p = self.mul(p, body)
        return tuple(opens), p, frozenset(wider)

    def _components(
        self, bound: frozenset[int], m: Monomial, outside: dict[int, int]
    ) -> list[tuple[set[int], dict[int, int]]]:
        """Return the factors grouped by shared bound digits; factors without bound digits go to ``outside``."""
        items: list[tuple[int, int]] = []
        for f, e in m:
            if self.kind[f] == FactorKind.EXP and len(self.payload[f]) > 1 and not bound.isdisjoint(self.free[f]):
                items += [(self.factor(FactorKind.EXP, (t,)), e) for t in self.payload[f]]
            else:
                items.append((f, e))
        groups: list[tuple[set[int], dict[int, int]]] = []
        for f, e in items:
            digits = set(self.free[f] & bound)
            if not digits:
                outside[f] = outside.get(f, 0) + e
                continue
            mine = {f: e}
            rest = []
            for other, theirs in groups:
                if other.isdisjoint(digits):
                    rest.append((other, theirs))
                else:
                    digits |= other
                    for g, x in theirs.items():
                        mine[g] = mine.get(g, 0) + x
            groups = [*rest, (digits, mine)]
        return groups

    def _component(self, digits: set[int], items: dict[int, int]) -> tuple[int, Folds, Rational]:
        """Return (sum factor, folds of its digits, coefficient) of a connected product."""
        ((m, c),) = self.product(items)
        p: Polynomial = ((m, 1),)
        folds, body = self._canonical(digits, p)
        if len(body) != 1:
            raise ProofIncomplete("a renamed term has another shape")
        bound = tuple(target for target, _ in folds)
        return self.factor(FactorKind.SUM, (bound, body[0][0])), folds, c * body[0][1]

    def _canonical(self, digits: Iterable[int], p: Polynomial) -> tuple[Folds, Polynomial]:
        """Merge and name bound digits: return (new digit, chain) in canonical order, and the polynomial over them."""
        ds = sorted(digits)
        nexts = self.chains(self.adjacent_in(p), set(ds)) if len(ds) > 1 else {}
        chains: list[tuple[int, ...]] = []
        tails = set(nexts.values())
        for d in ds:
            if d in tails:
                continue
            chain = [d]
            while chain[-1] in nexts:
                chain.append(nexts[chain[-1]])
            chains.append(tuple(chain))
        height = 1 + self.height_of(p)
        if len(chains) > 1:
            with self.scope():
                chains = self._ordered(chains, p, height)
        folds = tuple((self._bound(height, i, chain), chain) for i, chain in enumerate(chains))
        return folds, self._fold(p, folds)

    def _bound(self, height: int, place: int, chain: tuple[int, ...]) -> int:
        return self.named(prod(self.extent[d] for d in chain), "bound", height, place)

    def _fold(self, p: Polynomial, folds: Folds) -> Polynomial:
        if all(len(chain) == 1 for _, chain in folds):
            return self.change(p, make_renaming((chain[0], target) for target, chain in folds if chain[0] != target))
        return self.change(p, DigitSubstitution(folds=folds))

    def _ordered(self, chains: list[tuple[int, ...]], p: Polynomial, height: int) -> list[tuple[int, ...]]:
        """Return the chains in canonical order: by colours, ties by the least result."""
        if any(len(chain) > 1 for chain in chains):
            plain: Folds = tuple((self.fresh(prod(self.extent[d] for d in c)), c) for c in chains)
            p = self.change(p, DigitSubstitution(folds=plain))
            by_digit = dict(plain)
        else:
            by_digit = {chain[0]: chain for chain in chains}
        groups = best_order(self, list(by_digit), p)
        orders = prod(factorial(len(group)) for group in groups)
        if orders == 1:
            return [by_digit[d] for group in groups for d in group]
        if orders > MAX_ORDERS:
            raise ProofIncomplete(f"{orders} orders of indistinguishable indices")
        best: tuple[Polynomial, list[int]] | None = None
        for choice in product(*(permutations(group) for group in groups)):
            order = [d for group in choice for d in group]
            pairs = [(d, self.named(self.extent[d], "bound", height, i)) for i, d in enumerate(order)]
            result = self.change(p, make_renaming((a, b) for a, b in pairs if a != b))
            if best is None or result < best[0]:
                best = result, order
        assert best is not None
        return [by_digit[d] for d in best[1]]

    # --- maxima ------------------------------------------------------------------------------------------------

    def max(self, p: Polynomial, digits: Sequence[int]) -> Polynomial:
        """Return the largest value of a polynomial over digits."""
        return self.largest_over([p], frozenset(digits), self._max_of)

    def _max_of(self, bound: frozenset[int], p: Polynomial) -> Polynomial:
        key = (used, _) = (bound & self.free_of(p), p)
        found = self._maxima.get(key)
        if found is None:
            with self.scope() as uses:
                result, body = self._max_new(used, p)
            number = self._lemma(body, result, uses) if body is not None else frozenset[int]()
            found = self._maxima[key] = result, number
        self._use(found[1])
        return found[0]

    def _max_new(self, bound: frozenset[int], p: Polynomial) -> tuple[Polynomial, tuple[Any, ...] | None]:
        opens, inner, wider = self._open_max(bound, p)
        used = wider & self.free_of(inner)
        folds, body = self._canonical(used, inner)
        number = self.factor(FactorKind.MAX, (tuple(target for target, _ in folds), body))
        if not opens and self._unchanged((number, folds)):
            return factor_power(number), None
        return factor_power(number), ("max", bound, p, opens, number, folds)

    def _open_max(self, bound: frozenset[int], p: Polynomial) -> tuple[tuple[int, ...], Polynomial, frozenset[int]]:
        """Flatten a maximum of maxima, or of a running maximum over all its prefixes, into one maximum."""
        f = self.alone(p, FactorKind.MAX, FactorKind.PMAX)
        if f is None:
            return (), p, bound
        if self.kind[f] == FactorKind.MAX:
            digits, body = self.payload[f]
            wider = bound
        else:
            (offset, entries), u, inner, body = self.payload[f]
            if offset or len(entries) != 1 or entries[0][0] != 1 or entries[0][1] not in bound:
                return (), p, bound
            # Only if nothing else depends on t is the maximum over t of what is largest up to t that over all t.
            if self.extent[entries[0][1]] != self.extent[u] or entries[0][1] in self.free_of(body):
                return (), p, bound
            digits = (u, *inner)
            wider = bound - {entries[0][1]}
        fresh = tuple(self.fresh(self.extent[d]) for d in digits)
        body = self.change(body, make_renaming(zip(digits, fresh, strict=True)))
        return (f, *fresh), body, wider | set(fresh)

    def prefix(self, kind: FactorKind, index: Index, u: int, digits: Sequence[int], p: Polynomial) -> Polynomial:
        """Return the canonical form of a running maximum over u and digits (PMAX), or its rescaling factor (CARRY)."""
        if kind == FactorKind.PMAX:
            wider = frozenset((u, *digits))
            return self.largest_over([p], wider, lambda some, q: self._prefix(kind, index, u, some, q))
        return self._prefix(kind, index, u, frozenset(digits), p)

    def _prefix(self, kind: FactorKind, index: Index, u: int, digits: frozenset[int], p: Polynomial) -> Polynomial:
        if kind == FactorKind.PMAX and u not in digits:
            return self._max_of(digits, p)
        key = (index, u, digits & self.free_of(p) - {u}, p)
        found = self._prefixes.get(key)
        if found is None:
            found = self._prefixes[key] = self._prefix_new(*key)
        payload, lemma = found
        self._use(lemma)
        return factor_power(self.factor(kind, payload))

    def _prefix_new(
        self, index: Index, u: int, used: frozenset[int], p: Polynomial
    ) -> tuple[tuple[Any, ...], frozenset[int]]:
        target = self.named(self.extent[u], "prefix", 1 + self.height_of(p))
        with self.scope():
            folds, _ = self._canonical(
                used, self.change(p, make_renaming(((u, target),)) if u != target else DigitSubstitution())
            )
        folds = ((target, (u,)), *folds)
        with self.scope() as uses:
            body = self._fold(p, folds)
        payload = (index, target, tuple(t for t, _ in folds[1:]), body)
        if self._unchanged((0, folds)):
            return payload, frozenset()
        pmax = self.factor(FactorKind.PMAX, payload)
        return payload, self._lemma(("pmax", index, u, used, p, pmax, folds), factor_power(pmax), uses)


class _Colours:
    """An assignment of numbers to signatures, by first appearance."""

    def __init__(self, terms: TermInterner) -> None:
        self.terms = terms

    def number(self, signature: object) -> int:
        """Return the number of a signature, constant for the lifetime of the interner."""
        return self.terms.signatures.setdefault(signature, len(self.terms.signatures))

    def factor(self, f: int, colour: dict[int, int]) -> int:
        """Return the signature of a factor, where coloured digits count by colour and inner bound digits by extent."""
        terms = self.terms
        relevant = tuple(sorted((d, colour[d]) for d in terms.free[f] if d in colour))
        if not relevant:
            return self.number(("same", f))
        payload = terms.payload[f]
        match terms.kind[f]:
            case FactorKind.INPUT:
                shape: object = (payload[0], tuple(self.index(index, colour) for index in payload[1]))
            case FactorKind.SUM:
                inner = self.inside(payload[0], colour)
                shape = tuple(sorted((self.factor(g, inner), e) for g, e in payload[1]))
            case FactorKind.MAX:
                shape = self.polynomial(payload[1], self.inside(payload[0], colour))
            case FactorKind.PMAX | FactorKind.CARRY:
                index, u, digits, p = payload
                inner = self.inside(digits, colour)
                inner[u] = self.number(("prefix", terms.extent[u]))
                shape = (self.index(index, colour), self.polynomial(p, inner))
            case FactorKind.EXP | FactorKind.POW:
                shape = self.polynomial(payload, colour)
            case FactorKind.TOP:
                shape = tuple(sorted(self.number(self.polynomial(p, colour)) for p in payload))
            case FactorKind.FN:
                # The sign of an argument may depend on names of digits.
                even = (
                    (payload[1], scale_polynomial(payload[1], -1))
                    if payload[0] in ("zero", "inv0", "log")
                    else payload[1:]
                )
                shape = (payload[0], *sorted(self.number(self.polynomial(p, colour)) for p in even))
            case FactorKind.KEEP:
                shape = tuple(self.polynomial(p, colour) for p in payload)
            case FactorKind.SURD:
                shape = payload
        return self.number((terms.kind[f], shape))

    def inside(self, bound: Sequence[int], colour: dict[int, int]) -> dict[int, int]:
        """Return the colours below a binder."""
        return {**colour, **{d: self.number(("bound", self.terms.extent[d])) for d in bound}}

    def index(self, index: tuple[int, tuple[tuple[int, int], ...]], colour: dict[int, int]) -> object:
        """Return the signature of an index; digits without a colour are free and count by name."""
        return index[0], tuple(sorted((s, colour.get(d, -1), -1 if d in colour else d) for s, d in index[1]))

    def polynomial(self, p: Polynomial, colour: dict[int, int]) -> object:
        """Return the signature of a polynomial."""
        self.terms.charge(len(p))
        return tuple(sorted((tuple(sorted((self.factor(f, colour), e) for f, e in m)), c) for m, c in p))


def best_order(terms: TermInterner, digits: Sequence[int], p: Polynomial) -> list[list[int]]:
    """Return groups of digits that refinement cannot distinguish, in an order independent of the digits' names."""
    colours = _Colours(terms)
    colour = {d: colours.number(("digit", terms.extent[d])) for d in digits}
    classes = len(set(colour.values()))
    while classes < len(digits):
        refined = {}
        for d in digits:
            marked = {**colour, d: colours.number(("marked", colour[d]))}
            refined[d] = colours.number((colour[d], colours.polynomial(p, marked)))
        colour = refined
        now = len(set(colour.values()))
        if now == classes:
            break
        classes = now
    groups: dict[int, list[int]] = {}
    for d in digits:
        groups.setdefault(colour[d], []).append(d)
    return [groups[c] for c in sorted(groups)]
