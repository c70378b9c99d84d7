"""The planner: it decides placements, order, barriers, pipelining and memory of a graph-defined kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Final

from mirage_formal.codegen.device_tensors import PlanParam
from mirage_formal.codegen.planning.barriers import synchronise
from mirage_formal.codegen.planning.expand import FlatGraph, flatten, maxima_of
from mirage_formal.codegen.planning.k_loop_splitting import can_split_iterations
from mirage_formal.codegen.planning.memory import ALIGN, PANEL_ALIGN, Allocation, allocate
from mirage_formal.codegen.planning.mma_selection import MatrixProducts, products_of
from mirage_formal.codegen.planning.placement import Placements, TileLayouts, choose_placements
from mirage_formal.codegen.planning.schedules import (
    FEWEST_STAGES,
    LINE,
    STAGES,
    base_schedules,
    check_schedule,
    iteration_splits,
    most_stages,
    shared_memory_budget,
    variants,
)
from mirage_formal.codegen.planning.step_order import KernelSteps
from mirage_formal.codegen.program.bands import band_at
from mirage_formal.codegen.program.empty_tiles import has_idle_blocks, skippable_mask
from mirage_formal.codegen.program.plan import Plan, Schedule, Tile, producer_stride
from mirage_formal.codegen.program.program import SharedBuffer
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import GraphDefined, KernelGraph, enumerate_results
from mirage_formal.graph.storage_views import StorageLocation, storage_locations
from mirage_formal.graph.types import Band
from mirage_formal.graph.verifier import block_outputs, kernel_types
from mirage_formal.support.errors import GraphError, UnsupportedError

#: One byte in this many may lie in runs that are cut to less than a cache line.
_FEW: Final = 8
#: Bytes of shared memory for the barriers of a pipeline, so that what is behind them begins at a panel.
_BARRIER_BYTES: Final = PANEL_ALIGN


def make_plan(
    graph: KernelGraph,
    op_index: int,
    target: Target,
    schedule: Schedule | None = None,
    *,
    generic: bool = False,
    known: Sequence[StorageLocation] | None = None,
) -> Plan:
    """Return a plan for one graph-defined kernel.

    Args:
        graph: A well-formed µGraph.
        op_index: Position of the kernel among the graph's operators.
        target: The GPU; its limits bound shared memory and threads.
        schedule: The schedule; if left out, the first of ``planning.schedules`` that fits, with iterations cut where
            its pipeline would run dry.
        generic: Whether to try only schedules that compute every operator in the generic way, as a reference for the
            others.
        known: The memory layout of each tensor of the graph; the one from ``graph.storage_views``, if left out.

    Raises:
        GraphError: The operator is not graph-defined, or the graph is not well-formed.
        UnsupportedError: The block's tensors do not fit in shared memory with the schedule, or with any that is tried,
            or its iterations may not be cut as the schedule says.
    """
    op = graph.ops[op_index]
    if not isinstance(op, GraphDefined):
        raise GraphError(f"expected a graph-defined kernel, got {op.kind}", where=f"op {op_index}")
    kernel = _Kernel(graph, op_index, op, storage_locations(graph) if known is None else known, target)
    if schedule is not None:
        loop = _SplitKernel(kernel, 1).cut(schedule.cut)
        if loop is None:
            what = f"iterations that may be cut into {schedule.cut}"
            raise UnsupportedError(f"expected {what}", where="schedule", hint="take a schedule with cut = 1")
        check_schedule(schedule, loop.products, target)
        made = loop.attempt(loop.choose(schedule), schedule.stages)
        best = made if made.fits else None
    else:
        best = _choose_plan(kernel, generic=generic)
    if best is None:
        text = f"expected tensors of a block that fit in {kernel.most} bytes of shared memory"
        raise UnsupportedError(text, where=f"op {op_index}", hint="choose smaller tiles")
    return best.plan(f"kernel{op_index}")


def schedules(
    graph: KernelGraph, op_index: int, target: Target, known: Sequence[StorageLocation] | None = None
) -> Iterator[Schedule]:
    """Yield the schedules with which a graph-defined kernel can run, each once, the likeliest first.

    A schedule that begins a product ahead comes first, if there is one, with a producer if that can be: the time of a
    kernel's first schedule decides whether tuning tries others. The next one is the default of ``make_plan``. Others
    have another number of threads, another arrangement of warps, fewer stages, or another cut of iterations. Each fits
    in shared memory; none is known to be faster than another.

    Args:
        graph: A well-formed µGraph.
        op_index: Position of the kernel among the graph's operators.
        target: The GPU.
        known: The memory layout of each tensor of the graph; the one from ``graph.storage_views``, if left out.

    Raises:
        UnsupportedError: The kernel cannot be planned at all.
    """
    first = make_plan(graph, op_index, target, known=known).schedule
    op = graph.ops[op_index]
    assert isinstance(op, GraphDefined)
    kernel = _Kernel(graph, op_index, op, storage_locations(graph) if known is None else known, target)
    whole = _SplitKernel(kernel, 1)
    known_counts = (1, *iteration_splits(op.graph))
    counts = [n for n in (first.cut, 2 * first.cut, first.cut // 2) if n in known_counts]
    loops = [loop for count in counts if (loop := whole.cut(count)) is not None and (loop.count == 1 or loop.lines)]
    depths = [row for loop in loops for row in loop.depths(replace(first, cut=loop.count), target)]
    others = [one for row in zip_longest(*depths) for one in row if one is not None]
    seen: set[Schedule] = set()
    begun = [one for one in others if one.ahead]
    likely = (*[one for one in begun if one.producer][:1], *[one for one in begun if not one.producer][:1])
    for found in (*likely, first, *others):
        if found not in seen:
            seen.add(found)
            yield found


def _choose_plan(kernel: _Kernel, *, generic: bool) -> _Attempt | None:
    """Return the first schedule that fits; iterations are cut if none does, or if its pipeline runs dry."""
    whole = _SplitKernel(kernel, 1)
    first = whole.fitting(generic=generic)
    if generic or (first is not None and first.good):
        return first
    for count in iteration_splits(kernel.op.graph):
        loop = whole.cut(count)
        found = None if loop is None else loop.fitting(generic=False)
        if found is not None and found.good and found.loop.lines:
            return found
        first = first or found
    return first


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The input of the planner: a graph-defined kernel of a µGraph, and the memory layouts of the µGraph's tensors."""

    graph: KernelGraph
    position: int
    op: GraphDefined
    known: Sequence[StorageLocation]
    target: Target

    @property
    def most(self) -> int:
        """Return the bytes of shared memory that a block can have."""
        return self.target.limits.shared_bytes_per_block

    @property
    def bands(self) -> tuple[Band | None, ...]:
        """Return the band of each operand; None if it has none."""
        types = kernel_types(self.graph)
        return tuple(band_at(self.graph.inputs, self.known[n], types[n].shape) for n in self.op.operands)

    @property
    def skips(self) -> int | None:
        """Return the input in whose empty tiles iterations are skipped, as in ``Plan.skips``."""
        return skippable_mask(self.op.graph, self.bands)

    @property
    def idles(self) -> bool:
        """Return whether some block skips all its iterations."""
        number = self.skips
        band = None if number is None else self.bands[number]
        if number is None or band is None:
            return False
        return has_idle_blocks(self.op.graph, number, band, kernel_types(self.graph)[self.op.operands[number]].shape)

    @property
    def share(self) -> int:
        """Return the bytes of shared memory that a block should take at most, so that enough blocks are resident."""
        return shared_memory_budget(self.op.graph.blocks, self.target)

    def resident(self, attempt: _Attempt) -> int:
        """Return the blocks for which one multiprocessor has shared memory."""
        limits = self.target.limits
        return limits.shared_bytes_per_sm // (attempt.memory.bytes + limits.shared_reserved_per_block)


