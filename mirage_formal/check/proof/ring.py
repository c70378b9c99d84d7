"""Commutative ring normalizer: polynomials over interned factors with half exponents, in one normal form.

A monomial maps factors to half exponents: f with e2 is f^(e2/2). Values: a half power of a factor is a power of one
fixed root r(f) with r(f)^2 = f, the non-negative one for f >= 0 and i sqrt(-f) for f < 0; so exponents add for every f
that is not 0, and for f = 0 as long as both are positive. Only a root of a product needs to know signs.

Factors with a negative exponent are not 0 at any value of their digits, free or bound: they come from divisors, and a
side condition says so. A root whose argument is negative stands only in monomials that are 0 (see ``content`` in laws).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import reduce
from math import isqrt
from typing import Any, Final

from mirage_formal.support.errors import MirageError

Index = tuple[int, tuple[tuple[int, int], ...]]
Mono = tuple[tuple[int, int], ...]
Coef = int | Fraction
Poly = dict[Mono, Coef]
Key = frozenset[tuple[Mono, Coef]]
Digits = frozenset[int]

MAX_EXPONENT: Final = 64
MAX_MONOMIALS: Final = 20_000
MAX_DEPTH: Final = 60
#: Functions whose values are 0 and 1, and functions that do not decrease; the empty name is that of none.
MASKS: Final = ("zero", "negative")
#: Functions with f(f(x)) = f(x), and those with f(-x) = -f(x).
ROUNDINGS: Final = ("round_float16", "round_bfloat16")
ODD: Final = ("erf", *ROUNDINGS)
INCREASING: Final = ("", "exp", "sqrt", "log", "sigmoid", "erf", "round_float16", "round_bfloat16")
MAX_BITS: Final = 26_000
LAWS: Final = ("sum", "max", "pmax", "content", "square", "largest")
#: Most work of a replay, in products of monomials, substituted factors, bits of large numbers and so on: some seconds.
BUDGET: Final = 500_000
NONE: Final[Digits] = frozenset()
ONE: Final[Poly] = {(): 1}


class ProofError(MirageError):
    """Error: a proof is refused; ``where`` names the lemma or step by number and law."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what, where=where)


def require(condition: object, what: str) -> None:
    """Refuse a proof unless a condition holds."""
    if not condition:
        raise ProofError(what)


def _exact(value: Fraction) -> Coef:
    return value.numerator if value.denominator == 1 else value


def _bits(value: Coef) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


