"""Where compiled kernels are kept between runs, safely for several processes at once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir(name: str) -> Path:
    """The directory of one cache, made if need be: under ``MIRAGE_FORMAL_CACHE`` or the platform's cache directory."""
    root = os.environ.get("MIRAGE_FORMAL_CACHE") or _platform_dir()
    path = Path(root) / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def _platform_dir() -> str:
    import platformdirs  # where kernels only run it need not be there

    return platformdirs.user_cache_dir("mirage_formal")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: readers see all of it or nothing, and the last of several writers wins."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
