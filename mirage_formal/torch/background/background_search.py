"""Searches that continue in a child process at idle priority; also the child's own entry point.

The child reads its searches from standard input as one pickle. It ends when its standard input is closed, which the
system does when the parent ends in whatever way. Each search continues the unfinished run of the store under that run's
lock, and leaves its result in the store. A line of standard output that holds a message is JSON. Torch is not loaded,
and no GPU is used.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from mirage_formal.cache.search_store import SWITCH, is_store_disabled
from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.support.errors import NothingFoundError, UnsupportedError
from mirage_formal.support.options import ENGINES, Settings

#: Program of the child, which looks for modules where its parent does.
_BOOT: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mirage_formal.torch.background.background_search import main
main()
"""
_LOWEST_PRIORITY: Final = 19
#: Most characters of a reason.
_LONGEST: Final = 300


class BackgroundPhase(StrEnum):
    """Phase of the searches in the background."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """State of the searches in the background at one moment.

    Attributes:
        phase: Whether they run, all have ended, some have failed, or ``stop`` has ended them.
        since: Local time of their start.
        searches: Number of searches.
        searched: Number of those that have ended.
        units, done: Units of work of the current search, and those that are finished; 0 while it is planned.
        reason: Reason of a failure; empty without one.
    """

    phase: BackgroundPhase
    since: datetime
    searches: int
    searched: int = 0
    units: int = 0
    done: int = 0
    reason: str = ""

    def __str__(self) -> str:
        ended = f"{self.searched} of {self.searches} searches ended"
        units = f", {self.done} of {self.units} units of the next" if self.units else ""
        since = self.since.isoformat(sep=" ", timespec="seconds")
        match self.phase:
            case BackgroundPhase.RUNNING:
                return f"search continues in the background since {since}: {ended}{units}"
            case BackgroundPhase.FINISHED:
                return f"search in the background has finished: {ended}"
            case BackgroundPhase.FAILED:
                return f"search in the background has failed: {ended}{units}; {self.reason}"
            case BackgroundPhase.STOPPED:
                return f"search in the background was stopped: {ended}{units}; a longer time_limit continues it"


class BackgroundMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message of the child: how far a search is, or that it has ended.

    Attributes:
        search: Number of the search.
        done, units: Finished units and all units of its search, while it runs.
        ended: Whether it has ended.
        failed: Reason of its failure; empty without one.
    """

    search: int
    done: int = 0
    units: int = 0
    ended: bool = False
    failed: str = ""


