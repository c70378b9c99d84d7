"""Which kernels are tried and put together: arithmetic over plans and times, without a run."""

from __future__ import annotations

import msgspec
import pytest

from mirage_formal.autotune.choose import (
    ComposedCandidate,
    batches,
    combine_forms,
    compose_candidates,
    kernels_to_time_again,
    lighter_schedules,
    needed_kernels,
    order_kernels,
    schedules_with_other_threads,
    whole_key,
)
from mirage_formal.autotune.plans import CandidatePlan, PiecePlan, ScheduleVariant, TuningPlan
from mirage_formal.kernel_build.values import MIXED
from mirage_formal.records import ScheduleRecord


def test_the_best_of_each_number_of_kernels_are_tried() -> None:
    """The model puts all candidates of two kernels before the one of a single kernel."""
    pieces = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant(f"p{n}", None),)) for n in range(21))
    two = [CandidatePlan(f"{n}", "split", 10.0 + 0.1 * n, (2 * n, 2 * n + 1), (0, 1)) for n in range(10)]
    for us, first in ((14.0, True), (16.0, False)):
        plan = TuningPlan("run", "sm_80", (*two, CandidatePlan("one", "", us, (20,), (0,))), pieces)
        assert ((20, 0) in order_kernels(plan, 3)) == first


def test_the_order_of_kernels_and_what_is_close() -> None:
    def piece(name: str, count: int) -> PiecePlan:
        return PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"{name}{n}", None) for n in range(count)))

    pieces = (piece("a", 3), piece("b", 2), piece("c", 1))
    candidates = (
        CandidatePlan("one", "", 10.0, (0,), (0,)),
        CandidatePlan("two", "", 10.0, (1, 2), (0, 1)),
        CandidatePlan("two", "split", 30.0, (2, 2), (0, 1)),
    )
    plan = TuningPlan("run", "sm_80", candidates, pieces)
    assert order_kernels(plan, 4) == [(0, 0), (1, 0), (2, 0), (0, 1)], "first schedules first"
    assert len(order_kernels(plan, 99)) == 6
    tried = {"a0": 5.0, "b0": 30.0, "c0": None, "b1": 8.0}
    assert order_kernels(plan, 5, tried) == [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1)], (
        "what was tried, then the fastest's"
    )
    # By the model both candidates take 10; measured, the first takes twice the second, and counts as behind.
    tried = {"a0": 20.0, "b0": 5.0, "c0": 5.0}
    assert order_kernels(plan, 6, tried)[3:] == [(1, 1), (0, 1), (0, 2)]
    times = {"a0": 9.0, "a1": 4.0, "b1": 1.0}
    assert [(one.candidate, one.variants, one.us) for one in compose_candidates(plan, times)] == [(0, (1,), 4.0)]
    times |= {"c0": 1.0, "b0": 1.05}
    assert [(one.candidate, one.us) for one in compose_candidates(plan, times)] == [(1, 2.0), (2, 2.0), (0, 4.0)]
    assert [[one.candidate for one in some] for some in batches(plan, compose_candidates(plan, times), 2)] == [
        [1, 0]
    ], "once each"
    assert kernels_to_time_again(plan, times, 1, 1.08) == [(1, 0), (1, 1), (2, 0)]
    assert kernels_to_time_again(plan, times, 3, 1.0) == [(1, 1), (2, 0), (0, 1)]


def test_a_form_of_which_nothing_was_timed_gets_its_turn() -> None:
    """What the model is off by for two forms says little of a third one."""
    pieces = tuple(
        PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"p{n}.{at}", None) for at in range(4)))
        for n in range(5)
    )
    one = [CandidatePlan(f"{n}", "", 10.0, (n,), (0,)) for n in range(2)]
    candidates = (*one, CandidatePlan("2", "split", 11.0, (2,), (0,)), CandidatePlan("3", "products", 19.0, (3,), (0,)))
    plan = TuningPlan("run", "sm_80", (*candidates, CandidatePlan("4", "split", 30.0, (4,), (0,))), pieces)
    tried = {"p0.0": 20.0, "p1.0": 20.0, "p3.0": 19.0}
    assert order_kernels(plan, 4, tried)[3] == (2, 0), "half of what the model says of the plain form"
    # Of the form itself the model is off by as much.
    assert order_kernels(plan, 5, {**tried, "p4.0": 60.0})[4] == (3, 1)


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


