"""Hill climbing over schedules, from the fastest kernels of a run's fastest candidates.

The cost model orders schedules before any kernel runs. With times, one property of the fastest schedule is changed at a
time, its pipeline or its warps, until no neighbour is faster. This affects only which kernels are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Final

from mirage_formal.autotune.choose import ComposedCandidate, compose_candidates, moves_factors
from mirage_formal.autotune.plans import At, CandidatePlan, TuningPlan
from mirage_formal.records import ScheduleRecord

#: Kernels in one step, after which times are compared: some for each of several processors.
STEP: Final = 16
#: Share of its candidate's time below which a kernel's schedules are not searched.
_SHARE: Final = 0.1
#: Largest slowdown of candidates whose kernels are searched.
_BEHIND: Final = 1.25
#: Kinds of candidates whose kernels are searched in turns; all are measured as wholes in any case.
_KINDS: Final[tuple[Callable[[CandidatePlan], bool], ...]] = (
    lambda one: True,
    lambda one: not one.library,
    moves_factors,
)


def neighbouring_schedules(plan: TuningPlan, tried: Mapping[str, float | None], most: int = STEP) -> list[At]:
    """Return untried neighbours of the fastest schedules, as positions of piece and schedule.

    Three kinds of candidates take turns: the fastest, the fastest with generated products, and the fastest that move
    factors behind their products. Schedules of one kernel come in the order of the cost model. A kernel counts if it
    takes at least a tenth of its candidate's time. Without times there are none.

    Args:
        plan: The plan.
        tried: Microseconds of kernels by key; None of those that may not run, or failed.
        most: Most schedules to return.
    """
    fastest = compose_candidates(plan, {key: us for key, us in tried.items() if us is not None})
    near = [one for one in fastest if one.us <= _BEHIND * fastest[0].us]
    turns = zip_longest(*(_neighbours_of_kind(plan, near, tried, kind) for kind in _KINDS)) if most else ()
    found: dict[At, None] = {}
    for at in chain.from_iterable(turns):
        if at is not None:
            found[at] = None
        if len(found) == most:
            break
    return list(found)


def _neighbours_of_kind(
    plan: TuningPlan,
    near: Iterable[ComposedCandidate],
    tried: Mapping[str, float | None],
    kind: Callable[[CandidatePlan], bool],
) -> Iterator[At]:
    """Yield untried neighbours of the schedules of candidates of one kind."""
    for one in near:
        candidate = plan.candidates[one.candidate]
        for piece, variant in zip(candidate.pieces, one.variants, strict=True):
            if kind(candidate) and (tried[plan.key((piece, variant))] or 0.0) >= _SHARE * one.us:
                yield from _neighbours_of_kernel(plan, piece, variant, tried)


def _neighbours_of_kernel(
    plan: TuningPlan, piece: int, variant: int, tried: Mapping[str, float | None]
) -> Iterator[At]:
    """Yield the untried schedules of a kernel that differ from one of them in one property."""
    variants = plan.pieces[piece].variants
    own = variants[variant].schedule
    for at, other in enumerate(variants):
        if (
            own is not None
            and other.schedule is not None
            and other.key not in tried
            and _are_neighbours(own, other.schedule)
        ):
            yield piece, at


def _are_neighbours(one: ScheduleRecord, other: ScheduleRecord) -> bool:
    """Return whether schedules have the same pipeline, or the same warps with the same work."""
    pipeline = (one.stages, one.cut) == (other.stages, other.cut)
    return one.tile == other.tile and (pipeline or _work_distribution(one) == _work_distribution(other))


def _work_distribution(one: ScheduleRecord) -> tuple[object, ...]:
    return one.threads, one.warps, one.registers, one.resident


__all__ = ["STEP", "neighbouring_schedules"]
