"""How many of a test's cases are looked at: a seeded sample, or with MIRAGE_THOROUGH=1 all of them.

``make test`` has to end in less than 20 minutes on two processors. What is sampled runs the same lines with other
numbers, or a search in a smaller space; ``MIRAGE_THOROUGH=1 make test`` runs all of it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, TypeVar

T = TypeVar("T")

THOROUGH: Final = os.environ.get("MIRAGE_THOROUGH", "") not in ("", "0")


def number(usual: int, thorough: int) -> int:
    """How many cases are drawn."""
    return thorough if THOROUGH else usual


def share(cases: Sequence[T], of: int, turn: int) -> Sequence[T]:
    """One of so many equal shares of the cases, by turns; with MIRAGE_THOROUGH=1 all."""
    return cases if THOROUGH else cases[turn % of :: of]


def but(cases: Iterable[str], *left: str) -> list[str]:
    """All cases but those that are left to MIRAGE_THOROUGH=1: searches that others do in smaller spaces.

    Raises:
        ValueError: There is no such case to be left.
    """
    names = list(cases)
    if unknown := set(left) - set(names):
        raise ValueError(f"expected names of cases, got {sorted(unknown)}")
    return names if THOROUGH else [name for name in names if name not in left]


def chosen(cases: Sequence[tuple[str, Mapping[str, Hashable]]], of: int) -> frozenset[str]:
    """The cases that are left where a test is marked ``@pytest.mark.sampled(of)``: one in so many, for good.

    Of a test with several parameters no value of any is lost: rather more cases are left. Which they are depends on
    the names of the cases alone, neither on their order nor on the number of processes that run them.

    Args:
        cases: Name of each, and which value it has of each parameter; what is given together is one parameter.
        of: One in so many.
    """
    columns = [[values[name] for _, values in cases] for name in cases[0][1]]
    drawn = sorted(range(len(cases)), key=lambda i: sha256(cases[i][0].encode()).digest())
    left: list[int] = []
    if len(columns) > 1:
        for i in drawn:
            if any(column[i] not in {column[j] for j in left} for column in columns):
                left.append(i)
    left += [i for i in drawn if i not in left][: max(0, -(-len(cases) // of) - len(left))]
    return frozenset(cases[i][0] for i in left)
