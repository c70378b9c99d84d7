"""Reading of untrusted files: regular ones, of bounded size."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mirage_formal.support.errors import RunError
from mirage_formal.support.limits import MAX_FILE_BYTES


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file of bounded size; symbolic links are refused.

    Raises:
        RunError: Missing, not a regular file, or too large.
    """
    expect_regular(path, limit)
    return path.read_bytes()


def expect_regular(path: Path, limit: int) -> None:
    """Refuse a path that is no regular file of at most ``limit`` bytes.

    Raises:
        RunError: Missing, a link, not a regular file, or too large.
    """
    hint = "give a directory that a search has written"
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise RunError("expected a regular file, got nothing there", where=str(path), hint=hint) from None
    mode, size = found.st_mode, found.st_size
    if stat.S_ISLNK(mode):
        raise RunError("expected a regular file, got a symbolic link", where=str(path), hint=hint)
    if not stat.S_ISREG(mode):
        got = "a directory" if stat.S_ISDIR(mode) else "nothing there"
        raise RunError(f"expected a regular file, got {got}", where=str(path), hint=hint)
    if size > limit:
        raise RunError(f"expected at most {limit} bytes, got {size}", where=str(path), hint=hint)
