"""Laws of maxima, masks, logarithms and absolute values in the checker's ring, against numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import erf, exp, isclose, log, prod
from typing import Any

import pytest

from mirage_formal.check.proof.laws import check_lemma
from mirage_formal.check.proof.parser import Reader
from mirage_formal.check.proof.ring import ONE, Poly, ProofError, Ring

POINTS = [(x, y) for x in (-2.5, -1.0, 0.0, 0.75, 3.0) for y in (-1.0, 0.0, 0.5, 2.0)]
FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "erf": erf,
    "log": lambda p: log(abs(p)),
    "zero": lambda p: float(abs(p) < 1e-12),
    "negative": lambda p: float(p < -1e-12),
}


def value(ring: Ring, poly: Poly, point: tuple[float, float]) -> Any:
    """Return the value of a polynomial over inputs 0 and 1."""

    def factor(f: int) -> Any:
        payload = ring.payloads[f]
        match ring.kinds[f]:
            case "in":
                return point[payload[0]]
            case "exp":
                return exp(value(ring, dict(payload), point).real)
            case "pow":
                return value(ring, dict(payload), point)
            case "top":
                return max(value(ring, dict(key), point).real for key in payload)
            case "fn":
                return FUNCTIONS[payload[0]](value(ring, dict(payload[1]), point).real)
            case "surd":
                return payload
        raise AssertionError(ring.kinds[f])

    return sum(float(c) * prod((complex(factor(f)) ** (e / 2) for f, e in m), start=1 + 0j) for m, c in poly.items())


def draw(ring: Ring, rng: random.Random, depth: int) -> Poly:
    """Return a random polynomial with maxima, masks, exponentials and roots of squares in it."""
    if not depth:
        inputs: list[Poly] = [{((ring.intern("in", (i, ())), 2),): 1} for i in (0, 1)]
        return rng.choice([*inputs, *inputs, {}, ONE, {(): Fraction(-1, 2)}])
    a, b = draw(ring, rng, depth - 1), draw(ring, rng, depth - 1)
    match rng.randrange(9):
        case 0 | 1:
            return ring.top((a, b, draw(ring, rng, depth - 1)))
        case 2:
            return ring.absolute(a)
        case 3:
            return ring.add(a, b, rng.choice([1, -1, 2]))
        case 4:
            return ring.mul(a, b)
        case 5:
            return ring.exponential(ring.add({}, a, Fraction(1, 4)))
        case 6:
            return ring.function(rng.choice(["zero", "negative"]), a)
        case 7:
            return ring.function("erf", a)
        case _:
            return ring.power(ring.mul(a, a), 1) if len(a) == 1 else a


@pytest.mark.parametrize("seed", range(12))
def test_maxima_have_the_value_of_the_largest(seed: int) -> None:
    rng, ring = random.Random(seed), Ring(())
    for _ in range(12):
        try:
            polys = [draw(ring, rng, 2) for _ in range(rng.randrange(1, 5))]
            found, size = ring.top(polys), ring.absolute(polys[0])
            product = ring.mul(ring.mul(found, found), found)
        except ProofError:
            continue
        for point in POINTS:
            wanted = max(value(ring, poly, point).real for poly in polys)
            assert isclose(value(ring, found, point).real, wanted, rel_tol=1e-6, abs_tol=1e-6)
            assert isclose(value(ring, product, point).real, wanted**3, rel_tol=1e-6, abs_tol=1e-6)
            wanted = abs(value(ring, polys[0], point).real)
            assert isclose(value(ring, size, point).real, wanted, rel_tol=1e-6, abs_tol=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_sets_with_one_largest_value_have_it(seed: int) -> None:
    rng, ring, accepted = random.Random(seed), Ring(()), 0
    for _ in range(40):
        try:
            left = [draw(ring, rng, 2) for _ in range(rng.randrange(1, 4))]
            a, b = rng.choice(left), rng.choice(left)
            middle = ring.combined(((a, Fraction(1, 3)), (b, Fraction(2, 3))))
            under = ring.add(a, ring.mul(b, b), rng.choice([-1, -1, 1]))
            right = rng.choice(
                [[*left, middle], [*left, under], [ring.top(left)], [ring.top(left[:1]), *left[1:]], left[1:]]
            )
            same = ring.same_largest(left, right)
        except ProofError:
            continue
        accepted += same
        for point in POINTS if same else ():
            one, other = (max(value(ring, poly, point).real for poly in side) for side in (left, right))
            assert isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)
    assert accepted > 5


@pytest.mark.parametrize("seed", range(12))
def test_logarithms_have_the_value_of_that_of_the_absolute_value(seed: int) -> None:
    rng, ring = random.Random(seed), Ring(())
    for _ in range(12):
        try:
            poly = ring.mul(draw(ring, rng, 2), draw(ring, rng, 2))
            found = ring.function("log", poly)
            again = ring.exponential(found)
        except ProofError:
            continue
        for point in POINTS:
            if abs(wanted := value(ring, poly, point).real) > 1e-9:
                assert isclose(value(ring, found, point).real, log(abs(wanted)), rel_tol=1e-6, abs_tol=1e-6)
                assert isclose(value(ring, again, point).real, abs(wanted), rel_tol=1e-6, abs_tol=1e-6)


def test_what_has_no_law() -> None:
    """A factor of unknown sign does not leave a maximum, and the exponential of a logarithm is an absolute value."""
    ring = Ring(())
    x: Poly = {((ring.intern("in", (0, ())), 2),): 1}
    y: Poly = {((ring.intern("in", (1, ())), 2),): 1}
    product = ring.mul(x, y)
    assert not ring.same_largest([product, {}], [ring.mul(x, ring.top((y, {})))])
    assert not ring.same_largest([product, x], [ring.mul(x, ring.top((y, ONE)))])
    assert not ring.same_largest([ring.mul(x, x), ring.mul(y, y)], [ring.mul(ring.top((x, y)), ring.top((x, y)))])
    assert not ring.same_largest([x, y], [x])
    assert not ring.same_largest([x, ring.add({}, x, -1)], [x])
    assert ring.exponential(ring.function("log", x)) == ring.absolute(x) != x
    assert ring.function("negative", x) != ring.function("negative", ring.add({}, x, -1))
    assert not ring.nonnegative(ring.alone(ring.top((x, y)), "top"))
    assert ring.nonnegative(ring.alone(ring.absolute(x), "top"))
    with pytest.raises(ProofError):
        ring.function("log", {})


def test_what_has_a_logarithm_is_a_divisor() -> None:
    """So a lemma cannot bring in the logarithm of what may be 0."""
    ring = Ring(())
    x: Poly = {((ring.intern("in", (0, ())), 2),): 1}
    (f,) = (f for mono in x for f, _ in mono)
    assert ring.partial(x) == frozenset()
    assert ring.partial(ring.function("log", x)) == {f}
    assert ring.partial(ring.exponential(ring.mul(x, ring.function("log", x)))) == {f}


#: Factors: x, y and z at digit 0; x at digits 0 and 1; and what lemmas speak of.
TABLE: list[list[Any]] = [
    ["in", 0, [[0, 1, 0], [0]]],
    ["in", 1, [[0, 1, 0], [0]]],
    ["in", 2, [[0, 1, 0], [0]]],
    ["in", 0, [[0, 1, 0], [0, 1, 1]]],
    ["top", [[[1, 0, 2]], [[1, 1, 2]]]],
    ["exp", [[1, 0, 2]]],
    ["exp", [[1, 1, 2]]],
    ["exp", [[1, 2, 2]]],
    ["fn", "zero", [[1, 0, 2]]],
    ["fn", "zero", [[1, 1, 2]]],
    ["fn", "log", [[1, 2, 2]]],
    ["pow", [[1, 2, 2]]],
    ["exp", [[1, 3, 2]]],
]
X, Y, Z, XJ, TOP, EX, EY, EZ, MX, MY = ([[1, f, 2]] for f in range(10))
LOG, INVERSE, EXJ = [[1, 10, 2]], [[1, 2, -2]], [[1, 12, 2]]
LESS, NOTHING = [*X, [-1, 7, 2]], list[Any]()


def table() -> Reader:
    reader = Reader(Ring((2, 3)))
    for entry in TABLE:
        reader.entry(entry, ((2, 3), (2, 3), (2, 3)))
    return reader


GOOD: dict[str, list[Any]] = {
    "a summand": [[], [[*X, *Z], [*Y, *Z]], Z, [[1]], "", TOP],
    "a number": [[], [[[2, 0, 2]], [[2, 1, 2]]], NOTHING, [[2]], "", TOP],
    "a positive factor": [[], [[[1, 0, 2, 7, 2]], [[1, 1, 2, 7, 2]]], NOTHING, EZ, "", TOP],
    "a function": [[], [EX, EY], NOTHING, [[1]], "exp", TOP],
    "less than another": [[], [X, LESS], X, NOTHING, "", NOTHING],
    "between two others": [[], [X, Y, [["1/2", 0, 2], ["1/2", 1, 2]]], NOTHING, [[1]], "", TOP],
    "over a digit": [[1], [[[2, 3, 2], *X]], X, [[2]], "", XJ],
    "a function over a digit": [[1], [EXJ], NOTHING, [[1]], "exp", XJ],
}
BAD: dict[str, list[Any]] = {
    "a factor of unknown sign": [[], [[[1, 0, 2, 2, 2]], [[1, 1, 2, 2, 2]]], NOTHING, Z, "", TOP],
    "a negative number": [[], [[[-2, 0, 2]], [[-2, 1, 2]]], NOTHING, [[-2]], "", TOP],
    "another summand": [[], [[*X, *Z], [*Y, *Z]], Y, [[1]], "", TOP],
    "a summand of one": [[], [[*X, *Z], Y], Z, [[1]], "", TOP],
    "a value that is lost": [[], [X, Y], X, NOTHING, "", NOTHING],
    "a value that is new": [[], [X, Z], NOTHING, [[1]], "", TOP],
    "a function of one": [[], [EX, Y], NOTHING, [[1]], "exp", TOP],
    "a function that decreases": [[], [X, Y], NOTHING, [[1]], "negative", TOP],
    "a function with another domain": [[], [X, Y], NOTHING, [[1]], "log", TOP],
    "more than another": [[], [X, [*X, [1, 7, 2]]], X, NOTHING, "", NOTHING],
    "beyond two others": [[], [X, Y, [[2, 0, 2], [-1, 1, 2]]], NOTHING, [[1]], "", TOP],
    "masks": [[], [MX, MY], [*MX, *MY, [-1, 8, 2, 9, 2]], NOTHING, "", NOTHING],
    "masks, their sum": [[], [MX, MY], [*MX, *MY], NOTHING, "", NOTHING],
    "masks, their product": [[], [MX, MY], [[1, 8, 2, 9, 2]], NOTHING, "", NOTHING],
    "a mask and a number": [[], [MX, X], [*MX, *X, [-1, 8, 2, 0, 2]], NOTHING, "", NOTHING],
    "a summand with the digit": [[1], [[*X, *XJ]], XJ, [[1]], "", X],
    "a factor with the digit": [[1], [[[1, 0, 2, 12, 2]]], NOTHING, EXJ, "", X],
    "a divisor that is new": [[], [X, LESS], X, NOTHING, "", INVERSE],
    "a logarithm that is new": [[], [X, LESS], X, NOTHING, "", LOG],
    "a logarithm that goes": [[], [X, LESS], [*X, *LOG], [[1]], "", [[-1, 10, 2]]],
    "a root that is new": [[], [X, LESS], X, [[1, 2, 1]], "", NOTHING],
    "no value": [[], [], NOTHING, NOTHING, "", NOTHING],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_leaves_a_largest_value(name: str) -> None:
    check_lemma(table(), 0, ["largest", *GOOD[name]])


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_leave_a_largest_value(name: str) -> None:
    with pytest.raises(ProofError):
        check_lemma(table(), 0, ["largest", *BAD[name]])
