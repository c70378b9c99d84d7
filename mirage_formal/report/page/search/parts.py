"""Page section on the searches for the subgraphs of a whole program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.page.search.overview import search_section
from mirage_formal.report.search_view import PartSearch

#: Most searches that are shown in full.
_OPENED: Final = 48
_HEAD: Final = (
    "search", "operators of the program", "in the best cover", "status", "units", "states", "pruned", "candidates kept",
    "found", "seconds",
)  # fmt: skip


def searches_section(searches: Sequence[PartSearch]) -> Markup:
    """Return a table of the searches, and each of them in full."""
    if not searches:
        return Markup("")
    note = (
        "A part may be searched and not be in the best cover, where a longer or a shorter one, or its own operators, "
        "took its place. Seconds are those of the session that ended a search."
    )
    opened = [
        details(
            f"Search {one.run}: {'operators ' if one.operators else ''}{_operators(one)}",
            element("h4", {"id": _anchor(number)}, f"How the search {one.run} went"),
            search_section(one.search),
            attributes={"class": "judged"},
        )
        for number, one in enumerate(searches[:_OPENED], 1)
    ]
    left = len(searches) - len(opened)
    more = f"The last {left} are in the table only." if left > 0 else ""
    title = "Searches for parts of the program"
    return join_contents(
        [element("p", None, note), table(title, _HEAD, _rows(searches)), *opened, element("p", None, more)]
    )


def search_link(run: str, number: int) -> Markup | str:
    """Return a search's name as a link to it, by its number from 1; 0 is not shown."""
    return element("a", {"href": f"#{_anchor(number)}"}, run) if 0 < number <= _OPENED else run or "-"


def _anchor(number: int) -> str:
    return f"search-{number}"


def part_anchor(number: int) -> str:
    """Return the id of a subgraph of the best cover, by its number from 1."""
    return f"part-{number}"


def _rows(searches: Sequence[PartSearch]) -> list[Sequence[Markup | str]]:
    rows: list[Sequence[Markup | str]] = []
    for number, one in enumerate(searches, 1):
        place: Markup | str = "-"
        if one.part:
            place = element("a", {"href": f"#{part_anchor(one.part)}"}, f"part {one.part}")
        found, kept = f"{one.search.found:,}", str(one.kept)
        rows.append(
            (
                search_link(one.run, number),
                _operators(one),
                place,
                one.search.status,
                *counts(one),
                kept,
                found,
                seconds(one),
            )
        )
    states, pruned = sum(map(_states, searches)), sum(map(_pruned, searches))
    done, units = sum(one.units_done for one in searches), sum(one.units for one in searches)
    kept, found = str(sum(one.kept for one in searches)), f"{sum(one.search.found for one in searches):,}"
    whole = f"{sum(one.search.wall_s for one in searches):.1f}"
    rows.append(("all", "", "", "", f"{done:,} of {units:,}", f"{states:,}", f"{pruned:,}", kept, found, whole))
    return rows


def counts(one: PartSearch) -> tuple[str, str, str]:
    """Return units, states and pruned branches of a search."""
    return f"{one.units_done:,} of {one.units:,}", f"{_states(one):,}", f"{_pruned(one):,}"


def seconds(one: PartSearch) -> str:
    """Return the seconds of a search, marked if it was read from the store."""
    return f"{one.search.wall_s:.1f}" + (" (recalled)" if one.search.recalled else "")


def _operators(one: PartSearch) -> str:
    return ", ".join(map(str, one.operators)) or "in no reported cover"


def _states(one: PartSearch) -> int:
    return dict(one.search.stats).get("states", 0)


def _pruned(one: PartSearch) -> int:
    return sum(count for _, count in one.search.pruned)


__all__ = ["counts", "part_anchor", "search_link", "searches_section", "seconds"]
