"""The operators of a program without products as one kernel: each block does on its tile what the program does.

Operators that map elements, reduce or normalise read along the dims that they work along and no further. So where no
operator works along a dim that all outputs have, that dim can be cut into tiles, and a block computes its tile of the
outputs from its tiles of the inputs, in one iteration of its loop and with the program's own operators. However many
these are, that is one kernel, and there is nothing to search for but the extents of the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from math import prod
from typing import Final

from mirage_formal.errors import GraphError
from mirage_formal.graph.check import kernel_types, shared_bytes
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.types import DimMap, Shape
from mirage_formal.search.dims import Dim, Ties
from mirage_formal.search.space import SearchSpace

#: Axes of a grid.
_AXES: Final = 3
#: Elements of the largest tile of a block: fewer leave threads idle, more do not fit into its registers.
_FEWEST: Final = 32
_MOST: Final = 1 << 15
#: Elements that a thread has of it, while there are threads; and how many threads a block has at least and at most.
_ELEMENTS: Final = 8
_THREADS: Final = (32, 512)
#: Estimates that differ by less are equal.
_EQUAL: Final = 1.01
#: The least extent of a tile along the last dim of a tensor, if there are so many: elements that are read together.
_TOGETHER: Final = 8


@lru_cache(maxsize=4096)
def is_mirrored(program: KernelGraph) -> bool:
    """Return whether a program has such kernels: its operators are there in blocks, and tiles can have a fit size."""
    kinds = [op.kind if isinstance(op, Op) else OpKind.MATMUL for op in program.ops]
    if any(kind is not OpKind.SOFTMAX and not _in_blocks(kind) for kind in kinds):
        return False
    # Of a program that only moves elements of its inputs nothing is left but copies.
    computed = all(output >= len(program.inputs) for output in program.outputs)
    return (computed or not program.ops) and next(_tilings(program, Ties(program)), None) is not None


def fuse_whole_program(
    program: KernelGraph, space: SearchSpace, cost: Callable[[KernelGraph], float]
) -> list[tuple[float, KernelGraph]]:
    """The kernels, with their costs: one for each grid that leaves tiles of a sensible size.

    Sound: nothing is accepted here. Each is a candidate for the program like any other, to be proved.

    Args:
        program: A program that ``is_mirrored``.
        space: Its limits on blocks and their shared memory hold.
        cost: What a graph costs.
    """
    ties = Ties(program)
    ops = _operators(program)
    found: list[tuple[float, KernelGraph]] = []
    again: list[tuple[float, KernelGraph]] = []
    for tiles, most in _tilings(program, ties):
        graph = _graph(program, ties, ops, tiles, _threads(most))
        if _fits(graph, space):
            (again if _repeats_rows(program, ties, tiles) else found).append((cost(graph), graph))
    least = min((us for us, _ in again), default=math.inf)
    # What the repetition costs is not in the estimates, so it decides between equal ones.
    if not found or min(us for us, _ in found) > _EQUAL * least:
        found += again
    return found


def _in_blocks(kind: OpKind) -> bool:
    spec = SPECS[kind]
    return Level.BLOCK in spec.levels and spec.family is not Family.PRODUCT and not spec.accumulator


def _cut(program: KernelGraph, ties: Ties) -> list[Dim]:
    """The dims that may be cut, longest first: those that all outputs have and no operator works along."""
    base = len(program.inputs)
    common = set[Dim].intersection(*(set(ties.of(output)) for output in program.outputs))
    along: set[Dim] = set()
    for first, op in enumerate(program.ops, base):
        if isinstance(op, Op) and op.attrs.dim is not None:
            along.update(ties.of(tensor)[op.attrs.dim] for tensor in (*op.operands, first))
    # Where one tensor has a dim twice, no grid axis can stand for it.
    every = [ties.of(tensor) for tensor in range(base + len(program.ops))]
    twice = {dim for dims in every for dim in dims if dims.count(dim) > 1}
    found = [dim for dim in common - along - twice if ties.extent(dim) > 1]
    return sorted(found, key=lambda dim: (-ties.extent(dim), dim))


def _tilings(program: KernelGraph, ties: Ties) -> Iterator[tuple[dict[Dim, int], int]]:
    """Extents of tiles along the dims that are cut, three at most; along all others tiles are whole.

    With them the elements of the largest tile.
    """
    types = kernel_types(program)
    lasts = {ties.of(output)[-1] for output in program.outputs}
    dims = _cut(program, ties)
    for count in range(1, 1 + min(len(dims), _AXES)):
        for chosen in combinations(dims, count):
            for extents in product(*(_extents(ties.extent(dim), last=dim in lasts) for dim in chosen)):
                tiles = dict(zip(chosen, extents, strict=True))
                most = max(_tile(ties, tensor, tiles) for tensor in range(len(types)))
                if _FEWEST <= most <= _MOST:
                    yield tiles, most


def _shape(ties: Ties, tensor: int, tiles: dict[Dim, int]) -> Shape:
    """The extents of a tensor's tile."""
    return tuple(tiles.get(dim, ties.extent((tensor, d))) for d, dim in enumerate(ties.of(tensor)))


