"""Autotuning of a run: the steps that this machine can do, and the steps that are left for another.

A machine with solvers and no GPU builds kernels. A machine with a GPU and no solvers times them (``tune_on_device``).
The tuning directory, carried from one to the other, holds all intermediate results.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mirage_formal.autotune.finalists import Finalists, TuningFacts, comparison_job
from mirage_formal.autotune.plans import TuningDirectory, TuningPlan, Watch
from mirage_formal.autotune.successive_halving import RUNGS, finalist_batches, kernel_rungs
from mirage_formal.autotune.timing import Device, time_kernels
from mirage_formal.autotune.timing_cache import times_of_other_machine, times_of_this_machine
from mirage_formal.autotune.timing_subprocess import TimingAnswer, TimingJob
from mirage_formal.autotune.triton.results import BackendComparison
from mirage_formal.autotune.tuning_result import TuningResources, TuningResult
from mirage_formal.autotune.tuning_space import combine_forms, compose_candidates
from mirage_formal.cache.lock import lock_directory
from mirage_formal.codegen.executable import LAUNCH_FILE
from mirage_formal.device.compile import version as compiler
from mirage_formal.records import KERNELS
from mirage_formal.support.errors import MirageError, RunError
from mirage_formal.workers.dispatch import TaskDone

if TYPE_CHECKING:
    from mirage_formal.autotune.kernel_preparation import TunedRun


class NoTimesError(RunError):
    """Error: no candidate has times of all its kernels; time ran out, or a kernel of each failed."""


def tune_run(root: Path, bench: TuningResources) -> TuningResult:
    """Tune one run as far as this machine can.

    Sound: of what is timed every CUDA kernel has had all its obligations discharged; what is written is built again
    from a proved candidate by ``kernel_build.build.build_form``, which refuses a kernel that may not run. Triton
    files, which have no obligations and no such claim, are timed with other back ends alone
    (``autotune.triton.compare_backends``), and only where tested kernels are accepted.

    Args:
        root: The run's directory.
        bench: GPU, workers, directory and limits.

    Raises:
        RunError: There is no finished run, or no candidate has kernels that may run.
        SpaceError: The back end is "triton", and only proved kernels are accepted.
    """
    from mirage_formal.autotune.kernel_preparation import source_of
    from mirage_formal.kernel_build.triton.triton_acceptance import accepted_backend

    backend, instead = accepted_backend(bench.backend, bench.accept, "--backend", "--accept tested")
    bench = replace(bench, backend=backend)
    begin, source = time.monotonic(), source_of(root)
    tuned = _tune_cuda_kernels(root, source, bench, begin)
    if instead:
        from mirage_formal.autotune.triton.compare_backends import remove_triton_results

        with lock_directory(root):
            remove_triton_results(root)
        return replace(tuned, triton=BackendComparison("cuda", instead))
    if bench.backend == "cuda":
        return tuned
    from mirage_formal.autotune.triton.compare_backends import compare_with_cuda

    end = float("inf") if bench.limits.seconds is None else begin + bench.limits.seconds
    with lock_directory(root):
        return replace(tuned, triton=compare_with_cuda(root, tuned.rows, source.digest, bench, end))


def _tune_cuda_kernels(root: Path, source: TunedRun, bench: TuningResources, begin: float) -> TuningResult:
    """Tune a run with CUDA kernels alone; ``begin`` is the value of time.monotonic() at its start."""
    from mirage_formal.autotune.kernel_preparation import KernelPreparation, plan_of

    place, device, watch, limits = bench.place, bench.device, bench.watch, bench.limits

    deadline = float("inf") if limits.seconds is None else begin + limits.seconds

    def share(steps: int) -> float:
        """Return the deadline (time.monotonic) of the next step if ``steps`` equal steps share the time left."""
        return time.monotonic() + (deadline - time.monotonic()) / steps

    last = 1 if bench.backend == "cuda" else 2  # the steps after the finalists are built: their overlap, and Triton

    maker = KernelPreparation(place, bench.executor, watch)
    plan = place.plans.get((source.digest, bench.arch))
    if plan is None:
        plan = plan_of(source, bench.arch, maker)
        place.plans.put((plan.run, plan.arch), plan)
    tried = _known_times(plan, source.target, bench)
    known, why = len(tried), ""
    if isinstance(device, str):
        # Kernels timed on another machine may run, and finalists are rebuilt: no other machine code is needed.
        wanted, ready = len(tried), sum(us is not None for us in tried.values())
        refused = wanted - ready
    else:
        for rung, kernels in enumerate(kernel_rungs(plan, limits.kernels, tried)):
            # Without times of the first kernels there is no result: they have half of a time limit.
            end = share(max(RUNGS - rung, 1) + 1 + last if rung else 2)
            half = end if device is None else (time.monotonic() + end) / 2
            made = maker.prepare(plan, source.target, kernels, half)
            may = [at for at, one in made.items() if not one.refused]
            if device is not None:
                time_kernels(plan, may, place, device, watch=watch, deadline=end)
            tried |= _known_times(plan, source.target, bench)
            wanted, ready, refused = len(kernels), len(may), len(made) - len(may)
            why = next((one.refused for one in made.values() if one.refused), "")
    if not ready:
        raise _none_ready(root, device, why)
    added = max(0, wanted - max(limits.kernels, known))
    times = {key: us for key, us in tried.items() if us is not None}
    if device is None:
        left = "time the kernels on the machine with the GPU"
        return TuningResult(wanted, ready, len(times), (), left, added=added)
    plan = _add_mixed_forms(plan, times, source, bench)
    found = compose_candidates(plan, times)
    if not found:
        what = f"expected a candidate whose kernels were all timed, got none ({len(times)} kernels have times)"
        raise NoTimesError(what, where=str(root), hint="give it more time, or --kernels more")
    facts = TuningFacts(source, plan, wanted, refused, len(times))
    tuned = TuningResult(wanted, ready, len(times), (), added=added)
    with lock_directory(root):
        wholes, built = place.times(device) if isinstance(device, str) else None, share(1 + last)
        for chosen in finalist_batches(plan, found, limits.finalists, fewer=bench.backend != "cuda", measured=wholes):
            names = [plan.candidates[one.candidate].name for one in chosen]
            first = [one for at, one in enumerate(chosen) if names[at] not in names[:at]]
            finalists = Finalists(root, facts, bench, deadline)
            finalists.build(first, built)
            finalists.measure()
            for one in takewhile(lambda _: time.monotonic() < built, (x for x in chosen if x not in first)):
                finalists.instead(one)
            finalists.overlap(times, share(last))
            every = sorted([*tuned.rows, *finalists.rows.values()], key=lambda row: (row.us is None, row.us or 0.0))
            tuned = replace(tuned, rows=tuple(every), built={**tuned.built, **finalists.built})
            if isinstance(device, str):
                return replace(tuned, left="measure the candidates on the machine with the GPU")
            if any(row.us is not None for row in finalists.rows.values()) or time.monotonic() >= deadline:
                break  # try further ones while all are refused or outside tolerance
    return tuned


def _none_ready(root: Path, device: Device | str | None, why: str) -> NoTimesError:
    """Return the error that no kernel of a run may run, or has a time; ``why`` is the first refusal, or empty."""
    if not isinstance(device, str):
        none = "no candidate's kernels were proved equal to it; mirage-formal tools doctor looks for z3 and cvc5"
        hint = f"the first was refused: {why}" if why else none
        return NoTimesError("expected candidates with kernels that may run, got none", where=str(root), hint=hint)
    what = f"expected times of this run's kernels on {device}, got none: the times are of other kernels, or other code"
    return NoTimesError(
        what, where=str(root), hint="make and time them: tune, and gpu tune on the machine with the GPU"
    )


def _add_mixed_forms(
    plan: TuningPlan, times: Mapping[str, float], source: TunedRun, bench: TuningResources
) -> TuningPlan:
    """Return the plan with proved mixed forms added, at most as many as there may be finalists."""
    from mirage_formal.autotune.kernel_preparation import FINALIST_S, finalist_task, has_proved_form

    whole = msgspec.structs.replace(plan, candidates=(*plan.candidates, *combine_forms(plan, times)))
    own = len(plan.candidates)
    chosen = [one for one in compose_candidates(whole, times) if one.candidate >= own][: bench.limits.finalists]
    tasks = [finalist_task(source, whole, one) for one in chosen]
    events = bench.executor.run(has_proved_form, tasks, limit_s=FINALIST_S, once=True)
    holds = {event.index for event in events if isinstance(event, TaskDone) and event.value}
    kept = (whole.candidates[one.candidate] for number, one in enumerate(chosen) if number in holds)
    return msgspec.structs.replace(plan, candidates=(*plan.candidates, *kept))


def _known_times(plan: TuningPlan, target: str, bench: TuningResources) -> dict[str, float | None]:
    """Return known microseconds of the plan's kernels, by key; None for those that may not run, or failed.

    Args:
        plan: The plan.
        target: Name of the target.
        bench: Bench whose GPU's times count; without a GPU, the times of the directory's only GPU, if it has just one.

    Raises:
        RunError: The directory has no times of the named GPU.
    """
    place, device = bench.place, bench.device
    known = place.devices()
    if isinstance(device, str):
        if not place.times_path(device).is_file():
            what = f"expected times of {device}, got those of: {', '.join(known) or 'none'}"
            hint = "the GPU's machine writes them: gpu tune --place"
            raise RunError(what, where=str(place.root / "times"), hint=hint)
        return times_of_other_machine(plan, place.times(device), target, bench.executor)
    if device is None:
        return times_of_this_machine(plan, place.times(known[0]) if len(known) == 1 else {}, place)
    return times_of_this_machine(plan, place.times(device.machine.device, device.machine.driver, compiler()), place)


def tune_on_device(
    place: TuningDirectory, roots: Sequence[Path], device: Device, watch: Watch, seconds: float | None = None
) -> list[tuple[str, TimingAnswer]]:
    """Do the GPU's share of tuning: time all prepared kernels, then the candidates of these runs.

    Args:
        place: The tuning directory.
        roots: Runs whose ``kernels`` directories are compared with float64 and timed.
        device: The GPU.
        watch: Callback for progress.
        seconds: Seconds for all of it; None is no limit.

    Returns:
        Directories of kernels with their results.
    """
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    for path in place.plans.entries():
        plan = place.plans.read(path).record.value
        time_kernels(plan, place.usable(plan, plan.kernels()), place, device, watch=watch, deadline=deadline)
    directories = [path.parent for root in roots for path in sorted((root / KERNELS).glob(f"*/{LAUNCH_FILE}"))]
    jobs: list[TimingJob] = []
    for directory in directories:
        try:
            jobs.append(comparison_job(directory, place))
        except MirageError as error:
            raise RunError(f"expected kernels as they were built: {error}", where=str(directory)) from None
    found = []
    for job, answer in device.run(None, place.root, jobs, deadline):
        found.append((job.directory, answer))
        watch("measured", len(found), len(jobs))
    return found


__all__ = ["NoTimesError", "tune_on_device", "tune_run"]
