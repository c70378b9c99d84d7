"""Choice of the kernels that are built, timed and combined; computed from plans and times, without a device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Final

from mirage_formal.autotune.plans import At, CandidatePlan, TuningPlan
from mirage_formal.codegen.post_search_rewrites.rewrite import HoistedFactors
from mirage_formal.kernel_build.values import MIXED
from mirage_formal.records import ScheduleRecord, sha256

#: Penalty of one place in the order of schedules, added to the ratio of two estimates.
_PLACE: Final = 0.06
#: Largest slowdown at which the best candidate of another number of kernels counts as equal to the best.
_BEHIND: Final = 1.5
#: Smallest estimate in microseconds.
_LEAST: Final = 1e-3
#: Largest ratio to the best form's time at which a mixed form is expected to pay.
_GAIN: Final = 0.99
#: Largest slowdown at which the best form with factors behind its products is measured as a whole.
_FACTORS: Final = 1.1
#: Most finalists with a common longest kernel, and largest slowdown at which others are preferred to more of them.
_ALIKE: Final = 2
_FAR: Final = 1.25
#: Largest slowdown alone of a schedule with other threads that is tried next to the candidate's other kernels.
_BESIDE: Final = 1.1
#: Most such schedules.
_MOST_BESIDE: Final = 8
#: Largest slowdown alone of a schedule that leaves room for the neighbouring launches.
_LIGHTER: Final = 1.15
_NONE: Final[Mapping[str, float | None]] = MappingProxyType({})
#: Kinds of candidates whose best is always measured as a whole, whatever the estimates of others.
_KINDS: Final[tuple[Callable[[CandidatePlan], bool], ...]] = (
    lambda one: True,
    lambda one: one.library,
    lambda one: one.unfused,
    lambda one: not one.library,
)


@dataclass(frozen=True, slots=True)
class ComposedCandidate:
    """A candidate whose kernels all have a time, with the fastest schedule of each.

    Attributes:
        candidate: Position in the plan.
        variants: Position of the schedule, for each kernel.
        us: Sum of the kernels' times.
        early: Operators whose kernels trigger the dependent launch as soon as they begin.
        longest: Piece and schedule of the slowest kernel; None where it is not needed.
    """

    candidate: int
    variants: tuple[int, ...]
    us: float
    early: frozenset[int] = frozenset()
    longest: At | None = field(default=None, compare=False)


def order_kernels(plan: TuningPlan, most: int, tried: Mapping[str, float | None] = _NONE) -> list[At]:
    """Return about ``most`` kernels in the order in which to try them, as positions of piece and schedule.

    Tried kernels come first and count among them. Then come the kernels of the best candidate, of which there may be
    more than ``most``. The kernels that other whole candidates need come last and do not count, see ``needed_kernels``.

    The priority of another kernel is that of the best candidate that contains it: the ratio of the candidate's time to
    the least time among candidates with as many kernels, then the place of the schedule. The cost model compares
    candidates of different numbers of kernels less well, so the best of each number count as equal, unless they are
    slower by more than half.

    A candidate's time is the sum of its kernels' times where all are known. Otherwise it is the cost model's estimate
    times the median error of the model for candidates of the same form and number of kernels. Where there are none, the
    least of these factors is used, so that every form is tried. Without times, the first schedules of the best
    candidates' kernels come first, so that a whole candidate can be composed. With times, further schedules of the
    fastest candidates come first.

    Args:
        plan: The plan.
        most: Number of kernels, tried ones included.
        tried: Microseconds of kernels by key; None of those that may not run, or failed.
    """
    if not plan.candidates:
        return []
    expected = _expected_times(plan, {key: us for key, us in tried.items() if us is not None})
    best: dict[int, float] = {}
    for one, us in zip(plan.candidates, expected, strict=True):
        best[len(one.pieces)] = min(best.get(len(one.pieces), us), us)
    least = min(best.values())
    best = {count: (us if us <= _BEHIND * least else least) or 1.0 for count, us in best.items()}
    ratios: dict[int, float] = {}
    for one, us in zip(plan.candidates, expected, strict=True):
        for piece in one.pieces:
            ratios[piece] = min(ratios.get(piece, float("inf")), us / best[len(one.pieces)])
    keyed = [
        (one.key not in tried, ratio + _PLACE * variant, piece, variant)
        for piece, ratio in ratios.items()
        for variant, one in enumerate(plan.pieces[piece].variants)
    ]
    ordered = [(piece, variant) for _, _, piece, variant in sorted(keyed)]
    whole, *plains = (_kernels_of_best_candidate(plan, kind, tried) for kind in _KINDS)
    beside = [at for at in dict.fromkeys(at for own in plains for at in own) if at not in whole]
    done = [at for at in ordered if plan.key(at) in tried and at not in beside][:most]
    first = [*done, *(at for at in whole if at not in done)]
    rest = [at for at in ordered if at not in {*first, *beside}]
    return [*first, *rest[: max(0, most - len(first))], *beside]


def _expected_times(plan: TuningPlan, times: Mapping[str, float]) -> list[float]:
    """Return the known or expected time of each candidate, see ``order_kernels``."""
    sums = {one.candidate: one.us for one in compose_candidates(plan, times)}
    factors: dict[tuple[str, int], list[float]] = {}
    for at, us in sums.items():
        factors.setdefault(_kind(plan.candidates[at]), []).append(us / max(plan.candidates[at].us, _LEAST))
    scales = {kind: median(found) for kind, found in factors.items()}
    other = min(scales.values(), default=1.0)
    return [sums.get(at, one.us * scales.get(_kind(one), other)) for at, one in enumerate(plan.candidates)]


def _kind(one: CandidatePlan) -> tuple[str, int]:
    return one.form, len(one.pieces)


def needed_kernels(plan: TuningPlan, tried: Mapping[str, float | None] = _NONE) -> list[At]:
    """Return untried kernels without which no whole candidate, or none of some kind, can be composed.

    The kinds are: the best candidate of the cost model; the best with library products alone; the best with generated
    products; the unfused program. Estimates of generated products are inaccurate, so measured times decide between
    these kinds. A candidate with a kernel that may not run is replaced by the next of its kind.

    Args:
        plan: The plan.
        tried: Microseconds of kernels by key, as in ``order_kernels``.
    """
    found = dict.fromkeys(at for kind in _KINDS for at in _kernels_of_best_candidate(plan, kind, tried))
    return [at for at in found if plan.key(at) not in tried]


def _kernels_of_best_candidate(
    plan: TuningPlan, kind: Callable[[CandidatePlan], bool], tried: Mapping[str, float | None]
) -> dict[At, None]:
    """Return a schedule for each kernel of the best runnable candidate of a kind, preferring schedules with a time."""
    for one in filter(kind, plan.candidates):
        chosen: list[At] = []
        for piece in dict.fromkeys(one.pieces):
            keys = [variant.key for variant in plan.pieces[piece].variants]
            order = sorted(range(len(keys)), key=lambda at: tried.get(keys[at]) is None)
            chosen += [(piece, at) for at in order if keys[at] not in tried or tried[keys[at]] is not None][:1]
        if len(chosen) == len(set(one.pieces)):
            return dict.fromkeys(chosen)
    return {}


def compose_candidates(plan: TuningPlan, times: Mapping[str, float]) -> list[ComposedCandidate]:
    """Return the candidates whose kernels all have a time, fastest first.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
    """
    best: list[tuple[float, int] | None] = []
    for piece in plan.pieces:
        timed = [(times[one.key], at) for at, one in enumerate(piece.variants) if one.key in times]
        best.append(min(timed, default=None))
    found = []
    for number, candidate in enumerate(plan.candidates):
        chosen = [best[piece] for piece in candidate.pieces]
        known = [one for one in chosen if one is not None]
        if len(known) == len(chosen):
            kernels = [(us, (piece, at)) for (us, at), piece in zip(known, candidate.pieces, strict=True)]
            _, longest = max(kernels, default=(0.0, None))
            found.append(
                ComposedCandidate(number, tuple(at for _, at in known), sum(us for us, _ in known), longest=longest)
            )
    return sorted(found, key=lambda one: (one.us, one.candidate))


def lighter_schedules(plan: TuningPlan, times: Mapping[str, float], one: ComposedCandidate) -> dict[int, int]:
    """Return schedules of a candidate's kernels that leave room on a multiprocessor for another launch.

    The keys are positions among the candidate's kernels. The schedule is the fastest one with fewer bytes of tiles in
    flight than the chosen one and no more threads, if it is little slower alone. Kernels without such a schedule are
    left out.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
        one: The candidate.
    """
    found: dict[int, int] = {}
    for place, own, alone, others in _schedules(plan, times, one):
        less = [
            (us, at)
            for us, at, given in others
            if given.stages * own.cut < own.stages * given.cut and given.threads <= own.threads
        ]
        us, at = min(less, default=(float("inf"), -1))
        if not own.tile and us <= _LIGHTER * alone:
            found[place] = at
    return found


def schedules_with_other_threads(
    plan: TuningPlan, times: Mapping[str, float], one: ComposedCandidate
) -> list[tuple[int, int]]:
    """Return schedules of a candidate's kernels that may be faster next to its other kernels, though not alone.

    For each kernel and each other number of threads, this is the fastest schedule, if it is little slower alone. The
    number of threads changes how a waiting kernel disturbs a running one. Each entry is a position among the
    candidate's kernels and a position of a schedule. The least slowdown comes first; there are at most
    ``_MOST_BESIDE``.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
        one: The candidate.
    """
    found: list[tuple[float, int, int]] = []
    for place, own, alone, others in _schedules(plan, times, one):
        least: dict[int, tuple[float, int, int]] = {}
        for loss, at, threads in sorted((us / alone, at, given.threads) for us, at, given in others):
            if threads != own.threads and loss <= _BESIDE:
                least.setdefault(threads, (loss, place, at))
        found += least.values()
    return [(place, at) for _, place, at in sorted(found)[:_MOST_BESIDE]]


def _schedules(
    plan: TuningPlan, times: Mapping[str, float], one: ComposedCandidate
) -> Iterator[tuple[int, ScheduleRecord, float, list[tuple[float, int, ScheduleRecord]]]]:
    """Yield, for each kernel of a candidate that has a schedule, the timed alternatives.

    Each item is the kernel's place, its schedule, its time alone, and the time, position and schedule of every timed
    alternative.
    """
    for place, (piece, chosen) in enumerate(zip(plan.candidates[one.candidate].pieces, one.variants, strict=True)):
        variants = plan.pieces[piece].variants
        if (own := variants[chosen].schedule) is not None:
            known = ((times[item.key], at, item.schedule) for at, item in enumerate(variants) if item.key in times)
            others = [(us, at, given) for us, at, given in known if given is not None]
            yield place, own, times[variants[chosen].key], others


def combine_forms(plan: TuningPlan, times: Mapping[str, float]) -> list[CandidatePlan]:
    """Return mixed forms: for each operator of a candidate, the fastest kernel among all forms.

    Only mixed forms that are expected to be faster than each form by itself are returned. Correctness does not depend
    on this: a mixed form is proved equal to its candidate like any other (``kernel_build.forms.mixed_form``).

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
        if len({one.form for one in chosen.values()}) > 1 and us < _GAIN * whole:
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


