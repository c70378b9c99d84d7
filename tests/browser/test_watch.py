"""The page of a running search in a browser: it follows the records, and says when nobody answers any more."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from mirage_formal.report.reading.progress_reader import ProgressReader
from mirage_formal.report.watch_server import WatchServer
from tests.browser.conftest import COMMAND

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


#: Five units, in some seconds of searching.
PROGRAM = """
import mirage_formal as mf
graph = mf.new_kernel_graph()
q, k, v = (graph.new_input(dims=dims, dtype=mf.float16) for dims in ((2, 16, 64), (2, 64, 256), (2, 256, 64)))
e = graph.exp(graph.matmul(q, k))
graph.mark_output(graph.matmul(e / graph.reduction(e, 2), v))
"""
#: Keep what the page shows of the first record: its state, finished units, candidates, least estimate, Pareto front.
OBSERVE = """() => {
  window.kept = [];
  const look = () => {
    const cells = [...document.querySelectorAll("tbody tr:first-child td")].map((one) => one.textContent);
    const front = [...document.querySelectorAll("caption")].find((one) => one.textContent.startsWith("Pareto front"));
    const rows = front ? [...front.closest("table").tBodies[0].rows].map((row) => row.textContent) : [];
    const now = JSON.stringify([cells[2], cells[3], cells[7], cells[8], cells[9], rows]);
    if (cells.length > 9 && window.kept.at(-1) !== now) window.kept.push(now);
  };
  look();
  new MutationObserver(look).observe(document.querySelector("#progress"), { childList: true, subtree: true });
}"""


def test_one_search_is_followed_from_its_start_to_its_end(browser: Any, tmp_path: Path) -> None:
    """The commands themselves: units, candidates, best estimate and Pareto front grow, and end as the summary says."""
    (tmp_path / "program.py").write_text(PROGRAM)
    run = tmp_path / "run"
    options = ("--out", str(run), "--keep", "2", "--workers", "1", "--no-cache")
    search = subprocess.Popen([*COMMAND, "search", str(tmp_path / "program.py"), *options], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (run / "run.json").is_file():
        assert search.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    search.send_signal(signal.SIGSTOP)  # until the page is there, so that it sees the first unit
    watch = subprocess.Popen([*COMMAND, "watch", str(run)], stdout=subprocess.PIPE, text=True)
    page = browser.new_page()
    assert watch.stdout is not None
    try:
        address = watch.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        for wrong in (address.partition("?")[0], address[:-1], address.replace("?token", "progress.json?other")):
            with pytest.raises(HTTPError, match="403"):
                urlopen(wrong)
        page.goto(address)
        page.locator("tbody tr").first.wait_for()
        page.evaluate(OBSERVE)
        search.send_signal(signal.SIGCONT)
        page.locator("tbody td:nth-child(3)", has_text="complete").wait_for(timeout=300_000)
        assert search.wait(60) == 0
        seen = [json.loads(one) for one in page.evaluate("window.kept")]
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    finally:
        for process in (search, watch):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(30)
        page.close()
        watch.stdout.close()
    summary = json.loads((run / "summary.json").read_text())
    done = [int(one[1].partition(" of ")[0]) for one in seen]
    found = [int(one[2].replace(",", "")) for one in seen]
    assert {one[0] for one in seen} == {"running", "complete"}
    assert done == sorted(done)
    assert (seen[0][1:], done[-1]) == (["0", "0", "-", "-", []], summary["units"])
    assert any(done[0] < one < done[-1] for one in done)
    assert found == sorted(found)
    assert len(set(found)) >= 2
    estimates = [item["estimated_us"] for item in summary["candidates"]]
    assert seen[-1][3:5] == [str(len(estimates)), f"{min(estimates):.2f}"]
    (best, *_) = sorted((item["kernels"], item["estimated_us"], item["id"]) for item in summary["candidates"])
    assert seen[-1][5][0] == f"{best[0]}{best[1]:.2f}{best[2]}"
