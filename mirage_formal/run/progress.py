"""What a run tells whoever watches it: plain numbers, sent to a callback a few times a second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a run is doing."""

    PLAN = "planning"
    SEARCH = "searching"
    CERTIFY = "certifying"
    PROVE = "proving"
    FORESEE = "numerics"
    WRITE = "writing"


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands.

    Attributes:
        phase: What it is doing.
        done: Units of work of this phase that are finished.
        total: All of them; 0 while unknown.
        states: States visited so far.
        pruned: Branches cut so far.
        candidates: Distinct candidates so far.
        elapsed_s: Seconds since the start.
        remark: The latest about units that take much longer than the others, or empty.
    """

    phase: Phase
    done: int
    total: int
    states: int
    pruned: int
    candidates: int
    elapsed_s: float
    remark: str = ""

    @property
    def states_per_s(self) -> float:
        """States per second since the start."""
        return self.states / self.elapsed_s if self.elapsed_s > 0 else 0.0


#: Receives progress; called in the thread that runs the search, and expected to return at once.
Watch = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A watch that shows nothing."""
