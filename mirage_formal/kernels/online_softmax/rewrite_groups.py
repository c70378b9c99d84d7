"""Which kernel operators a stable form changes together, and the order of these groups among the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import KernelGraph


@dataclass(frozen=True, slots=True)
class Run:
    """Operators of a graph.

    Attributes:
        operators: Their numbers, ascending.
        changed: Whether a stable form changes them, together; others stay as they are.
    """

    operators: tuple[int, ...]
    changed: bool


class Together:
    """Sets of numbers that are joined as it turns out that they belong together."""

    def __init__(self, count: int) -> None:
        self._first = list(range(count))

    def join(self, numbers: Iterable[int]) -> None:
        """Put the sets of some numbers together."""
        firsts = {self._first[n] for n in numbers}
        self._first = [min(firsts) if first in firsts else first for first in self._first]

    def first(self, number: int) -> int:
        """The least number of the same set."""
        return self._first[number]


def makers(graph: KernelGraph) -> list[int]:
    """For each tensor of a graph the operator that makes it; -1 for inputs."""
    return [-1] * len(graph.inputs) + [k for k, op in enumerate(graph.ops) for _ in range(op.results)]


def runs(graph: KernelGraph, together: Together, changed: Iterable[int]) -> tuple[Run, ...]:
    """All operators of a graph in an order in which they can be computed, each changed set at once.

    Sets that need results of one another, or of what lies between them, become one.

    Args:
        graph: A well-formed graph.
        together: Sets of its operators; they are joined further.
        changed: Operators that change; their sets do.
    """
    made, marked = makers(graph), set(changed)
    while True:
        sets: dict[int, list[int]] = {}
        for n in range(len(graph.ops)):
            sets.setdefault(together.first(n), []).append(n)
        needs = {
            first: {together.first(made[i]) for n in numbers for i in graph.ops[n].operands if made[i] >= 0} - {first}
            for first, numbers in sets.items()
        }
        order: list[int] = []
        left = dict.fromkeys(sets)
        while (first := next((n for n in left if needs[n].isdisjoint(left)), None)) is not None:
            order.append(first)
            del left[first]
        if not left:
            break
        together.join(_cycle({first: needs[first].intersection(left) for first in left}))
    found: list[Run] = []
    for first in order:
        run = Run(tuple(sets[first]), not marked.isdisjoint(sets[first]))
        if found and not run.changed and not found[-1].changed:
            run = Run(tuple(sorted((*found.pop().operators, *run.operators))), changed=False)
        found.append(run)
    return tuple(found)


def _cycle(needs: dict[int, set[int]]) -> Sequence[int]:
    """Sets each of which needs the next one, and the last one the first; every given one needs another."""
    path = [next(iter(needs))]
    while (after := min(needs[path[-1]])) not in path:
        path.append(after)
    return path[path.index(after) :]


__all__ = ["Run", "Together", "makers", "runs"]
