"""Measurement of kernel times in a subprocess that may crash: short runs of all kernels, longer ones of the fastest."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from mirage_formal.autotune.plans import At, TuningDirectory, TuningPlan, Watch, is_time_valid
from mirage_formal.autotune.successive_halving import kernels_to_remeasure
from mirage_formal.autotune.timing_subprocess import GpuMachine, TimingAnswer, TimingJob, TimingOrder, timed_record
from mirage_formal.device import measure
from mirage_formal.support.errors import UnsupportedError

#: Timed replays of a kernel in the first round, and in the second.
FIRST: Final = 4
SECOND: Final = 15
#: Seconds without output after which a process counts as hung.
SILENCE_S: Final = 60.0


class Device(Protocol):
    """Interface of a GPU that times kernels."""

    @property
    def machine(self) -> GpuMachine:
        """Return the GPU's name, architecture and driver."""

    def run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        """Run jobs and yield each with its answer, in order; fewer if the deadline comes first."""


@dataclass(slots=True)
class TimingProcess:
    """A GPU behind a subprocess, which is restarted when it crashes or hangs.

    A job that a deadline finds at work is awaited for as long as another process would take to start; after that its
    process is killed. Neither choice costs more than twice the better one.

    Attributes:
        command: Command that starts the subprocess.
        silence_s: Seconds without output after which it is killed.
        program: Program as JSON whose reference it compiles first (``compile_reference``); empty for none.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "mirage_formal.autotune.timing_subprocess")
    silence_s: float = SILENCE_S
    program: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _lines: queue.Queue[bytes | None] = field(default_factory=queue.Queue)
    _machine: GpuMachine | None = None
    _start_s: float = 0.0
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def machine(self) -> GpuMachine:
        """Implement ``Device.machine``.

        Raises:
            UnsupportedError: There is no GPU that CuPy can use.
        """
        if self._machine is None and not self._start(time.monotonic() + self.silence_s):
            hint = "install CuPy with one of the extras cuda12 or cuda13, on a machine with a GPU"
            raise UnsupportedError("expected a GPU and CuPy, got none", where="tune", hint=hint)
        assert self._machine is not None
        return self._machine

    def run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        """Implement ``Device.run``, while nothing else is timed by this process."""
        with measure.timing_lock:
            yield from self._run(plan, place, jobs, deadline)

    def _run(
        self, plan: Path | None, place: Path, jobs: Sequence[TimingJob], deadline: float
    ) -> Iterator[tuple[TimingJob, TimingAnswer]]:
        last = 0.0
        for job in jobs:
            begin = time.monotonic()
            ready = self._process is not None and self._machine is not None
            if begin + last >= deadline or not (ready or self._start(deadline)):
                return  # a job that would not end in time costs its process
            order = TimingOrder("" if plan is None else str(plan), str(place), job)
            answer = self._answer(order, deadline)
            if answer is None:
                return
            last = time.monotonic() - begin
            yield job, answer

    def _answer(self, order: TimingOrder, deadline: float) -> TimingAnswer | None:
        """Return the subprocess's answer to an order, or that it failed; None if it is too late for one."""
        assert self._process is not None
        answer, latest = None, deadline + self._start_s
        try:
            self._write(self._process, order)
            while answer is None and not isinstance(line := self._line(latest), str):
                with contextlib.suppress(msgspec.DecodeError):  # output of a library is no answer
                    answer = msgspec.json.decode(line, type=TimingAnswer)
        finally:
            if answer is None or answer.broken:  # what it may still answer is no answer to the next order
                self.close()
        if answer is None and time.monotonic() < latest:
            return TimingAnswer(failed=str(line))
        return answer

    def __enter__(self) -> TimingProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process, if there is one; its end, which takes seconds for one that has a GPU, is not awaited."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            threading.Thread(target=_reap, args=(process,), daemon=True).start()

    def launch(self) -> None:
        """Start the subprocess, if there is none, and return at once."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lines = queue.Queue()
        reader = threading.Thread(target=self._copy_lines, args=(self._process, self._lines), daemon=True)
        reader.start()
        if self.program:
            first = self._process, TimingOrder(program=self.program)
            threading.Thread(target=self._write, args=first, daemon=True).start()  # a pipe holds 64 KiB

    def _write(self, process: subprocess.Popen[bytes], order: TimingOrder) -> None:
        """Write an order, whole, to a process; that it has ended is seen in what it answers."""
        assert process.stdin is not None
        with self._writing, contextlib.suppress(ValueError, OSError):
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()

    def _copy_lines(self, process: subprocess.Popen[bytes], lines: queue.Queue[bytes | None]) -> None:
        """Put the lines of a process into a queue, None at their end; note when its first one comes."""
        begin, first = time.monotonic(), True
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # it is closed when the process is killed
            for line in process.stdout:
                if first:
                    self._start_s, first = time.monotonic() - begin, False
                lines.put(line)
        lines.put(None)

    def _start(self, deadline: float) -> bool:
        """Start the subprocess, and return whether it has a GPU."""
        self.launch()
        while not isinstance(line := self._line(deadline), str):
            with contextlib.suppress(msgspec.DecodeError):
                self._machine = msgspec.json.decode(line, type=GpuMachine)
                return True
        self.close()
        return False

    def _line(self, deadline: float) -> bytes | str:
        """Return the next line of the subprocess, or a message why there is none."""
        try:
            line = self._lines.get(timeout=max(0.0, min(self.silence_s, deadline - time.monotonic())))
        except queue.Empty:
            return f"nothing for {self.silence_s:g} s: it hung"
        return "its process ended" if line is None else line


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for a killed process to end, and close its streams."""
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def time_kernels(
    plan: TuningPlan,
    kernels: Sequence[At],
    place: TuningDirectory,
    device: Device,
    *,
    watch: Watch,
    deadline: float = float("inf"),
) -> None:
    """Time the kernels without a time on this GPU: all in short runs, those of the best candidates in longer ones.

    Each measurement is written at once, so an interrupt loses one kernel.

    Args:
        plan: The plan.
        kernels: Positions of piece and schedule.
        place: Directory of kernels and times.
        device: The GPU.
        watch: Callback for progress.
        deadline: Value of time.monotonic() at which to stop.
    """
    machine = device.machine
    made = {plan.key(at): place.origin(plan.key(at)) for at in kernels}
    times = place.times(machine.device, machine.driver)
    known = {name: one for name, one in times.items() if name in made and is_time_valid(one, made[name])}

    def measure(what: str, wanted: Sequence[At], replays: int) -> None:
        # One piece after another, because its schedules share inputs. A kernel may occur in several pieces.
        first = {plan.key(at): at for at in sorted(wanted, reverse=True)}
        missing = sorted(at for name, at in first.items() if name not in known or known[name].replays < replays)
        jobs = [TimingJob(piece, variant, replays) for piece, variant in missing]
        done = len(first) - len(jobs)
        watch(what, done, len(first))
        for job, answer in device.run(place.plans.path((plan.run, plan.arch)), place.root, jobs, deadline):
            name = plan.key((job.piece, job.variant))
            one = timed_record(name, job, answer, machine.driver, made[name])
            known[one.key] = one
            place.keep_times(machine.device, [one])
            done += 1
            watch(what, done, len(first))

    measure("timed", kernels, FIRST)
    shortly = {name: one.us for name, one in known.items() if not one.failed}
    measure("again", kernels_to_remeasure(plan, shortly), SECOND)


__all__ = ["Device", "TimingProcess", "time_kernels"]
