"""Pages of HTML: Jinja2 templates, the values that they show, and the escaping of every text from evidence.

``templates`` holds the markup. A macro gets frozen values of the model, and calls ``_VIEWS`` for those of pictures.
Texts first pass ``terminal.escape_line``, which escapes invisible and bidirectional characters and cuts long texts.
Then the characters of markup are escaped. Jinja2 is imported when the first page is written.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.formats.text import to_text
from mirage_formal.report.drawing.levels import LevelView, all_nodes, first_slabs, levels, size_text
from mirage_formal.report.drawing.svg import SHAPES, level_svg
from mirage_formal.report.model import ReportedCandidate, ReportModel
from mirage_formal.report.page.charts import axis_label
from mirage_formal.report.page.code import LINES, highlight, margin_classes
from mirage_formal.report.page.search import (
    estimates_plot,
    pruned_chart,
    pruned_rows,
    roofline,
    search_progress_plot,
    units_chart,
)
from mirage_formal.report.proofs.program_formulas import MOST, definitions
from mirage_formal.report.proofs.proof_formulas import Formula, Name, OperatorLocation, Step, mathml
from mirage_formal.report.sentences import (
    abbreviate_number,
    baseline_rows,
    checked_by,
    conditions,
    count_noun,
    describe_measurement,
    numerics,
    verdict,
)
from mirage_formal.support.terminal import LONGEST, escape_line

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER: Final = Path(__file__).resolve().parent


def visible_text(given: object, limit: int = LONGEST) -> str:
    """Return any text on one line, which Jinja2 then escapes; None is empty, and markup is kept."""
    if isinstance(given, Markup):
        return given
    return "" if given is None else escape_line(str(given), limit)


def visible_lines(given: str, limit: int = 4000) -> Markup:
    """Return a multi-line text escaped, for an element that keeps line breaks."""
    return escape("\n".join(escape_line(line, limit) for line in given.split("\n")))


def render(template: str, macro: str, *values: object) -> Markup:
    """Return the markup that a macro makes of values.

    Args:
        template: Name of the template, without its suffix.
        macro: Name of the macro in it.
        values: Arguments of the macro.

    Sound: the templates escape every value that is no ``Markup``, by ``visible_text`` and by Jinja2. A name that is not
    defined raises an error.
    """
    return Markup(getattr(_environment().get_template(f"{template}.html").module, macro)(*values))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        finalize=visible_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= _VIEWS
    made.filters |= _FILTERS
    return made


def _mathml(*formulas: Formula, display: str = "") -> Markup:
    return Markup(mathml(*formulas, display=display))


def _level_svg(level: LevelView, title: str) -> Markup:
    return Markup(level_svg(level, title))


def _pack(fragment: str) -> Markup:
    """Return a fragment as base64 of raw deflate, which browsers can decompress."""
    squeezed = zlib.compressobj(6, zlib.DEFLATED, -15)
    return Markup(base64.b64encode(squeezed.compress(fragment.encode("utf-8", "replace")) + squeezed.flush()).decode())


def _group_steps(steps: Iterable[Step]) -> list[tuple[tuple[OperatorLocation, ...], list[Step]]]:
    """Group steps by the operators that compute them, in the order of their first steps."""
    found: dict[tuple[OperatorLocation, ...], list[Step]] = {}
    for step in steps:
        found.setdefault(step.places, []).append(step)
    return list(found.items())


def _by_digest(report: ReportModel) -> dict[str, ReportedCandidate]:
    return {one.digest: one for one in report.candidates}


#: Functions that templates call by their names.
_FUNCTIONS: Final[tuple[Callable[..., object], ...]] = (
    all_nodes, checked_by, conditions, search_progress_plot, definitions, describe_measurement, estimates_plot,
    first_slabs, highlight, levels, margin_classes, numerics, baseline_rows, pruned_chart, pruned_rows, roofline,
    to_json, to_text, units_chart, verdict,
)  # fmt: skip
_VIEWS: Final[dict[str, Any]] = {one.__name__: one for one in _FUNCTIONS} | {
    "MOST_LINES": LINES, "MOST_OBLIGATIONS": 400, "MOST_OPERATORS": MOST, "MOST_SEARCHES": 48, "MOST_UNITS": 2000,
    "by_digest": _by_digest, "group_steps": _group_steps, "level_svg": _level_svg, "mathml": _mathml,
    "name_formula": Name, "quote": shlex.quote,
}  # fmt: skip
_FILTERS: Final[dict[str, Callable[..., str]]] = {
    "f": format,
    "figure": abbreviate_number,
    "lines": visible_lines,
    "long": lambda text: escape(escape_line(text, 4000)),
    "noun": count_noun,
    "pack": _pack,
    "px": "{:.1f}".format,
    "size": size_text,
    "tick": axis_label,
}


@cache
def _asset(name: str) -> str:
    return (_FOLDER / "assets" / name).read_text(encoding="utf-8").strip()


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_shell(title: str, body: Markup, script: str = "script.js", policy: str = "") -> str:
    """Return a page around its body, which must hold no script and no style of its own.

    Args:
        title: Title of the page.
        body: Markup of its body.
        script: Name of its script.
        policy: Further rules of its policy, which ends in them.

    Sound: the policy allows the one script and the one style that stand here, by their digests, and nothing else: no
    other script, no handler, no address.
    """
    style, script = Markup(f"{_asset('style.css')}\n{SHAPES}"), Markup(_asset(script))
    allowed = f"script-src {_digest(script)}; style-src {_digest(style)}"
    rules = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'{policy}"
    return str(render("pages", "shell", title, body, {"policy": rules, "style": style, "script": script}))


def page(report: ReportModel) -> str:
    """Return a report as one HTML file."""
    return page_shell(f"{report.name}: {report.kind} report", render("report", "page", report, _sections(report)))


def _sections(report: ReportModel) -> dict[str, str]:
    """Return ids and titles of the sections that a report has."""
    searched = "The searches of its parts" if report.searches else "The search"
    found: dict[str, tuple[object, str]] = {
        "figures": (report.tables, "Figures that were measured"),
        "candidates": (report.candidates, "Candidates"),
        "candidate": (report.candidates, "Best candidate, or the one that was chosen"),
        "parts": (report.parts, "Parts of the best cover"),
        "program": (report.program, "The program"),
        "why-not": (report.judged or report.kind == "run", "Why not: refuted, rejected and undecided"),
        "limits": (report.candidates and report.kind != "candidate", "Estimates and limits"),
        "search": (report.search, searched),
        "evidence": (True, "How it was made, as the evidence says"),
    }
    return {name: title for name, (there, title) in found.items() if there}


def index(title: str, reports: Sequence[tuple[ReportModel, str]]) -> str:
    """Return an index page: a row for each report, with a link to its page.

    Args:
        title: Title of the page.
        reports: Each report with the address of its own page, relative to this one.
    """
    return page_shell(title, render("pages", "index", title, reports))


def watch_page(title: str) -> str:
    """Return the page of ``mirage-formal watch``; its script may ask its own server, and nobody else."""
    return page_shell(title, render("pages", "watch", title), "watch.js", "; connect-src 'self'")


def comparison_page(left: ReportModel, right: ReportModel) -> str:
    """Return a page that compares two runs: their options, and their common candidates."""
    return page_shell(f"{left.name} and {right.name}", render("pages", "comparison", left, right))