@pytest.mark.parametrize("most", [1, 3, 5, 8, 40])
def test_whole_candidates_can_always_be_put_together(most: int) -> None:
    plan = kinds_of_candidates()
    wanted = order_kernels(plan, most)
    assert len(wanted) == len(set(wanted))
    assert {(piece, 0) for piece in range(9)} <= set(wanted)
    assert wanted[:5] == [(piece, 0) for piece in range(5)], "the best estimated whole comes first"
    beside = {(5, 0), (6, 0), (7, 0), (8, 0)}
    assert len([at for at in wanted if at not in beside]) == min(max(most, 5), 17)
    assert not needed_kernels(plan, {plan.pieces[piece].variants[at].key: 1.0 for piece, at in wanted})


def test_a_kernel_that_may_not_run_gives_way_to_its_next_schedule_and_then_to_the_next_candidate() -> None:
    plan = kinds_of_candidates()
    tried: dict[str, float | None] = {f"p{piece}.0": 1.0 for piece in range(9)}
    assert needed_kernels(plan, tried) == []
    assert needed_kernels(plan, tried | {"p4.0": None}) == [(4, 1)]
    assert needed_kernels(plan, tried | {"p4.0": None, "p4.1": None, "p4.2": None}) == [], (
        "the products' form has none of it"
    )
    assert needed_kernels(plan, tried | {"p6.0": None}) == [], (
        "its product fails; the operators one by one are a library's too"
    )
    assert order_kernels(plan, 9, tried | {"p4.0": None})[-1] != (4, 1)
    assert (4, 1) in order_kernels(plan, 1, tried | {"p4.0": None})


def test_what_leaves_products_to_a_library_is_measured_as_a_whole() -> None:
    plan = kinds_of_candidates()
    times = {f"p{piece}.0": (1.0 if piece < 5 else 20.0) for piece in range(9)}
    first, *rest = batches(plan, compose_candidates(plan, times), 1)
    assert [one.candidate for one in first] == [0, 2, 3]
    assert rest == []
    del times["p6.0"]
    assert [one.candidate for one in next(batches(plan, compose_candidates(plan, times), 2))] == [0, 3]
    times["p6.0"] = 0.1
    times["p5.0"] = 0.1
    assert [one.candidate for one in next(batches(plan, compose_candidates(plan, times), 2))] == [2, 0, 3]


def test_the_best_of_fewer_kernels_is_among_the_first_if_it_is_asked_for() -> None:
    plan = kinds_of_candidates()
    whole = PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("whole", None),))
    fused = [
        CandidatePlan(name, form, 50.0, (12,), (0,)) for name, form in (("one", "fused"), ("four", ""), ("five", ""))
    ]
    plan = TuningPlan("run", "sm_80", (*plan.candidates, *fused), (*plan.pieces, whole))
    times = {f"p{piece}.0": 1.0 for piece in range(5)} | {"whole": 50.0}
    first = next(batches(plan, compose_candidates(plan, times), 1))
    assert [one.candidate for one in first] == [0]
    first = next(batches(plan, compose_candidates(plan, times), 1, fewer=True))
    assert [one.candidate for one in first] == [0, 5], "the first one's directory has its split form"
    times["whole"] = 1.0
    first = next(batches(plan, compose_candidates(plan, times), 1, fewer=True))
    assert [one.candidate for one in first] == [4]


@pytest.mark.parametrize(("others", "expected"), [(12.0, [0, 1, 4, 5]), (13.0, [0, 1, 2, 3])])
def test_two_finalists_at_most_have_their_longest_kernel_in_common(others: float, expected: list[int]) -> None:
    """Four candidates that differ in a short kernel, and two others, which are preferred if they are not far behind."""
    keys = ("long", "a", "b", "c", "d", "other", "e")
    pieces = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant(key, None),)) for key in keys)
    alike = [CandidatePlan(f"{n}", "", 10.0, (0, n + 1), (0, 1)) for n in range(4)]
    other = [CandidatePlan(f"{n}", "", 10.0, (5,) if n == 4 else (5, 6), (0, 1)[: n - 3]) for n in (4, 5)]
    plan = TuningPlan("run", "sm_80", (*alike, *other), pieces)
    times = {"long": 9.0, "a": 1.0, "b": 1.1, "c": 1.2, "d": 1.3, "other": others, "e": 0.1}
    found = compose_candidates(plan, times)
    assert {one.longest for one in found} == {(0, 0), (5, 0)}
    first, second = batches(plan, found, 4)
    assert [one.candidate for one in first] == expected
    assert [one.candidate for one in second] == [n for n in range(6) if n not in expected]
    # Elsewhere, with times alone, those come first that were measured as wholes.
    known = {whole_key(plan, found[n]) for n in (1, 2, 3)}
    assert [[one.candidate for one in some] for some in batches(plan, found, 4, measured=known)] == [
        [1, 2, 3, 0],
        [4, 5],
    ]


