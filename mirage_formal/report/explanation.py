"""Explanation of a result: its proof as text, LaTeX or HTML, and its run as a page."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from mirage_formal.records import RUN_FILE
from mirage_formal.records.partition import WHOLE_FILE
from mirage_formal.report.model import ReportedCandidate
from mirage_formal.report.page.html import page, render
from mirage_formal.report.proofs.proof_formulas import Formula, ProofPart, ReplayedProof, formula_text, latex
from mirage_formal.report.reading import read_report
from mirage_formal.report.write import default_page_path, write_page
from mirage_formal.support.errors import RunError, UnsupportedError


def explain_result(directory: Path, digest: str, form: str) -> str:
    """Return the explanation of a result's equality with its program.

    Args:
        directory: Directory of the candidate, or of a whole program.
        digest: Digest of the result, which selects a cover of a whole program.
        form: "text", "latex" or "html".

    Raises:
        RunError: The evidence is gone, or does not hold.
        UnsupportedError: There is no such form.
    """
    if form not in ("text", "latex", "html"):
        raise UnsupportedError(
            f"expected text, latex or html, got {form!r}", where="explain", hint='as in explain("text")'
        )
    report = read_report(directory)
    if report.broken:
        fault = report.broken[0]
        hint = "the evidence was changed or is incomplete: repeat the search"
        raise RunError(f"expected evidence that holds: {fault.file}: {fault.what}", where=str(directory), hint=hint)
    chosen = next((one for one in report.candidates if one.digest == digest), report.best)
    if chosen is None:
        raise RunError("expected a candidate, got none", where=str(directory), hint="repeat the search")
    proofs = [("", chosen)] if chosen.proof is not None else []
    proofs += [
        (f"Part {number}, operators {', '.join(map(str, part.operators))}", part.report)
        for number, part in enumerate(report.parts, 1)
        if part.report is not None
    ]
    if form == "html":
        return str(render("proof", "proofs", proofs))
    write, math = (latex, "\\[ {} \\]") if form == "latex" else (formula_text, "  {}")
    return "\n".join(line for name, one in proofs for line in _lines(name, one, write, math)) + "\n"


def _lines(name: str, one: ReportedCandidate, write: Callable[[Formula], str], math: str) -> Iterator[str]:
    if name:
        yield from (name, "=" * len(name), "")
    if one.proof is None:
        yield "Its proof cannot be read."
        return
    for part in one.proof.parts:
        yield from _part(part, write, math)
    yield from _conditions(one.proof)


def _part(part: ProofPart, write: Callable[[Formula], str], math: str) -> Iterator[str]:
    if part.name:
        yield f"Of what is {part.name}:"
    yield from part.summary
    yield from ("", "Steps")
    for step in part.steps:
        where = " and ".join(f"{place.graph} {place.label} ({place.node})" for place in step.places)
        yield f"t{step.number}: {step.law}{f', {where}' if where else ''}"
        yield math.format(" = ".join(map(write, step.sides)))
    yield from ("", "Laws of sums, maxima and common factors that the steps use")
    for lemma in part.lemmas:
        yield f"[{lemma.number}] {lemma.law}"
        yield math.format(f"{write(lemma.left)} = {write(lemma.right)}")
    for number, end in enumerate(part.identities):
        yield from ("", f"Output part {number}: {end.how}")
        yield math.format(write(end.program))
        yield math.format(write(end.candidate))


def _conditions(proof: ReplayedProof) -> Iterator[str]:
    yield from ("", "Conditions", *(f"  {one}" for one in proof.conditions or ("none",)))
    yield from ("Conditions that the program does not have", *(f"  {one}" for one in proof.added or ("none",)), "")


def show_page(directory: Path, out: Path | None, *, browser: bool) -> Path:
    """Write the page of the run that a candidate belongs to, and open it.

    Raises:
        RunError: The evidence is gone, or the page cannot be written.
    """
    above = directory.resolve().parents
    run = next((folder for folder in above[:2] if (folder / RUN_FILE).is_file()), directory)
    run = directory if (directory / WHOLE_FILE).is_file() else run
    place = out or default_page_path(run)
    write_page(page(read_report(run)), place)
    if browser:
        webbrowser.open(place.resolve().as_uri())
    return place
