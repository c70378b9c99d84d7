"""Every link and every copy button of whole pages, at three widths: with all that a report can show."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opened
from tests.browser.test_permalinks import KEPT, NO_CLIPBOARD, Opening, sized

__all__ = ["sized"]
#: Pages with links of every kind: of candidates, kernels, steps, nodes, lines, parts, searches and verdicts.
PAGES = ("listed", "layer", "verdicts", "beside")
#: Close everything but what the link of a number lies in; return what it leads to.
ALONE = """n => {
  for (const one of document.querySelectorAll("details")) one.open = false;
  for (const one of document.querySelectorAll(".here")) one.classList.remove("here");
  const link = document.querySelectorAll('main a[href^="#"]:not(.open), nav a')[n];
  for (let at = link; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const goto = link.dataset.goto;
  return [decodeURIComponent(link.getAttribute("href").slice(1)), goto ? goto.split(":")[1] : ""];
}"""
#: Whether a part of the page is what lies at its own upper left corner on the screen: visible, and under nothing else.
SEEN = """([name, node]) => {
  const cut = name.lastIndexOf("/"), within = document.getElementById(name.slice(0, cut));
  const last = (one) => (one.dataset.node || one.dataset.line) === name.slice(cut + 1);
  const found = node ? document.querySelector(`g.n.here[data-node="${node}"]`)
    : document.getElementById(name) || (within && [...within.querySelectorAll("g.n, .l")].find(last));
  if (!found) return false;
  const box = found.getBoundingClientRect();
  const [x, y] = [box.left + Math.min(8, box.width / 2), Math.max(box.top, 0) + Math.min(8, box.height / 2)];
  const hit = document.elementFromPoint(x, y);
  return Boolean(hit && box.height && box.top < innerHeight && (found.contains(hit) || hit.contains(found)));
}"""


@pytest.mark.parametrize("name", PAGES)
def test_each_link_leads_to_what_is_there_and_visible(pages: dict[str, Path], sized: Opening, name: str) -> None:
    opened = sized(pages[name])
    page = opened.page
    links = page.locator('main a[href^="#"]:not(.open), nav a')
    assert links.count() >= 4
    for number in range(links.count()):
        target = page.evaluate(ALONE, number)
        links.nth(number).click()
        try:
            page.wait_for_function(SEEN, arg=target, timeout=3000)
        except Exception:
            pytest.fail(f"link {number} to {target} leads to nothing that is visible")
    opened.quiet()


def test_each_candidate_of_the_table_is_opened_by_its_link(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(pages["listed"]).page
    links = page.locator("a.open")
    for number in reversed(range(links.count())):
        links.nth(number).click()
        name = links.nth(number).get_attribute("href")[1:]
        page.wait_for_selector(f'article.candidate[id="{name}"]')
        page.wait_for_function(SEEN, arg=[name, ""], timeout=3000)
        page.locator("nav .code-link").click()
        page.wait_for_function(SEEN, arg=[f"{name}/code", ""], timeout=3000)


def beside(button: Any) -> str:
    """The text that lies beside a copy button, read without the page's script."""
    before = button.evaluate(
        "one => (one.closest('.tools') || one).previousElementSibling?.matches('script[data-name], code[data-copy]')"
        " ? (one.closest('.tools') || one).previousElementSibling.outerHTML : ''"
    )
    if before.startswith("<script"):
        packed = before.partition(">")[2].partition("<")[0]
        return zlib.decompress(base64.b64decode(packed), -15).decode()
    if before:
        return str(button.evaluate("one => one.previousElementSibling.dataset.copy"))
    return str(button.evaluate("one => one.closest('.tools').nextElementSibling.textContent"))


@pytest.mark.parametrize("name", PAGES)
def test_each_copy_button_copies_the_text_beside_it(pages: dict[str, Path], sized: Opening, name: str) -> None:
    opened = sized(pages[name])
    page = opened.page
    page.evaluate(NO_CLIPBOARD)
    page.evaluate(KEPT)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    buttons = [one for one in page.locator("button").all() if one.inner_text().startswith("Copy")]
    assert len(buttons) == page.locator("code[data-copy], script[data-name], pre:not(.code)").count() >= 2
    for number, button in enumerate(buttons):
        button.click()
        page.wait_for_function("n => window.kept.length === n + 1", arg=number)
        assert page.evaluate("window.kept.at(-1)") == beside(button)
    opened.quiet()


def test_compare_and_estimates_are_seen_without_scrolling_a_table(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(pages["listed"]).page
    row = page.locator("#candidates-table tbody tr").first
    head = page.locator("#candidates-table th", has_text="est.")
    wide = page.evaluate("document.documentElement.clientWidth")
    estimate = row.locator("td").nth(head.evaluate("one => one.cellIndex"))
    assert float(estimate.inner_text()) > 0
    for shown in (row.locator("input[type=checkbox]"), head, estimate, page.locator("#compare-button")):
        box = shown.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= wide
    chart = page.locator("#candidates figure svg.chart").bounding_box()
    assert chart["x"] + chart["width"] <= wide
    sizes = page.evaluate(
        "[...document.querySelectorAll('#candidates svg.chart text')].map((one) => one.getBoundingClientRect().height)"
    )
    assert min(size for size in sizes if size) >= 9


@pytest.mark.parametrize("name", ["listed", "gated"])
def test_the_decisions_of_the_search_are_stepped_through(pages: dict[str, Path], sized: Opening, name: str) -> None:
    """Each step marks its node, which does not lie under the bar; the button keeps the focus."""
    opened = sized(pages[name])
    page = opened.page
    items = page.locator("article.candidate .decisions li").evaluate_all("all => all.map((one) => one.dataset.at)")
    assert len(items) >= 6
    following = page.locator(".stepper button").nth(1)
    following.focus()
    for number, node in enumerate(items, 1):
        page.keyboard.press("Enter")
        assert page.locator(".stepper").inner_text().endswith(f"{number} of {len(items)}")
        assert page.locator(".here").count() == (1 if node else 0)
        if node:
            page.wait_for_function(SEEN, arg=["", node], timeout=3000)
        assert page.locator(".decision").is_visible()
    assert following.is_disabled()
    page.locator(".stepper button").nth(0).click()
    assert f"{len(items) - 1} of" in page.locator(".stepper").inner_text()
    page.locator(".stepper button", has_text="Close").click()
    assert page.locator(".here").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    opened.quiet()


def test_a_line_of_a_source_marks_its_lines_of_assembly(pages: dict[str, Path], sized: Opening) -> None:
    opened = sized(pages["listed"])
    page = opened.page
    group = page.locator(".listings").filter(has=page.locator("[data-from]")).first
    group.evaluate("one => { for (const item of one.querySelectorAll('details.source')) item.open = true }")
    line = group.locator("[data-from].part").first
    line.click(position={"x": 4, "y": 4})
    wanted = line.get_attribute("data-from")
    source = group.locator("pre").first.locator(".l.same")
    assert [one.get_attribute("data-line") for one in source.all()] == [wanted]
    marked = group.locator("[data-from].same").evaluate_all("all => all.map((one) => one.dataset.from)")
    assert len(marked) >= 1
    assert set(marked) == {wanted}
    inside = source.evaluate(
        "one => { const [a, b] = [one, one.closest('pre')].map((item) => item.getBoundingClientRect());"
        " return a.top >= b.top && a.bottom <= b.bottom; }"
    )
    assert inside
    opened.quiet()


def test_what_maps_and_colours_mean_is_said(pages: dict[str, Path], opening: Callable[..., Opened]) -> None:
    """Every kind of node that is drawn, and every form of label on an edge, is in the legend of its drawing."""
    page = opening(pages["listed"]).page
    found = page.evaluate(
        """[...document.querySelectorAll(".graph")].map((graph) => [
          [...new Set([...graph.querySelectorAll("g.n")].map((one) => one.dataset.kind))],
          [...graph.querySelectorAll(":scope > .legend i")].map((one) => one.className.slice(2)),
          [...graph.querySelectorAll("g > text.m")].map((one) => one.textContent),
          [...graph.querySelectorAll(":scope > .legend dt")].map((one) => one.textContent)])"""
    )
    alike = {"iterator": "input", "saver": "output"}
    for drawn, told, _, _ in found:
        assert {alike.get(kind, kind) for kind in drawn} <= set(told)
    assert any("x→1" in told for _, _, labels, told in found if labels)
