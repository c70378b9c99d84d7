"""Index maps of views: the element of a base tensor for each index of a torch tensor.

A dim of a torch tensor is a sequence of *digits*, outermost first, each with an extent and a stride in the elements of
the base. So reshapes that merge dims need no copy, whatever strides the dims have, and an expanded dim is a digit of
stride 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_formal.graph.types import Shape, row_major

#: Extent and stride. Extents are at least 2: an index that is always 0 has no digit.
Digit = tuple[int, int]
Digits = tuple[Digit, ...]


def merge_digits(digits: Sequence[Digit]) -> Digits:
    """Return the digits without those of extent 1, and with mergeable neighbours merged.

    Sound: for indices i < m and j < n, i n s + j s = (i n + j) s.
    """
    found: list[Digit] = []
    for extent, stride in digits:
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        else:
            found.append((extent, stride))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class View:
    """An index map: element (i, j, ...) is the base's element ``offset`` plus the sum of digit times stride.

    Attributes:
        dims: The digits of each dim; none for a dim of extent 1.
        offset: Element of the base at index 0.
    """

    dims: tuple[Digits, ...]
    offset: int = 0

    @property
    def shape(self) -> Shape:
        """Return the extents of the torch tensor."""
        return tuple(prod(extent for extent, _ in digits) for digits in self.dims)

    @property
    def plain(self) -> bool:
        """Return whether each dim has one stride, so that torch can make this view of the base."""
        return all(len(digits) < 2 for digits in self.dims)

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the stride of each dim of a plain view; for an extent of 1, the span of the dims behind it."""
        found: list[int] = []
        span = 1
        for digits in reversed(self.dims):
            found.append(digits[0][1] if digits else span)
            span = digits[0][0] * digits[0][1] if digits else span
        return tuple(reversed(found))

    def onto(self, elements: int) -> bool:
        """Return whether a base of this number of elements is read completely, each element once.

        Sound: digits whose strides, in order, are the products of the extents before them are the mixed-radix digits of
        0..elements - 1, and each number has one representation.
        """
        step = 1
        for extent, stride in sorted((d for digits in self.dims for d in digits), key=lambda d: d[1]):
            if stride != step:
                return False
            step *= extent
        return step == elements and self.offset == 0


def row_major_view(shape: Sequence[int]) -> View:
    """Return the view of a whole row-major tensor."""
    return strided_view(shape, row_major(tuple(shape)))


def strided_view(shape: Sequence[int], strides: Sequence[int]) -> View:
    """Return the view of a torch tensor in its memory."""
    return View(tuple(merge_digits([pair]) for pair in zip(shape, strides, strict=True)))


def reshape_view(view: View, shape: Sequence[int]) -> View | None:
    """Return the view of the same elements in row-major order under another shape.

    The result is None if a digit would be split unevenly.

    Sound: the digits of all dims, one after another, are the mixed-radix digits of the row-major index. They are dealt
    to other dims; neighbours are joined where one digit stands for both, and a digit of extent m n is the digits m and
    n of its own index.
    """
    left = list(merge_digits([digit for digits in view.dims for digit in digits]))
    found: list[Digits] = []
    for wanted in shape:
        taken: list[Digit] = []
        while wanted > 1:
            extent, stride = left.pop(0)
            if wanted % extent == 0:
                taken.append((extent, stride))
                wanted //= extent
            elif extent % wanted == 0:
                rest = extent // wanted
                taken.append((wanted, stride * rest))
                left.insert(0, (rest, stride))
                wanted = 1
            else:
                return None
        found.append(merge_digits(taken))
    return View(tuple(found), view.offset)


def permute_view(view: View, perm: Sequence[int]) -> View:
    """Return a view with reordered dims: dim i of the result is dim perm[i]."""
    return View(tuple(view.dims[axis] for axis in perm), view.offset)


def expand_view(view: View, shape: Sequence[int]) -> View:
    """Return a view with dims of extent 1 repeated, and new ones in front; -1 keeps an extent."""
    dims = (((),) * (len(shape) - len(view.dims))) + view.dims
    pairs = zip(dims, shape, strict=True)
    return View(tuple(((n, 0),) if not digits and n > 1 else digits for digits, n in pairs), view.offset)


def slice_view(view: View, axis: int, start: int, stop: int, step: int = 1) -> View | None:
    """Return the view of every step-th index of a dim from start to stop; None if they are not expressible as digits.

    Sound: of one digit, index start + i step stands at start s + i step s. Of several, with n the product of the
    extents behind the first: a range of whole multiples of n is a range of the first digit, and a range between two
    neighbouring multiples of n fixes the first digit and is a range of the others.
    """
    found = _cut(view.dims[axis], start, stop, step)
    if found is None:
        return None
    digits, offset = found
    return View((*view.dims[:axis], digits, *view.dims[axis + 1 :]), view.offset + offset)


def _cut(digits: Digits, start: int, stop: int, step: int) -> tuple[Digits, int] | None:
    count = -(-(stop - start) // step)
    if not digits:
        return (), 0
    (_, stride), rest = digits[0], digits[1:]
    if not rest:
        return merge_digits([(count, stride * step)]), start * stride
    inner = prod(n for n, _ in rest)
    if start % inner == 0 and stop % inner == 0 and step == 1:
        return merge_digits([((stop - start) // inner, stride), *rest]), start // inner * stride
    first = start // inner
    if first != (stop - 1) // inner:
        return None
    found = _cut(rest, start - first * inner, stop - first * inner, step)
    return None if found is None else (found[0], found[1] + first * stride)


def split_digit(digit: Digit, shape: Shape) -> list[Digit]:
    """Split a digit of the row-major index of a shape at the shape's dims, as far as it splits evenly.

    Sound: as ``refine_dims``.
    """
    extent, stride = digit
    for length, step in zip(shape, row_major(shape), strict=True):
        if length > 1 and 0 < step <= stride and stride % step == 0:
            room = length // (stride // step)
            if length % (stride // step) == 0 and extent > room > 1 and extent % room == 0:
                return [*split_digit((extent // room, stride * room), shape), (room, stride)]
            break
    return [digit]


def refine_dims(rows: Sequence[Digits]) -> list[Digits] | None:
    """Return the digits of one dim of several tensors with the same extents in all; None if that is impossible.

    Sound: a digit of extent m n and stride s is the digits (m, n s) and (n, s) of its own index.
    """
    left = [list(row) for row in rows]
    found: list[list[Digit]] = [[] for _ in rows]
    while any(left):
        if not all(left):
            return None  # other extents: callers have made them equal
        step = min(row[-1][0] for row in left)
        for row, taken in zip(left, found, strict=True):
            extent, stride = row.pop()
            if extent % step:
                return None
            taken.insert(0, (step, stride))
            if extent > step:
                row.append((extent // step, stride * step))
    return [tuple(taken) for taken in found]
