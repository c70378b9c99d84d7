"""Lower bound of the cost model: no graph with fewer estimated microseconds computes a program.

The bound is about all graphs that read the inputs on which the outputs depend, and write the outputs, whatever
operators, grids, maps and loops they have, padded at most as a search pads. It is derived from the program and the
figures of a target; no search takes part in it. Let R be the bytes that must be read, W those of outputs that do not
stay in L2, O those of all outputs.

- Launches: the first kernel has ``launch_us`` and, if R > 0, one kernel has ``latency_us``; each further kernel has at
  least ``dependent_launch_us`` and a third of ``latency_us``.
- Bytes: the kernels together take at least (R + W) / the device's bandwidth, and (R + O) / that of L2.
- Operations: each kernel has at least one operator.

One kernel has a sharper bound (``_single_kernel_us``), the least over all grids: a block reads all that its part of the
output depends on. Whether a part of the output along a dim depends on other parts of an input is evaluated: the last
indices of the input along each dim are changed, and elements of the output at index 0 are compared.

Sound: each term is at most the same term of ``cost.estimate``; tests compare the bound with all graphs of small spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.cost import device_rate, library_rate
from mirage_formal.codegen.numerics.shrink import shrink
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Family, Level, OpKind
from mirage_formal.graph.storage_views import launched_operators, storage_locations
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import BoundRecord
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.working_set import working_set_size

#: Numbers of kernels with a bound of their own; that of the last holds for all larger numbers too.
COUNTS: Final = (1, 2, 3, 4)
#: Thread blocks of a grid up to which all grids are tried.
_MOST_BLOCKS: Final = 4096
#: Iterations of a loop that are tried one by one.
_MOST_ITERATIONS: Final = 64
#: Most elements of an evaluation of the program.
_MOST_ELEMENTS: Final = 1 << 20
#: Relative difference of two results that differ.
_DIFFERENT: Final = 1e-6
#: Operators with attributes that extents decide: with one of these, a dependence at smaller extents proves nothing.
_CUTS: Final = frozenset({OpKind.SLICE, OpKind.PAD, OpKind.CONCAT, OpKind.REPEAT, OpKind.RESHAPE})


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes that every graph for a program reads and writes.

    Attributes:
        reads: Bytes of each input.
        crossing: Bytes of inputs that pass through L2.
        cold: Bytes of inputs that cross device memory.
        written: Bytes of the outputs.
        stored: Bytes of outputs that cross device memory.
    """

    reads: tuple[float, ...]
    crossing: float
    cold: float
    written: float
    stored: float


@dataclass(frozen=True, slots=True)
class _Dependences:
    """Dependences of the outputs of a program on its inputs, by evaluation.

    Attributes:
        used: For each input, whether a computed output depends on it.
        fixed: For each input and each dim of the only output, whether no grid along the dim cuts the input.
    """

    used: tuple[bool, ...]
    fixed: tuple[tuple[bool, ...], ...]


def lower_bounds(program: KernelGraph, target: Target) -> tuple[BoundRecord, ...]:
    """Return the lower bounds for each number of kernels, fewest first; no bounds for a program of views only.

    Args:
        program: A well-formed program of predefined operators.
        target: The GPU.
    """
    if not launched_operators(program):
        return ()
    small = shrink(program, program, _MOST_ELEMENTS).program
    depends = _dependences(small) if working_set_size(small) <= _MOST_ELEMENTS else None
    traffic, model = _traffic(program, target, depends), target.model
    single = 0.0 if depends is None else _single_kernel_us(program, target, traffic, depends.fixed)
    first = model.launch_us + model.latency_us * (1.0 if sum(traffic.reads) else 1 / 3)
    further = min(model.launch_us, model.dependent_launch_us) + model.latency_us / 3
    bytes_us = max(
        (traffic.cold + traffic.stored) / device_rate(target, target.sms),
        (traffic.crossing + traffic.written) / (model.l2_bandwidth_gbs * 1e3),
    )
    found = []
    for count in COUNTS:
        body = max(bytes_us, count * min(model.operator_us, model.matmul_us), single if count == 1 else 0.0)
        launch = first + (count - 1) * further
        found.append(BoundRecord(kernels=count, us=launch + body, launch_us=launch, body_us=body))
    return tuple(found)


