"""Measurements that each have a process of their own, and a file of results that a later call continues."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock, current_thread, main_thread

import msgspec

from benchmarks.harness import ROOT, append

_TAIL = 400
#: What follows on a search.
STAGES = ("check", "build", "emulate")
#: Seconds between two looks at how much memory the processes of a measurement use.
_SAMPLE_S = 0.3


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one program in one stage.

    Attributes:
        program: Its name.
        stage: "search", "check", "build" or "emulate".
        ok: Whether the stage gave what it should: a candidate, a whole run that holds, kernels, right results.
        kind: What kind of failure it was, in one word; empty if ok.
        reason: Why it failed; what else is to be said where it did not.
        seconds: Of the stage alone, without the start of its process.
        peak_mib: Most memory of all of its processes together.
        verdict: Of the candidate.
        operators: Of the program.
        unfused_kernels: Launches of the program as it is written.
        unfused_us: The cost model's estimate of it.
        kernels: Of the best candidate.
        estimate_us: Of the best candidate.
        fewest_kernels: Of the reported candidate or cover of fewest kernels that is estimated at or below unfused.
        fewest_us: Of that one.
    """

    program: str
    stage: str
    ok: bool
    kind: str = ""
    reason: str = ""
    seconds: float = 0.0
    peak_mib: float = 0.0
    verdict: str = ""
    operators: int = 0
    unfused_kernels: int = 0
    unfused_us: float = 0.0
    kernels: int = 0
    estimate_us: float = 0.0
    fewest_kernels: int = 0
    fewest_us: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """A command that prints a Row as the last line of its output."""

    program: str
    stage: str
    command: tuple[str, ...]


class Ledger:
    """Rows in a file, one a line, in the order in which they came; the last one of a program and a stage counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self.rows: dict[tuple[str, str], Row] = {}
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                row = msgspec.json.decode(line, type=Row)
            except msgspec.DecodeError:
                continue  # the process was killed while it wrote this line
            self.rows[row.program, row.stage] = row

    def append(self, row: Row) -> None:
        """Write a row down."""
        with self._lock:
            self.rows[row.program, row.stage] = row
            append(self._path, msgspec.json.encode(row).decode())

    def lacks(self, tasks: Iterable[Task]) -> list[Task]:
        """Those that have no row yet."""
        return [task for task in tasks if (task.program, task.stage) not in self.rows]


def run_tasks(
    tasks: Sequence[Task], ledger: Ledger, *, jobs: int, limit_s: float, show: Callable[[int, Row], None]
) -> None:
    """Run tasks, some at a time, and write down what they say.

    Args:
        tasks: In the order in which they are started.
        ledger: Receives one row for each, also for one that crashes or is killed.
        jobs: How many run at once.
        limit_s: Seconds after which a process is killed, with all that it started.
        show: Is told how many are done, and each row.
    """
    with _ended_by_terminate(), _Running() as running, ThreadPoolExecutor(max(1, jobs)) as pool:
        futures = [pool.submit(running.row, task, limit_s) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                row = future.result()
                ledger.append(row)
                show(done, row)
        except BaseException:
            running.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_stages(
    tasks: Callable[[str], Sequence[Task]], ledger: Ledger, given: Namespace, show: Callable[[int, int, Row], None]
) -> list[Row]:
    """Run the search of programs, and the other stages that a command's options name; all of their rows.

    Args:
        tasks: Those of a stage, once the stages before have ended.
        ledger: Has what need not be done again.
        given: The options.
        show: Is told how many tasks of a stage there are, how many are done, and each row.
    """
    rows = []
    for stage in ("search", *(stage for stage in STAGES if getattr(given, stage, False))):
        wanted = tasks(stage)
        todo = wanted if given.again else ledger.lacks(wanted)
        run_tasks(todo, ledger, jobs=given.jobs, limit_s=given.kill_after, show=partial(show, len(todo)))
        rows += [ledger.rows[task.program, task.stage] for task in wanted]
    return rows


@contextmanager
def _ended_by_terminate() -> Iterator[None]:
    """SIGTERM as Ctrl-C, also where the shell has a process in the background ignore Ctrl-C."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Running:
    """Processes that have not ended; leaving it kills them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                _kill(process)

    def row(self, task: Task, limit_s: float) -> Row:
        """Run one task."""
        failed = Row(program=task.program, stage=task.stage, ok=False)
        with self._process(task) as process:
            if process is None:
                return replace_row(failed, kind="stopped")
            until, peak = time.monotonic() + limit_s, 0.0
            while True:
                try:
                    out, errors = process.communicate(timeout=_SAMPLE_S)
                    break
                except subprocess.TimeoutExpired:
                    peak = max(peak, _session_mib(process.pid))
                if time.monotonic() > until:
                    _kill(process)
                    process.communicate()
                    said = f"more than {limit_s:g} s"
                    return replace_row(failed, kind="killed", reason=said, seconds=limit_s, peak_mib=peak)
        lines = out.decode(errors="replace").splitlines()
        try:
            row = msgspec.json.decode(lines[-1], type=Row)
            return replace_row(row, peak_mib=round(max(peak, row.peak_mib), 1))
        except (IndexError, msgspec.DecodeError):
            said = " ".join(errors.decode(errors="replace").split())[-_TAIL:]
            return replace_row(failed, kind="crash", reason=f"exit code {process.returncode}: {said}")

    @contextmanager
    def _process(self, task: Task) -> Iterator[subprocess.Popen[bytes] | None]:
        with self._lock:
            if self._stopped:
                yield None
                return
            # A session of its own, so that its workers are killed with it.
            process = subprocess.Popen(
                task.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
            self._processes.add(process)
        try:
            yield process
        finally:
            with self._lock:
                self._processes.discard(process)


def _session_mib(session: int) -> float:
    """Memory of all processes of a session, what they share counted once; 0 where there is no /proc."""
    total = 0
    place = Path("/proc")
    # Not glob, which looks at what it finds: a process may end meanwhile, and while it is read.
    for stat in [place / name / "stat" for name in (os.listdir(place) if place.is_dir() else ()) if name.isdigit()]:
        with suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything; behind it: state, parent, group, session.
            if int(stat.read_text().rpartition(")")[2].split()[3]) != session:
                continue
            for line in (stat.parent / "smaps_rollup").read_text().splitlines():
                total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def replace_row(row: Row, **changes: object) -> Row:
    """A row with other fields."""
    return msgspec.structs.replace(row, **changes)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