class _SplitKernel:
    """A kernel in which each iteration is split into ``count`` iterations."""

    def __init__(self, kernel: _Kernel, count: int) -> None:
        self.kernel, self.count = kernel, count
        block = kernel.op.graph
        self.op = replace(kernel.op, graph=replace(block, forloop_range=block.forloop_range * count))
        types = kernel_types(kernel.graph)
        tops = maxima_of(kernel.graph)
        maxima = frozenset(position for position, n in enumerate(self.op.operands) if n in tops)
        self.flat = flatten(self.op, tuple(types[n] for n in self.op.operands), maxima)
        self.params, self.inputs, self.savers = _interface(kernel, self.op, self.flat)
        self.sources = tuple(
            TileLayouts(*param.copies(self.flat.tensors[tile.tensor].shape), computed=param.band is not None)
            for tile in self.inputs
            for param in (self.params[tile.param],)
        )

    def cut(self, count: int) -> _SplitKernel | None:
        """Return the kernel with each iteration split into this many; None if that is not valid."""
        if count == 1:
            return self
        try:
            finer = _SplitKernel(self.kernel, count)
        except GraphError:  # there are no such tiles
            return None
        return finer if can_split_iterations(self.flat, finer.flat, [tile.loop for tile in self.inputs]) else None

    @property
    def lines(self) -> bool:
        """Return whether the loop keeps cache lines whole: it splits few bytes into runs shorter than a cache line."""
        stored = [tile for tile in self.inputs if self.params[tile.param].band is None]
        moving = [(self.flat.tensors[tile.tensor], tile) for tile in stored if tile.loop is not None]
        sizes = [prod(tensor.shape) * tensor.dtype.bytes for tensor, _ in moving]
        cut = sum(
            size
            for size, (tensor, tile) in zip(sizes, moving, strict=True)
            if tile.loop is not None
            and self.params[tile.param].strides[tile.loop] == 1
            and tensor.shape[tile.loop] * tensor.dtype.bytes < LINE
        )
        return cut * _FEW <= sum(sizes)

    @property
    def products(self) -> MatrixProducts:
        """Return the kernel's products, without warps."""
        return products_of(self.flat, len(self.sources))

    def choose(self, schedule: Schedule) -> Placements:
        """Return the placements of all tensors."""
        return choose_placements(self.products, self.sources, schedule)

    def depths(self, first: Schedule, target: Target) -> Iterator[list[Schedule]]:
        """Yield, for each variant of a schedule, the schedules with different stages that fit, the deepest first."""
        alike: set[tuple[object, ...]] = set()
        for way in variants(self.products, first, target):
            try:
                placements = self.choose(way)
            except UnsupportedError:
                continue
            kind = (
                way.threads,
                way.warps,
                way.ahead,
                way.producer,
                tuple(placements.copied.items()),
                tuple(placements.brought),
            )
            if kind in alike:  # there was nothing that could be left where it is
                continue
            alike.add(kind)
            deepest = most_stages(placements.moving_bytes, self.flat.iterations)
            wanted = (n for n in range(deepest, 0, -1) if n >= deepest - 1 or n in STAGES)
            yield [replace(way, stages=n) for n in wanted if self.fits(placements, n)]

    def fits(self, placements: Placements, stages: int) -> bool:
        """Return whether the kernel can be planned with this many stages, and fits in shared memory."""
        try:
            return self.attempt(placements, stages).fits
        except UnsupportedError:
            return False

    def fitting(self, *, generic: bool) -> _Attempt | None:
        """Return the plan of the first schedule that fits; None if none fits."""
        for way in base_schedules(self.op.graph, self.products, generic=generic):
            found = self._staged(self.choose(replace(way, cut=self.count)))
            if found is not None:
                return found
        return None

    def attempt(self, placements: Placements, stages: int) -> _Attempt:
        """Return the kernel planned with this many stages.

        Raises:
            UnsupportedError: The schedule begins a product ahead, which the kernel does not allow.
        """
        schedule, hint = placements.schedule, "take a schedule that was made for this kernel"
        if (schedule.ahead or schedule.producer) and self.kernel.skips is not None:
            what = "expected iterations of which none is skipped"
            raise UnsupportedError(what, where="schedule", hint=hint)
        steps = KernelSteps(placements.flat, placements, stages, idles=self.kernel.idles)
        if schedule.producer and not all(map(partial(self._is_producible, steps), steps.ring)):
            what = "expected tiles in panels, whose rows lie in memory as they are"
            raise UnsupportedError(what, where="schedule", hint=hint)
        return _Attempt(self, placements, steps, _allocate_buffers(steps, self.kernel.share))

    def _is_producible(self, steps: KernelSteps, number: int) -> bool:
        """Return whether the producer can copy the tile of an input."""
        tensor = steps.tensors[number]
        placement, param = tensor.placement.shared, self.params[self.inputs[number].param]
        return placement is not None and producer_stride(param, tensor.shape, placement) is not None

    def _staged(self, placements: Placements) -> _Attempt | None:
        """Return the deepest pipeline that fits and leaves room for the resident blocks of one multiprocessor.

        If no pipeline leaves room for all of them, return the one with the most resident blocks; None if nothing fits.
        """
        least = 2 if self.count == 1 else FEWEST_STAGES
        fallback: _Attempt | None = None
        for stages in range(most_stages(placements.moving_bytes, self.flat.iterations), 0, -1):
            attempt = self.attempt(placements, stages)
            if not attempt.fits or (fallback is not None and stages < least):
                continue
            if attempt.memory.bytes <= self.kernel.share:
                return attempt
            if fallback is None or self.kernel.resident(attempt) > self.kernel.resident(fallback):
                fallback = attempt
        return fallback


