"""Terminal form of a report: plain lines of limited width."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from mirage_formal.records import LEVELS
from mirage_formal.report.model import FigureTable, ReportedCandidate, ReportedVerdict, ReportModel, Search
from mirage_formal.report.proofs.program_formulas import definitions
from mirage_formal.report.proofs.proof_formulas import ReplayedProof, formula_text
from mirage_formal.report.sentences import baseline_rows, checked_by, conditions, describe_measurement, verdict
from mirage_formal.support.terminal import escape_line

#: Most candidates that are listed.
MOST: Final = 40
#: Most units of the search, and points of its course, that are listed.
_UNITS: Final = 12
_POINTS: Final = 6


def report_text(report: ReportModel, width: int = 100) -> str:
    """Return the head of a report, its candidates, how sums are split, and its faults, as text."""
    return "\n".join(line.rstrip() for line in _lines(report, max(60, width))) + "\n"


def _lines(report: ReportModel, width: int) -> Iterator[str]:
    yield escape_line(report.name, width)
    if report.program is not None:
        for name, formula in definitions(report.program):
            yield from wrap(f"  {name} = {formula_text(formula)}", width, subsequent_indent="    ")
    yield ""
    for paragraph in (verdict(report), conditions(report), checked_by(report)):
        yield from wrap(escape_line(paragraph, 2000), width)
    yield ""
    if report.candidates:
        yield f"{'rank':>4}  {'candidate':12}  {'verdict':10}  {'kernels':>7}  {'est. us':>8}  basis"
        for one in report.candidates[:MOST]:
            yield _row(one)
        if len(report.candidates) > MOST:
            yield f"and {len(report.candidates) - MOST} more"
    yield from _claims(report, width)
    yield from _figures(report, width)
    if report.search is not None:
        yield from _search(report.search, width)
    yield from _searches(report, width)
    for graph in report.judged[:MOST]:
        yield from _judged(graph, width)
    for title, proof in _proofs(report):
        yield from ("", title)
        for part in proof.parts:
            for sentence in part.summary:
                yield from wrap(sentence, width, initial_indent="  ", subsequent_indent="    ")
    for fault in report.broken:
        told = f"does not hold: {escape_line(fault.file)}: {escape_line(fault.what)}"
        yield from wrap(told, width, subsequent_indent="  ")


def _row(one: ReportedCandidate) -> str:
    head = f"{one.rank:4}  {one.digest[:12]:12}  {one.verdict:10}"
    kernels, us = one.kernels or "-", f"{one.estimated_us:.2f}" if one.estimated_us else "-"
    return f"{head}  {kernels:>7}  {us:>8}  {one.basis.short}"


def _claims(report: ReportModel, width: int) -> Iterator[str]:
    """Yield a line on each built kernel: whether it is recorded as computing its operator of the µGraph."""
    for one in report.candidates[:MOST]:
        for claim in one.code.claims if one.code is not None else ():
            yield from wrap(escape_line(f"{one.rank:4}  {claim.sentence}", 600), width, subsequent_indent="      ")


def _figures(report: ReportModel, width: int) -> Iterator[str]:
    """Yield lines of figures that are not evidence: times of the best candidate's peers, tables of ``reproduce``."""
    if report.best is not None and (found := report.best.peers) is not None:
        yield from wrap(escape_line(describe_measurement(found), 2000), width)
        for name, us, ratio, why in baseline_rows(found):
            yield from wrap(escape_line(f"  {name}: {why or f'{us} us, {ratio} of the candidate'}", 400), width)
    for one in report.tables:
        yield from _table(one, width)


def _searches(report: ReportModel, width: int) -> Iterator[str]:
    """Yield lines on the searches for a whole program's subgraphs."""
    for one in report.searches[:MOST]:
        units, states, pruned = one.counts
        said = f"{one.run}: {units} units, {states} states, {pruned} pruned, {one.kept} kept, {one.seconds} s"
        where = f", part {one.part} of the best cover" if one.part else ""
        yield from wrap(escape_line(f"Search {said}{where}", 2000), width, subsequent_indent="  ")
    if len(report.searches) > MOST:
        yield f"and {len(report.searches) - MOST} more searches"


def _search(search: Search, width: int) -> Iterator[str]:
    """Yield lines on pruning by level and, where recorded, on when units were searched and how states grew."""
    if search.pruned_at:
        yield ""
        for level in LEVELS:
            of = [f"{reason} {count:,}" for at, reason, count in search.pruned_at if at == level]
            if of:
                told = escape_line(f"Pruned at the {level} level: {', '.join(of)}", 2000)
                yield from wrap(told, width, subsequent_indent="  ")
    timed = [(unit, unit.span) for unit in search.units if unit.span is not None]
    if not timed:
        return
    yield ""
    yield "Units by seconds of searching:"
    for unit, span in timed[:_UNITS]:
        when = f"worker {span.worker}, {span.begin:.2f} to {span.end:.2f} s"
        what = f"{unit.states:,} states, {unit.classes:,} classes, {unit.status}"
        about = f"  {unit.number}: {escape_line(unit.label, 200)}: {when}, {what}"
        yield from wrap(about, width, subsequent_indent="    ")
    if len(timed) > _UNITS:
        yield f"  and {len(timed) - _UNITS} more"
    last = len(search.course) - 1
    points = [search.course[n] for n in sorted({round(last * at / _POINTS) for at in range(1, _POINTS + 1)})]
    said = "; ".join(f"by {at:.2f} s {states:,} and {classes:,}" for at, states, classes in points)
    yield from wrap(f"States and classes of all units: {said}", width, subsequent_indent="  ")


def _table(one: FigureTable, width: int) -> Iterator[str]:
    """Yield each row in as many lines as it needs: its first column, then the others, labelled by their heads."""
    yield from wrap(escape_line(one.title, 400), width)
    yield from wrap(escape_line(one.note, 2000), width)
    for first, *others in one.rows:
        said = [f"{head} {cell}" for head, cell in zip(one.heads[1:], others, strict=True) if cell != "-"]
        told = escape_line(f"{first}: {'; '.join(said)}", 2000)
        yield from wrap(told, width, initial_indent="  ", subsequent_indent="    ")
    yield ""


def _judged(one: ReportedVerdict, width: int) -> Iterator[str]:
    told = f"{escape_line(one.name, 40)}: {one.verdict}: {escape_line(one.reason, 400)}"
    yield from wrap(told, width, subsequent_indent="  ")
    if one.example is not None:
        found = one.example
        where = f"output {found.output}[{', '.join(map(str, found.index))}]"
        for line in (*found.inputs, f"{where} of the program is {found.expected:.9g}, of this graph {found.got:.9g}"):
            yield from wrap(escape_line(line, 1000), width, initial_indent="  ", subsequent_indent="    ")


def _proofs(report: ReportModel) -> Iterator[tuple[str, ReplayedProof]]:
    """Yield the proofs whose sentences are printed, each with a title."""
    if report.best is not None and report.best.proof is not None:
        yield "How the best candidate splits sums:", report.best.proof
    for number, part in enumerate(report.parts, 1):
        if part.report is not None and part.report.proof is not None:
            yield f"How part {number}, operators {', '.join(map(str, part.operators))}, splits sums:", part.report.proof
