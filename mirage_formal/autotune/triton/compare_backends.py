"""Comparison of back ends: Triton files of a run's finalists are tested and timed, and used where they are faster.

The functions of a Triton file have no safety obligations: they are tested, and not proved safe. CUDA kernels and their
proofs stay in the run in any case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mirage_formal.autotune.plans import TritonResult
from mirage_formal.autotune.timing import FIRST, SECOND, Device
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob
from mirage_formal.autotune.triton.launch_variants import DEEP, NARROW, STAGES, WARPS, TritonText, triton_texts
from mirage_formal.autotune.triton.precompile import Task, compile_file
from mirage_formal.autotune.triton.results import BackendComparison, TritonRow
from mirage_formal.autotune.tuning_result import FinalistRow, TuningResources
from mirage_formal.codegen.executable import load_executable
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.device.sealed_records import write_triton
from mirage_formal.kernel_build.triton.triton_log import read_verdict, triton_log
from mirage_formal.records import (
    KERNELS,
    MEASURE_FILE,
    TritonLogRecord,
    TritonRecord,
    TritonVariantRecord,
    write_atomic,
)
from mirage_formal.records.measurement import TRITON_GAIN, is_faster
from mirage_formal.support.errors import MirageError
from mirage_formal.workers.dispatch import TaskDone, TaskFailed

#: Candidates whose files are tried with all numbers of warps at once: those with the fastest CUDA kernels, and the
#: fastest with fewer kernels. The other finalists are tried with few launch options.
CANDIDATES: Final = 2
#: Candidates with the fastest files, for which further launch options are tried,
FURTHER: Final = 3
#: largest slowdown of their files relative to the fastest CUDA kernels,
NEAR: Final = 1.5
#: and largest slowdown of a number of warps that is tried with other stages.
WITHIN: Final = 1.15
#: Most files whose timing is interleaved with CUDA kernels, and their largest slowdown in short runs. The fastest is
#: taken, because short and long runs order files differently.
TURNS: Final = 3
CLOSE: Final = 1.1
#: Most files of a run that are compared with float64, the fastest first.
JUDGED: Final = 6
#: Seconds for the compilation of one file.
_COMPILE_S: Final = 60.0
SAFETY: Final = (
    "its functions of Triton are tested, not proved safe or to compute their µGraph; the CUDA kernels and their proofs "
    "stay in kernels/"
)


@dataclass(slots=True, eq=False)
class _Trial:
    """Trial of one Triton file, with its results."""

    text: TritonText
    said: TritonResult = field(default_factory=TritonResult)
    turns: tuple[float, float] | None = None

    @property
    def us(self) -> float:
        """Microseconds of a call, interleaved with CUDA kernels if so measured; infinite if there is no time."""
        if self.turns is not None:
            return self.turns[0]
        return self.said.us if self.said.us and not self.said.failed else float("inf")

    @property
    def within(self) -> bool:
        """Return whether it was compared with float64, and is within tolerance."""
        return self.said.answer == "within" and not self.said.failed


def compare_with_cuda(
    root: Path, rows: Sequence[FinalistRow], run: str, bench: TuningResources, deadline: float
) -> BackendComparison:
    """Time the Triton files of the finalists, and choose the faster back end.

    Sound: a file is taken only if its results, with outputs that were NaN before, are within the tolerance of the
    µGraph that was proved equal to the program. With the back end auto it must take at most 98 % of the time of the
    fastest CUDA kernels, measured in turns.

    Args:
        root: The run's directory, whose kernels were measured.
        rows: The finalists.
        run: Digest of the run and of our code.
        bench: Resources for autotuning; its back end is "auto" or "triton".
        deadline: Value of time.monotonic() at which to stop.
    """
    if bench.device is None or isinstance(bench.device, str):
        return _untimed_result(bench.backend, "there is no GPU that is asked here")
    remove_triton_results(root)
    return _TritonTrials(root, run, bench, bench.device, deadline).compare(rows)


def remove_triton_results(root: Path) -> None:
    """Remove the results of Triton files that earlier calls have written into a run's measurements."""
    for path in (root / KERNELS).glob(f"*/{MEASURE_FILE}"):
        with contextlib.suppress(MirageError):  # some may be foreign
            write_triton(path.parent, None)