def kernels_to_time_again(plan: TuningPlan, times: Mapping[str, float], candidates: int, within: float) -> list[At]:
    """Return the kernels to time again: of the best candidates, the schedules close to the fastest of each piece.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
        candidates: Number of best candidates.
        within: Largest ratio to the time of the piece's fastest schedule.
    """
    wanted: dict[At, None] = {}
    for one in compose_candidates(plan, times)[:candidates]:
        for piece in plan.candidates[one.candidate].pieces:
            variants = plan.pieces[piece].variants
            known = {at: times[v.key] for at, v in enumerate(variants) if v.key in times}
            least = min(known.values())
            wanted |= {(piece, at): None for at, us in known.items() if us <= within * least}
    return list(wanted)


def batches(
    plan: TuningPlan,
    found: Sequence[ComposedCandidate],
    size: int,
    *,
    fewer: bool = False,
    measured: Container[str] | None = None,
) -> Iterator[list[ComposedCandidate]]:
    """Yield the best forms of candidates, fastest first, in batches of ``size`` candidates.

    Each candidate appears once. The first batch also has the candidates of ``baseline_candidates``. If none of these
    moves factors behind its products, it has the fastest form that does, if that is not far behind: such a form rounds
    less, because its operands are not rounded after a division. At most two candidates share their longest kernel
    while others are not far behind, because candidates with one common kernel hardly differ when they are measured.

    Args:
        plan: The plan.
        found: Candidates whose kernels were timed, fastest first.
        size: Candidates in a batch.
        fewer: Whether the first batch also has the best candidate with fewer kernels than all others of the batch.
        measured: Keys of whole candidates with known times, where nothing can be measured: these come first, even if
            they share kernels.
    """
    if measured is not None:
        found = sorted(found, key=lambda one: whole_key(plan, one) not in measured)
    names: set[str] = set()
    chosen: list[ComposedCandidate] = []
    for one in found:
        name = plan.candidates[one.candidate].name
        if name not in names:
            names.add(name)
            chosen.append(one)
    chosen = _spread_longest_kernels(chosen) if measured is None else chosen
    first = [*chosen[:size], *(one for one in baseline_candidates(plan, found) if one not in chosen[:size])]
    if fewer:
        used = {plan.candidates[one.candidate].name for one in first}
        count = min((len(one.variants) for one in first), default=0)
        less = (one for one in found if len(one.variants) < count and plan.candidates[one.candidate].name not in used)
        first += itertools.islice(less, 1)
    first += itertools.islice(_candidates_moving_factors(plan, found, first), 1)
    rest = [one for one in chosen[size:] if one not in first]
    if first:
        yield first
    for start in range(0, len(rest), size):
        yield rest[start : start + size]


