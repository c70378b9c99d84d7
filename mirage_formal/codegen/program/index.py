"""Integer expressions of a Program, simplified as they are built by means of their known ranges."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, prod

from mirage_formal.codegen.program.integers import ONE, ZERO, make_binary, multiply
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var


class IndexBuilder:
    """A builder of integer expressions over variables of known ranges 0 .. extent-1."""

    def __init__(self, ranges: dict[str, int]) -> None:
        self._ranges = dict(ranges)
        self._count = 0

    def variable(self, extent: int, stem: str = "i") -> Var:
        """Return a new loop variable with values 0..extent - 1, named by ``stem`` and a number."""
        name = f"{stem}{self._count}"
        self._count += 1
        self._ranges[name] = extent
        return Var(name)

    def named(self, name: str, extent: int) -> Var:
        """Return a loop variable of a given name."""
        self._ranges[name] = extent
        return Var(name)

    def most(self, e: IntExpr) -> int:
        """Return an upper bound of a well-formed expression: no intermediate value is negative.

        No proof rests on it, but every bound shows in the text of kernels. Proofs of safety, which may assume nothing
        about expressions, have bounds of their own (``integers.interval``).
        """
        match e:
            case Int():
                return e.value
            case Var():
                return self._ranges[e.name] - 1
            case IntBin():
                return self._most(e)

    def _most(self, e: IntBin) -> int:
        a = self.most(e.a)
        match e.op:
            case IntOp.ADD:
                return a + self.most(e.b)
            case IntOp.SUB:
                return a
            case IntOp.MUL:
                return a * self.most(e.b)
            case IntOp.DIV:
                return a // e.b.value if isinstance(e.b, Int) else a
            case IntOp.MOD:
                return min(a, self.most(e.b) - 1) if isinstance(e.b, Int) else a
            case IntOp.XOR:
                return (1 << max(a, self.most(e.b)).bit_length()) - 1
            case _:
                return 1

    def add(self, *terms: IntExpr) -> IntExpr:
        """Return the sum of terms."""
        constant = 0
        out: IntExpr | None = None
        for term in terms:
            if isinstance(term, Int):
                constant += term.value
            elif out is None:
                out = term
            else:
                out = IntBin(IntOp.ADD, out, term)
        if out is None:
            return Int(constant)
        return out if constant == 0 else IntBin(IntOp.ADD, out, Int(constant))

    def mul(self, e: IntExpr, factor: int) -> IntExpr:
        """Return e * factor; a constant factor of e is multiplied by it, so that there is one."""
        if isinstance(e, IntBin) and e.op is IntOp.MUL and isinstance(e.b, Int):
            return multiply(e.a, e.b.value * factor)
        return multiply(e, factor)

    def split(self, e: IntExpr, n: int) -> tuple[IntExpr, IntExpr] | None:
        """Return (q, r) with e = q * n + r and r < n, if the form of e shows them; else None."""
        if self.most(e) < n:
            return ZERO, e
        if isinstance(e, Int):
            return Int(e.value // n), Int(e.value % n)
        if isinstance(e, IntBin) and e.op is IntOp.MUL and isinstance(e.b, Int) and e.b.value % n == 0:
            return self.mul(e.a, e.b.value // n), ZERO
        if isinstance(e, IntBin) and e.op is IntOp.ADD:
            a, b = self.split(e.a, n), self.split(e.b, n)
            if a is not None and b is not None:
                rest = self.add(a[1], b[1])
                if self.most(rest) < n:
                    return self.add(a[0], b[0]), rest
        return None

    def div(self, e: IntExpr, n: int) -> IntExpr:
        """Return e / n, rounded down."""
        if n == 1:
            return e
        if (found := self.split(e, n)) is not None:
            return found[0]
        if isinstance(e, IntBin) and e.op is IntOp.DIV and isinstance(e.b, Int):
            return self.div(e.a, e.b.value * n)
        return IntBin(IntOp.DIV, e, Int(n))

    def mod(self, e: IntExpr, n: int) -> IntExpr:
        """Return e % n, as an expression without a remainder where ``split`` finds one."""
        if n == 1:
            return ZERO
        if (found := self.split(e, n)) is not None:
            return found[1]
        return IntBin(IntOp.MOD, e, Int(n))

    def sub(self, a: IntExpr, b: IntExpr) -> IntExpr:
        """Return a - b, which must not be negative."""
        return make_binary(IntOp.SUB, a, b)

    def xor(self, a: IntExpr, b: IntExpr) -> IntExpr:
        """Return a ^ b."""
        if ZERO in (a, b):
            return b if a == ZERO else a
        return make_binary(IntOp.XOR, a, b)

    def less(self, e: IntExpr, n: int) -> IntExpr:
        """Return the condition e < n; a constant where it is known."""
        if self.most(e) < n:
            return ONE
        if isinstance(e, Int):
            return ONE if e.value < n else ZERO
        if isinstance(e, IntBin) and e.op is IntOp.MUL and isinstance(e.b, Int):
            return self.less(e.a, -(-n // e.b.value))
        return IntBin(IntOp.LT, e, Int(n))

    def before(self, a: IntExpr, b: IntExpr, distance: int) -> IntExpr:
        """Return the condition a < b + distance, in which no intermediate value is negative."""
        return make_binary(IntOp.LT, self.add(a, Int(max(-distance, 0))), self.add(b, Int(max(distance, 0))))

    def equal(self, e: IntExpr, n: int) -> IntExpr:
        """Return the condition e == n; a constant where it is known."""
        if isinstance(e, Int):
            return ONE if e.value == n else ZERO
        if self.most(e) < n:
            return ZERO
        if n == 0 and self.most(e) == 0:
            return ONE
        return IntBin(IntOp.EQ, e, Int(n))

    def both(self, conditions: Iterable[IntExpr]) -> IntExpr:
        """Return the conjunction of conditions; the constant 1 if all are known to hold."""
        out: IntExpr = ONE
        for condition in conditions:
            if condition == ZERO:
                return ZERO
            if condition != ONE:
                out = condition if out == ONE else IntBin(IntOp.AND, out, condition)
        return out

    def clamped(self, e: IntExpr, n: int) -> IntExpr:
        """Return an expression that is e where e < n, and some number below n elsewhere."""
        if self.most(e) < n:
            return e
        return IntBin(IntOp.MOD, e, Int(n))

    def unravel(self, e: IntExpr, shape: tuple[int, ...]) -> tuple[IntExpr, ...]:
        """Return the coordinates of the element at a row-major position."""
        out: list[IntExpr] = []
        step = 1
        for position, extent in enumerate(reversed(shape)):
            part = self.div(e, step)
            out.append(part if position == len(shape) - 1 else self.mod(part, extent))
            step *= extent
        return tuple(ZERO if extent == 1 else part for extent, part in zip(shape, reversed(out), strict=True))

    def ravel(self, coordinates: Iterable[IntExpr], strides: Iterable[int]) -> IntExpr:
        """Return the sum of coordinates times strides."""
        return self.add(*(self.mul(c, s) for c, s in zip(coordinates, strides, strict=True)))


class DigitBuilder:
    """A builder of expressions for mixed-radix digits, which layout compositions split and recombine several times.

    Quotients and remainders of sums are simplified from the form of their terms, which ``IndexBuilder`` leaves to the
    kernel's compiler.

    Args:
        ix: Builds the expressions.
    """

    def __init__(self, ix: IndexBuilder) -> None:
        self._ix = ix

    def number(self, value: int) -> IntExpr:
        """Return a constant."""
        return Int(value)

    def add(self, *terms: IntExpr) -> IntExpr:
        """Return the sum of terms."""
        return self._ix.add(*terms)

    def less(self, e: IntExpr, n: int) -> IntExpr:
        """Return the condition e < n."""
        return self._ix.less(e, n)

    def ravel(self, coordinates: Iterable[IntExpr], strides: Iterable[int]) -> IntExpr:
        """Return the sum of coordinates times strides."""
        return self._ix.ravel(coordinates, strides)

    def unravel(self, e: IntExpr, shape: tuple[int, ...]) -> tuple[IntExpr, ...]:
        """Return the coordinates of the element at a row-major position."""
        steps = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
        parts = [self._quotient(e, step) for step in steps]
        found = [parts[0] if dim == 0 else self.mod(part, shape[dim]) for dim, part in enumerate(parts)]
        return tuple(ZERO if extent == 1 else part for extent, part in zip(shape, found, strict=True))

    def mod(self, e: IntExpr, n: int) -> IntExpr:
        """Return e % n: without multiples of n among the terms, and digit by digit where the terms have digits."""
        if self._ix.split(e, n) is None and n > 1:
            whole, rest = self._parted(e, n)
            if whole != ZERO:
                return self.mod(rest, n)
            for f in self._factors(e, n):
                if (found := self._ix.split(e, f)) is not None:
                    return self._ix.add(self._ix.mul(self.mod(found[0], n // f), f), found[1])
        return self._ix.mod(e, n)

    def _quotient(self, e: IntExpr, n: int) -> IntExpr:
        """Return e / n, rounded down, simplified as in ``mod``."""
        if self._ix.split(e, n) is None and n > 1:
            whole, rest = self._parted(e, n)
            if whole != ZERO:
                return self._ix.add(whole, self._quotient(rest, n))
            for f in self._factors(e, n):
                if (found := self._ix.split(e, f)) is not None:
                    return self._quotient(found[0], n // f)
        return self._ix.div(e, n)

    def _parted(self, e: IntExpr, n: int) -> tuple[IntExpr, IntExpr]:
        """Return (q, r) with e = q * n + r, where r keeps the terms of a sum that are not evidently multiples of n."""
        terms = _terms(e)
        multiples = [self._ix.mul(atom, factor // n) for factor, atom in terms if factor % n == 0]
        others = [self._ix.mul(atom, factor) for factor, atom in terms if factor % n]
        return self._ix.add(*multiples), self._ix.add(*others) if multiples else e

    def _factors(self, e: IntExpr, n: int) -> list[int]:
        """Return divisors of n that divide terms of a sum, the largest first."""
        return sorted({f for factor, _ in _terms(e) if 1 < (f := gcd(factor, n)) < n}, reverse=True)


def _terms(e: IntExpr) -> list[tuple[int, IntExpr]]:
    """Return the terms of a sum as pairs of a constant factor and an expression."""
    match e:
        case IntBin(IntOp.ADD, a, b):
            return [*_terms(a), *_terms(b)]
        case IntBin(IntOp.MUL, a, Int(factor)):
            return [(factor * inner, atom) for inner, atom in _terms(a)]
        case Int(value):
            return [(value, ONE)]
        case _:
            return [(1, e)]
