"""Placement of barriers (``__syncthreads``) between steps that access the same bytes of shared memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, replace

from mirage_formal.codegen.program.flat_graph import FlatOp, defined_tensors, operands_of
from mirage_formal.codegen.program.program import Barrier
from mirage_formal.codegen.program.step import AdvanceStep, Map, Reduction, Step


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """An access to a buffer in shared memory.

    Attributes:
        buffer: Its name.
        write: Whether it is a write.
        owner: A key; steps with equal owners give every element of the buffer to the same thread. None promises
            nothing.
    """

    buffer: str
    write: bool
    owner: Hashable = None


@dataclass(frozen=True, slots=True)
class Item:
    """A step with its accesses.

    Attributes:
        step: The step.
        parts: Its accesses in groups; the step has a barrier of its own between one group and the next.
        fixed: Whether the step is a barrier itself.
    """

    step: Step
    parts: tuple[tuple[SharedAccess, ...], ...] = ((),)

    @property
    def fixed(self) -> bool:
        """Return whether the step is a barrier itself."""
        return isinstance(self.step, Barrier)


def iteration_item(item: Item, number: int) -> Item:
    """Return the item of an iteration before the loop; a thread writes the same elements in each iteration.

    Args:
        item: The item of the first iteration.
        number: The iteration.
    """
    step = item.step
    parts = tuple(tuple(replace(one, owner=step) if one.write else one for one in part) for part in item.parts)
    return Item(AdvanceStep(step, number) if number and isinstance(step, Map | Reduction) else step, parts)


def advance_item(item: Item, lead: int, buffers: Set[str]) -> Item:
    """Return the item of a later iteration, without the accesses that need no barrier of their own.

    These are writes to buffers with a copy for each iteration in which a result is alive. No other step of the same
    iteration reads the copy that is written, and the barrier that begins an iteration lies behind its last readers.

    Args:
        item: The item.
        lead: The number of iterations by which it is ahead.
        buffers: The buffers with such copies.
    """
    step = item.step
    assert isinstance(step, Map | Reduction)
    parts = tuple(tuple(one for one in part if not (one.write and one.buffer in buffers)) for part in item.parts)
    return Item(AdvanceStep(step, lead), parts)


#: Whether two buffers share bytes.
Overlap = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class SynchronizedSteps:
    """Steps with barriers.

    Attributes:
        before: Steps before the loop.
        loop: Steps of one iteration.
        after: Steps after the loop.
    """

    before: tuple[Step, ...]
    loop: tuple[Step, ...]
    after: tuple[Step, ...]


def depth_order(ops: Sequence[FlatOp]) -> tuple[FlatOp, ...]:
    """Return the operators sorted by depth in the dataflow graph, so that operators behind one barrier are adjacent."""
    depth: dict[int, int] = {}
    levels: list[int] = []
    for op in ops:
        level = max((depth.get(n, 0) for n in operands_of(op)), default=0) + 1
        levels.append(level)
        depth.update(dict.fromkeys(defined_tensors(op), level))
    return tuple(op for _, op in sorted(zip(levels, ops, strict=True), key=lambda pair: pair[0]))


def synchronise(
    before: Sequence[Item], loop: Sequence[Item], after: Sequence[Item], overlap: Overlap, *, runs: bool = True
) -> SynchronizedSteps:
    """Return the steps with the barriers that they need, each as late as possible.

    On a straight line placing each barrier as late as possible gives the fewest. Around the loop the accesses at its
    end meet those at its beginning until nothing changes.

    Sound: in what is returned, of any two accesses by different threads to shared bytes, one of them a write, a barrier
    stands between them, the next iteration's included.

    Args:
        before: Steps before the loop.
        loop: Steps of one iteration.
        after: Steps after the loop.
        overlap: Whether two buffers share bytes.
        runs: Whether every block runs an iteration.
    """
    sync = _Sync(overlap)
    first = sync.line(before, frozenset())
    start = sync.state
    kept: set[int] = set()
    entry = start
    while True:
        sync.state = entry
        found = sync.round(loop, kept)
        if found == kept and sync.state <= entry:
            break
        kept, entry = found, start | sync.state
    second = _insert_barriers(loop, kept)
    # Where the loop runs, what was open before it counts only as far as the loop leaves it open.
    last = sync.line(after, (sync.state if loop else start) if runs else sync.state | start)
    return SynchronizedSteps(_insert_barriers(before, first), second, _insert_barriers(after, last))


def _insert_barriers(items: Sequence[Item], barriers: set[int]) -> tuple[Step, ...]:
    out: list[Step] = []
    for position, item in enumerate(items):
        if position in barriers:
            out.append(Barrier())
        out.append(item.step)
    return tuple(out)


class _Sync:
    def __init__(self, overlap: Overlap) -> None:
        self.overlap = overlap
        self.state: frozenset[SharedAccess] = frozenset()

    def line(self, items: Sequence[Item], state: frozenset[SharedAccess]) -> set[int]:
        self.state = state
        return self.round(items, set())

    def round(self, items: Sequence[Item], given: set[int]) -> set[int]:
        """Run one pass over the items and return the positions before which there is a barrier."""
        barriers = set(given)
        for position, item in enumerate(items):
            if item.fixed or position in barriers:
                self.state = frozenset()
            for number, part in enumerate(item.parts):
                if number > 0:
                    self.state = frozenset()
                elif any(self._conflict(a, b) for a in self.state for b in part):
                    barriers.add(position)
                    self.state = frozenset()
                self.state |= frozenset(part)
        return barriers

    def _conflict(self, a: SharedAccess, b: SharedAccess) -> bool:
        if not (a.write or b.write) or (a.buffer == b.buffer and a.owner is not None and a.owner == b.owner):
            return False
        return a.buffer == b.buffer or self.overlap(a.buffer, b.buffer)
