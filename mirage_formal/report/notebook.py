"""Notebook output for graphs, verdicts and results: small HTML without scripts, and SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from typing import Final

from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Verdict
from mirage_formal.report.drawing.svg import graph_svg
from mirage_formal.report.page.html import render
from mirage_formal.report.sentences import verdict_sentences
from mirage_formal.support.errors import GraphError

#: Most characters of one value that a notebook shows.
MOST_TEXT: Final = 4000
#: Most rows of a table.
_ROWS: Final = 20
_TAG: Final = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)


def visible(html: str) -> str:
    """Return the visible text of an HTML fragment."""
    return unescape(_TAG.sub("", html))


def graph_html(graph: KernelGraph) -> str:
    """Return a picture of a graph with the contents of kernels; without them, or as text, where that is too large."""
    for opened in (True, False):
        try:
            drawn = graph_svg(graph, opened=opened, told=False)
        except GraphError as error:
            return str(render("notebook", "paragraph", f"This graph is not well-formed: {error.what}"[:MOST_TEXT]))
        if len(visible(drawn)) <= MOST_TEXT:
            return drawn
    text = f"{to_text(graph)[: MOST_TEXT - 200]}\n... {len(graph.ops)} operators in all: show() opens a report"
    return str(render("notebook", "preformatted", text))


def verdict_html(verdict: Verdict) -> str:
    """Return a verdict in words, as HTML."""
    return str(render("notebook", "verdict", *verdict_sentences(verdict)))


def results_html(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return results as an HTML table with a limited number of rows."""
    more = [("", f"and {len(rows) - _ROWS} more", *[""] * (len(head) - 2))] if len(rows) > _ROWS else []
    return str(render("notebook", "results", caption, head, [*rows[:_ROWS], *more]))
