"""Other forms of elements: quotients by sums of exponentials divided out, functions of selections taken apart.

Nothing here is a law of the prover's normal form: the checker is shown that an element and its other form are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Final

from mirage_formal.prove.equality.index_substitution import DigitSubstitution, SubstitutionTerms
from mirage_formal.prove.equality.polynomials import (
    FactorKind,
    Monomial,
    Polynomial,
    ProofIncomplete,
    Rational,
    add,
    constant,
    divisor_factors,
    factor_power,
    freeze,
    multiplier,
    scale_polynomial,
)

#: Most steps of a division by sums of exponentials.
MAX_DIVISIONS: Final = 64
#: Most masks whose cases are told apart, and most products of an element of which they are.
MAX_MASKS: Final = 4
MAX_TERMS: Final = 64
#: An element in another form, the multiplier that shows that both are equal, and the masks whose cases do.
ElementForm = tuple[Polynomial, Monomial, tuple[int, ...]]


def element_forms(terms: SubstitutionTerms, p: Polynomial) -> Iterable[Callable[[Polynomial], ElementForm | None]]:
    """Yield functions that return other forms of an element, to be tried in this order, each on what the last gave."""
    held = (terms.masks_in(f) - {f} for m, _ in p for f, _ in m)
    masks = tuple(sorted(frozenset[int]().union(*held)))
    if 0 < len(masks) <= MAX_MASKS and len(p) <= MAX_TERMS:
        for some in (masks, *((mask,) for mask in masks[len(masks) == 1 :])):
            yield partial(_split_by_masks, terms, some)
    yield partial(_divided_by_sums, terms)


def verify_form(terms: SubstitutionTerms, p: Polynomial, form: ElementForm, *, needs: bool = True) -> bool:
    """Return whether a form is shown to be equal to an element, by the computations that the checker does.

    Both must need the same divisors and roots if ``needs``.
    """
    new, divided, masks = form
    try:
        for case in product((0, 1), repeat=len(masks)):
            (needed, old), (again, value) = (_needs_and_element(terms, q, masks, case) for q in (p, new))
            known = divisor_factors(terms, (*old, *value))
            by = tuple((f, e) for f, e in divided if f in known)
            rest = terms.times(add(old, value, -1), by)
            if (needs and masks and needed != again) or (rest and (needs or not terms.vanishes(rest))):
                return False
        return not needs or terms.needs(m for m, _ in new) <= terms.needs(m for m, _ in p)
    except ProofIncomplete:
        return False


def equal_in_cases(terms: SubstitutionTerms, p: Polynomial, q: Polynomial) -> tuple[Monomial, tuple[int, ...]] | None:
    """Return masks whose cases show that two elements are equal, with the multiplier; None if no masks do.

    The masks are those in the elements, and comparisons that say which of two values is the largest. None of them says
    what a selection discards: that may have no value.
    """
    factors = {f for m, _ in (*p, *q) for f, _ in m}
    masks = frozenset[int]().union(*map(terms.masks_in, factors))
    pairs = frozenset[frozenset[int]]().union(*map(terms.comparisons_in, factors))
    given = tuple(sorted(masks.union(min(pair) for pair in pairs if masks.isdisjoint(pair))))
    if not 0 < len(given) <= MAX_MASKS:
        return None
    divisors: dict[int, int] = {}
    for case in product((0, 1), repeat=len(given)):
        cases = tuple(zip(given, case, strict=True))
        guarded = DigitSubstitution(cases=cases, guards=True)
        if (terms.change(p, guarded), terms.change(q, guarded)) != (p, q):
            return None
        old, new = (terms.change(side, DigitSubstitution(cases=cases)) for side in (p, q))
        by = multiplier(terms, old, new)
        if by is None:
            return None
        divisors |= {f: max(e, divisors.get(f, 0)) for f, e in by}
    found = tuple(sorted(divisors.items()))
    return (found, given) if verify_form(terms, p, (q, found, given), needs=False) else None


def _split_by_masks(terms: SubstitutionTerms, masks: tuple[int, ...], p: Polynomial) -> ElementForm | None:
    """Return the sum of what an element is in each case of some masks; None if it is that, or too large.

    A product that needs values which the element does not need in all cases stays behind a selection. Of equal products
    in several cases, these are joined. So f(select(m, a, b)) is select(m, f(a), f(b)).
    """
    try:
        told = {case: _needs_and_element(terms, p, masks, case) for case in product((0, 1), repeat=len(masks))}
        everywhere = frozenset.intersection(*(needed for needed, _ in told.values()))
        guards: dict[tuple[Monomial, Rational], Polynomial] = {}
        divisors: dict[int, int] = {}
        for case, (_, value) in told.items():
            divided = divide_by_sums(terms, value)
            by = () if divided == value else multiplier(terms, value, divided)
            divisors |= {f: max(e, divisors.get(f, 0)) for f, e in by or ()}
            for item in value if by is None else divided:
                guards[item] = add(guards.get(item, ()), _indicator(terms, masks, case))
        out: Polynomial = ()
        for (m, c), guard in guards.items():
            inner = tuple((f, e) for f, e in m if not terms.needs((((f, e),),)) <= everywhere)
            outer = scale_polynomial(terms.product({f: e for f, e in m if (f, e) not in inner}), c)
            part = terms.keep(guard, ((inner, 1),)) if inner else guard
            out = add(out, terms.mul(part, outer))
        return None if out == p else (out, tuple(sorted(divisors.items())), masks)
    except ProofIncomplete:
        return None


def _needs_and_element(
    terms: SubstitutionTerms, p: Polynomial, masks: tuple[int, ...], case: tuple[int, ...]
) -> tuple[frozenset[int], Polynomial]:
    """Return the definedness conditions (``needs``) and the value of an element, for given values of some masks."""
    if not masks:
        return frozenset(), p
    cases = tuple(zip(masks, case, strict=True))
    kept, told = terms.change(p, DigitSubstitution(cases=cases, guards=True)), DigitSubstitution(cases=cases)
    return terms.needs((m for m, _ in kept), lambda q: terms.change(q, told)), terms.change(kept, told)


def _indicator(terms: SubstitutionTerms, masks: tuple[int, ...], case: tuple[int, ...]) -> Polynomial:
    """Return the polynomial that is 1 in a case of some masks, and 0 in all others."""
    out = constant(1)
    for f, value in zip(masks, case, strict=True):
        out = terms.mul(out, factor_power(f) if value else add(constant(1), factor_power(f), -1))
    return out


def _divided_by_sums(terms: SubstitutionTerms, p: Polynomial) -> ElementForm | None:
    """Return ``divide_by_sums`` with the multiplier that shows it; None if nothing is divided."""
    divided = divide_by_sums(terms, p)
    found = None if divided == p else multiplier(terms, p, divided)
    return None if found is None else (divided, found, ())


def divide_by_sums(terms: SubstitutionTerms, p: Polynomial) -> Polynomial:
    """Return a polynomial in which each divisor that is a sum of two exponentials is divided out in one way.

    With b = exp(x) + exp(y), exp(x) / b + exp(y) / b is 1, so that exp(k x) / b^n may be written in many ways. Of these
    the result has those with (n - 1) d < k <= n d only, where d is the coefficient in b of one term of x that y does
    not have. So sigmoid(-x) is 1 - sigmoid(x), and tanh(x) 2 sigmoid(2 x) - 1. It is the polynomial itself if that
    takes too many steps; the checker is shown that both are equal.
    """
    out: dict[Monomial, Rational] = {}
    stack = list(p)
    for _ in range(MAX_DIVISIONS + len(p)):
        if not stack:
            return freeze(out)
        m, c = stack.pop()
        split = next((found for item in m if (found := _division(terms, m, *item)) is not None), None)
        if split is None:
            out[m] = out.get(m, 0) + c
        else:
            stack += [(n, c * d) for by, d in split for n, d in scale_polynomial(terms.times(((m, 1),), by), d)]
    return p


def _division(terms: SubstitutionTerms, m: Monomial, f: int, e2: int) -> list[tuple[Monomial, Rational]] | None:
    """Return products with numbers whose sum is 1; each one times m is nearer to the form for a divisor."""
    base: Polynomial = terms.payload[f] if terms.kind[f] == FactorKind.POW and e2 <= -2 and e2 % 2 == 0 else ()
    if len(base) != 2 or any(len(n) > 1 or any(terms.kind[g] != FactorKind.EXP for g, _ in n) for n, _ in base):
        return None
    tables = [dict(terms.payload[n[0][0]]) if n else {} for n, _ in base]
    differ = {t for table in tables for t in table if tables[0].get(t, 0) != tables[1].get(t, 0)}
    pivot = min(differ, key=lambda t: (terms.product_form(t), t))
    low, high = sorted((0, 1), key=lambda side: tables[side].get(pivot, 0))
    step = tables[high].get(pivot, 0)
    here = sum(dict(terms.payload[g]).get(pivot, 0) for g, _ in m if terms.kind[g] == FactorKind.EXP)
    above = here + Fraction(e2, 2) * step
    if tables[low].get(pivot, 0) != 0 or -step < above <= 0:
        return None
    (one, a), (other, b) = (base[high], base[low]) if above > 0 else (base[low], base[high])
    inverse = tuple((g, -x) for g, x in one)
    return [((*inverse, (f, 2)), 1 / Fraction(a)), ((*inverse, *other), -Fraction(b) / Fraction(a))]


__all__ = ["ElementForm", "divide_by_sums", "element_forms", "equal_in_cases", "verify_form"]
