"""Highlighting of generated code, and its margin: the parts of the µGraph that lines compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup, escape

from mirage_formal.report.model import SourceLines
from mirage_formal.support.terminal import escape_line

_ASSEMBLY: Final = re.compile(
    r"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<p>^[ ]*\.\w+|^[$.]L[\w.]*:)|(?P<m>%\w+(?:\.\w)?|\bU?R\d+\b|\bU?P[T\d]\b)"
    r"|(?P<k>\b[A-Z][A-Z0-9]+(?:\.\w+)*(?= )|^[ ]+[a-z][\w.:]*)|(?P<n>\b(?:0x[0-9a-fA-F]+|[0-9][0-9a-zA-Z]*)\b)",
    re.MULTILINE,
)
#: Most lines of a source that are shown.
LINES: Final = 6000
_CUDA: Final = re.compile(
    r"(?P<c>//[^\n]*|/\*.*?\*/)|(?P<s>\"(?:[^\"\\\n]|\\.)*\")|(?P<p>^[ \t]*\#[^\n]*)"
    r"|(?P<k>\b(?:auto|bool|break|case|const|constexpr|continue|do|else|extern|float|for|if|inline|int|long|namespace"
    r"|return|short|signed|sizeof|static|struct|switch|template|typename|unsigned|using|void|volatile|while"
    r"|__device__|__global__|__shared__|__restrict__|__launch_bounds__|uint32_t|uint64_t|half|bfloat16)\b)"
    r"|(?P<m>\b(?:MF_\w+|mf::\w+|threadIdx|blockIdx|blockDim|gridDim|__syncthreads)\b)"
    r"|(?P<n>\b(?:0x[0-9a-fA-F.p+-]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?f?)\b)",
    re.MULTILINE | re.DOTALL,
)
_PYTHON: Final = re.compile(
    r"(?P<c>\#[^\n]*)|(?P<s>\"{3}.*?\"{3}|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|(?P<p>^[ \t]*@[^\n]*)"
    r"|(?P<k>\b(?:and|as|assert|def|elif|else|for|from|if|import|in|is|not|or|raise|return|while|with|None|True|False)\b)"
    r"|(?P<m>\b(?:tl|triton|torch)\.[\w.]+)"
    r"|(?P<n>\b(?:0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\b)",
    re.MULTILINE | re.DOTALL,
)


def highlight(source: str, language: str = "cuda") -> list[Markup]:
    """Return the lines of code with highlighting spans; each span lies in one line.

    Args:
        source: The text.
        language: "cuda", "triton", "ptx" or "sass".
    """
    text = "\n".join(escape_line(line, 2000) for line in source.split("\n")[:LINES]).rstrip("\n")
    out, at = [], 0
    for found in {"cuda": _CUDA, "triton": _PYTHON}.get(language, _ASSEMBLY).finditer(text):
        span = Markup('<span class="t-{}">{}</span>')
        out += [
            escape(text[at : found.start()]),
            "\n".join(span.format(found.lastgroup, line) for line in found[0].split("\n")),
        ]
        at = found.end()
    return [Markup(line) for line in "".join([*out, escape(text[at:])]).split("\n")]


def margin_classes(pieces: Sequence[SourceLines]) -> dict[int, tuple[str, SourceLines | None]]:
    """Return the class of each source line that belongs to a piece, and at its first line the piece."""
    marks: dict[int, tuple[str, SourceLines | None]] = {}
    for number, piece in enumerate(pieces):
        kind = f"l part part-{number % 2}"
        marks |= dict.fromkeys(range(piece.first, piece.last + 1), (kind, None))
        marks[piece.first] = (kind, piece)
    return marks
