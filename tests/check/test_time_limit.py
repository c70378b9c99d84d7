"""The time limit of a check: it holds whatever the check is doing, and what was established before is kept."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed, expect_equal, report_established, step
from mirage_formal.check.time_limit import LIMIT_S, LimitedCheck, TimeLimitExceeded
from mirage_formal.revalidate import check_command
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.processes import HUNG_S, gone
from tests.kit.runs.fake_engine import roots


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one candidate."""
    root = tmp_path_factory.mktemp("runs") / "doubled"
    run_search(roots(), Settings(engine="tests.kit.runs.fake_engine:Eager", config="tiny", keep=1, workers=1), root)
    return root


def hopeless(path: str) -> None:
    """A step that is done, one that is told, and one that never comes back to Python."""
    with step("first.json", "read it"):
        pass
    report_established(path)
    with step("second.json", "look at it"), step("second.json", "replay the proof"):
        pow(3, 10**9)


def quick(path: str) -> list[str]:
    return [path, report_established("told")]


def failing() -> None:
    with step("a.json", "seal"):
        expect_equal("sha256", "1", "2")


def dying() -> None:
    with step("a.json", "seal"):
        os.kill(os.getpid(), signal.SIGKILL)


def with_a_child(path: str) -> None:
    """Starts a process of its own, as a check with several jobs does, and never ends."""
    pid = os.fork()
    if pid == 0:
        time.sleep(2 * HUNG_S)
    Path(f"{path}.tmp").write_text(str(pid))
    Path(f"{path}.tmp").rename(path)
    time.sleep(600)


class Clock:
    """Stands for the pipe of a check: the limit is over as soon as something has happened, however long that took.

    Attributes:
        waited: The seconds that the check was given, each time it was waited for.
    """

    def __init__(self, check: LimitedCheck[Any], over: Callable[[int], bool]) -> None:
        self._pipe, self._over = check._events, over
        self._heard = 0
        self.waited: list[float] = []
        check._events = self  # type: ignore[assignment]  # has what is used of it

    def poll(self, seconds: float) -> bool:
        """Whether the check says something; not any more after the time is over."""
        self.waited.append(seconds)
        while not self._over(self._heard):
            if self._pipe.poll(0.01):
                return True
        return False

    def recv(self) -> Any:
        self._heard += 1
        return self._pipe.recv()


def test_what_is_in_time_is_the_answer() -> None:
    assert LimitedCheck(120.0, quick, "x").result() == ["x", "told"]


def test_a_failure_is_the_one_of_the_check() -> None:
    with pytest.raises(CheckFailed) as found:
        LimitedCheck(120.0, failing).result()
    assert (found.value.file, found.value.step) == ("a.json", "seal")


def test_a_call_that_never_returns_is_ended_and_its_step_named() -> None:
    check = LimitedCheck(LIMIT_S, hopeless, "x")
    clock = Clock(check, lambda heard: heard == 5)  # a step and its end, what is told, and two steps
    with pytest.raises(TimeLimitExceeded) as found:
        check.result()
    assert found.value.established == ["x"]
    assert not check._process.is_alive()
    assert all(0 < later < before < LIMIT_S for before, later in pairwise(clock.waited))  # one limit for the whole
    assert (found.value.file, found.value.step) == ("second.json", "replay the proof")


def test_a_process_that_dies_is_no_success() -> None:
    with pytest.raises(CheckFailed, match="exit code -9") as found:
        LimitedCheck(120.0, dying).result()
    assert (found.value.file, found.value.step) == ("a.json", "seal")


def test_no_process_outlives_the_limit(tmp_path: Path) -> None:
    check = LimitedCheck(LIMIT_S, with_a_child, str(tmp_path / "pid"))
    Clock(check, lambda heard: (tmp_path / "pid").exists())
    with pytest.raises(TimeLimitExceeded):
        check.result()
    pid = int((tmp_path / "pid").read_text())
    assert gone([pid])


def test_the_command_says_where_time_ran_out_and_never_success(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command.main([str(made), "--time-limit", "0.001"]) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert "time limit of 0.001 s" in errors
    assert "step: " in errors
    assert "0 candidates" in errors


def test_what_was_established_is_printed(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (made / "candidates").iterdir()
    done = check_candidate(one)

    def over(self: LimitedCheck[object]) -> None:
        raise TimeLimitExceeded([done], "candidates/002-abc/proof.jsonl", "replay the proof")

    monkeypatch.setattr(LimitedCheck, "result", over)
    assert check_command.main([str(made), "--time-limit", "5"]) == 1
    output, errors = capsys.readouterr()
    assert output.startswith("NOT the whole directory")
    assert one.name in output
    assert "error: candidates/002-abc/proof.jsonl: time limit of 5 s\n  step: replay the proof\n" in errors
    assert "1 candidates" in errors


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(made: Path, limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command.main([str(made), "--time-limit", limit]) == 2
    assert "--time-limit" in capsys.readouterr().err


def test_conditions_that_the_program_has_not_are_reported_apart(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_command.main([str(made)]) == 0
    assert "None is one that the program has not." in capsys.readouterr().out
    (one,) = (made / "candidates").iterdir()
    needs = ("candidate, kernel operator 1: divisor nonzero",)
    found = check_command._EstablishedFacts([replace(check_candidate(one), conditions=needs, added=needs)], [])
    monkeypatch.setattr(LimitedCheck, "result", lambda self: found)
    assert check_command.main([str(made)]) == 0
    output = capsys.readouterr().out
    assert f"conditions that the program does not have:\n  {one.name}: {needs[0]}\n" in output
