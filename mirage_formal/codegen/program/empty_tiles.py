"""Loop iterations that can be skipped because a band mask is 0 on their whole tile.

In a causal mask, a block that computes rows up to i needs no columns after i. The mask's tile is empty there, the
selected exponentials are 0, and no accumulator changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import Final

from mirage_formal.graph.graph import BlockGraph, BlockOp, Op
from mirage_formal.graph.ops import SPECS, OpKind
from mirage_formal.graph.types import Band, Shape
from mirage_formal.semantics.functions import ZEROS

#: The value with which running maxima begin; a maximum with it or with less changes nothing.
LOWEST: Final = Fraction(2**128 - 2**104) * -1

#: Operators whose result is 0 if all their operands are 0.
_ZEROS: Final = ZEROS | {
    OpKind.ADD,
    OpKind.SUB,
    OpKind.SCALE,
    OpKind.CAST,
    OpKind.SUM,
    OpKind.MEAN,
    OpKind.MAX,
    OpKind.SUM_TO_DIMX,
    OpKind.REPEAT,
    OpKind.CONCAT,
    OpKind.MAXIMUM,
    OpKind.MINIMUM,
}
#: Operators whose result is 0 if one of their operands is 0.
_PRODUCTS: Final = frozenset({OpKind.MUL, OpKind.MATMUL})
_SUMS: Final = frozenset({OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_SUM_TO_DIMX})
_RESCALED_SUMS: Final = frozenset({OpKind.ACCUM_RESCALED_SUM, OpKind.ACCUM_RESCALED_SUM_LAST})


@dataclass(frozen=True, slots=True)
class _UnchangedMaximum:
    """A running maximum that an iteration leaves unchanged."""


#: A tensor in an iteration with an empty tile: one number everywhere, an unchanged running maximum, or unknown.
_Empty = Fraction | _UnchangedMaximum | None


def skippable_mask(block: BlockGraph, bands: Sequence[Band | None]) -> int | None:
    """Return the input iterator of a band mask whose empty tiles leave every accumulator as it is; None if none.

    Only bands without a lower bound count, whose empty tiles are the last ones of a block's loop.

    Sound: a selection by a mask of zeros is the other value, products with 0 are 0 over the reals, a sum of zeros adds
    nothing, and a maximum over what is at most the value that it begins with stays what it was, so that its rescaling
    factor is 1. An accumulator about which nothing is known is not skipped.

    Args:
        block: A well-formed block graph.
        bands: For each input iterator the band of the whole tensor that it reads; None if it is no band mask.
    """
    for number, (iterator, band) in enumerate(zip(block.inputs, bands, strict=True)):
        if band is None or band.lower is not None or band.upper is None or iterator.fmap is None:
            continue
        values: list[_Empty] = [None] * len(block.inputs)
        values[number] = Fraction(0)
        if all(_apply(op, values) for op in block.ops):
            return number
    return None


def _apply(op: BlockOp, values: list[_Empty]) -> bool:
    """Append the state of an operator's results; return False if it is an accumulator that an iteration may change."""
    given = [values[n] for n in op.operands]
    if not isinstance(op, Op):
        for step in op.graph.ops:
            given += _results(step, [given[n] for n in step.operands])
        values += [given[n] for n in op.graph.outputs]
        return True
    if op.kind in _SUMS:
        good = given[0] == 0
    elif op.kind in _RESCALED_SUMS:
        good = given[0] == 0 and given[1] == 1
    elif op.kind is OpKind.ACCUM_MAX:
        good = isinstance(given[0], _UnchangedMaximum) or (given[0] is not None and given[0] <= LOWEST)
    elif SPECS[op.kind].accumulator:  # concatenations, and means of squares under a root
        good = False
    else:
        values += _results(op, given)
        return True
    values.append(None)
    return good


def _results(op: Op, given: Sequence[_Empty]) -> list[_Empty]:
    numbers = [one for one in given if isinstance(one, Fraction)]
    whole = len(numbers) == len(given)
    if op.kind is OpKind.SELECT and given[0] == 0:
        return [op.attrs.value if len(given) == 2 else given[2]]
    if op.kind is OpKind.RUNNING_MAX:
        stays = bool(numbers) and numbers[0] <= LOWEST
        return [_UnchangedMaximum(), Fraction(1)] if stays else [None, None]
    if op.kind in _PRODUCTS and 0 in numbers:
        return [Fraction(0)]
    if op.kind in _ZEROS and whole and not any(numbers):
        return [Fraction(0)]
    if op.kind in (OpKind.MAX, OpKind.CAST, OpKind.REPEAT) and whole:
        return [numbers[0]]
    return [None] * op.results


def executed_share(block: BlockGraph, bands: Sequence[Band | None], shapes: Sequence[Shape]) -> float:
    """Return the share of all iterations of all blocks that are not skipped.

    Args:
        block: A well-formed block graph.
        bands: As for ``skippable_mask``.
        shapes: Shapes of the tensors that the input iterators read.
    """
    number = skippable_mask(block, bands)
    if number is None:
        return 1.0
    iterator, band, shape = block.inputs[number], bands[number], shapes[number]
    assert band is not None and band.upper is not None
    extents = (*block.grid, block.forloop_range)
    tile, steps = list(shape), {len(shape) - 2: list[tuple[int, int]](), len(shape) - 1: list[tuple[int, int]]()}
    for axis, dim in enumerate((*iterator.imap, iterator.fmap)):
        if dim is not None:
            tile[dim] //= extents[axis]
            if dim in steps:
                steps[dim].append((axis, tile[dim]))
    axes = sorted({axis for pairs in steps.values() for axis, _ in pairs})
    empty = 0
    for at in product(*(range(extents[axis]) for axis in axes)):
        place = dict(zip(axes, at, strict=True))
        row, column = (sum(place[axis] * size for axis, size in steps[len(shape) - 2 + i]) for i in range(2))
        empty += column >= row + tile[-2] + band.upper
    return 1.0 - empty / prod(extents[axis] for axis in axes)


__all__ = ["LOWEST", "executed_share", "skippable_mask"]
