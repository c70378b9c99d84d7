"""Structures: which parts of each axis a graph-defined kernel has, without extents.

A structure says for each part that its input tensors carry (a leaf) how it is split: over the grid, over the loop,
folded to reduction_dimx, or kept as a tile. Grid axes and the loop are thereby assigned to axes, and imap, fmap and
omap follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from mirage_formal.semantics.index.algebra import Renaming, rename_mask
from mirage_formal.semantics.index.parts import Kind, Parts, Split, axis_of, child, mask

#: Dims of a tensor, each a list of parts, most significant first.
Dims = tuple[Parts, ...]
#: For each axis the mask of the parts it is made of at this point of the kernel graph.
Frame = tuple[int, ...]

G, L, F, T = Kind.GRID, Kind.LOOP, Kind.FOLD, Kind.TILE


@dataclass(frozen=True, slots=True)
class KTensor:
    """A device tensor as a class: the normal form of its element and the parts of its dims."""

    form: int
    dims: Dims

    @property
    def leaves(self) -> tuple[int, ...]:
        """Every part of its dims, in order."""
        return tuple(part for dim in self.dims for part in dim)


@dataclass(frozen=True, slots=True)
class Structure:
    """How graph-defined kernel number ``level`` splits each leaf, and the leaf that the loop splits."""

    level: int
    splits: tuple[tuple[int, Split], ...]
    loop: int | None

    def split(self, leaf: int) -> Split:
        """The split of one leaf."""
        for part, split in self.splits:
            if part == leaf:
                return split
        raise KeyError(leaf)

    def children(self, leaf: int) -> Parts:
        """The parts that a leaf is split into."""
        return tuple(child(leaf, kind, self.level) for kind in self.split(leaf))

    def local(self, leaf: int) -> Parts:
        """The parts of a leaf that one block holds at a time."""
        return tuple(child(leaf, kind, self.level) for kind in self.split(leaf) if kind >= F)

    @property
    def grid_leaves(self) -> tuple[int, ...]:
        """Leaves that a grid axis splits, in order."""
        return tuple(leaf for leaf, split in self.splits if G in split)

    @property
    def loop_mask(self) -> int:
        """Mask of the loop part; 0 where the loop runs once."""
        return 0 if self.loop is None else 1 << child(self.loop, L, self.level)

    @property
    def renaming(self) -> Renaming:
        """Each leaf replaced by its children."""
        return tuple((1 << leaf, mask(self.children(leaf))) for leaf, _ in self.splits)

    def frame(self, outer: Frame) -> Frame:
        """The frame inside the kernel."""
        inner = []
        for axis_mask in outer:
            renamed = rename_mask(axis_mask, self.renaming)
            assert renamed is not None, "a renaming of single parts covers every mask"
            inner.append(renamed)
        return tuple(inner)

    def block_dims(self, dims: Dims) -> Dims | None:
        """Dims of one block's tile; None if a dim is not cut in the order grid, loop, rest, or by two grid axes."""
        out: list[Parts] = []
        for dim in dims:
            tile: list[int] = []
            highest, grids = G, 0
            for leaf in dim:
                for kind in self.split(leaf):
                    rank = min(kind, F)
                    if rank < highest:
                        return None
                    highest = Kind(rank)
                    grids += kind is G
                    if kind >= F:
                        tile.append(child(leaf, kind, self.level))
            if grids > 1:
                return None
            out.append(tuple(tile))
        return tuple(out)


def leaves_of(tensors: tuple[KTensor, ...]) -> tuple[int, ...]:
    """All leaves of some tensors, ascending."""
    return tuple(sorted({leaf for tensor in tensors for leaf in tensor.leaves}))


@dataclass(frozen=True, slots=True)
class StructureRules:
    """What structures may contain.

    Attributes:
        free: Axes of the program's output.
        bound: Axes that the program reduces.
        fold: Whether a fold part (for accum_sum_to_dimx) may be split off.
        max_grid: Most grid axes.
    """

    free: frozenset[int]
    bound: frozenset[int]
    fold: bool
    max_grid: int = 3

    def structures(self, level: int, leaves: tuple[int, ...], *, last: bool) -> Iterator[Structure]:
        """All structures over these leaves; a last kernel may not split a reduced axis over the grid."""
        loops: list[int | None] = [None, *(leaf for leaf in leaves if axis_of(leaf) in self.bound)]
        for loop in loops:
            for splits in product(*(self._options(leaf, leaf == loop, last) for leaf in leaves)):
                if sum(G in s for s in splits) <= self.max_grid and sum(F in s for s in splits) <= 1:
                    yield Structure(level, tuple(zip(leaves, splits, strict=True)), loop)

    def _options(self, leaf: int, loop: bool, last: bool) -> tuple[Split, ...]:
        axis = axis_of(leaf)
        if loop:
            base: tuple[Split, ...] = ((L, T), (L,)) if last else ((L, T), (L,), (G, L, T), (G, L))
        else:
            base = ((T,), (G, T), (G,)) if axis in self.free or not last else ((T,),)
        if self.fold and axis in self.bound:
            base += tuple((*s[:-1], F, T) for s in base if T in s)
        return base
