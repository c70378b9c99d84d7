"""Loop iterations that can be skipped because a band mask is 0 on their whole tile.

In a causal mask, a block that computes rows up to i needs no columns after i. In the mask of a sliding window it needs
no columns before the window of its first row either. The mask's tiles are empty there, the selected exponentials are 0,
and no accumulator changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from mirage_formal.graph.graph import BlockGraph, BlockOp, Op
from mirage_formal.graph.ops import EXTREMES, SPECS, OpKind
from mirage_formal.graph.types import Band, Shape
from mirage_formal.semantics.function_table import ZEROS

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

    Sound: a selection by a mask of zeros is the other value, products with 0 are 0 over the reals, a sum of zeros adds
    nothing, and a maximum over what is at most the value that it begins with stays what it was, so that its rescaling
    factor is 1. An accumulator about which nothing is known is not skipped.

    Args:
        block: A well-formed block graph.
        bands: For each input iterator the band of the whole tensor that it reads; None if it is no band mask.
    """
    for number, (iterator, band) in enumerate(zip(block.inputs, bands, strict=True)):
        if band is None or iterator.fmap is None:
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
    if op.kind in EXTREMES and op.attrs.value is not None:
        given = [*given, op.attrs.value]
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
    band = None if number is None else bands[number]
    if number is None or band is None:
        return 1.0
    iterator, shape = block.inputs[number], shapes[number]
    tile = _tile(shape, (*zip(iterator.imap, block.grid, strict=True), (iterator.fmap, block.forloop_range)))
    return _nonempty_tiles(band, shape, tile) / _tiles(shape, tile)


def has_idle_blocks(block: BlockGraph, number: int, band: Band, shape: Shape) -> bool:
    """Return whether some block skips all its iterations, because its part of a band mask is empty.

    Args:
        block: A well-formed block graph.
        number: The input iterator of the mask.
        band: The band of the tensor that it reads.
        shape: The shape of that tensor.
    """
    part = _tile(shape, zip(block.inputs[number].imap, block.grid, strict=True))
    return _nonempty_tiles(band, shape, part) < _tiles(shape, part)


def _tile(shape: Shape, splits: Iterable[tuple[int | None, int]]) -> tuple[int, int]:
    """Return rows and columns of the tiles into which some dims of a tensor are split."""
    tile = list(shape)
    for dim, count in splits:
        if dim is not None:
            tile[dim] //= count
    return tile[-2], tile[-1]


def _tiles(shape: Shape, tile: tuple[int, int]) -> int:
    return shape[-2] // tile[0] * (shape[-1] // tile[1])


def _nonempty_tiles(band: Band, shape: Shape, tile: tuple[int, int]) -> int:
    """Return the number of tiles of a band mask that are not empty."""
    (rows, columns), (height, width) = shape[-2:], tile
    found = 0
    for row in range(0, rows, height):
        first = 0 if band.lower is None else (row + band.lower) // width
        end = columns if band.upper is None else -(-(row + height + band.upper) // width)
        found += max(0, min(end, columns // width) - max(first, 0))
    return found


__all__ = ["LOWEST", "executed_share", "has_idle_blocks", "skippable_mask"]
