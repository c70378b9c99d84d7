"""Lemmas that nobody's prover wrote: random tables of factors, and random claims about them.

Most claims are near a true one: a sum with digits folded in the wrong order, a largest value of too few digits, an
opened sum whose fresh digits stand elsewhere already. What the kernel takes is evaluated.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, Final

import numpy as np

from mirage_formal.check.proof.laws import check_lemma
from mirage_formal.check.proof.parser import Reader
from mirage_formal.check.proof.ring import ProofError, Ring
from tests.attack.trial import Breach
from tests.kit.proofs.proof_judge import Values, at

#: Digits 0, 1 are most and least significant of 2, and so are 3, 4 of 5; 6 and 7 are others of the same extents.
EXTENTS: Final = (2, 3, 6, 2, 3, 6, 2, 3)
SHAPE: Final = (6, 6)
#: Numbers whose squares leave roots; not even without common divisors, which costs proofs and not truth.
BASES: Final = (2, 3, 6)
#: Functions of which the tables have factors.
FUNCTIONS: Final = ("relu", "erf", "log", "zero", "negative", "inv0", "round_float16", "round_bfloat16")
#: Increasing functions that lemmas on largest values name.
INCREASING: Final = {"": lambda value: value, "exp": math.exp, "erf": math.erf}
#: Values of the digits at which a lemma is evaluated.
POINTS: Final = 12

Raw = list[Any]


class Table:
    """A table of factors as a proof has it, grown at random; every entry is one that the kernel reads."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.raw: Raw = []
        self.reader = Reader(Ring(EXTENTS, BASES))
        for _ in range(rng.randint(2, 4)):
            self.add(self._input())
        for _ in range(rng.randint(1, 5)):
            self.add(self._random())

    @property
    def ring(self) -> Ring:
        """The kernel's reading of it."""
        return self.reader.ring

    def add(self, entry: Raw) -> int:
        """The number of an entry; -1 if the kernel refuses it."""
        if entry in self.raw:
            return self.raw.index(entry)
        try:
            self.reader.entry(json.loads(json.dumps(entry)), (SHAPE, SHAPE))
        except ProofError:
            return -1
        self.raw.append(entry)
        return len(self.raw) - 1

    def _index(self) -> Raw:
        place = self.rng.choice(([2], [5], [0, 1], [3, 4], [0, 7], [6, 1], [1], [0]))
        return [0, 1, place[0]] if len(place) == 1 else [0, 3, place[0], 1, place[1]]

    def _input(self) -> Raw:
        return ["in", self.rng.randrange(2), [self._index(), self._index()]]

    def _random(self) -> Raw:
        rng = self.rng
        match rng.choice(("in", "sum", "sum", "max", "exp", "pow", "pmax", "top", "fn", "fn", "keep", "surd")):
            case "sum":
                mono = self.monomial()
                return ["sum", self.some_of(self.free(mono)), mono]
            case "max":
                poly = self.polynomial()
                return ["max", self.some_of(self.free_in(poly)), poly]
            case "pmax":
                poly = self.polynomial()
                bound = self.some_of(self.free_in(poly)) or [0]
                return ["pmax", [0, 1, rng.randrange(8)], bound[0], bound[1:], poly]
            case "fn":
                return ["fn", rng.choice(FUNCTIONS), self.polynomial()]
            case "keep":
                return ["keep", self._mask(), self.polynomial()]
            case "top":
                return ["top", [self.polynomial(), self.polynomial()]]
            case "surd":
                return ["surd", rng.choice((2, 3, 6))]
            case "in":
                return self._input()
            case kind:
                return [kind, self.polynomial()]

    def _mask(self) -> Raw:
        """A comparison of something with 0, or its negation."""
        f = self.add(["fn", self.rng.choice(("negative", "zero")), self.polynomial()])
        return self.rng.choice(([[1, f, 2]], [[1], [-1, f, 2]])) if f >= 0 else self.polynomial()

    def monomial(self) -> Raw:
        """A random monomial; exponents that only divisors and roots have are rare."""
        rng = self.rng
        chosen = rng.sample(range(len(self.raw)), min(len(self.raw), rng.randint(1, 3)))
        return [x for f in chosen for x in (f, rng.choice((2, 2, 2, 2, 4, 1, -2)))]

    def polynomial(self) -> Raw:
        """A random polynomial of one to three monomials."""
        rng = self.rng
        found = {json.dumps(self.monomial()) for _ in range(rng.randint(1, 3))}
        return [[rng.choice((1, 1, 2, -1, "1/2")), *json.loads(text)] for text in sorted(found)]

    def free(self, mono: Raw) -> list[int]:
        """Free digits of a monomial."""
        return sorted(set().union(*(self.ring.free[f] for f in mono[::2])))

    def free_in(self, poly: Raw) -> list[int]:
        """Free digits of a polynomial."""
        return sorted(set().union(*(self.free(term[1:]) for term in poly)))

    def some_of(self, digits: list[int]) -> list[int]:
        """Some of the digits, in any order; rarely one that is not among them."""
        rng = self.rng
        chosen = rng.sample(digits, rng.randint(min(1, len(digits)), len(digits)))
        return [*chosen, rng.randrange(8)] if rng.random() < 0.05 else chosen

    # --- claims ------------------------------------------------------------------------------------------------

    def claim(self) -> Raw:
        """A random lemma."""
        match self.rng.choice(("sum", "sum", "max", "pmax", "content", "largest", "largest", "square")):
            case "sum":
                return self._sum()
            case "max":
                return self._max()
            case "pmax":
                return self._pmax()
            case "largest":
                return self._largest()
            case "square":
                return self._square()
        return self._content()

    def _result(self, entry: Raw) -> int:
        """The number of the factor that a claim is about; sometimes of another one of its kind."""
        alike = [f for f, raw in enumerate(self.raw) if raw[0] == entry[0]]
        return self.rng.choice(alike) if alike and self.rng.random() < 0.2 else self.add(entry)

    def _sum(self) -> Raw:
        rng, mono = self.rng, self.monomial()
        bound = self.some_of(self.free(mono))
        opens, whole = [], dict(zip(mono[::2], mono[1::2], strict=True))
        for f, e in list(whole.items()):
            if self.ring.kinds[f] == "sum" and e >= 2 and rng.random() < 0.7:
                opens.append([f, *rng.sample(range(8), len(self.reader.listed[f]))])
        if opens or rng.random() < 0.3:
            return ["sum", bound, mono, opens, None]
        chains, moved = self._moved(mono, bound)
        inner = self._result(["sum", [chain[0] for chain in chains], moved])
        return ["sum", bound, mono, opens, [[inner, chains]]]

    def _max(self) -> Raw:
        poly = self.polynomial()
        bound = self.some_of(self.free_in(poly))
        candidates = [f for f in range(len(self.raw)) if self.ring.kinds[f] in ("max", "pmax")]
        if candidates and self.rng.random() < 0.5:
            f = self.rng.choice(candidates)
            poly = [[1, f, 2]]
            bound = self.some_of(sorted(self.ring.free[f]))
            fresh = self.rng.sample(range(8), len(self.reader.listed[f]))
            inside = self.raw[f][-1]
            olds = list(self.reader.listed[f])
            body = self._renamed(inside, dict(zip(olds, fresh, strict=True)))
            digits = [*bound, *fresh] if self.rng.random() < 0.5 else fresh
            chains = [[d, d] for d in digits]
            return ["max", bound, poly, [[f, *fresh]], self._result(["max", digits, body]), chains]
        chains, moved = self._moved_poly(poly, bound)
        return ["max", bound, poly, [], self._result(["max", [c[0] for c in chains], moved]), chains]

    def _pmax(self) -> Raw:
        poly = self.polynomial()
        bound = self.some_of(self.free_in(poly)) or [0]
        u, rest = bound[0], bound[1:]
        index = [0, 1, self.rng.randrange(8)]
        chains, moved = self._moved_poly(poly, bound)
        own = next((c[0] for c in chains if u in c[1:]), u)
        factor = self._result(["pmax", index, own, [c[0] for c in chains if c[0] != own], moved])
        return ["pmax", index, u, rest, poly, factor, chains]

    def _content(self) -> Raw:
        rng, rest = self.rng, self.polynomial()
        power = rng.choice((-2, 1, -1, -4, 0, 0))
        mono, q = self.monomial(), rng.choice((1, 2, -1, "1/2"))
        exps = [f for f, raw in enumerate(self.raw) if raw[0] == "exp"]
        if power == 0 and exps and rng.random() < 0.7:
            mono = [rng.choice(exps), rng.choice((2, 2, -2, 1))]
        scale: float = {"1/2": 0.5}[q] if isinstance(q, str) else q
        whole: Raw = []
        for coefficient, *inner in rest:
            value: Any = {"1/2": 0.5}.get(coefficient, coefficient) if isinstance(coefficient, str) else coefficient
            product = value * scale
            merged = dict(zip(inner[::2], inner[1::2], strict=True))
            for f, e in zip(mono[::2], mono[1::2], strict=True):
                merged[f] = merged.get(f, 0) + e
            number: Any = int(product) if product == int(product) else f"{int(product * 4)}/4"
            number = {"2/4": "1/2", "-2/4": "-1/2"}.get(number, number)
            whole.append([number, *(x for f, e in merged.items() if e for x in (f, e))])
        if rng.random() < 0.2:  # a product of something else
            mono, q, rest = rng.choice(((self.monomial(), q, rest), (mono, 3, rest), (mono, q, self.polynomial())))
        return ["content", whole, power, mono, q, rest]

    def _square(self) -> Raw:
        """One product or the sum of two as a root of a square, in which a coefficient or a root may be wrong."""
        rng, (m, n) = self.rng, (self.monomial(), self.monomial())
        other = [rng.choice((2, 2, 2, 1)), *_product(m, n)]
        whole = [[1, *_product(m, m)], [1, *_product(n, n)], other] if rng.random() < 0.7 else [[1, *_product(m, m)]]
        return ["square", whole, [[1, *m], [1, *n]] if len(whole) > 1 else [[1, *m]]]

    def _largest(self) -> Raw:
        """Values that a summand, a factor and an increasing function give, with more or fewer, and some digits."""
        rng, name, some = self.rng, self.rng.choice(("", "", "exp", "erf")), [self.polynomial() for _ in range(2)]
        tops = [f for f, raw in enumerate(self.raw) if raw[0] == "top"]
        if rng.random() < 0.4:
            some = [self.raw[rng.choice(tops)][1][0] if tops else self.polynomial()]
        elif rng.random() < 0.4:  # an absolute value
            some = [some[0], [[negated(q), *mono] for q, *mono in some[0]]]
        top = self.add(["top", some]) if len(some) > 1 else -1
        inner = [[1, top, 2]] if top >= 0 else some[0]
        exps = [f for f, raw in enumerate(self.raw) if raw[0] == "exp"]
        by = [rng.choice((1, 1, 2, "1/2", -1)), *(rng.choice(([], [rng.choice(exps), 2])) if exps else [])]
        by = [1, *self.monomial()] if rng.random() < 0.2 else by
        out = rng.choice(([], [], self.polynomial()))
        if name:
            kind = ["exp"] if name == "exp" else ["fn", name]
            made = [self.add([*kind, poly]) for poly in (some if top >= 0 else [inner])]
            values = [[[1, f, 2]] for f in made if f >= 0]
        else:
            values = some if top >= 0 else [inner]
        polys = [self._sum_of([*out, *self._times(value, by)]) for value in values]
        if polys and rng.random() < 0.3:
            more = rng.choice(
                (self.polynomial(), [*polys[0], [-1, *self.monomial()]], [*polys[0], [1, *self.monomial()]])
            )
            polys = rng.choice(([*polys, self._sum_of(more)], polys[1:] or polys, [self._sum_of(more)]))
        bound = self.some_of(self.free_in(inner)) if rng.random() < 0.6 and len(polys) == 1 else []
        return ["largest", bound, polys, out, [by], name, inner]

    def _times(self, poly: Raw, by: Raw) -> Raw:
        out = []
        for q, *mono in poly:
            merged = dict(zip(mono[::2], mono[1::2], strict=True))
            for f, e in zip(by[1::2], by[2::2], strict=True):
                merged[f] = merged.get(f, 0) + e
            out.append([str(Fraction(q) * Fraction(by[0])), *(x for f, e in merged.items() if e for x in (f, e))])
        return out

    def _sum_of(self, poly: Raw) -> Raw:
        found: dict[tuple[int, ...], Fraction] = {}
        for q, *mono in poly:
            key = tuple(x for pair in sorted(zip(mono[::2], mono[1::2], strict=True)) for x in pair)
            found[key] = found.get(key, Fraction(0)) + Fraction(q)
        return [[int(q) if q.denominator == 1 else str(q), *key] for key, q in found.items() if q]

    def _moved(self, mono: Raw, bound: list[int]) -> tuple[Raw, Raw]:
        poly = [[1, *mono]]
        chains, moved = self._moved_poly(poly, bound)
        return chains, moved[0][1:] if moved else []

    def _moved_poly(self, poly: Raw, bound: list[int]) -> tuple[Raw, Raw]:
        """Chains of the bound digits, some of which fold or rename, and what that makes of a polynomial."""
        rng, left, chains = self.rng, list(bound), []
        for hi, lo, whole in ((0, 1, 2), (3, 4, 5), (0, 7, 5), (6, 1, 2)):
            if hi in left and lo in left and rng.random() < 0.7:
                chain = [hi, lo] if rng.random() < 0.9 else [lo, hi]
                chains.append([whole, *chain])
                left = [d for d in left if d not in (hi, lo)]
        for d in left:
            alike = [n for n, extent in enumerate(EXTENTS) if extent == EXTENTS[d]]
            chains.append([rng.choice(alike) if rng.random() < 0.3 else d, d])
        return chains, self._folded(poly, chains)

    def _folded(self, poly: Raw, chains: Raw) -> Raw:
        names = {c[1]: c[0] for c in chains if len(c) == 2}
        pairs = {(c[1], c[2]): c[0] for c in chains if len(c) == 3}
        return self._renamed(poly, names, pairs)

    def _renamed(self, poly: Raw, names: dict[int, int], pairs: dict[tuple[int, int], int] | None = None) -> Raw:
        return [[term[0], *self._renamed_mono(term[1:], names, pairs or {})] for term in poly]

    def _renamed_mono(self, mono: Raw, names: dict[int, int], pairs: dict[tuple[int, int], int]) -> Raw:
        out: Raw = []
        for f, e in zip(mono[::2], mono[1::2], strict=True):
            out += [self._renamed_factor(f, names, pairs), e]
        return out

    def _renamed_factor(self, f: int, names: dict[int, int], pairs: dict[tuple[int, int], int]) -> int:
        raw = self.raw[f]
        match raw:
            case ["in", source, indices]:
                new: Raw = ["in", source, [_index(index, names, pairs) for index in indices]]
            case ["exp" | "pow" as kind, poly]:
                new = [kind, self._renamed(poly, names, pairs)]
            case ["top", polys]:
                new = ["top", [self._renamed(poly, names, pairs) for poly in polys]]
            case ["fn", name, poly]:
                new = ["fn", name, self._renamed(poly, names, pairs)]
            case ["keep", mask, poly]:
                new = ["keep", self._renamed(mask, names, pairs), self._renamed(poly, names, pairs)]
            case ["sum", bound, mono]:
                inner = {a: b for a, b in names.items() if a not in bound}
                new = ["sum", bound, self._renamed_mono(mono, inner, pairs)]
            case ["max", bound, poly]:
                inner = {a: b for a, b in names.items() if a not in bound}
                new = ["max", bound, self._renamed(poly, inner, pairs)]
            case _:
                return f
        made = self.add(new)
        return f if made < 0 else made


