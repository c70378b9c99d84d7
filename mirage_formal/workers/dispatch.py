"""Distribution of tasks among workers of any kind, which may die, hang or be slow.

An ``Executor`` hands out tasks in their order. It retries those that failed on other workers, a fixed number of times,
and reports the ones that take much longer than the rest. A subclass supplies the workers: processes of this machine
(``pool.Pool``) or the workers of a cluster (``cluster.Cluster``). Tasks are pure functions of their arguments, so the
result does not depend on the worker that answers, or on the number of times that a task is computed.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from msgspec import Struct

from mirage_formal.support.errors import MirageError

P = TypeVar("P")
R = TypeVar("R")

#: Tries of one task, each on another worker where there is one, before it is reported as failed.
TRIES: Final = 3
#: A task is slow when it has taken this multiple of the median of those that are done,
SLOW_FACTOR: Final = 5.0
#: and at least this number of seconds,
SLOW_AFTER_S: Final = 10.0
#: once this number of tasks is done.
_SLOW_SAMPLE: Final = 3


class TaskDone(Struct, Generic[R], frozen=True):
    """A task that was computed.

    Attributes:
        index: Position among the tasks.
        value: Its result.
        attempts: Workers that it was given to.
        milliseconds: Time that its worker took.
        cpu_milliseconds: Processor time that its worker took, with that of processes it waited for.
        since: Value of time.monotonic() when it was given to the worker that answered; None if unknown.
        place: Number of that worker's slot, see ``WorkerSlot``.
    """

    index: int
    value: R
    attempts: int
    milliseconds: float
    cpu_milliseconds: float = 0.0
    since: float | None = None
    place: int = 0


class TaskFailed(Struct, frozen=True):
    """A task given up: its worker died, hung, grew too large or raised in every try; ``reason`` is the last one's.

    Attributes:
        index: Position among the tasks.
        reason: Of the last try.
        attempts: Workers that it was given to.
        overdue: Whether the last try took longer than its limit.
        since: Value of time.monotonic() when the last try began; None if unknown.
        place: Number of that worker's slot, see ``WorkerSlot``.
    """

    index: int
    reason: str
    attempts: int
    overdue: bool = False
    since: float | None = None
    place: int = 0


class TaskOverdue(Struct, frozen=True):
    """A task that is still being computed although others took much less.

    Attributes:
        index: Position among the tasks.
        seconds: Since it was given to a worker.
        typical_s: Median of the tasks that are done.
        again: Whether another, idle worker now computes it as well.
    """

    index: int
    seconds: float
    typical_s: float
    again: bool


class TaskAnswer(Struct, frozen=True):
    """Answer of a worker: a value, and the milliseconds of wall time and of processor time that it took."""

    value: Any
    milliseconds: float
    cpu_milliseconds: float


class AttemptFailed(Struct, frozen=True):
    """A failed try: the worker died, hung (``overdue``) or raised."""

    reason: str
    overdue: bool = False


class UserError(Struct, frozen=True):
    """A user's error that the task raised, which a retry cannot cure."""

    error: MirageError


Event = TaskAnswer | AttemptFailed | UserError


#: Function that is called with the outcome of a task for which its ``run`` did not wait.
Receives = Callable[[TaskDone[Any] | TaskFailed], object]


class EarlierTask(Struct, frozen=True):
    """A task that outlasts its ``run``: its position there, and the function that receives its outcome."""

    index: int
    receives: Receives


@dataclass(eq=False)
class WorkerSlot:
    """Place of a worker where one task at a time is computed.

    Attributes:
        home: The worker that it belongs to: a task that failed at one home is given to another where there is one.
        task: Position of the running task, if any.
        since: Value of time.monotonic() when that was sent.
        said: The last progress value of the task, if any, see ``workers.task_progress``.
        place: Its number among the places, from 0, once it was given a task; one that takes the place of another has
            that one's number.
        earlier: The running task of an earlier ``run`` that did not wait for it, if any.
    """

    home: str
    task: int | None = field(default=None, init=False)
    since: float = field(default=0.0, init=False)
    said: Any = field(default=None, init=False)
    place: int = field(default=-1, init=False)
    earlier: EarlierTask | None = field(default=None, init=False)

    @property
    def busy(self) -> bool:
        """Return whether a task is computed there."""
        return self.task is not None or self.earlier is not None


