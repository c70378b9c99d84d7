"""Engine that searches nothing: its candidates are the graphs of a file, each a unit of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.signature_check import match_inputs
from mirage_formal.graph.verdict import Candidate
from mirage_formal.graph.verifier import output_types
from mirage_formal.records import sha256
from mirage_formal.run.verify.graph_file import load_graphs, read_graph_file
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions, Unit, UnitResult
from mirage_formal.search.space import SearchSpace
from mirage_formal.support.errors import GraphError, MirageError, UnsupportedError

_NAME: Final = "file"


class CheckpointEngine:
    """The graphs of a file in place of a search.

    Sound: nothing is accepted here; each graph is certified and proved equal to the program as every candidate is.

    Args:
        program: The program that the graphs stand for.
        graphs: Graphs with its inputs, see ``read_candidates``.
    """

    name = _NAME

    def __init__(self, program: KernelGraph, graphs: tuple[KernelGraph, ...]) -> None:
        self._program = program
        self._graphs = graphs

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Return a unit for each graph.

        Raises:
            UnsupportedError: The program is not the engine's own, but for example a copy at rounded extents.
        """
        if program != self._program:
            raise UnsupportedError("expected the program of the file's graphs, got another one", where=_NAME)
        return [Unit(index, f"graph {index}", str(index)) for index in range(len(self._graphs))]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Return the unit's graph."""
        counts = SearchCounters()
        counts.add("complete")
        counts.add("candidates")
        return UnitResult((Candidate(self._graphs[int(unit.payload)], self.name),), counts.stats())


def read_candidates(path: Path, where: str, program: KernelGraph) -> tuple[str, tuple[KernelGraph, ...]]:
    """Return the engine's name with the digest of a file, and the graphs of the file with the program's inputs.

    Args:
        path: A file of our format or a checkpoint of Mirage.
        where: Its name, for messages.
        program: The program that every graph stands for.

    Raises:
        FormatError: There is no such file, or a graph cannot be read; the graph and the field are named.
        GraphError: A graph has other inputs or outputs than the program.
    """
    graphs: list[KernelGraph] = []
    data = read_graph_file(path, where)  # once, so that the digest is that of these graphs
    for index, graph in enumerate(load_graphs(data, where, program)):
        if isinstance(graph, MirageError):
            raise graph
        here = f"{where}, graph {index}"
        matched = match_inputs(graph, program, here)
        wanted, got = ([tensor.dtype.value for tensor in output_types(one)] for one in (program, matched))
        if wanted != got:
            what = f"expected outputs of types {', '.join(wanted)}, got {', '.join(got)}"
            raise GraphError(what, where=here, hint="declare the program's inputs with the file's element types")
        graphs.append(matched)
    return f"{_NAME}:{sha256(data)}", tuple(graphs)


__all__ = ["CheckpointEngine", "read_candidates"]
