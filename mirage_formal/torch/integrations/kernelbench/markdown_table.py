"""Text form of the table of problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from mirage_formal.support.terminal import escape_line
from mirage_formal.torch.integrations.kernelbench.outcome import OutcomeTable, ProblemOutcome

COLUMNS: Final = ("problem", "imported", "operators", "kernels", "verdict", "est. us", "one by one", "correct")
_MOST: Final = 160


def format_row(outcome: ProblemOutcome) -> tuple[str, ...]:
    """Return a row of the table; see ``COLUMNS``."""
    regions = [region for region in outcome.regions if region.candidate]
    verdicts = {region.verdict for region in outcome.regions if region.verdict} or {"-"}
    if any(not region.candidate for region in outcome.regions):
        verdicts.add("none of some" if regions else "none")
        verdicts.discard("-")
    correct: str = outcome.correct.answer
    if correct == "passed":
        correct = f"{outcome.correct.trials} of {outcome.correct.trials}"
    return (
        outcome.problem,
        outcome.imported,
        str(outcome.operators),
        str(sum(region.kernels for region in regions)) if regions else "-",
        ", ".join(sorted(verdicts)),
        f"{sum(region.estimate_us for region in regions):.1f}" if regions else "-",
        f"{sum(region.unfused_us for region in regions):.1f}" if regions else "-",
        correct,
    )


def reasons(outcome: ProblemOutcome) -> list[str]:
    """Return the lines below a problem's row: operators left to torch with reasons, missing candidates, and errors."""
    found = [outcome.error] if outcome.error else []
    counted = Counter((item.operator, item.reason) for item in outcome.left)
    found += [f"{operator}: {reason}" for operator, reason in counted]
    found += [f"no candidate: {region.reason}" for region in outcome.regions if region.reason]
    if outcome.correct.reason:
        found.append(f"{outcome.correct.answer}: {outcome.correct.reason}")
    return [escape_line(text, _MOST) for text in found]


def stage_counts(outcomes: Sequence[ProblemOutcome]) -> list[str]:
    """Return, for each level, the number of problems that reached each stage."""
    found = []
    for level, group in groupby(outcomes, key=lambda one: one.problem.rpartition("/")[0]):
        some = list(group)
        whole = [one for one in some if one.imported == "whole"]
        proved = [one for one in whole if one.proved]
        passed = [one for one in proved if one.correct.answer == "passed"]
        part = sum(one.imported == "part" for one in some)
        also = sum(one.imported == "part" and one.correct.answer == "passed" for one in some)
        text = f"{len(some)} problems, {len(whole)} imported whole, {len(proved)} of these proved, "
        text += f"{len(passed)} of these correct; {part} imported in part, {also} of these correct"
        found.append(f"{level}: {text}" if level else text)
    return found


def markdown(table: OutcomeTable) -> str:
    """Return the table with reasons and counts, as Markdown."""
    lines = [f"# {escape_line(table.directory)}", ""]
    if table.commit:
        lines += [f"Commit {table.commit}.", ""]
    used = ", ".join(f"{name} {value}" for name, value in (table.versions | table.options).items())
    lines += [f"Computed with {used}.", ""]
    lines += [f"- {text}" for text in stage_counts(table.problems)]
    lines += ["", f"| {' | '.join(COLUMNS)} |", "|---|---|--:|--:|---|--:|--:|---|"]
    lines += [
        f"| {' | '.join(escape_line(text).replace('|', '/') for text in format_row(one))} |" for one in table.problems
    ]
    rest = [(one, reasons(one)) for one in table.problems]
    if any(why for _, why in rest):
        lines += ["", "## Why", ""]
        lines += [f"- {escape_line(one.problem)}: {'; '.join(why)}" for one, why in rest if why]
    sizes = [one for one in table.problems if one.sizes]
    if sizes:
        lines += ["", "## Sizes", ""]
        for one in sizes:
            lines.append(
                f"- {escape_line(one.problem)}: " + ", ".join(f"{k} {a} -> {b}" for k, (a, b) in one.sizes.items())
            )
    return "\n".join([*lines, ""])


__all__ = ["COLUMNS", "format_row", "markdown", "reasons", "stage_counts"]
