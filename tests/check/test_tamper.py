"""Edits in random places of the evidence: every one that changes meaning is caught, with the file and step named."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_formal.check.__main__ import main
from mirage_formal.check.candidate import CheckFailed, check_candidate
from mirage_formal.check.run_check import check_members, read_run
from mirage_formal.graph.formats.json import from_json
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.semantics.float64_reference import run as evaluate
from mirage_formal.support.errors import MirageError
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.tampering import (
    INFORMATION,
    RUN_INFORMATION,
    copy,
    demote,
    edit,
    files,
    flip,
    leaves,
    meaning,
    other,
    read_lines,
    sign_candidate,
    sign_graph,
    sign_proof,
    sign_run,
    write_lines,
)
from tests.kit.sampling import number

EDITS = number(80, 200)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Finished runs of small programs of every class."""
    root = tmp_path_factory.mktemp("runs")
    settings = Settings(engine="tests.kit.runs.known_engine:KnownEngine", config="tiny", keep=9, workers=1)
    for name, build in PROGRAMS.items():
        report = run_search(build()[0], settings, root / name, name=name)
        assert len(report.results) >= 2
    return [root / name for name in PROGRAMS]


@pytest.fixture(scope="module")
def candidates(runs: list[Path]) -> list[Path]:
    return sorted(path for root in runs for path in (root / "candidates").iterdir())


