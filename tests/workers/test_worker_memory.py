"""Workers that may not use as much memory as they need, or cannot be started: one screen, and no traceback."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mirage_formal.run.candidate_table import warnings
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support.errors import WorkerError
from mirage_formal.workers import pool
from mirage_formal.workers.pool import Pool
from tests.kit.runs.fake_engine import FakeEngine, program

FAKE: dict[str, Any] = {"config": "tiny", "keep": 1, "workers": 1}


class Greedy(FakeEngine):
    """Has no memory to plan."""

    def units(self, *_: object) -> NoReturn:
        raise MemoryError("cannot allocate 64.0 GiB")


class Hungry(FakeEngine):
    """Has no memory for any unit."""

    def before(self, *_: object) -> None:
        raise MemoryError("cannot allocate 64.0 GiB")


def test_a_plan_that_needs_too_much_memory_is_said(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="got: MemoryError: cannot allocate") as caught:
        run_search(program(), Settings(**FAKE, engine="tests.workers.test_worker_memory:Greedy"), tmp_path / "run")
    assert "--worker-memory" in caught.value.hint
    assert "Traceback" not in str(caught.value)


def test_units_that_need_too_much_memory_are_said_and_can_be_resumed(tmp_path: Path) -> None:
    found = run_search(program(), Settings(**FAKE, engine="tests.workers.test_worker_memory:Hungry"), tmp_path / "run")
    assert found.failed
    said = "\n".join(warnings(found))
    assert "MemoryError: cannot allocate 64.0 GiB" in said
    assert "--resume tries them again" in said
    assert "Traceback" not in said


def test_workers_that_cannot_be_started_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(pool._Process, "start", refuse)
    with Pool(1) as workers, pytest.raises(WorkerError, match="Resource temporarily unavailable"):
        list(workers.run(str, [1], limit_s=60.0))