def _traffic(program: KernelGraph, target: Target, depends: _Dependences | None) -> _Traffic:
    """Return the bytes that every graph for a program reads and writes.

    Of an input that several operators read in part, the smallest part counts. An input that no operator reads, or on
    which no computed output depends, has no bytes, and neither has a mask that kernels compute. Outputs are
    distinct tensors in every graph, so each counts. If nothing was evaluated, no input counts.
    """
    types, places = kernel_types(program), storage_locations(program)
    needed, count = set(launched_operators(program)), len(program.inputs)
    parts: dict[int, list[float]] = {}
    for position, op in enumerate(program.ops):
        for operand in op.operands if position in needed else ():
            share = places[operand].share(types[operand].shape) * types[operand].bytes
            parts.setdefault(places[operand].base, []).append(share)
    reads = [
        min(types[i].bytes, *parts[i]) if i in parts and depends and depends.used[i] and given.band is None else 0.0
        for i, given in enumerate(program.inputs)
    ]
    # A tile that a mask skips is not loaded; that of a small input is in L2 all the same.
    masked = any(given.band is not None for given in program.inputs)
    kept = [size for size in reads if 2 * size <= target.l2_bytes] if masked else reads
    crossing = 0.0 if masked else sum(reads)
    outputs = [types[output].bytes for output in program.outputs if places[output].base >= count]
    stored = sum(size for size in outputs if 2 * size > target.l2_bytes)
    return _Traffic(tuple(reads), crossing, sum(kept), sum(outputs), stored)


def _single_kernel_us(
    program: KernelGraph, target: Target, traffic: _Traffic, fixed: Sequence[Sequence[bool]]
) -> float:
    """Return a lower bound of the time after the first load if one kernel computes all; 0 if none is derived.

    Sound: a grid that cuts an output of one dim into g parts has blocks that read at least all bytes of each input
    that no grid of this dim can cut, so each input has at least its bytes times g for each such dim. The library's
    kernels have no grid; they take at least the bytes at their efficiency, and count where an operator has as many
    operands as the program has inputs.
    """
    uniform = all(isinstance(op, Op) and op.kind not in _CUTS for op in program.ops)
    if not uniform or len(program.outputs) != 1 or any(given.band is not None for given in program.inputs):
        return 0.0
    shape = kernel_types(program)[program.outputs[0]].shape
    grids = _grids(shape, _MOST_BLOCKS)
    many = target.model.block_us * (_MOST_BLOCKS / target.sms)  # of a grid of more blocks
    best = min(float(_grids_us(grids, np.array(fixed, dtype=bool), traffic, target).min()), many)
    reads = sum(size > 0 for size in traffic.reads)
    masks = any(not given.tensor.dtype.floating for given in program.inputs)
    kinds = [
        spec
        for spec in SPECS.values()
        if Level.KERNEL in spec.levels and spec.kind not in _CUTS and (masks or spec.family is not Family.SELECTION)
    ]
    if any(spec.min_arity <= reads <= spec.max_arity for spec in kinds):
        library = (traffic.cold + traffic.stored) / library_rate(target, sum(traffic.reads) + traffic.written)
        best = min(best, library + min(target.model.operator_us, target.model.matmul_us))
    return best


