"""Horizontal merging of subgraphs of a partition to subgraphs with several results.

The dynamic programming of ``partition`` is exact because each subgraph has one result, so that the operators below each
root are an independent problem. A subgraph with several results (three projections of one tensor; a residual sum and
its norm) has several roots and couples these problems. Such subgraphs are therefore made by a later pass over a
partition.

The pass looks at all sets of subgraphs that read one tensor, with or without the subgraph that computes it. It merges
the set that saves the most, until none saves anything. It is greedy: one merge may prevent a better one. It is repeated
from the original partition as searches return costs, so that a failed merge is replaced by the next one. The partition
without merges is always among those compared.

Views stay as they are. A set can be merged under two conditions. No subgraph outside of it lies between two members.
Each of its results can be computed by a search alone, from the tensors that the merged subgraph reads or with other
results as inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import combinations
from typing import Final

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import is_view
from mirage_formal.partition.partition import Offers, Partition, PartLimits, Prices, Subgraph, extract_subprogram
from mirage_formal.search.horizontal_fusion.slices import backward_slices
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.search.preprocess import preprocess

#: Most results of one subgraph.
_RESULTS: Final = 8
#: Most operators of a subgraph, as a multiple of those of one kernel.
_LONGEST: Final = 4
#: Most readers of one tensor for which all pairs are tried.
_READERS: Final = 8
#: Least microseconds that a merge must save.
_LEAST: Final = 1e-6


class Merger:
    """Merger of subgraphs in partitions of one program; it caches the subgraphs that it has extracted.

    Args:
        program: A program of predefined operators.
        target: The GPU of the cost model.
        limits: Size limits of one search.
    """

    def __init__(self, program: KernelGraph, target: Target, limits: PartLimits) -> None:
        self._program = program
        self._target = target
        self._limits = limits
        self._taken: dict[frozenset[int], Subgraph | None] = {}
        self._proposed: dict[frozenset[int], None] = {}  # merged parts of earlier partitions, reached step by step

    def copy_for_guess(self) -> Merger:
        """Return a merger that shares the extracted subgraphs with this one, which does not learn what it merges."""
        other = copy(self)
        other._proposed = dict(self._proposed)
        return other

    def merged(self, cut: Partition, prices: Prices, kernel_us: float = 0.0) -> Partition:
        """Return a partition with subgraphs merged as long as that reduces the cost.

        Sound: each operator stays in exactly one part, and an order is found in which each part reads only what earlier
        ones computed.

        Args:
            cut: The partition.
            prices: Function that returns the replacements of a subgraph with their costs.
            kernel_us: Microseconds that each kernel costs in addition to its estimate.
        """
        parts = {frozenset(part.operators): part for part in cut.parts}
        costs = {key: self._cost(part, prices, kernel_us) for key, part in parts.items()}
        while True:
            best: tuple[float, frozenset[frozenset[int]], Subgraph] | None = None
            for group in self._groups(list(parts.values())):
                part = self._part(frozenset().union(*group))
                if part is None or not (offers := prices(part.program)):
                    continue
                kernels, cost = _cheapest_offer(offers, kernel_us)
                saved = sum(costs[key] for key in group) - cost
                if (
                    saved > _LEAST
                    and (best is None or saved > best[0])
                    and _is_convex_group(list(parts.values()), group)
                ):
                    best = saved, group, replace(part, kernels=kernels)
            if best is None:
                own = {frozenset(part.operators) for part in cut.parts}
                self._proposed |= dict.fromkeys(key for key in parts if key not in own)
                return Partition(_topological_order(list(parts.values())), cut.limited)
            saved, group, part = best
            costs[frozenset(part.operators)] = sum(costs[key] for key in group) - saved
            parts = {key: one for key, one in parts.items() if key not in group}
            parts[frozenset(part.operators)] = part

    def _cost(self, part: Subgraph, prices: Prices, kernel_us: float) -> float:
        if self._is_view(part):
            return 0.0
        offers = prices(part.program) if part.searched else ()
        offers = tuple(one for one in offers if part.kernels in (None, one[0])) or offers
        return _cheapest_offer(offers or ((1, estimate(part.program, self._target).us),), kernel_us)[1]

    def _is_view(self, part: Subgraph) -> bool:
        return len(part.operators) == 1 and is_view(self._program, part.results[0])

    def _groups(self, parts: Sequence[Subgraph]) -> Iterator[frozenset[frozenset[int]]]:
        """Yield the sets of subgraphs that share a tensor or were merged before, each once, as sets of operator sets.

        A set that was merged in several steps before may have been searched without the intermediate sets; it is
        yielded directly.
        """
        readers: dict[int, list[frozenset[int]]] = {}
        writer: dict[int, frozenset[int]] = {}
        for part in parts:
            if not self._is_view(part):
                key = frozenset(part.operators)
                writer |= dict.fromkeys(part.results, key)
                for tensor in part.reads:
                    readers.setdefault(tensor, []).append(key)
        seen: set[frozenset[frozenset[int]]] = set()
        for tensor in sorted(readers):
            read = readers[tensor]
            own = [writer[tensor]] if tensor in writer else []
            groups = [[*own, *read], read, *([*own, one] for one in read)]
            if len(read) <= _READERS:
                groups += [list(pair) for pair in combinations(read, 2)]
            for group in groups:
                found = frozenset(group)
                if len(found) > 1 and found not in seen:
                    seen.add(found)
                    yield found
        for proposed in self._proposed:
            found = frozenset(key for key in map(frozenset, (part.operators for part in parts)) if key <= proposed)
            if len(found) > 1 and found not in seen and sum(map(len, found)) == len(proposed):
                seen.add(found)
                yield found

    def _part(self, operators: frozenset[int]) -> Subgraph | None:
        """Return operators as one subgraph; None if it has too many results or one exceeds the limits of a search."""
        if operators not in self._taken:
            numbers = tuple(sorted(operators))
            graph, reads, results = extract_subprogram(self._program, numbers)
            fits = len(results) <= _RESULTS and self._within(graph)
            self._taken[operators] = Subgraph(numbers, graph, reads, results, True) if fits else None
        return self._taken[operators]

    def _within(self, part: KernelGraph) -> bool:
        most = self._limits
        if len(part.ops) > _LONGEST * most.operators:
            return False
        return is_fusible(preprocess(part, proved=False).program) or all(
            any(len(one.program.ops) <= most.operators and len(one.reads) <= most.inputs for one in ways)
            for ways in backward_slices(part)
        )


def _cheapest_offer(offers: Offers, kernel_us: float) -> tuple[int, float]:
    """Return the number of kernels and the cost of the cheapest offer."""
    return min(((kernels, us + kernels * kernel_us) for kernels, us in offers), key=lambda offer: (offer[1], offer[0]))


def _is_convex_group(parts: Sequence[Subgraph], group: Collection[frozenset[int]]) -> bool:
    """Return whether a group is convex: no subgraph outside both depends on a member and is needed by one."""
    inside = [frozenset(part.operators) in group for part in parts]
    behind = {tensor for part, own in zip(parts, inside, strict=True) if own for tensor in part.results}
    todo = [part for part, own in zip(parts, inside, strict=True) if not own]
    while near := [part for part in todo if not behind.isdisjoint(part.reads)]:
        todo = [part for part in todo if part not in near]
        behind |= {tensor for part in near for tensor in part.results}
        outside = {tensor for part in near for tensor in part.results}
        if any(own and not outside.isdisjoint(part.reads) for part, own in zip(parts, inside, strict=True)):
            return False
    return True


def _topological_order(parts: Sequence[Subgraph]) -> tuple[Subgraph, ...]:
    """Return subgraphs in topological order; of those that are ready, the one with the smallest result is first."""
    left = sorted(parts, key=lambda part: part.results)
    missing = {tensor for part in parts for tensor in part.results}
    found: list[Subgraph] = []
    while left:
        following = next(part for part in left if missing.isdisjoint(part.reads))
        left.remove(following)
        missing.difference_update(following.results)
        found.append(following)
    return tuple(found)


__all__ = ["Merger"]
