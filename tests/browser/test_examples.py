"""Pages of every example's best candidate, of the decoder layer's parts among them, and of refuted pairs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_formal.graph.graph import GraphDefined
from mirage_formal.report.page.html import page
from mirage_formal.report.reading import read_report
from mirage_formal.run.verify.verdicts import compute_verdicts, write_verdicts
from tests.browser.conftest import Opened
from tests.browser.test_pictures import shown
from tests.kit.proofs.claims import load
from tests.kit.reports import NAMES, example

Opening = Callable[..., Opened]
#: A refuted pair of each file of the corpus.
REFUTED = {one.name.partition(".")[0]: one for one in reversed(load("refute"))}


@pytest.mark.parametrize("name", NAMES)
def test_an_example_opens_to_its_levels_and_its_proof(opening: Opening, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(page(shown(name)), encoding="utf-8")
    opened = opening(tmp_path / "page.html")
    article = opened.page.locator("article.candidate")
    kernels = [op for op in example(name).candidate.ops if isinstance(op, GraphDefined)]
    assert article.locator('.graph[data-graph="candidate"] > details.kernel').count() == len(kernels)
    article.locator("details.kernel > summary").first.click()
    assert article.locator("details.kernel svg.mu").first.is_visible()
    group = article.locator("details.group").first
    group.locator("> summary").click()
    group.locator("a.goto").first.click()
    assert opened.page.locator(".here").count() == 1
    opened.quiet()


@pytest.mark.parametrize("name", sorted(REFUTED))
def test_a_refuted_pair_is_a_worked_example(opening: Opening, tmp_path: Path, name: str) -> None:
    program, candidate = REFUTED[name].tiny()
    with write_verdicts(tmp_path / "verdicts", name, program) as keep:
        for one in compute_verdicts(program, [candidate], "graphs"):
            keep(one)
    report = read_report(tmp_path / "verdicts")
    (graph,) = report.judged
    assert graph.verdict == "different"
    assert graph.example is not None
    (tmp_path / "page.html").write_text(page(report), encoding="utf-8")
    opened = opening(tmp_path / "page.html")
    text = opened.page.locator("#why-not").text_content()
    for number in (graph.example.expected, graph.example.got):
        assert f"{number:.9g}" in text
    opened.quiet()
