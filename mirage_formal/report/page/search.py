"""Charts of searches: units by time, the course, pruned branches, estimates, and candidates on the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mirage_formal.graph.graph import KernelGraph, enumerate_results
from mirage_formal.graph.storage_views import launched_operators
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import LEVELS
from mirage_formal.report.model import READ_ONLY, ReportedCandidate, ReportModel, Search, SearchedUnit, WorkBound
from mirage_formal.report.page.charts import Bar, BarChart, Dot, Plot, linear_axis, logarithmic
from mirage_formal.report.sentences import abbreviate_number
from mirage_formal.support.errors import GraphError

#: Most units that have a row each; with more units, rows are workers.
_ROWS: Final = 40
#: Most workers that are drawn, most units without times, and most reasons of pruning.
_LANES: Final = 32
_BARS: Final = 60
_REASONS: Final = 24
#: Resolution of a row; bars within one piece are drawn as one.
_PIECES: Final = 200
_CLOCK: Final = "in seconds of searching; between the sessions of a run the clock stands still"
_UNKNOWN: Final = "not recorded"
#: Bounds of a recorded read time that is shown; records are not checked.
_LEAST_US: Final = 1e-3
_MOST_US: Final = 1e9


# --- units -----------------------------------------------------------------------------------------------------------


def units_chart(units: Sequence[SearchedUnit]) -> BarChart:
    """Return a Gantt chart of units where times were recorded; else how long each of the slowest took."""
    timed = [unit for unit in units if unit.span is not None]
    if not timed:
        return _lengths(units)
    notes = ["Units that were given up stand out."] if any(map(_failed, timed)) else []
    if len(timed) <= _ROWS:
        order = sorted(timed, key=lambda unit: (_unit_ends(unit), unit.number))
        title, rows = f"When each unit was searched, {_CLOCK}", [(_name(unit), [_bar(unit)]) for unit in order]
    else:
        title = f"What each worker searched when, {_CLOCK}"
        lanes: dict[int, list[SearchedUnit]] = {}
        for unit in timed:
            assert unit.span is not None
            lanes.setdefault(unit.span.worker, []).append(unit)
        least = max(_unit_ends(unit)[1] for unit in timed) / _PIECES
        rows = [(f"worker {lane}", list(_merge_bars(lanes[lane], least))) for lane in sorted(lanes)[:_LANES]]
        notes.append("Units that are too short to be told apart are drawn as one.")
        if left := sorted(lanes)[_LANES:]:
            undrawn = sum(len(lanes[lane]) for lane in left)
            notes.append(f"{_count(len(left), 'more worker')} with {_count(undrawn, 'unit')} not drawn.")
    if unknown := len(units) - len(timed):
        notes.append(f"{_count(unknown, 'unit')} whose times were not recorded: only the table has them.")
    return BarChart(title, "seconds of searching", rows, notes)


def _merge_bars(units: Sequence[SearchedUnit], least: float) -> Iterator[Bar]:
    """Yield the bars of one worker's units; consecutive ones shorter than ``least`` are merged."""
    held: list[SearchedUnit] = []
    for unit in sorted(units, key=_unit_ends):
        end = _unit_ends(unit)[1]
        if held and (end - _unit_ends(held[0])[0] > least or _failed(unit) != _failed(held[0])):
            yield _merge_bar(held)
            held = []
        held.append(unit)
    if held:
        yield _merge_bar(held)


def _merge_bar(units: Sequence[SearchedUnit]) -> Bar:
    if len(units) == 1:
        return _bar(units[0])
    begin, end = _unit_ends(units[0])[0], max(_unit_ends(unit)[1] for unit in units)
    states = sum(unit.states for unit in units)
    words = f"{len(units)} units, {begin:.2f} s to {end:.2f} s, {states:,} states"
    return Bar(begin, end - begin, words, _failed(units[0]))


def _bar(unit: SearchedUnit) -> Bar:
    assert unit.span is not None
    begin, end = _unit_ends(unit)
    words = (
        f"{_name(unit)}: {begin:.2f} s to {end:.2f} s, worker {unit.span.worker}, {unit.states:,} states, "
        f"{unit.candidates} candidates, {unit.status}"
    )
    return Bar(begin, end - begin, words, _failed(unit))


