"""Run of ``check`` in a process of its own, so that the report loads no solver."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from mirage_formal.report.model import CheckResult

_LIMIT_S: Final = 3600
_LONGEST: Final = 20_000


def current_time() -> str:
    """Return the current minute, in UTC, as text."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def run_check(path: Path) -> CheckResult:
    """Run ``mirage-formal check`` on a directory and return its result."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "mirage_formal.check", "--", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S + 120, check=False)
        held, text = done.returncode == 0, done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        held, text = False, f"check could not be run: {error}"
    return CheckResult(held, text[:_LONGEST], time.monotonic() - begin, current_time())
