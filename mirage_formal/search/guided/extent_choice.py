"""Choice of extents for the parts of a structure, limited by divisibility, the space's lists and shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import permutations, product
from math import prod
from operator import itemgetter
from typing import Final

from msgspec import Struct

from mirage_formal.graph.ops import IN_PLACE, OpKind
from mirage_formal.graph.types import Dim3, DimMap, Shape
from mirage_formal.search.guided.algebra.part_numbering import Part, Parts, Split, child_part
from mirage_formal.search.guided.extract import Dag
from mirage_formal.search.guided.index_renaming import Dims
from mirage_formal.search.guided.solved_kernel import Placement, SolvedKernel
from mirage_formal.search.guided.symbolic_tiling import F, G, KTensor, L, T
from mirage_formal.search.space import SearchSpace, divisors

#: A kernel may exceed the space's limit on blocks if one block's largest result has at least this many elements: of a
#: tensor of 2^26 elements no tile that fits into shared memory is a 4096th.
_TILE: Final = 4096
#: Extent of each part.
Extents = Mapping[Part, int]


class Assignment(Struct, frozen=True):
    """Extents, grid and loop range of one kernel.

    Attributes:
        extents: Extents of all parts, those of the kernel's own split included.
        grid: Grid dimensions.
        axis: Grid axis (0, 1, 2) of each grid leaf.
        loop: Loop range.
        weight: Rough time in arbitrary units, only for choosing between assignments of one structure.
    """

    extents: Extents
    grid: Dim3
    axis: Mapping[Part, int]
    loop: int
    weight: float


def shape_of(dims: Dims, extents: Extents) -> Shape:
    """Return the shape of a tensor.

    Args:
        dims: Its dims.
        extents: The extent of each part in them.
    """
    return tuple(prod(extents[p] for p in dim) for dim in dims)


class ExtentAssigner:
    """Enumerator of assignments of extents to kernels in one space."""

    def __init__(self, space: SearchSpace, element_bytes: int) -> None:
        self._space = space
        self._bytes = element_bytes
        self._listed = space.grids is not None or space.extents.value == "paper" or space.imaps is not None
        self._listed = self._listed or space.omaps is not None or space.fmaps is not None

    @property
    def folds_to(self) -> tuple[int, ...]:
        """Return the widths that a fold may keep."""
        return self._space.reduction_dimx

    def assignments(self, kernel: SolvedKernel, outer: Extents) -> Iterator[Assignment]:
        """Yield all assignments of a kernel, including those that no DAG fits.

        Args:
            kernel: The kernel.
            outer: The extent of each leaf of its input tensors.
        """
        structure, tensors = kernel.structure, kernel.read
        loops = self._space.forloop_ranges
        choices = [
            _split_extents(split, outer[leaf], loops, self._space.reduction_dimx) for leaf, split in structure.splits
        ]
        limits = self._space.limits
        weight_of = self._weights(kernel)
        cuts = [
            [(kind, leaf, [child_part(twin, kind) for twin in structure.names.twin_parts(leaf)]) for kind in split]
            for leaf, split in structure.splits
        ]
        written = _result_parts(kernel)
        for values in product(*choices):
            extents = dict(outer)
            grid_extents: dict[Part, int] = {}
            ranges = set()
            for cut, numbers in zip(cuts, values, strict=True):
                for (kind, leaf, parts), number in zip(cut, numbers, strict=True):
                    for part in parts:
                        extents[part] = number
                    if kind is G:
                        grid_extents[leaf] = number
                    elif kind is L:
                        ranges.add(number)
            if len(ranges) > 1:
                continue
            loop = ranges.pop() if ranges else 1
            blocks = prod(grid_extents.values())
            few = blocks < limits.min_blocks and not self._listed
            if self._space.grids is None and (few or self._too_many(blocks, extents, written)):
                continue
            for grid, axis in self._grids(kernel, tensors, outer, grid_extents, loop):
                yield Assignment(extents, grid, axis, loop, weight_of(extents, blocks, loop))

    def _too_many(self, blocks: int, extents: Extents, written: Sequence[Parts]) -> bool:
        """Return whether a kernel exceeds the space's limit on blocks without a large tile of a result."""
        if blocks <= self._space.limits.max_blocks:
            return False
        return self._listed or all(prod(extents[p] for p in parts) < _TILE for parts in written)

    def _grids(
        self, kernel: SolvedKernel, tensors: tuple[KTensor, ...], outer: Extents, sizes: dict[Part, int], loop: int
    ) -> Iterator[tuple[Dim3, dict[Part, int]]]:
        if not self._listed:
            order = sorted(sizes, key=lambda leaf: (-sizes[leaf], leaf))
            grid = [sizes[leaf] for leaf in order] + [1] * (3 - len(order))
            yield (grid[0], grid[1], grid[2]), {leaf: i for i, leaf in enumerate(order)}
            return
        shapes = [shape_of(t.dims, outer) for t in tensors]
        allowed = set(self._space.grid_candidates(shapes))
        for slots in permutations(range(3), len(sizes)):
            axis = dict(zip(sizes, slots, strict=True))
            grid = [1, 1, 1]
            for leaf, slot in axis.items():
                grid[slot] = sizes[leaf]
            dim3 = (grid[0], grid[1], grid[2])
            if dim3 in allowed and self._maps_allowed(kernel, tensors, shapes, dim3, axis, loop):
                yield dim3, axis

    def _maps_allowed(
        self,
        kernel: SolvedKernel,
        tensors: tuple[KTensor, ...],
        shapes: list[Shape],
        grid: Dim3,
        axis: Mapping[Part, int],
        loop: int,
    ) -> bool:
        split = []
        for tensor, shape in zip(tensors, shapes, strict=True):
            imap = input_map(tensor.dims, axis)
            if imap not in self._space.imap_candidates(grid, shape):
                return False
            tile = tuple(n // prod(grid[a] for a in range(3) if imap[a] == d) for d, n in enumerate(shape))
            fmap = loop_dim(tensor.dims, kernel.structure.loops)
            if fmap not in self._space.fmap_candidates(tile):
                return False
            if fmap is not None:
                split.append(tile[fmap])
        rank = len(tensors[0].dims)
        return loop in self._space.loop_candidates(split) and all(
            output_map(p, axis) in self._space.omap_candidates(grid, rank) for p in kernel.placements
        )

    def _weights(self, kernel: SolvedKernel) -> Callable[[Extents, int, int], float]:
        """Return a function that computes an assignment's weight from its extents, blocks and loop range.

        Rough time in arbitrary units: traffic over a parallelism that saturates, plus loop and launch latency.
        """
        structure, width = kernel.structure, self._bytes
        read = [
            ([p for leaf in t.leaves for p in structure.local(leaf)], any(leaf in structure.loops for leaf in t.leaves))
            for t in kernel.read
        ]
        written = _result_parts(kernel)

        def weight(extents: Extents, blocks: int, loop: int) -> float:
            traffic = 0.0
            for parts, looped in read:
                traffic += width * prod([extents[p] for p in parts]) * (loop if looped else 1) * blocks
            for every in written:
                traffic += width * prod([extents[p] for p in every]) * blocks
            parallel = min(blocks, 128) / 128 if blocks < 128 else 1.0
            waves = -(-blocks // 264)
            return traffic / (4e6 * parallel) + 0.3 * loop * waves + 0.2 * waves

        return weight

    def fitting(self, kernel: SolvedKernel, dags: Sequence[Dag]) -> DagFilter:
        """Return a test of DAGs: they fit into shared memory, and their folds keep one width of the space's list."""
        return DagFilter(kernel, dags, self._space.shared_bytes // self._bytes, self._space.reduction_dimx)

    def folds(self, kernel: SolvedKernel, dag: Dag, assignment: Assignment) -> bool:
        """Return whether all folds of a DAG keep one width that the space lists."""
        return dimx_of(kernel, dag, assignment.extents, self._space.reduction_dimx) is not None


class DagFilter:
    """Test whether DAGs of one kernel fit into shared memory, for many assignments.

    A block's shared memory holds its input tiles and every result that does not take an operand's place. Many tensors
    of a kernel have the same parts, so a size is computed once for all of them. A sum is computed once for all DAGs
    that store tensors and fold dims of the same parts.

    Args:
        kernel: The kernel.
        dags: DAGs of it.
        elements: Most elements in shared memory.
        widths: Widths that a fold may keep.
    """

    def __init__(self, kernel: SolvedKernel, dags: Sequence[Dag], elements: int, widths: tuple[int, ...]) -> None:
        self._elements = elements
        self._widths = widths
        closure = kernel.solved.closure
        self._numbers: dict[Parts, int] = {}
        self._inputs = [self._number(_all_parts(closure.classes[i][1])) for i in range(closure.inputs)]
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, Dag]]] = {}
        for place, dag in enumerate(dags):
            stored = [self._number(_all_parts(closure.classes[n][1])) for n, made in dag if made.kind not in IN_PLACE]
            folds = {self._number(parts) for parts in _folded_parts(kernel, dag)}
            found.setdefault((tuple(sorted(stored)), tuple(sorted(folds))), []).append((place, dag))
        self._alike = list(found.items())

    def _number(self, parts: Parts) -> int:
        """Return the number that tensors and dims of these parts share."""
        return self._numbers.setdefault(tuple(sorted(parts)), len(self._numbers))

    def first(self, extents: Extents, most: int | None) -> list[Dag]:
        """Return the first ``most`` DAGs that fit, or all of them, in their order.

        Args:
            extents: The extent of each part inside the kernel.
            most: Most DAGs to return; None for all.
        """
        sizes = [prod([extents[p] for p in parts]) for parts in self._numbers]
        left = self._elements - sum([sizes[i] for i in self._inputs])
        if left < 0:
            return []
        fitting: list[tuple[int, Dag]] = []
        for (stored, folds), dags in self._alike:
            if sum([sizes[i] for i in stored]) <= left and self._folds({sizes[i] for i in folds}):
                fitting += dags if most is None else dags[:most]
        fitting.sort(key=itemgetter(0))
        return [dag for _, dag in fitting[:most]]

    def _folds(self, widths: set[int]) -> bool:
        return not widths or (len(widths) == 1 and widths.issubset(self._widths))