def result_key(one: TritonText, run: str, machine: GpuMachine) -> tuple[str | int, ...]:
    """Return the key of a file's result: text, µGraph, the run and our code, the GPU, and versions."""
    return one.digest, one.graph, run, machine.device, machine.driver, machine.triton


def _untimed_result(backend: str, why: str) -> BackendComparison:
    head = "CUDA C++, for no" if backend == "auto" else "no"
    return BackendComparison("cuda", f"back end {backend}: {head} Triton file was timed: {why}")


class _TritonTrials:
    def __init__(self, root: Path, run: str, bench: TuningResources, device: Device, deadline: float) -> None:
        self._root, self._bench, self._device, self._deadline = root, bench, device, deadline
        self._results, self._run_digest = bench.place.triton, run
        self._found: dict[Path, list[_Trial]] = {}
        self._notes: list[str] = []

    def compare(self, rows: Sequence[FinalistRow]) -> BackendComparison:
        """Time the Triton files beside these CUDA kernels, and choose a back end; see ``compare_with_cuda``."""
        machine = self._device.machine
        good = sorted((row.us, row.name) for row in rows if row.us is not None and not row.said)
        if not good:
            return self._cuda("no CUDA kernels were measured, beside which Triton would be")
        cuda_us, first = good[0][0], self._root / KERNELS / good[0][1]
        if not machine.triton:
            return self._record_no_trials(first, machine.lacks or "torch and Triton are not there")
        self._write([self._root / KERNELS / name for _, name in good])
        if not self._found:
            return self._record_no_trials(first, "; ".join(self._notes))
        self._time([one for trials in self._found.values() for one in trials])
        self._try_more_options(cuda_us)
        return self._choose_backend(cuda_us, first)

    # --- files and times

    def _write(self, directories: Sequence[Path]) -> None:
        """Write the Triton files of all candidates: more launch options for the first ones, fewer for the others.

        The first candidate with fewer kernels than these also gets more, because a program that is split into two
        kernels in CUDA may be faster as one in Triton. Some files are tried with other numbers of stages at once,
        because a file's default may be far from its best.
        """
        few = [LaunchOptions(warps, DEEP) for warps in NARROW]
        many = [*(LaunchOptions(warps) for warps in WARPS), *few]
        fewest, first = float("inf"), 0
        for directory in directories:
            try:
                count = len(load_executable(directory).launches)
                one_of_first = first < CANDIDATES or count < fewest
                made = triton_texts(directory, many if one_of_first else few)
            except MirageError as error:
                self._notes.append(f"{directory.name}: {error}")
            else:
                self._found[directory] = [_Trial(one) for one in made]
                if one_of_first:
                    fewest, first = min(fewest, count), first + 1

    def _try_more_options(self, cuda_us: float) -> None:
        """Try all numbers of warps, and other stages with the best of them, for the best candidates not far behind."""
        more: list[_Trial] = []
        leasts = {directory: min(one.us for one in trials) for directory, trials in self._found.items()}
        for directory in sorted(leasts, key=leasts.__getitem__)[:FURTHER]:
            trials, least = self._found[directory], leasts[directory]
            if not least <= NEAR * cuda_us:
                break
            good = [one.text.options.warps for one in trials if one.us <= WITHIN * least]
            options = [LaunchOptions(warps, stages) for warps in good for stages in STAGES]
            options += [LaunchOptions(warps) for warps in WARPS]
            known = {one.text.digest for one in trials}
            added = [_Trial(one) for one in triton_texts(directory, options) if one.digest not in known]
            trials += added
            more += added
        self._time(more)

    def _time(self, trials: Sequence[_Trial]) -> None:
        """Compile and briefly time the files that have no result yet."""
        if not trials:
            return
        for one in trials:
            one.said = self._results.get(result_key(one.text, self._run_digest, self._device.machine)) or TritonResult()
        self._bench.watch("triton", sum(bool(one.said.us or one.said.failed) for one in trials), len(trials))
        missing = self._compile_files([one for one in trials if not one.said.us and not one.said.failed])
        jobs = {self._file(one.text): one for one in missing}
        for job, answer in self._run([_job(one, file, FIRST) for file, one in jobs.items()]):
            one = jobs[job.triton]
            self._keep(one, TritonResult(us=answer.us, failed=answer.failed))
            self._bench.watch("triton", sum(bool(t.said.us or t.said.failed) for t in trials), len(trials))

    def _compile_files(self, trials: Sequence[_Trial]) -> list[_Trial]:
        """Compile files in the workers and return those that compiled; failures and timeouts never reach the GPU."""
        limit = min(_COMPILE_S, max(1.0, self._deadline - time.monotonic()))
        tasks = [Task(one.text.text, self._device.machine.arch) for one in trials]
        done: set[int] = set()
        for event in self._bench.executor.run(compile_file, tasks, limit_s=limit, deadline=self._deadline, once=True):
            if isinstance(event, TaskDone):
                done.add(event.index)
            elif isinstance(event, TaskFailed):
                said = TritonResult(failed=f"it could not be compiled: {event.reason}"[:500])
                if event.overdue:  # it may compile another time
                    trials[event.index].said = said
                else:
                    self._keep(trials[event.index], said)
        return [one for at, one in enumerate(trials) if at in done]

    def _run(self, jobs: Sequence[TimingJob]) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        return self._device.run(None, self._bench.place.root, jobs, self._deadline)

    def _keep(self, one: _Trial, said: TritonResult) -> None:
        one.said = said
        self._results.put(result_key(one.text, self._run_digest, self._device.machine), said)

    def _file(self, one: TritonText) -> str:
        """Return the path of a file, written if it is not there, for the process that runs it."""
        path = self._results.root / "triton" / f"{one.digest}.py"
        if not path.is_file() or path.read_text("utf-8") != one.text:
            write_atomic(path, one.text.encode())
        return str(path)

    # --- what is chosen

    def _choose_backend(self, cuda_us: float, first: Path) -> BackendComparison:
        asked = self._bench.backend == "triton"
        every = sorted((one for trials in self._found.values() for one in trials), key=lambda one: one.us)
        timed = [one for one in every if one.us < float("inf") and (asked or one.us <= cuda_us)]
        groups: dict[Path | None, list[_Trial]] = {}
        for one in timed:
            groups.setdefault(one.text.directory if asked else None, []).append(one)
        best = (self._fastest_correct_file(files, first, asked=asked) for files in groups.values())
        chosen = sorted((one for one in best if one is not None), key=lambda one: one.us)
        won = bool(chosen) and chosen[0].turns is not None and is_faster(*chosen[0].turns)
        for directory, trials in self._found.items():
            write_triton(directory, self._record(trials, chosen, won=won))
        return self._comparison(every, chosen, cuda_us, won=won)

    def _fastest_correct_file(self, files: Sequence[_Trial], first: Path, *, asked: bool) -> _Trial | None:
        """Return the fastest correct file, timed in turns with CUDA kernels; ``files`` are in order of short times."""
        good: list[_Trial] = []
        for one in files[:JUDGED]:
            if good and (len(good) == TURNS or one.said.us > CLOSE * good[0].said.us):
                break
            if self._check_results(one) and (self._time_in_turns(one, first) or (asked and not one.said.failed)):
                good.append(one)
        return min(good, key=lambda one: (one.turns is None, one.us), default=None)

    def _check_results(self, one: _Trial) -> bool:
        """Return whether a file's results are within tolerance; compared now, if they were not."""
        if not one.said.answer and not one.said.failed:
            for _, answer in self._run([_job(one, self._file(one.text), 0)]):
                self._keep(one, TritonResult(one.said.us, _numerics_fault(answer), answer.answer, answer.numerics))
        return one.within

    def _time_in_turns(self, one: _Trial, first: Path) -> bool:
        """Return whether it was measured in turns with the fastest CUDA kernels."""
        for _, answer in self._run([_job(one, self._file(one.text), SECOND, str(first))]):
            if answer.failed:
                one.said = TritonResult(one.said.us, answer.failed, one.said.answer, one.said.numerics)
            else:
                one.turns = answer.us, answer.cuda_us
        return one.turns is not None

    def _record(self, trials: Sequence[_Trial], chosen: Sequence[_Trial], *, won: bool) -> TritonRecord:
        """Return the record of the Triton trials that is written beside a candidate's kernels."""
        mine = next((one for one in chosen if one in trials), None)
        turns = (None, None) if mine is None or mine.turns is None else mine.turns
        numerics = None if mine is None else mine.said.numerics
        return TritonRecord(
            versions=self._device.machine.triton,
            tried=tuple(_variant(one) for one in trials),
            chosen=None if mine is None else mine.text.digest,
            us=turns[0],
            cuda_us=turns[1],
            scales=() if numerics is None else numerics.scales,
            backend="triton" if won and mine is chosen[0] else "cuda",
            reason="" if mine is not None else "no file was within tolerance and fast enough to be measured further",
            log=None if mine is None else self._log(mine.text),
        )

    def _log(self, one: TritonText) -> TritonLogRecord:
        """Return the log record of a Triton file: the verdict on its candidate and the bounds of its accesses."""
        return triton_log(one.text, one.graph, read_verdict(self._root, one.directory.name), one.accesses)

    def _comparison(
        self, every: Sequence[_Trial], chosen: Sequence[_Trial], cuda_us: float, *, won: bool
    ) -> BackendComparison:
        rows = tuple(_row(one, chosen=one in chosen) for one in sorted(every, key=lambda one: one.us))
        asked = self._bench.backend == "triton"
        head = f"back end {self._bench.backend}: "
        if not chosen:
            why = _no_choice_reason(every, float("inf") if asked else cuda_us, cuda_us)
            return BackendComparison("cuda", f"{head}{why}" if asked else f"{head}CUDA C++: {why}", rows)
        found = {one.text.directory.name: one.text.text for one in chosen}
        logs = {one.text.directory.name: self._log(one.text) for one in chosen}
        best, turns = chosen[0], chosen[0].turns
        takes = f"takes {best.us:.2f} us"
        if turns is not None:
            takes += f", the fastest CUDA kernels {turns[1]:.2f} in turns with it"
        if asked or won:
            said = f"{head}Triton: {best.text.directory.name} ({best.text.options}) {takes}; {SAFETY}"
        else:
            said = f"{head}CUDA C++: a Triton file would have to save {TRITON_GAIN:.0%}, and the fastest {takes}"
        return BackendComparison("triton" if asked or won else "cuda", said, rows, turns and turns[1], found, logs)

    def _record_no_trials(self, first: Path, why: str) -> BackendComparison:
        """Record that no Triton file was tried, and return the result with the CUDA kernels."""
        write_triton(first, TritonRecord(versions=self._device.machine.triton, reason=why[:500]))
        return self._cuda(why)

    def _cuda(self, why: str) -> BackendComparison:
        return _untimed_result(self._bench.backend, why)


