"""Which kernels are tried and put together: arithmetic over plans and times, without a run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from mirage_formal.autotune.plans import At, CandidatePlan, PiecePlan, ScheduleVariant, TuningPlan
from mirage_formal.autotune.successive_halving import (
    RUNGS,
    SLACK,
    finalist_batches,
    kernel_rungs,
    kernels_to_remeasure,
    other_schedules,
)
from mirage_formal.autotune.tuning_space import (
    NOISE,
    ComposedCandidate,
    combine_forms,
    compose_candidates,
    rank_candidates,
    whole_key,
)
from mirage_formal.kernel_build.built_kernels import MIXED
from mirage_formal.records import ScheduleRecord


def piece(name: str, count: int = 1) -> PiecePlan:
    return PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"{name}{n}", None) for n in range(count)))


def one_each(count: int, schedules: int) -> TuningPlan:
    """Candidates of one kernel, which the model puts in the order of their numbers."""
    candidates = tuple(CandidatePlan(f"{n}", "", 10.0 + n, (n,), (0,)) for n in range(count))
    return TuningPlan("run", "sm_80", candidates, tuple(piece(f"p{n}.", schedules) for n in range(count)))


def climbed(plan: TuningPlan, kernels: int, us: Callable[[At], float | None]) -> list[list[At]]:
    """What each rung tries, of kernels with such times."""
    tried: dict[str, float | None] = {}
    found: list[list[At]] = []
    for rung in kernel_rungs(plan, kernels, tried):
        found.append([at for at in rung if plan.key(at) not in tried])
        tried |= {plan.key(at): us(at) for at in rung}
    return found


def test_the_first_rung_tries_every_kernel_and_the_next_ones_more_schedules_of_fewer() -> None:
    plan = one_each(8, 16)
    rungs = climbed(plan, 8 * RUNGS, lambda at: 20.0 - at[0])
    assert len(rungs) == RUNGS
    assert rungs[0] == [(n, 0) for n in range(8)], "every candidate once"
    assert rungs[1] == [(7, 1), (7, 2), (6, 1), (7, 3), (7, 4), (5, 1), (6, 2), (7, 5)], "the fastest first"
    assert climbed(plan, 8 * RUNGS, lambda at: 20.0 - at[0]) == rungs, "the same times, the same kernels"


def test_forms_that_round_less_take_turns() -> None:
    plan = one_each(8, 16)
    exact = (msgspec.structs.replace(one, form="factors") if n < 2 else one for n, one in enumerate(plan.candidates))
    plan = msgspec.structs.replace(plan, candidates=tuple(exact))
    second = climbed(plan, 8 * RUNGS, lambda at: 20.0 - at[0])[1]
    assert second == [(7, 1), (7, 2), (1, 1), (7, 3), (7, 4), (6, 1), (1, 2), (7, 5)]


def test_neighbours_of_the_fastest_schedule_come_first() -> None:
    """They have its pipeline, or its threads; the others stay in the order of the cost model."""
    ways = ((128, 4), (256, 3), (256, 4), (64, 3), (64, 2), (256, 2))
    schedules = (
        ScheduleRecord(threads=threads, stages=stages, registers=True, resident=True, warps=(), cut=1)
        for threads, stages in ways
    )
    one = PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"a{n}", way) for n, way in enumerate(schedules)))
    plan = TuningPlan("run", "sm_80", (CandidatePlan("one", "", 10.0, (0,), (0,)),), (one,))
    tried: dict[str, float | None] = {"a0": 10.0, "a1": 9.0}
    assert list(kernel_rungs(plan, 6, tried))[-1][2:] == [(0, at) for at in (2, 3, 5, 4)]


@pytest.mark.parametrize("best", [(0, 9), (3, 2), (7, 5)])
def test_with_enough_trials_the_best_is_found(best: At) -> None:
    plan = one_each(8, 10)
    tried = [at for rung in climbed(plan, 80, lambda at: 1.0 if at == best else 5.0) for at in rung]
    assert best in tried
    assert len(tried) == len(set(tried)) == 80


def test_the_order_of_candidates() -> None:
    """Times count where all are known; else the estimate, times what the model is off by for such candidates."""
    pieces = (piece("a", 3), piece("b", 2), piece("c"))
    candidates = (
        CandidatePlan("one", "", 10.0, (0,), (0,)),
        CandidatePlan("two", "", 10.0, (1, 2), (0, 1)),
        CandidatePlan("two", "split", 30.0, (2, 2), (0, 1)),
    )
    plan = TuningPlan("run", "sm_80", candidates, pieces)
    assert rank_candidates(plan, {}) == [0, 1, 2]
    assert rank_candidates(plan, {"a0": 20.0, "b0": 5.0, "c0": 5.0}) == [1, 2, 0]
    assert rank_candidates(plan, {"a0": 5.0, "b0": 30.0, "c0": None, "b1": 8.0}) == [0], "c may not run"
    times = {"a0": 9.0, "a1": 4.0, "b1": 1.0}
    assert [(one.candidate, one.variants, one.us) for one in compose_candidates(plan, times)] == [(0, (1,), 4.0)]
    times |= {"c0": 1.0, "b0": 1.05}
    found = compose_candidates(plan, times)
    assert [(one.candidate, one.us) for one in found] == [(1, 2.0), (2, 2.0), (0, 4.0)]
    assert [[one.candidate for one in some] for some in finalist_batches(plan, found, 2)] == [[1, 0]], "once each"


def test_a_form_of_which_nothing_was_timed_gets_its_turn() -> None:
    """What the model is off by for two forms says little of a third one."""
    one = [CandidatePlan(f"{n}", "", 10.0, (n,), (0,)) for n in range(2)]
    candidates = (*one, CandidatePlan("2", "split", 11.0, (2,), (0,)), CandidatePlan("3", "products", 19.0, (3,), (0,)))
    pieces = tuple(piece(f"p{n}.", 4) for n in range(5))
    plan = TuningPlan("run", "sm_80", (*candidates, CandidatePlan("4", "split", 30.0, (4,), (0,))), pieces)
    tried: dict[str, float | None] = {"p0.0": 20.0, "p1.0": 20.0, "p3.0": 19.0}
    assert rank_candidates(plan, tried)[0] == 2, "half of what the model says of the plain form"
    assert rank_candidates(plan, {**tried, "p4.0": 60.0})[0] == 3, "of the form itself the model is off by as much"


def test_times_that_noise_may_have_put_in_order_are_taken_again() -> None:
    plan = one_each(3, 3)
    times = {"p0.0": 10.0, "p0.1": 0.999 * NOISE * 10, "p0.2": 1.001 * NOISE * 10, "p1.0": 0.999 * SLACK * 10}
    assert kernels_to_remeasure(plan, times) == [(0, 0), (0, 1), (1, 0)]
    assert kernels_to_remeasure(plan, times | {"p2.0": 1.001 * SLACK * 10}) == [(0, 0), (0, 1), (1, 0)], "too slow"
    assert kernels_to_remeasure(plan, {}) == []


def kinds_of_candidates() -> TuningPlan:
    """Five fused kernels by estimate the best; then one kernel and a library's product; then all one by one."""
    pieces = tuple(
        PiecePlan(
            msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"p{n}.{at}", None) for at in range(3 if n < 6 else 1))
        )
        for n in range(12)
    )
    candidates = (
        CandidatePlan("one", "", 10.0, (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)),
        CandidatePlan("one", "products", 11.0, (0, 1, 2, 3, 3), (0, 1, 2, 3, 4)),
        CandidatePlan("two", "", 20.0, (5, 6), (0, 1), library=True),
        CandidatePlan("three", "", 30.0, (7, 8), (0, 1), library=True, unfused=True),
    )
    return TuningPlan("run", "sm_80", candidates, pieces)


