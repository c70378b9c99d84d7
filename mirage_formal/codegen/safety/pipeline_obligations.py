"""Pipelines: the order of items between the producer and its consumers, and that nobody waits forever.

Both roles are run with exact values. Neither has conditions that differ between threads around statements about items,
so each is one sequence of events, the same for all of its threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mirage_formal.codegen.program.access import GRID, ProgramAccesses
from mirage_formal.codegen.program.program import (
    TILE_COLUMNS,
    Acquire,
    Await,
    Pipeline,
    Program,
    Release,
    TileCopy,
)
from mirage_formal.codegen.safety.happens_before import (
    Interpreter,
    ItemCopy,
    LoopAccess,
    PipelineEvent,
    Timeline,
    TimelineError,
    all_nodes,
    distinct_blocks,
)
from mirage_formal.codegen.safety.obligation_types import (
    DischargedObligation,
    DischargeMethod,
    Finding,
    Obligation,
    ObligationKind,
    UndecidedObligation,
    ViolatedObligation,
)

Events = Sequence[PipelineEvent]


def pipeline_obligations(program: Program, listing: ProgramAccesses) -> Iterator[Obligation]:
    """Yield the obligations of pipelines: one for the order of items of each, and one that nobody waits forever.

    Sound: see ``_order_fault`` for what is required of each pipeline and ``_waiting_forever`` for deadlock. Blocks of
    one class have the same sequence of consumers' events (``distinct_blocks``); the producer has no conditions, and
    items depend on variables of its loops alone.
    """
    if not program.pipelines:
        return
    extents = dict(zip(GRID, program.grid, strict=True))
    found: dict[str, Finding] = {}
    names = [pipeline.name for pipeline in program.pipelines]
    together = ", ".join(names)
    try:
        produced = Interpreter(all_nodes).follow(listing.producer).events
        for blocks in distinct_blocks(listing.tree, extents):
            consumed = Interpreter(decided=blocks.decided).follow(listing.tree).events
            for pipeline in program.pipelines:
                _note(found, pipeline.name, _order_fault(program, pipeline, (produced, consumed)))
            _note(found, "", _waiting_forever(program, produced, consumed))
    except TimelineError as error:
        found = dict.fromkeys((*names, ""), UndecidedObligation(str(error)))
    for pipeline in program.pipelines:
        claim = f"items of {pipeline.bytes} bytes are acquired, copied, awaited and released in order"
        yield Obligation(ObligationKind.ITEMS, "", pipeline.name, claim, None, found[pipeline.name])
    claim = "the producer and the consumers never wait for each other"
    yield Obligation(ObligationKind.ITEMS, "", together, claim, None, found[""])


def _note(found: dict[str, Finding], name: str, fault: tuple[int, str] | None) -> None:
    """Note the finding of one class of blocks: the first fault stays."""
    if fault is not None and not isinstance(found.get(name), ViolatedObligation):
        item, reason = fault
        found[name] = ViolatedObligation(DischargeMethod.ENUMERATION, (("item", item),), reason)
    found.setdefault(name, DischargedObligation(DischargeMethod.ENUMERATION))


# --- the order of items ----------------------------------------------------------------------------------------------


def _order_fault(program: Program, pipeline: Pipeline, both: tuple[Events, Events]) -> tuple[int, str] | None:
    """Return the first item of a pipeline that is out of order, and what is wrong; None if there is none.

    Sound: the device counts no items, it tells phases of mbarriers by parity. These are the very items if the producer
    acquires 0, 1, 2, ..., each once and with copies of exactly the announced bytes before the next acquisition, and
    every consumer awaits and releases each of them in this order, the release of an item behind the wait for it.

    A slot's mbarrier of bytes then completes its phase k at the arrival of the slot's item k. It completes phase k + 1
    only after the acquisition of item k + 1 of the slot, which waits until all warps have released item k, so behind
    every thread's wait for it: no thread looks at a phase that has passed. The mbarrier of releases completes its phase
    k when all warps have released item k, and phase k + 1 only when they have released item k + 1, behind the
    acquisition of that item, which is the producer's wait for phase k.

    All items are awaited, so no copy is in flight when the block ends.
    """
    produced, consumed = ([one for one in events if one.statement.pipeline == pipeline.name] for events in both)
    sizes = {buffer.name: buffer.dtype.bytes for buffer in program.shared}
    acquired, left = -1, 0
    for event in produced:
        if isinstance(event.statement, TileCopy):
            if event.item != acquired:
                return event.item, f"it is copied when item {acquired} was acquired last"
            left -= _bytes(event.statement, sizes)
            continue
        if event.item != acquired + 1:
            return event.item, f"it is acquired when item {acquired + 1} is next"
        if left:
            return acquired, f"its copies have {pipeline.bytes - left} bytes"
        acquired, left = event.item, pipeline.bytes
    if left:
        return acquired, f"its copies have {pipeline.bytes - left} bytes"
    awaited, released = -1, -1
    for event in consumed:
        if isinstance(event.statement, Await):
            if event.item != awaited + 1:
                return event.item, f"it is awaited when item {awaited + 1} is next"
            awaited = event.item
        else:
            if event.item != released + 1:
                return event.item, f"it is released when item {released + 1} is next"
            if event.item > awaited:
                return event.item, "it is released before it is awaited"
            released = event.item
    for last, verb in ((awaited, "awaited"), (released, "released")):
        if last != acquired:
            return min(last, acquired) + 1, f"{acquired + 1} items are acquired, and {last + 1} are {verb}"
    return None


def _bytes(copy: TileCopy, sizes: Mapping[str, int]) -> int:
    return copy.rows * TILE_COLUMNS * sizes[copy.buffer]


# --- deadlock --------------------------------------------------------------------------------------------------------


def _waiting_forever(program: Program, produced: Events, consumed: Events) -> tuple[int, str] | None:
    """Return the item for which the producer or the consumers wait forever, and who waits; None if nobody does.

    Sound: the producer's events are one sequence, and all consumers have one and the same. Each event can happen once
    the event before it of its thread has, and besides: an acquisition of item i, once all warps have released item i -
    slots; a wait for an item, once the copies of the item have been issued, for they arrive by themselves; a barrier of
    consumers or of a warp or warpgroup, once all of its threads have reached it. All of these stay true once they are
    true (by ``_order_fault`` parities tell the very items). So in any two runs, the first event of one run that the
    other one never has could still happen at the other one's end, for all events before it have happened there too.
    Hence every run that goes on as long as something can happen has the same events, and one run is enough. Here all
    consumers go in step, one event each in turn, so that a barrier waits for nobody, and a release by one is one by
    all; both roles go on until neither can. If both have reached their ends, every run does.

    With one pipeline this says no more than that consumers await item i behind their release of all items up to i -
    slots. A producer that waits to acquire item j waits for a consumer that has not released j - slots. Items below j
    arrive, so that consumer waits for an item i >= j, or at a barrier for one that does; but then it has released j -
    slots.
    """
    slots = {pipeline.name: pipeline.slots for pipeline in program.pipelines}
    issued = {one.key: number for number, one in enumerate(produced)}
    released: set[tuple[str, int]] = set()
    made = used = 0
    while True:
        before = made, used
        while made < len(produced) and _may_produce(produced[made], slots, released):
            made += 1
        while used < len(consumed) and _may_consume(consumed[used], issued, made):
            if isinstance(consumed[used].statement, Release):
                released.add(consumed[used].key)
            used += 1
        if (made, used) == before:
            break
    stuck = []
    if made < len(produced):
        name, item = produced[made].key
        stuck.append(f"the producer waits for the slot of item {item} of {name}")
    if used < len(consumed):
        name, item = consumed[used].key
        stuck.append(f"the consumers wait for item {item} of {name}")
    if not stuck:
        return None
    return (produced[made] if made < len(produced) else consumed[used]).item, " and ".join(stuck)


def _may_produce(event: PipelineEvent, slots: Mapping[str, int], released: set[tuple[str, int]]) -> bool:
    name, item = event.key
    if not isinstance(event.statement, Acquire) or item < slots[name]:
        return True
    return (name, item - slots[name]) in released


def _may_consume(event: PipelineEvent, issued: Mapping[tuple[str, int], int], made: int) -> bool:
    return not isinstance(event.statement, Await) or issued.get(event.key, made) < made


# --- copies among the consumers' statements --------------------------------------------------------------------------


def item_copies(program: Program, produced: Timeline, consumed: Timeline) -> tuple[ItemCopy, ...]:
    """Return the producer's copies, each with the consumers' statements about items that it lies between.

    Sound: an acquisition waits for the release of the item that had the slot, and what the producer does later is
    behind it too. That there is such a release, and one wait for each item, are obligations (``_order_fault``); where
    there is none, nothing is ordered.
    """
    slots = {pipeline.name: pipeline.slots for pipeline in program.pipelines}
    awaits = {one.key: one.position for one in reversed(consumed.events) if isinstance(one.statement, Await)}
    releases = {one.key: one.position for one in reversed(consumed.events) if isinstance(one.statement, Release)}
    released = -1
    found: list[ItemCopy] = []
    for event in produced.events:
        name, item = event.key
        if event.step is not None:
            found.append(ItemCopy(event.step, released, awaits.get(event.key)))
        else:
            released = max(released, releases.get((name, item - slots[name]), -1))
    return tuple(found)


def steps_with_copies(consumed: Timeline, produced: Timeline) -> Iterator[LoopAccess]:
    """Yield the steps of consumers in order, with the copies of each item where it is awaited."""
    copies: dict[tuple[str, int], list[LoopAccess]] = {}
    for event in produced.events:
        if event.step is not None:
            copies.setdefault(event.key, []).append(event.step)
    awaits = [event for event in consumed.events if isinstance(event.statement, Await)]
    next_await = 0
    for step in consumed.steps:
        while next_await < len(awaits) and awaits[next_await].position < step.item:
            yield from copies.get(awaits[next_await].key, ())
            next_await += 1
        yield step


__all__ = ["item_copies", "pipeline_obligations", "steps_with_copies"]
