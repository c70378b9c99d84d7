"""Progress of a running task: a value that a thread beside the task reads now and then.

Whatever computes the task is not slowed by it: it counts as it does anyway, and its counts are looked at twice a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: Seconds between two looks.
EVERY_S: Final = 0.5

_sources: list[Callable[[], Any]] = []


@contextmanager
def telling(source: Callable[[], Any]) -> Iterator[None]:
    """While this lasts, ``source()`` says where the task of this process stands: a small value that can be pickled."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def told() -> Any:
    """Return the progress value of this process's task; None if it reports none."""
    with suppress(IndexError, RuntimeError):  # it ended just now; a table grew while it was read
        return _sources[-1]()
    return None


__all__ = ["EVERY_S", "telling", "told"]
