"""Shared-memory allocation: offsets for buffers such that buffers with overlapping live ranges do not overlap.

The problem is known as dynamic storage allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

#: Offsets are multiples of this many bytes: 32 banks of 4, or a unit of the panels that warpgroups read.
ALIGN: Final = 128
PANEL_ALIGN: Final = 1024
_NODES: Final = 20_000


@dataclass(frozen=True, slots=True)
class BufferRequest:
    """A buffer that is live in steps first..last, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """A shared-memory allocation.

    Attributes:
        offsets: The offset of each buffer by name.
        bytes: The end of the last buffer.
        lower_bound: The most bytes that are live at one step; no allocation needs fewer.
        optimal: Whether no allocation with the same alignment ends earlier.
    """

    offsets: Mapping[str, int]
    bytes: int
    lower_bound: int
    optimal: bool


def allocate(requests: Sequence[BufferRequest], align: int = ALIGN) -> Allocation:
    """Return offsets for all buffers such that buffers that are live at once do not overlap.

    Offsets are multiples of ``align`` bytes.

    Every allocation can be compacted until each buffer lies at 0 or directly on another one. Placing buffers by
    increasing offset at the lowest free place then gives one that is no larger. So a search over orders finds the
    optimum. The lower bound or a fixed number of nodes ends it; the result says whether it is optimal.
    """
    sizes = {request.name: -(-request.bytes // align) * align for request in requests}
    items = sorted(requests, key=lambda r: (-sizes[r.name], r.first, r.name))
    live = (sum(sizes[r.name] for r in items if r.first <= t <= r.last) for t in {r.first for r in items})
    bound = max(live, default=0)
    search = _Search(items, sizes, bound)
    search.run()
    exact = max((sum(r.bytes for r in items if r.first <= t <= r.last) for t in {r.first for r in items}), default=0)
    offsets = MappingProxyType({items[i].name: offset for i, offset in sorted(search.best.items())})
    ends = [offsets[r.name] + r.bytes for r in items]
    return Allocation(offsets, max(ends, default=0), exact, search.height == bound or search.nodes < _NODES)


class _Search:
    def __init__(self, items: Sequence[BufferRequest], sizes: Mapping[str, int], bound: int) -> None:
        self.items, self.sizes, self.bound = items, [sizes[item.name] for item in items], bound
        self.meets = [[a.first <= b.last and b.first <= a.last for b in items] for a in items]
        self.best: dict[int, int] = {}
        self.height = 1 << 62
        self.nodes = 0

    def run(self) -> None:
        self._place({}, 0)

    def _place(self, placed: dict[int, int], height: int) -> None:
        self.nodes += 1
        if height >= self.height:
            return
        if len(placed) == len(self.items):
            self.best, self.height = dict(placed), height
            return
        tried: set[tuple[int, int, int]] = set()
        for i, item in enumerate(self.items):
            if self.height == self.bound or (self.nodes >= _NODES and self.best):
                return
            kind = (self.sizes[i], item.first, item.last)
            if i in placed or kind in tried:
                continue
            tried.add(kind)
            offset = self._lowest(i, placed)
            placed[i] = offset
            self._place(placed, max(height, offset + kind[0]))
            del placed[i]

    def _lowest(self, i: int, placed: dict[int, int]) -> int:
        size = self.sizes[i]
        taken = sorted((o, o + self.sizes[j]) for j, o in placed.items() if self.meets[i][j])
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        return offset
