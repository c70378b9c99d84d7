"""How many of a test's cases are looked at: a seeded sample, or with MIRAGE_THOROUGH=1 all of them.

``make test`` has to end in less than 20 minutes on two processors. What is sampled runs the same lines with other
numbers, or a search in a smaller space; ``make test-thorough`` runs all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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


__all__ = ["THOROUGH", "but", "number", "share"]
