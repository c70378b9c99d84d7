"""What was pruned: by reason and level, as the journal has it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_formal.report.model import Search
from mirage_formal.report.page.html import render
from mirage_formal.report.page.search import pruned_rows
from mirage_formal.report.reading import read_report
from mirage_formal.report.text_report import report_text
from tests.kit.runs import tampering
from tests.report.test_units import SEARCH, cells, edited

LEVELS = replace(
    SEARCH,
    pruned=(("copy", 3), ("shape", 1007)),
    pruned_at=(("kernel", "copy", 3), ("kernel", "shape", 7), ("block", "shape", 1000)),
)


def test_levels_are_those_of_the_journal(small: Path) -> None:
    search = read_report(small).search
    assert search is not None
    lines = tampering.read_lines(small / "search.jsonl")
    assert any(line["pruned_at"] for line in lines)
    for level, reason, count in search.pruned_at:
        assert count == sum(line["pruned_at"].get(level, {}).get(reason, 0) for line in lines)
    by_reason = {reason: sum(n for _, name, n in search.pruned_at if name == reason) for reason, _ in search.pruned}
    assert by_reason == dict(search.pruned)
    assert f"Pruned at the {search.pruned_at[0][0]} level: " in report_text(read_report(small))


def test_the_table_has_every_level_and_adds_up() -> None:
    assert pruned_rows(LEVELS) == (
        ("reason", "kernel", "block", "thread", "all levels"),
        [("copy", "3", "0", "0", "3"), ("shape", "7", "1,000", "0", "1,007"), ("all", "10", "1,000", "0", "1,010")],
    )
    html = render("search", "pruned_section", LEVELS)
    assert cells(html)[1:] == [list(row) for row in pruned_rows(LEVELS)[1]]
    bars = re.findall(r'<rect class="bar"[^>]*width="([\d.]+)"[^>]*><title>(.*?)</title>', html)
    assert [words for _, words in bars] == ["block, shape: 1,000", "kernel, shape: 7", "kernel, copy: 3"]
    assert float(bars[0][0]) > 100 * float(bars[1][0])
    assert "prunes nothing at their level" in html


def test_what_has_no_level_is_counted_by_itself(small: Path, tmp_path: Path) -> None:
    """Of a run that an earlier version began, and of one that it finished."""
    some = replace(LEVELS, pruned=(("copy", 5), ("shape", 1007)))
    assert pruned_rows(some)[0] == ("reason", "kernel", "block", "thread", "not recorded", "all levels")
    assert pruned_rows(some)[1][0] == ("copy", "3", "0", "0", "2", "5")
    assert "not recorded: copy" in render("search", "pruned_section", some)
    old = read_report(edited(small, tmp_path / "old", lambda entry: entry.pop("pruned_at"))).search
    assert old is not None
    assert old.pruned_at == ()
    assert old.pruned
    assert pruned_rows(old)[0] == ("reason", "count")
    assert "<svg" not in render("search", "pruned_section", old)


@pytest.mark.parametrize("search", [SEARCH, replace(LEVELS, pruned=(), pruned_at=())])
def test_where_nothing_was_pruned_nothing_is_shown(search: Search) -> None:
    assert render("search", "pruned_section", search) == ""


def test_counts_that_contradict_the_whole_are_named(small: Path, tmp_path: Path) -> None:
    def more(entry: dict[str, dict[str, dict[str, int]]]) -> None:
        for reasons in entry["pruned_at"].values():
            reasons.update({reason: count + 1 for reason, count in reasons.items()})

    broken = read_report(edited(small, tmp_path / "more", more)).broken
    assert {fault.file for fault in broken} == {"search.jsonl"}
    assert len(broken) == len(tampering.read_lines(small / "search.jsonl"))
    assert "unit 0: pruned_at: expected the counts of pruned by level" in [fault.what for fault in broken]


def test_hundreds_of_reasons_are_in_the_table(small: Path) -> None:
    many = tuple((f"reason {n}", n + 1) for n in range(300))
    html = str(
        render(
            "search", "pruned_section", replace(SEARCH, pruned=many, pruned_at=tuple(("block", *one) for one in many))
        )
    )
    assert html.count('class="bar"') == 24
    assert "276 more are in the table only" in html
    assert len(cells(html)) == 302
