"""What is no evidence and is shown nevertheless: Triton files and times of peers beside a run, figures of reproduce."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.gpu_table import PEERS
from mirage_formal.cli.app import app
from mirage_formal.kernel_build.triton.triton_output import default_triton_directory, write_run
from mirage_formal.report.drawing.levels import all_nodes, levels
from mirage_formal.report.model import ReportedCandidate, report_values
from mirage_formal.report.page.html import page, render
from mirage_formal.report.reading import ReadLimits, read_report
from mirage_formal.report.reading.adjacent_files import BENCH_FILE, triton_directory
from mirage_formal.report.sentences import baseline_rows
from mirage_formal.report.text_report import report_text
from mirage_formal.support.errors import MirageError
from tests.kit.reports import bench, write_figures
from tests.report.test_hostile import Elements, harmless


@pytest.fixture
def run(small: Path, tmp_path: Path) -> Path:
    shutil.copytree(small, tmp_path / "attn-b1")
    return tmp_path / "attn-b1"


def best(run: Path) -> ReportedCandidate:
    report = read_report(run)
    assert report.broken == ()
    assert report.best is not None
    return report.best


# --- Triton ---------------------------------------------------------------------------------------------------------


def test_triton_is_shown_beside_cuda(run: Path) -> None:
    assert triton_directory(run) == default_triton_directory(run)
    assert best(run).triton is None
    ((name, said), *_) = write_run(run, 1)
    assert said.startswith("built")
    found = best(run).triton
    assert found is not None
    assert (found.name, found.text) == (
        f"attn-b1-triton/{name}.py",
        (default_triton_directory(run) / f"{name}.py").read_text(),
    )
    made = page(read_report(run))
    harmless(made)
    text = Elements(made).text
    assert "It is not proved, and no manifest lists it." in text
    assert "tl.store" in text
    assert '<span class="t-k">def</span>' in made


def test_its_lines_are_linked_to_nodes_that_are_drawn(run: Path) -> None:
    write_run(run, 1)
    one = best(run)
    assert one.triton is not None
    drawn = one.triton.form or one.graph
    assert drawn is not None
    names = {node.id: node.label for node in all_nodes(levels(drawn))}
    rows = one.triton.text.split("\n")
    assert len(one.triton.lines) > 5
    for piece in one.triton.lines:
        assert all(names[node] == label for node, label in piece.parts)
        if "exp" in dict(piece.parts).values() and piece.does == "computes":
            assert "tl.exp(" in "".join(rows[piece.first - 1 : piece.last])
    html = render("code", "triton_section", one.triton, one.code)
    beside = re.findall(r'<span class="of">(.*?)</span><span class="l part[^"]*" data-line="(\d+)">', html)
    assert [int(line) for _, line in beside] == [piece.first for piece in one.triton.lines]
    for piece, (shown, _) in zip(one.triton.lines, beside, strict=True):
        goals = re.findall(r'data-goto="(\w+):(.*?)"', shown)
        assert [node for _, node in goals] == [node for node, _ in piece.parts]
        assert {graph for graph, _ in goals} == {where(one)}
    assert where(one) == "candidate" or f'data-graph="{where(one)}"' in str(
        render("candidate", "candidate_section", one, None)
    )
    values = report_values(read_report(run))["candidates"][0]["triton"]
    assert [row["first"] for row in values["lines"]] == [piece.first for piece in one.triton.lines]


def test_no_solver_is_loaded_for_it(run: Path) -> None:
    write_run(run, 1)
    code = (
        "import sys; from pathlib import Path; from mirage_formal.report.reading import read_report\n"
        f"assert read_report(Path({str(run)!r})).candidates[0].triton.lines\n"
        "print(sorted({'z3', 'cvc5', 'torch', 'triton', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def where(one: ReportedCandidate) -> str:
    """The drawing of the graph that a Triton file's lines lead to."""
    assert one.triton is not None
    if one.triton.form is None:
        return "candidate"
    return "form" if one.code is not None and one.code.form == one.triton.form else "triton"


