"""Finalists of a run: candidates chosen by kernel times, then built, compared with float64 and timed as wholes.

The times of whole candidates are kept with the times of kernels. Another machine therefore makes the same decisions
from the files alone: which of two forms of a candidate to keep, and which launches overlap.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.autotune.plans import KernelOrigin, MeasuredTime, TuningDirectory, TuningPlan
from mirage_formal.autotune.successive_halving import other_schedules
from mirage_formal.autotune.timing_cache import kernel_code_digest
from mirage_formal.autotune.timing_subprocess import TimingJob, timed_record
from mirage_formal.autotune.tuning_result import FinalistRow, TuningResources
from mirage_formal.autotune.tuning_space import ComposedCandidate, moves_factors, whole_key
from mirage_formal.codegen.executable import Executable, KernelLaunch
from mirage_formal.device.compile import version as compiler
from mirage_formal.device.sealed_records import manifest_digest
from mirage_formal.records import KERNELS, RealizationRecord, TuningRecord
from mirage_formal.workers.dispatch import TaskDone, TaskFailed

if TYPE_CHECKING:
    from mirage_formal.autotune.kernel_preparation import TunedRun
    from mirage_formal.kernel_build.built_kernels import BuiltKernels

#: Least seconds for building finalists, if the time limit is not reached before.
_BUILT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TuningFacts:
    """Statistics of tuning that are written into a measurement.

    Attributes:
        source: The run.
        plan: The plan.
        kernels: Number of kernels considered.
        refused: Number of these that may not run.
        timed: Number of these that have a time.
    """

    source: TunedRun
    plan: TuningPlan
    kernels: int
    refused: int
    timed: int

    def record(self, one: ComposedCandidate) -> TuningRecord:
        """Return the record of a composed candidate.

        It has the counts of candidates and kernels, the candidate's rank by the cost model, the rank of each kernel's
        schedule (both from 1), and the sum of its kernels' measured times in microseconds.
        """
        pieces = self.plan.candidates[one.candidate].pieces
        choices = zip(pieces, one.variants, strict=True)
        ranks = tuple(at + 1 for piece, at in choices if len(self.plan.pieces[piece].variants) > 1)
        return TuningRecord(
            candidates=len(self.plan.candidates),
            kernels=self.kernels,
            refused=self.refused,
            timed=self.timed,
            model_rank=one.candidate + 1,
            schedule_ranks=ranks,
            composed_us=one.us,
        )


@dataclass(slots=True)
class Finalists:
    """Finalists of a run, each in its fastest form so far.

    Sound: kernels come from ``autotune.kernel_preparation.build_finalist``, which refuses what is not proved or may not
    run; times decide only between those.

    Attributes:
        root: The run's directory; kernels are written to its ``kernels``.
        facts: Statistics of tuning.
        bench: Resources for measurement: a GPU, or the name of one whose times of wholes are known.
        deadline: Value of time.monotonic() at which to stop measuring.
        rows: Result of each finalist by name, failed ones included.
        built: Kernels of each finalist by name.
        claims: Claims of all kernels that were built, so that each is decided once (``kernel_build.validation``).
    """

    root: Path
    facts: TuningFacts
    bench: TuningResources
    deadline: float
    rows: dict[str, FinalistRow] = field(default_factory=dict)
    built: dict[str, BuiltKernels] = field(default_factory=dict)
    claims: dict[str, RealizationRecord] = field(default_factory=dict)
    _chosen: dict[str, ComposedCandidate] = field(default_factory=dict)

    def build(self, chosen: Sequence[ComposedCandidate], deadline: float) -> None:
        """Build and write kernels of candidates in parallel until a deadline; the first one has all the time left."""
        from mirage_formal.kernel_build.save import save_built
        from mirage_formal.kernel_build.validation import claim_records

        # Unfinished builds are lost at a deadline, so each gets time to finish, on as many processors.
        made = dict(self._build_kernels(chosen, min(self.deadline, max(deadline, time.monotonic() + _BUILT_S))))
        if chosen and 0 not in made:
            made |= dict(self._build_kernels(chosen[:1], self.deadline))
        for number, one in enumerate(chosen):
            if number not in made:
                continue
            candidate, found = self.facts.plan.candidates[one.candidate], made[number]
            said, tested = (found, ()) if isinstance(found, str) else ("", found.tested)
            if not isinstance(found, str):
                directory = self.root / KERNELS / candidate.name
                self.built[candidate.name] = found
                self.claims |= claim_records(found)
                save_built(found, directory)
                self.bench.place.choices.put(manifest_digest(directory), self.facts.record(one))
            rank = one.candidate + 1
            self.rows[candidate.name] = FinalistRow(
                candidate.name, candidate.form, None, one.us, candidate.us, rank, said, tested
            )
            self._chosen[candidate.name] = one

    def _build_kernels(
        self, chosen: Sequence[ComposedCandidate], deadline: float
    ) -> Iterator[tuple[int, BuiltKernels | str]]:
        """Yield the kernels of candidates by position, or the reason why there are none, as they complete."""
        from mirage_formal.autotune.kernel_preparation import FINALIST_S, build_finalist, finalist_task

        facts, accept = self.facts, self.bench.accept
        known = dict(self.claims)
        tasks = [replace(finalist_task(facts.source, facts.plan, one, accept), claims=known) for one in chosen]
        done = 0
        for event in self.bench.executor.run(build_finalist, tasks, limit_s=FINALIST_S, deadline=deadline, once=True):
            if isinstance(event, TaskDone | TaskFailed):
                done += 1
                self.bench.watch("built", done, len(chosen))
                if isinstance(event, TaskDone):
                    yield event.index, event.value
                else:
                    yield event.index, f"it could not be built: {event.reason}"[:500]

    def measure(self) -> None:
        """Compare the finalists with float64 and time them; or reuse known measurements."""
        device, place = self.bench.device, self.bench.place
        ready = {str(self._directory(name)): name for name, row in self.rows.items() if not row.said}
        if device is None or isinstance(device, str):
            for name in ready.values():
                self._judge(name, self._known_time(self._chosen[name]))
            return
        from mirage_formal.kernel_build.code_digest import digest_of_text

        machine = device.machine
        jobs = [comparison_job(Path(directory), place) for directory in ready]
        self.bench.watch("measured", 0, len(jobs))
        for number, (job, found) in enumerate(device.run(None, place.root, jobs, self.deadline), 1):
            name = ready[job.directory]
            key = whole_key(self.facts.plan, self._chosen[name])
            executable = self.built[name].executable
            text = digest_of_text(executable.launches, executable.sources.values())
            one = timed_record(key, job, found, machine.driver, KernelOrigin(text, compiler(), kernel_code_digest()))
            place.keep_times(machine.device, [one])
            self._judge(name, one)
            self.bench.watch("measured", number, len(jobs))

    def instead(self, one: ComposedCandidate) -> bool:
        """Replace the form of a candidate if another one is faster as a whole.

        The other form is built and measured in a temporary directory, because a candidate has one directory in the run.
        A form that is known to be slower is not built. Without a GPU, only a form known to be faster is built.

        Returns:
            Whether the form was replaced.
        """
        from mirage_formal.kernel_build.save import move_built

        name, known = self.facts.plan.candidates[one.candidate].name, self._known_time(one)
        before = self.rows.get(name)
        if before is None:  # there was no time for it
            return False
        least = float("inf") if before.us is None else before.us
        if known is None:
            if self.bench.device is None or isinstance(self.bench.device, str):
                return False
        elif known.failed or known.us >= least:
            return False
        with tempfile.TemporaryDirectory(dir=self.bench.place.root) as aside:
            other = Finalists(Path(aside), self.facts, self.bench, self.deadline, claims=self.claims)
            other.build([one], self.deadline)
            other.measure()
            row = other.rows.get(name)
            if row is None or row.us is None or row.us >= least:  # it was not built or timed before the deadline
                return False
            move_built(other._directory(name), self._directory(name))  # with its measurements
        self.rows[name], self.built[name], self._chosen[name] = row, other.built[name], one
        return True

    def overlap(self, times: Mapping[str, float], deadline: float) -> None:
        """Choose early launches and schedules beside them, for the fastest finalist, by measurement of wholes.

        The same is done for the fastest finalist that moves factors behind products, if it is another one: it rounds
        less, and serves users for whom the fastest rounds too much.

        Args:
            times: Microseconds of kernels by key.
            deadline: Value of time.monotonic() at which to stop.
        """
        order = sorted((row.us, name) for name, row in self.rows.items() if row.us is not None)
        names = [name for _, name in order]
        exact = (name for name in names if moves_factors(self.facts.plan.candidates[self._chosen[name].candidate]))
        for name in dict.fromkeys([*names[:1], *islice(exact, 1)]):
            self._choose_overlap_of(name, times, deadline)

    def _choose_overlap_of(self, name: str, times: Mapping[str, float], deadline: float) -> None:
        """Change one choice of a finalist at a time, and keep each change that makes the whole faster.

        All kernels that can be early become so, then each goes the other way. Then each of the ``other_schedules`` is
        tried, if need be with all early; if one was faster, each kernel goes the other way once more. Each of these
        steps tries as many changes as there are finalists at most.
        """
        producers = dependent_producers(self.built[name].executable)
        early, most, start = frozenset(producers), self.bench.limits.finalists, self._chosen[name]

        def takes(**changes: Any) -> bool:
            return time.monotonic() < deadline and self.instead(replace(self._chosen[name], **changes))

        def flip_each() -> None:
            for one in producers[:most]:
                takes(early=self._chosen[name].early ^ {one})

        if not producers:
            return
        takes(early=early)
        if len(producers) > 1:
            flip_each()
        plan, changed = self.facts.plan, False
        pieces = plan.candidates[start.candidate].pieces
        for place, at in other_schedules(plan, times, start)[:most]:
            before = self._chosen[name].variants
            variants = (*before[:place], at, *before[place + 1 :])
            us = sum(times[plan.key(kernel)] for kernel in zip(pieces, variants, strict=True))
            changed |= takes(variants=variants, us=us) or takes(variants=variants, us=us, early=early)
        if changed:
            flip_each()

    def _directory(self, name: str) -> Path:
        return self.root / KERNELS / name

    def _judge(self, name: str, one: MeasuredTime | None) -> None:
        us, said = (None, "") if one is None else (None, one.failed) if one.failed else (one.us, "")
        self.rows[name] = replace(self.rows[name], us=us, said=said)

    def _known_time(self, one: ComposedCandidate) -> MeasuredTime | None:
        """Return the time of a whole candidate on this GPU, driver and compiler, or on the named GPU, if known."""
        device, place = self.bench.device, self.bench.place
        if device is None:
            return None
        if isinstance(device, str):
            known = place.times(device)
        else:
            known = place.times(device.machine.device, device.machine.driver, compiler())
        found = known.get(whole_key(self.facts.plan, one))
        return found if found is None or found.code == kernel_code_digest() or self._same(found, one) else None

    def _same(self, found: MeasuredTime, one: ComposedCandidate) -> bool:
        """Return whether the code of this version would write the same text for a whole that another version timed."""
        from mirage_formal.autotune.kernel_preparation import FINALIST_S, finalist_task, finalist_text_digest

        task = finalist_task(self.facts.source, self.facts.plan, one)
        events = self.bench.executor.run(finalist_text_digest, [task], limit_s=FINALIST_S, once=True)
        return bool(found.text) and [event.value for event in events if isinstance(event, TaskDone)] == [found.text]


def dependent_producers(executable: Executable) -> tuple[int, ...]:
    """Return the operators whose kernels are followed by a dependent launch, in launch order.

    Such a kernel may be early, which lets the next launch copy its first tiles; but waiting threads occupy the
    multiprocessors. What that saves depends on both kernels, so it is measured on whole candidates (docs/kernels.md).
    """
    pairs = zip(executable.launches, executable.launches[1:], strict=False)
    return tuple(
        before.operator
        for before, behind in pairs
        if isinstance(before, KernelLaunch) and isinstance(behind, KernelLaunch) and behind.dependent
    )


def comparison_job(directory: Path, place: TuningDirectory) -> TimingJob:
    """Return the job that compares a candidate's kernels with float64 and times them."""
    return TimingJob(-1, -1, directory=str(directory), tuning=place.choices.get(manifest_digest(directory)))


__all__ = ["Finalists", "TuningFacts", "comparison_job", "dependent_producers"]
