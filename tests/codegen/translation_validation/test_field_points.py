"""Laws of the arithmetic at random points: those that hold over the reals and are used hold, and no others are."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from functools import reduce as reduce_all
from itertools import combinations
from math import inf

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.translation_validation.field_points import (
    INFINITE,
    MASK,
    NUMBER,
    POISON,
    FieldArray,
    FieldPoints,
    rational_constant,
)
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, FUNCTIONS, ROUNDINGS, OpKind

K = OpKind
COUNT = 64
LOWEST = float(np.finfo(np.float32).min)


@pytest.fixture(params=range(3))
def points(request: pytest.FixtureRequest) -> FieldPoints:
    return FieldPoints(np.random.default_rng(request.param), True, True, ROUNDINGS)


def variable(points: FieldPoints, name: str) -> FieldArray:
    return points.variables(name, np.arange(COUNT))


def same(points: FieldPoints, *values: FieldArray) -> bool:
    return all(bool(points.equal(values[0], one).all()) for one in values[1:])


def apart(points: FieldPoints, *values: FieldArray) -> bool:
    """Whether no element of any two is the same."""
    return not any(points.equal(a, b).any() for a, b in combinations(values, 2))


def test_ring(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    one = points.fill(1.0, (COUNT,))
    assert same(points, points.add(a, b), points.add(b, a), points.subtract(a, points.negate(b)))
    assert same(
        points,
        points.multiply(a, points.add(b, c)),
        points.add(points.multiply(a, b), points.multiply(c, a)),
    )
    assert same(points, points.multiply(a, points.invert(a)), one)
    assert same(points, points.unary(K.SQUARE, a), points.multiply(a, a))
    assert same(points, points.unary(K.RECIPROCAL, a), points.invert(a))
    assert apart(points, a, b, points.add(a, b), points.multiply(a, b), points.subtract(a, b), points.subtract(b, a))


def test_variables_are_the_same_by_name_and_number_alone(points: FieldPoints) -> None:
    a = variable(points, "a")
    assert same(points, a, variable(points, "a"), points.variables("a", np.arange(COUNT)[::-1])[:, ::-1])
    flat = a[:2].reshape(2, -1)
    assert len({tuple(column) for column in flat.T.tolist()}) == COUNT


def test_products_are_sums_of_products(points: FieldPoints) -> None:
    a = points.variables("a", np.arange(32).reshape(4, 8))
    b = points.variables("b", np.arange(24).reshape(8, 3))
    each = points.multiply(a[:, :, :, None], b[:, None])
    assert same(points, points.matmul(a, b), points.sum(each, 1)[:, :, 0])


def test_exponentials(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    exp, add = points.exp, points.add
    assert same(points, exp(add(a, b)), points.multiply(exp(a), exp(b)))
    assert same(points, exp(points.negate(a)), points.invert(exp(a)))
    assert same(points, exp(points.subtract(a, a)), points.fill(1.0, (COUNT,)))
    scaled = points.multiply(points.exp(points.subtract(a, c)), points.exp(points.subtract(c, b)))
    assert same(points, scaled, exp(points.subtract(a, b)))
    assert same(points, exp(exp(add(a, b))), exp(exp(add(b, a))))
    twice = points.multiply(points.fill(2.0, (COUNT,)), a)
    assert same(points, exp(twice), points.unary(K.SQUARE, exp(a)))
    assert apart(points, exp(a), exp(b), exp(exp(a)), exp(points.multiply(a, b)), add(exp(a), exp(b)), a)


def test_sigmoids(points: FieldPoints) -> None:
    a = variable(points, "a")
    sigmoid, one = points.unary(K.SIGMOID, a), points.fill(1.0, (COUNT,))
    grown = points.exp(a)
    assert same(points, sigmoid, points.multiply(grown, points.invert(points.add(one, grown))))
    assert same(points, points.unary(K.SILU, a), points.multiply(a, sigmoid))


def test_maxima(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    top = points.maximum
    assert same(points, top(a, a), a)
    assert same(points, top(a, b), top(b, a))
    assert same(points, top(top(a, b), c), top(a, top(b, c)), top(top(c, a), b))
    assert same(points, top(a, top(a, b)), top(top(a, b), b), top(a, b))
    least = points.fill(-np.inf, (COUNT,))
    assert same(points, top(a, least), top(least, a), a)
    assert same(points, top(a, points.fill(LOWEST, (COUNT,))), a)
    assert same(points, top(least, least), least)
    assert apart(points, a, b, top(a, b), top(a, c), top(b, c), top(top(a, b), c), points.minimum(a, b))
    zero = points.fill(0.0, (COUNT,))
    assert apart(points, top(a, zero), a, zero)
    two = points.fill(2.0, (COUNT,))  # scales are no maxima of scales: 2 may be -2 elsewhere
    assert apart(points, top(points.multiply(two, a), points.multiply(two, b)), points.multiply(two, top(a, b)))


def test_largest_of_a_row(points: FieldPoints) -> None:
    rows = points.variables("rows", np.arange(24).reshape(4, 6))
    found = points.largest(rows, 1)[:, :, 0]
    for order in (range(6), (3, 1, 5, 0, 4, 2)):
        step = rows[:, :, order[0]]
        for k in order[1:]:
            step = points.maximum(step, rows[:, :, k])
        assert same(points, found, step)
    halves = points.maximum(points.largest(rows[:, :, :3], 1), points.largest(rows[:, :, 3:], 1))
    assert same(points, found, halves[:, :, 0])
    twice = np.concatenate([rows, rows[:, :, ::-1]], axis=2)
    assert same(points, found, points.largest(twice, 1)[:, :, 0])
    assert not points.equal(found, points.largest(rows[:, :, :5], 1)[:, :, 0]).any()
    equal = np.repeat(rows[:, :, :1], 3, axis=2)
    assert same(points, points.largest(equal, 1)[:, :, 0], rows[:, :, 0])


def test_a_maximum_that_is_changed_is_one_no_more(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    top, one = points.maximum(a, b), points.fill(1.0, (COUNT,))
    moved = points.add(top, one)
    assert same(points, points.subtract(moved, one), top)
    assert apart(points, points.maximum(moved, c), points.maximum(top, c), points.add(points.maximum(top, c), one))
    shifted = points.exp(points.subtract(a, top))
    assert same(points, points.multiply(shifted, points.exp(top)), points.exp(a))


def test_minima(points: FieldPoints) -> None:
    a, b = variable(points, "a"), variable(points, "b")
    assert same(points, points.minimum(a, b), points.minimum(b, a))
    assert same(points, points.minimum(a, a), a)
    assert apart(points, points.minimum(a, b), points.maximum(a, b), a, b)


def test_selections(points: FieldPoints) -> None:
    a, b, m = (variable(points, name) for name in "abm")
    one, zero = points.fill(1.0, (COUNT,)), points.fill(0.0, (COUNT,))
    assert same(points, points.select(one, a, b), a)
    assert same(points, points.select(zero, a, b), b)
    assert same(points, points.select(m, a, a), a)
    assert same(points, points.select(points.unary(K.LOGICAL_NOT, m), a, b), points.select(m, b, a))
    assert apart(points, points.select(m, a, b), points.select(m, b, a), a, b)
    assert same(points, points.indicator(one), one)
    assert same(points, points.indicator(zero), zero)
    assert apart(points, points.indicator(a), a, points.indicator(b), zero, one)


def test_comparisons(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    one, zero = points.fill(1.0, (COUNT,)), points.fill(0.0, (COUNT,))
    compare = points.compare
    for kind in sorted(COMPARISONS):
        holds = one if kind in (K.EQ, K.LE, K.GE) else zero
        assert same(points, compare(kind, a, a), holds)
        assert same(points, compare(kind, points.add(a, c), points.add(c, b)), compare(kind, a, b))
    assert same(points, compare(K.LT, a, b), compare(K.GT, b, a), points.subtract(one, compare(K.GE, a, b)))
    assert same(points, compare(K.EQ, a, b), compare(K.EQ, b, a))
    kinds = (K.EQ, K.LT, K.LE, K.GT, K.GE)
    assert apart(points, *(compare(kind, a, b) for kind in kinds), one, zero)
    assert apart(points, compare(K.LT, a, b), compare(K.LT, a, c), compare(K.LT, c, b))


def test_functions_are_functions_and_differ(points: FieldPoints) -> None:
    a, b = variable(points, "a"), variable(points, "b")
    kinds = sorted(FUNCTIONS)
    values = [points.unary(kind, a) for kind in kinds]
    again = points.subtract(points.add(a, b), b)
    for kind, found in zip(kinds, values, strict=True):
        assert same(points, found, points.unary(kind, again))
        assert apart(points, found, points.unary(kind, b))
    assert apart(points, *values, a)
    assert same(points, points.unary(K.ABS, a), points.unary(K.ABS, points.negate(a)))
    zero = points.fill(0.0, (COUNT,))
    assert same(points, points.unary(K.SQRT, zero), points.unary(K.RELU, zero), points.unary(K.TANH, zero), zero)


def test_roundings_are_the_identity_unless_the_graph_has_them() -> None:
    points = FieldPoints(np.random.default_rng(0), rounds={K.ROUND_BFLOAT16})
    a = variable(points, "a")
    assert same(points, points.unary(K.ROUND_FLOAT16, a), a)
    assert apart(points, points.unary(K.ROUND_BFLOAT16, a), a)


def test_quotients_that_are_0_where_the_divisor_is(points: FieldPoints) -> None:
    a, b, c = (variable(points, name) for name in "abc")
    quotient, zero = partial(points.binary, K.DIV_NO_NAN), points.fill(0.0, (COUNT,))
    assert same(points, quotient(a, zero), zero)
    assert same(points, quotient(points.multiply(a, c), b), points.multiply(c, quotient(a, b)))
    assert same(points, points.add(quotient(a, b), quotient(c, b)), quotient(points.add(a, c), b))
    assert apart(points, quotient(a, b), quotient(b, a), points.multiply(a, points.invert(b)))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1 / 3, Fraction(1, 3)),
        (float(np.float32(1 / 3)), Fraction(1, 3)),
        (float(np.float32(-0.1)), Fraction(-1, 10)),
        (0.0, Fraction(0)),
        (0.125, Fraction(1, 8)),
        (1.0 + 2.0**-10, 1 + Fraction(1, 1024)),
        (2.0**-30, Fraction(1, 2**30)),
        (float(np.float32(1e-20)), Fraction(float(np.float32(1e-20)))),
    ],
)
def test_constants_are_the_fractions_that_they_round(value: float, wanted: Fraction) -> None:
    assert rational_constant(value) == wanted


def test_constants_that_float32_tells_apart_are_apart() -> None:
    values = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    near = [np.nextafter(values, np.float32(side)) for side in (-9, 9)]
    for value in (*values, *near[0], *near[1]):
        assert np.float32(float(rational_constant(float(value)))) == value


def test_constants_that_differ(points: FieldPoints) -> None:
    values = (0.0, 1.0, -1.0, 0.5, 1 / 3, 1 + 2.0**-23, -np.inf, 1e-8)
    make: Callable[[float], FieldArray] = lambda value: points.fill(value, (1,))  # noqa: E731
    assert apart(points, *map(make, values))
    assert apart(points, make(LOWEST), make(-np.inf))
    for value in (1e39, inf, float("nan")):
        with pytest.raises(ValueError, match="beyond float32"):
            make(value)


def test_every_function_of_poison_is_poison(points: FieldPoints) -> None:
    a = variable(points, "a")
    divisor = a.copy()
    divisor[:4, 5] = 0
    pole, only = points.invert(divisor), np.arange(COUNT) == 5
    assert kinds(pole, only) == {POISON}
    assert same(points, pole[:, ~only], points.invert(a)[:, ~only])
    for kind in (*FUNCTIONS, K.LOGICAL_NOT):
        assert (is_number(points.unary(kind, pole)) == ~only).all(), kind
    for kind in (*ARITHMETIC, *COMPARISONS):
        for other in (a, points.fill(1.0, (COUNT,)), pole):
            for operands in ((pole, other), (other, pole)):
                assert (is_number(points.binary(kind, *operands)) == ~only).all(), kind
    for three in ((pole, a, a), (a, pole, a), (a, a, pole)):
        assert (is_number(points.select(*three)) == ~only).all()
    assert (is_number(points.indicator(pole)) == ~only).all()
    assert kinds(points.multiply(a, points.fill(0.0, (COUNT,)))) == {NUMBER}


def is_number(a: FieldArray) -> NDArray[np.bool_]:
    """Where a value is neither infinite nor poison."""
    return np.asarray(a[-1] <= NUMBER)


def kinds(a: FieldArray, where: NDArray[np.bool_] | slice = slice(None)) -> set[int]:
    """The kinds of the elements of a value."""
    return set(a[-1][..., where].ravel().tolist())


def test_what_is_computed_from_an_infinity_is_poison_but_for_a_few_operations(points: FieldPoints) -> None:
    a, low = variable(points, "a"), points.fill(-inf, (COUNT,))
    for kind in (*FUNCTIONS, K.LOGICAL_NOT):
        assert kinds(points.unary(kind, low)) == ({NUMBER} if kind is K.EXP else {POISON}), kind
    exact = {(K.SUB, 0): INFINITE, (K.MAXIMUM, 0): NUMBER, (K.MAXIMUM, 1): NUMBER, (K.MAXIMUM, 2): INFINITE}
    for kind in (*ARITHMETIC, *COMPARISONS):
        for i, operands in enumerate(((low, a), (a, low), (low, low))):
            assert kinds(points.binary(kind, *operands)) == {exact.get((kind, i), POISON)}, kind
    mixed = points.select(variable(points, "m"), low, a)
    assert kinds(mixed) == kinds(points.subtract(mixed, a)) == {INFINITE}
    assert kinds(points.maximum(mixed, low)) == {INFINITE}, "it is -inf where both are"
    assert kinds(points.maximum(mixed, a)) == {NUMBER}
    assert kinds(points.select(low, a, a)) == {POISON}
    row = np.concatenate([low[:, :2], a[:, :2]], axis=1)
    for start, wanted in ((0, NUMBER), (2, NUMBER)):
        assert kinds(points.largest(row[:, start:], 0)) == {wanted}
    assert kinds(points.largest(row[:, :2], 0)) == {INFINITE}
    assert kinds(points.sum(row, 0)) == {POISON}
    assert kinds(points.matmul(row.reshape(-1, 1, 4), row.reshape(-1, 4, 1))) == {POISON}


def test_masks_are_0_or_1_for_all_inputs(points: FieldPoints) -> None:
    a, zero = variable(points, "a"), points.fill(0.0, (COUNT,))
    m, n = (points.variables(name, np.arange(COUNT), MASK) for name in "mn")
    for mask in (points.fill(1.0, (1,)), points.unary(K.LOGICAL_NOT, a), points.indicator(a), points.select(a, m, n)):
        assert kinds(mask) == {MASK}
    for kind in (K.MUL, K.MAXIMUM, K.MINIMUM, *COMPARISONS):
        assert kinds(points.binary(kind, m, n)) == {MASK}
        assert kinds(points.binary(kind, m, a)) == ({MASK} if kind in COMPARISONS else {NUMBER})
    for kind in (K.ADD, K.SUB, K.DIV, K.DIV_NO_NAN):
        assert kinds(points.binary(kind, m, n)) == {NUMBER}
    assert same(points, points.maximum(m, zero), points.maximum(zero, m), m)
    assert same(points, points.largest(np.stack([zero, m, zero], axis=1), 0)[:, 0], m)
    assert apart(points, points.maximum(a, zero), a)
    assert same(points, points.indicator(m), m)
    assert same(points, points.select(m, a, zero), points.binary(K.SELECT, m, a))


def test_sums_maxima_and_products_that_contain_poison_are_poison(points: FieldPoints) -> None:
    divisor = variable(points, "a").copy()
    divisor[:4, 5] = 0
    pole = points.invert(divisor).reshape(points.count, 8, 8)  # row 0, column 5
    whole = points.variables("b", np.arange(64).reshape(8, 8))
    row, column = np.arange(8)[:, None] == 0, np.arange(8)[None, :] == 5
    for reduce in (points.sum, points.largest):
        assert (is_number(reduce(pole, 1)) == ~row).all()
        assert (is_number(reduce(pole, 0)) == ~column).all()
    assert (is_number(points.sum(pole, 1, 4)) == ~(row & (np.arange(4)[None, :] == 1))).all()
    assert (is_number(points.matmul(pole, whole)) == np.broadcast_to(~row, (8, 8))).all()
    assert (is_number(points.matmul(whole, pole)) == np.broadcast_to(~column, (8, 8))).all()
    rows = [pole[:, i] for i in range(8)]
    assert (is_number(reduce_all(points.maximum, rows)) == ~column[0]).all()


def test_degrees_are_bounded(points: FieldPoints) -> None:
    a, b, three = variable(points, "a"), variable(points, "b"), points.fill(3.0, (COUNT,))
    square, exp = points.multiply(a, a), points.exp(a)
    row = np.stack([a, square], axis=2).reshape(points.count, COUNT, 1, 2)
    for value, degree in (
        (three, 0),
        (points.multiply(three, a), 1),
        (points.add(square, b), 2),
        (points.subtract(b, square), 2),
        (points.negate(square), 2),
        (points.multiply(square, points.invert(square)), 4),
        (points.multiply(points.exp(square), exp), 2),
        (points.unary(K.TANH, square), 1),
        (points.maximum(square, b), 1),
        (points.maximum(square, points.fill(-inf, (COUNT,))), 2),
        (points.sum(row[:, :, 0], 1)[:, :, 0], 2),
        (points.matmul(row, row.transpose(0, 1, 3, 2))[:, :, 0, 0], 4),
        (points.select(points.variables("m", np.arange(COUNT), MASK), square, b), 3),
    ):
        assert set(value[-2].tolist()) == {degree}
    for _ in range(12):
        a = points.multiply(a, a)
    with pytest.raises(ValueError, match="degree"):
        points.multiply(a, b)
