"""Lemmas about sums, maxima and roots: each is checked once, and used by key afterwards.

The table in prove/equality/README.md names the prover's function for each.
"""

from __future__ import annotations

from collections.abc import Callable

from mirage_formal.check.proof.index_substitution import Substitution, folding_substitution
from mirage_formal.check.proof.parser import MAX_EXPONENT, Reader, parse_integer, parse_list, parse_rational, parse_word
from mirage_formal.check.proof.ring import INCREASING, NONE, Coef, Digits, Mono, Poly, Ring, require

Chains = list[tuple[int, tuple[int, ...]]]
#: Key and result of a lemma.
Filed = tuple[object, object]


def check_lemma(reader: Reader, number: int, raw: object) -> None:
    """Check lemma ``number`` and file it under its key.

    Raises:
        ProofError: It does not hold by its law, or has the key of an earlier lemma.
    """
    ring, law = reader.ring, parse_word(parse_list(raw, low=1)[0], _LAWS)
    check, length = _LAWS[law]
    key, result = check(reader, *parse_list(raw, length, length)[1:])
    require(key not in ring.lemmas[law], "expected a lemma that was not stated before")
    ring.lemmas[law][key] = (number, result)


def _open_factor(reader: Reader, raw: object, taken: Digits) -> tuple[int, Digits, Substitution]:
    """Return an opened factor, its fresh digits, and the substitution to them.

    The fresh digits occur nowhere else in the lemma.
    """
    first, *rest = parse_list(raw, low=2)
    f, fresh = reader.factor(first), reader.digits(rest)
    olds = reader.listed.get(f, ())
    require(taken.isdisjoint(fresh), f"expected fresh digits, got {fresh}")
    require(len(fresh) == len(olds), f"expected {len(olds)} fresh digits for factor {f}, got {len(fresh)}")
    chains = [(new, (old,)) for new, old in zip(fresh, olds, strict=True)]
    return f, frozenset(fresh), folding_substitution(reader.ring, chains, taken)


def _sum(reader: Reader, bound: object, mono: object, opens: object, parts: object) -> Filed:
    """Check a lemma on the sum of a monomial over digits.

    Sound: a product with sums is the sum of the products over fresh digits; a sum is linear; and a sum of a product
    whose items fall into classes without common digits is the product of the classes' sums.
    """
    ring, digits, whole = reader.ring, frozenset(reader.digits(bound)), reader.monomial(mono)
    require(digits and digits <= ring.free_of(whole), "expected digits that occur in the monomial")
    rest, every, taken = dict(whole), digits, digits | ring.free_of(whole)
    product: Poly = {(): 1}
    for raw in parse_list(opens, high=64):
        f, fresh, move = _open_factor(reader, raw, taken)
        require(ring.kinds[f] == "sum" and rest.get(f, 0) >= 2, f"expected a sum in the monomial, got factor {f}")
        rest[f] -= 2
        every, taken = every | fresh, taken | fresh
        product = ring.mul(product, move.monomial(ring.payloads[f][1]))
    product = ring.mul(product, ring.prod(rest.items()))
    if parts is None:
        return (digits, whole), ring.total(every, product)
    require(len(product) == 1, f"expected one monomial to take apart, got {len(product)}")
    ((found, coef),) = product.items()
    used = every & ring.free_of(found)
    for digit in every - used:
        coef = coef * ring.extents[digit]
    return (digits, whole), _classes(reader, _split_exponentials(ring, found), used, coef, parts)


def _split_exponentials(ring: Ring, mono: Mono) -> list[tuple[int, int]]:
    """Return the factors of a monomial, with exp of a sum as several exp."""
    out: list[tuple[int, int]] = []
    for f, e in mono:
        terms = ring.payloads[f] if ring.kinds[f] == "exp" and e == 2 else ()
        out += [(ring.intern("exp", frozenset({term})), 2) for term in terms] or [(f, e)]
    return out


