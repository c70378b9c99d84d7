"""The pictures of the documents are what is drawn today, but for fonts: a mean difference of a few per cent."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.graph.canonical import digest
from mirage_formal.report.drawing.svg import graph_svg
from mirage_formal.report.model import Basis, ReportedCandidate, ReportModel
from mirage_formal.report.page.html import page
from mirage_formal.report.proofs.proof_replay import replay_and_explain
from tests.browser.conftest import Opened
from tests.kit.paths import REPOSITORY
from tests.kit.reports import example

PICTURES = REPOSITORY / "docs" / "pictures"
#: Mean difference of a channel, of 255.
TOLERANCE = 12.0
DIFFERENCE = """async ([a, b]) => {
  const pixels = async (data) => {
    const image = new Image();
    image.src = "data:image/png;base64," + data;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return [image.width, image.height, context.getImageData(0, 0, image.width, image.height).data];
  };
  const [[w, h, x], [v, g, y]] = [await pixels(a), await pixels(b)];
  if (w !== v || h !== g) return 255;
  let total = 0;
  for (let at = 0; at < x.length; at++) total += Math.abs(x[at] - y[at]);
  return total / x.length;
}"""


def shown(name: str = "attn") -> ReportModel:
    """A report of the best candidate of an example, the same on every machine."""
    found = example(name)
    proof = replay_and_explain(found.program, found.candidate, found.proof)
    best = ReportedCandidate(
        1, digest(found.candidate), "candidates/001", "equivalent", Basis.RECORDED, found.candidate,
        len(found.candidate.ops), 5.85 if name == "attn" else 0.0,
        proof=proof, steps=len(proof.parts[0].steps), lemmas=len(proof.parts[0].lemmas), proof_bytes=proof.bytes,
        conditions=proof.conditions,
    )  # fmt: skip
    about = ("run", name, f"examples/{name}.py", f"runs/{name}")
    return ReportModel(*about, found.program, (best,), when="today", version="0.1.0")


def compared(request: pytest.FixtureRequest, name: str, shot: bytes, browser: Any) -> None:
    kept = PICTURES / name
    if request.config.getoption("--update-golden"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(shot)
    blank = browser.new_page()
    blank.goto("about:blank")
    both = [base64.b64encode(data).decode() for data in (kept.read_bytes(), shot)]
    assert blank.evaluate(DIFFERENCE, both) <= TOLERANCE
    blank.close()


def test_the_picture_of_a_mugraph(
    request: pytest.FixtureRequest, browser: Any, opening: Callable[..., Opened], tmp_path: Path
) -> None:
    (tmp_path / "graph.svg").write_text(graph_svg(example("attn").candidate), encoding="utf-8")
    (tmp_path / "page.html").write_text(
        f"<!doctype html><html data-ready=1><body style='margin:0;background:#12161c'>"
        f"{graph_svg(example('attn').candidate)}</body></html>", encoding="utf-8"
    )  # fmt: skip
    opened = opening(tmp_path / "page.html", color_scheme="dark")
    compared(request, "mugraph.png", opened.page.locator("svg.mu").screenshot(), browser)


@pytest.mark.parametrize(("theme", "name"), [("light", "report.png"), ("dark", "report-dark.png")])
def test_the_picture_of_a_report(
    request: pytest.FixtureRequest, browser: Any, opening: Callable[..., Opened], tmp_path: Path, theme: str, name: str
) -> None:
    (tmp_path / "page.html").write_text(page(shown()), encoding="utf-8")
    opened = opening(tmp_path / "page.html", color_scheme=theme, viewport={"width": 1100, "height": 1500})
    compared(request, name, opened.page.screenshot(), browser)


def test_a_picture_of_something_else_differs(
    request: pytest.FixtureRequest, browser: Any, opening: Callable[..., Opened], tmp_path: Path
) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("pictures are being written")
    (tmp_path / "page.html").write_text(page(shown()), encoding="utf-8")
    opened = opening(tmp_path / "page.html", color_scheme="dark", viewport={"width": 1100, "height": 1500})
    with pytest.raises(AssertionError):
        compared(request, "report.png", opened.page.screenshot(), browser)
