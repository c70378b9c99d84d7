"""Substitution of digits in exact terms (renaming, splitting, slicing, merging), and the lemmas that it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import permutations
from typing import Any

from msgspec import Struct, structs

from mirage_formal.prove.equality.polynomials import (
    MASKS,
    ODD,
    ROUNDINGS,
    FactorKind,
    Index,
    LargestParts,
    Monomial,
    Polynomial,
    ProofIncomplete,
    Rational,
    TermInterner,
    add,
    constant,
    content,
    factor_power,
    freeze,
    make_index,
    scale_polynomial,
)
from mirage_formal.prove.equality.radicals import SquareRoots

#: A digit replaced by an affine combination of digits.
Affine = tuple[tuple[int, Index], ...]
#: New digits, each with the chain of adjacent digits that it replaces, most significant first.
Folds = tuple[tuple[int, tuple[int, ...]], ...]


class DigitSubstitution(Struct, frozen=True):
    """A substitution of digits: either each is replaced by an index, or chains of them are folded into one.

    Attributes:
        affine: Digits with the indices that replace them.
        folds: New digits with the chains that they replace.
        cases: Masks with the numbers that they are.
        guards: Whether that concerns the masks of selections only.
    """

    affine: Affine = ()
    folds: Folds = ()
    cases: tuple[tuple[int, int], ...] = ()
    guards: bool = False

    def within(self, free: frozenset[int]) -> DigitSubstitution | None:
        """Return the part of the substitution that concerns these digits; None if there is none."""
        if self.cases:
            return self
        if self.affine:
            kept = tuple(pair for pair in self.affine if pair[0] in free)
            return None if not kept else self if len(kept) == len(self.affine) else DigitSubstitution(affine=kept)
        folds = tuple(fold for fold in self.folds if not free.isdisjoint(fold[1]))
        return None if not folds else self if len(folds) == len(self.folds) else DigitSubstitution(folds=folds)


def make_renaming(pairs: Iterable[tuple[int, int]]) -> DigitSubstitution:
    """Return the substitution of digits by digits."""
    return DigitSubstitution(affine=tuple(sorted((a, (0, ((1, b),))) for a, b in pairs)))


class LawUse(Struct, frozen=True):
    """One use of a law.

    Attributes:
        body: Its JSON-like body over this interner's numbers.
        result: The resulting polynomial.
        uses: The lemmas that it uses.
    """

    body: tuple[Any, ...]
    result: Polynomial
    uses: frozenset[int]


class SubstitutionTerms(TermInterner, ABC):
    """An interner of terms whose digits can be substituted.

    Sound: a change goes through every index of a term; terms with binders are built again by the binder's own
    constructor from the changed body, whose bound digits are never among the new ones (each binder has names of its
    own height, and the new digits are free ones or names of a greater height).
    """

    def __init__(self, radicals: SquareRoots | None = None) -> None:
        super().__init__(radicals)
        self.lemmas: list[LawUse] = []
        self._scope: list[set[int]] = [set()]
        self._changed: dict[tuple[int, DigitSubstitution], tuple[Polynomial, frozenset[int]]] = {}
        self._contents: dict[tuple[Polynomial, int], int] = {}
        self._largest_lemmas: dict[tuple[frozenset[int], tuple[Polynomial, ...]], int] = {}
        self._case_masks_in: dict[int, frozenset[int]] = {}
        self._comparisons_in: dict[int, frozenset[frozenset[int]]] = {}
        self._reopens: dict[int, bool] = {}
        self._masks_in: dict[int, frozenset[int]] = {}
        self._square_lemmas: dict[Polynomial, frozenset[int]] = {}
        self._adjacent: dict[int, frozenset[tuple[int, int]]] = {}

    def apply(self, name: str, p: Polynomial) -> Polynomial:
        """Return a function of p, as a factor if no law says more; a factor ``log`` is the logarithm of |p|.

        Sound: log |a b| = log |a| + log |b|; and whether p is 0, or negative, is the same of a positive multiple.
        Roundings to nearest and erf are odd, and rounding twice is rounding once.
        """
        if name in ("inv0", "log"):
            return self._inverse(p) if name == "inv0" else self._logarithm(p)
        if name in MASKS:
            return self._comparison(name, p)
        if name not in ODD or not p:
            return self._opaque(name, p) if p else p
        _, q, _ = self._apart(p)  # its lemma tells the checker the sign
        sign = -1 if q < 0 else 1
        inner = scale_polynomial(p, sign)
        f = self.alone(inner, FactorKind.FN)
        same = name in ROUNDINGS and (inner == constant(1) or (f is not None and self.payload[f][0] == name))
        return scale_polynomial(inner if same else self._opaque(name, inner), sign)

    def _comparison(self, name: str, p: Polynomial) -> Polynomial:
        """Return whether a polynomial is zero, or negative, as 0 or 1, if no law says more as a factor.

        Sound: that is known of what is above 0, or not negative, and is the same of a product with what is above 0, if
        that has a value where the rest has one. A product with a mask is 0 where the mask is.
        """
        zero = name == "zero"
        known = self.never_zero(p) or not p or (not zero and self.never_negative(p))
        if known and not self.needs(m for m, _ in p):  # where p has no value, a comparison with it is false
            return constant(int(not (p if zero else self.never_negative(p) or self.always_positive(p))))
        mask, outside, q, rest = self._factored(p, noted=zero)
        if not self.needs((outside,)) <= self.needs(m for m, _ in rest):  # this may have no value where the rest has
            rest = self.mul(rest, ((outside, 1),))
        if mask != constant(1):
            inner = self.mul(mask, self._comparison(name, scale_polynomial(rest, 1 if q > 0 else -1)))
            return add(inner, add(constant(1), mask, -1)) if zero else inner
        return self._opaque(name, rest if q > 0 or zero else scale_polynomial(rest, -1))

    def _factored(self, p: Polynomial, *, noted: bool = True) -> tuple[Polynomial, Monomial, Rational, Polynomial]:
        """Factor a polynomial as (masks, positive factors, rational, rest); ``noted``: see ``_apart``."""
        outside, q, rest = self._apart(p, noted=noted)
        masks = {f: e for m, _ in rest for f, e in m if len(rest) == 1 and self.is_mask(f)}
        inner = tuple((tuple(item for item in m if item[0] not in masks), c) for m, c in rest) if masks else rest
        return self.product(masks), outside, q, inner

    def _apart(self, p: Polynomial, *, noted: bool = True) -> tuple[Monomial, Rational, Polynomial]:
        """Factor a polynomial as (positive factors, rational, rest).

        The proof notes factors of a sum as a lemma, but a factor of -1 alone only if ``noted``.

        Out of a sum come exponentials only. Each term of an argument comes out as often as it stands in all products,
        so that what is left is the same whatever exponential the polynomial is multiplied with.
        """
        if len(p) == 1:
            ((m, c),) = p
            outside = tuple((f, e) for f, e in m if self.always_positive(factor_power(f, e)))
            return outside, c, ((tuple(item for item in m if item not in outside), 1),)
        exponents = [dict(t for f, _ in m if self.kind[f] == FactorKind.EXP for t in self.payload[f]) for m, _ in p]
        terms = {t for mine in exponents for t in mine}
        argument = freeze({t: min(mine.get(t, 0) for mine in exponents) for t in terms})
        common: Monomial = ((self.factor(FactorKind.EXP, argument), 2),) if argument else ()
        rest = self.times(p, tuple((f, -e) for f, e in common))
        q = content(rest)
        rest = scale_polynomial(rest, 1 / q)
        if common or abs(q) != 1 or (noted and q != 1):
            self.note_content(p, 0, (common, q, rest))
        return common, q, rest

    def _opaque(self, name: str, p: Polynomial) -> Polynomial:
        return factor_power(self.factor(FactorKind.FN, (name, p)))

    def _logarithm(self, p: Polynomial) -> Polynomial:
        """Return log |p|, as a sum over the factors of its content."""
        if not p:
            raise ProofIncomplete("the logarithm of 0")
        if len(p) > 1:
            found = self.content(p, -2)
            if found is None:
                return self._opaque("log", p)
            m, q, rest = found
            return add(self._logarithm(((m, q),)), self._logarithm(rest))
        ((m, c),) = p
        out: Polynomial = ()
        for n, sign in ((abs(Fraction(c).numerator), 1), (Fraction(c).denominator, -1)):
            out = add(out, self._opaque("log", constant(n)), sign) if n > 1 else out
        for f, e in m:
            payload = self.payload[f]
            match self.kind[f]:
                case FactorKind.EXP:
                    part = payload
                case FactorKind.POW:
                    part = self._logarithm(payload)
                case FactorKind.SURD:
                    part = self._opaque("log", constant(payload))
                case _:
                    part = self._opaque("log", factor_power(f))
            out = add(out, part, Fraction(e, 2))
        return out

    def keep(self, mask: Polynomial, p: Polynomial) -> Polynomial:
        """Return what is p where the mask is 1, and 0 elsewhere.

        Sound: so is the sum of that of each term, and of a product with what has a value for all inputs.
        """
        if mask in ((), constant(1)):
            return p if mask else mask
        out: Polynomial = ()
        for m, c in p:
            inner = tuple(item for item in m if self.needs(((item,),)))
            outer = scale_polynomial(self.product({f: e for f, e in m if (f, e) not in inner}), c)
            out = add(out, self.mul(outer, self._keep_product(mask, inner)))
        return out

    def _keep_product(self, mask: Polynomial, inner: Monomial) -> Polynomial:
        """Return ``keep(mask, p)`` for a product p of factors that are undefined at some inputs, such as 1/x at x = 0.

        It is one opaque factor. If p is itself such a selection, the masks are multiplied.
        """
        if mask in ((), constant(1)) or not inner:
            return self.mul(mask, ((inner, 1),))
        f = self.alone(((inner, 1),), FactorKind.KEEP)
        if f is not None:
            return self.keep(self.mul(mask, self.payload[f][0]), self.payload[f][1])
        return factor_power(self.factor(FactorKind.KEEP, (mask, ((inner, 1),))))

    def _inverse(self, p: Polynomial) -> Polynomial:
        """Return 1 / p where p is not 0, and 0 where p is 0.

        Sound: of a product it is that of each part, of a mask the mask, and of what is not 0 the inverse.
        """
        if not p:
            return p
        mask, outside, q, rest = self._factored(p)
        out = scale_polynomial(self.product({f: -e for f, e in outside}), 1 / Fraction(q))
        last = self.power(rest, -2) if self.never_zero(rest) else self._opaque("inv0", rest)
        return self.mul(self.mul(out, mask), last)

    # --- lemmas ------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[set[int]]:
        """Collect the numbers of the lemmas that are used inside; they do not count outside."""
        used: set[int] = set()
        self._scope.append(used)
        try:
            yield used
        finally:
            self._scope.pop()

    def _use(self, lemmas: Iterable[int]) -> None:
        self._scope[-1].update(lemmas)

    def _lemma(self, body: tuple[Any, ...], result: Polynomial, uses: Iterable[int]) -> frozenset[int]:
        self.lemmas.append(LawUse(body, result, frozenset(uses)))
        return frozenset((len(self.lemmas) - 1,))

    def note_content(self, p: Polynomial, e2: int, found: tuple[Monomial, Fraction, Polynomial]) -> None:
        """Record a lemma, once for each case, that the content of a polynomial was taken out of a root."""
        number = self._contents.get((p, e2))
        if number is None:
            (number,) = self._lemma(("content", p, e2, *found), p, ())
            self._contents[p, e2] = number
        self._use((number,))

    def note_square(self, p: Polynomial, root: Polynomial) -> None:
        """Record a lemma, once for each polynomial, that it is a square."""
        if p not in self._square_lemmas:
            self._square_lemmas[p] = self._lemma(("square", p, root), p, ())
        self._use(self._square_lemmas[p])

    def _find_parts(self, bound: frozenset[int], some: tuple[Polynomial, ...]) -> LargestParts | None:
        with self.scope():
            return super()._find_parts(bound, some)

    def note_largest(self, bound: frozenset[int], some: tuple[Polynomial, ...], parts: LargestParts) -> None:
        """Record a lemma, once for each case, that something was taken out of a largest value."""
        number = self._largest_lemmas.get((bound, some))
        if number is None:
            with self.scope() as uses:
                for p in self.tops(parts.inner) if len(some) > 1 else (parts.inner,):
                    self.mul(parts.factor, self.increase(parts.name, p))
            (number,) = self._lemma(("largest", bound, some, parts), parts.summand, uses)
            self._largest_lemmas[bound, some] = number
        self._use((number,))

    # --- digits changed ----------------------------------------------------------------------------------------

    def change(self, p: Polynomial, change: DigitSubstitution) -> Polynomial:
        """Return a polynomial with digits replaced or folded, in normal form."""
        part = change.within(self.free_of(p)) if p else None
        if part is None:
            return p
        self.charge(len(p))
        out: dict[Monomial, Rational] = {}
        for m, c in p:
            for n, d in self._change_monomial(m, part):
                out[n] = out.get(n, 0) + c * d
        return freeze(out)

    def _change_monomial(self, m: Monomial, change: DigitSubstitution) -> Polynomial:
        items: dict[int, int] = {}
        others: list[Polynomial] = []
        for f, e in m:
            part = change.within(self.free[f])
            untold = part is not None and part.cases and self.case_masks_in(f).isdisjoint(dict(part.cases))
            if part is None or (untold and not self.reopens(f)):
                items[f] = items.get(f, 0) + e
                continue
            q = self._change_factor(f, part)
            if len(q) == 1 and q[0][1] == 1 and len(q[0][0]) == 1 and q[0][0][0][1] == 2:
                g = q[0][0][0][0]
                items[g] = items.get(g, 0) + e
            elif self.kind[f] == FactorKind.POW and q == self.payload[f]:
                items[f] = items.get(f, 0) + e
            else:
                others.append(self.power(q, e))
        out = self.product(items)
        for q in others:
            out = self.mul(out, q)
        return out

    def _change_factor(self, f: int, change: DigitSubstitution) -> Polynomial:
        """Return the image of factor^1 under a substitution."""
        key = (f, change)
        found = self._changed.get(key)
        if found is None:
            with self.scope() as used:
                result = self._change_new(f, change)
            found = self._changed[key] = result, frozenset(used)
        self._use(found[1])
        return found[0]

    def case_masks_in(self, f: int) -> frozenset[int]:
        """Return the masks that a factor contains, and those that say which of two values is the largest in it."""
        found = self._case_masks_in.get(f)
        if found is None:
            inner = (g for m in self.inside(self.kind[f], self.payload[f]) for g, _ in m)
            with self.scope():
                own = [g for g, _ in self._comparisons(f)]
            found = self._case_masks_in[f] = frozenset((f,)).union(own, *map(self.case_masks_in, inner))
        return found

    def reopens(self, f: int) -> bool:
        """Return whether a factor that is made again is another one, as the checker makes all where cases are told.

        A product adds the arguments of exponentials, and leaves a logarithm in the sum that ``exp`` takes out of it.
        """
        found = self._reopens.get(f)
        if found is None:
            own = self.kind[f] == FactorKind.EXP and any(self.leaves_exp(m, c) for m, c in self.payload[f])
            inner = (g for m in self.inside(self.kind[f], self.payload[f]) for g, _ in m)
            found = self._reopens[f] = own or any(map(self.reopens, inner))
        return found

    def _comparisons(self, f: int) -> Iterator[tuple[int, tuple[Polynomial, Polynomial]]]:
        """Yield the masks that say which of two values is the largest, with what it is if they are 0 and 1."""
        members: tuple[Polynomial, ...] = self.payload[f] if self.kind[f] == FactorKind.TOP else ()
        for a, b in permutations(members) if len(members) == 2 else ():
            less = self.alone(self.apply("negative", add(a, b, -1)), FactorKind.FN)
            if less is not None:
                yield less, (a, b)

    def comparisons_in(self, f: int) -> frozenset[frozenset[int]]:
        """Return for each two values in a factor the masks that compare them, but for those that a binder binds."""
        found = self._comparisons_in.get(f)
        if found is None:
            inner = (g for m in self.inside(self.kind[f], self.payload[f]) for g, _ in m)
            with self.scope():
                own = frozenset(g for g, _ in self._comparisons(f))
            every = frozenset((own,) if own else ()).union(*map(self.comparisons_in, inner))
            found = frozenset(some for some in every if all(self.free[g] <= self.free[f] for g in some))
            self._comparisons_in[f] = found
        return found

    def masks_in(self, f: int) -> frozenset[int]:
        """Return the masks that a factor is or contains, but for those that a binder binds."""
        found = self._masks_in.get(f)
        if found is None:
            inner = (g for m in self.inside(self.kind[f], self.payload[f]) for g, _ in m)
            held = frozenset((f,) if self.is_mask(f) else ()).union(*map(self.masks_in, inner))
            found = self._masks_in[f] = frozenset(g for g in held if self.free[g] <= self.free[f])
        return found

    def _change_new(self, f: int, change: DigitSubstitution) -> Polynomial:
        payload, told = self.payload[f], dict(change.cases)
        if f in told or (change.guards and self.is_mask(f)):
            return factor_power(f) if change.guards else constant(told[f])
        match self.kind[f]:
            case FactorKind.INPUT:
                indices = tuple(self._index(index, change) for index in payload[1])
                return factor_power(self.factor(FactorKind.INPUT, (payload[0], indices)))
            case FactorKind.SUM:
                bound, body = payload
                return self.sum(self._change_monomial(body, change), bound)
            case FactorKind.MAX:
                return self.max(self.change(payload[1], change), payload[0])
            case FactorKind.PMAX | FactorKind.CARRY:
                index, u, digits, p = payload
                return self.prefix(self.kind[f], self._index(index, change), u, digits, self.change(p, change))
            case FactorKind.EXP:
                return self.exp(self.change(payload, change))
            case FactorKind.POW:
                return self.change(payload, change)
            case FactorKind.TOP:
                pairs = () if change.guards or not told else self._comparisons(f)
                kept = {values[told[g]] for g, values in pairs if g in told}
                return self.largest_of([self.change(p, change) for p in (kept if len(kept) == 1 else payload)])
            case FactorKind.KEEP:
                mask, p = payload  # a mask in p is told only if it has a value wherever the other mask has one
                known = self.needs(m for m, _ in mask)
                cases = tuple(case for case in change.cases if self.needs((((case[0], 2),),)) <= known)
                inner = self.change(p, structs.replace(change, cases=cases)) if cases or not told else p
                return self.keep(self.change(mask, structs.replace(change, guards=False)), inner)
            case FactorKind.FN:
                return self.apply(payload[0], self.change(payload[1], change))
            case FactorKind.SURD:
                raise AssertionError("a constant has no digits")

    def _index(self, index: Index, change: DigitSubstitution) -> Index:
        offset, entries = index
        if change.affine:
            table = dict(change.affine)
            strides: dict[int, int] = {}
            for stride, digit in entries:
                by, parts = table.get(digit, (0, ((1, digit),)))
                offset += stride * by
                for s, d in parts:
                    strides[d] = strides.get(d, 0) + stride * s
            return make_index(offset, ((s, d) for d, s in strides.items()))
        stride_of = {d: s for s, d in entries}
        for target, chain in change.folds:
            if chain[0] not in stride_of:
                continue
            last = stride_of[chain[-1]]
            for d in chain:
                del stride_of[d]
            stride_of[target] = last
        return make_index(offset, ((s, d) for d, s in stride_of.items()))

    def alone(self, p: Polynomial, *kinds: FactorKind) -> int | None:
        """Return the factor that a polynomial consists of, if it is of one of these kinds; else None."""
        if len(p) != 1 or p[0][1] != 1 or len(p[0][0]) != 1 or p[0][0][0][1] != 2:
            return None
        f = p[0][0][0][0]
        return f if self.kind[f] in kinds else None

    # --- merging -----------------------------------------------------------------------------------------------

    def adjacent(self, f: int) -> frozenset[tuple[int, int]]:
        """Return the pairs (a, b) in all indices inside f where b comes right after a; -1 for no digit."""
        found = self._adjacent.get(f)
        if found is None:
            pairs: set[tuple[int, int]] = set()
            payload = self.payload[f]
            match self.kind[f]:
                case FactorKind.INPUT:
                    for index in payload[1]:
                        self._pairs(index, pairs)
                case FactorKind.SUM:
                    for g, _ in payload[1]:
                        pairs |= self.adjacent(g)
                case FactorKind.PMAX | FactorKind.CARRY:
                    self._pairs(payload[0], pairs)
                    pairs |= self.adjacent_in(payload[3])
                case FactorKind.MAX | FactorKind.FN:
                    pairs |= self.adjacent_in(payload[1])
                case FactorKind.EXP | FactorKind.POW:
                    pairs |= self.adjacent_in(payload)
                case FactorKind.TOP | FactorKind.KEEP:
                    pairs.update(pair for p in payload for pair in self.adjacent_in(p))
                case FactorKind.SURD:
                    pass
            found = self._adjacent[f] = frozenset(pairs)
        return found

    def adjacent_in(self, p: Polynomial) -> set[tuple[int, int]]:
        """Return the pairs of ``adjacent`` for all factors of a polynomial."""
        return {pair for f in {f for m, _ in p for f, _ in m} for pair in self.adjacent(f)}

    def _pairs(self, index: Index, pairs: set[tuple[int, int]]) -> None:
        follows = -1
        below = 0
        for stride, digit in index[1]:
            # Entries come with falling strides: adjacent means that this digit ends where the last one begins.
            joined = stride * self.extent[digit] == below
            if follows >= 0 and not joined:
                pairs.add((follows, -1))
            pairs.add((follows if joined else -1, digit))
            follows, below = digit, stride
        if follows >= 0:
            pairs.add((follows, -1))

    def chains(self, pairs: Iterable[tuple[int, int]], digits: frozenset[int] | set[int]) -> dict[int, int]:
        """Return a -> b for all a and b of ``digits`` that are adjacent in every occurrence."""
        after: dict[int, set[int]] = {}
        before: dict[int, set[int]] = {}
        for a, b in pairs:
            if a in digits:
                after.setdefault(a, set()).add(b)
            if b in digits:
                before.setdefault(b, set()).add(a)
        out: dict[int, int] = {}
        for a, bs in after.items():
            if len(bs) == 1:
                (b,) = bs
                if b in digits and b != a and len(before[b]) == 1:
                    out[a] = b
        return out

    # --- binders -----------------------------------------------------------------------------------------------

    @abstractmethod
    def sum(self, p: Polynomial, digits: Sequence[int]) -> Polynomial:
        """Return the sum of a polynomial over digits."""

    @abstractmethod
    def max(self, p: Polynomial, digits: Sequence[int]) -> Polynomial:
        """Return the largest value of a polynomial over digits."""

    @abstractmethod
    def prefix(self, kind: FactorKind, index: Index, u: int, digits: Sequence[int], p: Polynomial) -> Polynomial:
        """Return a running maximum (PMAX) or its rescaling factor (CARRY) at t = index.

        PMAX: m_t = largest p over u <= t and over digits. CARRY: exp(m_{t-1} - m_t), 0 at first.
        """
