"""Arithmetic about index expressions without a solver: folding, bounds under conditions, divisors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from mirage_formal.claims.safety.arith import Range, interval, operate
from mirage_formal.kernels.program.program import Int, IntBin, IntExpr, IntOp, Var

ZERO = Int(0)
ONE = Int(1)


def binary(op: IntOp, a: IntExpr, b: IntExpr) -> IntExpr:
    """``a op b``, computed where both are constants, without neutral elements."""
    match op, a, b:
        case _, Int(x), Int(y):
            value = operate(op, x, y)
            return IntBin(op, a, b) if value is None else Int(value)
        case (IntOp.ADD | IntOp.SUB, _, Int(0)) | (IntOp.MUL | IntOp.DIV, _, Int(1)):
            return a
        case (IntOp.ADD, Int(0), _) | (IntOp.MUL, Int(1), _):
            return b
        case (IntOp.MUL, Int(0), _) | (IntOp.MUL, _, Int(0)) | (IntOp.MOD, _, Int(1)) | (IntOp.AND, Int(0), _):
            return ZERO
    return IntBin(op, a, b)


def add(a: IntExpr, b: IntExpr) -> IntExpr:
    """Their sum."""
    return binary(IntOp.ADD, a, b)


def times(a: IntExpr, factor: int) -> IntExpr:
    """A multiple."""
    return binary(IntOp.MUL, a, Int(factor))


def less(a: IntExpr, b: IntExpr) -> IntExpr:
    """1 where ``a < b``, else 0."""
    return binary(IntOp.LT, a, b)


def negated(a: IntExpr) -> IntExpr:
    """1 where ``a`` is 0, else 0."""
    return binary(IntOp.EQ, a, ZERO)


def fold(e: IntExpr, values: Mapping[str, IntExpr]) -> IntExpr:
    """The expression with some variables replaced, folded."""
    match e:
        case Int():
            return e
        case Var(name):
            return values.get(name, e)
        case IntBin(op, a, b):
            return binary(op, fold(a, values), fold(b, values))


def variables(e: IntExpr) -> frozenset[str]:
    """The names in an expression."""
    match e:
        case Int():
            return frozenset()
        case Var(name):
            return frozenset((name,))
        case IntBin(_, a, b):
            return variables(a) | variables(b)


def intermediates(e: IntExpr) -> tuple[IntExpr, ...]:
    """An expression's operations, innermost first."""
    match e:
        case IntBin(_, a, b):
            return (*intermediates(a), *intermediates(b), e)
        case _:
            return (e,)


def divisor(e: IntExpr) -> int:
    """A number that divides every value of the expression; 0 if that is always 0.

    Sound: by induction: sums keep common divisors, products multiply them, ``a % c`` differs from a by a multiple of c,
    ``a / c`` is exact where c divides a, and ``^`` keeps common powers of two.
    """
    match e:
        case Int(value):
            return abs(value)
        case Var():
            return 1
        case IntBin(IntOp.ADD | IntOp.SUB, a, b):
            return gcd(divisor(a), divisor(b))
        case IntBin(IntOp.MUL, a, b):
            return divisor(a) * divisor(b)
        case IntBin(IntOp.MOD, a, Int(c)) if c > 0:
            return gcd(divisor(a), c)
        case IntBin(IntOp.DIV, a, Int(c)) if c > 0 and divisor(a) % c == 0:
            return divisor(a) // c
        case IntBin(IntOp.XOR, a, b):
            common = gcd(divisor(a), divisor(b))
            return common & -common
        case _:
            return 1


def conjuncts(guards: Iterable[IntExpr]) -> tuple[IntExpr, ...]:
    """Conditions with ``&&`` taken apart and constants that hold left out."""
    found: list[IntExpr] = []
    for guard in guards:
        match guard:
            case IntBin(IntOp.AND, a, b):
                found += conjuncts((a, b))
            case Int(value) if value != 0:
                pass
            case _:
                found.append(guard)
    return tuple(found)


def known(guards: Iterable[IntExpr], ranges: Mapping[str, Range]) -> dict[IntExpr, Range]:
    """Bounds of subexpressions that follow from conditions being nonzero.

    Sound: each is read off one condition: ``a < b`` bounds a by the largest b and b by the least a, ``a == b`` each by
    the other's bounds, ``(a < b) == 0`` as ``b <= a``. Bounds that contradict each other mean that the conditions
    never hold.
    """
    found: dict[IntExpr, Range] = {}

    def note(e: IntExpr, low: int | None, high: int | None) -> None:
        old = interval(e, ranges, found)
        found[e] = (old[0] if low is None else max(old[0], low), old[1] if high is None else min(old[1], high))

    for guard in conjuncts(guards):
        match guard:
            case IntBin(IntOp.LT, a, b):
                x, y = interval(a, ranges, found), interval(b, ranges, found)
                note(a, None, y[1] - 1)
                note(b, x[0] + 1, None)
            case IntBin(IntOp.EQ, IntBin(IntOp.LT, a, b), Int(0)):
                x, y = interval(a, ranges, found), interval(b, ranges, found)
                note(a, y[0], None)
                note(b, None, x[1])
            case IntBin(IntOp.EQ, a, b):
                x, y = interval(a, ranges, found), interval(b, ranges, found)
                note(a, *y)
                note(b, *x)
    return found


def contradictory(bounds: Mapping[IntExpr, Range]) -> bool:
    """Whether some bounds are empty: then the conditions that they follow from never hold."""
    return any(low > high for low, high in bounds.values())
