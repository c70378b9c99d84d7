"""Sampled cases: as many as asked, the same in any order, and no value of a parameter is lost."""

from __future__ import annotations

from itertools import product

import pytest

from tests.kit.sampled import chosen


def cases(*extents: int) -> list[tuple[str, dict[str, int]]]:
    """Every combination of the values of so many parameters."""
    names = [f"p{n}" for n in range(len(extents))]
    return [
        (f"test[{'-'.join(map(str, at))}]", dict(zip(names, at, strict=True))) for at in product(*map(range, extents))
    ]


@pytest.mark.parametrize("extents", [(9,), (8, 3), (6, 2), (4, 4, 4), (5, 1), (1, 1)])
@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_one_in_so_many_and_every_value(extents: tuple[int, ...], of: int) -> None:
    every = cases(*extents)
    left = chosen(every, of)
    assert left == chosen(every[::-1], of)
    assert len(left) >= -(-len(every) // of)
    assert len(left) <= max(-(-len(every) // of), sum(extents))
    if of == 1:
        assert len(left) == len(every)
    if len(extents) > 1:
        for name, extent in zip(every[0][1], extents, strict=True):
            assert {values[name] for case, values in every if case in left} == set(range(extent))
    else:
        assert len(left) == -(-len(every) // of)


def test_what_is_given_together_is_one_parameter() -> None:
    """Of six pairs, each with both ways of two: six cases, and of the pairs alone two."""
    pairs = [(f"test[{n}]", {"make": n, "warps": n}) for n in range(6)]
    assert len(chosen(pairs, 3)) == 2
    both = [(f"test[{n}-{m}]", {"make": n, "warps": n, "turned": m}) for n in range(6) for m in range(2)]
    assert len(chosen(both, 3)) == 6
