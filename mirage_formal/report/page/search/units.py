"""Page sections on units: a Gantt chart of their times, and the growth of states and classes over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mirage_formal.report.page.charts import Bar, bars, curves, linear
from mirage_formal.report.page.markup import Markup, details, element, table
from mirage_formal.report.search_view import Search, Unit

#: Most units that have a row each; with more units, rows are workers.
_ROWS: Final = 40
#: Most workers that are drawn, and most units without times.
_LANES: Final = 32
_BARS: Final = 60
#: Most units in the table.
_LISTED: Final = 2000
#: Resolution of a row; bars within one piece are drawn as one.
_PIECES: Final = 200
_HEAD: Final = (
    "unit",
    "about",
    "status",
    "worker",
    "began",
    "ended",
    "seconds",
    "states",
    "classes",
    "pruned",
    "candidates",
)
_CLOCK: Final = "in seconds of searching; between the sessions of a run the clock stands still"


def units_section(search: Search) -> Markup:
    """Return the section on the units: a Gantt chart where times were recorded, and a table."""
    if not search.units:
        return Markup("")
    timed = [unit for unit in search.units if unit.span is not None]
    if timed:
        title, rows, notes = _gantt(timed)
        unknown = len(search.units) - len(timed)
        if unknown:
            notes.append(f"{_count(unknown, 'unit')} whose times were not recorded: only the table has them.")
        unit = "seconds of searching"
    else:
        title, rows, notes = _lengths(search.units)
        unit = "seconds"
    return _figure(bars(title, rows, unit), title, notes, _table(search, title))


def course_section(search: Search) -> Markup:
    """Return the chart of the states and classes of all units together, by seconds of searching."""
    if not search.course:
        return Markup("")
    title = f"States visited and classes of tensors built by all units together, {_CLOCK}"
    x = linear("seconds of searching", [at for at, _, _ in search.course])
    y = linear("count", [max(states, classes) for _, states, classes in search.course])
    lines = [("states", [(at, float(n), f"{at:.2f} s: {n:,} states") for at, n, _ in search.course])]
    if any(classes for _, _, classes in search.course):
        lines.append(("classes", [(at, float(n), f"{at:.2f} s: {n:,} classes") for at, _, n in search.course]))
    rows = ((f"{at:.2f}", f"{states:,}", f"{classes:,}") for at, states, classes in search.course)
    behind = table(title, ("seconds", "states", "classes"), rows)
    notes = ["Workers tell their counts about twice a second; in between nothing is known."]
    return _figure(curves(title, x, y, lines), title, notes, behind)


def _figure(drawn: Markup, title: str, notes: Sequence[str], behind: Markup) -> Markup:
    caption = element("figcaption", None, " ".join([f"{title}.", *notes]))
    return element("figure", None, drawn, caption, details("The same as a table", behind))


def _gantt(timed: Sequence[Unit]) -> tuple[str, list[tuple[str, list[Bar]]], list[str]]:
    """Return title, rows and notes of a chart of units with times."""
    notes = ["Units that were given up stand out."] if any(map(_failed, timed)) else []
    if len(timed) <= _ROWS:
        order = sorted(timed, key=lambda unit: (_unit_ends(unit), unit.number))
        return f"When each unit was searched, {_CLOCK}", [(_name(unit), [_bar(unit)]) for unit in order], notes
    lanes: dict[int, list[Unit]] = {}
    for unit in timed:
        assert unit.span is not None
        lanes.setdefault(unit.span.worker, []).append(unit)
    high = max(_unit_ends(unit)[1] for unit in timed)
    shown = sorted(lanes)[:_LANES]
    rows = [(f"worker {lane}", list(_merge_bars(lanes[lane], high / _PIECES))) for lane in shown]
    notes.append("Units that are too short to be told apart are drawn as one.")
    if len(lanes) > len(shown):
        left = sum(len(lanes[lane]) for lane in lanes if lane not in shown)
        notes.append(f"{_count(len(lanes) - len(shown), 'more worker')} with {_count(left, 'unit')} not drawn.")
    return f"What each worker searched when, {_CLOCK}", rows, notes


def _merge_bars(units: Sequence[Unit], least: float) -> Iterator[Bar]:
    """Yield the bars of one worker's units; consecutive ones shorter than ``least`` are merged."""
    held: list[Unit] = []
    for unit in sorted(units, key=_unit_ends):
        end = _unit_ends(unit)[1]
        if held and (end - _unit_ends(held[0])[0] > least or _failed(unit) != _failed(held[0])):
            yield _merge_bar(held)
            held = []
        held.append(unit)
    if held:
        yield _merge_bar(held)


def _merge_bar(units: Sequence[Unit]) -> Bar:
    if len(units) == 1:
        return _bar(units[0])
    begin, end = _unit_ends(units[0])[0], max(_unit_ends(unit)[1] for unit in units)
    states = sum(unit.states for unit in units)
    words = f"{len(units)} units, {begin:.2f} s to {end:.2f} s, {states:,} states"
    return Bar(begin, end - begin, words, _failed(units[0]))


def _bar(unit: Unit) -> Bar:
    assert unit.span is not None
    begin, end = _unit_ends(unit)
    words = (
        f"{_name(unit)}: {begin:.2f} s to {end:.2f} s, worker {unit.span.worker}, {unit.states:,} states, "
        f"{unit.candidates} candidates, {unit.status}"
    )
    return Bar(begin, end - begin, words, _failed(unit))


def _lengths(units: Sequence[Unit]) -> tuple[str, list[tuple[str, list[Bar]]], list[str]]:
    """Return title, bars and notes for units without recorded times: how long each of the slowest took."""
    slow = sorted(units, key=lambda unit: -unit.milliseconds)[:_BARS]
    kept = {unit.number for unit in slow}
    rows = []
    for unit in units:
        if unit.number in kept:
            seconds = unit.milliseconds / 1e3
            words = f"{unit.label}: {seconds:.2f} s, {unit.states:,} states, {unit.candidates} candidates"
            rows.append((_name(unit), [Bar(0.0, seconds, words, _failed(unit))]))
    notes = ["When they began was not recorded."]
    if len(rows) < len(units):
        notes.append(f"The longest {len(rows)} of {len(units)}.")
    return "Seconds of the units of the search, in the order in which they finished", rows, notes


def _table(search: Search, title: str) -> Markup:
    rows = []
    for unit in search.units[:_LISTED]:
        span = unit.span
        when = ("-", "-", "-") if span is None else (str(span.worker), f"{span.begin:.2f}", f"{span.end:.2f}")
        seconds = f"{unit.milliseconds / 1e3:.2f}"
        found = (f"{unit.states:,}", f"{unit.classes:,}", f"{unit.pruned:,}", str(unit.candidates))
        rows.append((str(unit.number), unit.label, unit.status, *when, seconds, *found))
    left = len(search.units) - len(rows)
    return table(f"{title}; {left:,} more units are not listed" if left else title, _HEAD, rows)


def _name(unit: Unit) -> str:
    return f"{unit.number}: {unit.label}"


def _unit_ends(unit: Unit) -> tuple[float, float]:
    assert unit.span is not None
    return unit.span.begin, unit.span.end


def _failed(unit: Unit) -> bool:
    return unit.status == "failed"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


__all__ = ["course_section", "units_section"]