@pytest.mark.parametrize("most", [1, 3, 5, 9, 40])
def test_whole_candidates_can_always_be_put_together(most: int) -> None:
    plan = kinds_of_candidates()
    wanted = [at for rung in climbed(plan, most, lambda at: 1.0) for at in rung]
    assert len(wanted) == len(set(wanted)) == min(max(most, 5) + 4, 21)
    assert {(piece, 0) for piece in range(9)} <= set(wanted)
    assert wanted[:5] == [(piece, 0) for piece in range(5)], "the best estimated whole comes first"


@pytest.mark.parametrize(
    ("failing", "more"),
    [
        ({(4, 0)}, [[(4, 1)]]),
        ({(4, 0), (4, 1), (4, 2)}, [[(4, 1)], [(4, 2)]]),  # the form with products does without it
        ({(6, 0)}, []),  # the operators one by one are a library's, too
    ],
)
def test_a_kernel_that_may_not_run_gives_way_to_its_next_schedule_and_then_to_the_next_candidate(
    failing: set[At], more: list[list[At]]
) -> None:
    first, *rest = climbed(kinds_of_candidates(), 5, lambda at: None if at in failing else 1.0)
    assert sorted(first) == [(piece, 0) for piece in range(9)]
    assert [rung for rung in rest if rung] == more


