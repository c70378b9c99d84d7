"""Cache directories for compiled kernels."""

from __future__ import annotations

import os
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
