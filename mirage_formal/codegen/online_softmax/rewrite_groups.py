"""Groups of kernel operators that a stable form changes together, and an order of all groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_formal.graph.graph import KernelGraph


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """A group of kernel operators of a graph.

    Attributes:
        operators: Their numbers, ascending.
        changed: Whether a stable form changes them, together; other groups stay as they are.
    """

    operators: tuple[int, ...]
    changed: bool


class DisjointSets:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self, count: int) -> None:
        self._first = list(range(count))

    def join(self, numbers: Iterable[int]) -> None:
        """Merge the sets of some numbers."""
        firsts = {self._first[n] for n in numbers}
        self._first = [min(firsts) if first in firsts else first for first in self._first]

    def first(self, number: int) -> int:
        """Return the least number of the set of a number."""
        return self._first[number]


def producers(graph: KernelGraph) -> list[int]:
    """Return the number of the operator that produces each tensor of a graph; -1 for inputs."""
    return [-1] * len(graph.inputs) + [k for k, op in enumerate(graph.ops) for _ in range(op.results)]


def group_operators(graph: KernelGraph, together: DisjointSets, changed: Iterable[int]) -> tuple[OperatorGroup, ...]:
    """Return all operators of a graph as groups in topological order.

    Sets that depend on one another, directly or through other operators, are merged.



    Args:
        graph: A well-formed graph.
        together: Sets of its operators; this function merges them further.
        changed: The operators that change; so do their sets.
    """
    made, marked = producers(graph), set(changed)
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
        together.join(_find_cycle({first: needs[first].intersection(left) for first in left}))
    found: list[OperatorGroup] = []
    for first in order:
        run = OperatorGroup(tuple(sets[first]), not marked.isdisjoint(sets[first]))
        if found and not run.changed and not found[-1].changed:
            run = OperatorGroup(tuple(sorted((*found.pop().operators, *run.operators))), changed=False)
        found.append(run)
    return tuple(found)


def _find_cycle(needs: dict[int, set[int]]) -> Sequence[int]:
    """Return a cycle of the dependence graph, in order; every given set depends on another."""
    path = [next(iter(needs))]
    while (after := min(needs[path[-1]])) not in path:
        path.append(after)
    return path[path.index(after) :]


__all__ = ["DisjointSets", "OperatorGroup", "group_operators", "producers"]
