"""Classes of blocks that do the same work at other places in device memory.

An index expression is separated into a part that depends on the block alone and a rest that depends on threads, loops
and positions in a tile. Two blocks are in one class if all conditions, and all expressions but addresses in device
memory, have the same values in both, for all threads and iterations. So one block of each class stands for all of them:
what it does with the element at address x, another one does with the element at x + d, where d depends on the block and
the access alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var

#: A number for each block of the grid, x fastest.
PerBlock = NDArray[np.int64]

_AXES: Final = ("bx", "by", "bz")


@dataclass(frozen=True, slots=True)
class SeparatedIndex:
    """An expression as block part plus rest.

    Attributes:
        block: The block part.
        low, high: Bounds of the rest.
        free: Whether there is a rest.
    """

    block: PerBlock
    low: PerBlock
    high: PerBlock
    free: bool


class BlockClasses:
    """Separates expressions, and collects what tells blocks apart.

    Sound: each rule is an identity of integers that holds for every block, whatever the rest is within its bounds; what
    has no such identity is made a key, on which all blocks of a class agree, and stands in the rest from there on.

    Args:
        grid: The extents of the grid.
    """

    def __init__(self, grid: tuple[int, int, int]) -> None:
        self.count = prod(grid)
        numbers = np.arange(self.count, dtype=np.int64)
        self.coordinates: dict[str, PerBlock] = {
            "bx": numbers % grid[0],
            "by": numbers // grid[0] % grid[1],
            "bz": numbers // (grid[0] * grid[1]),
        }
        self._keys: list[PerBlock] = []
        self._zero = np.zeros(self.count, np.int64)

    def require_equal(self, numbers: PerBlock) -> None:
        """Make a number something on which all blocks of a class agree."""
        if (numbers != numbers[0]).any():
            self._keys.append(numbers)

    def fix(self, e: IntExpr, extents: Mapping[str, int]) -> None:
        """Make an expression one that has the same value in all blocks of a class.

        Args:
            e: The expression.
            extents: The extents of its variables but those of the block.
        """
        self.require_equal(self.separate(e, extents).block)

    def classes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first block of each class, and the class of each block."""
        if not self._keys:
            return np.zeros(1, np.int64), self._zero
        _, first, of = np.unique(np.stack(self._keys), axis=1, return_index=True, return_inverse=True)
        return first.astype(np.int64), of.reshape(-1).astype(np.int64)

    def separate(self, e: IntExpr, extents: Mapping[str, int]) -> SeparatedIndex:
        """Return an expression as block part plus rest; see ``fix`` for the arguments."""
        match e:
            case Int():
                return SeparatedIndex(self._zero + e.value, self._zero, self._zero, False)
            case Var() if e.name in _AXES:
                return SeparatedIndex(self.coordinates[e.name], self._zero, self._zero, False)
            case Var():
                return SeparatedIndex(self._zero, self._zero, self._zero + (extents[e.name] - 1), True)
            case IntBin():
                return self._binary(e.op, self.separate(e.a, extents), self.separate(e.b, extents))

    def _binary(self, op: IntOp, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        free = a.free or b.free
        match op:
            case IntOp.ADD:
                return SeparatedIndex(a.block + b.block, a.low + b.low, a.high + b.high, free)
            case IntOp.SUB:
                return SeparatedIndex(a.block - b.block, a.low - b.high, a.high - b.low, free)
            case IntOp.LT | IntOp.EQ:
                return self._comparison(op, a, b)
            case IntOp.MUL:
                return self._product(a, b)
            case IntOp.DIV | IntOp.MOD if not b.free and (b.block == b.block[0]).all() and b.block[0] > 0:
                return self._quotient(op, a, int(b.block[0]))
            case _:
                return self._combine_equal_operands(op, a, b)

    def _product(self, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        if a.free and b.free:
            return self._combine_equal_operands(IntOp.MUL, a, b)
        if not a.free:
            a, b = b, a
        factor = b.block
        if a.free:
            self.require_equal(factor)
        ends = a.low * factor, a.high * factor
        return SeparatedIndex(a.block * factor, np.minimum(*ends), np.maximum(*ends), a.free)

    def _quotient(self, op: IntOp, a: SeparatedIndex, n: int) -> SeparatedIndex:
        """Return (A + R) / n or (A + R) % n, where A = n q + r: q + (r + R) / n or (r + R) % n."""
        rest = a.block % n
        inside = ((rest + a.low >= 0) & (rest + a.high < n)).all()
        if op is IntOp.DIV:
            if inside:
                return SeparatedIndex(a.block // n, self._zero, self._zero, False)
            self.require_equal(rest)
            return SeparatedIndex((a.block - rest) // n, (rest + a.low) // n, (rest + a.high) // n, a.free)
        if inside:
            return SeparatedIndex(rest, a.low, a.high, a.free)
        self.require_equal(rest)
        return SeparatedIndex(self._zero, self._zero, self._zero + (n - 1), True)

    def _comparison(self, op: IntOp, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        """Return a comparison: of A + R < 0, only the values of A for which R decides tell blocks apart."""
        difference = a.block - b.block
        low, high = a.low - b.high, a.high - b.low
        if not (a.free or b.free):
            holds = difference < 0 if op is IntOp.LT else difference == 0
            return SeparatedIndex(holds.astype(np.int64), self._zero, self._zero, False)
        if op is IntOp.LT:
            key = np.clip(difference, -high - 1, -low)
            always, never = key == -high - 1, key == -low
            if (always | never).all():
                return SeparatedIndex(always.astype(np.int64), self._zero, self._zero, False)
        else:
            key = np.where((-difference >= low) & (-difference <= high), difference, np.iinfo(np.int64).max)
        self.require_equal(key)
        return SeparatedIndex(self._zero, self._zero, self._zero + 1, True)

    def _combine_equal_operands(self, op: IntOp, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        """Return an expression that has no block part of its own; its operands are the same in a class."""
        if not (a.free or b.free):
            block = apply_integer(op, a.block, b.block)
            return SeparatedIndex(np.asarray(block, np.int64), self._zero, self._zero, False)
        self.require_equal(a.block)
        self.require_equal(b.block)
        most = [int((x.block + x.high).max()) for x in (a, b)]
        least = [int((x.block + x.low).min()) for x in (a, b)]
        match op:
            case IntOp.MUL:
                high = max(x * y for x in (least[0], most[0]) for y in (least[1], most[1]))
                low = min(x * y for x in (least[0], most[0]) for y in (least[1], most[1]))
            case IntOp.XOR:
                low, high = 0, (1 << max(*most, 1).bit_length()) - 1
            case IntOp.MOD:
                low, high = 0, most[1]
            case IntOp.DIV:
                low, high = 0, most[0]
            case _:
                low, high = 0, 1
        return SeparatedIndex(self._zero, self._zero + low, self._zero + high, True)


def apply_integer(op: IntOp, a: Any, b: Any) -> Any:
    """Return a op b of integers that are not negative, or of arrays of them.

    Raises:
        ZeroDivisionError: A divisor is 0.
    """
    if op in (IntOp.DIV, IntOp.MOD) and not np.all(b):
        raise ZeroDivisionError("an integer is divided by 0")
    match op:
        case IntOp.ADD:
            return a + b
        case IntOp.SUB:
            return a - b
        case IntOp.MUL:
            return a * b
        case IntOp.DIV:
            return a // b
        case IntOp.MOD:
            return a % b
        case IntOp.XOR:
            return a ^ b
        case IntOp.LT:
            return (a < b) * 1
        case IntOp.EQ:
            return (a == b) * 1
        case IntOp.AND:
            return ((a != 0) & (b != 0)) * 1


def compile_index(e: IntExpr) -> Callable[[Mapping[str, Any]], Any]:
    """Return an expression as a function of its variables' values: integers, or arrays that broadcast."""
    match e:
        case Int(value):
            return lambda values: value
        case Var(name):
            return lambda values: values[name]
        case IntBin(op, a, b):
            left, right = compile_index(a), compile_index(b)
            return lambda values: apply_integer(op, left(values), right(values))
        case _:
            assert_never(e)


__all__ = ["BlockClasses", "PerBlock", "SeparatedIndex", "apply_integer", "compile_index"]
