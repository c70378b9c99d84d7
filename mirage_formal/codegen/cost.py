"""Cost model: a roofline per kernel; its coefficients are in gpu/targets/*.toml, [model].

It is a ranking model: it orders candidates so that only the promising ones are compiled and measured. No verdict
depends on it. Its constants are measured or fitted on one GPU (see gpu/targets/h200.toml). On hand-written kernels for
the H200 it is within about a third of the measured time. This suffices to order forms that differ in launches, bytes or
parallelism, but not to order close variants.

A graph-defined kernel takes ``launch + latency + max(throughput, path, blocks)`` microseconds (a generated kernel
behind another one has a shorter launch, see ``codegen.generate``), where

- device memory: every input is read once from device memory when it fits half the L2 cache or one wave reads it; a
  larger one is read once per wave, at most once per replica (a replica: a combination of grid axes that do not split
  it). A result that fits half the L2 is not written to device memory before its kernel ends, nor read from there by a
  later kernel. If nothing is read from device memory, the first access waits for L2. All loads
  and stores of blocks go through L2 at its own bandwidth; bytes that another block has read before are found there
  faster (``l2_reread_share``). L2 transfers sectors of 32 bytes: a tile or result with shorter contiguous runs takes
  whole sectors all the same. Elements of a tile beyond a tensor's end (``graph.storage_views``) cost arithmetic and
  shared memory, but no traffic.
- bandwidth: the device's, or the active SMs' if that is less (one SM cannot draw more than its share). A block has as
  many iterations in flight as fit its part of shared memory; every further round of loads waits a memory latency.
- arithmetic: products on tensor cores, padded to the target's tile, one of float32 as six of 16 bits; exponentials,
  roots and quotients on the special function units; the rest on the vector units. They add up, for within a block they
  mostly wait for each other. Traffic to shared memory is a roof of its own. The SM with the most blocks decides.
- throughput: the larger of memory and arithmetic, plus the smaller one once per stage of the pipeline: with a single
  iteration and a single wave a block loads first and computes then. A kernel with products, whose tiles go through
  shared memory, has a step of the pipeline to issue and to wait for in each iteration.
- blocks: an SM starts one block after another, even if each has little work. It is a roof of its own beside throughput
  and path, so that a grid of many tiny blocks is dearer than one of few.
- path: the dependent latencies of one block (a loop iteration, each operator in it) times the waves.
- element by element: a product of operands of two types is a loop in which each scalar step waits for its loads. A
  product's operand whose rows do not fit 16-byte copies is copied by 8 or 4 bytes. If these do not fit either, elements
  are loaded and stored one by one, some at a time, and each time waits a memory latency. Issue slots are vector
  operations, waits are path. Operands of 16 bits with rows of multiples of 8 elements cost nothing extra.

Predefined kernel operators cost one launch each: operands and results cross device memory once, and all SMs work at the
fraction of their peak that library kernels reach. Blocks of a library's product go along the sum step by step, and no
tensor cores are used where rows are no multiples of 16 bytes. Operators whose result is a view
(``graph.storage_views``) cost nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from mirage_formal.codegen.block_work import (
    Work,
    add_arithmetic,
    add_library_product,
    add_narrow_copies,
    add_scalar_product,
)
from mirage_formal.codegen.device_tensors import SECTOR, PlanParam, sector_overhead
from mirage_formal.codegen.program.bands import band_at
from mirage_formal.codegen.program.empty_tiles import executed_share
from mirage_formal.codegen.program.register_layout import FLOAT32_STEPS
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph, BlockOp, GraphDefined, KernelGraph, Op, ThreadGraph
from mirage_formal.graph.ops import IN_PLACE, SPECS, BlockContext, Family, OpKind
from mirage_formal.graph.storage_views import launched_operators, storage_locations
from mirage_formal.graph.types import Band, DTensor, DType, Shape
from mirage_formal.graph.verifier import kernel_types, output_buffers
from mirage_formal.support.errors import GraphError

#: Estimate of a kernel that no block of the target can hold; finite, so that it can be written and ordered.
CANNOT_LAUNCH_US: Final = 1e9

#: Most stages of a load ring that are counted as in flight.
_RING: Final = 8
_B_REREAD_ROWS: Final = 64  # a product reads its right operand again for every 64 rows of the left one
_L2_LATENCY: Final = 1 / 3  # of device memory's
_CHUNK: Final = 32 << 10  # a predefined operator keeps one SM busy per this many bytes


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Estimated time and resources of one kernel.

    Attributes:
        us: Microseconds in all.
        memory_us: Time of its traffic with device memory and L2.
        compute_us: Time of its arithmetic and shared-memory traffic.
        path_us: Time of the dependent latencies of its blocks.
        device_bytes: Bytes that cross device memory.
        l2_bytes: Bytes that blocks load and store, replicas counted.
        tensor_flops: Operations on tensor cores, padding included.
        other_flops: Operations elsewhere.
        shared_bytes: Shared memory of one block (the search-time estimate).
        blocks: Thread blocks.
        resident: Blocks that one SM holds at once.
        waves: Rounds of blocks.
    """

    us: float
    memory_us: float
    compute_us: float
    path_us: float
    device_bytes: float
    l2_bytes: float
    tensor_flops: float
    other_flops: float
    shared_bytes: int
    blocks: int
    resident: int
    waves: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimate of a whole graph: the sum over its kernels, which run one after another."""

    us: float
    kernels: tuple[KernelCost, ...]


class OperandLayouts(NamedTuple):
    """The memory layouts of one kernel's tensors.

    Attributes:
        shares: For each operand and result, the share of its elements that lie in memory; 1 if left out.
        params: For each operand, the parameter with its layout; if left out, 16-byte copies are assumed to fit.
        strides: For each operand its strides; None: row-major. If left out, all are row-major.
        bands: For each operand its band, if it is a band mask, whose elements kernels compute. If left out, none is.
    """

    shares: Sequence[float] = ()
    params: Sequence[PlanParam] = ()
    strides: Sequence[tuple[int, ...] | None] = ()
    bands: Sequence[Band | None] = ()


#: Whole, row-major tensors.
ALONE: Final = OperandLayouts()


def estimate(graph: KernelGraph, target: Target) -> Cost:
    """Return the estimated microseconds of a graph on a target, kernel by kernel.

    Raises:
        GraphError: Shapes do not fit (a graph that was checked never raises).
    """
    tensors = [given.tensor for given in graph.inputs]
    cold = len(tensors)
    costs: list[KernelCost] = []
    needed = set(launched_operators(graph))
    saved = target.model.launch_us - target.model.dependent_launch_us
    behind = False  # whether the launch before is a generated kernel
    masked = any([given.band is not None for given in graph.inputs])
    views = masked or len(needed) < len(graph.ops)
    known, types = (storage_locations(graph), kernel_types(graph)) if views else (None, ())
    odd = any([stride % 8 and stride != 1 for given in graph.inputs for stride in given.strides])
    odd |= known is not None and any([place.offset % 8 for place in known])
    for position, op in enumerate(graph.ops):
        operands = [tensors[i] for i in op.operands]
        if position not in needed:
            tensors.append(types[len(tensors)])
            continue
        bases = [i if known is None else known[i].base for i in op.operands]
        warm = [
            base >= cold and 2 * tensors[i].bytes <= target.l2_bytes for i, base in zip(op.operands, bases, strict=True)
        ]
        if isinstance(op, GraphDefined):
            shares: list[float] = []
            if known is not None:
                own = (*op.operands, *range(len(tensors), len(tensors) + op.results))
                shares = [known[i].share(types[i].shape) for i in own]
            params: list[PlanParam] = []
            if odd or any([tensor.shape and tensor.shape[-1] % 8 for tensor in operands]):
                each = zip(operands, op.operands, strict=True)
                params = [PlanParam("", x.shape, x.dtype, False, storage_locations(graph)[i]) for x, i in each]
            strides = [graph.inputs[i].strides if i < cold else None for i in op.operands]
            if known is not None:
                strides = [known[i].strides for i in op.operands]
            bands: list[Band | None] = []
            if known is not None and masked:
                bands = [band_at(graph.inputs, known[i], types[i].shape) for i in op.operands]
            if params or any(bands):
                lying = OperandLayouts(shares, params, strides, bands if any(bands) else ())
                cost, results = block_cost(op.graph, operands, target, warm, lying)
            else:
                key = (op.graph, tuple(operands), tuple(warm), tuple(shares), tuple(strides))
                cost, results = _known_block_cost(target, *key)
        else:
            cost, results = _predefined(op, operands, target, warm)
        generated = isinstance(op, GraphDefined) or op.kind is not OpKind.MATMUL
        costs.append(replace(cost, us=cost.us - saved) if saved and behind and generated else cost)
        behind = generated
        tensors += results
    return Cost(sum(cost.us for cost in costs), tuple(costs))


@lru_cache(maxsize=1 << 14)
def _known_block_cost(
    target: Target,
    block: BlockGraph,
    operands: tuple[DTensor, ...],
    warm: tuple[bool, ...],
    shares: tuple[float, ...],
    strides: tuple[tuple[int, ...] | None, ...],
) -> tuple[KernelCost, list[DTensor]]:
    """Return ``block_cost`` of a kernel, which many candidates have in common; the list is not changed by callers."""
    return block_cost(block, operands, target, warm, OperandLayouts(shares, (), strides, ()))


def block_cost(
    block: BlockGraph,
    operands: Sequence[DTensor],
    target: Target,
    warm: Sequence[bool] = (),
    lying: OperandLayouts = ALONE,
) -> tuple[KernelCost, list[DTensor]]:
    """Return the cost and the result types of one graph-defined kernel.

    Args:
        block: A well-formed block graph.
        operands: Types of the device tensors that its input iterators read.
        target: The GPU.
        warm: For each operand, whether an earlier kernel of the graph has left it in L2.
        lying: The memory layouts of its operands and results.
    """
    shares, params, strides, bands = lying
    # Skipped iterations take no time.
    part = executed_share(block, bands, [tensor.shape for tensor in operands]) if bands else 1.0
    grid, loop = block.grid, block.forloop_range if part == 1.0 else block.forloop_range * part
    work = Work(block.threads)
    shapes, widths, times, loads = work.shapes, work.widths, work.times, work.loads
    for iterator, tensor in zip(block.inputs, operands, strict=True):
        shape = list(tensor.shape)
        for axis, dim in enumerate(iterator.imap):
            if dim is not None:
                shape[dim] //= grid[axis]
        repeat: float = 1
        if iterator.fmap is not None:
            shape[iterator.fmap] //= block.forloop_range
            repeat = loop
        width = tensor.dtype.bytes
        computed = bool(bands) and bands[len(loads)] is not None
        tile = 0 if computed else prod(shape) * width
        shapes.append(tuple(shape))
        widths.append(width)
        times.append(repeat)
        stored = shares[len(loads)] if shares else 1.0
        mine = tile * repeat * stored
        steps = strides[len(loads)] if strides else None
        if computed:
            stored = 0.0
        elif not shape or shape[-1] * width < SECTOR or (steps is not None and steps[-1] != 1):
            work.waste += mine * (sector_overhead(shape, tensor.shape, steps, width) - 1.0)
        loads.append((tensor.bytes * stored, mine))
        work.shared += tile
        work.traffic += tile * repeat
        work.stage += tile if repeat == loop else 0
    work.latency = target.model.iteration_us * loop
    context = block.context
    if params:
        add_narrow_copies(block, params, work, target)
    for op in block.ops:
        _block_op(op, work, context, target)
    results: list[DTensor] = []
    waste = 0.0
    for saver in block.outputs:
        shape = list(shapes[saver.operand])
        for axis, dim in enumerate(saver.omap):
            if dim is not None:
                shape[dim] *= grid[axis]
        width = widths[saver.operand]
        wide = next((dtype for dtype in (DType.FLOAT32, DType.BOOL) if width == dtype.bytes), None)
        results.append(DTensor(tuple(shape), wide or _half_dtype(block, operands)))
        own = shapes[saver.operand]
        if not own or own[-1] * width < SECTOR:
            waste += results[-1].bytes * (sector_overhead(own, tuple(shape), None, width) - 1.0)
    parts = shares[len(operands) :] or [1.0] * len(results)
    sizes = [tensor.bytes * share for tensor, share in zip(results, parts, strict=True)]
    return _kernel(block, work, (sum(sizes), waste, _cached_bytes(sizes, target)), target, warm), results


def least_kernel_us(target: Target) -> float:
    """Return a lower bound of every estimate of ``block_cost``: a kernel's launch, and its first data from L2."""
    return target.model.launch_us + target.model.latency_us * _L2_LATENCY


