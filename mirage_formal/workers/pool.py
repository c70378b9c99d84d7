"""Pool of worker processes on this machine, which may die, crash or hang at any moment without losing a result.

Every worker has a pipe of its own and one task at a time, so the supervisor always knows the task of a dead worker:
there is no shared queue or lock that a SIGKILL could leave in a bad state. A worker that failed in any way is replaced
by a fresh one.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import connect_to_new_process, ensure_running
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from mirage_formal.support.errors import MirageError, WorkerError
from mirage_formal.support.garbage import collect_rarely
from mirage_formal.support.guard import block_interrupts
from mirage_formal.support.resources import processor_count
from mirage_formal.workers import task_progress
from mirage_formal.workers.dispatch import (
    SLOW_AFTER_S,
    SLOW_FACTOR,
    AttemptFailed,
    Event,
    Executor,
    TaskAnswer,
    UserError,
    WorkerSlot,
)
from mirage_formal.workers.forked_server import fork_in_place_of_exec

#: Seconds that an idle or starting worker is given to exit before it is killed.
_GRACE_S: Final = 1.0
#: Workers that may die without having taken a task before the run is given up.
_MAX_STILLBORN: Final = 100
#: Seconds between two measurements of the workers' memory.
_MEMORY_EVERY_S: Final = 0.1
_GIB: Final = 1 << 30
_HINT: Final = "look at this machine's limits of processes and memory (ulimit -a), or use fewer --workers"


class _ProgressMessage(Struct, frozen=True):
    """Progress message that a worker sends while it computes a task."""

    said: Any


class _Worker(WorkerSlot):
    def __init__(self, process: multiprocessing.process.BaseProcess, pipe: Connection) -> None:
        super().__init__(str(process.pid))
        self.process = process
        self.pipe = pipe
        self.until = float("inf")


class Pool(Executor[_Worker]):
    """Worker processes, started when first needed.

    Args:
        workers: Number of processes, at least 1.
        preload: Modules that the server process loads once, so that every worker starts with them.
        memory: Bytes that a worker may use; one that uses more is killed, and its task has failed once. None is no
            bound. Looked up a few times a second where there is /proc, nowhere else.
        threads: Threads of a worker's linear algebra; None is its share of the processors.
    """

    def __init__(
        self,
        workers: int,
        preload: Sequence[str] = (),
        *,
        memory: int | None = None,
        threads: int | None = None,
        slow_factor: float = SLOW_FACTOR,
        slow_after_s: float = SLOW_AFTER_S,
    ) -> None:
        if workers < 1:
            raise ValueError(f"expected at least 1 worker, got {workers}")
        super().__init__(slow_factor=slow_factor, slow_after_s=slow_after_s)
        self._workers = workers
        self._memory = memory
        self._threads = threads or max(1, processor_count() // workers)
        self._context = _Context()
        self._context.set_forkserver_preload(list(preload))
        self._stillborn = 0
        self._server = _ServerState()
        self._leaving: list[_Worker] = []

    prepares = True

    @property
    def workers(self) -> int:
        """Return the number of worker processes."""
        return self._workers

    def start(self, *, fork: bool = False) -> None:
        """Start the server that workers are forked from, which loads ``preload`` while this process goes on.

        Args:
            fork: Whether to fork it from this process, which has one thread and has loaded nothing but this package.
        """
        _start_server(self._threads, fork=fork)

    def close(self) -> None:
        """Kill every worker, also during a task."""
        self.dismiss()  # so that idle workers leave at the same time
        for worker in list(self._slots):
            self._stop(worker)
        for worker in self._leaving:
            _end_process(worker)
        self._leaving.clear()
        self._server.close()

    def dismiss(self) -> None:
        """Let idle workers leave, without waiting for them; a later task starts others."""
        for worker in [worker for worker in self._slots if not worker.busy]:
            self._slots.remove(worker)
            self._leaving.append(worker)
            worker.pipe.close()

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the workers that are alive."""
        return tuple(w.process.pid for w in self._slots if w.process.pid is not None and w.process.is_alive())

    def _ready(self, wanted: int, deadline: float = float("inf")) -> list[_Worker]:
        if len(self._slots) < min(self._workers, wanted) and deadline < float("inf"):
            _start_server(self._threads)
            if not self._server.forks_by(deadline):
                return [worker for worker in self._slots if not worker.busy]
        while len(self._slots) < min(self._workers, wanted):
            self._slots.append(self._launch())
        return [worker for worker in self._slots if not worker.busy]

    def _send(self, slot: _Worker, function: Callable[[Any], Any], task: Any, limit_s: float) -> bool:
        try:
            slot.pipe.send((function, task))
        except OSError:  # died while idle: nothing was lost, and this was not the task's fault
            self._stop(slot)
            self._stillborn += 1
            if self._stillborn > _MAX_STILLBORN:
                what = f"expected worker processes that take a task, got {self._stillborn} that died before"
                raise WorkerError(what, where="workers", hint=_HINT) from None
            return False
        slot.until = time.monotonic() + limit_s
        return True

    def _events(self, timeout: float) -> Iterator[tuple[_Worker, Event]]:
        now = time.monotonic()
        busy = [worker for worker in self._slots if worker.busy]
        timeout = min(timeout, *(worker.until - now for worker in busy)) if busy else timeout
        if self._memory is not None:
            timeout = min(timeout, _MEMORY_EVERY_S)
        ready = set(wait([worker.pipe for worker in self._slots], max(0.0, timeout)))
        for worker in list(self._slots):
            if worker.pipe in ready:
                event = self._heard(worker)
            elif worker.busy:
                event = self._check_limits(worker)
            else:
                continue
            if event is not None and worker.busy:
                yield worker, event

    def _heard(self, worker: _Worker) -> Event | None:
        """Return the event that a worker sent or that its death means; None for a progress message."""
        try:
            event: Event | _ProgressMessage = worker.pipe.recv()
        except (EOFError, OSError):
            self._stop(worker)
            return AttemptFailed(f"its worker died with exit code {worker.process.exitcode}")
        if isinstance(event, _ProgressMessage):
            worker.said = event.said
            return None
        if isinstance(event, AttemptFailed):
            self._stop(worker)  # so that another try meets a fresh process
        return event

    def _check_limits(self, worker: _Worker) -> Event | None:
        """Kill a busy worker that exceeded its time or memory, and return the event; None if it did not."""
        if time.monotonic() >= worker.until:
            self._stop(worker)
            return AttemptFailed("its worker hung and was killed", overdue=True)
        if self._memory is not None and (used := _resident_bytes(worker.process.pid)) > self._memory:
            self._stop(worker)
            most = f"{used / _GIB:.2f} GiB of at most {self._memory / _GIB:.2f}"
            return AttemptFailed(f"its worker used {most} and was killed")
        return None

    def _launch(self) -> _Worker:
        _start_server(self._threads)
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        try:
            process.start()
        except (OSError, EOFError) as error:  # the server that workers are forked from is gone, or cannot fork
            got = getattr(error, "strerror", None) or "that the server which starts them has ended"
            raise WorkerError(f"expected worker processes, got: {got}", where="workers", hint=_HINT) from None
        theirs.close()
        return _Worker(process, ours)

    def _stop(self, slot: _Worker) -> None:
        self._slots.remove(slot)
        slot.pipe.close()
        _end_process(slot)


