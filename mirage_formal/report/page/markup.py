"""HTML and SVG markup with escaping of all text from evidence.

Texts from elsewhere first pass ``terminal.escape_line``, which escapes invisible and bidirectional characters and cuts
long texts. Then the characters of markup are escaped. ``Markup`` is the type of escaped text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from mirage_formal.support.terminal import LONGEST, escape_line


class Markup(str):
    """HTML text that is safe to insert into a page."""

    __slots__ = ()


Content = str | Markup | None
#: Elements without an end tag in HTML.
_EMPTY: Final = frozenset({"meta", "input", "br", "hr", "link"})


def escape_text(given: object, limit: int = LONGEST) -> Markup:
    """Return any text escaped, on one line."""
    return given if isinstance(given, Markup) else Markup(escape(escape_line(str(given), limit)))


def escape_lines(given: str, limit: int = 4000) -> Markup:
    """Return a multi-line text escaped as by ``escape_text``, for an element that keeps line breaks."""
    return Markup("\n".join(escape_text(line, limit) for line in given.split("\n")))


def element(name: str, attributes: Mapping[str, object] | None = None, *content: Content) -> Markup:
    """Return an element; an attribute that is None or False is left out, and one that is True has no value.

    Args:
        name: Name of the element.
        attributes: Attributes, whose values are escaped.
        content: Contents: markup is kept, other texts are escaped, None is skipped.
    """
    written = "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in _EMPTY:
        return Markup(f"<{name}{written}>")
    inside = "".join(escape_text(one) for one in content if one is not None)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(escape_line(str(value), 4000))}"'


def join_contents(parts: Iterable[Content], between: str = "") -> Markup:
    """Return the concatenation of several contents."""
    return Markup(str(escape_text(between)).join(escape_text(part) for part in parts if part is not None))


def table(
    caption: str, head: Iterable[str], rows: Iterable[Iterable[Content]], attributes: Mapping[str, object] | None = None
) -> Markup:
    """Return a table with a caption and column heads."""
    heads = join_contents(element("th", {"scope": "col"}, one) for one in head)
    body = join_contents(element("tr", None, *(element("td", None, cell) for cell in row)) for row in rows)
    inside = element("caption", None, caption), element("thead", None, element("tr", None, heads))
    # On a narrow screen a table scrolls by itself, also by keyboard.
    made = element("table", attributes, *inside, element("tbody", None, body))
    return element("div", {"class": "wide", "tabindex": "0", "role": "group", "aria-label": caption}, made)


def details(summary: Content, *content: Content, attributes: Mapping[str, object] | None = None) -> Markup:
    """Return a ``details`` element that opens when its summary is pressed; it needs no script."""
    return element("details", attributes, element("summary", None, summary), *content)