def _dependences(program: KernelGraph) -> _Dependences:
    """Evaluate a program at random inputs and with parts of them changed; return what depends on what.

    A grid along dim d gives block 0 the output's index 0 of d, and another block the input's last index of a dim e that
    it cuts. If an element of the output at index 0 of d depends on the last index of e, no grid along d cuts e.
    """
    draw = np.random.default_rng(0)
    inputs = [
        draw.uniform(0.5, 1.5, given.tensor.shape)
        if given.tensor.dtype.floating
        else draw.integers(0, 2, given.tensor.shape).astype(np.float64)
        for given in program.inputs
    ]
    before = float64_reference.run(program, inputs)
    computed = [i for i, output in enumerate(program.outputs) if output >= len(program.inputs)]

    def changed(number: int, where: tuple[slice | int, ...]) -> list[NDArray[np.bool_]]:
        """Return the elements of each computed output that change with a part of an input."""
        other = inputs[number].copy()
        other[where] = draw.permutation(other[where].ravel()).reshape(other[where].shape) * 1.25 + 0.125
        if not program.inputs[number].tensor.dtype.floating:
            other[where] = 1.0 - inputs[number][where]
        after = float64_reference.run(program, [*inputs[:number], other, *inputs[number + 1 :]])
        with np.errstate(invalid="ignore"):  # what is no number counts as unchanged
            return [
                np.abs(after[i] - before[i]) > _DIFFERENT * (np.abs(after[i]) + np.abs(before[i])) for i in computed
            ]

    used, fixed = list[bool](), list[tuple[bool, ...]]()
    for number, given in enumerate(program.inputs):
        used.append(any(bool(moved.any()) for moved in changed(number, ())))
        row = [True] * before[0].ndim
        for dim, extent in enumerate(given.tensor.shape if computed == [0] else ()):
            if extent > 1:
                (moved,) = changed(number, (*(slice(None),) * dim, extent - 1))
                row = [one and bool(moved.take(0, axis).any()) for axis, one in enumerate(row)]
        fixed.append(tuple(row))
    return _Dependences(tuple(used), tuple(fixed))


def _grids(shape: Shape, most: int) -> NDArray[np.int64]:
    """Return all numbers of parts of the dims of an output with at most ``most`` parts in all, of shape [grids, dims].

    A search may pad an extent above 16 that is no multiple of 8, by 15 or by an eighth at most.
    """
    found: list[tuple[int, ...]] = [()]
    for extent in shape:
        padded = extent if extent <= 16 or extent % 8 == 0 else max(extent + 15, extent * 9 // 8)
        found = [(*grid, parts) for grid in found for parts in range(1, min(padded, most // prod(grid)) + 1)]
    return np.array(found, dtype=np.int64).reshape(len(found), len(shape))


def _grids_us(
    grids: NDArray[np.int64], shared: NDArray[np.bool_], traffic: _Traffic, target: Target
) -> NDArray[np.float64]:
    """Return lower bounds of a kernel's time after its first load, for each grid the least over all loop ranges.

    Args:
        grids: Parts of the output, of shape [grids, dims].
        shared: Whether no grid along a dim cuts an input, of shape [inputs, dims].
        traffic: Bytes of the program.
        target: The GPU.
    """
    model, reads = target.model, np.array(traffic.reads)
    step = min(model.operator_us, model.matmul_us)
    blocks = grids.prod(axis=1)
    per_sm = -(-blocks // target.sms)
    loaded = np.where(shared[None], grids[:, None], 1).prod(axis=2) @ reads
    crossing, again = loaded + traffic.written, loaded - reads.sum()
    rate = np.array([device_rate(target, int(count)) for count in blocks])
    memory = np.maximum.reduce(
        [
            (traffic.cold + traffic.stored) / rate,
            (crossing - (1 - model.l2_reread_share) * again) / (model.l2_bandwidth_gbs * 1e3),
            per_sm * crossing / blocks / (model.sm_bandwidth_gbs * 1e3),
        ]
    )
    # A block moves what it loads through shared memory.
    compute = per_sm * loaded / blocks / (target.shared_bandwidth_per_clock * target.clock_ghz * 1e3)
    more, less = np.maximum(memory, compute), np.minimum(memory, compute)
    # More iterations only lengthen the path, and hide at most all of the smaller part.
    best: NDArray[np.float64] = np.maximum(more, model.iteration_us * (_MOST_ITERATIONS + 1) + step)
    for loop in range(1, _MOST_ITERATIONS + 1):
        path = model.iteration_us * loop + step
        best = np.minimum(best, np.maximum(more + less / (loop * per_sm), path))
    least: NDArray[np.float64] = np.maximum(best, model.block_us * per_sm)
    return least


__all__ = ["COUNTS", "lower_bounds"]
