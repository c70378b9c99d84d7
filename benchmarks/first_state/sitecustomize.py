"""Loaded by every Python of a run at its start: writes when the first state is counted, once, atomically."""

from __future__ import annotations

import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class Finder(MetaPathFinder):
    """Watches the search's count of states as soon as its module is loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the module of the search; no other one."""
        spec = PathFinder.find_spec(name, path, target) if name == "mirage_formal.search.engine_interface" else None
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        load = loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            watch(module.SearchCounters)

        loader.exec_module = loaded
        return spec


def watch(tally: Any) -> None:
    """Let a class of counts mark the first state, and then count as before."""
    plain = tally.step, tally.add

    def counted(method: Any) -> Any:
        def call(self: Any, name: str, *rest: Any) -> Any:
            if name == "states":
                tally.step, tally.add = plain
                mark()
            return method(self, name, *rest)

        return call

    tally.step, tally.add = map(counted, plain)


def mark() -> None:
    """Write the time, and the processor seconds of all processes of the session."""
    now, cpu = time.monotonic(), 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        cpu += sum(map(int, fields[11:15])) if int(fields[3]) == os.getsid(0) else 0
    try:
        with open(os.environ["FIRST_STATE"], "x") as first:
            first.write(f"{now} {cpu / os.sysconf('SC_CLK_TCK')}")
    except FileExistsError:
        return


sys.meta_path.insert(0, Finder())
