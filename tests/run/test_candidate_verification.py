"""What keeps a candidate from being reported, with the workers' answers replaced one at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from mirage_formal.codegen.numerics.predicted_numerics import PredictedNumerics
from mirage_formal.graph.canonical import canonical, digest
from mirage_formal.graph.formats.json import encode
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.records import (
    EQUIVALENCE_FILE,
    PROOF_FILE,
    VERIFICATION_FILE,
    FoundRecord,
    RejectedKind,
    SolverRecord,
    VerdictRecord,
)
from mirage_formal.run.candidate_table import explain_verdicts
from mirage_formal.run.candidate_verification import CandidateEvidence, CandidateVerifier, PreparedWorker
from mirage_formal.run.settings import NO_TIME_S, Settings, TimeLimits, make_job, preprocess_job
from mirage_formal.run.task_entry_points import predict_rounding_error, run_verification_task
from mirage_formal.run.task_values import AcceptedCandidate, CandidateTask, RejectedCandidate, RoundingTask
from mirage_formal.run.tasks import discharge_texts, verify_candidate
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from tests.kit.runs.fake_engine import adding, doubled, fused, program, vacuous

LIMITS = TimeLimits(60.0, 60.0)
FAILED = TaskFailed(0, "its worker died", 3)


class Inline:
    """Stands for a pool: computes in this process, and gives other answers where told to."""

    workers = 2

    def __init__(self, **answers: Callable[[Any], object]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.ends: tuple[str, int] | None = None  # the task at which the time is over
        self.deadlines: dict[str, float] = {}
        self.limits: dict[str, set[tuple[float, bool]]] = {}

    def run(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        *,
        limit_s: float,
        once: bool = False,
        deadline: float = float("inf"),
    ) -> Iterator[TaskDone[Any] | TaskFailed | None]:
        seen: Counter[str] = Counter()
        for index, task in enumerate(tasks):
            made = _function_of(function, task)
            self.limits.setdefault(made.__name__, set()).add((limit_s, once))
            self.deadlines[made.__name__] = deadline
            if self.ends == (made.__name__, seen[made.__name__]):
                return
            seen[made.__name__] += 1
            self.asked.append(made.__name__)
            yield None
            asked: Callable[[Any], object] = self.answers.get(made.__name__, made)
            answer = asked(task)
            if isinstance(answer, TaskFailed):
                yield structs.replace(answer, index=index)
            else:
                yield TaskDone(index, answer, 1, 0.0)


def _function_of(function: Callable[[Any], object], task: object) -> Callable[[Any], object]:
    """The function that computes a task: one of those that ``run_verification_task`` chooses from is itself."""
    if function is not run_verification_task:
        return function
    if isinstance(task, RoundingTask):
        return predict_rounding_error
    return discharge_texts if isinstance(task, tuple) else verify_candidate


def record(graph: KernelGraph, cost: float) -> FoundRecord:
    graph = canonical(graph)
    return FoundRecord(digest=digest(graph), graph=encode(graph), kernels=kernel_count(graph), estimated_us=cost)


RANKED = [record(fused(program(), 2, 2, 1), 1.0), record(fused(program(), 4, 2, 1), 2.0), record(program(), 3.0)]


def evidence(pool: Inline, keep: int = 1) -> CandidateVerifier:
    job = preprocess_job(make_job(program(), Settings(config="tiny", keep=keep)))
    return CandidateVerifier(job, pool, LIMITS, lambda phase, done, total: None)  # type: ignore[arg-type]


def solver(answer: str) -> SolverRecord:
    return SolverRecord(answer=answer, version="1", milliseconds=0.0)  # type: ignore[arg-type]


def on(found: FoundRecord, answer: object, otherwise: Callable[[Any], object]) -> Callable[[Any], object]:
    """An answer for one candidate only."""
    return lambda task: answer if task.graph == found.graph else otherwise(task)


def test_good_candidates_are_chosen_and_nothing_is_computed_twice() -> None:
    pool = Inline()
    mine = evidence(pool)
    chosen = mine.choose(RANKED)
    assert [v.found for v in chosen] == [RANKED[0], RANKED[2]]
    assert (mine.rejected, mine.tests) == ({}, 2)
    asked = len(pool.asked)
    assert mine.choose(RANKED) == chosen
    assert len(pool.asked) == asked


def test_candidates_of_which_all_are_outside_are_rejected() -> None:
    """One of them does not come first; if none is left, the program's own operators are the better answer."""
    bad = {RANKED[0].graph}
    outside = PredictedNumerics((1.0, 8.0), 0.5)
    mine = evidence(Inline(predict_rounding_error=lambda task: outside if task.candidate.graph in bad else FAILED))
    chosen = mine.choose(RANKED)
    assert [v.found for v in mine.by_numerics(chosen)] == [RANKED[2], RANKED[0]]
    assert [v.foreseen for v in mine.by_numerics(chosen)] == [None, outside]
    assert mine.rejected == {}
    bad.add(RANKED[2].graph)
    mine = evidence(Inline(predict_rounding_error=lambda task: outside if task.candidate.graph in bad else FAILED))
    chosen = mine.choose(RANKED)
    assert mine.by_numerics(chosen) == []
    assert [(r.digest, r.kind) for r in mine.rejected.values()] == [(v.found.digest, "numerics") for v in chosen]
    assert "at scale 1, 8" in mine.rejected[RANKED[0].digest].reason
    again = evidence(Inline(predict_rounding_error=lambda task: outside if task.candidate.graph in bad else FAILED))
    assert [v.found for v in again.reported(RANKED)] == [RANKED[1]]
    assert list(again.rejected) == [RANKED[0].digest, RANKED[2].digest]
    bad.add(RANKED[1].graph)
    none = evidence(Inline(predict_rounding_error=lambda task: outside if task.candidate.graph in bad else FAILED))
    assert none.reported(RANKED) == []
    assert {r.kind for r in none.rejected.values()} == {"numerics"}
    assert len(none.rejected) == 3


