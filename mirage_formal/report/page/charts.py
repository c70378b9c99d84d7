"""Charts as values, which templates draw; each is shown next to a table of the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from mirage_formal.report.sentences import abbreviate_number


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a chart: its position, its description, and the rank of its candidate."""

    x: float
    y: float
    words: str
    rank: int

    @property
    def strong(self) -> bool:
        """Return whether it is the best candidate's."""
        return self.rank == 1


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis: its title, its ends, and whether it is logarithmic."""

    title: str
    low: float
    high: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        if self.logarithmic:
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round values between the ends."""
        if self.logarithmic:
            low, high = floor(log10(self.low)), ceil(log10(self.high))
            steps = (1, 2, 5) if high - low < 4 else (1,)
            values = [step * 10.0**power for power in range(low, high + 1) for step in steps]
            return [value for value in values if self.low <= value <= self.high]
        step = 10 ** floor(log10((self.high - self.low) / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = ceil(self.low / step)
        return [n * step for n in range(first, floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of points, and of named lines; a point of a line may have a description."""

    title: str
    x: ChartAxis
    y: ChartAxis
    dots: Sequence[Dot] = ()
    lines: Sequence[tuple[str, Sequence[tuple[float, float] | tuple[float, float, str]]]] = ()

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point, in the drawing of ``charts.html``."""
        return 62 + 542 * self.x.at(x), 276 - 264 * self.y.at(y)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a row: its start, length, description, and whether it is highlighted."""

    start: float
    length: float
    words: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class BarChart:
    """A chart with a named row of bars for each entry, and sentences about it."""

    title: str
    unit: str
    rows: Sequence[tuple[str, Sequence[Bar]]]
    notes: list[str]

    @property
    def axis(self) -> ChartAxis:
        """Return the axis, which holds the ends of all bars."""
        high = max((bar.start + bar.length for _, row in self.rows for bar in row), default=0.0)
        return ChartAxis(self.unit, 0.0, max(high * 1.02, 1e-3))


def linear_axis(title: str, values: Sequence[float], *, zero: bool = True) -> ChartAxis:
    """Return an axis that holds the values, with a margin."""
    low, high = (0.0 if zero else min(values)), max(values)
    room = (high - low) * 0.06 or 1.0
    return ChartAxis(title, low if zero else low - room, high + room)


def logarithmic(title: str, values: Sequence[float]) -> ChartAxis:
    """Return a logarithmic axis that holds the values, which are above 0."""
    low, high = min(values), max(values)
    return ChartAxis(title, low / 1.6, high * 1.6, True)


def axis_label(value: float) -> str:
    """Format an axis label, shortened where five digits would not fit."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(factor, 1e4):
            return f"{value / factor:.4g}{letter}" if abs(value) < 1e12 else f"{value:.1e}"
    return abbreviate_number(value)
