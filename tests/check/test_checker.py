"""Named attacks, hostile files and bad usage; and that the checker stands on its own."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_formal import records
from mirage_formal.check.__main__ import main
from mirage_formal.check.candidate import CheckFailed, check_candidate
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from tests.kit.paths import REPOSITORY
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import (
    copy,
    demote,
    edit,
    read_lines,
    sign_candidate,
    sign_graph,
    sign_proof,
    sign_run,
    write_lines,
)

CHECK = REPOSITORY / "mirage_formal" / "check"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    for name in ("attention", "rms_norm", "polynomial"):
        run_search(PROGRAMS[name]()[0], settings, root / name, name=name)
    return {path.name: path for path in root.iterdir()}


class Victim:
    """A copy of one candidate (or run) that a test damages."""

    def __init__(self, runs: dict[str, Path], tmp_path: Path) -> None:
        self.runs = runs
        self.tmp_path = tmp_path

    def candidate(self, name: str, rank: int = 1) -> Path:
        (source,) = (self.runs[name] / "candidates").glob(f"{rank:03}-*")
        return copy(source, self.tmp_path / "candidate")

    def run(self, name: str) -> Path:
        return copy(self.runs[name], self.tmp_path / "run")


@pytest.fixture
def victim(runs: dict[str, Path], tmp_path: Path) -> Victim:
    return Victim(runs, tmp_path)


def failure(root: Path) -> CheckFailed:
    with pytest.raises(CheckFailed) as found:
        check_candidate(root)
    return found.value


def fingerprint(root: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the fingerprint of a candidate and sign it again."""
    edit(root / "verification.json", lambda record: change(record["fingerprint"]))
    sign_candidate(root)


# --- certificates ----------------------------------------------------------------------------------------------------


def test_an_assertion_that_is_no_axiom_is_refused_although_it_is_unsat(victim: Victim) -> None:
    root = victim.candidate("attention")
    path = next((root / "proof").iterdir())
    path.write_text(path.read_text().replace("(check-sat)", "(assert (! false :named sub-refl.99))\n(check-sat)"))
    sign_proof(root)
    sign_candidate(root)
    found = failure(root)
    assert found.step.startswith("certificate of")
    assert path.name in found.file


def test_an_axiom_instance_that_is_none_is_refused(victim: Victim) -> None:
    root = victim.candidate("attention")
    path = next(p for p in sorted((root / "proof").iterdir()) if "sub-mul" in p.read_text())
    path.write_text(
        path.read_text().replace("(subexpr", "(= ", 1).replace("(=  ", "(subexpr ", 1).replace("mul", "div")
    )
    sign_proof(root)
    sign_candidate(root)
    assert failure(root).step.startswith("certificate of")


def test_a_certificate_of_another_tensor_is_refused(victim: Victim) -> None:
    root = victim.candidate("attention")
    entries = read_lines(root / "proof.jsonl")
    mine, another = entries[0], next(r for r in entries if r["file"] != entries[0]["file"])
    mine["file"], mine["sha256"] = another["file"], another["sha256"]
    write_lines(root / "proof.jsonl", entries)
    sign_candidate(root)
    assert failure(root).step in ("certificate of k0", "complete proof log", "obligations")


def test_a_proof_log_that_leaves_a_tensor_out_is_refused(victim: Victim) -> None:
    root = victim.candidate("attention")
    entries = read_lines(root / "proof.jsonl")
    kept = [record for record in entries if record.get("tensor") != "b0.4"]
    assert len(kept) == len(entries) - 1
    kept[-1]["certificates"] -= 1
    write_lines(root / "proof.jsonl", kept)
    sign_candidate(root)
    found = failure(root)
    assert found.step == "complete proof log"
    assert found.file.endswith("proof.jsonl")


def test_a_proof_log_without_its_closing_line_is_refused(victim: Victim) -> None:
    root = victim.candidate("rms_norm")
    write_lines(root / "proof.jsonl", read_lines(root / "proof.jsonl")[:-1])
    sign_candidate(root)
    assert failure(root).step == "complete proof log"


def test_an_answer_that_is_not_unsat_is_refused(victim: Victim) -> None:
    root = victim.candidate("rms_norm")
    entries = read_lines(root / "proof.jsonl")
    entries[2]["cvc5"]["answer"] = "unknown"
    write_lines(root / "proof.jsonl", entries)
    sign_candidate(root)
    assert "cvc5" in failure(root).what


# --- graphs and fingerprints -----------------------------------------------------------------------------------------


