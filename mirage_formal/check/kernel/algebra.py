"""The ring engine: polynomials over interned factors with half exponents, in one normal form.

A monomial maps factors to half exponents: f with e2 is f^(e2/2). Values: a half power of a factor is a power of one
fixed root r(f) with r(f)^2 = f, the non-negative one for f >= 0 and i sqrt(-f) for f < 0; so exponents add for every f
that is not 0, and for f = 0 as long as both are positive. Only a root of a product needs to know signs.

Factors with a negative exponent are not 0 at any value of their digits, free or bound: they come from divisors, and a
side condition says so. A root whose argument is negative stands only in monomials that are 0 (see ``content`` in laws).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import gcd, isqrt
from typing import Any, Final

from mirage_formal.errors import MirageError

Index = tuple[int, tuple[tuple[int, int], ...]]
Mono = tuple[tuple[int, int], ...]
Coef = int | Fraction
Poly = dict[Mono, Coef]
Key = frozenset[tuple[Mono, Coef]]
Digits = frozenset[int]

MAX_EXPONENT: Final = 64
MAX_MONOMIALS: Final = 20_000
MAX_DEPTH: Final = 60
MAX_BITS: Final = 2_000
#: Products of monomials, factors substituted, trial divisions and so on: about a second.
BUDGET: Final = 300_000
NONE: Final[Digits] = frozenset()
_ONE: Final = Fraction(1)


class ProofError(MirageError):
    """A proof that is refused; ``where`` names the lemma or step by number and law."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what, where=where)


def need(condition: object, what: str) -> None:
    """Refuses a proof unless a condition holds."""
    if not condition:
        raise ProofError(what)


def _exact(value: Fraction) -> Coef:
    return value.numerator if value.denominator == 1 else value


