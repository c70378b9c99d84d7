"""Whether other processes still run, for tests that start or kill some."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.kit.runs.clock import HUNG_S


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # no such file; or, where the process ended after the file was opened, no such process
        return False
    return state not in "ZX"


def gone(pids: Iterable[int]) -> bool:
    """Whether all processes end, in a time that is long on any machine."""
    left, end = list(pids), time.monotonic() + HUNG_S
    while (left := [pid for pid in left if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    return not left
