"""Descriptions of maps and attributes in words."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from typing import Final

from mirage_formal.graph.graph import BlockGraph, InputIterator, OutputSaver
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.types import DTensor, Shape, row_major

AXES: Final = "xyz"


def shape(extents: Shape) -> str:
    """Return a shape as text, as in 16 × 64."""
    return " × ".join(map(str, extents)) if extents else "scalar"


def size(count: int) -> str:
    """Format bytes in the largest readable unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"


def layout(extents: Shape, strides: tuple[int, ...]) -> str:
    """Describe the memory layout of a tensor."""
    if strides == row_major(extents):
        return "row-major"
    return f"strides {', '.join(map(str, strides))}"


def format_value(given: object) -> str:
    """Return the value of an attribute as in the text of a µGraph."""
    if isinstance(given, tuple):
        return "[" + ",".join("-" if item is None else str(item) for item in given) + "]"
    if isinstance(given, Fraction):
        return str(given)
    return "-" if given is None else str(given)


def attributes(attrs: Attrs) -> tuple[tuple[str, str], ...]:
    """Return the set attributes of an operator."""
    found = ((field.name, getattr(attrs, field.name)) for field in fields(attrs))
    return tuple((name, format_value(given)) for name, given in found if given is not None)


def describe_reads(how: InputIterator, block: BlockGraph, name: str, tensor: DTensor) -> tuple[str, ...]:
    """Return sentences that describe imap and fmap of an input iterator."""
    left, out = list(tensor.shape), []
    for axis, extent, dim in zip(AXES, block.grid, how.imap, strict=True):
        if dim is None:
            if extent > 1:
                out.append(f"grid axis {axis}: all {extent} blocks along it read the same part of {name}")
        elif dim < len(left):
            was, left[dim] = left[dim], left[dim] // extent
            out.append(f"grid axis {axis} cuts dim {dim} of {name} ({was}) in {extent} slabs of {left[dim]}")
    if how.fmap is None:
        if block.forloop_range > 1:
            out.append(f"all {block.forloop_range} iterations of the loop read the same tile")
    elif how.fmap < len(left):
        was = left[how.fmap]
        count = block.forloop_range
        out.append(f"the loop cuts dim {how.fmap} of a slab ({was}) in {count} tiles of {was // count}")
    return tuple(out) or (f"the only block reads all of {name}",)


def describe_writes(how: OutputSaver, block: BlockGraph) -> tuple[str, ...]:
    """Return sentences that describe omap of an output saver."""
    out = [
        f"grid axis {axis}: results of its {extent} blocks lie side by side along dim {dim}"
        for axis, extent, dim in zip(AXES, block.grid, how.omap, strict=True)
        if dim is not None
    ]
    return tuple(out) or ("the only block writes all of it",)


def read_map(how: InputIterator) -> str:
    """Return imap and fmap in short form, as in x→0 loop→1."""
    parts = [f"{axis}→{dim}" for axis, dim in zip(AXES, how.imap, strict=True) if dim is not None]
    parts += [f"loop→{how.fmap}"] if how.fmap is not None else []
    return " ".join(parts) or "whole"


def write_map(how: OutputSaver) -> str:
    """Return omap in short form, as in 0←x."""
    return " ".join(f"{dim}←{axis}" for axis, dim in zip(AXES, how.omap, strict=True) if dim is not None) or "whole"
