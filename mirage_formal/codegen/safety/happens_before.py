"""The happens-before order of shared-memory accesses: barriers, copy groups and waits, followed through all iterations.

Loops that contain barriers, commits, waits or statements about items are run; all others keep their variables. An epoch
is the interval between two barriers. Threads meet at barriers, so accesses of different epochs are ordered and those of
one epoch are not. Copies of the producer are ordered with accesses of consumers by items that these await and release.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import IntFlag
from itertools import product
from math import prod
from typing import assert_never

from mirage_formal.codegen.program.access import GRID, Access, Branch, Loop, Mode, Node, StatementAccesses, Sync
from mirage_formal.codegen.program.integers import conjuncts, fold, variables
from mirage_formal.codegen.program.program import (
    Acquire,
    Await,
    Barrier,
    Commit,
    Int,
    IntExpr,
    Param,
    Release,
    SharedBuffer,
    TileCopy,
    WaitGroups,
)

#: The most steps that are followed.
MAX_STEPS = 400_000
#: The most blocks whose orders of events are compared with each other.
MAX_WAYS = 4_096
#: The longest loop of copies and other accesses to the same bytes that is run. In longer loops each access counts as
#: coming after each copy.
MAX_COPIES = 16


class TimelineError(Exception):
    """The order of events cannot be determined; the Program is not shown safe."""


@dataclass(frozen=True, slots=True)
class LoopAccess:
    """An access in one iteration of the loops that are run.

    Attributes:
        access: The access, with the variables of those loops replaced.
        item: Position in a thread's program order; accesses inside one loop that is not run share it.
        number: A number that equal accesses share.
    """

    access: Access
    item: int
    number: int


class ThreadRelation(IntFlag):
    """The threads by which two accesses can meet."""

    OTHERS = 1
    SAME = 2
    #: One thread at two times at which it does the same.
    AGAIN = 4


@dataclass(slots=True)
class _Copy:
    step: LoopAccess
    epoch: int
    group: int
    waited: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PipelineEvent:
    """A statement about an item, in one iteration of its loops.

    Attributes:
        statement: The statement.
        item: The value of its item.
        position: Its position in a thread's program order, which no access shares but that of a copy.
        step: The access of a copy; else None.
    """

    statement: Acquire | TileCopy | Await | Release
    item: int
    position: int
    step: LoopAccess | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Return the pipeline and the item."""
        return self.statement.pipeline, self.item


@dataclass(frozen=True, slots=True)
class ItemCopy:
    """The copy of a tile, and where it stands between the statements of each consumer.

    Attributes:
        step: The access.
        released: The position in a consumer's program order of the last release that the producer has waited for when
            it issues the copy; -1 if there is none.
        awaited: The position at which a consumer awaits the copy's item; None if it never does.
    """

    step: LoopAccess
    released: int
    awaited: int | None


@dataclass(slots=True)
class Timeline:
    """A run of all loops that order accesses.

    Attributes:
        steps: The steps in order.
        epochs: The steps of each epoch.
        copies: Asynchronous copies, with the wait that completes each.
        distinct: One access for each number.
        events: The statements about items in order.
    """

    steps: list[LoopAccess] = field(default_factory=list)
    epochs: list[list[LoopAccess]] = field(default_factory=lambda: [[]])
    copies: list[_Copy] = field(default_factory=list)
    distinct: list[Access] = field(default_factory=list)
    events: list[PipelineEvent] = field(default_factory=list)


def all_nodes(_: Node) -> bool:
    """Return that a loop is run, whatever it contains: so are the producer's."""
    return True


def synchronises(node: Node) -> bool:
    """Return whether a node contains a barrier, commit or wait, or a statement about an item that copies nothing."""
    match node:
        case Sync():
            return True
        case StatementAccesses():
            return False
        case Loop(_, _, body) | Branch(_, _, body):
            return any(synchronises(inner) for inner in body)


def copies_among_others(node: Node) -> bool:
    """Return whether a node is a short loop with copies and other accesses to the same bytes, so that order matters."""
    if not isinstance(node, Loop) or node.extent > MAX_COPIES:
        return False
    found = [access for leaf in shared_memory_statements(node) for access in leaf.accesses]
    copied = [access for access in found if access.mode is Mode.ASYNC]
    return any(shares_bytes(a.target, b.target) for a in copied for b in found if a is not b)


def shares_bytes(a: SharedBuffer | Param, b: SharedBuffer | Param) -> bool:
    """Return whether two shared buffers overlap."""
    if not (isinstance(a, SharedBuffer) and isinstance(b, SharedBuffer)):
        return False
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes


