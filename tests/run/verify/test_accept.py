"""What a run reports under each policy, with engines that propose what is wrong and what is right but not proved."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main as check
from mirage_formal.graph.canonical import canonical
from mirage_formal.graph.verdict import Equivalent, Probable
from mirage_formal.run.candidate_table import describe_run, warnings
from mirage_formal.run.driver import run_search
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, make_job
from mirage_formal.support.errors import RunError, SpaceError
from tests.kit.runs.fake_engine import program, roots


def search(engine: str, out: Path, given: object = None, **more: object) -> RunReport:
    chosen = {"config": "tiny", "keep": 1, "workers": 1, **more}
    settings = Settings(engine=f"tests.kit.runs.fake_engine:{engine}", **chosen)  # type: ignore[arg-type]
    return run_search(roots() if given is None else given, settings, out)  # type: ignore[arg-type]


def test_what_is_not_proved_is_not_reported_and_the_next_takes_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = search("Unproved", tmp_path / "run")
    [rejected] = report.summary.rejected
    assert rejected.kind == "unproved"
    assert rejected.reason
    [result] = report.results
    assert result.graph == canonical(roots())
    assert isinstance(result.verdict, Equivalent)
    assert result.verdict.proof == (result.directory / "proof" / "equivalence.json").read_bytes()
    assert any("divisor nonzero" in condition for condition in result.verdict.conditions)
    assert any("not proved" in text for text in warnings(report))
    assert not any("probable" in text for text in describe_run(report))
    assert check([str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert "equivalent" in output
    assert "probable" not in output
    assert re.search(r"conditions: .*divisor nonzero.* \(where: proof.jsonl\)", output)


def test_a_proof_that_takes_too_long_stops_nothing(tmp_path: Path) -> None:
    report = search("Eager", tmp_path / "run", proof_limit=1e-6)
    assert report.results == ()
    [rejected] = report.summary.rejected
    assert (rejected.kind, rejected.reason) == ("unknown", "time limit of 1e-06 s for one proof")


def test_on_demand_it_is_reported_as_probable_and_every_output_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = search("Unproved", tmp_path / "run", keep=2, accept="probable")
    assert report.summary.rejected == ()
    first, second = report.results
    assert isinstance(first.verdict, Probable)
    assert isinstance(second.verdict, Equivalent)
    assert "probable" in str(first)
    assert "equivalent" in str(second)
    assert [item.verdict for item in report.summary.candidates] == ["probable", "equivalent"]
    assert any("probable (1 of 2): NOT proved" in text for text in describe_run(report))
    assert not (first.directory / "proof" / "equivalence.json").exists()
    assert check([str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert "of which proved equivalent: 1" in output
    assert "probable: NOT proved" in output


@pytest.mark.parametrize("accept", ["equivalent", "probable"])
def test_what_is_wrong_is_reported_under_no_policy(accept: str, tmp_path: Path) -> None:
    report = search("Liar", tmp_path / "run", program(), keep=100, accept=accept)
    [rejected] = report.summary.rejected
    assert rejected.kind == "different"
    assert rejected.digest not in {item.digest for item in report.summary.candidates}
    assert all(isinstance(result.verdict, Equivalent) for result in report.results)
    assert any("SEARCH BUG" in text for text in warnings(report))


def test_the_policy_is_part_of_a_run(tmp_path: Path) -> None:
    report = search("Unproved", tmp_path / "run")
    record = records.decode((report.directory / "run.json").read_bytes(), records.RunRecord, "")
    assert record.identity.accept == "equivalent"
    with pytest.raises(RunError, match="another accept"):
        search("Unproved", tmp_path / "run", accept="probable", resume=True)
    with pytest.raises(SpaceError, match="expected one of equivalent, probable, got 'bounded'"):
        make_job(program(), Settings(accept="bounded"))  # type: ignore[arg-type]


def test_a_refused_proof_is_shown_loudly(tmp_path: Path) -> None:
    report = search("Unproved", tmp_path / "run")
    rejected = records.RejectedRecord(digest="0" * 64, kind="proof-refused", reason="step 3 (split): expected more")
    summary = msgspec.structs.replace(report.summary, rejected=(rejected,))
    said = warnings(replace(report, summary=summary))
    assert said[0].startswith("PROVER BUG: ")
    assert "step 3" in said[1]
