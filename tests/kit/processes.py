"""Other processes and time: commands run as a shell would, clocks that a test puts forward, calls counted.

A test puts a clock forward when what it waits for has happened, instead of hoping that it has by some time; and work is
counted instead of timed, in calls of functions, which are as many on a busy machine as on an idle one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import typer

from mirage_formal.cli import app as cli


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


#: Seconds after which something that only waits for other processes counts as hung; nothing takes nearly as long.
HUNG_S = 600


class Clock:
    """Stands for the module ``time`` in one module of the package.

    Attributes:
        ahead: Seconds that its ``monotonic`` is ahead of the usual one, or of 0 if it stands still.
    """

    def __init__(self, *, still: bool) -> None:
        self.ahead = 0.0
        self._still = still

    def monotonic(self) -> float:
        return self.ahead + (0.0 if self._still else time.monotonic())

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def clock_of(monkeypatch: pytest.MonkeyPatch, module: ModuleType, *, still: bool = False) -> Clock:
    """A clock of its own for a module: on time until the test puts it forward, or always where the test puts it."""
    clock = Clock(still=still)
    monkeypatch.setattr(module, "time", clock)
    return clock


def first_try(path: str) -> bool:
    """Whether this is the first call for a path, over all processes."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Command:
    """Runs commands, and sees to what holds for all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["mirage-formal", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        assert "Traceback" not in said.out + said.err, said.err
        assert "Exception ignored" not in said.err, said.err
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, said.out, said.err)


def leaves() -> dict[str, Any]:
    """Every command that is not a group of others, as typer has it, by its name."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        inner = getattr(command, "commands", None)
        if inner is None:
            found[path] = command
        for name, one in (inner or {}).items():
            walk(one, f"{path} {name}".strip())

    walk(typer.main.get_command(cli.app), "")
    return found


class TooMuchError(BaseException):
    """More calls than a test allows; no ``except Exception`` of what is tested stops it."""


def calls(function: Callable[[], object], most: int) -> int:
    """How many functions, of Python and of C, ``function`` calls until it returns.

    Raises:
        TooMuchError: They are more than ``most``: raised there and then, so that a slow algorithm is not waited for.
    """
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        if event in ("call", "c_call"):
            count += 1
            if count > most:
                sys.setprofile(None)
                raise TooMuchError(f"more than {most:,} calls")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
