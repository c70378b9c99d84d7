"""Band masks as predicates: which tensors of a µGraph are masks whose elements a kernel computes from their indices."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_formal.graph.graph import Input
from mirage_formal.graph.memory.storage_location import StorageLocation
from mirage_formal.graph.types import Band, Shape, row_major


def band_at(inputs: Sequence[Input], place: StorageLocation, shape: Shape) -> Band | None:
    """Return the band whose mask a tensor's elements in memory are; None if it is not known to have one.

    Slices, transposes and pads of a band mask, and repetitions of its matrix, have bands of their own. Bounds that
    exclude no element are left out, and no bound lies further than one element beyond the mask, so index arithmetic
    with them does not overflow. Both bounds may be None: all elements in memory are 1.

    Sound: an input with a band has the elements of its mask in every call, for no caller passes it. Where leading dims
    step over whole matrices, the elements in memory are a rectangle of one matrix of the input, as it is or transposed.
    Element (..., i, j) then lies at row i + r and column j + c there, or at row j + r and column i + c, so its
    distance from row to column is j - i + (c - r), or (c - r) - (j - i). A bound beyond all distances between the rows
    and the columns of the shape has the same elements on its side as the nearest bound that is.

    Args:
        inputs: The inputs of the µGraph.
        place: The memory layout of the tensor.
        shape: Its shape.
    """
    item = inputs[place.base] if place.base < len(inputs) else None
    if item is None or item.band is None or place.path is not None or len(shape) < 2:
        return None
    height, width = item.tensor.shape[-2:]
    outer = zip(shape[:-2], place.strides[:-2], strict=True)
    if item.strides != row_major(item.tensor.shape) or any(n > 1 and step % (height * width) for n, step in outer):
        return None
    starts, ends = place.starts or (0,) * len(shape), place.extents or shape
    first = place.offset + sum(start * step for start, step in zip(starts, place.strides, strict=True))
    row, column = divmod(first % (height * width), width)
    steps, stored = place.strides[-2:], (ends[-2] - starts[-2], ends[-1] - starts[-1])
    lower, upper = item.band.lower, item.band.upper
    if _is_rectangle(steps, stored, (width, 1)) and row + stored[0] <= height and column + stored[1] <= width:
        shift = (column - starts[-1]) - (row - starts[-2])
        found = Band(None if lower is None else lower - shift, None if upper is None else upper - shift)
    elif _is_rectangle(steps, stored, (1, width)) and row + stored[1] <= height and column + stored[0] <= width:
        shift = (column - starts[-2]) - (row - starts[-1])
        found = Band(None if upper is None else shift - upper, None if lower is None else shift - lower)
    else:
        return None
    return _clamp(found, *shape[-2:])


def _is_rectangle(steps: Sequence[int], stored: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether rows and columns step as wanted; the step of a single one does not matter."""
    return all(n == 1 or step == want for n, step, want in zip(stored, steps, wanted, strict=True))


def _clamp(band: Band, rows: int, columns: int) -> Band:
    """Return the band with the same mask of this many rows and columns whose bounds are the nearest to them."""
    lower, upper = band.lower, band.upper
    return Band(
        None if lower is None or lower <= 1 - rows else min(lower, columns),
        None if upper is None or upper >= columns - 1 else max(upper, -rows),
    )


__all__ = ["band_at"]
