"""Store of finished searches with their evidence: an entry holds the directory of a run or of a whole program."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.cache.cache_directory import Cache, StoredEntry, cache_root
from mirage_formal.records import open_sealed, read_directory, read_file
from mirage_formal.records.store_entry import (
    ENTRY_FILE,
    EVIDENCE,
    EarlierSearchEntry,
    EntryKey,
    SearchEntry,
    SearchOutcome,
)
from mirage_formal.support.limits import MAX_JOURNAL_BYTES

#: Set, it turns the store off for this process and those that it starts.
SWITCH: Final = "MIRAGE_FORMAL_NO_CACHE"
#: Names the store's directory; without it, it is ``store`` in the directory of the caches.
STORE_VARIABLE: Final = "MIRAGE_FORMAL_STORE"
#: Digits of the program's digest in names.
_PROGRAM: Final = 16
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]")

StoredSearch = StoredEntry[EntryKey, SearchOutcome]


def is_store_disabled() -> bool:
    """Return whether this process uses no store."""
    return bool(os.environ.get(SWITCH))


class SearchCache(Cache[EntryKey, SearchOutcome]):
    """Entries of finished searches, in directories by target and program: entries/<target>/<program>/<key>.

    Args:
        root: Directory of the store; the one that the environment names if None.
    """

    _pattern = "*/*/*"

    def __init__(self, root: Path | None = None) -> None:
        named = os.environ.get(STORE_VARIABLE)
        super().__init__("entries", SearchEntry, root or (Path(named) if named else cache_root() / "store"))

    def path(self, key: EntryKey) -> Path:
        """Return the directory of an entry, which need not exist."""
        path = super().path(key)
        return path.parent / _UNUSUAL.sub("_", key.identity.target)[:64] / key.identity.program[:_PROGRAM] / path.name

    def knows(self, digest: str) -> bool:
        """Return whether there is an entry of a program, for any target."""
        return any(self.root.glob(f"{self.kind}/*/{digest[:_PROGRAM]}/*/{ENTRY_FILE}"))

    def read_record(self, path: Path) -> SearchEntry:
        """Read entry.json of the directory of an entry, of this or of the earlier format; see ``Cache.read_record``."""
        data = read_file(path / ENTRY_FILE)
        if not data.startswith(b'{\n "format": 1,'):
            record = super().read_record(path)
            assert isinstance(record, SearchEntry)
            return record
        old = open_sealed(data, EarlierSearchEntry, str(path / ENTRY_FILE))
        value = msgspec.convert(old, SearchOutcome, from_attributes=True)
        return SearchEntry(kind=self.kind, key=old.key, value=value, files=old.files, bytes=old.bytes, seal=old.seal)


def evidence_files(directory: Path) -> dict[str, bytes]:
    """Return the files of a finished run or whole program, by their paths in its entry."""
    return {f"{EVIDENCE}/{name}": data for name, data in read_directory(directory, MAX_JOURNAL_BYTES).items()}


def evidence_of(entry: StoredSearch) -> dict[str, bytes]:
    """Return the files of an entry's evidence, by their paths in its directory."""
    return {name.removeprefix(f"{EVIDENCE}/"): data for name, data in entry.files.items()}


__all__ = [
    "STORE_VARIABLE",
    "SWITCH",
    "SearchCache",
    "StoredSearch",
    "evidence_files",
    "evidence_of",
    "is_store_disabled",
]