def test_a_wrong_graph_with_evidence_of_the_right_one_is_refused(victim: Victim) -> None:
    """Blocks put together transposed: abstract expressions do not notice, the proof and the fingerprint do."""
    root = victim.candidate("attention")

    def swap(record: dict[str, Any]) -> None:
        block = record["ops"][0]["graph"]
        assert block["grid"] == [2, 2, 1]
        block["inputs"][0]["imap"] = [1, 0, None]
        block["inputs"][0]["imap"][0], block["inputs"][0]["imap"][1] = None, 0
        block["inputs"][0]["imap"] = [0, 1, None]
        saver = block["outputs"][0]
        saver["omap"] = [1, 0, None]
        block["inputs"][0]["imap"] = [1, 0, None]
        for iterator in block["inputs"][1:]:
            iterator["imap"] = [None, 0, None]

    edit(root / "mugraph.json", swap)
    sign_graph(root)
    # Axes renamed on every map: the proof is not about this graph...
    assert failure(root).step == "replay the proof"
    # ... but it is still the same function, so that without the proof it passes as probable...
    demote(root)
    assert check_candidate(root).verdict == "probable"
    edit(root / "mugraph.json", lambda record: record["ops"][0]["graph"]["inputs"][2].update(imap=[0, None, None]))
    sign_graph(root)
    # ... and one map of V left behind gives another function of the same abstract expression.
    found = failure(root)
    assert found.step == "fingerprint"
    assert "outputs of the candidate" in found.what


def test_forged_outputs_are_refused(victim: Victim) -> None:
    root = victim.candidate("polynomial")
    fingerprint(root, lambda record: record["draws"][0].update(got=["0" * 64], expected=["0" * 64]))
    assert "outputs of the program" in failure(root).what


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda record: record.update(p=2147483647), "prime"),
        (lambda record: record.update(p=record["q"], q=record["p"]), "bits of p"),
        (lambda record: record.update(prime_bits=16), "prime_bits"),
        (lambda record: record["draws"][0].update(omega=1), "omega"),
        (lambda record: record.update(seed=1), "omega"),
        (lambda record: record.update(lax="division"), "lax"),
        (lambda record: record.update(rounds=2), "rounds"),
        (lambda record: record.update(rounds=0, draws=[]), "rounds"),
        (lambda record: record.update(bound_log2=-200.0), "bound"),
        (lambda record: record.update(scheme="mine"), "scheme"),
        (lambda record: record["draws"][0]["inputs"].pop(), "inputs read"),
    ],
)
@pytest.mark.parametrize("verdict", ["equivalent", "probable"])
def test_a_forged_fingerprint_is_refused(
    victim: Victim, change: Callable[[dict[str, Any]], Any], what: str, verdict: str
) -> None:
    root = victim.candidate("polynomial")
    if verdict == "probable":
        demote(root)

    def both(record: dict[str, Any]) -> None:
        change(record["fingerprint"])
        if verdict == "probable":
            record["verdict"]["bound_log2"] = record["fingerprint"]["bound_log2"]
            record["verdict"]["rounds"] = record["fingerprint"]["rounds"]

    edit(root / "verification.json", both)
    sign_candidate(root)
    found = failure(root)
    assert found.step == "fingerprint"
    assert what in found.what


def test_inputs_are_drawn_again_only_where_that_was_necessary(victim: Victim) -> None:
    """Whoever may choose which elements to redraw may choose inputs."""
    root = victim.candidate("polynomial")
    mask = base64.b64encode(b"\x80").decode()
    entry = {"attempt": 1, "input": 0, "field": "p", "shape": [1, 1], "mask": mask, "cause": "a denominator is 0"}
    fingerprint(root, lambda record: record["draws"][0].update(redraws=[entry]))
    assert "nothing to draw again" in failure(root).what


def test_redraws_of_norms_are_drawn_again(victim: Victim) -> None:
    root = victim.candidate("rms_norm")
    draw = json.loads((root / "verification.json").read_bytes())["fingerprint"]["draws"][0]
    assert draw["redraws"]
    assert check_candidate(root).rounds == 1
    fingerprint(root, lambda record: record["draws"][0]["redraws"].pop())
    assert failure(root).step == "fingerprint"


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_too_many_or_too_few_is_refused(victim: Victim) -> None:
    root = victim.candidate("rms_norm")
    (root / "notes.txt").write_text("hello")
    assert "notes.txt" in failure(root).what
    root = victim.candidate("rms_norm")
    sorted((root / "proof").iterdir())[0].unlink()
    assert "proof" in failure(root).file
    root = victim.candidate("rms_norm")
    extra = root / "proof" / "999.smt2"
    extra.write_bytes(sorted((root / "proof").iterdir())[0].read_bytes())
    sign_candidate(root)
    assert failure(root).step == "obligations"


