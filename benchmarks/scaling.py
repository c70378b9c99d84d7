"""How a search would scale to many workers: measured tasks, replayed in a simulation.

Run: .venv/bin/python -m benchmarks.scaling measure FILE.json PROGRAM.py [--program NAME] [--set FIELD=VALUE ...]
     .venv/bin/python -m benchmarks.scaling overhead FILE.json
     .venv/bin/python -m benchmarks.scaling table OVERHEAD.json FILE.json ...

``measure`` searches with one worker and writes the processor seconds of every task, phase by phase, and those of the
supervisor between the phases. ``overhead`` measures on a local dask cluster what a task that does nothing costs the
client and the scheduler, and what a worker costs before its first task. ``table`` replays the phases: tasks are sent in
order, each to the first worker that is free, one after the other by one client; a phase starts when the one before has
ended. Processor seconds, because a measurement on a machine that others use should say the same.

Options:
  command {measure,overhead,table}
  files FILE...
  --program NAME                    the program of PROGRAM.py; its first one if left out
  --set FIELD=VALUE...              settings of the search
"""

from __future__ import annotations

import heapq
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import harness
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.driver import run_search
from mirage_formal.run.preload import PRELOAD
from mirage_formal.run.settings import Settings
from mirage_formal.search.engine_interface import SearchOptions, Unit
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import SearchSpace
from mirage_formal.workers.cluster import Cluster
from mirage_formal.workers.dispatch import TaskDone, TaskFailed, TaskOverdue
from mirage_formal.workers.pool import Pool

WORKERS = (1, 2, 8, 64, 1024)
#: Tasks that do nothing by which the overhead is measured.
_EMPTY = 400


@dataclass(frozen=True)
class Phase:
    """Tasks that may be computed at the same time.

    Attributes:
        name: What they compute.
        before: Seconds of the supervisor alone before them.
        seconds: Of each task, in the order in which they are sent.
        notes: Seconds of the supervisor for each answer, which it takes while others compute.
    """

    name: str
    before: float
    seconds: tuple[float, ...]
    notes: float


@dataclass(frozen=True)
class Measured:
    """A run with one worker.

    Attributes:
        name: What was searched, and how.
        phases: In their order.
        after: Seconds of the supervisor alone after the last one.
    """

    name: str
    phases: tuple[Phase, ...]
    after: float


@dataclass(frozen=True)
class Overhead:
    """What a cluster costs, in seconds: ``dispatch`` for each task, one after the other; ``start`` of each worker."""

    dispatch: float
    start: float


def schedule(seconds: Sequence[float], workers: int, dispatch: float, begin: float = 0.0) -> float:
    """When the last of some tasks ends, if each is sent, in order, to the first worker that is free.

    Args:
        seconds: Of each task.
        workers: All are free at ``begin``.
        dispatch: Seconds of the client for each task; it sends one at a time, and a worker waits for it.
        begin: When the client starts to send.
    """
    client = last = begin
    free = [begin] * min(workers, len(seconds))
    for duration in seconds:
        client = max(client, heapq.heappop(free)) + dispatch
        heapq.heappush(free, client + duration)
        last = max(last, client + duration)
    return last


def replay(measured: Measured, workers: int, overhead: Overhead) -> float:
    """Seconds of a whole run: workers start, and each phase waits for the one before."""
    now = overhead.start
    for phase in measured.phases:
        now = schedule(phase.seconds, workers, overhead.dispatch + phase.notes, now + phase.before)
    return now + measured.after


def serial(measured: Measured, overhead: Overhead) -> float:
    """Seconds that no number of workers shortens, apart from the longest tasks: what one process does alone."""
    alone = sum(phase.before + len(phase.seconds) * (overhead.dispatch + phase.notes) for phase in measured.phases)
    return overhead.start + alone + measured.after


class Finer(GuidedEngine):
    """The guided engine with as many units as MIRAGE_SHARES says: --set engine=benchmarks.scaling:Finer."""

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """As in the base class, cut into more or fewer shares."""
        shares = int(os.environ["MIRAGE_SHARES"])
        units = [Unit(i, f"first kernels {i} of {shares}", f"{i - 1}/{shares}") for i in range(1, shares + 1)]
        single = Unit(0, "single kernels", "0/0")
        return [single, *units] if shares > 1 else [Unit(0, "first kernels 1 of 1", "0/1")]


