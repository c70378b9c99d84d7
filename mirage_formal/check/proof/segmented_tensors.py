"""Tensors with concatenated axes as grids of pieces (block matrices), and the primitive operators on them.

A value has the segment lengths of each axis, and a term for each combination of segments; mostly there is one. Where an
operator does not work on pieces, they are joined to one term of the concatenation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import prod
from typing import Final

from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.ring import require
from mirage_formal.graph.types import Shape

MAX_PIECES: Final = 2_048
Cut = tuple[int, ...]
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PieceValue:
    """Segment lengths of each axis, and the term of each piece; ``source`` is what this is a reshape of, if any."""

    cuts: tuple[Cut, ...]
    terms: Mapping[Place, int]
    source: PieceValue | None = None

    @property
    def shape(self) -> Shape:
        """Return the extent of each axis: the sum of its segment lengths."""
        return tuple(map(sum, self.cuts))

    def piece(self, place: Sequence[int]) -> int:
        """Return the term at a place of a grid that this one broadcasts to."""
        return self.terms[tuple(i if len(cut) > 1 else 0 for i, cut in zip(place, self.cuts, strict=True))]

    def pieces(self) -> list[int]:
        """Return the terms in row-major order."""
        return [self.terms[place] for place in sorted(self.terms)]


def common_refinement(a: Cut, b: Cut) -> Cut:
    """Return the coarsest segments that refine both cuts."""
    ends = sorted({*accumulate(a), *accumulate(b)})
    return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


def replace_item(items: tuple[int, ...], axis: int, item: int) -> tuple[int, ...]:
    """Return the tuple with the item at position ``axis`` replaced."""
    return (*items[:axis], item, *items[axis + 1 :])


def refine(terms: Terms, x: PieceValue, axis: int, cut: Cut) -> PieceValue:
    """Return a value with the segments of an axis split into smaller ones."""
    if cut == x.cuts[axis]:
        return x
    cuts = (*x.cuts[:axis], cut, *x.cuts[axis + 1 :])
    out: dict[Place, int] = {}
    olds, starts = (0, *accumulate(x.cuts[axis])), (0, *accumulate(cut))
    for place in grid_indices(cuts):
        start = starts[place[axis]]
        old = bisect_right(olds, start) - 1
        out[place] = terms.slice(x.terms[replace_item(place, axis, old)], axis, start - olds[old], cut[place[axis]])
    return PieceValue(cuts, out)


def align_segments(terms: Terms, a: PieceValue, b: PieceValue, axes: Iterable[int]) -> tuple[PieceValue, PieceValue]:
    """Return two values with common segments along these axes, where neither has extent 1."""
    for axis in axes:
        if a.shape[axis] != 1 and b.shape[axis] != 1:
            cut = common_refinement(a.cuts[axis], b.cuts[axis])
            a, b = refine(terms, a, axis, cut), refine(terms, b, axis, cut)
    return a, b


def paired_terms(terms: Terms, left: Sequence[PieceValue], right: Sequence[PieceValue]) -> list[tuple[int, int]]:
    """Return the pairs of terms of corresponding pieces of values that should be equal."""
    require([x.shape for x in left] == [x.shape for x in right], "expected the shapes of the program's outputs")
    out: list[tuple[int, int]] = []
    for a, b in zip(left, right, strict=True):
        a, b = align_segments(terms, a, b, range(len(a.cuts)))
        out += zip(a.pieces(), b.pieces(), strict=True)
    return out


def _broadcast(a: Sequence[Cut], b: Sequence[Cut]) -> tuple[Cut, ...]:
    return tuple(y if sum(x) == 1 else x for x, y in zip(a, b, strict=True))


def grid_indices(cuts: Sequence[Cut]) -> Iterator[Place]:
    """Yield the places of a grid of pieces in row-major order: for each axis the number of a segment."""
    return product(*(range(len(cut)) for cut in cuts))


class PieceOperators:
    """Primitive operators, piece by piece.

    Sound: a piece of the result is the operator on the pieces that it needs, cut to equal segments; a contraction or a
    sum over segments is the sum of its parts, the largest value over segments is the largest of theirs. A joined term
    is the name of the whole.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def each(self, x: PieceValue, axis: int, cut: Cut, make: Callable[[int], int]) -> PieceValue:
        """Return the value with ``make`` on every piece; the pieces along ``axis`` have the lengths of ``cut``."""
        cuts = (*x.cuts[:axis], cut, *x.cuts[axis + 1 :])
        return PieceValue(cuts, {place: make(term) for place, term in x.terms.items()})

    def paired(self, a: PieceValue, b: PieceValue, make: Callable[[int, int], int]) -> PieceValue:
        """Return the pieces of broadcast operands, combined by ``make``."""
        a, b = self.fewer(a, b)
        a, b = align_segments(self.terms, a, b, range(len(a.cuts)))
        cuts = _broadcast(a.cuts, b.cuts)
        return PieceValue(cuts, {place: make(a.piece(place), b.piece(place)) for place in grid_indices(cuts)})

    def unary(self, kind: str, x: PieceValue) -> PieceValue:
        """Return an elementwise operator of a value."""
        return self.each(x, 0, x.cuts[0], lambda term: self.terms.unary(kind, term))

    def constant(self, kind: str, x: PieceValue, q: Fraction) -> PieceValue:
        """Return scale or offset of a value."""
        return self.each(x, 0, x.cuts[0], lambda term: self.terms.constant(kind, term, q))

    def binary(self, kind: str, a: PieceValue, b: PieceValue) -> PieceValue:
        """Return an operator of two values."""
        return self.paired(a, b, lambda x, y: self.terms.binary(kind, x, y))

    def matmul(self, a: PieceValue, b: PieceValue) -> PieceValue:
        """Return the product over the last two axes, summed over the segments of the contracted one."""
        a, b = self.fewer(a, b)
        rank = len(a.cuts)
        cut = common_refinement(a.cuts[-1], b.cuts[-2])
        a, b = align_segments(self.terms, a, b, range(rank - 2))
        a, b = refine(self.terms, a, rank - 1, cut), refine(self.terms, b, rank - 2, cut)
        cuts = (*_broadcast(a.cuts[:-2], b.cuts[:-2]), a.cuts[-2], b.cuts[-1])
        out: dict[Place, int] = {}
        for place in grid_indices(cuts):
            *lead, i, j = place
            for k in range(len(cut)):
                part = self.terms.matmul(a.piece((*lead, i, k)), b.piece((*lead, k, j)))
                out[place] = self.terms.binary("add", out[place], part) if k else part
        return PieceValue(cuts, out)

    def joined(self, x: PieceValue, *axes: int) -> PieceValue:
        """Return the value with one segment along each of these axes."""
        for axis in axes:
            count = range(len(x.cuts[axis]))
            firsts = (place for place in x.terms if place[axis] == 0)
            terms = {
                p: self.terms.concat(tuple(x.terms[replace_item(p, axis, i)] for i in count), axis) for p in firsts
            }
            x = PieceValue((*x.cuts[:axis], (x.shape[axis],), *x.cuts[axis + 1 :]), terms)
        return x

    def refined(self, x: PieceValue, axis: int, lengths: Cut) -> PieceValue:
        """Return the value with an axis cut to segments of these lengths too."""
        cut = common_refinement(x.cuts[axis], lengths)
        good = sum(lengths) == x.shape[axis] and len(x.terms) * len(cut) <= MAX_PIECES * len(x.cuts[axis])
        require(
            good, f"expected segments of {x.shape[axis]} elements and at most {MAX_PIECES} pieces, got {lengths[:9]}"
        )
        return refine(self.terms, x, axis, cut)

    def fewer(self, a: PieceValue, b: PieceValue) -> tuple[PieceValue, PieceValue]:
        """Return two operands, joined where their common cut could have too many pieces."""
        if len(a.terms) * (len(b.terms) if a.cuts != b.cuts else 2) <= MAX_PIECES:
            return a, b
        return self.joined(a, *range(len(a.cuts))), self.joined(b, *range(len(b.cuts)))

    def fold(self, kind: str, x: PieceValue, axis: int, kept: int = 1) -> PieceValue:
        """Reduce an axis to ``kept`` elements by sum, or to one by max, over its segments too."""
        x = x if kept == 1 else self.joined(x, axis)
        terms: dict[Place, int] = {}
        for place in sorted(x.terms):
            part, target = self.terms.reduce(kind, x.terms[place], axis, kept), replace_item(place, axis, 0)
            both = "add" if kind == "sum" else "max"
            terms[target] = self.terms.binary(both, terms[target], part) if target in terms else part
        return PieceValue((*x.cuts[:axis], (kept,), *x.cuts[axis + 1 :]), terms)

    def sum(self, x: PieceValue, axis: int, kept: int = 1) -> PieceValue:
        """Reduce an axis to ``kept`` elements by addition."""
        return self.fold("sum", x, axis, kept)

    def repeat(self, x: PieceValue, axis: int, times: int) -> PieceValue:
        """Repeat an axis of extent 1 ``times`` times."""
        return self.each(x, axis, (times,), lambda term: self.terms.repeat(term, axis, times))

    def slice(self, x: PieceValue, axis: int, start: int, stop: int) -> PieceValue:
        """Return elements start .. stop - 1 of an axis; segments are split at both ends first."""
        ends = sorted({0, start, stop, x.shape[axis]})
        cut = common_refinement(x.cuts[axis], tuple(b - a for a, b in pairwise(ends)))
        x = refine(self.terms, x, axis, cut)
        starts = (0, *accumulate(x.cuts[axis]))
        kept = [i for i in range(len(x.cuts[axis])) if start <= starts[i] < stop]
        terms = {
            replace_item(place, axis, place[axis] - kept[0]): t for place, t in x.terms.items() if place[axis] in kept
        }
        return PieceValue((*x.cuts[:axis], tuple(x.cuts[axis][i] for i in kept), *x.cuts[axis + 1 :]), terms)

    def transpose(self, x: PieceValue, perm: tuple[int, ...]) -> PieceValue:
        """Return a value with permuted axes."""
        terms = {tuple(place[i] for i in perm): self.terms.transpose(term, perm) for place, term in x.terms.items()}
        return PieceValue(tuple(x.cuts[i] for i in perm), terms)

    def reshape(self, x: PieceValue, shape: Shape) -> PieceValue:
        """Return the row-major elements with other axes.

        Sound: a segment of the outermost axis of a group of axes is a run of its elements, and so is a segment of the
        outermost new axis; other segments are joined. A reshape of a reshape has the same elements in the same order.
        """
        source = x = x.source or x
        if shape == x.shape:
            return x
        cuts: list[Cut] = [(extent,) for extent in shape]
        moved: dict[int, int] = {}
        for olds, news in _groups(x.shape, shape):
            inner = [axis for axis in olds if x.shape[axis] > 1]
            for axis in inner:
                first = next(i for i in news if shape[i] > 1)
                tail = prod(shape[i] for i in news if i > first)
                rest = prod(x.shape[i] for i in inner[1:])
                if axis != inner[0] or any(length * rest % tail for length in x.cuts[axis]):
                    x = self.joined(x, axis)
                elif len(x.cuts[axis]) > 1:
                    cuts[first], moved[first] = tuple(length * rest // tail for length in x.cuts[axis]), axis
        terms = {}
        for place, term in x.terms.items():
            target = tuple(place[moved[i]] if i in moved else 0 for i in range(len(shape)))
            terms[target] = self.terms.reshape(term, tuple(cut[i] for cut, i in zip(cuts, target, strict=True)))
        return PieceValue(tuple(cuts), terms, source)


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Return the smallest runs of old and new axes with equal numbers of elements.

    The last run takes the remaining axes, of extent 1.
    """
    out: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) and j < len(new):
        olds, news, a, b = [i], [j], old[i], new[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                olds.append(i)
                a, i = a * old[i], i + 1
            else:
                news.append(j)
                b, j = b * new[j], j + 1
        out.append((olds, news))
    return out