def shared_memory_statements(node: Node) -> Iterator[StatementAccesses]:
    """Yield the statements in a node that access shared memory, in order."""
    match node:
        case Sync():
            return
        case StatementAccesses():
            yield node
        case Loop(_, _, body) | Branch(_, _, body):
            for inner in body:
                yield from shared_memory_statements(inner)


class Interpreter:
    """An interpreter of a tree of statements that records their order of events."""

    def __init__(
        self,
        runs: Callable[[Node], bool] = synchronises,
        values: Mapping[str, IntExpr] | None = None,
        decided: Mapping[IntExpr, IntExpr] | None = None,
        earlier: Interpreter | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            runs: A predicate for loops that are run besides those that synchronise.
            values: Replacements of other variables.
            decided: Values of conditions on the block, the same for all blocks that are looked at; see
                ``distinct_blocks``.
            earlier: A run of the same statements, whose accesses keep their numbers.
        """
        self.timeline: Timeline = Timeline() if earlier is None else Timeline(distinct=earlier.timeline.distinct)
        self._runs = runs
        self._values: dict[str, IntExpr] = dict(values or {})
        self._decided = dict(decided or {})
        self._always = frozenset(self._values)
        self._numbers: dict[Access, int] = {} if earlier is None else earlier._numbers
        self._folded: dict[tuple[int, tuple[IntExpr | None, ...]], tuple[Access, int] | None] = (
            {} if earlier is None else earlier._folded
        )
        self._names: dict[int, tuple[str, ...]] = {} if earlier is None else earlier._names
        self._item = 0
        self._commits = 0
        self._waited: int = 0

    def follow(self, tree: tuple[Node, ...]) -> Timeline:
        """Return the timeline of a Program's statements.

        Raises:
            TimelineError: There are too many steps, or synchronisation depends on the thread or block.
        """
        for node in tree:
            self._node(node)
        return self.timeline

    def _node(self, node: Node) -> None:
        if isinstance(node, Branch) and self._condition(node) == Int(0):
            return
        if not (synchronises(node) or self._runs(node)):
            self._item += 1
            for leaf in shared_memory_statements(node):
                self._leaf(leaf)
            return
        match node:
            case Sync(statement):
                self._sync(statement)
            case Loop(var, extent, body):
                for value in range(extent):
                    self._values[var] = Int(value)
                    self._body(body)
                del self._values[var]
            case Branch(path, _, body):
                if not isinstance(self._condition(node), Int) and synchronises(node):
                    raise TimelineError(f"{path}: synchronisation depends on more than loop and block variables")
                self._body(body)
            case StatementAccesses(tile=tile):
                self._item += 1
                self._leaf(node)
                if tile is not None:
                    self._event(tile, self.timeline.steps[-1])
            case _:
                assert_never(node)

    def _body(self, body: tuple[Node, ...]) -> None:
        for inner in body:
            self._node(inner)

    def _sync(self, statement: Barrier | Commit | WaitGroups | Acquire | Await | Release) -> None:
        match statement:
            case Barrier():
                self._item += 1
                self.timeline.epochs.append([])
            case Commit():
                self._commits += 1
            case WaitGroups(left):
                self._item += 1
                self._wait(self._commits - left)
            case Acquire() | Await() | Release():
                self._item += 1
                self._event(statement, None)
            case _:
                assert_never(statement)

    def _event(self, statement: Acquire | TileCopy | Await | Release, step: LoopAccess | None) -> None:
        item = fold(statement.item, self._values)
        if not isinstance(item, Int):
            raise TimelineError(f"an item of {statement.pipeline} depends on more than loop variables")
        if len(self.timeline.events) >= MAX_STEPS:
            raise TimelineError(f"more than {MAX_STEPS} statements about items")
        self.timeline.events.append(PipelineEvent(statement, item.value, self._item, step))

    def _condition(self, node: Branch) -> IntExpr:
        """Return a branch's condition, with the values of loops that are run, and its value where that is decided."""
        condition = fold(node.condition, self._values)
        return self._decided.get(condition, condition)

    def _wait(self, done: int) -> None:
        here = self._item, len(self.timeline.epochs) - 1
        copies = self.timeline.copies
        # Groups complete in order, and copies are listed in order of their groups.
        while self._waited < len(copies) and copies[self._waited].group < done:
            copies[self._waited].waited = here
            self._waited += 1

    def _leaf(self, leaf: StatementAccesses) -> None:
        for access in leaf.accesses:
            found = self._instance(access)
            if found is None:
                continue
            step = LoopAccess(found[0], self._item, found[1])
            timeline = self.timeline
            if len(timeline.steps) >= MAX_STEPS:
                raise TimelineError(f"more than {MAX_STEPS} accesses in iterations that synchronise")
            timeline.steps.append(step)
            timeline.epochs[-1].append(step)
            if access.mode is Mode.ASYNC:
                timeline.copies.append(_Copy(step, len(timeline.epochs) - 1, self._commits))

    def _instance(self, access: Access) -> tuple[Access, int] | None:
        """Return the access with the values of the running loops, and its number; None where a condition is false."""
        if id(access) not in self._names:
            loops = {name for name, _ in access.context.loops} | self._always
            used = variables(access.index).union(*map(variables, access.context.guards)) & loops
            self._names[id(access)] = tuple(sorted(used))
        key = id(access), tuple([self._values.get(name) for name in self._names[id(access)]])
        if key not in self._folded:
            self._folded[key] = self._fold(access)
        return self._folded[key]

    def _fold(self, access: Access) -> tuple[Access, int] | None:
        context = access.context
        guards = conjuncts(fold(guard, self._values) for guard in context.guards)
        if Int(0) in guards:
            return None
        loops = tuple((name, extent) for name, extent in context.loops if name not in self._values)
        folded = replace(
            access,
            index=fold(access.index, self._values),
            context=replace(context, loops=loops, guards=tuple(dict.fromkeys(guards))),
        )
        number = self._numbers.setdefault(folded, len(self._numbers))
        if number == len(self.timeline.distinct):
            self.timeline.distinct.append(folded)
        return folded, number


@dataclass(frozen=True, slots=True)
class BlockClass:
    """Blocks that have one order of events.

    Attributes:
        block: One of them, as values of the deciding block variables.
        decided: The values of conditions on these variables, the same for all of them.
    """

    block: Mapping[str, IntExpr]
    decided: Mapping[IntExpr, IntExpr]


def distinct_blocks(tree: tuple[Node, ...], grid: Mapping[str, int]) -> Iterator[BlockClass]:
    """Yield the classes of blocks that have one order of events.

    Sound: two blocks for which the same of these conditions hold, in the same iterations, meet at the same barriers and
    waits, so the timeline of one is that of the other; accesses keep the block's variables. Other conditions of
    branches on the same variables are decided as well, conjunct by conjunct (``decided_guards``).

    Args:
        tree: A Program's statements.
        grid: The extent of each block variable.

    Raises:
        TimelineError: There are too many blocks to enumerate.
    """
    conditions = list(dict.fromkeys(_branch_conditions(tree, {})))
    names = sorted(frozenset().union(*map(variables, conditions)) & grid.keys())
    if prod(grid[name] for name in names) > MAX_WAYS:
        raise TimelineError(f"synchronisation differs between more than {MAX_WAYS} blocks")
    if names:
        found = dict.fromkeys((*conditions, *_branch_conditions(tree, {}, synchronising=False)))
        conditions = [one for one in found if variables(one) <= {*names}]
    seen: set[tuple[IntExpr, ...]] = set()
    for values in product(*(range(grid[name]) for name in names)):
        block: dict[str, IntExpr] = {name: Int(value) for name, value in zip(names, values, strict=True)}
        decided = {condition: fold(condition, block) for condition in conditions}
        if (key := tuple(decided.values())) not in seen:
            seen.add(key)
            yield BlockClass(block, decided)


def decided_guards(nodes: tuple[Node, ...], block: Set[str]) -> Iterator[IntExpr]:
    """Yield the conditions of branches that ``distinct_blocks`` decides in each iteration, conjunct by conjunct.

    Args:
        nodes: A Program's statements.
        block: The deciding block variables.
    """
    for node in nodes:
        if isinstance(node, Branch):
            found = conjuncts((node.condition,))
            yield from (one for one in found if synchronises(node) or not variables(one) & {"tid", *GRID} - block)
        if isinstance(node, Loop | Branch) and synchronises(node):
            yield from decided_guards(node.body, block)


def _branch_conditions(
    nodes: tuple[Node, ...], values: dict[str, IntExpr], *, synchronising: bool = True
) -> Iterator[IntExpr]:
    """Yield the conditions of branches in each iteration of loops that synchronise; by default those around it only."""
    for node in nodes:
        if isinstance(node, Branch) and (synchronises(node) or not synchronising):
            condition = fold(node.condition, values)
            yield from (condition,) if synchronising else (condition, *conjuncts((condition,)))
        if isinstance(node, StatementAccesses | Sync) or not synchronises(node):
            continue
        if isinstance(node, Branch):
            yield from _branch_conditions(node.body, values, synchronising=synchronising)
            continue
        inside = [inner for inner in node.body if isinstance(inner, Branch | Loop)]
        if any(synchronises(inner) or not synchronising for inner in inside):
            for value in range(node.extent):
                yield from _branch_conditions(node.body, values | {node.var: Int(value)}, synchronising=synchronising)


def unordered_pairs(
    timeline: Timeline, apart: Callable[[int, int], bool], copies: Sequence[ItemCopy] = ()
) -> Mapping[tuple[int, int], ThreadRelation]:
    """Return pairs of accesses (by number), at least one a write, that can happen in either order or at once.

    Sound: two plain accesses by different threads are ordered exactly if a barrier lies between them, that is, if their
    epochs differ. An asynchronous copy writes at any time between its issue and the wait that covers its group, in the
    thread's own order, and other threads are ordered behind it by the first barrier after that wait, so it is unordered
    with other threads' accesses of all epochs from that of its issue to that of the wait, and with its own thread's
    accesses from its own item to the wait. A matrix read reads for the whole warp: it counts as anybody's.

    A copy of a tile writes at any time between its issue by the producer and the arrival of its item. A consumer's read
    is ordered before it if the producer has waited for a release that comes behind the read in the consumer's own
    order: the mbarrier counts all warps' releases, and a read is complete at its end, or before the next release if it
    is that of a product of warpgroups (a fault otherwise). An access is ordered behind the copy if it comes behind the
    consumer's own wait for the item. A consumer's write is of another proxy, and only this second order counts for it.
    Of two copies the second is behind the first only if the producer has waited for a release that comes behind the
    consumers' wait for the first one's item. Awaits and releases do not order consumers with each other. The producer
    is no consumer, so threads do not matter for these pairs. One copy's own chunks are distinct.

    Args:
        timeline: The timeline of a run of only synchronising loops.
        apart: Whether two accesses certainly touch different bytes; such pairs are left out.
        copies: The producer's copies, in the order of their issue.
    """
    found: dict[tuple[int, int], ThreadRelation] = {}

    def meet(a: LoopAccess, b: LoopAccess, who: ThreadRelation) -> None:
        if not (a.access.mode.writes or b.access.mode.writes):
            return
        pair = (a.number, b.number) if a.number <= b.number else (b.number, a.number)
        who = _all_relations(a, b, who)
        if found.get(pair, ThreadRelation(0)) | who != found.get(pair, ThreadRelation(0)) and not apart(*pair):
            found[pair] = found.get(pair, ThreadRelation(0)) | who

    seen: set[frozenset[int]] = set()
    for epoch in timeline.epochs:
        steps = {step.number: step for step in epoch}
        if frozenset(steps) in seen:
            continue
        seen.add(frozenset(steps))
        listed = list(steps.values())
        for position, a in enumerate(listed):
            for b in listed[position:]:
                meet(a, b, ThreadRelation.OTHERS)
    for copy in timeline.copies:
        last_item, last_epoch = copy.waited or (None, len(timeline.epochs) - 1)
        for epoch in timeline.epochs[copy.epoch : last_epoch + 1]:
            for other in epoch:
                meet(copy.step, other, ThreadRelation.OTHERS)
                if other.item >= copy.step.item and (last_item is None or other.item < last_item):
                    meet(copy.step, other, ThreadRelation.SAME)
    for one, other in _meetings_of_tiles(timeline, copies):
        meet(one, other, ThreadRelation.OTHERS)
    return found


def _all_relations(a: LoopAccess, b: LoopAccess, who: ThreadRelation) -> ThreadRelation:
    """Return the threads by which two accesses can meet, with those that their modes and equality add."""
    modes = a.access.mode, b.access.mode
    if Mode.MATRIX in modes or Mode.TILE in modes:
        who = ThreadRelation.OTHERS | ThreadRelation.SAME
    if Mode.TILE in modes or (who & ThreadRelation.SAME and a is not b and a.number == b.number):
        who |= ThreadRelation.AGAIN
    return who


def _meetings_of_tiles(timeline: Timeline, copies: Sequence[ItemCopy]) -> Iterator[tuple[LoopAccess, LoopAccess]]:
    """Yield each copy of a tile with each access, and each earlier copy, that it is unordered with."""
    steps = timeline.steps
    writes = [step for step in steps if step.access.mode.writes]
    positions = [step.item for step in steps]
    for number, copy in enumerate(copies):
        end = len(steps) if copy.awaited is None else bisect_right(positions, copy.awaited)
        yield from ((copy.step, steps[n]) for n in range(bisect_right(positions, copy.released), end))
        yield from ((copy.step, one) for one in writes if copy.awaited is None or one.item < copy.awaited)
        for earlier in copies[:number]:
            if earlier.awaited is None or earlier.awaited > copy.released:
                yield earlier.step, copy.step