class Recorder(Pool):
    """A pool that writes down what its tasks and its supervisor take."""

    def __init__(self) -> None:
        super().__init__(1, PRELOAD)
        self.phases: list[Phase] = []
        self._until = time.process_time()

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], **options: Any
    ) -> Iterator[TaskDone[Any] | TaskFailed | TaskOverdue | None]:
        """As in the base class."""
        seconds: dict[int, float] = {}
        begin = time.process_time()
        try:
            for outcome in super().run(function, tasks, **options):
                if isinstance(outcome, TaskDone):
                    seconds[outcome.index] = outcome.cpu_milliseconds / 1e3
                yield outcome
        finally:
            if tasks:
                end = time.process_time()
                notes = (end - begin) / len(tasks)
                each = tuple(seconds.get(index, 0.0) for index in range(len(tasks)))
                self.phases.append(Phase(function.__name__, begin - self._until, each, notes))
                self._until = end

    def rest(self) -> float:
        """Seconds of the supervisor since the last phase."""
        return time.process_time() - self._until


def measure(path: Path, wanted: str | None, chosen: dict[str, Any]) -> Measured:
    """Search a program of a file with one worker."""
    programs = load_programs(path)
    name = wanted or next(iter(programs))
    said = ", ".join(f"{field} {value}" for field, value in chosen.items()) or "defaults"
    with Recorder() as recorder, tempfile.TemporaryDirectory() as folder:
        run_search(programs[name], Settings(cache=False, **chosen), Path(folder) / "run", executor=recorder)
        return Measured(f"{path.stem}/{name} ({said})", tuple(recorder.phases), recorder.rest())


def nothing(number: int) -> int:
    """A task that does nothing."""
    return number


def measure_overhead() -> Overhead:
    """What a task that does nothing costs the client and the scheduler, and the start of a worker's process."""
    import benchmarks.scaling as here  # workers know this module by that name, not as a script

    with Cluster("local:2") as cluster:
        list(cluster.run(here.nothing, range(20), limit_s=60))
        client, scheduler = time.process_time(), cluster.scheduler_seconds()
        list(cluster.run(here.nothing, range(_EMPTY), limit_s=60))
        spent = time.process_time() - client + cluster.scheduler_seconds() - scheduler
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    modules = ", ".join((*PRELOAD, "z3", "cvc5", "distributed"))
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Overhead(spent / _EMPTY, end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)


def table(measured: Sequence[Measured], overhead: Overhead) -> Iterator[str]:
    """Markdown: what was measured, phase by phase, and what the simulation says."""
    dispatch, start = 1e3 * overhead.dispatch, overhead.start
    yield f"A task costs client and scheduler {dispatch:.2f} ms, the start of a worker {start:.2f} s."
    for one in measured:
        yield f"\n{one.name}\n"
        phases = []
        for phase in one.phases:
            times = sum(phase.seconds), sorted(phase.seconds)[len(phase.seconds) // 2], max(phase.seconds)
            shown = f"{times[0]:.2f}", f"{times[1]:.3f}", f"{times[2]:.3f}"
            phases.append((phase.name, len(phase.seconds), *shown, f"{phase.before:.3f}"))
        yield harness.table("phase | tasks | sum, s | median | longest | supervisor before, s", phases)
        first = replay(one, 1, overhead)
        alone = serial(one, overhead)
        longest = sum(max(phase.seconds) for phase in one.phases)
        yield f"\nSupervisor after the last phase: {one.after:.2f} s. Alone in one process: {alone:.2f} s, a serial "
        yield f"fraction of {alone / first:.3f}; longest tasks of the phases: {longest:.2f} s together.\n"
        seconds = {workers: replay(one, workers, overhead) for workers in WORKERS}
        rows = [(n, f"{s:.1f}", f"{first / s:.1f}", f"{first / s / n:.2f}") for n, s in seconds.items()]
        yield harness.table("workers | s | speed-up | efficiency", rows, ())


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def main() -> None:
    """Measure, or print the tables."""
    given = harness.options(__doc__)
    out, *files = given.files
    if given.command == "measure":
        chosen = {field: _value(value) for field, _, value in (text.partition("=") for text in given.set)}
        out.write_bytes(msgspec.json.encode(measure(files[0], given.program, chosen)))
    elif given.command == "overhead":
        out.write_bytes(msgspec.json.encode(measure_overhead()))
    else:
        measured = [msgspec.json.decode(path.read_bytes(), type=Measured) for path in files]
        overhead = msgspec.json.decode(out.read_bytes(), type=Overhead)
        print(*table(measured, overhead), sep="\n")


if __name__ == "__main__":
    main()
