"""Fusion of a whole program without products into one kernel: each block applies the program's operators to its tile.

Reductions and norms combine elements only along the dims that they reduce or normalise, and elementwise operators along
none. So the grid can split a dim that all outputs have and that no operator reduces or normalises. A block computes its
tile of the outputs from its tiles of the inputs, in one iteration of its loop and with the program's own operators. Any
number of operators makes one such kernel, and only the extents of the tiles are to be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from math import prod
from typing import Final

from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import SPECS, Family, Level, OpKind
from mirage_formal.graph.types import DimMap, DTensor, Shape
from mirage_formal.graph.verifier import kernel_types, shared_bytes
from mirage_formal.rewrite.graph_builders import GraphBuilder, KernelGraphBuilder
from mirage_formal.rewrite.replacement_rules import apply_rules
from mirage_formal.search.dims import Dim, DimClasses
from mirage_formal.search.space import SearchSpace
from mirage_formal.support.errors import GraphError

#: Axes of a grid.
_AXES: Final = 3
#: Bounds on the elements of a block's largest tile: fewer leave threads idle, more do not fit into its registers.
_FEWEST: Final = 32
_MOST: Final = 1 << 15
#: Elements of the largest tile per thread, up to the most threads; and the least and most threads of a block.
_ELEMENTS: Final = 8
_THREADS: Final = (32, 512)
#: Estimates that differ by less are equal.
_EQUAL: Final = 1.01
#: The least extent of a tile along an output's last dim, if one fits: adjacent elements are read together.
_TOGETHER: Final = 8


@lru_cache(maxsize=4096)
def is_fusible(program: KernelGraph) -> bool:
    """Return whether whole-program fusion applies: blocks have all operators, and some tiling has fit tile sizes."""
    kinds = [op.kind if isinstance(op, Op) else OpKind.MATMUL for op in program.ops]
    if any(kind is not OpKind.SOFTMAX and not _has_block_operator(kind) for kind in kinds):
        return False
    # A program that only moves elements of its inputs would become a copy.
    computed = all(output >= len(program.inputs) for output in program.outputs)
    return (computed or not program.ops) and next(_tilings(program, DimClasses(program)), None) is not None


def fuse_whole_program(
    program: KernelGraph, space: SearchSpace, cost: Callable[[KernelGraph], float]
) -> list[tuple[float, KernelGraph]]:
    """Return one kernel, with its cost, for each grid that leaves tiles of a sensible size.

    Sound: nothing is accepted here. Each is a candidate for the program like any other, to be proved.

    Args:
        program: A program that ``is_fusible``.
        space: Its limits on blocks and their shared memory hold.
        cost: Returns the cost of a graph.
    """
    ties = DimClasses(program)
    ops = _block_operators(program)
    found: list[tuple[float, KernelGraph]] = []
    again: list[tuple[float, KernelGraph]] = []
    for tiles, most in _tilings(program, ties):
        graph = _tiled_graph(program, ties, ops, tiles, _thread_count(most))
        if _is_within_space(graph, space):
            (again if _repeats_rows(program, ties, tiles) else found).append((cost(graph), graph))
    least = min((us for us, _ in again), default=math.inf)
    # The estimates do not include the cost of repeated reads, so between equal estimates kernels without them win.
    if not found or min(us for us, _ in found) > _EQUAL * least:
        found += again
    return found


def _has_block_operator(kind: OpKind) -> bool:
    spec = SPECS[kind]
    return Level.BLOCK in spec.levels and spec.family is not Family.PRODUCT and not spec.accumulator


def _tiled_dims(program: KernelGraph, ties: DimClasses) -> list[Dim]:
    """Return the dims that the grid may split, longest first: all outputs have them, no operator works along them."""
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


def _tilings(program: KernelGraph, ties: DimClasses) -> Iterator[tuple[dict[Dim, int], int]]:
    """Yield the extents of tiles along the dims that are cut, at most three, with the elements of the largest tile.

    Along all other dims tiles are whole.
    """
    types = kernel_types(program)
    lasts = {ties.of(output)[-1] for output in program.outputs}
    dims = _tiled_dims(program, ties)
    for count in range(1, 1 + min(len(dims), _AXES)):
        for chosen in combinations(dims, count):
            for extents in product(*(_tile_extents(ties.extent(dim), last=dim in lasts) for dim in chosen)):
                tiles = dict(zip(chosen, extents, strict=True))
                most = max(_tile_size(ties, tensor, tiles) for tensor in range(len(types)))
                if _FEWEST <= most <= _MOST:
                    yield tiles, most


def _tile_shape(ties: DimClasses, tensor: int, tiles: dict[Dim, int]) -> Shape:
    """Return the extents of a tensor's tile."""
    return tuple(tiles.get(dim, ties.extent((tensor, d))) for d, dim in enumerate(ties.of(tensor)))


