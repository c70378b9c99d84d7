"""Checks of single store entries: their evidence, their validity for this version, and import of foreign entries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_formal.cache.cache_directory import error_line, expect_entry_directory
from mirage_formal.cache.search_store import SearchCache, StoredSearch
from mirage_formal.codegen.target import load_target
from mirage_formal.records import sha256
from mirage_formal.records.store_entry import CacheEntry, EntryKey, SearchOutcome
from mirage_formal.revalidate.evidence_replay import ReplayResult
from mirage_formal.run.result_cache.cache_lookup import replay_evidence
from mirage_formal.run.result_cache.keys import installed_code
from mirage_formal.support.errors import MirageError, RunError, TargetError


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """Result of checking one entry of the store.

    Attributes:
        path: Its directory.
        record: Its record; None if that cannot be read.
        replayed: Replayed evidence; None if it does not hold.
        why: Reason why it cannot be used here; empty if it can.
    """

    path: Path
    record: CacheEntry[EntryKey, SearchOutcome] | None
    replayed: ReplayResult | None
    why: str


def found_entry(place: SearchCache, name: str) -> Path:
    """Return the directory of the entry whose key begins with a name, or whose directory is named.

    Raises:
        RunError: There is none, or there are several.
    """
    path = Path(name)
    if (path / "entry.json").is_file():
        return path
    found = [entry for entry in place.entries() if entry.name.startswith(name)]
    if len(found) != 1:
        got = f"{len(found)} of them" if found else "none"
        hint = "mirage-formal tools store list names all entries"
        raise RunError(f"expected one entry whose key begins so, got {got}", where=name, hint=hint)
    return found[0]


def check_record(path: Path) -> CheckedEntry:
    """Check an entry by its record alone, without a replay."""
    try:
        record = SearchCache().read_record(path)
        return CheckedEntry(path, record, None, _other_code_reason(record.key))
    except (MirageError, OSError) as error:
        return CheckedEntry(path, None, None, error_line(error))


def check_evidence(path: Path) -> CheckedEntry:
    """Return the check of an entry of the store, whose evidence is replayed; an error is the reason in the result."""
    record: CacheEntry[EntryKey, SearchOutcome] | None = None
    try:
        entry = SearchCache().read(path)
        record = entry.record
        expect_entry_directory(path, record)
        return CheckedEntry(path, record, _replay_entry(entry), _other_code_reason(record.key))
    except (MirageError, OSError) as error:
        return CheckedEntry(path, record, None, error_line(error))


def _replay_entry(entry: StoredSearch) -> ReplayResult:
    """Replay an entry as ``recall.replay_evidence``, for the named target if it has the figures of the key."""
    identity = entry.record.key.identity
    target = load_target(identity.target)
    if sha256(msgspec.json.encode(target)) != identity.target_digest:
        what = f"expected the figures of {identity.target} as they are here, got others"
        raise TargetError(what, where=str(entry.path))
    return replay_evidence(entry, target)


def import_entry(place: SearchCache, directory: Path, *, migrate: bool) -> tuple[Path, ReplayResult]:
    """Import an entry from elsewhere into the store.

    Sound: see ``replay_evidence``: nothing is put into the store whose proofs were not replayed here.

    Args:
        place: The store.
        directory: Directory of the entry.
        migrate: Whether an entry of other code is imported as this code's. Its candidates are proved and have the same
            estimates; a search by this code might find better ones.

    Returns:
        Its directory, and the replayed evidence.

    Raises:
        MirageError: It is refused; says why.
    """
    if not directory.is_dir():
        hint = "earlier versions exported an entry as a zip file: unzip it into a directory"
        raise RunError("expected the directory of an entry, got none", where=str(directory), hint=hint)
    entry = place.read(directory)
    found, key = _replay_entry(entry), entry.record.key
    if (other := _other_code_reason(key)) and not migrate:
        hint = "--migrate takes it as this version's; or search again"
        raise RunError(f"expected an entry of this code, got {other}", where=str(directory), hint=hint)
    package, code = installed_code()
    own = msgspec.structs.replace(key, package=package, code=code)
    return place.put(own, entry.record.value, entry.files), found


def _other_code_reason(key: EntryKey) -> str:
    """Return the reason why a key of another version or other code is not looked up here, or empty."""
    package, code = installed_code()
    if key.package != package:
        return f"one of version {key.package}, not {package}"
    return "" if key.code == code else f"one of other code ({key.code[:12]}, not {code[:12]})"


__all__ = ["CheckedEntry", "check_evidence", "check_record", "found_entry", "import_entry"]