def _row(one: _Trial, *, chosen: bool) -> TritonRow:
    timed = one.us < float("inf")
    said = one.said.failed or ("" if timed else "there was no time left for it")
    return TritonRow(one.text.directory.name, str(one.text.options), one.us if timed else None, said, chosen)


def _no_choice_reason(every: Sequence[_Trial], most: float, cuda_us: float) -> str:
    """Return why no file was chosen; ``most`` is the time above which a file is too slow."""
    good = [one for one in every if one.us <= most]
    wrong = [one.said.failed for one in every if one.said.us and one.said.us <= most and one.said.failed]
    if wrong or good:
        return f"no Triton file that is fast enough is right: {wrong[0] if wrong else 'none was compared'}"
    if (least := min(one.us for one in every)) < float("inf"):
        return f"the fastest Triton file takes {least:.2f} us, the CUDA kernels {cuda_us:.2f}"
    return f"no Triton file ran: {_row(every[0], chosen=False).said}"


def _job(one: _Trial, file: str, replays: int, cuda: str = "") -> TimingJob:
    return TimingJob(-1, -1, replays, str(one.text.directory), triton=file, cuda=cuda)


def _numerics_fault(answer: TimingAnswer) -> str:
    """Return why a file that was compared cannot be chosen."""
    if answer.failed or answer.answer == "within":
        return answer.failed
    scales = () if answer.numerics is None else answer.numerics.scales
    reasons = "; ".join(output.reason for scale in scales for output in scale.outputs if output.reason)
    return f"expected results within tolerance, got: {reasons or answer.answer}"[:500]


def _variant(one: _Trial) -> TritonVariantRecord:
    options, answer = one.text.options, one.said.answer
    return TritonVariantRecord(
        sha256=one.text.digest,
        warps=options.warps,
        stages=options.stages,
        us=one.said.us or None,
        answer=answer if answer in ("within", "outside", "undecided") else None,  # type: ignore[arg-type]
        failed=one.said.failed,
    )


__all__ = ["SAFETY", "compare_with_cuda"]
