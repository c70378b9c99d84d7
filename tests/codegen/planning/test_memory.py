"""Memory plans: nothing that is live at once overlaps, and no plan is smaller."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.planning import memory
from mirage_formal.codegen.planning.memory import ALIGN, BufferRequest, allocate


@st.composite
def requests(draw: st.DrawFn, most: int = 6) -> list[BufferRequest]:
    count = draw(st.integers(0, most))
    out = []
    for i in range(count):
        first = draw(st.integers(0, 7))
        size = draw(st.integers(1, 4)) * ALIGN - draw(st.sampled_from([0, 1, 100]))
        out.append(BufferRequest(f"b{i}", size, first, draw(st.integers(first, 7))))
    return out


def together(a: BufferRequest, b: BufferRequest) -> bool:
    return a.first <= b.last and b.first <= a.last


def smallest(items: Sequence[BufferRequest]) -> int | None:
    """Least end over all orders of placing buffers as low as possible."""
    best = None
    for order in permutations(items):
        placed: dict[BufferRequest, int] = {}
        for item in order:
            offset = 0
            for other, start in sorted(placed.items(), key=lambda pair: pair[1]):
                if together(item, other) and offset < start + size(other) and start < offset + size(item):
                    offset = start + size(other)
            placed[item] = offset
        end = max((offset + item.bytes for item, offset in placed.items()), default=0)
        best = end if best is None else min(best, end)
    return best


def size(request: BufferRequest) -> int:
    return -(-request.bytes // ALIGN) * ALIGN


@settings(max_examples=150)
@given(requests())
def test_plans_are_valid_and_smallest(items: list[BufferRequest]) -> None:
    found = allocate(items)
    for i, a in enumerate(items):
        assert found.offsets[a.name] % ALIGN == 0
        for b in items[i + 1 :]:
            x, y = found.offsets[a.name], found.offsets[b.name]
            assert not together(a, b) or x + a.bytes <= y or y + b.bytes <= x
    assert found.optimal
    # Ends are compared in units of the alignment: the last buffer may be one that is not a whole number of them.
    assert -(-found.bytes // ALIGN) == -(-(smallest(items) or 0) // ALIGN)
    assert found.lower_bound <= found.bytes


def test_a_bound_that_cannot_be_met_is_reported_as_such() -> None:
    # Loads of 4 at any time, but no plan of height 4 exists for this instance of intervals.
    items = [BufferRequest(f"b{i}", ALIGN, t, t) for i, t in enumerate((0, 1, 2))] + [
        BufferRequest("c", 2 * ALIGN, 0, 2)
    ]
    found = allocate(items)
    assert found.bytes == found.lower_bound == 3 * ALIGN


def test_the_search_says_when_it_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_NODES", 3)
    items = [BufferRequest(f"b{i}", (i % 3 + 1) * ALIGN, i % 4, i % 4 + i % 3) for i in range(9)]
    found = allocate(items)
    assert len(found.offsets) == 9
    assert not found.optimal or found.bytes == found.lower_bound