class BackgroundSearch:
    """Owner of a child process that continues searches; it belongs to one optimized module.

    The process has the lowest priority (nice 19, on Linux also SCHED_IDLE), so that it uses processor time that nobody
    else wants. It ends with its last search, by ``stop``, when the module is deleted, and with this process.

    Args:
        programs: Programs to search, in order.
        options: Options of ``superoptimize`` for all of them. ``time_limit``, ``measure`` and ``watch`` are not used:
            whole spaces are searched, nothing is measured, and ``state`` says the progress.
    """

    def __init__(self, programs: Sequence[KernelGraph], options: Mapping[str, Any]) -> None:
        self._lock = threading.RLock()  # the collector may call ``stop`` in any thread at any moment
        self._ended: list[int] = []
        self._owner = os.getpid()
        self._stopped = False
        self._state = BackgroundState(BackgroundPhase.RUNNING, datetime.now().astimezone(), len(programs))
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        #: Whether a search has ended whose number ``take`` has not returned yet; cheap to read.
        self.arrived = False
        if not programs:
            self._state = replace(self._state, phase=BackgroundPhase.FINISHED)
            return
        own = {name: value for name, value in options.items() if name != "watch"}
        order = pickle.dumps((list(programs), {**own, "time_limit": None, "measure": 0}))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            self._end(f"its process cannot be started: {error}")
            return
        self._reader = threading.Thread(target=self._follow, args=(self._process, order), daemon=True)
        self._reader.start()

    @property
    def state(self) -> BackgroundState:
        """Return the state of the searches now."""
        return self._state

    @property
    def pid(self) -> int | None:
        """Return the process id of the child; None if there never was one."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End the child process at once; do nothing if it has ended.

        Results that have arrived are installed all the same. What was searched lies in the store: a later call of
        ``optimize`` with a longer time limit continues there.
        """
        if os.getpid() != self._owner:  # after a fork, the process is the other one's
            return
        with self._lock:
            if self._state.phase is not BackgroundPhase.RUNNING:
                return
            self._stopped = True
            self._state = replace(self._state, phase=BackgroundPhase.STOPPED)
        if self._process is not None and self._process.returncode is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)  # with its workers; the thread that follows it reaps it

    def wait(self, timeout_s: float | None = None) -> BackgroundState:
        """Wait until the child process has ended, and return the state.

        Args:
            timeout_s: Most seconds to wait; None is any time.
        """
        if self._reader is not None:
            self._reader.join(timeout_s)
        return self._state

    def end_with(self, owner: object) -> None:
        """End the child process when an object is deleted, or this process exits."""
        weakref.finalize(owner, self.stop)

    def take(self) -> list[int]:
        """Return the numbers of the searches that have ended since the last call; none in a forked process."""
        if os.getpid() != self._owner:
            return []
        with self._lock:
            found, self._ended, self.arrived = self._ended, [], False
        return found

    # --- the thread that follows the child

    def _follow(self, process: subprocess.Popen[bytes], order: bytes) -> None:
        """Send the order, and follow the messages until the child has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        last = ""
        with suppress(OSError, ValueError):
            process.stdin.write(order)
            process.stdin.flush()
        for line in process.stdout:
            try:
                self._hear(msgspec.json.decode(line, type=BackgroundMessage))
            except msgspec.DecodeError:  # output of a library, or a traceback
                last = line.decode(errors="replace").strip() or last
        code = process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                stream.close()
        if self._state.searched < self._state.searches:
            self._end(f"its process ended with exit code {code}{': ' if last else ''}{last[:_LONGEST]}")
        else:
            self._end("")

    def _hear(self, message: BackgroundMessage) -> None:
        with self._lock:
            state = self._state
            if not message.ended:
                self._state = replace(state, done=message.done, units=message.units)
                return
            reason = state.reason or message.failed
            self._state = replace(state, searched=state.searched + 1, done=0, units=0, reason=reason)
            self._ended.append(message.search)
            self.arrived = True

    def _end(self, reason: str) -> None:
        """Record the end of the child, which is a failure if there is a reason for one."""
        with self._lock:
            if self._stopped:
                self._state = replace(self._state, phase=BackgroundPhase.STOPPED)
                return
            reason = self._state.reason or reason
            phase = BackgroundPhase.FAILED if reason else BackgroundPhase.FINISHED
            self._state = replace(self._state, phase=phase, reason=reason)


def expect_store_options(options: Mapping[str, Any]) -> None:
    """Refuse options with which a search leaves nothing in the store that another process could continue.

    Raises:
        UnsupportedError: Names the option.
    """
    own = {name: value for name, value in options.items() if value != getattr(Settings(), name, None)}
    faults = {name: f"{name}={own[name]!r}" for name in ("out", "resume", "force") if own.get(name)}
    if "accept" in own:
        faults["accept"] = f"accept={own['accept']!r}, where it keeps only what is proved"
    if own.get("engine", ENGINES[0]) not in ENGINES:
        faults["engine"] = "an engine of one's own"
    if "cache" in own:
        faults["cache"] = "cache=False"
    if is_store_disabled():
        faults[SWITCH] = f"{SWITCH} in the environment"
    if faults:
        what = f"optimize: expected searches in the store with continue_in_background, got {', '.join(faults.values())}"
        raise error_at_user_line(UnsupportedError, what, f"leave out {', '.join(faults)}, or continue_in_background")


# --- the child -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Search the programs that standard input names, one after another."""
    with suppress(OSError):  # it leads one already where ``BackgroundSearch`` has started it
        os.setsid()
    _lower_priority()
    programs, options = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from mirage_formal.api.request import search_into_store

    for number, program in enumerate(programs):
        failed = ""
        try:
            given: Any = {**options, "watch": _ProgressSender(number)}
            search_into_store(program, given)
        except NothingFoundError:
            pass  # the whole space was searched, and the region stays as it is
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        _send(BackgroundMessage(number, ended=True, failed=failed[:_LONGEST]))


class _ProgressSender:
    """Callback for progress that sends the units of the search, at most a few times a second."""

    _EVERY_S: Final = 0.25

    def __init__(self, search: int) -> None:
        self._search = search
        self._sent = (0, 0)
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        now, units = time.monotonic(), (progress.done, progress.total)
        if progress.phase is RunPhase.SEARCH and units != self._sent and now >= self._next:
            self._sent, self._next = units, now + self._EVERY_S
            _send(BackgroundMessage(self._search, *units))


def _send(message: BackgroundMessage) -> None:
    """Write a message as a line of its own, whatever a library has written before."""
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def _lower_priority() -> None:
    """Give this process, and those that it starts, the lowest priority that the system allows."""
    with suppress(OSError):
        os.nice(_LOWEST_PRIORITY)
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _end_with_parent() -> None:
    """End this process and its workers when the parent has ended."""
    with suppress(OSError):
        os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


__all__ = [
    "BackgroundMessage",
    "BackgroundPhase",
    "BackgroundSearch",
    "BackgroundState",
    "expect_store_options",
    "main",
]
