"""The engine for programs with several outputs: one kernel for all of them, put together from those of each.

Every output is a program of its own (``slices``), which the guided engine searches for single kernels. Kernels with the
same grid and loop range are united (``union``), equal loads and operators of theirs once; a producer that several
outputs need is in each of their kernels, and the union computes it once. What is kept are the unions of least estimate,
found output by output: of the unions for the first outputs, so many best ones are tried with each kernel for the next.

Sound: nothing is pruned that was asked for, and nothing is accepted here: the united kernel is a candidate for the
program with all its outputs, which the prover and the checker decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from mirage_formal.errors import GraphError, UnsupportedError
from mirage_formal.graph.canonical import canonical, digest
from mirage_formal.graph.check import kernel_types, shared_bytes
from mirage_formal.graph.edit import inlined
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verdict import Candidate
from mirage_formal.search.engine import SearchOptions, Stats, Unit, UnitResult
from mirage_formal.search.guided.axes import require_normal_form
from mirage_formal.search.space import SearchSpace
from mirage_formal.search.united.outputs import require_outputs
from mirage_formal.search.united.slices import Slice, slices
from mirage_formal.search.united.union import Piece, turned, united
from mirage_formal.search.united.written_out import WrittenOutEngine

#: Kernels of one output that are tried on one grid and loop range, and unions that are extended by them.
_KERNELS: Final = 6
_UNIONS: Final = 4
#: Unions that a search reports.
_MOST: Final = 64
#: Assignments of a structure that the guided engine instantiates: kernels are united on equal grids, so there have to
#: be more grids than the few best of each output.
_ASSIGNMENTS: Final = 16


class UnitedEngine:
    """Candidates of one graph-defined kernel with several outputs.

    Left out: unions of kernels with different grids or loop ranges; candidates of several kernels, which covers of the
    program find (run/whole).
    """

    name = "guided"

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """One unit.

        Raises:
            UnsupportedError: An output is not one that the guided engine takes, see ``require_outputs``.
        """
        require_outputs(program)
        return [Unit(0, f"one kernel for {len(program.outputs)} outputs", "")]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """The unions of least estimate, canonical, each once."""
        space = replace(options.bounded(space), max_kernel_ops=1, max_graph_defined=1)
        cost = options.cost or _bytes_read
        search = _Slices(space, replace(options, accept=None), cost)
        ordered = sorted(slices(program), key=lambda ways: ways[0].result)  # what reads another output comes behind it
        outputs = [[piece for one in ways for piece in search.pieces(one)] for ways in ordered]
        found: dict[str, tuple[float, Candidate]] = {}
        for us, graph in _unions(program, outputs, space, cost):
            final = canonical(graph)
            found.setdefault(digest(final), (us, Candidate(final, self.name)))
        best = sorted(found.items(), key=lambda item: (item[1][0], item[0]))[:_MOST]
        stats = search.stats + Stats(complete=len(found), candidates=len(best))
        return UnitResult(tuple(candidate for _, (_, candidate) in best), stats)


class _Slices:
    """Searches of slices, equal ones once."""

    def __init__(self, space: SearchSpace, options: SearchOptions, cost: Callable[[KernelGraph], float]) -> None:
        self._space = space
        self._options = options
        self._cost = cost
        self._found: dict[KernelGraph, list[Piece]] = {}
        self.stats = Stats()

    def pieces(self, one: Slice) -> Iterator[Piece]:
        """The kernels that compute a slice by themselves, over the tensors of the program that it is a slice of."""
        if one.program not in self._found:
            self._found[one.program] = list(self._searched(one.program))
        for piece in self._found[one.program]:
            reads = tuple(one.reads[i] for i in piece.reads)
            yield replace(piece, reads=reads, result=one.result)

    def _searched(self, program: KernelGraph) -> Iterator[Piece]:
        try:
            require_normal_form(program)
        except UnsupportedError:
            return
        engine, seen = WrittenOutEngine(_ASSIGNMENTS), set[KernelGraph]()
        for unit in engine.units(program, self._space, self._options):
            found = engine.run(program, self._space, self._options, unit)
            self.stats += _of_slice(found.stats)
            for graph in (candidate.graph for candidate in found.candidates):
                kernel = graph.ops[0]
                if len(graph.ops) == 1 and isinstance(kernel, GraphDefined) and graph not in seen:
                    seen.add(graph)
                    yield Piece(kernel.operands, inlined(kernel.graph), 0, self._cost(graph))


def _of_slice(stats: Stats) -> Stats:
    """Counts of a slice's search without its candidates, which are none of the program's."""
    counts = {name: getattr(stats, name) for name in Stats.__struct_fields__}
    return Stats(**{**counts, "complete": 0, "candidates": 0})


def _unions(
    program: KernelGraph,
    outputs: Sequence[Sequence[Piece]],
    space: SearchSpace,
    cost: Callable[[KernelGraph], float],
) -> Iterator[tuple[float, KernelGraph]]:
    """Unions of one kernel of each output, with their costs."""
    shapes = dict.fromkeys(piece.shape for piece in outputs[0])
    for shape in shapes:
        fitting = [sorted((p for p in pieces if p.shape == shape), key=lambda p: p.us) for pieces in outputs]
        if not all(fitting):
            continue
        # Axes of one extent may stand for different dims in different kernels: the first kernel fixes their order.
        unions: list[tuple[float, tuple[Piece, ...], KernelGraph]] = [(0.0, (), program)]
        for pieces in fitting:
            grown: dict[KernelGraph, tuple[float, tuple[Piece, ...], KernelGraph]] = {}
            for _, sofar, _ in unions:
                for piece in _several(pieces):
                    for one in turned(piece, sofar[0].block.grid if sofar else piece.block.grid):
                        graph = _graph(program, (*sofar, one), space)
                        if graph is not None and graph not in grown:
                            grown[graph] = (cost(graph), (*sofar, one), graph)
            unions = sorted(grown.values(), key=lambda union: union[0])[:_UNIONS]
        yield from ((us, graph) for us, _, graph in unions)


def _several(pieces: Sequence[Piece]) -> list[Piece]:
    """The best kernels of one shape that read the same tensors: others can be united where these cannot."""
    counts: dict[tuple[int, ...], int] = {}
    found = []
    for piece in pieces:
        reads = tuple(sorted(piece.reads))
        counts[reads] = counts.get(reads, 0) + 1
        if counts[reads] <= _KERNELS:
            found.append(piece)
    return found


def _graph(program: KernelGraph, pieces: Sequence[Piece], space: SearchSpace) -> KernelGraph | None:
    """The union of kernels as a graph, if it is well-formed and within the space's limits."""
    results = {piece.result for piece in pieces}
    outputs = [tensor for tensor in program.outputs if tensor in results]
    if any(i >= len(program.inputs) and i not in results for piece in pieces for i in piece.reads):
        return None  # reads an output that a kernel behind it computes
    kernel = united(pieces, outputs)
    if kernel is None or any(i >= len(program.inputs) for i in kernel.operands):
        return None
    base = len(program.inputs)
    graph = KernelGraph(program.inputs, (kernel,), tuple(range(base, base + len(outputs))))
    try:
        types = kernel_types(graph)
    except GraphError:
        return None
    fits = shared_bytes(kernel.graph, tuple(types[i] for i in kernel.operands)) <= space.limits.shared_bytes
    return graph if fits else None


def _bytes_read(graph: KernelGraph) -> float:
    """A rough cost of a candidate of one kernel: the bytes that its blocks read."""
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    types = kernel_types(graph)
    block, read = kernel.graph, 0
    for tensor, iterator in zip(kernel.operands, block.inputs, strict=True):
        cut = prod(extent for extent, dim in zip(block.grid, iterator.imap, strict=True) if dim is not None)
        read += block.blocks * types[tensor].bytes // cut
    return float(read)


__all__ = ["UnitedEngine"]
