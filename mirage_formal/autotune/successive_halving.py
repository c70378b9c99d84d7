"""Successive halving over the points of ``tuning_space``: which kernels, then which whole candidates are measured.

The first rung tries one schedule of as many kernels as it can, in the cost model's order. The next ones spend as many
trials by the times so far: of half as many kernels they try twice as many schedules. The last ones measure whole
candidates. Times decide which points a rung keeps, and never whether one may run.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from mirage_formal.autotune.plans import At, CandidatePlan, TuningPlan
from mirage_formal.autotune.tuning_space import (
    KINDS,
    NOISE,
    ComposedCandidate,
    compose_candidates,
    moves_factors,
    rank_candidates,
    runnable_candidates,
    timed_schedules,
    whole_key,
)
from mirage_formal.records import ScheduleRecord

#: Rungs of kernels, with equally many trials (docs/kernels.md).
RUNGS: Final = 3
#: Largest ratio to the least sum of kernel times at which a whole may be the fastest (docs/kernels.md).
SLACK: Final = 1.05


def kernel_rungs(
    plan: TuningPlan, kernels: int, tried: Mapping[str, float | None], rungs: int = RUNGS
) -> Iterator[list[At]]:
    """Yield the kernels of each rung with those of all earlier ones, as positions of piece and schedule.

    Tried kernels count among ``kernels``. Kernels without which no candidate of some kind can be composed are tried in
    any case, and do not count unless the best candidate by estimate has them. Further rungs replace such kernels where
    some are refused or fail.

    Args:
        plan: The plan.
        kernels: Number of kernels asked for.
        tried: Microseconds of kernels by key, to which every rung adds; None of those that may not run, or failed.
        rungs: Number of rungs.
    """
    asked = {plan.key(at): at for at in reversed(plan.kernels()) if plan.key(at) in tried}
    known = -1
    for rung in itertools.count():
        kinds = [{plan.key(at): at for at in one} for one in _kernels_of_kinds(plan, tried)]
        needed = {key: at for kind in kinds for key, at in kind.items()}
        if rung >= rungs and (len(tried) == known or needed.keys() <= asked.keys()):
            return
        asked = {**asked, **{key: at for key, at in needed.items() if key not in asked}}
        most = kernels * min(rung + 1, rungs) // rungs + len(needed) - sum(map(len, kinds[:1]))
        for at in _untried_kernels(plan, tried, rung):
            if len(asked) >= most:
                break
            asked.setdefault(plan.key(at), at)
        known = len(tried)
        yield list(asked.values())


def _kernels_of_kinds(plan: TuningPlan, tried: Mapping[str, float | None]) -> Iterator[list[At]]:
    """Yield the kernels of the cost model's best candidate of each kind that may run, the best of all first.

    Each has a schedule with a time if there is one.
    """
    runnable = [plan.candidates[at] for at in runnable_candidates(plan, tried)]
    for kind in KINDS:
        for one in itertools.islice(filter(kind, runnable), 1):
            found = []
            for piece in one.pieces:
                keys = [variant.key for variant in plan.pieces[piece].variants]
                may = [at for at, key in enumerate(keys) if tried.get(key, 0.0) is not None]
                found.append((piece, min(may, key=lambda at: keys[at] not in tried)))
            yield found


def _untried_kernels(plan: TuningPlan, tried: Mapping[str, float | None], rung: int) -> list[At]:
    """Return the untried kernels in the order in which a rung tries them.

    The first rung tries one schedule of each kernel, then another, and so on. In later rungs, of half as many kernels
    twice as many schedules are tried: the place of a schedule counts times the rank of its kernel, which is that of the
    best candidate with it. The fastest candidates and the fastest that move factors take turns.
    """
    order = rank_candidates(plan, tried)
    if rung:
        exact = [at for at in order if moves_factors(plan.candidates[at])]
        order = [at for pair in itertools.zip_longest(order, exact) for at in pair if at is not None]
    ranked = [
        (place * rank if rung else place, place, rank, (piece, at))
        for rank, piece in enumerate(dict.fromkeys(p for one in order for p in plan.candidates[one].pieces), 1)
        for place, at in enumerate(_order_schedules(plan, piece, tried), 1)
        if plan.key((piece, at)) not in tried
    ]
    return [at for *_, at in sorted(ranked)]


def _order_schedules(plan: TuningPlan, piece: int, tried: Mapping[str, float | None]) -> list[int]:
    """Return the schedules of a kernel: tried ones, then neighbours of the fastest, then others.

    Neighbours have the same pipeline, or the same distribution of work. Each group is in the cost model's order.
    """
    variants = plan.pieces[piece].variants
    fastest = min(timed_schedules(plan, piece, tried), default=None)
    own = set() if fastest is None else _schedule_choices(variants[fastest[1]].schedule)
    groups = [(one.key not in tried, own.isdisjoint(_schedule_choices(one.schedule))) for one in variants]
    return sorted(range(len(variants)), key=groups.__getitem__)


def _schedule_choices(one: ScheduleRecord | None) -> set[tuple[object, ...]]:
    """Return the pipeline and the distribution of work of a schedule."""
    if one is None:
        return set()
    return {(one.stages, one.cut), (one.threads, one.warps, one.registers, one.resident, one.tile)}


def kernels_to_remeasure(plan: TuningPlan, times: Mapping[str, float]) -> list[At]:
    """Return the kernels whose short times do not decide: schedules as fast as the fastest of a kernel but for noise.

    They are the kernels of the candidates that may be the fastest as wholes.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
    """
    found = compose_candidates(plan, times)
    near = (one.candidate for one in found if one.us <= SLACK * found[0].us)
    wanted: list[At] = []
    for piece in dict.fromkeys(piece for one in near for piece in plan.candidates[one].pieces):
        known = timed_schedules(plan, piece, times)
        wanted += [(piece, at) for us, at in known if us <= NOISE * min(known)[0]]
    return wanted


def finalist_batches(
    plan: TuningPlan,
    found: Sequence[ComposedCandidate],
    size: int,
    *,
    fewer: bool = False,
    measured: Container[str] | None = None,
) -> Iterator[list[ComposedCandidate]]:
    """Yield the best forms of candidates, fastest first, in batches of ``size`` candidates.

    Each candidate appears once. The first batch also has the first form of each kind that it lacks, of a further
    candidate if there is one.

    Args:
        plan: The plan.
        found: Candidates whose kernels were timed, fastest first.
        size: Candidates in a batch.
        fewer: Whether the first batch also has the best candidate with fewer kernels than all others of the batch.
        measured: Keys of whole candidates with known times, where nothing can be measured: these come first.
    """
    if measured is not None:
        found = sorted(found, key=lambda one: whole_key(plan, one) not in measured)
    forms: dict[str, ComposedCandidate] = {}
    for one in found:
        forms.setdefault(plan.candidates[one.candidate].name, one)
    first, rest = list(forms.values())[:size], list(forms.values())[size:]

    def has_fewer(one: CandidatePlan) -> bool:
        return fewer and len(one.pieces) < min(len(other.variants) for other in first)

    for kind in (*KINDS, has_fewer):
        more = [one for one in found if kind(plan.candidates[one.candidate])]
        if not any(one in first for one in more):
            names = {plan.candidates[one.candidate].name for one in first}
            first += sorted(more, key=lambda one: plan.candidates[one.candidate].name in names)[:1]
    if first:
        yield first
    rest = [one for one in rest if one not in first]
    for start in range(0, len(rest), size):
        yield rest[start : start + size]


def other_schedules(plan: TuningPlan, times: Mapping[str, float], one: ComposedCandidate) -> list[tuple[int, int]]:
    """Return schedules of a candidate's kernels that may be faster beside its other kernels, though not alone.

    They have other numbers of threads, or fewer bytes of tiles in flight, which leaves room for the next launch: of
    each such kind the fastest one, if the sum of kernel times allows that. The number of threads changes how a waiting
    kernel disturbs a running one. Each entry is a position among the candidate's kernels and a position of a schedule;
    the least sum comes first.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
        one: The candidate.
    """
    found: list[tuple[float, int, int]] = []
    for place, (piece, chosen) in enumerate(zip(plan.candidates[one.candidate].pieces, one.variants, strict=True)):
        variants = plan.pieces[piece].variants
        own, alone = variants[chosen].schedule, times[variants[chosen].key]
        kinds: set[tuple[int, bool]] = set()
        for us, at in sorted(timed_schedules(plan, piece, times)):
            other = variants[at].schedule
            if own is None or other is None or one.us - alone + us > SLACK * one.us:
                continue
            kind = other.threads, other.stages * own.cut < own.stages * other.cut
            if kind != (own.threads, False) and kind not in kinds:
                kinds.add(kind)
                found.append((us - alone, place, at))
    return [(place, at) for _, place, at in sorted(found)]


__all__ = ["RUNGS", "SLACK", "finalist_batches", "kernel_rungs", "kernels_to_remeasure", "other_schedules"]
