"""Map from the operator terms of the proof kernel to operators of the µGraphs.

The proof kernel elaborates a graph to operator terms without keeping their origin. This module elaborates the graph
once more, into the same table of terms, and records the current operator: equal terms have equal numbers, so each
number leads to operators. It proves nothing; it links the shown proof to the picture of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.pieces import Value
from mirage_formal.graph.graph import BlockGraph, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import BlockContext
from mirage_formal.report.proofs.values import Place

_WHERE: Final = re.compile(r"kernel operator ([0-9]+)(?:, block operator ([0-9]+))?")
#: Most operators that are named for one term.
_MOST: Final = 4


class _TermListener(Terms):
    """The same table of terms, with a record of the operators that request a term."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._ids, self.shapes = terms._ids, terms.shapes
        self.here: Place | None = None
        self.made: dict[int, list[Place]] = {}

    def _make(self, shape: Sequence[int], *key: object) -> int:
        number = super()._make(shape, *key)
        found = self.made.setdefault(number, [])
        if self.here is not None and self.here not in found and len(found) < _MOST:
            found.append(self.here)
        return number


class _WatchedElaboration(Elaboration):
    """An elaboration that tells the listener its current operator."""

    def __init__(self, terms: _TermListener, graph: KernelGraph, name: str, whole: Collection[int]) -> None:
        self._listener, self._name = terms, name
        self._counts: dict[str, int] = {}
        self._inputs = [Place(name, f"in{n}", one.name) for n, one in enumerate(graph.inputs)]
        super().__init__(terms, graph, name, whole)
        for number, place in enumerate(self._inputs):
            terms.made.setdefault(terms.input(number, graph.inputs[number].tensor.shape), []).append(place)

    def _at(self, kind: str, label: str) -> Place:
        found = _WHERE.search(self._where)
        if found is None:
            return Place(self._name, "", label)
        kernel, block = found[1], found[2]
        node = f"op{kernel}" if block is None else f"op{kernel}.op{block}"
        if kind != "op":
            key = f"{kind} {node}"
            count = self._counts[key] = self._counts.get(key, -1) + 1
            node = f"{node.partition('.')[0]}.{kind}{count}"
        return Place(self._name, node, label)

    def _apply(self, op: Op, xs: list[Value], context: BlockContext | None) -> list[Value]:
        self._listener.here = self._at("op", op.kind.value)
        try:
            return super()._apply(op, xs, context)
        finally:
            self._listener.here = None

    def _load(self, x: Value, how: InputIterator, graph: BlockGraph) -> Value:
        self._listener.here = self._at("it", "tile")
        try:
            return super()._load(x, how, graph)
        finally:
            self._listener.here = None

    def _save(self, x: Value, saver: OutputSaver, graph: BlockGraph) -> Value:
        self._where = self._where.partition(", block operator")[0]
        self._listener.here = self._at("sv", "save")
        try:
            return super()._save(x, saver, graph)
        finally:
            self._listener.here = None


def places_of(terms: Terms, graphs: Sequence[tuple[str, KernelGraph, Collection[int]]]) -> dict[int, list[Place]]:
    """Return the operators by the number of a term that they compute.

    Args:
        terms: The table of a replay.
        graphs: Name and graph of each side, and its tensors that the proof takes whole.
    """
    made: dict[int, list[Place]] = {}
    for name, graph, whole in graphs:
        listener = _TermListener(terms)
        _WatchedElaboration(listener, graph, name, whole)
        for term, found in listener.made.items():
            made.setdefault(term, []).extend(found)
    return made
