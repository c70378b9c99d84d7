"""Progress of a running task: a value that a second thread reads at intervals.

This does not slow the task down: the task counts as it does anyway, and its counts are read twice a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: Seconds between two reads.
EVERY_S: Final = 0.5

_sources: list[Callable[[], Any]] = []


@contextmanager
def report_progress(source: Callable[[], Any]) -> Iterator[None]:
    """Register ``source``, which returns this process's task progress as a small picklable value, for this context."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def current_progress() -> Any:
    """Return the progress value of this process's task; None if it reports none."""
    with suppress(IndexError, RuntimeError):  # it ended just now; a table grew while it was read
        return _sources[-1]()
    return None


__all__ = ["EVERY_S", "current_progress", "report_progress"]
