"""Points of the product space that tuning searches, with their predicted times; computed without a device.

A point is a candidate in one of its forms, a schedule for each of its kernels, and the kernels that launch early. Its
predicted time is the sum of its kernels' times. ``autotune.successive_halving`` chooses the points to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from mirage_formal.autotune.plans import CandidatePlan, TuningPlan
from mirage_formal.codegen.post_search_rewrites.rewrite_sequences import HoistedFactors
from mirage_formal.kernel_build.built_kernels import MIXED
from mirage_formal.records import sha256

#: Ratio of two times of one kernel that other processes and GPUs exceed once in twenty times (docs/kernels.md).
NOISE: Final = 1.04


@dataclass(frozen=True, slots=True)
class ComposedCandidate:
    """A candidate whose kernels all have a time, with a schedule of each.

    Attributes:
        candidate: Position in the plan.
        variants: Position of the schedule, for each kernel.
        us: Sum of the kernels' times.
        early: Operators whose kernels trigger the dependent launch as soon as they begin.
    """

    candidate: int
    variants: tuple[int, ...]
    us: float
    early: frozenset[int] = frozenset()


def moves_factors(one: CandidatePlan) -> bool:
    """Return whether a form, or a part of a mixed form, moves factors behind its products, which rounds less."""
    return not {factors.value for factors in HoistedFactors if factors.value}.isdisjoint(
        one.form.replace(",", " ").split()
    )


#: Kinds of candidates whose best is always measured as a whole: a sum of kernel times compares them poorly.
KINDS: Final[tuple[Callable[[CandidatePlan], bool], ...]] = (
    lambda one: True,
    lambda one: one.library,
    lambda one: one.unfused,
    lambda one: not one.library,
    moves_factors,
)


def rank_candidates(plan: TuningPlan, tried: Mapping[str, float | None]) -> list[int]:
    """Return the positions of candidates in the order of their known or expected times.

    A candidate's time is the sum of its kernels' times where all are known. Otherwise it is the cost model's estimate
    times the median error of the model for candidates of the same form and number of kernels. Where there are none, the
    least of these factors is used, so that every form is tried. The model compares candidates of different numbers of
    kernels poorly, so the best of each number comes first until one of it has a time. Candidates with a kernel that may
    not run are left out.

    Args:
        plan: The plan.
        tried: Microseconds of kernels by key; None of those that may not run, or failed.
    """
    sums = {one.candidate: one.us for one in compose_candidates(plan, tried)}
    counts = [len(one.pieces) for one in plan.candidates]
    factors: dict[tuple[str, int], list[float]] = {}
    for at, us in sums.items():
        one = plan.candidates[at]
        factors.setdefault((one.form, counts[at]), []).append(us / one.us if one.us else 1.0)
    scales = {kind: median(found) for kind, found in factors.items()}
    other = min(scales.values(), default=1.0)
    expected = {
        at: sums[at] if at in sums else one.us * scales.get((one.form, counts[at]), other)
        for at, one in enumerate(plan.candidates)
    }
    order = sorted(runnable_candidates(plan, tried), key=expected.__getitem__)
    best = {counts[at]: at for at in reversed(order)}
    first = [at for at in order if best[counts[at]] == at and counts[at] not in {counts[known] for known in sums}]
    return list(dict.fromkeys([*first, *order]))


def runnable_candidates(plan: TuningPlan, tried: Mapping[str, float | None]) -> list[int]:
    """Return the positions of candidates each of whose kernels has a schedule that may run, in the plan's order."""
    runs = [any(tried.get(one.key, 0.0) is not None for one in piece.variants) for piece in plan.pieces]
    return [at for at, one in enumerate(plan.candidates) if all(runs[piece] for piece in one.pieces)]


