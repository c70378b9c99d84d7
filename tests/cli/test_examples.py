"""An introduction to ``mirage_formal/cli``: commands print for people, or one JSON object for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirage_formal.cli.app import app

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16)
W = graph.new_input(dims=(8, 8), dtype=mf.float16)
graph.mark_output(graph.exp(graph.matmul(X, W)))
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM, encoding="utf-8")


def test_show_prints_the_graph_of_a_file() -> None:
    done = CliRunner().invoke(app, ["show", "program.py"])
    assert done.exit_code == 0
    assert "d2 = matmul(d0, d1)" in done.output


def test_an_answer_for_programs_is_one_json_object() -> None:
    done = CliRunner().invoke(app, ["tools", "schema", "answer"])
    assert done.exit_code == 0
    assert "$defs" in json.loads(done.output)


def test_a_mistake_is_a_sentence_and_an_exit_code() -> None:
    done = CliRunner().invoke(app, ["show", "missing.py"])
    assert done.exit_code != 0
    assert "missing.py" in done.output + str(done.exception)
