"""Depth-first enumeration of kernel graphs: predefined operators and graph-defined kernels of every configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from mirage_formal.graph.canonical import canonical_with_digest
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, KernelOp, Op
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, Shape
from mirage_formal.graph.verdict import Candidate, Equivalent, Probable
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions
from mirage_formal.search.exhaustive.applications import (
    EnumeratedTensor,
    OperatorApplier,
    TensorTable,
    TermTable,
    program_attributes,
)
from mirage_formal.search.exhaustive.block_enumeration import BlockParameters, BlockSearch
from mirage_formal.search.exhaustive.pruner import Pruner


@dataclass(frozen=True, slots=True)
class Configuration:
    """Launch configuration of a graph-defined kernel: grid, maps of its inputs, loop range and reduction_dimx."""

    grid: Dim3
    imaps: tuple[DimMap, ...]
    fmaps: tuple[int | None, ...]
    loop: int
    dimx: int


#: A choice at kernel level: a predefined operator with its result, or the operands of a graph-defined kernel.
_Choice = tuple[Op, EnumeratedTensor] | tuple[int, ...]


def configurations(space: SearchSpace, shapes: tuple[Shape, ...]) -> Iterator[Configuration]:
    """Yield every configuration of a kernel on operands of these shapes, in a fixed order.

    Sound: of configurations that differ only by exchanging two grid axes of equal extent one is kept, and only where
    the space does not list maps itself; the axes have no other meaning.
    """
    symmetric = space.imaps is None and space.omaps is None
    for grid in space.grid_candidates(shapes):
        for imaps in product(*(space.imap_candidates(grid, shape) for shape in shapes)):
            if not _covers_grid(grid, imaps) or (symmetric and not _has_canonical_axes(grid, imaps)):
                continue
            tiles = [_slab_shape(shape, grid, imap) for shape, imap in zip(shapes, imaps, strict=True)]
            for fmaps in product(*(space.fmap_candidates(tile) for tile in tiles)):
                split = [tile[dim] for tile, dim in zip(tiles, fmaps, strict=True) if dim is not None]
                for loop in space.loop_candidates(split):
                    for dimx in space.reduction_dimx:
                        yield Configuration(grid, imaps, fmaps, loop, dimx)


def _covers_grid(grid: Dim3, imaps: tuple[DimMap, ...]) -> bool:
    """Return whether every grid axis of extent > 1 splits at least one input."""
    return all(extent == 1 or any(m[axis] is not None for m in imaps) for axis, extent in enumerate(grid))


def _has_canonical_axes(grid: Dim3, imaps: tuple[DimMap, ...]) -> bool:
    """Return whether grid axes of equal extent split the inputs in ascending order of their columns of dims."""
    columns = [[-1 if m[axis] is None else m[axis] for m in imaps] for axis in range(3)]
    extents = list(grid)
    return all(
        extents[a] != extents[b] or extents[a] == 1 or columns[a] <= columns[b]
        for a, b in (*pairwise(range(3)), (0, 2))
    )


def _slab_shape(shape: Shape, grid: Dim3, imap: DimMap) -> Shape:
    """Return the shape of the tensor slab that one block reads."""
    slab = list(shape)
    for extent, dim in zip(grid, imap, strict=True):
        if dim is not None:
            slab[dim] //= extent
    return tuple(slab)


class KernelSearch:
    """One depth-first traversal of kernel graphs; the fields are the current graph."""

    def __init__(
        self, program: KernelGraph, space: SearchSpace, options: SearchOptions, judge: Pruner, tally: SearchCounters
    ) -> None:
        self.program = program
        self.space = space
        self.options = options
        self.judge = judge
        self.tally = tally
        fixed = program_attributes(program)
        self.known = TensorTable()
        terms = TermTable(judge)
        self.applier = OperatorApplier(space.kernel_ops, fixed, terms, self.known, tally)
        self.blocks = BlockSearch(space, fixed, terms, self.known, tally)
        self.dtype = next((i.tensor.dtype for i in program.inputs if i.tensor.dtype.floating), DType.FLOAT32)
        self.tensors: list[EnumeratedTensor] = [
            self.known.tensor(term, (), source.tensor.shape, not source.tensor.dtype.floating)
            for term, source in zip(judge.inputs, program.inputs, strict=True)
        ]
        self.ops: list[KernelOp] = []
        self.choices: list[_Choice] = []
        self.digests: set[str] = set()
        self.part = (0, 1)

    def count(self) -> int:
        """Return the number of first choices: predefined operators and configurations of graph-defined kernels."""
        self._append_choices(range(len(self.tensors)))
        total = 0
        for choice in self.choices:
            match choice:
                case (Op(), _):
                    total += 1
                case operands:
                    total += sum(1 for _ in configurations(self.space, self._shapes(operands)))
        self.choices.clear()
        return total

    def run(self, part: int, parts: int) -> Iterator[Candidate]:
        """Yield every candidate whose first choice has a number congruent to ``part`` modulo ``parts``."""
        self.part = (part, parts)
        self._append_choices(range(len(self.tensors)))
        yield from self._extend(0, self._required_inputs(), self.space.max_graph_defined)

    def _required_inputs(self) -> int:
        """Return the set of inputs that the program reads; a candidate must read these, and may read the others."""
        read = {n for op in self.program.ops for n in op.operands} | set(self.program.outputs)
        return sum(1 << n for n in range(len(self.program.inputs)) if n in read)

    def _shapes(self, operands: tuple[int, ...]) -> tuple[Shape, ...]:
        return tuple(self.tensors[n].shape for n in operands)

    def _append_choices(self, numbers: range) -> None:
        """Append all choices whose largest operand is one of these tensors, in canonical order."""
        for newest in numbers:
            self.choices += self.applier.choices(newest, self.tensors, 0, 0)
            for size in range(min(newest, self.space.max_block_inputs - 1) + 1):
                self.choices += [(*others, newest) for others in combinations(range(newest), size)]

    def _extend(self, start: int, dangling: int, kernels_left: int) -> Iterator[Candidate]:
        left = self.space.max_kernel_ops - len(self.ops) - 1
        if left < 0:
            return
        counter = 0
        for index in range(start, len(self.choices)):
            match self.choices[index]:
                case (Op() as op, EnumeratedTensor() as result):
                    if self._mine(counter):
                        # The same predefined operator twice is never useful: the next choice comes after it.
                        yield from self._extend_with(index + 1, op, (result,), dangling, kernels_left)
                    counter += 1
                case operands if kernels_left > 0:
                    chosen = tuple(n for n in operands if isinstance(n, int))
                    if self._reread_count(chosen) > self.space.max_reread:
                        continue
                    for configuration in configurations(self.space, self._shapes(chosen)):
                        if self._mine(counter):
                            self.tally.step("configurations")
                            yield from self._graph_defined(index, chosen, configuration, dangling, kernels_left - 1)
                        counter += 1

    def _reread_count(self, operands: tuple[int, ...]) -> int:
        read = {n for op in self.ops if isinstance(op, GraphDefined) for n in op.operands}
        return len(read & set(operands))

    def _mine(self, counter: int) -> bool:
        part, parts = self.part
        return bool(self.ops) or counter % parts == part

    def _unread_allowance(self, dangling: int, left: int, kernels_left: int) -> int:
        """Return how many more tensors may be left unread by the next operator.

        Sound: a predefined operator lowers the number of unread tensors by at most ``joins``, a graph-defined kernel by
        at most its inputs less one, and in the end every unread tensor is an output of the program.
        """
        joins, inputs = self.applier.joins, self.space.max_block_inputs - 1
        kernels = min(left, kernels_left) if inputs > joins else 0
        joined = kernels * inputs + (left - kernels) * joins
        return len(self.program.outputs) + joined - dangling.bit_count()

    def _graph_defined(
        self, index: int, operands: tuple[int, ...], how: Configuration, dangling: int, kernels_left: int
    ) -> Iterator[Candidate]:
        left = self.space.max_kernel_ops - len(self.ops) - 1
        unread = dangling & ~sum(1 << n for n in operands)
        room = min(self.space.max_block_outputs, self._unread_allowance(unread, left, kernels_left))
        if room < 1:
            self.tally.prune("use", "kernel")
            return
        tiles = tuple(
            self.known.loaded(self.tensors[n], how.grid, imap, how.loop, fmap)
            for n, imap, fmap in zip(operands, how.imaps, how.fmaps, strict=True)
        )
        first = how.dimx == self.space.reduction_dimx[0]
        opening = BlockParameters(
            tiles, self.dtype.bytes, how.grid, how.loop, how.dimx, not first, room, _aligned_dims(how.imaps)
        )
        iterators = tuple(InputIterator(imap, fmap) for imap, fmap in zip(how.imaps, how.fmaps, strict=True))
        for closed in self.blocks.block_graphs(opening):
            for dims in self.space.block_dims:
                graph = BlockGraph(how.grid, dims, how.loop, how.dimx, iterators, closed.ops, closed.savers)
                # Another kernel on the same operands is allowed, so the next choice may be this one again.
                yield from self._extend_with(
                    index, GraphDefined(operands, graph), closed.results, dangling, kernels_left
                )

    def _extend_with(
        self, start: int, op: KernelOp, results: tuple[EnumeratedTensor, ...], dangling: int, kernels_left: int
    ) -> Iterator[Candidate]:
        """Yield every candidate that begins with the current graph and this operator."""
        left = self.space.max_kernel_ops - len(self.ops) - 1
        first, end = len(self.tensors), len(self.choices)
        remaining = dangling & ~sum(1 << n for n in set(op.operands))
        remaining |= ((1 << len(results)) - 1) << first
        if self._unread_allowance(remaining, left, kernels_left) < 0:
            self.tally.prune("use", "kernel")
            return
        if op in self.ops:
            self.tally.prune("order", "kernel")
            return
        self.tally.step("states")
        self.ops.append(op)
        self.tensors += results
        held = (DTensor(t.shape, DType.BOOL if t.mask else self.dtype).bytes for t in self.tensors)
        if sum(held) > self.space.device_bytes:
            self.tally.prune("memory", "kernel")
        else:
            yield from self._complete_candidates(remaining)
            if left:
                self._append_choices(range(first, len(self.tensors)))
                yield from self._extend(start, remaining, kernels_left)
                del self.choices[end:]
        self.ops.pop()
        del self.tensors[first:]

    def _complete_candidates(self, dangling: int) -> Iterator[Candidate]:
        """Yield the candidates among the current graph's results: no other tensor is left unread."""
        if dangling.bit_count() > len(self.program.outputs) or dangling & ((1 << len(self.program.inputs)) - 1):
            return
        places = [self._places(position) for position in range(len(self.program.outputs))]
        for outputs in product(*places):
            if len(set(outputs)) == len(outputs) and dangling & ~sum(1 << n for n in outputs) == 0:
                yield from self._candidate(outputs)

    def _places(self, position: int) -> list[int]:
        """Return the results that may be output number ``position`` of the program."""
        wanted = self.judge.outputs[position]
        return [
            n
            for n in range(len(self.program.inputs), len(self.tensors))
            if self.tensors[n].shape == wanted.shape
            and self.tensors[n].mask == (not wanted.dtype.floating)
            and self.judge.reaches(position, self.tensors[n].term)
        ]

    def _candidate(self, outputs: tuple[int, ...]) -> Iterator[Candidate]:
        """Yield the current graph with these outputs as a candidate, unless it is known or ``accept`` rejects it.

        Sound: reported is only what ``accept`` finds Probable or proves; without it the caller must verify.
        """
        graph, key = canonical_with_digest(KernelGraph(self.program.inputs, tuple(self.ops), outputs))
        if key in self.digests:
            return
        self.digests.add(key)
        self.tally.add("complete")
        candidate = Candidate(graph, "exhaustive")
        accept = self.options.accept
        if accept is not None and not isinstance(accept(candidate), Probable | Equivalent):
            self.tally.add("rejected")
            return
        self.tally.add("candidates")
        yield candidate


def _aligned_dims(imaps: tuple[DimMap, ...]) -> DimMap:
    """Return for each grid axis the dim that it splits in every input that it splits, None where they disagree."""
    dims = [{imap[axis] for imap in imaps} - {None} for axis in range(3)]
    x, y, z = (next(iter(d)) if len(d) == 1 else None for d in dims)
    return (x, y, z)
