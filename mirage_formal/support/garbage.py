"""Pause of the garbage collector while modules are imported, whose objects live as long as the process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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


__all__ = ["pause_garbage_collection"]