def _lengths(units: Sequence[SearchedUnit]) -> BarChart:
    """Return the chart of units without recorded times: how long each of the slowest took."""
    kept = {unit.number for unit in sorted(units, key=lambda unit: -unit.milliseconds)[:_BARS]}
    rows = []
    for unit in units:
        if unit.number in kept:
            seconds = unit.milliseconds / 1e3
            words = f"{unit.label}: {seconds:.2f} s, {unit.states:,} states, {unit.candidates} candidates"
            rows.append((_name(unit), [Bar(0.0, seconds, words, _failed(unit))]))
    notes = ["When they began was not recorded."]
    if len(rows) < len(units):
        notes.append(f"The longest {len(rows)} of {len(units)}.")
    return BarChart("Seconds of the units of the search, in the order in which they finished", "seconds", rows, notes)


def _name(unit: SearchedUnit) -> str:
    return f"{unit.number}: {unit.label}"


def _unit_ends(unit: SearchedUnit) -> tuple[float, float]:
    assert unit.span is not None
    return unit.span.begin, unit.span.end


def _failed(unit: SearchedUnit) -> bool:
    return unit.status == "failed"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def search_progress_plot(course: Sequence[tuple[float, int, int]]) -> Plot:
    """Return the curves of the states and classes of all units together, by seconds of searching."""
    title = f"States visited and classes of tensors built by all units together, {_CLOCK}"
    x = linear_axis("seconds of searching", [at for at, _, _ in course])
    y = linear_axis("count", [max(states, classes) for _, states, classes in course])
    lines = [("states", [(at, float(n), f"{at:.2f} s: {n:,} states") for at, n, _ in course])]
    if any(classes for _, _, classes in course):
        lines.append(("classes", [(at, float(n), f"{at:.2f} s: {n:,} classes") for at, _, n in course]))
    return Plot(title, x, y, lines=lines)


# --- pruned branches -------------------------------------------------------------------------------------------------


def pruned_chart(search: Search) -> BarChart:
    """Return the chart of pruned branches by level of the µGraph and reason, most first."""
    counts = sorted(_pruned_counts(search).items(), key=lambda one: -one[1])
    rows = [
        (f"{level}: {reason}", [Bar(0.0, float(count), f"{level}, {reason}: {count:,}")])
        for (level, reason), count in counts[:_REASONS]
    ]
    notes = ["Thread graphs are put together by a rule, so a search prunes nothing at their level."]
    if any(level == _UNKNOWN for (level, _), _ in counts):
        notes.append("Units of an earlier version do not say at which level.")
    if len(counts) > _REASONS:
        notes.append(f"{len(counts) - _REASONS} more are in the table only.")
    return BarChart("Branches pruned, by reason and by the level of the µGraph", "branches", rows, notes)


