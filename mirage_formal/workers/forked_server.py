"""Fork of multiprocessing's helper processes from this process, in place of a new interpreter for each.

A new interpreter loads Python's own modules and this package again, which takes longer than a small search. A process
may be forked only while it has one thread and no numerical library: their threads and locks do not survive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, util
from types import ModuleType
from typing import Final, NoReturn

#: Loaded modules that forbid a fork.
_UNSAFE: Final = ("numpy", "torch", "z3", "cvc5")
_MOST_DESCRIPTORS: Final = 1 << 16


@contextmanager
def fork_in_place_of_exec() -> Iterator[None]:
    """Fork the processes that multiprocessing starts inside, if this process may be forked; otherwise do nothing.

    The functions of multiprocessing stay: only the call that starts an interpreter with a program is replaced by a fork
    that runs this program.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or any(name in sys.modules for name in _UNSAFE):
        yield
        return
    usual = util.spawnv_passfds
    vars(util)["spawnv_passfds"] = _fork
    try:
        yield
    finally:
        vars(util)["spawnv_passfds"] = usual


def _fork(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Fork a process that runs the program of an interpreter's arguments, and return its id."""
    pid = os.fork()
    if pid == 0:
        _run_program(arguments[-1], descriptors)
    return pid


def _run_program(program: str, descriptors: Sequence[int]) -> NoReturn:
    """Run a program in this forked process, in a state as after the start of an interpreter, and end the process."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _close_other_descriptors(descriptors)
        vars(forkserver)["_forkserver"].__init__()  # its lock is held by the thread that forks
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv[:] = ["-c"]
        exec(program, {"__name__": "__main__"})
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        os._exit(code)


def _close_other_descriptors(kept: Sequence[int]) -> None:
    low = 0
    for descriptor in sorted({0, 1, 2, *kept}):
        if low < descriptor:  # close_range takes an empty range for one without end
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, _MOST_DESCRIPTORS)
