"""When units were searched: what is drawn, listed and printed is what the journal has."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.report.model import Search, SearchedUnit, Span, report_values
from mirage_formal.report.page.html import page, render
from mirage_formal.report.reading import read_report
from mirage_formal.report.reading.run_reader import POINTS, totals_over_time
from mirage_formal.report.text_report import report_text
from tests.kit.runs import tampering
from tests.report.test_hostile import Elements, harmless

SEARCH = Search("guided", "normal-form", "tiny", 0, "h200", "complete", 1.0, 2, False, 1, (), (), (), ())


def searched(*units: SearchedUnit) -> Search:
    return replace(SEARCH, units=units, course=totals_over_time(units))


def unit(number: int, begin: float, end: float, worker: int = 0, **fields: Any) -> SearchedUnit:
    samples = fields.pop("samples", ())
    plain: dict[str, Any] = {
        "label": f"part {number}",
        "status": "done",
        "states": 10,
        "classes": 1,
        "pruned": 0,
        "candidates": 2,
    }
    return SearchedUnit(
        number, milliseconds=1e3 * (end - begin), span=Span(begin, end, worker, samples), **plain | fields
    )


def cells(html: str) -> list[list[str]]:
    """Rows of the table in a piece of a page."""
    rows = re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]


def drawn(html: str) -> list[tuple[float, float, str]]:
    """Starts and ends of bars as shares of the chart's width, and what they say."""
    found = re.findall(r'<rect class="bar[^"]*" x="([\d.]+)"[^>]*width="([\d.]+)"[^>]*><title>(.*?)</title>', html)
    return [((float(x) - 200) / 404, (float(x) + float(width) - 200) / 404, words) for x, width, words in found]


def edited(small: Path, root: Path, change: Any) -> Path:
    """A copy whose journal is changed and signed again."""
    tampering.copy(small, root)
    entries = tampering.read_lines(root / "search.jsonl")
    for entry in entries:
        change(entry)
    tampering.write_lines(root / "search.jsonl", entries)
    tampering.sign_run(root)
    return root


def test_units_have_the_times_of_the_journal(small: Path) -> None:
    report = read_report(small)
    assert report.search is not None
    lines = tampering.read_lines(small / "search.jsonl")
    for one, line in zip(report.search.units, lines, strict=True):
        assert one.span is not None
        samples = tuple(map(tuple, line["times"]["samples"]))
        assert one.span == Span(line["times"]["begin"], line["times"]["end"], line["times"]["worker"], samples)
    values = report_values(report)["search"]
    assert [one["span"]["end"] for one in values["units"]] == [line["times"]["end"] for line in lines]
    assert values["course"][-1][1] == sum(line["stats"]["states"] for line in lines)
    text = report_text(report)
    assert all(f"worker {line['times']['worker']}, {line['times']['begin']:.2f} to" in text for line in lines)


def test_bars_lie_where_units_were_searched() -> None:
    units = [unit(0, 0.0, 4.0), unit(1, 1.0, 10.0, 1), unit(2, 4.0, 5.0, status="failed", states=0, candidates=0)]
    html = render("search", "units_section", searched(*units))
    bars = drawn(html)
    assert len(bars) == 3
    for one, (left, right, words) in zip(sorted(units, key=lambda u: u.span.begin if u.span else 0), bars, strict=True):
        assert one.span is not None
        assert left == pytest.approx(one.span.begin / 10.2, abs=0.002)
        assert right == pytest.approx(one.span.end / 10.2, abs=0.002)
        assert words.startswith(f"{one.number}: {one.label}: {one.span.begin:.2f} s to {one.span.end:.2f} s")
    assert html.count('class="bar strong"') == 1
    rows = cells(html)
    assert [row[:6] for row in rows[1:]] == [
        ["0", "part 0", "done", "0", "0.00", "4.00"],
        ["1", "part 1", "done", "1", "1.00", "10.00"],
        ["2", "part 2", "failed", "0", "4.00", "5.00"],
    ]


def test_a_short_unit_that_was_given_up_is_seen() -> None:
    """Between thousands of others, it is wider than its time would be, and drawn over them."""
    units = [unit(n, n / 10, (n + 1) / 10, status="failed" if n == 500 else "done") for n in range(3000)]
    found = re.findall(r'class="(bar[^"]*)"[^>]*width="([\d.]+)"', render("search", "units_section", searched(*units)))
    assert found[-1] == ("bar strong", "3.0")
    assert all(kind == "bar" for kind, _ in found[:-1])


def test_the_course_adds_up_what_units_say() -> None:
    first = unit(0, 0.0, 4.0, states=100, classes=9, samples=((1.0, 40, 3), (2.0, 90, 8)))
    other = unit(1, 1.5, 3.0, 1, states=50, classes=0, samples=((2.0, 20, 0),))
    untimed = replace(unit(2, 0.0, 1.0), span=None)
    found = totals_over_time([first, other, untimed])
    assert found == ((0.0, 0, 0), (1.0, 40, 3), (2.0, 110, 8), (3.0, 140, 8), (4.0, 150, 9))
    html = render("search", "course_section", searched(first, other, untimed))
    rows = cells(html)[1:]
    assert rows == [[f"{at:.2f}", str(states), str(classes)] for at, states, classes in found]
    said = re.findall(r"<title>([\d.]+) s: (\d+) (states|classes)</title>", html)
    assert [(at, n) for at, n, what in said if what == "states"] == [(row[0], row[1]) for row in rows]
    assert [(at, n) for at, n, what in said if what == "classes"] == [(row[0], row[2]) for row in rows]
    assert totals_over_time([untimed]) == ()