@pytest.mark.usefixtures("check_mostly_here")
def test_untouched_evidence_is_established_again(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for root in runs:
        assert main([str(root), "--jobs", "1"]) == 0
        output, errors = capsys.readouterr()
        assert errors == ""
        for path in (root / "candidates").iterdir():
            assert path.name in output


def refused(root: Path, what: str) -> CheckFailed:
    """The failure that must come after an edit."""
    try:
        check_candidate(root)
    except CheckFailed as found:
        failure = found
    else:
        pytest.fail(f"not caught: {what}")
    assert failure.file.startswith(str(root))
    assert failure.step
    assert failure.what
    return failure


@pytest.mark.slow
@pytest.mark.usefixtures("check_mostly_here")
def test_every_changed_byte_is_caught(runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    for turn in range(EDITS):
        root = copy(rng.choice(runs), tmp_path / "run")
        path = rng.choice(files(root))
        flip(path, rng)
        code = main([str(root), "--jobs", "1"])
        _, errors = capsys.readouterr()
        assert code in (1, 2), f"edit {turn} of {path}"
        # The file itself, or one above it that no longer agrees with it.
        assert path.name in errors
        assert "step: " in errors
        assert "Traceback" not in errors
        assert len(errors.splitlines()) <= 20


@pytest.mark.slow
def test_every_changed_byte_is_caught_after_signing_again(candidates: list[Path], tmp_path: Path) -> None:
    rng = random.Random(2)
    caught = 0
    while caught < EDITS:
        source = rng.choice(candidates)
        root = copy(source, tmp_path / "candidate")
        path = rng.choice([p for p in files(root) if p.name != "manifest.json"])
        flip(path, rng)
        if meaning(path, INFORMATION) == meaning(source / path.relative_to(root), INFORMATION):
            continue
        if path.parent.name == "proof":
            sign_proof(root)
        sign_candidate(root)
        refused(root, path.name)
        caught += 1


@pytest.mark.slow
def test_every_edited_field_is_caught_after_signing_again(candidates: list[Path], tmp_path: Path) -> None:
    rng = random.Random(3)
    seen = set()
    edited = 0
    while edited < EDITS:
        source = rng.choice(candidates)
        root = copy(source, tmp_path / "candidate")
        path = root / rng.choice(["mugraph.json", "proof.jsonl", "verification.json", "verification.json"])
        record = read_lines(path) if path.suffix == ".jsonl" else json.loads(path.read_bytes())
        container, key = rng.choice(list(leaves(record, INFORMATION)))
        container[key] = other(container[key], rng)
        if path.suffix == ".jsonl":
            write_lines(path, record)
        else:
            path.write_text(json.dumps(record))
        if meaning(path, INFORMATION) == meaning(source / path.name, INFORMATION):
            continue
        sign_candidate(root)
        edited += 1
        seen.add(refused(root, f"{path.name}: {key}").step)
    assert len(seen) >= 8  # different edits fail in different steps


@pytest.mark.slow
def test_an_edited_graph_is_never_accepted_unless_it_is_right(candidates: list[Path], tmp_path: Path) -> None:
    """The attacker recomputes the graph's digest everywhere: only graphs equal to the program may then pass.

    Every other time the proof is left out, so that certificates and fingerprints stand alone.
    """
    rng = random.Random(4)
    accepted = 0
    for turn in range(EDITS):
        source = rng.choice(candidates)
        root = copy(source, tmp_path / "candidate")
        if turn % 2:
            demote(root)
        path = root / "mugraph.json"
        record = json.loads(path.read_bytes())
        container, key = rng.choice(list(leaves(record["ops"], set())))
        container[key] = other(container[key], rng)
        path.write_text(json.dumps(record))
        try:
            sign_graph(root)
            check_candidate(root)
        except (CheckFailed, MirageError):
            continue
        accepted += 1
        graph = from_json(path.read_bytes())
        program = from_json(json.dumps(json.loads((root / "verification.json").read_bytes())["program"]))
        given = [np.random.default_rng(5).uniform(0.5, 1.5, i.tensor.shape) for i in program.inputs]
        for got, expected in zip(evaluate(graph, given), evaluate(program, given), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9)
    assert accepted < EDITS // 10  # other threads of a block, another reduction_dimx that nothing uses


@pytest.mark.slow
def test_every_edited_place_of_a_proof_is_caught_after_signing_again(candidates: list[Path], tmp_path: Path) -> None:
    """Numbers, names and parts of the proof object: what the kernel still accepts must be a proof of the same."""
    rng = random.Random(7)
    seen = set()
    accepted = 0
    for _ in range(EDITS // 2):
        root = copy(rng.choice(candidates), tmp_path / "candidate")
        path = root / "proof" / "equivalence.json"
        record = json.loads(path.read_bytes())
        container, key = rng.choice(list(leaves(record, set())))
        container[key] = other(container[key], rng)
        path.write_text(json.dumps(record))
        sign_proof(root)
        sign_candidate(root)
        try:
            established = check_candidate(root)
        except CheckFailed as failure:
            seen.add(failure.step)
            continue
        assert established.verdict == "equivalent"
        accepted += 1
    assert "replay the proof" in seen
    assert accepted < EDITS // 20


@pytest.mark.usefixtures("check_here")
def test_candidates_without_their_proof_are_not_of_a_run_that_asks_for_proofs(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy(runs[0], tmp_path / "run")
    candidate = sorted((root / "candidates").iterdir())[0]
    demote(candidate)
    assert check_candidate(candidate).verdict == "probable"
    sign_run(root)
    assert main([str(root), "--jobs", "1"]) == 1
    assert "verdict: expected probable, got equivalent" in capsys.readouterr().err

    def confess(summary: dict[str, Any]) -> None:
        bound = json.loads((candidate / "verification.json").read_bytes())["verdict"]["bound_log2"]
        summary["candidates"][0].update(verdict="probable", error_bound_log2=bound)

    sign_run(root, confess)
    assert main([str(root), "--jobs", "1"]) == 1
    assert "accepts only equivalent candidates" in capsys.readouterr().err


RUN_FILES = ("summary.json", "run.json", "search.jsonl")


def test_every_edited_field_of_a_run_is_caught_after_signing_again(runs: list[Path], tmp_path: Path) -> None:
    rng = random.Random(6)
    signed = 0
    while signed < EDITS // 2:
        root = copy(rng.choice(runs), tmp_path / "run")
        path = root / rng.choice(RUN_FILES)
        # "interrupted" and "complete" say how the search ended, which files cannot show.
        ignored = RUN_INFORMATION | {"manifest", "seal", "status"}
        record = read_lines(path) if path.suffix == ".jsonl" else json.loads(path.read_bytes())
        container, key = rng.choice(list(leaves(record, ignored)))
        container[key] = other(container[key], rng)
        try:
            if path.name == "summary.json":
                sign_run(root, lambda summary, new=record: summary.update(new))  # type: ignore[misc]
            else:
                if path.suffix == ".jsonl":
                    write_lines(path, record)
                else:
                    path.write_text(json.dumps(record))
                sign_run(root)
        except MirageError:
            continue  # not a summary any more: it cannot be signed
        signed += 1
        assert _failure(root) is not None, f"not caught: {path.name}: {key}"


def _failure(root: Path) -> CheckFailed | None:
    """What check finds in a run, without its command line."""
    try:
        found = read_run(root)
        check_members(found, [check_candidate(directory) for directory in found.directories])
    except CheckFailed as failure:
        return failure
    return None


@pytest.mark.usefixtures("check_here")
def test_candidates_of_another_program_are_not_of_this_run(runs: list[Path], tmp_path: Path) -> None:
    """A candidate that is declared to be its own program passes alone, not in the run."""
    root = copy(runs[0], tmp_path / "run")
    candidate = sorted((root / "candidates").iterdir())[0]
    graph = json.loads((candidate / "mugraph.json").read_bytes())
    edit(candidate / "verification.json", lambda record: record.update(program=graph))
    sign_candidate(candidate)
    sign_run(root)
    with pytest.raises(CheckFailed, match="digest"):
        check_candidate(candidate)
    assert main([str(root), "--jobs", "1"]) == 1


@pytest.mark.usefixtures("check_here")
def test_two_processes_find_the_same_first_failure(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy(runs[0], tmp_path / "run")
    for candidate in sorted((root / "candidates").iterdir())[1:]:
        edit(candidate / "verification.json", lambda record: record["fingerprint"].update(seed=7))
        sign_candidate(candidate)
    sign_run(root)
    said = []
    for jobs in ("1", "2"):
        assert main([str(root), "--jobs", jobs]) == 1
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert "002-" in said[0]
    assert "step: fingerprint" in said[0]
