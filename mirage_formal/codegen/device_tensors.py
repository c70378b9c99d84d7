"""Tensors in device memory as kernels access them: parameters of plans, and the sectors that tiles are made of.

A sector is a unit of 32 bytes in which L2 transfers a tile. Cheap to import: the cost model needs no more of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from mirage_formal.graph.storage_views import StorageLocation
from mirage_formal.graph.types import Band, DType, Shape, row_major

#: The least bytes of an L2 transfer.
SECTOR: Final = 32


def sector_overhead(tile: Sequence[int], shape: Shape, strides: tuple[int, ...] | None, width: int) -> float:
    """Return the transferred bytes of sectors for each byte of a tile, from the length of its contiguous runs.

    Args:
        tile: Extents of the tile.
        shape: Extents of the tensor.
        strides: Strides of the tensor, in elements; row-major if None.
        width: Bytes of an element.
    """
    run = full = 1
    steps = row_major(shape) if strides is None else strides
    for step, whole, extent in sorted(zip(steps, shape, tile, strict=True)):
        if whole == 1 or step == 0:
            continue
        if step != full:
            break
        run *= extent
        if extent != whole:
            break
        full *= whole
    return max(1.0, SECTOR / (run * width))


__all__ = ["SECTOR", "sector_overhead"]


@dataclass(frozen=True, slots=True)
class PlanParam:
    """A device tensor that the kernel reads or writes, or a band mask that it computes.

    Attributes:
        name: Its name in the kernel.
        shape: Its shape.
        dtype: Its element type.
        written: Whether it is written.
        place: The memory layout of its elements, see ``graph.storage_views``: offset, strides, and the elements that
            lie in memory at all.
        band: If its elements in memory are those of a band mask, its band: the kernel computes these elements from
            their indices, and reads none.
    """

    name: str
    shape: Shape
    dtype: DType
    written: bool
    place: StorageLocation
    band: Band | None = None

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the strides in elements; for a tensor with a layout composition, the steps between neighbours."""
        return self.place.strides

    @property
    def elements(self) -> int:
        """Return the number of elements from the parameter's pointer to the last element that is read or written."""
        return self.place.span(self.shape)

    def aligned(self, width: int, dense: int) -> bool:
        """Return whether runs of ``width`` elements along a dim are aligned and lie in memory wholly or not at all.

        Args:
            width: Elements of a run; runs start at multiples of it along the dim.
            dense: The dim, along which neighbours are neighbours in memory.
        """
        return self.place.aligned(self.shape, width, dense)

    def copies(self, tile: Shape) -> tuple[bool, int]:
        """Return the way in which tiles of a shape are copied to shared memory.

        Returns:
            Whether rows and columns are swapped there, because columns are next to each other in memory, and the bytes
            of the widest asynchronous copies that every tile is cut into evenly: 16, 8, 4, or 0 if there are none.
        """
        rank, strides = len(tile), self.strides
        if rank == 0 or self.band is not None:
            return False, 0
        transposed = rank >= 2 and strides[-1] != 1 and strides[-2] == 1 and prod(tile[:-2]) == 1
        dense = rank - 2 if transposed else rank - 1
        for size in (16, 8, 4) if strides[dense] == 1 else ():
            width = size // self.dtype.bytes
            if tile[dense] % width == 0 and self.aligned(width, dense):
                return transposed, size
        return transposed, 0
