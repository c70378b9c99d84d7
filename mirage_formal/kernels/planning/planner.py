"""Plans: a graph-defined kernel with placements, order, barriers, pipelining and memory decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from mirage_formal.errors import GraphError, UnsupportedError
from mirage_formal.graph.check import block_outputs, kernel_types
from mirage_formal.graph.graph import GraphDefined, KernelGraph, numbered
from mirage_formal.graph.views import Place, places
from mirage_formal.kernels.planning.barriers import synchronise
from mirage_formal.kernels.planning.expand import Flat, expand
from mirage_formal.kernels.planning.memory import Memory, allocate
from mirage_formal.kernels.planning.placement import Placements, Source, choose
from mirage_formal.kernels.planning.products import Products, products_of
from mirage_formal.kernels.planning.schedules import STAGES, check, most_stages, room, variants, ways
from mirage_formal.kernels.planning.steps import Steps
from mirage_formal.kernels.program.plan import (
    Phase,
    Plan,
    PlanBuffer,
    PlanParam,
    Schedule,
    Tile,
)
from mirage_formal.kernels.target import Target


def make_plan(
    graph: KernelGraph,
    op_index: int,
    target: Target,
    schedule: Schedule | None = None,
    *,
    generic: bool = False,
    known: Sequence[Place] | None = None,
) -> Plan:
    """A plan for one graph-defined kernel.

    Args:
        graph: A well-formed µGraph.
        op_index: Position of the kernel among the graph's operators.
        target: The GPU; its limits bound shared memory and threads.
        schedule: How it runs; the first of ``planning.schedules`` that fits, if left out.
        generic: Of these only schedules that compute every operator the generic way, as a reference for the others.
        known: Where each tensor of the graph lies; as ``graph.views`` says, if left out.

    Raises:
        GraphError: The operator is not graph-defined, or the graph is not well-formed.
        UnsupportedError: The block's tensors do not fit in shared memory with the schedule, or with any that is tried.
    """
    kernel = _Kernel.of(graph, op_index, target, known)
    most, share = target.limits.shared_bytes_per_block, room(kernel.op.graph.blocks, target)
    best: _Attempt | None = None
    if schedule is not None:
        check(schedule, kernel.products, target)
        made = _attempt(kernel.placed(schedule), schedule.stages, share)
        best = made if made.memory.bytes <= most else None
    else:
        for way in ways(kernel.op.graph, kernel.products, generic=generic):
            best = _staged(kernel.placed(way), most, share)
            if best is not None:
                break
    if best is None:
        text = f"expected tensors of a block that fit in {most} bytes of shared memory"
        raise UnsupportedError(text, where=f"op {op_index}", hint="choose smaller tiles")
    return kernel.plan(best)


def schedules(
    graph: KernelGraph, op_index: int, target: Target, known: Sequence[Place] | None = None
) -> Iterator[Schedule]:
    """Schedules with which a graph-defined kernel can run, each once, the likeliest first.

    The first is the one that ``make_plan`` takes if it is given none. Others have another number of threads, another
    arrangement of warps, or fewer stages. Each fits in shared memory; none is known to be faster than another.

    Args:
        graph: A well-formed µGraph.
        op_index: Position of the kernel among the graph's operators.
        target: The GPU.
        known: Where each tensor of the graph lies; as ``graph.views`` says, if left out.

    Raises:
        UnsupportedError: The kernel cannot be planned at all.
    """
    first = make_plan(graph, op_index, target, known=known).schedule
    kernel = _Kernel.of(graph, op_index, target, known)
    most, share = target.limits.shared_bytes_per_block, room(kernel.op.graph.blocks, target)
    depths: list[list[Schedule]] = []
    alike: set[tuple[object, ...]] = set()
    for way in variants(kernel.products, first, target):
        try:
            placements = kernel.placed(way)
        except UnsupportedError:
            continue
        kind = (way.threads, way.warps, tuple(placements.copied.items()), tuple(placements.brought))
        if kind in alike:  # there was nothing that could be left where it is
            continue
        alike.add(kind)
        deepest = _deepest(placements)
        wanted = [n for n in range(deepest, 0, -1) if n >= deepest - 1 or n in STAGES]
        depths.append([replace(way, stages=n) for n in wanted if _attempt(placements, n, share).memory.bytes <= most])
    seen: set[Schedule] = set()
    for found in (first, *(one for row in zip_longest(*depths) for one in row if one is not None)):
        if found not in seen:
            seen.add(found)
            yield found


@dataclass(frozen=True, slots=True)
class _Kernel:
    """What is planned, and what no schedule changes."""

    name: str
    op: GraphDefined
    flat: Flat
    params: tuple[PlanParam, ...]
    inputs: tuple[Tile, ...]
    savers: tuple[Tile, ...]

    @classmethod
    def of(cls, graph: KernelGraph, op_index: int, target: Target, known: Sequence[Place] | None) -> _Kernel:
        """See ``make_plan``."""
        op = graph.ops[op_index]
        if not isinstance(op, GraphDefined):
            raise GraphError(f"expected a graph-defined kernel, got {op.kind}", where=f"op {op_index}")
        types = kernel_types(graph)
        flat = expand(op, tuple(types[n] for n in op.operands))
        lying = places(graph) if known is None else known
        return cls(f"kernel{op_index}", op, flat, *_interface(graph, op_index, op, flat, lying))

    @property
    def products(self) -> Products:
        """Its products, without warps."""
        return products_of(self.flat, len(self.inputs))

    def placed(self, schedule: Schedule) -> Placements:
        """Where its tensors live under a schedule."""
        shapes = (self.flat.tensors[tile.tensor].shape for tile in self.inputs)
        sources = tuple(
            Source(*self.params[tile.param].copies(shape)) for tile, shape in zip(self.inputs, shapes, strict=True)
        )
        return choose(self.products, sources, schedule)

    def plan(self, chosen: _Attempt) -> Plan:
        """The plan as it was attempted."""
        return chosen.plan(self.name, self.op, self.params, self.inputs, self.savers)


def _interface(
    graph: KernelGraph, op_index: int, op: GraphDefined, flat: Flat, known: Sequence[Place]
) -> tuple[tuple[PlanParam, ...], tuple[Tile, ...], tuple[Tile, ...]]:
    """Parameters, and the parts of them that a block reads and writes."""
    types = kernel_types(graph)
    params: list[PlanParam] = []
    for position, number in enumerate(op.operands):
        source = graph.inputs[number] if number < len(graph.inputs) else None
        name = f"in{position}_{source.name}" if source is not None else f"in{position}_d{number}"
        params.append(PlanParam(name, types[number].shape, types[number].dtype, False, known[number]))
    first = [number for number, _ in numbered(len(graph.inputs), graph.ops)][op_index]
    for position, tensor in enumerate(block_outputs(op.graph, tuple(types[n] for n in op.operands))):
        number = first + position
        params.append(PlanParam(f"out{position}_d{number}", tensor.shape, tensor.dtype, True, known[number]))
    block = op.graph
    inputs = tuple(
        Tile(i, i, iterator.imap, iterator.fmap if block.forloop_range > 1 else None)
        for i, iterator in enumerate(block.inputs)
    )
    savers = tuple(Tile(len(block.inputs) + i, flat.outputs[i], saver.omap) for i, saver in enumerate(block.outputs))
    return tuple(params), inputs, savers


@dataclass(frozen=True, slots=True)
class _Attempt:
    placements: Placements
    steps: Steps
    memory: Memory

    def plan(
        self,
        name: str,
        op: GraphDefined,
        params: tuple[PlanParam, ...],
        inputs: tuple[Tile, ...],
        savers: tuple[Tile, ...],
    ) -> Plan:
        offsets = self.memory.offsets
        sizes = {request.name: request.bytes for request in self.steps.requests}
        ends = {n: offset + sizes[n] for n, offset in offsets.items()}

        def overlap(a: str, b: str) -> bool:
            return offsets[a] < ends[b] and offsets[b] < ends[a]

        schedule = synchronise(self.steps.before, self.steps.loop, self.steps.after, overlap)
        buffers = [
            PlanBuffer(n, dtype, elements, offsets[n]) for n, (dtype, elements) in sorted(self.steps.buffers.items())
        ]
        return Plan(
            name,
            op.graph.grid,
            self.placements.flat.iterations,
            params,
            inputs,
            savers,
            tuple(self.steps.tensors),
            self.placements.flat.ops,
            schedule.before,
            schedule.loop,
            schedule.after,
            tuple(buffers),
            self.memory.lower_bound,
            replace(self.placements.schedule, stages=self.steps.stages),
            self.steps.ring,
        )


def _staged(placements: Placements, most: int, share: int) -> _Attempt | None:
    """The deepest pipeline that fits, with room for the blocks that one SM has to hold; None if nothing fits.

    Args:
        placements: The kernel's.
        most: Bytes of shared memory that a block can have.
        share: Bytes that it may take, if it can do with them.
    """
    fallback: _Attempt | None = None
    for stages in range(_deepest(placements), 0, -1):
        attempt = _attempt(placements, stages, share)
        if attempt.memory.bytes > most:
            continue
        if attempt.memory.bytes <= share:
            return attempt if stages > 1 or fallback is None else fallback
        if fallback is None or stages >= 2:
            fallback = attempt
    return fallback


def _deepest(placements: Placements) -> int:
    """The most stages that pay for a kernel."""
    flat = placements.flat
    moving = [n for n, chunks in placements.copied.items() if chunks and flat.tensors[n].phase is Phase.LOOP]
    tile_bytes = sum(
        placement.elements * placements.shared_dtype[n].bytes
        for n in moving
        if (placement := placements.tensors[n].placement.shared) is not None
    )
    return most_stages(tile_bytes, flat.iterations)


def _attempt(placements: Placements, stages: int, share: int) -> _Attempt:
    steps = Steps(placements.flat, placements, stages)
    return _Attempt(placements, steps, _placed(steps, share))


def _placed(steps: Steps, most: int) -> Memory:
    """A memory plan that saves barriers where memory would be left over: what shares no bytes needs none.

    Args:
        steps: The kernel's steps.
        most: Bytes that a block may take so that as many blocks as there are for it fit one multiprocessor.
    """
    tight = allocate(steps.requests)
    whole = [replace(request, first=0, last=0) for request in steps.requests]
    for requests in (whole, steps.lives(loose=True)):
        found = allocate(requests)
        if found.bytes <= max(tight.bytes, most):
            return replace(found, lower_bound=tight.lower_bound)
    return tight
