"""What is read from evidence, and what is said about what it rests on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from mirage_formal.records import REALIZES_FILE, RealizesRecord, to_indented_json
from mirage_formal.report.model import Basis, CheckResult, ReportModel, report_values
from mirage_formal.report.page.html import render
from mirage_formal.report.reading import ReadLimits, read_report, run_check
from mirage_formal.report.sentences import checked_by
from mirage_formal.report.text_report import report_text
from mirage_formal.support.errors import RunError
from tests.kit.paths import REPOSITORY
from tests.kit.runs import tampering
from tests.revalidate.test_kernel_evidence import sign_sources


def test_a_run_is_read(small: Path) -> None:
    report = read_report(small)
    summary = json.loads((small / "summary.json").read_text())
    assert report.kind == "run"
    assert report.broken == ()
    assert [one.digest for one in report.candidates] == [one["digest"] for one in summary["candidates"]]
    assert all(one.basis is Basis.RECORDED for one in report.candidates)
    best = report.candidates[0]
    assert best.proof is not None
    assert best.proof.parts[0].steps
    assert best.proof.conditions == best.conditions
    assert best.certificates
    assert best.measured is not None
    assert best.measured.us == 3.0
    assert best.measured.numerics == "within"
    assert best.code is not None
    assert all(kernel.first and kernel.last > kernel.first for kernel in best.code.kernels if kernel.source)
    assert best.code.obligations
    assert report.search is not None
    assert len(report.search.units) == summary["units_done"]
    assert report.floor is not None
    assert report.floor.read_us > 0


def test_a_candidate_alone_is_read(small: Path) -> None:
    (directory, *_) = sorted((small / "candidates").iterdir())
    report = read_report(directory)
    assert report.kind == "candidate"
    assert report.broken == ()
    assert report.candidates[0].proof is not None


def test_no_more_proofs_are_replayed_than_asked_for(small: Path) -> None:
    report = read_report(small, shown=ReadLimits(proofs=1))
    assert [one.proof is not None for one in report.candidates] == [True] + [False] * (len(report.candidates) - 1)
    for one in report.candidates:
        (line,) = (item for item in tampering.read_lines(small / one.directory / "proof.jsonl") if "steps" in item)
        assert (one.steps, one.lemmas) == (line["steps"], line["lemmas"])


def test_nothing_is_established_without_check(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = read_report(small)
    assert "not checked here" in checked_by(report)
    for held, basis in ((True, Basis.CHECKED), (False, Basis.RECORDED)):
        said = CheckResult(held, "what it printed", 1.0, "2026-01-01 00:00 UTC")
        monkeypatch.setattr("mirage_formal.report.reading.run_check", lambda path, said=said: said)
        asked = read_report(small, check=True)
        assert {one.basis for one in asked.candidates} == {basis}
        assert ("did NOT establish" in checked_by(asked)) is not held


def test_what_does_not_hold_is_never_shown_as_established(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever check says: a fault that the report itself has seen stays one."""
    root = tampering.copy(small, tmp_path / "copy")
    (directory, *_) = sorted((root / "candidates").iterdir())
    (directory / "proof" / "equivalence.json").write_text("{}")
    said = CheckResult(True, "", 1.0, "")
    monkeypatch.setattr("mirage_formal.report.reading.run_check", lambda path: said)
    report = read_report(root, check=True)
    assert report.candidates[0].basis is Basis.FAILS
    assert report.candidates[0].proof is None
    assert "did NOT establish" in checked_by(report)


@pytest.mark.slow
def test_check_is_asked_in_a_process_of_its_own(small: Path) -> None:
    (directory, *_) = sorted((small / "candidates").iterdir())
    said = run_check(directory)
    assert said.held, said.text
    assert "Candidates established again: 1" in said.text
    assert (
        not {"z3", "cvc5"} & set(sys.modules) or "z3" in sys.modules
    )  # the tests of this process may have loaded them


