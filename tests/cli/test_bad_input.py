"""Every mistake of a user is one screen that says where, what was expected and got, and what to do; exit code 2."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage_formal.cli.search.search_main import search_main

GOOD = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16)
W = graph.new_input(dims=(8, 8), dtype=mf.float16)
Y = graph.exp(graph.matmul(X, W))
graph.mark_output(Y)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)


class Refusal:
    """Runs a search that must be refused, and gives what was said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, source: str | None = None) -> str:
        if source is not None:
            Path("bad.py").write_text(source)
        self._monkeypatch.setattr(sys, "argv", ["mirage_formal.search", *arguments])
        with pytest.raises(SystemExit) as ended:
            search_main()
        output, errors = self._capsys.readouterr()
        assert ended.value.code == 2
        assert output == ""
        assert errors.startswith("error: ")
        assert "Traceback" not in errors
        assert len(errors.splitlines()) <= 20
        assert max(len(line) for line in errors.splitlines()) <= 400
        assert "expected" in errors or "unknown" in errors or "differ" in errors
        assert "got" in errors or "has" in errors or "still runs" in errors
        assert "hint: " in errors
        return errors


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    return Refusal(monkeypatch, capsys)


def test_missing_file(refused: Refusal) -> None:
    assert "no_such.py: expected a Python file, got nothing there" in refused("no_such.py")


def test_a_directory(refused: Refusal) -> None:
    assert "got a directory" in refused(".")


def test_syntax_error(refused: Refusal) -> None:
    said = refused("bad.py", source="x = 1\ngraph = = 2\n")
    assert "bad.py:2: expected Python, got a syntax error" in said
    assert "\n    graph = = 2\n            ^\n" in said


def test_a_syntax_error_in_an_indented_line(refused: Refusal) -> None:
    assert "\n    y = (\n        ^\n" in refused("bad.py", source="def f():\n    y = (\n")


def test_a_misspelt_operator(refused: Refusal) -> None:
    source = GOOD.replace("graph.exp(", "graph.rmsnorm(")
    assert "'rmsnorm'\n  hint: did you mean rms_norm?" in refused("bad.py", source=source)


def test_a_file_that_does_not_end(refused: Refusal) -> None:
    """The time limit holds for the program's file too, also if it catches every error."""
    looping = "while True:\n    try:\n        while True: pass\n    except ValueError: pass\n"
    said = refused("bad.py", "--time-limit", "0.2", source=looping)
    assert "bad.py:3: expected the file to end within 0.2 s, it still runs" in said


def test_a_name_for_several_files(refused: Refusal) -> None:
    Path("other.py").write_text(GOOD)
    assert "--program: expected one file, got 2" in refused("good.py", "other.py", "--program", "graph")


def test_files_of_one_name(refused: Refusal) -> None:
    Path("below").mkdir()
    Path("below/good.py").write_text(GOOD)
    assert "expected another directory for each program, got runs/good twice" in refused("good.py", "below/good.py")


def test_every_file_is_read_before_a_search(refused: Refusal) -> None:
    assert "no_such.py: expected a Python file" in refused("good.py", "no_such.py")
    assert not Path("runs").exists()


def test_a_file_that_raises(refused: Refusal) -> None:
    said = refused("bad.py", source="def f():\n    return {}['key']\n\nf()\n")
    assert "bad.py:2: expected the file to run, got KeyError: 'key'" in said


def test_a_file_that_exits(refused: Refusal) -> None:
    assert "got an exit (3)" in refused("bad.py", source="import sys\nsys.exit(3)\n")


def test_no_graph(refused: Refusal) -> None:
    assert "bad.py: expected a kernel graph at module level, got none" in refused("bad.py", source="x = 1\n")