def _half_dtype(block: BlockGraph, operands: Sequence[DTensor]) -> DType:
    """Return the 16-bit element type of a block graph: that of an operand, or of a cast."""
    inside = (one for op in block.ops for one in ((op,) if isinstance(op, Op) else op.graph.ops))
    found = itertools.chain((tensor.dtype for tensor in operands), (op.attrs.dtype for op in inside))
    return next((dtype for dtype in found if dtype not in (None, DType.FLOAT32, DType.BOOL)), operands[0].dtype)


def _width(op: Op, widths: Sequence[int]) -> int:
    """Return the bytes of an element of an operator's results, given those of all tensors."""
    if op.attrs.dtype is not None:
        return op.attrs.dtype.bytes
    family = SPECS[op.kind].family
    if family is Family.COMPARISON:
        return DType.BOOL.bytes
    return widths[op.operands[1 if family is Family.SELECTION else 0]]


def _block_op(op: BlockOp, work: Work, context: BlockContext, target: Target) -> None:
    """Append the results of one block operator and add its work."""
    given, shapes, widths, times = op.operands, work.shapes, work.widths, work.times
    repeat = max([times[i] for i in given])
    traffic = sum([prod(shapes[i]) * widths[i] for i in given])
    kept = False  # whether the results stay in registers
    if isinstance(op, Op):
        row = SPECS[op.kind]
        operands = tuple([shapes[i] for i in given])
        found = row.shape(op.attrs, operands, context)
        if isinstance(found, str):
            raise GraphError(f"{op.kind.value}: {found}", hint="check the graph before estimating it")
        width = _width(op, widths)
        if op.kind is OpKind.MATMUL and widths[given[0]] != widths[given[1]]:
            add_scalar_product(operands[0], found[0], repeat, work, target)
        else:
            wide = op.kind is OpKind.MATMUL and widths[given[0]] == DType.FLOAT32.bytes
            add_arithmetic(op.kind, operands, found[0], repeat * (FLOAT32_STEPS if wide else 1), work, target)
        own = 0 if op.kind in IN_PLACE else width
        outs = [(shape, width) for shape in found]
        if op.kind is OpKind.MATMUL:
            rows, (depth, columns) = operands[0][-2], operands[1][-2:]
            traffic += ((rows - 1) // _B_REREAD_ROWS) * depth * columns * width
            work.latency += target.model.matmul_us * repeat
            work.piped = True
            kept = True
        else:
            work.latency += target.model.operator_us * repeat
        if row.accumulator:
            traffic, kept, repeat = 0, True, 1
    else:
        outs = _thread_graph(op.graph, [(shapes[i], widths[i]) for i in given], context, repeat, work, target)
        work.latency += target.model.operator_us * repeat
        own = 0  # counted by _thread_graph
    for shape, width in outs:
        elements = prod(shape)
        shapes.append(shape)
        widths.append(width)
        times.append(repeat)
        work.shared += elements * own
        traffic += 0 if kept else elements * width
    work.traffic += traffic * repeat


def _thread_graph(
    graph: ThreadGraph,
    given: list[tuple[Shape, int]],
    context: BlockContext,
    repeat: float,
    work: Work,
    target: Target,
) -> list[tuple[Shape, int]]:
    """Add the work of a thread graph, and return shape and element width of its outputs.

    Its interior costs no shared memory.
    """
    tensors = list(given)
    for op in graph.ops:
        operands = tuple([tensors[i][0] for i in op.operands])
        found = SPECS[op.kind].shape(op.attrs, operands, context)
        if isinstance(found, str):
            raise GraphError(f"{op.kind.value}: {found}", hint="check the graph before estimating it")
        add_arithmetic(op.kind, operands, found[0], repeat, work, target)
        tensors.append((found[0], _width(op, [width for _, width in tensors])))
    work.shared += sum([prod(tensors[i][0]) * tensors[i][1] for i in output_buffers(graph)])
    return [tensors[i] for i in graph.outputs]


def _kernel(
    block: BlockGraph, work: Work, stores: tuple[float, float, float], target: Target, warm: Sequence[bool]
) -> KernelCost:
    written, waste, kept = stores
    limits, model, loads, stage = target.limits, target.model, work.loads, work.stage
    blocks = block.grid[0] * block.grid[1] * block.grid[2]
    per_sm = -(-blocks // target.sms)
    fits = work.shared <= limits.shared_bytes_per_block and block.threads <= limits.threads_per_block
    resident = max(1, limits.held(block.threads, work.shared))
    waves = -(-per_sm // resident)
    at_once = min(resident, per_sm)
    read = again = 0.0
    for index, (size, mine) in enumerate(loads):
        again += max(0.0, mine * blocks - size)
        if not (warm and warm[index]):
            read += size if 2 * size <= target.l2_bytes else min(size * waves, mine * blocks)
    loaded = sum([mine for _, mine in loads])
    room = limits.shared_bytes_per_sm // at_once - work.shared
    ring = min(block.forloop_range, _RING, 1 + (room // stage if room > 0 and stage else 0))
    rounds = -(-block.forloop_range // ring) * waves
    written_back = written - kept
    l2_rate = model.l2_bandwidth_gbs * 1e3
    crossing = (loaded + work.waste) * blocks + written + waste
    memory = max(
        (read + written_back) / device_rate(target, blocks),
        (crossing - (1 - model.l2_reread_share) * again) / l2_rate,
        per_sm * (crossing / blocks) / (model.sm_bandwidth_gbs * 1e3),
        (rounds - 1) * model.latency_us,
    )
    steps = block.forloop_range if work.piped else 0
    compute = (_compute_us(work, target, 1) + model.step_us * steps) * per_sm
    path = work.latency * waves
    started = model.block_us * per_sm
    body = max(max(memory, compute) + min(memory, compute) / (block.forloop_range * waves), path, started)
    us = model.launch_us + _latency_us(read, target) + body
    return KernelCost(
        us=us if fits else CANNOT_LAUNCH_US,
        memory_us=memory,
        compute_us=compute,
        path_us=path,
        device_bytes=float(read + written_back),
        l2_bytes=float(crossing),
        tensor_flops=float(work.tensor * blocks),
        other_flops=float((work.vector + work.special) * blocks),
        shared_bytes=work.shared,
        blocks=blocks,
        resident=resident,
        waves=waves,
    )


def device_rate(target: Target, blocks: int) -> float:
    """Return the bytes of device memory that a number of blocks moves in a microsecond."""
    most = target.bandwidth_gbs * target.model.bandwidth_efficiency
    return min(most, min(blocks, target.sms) * target.model.sm_bandwidth_gbs) * 1e3


def library_rate(target: Target, crossing: float) -> float:
    """Return the bytes that a predefined operator moves in a microsecond, given those that it reads and writes."""
    return device_rate(target, max(1, -int(-crossing // _CHUNK))) * target.model.library_efficiency


def _cached_bytes(sizes: Sequence[float], target: Target) -> float:
    """Return the bytes of results that stay in L2 until a later kernel reads them."""
    return sum([size for size in sizes if 2 * size <= target.l2_bytes])


def _latency_us(read: float, target: Target) -> float:
    """Return the latency of a kernel's first data, for a number of bytes from device memory."""
    return target.model.latency_us * (1.0 if read else _L2_LATENCY)


def _compute_us(work: Work, target: Target, sms: int) -> float:
    """Return the microseconds that ``sms`` SMs take for the work."""
    clock = target.clock_ghz * 1e3  # cycles per microsecond
    share = target.sms / sms
    arithmetic = (
        work.tensor / (target.tensor_tflops * target.model.tensor_efficiency * 1e6) * share
        + work.vector / (target.vector_tflops / 2 * 1e6) * share
        + work.special / (target.special_per_clock * clock * sms)
    )
    return max(arithmetic, work.traffic / (target.shared_bandwidth_per_clock * clock * sms))


def _predefined(
    op: Op, operands: list[DTensor], target: Target, warm: Sequence[bool]
) -> tuple[KernelCost, list[DTensor]]:
    """Return the cost and result types of a library kernel.

    It is one launch; operands and results cross device memory once, on as many SMs as the work can use.
    """
    shapes = tuple([tensor.shape for tensor in operands])
    found = SPECS[op.kind].shape(op.attrs, shapes, None)
    if isinstance(found, str):
        raise GraphError(f"{op.kind.value}: {found}", hint="check the graph before estimating it")
    kinds = {tensor.dtype.bytes: tensor.dtype for tensor in operands}
    width = _width(replace(op, operands=tuple(range(len(operands)))), [tensor.dtype.bytes for tensor in operands])
    dtype = op.attrs.dtype or kinds.get(width, DType.BOOL)
    results = [DTensor(shape, dtype) for shape in found]
    work = Work()
    if op.kind is OpKind.MATMUL:
        add_library_product(operands, results[0], work, target)
    else:
        add_arithmetic(op.kind, shapes, found[0], 1, work, target)
    written = sum([tensor.bytes for tensor in results])
    crossing = written + sum([tensor.bytes for tensor in operands])
    read = sum([tensor.bytes for tensor, hot in zip(operands, warm, strict=True) if not hot])
    chunks, model = max(1, -(-crossing // _CHUNK)), target.model
    rate = library_rate(target, crossing)
    written_back = written - _cached_bytes([tensor.bytes for tensor in results], target)
    memory = max((read + written_back) / rate, crossing / (model.l2_bandwidth_gbs * 1e3))
    compute = _compute_us(work, target, target.sms) / model.library_efficiency
    path = 2 * model.step_us + model.matmul_us if op.kind is OpKind.MATMUL else model.operator_us
    us = model.launch_us + _latency_us(read, target) + max(memory, compute, work.latency) + path
    cost = KernelCost(
        us=us,
        memory_us=memory,
        compute_us=compute,
        path_us=path,
        device_bytes=float(read + written_back),
        l2_bytes=float(crossing),
        tensor_flops=float(work.tensor),
        other_flops=float(work.vector + work.special),
        shared_bytes=0,
        blocks=chunks,
        resident=1,
        waves=-(-chunks // target.sms),
    )
    return cost, results
