"""An introduction to ``mirage_formal/records``: every file of a run is a record, strict when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal import records
from mirage_formal.records import ManifestRecord
from mirage_formal.support.errors import FormatError

MANIFEST = ManifestRecord(candidate="a" * 64, files={"mugraph.json": "b" * 64})


def test_a_sealed_record_is_read_back() -> None:
    assert records.open_sealed(records.seal_record(MANIFEST), ManifestRecord, "manifest.json").files == MANIFEST.files


def test_a_changed_byte_breaks_the_seal() -> None:
    with pytest.raises(FormatError):
        records.open_sealed(records.seal_record(MANIFEST).replace(b"mugraph", b"mugrapn"), ManifestRecord, "file")


def test_a_path_cannot_leave_its_directory(tmp_path: Path) -> None:
    assert records.resolve_inside(tmp_path, "001/mugraph.json") == tmp_path / "001" / "mugraph.json"
    with pytest.raises(FormatError, match="inside the directory"):
        records.resolve_inside(tmp_path, "../mugraph.json")