def _interface(
    kernel: _Kernel, op: GraphDefined, flat: FlatGraph
) -> tuple[tuple[PlanParam, ...], tuple[Tile, ...], tuple[Tile, ...]]:
    """Return the parameters of a kernel with these iterations, and the tiles that a block reads and writes."""
    graph, known, types = kernel.graph, kernel.known, kernel_types(kernel.graph)
    params: list[PlanParam] = []
    for position, (number, band) in enumerate(zip(op.operands, kernel.bands, strict=True)):
        source = graph.inputs[number] if number < len(graph.inputs) else None
        name = f"in{position}_{source.name}" if source is not None else f"in{position}_d{number}"
        params.append(PlanParam(name, types[number].shape, types[number].dtype, False, known[number], band))
    first = [number for number, _ in enumerate_results(len(graph.inputs), graph.ops)][kernel.position]
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
    loop: _SplitKernel
    placements: Placements
    steps: KernelSteps
    memory: Allocation

    @property
    def fits(self) -> bool:
        """Return whether a block has the shared memory, that of the producer's barriers included."""
        barriers = _BARRIER_BYTES if self.placements.schedule.producer else 0
        return self.memory.bytes + barriers <= self.loop.kernel.most

    @property
    def good(self) -> bool:
        """Return whether operators are in registers, and a copy is in flight whenever the loop waits for a stage.

        If there are more blocks than multiprocessors, two must be resident: copies of one overlap the end of the other
        and the start of the next.
        """
        if not self.placements.moving_bytes:
            return self.placements.schedule.registers
        deep = self.steps.stages >= min(FEWEST_STAGES, self.placements.flat.iterations)
        kernel = self.loop.kernel
        several = kernel.op.graph.blocks > kernel.target.sms
        return self.placements.schedule.registers and deep and kernel.resident(self) >= 1 + several

    def plan(self, name: str) -> Plan:
        """Return the plan, with barriers."""
        offsets = self.memory.offsets
        sizes = {request.name: request.bytes for request in self.steps.requests}
        ends = {n: offset + sizes[n] for n, offset in offsets.items()}

        def overlap(a: str, b: str) -> bool:
            return offsets[a] < ends[b] and offsets[b] < ends[a]

        schedule = synchronise(
            self.steps.before, self.steps.loop, self.steps.after, overlap, runs=not self.loop.kernel.idles
        )
        buffers = [
            SharedBuffer(n, dtype, elements, offsets[n]) for n, (dtype, elements) in sorted(self.steps.buffers.items())
        ]
        return Plan(
            name,
            self.loop.op.graph.grid,
            self.placements.flat.iterations,
            self.loop.params,
            self.loop.inputs,
            self.loop.savers,
            tuple(self.steps.tensors),
            self.placements.flat.ops,
            schedule.before,
            schedule.loop,
            schedule.after,
            tuple(buffers),
            self.memory.lower_bound,
            replace(self.placements.schedule, stages=self.steps.stages),
            self.steps.ring,
            self.loop.kernel.skips,
        )


def _allocate_buffers(steps: KernelSteps, most: int) -> Allocation:
    """Return an allocation that saves barriers where memory is left over: buffers that share no bytes need none.

    Args:
        steps: The kernel's steps.
        most: The most bytes of a block that still let all its blocks fit one multiprocessor.
    """
    placements = (tensor.placement.shared for tensor in steps.tensors)
    panels = any(one is not None and one.panels for one in placements)
    align = PANEL_ALIGN if panels else ALIGN
    tight = allocate(steps.requests, align)
    whole = [replace(request, first=0, last=0) for request in steps.requests]
    for requests in (whole, steps.lives(loose=True)):
        found = allocate(requests, align)
        if found.bytes <= max(tight.bytes, most):
            return replace(found, lower_bound=tight.lower_bound)
    return tight
