"""Parts of a whole as its record has them."""

from __future__ import annotations

from mirage_formal.records.whole import PartRecord


def part_record(operators: tuple[int, ...]) -> PartRecord:
    """A part of which only the operators are known."""
    return PartRecord(
        operators=operators,
        run="",
        candidate=None,
        directory="",
        kernels=0,
        estimated_us=0.0,
        added=(),
        unfused_kernels=0,
        unfused_us=0.0,
        conditions=(),
    )