def compose_candidates(plan: TuningPlan, times: Mapping[str, float | None]) -> list[ComposedCandidate]:
    """Return the candidates whose kernels all have a time, each with its fastest schedules, fastest first.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key; None of those that may not run, or failed.
    """
    fastest = [min(timed_schedules(plan, piece, times), default=None) for piece in range(len(plan.pieces))]
    found = []
    for number, candidate in enumerate(plan.candidates):
        known = [one for piece in candidate.pieces if (one := fastest[piece]) is not None]
        if len(known) == len(candidate.pieces):
            found.append(ComposedCandidate(number, tuple(at for _, at in known), sum(us for us, _ in known)))
    return sorted(found, key=lambda one: (one.us, one.candidate))


def timed_schedules(plan: TuningPlan, piece: int, times: Mapping[str, float | None]) -> list[tuple[float, int]]:
    """Return the time and position of each schedule of a piece that has a time."""
    known = ((times.get(one.key), at) for at, one in enumerate(plan.pieces[piece].variants))
    return [(us, at) for us, at in known if us is not None]


def combine_forms(plan: TuningPlan, times: Mapping[str, float]) -> list[CandidatePlan]:
    """Return mixed forms: for each operator of a candidate, the fastest kernel among all forms.

    Only mixed forms that are expected to be faster than each form by itself are returned. Correctness does not depend
    on this: a mixed form is proved equal to its candidate like any other (``kernel_build.candidate_forms.mixed_form``).

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
    """
    timed = [min((times[one.key] for one in piece.variants if one.key in times), default=None) for piece in plan.pieces]
    forms: dict[str, list[CandidatePlan]] = {}
    for candidate in plan.candidates:
        if candidate.sources:
            forms.setdefault(candidate.name, []).append(candidate)
    made = []
    for every in forms.values():
        own = next((one for one in every if not one.form), None)
        if own is None or len(every) < 2 or len({frozenset(one.sources) for one in every}) > 1:
            continue
        chosen = {
            number: min(every, key=lambda one: _time_of_operator(one, number, timed))
            for number in sorted({*own.sources})
        }
        us = sum(_time_of_operator(one, number, timed) for number, one in chosen.items())
        whole = min(sum(_time_of_operator(one, number, timed) for number in chosen) for one in every)
        if len({one.form for one in chosen.values()}) > 1 and NOISE * us < whole:
            made.append(_mixed_form(own, chosen))
    return made


def _time_of_operator(form: CandidatePlan, number: int, timed: Sequence[float | None]) -> float:
    """Return the summed time of a form's kernels that come from one operator; infinite if one has no time."""
    own = (piece for piece, at in zip(form.pieces, form.operators, strict=True) if form.sources[at] == number)
    known = [timed[piece] for piece in own]
    return sum(us for us in known if us is not None) if None not in known else float("inf")


def _mixed_form(own: CandidatePlan, chosen: Mapping[int, CandidatePlan]) -> CandidatePlan:
    """Return the mixed form that takes each operator from the chosen form."""
    pieces: list[int] = []
    operators: list[int] = []
    sources: list[int] = []
    for number, form in chosen.items():
        first, count = form.sources.index(number), form.sources.count(number)
        for piece, at in zip(form.pieces, form.operators, strict=True):
            if form.sources[at] == number:
                pieces.append(piece)
                operators.append(len(sources) + at - first)
        sources += [number] * count
    name = MIXED + ", ".join(f"{number} {form.form}" for number, form in chosen.items() if form.form)
    return CandidatePlan(own.name, name, own.us, tuple(pieces), tuple(operators), sources=tuple(sources))


def whole_key(plan: TuningPlan, one: ComposedCandidate) -> str:
    """Return the cache key of a whole candidate's time: its µGraph, form, kernels and early launches."""
    candidate = plan.candidates[one.candidate]
    kernels = [plan.key(at) for at in zip(candidate.pieces, one.variants, strict=True)]
    parts = ["whole", candidate.name.split("-")[-1], candidate.form, *kernels, *map(str, sorted(one.early))]
    return sha256("\n".join(parts).encode())


__all__ = [
    "KINDS",
    "NOISE",
    "ComposedCandidate",
    "combine_forms",
    "compose_candidates",
    "moves_factors",
    "rank_candidates",
    "runnable_candidates",
    "timed_schedules",
    "whole_key",
]
