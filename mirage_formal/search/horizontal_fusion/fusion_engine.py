"""Engine around the guided one: horizontal fusion for several outputs, and fusion of whole programs without products.

Each output has its backward slices (``backward_slices``), which the guided engine searches for single kernels. Kernels
with the same grid and loop range are fused (``union``), equal loads and operators once. A producer that several
outputs need is in each of their kernels, and the union computes it once. The unions of least estimated cost are found
by a beam search, result by result: the best unions for the first results are extended by each kernel for the next. A
program without products has kernels of its own operators as well (``fuse_whole_program``), which a kernel's operator
limits do not bound.

Sound: nothing is pruned that was asked for, and nothing is accepted here: the united kernel is a candidate for the
program with all its outputs, which the prover and the checker decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Final

import msgspec

from mirage_formal.graph.canonical import canonical, digest
from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Candidate
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.search.engine_interface import SearchOptions, Stats, Unit, UnitResult
from mirage_formal.search.guided.axes import require_normal_form
from mirage_formal.search.horizontal_fusion.decompose_norms import NormDecompositionEngine
from mirage_formal.search.horizontal_fusion.outputs import require_outputs
from mirage_formal.search.horizontal_fusion.slices import BackwardSlice, backward_slices
from mirage_formal.search.horizontal_fusion.union import ResultKernel, permute_grid, united_graph
from mirage_formal.search.horizontal_fusion.whole_program_fusion import fuse_whole_program, is_fusible
from mirage_formal.search.space import SearchSpace
from mirage_formal.support.errors import UnsupportedError

#: Beam widths: kernels of one output tried on one grid and loop range, and unions that are extended by them.
_KERNELS: Final = 6
_UNIONS: Final = 4
#: Payloads of the unit of unions and of the unit of whole-program fusion.
_UNITED: Final = "united"
_MIRRORED: Final = "own operators"
#: Most unions, and most kernels of whole-program fusion, that a search reports.
_MOST: Final = 64
_TILINGS: Final = 16
#: Most states of a search if whole-program fusion applies as well: there is little left to find.
_BESIDE: Final = 20_000
#: Assignments of a structure that the guided engine instantiates. Kernels are united on equal grids, so more grids are
#: needed than the few best of each output.
_ASSIGNMENTS: Final = 16


class HorizontalFusionEngine:
    """Guided engine extended to several outputs, decomposed norms, and programs without products.

    A program with one output has the guided engine's units, if its operators fit into a candidate, and a unit for its
    decomposed norms (``NormDecompositionEngine``). A program with several outputs has one unit. If ``longer`` is set
    and whole-program fusion applies, it has one more unit; a program with more operators than a candidate has only
    that.

    Left out: unions of kernels with different grids or loop ranges; candidates of several kernels for several outputs,
    which covers of the program find (partition).
    """

    name = "guided"

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Return the work units.

        Raises:
            UnsupportedError: An output is not one that the guided engine takes, see ``require_outputs``.
        """
        mirror = options.longer and is_fusible(program)
        if not mirror:
            return self._searches(program, space, options)
        units: list[Unit] = []
        if 0 < len(program.ops) <= options.bounded(space).most_operators:
            with suppress(UnsupportedError):
                units = self._searches(program, space, options)
        return [*units, Unit(len(units), "one kernel of the program's operators", _MIRRORED)]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Run one unit and return its candidates, canonical, each once; of unions those of least estimated cost."""
        cost = options.cost or _bytes_read
        if unit.payload == _MIRRORED:
            return self._best(fuse_whole_program(program, space, cost), Stats(), _TILINGS)
        if options.longer and is_fusible(program):
            space = replace(space, max_states=min(_BESIDE, space.max_states or _BESIDE))
        if unit.payload != _UNITED:
            return NormDecompositionEngine().run(program, space, options, unit)
        space = replace(options.bounded(space), max_kernel_ops=1, max_graph_defined=1)
        search = _SliceSearches(space, msgspec.structs.replace(options, accept=None), cost)
        # A slice that reads another output comes after that output's slice.
        ordered = sorted(backward_slices(program), key=lambda ways: ways[0].result)
        pieces = [[piece for one in ways for piece in search.pieces(one)] for ways in ordered]
        return self._best(_unions(program, pieces, space, cost), search.stats, _MOST)

    def _searches(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        if len(program.outputs) == 1:
            return NormDecompositionEngine().units(program, space, options)
        require_outputs(program)
        return [Unit(0, f"one kernel for {len(program.outputs)} outputs", _UNITED)]

    def _best(self, graphs: Iterable[tuple[float, KernelGraph]], stats: Stats, most: int) -> UnitResult:
        """Return the graphs of least cost, canonical, each once."""
        found: dict[str, tuple[float, Candidate]] = {}
        for us, graph in graphs:
            final = canonical(graph)
            found.setdefault(digest(final), (us, Candidate(final, self.name)))
        best = sorted(found.items(), key=lambda item: (item[1][0], item[0]))[:most]
        total = stats + Stats(complete=len(found), candidates=len(best))
        return UnitResult(tuple(candidate for _, (_, candidate) in best), total)


class _SliceSearches:
    """Searches of slices for single kernels, memoised by program."""

    def __init__(self, space: SearchSpace, options: SearchOptions, cost: Callable[[KernelGraph], float]) -> None:
        self._space = space
        self._options = options
        self._cost = cost
        self._found: dict[KernelGraph, list[ResultKernel]] = {}
        self.stats = Stats()

    def pieces(self, one: BackwardSlice) -> Iterator[ResultKernel]:
        """Yield the kernels that compute a slice, with their inputs numbered as tensors of the given program."""
        if one.program not in self._found:
            self._found[one.program] = list(self._searched(one.program))
        for piece in self._found[one.program]:
            reads = tuple(one.reads[i] for i in piece.reads)
            yield msgspec.structs.replace(piece, reads=reads, result=one.result)

    def _searched(self, program: KernelGraph) -> Iterator[ResultKernel]:
        if len(program.ops) > self._space.most_operators or len(program.inputs) > self._space.max_block_inputs:
            return  # too large for one kernel
        try:
            require_normal_form(program)
        except UnsupportedError:
            if is_fusible(program):
                yield from (_piece(graph, us) for us, graph in fuse_whole_program(program, self._space, self._cost))
            return
        engine, seen = NormDecompositionEngine(_ASSIGNMENTS), set[KernelGraph]()
        for unit in engine.units(program, self._space, self._options):
            found = engine.run(program, self._space, self._options, unit)
            self.stats += _counts_of_slice(found.stats)
            for graph in (candidate.graph for candidate in found.candidates):
                if len(graph.ops) == 1 and isinstance(graph.ops[0], GraphDefined) and graph not in seen:
                    seen.add(graph)
                    yield _piece(graph, self._cost(graph))


def _piece(graph: KernelGraph, us: float) -> ResultKernel:
    """Return the only kernel of a graph."""
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    return ResultKernel(kernel.operands, inline_blocks(kernel.graph), 0, us)


def _counts_of_slice(stats: Stats) -> Stats:
    """Return the counts of a slice's search without its candidates, which are not candidates of the program."""
    counts = {name: getattr(stats, name) for name in Stats.__struct_fields__}
    return Stats(**{**counts, "complete": 0, "candidates": 0})


