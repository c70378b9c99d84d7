"""Terminal output of a whole program's search: a table of its subgraphs, then the covers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from mirage_formal.graph.graph import GraphDefined
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.partition.covers import WholePart
from mirage_formal.partition.whole_report import WholeReport
from mirage_formal.records.partition import PartRecord, WholeRecord
from mirage_formal.run.candidate_table import CONDITIONS, describe_kernels, print_no_result, print_report, warnings
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import display_path
from mirage_formal.support.errors import NothingFoundError
from mirage_formal.support.result_tables import result_table
from mirage_formal.support.terminal import escape_line

#: Most rows of the table of parts.
_MOST_ROWS: Final = 200
#: Most characters of a line under the table.
_LONG: Final = 1200
_PART_COLUMNS: Final = (
    *((name, False) for name in ("part", "kernels", "est. us")),
    *((name, True) for name in ("operators", "in their place")),
)


def print_any(report: RunReport | WholeReport, console: Console, nothing: NothingFoundError | None = None) -> None:
    """Print the report of a search, or of a whole program's searches; ``nothing`` is the reason if it found nothing."""
    if isinstance(report, RunReport):
        print_report(report, console, nothing)
    else:
        print_whole(report, console)
        print_no_result(nothing, console)


def print_whole(report: WholeReport, console: Console) -> None:
    """Print the best cover by subgraph, all covers, and warnings in bold red."""
    if report.covers:
        title = f"{report.record.program}: {len(report.parts)} parts"
        best = zip(report.record.best.parts, report.parts, strict=True)
        rows = [_row(part, number, one) for number, (part, one) in islice(enumerate(best, 1), _MOST_ROWS)]
        console.print(result_table(title, _PART_COLUMNS, rows, console.width))
        if len(report.parts) > _MOST_ROWS:
            console.print(f"{len(report.parts) - _MOST_ROWS} more parts are in the evidence", highlight=False)
        console.print(_covers(report.record, console.width))
    for text in describe_best_cover(report):
        console.print(escape_line(text, _LONG), markup=False, highlight=False, soft_wrap=True)
    for run in report.searches:
        for text in warnings(run):
            said = escape_line(f"{run.directory.name}: {text}", _LONG)
            console.print(said, style="bold red", markup=False, highlight=False)


def _covers(record: WholeRecord, width: int) -> Table:
    """Return the table of all covers, best first."""
    count, rows = len(record.covers), []
    for number, one in enumerate(record.covers, 1):
        kernels, us = f"{one.kernels} of {record.unfused_kernels}", f"{one.estimated_us:.1f} of {record.unfused_us:.1f}"
        rows.append((str(number), kernels, us, str(len(one.parts)), one.graph_digest[:12]))
    title = f"{count} cover{'s' if count > 1 else ''}; the first one's parts are above"
    columns = [(name, False) for name in ("cover", "kernels", "est. us", "parts")]
    return result_table(title, [*columns, ("digest", True)], rows, width)


def _row(part: PartRecord, number: int, one: WholePart) -> tuple[str, ...]:
    kinds = ", ".join(op.kind.value for op in one.part.program.ops if not isinstance(op, GraphDefined))
    found = "the same operators" + (": no candidate is better" if one.report is not None else "")
    if one.chosen is not None:
        found = f"{one.chosen.digest[:12]}, equivalent: {describe_kernels(one.graph)}"
    if one.view:
        return str(number), "0", "0.0", kinds, "a view: its elements lie in its operand"
    kernels = f"{part.kernels} of {part.unfused_kernels}"
    return str(number), kernels, f"{part.estimated_us:.1f} of {part.unfused_us:.1f}", kinds, found


def describe_best_cover(report: WholeReport) -> list[str]:
    """Return the lines that compare the best cover with the program's own operators."""
    record, parts = report.record, report.parts
    states, runs = sum(run.summary.states for run in report.searches), len(report.searches)
    ends = {
        "complete": "",
        "interrupted": "Interrupted; --resume continues. ",
        "time-limit": "Stopped at the time limit; --resume continues. ",
    }
    lines = [
        f"{ends[record.status]}{runs} distinct parts searched, {states:,} states, {record.wall_s:.1f} s",
    ]
    if report.limited:
        lines.append(
            f"parts: for {report.limited} operators not all sets below them were looked at; others may be cheaper"
        )
    if report.covers:
        best = record.best
        moves = sum(kernel_count(one.graph) for one in parts if not one.view and _is_data_movement(one))
        lines += [
            "verdict equivalent: each cover is proved equal to the program over the reals, part by part, for all "
            f"inputs on which its conditions hold, {len(best.conditions)} of the first ({CONDITIONS})",
            f"conditions of the first that the program's own operators do not have: {'; '.join(best.added) or 'none'}",
            f"kernels: {best.kernels} instead of {record.unfused_kernels}, of which {moves} only copy; est. us: "
            f"{best.estimated_us:.1f} instead of {record.unfused_us:.1f}",
        ]
    return [*lines, "est. us orders candidates; nothing was measured", f"evidence in {display_path(report.directory)}"]


def _is_data_movement(one: WholePart) -> bool:
    moves = {OpKind.RESHAPE, OpKind.TRANSPOSE}
    return one.chosen is None and all(isinstance(op, GraphDefined) or op.kind in moves for op in one.part.program.ops)


def reports_values(reports: Sequence[tuple[RunReport | WholeReport, NothingFoundError | None]]) -> list[dict[str, Any]]:
    """Return runs as a list of {directory, summary, nothing_found}; the summary of a whole program is whole.json.

    ``nothing_found`` is null, or a list of {cause, where, what, hint} that says why there is no candidate.
    """
    return [
        {
            "directory": display_path(one.directory),
            "summary": msgspec.Raw(msgspec.json.encode(one.summary)),
            "nothing_found": None if nothing is None else [dataclasses.asdict(reason) for reason in nothing.reasons],
        }
        for one, nothing in reports
    ]


__all__ = ["describe_best_cover", "print_any", "print_whole", "reports_values"]
