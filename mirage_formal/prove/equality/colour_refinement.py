"""Colour refinement: an order of bound digits that does not depend on their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirage_formal.prove.equality.polynomials import FactorKind, Polynomial, scale_polynomial

if TYPE_CHECKING:
    from mirage_formal.prove.equality.polynomials import TermInterner


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
