"""Equality of quotients by cross-multiplication."""

from __future__ import annotations

from typing import Final

from mirage_formal.claims.equality.polynomials import Kind, Monomial, Polynomial, Terms, add

#: Rounds of clearing denominators; each may uncover those inside a denominator.
_ROUNDS: Final = 12


def multiplier(terms: Terms, p: Polynomial, q: Polynomial) -> Monomial | None:
    """A product m of divisors of p and q with (p - q) * m = 0, or None if none was found.

    Sound: the factors of m occur in denominators, so they are not zero where the programs are defined; then p = q.
    """
    whole = difference = add(p, q, -1)
    known = divisors(terms, (*p, *q))
    total: dict[int, int] = {}
    for round_ in range(_ROUNDS):
        if not difference:
            found = tuple(sorted(total.items()))
            # A checker multiplies with all of them at once: as many terms as it has must be few enough.
            return found if round_ < 2 or not terms.times(whole, found) else None
        needed: dict[int, int] = {}
        for m, _ in difference:
            for f, e in m:
                if e < 0 and terms.kind[f] != Kind.EXP:
                    needed[f] = max(needed.get(f, 0), -e)
        if not needed or not needed.keys() <= known:
            return None
        for f, e in needed.items():
            total[f] = total.get(f, 0) + e
        difference = terms.times(difference, tuple(sorted(needed.items())))
    return None


def divisors(terms: Terms, p: Polynomial) -> set[int]:
    """Factors that occur with a negative exponent in a polynomial, at any depth."""
    found: set[int] = set()
    seen: set[int] = set()
    stack: list[Monomial] = [m for m, _ in p]
    while stack:
        for f, e in stack.pop():
            if e < 0:
                found.add(f)
            if f not in seen:
                seen.add(f)
                stack.extend(terms.inside(terms.kind[f], terms.payload[f]))
    return found
