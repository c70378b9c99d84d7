"""Arithmetic on index expressions without a solver: evaluation, constant folding, interval bounds, divisors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd
from typing import Final

from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var

Range = tuple[int, int]

ZERO: Final = Int(0)
ONE: Final = Int(1)


def evaluate_expression(e: IntExpr, values: Mapping[str, int]) -> int | None:
    """Return the value of an expression; None where division by 0 or a negative operand of ``/ % ^`` occurs."""
    match e:
        case Int(value):
            return value
        case Var(name):
            return values[name]
        case IntBin(op, a, b):
            x = evaluate_expression(a, values)
            if op is IntOp.AND and x == 0:
                return 0
            y = evaluate_expression(b, values)
            return None if x is None or y is None else apply_operator(op, x, y)


def apply_operator(op: IntOp, x: int, y: int) -> int | None:
    """Return ``x op y`` for integers; None where it is undefined."""
    match op:
        case IntOp.ADD:
            return x + y
        case IntOp.SUB:
            return x - y
        case IntOp.MUL:
            return x * y
        case IntOp.DIV:
            return x // y if x >= 0 and y > 0 else None
        case IntOp.MOD:
            return x % y if x >= 0 and y > 0 else None
        case IntOp.XOR:
            return x ^ y if x >= 0 and y >= 0 else None
        case IntOp.LT:
            return int(x < y)
        case IntOp.EQ:
            return int(x == y)
        case IntOp.AND:
            return int(x != 0 and y != 0)


def make_binary(op: IntOp, a: IntExpr, b: IntExpr) -> IntExpr:
    """Return ``a op b``, folded if both are constants, and without neutral elements."""
    match op, a, b:
        case _, Int(x), Int(y):
            value = apply_operator(op, x, y)
            return IntBin(op, a, b) if value is None else Int(value)
        case (IntOp.ADD | IntOp.SUB, _, Int(0)) | (IntOp.MUL | IntOp.DIV, _, Int(1)):
            return a
        case (IntOp.ADD, Int(0), _) | (IntOp.MUL, Int(1), _):
            return b
        case (IntOp.MUL, Int(0), _) | (IntOp.MUL, _, Int(0)) | (IntOp.MOD, _, Int(1)) | (IntOp.AND, Int(0), _):
            return ZERO
    return IntBin(op, a, b)


def add(a: IntExpr, b: IntExpr) -> IntExpr:
    """Return the sum of two expressions."""
    return make_binary(IntOp.ADD, a, b)


def multiply(a: IntExpr, factor: int) -> IntExpr:
    """Return an expression times a constant."""
    return make_binary(IntOp.MUL, a, Int(factor))


def less_than(a: IntExpr, b: IntExpr) -> IntExpr:
    """Return an expression that is 1 where ``a < b``, else 0."""
    return make_binary(IntOp.LT, a, b)


def negate(a: IntExpr) -> IntExpr:
    """Return an expression that is 1 where ``a`` is 0, else 0."""
    return make_binary(IntOp.EQ, a, ZERO)


def fold(e: IntExpr, values: Mapping[str, IntExpr]) -> IntExpr:
    """Return the expression with some variables replaced, and constants folded."""
    match e:
        case Int():
            return e
        case Var(name):
            return values.get(name, e)
        case IntBin(op, a, b):
            return make_binary(op, fold(a, values), fold(b, values))


def variables(e: IntExpr) -> frozenset[str]:
    """Return the names of the variables in an expression."""
    match e:
        case Int():
            return frozenset()
        case Var(name):
            return frozenset((name,))
        case IntBin(_, a, b):
            return variables(a) | variables(b)


def intermediates(e: IntExpr) -> tuple[IntExpr, ...]:
    """Return all subexpressions with constants and variables, operands before the operations that use them."""
    match e:
        case IntBin(_, a, b):
            return (*intermediates(a), *intermediates(b), e)
        case _:
            return (e,)


def divisor(e: IntExpr) -> int:
    """Return a number that divides every value of the expression; 0 if the value is always 0.

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


def interval(e: IntExpr, ranges: Mapping[str, Range], known: Mapping[IntExpr, Range] | None = None) -> Range:
    """Return bounds of an expression's value.

    Sound: every value that the expression takes for variables in ``ranges`` and subexpressions in ``implied_bounds``
    lies within, as long as no operand of ``/``, ``%`` or ``^`` is negative (arithmetic obligations say so). Proofs of
    safety rest on it, so it may become closer but never assumes that an expression is well-formed.
    ``IndexBuilder.most`` does, and what it says shows in the text of kernels.

    Args:
        e: The expression.
        ranges: Bounds of each variable.
        known: Bounds that hold for subexpressions besides.
    """
    match e:
        case Int(value):
            found = (value, value)
        case Var(name):
            found = ranges[name]
        case IntBin(op, a, b):
            found = operator_bounds(op, interval(a, ranges, known), interval(b, ranges, known))
    if known:
        extra = known.get(e)
        if extra is not None:
            found = max(found[0], extra[0]), min(found[1], extra[1])
    return found


def operator_bounds(op: IntOp, a: Range, b: Range) -> Range:
    """Return bounds of ``a op b``; see ``interval``."""
    match op:
        case IntOp.ADD:
            return a[0] + b[0], a[1] + b[1]
        case IntOp.SUB:
            return a[0] - b[1], a[1] - b[0]
        case IntOp.MUL:
            products = [x * y for x in a for y in b]
            return min(products), max(products)
        case IntOp.DIV:
            low, high = max(b[0], 1), max(b[1], 1)
            return (max(a[0], 0) // high, max(a[1], 0) // low)
        case IntOp.MOD:
            high = max(b[1], 1)
            if b[0] == b[1] and 0 <= a[0] <= a[1] and a[0] // high == a[1] // high:
                return a[0] % high, a[1] % high
            return 0, min(high - 1, max(a[1], 0))
        case IntOp.XOR:
            if a[0] == a[1] and b[0] == b[1] and min(a[0], b[0]) >= 0:
                return a[0] ^ b[0], a[0] ^ b[0]
            return 0, (1 << max(a[1], b[1], 0).bit_length()) - 1
        case IntOp.LT:
            return int(a[1] < b[0]), int(a[0] < b[1])
        case IntOp.EQ:
            return int(a[0] == a[1] == b[0] == b[1]), int(a[0] <= b[1] and b[0] <= a[1])
        case IntOp.AND:
            return int(_nonzero(a) and _nonzero(b)), int(a != (0, 0) and b != (0, 0))


def _nonzero(a: Range) -> bool:
    return a[0] > 0 or a[1] < 0


def conjuncts(guards: Iterable[IntExpr]) -> tuple[IntExpr, ...]:
    """Return conditions with ``&&`` split into its operands, without constants that hold."""
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


def implied_bounds(guards: Iterable[IntExpr], ranges: Mapping[str, Range]) -> dict[IntExpr, Range]:
    """Return bounds of subexpressions that follow from conditions being nonzero.

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


def are_contradictory(bounds: Mapping[IntExpr, Range]) -> bool:
    """Return whether some bounds are empty, so that the conditions that imply them never hold."""
    return any(low > high for low, high in bounds.values())
