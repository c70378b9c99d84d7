"""Which schedules a kernel is tried with, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from mirage_formal.graph.graph import BlockGraph
from mirage_formal.kernels.planning.layout import MAX_ACCUMULATORS, accumulators, choose_warps
from mirage_formal.kernels.planning.products import Products
from mirage_formal.kernels.planning.stacks import ENOUGH, stack_of
from mirage_formal.kernels.program.distribution import WARP
from mirage_formal.kernels.program.plan import Schedule, Warps
from mirage_formal.kernels.target import Target

#: Threads of a block that asks for a number that is none, and the most that one may ask for.
_THREADS: Final = 128
_MOST_THREADS: Final = 512
#: Threads of a block, if those that it asks for would hold too many accumulators each.
_MORE_THREADS: Final = (256, 512)
#: Accumulators beyond the limit that are not worth twice the threads.
_SLACK: Final = 16
#: Elements of which a thread of a kernel without products has one vector, while there are threads.
_VECTOR: Final = 8
_MOST_STAGES: Final = 8
#: Stages with which a copy is on its way while another is waited for and a third one is read.
FEWEST_STAGES: Final = 3
#: Bytes of a block's tiles in flight, without the one that is read, beyond which more stages do not pay.
_ENOUGH_BYTES: Final = 128 << 10
#: Bytes of a cache line, of which the parts should not be left to different iterations.
LINE: Final = 128
#: Into how many an iteration is cut, the fewest first.
_CUTS: Final = (2, 4, 8)
#: Blocks of one multiprocessor beyond which more of them are not made room for.
_MOST_RESIDENT: Final = 4


def ways(block: BlockGraph, products: Products, *, generic: bool) -> Iterator[Schedule]:
    """Schedules with one stage: operators in registers first, and inputs copied to shared memory.

    Args:
        block: The block graph.
        products: Its products.
        generic: Only those that compute every operator the generic way.
    """
    asked = block.threads
    power = asked & (asked - 1) == 0
    asked = asked if power and WARP <= asked <= _MOST_THREADS else _THREADS
    if not generic:
        threads, warps = _shared(products, asked)
        for resident in (True, False):
            yield Schedule(threads, 1, warps, resident=resident)
    for resident in (True, False):
        yield Schedule(asked, 1, registers=False, resident=resident)


def _shared(products: Products, threads: int) -> tuple[int, tuple[Warps, ...]]:
    """Threads and warps; more threads where one thread would hold too many accumulators."""
    shapes = products.shapes
    if not shapes:
        stack = stack_of(products, _VECTOR)
        work = max(prod(tensor.shape) for tensor in products.flat.tensors) // _VECTOR
        # A thread adds up several planes by itself; lanes would have to exchange what they hold.
        enough = work if stack is None else prod(stack.extents) // ENOUGH
        while threads < min(enough, _MOST_THREADS):
            threads *= 2
        return threads, ()
    for count in sorted({threads, *(n for n in _MORE_THREADS if n > threads)}):
        chosen = choose_warps(shapes, count // WARP)
        if accumulators(shapes, chosen) <= MAX_ACCUMULATORS + _SLACK:
            break
    return count, chosen


def most_stages(tile_bytes: int, iterations: int) -> int:
    """The most stages that pay.

    Args:
        tile_bytes: Of the pipelined tiles of one iteration, 0 if there are none.
        iterations: Of the loop.
    """
    return min(_MOST_STAGES, iterations, 1 + max(1, -(-_ENOUGH_BYTES // tile_bytes))) if tile_bytes else 1


def cuts(block: BlockGraph) -> Iterator[int]:
    """Into how many iterations each of a loop's is worth cutting, for a deeper pipeline; not all of them may be.

    Args:
        block: The block graph.
    """
    if block.forloop_range > 1:
        yield from _CUTS


def room(blocks: int, target: Target) -> int:
    """Shared memory that a block may take so that one multiprocessor holds the blocks that there are for it, in bytes.

    Args:
        blocks: Of the grid.
        target: The GPU.
    """
    limits = target.limits
    resident = min(_MOST_RESIDENT, -(-blocks // target.sms))
    return min(limits.shared_bytes_per_sm // resident - limits.shared_reserved_per_block, limits.shared_bytes_per_block)


__all__ = ["FEWEST_STAGES", "LINE", "cuts", "most_stages", "room", "ways"]
