"""The page of a running search in a browser: it follows the records, and says when nobody answers any more."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.report.reading.progress_reader import ProgressReader
from mirage_formal.report.watch_server import WatchServer

WIDTHS = (390, 768, 1280)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_follows_a_search(
    pages: dict[str, Path], browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    run = pages["small"].with_suffix("")
    shutil.copy(run / "run.json", tmp_path)
    first, *others = (run / "search.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "search.jsonl").write_bytes(first)
    errors: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.on("pageerror", lambda one: errors.append(str(one)))
    page.on("console", lambda one: errors.append(one.text) if one.type in ("error", "warning") else None)
    with WatchServer("Progress in small", ProgressReader(tmp_path).read) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            page.goto(server.address)
            page.locator("tbody tr").first.wait_for()
            cells = page.locator("tbody tr").first.locator("td")
            assert cells.nth(2).inner_text() == "not running"
            assert cells.nth(3).inner_text() == "1"
            with (tmp_path / "search.jsonl").open("ab") as file:
                file.write(b"".join(others))
            page.locator("tbody tr td:nth-child(4)", has_text=str(len(others) + 1)).wait_for(timeout=8000)
            assert page.locator("caption", has_text="Pareto front").count() == 1
            assert page.locator("li", has_text="unit 2 done").count() == 1
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            sync_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")
            broken = sync_playwright.Axe().run(page).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in broken] == []
            assert errors == []
        finally:
            server.shutdown()
            thread.join()
    page.get_by_role("status").filter(has_text="mirage-formal watch has ended").wait_for(timeout=8000)
    assert page.locator("tbody tr").count() >= 1
    context.close()
