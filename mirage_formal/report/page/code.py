"""Page sections on generated code, highlighted and linked to operators, and on obligations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Final

from mirage_formal.report.model import Code, Kernel, Lines, TritonText
from mirage_formal.report.page.graphs import graph_section
from mirage_formal.report.page.markup import Markup, details, element, join_contents, table
from mirage_formal.support.terminal import escape_line

_TOKEN: Final = re.compile(
    r"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<s>\"(?:[^\"\\\n]|\\.)*\")|(?P<p>^[ \t]*\#[^\n]*)"
    r"|(?P<k>\b(?:auto|bool|break|case|const|constexpr|continue|do|else|extern|float|for|if|inline|int|long|namespace"
    r"|return|short|signed|sizeof|static|struct|switch|template|typename|unsigned|using|void|volatile|while"
    r"|__device__|__global__|__shared__|__restrict__|__launch_bounds__|uint32_t|uint64_t|half|bfloat16)\b)"
    r"|(?P<m>\b(?:MF_\w+|mf::\w+|threadIdx|blockIdx|blockDim|gridDim|__syncthreads)\b)"
    r"|(?P<n>\b(?:0x[0-9a-fA-F.p+-]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?f?)\b)",
    re.MULTILINE | re.DOTALL,
)
#: Most lines of a source, and most obligations of a kernel, that are shown.
_LINES: Final = 6000
_OBLIGATIONS: Final = 400
_NONE: Final[Mapping[int, tuple[str, Markup]]] = MappingProxyType({})


_PYTHON: Final = re.compile(
    r"(?P<c>\#[^\n]*)|(?P<s>\"{3}.*?\"{3}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|(?P<p>^[ \t]*@[^\n]*)"
    r"|(?P<k>\b(?:and|as|assert|def|elif|else|for|from|if|import|in|is|not|or|raise|return|while|with|None|True|False)\b)"
    r"|(?P<m>\b(?:tl|triton|torch)\.[\w.]+)"
    r"|(?P<n>\b(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\b)",
    re.MULTILINE | re.DOTALL,
)


def highlight(source: str, token: re.Pattern[str] = _TOKEN) -> Markup:
    """Return code with highlighting spans; each span lies in one line.

    Args:
        source: The text.
        token: Pattern of tokens; CUDA C++ if left out.
    """
    text = "\n".join(escape_line(line, 2000) for line in source.split("\n")[:_LINES])
    out, at = [], 0
    for found in token.finditer(text):
        out.append(escape(text[at : found.start()]))
        kind = found.lastgroup
        out += [f'<span class="t-{kind}">{escape(line)}</span>\n' for line in found[0].split("\n")]
        out[-1] = out[-1][:-1]
        at = found.end()
    return Markup("".join([*out, escape(text[at:])]))


def number_lines(
    source: str, token: re.Pattern[str] = _TOKEN, marks: Mapping[int, tuple[str, Markup]] = _NONE
) -> Markup:
    """Return highlighted code with line numbers; see ``highlight``.

    Args:
        source: The text.
        token: Pattern of tokens.
        marks: Class and margin note by line number.
    """
    shown = highlight(source, token).rstrip("\n").split("\n")
    rows = []
    for n, line in enumerate(shown, 1):
        kind, beside = marks.get(n, ("", Markup("")))
        rows.append(f'<span class="{f"l {kind}".rstrip()}" data-line="{n}">{beside}{line}</span>')
    return element("pre", {"class": "code", "tabindex": "0"}, Markup("\n".join(rows)))


def code_section(code: Code | None) -> Markup:
    """Return the section on a candidate's kernels; where none were built, it says how to build them."""
    if code is None:
        return element(
            "p", None, "No kernels were built. mirage-formal tools build RUN makes them, with safety obligations."
        )
    other = (
        "The kernels compute another form of this candidate, which is proved equal to it part by part "
        "(equivalence.json); numbers of operators below are those of that form."
    )
    notes = [] if code.own else [element("p", None, other)]
    if code.form is not None:
        drawn = graph_section(code.form, "form", {})
        notes.append(details("The µGraph of that form", drawn, attributes={"class": "source"}))
    return join_contents(
        [*notes, _launches(code), *(_source(name, text, code) for name, text in code.sources), _safety(code)]
    )


def triton_section(found: TritonText | None, code: Code | None) -> Markup | None:
    """Return the section on a candidate's Triton file, where one lies beside the run.

    Args:
        found: The file.
        code: The candidate's CUDA kernels, whose drawing may show the µGraph of the file.
    """
    if found is None:
        return None
    drawn, form = "candidate", None
    if found.form is not None:
        same = code is not None and code.form == found.form
        drawn = "form" if same else "triton"
        shown = None if same else graph_section(found.form, "triton", {})
        form = None if shown is None else details("The µGraph of its form", shown, attributes={"class": "source"})
    title = f"{found.name}: {found.text.count(chr(10)) + 1} lines of Triton, a file beside the run"
    notes = [element("p", None, "It compares itself with the program when it is run. It is not proved, and no manifest "
                                "lists it.")]  # fmt: skip
    if found.form is not None:
        notes.append(element("p", None, "It computes another form of this candidate, without overflow."))
    text = number_lines(found.text, _PYTHON, _margin_notes(found.lines, drawn))
    shown_lines = _lines_table(found.name, found.lines, drawn)
    return details(title, *notes, form, text, shown_lines, attributes={"class": "source"})


