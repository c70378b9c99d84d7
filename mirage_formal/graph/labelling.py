"""Canonical labelling of a small coloured graph by colour refinement, with individualisation where symmetry remains.

The numbering depends on the graph alone, never on the order in which its nodes were added. µGraphs need individualising
only where they compute one value twice, so refinement nearly always suffices.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from mirage_formal.support.errors import UnsupportedError

#: Most node visits by the refinements of one labelling. Only a graph made to be symmetric in a complicated way needs
#: that many.
_BUDGET: Final = 400_000

Certificate = tuple[tuple[int, str, int], ...]


@dataclass(slots=True)
class Nodes:
    """Builder of a coloured graph; an edge leads from a new node to earlier ones.

    Attributes:
        colours: For each node a digest of its label and of everything it leads to.
        edges: For each node its (label, neighbour) pairs; both ends know an edge.
    """

    colours: list[str] = field(default_factory=list)
    edges: list[list[tuple[str, int]]] = field(default_factory=list)

    def add(self, label: Hashable, *edges: tuple[str, int]) -> int:
        """Add a node and return its number.

        The repr of its label must not depend on anything that labelling ignores.
        """
        below = sorted((name, self.colours[target]) for name, target in edges)
        number = len(self.colours)
        self.colours.append(blake2b(repr((label, below)).encode(), digest_size=16).hexdigest())
        self.edges.append([(">" + name, target) for name, target in edges])
        for name, target in edges:
            self.edges[target].append(("<" + name, number))
        return number


def canonical_labels(nodes: Nodes) -> list[int]:
    """Return for each node its position in an order that isomorphic graphs share.

    Raises:
        UnsupportedError: The graph has more symmetry than can be searched.
    """
    start = _colour_numbers(nodes.colours)
    places = _Search(nodes).refine(start)
    return _Search(nodes).best(start)[0] if _shared_cells(places) else places


def _colour_numbers(colours: list[str]) -> list[int]:
    """Return colours as numbers: the number of nodes of smaller colour."""
    first: dict[str, int] = {}
    for place, colour in enumerate(sorted(colours)):
        first.setdefault(colour, place)
    return [first[colour] for colour in colours]


def _shared_cells(places: list[int]) -> dict[int, list[int]]:
    """Return the nodes that share a place, for each place that several share."""
    cells: dict[int, list[int]] = {}
    for node, place in enumerate(places):
        cells.setdefault(place, []).append(node)
    return {place: cell for place, cell in cells.items() if len(cell) > 1}


class _Search:
    """Individualisation and refinement with pruning by automorphisms (McKay's scheme without its data structures)."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._left = _BUDGET

    def refine(self, places: list[int]) -> list[int]:
        """Split cells by the places of their neighbours until that changes nothing."""
        self._left -= len(places)
        if self._left < 0:
            hint = "remove operators that compute the same value several times"
            raise UnsupportedError("canonical form: expected a graph with little symmetry, got too much", hint=hint)
        edges = self._nodes.edges
        cells = _shared_cells(places)
        changed = bool(cells)
        while changed:
            changed = False
            following = list(places)
            for place, cell in cells.items():
                signature = {node: sorted((name, places[other]) for name, other in edges[node]) for node in cell}
                ordered = sorted(cell, key=signature.__getitem__)
                at = place
                for position, node in enumerate(ordered):
                    if position and signature[node] != signature[ordered[position - 1]]:
                        at = place + position
                        changed = True
                    following[node] = at
            places = following
            cells = _shared_cells(places)
        return places

    def best(self, places: list[int]) -> tuple[list[int], Certificate]:
        """Return the labelling of least certificate among those that refine the given places."""
        places = self.refine(places)
        cells = _shared_cells(places)
        if not cells:
            return places, self._certificate(places)
        place, cell = min(cells.items())
        chosen = self.best(_individualise(places, place, cell, cell[0]))
        reference = self._first_leaf(_individualise(places, place, cell, cell[0]))
        for node in cell[1:]:
            tried = _individualise(places, place, cell, node)
            # Equal certificates give an automorphism that maps the first node of the cell to this one and keeps all
            # places so far, so this branch has the same leaves as the first.
            if self._first_leaf(tried) == reference:
                continue
            chosen = min(chosen, self.best(tried), key=lambda leaf: leaf[1])
        return chosen

    def _first_leaf(self, places: list[int]) -> Certificate:
        places = self.refine(places)
        while cells := _shared_cells(places):
            place, cell = min(cells.items())
            places = self.refine(_individualise(places, place, cell, cell[0]))
        return self._certificate(places)

    def _certificate(self, places: list[int]) -> Certificate:
        """Return the edges between places; the nodes' colours are in the order of places already."""
        out = [
            (places[node], name, places[other])
            for node, edges in enumerate(self._nodes.edges)
            for name, other in edges
            if name[0] == ">"
        ]
        return tuple(sorted(out))


def _individualise(places: list[int], place: int, cell: list[int], node: int) -> list[int]:
    """Return the places with one node of a cell put before the others of the cell."""
    following = list(places)
    for other in cell:
        if other != node:
            following[other] = place + 1
    return following
