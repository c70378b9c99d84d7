"""Exact terms: interned factors, monomials and polynomials of tensor elements, with field, root and exponential laws.

An element of a tensor is a polynomial over factors (docs/proof.md lists them); a factor depends on its free digits.
Exponents are kept doubled, so that a square root is the exponent 1. Everything is interned by integers, so that
equality of normal forms is equality of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from fractions import Fraction
from math import gcd, lcm
from typing import Any, Final

from msgspec import Struct

from mirage_formal.prove.equality.radicals import SquareRoots

#: Rounds of clearing denominators; each may uncover those inside a denominator.
_ROUNDS: Final = 12

#: A rational; integers stay ints, which compare and hash like the fractions that they are.
Rational = int | Fraction
#: (factor, doubled exponent) pairs, sorted.
Monomial = tuple[tuple[int, int], ...]
#: (monomial, coefficient) pairs, sorted, no zero coefficient; the empty tuple is 0.
Polynomial = tuple[tuple[Monomial, Rational], ...]
#: offset and (stride, digit) pairs, largest stride first.
Index = tuple[int, tuple[tuple[int, int], ...]]

ONE: Final[Monomial] = ()
#: More monomials than this are not multiplied out.
MAX_TERMS: Final = 20_000
#: Products, replacements and comparisons of monomials in one attempt: some seconds. What the checker does is bounded
#: apart from that (``proof.replay_work``).
MAX_WORK: Final = 600_000
#: Limits of the checker's kernel: bits of a coefficient, half exponents, and nesting of factors.
MAX_BITS: Final = 13_000
MAX_EXPONENT: Final = 64
MAX_DEPTH: Final = 60
#: Most values in a maximum, and most in one that is searched for values between two others.
MAX_MEMBERS: Final = 256
MAX_EXTREMES: Final = 24
#: Most terms of a polynomial whose root is looked for.
MAX_SQUARE_TERMS: Final = 55
#: Functions that do not decrease, and have no other law that a maximum needs.
INCREASING: Final = ("erf", "round_float16", "round_bfloat16")
#: All increasing functions that may leave a maximum, in the order in which they are tried.
LEAVING: Final = ("exp", *INCREASING, "sigmoid", "sqrt", "log")


class ProofIncomplete(Exception):
    """The procedure cannot go on; the answer is Unknown for this reason."""


class UnnestedDigits(ProofIncomplete):
    """Reason: the digits of an index do not nest with what an operator regroups them to."""


class ManyMembers(Exception):
    """Error: a maximum is one of too many values for its normal form."""


class LargestParts(Struct, frozen=True):
    """A largest value as summand + factor * f(largest value of ``inner``), for the increasing function of this name."""

    summand: Polynomial
    factor: Polynomial = ()
    name: str = ""
    inner: Polynomial = ()


class FactorKind(IntEnum):
    """Kinds of factors; payloads are given with each.

    INPUT: (input, indices). SUM: (digits, monomial). MAX: (digits, polynomial). PMAX and CARRY: (index, u, digits,
    polynomial). EXP, POW: polynomial. TOP: polynomials. SURD: integer in the form of radicals.py. FN: (name,
    polynomial). KEEP: mask and value, polynomials; the value where the mask is 1, and 0 elsewhere.
    """

    INPUT = 0
    SUM = 1
    MAX = 2
    PMAX = 3
    CARRY = 4
    EXP = 5
    POW = 6
    SURD = 7
    FN = 8
    TOP = 9
    KEEP = 10


_WORD: Final = 1 << 63
_RING: Final = frozenset({FactorKind.EXP, FactorKind.POW, FactorKind.SURD, FactorKind.TOP, FactorKind.FN})
#: Functions whose values are 0 and 1.
MASKS: Final = ("zero", "negative")
#: Functions with f(f(x)) = f(x), and those with f(-x) = -f(x).
ROUNDINGS: Final = ("round_float16", "round_bfloat16")
ODD: Final = ("erf", *ROUNDINGS)


def make_index(offset: int, entries: Iterable[tuple[int, int]]) -> Index:
    """Return the index of an offset and (stride, digit) pairs, which are sorted by falling stride."""
    return offset, tuple(sorted(entries, reverse=True))


def freeze(terms: Mapping[Monomial, Rational]) -> Polynomial:
    """Return a polynomial from a mutable sum."""
    return tuple(sorted((m, _normalise_rational(c)) for m, c in terms.items() if c))


def _normalise_rational(c: Rational) -> Rational:
    if type(c) is int and -_WORD < c < _WORD:
        return c
    bits = c.numerator.bit_length() + c.denominator.bit_length()
    if bits > MAX_BITS:
        raise ProofIncomplete(f"a coefficient has more than {MAX_BITS} bits")
    return c.numerator if c.denominator == 1 else c


def constant(value: Rational) -> Polynomial:
    """Return a rational constant as a polynomial; 0 is the one without monomials."""
    return ((ONE, _normalise_rational(value)),) if value else ()


def add(p: Polynomial, q: Polynomial, times: Rational = 1) -> Polynomial:
    """Return p + times * q."""
    out = dict(p)
    for m, c in q:
        out[m] = out.get(m, 0) + times * c
    return freeze(out)


def scale_polynomial(p: Polynomial, factor: Rational) -> Polynomial:
    """Return p * factor."""
    return tuple((m, _normalise_rational(c * factor)) for m, c in p) if factor else ()


def factor_power(factor: int, e2: int = 2) -> Polynomial:
    """Return factor ^ (e2 / 2) as a polynomial: monomials count exponents in halves."""
    return ((((factor, e2),), 1),)


def direction(p: Polynomial) -> Polynomial:
    """Return the positive multiple of a polynomial whose first coefficient is 1 or -1."""
    return scale_polynomial(p, abs(1 / Fraction(p[0][1])))


def content(p: Polynomial) -> Fraction:
    """Return the content: dividing by it makes the coefficients coprime integers, the first one positive."""
    q = Fraction(gcd(*(Fraction(c).numerator for _, c in p)), lcm(*(Fraction(c).denominator for _, c in p)))
    return -q if p[0][1] < 0 else q


class TermInterner:
    """An interner of factors, with the commutative-ring normaliser.

    Sound: factors are equal iff their numbers are; products and powers apply laws that hold for all reals on which
    the side conditions hold (divisors nonzero, radicands not negative), as docs/proof.md states them.
    """

    def __init__(self, radicals: SquareRoots | None = None) -> None:
        self.radicals = SquareRoots() if radicals is None else radicals
        self.kind: list[FactorKind] = []
        self.payload: list[Any] = []
        self.free: list[frozenset[int]] = []
        self.height: list[int] = []
        self._depth: list[int] = []
        self.extent: list[int] = []
        self._ids: dict[tuple[FactorKind, Any], int] = {}
        self._content: dict[tuple[Polynomial, int], tuple[Monomial, Fraction, Polynomial] | None] = {}
        self._names: dict[tuple[object, ...], int] = {}
        self._work = 0
        #: Inputs without a negative element, by a side condition of one of the graphs.
        self.signed: frozenset[int] = frozenset()
        #: Inputs whose elements are 0 and 1.
        self.masks: frozenset[int] = frozenset()
        #: Atoms that may have no value for some inputs.
        self.undefined: set[int] = set()
        self._forms: dict[int, tuple[Any, ...]] = {}
        self._inner_needs: dict[int, tuple[frozenset[int], frozenset[Polynomial]]] = {}
        #: Polynomials of which a root was made, by no lemma on squares.
        self.no_squares: set[Polynomial] = set()
        #: Squares divided by their content, with it and with a root.
        self.registered: dict[Polynomial, tuple[Fraction, Polynomial]] = {}
        #: Roots of polynomials that are squares; None for others.
        self.squares: dict[Polynomial, Polynomial | None] = {}
        self._taken: dict[tuple[frozenset[int], tuple[Polynomial, ...]], LargestParts | None] = {}
        #: Numbers of signatures (see canonical_reductions.py).
        self.signatures: dict[object, int] = {}

    def charge(self, work: int) -> None:
        """Count work, so that a hard pair is Unknown soon.

        Raises:
            ProofIncomplete: The budget is used up.
        """
        self._work += work
        if self._work > MAX_WORK:
            raise ProofIncomplete(f"more than {MAX_WORK} products and comparisons of terms")

    # --- digits ------------------------------------------------------------------------------------------------

    def fresh(self, extent: int) -> int:
        """Return the number of a new digit with values 0..extent - 1."""
        self.extent.append(extent)
        return len(self.extent) - 1

    def named(self, extent: int, *name: object) -> int:
        """Return the digit of this name and extent."""
        key = (extent, *name)
        digit = self._names.get(key)
        if digit is None:
            digit = self._names[key] = self.fresh(extent)
        return digit

    def free_of(self, p: Polynomial) -> frozenset[int]:
        """Return the digits that a polynomial depends on."""
        return frozenset().union(*(self.free[f] for m, _ in p for f, _ in m))

    def free_in(self, m: Monomial) -> frozenset[int]:
        """Return the digits that a monomial depends on."""
        return frozenset().union(*(self.free[f] for f, _ in m))

    def height_of(self, p: Polynomial) -> int:
        """Return the deepest nesting of binders."""
        return max((self.height[f] for m, _ in p for f, _ in m), default=0)

    # --- factors -----------------------------------------------------------------------------------------------

    def factor(self, kind: FactorKind, payload: Any) -> int:
        """Return the number of a factor."""
        key = (kind, payload)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self.kind)
            free, height = self._facts(kind, payload)
            depth = 1 + max((self._depth[f] for m in self.inside(kind, payload) for f, _ in m), default=0)
            if depth > MAX_DEPTH:
                del self._ids[key]
                raise ProofIncomplete(f"terms are nested more than {MAX_DEPTH} deep")
            self._depth.append(depth)
            self.kind.append(kind)
            self.payload.append(payload)
            self.free.append(free)
            self.height.append(height)
        return number

    def inside(self, kind: FactorKind, payload: Any) -> Iterable[Monomial]:
        """Return the monomials of all polynomials that a factor is a function of; none for inputs and surds."""
        match kind:
            case FactorKind.SUM:
                return (payload[1],)
            case FactorKind.MAX | FactorKind.FN:
                return (m for m, _ in payload[1])
            case FactorKind.PMAX | FactorKind.CARRY:
                return (m for m, _ in payload[3])
            case FactorKind.EXP | FactorKind.POW:
                return (m for m, _ in payload)
            case FactorKind.TOP | FactorKind.KEEP:
                return (m for p in payload for m, _ in p)
            case FactorKind.INPUT | FactorKind.SURD:
                return ()

    def _facts(self, kind: FactorKind, payload: Any) -> tuple[frozenset[int], int]:
        match kind:
            case FactorKind.INPUT:
                return frozenset(d for _, entries in payload[1] for _, d in entries), 0
            case FactorKind.SUM:
                height = max(self.height[f] for f, _ in payload[1])
                return self.free_in(payload[1]) - frozenset(payload[0]), 1 + height
            case FactorKind.MAX:
                return self.free_of(payload[1]) - frozenset(payload[0]), 1 + self.height_of(payload[1])
            case FactorKind.PMAX | FactorKind.CARRY:
                index, u, digits, p = payload
                inner = self.free_of(p) - {u, *digits}
                return inner | {d for _, d in index[1]}, 1 + self.height_of(p)
            case FactorKind.EXP | FactorKind.POW:
                return self.free_of(payload), self.height_of(payload)
            case FactorKind.SURD:
                return frozenset(), 0
            case FactorKind.TOP | FactorKind.KEEP:
                return frozenset().union(*map(self.free_of, payload)), max(map(self.height_of, payload))
            case FactorKind.FN:
                return self.free_of(payload[1]), self.height_of(payload[1])

    def form_of(self, f: int) -> tuple[Any, ...]:
        """Return a key of a factor that does not depend on its digits, nor on what was interned before."""
        if f not in self._forms:
            kind, payload = self.kind[f], self.payload[f]
            named = kind in (FactorKind.INPUT, FactorKind.FN)
            name = payload[0] if named else payload if kind == FactorKind.SURD else ""
            self._forms[f] = (kind, str(name), sorted(map(self.product_form, self.inside(kind, payload))))
        return self._forms[f]

    def product_form(self, m: Monomial) -> list[Any]:
        """Return the key of a product."""
        return sorted((self.form_of(f), e) for f, e in m)

    def exp(self, p: Polynomial) -> Polynomial:
        """Return the exponential of a polynomial; that of a log |q| is |q|^a."""
        out, rest = constant(1), p
        for m, c in p:
            if self.leaves_exp(m, c):
                rest = add(rest, ((m, c),), -1)
                out = self.mul(out, self.power(self.absolute(self.payload[m[0][0]][1]), int(2 * c)))
        return self.mul(out, factor_power(self.factor(FactorKind.EXP, rest))) if rest else out

    def leaves_exp(self, m: Monomial, c: Rational) -> bool:
        """Return whether a term of an argument is a logarithm, times what makes its exponential a power."""
        twice = Fraction(2 * c)
        logarithm = len(m) == 1 and m[0][1] == 2 and self.is_fn(m[0][0], "log")
        return logarithm and twice.denominator == 1 and abs(twice) <= MAX_EXPONENT

    def root(self, value: Fraction) -> tuple[Fraction, int]:
        """Return (k, r) with sqrt(value) = k * sqrt(r) and r in normal form; ``value`` is positive."""
        n = value.numerator * value.denominator
        if n.bit_length() > MAX_BITS:
            raise ProofIncomplete(f"the root of a number of more than {MAX_BITS} bits")
        s, r = self.radicals.split(n)
        return Fraction(s, value.denominator), r

    # --- products ----------------------------------------------------------------------------------------------

    def mul(self, p: Polynomial, q: Polynomial) -> Polynomial:
        """Return p * q, multiplied out."""
        if len(p) * len(q) > MAX_TERMS:
            raise ProofIncomplete(f"a product has more than {MAX_TERMS} terms")
        self.charge(len(p) * len(q))
        out: dict[Monomial, Rational] = {}
        for m, c in p:
            for n, d in q:
                if not m or not n:
                    key = m or n
                    out[key] = out.get(key, 0) + c * d
                    continue
                for key, e in self._times(m, n):
                    out[key] = out.get(key, 0) + c * d * e
        return freeze(out)

    def times(self, p: Polynomial, m: Monomial) -> Polynomial:
        """Return p * m; exponents of equal factors are added before expansion, so that divisors in p cancel with m."""
        out: dict[Monomial, Rational] = {}
        self.charge(len(p))
        for n, c in p:
            for k, d in self._times(n, m):
                out[k] = out.get(k, 0) + c * d
            if len(out) > MAX_TERMS:
                raise ProofIncomplete(f"a product has more than {MAX_TERMS} terms")
        return freeze(out)

    def _times(self, a: Monomial, b: Monomial) -> Polynomial:
        items = dict(a)
        for f, e in b:
            items[f] = items.get(f, 0) + e
        return self.product(items)

    def product(self, items: dict[int, int]) -> Polynomial:
        """Return the product of factor^(e/2) over ``items`` in normal form; ``items`` is consumed."""
        special = [f for f in items if self.kind[f] in _RING or (self.masks and self.is_mask(f))]
        if items and (max(items.values()) > MAX_EXPONENT or min(items.values()) < -MAX_EXPONENT):
            raise ProofIncomplete(f"an exponent above {MAX_EXPONENT // 2}")
        coefficient: Rational = 1
        extra: list[Polynomial] = []
        if special:
            coefficient = self._special(items, special, extra)
        m = tuple(sorted((f, e) for f, e in items.items() if e))
        p: Polynomial = ((m, coefficient),) if coefficient else ()
        for q in extra:
            p = self.mul(p, q)
        return p

    def _special(self, items: dict[int, int], special: list[int], extra: list[Polynomial]) -> Rational:
        """Merge exponentials and surds of a product, and move powers of polynomials into ``extra``."""
        exps = [f for f in special if self.kind[f] == FactorKind.EXP]
        if len(exps) > 1 or (exps and items[exps[0]] != 2):
            argument: Polynomial = ()
            for f in exps:
                self.charge(len(argument) + len(self.payload[f]) >> 3)
                argument = add(argument, self.payload[f], Fraction(items.pop(f), 2))
            if argument:
                items[self.factor(FactorKind.EXP, argument)] = 2
        fns = [self.payload[f] for f in special if self.kind[f] == FactorKind.FN and items[f] > 0]
        if any(name == "zero" and ("inv0", p) in fns for name, p in fns):
            return 0
        coefficient: Rational = 1
        surds = [f for f in special if self.kind[f] == FactorKind.SURD]
        if len(surds) > 1 or (surds and items[surds[0]] != 1):
            value = Fraction(1)
            for f in surds:
                value *= Fraction(self.payload[f]) ** items.pop(f)
            coefficient, r = self.root(value)
            if r != 1:
                items[self.factor(FactorKind.SURD, r)] = 1
        for f in special:
            e = items.get(f, 0)
            if e > 0 and self.is_mask(f):
                items[f] = 2
            if self.kind[f] == FactorKind.TOP and e >= 4 and len(self.payload[f]) == 2:
                a, b = self.payload[f]
                items[f] = e - 4
                extra.append(add(self.mul(add(a, b), factor_power(f)), self.mul(a, b), -1))
            if self.kind[f] != FactorKind.POW or not e:
                continue
            base: Polynomial = self.payload[f]
            if (len(base) == 1 and e != 1) or (len(base) > 1 and e >= 2):
                del items[f]
                if e % 2:
                    items[f] = 1
                extra.append(self.power(base, e - e % 2))
        return coefficient

    def is_fn(self, f: int, *names: str) -> bool:
        """Return whether a factor is one of these functions of a polynomial."""
        return self.kind[f] == FactorKind.FN and self.payload[f][0] in names

    def is_mask(self, f: int) -> bool:
        """Return whether a factor is 0 or 1."""
        return self.is_fn(f, *MASKS) or (self.kind[f] == FactorKind.INPUT and self.payload[f][0] in self.masks)

    # --- powers ------------------------------------------------------------------------------------------------

    def nonnegative(self, f: int, e2: int) -> bool:
        """Return whether f^(e2/2) is known to be at least 0: a root, an even power, or a composition of such only."""
        kind = self.kind[f]
        if kind in (FactorKind.EXP, FactorKind.SURD) or e2 % 2 or e2 % 4 == 0:
            return True
        if kind == FactorKind.SUM:
            return all(self.nonnegative(g, x) for g, x in self.payload[f][1])
        if self.is_mask(f):
            return True
        if kind == FactorKind.MAX:
            return self.never_negative(self.payload[f][1])
        if kind == FactorKind.TOP:
            return self._covered((), self.payload[f])
        if kind == FactorKind.INPUT:
            return self.payload[f][0] in self.signed
        return kind == FactorKind.POW and self.never_negative(self.payload[f])

    def never_negative(self, p: Polynomial) -> bool:
        """Return whether each term of a polynomial is known to be at least 0."""
        return all(c > 0 and all(self.nonnegative(g, x) for g, x in m) for m, c in p)

    def positive(self, f: int) -> bool:
        """Return whether a factor is known to be above 0."""
        payload = self.payload[f]
        match self.kind[f]:
            case FactorKind.EXP | FactorKind.SURD:
                return True
            case FactorKind.SUM:
                return all(self.positive(g) for g, _ in payload[1])
            case FactorKind.POW:
                return self.always_positive(payload)
            case FactorKind.MAX:
                return self.always_positive(payload[1])
            case FactorKind.TOP:
                return any(map(self.always_positive, payload))
        return False

    def always_positive(self, p: Polynomial) -> bool:
        """Return whether a polynomial is known to be above 0, or is the largest of some, one of which is.

        That is if no term is negative, and one is above 0.
        """
        try:
            found = [q for q in self.members(p) if self.never_negative(q)]
        except ManyMembers as error:
            raise ProofIncomplete(f"a maximum of more than {MAX_MEMBERS} values") from error
        return any(all(self.positive(g) for g, _ in m) for q in found for m, _ in q)

    def never_zero(self, p: Polynomial) -> bool:
        """Return whether a polynomial is known to be above 0, or below."""
        return self.always_positive(p) or self.always_positive(scale_polynomial(p, -1))

    def needs(
        self, monomials: Iterable[Monomial], told: Callable[[Polynomial], Polynomial] = lambda p: p
    ) -> frozenset[int]:
        """Return divisors f, and radicands and atoms ~f, that may have no value or no root, at any depth.

        ``told`` gives a polynomial that equals another one where that matters.
        """
        every = self._partial(monomials)
        return every if self.signed else frozenset(n for n in every if not self._exists(n, told))

    def _exists(self, n: int, told: Callable[[Polynomial], Polynomial]) -> bool:
        value = told(factor_power(max(n, ~n)))
        return self.never_negative(value) if n < 0 else self.never_zero(value)

    def _partial(self, monomials: Iterable[Monomial]) -> frozenset[int]:
        out: set[int] = set()
        for f, e in (item for m in monomials for item in m):
            if e < 0:
                out.add(f)
            lost = self.kind[f] == FactorKind.INPUT and self.payload[f][0] in self.undefined
            if lost or (e % 2 and self.kind[f] != FactorKind.SURD):
                out.add(~f)
            if f not in self._inner_needs:
                self._inner_needs[f] = self._needs_inside(f)
            needed, logarithms = self._inner_needs[f]
            out |= needed
            for p in logarithms:
                self.power(p, -2)  # its lemmas are those of whoever asks
        return frozenset(out)

    def _needs_inside(self, f: int) -> tuple[frozenset[int], frozenset[Polynomial]]:
        """Return what a factor needs, and the arguments of the logarithms in it."""
        inner = set(self.inside(self.kind[f], self.payload[f]))
        own = {self.payload[f][1]} if self.is_fn(f, "log") else set()
        inner.update(m for p in own for m, _ in self.power(p, -2))
        needed = self._partial(inner)
        return needed, frozenset(own).union(*(self._inner_needs[g][1] for m in inner for g, _ in m))

    def power(self, p: Polynomial, e2: int) -> Polynomial:
        """Return p ^ (e2 / 2).

        Raises:
            ProofIncomplete: A division by 0, or the root of a negative constant.
        """
        if e2 == 0:
            return constant(1)
        if not p:
            if e2 < 0:
                raise ProofIncomplete("a divisor is 0 everywhere over the real numbers, so that no input has a value")
            return p
        root = self.registered_root(p) if e2 == 1 or (e2 < 0 and e2 % 2) else None
        if root is not None:
            return self.power(self.absolute(root), 2 * e2)
        if e2 >= 2:
            out = p
            for _ in range(e2 // 2 - 1):
                out = self.mul(out, p)
            return self.mul(out, self.power(p, 1)) if e2 % 2 else out
        content = self.content(p, e2) if len(p) > 1 else None
        if e2 % 2 and (len(p) == 1 or content is not None):
            self.no_squares.add(p)
        if len(p) == 1:
            return self._monomial_power(*p[0], e2)
        root = self.root_of_square(p) if content is None and e2 % 2 else None
        if root is not None:
            return self.power(self.absolute(root), 2 * e2)
        if content is None:
            self.no_squares |= {p} if e2 % 2 else set()
            return factor_power(self.factor(FactorKind.POW, p), e2)
        c, q, rest = content
        out = self.power(rest, e2)
        if c:
            out = self.mul(out, self._monomial_power(c, 1, e2))
        return self.mul(out, self._monomial_power(ONE, q, e2)) if q != 1 else out

    def _monomial_power(self, m: Monomial, c: Rational, e2: int) -> Polynomial:
        if e2 % 2 == 0:
            return scale_polynomial(self.product({f: x * (e2 // 2) for f, x in m}), Fraction(c) ** (e2 // 2))
        k, r = self.root(abs(Fraction(c)) ** e2)
        items: dict[int, int] = {self.factor(FactorKind.SURD, r): 1} if r != 1 else {}
        rest: list[tuple[int, int]] = []
        sizes: Polynomial = constant(1)
        for f, x in m:
            # sqrt(f^2) is |f|: only of a factor that is not negative, or with an even power left, is it a power of f.
            if x % 2 == 0 and (x % 8 == 0 or self.nonnegative(f, 2)):
                items[f] = items.get(f, 0) + x * e2 // 2
            elif x % 4 == 0 and c > 0:
                one = self.product({f: 2})
                size = self.largest_of((one, scale_polynomial(one, -1)))
                sizes = self.mul(sizes, self.power(size, x * e2 // 2))
            else:
                rest.append((f, x))
        if c < 0 and not rest:
            raise ProofIncomplete("the root of a number that is negative everywhere")
        if len(rest) == 1 and rest[0][1] == 2 and c > 0:
            items[rest[0][0]] = items.get(rest[0][0], 0) + e2
        elif rest:  # what is left of a negative number is its sign
            f = self.factor(FactorKind.POW, ((tuple(rest), 1 if c > 0 else -1),))
            items[f] = items.get(f, 0) + e2
        return scale_polynomial(self.mul(self.product(items), sizes), k)

    def absolute(self, p: Polynomial) -> Polynomial:
        """Return |p|, as the root of its square if that is one product."""
        square = self.mul(p, p) if len(p) == 1 else p
        if self.never_negative(p):
            return p
        return self.power(square, 1) if len(square) == 1 else self.largest_of((p, scale_polynomial(p, -1)))

    def register_square(self, p: Polynomial) -> None:
        """Make p the root of its square in later roots, of its multiples too, unless their form shows that already."""
        square = self.mul(p, p)
        if square and (len(square) > 1 or any(self.kind[f] == FactorKind.TOP for f, _ in square[0][0])):
            q = abs(content(square))
            self.registered.setdefault(scale_polynomial(square, 1 / q), (q, p))

    def registered_root(self, p: Polynomial) -> Polynomial | None:
        """Return a root that is known from ``register_square``, with a lemma; None if there is none.

        A polynomial has one root: if that was made in another way before, it is again.
        """
        if p in self.no_squares:
            return None
        q = abs(content(p))
        for f in (f for m, _ in p[:1] for f, _ in m if self.kind[f] == FactorKind.TOP):
            square = self.mul(factor_power(f), factor_power(f))  # max(a, 0)^2 is a max(a, 0)
            rest = self.times(p, tuple((g, -e) for g, e in square[0][0])) if len(square) == len(p) == 1 else ()
            if len(rest) == 1 and all(e % 4 == 0 for _, e in rest[0][0]):
                half = ((tuple((g, e // 2) for g, e in rest[0][0]), 1),)
                found = Fraction(square[0][1]), self.mul(factor_power(f), half)
                self.registered[scale_polynomial(p, 1 / q)] = found
        scale, root = self.registered.get(scale_polynomial(p, 1 / q), (Fraction(1), None))
        if root is None or not self.needs(m for m, _ in root) <= self.needs(m for m, _ in p):
            return None
        k, r = self.root(q / scale)
        root = self.mul(root, scale_polynomial(self._monomial_power(ONE, r, 1), k))
        self.note_square(p, root)
        return root

    def root_of_square(self, p: Polynomial) -> Polynomial | None:
        """Return a polynomial whose square is p, with a lemma; None if none is found.

        Leading products in a lexicographic order determine it term by term, as in a division.
        """
        if p not in self.squares:
            try:
                self.squares[p] = self._find_root(p) if len(p) <= MAX_SQUARE_TERMS else None
            except ProofIncomplete:
                self.squares[p] = None
        found = self.squares[p]
        if found is not None:
            self.note_square(p, found)
        return found

    def note_square(self, p: Polynomial, root: Polynomial) -> None:
        """Record, in subclasses, that a polynomial is a square (the proof log needs a lemma)."""

    def _find_root(self, p: Polynomial) -> Polynomial | None:
        order = sorted({f for m, _ in p for f, _ in m})
        root: list[tuple[Monomial, Rational]] = []
        places: list[list[int]] = []
        while len(root) < len(p):
            rest = add(p, self.mul(freeze(dict(root)), freeze(dict(root))), -1)
            if not rest:
                return freeze(dict(root))
            m, c = max(rest, key=lambda item: [dict(item[0]).get(f, 0) for f in order])
            k, r = (Fraction(c), 1) if root else self.root(Fraction(max(c, 0)) or Fraction(2))
            first = root[0] if root else (tuple((f, e // 2) for f, e in m), 2)
            ((new, d),) = self._times(m, tuple((f, -e) for f, e in first[0])) or ((ONE, 0),)
            places.append([dict(new).get(f, 0) for f in order])
            odd = any(e % 2 and self.kind[f] != FactorKind.SURD for f, e in new)
            if r != 1 or odd or d != 1 or (places[1:] and places[-1] >= places[-2]):
                return None
            root.append((new, _normalise_rational(k / (2 * first[1]) if root else k)))
        return None

    # --- largest values ----------------------------------------------------------------------------------------

    def largest_of(self, polynomials: Iterable[Polynomial]) -> Polynomial:
        """Return the maximum of some polynomials in normal form."""
        return self.largest_over(polynomials, frozenset(), lambda _, p: p)

    def largest_over(
        self,
        polynomials: Iterable[Polynomial],
        bound: frozenset[int],
        make: Callable[[frozenset[int], Polynomial], Polynomial],
    ) -> Polynomial:
        """Return the largest value of polynomials over digits; ``make`` makes that of one with nothing to take out.

        Sound: the checker says why (``check.proof.ring``, ``_largest``), and checks what is taken out as a lemma.
        """
        found = {q for p in polynomials for q in self.tops(p)}
        bound = bound & frozenset().union(*map(self.free_of, found))
        some = tuple(sorted(found))
        parts = self._take_out(bound, some)
        if parts is not None:
            inner = self.increase(parts.name, self.largest_over([parts.inner], bound, make))
            return add(parts.summand, self.mul(parts.factor, inner))
        if len(some) == 1:
            return make(bound, some[0]) if bound else some[0]
        if bound:
            return self.largest_of([self.largest_over([p], bound, make) for p in some])
        return factor_power(self.factor(FactorKind.TOP, some))

    def tops(self, p: Polynomial) -> tuple[Polynomial, ...]:
        """Return the polynomials whose largest is a factor ``TOP``, or the polynomial itself."""
        f = p[0][0][0][0] if len(p) == 1 and p[0][0] else None
        alone = f is not None and p == factor_power(f) and self.kind[f] == FactorKind.TOP
        return self.payload[f] if f is not None and alone else (p,)

    def _take_out(self, bound: frozenset[int], some: tuple[Polynomial, ...]) -> LargestParts | None:
        """Decompose the maximum of polynomials over digits and note the lemma; None if nothing can be taken out."""
        key = (bound, some)
        if key not in self._taken:
            self._taken[key] = self._find_parts(bound, some)
        parts = self._taken[key]
        if parts is not None:
            self.note_largest(bound, some, parts)
        return parts

    def _find_parts(self, bound: frozenset[int], some: tuple[Polynomial, ...]) -> LargestParts | None:
        try:
            found = self._parts_over(bound, some) if bound else self._parts_of(some)
            return found if found is not None and self._justified(some, found) else None
        except ManyMembers:
            return None

    def _justified(self, some: tuple[Polynomial, ...], parts: LargestParts) -> bool:
        """Return whether the checker can see that the parts have the same largest value."""
        inner = self.tops(parts.inner) if len(some) > 1 else (parts.inner,)
        made = [add(parts.summand, self.mul(parts.factor, self.increase(parts.name, q))) for q in inner]
        if parts.name in ("sqrt", "log") and not self._partial(m for p in made for m, _ in p) <= self._partial(
            m for p in some for m, _ in p
        ):
            return False
        left, right = ({q for p in side for q in self.members(p)} for side in (some, made))
        return all(self._covered(p, (left | right) - {p}) for p in left ^ right)

    def note_largest(self, bound: frozenset[int], some: tuple[Polynomial, ...], parts: LargestParts) -> None:
        """Record, in subclasses, that something was taken out of a largest value (the proof needs a lemma)."""

    def _parts_of(self, some: tuple[Polynomial, ...]) -> LargestParts | None:
        """Return the normal form of the maximum of some polynomials; None if they have it."""
        if len(some) == 1:
            return None
        found = self._extremes({q for p in some for q in self.members(p)})
        if len(found) == 1:
            return LargestParts(found.pop())
        tables = {p: dict(p) for p in found}
        low = freeze({m: min(t.get(m, 0) for t in tables.values()) for m in {m for p in found for m, _ in p}})
        q, outside, rests = self.positive_content([add(p, low, -1) for p in found])
        name, inner = self.increasing(rests)
        if not name and not low and q == 1 and not outside and set(some) == set(inner):
            return None
        top = factor_power(self.factor(FactorKind.TOP, tuple(sorted(inner))))
        return LargestParts(low, ((outside, q),), name, top)

    def _parts_over(self, bound: frozenset[int], some: tuple[Polynomial, ...]) -> LargestParts | None:
        """Decompose the maximum of one polynomial over digits; None for several, or if nothing can be taken out."""
        (p, *others) = some
        if others:
            return None
        members = self.members(p)
        if len(members) > 1:
            top = factor_power(self.factor(FactorKind.TOP, tuple(sorted(set(members)))))
            return None if top == p else LargestParts((), constant(1), "", top)
        out = tuple(t for t in p if bound.isdisjoint(self.free_in(t[0])))
        q, outside, rests = self.positive_content([add(p, out, -1)], bound)
        name, (inner,) = self.increasing(rests)
        return None if inner == p else LargestParts(out, ((outside, q),), name, inner)

    def _extremes(self, found: set[Polynomial]) -> set[Polynomial]:
        """Return the polynomials that are not at most another one, and of a few those that are not between two."""
        found = {p for p in found if not any(p != q and self.never_negative(add(q, p, -1)) for q in found)}
        return {p for p in found if not self._between(p, found)} if len(found) <= MAX_EXTREMES else found

    def vanishes(self, p: Polynomial) -> bool:
        """Return whether a polynomial is the difference of two equal sums of maxima, or 0."""
        below = tuple((m, -c) for m, c in p if c < 0 and any(self.kind[f] == FactorKind.TOP for f, _ in m))
        try:
            sides = [self._extremes(set(self.members(side))) for side in (add(p, below), below)]
        except ManyMembers:
            return False
        return not p or (bool(below) and sides[0] == sides[1])

    def _covered(self, p: Polynomial, others: Iterable[Polynomial]) -> bool:
        """Return whether a polynomial is at most one of these, or lies between two of them."""
        return any(p == q or self.never_negative(add(q, p, -1)) for q in others) or self._between(p, others)

    def _between(self, p: Polynomial, others: Iterable[Polynomial]) -> bool:
        """Return whether a polynomial lies between two others."""
        self.charge(1)
        aways = [direction(add(q, p, -1)) for q in others if q != p]
        return any(scale_polynomial(away, -1) in aways for away in aways)

    def members(self, p: Polynomial) -> list[Polynomial]:
        """Return polynomials whose maximum is p: sums of positive multiples of maxima are maxima of sums.

        Each round opens one product, and what comes of it has fewer or less deep maxima, so that the rounds end.

        Raises:
            ManyMembers: There are more than ``MAX_MEMBERS``.
        """
        out, closed = [p], 0
        while closed < len(out):
            opened = self._opened(out[closed])
            out[closed : closed + 1] = opened
            closed += len(opened) == 1
            if len(out) > MAX_MEMBERS:
                raise ManyMembers
        return out

    def _opened(self, p: Polynomial) -> list[Polynomial]:
        """Return the polynomials that one maximum in a polynomial opens it to; itself alone if there is none."""
        for m, c in p:
            f = next((f for f, e in m if self.kind[f] == FactorKind.TOP and e == 2), None)
            if f is not None and c > 0 and all(g == f or self.nonnegative(g, e) for g, e in m):
                rest, by = add(p, ((m, c),), -1), ((tuple(item for item in m if item[0] != f), c),)
                return [add(rest, self.mul(a, by)) for a in self.payload[f]]
        return [p]

    def positive_content(
        self, polynomials: list[Polynomial], bound: frozenset[int] = frozenset()
    ) -> tuple[Rational, Monomial, list[Polynomial]]:
        """Return (rational, monomial, rests): what is not negative and has no bound digit, out of some polynomials."""
        q = abs(content(tuple(t for p in polynomials for t in p)))
        shared = self._shared(m for p in polynomials for m, _ in p)
        argument = freeze(
            {k[0]: e for k, e in shared.items() if isinstance(k, tuple) and bound.isdisjoint(self.free_in(k[0]))}
        )
        common = {self.factor(FactorKind.EXP, argument): 2} if argument else {}
        for f in (f for f in shared if isinstance(f, int) and bound.isdisjoint(self.free[f])):
            found = [dict(m).get(f, 0) for p in polynomials for m, _ in p]
            e = min(found) if min(found) > 0 else min(max(found), 0)
            if e and (e % 4 == 0 or self.nonnegative(f, 2)):
                common[f] = e
        product = self.product(common)
        m = product[0][0] if len(product) == 1 else ONE
        rests = [scale_polynomial(self.times(p, tuple((f, -e) for f, e in m)), 1 / q) for p in polynomials]
        return _normalise_rational(q), m, rests

    def increasing(self, polynomials: Sequence[Polynomial]) -> tuple[str, list[Polynomial]]:
        """Return an increasing function and the arguments for which it gives these polynomials."""
        for name in LEAVING:
            arguments = [self._argument(name, p) for p in polynomials]
            found = [q for q in arguments if q is not None]
            if len(found) == len(polynomials) and any(p not in ((), constant(1)) for p in polynomials):
                return name, found
        return "", list(polynomials)

    def _argument(self, name: str, p: Polynomial) -> Polynomial | None:
        """Return the argument for which an increasing function gives a polynomial; None if it is not seen."""
        ((m, c),) = p if len(p) == 1 else ((ONE, 0),)
        f = m[0][0] if len(m) == 1 and m[0][1] == 2 else None
        if name == "log":
            logarithms = [t for t in p if len(t[0]) == 1 and t[0][0][1] == 2 and self.is_fn(t[0][0][0], "log")]
            found = self.exp(p) if (logarithms or not p) and all(t in logarithms or not t[0] for t in p) else ()
            return found if self.never_negative(found) and found and self.apply(name, found) == p else None
        if name == "sqrt":
            rooted = any(e % 2 and self.kind[g] != FactorKind.SURD for g, e in m)
            found = self.mul(p, p) if c > 0 and (rooted or not m) and all(self.nonnegative(g, e) for g, e in m) else ()
            return found if (found or not p) and self.power(found, 1) == p else None
        if name == "exp" and p == constant(1):
            return ()
        if name in ("exp", "sigmoid"):
            inside = next((self.payload[g] for g, e in m if self.kind[g] == FactorKind.EXP), None)
            good = c == 1 and (f is not None if name == "exp" else len(m) == 2)
            return inside if inside is not None and good and self.increase(name, inside) == p else None
        good = f is not None and self.is_fn(f, name) and (c == 1 or (c == -1 and name in ODD))
        return scale_polynomial(self.payload[f][1], c) if good and f is not None else None

    def increase(self, name: str, p: Polynomial) -> Polynomial:
        """Return a function in ``LEAVING`` of a polynomial; the polynomial for no name."""
        match name:
            case "":
                return p
            case "exp":
                return self.exp(p)
            case "sqrt":
                return self.power(p, 1)
            case "sigmoid":
                return self.power(add(constant(1), self.exp(scale_polynomial(p, -1))), -2)
        return self.apply(name, p)

    def apply(self, name: str, p: Polynomial) -> Polynomial:
        """Return a function of a polynomial."""
        raise NotImplementedError

    # --- content -----------------------------------------------------------------------------------------------

    def content(self, p: Polynomial, e2: int) -> tuple[Monomial, Fraction, Polynomial] | None:
        """Return (monomial, rational, rest) with product p that may leave p^(e2/2); None if there is none."""
        key = (p, e2)
        if key not in self._content:
            self._content[key] = self._find_content(p, e2)
        found = self._content[key]
        if found is not None:
            self.note_content(p, e2, found)
        return found

    def note_content(self, p: Polynomial, e2: int, found: tuple[Monomial, Fraction, Polynomial]) -> None:
        """Record, in subclasses, that a content was taken out (the proof log needs a lemma)."""

    def _find_content(self, p: Polynomial, e2: int) -> tuple[Monomial, Fraction, Polynomial] | None:
        q = content(p) if e2 % 2 == 0 else abs(content(p))
        common = self._common(p, even=e2 % 2 == 0)
        if not common and q == 1:
            return None
        if not common:
            return ONE, q, scale_polynomial(p, 1 / q)
        product = self.product(common)
        if len(product) != 1:
            return None if q == 1 else (ONE, q, scale_polynomial(p, 1 / q))
        m, c = product[0]
        assert c == 1
        rest = self.times(p, tuple((f, -e) for f, e in m))
        return m, q, scale_polynomial(rest, 1 / q)

    def _common(self, p: Polynomial, *, even: bool) -> dict[int, int]:
        """Return the factors with exponents that every monomial contains; exponentials term by term."""
        out: dict[int, int] = {}
        argument: dict[Monomial, Rational] = {}
        for key, low in self._shared(m for m, _ in p).items():
            if isinstance(key, tuple):
                argument[key[0]] = low
            elif low and (even or (low % 2 == 0 and self.nonnegative(key, int(low)))):
                out[key] = int(low)
        if any(argument.values()):
            out[self.factor(FactorKind.EXP, freeze(argument))] = 2
        return out

    def _shared(self, monomials: Iterable[Monomial]) -> dict[int | tuple[Monomial], Rational]:
        """Return the least exponents of factors, and the least coefficients of terms of exponentials, as 1-tuples."""
        shared: dict[int | tuple[Monomial], Rational] | None = None
        for m in monomials:
            mine: dict[int | tuple[Monomial], Rational] = {}
            for f, e in m:
                if self.kind[f] == FactorKind.EXP:
                    mine |= {(t,): c for t, c in self.payload[f]}
                elif self.kind[f] != FactorKind.SURD:
                    mine[f] = e
            old = mine if shared is None else shared
            shared = {key: min(old.get(key, 0), mine.get(key, 0)) for key in old.keys() | mine.keys()}
        return shared or {}


def multiplier(terms: TermInterner, p: Polynomial, q: Polynomial) -> Monomial | None:
    """Return a product m of divisors of p and q with (p - q) * m = 0, or None if none is found.

    Sound: the factors of m occur in denominators, so they are not zero where the programs are defined; then p = q.
    """
    whole = difference = add(p, q, -1)
    known = divisor_factors(terms, (*p, *q))
    total: dict[int, int] = {}
    for round_ in range(_ROUNDS):
        if not difference:
            found = tuple(sorted(total.items()))
            # A checker multiplies with all of them at once: as many terms as it has must be few enough.
            return found if round_ < 2 or not terms.times(whole, found) else None
        needed: dict[int, int] = {}
        for m, _ in difference:
            for f, e in m:
                if e < 0 and terms.kind[f] != FactorKind.EXP:
                    needed[f] = max(needed.get(f, 0), -e)
        if not needed and terms.vanishes(difference):
            found = tuple(sorted(total.items()))
            return found if round_ < 2 or terms.vanishes(terms.times(whole, found)) else None
        if not needed or not needed.keys() <= known:
            return None
        for f, e in needed.items():
            total[f] = total.get(f, 0) + e
        difference = terms.times(difference, tuple(sorted(needed.items())))
    return None


def divisor_factors(terms: TermInterner, p: Polynomial) -> set[int]:
    """Return the factors that occur with a negative exponent in a polynomial, at any depth."""
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
