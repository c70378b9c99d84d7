"""Deadline of a call: what is not verified by then is not installed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf
from typing import Final

#: Words with which a report begins the reason why something was not done in time.
STOPPED: Final = "stopped by time_limit before"


class DeadlineReachedError(Exception):
    """Error: the deadline has come, or comes before the next step can end. A call never raises it to its user."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time by which a call has to end.

    Attributes:
        at: Value of ``now``; infinity for no deadline.
    """

    at: float = inf

    @classmethod
    def after(cls, begin: float, seconds: float | None) -> Deadline:
        """Return the deadline some seconds after a value of ``now``; None is no deadline."""
        return cls() if seconds is None else cls(begin + seconds)

    @property
    def unlimited(self) -> bool:
        """Return whether there is no deadline."""
        return self.at == inf

    def left(self) -> float:
        """Return the seconds that are left; below 0 behind the deadline."""
        return self.at - now()

    def share(self, part: float) -> Deadline:
        """Return an earlier deadline, after a part of the seconds that are left."""
        return self if self.unlimited else Deadline(now() + part * self.left())

    def passed(self, ahead: float = 0.0) -> bool:
        """Return whether fewer seconds are left than a step takes."""
        return self.left() <= ahead

    def check(self, ahead: float = 0.0) -> None:
        """Raise an error if fewer seconds are left than a step takes.

        Args:
            ahead: Seconds that the next step is expected to take.

        Raises:
            DeadlineReachedError: The deadline has come, or comes before the step can end.
        """
        if self.passed(ahead):
            raise DeadlineReachedError


def now() -> float:
    """Return the seconds of the clock by which deadlines are given."""
    return time.monotonic()


NO_DEADLINE: Final = Deadline()

__all__ = ["NO_DEADLINE", "STOPPED", "Deadline", "DeadlineReachedError", "now"]
