"""Whole report page: one file that loads nothing and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from mirage_formal.report.drawing.svg import SHAPES
from mirage_formal.report.model import Report, Table
from mirage_formal.report.page.candidates import candidate_section, candidates_table, estimates, pack
from mirage_formal.report.page.graphs import graph_section
from mirage_formal.report.page.header import page_header, provenance_table
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.page.rejected import judged_section
from mirage_formal.report.page.search.overview import roofline_section, search_section
from mirage_formal.report.page.search.parts import part_anchor, search_link, searches_section

_ASSETS: Final = Path(__file__).resolve().parent / "assets"
_FOOTER: Final = (
    "This report is not part of what has to be trusted: it shows what evidence says, and check establishes it. The "
    "page needs no network and holds no code of others; its layout was computed when it was written."
)


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8").strip()


def page_shell(title: str, body: Markup) -> str:
    """Return a page around its body, which must hold no script and no style of its own.

    Sound: the policy allows the one script and the one style that stand here, by their digests, and nothing else: no
    other script, no handler, no address.
    """
    style, script = _asset("style.css") + "\n" + SHAPES, _asset("script.js")
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    rules = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    top = (
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": rules}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", None, title),
        Markup(f"<style>{style}</style>"),
    )
    made = element("html", {"lang": "en"}, element("head", None, *top),
                   element("body", None, body, Markup(f"<script>{script}</script>")))  # fmt: skip
    return f"<!doctype html>\n{made}\n"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(report: Report) -> str:
    """Return a report as one HTML file."""
    sections = _sections(report)
    nav = [element("a", {"href": f"#{name}"}, name) for name, _, _ in sections]
    theme = element("button", {"id": "theme", "type": "button", "class": "js-only"}, "Theme")
    shown = [
        element("section", {"id": name, "aria-labelledby": f"{name}-title"},
                element("h2", {"id": f"{name}-title"}, title), inside)
        for name, title, inside in sections
    ]  # fmt: skip
    compare = element("section", {"id": "compare", "hidden": True, "aria-label": "two candidates side by side"})
    shown[1:1] = [compare] if len(report.candidates) > 1 else []
    body = join_contents(
        [
            element("a", {"class": "skip", "href": "#main"}, "To the content"),
            page_header(report),
            element("nav", {"aria-label": "parts of the report"}, element("div", None, *nav, theme)),
            element("main", {"id": "main"}, *shown),
            element("footer", None, element("p", None, f"{_FOOTER} mirage_formal {report.version}, {report.when}.")),
            *_packed_candidates(report),
        ]
    )
    return page_shell(f"{report.name}: {report.kind} report", body)


def _sections(report: Report) -> list[tuple[str, str, Markup]]:
    """Return id, title and content of each section."""
    out: list[tuple[str, str, Markup]] = []
    if report.tables:
        out.append(("figures", "Figures that were measured", join_contents(map(_figures, report.tables))))
    if report.candidates:
        out.append(("candidates", "Candidates", join_contents([candidates_table(report), estimates(report)])))
        best = candidate_section(report.candidates[0], report.program)
        out.append(
            ("candidate", "Best candidate, or the one that was chosen", element("div", {"id": "detail-body"}, best))
        )
    if report.parts:
        out.append(("parts", "Parts of the best cover", _parts(report)))
    if report.program is not None:
        out.append(("program", "The program", graph_section(report.program, "program", {})))
    if report.judged or report.kind == "run":
        out.append(("why-not", "Why not: refuted, rejected and undecided", judged_section(report)))
    if report.candidates and report.kind != "candidate":
        out.append(("limits", "Estimates and limits", roofline_section(report)))
    if report.search is not None:
        title = "The searches of its parts" if report.searches else "The search"
        shown = [search_section(report.search), searches_section(report.searches)]
        out.append(("search", title, join_contents(shown)))
    out.append(("evidence", "How it was made, as the evidence says", provenance_table(report)))
    return out


def _figures(one: Table) -> Markup:
    return join_contents([element("p", None, one.note) if one.note else None, table(one.title, one.heads, one.rows)])


def _parts(report: Report) -> Markup:
    parts = report.parts
    searches = {one.run: number for number, one in enumerate(report.searches, 1)}
    rows = [
        (
            str(number),
            ", ".join(map(str, part.operators)),
            part.digest[:12] or "its own operators",
            str(part.kernels),
            f"{part.estimated_us:.2f}",
            f"{part.unfused_us:.2f}",
            search_link(part.run, searches.get(part.run, 0)),
        )
        for number, part in enumerate(parts, 1)
    ]
    heads = (
        "part",
        "operators of the program",
        "in its place",
        "kernels",
        "estimate µs",
        "its operators one by one, µs",
        "its search",
    )
    opened = [
        details(
            f"Part {number}: {part.digest[:12]}, in the place of operators {', '.join(map(str, part.operators))}",
            element("h4", {"id": part_anchor(number)}, "What the part computes"),
            graph_section(part.program, "program", {}) if part.program is not None else None,
            candidate_section(part.report, part.program),
            attributes={"class": "judged"},
        )
        for number, part in enumerate(parts, 1)
        if part.report is not None
    ]
    return join_contents([table("Parts, in the order in which they are computed", heads, rows), *opened])


def _packed_candidates(report: Report) -> list[Markup]:
    """Return all candidates but the first, compressed; the script unpacks one when it is opened."""
    return [
        Markup(
            f'<script type="application/octet-stream" id="packed-{one.rank}">'
            f"{pack(candidate_section(one, report.program))}</script>"
        )
        for one in report.candidates[1:]
    ]
