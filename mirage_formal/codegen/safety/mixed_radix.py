"""Index expressions as mixed-radix numbers: most accesses of a kernel are shown to be disjoint without a solver.

An expression becomes a constant plus multiples of *digits*. A digit is ``(string / div) % mod``, where a string is a
number made of variables (``tid + threads * k``). It may also be the exclusive or of two such sums (swizzles).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod

from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var

Extents = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Digit:
    """A mixed-radix digit: ``(string / div) % mod``.

    The string lists variables with their extents, least significant first.
    """

    string: tuple[tuple[str, int], ...]
    div: int
    mod: int

    @property
    def size(self) -> int:
        """Return the number of values of the string."""
        return prod(extent for _, extent in self.string)


@dataclass(frozen=True, slots=True)
class Xor:
    """An exclusive or: ``a ^ b``, below ``mod``, a power of two."""

    a: Linear
    b: Linear
    mod: int


@dataclass(frozen=True, slots=True)
class Linear:
    """A sum of digits: ``constant + sum of coefficient * atom``; terms have ascending positive coefficients."""

    constant: int
    terms: tuple[tuple[int, Digit | Xor], ...]

    @property
    def largest(self) -> int:
        """Return an upper bound of the sum: its value if every atom were mod - 1."""
        return self.constant + sum(c * (atom.mod - 1) for c, atom in self.terms)


def to_digits(e: IntExpr, extents: Extents) -> Linear | None:
    """Return an expression as a sum of digits; None where it has no such form.

    Sound: each step is an identity of nonnegative integers: (H + R) / c = H / c and (H + R) % c = R for c | H and
    0 <= R < c; x = x % p + p * (x / p); (a ^ b) splits at powers of two.
    """
    match e:
        case Int(value):
            return Linear(value, ()) if value >= 0 else None
        case Var(name):
            extent = extents[name]
            return Linear(0, ((1, Digit(((name, extent),), 1, extent)),) if extent > 1 else ())
        case IntBin(op, a, b):
            x, y = to_digits(a, extents), to_digits(b, extents)
            return None if x is None or y is None else _combine(op, x, y)


def _combine(op: IntOp, x: Linear, y: Linear) -> Linear | None:
    match op:
        case IntOp.ADD:
            return _sum(x.constant + y.constant, (*x.terms, *y.terms))
        case IntOp.MUL if not x.terms or not y.terms:
            factor, other = (x.constant, y) if not x.terms else (y.constant, x)
            return _times(other, factor)
        case IntOp.DIV | IntOp.MOD if not y.terms and y.constant > 0:
            parts = _divide(x, y.constant)
            return None if parts is None else parts[0 if op is IntOp.DIV else 1]
        case IntOp.XOR:
            return _xor(x, y)
        case _:
            return None


def _sum(constant: int, terms: Iterable[tuple[int, Digit | Xor]]) -> Linear:
    joined: dict[Digit | Xor, int] = {}
    for c, atom in terms:
        joined[atom] = joined.get(atom, 0) + c
    listed = [(c, atom) for atom, c in joined.items() if c > 0 and atom.mod > 1]
    return Linear(constant, tuple(sorted(listed, key=lambda term: (term[0], repr(term[1])))))


def _times(x: Linear, factor: int) -> Linear:
    return Linear(x.constant * factor, tuple((c * factor, atom) for c, atom in x.terms) if factor else ())


def _divide(x: Linear, c: int) -> tuple[Linear, Linear] | None:
    """Return quotient and remainder by c, where both are sums of digits too; None elsewhere."""
    high, low = _cut(x.terms, c)
    if sum(k * (atom.mod - 1) for k, atom in low) + x.constant % c >= c:
        high, low = _cut(_merge_variables(x.terms), c)
    quotient = _sum(x.constant // c, [(k // c, atom) for k, atom in high])
    remainder = _sum(x.constant % c, low)
    return None if remainder.largest >= c else (quotient, remainder)


Terms = list[tuple[int, Digit | Xor]]


def _cut(terms: Iterable[tuple[int, Digit | Xor]], c: int) -> tuple[Terms, Terms]:
    """Return the terms that are multiples of c, and the others, after digits are split where c falls inside them."""
    high: Terms = []
    low: Terms = []
    for k, atom in terms:
        if k % c == 0:
            high.append((k, atom))
            continue
        p = c // k if c % k == 0 else 0
        if p and isinstance(atom, Digit) and atom.mod > p and (atom.mod % p == 0 or _is_top(atom)):
            low.append((k, Digit(atom.string, atom.div, p)))
            high.append((c, Digit(atom.string, atom.div * p, -(-atom.mod // p))))
        else:
            low.append((k, atom))
    return high, low


def _is_top(atom: Digit) -> bool:
    return atom.div * atom.mod >= atom.size


def _merge_variables(terms: Iterable[tuple[int, Digit | Xor]]) -> Terms:
    """Return the terms with adjacent whole variables merged into one string."""
    found: Terms = []
    for k, atom in terms:
        if found and isinstance(atom, Digit) and atom.div == 1 and atom.mod == atom.size:
            before, last = found[-1]
            if isinstance(last, Digit) and last.div == 1 and last.mod == last.size and k == before * last.size:
                string = (*last.string, *atom.string)
                found[-1] = before, Digit(string, 1, last.size * atom.size)
                continue
        found.append((k, atom))
    return found


def _xor(x: Linear, y: Linear) -> Linear | None:
    common = gcd(x.constant, y.constant, *(c for c, _ in (*x.terms, *y.terms)))
    unit = common & -common
    if unit > 1:
        inner = _xor(_divide_exactly(x, unit), _divide_exactly(y, unit))
        return None if inner is None else _times(inner, unit)
    if x.largest < y.largest:
        x, y = y, x
    if y.largest == 0:
        return x
    bound = 1 << y.largest.bit_length()
    parts = _divide(x, bound)
    if parts is None:
        return None
    quotient, remainder = parts
    if not remainder.terms and not y.terms:
        mixed = Linear(remainder.constant ^ y.constant, ())
    else:
        mixed = Linear(0, ((1, Xor(remainder, y, bound)),))
    return _sum(quotient.constant * bound + mixed.constant, (*_times(quotient, bound).terms, *mixed.terms))


def _divide_exactly(x: Linear, unit: int) -> Linear:
    return Linear(x.constant // unit, tuple((c // unit, atom) for c, atom in x.terms))


# --- what equal values say -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """Bounds on digits that conditions imply.

    Attributes:
        bounds: Sums of terms, each with its largest value.
        fixed: Digits that have one value.
    """

    bounds: tuple[tuple[tuple[tuple[int, Digit | Xor], ...], int], ...] = ()
    fixed: frozenset[Digit] = frozenset()

    def most(self, atom: Digit | Xor) -> int:
        """Return a bound on one atom: a string of at most m has ``(string / div) % mod`` of at most m / div."""
        found = atom.mod - 1
        for bounded, most in self.bounds:
            c, whole = bounded[0]
            if len(bounded) > 1 or not (isinstance(atom, Digit) and isinstance(whole, Digit)):
                continue
            if whole.string == atom.string and whole.div == 1 and _is_top(whole):
                found = min(found, most // c // atom.div)
        return found

    def largest(self, terms: tuple[tuple[int, Digit | Xor], ...]) -> Iterator[tuple[int, int]]:
        """Yield bounds of sums of the last terms: their number, and their largest sum."""
        for bounded, most in self.bounds:
            tail = terms[-len(bounded) :]
            factor = tail[0][0] // bounded[0][0]
            if tail == tuple((factor * c, atom) for c, atom in bounded):
                yield len(bounded), factor * most


NO_FACTS = Facts()


def implied_facts(guards: Iterable[IntExpr], extents: Extents) -> Facts:
    """Return the bounds on digits that conditions imply.

    Sound: ``a < c`` bounds the digits of a together, by a multiple of what divides all of them, and makes those 0 whose
    coefficient is c or more, and ``a == c`` fixes them where that decodes.
    """
    bounds: list[tuple[tuple[tuple[int, Digit | Xor], ...], int]] = []
    fixed: set[Digit] = set()
    for guard in guards:
        match guard:
            case IntBin(IntOp.LT, a, Int(most)):
                x = to_digits(a, extents)
                if x is not None and x.terms:
                    rest = max(most - 1 - x.constant, 0)
                    rest -= rest % gcd(*(c for c, _ in x.terms))
                    bounds.append((x.terms, rest))
                    fixed |= {atom for c, atom in x.terms if c > rest and isinstance(atom, Digit)}
            case IntBin(IntOp.EQ, a, Int()) | IntBin(IntOp.EQ, Int(), a):
                x = to_digits(a, extents)
                if x is not None and is_injective(x):
                    fixed |= {atom for _, atom in x.terms if isinstance(atom, Digit)}
            case _:
                pass
    return Facts(tuple(bounds), frozenset(fixed))


def is_injective(x: Linear, width: int = 1, given: Facts = NO_FACTS) -> bool:
    """Return whether ranges of ``width`` from two values overlap only if all atoms are equal.

    Sound: with each coefficient above the largest sum of what lies below it, the value plus an offset below ``width``
    has one decomposition (mixed radix); ``given`` holds of both values.
    """
    return all(c > low for (c, _), low in zip(x.terms, _sums(x, width, given), strict=False))


def _sums(x: Linear, width: int, given: Facts) -> list[int]:
    """Return the largest sum of the first terms and of an offset below ``width``, for each number of terms."""
    below = [width - 1]
    for position, (c, atom) in enumerate(x.terms):
        bounds = [below[-length] + most for length, most in given.largest(x.terms[: position + 1])]
        below.append(min([below[-1] + c * given.most(atom), *bounds]))
    return below


def determined_variables(x: Linear, given: Facts = NO_FACTS) -> frozenset[str]:
    """Return the variables whose values all atoms, and the digits that ``given`` fixes, determine.

    Sound: a variable is known if known digits of a string cover its place; an exclusive or with one side known gives
    the other side, and its atoms if that decodes.
    """
    digits = {atom for _, atom in x.terms if isinstance(atom, Digit)} | given.fixed
    mixed = [atom for _, atom in x.terms if isinstance(atom, Xor)]
    grown = True
    while grown:
        grown = False
        for atom in list(mixed):
            for side, other in ((atom.a, atom.b), (atom.b, atom.a)):
                if _is_known(side, digits) and is_injective(other):
                    digits |= {inner for _, inner in other.terms if isinstance(inner, Digit)}
                    mixed += [inner for _, inner in other.terms if isinstance(inner, Xor)]
                    mixed.remove(atom)
                    grown = True
                    break
    found: set[str] = set()
    for string in {digit.string for digit in digits}:
        if _is_covered(string, 1, prod(extent for _, extent in string), digits):
            found |= {name for name, _ in string}
        start = 1
        for name, extent in string:
            if _is_covered(string, start, start * extent, digits):
                found.add(name)
            start *= extent
    return frozenset(found)


def _is_known(side: Linear, digits: set[Digit]) -> bool:
    for _, atom in side.terms:
        match atom:
            case Digit(string, div, mod) if _is_covered(string, div, div * mod, digits):
                pass
            case _:
                return False
    return True


def _is_covered(string: tuple[tuple[str, int], ...], start: int, end: int, digits: set[Digit]) -> bool:
    """Return whether the string's positions from ``start`` to ``end`` are known.

    Sound: a digit that ends at a place p says what the string is modulo p. That tells it modulo ``end`` only if ``end``
    divides p, or if p is not below the string's size.
    """
    size = prod(extent for _, extent in string)
    own = [digit for digit in digits if digit.string == string]
    here, end = start, min(end, size)
    while here < end:
        after = [
            place
            for digit in own
            if here % digit.div == 0
            and (place := digit.div * digit.mod) > here
            and (place % here == 0 or _is_top(digit))
            and (place <= end or place % end == 0 or place >= size)
        ]
        if not after:
            return False
        here = max(after)
    return True


def are_separate(x: Linear, y: Linear, width: int, given: Facts = NO_FACTS, other: Facts = NO_FACTS) -> bool:
    """Return whether two accesses are disjoint because their constants differ at positions that no atom reaches.

    Sound: see ``_constants_differ``. Where what lies below a place S is at most S - width in both, as their conditions
    (``given`` and ``other``) may say, two accesses meet only if their multiples of S are equal and the rests meet: a
    difference of S less what the rests differ by is at least the width. So it is enough that one of the two differs.
    """
    if _constants_differ(x, y, width):
        return True
    for place in {c for c, _ in x.terms if c > 1}:
        (high, low), (above, below) = _halves(x, place), _halves(y, place)
        if (
            low.constant + _terms_bound(low, given) > place - width
            or below.constant + _terms_bound(below, other) > place - width
        ):
            continue
        if _constants_differ(high, above, 1) or _constants_differ(low, below, width):
            return True
    return False


def _halves(x: Linear, place: int) -> tuple[Linear, Linear]:
    """Return (high, low) with x = high * place + low, where no term of low is a multiple of the place."""
    high = tuple((c // place, atom) for c, atom in x.terms if c % place == 0)
    low = tuple((c, atom) for c, atom in x.terms if c % place)
    return Linear(x.constant // place, high), Linear(x.constant % place, low)


def _terms_bound(x: Linear, given: Facts) -> int:
    """Return a bound on the sum of the terms, computed as in ``is_injective``."""
    below = [0]
    for position, (c, atom) in enumerate(x.terms):
        bounds = [below[-length] + most for length, most in given.largest(x.terms[: position + 1])]
        below.append(min([below[-1] + c * given.most(atom), *bounds]))
    return below[-1]


def _constants_differ(x: Linear, y: Linear, width: int) -> bool:
    """Return whether the constants differ at positions that no atom reaches.

    Sound: both have the same coefficients and sizes of atoms, each place a multiple of the one below; then value plus
    offset is written uniquely as atoms, offset and the places between, and the constants' difference sits between.
    """
    shape = [(c, atom.mod) for c, atom in x.terms]
    difference = abs(x.constant - y.constant)
    if shape != [(c, atom.mod) for c, atom in y.terms] or difference == 0:
        return False
    end = 1
    for c, mod in [(1, width), *shape]:
        if c % end or difference // c % mod:
            return False
        end = c * mod
    return True


def have_disjoint_offsets(x: Linear, y: Linear, width: int, given: Facts = NO_FACTS, other: Facts = NO_FACTS) -> bool:
    """Return whether two accesses are disjoint because they start at different offsets in units of one size.

    Sound: if both are a multiple of c plus something that stays below c with its width, they meet only where these
    lower parts do. The lower parts are constants plus multiples of a unit g, so they stay apart if the constants differ
    by at least the width from every multiple of g. ``given`` holds of x, ``other`` of y.
    """
    beyond = x.largest + y.largest + width
    for c in {*(k for k, _ in (*x.terms, *y.terms)), beyond}:
        low, high = _low_divisor(x, c, width, given), _low_divisor(y, c, width, other)
        if low is None or high is None:
            continue
        unit = gcd(low, high) or c
        if width <= (x.constant % c - y.constant % c) % unit <= unit - width:
            return True
    return False


def _low_divisor(x: Linear, c: int, width: int, given: Facts) -> int | None:
    """Return the common divisor of the coefficients below c, 0 if there are none.

    None if another coefficient is no multiple of c, or if the terms below c and the width can reach c.
    """
    low = [k for k, _ in x.terms if k < c]
    if any(k % c for k, _ in x.terms[len(low) :]) or x.constant % c + _sums(x, width, given)[len(low)] >= c:
        return None
    return gcd(*low)
