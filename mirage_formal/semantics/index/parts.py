"""Named parts of axes as bits.

An axis is an index that runs through a program (batch, query, key, ...). A graph-defined kernel splits the index into
a most significant grid part, a loop part, a part folded by a reduction to ``reduction_dimx``, and a tile part. A second
kernel may split each part that the first one left behind once more. A part is one bit, a set of parts a bit mask, so
extents never appear here.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class Kind(IntEnum):
    """How a kernel uses a part of an axis; the order is the significance order within one dim."""

    GRID = 0
    LOOP = 1
    FOLD = 2
    TILE = 3


#: A split of one part: the kinds present, most significant first.
Split = tuple[Kind, ...]

#: An ordered list of parts, most significant first: the digits of one tensor dimension.
Parts = tuple[int, ...]

#: Slots of one axis: 0 the whole axis, 1..4 its first split, then the second splits of the whole and of those four.
SLOTS: Final = 1 + 4 + 5 * 4


def whole(axis: int) -> int:
    """The part that is an unsplit axis."""
    return axis * SLOTS


def axis_of(part: int) -> int:
    """The axis that a part belongs to."""
    return part // SLOTS


def is_whole(part: int) -> bool:
    """Whether a part is an unsplit axis."""
    return part % SLOTS == 0


def child(part: int, kind: Kind, level: int) -> int:
    """Part of kind ``kind`` of ``part`` when the graph-defined kernel number ``level`` (1 or 2) splits it."""
    axis, slot = divmod(part, SLOTS)
    if level == 1:
        assert slot == 0, "the first kernel splits whole axes"
        return axis * SLOTS + 1 + kind
    assert slot < 5, "only parts of the first kernel are split again"
    return axis * SLOTS + 5 + slot * 4 + kind


def mask(parts: Iterable[int]) -> int:
    """Bit mask of a set of parts."""
    out = 0
    for part in parts:
        out |= 1 << part
    return out


def full_mask(axis: int) -> int:
    """Every part that could belong to an axis, however it is split."""
    return ((1 << SLOTS) - 1) << (SLOTS * axis)
