"""The order of candidates, and which of them are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from mirage_formal.claims.numerics.values import Foreseen
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.records import CLOSE, FoundRecord, UnitRecord, reported

#: A candidate that is estimated at more than so many times the best is no alternative to it.
_FACTOR: Final = 10.0
#: Different kernels of which the one that rounds least is reported first.
_LEADERS: Final = 3


def library_products(graph: KernelGraph) -> bool:
    """Return whether a µGraph leaves every matrix product to a library: no generated kernel computes one."""
    return not any(
        isinstance(inner, Op) and inner.kind is OpKind.MATMUL
        for op in graph.ops
        if isinstance(op, GraphDefined)
        for inner in op.graph.ops
    )


def one_by_one(graph: KernelGraph) -> bool:
    """Return whether every kernel of a µGraph is that of one predefined operator."""
    return not any(isinstance(op, GraphDefined) for op in graph.ops)


def operators(graph: KernelGraph) -> Hashable:
    """Return the pattern of a µGraph: what its kernels read and do, apart from grids, maps and loop ranges."""
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


def most_us(ranked: Sequence[FoundRecord], unfused_us: float) -> float:
    """The highest estimate of a candidate worth reporting: the operators one by one, and a factor of the best.

    Args:
        ranked: Candidates in the order of rank.
        unfused_us: Estimated microseconds of the program's own operators, a kernel for each.
    """
    return min(unfused_us, _FACTOR * ranked[0].estimated_us) if ranked else unfused_us


def select(
    ranked: Sequence[FoundRecord],
    keep: int,
    pattern: Callable[[FoundRecord], Hashable] | None = None,
    kernels: Callable[[FoundRecord], Iterable[Hashable]] | None = None,
    near: Callable[[FoundRecord], Hashable] | None = None,
    kinds: Sequence[Callable[[FoundRecord], bool]] = (),
) -> list[FoundRecord]:
    """The ``keep`` best candidates, and the best of every number of kernels, in the order of rank.

    Up to a quarter of the places are for the best of each of the ``kinds``, where it is not among the others.
    With ``near``, of candidates for which it is equal all but the first of their rank come behind all others.

    With ``pattern``, at most a quarter of the places go to candidates of one pattern as long as there are others, so
    that the list shows different kernels and not one kernel on different grids. With ``kernels``, likewise at most an
    eighth to candidates that have one kernel in common, so that there are different grids and loops to be measured.
    """
    places, shares = max(1, keep // 4), max(1, keep // 8)
    taken: Counter[Hashable] = Counter()
    shared: Counter[Hashable] = Counter()
    alike: set[str] = set()
    firsts: set[Hashable] = set()
    first: list[str] = []
    for found in ranked:
        if len(first) == keep:
            break  # there may be thousands behind, of which nothing need be known
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


def by_numerics(
    ranked: Sequence[FoundRecord],
    look: Callable[[FoundRecord], Foreseen | None],
    pattern: Callable[[FoundRecord], Hashable],
) -> tuple[list[FoundRecord], dict[str, Foreseen]]:
    """Candidates in the order in which they are reported, and what was foreseen of some, by digest.

    Candidates are looked at until one is not outside at any scale, and those behind it that are estimated about alike
    and have other kernels. Those that are outside come last; of those alike, the one that rounds least comes first.

    Args:
        ranked: Candidates in the order of rank.
        look: See ``run.tasks.foresee_candidate``.
        pattern: Equal for candidates that round alike, of which one is looked at.
    """
    known: dict[str, Foreseen] = {}
    alike: dict[Hashable, Foreseen | None] = {}
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
    return [by_digest[digest] for digest in reported(places)], known
