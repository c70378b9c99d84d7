"""Shapes of shifts under reshapes."""

from __future__ import annotations

from math import prod

from mirage_formal.graph.types import Shape
from mirage_formal.rewrite.failure import MatchFailure


def reshape_shift(whole: Shape, part: Shape, target: Shape) -> Shape:
    """Return the shape of a shift when its value is reshaped.

    Along dims that are merged or split together, a shift must differ only between runs of consecutive elements.

    Args:
        whole: The value's shape.
        part: The shift's shape.
        target: The value's new shape.

    Raises:
        MatchFailure: It differs otherwise.
    """
    found: list[int] = []
    i = 0
    while i < len(whole) or len(found) < len(target):
        # A group of dims, the same elements before and after.
        j, k = i, len(found)
        old = new = 1
        while j == i or k == len(found) or old != new:
            if j < len(whole) and (old <= new or k == len(target)):
                old *= whole[j]
                j += 1
            elif k < len(target):
                new *= target[k]
                k += 1
            else:
                break
        runs = prod(part[i:j])
        constant = False
        for extent, kept in zip(whole[i:j], part[i:j], strict=True):
            if constant and kept != 1:
                raise MatchFailure("a reshape that mixes dims of a sum of exponentials")
            constant = constant or kept != extent
        for extent in target[len(found) : k]:
            kept = extent if runs % extent == 0 else runs
            if extent % kept:
                raise MatchFailure("a reshape that mixes dims of a sum of exponentials")
            found.append(kept)
            runs //= kept
        i = j
    return tuple(found)