def _tile_size(ties: DimClasses, tensor: int, tiles: dict[Dim, int]) -> int:
    """Return the number of elements of a tensor's tile."""
    return prod(_tile_shape(ties, tensor, tiles))


def _repeats_rows(program: KernelGraph, ties: DimClasses, tiles: dict[Dim, int]) -> bool:
    """Return whether an elementwise operator reads rows of an operand's tile repeatedly.

    Such a tile is not in registers.

    All dims but the last are rows; an operand that has all rows of the result, or one row, stays in registers.
    """
    for first, op in enumerate(program.ops, len(program.inputs)):
        rows = prod(_tile_shape(ties, first, tiles)[:-1])
        for operand in op.operands if isinstance(op, Op) and SPECS[op.kind].elementwise else ():
            if prod(_tile_shape(ties, operand, tiles)[:-1]) not in (1, rows):
                return True
    return False


def _tile_extents(extent: int, *, last: bool) -> list[int]:
    """Return the tile extents of a dim, less than all of it: powers of 2 that divide it, or 1."""
    found = [1 << n for n in range(extent.bit_length()) if extent % (1 << n) == 0 and 1 << n < extent]
    return [n for n in found if n >= _TOGETHER] or found[-1:] if last else found


def _thread_count(tile: int) -> int:
    """Return the threads of a block, 32 to 512: a power of 2 for about 8 elements of its largest tile per thread."""
    fewest, most = _THREADS
    return min(most, max(fewest, 1 << max(0, -(-tile // _ELEMENTS) - 1).bit_length()))


def _block_operators(program: KernelGraph) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Return a block's operators, and the tensors that it writes: the program's outputs, each behind an accumulator."""
    new = KernelGraphBuilder(program.inputs, share=())
    number = apply_rules(new, program.ops, _decompose_softmax)
    first, written = len(new.types), [number[output] for output in program.outputs]
    # Masks have no sum; over the one iteration the maximum is the mask itself.
    kinds = (OpKind.ACCUM_SUM if new.types[n].dtype.floating else OpKind.ACCUM_MAX for n in written)
    closing = (Op(kind, (n,)) for kind, n in zip(kinds, written, strict=True))
    body = (op for op in new.ops if isinstance(op, Op))  # all of them, see is_fusible
    return (*body, *closing), tuple(range(first, first + len(written)))


def _decompose_softmax(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
    if op.kind is not OpKind.SOFTMAX:
        return None
    powers = new.emit(OpKind.EXP, *operands)
    return new.emit(OpKind.DIV, powers, new.emit(OpKind.SUM, powers, attrs=op.attrs))


def _tiled_graph(
    program: KernelGraph,
    ties: DimClasses,
    ops: tuple[tuple[Op, ...], tuple[int, ...]],
    tiles: dict[Dim, int],
    threads: int,
) -> KernelGraph:
    """Return the kernel with these tiles."""
    axes = sorted(tiles, key=lambda dim: -ties.extent(dim) // tiles[dim])
    x, y, z = [*(ties.extent(dim) // tiles[dim] for dim in axes), 1, 1][:_AXES]
    body, written = ops
    base = len(program.inputs)
    block = BlockGraph(
        grid=(x, y, z),
        block=(threads, 1, 1),
        forloop_range=1,
        reduction_dimx=1,
        inputs=tuple(InputIterator(_grid_map(ties, axes, tensor), None) for tensor in range(base)),
        ops=body,
        outputs=tuple(
            OutputSaver(number, _grid_map(ties, axes, output))
            for number, output in zip(written, program.outputs, strict=True)
        ),
    )
    outputs = tuple(range(base, base + len(program.outputs)))
    return KernelGraph(program.inputs, (GraphDefined(tuple(range(base)), block),), outputs)


def _grid_map(ties: DimClasses, axes: Sequence[Dim], tensor: int) -> DimMap:
    """Return for each grid axis the dim of a tensor that it cuts."""
    dims = ties.of(tensor)
    x, y, z = [*(dims.index(axis) if axis in dims else None for axis in axes), None, None][:_AXES]
    return x, y, z


def _is_within_space(graph: KernelGraph, space: SearchSpace) -> bool:
    """Return whether a kernel is well-formed and within the limits of the space."""
    try:
        types = kernel_types(graph)
    except GraphError:
        return False
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    fits = shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= space.limits.shared_bytes
    return fits and kernel.graph.blocks <= space.limits.max_blocks


__all__ = ["fuse_whole_program", "is_fusible"]