def test_its_form_is_drawn_where_no_kernels_are_built(run: Path) -> None:
    shutil.rmtree(run / "kernels")
    write_run(run, 1)
    one = best(run)
    assert one.code is None
    assert one.triton is not None
    assert one.triton.form is not None  # of attention, with running maxima
    assert where(one) == "triton"
    assert 'data-graph="triton"' in render("candidate", "candidate_section", one, None)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("tl.exp(", "tl.exp2(", 1),
        lambda text: text + "\n",
        lambda text: "",
        lambda text: text.replace('"""', '"""more ', 1).replace("tl.store", "tl.load"),
    ],
)
def test_nothing_is_said_about_the_lines_of_another_text(run: Path, change: Any) -> None:
    ((name, _), *_) = write_run(run, 1)
    path = default_triton_directory(run) / f"{name}.py"
    path.write_text(change(path.read_text()))
    one = best(run)
    assert one.triton is not None
    assert (one.triton.lines, one.triton.form) == ((), None)
    harmless(page(read_report(run)))


def test_a_title_of_its_own_changes_nothing(run: Path) -> None:
    ((name, _), *_) = write_run(run, 1)
    before = best(run).triton
    path = default_triton_directory(run) / f"{name}.py"
    path.write_text(path.read_text().replace('"""001', '"""My own', 1))
    after = best(run).triton
    assert before is not None
    assert after is not None
    assert after.text != before.text
    assert after.lines == before.lines != ()


def test_lines_are_found_for_as_many_as_asked_for(run: Path) -> None:
    write_run(run, 2)
    first, second, *_ = read_report(run, shown=ReadLimits(proofs=1)).candidates
    assert first.triton is not None
    assert second.triton is not None
    assert first.triton.lines
    assert not second.triton.lines


@pytest.mark.parametrize("data", [b"\xff\xfe", b"# " + b"x" * (1 << 19)], ids=["no text", "too long"])
def test_what_cannot_be_shown_is_a_remark_and_no_fault(run: Path, data: bytes) -> None:
    default_triton_directory(run).mkdir()
    (default_triton_directory(run) / f"{Path(best(run).directory).name}.py").write_bytes(data)
    one = best(run)
    assert one.triton is None
    assert one.remarks[-1].endswith("cannot be shown")


def test_what_lies_elsewhere_is_not_read(run: Path) -> None:
    name = Path(best(run).directory).name
    (run.parent / "secret.py").write_text("SECRET = 1")
    default_triton_directory(run).mkdir()
    (default_triton_directory(run) / f"{name}.py").symlink_to(run.parent / "secret.py")
    assert "SECRET" not in page(read_report(run))


# --- peers ----------------------------------------------------------------------------------------------------------


def test_peers_are_shown_with_the_command_that_timed_them(run: Path) -> None:
    assert best(run).peers is None
    values = bench(
        run, Path(best(run).directory).name, ours=4.0, eager=8.0, compile=6.0, autotune=5.0, flash=4.4, read_plain=2.0
    )
    (run.parent / BENCH_FILE).write_text(json.dumps(values))
    peers = best(run).peers
    assert peers is not None
    assert [(name, us, ratio) for name, us, ratio, _ in baseline_rows(peers)] == [
        ("torch eager", "8.00", "2.00"),
        ("torch.compile, default mode", "6.00", "1.50"),
        ("torch.compile, max-autotune", "5.00", "1.25"),
        ("SDPA flash", "4.40", "1.10"),
        ("SDPA cuDNN", "-", "-"),
        ("reading the inputs alone", "2.00", "0.50"),
    ]
    assert len(PEERS) == 5
    for text in (Elements(page(read_report(run))).text, " ".join(report_text(read_report(run)).split())):
        assert "took 4.00 µs on H, as a record beside the run says (not checked)" in text
        assert "python -m benchmarks.gpu_bench runs" in text
        assert "not supported" in text
    assert report_values(read_report(run))["candidates"][0]["peers"]["ours"] == 4.0