def test_what_leaves_products_to_a_library_is_measured_as_a_whole() -> None:
    plan = kinds_of_candidates()
    times = {f"p{piece}.0": (1.0 if piece < 5 else 20.0) for piece in range(9)}
    first, *rest = finalist_batches(plan, compose_candidates(plan, times), 1)
    assert [one.candidate for one in first] == [0, 2, 3]
    assert rest == []
    del times["p6.0"]
    assert [one.candidate for one in next(finalist_batches(plan, compose_candidates(plan, times), 2))] == [0, 3]
    times["p6.0"] = 0.1
    times["p5.0"] = 0.1
    assert [one.candidate for one in next(finalist_batches(plan, compose_candidates(plan, times), 2))] == [2, 0, 3]


def test_the_best_of_fewer_kernels_is_among_the_first_if_it_is_asked_for() -> None:
    plan = kinds_of_candidates()
    whole = PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("whole", None),))
    fused = [
        CandidatePlan(name, form, 50.0, (12,), (0,)) for name, form in (("one", "fused"), ("four", ""), ("five", ""))
    ]
    plan = TuningPlan("run", "sm_80", (*plan.candidates, *fused), (*plan.pieces, whole))
    times = {f"p{piece}.0": 1.0 for piece in range(5)} | {"whole": 50.0}
    first = next(finalist_batches(plan, compose_candidates(plan, times), 1))
    assert [one.candidate for one in first] == [0]
    first = next(finalist_batches(plan, compose_candidates(plan, times), 1, fewer=True))
    assert [one.candidate for one in first] == [0, 5], "the first one's directory has its split form"
    times["whole"] = 1.0
    first = next(finalist_batches(plan, compose_candidates(plan, times), 1, fewer=True))
    assert [one.candidate for one in first] == [4]


def test_where_nothing_is_measured_what_was_comes_first() -> None:
    plan = one_each(6, 1)
    found = compose_candidates(plan, {f"p{n}.0": 10.0 + n for n in range(6)})
    assert [[one.candidate for one in some] for some in finalist_batches(plan, found, 4)] == [[0, 1, 2, 3], [4, 5]]
    known = {whole_key(plan, found[n]) for n in (1, 2, 5)}
    assert [[one.candidate for one in some] for some in finalist_batches(plan, found, 4, measured=known)] == [
        [1, 2, 5, 0],
        [3, 4],
    ]


@pytest.mark.parametrize("form", ["factors", "all-factors split-2", "mixed: 0 split-2, 1 factors"])
def test_a_form_that_rounds_less_is_among_the_first(form: str) -> None:
    """Else a candidate that is a little slower and more exact would never be compared with the others."""
    plan = kinds_of_candidates()
    others = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant(key, None),)) for key in ("slow", "exact"))
    more = (
        CandidatePlan("five", "", 5.1, (12,), (0,)),
        CandidatePlan("one", form, 5.2, (13,), (0,)),
        CandidatePlan("six", form, 5.2, (13,), (0,)),
    )
    plan = TuningPlan("run", "sm_80", (*plan.candidates, *more), (*plan.pieces, *others))
    times = {f"p{piece}.0": 1.0 for piece in range(5)} | {"slow": 5.1, "exact": 5.2}

    def first(size: int) -> list[int]:
        return [one.candidate for one in next(finalist_batches(plan, compose_candidates(plan, times), size))]

    assert first(1) == [0, 6], "the first one's directory has its own form"
    assert first(2) == [0, 4, 6]
    assert first(3) == [0, 4, 6], "it is there anyway"


