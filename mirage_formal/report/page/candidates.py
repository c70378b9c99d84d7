"""Page sections on candidates: a table, a chart of estimates, and each candidate in full."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.display import count_noun
from mirage_formal.report.model import Basis, Candidate, Report, SpecialValues
from mirage_formal.report.page.baselines import peers_section
from mirage_formal.report.page.charts import Dot, figure, linear, scatter
from mirage_formal.report.page.code import code_section, triton_section
from mirage_formal.report.page.graphs import graph_section
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.report.page.proofs import conditions, proof_section

_HEAD = (
    ("rank", "number"), ("candidate", "text"), ("verdict", "text"), ("basis", "text"), ("kernels", "number"),
    ("est. µs", "number"), ("measured µs", "number"), ("error/tol.", "number"), ("proof steps", "number"),
    ("proof bytes", "number"), ("solvers ms", "number"),
)  # fmt: skip


def badge(basis: Basis, *, short: bool = False) -> Markup:
    """Return the badge that shows the basis of a claim."""
    shown = basis.short if short else basis.words
    return element("span", {"class": f"badge {basis.value}", "title": basis.words}, shown)


def candidates_table(report: Report) -> Markup:
    """Return the table of all candidates; the page's script makes it sortable and filterable."""
    heads = join_contents(element("th", {"scope": "col", "data-sort": kind}, name) for name, kind in _HEAD)
    rows = join_contents(_row(one) for one in report.candidates)
    made = element(
        "table",
        {"id": "candidates-table", "class": "sortable"},
        element("caption", None, f"{count_noun(len(report.candidates), 'candidate')} of {report.name}, best first"),
        element(
            "thead", None, element("tr", None, heads, element("th", {"scope": "col", "class": "js-only"}, "compare"))
        ),
        element("tbody", None, rows),
    )
    region: dict[str, object] = {"class": "wide", "tabindex": "0", "role": "group", "aria-label": "candidates"}
    return join_contents([element("div", {"id": "filters", "class": "js-only"}, None), element("div", region, made)])


def _row(one: Candidate) -> Markup:
    ratio, us = (one.measured.ratio, one.measured.us) if one.measured else (None, None)
    cells: Sequence[tuple[object, Markup | str]] = (
        (one.rank, str(one.rank)),
        (one.digest, element("a", {"href": "#candidate", "class": "open", "data-open": one.rank}, one.digest[:12])),
        (one.verdict, one.verdict),
        (one.basis.value, badge(one.basis, short=True)),
        (one.kernels, str(one.kernels) if one.kernels else "-"),
        (one.estimated_us, f"{one.estimated_us:.2f}" if one.estimated_us else "-"),
        ("" if us is None else us, "-" if us is None else f"{us:.2f}"),
        ("" if ratio is None else ratio, _numerics(one)),
        (one.steps, str(one.steps) if one.steps else "-"),
        (one.proof_bytes, f"{one.proof_bytes:,}" if one.proof_bytes else "-"),
        (one.proof_ms, f"{one.proof_ms:.0f}" if one.proof_ms else "-"),
    )
    made = (element("td", {"data-v": value}, shown) for value, shown in cells)
    return element("tr", {"data-rank": one.rank}, *made, element("td", {"class": "js-only pick"}, None))


def _numerics(one: Candidate) -> str:
    if one.measured is None or not one.measured.numerics:
        return f"foreseen outside at scale {figure(one.outside[0])}" if one.outside else "-"
    return (
        f"{one.measured.numerics}, {one.measured.ratio:.2f}"
        if one.measured.ratio is not None
        else one.measured.numerics
    )