def _result_parts(kernel: SolvedKernel) -> list[Parts]:
    """Return the parts of each result's tile."""
    return [_all_parts(kernel.solved.closure.classes[goal][1]) for goal in kernel.goals]


def _all_parts(dims: Dims) -> Parts:
    """Return all parts of a tensor's dims."""
    return tuple(part for dim in dims for part in dim)


def _folded_parts(kernel: SolvedKernel, dag: Dag) -> Iterator[Parts]:
    """Yield the parts of each dim that an operator of a DAG folds."""
    classes = kernel.solved.closure.classes
    for number, producer in dag:
        if producer.kind in (OpKind.ACCUM_SUM_TO_DIMX, OpKind.SUM_TO_DIMX):
            yield classes[number][1][-1 if producer.attrs.dim is None else producer.attrs.dim]


def dimx_of(kernel: SolvedKernel, dag: Dag, extents: Extents, allowed: tuple[int, ...]) -> int | None:
    """Return the width, reduction_dimx, to which the reductions of a block graph fold.

    Args:
        kernel: The kernel.
        dag: One of its DAGs.
        extents: The extent of each part inside the kernel.
        allowed: The widths that the space lists.

    Returns:
        The width; the first allowed one if nothing folds, None if folds disagree or have a width that is not listed.
    """
    widths = {prod([extents[p] for p in parts]) for parts in _folded_parts(kernel, dag)}
    if not widths:
        return allowed[0]
    width = widths.pop()
    return width if not widths and width in allowed else None


