"""Safety of a producer that fills pipelines: each small mistake is found, by the obligation that it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirage_formal.codegen.joined_launches.block_groups import BlockGroups, JoinedProgram
from mirage_formal.codegen.program.access import list_accesses
from mirage_formal.codegen.program.program import (
    Acquire,
    Await,
    Barrier,
    Commit,
    CopyAsync,
    For,
    GridWait,
    If,
    Int,
    Pipeline,
    Program,
    Reg,
    Registers,
    Release,
    SharedBuffer,
    SharedVector,
    SharedWrite,
    Stmt,
    TileCopy,
    Var,
    WaitGroups,
    WarpgroupMma,
    WarpgroupWait,
)
from mirage_formal.codegen.safety.obligation_types import ObligationKind, ViolatedObligation
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from mirage_formal.graph.types import DType
from tests.codegen.safety import pipeline_programs as kit
from tests.codegen.safety.pipeline_programs import CONSUMERS, ITEM, JOB, TILE, UNITS, products, sums, tile
from tests.kit.kernels.program_mutants import Touched, changed, changes
from tests.kit.kernels.safety_programs import HALF, add, less, mod, mul, sub, tid
from tests.kit.sampling import number

SLOTS, ITEMS = 3, 6
P0 = Acquire("p", JOB)


def loop(program: Program) -> For:
    """The loop of the consumers."""
    return next(one for one in program.body if isinstance(one, For) and one.var == "i")


def with_loop(program: Program, found: For) -> Program:
    return replace(program, body=tuple(found if one == loop(program) else one for one in program.body))


def step(*body: Stmt, items: int = ITEMS) -> Program:
    """Sums with another step of the consumers."""
    return with_loop(sums(), For("i", items, body))


def producing(*producer: Stmt) -> Program:
    """Sums with another producer."""
    return replace(sums(), producer=producer)


def copying(*body: Stmt, items: int = ITEMS) -> Program:
    """Sums with another step of the producer."""
    return producing(For("j", items, body))


AWAIT, RELEASE = Await("p", ITEM), Release("p", ITEM)
FIRST, SECOND = kit.chunk(SLOTS, 0), kit.chunk(SLOTS, 1)
COPY = tile(SLOTS, items=ITEMS)
LAST = loop(products()).body


def in_products(*body: Stmt) -> Program:
    """Products with another step of the consumers."""
    return with_loop(products(), replace(loop(products()), body=body))


def halves(first: int, second: int, rows: int = 32) -> tuple[TileCopy, TileCopy]:
    """Two copies of half a tile each, at some units of the slot."""
    below = add(COPY.source, 32 * COPY.stride)
    upper = replace(COPY, rows=rows, at=add(COPY.at, first))
    return upper, replace(COPY, rows=rows, at=add(COPY.at, second), source=below)


def longer(program: Program) -> Program:
    """The Program with a parameter of one row more."""
    x, y = program.params
    return replace(program, params=(replace(x, elements=x.elements + COPY.stride), y))


@pytest.mark.parametrize(
    "program",
    [
        *(sums(slots, items) for slots, items in ((1, 4), (2, 4), (3, 6), (4, 5), (4, 3))),
        *(products(slots, items) for slots, items in ((2, 4), (3, 5))),
        products(2, 5, apart=True),
        copying(P0, *halves(0, 4)),
        copying(P0, For("h", 2, (replace(halves(0, 4)[0], at=add(COPY.at, mul(Var("h"), 4))),))),
    ],
    ids=lambda program: f"{program.name} {program.pipelines[0].slots}",
)
def test_pipelines_are_safe(program: Program) -> None:
    report = discharge_safety(program)
    assert isinstance(report.verdict, Safe), report.verdict
    kinds = [one.obligation.kind for one in report.discharged]
    assert kinds.count(ObligationKind.ITEMS) == len(program.pipelines) + 1
    assert not any(entry.results for entry in report.discharged), "no solver is needed"


K = ObligationKind
MISTAKES: dict[str, tuple[ObligationKind, Program]] = {
    "release before the last read": (K.CONFLICT, step(AWAIT, FIRST, RELEASE, SECOND, kit.added())),
    "release before a product": (K.CONFLICT, in_products(LAST[0], LAST[1], LAST[3], LAST[2])),
    "no release": (K.ITEMS, step(AWAIT, FIRST, SECOND, kit.added())),
    "no wait": (K.ITEMS, step(FIRST, SECOND, kit.added(), RELEASE)),
    "wait behind the read": (K.CONFLICT, step(FIRST, SECOND, AWAIT, RELEASE)),
    "wait behind a product": (K.CONFLICT, in_products(LAST[1], LAST[0], LAST[2], LAST[3])),
    "wait for the next item": (K.ITEMS, step(Await("p", add(ITEM, 1)), FIRST, SECOND, RELEASE)),
    "release of the next item": (K.ITEMS, step(AWAIT, FIRST, SECOND, Release("p", add(ITEM, 1)))),
    "two waits": (K.ITEMS, step(AWAIT, AWAIT, FIRST, SECOND, RELEASE)),
    "one item fewer awaited": (K.ITEMS, step(AWAIT, FIRST, SECOND, RELEASE, items=ITEMS - 1)),
    "one item more awaited": (K.ITEMS, step(AWAIT, FIRST, SECOND, RELEASE, items=ITEMS + 1)),
    "no acquisition": (K.ITEMS, copying(COPY)),
    "acquisition behind the copy": (K.ITEMS, copying(COPY, P0)),
    "an item skipped": (
        K.ITEMS,
        copying(Acquire("p", add(JOB, less(1, JOB))), tile(SLOTS, add(JOB, less(1, JOB)), items=ITEMS), items=5),
    ),
    "an item less": (K.ITEMS, copying(P0, COPY, items=ITEMS - 1)),
    "copy of another item": (K.ITEMS, copying(P0, replace(COPY, item=add(JOB, 1)))),
    "copy into another slot": (K.CONFLICT, copying(P0, replace(COPY, at=mul(mod(add(JOB, 1), SLOTS), UNITS)))),
    "copy into one slot": (K.CONFLICT, copying(P0, replace(COPY, at=Int(0)))),
    "read of the next slot": (K.CONFLICT, step(AWAIT, kit.chunk(SLOTS, 0, add(ITEM, 1)), SECOND, RELEASE)),
    "read of the slot before": (K.CONFLICT, step(AWAIT, kit.chunk(SLOTS, 0, add(ITEM, SLOTS - 1)), SECOND, RELEASE)),
    "product with the next slot": (
        K.CONFLICT,
        in_products(LAST[0], kit.product("k", 2, item=add(ITEM, 1), across=False), *LAST[2:]),
    ),
    "fewer slots in memory": (K.CONFLICT, replace(sums(2, 6), pipelines=(Pipeline("p", 3, 2 * TILE),))),
    "a row less": (K.ITEMS, copying(P0, replace(COPY, rows=56))),
    "more bytes announced": (K.ITEMS, replace(sums(), pipelines=(Pipeline("p", SLOTS, 2 * TILE + 128),))),
    "no copy": (K.ITEMS, copying(P0)),
    "copies overlap": (K.CONFLICT, copying(P0, *halves(0, 2))),
    "same copy twice": (K.CONFLICT, copying(P0, halves(0, 4)[0], halves(0, 4)[0])),
    "half a tile unwritten": (
        K.LIVE,
        replace(copying(P0, halves(0, 4)[0]), pipelines=(Pipeline("p", SLOTS, TILE),)),
    ),
    "odd place": (
        K.ALIGNMENT,
        replace(copying(P0, replace(COPY, at=add(COPY.at, 1))), shared=(SharedBuffer("x", HALF, 4 * TILE, 0),)),
    ),
    "source between chunks": (K.ALIGNMENT, longer(copying(P0, replace(COPY, source=add(COPY.source, 4))))),
    "beyond the end of a row": (K.BOUNDS, longer(copying(P0, replace(COPY, source=add(COPY.source, 8))))),
    "beyond the parameter": (K.BOUNDS, copying(P0, replace(COPY, source=add(COPY.source, ITEMS * TILE)))),
    "beyond the buffer": (K.BOUNDS, copying(P0, replace(COPY, at=mul(JOB, UNITS)))),
    "source below zero": (K.ARITHMETIC, copying(P0, replace(COPY, source=sub(COPY.source, 8)))),
    "wait by some threads": (K.STRUCTURE, step(If(less(tid, 128), (AWAIT,)), FIRST, SECOND, RELEASE)),
    "release by some threads": (K.STRUCTURE, step(AWAIT, FIRST, SECOND, If(less(tid, 128), (RELEASE,)))),
    "wait by some, called uniform": (
        K.UNIFORM,
        step(If(less(tid, 128), (AWAIT,), uniform=True), FIRST, SECOND, RELEASE),
    ),
    "wait by some blocks": (
        K.ITEMS,
        step(If(less(Var("bx"), 1), (AWAIT,), uniform=True), FIRST, SECOND, RELEASE),
    ),
    "store into a slot": (
        K.CONFLICT,
        step(
            AWAIT, FIRST, SECOND, SharedWrite("x", add(mul(mod(ITEM, SLOTS), TILE), tid), (Reg("r", Int(0)),)), RELEASE
        ),
    ),
    "copy of a consumer into a slot": (
        K.CONFLICT,
        replace(
            sums(),
            body=(CopyAsync("x", mul(tid, 8), "X", mul(tid, 8)), Commit(), WaitGroups(0), Barrier(), *sums().body),
        ),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(name: str) -> None:
    kind, program = MISTAKES[name]
    assert program not in (sums(), products())
    verdict = discharge_safety(program).verdict
    assert isinstance(verdict, Unsafe), verdict
    assert verdict.obligation.kind is kind, verdict


@pytest.mark.parametrize("program", [sums(2, 4), products(2, 3, apart=True)], ids=["sums", "products"])
def test_changes_of_pipelines_are_found(program: Program) -> None:
    """Items, places, sizes and names: all matter but a number of slots below that of the buffer."""
    found = [one for one in changes(program) if one.touched is Touched.PIPELINE and not one.what.endswith(": 1 slots")]
    assert len(found) > 30
    for change in found[:: 1 if program.name == "sums" else number(3, 1)]:
        mutant = changed(program, change)
        assert isinstance(discharge_safety(mutant.program, second=False).verdict, Unsafe), mutant.what
    for change in changes(program):
        if change.what.endswith(": 1 slots"):
            assert isinstance(discharge_safety(changed(program, change).program).verdict, Safe)


def test_the_reason_names_who_waits() -> None:
    report = discharge_safety(MISTAKES["no release"][1])
    reasons = [one.finding.reason for one in report.discharged if isinstance(one.finding, ViolatedObligation)]
    assert "6 items are acquired, and 0 are released" in reasons
    waits = "the producer waits for the slot of item 3 of p and the consumers wait for item 3 of p"
    assert waits in reasons


def test_pipelines_that_wait_for_each_other() -> None:
    """Each pipeline by itself is in order: the consumers await the second item of q before they release the first of p.

    With a slot more in p, or with all of q acquired first, nobody waits forever.
    """
    items = tuple(Int(n) for n in range(2))
    step: tuple[Stmt, ...] = (Await("p", items[0]), Await("q", items[0]), Release("q", items[0]), Await("q", items[1]))
    step = (*step, Release("q", items[1]), Release("p", items[0]), Await("p", items[1]), Release("p", items[1]))

    def copied(name: str, item: int, slots: int) -> tuple[Stmt, ...]:
        buffer, param = {"p": ("k", "K"), "q": ("v", "V")}[name]
        at = Int(item % slots * UNITS)
        return Acquire(name, Int(item)), TileCopy(name, Int(item), buffer, at, param, Int(0), 64, 64)

    def kernel(order: str, slots: int) -> Program:
        found = products(2, 2, apart=True)
        producer = tuple(
            s
            for name, item in zip(order[::2], order[1::2], strict=True)
            for s in copied(name, int(item), slots if name == "p" else 2)
        )
        kept = tuple(one for one in found.body if one != loop(found))
        pipelines = (replace(found.pipelines[0], slots=slots), found.pipelines[1])
        return replace(found, body=(*kept[:-1], *step, kept[-1]), producer=producer, pipelines=pipelines)

    for order, slots in (("p0q0p1q1", 2), ("p0q0q1p1", 1)):
        assert isinstance(discharge_safety(kernel(order, slots)).verdict, Safe)
    verdict = discharge_safety(kernel("p0q0p1q1", 1)).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.ITEMS
    assert verdict.obligation.subject == "p, q"
    assert verdict.reason == "the producer waits for the slot of item 1 of p and the consumers wait for item 1 of q"


def test_consumers_may_use_the_bytes_of_slots_behind_all_items() -> None:
    """A buffer over the slots: behind the last item and a barrier it is theirs, before the first item it is not."""
    over = SharedBuffer("over", HALF, TILE, 0)
    store, load = SharedWrite("over", tid, (Reg("s", Int(0)),)), SharedVector("s", Int(0), "over", mul(tid, 8), 8)
    exchange = (store, Barrier(), If(less(tid, 32), (load,)))

    def kernel(*body: Stmt) -> Program:
        return replace(sums(), body=body, shared=(*sums().shared, over))

    *declared, looped, last = sums().body
    assert isinstance(discharge_safety(kernel(*declared, looped, Barrier(), *exchange, last)).verdict, Safe)
    for body in ((*declared, *exchange, looped, last), (*declared, looped, *exchange, last)):
        verdict = discharge_safety(kernel(*body)).verdict
        assert isinstance(verdict, Unsafe)
        assert verdict.obligation.kind is ObligationKind.CONFLICT


def test_a_read_between_iterations_needs_its_own_wait() -> None:
    """Items do not order consumers with each other, barriers do: what one stores for others is behind a barrier."""
    other = SharedBuffer("other", HALF, CONSUMERS, 2 * SLOTS * TILE)
    store = SharedWrite("other", tid, (Reg("r", Int(0)),))
    load = SharedVector("r", Int(0), "other", mul(mod(add(tid, 1), 32), 8), 8)

    def kernel(*body: Stmt) -> Program:
        found = step(AWAIT, FIRST, SECOND, kit.added(), RELEASE, *body)
        return replace(found, shared=(*found.shared, other))

    assert isinstance(discharge_safety(kernel(store, Barrier(), load, Barrier())).verdict, Safe)
    for body in ((store, load), (store, Barrier(), load), (store, load, Barrier())):
        verdict = discharge_safety(kernel(*body)).verdict
        assert isinstance(verdict, Unsafe)
        assert verdict.obligation.kind is ObligationKind.CONFLICT


# --- form ------------------------------------------------------------------------------------------------------------


def of_x(program: Program, **changes: Any) -> Program:
    return replace(program, params=(replace(program.params[0], **changes), program.params[1]))


def placed(offset: int) -> Program:
    return replace(sums(), shared=(replace(sums().shared[0], offset=offset),))


def pipeline(**changes: Any) -> Program:
    return replace(sums(), pipelines=(replace(sums().pipelines[0], **changes),))


FAULTS: dict[str, tuple[str, Program]] = {
    "acquisition in the body": ("expected in the producer", step(P0, AWAIT, FIRST, RELEASE)),
    "copy in the body": ("expected in the producer", step(AWAIT, replace(COPY, item=ITEM), FIRST, RELEASE)),
    "wait in the producer": ("in the producer", copying(P0, COPY, Await("p", JOB))),
    "barrier in the producer": ("in the producer", copying(P0, COPY, Barrier())),
    "registers in the producer": ("in the producer", producing(Registers("z", 1), *sums().producer)),
    "thread in the producer": ("an enclosing loop", copying(P0, replace(COPY, at=mul(tid, 2)))),
    "unknown pipeline": ("a pipeline of that name", step(Await("q", ITEM), FIRST, RELEASE)),
    "item of the thread": ("loops alone", step(Await("p", mod(tid, 1)), FIRST, RELEASE)),
    "item of the block": ("loops alone", copying(Acquire("p", Var("bx")), COPY)),
    "unknown buffer": ("parameter of one type", copying(P0, replace(COPY, buffer="z"))),
    "unknown parameter": ("parameter of one type", copying(P0, replace(COPY, param="Z"))),
    "written parameter": ("either read or written", of_x(sums(), written=True)),
    "two types": ("parameter of one type", of_x(sums(), dtype=DType.BFLOAT16)),
    "32 bits": (
        "elements of 16 bits",
        replace(of_x(sums(), dtype=DType.FLOAT32), shared=(SharedBuffer("x", DType.FLOAT32, SLOTS * TILE, 0),)),
    ),
    "offset of the buffer": ("a multiple of 1024 bytes", placed(512)),
    "rows": ("a multiple of 8 up to 256 rows", copying(P0, replace(COPY, rows=60))),
    "too many rows": ("a multiple of 8 up to 256 rows", copying(P0, replace(COPY, rows=264))),
    "stride": ("expected whole rows", copying(P0, replace(COPY, stride=ITEMS * 64 + 4))),
    "short rows": ("expected whole rows", copying(P0, replace(COPY, stride=32))),
    "part of a row": ("expected whole rows", of_x(sums(), elements=sums().params[0].elements + 8)),
    "half a warpgroup": ("whole warpgroups of consumers", replace(sums(), threads=192)),
    "too many threads": ("at most 1024 threads", replace(sums(), threads=1024)),
    "no slots": ("at least one slot", pipeline(slots=0)),
    "no bytes": ("at least one slot", pipeline(bytes=0)),
    "too many bytes": ("at least one slot", pipeline(bytes=1 << 20)),
    "name of a buffer": ("distinct names", pipeline(name="x")),
    "no name": ("a name of a pipeline", pipeline(name="p-q")),
    "no pipelines": ("or none of both", replace(sums(), pipelines=())),
    "no producer": ("or none of both", replace(sums(), producer=())),
    "wait for a launch": ("and in the body too", producing(GridWait(), *sums().producer)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_pipeline_is_refused(name: str) -> None:
    expected, program = FAULTS[name]
    assert any(expected in what for _, _, what in list_accesses(program).faults), list_accesses(program).faults
    verdict = discharge_safety(program).verdict
    assert isinstance(verdict, Unsafe)
    assert verdict.obligation.kind is ObligationKind.STRUCTURE


def test_the_producer_waits_for_the_launch_before_by_itself() -> None:
    dependent = replace(sums(), body=(GridWait(), *sums().body))
    waiting = replace(dependent, producer=(GridWait(), *sums().producer))
    for program in (waiting, of_x(dependent, given=True), of_x(waiting, given=True)):
        assert isinstance(discharge_safety(program).verdict, Safe)
    later = replace(dependent, producer=(*sums().producer, GridWait()))
    twice = replace(waiting, producer=(GridWait(), *waiting.producer))
    inside = replace(dependent, producer=(For("k", 1, (GridWait(),)), *sums().producer))
    for program in (dependent, later, twice, inside):
        verdict = discharge_safety(program).verdict
        assert isinstance(verdict, Unsafe)
        assert verdict.obligation.kind is ObligationKind.STRUCTURE


def test_a_slot_is_not_released_while_a_product_reads_it() -> None:
    """A deferred product is complete at its wait: a release before that is a fault, one behind it is none."""
    first, second = (one for one in LAST if isinstance(one, WarpgroupMma))
    wait = WarpgroupWait("acc", Int(0), 64)
    begun = replace(first, deferred=True)
    assert isinstance(discharge_safety(in_products(AWAIT, begun, second, wait, RELEASE)).verdict, Safe)
    found = list_accesses(in_products(AWAIT, begun, second, RELEASE, wait)).faults
    assert [what for _, subject, what in found if subject == "Release"] == [
        "expected behind the wait for products of warpgroups"
    ]


def test_a_joined_launch_has_no_producer() -> None:
    groups = BlockGroups((("X", "Y"),), 1, 1, Int(0), 1, (Int(0), Int(0), Int(0)))
    for first, then in ((sums(), replace(sums(), name="then")), (replace(sums(), producer=(), pipelines=()), sums())):
        assert any("without a producer" in what for what in JoinedProgram(first, then, groups).faults())
