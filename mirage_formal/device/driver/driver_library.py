"""Functions of the CUDA driver's library, libcuda, by their names."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def driver_function(name: str) -> Any | None:
    """Return a function of the driver's library; None if there is no such function, or no library."""
    try:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return None


__all__ = ["driver_function"]
