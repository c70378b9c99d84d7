"""Points that meet a condition are counted without looking at them where an expression numbers them."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.safety.enumerate import MAX_POINTS, count_points
from mirage_formal.codegen.safety.mixed_radix import implied_facts, is_injective, to_digits


def add(*terms: tuple[int, str]) -> IntExpr:
    out: IntExpr | None = None
    for factor, name in terms:
        term: IntExpr = IntBin(IntOp.MUL, Var(name), Int(factor))
        out = term if out is None else IntBin(IntOp.ADD, out, term)
    assert out is not None
    return out


def below(e: IntExpr, bound: int) -> IntExpr:
    return IntBin(IntOp.LT, e, Int(bound))


def over(e: IntExpr, by: int) -> IntExpr:
    return IntBin(IntOp.DIV, e, Int(by))


EXTENTS = (("tid", 4), ("bx", 5), ("u", 3), ("by", 1))
NUMBER = add((1, "tid"), (4, "u"), (12, "bx"))
#: Numbers of all points, then expressions that skip values, take one twice, or leave a variable out.
CONDITIONS = [
    *(below(NUMBER, bound) for bound in (0, 1, 23, 59, 60, 100)),
    *(below(over(NUMBER, by), bound) for by in (5, 4, 7) for bound in (0, 3, 8, 50)),
    below(over(over(NUMBER, 3), 2), 5),
    below(add((1, "tid"), (5, "u")), 9),
    below(add((1, "tid"), (3, "u")), 9),
    below(add((2, "tid"), (8, "u")), 9),
    below(add((1, "bx"), (5, "tid")), 17),
    below(IntBin(IntOp.ADD, NUMBER, Int(3)), 17),
    below(IntBin(IntOp.ADD, NUMBER, Var("tid")), 17),
    below(IntBin(IntOp.MOD, NUMBER, Int(7)), 3),
]


@pytest.mark.parametrize("guard", CONDITIONS, ids=str)
def test_counts_are_those_of_all_points(guard: IntExpr) -> None:
    names = [name for name, _ in EXTENTS]
    points = (dict(zip(names, point, strict=True)) for point in product(*(range(extent) for _, extent in EXTENTS)))
    assert count_points([guard], EXTENTS) == sum(bool(evaluate_expression(guard, point)) for point in points)


def test_more_points_than_are_looked_at_are_counted() -> None:
    extents = (("tid", 128), ("u", 4), ("bx", 300_001))
    assert prod(extent for _, extent in extents) > MAX_POINTS
    number = add((1, "tid"), (128, "u"), (512, "bx"))
    assert count_points([below(number, 512 * 300_000 + 5)], extents) == 512 * 300_000 + 5
    assert count_points([below(IntBin(IntOp.MOD, number, Int(7)), 3)], extents) is None


def test_a_bound_is_a_multiple_of_what_divides_all_terms() -> None:
    """The columns 8 * tid + 16 * by < 1000 end at 992 + 7, so rows of 1000 columns are told apart; of 999 are not."""
    sizes = {"tid": 2, "by": 63, "bx": 9}
    column = add((8, "tid"), (16, "by"))
    for row, apart in ((1000, True), (999, False)):
        x = to_digits(IntBin(IntOp.ADD, column, add((row, "bx"))), sizes)
        assert x is not None
        assert is_injective(x, 8, implied_facts([below(column, 1000)], sizes)) is apart
