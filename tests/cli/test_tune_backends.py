"""What ``tune`` prints of Triton files, and writes; the tuning is one that has happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.autotune import tune as tune_module
from mirage_formal.autotune.triton.results import BackendComparison, TritonRow
from mirage_formal.autotune.tuning_result import FinalistRow, TuningResources, TuningResult
from mirage_formal.device import runtime
from mirage_formal.records import TritonLogRecord, decode, sha256
from tests.kit.processes import Command, Ended

FILES = (
    TritonRow("001-a", "warps x1, 4 stages", 7.0, chosen=True),
    TritonRow("001-a", "warps x2, own stages", 8.0),
    TritonRow("002-b", "warps x1, own stages", None, "it hung"),
)
LOG = TritonLogRecord(file=sha256(b"the file"), graph="0" * 64, verdict="equivalent", accesses=())
TAKEN = BackendComparison(
    "triton", "back end auto: Triton: tested, not proved safe", FILES, 9.0, {"001-a": "the file"}, {"001-a": LOG}
)
LEFT = BackendComparison("cuda", "back end auto: CUDA C++: triton is not installed")


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Calls the command after which a tuning says so of Triton."""
    monkeypatch.setattr(runtime, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    mirage = Command(monkeypatch, capsys)

    def call(found: BackendComparison | None, *more: str) -> Ended:
        def tune(root: Path, bench: TuningResources) -> TuningResult:
            asked = more[more.index("--backend") + 1] if "--backend" in more else "cuda"
            assert bench.backend == asked
            return TuningResult(3, 3, 3, (FinalistRow("001-a", "split-2", 9.0, 9.5, 8.0, 1),), triton=found)

        monkeypatch.setattr(tune_module, "tune_run", tune)
        return mirage("tune", "run", "--place", "place", "--progress", "none", *more)

    return call


def test_a_row_for_each_candidate_in_triton_and_the_reason(tuned: Any, tmp_path: Path) -> None:
    ended = tuned(TAKEN, "--backend", "auto")
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines() if " in Triton" in line]
    assert [(row[0], row[-4]) for row in rows] == [("001-a", "7.00"), ("002-b", "failed")]
    assert "8.00" not in [row[-4] for row in rows], "the best options of each"
    assert TAKEN.said in " ".join(ended.out.split())
    assert (tmp_path / "run-triton" / "001-a.py").read_text() == "the file"
    assert decode((tmp_path / "run-triton" / "001-a.json").read_bytes(), TritonLogRecord, "") == LOG
    (tmp_path / "run-triton" / "001-a.py").write_text("mine")
    ended = tuned(TAKEN, "--backend", "auto")
    assert ended.code == 0
    assert "not written: " in ended.out
    assert (tmp_path / "run-triton" / "001-a.py").read_text() == "mine"


def test_what_an_earlier_call_wrote_beside_a_run_is_not_taken_for_a_run(tuned: Any, tmp_path: Path) -> None:
    """The shell writes `runs/*` as both directories."""
    assert tuned(TAKEN, "--backend", "auto").code == 0
    ended = tuned(TAKEN, "run-triton", "other", "--backend", "auto", "--json")
    assert ended.code == 0
    assert [Path(one["run"]).name for one in json.loads(ended.out)["result"]] == ["run", "other"]


def test_where_cuda_stays_it_says_so_in_one_line(tuned: Any, tmp_path: Path) -> None:
    ended = tuned(LEFT, "--backend", "auto")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == LEFT.said
    assert not (tmp_path / "run-triton").exists()


def test_nothing_is_said_of_triton_unless_it_was_asked_for(tuned: Any) -> None:
    assert "riton" not in tuned(None).out
    assert "triton" not in json.loads(tuned(None, "--json").out)["result"][0]


def test_as_json(tuned: Any) -> None:
    (found,) = json.loads(tuned(TAKEN, "--backend", "auto", "--json").out)["result"]
    assert found["triton"]["backend"] == "triton"
    assert found["triton"]["cuda_us"] == 9.0
    assert [row["us"] for row in found["triton"]["rows"]] == [7.0, 8.0, None]
    assert found["triton"]["rows"][2]["said"] == "it hung"


def test_triton_that_was_asked_for_and_is_not_there_is_a_failure(tuned: Any) -> None:
    assert tuned(LEFT, "--backend", "triton").code == 1
    assert tuned(TAKEN, "--backend", "triton").code == 0
    assert tuned(LEFT, "--backend", "metal").code == 2


def test_a_run_of_which_no_kernel_has_a_time_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def tune(root: Path, bench: TuningResources) -> TuningResult:
        if root.name == "other":
            raise tune_module.NoTimesError("expected times, got none", where=str(root), hint="time them")
        return TuningResult(3, 3, 3, (FinalistRow("001-a", "split-2", 9.0, 9.5, 8.0, 1),))

    monkeypatch.setattr(runtime, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune_module, "tune_run", tune)
    mirage = Command(monkeypatch, capsys)
    ended = mirage("tune", "other", "run", "--place", "place", "--progress", "none")
    assert ended.code == 1
    assert "001-a" in ended.out
    assert "expected times, got none" in ended.err
    ended = mirage("tune", "other", "run", "--place", "place", "--progress", "none", "--json")
    rows = json.loads(ended.out)["result"]
    assert [(Path(row["run"]).name, "failed" in row) for row in rows] == [("run", False), ("other", True)]
    ended = mirage("tune", "other", "--place", "place", "--progress", "none")
    assert ended.code != 0
    assert "expected times, got none" in ended.err
