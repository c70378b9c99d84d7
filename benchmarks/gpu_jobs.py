"""Measurements as jobs for child processes, and a file of what they answered that a later call continues.

A job is a dictionary of plain values. A child reads jobs from its standard input, a line of JSON each, and answers each
with a line; a child that dies, hangs or breaks its device costs the job it was at, and another takes its place. Answers
are appended to a ledger as they come, so a run that is cut keeps what it has, and the next does the rest.

Children compile, search and make kernels side by side. Whatever is timed to be chosen or reported holds a file's lock:
Inductor's candidates, this package's kernels and operators, and rows of tables. Who holds it may take it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.harness import append, environment

Job = dict[str, Any]
Result = dict[str, Any]
#: The only argument of a child.
WORKER = "--worker"
#: What an answer begins with; libraries print lines of their own.
_ANSWER = "@answer "
_TAIL = 300
BROKEN = 3


def runs_among(directories: Sequence[Path]) -> list[Path]:
    """Runs, without the directories that tuning writes Triton files to beside them; ``runs/*`` names both."""
    return [one for one in directories if not one.name.endswith("-triton")]


def short(error: BaseException) -> str:
    """Say an exception in a line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:_TAIL] if lines else ''}"


def healthy() -> bool:
    """Whether the device still answers."""
    try:
        import torch

        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def serve(do: Callable[[Job], Result], healthy: Callable[[], bool] = healthy) -> int:
    """What a child does: jobs from standard input until its end, or until one breaks the device.

    Args:
        do: What answers a job; an exception is an answer too.
        healthy: Whether the device still answers, asked after an exception.
    """
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            result = do(json.loads(line))
        except Exception as error:
            result = {"error": short(error), **({} if healthy() else {"broken": True})}
        result["seconds"] = round(time.perf_counter() - begin, 2)
        print(f"{_ANSWER}{json.dumps(result)}", flush=True)
        if "broken" in result:
            return BROKEN
    return 0


class Ledger:
    """Answers by job, in a file of JSON lines; the last of a job counts.

    Args:
        path: The file; it need not be there yet.
        retry: Whether jobs that failed are to be done again.
        keys: What tells jobs apart; left out, all that they hold.
    """

    def __init__(self, path: Path, *, retry: bool = False, keys: Sequence[str] | None = None) -> None:
        self._path, self._lock, self._keys = path, threading.Lock(), keys
        self._results: dict[str, Result] = {}
        for line in path.read_text().splitlines() if path.is_file() else ():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that was cut
                kept = json.loads(line)
                self._results[self._key(kept["job"])] = kept["result"]
        if retry:
            self._results = {key: result for key, result in self._results.items() if "error" not in result}

    def get(self, job: Job) -> Result | None:
        """The answer to a job, if there is one."""
        return self._results.get(self._key(job))

    def _key(self, job: Job) -> str:
        return json.dumps({key: job[key] for key in self._keys or job}, sort_keys=True)

    def put(self, job: Job, result: Result) -> None:
        """Keep an answer."""
        with self._lock:
            self._results[self._key(job)] = result
            append(self._path, f'{{"job": {self._key(job)}, "result": {json.dumps(result)}}}')


@dataclass(frozen=True, slots=True)
class Pool:
    """How jobs are done.

    Attributes:
        command: What starts a child.
        ledger: Where answers go; jobs that it has are not done.
        environment: What a child has in its environment beside this process's.
        errors: Where children's standard error goes.
        show: Called with every new answer.
    """

    command: Sequence[str]
    ledger: Ledger
    environment: Mapping[str, str]
    errors: Path
    show: Callable[[Job, Result], None]

    def do(self, jobs: Iterable[Job], *, processes: int, limit_s: float, until: float) -> None:
        """Do jobs in order.

        Args:
            jobs: The jobs.
            processes: Children at a time; 1 for what is timed.
            limit_s: Seconds for each job.
            until: Time by time.monotonic() at which it stops. Jobs it is at then have no answer.
        """
        left: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            if self.ledger.get(job) is None:
                left.put(job)
        threads = [
            threading.Thread(target=self._drain, args=(left, limit_s, until), daemon=True)
            for _ in range(min(processes, left.qsize()))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drain(self, left: queue.SimpleQueue[Job], limit_s: float, until: float) -> None:
        child: _Child | None = None
        try:
            while time.monotonic() < until:
                try:
                    job = left.get_nowait()
                except queue.Empty:
                    return
                child = child or _Child(self)
                result = child.ask(job, min(limit_s, until - time.monotonic()))
                if result is None and time.monotonic() >= until:
                    return
                result = result or {"error": f"not finished in {limit_s:.0f} s", "broken": True}
                if result.pop("broken", False):
                    child.end()
                    child = None
                self.ledger.put(job, result)
                self.show(job, result)
        finally:
            if child is not None:
                child.end()


def children(
    module: str,
    out: Path,
    show: Callable[[Job, Result], None],
    ledger: Ledger | None = None,
    variables: Mapping[str, str] | None = None,
) -> Pool:
    """Make a pool of ``python -m module --worker``, which keeps answers and errors in a directory.

    Args:
        module: Its main function serves.
        out: The directory.
        show: See ``Pool``.
        ledger: Left out, the one of this directory.
        variables: Of the environment; see ``Pool``.
    """
    out.mkdir(parents=True, exist_ok=True)
    stem = module.rpartition(".")[2]
    command = (sys.executable, "-m", module, WORKER)
    return Pool(command, ledger or Ledger(out / f"{stem}.jsonl"), variables or {}, out / f"{stem}.err", show)


class _Child:
    """One process that answers jobs."""

    def __init__(self, pool: Pool) -> None:
        pool.errors.parent.mkdir(parents=True, exist_ok=True)
        with pool.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                pool.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(**pool.environment),
                start_new_session=True,  # so that what it starts ends with it
            )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                self._answers.put(line.removeprefix(_ANSWER))
        self._answers.put(None)

    def ask(self, job: Job, limit_s: float) -> Result | None:
        """The answer; None if there is none in time. With "broken" if the child has to be replaced."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return None
        if line is None:
            return {"error": f"the process ended ({self._process.wait()})", "broken": True}
        found: Result = json.loads(line)
        return found

    def end(self) -> None:
        """End it, and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=5.0)
        if self._reader.is_alive():  # what the child started in a session of its own still writes there
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


# --- turns -----------------------------------------------------------------------------------------------------------


class Turn:
    """A lock of processes, by a file.

    Args:
        path: The file; None: nothing is held.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._own, self._depth = path, threading.RLock(), 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> None:
        self._own.acquire()
        self._depth += 1
        if self._depth == 1 and self._path is not None:
            self._file = self._path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            self._file.close()  # closed, it is let go
            self._file = None
        self._own.release()

    def taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that holds it while it runs."""

        @functools.wraps(function)
        def run(*given: Any, **named: Any) -> Any:
            with self:
                return function(*given, **named)

        return run


def everything_takes(turn: Turn) -> None:
    """Let all that times on a GPU in this process hold a lock meanwhile, for the rest of its life."""
    from mirage_formal.device import measure
    from mirage_formal.torch.modules.inductor import lock_benchmarks

    measure.timing_lock = turn
    lock_benchmarks()
