"""``tune`` on a GPU that answers from a table: what is made, timed, put together, kept and written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirage_formal.autotune import finalists, kernel_preparation, tune
from mirage_formal.autotune.kernel_preparation import KernelPreparation, TunedRun, _DescribedForm, plan_of
from mirage_formal.autotune.measured_order import MeasurementLimits, order_by_measurement
from mirage_formal.autotune.plans import (
    At,
    CandidatePlan,
    KernelOrigin,
    PiecePlan,
    PreparedKernel,
    ScheduleVariant,
    TuningDirectory,
    TuningPlan,
)
from mirage_formal.autotune.successive_halving import finalist_batches, kernel_rungs
from mirage_formal.autotune.timing import FIRST, SECOND, time_kernels
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob
from mirage_formal.autotune.tune import NoTimesError, tune_on_device
from mirage_formal.autotune.tuning_result import FinalistRow, TuningLimits
from mirage_formal.autotune.tuning_space import compose_candidates
from mirage_formal.cache.cache_directory import CacheWarning
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.device.sealed_records import manifest_digest
from mirage_formal.graph.formats.json import encode
from mirage_formal.kernel_build.build import KernelWarning
from mirage_formal.records import PlanRecord, TuningRecord
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.run.results.result import Results
from mirage_formal.support.errors import MirageError
from mirage_formal.workers.dispatch import TaskDone
from tests.autotune.fake_tuning import KERNELS, Table, last_is_best, plan_in, shorter, tuned
from tests.kit.processes import HUNG_S, Clock
from tests.kit.runs import small_runs, tampering
from tests.kit.runs.known_engine import PROGRAMS


def by_model(place: Path, most: int = KERNELS) -> list[At]:
    """The kernels that are made, if so many are asked for and nothing is timed."""
    *_, last = kernel_rungs(plan_in(place), most, {})
    return last


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and a tuning directory with its kernels."""
    root = tmp_path_factory.mktemp("tune")
    small_runs.make(root / "run", kernels=0)
    place = TuningDirectory(root / "place")
    assert tuned(root / "run", place, None).left.startswith("time the kernels")
    return root / "run", place.root


def test_every_kernel_that_is_made_may_run_and_is_made_once(made: tuple[Path, Path]) -> None:
    place = TuningDirectory(made[1])
    plan = plan_in(made[1])
    wanted = by_model(made[1])
    assert len(wanted) == len({plan.key(at) for at in wanted})
    assert KERNELS < len(wanted) <= KERNELS + len(plan.candidates[-1].pieces), "the operators one by one do not count"
    assert place.usable(plan, wanted) == wanted
    before = {path: path.stat().st_mtime_ns for path in (made[1] / "kernels").iterdir()}
    assert len(before) == len(wanted)
    tuned(made[0], place, None)
    assert {path: path.stat().st_mtime_ns for path in (made[1] / "kernels").iterdir()} == before


def test_the_fastest_schedules_are_built_and_checked(made: tuple[Path, Path], tmp_path: Path) -> None:
    device = Table(last_is_best)
    shutil.copytree(made[1], tmp_path / "place")  # the times choose further kernels
    place = TuningDirectory(tmp_path / "place")
    found = tuned(made[0], place, device, TuningLimits(3 * KERNELS, 2))
    every = len(by_model(place.root, 3 * KERNELS))
    assert found.timed == found.ready == every
    assert found.added == every - 3 * KERNELS
    assert found.triton is None, "nobody asked for it"
    assert not any(job.triton for job in device.jobs)
    assert not (place.root / "triton").exists()
    plan = plan_in(place.root)
    times = {name: one.us for name, one in place.times("Test").items()}
    best = next(finalist_batches(plan, compose_candidates(plan, times), 2))
    assert [row.name for row in found.rows] == list(dict.fromkeys(plan.candidates[one.candidate].name for one in best))
    directory = made[0] / "kernels" / found.rows[0].name
    kernels = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord).kernels
    asked = [one.schedule for one in kernels if one.schedule is not None]
    first = [plan.pieces[p].variants[0].schedule for p in plan.candidates[best[0].candidate].pieces]
    assert asked
    assert asked != [one for one in first if one is not None], "the last schedule is faster than the first"
    derive_kernels(directory)
    tuning = place.choices.get(manifest_digest(directory))
    assert isinstance(tuning, TuningRecord)
    assert (tuning.kernels, tuning.refused, tuning.timed) == (every, 0, every)
    assert max(tuning.schedule_ranks) > 1