GUARDED = """
import mirage_formal as mf

if __name__ == "__main__":
    graph = mf.new_kernel_graph()
    X = graph.new_input(dims=(8, 8))
    graph.mark_output(graph.exp(X))
    best = graph.superoptimize(config="mlp")
"""
INSIDE = """
import mirage_formal as mf

def optimize():
    graph = mf.new_kernel_graph()
    X = graph.new_input(dims=(8, 8))
    graph.mark_output(graph.exp(X))
    return graph.superoptimize(config="mlp")

if __name__ == "__main__":
    optimize()
"""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (GUARDED, "got none: line 5 makes one, under the main guard"),
        (INSIDE, "got none: line 5 makes one, in the function optimize, which is called only under the main guard"),
        (INSIDE[: INSIDE.index("if __name__")], "in the function optimize, which is not called at module level"),
        (
            "import mirage_formal as mf\nmf.new_kernel_graph()\n",
            "line 2 makes one, which no name at module level holds",
        ),
    ],
)
def test_a_graph_that_a_search_does_not_come_to(refused: Refusal, source: str, text: str) -> None:
    said = refused("bad.py", source=source)
    assert text in said
    assert "make the graph at module level" in said
    assert "or run the file with python" in said


def test_no_output(refused: Refusal) -> None:
    source = "import mirage_formal as mf\ngraph = mf.new_kernel_graph()\nX = graph.new_input((8, 8))\n"
    said = refused("bad.py", source=source)
    assert "expected a graph with an output, got graph without one" in said
    assert "mark_output" in said


def test_no_such_program(refused: Refusal) -> None:
    assert "expected one of the programs graph, got 'grpah'" in refused("good.py", "--program", "grpah")


def test_shape_mismatch_names_the_users_line(refused: Refusal) -> None:
    said = refused("bad.py", source=GOOD.replace("W = graph.new_input(dims=(8, 8)", "W = graph.new_input(dims=(4, 8)"))
    assert "bad.py:7" in said
    assert "inner dimensions differ" in said
    assert "X[8,8]" in said.replace(" ", "")
    assert "W[4,8]" in said.replace(" ", "")


def test_unsupported_dtype(refused: Refusal) -> None:
    said = refused("bad.py", source=GOOD.replace("mf.float16", "'int7'", 1))
    assert "bad.py:5" in said
    assert "int7" in said
    assert "bfloat16" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--config", "atention"), ("atention", "attention", "tiny")),
        (("--config", "none.toml"), ("none.toml",)),
        (("--target", "h2000"), ("h2000", "h200")),
        (("--engine", "best"), ("engine", "guided", "best")),
        (("--oracle", "delphi"), ("oracle", "z3", "delphi")),
        (("--extents", "all"), ("extents", "free", "all")),
        (("--griddim", "3,1,1"), ("griddims", "axis x", "3")),
        (("--griddim", "4;1"), ("--griddim", "4;1")),
        (("--workers", "0"), ("workers", "0")),
        (("--max-block-ops", "0"), ("--max-block-ops", "0")),
        (("--seed", "-1"), ("seed", "-1")),
        (("--time-limit", "-5"), ("--time-limit", "-5")),
    ],
)
def test_bad_options(refused: Refusal, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    said = refused("good.py", *arguments)
    assert all(word in said for word in words)


def test_resume_without_a_run(refused: Refusal) -> None:
    assert "runs/good: expected a run to resume, got none" in refused("good.py", "--resume")


def test_resume_of_another_programs_run(
    refused: Refusal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = ("--engine", "tests.kit.runs.fake_engine:FakeEngine", "--config", "tiny", "--keep", "1", "--out", "run")
    monkeypatch.setattr(sys, "argv", ["mirage_formal.search", "good.py", *fake])
    with pytest.raises(SystemExit) as ended:
        search_main()
    assert ended.value.code == 0
    capsys.readouterr()
    said = refused("bad.py", *fake, "--resume", source=GOOD.replace("graph.exp", "graph.silu"))
    assert "run/run.json: expected the run that is being resumed, got another program" in said
    said = refused("good.py", *fake, "--resume", "--max-block-ops", "3")
    assert "another search space" in said


def test_output_into_a_foreign_directory(refused: Refusal) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("keep")
    assert "mine: expected a new directory or an earlier run, got other files" in refused("good.py", "--out", "mine")
