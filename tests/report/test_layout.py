"""The layout: nothing overlaps, edges lead down, and the same graph lies the same way twice."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.report.drawing.layered_layout import assign_layers


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[int, int], ...]]:
    count = draw(st.integers(1, 14))
    sizes = tuple(
        (draw(st.sampled_from((40.0, 90.0, 200.0))), draw(st.sampled_from((20.0, 44.0)))) for _ in range(count)
    )
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    return sizes, tuple(edges)


@given(graphs())
@settings(max_examples=150)
def test_nodes_do_not_overlap_and_edges_lead_down(
    drawn: tuple[tuple[tuple[float, float], ...], tuple[tuple[int, int], ...]],
) -> None:
    sizes, edges = drawn
    found = assign_layers(sizes, edges)
    for a, b in combinations(range(len(sizes)), 2):
        (ax, ay), (bx, by) = found.nodes[a], found.nodes[b]
        apart_x = ax + sizes[a][0] <= bx + 1e-6 or bx + sizes[b][0] <= ax + 1e-6
        apart_y = ay + sizes[a][1] <= by + 1e-6 or by + sizes[b][1] <= ay + 1e-6
        assert apart_x or apart_y
    for (x, y), (width, height) in zip(found.nodes, sizes, strict=True):
        assert x >= 0 <= y
        assert x + width <= found.size[0] + 1e-6
        assert y + height <= found.size[1] + 1e-6
    for (source, target), points in zip(edges, found.edges, strict=True):
        downs = [y for _, y in points]
        assert downs == sorted(downs)
        assert abs(downs[0] - found.nodes[source][1] - sizes[source][1]) < 1e-6
        assert abs(downs[-1] - found.nodes[target][1]) < 1e-6


def test_a_crossing_that_is_not_needed_is_taken_out() -> None:
    size = (50.0, 20.0)
    found = assign_layers((size,) * 4, ((0, 3), (1, 2)))
    (a, b), (c, d) = (found.nodes[0][0], found.nodes[1][0]), (found.nodes[3][0], found.nodes[2][0])
    assert (a < b) == (c < d)


def test_five_hundred_nodes_are_laid_out_and_the_same_twice() -> None:
    rng = random.Random(1)
    sizes = tuple((rng.choice((60.0, 120.0)), 44.0) for _ in range(500))
    edges = tuple((max(0, n - rng.randrange(1, 9)), n) for n in range(1, 500) for _ in range(2))
    first = assign_layers(sizes, edges)
    assign_layers.cache_clear()
    assert assign_layers(sizes, edges) == first
