"""Pages on several runs: an index of a directory, and a comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_formal.report.drawing.svg import level_svg
from mirage_formal.report.model import Candidate, Report
from mirage_formal.report.page.candidates import badge
from mirage_formal.report.page.document import page_shell
from mirage_formal.report.page.header import page_header, verdict
from mirage_formal.report.page.markup import Markup, element, join_contents, table
from mirage_formal.report.proofs.formulas import Name, mathml
from mirage_formal.report.proofs.program import definitions
from mirage_formal.report.views.levels import levels


def index(title: str, reports: Sequence[tuple[Report, str]]) -> str:
    """Return an index page: a row for each report, with a link to its page.

    Args:
        title: Title of the page.
        reports: Each report with the address of its own page, relative to this one.
    """
    rows = [
        (
            element("a", {"href": address}, one.name),
            one.kind,
            str(len(one.candidates) or len(one.judged)),
            f"{one.best.estimated_us:.2f}" if one.best and one.best.estimated_us else "-",
            str(one.best.kernels) if one.best else "-",
            badge(one.best.basis, short=True) if one.best else "-",
            str(len(one.broken)) if one.broken else "none",
        )
        for one, address in reports
    ]
    heads = ("program", "kind", "candidates", "best estimate µs", "kernels", "basis", "faults")
    body = join_contents(
        [
            element("a", {"class": "skip", "href": "#main"}, "To the content"),
            element("header", None, element("h1", None, title), element("p", None, f"{len(reports)} reports.")),
            _bar(),
            element("main", {"id": "main"}, table("All reports", heads, rows),
                    element("div", {"class": "cards"}, *(_card(one, address) for one, address in reports))),
            _footer(),
        ]
    )  # fmt: skip
    return page_shell(title, body)


def _bar() -> Markup:
    theme = element("button", {"id": "theme", "type": "button", "class": "js-only"}, "Theme")
    return element(
        "nav", {"aria-label": "page"}, element("div", None, element("a", {"href": "#main"}, "reports"), theme)
    )


def _footer() -> Markup:
    text = "This page is not part of what has to be trusted; mirage-formal check establishes what it shows."
    return element("footer", None, element("p", None, text))


def _card(one: Report, address: str) -> Markup:
    region: dict[str, object] = {"tabindex": "0", "role": "group"}
    graph = one.best.graph if one.best is not None else None
    drawn = None
    if graph is not None and len(graph.ops) <= 12:
        about = region | {"class": "draw", "aria-label": f"{one.name}, best candidate"}
        drawn = element("div", about, Markup(level_svg(levels(graph), f"{one.name}: best candidate")))
    formulas = definitions(one.program) if one.program is not None else ()
    shown = [element("div", None, Markup(mathml(Name(name), formula))) for name, formula in formulas[-2:]]
    return element(
        "article",
        {"class": "card", "aria-label": one.name},
        element("h2", None, element("a", {"href": address}, one.name)),
        element("div", region | {"class": "program", "aria-label": f"{one.name}, formula"}, *shown) if shown else None,
        element("p", None, verdict(one)),
        drawn,
    )  # fmt: skip


def comparison_page(left: Report, right: Report) -> str:
    """Return a page that compares two runs: their options, and their common candidates."""
    title = f"{left.name} and {right.name}"
    body = join_contents(
        [
            element("a", {"class": "skip", "href": "#main"}, "To the content"),
            element(
                *("header", None, element("h1", None, f"Two runs: {title}")),
                element("p", None, _comparison_sentence(left, right)),
            ),
            _bar(),
            element("main", {"id": "main"}, _options_table(left, right), _candidates_table(left, right),
                    element("div", {"class": "side"}, _column("A", left), _column("B", right))),
            _footer(),
        ]
    )  # fmt: skip
    return page_shell(title, body)


def _column(name: str, one: Report) -> Markup:
    inside = str(page_header(one)).replace("<header>", "<div>").replace("</header>", "</div>")
    inside = inside.replace("<h1>", f"<h2>{name}: ").replace("</h1>", "</h2>")
    return element("section", {"aria-label": f"run {name}"}, Markup(inside))


def _comparison_sentence(left: Report, right: Report) -> str:
    same = left.program == right.program and left.program is not None
    return "Both are of the same program." if same else "They are of different programs."


def _options_table(left: Report, right: Report) -> Markup:
    """Return the table of the requests and figures of two reports; values that differ are marked."""
    rows = []
    for name, a, b in zip(_FACTS, _facts(left), _facts(right), strict=True):
        mark = {"class": "differs"} if a != b else {}
        rows.append((name, *(element("span", dict(mark), value) for value in (a, b))))
    known_a, known_b = ({k: v for k, v in one.search.allowed} if one.search else {} for one in (left, right))
    rows += [
        (f"space: {name}", known_a.get(name, "-"), known_b.get(name, "-"))
        for name in sorted(known_a.keys() | known_b.keys())
        if known_a.get(name) != known_b.get(name)
    ]
    return table("What was asked for, and how it went; what differs is marked", ("fact", "A", "B"), rows)


_FACTS = (
    "place", "engine", "space", "seed", "target", "status", "seconds", "states", "candidates", "best estimate µs",
    "best measured µs", "faults",
)  # fmt: skip


def _facts(one: Report) -> tuple[str, ...]:
    search, best = one.search, one.best
    asked = ("-",) * 7
    if search is not None:
        states = dict(search.stats).get("states")
        asked = (search.engine, search.space, str(search.seed), search.target, search.status, f"{search.wall_s:.1f}",
                 f"{states:,}" if states is not None else "-")  # fmt: skip
    measured = f"{best.measured.us:.2f}" if best and best.measured and best.measured.us else "-"
    estimate = f"{best.estimated_us:.2f}" if best else "-"
    return (one.place, *asked, str(len(one.candidates)), estimate, measured, str(len(one.broken)))


def _candidates_table(left: Report, right: Report) -> Markup:
    a, b = ({one.digest: one for one in report.candidates} for report in (left, right))
    rows = [(digest[:12], _rank(a.get(digest)), _rank(b.get(digest)), _where(digest in a, digest in b))
            for digest in dict.fromkeys((*a, *b))]  # fmt: skip
    return table("Candidates by digest", ("candidate", "in A", "in B", "where"), rows)


def _rank(one: Candidate | None) -> str:
    if one is None:
        return "-"
    us = f", measured {one.measured.us:.2f} µs" if one.measured and one.measured.us else ""
    return f"rank {one.rank}, {one.verdict}, {one.estimated_us:.2f} µs{us}"


def _where(in_a: bool, in_b: bool) -> str:
    return "in both" if in_a and in_b else "only in A" if in_a else "only in B"
