"""Candidate schedules of a kernel, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from mirage_formal.codegen.planning.batched_reductions import ENOUGH, largest_batch
from mirage_formal.codegen.planning.layout import (
    MAX_ACCUMULATORS,
    ProductShape,
    accumulator_registers,
    best_warps,
    choose_warps,
    needs_less_padding_transposed,
    warp_options,
    warpgroup_arrangements,
    warpgroup_options,
)
from mirage_formal.codegen.planning.mma_selection import MatrixProducts
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.program.register_layout import WARP, Warps
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import BlockGraph
from mirage_formal.support.errors import UnsupportedError

#: Threads of a block that asks for an invalid number, and the most that one may ask for.
_THREADS: Final = 128
_MOST_THREADS: Final = 512
#: Threads of a block, if those that it asks for would hold too many accumulators each.
_MORE_THREADS: Final = (256, 512)
#: Accumulators beyond the limit that are tolerated before the threads are doubled.
_SLACK: Final = 16
#: Threads of a block in schedules other than the first.
_COUNTS: Final = (64, 128, 256, 512)
#: Stages that are tried below the deepest pipeline and the next one.
STAGES: Final = (1, 2, 3, 4, 6)
#: Arrangements of warps that are tried for a number of threads.
_ARRANGEMENTS: Final = 3
MOST_STAGES: Final = 8
#: Stages with which a copy is on its way while another is waited for and a third one is read.
FEWEST_STAGES: Final = 3
#: Bytes of a block's tiles in flight, without the one that is read, beyond which more stages do not pay.
_ENOUGH_BYTES: Final = 128 << 10
#: Bytes of a cache line; different iterations should not load parts of one line.
LINE: Final = 128
#: Numbers of pieces into which an iteration is split, the fewest first.
_CUTS: Final = (2, 4, 8)
_MOST_CUT: Final = 64
#: The most threads of a block beside a producer: of more, each would have too few registers.
MOST_CONSUMERS: Final = 256
#: The most resident blocks of one multiprocessor for which shared memory is reserved.
_MOST_RESIDENT: Final = 4


def base_schedules(block: BlockGraph, products: MatrixProducts, *, generic: bool) -> Iterator[Schedule]:
    """Yield schedules with one stage: operators in registers first, and inputs copied to shared memory.

    Args:
        block: The block graph.
        products: Its products.
        generic: Whether to yield only schedules that compute every operator in the generic way.
    """
    asked = block.threads
    power = asked & (asked - 1) == 0
    asked = asked if power and WARP <= asked <= _MOST_THREADS else _THREADS
    if not generic:
        threads, warps = _threads_and_warps(products, asked)
        for resident in (True, False):
            yield Schedule(threads, 1, warps, resident=resident)
    for resident in (True, False):
        yield Schedule(asked, 1, registers=False, resident=resident)


def _threads_and_warps(products: MatrixProducts, threads: int) -> tuple[int, tuple[Warps, ...]]:
    """Return threads and warps; more threads where one thread would hold too many accumulators."""
    shapes = products.shapes
    if not shapes:
        stack = largest_batch(products, products.run)
        work = max(prod(tensor.shape) for tensor in products.flat.tensors) // products.run
        # A thread adds up several planes by itself; lanes would have to exchange what they hold.
        enough = work if stack is None else prod(stack.extents) // ENOUGH
        while threads < min(enough, _MOST_THREADS):
            threads *= 2
        return threads, ()
    for count in sorted({threads, *(n for n in _MORE_THREADS if n > threads)}):
        chosen = choose_warps(shapes, count // WARP)
        if accumulator_registers(shapes, chosen) <= MAX_ACCUMULATORS + _SLACK:
            break
    return count, chosen


def variants(products: MatrixProducts, first: Schedule, target: Target) -> Iterator[Schedule]:
    """Yield the first schedule and alternatives to it, the likeliest first; their stages are left to the caller.

    They differ in threads and in the warps of products. They also differ in whether products are computed transposed to
    save padding, and whether inputs that only some threads need are copied to shared memory.

    Args:
        products: The kernel's products, with iterations cut as in ``first``.
        first: The schedule that is tried first.
        target: The GPU.
    """
    yield first
    if not first.registers:
        return
    shapes = products.shapes
    most = min(_MOST_THREADS, target.limits.threads_per_block)
    counts = sorted((n for n in _COUNTS if n <= most), key=lambda n: abs(n.bit_length() - first.threads.bit_length()))
    warps_of = [n // WARP for n in counts] if target.warpgroups and shapes else []
    ways = warpgroup_arrangements(shapes, warps_of, _ARRANGEMENTS)
    ways += [(n // WARP, warps) for n in counts for warps in _arrangements(shapes, n // WARP)]
    for count, warps in ways:
        if accumulator_registers(shapes, warps) <= MAX_ACCUMULATORS + _SLACK:
            for resident in (first.resident, not first.resident):
                plain = Schedule(count * WARP, 1, warps, resident=resident, cut=first.cut)
                yield from _with_warpgroups(plain) if warps and warps[0].warpgroup else (plain,)


def _with_warpgroups(plain: Schedule) -> Iterator[Schedule]:
    """Yield a schedule that multiplies by warpgroups, with a producer and ahead where that can be, the likeliest first.

    A producer comes first where two warpgroups have several products each: one multiplies while the other one does the
    rest.
    """
    several = len(plain.warps) > 1
    turns = several and plain.threads == MOST_CONSUMERS
    if turns:
        yield replace(plain, producer=True, ahead=True)
        yield replace(plain, producer=True)
    if several:
        yield replace(plain, ahead=True)
    yield plain
    if not turns and plain.threads <= MOST_CONSUMERS:
        yield replace(plain, producer=True)


def _arrangements(shapes: Sequence[ProductShape], count: int) -> list[tuple[Warps, ...]]:
    """Return the arrangements of warps to try, the likeliest first."""
    if not shapes:
        return [()]
    found = best_warps(shapes, count, _ARRANGEMENTS)
    if any(map(needs_less_padding_transposed, shapes)):
        found[1:1] = best_warps(shapes, count, 1, transposed=True)
    return found


def check_schedule(schedule: Schedule, products: MatrixProducts, target: Target) -> None:
    """Reject a schedule that does not fit a kernel.

    Raises:
        UnsupportedError: The schedule is invalid; the text gives the reason.
    """
    threads, hint = schedule.threads, "take a schedule that was made for this kernel"
    if threads & (threads - 1) or not WARP <= threads <= target.limits.threads_per_block:
        what = f"expected a power of two from {WARP} to {target.limits.threads_per_block} threads, got {threads}"
        raise UnsupportedError(what, where="schedule", hint=hint)
    if not 1 <= schedule.stages <= MOST_STAGES:
        what = f"expected 1 to {MOST_STAGES} stages, got {schedule.stages}"
        raise UnsupportedError(what, where="schedule", hint=hint)
    if not 1 <= schedule.cut <= _MOST_CUT:
        what = f"expected iterations cut into 1 to {_MOST_CUT}, got {schedule.cut}"
        raise UnsupportedError(what, where="schedule", hint=hint)
    if schedule.tile:
        what = f"expected a tile of the µGraph's, got number {schedule.tile} of a predefined operator"
        raise UnsupportedError(what, where="schedule", hint=hint)
    shapes = products.shapes if schedule.registers else []
    if len(shapes) != len(schedule.warps):
        what = f"expected warps of {len(shapes)} products, got {len(schedule.warps)}"
        raise UnsupportedError(what, where="schedule", hint=hint)
    for shape, warps in zip(shapes, schedule.warps, strict=True):
        if warps.warpgroup:
            possible = warpgroup_options(shape, threads // WARP) if target.warpgroups else ()
        else:
            possible = warp_options(shape, threads // WARP, transposed=warps.transposed)
        if warps not in possible:
            raise UnsupportedError(f"expected warps that cut {shape}, got {warps}", where="schedule", hint=hint)


def most_stages(tile_bytes: int, iterations: int) -> int:
    """Return the most pipeline stages that pay.

    Args:
        tile_bytes: Bytes of the pipelined tiles of one iteration, 0 if there are none.
        iterations: Iterations of the loop.
    """
    return min(MOST_STAGES, iterations, 1 + max(1, -(-_ENOUGH_BYTES // tile_bytes))) if tile_bytes else 1


def iteration_splits(block: BlockGraph) -> Iterator[int]:
    """Yield the numbers of pieces into which each iteration is worth splitting, for a deeper pipeline.

    Not every number may be valid for the kernel.

    Args:
        block: The block graph.
    """
    if block.forloop_range > 1:
        yield from _CUTS


def shared_memory_budget(blocks: int, target: Target) -> int:
    """Return the bytes of shared memory per block at which one multiprocessor holds its blocks of the grid at once.

    At most ``_MOST_RESIDENT`` blocks are provided for.

    Args:
        blocks: The blocks of the grid.
        target: The GPU.
    """
    limits = target.limits
    resident = min(_MOST_RESIDENT, -(-blocks // target.sms))
    return min(limits.shared_bytes_per_sm // resident - limits.shared_reserved_per_block, limits.shared_bytes_per_block)


__all__ = [
    "FEWEST_STAGES",
    "LINE",
    "MOST_STAGES",
    "STAGES",
    "base_schedules",
    "check_schedule",
    "iteration_splits",
    "most_stages",
    "shared_memory_budget",
    "variants",
]