def _tile(ties: Ties, tensor: int, tiles: dict[Dim, int]) -> int:
    """Elements of a tensor's tile."""
    return prod(_shape(ties, tensor, tiles))


def _repeats_rows(program: KernelGraph, ties: Ties, tiles: dict[Dim, int]) -> bool:
    """Whether an operator reads some rows of an operand's tile several times, which threads do not have in registers.

    Dims but the last are rows; an operand that has all rows of the result, or one, stays in registers.
    """
    for first, op in enumerate(program.ops, len(program.inputs)):
        rows = prod(_shape(ties, first, tiles)[:-1])
        for operand in op.operands if isinstance(op, Op) and SPECS[op.kind].elementwise else ():
            if prod(_shape(ties, operand, tiles)[:-1]) not in (1, rows):
                return True
    return False


def _extents(extent: int, *, last: bool) -> list[int]:
    """Return the tile extents of a dim, less than all of it: powers of 2 that divide it, or 1."""
    found = [1 << n for n in range(extent.bit_length()) if extent % (1 << n) == 0 and 1 << n < extent]
    return [n for n in found if n >= _TOGETHER] or found[-1:] if last else found


def _threads(tile: int) -> int:
    """Threads of a block: as many as there are eights of elements of its largest tile."""
    fewest, most = _THREADS
    return min(most, max(fewest, 1 << max(0, -(-tile // _ELEMENTS) - 1).bit_length()))


def _operators(program: KernelGraph) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """The operators of a block, and the tensors that it writes: the program's, each behind an accumulator."""
    base = len(program.inputs)
    place = list(range(base))
    ops: list[Op] = []

    def put(kind: OpKind, *operands: int, attrs: Attrs) -> int:
        ops.append(Op(kind, operands, attrs))
        return base + len(ops) - 1

    for op in program.ops:
        assert isinstance(op, Op), "see is_mirrored"
        operands = [place[i] for i in op.operands]
        if op.kind is OpKind.SOFTMAX:
            powers = put(OpKind.EXP, *operands, attrs=Attrs())
            total = put(OpKind.SUM, powers, attrs=op.attrs)
            place.append(put(OpKind.DIV, powers, total, attrs=Attrs()))
        else:
            place.append(put(op.kind, *operands, attrs=op.attrs))
    types = kernel_types(program)
    written = tuple(
        # Masks have no sum; of the one iteration the largest is what there is.
        put(OpKind.ACCUM_SUM if types[output].dtype.floating else OpKind.ACCUM_MAX, place[output], attrs=Attrs())
        for output in program.outputs
    )
    return tuple(ops), written


def _graph(
    program: KernelGraph, ties: Ties, ops: tuple[tuple[Op, ...], tuple[int, ...]], tiles: dict[Dim, int], threads: int
) -> KernelGraph:
    """The kernel with these tiles."""
    axes = sorted(tiles, key=lambda dim: -ties.extent(dim) // tiles[dim])
    x, y, z = [*(ties.extent(dim) // tiles[dim] for dim in axes), 1, 1][:_AXES]
    body, written = ops
    base = len(program.inputs)
    block = BlockGraph(
        grid=(x, y, z),
        block=(threads, 1, 1),
        forloop_range=1,
        reduction_dimx=1,
        inputs=tuple(InputIterator(_map(ties, axes, tensor), None) for tensor in range(base)),
        ops=body,
        outputs=tuple(
            OutputSaver(number, _map(ties, axes, output))
            for number, output in zip(written, program.outputs, strict=True)
        ),
    )
    outputs = tuple(range(base, base + len(program.outputs)))
    return KernelGraph(program.inputs, (GraphDefined(tuple(range(base)), block),), outputs)


def _map(ties: Ties, axes: Sequence[Dim], tensor: int) -> DimMap:
    """For each grid axis the dim of a tensor that it cuts."""
    dims = ties.of(tensor)
    x, y, z = [*(dims.index(axis) if axis in dims else None for axis in axes), None, None][:_AXES]
    return x, y, z


def _fits(graph: KernelGraph, space: SearchSpace) -> bool:
    """Return whether a kernel is well-formed and within the limits of the space."""
    try:
        types = kernel_types(graph)
    except GraphError:
        return False
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    fits = shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= space.limits.shared_bytes
    return fits and kernel.graph.blocks <= space.limits.max_blocks


__all__ = ["fuse_whole_program", "is_mirrored"]
