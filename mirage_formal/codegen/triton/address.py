"""Addresses of a block's elements in device memory, as expressions of Triton: offsets and masks.

Expressions are text with the value of constants, so that sums and products with 0 and 1 are not written. Layout
compositions are followed by ``graph.memory.storage_location``, as for CUDA C++.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mirage_formal.graph.graph import BlockGraph
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.types import Band, DimMap, DTensor, Shape, row_major

#: Names of the program's ids along the grid axes.
PIDS: Final = ("pid_x", "pid_y", "pid_z")
#: Name of the loop's counter.
STEP: Final = "step"
#: Offsets from here on need 64 bits.
WIDE: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Index:
    """An integer, or a block of integers, as text.

    Attributes:
        text: The expression.
        value: Its value, if it is a constant.
        sum: Whether it is a sum, which needs parentheses in a product.
        block: Whether it is a block, not a scalar.
        bound: An exclusive upper bound; None if none is known.
        product: For a product with a constant, the other factor and the constant.
    """

    text: str
    value: int | None = None
    sum: bool = False
    block: bool = False
    bound: int | None = None
    product: tuple[str, int] | None = None

    @property
    def factor(self) -> str:
        """Return the text as a factor of a product: a sum in parentheses."""
        return f"({self.text})" if self.sum else self.text


def integer_constant(value: int) -> Index:
    """Return an integer constant with its value, and with value + 1 as its exclusive bound."""
    return Index(str(value), value, sum=value < 0, bound=value + 1)


@dataclass(frozen=True, slots=True)
class TextArithmetic:
    """An implementation of ``graph.memory.storage_location.IndexArithmetic`` on expressions of Triton."""

    def number(self, value: int) -> Index:
        """Implement ``Arithmetic.number``."""
        return integer_constant(value)

    def add(self, *terms: Index) -> Index:
        """Implement ``Arithmetic.add``."""
        constant = sum(term.value for term in terms if term.value is not None)
        rest = [term for term in terms if term.value is None]
        if not rest:
            return integer_constant(constant)
        bounds = [term.bound for term in rest]
        known = None if None in bounds else sum(b - 1 for b in bounds if b is not None) + constant + 1
        text = " + ".join(term.text for term in rest)
        if constant:
            text += f" + {constant}" if constant > 0 else f" - {-constant}"
        several = len(rest) > 1 or bool(constant) or rest[0].sum
        return Index(text, sum=several, block=any(term.block for term in rest), bound=known)

    def mul(self, e: Index, n: int) -> Index:
        """Return e * n."""
        if e.value is not None:
            return integer_constant(e.value * n)
        if n == 0:
            return integer_constant(0)
        bound = None if e.bound is None else (e.bound - 1) * n + 1
        if n == 1:
            return e
        factor, times = (e.factor, n) if e.product is None else (e.product[0], e.product[1] * n)
        return Index(f"{factor} * {times}", block=e.block, bound=bound, product=(factor, times))

    def div(self, e: Index, n: int) -> Index:
        """Return e // n."""
        if e.value is not None:
            return integer_constant(e.value // n)
        if e.bound is not None and e.bound <= n:
            return integer_constant(0)
        bound = None if e.bound is None else (e.bound - 1) // n + 1
        return e if n == 1 else Index(f"({_parenthesise(e)} // {n})", block=e.block, bound=bound)

    def mod(self, e: Index, n: int) -> Index:
        """Implement ``Arithmetic.mod``."""
        if e.value is not None:
            return integer_constant(e.value % n)
        if e.bound is not None and e.bound <= n:
            return e
        return Index(f"({_parenthesise(e)} % {n})", block=e.block, bound=n)

    def less(self, e: Index, n: int) -> Index:
        """Implement ``Arithmetic.less``."""
        if e.value is not None:
            return integer_constant(int(e.value < n))
        if e.bound is not None and e.bound <= n:
            return integer_constant(1)
        return Index(f"({e.text} < {n})", block=e.block)

    def ravel(self, coordinates: Iterable[Index], strides: Iterable[int]) -> Index:
        """Implement ``Arithmetic.ravel``."""
        return self.add(*(self.mul(c, s) for c, s in zip(coordinates, strides, strict=True)))

    def unravel(self, e: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
        """Implement ``Arithmetic.unravel``."""
        return tuple(self.mod(self.div(e, step), extent) for step, extent in zip(row_major(shape), shape, strict=True))


def _parenthesise(e: Index) -> str:
    return f"({e.text})" if e.sum or " * " in e.text else e.text


TEXT: Final = TextArithmetic()


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The tile of a device tensor in a block.

    Attributes:
        place: The memory layout of the tensor.
        tensor: Its type.
        shape: The tile's extents.
        imap: The dim that each grid axis splits.
        fmap: The dim that the loop splits.
    """

    place: StorageLocation
    tensor: DTensor
    shape: Shape
    imap: DimMap
    fmap: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a block's elements.

    Attributes:
        start: The scalar part of the offset.
        offset: The part of the offset that differs between elements.
        mask: Conditions; elements for which one does not hold are not in memory.
    """

    start: Index
    offset: Index
    mask: tuple[Index, ...]


def tile_address(tile: BlockTile, ranges: Sequence[Index | None], graph: BlockGraph) -> Address:
    """Return the address of the elements of a block's tile.

    Args:
        tile: The tile.
        ranges: For each dim the indices of its elements in the tile; None if there is one.
        graph: The block graph.
    """
    starts = [_tile_start(tile, dim, graph) for dim in range(len(tile.shape))]
    within, at, over = _indices(tile, ranges, starts)
    place = tile.place
    if place.path is None:
        mask = _memory_conditions(at, place, tile.tensor.shape)
        start = TEXT.add(TEXT.ravel(starts, place.strides), integer_constant(place.offset))
        offset = TEXT.ravel(within, place.strides)
    else:
        at, mask = place.path.back(at, TEXT)
        source = place.path.source
        mask += _memory_conditions(at, source, place.path.given)
        start, offset = integer_constant(source.offset), TEXT.ravel(at, source.strides)
        if not offset.block:
            start, offset = TEXT.add(start, offset), integer_constant(0)
    return Address(start, offset, tuple(one for one in (*over, *mask) if one.value != 1))


def band_conditions(
    tile: BlockTile, band: Band, ranges: Sequence[Index | None], graph: BlockGraph
) -> tuple[Index, ...]:
    """Return the conditions under which elements of a block's tile of a band mask are 1; see ``tile_address``."""
    starts = [_tile_start(tile, dim, graph) for dim in range(len(tile.shape))]
    _, at, over = _indices(tile, ranges, starts)
    row, column = at[-2:]
    found = [*over, *_memory_conditions(at, tile.place, tile.tensor.shape)]
    if band.lower is not None:
        found.append(_before(row, TEXT.add(column, integer_constant(1 - band.lower))))
    if band.upper is not None:
        found.append(_before(column, TEXT.add(row, integer_constant(1 + band.upper))))
    return tuple(one for one in found if one.value != 1)


def _before(a: Index, b: Index) -> Index:
    """Return the condition a < b: the constant 0 or 1 if both are constants."""
    if a.value is not None and b.value is not None:
        return integer_constant(int(a.value < b.value))
    return Index(f"({a.text} < {b.text})", block=a.block or b.block)


def _indices(
    tile: BlockTile, ranges: Sequence[Index | None], starts: Sequence[Index]
) -> tuple[list[Index], list[Index], list[Index]]:
    """Return the indices of a tile's elements in it and in the tensor, and the conditions that they are in the tile."""
    within = [integer_constant(0) if one is None else one for one in ranges]
    over = [TEXT.less(one, extent) for one, extent in zip(within, tile.shape, strict=True) if one.value is None]
    # Padded lanes may exceed the bounds of the tiles: these lanes are masked.
    at = [
        TEXT.add(start, _with_bound(one, extent)) for start, one, extent in zip(starts, within, tile.shape, strict=True)
    ]
    return within, at, over


def _with_bound(one: Index, extent: int) -> Index:
    return one if one.value is not None else Index(one.text, None, one.sum, one.block, extent)


def _memory_conditions(at: Sequence[Index], place: StorageLocation, shape: Shape) -> list[Index]:
    """Return the conditions that indices refer to elements in memory."""
    starts, ends = place.starts or (0,) * len(shape), place.extents or shape
    found = [TEXT.less(one, end) for one, end, extent in zip(at, ends, shape, strict=True) if end < extent]
    for one, start in zip(at, starts, strict=True):
        if start > 0 and one.value is None:
            found.append(Index(f"({one.text} >= {start})", block=one.block))
        elif start > 0:
            found.append(integer_constant(int(one.value is not None and one.value >= start)))
    return found


def _tile_start(tile: BlockTile, dim: int, graph: BlockGraph) -> Index:
    """Return the first index of a block's tile along a dim: the block's slab first, the loop's chunk inside it."""
    parts = [(PIDS[axis], graph.grid[axis]) for axis in range(3) if tile.imap[axis] == dim and graph.grid[axis] > 1]
    if tile.fmap == dim and graph.forloop_range > 1:
        parts.append((STEP, graph.forloop_range))
    terms: list[Index] = []
    step = tile.shape[dim]
    for name, count in reversed(parts):
        terms.append(TEXT.mul(Index(name, bound=count), step))
        step *= count
    return TEXT.add(*reversed(terms))
