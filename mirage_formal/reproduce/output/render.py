"""Tables as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from mirage_formal.records.reproduction import Answers, Host, Row, Table5, Workloads
from mirage_formal.reproduce.output.paper_tables import (
    HARDWARE,
    NO_EXPRESSIONS,
    NO_EXPRESSIONS_ABOVE,
    SOURCE,
    THREADS_1,
    THREADS_8,
)
from mirage_formal.reproduce.search_variants import ARMS

_CSV: Final = tuple(name for name in Row.__struct_fields__ if name not in {"graphs", "pruned", "extrapolated", "key"})


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(header) + " |", "|---" + "|--:" * (len(header) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def format_number(value: float | None) -> str:
    """Format a count or a large number; None is a dash."""
    if value is None:
        return "-"
    return f"{value:.1e}" if value >= 1e10 else f"{value:,.0f}"


def measured_on(host: Host) -> str:
    """Return a sentence about the host that a table was measured on."""
    return f"{host.processors} processors, load {host.load} at the start, Python {host.python}."


def _seconds(row: Row) -> str:
    return f"{'' if row.complete else '> '}{row.wall_s:,.2f}"


def csv_text(rows: Iterable[Row]) -> str:
    """Return every count of every row as CSV, with pruned states by reason in columns of their own."""
    rows = list(rows)
    reasons = sorted({reason for row in rows for reason in row.pruned})
    out = io.StringIO()
    sheet = csv.writer(out, lineterminator="\n")
    extra = ["extrapolated_states", "extrapolated_seconds"]
    sheet.writerow([*_CSV, *(f"pruned_{reason}" for reason in reasons), *extra])
    for row in rows:
        values = msgspec.structs.asdict(row)
        growth = row.extrapolated
        sheet.writerow(
            [
                *(values[name] for name in _CSV),
                *(row.pruned.get(reason, 0) for reason in reasons),
                *(("", "") if growth is None else (f"{growth.states:.3e}", f"{growth.seconds:.3e}")),
            ]
        )
    return out.getvalue()


def table5_markdown(result: Table5) -> str:
    """Return Markdown with seconds by limit and arm beside the paper's, the counts of each arm, and comparisons."""
    by = {(row.arm, row.paper_ops): row for row in result.rows}
    arms = [name for name in ARMS if any(row.arm == name for row in result.rows)]
    limits = sorted({row.paper_ops for row in result.rows})
    parts = [
        f"Measured on {measured_on(result.host)} Space: {result.space}, {result.kernel_ops} kernel operators "
        f'({result.kernel_ops + 2} as the paper counts). Rows are stopped after {result.time_limit_s:g} s: "> N".',
        "",
        _seconds_table(by, arms, limits),
    ]
    for name in arms:
        rows = [by[name, ops] for ops in limits if (name, ops) in by]
        parts += [f"### {ARMS[name].title} ({rows[0].workers} workers)\n", _counts(rows), _pruned(rows)]
        if name == "unpruned":
            parts.append(_growth(rows))
    if result.comparisons:
        parts += ["### Guided against exhaustive, as sets of candidates\n", _compared(result)]
    return "\n".join(parts)


def _seconds_table(by: dict[tuple[str, int], Row], arms: Sequence[str], limits: Sequence[int]) -> str:
    header = ["block operators, paper (ours)", *(f"{ARMS[name].title}, s" for name in arms)]
    header += [f"paper {what}, s" for what in ("8 threads", "1 thread", "no expressions")]
    lines = []
    for ops in limits:
        cells = [_seconds(by[name, ops]) if (name, ops) in by else "-" for name in arms]
        above = NO_EXPRESSIONS_ABOVE.get(ops)
        published = [format_number(THREADS_8.get(ops)), format_number(THREADS_1.get(ops))]
        published.append(format_number(NO_EXPRESSIONS.get(ops)) if above is None else f"> {above:,.0f}")
        lines.append([f"{ops} ({ops - 2})", *cells, *published])
    note = f"The paper's numbers ({SOURCE}) were measured on {HARDWARE}.\n"
    return markdown_table(header, lines) + "\n" + note


