"""Progress displays."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from mirage_formal.ir.verdict import Probable
from mirage_formal.pipeline.progress import Phase, Progress
from mirage_formal.pipeline.show import LiveWatch, PlainWatch, bound, form, progress_line
from tests.fake_engine import fused, program

PROGRESS = Progress(phase=Phase.SEARCH, done=1, total=4, states=1000, pruned=10, candidates=3, elapsed_s=2.0)


def test_a_line_says_where_a_run_stands() -> None:
    line = progress_line("attn", PROGRESS)
    assert line == "attn: searching 1/4 | 1,000 states, 500/s | 10 pruned | 3 candidates | 2.0 s"
    assert replace(PROGRESS, elapsed_s=0.0).states_per_s == 0.0


def test_a_terminal_shows_the_newest_line() -> None:
    file = StringIO()
    with LiveWatch("attn", Console(file=file, force_terminal=True, width=120)) as watch:
        watch(PROGRESS)
        watch(replace(PROGRESS, done=2))
    assert "attn: searching 2/4" in file.getvalue()


def test_elsewhere_only_news_is_printed() -> None:
    file = StringIO()
    with PlainWatch("attn", Console(file=file, width=120)) as watch:
        watch(PROGRESS)
        watch(replace(PROGRESS, done=2))
        watch(replace(PROGRESS, phase=Phase.WRITE))
    assert [line.split(" |")[0] for line in file.getvalue().splitlines()] == [
        "attn: searching 1/4",
        "attn: writing 1/4",
    ]


def test_bounds_are_stated_or_called_what_they_are() -> None:
    assert bound(Probable(1, -29.4)) == "< 2^-29"
    assert bound(Probable(1, None, "vacuous: k = 4096 exponentials")) == "vacuous"
    assert bound(Probable(1, None, "sqrt is outside the theorem")) == "no bound"


def test_kernels_are_named() -> None:
    assert form(program()) == "matmul; exp"
    assert form(fused(program(), 2, 4, 2)) == "grid 2x4x1 loop 2"
