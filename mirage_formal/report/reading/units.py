"""Reader of a search's units, their times, and the growth of states and classes over time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mirage_formal.records import SEARCH_FILE, TimesRecord, UnitRecord
from mirage_formal.report.reading.source import EvidenceReader
from mirage_formal.report.search_view import Span, Unit

#: Number of points of a search's course.
POINTS: Final = 100


def unit_of(source: EvidenceReader, record: UnitRecord) -> Unit:
    """Return a unit; contradictory times are left out and become a fault of the journal."""
    stats, times, span = record.stats, record.times, None
    states, classes = stats.get("states", 0), stats.get("classes", 0)
    if times is not None:
        if wrong := _contradiction(times, states, classes):
            source.fault(SEARCH_FILE, f"times of unit {record.unit}: {wrong}")
        else:
            span = Span(times.begin, times.end, times.worker, times.samples)
    cut, found = sum(record.pruned.values()), len(record.candidates)
    return Unit(record.unit, record.label, record.status, states, classes, cut, found, record.milliseconds, span)


def _contradiction(times: TimesRecord, states: int, classes: int) -> str:
    """Return how times contradict each other, or "": seconds and counts only grow, and end with the unit."""
    seconds = [times.begin, *(one[0] for one in times.samples), times.end]
    if seconds != sorted(seconds):
        return f"expected begin, samples and end one behind another, got {seconds[0]:g} to {seconds[-1]:g} s"
    for name, at, last in (("states", 1, states), ("classes", 2, classes)):
        counts = [0, *(one[at] for one in times.samples), last]
        if counts != sorted(counts):
            return f"expected {name} that grow up to the {last} of the unit, got {max(counts)}"
    return ""


def course(units: Iterable[Unit]) -> tuple[tuple[float, int, int], ...]:
    """Return the states and classes of all units together over time, at ``POINTS`` points.

    Args:
        units: The units; those without times are left out.
    """
    more: list[tuple[float, int, int]] = []
    for unit in units:
        if unit.span is not None:
            known = (0, 0)
            for at, states, classes in (*unit.span.samples, (unit.span.end, unit.states, unit.classes)):
                more.append((at, states - known[0], classes - known[1]))
                known = (states, classes)
    more.sort()
    found: dict[int, tuple[float, int, int]] = {}
    states = classes = 0
    for at, new, built in more:
        states, classes = states + new, classes + built
        found[int(at / more[-1][0] * POINTS) if at else 0] = (at, states, classes)
    return ((0.0, 0, 0), *found.values()) if found else ()


__all__ = ["POINTS", "course", "unit_of"]
