"""The page of a whole program: searches of its parts, and what was written and measured of its covers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from mirage_formal.kernel_build.triton.triton_output import default_triton_directory, write_run
from mirage_formal.report.model import ReportModel, report_values
from mirage_formal.report.page.html import page
from mirage_formal.report.reading import read_report
from mirage_formal.report.reading.adjacent_files import BENCH_FILE
from mirage_formal.report.text_report import report_text
from tests.kit.reports import bench
from tests.kit.runs import tampering
from tests.report.test_hostile import harmless


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return tampering.copy(whole, tmp_path / "layer-b1")


def read(path: Path) -> ReportModel:
    report = read_report(path)
    assert report.broken == ()
    return report


def rows(html: str, caption: str) -> list[list[str]]:
    """Cells of the table with this caption."""
    table = html[html.index(f"<caption>{caption}") :]
    body = re.search("<tbody>(.*?)</tbody>", table, re.DOTALL)
    assert body is not None
    return [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall("<tr>(.*?)</tr>", body[1])]


# --- searches of parts -----------------------------------------------------------------------------------------------


def test_every_search_of_a_part_is_there_with_its_counts(whole: Path) -> None:
    report = read(whole)
    manifest = json.loads((whole / "whole.json").read_text())["manifest"]
    listed = sorted(name for name in manifest if name.startswith("parts/"))
    assert [f"{one.run}/summary.json" for one in report.searches] == listed
    assert len(listed) > 2
    for one in report.searches:
        summary = json.loads((whole / one.run / "summary.json").read_text())
        assert (one.units_done, one.units) == (summary["units_done"], summary["units"])
        assert dict(one.search.stats)["states"] == summary["states"]
        assert dict(one.search.pruned) == summary["pruned"]
        assert one.search.wall_s == summary["wall_s"]
        assert (one.kept, one.search.found) == (len(summary["candidates"]), summary["found"])
        assert one.search.units
    assert report.search is not None
    assert dict(report.search.stats)["states"] == sum(dict(one.search.stats)["states"] for one in report.searches)
    levels = sum(count for *_, count in report.search.pruned_at)
    assert levels == sum(count for _, count in report.search.pruned) > 0


def test_searches_and_parts_of_the_best_cover_lead_to_each_other(whole: Path) -> None:
    report = read(whole)
    html = page(report)
    harmless(html)
    found = rows(html, "Searches for parts of the program")
    assert len(found) == len(report.searches) + 1
    for number, (one, cells) in enumerate(zip(report.searches, found, strict=False), 1):
        assert cells[0] == f'<a href="#search-{number}">{one.run}</a>'
        assert html.count(f'id="search-{number}"') == 1
        assert tuple(cells[4:7]) == one.counts
        if not one.part:
            assert cells[2] == "-"
            continue
        part = report.parts[one.part - 1]
        assert (part.run, part.operators) == (one.run, one.operators)
        assert cells[2] == f'<a href="#part-{one.part}">part {one.part}</a>'
        assert html.count(f'id="part-{one.part}"') == 1
    assert any(one.part for one in report.searches)
    assert any(not one.part for one in report.searches)
    parts = rows(html, "Parts, in the order")
    assert f'<a href="#search-{next(n for n, one in enumerate(report.searches, 1) if one.part)}">' in parts[0][-1]
    text = " ".join(report_text(report, 60).split())
    assert all(f"Search {one.run}: {one.counts[0]} units" in text for one in report.searches)
    values = report_values(report)["searches"]
    assert [one["run"] for one in values] == [one.run for one in report.searches]


def test_a_search_that_is_changed_or_gone_is_named(copied: Path) -> None:
    first, second, *_ = sorted((copied / "parts").iterdir())
    shutil.rmtree(first)
    (second / "search.jsonl").write_bytes(b"{}\n")
    report = read_report(copied)
    named = {fault.file for fault in report.broken}
    assert f"parts/{first.name}/summary.json" in named
    assert f"parts/{second.name}/search.jsonl" in named
    assert report.searches[0].run == f"parts/{second.name}"
    assert len(report.searches) == len(list((copied / "parts").iterdir()))
    harmless(page(report))


def test_a_path_that_leads_out_is_not_followed(copied: Path) -> None:
    path = copied / "whole.json"
    value = json.loads(path.read_text())
    value["manifest"]["../small/summary.json"] = "0" * 64
    path.write_text(json.dumps(value))
    report = read_report(copied)
    assert any("seal" in fault.what or ".." in fault.what for fault in report.broken)
    assert all(".." not in one.run for one in report.searches)


# --- covers ----------------------------------------------------------------------------------------------------------


def test_covers_have_their_triton_files_and_their_lines(copied: Path) -> None:
    assert all(one.triton is None for one in read(copied).candidates)
    built = [name for name, said in write_run(copied, 3) if said.startswith("built")]
    assert len(built) == 3
    report = read(copied)
    for one in report.candidates:
        assert one.triton is not None
        name = Path(one.directory).name
        assert (one.triton.name, name in built) == (f"layer-b1-triton/{name}.py", True)
        assert one.triton.text == (default_triton_directory(copied) / f"{name}.py").read_text()
        assert one.triton.lines
    html = page(report)
    harmless(html)
    assert f"layer-b1-triton/{built[0]}.py: " in html


def test_covers_have_the_times_of_their_peers(copied: Path) -> None:
    best = Path(read(copied).candidates[0].directory).name
    (copied.parent / BENCH_FILE).write_text(json.dumps(bench(copied, best, ours=4.0, eager=8.0, read_plain=2.0)))
    first, *others = read(copied).candidates
    assert first.peers is not None
    assert first.peers.ours == 4.0
    assert all(one.peers is None for one in others)
    html = page(read(copied))
    harmless(html)
    assert "took 4.00 µs on H, as a record beside the run says (not checked)" in html
