"""Conversion of floats to the raw elements of a tensor and back, for NumPy and CuPy; masks are 0 and 1."""

from __future__ import annotations

from typing import Any, Final

from mirage_formal.graph.types import DType

Array = Any

#: Unsigned integer types of raw elements, by size in bytes.
RAW: Final = {1: "uint8", 2: "uint16", 4: "uint32"}


def floats_to_bits(values: Array, dtype: DType, xp: Any) -> Array:
    """Convert floats to raw elements; values that the type cannot represent are rounded."""
    if dtype is DType.BOOL:
        return xp.ascontiguousarray(values != 0).view(xp.uint8)
    if dtype is DType.FLOAT16:
        return xp.ascontiguousarray(values.astype(xp.float16)).view(xp.uint16)
    single = xp.ascontiguousarray(values.astype(xp.float32)).view(xp.uint32)
    if dtype is DType.FLOAT32:
        return single
    even = (single >> xp.uint32(16)) & xp.uint32(1)
    return ((single + xp.uint32(0x7FFF) + even) >> xp.uint32(16)).astype(xp.uint16)


def bits_to_floats(bits: Array, dtype: DType, xp: Any) -> Array:
    """Convert raw elements to float64."""
    if dtype is DType.BOOL:
        return (bits != 0).astype(xp.float64)
    if dtype is DType.FLOAT16:
        return bits.view(xp.float16).astype(xp.float64)
    if dtype is DType.FLOAT32:
        return bits.view(xp.float32).astype(xp.float64)
    return (bits.astype(xp.uint32) << xp.uint32(16)).view(xp.float32).astype(xp.float64)
