"""Memory plans: offsets for buffers in shared memory whose lives may not overlap (dynamic storage allocation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

#: Offsets are multiples of this many bytes: 32 banks of 4.
ALIGN: Final = 128
_NODES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer that is live in steps first..last, both included."""

    name: str
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Where buffers lie.

    Attributes:
        offsets: By name.
        bytes: End of the last buffer.
        lower_bound: No plan needs fewer bytes: at some step this much is live.
        optimal: Whether no plan with the same alignment ends earlier.
    """

    offsets: Mapping[str, int]
    bytes: int
    lower_bound: int
    optimal: bool


def allocate(requests: Sequence[Request]) -> Memory:
    """An offset for every buffer such that buffers that are live at once do not overlap.

    Every plan can be pushed down until each buffer lies at 0 or on another one; placing buffers by increasing offset at
    the lowest free place gives a plan that is no larger. So a search over orders finds the optimum; it is cut off by
    the lower bound and by a fixed number of nodes, and says so.
    """
    items = sorted(requests, key=lambda r: (-_size(r), r.first, r.name))
    bound = max((sum(_size(r) for r in items if r.first <= t <= r.last) for t in {r.first for r in items}), default=0)
    search = _Search(items, bound)
    search.run()
    exact = max((sum(r.bytes for r in items if r.first <= t <= r.last) for t in {r.first for r in items}), default=0)
    offsets = MappingProxyType({items[i].name: offset for i, offset in sorted(search.best.items())})
    ends = [offsets[r.name] + r.bytes for r in items]
    return Memory(offsets, max(ends, default=0), exact, search.height == bound or search.nodes < _NODES)


def _size(request: Request) -> int:
    return -(-request.bytes // ALIGN) * ALIGN


class _Search:
    def __init__(self, items: Sequence[Request], bound: int) -> None:
        self.items, self.bound = items, bound
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
            kind = (_size(item), item.first, item.last)
            if i in placed or kind in tried:
                continue
            tried.add(kind)
            offset = self._lowest(i, placed)
            placed[i] = offset
            self._place(placed, max(height, offset + kind[0]))
            del placed[i]

    def _lowest(self, i: int, placed: dict[int, int]) -> int:
        size = _size(self.items[i])
        taken = sorted((o, o + _size(self.items[j])) for j, o in placed.items() if self.meets[i][j])
        offset = 0
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        return offset
