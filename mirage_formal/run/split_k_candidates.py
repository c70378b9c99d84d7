"""Split-K variants of candidates that are too slow as they stand, for each pattern without a candidate to report.

A reduction of one long row is one block with a long loop. Its estimate is far above that of the unfused program, so it
would be dropped, although its split-K form (``codegen.post_search_rewrites.split_k``) is the fastest candidate. The
candidates of an engine are therefore rewritten to split-K before they are dropped. The results are certified and proved
like all candidates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import islice, zip_longest
from typing import Final

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import ANY, PARTS, Change, apply_rewrite
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.stable_forms import rewrite_operators as each_rewritten
from mirage_formal.run.ranking import graph_pattern
from mirage_formal.support.errors import MirageError

#: Candidates that are tried: those with the fewest kernels, from each pattern in turns the cheapest.
_TRIED: Final = 16
#: Results that are kept, each of another pattern, because estimates of different kernels are inexact.
_KEPT: Final = 4


def split_loops_of_candidates(found: Sequence[KernelGraph], target: Target, most_us: float) -> list[KernelGraph]:
    """Return split-K variants of the candidates with the fewest kernels, each with its best estimated split.

    Sound: nothing rests on this; each is certified and proved as every candidate is.

    Args:
        found: Candidates, without thread graphs.
        target: The GPU that estimates are for.
        most_us: Estimate of the unfused program in microseconds; slower candidates are of no use.

    Returns:
        Variants that are estimated below ``most_us`` and below all of ``found``, cheapest first: at most ``_KEPT``, one
        for each pattern (``run.ranking.graph_pattern``). A pattern with one of ``found`` at or below
        ``most_us`` has none.
    """
    costs = [estimate(graph, target).us for graph in found]
    least = min((most_us, *costs))
    fewest = min((len(graph.ops) for graph in found), default=0)
    order = sorted((cost, i) for i, cost in enumerate(costs) if len(found[i].ops) == fewest)
    alike: dict[Hashable, list[KernelGraph]] = defaultdict(list)
    reported: set[Hashable] = set()
    for cost, i in order:
        pattern = graph_pattern(found[i])
        if cost <= most_us:
            reported.add(pattern)
        elif pattern not in reported:
            alike[pattern].append(found[i])
    turns = (zip(alike, turn, strict=True) for turn in zip_longest(*alike.values()))
    tried = ((pattern, graph) for turn in turns for pattern, graph in turn if graph is not None)
    best: dict[Hashable, tuple[float, KernelGraph]] = {}
    for pattern, graph in islice(tried, _TRIED):
        made = _best_split(graph, target)
        most = best[pattern][0] if pattern in best else least
        if made is not None and made[0] < most:
            best[pattern] = made
    return [graph for _, graph in sorted(best.values(), key=lambda one: one[0])[:_KEPT]]


def _best_split(graph: KernelGraph, target: Target) -> tuple[float, KernelGraph] | None:
    """Return the cheapest split of the loops of a candidate's kernels, with its estimate; None if no split applies."""
    made: list[tuple[float, KernelGraph]] = []
    for parts in PARTS:
        try:
            other = each_rewritten(
                graph, partial(apply_rewrite, change=Change(parts=parts), target=target, slack=ANY)
            ).graph
        except MirageError:
            continue
        if other != graph:
            made.append((estimate(other, target).us, other))
    return min(made, key=lambda one: one[0], default=None)


__all__ = ["split_loops_of_candidates"]
