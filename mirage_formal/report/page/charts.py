"""SVG charts; each is shown next to a table of the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

from mirage_formal.report.page.markup import Markup, element, join_contents

_WIDTH: Final = 620.0
_HEIGHT: Final = 320.0
_LEFT: Final = 62.0
_BOTTOM: Final = 44.0
_TOP: Final = 12.0
_RIGHT: Final = 16.0


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a chart: its position, description, and candidate."""

    x: float
    y: float
    words: str
    mark: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
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


def linear(title: str, values: Sequence[float], *, zero: bool = True) -> Axis:
    """Return an axis that holds the values, with a margin."""
    low, high = (0.0 if zero else min(values)), max(values)
    room = (high - low) * 0.06 or 1.0
    return Axis(title, low if zero else low - room, high + room)


def logarithmic(title: str, values: Sequence[float]) -> Axis:
    """Return a logarithmic axis that holds the values, which are above 0."""
    low, high = min(values), max(values)
    return Axis(title, low / 1.6, high * 1.6, True)


def figure(value: float) -> str:
    """Format a number with a few digits."""
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"


def _tick(value: float) -> str:
    """Format an axis label, shortened where five digits would not fit."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(factor, 1e4):
            return f"{value / factor:.4g}{letter}" if abs(value) < 1e12 else f"{value:.1e}"
    return figure(value)


def scatter(
    title: str, x: Axis, y: Axis, dots: Sequence[Dot], lines: Sequence[tuple[str, Sequence[tuple[float, float]]]] = ()
) -> Markup:
    """Return a scatter plot, with named lines behind the points."""
    parts = [_frame(x, y)]
    for name, points in lines:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (_place(x, y, *point) for point in points))
        parts.append(element("polyline", {"class": "line", "points": path}, element("title", None, name)))
        (lx, ly), side = _place(x, y, *points[-1]), "end" if points[-1][0] > points[0][0] else "start"
        where = {"class": "tick", "x": f"{lx + (-4 if side == 'end' else 5):.1f}", "y": f"{max(ly, _TOP) + 14:.1f}"}
        parts.append(element("text", where | {"text-anchor": side}, name))
    for dot in sorted(dots, key=lambda one: one.strong):  # what counts most is drawn last
        px, py = _place(x, y, dot.x, dot.y)
        kind = "dot strong" if dot.strong else "dot"
        about = {"cx": f"{px:.1f}", "cy": f"{py:.1f}", "r": "5.5" if dot.strong else "4", "class": kind}
        about |= {"data-candidate": dot.mark} if dot.mark else {}
        parts.append(element("circle", about, element("title", None, dot.words)))
    return _svg(title, join_contents(parts), _HEIGHT)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a row: its start, length, description, and whether it is highlighted."""

    start: float
    length: float
    words: str
    strong: bool = False


def bars(title: str, rows: Sequence[tuple[str, Sequence[Bar]]], unit: str) -> Markup:
    """Return a bar chart with one named row for each entry: a Gantt chart if bars do not start at 0."""
    high = max((bar.start + bar.length for _, row in rows for bar in row), default=0.0)
    step, left = 18.0, 200.0
    axis = Axis(unit, 0.0, max(high * 1.02, 1e-3))
    parts: list[Markup] = []
    bottom = _TOP + step * len(rows)
    for value in axis.ticks():
        px = left + axis.at(value) * (_WIDTH - left - _RIGHT)
        ends = {"x1": f"{px:.1f}", "x2": f"{px:.1f}", "y1": _TOP, "y2": f"{bottom:.1f}"}
        parts.append(element("line", {"class": "grid"} | ends))
        where = {"class": "tick", "x": f"{px:.1f}", "y": f"{bottom + 14:.1f}", "text-anchor": "middle"}
        parts.append(element("text", where, figure(value)))
    for at, (name, row) in enumerate(rows):
        y = _TOP + at * step
        label = {"class": "tick", "x": f"{left - 6:.0f}", "y": f"{y + 12:.1f}", "text-anchor": "end"}
        parts.append(element("text", label, name if len(name) < 32 else f"{name[:30]}…"))
        for bar in sorted(row, key=lambda one: one.strong):  # what stands out is drawn last
            x = left + axis.at(bar.start) * (_WIDTH - left - _RIGHT)
            width = max(3.0 if bar.strong else 1.0, axis.at(bar.length) * (_WIDTH - left - _RIGHT))
            box = {"class": "bar strong" if bar.strong else "bar", "x": f"{x:.1f}", "y": f"{y + 2:.1f}"}
            box |= {"width": f"{width:.1f}", "height": "13"}
            parts.append(element("rect", box, element("title", None, bar.words)))
    end = {"class": "axis", "x": f"{_WIDTH - _RIGHT:.0f}", "y": f"{bottom + 30:.1f}", "text-anchor": "end"}
    parts.append(element("text", end, unit))
    return _svg(title, join_contents(parts), bottom + 38)


