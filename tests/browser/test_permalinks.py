"""Links to parts of a report, copies of its texts and files of it, at the widths of a phone, a tablet and a desk."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.graph.graph import GraphDefined
from mirage_formal.report.model import ReportedCandidate
from mirage_formal.report.reading import read_report
from tests.browser.conftest import Opened

Opening = Callable[..., Opened]
WIDTHS = (390, 768, 1280)


@pytest.fixture(params=WIDTHS, ids=str)
def sized(request: pytest.FixtureRequest, opening: Opening) -> Opening:
    """Opens a file at a width."""
    return lambda path, **options: opening(path, viewport={"width": request.param, "height": 800}, **options)


def linked(path: Path, name: str) -> Path:
    """A path whose address ends in the name of a part of the page."""

    class Linked(type(path)):  # type: ignore[misc]
        def resolve(self) -> Any:
            return self

        def as_uri(self) -> str:
            return f"{path.resolve().as_uri()}#{name}"

    return Linked(path)


def named(page: Any) -> str:
    return str(page.evaluate("decodeURIComponent(location.hash.slice(1))"))


def in_view(page: Any, selector: str) -> None:
    page.wait_for_function(
        "selector => { const box = document.querySelector(selector)?.getBoundingClientRect();"
        " return box && box.height && box.top < innerHeight && box.bottom > 0; }",
        arg=selector,
        timeout=5000,
    )


@pytest.fixture
def two(pages: dict[str, Path]) -> tuple[ReportedCandidate, ReportedCandidate]:
    """The best candidate of a run and its third one, which lies packed in the page."""
    found = read_report(pages["small"].with_suffix("")).candidates
    return found[0], found[2]


def test_a_candidate_is_linked_and_back_leads_back(
    pages: dict[str, Path], sized: Opening, two: tuple[ReportedCandidate, ReportedCandidate]
) -> None:
    names = [f"candidate-{one.digest[:12]}" for one in two]
    opened = sized(pages["small"])
    page = opened.page
    page.locator("a.open").nth(2).click()
    page.wait_for_selector(f"#{names[1]}")
    assert named(page) == names[1]
    page.locator("a.open").nth(0).click()
    page.wait_for_selector(f"#{names[0]}")
    assert named(page) == names[0]
    page.go_back()
    page.wait_for_selector(f"#{names[1]}")
    page.go_back()
    page.wait_for_selector(f"#{names[0]}")
    assert named(page) == ""
    page.go_forward()
    page.wait_for_selector(f"#{names[1]}")
    opened.quiet()


def test_the_last_candidate_that_was_asked_for_is_shown(
    pages: dict[str, Path], opening: Opening, two: tuple[ReportedCandidate, ReportedCandidate]
) -> None:
    """Unpacking takes a moment, in which the reader may go back."""
    page = opening(pages["small"]).page
    page.evaluate(
        "() => { document.querySelector('a.open[data-open=\"3\"]').click();"
        " document.querySelector('a.open[data-open=\"1\"]').click(); }"
    )
    page.wait_for_timeout(500)
    assert named(page) == f"candidate-{two[0].digest[:12]}"
    assert page.locator("article.candidate").get_attribute("data-rank") == "1"


def test_the_address_of_a_packed_candidate_opens_it(
    pages: dict[str, Path], sized: Opening, two: tuple[ReportedCandidate, ReportedCandidate]
) -> None:
    name = f"candidate-{two[1].digest[:12]}"
    opened = sized(linked(pages["small"], name))
    opened.page.wait_for_selector(f"#{name}")
    in_view(opened.page, f"#{name} h3")
    assert opened.page.locator("tr.current").get_attribute("data-rank") == "3"
    assert opened.page.evaluate("document.activeElement.tagName") == "H3"


def test_a_node_of_a_packed_candidate_is_linked(pages: dict[str, Path], sized: Opening) -> None:
    found = read_report(pages["small"].with_suffix("")).candidates[1:]
    fused = next(one for one in found if one.graph and any(isinstance(op, GraphDefined) for op in one.graph.ops))
    opened = sized(pages["small"])
    page = opened.page
    page.locator(f'a.open[data-open="{fused.rank}"]').click()
    page.wait_for_selector(f'article.candidate[data-rank="{fused.rank}"]')
    kernel = page.locator("article.candidate g.n-kernel").first
    kernel.focus()
    page.keyboard.press("Enter")
    node = kernel.get_attribute("data-node")
    assert named(page) == f"candidate-{fused.digest[:12]}/graph/{node}"
    inner = page.locator("article.candidate details.kernel[open] g.n").nth(1)
    inner.click()
    name, below = named(page), inner.get_attribute("data-node")
    assert name == f"candidate-{fused.digest[:12]}/graph/{below}"
    opened.quiet()
    fresh = sized(linked(pages["small"], name)).page
    fresh.wait_for_selector("g.n.here")
    assert fresh.locator(".here").count() == 1
    assert fresh.locator("g.n.here").get_attribute("data-node") == below
    assert fresh.evaluate("document.activeElement.dataset.node") == below
    in_view(fresh, "g.n.here")
    assert fresh.locator("article.candidate details.kernel[open]").count() == 1


def test_a_step_is_linked_and_opens(pages: dict[str, Path], sized: Opening) -> None:
    opened = sized(pages["small"])
    page = opened.page
    page.locator("a.open").nth(1).click()  # it is packed, so the browser itself does not find its steps
    page.wait_for_selector('article.candidate[data-rank="2"]')
    group = page.locator("article.candidate details.group").first
    group.locator("summary").click()
    link = group.locator("table.steps a[href^='#candidate-']").first
    wanted = link.get_attribute("href")
    link.click()
    page.wait_for_selector("tr.here")
    assert f"#{named(page)}" == wanted
    opened.quiet()
    fresh = sized(linked(pages["small"], wanted[1:])).page
    fresh.wait_for_selector("tr.here")
    assert f"#{fresh.locator('tr.here').get_attribute('id')}" == wanted
    in_view(fresh, "tr.here")


def test_a_kernel_its_text_and_its_line_are_linked(pages: dict[str, Path], sized: Opening) -> None:
    opened = sized(pages["small"])
    page = opened.page
    row = page.locator("article.candidate tr[id*='/kernel-']").first
    row.locator("td a[href*='/kernel-']").first.click()
    page.wait_for_selector("tr.here")
    assert named(page) == row.get_attribute("id")
    line = row.locator("td").last.locator("a")
    wanted = line.get_attribute("href")
    line.click()
    page.wait_for_selector(".l.here")
    assert page.locator(".l.here").get_attribute("data-line") == wanted.rsplit("/", 1)[1]
    source = page.locator("article.candidate details.source[open]")
    assert source.count() == 1
    page.go_back()
    page.wait_for_selector("tr.here")
    summary = source.locator("> summary")
    summary.click()  # closes it
    assert named(page) == row.get_attribute("id")
    page.locator("article.candidate details.source[id] > summary").first.click()
    assert named(page) == wanted[1:].rsplit("/", 1)[0]
    opened.quiet()
    for name, selector in ((row.get_attribute("id"), "tr.here"), (wanted[1:], ".l.here")):
        fresh = sized(linked(pages["small"], name)).page
        in_view(fresh, selector)


def test_parts_and_refuted_graphs_are_linked(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(linked(pages["layer"], "part-1/candidate/graph/op0")).page
    page.wait_for_selector("g.n.here")
    in_view(page, "g.n.here")
    page = sized(linked(pages["verdicts"], "graph-0")).page
    assert page.locator("#graph-0").evaluate("one => one.open")
    in_view(page, "#graph-0")


@pytest.mark.parametrize("name", ["candidate-000000000000", "nowhere", "%E0%A4%A", "candidate-0/graph/op0/x"])
def test_an_unknown_name_is_a_quiet_note(pages: dict[str, Path], sized: Opening, name: str) -> None:
    opened = sized(linked(pages["small"], name))
    page = opened.page
    note = page.get_by_role("status").filter(has_text="no part with the name")
    note.wait_for()
    assert page.locator('article.candidate[data-rank="1"]').count() == 1
    assert page.locator(".here").count() == 0
    assert opened.errors == []


def test_the_note_goes_away_in_time(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(linked(pages["small"], "nowhere")).page
    assert page.locator(".note").inner_text()
    page.locator(".note:empty").wait_for(state="attached", timeout=10_000)


NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined })"
KEPT = """(() => {
  window.kept = [];
  document.addEventListener("copy", () => window.kept.push(String(document.activeElement.value)));
})()"""


def test_every_copy_button_copies_without_a_clipboard(pages: dict[str, Path], sized: Opening) -> None:
    """The browser's older command copies, and a status says what was copied."""
    opened = sized(pages["small"])
    page = opened.page
    page.evaluate(NO_CLIPBOARD)
    page.evaluate(KEPT)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    buttons = page.locator("button.small", has_text=re.compile(r"^Copy"))
    assert buttons.count() >= 6
    for n in range(buttons.count()):
        buttons.nth(n).click()
        page.wait_for_function("n => window.kept.length === n + 1", arg=n)
        assert page.locator(".note").inner_text().startswith("Copied ")
        assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    kept = page.evaluate("window.kept")
    report = read_report(pages["small"].with_suffix(""))
    best = report.best
    assert best is not None
    assert best.code is not None
    assert best.digest in kept
    assert f"mirage-formal check {report.place}" in kept
    assert best.code.sources[0][1] in kept
    assert page.locator("textarea").count() == 0
    opened.quiet()


