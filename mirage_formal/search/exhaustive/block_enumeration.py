"""Depth-first enumeration of the block graphs of one kernel configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product
from math import prod
from typing import Final

from mirage_formal.graph.graph import Op, OutputSaver
from mirage_formal.graph.ops import IN_PLACE, SPECS, BlockContext
from mirage_formal.graph.types import Dim3, DimMap, DType
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchCounters
from mirage_formal.search.exhaustive.applications import (
    EnumeratedTensor,
    OperatorApplier,
    ProgramAttributes,
    TensorTable,
    TermTable,
)

#: Most block graphs of one opening that are remembered; more are enumerated again. Only searches without pruning have
#: more.
_MAX_REMEMBERED: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class BlockParameters:
    """Parameters of a block graph's enumeration: the input tiles, grid, loop range and output limits.

    Attributes:
        tiles: The results of the input iterators.
        element_bytes: Size of an element that is a number.
        grid: The grid.
        loop: The loop range.
        dimx: reduction_dimx; if ``needs_dimx``, block graphs without a reduction to it are left out.
        needs_dimx: False for the first reduction_dimx of the space.
        max_outputs: Most outputs.
        aligned: For each grid axis the dim that it splits in every input that it splits, None if they disagree; an
            output concatenates the axis along that dim.
    """

    tiles: tuple[EnumeratedTensor, ...]
    element_bytes: int
    grid: Dim3
    loop: int
    dimx: int
    needs_dimx: bool
    max_outputs: int
    aligned: DimMap


@dataclass(frozen=True, slots=True)
class CompleteBlock:
    """A complete block graph: its operators and output savers, and the device tensors that it writes."""

    ops: tuple[Op, ...]
    savers: tuple[OutputSaver, ...]
    results: tuple[EnumeratedTensor, ...]


class BlockSearch:
    """Enumeration of block graphs, with memos that serve all configurations of a unit."""

    def __init__(
        self, space: SearchSpace, fixed: ProgramAttributes, terms: TermTable, known: TensorTable, tally: SearchCounters
    ) -> None:
        self.space = space
        self.known = known
        self.fixed = fixed
        self.terms = terms
        self.tally = tally
        self._appliers: dict[BlockContext, OperatorApplier] = {}
        self._closed: dict[BlockParameters, tuple[CompleteBlock, ...]] = {}

    def block_graphs(self, opening: BlockParameters) -> Iterator[CompleteBlock]:
        """Yield every block graph of this opening, in canonical order."""
        known = self._closed.get(opening)
        if known is not None:
            yield from known
            return
        walk = self._enumerate(opening)
        found = tuple(islice(walk, _MAX_REMEMBERED + 1))
        if len(found) <= _MAX_REMEMBERED:
            self._closed[opening] = found
        yield from found
        yield from walk

    def _enumerate(self, opening: BlockParameters) -> Iterator[CompleteBlock]:
        context = BlockContext(opening.loop, opening.dimx)
        applier = self._appliers.get(context)
        if applier is None:
            applier = OperatorApplier(self.space.block_ops, self.fixed, self.terms, self.known, self.tally, context)
            self._appliers[context] = applier
        return _BlockEnumeration(self.space, self.known, self.tally, applier, opening).run()


class _BlockEnumeration:
    """One depth-first traversal; the fields are the current block graph."""

    def __init__(
        self,
        space: SearchSpace,
        known: TensorTable,
        tally: SearchCounters,
        applier: OperatorApplier,
        opening: BlockParameters,
    ) -> None:
        self.space = space
        self.known = known
        self.tally = tally
        self.applier = applier
        self.opening = opening
        self.tensors = list(opening.tiles)
        self.behind = 0  # the set of tensors behind an accumulator
        self.ops: list[Op] = []
        self.choices: list[tuple[Op, EnumeratedTensor]] = []

    def run(self) -> Iterator[CompleteBlock]:
        held = sum(self._bytes(tile) for tile in self.tensors)
        if held > self.space.shared_bytes:
            self.tally.prune("memory", "block")
            return
        for newest in range(len(self.tensors)):
            self.choices += self.applier.choices(newest, self.tensors, self.behind, len(self.opening.tiles))
        yield from self._extend(0, (1 << len(self.tensors)) - 1, held)

    def _bytes(self, tensor: EnumeratedTensor) -> int:
        return prod(tensor.shape) * (DType.BOOL.bytes if tensor.mask else self.opening.element_bytes)

    def _extend(self, start: int, dangling: int, held: int) -> Iterator[CompleteBlock]:
        """Yield all block graphs that add choices from ``start`` on; ``dangling`` is the set of unread tensors."""
        left = self.space.max_block_ops - len(self.ops) - 1
        if left < 0:
            return
        newest = len(self.tensors)
        end = len(self.choices)
        bit, before = 1 << newest, self.behind
        for index in range(start, end):
            op, result = self.choices[index]
            remaining = dangling | bit
            for operand in op.operands:
                remaining &= ~(1 << operand)
            if SPECS[op.kind].accumulator or before >> op.operands[0] & 1:
                self.behind = before | bit
            else:
                self.behind = before
            if self._missing(remaining) > left:
                self.tally.prune("use", "block")
                continue
            needed = held if op.kind in IN_PLACE else held + self._bytes(result)
            if needed > self.space.shared_bytes:
                self.tally.prune("memory", "block")
                continue
            self.tally.step("states")
            self.ops.append(op)
            self.tensors.append(result)
            yield from self._close(remaining)
            if left:
                self.choices += self.applier.choices(newest, self.tensors, self.behind, len(self.opening.tiles))
                yield from self._extend(index + 1, remaining, needed)
                del self.choices[end:]
            self.ops.pop()
            self.tensors.pop()
        self.behind = before

    def _missing(self, dangling: int) -> int:
        """Return the fewest further operators after which every tensor can be read.

        Sound: an operator makes one tensor of those that it reads, so it lowers the number of unread tensors by at most
        ``joins``, and every unread tensor inside the loop has to be joined with others, or to be accumulated, and at
        least one must happen if there is any.
        """
        inside = (dangling & ~self.behind).bit_count()
        behind = (dangling & self.behind).bit_count()
        return -(-(inside + max(0, behind + (inside > 0) - self.opening.max_outputs)) // self.applier.joins)

    def _close(self, dangling: int) -> Iterator[CompleteBlock]:
        """Yield every choice of output savers: all unread tensors, and possibly some that were read."""
        unread = [n for n in range(len(self.tensors)) if dangling >> n & 1]
        if dangling & ~self.behind or len(unread) > self.opening.max_outputs:
            return
        if self.opening.needs_dimx and not any(SPECS[op.kind].reads_dimx for op in self.ops):
            return
        if not self._depends(unread):
            self.tally.prune("grid", "block")
            return
        seen = self.behind & ~dangling
        read = [n for n in range(len(self.tensors)) if seen >> n & 1 and self._depends([n])]
        for count in range(self.opening.max_outputs - len(unread) + 1):
            for extra in combinations(read, count):
                outputs = sorted((*unread, *extra))
                if len(unread) == 1 or self._connected():
                    yield from self._save(outputs)

    def _depends(self, numbers: list[int]) -> bool:
        """Return whether these tensors depend on every grid axis."""
        grid = self.opening.grid
        return all(self.tensors[n].lead[axis] == extent for n in numbers for axis, extent in enumerate(grid))

    def _connected(self) -> bool:
        group = list(range(len(self.tensors)))
        first = len(self.opening.tiles)
        for number, op in enumerate(self.ops, first):
            merged = {group[n] for n in op.operands}
            group[number] = min(merged)
            group = [min(merged) if g in merged else g for g in group]
        return len(set(group)) == 1

    def _omaps(self, rank: int) -> list[DimMap]:
        pairs = self.space.omap_candidates(self.opening.grid, rank)
        return [m for m in pairs if all(a in (None, dim) for a, dim in zip(self.opening.aligned, m, strict=True))]

    def _save(self, outputs: list[int]) -> Iterator[CompleteBlock]:
        grid = self.opening.grid
        ops = tuple(self.ops)
        ranks = [len(self.tensors[n].shape) for n in outputs]
        for omaps in product(*(self._omaps(rank) for rank in ranks)):
            self.tally.add("block_graphs")
            savers = tuple(OutputSaver(n, omap) for n, omap in zip(outputs, omaps, strict=True))
            results = tuple(self.known.saved(self.tensors[saver.operand], grid, saver.omap) for saver in savers)
            yield CompleteBlock(ops, savers, results)
