"""Times of kernels on a GPU, by a process that may break: short runs of many, longer ones of those that are close."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from mirage_formal.errors import UnsupportedError
from mirage_formal.run.tuned.child import Answer, Job, Machine, Order, timed
from mirage_formal.run.tuned.choose import close
from mirage_formal.run.tuned.plans import Place, Timed, TuningPlan

#: Timed replays of a kernel in the first round, and in the second.
FIRST: Final = 4
SECOND: Final = 15
#: Candidates whose kernels are in the second round, and how far behind the fastest schedule of a kernel others may be.
AGAIN: Final = 32
WITHIN: Final = 1.08
#: Seconds without a word after which a process counts as hung.
SILENCE_S: Final = 60.0

#: Told what is done, of how much: "timed" or "again".
Watch = Callable[[str, int, int], None]


class Device(Protocol):
    """Something that times kernels."""

    @property
    def machine(self) -> Machine:
        """The GPU."""

    def run(self, plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        """Jobs with what became of them, in order; fewer if the deadline comes first."""


@dataclass(slots=True)
class Child:
    """A GPU that is used by processes of their own, one at a time.

    Attributes:
        command: Starts one.
        silence_s: Seconds without a word after which it is killed.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "mirage_formal.run.tuned.child")
    silence_s: float = SILENCE_S
    _machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        """See ``Device.machine``.

        Raises:
            UnsupportedError: There is none that CuPy can use.
        """
        if self._machine is None:
            list(self.run(None, Path(), (), time.monotonic() + self.silence_s))
        if self._machine is None:
            hint = "install CuPy with one of the extras cuda12 or cuda13, on a machine with a GPU"
            raise UnsupportedError("expected a GPU and CuPy, got none", where="tune", hint=hint)
        return self._machine

    def run(self, plan: Path | None, place: Path, jobs: Sequence[Job], deadline: float) -> Iterator[tuple[Job, Answer]]:
        """See ``Device.run``."""
        left = list(jobs)
        begun = False
        while left or not begun:
            begun = True
            order = Order(str(plan or ""), str(place), tuple(left))
            with subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(msgspec.json.encode(order))
                process.stdin.close()
                failed = yield from self._answers(process.stdout, left, deadline)
                process.kill()
            if failed == "no time":
                return
            if left and failed:
                if self._machine is None:  # it never came as far as a kernel
                    return
                yield left.pop(0), Answer(failed=failed)

    def _answers(self, stream: IO[bytes], left: list[Job], deadline: float) -> Generator[tuple[Job, Answer], None, str]:
        """Jobs with what became of them; returns why it stopped before the last one, or nothing."""
        lines: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=_pump, args=(stream, lines), daemon=True).start()
        first = True
        while left or first:
            now = time.monotonic()
            if now >= deadline:
                return "no time"
            try:
                line = lines.get(timeout=min(self.silence_s, deadline - now))
            except queue.Empty:
                return "no time" if time.monotonic() >= deadline else f"nothing for {self.silence_s:g} s: it hung"
            if line is None:
                return "its process ended"
            try:
                if first:
                    self._machine, first = msgspec.json.decode(line, type=Machine), False
                    continue
                answer = msgspec.json.decode(line, type=Answer)
            except msgspec.DecodeError:  # what a library prints
                continue
            yield left.pop(0), answer
        return ""


def _pump(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def time_kernels(
    plan: TuningPlan,
    kernels: Sequence[tuple[int, int]],
    place: Place,
    device: Device,
    *,
    watch: Watch,
    deadline: float = float("inf"),
) -> dict[str, float]:
    """Time kernels that were not timed on this GPU yet: all in short, and those of the best candidates at length.

    What is measured is kept at once, so an interrupt loses one kernel.

    Args:
        plan: The plan.
        kernels: Positions of piece and schedule.
        place: Where kernels are, and times are kept.
        device: The GPU.
        watch: Told of each.
        deadline: Value of time.monotonic() at which to stop.

    Returns:
        Microseconds by kernel, of all that did not fail.
    """
    machine = device.machine
    key = {at: plan.pieces[at[0]].variants[at[1]].key for at in kernels}
    known = place.times(machine.device, machine.driver)

    def measure(what: str, wanted: Sequence[tuple[int, int]], replays: int) -> None:
        # One piece after another: its schedules share inputs.
        missing = sorted({at for at in wanted if key[at] not in known or known[key[at]].replays < replays})
        jobs = [Job(piece, variant, replays) for piece, variant in missing]
        done = len(wanted) - len(jobs)
        watch(what, done, len(wanted))
        for job, answer in device.run(place.plan_path(plan.run, plan.arch), place.root, jobs, deadline):
            one = timed(key[job.piece, job.variant], job, answer, machine.driver)
            known[one.key] = one
            place.keep_times(machine.device, [one])
            done += 1
            watch(what, done, len(wanted))

    measure("timed", kernels, FIRST)
    usable = {key[at] for at in kernels}
    measure("again", close(plan, _good(known, usable), AGAIN, WITHIN), SECOND)
    return _good(known, usable)


def _good(known: Mapping[str, Timed], usable: set[str]) -> dict[str, float]:
    return {name: one.us for name, one in known.items() if name in usable and not one.failed}


__all__ = ["Child", "Device", "time_kernels"]
