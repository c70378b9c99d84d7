"""Classification of a candidate's side conditions: those of the program as well, and those true by their form.

No part of a proof: the equality holds where all conditions of both graphs hold. This module says which of these are
new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mirage_formal.check.proof.elaborate import Need
from mirage_formal.check.proof.operator_terms import ABOVE_ZERO, NOT_NEGATIVE
from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof.ring import NONE, Digits, Index, Mono, Poly, ProofError, Ring

#: Requirement: a value that must be nonzero or nonnegative for all its digits; equal atoms are equivalent.
Atom = tuple[Any, ...]
#: A name of a digit: a number, its extent, and the number of the sum or maximum that binds it, 0 for none.
Name = tuple[int, int, int]
#: The binder of each bound digit, and its name once it has occurred.
Scope = Mapping[int, tuple[int, list[Name]]]


@dataclass(frozen=True, slots=True)
class ClassifiedConditions:
    """The side conditions of a theorem, classified.

    Attributes:
        added: Those of the candidate that the program does not have.
        doubtful: Those of both that are not always true by their form, as that of a sum of exponentials is.
    """

    added: tuple[str, ...]
    doubtful: tuple[str, ...]


def classify_conditions(theorem: Theorem) -> ClassifiedConditions:
    """Classify the side conditions of a theorem.

    Sound: a condition is not added only if each of its terms is one of the program's, or has the sign that it needs by
    its operators, or what its normal form needs (factors that are not 0, a polynomial that is not negative) shows by
    its form or is needed by the program too, for digits of the same extents. What cannot be told counts as added, and
    as doubtful. So does every other term if normal forms rest on a side condition on an input, for they do not say
    which graph has it.
    """
    (graphs, steps) = theorem.read
    program, candidate = (graph.needs for graph in graphs)
    polys = {tensor.term: tensor.poly for tensor in steps.tensors}
    found: dict[tuple[bool, int], frozenset[Atom] | None] = {}
    for _, divisor, terms in (*program, *candidate):
        for term in terms:
            if (divisor, term) not in found:
                poly = None if steps.ring.signed else polys.get(term)
                found[divisor, term] = _requirements(steps.ring, poly, divisor=divisor)
    known = {(divisor, term) for _, divisor, terms in program for term in terms}
    atoms = frozenset[Atom]().union(*(found[key] or () for key in known))
    for divisor, term in found:
        if steps.terms.known[term][1] >= (ABOVE_ZERO if divisor else NOT_NEGATIVE):
            found[divisor, term] = frozenset()

    def had(need: Need) -> bool:
        keys = [(need[1], term) for term in need[2]]
        return all(key in known or ((own := found[key]) is not None and own <= atoms) for key in keys)

    def certain(need: Need) -> bool:
        return all(found[need[1], term] == frozenset() for term in need[2])

    added = dict.fromkeys(need[0] for need in candidate if not had(need))
    doubtful = dict.fromkeys(need[0] for need in (*program, *candidate) if not certain(need))
    return ClassifiedConditions(tuple(added), tuple(doubtful))


def classify_composed_conditions(kernels: Theorem, padding: Theorem, own: Sequence[str]) -> ClassifiedConditions:
    """Classify the side conditions of a candidate with remainder tiles, from the two halves of its proof.

    Sound: a condition of P' at padded inputs is one of the program's unless the second proof adds it, and the
    candidate's unless C' lacks it; what holds by its form holds at all inputs. One of which nothing of this is known is
    refused. Where some rest on the candidate's alone, all of the candidate's are added that do not hold by their form.

    Args:
        kernels: P' = C', see ``check.proof_composition``.
        padding: slices(P'(pads)) = P.
        own: The candidate's conditions, in the order in which C' has them.

    Raises:
        ProofError: A condition of the program's operators beyond the end of its inputs does not follow from any other.
    """
    (outer, inner), (first, second) = padding.read[0], kernels.read[0]
    there, back = (
        classify_conditions(kernels),
        classify_conditions(replace(kernels, read=([second, first], kernels.read[1]))),
    )
    names = dict(zip(inner.conditions, first.conditions, strict=True))
    beyond = {names[one] for one in classify_conditions(padding).added} & set(there.doubtful)
    if unknown := sorted(beyond & set(back.added)):
        raise ProofError(f"expected pads that add no condition, got {unknown[0]} beyond the end", "padding")
    mine = dict(zip(second.conditions, own, strict=True))
    added = (text for one, text in mine.items() if one in there.added or (beyond and one in there.doubtful))
    doubtful = [*there.doubtful, *(one for one in classify_conditions(padding).doubtful if one in outer.conditions)]
    return ClassifiedConditions(tuple(dict.fromkeys(added)), tuple(doubtful))


def _requirements(ring: Ring, poly: Poly | None, *, divisor: bool) -> frozenset[Atom] | None:
    """Return the requirements for a value to be nonzero, or not negative; None if they are not known.

    Sound: a product of powers is not 0 where none of its factors with positive exponents is; those with negative ones
    are divisors of divisors, which have conditions of their own. A sum is one power if its inverse is one
    product: its exponents are those of the inverse with the other sign. Of a sum that is above 0, nothing is needed.
    """
    if not poly:
        return None if poly is None or divisor else frozenset()
    if not divisor:
        if ring.evident(poly):
            return frozenset()
        scale = max(abs(Fraction(coef)) for coef in poly.values())
        scaled = ((mono, coef / scale) for mono, coef in poly.items())
        return frozenset({("radicand", *_CanonicalNaming(ring, poly).polynomial(scaled))})
    if ring.above(poly):
        return frozenset()
    sign = 1
    if len(poly) > 1:
        try:
            poly, sign = ring.power(poly, -2), -1
        except ProofError:  # too much work, or no content lemma
            return None
    if len(poly) != 1:
        return None
    factors = (f for mono in poly for f, e in mono if sign * e > 0 and not ring.above({((f, 2),): 1}))
    return frozenset(("divisor", _CanonicalNaming(ring, [((f, 2),)]).factor(f, {})) for f in factors)


class _CanonicalNaming:
    """Canonical renaming of digits in order of occurrence: equal names mean equal terms up to renaming of digits.

    Free digits that always occur together in an index, as one mixed-radix number, count as one digit.
    """

    def __init__(self, ring: Ring, monos: Iterable[Mono]) -> None:
        self._ring = ring
        self._names: dict[int, Name] = {}
        self._next = 0
        self._binders = 0
        self._dropped: set[int] = set()
        self._extents = dict(enumerate(ring.extents))
        monos = list(monos)
        self._fold(NONE.union(*map(ring.free_of, monos)), list(_indices(ring, monos)))

    def _fold(self, free: Digits, indices: Sequence[Mapping[int, int]]) -> None:
        """Merge adjacent free digits until no pair can be merged."""
        left = set(free)
        while True:
            pairs = ((hi, lo) for hi in sorted(left) for lo in sorted(left) if hi != lo)
            pair = next((pair for pair in pairs if self._adjacent(*pair, indices)), None)
            if pair is None:
                return
            hi, lo = pair
            self._extents[lo] *= self._extents[hi]
            self._dropped.add(hi)
            left.remove(hi)
            indices = [{d: s for d, s in index.items() if d != hi} for index in indices]

    def _adjacent(self, hi: int, lo: int, indices: Sequence[Mapping[int, int]]) -> bool:
        own = [index for index in indices if hi in index or lo in index]
        return bool(own) and all(
            hi in index and lo in index and index[hi] == index[lo] * self._extents[lo] for index in own
        )

    def polynomial(self, poly: Iterable[tuple[Mono, Any]], scope: Scope | None = None) -> tuple[Any, ...]:
        """Return the canonical form of a polynomial: its coefficients and products."""
        scope = {} if scope is None else scope
        items = sorted(poly, key=lambda item: (_sort_key(self._ring, item[0]), item[1]))
        return tuple((coef, self._monomial(mono, scope)) for mono, coef in items)

    def _monomial(self, mono: Mono, scope: Scope) -> tuple[Any, ...]:
        items = sorted(mono, key=lambda item: (_form_of(self._ring, item[0]), item[1]))
        return tuple((self.factor(f, scope), e) for f, e in items)

    def factor(self, f: int, scope: Scope) -> tuple[Any, ...]:
        """Return the canonical form of one factor; ``scope`` has the names of bound digits."""
        kind, payload = self._ring.kinds[f], self._ring.payloads[f]
        match kind:
            case "in":
                return (kind, payload[0], *(self._index(index, scope) for index in payload[1]))
            case "sum":
                inside = self._bound(payload[0], scope)
                return (kind, self._monomial(payload[1], inside), self._listed(payload[0]))
            case "max":
                inside = self._bound(payload[0], scope)
                return (kind, self.polynomial(payload[1], inside), self._listed(payload[0]))
            case "pmax" | "carry":
                index, u, digits, poly = payload
                inside = self._bound(digits | {u}, scope)
                named = self.polynomial(poly, inside)
                return (kind, self._index(index, scope), named, self._digit(u, inside), self._listed(digits))
            case "top":
                polys = sorted(payload, key=lambda poly: "+".join(sorted(_sort_key(self._ring, m) for m, _ in poly)))
                return (kind, *(self.polynomial(poly, scope) for poly in polys))
            case "fn":
                return (kind, payload[0], self.polynomial(payload[1], scope))
            case "keep":
                return (kind, *(self.polynomial(poly, scope) for poly in payload))
            case "exp" | "pow":
                return (kind, self.polynomial(payload, scope))
            case "surd":
                return (kind, payload)
        raise AssertionError(kind)

    def _bound(self, digits: Iterable[int], scope: Scope) -> Scope:
        self._binders += 1
        return {**scope, **{d: (self._binders, []) for d in digits}}

    def _listed(self, digits: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self._ring.extents[d] for d in digits))

    def _index(self, index: Index, scope: Scope) -> tuple[Any, ...]:
        offset, terms = index
        kept = sorted(((s, d) for d, s in terms if d in scope or d not in self._dropped), key=lambda item: item[0])
        return (offset, *((stride, self._digit(d, scope)) for stride, d in kept))

    def _digit(self, d: int, scope: Scope) -> Name:
        """Return the name of a digit; a bound one has its own in every scope."""
        if d in scope:
            binder, names = scope[d]
            if not names:
                names.append(self._fresh(self._ring.extents[d], binder))
            return names[0]
        if d not in self._names:
            self._names[d] = self._fresh(self._extents[d], 0)
        return self._names[d]

    def _fresh(self, extent: int, binder: int) -> Name:
        self._next += 1
        return self._next, extent, binder


def _indices(ring: Ring, monos: Iterable[Mono]) -> Iterable[dict[int, int]]:
    """Yield all indices in some products, at any depth."""
    seen: set[int] = set()
    stack = [f for mono in monos for f, _ in mono]
    while stack:
        f = stack.pop()
        if f not in seen:
            seen.add(f)
            indices, _, inner = ring.inside(f)
            yield from (dict(terms) for _, terms in indices)
            stack += [g for mono in inner for g, _ in mono]


def _sort_key(ring: Ring, mono: Mono) -> str:
    """Return the text of a product without its digits, as a sort key."""
    return "*".join(sorted(f"{_form_of(ring, f)}^{e}" for f, e in mono))


def _form_of(ring: Ring, factor: int) -> str:
    kind, payload = ring.kinds[factor], ring.payloads[factor]
    _, _, inner = ring.inside(factor)
    name = f"{payload[0]}" if kind in ("in", "fn") else f"{payload}" if kind == "surd" else ""
    return f"{kind}{name}({'+'.join(sorted(_sort_key(ring, mono) for mono in inner))})"


__all__ = ["ClassifiedConditions", "classify_conditions"]
