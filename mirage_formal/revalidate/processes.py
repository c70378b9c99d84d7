"""Check of many directories in parallel processes, where that is faster than one process.

Another process must load the checker first, which takes about a second. So others are started only for many
directories, or if the remaining ones are expected to take longer. Other processes take directories from the first on,
this process from the last on.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Final, TypeVar

from mirage_formal.check import solvers
from mirage_formal.check.check_steps import CheckFailed, Listener, current_listener, report_established, send_steps_to
from mirage_formal.support.guard import block_interrupts

R = TypeVar("R")

#: Number of directories from which other processes are started at once: most take 0.1 to 1 second.
_MANY: Final = 12
#: Expected seconds for the remaining directories above which other processes are started.
_ALONE_S: Final = 2.0


def check_each(check: Callable[[Path], R], directories: Sequence[Path], jobs: int) -> list[R]:
    """Return the check's result for every directory, in order; the first failure is therefore deterministic.

    Sound: what is returned is what the check returned for each directory, wherever it ran; else something is raised.

    Args:
        check: A module-level function.
        directories: Its arguments.
        jobs: Most processes at a time.

    Raises:
        CheckFailed: The check of a directory fails, the first in order; or a process died.
    """
    results: list[R] = []
    begin = time.monotonic()
    while left := directories[len(results) :]:
        others = min(jobs, len(left)) - 1
        expected = (time.monotonic() - begin) / len(results) * len(left) if results else 0.0
        if others > 0 and (len(directories) >= _MANY or expected > _ALONE_S):
            return results + _check_in_parallel(check, left, others)
        results.append(report_established(check(left[0])))
    return results


def _check_in_parallel(check: Callable[[Path], R], directories: Sequence[Path], others: int) -> list[R]:
    """Check every directory in this process and ``others`` more; return the results in order."""
    context = multiprocessing.get_context("spawn")
    # Who begins a directory takes it. To cancel what others have not begun would be shorter, but where one of them dies
    # then, Python 3.11's pool fails at the first that is cancelled, and nobody ever answers for those behind it.
    taken = context.Array("b", len(directories))
    results: list[R] = []
    with (
        solvers.shared_budget() as shared,
        ProcessPoolExecutor(
            others, context, initializer=_initialize_worker, initargs=(shared, current_listener(), taken)
        ) as pool,
    ):
        with block_interrupts():
            found = [pool.submit(_check_claimed, check, n, directory) for n, directory in enumerate(directories)]
        try:
            for n in reversed(range(len(directories))):
                if not _claim_directory(taken, n):
                    break  # the others have it, and all before it
                found[n] = _check_here(check, directories[n])
                while len(results) < n and found[len(results)].done():
                    results.append(_result(found[len(results)], directories[len(results)]))
            while len(results) < len(directories):
                results.append(_result(found[len(results)], directories[len(results)]))
        finally:  # nothing more is begun, should one have failed
            taken[:] = [1] * len(directories)
    return results


def _claim_directory(taken: Any, n: int) -> bool:
    """Claim a directory for this process; return False if another process has it."""
    with taken.get_lock():
        before, taken[n] = taken[n], 1
    return not before


def _check_here(check: Callable[[Path], R], directory: Path) -> Future[R | None]:
    """Run a check in this process, and return its result or exception as a completed future."""
    found: Future[R | None] = Future()
    try:
        found.set_result(check(directory))
    except Exception as error:
        found.set_exception(error)
    return found


def _result(future: Future[R | None], directory: Path) -> R:
    try:
        found = future.result()
    except BrokenProcessPool as error:
        what = "the process that checked it died; try --jobs 1"
        raise CheckFailed(str(directory), "check in a process of its own", what) from error
    assert found is not None  # or nobody has checked it
    return report_established(found)


#: In another process: the flags of the directories that a process has claimed.
_taken: Any = None


def _initialize_worker(shared: Any, listener: Listener | None, taken: Any) -> None:
    """Initialize another process: share the solvers' time, and report the steps that it is in."""
    global _taken
    _taken = taken
    solvers.join_budget(shared)
    send_steps_to(listener)


def _check_claimed(check: Callable[[Path], R], n: int, directory: Path) -> R | None:
    """Run a check in another process; return None if another process has claimed the directory."""
    return check(directory) if _claim_directory(_taken, n) else None


__all__ = ["check_each"]
