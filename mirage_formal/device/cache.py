"""Cache directories for compiled kernels, safe for concurrent processes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir(name: str) -> Path:
    """Return the directory of one cache, under ``MIRAGE_FORMAL_CACHE`` or the platform's cache directory; create it."""
    root = os.environ.get("MIRAGE_FORMAL_CACHE") or _platform_dir()
    path = Path(root) / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _platform_dir() -> str:
    import platformdirs  # where kernels only run it need not be there

    return platformdirs.user_cache_dir("mirage_formal")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, and the last of several writers wins."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
