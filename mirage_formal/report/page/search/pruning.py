"""Charts of pruned states: by reason, and by the level of the µGraph at which the reason was found."""

from __future__ import annotations

from typing import Final

from mirage_formal.records import LEVELS
from mirage_formal.report.page.charts import Bar, bars
from mirage_formal.report.page.markup import Markup, details, element, table
from mirage_formal.report.search_view import Search

#: Most bars that are drawn.
_BARS: Final = 24
_UNKNOWN: Final = "not recorded"
_THREADS: Final = "Thread graphs are put together by a rule, so a search prunes nothing at their level."


def pruned_section(search: Search) -> Markup:
    """Return the section on pruned branches, as a chart by level and reason, and as a table."""
    if not search.pruned:
        return Markup("")
    head, rows = pruned_rows(search)
    title = "Branches pruned, by reason and by the level of the µGraph"
    if not search.pruned_at:
        return table("Branches pruned, by reason; at which level is not recorded", head, rows)
    counts = sorted(_counts(search).items(), key=lambda one: -one[1])
    drawn = bars(
        title,
        [
            (f"{level}: {reason}", [Bar(0.0, float(count), f"{level}, {reason}: {count:,}", strong=False)])
            for (level, reason), count in counts[:_BARS]
        ],
        "branches",
    )
    notes = [f"{title}, most first.", _THREADS]
    if any(level == _UNKNOWN for level, _ in _counts(search)):
        notes.append("Units of an earlier version do not say at which level.")
    if len(counts) > _BARS:
        notes.append(f"{len(counts) - _BARS} more are in the table only.")
    caption = element("figcaption", None, " ".join(notes))
    return element("figure", None, drawn, caption, details("The same as a table", table(title, head, rows)))


def pruned_rows(search: Search) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the table: a row for each reason and a total; a column for each level, if known."""
    counts = _counts(search)
    levels: list[str] = [*LEVELS] if search.pruned_at else []
    if levels and any(level == _UNKNOWN for level, _ in counts):
        levels.append(_UNKNOWN)
    rows = [
        (reason, *(f"{counts.get((level, reason), 0):,}" for level in levels), f"{total:,}")
        for reason, total in search.pruned
    ]
    sums = (f"{sum(n for (at, _), n in counts.items() if at == level):,}" for level in levels)
    rows.append(("all", *sums, f"{sum(total for _, total in search.pruned):,}"))
    return ("reason", *levels, "all levels" if levels else "count"), rows


def _counts(search: Search) -> dict[tuple[str, str], int]:
    """Return pruned branches by level and reason; those without a level are counted separately."""
    counts = {(level, reason): count for level, reason, count in search.pruned_at}
    for reason, total in search.pruned:
        left = total - sum(count for (_, name), count in counts.items() if name == reason)
        if left > 0:
            counts[_UNKNOWN, reason] = left
    return counts


__all__ = ["pruned_rows", "pruned_section"]