def negated(q: Any) -> Any:
    """The number of a polynomial with the other sign."""
    found = -Fraction(q)
    return int(found) if found.denominator == 1 else str(found)


def _index(index: Raw, names: dict[int, int], pairs: dict[tuple[int, int], int]) -> Raw:
    if len(index) == 5 and (index[2], index[4]) in pairs:
        return [index[0], 1, pairs[index[2], index[4]]]
    return [x if n % 2 or not n else names.get(x, x) for n, x in enumerate(index)]


def from_nothing(rng: random.Random, number: int = 0) -> str:
    """A random table, a few random claims about it; what the kernel takes must be true."""
    table = Table(rng)
    if not table.raw:
        return "no table"
    kinds = []
    for number in range(rng.randint(1, 4)):
        raw = table.claim()
        try:
            check_lemma(table.reader, number, json.loads(json.dumps(raw)))
        except ProofError:
            continue
        kinds.append(raw[0])
    if not kinds:
        return "refused"
    seed = rng.randrange(1 << 30)
    arrays = [np.random.default_rng(seed + i).uniform(0.3, 1.4, SHAPE) for i in range(2)]
    arrays[1] *= np.random.default_rng(seed).choice([-1, 0, 1], SHAPE, p=[0.45, 0.1, 0.45])
    for label, good in evaluated(table.ring, arrays, rng):
        if not good:
            raise Breach(f"a lemma of {label} over {table.raw}")
    return f"accepted, true: {kinds[0]}"


