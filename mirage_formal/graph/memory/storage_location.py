"""Storage location of a kernel-level tensor's elements: strides, or an index map through moves of another tensor.

A path maps an element's index back to its index in the stored tensor. One function computes this map, over integers or
over the index expressions of a kernel. So a reader finds the element under any combination of moves. The only further
information needed is which neighbouring elements stay neighbours, so that they are read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Final, Protocol, TypeVar

from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import equal_index_dims
from mirage_formal.graph.types import Shape, row_major

_T = TypeVar("_T")


class IndexArithmetic(Protocol[_T]):
    """Arithmetic of integers, or of expressions that stand for them."""

    def number(self, value: int) -> _T:
        """Return a constant."""

    def add(self, *terms: _T) -> _T:
        """Return the sum of the terms."""

    def mod(self, e: _T, n: int) -> _T:
        """Return e % n."""

    def less(self, e: _T, n: int) -> _T:
        """Return whether e < n."""

    def ravel(self, coordinates: Iterable[_T], strides: Iterable[int]) -> _T:
        """Return the sum of coordinates times strides."""

    def unravel(self, e: _T, shape: tuple[int, ...]) -> tuple[_T, ...]:
        """Return the coordinates of the element at a row-major position."""


@dataclass(frozen=True, slots=True)
class Move:
    """Operator that moves elements, with its operand's and its result's shape.

    Attributes:
        kind: The operator; a concatenation stands for a roll (circular shift) of a tensor.
        attrs: Its attributes; of a roll the dim, and the element that comes first as ``start``.
        given: Extents of its operand.
        shape: Extents of its result.
    """

    kind: OpKind
    attrs: Attrs
    given: Shape
    shape: Shape

    def back(self, at: Sequence[_T], ix: IndexArithmetic[_T]) -> tuple[list[_T], list[_T]]:
        """Return the operand's index of an element of the result, and conditions under which it is no zero of a pad.

        No intermediate number is negative. Where a condition is 0, the element is a pad's zero, and the index would lie
        beyond the operand's end.
        """
        found, dim, attrs = list(at), self.attrs.dim or 0, self.attrs
        match self.kind:
            case OpKind.RESHAPE:
                return list(ix.unravel(ix.ravel(found, row_major(self.shape)), self.given)), []
            case OpKind.TRANSPOSE:
                assert attrs.perm is not None
                return [found[attrs.perm.index(i)] for i in range(len(found))], []
            case OpKind.REPEAT:
                found[dim] = ix.number(0)
            case OpKind.SLICE:
                found[dim] = ix.add(found[dim], ix.number(attrs.start or 0))
            case OpKind.CONCAT:
                found[dim] = ix.mod(ix.add(found[dim], ix.number(attrs.start or 0)), self.given[dim])
            case OpKind.PAD:
                whole = self.shape[dim]
                found[dim] = ix.mod(ix.add(found[dim], ix.number(whole - (attrs.before or 0))), whole)
                return found, [ix.less(found[dim], self.given[dim])]
            case _:
                raise AssertionError(self.kind)
        return found, []

    def inverse(self) -> Move:
        """Return the move that undoes a reshape, a transpose or a roll."""
        if self.kind is OpKind.CONCAT:
            dim = self.attrs.dim or 0
            return Move(
                self.kind, Attrs(dim=dim, start=self.given[dim] - (self.attrs.start or 0)), self.shape, self.given
            )
        if self.kind is OpKind.RESHAPE:
            return Move(self.kind, Attrs(shape=self.given), self.shape, self.given)
        assert self.attrs.perm is not None
        back = tuple(self.attrs.perm.index(i) for i in range(len(self.given)))
        return Move(self.kind, Attrs(perm=back), self.shape, self.given)

    def dim(self, dim: int, run: int) -> tuple[int, int] | None:
        """Map a dim of the result, and a run length along it, to the operand's dim and the run length there.

        Neighbours along the result's dim are neighbours along the operand's, within runs that start at multiples of
        their length along both dims. None if there is no such dim.
        """
        attrs = self.attrs
        match self.kind:
            case OpKind.TRANSPOSE:
                assert attrs.perm is not None
                return attrs.perm[dim], run
            case OpKind.RESHAPE:
                inner = next((i for i in reversed(range(len(self.given))) if self.given[i] > 1), None)
                if inner is not None and prod(self.shape[dim + 1 :]) == 1:
                    return inner, gcd(run, self.given[inner])
                return next(((old, run) for old, new in equal_index_dims(self.given, self.shape) if new == dim), None)
            case OpKind.REPEAT:
                return None if dim == attrs.dim else (dim, run)
            case OpKind.SLICE | OpKind.PAD | OpKind.CONCAT if dim != attrs.dim:
                return dim, run
            case OpKind.PAD:
                return dim, gcd(run, attrs.before or 0, self.given[dim])
            case OpKind.CONCAT:
                return dim, gcd(run, attrs.start or 0, self.given[dim])
            case OpKind.SLICE:
                return dim, gcd(run, attrs.start or 0)
            case _:
                raise AssertionError(self.kind)

    def steps(self, steps: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of the result's dims in memory, from those of the operand's dims."""
        match self.kind:
            case OpKind.TRANSPOSE:
                assert self.attrs.perm is not None
                return tuple(steps[i] for i in self.attrs.perm)
            case OpKind.REPEAT:
                return tuple(0 if i == self.attrs.dim else step for i, step in enumerate(steps))
            case OpKind.RESHAPE:
                units = list(zip(row_major(self.given), self.given, steps, strict=True))
                return tuple(
                    next((step * (mine // unit) for unit, n, step in reversed(units) if n > 1 and mine < unit * n), 0)
                    for mine in row_major(self.shape)
                )
            case OpKind.SLICE | OpKind.PAD | OpKind.CONCAT:
                return tuple(steps)
            case _:
                raise AssertionError(self.kind)


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Moves that map a tensor whose elements lie at strides to one whose elements do not.

    Attributes:
        moves: One after another; at least one.
        source: The storage location of the first move's operand.
    """

    moves: tuple[Move, ...]
    source: StorageLocation

    @property
    def given(self) -> Shape:
        """Return the extents of the first move's operand."""
        return self.moves[0].given

    @property
    def share(self) -> float:
        """Return the fraction of the result's elements that no pad added."""
        kept = (prod(move.given) / prod(move.shape) for move in self.moves if move.kind is OpKind.PAD)
        return prod(kept) * self.source.share(self.given)

    def back(self, at: Sequence[_T], ix: IndexArithmetic[_T]) -> tuple[list[_T], list[_T]]:
        """Return an element's index in the first move's operand, and conditions, see ``Move.back``."""
        conditions: list[_T] = []
        found = list(at)
        for move in reversed(self.moves):
            found, more = move.back(found, ix)
            conditions += more
        return found, conditions

    def run(self, dim: int) -> int:
        """Return the length of the runs along a dim whose elements are always neighbours in memory.

        A power of two; runs begin at multiples of it along the dim. Either no element of a run lies in a pad, or all.
        """
        extent = self.moves[-1].shape[dim]
        found: tuple[int, int] | None = (dim, extent & -extent)
        for move in reversed(self.moves):
            found = None if found is None else move.dim(*found)
        if found is None or self.source.strides[found[0]] != 1:
            return 1
        run = found[1] & -found[1]
        while run > 1 and not self.source.aligned(self.given, run, found[0]):
            run //= 2
        return run


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """Storage location of a tensor's elements.

    Attributes:
        base: Number of the tensor in whose memory they lie: its own, unless it is a view. The base of a tensor that is
            stored only in part is the slice that reads it.
        strides: In elements; element (i, j, ...) lies at ``offset`` plus the sum of index times stride, counted from
            the base's first element.
        offset: In elements; below 0 if the first elements do not lie in memory.
        extents: Bounds of the indices of elements in memory, if only those below lie there; others are 0 where they are
            read, and are not written. None: all do.
        starts: As ``extents``, the least indices of elements in memory; None: 0.
        path: Where no strides give the elements, the index map from other elements of the base. ``strides`` then are
            the steps between neighbours along each dim, as far as these are the same.
    """

    base: int
    strides: tuple[int, ...]
    offset: int = 0
    extents: Shape | None = None
    starts: Shape | None = None
    path: IndexMap | None = None

    def span(self, shape: Shape) -> int:
        """Return the number of elements of the base up to the last one that belongs to a tensor of this shape."""
        if self.path is not None:
            return self.path.source.span(self.path.given)
        inside = self.extents or shape
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(inside, self.strides, strict=True))

    def share(self, shape: Shape) -> float:
        """Return the fraction of a tensor of this shape that lies in memory, from above 0 to 1."""
        if self.path is not None:
            return self.path.share
        if self.extents is None:
            return 1.0
        starts = self.starts or (0,) * len(shape)
        return prod(end - start for start, end in zip(starts, self.extents, strict=True)) / prod(shape)

    def aligned(self, shape: Shape, width: int, dense: int) -> bool:
        """Return whether runs of ``width`` elements along a dim start at multiples of it, and are stored wholly or not.

        Args:
            shape: Extents of the tensor.
            width: Elements of a run; runs start at multiples of it along the dim.
            dense: The dim, along which neighbours are neighbours in memory.
        """
        if self.path is not None:
            return self.path.run(dense) % width == 0
        extents = self.extents or shape
        others = (s for d, s in enumerate(self.strides) if d != dense and extents[d] > 1)
        whole = self.extents is None or self.extents[dense] % width == 0
        whole = whole and (self.starts is None or self.starts[dense] % width == 0)
        return whole and self.offset % width == 0 and all(stride % width == 0 for stride in others)


class _Integers:
    """Arithmetic of Python integers, and of arrays of them."""

    def number(self, value: int) -> int:
        return value

    def add(self, *terms: int) -> int:
        return sum(terms)

    def mod(self, e: int, n: int) -> int:
        return e % n

    def less(self, e: int, n: int) -> int:
        return (e < n) * 1

    def ravel(self, coordinates: Iterable[int], strides: Iterable[int]) -> int:
        return sum(c * s for c, s in zip(coordinates, strides, strict=True))

    def unravel(self, e: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(e // step % extent for step, extent in zip(row_major(shape), shape, strict=True))


#: Arithmetic of integers.
INTEGERS: Final = _Integers()


__all__ = ["INTEGERS", "IndexArithmetic", "IndexMap", "Move", "StorageLocation"]