def _end_process(worker: _Worker) -> None:
    """End the process of a worker whose pipe is closed, and wait for its end."""
    if not worker.busy:
        worker.process.join(_GRACE_S)  # an idle worker leaves by itself when its pipe closes
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()


def _resident_bytes(pid: int | None) -> int:
    """Return the resident memory of a process in bytes; 0 if it is unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def _serve(pipe: Connection) -> None:
    """Serve as a worker: compute each task that arrives and send its answer, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which then kills its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    collect_rarely()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    writes = threading.Lock()
    threading.Thread(target=_send_progress, args=(pipe, writes), daemon=True).start()
    while True:
        try:
            function, task = pipe.recv()
        except (EOFError, OSError):
            return
        event = _run_task(function, task)
        try:
            with writes:
                pipe.send(event)
        except OSError:
            return


def _send_progress(pipe: Connection, writes: threading.Lock) -> None:
    """Send progress values of the task while it is computed; none is sent after its answer."""
    with suppress(OSError):
        while True:
            time.sleep(task_progress.EVERY_S)
            with writes:
                if (said := task_progress.current_progress()) is not None:
                    pipe.send(_ProgressMessage(said))


def _run_task(function: Callable[[Any], Any], task: Any) -> Event:
    begin, cpu = time.perf_counter(), _cpu_seconds()
    try:
        value = function(task)
    except MirageError as error:
        return UserError(error)
    except Exception:
        return AttemptFailed(traceback.format_exc(limit=-6))
    return TaskAnswer(value, 1e3 * (time.perf_counter() - begin), 1e3 * (_cpu_seconds() - cpu))


def _cpu_seconds() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _leave_with_parent() -> None:
    """End this worker, also during a task, when the supervisor is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# Starting workers without importing the user's main module: a program file without a main guard must not run its search
# once more in every worker, and workers need nothing from it.

_MAIN_LOCK: Final = threading.Lock()


#: Environment variables that linear-algebra libraries read once, when they are loaded.
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _start_server(threads: int, *, fork: bool = False) -> None:
    """Start the server that workers are forked from, if it is not running: each worker keeps to its share of threads.

    A number that the user has set stands.

    Args:
        threads: Threads of a worker's linear algebra.
        fork: Whether the server may be forked from this process; see ``Pool.start``.
    """
    missing = [name for name in _THREADS if name not in os.environ]
    with _MAIN_LOCK:
        os.environ.update(dict.fromkeys(missing, str(threads)))
        try:
            with fork_in_place_of_exec() if fork else nullcontext(), block_interrupts():
                ensure_running()
        finally:
            for name in missing:
                del os.environ[name]


class _NoProcess:
    """Stand-in for a process object: the process that is forked for it ends at once."""

    def _bootstrap(self, parent_sentinel: int | None = None) -> int:
        return 0


class _ServerState:
    """State of the server that workers are forked from, which forks nothing before it has loaded its modules.

    To find out, the server is asked for a process that ends at once: the start of a worker would wait for the server
    beyond a time limit.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._forks = False

    def forks_by(self, deadline: float) -> bool:
        """Wait for the server until the deadline, and return whether it forks processes or has ended."""
        if self._forks:
            return True
        if self._asked is None:
            self._asked, data = connect_to_new_process([])
            with open(data, "wb") as stream:
                stream.write(pickle.dumps({}) + pickle.dumps(_NoProcess()))
        self._forks = bool(wait([self._asked], max(0.0, deadline - time.monotonic())))
        if self._forks:
            self.close()
        return self._forks

    def close(self) -> None:
        """Forget the process that was asked for."""
        if self._asked is not None:
            os.close(self._asked)
            self._asked = None


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
