"""Tables of results: every figure and text is whole at every width of a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from mirage_formal.support.result_tables import result_table

COLUMNS = (("rank", False), ("id", True), ("est. us", False), ("verdict", True), ("kernels", True))
ROWS = [
    ("1", "871c2a880c28", "2.9", "equivalent", "grid 128x1x1 loop 2; k4: matmul, matmul, accum_sum, add"),
    ("12", "64207f4ea71c", "1234.5", "probable", "rms_norm; \x1b[31mmatmul"),
]


def printed(width: int) -> list[str]:
    console = Console(file=StringIO(), width=width)
    console.print(result_table("lora: 2 of 757 candidates", COLUMNS, ROWS, width))
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 71, 72, 80, 120])
def test_nothing_is_cut(width: int) -> None:
    lines = printed(width)
    words = " ".join(lines).split()
    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        assert {row[0], row[1], row[2], row[3]} <= set(words)
    assert {"matmul,", "accum_sum,", "rms_norm;"} <= set(words)
    assert "\x1b" not in "".join(lines)


def test_a_wide_terminal_has_a_row_for_each_candidate() -> None:
    assert sum(row[1] in line and row[4][:9] in line for row in ROWS for line in printed(120)) == len(ROWS)
