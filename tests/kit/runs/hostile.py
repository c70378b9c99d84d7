"""Texts that want more than to be read: line breaks, terminal escapes, hidden and turned characters, markup."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

#: What an attacker would like a reader to see at the beginning of a line.
CLAIM = "Code generation IS PROVED"
PIECES = (
    *("\n", "\r", "\r\n", "\t", "\x00", "\x07", "\x08", "\x0b", "\x0c", "\x1b[2K", "\x1b]8;;http://x\x07", "\x7f"),
    *("\x85", "\x9b1m", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\u200f", "\ufeff", "\u00ad", "\u0301"),
    *("\u3164", "\u2800", "\xa0", "\U000e0041", "\U000f0000", "é", "µ", "文"),
    *("[bold]", "[/]", "[link=http://x]", "[red]x[/red]", "\\", '"', "'", "  ", "| ", "x" * 3000, CLAIM),
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(), max_size=12).map("".join)


def obeyed(text: str, *, several: bool = False) -> str:
    """The first character of a printed text that a terminal obeys, hides or draws over another; "" if there is none."""
    for char in text:
        if several and char == "\n":
            continue
        if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me"}:
            return char
        if unicodedata.category(char) == "Zs" and char != " ":
            return char
    return ""