def test_the_course_of_random_units_ends_with_all_states() -> None:
    rng = random.Random(1)
    units = []
    for number in range(500):
        begin = rng.uniform(0, 50)
        counts = sorted(rng.randrange(1000) for _ in range(32))
        samples = tuple((begin + 0.1 * at, n, n // 2) for at, n in enumerate(counts))
        units.append(unit(number, begin, begin + 5, states=1000, classes=500, samples=samples))
    found = totals_over_time(units)
    assert len(found) <= POINTS + 2
    assert found[-1][1:] == (500_000, 250_000)
    for at, states, classes in found:
        known = [[n for when, *n in (*u.span.samples, (u.span.end, 1000, 500)) if when <= at] for u in units if u.span]
        assert (states, classes) == tuple(sum(one[-1][k] for one in known if one) for k in (0, 1))


def test_thousands_of_units_are_drawn_by_worker_and_none_is_lost() -> None:
    rng = random.Random(2)
    units, clocks = [], [0.0] * 40
    for number in range(9000):
        worker = rng.randrange(40)
        begin = clocks[worker]
        clocks[worker] = begin + rng.choice((0.01, 0.02, 3.0))
        units.append(unit(number, begin, clocks[worker], worker))
    html = render("search", "units_section", searched(*units))
    bars = drawn(html)
    counted = sum(int(found[1]) if (found := re.match(r"(\d+) units, ", words)) else 1 for _, _, words in bars)
    left = re.search(r"8 more workers with ([\d,]+) units not drawn", html)
    assert left is not None
    assert counted + int(left[1].replace(",", "")) == len(units)
    assert html.count(">worker ") == 32
    assert "7,000 more units are not listed" in html
    assert len(html) < 2_000_000


def test_a_run_of_an_earlier_version_says_what_was_not_recorded(small: Path, tmp_path: Path) -> None:
    report = read_report(edited(small, tmp_path / "old", lambda entry: entry.pop("times")))
    assert report.broken == ()
    assert report.search is not None
    assert report.search.course == ()
    assert all(one.span is None for one in report.search.units)
    made = page(report)
    assert "When they began was not recorded" in made
    assert "States visited and classes" not in made
    assert "seconds of searching" not in report_text(report)


def test_of_a_run_that_a_later_version_resumed_both_kinds_are_listed() -> None:
    old = replace(unit(0, 0.0, 1.0), span=None)
    html = render("search", "units_section", searched(old, unit(1, 0.0, 2.0)))
    assert "1 unit whose times were not recorded" in html
    assert len(drawn(html)) == 1
    assert [row[3:6] for row in cells(html)[1:]] == [["-", "-", "-"], ["0", "0.00", "2.00"]]


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"begin": -1.0, "end": 1.0, "worker": 0}, ">= 0"),
        ({"begin": 0.0, "end": 1e300, "worker": 0}, "<= 1000000000"),
        ({"begin": 0.0, "end": float("nan"), "worker": 0}, "NaN"),
        ({"begin": 0.0, "end": float("inf"), "worker": 0}, "Infinity"),
        ({"begin": 0.0, "end": "late", "worker": 0}, "got `str`"),
        ({"begin": 0.0, "end": 1.0, "worker": 0, "samples": [[0.5, 1, 0]] * 10**5}, "length <= 32"),
        ({"begin": 0.0, "end": 1.0, "worker": 0, "samples": [[0.5, 1, 0]] * 10**6}, "expected at most 33554432 bytes"),
        ({"begin": 2.0, "end": 1.0, "worker": 0}, "one behind another"),
        ({"begin": 0.0, "end": 1.0, "worker": 0, "samples": [[3.0, 0, 0]]}, "one behind another"),
        ({"begin": 0.0, "end": 1.0, "worker": 0, "samples": [[0.5, 10**30, 0]]}, "expected states that grow"),
        ({"begin": 0.0, "end": 1.0, "worker": 0, "samples": [[0.5, 0, 10**30]]}, "expected classes that grow"),
        ([], "got `array`"),
    ],
)  # fmt: skip
def test_times_that_cannot_be_are_named_and_left_out(small: Path, tmp_path: Path, times: Any, said: str) -> None:
    report = read_report(edited(small, tmp_path / "copy", lambda entry: entry.update(times=times)))
    assert any(fault.file == "search.jsonl" and said in fault.what for fault in report.broken), report.broken
    assert report.search is not None
    assert report.search.course == ()
    harmless(page(report))
    assert json.dumps(report_values(report), allow_nan=False)


def test_what_is_just_allowed_is_drawn(small: Path, tmp_path: Path) -> None:
    def change(entry: dict[str, Any]) -> None:
        entry["times"] = {"begin": 0.0, "end": 5e-324, "worker": 10**100, "samples": []}
        entry["stats"]["states"] = 10**100
        entry["milliseconds"] = 5e-324

    report = read_report(edited(small, tmp_path / "copy", change))
    assert report.search is not None
    assert all(one.span is not None for one in report.search.units)
    made = page(report)
    harmless(made)
    assert "nan" not in Elements(made).text.lower().split()
    old = edited(small, tmp_path / "old", lambda entry: entry.update(times=None, milliseconds=5e-324))
    harmless(page(read_report(old)))
