"""Tables of results on a terminal, readable at any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from mirage_formal.support.terminal import escape_line

#: Width in characters below which the texts of a row stand below each other in one column.
_NARROW: Final = 72


def result_table(title: str, columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], width: int) -> Table:
    """Return a table whose figures are never cut; each text is escaped.

    Args:
        title: Line above the table; empty for none.
        columns: Heads of the columns, each with whether its cells are texts, not figures.
        rows: A cell for each column.
        width: Width of the terminal in characters. On a narrow one the texts of a row share the last column.
    """
    above = Text(escape_line(title)) if title else None
    table = Table(title=above, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    narrow = width < _NARROW
    figures = [number for number, (_, text) in enumerate(columns) if not (narrow and text)]
    texts = [number for number, (_, text) in enumerate(columns) if narrow and text]
    for number in figures:
        head, text = columns[number]
        table.add_column(head, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    if texts:
        table.add_column(", ".join(columns[number][0] for number in texts), overflow="fold")
    for row in rows:
        cells = [Text(escape_line(row[number])) for number in figures]
        if texts:
            cells.append(Text("\n".join(escape_line(row[number]) for number in texts if row[number])))
        table.add_row(*cells)
    return table


__all__ = ["result_table"]