@pytest.mark.parametrize("kind", ["different", "unknown", "unproved", "proof-refused"])
def test_a_candidate_that_is_not_accepted_makes_room_for_the_next(kind: RejectedKind) -> None:
    mine = evidence(Inline(verify_candidate=on(RANKED[0], RejectedCandidate(kind, "at 3"), verify_candidate)))
    assert [v.found for v in mine.choose(RANKED)] == [RANKED[1], RANKED[2]]
    assert [(r.kind, r.reason) for r in mine.rejected.values()] == [(kind, "at 3")]
    assert mine.tests == 3


def test_what_is_proved_has_its_proof_and_obligations_and_what_is_not_has_none() -> None:
    probable = AcceptedCandidate(VerdictRecord(kind="probable", rounds=1, bound_log2=-29.0), b"{}", None)
    first, second = evidence(Inline(verify_candidate=on(RANKED[2], probable, verify_candidate))).choose(RANKED)
    assert first.verdict.kind == "equivalent"
    assert first.files[EQUIVALENCE_FILE] == first.proof
    assert [name for name in first.files if name.startswith("proof/digits-")] == [
        f"proof/digits-{number:03}.smt2" for number in range(1, 1 + first.files[PROOF_FILE].count(b'"lemma"'))
    ]
    assert second.verdict.kind == "probable"
    assert second.proof is None
    assert [name for name in second.files if "equivalence" in name or "digits" in name] == []
    assert b'"equivalences":0,"digits":0' in second.files[PROOF_FILE]


@pytest.mark.parametrize(("task", "kind"), [("certify", "unknown"), ("verify_candidate", "unknown")])
def test_a_failed_task_is_no_verdict(task: str, kind: str) -> None:
    mine = evidence(Inline(**{task: lambda given: FAILED}))
    assert mine.choose(RANKED) == []
    assert {r.kind for r in mine.rejected.values()} == {kind}
    assert len(mine.rejected) == 3


