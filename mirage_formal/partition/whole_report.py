"""Report of a program that was searched in subgraphs; apart from their search, which few processes need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mirage_formal.partition.covers import Cover, WholePart
    from mirage_formal.records import UnitRecord
    from mirage_formal.records.partition import WholeRecord
    from mirage_formal.run.results.result import Result
    from mirage_formal.run.results.run_report import RunReport

#: Default number of candidates that a subgraph's run reports, besides the best of each number of kernels; covers are
#: made of these.
KEEP: Final = 1


@dataclass(frozen=True, slots=True)
class WholeReport:
    """Result of searching a program of many subgraphs.

    Attributes:
        record: Record of whole.json.
        results: The covers as candidates, best first; none if the run was interrupted.
        covers: The covers as values, in the same order.
        parts: Subgraphs of the first cover in topological order; for an interrupted run, of the last partition.
        directory: Directory of the whole program.
        searches: Reports of all searches, in order, also of those that no cover uses.
        limited: Number of operators whose sets the partition did not enumerate completely, see ``Partition``.
    """

    record: WholeRecord
    results: tuple[Result, ...]
    covers: tuple[Cover, ...]
    parts: tuple[WholePart, ...]
    directory: Path
    searches: tuple[RunReport, ...]
    limited: int

    @property
    def result(self) -> Result | None:
        """The best cover; None if the run was interrupted."""
        return self.results[0] if self.results else None

    @property
    def summary(self) -> WholeRecord:
        """The record of the run, under the same attribute name as in ``RunReport``."""
        return self.record

    @property
    def lost(self) -> bool:
        """Return whether a task of verification was given up in any of the searches."""
        return any(report.lost for report in self.searches)

    @property
    def failed(self) -> tuple[UnitRecord, ...]:
        """Failed units of all searches."""
        return tuple(unit for report in self.searches for unit in report.failed)


__all__ = ["KEEP", "WholeReport"]