@pytest.mark.parametrize("form", ["factors", "all-factors split-2", "mixed: 0 split-2, 1 factors"])
def test_a_form_that_rounds_less_is_among_the_first_if_it_is_not_far_behind(form: str) -> None:
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
        return [one.candidate for one in next(batches(plan, compose_candidates(plan, times), size))]

    assert first(1) == [0, 6], "the first one's directory has its own form"
    assert first(2) == [0, 4, 6]
    assert first(3) == [0, 4, 6], "it is there anyway"
    times["exact"] = 5.6
    assert first(1) == [0]


def test_what_leaves_room_is_the_fastest_with_fewer_bytes_in_flight_and_no_more_threads() -> None:
    def schedule(threads: int, stages: int, cut: int = 1, tile: int = 0) -> ScheduleRecord:
        return ScheduleRecord(
            threads=threads, stages=stages, registers=True, resident=True, warps=(), cut=cut, tile=tile
        )

    ways = (
        schedule(128, 5),
        schedule(128, 4),
        schedule(256, 3),
        schedule(128, 4, 2),
        schedule(128, 2),
        schedule(64, 5),
    )
    product = PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(ScheduleVariant(f"a{n}", way) for n, way in enumerate(ways)))
    given = PiecePlan(
        msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("b0", None), ScheduleVariant("b1", schedule(32, 1, tile=1)))
    )
    plan = TuningPlan("run", "sm_80", (CandidatePlan("one", "", 10.0, (0, 1), (0, 1)),), (product, given))
    times = {"a0": 10.0, "a1": 11.4, "a2": 10.1, "a3": 11.2, "a4": 11.3, "a5": 9.0, "b0": 1.0, "b1": 1.0}

    def found(first: int, **other: float) -> dict[int, int]:
        return lighter_schedules(plan, times | other, ComposedCandidate(0, (first, 1), 11.0))

    assert found(0) == {0: 3}, "two stages' worth of bytes; with 256 threads it leaves less room, with 64 not more"
    assert found(0, a3=11.6) == {0: 4}
    assert found(0, a1=12.0, a3=12.0, a4=12.0) == {}, "all are more than 15 % behind"
    assert found(4) == {}
    assert found(2, a3=11.2, a4=11.2) == {0: 3}
    del times["a3"]
    assert found(0) == {0: 4}


def test_schedules_of_other_threads_that_are_little_slower_alone() -> None:
    """The fastest of each other number of threads, at most a tenth behind; the least loss first."""

    def schedule(threads: int) -> ScheduleRecord:
        return ScheduleRecord(threads=threads, stages=2, registers=True, resident=True, warps=(), cut=1, tile=0)

    def piece(name: str, *threads: int) -> PiecePlan:
        ways = tuple(ScheduleVariant(f"{name}{n}", schedule(count)) for n, count in enumerate(threads))
        return PiecePlan(msgspec.Raw(b"{}"), 0, (), ways)

    pieces = (
        piece("a", 128, 256, 256, 64, 512, 128),
        piece("b", 512, 128),
        PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant("c", None),)),
    )
    plan = TuningPlan("run", "sm_80", (CandidatePlan("one", "", 10.0, (0, 1, 2), (0, 1, 2)),), pieces)
    times = {"a0": 10.0, "a1": 10.9, "a2": 10.5, "a3": 11.1, "a5": 10.1, "b0": 4.0, "b1": 4.1, "c": 1.0}
    assert schedules_with_other_threads(plan, times, ComposedCandidate(0, (0, 0, 0), 15.0)) == [(1, 1), (0, 2)]
    assert schedules_with_other_threads(plan, times | {"a4": 9.0}, ComposedCandidate(0, (2, 1, 0), 15.0)) == [
        (0, 4),
        (0, 0),
        (1, 0),
        (0, 3),
    ]
    assert schedules_with_other_threads(plan, times | {"b1": 4.41}, ComposedCandidate(0, (3, 0, 0), 15.0)) == [
        (0, 0),
        (0, 2),
    ]


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
    plan, times = of_two_operators(p4=1.0, p5=1.005)
    assert combine_forms(plan, times) == [], "the split form by itself is as fast"
    plan, times = of_two_operators(p0=2.98)
    assert combine_forms(plan, times) == [], "so is the candidate itself"
    plan, times = of_two_operators()
    del times["p3.0"]
    assert combine_forms(plan, times) == [], "half of a kernel is none"
    del times["p1.0"]
    assert combine_forms(plan, times) != [], "its own first kernel, and the second one's form"
    del times["p0.0"]
    assert combine_forms(plan, times) == []
