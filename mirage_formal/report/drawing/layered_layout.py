"""Layered graph layout (Sugiyama): ranks by longest paths, crossings reduced by medians, then coordinates.

All pictures use the coordinates computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

#: Distances in points: between neighbours of a rank, between ranks, and around the drawing.
GAP: Final = 22.0
RANK_GAP: Final = 46.0
MARGIN: Final = 14.0
_SWEEPS: Final = 6
#: Width reserved for an edge that passes a rank.
_PASSING: Final = 10.0

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class DrawingLayout:
    """Layout of a drawing: positions of nodes and routes of edges.

    Attributes:
        size: Size of the drawing.
        nodes: Upper left corner of each node.
        edges: Points of each edge, from the lower side of its source to the upper side of its target.
    """

    size: Size
    nodes: tuple[Point, ...]
    edges: tuple[tuple[Point, ...], ...]


@lru_cache(maxsize=1 << 11)  # many candidates have graphs of one form
def assign_layers(sizes: tuple[Size, ...], edges: tuple[tuple[int, int], ...]) -> DrawingLayout:
    """Lay out an acyclic graph from top to bottom.

    Args:
        sizes: Width and height of each node; every edge leads from a smaller number to a larger one.
        edges: Pairs of source and target.
    """
    if not sizes:
        return DrawingLayout((2 * MARGIN, 2 * MARGIN), (), ())
    return _Drawing(sizes, edges).layout()


class _Drawing:
    def __init__(self, sizes: Sequence[Size], edges: Sequence[tuple[int, int]]) -> None:
        self.count = len(sizes)
        self.sizes = list(sizes)
        self.edges = edges
        self.rank = self._ranks()
        #: Nodes of each edge from source to target, with a dummy node in every rank between.
        self.chains = [self._chain(source, target) for source, target in edges]
        self.above: list[list[int]] = [[] for _ in self.sizes]
        self.below: list[list[int]] = [[] for _ in self.sizes]
        for chain in self.chains:
            for a, b in pairwise(chain):
                self.below[a].append(b)
                self.above[b].append(a)
        self.rows: list[list[int]] = [[] for _ in range(max(self.rank) + 1)]
        for node, rank in enumerate(self.rank):
            self.rows[rank].append(node)
        self.place = [0] * len(self.sizes)
        self._number()

    def layout(self) -> DrawingLayout:
        self._order()
        x = self._across()
        heights = [max((self.sizes[node][1] for node in row), default=0.0) for row in self.rows]
        tops = [MARGIN]
        for height in heights[:-1]:
            tops.append(tops[-1] + height + RANK_GAP)
        left = min(x[node] - self.sizes[node][0] / 2 for node in range(len(x)))
        x = [at - left + MARGIN for at in x]
        centre = [tops[self.rank[node]] + heights[self.rank[node]] / 2 for node in range(len(x))]
        corners = [(x[n] - self.sizes[n][0] / 2, centre[n] - self.sizes[n][1] / 2) for n in range(self.count)]
        width = max(x[node] + self.sizes[node][0] / 2 for node in range(len(x))) + MARGIN
        lines = []
        ends = self._ports(x)
        for number, chain in enumerate(self.chains):
            start, *between, end = chain
            out, into = ends[number]
            points = [(out, centre[start] + self.sizes[start][1] / 2)]
            for node in between:
                row = self.rank[node]
                points += [(x[node], tops[row]), (x[node], tops[row] + heights[row])]
            lines.append((*points, (into, centre[end] - self.sizes[end][1] / 2)))
        return DrawingLayout((width, tops[-1] + heights[-1] + MARGIN), tuple(corners), tuple(lines))

    def _ranks(self) -> list[int]:
        rank = [0] * self.count
        for source, target in sorted(self.edges):
            rank[target] = max(rank[target], rank[source] + 1)
        # What nothing leads to moves down to its first reader.
        entered = {target for _, target in self.edges}
        for node in range(self.count):
            readers = [rank[target] for source, target in self.edges if source == node]
            if node not in entered and readers:
                rank[node] = min(readers) - 1
        return rank

    def _chain(self, source: int, target: int) -> list[int]:
        chain = [source]
        for rank in range(self.rank[source] + 1, self.rank[target]):
            chain.append(len(self.sizes))
            self.sizes.append((_PASSING, 0.0))
            self.rank.append(rank)
        return [*chain, target]

    def _number(self) -> None:
        for row in self.rows:
            for at, node in enumerate(row):
                self.place[node] = at

    def _order(self) -> None:
        """Order each rank by the medians of its neighbours, down and up in turn; keep the best order found."""
        best, least = [list(row) for row in self.rows], self._crossings()
        for sweep in range(_SWEEPS):
            if not least:
                break
            near = self.above if sweep % 2 == 0 else self.below
            rows = self.rows[1:] if sweep % 2 == 0 else self.rows[-2::-1]
            for row in rows:
                row.sort(key=lambda node: (self._median(near[node], node), self.place[node]))
                for at, node in enumerate(row):
                    self.place[node] = at
            if (crossings := self._crossings()) < least:
                best, least = [list(row) for row in self.rows], crossings
        self.rows = best
        self._number()

    def _median(self, near: Sequence[int], node: int) -> float:
        places = sorted(self.place[other] for other in near)
        if not places:
            return self.place[node]
        middle = len(places) // 2
        return places[middle] if len(places) % 2 else (places[middle - 1] + places[middle]) / 2

    def _crossings(self) -> int:
        total = 0
        for row in self.rows[:-1]:
            ends = [self.place[b] for a in row for b in sorted(self.below[a], key=lambda node: self.place[node])]
            total += _inversions(ends)
        return total

    def _across(self) -> list[float]:
        """Return horizontal coordinates: each rank is moved towards its neighbours' means, with its order and gaps."""
        x = [0.0] * len(self.sizes)
        for row in self.rows:
            at = 0.0
            for node in row:
                at += self.sizes[node][0] / 2
                x[node] = at
                at += self.sizes[node][0] / 2 + GAP
        for sweep in range(2 * _SWEEPS):
            rows = self.rows if sweep % 2 == 0 else self.rows[::-1]
            near = self.above if sweep % 2 == 0 else self.below
            for row in rows:
                wanted = [_mean([x[other] for other in near[node]], x[node]) for node in row]
                for node, at in zip(row, self._place_row(row, wanted), strict=True):
                    x[node] = at
        return x

    def _place_row(self, row: Sequence[int], wanted: Sequence[float]) -> list[float]:
        """Return the positions nearest to the wanted ones, in order and with gaps; touching nodes move as one block."""
        offsets = [0.0]
        for a, b in pairwise(row):
            offsets.append(offsets[-1] + (self.sizes[a][0] + self.sizes[b][0]) / 2 + GAP)
        blocks: list[tuple[float, int]] = []
        for want, offset in zip(wanted, offsets, strict=True):
            mean, size = want - offset, 1
            while blocks and blocks[-1][0] > mean:
                other, count = blocks.pop()
                mean, size = (other * count + mean * size) / (count + size), count + size
            blocks.append((mean, size))
        starts = [mean for mean, size in blocks for _ in range(size)]
        return [start + offset for start, offset in zip(starts, offsets, strict=True)]

    def _ports(self, x: Sequence[float]) -> list[tuple[float, float]]:
        """Return the horizontal start and end of each edge: side by side, in the order of the other ends."""
        leaving: dict[int, list[tuple[float, int]]] = {}
        reaching: dict[int, list[tuple[float, int]]] = {}
        for number, chain in enumerate(self.chains):
            leaving.setdefault(chain[0], []).append((x[chain[1]], number))
            reaching.setdefault(chain[-1], []).append((x[chain[-2]], number))
        out, into = self._side_by_side(leaving, x), self._side_by_side(reaching, x)
        return [(out[number], into[number]) for number in range(len(self.chains))]

    def _side_by_side(self, ends: dict[int, list[tuple[float, int]]], x: Sequence[float]) -> dict[int, float]:
        found = {}
        for node, numbers in ends.items():
            step = self.sizes[node][0] / (len(numbers) + 1)
            for at, (_, number) in enumerate(sorted(numbers), 1):
                found[number] = x[node] - self.sizes[node][0] / 2 + at * step
        return found


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _inversions(values: list[int]) -> int:
    """Count the pairs in the wrong order, by merge sort."""
    if len(values) < 2:
        return 0
    middle = len(values) // 2
    left, right = values[:middle], values[middle:]
    total = _inversions(left) + _inversions(right)
    left.sort()
    right.sort()
    at = 0
    for value in right:
        while at < len(left) and left[at] <= value:
            at += 1
        total += len(left) - at
    return total
