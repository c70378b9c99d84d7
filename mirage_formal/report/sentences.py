"""Sentences about reports and verdicts that pages, texts and notebooks share."""

from __future__ import annotations

from typing import Final

from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.report.model import Baselines, Basis, ReportedCandidate, ReportModel

#: Most conditions of a verdict that are shown.
_CONDITIONS: Final = 20


def verdict(report: ReportModel) -> str:
    """Return a sentence that states the result of a report."""
    if report.kind == "verdicts":
        kinds = {one.verdict for one in report.judged}
        each = ", ".join(f"{sum(one.verdict == kind for one in report.judged)} {kind}" for kind in sorted(kinds))
        return f"{len(report.judged)} graphs were judged: {each or 'none'}."
    if report.kind == "reproduce":
        return f"{len(report.tables)} tables of figures that were measured, beside those that were published."
    if report.best is None:
        return "No candidate is reported."
    proved = sum(one.verdict == "equivalent" for one in report.candidates)
    what = count_noun(len(report.candidates), "cover" if report.kind == "whole" else "candidate")
    held = sum(one.verdict == "equivalent" and one.basis is Basis.CHECKED for one in report.candidates)
    said = f"check established {held} as" if held else f"the evidence calls {proved}"
    text = f"{what}, of which {said} equivalent to the program over the reals"
    best = report.best
    if best.estimated_us:
        text += f". The best launches {count_noun(best.kernels, 'kernel')}"
        text += f", estimated at {best.estimated_us:.2f} µs"
        if best.measured is not None and best.us is not None:
            text += f" and measured at {best.us:.2f} µs on {best.measured.device}"
    if report.unfused is not None:
        text += f"; the operators one by one are {report.unfused[0]} kernels and {report.unfused[1]:.2f} µs"
    return f"{text}."


def conditions(report: ReportModel) -> str:
    """Return the side conditions of the best candidate in words."""
    best = report.best
    if report.kind == "reproduce":
        return "Figures are no claims: nothing here is proved, and no verdict rests on it."
    if best is None:
        return "Equal over the reals is never said of what is refuted, or of what is not known."
    if best.verdict != "equivalent":
        return "Probable: not proved. Random points of a finite field did not tell it from the program."
    kinds = dict.fromkeys(one.rpartition(": ")[2] for one in best.conditions)
    told = {
        "divisor nonzero": "no divisor is 0",
        "radicand nonnegative": "no radicand is negative",
        "argument of log nonzero": "no logarithm is of 0",
        "argument of log nonnegative": "no logarithm is of a negative number",
    }
    where = ", ".join(told.get(kind, kind) for kind in kinds)
    text = f"Equal for all real inputs at which {where}" if where else "Equal for all real inputs, without conditions"
    added = f"; {len(best.added)} of these are conditions that the program itself does not have" if best.added else ""
    return f"{text}{added}. Rounding is not part of this statement; numerics are measured apart."


def checked_by(report: ReportModel) -> str:
    """Return sentences that say who checked the evidence, and when."""
    read = f"Read on {report.when} by mirage_formal {report.version}."
    if report.kind == "reproduce":
        return f"As the files of reproduce say; their searches can be made again by the same command. {read}"
    if report.checked is None:
        return (
            f"Everything here is {Basis.RECORDED.words}: proofs that are written out were replayed by the checker's "
            f"kernel, nothing else was established. --check has all of it established. {read}"
        )
    if report.checked.held and not report.broken:
        return f"check established all of it on {report.checked.when}, in {report.checked.seconds:.0f} s. {read}"
    return f"check was asked on {report.checked.when}, and did NOT establish it. {read}"


def describe_measurement(found: Baselines) -> str:
    """Return sentences that say what was measured, on which device and by which command."""
    ours = "was not timed" if found.ours is None else f"took {found.ours:.2f} µs"
    on = f" on {found.device}" if found.device else ""
    how = f"The command: {found.command}" if found.command else "The record does not say by which command"
    return f"The candidate {ours}{on}, as a record beside the run says (not checked). {how}."


def baseline_rows(found: Baselines) -> list[tuple[str, str, str, str]]:
    """Return name, microseconds, ratio, and reason for a missing time, of each baseline."""
    out = []
    for one in found.timed:
        us = "-" if one.us is None else f"{one.us:.2f}"
        ratio = "-" if one.us is None or not found.ours else f"{one.us / found.ours:.2f}"
        out.append((one.name, us, ratio, one.why))
    return out


def numerics(one: ReportedCandidate) -> str:
    """Return the numerics of a candidate: recorded by a device, or estimated; "-" where neither is known."""
    if one.measured is None or not one.measured.numerics:
        return f"foreseen outside at scale {abbreviate_number(one.outside[0])}" if one.outside else "-"
    ratio = "" if one.measured.ratio is None else f", {one.measured.ratio:.2f}"
    return f"{one.measured.numerics}{ratio}"


def abbreviate_number(value: float) -> str:
    """Format a number with a few digits."""
    return f"{value:.3g}" if abs(value) < 1e3 else f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2e}"


def count_noun(number: int, noun: str) -> str:
    """Return a count with its noun, as in "1 kernel", "2 kernels"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def verdict_sentences(verdict: Verdict) -> tuple[str, list[str]]:
    """Return a verdict in words, and its conditions."""
    match verdict:
        case Equivalent():
            more = len(verdict.conditions) - _CONDITIONS
            held = [
                f"{one[:120]}{' (the program does not need it)' if one in verdict.added else ''}"
                for one in verdict.conditions[:_CONDITIONS]
            ]
            held += [f"and {more} more"] if more > 0 else []
            return (
                f"Equivalent: proved equal over the reals for all inputs{' at which these hold:' if held else '.'}",
                held,
            )
        case Probable():
            known = verdict.bound_log2
            bound = "no bound" if known is None else f"error probability at most 2^{known:.1f}"
            return f"Probable, not proved: agreed in {verdict.rounds} rounds, {bound}.", []
        case Different():
            where = f"output {verdict.output}[{', '.join(map(str, verdict.index))}]"
            return f"Different: {where} is {verdict.got:.9g}, and should be {verdict.expected:.9g}.", []
        case Unknown():
            return f"Unknown: {verdict.reason[:1000]}", []
