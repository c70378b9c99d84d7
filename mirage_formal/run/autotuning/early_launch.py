"""Choice of kernels that let the next launch start as soon as they begin: by measured times of all launches.

A kernel that is started early has its first copies of inputs on their way while the launch before still runs, but its
threads wait beside those that work. Whether that pays depends on both kernels and on what the multiprocessors have
left, and no kernel shows it alone, so a finalist is measured with either, as a whole (docs/kernels.md). So it is with
kernels that would be a little faster alone with more bytes in flight, but leave no room for the next one with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirage_formal.kernels.executable import Executable, KernelLaunch

#: Kernels that are tried differently from all others.
_MOST_SINGLE: Final = 8


def dependent_producers(executable: Executable) -> tuple[int, ...]:
    """Operators whose kernels are followed by a dependent launch, in the order of their launches."""
    pairs = zip(executable.launches, executable.launches[1:], strict=False)
    return tuple(
        before.operator
        for before, behind in pairs
        if isinstance(before, KernelLaunch) and isinstance(behind, KernelLaunch) and behind.dependent
    )


def overlapped(operators: tuple[int, ...], faster: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """The operators whose kernels are early: all of them or none, whichever is faster, then one by one the other way.

    Args:
        operators: Those that may be early (``dependent_producers``); likewise those that may leave room.
        faster: Measures the candidate so; whether it is faster than whatever was the fastest before.
    """
    every = frozenset(operators)
    best = every if every and faster(every) else frozenset()
    return singly(operators, best, faster) if len(every) > 1 else best


def singly(
    operators: tuple[int, ...], best: frozenset[int], faster: Callable[[frozenset[int]], bool]
) -> frozenset[int]:
    """Flip each operator of ``best`` in turn, and keep the flips that are faster; see ``overlapped``."""
    for one in operators[:_MOST_SINGLE]:
        if faster(best ^ {one}):
            best ^= {one}
    return best


__all__ = ["dependent_producers", "overlapped", "singly"]
