"""Masks of parts: the axes in them, wholly bound axes, and renamings; and multisets of factors."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_formal.search.guided.algebra.parts import SLOTS, full_mask

#: Replacement of bound parts: each (source mask, target mask); a source must be covered wholly or not at all.
Renaming = tuple[tuple[int, int], ...]
#: Simultaneous replacement of indices: pairs (axis, axis), sources and targets distinct.
Substitution = tuple[tuple[int, int], ...]


def axes_in(parts: int) -> Iterator[int]:
    """The axes that have a part in a mask, ascending."""
    while parts:
        axis = ((parts & -parts).bit_length() - 1) // SLOTS
        yield axis
        parts &= ~full_mask(axis)


def complete(parts: int, frame: tuple[int, ...]) -> int:
    """A mask of bound parts where every axis whose parts of the frame are all bound is bound wholly."""
    for axis, made_of in enumerate(frame):
        if made_of & parts and not made_of & ~parts:
            parts |= full_mask(axis)
    return parts


def move(parts: int, pairs: Substitution) -> int:
    """A mask with the parts of each source axis moved to its target, all at once."""
    out, moved = parts, 0
    for source, target in pairs:
        found = parts & full_mask(source)
        out &= ~full_mask(source)
        shift = (target - source) * SLOTS
        moved |= found << shift if shift > 0 else found >> -shift
    return out | moved


def rename_mask(parts: int, renaming: Renaming) -> int | None:
    """Apply a renaming to a mask; None if a source is only partly contained. Wholly bound axes stay as they are."""
    out = 0
    rest = parts
    for source, target in renaming:
        overlap = parts & source
        if overlap:
            full = full_mask(((overlap & -overlap).bit_length() - 1) // SLOTS)
            if not full & ~parts:
                continue
            if overlap != source:
                return None
            out |= target
            rest &= ~source
    return out | rest


def without(items: tuple[int, ...], removed: tuple[int, ...]) -> tuple[int, ...] | None:
    """A multiset without some of its elements; None if it does not hold them all."""
    rest = list(items)
    for item in removed:
        if item not in rest:
            return None
        rest.remove(item)
    return tuple(rest)
