"""Arguments of a search that are read without the command line library: as the library reads them, or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.cli import app as cli
from mirage_formal.cli.search.plain_arguments import read_plain_arguments
from mirage_formal.cli.utilities import invoke_command, single_command
from tests.kit.paths import REPOSITORY

READ = [
    "a.py",
    "a.py --no-cache",
    "--workers 2 a.py --out d --no-cache --json",
    "a.py b.py --workers=3 --seed=7 --progress none",
    "a.py --program p --config attention --target h100 --time-limit 2.5 --proof-limit 10 --audit 0",
    "a.py --griddim 8,1,1 --griddim 16,2,1 --axioms x.smt2 --axioms y.smt2 --without-axiom sum-mul",
    "a.py --resume --force --no-prune --engine exhaustive --oracle z3 --accept probable --extents paper",
    "a.py --max-kernel-ops 3 --max-block-ops 9 --keep 5 --worker-memory 4 --checkpoint c.json --engine m:C",
    "a.py --cluster local:2 --progress json",
]
LEFT = [
    "",
    "--help",
    "a.py --help",
    "--no-cache",
    "a.py --nosuch",
    "a.py -x",
    "a.py -- b.py",
    "a.py --workers",
    "a.py --workers 0",
    "a.py --workers two",
    "a.py --workers -1",
    "a.py --seed 1 --seed 2",
    "a.py --json --json",
    "a.py --json=1",
    "a.py --out=",
    "a.py --progress loud",
    "a.py --accept maybe",
    "a.py --griddim 0,1,1",
    "a.py --time-limit 0",
]


def _read_by_the_library(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    seen: list[tuple[Any, ...]] = []

    def record(files: Any, program: Any, places: Any, settings: Any, *, as_json: bool) -> int:
        seen.append((tuple(files), program, *places, as_json, settings))
        return 0

    monkeypatch.setattr(cli, "search_files", record)
    monkeypatch.setattr(cli, "start_workers", lambda *_: None)
    assert invoke_command(single_command(cli.search_command), arguments, "search") == 0
    return seen[0]


@pytest.mark.parametrize("line", READ)
def test_arguments_are_read_as_by_the_library(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = line.split()
    found = read_plain_arguments(arguments)
    assert found is not None
    read = (found.files, found.program, found.out, found.progress, found.json, found.settings)
    assert read == _read_by_the_library(arguments, monkeypatch)


@pytest.mark.parametrize("line", LEFT)
def test_other_arguments_are_left_to_the_library(line: str) -> None:
    assert read_plain_arguments(line.split()) is None


def test_an_empty_argument_is_left_to_the_library() -> None:
    assert read_plain_arguments(["a.py", ""]) is None
    assert read_plain_arguments(["a.py", "--out", ""]) is None


def test_every_option_of_a_search_is_covered() -> None:
    from mirage_formal.support.options import CallOptions, Settings, options_of

    flags = {one.flag for one in options_of(CallOptions, Settings) if one.flag}
    assert flags <= {word.partition("=")[0] for line in READ for word in line.split()}


def test_a_search_loads_no_command_line_library_and_says_mistakes_as_before(tmp_path: Path) -> None:
    script = """
import sys
from mirage_formal.cli.search.search_main import search_main
sys.argv = ["search", {file!r}, {options}]
try:
    search_main()
finally:
    print(*sorted({{"typer", "click", "pydantic", "rich", "numpy"}} & set(sys.modules)), file=sys.stderr)
"""
    file = str(tmp_path / "none.py")

    def run(options: str) -> tuple[int, list[str]]:
        command = [sys.executable, "-c", script.format(file=file, options=options)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        return done.returncode, done.stderr.splitlines()

    code, (mistake, *_, loaded) = run("")
    assert (code, loaded) == (2, "")
    same, (again, *_, more) = run("'--seed', '1', '--seed', '1'")
    assert (same, again) == (2, mistake)
    assert "typer" in more
