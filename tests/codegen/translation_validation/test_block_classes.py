"""Expressions separated into a block part and a rest, held to all blocks, threads and iterations one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.translation_validation.block_classes import BlockClasses, SeparatedIndex
from mirage_formal.codegen.translation_validation.program_evaluation import apply_integer
from tests.kit.sampling import number

GRID = (4, 3, 2)
BLOCKS = 24
EXTENTS = {"tid": 8, "i": 3, "l0": 2}
Ints = NDArray[np.int64]


def environment() -> dict[str, Ints]:
    """All variables at all points: [blocks, tid, i, l0]."""
    blocks = np.arange(BLOCKS)
    coordinates = {"bx": blocks % 4, "by": blocks // 4 % 3, "bz": blocks // 12}
    found: dict[str, Ints] = {name: at.reshape(-1, 1, 1, 1) for name, at in coordinates.items()}
    for axis, (name, extent) in enumerate(EXTENTS.items(), 1):
        found[name] = np.arange(extent).reshape([-1 if d == axis else 1 for d in range(4)])
    return found


ENVIRONMENT = environment()


class NegativeError(Exception):
    """An operand is negative, or a divisor 0: not what ``IntOp`` is defined for."""


def value(e: IntExpr) -> Ints:
    """The value of an expression at all points."""
    match e:
        case Int(n):
            return np.full((BLOCKS, *EXTENTS.values()), n)
        case Var(name):
            return np.broadcast_to(ENVIRONMENT[name], (BLOCKS, *EXTENTS.values()))
        case IntBin(op, a, b):
            left, right = value(a), value(b)
            signed = op in (IntOp.ADD, IntOp.SUB, IntOp.LT, IntOp.EQ)  # which differences may reach
            if (not signed and min(left.min(), right.min()) < 0) or (op in (IntOp.DIV, IntOp.MOD) and not right.all()):
                raise NegativeError
            return np.asarray(apply_integer(op, left, right), np.int64)


def expression(draw: random.Random, depth: int) -> IntExpr:
    """Any expression: constants such as indices have, and operators as often as there."""
    if depth == 0 or draw.random() < 0.15:
        if draw.random() < 0.35:
            return Int(draw.choice([0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64]))
        return Var(draw.choice(["bx", "by", "bz", "tid", "tid", "i", "l0"]))
    op = draw.choice([*IntOp, IntOp.ADD, IntOp.ADD, IntOp.MUL, IntOp.DIV, IntOp.MOD])
    left = expression(draw, depth - 1)
    if op in (IntOp.MUL, IntOp.DIV, IntOp.MOD) and draw.random() < 0.8:
        return IntBin(op, left, Int(draw.choice([1, 2, 3, 4, 8, 12])))
    return IntBin(op, left, expression(draw, depth - 1))


def drawn(seed: int) -> tuple[IntExpr, Ints]:
    """An expression that has a value everywhere, and its values."""
    draw = random.Random(seed)
    while True:
        e = expression(draw, draw.choice([2, 3, 4, 5]))
        try:
            return e, value(e)
        except NegativeError:
            continue


def representatives(classes: list[Ints]) -> Ints:
    """For each block, the first one of its class; each block is in one class."""
    np.testing.assert_array_equal(np.sort(np.concatenate(classes)), np.arange(BLOCKS))
    found = np.zeros(BLOCKS, np.int64)
    for members in classes:
        found[members] = members.min()
        assert members[0] == members.min()
    return found


def check(found: SeparatedIndex, values: Ints, classes: list[Ints]) -> None:
    """All blocks of a class differ by their block parts, at all points; the rest lies within its bounds."""
    one = representatives(classes)
    block = found.block.reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(values - values[one], np.broadcast_to(block - block[one], values.shape))
    rest = values - block
    low, high = found.rest
    assert low <= rest.min() <= rest.max() <= high


@pytest.mark.parametrize("part", range(4))
def test_blocks_of_a_class_differ_by_their_block_parts(part: int) -> None:
    few = 0
    for seed in range(part, number(1200, 20_000), 4):
        e, values = drawn(seed)
        work = BlockClasses(GRID)
        found = work.separate(e, EXTENTS)
        check(found, values, work.classes())
        few += len(work.classes()) < BLOCKS
    assert few > 200  # classes are not just blocks


@pytest.mark.parametrize("seed", range(number(60, 600)))
def test_fixed_expressions_are_the_same_in_a_class_also_beside_others(seed: int) -> None:
    work, made = BlockClasses(GRID), [drawn(1_000_000 + 4 * seed + k) for k in range(4)]
    separated = [work.separate(e, EXTENTS) for e, _ in made[:2]]
    for e, _ in made[2:]:
        work.fix(e, EXTENTS)
    classes = work.classes()
    for found, (_, values) in zip(separated, made, strict=False):
        check(found, values, classes)
    for _, values in made[2:]:
        np.testing.assert_array_equal(values, values[representatives(classes)])


def test_tiles_and_rings_and_swizzles_have_one_class() -> None:
    """What kernels are made of: a tile's address, a stage and a swizzle of a thread, and the rows of a thread."""
    bx, tid, i = Var("bx"), Var("tid"), Var("i")

    def bin_(op: IntOp, a: IntExpr, b: IntExpr | int) -> IntExpr:
        return IntBin(op, a, Int(b) if isinstance(b, int) else b)

    row = bin_(IntOp.ADD, bin_(IntOp.MUL, bx, 8), tid)
    address = bin_(IntOp.ADD, bin_(IntOp.MUL, row, 64), bin_(IntOp.MUL, i, 16))
    swizzle = bin_(IntOp.XOR, bin_(IntOp.MOD, tid, 4), bin_(IntOp.DIV, tid, 2))
    work = BlockClasses(GRID)
    np.testing.assert_array_equal(work.separate(address, EXTENTS).block, 512 * (np.arange(BLOCKS) % 4))
    np.testing.assert_array_equal(work.separate(bin_(IntOp.DIV, row, 8), EXTENTS).block, np.arange(BLOCKS) % 4)
    work.fix(swizzle, EXTENTS)
    work.fix(bin_(IntOp.MOD, row, 8), EXTENTS)
    assert len(work.classes()) == 1
    work.fix(bin_(IntOp.LT, row, 27), EXTENTS)  # the last block of four has rows beyond
    assert len(work.classes()) == 2


def test_division_by_zero_is_no_number() -> None:
    for op in (IntOp.DIV, IntOp.MOD):
        for divisor in (0, np.array([1, 0])):
            with pytest.raises(ZeroDivisionError):
                apply_integer(op, 3, divisor)
