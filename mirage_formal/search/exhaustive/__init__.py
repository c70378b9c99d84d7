"""The exhaustive engine: the paper's depth-first enumeration with concrete extents and maps (section 4).

Takes a program and a search space. Returns every candidate of the space that the axioms do not exclude. Imports
graph, logic, prove, records, search, semantics and support.

Kernel graphs grow by one operator at a time, predefined or graph-defined, in canonical order; a graph-defined kernel
is tried on every set of available tensors with every grid, map and loop range of the space, and its block graph grows
in the same way. Tests, in this order: canonical order, shape, abstract expression, shared memory, use of every tensor.

It is slow, and the reference for the guided engine: branches share nothing but memos of equal questions.
"""

from __future__ import annotations

from typing import Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Candidate
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import LimitReached, SearchCounters, SearchOptions, Unit, UnitResult
from mirage_formal.search.exhaustive.kernel_enumeration import KernelSearch
from mirage_formal.search.exhaustive.pruner import Pruner
from mirage_formal.support.errors import UnsupportedError

#: Target number of first choices per unit, and the most units.
_UNIT_CHOICES: Final = 64
_MAX_UNITS: Final = 512


class ExhaustiveEngine:
    """Implementation of ``search.engine_interface.Engine`` by depth-first enumeration."""

    @property
    def name(self) -> str:
        """Return the engine's name, as written into candidates."""
        return "exhaustive"

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Split the first choices evenly: unit k of n takes those with number k modulo n.

        Raises:
            UnsupportedError: Inputs of different element types (masks aside), or an operator without an abstract
                expression.
        """
        count = self._search(program, space, options, SearchCounters()).count()
        parts = max(1, min(_MAX_UNITS, count // _UNIT_CHOICES))
        return [Unit(k, f"choices {k} mod {parts} of {count}", f"{k}/{parts}") for k in range(parts)]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Enumerate everything below the unit's first choices."""
        part, parts = (int(text) for text in unit.payload.split("/"))
        tally = SearchCounters(options.max_states, options.deadline)
        search = self._search(program, space, options, tally)
        candidates: list[Candidate] = []
        try:
            for candidate in search.run(part, parts):
                candidates.append(candidate)
        except LimitReached:
            tally.add("cut")
        judge = search.judge
        judge.report(tally)
        return UnitResult(tuple(candidates), tally.stats(), judge.queries(), judge.classes())

    def _search(
        self, program: KernelGraph, space: SearchSpace, options: SearchOptions, tally: SearchCounters
    ) -> KernelSearch:
        dtypes = {source.tensor.dtype.value for source in program.inputs if source.tensor.dtype.floating}
        if len(dtypes) > 1:
            raise UnsupportedError(
                f"expected inputs of one element type, got {', '.join(sorted(dtypes))}",
                hint="cast the inputs before the program, or search its parts",
            )
        return KernelSearch(program, options.bounded(space), options, Pruner(program, options), tally)
