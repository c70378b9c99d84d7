"""Code that runs inside a dask worker: it computes every task in a separate process.

A dask worker computes in threads, which cannot be stopped. A separate process can be bounded in time and memory, killed
when its task is no longer wanted, and may crash: the dask worker and its other tasks go on.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from mirage_formal.support.errors import MirageError
from mirage_formal.workers.dispatch import AttemptFailed, Event, TaskAnswer, TaskDone, TaskFailed, UserError
from mirage_formal.workers.pool import Pool
from mirage_formal.workers.task_progress import EVERY_S

#: Dask's topic of progress events: the task's key, and a pickled value. All clients share one name, because a scheduler
#: keeps the last events of each name for ever.
TOPIC: Final = "mirage_formal"
#: Seconds after which an idle process is ended: the cluster may have work for other clients.
IDLE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """A task for a dask worker.

    Attributes:
        payload: The function and its argument, pickled.
        key: Dask's name of the task.
        limit_s: Seconds after which it counts as hung.
        memory: Bytes that it may use; None leaves it at the dask worker's own limit.
        preload: Modules that its process should start with.
        tell_s: Seconds between two events that report the progress of the task (``workers.task_progress``).
    """

    payload: bytes
    key: str
    limit_s: float
    memory: int | None
    preload: tuple[str, ...]
    tell_s: float = EVERY_S


def compute(order: WorkerTask) -> Event:
    """Compute a task in a separate process; kill it if the client has given it up."""
    from distributed import get_worker

    worker = get_worker()
    place = _CREW.take(order.preload, _memory_limit(worker, order.memory))
    try:
        function, task = pickle.loads(order.payload)
        told, then = None, float("-inf")
        for outcome in place.pool.run(function, [task], limit_s=order.limit_s, tries=1):
            match outcome:
                case TaskDone(value=value, milliseconds=wall, cpu_milliseconds=cpu):
                    return TaskAnswer(value, wall, cpu)
                case TaskFailed(reason=reason, overdue=overdue):
                    return AttemptFailed(reason, overdue)
            if _is_cancelled(worker, order.key):
                return AttemptFailed("its client gave it up")
            said, now = place.pool.said.get(0), time.monotonic()
            if said is not told and now - then >= order.tell_s:
                told, then = said, now
                worker.log_event(TOPIC, (order.key, pickle.dumps(said)))
    except MirageError as error:
        return UserError(error)
    finally:
        _CREW.give(place)
    raise AssertionError("a task ended without an outcome")


def _memory_limit(worker: Any, asked: int | None) -> int | None:
    """Return the memory limit of a task: the smaller of the run's and a thread's share of the dask worker's."""
    limit = worker.memory_manager.memory_limit
    bounds = [asked, limit and limit // worker.state.nthreads]
    return min((bound for bound in bounds if bound), default=None)


def _is_cancelled(worker: Any, key: str) -> bool:
    """Return whether the client has released a task, or is gone."""
    state = worker.state.tasks.get(key)
    return state is None or state.state == "cancelled"


@dataclass(eq=False, slots=True)
class _IdlePool:
    """A pool of one process, its preloaded modules and memory limit, and the time since which it is idle."""

    pool: Pool
    terms: tuple[tuple[str, ...], int | None]
    since: float = 0.0


class _IdlePools:
    """Idle processes of a dask worker, kept because starting one takes a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_IdlePool] = []
        self._keeper: threading.Thread | None = None

    def take(self, preload: tuple[str, ...], memory: int | None) -> _IdlePool:
        terms = (preload, memory)
        with self._lock:
            if self._keeper is None:
                # A nanny's worker is a daemon, which may not have children of its own; ours leave when it is gone.
                multiprocessing.current_process().daemon = False
                self._keeper = threading.Thread(target=self._keep, daemon=True)
                self._keeper.start()
            for place in self._idle:
                if place.terms == terms:
                    self._idle.remove(place)
                    return place
        return _IdlePool(Pool(1, preload, memory=memory, threads=1), terms)

    def give(self, place: _IdlePool) -> None:
        place.since = time.monotonic()
        with self._lock:
            self._idle.append(place)

    def _keep(self) -> None:
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                old = [place for place in self._idle if time.monotonic() - place.since > IDLE_S]
                self._idle = [place for place in self._idle if place not in old]
            for place in old:
                place.pool.close()


_CREW: Final = _IdlePools()
