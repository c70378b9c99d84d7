"""Progress displays."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.run import show
from mirage_formal.run.progress import Phase, Progress
from mirage_formal.run.show import LiveWatch, PlainWatch, form, known, meanings, progress_line
from tests.kit.runs.clock import clock_of
from tests.kit.runs.fake_engine import fused, program

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


def test_elsewhere_only_news_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    clock = clock_of(monkeypatch, show, still=True)
    with PlainWatch("attn", Console(file=file, width=120)) as watch:
        watch(PROGRESS)
        watch(replace(PROGRESS, done=2))
        clock.ahead = 600.0
        watch(replace(PROGRESS, done=3))
        watch(replace(PROGRESS, phase=Phase.WRITE))
    assert [line.split(" |")[0] for line in file.getvalue().splitlines()] == [
        "attn: searching 1/4",
        "attn: searching 3/4",
        "attn: writing 1/4",
    ]


def test_verdicts_are_named_and_bounds_stated_or_called_what_they_are() -> None:
    assert known(Equivalent(b"{}")) == "equivalent"
    assert known(Probable(1, -29.4)) == "probable, < 2^-29"
    assert known(Probable(1, None, "vacuous: k = 4096 exponentials")) == "probable, vacuous"
    assert known(Probable(1, None, "sqrt is outside the theorem")) == "probable, no bound"


def test_what_is_only_probable_is_said_and_what_is_proved_is_not_called_so() -> None:
    proved = Equivalent(b"{}", ("program, kernel operator 1: divisor nonzero",))
    [line] = meanings([Equivalent(b"{}"), proved])
    assert line.startswith("verdict equivalent: proved equal to the program over the reals, for all inputs on which")
    [line] = meanings([Equivalent(b"{}")])
    assert line.endswith("over the reals, for all inputs")
    both = meanings([proved, Probable(1, None, "sqrt is outside the theorem"), Probable(1, -29.0)])
    assert len(both) == 3
    assert "verdict probable (2 of 3): NOT proved" in both[1]
    assert both[2] == "no bound on the error: sqrt is outside the theorem"
    assert meanings([]) == []


def test_kernels_are_named() -> None:
    assert form(program()) == "matmul; exp"
    assert form(fused(program(), 2, 4, 2)) == "grid 2x4x1 loop 2"