def _launches(code: Code) -> Markup:
    rows = [
        (
            one.name,
            _operator(one, code),
            " × ".join(map(str, one.grid)),
            str(one.threads) if one.threads else "-",
            f"{one.shared_bytes:,}" if one.threads else "-",
            _by_arch(one.registers),
            _by_arch(one.stack),
            ", ".join(f"{share:.0%} ({arch})" for arch, share in one.occupancy) or "-",
            f"{one.source}:{one.first}–{one.last}" if one.first else one.source or "-",
        )
        for one in code.kernels
    ]
    head = ("launch", "computes", "grid", "threads", "shared bytes", "registers", "stack", "occupancy", "lines")
    return table("Launches, with what the compiler reported", head, rows)


def _operator(one: Kernel, code: Code) -> Markup | str:
    if one.operator < 0:
        return "a copy to an output"
    return _link_to_node(f"op{one.operator}", f"operator {one.operator}", _drawing_name(code))


def _drawing_name(code: Code) -> str:
    """Return the name of the drawing of the kernels' µGraph; empty where it is not drawn."""
    if code.own:
        return "candidate"
    return "" if code.form is None else "form"


def _link_to_node(node: str, shown: str, drawn: str) -> Markup | str:
    """Return a node's name as a link to its drawing."""
    if not drawn:
        return shown
    return element("a", {"href": "#candidate", "class": "goto", "data-goto": f"{drawn}:{node}"}, shown)


def _margin_notes(pieces: Sequence[Lines], drawn: str) -> dict[int, tuple[str, Markup]]:
    """Return the margin marks of source lines: where a piece begins, what it does, and its parts of the µGraph."""
    marks: dict[int, tuple[str, Markup]] = {}
    for number, piece in enumerate(pieces):
        kind = f"part part-{number % 2}"
        marks |= dict.fromkeys(range(piece.first, piece.last + 1), (kind, Markup("")))
        marks[piece.first] = (kind, element("span", {"class": "of"}, f"{piece.does}: ", _parts(piece, drawn)))
    return marks


def _parts(piece: Lines, drawn: str) -> Markup:
    """Return links to the parts of the µGraph that a piece of source lines belongs to."""
    return join_contents((_link_to_node(node, label, drawn) for node, label in piece.parts), ", ")


def _lines_table(name: str, pieces: Sequence[Lines], drawn: str) -> Markup | None:
    """Return the table of source lines by parts of the µGraph; None where these are not known."""
    rows = [
        (
            f"{piece.first}–{piece.last}",
            piece.does,
            _parts(piece, drawn),
            ", ".join(node for node, _ in piece.parts),
        )
        for piece in pieces
    ]
    if not rows:
        return None
    title = f"Lines of {name} by what they compute; barriers, declarations and loops belong to nothing"
    return details("The same as a table", table(title, ("lines", "do", "of", "nodes"), rows))


def _by_arch(values: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{value} ({arch})" for arch, value in values) or "-"


def _source(name: str, text: str, code: Code) -> Markup:
    of = ", ".join(
        f"{one.name} is operator {one.operator}" for one in code.kernels if one.source == name and one.operator >= 0
    )
    count = text.count("\n") + 1
    more = f"; the first {_LINES} are shown" if count > _LINES else ""
    pieces, drawn = [piece for one in code.kernels if one.source == name for piece in one.lines], _drawing_name(code)
    shown, lines = number_lines(text, marks=_margin_notes(pieces, drawn)), _lines_table(name, pieces, drawn)
    return details(f"{name}: {count} lines{more}. {of}", shown, lines, attributes={"class": "source"})


def _safety(code: Code) -> Markup:
    means = Counter(one.means for one in code.obligations)
    said = ", ".join(f"{count} by {name}" for name, count in sorted(means.items())) or "none"
    intro = (
        f"{len(code.obligations)} safety obligations, all recorded as held: {said}. Answers of solvers are those that "
        "the evidence has; check derives the obligations again and asks again."
    )
    rows = [
        (one.kernel, one.kind, one.subject, one.claim, one.means, one.solvers or "-")
        for one in code.obligations[:_OBLIGATIONS]
    ]
    left = len(code.obligations) - len(rows)
    head = ("kernel", "kind", "subject", "claim", "settled by", "solvers then")
    title = "Safety obligations" + (f" ({left} more are not listed)" if left > 0 else "")
    return join_contents([element("p", None, intro), details(title, table(title, head, rows))])
