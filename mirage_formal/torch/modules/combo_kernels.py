"""Late scheduling of Inductor's combo kernels, which put kernels independent of one another in one launch.

Inductor puts nodes of one level together, and a node's level is one more than the last of those that it needs. What
needs nothing is on the first level: the conversion of a mask has a launch of its own there, where something that is
written between two operators is on a later one, though only the second operator reads either. Counted from the end, a
node's level is one less than the first of those that need it, and both are in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_Node = TypeVar("_Node")
#: Options of Inductor's by which newer ones bound the memory that combo kernels take; they group without levels then.
BOUNDED: Final = ("combo_kernel_peak_memory_pct_threshold", "combo_kernel_peak_memory_increase_gb")


def latest(levels: Sequence[Sequence[_Node]], needs: Callable[[_Node], Iterable[_Node]]) -> list[list[_Node]]:
    """Return the same nodes, each on the last level on which it can be.

    Sound: a node is on an earlier level than all that need it. So nodes of one level do not need one another, no level
    needs a later one, and kernels that are each made of nodes of one level can be put in order.

    Args:
        levels: All nodes; a node is on a later level than those that it needs.
        needs: The nodes that one needs.
    """
    last = len(levels) - 1
    place: dict[_Node, int] = {}
    for level in reversed(levels):
        for node in level:
            before = place.setdefault(node, last) - 1
            for needed in needs(node):
                place[needed] = min(place.get(needed, before), before)
    found: list[list[_Node]] = [[] for _ in levels]
    for level in levels:
        for node in level:
            found[place[node]].append(node)
    return found


@contextmanager
def late() -> Iterator[None]:
    """Inductor groups by levels that are counted from the end, where it is known how to tell it so."""
    from torch._inductor import config, scheduler

    combo: Any = getattr(scheduler, "ForeachKernelSchedulerNode", None)
    own: Any = getattr(combo, "group_algorithm_for_combo_kernels", None)
    take: Any = getattr(combo, "set_group_algorithm_for_combo_kernels", None)
    if own is None or take is None or any(getattr(config, name, None) is not None for name in BOUNDED):
        yield
        return
    take(lambda scheduled: own(_Late(scheduled)))
    try:
        yield
    finally:
        take(own)


class _Late:
    """A scheduler of Inductor's whose levels are counted from the end."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _topological_sort_nodes(self) -> list[list[Any]]:
        return latest(self._scheduler._topological_sort_nodes(), self._scheduler._get_unmet_dep_nodes)


__all__ = ["BOUNDED", "late", "latest"]
