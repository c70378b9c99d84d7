"""Guarded accesses to rows of odd length: what is said without a solver, against enumeration."""

from __future__ import annotations

import random
from itertools import product

import pytest

from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.safety import enumerate as enumeration
from mirage_formal.codegen.safety.enumerate import count_points
from mirage_formal.codegen.safety.mixed_radix import are_separate, implied_facts, to_digits
from tests.kit.sampling import number


def add(*terms: IntExpr) -> IntExpr:
    found = terms[0]
    for term in terms[1:]:
        found = IntBin(IntOp.ADD, found, term)
    return found


def times(e: IntExpr, n: int) -> IntExpr:
    return IntBin(IntOp.MUL, e, Int(n))


def over(e: IntExpr, n: int) -> IntExpr:
    return IntBin(IntOp.DIV, e, Int(n))


def rest(e: IntExpr, n: int) -> IntExpr:
    return IntBin(IntOp.MOD, e, Int(n))


def less(e: IntExpr, n: int) -> IntExpr:
    return IntBin(IntOp.LT, e, Int(n))


EXTENTS = {"bx": 3, "by": 3, "tid": 8}


def accesses(draw: random.Random, row_length: int, width: int) -> list[tuple[IntExpr, list[IntExpr]]]:
    """Two accesses of one layout, as two registers of a thread are: where they lie, and their guards."""
    across, apart, below = draw.choice([2, 4]), draw.choice([1, 2, 4]), draw.choice([1, 2])
    high, long = draw.randint(1, 9), row_length - width + 1 + draw.choice([0, 0, 0, 1, 2])
    found = []
    for _ in range(2):
        first, second = Int(draw.randrange(2 * below)), Int(width * draw.randrange(apart + 1))
        row = add(times(add(times(Var("by"), 8 // across), over(Var("tid"), across)), below), first)
        column = add(times(add(times(Var("bx"), across), rest(Var("tid"), across)), width * apart), second)
        guards = [less(row, high)] + ([less(column, long)] if draw.random() < 0.9 else [])
        found.append((add(times(row, row_length), column), guards))
    return found


def values(index: IntExpr, guards: list[IntExpr]) -> set[int]:
    found = set()
    for point in product(*(range(n) for n in EXTENTS.values())):
        at = dict(zip(EXTENTS, point, strict=True))
        if all(evaluate_expression(guard, at) for guard in guards):
            value = evaluate_expression(index, at)
            assert value is not None
            found.add(value)
    return found


def test_what_is_called_apart_never_meets() -> None:
    said = guarded = 0
    for seed in range(number(1200, 3000)):
        draw = random.Random(seed)
        row_length, width = draw.choice([3, 5, 7, 9, 11, 13, 17, 23]), draw.choice([1, 1, 2])
        (a, first), (b, second) = accesses(draw, row_length, width)
        x, y = to_digits(a, EXTENTS), to_digits(b, EXTENTS)
        assert x is not None
        assert y is not None
        if not are_separate(x, y, width, implied_facts(first, EXTENTS), implied_facts(second, EXTENTS)):
            continue
        said += 1
        guarded += not are_separate(x, y, width)
        mine, theirs = values(a, first), values(b, second)
        assert all(abs(i - j) >= width for i in mine for j in theirs), seed
    assert said > number(40, 100)
    assert guarded > number(20, 50)


@pytest.mark.parametrize("most", [24, 60, 150])
def test_points_are_counted_right_where_they_are_counted_apart(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a low limit, variables that the conditions share are set one value after another."""
    answered = 0
    for seed in range(300):
        draw = random.Random(seed)
        extents = {name: draw.randint(1, 6) for name in ("bx", "by", "tid", "u")}
        shared = rest(Var("tid"), 3)
        guards = [
            less(add(times(Var("bx"), draw.randint(1, 4)), shared), draw.randint(1, 12)),
            less(add(times(Var("by"), draw.randint(1, 4)), over(Var("tid"), 2)), draw.randint(1, 12)),
        ]
        wanted = 0
        for point in product(*(range(n) for n in extents.values())):
            at = dict(zip(extents, point, strict=True))
            wanted += all(evaluate_expression(guard, at) for guard in guards)
        monkeypatch.setattr(enumeration, "MAX_POINTS", most)
        found = count_points(guards, list(extents.items()), most)
        assert found in (None, wanted), seed
        answered += found is not None
    assert answered > 50
