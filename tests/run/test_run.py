"""From a program to its run directory, with engines that die, hang and lie (tests/kit/runs/fake_engine.py)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

import mirage_formal as mf
from mirage_formal import records
from mirage_formal.api.request import superoptimize
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.records import (
    CertificateRecord,
    ClosingRecord,
    EquivalenceRecord,
    UnitRecord,
)
from mirage_formal.run.candidate_table import describe_run, warnings
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.ranking import rank
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, make_job, preprocess_job
from mirage_formal.run.task_values import AcceptedCandidate, CandidateTask, CertificateClaim, UnitTask
from mirage_formal.run.tasks import (
    certify,
    discharge_texts,
    plan,
    search_unit,
    verify_candidate,
)
from mirage_formal.support.errors import RunError
from mirage_formal.workers import dispatch
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S, clock_of
from tests.kit.runs.fake_engine import UNITS, fresh_name, program, shared


def settings(engine: str = "FakeEngine", **more: object) -> Settings:
    chosen = {"config": "tiny", "keep": 4, "workers": 2, **more}
    return Settings(engine=f"tests.kit.runs.fake_engine:{engine}", **chosen)  # type: ignore[arg-type]


def digests(report: RunReport) -> list[str]:
    return [item.digest for item in report.summary.candidates]


@pytest.fixture
def given() -> Iterator[KernelGraph]:
    graph = program(fresh_name())
    yield graph
    shutil.rmtree(shared(graph))


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A finished run with two workers."""
    return run_search(
        program(), settings(), tmp_path_factory.mktemp("run") / "run", name="example", source="example.py"
    )


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A finished run that reports all it found."""
    return run_search(program(), settings(keep=100), tmp_path_factory.mktemp("all") / "run")


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def units(root: Path) -> list[UnitRecord]:
    return [records.decode(line, UnitRecord, "") for line in lines(root / "search.jsonl")]


# What a run writes


def test_the_directory_holds_exactly_what_the_summary_lists(example: RunReport) -> None:
    summary = records.open_sealed(
        (example.directory / "summary.json").read_bytes(), records.SummaryRecord, "summary.json"
    )
    assert summary == example.summary
    files = [p for p in example.directory.rglob("*") if p.is_file() and p.name != "summary.json"]
    found = {str(p.relative_to(example.directory)): records.sha256(p.read_bytes()) for p in files}
    assert found == summary.manifest
    assert summary.status == "complete"
    assert (summary.units, summary.units_done, summary.units_failed) == (UNITS, UNITS, 0)
    assert summary.states == summary.stats["states"] == sum(10 + index for index in range(UNITS))
    assert summary.pruned == {"shape": UNITS}
    assert summary.rejected == ()


def test_every_candidate_has_all_its_evidence(example: RunReport) -> None:
    assert len(example.results) >= 4
    for item in example.summary.candidates:
        root = example.directory / item.directory
        assert root.name == f"{item.rank:03}-{item.id}"
        manifest = records.open_sealed((root / "manifest.json").read_bytes(), records.ManifestRecord, "manifest.json")
        files = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        assert files == {*manifest.files, "manifest.json"}
        graph = from_json((root / "mugraph.json").read_bytes())
        assert digest(graph) == item.digest == manifest.candidate
        log = [records.decode_proof(line, "proof.jsonl") for line in lines(root / "proof.jsonl")]
        *certificates, equivalence, closing = log
        assert isinstance(closing, ClosingRecord)
        assert closing.certificates == len(certificates)
        assert closing.obligations == len({c.file for c in certificates if isinstance(c, CertificateRecord)})
        for certificate in certificates:
            assert isinstance(certificate, CertificateRecord)
            assert records.sha256((root / certificate.file).read_bytes()) == certificate.sha256
            assert certificate.z3.answer == certificate.cvc5.answer == "unsat"
        assert isinstance(equivalence, EquivalenceRecord)
        assert (closing.equivalences, closing.digits) == (1, len(equivalence.digits))
        assert records.sha256((root / equivalence.file).read_bytes()) == equivalence.sha256
        for digit in equivalence.digits:
            assert records.sha256((root / digit.file).read_bytes()) == digit.sha256
            assert digit.z3.answer == digit.cvc5.answer == "unsat"
        verification = records.decode((root / "verification.json").read_bytes(), records.VerificationRecord, "")
        assert verification.candidate == item.digest
        assert digest(from_json(bytes(verification.program))) == verification.program_digest
        assert verification.verdict.kind == item.verdict == "equivalent"
        assert item.error_bound_log2 is None


def test_what_is_written_follows_the_published_schema(example: RunReport) -> None:
    published = json.loads((REPOSITORY / "docs" / "schemas" / "run-directory.schema.json").read_text())
    seen = set()
    for path in sorted(example.directory.rglob("*.json*")):
        if path.name not in published["$defs"]:
            continue
        seen.add(path.name)
        validator = jsonschema.Draft202012Validator({**published, "$ref": f"#/$defs/{path.name}"})
        for text in lines(path) if path.suffix == ".jsonl" else [path.read_bytes()]:
            validator.validate(json.loads(text))
    whole = {"run.json", "search.jsonl", "summary.json", "exhausted.json"}
    assert seen == {*whole, "proof.jsonl", "verification.json", "manifest.json"}


def test_every_tensor_has_a_line(example: RunReport) -> None:
    blocks = 0
    for result, item in zip(example.results, example.summary.candidates, strict=True):
        log = lines(example.directory / item.directory / "proof.jsonl")
        named = [json.loads(line).get("tensor") for line in log[:-2]]
        kernel = len(result.graph.inputs) + sum(op.results for op in result.graph.ops)
        assert named[:kernel] == [f"k{i}" for i in range(kernel)]
        assert len(set(named)) == len(named)
        blocks += any(name.startswith("b0.") for name in named)
    assert blocks > 0


def test_run_json_says_what_was_asked(example: RunReport) -> None:
    record = records.decode((example.directory / "run.json").read_bytes(), records.RunRecord, "run.json")
    assert (record.name, record.source, record.config) == ("example", "example.py", "tiny")
    assert record.key == records.key_of(record.identity)
    assert from_json(bytes(record.program)) == program()
    assert json.loads(bytes(record.space["keep"])) == 4
    assert record.versions["z3-solver"].startswith("4.")


def test_candidates_are_ranked_by_cost_and_every_number_of_kernels_is_kept(example: RunReport) -> None:
    order = [(r.cost, r.digest) for r in example.results]
    assert order == sorted(order)
    assert [r.rank for r in example.results] == list(range(1, len(order) + 1))
    assert {kernel_count(r.graph) for r in example.results} == {1, 2}


# The same whatever happens


def test_one_worker_finds_the_same(example: RunReport, tmp_path: Path) -> None:
    alone = run_search(program(), settings(workers=1), tmp_path / "run")
    assert digests(alone) == digests(example)
    assert alone.summary.found == example.summary.found > len(alone.results)


def test_killed_workers_change_nothing(everything: RunReport, given: KernelGraph, tmp_path: Path) -> None:
    report = run_search(given, settings("KilledOnce", keep=100), tmp_path / "run")
    assert [(record.status, record.attempts) for record in units(tmp_path / "run")] == [("done", 2)] * UNITS
    assert shapes(report) == shapes(everything)


def test_a_hanging_unit_is_tried_again(everything: RunReport, given: KernelGraph, tmp_path: Path) -> None:
    report = run_search(given, settings("HangsOnce", keep=100, unit_limit=8.0), tmp_path / "run")
    assert sorted(record.attempts for record in units(tmp_path / "run")) == [1] * (UNITS - 1) + [2]
    assert shapes(report) == shapes(everything)


def shapes(report: RunReport) -> list[object]:
    """What was found, apart from the names of inputs (which are part of a digest)."""
    return sorted((r.graph.ops for r in report.results), key=repr)


def test_a_poison_unit_is_reported_and_can_be_resumed(given: KernelGraph, tmp_path: Path) -> None:
    report = run_search(given, settings("Poison"), tmp_path / "run")
    assert [(record.unit, record.attempts) for record in report.failed] == [(1, 3)]
    assert (report.summary.units_done, report.summary.units_failed) == (UNITS - 1, 1)
    assert any("INCOMPLETE" in text for text in warnings(report))
    (shared(given) / "cured").touch()
    cured = run_search(given, settings("Poison", resume=True), tmp_path / "run")
    assert (cured.failed, cured.summary.units_done) == ((), UNITS)
    assert len(units(tmp_path / "run")) == UNITS + 1
    assert not any("INCOMPLETE" in text for text in warnings(cured))


def test_a_time_limit_ends_the_search_and_can_be_resumed(
    given: KernelGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of(monkeypatch, dispatch)

    def watch(progress: Progress) -> None:
        if (progress.phase, progress.done) == (RunPhase.SEARCH, 2):
            clock.ahead = 2 * HUNG_S
        elif progress.phase is not RunPhase.SEARCH:
            clock.ahead = 0.0  # the search took some of the time, not all of it

    stopped = run_search(given, settings("Slow", time_limit=HUNG_S), tmp_path / "run", watch=watch)
    assert stopped.summary.status == "time-limit"
    assert stopped.summary.units_done == 2
    assert "time limit" in describe_run(stopped)[0]
    assert stopped.results
    (shared(given) / "go").touch()
    resumed = run_search(given, settings("Slow", resume=True), tmp_path / "run")
    assert resumed.summary.status == "complete"
    whole = run_search(given, settings("Slow"), tmp_path / "whole")
    assert digests(resumed) == digests(whole) != digests(stopped)


SCRIPT = """
import sys
from pathlib import Path
from mirage_formal.run.settings import Settings
from mirage_formal.run.driver import run_search
from tests.kit.runs.fake_engine import program
engine = "tests.kit.runs.fake_engine:Slow"
settings = Settings(config="tiny", keep=4, workers=2, engine=engine, resume=len(sys.argv) > 3)
report = run_search(program(sys.argv[1]), settings, Path(sys.argv[2]))
print(report.summary.status)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_resumes_to_the_same_end(given: KernelGraph, tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, given.inputs[0].name, str(tmp_path / "run")]
    journaled = tmp_path / "run" / "search.jsonl"
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + HUNG_S
        while time.monotonic() < end and not (journaled.is_file() and journaled.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        os.kill(process.pid, how)
        output, _ = process.communicate(timeout=HUNG_S)
    assert len(units(tmp_path / "run")) == 2
    if how is signal.SIGINT:
        assert (process.returncode, output) == (0, "interrupted\n")
        summary = (tmp_path / "run" / "summary.json").read_bytes()
        assert records.open_sealed(summary, records.SummaryRecord, "summary.json").candidates
    else:
        assert not (tmp_path / "run" / "summary.json").exists()
        with journaled.open("ab") as file:
            file.write(b'{"schema_version": 3, "key": "half a li')
    (shared(given) / "go").touch()
    resumed = run_search(given, settings("Slow", resume=True), tmp_path / "run")
    assert sorted(record.unit for record in units(tmp_path / "run")) == list(range(UNITS))
    assert digests(resumed) == digests(run_search(given, settings("Slow"), tmp_path / "whole"))


class Interrupter:
    """Presses Ctrl-C once when a phase has come so far."""

    def __init__(self, phase: RunPhase, done: int) -> None:
        self.when = (phase, done)
        self.pressed = False

    def __call__(self, progress: Progress) -> None:
        if not self.pressed and (progress.phase, progress.done) == self.when:
            self.pressed = True
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("phase", "done", "some"),
    [(RunPhase.PLAN, 0, False), (RunPhase.SEARCH, 3, True), (RunPhase.CERTIFY, 1, False), (RunPhase.PROVE, 2, True)],
)
def test_an_interrupt_keeps_what_is_verified(
    example: RunReport, tmp_path: Path, phase: RunPhase, done: int, some: bool
) -> None:
    stopped = run_search(program(), settings(workers=1), tmp_path / "run", watch=Interrupter(phase, done))
    assert stopped.summary.status == "interrupted"
    assert bool(stopped.results) is some
    assert "Interrupted" in describe_run(stopped)[0]
    resumed = run_search(program(), settings(resume=True), tmp_path / "run")
    assert resumed.summary.status == "complete"
    assert digests(resumed) == digests(example)


