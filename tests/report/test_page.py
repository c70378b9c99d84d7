"""The page without a browser: what is there without its script, tables behind charts, what is packed, other pages."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirage_formal.cli.app import app
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.graph.formats.json import to_json
from mirage_formal.report.model import ReportedVerdict, ReportModel
from mirage_formal.report.page.code import highlight
from mirage_formal.report.page.html import comparison_page, index, page
from mirage_formal.report.reading import read_report
from mirage_formal.run.verify.verdicts import compute_verdicts, write_verdicts
from mirage_formal.support.errors import MirageError
from tests.kit.paths import REPOSITORY
from tests.report.test_hostile import Elements, harmless

PROGRAM = """
import mirage_formal as mf
graph = mf.new_kernel_graph()
x = graph.new_input(dims=(4, 8), dtype=mf.float16)
graph.mark_output(graph.exp(x) / graph.reduction(graph.exp(x), 1))
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A refuted graph, a proved one, and one of another shape."""
    root = tmp_path_factory.mktemp("verdicts")
    (root / "program.py").write_text(PROGRAM)
    (program,) = load_programs(root / "program.py").values()
    other = PROGRAM.replace("graph.reduction(graph.exp(x), 1)", "graph.reduction(graph.exp(x), 0)")
    (root / "other.py").write_text(other)
    (wrong,) = load_programs(root / "other.py").values()
    (root / "right.py").write_text(
        PROGRAM.replace("graph.exp(x) / graph.reduction(graph.exp(x), 1)", "graph.softmax(x, 1)")
    )
    (right,) = load_programs(root / "right.py").values()
    with write_verdicts(root / "out", "softmax", program) as keep:
        for one in compute_verdicts(program, [wrong, right], "graphs"):
            keep(one)
    return root / "out"


def test_without_a_script_the_best_candidate_is_there(small: Path) -> None:
    made = page(read_report(small))
    plain = re.sub(r"<script.*?</script>", "", made, flags=re.DOTALL)
    found = Elements(plain)
    assert "<math>" in plain
    assert 'id="candidates-table"' in plain
    assert "Candidate 1 " in found.text
    assert "Why it is equal" in found.text
    assert "How it was made" in found.text
    assert plain.count('class="mu"') >= 3


def test_the_other_candidates_are_packed(small: Path) -> None:
    report = read_report(small)
    made = page(report)
    for one in report.candidates[1:]:
        (packed,) = re.findall(rf'id="packed-{one.rank}">([^<]*)<', made)
        fragment = zlib.decompress(base64.b64decode(packed), -15).decode()
        assert f"Candidate {one.rank} " in fragment
        assert one.digest[:12] in fragment


def test_every_chart_has_its_table(small: Path) -> None:
    made = page(read_report(small))
    figures = re.findall(r"<figure>.*?</figure>", made, flags=re.DOTALL)
    assert len(figures) >= 3
    for figure in figures:
        assert 'class="chart ' in figure
        assert "<table>" in figure
    assert made.count('class="chart ') == len(figures)


def test_the_table_has_what_the_run_has(small: Path) -> None:
    report = read_report(small)
    rows = re.findall(r'<tr data-rank="(\d+)" data-verdict="equivalent">(.*?)</tr>', page(report))
    assert [int(rank) for rank, _ in rows] == [one.rank for one in report.candidates]
    assert "3.00" in rows[0][1]
    assert "not checked here" in rows[0][1]


def test_code_is_highlighted_line_by_line() -> None:
    made = "\n".join(highlight('int x = 1; // <b>\n/* two\nlines */ "text" \nfor (;;) {}'))
    assert made.count("<span") == made.count("</span>")
    assert all(line.count("<span") == line.count("</span>") for line in made.split("\n"))
    assert "&lt;b&gt;" in made
    assert '<span class="t-k">for</span>' in made


def test_refuted_graphs_are_worked_examples(verdicts: Path) -> None:
    report = read_report(verdicts)
    assert report.broken == ()
    assert [one.verdict for one in report.judged] == ["different", "equivalent"]
    refuted, proved = report.judged
    assert refuted.example is not None
    assert refuted.example.expected != refuted.example.got
    assert proved.proof is not None
    made = page(report)
    harmless(made)
    text = Elements(made).text
    for said in (
        "Take these inputs",
        f"The program gives {refuted.example.expected:.9g}",
        "This graph gives",
        "Look at output 0[",
    ):
        assert said in text


def test_a_forged_proof_beside_verdicts_is_refused(verdicts: Path, tmp_path: Path) -> None:
    (verdicts / "1" / "proof.jsonl").rename(tmp_path / "kept")
    (verdicts / "1" / "proof.jsonl").write_text((tmp_path / "kept").read_text().replace('"exp"', '"sqrt"'))
    report = read_report(verdicts)
    assert any("refuses the proof" in fault.what for fault in report.broken)
    (tmp_path / "kept").replace(verdicts / "1" / "proof.jsonl")
    assert read_report(verdicts).broken == ()


def test_two_runs_are_compared(small: Path) -> None:
    report = read_report(small)
    other = replace(report, candidates=report.candidates[1:], place="elsewhere")
    made = comparison_page(report, other)
    harmless(made)
    text = Elements(made).text
    assert "Both are of the same program" in text
    assert "only in A" in text
    assert "in both" in text
    assert 'class="differs">elsewhere' in made


def test_an_index_has_a_card_for_each(small: Path) -> None:
    report = read_report(small)
    made = index("All", [(report, "one.html"), (replace(report, name="second"), "two.html")])
    assert made.count('class="card"') == 2
    assert 'href="two.html"' in made


def test_what_cannot_be_read_is_a_page_all_the_same() -> None:
    made = page(ReportModel("run", "nothing", "", "x", None, judged=(ReportedVerdict("0", "unknown", "why"),)))
    harmless(made)
    assert "The program cannot be read" in made


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["report", *arguments])
    text = done.output + (str(done.exception) if isinstance(done.exception, MirageError) else "")
    return (2 if isinstance(done.exception, MirageError) else done.exit_code), text


def test_the_command_writes_beside_the_run_and_never_into_it(small: Path, tmp_path: Path) -> None:
    code, text = run(str(small))
    assert code == 0, text
    assert small.with_name("small.html").read_text().startswith("<!doctype html>")
    assert run(str(small), "-o", str(small / "report.html"))[0] == 2
    assert not (small / "report.html").exists()
    assert run(str(small), "-o", str(tmp_path / "x.html"))[0] == 0
    assert run(str(small), str(small), "-o", str(tmp_path / "two.html"))[0] == 0
    assert run("--all", str(small.parent), "-o", str(tmp_path / "all.html"))[0] == 0
    assert (tmp_path / "small.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "b", "c"), "expected one or two runs"),
        (("--text", "--json", "a"), "expected a page, or --text, or --json"),
        (("--text", "a", "b"), "expected one run"),
        (("--all", "a", "b"), "expected one directory"),
        (("nowhere",), "no such directory"),
        (("--all", "nowhere"), "expected a directory of runs"),
        (("--proofs", "0", "a"), "expected a whole number from 1 up"),
        (("--check", "VERDICTS"), "to check, got verdicts"),
    ],
)
def test_bad_calls_are_told_what_was_expected(verdicts: Path, arguments: tuple[str, ...], said: str) -> None:
    code, text = run(*(str(verdicts) if one == "VERDICTS" else one for one in arguments))
    assert code == 2
    assert said in text, text


def test_evidence_that_does_not_hold_ends_with_one(small: Path, tmp_path: Path) -> None:
    import shutil

    root = tmp_path / "copy"
    shutil.copytree(small, root)
    (root / "search.jsonl").write_text("")
    code, text = run(str(root))
    assert code == 1
    assert "does not hold: search.jsonl" in text


def test_verify_writes_the_program_that_it_judged(verdicts: Path) -> None:
    (program,) = load_programs(verdicts.parent / "program.py").values()
    assert (verdicts / "program.json").read_text() == to_json(program)
    assert (REPOSITORY / "mirage_formal" / "report" / "page" / "assets" / "script.js").is_file()