def test_times_alone_choose_the_same_kernels_elsewhere(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Where there is neither the GPU nor what was made for it, finalists are the files that they were there."""

    def files(rows: Sequence[FinalistRow]) -> dict[str, bytes]:
        places = [made[0] / "kernels" / row.name for row in rows]
        every = [path for place in places for path in place.iterdir() if path.suffix == ".cu" or "plan" in path.name]
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in every}

    there, here = TuningDirectory(tmp_path / "there"), TuningDirectory(tmp_path / "here")
    shutil.copytree(made[1], there.root, dirs_exist_ok=True)
    first = tuned(made[0], there, Table(last_is_best))
    chosen = files(first.rows)
    here.keep_times("Test", list(there.times("Test").values()))
    again = tuned(made[0], here, "Test")
    assert again.left == "measure the candidates on the machine with the GPU"
    assert chosen
    assert files(again.rows) == chosen
    assert (again.kernels, again.ready, again.timed) == (first.kernels, first.ready, first.timed)
    assert not list((tmp_path / "here").glob("kernels/*")), "machine code of the others is of no use"


def test_another_schedule_in_the_plan_is_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    tuned(made[0], TuningDirectory(tmp_path / "place"), Table(last_is_best))
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
    place = TuningDirectory(tmp_path / "place")
    device = Table(last_is_best)
    device.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        tune_on_device(place, [], device, lambda *said: None)
    assert len(place.times("Test")) == 4
    device.stop_after = 10**9
    tune_on_device(place, [], device, lambda *said: None)
    short = [(job.piece, job.variant) for job in device.jobs if job.replays == min(j.replays for j in device.jobs)]
    assert len(short) == len(set(short)) == len(by_model(place.root))
    count = len(device.jobs)
    tune_on_device(place, [], device, lambda *said: None)
    assert len(device.jobs) == count


def test_kernels_that_fail_are_left_out(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")

    def broken(plan: TuningPlan, job: TimingJob) -> float | str:
        return "it hung" if job.variant else 7.0

    found = tuned(made[0], place, Table(broken), TuningLimits(3 * KERNELS, 2))
    assert found.timed < found.ready
    for row in found.rows:
        kernels = msgspec.json.decode((made[0] / "kernels" / row.name / "plan.json").read_bytes(), type=PlanRecord)
        schedules = {one.schedule for one in kernels.kernels}
        plan = plan_in(place.root)
        assert schedules <= {None, *(piece.variants[0].schedule for piece in plan.pieces if piece.variants)}


def test_times_of_another_driver_do_not_count(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")
    tune_on_device(place, [], Table(last_is_best), lambda *said: None)
    other = Table(last_is_best)
    other.machine = GpuMachine("Test", "sm_80", 2)
    tune_on_device(place, [], other, lambda *said: None)
    assert len({(job.piece, job.variant) for job in other.jobs}) == len(by_model(place.root))


@pytest.mark.slow
def test_kernels_and_times_of_another_compiler_do_not_count(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place, device = TuningDirectory(tmp_path / "place"), Table(last_is_best)
    shorter(place, lambda one: True, 1)  # which schedules there are is not asked here
    tuned(made[0], place, device)
    # no whole candidate
    victim = next(key for key in sorted(place.times("Test")) if place.kernels.get(key) is not None)
    one = place.kernels.get(victim)
    assert one is not None
    old = msgspec.structs.replace(one.origin, compiler="1.0")
    place.kernels.put(victim, msgspec.structs.replace(one, origin=old))
    count, most = len(device.jobs), TuningLimits(3 * KERNELS, 2)  # so that all that were tried are looked at again
    tuned(made[0], place, device, most)
    assert place.kernels.get(victim) == one, "it is made again"
    plan = plan_in(place.root)

    def timed() -> set[str]:
        return {plan.pieces[job.piece].variants[job.variant].key for job in device.jobs[count:] if job.replays}

    assert victim not in timed(), "and has its time from before"
    times = place.times("Test")
    place.keep_times("Test", [msgspec.structs.replace(times[victim], compiler="1.0")])
    tuned(made[0], place, device, most)
    assert victim in timed()


def test_a_damaged_kernel_is_made_again(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    place = TuningDirectory(tmp_path / "place")
    path = place.kernels.entries()[0]
    victim, file = place.kernels.read(path).record.key, path / "entry.json"
    file.write_bytes(file.read_bytes().replace(b'"outputs"', b'"output5"'))
    with pytest.warns(CacheWarning, match="refused, and made again"):
        assert place.kernels.get(victim) is None
    tuned(made[0], place, None)
    found = place.kernels.get(victim)
    assert found is not None
    assert not found.refused


@pytest.mark.slow
def test_times_that_are_not_there_are_said(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")
    with pytest.raises(MirageError, match="expected times of Test, got those of: none"):
        tuned(made[0], place, "Test")
    shorter(place, lambda one: True, 2)  # kernels are made until none is left
    with pytest.raises(MirageError, match="expected a candidate whose kernels were all timed, got none"):
        tuned(made[0], place, Table(lambda plan, job: "it hung"))


def test_a_limit_leaves_time_for_what_comes_behind(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes too long costs kernels and finalists; all ends in time, on a clock that measurements alone move."""
    begin, limit_s = time.monotonic(), float(HUNG_S)
    clock = Clock(still=True)
    clock.ahead = begin
    for module in (tune, finalists, kernel_preparation):
        monkeypatch.setattr(module, "time", clock)
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    device, asked = Table(last_is_best), list[float]()
    run = device.run

    def slow(
        plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        asked.append(deadline - begin)
        yield from run(plan, place, jobs, float("inf") if clock.ahead < deadline else 0.0)
        if plan is not None:
            clock.ahead = max(clock.ahead, deadline)

    device.run = slow  # type: ignore[method-assign]
    found = tuned(made[0], TuningDirectory(tmp_path / "place"), device, TuningLimits(KERNELS, 4, limit_s))
    assert found.rows
    assert all(row.us is not None for row in found.rows)
    assert asked[0] <= limit_s / 2 + 1.0
    assert asked[-1] == max(asked) <= limit_s + 1.0


def test_without_enough_time_results_are_those_of_the_model(made: tuple[Path, Path], tmp_path: Path) -> None:
    device = Table(last_is_best)
    device.run = lambda *given: iter(())  # type: ignore[method-assign]
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place, given = TuningDirectory(tmp_path / "place"), list(Results())
    with pytest.warns(KernelWarning, match="nothing was measured within 5 s"):
        assert order_by_measurement(given, made[0], MeasurementLimits(2, 5.0), device, place) == given
    with pytest.raises(NoTimesError):
        order_by_measurement(given, made[0], MeasurementLimits(2), device, place)


@pytest.mark.parametrize(
    ("refused", "hint"),
    [
        ("an obligation is undecided", "the first was refused: an obligation is undecided"),
        (
            "",
            "no candidate's kernels were proved equal to it; mirage-formal tools doctor looks for z3 and cvc5",
        ),
    ],
)
def test_why_no_kernel_may_run(
    refused: str, hint: str, made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(
        self: KernelPreparation, plan: TuningPlan, target: str, wanted: Sequence[At], *rest: Any
    ) -> dict[At, PreparedKernel]:
        return {at: PreparedKernel(refused) for at in wanted if refused}

    monkeypatch.setattr(KernelPreparation, "prepare", prepare)
    with pytest.raises(NoTimesError, match="expected candidates with kernels that may run") as raised:
        tuned(made[0], TuningDirectory(tmp_path / "place"), Table(last_is_best), TuningLimits(KERNELS, 2))
    assert raised.value.hint == hint


def test_what_was_timed_says_what_is_timed_next(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")
    plan = plan_in(place.root)
    (worst,) = {one.pieces for one in plan.candidates[-1:]}

    def surprising(plan: TuningPlan, job: TimingJob) -> float:
        return 42.0 / len(worst) if job.piece in worst else 50.0

    device = Table(surprising)
    most = TuningLimits(2 * KERNELS, 2)
    tuned(made[0], place, device, most)
    short = [(job.piece, job.variant) for job in device.jobs if job.replays == FIRST]
    assert len(short) == len(set(short)) == len(by_model(place.root, 2 * KERNELS))
    tried: dict[str, float | None] = {}
    done = 0
    for rung in kernel_rungs(plan, 2 * KERNELS, tried):
        assert sorted(short[done : len(rung)]) == sorted(rung[done:])
        done = len(rung)
        tried |= {plan.key(at): surprising(plan, TimingJob(*at)) for at in rung}
    assert done == len(short)
    *_, blind = kernel_rungs(plan, 2 * KERNELS, {})
    assert sorted(short) != sorted(blind)
    count = len(device.jobs)
    tuned(made[0], place, device, most)
    assert sum(job.replays > 0 for job in device.jobs[count:]) == 0, "nothing is timed again"


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
                yield TaskDone(at, [_DescribedForm("", 1.0 + at, stable, ((b"{}", at, 0, (), (None,)),))], 1, 0.0)

    for given, expected in (((False, True, False), ["1 stable"]), ((False, False), ["0 not", "1 not"])):
        source = TunedRun(
            encode(graph), "h200", tuple((f"{at} {names[one]}", b"") for at, one in enumerate(given)), "digest"
        )
        maker = KernelPreparation(TuningDirectory(tmp_path), Answers(given), lambda *said: None)  # type: ignore[arg-type]
        plan = plan_of(source, "sm_80", maker)
        assert [one.name for one in plan.candidates] == expected
        assert len(plan.pieces) == len(expected)


def test_a_kernel_of_several_pieces_is_timed_once(tmp_path: Path) -> None:
    """And again by whichever piece the best candidate has, though another one was asked for first."""
    pieces = tuple(PiecePlan(msgspec.Raw(b"{}"), 0, (), (ScheduleVariant(key, None),)) for key in ("a", "same", "same"))
    candidates = (CandidatePlan("one", "", 10.0, (0, 2), (0, 1)), CandidatePlan("two", "", 10.0, (0, 1), (0, 1)))
    plan = TuningPlan("run", "sm_80", candidates, pieces)
    place, device = TuningDirectory(tmp_path), Table(lambda plan, job: 3.0)
    place.plans.put((plan.run, plan.arch), plan)
    for key in ("a", "same"):
        place.kernels.put(key, PreparedKernel("", origin=KernelOrigin(f"text of {key}", "13.0", "code")))
    for asked in ([(0, 0), (1, 0)], [(0, 0), (2, 0)], [(0, 0), (1, 0), (2, 0)]):
        time_kernels(plan, asked, place, device, watch=lambda *said: None)
    assert [(job.piece, job.replays) for job in device.jobs] == [(0, FIRST), (1, FIRST), (0, SECOND), (1, SECOND)]


def test_no_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="expected the directory of a run"):
        tuned(tmp_path, TuningDirectory(tmp_path / "place"), None)


def test_one_kernel_asked_for_is_enough_for_an_answer(made: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")
    found = tuned(made[0], place, Table(last_is_best), TuningLimits(1, 1))
    assert found.rows
    assert found.rows[0].us is not None
    assert found.added == found.kernels - 1 > 0
    plan = plan_in(place.root)
    plain = next(one.name for one in plan.candidates if one.unfused)
    assert plain in [row.name for row in found.rows]


@pytest.mark.slow
def test_the_faster_of_two_forms_of_a_candidate_is_kept(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Both are measured as wholes; the one that is slower by its sum is, and stays, in the candidate's directory."""
    shutil.copytree(made[1], tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    place = TuningDirectory(tmp_path / "place")
    plan = plan_in(place.root)
    forms = [one for one in plan.candidates if one.name == plan.candidates[0].name]
    marked = msgspec.structs.replace(forms[-1], library=True)
    others = tuple(msgspec.structs.replace(one, library=one is forms[-1]) for one in plan.candidates)
    place.plans.put((plan.run, plan.arch), msgspec.structs.replace(plan, candidates=others))
    whole: list[str] = []

    class Wholes(Table):
        def whole(self, directory: Path) -> float:
            whole.append(str(directory))
            return 3.0 if len(whole) > 1 and directory.name == marked.name else 9.0

    if len(forms) == 1:
        pytest.skip("the candidate has one form")
    found = tuned(made[0], place, Wholes(last_is_best), TuningLimits(KERNELS, 1))
    row = next(row for row in found.rows if row.name == marked.name)
    assert (row.form, row.us) == (marked.form, 3.0)
    # The other form is moved to the run as it was measured; with launches that overlap more it is as fast: left aside.
    places = [Path(one).parent.parent == made[0] for one in whole if Path(one).name == marked.name]
    assert places == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("faster", [True, False])
def test_launches_overlap_where_the_whole_is_faster_so(made: tuple[Path, Path], tmp_path: Path, faster: bool) -> None:
    shutil.copytree(made[1], tmp_path / "place")
    shutil.copytree(made[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "place" / "times", ignore_errors=True)
    early: list[list[bool]] = []

    class Early(Table):
        def whole(self, directory: Path) -> float:
            plans = msgspec.json.decode((directory / "plan.json").read_bytes(), type=PlanRecord)
            early.append([one.early for one in plans.kernels])
            return 9.0 - len(early[-1]) - (0.5 if any(early[-1]) is faster else 0.0)  # more kernels are faster

    found = tuned(tmp_path / "run", TuningDirectory(tmp_path / "place"), Early(last_is_best), TuningLimits(KERNELS, 2))
    best = found.rows[0]
    kernels = tmp_path / "run" / "kernels" / best.name
    plans = msgspec.json.decode((kernels / "plan.json").read_bytes(), type=PlanRecord).kernels
    assert len(plans) > 1
    assert any(any(one) for one in early), "it was tried"
    assert any(one.early for one in plans) is faster
    assert not plans[-1].early
    assert found.built[best.name].plans[0].early is plans[0].early
    derive_kernels(kernels, recompile=False)
