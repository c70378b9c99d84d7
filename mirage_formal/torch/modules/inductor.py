"""As-late-as-possible scheduling of Inductor's combo kernels, which merge independent kernels to one launch.

Inductor merges nodes of one level, and a node's level is one more than the highest level of its operands (as soon as
possible). A node without operands is on the first level. So the conversion of a mask gets a launch of its own there,
and a tensor written between two operators is on a later level, though only the second operator reads either. With
levels counted from the end, a node's level is one less than the lowest level of its readers, and both nodes share a
launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

_Node = TypeVar("_Node")
#: Options by which newer versions of Inductor bound the memory of combo kernels; they group without levels then.
BOUNDED: Final = ("combo_kernel_peak_memory_pct_threshold", "combo_kernel_peak_memory_increase_gb")


def schedule_late(levels: Sequence[Sequence[_Node]], needs: Callable[[_Node], Iterable[_Node]]) -> list[list[_Node]]:
    """Return the same nodes, each moved to its latest possible level.

    Sound: a node is on an earlier level than all that need it. So nodes of one level do not need one another, no level
    needs a later one, and kernels that are each made of nodes of one level can be put in order.

    Args:
        levels: All nodes; a node is on a later level than its operands.
        needs: Function that returns the operands of a node.
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
def late_combo_kernels() -> Iterator[None]:
    """Make Inductor group combo kernels by levels counted from the end, for versions where that is possible."""
    from torch._inductor import config, scheduler

    combo: Any = getattr(scheduler, "ForeachKernelSchedulerNode", None)
    own: Any = getattr(combo, "group_algorithm_for_combo_kernels", None)
    take: Any = getattr(combo, "set_group_algorithm_for_combo_kernels", None)
    if own is None or take is None or any(getattr(config, name, None) is not None for name in BOUNDED):
        yield
        return
    take(lambda scheduled: own(_LateScheduler(scheduled)))
    try:
        yield
    finally:
        take(own)


class _LateScheduler:
    """Proxy of an Inductor scheduler whose levels are counted from the end."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _topological_sort_nodes(self) -> list[list[Any]]:
        return schedule_late(self._scheduler._topological_sort_nodes(), self._scheduler._get_unmet_dep_nodes)


__all__ = ["BOUNDED", "late_combo_kernels", "schedule_late"]
