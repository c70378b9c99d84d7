"""Entry of the store: written whole, and on reading compared in full with its own record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.records import SEARCH_FILE, confine_path, decode, naming, pretty, read, sha256
from mirage_formal.records.run import NO_SEAL
from mirage_formal.records.store_entry import ENTRY_FILE, EVIDENCE, FORMAT, EntryKey, EntryRecord, entry_code
from mirage_formal.store.location import StoreDirectory
from mirage_formal.support.errors import FormatError, RunError
from mirage_formal.support.limits import MAX_JOURNAL_BYTES
from mirage_formal.support.strict_json import load

_HINT: Final = "search again; mirage-formal tools store clear removes what cannot be used"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry whose files all have the recorded digests.

    Attributes:
        path: Its directory.
        record: entry.json.
        files: The other files' bytes by path, as they were when they were compared.
    """

    path: Path
    record: EntryRecord
    files: Mapping[str, bytes]

    @property
    def evidence(self) -> Path:
        """Return the directory of a run or a whole program."""
        return self.path / EVIDENCE


def read_record(path: Path) -> EntryRecord:
    """Read entry.json of the directory of an entry.

    Sound: it is refused unless it is, byte for byte, the text of what is read from it, sealed.

    Raises:
        MirageError: There is none, it is of another format, or it is not as it was written.
    """
    where = str(path / ENTRY_FILE)
    data = read(path / ENTRY_FILE)
    value = load(data, where)
    got = value.get("format") if isinstance(value, dict) else None
    if got != FORMAT:
        what = f"format: expected {FORMAT}, got {str(got)[:40]}: another version of this package wrote it"
        raise FormatError(what, where=where, hint=_HINT)
    record = decode(data, EntryRecord, where)
    if _sealed_bytes(record) != data:
        raise FormatError("expected the file as it was written, got another seal or text", where=where, hint=_HINT)
    return record


def read_entry(path: Path) -> Entry:
    """Read an entry and compare every file with its digest; ``replay`` establishes its evidence.

    Sound: exactly the listed files are there, none is a link, and each has its digest.

    Raises:
        MirageError: Names the first file that is missing, too many or changed.
    """
    from mirage_formal.check.report import list_files  # loads numerical packages

    record = read_record(path)
    found = list_files(path) - {ENTRY_FILE}
    if wrong := sorted(found ^ set(record.files)):
        what = f"expected the {len(record.files)} files that are listed, got {'' if wrong[0] in found else 'no '}"
        raise FormatError(f"{what}{wrong[0]}", where=str(path), hint=_HINT)
    files = {name: _read(confine_path(path, name)) for name in record.files}
    for name, code in record.files.items():
        if sha256(files[name]) != code:
            raise FormatError("expected the file that was written, got another", where=str(path / name), hint=_HINT)
    return Entry(path, record, files)


def expect_key(path: Path, record: EntryRecord, key: EntryKey) -> None:
    """Refuse an entry whose key differs from the requested one.

    Raises:
        FormatError: Names the first field that differs.
    """
    if (other := key_difference(key, record.key)) is not None:
        raise FormatError(f"expected an answer to what is asked, got {other}", where=str(path), hint=_HINT)


def key_difference(asked: msgspec.Struct, got: msgspec.Struct) -> str | None:
    """Return the first field in which two keys differ, with both values; None if they are equal."""
    for name in asked.__struct_fields__:
        ours, theirs = getattr(asked, name), getattr(got, name)
        if isinstance(ours, msgspec.Struct) and isinstance(theirs, msgspec.Struct):
            if (inside := key_difference(ours, theirs)) is not None:
                return inside
        elif ours != theirs:
            return f"another {name}: {str(theirs)[:40]}, not {str(ours)[:40]}"
    return None


def expect_place(path: Path, record: EntryRecord) -> None:
    """Refuse an entry whose directory does not have the name that its key determines.

    Raises:
        RunError: It has another name.
    """
    code = entry_code(record.key)
    if not path.name or not code.startswith(path.name):
        what = f"expected the entry of that name, got the one of {code[:32]}"
        raise RunError(what, where=str(path), hint=_HINT)


def write_entry(place: StoreDirectory, record: EntryRecord, evidence: Path) -> Path:
    """Write an entry with a copy of its evidence, replacing one with the same key.

    Args:
        place: The store.
        record: Its key and description; files and bytes are filled in.
        evidence: The directory of a finished run or whole program.

    Returns:
        Its directory.

    Raises:
        OSError: It cannot be written.
    """
    with place.building() as building:
        made = building / "entry"
        files: dict[str, bytes] = {}
        for path in sorted(path for path in evidence.rglob("*") if path.is_file()):
            name = path.relative_to(evidence).as_posix()
            files[f"{EVIDENCE}/{name}"] = _read(confine_path(evidence, name))
        write_files(made, record, files)
        path = place.path(record.key)
        place.settle(made, path)
        return path


def write_files(made: Path, record: EntryRecord, files: Mapping[str, bytes]) -> None:
    """Write the files of an entry to a new directory, and entry.json about them."""
    made.mkdir(parents=True)
    for name, data in files.items():
        path = confine_path(made, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_bytes(data)
    listed = {name: sha256(data) for name, data in files.items()}
    full = msgspec.structs.replace(record, files=listed, bytes=sum(map(len, files.values())))
    (made / ENTRY_FILE).write_bytes(_sealed_bytes(full))


def evidence_of(entry: Entry) -> dict[str, bytes]:
    """Return the files of an entry's evidence, by their paths in its directory."""
    return {name.removeprefix(f"{EVIDENCE}/"): data for name, data in entry.files.items()}


def entry_sizes(place: StoreDirectory) -> dict[Path, int]:
    """Return the bytes of each entry that can be read."""
    return dict(_iterate_sizes(place))


def _iterate_sizes(place: StoreDirectory) -> Iterator[tuple[Path, int]]:
    for path in place.entries():
        with suppress(RunError, FormatError, OSError):
            yield path, read_record(path).bytes


def _read(path: Path) -> bytes:
    return read(path, MAX_JOURNAL_BYTES) if path.name == SEARCH_FILE else read(path)


def _sealed_bytes(record: EntryRecord) -> bytes:
    blank = pretty(msgspec.structs.replace(record, seal=NO_SEAL))
    return pretty(msgspec.structs.replace(record, seal=sha256(blank)))


__all__ = [
    "Entry",
    "entry_sizes",
    "evidence_of",
    "expect_key",
    "expect_place",
    "key_difference",
    "read_entry",
    "read_record",
    "write_entry",
    "write_files",
]
