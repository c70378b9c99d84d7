"""Trials of an adversary: each makes one hostile thing, shows it to what must refuse it, and says what happened.

A family of trials is deterministic in its seed; each trial has a generator of random numbers of its own, so that one
that fails is made again alone.
"""

from __future__ import annotations

import random
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

#: Seconds of this process's own time after which a trial counts as a hang. What solvers take in processes of their own
#: is bounded where they are asked.
HANG: Final = 60.0


class Breach(Exception):
    """Something false was accepted."""


class Hang(BaseException):
    """A trial did not end; no handler of ordinary exceptions takes it for a refusal."""


#: One trial, from its random numbers and its number in the family: returns in a few words what became of it, or raises
#: Breach. The number lets a family go through all of its targets in turn.
Trial = Callable[[random.Random, int], str]


@dataclass(frozen=True)
class Family:
    """Trials of one kind.

    Attributes:
        name: Of the family.
        share: Of all trials of a campaign; the shares of all families add up to 1.
        trial: One trial.
    """

    name: str
    share: float
    trial: Trial


@dataclass
class Tally:
    """What became of a family's trials.

    Attributes:
        said: How often each outcome occurred.
        failures: Breaches, hangs and exceptions that are no refusal, each with the trial that makes it again.
    """

    said: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count another part of the same family."""
        self.said.update(other.said)
        self.failures += other.failures


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Hang after so many seconds of processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no end after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def campaign(family: Family, seed: int, numbers: range, hang: float = HANG) -> Tally:
    """Run some trials of a family."""
    tally = Tally()
    for number in numbers:
        what = f"{family.name} {seed}:{number}"
        try:
            with limited(hang):
                tally.said[family.trial(random.Random(what), number)] += 1
        except Breach as breach:
            tally.failures.append(f"{what}: WRONG ACCEPT: {breach}")
        except Hang as hang_:
            tally.failures.append(f"{what}: HANG: {hang_}")
        except Exception:
            tally.failures.append(f"{what}: TRACEBACK\n{traceback.format_exc(limit=-6)}")
    return tally
