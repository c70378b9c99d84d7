"""Python's garbage collector: pauses while modules are imported, and rare collections in searches."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Thresholds of Python's garbage collector in searches: new objects, and collections of a generation before the next.
_COLLECT: Final = (50_000, 20, 100)
_lock: Final = threading.Lock()
#: For each pause that has not ended, whether the collector was on before it.
_pauses: Final[list[bool]] = []


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Run a block of imports without the garbage collector, and leave it afterwards as it was.

    An import of thousands of modules makes it look at all of their objects several times over. What the block has made
    goes to the oldest generation without being looked at, unless the process has frozen objects of its own.
    """
    with _lock:
        _pauses.append(gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            before = _pauses[0]
            _pauses.pop()
            if not _pauses and before:
                if not gc.get_freeze_count():
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


def collect_rarely() -> None:
    """Look for unreachable cycles of objects rarely, and not among what this process has loaded.

    A task makes millions of small values that live as long as it does. Python would walk through all of them again and
    again, which took a quarter of a search.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(*_COLLECT)


__all__ = ["collect_rarely", "pause_garbage_collection"]
