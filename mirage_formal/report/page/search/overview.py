"""Page sections on a search: limits of the space, units, pruning, and candidates on the roofline."""

from __future__ import annotations

from typing import Final

from mirage_formal.graph.check import kernel_types
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.views import launched_operators
from mirage_formal.report.model import READ_ONLY, Report, WorkBound
from mirage_formal.report.page.charts import Dot, figure, logarithmic, scatter
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.page.search.pruning import pruned_section
from mirage_formal.report.page.search.units import course_section, units_section
from mirage_formal.report.search_view import Search
from mirage_formal.support.errors import GraphError

#: Bounds of a recorded read time that is shown; records are not checked.
_LEAST_US: Final = 1e-3
_MOST_US: Final = 1e9


def search_section(search: Search) -> Markup:
    """Return the section on the search of a run, or on all searches of a whole program."""
    facts = [
        ("engine", search.engine), ("oracle", search.oracle), ("space", search.space), ("seed", str(search.seed)),
        ("target", search.target), ("status", search.status), ("seconds", f"{search.wall_s:.1f}"),
        ("worker processes", str(search.workers) if search.workers else "not recorded"),
        ("candidates found", str(search.found)),
    ]  # fmt: skip
    if search.recalled:
        facts.append(("note", "recalled from the user's cache: the seconds are not those of a search"))
    rows = [element("div", None, element("dt", None, name), element("dd", None, value)) for name, value in facts]
    counters = table("Counters of the search", ("counter", "count"), ((k, f"{v:,}") for k, v in search.stats))
    allowed = table("What the space allowed", ("bound", "value"), search.allowed)
    return join_contents(
        [
            element("dl", {"class": "facts"}, *rows),
            units_section(search),
            course_section(search),
            pruned_section(search),
            counters if search.stats else None,
            details("What the space allowed", allowed) if search.allowed else None,
        ]
    )


def roofline_section(report: Report) -> Markup:
    """Return the section that compares every candidate with the target's rates and the program's least work."""
    floor = report.floor
    if floor is None:
        return element("p", None, "The target's figures are not known here, so nothing is said about its limits.")
    least = max(floor.read_us, floor.compute_us)
    intro = (
        f"On {floor.target}, by its figures, moving all inputs and outputs through device memory once takes "
        f"{floor.read_us:.3g} µs, and the program's products take {floor.compute_us:.3g} µs on tensor cores: "
        f"{least:.3g} µs is the least, before latency and launches."
    )
    if (read := _read_us(report)) is not None:
        intro += (
            f" A kernel that only reads the inputs took {read:.3g} µs, as a record beside the run says (not checked)."
        )
    rows, dots = [], []
    for one in report.candidates:
        moved = _moved_bytes(one.graph)
        if not one.estimated_us or not moved:
            continue
        us = one.measured.us if one.measured is not None and one.measured.us else one.estimated_us
        how = "measured" if one.measured is not None and one.measured.us else "estimated"
        rows.append((str(one.rank), one.digest[:12], f"{moved:,}", f"{us:.2f} ({how})", f"{us / least:.2f}"))
        if floor.flops:
            tera = floor.flops / us / 1e6
            words = f"{one.rank}: {floor.flops / moved:.3g} operations a byte, {tera:.3g} Tflop/s {how}"
            dots.append(Dot(floor.flops / moved, tera, words, str(one.rank), one.rank == 1))
    title = "Roofline: operations a byte against Tflop/s"
    drawn = _roofline(floor, dots, title, read) if dots else Markup("")
    if read is not None:
        rows.append(("-", "reading alone", f"{floor.bytes:,}", f"{read:.2f} (measured)", f"{read / least:.2f}"))
    head = ("rank", "candidate", "bytes of its kernels' operands and results", "µs", "times the least")
    behind = table("Candidates beside what is needed at least", head, rows)
    shown = element("figure", None, drawn, element("figcaption", None, title), details("The same as a table", behind))
    return join_contents([element("p", None, intro), shown if dots else behind])


def _read_us(report: Report) -> float | None:
    """Return the microseconds of reading the inputs alone, from the record of baselines, if it has them."""
    timed = [one for candidate in report.candidates if candidate.peers for one in candidate.peers.timed]
    known = (one.us for one in timed if one.name == READ_ONLY and one.us is not None)
    return next((us for us in known if _LEAST_US <= us <= _MOST_US), None)


def _roofline(floor: WorkBound, dots: list[Dot], title: str, read: float | None) -> Markup:
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
    return scatter(f"{title}; {figure(ridge)} operations a byte are where both limits meet", x, y, dots, lines)


def _moved_bytes(graph: KernelGraph | None) -> int:
    """Return the bytes of the operands and results of all kernels, each counted once for each kernel."""
    if graph is None:
        return 0
    try:
        types, own = kernel_types(graph), set(launched_operators(graph))
    except GraphError:
        return 0
    total, number = 0, len(graph.inputs)
    for index, op in enumerate(graph.ops):
        if index in own:
            total += sum(types[n].bytes for n in {*op.operands, *range(number, number + op.results)})
        number += op.results
    return total
