"""Audits of searched units that workers make while candidates are verified."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mirage_formal.records import AuditRecord, UnitRecord
from mirage_formal.run.task_values import AuditTask
from mirage_formal.workers.dispatch import TaskFailed


class UnitAudits:
    """Audits that are still to be made, with the records of their units.

    A unit is complete once it is audited. A run that ends before that has not searched the unit.

    Args:
        complete: Called with the record of each unit once it is audited.
        version: Version of z3, for an audit that failed.

    Attributes:
        failed: Why audits failed, by unit.
    """

    def __init__(self, complete: Callable[[UnitRecord], None], version: str) -> None:
        self.failed: dict[int, str] = {}
        self._complete = complete
        self._version = version
        self._waiting: dict[int, tuple[UnitRecord, AuditTask]] = {}

    def add(self, record: UnitRecord, task: AuditTask) -> None:
        """Add a searched unit and the task of its audit."""
        self._waiting[record.unit] = record, task

    @property
    def records(self) -> list[UnitRecord]:
        """Return the records of units that are not audited yet."""
        return [record for record, _ in self._waiting.values()]

    @property
    def tasks(self) -> list[AuditTask]:
        """Return the tasks of the audits."""
        return [task for _, task in self._waiting.values()]

    def answer(self, task: AuditTask, result: AuditRecord | TaskFailed) -> None:
        """Complete a unit with the result of its audit.

        Sound: nothing is pruned or accepted for it. No decision counts as confirmed by an audit that failed.
        """
        record, _ = self._waiting.pop(task.unit)
        if isinstance(result, TaskFailed):
            self.failed[task.unit] = result.reason
            result = self._undecided_record(task)
        self._complete(msgspec.structs.replace(record, audit=result))

    def _undecided_record(self, task: AuditTask) -> AuditRecord:
        """Return the record of an audit that decided nothing."""
        kept = sum(one.kept for one in task.decisions)
        return AuditRecord(
            z3=self._version,
            kept=kept,
            pruned=len(task.decisions) - kept,
            agreed=0,
            finer=0,
            unknown=len(task.decisions),
            contradicted=0,
        )
