"""Records of a run directory: strict, bounded, sealed and confined."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mirage_formal import records
from mirage_formal.records import ClosingRecord, ManifestRecord, RunRecord
from mirage_formal.records.schema import FILES, run_directory_schema_text
from mirage_formal.support.errors import FormatError, RunError
from tests.kit.paths import REPOSITORY

SCHEMA = REPOSITORY / "docs" / "schemas" / "run-directory.schema.json"
MANIFEST = ManifestRecord(candidate="a" * 64, files={"mugraph.json": "b" * 64, "proof/001.smt2": "c" * 64})


def test_a_sealed_record_comes_back() -> None:
    assert records.open_sealed(records.seal_record(MANIFEST), ManifestRecord, "manifest.json").files == MANIFEST.files


@pytest.mark.parametrize("bit", [0, 3, 5])
def test_any_flipped_bit_of_a_sealed_record_is_refused(bit: int) -> None:
    data = records.seal_record(MANIFEST)
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]
        with pytest.raises(FormatError):
            records.open_sealed(flipped, ManifestRecord, "manifest.json")


def test_a_seal_that_is_computed_anew_is_accepted_for_what_it_says() -> None:
    edited = msgspec.structs.replace(MANIFEST, files={"other": "d" * 64})
    assert records.open_sealed(records.seal_record(edited), ManifestRecord, "").files == {"other": "d" * 64}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: {**d, "schema_version": 1}, "schema_version: expected 3, got 1"),
        (lambda d: {**d, "schema_version": 4, "extra": 1}, "schema_version: expected 3, got 4"),
        (lambda d: {**d, "schema_version": "3"}, "schema_version"),
        (lambda d: {**d, "extra": 1}, "extra"),
        (lambda d: {**d, "candidate": "A" * 64}, "candidate"),
        (lambda d: {k: v for k, v in d.items() if k != "files"}, "files"),
    ],
)
def test_records_are_strict(change: object, said: str) -> None:
    plain = msgspec.to_builtins(MANIFEST)
    data = msgspec.json.encode(change(plain))  # type: ignore[operator]
    with pytest.raises(FormatError, match=said):
        records.decode(data, ManifestRecord, "manifest.json")


def test_deep_nesting_is_refused_without_a_crash() -> None:
    with pytest.raises(FormatError):
        records.decode(b'{"program": ' + b"[" * 100_000, RunRecord, "run.json")


def test_published_schema_is_the_generated_one() -> None:
    assert SCHEMA.read_text() == run_directory_schema_text()
    kernels = {
        records.MANIFEST_FILE,
        records.STABILIZED_PROOF_FILE,
        records.LAUNCH_FILE,
        records.PLAN_FILE,
        records.OBLIGATIONS_FILE,
        records.PROGRAMS_FILE,
        records.REALIZES_FILE,
    }
    assert set(FILES) == {
        *(records.RUN_FILE, records.SEARCH_FILE, records.SUMMARY_FILE, records.EXHAUSTED_FILE),
        *("whole.json", "entry.json"),
        *(records.PROOF_FILE, records.VERIFICATION_FILE, records.MANIFEST_FILE),
        *(f"covers-{name}" for name in (records.PROOF_FILE, records.VERIFICATION_FILE)),
        *(f"kernels-{name}" for name in kernels | set(records.DEVICE_FILES)),
    }


def test_texts_are_packed_and_unpacking_is_bounded() -> None:
    texts = ("(set-logic QF_BV)\n(check-sat)\n", "(assert false)\n(check-sat)\n")
    data = records.pack_texts(texts)
    assert data == records.pack_texts(texts)
    assert records.unpack_texts(data, "") == texts
    assert records.unpack_texts(records.pack_texts(()), "") == ()
    bomb = records.pack_texts(["x" * (1 << 20)])
    with pytest.raises(FormatError, match="at most 1000 bytes of text"):
        records.unpack_texts(bomb, "", limit=1000)
    for bad in (data[:-1], data + b"x", b"", data[:20] + bytes([data[20] ^ 1]) + data[21:]):
        with pytest.raises(FormatError, match="gzip"):
            records.unpack_texts(bad, "")


def test_lines_of_a_proof_log_are_told_apart() -> None:
    closing = ClosingRecord(certificates=3, obligations=2, equivalences=1, digits=4, graph="a" * 64, program="b" * 64)
    assert records.decode_proof(records.json_line(closing), "proof.jsonl") == closing
    with pytest.raises(FormatError, match="line of a proof log"):
        records.decode_proof(b'{"record": "proved"}', "proof.jsonl")


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "", ".", "a\\b", "a\0b", "x" * 600, "a/.."]
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(FormatError, match="inside the directory"):
        records.resolve_inside(tmp_path, path)


def test_paths_inside_are_accepted_unless_they_run_over_a_link(tmp_path: Path) -> None:
    assert records.resolve_inside(tmp_path, "proof/001.smt2") == tmp_path / "proof" / "001.smt2"
    (tmp_path / "proof").symlink_to(tmp_path.parent)
    with pytest.raises(FormatError, match="symbolic link"):
        records.resolve_inside(tmp_path, "proof/001.smt2")


def test_reading_is_bounded_and_takes_regular_files_only(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"12345")
    assert records.read_file(file, limit=5) == b"12345"
    with pytest.raises(RunError, match="at most 4 bytes, got 5"):
        records.read_file(file, limit=4)
    with pytest.raises(RunError, match="a directory"):
        records.read_file(tmp_path)
    with pytest.raises(RunError, match="nothing there"):
        records.read_file(tmp_path / "b")
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(RunError, match="symbolic link"):
        records.read_file(tmp_path / "link")


def test_writing_replaces_whole_files(tmp_path: Path) -> None:
    file = tmp_path / "below" / "a"
    records.write_atomic(file, b"old")
    records.write_atomic(file, b"new")
    assert file.read_bytes() == b"new"
    assert [path.name for path in file.parent.iterdir()] == ["a"]
