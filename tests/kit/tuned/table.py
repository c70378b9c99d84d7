"""Tuning on a GPU that answers from a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from mirage_formal.run.autotuning.bench import Bench, Limits, Tuned
from mirage_formal.run.autotuning.child import Answer, Job, Machine
from mirage_formal.run.autotuning.plans import CandidatePlan, Place, TuningPlan, read_plan
from mirage_formal.run.autotuning.prepare import PRELOAD
from mirage_formal.run.autotuning.tune import tune
from mirage_formal.workers.pool import Pool

KERNELS = 10


class Table:
    """A GPU whose times a function gives; it counts what it is asked."""

    def __init__(self, us: Callable[[TuningPlan, Job], float | str]) -> None:
        self.machine = Machine("Test", "sm_80", 1, "torch 2.11.0, Triton 3.6.0")
        self.us = us
        self.jobs: list[Job] = []
        self.stop_after = 10**9

    def whole(self, directory: Path) -> float:
        """What a candidate takes."""
        return 5.0 + len(self.jobs)

    def run(self, plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        known = None if plan is None else read_plan(plan)
        for job in jobs:
            if len(self.jobs) >= self.stop_after:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return
            self.jobs.append(job)
            if known is None:
                us = self.whole(Path(job.directory))
                yield job, Answer(us, us, answer="within")
            else:
                found = self.us(known, job)
                yield job, Answer(failed=found) if isinstance(found, str) else Answer(found, found)


def last_is_best(plan: TuningPlan, job: Job) -> float:
    """Schedules that the model puts last are the fastest."""
    return 10.0 - job.variant + 0.001 * job.piece


def tuned(run: Path, place: Place, device: Table | str | None, limits: Limits | None = None) -> Tuned:
    with Pool(1, PRELOAD) as pool:
        bench = Bench(place, device, pool, lambda *said: None, "sm_80", limits or Limits(KERNELS, 2))
        return tune(run, bench)


def answers(found: Tuned) -> list[tuple[str, str, float | None]]:
    """The finalists: name, form and time."""
    return [(row.name, row.form, row.us) for row in found.rows]


def shorter(place: Place, candidates: Callable[[CandidatePlan], bool], schedules: int | None = None) -> None:
    """Leave some candidates in the plan of a place, and the first schedules of each kernel: less is to be made."""
    plan = plan_in(place.root)
    pieces = tuple(msgspec.structs.replace(one, variants=one.variants[:schedules]) for one in plan.pieces)
    left = tuple(one for one in plan.candidates if candidates(one))
    place.keep_plan(msgspec.structs.replace(plan, candidates=left, pieces=pieces))


def plan_in(place: Path) -> TuningPlan:
    (path,) = (place / "plans").glob("*.json")
    return read_plan(path)
