"""Reader of the output of ``reproduce``: the paper's search statistics measured again, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from mirage_formal.records import decode
from mirage_formal.records.reproduction import Answers, Host, Row, Table5, Workloads
from mirage_formal.records.run import Record
from mirage_formal.report.model import FigureTable, ReportModel
from mirage_formal.report.reading.evidence_reader import EvidenceReader

R = TypeVar("R", bound=Record)

_Cells = tuple[str, ...]

TABLE5_FILE: Final = "table5.json"
WORKLOADS_FILE: Final = "workloads.json"
ORACLE_FILE: Final = "oracle.json"
FILES: Final = (TABLE5_FILE, WORKLOADS_FILE, ORACLE_FILE)


def read_reproduced(source: EvidenceReader) -> ReportModel:
    """Read the tables of a directory of ``reproduce``; a file that cannot be read is a fault."""
    tables = [
        *_tables(source, TABLE5_FILE, Table5, _table5),
        *_tables(source, WORKLOADS_FILE, Workloads, _workloads),
        *_tables(source, ORACLE_FILE, Answers, _oracle),
    ]
    return ReportModel(
        kind="reproduce",
        name="The paper's search statistics, measured again",
        source="",
        place=str(source.root),
        program=None,
        tables=tuple(tables),
        faults=tuple(source.faults),
    )


def _tables(
    source: EvidenceReader, file: str, kind: type[R], made: Callable[[R], Iterable[FigureTable]]
) -> list[FigureTable]:
    if not source.there(file):
        return []
    found = source.value(file, lambda data: decode(data, kind, file))
    return [] if found is None else list(made(found))


def _measured_on_note(host: Host) -> str:
    return f"Measured on {host.processors} processors, load {host.load:g} at the start, Python {host.python}."


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1e}" if value >= 1e10 else f"{value:,.0f}"


def _mark_lower_bound(row: Row, value: str) -> str:
    """Mark a value of an unfinished search as a lower bound."""
    return value if row.complete else f"> {value}"


def _table5(found: Table5) -> Iterable[FigureTable]:
    arms = list(dict.fromkeys(row.arm for row in found.rows))
    by = {(row.arm, row.paper_ops): row for row in found.rows}
    published = list(found.published)
    rows: list[_Cells] = []
    for ops in sorted({row.paper_ops for row in found.rows}):
        ours = [by.get((arm, ops)) for arm in arms]
        seconds = ["-" if row is None else _mark_lower_bound(row, f"{row.wall_s:,.2f}") for row in ours]
        theirs = [_count(found.published[name].get(ops)) for name in published]
        rows.append((str(ops), *seconds, *theirs))
    yield FigureTable(
        f"Seconds of a search for {found.program}, by the most block operators",
        f"{_measured_on_note(found.host)} Space: {found.space}. A row is stopped after {found.time_limit_s:g} s, and "
        f"is then a lower bound. The paper's columns ({found.published_by}) were measured on other hardware.",
        ("operators, as the paper counts", *(f"{arm}, s" for arm in arms), *(f"paper, {one}, s" for one in published)),
        tuple(rows),
    )
    heads: _Cells = ("search", "operators", "workers", "wall s", "CPU s", "states", "pruned", "oracle calls",
                     "complete graphs", "candidates", "structures", "reference's")  # fmt: skip
    yield FigureTable("What each search did", "", heads, tuple(_describe_work(row) for row in found.rows))
    grown = [(row, row.extrapolated) for row in found.rows if row.extrapolated is not None]
    if grown:
        heads = ("search", "operators", "measured states", "extrapolated states", "extrapolated s", "growth factor")
        cells: tuple[_Cells, ...] = tuple(
            (row.arm, str(row.paper_ops), f"> {row.states:,}", _count(one.states), _count(one.seconds),
             f"{one.factor:.1f}")
            for row, one in grown
        )  # fmt: skip
        yield FigureTable("Searches without pruning: extrapolated, not measured", "", heads, cells)
    if found.comparisons:
        heads = ("operators", "in both", "guided only", "exhaustive only, explained", "unexplained", "explained by")
        cells = tuple(
            (str(one.paper_ops), str(one.both), str(one.guided_only), str(sum(one.exhaustive_only.values())),
             str(one.unexplained), "; ".join(f"{why}: {n}" for why, n in sorted(one.exhaustive_only.items())) or "-")
            for one in found.comparisons
        )  # fmt: skip
        yield FigureTable("Candidates of guided and exhaustive search as sets", "", heads, cells)


def _describe_work(row: Row) -> tuple[str, ...]:
    found = (row.candidates, *((row.structures, row.reference) if row.candidates is not None else (None, None)))
    return (
        row.arm,
        str(row.paper_ops),
        str(row.workers),
        _mark_lower_bound(row, f"{row.wall_s:,.2f}"),
        f"{row.cpu_s:,.2f}",
        _mark_lower_bound(row, _count(row.states)),
        _count(sum(row.pruned.values())),
        _count(row.oracle_calls),
        _count(row.complete_graphs),
        *map(_count, found),
    )


def _workloads(found: Workloads) -> Iterable[FigureTable]:
    heads: _Cells = ("workload", "batch", "preset", "candidates", "structures", "proved", "not proved", "artifact's",
                     "first s", "search s", "certify s", "prove s", "all s", "states")  # fmt: skip
    rows = tuple(
        (
            row.name,
            str(row.batch),
            row.preset,
            *(_count(one) for one in (row.candidates, row.structures, row.proved, row.not_proved, row.artifact)),
            "-" if row.first_s is None else f"{row.first_s:.2f}",
            *(f"{one:.2f}" for one in (row.search_s, row.certify_s, row.prove_s, row.wall_s)),
            _count(row.states),
        )
        for row in found.rows
    )
    yield FigureTable("Workloads: searched, certified and proved", _measured_on_note(found.host), heads, rows)


def _oracle(found: Answers) -> Iterable[FigureTable]:
    rows: tuple[_Cells, ...] = tuple(
        (one.name, one.space, _count(one.queries), _count(one.sampled), "yes" if one.saturated else "no")
        for one in found.sources
    )
    heads: _Cells = ("source", "searched in", "distinct questions", "asked", "e-graph complete")
    note = f"{_measured_on_note(found.host)} Sampled with seed {found.seed}."
    yield FigureTable("Questions whether an expression is part of a program", note, heads, rows)
    heads = ("source", "answered by", "proved", "refuted", "unknown", "pruned", "valid", "wrongly pruned",
             "wrongly kept", "µs a question")  # fmt: skip
    rows = tuple(
        (
            one.source,
            one.arm,
            *(_count(n) for n in (one.proved, one.refuted, one.unknown, one.pruned, one.valid)),
            _count(one.wrongly_pruned),
            _count(one.wrongly_kept),
            f"{one.us_per_query:,.1f}",
        )
        for one in found.rows
    )
    yield FigureTable("Answers", "", heads, rows)


__all__ = ["FILES", "read_reproduced"]
