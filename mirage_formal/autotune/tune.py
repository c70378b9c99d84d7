"""Autotuning of a run: the steps that this machine can do, and the steps that are left for another.

A machine with solvers and no GPU builds kernels. A machine with a GPU and no solvers times them (``tune_on_device``).
The tuning directory, carried from one to the other, holds all intermediate results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mirage_formal.autotune.bench import TuningResources, TuningResult
from mirage_formal.autotune.child import TimingAnswer, TimingJob
from mirage_formal.autotune.choose import (
    batches,
    combine_forms,
    compose_candidates,
    needed_kernels,
    order_kernels,
)
from mirage_formal.autotune.finalists import JUDGED_S, Finalists, TuningFacts, comparison_job
from mirage_formal.autotune.local_search import STEP, neighbouring_schedules
from mirage_formal.autotune.plans import At, TuningDirectory, TuningPlan, Watch
from mirage_formal.autotune.timing import Device, time_kernels
from mirage_formal.autotune.timing_cache import times_of_other_machine, times_of_this_machine
from mirage_formal.cache.lock import lock_directory
from mirage_formal.codegen.executable import LAUNCH_FILE
from mirage_formal.device.compile import version as compiler
from mirage_formal.records import KERNELS
from mirage_formal.support.errors import MirageError, RunError
from mirage_formal.workers.dispatch import TaskDone

if TYPE_CHECKING:
    from mirage_formal.autotune.prepare import TunedRun

#: Shares of a time limit at the end of each round of building and timing, of building finalists, and of choosing
#: overlapping launches.
_MADE: Final = (0.3, 0.52)
_TIMED: Final = (0.42, 0.65)
_BUILT: Final = 0.72
_OVERLAPPED: Final = 0.95


class NoTimesError(RunError):
    """Error: no candidate has times of all its kernels; time ran out, or a kernel of each failed."""


def tune(root: Path, bench: TuningResources) -> TuningResult:
    """Tune one run as far as this machine can.

    Sound: of what is timed every CUDA kernel has had all its obligations discharged; what is written is built again
    from a proved candidate by ``kernel_build.build.build_form``, which refuses a kernel that may not run. Triton
    files, which have no obligations, are timed with other back ends alone (``autotune.triton.compare_backends``).

    Args:
        root: The run's directory.
        bench: GPU, workers, directory and limits.

    Raises:
        RunError: There is no finished run, or no candidate has kernels that may run.
    """
    from mirage_formal.autotune.prepare import source_of

    begin, source = time.monotonic(), source_of(root)
    tuned = _tune_cuda_kernels(root, source, bench, begin)
    if bench.backend == "cuda":
        return tuned
    from mirage_formal.autotune.triton.compare_backends import compare_with_cuda

    end = float("inf") if bench.limits.seconds is None else begin + bench.limits.seconds
    with lock_directory(root):
        late = max(end, time.monotonic() + JUDGED_S)
        return replace(tuned, triton=compare_with_cuda(root, tuned.rows, source.digest, bench, late))


def _tune_cuda_kernels(root: Path, source: TunedRun, bench: TuningResources, begin: float) -> TuningResult:
    """Tune a run with CUDA kernels alone; ``begin`` is the value of time.monotonic() at its start."""
    from mirage_formal.autotune.prepare import Maker, plan_of

    place, device, watch, limits = bench.place, bench.device, bench.watch, bench.limits

    def until(share: float) -> float:
        return float("inf") if limits.seconds is None else begin + share * limits.seconds

    deadline = until(1.0)
    maker = Maker(place, bench.executor, watch)
    plan = place.plans.get((source.digest, bench.arch))
    if plan is None:
        plan = plan_of(source, bench.arch, maker)
        place.plans.put((plan.run, plan.arch), plan)
    tried = _known_times(plan, source.target, bench)
    why = ""
    for number, wanted in enumerate(_kernel_rounds(plan, limits.kernels, tried, device)):
        late = number > 0 or bool(tried) or device is None
        if isinstance(device, str):
            # Kernels timed on another machine may run, and finalists are rebuilt: no other machine code is needed.
            ready = [at for at in wanted if tried.get(plan.key(at)) is not None]
            refused = sum(plan.key(at) in tried for at in wanted) - len(ready)
        else:
            made = maker.prepare(plan, source.target, wanted, until(_MADE[late]))
            ready = [at for at, one in made.items() if not one.refused]
            refused = len(made) - len(ready)
            why = next((one.refused for one in made.values() if one.refused), "")
            if device is not None:
                time_kernels(plan, ready, place, device, watch=watch, deadline=until(_TIMED[late]))
            tried |= _known_times(plan, source.target, bench)
    if not ready:
        raise _none_ready(root, device, why)
    added = max(0, len(wanted) - limits.kernels)
    times = {key: us for key, us in tried.items() if us is not None}
    if device is None:
        left = "time the kernels on the machine with the GPU"
        return TuningResult(len(wanted), len(ready), len(times), (), left, added=added)
    plan = _add_mixed_forms(plan, times, source, bench)
    found = compose_candidates(plan, times)
    if not found:
        what = f"expected a candidate whose kernels were all timed, got none ({len(times)} kernels have times)"
        raise NoTimesError(what, where=str(root), hint="give it more time, or --kernels more")
    facts = TuningFacts(source, plan, len(wanted), refused, len(times))
    tuned = TuningResult(len(wanted), len(ready), len(times), (), added=added)
    with lock_directory(root):
        known = place.times(device) if isinstance(device, str) else None
        for chosen in batches(plan, found, limits.finalists, fewer=bench.backend != "cuda", measured=known):
            names = [plan.candidates[one.candidate].name for one in chosen]
            first = [one for at, one in enumerate(chosen) if names[at] not in names[:at]]
            finalists = Finalists(root, facts, bench, deadline)
            finalists.build(first, until(_BUILT))
            finalists.measure()
            for one in takewhile(lambda _: time.monotonic() < until(_BUILT), (x for x in chosen if x not in first)):
                finalists.instead(one)
            finalists.overlap(times, until(_OVERLAPPED))
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
        none = "no candidate's kernels were proved equal to it; mirage-formal doctor says whether z3 and cvc5 are here"
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
    from mirage_formal.autotune.prepare import FINALIST_S, finalist_task, has_proved_form

    whole = msgspec.structs.replace(plan, candidates=(*plan.candidates, *combine_forms(plan, times)))
    own = len(plan.candidates)
    chosen = [one for one in compose_candidates(whole, times) if one.candidate >= own][: bench.limits.finalists]
    tasks = [finalist_task(source, whole, one) for one in chosen]
    events = bench.executor.run(has_proved_form, tasks, limit_s=FINALIST_S, once=True)
    holds = {event.index for event in events if isinstance(event, TaskDone) and event.value}
    kept = (whole.candidates[one.candidate] for number, one in enumerate(chosen) if number in holds)
    return msgspec.structs.replace(plan, candidates=(*plan.candidates, *kept))


def _kernel_rounds(
    plan: TuningPlan, kernels: int, tried: Mapping[str, float | None], device: Device | str | None
) -> Iterator[list[At]]:
    """Yield the kernels of each round; the last ones include those of earlier rounds.

    On a GPU, three eighths of the kernels are chosen by the cost model, and three eighths by the times of these. The
    last quarter are a few at a time, next to the fastest so far (``local_search``). Further rounds try kernels that are
    still needed, as long as they make progress: where kernels are refused or fail, the next candidate's are tried.

    Args:
        plan: The plan.
        kernels: Number of kernels asked for.
        tried: Known times, to which every round adds.
        device: The GPU, the name of a file of times, or None.
    """

    def left(some: int) -> int:
        return sum(plan.key(at) not in tried for at in order_kernels(plan, some, tried))

    known = -1
    if device is not None and not isinstance(device, str):
        for some in (3 * kernels // 8, kernels - kernels // 4):
            if some and left(some):
                yield order_kernels(plan, some, tried)
        while known < len(tried) and (more := neighbouring_schedules(plan, tried, min(STEP, left(kernels)))):
            known = len(tried)
            yield more
    yield order_kernels(plan, kernels, tried)
    known = -1
    while not isinstance(device, str) and len(tried) > known and needed_kernels(plan, tried):
        known = len(tried)
        yield order_kernels(plan, kernels, tried)


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
        every = [(p, v) for p, piece in enumerate(plan.pieces) for v in range(len(piece.variants))]
        time_kernels(plan, place.usable(plan, every), place, device, watch=watch, deadline=deadline)
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


__all__ = ["NoTimesError", "tune", "tune_on_device"]
