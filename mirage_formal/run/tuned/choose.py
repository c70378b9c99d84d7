"""Which kernels are made, timed and put together: arithmetic over plans and times, without a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirage_formal.run.tuned.plans import At, TuningPlan

#: What one place further back in the order of schedules counts, beside the ratio of two estimates.
_PLACE: Final = 0.06


@dataclass(frozen=True, slots=True)
class Composed:
    """A candidate whose kernels were all timed, with the fastest schedule of each.

    Attributes:
        candidate: Position in the plan.
        variants: For each of its kernels the position of the schedule.
        us: The sum of their times.
    """

    candidate: int
    variants: tuple[int, ...]
    us: float


def in_order(plan: TuningPlan, most: int) -> list[At]:
    """Kernels in the order in which they are worth trying, as positions of piece and schedule; at most so many.

    A kernel is as good as the best candidate that has it: by the ratio of this one's estimate to the least, and then by
    the place of the schedule. The first schedules of the best candidate's kernels come first, so that there is always
    something to put together.
    """
    if not plan.candidates:
        return []
    least = min(one.us for one in plan.candidates) or 1.0
    ratios: dict[int, float] = {}
    for one in plan.candidates:
        for piece in one.pieces:
            ratios[piece] = min(ratios.get(piece, float("inf")), one.us / least)
    keyed = [
        (ratio + _PLACE * variant, piece, variant)
        for piece, ratio in ratios.items()
        for variant in range(len(plan.pieces[piece].variants))
    ]
    return [(piece, variant) for _, piece, variant in sorted(keyed)[:most]]


def composed(plan: TuningPlan, times: Mapping[str, float]) -> list[Composed]:
    """Candidates whose kernels all have a time, fastest first.

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
            found.append(Composed(number, tuple(at for _, at in known), sum(us for us, _ in known)))
    return sorted(found, key=lambda one: (one.us, one.candidate))


def close(plan: TuningPlan, times: Mapping[str, float], candidates: int, within: float) -> list[At]:
    """Kernels that are worth timing again: of the best candidates, those within a factor of the piece's fastest.

    Args:
        plan: The plan.
        times: Microseconds of kernels by key.
        candidates: How many of the best candidates.
        within: The factor.
    """
    wanted: dict[At, None] = {}
    for one in composed(plan, times)[:candidates]:
        for piece in plan.candidates[one.candidate].pieces:
            variants = plan.pieces[piece].variants
            known = {at: times[v.key] for at, v in enumerate(variants) if v.key in times}
            least = min(known.values())
            wanted |= {(piece, at): None for at, us in known.items() if us <= within * least}
    return list(wanted)


def batches(plan: TuningPlan, found: Sequence[Composed], size: int) -> Iterator[list[Composed]]:
    """The best forms of candidates, each candidate once, fastest first, so many at a time."""
    names: set[str] = set()
    chosen: list[Composed] = []
    for one in found:
        name = plan.candidates[one.candidate].name
        if name not in names:
            names.add(name)
            chosen.append(one)
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]


__all__ = ["Composed", "batches", "close", "composed", "in_order"]
