"""The command line on good input: tables, JSON, several programs, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirage_formal import records
from mirage_formal.cli import app as cli
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.cli.search.search_main import search_main
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

ONE = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16)
W = graph.new_input(dims=(8, 8), dtype=mf.float16)
graph.mark_output(graph.exp(graph.matmul(X, W)))
same = graph
unfinished = mf.new_kernel_graph()
if __name__ == "__main__":
    raise SystemExit("the main guard was open")
"""
OTHER = """
other = mf.new_kernel_graph()
Y = other.new_input(dims=(8, 8))
other.mark_output(other.exp(other.matmul(Y, Y)))
"""
TWO = ONE + OTHER

FAKE = ("--engine", "tests.kit.runs.fake_engine:FakeEngine", "--config", "tiny", "--keep", "3", "--workers", "2")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "two.py").write_text(TWO)


def search(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["mirage_formal.search", *arguments])
    with pytest.raises(SystemExit) as ended:
        search_main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_several_files_are_searched_one_after_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("again.py").write_text(ONE)
    assert search("one.py", "again.py", *FAKE, monkeypatch=monkeypatch) == 0
    assert sorted(str(path.parent) for path in Path("runs").rglob("run.json")) == ["runs/again", "runs/one"]
    capsys.readouterr()
    assert search("one.py", "again.py", *FAKE, "--out", "here", "--json", monkeypatch=monkeypatch) == 0
    answers = json.loads(capsys.readouterr().out)["result"]
    assert [one["summary"]["program"] for one in answers] == ["graph", "graph"]
    assert sorted(str(path.parent) for path in Path("here").rglob("run.json")) == ["here/again", "here/one"]


def test_a_search_prints_a_table_and_writes_its_evidence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search("one.py", *FAKE, "--progress", "json", monkeypatch=monkeypatch) == 0
    output, progress = capsys.readouterr()
    assert "graph: 3 of" in output
    assert "evidence in runs/one" in output
    assert "matmul; exp" in output
    assert "certifying" in progress
    assert "proving" in progress
    assert "equivalent" in output
    summary = records.open_sealed(Path("runs/one/summary.json").read_bytes(), records.SummaryRecord, "")
    assert all(item.id in output for item in summary.candidates)


def test_several_programs_get_a_directory_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search("two.py", *FAKE, "--program", "graph", monkeypatch=monkeypatch) == 0
    assert sorted(path.name for path in Path("runs/two").iterdir()) == ["graph"]
    assert search("two.py", *FAKE, "--program", "graph", "--out", "here", "--json", monkeypatch=monkeypatch) == 0
    assert Path("here/summary.json").is_file()
    capsys.readouterr()


def test_json_is_the_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert search("one.py", *FAKE, "--json", "--out", "a/b", monkeypatch=monkeypatch) == 0
    [shown] = json.loads(capsys.readouterr().out)["result"]
    assert shown["directory"] == "a/b"
    assert shown["summary"] == json.loads(Path("a/b/summary.json").read_bytes())


def test_a_failed_unit_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"P{os.getpid()}"
    Path("one.py").write_text(ONE.replace("X = ", f"{name} = X = "))
    arguments = ("one.py", "--engine", "tests.kit.runs.fake_engine:Poison", *FAKE[2:])
    assert search(*arguments, monkeypatch=monkeypatch) == 1
    assert "INCOMPLETE: 1 units" in capsys.readouterr().out


def test_a_cluster_is_an_option_for_all_programs_and_its_failures_count_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"C{os.getpid()}"
    second = "other = mf.new_kernel_graph()\nY = other.new_input(dims=(8, 8))\nZ = other.new_input(dims=(8, 8))\n"
    mark = "other.mark_output(other.exp(other.matmul(Y, Z)))\n"
    Path("two.py").write_text(ONE.replace("X = ", f"{name} = X = ") + second.replace("Y = ", f"{name}y = Y = ") + mark)
    arguments = ("two.py", "--engine", "tests.kit.runs.fake_engine:Poison", "--config", "tiny", "--keep", "3")
    assert search(*arguments, "--cluster", "local:2", monkeypatch=monkeypatch) == 1
    assert capsys.readouterr().out.count("INCOMPLETE: 1 units") == 2
    summaries = [
        records.open_sealed(path.read_bytes(), records.SummaryRecord, "") for path in Path("runs").rglob("summ*")
    ]
    assert [summary.workers for summary in summaries] == [2, 2]
    assert all(summary.candidates for summary in summaries)


def test_the_policy_is_an_option_and_a_wrong_one_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search("one.py", *FAKE, "--accept", "probable", "--json", monkeypatch=monkeypatch) == 0
    [shown] = json.loads(capsys.readouterr().out)["result"]
    assert {item["verdict"] for item in shown["summary"]["candidates"]} == {"equivalent"}
    assert json.loads(Path("runs/one/run.json").read_bytes())["identity"]["accept"] == "probable"
    assert search("one.py", *FAKE, "--accept", "anything", monkeypatch=monkeypatch) == 2
    assert "expected one of equivalent, probable, got 'anything'" in capsys.readouterr().err


