"""Progress events of a run: plain numbers, sent to a callback a few times a second.

Takes events of a search. Returns counts and bars for terminals and notebooks. Imports records, run, support and
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class RunPhase(StrEnum):
    """Phases of a run, by the names that progress displays show; FORESEE simulates rounding errors."""

    PLAN = "planning"
    SEARCH = "searching"
    CERTIFY = "certifying"
    PROVE = "proving"
    FORESEE = "numerics"
    WRITE = "writing"


@dataclass(frozen=True, slots=True)
class Progress:
    """Snapshot of a run's progress.

    Attributes:
        phase: Current phase.
        done: Units of work of this phase that are finished.
        total: All units of work of this phase; 0 while unknown.
        states: States visited so far, including units that are being searched.
        candidates: Distinct candidates of the units that are finished.
        elapsed_s: Seconds since the start.
        remark: Latest remark about units that take much longer than the others, or empty.
        recent_states_per_s: States per second over the last seconds; 0 where none were visited, and after the search.
        pruned_by: Branches cut so far, by the reason.
        best_us: Least estimated microseconds of a candidate so far; None before there is one.
        proved: Candidates verified so far.
        refused: Candidates refused so far.
        left_s: Expected seconds left in this phase; None while unknown.
    """

    phase: RunPhase
    done: int
    total: int
    states: int
    candidates: int
    elapsed_s: float
    remark: str = ""
    recent_states_per_s: float = 0.0
    pruned_by: Mapping[str, int] = field(default_factory=dict)
    best_us: float | None = None
    proved: int = 0
    refused: int = 0
    left_s: float | None = None


#: Callback for progress; called in the thread that runs the search, and must return quickly.
Watch = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignore a progress event."""
