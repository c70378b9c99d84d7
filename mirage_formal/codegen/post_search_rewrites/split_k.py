"""Split-K: the loop of a kernel distributed over more blocks, and a second kernel that combines their partial results.

A kernel whose loop ends in sums has one block per tile of its results: few blocks where results are small and the loop
is long. Here a further grid axis takes equal runs of iterations. Its blocks write their accumulators in float32. The
second kernel adds them up, one or several parts in each iteration, and does the work after the loop. Tiles may become
larger at the same time: more blocks along the loop mean that fewer are needed along the results, and each loaded tile
is reused more.

Summed exponentials need no special case: ``codegen.online_softmax`` finds the maximum of parts for the second kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import prod
from operator import itemgetter
from typing import Final

from mirage_formal.codegen.cost import block_cost, least_kernel_us
from mirage_formal.codegen.planning.expand import flatten
from mirage_formal.codegen.planning.k_loop_splitting import can_split_iterations
from mirage_formal.codegen.post_search_rewrites.tile_resizing import (
    MOST_IN_REGISTERS,
    can_merge_blocks,
    register_elements,
    split_dim,
    splittable_dims,
)
from mirage_formal.codegen.target import Target
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    Op,
    OutputSaver,
    enumerate_results,
)
from mirage_formal.graph.ops import SPECS, Attrs, Family, OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType, Shape
from mirage_formal.graph.verifier import block_outputs, block_types
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.graph_builders import BlockGraphBuilder
from mirage_formal.support.errors import GraphError

#: The accumulator that combines the parts of each accumulator.
_COMBINED: Final = {
    OpKind.ACCUM_SUM: OpKind.ACCUM_SUM,
    OpKind.ACCUM_SUM_LAST: OpKind.ACCUM_SUM,
    OpKind.ACCUM_SUM_TO_DIMX: OpKind.ACCUM_SUM,
    OpKind.ACCUM_MEAN_LAST: OpKind.ACCUM_SUM,
    OpKind.ACCUM_RMS_LAST: OpKind.ACCUM_SUM,
    OpKind.ACCUM_MAX: OpKind.ACCUM_MAX,
}
#: Factors by which a tile may become larger along one grid axis.
_LARGER: Final = (1, 2, 4)
#: The most blocks of the first kernel for each multiprocessor; more are of no use.
_MOST_BLOCKS: Final = 4
#: Factors by which the steps of a loop may become longer, and the largest ratio of estimates at which they do.
_LONGER: Final = (2, 4)
_WORTH: Final = 0.95
#: The most elements of a tile of longer steps: 64 registers of each of 256 threads.
_MOST_OF_A_STEP: Final = 1 << 14
#: Elements of the smallest tile of the second kernel along a dim.
_SMALLEST: Final = 8
#: The fewest parts that an iteration of the second kernel takes, if it can take several and there are as many.
_TOGETHER: Final = 8
#: The dim along which parts lie one after another.
_PARTS: Final = 0


@dataclass(frozen=True, slots=True)
class SplitKernels:
    """The two kernels of a split-K form.

    Attributes:
        first: The kernel that writes partial results.
        second: The kernel that combines them; its operands are the first one's results, then its own reads.
        us: Estimated microseconds of both.
        loads: Positions, among the operands of the original kernel, of those that the first kernel reads.
        reads: Positions of those that the second kernel reads: loop-invariant operands used after the loop.
    """

    first: BlockGraph
    second: BlockGraph
    us: float
    loads: tuple[int, ...]
    reads: tuple[int, ...]


def split_loop(
    op: GraphDefined, operands: Sequence[DTensor], parts: int, target: Target, *, whole: bool = False
) -> SplitKernels | None:
    """Return the kernel with its loop split over ``parts`` times as many blocks, on the tiles with the best estimate.

    None if no split is possible: ``parts`` does not divide the loop, no grid axis is free for the loop, there are
    blocks enough without the loop's, or no tiles have a split.

    Second kernels are made for those first kernels only whose estimates leave room for a better split than is known.

    Sound: nothing rests on this rewriting; whoever uses its result has it proved equal to the kernel. Splits are left
    out only where the first kernel and the least that a second one takes are above the estimate of another split.

    Args:
        op: A well-formed kernel.
        operands: The device tensors that it reads.
        parts: Two or more.
        target: The GPU that estimates are for.
        whole: Whether the second kernel has the tiles of the first one, so that the last of the blocks that share a
            tile can combine its parts (``codegen.joined_launches``).
    """
    block = inline_blocks(op.graph)
    if block.forloop_range % parts or sum(extent > 1 for extent in block.grid) > 2:
        return None
    shapes = [tile.shape for tile in block_types(block, tuple(operands))]
    begun: list[tuple[float, int, float, _Splitter]] = []
    for scale in product(*(_tile_scales(block, axis, shapes) for axis in range(3))):
        larger = _enlarge_tiles(block, scale)
        if larger.blocks * parts > _MOST_BLOCKS * target.sms:
            continue
        for longer in _lengthen_steps(op, larger, operands, parts):
            if (splitter := _begin_split(longer, operands, parts, target)) is not None:
                worth = 1.0 if longer is larger else _WORTH
                begun.append((splitter.least_us / worth, len(begun), worth, splitter))
    best: tuple[float, int] | None = None
    found: SplitKernels | None = None
    for least, number, worth, splitter in sorted(begun, key=itemgetter(0, 1)):
        if best is not None and least > best[0]:
            break
        split = _finish_split(splitter, whole=whole)
        if split is not None and (best is None or (split.us / worth, number) < best):
            best, found = (split.us / worth, number), split
    return found


def _lengthen_steps(
    op: GraphDefined, block: BlockGraph, operands: Sequence[DTensor], parts: int
) -> Iterator[BlockGraph]:
    """Yield the block graph, and those with longer steps of its loop whose tiles a block's registers hold.

    A search weighs steps of a loop by one kernel alone, and prefers short ones where its blocks are few.

    Args:
        op: The kernel.
        block: Its block graph, or one with larger tiles.
        operands: The device tensors that it reads.
        parts: The number of parts into which the loop is split.
    """
    yield block
    for factor in _LONGER:
        rest, beyond = divmod(block.forloop_range, factor)
        longer = replace(block, forloop_range=rest)
        if beyond or rest % parts or rest == parts or not _equals_in_steps(op.operands, longer, block, tuple(operands)):
            return
        yield longer


@lru_cache(maxsize=1 << 10)  # every number of parts asks for the same steps
def _equals_in_steps(
    reads: tuple[int, ...], block: BlockGraph, finer: BlockGraph, operands: tuple[DTensor, ...]
) -> bool:
    """Return whether longer steps of a loop compute what several short ones do, and their tiles are small enough."""
    try:
        sizes = [prod(tile.shape) for tile in block_types(block, operands)]
        flat, other = (flatten(GraphDefined(reads, one), operands) for one in (block, finer))
    except GraphError:  # there are no such tiles
        return False
    loops = [iterator.fmap for iterator in block.inputs]
    return max(sizes) <= _MOST_OF_A_STEP and can_split_iterations(flat, other, loops)


@none_on_match_failure
def _begin_split(block: BlockGraph, operands: Sequence[DTensor], parts: int, target: Target) -> _Splitter:
    return _Splitter(block, operands, parts, target)


@none_on_match_failure
def _finish_split(splitter: _Splitter, *, whole: bool) -> SplitKernels:
    return splitter.split_kernels(whole=whole)


def _tile_scales(block: BlockGraph, axis: int, shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Return the factors by which tiles may become larger along a grid axis."""
    extent = block.grid[axis]
    if extent == 1 or not can_merge_blocks(block, axis, shapes):
        return (1,)
    return tuple(scale for scale in _LARGER if extent % scale == 0)


