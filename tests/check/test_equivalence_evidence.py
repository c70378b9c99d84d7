"""Attacks on what is written about a proof: whose it is, what it needs, what sympy says, and verdicts without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check import equivalence
from mirage_formal.check.__main__ import main
from mirage_formal.check.candidate import CheckFailed, check_candidate
from mirage_formal.check.equivalence import replay_with_obligations
from mirage_formal.check.proof.sympy_crosscheck import IdentityCrosscheck, SympyAnswer
from mirage_formal.check.time_limit import LimitedCheck
from mirage_formal.graph.formats.json import from_json
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.runs.fake_engine import largest, nowhere, roots
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import copy, demote, edit, read_lines, sign_candidate, sign_proof, write_lines

TRIVIAL = "(set-logic QF_LIA)\n(assert false)\n(check-sat)\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs with proofs, one with a candidate that is only probable, and one without fingerprints."""
    root = tmp_path_factory.mktemp("runs")
    known = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    for name in ("attention", "rms_norm"):
        run_search(PROGRAMS[name]()[0], known, root / name, name=name)
    fake = {"config": "tiny", "keep": 2, "workers": 1}
    probable = Settings(engine="tests.kit.runs.fake_engine:Unproved", accept="probable", **fake)  # type: ignore[arg-type]
    run_search(roots(), probable, root / "roots")
    run_search(largest(), Settings(engine="tests.kit.runs.fake_engine:Eager", **fake), root / "largest")  # type: ignore[arg-type]
    run_search(nowhere(), Settings(engine="tests.kit.runs.fake_engine:Eager", **fake), root / "nowhere")  # type: ignore[arg-type]
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def candidate(runs: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    def copied(name: str, rank: int = 1) -> Path:
        (source,) = (runs[name] / "candidates").glob(f"{rank:03}-*")
        return copy(source, tmp_path / f"{name}{rank}")

    return copied


def failure(root: Path) -> CheckFailed:
    sign_candidate(root)
    with pytest.raises(CheckFailed) as found:
        check_candidate(root)
    return found.value


def change(root: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    """Change the line about the proof, and count its digit lemmas again."""
    records = read_lines(root / "proof.jsonl")
    how(records[-2])
    records[-1]["digits"] = len(records[-2]["digits"])
    write_lines(root / "proof.jsonl", records)


def test_what_is_established(candidate: Callable[..., Path]) -> None:
    found = check_candidate(candidate("attention"))
    assert found.verdict == "equivalent"
    assert found.steps > 0
    assert found.bound_log2 is None
    assert [c.rpartition(": ")[2] for c in found.conditions] == ["divisor nonzero"] * 2
    assert found.opinions is not None
    assert (found.opinions.confirmed, found.opinions.undecided) == (1, ())


def test_the_proof_of_another_candidate_is_refused(candidate: Callable[..., Path]) -> None:
    root, another = candidate("attention"), candidate("attention", 2)
    (root / "proof" / "equivalence.json").write_bytes((another / "proof" / "equivalence.json").read_bytes())
    sign_proof(root)
    found = failure(root)
    assert found.step == "replay the proof"
    assert found.file.endswith("proof/equivalence.json")
    assert "expected" in found.what


def test_a_proof_for_a_verdict_that_has_none_is_refused(candidate: Callable[..., Path]) -> None:
    """A candidate that is right but not proved, with the program's proof about itself."""
    root, proved = candidate("roots"), candidate("roots", 2)
    assert check_candidate(root).verdict == "probable"
    (root / "proof" / "equivalence.json").write_bytes((proved / "proof" / "equivalence.json").read_bytes())
    assert failure(root).step == "equivalence proof for the verdict"
    record = read_lines(proved / "proof.jsonl")[-2]
    records = read_lines(root / "proof.jsonl")
    records[-1].update(equivalences=1, digits=len(record["digits"]))
    write_lines(root / "proof.jsonl", [*records[:-1], record, records[-1]])
    assert failure(root).step == "equivalence proof for the verdict"
    verdict = json.loads((proved / "verification.json").read_bytes())["verdict"]
    edit(root / "verification.json", lambda log: log.update(verdict=verdict))
    assert failure(root).step == "replay the proof"


def test_an_equivalent_verdict_needs_its_proof(candidate: Callable[..., Path]) -> None:
    root = candidate("rms_norm")
    log = (root / "verification.json").read_bytes()
    demote(root)
    assert check_candidate(root).verdict == "probable"
    (root / "verification.json").write_bytes(log)
    found = failure(root)
    assert found.step == "equivalence proof for the verdict"
    assert "expected 1, got 0" in found.what


@pytest.mark.parametrize("line", ["twice", "first"])
def test_the_line_about_the_proof_stands_once_and_before_the_last(candidate: Callable[..., Path], line: str) -> None:
    root = candidate("rms_norm")
    *tensors, proof, last = read_lines(root / "proof.jsonl")
    if line == "twice":
        last.update(equivalences=2, digits=2 * last["digits"])
        write_lines(root / "proof.jsonl", [*tensors, proof, proof, last])
        assert failure(root).step == "equivalence proof for the verdict"
    else:
        write_lines(root / "proof.jsonl", [proof, *tensors, last])
        assert failure(root).step == "complete proof log"


def test_a_digit_lemma_that_is_replaced_is_refused_although_it_is_unsat(candidate: Callable[..., Path]) -> None:
    root = candidate("attention", 2)
    path = root / "proof" / "digits-001.smt2"
    path.write_text(TRIVIAL)
    assert failure(root).step == "text of the digit lemma"
    sign_proof(root)
    assert failure(root).step == "claim of the proof"


def test_a_digit_lemma_that_is_left_out_is_refused(candidate: Callable[..., Path]) -> None:
    root = candidate("attention", 2)
    change(root, lambda record: record["digits"].pop())
    max((root / "proof").glob("digits-*")).unlink()
    found = failure(root)
    assert found.step == "claim of the proof"
    assert "digit lemmas" in found.what


def test_a_digit_lemma_too_many_is_refused(candidate: Callable[..., Path]) -> None:
    root = candidate("attention", 2)
    (root / "proof" / "digits-999.smt2").write_text(TRIVIAL)
    assert failure(root).step == "obligations"
    change(root, lambda record: record["digits"].append({**record["digits"][0], "file": "proof/digits-999.smt2"}))
    assert failure(root).step == "claim of the proof"


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (lambda record: record.update(steps=record["steps"] + 1), "steps and lemmas"),
        (lambda record: record.update(lemmas=0), "steps and lemmas"),
        (lambda record: record["conditions"].pop(), "conditions"),
        (lambda record: record["added"].append(record["conditions"][0]), "conditions that the program has not"),
        (lambda record: record["conditions"].append("and nothing else"), "conditions"),
        (lambda record: record.update(sha256="0" * 64), "sha256 of the proof"),
        (lambda record: record["digits"][0]["extents"].reverse(), "digit lemmas"),
        (lambda record: record["digits"][0].update(lemma="onto"), "digit lemmas"),
        (lambda record: record["digits"].reverse(), "digit lemmas"),
        (lambda record: record["digits"][0]["cvc5"].update(answer="unknown"), "answers to proof/digits-001.smt2"),
    ],
)
def test_an_edited_line_about_the_proof_is_refused(
    candidate: Callable[..., Path], how: Callable[[dict[str, Any]], Any], what: str
) -> None:
    root = candidate("rms_norm")
    change(root, how)
    found = failure(root)
    assert found.step == "claim of the proof"
    assert found.what.startswith(what)


