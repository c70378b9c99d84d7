"""Executor of tasks on the workers of a dask cluster, on any number of machines.

Dask starts and restarts workers, and moves tasks and answers. This module decides which worker computes a task. Each
thread of a worker gets one task at a time, so that a lost worker's task is known. Each try goes to another worker, and
a task that always kills its process is found out. Workers compute in separate processes (``cluster_worker``), which a
task may crash without harm to dask.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final

from mirage_formal.support.errors import ClusterError
from mirage_formal.support.resources import install_command
from mirage_formal.workers.cluster_worker import TOPIC, WorkerTask, compute
from mirage_formal.workers.dispatch import SLOW_AFTER_S, SLOW_FACTOR, AttemptFailed, Event, Executor, WorkerSlot
from mirage_formal.workers.task_progress import EVERY_S

#: Seconds to reach a scheduler, and then for its first worker to appear.
_CONNECT_S: Final = 5.0
_APPEAR_S: Final = 60.0
#: Seconds between two queries of the list of workers, and seconds without any worker before the run is given up.
_LOOK_EVERY_S: Final = 1.0
_ALONE_S: Final = 300.0
#: Most progress events a second of all tasks together; the scheduler passes them on.
_EVENTS_PER_S: Final = 200.0
#: Seconds to fetch an answer that a worker says it has.
_FETCH_S: Final = 60.0
#: Seconds for the local cluster to start and to end.
_START_S: Final = 60.0
_END_S: Final = 10.0


class _Thread(WorkerSlot):
    """Slot for a thread of a dask worker; ``future`` is dask's handle of its task."""

    future: Any = None


