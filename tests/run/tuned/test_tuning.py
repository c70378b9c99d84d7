"""``tune`` on a GPU that answers from a table: what is made, timed, put together, kept and written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.check.report import CheckFailed
from mirage_formal.derive.rederive import derive_kernels
from mirage_formal.device.sealed import manifest_digest
from mirage_formal.errors import MirageError
from mirage_formal.graph.formats.json import encode
from mirage_formal.records import PlanRecord, TuningRecord
from mirage_formal.run.built.build import KernelWarning
from mirage_formal.run.results.listing import Results
from mirage_formal.run.tuned.child import Answer, Job, Machine
from mirage_formal.run.tuned.choose import batches, close, composed, in_order
from mirage_formal.run.tuned.fastest import fastest
from mirage_formal.run.tuned.plans import CandidatePlan, PiecePlan, Place, TuningPlan, Variant, read_plan
from mirage_formal.run.tuned.prepare import PRELOAD, Maker, Source, _Described, plan_of
from mirage_formal.run.tuned.timing import FIRST
from mirage_formal.run.tuned.tune import Bench, Limits, NoTimes, Tuned, on_device, tune
from mirage_formal.workers.dispatch import Done
from mirage_formal.workers.pool import Pool
from tests.kit.runs import small_run, tampering
from tests.kit.runs.known_engine import PROGRAMS

KERNELS = 10


class Table:
    """A GPU whose times a function gives; it counts what it is asked."""

    def __init__(self, us: Callable[[TuningPlan, Job], float | str]) -> None:
        self.machine = Machine("Test", "sm_80", 1)
        self.us = us
        self.jobs: list[Job] = []
        self.stop_after = 10**9

    def run(self, plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        known = None if plan is None else read_plan(plan)
        for job in jobs:
            if len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return
            self.jobs.append(job)
            if known is None:
                yield job, Answer(5.0 + len(self.jobs), 5.0, answer="within")
            else:
                found = self.us(known, job)
                yield job, Answer(failed=found) if isinstance(found, str) else Answer(found, found)


def last_is_best(plan: TuningPlan, job: Job) -> float:
    """Schedules that the model puts last are the fastest."""
    return 10.0 - job.variant + 0.001 * job.piece


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and a tuning directory with its kernels."""
    root = tmp_path_factory.mktemp("tune")
    small_run.make(root / "run", kernels=0)
    place = Place(root / "place")
    assert tuned(root / "run", place, None).left.startswith("time the kernels")
    return root / "run", place.root


def tuned(run: Path, place: Place, device: Table | str | None, limits: Limits | None = None) -> Tuned:
    with Pool(1, PRELOAD) as pool:
        bench = Bench(place, device, pool, lambda *said: None, "sm_80", limits or Limits(KERNELS, 2))
        return tune(run, bench)


def plan_in(place: Path) -> TuningPlan:
    (path,) = (place / "plans").glob("*.json")
    return read_plan(path)


def test_every_kernel_that_is_made_may_run_and_is_made_once(made: tuple[Path, Path]) -> None:
    place = Place(made[1])
    plan = plan_in(made[1])
    wanted = in_order(plan, KERNELS)
    assert len(wanted) == len(set(wanted)) == KERNELS
    assert place.usable(plan, wanted) == wanted
    before = {path: path.stat().st_mtime_ns for path in (made[1] / "kernels").iterdir()}
    assert len(before) == KERNELS
    tuned(made[0], place, None)
    assert {path: path.stat().st_mtime_ns for path in (made[1] / "kernels").iterdir()} == before


def test_the_fastest_schedules_are_built_and_checked(made: tuple[Path, Path], tmp_path: Path) -> None:
    device = Table(last_is_best)
    shutil.copytree(made[1], tmp_path / "place")  # the times choose further kernels
    place = Place(tmp_path / "place")
    found = tuned(made[0], place, device)
    assert found.timed == found.ready == KERNELS
    plan = plan_in(place.root)
    times = {name: one.us for name, one in place.times("Test").items()}
    best = next(batches(plan, composed(plan, times), 2))
    assert [row.name for row in found.rows] == [plan.candidates[one.candidate].name for one in best]
    directory = made[0] / "kernels" / found.rows[0].name
    kernels = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord).kernels
    asked = [one.schedule for one in kernels if one.schedule is not None]
    first = [plan.pieces[p].variants[0].schedule for p in plan.candidates[best[0].candidate].pieces]
    assert asked
    assert asked != [one for one in first if one is not None], "the last schedule is faster than the first"
    derive_kernels(directory)
    tuning = place.final(manifest_digest(directory))
    assert isinstance(tuning, TuningRecord)
    assert (tuning.kernels, tuning.refused, tuning.timed) == (KERNELS, 0, KERNELS)
    assert max(tuning.schedule_ranks) > 1


