"""Narrow terminals, pipes, other locales and names that are no UTF-8: what is printed stays readable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.paths import REPOSITORY
from tests.kit.processes import Command
from tests.kit.runs.small_runs import make

PROGRAM = """
import mirage_formal as mf

graph = mf.new_kernel_graph()
X = graph.new_input(dims=(8, 8), dtype=mf.float16, name="X")
graph.mark_output(graph.exp(graph.matmul(X, X)))
"""
FAKE = ("--engine", "tests.kit.runs.fake_engine:FakeEngine", "--config", "tiny", "--keep", "9", "--workers", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("narrow")
    make(root / "run", keep=1)
    (root / "one.py").write_text(PROGRAM.replace("X, X", "X, W").replace("graph.mark", WEIGHT))
    return root


WEIGHT = 'W = graph.new_input(dims=(8, 8), dtype=mf.float16, name="W")\ngraph.mark'
LINES = (
    " ".join(("search", "one.py", *FAKE)),
    "check run --jobs 1",
    "verify one.py one.json",
    "tools emulate run",
    "tools doctor",
    "tools gpu info",
    "tools show run",
)


def rows(text: str) -> list[str]:
    """Lines of tables: with columns, or with the rules of a table."""
    return [line for line in text.splitlines() if re.search(r"\S {2,}\S.*\S {2,}\S|[─━│┃]", line.rstrip())]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.removeprefix("tools ").split()[0])
def test_tables_fit_60_columns(
    line: str,
    made: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    check_here: None,
) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "60")
    mirage = Command(monkeypatch, capsys)
    if "one.json" in line:
        Path("one.json").write_text(mirage("tools", "show", "one.py", "--form", "json").out)
    ended = mirage(*line.split())
    assert ended.code == 0, ended
    assert ended.err == ""  # in a pipe there is no progress
    assert [row for row in rows(ended.out) if len(row.rstrip()) > 60] == []
    assert rows(ended.out) or line.split()[1] in ("doctor", "gpu", "show")
    assert "\x1b" not in ended.out  # nor are there colours


def test_no_two_candidates_look_alike(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "200")
    ended = Command(monkeypatch, capsys)("search", "one.py", *FAKE, "--out", "alike", "--accept", "probable")
    table = [line.split() for line in ended.out.splitlines() if re.match(r" +\d+ +[0-9a-f]{12} ", line)]
    assert len(table) > 4
    words = [" ".join(cells[4:]) for cells in table]
    assert len(set(words)) == len(words), words


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "60", **more}


@pytest.mark.parametrize(
    "more",
    [
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"NO_COLOR": "1", "TERM": "dumb"},
        {"LANG": "C.UTF-8", "TERM": "xterm-256color", "FORCE_COLOR": "0"},
    ],
    ids=["C", "no colour", "terminal"],
)
def test_names_of_windows_1252_in_other_locales(more: dict[str, str], tmp_path: Path) -> None:
    """A file that another system has named; nothing is written into it that was not in it."""
    name = b"caf\xe9 \x80.py"
    (tmp_path / os.fsdecode(name)).write_text(PROGRAM)
    command = [sys.executable, "-m", "mirage_formal"]
    options = {"cwd": tmp_path, "env": environment(**more), "capture_output": True, "timeout": 300}
    done = subprocess.run([*command, "tools", "show", name, "--json"], **options)  # type: ignore[call-overload]
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert json.loads(done.stdout)["result"][0]["graph"].startswith("mugraph 1")
    assert b"\x1b" not in done.stderr + done.stdout
    if more["LANG" if "LANG" in more else "TERM"] == "C":
        done = subprocess.run([*command, "tools", "show", b"none \xe9"], **options)  # type: ignore[call-overload]
        assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr
        assert b"expected a run" in done.stderr