def evaluated(ring: Ring, arrays: list[Any], rng: random.Random) -> Iterator[tuple[str, bool]]:
    """For each lemma that the kernel took: whether both of its sides have the same values."""
    values = _Real(ring, arrays)
    for (bound, mono), (_, poly) in ring.lemmas["sum"].items():
        for env in environments(ring, ring.free_of(mono) - bound, rng):
            with _undefined():
                left = sum(values.poly({mono: 1}, inner) for inner in values.over(bound, env))
                yield "sums", near(left, values.poly(poly, env))
    for (bound, key), (_, factor) in ring.lemmas["max"].items():
        for env in environments(ring, ring.free_in(dict(key)) - bound, rng):
            with _undefined():
                left = max(values.poly(dict(key), inner).real for inner in values.over(bound, env))
                yield "largest values", near(left, values.factor(factor, env))
    for (index, u, bound, key), (_, factor) in ring.lemmas["pmax"].items():
        free = ring.free_in(dict(key)) - bound - {u} | {d for d, _ in index[1]}
        for env in environments(ring, free, rng):
            with _undefined():
                left = values.prefix((index, u, bound, key), env, at(index, env))
                yield "running maxima", near(left, values.factor(factor, env))
    for (bound, keys), (_, (out, by, name, inner)) in ring.lemmas["largest"].items():
        every = [*keys, *(frozenset(poly.items()) for poly in (out, by, inner))]
        for env in environments(ring, frozenset().union(*(ring.free_in(dict(key)) for key in every)) - bound, rng):
            with _undefined():
                left = max(values.poly(dict(key), one).real for key in keys for one in values.over(bound, env))
                try:
                    most = max(values.poly(inner, one).real for one in values.over(bound, env))
                    right = values.poly(out, env) + values.poly(by, env) * INCREASING[name](most)
                except ZeroDivisionError:
                    yield "largest values, without one", False
                    continue
                yield "largest values of several", near(left, right)
    yield from _squares(ring, values, rng)
    for (key, power), (_, (mono, q, rest)) in ring.lemmas["content"].items():
        for env in environments(ring, ring.free_in(dict(key)), rng):
            with _undefined():
                left, right = values.poly(dict(key), env), values.poly({mono: q}, env) * values.poly(rest, env)
                if power % 2 and left.real < 0:
                    continue  # its root is none of a real number: a condition excludes it
                # What comes out of something that may be 0 must not be 0 itself; float64 may have lost an exponential.
                never = all(ring.kinds[f] == "exp" or values.factor(f, env) != 0 for f, _ in mono)
                yield "contents", near(left, right) and (power != 0 or never)


