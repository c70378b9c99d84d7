"""Large reports: five hundred candidates, and a model of five hundred operators. Times are printed, not asserted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mirage_formal as mf
from mirage_formal.report.model import ReportModel
from mirage_formal.report.page.html import page
from mirage_formal.report.reading import read_report
from tests.browser.conftest import Opened
from tests.kit.runs import small_runs

PAINT = "performance.getEntriesByType('paint').find(one => one.name === 'first-contentful-paint').startTime"
READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def test_five_hundred_candidates_fit_in_fifteen_megabytes(tmp_path: Path, opening: Callable[..., Opened]) -> None:
    """Candidates of a small run, each many times: each is packed by itself, so copies save nothing."""
    small_runs.make(tmp_path / "small", kernels=1)
    report = read_report(tmp_path / "small")
    many = tuple(replace(report.candidates[n % len(report.candidates)], rank=n + 1) for n in range(500))
    made = page(replace(report, candidates=many))
    assert len(made.encode()) <= 15_000_000
    (tmp_path / "many.html").write_text(made, encoding="utf-8")
    opened = opening(tmp_path / "many.html")
    opened.page.locator("a.open").nth(499).click()
    opened.page.wait_for_selector('article.candidate[data-rank="500"]')
    print(f"\n500 candidates: {len(made) / 1e6:.1f} MB, paint {opened.page.evaluate(PAINT):.0f} ms, "
          f"ready {opened.page.evaluate(READY):.0f} ms")  # fmt: skip
    opened.quiet()


def test_a_model_of_five_hundred_operators_is_drawn(tmp_path: Path, opening: Callable[..., Opened]) -> None:
    graph, rng = mf.new_kernel_graph(), random.Random(1)
    tensors = [graph.new_input(dims=(64, 64), dtype=mf.float16) for _ in range(8)]
    for _ in range(500):
        other = rng.choice(tensors[-12:])
        tensors.append(rng.choice((graph.matmul, graph.add, graph.mul))(tensors[-1], other))
    graph.mark_output(tensors[-1])
    made = page(ReportModel("run", "model", "", "", graph.freeze()))
    (tmp_path / "model.html").write_text(made, encoding="utf-8")
    opened = opening(tmp_path / "model.html")
    assert opened.page.locator("svg.mu g.n").count() >= 501
    print(f"\n500 operators: {len(made) / 1e6:.1f} MB, paint {opened.page.evaluate(PAINT):.0f} ms, "
          f"ready {opened.page.evaluate(READY):.0f} ms")  # fmt: skip
    opened.quiet()