def _unions(
    program: KernelGraph,
    results: Sequence[Sequence[ResultKernel]],
    space: SearchSpace,
    cost: Callable[[KernelGraph], float],
) -> Iterator[tuple[float, KernelGraph]]:
    """Yield unions of one kernel for each result, with their costs."""
    shapes = dict.fromkeys(piece.shape for piece in results[0])
    written = {piece.result for pieces in results for piece in pieces}
    carry = OpKind.ACCUM_MAX in space.block_ops
    for shape in shapes:
        fitting = [
            sorted(
                (p for p in pieces if p.shape == shape or (p.shape[0] == shape[0] and p.behind(written, carry=carry))),
                key=_estimate_of,
            )
            for pieces in results
        ]
        if not all(fitting):
            continue
        # Grid axes of one extent may stand for different dims in different kernels; the first kernel fixes their order.
        unions: list[tuple[float, tuple[ResultKernel, ...], KernelGraph]] = [(0.0, (), program)]
        for pieces in fitting:
            grown: dict[KernelGraph, tuple[float, tuple[ResultKernel, ...], KernelGraph]] = {}
            for _, sofar, _ in unions:
                for piece in _best_per_reads(pieces):
                    for one in permute_grid(piece, sofar[0].block.grid if sofar else piece.block.grid):
                        made = (*sofar, one)
                        graph = _union_graph(program, made, space, [piece.result for piece in made])
                        if graph is not None and graph not in grown:
                            grown[graph] = (cost(graph), made, graph)
            unions = sorted(grown.values(), key=lambda union: union[0])[:_UNIONS]
        for _, pieces_, _ in unions:
            whole = _union_graph(program, pieces_, space, program.outputs)
            if whole is not None:
                yield cost(whole), whole


def _estimate_of(piece: ResultKernel) -> float:
    return piece.us


def _best_per_reads(pieces: Sequence[ResultKernel]) -> list[ResultKernel]:
    """Return the first ``_KERNELS`` kernels for each set of tensors read: others may fit where these do not."""
    counts: dict[tuple[int, ...], int] = {}
    found = []
    for piece in pieces:
        reads = tuple(sorted(piece.reads))
        counts[reads] = counts.get(reads, 0) + 1
        if counts[reads] <= _KERNELS:
            found.append(piece)
    return found


def _union_graph(
    program: KernelGraph, pieces: Sequence[ResultKernel], space: SearchSpace, outputs: Sequence[int]
) -> KernelGraph | None:
    """Return the union of kernels as a graph; None if it is not well-formed or exceeds the space's limits."""
    results = {piece.result for piece in pieces}
    if any(i >= len(program.inputs) and i not in results for piece in pieces for i in piece.reads):
        return None  # reads an output that a kernel behind it computes
    carry = OpKind.ACCUM_MAX in space.block_ops
    return united_graph(program.inputs, pieces, outputs, space.limits.shared_bytes, carry=carry)


def _bytes_read(graph: KernelGraph) -> float:
    """Return a rough cost of a candidate of one kernel: the bytes that its blocks read."""
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    types = kernel_types(graph)
    block, read = kernel.graph, 0
    for tensor, iterator in zip(kernel.operands, block.inputs, strict=True):
        cut = prod(extent for extent, dim in zip(block.grid, iterator.imap, strict=True) if dim is not None)
        read += block.blocks * types[tensor].bytes // cut
    return float(read)


__all__ = ["HorizontalFusionEngine"]