def test_links_are_refused(victim: Victim) -> None:
    root = victim.candidate("rms_norm")
    path = sorted((root / "proof").iterdir())[0]
    outside = root.parent / "outside.smt2"
    path.symlink_to(path.rename(outside))
    assert failure(root).corrupt


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "proof/../../x", "a//b", "", "x" * 600])
def test_paths_that_leave_the_directory_are_refused(victim: Victim, name: str) -> None:
    root = victim.candidate("rms_norm")
    path = root / "manifest.json"
    record = records.decode(path.read_bytes(), records.ManifestRecord, "")
    files = {**record.files, name: "0" * 64}
    path.write_bytes(records.seal_record(records.ManifestRecord(candidate=record.candidate, files=files)))
    found = failure(root)
    assert found.corrupt
    assert found.step == "read the manifest"


def huge(record: dict[str, Any]) -> None:
    record["inputs"][0]["shape"] = [1 << 30, 1 << 30]


def endless(record: dict[str, Any]) -> None:
    record["ops"][0]["graph"]["forloop_range"] = 1 << 31


def cycle(record: dict[str, Any]) -> None:
    record["ops"][0]["operands"] = [len(record["inputs"]), 0]


HOSTILE = {
    "huge sizes": (huge, "elements"),
    "endless loop": (endless, "2147483648"),
    "cycle": (cycle, "earlier"),
    "version": (lambda record: record.update(version=99), "version"),
    "schema": (lambda record: record.update(schema="other"), "schema"),
    "unknown field": (lambda record: record.update(run="import os"), "unknown field"),
    "unknown operator": (lambda record: record["ops"][0].update(type="op", kind="system"), "ops[0]"),
}


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_graph_is_one_screen(victim: Victim, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, what = HOSTILE[name]
    root = victim.candidate("rms_norm")
    edit(root / "mugraph.json", change)
    sign_candidate(root)
    code = main([str(root)])
    errors = capsys.readouterr().err
    assert code == (1 if name == "endless loop" else 2)
    assert what in errors
    for part in ("mugraph.json", "step: ", "expected", "got", "hint: "):
        assert part in errors or name in ("endless loop", "unknown field", "unknown operator")
    assert "Traceback" not in errors
    assert len(errors) < 2000
    assert len(errors.splitlines()) <= 20


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"schema":1,"schema":2}', b"null"])
def test_a_file_that_is_no_graph_is_one_screen(victim: Victim, capsys: pytest.CaptureFixture[str], text: bytes) -> None:
    root = victim.candidate("rms_norm")
    (root / "mugraph.json").write_bytes(text)
    sign_candidate(root)
    assert main([str(root)]) == 2
    errors = capsys.readouterr().err
    assert "mugraph.json" in errors
    assert "step: read the graph" in errors
    assert "Traceback" not in errors


def test_an_expression_of_exponential_length_is_refused(victim: Victim) -> None:
    root = victim.candidate("rms_norm", 2)
    squares = [{"type": "op", "kind": "square", "operands": [3 + i]} for i in range(64)]

    def grow(record: dict[str, Any]) -> None:
        record["ops"] += squares
        record["outputs"] = [3 + 64]

    edit(root / "mugraph.json", grow)
    entries = read_lines(root / "proof.jsonl")
    more = [{**entries[3], "tensor": f"k{4 + i}"} for i in range(64)]
    write_lines(root / "proof.jsonl", [*entries[:-1], *more, {**entries[-1], "certificates": 4 + 64}])
    sign_graph(root)
    found = failure(root)
    assert "characters" in found.what or "expression" in found.what
    assert len(found.what) < 2000


# --- usage -----------------------------------------------------------------------------------------------------------


