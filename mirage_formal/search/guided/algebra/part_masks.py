"""Bit masks of parts: contained axes, wholly bound axes, renamings; and differences of multisets of factors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NewType, TypeVar

from mirage_formal.search.guided.algebra.part_numbering import SLOTS, Axis, Part, unsplit_part

#: A set of parts as a bit mask: bit number ``part`` stands for that part.
PartMask = NewType("PartMask", int)
#: For each axis the mask of its parts at one point of the kernel graph.
Frame = tuple[PartMask, ...]
#: Replacement of bound parts: each (source mask, target mask); a source must be covered wholly or not at all.
Renaming = tuple[tuple[PartMask, PartMask], ...]
#: Simultaneous replacement of indices: pairs (axis, axis), sources and targets distinct.
Substitution = tuple[tuple[Axis, Axis], ...]

NO_PARTS: Final = PartMask(0)
#: Every part of axis 0.
_FULL: Final = (1 << SLOTS) - 1

_Item = TypeVar("_Item")


def mask(parts: Iterable[Part]) -> PartMask:
    """Return the mask of a set of parts."""
    out = 0
    for part in parts:
        out |= 1 << part
    return PartMask(out)


def full_mask(axis: Axis) -> PartMask:
    """Return the mask of every part that an axis can have under any split."""
    return PartMask(_FULL << (SLOTS * axis))


def unsplit_frame(count: int) -> Frame:
    """Return the frame in which the first ``count`` axes are unsplit."""
    return tuple(PartMask(1 << unsplit_part(Axis(axis))) for axis in range(count))


def axes_in(parts: PartMask) -> Iterator[Axis]:
    """Yield the axes that have a part in a mask, ascending."""
    rest: int = parts
    while rest:
        axis = ((rest & -rest).bit_length() - 1) // SLOTS
        yield Axis(axis)
        rest &= -1 << SLOTS * (axis + 1)


def bind_complete_axes(parts: PartMask, frame: Frame) -> PartMask:
    """Bind wholly, by setting all its slots, every axis whose parts in the frame are all bound.

    Args:
        parts: The bound parts.
        frame: For each axis the mask of its parts.

    Returns:
        The parts, and all slots of each such axis.
    """
    out: int = parts
    for axis, made_of in enumerate(frame):
        if made_of & out == made_of and made_of:
            out |= _FULL << SLOTS * axis
    return PartMask(out)


def move_parts(parts: PartMask, pairs: Substitution) -> PartMask:
    """Return the parts with those of each source axis moved to its target, simultaneously.

    Args:
        parts: The parts.
        pairs: (source, target) axes.
    """
    out: int = parts
    moved = 0
    for source, target in pairs:
        found = parts & full_mask(source)
        out &= ~full_mask(source)
        shift = (target - source) * SLOTS
        moved |= found << shift if shift > 0 else found >> -shift
    return PartMask(out | moved)


def rename_mask(parts: PartMask, renaming: Renaming) -> PartMask | None:
    """Apply a renaming to a mask; wholly bound axes stay as they are.

    Args:
        parts: The parts.
        renaming: (source, target) masks.

    Returns:
        The renamed parts; None if a source is only partly among them.
    """
    out = 0
    rest: int = parts
    for source, target in renaming:
        overlap = parts & source
        if overlap:
            full = full_mask(Axis(((overlap & -overlap).bit_length() - 1) // SLOTS))
            if not full & ~parts:
                continue
            if overlap != source:
                return None
            out |= target
            rest &= ~source
    return PartMask(out | rest)


def multiset_difference(items: tuple[_Item, ...], removed: tuple[_Item, ...]) -> tuple[_Item, ...] | None:
    """Return the difference of two multisets.

    Args:
        items: A multiset, as the numbers of its elements in any order.
        removed: The elements to take out.

    Returns:
        The remaining elements, in the order of ``items``; None if ``items`` does not hold all removed ones.
    """
    rest = list(items)
    for item in removed:
        if item not in rest:
            return None
        rest.remove(item)
    return tuple(rest)
