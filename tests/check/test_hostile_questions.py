"""Kernels whose questions are no questions: check refuses them, and no solver does what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_formal import records
from mirage_formal.check import solvers
from mirage_formal.check.__main__ import main
from mirage_formal.check.candidate import check_candidate
from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.check.cuda.manifest import SOLVERS
from mirage_formal.kernel_build.build import build_run
from mirage_formal.logic.script import Script, parse_script
from mirage_formal.logic.session import discharge
from mirage_formal.revalidate import check_command
from mirage_formal.revalidate.rederive import derive_kernels
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.support.limits import MAX_QUESTIONS
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import InProcess, copy, read_lines, sign_kernels, write_lines


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with kernels of one candidate."""
    root = tmp_path_factory.mktemp("made") / "run"
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=2, workers=1)
    run_search(PROGRAMS["rms_norm"]()[0], settings, root, name="rms_norm")
    assert build_run(root, count=1)[0][1] == "built"
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return copy(made, tmp_path / "run")


def kernels(root: Path) -> Path:
    return min((root / "kernels").iterdir())


def first_question(directory: Path, change: Callable[[str], str]) -> None:
    """Change the first question, and sign everything again."""
    path = directory / "obligations.smt2.gz"
    old, *others = records.unpack_texts(path.read_bytes(), "")
    new = change(old)
    entries = read_lines(directory / "obligations.jsonl")
    for record in entries:
        if record["sha256"] == records.sha256(old.encode()):
            record["sha256"] = records.sha256(new.encode())
    write_lines(directory / "obligations.jsonl", entries)
    path.write_bytes(records.pack_texts(sorted([new, *others], key=lambda text: records.sha256(text.encode()))))
    sign_kernels(directory)


