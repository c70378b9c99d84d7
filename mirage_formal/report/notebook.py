"""Notebook output for graphs, verdicts and results: small HTML without scripts, and SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from typing import Final

from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Equivalent, Probable, Unknown, Verdict
from mirage_formal.report.drawing.svg import graph_svg
from mirage_formal.report.page.markup import Markup, element, escape_lines, join_contents, table
from mirage_formal.support.errors import GraphError

#: Most characters of one value that a notebook shows.
MOST_TEXT: Final = 4000
#: Most rows of a table, and most conditions of a verdict.
_ROWS: Final = 20
_TAG: Final = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)


def visible(html: str) -> str:
    """Return the visible text of an HTML fragment."""
    return unescape(_TAG.sub("", html))


def graph_html(graph: KernelGraph) -> Markup:
    """Return a picture of a graph with the contents of kernels; without them, or as text, where that is too large."""
    for opened in (True, False):
        try:
            drawn = Markup(graph_svg(graph, opened=opened, told=False))
        except GraphError as error:
            return element("p", None, f"This graph is not well-formed: {error.what}"[:MOST_TEXT])
        if len(visible(drawn)) <= MOST_TEXT:
            return drawn
    text = to_text(graph)[: MOST_TEXT - 200]
    return element("pre", None, escape_lines(f"{text}\n... {len(graph.ops)} operators in all: show() opens a report"))


def verdict_html(verdict: Verdict) -> Markup:
    """Return a verdict in words, as HTML."""
    match verdict:
        case Equivalent():
            more = len(verdict.conditions) - _ROWS
            held = [
                element("li", None, f"{one[:120]}{' (the program does not need it)' if one in verdict.added else ''}")
                for one in verdict.conditions[:_ROWS]
            ]
            held += [element("li", None, f"and {more} more")] if more > 0 else []
            where = "for all inputs at which these hold:" if held else "for all inputs."
            head = element("p", None, f"Equivalent: proved equal over the reals {where}")
            return join_contents([head, element("ul", None, *held) if held else None])
        case Probable():
            bound = (
                "no bound" if verdict.bound_log2 is None else f"error probability at most 2^{verdict.bound_log2:.1f}"
            )
            return element("p", None, f"Probable, not proved: agreed in {verdict.rounds} rounds, {bound}.")
        case Different():
            where = f"output {verdict.output}[{', '.join(map(str, verdict.index))}]"
            return element("p", None, f"Different: {where} is {verdict.got:.9g}, and should be {verdict.expected:.9g}.")
        case Unknown():
            return element("p", None, f"Unknown: {verdict.reason[:1000]}")


def results_html(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return results as an HTML table with a limited number of rows."""
    more = [("", f"and {len(rows) - _ROWS} more", *[""] * (len(head) - 2))] if len(rows) > _ROWS else []
    return table(caption, head, [*rows[:_ROWS], *more])
