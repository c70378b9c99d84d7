"""Start and end times of units, recorded by the process that dispatches them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mirage_formal.records import SAMPLES, TimesRecord, UnitRecord
from mirage_formal.run.task_values import UnitProgress
from mirage_formal.workers.dispatch import TaskDone, TaskFailed

#: Decimal places of seconds.
_DIGITS: Final = 3


class Samples:
    """Samples of states and classes of one unit over time, thinned out as time goes on.

    Attributes:
        kept: Increasing samples of seconds, states and classes; at most ``SAMPLES``.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[float, int, int]] = []
        self._apart = 0.0

    def add(self, at: float, states: int, classes: int) -> None:
        """Add a sample, unless the states have not changed or the last sample is too recent.

        A smaller number of states comes from a retry of the unit, and starts the samples again.
        """
        if self.kept and states < self.kept[-1][1]:
            self.kept, self._apart = [], 0.0
        if self.kept and (states == self.kept[-1][1] or at - self.kept[-1][0] < self._apart):
            return
        if len(self.kept) == SAMPLES:
            del self.kept[1::2]
            self._apart = (self.kept[-1][0] - self.kept[0][0]) / (len(self.kept) - 1)
            self.add(at, states, classes)
        else:
            self.kept.append((at, states, classes))


class SearchClock:
    """Clock of a search, which stops between its sessions, and samples of the units that are searched.

    Args:
        earlier: Units of earlier sessions.
    """

    def __init__(self, earlier: Iterable[UnitRecord]) -> None:
        self._before = max((one.times.end for one in earlier if one.times is not None), default=0.0)
        self._origin = time.monotonic()
        self._seen: dict[int, Samples] = {}

    def start(self) -> None:
        """Start the clock."""
        self._origin = time.monotonic()

    def look(self, standing: Mapping[int, UnitProgress]) -> None:
        """Record the progress of the units that are being searched.

        Args:
            standing: Progress by the unit's position among the tasks.
        """
        now = time.monotonic()
        for index, one in standing.items():
            self._seen.setdefault(index, Samples()).add(now, one.states, one.classes)

    def times_of_unit(self, outcome: TaskDone[Any] | TaskFailed, stats: Mapping[str, int]) -> TimesRecord | None:
        """Return the times of a unit that has just ended; None if its start is not known.

        Args:
            outcome: Outcome of the unit.
            stats: Its final counters, which no sample exceeds; empty for a unit that failed.
        """
        samples = self._seen.pop(outcome.index, Samples()).kept
        if outcome.since is None:
            return None
        began = outcome.since
        return TimesRecord(
            begin=self._seconds(began),
            end=self._seconds(max(began, time.monotonic())),
            worker=outcome.place,
            samples=tuple(
                (self._seconds(at), states, classes)
                for at, states, classes in samples
                if at >= began and states <= stats.get("states", 0) and classes <= stats.get("classes", 0)
            ),
        )

    def _seconds(self, at: float) -> float:
        return round(self._before + max(0.0, at - self._origin), _DIGITS)


__all__ = ["Samples", "SearchClock"]