@pytest.mark.parametrize(
    ("ends", "reported"),
    [
        (("certify", 0), []),
        (("certify", 1), RANKED[:1]),
        (("discharge_texts", 0), []),
        (("verify_candidate", 0), []),
        (("verify_candidate", 2), RANKED[:2]),
    ],
)
def test_what_was_not_come_to_in_time_is_neither_reported_nor_rejected(
    ends: tuple[str, int], reported: list[FoundRecord]
) -> None:
    pool = Inline()
    pool.ends = ends
    mine = evidence(pool, keep=3)
    assert [v.found for v in mine.reported(RANKED)] == reported
    assert mine.late
    assert mine.rejected == {}
    pool.ends = None
    assert [v.found for v in evidence(pool, keep=3).reported(RANKED)] == RANKED


def test_every_step_has_its_time() -> None:
    pool = Inline()
    limits = TimeLimits.of(Settings(time_limit=100.0), 1000.0)
    assert limits.search < limits.proofs < limits.verified < 1100.0
    job = preprocess_job(make_job(program(), Settings(config="tiny", keep=3)))
    mine = CandidateVerifier(job, pool, limits, lambda phase, done, total: None)  # type: ignore[arg-type]
    assert len(mine.reported(RANKED)) == 3
    assert set(pool.deadlines) == {"certify", "verify_candidate", "discharge_texts", "predict_rounding_error"}
    assert set(pool.deadlines.values()) == {limits.proofs}  # the last two go on beside proofs
    pool = Inline()
    mine = CandidateVerifier(job, pool, limits, lambda phase, done, total: None)  # type: ignore[arg-type]
    mine.by_numerics([CandidateEvidence(RANKED[0], VerdictRecord(kind="equivalent"), None, {})])
    assert pool.deadlines == {"predict_rounding_error": limits.verified}
    short = TimeLimits.of(Settings(time_limit=2.0), 1000.0)
    assert 1001.0 == short.search < short.proofs < short.verified < 1002.0
    none = TimeLimits.of(Settings(time_limit=NO_TIME_S), 1000.0)  # what was searched before is verified
    assert 1000.0 == none.search < none.proofs < none.verified
    assert TimeLimits.of(Settings(), 1000.0).verified == float("inf")


def test_one_hopeless_proof_is_given_up_with_its_reason_and_the_next_takes_its_place() -> None:
    overdue = TaskFailed(0, "its worker hung and was killed", 1, overdue=True)
    job = preprocess_job(make_job(program(), Settings(config="tiny", keep=1)))
    pool = Inline(verify_candidate=on(RANKED[0], overdue, verify_candidate))
    mine = CandidateVerifier(job, pool, TimeLimits(60.0, 2.5), lambda phase, done, total: None)  # type: ignore[arg-type]
    assert [v.found for v in mine.choose(RANKED)] == [RANKED[1], RANKED[2]]
    assert [(r.kind, r.reason) for r in mine.rejected.values()] == [("unknown", "time limit of 2.5 s for one proof")]
    assert pool.limits["verify_candidate"] == {(2.5, True)}
    assert pool.limits["certify"] == {(60.0, False)}


