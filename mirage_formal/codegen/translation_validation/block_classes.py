"""Classes of blocks that do the same work at other places in device memory.

An index expression is separated into a part that depends on the block alone and a rest that depends on threads, loops
and positions in a tile. Two blocks are in one class if all conditions, and all expressions but addresses in device
memory, have the same values in both, for all threads and iterations. So one block of each class stands for all of them:
what it does with the element at address x, another one does with the element at x + d, where d depends on the block and
the access alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.integers import Range, operator_bounds
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.translation_validation.program_evaluation import apply_integer

#: A number for each block of the grid, x fastest.
PerBlock = NDArray[np.int64]
_NONE: Final = (0, 0)


@dataclass(frozen=True, slots=True)
class SeparatedIndex:
    """An expression as block part plus rest.

    Attributes:
        block: The block part.
        rest: Bounds of the rest; (0, 0) if there is none.
    """

    block: PerBlock
    rest: Range = _NONE

    def bounds(self) -> Range:
        """Return bounds of the expression in all blocks."""
        return int(self.block.min()) + self.rest[0], int(self.block.max()) + self.rest[1]


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

    def classes(self) -> list[NDArray[np.int64]]:
        """Return the blocks of each class."""
        if not self._keys:
            return [np.arange(self.count, dtype=np.int64)]
        _, of = np.unique(np.stack(self._keys), axis=1, return_inverse=True)
        order = np.argsort(of.reshape(-1), kind="stable")
        return np.split(order, np.cumsum(np.bincount(of.reshape(-1)))[:-1])

    def separate(self, e: IntExpr, extents: Mapping[str, int]) -> SeparatedIndex:
        """Return an expression as block part plus rest; see ``fix`` for the arguments."""
        match e:
            case Int():
                return SeparatedIndex(self._zero + e.value)
            case Var():
                if e.name in self.coordinates:
                    return SeparatedIndex(self.coordinates[e.name])
                return SeparatedIndex(self._zero, (0, extents[e.name] - 1))
            case IntBin():
                return self._binary(e.op, self.separate(e.a, extents), self.separate(e.b, extents))

    def _binary(self, op: IntOp, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        if a.rest == b.rest == _NONE:
            return SeparatedIndex(np.asarray(apply_integer(op, a.block, b.block), np.int64))
        match op:
            case IntOp.ADD | IntOp.SUB:
                return SeparatedIndex(apply_integer(op, a.block, b.block), operator_bounds(op, a.rest, b.rest))
            case IntOp.LT | IntOp.EQ:
                return self._comparison(op, a, b)
            case IntOp.MUL if _NONE in (a.rest, b.rest):
                a, b = (a, b) if b.rest == _NONE else (b, a)
                self.require_equal(b.block)
                return SeparatedIndex(a.block * b.block, operator_bounds(op, a.rest, b.bounds()))
            case IntOp.DIV | IntOp.MOD if b.bounds() == (n := int(b.block[0]), n) and n > 0:
                return self._quotient(op, a, n)
        self.require_equal(a.block)
        self.require_equal(b.block)
        return SeparatedIndex(self._zero, operator_bounds(op, a.bounds(), b.bounds()))

    def _quotient(self, op: IntOp, a: SeparatedIndex, n: int) -> SeparatedIndex:
        """Return (A + R) / n or (A + R) % n, where A = n q + r: q + (r + R) / n or (r + R) % n."""
        part = a.block % n
        low, high = int(part.min()) + a.rest[0], int(part.max()) + a.rest[1]
        inside = 0 <= low <= high < n
        if not inside:
            self.require_equal(part)
        if op is IntOp.DIV:
            return SeparatedIndex(a.block // n, (low // n, high // n))
        return SeparatedIndex(part, a.rest) if inside else SeparatedIndex(self._zero, (0, n - 1))

    def _comparison(self, op: IntOp, a: SeparatedIndex, b: SeparatedIndex) -> SeparatedIndex:
        """Return a comparison: of A + R < 0, only the values of A for which R decides tell blocks apart."""
        difference = a.block - b.block
        low, high = operator_bounds(IntOp.SUB, a.rest, b.rest)
        if op is IntOp.LT:
            key = np.clip(difference, -high - 1, -low)
            always = key == -high - 1
            if (always | (key == -low)).all():
                return SeparatedIndex(always.astype(np.int64))
        else:
            key = np.where((-difference >= low) & (-difference <= high), difference, np.iinfo(np.int64).max)
        self.require_equal(key)
        return SeparatedIndex(self._zero, (0, 1))


__all__ = ["BlockClasses", "PerBlock", "SeparatedIndex"]