class Ring:
    """Interned factors and the laws of a field with exp, roots and sums; holds the lemmas that were checked.

    Attributes:
        extents: Extent of every digit.
        bases: Numbers whose squares are taken out of roots.
        kinds: Kind of every factor.
        payloads: Payload of every factor: in (input or atom, indices); sum (digits, monomial); max (digits,
            polynomial); pmax and carry (index, u, digits, polynomial); exp and pow polynomial; top polynomials; surd n;
            fn (name, polynomial); keep (polynomial of a mask, polynomial).
        free: Free digits of every factor.
        lemmas: Lemmas by law and key, as (lemma number, result).
        used: Numbers of the lemmas that were used.
        facts: Extents of the digits that were split or folded.
        signed: Inputs and atoms without a negative element, by a side condition.
        masks: Inputs whose elements are 0 and 1, for they are of booleans.
        undefined: Atoms that may have no value for some inputs.
    """

    def __init__(self, extents: tuple[int, ...], bases: tuple[int, ...] = ()) -> None:
        self.extents, self.bases = extents, bases
        self.kinds, self.payloads = list[str](), list[Any]()
        self.free, self._depth = list[Digits](), list[int]()
        self._ids, self._free_of = dict[tuple[str, Any], int](), dict[Mono, Digits]()
        self._products: dict[tuple[Mono, Mono], Poly] = {}
        self._signs, self._partial = dict[int, bool](), dict[int, Digits]()
        self._squares: dict[int, tuple[int, int]] = {}
        self._budget = BUDGET
        self.lemmas: dict[str, dict[Any, tuple[int, Any]]] = {law: {} for law in LAWS}
        self.used, self.facts = set[int](), set[tuple[int, ...]]()
        self.signed, self.masks, self.undefined = set[int](), set[int](), set[int]()

    def charge(self, work: int = 1) -> None:
        """Count work against the budget, so that hostile proofs end soon."""
        self._budget -= work
        require(self._budget >= 0, "expected a proof of moderate size, got one that takes too much work")

    def lemma(self, law: str, key: object) -> Any:
        """Return what a lemma says of its key, and count it as used; None if there is none."""
        number, found = self.lemmas[law].get(key, (-1, None))
        self.used |= {number} if number >= 0 else NONE
        return found

    # --- factors -----------------------------------------------------------------------------------------------

    def intern(self, kind: str, payload: Any) -> int:
        """Return the number of a factor; equal factors have equal numbers."""
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
            require(depth <= MAX_DEPTH, f"expected factors nested at most {MAX_DEPTH} deep")
            self._depth.append(depth)
            outside = [d for _, terms in indices for d, _ in terms]
            self.free.append(NONE.union(*(self.free[f] for f in inner)) - bound | NONE.union(outside))
            self._ids[key] = number
        return number

    def inside(self, factor: int) -> tuple[tuple[Index, ...], Digits, list[Mono]]:
        """Return the indices, bound digits and monomials of a factor; the indices are outside of its binder."""
        kind, payload = self.kinds[factor], self.payloads[factor]
        if kind in ("in", "surd"):
            return (payload[1] if kind == "in" else ()), NONE, []
        if kind == "sum":
            return (), payload[0], [payload[1]]
        if kind in ("pmax", "carry"):
            return (payload[0],), payload[2] | {payload[1]}, [m for m, _ in payload[3]]
        if kind in ("top", "keep"):
            return (), NONE, [m for key in payload for m, _ in key]
        body = payload if kind in ("exp", "pow") else payload[1]
        return (), (payload[0] if kind == "max" else NONE), [m for m, _ in body]

    def free_of(self, mono: Mono) -> Digits:
        """Return the digits that occur free in a monomial: those that nothing in it binds."""
        if mono not in self._free_of:
            self._free_of[mono] = NONE.union(*(self.free[f] for f, _ in mono))
        return self._free_of[mono]

    def free_in(self, poly: Poly) -> Digits:
        """Return the digits that occur free in some monomial of a polynomial."""
        return NONE.union(*map(self.free_of, poly))

    def partial(self, monos: Iterable[Mono]) -> Digits:
        """Return what must be defined, at any depth: f for a negative exponent of f, ~f for its root, or if it is not.

        Sound: what has a logarithm is not 0 either, and counts as a divisor.
        """
        out: set[int] = set()
        for f, e in (item for mono in monos for item in mono):
            out |= {f} if e < 0 else NONE
            if self.kinds[f] == "fn" and self.payloads[f][0] == "log":
                out |= self.partial(self.power(dict(self.payloads[f][1]), -2))
            lost = self.kinds[f] == "in" and self.payloads[f][0] in self.undefined
            out |= {~f} if lost or (e % 2 and self.kinds[f] != "surd") else NONE
            if f not in self._partial:
                self._partial[f] = self.partial(self.inside(f)[2])
            out |= self._partial[f]
        return frozenset(out)

    def nonnegative(self, factor: int) -> bool:
        """Return whether a factor is never negative, as far as its form shows.

        Sound: exp and surd are positive; a sum of products of non-negative values is one, and so is a polynomial with
        positive coefficients over such. A root is non-negative, because its argument is (side condition), and an even
        power is; a mask is 0 or 1; the largest of some is at least each of them, and what lies between two of them.
        """
        if factor not in self._signs:
            kind, payload = self.kinds[factor], self.payloads[factor]
            found = kind in ("exp", "surd") or self.is_mask(factor) or (kind == "in" and payload[0] in self.signed)
            found = found or (kind == "sum" and self._signed(payload[1]))
            found = found or (kind in ("pow", "max") and self.evident(dict(payload if kind == "pow" else payload[1])))
            self._signs[factor] = found or (kind == "top" and self.covered({}, map(dict, payload)))
        return self._signs[factor]

    def is_mask(self, factor: int) -> bool:
        """Return whether a factor is 0 or 1."""
        kind, payload = self.kinds[factor], self.payloads[factor]
        return (kind == "fn" and payload[0] in MASKS) or (kind == "in" and payload[0] in self.masks)

    def above(self, poly: Poly) -> bool:
        """Return whether a polynomial is above 0, as far as its form shows.

        Sound: it is the largest of some, and no product of one of these is negative, and one has factors above 0 only:
        exp, roots of numbers, sums of products of such, polynomials that are above 0, and the largest of values one of
        which is.
        """

        def positive(f: int) -> bool:
            kind, payload = self.kinds[f], self.payloads[f]
            inner = payload if kind == "top" else [payload] if kind == "pow" else []
            inner = [{payload[1]: 1} if kind == "sum" else payload[1]] if kind in ("sum", "max") else inner
            return kind in ("exp", "surd") or any(self.above(dict(one)) for one in inner)

        return any(self.evident(one) and any(all(positive(f) for f, _ in m) for m in one) for one in self.members(poly))

    def nonzero(self, poly: Poly) -> bool:
        """Return whether a polynomial is above 0, or below, as far as its form shows."""
        return self.above(poly) or self.above(self.add({}, poly, -1))

    def needs(self, poly: Poly, told: Callable[[Poly], Poly] = dict) -> Digits:
        """Return the values in ``partial`` that may be 0, or negative under a root, if no side condition says more.

        ``told`` gives a polynomial that equals another one where that matters.
        """
        each = {n: told({((max(n, ~n), 2),): 1}) for n in self.partial(poly)}
        known = (n for n, value in each.items() if (self.evident(value) if n < 0 else self.nonzero(value)))
        return NONE.union(each) if self.signed else NONE.union(each).difference(known)

    def evident(self, poly: Poly) -> bool:
        """Return whether no product of a polynomial is negative, as far as its form shows."""
        return all(c > 0 and self._signed(m) for m, c in poly.items())

    def _signed(self, mono: Mono) -> bool:
        return all(e % 4 != 2 or self.nonnegative(f) for f, e in mono)

    # --- ring laws ---------------------------------------------------------------------------------------------

    def add(self, a: Poly, b: Poly, scale: Coef = 1) -> Poly:
        """Return a + scale * b."""
        return self.combined(((a, 1), (b, scale)))

    def combined(self, parts: Iterable[tuple[Poly, Coef]]) -> Poly:
        """Return the sum of polynomials times coefficients."""
        out: Poly = {}
        for poly, scale in parts:
            self.charge(len(poly) // 8)
            for mono, coef in poly.items():
                out[mono] = out.get(mono, 0) + (coef if scale == 1 else scale * coef)
        return self._bounded({mono: coef for mono, coef in out.items() if coef})

    def mul(self, a: Poly, b: Poly) -> Poly:
        """Return a * b, expanded."""
        out: Poly = {}
        for m, c in a.items():
            for n, d in b.items():
                self.charge(1 + (_bits(c) * _bits(d) >> 20))
                for mono, coef in self._times(m, n).items():
                    out[mono] = out.get(mono, 0) + (c * d if coef == 1 else c * d * coef)
        return self._bounded({mono: coef for mono, coef in out.items() if coef})

    def _bounded(self, poly: Poly) -> Poly:
        require(len(poly) <= MAX_MONOMIALS, f"expected at most {MAX_MONOMIALS} monomials, got {len(poly)}")
        for coef in poly.values():
            if (bits := _bits(coef)) >> 9:
                require(bits <= MAX_BITS, f"expected coefficients of at most {MAX_BITS} bits, got {bits}")
                self.charge(bits >> 9)
        return poly

    def _times(self, m: Mono, n: Mono) -> Poly:
        if not m or not n:
            return {m or n: 1}
        if (m, n) not in self._products:
            self._products[m, n] = self.prod((*m, *n))
        return self._products[m, n]

    def prod(self, items: Iterable[tuple[int, int]]) -> Poly:
        """Return the product of factors to half exponents.

        Sound: exponents of one factor add; exp(a)^(e/2) exp(b) = exp(e/2 a + b); surds multiply exactly; an even power
        of a polynomial is its expansion, and r(p)^e = p^(e // 2) r(p)^(e mod 2); powers and roots of a mask are the
        mask; (m - a) (m - b) = 0 for the larger m of a and b; and p is 0, or its inverse that is 0 at 0 is not.
        """
        exponents: dict[int, int] = {}
        for f, e in items:
            exponents[f] = exponents.get(f, 0) + e
        argument: Poly = {}
        scale, surd = Fraction(1), 1
        plain: list[tuple[int, int]] = []
        opened: list[Poly] = []
        for f, e in ((f, e) for f, e in exponents.items() if e):
            require(abs(e) <= MAX_EXPONENT, f"expected half exponents within {MAX_EXPONENT}, got {e}")
            kind, payload = self.kinds[f], self.payloads[f]
            if kind == "exp":
                half = e // 2 if e % 2 == 0 else Fraction(e, 2)
                argument = self.add(argument, dict(payload), half) if argument or e != 2 else dict(payload)
            elif kind == "surd":
                scale *= Fraction(payload) ** (e // 2)
                surd *= payload ** (e % 2)
            elif e > 0 and self.is_mask(f):
                plain.append((f, 2))
            elif kind == "top" and e >= 4 and len(payload) == 2:
                a, b = map(dict, payload)
                square = self.add(self.mul(self.add(a, b), {((f, 2),): 1}), self.mul(a, b), -1)
                opened += square, self.prod([(f, e - 4)])
            elif kind == "pow" and e != 1 and (e > 1 or len(payload) == 1):
                opened.append(self._whole(dict(payload), e // 2))
                plain += [(f, 1)] * (e % 2)
            else:
                plain.append((f, e))
        fns = {self.payloads[f] for f, e in plain if e > 0 and self.kinds[f] == "fn"}
        if any(name == "zero" and ("inv0", key) in fns for name, key in fns):
            return {}
        if argument:
            plain.append((self.intern("exp", frozenset(argument.items())), 2))
        outside, surd = self.squares(surd)
        if surd > 1:
            plain.append((self.intern("surd", surd), 1))
        out: Poly = {tuple(sorted(plain)): _exact(scale * outside)}
        for poly in opened:
            out = self.mul(out, poly)
        return self._bounded(out)

    def _whole(self, poly: Poly, n: int) -> Poly:
        """Return an integer power; a negative one only of one monomial."""
        if len(poly) == 1:
            ((mono, coef),) = poly.items()
            return self.mul({(): _exact(Fraction(coef) ** n)}, self.prod((f, e * n) for f, e in mono))
        return reduce(self.mul, [poly] * n, ONE)

    def power(self, poly: Poly, e: int) -> Poly:
        """Return poly^(e / 2).

        Sound: where e is negative the value is not 0 (side condition or occurrence in a divisor), so no factor of a
        product is; where e is odd it is not negative, and the root of a square is an absolute value. A several-monomial
        base becomes one factor, after its content was taken out as a content lemma says.
        """
        if not poly:
            require(e > 0, "expected a divisor that is not 0")
            return {}
        if e > 1:
            even = self._whole(poly, e // 2)
            return self.mul(even, self.power(poly, 1)) if e % 2 else even
        key = frozenset(poly.items())
        if e % 2 and (root := self.lemma("square", key)) is not None:
            return self.power(self.absolute(root), 2 * e)
        if len(poly) == 1:
            ((mono, coef),) = poly.items()
            return self._whole(poly, e // 2) if e % 2 == 0 else self._root(mono, coef, e)
        if (found := self.lemma("content", (key, e))) is not None:
            mono, q, rest = found
            return self.mul(self.power({mono: q}, e), self.power(rest, e))
        return self.prod([(self.intern("pow", key), e)])

    def function(self, name: str, poly: Poly) -> Poly:
        """Return a function of a polynomial, as a factor if no law says more.

        Sound: roundings to nearest and erf are odd, and rounding twice is rounding once, as is that of 1.
        """
        laws: Mapping[str, Callable[[Poly], Poly]]
        laws = {
            "": dict, "exp": self.exponential, "log": self._logarithm, "inv0": self._inverse, "gelu": self._gelu,
            "relu": lambda p: self.top((p, {})), "square": lambda p: self.mul(p, p), "sqrt": lambda p: self.power(p, 1),
            "sigmoid": lambda p: self.power(self.add(ONE, self.exponential(self.add({}, p, -1))), -2),
        }  # fmt: skip
        if name in laws:
            return laws[name](poly)
        if name in MASKS:
            return self._comparison(name, poly)
        sign = -1 if self._factored(poly)[2] < 0 else 1
        inner = self.add({}, poly, sign)
        f = self.alone(inner, "fn")
        same = name in ROUNDINGS and (inner == ONE or (f >= 0 and self.payloads[f][0] == name))
        return self.add({}, inner if same or not inner else self._opaque(name, inner), sign)

    def _gelu(self, poly: Poly) -> Poly:
        half = self.mul({(): Fraction(1, 2)}, poly)
        return self.add(half, self.mul(half, self.function("erf", self.mul(half, self.power({(): 2}, 1)))))

    def _comparison(self, name: str, poly: Poly) -> Poly:
        """Return whether a polynomial is zero, or negative: 1 if it is, else 0.

        Sound: that is known of 0, of what is above 0 or not negative, and of -1 times such, if it has a value for all
        inputs: a comparison is false where it has none, and stays a factor. It is the same of a product with what is
        above 0, if that has a value where the rest has one; whether it is 0 also of -p; and a product with masks is 0
        where one of them is.
        """
        zero = name == "zero"
        if (self.nonzero(poly) or not poly or (not zero and self.evident(poly))) and not self.needs(poly):
            return {} if (poly if zero else self.evident(poly) or self.above(poly)) else ONE
        mask, outside, q, rest = self._factored(poly)
        rest = rest if self.needs({outside: 1}) <= self.needs(rest) else self.mul(rest, {outside: 1})
        if mask != ONE:
            inner = self.mul(mask, self._comparison(name, self.add({}, rest, 1 if q > 0 else -1)))
            return self.add(inner, self.add(ONE, mask, -1), int(zero))
        return self._opaque(name, rest if q > 0 or zero else self.add({}, rest, -1))

    def _opaque(self, name: str, poly: Poly) -> Poly:
        return {((self.intern("fn", (name, frozenset(poly.items()))), 2),): 1}

    def _logarithm(self, poly: Poly) -> Poly:
        """Return log |poly|, which is what a factor ``log`` of a polynomial stands for.

        Sound: the argument of a logarithm is above 0 (side condition), so it is its own absolute value and no factor of
        it is 0; and log |a^(e / 2) b| = e / 2 log |a| + log |b|.
        """
        require(poly, "expected a logarithm of what is not 0")
        found = self.lemma("content", (frozenset(poly.items()), -2))
        if found is not None:
            outside, q, inner = found
            return self.add(self._logarithm({outside: q}), self._logarithm(inner))
        if len(poly) > 1:
            return self._opaque("log", poly)
        ((mono, coef),) = poly.items()
        numbers = ((abs(coef.numerator), 1), (coef.denominator, -1))
        parts: list[tuple[Poly, Coef]] = [(self._opaque("log", {(): n}), by) for n, by in numbers if n > 1]
        for f, e in mono:
            kind, payload = self.kinds[f], self.payloads[f]
            part = dict(payload) if kind == "exp" else self._logarithm(dict(payload)) if kind == "pow" else None
            parts.append((self._opaque("log", self.prod([(f, 2)])) if part is None else part, Fraction(e, 2)))
        return self.combined(parts)

    def keep(self, mask: Poly, poly: Poly) -> Poly:
        """Return a value masked to 0: a factor, where the value may not exist for all inputs, else a product.

        Sound: for the masks 0 and 1 it is 0 and the value, so that a sum is kept term by term, and of a product what
        may have no value; and what two masks keep is what their product does.
        """
        out: Poly = {}
        for mono, coef in poly.items():
            inner = tuple(item for item in mono if mask not in ({}, ONE) and self.needs({(item,): 1}))
            key = frozenset(mask.items()), frozenset({(inner, 1)})
            kept: Poly = {((self.intern("keep", key), 2),): 1} if inner else mask
            if (f := self.alone({inner: 1}, "keep")) >= 0:
                kept = self.keep(self.mul(mask, dict(self.payloads[f][0])), dict(self.payloads[f][1]))
            out = self.add(out, self.mul({tuple(item for item in mono if item not in inner): coef}, kept))
        return out

    def _inverse(self, poly: Poly) -> Poly:
        """Return 1 / poly, and 0 where poly is 0.

        Sound: of a product it is that of each part, of a mask the mask, and of what is not 0 the inverse.
        """
        mask, outside, q, rest = self._factored(poly)
        out = self.mul(self._whole({outside: q}, -1), mask)
        return self.mul(out, self.power(rest, -2) if self.nonzero(rest) else self._opaque("inv0", rest) if rest else {})

    def _factored(self, poly: Poly) -> tuple[Poly, Mono, Coef, Poly]:
        """Return masks, what is above 0, a number that is not 0 and the rest; their product is the polynomial.

        Sound: a content lemma for the power 0 takes nothing else than exponentials out of several monomials.
        """
        if len(poly) != 1:
            return ONE, *(self.lemma("content", (frozenset(poly.items()), 0)) or ((), 1, poly))
        ((mono, q),) = poly.items()
        masks = [item for item in mono if self.is_mask(item[0])]
        outside = tuple(item for item in mono if self.above({(item,): 1}))
        return self.prod(masks), outside, q, {tuple(item for item in mono if item not in (*masks, *outside)): 1}

    def _root(self, mono: Mono, coef: Coef, e: int) -> Poly:
        """Return (coef * mono)^(e / 2) for odd e.

        Sound: sqrt(a b) = sqrt(a) sqrt(b) for a >= 0. So a negative coef leaves its sign inside, and f^x may leave the
        root as f^(x / 2) only if f^(x / 4) is the non-negative root of f^(x / 2): if f is not negative, or x / 4 is
        even. sqrt(f^2) is not f, but |f|.
        """
        k, r = self.squares(abs(coef.numerator) * coef.denominator)
        outside = [(f, x // 2 * e) for f, x in mono if self._leaves(f, x)]
        inside = tuple((f, x) for f, x in mono if not self._leaves(f, x) and (x % 4 or coef < 0))
        found: Poly = {(): _exact(Fraction(k, coef.denominator) ** e)}
        for f, x in mono:
            if x % 4 == 0 and coef > 0 and not self._leaves(f, x):
                one = self.prod([(f, 2)])
                found = self.mul(found, self.power(self.top((one, self.add({}, one, -1))), x // 2 * e))
        require(coef > 0 or bool(inside), "expected the root of a number that is not negative")
        if len(inside) == 1 and inside[0][1] == 2 and coef > 0:
            outside.append((inside[0][0], e))
        elif inside:
            outside.append((self.intern("pow", frozenset({(inside, 1 if coef > 0 else -1)})), e))
        if r > 1:
            outside.append((self.intern("surd", r), e))
        return self.mul(found, self.prod(outside))

    def absolute(self, poly: Poly) -> Poly:
        """Return the absolute value of a polynomial.

        Sound: it is the polynomial if that is not negative, the root of the square, and the larger of it and -1 times
        it.
        """
        square = self.mul(poly, poly) if len(poly) == 1 else poly
        if self.evident(poly):
            return poly
        return self.power(square, 1) if len(square) == 1 else self.top((poly, self.add({}, poly, -1)))

    def _leaves(self, factor: int, x: int) -> bool:
        return x % 8 == 0 or (x % 2 == 0 and self.nonnegative(factor))

    def squares(self, n: int) -> tuple[int, int]:
        """Return (k, r) with n = k^2 r.

        Sound: whatever the bases are, n = k^2 r holds. That one square root is written in one way, which takes bases
        without common divisors, is no matter of what is true, but of what can be shown.
        """
        if n not in self._squares:
            require(n.bit_length() <= MAX_BITS, f"expected roots of numbers of at most {MAX_BITS} bits")
            k, r, rest = 1, 1, n
            for base in self.bases:
                while rest % (base * base) == 0:
                    k, rest = k * base, rest // (base * base)
                    self.charge()
                if rest % base == 0:
                    r, rest = r * base, rest // base
            self.charge(1 + len(self.bases) * n.bit_length() // 512)
            whole = isqrt(rest)
            self._squares[n] = (k * whole, r) if whole * whole == rest else (k, r * rest)
        return self._squares[n]

    # --- binders -----------------------------------------------------------------------------------------------

    def total(self, bound: Digits, poly: Poly) -> Poly:
        """Return the sum of a polynomial over digits, term by term; a lemma gives its normal form.

        Sound: a sum is linear, and over a digit that does not occur it multiplies by the extent.
        """
        parts: list[tuple[Poly, Coef]] = []
        for mono, coef in poly.items():
            used = bound & self.free_of(mono)
            for digit in bound - used:
                coef = coef * self.extents[digit]
            found = self.lemma("sum", (used, mono))
            plain: Poly = {((self.intern("sum", (used, mono)), 2),) if used else mono: 1} if found is None else found
            parts.append((plain, coef))
        return self.combined(parts)

    def maximum(self, bound: Digits, poly: Poly) -> Poly:
        """Return the maximum of a polynomial over digits; a digit that does not occur is dropped."""
        return self.running_maximum("pmax", (0, ()), -1, bound, poly)

    def _largest(self, polys: Iterable[Poly], bound: Digits, make: Callable[[Digits, Poly], Poly]) -> Poly:
        """Return the largest value of polynomials over digits; ``make`` names that of one, and lemmas take them apart.

        Sound: the largest of the largest of some is that of all, in any order, over all digits, and however often each
        is among them. A lemma gives the same value as a summand, a factor that is not negative and an increasing
        function of another largest value, the first two the same for all digits.
        """
        keys = frozenset(key for poly in polys for key in self.tops(poly))
        bound = bound & self.free_in(dict.fromkeys((mono for key in keys for mono, _ in key), 1))
        found = self.lemma("largest", (bound, keys))
        if found is not None:
            out, by, name, inner = found
            return self.add(out, self.mul(by, self.function(name, self._largest([inner], bound, make))))
        if len(keys) == 1:
            return make(bound, dict(*keys)) if bound else dict(*keys)
        if bound:
            return self.top(self._largest([dict(key)], bound, make) for key in keys)
        return {((self.intern("top", keys), 2),): 1}

    def alone(self, poly: Poly, kind: str) -> int:
        """Return the factor of this kind that a polynomial consists of, or -1."""
        f = next((f for mono in poly for f, _ in mono), -1)
        return f if poly == {((f, 2),): 1} and self.kinds[f] == kind else -1

    def tops(self, poly: Poly) -> frozenset[Key]:
        """Return the polynomials whose largest is a factor ``top``, or the polynomial itself."""
        f = self.alone(poly, "top")
        return frozenset({frozenset(poly.items())}) if f < 0 else self.payloads[f]

    def top(self, polys: Iterable[Poly]) -> Poly:
        """Return the maximum of some polynomials."""
        return self._largest(polys, NONE, lambda _, poly: poly)

    def members(self, poly: Poly) -> list[Poly]:
        """Return polynomials whose largest is this one.

        Sound: max(a, b) c + d = max(a c + d, b c + d) for c >= 0.
        """
        for mono, coef in poly.items():
            f = next((f for f, e in mono if self.kinds[f] == "top" and e == 2), -1)
            rest = tuple(item for item in mono if item[0] != f)
            if f >= 0 and coef > 0 and self._signed(rest):
                others = self.add(poly, {mono: coef}, -1)
                parts = (self.add(others, self.mul(dict(key), {rest: coef})) for key in self.payloads[f])
                return [one for part in parts for one in self.members(part)]
        return [poly]

    def covered(self, poly: Poly, others: Iterable[Poly]) -> bool:
        """Return whether a polynomial is at most one of these, or lies between two of them.

        Sound: then it is at most the largest of them. The difference to one has products that are not negative only, or
        is a negative multiple of the difference to another one.
        """
        aways = [self.add(other, poly, -1) for other in others]
        sizes = (abs(Fraction(away[min(away)] if away else 1)) for away in aways)
        ways = {frozenset(self.add({}, away, 1 / size).items()) for away, size in zip(aways, sizes, strict=True)}
        return any(self.evident(dict(way)) or frozenset((m, -c) for m, c in way) in ways for way in ways)

    def same_largest(self, left: Iterable[Poly], right: Iterable[Poly]) -> bool:
        """Return whether two sets of polynomials have the same largest value.

        Sound: what only one of the sets has is covered by others of both. Of those with the largest value, take the one
        that is the largest in some order in which more of any product is more, and which no two share; it is covered by
        no other one, for that would be as large and greater in the order. So it is in both sets.
        """
        a, b = ({frozenset(one.items()) for poly in side for one in self.members(poly)} for side in (left, right))
        every = {key: dict(key) for key in a | b}
        self.charge(len(a ^ b) * len(every))
        return all(self.covered(every[key], (p for other, p in every.items() if other != key)) for key in a ^ b)

    def exponential(self, poly: Poly) -> Poly:
        """Return the exponential of a polynomial.

        Sound: exp(a log |p| + q) = |p|^a exp(q), and p is not 0, for it has a logarithm.
        """
        out, rest = ONE, dict(poly)
        for mono, coef in poly.items():
            f, twice = self.alone({mono: 1}, "fn"), Fraction(2 * coef)
            if f >= 0 and self.payloads[f][0] == "log" and twice.denominator == 1 and abs(twice) <= MAX_EXPONENT:
                del rest[mono]
                out = self.mul(out, self.power(self.absolute(dict(self.payloads[f][1])), int(twice)))
        return self.mul(out, self.prod([(self.intern("exp", frozenset(rest.items())), 2)]))

    def running_maximum(self, kind: str, index: Index, u: int, bound: Digits, poly: Poly) -> Poly:
        """Return the pmax or carry of a polynomial, with its payload in the normal form of a lemma.

        Sound: a pmax lemma renames what is bound, so that the largest values are the same at every index, and a carry
        depends on them only. What is the same in every iteration is largest in the first; and as ``_largest`` says of
        the largest value up to each iteration.
        """

        def make(some: Digits, inner: Poly) -> Poly:
            alone = kind == "pmax" and u not in some
            key: tuple[Any, ...] = (*(() if alone else (index, u)), some - {u}, frozenset(inner.items()))
            found = self.lemma("max" if alone else "pmax", key)
            key = key if found is None else (*key[:-3], *self.payloads[found][-3:])
            return {((self.intern("max" if alone else kind, key), 2),): 1}

        return self._largest([poly], bound | {u}, make) if kind == "pmax" else make(bound & self.free_in(poly), poly)
