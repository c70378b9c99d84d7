"""Choice of the kernels that trigger their dependent launch early, by measured times of whole candidates.

A kernel that is launched early copies its first input tiles while the previous launch still runs, but its waiting
threads occupy the multiprocessors. The benefit depends on both kernels and on free resources, and cannot be measured on
one kernel. So each finalist is measured as a whole with both choices (docs/kernels.md). The same holds for a kernel
whose fastest schedule keeps more bytes in flight, but leaves no room for the next kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirage_formal.codegen.executable import Executable, KernelLaunch

#: Most kernels that are flipped one by one.
_MOST_SINGLE: Final = 8


def dependent_producers(executable: Executable) -> tuple[int, ...]:
    """Return the operators whose kernels are followed by a dependent launch, in launch order."""
    pairs = zip(executable.launches, executable.launches[1:], strict=False)
    return tuple(
        before.operator
        for before, behind in pairs
        if isinstance(before, KernelLaunch) and isinstance(behind, KernelLaunch) and behind.dependent
    )


def choose_early_launches(operators: tuple[int, ...], faster: Callable[[frozenset[int]], bool]) -> frozenset[int]:
    """Return the operators with early kernels: all or none, whichever is faster, then with single ones flipped.

    Args:
        operators: Operators that can be early (``dependent_producers``), or whose kernels can leave room.
        faster: Function that measures a choice and returns whether it beats the fastest one so far.
    """
    every = frozenset(operators)
    best = every if every and faster(every) else frozenset()
    return flip_one_by_one(operators, best, faster) if len(every) > 1 else best


def flip_one_by_one(
    operators: tuple[int, ...], best: frozenset[int], faster: Callable[[frozenset[int]], bool]
) -> frozenset[int]:
    """Flip each operator of ``best`` in turn, and keep the flips that are faster; see ``choose_early_launches``."""
    for one in operators[:_MOST_SINGLE]:
        if faster(best ^ {one}):
            best ^= {one}
    return best


__all__ = ["choose_early_launches", "dependent_producers", "flip_one_by_one"]
