"""Counters of a run's progress, summed over finished units and units that are being searched."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from mirage_formal.records import UnitRecord
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.task_values import UnitProgress

#: Seconds over which the speed is averaged.
RECENT_S: Final = 5.0


class RemainingTime:
    """Forecast of a phase's remaining time, from the work that is done.

    There is no forecast before a tenth of the work and two pieces are done, because the first pieces are not typical.
    """

    def __init__(self) -> None:
        self._phase: object = None
        self._since = self._before = 0.0

    def left_s(self, phase: object, done: int, total: int) -> float | None:
        """Return the seconds left of a phase with ``done`` of ``total`` pieces finished; None while unknown."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._since, self._before = phase, now, done
        fresh = done - self._before
        if total and done >= total:
            return 0.0
        return None if fresh < max(2, total / 10) else (now - self._since) / fresh * (total - done)


class RunCounters:
    """Total counters of a run so far.

    Attributes:
        digests: Digests of the distinct candidates.
    """

    def __init__(self, records: Iterable[UnitRecord]) -> None:
        self.digests: set[str] = set()
        self._states = 0
        self._pruned: Counter[str] = Counter()
        self._best_us: float | None = None
        self._begin = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._forecast = RemainingTime()
        for record in records:
            self.add(record)
        self._earlier = self._states  # states of earlier sessions, not visited in this one

    def add(self, record: UnitRecord) -> None:
        """Add the counters of a finished unit."""
        self._states += record.stats.get("states", 0)
        self._pruned.update(record.pruned)
        for found in record.candidates:
            self.digests.add(found.digest)
            self._best_us = found.estimated_us if self._best_us is None else min(self._best_us, found.estimated_us)

    def progress(
        self, stage: tuple[RunPhase, int, int], live: Iterable[UnitProgress], verified: tuple[int, int]
    ) -> Progress:
        """Return a snapshot of the run's progress.

        Args:
            stage: The phase, its finished pieces, and all of its pieces.
            live: Progress of each unit that is being searched.
            verified: Number of candidates that were proved, and number that were refused.
        """
        phase, done, total = stage
        now = time.monotonic()
        states, pruned = self._states, self._pruned
        for one in live:
            states += one.states
            pruned = pruned + Counter(one.pruned)
        return Progress(
            phase=phase,
            done=done,
            total=total,
            states=states,
            candidates=len(self.digests),
            elapsed_s=now - self._begin,
            recent_states_per_s=self._recent_speed(now, states) if phase is RunPhase.SEARCH else 0.0,
            pruned_by=dict(pruned.most_common()),
            best_us=self._best_us,
            proved=verified[0],
            refused=verified[1],
            left_s=self._forecast.left_s(phase, done, total),
        )

    def _recent_speed(self, now: float, states: int) -> float:
        """Return the states per second over the last seconds."""
        if not self._seen:
            self._seen.append((self._begin, self._earlier))
        self._seen.append((now, states))
        while len(self._seen) > 2 and now - self._seen[1][0] > RECENT_S:
            self._seen.popleft()
        then, before = self._seen[0]
        return max(0.0, (states - before) / (now - then)) if now > then else 0.0


__all__ = ["RECENT_S", "RemainingTime", "RunCounters"]
