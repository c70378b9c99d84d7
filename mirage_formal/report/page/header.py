"""Header of a report page: the program as a formula, the result in a sentence, its conditions, and its checks."""

from __future__ import annotations

from mirage_formal.report.model import Basis, Report
from mirage_formal.report.page.markup import Markup, details, element, escape_lines, join_contents
from mirage_formal.report.proofs.formulas import Name, mathml
from mirage_formal.report.proofs.program import MOST, definitions


def page_header(report: Report) -> Markup:
    """Return the header of the page."""
    return element(
        "header",
        None,
        element("h1", None, report.name),
        _formula(report),
        element("p", {"class": "verdict"}, verdict(report)),
        element("p", None, conditions(report)),
        element("p", {"class": "who"}, checked_by(report)),
        _broken(report),
        _check(report),
    )


def _formula(report: Report) -> Markup:
    if report.kind == "reproduce":
        return Markup("")
    if report.program is None:
        return element("p", {"class": "bad"}, "The program cannot be read.")
    found = definitions(report.program)
    if not found:
        kind = f"more than {MOST}" if len(report.program.ops) > MOST else "block-level"
        count = len(report.program.ops)
        text = f"A program of {count} operators ({kind}, so it is drawn below and not written as a formula)."
        return element("p", None, text)
    rows = [element("div", None, Markup(mathml(Name(name), formula))) for name, formula in found]
    inputs = ", ".join(f"{one.name} {one.tensor.dtype.value}{list(one.tensor.shape)}" for one in report.program.inputs)
    return element("div", {"class": "program"}, *rows, element("p", {"class": "soft"}, f"with {inputs}"))


def verdict(report: Report) -> str:
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
    noun = {"whole": "cover", "candidate": "candidate"}.get(report.kind, "candidate")
    what = f"{len(report.candidates)} {noun}{'s' if len(report.candidates) != 1 else ''}"
    held = sum(one.verdict == "equivalent" and one.basis is Basis.CHECKED for one in report.candidates)
    said = f"check established {held} as" if held else f"the evidence calls {proved}"
    text = f"{what}, of which {said} equivalent to the program over the reals"
    best = report.best
    if best.estimated_us:
        text += f". The best launches {best.kernels} kernel{'s' if best.kernels != 1 else ''}"
        text += f", estimated at {best.estimated_us:.2f} µs"
        if best.measured is not None and best.measured.us is not None:
            text += f" and measured at {best.measured.us:.2f} µs on {best.measured.device}"
    if report.unfused is not None:
        text += f"; the operators one by one are {report.unfused[0]} kernels and {report.unfused[1]:.2f} µs"
    return f"{text}."


def conditions(report: Report) -> str:
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


def checked_by(report: Report) -> str:
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


def _broken(report: Report) -> Markup:
    if not report.broken:
        return Markup("")
    items = [element("li", None, element("code", None, fault.file), f": {fault.what}") for fault in report.broken[:200]]
    title = f"{len(report.broken)} things do not hold or cannot be read"
    return element("div", {"class": "broken", "role": "alert"}, element("h2", None, title), element("ul", None, *items))


def _check(report: Report) -> Markup:
    if report.checked is None:
        return Markup("")
    said = "What check printed" if report.checked.held else "What check printed (it did not establish everything)"
    return details(said, element("pre", {"tabindex": "0"}, escape_lines(report.checked.text)))


def provenance_table(report: Report) -> Markup:
    """Return the table of how the evidence was made, by its own statement."""
    facts = [("read from", report.place), ("program's file", report.source or "not named"), *report.made]
    rows = [element("div", None, element("dt", None, name), element("dd", None, value)) for name, value in facts]
    return join_contents([element("dl", {"class": "facts"}, *rows)])