def test_reading_and_printing_load_no_solver(small: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from mirage_formal.report.reading import read_report\n"
        "from mirage_formal.report.page.html import page\n"
        "from mirage_formal.report.model import report_values\n"
        f"report = read_report(Path({str(small)!r}))\n"
        "page(report), report_values(report)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "mirage_formal" in loaded
    assert loaded & {"z3", "cvc5", "numpy", "sympy", "galois", "torch", "typer", "rich"} == set()


def test_json_has_every_field_of_the_model(small: Path) -> None:
    report = read_report(small)
    value = report_values(report)
    assert set(value) == {"schema", "version", *ReportModel.__slots__}
    assert value["candidates"][0]["proof"]["parts"][0]["steps"][0]["right"]
    assert value["candidates"][0]["graph"]["schema"] == "mirage_formal/mugraph"


@pytest.mark.parametrize("width", [60, 100])
def test_text_fits_its_width(small: Path, width: int) -> None:
    report = replace(read_report(small), when="2026-01-01 00:00 UTC", version="0")
    text = report_text(report, width)
    assert max(map(len, text.splitlines())) <= width + 16  # of a table's last column, which is not cut
    assert "not checked here" in text
    assert "splits sums" in text


def test_other_directories_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match=r"expected run\.json"):
            read_report(path)


# --- the claim that kernels compute their µGraph


def _edited_claim(small: Path, place: Path, **change: object) -> Path:
    """Copy the run, change the record of its first kernel's claim, and sign the directory again."""
    shutil.copytree(small, place)
    (kernels,) = (place / "kernels").iterdir()
    path = kernels / REALIZES_FILE
    record = msgspec.json.decode(path.read_bytes(), type=RealizesRecord)
    first = msgspec.structs.replace(record.kernels[0], **change)
    path.write_bytes(to_indented_json(RealizesRecord(kernels=(first, *record.kernels[1:]))))
    sign_sources(kernels)
    return place


def test_each_kernel_is_shown_with_its_claim(small: Path) -> None:
    report = read_report(small)
    code = report.candidates[0].code
    assert code is not None
    names = [one.name for one in code.kernels if one.source]
    assert [(one.kernel, one.verdict) for one in code.claims] == [(name, "realizes") for name in names]
    (recorded,) = (small / "kernels").iterdir()
    written = json.loads((recorded / REALIZES_FILE).read_text())["kernels"][0]
    claim = code.claims[0]
    assert (claim.classes, claim.elements, claim.points) == tuple(written[n] for n in ("classes", "elements", "points"))
    page = render("code", "code_section", code)
    assert f">realizes: {claim.elements:,} elements, {claim.classes:,} class" in page
    assert f"{len(names)} of {len(names)} generated kernel" in page
    told = " ".join(report_text(report, width=100).split())
    assert f"Kernel {names[0]} computes its operator of the µGraph: {claim.elements:,} elements of" in told


@pytest.mark.parametrize(("verdict", "shown"), [("deviates", "tested"), ("unknown", "not decided")])
def test_a_kernel_that_is_not_proved_has_a_badge_and_a_reason(
    small: Path, tmp_path: Path, verdict: str, shown: str
) -> None:
    report = read_report(_edited_claim(small, tmp_path / "run", verdict=verdict, reason="2 < 3 elements differ"))
    code = report.candidates[0].code
    assert code is not None
    assert (code.claims[0].verdict, code.claims[0].reason) == (shown, "2 < 3 elements differ")
    page = render("code", "code_section", code)
    assert f">{shown}</span>" in page
    assert "2 &lt; 3 elements differ" in page
    told = " ".join(report_text(report, width=100).split())
    assert f"is not proved to compute its µGraph: {shown}: 2 < 3 elements differ" in told


def test_kernels_of_before_are_shown_as_not_decided(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "run")
    (kernels,) = (tmp_path / "run" / "kernels").iterdir()
    (kernels / REALIZES_FILE).unlink()
    sign_sources(kernels)
    for path in (kernels / "measure.json", kernels / "numerics.json"):
        path.unlink()
    report = read_report(tmp_path / "run")
    assert report.broken == ()
    code = report.candidates[0].code
    assert code is not None
    assert {one.verdict for one in code.claims} == {"not decided"}
    page = render("code", "code_section", code)
    assert ">not decided</span>" in page
    assert "built before the claim was decided" in page


def test_a_claim_on_other_kernels_is_a_fault(small: Path, tmp_path: Path) -> None:
    report = read_report(_edited_claim(small, tmp_path / "run", kernel="other"))
    assert any(one.file.endswith(REALIZES_FILE) and "kernels: expected" in one.what for one in report.broken)
    code = report.candidates[0].code
    assert code is not None
    assert {one.verdict for one in code.claims} == {"not decided"}
