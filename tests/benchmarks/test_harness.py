"""What benchmarks share: options that docstrings describe, work in processes, turns and tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import harness

TEXT = """What it does.

    python -m benchmarks.none FILE [--jobs N]

Options:
  file FILE
  others [DIR...]
  --jobs N              at once, 100 % of them [default: processors]
  --out DIR             where results go [default: $OUT]
  --place DIR           [default: runs/x]
  --limit S             [default: inf]
  --only NAME...        repeatable
  --sizes N...          [default: 1 8]
  --level {1,2}         [default: 2]
  --types NAME...       [default: all]
  --pack DIR FILE       two of them
  --again               a flag
"""


def test_a_docstring_describes_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUT", raising=False)
    parser = harness.parser_of(TEXT, types=("a", "b"))
    given = parser.parse_args(["f.py", "--only", "x", "y", "--only", "z"])
    assert (given.file, given.others, given.only) == (Path("f.py"), [], ["x", "y", "z"])
    assert (given.jobs, given.out, given.place) == (os.cpu_count(), Path("."), harness.ROOT / "runs" / "x")
    assert (given.limit, given.sizes, given.level, given.types) == (float("inf"), [1, 8], 2, ["a", "b"])
    assert (given.pack, given.again) == (None, False)
    given = parser.parse_args(["f", "d", "--types", "b", "--sizes", "3", "--pack", "d", "f", "--again", "--level", "1"])
    assert (given.others, given.types, given.sizes, given.level) == ([Path("d")], ["b"], [3], 1)
    assert (given.pack, given.again) == ([Path("d"), Path("f")], True)
    assert parser.parse_args(["f"]).only == [], "one call leaves nothing to the next"
    for wrong in (["f", "--types", "c"], ["f", "--level", "3"], []):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
    assert parser.description == "What it does.\n\n    python -m benchmarks.none FILE [--jobs N]\n"
    assert "100 % of them" in parser.format_help()


@pytest.mark.parametrize("jobs", [0, 2])
def test_tasks_are_done_by_processes_that_are_replaced(jobs: int) -> None:
    tasks = [(list(part),) for part in harness.parts(5, 2, first=10)]
    assert tasks == [([10, 11],), ([12, 13],), ([14],)]
    found = {task[0][0]: future.result() for task, future in harness.in_pool(sum, tasks, jobs, life=1)}
    assert found == {10: 21, 12: 25, 14: 14}


def test_a_function_is_called_in_a_process_of_its_own() -> None:
    assert harness.in_process("os:getpid") != os.getpid()
    assert harness.in_process("os:getenv", "MARK", variables={"MARK": "here"}) == "here"
    with pytest.raises(SystemExit, match="no_such"):
        harness.in_process("os:listdir", "no_such")


def test_sides_take_turns_and_the_first_one_changes() -> None:
    seen: list[str] = []

    def measured(side: str) -> str:
        seen.append(side)
        return f"{side}{len(seen)}"

    rows = harness.in_turns("ab", measured, 3)
    assert seen == ["a", "b", "b", "a", "a", "b"]
    assert rows == [["a1", "b2"], ["a4", "b3"], ["a5", "b6"]]
    assert harness.spread([3.0, 1.0, 2.0]) == "2.00 (1.00 to 3.00)"


def test_a_line_is_added_behind_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines"
    harness.append(path, "a")
    with path.open("a") as file:
        file.write("cu")
    harness.append(path, "b")
    assert path.read_text() == "a\ncu\nb\n"


def test_a_table_has_words_on_the_left() -> None:
    text = harness.table("name | n | why", [("x|y", 1, "two\nlines")], (0, -1))
    assert text == "| name | n | why |\n|---|--:|---|\n| x\\|y | 1 | two lines |"
