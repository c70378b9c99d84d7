"""Ranking of candidates, and selection of the candidates to report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.records import CLOSE, FoundRecord, UnitRecord, report_order

#: Largest ratio of a candidate's estimate to the best one's for the candidate to be reported.
_FACTOR: Final = 10.0
#: Number of different kernels among which the one with the smallest rounding error is reported first.
_LEADERS: Final = 3


def uses_library_products_only(graph: KernelGraph) -> bool:
    """Return whether a µGraph leaves every matrix product to a library kernel: no fused kernel computes one."""
    return not any(
        isinstance(inner, Op) and inner.kind is OpKind.MATMUL
        for op in graph.ops
        if isinstance(op, GraphDefined)
        for inner in op.graph.ops
    )


def is_unfused(graph: KernelGraph) -> bool:
    """Return whether a µGraph is unfused: every kernel is that of one predefined operator."""
    return not any(isinstance(op, GraphDefined) for op in graph.ops)


def graph_pattern(graph: KernelGraph) -> Hashable:
    """Return the pattern of a µGraph: operands and operators of its kernels, without grids, maps and loop ranges."""
    kernels: list[Hashable] = []
    for op in graph.ops:
        if isinstance(op, GraphDefined):
            kernels.append((op.operands, op.graph.ops, op.graph.forloop_range > 1))
        else:
            kernels.append(op)
    return tuple(kernels)


def rank(records: Iterable[UnitRecord]) -> list[FoundRecord]:
    """Return every distinct candidate, cheapest first; ties are broken by digest."""
    distinct: dict[str, FoundRecord] = {}
    for record in sorted(records, key=lambda r: r.unit):
        for found in record.candidates:
            distinct.setdefault(found.digest, found)
    return sorted(distinct.values(), key=lambda f: (f.estimated_us, f.digest))


def highest_reported_estimate(ranked: Sequence[FoundRecord], unfused_us: float) -> float:
    """Return the estimate in microseconds above which a candidate is not reported.

    It is the smaller of the unfused program's estimate and ``_FACTOR`` times the best candidate's.

    Args:
        ranked: Candidates in the order of rank.
        unfused_us: Estimated microseconds of the program's own operators, a kernel for each.
    """
    return min(unfused_us, _FACTOR * ranked[0].estimated_us) if ranked else unfused_us


def select_candidates(
    ranked: Sequence[FoundRecord],
    keep: int,
    pattern: Callable[[FoundRecord], Hashable] | None = None,
    kernels: Callable[[FoundRecord], Iterable[Hashable]] | None = None,
    near: Callable[[FoundRecord], Hashable] | None = None,
    kinds: Sequence[Callable[[FoundRecord], bool]] = (),
) -> list[FoundRecord]:
    """Return the ``keep`` best candidates and the best one of each number of kernels, in rank order.

    ``kinds`` reserves up to a quarter of the places for the best candidate of each kind, where it is not selected
    already. With ``near``, candidates with an equal key rank behind all others, except the first of them.

    With ``pattern``, candidates of one pattern get at most a quarter of the places while there are others, so that the
    list shows different kernels rather than one kernel on different grids. With ``kernels``, candidates that share a
    kernel get at most an eighth, so that different grids and loops are measured.
    """
    places, shares = max(1, keep // 4), max(1, keep // 8)
    taken: Counter[Hashable] = Counter()
    shared: Counter[Hashable] = Counter()
    alike: set[str] = set()
    firsts: set[Hashable] = set()
    first: list[str] = []
    for found in ranked:
        if len(first) == keep:
            break  # the remaining ones, possibly thousands, are not needed
        if near is not None and (shown := near(found)) in firsts:
            alike.add(found.digest)
            continue
        if near is not None:
            firsts.add(shown)
        key = found.digest if pattern is None else pattern(found)
        parts = set() if kernels is None else set(kernels(found))
        if (taken[key] < places or pattern is None) and all(shared[part] < shares for part in parts):
            taken[key] += 1
            shared.update(parts)
            first.append(found.digest)
    listed = set(first)
    rest = [found.digest for found in ranked if found.digest not in listed]
    rest.sort(key=alike.__contains__)
    own = [*first, *rest][:keep]
    fewest: dict[int, str] = {}
    for found in ranked:
        fewest.setdefault(found.kernels, found.digest)
    wanted = [one.digest for kind in kinds if (one := next(filter(kind, ranked), None)) is not None]
    missing = [name for name in dict.fromkeys(wanted) if name not in own and name not in fewest.values()][: keep // 4]
    best = {*own[: keep - len(missing)], *fewest.values(), *missing}
    return [found for found in ranked if found.digest in best]


def rounding_candidates(ranked: Sequence[FoundRecord], pattern: Callable[[FoundRecord], Hashable]) -> list[FoundRecord]:
    """Return the candidates that ``order_by_rounding_error`` looks at if those it looks at are within tolerance."""
    close = [one for one in ranked if one.estimated_us <= CLOSE * ranked[0].estimated_us]
    return list({pattern(one): one for one in reversed(close)}.values())[::-1][:_LEADERS]


def order_by_rounding_error(
    ranked: Sequence[FoundRecord],
    look: Callable[[FoundRecord], PredictedNumerics | None],
    pattern: Callable[[FoundRecord], Hashable],
) -> tuple[list[FoundRecord], dict[str, PredictedNumerics]]:
    """Return candidates in report order, and the rounding-error estimates of some of them by digest.

    Estimates are computed in rank order until a candidate is within tolerance at every scale, and then for those behind
    it with a similar time estimate and other kernels. Candidates outside tolerance come last. Among candidates with
    similar times, the one with the smallest rounding error comes first.

    Args:
        ranked: Candidates in the order of rank.
        look: Estimator of rounding errors, as ``run.verify.candidate_numerics.predict_rounding_error``.
        pattern: Key that is equal for candidates that round alike; one of them is estimated.
    """
    known: dict[str, PredictedNumerics] = {}
    alike: dict[Hashable, PredictedNumerics | None] = {}
    lead: FoundRecord | None = None
    seen: set[Hashable] = set()
    for one in ranked:
        key = pattern(one)
        if lead is not None and (one.estimated_us > CLOSE * lead.estimated_us or len(seen) == _LEADERS):
            break
        if key in seen:
            continue
        if key not in alike:
            alike[key] = look(one)
        found = alike[key]
        if found is not None:
            known[one.digest] = found
        if found is None or not found.outside:
            lead = lead or one
            seen.add(key)
    places = {
        one.digest: (one.estimated_us, known[one.digest].outside, known[one.digest].rounding)
        if one.digest in known
        else (one.estimated_us, (), None)
        for one in ranked
    }
    by_digest = {one.digest: one for one in ranked}
    return [by_digest[digest] for digest in report_order(places)], known
