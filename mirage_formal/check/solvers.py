"""Answers of z3 and cvc5 to the questions of the evidence, within a total time for each directory and for all of them.

Bounds: limits.py. Time is the processor's for the questions, so that neither many of them nor hard ones make a check
endless, and a busy machine gets the same answers as an idle one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, Final

from mirage_formal.errors import FormatError
from mirage_formal.limits import CHECK_S, DIRECTORY_S, QUESTION_MS
from mirage_formal.logic.process import solvers
from mirage_formal.logic.script import Script, parse
from mirage_formal.logic.session import discharge

#: What solvers say to an obligation that holds.
UNSAT: Final = {"z3": "unsat", "cvc5": "unsat"}


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of both solvers to one question, with a reason where one gave none.

    Attributes:
        said: "sat", "unsat" or "unknown", by the solver's name.
        why: The reasons of what is unknown; "" if there is none.
        asked: Whether there was time to ask.
    """

    said: dict[str, str]
    why: str = ""
    asked: bool = True


class _Clock:
    """Seconds that are left: of the directory at hand, and of all that is checked, which processes may share."""

    def __init__(self) -> None:
        self.directory = DIRECTORY_S
        self.inside = False
        self.total = CHECK_S
        self.shared: Any = None

    def left(self) -> tuple[float, str]:
        """The seconds left, and in words what they are of."""
        total = self.total if self.shared is None else self.shared.value
        if total < self.directory:
            return total, f"the {CHECK_S:g} s that solvers have for everything that is checked"
        return self.directory, f"the {DIRECTORY_S:g} s that solvers have for one directory"

    def spend(self, seconds: float) -> None:
        self.directory -= seconds
        self.total -= seconds
        if self.shared is not None:
            with self.shared.get_lock():
                self.shared.value -= seconds


_CLOCK: Final = _Clock()


def begin() -> None:
    """Begin the time of everything that is checked."""
    _CLOCK.directory, _CLOCK.total, _CLOCK.shared = DIRECTORY_S, CHECK_S, None


@contextmanager
def directory() -> Iterator[None]:
    """Begin the time of a directory; inside of another, go on with that one's."""
    outermost, _CLOCK.inside = not _CLOCK.inside, True
    if outermost:
        _CLOCK.directory = DIRECTORY_S
    try:
        yield
    finally:
        _CLOCK.inside = not outermost


def unconfined_solvers() -> list[str]:
    """Return what a report says about solver processes that kept a privilege; nothing if none did."""
    try:
        kept = solvers().kept()
    except RuntimeError as error:
        kept = (str(error),)
    return [f"solvers: on this machine their process could not give up: {', '.join(kept)}."] if kept else []


@contextmanager
def shared() -> Iterator[Any]:
    """The time of everything, shared by this process and those that each call ``take_part`` with it."""
    value = get_context("spawn").Value("d", _CLOCK.total)
    take_part(value)
    try:
        yield value
    finally:
        _CLOCK.total, _CLOCK.shared = value.value, None


def take_part(value: Any) -> None:
    """Use the time that the process which started this one shares."""
    _CLOCK.shared = value


def answers(script: Script) -> Answers:
    """Ask z3 and cvc5 a question; an answer holds wherever this very question is asked.

    Sound: it is never a guess: what was not asked, for want of time, is unknown.
    """
    known = _KNOWN.get(script)
    if known is None:
        known = _asked(script)
        if "unknown" not in known.said.values():  # with more time it may be known
            if len(_KNOWN) >= _MOST:
                _KNOWN.clear()
            _KNOWN[script] = known
    return known


_KNOWN: Final[dict[Script, Answers]] = {}
_MOST: Final = 4096


def _asked(script: Script) -> Answers:
    left, whose = _CLOCK.left()
    if left <= 0:
        return Answers(dict.fromkeys(UNSAT, "unknown"), f"no time is left of {whose}", asked=False)
    # Each of the two has its half.
    results = discharge(script, max(1, min(QUESTION_MS, int(1e3 * left / 2))))
    _CLOCK.spend(sum(result.processor_ms for result in results) / 1e3)
    why = "; ".join(result.reason for result in results if result.reason)
    return Answers({result.solver: result.answer.value for result in results}, why)


def expect_unsat(what: str, text: str) -> None:
    """Raise a FormatError unless a text is a question that both solvers refute just now."""
    found = answers(parse(text))
    if found.said != UNSAT:
        raise FormatError(f"{what}: expected {UNSAT}, got {found.said}{f': {found.why}' if found.why else ''}")
