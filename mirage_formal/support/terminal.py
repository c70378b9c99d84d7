"""Escaping of untrusted text for a terminal: one line, every character visible, no control character effective.

A text from a file is an author's text. Printed raw it could hold line breaks, terminal escapes, bidirectional marks or
invisible characters, and so imitate this program's own lines.
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import category

#: Most characters of one text that are shown.
LONGEST: Final = 400
_PLAIN: Final = re.compile(r"[ -~]*")
_NO_ASCII: Final = re.compile(r"[^ -~\n]")
#: Marks are drawn over what precedes them.
_MARKS: Final = frozenset({"Mn", "Me"})
#: Letters and symbols that are drawn as nothing.
_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")


def escape_line(text: str, limit: int = LONGEST) -> str:
    """Return a text on one line, truncated, with escapes for invisible and cursor-moving characters.

    A text that this function has made comes back unchanged, so that texts can be put together from such parts.
    """
    cut = text[:limit]
    shown = cut if _PLAIN.fullmatch(cut) else "".join(map(_shown, cut))
    return shown if len(shown) <= limit and len(text) <= limit else f"{shown[: limit - 4]} ..."


def quote_text(text: str, limit: int = LONGEST) -> str:
    """Return an author's text in quotes that it cannot close, so that it cannot imitate our messages."""
    return '"' + escape_line(text, limit).replace("\\", "\\\\").replace('"', '\\"') + '"'


def lines(text: str, limit: int = LONGEST) -> str:
    """Return a text of several lines, each as by ``escape_line``; those after the first are indented."""
    first, *rest = (escape_line(line, limit) for line in text.split("\n"))
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in rest)])


def json_text(text: str) -> str:
    """Return an equivalent JSON text with escapes for invisible characters."""
    return _NO_ASCII.sub(lambda found: _json_shown(found[0]), text)


def _shown(char: str) -> str:
    return char if _is_shown(char) else char.encode("unicode_escape").decode("ascii")


def _is_shown(char: str) -> bool:
    return char.isprintable() and char not in _BLANK and category(char) not in _MARKS


def _json_shown(char: str) -> str:
    if _is_shown(char):
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
