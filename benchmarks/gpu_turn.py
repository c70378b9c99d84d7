"""One process at a time on the GPU, while others compile, search and make kernels on the CPU.

Whatever is timed to be chosen or reported holds a file's lock: Inductor's candidates, this package's kernels and
operators, and rows of tables. The lock may be taken again by who holds it.
"""

from __future__ import annotations

import fcntl
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any


class Turn:
    """A lock of processes, by a file.

    Args:
        path: The file; None: nothing is held.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._own, self._depth = path, threading.RLock(), 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> None:
        self._own.acquire()
        self._depth += 1
        if self._depth == 1 and self._path is not None:
            self._file = self._path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._file is not None:
            self._file.close()  # closed, it is let go
            self._file = None
        self._own.release()

    def taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that holds it while it runs."""

        @functools.wraps(function)
        def run(*given: Any, **named: Any) -> Any:
            with self:
                return function(*given, **named)

        return run


def everything_takes(turn: Turn) -> None:
    """Let all that times on a GPU in this process hold a lock meanwhile, for the rest of its life."""
    from torch._inductor.runtime.benchmarking import benchmarker

    from mirage_formal.run.autotuning import timing
    from mirage_formal.torch.modules import graph_timing

    cls: Any = type(benchmarker)
    cls.benchmark_gpu = turn.taking(cls.benchmark_gpu)
    graph_timing.alone = lambda: turn
    run = timing.Child.run

    def alone(self: timing.Child, *given: Any) -> Iterator[Any]:
        with turn:
            yield from run(self, *given)

    child: Any = timing.Child
    child.run = alone