def curves(title: str, x: Axis, y: Axis, lines: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]) -> Markup:
    """Return a line chart with named lines through points, each with a description."""
    parts = [_frame(x, y)]
    for number, (name, points) in enumerate(lines):
        placed = [(*_place(x, y, px, py), words) for px, py, words in points]
        kind = f"curve-{number}"
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in placed)
        parts.append(element("polyline", {"class": f"curve {kind}", "points": path}))
        for px, py, words in placed:
            about = {"cx": f"{px:.1f}", "cy": f"{py:.1f}", "r": "2.5", "class": f"point {kind}"}
            parts.append(element("circle", about, element("title", None, words)))
        px, py, _ = placed[-1]
        where = {"class": "axis", "x": f"{px:.1f}", "y": f"{max(py - 8, _TOP):.1f}", "text-anchor": "end"}
        parts.append(element("text", where, name))
    return _svg(title, join_contents(parts), _HEIGHT)


def _place(x: Axis, y: Axis, px: float, py: float) -> tuple[float, float]:
    across = _LEFT + x.at(px) * (_WIDTH - _LEFT - _RIGHT)
    return across, _HEIGHT - _BOTTOM - y.at(py) * (_HEIGHT - _BOTTOM - _TOP)


def _frame(x: Axis, y: Axis) -> Markup:
    parts: list[Markup] = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in x.ticks():
        px = _LEFT + x.at(value) * (right - _LEFT)
        parts.append(element("line", {"class": "grid", "x1": f"{px:.1f}", "x2": f"{px:.1f}", "y1": _TOP, "y2": bottom}))
        about = {"class": "tick", "x": f"{px:.1f}", "y": bottom + 16, "text-anchor": "middle"}
        parts.append(element("text", about, _tick(value)))
    for value in y.ticks():
        py = bottom - y.at(value) * (bottom - _TOP)
        parts.append(element("line", {"class": "grid", "x1": _LEFT, "x2": right, "y1": f"{py:.1f}", "y2": f"{py:.1f}"}))
        about = {"class": "tick", "x": _LEFT - 6, "y": f"{py + 4:.1f}", "text-anchor": "end"}
        parts.append(element("text", about, _tick(value)))
    across = {"class": "axis", "x": (right + _LEFT) / 2, "y": _HEIGHT - 8, "text-anchor": "middle"}
    up = {"class": "axis", "transform": f"translate(14,{bottom / 2:.0f}) rotate(-90)", "text-anchor": "middle"}
    return join_contents([*parts, element("text", across, x.title), element("text", up, y.title)])


def _svg(title: str, inside: Markup, height: float) -> Markup:
    about: dict[str, object] = {"class": "chart", "role": "img", "aria-label": title}
    return element("svg", about | {"viewBox": f"0 0 {_WIDTH:.0f} {height:.0f}"}, inside)
