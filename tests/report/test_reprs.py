"""How values print: at most 200 characters in a REPL, at most 4 kB of text in a notebook, and never a proof's bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import mirage_formal as mf
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.notebook import MOST_TEXT, visible
from mirage_formal.report.pretty_printers import MOST
from mirage_formal.run.results.result import Result, Results
from mirage_formal.support.errors import RunError, UnsupportedError
from tests.kit.graphs.text_reader import from_text
from tests.kit.reports import NAMES, example, read_back
from tests.kit.runs import tampering


def program() -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    graph.mark_output(graph.exp(x))
    return graph


def large() -> KernelGraph:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), dtype=mf.float16)
    for _ in range(400):
        x = graph.exp(x)
    graph.mark_output(x)
    return graph.freeze()


def result(rank: int = 1, directory: Path = Path("x")) -> Result:
    found = example("attn")
    verdict = mf.Equivalent(found.proof, tuple(f"condition {n}" for n in range(90)), ("condition 3",))
    return Result(found.candidate, f"{rank:064x}", rank, verdict, 5.0, directory)


VALUES = [
    mf.new_kernel_graph(),
    program(),
    large(),
    *(example(name).candidate for name in NAMES),
    mf.Equivalent(b"p" * 9000, ("a: divisor nonzero",) * 500),
    mf.Equivalent(b""),
    mf.Probable(3, -64.5),
    mf.Probable(3, None, "r" * 5000),
    mf.Different(0, 0, tuple(range(200)), 1.0, 2.0),
    mf.Unknown("<script>" * 3000),
    result(),
    Results([]),
    Results(result(rank) for rank in range(1, 400)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_print_short(value: object) -> None:
    assert len(repr(value)) <= MOST
    assert "\n" not in repr(value)
    html = value._repr_html_()  # type: ignore[attr-defined]
    assert len(visible(html)) <= MOST_TEXT
    assert "<script" not in html


def test_proof_bytes_never_print() -> None:
    verdict = mf.Equivalent(b"SECRET" * 50, ("held",))
    shown = result()
    for value in (verdict, Results([shown]), shown):
        for text in (repr(value), str(value), getattr(value, "_repr_html_")()):  # noqa: B009 (put on when imported)
            assert "SECRET" not in text
            assert "steps" not in text


def test_a_graph_is_its_text() -> None:
    frozen = program().freeze()
    assert str(frozen) == to_text(frozen) == str(program())
    assert from_text(str(frozen)) == frozen
    assert repr(frozen) == "KernelGraph(1 input, 1 operator, 1 output)"
    assert repr(program()) == "Graph(1 input, 1 operator, 1 output)"
    assert str(mf.new_kernel_graph()) == "Graph(no output is marked)"


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_in_a_notebook_is_the_graph(name: str) -> None:
    graph = example(name).candidate
    assert read_back(graph._repr_svg_()) == graph  # type: ignore[attr-defined]


def test_a_list_of_results_is_a_list_and_a_table() -> None:
    found = Results([result(1), result(2), result(3)])
    assert isinstance(found, list)
    assert [one.rank for one in found] == [1, 2, 3]
    assert found[0] == result(1)
    assert isinstance(found[:2], Results)
    assert len(str(found).splitlines()) == 4
    assert found._repr_html_().count("<tr>") == 4


def test_verdicts_are_sentences() -> None:
    assert str(mf.Unknown("no proof")) == "Unknown: no proof"
    assert str(mf.Different(0, 1, (2, 3), 1.5, 2.5)) == "Different: output 1[2, 3] is 2.5, and should be 1.5."
    assert "the program does not need it" in str(mf.Equivalent(b"", ("a", "b"), ("b",)))


def test_a_result_is_explained_from_its_evidence(small: Path) -> None:
    (directory, *_) = sorted((small / "candidates").iterdir())
    one = result(directory=directory)
    text, latex, html = (one.explain(form) for form in ("text", "latex", "html"))
    assert "Steps" in text
    assert "Conditions" in text
    assert r"\[ " in latex
    assert "<math>" in html
    with pytest.raises(UnsupportedError, match="expected text, latex or html"):
        one.explain("pdf")


def test_changed_evidence_explains_nothing(small: Path, tmp_path: Path) -> None:
    root = tampering.copy(small, tmp_path / "copy")
    (directory, *_) = sorted((root / "candidates").iterdir())
    tampering.edit(directory / "proof" / "equivalence.json", lambda proof: {**proof, "steps": proof["steps"][:-1]})
    with pytest.raises(RunError, match="expected evidence that holds"):
        result(directory=directory).explain()
    with pytest.raises(RunError, match=r"expected run\.json"):
        result(directory=tmp_path / "gone").explain()


def test_show_writes_the_report_of_the_run(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    (directory, *_) = sorted((small / "candidates").iterdir())
    place = result(directory=directory).show(tmp_path / "page.html")
    assert place.read_text().startswith("<!doctype html>")
    assert opened == [place.as_uri()]
    assert 'id="candidates-table"' in place.read_text()
