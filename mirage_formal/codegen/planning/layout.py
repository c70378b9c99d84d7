"""Choice of warps for every product on tensor cores, and of swizzles for every matrix in shared memory.

Each choice takes one option. An option's cost is in clocks of one block: tensor-core work of a warp, wavefronts of
ldmatrix, exchanges between warps. A pair of products costs extra where the result of one reaches the other through
shared memory (a barrier, a store and loads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import product
from math import gcd, prod
from typing import Final

from mirage_formal.codegen.planning.binary_quadratic import minimise, total_cost
from mirage_formal.codegen.program.plan import SharedPlacement
from mirage_formal.codegen.program.program import PANEL, PANEL_UNIT, WARPGROUP_COLUMNS
from mirage_formal.codegen.program.register_layout import FLOAT32_STEPS, MMA, WARP, Warps, mma_tiles
from mirage_formal.graph.types import DType

#: Accumulators of one thread beyond which a product is expected to spill.
MAX_ACCUMULATORS: Final = 128
_MMA_CLOCKS: Final = 16
_MMA_LATENCY: Final = 34
#: A quarter of a wgmma.m64n8k16: the H100 white paper has 4,096 operations a clock and multiprocessor.
_WARPGROUP_CLOCKS: Final = 4
_MATRIX_CLOCKS: Final = 1
_BARRIER: Final = 40
_EXCHANGE: Final = 120
_SPILL: Final = 1_000_000
#: Arrangements of all products together up to which every one is priced.
_ALL_TRIED: Final = 4096


@dataclass(frozen=True, slots=True)
class ProductShape:
    """The shape of one product on tensor cores, with its relations to other products.

    Attributes:
        rows, cols, inner: Its extents.
        iterations: The number of times that it is computed.
        deferred: Whether partial sums may stay in registers until after the loop.
        source: The product whose result is its left operand, if that stays in registers; -1 if none does.
        mates: Products whose results meet its own in an elementwise operator.
        reductions: The number of reductions over its columns that are finished in every iteration.
        size: Bytes of an element of its operands.
        beside: An earlier product that reads the same operand; its fragments can be reused if both have the same warps
            (see lowering/mma_lowering.py); -1 if there is none.
        beside_left: Whether the shared operand is the left one.
    """

    rows: int
    cols: int
    inner: int
    iterations: int
    deferred: bool
    source: int = -1
    mates: tuple[int, ...] = ()
    reductions: int = 0
    size: int = DType.FLOAT16.bytes
    beside: int = -1
    beside_left: bool = True


def tiles_of(shape: ProductShape, warps: Warps) -> tuple[int, int, int]:
    """Return the tiles of 16, the tiles of 8 and the inner steps of one warp."""
    return *mma_tiles(warps, shape.rows, shape.cols), -(-shape.inner // (MMA[2] * warps.inner))


def needs_less_padding_transposed(shape: ProductShape) -> bool:
    """Return whether a product needs less padding if it is computed transposed: few rows of many columns."""
    own, other = (prod(_padded(shape, transposed)) for transposed in (False, True))
    return other < own


def _padded(shape: ProductShape, transposed: bool) -> tuple[int, int]:
    """Return rows and columns padded to whole tiles."""
    tall, flat = (MMA[1], MMA[0]) if transposed else (MMA[0], MMA[1])
    return -(-shape.rows // tall) * tall, -(-shape.cols // flat) * flat


def warp_options(shape: ProductShape, count: int, *, transposed: bool = False) -> tuple[Warps, ...]:
    """Return all grids of this many warps that cut a product into whole inner steps.

    An inner extent that is no whole number of steps may be cut unevenly if an earlier product computes the left
    operand. Its accumulators are padded to whole tiles for every warp, and may still serve as left fragments.

    Args:
        shape: The product.
        count: Warps of a block.
        transposed: Whether to return the grids that compute it transposed, if that pads less.
    """
    out = []
    uneven = shape.source >= 0 and shape.inner % MMA[2] != 0
    other = transposed and needs_less_padding_transposed(shape)
    for rows in _divisors(count):
        for cols in _divisors(count // rows):
            warps = Warps(rows, cols, count // rows // cols, other)
            if uneven or -(-shape.inner // MMA[2]) % warps.inner == 0:
                out.append(warps)
    return tuple(out)


def warpgroup_options(shape: ProductShape, count: int) -> tuple[Warps, ...]:
    """Return the grids of this many warps in which warpgroups compute a product; see ``can_use_warpgroups``."""
    found = (
        Warps(rows, cols, count // rows // cols, transposed, warpgroup=True)
        for transposed in (False, True)
        for rows in _divisors(count)
        for cols in _divisors(count // rows)
    )
    return tuple(warps for warps in found if can_use_warpgroups(shape, warps))


def can_use_warpgroups(shape: ProductShape, warps: Warps) -> bool:
    """Return whether warpgroups can compute a product: each has 64 whole rows, and nothing is padded.

    Its four warps are next to each other along the rows (of a transposed product: the columns). Parts of the other
    dims begin with whole panels.
    """
    high, wide, steps = tiles_of(shape, warps)
    tall, flat = (shape.cols, shape.rows) if warps.transposed else (shape.rows, shape.cols)
    tall_parts, flat_parts = (warps.cols, warps.rows) if warps.transposed else (warps.rows, warps.cols)
    whole = (tall, flat, shape.inner) == (MMA[0] * tall_parts, MMA[1] * wide * flat_parts, MMA[2] * steps * warps.inner)
    return (
        shape.size == DType.FLOAT16.bytes
        and whole
        and high == 1
        and tall_parts % 4 == 0
        and (not warps.transposed or warps.rows == 1)
        and MMA[1] * wide in WARPGROUP_COLUMNS
        and (flat_parts == 1 or MMA[1] * wide % PANEL == 0)
        and (warps.inner == 1 or MMA[2] * steps % PANEL == 0)
    )


def inner_extent(inner: int, warps: Warps, *, packed: bool) -> int:
    """Return the extent of inner positions that the warps of a product read of an operand in shared memory.

    Args:
        inner: The inner extent.
        warps: The warps.
        packed: Whether the other operand comes from registers, where a warp's part is a whole number of tiles of 8.
    """
    steps = -(-inner // (MMA[2] * warps.inner))
    part = MMA[1] * -(-inner // (MMA[1] * warps.inner)) if packed else MMA[2] * steps
    return (warps.inner - 1) * part + MMA[2] * steps


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def can_pack(source: ProductShape, a: Warps, product: ProductShape, b: Warps) -> bool:
    """Return whether the accumulators of a product are, thread by thread, the left fragments of another product.

    A ragged inner extent fills neither the last tiles nor, if a warp has an odd number of them, its last step;
    positions beyond it count as zeros (see lowering/mma_lowering.py). A product that is computed transposed never has
    such accumulators.
    """
    wide = tiles_of(source, a)[1]
    ragged = source.cols % MMA[2] != 0
    return (
        not (a.transposed or b.transposed)
        and a.inner == 1
        and b.cols == 1
        and a.rows == b.rows
        and a.cols == b.inner
        and product.inner == source.cols
        and (ragged or (wide % 2 == 0 and wide * MMA[1] * a.cols == source.cols))
    )


def product_cost(shape: ProductShape, warps: Warps, *, beside: bool = False) -> int:
    """Return the clocks of one product in a block; with ``beside`` it reuses the shared operand's fragments."""
    high, wide, steps = tiles_of(shape, warps)
    words = shape.size // DType.FLOAT16.bytes
    each = 1 if words == 1 else FLOAT32_STEPS
    clocks = _WARPGROUP_CLOCKS if warps.warpgroup else _MMA_CLOCKS
    work = max(high * wide * steps * clocks, steps * _MMA_LATENCY) * each
    left, right = 4 * high if shape.source < 0 else 0, 2 * wide
    if beside and shape.beside_left != warps.transposed:  # tensor cores take a transposed product's operands swapped
        left = 0
    elif beside:
        right = 0
    # Warpgroups read both operands themselves.
    matrices = 0 if warps.warpgroup else warps.count * steps * (left + right) * _MATRIX_CLOCKS * words
    # Tensor cores and shared memory work side by side; what one waits for the other is a fraction of both.
    cost = (max(work, matrices) + (work + matrices) // 4) * shape.iterations
    if warps.cols > 1:
        cost += shape.reductions * shape.iterations * _EXCHANGE
    if warps.inner > 1:
        exchanges = 1 if shape.deferred else shape.iterations
        cost += exchanges * (_EXCHANGE + 4 * high * wide * (1 + warps.inner) * warps.count)
    if 4 * high * wide * words > MAX_ACCUMULATORS:
        cost += _SPILL * 4 * high * wide
    return cost


def choose_warps(shapes: Sequence[ProductShape], count: int) -> tuple[Warps, ...]:
    """Return the warps of every product with the least cost in this model, unless there are too many choices to try."""
    return best_warps(shapes, count, 1)[0]


def best_warps(
    shapes: Sequence[ProductShape], count: int, most: int, *, transposed: bool = False
) -> list[tuple[Warps, ...]]:
    """Return arrangements of warps, the cheapest in this model first; only the best one if there are too many to try.

    Args:
        shapes: The products.
        count: Warps of a block.
        most: The most arrangements returned.
        transposed: Whether products are computed transposed where that needs less padding.
    """
    return [chosen for _, chosen in _ranked_arrangements(shapes, count, most, transposed=transposed)]


def _ranked_arrangements(
    shapes: Sequence[ProductShape], count: int, most: int, *, transposed: bool = False, warpgroups: bool = False
) -> list[tuple[int, tuple[Warps, ...]]]:
    """Return arrangements of warps with their costs; see ``best_warps``.

    With ``warpgroups``, products are computed by warpgroups where these can do it.
    """
    options, costs, pairs = _arrangements(shapes, count, transposed=transposed, warpgroups=warpgroups)
    if prod(map(len, options)) > _ALL_TRIED:
        most = 1
    if most == 1:
        chosen, _ = minimise(costs, pairs)
        return [(total_cost(costs, pairs, chosen), _pick(options, chosen))]
    numbers = (range(len(row)) for row in options)
    ranked = nsmallest(most, product(*numbers), key=lambda chosen: (total_cost(costs, pairs, chosen), chosen))
    return [(total_cost(costs, pairs, chosen), _pick(options, chosen)) for chosen in ranked]


def warpgroup_arrangements(
    shapes: Sequence[ProductShape], counts: Sequence[int], most: int
) -> list[tuple[int, tuple[Warps, ...]]]:
    """Return numbers of warps with arrangements in which warpgroups compute products, the cheapest in this model first.

    Args:
        shapes: The products.
        counts: Numbers of warps of a block.
        most: The most arrangements for each number.
    """
    found = [
        (cost, count, chosen)
        for count in counts
        for cost, chosen in _ranked_arrangements(shapes, count, most, warpgroups=True)
        if any(warps.warpgroup for warps in chosen)
    ]
    return [(count, chosen) for _, count, chosen in sorted(found, key=lambda one: one[:2])]


def _pick(options: Sequence[Sequence[Warps]], chosen: Sequence[int]) -> tuple[Warps, ...]:
    return tuple(row[option] for row, option in zip(options, chosen, strict=True))


def _arrangements(
    shapes: Sequence[ProductShape], count: int, *, transposed: bool, warpgroups: bool
) -> tuple[list[tuple[Warps, ...]], list[list[int]], dict[tuple[int, int], list[list[int]]]]:
    """Return the options of every product, the cost of each, and the extra costs of pairs of options."""
    options = [
        (warpgroups and warpgroup_options(shape, count)) or warp_options(shape, count, transposed=transposed)
        for shape in shapes
    ]
    costs = [
        [product_cost(shape, warps, beside=shape.beside >= 0) for warps in row]
        for shape, row in zip(shapes, options, strict=True)
    ]
    pairs: dict[tuple[int, int], list[list[int]]] = {}

    def add(i: int, j: int, table: list[list[int]]) -> None:
        known = pairs.get((i, j))
        pairs[i, j] = table if known is None else [[*map(int.__add__, p, q)] for p, q in zip(known, table, strict=True)]

    for j, shape in enumerate(shapes):
        if shape.beside >= 0:
            other = shapes[shape.beside]
            alone = [product_cost(shape, q) - cost for q, cost in zip(options[j], costs[j], strict=True)]
            add(
                shape.beside,
                j,
                [
                    [0 if _shares_fragments(other, p, q) else more for q, more in zip(options[j], alone, strict=True)]
                    for p in options[shape.beside]
                ],
            )
        if shape.source >= 0:
            source = shapes[shape.source]
            trip = _round_trip(source, shape.iterations)
            rows = [[0 if can_pack(source, a, shape, b) else trip for b in options[j]] for a in options[shape.source]]
            add(shape.source, j, rows)
        for i in shape.mates:
            trip = _round_trip(shape, 1)
            rows = [[0 if _has_same_layout(shapes[i], a, shape, b) else trip for b in options[j]] for a in options[i]]
            add(i, j, rows)
    return options, costs, pairs


def _shares_fragments(other: ProductShape, p: Warps, q: Warps) -> bool:
    """Return whether a product reuses fragments of another one: no exchange of partial sums lies between the two."""
    return p == q and (other.deferred or p.inner == 1)


def _has_same_layout(a: ProductShape, p: Warps, b: ProductShape, q: Warps) -> bool:
    return (p.rows, p.cols, p.transposed, a.rows, a.cols) == (q.rows, q.cols, q.transposed, b.rows, b.cols)


def _round_trip(shape: ProductShape, iterations: int) -> int:
    return iterations * (2 * _BARRIER + 2 * shape.rows * shape.cols // WARP)


# --- swizzles --------------------------------------------------------------------------------------------------------

_CHUNK: Final = 8  # elements that are swizzled together
_VECTOR: Final = 16  # bytes of the widest copy
_BANKS: Final = 128  # bytes in all 32 banks


def bank_conflicts(placement: SharedPlacement, *, size: int = DType.FLOAT16.bytes, across: bool = False) -> int:
    """Return the extra wavefronts of a warp's fragment read: rows that share banks with another row.

    For 16-bit elements a read is 8 rows of 8 elements: one ldmatrix matrix, in either direction. For 32-bit elements it
    is 4 rows of 8 elements. These are adjacent rows, from which half a warp reads pairs of elements. Where the inner
    dim lies across the rows, they are every other row, from which a warp reads single elements.



    Args:
        placement: The placement of the matrix.
        size: Bytes of an element.
        across: Whether the inner dim of the product lies across the rows.
    """
    units = _CHUNK * size // _VECTOR
    step = 2 if across and units > 1 else 1
    groups: dict[int, int] = {}
    for row in range(0, _BANKS // _VECTOR // units * step, step):
        key = (row >> placement.shift) & placement.mask
        first = row * placement.pitch * size // _VECTOR + key * units
        for unit in range(first, first + units):
            groups[unit % (_BANKS // _VECTOR)] = groups.get(unit % (_BANKS // _VECTOR), 0) + 1
    return max(groups.values()) - 1


def choose_swizzle(
    buffer: str,
    rows: int,
    cols: int,
    *,
    transposed: bool = False,
    size: int = DType.FLOAT16.bytes,
    across: bool = False,
) -> SharedPlacement:
    """Return the placement of a fragment matrix: no bank conflicts, then the least memory, then no swizzle.

    Args:
        buffer: Name of the buffer.
        rows: Rows as stored.
        cols: Columns as stored; they are padded to whole vectors of 16 bytes.
        transposed: Whether the tensor is stored transposed.
        size: Bytes of an element.
        across: Whether the inner dim of the product lies across the rows, as stored.
    """
    padded = pad_to_vectors(cols, size)
    chunks, banks = padded // _CHUNK, _BANKS // size // _CHUNK
    options = [SharedPlacement(buffer, rows, padded, padded, transposed=transposed)]
    power = gcd(chunks, banks)
    if power > 1 and padded % _CHUNK == 0:
        shift = (banks // power).bit_length() - 1 + _reads_alternate_rows(size, across=across)
        options.append(SharedPlacement(buffer, rows, padded, padded, shift, power - 1, transposed))
    pitch = padded + _row_padding(padded, size, across=across)
    options.append(SharedPlacement(buffer, rows, padded, pitch, transposed=transposed))
    return min(
        options,
        key=lambda o: 1000 * bank_conflicts(o, size=size, across=across) + o.elements // 64 + (_CHUNK if o.mask else 0),
    )


def panel_placement(buffer: str, rows: int, cols: int, *, transposed: bool = False) -> SharedPlacement | None:
    """Return the placement of a matrix that warpgroups read; None if its extents as stored are no whole panels."""
    if cols % PANEL or rows % (PANEL_UNIT // PANEL):
        return None
    return SharedPlacement(buffer, rows, cols, PANEL, mask=_CHUNK - 1, transposed=transposed, panels=True)


def pad_to_vectors(cols: int, size: int) -> int:
    """Return a number of columns padded to whole vectors of 16 bytes, for elements of ``size`` bytes."""
    width = _VECTOR // size
    return -(-cols // width) * width


def _reads_alternate_rows(size: int, *, across: bool) -> bool:
    """Return whether a warp reads every other row at once."""
    return across and size > DType.FLOAT16.bytes


def _row_padding(cols: int, size: int, *, across: bool) -> int:
    """Return the padding of rows that avoids bank conflicts of vector reads."""
    if size == DType.FLOAT16.bytes:
        return _CHUNK
    half = _CHUNK // 2  # every other row: an odd number of these; neighbours: an odd number of chunks
    return (half - cols) % _CHUNK if across else (_CHUNK - cols) % (2 * _CHUNK)


def padded_placement(
    buffer: str, rows: int, cols: int, *, size: int = DType.FLOAT16.bytes, across: bool = False
) -> SharedPlacement:
    """Return the placement of a matrix of fragments without swizzle, in rows whose pitch avoids bank conflicts.

    Args: as of ``choose_swizzle``.
    """
    if size == DType.FLOAT16.bytes:
        chunks = -(-cols // _CHUNK)
        return SharedPlacement(buffer, rows, chunks * _CHUNK, (chunks | 1) * _CHUNK)
    padded = pad_to_vectors(cols, size)
    return SharedPlacement(buffer, rows, padded, padded + _row_padding(padded, size, across=across))


def plain_placement(buffer: str, rows: int, cols: int) -> SharedPlacement:
    """Return the placement of a matrix in shared memory without padding or swizzle, in row-major order."""
    return SharedPlacement(buffer, rows, cols, cols)


def accumulator_registers(shapes: Sequence[ProductShape], chosen: Sequence[Warps]) -> int:
    """Return the registers of one thread that hold results of products.

    For float32, the TF32 parts of operands take as many again.
    """
    return sum(
        4 * prod(tiles_of(shape, warps)[:2]) * (shape.size // DType.FLOAT16.bytes)
        for shape, warps in zip(shapes, chosen, strict=True)
    )
