"""One workload through the pipeline, its row, and its resumption."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mirage_formal.records.reproduction import Workloads
from mirage_formal.reproduce import workloads as module
from mirage_formal.reproduce.workloads import workloads
from mirage_formal.support.errors import SpaceError


def quiet(name: str, done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.mark.slow
def test_a_workload_is_searched_and_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = workloads(tmp_path, ("ntrans",), (1,), 1, quiet)
    (row,) = result.rows
    assert 0 < row.structures <= row.candidates
    assert row.proved > 0
    assert row.artifact == 9
    assert row.first_s is not None
    assert row.search_s > 0
    assert row.prove_s > 0
    assert row.certify_s > 0
    assert row.first_s <= row.wall_s
    assert row.search_s + row.certify_s + row.prove_s <= row.wall_s + 0.01
    assert msgspec.json.decode((tmp_path / "workloads.json").read_bytes(), type=Workloads) == result
    assert "| ntrans | 1 |" in (tmp_path / "workloads.md").read_text()
    monkeypatch.setattr(module, "run_search", None)
    assert workloads(tmp_path, ("ntrans",), (1,), 1, quiet).rows == result.rows


def test_an_unknown_workload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="expected one of gqa"):
        workloads(tmp_path, ("gpt",), (1,), 1, quiet)
