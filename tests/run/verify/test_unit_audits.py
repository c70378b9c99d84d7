"""Audits that are made apart from the search of their units, and bounds beside it: the same records in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from mirage_formal.logic.terms import unary, var
from mirage_formal.prove.abstract.pruning_audit import PruningDecision
from mirage_formal.records import EXHAUSTED_FILE, SEARCH_FILE, AuditRecord, UnitRecord
from mirage_formal.run import tasks
from mirage_formal.run.driver import run_search
from mirage_formal.run.settings import Settings
from mirage_formal.run.task_values import AuditTask, BoundsTask, SearchedUnit, UnitTask
from mirage_formal.run_directory.run_writer import read_journal
from mirage_formal.workers.dispatch import TaskDone, TaskFailed
from tests.kit.graphs import workloads
from tests.kit.runs.unit_records import unit_record


class TwoWorkers:
    """An executor of this process that says that it has two workers, and notes the tasks that it was given."""

    workers = 2
    prepares = False
    remarks: tuple[str, ...] = ()
    said: ClassVar[dict[int, Any]] = {}

    def __init__(self, *, stops_at: type | None = None, fails: type | None = None) -> None:
        self.given: list[Any] = []
        self._stops_at = stops_at
        self._fails = fails

    def work_meanwhile(self, steps: Iterable[Callable[[], object]]) -> None:
        for step in steps:
            step()

    def run(self, function: Any, given: Sequence[Any], **limits: Any) -> Iterator[TaskDone[Any] | TaskFailed]:
        index = 0
        while index < len(given):
            task = given[index]
            self.given.append(task)
            if self._stops_at is not None and isinstance(task, self._stops_at):
                raise MemoryError
            if self._fails is not None and isinstance(task, self._fails):
                yield TaskFailed(index, "its worker died", 3)
            else:
                yield TaskDone(index=index, value=function(task), attempts=1, milliseconds=0.0)
            index += 1


def search(out: Path, executor: TwoWorkers, **more: Any) -> Any:
    return run_search(workloads.rmsnorm(), Settings(cache=False, keep=2, **more), out, executor=executor)  # type: ignore[arg-type]


def journal(out: Path, key: str) -> list[UnitRecord]:
    return list(read_journal(out / SEARCH_FILE, key))


def without_times(records: Sequence[UnitRecord]) -> list[UnitRecord]:
    return [msgspec.structs.replace(one, times=None, milliseconds=0.0) for one in records]


def test_a_unit_is_audited_beside_verification_with_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart, together = TwoWorkers(), TwoWorkers()
    one = search(tmp_path / "apart", apart)
    kinds = [type(task) for task in apart.given]
    assert kinds.index(AuditTask) > kinds.index(UnitTask)
    assert all(task.separate_audit for task in apart.given if isinstance(task, UnitTask))
    monkeypatch.setattr(together, "workers", 1)
    two = search(tmp_path / "together", together)
    assert AuditTask not in map(type, together.given)
    key = one.summary.key
    assert without_times(journal(tmp_path / "apart", key)) == without_times(journal(tmp_path / "together", key))
    assert one.summary.audit == two.summary.audit is not None
    assert [found.digest for found in one.results] == [found.digest for found in two.results]


def test_a_run_that_ends_before_the_audit_searches_the_unit_again(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        search(tmp_path / "run", TwoWorkers(stops_at=AuditTask))
    assert (tmp_path / "run" / SEARCH_FILE).read_bytes() == b""
    resumed = search(tmp_path / "run", TwoWorkers(), resume=True)
    whole = search(tmp_path / "whole", TwoWorkers())
    assert resumed.summary.audit == whole.summary.audit is not None
    assert resumed.summary.status == "complete"


def test_an_audit_that_fails_confirms_nothing_and_keeps_the_results(tmp_path: Path) -> None:
    found = search(tmp_path / "run", TwoWorkers(fails=AuditTask))
    audit = found.summary.audit
    assert audit is not None
    assert audit.unknown == audit.kept + audit.pruned > 0
    assert audit.agreed == audit.contradicted == 0
    assert found.results
    assert "audit of unit 0 failed: its worker died" in found.remarks


def test_a_unit_whose_expressions_are_nested_too_deeply_to_be_sent_is_audited_where_it_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep = var("X")
    for _ in range(2000):
        deep = unary("exp", deep)
    record = unit_record()
    audited = AuditRecord(z3="4", kept=1, pruned=0, agreed=1, finer=0, unknown=0, contradicted=0)
    monkeypatch.setattr(tasks, "_search", lambda task: (record, (PruningDecision(True, deep, deep, False),)))
    monkeypatch.setattr(tasks, "audit_unit", lambda task: audited)
    job: Any = _Job()
    found = tasks.search_unit_only(UnitTask(job, "", None, 1))  # type: ignore[arg-type]
    assert found == SearchedUnit(msgspec.structs.replace(record, audit=audited), ())


class _Job:
    """A job without a program."""

    class options:
        choice = None


def test_the_bounds_of_a_program_are_computed_beside_its_search(tmp_path: Path) -> None:
    executor = TwoWorkers()
    found = search(tmp_path / "run", executor)
    kinds = [type(task) for task in executor.given]
    assert kinds.count(BoundsTask) == 1
    assert kinds.index(BoundsTask) > kinds.index(UnitTask)
    late = TwoWorkers(fails=BoundsTask)
    search(tmp_path / "late", late)
    assert [type(task) for task in late.given].count(BoundsTask) == 2
    assert (found.directory / EXHAUSTED_FILE).is_file()
    assert not (tmp_path / "late" / EXHAUSTED_FILE).exists()
