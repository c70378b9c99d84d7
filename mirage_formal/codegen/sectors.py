"""Sectors: the 32-byte units in which L2 transfers the tiles of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirage_formal.graph.types import Shape, row_major

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