class Ring:
    """Interned factors and the laws of a field with exp, roots and sums; holds the lemmas that were checked.

    Attributes:
        extents: Extent of every digit.
        kinds: Kind of every factor.
        payloads: What it is made of: in (input, indices); sum (digits, monomial); max (digits, polynomial); pmax and
            carry (index, u, digits, polynomial); exp and pow polynomial; surd n; fn (name, polynomial).
        free: Its free digits.
        sums, largest, running, contents: Lemmas by key, as (lemma number, result).
        used: Numbers of the lemmas that were used.
        facts: Extents of the digits that were split or folded.
    """

    def __init__(self, extents: tuple[int, ...]) -> None:
        self.extents = extents
        self.kinds: list[str] = []
        self.payloads: list[Any] = []
        self.free: list[Digits] = []
        self._depth: list[int] = []
        self._ids: dict[tuple[str, Any], int] = {}
        self._free_of: dict[Mono, Digits] = {}
        self._products: dict[tuple[Mono, Mono], Poly] = {}
        self._signs: dict[int, bool] = {}
        self._partial: dict[int, Digits] = {}
        self._budget = BUDGET
        self.sums: dict[tuple[Digits, Mono], tuple[int, Poly]] = {}
        self.largest: dict[tuple[Digits, Key], tuple[int, int]] = {}
        self.running: dict[tuple[Index, int, Digits, Key], tuple[int, int]] = {}
        self.contents: dict[tuple[Key, int], tuple[int, tuple[Mono, Coef, Poly]]] = {}
        self.used: set[int] = set()
        self.facts: set[tuple[int, ...]] = set()

    def charge(self, work: int = 1) -> None:
        """Counts work, so that hostile proofs end soon."""
        self._budget -= work
        need(self._budget >= 0, "expected a proof of moderate size, got one that takes too much work")

    # --- factors -----------------------------------------------------------------------------------------------

    def intern(self, kind: str, payload: Any) -> int:
        """The number of a factor; equal factors have equal numbers."""
        key = (kind, payload)
        number = self._ids.get(key)
        if number is None:
            self.charge()
            number = len(self.kinds)
            self.kinds.append(kind)
            self.payloads.append(payload)
            indices, bound, monos = self.inside(number)
            inner = [f for mono in monos for f, _ in mono]
            depth = 1 + max((self._depth[f] for f in inner), default=0)
            need(depth <= MAX_DEPTH, f"expected factors nested at most {MAX_DEPTH} deep")
            self._depth.append(depth)
            outside = [d for _, terms in indices for d, _ in terms]
            self.free.append(NONE.union(*(self.free[f] for f in inner)) - bound | NONE.union(outside))
            self._ids[key] = number
        return number

    def inside(self, factor: int) -> tuple[tuple[Index, ...], Digits, list[Mono]]:
        """Indices, bound digits and monomials of a factor; the indices are outside what it binds."""
        kind, payload = self.kinds[factor], self.payloads[factor]
        if kind in ("in", "surd"):
            return (payload[1] if kind == "in" else ()), NONE, []
        if kind == "sum":
            return (), payload[0], [payload[1]]
        if kind in ("pmax", "carry"):
            return (payload[0],), payload[2] | {payload[1]}, [m for m, _ in payload[3]]
        body = payload if kind in ("exp", "pow") else payload[1]
        return (), (payload[0] if kind == "max" else NONE), [m for m, _ in body]

    def free_of(self, mono: Mono) -> Digits:
        """Free digits of a monomial."""
        found = self._free_of.get(mono)
        if found is None:
            found = self._free_of[mono] = NONE.union(*(self.free[f] for f, _ in mono))
        return found

    def free_in(self, poly: Poly) -> Digits:
        """Free digits of a polynomial."""
        return NONE.union(*map(self.free_of, poly))

    def partial(self, monos: Iterable[Mono]) -> Digits:
        """Where values must be defined, at any depth: f for a negative exponent of f, ~f for a root of it."""
        out: set[int] = set()
        for f, e in (item for mono in monos for item in mono):
            out |= {f} if e < 0 else NONE
            out |= {~f} if e % 2 and self.kinds[f] != "surd" else NONE
            if f not in self._partial:
                self._partial[f] = self.partial(self.inside(f)[2])
            out |= self._partial[f]
        return frozenset(out)

    def nonnegative(self, factor: int) -> bool:
        """Whether a factor is never negative, as far as its form shows.

        Sound: exp and surd are positive; a sum of products of non-negative values is one, and so is a polynomial with
        positive coefficients over such. A root is non-negative, because its argument is (side condition), and an even
        power is.
        """
        found = self._signs.get(factor)
        if found is None:
            payload: Any = self.payloads[factor]
            match self.kinds[factor]:
                case "exp" | "surd":
                    found = True
                case "sum":
                    found = self._signed(payload[1])
                case "pow":
                    found = all(c > 0 and self._signed(m) for m, c in payload)
                case _:
                    found = False
            self._signs[factor] = found
        return found

    def _signed(self, mono: Mono) -> bool:
        return all(e % 4 != 2 or self.nonnegative(f) for f, e in mono)

    # --- ring laws ---------------------------------------------------------------------------------------------

    def add(self, a: Poly, b: Poly, scale: Coef = 1) -> Poly:
        """a + scale * b."""
        return self.combined(((a, 1), (b, scale)))

    def combined(self, parts: Iterable[tuple[Poly, Coef]]) -> Poly:
        """The sum of polynomials times coefficients."""
        out: Poly = {}
        for poly, scale in parts:
            self.charge(len(poly) // 8)
            for mono, coef in poly.items():
                out[mono] = out.get(mono, 0) + (coef if scale == 1 else scale * coef)
        return self._bounded({mono: coef for mono, coef in out.items() if coef})

    def mul(self, a: Poly, b: Poly) -> Poly:
        """a * b, expanded."""
        out: Poly = {}
        for m, c in a.items():
            for n, d in b.items():
                self.charge()
                for mono, coef in self._times(m, n).items():
                    out[mono] = out.get(mono, 0) + (c * d if coef == 1 else c * d * coef)
        return self._bounded({mono: coef for mono, coef in out.items() if coef})

    def _bounded(self, poly: Poly) -> Poly:
        need(len(poly) <= MAX_MONOMIALS, f"expected at most {MAX_MONOMIALS} monomials, got {len(poly)}")
        for coef in poly.values():
            if coef.numerator.bit_length() + coef.denominator.bit_length() > MAX_BITS:
                raise ProofError(f"expected coefficients of at most {MAX_BITS} bits")
        return poly

    def _times(self, m: Mono, n: Mono) -> Poly:
        if not m or not n:
            return {m or n: 1}
        found = self._products.get((m, n))
        if found is None:
            found = self._products[m, n] = self.prod((*m, *n))
        return found

    def prod(self, items: Iterable[tuple[int, int]]) -> Poly:
        """The product of factors to half exponents.

        Sound: exponents of one factor add; exp(a)^(e/2) exp(b) = exp(e/2 a + b); surds multiply exactly; an even power
        of a polynomial is its expansion, and r(p)^e = p^(e // 2) r(p)^(e mod 2).
        """
        exponents: dict[int, int] = {}
        for f, e in items:
            exponents[f] = exponents.get(f, 0) + e
        argument: Poly = {}
        scale, surd = _ONE, 1
        plain: list[tuple[int, int]] = []
        opened: list[Poly] = []
        for f, e in exponents.items():
            need(abs(e) <= MAX_EXPONENT, f"expected half exponents within {MAX_EXPONENT}, got {e}")
            kind, payload = self.kinds[f], self.payloads[f]
            if not e:
                continue
            if kind == "exp":
                argument = self.add(argument, dict(payload), e // 2 if e % 2 == 0 else Fraction(e, 2))
            elif kind == "surd":
                common = gcd(surd, payload) if e % 2 else 1
                scale *= Fraction(payload) ** (e // 2) * common
                surd = surd * payload // common**2 if e % 2 else surd
            elif kind == "pow" and e != 1 and (e > 1 or len(payload) == 1):
                opened.append(self._whole(dict(payload), e // 2))
                plain += [(f, 1)] * (e % 2)
            else:
                plain.append((f, e))
        if argument:
            plain.append((self.intern("exp", frozenset(argument.items())), 2))
        if surd > 1:
            plain.append((self.intern("surd", surd), 1))
        out: Poly = {tuple(sorted(plain)): _exact(scale)}
        for poly in opened:
            out = self.mul(out, poly)
        return self._bounded(out)

    def _whole(self, poly: Poly, n: int) -> Poly:
        """An integer power; a negative one only of one monomial."""
        if len(poly) == 1:
            ((mono, coef),) = poly.items()
            return self.mul({(): _exact(Fraction(coef) ** n)}, self.prod((f, e * n) for f, e in mono))
        out: Poly = {(): 1}
        for _ in range(n):
            out = self.mul(out, poly)
        return out

    def power(self, poly: Poly, e: int) -> Poly:
        """poly^(e / 2).

        Sound: where e is negative the value is not 0 (side condition or occurrence in a divisor), so no factor of a
        product is; where e is odd it is not negative. A several-monomial base becomes one factor, after its content was
        taken out as a content lemma says.
        """
        if e == 0:
            return {(): 1}
        if not poly:
            need(e > 0, "expected a divisor that is not 0")
            return {}
        if e > 1:
            even = self._whole(poly, e // 2)
            return self.mul(even, self.power(poly, 1)) if e % 2 else even
        if len(poly) == 1:
            ((mono, coef),) = poly.items()
            return self._whole(poly, e // 2) if e % 2 == 0 else self._root(mono, coef, e)
        key = frozenset(poly.items())
        found = self.contents.get((key, e))
        if found is None:
            return self.prod([(self.intern("pow", key), e)])
        self.used.add(found[0])
        mono, q, rest = found[1]
        return self.mul(self.power({mono: q}, e), self.prod([(self.intern("pow", frozenset(rest.items())), e)]))

    def _root(self, mono: Mono, coef: Coef, e: int) -> Poly:
        """(coef * mono)^(e / 2) for odd e.

        Sound: sqrt(a b) = sqrt(a) sqrt(b) for a >= 0. So coef must be positive, and f^x may leave the root as
        f^(x / 2) only if f^(x / 4) is the non-negative root of f^(x / 2): if f is not negative, or x / 4 is even.
        sqrt(f^2) is not f.
        """
        need(coef > 0, "expected the root of a positive coefficient")
        (above, a), (below, b) = self.squares(coef.numerator), self.squares(coef.denominator)
        outside = [(f, x // 2 * e) for f, x in mono if self._leaves(f, x)]
        inside = tuple((f, x) for f, x in mono if not self._leaves(f, x))
        if len(inside) == 1 and inside[0][1] == 2:
            outside.append((inside[0][0], e))
        elif inside:
            outside.append((self.intern("pow", frozenset({(inside, 1)})), e))
        if a * b > 1:
            outside.append((self.intern("surd", a * b), e))
        return self.mul({(): _exact(Fraction(above, below * b) ** e)}, self.prod(outside))

    def _leaves(self, factor: int, x: int) -> bool:
        return x % 8 == 0 or (x % 2 == 0 and self.nonnegative(factor))

    def squares(self, n: int) -> tuple[int, int]:
        """(k, r) with n = k^2 r and r squarefree."""
        need(n.bit_length() <= 62, "expected roots of numbers below 2^62")
        k, r, p = 1, 1, 2
        while p**3 <= n:
            while n % (p * p) == 0:
                n, k = n // (p * p), k * p
            if n % p == 0:
                n, r = n // p, r * p
            p += 1 + p % 2
        self.charge(1 + p // 8)
        # What is left has at most two prime factors, so only a square can hide in it.
        whole = isqrt(n)
        return (k * whole, r) if whole * whole == n else (k, r * n)

    # --- binders -----------------------------------------------------------------------------------------------

    def total(self, bound: Digits, poly: Poly) -> Poly:
        """The sum of a polynomial over digits, term by term; a lemma gives its normal form.

        Sound: a sum is linear, and over a digit that does not occur it multiplies by the extent.
        """
        parts: list[tuple[Poly, Coef]] = []
        for mono, coef in poly.items():
            used = bound & self.free_of(mono)
            for digit in bound - used:
                coef = coef * self.extents[digit]
            found = self.sums.get((used, mono))
            if found is not None:
                self.used.add(found[0])
                parts.append((found[1], coef))
            else:
                parts.append(({((self.intern("sum", (used, mono)), 2),) if used else mono: 1}, coef))
        return self.combined(parts)

    def maximum(self, bound: Digits, poly: Poly) -> Poly:
        """The largest value of a polynomial over digits; a digit that does not occur is dropped."""
        used = bound & self.free_in(poly)
        if not used:
            return poly
        key = (used, frozenset(poly.items()))
        found = self.largest.get(key)
        if found is not None:
            self.used.add(found[0])
        return {((self.intern("max", key) if found is None else found[1], 2),): 1}

    def running_maximum(self, kind: str, index: Index, u: int, bound: Digits, poly: Poly) -> Poly:
        """pmax or carry of a polynomial, its payload named as a lemma says.

        Sound: a pmax lemma renames what is bound, so that the largest values are the same at every index, and a carry
        depends on them only.
        """
        key = (index, u, bound & self.free_in(poly) - {u}, frozenset(poly.items()))
        found = self.running.get(key)
        if found is not None:
            self.used.add(found[0])
            key = (index, *self.payloads[found[1]][1:])
        return {((self.intern(kind, key), 2),): 1}