def test_the_time_of_reading_alone_is_the_floor_of_the_roofline(run: Path) -> None:
    assert "reading alone" not in render("search", "roofline_section", read_report(run))
    values = bench(run, Path(best(run).directory).name, ours=4.0, read_plain=2.0)
    (run.parent / BENCH_FILE).write_text(json.dumps(values))
    report = read_report(run)
    assert report.floor is not None
    html = render("search", "roofline_section", report)
    assert "A kernel that only reads the inputs took 2 µs, as a record beside the run says (not checked)." in html
    least = max(report.floor.read_us, report.floor.compute_us)
    row = f"<td>reading alone</td><td>{report.floor.bytes:,}</td><td>2.00 (measured)</td><td>{2 / least:.2f}</td>"
    assert row in html
    assert "as long as reading alone took" in html


def test_times_of_other_runs_are_not_taken(run: Path) -> None:
    values = bench(run, Path(best(run).directory).name, ours=4.0, eager=8.0)
    values["rows"][0]["directory"] = values["rows"][0]["directory"].replace("attn-b1/", "attn-b8/")
    (run.parent / BENCH_FILE).write_text(json.dumps(values))
    assert best(run).peers is None


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(command="</script><script>alert(1)</script>\u202e" + "x" * 10_000),
        lambda values: values["rows"][0].update(ours="4"),
        lambda values: values["rows"][0].update(ours=0.0),
        lambda values: values["rows"][0].update(read_only=0.0),
        lambda values: values["rows"][0].update(read_only=-1.0),
        lambda values: values["rows"][0].update(read_only=1e-300),
        lambda values: values["rows"][0].update(read_only=1e300),
        lambda values: values["rows"][0].update(missing={"eager": "<img onerror=x>"}, eager=None),
        lambda values: values.update(rows=None),
        lambda values: values.clear(),
    ],
)
def test_a_record_beside_the_run_may_be_anything(run: Path, change: Any) -> None:
    values = bench(run, Path(best(run).directory).name, ours=4.0, eager=8.0)
    change(values)
    (run.parent / BENCH_FILE).write_text(json.dumps(values))
    report = read_report(run)
    assert report.broken == ()
    harmless(page(report))
    report_text(report)


# --- reproduce ------------------------------------------------------------------------------------------------------


@pytest.fixture
def reproduced(tmp_path: Path) -> Path:
    write_figures(tmp_path / "all" / "figures")
    return tmp_path / "all" / "figures"


def test_figures_of_reproduce_are_tables(reproduced: Path) -> None:
    report = read_report(reproduced)
    assert report.broken == ()
    assert report.kind == "reproduce"
    assert [len(one.rows) for one in report.tables] == [1, 2, 1, 1, 1, 1]
    seconds = report.tables[0]
    assert seconds.rows == (("7", "12.50", "> 12.50", "22"),)
    assert seconds.heads == ("operators, as the paper counts", "guided, s", "unpruned, s", "paper, 8 threads, s")
    made = page(report)
    harmless(made)
    text = Elements(made).text
    for said in ("no verdict rests on it", "20.5", "copies: 3", "the paper, Table 5", "Answers", "measured again"):
        assert said in text
    assert "The program cannot be read" not in text
    printed = report_text(report, 60)
    assert max(map(len, printed.splitlines())) <= 60
    assert "> 12.50" in printed
    assert report_values(report)["tables"][0]["rows"] == [["7", "12.50", "> 12.50", "22"]]


def test_a_file_that_is_none_is_named(reproduced: Path) -> None:
    (reproduced / "workloads.json").write_text("{}")
    report = read_report(reproduced)
    assert [fault.file for fault in report.broken] == ["workloads.json"]
    assert len(report.tables) == 6


def test_figures_are_not_checked_and_are_among_all_reports(reproduced: Path) -> None:
    with pytest.raises(MirageError, match="got figures"):
        read_report(reproduced, check=True)
    done = CliRunner().invoke(app, ["report", "--all", "--check", str(reproduced.parent)])
    assert done.exit_code == 0, done.output
    assert (reproduced.parent / "figures.html").is_file()
    assert "The paper's search statistics" in unescape((reproduced.parent / "index.html").read_text())
