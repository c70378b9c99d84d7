"""Check in a process of its own with a time limit; results established before the limit are kept.

The limit holds whatever the check is doing: a call that never returns to Python cannot outlive its process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from mirage_formal.check.check_steps import CheckFailed, Listener, send_steps_to

R = TypeVar("R")

#: Default seconds for the check of a whole directory.
LIMIT_S: Final = 3600.0
#: Seconds in which a process must end after its pipe is closed.
_END_S: Final = 10.0
#: Environment variable that numpy's linear algebra reads when it is loaded.
_THREADS: Final = "OPENBLAS_NUM_THREADS"


class TimeLimitExceeded(Exception):
    """Error: the time limit is over.

    Attributes:
        established: Results reported by then, in order.
        file: File of the longest-running step.
        step: Name of that step.
    """

    def __init__(self, established: list[Any], file: str, step: str) -> None:
        super().__init__(file, step)
        self.established = established
        self.file = file
        self.step = step


class _StepStacks:
    """Stacks of the steps that processes are in, one for each process."""

    def __init__(self) -> None:
        self._inside: dict[int, list[tuple[float, str, str]]] = {}

    def note(self, process: int, step: tuple[str, str] | None) -> None:
        inside = self._inside.setdefault(process, [])
        if step is not None:
            inside.append((time.monotonic(), *step))
        elif inside:
            inside.pop()

    def longest(self) -> tuple[str, str]:
        """Return file and name of the innermost step that has run longest, over all processes."""
        now = min((inside[-1] for inside in self._inside.values() if inside), default=None)
        return ("", "start") if now is None else now[1:]


class LimitedCheck(Generic[R]):
    """Runner of a check, ``function(*arguments)`` of a module, within a time limit.

    Sound: an answer is what the function returned; everything else is raised.

    Attributes:
        established: Results reported so far, in order.
    """

    def __init__(self, limit_s: float, function: Callable[..., R], *arguments: Any) -> None:
        self._limit_s = limit_s
        context = multiprocessing.get_context("spawn")
        self._function = function
        self._arguments = arguments
        self._events, self._theirs = context.Pipe(duplex=False)
        self._listener = Listener(self._theirs, context.Lock())  # held here: its name goes with the last reference
        self._process = context.Process(target=_serve, args=(self._listener, function, arguments))
        self.established: list[Any] = []
        self._steps = _StepStacks()

    def result(self) -> R:
        """Return the result of the check.

        Raises:
            TimeLimitExceeded: It took too long.
            CheckFailed: It failed, or its process died.
            Exception: Any other error of the check.
        """
        deadline = time.monotonic() + self._limit_s
        with _one_thread():
            self._process.start()
        self._theirs.close()
        try:
            while (left := deadline - time.monotonic()) > 0:
                if not self._events.poll(left):
                    break
                try:
                    kind, *about = self._events.recv()
                except (EOFError, OSError):  # no process is left that could send an event
                    self._process.join(_END_S)
                    what = f"its process died with exit code {self._process.exitcode}"
                    raise CheckFailed(*self._steps.longest(), what) from None
                if kind == "returned":
                    value: R = about[0]
                    return value
                if kind == "raised":
                    raise about[0]
                if kind == "told":
                    self.established.append(about[0])
                else:
                    self._steps.note(*about)
            raise TimeLimitExceeded(self.established, *self._steps.longest())
        finally:
            self._end()

    def _end(self) -> None:
        """Kill the process and those that it started."""
        if self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set one thread of linear algebra for the processes started inside, unless the user sets the number.

    Their matrices are small: more threads take no less time, and use a processor while they wait.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


def _serve(listener: Listener, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()  # so that all its processes can be killed together
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    send_steps_to(listener)
    try:
        answer = ("returned", function(*arguments))
    except Exception as error:
        answer = ("raised", error)
    listener.say(answer)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.killpg(0, signal.SIGKILL)


__all__ = ["LIMIT_S", "LimitedCheck", "TimeLimitExceeded"]
