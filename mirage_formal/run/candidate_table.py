"""Terminal output of a run: progress during the run, a table of candidates at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from mirage_formal.graph.edit import inline_blocks
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import BlockGraph, GraphDefined, KernelGraph, Op, enumerate_results
from mirage_formal.graph.storage_views import launched_operators
from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.logic.consistency import AXIOMS_ADDED
from mirage_formal.records import EXHAUSTED_FILE, AuditRecord, ExhaustedRecord, decode, describe_gap, read_file
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import display_path
from mirage_formal.support.errors import NothingFoundError
from mirage_formal.support.result_tables import result_table
from mirage_formal.support.terminal import escape_line

#: Kinds of side conditions of a proof.
CONDITIONS: Final = "no divisor is 0, no radicand negative, no logarithm of what is not above 0"
#: Most characters of a line under a table.
_LONG: Final = 1200


def print_no_result(nothing: NothingFoundError | None, console: Console) -> None:
    """Print why there is no candidate, and a hint; print nothing if there is one."""
    if nothing is not None:
        console.print(str(nothing), markup=False, highlight=False, soft_wrap=True)


def print_report(report: RunReport, console: Console, nothing: NothingFoundError | None = None) -> None:
    """Print the table of candidates or the reason why there is none, the notes, and warnings in bold red."""
    print_no_result(nothing, console)
    if report.results:
        console.print(_table(report, console.width))
    for text in describe_run(report):
        console.print(escape_line(text, _LONG), markup=False, highlight=False, soft_wrap=True)
    for text in warnings(report):
        console.print(escape_line(text, _LONG), style="bold red", markup=False, highlight=False, soft_wrap=True)


def _table(report: RunReport, width: int) -> Table:
    summary, rows = report.summary, []
    apart = describe_differences([result.graph for result in report.results])
    for result, item, words in zip(report.results, summary.candidates, apart, strict=True):
        if item.outside:
            words += f"; outside at scale {', '.join(f'{scale:g}' for scale in item.outside)}"
        rows.append((str(result.rank), result.digest[:12], f"{result.cost:.1f}", verdict_label(result.verdict), words))
    columns = (("rank", False), ("id", True), ("est. us", False), ("verdict", True), ("kernels", True))
    title = f"{summary.program}: {len(report.results)} of {summary.found} candidates"
    return result_table(title, columns, rows, width)


def describe_run(report: RunReport) -> list[str]:
    """Return the lines that summarize a run: units, states, fingerprints, verdicts and remarks."""
    summary = report.summary
    pruned = ", ".join(f"{reason} {count:,}" for reason, count in summary.pruned.items()) or "none"
    done = f"{summary.units_done} of {summary.units} units, {summary.states:,} states, pruned: {pruned}"
    ends = {
        "complete": "",
        "interrupted": "Interrupted; --resume continues. ",
        "time-limit": "Stopped at the time limit; --resume continues. ",
    }
    return [
        f"{ends[summary.status]}{done}",
        f"{summary.fingerprint_tests:,} fingerprints, {summary.workers} workers, {summary.wall_s:.1f} s",
        *([] if summary.audit is None else [describe_audit(summary.audit)]),
        *explain_verdicts([result.verdict for result in report.results]),
        *report.remarks,
        f"unfused, a kernel for each operator: est. us {report.unfused_us:.1f}",
        *_gap_lines(report.directory),
        *(["est. us orders candidates; nothing was measured"] if report.results else []),
        *(
            ["outside: in its element types its results leave the tolerance where the program's own operators do not"]
            if any(item.outside for item in summary.candidates)
            else []
        ),
        f"evidence in {display_path(report.directory)}",
    ]


def _gap_lines(directory: Path) -> list[str]:
    """Return a line about the lower bound of a run, if it has one; an earlier version wrote none."""
    path = directory / EXHAUSTED_FILE
    return [describe_gap(decode(read_file(path), ExhaustedRecord, str(path)))] if path.is_file() else []


def describe_audit(audit: AuditRecord) -> str:
    """Return z3's findings about a sample of pruning decisions as one line of text."""
    return (
        f"pruning decisions audited by z3 {audit.z3}: {audit.kept + audit.pruned} ({audit.kept} kept, {audit.pruned} "
        f"pruned); agreed: {audit.agreed}; contradicted: {audit.contradicted}; finer than the axioms: {audit.finer}; "
        f"unknown: {audit.unknown}"
    )