def estimates(report: Report) -> Markup:
    """Return a chart of estimates against measured times, or by rank where nothing was measured."""
    timed = [(one, one.measured.us) for one in report.candidates if one.measured and one.measured.us is not None]
    if timed:
        title = "Estimated against measured microseconds"
        values = [max(one.estimated_us, us) for one, us in timed]
        x, y = linear("estimated µs", values), linear("measured µs", values)
        dots = [
            Dot(one.estimated_us, us, f"{one.rank}: estimated {one.estimated_us:.2f} µs, measured {us:.2f} µs",
                str(one.rank), one.rank == 1)
            for one, us in timed
        ]  # fmt: skip
        lines = [("estimate = measured", [(0.0, 0.0), (min(x.high, y.high),) * 2])]
        rows = [(str(one.rank), one.digest[:12], f"{one.estimated_us:.2f}", f"{us:.2f}", f"{us / one.estimated_us:.2f}")
                for one, us in timed if one.estimated_us]  # fmt: skip
        head = ("rank", "candidate", "estimated µs", "measured µs", "ratio")
        behind = details("The same as a table", table(title, head, rows))
        return element("figure", None, scatter(title, x, y, dots, lines), element("figcaption", None, title), behind)
    if len(report.candidates) < 2:
        return Markup("")
    title = "Estimated microseconds by rank; nothing was measured"
    x = linear("rank", [float(one.rank) for one in report.candidates])
    y = linear("estimated µs", [one.estimated_us for one in report.candidates])
    dots = [
        Dot(one.rank, one.estimated_us, f"{one.rank}: {one.kernels} kernels, {one.estimated_us:.2f} µs", str(one.rank),
            one.rank == 1)
        for one in report.candidates
    ]  # fmt: skip
    shown = [(str(one.rank), one.digest[:12], str(one.kernels), f"{one.estimated_us:.2f}") for one in report.candidates]
    behind = details("The same as a table", table(title, ("rank", "candidate", "kernels", "estimated µs"), shown))
    return element("figure", None, scatter(title, x, y, dots), element("figcaption", None, title), behind)


def candidate_section(one: Candidate, program: KernelGraph | None) -> Markup:
    """Return the section of a page on one candidate."""
    anchor = f"c{one.rank}"
    expressions = {item.tensor: item.expression for item in one.certificates}
    parts = [
        element("h3", None, f"Candidate {one.rank} ", element("code", None, one.digest[:12])),
        _facts(one),
        *(element("p", {"class": "bad"}, f"{fault.file}: {fault.what}") for fault in one.faults),
        element("h4", None, "µGraph"),
        element("p", {"class": "bad"}, "Its graph cannot be read.") if one.graph is None
        else graph_section(one.graph, "candidate", expressions),
        element("h4", None, "Why it is equal"),
        proof_section(one, anchor),
        conditions(one.conditions, one.added) if one.proof is None and one.conditions else None,
        element("h4", None, "Code"),
        code_section(one.code),
        triton_section(one.triton, one.code),
        peers_section(one.peers),
    ]  # fmt: skip
    return element(
        "article", {"class": "candidate", "data-rank": one.rank, "aria-label": f"candidate {one.rank}"}, *parts
    )


def _facts(one: Candidate) -> Markup:
    facts: list[tuple[str, Markup | str]] = [
        ("verdict", join_contents([f"{one.verdict} ", badge(one.basis)])),
        ("kernels", str(one.kernels) if one.kernels else "not recorded here"),
        ("estimate", f"{one.estimated_us:.2f} µs" if one.estimated_us else "not recorded here"),
        ("directory", one.directory),
    ]
    if one.measured is not None and one.measured.us is not None:
        span = f" ({one.measured.low:.2f} to {one.measured.high:.2f})" if one.measured.low and one.measured.high else ""
        how = f" on {one.measured.device}, median of {one.measured.replays} replays; recorded, not measured here"
        facts.append(("measured", f"{one.measured.us:.2f} µs{span}{how}"))
    if one.measured is not None and one.measured.numerics:
        facts.append(("numerics", f"{_numerics(one)} of the tolerance, recorded on {one.measured.device}"))
    if one.measured is not None and one.measured.triton:
        facts.append(("in Triton", f"{one.measured.triton}; recorded on {one.measured.device}"))
    if one.rounding is not None:
        facts.append(("foreseen rounding", figure(one.rounding)))
    if one.special is not None:
        facts.append(("special values", special_values(one.special)))
    made = [element("div", None, element("dt", None, name), element("dd", None, value)) for name, value in facts]
    notes = [element("p", None, f"{remark[:1].upper()}{remark[1:]}.") for remark in one.remarks]
    return join_contents([element("dl", {"class": "facts"}, *made), *notes])


def special_values(found: SpecialValues) -> str:
    """Return a sentence on how a candidate compared at NaN, infinities, zeros and large numbers in inputs."""
    said = (
        f"as the program at {found.elements:,} elements of {found.draws} draws, of which {found.undefined:,} have none"
    )
    removed = f"; an overflow of the program was removed at {found.overflows:,}" if found.overflows else ""
    return f"{said}{removed}; recorded"


def pack(fragment: str) -> str:
    """Return a fragment as base64 of raw deflate, which browsers can decompress."""
    squeezed = zlib.compressobj(6, zlib.DEFLATED, -15)
    return base64.b64encode(squeezed.compress(fragment.encode()) + squeezed.flush()).decode()
