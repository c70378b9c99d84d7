"""axe-core on every page of the site, where `make docs` has built it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.paths import REPOSITORY

SITE = REPOSITORY / "build" / "docs" / "html"


def test_no_page_of_the_site_has_a_violation(browser: Any) -> None:
    if not (SITE / "index.html").is_file():
        pytest.skip("the site is not built: make docs OFFLINE=1")
    sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    found = []
    for path in sorted(SITE.rglob("*.html")):
        if not path.relative_to(SITE).parts[0].startswith("_"):
            page.goto(path.as_uri())
            broken = sync_playwright.Axe().run(page).response["violations"]
            found += [(path.name, one["id"], one["nodes"][0]["html"]) for one in broken]
    page.close()
    assert found == []
