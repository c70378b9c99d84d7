"""A solver for 0-1 quadratic problems: one option for each item, with the least total cost of options and pairs.

Layout choices are such problems: a kernel has few products, each with at most 15 options. Branch and bound solves them
exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_formal.support.limits import LAYOUT_WORK

#: For some pairs (i, j) of items, the cost of each pair of their options.
Pairs = Mapping[tuple[int, int], Sequence[Sequence[int]]]


def minimise(costs: Sequence[Sequence[int]], pairs: Pairs, work: int = LAYOUT_WORK) -> tuple[tuple[int, ...], bool]:
    """Return the cheapest choice of one option for each item.

    Args:
        costs: For each item the cost of each of its options, not negative.
        pairs: For some pairs (i, j) of items the cost of each pair of their options, not negative.
        work: The most options that are tried.

    Returns:
        The option of each item, and whether the choice is proved optimal. If the work limit was reached, it is the best
        choice found.
    """
    search = _BranchAndBound(costs, pairs, work)
    search.run()
    return tuple(search.best), search.left >= 0


def total_cost(costs: Sequence[Sequence[int]], pairs: Pairs, chosen: Sequence[int]) -> int:
    """Return the cost of a choice: the sum of the costs of each item's chosen option, and of those of the pairs."""
    own = sum(row[option] for row, option in zip(costs, chosen, strict=True))
    return own + sum(table[chosen[i]][chosen[j]] for (i, j), table in pairs.items())


class _BranchAndBound:
    """Branch and bound: depth-first search, items in their order.

    Sound: every branch that is cut off costs at least as much as the best choice: the bound is the cost of its first
    items plus, for each later item, the least cost of an option by itself and with these.
    """

    def __init__(self, costs: Sequence[Sequence[int]], pairs: Pairs, work: int) -> None:
        self.best = _local_optimum(costs, pairs)
        self.left = work
        self._least = total_cost(costs, pairs, self.best)
        self._count = len(costs)
        # For each item and each later one, the table of their pairs; either order may be given.
        self._tables: dict[tuple[int, int], list[list[int]]] = {}
        for (i, j), table in pairs.items():
            rows = [list(row) for row in (table if i < j else zip(*table, strict=True))]
            self._tables[min(i, j), max(i, j)] = rows
        self._costs = costs

    def run(self) -> None:
        """Find the best choice, unless the work limit stops the search."""
        self._extend([], 0, [list(row) for row in self._costs])

    def _extend(self, chosen: list[int], sofar: int, rest: list[list[int]]) -> None:
        """Search the choices that begin with ``chosen``.

        ``rest`` holds the costs of the other items' options, with the pair costs of the chosen options added.
        """
        if not rest:
            if sofar < self._least:
                self.best, self._least = list(chosen), sofar
            return
        item, behind = len(chosen), sum(min(row) for row in rest[1:])
        for option in sorted(range(len(rest[0])), key=rest[0].__getitem__):
            if self.left < 0 or sofar + rest[0][option] + behind >= self._least:
                return
            self.left -= 1
            later = [self._with(item, option, item + 1 + n, row) for n, row in enumerate(rest[1:])]
            self._extend([*chosen, option], sofar + rest[0][option], later)

    def _with(self, item: int, option: int, other: int, row: list[int]) -> list[int]:
        table = self._tables.get((item, other))
        return row if table is None else [a + b for a, b in zip(row, table[option], strict=True)]


def _local_optimum(costs: Sequence[Sequence[int]], pairs: Pairs) -> list[int]:
    """Return a local optimum: the cheapest options by themselves, changed one at a time while that helps."""
    best = [min(range(len(row)), key=row.__getitem__) for row in costs]
    improved = True
    while improved:
        improved = False
        for item, row in enumerate(costs):
            for option in range(len(row)):
                other = [*best[:item], option, *best[item + 1 :]]
                if total_cost(costs, pairs, other) < total_cost(costs, pairs, best):
                    best, improved = other, True
    return best


__all__ = ["minimise", "total_cost"]
