"""Substitution of digits (split, fold, rename, slice) in indices, monomials and polynomials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations
from math import prod

from mirage_formal.check.proof.ring import ONE, Digits, Index, Key, Mono, Poly, ProofError, Ring, require

#: Digits that are substituted together, most significant first, and the index that replaces them.
Place = tuple[tuple[int, ...], Index]


class Substitution:
    """A simultaneous substitution of digits.

    Sound: one digit becomes an index that stays in its range; several digits become one index only where each index
    holds none of them, or all with the strides of a mixed-radix number, so that the index depends on that number alone.
    A digit that a factor binds is another one, and what is put in must not be bound where it goes. ``cases`` are masks
    with numbers that they are, for some values of their digits; ``guards`` says that only those of ``keep`` are told.
    In what ``keep`` keeps, masks are told only if they have a value wherever its own mask has one.
    """

    def __init__(
        self, ring: Ring, places: Iterable[Place], cases: Mapping[int, int] = {}, guards: bool = False
    ) -> None:
        self.ring, self.cases, self.guards = ring, cases, guards
        self.places = tuple(places)
        self.domain: Digits = frozenset(d for olds, _ in self.places for d in olds)
        self._memo: dict[int, Poly] = {}
        self._inner: dict[object, Substitution] = {(self.places, frozenset(self.cases), guards): self}

    def index(self, index: Index) -> Index:
        """Return an index after substitution."""
        offset, terms = index
        held = dict(terms)
        if self.domain.isdisjoint(held):
            return index
        out = Counter[int]()
        for olds, (start, news) in self.places:
            if held.keys().isdisjoint(olds):
                continue
            last = held.get(olds[-1], 0)
            step = last
            for digit in reversed(olds):
                if held.pop(digit, 0) != step or not last:
                    raise ProofError(f"expected an index to hold none of the digits {olds}, or all as one number")
                step *= self.ring.extents[digit]
            offset += last * start
            out.update({digit: last * stride for digit, stride in news})
        out.update(held)
        return offset, tuple(sorted(out.items()))

    def polynomial(self, poly: Poly) -> Poly:
        """Return a polynomial after substitution."""
        if not self.cases and self.domain.isdisjoint(self.ring.free_in(poly)):
            return poly
        return self.ring.combined((self.monomial(mono), coef) for mono, coef in poly.items())

    def monomial(self, mono: Mono) -> Poly:
        """Return a monomial after substitution."""
        touched = [(f, e) for f, e in mono if self.cases or not self.domain.isdisjoint(self.ring.free[f])]
        out: Poly = {tuple(item for item in mono if item not in touched): 1}
        for f, e in touched:
            if f not in self._memo:
                self.ring.charge()
                self._memo[f] = self._factor(f)
            same = self.ring.kinds[f] == "pow" and self._memo[f] == dict(self.ring.payloads[f])
            out = self.ring.mul(out, self.ring.prod([(f, e)]) if same else self.ring.power(self._memo[f], e))
        return out

    def _factor(self, f: int) -> Poly:
        ring, payload = self.ring, self.ring.payloads[f]
        if ring.kinds[f] == "surd" or f in self.cases or (self.guards and ring.is_mask(f)):
            return {((f, 2),): 1} if self.guards or f not in self.cases else ring.add({}, ONE, self.cases[f])
        match ring.kinds[f]:
            case "in":
                moved = (payload[0], tuple(self.index(index) for index in payload[1]))
                return {((ring.intern("in", moved), 2),): 1}
            case "sum":
                bound, mono = payload
                return ring.total(bound, self._under_binder(bound, ring.free_of(mono)).monomial(mono))
            case "max":
                return ring.maximum(payload[0], self._body(payload[0], payload[1]))
            case "pmax" | "carry" as kind:
                index, u, bound, body = payload
                return ring.running_maximum(kind, self.index(index), u, bound, self._body(bound | {u}, body))
            case "top":
                return ring.top(self.polynomial(dict(key)) for key in self._largest(payload))
            case "keep":
                mask, poly = map(dict, payload)
                told = {f: n for f, n in self.cases.items() if ring.needs({((f, 2),): 1}) <= ring.needs(mask)}
                inner = self._other(self.places, told, self.guards).polynomial(poly)
                return ring.keep(self._other(self.places, self.cases, False).polynomial(mask), inner)
            case "exp" | "pow" | "fn" as kind:
                name, body = payload if kind == "fn" else (kind.removeprefix("pow"), payload)
                return ring.function(name, self.polynomial(dict(body)))
        raise AssertionError(ring.kinds[f])

    def _largest(self, keys: Collection[Key]) -> Collection[Key]:
        """Return the one of two values that is the largest in the cases of comparisons, or both.

        Sound: b is if a - b is negative, and a if it is not.
        """
        kept = set[Key]()
        for a, b in permutations(keys) if len(keys) == 2 and self.cases and not self.guards else ():
            less = self.ring.function("negative", self.ring.add(dict(a), dict(b), -1))
            told = self.cases.get(self.ring.alone(less, "fn"))
            kept |= set() if told is None else {b if told else a}
        return kept if len(kept) == 1 else keys

    def _body(self, bound: Digits, body: Key) -> Poly:
        poly: Poly = dict(body)
        return self._under_binder(bound, self.ring.free_in(poly)).polynomial(poly)

    def _under_binder(self, bound: Digits, free: Digits) -> Substitution:
        """Return the substitution restricted to the digits that are free under a binder."""
        free -= bound
        places = tuple(place for place in self.places if not free.isdisjoint(place[0]))
        for olds, (_, news) in places:
            good = free.issuperset(olds) and bound.isdisjoint(d for d, _ in news)
            require(good, f"expected digits {olds} and what replaces them not to be captured")
        cases = {f: n for f, n in self.cases.items() if bound.isdisjoint(self.ring.free[f])}
        return self._other(places, cases, self.guards)

    def _other(self, places: tuple[Place, ...], cases: Mapping[int, int], guards: bool) -> Substitution:
        """Return a substitution of some of the digits and in some of the cases; there is one of each.

        Sound: what a substitution makes of a factor is the same wherever the factor stands.
        """
        key = places, frozenset(cases), guards
        return self._inner.setdefault(key, Substitution(self.ring, places, cases, guards))


def value(ring: Ring, string: Sequence[int]) -> Index:
    """Return the number of a string of digits as an index."""
    return 0, tuple(sorted((d, prod(ring.extents[low] for low in string[i:])) for i, d in enumerate(string, 1)))


def folding_substitution(ring: Ring, chains: Iterable[tuple[int, tuple[int, ...]]], free: Digits) -> Substitution:
    """Return the substitution that folds chains of digits into new digits, for a term with these free digits.

    Sound: a new digit ranges over exactly the numbers that its chain stands for (mixed-radix lemma), and is free in
    nothing that it enters.
    """
    pairs = list(chains)
    olds, news = [d for _, chain in pairs for d in chain], [new for new, _ in pairs]
    for new, chain in pairs:
        good = ring.extents[new] == prod(ring.extents[d] for d in chain)
        require(good, f"expected digit {new} to have the extents of {chain} multiplied")
        require_lemma(ring, chain)
    good = len(set(olds)) == len(olds) and len(set(news)) == len(news)
    require(good, "expected each digit in one chain, and distinct new digits")
    require(free.difference(olds).isdisjoint(news), f"expected new digits, got some of {news} that occur already")
    return Substitution(ring, [(chain, (0, ((new, 1),))) for new, chain in pairs])


def require_lemma(ring: Ring, string: Sequence[int]) -> None:
    """Record that the mixed-radix lemma of these digits is needed."""
    if len(string) > 1:
        ring.facts.add(tuple(ring.extents[d] for d in string))