class Cluster(Executor[_Thread]):
    """Executor on the workers of a dask cluster; workers that come or go during a run are added or replaced.

    Args:
        address: "tcp://HOST:PORT" or "tls://HOST:PORT" of a scheduler, or "local:N" for N workers on this machine.
        preload: Modules that the workers' processes start with.
        environment: Versions and digests that must be the same on the workers as here, by name; a function of a module.
        memory: Bytes that a task may use, as in ``pool.Pool``; a worker's own limit, shared out among its threads,
            holds as well.

    Raises:
        ClusterError: ``distributed`` is not installed, the address cannot be reached, no worker is there, or one of
            them is of another version.
    """

    speculative = True

    def __init__(
        self,
        address: str,
        preload: Sequence[str] = (),
        *,
        environment: Callable[[], dict[str, str]] = dict,
        memory: int | None = None,
        slow_factor: float = SLOW_FACTOR,
        slow_after_s: float = SLOW_AFTER_S,
    ) -> None:
        super().__init__(slow_factor=slow_factor, slow_after_s=slow_after_s)
        self._preload = tuple(preload)
        self._environment = environment
        self._memory = memory
        self._name = uuid.uuid4().hex
        self._sent = 0
        self._ended: queue.SimpleQueue[tuple[_Thread, Any]] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self._refused: set[str] = set()
        self._seen = self._looked = time.monotonic()
        self._client: Any = None
        self._host: _Host | None = None
        try:
            self._connect(address)
        except BaseException:
            self.close()
            raise
        self._workers = len(self._slots)

    @property
    def workers(self) -> int:
        """Return the number of threads of the cluster's workers at the time of connection."""
        return self._workers

    def close(self) -> None:
        """Cancel running tasks and leave the cluster; end a cluster that was started here."""
        for slot in list(self._slots):
            if slot.task is not None:
                self._stop(slot)
        self._slots.clear()
        if self._client is not None:
            # The scheduler may be gone. The client then closes itself, too, and two closings at once can be in each
            # other's way; what this process has found is complete without either.
            for leave in (partial(self._client.unsubscribe_topic, TOPIC), partial(self._client.close, timeout=_END_S)):
                with suppress(Exception):
                    leave()
            self._client = None
        if self._host is not None:
            self._host.close()
            self._host = None

    def pids(self) -> dict[str, int]:
        """Return the process ids of the dask workers, by address."""
        found: dict[str, int] = self._client.run(os.getpid)
        return found

    def scheduler_seconds(self) -> float:
        """Return the scheduler's processor time by now; with "local:N", its workers' nannies included."""
        found: float = self._client.run_on_scheduler(time.process_time)
        return found

    # Workers

    def _connect(self, address: str) -> None:
        client_class = _client_class()
        if address.startswith("local:"):
            self._host = _Host(_local_workers(address))
            scheduler = self._host.address
        else:
            scheduler = address
        try:
            self._client = client_class(scheduler, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            hint = "start one with: dask scheduler, and on every machine: dask worker ADDRESS"
            what = f"expected a dask scheduler, got none: {_shorten(error)}"
            raise ClusterError(what, where=address, hint=hint) from None
        self._client.subscribe_topic(TOPIC, self._hear)
        end = time.monotonic() + _APPEAR_S
        while not self._slots and time.monotonic() < end:
            refused = self._add_workers(self._threads())
            if refused:
                hint = "install the same mirage_formal and the same packages on every machine"
                raise ClusterError("; ".join(refused[:3]), where=address, hint=hint)
            if not self._slots:
                time.sleep(0.2)
        if not self._slots:
            hint = f"on every machine: dask worker {scheduler}"
            raise ClusterError(f"expected at least one worker, got none in {_APPEAR_S:.0f} s", where=address, hint=hint)

    def _threads(self) -> dict[str, int]:
        """Return the number of threads of every worker that the scheduler knows, by address."""
        try:
            found: dict[str, int] = self._client.nthreads()
        except (OSError, RuntimeError, CancelledError) as error:
            hint = "what was found by now is in the journal; --resume continues"
            raise ClusterError(f"lost the scheduler: {_shorten(error)}", where="cluster", hint=hint) from None
        return found

    def _add_workers(self, threads: dict[str, int]) -> list[str]:
        """Make slots of the new workers; return the faults of those that may not be used."""
        known = {slot.home for slot in self._slots} | self._refused
        new = [address for address in threads if address not in known]
        if not new:
            return []
        ours = self._environment()
        refused: list[str] = []
        for address, theirs in self._client.run(self._environment, workers=new, on_error="return").items():
            if isinstance(theirs, OSError):
                continue  # it is on its way out, or is asked again
            wrong = _environment_difference(ours, theirs)
            if wrong:
                self._refused.add(address)
                refused.append(f"worker {address}: {wrong}")
            else:
                self._slots += [_Thread(address) for _ in range(threads[address])]
        return refused

    def _look(self) -> list[_Thread]:
        """Bring the slots up to date; return those that were busy at a worker that is gone."""
        self._looked = time.monotonic()
        threads = self._threads()
        gone = [slot for slot in self._slots if slot.home not in threads]
        for slot in gone:
            self._slots.remove(slot)
        self.remarks += [f"not used: {text}" for text in self._add_workers(threads)]
        if self._slots:
            self._seen = self._looked
        elif self._looked - self._seen > _ALONE_S:
            hint = "what was found by now is in the journal; --resume continues"
            raise ClusterError(f"expected a worker, got none for {_ALONE_S:.0f} s", where="cluster", hint=hint)
        return [slot for slot in gone if slot.task is not None]

    # Tasks

    def _ready(self, wanted: int, deadline: float = float("inf")) -> list[_Thread]:
        return [slot for slot in self._slots if slot.task is None]

    def _send(self, slot: _Thread, function: Callable[[Any], Any], task: Any, limit_s: float) -> bool:
        self._sent += 1
        key = f"mirage_formal-{self._name}-{self._sent}"
        tell_s = max(EVERY_S, len(self._slots) / _EVENTS_PER_S)
        order = WorkerTask(pickle.dumps((function, task)), key, limit_s, self._memory, self._preload, tell_s)
        future = self._client.submit(compute, order, key=key, workers=[slot.home], pure=False)
        slot.future = future
        future.add_done_callback(lambda ended: self._ended.put((slot, ended)))
        return True

    def _hear(self, event: tuple[float, tuple[str, bytes]]) -> None:
        """Queue a progress event; dask calls this in a thread of its own, with the events of all clients' tasks."""
        _, (key, said) = event
        if key.startswith(f"mirage_formal-{self._name}-"):
            self._told.put((key, said))

    def _note_told(self) -> None:
        """Store received progress values in the slots that still compute the tasks."""
        slots = {slot.future.key: slot for slot in self._slots if slot.future is not None and slot.task is not None}
        with suppress(queue.Empty):
            while True:
                key, said = self._told.get_nowait()
                if key in slots:
                    slots[key].said = pickle.loads(said)

    def _events(self, timeout: float) -> Iterator[tuple[_Thread, Event]]:
        self._note_told()
        with suppress(queue.Empty):
            while True:
                slot, future = self._ended.get(timeout=timeout)
                timeout = 0.0
                if slot.future is not future or slot.task is None:
                    continue  # given up in the meantime
                event = self._answer(slot)
                yield slot, event
        if time.monotonic() - self._looked >= _LOOK_EVERY_S:
            for slot in self._look():
                self._cancel_task(slot)
                yield slot, AttemptFailed("its worker left the cluster")

    def _answer(self, slot: _Thread) -> Event:
        """Return the event of a dask task that has ended; without an answer, the try counts as lost."""
        try:
            event: Event = slot.future.result(timeout=_FETCH_S)
        except (Exception, CancelledError) as error:
            event = AttemptFailed(f"its worker or its answer was lost: {_shorten(error)}")
            self._threads()  # if it is the scheduler that was lost, no other try would help
        self._cancel_task(slot)
        return event

    def _stop(self, slot: _Thread) -> None:
        slot.task = None
        self._cancel_task(slot)

    def _cancel_task(self, slot: _Thread) -> None:
        """Tell dask that a task is no longer wanted; its worker kills it if it is still computing."""
        future, slot.future = slot.future, None
        if future is not None:
            future.release()


class _Host:
    """Process that runs a local cluster."""

    def __init__(self, workers: int) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mirage_formal.workers.cluster_host", str(workers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        self.address = self._process.stdout.readline().decode().strip() if ready else ""
        if not self.address:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()[-1:] or ["it does not answer"]
            self.close()
            raise ClusterError(f"expected a local cluster, got: {said[0]}", where="cluster", hint="try --workers")

    def close(self) -> None:
        """End the process with all its workers."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()
        self._errors.close()


def _client_class() -> Any:
    try:
        from distributed import Client
    except ImportError:
        hint = install_command("distributed")
        what = "expected the package distributed, which is not installed"
        raise ClusterError(what, where="--cluster", hint=hint) from None
    return Client


def _local_workers(address: str) -> int:
    text = address.removeprefix("local:")
    if not text.isdigit() or not 1 <= int(text) <= 1024:
        hint = "as in local:4"
        raise ClusterError(f"expected local:N with N from 1 to 1024, got {address!r}", where="--cluster", hint=hint)
    return int(text)


def _environment_difference(ours: dict[str, str], theirs: Any) -> str:
    """Return why a worker cannot be used, or "" if its versions and digests are ours."""
    if not isinstance(theirs, dict):
        return f"expected mirage_formal to be installed, got {_shorten(theirs)}"
    wrong = [name for name in ours if theirs.get(name) != ours[name]]
    return "; ".join(f"expected {name} {ours[name][:16]}, got {theirs.get(name, 'none')[:16]}" for name in wrong)


def _shorten(error: object) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]
