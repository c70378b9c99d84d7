"""Addresses of the elements of tiles in device memory, as index expressions over blocks and positions in the tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.integers import add, less_than, make_binary, multiply
from mirage_formal.codegen.program.program import Int, IntExpr, IntOp, Var
from mirage_formal.codegen.translation_validation.program_evaluation import compile_index
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.types import Band, Dim3, DimMap, Shape, row_major


class IndexTerms:
    """Arithmetic of index expressions (``graph.memory.storage_location.IndexArithmetic``)."""

    def number(self, value: int) -> IntExpr:
        """Return a constant."""
        return Int(value)

    def add(self, *terms: IntExpr) -> IntExpr:
        """Return the sum of the terms."""
        return reduce(add, terms, self.number(0))

    def mod(self, e: IntExpr, n: int) -> IntExpr:
        """Return e % n."""
        return make_binary(IntOp.MOD, e, Int(n))

    def less(self, e: IntExpr, n: int) -> IntExpr:
        """Return whether e < n."""
        return less_than(e, Int(n))

    def ravel(self, coordinates: Iterable[IntExpr], strides: Iterable[int]) -> IntExpr:
        """Return the sum of coordinates times strides."""
        return self.add(*(multiply(c, s) for c, s in zip(coordinates, strides, strict=True)))

    def unravel(self, e: IntExpr, shape: tuple[int, ...]) -> tuple[IntExpr, ...]:
        """Return the coordinates of the element at a row-major position."""
        steps = row_major(shape)
        return tuple(self.mod(make_binary(IntOp.DIV, e, Int(step)), n) for step, n in zip(steps, shape, strict=True))


_TERMS = IndexTerms()


@dataclass(frozen=True, slots=True)
class TileAddresses:
    """The elements of a tile of one block.

    Attributes:
        shape: The extents of the tile.
        address: Their address in the base's memory.
        inside: Conditions under which an element lies in memory, and is 1 in a band mask; elsewhere it is 0 where it is
            read, and not written.
    """

    shape: Shape
    address: IntExpr
    inside: tuple[IntExpr, ...]

    @property
    def extents(self) -> dict[str, int]:
        """Return the extents of the variables: positions in the tile."""
        return {f"l{dim}": extent for dim, extent in enumerate(self.shape)}

    @property
    def elements(self) -> int:
        """Return the number of elements of the tile."""
        return prod(self.shape)

    def evaluate(self, e: IntExpr, block: Mapping[str, int]) -> NDArray[np.int64]:
        """Return the value of an expression for each element of a block's tile."""
        env: dict[str, Any] = {**block, **dict(zip(self.extents, np.ix_(*map(np.arange, self.shape)), strict=True))}
        return np.broadcast_to(np.asarray(compile_index(e)(env), np.int64), self.shape)

    def memory_mask(self, block: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return for which elements of a block's tile the conditions hold."""
        found = np.ones(self.shape, bool)
        for condition in self.inside:
            found &= self.evaluate(condition, block) != 0
        return found


def tile_addresses(
    shape: Shape, split: DimMap, grid: Dim3, place: StorageLocation, band: Band | None = None
) -> TileAddresses:
    """Return the addresses of a block's tile of a tensor: of the slab, over all iterations of the loop.

    Args:
        shape: The extents of the tensor.
        split: For each grid axis, the dim that it splits; axes that split one dim do so from x to z.
        grid: The extents of the grid.
        place: The storage location of the tensor.
        band: Its band, if it is a band mask.
    """
    tile, coordinates = list(shape), [_TERMS.number(0) for _ in shape]
    for name, dim, extent in zip(("bx", "by", "bz"), split, grid, strict=True):
        if dim is not None:
            tile[dim] //= extent
            coordinates[dim] = add(coordinates[dim], multiply(Var(name), tile[dim]))
    coordinates = [add(at, Var(f"l{dim}")) for dim, at in enumerate(coordinates)]
    address, inside = address_of(coordinates, place)
    return TileAddresses(tuple(tile), address, (*inside, *(band_condition(coordinates, band) if band else ())))


def address_of(coordinates: Sequence[IntExpr], place: StorageLocation) -> tuple[IntExpr, tuple[IntExpr, ...]]:
    """Return an element's address in the memory of its base, and the conditions under which it lies there."""
    if place.path is not None:
        found, more = place.path.back(list(coordinates), _TERMS)
        address, inner = address_of(found, place.path.source)
        return address, (*more, *inner)
    conditions: list[IntExpr] = []
    if place.extents is not None:
        conditions += [less_than(at, Int(end)) for at, end in zip(coordinates, place.extents, strict=True)]
    if place.starts is not None:
        starts = zip(coordinates, place.starts, strict=True)
        conditions += [less_than(Int(start - 1), at) for at, start in starts if start]
    return add(_TERMS.ravel(coordinates, place.strides), Int(place.offset)), tuple(conditions)


def band_condition(coordinates: Sequence[IntExpr], band: Band) -> tuple[IntExpr, ...]:
    """Return the conditions under which an element of a band mask is 1: lower <= j - i <= upper."""
    row, column = coordinates[-2:]
    found: list[IntExpr] = []
    if band.lower is not None:
        found.append(less_than(add(row, Int(band.lower - 1)), column))
    if band.upper is not None:
        found.append(less_than(column, add(row, Int(band.upper + 1))))
    return tuple(found)


__all__ = ["TileAddresses", "tile_addresses"]