def test_bad_usage_is_exit_code_2(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unfinished = copy(runs["rms_norm"], tmp_path / "run")
    (unfinished / "summary.json").unlink()
    for arguments in (
        [str(tmp_path / "nowhere")],
        [str(tmp_path)],
        [str(unfinished)],
        [str(runs["rms_norm"]), "--jobs", "0"],
        [str(runs["rms_norm"]), "--jobs", "many"],
        [],
    ):
        assert main(arguments) == 2
        output, errors = capsys.readouterr()
        assert output == ""
        assert "Traceback" not in errors
        assert 0 < len(errors.splitlines()) <= 20
    assert main(["--help"]) == 0


def test_a_directory_of_several_runs(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rms_norm", "polynomial"):
        copy(runs[name], tmp_path / "all" / name)
    assert main([str(tmp_path / "all"), "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    assert "polynomial/001-" in output
    assert "rms_norm/002-" in output
    (tmp_path / "all" / "rms_norm" / "summary.json").unlink()
    assert main([str(tmp_path / "all"), "--jobs", "1"]) == 2
    assert "has not finished" in capsys.readouterr().err


@pytest.mark.usefixtures("check_here")
def test_damage_beside_the_candidates_is_named(victim: Victim, capsys: pytest.CaptureFixture[str]) -> None:
    root = victim.run("polynomial")
    edit(root / "run.json", lambda record: record["identity"].update(seed=5))
    assert main([str(root)]) == 1
    assert "run.json" in capsys.readouterr().err
    sign_run(root)
    assert main([str(root)]) == 1
    assert "step: key" in capsys.readouterr().err
    root = victim.run("polynomial")
    sign_run(root, lambda record: record["candidates"][0].update(estimated_us=0.001))
    assert main([str(root)]) == 1
    assert "estimate" in capsys.readouterr().err
    root = victim.run("polynomial")
    sign_run(root, lambda record: record["candidates"][0].update(outside=[8.0]))
    assert main([str(root)]) == 1
    assert "order of candidates" in capsys.readouterr().err
    root = victim.run("polynomial")
    sign_run(root, lambda record: record.update(candidates=[{**one, "outside": [8.0]} for one in record["candidates"]]))
    assert main([str(root)]) == 1
    assert "expected a first one that is not outside" in capsys.readouterr().err
    root = victim.run("polynomial")
    sign_run(root, lambda record: record.update(fingerprint_tests=record["fingerprint_tests"] - 1))
    sign_run(root, lambda record: record["candidates"].pop())
    assert main([str(root)]) == 1
    assert "directories" in capsys.readouterr().err


@pytest.mark.usefixtures("check_here")
@pytest.mark.parametrize(("status", "code"), [("complete", 1), ("time-limit", 0)])
def test_a_run_ended_by_its_limit_may_have_tested_candidates_that_it_does_not_report(
    victim: Victim, capsys: pytest.CaptureFixture[str], status: str, code: int
) -> None:
    root = victim.run("polynomial")
    last = json.loads((root / "summary.json").read_bytes())["candidates"][-1]
    shutil.rmtree(root / last["directory"])
    (root / "exhausted.json").unlink()
    sign_run(root, lambda record: record.update(status=status, candidates=record["candidates"][:-1]))
    assert main([str(root)]) == code
    assert ("fingerprint_tests: expected" in capsys.readouterr().err) == bool(code)


def test_it_runs_where_only_the_files_are(runs: dict[str, Path], tmp_path: Path) -> None:
    root = copy(runs["polynomial"], tmp_path / "elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(CHECK.parents[1])}
    command = [sys.executable, "-m", "mirage_formal.check", str(root), "--jobs", "2"]
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    assert "equivalent" in done.stdout
    assert "2^-29" not in done.stdout  # a proof has no error probability
    demote(min((root / "candidates").iterdir()))
    done = subprocess.run([*command[:-3], str(min((root / "candidates").iterdir()))], **options)
    assert done.returncode == 0, done.stderr
    assert "2^-29" in done.stdout
    assert "probable: NOT proved" in done.stdout


# --- independence ----------------------------------------------------------------------------------------------------


BASE = ("errors", "files", "resources", "guard", "limits", "strict_json", "terminal")
BELOW = ("graph", "logic", "records", "support", *(f"support.{name}" for name in BASE))


def test_the_checker_loads_nothing_of_what_it_checks(runs: dict[str, Path]) -> None:
    root = next((runs["polynomial"] / "candidates").iterdir())
    script = (
        "import sys; from mirage_formal.check.__main__ import main; code = main(sys.argv[1:]);"
        "print('LOADED', *sorted(m for m in sys.modules if m.startswith('mirage_formal') or m == 'galois'));"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECK.parents[1], check=True)
    loaded = set(done.stdout.split("LOADED")[1].split())
    assert "mirage_formal.check.abstract_interpretation" in loaded
    names = {name.removeprefix("mirage_formal.") for name in loaded if "." in name}
    parts = {name if name.startswith("support.") else name.split(".")[0] for name in names}
    # The command is loaded (and the API, by the package itself), and without kernels nothing that derives them.
    derive = "mirage_formal.revalidate"
    assert {name for name in loaded if ".revalidate." in name} == {f"{derive}.check_command", f"{derive}.processes"}
    # Of reports, the package itself loads how its values print, and that loads nothing before something is printed.
    reports = {name for name in loaded if name.startswith("mirage_formal.report")}
    assert reports <= {"mirage_formal.report", "mirage_formal.report.pretty_printers"}
    assert parts - {"api", "frontend", "support.options", "revalidate", "report"} <= {"check", *BELOW}
    assert "galois" not in loaded  # the process that evaluates the fingerprint loads it