def pruned_rows(search: Search) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the table: a row for each reason and a total; a column for each level, if known."""
    counts = _pruned_counts(search)
    levels: list[str] = [*LEVELS] if search.pruned_at else []
    if levels and any(level == _UNKNOWN for level, _ in counts):
        levels.append(_UNKNOWN)
    rows = [
        (reason, *(f"{counts.get((level, reason), 0):,}" for level in levels), f"{total:,}")
        for reason, total in search.pruned
    ]
    sums = (f"{sum(n for (at, _), n in counts.items() if at == level):,}" for level in levels)
    rows.append(("all", *sums, f"{sum(total for _, total in search.pruned):,}"))
    return ("reason", *levels, "all levels" if levels else "count"), rows


def _pruned_counts(search: Search) -> dict[tuple[str, str], int]:
    """Return pruned branches by level and reason; those without a level are counted separately."""
    counts = {(level, reason): count for level, reason, count in search.pruned_at}
    for reason, total in search.pruned:
        left = total - sum(count for (_, name), count in counts.items() if name == reason)
        if left > 0:
            counts[_UNKNOWN, reason] = left
    return counts


# --- candidates ------------------------------------------------------------------------------------------------------


def estimates_plot(candidates: Sequence[ReportedCandidate]) -> Plot:
    """Return estimates against measured times, or by rank where nothing was measured."""
    timed = [(one, one.us) for one in candidates if one.us is not None]
    if not timed:
        x = linear_axis("rank", [float(one.rank) for one in candidates])
        y = linear_axis("estimated µs", [one.estimated_us for one in candidates])
        dots = [
            Dot(one.rank, one.estimated_us, f"{one.rank}: {one.kernels} kernels, {one.estimated_us:.2f} µs", one.rank)
            for one in candidates
        ]
        return Plot("Estimated microseconds by rank; nothing was measured", x, y, dots)
    values = [max(one.estimated_us, us) for one, us in timed]
    x, y = linear_axis("estimated µs", values), linear_axis("measured µs", values)
    dots = [
        Dot(one.estimated_us, us, f"{one.rank}: estimated {one.estimated_us:.2f} µs, measured {us:.2f} µs", one.rank)
        for one, us in timed
    ]
    same = ("estimate = measured", [(0.0, 0.0), (min(x.high, y.high),) * 2])
    return Plot("Estimated against measured microseconds", x, y, dots, [same])


@dataclass(frozen=True, slots=True)
class Roofline:
    """Candidates beside the target's rates.

    Attributes:
        read: Microseconds of reading the inputs alone, where a record beside the run has them.
        rows: Rank, name, moved bytes, microseconds, and how these are known.
        plot: Operations a byte against Tflop/s; None where there is nothing to draw.
    """

    read: float | None
    rows: list[tuple[str, str, int, float, str]]
    plot: Plot | None


def roofline(report: ReportModel) -> Roofline:
    """Return the candidates of a report whose ``floor`` is known, beside the target's rates."""
    floor, read = report.floor, _read_us(report)
    assert floor is not None
    rows, dots = [], []
    for one in report.candidates:
        moved = _moved_bytes(one.graph)
        if not one.estimated_us or not moved:
            continue
        us, how = (one.us, "measured") if one.us else (one.estimated_us, "estimated")
        rows.append((str(one.rank), one.digest[:12], moved, us, how))
        if floor.flops:
            tera = floor.flops / us / 1e6
            words = f"{one.rank}: {floor.flops / moved:.3g} operations a byte, {tera:.3g} Tflop/s {how}"
            dots.append(Dot(floor.flops / moved, tera, words, one.rank))
    if read is not None:
        rows.append(("-", "reading alone", floor.bytes, read, "measured"))
    return Roofline(read, rows, _roofline_plot(floor, dots, read) if dots else None)


def _read_us(report: ReportModel) -> float | None:
    """Return the microseconds of reading the inputs alone, from the record of baselines, if it has them."""
    timed = [one for candidate in report.candidates if candidate.peers for one in candidate.peers.timed]
    known = (one.us for one in timed if one.name == READ_ONLY and one.us is not None)
    return next((us for us in known if _LEAST_US <= us <= _MOST_US), None)


def _roofline_plot(floor: WorkBound, dots: list[Dot], read: float | None) -> Plot:
    ridge = floor.tensor_tflops * 1e3 / floor.bandwidth_gbs
    least = floor.flops / floor.bytes if floor.bytes else ridge
    xs = [dot.x for dot in dots] + [ridge * 2, least]
    low, high = min(xs) / 1.6, max(xs) * 1.6
    read_tera = [] if read is None else [floor.flops / read / 1e6]
    roof = [(low, low * floor.bandwidth_gbs / 1e3), (ridge, floor.tensor_tflops), (high, floor.tensor_tflops)]
    x = logarithmic("operations a byte", xs)
    y = logarithmic("Tflop/s", [dot.y for dot in dots] + [point[1] for point in roof] + read_tera)
    lines = [
        ("what the target can do", roof),
        ("inputs and outputs moved once", [(least, y.low), (least, y.high)]),
        *(("as long as reading alone took", [(low, tera), (high, tera)]) for tera in read_tera),
    ]
    title = "Roofline: operations a byte against Tflop/s"
    return Plot(f"{title}; {abbreviate_number(ridge)} operations a byte are where both limits meet", x, y, dots, lines)


def _moved_bytes(graph: KernelGraph | None) -> int:
    """Return the bytes of the operands and results of all kernels, each counted once for each kernel."""
    if graph is None:
        return 0
    try:
        types, own = kernel_types(graph), set(launched_operators(graph))
    except GraphError:
        return 0
    return sum(
        types[n].bytes
        for index, (first, op) in enumerate(enumerate_results(len(graph.inputs), graph.ops))
        if index in own
        for n in {*op.operands, *range(first, first + op.results)}
    )
