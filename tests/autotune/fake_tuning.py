"""Tuning on a GPU that answers from a table, of CUDA C++ and of Triton files, with workers that compile nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mirage_formal.autotune.kernel_preparation import PRELOAD
from mirage_formal.autotune.plans import CandidatePlan, TuningDirectory, TuningPlan
from mirage_formal.autotune.timing import FIRST
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob
from mirage_formal.autotune.triton.compare_backends import compare_with_cuda
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.autotune.tune import tune_run
from mirage_formal.autotune.tuning_result import FinalistRow, TuningLimits, TuningResources, TuningResult
from mirage_formal.records import MEASURE_FILE, MeasureRecord, NumericsRecord, TritonRecord, open_sealed
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from mirage_formal.workers.pool import Pool

TEST = GpuMachine("Test", "sm_90a", 1, "torch 2.11.0, Triton 3.6.0")
#: What the CUDA kernels of the two candidates take.
CUDA = (10.0, 12.0)
OPTIONS = re.compile(r"num_warps=(\d+), num_stages=(\d+)")
#: Microseconds of a file by the directory of its kernels, warps and stages; or how it fails.
Us = Callable[[str, int, int], float | str]


class Gpu:
    """A GPU whose times a function gives.

    Attributes:
        turns: What a file and CUDA kernels take in turns, or a function of warps that says so; None: as before.
        wrong: Whether a file's results are outside, by warps.
        jobs: What it was asked.
        stop_after: Jobs after which somebody presses Ctrl-C.
    """

    def __init__(self, us: Us, machine: GpuMachine = TEST) -> None:
        self.machine, self.us = machine, us
        self.turns: tuple[float, float] | str | Callable[[int], tuple[float, float]] | None = None
        self.wrong: Callable[[int], bool] = lambda warps: False
        self.jobs: list[TimingJob] = []
        self.stop_after = 10**9

    def run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        for job in jobs:
            if len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return
            self.jobs.append(job)
            yield job, self.answer(job)

    def answer(self, job: TimingJob) -> TimingAnswer:
        found = OPTIONS.findall(Path(job.triton).read_text())
        warps, stages = (max(int(one[at]) for one in found) for at in (0, 1))
        us = self.us(Path(job.directory).name, warps, stages)
        if isinstance(us, str):
            return TimingAnswer(failed=us)
        if job.cuda:
            turns = self.turns(warps) if callable(self.turns) else self.turns or (us, CUDA[0])
            return (
                TimingAnswer(failed=turns)
                if isinstance(turns, str)
                else TimingAnswer(turns[0], turns[0], cuda_us=turns[1])
            )
        if job.replays:
            return TimingAnswer(us, us)
        record = msgspec.json.decode((Path(job.directory) / "numerics.json").read_bytes(), type=NumericsRecord)
        return TimingAnswer(answer="outside" if self.wrong(warps) else "within", numerics=record)

    @property
    def timed(self) -> list[tuple[str, str]]:
        """Files that were timed in short, by directory and name."""
        return [(Path(job.directory).name, Path(job.triton).name) for job in self.jobs if job.replays == FIRST]


class Compiler:
    """Workers that compile nothing; or that die, or hang, at every file."""

    def __init__(self, fate: str = "") -> None:
        self.fate, self.texts = fate, list[str]()

    def run(self, function: Any, tasks: Sequence[Any], **more: Any) -> Iterator[Any]:
        for at, task in enumerate(tasks):
            self.texts.append(task.text)
            yield TaskFailed(at, self.fate, 1, overdue="hung" in self.fate) if self.fate else TaskDone(at, "", 1, 0.0)


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "kernels").iterdir())


def rows(run: Path) -> tuple[FinalistRow, ...]:
    return tuple(
        FinalistRow(name, "", us, us, us, rank) for rank, (name, us) in enumerate(zip(names(run), CUDA, strict=True), 1)
    )


def tried(
    run: Path,
    gpu: Gpu,
    compiler: Compiler | None = None,
    backend: str = "auto",
    seconds: float = 60.0,
    code: str = "1",
    cuda: tuple[FinalistRow, ...] = (),
) -> BackendComparison:
    bench = TuningResources(
        TuningDirectory(run.parent / "place"),
        gpu,
        compiler or Compiler(),  # type: ignore[arg-type]
        lambda *said: None,
        "sm_90a",
        backend=backend,
    )
    return compare_with_cuda(run, cuda or rows(run), code, bench, time.monotonic() + seconds)


def record(run: Path, at: int = 0) -> TritonRecord | None:
    path = run / "kernels" / names(run)[at] / MEASURE_FILE
    return open_sealed(path.read_bytes(), MeasureRecord, "").triton


def first_is(us: float, other: float = 30.0) -> Us:
    """The first candidate's files with 8 warps take so much, all others that."""
    return lambda name, warps, stages: us if name.startswith("001") and warps == 8 else other


KERNELS = 10


class Table:
    """A GPU whose times a function gives; it counts what it is asked."""

    def __init__(self, us: Callable[[TuningPlan, TimingJob], float | str]) -> None:
        self.machine = GpuMachine("Test", "sm_80", 1, "torch 2.11.0, Triton 3.6.0")
        self.us = us
        self.jobs: list[TimingJob] = []
        self.stop_after = 10**9

    def whole(self, directory: Path) -> float:
        """What a candidate takes."""
        return 5.0 + len(self.jobs)

    def run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        known = None if plan is None else TuningDirectory(place).plans.read(plan).record.value
        for job in jobs:
            if len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return
            self.jobs.append(job)
            if known is None:
                us = self.whole(Path(job.directory))
                yield job, TimingAnswer(us, us, answer="within")
            else:
                found = self.us(known, job)
                yield job, TimingAnswer(failed=found) if isinstance(found, str) else TimingAnswer(found, found)


def last_is_best(plan: TuningPlan, job: TimingJob) -> float:
    """Schedules that the model puts last are the fastest."""
    return 10.0 - job.variant + 0.001 * job.piece


def tuned(
    run: Path, place: TuningDirectory, device: Table | str | None, limits: TuningLimits | None = None
) -> TuningResult:
    with Pool(1, PRELOAD) as pool:
        bench = TuningResources(place, device, pool, lambda *said: None, "sm_80", limits or TuningLimits(KERNELS, 2))
        return tune_run(run, bench)


def answers(found: TuningResult) -> list[tuple[str, str, float | None]]:
    """The finalists: name, form and time."""
    return [(row.name, row.form, row.us) for row in found.rows]


def shorter(place: TuningDirectory, candidates: Callable[[CandidatePlan], bool], schedules: int | None = None) -> None:
    """Leave some candidates in the plan of a place, and the first schedules of each kernel: less is to be made."""
    plan = plan_in(place.root)
    pieces = tuple(msgspec.structs.replace(one, variants=one.variants[:schedules]) for one in plan.pieces)
    left = tuple(one for one in plan.candidates if candidates(one))
    place.plans.put((plan.run, plan.arch), msgspec.structs.replace(plan, candidates=left, pieces=pieces))


def plan_in(place: Path) -> TuningPlan:
    plans = TuningDirectory(place).plans
    (path,) = plans.entries()
    return plans.read(path).record.value