def explain_verdicts(verdicts: Sequence[Equivalent | Probable]) -> list[str]:
    """Return an explanation of each kind of verdict in a table, and how many candidates are not proved."""
    said: list[str] = []
    proved = [verdict for verdict in verdicts if isinstance(verdict, Equivalent)]
    if proved:
        where = ""
        if any(verdict.conditions for verdict in proved):
            where = f" on which the conditions in its proof.jsonl hold ({CONDITIONS})"
        said.append(f"verdict equivalent: proved equal to the program over the reals, for all inputs{where}")
        if more := [len(verdict.added) for verdict in proved if verdict.added]:
            said.append(
                f"CONDITIONS ADDED: {len(more)} of {len(proved)} need up to {max(more)} that the program does not, "
                "listed as added in their proof.jsonl"
            )
    probable = [verdict for verdict in verdicts if isinstance(verdict, Probable)]
    if probable:
        many = f"{len(probable)} of {len(verdicts)}"
        said.append(f"verdict probable ({many}): NOT proved; agreed on random points of a finite field at real sizes")
        reasons = sorted({verdict.reason for verdict in probable if verdict.bound_log2 is None and verdict.reason})
        said += [f"no bound on the error: {reason}" for reason in reasons]
    return said


def warnings(report: RunReport) -> list[str]:
    """Return the warnings of a run: bugs it revealed, and candidates that it does not report."""
    found: list[str] = []
    added = any(remark.startswith(AXIOMS_ADDED) for remark in report.remarks)
    culprit = "an added axiom is false, or SEARCH BUG" if added else "SEARCH BUG"
    for kinds, what in (
        (
            ("different",),
            f"{culprit}: {{}} proposed candidates are wrong; a fingerprint or a counterexample refuted them:",
        ),
        (("proof-refused",), "PROVER BUG: the checker refused the proofs of {} candidates, which are not reported:"),
        (("unproved",), "{} candidates are not reported because they are not proved:"),
        (("numerics",), "{} candidates are not reported because of their numerics:"),
        (("certificate", "unknown"), "{} candidates are not reported because a check did not succeed:"),
    ):
        items = [item for item in report.summary.rejected if item.kind in kinds]
        if items:
            found.append(what.format(len(items)))
            found += [f"  {item.digest[:12]}: {escape_line(_last_line(item.reason), 200)}" for item in items[:5]]
    if report.failed:
        found.append(f"INCOMPLETE: {len(report.failed)} units of the search failed; --resume tries them again:")
        for record in report.failed[:5]:
            label, why = escape_line(record.label, 200), escape_line(_last_line(record.error), 200)
            found.append(f"  unit {record.unit} ({label}): {why} ({record.attempts} tries)")
    return found


