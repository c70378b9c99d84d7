"""Shrinking of a candidate and its program to smaller extents: fewer blocks and iterations, and smaller tiles if asked.

Equal extents of the program's inputs stay equal, so shapes that fit continue to fit. Grids and loop ranges become
divisors of their old values, at least 2 where they were more than 1, so that every index expression keeps all its
parts. A graph whose constants depend on its extents (a mean as a product with 1/4096) is no candidate for the smaller
program; a float64 comparison detects this, and the extents at fault stay unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.numerics.result_comparison import draw_all
from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import Attrs
from mirage_formal.graph.type_rules import iterator_type
from mirage_formal.graph.types import DTensor, STensor, row_major
from mirage_formal.graph.verifier import block_outputs, kernel_types
from mirage_formal.rewrite.failure import none_on_match_failure
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.working_set import working_set_size
from mirage_formal.support.errors import GraphError

#: The smaller extents by the program's own.
Extents = Mapping[int, int]
_CLOSE = 1e-6
#: The least extent of a shrunk graph without grids and loops.
_LEAST = 32


@dataclass(frozen=True, slots=True)
class ShrunkPair:
    """A program and a candidate for it at smaller extents.

    Attributes:
        program: The program.
        candidate: The candidate, with its tiles of the inputs.
        extents: The smaller extents by the original ones.
    """

    program: KernelGraph
    candidate: KernelGraph
    extents: Extents


def shrink(
    program: KernelGraph, candidate: KernelGraph, most: int | None = None, least_tile: int | None = None
) -> ShrunkPair:
    """Return the smallest equivalent pair; the given pair if nothing can be shrunk.

    If all extents are shrunk and the two no longer agree, one extent is kept unchanged, and then more and more of them.

    Args:
        program: The program.
        candidate: A µGraph that computes it.
        most: Elements that an evaluation may hold (``working_set_size``): a pair that needs more is not evaluated, and
            counts as one that does not agree. None is no bound.
        least_tile: Extent to which tiles of inputs may shrink, for uses in which rounding along a tile does not matter.
            None keeps these tiles.

    Returns:
        A pair that agrees in float64 on random inputs.
    """
    pair = _FullPair(program, candidate, least_tile)
    least = _shrink_extents(pair, frozenset())
    # The other pairs are made only if the first one does not agree.
    for found in chain((least,), _pairs_with_kept_extents(pair, least)) if least.extents else ():
        if (most is None or evaluation_size(found.program, found.candidate) <= most) and _agree(found):
            return found
    return ShrunkPair(program, candidate, {})


class _FullPair(NamedTuple):
    """A program and a candidate at their own extents, and the least extent of a tile that shrinks."""

    program: KernelGraph
    candidate: KernelGraph
    least_tile: int | None


def evaluation_size(program: KernelGraph, candidate: KernelGraph) -> int:
    """Return the most elements that an evaluation of either graph holds."""
    return max(working_set_size(program), working_set_size(candidate))


def _pairs_with_kept_extents(pair: _FullPair, least: ShrunkPair) -> Iterator[ShrunkPair]:
    """Yield pairs in which one extent that ``least`` shrinks is kept, the smallest pair first; then two, and more."""
    seen = {tuple(sorted(least.extents.items()))}

    def fresh(found: ShrunkPair) -> bool:
        known = tuple(sorted(found.extents.items()))
        new = bool(known) and known not in seen
        seen.add(known)
        return new

    ones = [_shrink_extents(pair, frozenset({extent})) for extent in least.extents]
    yield from filter(fresh, sorted(ones, key=lambda found: evaluation_size(found.program, found.candidate)))
    order = list(least.extents)
    for count in range(2, len(order)):
        found = _shrink_extents(pair, frozenset(order[:count]))
        if fresh(found):
            yield found


def _shrink_extents(pair: _FullPair, kept: frozenset[int]) -> ShrunkPair:
    """Return the pair with extents shrunk one by one, the largest first, as far as possible, except ``kept``."""
    program, candidate, least_tile = pair
    found = ShrunkPair(program, candidate, {})
    own = {extent for item in program.inputs for extent in item.tensor.shape}
    own |= {extent for op in program.ops if isinstance(op, Op) for extent in op.attrs.shape or ()}
    tiled = any(isinstance(op, GraphDefined) for op in candidate.ops)
    least = (least_tile or 1) if tiled else _LEAST
    for extent in sorted(own - kept, reverse=True):
        if extent not in found.extents:
            found = _shrink_one(found, pair, extent, own - kept, least)
    return found


def _shrink_one(found: ShrunkPair, pair: _FullPair, extent: int, free: Collection[int], least: int) -> ShrunkPair:
    """Return the pair with one more extent shrunk as far as possible, alone or together with one or two others.

    A reshape ties extents to each other: 4096 becomes smaller only if one of 32 and 128 does. So does a grid axis that
    splits two of them.
    """
    for less in (d for d in _divisors(extent) if d >= min(least, extent)):
        if less == extent:
            break
        factor = extent // less
        tied = [n for n in sorted(free, reverse=True) if n < extent and n not in found.extents and n % factor == 0]
        tied = [n for n in tied if n // factor >= min(least, n)]
        for also in ((), *combinations(tied, 1), *combinations(tied, 2)):
            tried = _pair_at(pair, {**found.extents, extent: less, **{n: n // factor for n in also}})
            if tried is not None:
                return tried
    return found


@none_on_match_failure
def _pair_at(pair: _FullPair, extents: Extents) -> ShrunkPair | None:
    """Return both graphs at these extents; None if shapes do not fit or a tile of an input would change too much."""
    program, candidate, least_tile = pair
    inputs = tuple(_resize_input(item, extents) for item in program.inputs)
    small = replace(program, inputs=inputs, ops=tuple(_resize_operator(op, extents) for op in program.ops))
    types = kernel_types(small)
    fitted = _fit_candidate(candidate, inputs, extents, least_tile)
    if fitted is None or [kernel_types(fitted)[n] for n in fitted.outputs] != [types[n] for n in small.outputs]:
        return None
    return ShrunkPair(small, fitted, extents)


def _resize_input(item: Input, extents: Extents) -> Input:
    """Return an input at other extents; the order of its dims in memory stays."""
    shape = tuple(extents.get(extent, extent) for extent in item.tensor.shape)
    if item.strides == row_major(item.tensor.shape):
        return replace(item, tensor=DTensor(shape, item.tensor.dtype), strides=row_major(shape))
    steps, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda d: (item.strides[d], -d)):
        if item.strides[dim]:
            steps[dim] = step
            step *= shape[dim]
    return replace(item, tensor=DTensor(shape, item.tensor.dtype), strides=tuple(steps))


def _resize_operator(op: KernelOp, extents: Extents) -> KernelOp:
    """Return a predefined operator with the extents in its attributes replaced."""
    return replace(op, attrs=_attrs(op.attrs, extents)) if isinstance(op, Op) else op


def _attrs(attrs: Attrs, extents: Extents) -> Attrs:
    shape = None if attrs.shape is None else tuple(extents.get(extent, extent) for extent in attrs.shape)
    return replace(attrs, shape=shape, times=None if attrs.times is None else extents.get(attrs.times, attrs.times))


@none_on_match_failure
def _fit_candidate(
    candidate: KernelGraph, inputs: tuple[Input, ...], extents: Extents, least_tile: int | None
) -> KernelGraph | None:
    """Return the candidate on smaller inputs; None if it does not fit them."""
    before, new = kernel_types(candidate), KernelGraphBuilder(inputs, share=())
    for op in candidate.ops:
        if isinstance(op, Op):
            new.emit(op.kind, *op.operands, attrs=_attrs(op.attrs, extents))
            continue
        operands = tuple(new.types[n] for n in op.operands)
        least = [least_tile if n < len(inputs) else 1 for n in op.operands]
        block = _shrink_block(op.graph, [before[n] for n in op.operands], operands, least)
        if block is None:
            return None
        new.define(block, op.operands)
    return replace(candidate, inputs=inputs, ops=tuple(new.ops))


def _shrink_block(
    block: BlockGraph, before: Sequence[DTensor], operands: tuple[DTensor, ...], least: Sequence[int | None]
) -> BlockGraph | None:
    """Return the block graph on smaller operands, with as few changed tiles, then blocks and iterations, as possible.

    Args:
        block: The block graph.
        before: The original operands.
        operands: The smaller ones.
        least: For each of them, the least extent of a tile that changes; None if its tiles must not change.
    """
    old = [iterator_type(block.grid, block.forloop_range, it, t) for it, t in zip(block.inputs, before, strict=True)]
    read = [{dim.imap[axis] for dim in block.inputs} != {None} for axis in range(3)]
    looped = any(iterator.fmap is not None for iterator in block.inputs)
    ways = [_smaller_values(extent) if moves else [extent] for extent, moves in zip(block.grid, read, strict=True)]
    ways.append(_smaller_values(block.forloop_range) if looped else [block.forloop_range])
    found: list[tuple[int, int, BlockGraph]] = []
    for x, y, z, loop in product(*ways):
        grid = (x, y, z)
        tiles = [iterator_type(grid, loop, it, t) for it, t in zip(block.inputs, operands, strict=True)]
        if any(isinstance(tile, str) for tile in tiles):
            continue
        changes = [_changed_extents(a, b) for a, b in zip(old, tiles, strict=True)]
        if all(n is not None and extent >= n for new, n in zip(changes, least, strict=True) for extent in new):
            count = sum(map(len, changes))
            found.append((count, prod(grid) * loop, replace(block, grid=grid, forloop_range=loop)))
    for _, _, made in sorted(found, key=lambda item: item[:2]):
        try:
            block_outputs(made, operands)
        except GraphError:
            continue
        return made
    return None


def _changed_extents(a: STensor | str, b: STensor | str) -> list[int]:
    """Return the extents of a tile that differ from those of another."""
    assert isinstance(a, STensor)
    assert isinstance(b, STensor)
    return [n for m, n in zip(a.shape, b.shape, strict=True) if m != n]


def _smaller_values(extent: int) -> list[int]:
    """Return the values that a grid extent or a loop range may shrink to."""
    return [1] if extent == 1 else [d for d in _divisors(extent) if d > 1]


def _divisors(extent: int) -> Iterator[int]:
    return (d for d in range(1, extent + 1) if extent % d == 0)


def _agree(found: ShrunkPair) -> bool:
    """Return whether both compute the same in float64 on random inputs."""
    arrays = draw_all(found.program, 0, 0.3)
    pairs = zip(
        float64_reference.run(found.program, arrays), float64_reference.run(found.candidate, arrays), strict=True
    )
    return all(_close(a, b) for a, b in pairs)


def _close(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Return whether results are nearly equal; NaN must stand at the same places in both."""
    finite = np.isfinite(a)
    most = float(np.abs(a[finite]).max(initial=0.0))
    return bool(finite.any()) and np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE * most, equal_nan=True)