def test_schedules_that_may_be_faster_beside_other_kernels() -> None:
    """Of each other number of threads, and of fewer bytes in flight, the fastest; the least loss first."""

    def schedule(threads: int, stages: int, cut: int = 1) -> ScheduleRecord:
        return ScheduleRecord(threads=threads, stages=stages, registers=True, resident=True, warps=(), cut=cut)

    ways = ((128, 5), (128, 5), (256, 5), (256, 5), (128, 4), (128, 4, 2), (64, 2), (512, 5))
    product = tuple(ScheduleVariant(f"a{n}", schedule(*way)) for n, way in enumerate(ways))
    pieces = (PiecePlan(msgspec.Raw(b"{}"), 0, (), product), piece("b", 2))
    plan = TuningPlan("run", "sm_80", (CandidatePlan("one", "", 10.0, (0, 1), (0, 1)),), pieces)
    times = {"a0": 10.0, "a1": 10.01, "a2": 10.2, "a3": 10.1, "a4": 10.4, "a5": 10.3, "a6": 10.05, "b0": 1.0, "b1": 1.0}
    one = ComposedCandidate(0, (0, 1), 11.0)
    assert other_schedules(plan, times, one) == [(0, 6), (0, 3), (0, 5)]
    slow = 10.0 + 1.01 * (SLACK - 1) * 11.0
    assert other_schedules(plan, times | {"a6": slow, "a7": slow}, one) == [(0, 3), (0, 5)], "the sum is too large"
    assert other_schedules(plan, times, ComposedCandidate(0, (6, 1), 11.05)) == [(0, 0), (0, 3)], "none is lighter"
    alone = ComposedCandidate(0, (0, 1), 11.0)
    assert other_schedules(plan, {"a0": 10.0, "b1": 1.0}, alone) == []


def of_two_operators(**times: float) -> tuple[TuningPlan, dict[str, float]]:
    """A candidate of two kernels, each of which a form splits in two; and one that a form changes as a whole."""
    pieces = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant(f"p{n}.0", None),)) for n in range(8))
    candidates = (
        CandidatePlan("one", "", 10.0, (0, 1), (0, 2), sources=(0, 1, 1)),
        CandidatePlan("one", "split-2", 11.0, (2, 3, 4, 5), (0, 1, 3, 4), sources=(0, 0, 1, 1, 1)),
        CandidatePlan("one", "joined", 11.0, (6,), (0,)),
        CandidatePlan("two", "", 12.0, (7, 1), (0, 1), sources=(0, 1)),
    )
    known = {"p0.0": 5.0, "p1.0": 2.0, "p2.0": 2.0, "p3.0": 1.0, "p4.0": 3.0, "p5.0": 1.0, "p6.0": 9.0, "p7.0": 5.0}
    return TuningPlan("run", "sm_80", candidates, pieces), known | {f"{k[:2]}.0": us for k, us in times.items()}


def test_the_fastest_forms_of_operators_are_put_together() -> None:
    plan, times = of_two_operators()
    (made,) = combine_forms(plan, times)
    assert (made.name, made.form) == ("one", "mixed: 0 split-2")
    assert (made.pieces, made.operators, made.sources) == ((2, 3, 1), (0, 1, 3), (0, 0, 1, 1))
    assert made.form.startswith(MIXED)
    whole = TuningPlan("run", "sm_80", (*plan.candidates, made), plan.pieces)
    assert compose_candidates(whole, times)[0] == ComposedCandidate(4, (0, 0, 0), 5.0)
    plan, times = of_two_operators(p0=2.0, p4=0.5, p5=0.5)
    (made,) = combine_forms(plan, times)
    assert (made.form, made.pieces, made.operators) == ("mixed: 1 split-2", (0, 4, 5), (0, 2, 3))


def test_forms_are_put_together_only_where_it_pays_and_all_is_timed() -> None:
    plan, times = of_two_operators(p4=1.0, p5=1.0 + 4.0 * (NOISE - 1.01))
    assert combine_forms(plan, times) == [], "the split form by itself is as fast"
    plan, times = of_two_operators(p0=3.0 - (NOISE - 1.01))
    assert combine_forms(plan, times) == [], "so is the candidate itself"
    plan, times = of_two_operators()
    del times["p3.0"]
    assert combine_forms(plan, times) == [], "half of a kernel is none"
    del times["p1.0"]
    assert combine_forms(plan, times) != [], "its own first kernel, and the second one's form"
    del times["p0.0"]
    assert combine_forms(plan, times) == []
