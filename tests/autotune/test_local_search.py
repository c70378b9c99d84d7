"""Which schedules are tried next to the fastest: arithmetic over plans and times, without a run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mirage_formal.autotune.local_search import STEP, neighbouring_schedules
from mirage_formal.autotune.plans import CandidatePlan, PiecePlan, ScheduleVariant, TuningPlan
from mirage_formal.records import ScheduleRecord, WarpsRecord

PIPELINES = ((4, 1), (6, 2), (3, 1), (5, 2), (2, 1))
WARPS = ((128, 1, 4), (128, 2, 2), (64, 1, 2), (256, 4, 2), (512, 4, 4))


def schedule(at: int) -> ScheduleRecord:
    """The schedule of a place in the order of pipelines and, within each, of warps."""
    (stages, cut), (threads, rows, cols) = PIPELINES[at // len(WARPS)], WARPS[at % len(WARPS)]
    warps = WarpsRecord(rows=rows, cols=cols, inner=1, transposed=False)
    return ScheduleRecord(threads=threads, stages=stages, warps=(warps,), registers=True, resident=True, cut=cut)


def piece(name: str, count: int = len(PIPELINES) * len(WARPS)) -> PiecePlan:
    ways = tuple(ScheduleVariant(f"{name}{at}", schedule(at)) for at in range(count))
    return PiecePlan(msgspec.Raw(b"{}"), 0, (), ways)


def one_kernel() -> TuningPlan:
    return TuningPlan("run", "sm_80", (CandidatePlan("one", "", 10.0, (0,), (0,)),), (piece("a"),))


def test_neighbours_differ_from_the_fastest_in_pipeline_or_in_warps() -> None:
    plan = one_kernel()
    assert neighbouring_schedules(plan, {}) == [], "without times nothing is the fastest"
    found = neighbouring_schedules(plan, {"a0": 10.0})
    assert found == [(0, at) for at in (1, 2, 3, 4, 5, 10, 15, 20)], "the same pipeline, then the same warps"
    assert neighbouring_schedules(plan, {"a0": 10.0}, 3) == found[:3]
    found = neighbouring_schedules(plan, {"a0": 10.0, "a7": 9.0, "a5": None})
    assert found == [(0, at) for at in (2, 6, 8, 9, 12, 17, 22)], "of the fastest alone, without what may not run"


def climbed(plan: TuningPlan, us_of: Callable[[int], float]) -> tuple[dict[str, float | None], int]:
    """What is tried from the first schedule on, and in how many steps."""
    tried: dict[str, float | None] = {"a0": us_of(0)}
    steps = 0
    while more := neighbouring_schedules(plan, tried, 4):
        tried |= {plan.key((piece, at)): us_of(at) for piece, at in more}
        steps += 1
    return tried, steps


@pytest.mark.parametrize("best", range(25))
def test_where_pipeline_and_warps_count_by_themselves_the_best_is_found(best: int) -> None:
    def us_of(at: int) -> float:
        pipeline, warps = divmod(at, len(WARPS))
        return 10.0 + abs(pipeline - best // len(WARPS)) + abs(warps - best % len(WARPS))

    tried, _ = climbed(one_kernel(), us_of)
    assert min(tried, key=lambda key: tried[key] or 0.0) == f"a{best}"
    assert len(tried) <= 25 - 4, "fewer than all of them"


def test_where_nothing_next_to_the_fastest_is_faster_the_search_ends() -> None:
    tried, steps = climbed(one_kernel(), lambda at: 10.0 + (at > 0))
    assert len(tried) == 9
    assert steps == 2


def test_kernels_of_the_fastest_candidates_come_first_and_short_ones_are_left_out() -> None:
    candidates = (
        CandidatePlan("one", "", 10.0, (0, 2), (0, 1)),
        CandidatePlan("two", "", 10.0, (1, 2), (0, 1)),
        CandidatePlan("three", "", 10.0, (3,), (0,)),
    )
    plan = TuningPlan("run", "sm_80", candidates, (piece("a"), piece("b"), piece("c", 2), piece("d")))
    times: dict[str, float | None] = {"a0": 12.0, "b0": 10.0, "c0": 1.0}
    own, others = ([(at, n) for n in (1, 2, 3, 4, 5, 10, 15, 20)] for at in (1, 0))
    assert neighbouring_schedules(plan, times, 99) == [*own, *others], (
        "c takes less than a tenth; nothing is known of the third"
    )
    assert neighbouring_schedules(plan, times | {"c0": 2.0}, 99) == [*own, (2, 1), *others], (
        "a kernel of two candidates once"
    )
    assert len(neighbouring_schedules(plan, times)) == STEP
    assert neighbouring_schedules(plan, times | {"a0": 13.0}, 99) == own, "what is far behind is left as it is"


@pytest.mark.parametrize("form", ["factors", "split-2"])
def test_kinds_that_are_measured_in_any_case_take_turns(form: str) -> None:
    """What leaves products to a library is the fastest; what computes them, and what moves factors, may become so."""
    candidates = (
        CandidatePlan("one", "", 10.0, (0,), (0,), library=True),
        CandidatePlan("two", "", 10.0, (1,), (0,)),
        CandidatePlan("three", form, 10.0, (2,), (0,)),
    )
    plan = TuningPlan("run", "sm_80", candidates, (piece("a"), piece("b"), piece("c")))
    times: dict[str, float | None] = {"a0": 10.0, "b0": 11.0, "c0": 12.0}
    pieces = [piece for piece, _ in neighbouring_schedules(plan, times, 24)]
    assert pieces[:6] == ([0, 1, 2] * 2 if form == "factors" else [0, 1] * 3)
    assert sorted(pieces) == [0] * 8 + [1] * 8 + [2] * 8


def test_operators_of_a_library_and_of_other_tiles_have_no_neighbours() -> None:
    tile = msgspec.structs.replace(schedule(0), tile=1)
    plain = PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("a0", None), ScheduleVariant("a1", tile)))
    tiled = PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("b0", schedule(0)), ScheduleVariant("b1", tile)))
    candidates = (CandidatePlan("one", "", 10.0, (0,), (0,)), CandidatePlan("two", "", 10.0, (1,), (0,)))
    plan = TuningPlan("run", "sm_80", candidates, (plain, tiled))
    tried: dict[str, float | None] = {"a0": 1.0, "b0": 1.0}
    assert neighbouring_schedules(plan, tried) == []
    assert neighbouring_schedules(plan, {"a1": 1.0, "b1": 1.0}) == []
