"""Cache directory: entries that are written whole, bound to their keys, and compared in full when they are read.

    <root>/<kind>/<key>/entry.json    key, value, and the digest of every other file; <key> are digits of its digest
    <root>/<kind>/<key>/...           other files of the value
    <root>/<kind>/.<key>.lock         held by the process that makes an entry, where one waits for another
    <root>/parts/                     entries being written or removed

An entry is written in ``parts`` and renamed, so that readers see either all of it or nothing.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from mirage_formal.records import open_sealed, read_file, resolve_inside, seal_record, sha256, write_files
from mirage_formal.records.store_entry import ENTRY_FILE, FORMAT, CacheEntry
from mirage_formal.support.errors import FormatError, MirageError, RunError
from mirage_formal.support.limits import MAX_JOURNAL_BYTES
from mirage_formal.support.strict_json import load_strict_json

#: Names the directory of all caches; without it, it is the user's cache directory.
CACHE_VARIABLE: Final = "MIRAGE_FORMAL_CACHE"
#: Kinds of entries beside searches, by their directories below the root.
KINDS: Final = ("cubins", "emulator", "tuning/plans", "tuning/kernels", "tuning/finals", "tuning/triton")
#: Most bytes of all entries of a kind together; the least recently used ones are removed first.
MOST_BYTES: Final = 1 << 30
#: An entry is removed for others about once in this share of ``MOST_BYTES`` that is written.
_SHARE: Final = 64
#: Digits of a key's digest in the name of an entry.
_KEY: Final = 32
#: Attempts at an entry that other processes are replacing.
_TRIES: Final = 8
#: Seconds after which the unfinished files of a killed process are removed.
_STALE_S: Final = 86_400.0
#: Directory of searches that a time limit has cut, and seconds after which one that is not continued is removed.
UNFINISHED: Final = "unfinished"
_UNFINISHED_S: Final = 7 * 86_400.0
_HINT: Final = "make it again; mirage-formal store clear removes what cannot be used"
_NO_FILES: Final[Mapping[str, bytes]] = MappingProxyType({})

K = TypeVar("K")
V = TypeVar("V")


class CacheWarning(UserWarning):
    """Warning: an entry of a cache was refused; its contents are made again."""


def cache_root() -> Path:
    """Return the directory of all caches, which need not exist."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    import platformdirs  # where kernels only run it need not be there

    return Path(platformdirs.user_cache_dir("mirage_formal"))


@dataclass(frozen=True, slots=True)
class StoredEntry(Generic[K, V]):
    """An entry whose files all have the recorded digests.

    Attributes:
        path: Its directory.
        record: entry.json.
        files: The other files' bytes by path, as they were when they were compared.
    """

    path: Path
    record: CacheEntry[K, V]
    files: Mapping[str, bytes]