def test_a_question_cannot_write_into_a_file(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """z3 appends to the file that such a question names, and cvc5 empties it."""
    victim, new = tmp_path / "victim.txt", tmp_path / "new.txt"
    victim.write_text("precious\n")
    hostile = "".join(
        f'(set-option :regular-output-channel "{path}")(echo "WRITTEN")(set-option :regular-output-channel "stdout")'
        for path in (victim, new)
    )
    first_question(kernels(root), lambda text: text.replace("\n(check-sat)", f"{hostile}\n(check-sat)"))
    assert main([str(root), "--jobs", "1"]) == 1
    output, errors = capsys.readouterr()
    assert victim.read_text() == "precious\n"
    assert not new.exists()
    assert output == ""
    assert "step: obligations of the Programs" in errors  # the text is only compared
    assert "Traceback" not in errors


HOSTILE: dict[str, Callable[[str], str]] = {
    "an option of its own": lambda text: "(set-option :tlimit 1)\n" + text,
    "a command after an assertion": lambda text: text.replace("\n(check-sat)", "(exit)\n(check-sat)"),
    "a symbol that is hidden": lambda text: text.replace(
        "(declare-const", "(define-fun bvslt ((x (_ BitVec 8)) (y (_ BitVec 8))) Bool false)\n(declare-const", 1
    ),
    "a name that is defined again": lambda text: text.replace(
        "\n(check-sat)", "\n(define-fun tid () Bool false)\n(check-sat)"
    ),
    "another logic": lambda text: "(set-logic QF_LIA)\n(assert false)\n(check-sat)\n",
    "very deep nesting": lambda text: text.replace(
        "\n(check-sat)", "\n(assert " + "(not " * 2_000_000 + "false" + ")" * 2_000_001 + "\n(check-sat)"
    ),
    "no end": lambda text: text.replace("\n(check-sat)", "\n(assert " + "(not " * 2_000_000 + "\n(check-sat)"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_questions_are_refused(root: Path, name: str) -> None:
    first_question(kernels(root), HOSTILE[name])
    with pytest.raises(CheckFailed) as failure:
        derive_kernels(kernels(root))
    assert failure.value.step == "obligations of the Programs"
    assert "expected" in failure.value.what


def test_too_many_questions_are_refused(root: Path) -> None:
    path = kernels(root) / "obligations.smt2.gz"
    path.write_bytes(records.pack_texts(map(str, range(MAX_QUESTIONS + 1))))
    sign_kernels(kernels(root))
    with pytest.raises(CheckFailed, match=f"at most {MAX_QUESTIONS} questions"):
        derive_kernels(kernels(root))


#: Factors of a product of two primes: no solver finds them in the time of a question.
HARD = """(set-logic QF_BV)
(declare-const x (_ BitVec 112))
(declare-const y (_ BitVec 112))
(assert (= (bvmul x y) (_ bv3367601180095564071789283744694627 112)))
(assert (bvult (_ bv1 112) x))
(assert (bvult x (_ bv72057594037927936 112)))
(assert (bvult y (_ bv72057594037927936 112)))
(check-sat)
"""


def test_hard_questions_end_with_the_time_of_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the time that is left; then nothing is asked any more, and every answer is unknown with its reason."""
    limits: list[int] = []

    def noted(script: Script, timeout_ms: int) -> object:
        limits.append(timeout_ms)
        return discharge(script, timeout_ms)

    monkeypatch.setattr(solvers, "DIRECTORY_S", 1.0)
    monkeypatch.setattr(solvers, "discharge", noted)
    solvers.reset_solver_budget()
    scripts = [parse_script(HARD.replace("bv1 112", f"bv{number} 112")) for number in range(2, 40)]
    with solvers.directory_budget():
        found = [solvers.query_solvers(script) for script in scripts]
    assert limits[0] == 500
    assert limits == sorted(limits, reverse=True)
    assert len(limits) < len(scripts)
    assert all("unsat" not in one.said.values() and "sat" not in one.said.values() for one in found)
    assert [one.asked for one in found] == [True] * len(limits) + [False] * (len(scripts) - len(limits))
    assert found[-1].why == "no time is left of the 1 s that solvers have for one directory"
    with solvers.directory_budget():  # another directory has its own
        solvers.query_solvers(scripts[0])
    assert limits[-1] == 500


def test_without_time_obligations_are_undecided(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "DIRECTORY_S", 0.0)
    monkeypatch.setattr(solvers, "_KNOWN", {})
    monkeypatch.setattr(solvers, "_BUDGET", solvers._SolverBudget())
    found = derive_kernels(kernels(root))
    assert SOLVERS not in found.again
    why = "undecided now, as no time is left of the 0 s that solvers have for one directory"
    entries = read_lines(kernels(root) / "obligations.jsonl")
    assert found.recorded == {why: sum(record["means"] == "solver" for record in entries)}
    assert found.recorded[why] > 0
    assert found.obligations == sum(found.again.values()) + found.recorded[why]


def test_without_time_certificates_fail_and_say_why(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "DIRECTORY_S", 0.0)
    monkeypatch.setattr(solvers, "_KNOWN", {})
    monkeypatch.setattr(solvers, "_BUDGET", solvers._SolverBudget())
    with pytest.raises(CheckFailed, match="no time is left of the 0 s that solvers have for one directory"):
        check_candidate(min((root / "candidates").iterdir()))


@pytest.mark.parametrize("jobs", [1, 2])
def test_without_time_for_everything_the_check_fails(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    """The processes of a check share the time."""
    monkeypatch.setattr(solvers, "CHECK_S", 0.0)
    monkeypatch.setattr(solvers, "_KNOWN", {})
    monkeypatch.setattr(solvers, "_BUDGET", solvers._SolverBudget())  # the tests after this one have their own time
    monkeypatch.setattr(check_command, "LimitedCheck", InProcess)
    assert main([str(root), "--jobs", str(jobs)]) == 1
    assert "that solvers have for everything that is checked" in capsys.readouterr().err