def test_another_schedule_in_the_plan_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    source = next(path for path in sorted((made[0] / "kernels").iterdir()))
    copy = tmp_path / source.name
    shutil.copytree(source, copy)

    def other(record: Any) -> Any:
        for one in record["kernels"]:
            if one["schedule"] is not None:
                one["schedule"]["threads"] = 48
        return record

    tampering.edit(copy / "plan.json", other)
    tampering.sign_kernels(copy)
    with pytest.raises(CheckFailed, match="power of two"):
        derive_kernels(copy)


def test_nothing_is_timed_twice_and_an_interrupt_keeps_what_was(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = Place(tmp_path / "place")
    device = Table(last_is_best)
    device.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        on_device(place, [], device, lambda *said: None)
    assert len(place.times("Test")) == 4
    device.stop_after = 10**9
    on_device(place, [], device, lambda *said: None)
    short = [(job.piece, job.variant) for job in device.jobs if job.replays == min(j.replays for j in device.jobs)]
    assert len(short) == len(set(short)) == KERNELS
    count = len(device.jobs)
    on_device(place, [], device, lambda *said: None)
    assert len(device.jobs) == count


def test_kernels_that_fail_are_left_out(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = Place(tmp_path / "place")

    def broken(plan: TuningPlan, job: Job) -> float | str:
        return "it hung" if job.variant else 7.0

    found = tuned(made[0], place, Table(broken))
    assert found.timed < found.ready
    for row in found.rows:
        kernels = msgspec.json.decode((made[0] / "kernels" / row.name / "plan.json").read_bytes(), type=PlanRecord)
        schedules = {one.schedule for one in kernels.kernels}
        plan = plan_in(place.root)
        assert schedules <= {None, *(piece.variants[0].schedule for piece in plan.pieces if piece.variants)}


def test_times_of_another_driver_do_not_count(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = Place(tmp_path / "place")
    on_device(place, [], Table(last_is_best), lambda *said: None)
    other = Table(last_is_best)
    other.machine = Machine("Test", "sm_80", 2)
    on_device(place, [], other, lambda *said: None)
    assert len({(job.piece, job.variant) for job in other.jobs}) == KERNELS


def test_a_damaged_kernel_is_made_again(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    place = Place(tmp_path / "place")
    victim = sorted((tmp_path / "place" / "kernels").iterdir())[0]
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    assert place.prepared(victim.name) is None
    tuned(made[0], place, None)
    found = place.prepared(victim.name)
    assert found is not None
    assert not found.refused


def test_times_that_are_not_there_are_said(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = Place(tmp_path / "place")
    with pytest.raises(MirageError, match="expected times of Test, got those of: none"):
        tuned(made[0], place, "Test")
    with pytest.raises(MirageError, match="expected a candidate whose kernels were all timed, got none"):
        tuned(made[0], place, Table(lambda plan, job: "it hung"))


def test_a_limit_leaves_time_for_what_comes_behind(made: tuple[Path, Path], tmp_path: Path) -> None:
    """What takes too long costs kernels and finalists, and there is always one to compare and time."""
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    device, asked = Table(last_is_best), list[float]()
    run = device.run

    def slow(plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        asked.append(deadline - begin)
        yield from run(plan, place, jobs, deadline)
        if plan is not None:
            time.sleep(max(0.0, deadline - time.monotonic()))

    device.run = slow  # type: ignore[method-assign]
    begin = time.monotonic()
    found = tuned(made[0], Place(tmp_path / "place"), device, Limits(KERNELS, 4, 4.0))
    assert [row.us is not None for row in found.rows] == [True]
    assert asked[0] < 2.5
    assert asked[-1] >= 10.0


def test_without_enough_time_results_are_those_of_the_model(made: tuple[Path, Path], tmp_path: Path) -> None:
    device = Table(last_is_best)
    device.run = lambda *given: iter(())  # type: ignore[method-assign]
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place, given = Place(tmp_path / "place"), list(Results())
    with pytest.warns(KernelWarning, match="nothing was measured within 5 s"):
        assert fastest(given, made[0], 2, device, place, seconds=5.0) == given
    with pytest.raises(NoTimes):
        fastest(given, made[0], 2, device, place)


def test_the_second_half_is_chosen_by_the_times_of_the_first(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = Place(tmp_path / "place")
    plan = plan_in(place.root)
    (worst,) = {one.pieces for one in plan.candidates[-1:]}

    def surprising(plan: TuningPlan, job: Job) -> float:
        return 1.0 if job.piece in worst else 50.0

    device = Table(surprising)
    every = Limits(2 * KERNELS, 2)
    tuned(made[0], place, device, every)
    short = [(job.piece, job.variant) for job in device.jobs if job.replays == FIRST]
    assert len(short) == len(set(short)) == 2 * KERNELS
    assert sorted(short[:KERNELS]) == sorted(in_order(plan, KERNELS)), "the first half by the model"
    tried = {
        plan.pieces[piece].variants[variant].key: surprising(plan, Job(piece, variant))
        for piece, variant in short[:KERNELS]
    }
    assert sorted(short) == sorted(in_order(plan, 2 * KERNELS, tried)), "the second half by times"
    assert sorted(short) != sorted(in_order(plan, 2 * KERNELS))
    count = len(device.jobs)
    tuned(made[0], place, device, every)
    assert sum(job.replays > 0 for job in device.jobs[count:]) == 0, "nothing is timed again"


def test_the_best_of_each_number_of_kernels_are_tried() -> None:
    """The model puts all candidates of two kernels before the one of a single kernel."""
    pieces = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (Variant(f"p{n}", None),)) for n in range(21))
    two = [CandidatePlan(f"{n}", "split", 10.0 + 0.1 * n, (2 * n, 2 * n + 1), (0, 1)) for n in range(10)]
    for us, first in ((14.0, True), (16.0, False)):
        plan = TuningPlan("run", "sm_80", (*two, CandidatePlan("one", "", us, (20,), (0,))), pieces)
        assert ((20, 0) in in_order(plan, 3)) == first


def test_candidates_without_a_running_maximum_are_tuned_only_where_all_are(tmp_path: Path) -> None:
    graph = PROGRAMS["attention"]()[0]
    names = {True: "stable", False: "not"}

    class Answers:
        workers = 1
        remarks: tuple[str, ...] = ()

        def __init__(self, stable: Sequence[bool]) -> None:
            self.stable = stable

        def run(self, function: Any, tasks: Any, **more: Any) -> Iterator[Any]:
            for at, (task, stable) in enumerate(zip(tasks, self.stable, strict=True)):
                assert task.name == f"{at} {names[stable]}"
                yield Done(at, [_Described("", 1.0 + at, stable, ((b"{}", at, 0, (), (None,)),))], 1, 0.0)

    for given, expected in (((False, True, False), ["1 stable"]), ((False, False), ["0 not", "1 not"])):
        source = Source(
            encode(graph), "h200", tuple((f"{at} {names[one]}", b"") for at, one in enumerate(given)), "digest"
        )
        maker = Maker(Place(tmp_path), Answers(given), lambda *said: None)  # type: ignore[arg-type]
        plan = plan_of(source, "sm_80", maker)
        assert [one.name for one in plan.candidates] == expected
        assert len(plan.pieces) == len(expected)


def test_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="expected the directory of a run"):
        tuned(tmp_path, Place(tmp_path / "place"), None)


def test_the_order_of_kernels_and_what_is_close() -> None:
    def piece(name: str, count: int) -> PiecePlan:
        return PiecePlan(msgspec.Raw(b"{}"), 0, (), tuple(Variant(f"{name}{n}", None) for n in range(count)))

    pieces = (piece("a", 3), piece("b", 2), piece("c", 1))
    candidates = (
        CandidatePlan("one", "", 10.0, (0,), (0,)),
        CandidatePlan("two", "", 10.0, (1, 2), (0, 1)),
        CandidatePlan("two", "split", 30.0, (2, 2), (0, 1)),
    )
    plan = TuningPlan("run", "sm_80", candidates, pieces)
    assert in_order(plan, 4) == [(0, 0), (1, 0), (2, 0), (0, 1)], "first schedules first"
    assert len(in_order(plan, 99)) == 6
    tried = {"a0": 5.0, "b0": 30.0, "c0": None, "b1": 8.0}
    assert in_order(plan, 5, tried) == [(0, 0), (1, 0), (2, 0), (1, 1), (0, 1)], "what was tried, then the fastest's"
    # By the model both candidates take 10; measured, the first takes twice the second, and counts as behind.
    tried = {"a0": 20.0, "b0": 5.0, "c0": 5.0}
    assert in_order(plan, 6, tried)[3:] == [(1, 1), (0, 1), (0, 2)]
    times = {"a0": 9.0, "a1": 4.0, "b1": 1.0}
    assert [(one.candidate, one.variants, one.us) for one in composed(plan, times)] == [(0, (1,), 4.0)]
    times |= {"c0": 1.0, "b0": 1.05}
    assert [(one.candidate, one.us) for one in composed(plan, times)] == [(1, 2.0), (2, 2.0), (0, 4.0)]
    assert [[one.candidate for one in some] for some in batches(plan, composed(plan, times), 2)] == [[1, 0]], (
        "once each"
    )
    assert close(plan, times, 1, 1.08) == [(1, 0), (1, 1), (2, 0)]
    assert close(plan, times, 3, 1.0) == [(1, 1), (2, 0), (0, 1)]
