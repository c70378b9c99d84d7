"""Symbolic tilings ("structures") of a graph-defined kernel: the parts of each axis, without extents.

A structure states for each leaf, a part of an input tensor, how the kernel splits it: over the grid, over the loop,
folded to reduction_dimx, or kept as a tile. This assigns the grid axes and the loop to axes, which determines imap,
fmap and omap. The loop may iterate over several axes, of different input tensors.

One axis may be split in several ways in different dims of the inputs. Each way has its own copy of the axis
(``AxisCopyAssigner``). Each such copy has twins that are split like it, enough for the dims of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations, product
from typing import NamedTuple, cast

from msgspec import Struct

from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.part_masks import Frame, PartMask, Renaming, mask, rename_mask
from mirage_formal.search.guided.algebra.part_numbering import (
    SLOTS,
    Axis,
    Part,
    Parts,
    PartUse,
    Split,
    child_part,
    is_unsplit,
    move_part,
    part_axis,
    unsplit_part,
)
from mirage_formal.search.guided.index_renaming import Dims

#: An axis of a program input: (normal form of the input, number of the axis in its dims).
Place = tuple[Form, int]
#: An axis of a tensor that a kernel reads: (number of the tensor among the kernel's inputs, axis).
ReadPlace = tuple[int, Axis]

G, L, F, T = PartUse.GRID, PartUse.LOOP, PartUse.FOLD, PartUse.TILE


class KTensor(Struct, frozen=True):
    """A device tensor as a class: the normal form of its element and the parts of its dims."""

    form: Form
    dims: Dims

    @property
    def leaves(self) -> Parts:
        """Return every part of its dims, in order."""
        return tuple(part for dim in self.dims for part in dim)


class AxisCopies(Struct, frozen=True):
    """Numbering of the copies of axes.

    Attributes:
        width: Number of base axes; axis ``width * copy + base`` is a copy of ``base``.
        ways: Number of ways in which one kernel may split one axis; each of the first ``ways`` copies has a way of its
            own.
        twins: Number of copies that are split alike; copy number c has the twins c, c + ways, c + 2 * ways, ...
    """

    width: int
    ways: int
    twins: int

    @property
    def single(self) -> bool:
        """Return whether every axis has one name."""
        return self.ways == self.twins == 1

    @property
    def count(self) -> int:
        """Return the number of axes, copies included."""
        return self.width * self.ways * self.twins

    def base(self, axis: Axis) -> Axis:
        """Return the base axis of an axis."""
        return Axis(axis % self.width)

    @property
    def axes(self) -> Sequence[Axis]:
        """Return all axes, copies included, ascending."""
        return cast(Sequence[Axis], range(self.count))

    def peers(self, axis: Axis) -> Sequence[Axis]:
        """Return an axis and its twins."""
        return cast(Sequence[Axis], range(axis % (self.width * self.ways), self.count, self.width * self.ways))

    def first(self, part: Part) -> Part:
        """Return the same part of the first twin."""
        return move_part(part, Axis(part_axis(part) % (self.width * self.ways)))

    def twin_parts(self, part: Part) -> Parts:
        """Return the same part of every twin of an axis, given that of the first one."""
        if self.twins == 1:
            return (part,)
        return tuple(Part(part + i * self.width * self.ways * SLOTS) for i in range(self.twins))


class _Cut(NamedTuple):
    """The split of a leaf.

    Attributes:
        split: The split.
        children: The leaf's parts.
        local: Those that one block holds at a time.
        renaming: The masks of the leaf and of its parts.
    """

    split: Split
    children: Parts
    local: Parts
    renaming: tuple[PartMask, PartMask]


@cache
def _cut(leaf: Part, split: Split) -> _Cut:
    children = tuple(child_part(leaf, kind) for kind in split)
    local = tuple(part for part, kind in zip(children, split, strict=True) if kind >= F)
    return _Cut(split, children, local, (PartMask(1 << leaf), mask(children)))


@dataclass(frozen=True)
class SymbolicTiling:
    """A kernel's symbolic tiling: the split of each leaf, and the leaves that the loop splits.

    Leaves are those of first twins; the others are split like them.
    """

    splits: tuple[tuple[Part, Split], ...]
    loops: Parts
    names: AxisCopies

    @cached_property
    def _hash(self) -> int:
        return hash((self.splits, self.loops, self.names))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _cuts(self) -> dict[Part, _Cut]:
        """Return the cut of each leaf, which may belong to any twin."""
        return {twin: _cut(twin, split) for leaf, split in self.splits for twin in self.names.twin_parts(leaf)}

    @cached_property
    def _tiles(self) -> dict[Dims, Dims | None]:
        """Return the results of ``block_dims`` so far."""
        return {}

    def split(self, leaf: Part) -> Split:
        """Return the split of one leaf, which may belong to any twin."""
        return self._cuts[leaf].split

    def children(self, leaf: Part) -> Parts:
        """Return the parts that a leaf is split into."""
        return self._cuts[leaf].children

    def local(self, leaf: Part) -> Parts:
        """Return the parts of a leaf that one block holds at a time: fold and tile parts."""
        return self._cuts[leaf].local

    @property
    def grid_leaves(self) -> Parts:
        """Return the leaves that a grid axis splits, in order."""
        return tuple(leaf for leaf, split in self.splits if G in split)

    @cached_property
    def loop_parts(self) -> tuple[PartMask, ...]:
        """Return the mask of the loop's part of each index that it iterates over; none where the loop runs once."""
        return tuple(PartMask(1 << child_part(twin, L)) for leaf in self.loops for twin in self.names.twin_parts(leaf))

    @cached_property
    def same(self) -> tuple[tuple[PartMask, ...], ...]:
        """Return groups of part masks; a group is one index of the kernel, such as the loop's, under several names."""
        grids = [
            tuple(PartMask(1 << child_part(twin, G)) for twin in self.names.twin_parts(leaf))
            for leaf in self.grid_leaves
        ]
        return tuple(group for group in (self.loop_parts, *grids) if len(group) > 1)

    @cached_property
    def renaming(self) -> Renaming:
        """Return the renaming that replaces each leaf by its children."""
        return tuple(cut.renaming for cut in self._cuts.values())

    def frame(self, outer: Frame) -> Frame:
        """Return the frame inside the kernel.

        Args:
            outer: The frame before it.
        """
        inner = []
        for axis_mask in outer:
            renamed = rename_mask(axis_mask, self.renaming)
            assert renamed is not None, "a renaming of single parts covers every mask"
            inner.append(renamed)
        return tuple(inner)

    def block_dims(self, dims: Dims) -> Dims | None:
        """Return the dims of one block's tile.

        Args:
            dims: Dims of the tensor in device memory.

        Returns:
            The dims; None if a dim is not cut in the order grid, loop, rest, or by two grid axes.
        """
        tiles = self._tiles
        if dims not in tiles:
            tiles[dims] = self._block_dims(dims)
        return tiles[dims]

    def _block_dims(self, dims: Dims) -> Dims | None:
        out: list[Parts] = []
        cuts = self._cuts
        for dim in dims:
            tile: Parts = ()
            highest, grids = 0, 0
            for leaf in dim:
                cut = cuts[leaf]
                for kind in cut.split:
                    if kind < highest:
                        return None
                    highest = min(kind, F)
                    grids += kind is G
                tile += cut.local
            if grids > 1:
                return None
            out.append(tile)
        return tuple(out)

    def opens(self, dims: Dims) -> bool:
        """Return whether an input with these dims has at most one dim for the loop and for each grid axis."""
        if self.names.single and len(self.loops) < 2:
            return True
        leaves = [self.names.first(leaf) for dim in dims for leaf in dim]
        split = [leaf for leaf in leaves if G in self.split(leaf)]
        return sum(leaf in self.loops for leaf in leaves) <= 1 and len(set(split)) == len(split)