# What must never be reported


def test_the_search_time_fingerprint_refuses_a_wrong_graph(example: RunReport, tmp_path: Path) -> None:
    report = run_search(program(), settings("Wrong", keep=100), tmp_path / "run")
    assert report.summary.rejected == ()
    assert report.summary.found == example.summary.found


def test_a_wrong_graph_that_comes_through_is_refuted_and_shown_loudly(tmp_path: Path) -> None:
    report = run_search(program(), settings("Liar", keep=100), tmp_path / "run")
    [rejected] = report.summary.rejected
    assert rejected.kind == "different"
    assert rejected.digest not in digests(report)
    assert report.summary.found == len(report.results) + 1
    assert any("SEARCH BUG" in text for text in warnings(report))


def test_a_candidate_without_certificates_is_not_reported(tmp_path: Path) -> None:
    report = run_search(program(), settings("Foreign"), tmp_path / "run")
    [rejected] = report.summary.rejected
    assert rejected.kind == "certificate"
    assert "k2" in rejected.reason
    assert [r.graph for r in report.results] == [program()]
    assert any("not reported" in text for text in warnings(report))


# Directories


def test_another_run_is_not_resumed(example: RunReport, tmp_path: Path) -> None:
    shutil.copytree(example.directory, tmp_path / "run")
    for changed, said in (
        (settings(resume=True, seed=1), "another seed"),
        (settings(resume=True, keep=5), "another search space"),
        (settings("Wrong", resume=True), "another engine"),
    ):
        with pytest.raises(RunError, match=said):
            run_search(program(), changed, tmp_path / "run")
    with pytest.raises(RunError, match="another program"):
        run_search(program("Y"), settings(resume=True), tmp_path / "run")