def _counts(rows: Sequence[Row]) -> str:
    header = ["paper's operators", "wall s", "CPU s", "states", "expression classes", "tensor classes", "oracle calls"]
    header += [
        "from memory",
        "unknown",
        "complete graphs",
        "fingerprints",
        "candidates",
        "structures",
        "reference's",
        "lost units",
    ]
    cells = [
        [
            str(row.paper_ops),
            _seconds(row),
            f"{row.cpu_s:,.2f}",
            ("" if row.complete else "> ") + format_number(row.states),
            format_number(row.expressions),
            format_number(row.classes),
            format_number(row.oracle_calls),
            format_number(row.cache_hits),
            format_number(row.oracle_unknown),
            format_number(row.complete_graphs),
            format_number(row.fingerprint_tests),
            format_number(row.candidates),
            format_number(row.structures if row.candidates is not None else None),
            format_number(row.reference if row.candidates is not None else None),
            format_number(row.lost),
        ]
        for row in rows
    ]
    return markdown_table(header, cells)


def _pruned(rows: Sequence[Row]) -> str:
    reasons = sorted({reason for row in rows for reason in row.pruned})
    header = ["paper's operators", *(f"pruned: {reason}" for reason in reasons)]
    return markdown_table(
        header, [[str(row.paper_ops), *(format_number(row.pruned.get(r, 0)) for r in reasons)] for row in rows]
    )


def _growth(rows: Sequence[Row]) -> str:
    cells = [
        [
            str(row.paper_ops),
            f"{row.states:,} states after {row.wall_s:,.0f} s",
            format_number(row.extrapolated.states),
            format_number(row.extrapolated.seconds),
            f"{row.extrapolated.factor:.1f}",
        ]
        for row in rows
        if row.extrapolated is not None
    ]
    header = ["paper's operators", "measured, more than", "extrapolated states", "extrapolated s", "growth factor"]
    return markdown_table(header, cells)


def _compared(result: Table5) -> str:
    cells = []
    for one in result.comparisons:
        reasons = [f"exhaustive only, {why}: {count}" for why, count in one.exhaustive_only.items()]
        counts = [one.both, one.guided_only, sum(one.exhaustive_only.values()), one.unexplained]
        cells.append(["; ".join(reasons) or "no difference", str(one.paper_ops), *map(str, counts)])
    header = ["difference", "paper's operators", "in both", "guided only", "exhaustive only, explained", "unexplained"]
    return markdown_table(header, cells)


def workloads_markdown(result: Workloads) -> str:
    """Return a Markdown table with one line for each workload and batch."""
    header = ["workload", "b", "candidates", "structures", "proved", "artifact's", "first s", "search s"]
    header += ["certify s", "prove s", "all s", "states", "classes", "oracle calls", "fingerprints"]
    cells = [
        [
            row.name,
            str(row.batch),
            format_number(row.candidates),
            format_number(row.structures),
            format_number(row.proved),
            format_number(row.artifact),
            "-" if row.first_s is None else f"{row.first_s:.2f}",
            *(f"{seconds:.2f}" for seconds in (row.search_s, row.certify_s, row.prove_s, row.wall_s)),
            *(format_number(count) for count in (row.states, row.classes, row.oracle_calls, row.fingerprint_tests)),
        ]
        for row in result.rows
    ]
    return f"Measured on {measured_on(result.host)}\n\n" + markdown_table(header, cells)


def oracle_markdown(result: Answers) -> str:
    """Return Markdown with the queries by source, and the answers by source and arm."""
    sources = [
        [s.name, s.space, format_number(s.queries), format_number(s.sampled), "yes" if s.saturated else "no"]
        for s in result.sources
    ]
    cells = [
        [
            row.source,
            row.arm,
            *(format_number(count) for count in (row.proved, row.refuted, row.unknown, row.pruned, row.valid)),
            format_number(row.wrongly_pruned),
            format_number(row.wrongly_kept),
            f"{row.us_per_query:,.1f}",
        ]
        for row in result.rows
    ]
    header = ["source", "arm", "proved", "refuted", "unknown", "pruned", "valid", "wrongly pruned", "wrongly kept"]
    return (
        f"Measured on {measured_on(result.host)} Sampled with seed {result.seed}.\n\n"
        + markdown_table(["source", "searched in", "distinct queries", "asked", "e-graph complete"], sources)
        + "\n"
        + markdown_table([*header, "us per query"], cells)
    )
