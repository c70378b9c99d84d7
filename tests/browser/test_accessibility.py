"""axe-core finds nothing of any severity on any page, in both themes, and with a graph and a proof opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.report.page.html import page as page_of
from tests.browser.conftest import Opened
from tests.browser.test_pictures import shown
from tests.browser.test_report import ALL

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install '.[browser]'")


def violations(page: Any) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:140] for node in one['nodes'][:3]]}" for one in found]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation(
    pages: dict[str, Path], opening: Callable[..., Opened], name: str, scheme: str
) -> None:
    assert violations(opening(pages[name], color_scheme=scheme).page) == []


@pytest.mark.parametrize("name", ["unbuilt", "built", "listed"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nor_has_one_with_everything_opened(
    pages: dict[str, Path], opening: Callable[..., Opened], name: str, scheme: str
) -> None:
    """Of the same run before and after its kernels were built, and with their assembly."""
    page = opening(pages[name], color_scheme=scheme).page
    assert page.locator("article.candidate details.source").count() == {"unbuilt": 0, "built": 2, "listed": 4}[name]
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.locator(".stepper button").nth(1).click()
    page.locator(".stepper button").nth(1).click()
    assert violations(page) == []


def test_nor_has_one_with_two_candidates_side_by_side(pages: dict[str, Path], opening: Callable[..., Opened]) -> None:
    page = opening(pages["small"]).page
    for at in (0, 1):
        page.locator("#candidates-table input[type=checkbox]").nth(at).check()
    page.locator("#compare-button").click()
    page.wait_for_selector("#differences")
    assert violations(page) == []


def test_nor_has_one_with_many_conditions(opening: Callable[..., Opened], tmp_path: Path) -> None:
    report = shown()
    held = tuple(f"candidate, kernel operator {n}: divisor nonzero" for n in range(300))
    (tmp_path / "page.html").write_text(
        page_of(replace(report, candidates=(replace(report.candidates[0], conditions=held),)))
    )
    assert violations(opening(tmp_path / "page.html").page) == []


def test_every_chart_has_its_table(pages: dict[str, Path], opening: Callable[..., Opened]) -> None:
    page = opening(pages["small"]).page
    charts = page.locator("svg.chart")
    assert charts.count() >= 3
    for at in range(charts.count()):
        assert charts.nth(at).locator("xpath=ancestor::figure//table").count() == 1