def _classes(reader: Reader, items: list[tuple[int, int]], used: Digits, coef: Coef, parts: object) -> Poly:
    ring, seen = reader.ring, NONE
    outside = [(f, e) for f, e in items if ring.free[f].isdisjoint(used)]
    for raw in parse_list(parts, high=64):
        first, folds = parse_list(raw, 2, 2)
        s, chains = reader.factor(first), reader.chains(folds)
        own = frozenset(d for _, chain in chains for d in chain)
        good = own <= used and seen.isdisjoint(own) and ring.kinds[s] == "sum"
        require(good, "expected a sum and digits of its own for each class")
        seen |= own
        member = [(f, e) for f, e in items if not ring.free[f].isdisjoint(own)]
        product = ring.prod(member)
        folded = folding_substitution(ring, chains, ring.free_in(product)).polynomial(product)
        good = all(ring.free[f] & used <= own for f, _ in member) and len(folded) == 1
        require(good, "expected the items of a class to share no digit with another, and to be one monomial")
        ((mono, extra),) = folded.items()
        good = ring.payloads[s] == (frozenset(new for new, _ in chains), mono)
        require(good, f"expected a class to be what factor {s} sums")
        coef = coef * extra
        outside.append((s, 2))
    require(seen == used, f"expected each digit in one class, got none for {sorted(used - seen)}")
    return ring.mul({(): coef}, ring.prod(outside))


def _fold_body(reader: Reader, poly: Poly, used: Digits, chains: Chains) -> frozenset[tuple[Mono, Coef]]:
    good = {d for _, chain in chains for d in chain} == used
    require(good, f"expected chains of the digits {sorted(used)}")
    return frozenset(folding_substitution(reader.ring, chains, reader.ring.free_in(poly)).polynomial(poly).items())


def _max(reader: Reader, bound: object, poly: object, opens: object, s: object, chains: object) -> Filed:
    """Check a lemma on the maximum of a polynomial over digits.

    Sound: the largest of largest values is the largest over all digits together; the largest over t of the largest over
    u <= t is the largest over u, if nothing else depends on t; a fold runs through the same values.
    """
    ring, digits, body = reader.ring, frozenset(reader.digits(bound)), reader.polynomial(poly)
    key = (digits, frozenset(body.items()))
    require(digits and digits <= ring.free_in(body), "expected digits that occur in the polynomial")
    for raw in parse_list(opens, high=1):
        f, fresh, move = _open_factor(reader, raw, digits | ring.free_in(body))
        payload, running = ring.payloads[f], ring.kinds[f] == "pmax"
        good = body == {((f, 2),): 1} and (running or ring.kinds[f] == "max")
        require(good, f"expected the polynomial to be a largest value, got factor {f}")
        if running:
            t, u = next((d for d, _ in payload[0][1]), -1), payload[1]
            inner = ring.free_in(dict(payload[3])) - payload[2] - {u}
            good = payload[0] == (0, ((t, 1),)) and t in digits - inner and ring.extents[t] == ring.extents[u]
            require(good, "expected a running maximum over all that it runs over")
            digits -= {t}
        body, digits = move.polynomial(dict(payload[-1])), digits | fresh
    factor, folds = reader.factor(s), reader.chains(chains)
    payload = (frozenset(new for new, _ in folds), _fold_body(reader, body, digits & ring.free_in(body), folds))
    good = ring.kinds[factor] == "max" and ring.payloads[factor] == payload
    require(good, f"expected factor {factor} to be the largest value")
    return key, factor


def _pmax(reader: Reader, index: object, u: object, bound: object, poly: object, s: object, chains: object) -> Filed:
    """Check a renaming of the bound digits of a running maximum.

    Sound: u is renamed only, so that the order of iterations stays; a fold of the rest runs through all values.
    """
    ring, place, digit = reader.ring, reader.index(index), reader.digit(u)
    digits, body = frozenset(reader.digits(bound)), reader.polynomial(poly)
    good = digit not in digits and digits <= ring.free_in(body)
    require(good, "expected digits that occur in the polynomial, and u beside them")
    factor, folds = reader.factor(s), reader.chains(chains)
    own = [new for new, chain in folds if chain == (digit,)]
    rest = frozenset(new for new, chain in folds if digit not in chain)
    payload = (place, *own, rest, _fold_body(reader, body, digits | {digit}, folds))
    good = ring.kinds[factor] == "pmax" and ring.payloads[factor] == payload
    require(good, f"expected factor {factor} to be the running maximum")
    return (place, digit, digits, frozenset(body.items())), factor


