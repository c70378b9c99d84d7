"""Lock of a directory of a run, or of a cache entry, for one writer at a time; an error names the holder.

The lock is the operating system's, on a file beside the directory (``.NAME.lock``), so that the directory has only
evidence and a killed process holds no lock. The file names the holder, and is removed when it ends.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from filelock import FileLock, Timeout

from mirage_formal.records import name_path_in_errors
from mirage_formal.support.errors import RunError

_HELD: ContextVar[tuple[Path, ...]] = ContextVar("held", default=())
#: Errors of a file system without locks, or of a parent directory that cannot be written.
_NO_LOCK: Final = frozenset(
    {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EACCES, errno.EPERM, errno.EROFS}
)
#: Attempts while the lock file of a starting or ending holder is missing or empty; seconds between them.
_TRIES: Final = 40
_PAUSE_S: Final = 0.025
_MAX_BYTES: Final = 4096


class LockWarning(UserWarning):
    """Warning: the lock excludes only searches on this machine."""


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holder of the lock of a directory.

    Attributes:
        mirage_formal: Always "lock": the file is ours.
        directory: Locked directory.
        pid, host: Process and host of the holder.
        since: Local time at which it began, with its offset.
        command: Command line of the holder.
    """

    mirage_formal: str
    directory: str
    pid: int
    host: str
    since: str
    command: str


@contextmanager
def lock_directory(root: Path, wait_s: float | None = 0.0, *, fallback: bool = True) -> Iterator[None]:
    """Hold the lock of a directory, which need not exist, and of everything below it.

    The lock is reentrant: a nested use for the same directory, or one below it, takes no lock.

    Args:
        root: The directory.
        wait_s: Seconds to wait for another holder; None is any time.
        fallback: Whether a lock of this user on this machine is taken, with a warning, where there can be no other.

    Raises:
        RunError: Another process or thread holds it; says who, where, and since when.
        OSError: There can be no lock.
    """
    place = Path(os.path.realpath(root))
    held = _HELD.get()
    if any(place == one or one in place.parents for one in held):
        yield
        return
    lock, path = _hold(place, -1 if wait_s is None else max(wait_s, 0.0), fallback)
    token = _HELD.set((*held, place))
    try:
        yield
    finally:
        _HELD.reset(token)
        with suppress(OSError):
            path.unlink(missing_ok=True)  # while it is held: who has opened it sees that it is gone, and opens another
        lock.release()


def lock_holder(root: Path) -> Holder | None:
    """Return who holds the lock of a directory or of one above it, as the lock files say; None if nobody is known to.

    It takes no lock, so that it never keeps a writer out.
    """
    place = Path(os.path.realpath(root))
    for one in (place, *place.parents):
        holder = _read_holder(one.parent / f".{_short_file_name(one.name)}.lock")
        if holder is not None and not _is_holder_dead(holder):
            return holder
    return None


def _hold(place: Path, wait_s: float, fallback: bool) -> tuple[FileLock, Path]:
    beside = place.parent / f".{_short_file_name(place.name)}.lock"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return _acquire_lock(beside, place, wait_s), beside
    except OSError as error:
        if error.errno not in _NO_LOCK or not fallback:
            raise
        why = error.strerror
    # A directory that cannot be written is reported later.
    code = hashlib.sha256(os.fsencode(place)).hexdigest()[:24]
    own = Path(tempfile.gettempdir()) / f"mirage_formal-{os.getuid() if hasattr(os, 'getuid') else 0}-{code}.lock"
    lock = _acquire_lock(own, place, wait_s)
    text = f"{place}: no lock can be held at {beside} ({why}): only searches of this user on this machine are kept out"
    warnings.warn(text, LockWarning, stacklevel=4)
    return lock, own


def _acquire_lock(path: Path, place: Path, wait_s: float) -> FileLock:
    """Return the lock at a path, or raise the error that names its holder."""
    for left in reversed(range(_TRIES)):
        _refuse_foreign(path)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644))  # else a place without files looks like a held lock
        lock = FileLock(path, timeout=wait_s, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            holder = _read_holder(path)
            if (holder is None or _is_holder_dead(holder)) and left:
                time.sleep(_PAUSE_S)
                continue
            raise _holder_error(place, holder) from None
        try:
            with name_path_in_errors(path):
                path.write_bytes(msgspec.json.encode(_own_holder(place)) + b"\n")
        except BaseException:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            lock.release()
            raise
        return lock
    raise AssertionError("the last try ends")


def _holder_error(place: Path, holder: Holder | None) -> RunError:
    who = "another process"
    if holder is not None:
        who = f"process {holder.pid} on {holder.host}, since {holder.since}: {holder.command}"
    hint = "wait until it has ended, or choose another directory"
    return RunError(f"expected to be the only one who writes here, but so does {who}", where=str(place), hint=hint)


def _own_holder(place: Path) -> Holder:
    command = " ".join(sys.orig_argv)[:400]
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    return Holder("lock", _text(str(place)), os.getpid(), socket.gethostname(), since, _text(command))


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _read_holder(path: Path) -> Holder | None:
    try:
        return _parse_holder(_read_lock(path))
    except OSError:
        return None


def _read_lock(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES)


def _parse_holder(data: bytes) -> Holder | None:
    try:
        return msgspec.json.decode(data, type=Holder)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_holder_dead(holder: Holder) -> bool:
    """Return whether a holder was killed, so that the lock file is stale."""
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _refuse_foreign(path: Path) -> None:
    """Refuse a file of the lock's name that is not a lock of ours; it is neither written nor removed.

    The file is read once: a holder that starts writes into it at any time.
    """
    ours = not path.is_symlink() and (path.is_file() or not path.exists())
    with suppress(FileNotFoundError):
        if ours and (data := _read_lock(path)):
            ours = _parse_holder(data) is not None
    if not ours:
        what = "expected a lock of an earlier search or no such file, got another file"
        raise RunError(what, where=str(path), hint="move it away, or choose another directory")


def _short_file_name(name: str) -> str:
    data = os.fsencode(name)
    return name if len(data) <= 200 else hashlib.sha256(data).hexdigest()


__all__ = ["Holder", "LockWarning", "lock_directory", "lock_holder"]
