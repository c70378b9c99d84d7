"""Reports in a browser: every page opens from a file, is quiet, and can be used by keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opened

Opening = Callable[..., Opened]
ALL = ("small", "gated", "layer", "verdicts", "forged", "figures", "beside", "two", "index")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_from_a_file_and_asks_for_nothing(
    pages: dict[str, Path], opening: Opening, name: str, scheme: str
) -> None:
    opened = opening(pages[name], color_scheme=scheme)
    assert opened.page.locator("h1").inner_text().strip()
    opened.quiet()


def ranks(page: Any) -> list[str]:
    rows = page.locator("#candidates-table tbody tr:visible")
    return [row.get_attribute("data-rank") for row in rows.all()]


def test_the_table_sorts_and_filters_by_keyboard_alone(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    before = ranks(page)
    page.keyboard.press("Tab")
    for _ in range(60):
        if page.evaluate("document.activeElement.id") == "filter":
            break
        page.keyboard.press("Tab")
    page.keyboard.type("equivalent 2")
    shown = ranks(page)
    assert set(shown) <= set(before)
    assert f"{len(shown)} of {len(before)} shown" in page.locator("#filters").inner_text()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    assert ranks(page) == before
    while page.evaluate("document.activeElement.textContent") != "rank":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert ranks(page) == before[::-1]
    assert page.locator("#candidates-table th[data-sort]").first.get_attribute("aria-sort") == "descending"
    opened.quiet()


def test_every_column_sorts_by_its_values(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["small"]).page
    for at in range(page.locator("#candidates-table th[data-sort]").count()):
        head = page.locator("#candidates-table th[data-sort]").nth(at)
        head.locator("button").click()
        cells = page.locator(f"#candidates-table tbody tr td:nth-child({at + 2})")
        values = [cell.get_attribute("data-v") for cell in cells.all()]
        if head.get_attribute("data-sort") == "number":
            numbers = [float(value) for value in values if value]
            assert numbers == sorted(numbers)
            assert values == [value for value in values if value] + [value for value in values if not value]


def test_another_candidate_opens_and_is_unpacked(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    page.locator("a.open").nth(2).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('article.candidate[data-rank="3"]')
    assert page.evaluate("document.activeElement.textContent").startswith("Candidate 3")
    assert page.locator("article.candidate svg.mu").count() >= 1
    page.locator("a.open").first.click()
    page.wait_for_selector('article.candidate[data-rank="1"]')
    opened.quiet()


def test_a_graph_opens_to_its_levels(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["gated"])
    page = opened.page
    threads = 0
    for rank in range(page.locator("a.open").count()):
        page.locator("a.open").nth(rank).click()
        page.wait_for_selector(f'article.candidate[data-rank="{rank + 1}"]')
        article = page.locator("article.candidate")
        if not article.locator("g.n-kernel").count():
            continue
        article.locator("g.n-kernel").first.click()
        assert article.locator("details.kernel[open] svg.mu").first.is_visible()
        inner = article.locator("details.kernel[open] g.n-thread")
        if inner.count():
            inner.first.focus()
            page.keyboard.press("Enter")
            assert article.locator("details.thread[open] svg.mu").first.is_visible()
            threads += 1
    assert threads
    opened.quiet()


def test_nodes_and_edges_are_read_by_keyboard(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["small"]).page
    page.locator("article.candidate svg.mu g.n").first.focus()
    about = page.locator("article.candidate output.about").first
    first = about.inner_text()
    assert "bytes" in first
    page.keyboard.press("End")
    assert "grid axis" in about.inner_text()
    page.keyboard.press("Home")
    assert about.inner_text() == first


def test_a_step_jumps_to_its_node_and_back(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    group = page.locator("article.candidate details.group").filter(has_text="candidate: exp").first
    group.locator("summary").click()
    group.locator('a.goto[data-goto^="candidate"]').first.click()
    node = page.evaluate("document.activeElement.dataset.node")
    assert node.startswith("op")
    assert page.locator(".here").count() == 1
    group.evaluate("one => { one.open = false }")
    page.locator("article.candidate button.to-proof").first.click()
    assert group.evaluate("one => one.open")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    opened.quiet()


@pytest.mark.parametrize("at", [0, -1], ids=["CUDA", "Triton"])
def test_a_line_of_code_jumps_to_its_node_and_back(pages: dict[str, Path], opening: Opening, at: int) -> None:
    opened = opening(pages["beside"])
    page = opened.page
    source = page.locator("article.candidate details.source").filter(has=page.locator(".code .of a")).nth(at)
    assert (".py" in source.locator("> summary").inner_text()) == (at == -1)
    source.locator("> summary").focus()
    page.keyboard.press("Enter")
    link = source.locator('.of a.goto:text-is("exp")').first
    wanted = link.get_attribute("data-goto").split(":")[1]
    link.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.node") == wanted
    assert page.locator(".here").count() == 1
    source.evaluate("one => { one.open = false }")
    page.locator("article.candidate button.to-code").nth(at).focus()
    page.keyboard.press("Enter")
    assert source.evaluate("one => one.open")
    assert page.evaluate("document.activeElement.dataset.goto").endswith(wanted)
    opened.quiet()


def test_charts_of_the_search_have_their_tables(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    for figure in page.locator("#search figure").all():
        behind = figure.locator("details")
        assert not behind.locator("table").is_visible()
        behind.locator("summary").focus()
        page.keyboard.press("Enter")
        assert behind.locator("table").is_visible()
    bars = page.locator("#search figure").first.locator("rect.bar title").all()
    rows = page.locator("#search figure").first.locator("tbody tr").all()
    assert len(bars) == len(rows) >= 1
    for bar, row in zip(bars, rows, strict=True):
        number, about, _, worker, began, ended = [cell.inner_text() for cell in row.locator("td").all()[:6]]
        assert bar.text_content().startswith(f"{number}: {about}: {began} s to {ended} s, worker {worker}, ")
    assert page.locator("#search polyline.curve").count() >= 1
    opened.quiet()


def test_a_part_leads_to_its_search_and_back(pages: dict[str, Path], opening: Opening) -> None:
    """Both lie in what is closed at first, and open."""
    opened = opening(pages["layer"])
    for link in ('#parts a[href^="#search-"]', '#search a[href^="#part-"]'):
        wanted = opened.page.locator(link).first.get_attribute("href")
        assert not opened.page.locator(wanted).is_visible()
        opened.page.locator(link).first.focus()
        opened.page.keyboard.press("Enter")
        opened.page.locator(wanted).wait_for(state="visible")
    opened.quiet()


def test_two_candidates_side_by_side_show_what_differs(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    for at in (0, 1):
        page.locator("#candidates-table input[type=checkbox]").nth(at).check()
    page.locator("#compare-button").click()
    page.wait_for_selector("#differences")
    assert page.locator("#differences .differs").count() >= 2
    assert page.locator("#compare .diff .add").count()
    assert page.locator("#compare .diff .del").count()
    assert page.locator("#compare article.candidate").count() == 2
    opened.quiet()


def test_slabs_move_with_block_and_iteration(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    page = opened.page
    page.locator("article.candidate details.kernel summary").first.click()
    slabs = page.locator("article.candidate .slabs").first
    said = slabs.locator(".said").inner_text()
    assert "reads" in said
    assert "writes" in said
    slabs.get_by_role("button", name="Next step").click()
    assert slabs.locator(".said").inner_text() != said
    slider = slabs.locator("input[type=range]").first
    slider.focus()
    page.keyboard.press("End")
    assert slabs.locator(".said").inner_text() != said
    opened.quiet()


def test_the_theme_changes(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["small"], color_scheme="light").page
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.locator("#theme").click()
    assert page.evaluate(colour) != light
    assert opening(pages["small"], color_scheme="dark").page.evaluate(colour) == page.evaluate(colour)


@pytest.mark.parametrize("name", ALL)
def test_a_narrow_screen_does_not_scroll_sideways(pages: dict[str, Path], opening: Opening, name: str) -> None:
    page = opening(pages[name], viewport={"width": 360, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_paper_has_no_controls(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["small"])
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#theme").is_visible()
    assert not opened.page.locator("#filters").is_visible()
    assert opened.page.locator("#candidates-table").is_visible()
    assert len(opened.page.pdf()) > 10_000


def test_without_scripts_it_is_a_document(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["small"], java_script_enabled=False).page
    assert page.locator("header math").first.is_visible()
    assert page.locator("#candidates-table tbody tr").count() > 1
    assert page.locator("article.candidate svg.mu").first.is_visible()
    assert not page.locator("#theme").is_visible()
    assert "Why it is equal" in page.locator("article.candidate").inner_text()


def test_hostile_evidence_runs_nothing(pages: dict[str, Path], opening: Opening) -> None:
    opened = opening(pages["forged"])
    assert opened.page.title() != "1"
    assert "do not hold" in opened.page.locator(".broken").inner_text()
    text = opened.page.locator("h1").inner_text()
    assert "<script>" in text
    assert "\u202e" not in text
    opened.quiet()


def test_the_policy_stops_a_script_that_is_put_in(pages: dict[str, Path], opening: Opening, tmp_path: Path) -> None:
    """Were something not escaped, the browser would still refuse it."""
    hurt = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    other = tmp_path / "hurt.html"
    other.write_text(pages["small"].read_text().replace("<main", f"{hurt}<main", 1))
    opened = opening(other)
    assert opened.page.title() != "owned"
    assert any("Content Security Policy" in text for text in opened.errors)


def test_the_index_leads_to_the_reports(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["index"]).page
    page.locator("table a").first.click()
    page.wait_for_selector("html[data-ready]")
    assert page.locator("#candidates-table").count() == 1