def _content(reader: Reader, poly: object, e2: object, mono: object, q: object, rest: object) -> Filed:
    """Check a factor that is taken out of a power: poly = mono * q * rest.

    Sound: the equation is compared after multiplication with mono's divisors, which are divisors of poly and so not 0.
    The inverse of a product is the product of inverses, and sqrt(a b) = sqrt(a) sqrt(b) for a >= 0. Where rest is
    negative, mono is 0, and so is the monomial that holds both roots. No divisor and no root is new, so that exp in
    mono is the exp of a real number. Out of what may be 0, for the power 0, come exponentials only, which never are.
    """
    ring, whole, power = reader.ring, reader.polynomial(poly), parse_integer(e2, -MAX_EXPONENT, 1)
    outside, factor, inner = reader.monomial(mono), parse_rational(q), reader.polynomial(rest)
    good = len(whole) > 1 and factor and inner and (power or all(ring.kinds[f] == "exp" for f, _ in outside))
    require(good, "expected a power of several monomials, no factor 0, and only exponentials out of what may be 0")
    require(ring.partial([outside, *inner]) <= ring.partial(whole), "expected no new divisor or root")
    below, above = [(f, -e) for f, e in outside if e < 0], [(f, e) for f, e in outside if e > 0]
    left = ring.combined((ring.prod((*m, *below)), c) for m, c in whole.items())
    right = ring.combined((ring.prod((*m, *above)), c * factor) for m, c in inner.items())
    require(left == right, "expected the polynomial to be the product")
    even = all(e % 2 == 0 and (e % 4 == 0 or ring.nonnegative(f)) for f, e in outside)
    require(power % 2 == 0 or (factor > 0 and even), "expected to take only what is not negative out of a root")
    return (frozenset(whole.items()), power), (outside, factor, inner)


def _square(reader: Reader, poly: object, root: object) -> Filed:
    """Check a polynomial that is a square.

    Sound: the square is multiplied out, and no divisor or root is new.
    """
    ring, whole, found = reader.ring, reader.polynomial(poly), reader.polynomial(root)
    good = ring.mul(found, found) == whole and ring.needs(found) <= ring.needs(whole)
    require(good, "expected the square of the root, without a new divisor or root")
    return frozenset(whole.items()), found


def _largest(reader: Reader, bound: object, polys: object, *parts: object) -> Filed:
    """Check a summand, a factor and an increasing function that are taken out of the largest value of polynomials.

    Sound: the polynomials have the same largest value as those that the parts give, for all digits; what comes out has
    none of the digits that the largest value is over, and the factor is not negative. No divisor or root is new, so
    that roots are taken of what is not negative; log |p| is increasing where p is not.
    """
    ring, digits = reader.ring, frozenset(reader.digits(bound))
    some = [reader.polynomial(poly) for poly in parse_list(polys, low=1)]
    first, factor, inner = (reader.polynomial(parts[place]) for place in (0, 1, 3))
    good = digits.isdisjoint(ring.free_in({**first, **factor})) and ring.evident(factor)
    require(good, "expected a summand and a factor without the digits, and no factor that may be negative")
    function, keys = parse_word(parts[2], INCREASING), ring.tops(inner) if len(some) > 1 else {frozenset(inner.items())}
    require(
        function != "log" or all(ring.evident(dict(key)) for key in keys), "expected no logarithm of what is below 0"
    )
    made = [ring.add(first, ring.mul(factor, ring.function(function, dict(key)))) for key in keys]
    needed = ring.partial(mono for poly in (first, factor, inner, *made) for mono in poly)
    require(needed <= ring.partial(mono for poly in some for mono in poly), "expected no new divisor or root")
    require(ring.same_largest(some, made), "expected the largest value")
    return (digits, frozenset(frozenset(poly.items()) for poly in some)), (first, factor, function, inner)


_LAWS: dict[str, tuple[Callable[..., Filed], int]]
_LAWS = {
    "sum": (_sum, 5), "max": (_max, 6), "pmax": (_pmax, 7), "content": (_content, 6), "square": (_square, 3),
    "largest": (_largest, 7),
}  # fmt: skip