def test_resuming_a_finished_run_searches_nothing_again(example: RunReport, tmp_path: Path) -> None:
    shutil.copytree(example.directory, tmp_path / "run")
    before = (tmp_path / "run" / "search.jsonl").read_bytes()
    again = run_search(program(), settings(resume=True, workers=1), tmp_path / "run")
    assert digests(again) == digests(example)
    assert (tmp_path / "run" / "search.jsonl").read_bytes() == before


def test_there_must_be_a_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="got none"):
        run_search(program(), settings(resume=True), tmp_path)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all I have")
    with pytest.raises(RunError, match="other files"):
        run_search(program(), settings(), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "all I have"
    with pytest.raises(RunError, match="got a file"):
        run_search(program(), settings(), tmp_path / "thesis.tex")


def test_a_journal_line_of_another_run_is_refused(example: RunReport, tmp_path: Path) -> None:
    shutil.copytree(example.directory, tmp_path / "run")
    path = tmp_path / "run" / "search.jsonl"
    path.write_bytes(path.read_bytes().replace(example.summary.key.encode(), b"0" * 64, 1))
    with pytest.raises(RunError, match=r"search\.jsonl:1"):
        run_search(program(), settings(resume=True), tmp_path / "run")


# From Python, and in this process


def test_the_front_end_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 8), name="X")
    w = graph.new_input(dims=(8, 8), name="W")
    graph.mark_output(graph.exp(graph.matmul(x, w)))
    options: dict[str, Any] = {
        "config": "tiny",
        "engine": "tests.kit.runs.fake_engine:FakeEngine",
        "keep": 1,
        "workers": 1,
    }
    best = graph.superoptimize(**options, out=tmp_path / "a", verbose=True)
    assert "searching" in capsys.readouterr().err
    ranked = mf.superoptimize(graph, **options, out=tmp_path / "b")
    assert capsys.readouterr().err == ""
    assert best.digest == ranked[0].digest
    assert len(ranked) == 2