@cache
def _split_extents(
    split: Split, extent: int, loops: tuple[int, ...] | None, folds: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return the choices of extents above 1 for the parts of a split whose product is ``extent``."""
    if not split:
        return ((),) if extent == 1 else ()
    kind, rest = split[0], split[1:]
    if not rest:
        ok = extent > 1 and (kind is not L or loops is None or extent in loops)
        return ((extent,),) if ok else ()
    out = []
    for n in divisors(extent):
        if n == 1 or n == extent or (kind is L and loops is not None and n not in loops):
            continue
        if kind is F and rest == (T,) and extent // n not in folds:
            continue
        out += [(n, *tail) for tail in _split_extents(rest, extent // n, loops, folds)]
    return tuple(out)


def input_map(dims: Dims, axis: Mapping[Part, int]) -> DimMap:
    """Return the imap of an input: for each grid axis the dim that holds its leaf.

    Args:
        dims: Dims of the input.
        axis: Grid axis (0, 1, 2) of each leaf that the grid splits.
    """
    out: list[int | None] = [None, None, None]
    for leaf, slot in axis.items():
        out[slot] = next((i for i, dim in enumerate(dims) if leaf in dim), None)
    return (out[0], out[1], out[2])


def output_map(placement: Placement, axis: Mapping[Part, int]) -> DimMap:
    """Return the omap of an output: for each grid axis the dim that it concatenates.

    Args:
        placement: For each leaf that the grid splits the dim of the output.
        axis: Grid axis (0, 1, 2) of each such leaf.
    """
    out: list[int | None] = [None, None, None]
    for leaf, dim in placement:
        out[axis[leaf]] = dim
    return (out[0], out[1], out[2])


def loop_dim(dims: Dims, loops: Parts) -> int | None:
    """Return the fmap of an input.

    Args:
        dims: Dims of the input.
        loops: The leaves that the loop splits.

    Returns:
        The dim that holds one of them; None if none does.
    """
    return next((i for i, dim in enumerate(dims) if any(leaf in dim for leaf in loops)), None)
