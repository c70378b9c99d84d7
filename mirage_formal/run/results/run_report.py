"""Report of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirage_formal.records import SummaryRecord, UnitRecord
from mirage_formal.run.results.result import Result


@dataclass(frozen=True, slots=True)
class RunReport:
    """Report of a run: its summary, the reported candidates, failures and remarks.

    Attributes:
        summary: Summary record of the run.
        results: The reported candidates, best first.
        directory: Directory of the run.
        failed: Units that failed.
        unfused_us: Estimated microseconds of the program's own operators, a kernel for each.
        remarks: Remarks about workers and about units that took much longer than the others.
        lost: Whether a task of verification failed, so that the same run might find more.
    """

    summary: SummaryRecord
    results: tuple[Result, ...]
    directory: Path
    failed: tuple[UnitRecord, ...]
    unfused_us: float
    remarks: tuple[str, ...] = ()
    lost: bool = False


__all__ = ["RunReport"]