S = TypeVar("S", bound=WorkerSlot)


#: See ``Executor.leaving_tasks``.
Refuses = Callable[[int, int, Sequence[int]], bool]


class _TaskStates:
    """State of every task of one ``run``."""

    def __init__(self, tries: int, once: bool, refuses: Refuses | None) -> None:
        self.refuses = refuses
        self.left = 0
        self.tries = tries
        self.once = once
        self.waiting: deque[int] = deque()
        self.starts: list[int] = []
        self.failures: list[int] = []
        self.homes: list[set[str]] = []
        self.settled: list[bool] = []
        self.told: set[int] = set()
        self.doubled: set[int] = set()
        self.seconds: list[float] = []

    def grow(self, count: int) -> None:
        """Add tasks, so that there are this many; they come before those that wait."""
        more = range(len(self.settled), count)
        self.left += len(more)
        self.waiting.extendleft(reversed(more))
        for _ in more:
            self.starts.append(0)
            self.failures.append(0)
            self.homes.append(set())
            self.settled.append(False)

    def settle(self, index: int) -> None:
        self.settled[index] = True
        self.left -= 1


class Executor(ABC, Generic[S]):
    """Executor of tasks on workers; a context manager that may be used for any number of ``run``s.

    Attributes:
        remarks: Readable remarks for the user about the workers.
    """

    #: Whether a slow task is given to an idle second worker as well.
    speculative: ClassVar[bool] = False
    #: Whether an idle worker is prepared for later tasks while others compute.
    prepares: ClassVar[bool] = False
    #: Seconds without an outcome after which ``run`` yields None.
    TICK_S: ClassVar[float] = 0.2

    def __init__(self, *, slow_factor: float = SLOW_FACTOR, slow_after_s: float = SLOW_AFTER_S) -> None:
        self.remarks: list[str] = []
        self._slots: list[S] = []
        self._refuses: Refuses | None = None
        self._outlasting: Mapping[int, Receives] = {}
        self._steps: deque[Callable[[], object]] = deque()
        self._slow = (slow_factor, slow_after_s)

    @property
    @abstractmethod
    def workers(self) -> int:
        """Return the number of tasks that are computed at a time."""

    @property
    def said(self) -> dict[int, Any]:
        """Return the progress of the tasks that are being computed, by task position; see ``workers.task_progress``."""
        return {slot.task: slot.said for slot in self._slots if slot.task is not None and slot.said is not None}

    @abstractmethod
    def close(self) -> None:
        """End every worker that was started here, also during a task."""

    @abstractmethod
    def _ready(self, wanted: int, deadline: float = float("inf")) -> list[S]:
        """Return slots that may be given a task; up to ``wanted`` are started if that is possible by the deadline."""

    @abstractmethod
    def _send(self, slot: S, function: Callable[[Any], Any], task: Any, limit_s: float) -> bool:
        """Give a task to a slot; return False if the worker died while it was idle, so that nothing was lost."""

    @abstractmethod
    def _events(self, timeout: float) -> Iterator[tuple[S, Event]]:
        """Yield the events of busy slots within ``timeout`` seconds; a slot with an event is idle or gone."""

    @abstractmethod
    def _stop(self, slot: S) -> None:
        """End the task of a busy slot; it yields no further events."""

    def work_meanwhile(self, steps: Iterable[Callable[[], object]]) -> None:
        """Take short steps in this process while workers compute, each when no worker has an event."""
        self._steps.extend(steps)

    def dismiss(self) -> None:
        """Let idle workers leave, without waiting for them; a later task starts others."""

    @contextmanager
    def leaving_tasks(self, refuses: Refuses) -> Iterator[None]:
        """Let places leave tasks of a ``run`` that begins inside to other places.

        Args:
            refuses: Called with a task's position, a place's number and the positions of the waiting tasks; returns
                whether the place leaves the task to another one. Where every worker is idle, no refusal counts.
        """
        self._refuses = refuses
        try:
            yield
        finally:
            self._refuses = None

    @contextmanager
    def outlasting_tasks(self, tasks: Mapping[int, Receives]) -> Iterator[None]:
        """Let a ``run`` that begins inside start some tasks without waiting for them.

        Args:
            tasks: Positions of the tasks, each with a function. It is called with the outcome if that comes in a later
                ``run``, which gives its tasks to other workers meanwhile.
        """
        self._outlasting = tasks
        try:
            yield
        finally:
            self._outlasting = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(
        self,
        function: Callable[[P], R],
        tasks: Sequence[P],
        *,
        limit_s: float,
        deadline: float = float("inf"),
        tries: int = TRIES,
        once: bool = False,
    ) -> Iterator[TaskDone[R] | TaskFailed | TaskOverdue | None]:
        """Compute ``function(task)`` for every task and yield outcomes as they come, in no particular order.

        None is yielded when nothing has happened for ``TICK_S`` seconds, for progress displays.

        Args:
            function: A function of a module, not a closure.
            tasks: Picklable arguments. The caller may append more between two outcomes, which come before
                those that wait.
            limit_s: Seconds after which a task counts as hung.
            deadline: Value of time.monotonic() at which to stop: running tasks are killed and yield nothing.
            tries: Times that a task may fail before it is given up.
            once: Whether a task that took too long is given up at once: another try would take as long.

        Raises:
            MirageError: A task raised one: a mistake of the user, which no other try would cure.
        """
        book = _TaskStates(tries, once, self._refuses)
        outlasting = self._outlasting
        kept: Mapping[int, Receives] = {}
        try:
            while True:
                book.grow(len(tasks))
                begun = self._running(outlasting)
                if book.left == len(begun):
                    kept = begun
                    return
                now = time.monotonic()
                if now >= deadline:
                    return
                self._assign(function, tasks, book, limit_s, deadline)
                happened = False
                computing = any(slot.task is not None for slot in self._slots)
                patience = 0.0 if self._steps and computing else min(self.TICK_S, max(0.0, deadline - now))
                for slot, event in self._events(patience):
                    if slot.earlier is not None:
                        self._pass_on(slot, slot.earlier, event)
                        continue
                    outcome = self._record_event(book, slot, event)
                    if outcome is not None:
                        happened = True
                        yield outcome
                for slow in self._slow_tasks(function, tasks, book, limit_s):
                    happened = True
                    yield slow
                if not happened and patience == 0.0 and self._steps:
                    self._steps.popleft()()
                elif not happened:
                    yield None
        finally:
            for slot in list(self._slots):
                if slot.task is not None and slot.task in kept:
                    slot.earlier, slot.task, slot.said = EarlierTask(slot.task, kept[slot.task]), None, None
                elif slot.task is not None:
                    self._stop(slot)

    def _running(self, tasks: Mapping[int, Receives]) -> dict[int, Receives]:
        """Return those of the tasks that are being computed."""
        return {slot.task: tasks[slot.task] for slot in self._slots if slot.task is not None and slot.task in tasks}

    def _pass_on(self, slot: S, task: EarlierTask, event: Event) -> None:
        """Pass the outcome of a task on to the function that receives it."""
        slot.earlier = None
        match event:
            case TaskAnswer(value, milliseconds, cpu_milliseconds):
                task.receives(TaskDone(task.index, value, 1, milliseconds, cpu_milliseconds, slot.since, slot.place))
            case AttemptFailed(reason, overdue):
                task.receives(TaskFailed(task.index, reason, 1, overdue, slot.since, slot.place))
            case UserError(error):
                task.receives(TaskFailed(task.index, str(error), 1, False, slot.since, slot.place))

    def _assign(
        self, function: Callable[[P], R], tasks: Sequence[P], book: _TaskStates, limit_s: float, deadline: float
    ) -> None:
        """Give every idle slot the first waiting task that it may compute."""
        if not book.waiting:
            return
        busy = sum(slot.busy for slot in self._slots)
        for slot in self._ready(busy + len(book.waiting), deadline):
            self._give(slot, function, tasks, book, limit_s)
        if book.refuses is not None and not any(slot.busy for slot in self._slots):
            book.refuses = None
            for slot in self._ready(0, deadline):
                self._give(slot, function, tasks, book, limit_s)

    def _give(self, slot: S, function: Callable[[P], R], tasks: Sequence[P], book: _TaskStates, limit_s: float) -> None:
        """Give a slot the first waiting task that it may compute, if there is one."""
        index = self._next(book, slot)
        if index is not None and self._start(slot, function, tasks[index], index, book, limit_s):
            book.waiting.remove(index)

    def _start(
        self, slot: S, function: Callable[[P], R], task: P, index: int, book: _TaskStates, limit_s: float
    ) -> bool:
        # Mark the slot as busy before sending: after any interrupt, ``run`` stops a task that may have begun.
        slot.task, slot.since, slot.said = index, time.monotonic(), None
        self._number(slot)
        if not self._send(slot, function, task, limit_s):
            slot.task = None
            return False
        book.starts[index] += 1
        book.homes[index].add(slot.home)
        return True

    def _number(self, slot: S) -> int:
        """Return the number of a slot's place, and give it one if it has none."""
        if slot.place < 0:
            slot.place = min(set(range(len(self._slots) + 1)) - {other.place for other in self._slots})
        return slot.place

    def _next(self, book: _TaskStates, slot: S) -> int | None:
        """Return the first waiting task that has not failed at this slot's home, or has failed at every home.

        A task that the slot's place refuses is passed over.
        """
        homes: set[str] | None = None
        for index in book.waiting:
            if book.refuses is not None and book.refuses(index, self._number(slot), book.waiting):
                continue
            if slot.home not in book.homes[index]:
                return index
            homes = homes or {other.home for other in self._slots}
            if homes <= book.homes[index]:
                return index
        return None

    def _record_event(self, book: _TaskStates, slot: S, event: Event) -> TaskDone[Any] | TaskFailed | None:
        """Record a slot's event; return the outcome, if that settles its task."""
        index = slot.task
        assert index is not None
        seconds = time.monotonic() - slot.since
        slot.task = None
        match event:
            case UserError(error):
                raise error
            case TaskAnswer(value, milliseconds, cpu_milliseconds):
                for other in [other for other in self._slots if other.task == index]:
                    self._stop(other)
                book.seconds.append(seconds)
                book.settle(index)
                return TaskDone(
                    index, value, book.starts[index], milliseconds, cpu_milliseconds, slot.since, slot.place
                )
            case AttemptFailed(reason, overdue):
                book.failures[index] += 1
                if any(other.task == index for other in self._slots):
                    return None
                if book.failures[index] < book.tries and not (overdue and book.once):
                    book.waiting.append(index)
                    return None
                book.settle(index)
                return TaskFailed(index, reason, book.starts[index], overdue, slot.since, slot.place)

    def _slow_tasks(
        self, function: Callable[[P], R], tasks: Sequence[P], book: _TaskStates, limit_s: float
    ) -> Iterator[TaskOverdue]:
        """Yield tasks that have become slow, each once, with whether another worker now computes them as well."""
        if len(book.seconds) < _SLOW_SAMPLE:
            return
        factor, after_s = self._slow
        typical = median(book.seconds)
        now = time.monotonic()
        for slot in list(self._slots):
            index, seconds = slot.task, now - slot.since
            if index is None or index in book.doubled or seconds < max(after_s, factor * typical):
                continue
            again = (
                self.speculative and not book.waiting and self._start_duplicate(slot, function, tasks, book, limit_s)
            )
            if again or index not in book.told:
                book.told.add(index)
                yield TaskOverdue(index, seconds, typical, again)

    def _start_duplicate(
        self, slot: S, function: Callable[[P], R], tasks: Sequence[P], book: _TaskStates, limit_s: float
    ) -> bool:
        """Compute a busy slot's task at another home as well, if that has an idle slot; return whether it does."""
        index = slot.task
        assert index is not None
        for other in self._ready(0):
            if other.home != slot.home and self._start(other, function, tasks[index], index, book, limit_s):
                book.doubled.add(index)
                return True
        return False
