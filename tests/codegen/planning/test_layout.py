"""Layouts: no bank conflicts, warps of least cost, and fragments that are what the next product needs."""

from __future__ import annotations

from itertools import product as every
from typing import Any

import pytest

from mirage_formal.codegen.planning.layout import (
    ProductShape,
    bank_conflicts,
    can_pack,
    choose_swizzle,
    choose_warps,
    padded_placement,
    product_cost,
    warp_options,
)
from mirage_formal.codegen.program.plan import SharedPlacement
from mirage_formal.codegen.program.register_layout import (
    Axis,
    Distribution,
    Warps,
    fragment_layout,
    fragment_tiles,
    reduce_layout,
    replicated_digits,
    split_by_warp,
    vector_layout,
)


def address(placement: SharedPlacement, row: int, col: int) -> int:
    return row * placement.pitch + (col ^ 8 * ((row >> placement.shift) & placement.mask))


@pytest.mark.parametrize("chunks", range(1, 40))
def test_matrices_without_bank_conflicts(chunks: int) -> None:
    placement = choose_swizzle("s", 64, 8 * chunks)
    assert bank_conflicts(placement) == 0
    for first, col in every(range(0, 64, 8), range(0, 8 * chunks, 8)):
        banks = {address(placement, first + row, col) // 8 % 8 for row in range(8)}
        assert len(banks) == 8
    # Rows stay apart and chunks stay whole.
    places = {address(placement, row, col) for row in range(16) for col in range(8 * chunks)}
    assert len(places) == 16 * 8 * chunks
    assert max(places) < 16 * placement.pitch
    assert all(address(placement, row, col) % 8 == 0 for row in range(16) for col in range(0, 8 * chunks, 8))


@pytest.mark.parametrize("cols", range(1, 200, 7))
def test_longer_rows_have_no_bank_conflicts(cols: int) -> None:
    placement = padded_placement("s", 64, cols)
    assert bank_conflicts(placement) == placement.mask == 0
    assert cols <= placement.cols <= placement.pitch <= cols + 15
    assert placement.cols % 8 == placement.pitch % 8 == 0


def banks(placement: SharedPlacement, row: int, col: int, *, across: bool) -> list[int]:
    """The banks from which half a warp reads pairs of floats, or a warp floats of rows, for a fragment of float32."""
    lanes = [(lane // 4, lane % 4) for lane in range(32)]
    if across:
        places = [address(placement, row + 2 * t, col + g) for g, t in lanes]
    else:
        places = [address(placement, row + g, col + 2 * t) + e for g, t in lanes[:16] for e in range(2)]
    return [place % 32 for place in places]


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("chunks", range(1, 40))
def test_matrices_of_float32_without_bank_conflicts(chunks: int, across: bool) -> None:
    """Of every row and column at which a fragment may begin; both kinds of place, and copies of 16 bytes stay whole."""
    for place in (choose_swizzle, padded_placement):
        placement = place("s", 64, 4 * chunks, size=4, across=across)
        assert bank_conflicts(placement, size=4, across=across) == 0
        assert placement.cols == 4 * chunks <= placement.pitch <= 4 * chunks + 12
        for row, col in every(range(0, 56, 8), range(0, 4 * chunks - 7, 8)):
            assert len(set(banks(placement, row, col, across=across))) == 32
            assert not across or len(set(banks(placement, row + 1, col, across=across))) == 32
        runs = {address(placement, row, col) for row in range(16) for col in range(0, 4 * chunks, 4)}
        assert len(runs) == 16 * chunks
        assert all(run % 4 == 0 for run in runs)


def test_plain_rows_of_float32_conflict() -> None:
    assert bank_conflicts(SharedPlacement("s", 64, 32, 32), size=4) == 3
    assert bank_conflicts(SharedPlacement("s", 64, 32, 32), size=4, across=True) == 3
    assert bank_conflicts(SharedPlacement("s", 64, 40, 40), size=4) == 0
    assert bank_conflicts(SharedPlacement("s", 64, 40, 40), size=4, across=True) > 0
    assert bank_conflicts(SharedPlacement("s", 64, 36, 36), size=4, across=True) == 0


def test_plain_rows_of_128_bytes_conflict() -> None:
    assert bank_conflicts(SharedPlacement("s", 64, 64, 64)) == 7
    assert bank_conflicts(SharedPlacement("s", 64, 32, 32)) == 3
    assert bank_conflicts(SharedPlacement("s", 64, 72, 72)) == 0


SHAPES = [
    ProductShape(128, 64, 64, 4, False),
    ProductShape(2, 48, 512, 8, True),
    ProductShape(1, 128, 128, 32, False),
    ProductShape(16, 16, 256, 1, False),
    ProductShape(256, 32, 64, 16, True),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_single_product_takes_its_cheapest_warps(shape: ProductShape) -> None:
    (chosen,) = choose_warps([shape], 4)
    assert product_cost(shape, chosen) == min(product_cost(shape, w) for w in warp_options(shape, 4))
    assert chosen.count == 4


def test_few_rows_cut_the_inner_dim() -> None:
    """But not where every iteration would have to add up."""
    for cols in (16, 24, 32, 48, 64):
        (deferred,) = choose_warps([ProductShape(2, cols, 512, 8, True)], 4)
        (at_once,) = choose_warps([ProductShape(128, cols, 64, 8, False)], 4)
        assert deferred.inner > 1
        assert at_once.inner == 1


def test_reductions_in_the_loop_keep_rows_in_a_warp() -> None:
    """A running maximum over columns that lie in several warps would need an exchange in every iteration."""
    for reductions, cols in ((0, None), (1, 1)):
        scores = ProductShape(128, 64, 64, 64, False, reductions=reductions)
        a, _ = choose_warps([scores, ProductShape(128, 64, 64, 64, True, source=0)], 4)
        assert cols is None or a.cols == cols


@pytest.mark.parametrize(("rows", "keys"), [(128, 64), (16, 128), (1, 128), (64, 64)])
def test_attention_stays_in_registers(rows: int, keys: int) -> None:
    """The scores' accumulators are the left fragments of the product with the values, whatever the rows."""
    scores = ProductShape(rows, keys, 64, 8, False)
    out = ProductShape(rows, 64, keys, 8, True, source=0)
    a, b = choose_warps([scores, out], 4)
    assert can_pack(scores, a, out, b)


@pytest.mark.parametrize(("rows", "cols"), [(32, 64), (64, 128), (16, 256), (20, 7), (33, 41), (16, 257)])
@pytest.mark.parametrize("warps", [Warps(1, 4, 1), Warps(2, 2, 1), Warps(4, 1, 1)])
def test_packing_gives_every_lane_its_left_fragment(rows: int, cols: int, warps: Warps) -> None:
    """Checked element by element against the layout of m16n8k16's left operand in the PTX ISA."""
    ragged = cols % 16 != 0
    over = fragment_layout(128, warps, rows, cols)
    later = Warps(warps.rows, 1, warps.cols)
    source, target = ProductShape(rows, cols, 16, 1, False), ProductShape(rows, 8, cols, 1, True, 0)
    if not can_pack(source, warps, target, later):
        assert not ragged
        pytest.skip("no such packing")
    high, wide = fragment_tiles(over)
    for tid in range(128):
        lane, warp = tid % 32, tid // 32
        first_row = 16 * high * (warp % warps.rows)
        first_inner = 8 * wide * (warp // warps.rows % warps.cols)
        for m, k, word, half in every(range(high), range(-(-wide // 2)), range(4), range(2)):
            if 2 * k + word // 2 >= wide:
                continue  # the second half of the last step, for which there are zeros
            register = m * 4 * wide + 8 * k + 2 * word + half
            row = first_row + 16 * m + lane // 4 + 8 * (word % 2)
            inner = first_inner + 16 * k + lane % 4 * 2 + half + 8 * (word // 2)
            assert coordinates(over, tid, register) == (row, inner)


def coordinates(over: Distribution, tid: int, register: int) -> tuple[int, int]:
    place = {Axis.ROW: 0, Axis.COL: 0}
    for digit in over.digits:
        place[digit.axis] += tid // digit.div % digit.extent * digit.stride
    for slot in reversed(over.slots):
        place[slot.axis] += register % slot.extent * slot.stride
        register //= slot.extent
    return place[Axis.ROW], place[Axis.COL]


@pytest.mark.parametrize("threads", [128, 512])
@pytest.mark.parametrize(("rows", "cols", "width", "kept"), [
    (1, 4096, 8, None), (4, 2048, 8, 64), (16, 512, 8, 64), (33, 24, 8, None), (200, 1, 1, None), (3, 7, 1, None),
    (64, 32, 8, None), (2, 4096, 8, 2048), (5, 96, 8, 48), (1, 1, 1, None),
])  # fmt: skip
def test_vectors_cover_every_element_once(threads: int, rows: int, cols: int, width: int, kept: int | None) -> None:
    over = vector_layout(threads, rows, cols, width, kept=kept)
    seen: dict[Any, Any] = {}
    for tid, register in every(range(threads), range(over.count)):
        seen.setdefault(coordinates(over, tid, register), set()).add(tid)
    copies = 1
    for _, extent in replicated_digits(over):
        copies *= extent
    assert {(r, c) for r, c in every(range(rows), range(cols))} <= set(seen)
    assert all(len(tids) == copies for tids in seen.values())
    if kept is not None and kept & (kept - 1) == 0:
        assert reduce_layout(over, Axis.COL, kept) is not None


def test_digits_are_cut_at_warps() -> None:
    over = vector_layout(512, 1, 4096, 8)
    found = reduce_layout(over, Axis.COL, 1)
    assert found is not None
    low, high = split_by_warp(found[1])
    assert [(d.div, d.extent) for d in (*low, *high)] == [(1, 32), (32, 16)]
