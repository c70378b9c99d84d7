"""Candidates whose loop is dealt to more blocks, of each pattern of which none is worth reporting as it stands.

A reduction of one long row is one block with a long loop: its own estimate is far above the operators one by one, and
it would be dropped, though with its loop split (``kernels.post_search_rewrites.split_k``) it is the best there is. What
an engine has found is therefore split before it is dropped. The results are candidates like any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Final

from mirage_formal.errors import MirageError
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernels.cost import estimate
from mirage_formal.kernels.post_search_rewrites.rewrite import ANY, PARTS, Change, rewritten
from mirage_formal.kernels.target import Target
from mirage_formal.run.kernel_build.stable import rewritten as each_rewritten
from mirage_formal.run.ranking import operators

#: Candidates that are tried: those of the fewest kernels, of each such pattern in turns the cheapest.
_TRIED: Final = 16
#: Results that are kept, each of another pattern: estimates of kernels that do different things are not exact.
_KEPT: Final = 4


def dealt(found: Sequence[KernelGraph], target: Target, most_us: float) -> list[KernelGraph]:
    """Candidates of the fewest kernels with their loops split, each as it is estimated best.

    Sound: nothing rests on this; each is certified and proved as every candidate is.

    Args:
        found: Candidates, without thread graphs.
        target: The GPU that estimates are for.
        most_us: Estimates above it are of no use: what the operators take one by one.

    Returns:
        Those that are estimated below, and below all of ``found``, cheapest first and few, one of a pattern
        (``run.ranking.operators``); none of a pattern of which one of ``found`` is at or below ``most_us`` already.
    """
    costs = [estimate(graph, target).us for graph in found]
    least = min((most_us, *costs))
    fewest = min((len(graph.ops) for graph in found), default=0)
    order = sorted((cost, i) for i, cost in enumerate(costs) if len(found[i].ops) == fewest)
    alike: dict[Hashable, list[KernelGraph]] = defaultdict(list)
    reported: set[Hashable] = set()
    for cost, i in order:
        pattern = operators(found[i])
        if cost <= most_us:
            reported.add(pattern)
        elif pattern not in reported:
            alike[pattern].append(found[i])
    turns = (zip(alike, turn, strict=True) for turn in zip_longest(*alike.values()))
    tried = ((pattern, graph) for turn in turns for pattern, graph in turn if graph is not None)
    best: dict[Hashable, tuple[float, KernelGraph]] = {}
    for pattern, graph in islice(tried, _TRIED):
        made = _best(graph, target)
        most = best[pattern][0] if pattern in best else least
        if made is not None and made[0] < most:
            best[pattern] = made
    return [graph for _, graph in sorted(best.values(), key=lambda one: one[0])[:_KEPT]]


def _best(graph: KernelGraph, target: Target) -> tuple[float, KernelGraph] | None:
    """The cheapest way to split the loops of a candidate's kernels."""
    made: list[tuple[float, KernelGraph]] = []
    for parts in PARTS:
        try:
            other = each_rewritten(
                graph, partial(rewritten, change=Change(parts=parts), target=target, slack=ANY)
            ).graph
        except MirageError:
            continue
        if other != graph:
            made.append((estimate(other, target).us, other))
    return min(made, key=lambda one: one[0], default=None)


__all__ = ["dealt"]
