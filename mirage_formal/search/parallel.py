"""Worker processes that may die, crash or hang at any moment without losing a result.

Every worker has a pipe of its own and one task at a time, so the supervisor always knows what a dead worker was doing:
there is no shared queue or lock that a SIGKILL could leave in a bad state. A task whose worker died, hung or raised is
given to a fresh worker, a fixed number of times; then it is reported as failed and the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from multiprocessing.popen_forkserver import Popen
from types import ModuleType, TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from mirage_formal.errors import MirageError

P = TypeVar("P")
R = TypeVar("R")

#: Tries of one task, each in a fresh worker, before it is reported as failed.
TRIES: Final = 3
#: Seconds that an idle or starting worker is given to exit before it is killed.
_GRACE_S: Final = 1.0
#: Workers that may die without having taken a task before something is taken to be wrong with the machine.
_MAX_STILLBORN: Final = 100


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A task that was computed, in how many tries and in how many milliseconds of its worker."""

    index: int
    value: R
    attempts: int
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A task given up: its worker died, hung or raised in every try; ``reason`` is the last one's."""

    index: int
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a worker sends back when a task raised."""

    error: MirageError | None
    text: str


@dataclass(slots=True)
class _Worker:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    task: int | None = None
    until: float = float("inf")


class Pool:
    """Worker processes, started when first needed and used for any number of ``run``s; a context manager.

    Args:
        workers: Number of processes, at least 1.
        preload: Modules that the server process loads once, so that every worker starts with them.
    """

    def __init__(self, workers: int, preload: Sequence[str] = ()) -> None:
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        self.workers = workers
        self._context = _Context()
        self._context.set_forkserver_preload(list(preload))
        self._threads = max(1, default_workers() // workers)
        self._crew: list[_Worker] = []
        self._stillborn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill every worker, whatever it is doing."""
        for worker in self._crew:
            _kill(worker)
        self._crew.clear()

    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that are alive."""
        return tuple(w.process.pid for w in self._crew if w.process.pid is not None and w.process.is_alive())

    def run(
        self,
        function: Callable[[P], R],
        tasks: Sequence[P],
        *,
        limit_s: float,
        deadline: float = float("inf"),
        tick_s: float = 0.2,
    ) -> Iterator[Done[R] | Failed | None]:
        """Compute ``function(task)`` for every task and yield outcomes as they come, in no particular order.

        Args:
            function: A function of a module, not a closure.
            tasks: Picklable arguments.
            limit_s: Seconds after which a task counts as hung.
            deadline: Value of time.monotonic() at which to stop: running tasks are killed and yield nothing.
            tick_s: None is yielded when nothing has happened for so many seconds, for progress displays.

        Raises:
            MirageError: A task raised one: a mistake of the user, which no other try would cure.
        """
        waiting = deque(range(len(tasks)))
        attempts = [0] * len(tasks)
        left = len(tasks)
        try:
            while left:
                if time.monotonic() >= deadline:
                    return
                self._assign(function, tasks, waiting, attempts, limit_s)
                happened = False
                for outcome in self._collect(min(tick_s, max(0.0, deadline - time.monotonic()))):
                    happened = True
                    index = outcome.index
                    if isinstance(outcome, Failed) and attempts[index] < TRIES:
                        waiting.append(index)
                        continue
                    left -= 1
                    yield _counted(outcome, attempts[index])
                if not happened:
                    yield None
        finally:
            for worker in self._crew:
                if worker.task is not None:
                    _kill(worker)
            self._crew = [worker for worker in self._crew if worker.process.is_alive()]

    def _assign(
        self,
        function: Callable[[P], R],
        tasks: Sequence[P],
        waiting: deque[int],
        attempts: list[int],
        limit_s: float,
    ) -> None:
        """Start workers up to the number wanted and give every idle one a task."""
        busy = sum(worker.task is not None for worker in self._crew)
        while len(self._crew) < min(self.workers, busy + len(waiting)):
            self._crew.append(self._start())
        for worker in list(self._crew):
            if worker.task is not None or not waiting:
                continue
            index = waiting.popleft()
            try:
                worker.pipe.send((function, tasks[index]))
            except OSError:  # died while idle: nothing was lost, and this was not the task's fault
                waiting.appendleft(index)
                self._dismiss(worker)
                self._stillborn += 1
                if self._stillborn > _MAX_STILLBORN:
                    raise RuntimeError("worker processes die before they take a task") from None
                continue
            attempts[index] += 1
            worker.task = index
            worker.until = time.monotonic() + limit_s

    def _collect(self, timeout: float) -> Iterator[Done[Any] | Failed]:
        """Wait for answers, deaths and overdue tasks; attempts are filled in by the caller."""
        now = time.monotonic()
        next_due = min((w.until for w in self._crew if w.task is not None), default=now)
        ready = set(wait([w.pipe for w in self._crew], max(0.0, min(timeout, next_due - now))))
        for worker in list(self._crew):
            if worker.pipe in ready:
                outcome = self._answer(worker)
            elif worker.task is not None and time.monotonic() >= worker.until:
                outcome = Failed(worker.task, "its worker hung and was killed", 0)
                self._dismiss(worker)
            else:
                continue
            if outcome is not None:
                yield outcome

    def _answer(self, worker: _Worker) -> Done[Any] | Failed | None:
        task = worker.task
        try:
            value, milliseconds = worker.pipe.recv()
        except (EOFError, OSError):
            self._dismiss(worker)
            if task is None:
                return None
            return Failed(task, f"its worker died with exit code {worker.process.exitcode}", 0)
        assert task is not None
        worker.task = None
        worker.until = float("inf")
        if not isinstance(value, _Raised):
            return Done(task, value, 0, milliseconds)
        if value.error is not None:
            raise value.error
        return Failed(task, value.text, 0)

    def _start(self) -> _Worker:
        _start_server(self._threads)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _dismiss(self, worker: _Worker) -> None:
        self._crew.remove(worker)
        _kill(worker)


def _counted(outcome: Done[R] | Failed, attempts: int) -> Done[R] | Failed:
    match outcome:
        case Done():
            return Done(outcome.index, outcome.value, attempts, outcome.milliseconds)
        case Failed():
            return Failed(outcome.index, outcome.reason, attempts)


def _kill(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.task is None:
        worker.process.join(_GRACE_S)  # an idle worker leaves by itself when its pipe closes
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()


def _serve(pipe: Connection) -> None:
    """What a worker does: compute the task it is sent, answer, wait for the next; leave when the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which then kills its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            function, task = pipe.recv()
        except (EOFError, OSError):
            return
        begin = time.perf_counter()
        value: object
        try:
            value = function(task)
        except MirageError as error:
            value = _Raised(error, str(error))
        except Exception:
            value = _Raised(None, traceback.format_exc(limit=-6))
        try:
            pipe.send((value, (time.perf_counter() - begin) * 1e3))
        except OSError:
            return


def _leave_with_parent() -> None:
    """End this worker, whatever it computes, when the supervisor is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Starting workers without importing the user's main module: a program file without a main guard must not run its search
# once more in every worker, and workers need nothing from it.

_MAIN_LOCK: Final = threading.Lock()


#: What linear-algebra libraries read once, when they are loaded.
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _start_server(threads: int) -> None:
    """Start the server that workers are forked from, if it is not running: each worker keeps to its share of threads.

    A number that the user has set stands.
    """
    missing = [name for name in _THREADS if name not in os.environ]
    with _MAIN_LOCK:
        os.environ.update(dict.fromkeys(missing, str(threads)))
        try:
            ensure_running()
        finally:
            for name in missing:
                del os.environ[name]


class _Popen(Popen):
    def _launch(self, process_obj: Any) -> None:
        with _MAIN_LOCK:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                super()._launch(process_obj)  # type: ignore[misc]  # not in typeshed
            finally:
                sys.modules["__main__"] = main


class _Process(ForkServerProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)


class _Context(ForkServerContext):
    Process = _Process


def default_workers() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