def test_a_clipboard_is_used_where_there_is_one(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(pages["small"]).page
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard',"
        " { value: { writeText: async (text) => { window.written = text; } } })"
    )
    code = page.locator("article.candidate h3 code")
    page.locator("article.candidate h3 button").click()
    page.wait_for_function("window.written")
    assert page.evaluate("window.written") == code.get_attribute("data-copy")
    assert code.inner_text() in page.locator(".note").inner_text()


def test_a_copy_that_is_refused_says_so(pages: dict[str, Path], sized: Opening) -> None:
    page = sized(pages["small"]).page
    page.evaluate(NO_CLIPBOARD)
    page.evaluate("document.execCommand = () => false")
    page.locator("article.candidate h3 button").click()
    page.locator(".note", has_text="does not allow copying").wait_for()


def test_files_are_made_from_the_page(pages: dict[str, Path], sized: Opening) -> None:
    opened = sized(pages["small"], accept_downloads=True)
    page, root = opened.page, pages["small"].with_suffix("")
    best = read_report(root).best
    assert best is not None
    assert best.code is not None
    page.evaluate("document.querySelectorAll('article.candidate details').forEach((one) => { one.open = true })")
    found = {}
    buttons = page.locator("article.candidate button.small", has_text=re.compile(r"^Download"))
    for n in range(buttons.count()):
        with page.expect_download() as waited:
            buttons.nth(n).click()
        found[waited.value.suggested_filename] = Path(waited.value.path()).read_bytes()
    name = best.digest[:12]
    place = root / best.directory
    assert found[f"{name}-equivalence.json"] == (place / "proof" / "equivalence.json").read_bytes()
    assert json.loads(found[f"{name}-mugraph.json"]) == json.loads((place / "mugraph.json").read_bytes())
    for source, text in best.code.sources:
        assert found[f"candidate-{name}-{source}"].decode() == text
    assert [one for one in opened.asked if not one.startswith("blob:")] == []
    assert opened.errors == []


def test_sliders_still_move_after_another_candidate_was_open(pages: dict[str, Path], opening: Opening) -> None:
    page = opening(pages["small"]).page
    for rank in (3, 1):
        page.locator(f'a.open[data-open="{rank}"]').click()
        page.wait_for_selector(f'article.candidate[data-rank="{rank}"]')
    page.locator("article.candidate details.kernel > summary").first.click()
    slabs = page.locator("article.candidate .slabs").first
    before = slabs.locator(".said").inner_text()
    slabs.get_by_role("button", name="Next step").click()
    assert slabs.locator(".said").inner_text() != before


@pytest.mark.parametrize("name", ["small", "layer", "verdicts"])
def test_nothing_makes_the_page_wider_than_the_screen(pages: dict[str, Path], sized: Opening, name: str) -> None:
    page = sized(pages[name]).page
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