def test_conditions_that_are_kept_back_are_missed_in_the_verdict(candidate: Callable[..., Path]) -> None:
    root = candidate("rms_norm")
    edit(root / "verification.json", lambda log: log["verdict"].update(conditions=log["verdict"]["conditions"][1:]))
    assert failure(root).step == "verdict"


@pytest.mark.parametrize("field", ["rounds", "bound_log2", "reason"])
def test_an_equivalent_verdict_has_nothing_of_a_fingerprint(candidate: Callable[..., Path], field: str) -> None:
    root = candidate("rms_norm")
    values: dict[str, object] = {"rounds": 1, "bound_log2": -29.0, "reason": "sqrt is outside the theorem"}
    edit(root / "verification.json", lambda log: log["verdict"].update({field: values[field]}))
    assert failure(root).step == "verdict"


NO_PICTURE: dict[str, Any] = {
    "verdict": "unknown",
    "reason": "no",
    "lax": "none",
    "bound_log2": None,
    "bound_reason": "",
    "draws": [],
}
NO_POINT = {"verdict": "unknown", "reason": "no point was found", "draws": []}


@pytest.mark.parametrize("name", ["rms_norm", "attention"])
def test_a_fingerprint_that_is_possible_is_not_left_out(candidate: Callable[..., Path], name: str) -> None:
    root = candidate(name)
    edit(root / "verification.json", lambda log: log["fingerprint"].update(NO_PICTURE))
    found = failure(root)
    assert found.step == "fingerprint"
    assert "every operator has a picture" in found.what
    edit(root / "verification.json", lambda log: log.update(fingerprint=None))
    assert "got `null`" in failure(root).what