def leaves_of(tensors: tuple[KTensor, ...]) -> Parts:
    """Return all leaves of some tensors, ascending."""
    return tuple(sorted({leaf for tensor in tensors for leaf in tensor.leaves}))


@dataclass(frozen=True, slots=True)
class TilingRules:
    """Limits of symbolic tilings.

    Attributes:
        free: Base axes of the program's output.
        bound: Base axes that the program reduces.
        fold: Whether a fold part (for accum_sum_to_dimx) may be split off.
        names: The numbering of the copies of axes.
        loops: Most axes that the loop iterates over.
        apart: Whether structures are left out that split two copies of one axis alike.
        max_grid: Most grid axes.
        known: The structures so far, by leaves, the leaves that loops iterate over, and whether the kernel is the last.
    """

    free: frozenset[Axis]
    bound: frozenset[Axis]
    fold: bool
    names: AxisCopies
    loops: int = 1
    apart: bool = True
    max_grid: int = 3
    known: dict[tuple[Parts, tuple[Parts, ...], bool], tuple[SymbolicTiling, ...]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def loop_groups(self, tensors: tuple[KTensor, ...]) -> Iterator[Parts]:
        """Yield the sets of leaves that the loop may iterate over: none, one leaf, or leaves of different inputs."""
        first = self.names.first
        held = [{first(leaf) for leaf in tensor.leaves} for tensor in tensors]
        leaves = sorted({leaf for leaves in held for leaf in leaves if self._base(leaf) in self.bound})
        for count in range(self.loops + 1):
            for group in combinations(leaves, count):
                if count < 2 or all(len(leaves & set(group)) < 2 for leaves in held):
                    yield group

    def structures(self, tensors: tuple[KTensor, ...], *, last: bool) -> Sequence[SymbolicTiling]:
        """Return all structures over the leaves of some tensors; the same ones for the same leaves.

        Args:
            tensors: The tensors that the kernel reads.
            last: Whether it is the last kernel, which may not split a reduced axis over the grid.
        """
        leaves = tuple(sorted({self.names.first(leaf) for leaf in leaves_of(tensors)}))
        key = (leaves, tuple(self.loop_groups(tensors)), last)
        if key not in self.known:
            self.known[key] = tuple(self._structures(*key))
        return self.known[key]

    def _structures(self, leaves: Parts, groups: tuple[Parts, ...], last: bool) -> Iterator[SymbolicTiling]:
        for loops in groups:
            for splits in product(*(self._options(leaf, leaf in loops, last) for leaf in leaves)):
                if sum(G in s for s in splits) <= self.max_grid and sum(F in s for s in splits) <= 1:
                    structure = SymbolicTiling(tuple(zip(leaves, splits, strict=True)), loops, self.names)
                    if self._told_apart(structure):
                        yield structure

    def _base(self, leaf: Part) -> Axis:
        return self.names.base(part_axis(leaf))

    def _told_apart(self, structure: SymbolicTiling) -> bool:
        """Return whether the copies of each axis are split in different ways; splits with a grid part always count.

        Sound: with equal splits every operator of the structure is one of that in which the copies are one.
        """
        if self.names.ways == 1 or not self.apart:
            return True
        ways = [(self._base(leaf), leaf % SLOTS, split) for leaf, split in structure.splits if G not in split]
        return len(set(ways)) == len(ways)

    def _options(self, leaf: Part, loop: bool, last: bool) -> tuple[Split, ...]:
        axis = self._base(leaf)
        if loop:
            base: tuple[Split, ...] = ((L, T), (L,)) if last else ((L, T), (L,), (G, L, T), (G, L))
        else:
            base = ((T,), (G, T), (G,)) if axis in self.free or not last else ((T,),)
        if self.fold and axis in self.bound:
            base += tuple((*s[:-1], F, T) for s in base if T in s)
        return base


class AxisCopyAssigner:
    """Assignment of axis copies to a kernel's inputs, for axes that may be split in several ways.

    Every dim of an input takes one of the first ``ways`` copies of its axis, which differ by their split. A further dim
    of the same tensor on the same copy takes a twin.

    Args:
        names: The numbering of the copies of axes.
        ties: For places (form of a program input, number of an axis in its dims) the places of other inputs that share
            the index wherever the input occurs in the target; those of one kernel are split alike.
        inputs: Forms of the program's inputs. Where other tensors meet is unknown, so an axis of theirs is split in one
            way, unless one of them holds it twice.
    """

    def __init__(self, names: AxisCopies, ties: Mapping[Place, frozenset[Place]], inputs: frozenset[Form]) -> None:
        self._names = names
        self._ties = ties
        self._inputs = inputs

    def readings(self, tensors: tuple[KTensor, ...], frame: Frame, algebra: Algebra) -> Iterator[tuple[KTensor, ...]]:
        """Yield each assignment of axis copies to the inputs, one per equivalence class of interchangeable copies.

        Copies without parts before the kernel are interchangeable. The assignment with the fewest copies comes first.

        Args:
            tensors: The kernel's inputs in device memory.
            frame: The frame before the kernel.
            algebra: The algebra that interns the normal forms.
        """
        names = self._names
        if names.ways == 1:
            yield tensors
            return
        taken = {a for a in names.axes[: names.width * names.ways] if frame[a] != 1 << unsplit_part(a)}
        places = [
            (i, axis)
            for i, tensor in enumerate(tensors)
            for axis in dict.fromkeys(part_axis(leaf) for leaf in tensor.leaves if is_unsplit(leaf))
        ]
        groups = self._groups(tensors, places)
        bases = [names.base(places[group[0]][1]) for group in groups]
        for ways in product(*(self._free_ways(base, taken) for base in bases)):
            if not _copies_ascend(bases, ways, taken, names.width):
                continue
            chosen = {n: way for group, way in zip(groups, ways, strict=True) for n in group}
            read = self._read(tensors, places, chosen, algebra)
            if read is not None:
                yield read

    def _free_ways(self, base: Axis, taken: set[Axis]) -> list[int]:
        return [way for way in range(self._names.ways) if base + way * self._names.width not in taken]

    def _groups(self, tensors: tuple[KTensor, ...], places: list[ReadPlace]) -> list[list[int]]:
        """Return groups of places that must be read through one copy."""
        of = {
            (tensor.form, n): (i, part_axis(leaf))
            for i, tensor in enumerate(tensors)
            for n, leaf in enumerate(tensor.leaves)
        }
        group = {place: number for number, place in enumerate(places)}
        for key, place in of.items():
            for other in self._ties.get(key, ()):
                if place in group and of.get(other) in group:
                    old, new = group[of[other]], group[place]
                    group = {p: new if g == old else g for p, g in group.items()}
        for one, two in combinations(places, 2):
            made = any(tensors[i].form not in self._inputs for i, _ in (one, two))
            if made and one[0] != two[0] and self._names.base(one[1]) == self._names.base(two[1]):
                old, new = group[two], group[one]
                if not self._repeated(places, group, old, new):
                    group = {p: new if g == old else g for p, g in group.items()}
        out: dict[int, list[int]] = {}
        for number, place in enumerate(places):
            out.setdefault(group[place], []).append(number)
        return list(out.values())

    def _repeated(self, places: list[ReadPlace], group: Mapping[ReadPlace, int], one: int, other: int) -> bool:
        """Return whether two groups hold places of one tensor."""
        first = {i for i, axis in places if group[i, axis] == one}
        return any(i in first for i, axis in places if group[i, axis] == other)

    def _read(
        self, tensors: tuple[KTensor, ...], places: list[ReadPlace], ways: Mapping[int, int], algebra: Algebra
    ) -> tuple[KTensor, ...] | None:
        names, out = self._names, []
        for i, tensor in enumerate(tensors):
            used: dict[Axis, int] = {}
            new_names: dict[Axis, Axis] = {}
            for number, (holder, axis) in enumerate(places):
                if holder == i:
                    first = Axis(names.base(axis) + ways[number] * names.width)
                    twin = used[first] = used.get(first, -1) + 1
                    if twin >= names.twins:
                        return None
                    new_names[axis] = Axis(first + twin * names.width * names.ways)
            pairs = tuple((a, b) for a, b in new_names.items() if a != b)
            dims = tuple(
                tuple(move_part(p, new_names.get(part_axis(p), part_axis(p))) for p in dim) for dim in tensor.dims
            )
            out.append(KTensor(algebra.substitute(tensor.form, pairs), dims))
        return tuple(out)


def _copies_ascend(bases: list[Axis], ways: tuple[int, ...], taken: set[Axis], width: int) -> bool:
    """Return whether the copies of each axis are first used in ascending order."""
    next_way: dict[Axis, int] = {}
    for base, way in zip(bases, ways, strict=True):
        limit = next_way.get(base, 0)
        while base + limit * width in taken:
            limit += 1
        if way > limit:
            return False
        next_way[base] = max(limit + 1 if way == limit else limit, next_way.get(base, 0))
    return True