@pytest.mark.parametrize(
    "answers", [("unsat", "sat"), ("sat", "unsat"), ("unknown", "unsat"), ("unsat", "unknown")], ids="-".join
)
def test_both_solvers_must_say_unsat(answers: tuple[str, str]) -> None:
    pair = (solver(answers[0]), solver(answers[1]))
    mine = evidence(Inline(discharge_texts=lambda texts: [pair] * len(texts)))
    assert mine.choose(RANKED) == []
    assert {r.kind for r in mine.rejected.values()} == {"certificate"}
    assert f"{answers[0]} (z3), {answers[1]} (cvc5)" in next(iter(mine.rejected.values())).reason
    assert mine.tests == 0


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        (("unsat", "sat"), "proof-refused"),
        (("sat", "unsat"), "proof-refused"),
        (("unknown", "unsat"), "unknown"),
        (None, "unknown"),
    ],
)
def test_both_solvers_must_refute_what_a_proof_leaves_to_them(answers: tuple[str, str] | None, kind: str) -> None:
    """Digit lemmas are told from certificates by their logic."""

    def discharge(texts: tuple[str, ...]) -> object:
        if "QF_LIA" not in texts[0]:
            return discharge_texts(texts)
        return FAILED if answers is None else [(solver(answers[0]), solver(answers[1]))] * len(texts)

    mine = evidence(Inline(discharge_texts=discharge))
    assert [v.found for v in mine.choose(RANKED)] == [RANKED[2]]  # the program itself needs none
    assert [r.kind for r in mine.rejected.values()] == [kind] * 2
    assert "digits (" in next(iter(mine.rejected.values())).reason


def test_obligations_are_shared_by_candidates() -> None:
    seen: list[str] = []

    def discharge(texts: tuple[str, ...]) -> object:
        seen.extend(texts)
        return discharge_texts(texts)

    chosen = evidence(Inline(discharge_texts=discharge), keep=2).choose(RANKED)
    written = [data.decode() for v in chosen for name, data in v.files.items() if name.endswith(".smt2")]
    assert len(seen) == len(set(seen)) < len(written)
    assert set(seen) == set(written)


def test_an_obligation_without_an_answer_is_no_proof() -> None:
    mine = evidence(Inline(discharge_texts=lambda texts: FAILED))
    assert mine.choose(RANKED) == []
    assert "got nothing" in next(iter(mine.rejected.values())).reason


def test_endless_rejection_ends() -> None:
    many = [record(fused(program(), r, c, loop), 1.0) for r in (1, 2, 4, 8) for c in (1, 2, 4) for loop in (1, 2)]
    mine = evidence(Inline(certify=lambda task: FAILED))
    assert mine.choose(many) == []
    assert 4 < len(mine.rejected) < len(many)


def of_doubled(
    graph: KernelGraph, accept: str = "equivalent"
) -> tuple[FoundRecord, CandidateVerifier, list[CandidateEvidence]]:
    """A candidate of ``doubled``, without certificates: no search would propose it."""
    job = preprocess_job(make_job(doubled(), Settings(config="tiny", keep=1, accept=accept)))  # type: ignore[arg-type]
    pool = Inline(certify=lambda task: [])
    mine = CandidateVerifier(job, pool, LIMITS, lambda phase, done, total: None)  # type: ignore[arg-type]
    found = record(graph, 1.0)
    return found, mine, mine.choose([found])


@pytest.mark.parametrize("accept", ["equivalent", "probable"])
def test_a_candidate_that_is_defined_nowhere_is_not_reported(accept: str) -> None:
    found, mine, chosen = of_doubled(vacuous(), accept)
    assert chosen == []
    rejected = mine.rejected[found.digest]
    assert (rejected.kind, rejected.reason) == ("unknown", "its conditions were never met")


def test_what_has_no_value_where_the_program_has_one_is_not_reported() -> None:
    """2 (X W / W) is NaN where W is 0."""
    found, mine, chosen = of_doubled(adding())
    assert chosen == []
    rejected = mine.rejected[found.digest]
    assert rejected.kind == "numerics"
    assert "special values, zeros: output 0" in rejected.reason
    assert "got nan" in rejected.reason


def test_what_was_found_at_special_values_is_in_the_verification_log() -> None:
    mine = evidence(Inline())
    [verified, _] = mine.choose(RANKED)
    special = json.loads(verified.files[VERIFICATION_FILE])["special"]
    assert special["elements"] == 64 * special["draws"]
    assert 0 < special["undefined"] < special["elements"]
    assert special["overflows"] == 0


