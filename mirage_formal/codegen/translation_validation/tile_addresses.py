"""Addresses of the elements of tiles in device memory, as index expressions over blocks and positions in the tile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Var
from mirage_formal.codegen.translation_validation.block_classes import compile_index
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.types import Band, Dim3, DimMap, Shape, row_major

_ZERO = Int(0)
_AXES = ("bx", "by", "bz")


class IndexTerms:
    """Arithmetic of index expressions without simplification (``graph.memory.storage_location.IndexArithmetic``)."""

    def number(self, value: int) -> IntExpr:
        """Return a constant."""
        return Int(value)

    def add(self, *terms: IntExpr) -> IntExpr:
        """Return the sum of the terms."""
        found: IntExpr = _ZERO
        for term in terms:
            found = term if found == _ZERO else found if term == _ZERO else IntBin(IntOp.ADD, found, term)
        return found

    def mod(self, e: IntExpr, n: int) -> IntExpr:
        """Return e % n."""
        return IntBin(IntOp.MOD, e, Int(n))

    def less(self, e: IntExpr, n: int) -> IntExpr:
        """Return whether e < n."""
        return IntBin(IntOp.LT, e, Int(n))

    def scale(self, e: IntExpr, n: int) -> IntExpr:
        """Return e * n."""
        return _ZERO if n == 0 or e == _ZERO else e if n == 1 else IntBin(IntOp.MUL, e, Int(n))

    def ravel(self, coordinates: Iterable[IntExpr], strides: Iterable[int]) -> IntExpr:
        """Return the sum of coordinates times strides."""
        return self.add(*(self.scale(c, s) for c, s in zip(coordinates, strides, strict=True)))

    def unravel(self, e: IntExpr, shape: tuple[int, ...]) -> tuple[IntExpr, ...]:
        """Return the coordinates of the element at a row-major position."""
        steps = row_major(shape)
        return tuple(
            IntBin(IntOp.MOD, IntBin(IntOp.DIV, e, Int(step)), Int(extent))
            for step, extent in zip(steps, shape, strict=True)
        )


TERMS = IndexTerms()


@dataclass(frozen=True, slots=True)
class TileAddresses:
    """The elements of a tile of one block.

    Attributes:
        shape: The extents of the tile.
        address: Their address in the base's memory.
        inside: Conditions under which an element lies in memory; elsewhere it is 0 where it is read, and not written.
        coordinates: Their coordinates in the tensor.
    """

    shape: Shape
    address: IntExpr
    inside: tuple[IntExpr, ...]
    coordinates: tuple[IntExpr, ...]

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
        env: dict[str, Any] = dict(block)
        for dim, extent in enumerate(self.shape):
            env[f"l{dim}"] = np.arange(extent, dtype=np.int64).reshape(
                [-1 if d == dim else 1 for d in range(len(self.shape))]
            )
        return np.broadcast_to(np.asarray(compile_index(e)(env), np.int64), self.shape)

    def memory_mask(self, block: Mapping[str, int]) -> NDArray[np.bool_]:
        """Return which elements of a block's tile lie in memory."""
        found = np.ones(self.shape, bool)
        for condition in self.inside:
            found &= self.evaluate(condition, block) != 0
        return found


def tile_addresses(shape: Shape, split: DimMap, grid: Dim3, place: StorageLocation) -> TileAddresses:
    """Return the addresses of a block's tile of a tensor: of the slab, over all iterations of the loop.

    Args:
        shape: The extents of the tensor.
        split: For each grid axis, the dim that it splits; axes that split one dim do so from x to z.
        grid: The extents of the grid.
        place: The storage location of the tensor.
    """
    tile, coordinates = list(shape), []
    for dim in range(len(shape)):
        found: IntExpr = _ZERO
        for axis, name in enumerate(_AXES):
            if split[axis] == dim:
                tile[dim] //= grid[axis]
                found = TERMS.add(found, TERMS.scale(Var(name), tile[dim]))
        coordinates.append(TERMS.add(found, Var(f"l{dim}")))
    address, inside = address_of(coordinates, place)
    return TileAddresses(tuple(tile), address, inside, tuple(coordinates))


def address_of(coordinates: Sequence[IntExpr], place: StorageLocation) -> tuple[IntExpr, tuple[IntExpr, ...]]:
    """Return an element's address in the memory of its base, and the conditions under which it lies there."""
    conditions: list[IntExpr] = []
    if place.path is not None:
        found, more = place.path.back(list(coordinates), TERMS)
        address, inner = address_of(found, place.path.source)
        return address, (*more, *inner)
    for dim, at in enumerate(coordinates):
        if place.extents is not None:
            conditions.append(TERMS.less(at, place.extents[dim]))
        if place.starts is not None and place.starts[dim]:
            conditions.append(IntBin(IntOp.LT, Int(place.starts[dim] - 1), at))
    return TERMS.add(TERMS.ravel(coordinates, place.strides), Int(place.offset)), tuple(conditions)


def band_condition(coordinates: Sequence[IntExpr], band: Band) -> tuple[IntExpr, ...]:
    """Return the conditions under which an element of a band mask is 1: lower <= j - i <= upper."""
    row, column = coordinates[-2:]
    found: list[IntExpr] = []
    if band.lower is not None:
        found.append(IntBin(IntOp.LT, TERMS.add(row, Int(band.lower - 1)), column))
    if band.upper is not None:
        found.append(IntBin(IntOp.LT, column, TERMS.add(row, Int(band.upper + 1))))
    return tuple(found)


__all__ = ["TERMS", "TileAddresses", "address_of", "band_condition", "tile_addresses"]