def test_only_finished_graphs_are_programs_and_each_once() -> None:
    assert list(load_programs(Path("one.py"))) == ["graph"]
    assert list(load_programs(Path("two.py"))) == ["graph", "other"]


def test_ctrl_c_ends_with_what_was_found_and_code_130(tmp_path: Path) -> None:
    name = f"S{os.getpid()}"
    Path("one.py").write_text(ONE.replace("X = ", f"{name} = ").replace("X, W", f"{name}, W"))
    command = [
        sys.executable,
        "-m",
        "mirage_formal.search",
        "one.py",
        "--engine",
        "tests.kit.runs.fake_engine:Slow",
        *FAKE[2:],
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
    ) as process:
        journaled = tmp_path / "runs" / "one" / "search.jsonl"
        end = time.monotonic() + HUNG_S
        while time.monotonic() < end and not (journaled.is_file() and journaled.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=HUNG_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "Interrupted; --resume continues" in output
    summary = records.open_sealed(Path("runs/one/summary.json").read_bytes(), records.SummaryRecord, "")
    assert (summary.status, summary.units_done) == ("interrupted", 2)
    assert summary.candidates


@pytest.mark.parametrize("module", ["mirage_formal", "mirage_formal.search"])
def test_help_names_every_option(module: str) -> None:
    arguments = ["search", "--help"] if module == "mirage_formal" else ["--help"]
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=HUNG_S, env=environment
    )
    assert done.returncode == 0
    options = (
        "program config target out workers engine oracle no-prune max-kernel-ops max-block-ops seed accept time-limit"
    )
    for option in f"{options} cluster worker-memory resume force json".split():
        assert f"--{option} " in done.stdout


def test_outputs_that_nobody_marks_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the results that nothing reads, and the search says which."""
    Path("one.py").write_text(ONE.replace("graph.mark_output(graph.exp(graph.matmul(X, W)))", "graph.exp(X @ W)"))
    assert search("one.py", *FAKE, monkeypatch=monkeypatch) == 0
    output, progress = capsys.readouterr()
    assert "graph: no output is marked; outputs are what nothing reads: exp(matmul(X,W))[8,8]" in progress
    assert "graph: 3 of" in output


LAWS = """
(assert (! (forall ((x Expr) (y Expr)) (! (= (exp (add x y)) (mul (exp x) (exp y))) :qid law)) :named law))
(assert (! (forall ((x Expr)) (! (= (sqrt (mul x x)) x) :qid asked)) :named asked))
"""
SMALL = """
import mirage_formal as mf

small = mf.new_kernel_graph()
x, y = (small.new_input(dims=(4, 4), dtype=mf.float16) for _ in "xy")
small.mark_output(small.mul(small.exp(x), small.exp(y)))
"""


def axioms(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["mirage-formal", "axioms", *arguments])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def test_axioms_are_listed_with_place_and_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("laws.smt2").write_text(LAWS)
    arguments = ("--axioms", "laws.smt2", "--without-axiom", "sub-exp", "--json")
    assert axioms(*arguments, monkeypatch=monkeypatch) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    found = {one["name"]: one for one in result["axioms"]}
    assert found["law"]["use"] == "law"
    assert found["law"]["where"] == "laws.smt2:2"
    assert found["asked"]["use"] == "models and z3"
    assert found["sub-exp"]["use"] == "off"
    assert found["mul-comm"]["use"] == "normal form"
    line = int(found["mul-comm"]["where"].rpartition(":")[2])
    text = (REPOSITORY / "axioms" / "equivalence.smt2").read_text().splitlines()
    assert "mul-comm" in "".join(text[line - 1 : line + 2])
    assert "no model proves" in result["remark"]
    assert result["effects"] == {}


def test_effects_of_axioms_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("laws.smt2").write_text(LAWS.split("\n")[1])
    Path("small.py").write_text(SMALL)
    monkeypatch.setenv("COLUMNS", "120")
    assert axioms("small.py", "--axioms", "laws.smt2", "--json", monkeypatch=monkeypatch) == 0
    rows = json.loads(capsys.readouterr().out)["result"]["effects"]["small"]
    assert [(row["engine"], row["axioms"]) for row in rows] == [
        (engine, axioms) for engine in ("guided", "exhaustive") for axioms in ("usual", "chosen")
    ]
    for usual, chosen in (rows[:2], rows[2:]):
        assert usual["candidates"] < chosen["candidates"]
        assert usual["states"] < chosen["states"]
        assert usual["pruned"] != chosen["pruned"]
    assert axioms("small.py", "--without-axiom", "sub-exp", monkeypatch=monkeypatch) == 0
    output = capsys.readouterr().out
    assert "guided, chosen axioms" in output
    assert "candidates" in output


@pytest.mark.parametrize("command", [("axioms",), ("search", "one.py")])
def test_a_malformed_axiom_is_refused_with_file_and_line(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.smt2").write_text(f"; a comment\n{LAWS}".replace("sqrt", "root"))
    monkeypatch.setattr(sys, "argv", ["mirage-formal", *command, "--axioms", "bad.smt2"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "bad.smt2:4: axiom asked: expected declared symbols and bound variables, got (root (mul x x)): " in said
    assert "hint: functions are " in said