def test_conditions_that_a_candidate_adds_are_recorded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mirage_formal.run.verify.candidate_numerics.evaluate_special_values", lambda program, graph: None
    )
    _, _, [verified] = of_doubled(adding())
    added = ["candidate, kernel operator 1: divisor nonzero"]
    assert json.loads(verified.files[VERIFICATION_FILE])["verdict"]["added"] == added
    line = json.loads(verified.files[PROOF_FILE].splitlines()[-2])
    assert (line["conditions"], line["added"]) == (added, added)


def test_the_table_of_a_run_says_what_is_added() -> None:
    added = ("candidate, kernel operator 1: divisor nonzero",)
    verdicts = [Equivalent(b"", added, added), Equivalent(b"", added)]
    assert any("CONDITIONS ADDED: 1 of 2 need up to 1" in text for text in explain_verdicts(verdicts))
    assert not any("ADDED" in text for text in explain_verdicts(verdicts[1:]))


@pytest.mark.parametrize(
    ("milliseconds", "waiting", "left"),
    [
        # Task 0 is for the solvers, the others are candidates. 1e4 ms: the prepared worker, at place 1, verifies alone.
        (1e4, (0, 1, 2), {(1, 0), (2, 0), (0, 1)}),
        (1e4, (0,), set()),
        (1.0, (0, 1, 2), {(0, 0)}),
        (1.0, (1, 2), set()),
    ],
)
def test_the_prepared_worker_verifies_alone_where_evaluating_the_program_again_takes_longer(
    milliseconds: float, waiting: tuple[int, ...], left: set[tuple[int, int]]
) -> None:
    job = preprocess_job(make_job(program(), Settings()))
    verifier = CandidateVerifier(job, Inline(), LIMITS, lambda *_: None, PreparedWorker(1, milliseconds))  # type: ignore[arg-type]
    candidate = CandidateTask(job, RANKED[0].graph)
    tasks = (("an obligation",), candidate, candidate)
    refused = {
        (task, place)
        for task in waiting
        for place in (0, 1)
        if verifier._leaves_to_another(tasks[task], place, sum(each > 0 for each in waiting))
    }
    assert refused == left
    assert not any(verifier._leaves_to_another(RoundingTask(candidate), place, 2) for place in (0, 1))


def test_a_worker_that_has_verified_a_candidate_goes_on() -> None:
    """It has evaluated the program; before, it left the last candidates to the prepared worker."""
    verifier = evidence(Inline())
    candidate = CandidateTask(verifier._job, RANKED[0].graph)
    assert verifier.choose(RANKED)  # at place 0
    verifier._prepared = PreparedWorker(1, 1e4)
    assert not verifier._leaves_to_another(candidate, 0, 2)
    assert verifier._leaves_to_another(candidate, 2, 2)
    texts = ("an obligation",)  # the prepared worker has a process of the solvers
    assert [verifier._leaves_to_another(texts, place, 2) for place in (0, 1, 2)] == [True, False, False]


def test_the_last_obligations_are_for_a_worker_with_solvers() -> None:
    """A new process of the solvers takes longer to answer than the other worker's candidate takes."""
    job = preprocess_job(make_job(program(), Settings()))
    verifier = CandidateVerifier(job, Inline(), LIMITS, lambda *_: None, PreparedWorker(1, 1.0))  # type: ignore[arg-type]
    texts = ("an obligation",)
    for times, left in (([], False), ([15.0] * 3, True), ([1e4] * 3, False)):
        verifier._candidate_ms = list(times)
        assert verifier._leaves_to_another(texts, 0, 0) == left
        assert not verifier._leaves_to_another(texts, 1, 0)
    verifier._candidate_ms, verifier._solving = [15.0] * 3, {0}
    assert not verifier._leaves_to_another(texts, 0, 0)
