"""Faults in Plans and in the Programs lowered from them: memory plan, schedule, index expressions, layouts.

They are put into kernels of the examples' candidates at reduced extents. A mutant is either a Plan with one fault,
which is lowered as any other, or a Program with one fault. Faults of one side only (what writes a buffer uses another
layout, stride or ring slot than what reads it) are made by lowering the changed Plan too and taking from it the
statements of that side.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning import planner
from mirage_formal.codegen.planning.memory import Allocation, BufferRequest, allocate
from mirage_formal.codegen.planning.step_order import KernelSteps
from mirage_formal.codegen.program.plan import Plan, SharedPlacement
from mirage_formal.codegen.program.program import (
    Barrier,
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    If,
    LoadMatrix,
    Program,
    SharedRead,
    SharedVector,
    SharedWrite,
    Stmt,
    WaitGroups,
)
from mirage_formal.codegen.program.step import Prefetch, Step
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build.stable_forms import stabilize_proved
from mirage_formal.support.errors import MirageError
from tests.kit.graphs import workloads as w
from tests.kit.kernels.emulated_programs import dropped
from tests.kit.kernels.example_kernels import TARGET, alone
from tests.kit.kernels.safety_programs import changes

#: Program and candidate at reduced extents.
GRAPHS: dict[str, tuple[KernelGraph, KernelGraph]] = {
    "split": (
        w.attention(b=2, m=16, d=16, n=128, e=16),
        w.attention_split(b=2, m=16, d=16, n=128, e=16, split=2, loop=2),
    ),
    "one": (w.attention(b=1, m=32, d=32, n=160, e=16), w.attention_one(b=1, m=32, d=32, n=160, e=16, rows=2, loop=10)),
    "rmsnorm": (w.rmsnorm(2, 256, 128), w.rmsnorm_fused(2, 256, 128, grid=2, loop=16)),
    "lora": (w.lora(16, 256, 128, 16), w.lora_fused(16, 256, 128, 16, grid=2, loop=2)),
    "gated_mlp": (w.gated_mlp(8, 192, 128), w.gated_mlp_fused(8, 192, 128, grid=2, loop=12)),
    "ntrans": (w.ntrans(4, 1024), w.ntrans_fused(4, 1024, grid=4)),
    "decode": (
        w.attention(b=8, m=1, d=32, n=128, e=32),
        w.attention_split(b=8, m=1, d=32, n=128, e=32, split=2, loop=2),
    ),
}


@dataclass(frozen=True, slots=True)
class Base:
    """A kernel without faults.

    Attributes:
        name: Its name.
        graph: The kernel alone, as a µGraph.
        computed: The program.
        candidate: The candidate for it, with running maxima.
        position: Position of the kernel in the candidate.
        plan, program: Its Plan and Program.
        tight: The Plan whose buffers take the fewest bytes, and the lives of the buffers that it rests on.
    """

    name: str
    graph: KernelGraph
    computed: KernelGraph
    candidate: KernelGraph
    position: int
    plan: Plan
    program: Program
    tight: Plan
    requests: tuple[BufferRequest, ...]


@cache
def bases() -> dict[str, Base]:
    """The kernels of all candidates, with running maxima where exponentials are summed."""
    out: dict[str, Base] = {}
    for name, (program, candidate) in GRAPHS.items():
        found = stabilize_proved(candidate).graph
        types = kernel_types(found)
        for position, op in enumerate(found.ops):
            assert isinstance(op, GraphDefined)
            graph = alone(op, tuple(types[n] for n in op.operands))
            plan = planner.make_plan(graph, 0, TARGET)
            tight, requests = placed(graph)
            key = name if len(found.ops) == 1 else f"{name} {position}"
            out[key] = Base(key, graph, program, found, position, plan, lower(plan), tight, requests)
    return out


def placed(
    graph: KernelGraph, lives: tuple[BufferRequest, ...] | None = None
) -> tuple[Plan, tuple[BufferRequest, ...]]:
    """A Plan by the tightest memory plan for given lives of the buffers (those that are right, if none are given).

    Barriers are those of the right lives: the fault is in the memory plan alone.
    """
    seen: list[Allocation] = []
    requests: list[tuple[BufferRequest, ...]] = []
    real = planner._allocate_buffers

    def tightest(steps: KernelSteps, most: int) -> Allocation:
        requests.append(steps.requests)
        seen.append(allocate(steps.requests))
        return seen[-1]

    planner._allocate_buffers = tightest
    try:
        plan = planner.make_plan(graph, 0, TARGET)
    finally:
        planner._allocate_buffers = real
    chosen = next(r for r, m in zip(requests, seen, strict=True) if dict(m.offsets) == offsets(plan))
    if lives is not None:
        moved = allocate(lives).offsets
        plan = replace(plan, buffers=tuple(replace(b, offset=moved[b.name]) for b in plan.buffers))
    return plan, chosen


def offsets(plan: Plan) -> dict[str, int]:
    """Where buffers lie."""
    return {buffer.name: buffer.offset for buffer in plan.buffers}


class Family(StrEnum):
    """Where a fault is."""

    MEMORY = "memory plan"
    SCHEDULE = "schedule"
    INDEX = "index expression"
    LAYOUT = "layout"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault: in a Plan, or in a Program.

    Attributes:
        base: The kernel that has it.
        family, what: What it is.
        faulty: The Plan or Program.
        launched: Bytes of shared memory of the launch, if they are not the Program's.
    """

    base: str
    family: Family
    what: str
    faulty: Plan | Program
    launched: int | None = None


