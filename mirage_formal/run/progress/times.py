"""Start and end times of units, taken by the process that hands them out whenever it hears of one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mirage_formal.records import SAMPLES, TimesRecord, UnitRecord
from mirage_formal.run.work import Standing
from mirage_formal.workers.dispatch import Done, Failed

#: Digits behind the point of a second.
_DIGITS: Final = 3


class Samples:
    """States and classes of one unit by seconds; as time goes on fewer of them are kept, evenly spaced.

    Attributes:
        kept: Seconds, states and classes, which grow; at most ``SAMPLES``.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[float, int, int]] = []
        self._apart = 0.0

    def add(self, at: float, states: int, classes: int) -> None:
        """Note how many states there are; nothing new, and what comes soon behind the last sample, is left out.

        Fewer than before are those of another try, which begins again.
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


class Times:
    """The clock of a search, which stands still between its sessions, and samples of the units that are searched.

    Args:
        earlier: Units of earlier sessions.
    """

    def __init__(self, earlier: Iterable[UnitRecord]) -> None:
        self._before = max((one.times.end for one in earlier if one.times is not None), default=0.0)
        self._origin = time.monotonic()
        self._seen: dict[int, Samples] = {}

    def start(self) -> None:
        """The clock goes from here on."""
        self._origin = time.monotonic()

    def look(self, standing: Mapping[int, Standing]) -> None:
        """Note where units stand that are being searched.

        Args:
            standing: By the unit's position among the tasks.
        """
        now = time.monotonic()
        for index, one in standing.items():
            self._seen.setdefault(index, Samples()).add(now, one.states, one.classes)

    def of(self, outcome: Done[Any] | Failed, stats: Mapping[str, int]) -> TimesRecord | None:
        """Return when a unit that has just ended was searched; None if its start is not known.

        Args:
            outcome: What came of it.
            stats: Its counters in the end, which no sample exceeds; those of a unit that failed are empty.
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


__all__ = ["Samples", "Times"]
