"""Directories in several processes: the same answers in the same order, whoever computes them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check import solvers
from mirage_formal.check.check_steps import CheckFailed, expect_equal, step
from mirage_formal.cli.app import app
from mirage_formal.revalidate import check_command, processes
from mirage_formal.revalidate.check_command import CheckOutcome
from mirage_formal.revalidate.processes import check_each
from tests.kit.processes import HUNG_S

COUNT = processes._MANY - 2


def here() -> bool:
    return multiprocessing.parent_process() is None


def meet(path: Path) -> None:
    """Wait in this process, after the first directory, until another one has begun, where there are several."""
    begun = path.parent / "begun"
    if not here():
        begun.touch()
    end = time.monotonic() + HUNG_S
    while path.parent.name != "1" and path.name != "0" and not begun.exists() and time.monotonic() < end:
        time.sleep(0.01)


def named(path: Path) -> tuple[str, int]:
    meet(path)
    (path.parent / f"{path.name} by {os.getpid()}").touch()
    time.sleep(0.05)
    return path.name, os.getpid()


def two_wrong(path: Path) -> str:
    """Fails for the second directory, which others take, after it has failed for the last one, which is taken here."""
    meet(path)
    with step(path.name, "look at it"):
        time.sleep(0.3 if path.name == "1" else 0.0)
        expect_equal("name", "right", path.name if path.name in ("1", str(COUNT - 1)) else "right")
    return path.name


def only_here(path: Path) -> str:
    meet(path)
    if not here():
        os._exit(7)
    return path.name


def spent(path: Path) -> bool:
    """Uses a second of what solvers have for all."""
    meet(path)
    time.sleep(0.05)
    solvers._BUDGET.spend(1.0)
    return here()


def paths(root: Path, jobs: int, count: int = COUNT) -> list[Path]:
    """Directories whose parent says how many processes there are."""
    parent = root / str(jobs)
    parent.mkdir()
    return [parent / str(n) for n in range(count)]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are started however little is left."""
    monkeypatch.setattr(processes, "_ALONE_S", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("jobs", [2, 3])
def test_answers_are_in_order_and_this_process_takes_part(tmp_path: Path, jobs: int) -> None:
    found = check_each(named, paths(tmp_path, jobs), jobs)
    assert len(list(tmp_path.rglob("* by *"))) == COUNT  # each once
    assert [name for name, _ in found] == [str(n) for n in range(COUNT)]
    pids = [pid for _, pid in found]
    assert os.getpid() in pids[1:]
    assert 2 <= len(set(pids)) <= jobs


def test_many_are_shared_from_the_first_on(tmp_path: Path) -> None:
    found = check_each(named, paths(tmp_path, 2, processes._MANY), 2)
    assert [name for name, _ in found] == [str(n) for n in range(processes._MANY)]
    pids = [pid for _, pid in found]
    assert len(set(pids)) == 2
    assert pids[0] != os.getpid() == pids[-1]


@pytest.mark.parametrize("jobs", [1, 4])
def test_for_little_work_no_process_is_started(tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: Any) -> Any:
        raise AssertionError("a process was started")

    monkeypatch.setattr(processes, "ProcessPoolExecutor", refused)
    assert {pid for _, pid in check_each(named, paths(tmp_path, 1)[:4], jobs)} == {os.getpid()}
    assert check_each(named, [], jobs) == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_the_first_failure_is_always_the_same(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(CheckFailed) as failed:
        check_each(two_wrong, paths(tmp_path, jobs), jobs)
    assert failed.value.file == "1"


@pytest.mark.usefixtures("at_once")
def test_a_process_that_dies_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="the process that checked it died") as failed:
        check_each(only_here, paths(tmp_path, 2), 2)
    assert Path(failed.value.file).name == "1"  # the first that it had taken


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_solvers_time_is_one_for_all(tmp_path: Path, jobs: int) -> None:
    solvers.reset_solver_budget()
    before = solvers._BUDGET.left()[0]
    total = solvers._BUDGET.total
    where = check_each(spent, paths(tmp_path, jobs), jobs)
    assert (set(where) == {True, False}) == (jobs > 1)
    assert solvers._BUDGET.total == pytest.approx(total - COUNT)
    assert solvers._BUDGET.shared is None
    solvers.reset_solver_budget()
    assert solvers._BUDGET.left()[0] == before


@pytest.mark.parametrize("command", [check_command.main, lambda given: app(["check", *given], standalone_mode=False)])
def test_there_is_one_process_for_each_processor_that_may_be_used(
    command: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a container and under taskset these are fewer than the machine has."""
    asked: list[int] = []

    def check(path: Path, limit_s: float, jobs: int, *rest: object) -> CheckOutcome:
        asked.append(jobs)
        return CheckOutcome(0)

    monkeypatch.setattr("mirage_formal.revalidate.check_command.check_directory", check)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    command([str(tmp_path)])
    assert asked == [3]