def _enlarge_tiles(block: BlockGraph, scale: Sequence[int]) -> BlockGraph:
    """Return the block graph with larger tiles, hence fewer blocks along each grid axis."""
    x, y, z = (extent // factor for extent, factor in zip(block.grid, scale, strict=True))
    return replace(block, grid=(x, y, z))


class _Splitter:
    """Splitter of one kernel, which makes the first kernel at once.

    Attributes:
        least_us: A lower bound of the estimate of both kernels in microseconds.

    Raises:
        MatchFailure: There is no first kernel.
    """

    def __init__(self, block: BlockGraph, operands: Sequence[DTensor], parts: int, target: Target) -> None:
        self._block = block
        self._operands = tuple(operands)
        self._parts = parts
        self._target = target
        self._tiles = block_types(block, self._operands)
        carried = {
            n: item.operands[0] for n, item in enumerate_results(len(block.inputs), block.ops) if self._carries(item)
        }
        #: For each tensor after the loop that is a loop-invariant input, the input's position.
        self._carried = carried
        others = {n for item in block.ops if not self._carries(item) for n in item.operands}
        self._loads = tuple(i for i in range(len(block.inputs)) if i in others or i not in carried.values())
        self._reads = tuple(sorted(set(carried.values())))
        #: Grid axes in order, those without extent last, so that the parts' axis comes after all that split a dim.
        self._axes = sorted(range(3), key=lambda axis: block.grid[axis] == 1)
        self._partial, self._kept = self._first()
        self._cost_us = block_cost(self._partial, [self._operands[i] for i in self._loads], target)[0].us
        self.least_us = self._cost_us + least_kernel_us(target)

    def _carries(self, item: BlockOp) -> bool:
        """Return whether an operator only makes a loop-invariant input available after the loop (``accum_max``)."""
        (first, *_) = item.operands
        inputs = self._block.inputs
        known = isinstance(item, Op) and item.kind is OpKind.ACCUM_MAX and first < len(inputs)
        return known and inputs[first].fmap is None

    def split_kernels(self, *, whole: bool) -> SplitKernels:
        """Return the kernel of partial results and the cheapest kernel, by estimate, that combines them.

        Args:
            whole: Whether that one has the tiles of the first.

        Raises:
            MatchFailure: No split is possible.
        """
        first, kept = self._partial, self._kept
        loads, reads = ([self._operands[i] for i in places] for places in (self._loads, self._reads))
        warm = [2 * tensor.bytes <= self._target.l2_bytes for tensor in block_outputs(first, tuple(loads))]
        warm += [False] * len(reads)
        tensors = (*block_outputs(first, tuple(loads)), *reads)
        found: list[tuple[float, BlockGraph]] = []
        for together in self._together(kept):
            plain = self._second(first, tensors, kept, together)
            for second in (plain, *(() if whole else self._finer(plain, tensors))):
                later, _ = block_cost(second, tensors, self._target, warm)
                found.append((later.us, second))
        sms = self._target.sms
        us, second = min(found, key=lambda pair: (round(pair[0], 3), -min(pair[1].blocks, sms), pair[1].blocks))
        return SplitKernels(first, second, self._cost_us + us, self._loads, self._reads)

    def _turned(self, dims: DimMap, last: int | None) -> DimMap:
        """Return a dim map with its grid axes reordered, and ``last`` as the dim of the last axis, the parts' axis."""
        x, y = (dims[axis] for axis in self._axes[:2])
        return (x, y, last)

    def _builder(
        self, last: int, loop: int, inputs: Sequence[InputIterator], tensors: Sequence[DTensor]
    ) -> BlockGraphBuilder:
        """Return a builder with reordered grid axes, another extent of the last one, and another loop."""
        x, y = (self._block.grid[axis] for axis in self._axes[:2])
        return BlockGraphBuilder(replace(self._block, grid=(x, y, last), forloop_range=loop), inputs, tensors)

    def _first(self) -> tuple[BlockGraph, list[tuple[int, Op]]]:
        """Return the kernel that writes partial results, and the accumulators that they belong to."""
        block = self._block
        if register_elements(block, [tile.shape for tile in self._tiles]) > MOST_IN_REGISTERS:
            raise MatchFailure("accumulators and products of larger tiles do not fit in registers")
        iterators = [block.inputs[i] for i in self._loads]
        inputs = [InputIterator(self._turned(i.imap, i.fmap), i.fmap) for i in iterators]
        operands = [self._operands[i] for i in self._loads]
        new = self._builder(self._parts, block.forloop_range // self._parts, inputs, operands)
        values = [self._loads.index(i) if i in self._loads else -1 for i in range(len(block.inputs))]
        kept: list[tuple[int, Op]] = []
        savers: list[OutputSaver] = []
        for number, item in enumerate_results(len(block.inputs), block.ops):
            assert isinstance(item, Op)
            values += [-1] * item.results
            if number in self._carried:
                continue
            if self._tiles[number].after_loop and not SPECS[item.kind].accumulator:
                continue
            given = [values[n] for n in item.operands]
            if not SPECS[item.kind].accumulator:
                values[number : number + item.results] = new.place(item, given)
                continue
            savers.append(
                OutputSaver(
                    new.cast(self._partial_result(new, item, given), DType.FLOAT32), self._partial_result_omap(number)
                )
            )
            kept.append((number, item))
        return new.finish(savers), kept

    @staticmethod
    def _partial_result(new: BlockGraphBuilder, item: Op, given: Sequence[int]) -> int:
        """Return the partial result of one block's iterations for an accumulator."""
        match item.kind:
            case OpKind.ACCUM_RMS_LAST:
                return new.emit(OpKind.ACCUM_MEAN_LAST, new.emit(OpKind.SQUARE, *given))
            case _ if item.kind in _COMBINED:
                return new.copy(item, given)
            case _:
                raise MatchFailure(f"{item.kind.value} is no sum over the loop")

    def _partial_result_omap(self, number: int) -> DimMap:
        """Return the omap of an accumulator's partial results: along the results' dims, one part after another."""
        shape = self._tiles[number].shape
        like = self._block.outputs[0].omap
        found: list[int | None] = []
        for axis, dim in enumerate(like):
            if self._block.grid[axis] == 1 or dim is None:
                found.append(None)
            else:
                # A tile of one column is the same for all blocks of a row, or short; in rows it is not torn apart.
                found.append(dim if dim < len(shape) and shape[dim] > 1 else _PARTS)
        return self._turned((found[0], found[1], found[2]), _PARTS)

    def _together(self, kept: Sequence[tuple[int, Op]]) -> tuple[int, ...]:
        """Return the numbers of parts that one iteration of the second kernel may take.

        Several parts form a tile along a dim that the accumulators do not use. With few parts in each iteration, the
        loop would wait for each of them separately, and rescale by a running maximum each time.
        """
        if any(self._tiles[number].shape[:1] != (1,) for number, _ in kept):
            return (1,)
        counts = [n for n in range(1, self._parts + 1) if self._parts % n == 0]
        return tuple(n for n in counts if n >= min(self._parts, _TOGETHER))

    def _second(
        self, first: BlockGraph, tensors: Sequence[DTensor], kept: Sequence[tuple[int, Op]], together: int
    ) -> BlockGraph:
        """Return the kernel that combines parts, ``together`` in each iteration, on the tiles of the first kernel."""
        block = self._block
        inputs = [InputIterator((*saver.omap[:2], None), _PARTS) for saver in first.outputs]
        inputs += [InputIterator(self._turned(block.inputs[i].imap, None), None) for i in self._reads]
        new = self._builder(1, self._parts // together, inputs, tensors)
        read = {i: n for n, i in enumerate(self._reads, len(first.outputs))}
        values = {number: new.emit(OpKind.ACCUM_MAX, read[i]) for number, i in self._carried.items()}
        for position, (number, accumulator) in enumerate(kept):
            values[number] = self._combine_parts(new, position, accumulator, together)
        for number, item in enumerate_results(len(block.inputs), block.ops):
            assert isinstance(item, Op)
            if number in values or not self._tiles[number].after_loop:
                continue
            made = self._after(new, number, item, [values[n] for n in item.operands])
            values |= {number + r: made + r for r in range(item.results)}
        savers = [
            OutputSaver(new.cast(values[s.operand], self._tiles[s.operand].dtype), self._turned(s.omap, None))
            for s in block.outputs
        ]
        return new.finish(savers)

    def _combine_parts(self, new: BlockGraphBuilder, position: int, item: Op, together: int) -> int:
        """Return an accumulator combined from its parts, ``together`` of them in each iteration."""
        combined = _COMBINED[item.kind]
        if together > 1:
            fold = OpKind.MAX if combined is OpKind.ACCUM_MAX else OpKind.SUM
            position = new.emit(fold, position, attrs=Attrs(dim=_PARTS))
        found = new.emit(combined, position)
        if item.kind in (OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST):
            found = new.emit(OpKind.SCALE, found, attrs=Attrs(factor=Fraction(1, self._parts)))
        return new.emit(OpKind.SQRT, found) if item.kind is OpKind.ACCUM_RMS_LAST else found

    def _after(self, new: BlockGraphBuilder, number: int, item: Op, given: list[int]) -> int:
        """Emit an operator after the loop, in float32; products keep the narrower types that tensor cores take."""
        if SPECS[item.kind].family is Family.PRODUCT:
            given = [new.cast(n, self._tiles[number].dtype) for n in given]
        elif len({new.types[n].dtype for n in given} - {DType.BOOL}) > 1:
            given = [new.cast(n, DType.FLOAT32) if new.types[n].dtype.floating else n for n in given]
        if item.kind is OpKind.CAST:
            assert item.attrs.dtype is not None
            return new.cast(given[0], item.attrs.dtype)
        return new.copy(item, given)

    # --- tiles of the second kernel

    def _finer(self, block: BlockGraph, tensors: Sequence[DTensor]) -> Iterator[BlockGraph]:
        """Yield the second kernel with smaller tiles along one dim, which its third grid axis splits."""
        types = block_types(block, tuple(tensors))
        shapes = [tile.shape for tile in types]
        for dim, extent in splittable_dims(block, shapes):
            count = 2
            while dim != _PARTS and extent % count == 0 and extent // count >= _SMALLEST:
                yield split_dim(block, shapes, dim, 2, count)
                count *= 2


__all__ = ["SplitKernels", "split_loop"]
