"""Directory layout of the store, locks for writing an entry, and removal of old entries.

    <root>/entries/<target>/<program>/<key>/    an entry; the names are first digits of digests
    <root>/locks/<key>.lock                     held by the process that makes an entry
    <root>/parts/                               entries being written or removed

An entry is written in ``parts`` and renamed, so that readers see either all of it or nothing.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from mirage_formal.device.cache import cache_dir
from mirage_formal.records.store_entry import ENTRY_FILE, EntryKey, entry_code

#: Set, it turns the store off for this process and those that it starts.
SWITCH: Final = "MIRAGE_FORMAL_NO_CACHE"
#: Names the store's directory; without it, it is ``store`` in the user's cache directory.
ROOT: Final = "MIRAGE_FORMAL_STORE"
#: Most bytes of all entries together; the least recently used ones are removed first.
MOST_BYTES: Final = 1 << 30
ENTRIES: Final = "entries"
_LOCKS: Final = "locks"
_PARTS: Final = "parts"
#: Digits of the program's and the key's digests in names.
_PROGRAM: Final = 16
_KEY: Final = 32
#: Seconds after which the unfinished files of a killed process are removed.
_STALE_S: Final = 86_400.0
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._-]")
_HELD: ContextVar[frozenset[str]] = ContextVar("held entries", default=frozenset())


def store_root() -> Path:
    """Return the store's directory, which need not exist."""
    named = os.environ.get(ROOT)
    return Path(named) if named else cache_dir("store")


def is_switched_off() -> bool:
    """Return whether this process uses no store."""
    return bool(os.environ.get(SWITCH))


class StoreDirectory:
    """The directory of a store.

    Attributes:
        root: Its path.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = store_root() if root is None else root

    def path(self, key: EntryKey) -> Path:
        """Return the directory of an entry, which need not exist."""
        return self.program(key.identity.program, key.identity.target) / entry_code(key)[:_KEY]

    def program(self, digest: str, target: str) -> Path:
        """Return the directory of all entries of a program for a target."""
        return self.root / ENTRIES / _UNUSUAL.sub("_", target)[:64] / digest[:_PROGRAM]

    def knows(self, digest: str) -> bool:
        """Return whether there is an entry of a program, for any target."""
        return any(self.root.glob(f"{ENTRIES}/*/{digest[:_PROGRAM]}"))

    def entries(self) -> list[Path]:
        """Return the directories of all entries, by name."""
        return sorted(path.parent for path in self.root.glob(f"{ENTRIES}/*/*/*/{ENTRY_FILE}"))

    @contextmanager
    def making(self, key: EntryKey, seconds: float | None) -> Iterator[bool]:
        """Hold the lock for making an entry; yield whether it is held.

        It is not held if others needed longer than the given seconds, None being any time, or if there can be no lock.
        A process that was killed holds nothing.
        """
        code = entry_code(key)[:_KEY]
        held = _HELD.get()
        if code in held:
            yield True
            return
        lock = self._lock(code)
        try:
            lock.acquire(timeout=-1 if seconds is None else max(seconds, 0.0))
        except (Timeout, OSError, NotImplementedError):
            yield False
            return
        token = _HELD.set(held | {code})
        try:
            yield True
        finally:
            _HELD.reset(token)
            lock.release()

    def _lock(self, code: str) -> FileLock:
        path = self.root / _LOCKS / f"{code}.lock"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path, fallback_to_soft=False)

    @contextmanager
    def building(self) -> Iterator[Path]:
        """Yield an empty directory on the store's file system, removed at the end if it is still there.

        Raises:
            OSError: It cannot be made.
        """
        path = self.root / _PARTS / f"{os.getpid()}-{secrets.token_hex(8)}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def drop(self, entry: Path) -> None:
        """Remove an entry atomically: readers see either all of it or nothing.

        Raises:
            OSError: It cannot be removed.
        """
        with self.building() as aside, suppress(FileNotFoundError):
            entry.rename(aside / "entry")
        with suppress(OSError):  # others have put something there, or are about to
            entry.parent.rmdir()

    def settle(self, building: Path, entry: Path) -> None:
        """Move a built directory to the path of an entry, replacing an existing one.

        Raises:
            OSError: It cannot be put there.
        """
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            building.rename(entry)
        except OSError:
            self.drop(entry)
            entry.parent.mkdir(parents=True, exist_ok=True)
            building.rename(entry)

    def used(self, entry: Path) -> None:
        """Record the time of an entry's use."""
        with suppress(OSError):
            os.utime(entry / ENTRY_FILE)

    def shrink(self, sizes: dict[Path, int]) -> None:
        """Remove the least recently used entries, until all are within the bound.

        Args:
            sizes: Bytes of each entry.
        """
        last = {entry: _last_use(entry) for entry in sizes}
        total = sum(sizes.values())
        for entry in sorted(sizes, key=lambda entry: last[entry])[:-1]:
            if total <= MOST_BYTES:
                break
            with suppress(OSError):
                self.drop(entry)
            total -= sizes[entry]
        self._sweep()

    def _sweep(self) -> None:
        """Remove unfinished files of processes that were killed."""
        with suppress(OSError):
            for path in list((self.root / _PARTS).iterdir()):
                if path.stat().st_mtime < time.time() - _STALE_S:
                    shutil.rmtree(path, ignore_errors=True)


def _last_use(entry: Path) -> float:
    try:
        return (entry / ENTRY_FILE).stat().st_mtime
    except OSError:
        return 0.0


__all__ = ["ENTRIES", "MOST_BYTES", "ROOT", "SWITCH", "StoreDirectory", "is_switched_off", "store_root"]