def _spread_longest_kernels(chosen: Sequence[ComposedCandidate]) -> list[ComposedCandidate]:
    """Return candidates in order, with those that share their longest kernel with too many others moved back.

    A candidate far behind the first one is moved back as well.
    """
    shared: Counter[At | None] = Counter()
    front, rest = list[ComposedCandidate](), list[ComposedCandidate]()
    for one in chosen:
        shared[one.longest] += 1
        near = one.us <= _FAR * chosen[0].us
        (front if near and shared[one.longest] <= _ALIKE else rest).append(one)
    return [*front, *rest]


def _candidates_moving_factors(
    plan: TuningPlan, found: Sequence[ComposedCandidate], first: Sequence[ComposedCandidate]
) -> Iterator[ComposedCandidate]:
    """Yield further candidates, fastest first, in forms that move factors; none if one of the first does."""
    if not first or any(moves_factors(plan.candidates[one.candidate]) for one in first):
        return
    used = {plan.candidates[one.candidate].name for one in first}
    most = _FACTORS * min(one.us for one in first)
    for one in itertools.takewhile(lambda one: one.us <= most, found):
        candidate = plan.candidates[one.candidate]
        if moves_factors(candidate) and candidate.name not in used:
            yield one


def moves_factors(one: CandidatePlan) -> bool:
    """Return whether a form, or a part of a mixed form, moves factors behind its products."""
    return not {factors.value for factors in HoistedFactors if factors.value}.isdisjoint(
        one.form.replace(",", " ").split()
    )


def baseline_candidates(plan: TuningPlan, found: Sequence[ComposedCandidate]) -> list[ComposedCandidate]:
    """Return the best timed candidates with library products alone, without fusion, and with generated products.

    Each is returned once. They are always measured as wholes, because a sum of separate kernel times predicts a
    sequence of launches poorly.
    """
    best = (next((one for one in found if kind(plan.candidates[one.candidate])), None) for kind in _KINDS[1:])
    return list(dict.fromkeys(one for one in best if one is not None))


__all__ = [
    "ComposedCandidate",
    "baseline_candidates",
    "batches",
    "combine_forms",
    "compose_candidates",
    "kernels_to_time_again",
    "lighter_schedules",
    "moves_factors",
    "needed_kernels",
    "order_kernels",
    "schedules_with_other_threads",
    "whole_key",
]
