"""Numbering of axes and of their parts, as bits of a mask.

An axis is an index that runs through a program (batch, query, key, ...). A part is a factor of its extent, that is a
digit of the index in a mixed radix. A graph-defined kernel splits the index into a most significant grid part, a loop
part, a part folded by a reduction to ``reduction_dimx``, and a tile part. Parts that it leaves split are carried to
later kernels under new names, 1, 2, ... in order of significance, and each of those kernels may split every carried
part once more. So the names do not grow with the number of kernels. A part is one bit, a set of parts a bit mask, and
extents never appear here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NewType

#: Number of an axis, copies included: axis ``copy * width + base`` is a copy of base axis ``base``.
Axis = NewType("Axis", int)
#: Number of a part: ``axis * SLOTS + slot``.
Part = NewType("Part", int)


class PartUse(IntEnum):
    """Use of a part of an axis by a kernel; the order is the significance order within one dim."""

    GRID = 0
    LOOP = 1
    FOLD = 2
    TILE = 3


#: A split of one part: the kinds present, most significant first.
Split = tuple[PartUse, ...]

#: An ordered list of parts, most significant first: the digits of one tensor dimension.
Parts = tuple[Part, ...]

#: Most parts in which one axis is carried from kernel to kernel.
CARRIED: Final = 4
#: Slots of one axis: 0 the whole axis, then the carried parts, then the split of the whole and of each carried part.
SLOTS: Final = (1 + CARRIED) * (1 + len(PartUse))
_USES: Final = len(PartUse)


def unsplit_part(axis: Axis) -> Part:
    """Return the part that is an unsplit axis."""
    return Part(axis * SLOTS)


def part_axis(part: Part) -> Axis:
    """Return the axis that a part belongs to."""
    return Axis(part // SLOTS)


def is_unsplit(part: Part) -> bool:
    """Return whether a part is an unsplit axis."""
    return part % SLOTS == 0


def carried_parts(axis: Axis, count: int) -> Parts:
    """Return the first carried parts of an axis, most significant first.

    Args:
        axis: The axis.
        count: Number of parts, at most CARRIED.
    """
    assert count <= CARRIED, "checked where parts are carried"
    return tuple(Part(axis * SLOTS + 1 + i) for i in range(count))


def child_part(part: Part, kind: PartUse) -> Part:
    """Return the part that a kernel cuts from a leaf.

    Args:
        part: The leaf: a whole axis or a carried part.
        kind: The kernel's use of the cut part.
    """
    slot = part % SLOTS
    assert slot <= CARRIED, "what a kernel has split is carried under a new name"
    return Part(part - slot + 1 + CARRIED + slot * _USES + kind)


def move_part(part: Part, axis: Axis) -> Part:
    """Return the part of another axis with the same slot as this one.

    Args:
        part: The part.
        axis: The other axis.
    """
    return Part(axis * SLOTS + part % SLOTS)
