"""A plugin of pytest that writes what became of each test as soon as it is known: a line of JSON each.

python -m pytest -p tests.kit.torch.outcome_log ...        with TOLD=FILE in the environment
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: Lines of a traceback that are kept: its end says what went wrong.
_LINES = 15


def pytest_runtest_logreport(report: Any) -> None:
    """See pytest's hook."""
    failed = report.outcome == "failed"
    if report.when != "call" and not failed and report.outcome != "skipped":
        return
    said = str(report.longrepr).strip().splitlines()[-_LINES:] if failed else []
    line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2), "said": said}
    with Path(os.environ["TOLD"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
