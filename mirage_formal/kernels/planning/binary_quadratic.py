"""0-1 problems: one option for each item, least total cost of options and of pairs of options.

Layouts are such problems: a kernel has few products, each with at most 15 options. Branch and bound tries them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirage_formal.limits import LAYOUT_WORK

#: For some pairs (i, j) of items the cost of each pair of their options.
Pairs = Mapping[tuple[int, int], Sequence[Sequence[int]]]


def minimise(costs: Sequence[Sequence[int]], pairs: Pairs, work: int = LAYOUT_WORK) -> tuple[tuple[int, ...], bool]:
    """One option for each item.

    Args:
        costs: For each item the cost of each of its options, not negative.
        pairs: For some pairs (i, j) of items the cost of each pair of their options, not negative.
        work: Options that are tried at most.

    Returns:
        The number of the option of each item, and whether no choice costs less. Without that claim (there was more work
        to do) the choice is the best one that was met.
    """
    search = _Search(costs, pairs, work)
    search.run()
    return tuple(search.best), search.left >= 0


def total(costs: Sequence[Sequence[int]], pairs: Pairs, chosen: Sequence[int]) -> int:
    """The cost of a choice."""
    own = sum(row[option] for row, option in zip(costs, chosen, strict=True))
    return own + sum(table[chosen[i]][chosen[j]] for (i, j), table in pairs.items())


class _Search:
    """Depth-first search, items in their order.

    Sound: what is cut off costs at least as much as the best choice: to what its first items cost it adds, for each
    item behind them, the least that it costs by itself and with these.
    """

    def __init__(self, costs: Sequence[Sequence[int]], pairs: Pairs, work: int) -> None:
        self.best = _descent(costs, pairs)
        self.left = work
        self._least = total(costs, pairs, self.best)
        self._count = len(costs)
        # For each item and each later one, the table of their pairs; either order may be given.
        self._tables: dict[tuple[int, int], list[list[int]]] = {}
        for (i, j), table in pairs.items():
            rows = [list(row) for row in (table if i < j else zip(*table, strict=True))]
            self._tables[min(i, j), max(i, j)] = rows
        self._costs = costs

    def run(self) -> None:
        """Find the best choice, if the work suffices."""
        self._extend([], 0, [list(row) for row in self._costs])

    def _extend(self, chosen: list[int], sofar: int, rest: list[list[int]]) -> None:
        """Choices that begin so; ``rest`` has the costs of the other items' options, with those that are chosen."""
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


def _descent(costs: Sequence[Sequence[int]], pairs: Pairs) -> list[int]:
    """The cheapest options by themselves, changed one at a time as long as that helps."""
    best = [min(range(len(row)), key=row.__getitem__) for row in costs]
    improved = True
    while improved:
        improved = False
        for item, row in enumerate(costs):
            for option in range(len(row)):
                other = [*best[:item], option, *best[item + 1 :]]
                if total(costs, pairs, other) < total(costs, pairs, best):
                    best, improved = other, True
    return best


__all__ = ["minimise", "total"]