def _last_line(reason: str) -> str:
    """Return a failure reason as one line: the exception of a traceback, or the first line of other text."""
    lines = reason.strip().splitlines() or ["no reason"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def verdict_label(verdict: Equivalent | Probable) -> str:
    """Return a verdict as a short label; a probable verdict has its error bound.

    The bound is the probability that different programs agree on the same random tests.
    """
    match verdict:
        case Equivalent():
            return "equivalent"
        case Probable(bound_log2=float() as bound):
            return f"probable, < 2^{bound:.0f}"
        case Probable(reason=reason):
            return "probable, vacuous" if "vacuous" in reason else "probable, no bound"


def describe_kernels(graph: KernelGraph) -> str:
    """Return a short description of a graph's kernels: predefined operators by name, fused kernels by grid and loop.

    Views are left out, because no kernel is launched for them. If a sum of exponentials gets no running maximum, and so
    overflows for large logits, the description says so.
    """
    from mirage_formal.codegen.online_softmax.stabilize import (  # not needed before there are results
        NoStableForm,
        stabilize,
    )

    ops = [graph.ops[position] for position in launched_operators(graph)]
    kernels = "; ".join(_describe_block(op.graph) if isinstance(op, GraphDefined) else op.kind.value for op in ops)
    return f"{kernels}; no running maximum" if isinstance(stabilize(graph), NoStableForm) else kernels


def _describe_block(block: BlockGraph) -> str:
    grid = "x".join(str(extent) for extent in block.grid)
    return f"grid {grid} loop {block.forloop_range}"


def describe_differences(graphs: Sequence[KernelGraph]) -> list[str]:
    """Return a description of each graph's kernels; equal descriptions get the details in which the graphs differ.

    The details are minimal: the dims that split an input, the operators of a kernel, or the first line of the graph
    texts that differs.
    """
    words = [describe_kernels(graph) for graph in graphs]
    alike: dict[str, list[int]] = {}
    for number, text in enumerate(words):
        alike.setdefault(text, []).append(number)
    for group in alike.values():
        if len(group) > 1:
            for number, more in zip(group, _differences([graphs[number] for number in group]), strict=True):
                words[number] += more and f"; {more}"
    return words


def _differences(graphs: Sequence[KernelGraph]) -> list[str]:
    """Return one label for each graph, with few details that tell the graphs apart."""
    details = [_details(graph) for graph in graphs]
    names = dict.fromkeys(name for one in details for name in one)
    values = {name: tuple(one.get(name, "none") for one in details) for name in names}
    chosen: list[str] = []
    keys: list[tuple[str, ...]] = [()] * len(graphs)
    while len(set(keys)) < len(graphs):
        more = {name: len(set(zip(keys, column, strict=True))) for name, column in values.items()}
        best = max(more, key=lambda name: more[name], default="")
        if not best or more[best] <= len(set(keys)):
            break
        chosen.append(best)
        keys = [(*key, value) for key, value in zip(keys, values[best], strict=True)]
    said = ["; ".join(f"{name} {one.get(name, 'none')}" for name in chosen) for one in details]
    if len(set(keys)) == len(graphs):
        return said
    texts = [to_text(graph).splitlines() for graph in graphs]
    common = set(texts[0]).intersection(*texts)
    rest = [next((" ".join(line.split(";")[0].split()) for line in text if line not in common), "") for text in texts]
    return [f"{one}; {more}".strip("; ") for one, more in zip(said, rest, strict=True)]


def _details(graph: KernelGraph) -> dict[str, str]:
    """Return a candidate's kernels as named details that can be compared."""
    found: dict[str, str] = {}
    names = [source.name or f"x{number}" for number, source in enumerate(graph.inputs)]
    for number, op in enumerate_results(len(names), graph.ops):
        names += [f"k{number}" if op.results == 1 else f"k{number}.{i}" for i in range(op.results)]
        if not isinstance(op, GraphDefined):
            found[f"k{number} reads"] = ", ".join(names[i] for i in op.operands)
            continue
        block = op.graph
        for operand, item in zip(op.operands, block.inputs, strict=True):
            name = f"{names[operand]} in k{number}:" if f"{names[operand]}:" in found else f"{names[operand]}:"
            found[name] = _describe_cuts(item.imap, item.fmap)
        for i, out in enumerate(block.outputs):
            found[f"k{number} out{i}:"] = _describe_cuts(out.omap, None)
        found[f"k{number}:"] = ", ".join(
            inner.kind.value for inner in inline_blocks(block).ops if isinstance(inner, Op)
        )
    return found


def _describe_cuts(axes: Sequence[int | None], loop: int | None) -> str:
    """Return which dims the grid axes and the loop cut, as in "x cuts 0, loop cuts 1"."""
    cuts = [(name, dim) for name, dim in (*zip("xyz", axes, strict=False), ("loop", loop)) if dim is not None]
    return ", ".join(f"{name} cuts {dim}" for name, dim in cuts if dim >= 0) or "whole"
