"""The table's command: rows, their files, what is not run again, and what a user may get wrong."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as with_fields

from mirage_formal.records.reproduction import Row, Table5
from mirage_formal.reproduce import table5 as module
from mirage_formal.reproduce.output.render import format_number, markdown_table
from mirage_formal.reproduce.row_journal import RecordFile
from mirage_formal.reproduce.search_variants import RowLimits
from mirage_formal.reproduce.table5 import TablePlan, extrapolate, table5
from mirage_formal.support.errors import RunError, SpaceError

Calls = list[tuple[str, int, int]]


def quiet(name: str, done: int, total: int) -> None:
    assert 0 <= done <= total
    assert name


@pytest.mark.slow
def test_rows_are_written_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CALIBRATION_TIMES", 1)
    plan = TablePlan(tmp_path, ("guided", "exhaustive-1", "z3", "unpruned"), (5,), workers=1, limits=RowLimits(1.0, 20))
    result = table5(plan, quiet)
    by = {(row.arm, row.paper_ops): row for row in result.rows}
    assert by["guided", 5].complete
    assert by["guided", 5].candidates == 23
    assert by["guided", 5].classes
    cut = by["exhaustive-1", 5]
    assert not cut.complete, "20 states of a unit are not all"
    assert cut.expressions is not None
    assert cut.pruned.keys() <= {"expression", "grid", "shape", "memory", "use", "order"}
    assert by["unpruned", 5].fingerprint_tests is None
    assert by["unpruned", 5].candidates is None
    assert {row.paper_ops for row in result.rows if row.arm == "unpruned"} == {3, 4, 5}
    assert not by["z3", 5].complete
    assert not result.comparisons, "nothing is compared with a row that was cut"

    again = msgspec.json.decode((tmp_path / "table5.json").read_bytes(), type=Table5)
    assert again == result
    text = (tmp_path / "table5.md").read_text()
    assert "the paper's hardware" in text
    assert "| 5 (3) |" in text
    with (tmp_path / "table5.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["states"]) for line in lines] == [row.states for row in result.rows]
    assert "<svg" in (tmp_path / "table5.svg").read_text()

    def fail(*_: object) -> Row:
        raise AssertionError("run again")

    monkeypatch.setattr(module, "run_row", fail)
    assert table5(plan, quiet).rows == result.rows
    with pytest.raises(AssertionError, match="run again"):
        table5(replace(plan, ops=(6,)), quiet)


def test_an_extrapolation_is_marked_and_needs_measurements() -> None:
    def row(block_ops: int, states: int, *, complete: bool) -> Row:
        return Row(
            key="0" * 64,
            arm="unpruned",
            block_ops=block_ops,
            paper_ops=block_ops + 2,
            workers=1,
            complete=complete,
            wall_s=2.0,
            cpu_s=2.0,
            states=states,
            pruned={},
            configurations=0,
            expressions=None,
            classes=None,
            oracle_calls=0,
            cache_hits=0,
            oracle_unknown=0,
            complete_graphs=0,
            fingerprint_tests=None,
            candidates=None,
            structures=0,
            reference=0,
        )

    growth = [row(1, 100, complete=True), row(2, 2000, complete=True)]
    found = extrapolate(row(4, 500, complete=False), growth).extrapolated
    assert found is not None
    assert found.factor == 20
    assert found.states == 2000 * 20**2
    assert found.seconds == 2.0 * found.states / 500
    assert extrapolate(row(4, 500, complete=True), growth).extrapolated is None
    cut = [growth[0], with_fields(growth[1], complete=False)]
    assert extrapolate(row(4, 500, complete=False), cut).extrapolated is None


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        (TablePlan(Path("x"), ("guided", "fast")), "--arms"),
        (TablePlan(Path("x"), ("guided",), (2,)), "--ops"),
        (TablePlan(Path("x"), ("guided",), (5,), "nowhere"), "config"),
    ],
)
def test_mistakes_are_named(plan: TablePlan, where: str, tmp_path: Path) -> None:
    with pytest.raises(SpaceError) as error:
        table5(TablePlan(tmp_path, plan.arms, plan.ops, plan.config), quiet)
    assert error.value.where == where
    assert error.value.hint


def test_a_torn_last_line_is_dropped_and_a_foreign_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"key": "0')
    assert RecordFile(path, Row).get("0" * 64) is None
    assert path.read_bytes() == b""
    path.write_bytes(json.dumps({"a": 1}).encode() + b"\n")
    with pytest.raises(RunError, match="expected a record"):
        RecordFile(path, Row)


def test_numbers_and_tables_are_readable() -> None:
    assert [format_number(n) for n in (None, 0, 12_345, 1.5e13)] == ["-", "0", "12,345", "1.5e+13"]
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n|---|--:|\n| x | 1 |\n"
