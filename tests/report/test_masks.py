"""What a report shows of masks, selections and special values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_formal.claims.equality.prove import prove
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.report.model import Basis, Candidate, Special
from mirage_formal.report.page.candidates import candidate_section
from mirage_formal.report.proofs.formulas import latex, mathml, text
from mirage_formal.report.proofs.program import definitions
from mirage_formal.report.proofs.replayed import replayed
from mirage_formal.report.reading import read_report
from mirage_formal.run.driver import run
from mirage_formal.run.settings import Settings
from tests.kit.proofs.claims import Claim, load
from tests.kit.runs.fake_engine import program
from tests.kit.triton import masked

CLAIMS = {claim.name: claim for claim in load("prove") if claim.name.startswith("masks.")}


def test_a_program_is_written_with_its_selections_and_numbers() -> None:
    shown = {name: text(formula) for name, formula in definitions(masked.apart("float16"))}
    written = " ".join(shown.values())
    assert "div_no_nan(" in written
    assert "select(logical_not(M)" not in shown["output 1"]
    assert "maximum(logical_not(M), gt(S, 1/10))" in written
    assert "round_bfloat16(S)" in written
    assert "maximum(S, 0)" in written  # a product with 0 is 0


@pytest.mark.parametrize("name", CLAIMS)
def test_every_step_of_a_proof_about_masks_is_written(name: str) -> None:
    claim: Claim = CLAIMS[name]
    pair = claim.tiny()
    verdict = prove(*pair)
    assert isinstance(verdict, Equivalent)
    (part,) = replayed(*pair, verdict.proof).parts
    assert part.steps
    for step in part.steps:
        for formula in (step.head, step.left, step.right):
            assert text(formula)
            assert latex(formula)
            assert mathml(formula).startswith("<math>")


def test_what_a_selection_keeps_of_a_partial_value_is_written_as_one() -> None:
    found: set[str] = set()
    for claim in CLAIMS.values():
        pair = claim.tiny()
        verdict = prove(*pair)
        assert isinstance(verdict, Equivalent)
        for part in replayed(*pair, verdict.proof).parts:
            found |= {text(identity.program) for identity in part.identities}
    assert any("select(" in one and "/" in one for one in found)
    assert any("inv0(" in one for one in found)
    assert any("negative(" in one for one in found)


def test_special_values_of_a_candidate_are_told() -> None:
    plain = Candidate(1, "0" * 64, "", "equivalent", Basis.RECORDED, None, 1, 1.0, special=Special(17, 34000, 1200, 0))
    section = str(candidate_section(plain, None))
    assert "special values" in section
    assert "34,000 elements of 17 draws, of which 1,200 have none" in section
    assert "overflow" not in section
    removed = str(candidate_section(replace(plain, special=Special(17, 34000, 1200, 5)), None))
    assert "an overflow of the program was removed at 5" in removed


def test_they_are_read_from_the_verification_log(tmp_path: Path) -> None:
    settings = Settings(engine="tests.kit.runs.fake_engine:Eager", config="tiny", keep=1, workers=1)
    run(program(), settings, tmp_path / "run")
    (candidate,) = read_report(tmp_path / "run").candidates
    assert candidate.special is not None
    assert candidate.special.elements == 64 * candidate.special.draws
