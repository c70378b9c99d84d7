"""z3 is asked about a sample of what a search keeps and prunes, under the axioms of axioms/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice
from mirage_formal.logic.terms import add, const, mul, sum_, unary, var
from mirage_formal.prove.abstract.pruning_audit import (
    DECISIONS_PER_QUESTION,
    AuditFinding,
    DecisionSample,
    PruningAudit,
    PruningDecision,
    audit_decisions,
)
from mirage_formal.records import CONTRADICTION_FILE
from mirage_formal.run import tasks
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings, make_job, preprocess_job
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.exhaustive.pruner import Pruner
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.support.errors import RunError, SpaceError
from mirage_formal.workers.dispatch import TaskDone
from tests.kit.graphs import workloads

PROGRAMS = {one.__name__: one for one in (workloads.rmsnorm, workloads.gated_mlp, workloads.lora, workloads.attention)}
X, Y = var("X[0,1]"), var("Y[1,2]")
TARGET = sum_(2, mul(X, Y))


def decision(kept: bool, expression: Any) -> PruningDecision:
    return PruningDecision(kept, expression, TARGET, indexed=True)


def test_findings_about_single_decisions() -> None:
    given = [
        decision(True, mul(X, Y)),  # part of the target
        decision(False, X),  # part of it, so pruning it is a fault
        decision(False, sum_(2, X)),  # part of it only if Y may leave the sum over its own index
        decision(False, var("Z[0]")),
    ]
    found = audit_decisions(given)
    assert found.findings[:3] == (AuditFinding.AGREED, AuditFinding.CONTRADICTED, AuditFinding.FINER)
    assert found.findings[3] in (AuditFinding.UNKNOWN, AuditFinding.AGREED)
    (question,) = found.contradictions
    assert "sum-mul" not in question
    assert "(check-sat)" in question


def drawn(size: int, items: int, seed: str) -> list[int]:
    sample = DecisionSample(2 * size, seed)
    for number in range(items):
        sample.offer(True, lambda number=number: decision(True, const(number)))  # type: ignore[misc]
    return [one().expression.value.numerator for one in sample._reservoirs[True].drawn]  # type: ignore[union-attr]


def test_every_decision_is_drawn_equally_often() -> None:
    counts = Counter(number for seed in range(3000) for number in drawn(5, 50, str(seed)))
    assert set(counts) == set(range(50))
    assert all(abs(count - 300) < 90 for count in counts.values())  # 300 expected, standard deviation 16
    assert drawn(5, 50, "a") == drawn(5, 50, "a")
    assert drawn(0, 50, "a") == []


def test_what_is_asked_about_is_drawn_equally_often_too() -> None:
    """One decision of ten that were drawn, which is not always the first."""
    counts: Counter[int] = Counter()
    for seed in range(3000):
        sample = DecisionSample(20, str(seed))
        for number in range(30):
            sample.offer(True, lambda number=number: decision(True, const(number)))  # type: ignore[misc]
        (asked,) = sample.decisions()
        counts[asked.expression.value.numerator] += 1  # type: ignore[union-attr]
    assert set(counts) == set(range(30))
    assert all(abs(count - 100) < 50 for count in counts.values())  # 100 expected, standard deviation 10


def test_one_decision_of_so_many_is_asked_about() -> None:
    for offered, asked in ((1, 1), (DECISIONS_PER_QUESTION - 1, 5), (7 * DECISIONS_PER_QUESTION, 12)):
        sample = DecisionSample(100, "")
        for number in range(offered):
            sample.offer(number % 2 == 0, lambda: decision(True, X))
        assert len(sample.decisions()) == asked


def test_no_decision_is_expressed_that_is_not_asked_about() -> None:
    expressed: list[int] = []

    def express(number: int) -> PruningDecision:
        expressed.append(number)
        return decision(number % 2 == 0, const(number))

    sample = DecisionSample(100, "")
    for number in range(DECISIONS_PER_QUESTION):
        sample.offer(number % 2 == 0, partial(express, number))
    asked = sample.decisions()
    assert [one.expression for one in asked] == [const(number) for number in expressed]


def test_decisions_offered_at_once_are_those_offered_one_after_another() -> None:
    for counts in ((3, 0, 1, 40, 7), (1,) * 30, (200,)):
        one, other = DecisionSample(20, "a"), DecisionSample(20, "a")
        for begin, count in enumerate(counts):
            numbers = range(1000 * begin, 1000 * begin + count)
            for kept in (True, False):
                for number in numbers:
                    one.offer(kept, lambda number=number, kept=kept: decision(kept, const(number)))  # type: ignore[misc]
                other.offer_all(kept, numbers, lambda number, kept=kept: decision(kept, const(number)))  # type: ignore[misc]
        assert [[each() for each in reservoir.drawn] for reservoir in one._reservoirs.values()] == [
            [each() for each in reservoir.drawn] for reservoir in other._reservoirs.values()
        ]
        assert one.decisions() == other.decisions()


def audited(name: str, size: int = 40) -> tuple[Counter[AuditFinding], tuple[str, ...]]:
    """Findings about a guided search, however few its states."""
    program = PROGRAMS[name]()
    job = preprocess_job(make_job(program, Settings()))
    space = replace(job.space, max_states=4_000)
    engine, sample = GuidedEngine(), DecisionSample(size, "0")
    method = SearchOptions(sample=sample)
    for unit in engine.units(job.sought.program, space, method)[:2]:
        engine.run(job.sought.program, space, method, unit)
    found = audit_decisions([one() for kept in (True, False) for one in sample._reservoirs[kept].drawn])
    return Counter(found.findings), found.contradictions


@pytest.mark.parametrize("name", [*PROGRAMS])
def test_z3_contradicts_no_decision_of_a_guided_search(name: str) -> None:
    findings, contradictions = audited(name)
    assert contradictions == ()
    assert findings[AuditFinding.AGREED] >= 5


def test_an_engine_that_prunes_what_the_program_has_is_contradicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Algebra, "within", lambda *forms, **options: False)
    findings, contradictions = audited("gated_mlp", 200)
    assert findings[AuditFinding.CONTRADICTED] == len(contradictions) > 0


def test_the_exhaustive_engine_is_audited_too() -> None:
    """Its expressions forget indices, as the axioms do: what it prunes, no axiom may prove."""
    program, sample = workloads.ntrans(), DecisionSample(40, "0")
    pruner = Pruner(program, SearchOptions(sample=sample))
    first, second = (one for one in pruner.inputs[:2])
    assert pruner.keeps(first)
    assert not pruner.keeps(unary("exp", add(first, second)))
    kept, pruned = ([one() for one in sample._reservoirs[kept].drawn] for kept in (True, False))
    assert not any(one.indexed for one in (*kept, *pruned))
    findings = Counter(audit_decisions([*kept, *pruned]).findings)
    assert findings[AuditFinding.AGREED] >= 1
    assert findings[AuditFinding.CONTRADICTED] == 0


class InlineExecutor:
    """An executor of this process."""

    workers = 1
    prepares = False
    remarks: tuple[str, ...] = ()
    said: ClassVar[dict[int, Any]] = {}

    def work_meanwhile(self, steps: Iterable[Callable[[], object]]) -> None:
        for step in steps:
            step()

    def run(self, function: Any, given: Sequence[Any], **limits: Any) -> Iterator[TaskDone[Any]]:
        for index, task in enumerate(given):
            yield TaskDone(index=index, value=function(task), attempts=1, milliseconds=0.0)


def test_a_contradiction_ends_the_run_with_the_question_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradicted(decisions: Sequence[PruningDecision], choice: AxiomChoice) -> PruningAudit:
        assert choice == USUAL_AXIOMS
        return PruningAudit((AuditFinding.CONTRADICTED,) * len(decisions), ("(check-sat)\n",), "4")

    monkeypatch.setattr(tasks, "audit_decisions", contradicted)
    settings = Settings(cache=False)
    with pytest.raises(RunError, match="--audit 0") as error:
        run_search(workloads.rmsnorm(), settings, tmp_path / "run", executor=InlineExecutor())  # type: ignore[arg-type]
    assert (tmp_path / "run" / CONTRADICTION_FILE).read_text() == "(check-sat)\n"
    assert CONTRADICTION_FILE in str(error.value)


def test_the_guided_engine_takes_no_oracle(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="exhaustive"):
        make_job(workloads.rmsnorm(), Settings(oracle="z3"))