class Cache(Generic[K, V]):
    """The entries of one kind.

    Args:
        kind: Name of the kind, which is that of its directory.
        record: Type of its entries.
        root: Directory of the caches; ``cache_root()`` if None.
    """

    #: Pattern of the paths of entries below the directory of the kind.
    _pattern = "*"

    def __init__(self, kind: str, record: type[CacheEntry[K, V]], root: Path | None = None) -> None:
        self.root = cache_root() if root is None else root
        self.kind, self._record = kind, record

    def path(self, key: K) -> Path:
        """Return the directory of an entry, which need not exist."""
        return self.root / self.kind / entry_code(key)[:_KEY]

    def entries(self) -> list[Path]:
        """Return the directories of all entries, by name."""
        return sorted(path.parent for path in self.root.glob(f"{self.kind}/{self._pattern}/{ENTRY_FILE}"))

    def size(self) -> int:
        """Return the bytes of all entries together."""
        return sum(map(_size, self.entries()))

    # --- reading

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none, or its entry is refused, which a warning says.

        Sound: the entry is as it was written, and for this key: one in the place of another is refused.
        """
        path = self.path(key)
        for left in reversed(range(_TRIES)):
            if not os.path.isdir(path):
                break
            try:
                record = self.read(path).record
                expect_key(path, record, key)
                self.record_use(path)
                return record.value
            except (MirageError, OSError) as error:
                if not left:
                    self.refuse(path, error)
        return None

    def read(self, path: Path) -> StoredEntry[K, V]:
        """Read an entry and compare every file with its digest.

        Sound: exactly the listed files are there, none is a link, and each has its digest.

        Raises:
            MirageError: Names the first file that is missing, too many or changed.
        """
        record = self.read_record(path)
        found = _files_below(path) - {ENTRY_FILE}
        if wrong := sorted(found ^ set(record.files)):
            what = f"expected the {len(record.files)} files that are listed, got {'' if wrong[0] in found else 'no '}"
            raise FormatError(f"{what}{wrong[0]}", where=str(path), hint=_HINT)
        files = {name: read_file(resolve_inside(path, name), MAX_JOURNAL_BYTES) for name in record.files}
        for name, code in record.files.items():
            if sha256(files[name]) != code:
                raise FormatError("expected the file that was written, got another", where=str(path / name), hint=_HINT)
        return StoredEntry(path, record, files)

    def read_record(self, path: Path) -> CacheEntry[K, V]:
        """Read entry.json of the directory of an entry.

        Raises:
            MirageError: There is none, it is of another format or kind, or it is not as it was written.
        """
        where, data = str(path / ENTRY_FILE), read_file(path / ENTRY_FILE)
        value = load_strict_json(data, where)
        got = value.get("format") if isinstance(value, dict) else None
        if got != FORMAT:
            what = f"format: expected {FORMAT}, got {str(got)[:40]}: another version of this package wrote it"
            raise FormatError(what, where=where, hint=_HINT)
        record = open_sealed(data, self._record, where)
        if record.kind != self.kind:
            raise FormatError(f"kind: expected {self.kind}, got {record.kind[:40]}", where=where, hint=_HINT)
        return record

    # --- writing

    def put(self, key: K, value: V, files: Mapping[str, bytes] = _NO_FILES) -> Path:
        """Write an entry, replacing one with the same key; return its directory.

        Raises:
            OSError: It cannot be written.
        """
        path = self.path(key)
        with self.building() as made:
            self.write(made, key, value, files)
            for left in reversed(range(_TRIES)):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    made.rename(path)
                    break
                except OSError:  # there is an earlier one
                    if not left:
                        raise
                    self.drop(path)
        if secrets.randbelow(MOST_BYTES) < _SHARE * _size(path):
            self.shrink()
        return path

    def write(self, made: Path, key: K, value: V, files: Mapping[str, bytes]) -> None:
        """Write the files of an entry to an empty directory, and entry.json about them."""
        write_files(made, files)
        listed = {name: sha256(data) for name, data in files.items()}
        size = sum(map(len, files.values()))
        record = self._record(kind=self.kind, key=key, value=value, files=listed, bytes=size)
        (made / ENTRY_FILE).write_bytes(seal_record(record))

    @contextmanager
    def building(self) -> Iterator[Path]:
        """Yield an empty directory on the file system of the entries, removed at the end if it is still there.

        Raises:
            OSError: It cannot be made.
        """
        path = self.root / "parts" / f"{os.getpid()}-{secrets.token_hex(8)}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    # --- removal

    def refuse(self, path: Path, error: Exception) -> None:
        """Remove an entry that is not valid, and warn: it is made again next."""
        text = f"{path}: refused, and made again: {error_line(error)}"
        warnings.warn(text, CacheWarning, stacklevel=3)
        with suppress(OSError):
            self.drop(path)

    def drop(self, entry: Path) -> None:
        """Remove an entry atomically: readers see either all of it or nothing.

        Raises:
            OSError: It cannot be removed.
        """
        with self.building() as aside, suppress(FileNotFoundError):
            entry.rename(aside / "entry")
        with suppress(OSError):  # others have put something there, or are about to
            entry.parent.rmdir()

    def remove_unfinished(self, key: K) -> None:
        """Remove the directory of a search that a time limit has ended, if there is one."""
        shutil.rmtree(self.unfinished(key), ignore_errors=True)

    def unfinished(self, key: K) -> Path:
        """Return the directory of a search that a time limit has ended, which need not exist."""
        return self.root / UNFINISHED / entry_code(key)[:_KEY]

    def record_use(self, entry: Path) -> None:
        """Record the time of an entry's use."""
        with suppress(OSError):
            os.utime(entry / ENTRY_FILE)

    def shrink(self) -> None:
        """Remove the least recently used entries until all are within the bound, and what killed processes left."""
        sizes = {path: _size(path) for path in self.entries()}
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: _last_use(path / ENTRY_FILE))[:-1]:
            if total <= MOST_BYTES:
                break
            with suppress(OSError):
                self.drop(path)
            total -= sizes[path]
        for name, seconds in (("parts", _STALE_S), (UNFINISHED, _UNFINISHED_S)):
            for path in (self.root / name).glob("*"):
                if _last_use(path) < time.time() - seconds:
                    shutil.rmtree(path, ignore_errors=True)


