"""Records of searched units."""

from __future__ import annotations

from typing import Any

from mirage_formal.records import FoundRecord, UnitRecord


def unit_record(*candidates: FoundRecord, **fields: Any) -> UnitRecord:
    """The record of a unit with candidates: the first unit, searched in one attempt, unless fields say otherwise."""
    usual: dict[str, Any] = dict(
        key="0" * 64, unit=0, label="", status="done", attempts=1, stats={}, pruned={}, fingerprint_tests=0,
        milliseconds=0.0,
    )  # fmt: skip
    return UnitRecord(**{**usual, **fields}, candidates=candidates)