def test_a_point_that_is_one_is_not_called_none(candidate: Callable[..., Path]) -> None:
    root = candidate("attention")
    edit(root / "verification.json", lambda log: log["fingerprint"].update(NO_POINT))
    assert "got none although both graphs have a value" in failure(root).what


def test_where_no_point_has_a_value_there_is_no_fingerprint(
    candidate: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """sqrt(x - w) + sqrt(w - x): one of two radicands is no residue, whatever is drawn."""
    root = candidate("nowhere")
    log = json.loads((root / "verification.json").read_bytes())["fingerprint"]
    assert (log["verdict"], log["lax"], log["draws"]) == ("unknown", "root", [])
    assert main([str(root)]) == 0
    assert "fingerprints none (1)" in capsys.readouterr().out
    edit(root / "verification.json", lambda log: log["fingerprint"].update(verdict="probable", reason=""))
    assert failure(root).step == "fingerprint"


def test_what_is_only_probable_has_a_fingerprint(candidate: Callable[..., Path]) -> None:
    root = candidate("roots")
    edit(root / "verification.json", lambda log: log["fingerprint"].update(NO_POINT))
    found = failure(root)
    assert found.step == "verdict"
    assert "expected a fingerprint" in found.what


def test_a_run_of_a_program_without_fingerprints(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(runs["largest"])]) == 0
    output = capsys.readouterr().out
    assert "of which proved equivalent: 1" in output
    assert "fingerprints none (1)" in output
    (log,) = runs["largest"].rglob("verification.json")
    assert json.loads(log.read_bytes())["fingerprint"]["lax"] == "none"


def test_what_sympy_refutes_fails_and_what_it_leaves_open_is_shown(
    candidate: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = candidate("rms_norm")
    undecided = (IdentityCrosscheck(SympyAnswer.UNDECIDED, "too large"), IdentityCrosscheck(SympyAnswer.CONFIRMED))
    monkeypatch.setattr(equivalence, "crosscheck_theorem", lambda theorem: undecided)
    monkeypatch.setattr(LimitedCheck, "result", lambda self: self._function(*self._arguments))  # in this process
    assert main([str(root)]) == 0
    assert " 1/2 " in capsys.readouterr().out
    monkeypatch.setattr(equivalence, "crosscheck_theorem", lambda theorem: (IdentityCrosscheck(SympyAnswer.REFUTED),))
    found = failure(root)
    assert found.step == "second opinion of sympy"
    assert "different" in found.what


def test_obligations_are_those_of_the_theorem(candidate: Callable[..., Path]) -> None:
    root = candidate("attention", 2)
    log = json.loads((root / "verification.json").read_bytes())
    program, graph = from_json(json.dumps(log["program"])), from_json((root / "mugraph.json").read_bytes())
    found = replay_with_obligations(program, graph, (root / "proof" / "equivalence.json").read_bytes())
    assert found.theorem.digit_facts
    assert {one.extents for one in found.obligations} == set(found.theorem.digit_facts)
    assert len(found.obligations) == 2 * len(found.theorem.digit_facts)
    assert len({one.text for one in found.obligations}) == len(found.obligations)