def _squares(ring: Ring, values: Values, rng: random.Random) -> Iterator[tuple[str, bool]]:
    for key, (_, root) in ring.lemmas["square"].items():
        for env in environments(ring, ring.free_in(dict(key)), rng):
            with _undefined():
                left, right = values.poly(dict(key), env), values.poly(root, env)
                yield "squares", near(left, right * right) and abs(right.imag) < 1e-6 * (1 + abs(right))


def _product(m: Raw, n: Raw) -> Raw:
    """The product of two products, as factors with half exponents in turn."""
    merged = dict(zip(m[::2], m[1::2], strict=True))
    for f, e in zip(n[::2], n[1::2], strict=True):
        merged[f] = merged.get(f, 0) + e
    return [x for f, e in merged.items() if e for x in (f, e)]


class _Real(Values):
    """Values over the reals: the root of a negative number is none."""

    def poly(self, poly: Any, env: dict[int, int]) -> complex:
        """The value of a polynomial.

        Raises:
            ZeroDivisionError: It has none.
        """
        for f, e in (item for mono in poly for item in mono):
            value = self.factor(f, env)
            if e % 2 and (abs(value.imag) > 1e-9 or value.real < 0):
                raise ZeroDivisionError
        return complex(super().poly(poly, env))


class _undefined:
    """A division by 0, an overflow or the root of a negative number: the lemma claims nothing there."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, where: object) -> bool:
        return isinstance(error, ZeroDivisionError | OverflowError)


def environments(ring: Ring, free: Any, rng: random.Random) -> Iterator[dict[int, int]]:
    """Values of the free digits, at random."""
    digits = sorted(free)
    every = iter(lambda: {d: rng.randrange(ring.extents[d]) for d in digits}, None)
    return islice(every, POINTS if digits else 1)


def near(a: complex, b: complex) -> bool:
    """Whether two values agree as well as their size allows; what has no value is not told apart."""
    if not (np.isfinite(a) and np.isfinite(b)):
        return True
    return bool(abs(a - b) <= 1e-7 * (1 + abs(a) + abs(b)))


__all__ = ["evaluated", "from_nothing"]