def other_kinds() -> list[Cache[Any, Any]]:
    """Return the caches in ``cache_root()`` without that of searches, which has a directory of its own."""
    return [Cache(kind, CacheEntry[Any, Any]) for kind in KINDS]


def entry_code(key: object) -> str:
    """Return the sha256 over a key: compact JSON, the fields in declared order."""
    return sha256(msgspec.json.encode(key))


def expect_key(path: Path, record: CacheEntry[K, V], key: K) -> None:
    """Refuse an entry whose key differs from the requested one.

    Raises:
        FormatError: Names the first field that differs.
    """
    if (other := key_difference(key, record.key)) is not None:
        raise FormatError(f"expected an answer to what is asked, got {other}", where=str(path), hint=_HINT)


def expect_entry_directory(path: Path, record: CacheEntry[K, V]) -> None:
    """Refuse an entry whose directory does not have the name that its key determines.

    Raises:
        RunError: It has another name.
    """
    code = entry_code(record.key)
    if not path.name or not code.startswith(path.name):
        what = f"expected the entry of that name, got the one of {code[:_KEY]}"
        raise RunError(what, where=str(path), hint=_HINT)


def key_difference(asked: object, got: object, name: str = "key") -> str | None:
    """Return the first field in which two keys differ, with both values; None if they are equal."""
    if isinstance(asked, msgspec.Struct) and isinstance(got, msgspec.Struct):
        fields = ((field, getattr(asked, field), getattr(got, field)) for field in asked.__struct_fields__)
        return next((found for field, a, b in fields if (found := key_difference(a, b, field)) is not None), None)
    return None if asked == got else f"another {name}: {str(got)[:40]}, not {str(asked)[:40]}"


def error_line(error: Exception) -> str:
    """Return the reason of an error as one line."""
    if isinstance(error, MirageError):
        return f"{error.where}: {error.what}" if error.where else error.what
    return str(error)


def _files_below(root: Path) -> set[str]:
    """Return the relative paths of all files and links below a directory."""
    found: set[str] = set()
    for folder, names, files in os.walk(root, followlinks=False):
        below = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        found |= {f"{below}{name}" for name in (*files, *links)}
    return found


def _size(entry: Path) -> int:
    with suppress(OSError):
        return sum(path.stat().st_size for path in entry.rglob("*"))
    return 0


def _last_use(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


__all__ = [
    "CACHE_VARIABLE",
    "MOST_BYTES",
    "Cache",
    "CacheWarning",
    "StoredEntry",
    "cache_root",
    "entry_code",
    "error_line",
    "expect_entry_directory",
    "expect_key",
    "key_difference",
    "other_kinds",
]
