"""Ends a run of tests in several processes in which nothing ends any more, and says what every process was at.

A test that hangs ends its process, see ``faulthandler_timeout`` in pyproject.toml. This is for what is left: processes
that wait for one another between tests.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Final

import pytest

#: How long no process may answer, of what a test may take.
_MORE: Final = 1.5


def limit(config: pytest.Config) -> float:
    """Seconds in which some test has to end: more than one may take; 0 if that is not limited."""
    return _MORE * float(config.getini("faulthandler_timeout") or 0.0)


class Watch:
    """A plugin of the process that hands out the tests.

    Args:
        config: That of the process.
        limit_s: Seconds in which some test has to end.
    """

    def __init__(self, config: pytest.Config, limit_s: float) -> None:
        self._config = config
        self._limit_s = limit_s
        self._since = time.monotonic()
        self._over = threading.Event()

    def pytest_sessionstart(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, daemon=True).start()

    def pytest_runtest_logreport(self) -> None:
        """Something has ended."""
        self._since = time.monotonic()

    def pytest_sessionfinish(self) -> None:
        """Nothing is waited for any more."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(10.0, self._limit_s / 4)):
            if time.monotonic() - self._since > self._limit_s:
                print(f"\nno test has ended for {self._limit_s:g} s", *self._standing(), sep="\n", file=sys.stderr)
                faulthandler.dump_traceback(sys.__stderr__ or 2)
                os._exit(1)

    def _standing(self) -> Iterable[str]:
        """What every process still has to do, by the books of pytest-xdist."""
        scheduler: Any = getattr(self._config.pluginmanager.get_plugin("dsession"), "sched", None)
        names = getattr(scheduler, "collection", None) or ()
        for node, left in getattr(scheduler, "node2pending", {}).items():
            tests = ", ".join(names[n] for n in left[:3])
            yield f"{node.gateway.id}: {len(left)} left{' and told to end' if node.shutting_down else ''}: {tests}"
        yield f"asked to give tests back: {getattr(scheduler, 'steal_requested_from_node', None)}"