# --- memory plan -----------------------------------------------------------------------------------------------------


def memory(base: Base) -> Iterator[Mutant]:
    """Buffers that overlap, are misplaced or too small; lives that end too early; a launch with too few bytes."""

    def mutant(what: str, plan: Plan, launched: int | None = None) -> Mutant:
        return Mutant(base.name, Family.MEMORY, what, plan, launched)

    plan = base.plan
    live = {request.name: set(range(request.first, request.last + 1)) for request in base.requests}
    for i, buffer in enumerate(plan.buffers):

        def put(i: int = i, **changed: Any) -> Plan:
            return replace(plan, buffers=_set(plan.buffers, i, replace(plan.buffers[i], **changed)))

        for other in plan.buffers:
            if live[buffer.name] & live[other.name] and other is not buffer:
                yield mutant(f"{buffer.name} at {other.name}", put(offset=other.offset))
                inside = other.offset + other.bytes // 32 * 16
                yield mutant(f"{buffer.name} in the middle of {other.name}", put(offset=inside))
        yield mutant(f"{buffer.name} moved by 2", put(offset=buffer.offset + 2))
        yield mutant(f"{buffer.name} has half its elements", put(elements=buffer.elements // 2))
        yield mutant(f"{buffer.name} is one row short", put(elements=buffer.elements - _row(plan, buffer.name)))
    for request in base.requests:
        for first, last in ((request.first + 1, request.last), (request.first, request.last - 1)):
            if first <= last:
                shorter = replace(request, first=first, last=last)
                lives = tuple(shorter if r is request else r for r in base.requests)
                moved = placed(base.graph, lives)[0]
                if offsets(moved) != offsets(base.tight):
                    yield mutant(f"{request.name} is live in {first}..{last} only", moved)
    for short in (32, 256):
        if base.program.shared_bytes > short:
            yield mutant(f"launched with {short} bytes less", plan, base.program.shared_bytes - short)


def _row(plan: Plan, name: str) -> int:
    """Elements of a row of a buffer."""
    placements = (tensor.placement.shared for tensor in plan.tensors)
    return next(
        (placement.pitch for placement in placements if placement is not None and placement.buffer == name),
        plan.threads,
    )


def _set(items: tuple[Any, ...], position: int, item: Any) -> tuple[Any, ...]:
    return (*items[:position], item, *items[position + 1 :])


# --- schedule --------------------------------------------------------------------------------------------------------

PHASES = ("before", "loop", "after")


def schedule(base: Base) -> Iterator[Mutant]:
    """Barriers, waits, groups and copies that are dropped, moved or miscounted; rings that are too short."""
    plan = base.plan

    def mutant(what: str, faulty: Plan | Program) -> Mutant:
        return Mutant(base.name, Family.SCHEDULE, what, faulty)

    for phase in PHASES:
        steps: tuple[Step, ...] = getattr(plan, phase)
        for i, step in enumerate(steps):
            for what, changed in _steps(steps, i, step):
                phases: dict[str, Any] = {phase: changed}
                yield mutant(f"{phase} {i}: {what}", replace(plan, **phases))
    if plan.ring:
        for stages in (plan.stages - 1, plan.stages + 1):
            if stages > 0 and any(step == Prefetch() for step in plan.loop):
                yield mutant(
                    f"copies run {stages - 1} ahead", replace(plan, schedule=replace(plan.schedule, stages=stages))
                )
        for number in plan.ring:
            placement = plan.tensors[number].placement.shared
            assert placement is not None
            ring = with_home(plan, number, replace(placement, stages=placement.stages - 1))
            yield mutant(f"the ring of {placement.buffer} has {placement.stages - 1} slots", ring)
            for side, from_other in sides(placement.buffer):
                for stages in (placement.stages - 1, placement.stages + 1):
                    faulty = mixed(plan, with_home(plan, number, replace(placement, stages=stages)), from_other)
                    if faulty is not None:
                        yield mutant(f"what {side} {placement.buffer} takes slots modulo {stages}", faulty)
    for label, program in dropped(base.program, (Barrier, Commit, WaitGroups)):
        yield mutant(f"dropped {label}", program)


def _steps(steps: tuple[Step, ...], i: int, step: Step) -> Iterator[tuple[str, tuple[Step, ...]]]:
    before, after = steps[:i], steps[i + 1 :]
    name = type(step).__name__
    if isinstance(step, Barrier | WaitGroups | Commit | Prefetch):
        yield f"no {name}", (*before, *after)
    if isinstance(step, Barrier | WaitGroups):
        if after:
            yield f"{name} one step later", (*before, after[0], step, *after[1:])
        if before:
            yield f"{name} one step earlier", (*before[:-1], step, before[-1], *after)
    if isinstance(step, WaitGroups):
        yield "waits for one group less", (*before, WaitGroups(step.left + 1), *after)
    if isinstance(step, Prefetch) and step.iteration is not None:
        yield "copies the next iteration", (*before, Prefetch(step.iteration + 1), *after)


def with_home(plan: Plan, number: int, placement: SharedPlacement) -> Plan:
    """A plan with another placement of one tensor in shared memory."""
    tensor = plan.tensors[number]
    return replace(plan, tensors=_set(plan.tensors, number, tensor.at(replace(tensor.placement, shared=placement))))


# --- one side --------------------------------------------------------------------------------------------------------

Side = Callable[[Stmt], bool]


def sides(buffer: str) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """What writes a buffer, and what reads it."""

    def writes(stmt: Stmt) -> bool:
        return isinstance(stmt, CopyAsync | SharedWrite) and stmt.buffer == buffer

    def reads(stmt: Stmt) -> bool:
        if isinstance(stmt, LoadMatrix | SharedVector):
            return stmt.buffer == buffer
        return any(isinstance(node, SharedRead) and node.buffer == buffer for node in nodes(stmt))

    return ("writes", writes), ("reads", reads)


def nodes(item: Any) -> Iterator[Any]:
    """Everything that a statement is made of, itself included."""
    yield item
    for value in item if isinstance(item, tuple) else [getattr(item, f.name) for f in fields(item)]:
        if isinstance(value, tuple) or (is_dataclass(value) and not isinstance(value, type)):
            yield from nodes(value)


def mixed(plan: Plan, other: Plan, from_other: Side) -> Program | None:
    """The Program of a plan with some statements of another one's; None if these have not the same form."""
    mine = lower(plan)
    try:
        body = _mixed(mine.body, lower(other).body, from_other)
    except (ValueError, AssertionError):
        return None
    return None if body == mine.body else replace(mine, body=body)


def _mixed(mine: tuple[Stmt, ...], other: tuple[Stmt, ...], from_other: Side) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for a, b in zip(mine, other, strict=True):
        if type(a) is not type(b):
            raise ValueError("other statements")
        if isinstance(a, For | If) and isinstance(b, For | If):
            out.append(replace(a, body=_mixed(a.body, b.body, from_other)))
        else:
            out.append(b if from_other(a) else a)
    return tuple(out)


# --- index expressions -----------------------------------------------------------------------------------------------

#: The expressions of each statement that address memory, or say whether it is touched.
INDICES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (CopyAsync, ("index", "source", "valid")),
    (GlobalVector, ("index",)),
    (GlobalWrite, ("index",)),
    (GlobalRead, ("index",)),
    (LoadMatrix, ("index",)),
    (SharedVector, ("index",)),
    (SharedWrite, ("index",)),
    (SharedRead, ("index",)),
    (If, ("condition",)),
)


def index(base: Base) -> Iterator[Mutant]:
    """One constant or operator changed in the index of one access, or in a condition; loops that are too short."""
    for what, body in _indexed(base.program.body):
        yield Mutant(base.name, Family.INDEX, what, replace(base.program, body=body))
    plan = base.plan
    if plan.forloop_range > 1:
        yield Mutant(base.name, Family.INDEX, "one iteration less", replace(plan, forloop_range=plan.forloop_range - 1))
    for i, tile in enumerate(plan.inputs):
        if tile.loop is not None:
            still = replace(plan, inputs=_set(plan.inputs, i, replace(tile, loop=None)))
            yield Mutant(base.name, Family.INDEX, f"input {i} stands still", still)
    for i, tile in enumerate((*plan.inputs, *plan.savers)):
        for axis, dim in enumerate(tile.split):
            if dim is not None and plan.grid[axis] > 1:
                same = replace(tile, split=_set(tile.split, axis, None))
                tiles = _set((*plan.inputs, *plan.savers), i, same)
                count = len(plan.inputs)
                faulty = replace(plan, inputs=tiles[:count], savers=tiles[count:])
                yield Mutant(base.name, Family.INDEX, f"tile {i} is the same for all of grid axis {axis}", faulty)


def _indexed(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, tuple):
        for i, item in enumerate(node):
            for what, changed in _indexed(item):
                yield f"{i}/{what}", _set(node, i, changed)
        return
    if not is_dataclass(node) or isinstance(node, type):
        return
    own = next((names for kind, names in INDICES if isinstance(node, kind)), ())
    for f in fields(node):
        value = getattr(node, f.name)
        if f.name in own:
            for what, changed in changes(value):
                yield f"{type(node).__name__}.{f.name} {what}", replace(node, **{f.name: changed})
        elif isinstance(value, tuple) or is_dataclass(value):
            for what, changed in _indexed(value):
                yield f"{type(node).__name__}.{what}", replace(node, **{f.name: changed})


# --- layouts ---------------------------------------------------------------------------------------------------------


def layout(base: Base) -> Iterator[Mutant]:
    """Swizzles, pitches and padding that one side does not know of; vectors and matrices of another shape."""
    plan = base.plan

    def mutant(what: str, faulty: Plan | Program) -> Mutant:
        return Mutant(base.name, Family.LAYOUT, what, faulty)

    for number, tensor in enumerate(plan.tensors):
        placement = tensor.placement.shared
        if placement is None:
            continue
        for what, changed in _homes(placement):
            other = with_home(plan, number, changed)
            for side, from_other in sides(placement.buffer):
                faulty = mixed(plan, other, from_other)
                if faulty is not None:
                    yield mutant(f"what {side} {placement.buffer}: {what}", faulty)
        for pitch in (placement.pitch + 4, placement.pitch + 8):
            yield mutant(f"{placement.buffer}: pitch {pitch}", with_home(plan, number, replace(placement, pitch=pitch)))
        if placement.rows > tensor.rows and not placement.transposed:
            fewer = with_home(plan, number, replace(placement, rows=tensor.rows))
            faulty = mixed(plan, fewer, sides(placement.buffer)[0][1])
            if faulty is not None:
                yield mutant(f"{placement.buffer}: no padding is written", faulty)
    for what, body in _shaped(base.program.body):
        yield mutant(what, replace(base.program, body=body))


def _homes(placement: SharedPlacement) -> Iterator[tuple[str, SharedPlacement]]:
    if placement.mask:
        yield "no swizzle", replace(placement, mask=0)
        yield f"swizzle by {placement.mask >> 1}", replace(placement, mask=placement.mask >> 1)
        yield f"swizzle by rows / {2 << placement.shift}", replace(placement, shift=placement.shift + 1)
    elif placement.cols >= 16 and placement.cols % 16 == 0:
        yield "swizzle", replace(placement, mask=1)
    for pitch in (placement.pitch - 8, placement.pitch + 8):
        if pitch > 0:
            yield f"pitch {pitch}", replace(placement, pitch=pitch)


def _shaped(body: tuple[Stmt, ...]) -> Iterator[tuple[str, tuple[Stmt, ...]]]:
    """Vectors of half or twice the width, matrices transposed, fewer, or with their rows given by other lanes."""
    for i, stmt in enumerate(body):
        found: list[tuple[str, Stmt]] = []
        match stmt:
            case For() | If():
                found = [(what, replace(stmt, body=inner)) for what, inner in _shaped(stmt.body)]
            case GlobalVector(count=count) | SharedVector(count=count):
                found = [(f"vector of {n}", replace(stmt, count=n)) for n in (count // 2, 2 * count)]
            case GlobalWrite(values=values) | SharedWrite(values=values) if len(values) > 1:
                found = [("half a vector", replace(stmt, values=values[: len(values) // 2]))]
            case LoadMatrix():
                found = [("turned", replace(stmt, transposed=not stmt.transposed))]
                found += [("fewer matrices", replace(stmt, count=stmt.count // 2))]
                found += [(f"rows {what}", replace(stmt, index=e)) for what, e in changes(stmt.index)]
        for what, changed in found:
            yield f"{i}/{type(stmt).__name__} {what}", _set(body, i, changed)


# --- all together ----------------------------------------------------------------------------------------------------

FAMILIES: dict[Family, Callable[[Base], Iterator[Mutant]]] = {
    Family.MEMORY: memory,
    Family.SCHEDULE: schedule,
    Family.INDEX: index,
    Family.LAYOUT: layout,
}


def sample(count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of each family, as evenly as possible from every kernel that has such mutants.

    Any two of them are different Programs, or different launches of one.
    """
    draw = random.Random(seed)
    seen: set[tuple[str, str, int | None]] = set()
    out: list[Mutant] = []
    for make in FAMILIES.values():
        piles = [list(make(base)) for base in bases().values()]
        for pile in piles:
            draw.shuffle(pile)
        found: list[Mutant] = []
        while len(found) < count and any(piles):
            for pile in piles:
                new = _new(pile, seen)
                if new is not None and len(found) < count:
                    found.append(new)
        out += found
    return out


def _new(pile: list[Mutant], seen: set[tuple[str, str, int | None]]) -> Mutant | None:
    """The next mutant of a pile that is none of those before."""
    while pile:
        mutant = pile.pop()
        key = mutant.base, _text(mutant.faulty), mutant.launched
        if key not in seen:
            seen.add(key)
            return mutant
    return None


def _text(faulty: Plan | Program) -> str:
    try:
        return repr(lower(faulty) if isinstance(faulty, Plan) else faulty)
    except (MirageError, AssertionError, NotImplementedError, ValueError):
        return repr(faulty)
