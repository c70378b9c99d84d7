"""Statements about items in random order: safe exactly where no interleaving of the threads goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from mirage_formal.codegen.program.program import (
    Acquire,
    Await,
    Barrier,
    GlobalWrite,
    Int,
    Param,
    Pipeline,
    Program,
    Reg,
    Registers,
    Release,
    SharedBuffer,
    SharedVector,
    Stmt,
    TileCopy,
)
from mirage_formal.codegen.safety.safety import Safe, Unsafe, discharge_safety
from tests.codegen.safety.pipeline_programs import CONSUMERS, TILE, UNITS
from tests.kit.kernels.safety_programs import HALF, SINGLE, add, mul, tid
from tests.kit.sampling import number

BUFFERS = {"p": "x", "q": "y"}
#: The most slots that a buffer has.
MOST = 3


def constant(e: object) -> int:
    assert isinstance(e, Int)
    return e.value


def copy(name: str, item: int, slot: int) -> TileCopy:
    return TileCopy(name, Int(item), BUFFERS[name], Int(slot * UNITS), "X", Int(0), 64, 64)


def read(name: str, slot: int) -> SharedVector:
    return SharedVector("r", Int(0), BUFFERS[name], add(mul(tid, 8), slot * TILE), 8)


def slot_of(stmt: Stmt) -> tuple[str, int] | None:
    """The buffer and the slot that a statement copies into or reads."""
    match stmt:
        case TileCopy(buffer=name, at=at):
            return name, constant(at) // UNITS
        case SharedVector(buffer=name, index=index):
            return name, next(n for n in range(MOST) if index == read("p", n).index)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class Case:
    """Statements of both roles, and the slots of each pipeline."""

    producer: tuple[Stmt, ...]
    consumer: tuple[Stmt, ...]
    slots: tuple[tuple[str, int], ...]

    @property
    def program(self) -> Program:
        """The Program."""
        params = (Param("X", HALF, TILE, False), Param("Y", SINGLE, CONSUMERS, True))
        shared = tuple(SharedBuffer(name, HALF, MOST * TILE, 2 * MOST * TILE * n) for n, name in enumerate("xy"))
        pipelines = tuple(Pipeline(name, slots, 2 * TILE) for name, slots in self.slots)
        body = (Registers("r", 8, initial=0.0), *self.consumer, GlobalWrite("Y", tid, (Reg("r", Int(0)),)))
        return Program("order", params, shared, (1, 1, 1), CONSUMERS, body, False, self.producer, pipelines)


# --- what can happen -------------------------------------------------------------------------------------------------

#: How far the producer and two consumers are, and the copies on their way, by their positions.
State = tuple[int, int, int, frozenset[int]]


class Run:
    """All interleavings of a producer, two consumers that stand for all, and copies that arrive when they like."""

    def __init__(self, case: Case) -> None:
        self.producer, self.consumer, self.slots = case.producer, case.consumer, dict(case.slots)

    def fault(self) -> str:
        """Return what can go wrong; empty if nothing can."""
        return self.disorder() or self.explored()

    def disorder(self) -> str:
        """Items that are counted otherwise than mbarriers count, and bytes that are announced and do not come."""
        for name in self.slots:
            made = [s for s in self.producer if isinstance(s, Acquire | TileCopy) and s.pipeline == name]
            used = [s for s in self.consumer if isinstance(s, Await | Release) and s.pipeline == name]
            items = [constant(s.item) for s in made if isinstance(s, Acquire)]
            count = len(items)
            if [(type(s), constant(s.item)) for s in made] != [
                (t, n) for n in range(count) for t in (Acquire, TileCopy)
            ]:
                return "each item is acquired, then copied once"
            for kind in (Await, Release):
                if [constant(s.item) for s in used if isinstance(s, kind)] != [*range(count)]:
                    return "items are awaited and released in order"
            for n in range(count):
                if used.index(Await(name, Int(n))) > used.index(Release(name, Int(n))):
                    return "an item is released when it has been awaited"
        return ""

    def explored(self) -> str:
        start: State = (0, 0, 0, frozenset())
        seen, left = {start}, [start]
        while left:
            state = left.pop()
            if what := self.hazard(state):
                return what
            reached = list(self.moves(state))
            if not reached and state[:3] != (len(self.producer), len(self.consumer), len(self.consumer)):
                return "nobody can go on"
            for found in reached:
                if found not in seen:
                    seen.add(found)
                    left.append(found)
        return ""

    def hazard(self, state: State) -> str:
        """What can happen at once though it must not."""
        made, _, _, flying = state
        targets = [slot_of(self.producer[n]) for n in flying]
        if len(set(targets)) < len(targets):
            return "two copies into one slot"
        landed = {slot_of(s) for n, s in enumerate(self.producer[:made]) if isinstance(s, TileCopy)}
        for at in state[1:3]:
            if at < len(self.consumer) and isinstance(self.consumer[at], SharedVector):
                wanted = slot_of(self.consumer[at])
                if wanted in targets:
                    return "a read while a copy arrives"
                if wanted not in landed:
                    return "a read of what nobody wrote"
        return ""

    def moves(self, state: State) -> Iterator[State]:
        made, a, b, flying = state
        for n in flying:
            yield made, a, b, flying - {n}
        if made < len(self.producer) and self.may_produce(self.producer[made], min(a, b)):
            started = {made} if isinstance(self.producer[made], TileCopy) else set()
            yield made + 1, a, b, flying | started
        for at, other in ((a, b), (b, a)):
            if at < len(self.consumer) and self.may_consume(at, other, made, flying):
                first, second = sorted((at + 1, other))  # they are alike
                yield made, first, second, flying

    def may_produce(self, stmt: Stmt, least: int) -> bool:
        if not isinstance(stmt, Acquire) or constant(stmt.item) < self.slots[stmt.pipeline]:
            return True
        before = Int(constant(stmt.item) - self.slots[stmt.pipeline])
        return Release(stmt.pipeline, before) in self.consumer[:least]

    def may_consume(self, at: int, other: int, made: int, flying: frozenset[int]) -> bool:
        stmt = self.consumer[at]
        if isinstance(stmt, Barrier):
            return other >= at
        if not isinstance(stmt, Await):
            return True
        copies = [n for n, s in enumerate(self.producer) if isinstance(s, TileCopy)]
        own = [n for n in copies if self.belongs(n, stmt)]
        return bool(own) and max(own) < made and not flying & set(own)

    def belongs(self, n: int, stmt: Await) -> bool:
        found = self.producer[n]
        return isinstance(found, TileCopy) and (found.pipeline, found.item) == (stmt.pipeline, stmt.item)


# --- random cases ----------------------------------------------------------------------------------------------------


def merged(draw: random.Random, parts: list[list[Stmt]]) -> list[Stmt]:
    """Statements of some lists, those of each in their order."""
    found: list[Stmt] = []
    parts = [list(part) for part in parts if part]
    while parts:
        chosen = draw.choice(parts)
        found.append(chosen.pop(0))
        parts = [part for part in parts if part]
    return found


def made(draw: random.Random) -> Case:
    names = draw.choice((["p"], ["p"], ["p", "q"]))
    slots = {name: draw.randint(1, MOST) for name in names}
    producers: list[list[Stmt]] = []
    consumers: list[list[Stmt]] = []
    for name in names:
        producer: list[Stmt] = []
        consumer: list[Stmt] = []
        held: list[int] = []
        for item in range(draw.randint(1, 4 if len(names) == 1 else 3)):
            producer += [Acquire(name, Int(item)), copy(name, item, item % slots[name])]
            consumer += [Await(name, Int(item)), read(name, item % slots[name])]
            held.append(item)
            while held and draw.random() < 0.7:
                consumer.append(Release(name, Int(held.pop(0))))
        consumers.append([*consumer, *(Release(name, Int(item)) for item in held)])
        producers.append(producer)
    barriers: list[Stmt] = [Barrier()] * draw.randint(0, 1)
    case = Case(tuple(merged(draw, producers)), tuple(merged(draw, [*consumers, barriers])), tuple(slots.items()))
    for _ in range(draw.choice((0, 0, 1, 1, 1, 2))):
        role = draw.choice(("producer", "consumer", "consumer"))
        before = case.producer if role == "producer" else case.consumer
        if before:
            after = edited(draw, before)
            case = replace(case, producer=after) if role == "producer" else replace(case, consumer=after)
    return case


def edited(draw: random.Random, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """One statement moved, left out, done twice, or of another item or slot."""
    at = draw.randrange(len(body))
    stmt, rest = body[at], (*body[:at], *body[at + 1 :])
    change = draw.randrange(6)
    to = draw.randrange(len(rest) + 1)
    if change == 0:
        return rest
    if change == 1:
        return (*body[:at], stmt, *body[at:])
    if change < 4:
        return (*rest[:to], stmt, *rest[to:])
    other = draw.randrange(MOST)
    match stmt:
        case SharedVector(buffer=name):
            stmt = replace(stmt, index=read(next(n for n, b in BUFFERS.items() if b == name), other).index)
        case TileCopy() if change == 4:
            stmt = replace(stmt, at=Int(other * UNITS))
        case Acquire() | TileCopy() | Await() | Release():
            stmt = replace(stmt, item=Int(other))
    return (*body[:at], stmt, *body[at + 1 :])


@pytest.mark.parametrize("seed", range(4))
def test_safe_exactly_where_no_interleaving_goes_wrong(seed: int) -> None:
    draw = random.Random(seed)
    faults: dict[str, int] = {}
    for _ in range(number(60, 250)):
        case = made(draw)
        if not case.producer:
            continue
        fault = Run(case).fault()
        verdict = discharge_safety(case.program, second=False).verdict
        assert isinstance(verdict, Unsafe if fault else Safe), (case, fault, verdict)
        faults[fault] = faults.get(fault, 0) + 1
    assert faults[""] >= 5
    assert len(faults) >= 5, faults