def test_superoptimize_returns_results_best_first(tmp_path: Path) -> None:
    seen: list[Progress] = []
    results = superoptimize(
        program(),
        config="tiny",
        keep=2,
        engine="tests.kit.runs.fake_engine:FakeEngine",
        out=tmp_path / "run",
        workers=2,
        watch=seen.append,
    )
    assert [r.rank for r in results] == list(range(1, len(results) + 1))
    assert all(isinstance(r.verdict, Equivalent) and r.directory.is_dir() for r in results)
    assert f"{results[0].cost:.1f} us" in str(results[0])
    assert {p.phase for p in seen} == set(RunPhase) - {RunPhase.FORESEE}  # estimated beside proofs
    last = seen[-1]
    assert last.candidates == len({found for record in units(tmp_path / "run") for found in record.candidates})
    assert last.states == sum(record.stats["states"] for record in units(tmp_path / "run"))
    assert last.best_us == min(found.estimated_us for record in units(tmp_path / "run") for found in record.candidates)
    assert (last.proved, last.refused) == (len(results), 0)


def test_tasks_compute_here_what_they_compute_in_workers(example: RunReport) -> None:
    job = preprocess_job(make_job(program(), settings()))
    entries = [search_unit(UnitTask(job, example.summary.key, unit, 0)) for unit in plan(job)]
    plain = [msgspec.structs.replace(r, milliseconds=0.0, times=None) for r in entries]
    journaled = [msgspec.structs.replace(r, milliseconds=0.0, times=None) for r in units(example.directory)]
    assert plain == sorted(journaled, key=lambda r: r.unit)
    best = rank(entries)[0]
    task = CandidateTask(job, best.graph)
    claims = certify(task)
    assert all(isinstance(claim, CertificateClaim) for claim in claims)
    texts = tuple({claim.text for claim in claims if isinstance(claim, CertificateClaim)})
    assert [(z3.answer, cvc5.answer) for z3, cvc5 in discharge_texts(texts)] == [("unsat", "unsat")] * len(texts)
    verified = verify_candidate(task)
    assert isinstance(verified, AcceptedCandidate)
    assert verified.verdict.kind == "equivalent"
