"""Threads of torch and of numpy's products while regions are compared.

Operators of a small region end before a second thread has begun where other processes compute, and the first one waits
for it. So torch, and OpenBLAS under numpy, get as many threads as the work is worth, and afterwards what they had.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Final

import torch

#: Work for each thread, in elements or 16 multiplications.
THREAD_WORK: Final = 1 << 21
#: Forms of the names of OpenBLAS's functions, in the builds that numpy has.
_OPENBLAS: Final = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
_Functions = tuple[Callable[[], int], Callable[[int], None]]


@contextmanager
def limit_threads(work: int) -> Iterator[None]:
    """Let torch and numpy compute with as many threads as some work is worth, and with what they had before afterwards.

    Args:
        work: Work of an evaluation, in elements or 16 multiplications.
    """
    pairs = [(torch.get_num_threads, torch.set_num_threads), openblas_functions()]
    with ExitStack() as stack:
        for get, change in filter(None, pairs):
            before = get()
            wanted = max(1, min(before, work // THREAD_WORK))
            if wanted != before:
                change(wanted)
                stack.callback(change, before)
        yield


@cache
def openblas_functions() -> _Functions | None:
    """Return OpenBLAS's functions for its number of threads, in the library that numpy has loaded; None without it."""
    names = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
    file = next((sys.modules[name].__file__ for name in names if name in sys.modules), None)
    if file is None:
        return None
    try:
        library = ctypes.CDLL(file)  # a symbol is also looked up in the libraries that it needs
    except OSError:
        return None
    for form in _OPENBLAS:
        get = getattr(library, form.format("get_num_threads"), None)
        change = getattr(library, form.format("set_num_threads"), None)
        if get is not None and change is not None:
            get.restype, change.restype, change.argtypes = ctypes.c_int, None, [ctypes.c_int]
            return get, change
    return None


__all__ = ["limit_threads", "openblas_functions"]
