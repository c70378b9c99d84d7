"""Products that are computed transposed, as C^T = B^T A^T, because that pads less: few rows, or nine of sixteen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from mirage_formal.codegen.generate import schedule_from_record, schedule_record
from mirage_formal.codegen.planning import layout
from mirage_formal.codegen.planning.layout import ProductShape
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program import register_layout
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.program.register_layout import Axis, RegisterLoop, Warps, fragment_layout
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError
from tests.codegen.lowering.test_lower_operators import NONE, kernel
from tests.codegen.lowering.test_ragged_products import chained, mapped, products, right, right_everywhere
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import TARGET, compare, planned

K = OpKind


def summed(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """exp(A B) over the sums of its columns."""
    ops = [op(K.MATMUL, 0, 1), op(K.EXP, 2), op(K.SUM, 3, dim=1), op(K.DIV, 3, 4), op(K.ACCUM_SUM, 5)]
    return kernel([(m, depth), (depth, n)], [load(NONE)] * 2, ops, [(6, NONE)], **more)


def added(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """A B over four iterations of the inner dim, scaled in each."""
    ops = [op(K.SCALE, 0, factor=Fraction(1, 2)), op(K.MATMUL, 2, 1), op(K.ACCUM_SUM, 3)]
    inputs = [load(NONE, 1), load(NONE, 0)]
    return kernel([(m, 4 * depth), (4 * depth, n)], inputs, ops, [(4, NONE)], loop=4, **more)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the first schedule one whose products are transposed, with warps that are asked for, or the best."""

    def chosen(*wanted: Warps) -> None:
        def choose(shapes: list[ProductShape], count: int) -> tuple[Warps, ...]:
            if wanted:
                return tuple(replace(one, transposed=True) for one in wanted[: len(shapes)])
            return layout.best_warps(shapes, count, 1, transposed=True)[0]

        monkeypatch.setattr("mirage_formal.codegen.planning.schedules.choose_warps", choose)

    return chosen


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("depth", [16, 77])
@pytest.mark.parametrize("make", [chained, mapped, right, summed, added])
def test_they_compute_the_same(
    make: Callable[..., KernelGraph], depth: int, rows: int, turned: Callable[..., None]
) -> None:
    """Emulated, interpreted and proved safe; operands in memory, computed, and computed by such a product."""
    turned()
    plan = right_everywhere(make(rows, depth, 48))
    shapes = [step.warps.transposed for step in products(plan)]
    # Of two products the first may have as many rows as the depth, and be padded less as it is; the last has few.
    assert shapes[-1]
    assert not any(step.packed for step in products(plan))


@pytest.mark.parametrize("make", [chained, mapped, added])
def test_bfloat16(make: Callable[..., KernelGraph], turned: Callable[..., None]) -> None:
    turned()
    right_everywhere(make(3, 21, 40, dtype=DType.BFLOAT16), tolerance=6e-2)


@pytest.mark.parametrize("depth", [32, 34])
def test_columns_first(depth: int, turned: Callable[..., None]) -> None:
    """Inputs whose columns are next to each other in memory, so that both operands are read the other way."""
    turned()
    right_everywhere(mapped(8, depth, 48, strides={0: (1, 8), 1: (1, depth)}))
    right_everywhere(added(8, depth, 48, strides={0: (1, 8), 1: (1, 4 * depth)}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("warps", [Warps(1, 4, 1), Warps(1, 2, 2), Warps(1, 1, 4), Warps(2, 2, 1), Warps(2, 1, 2)])
@pytest.mark.parametrize("make", [summed, added])
def test_every_way_to_share_them(make: Callable[..., KernelGraph], warps: Warps, turned: Callable[..., None]) -> None:
    turned(warps)
    plan = right_everywhere(make(20, 64, 56))
    assert products(plan)[0].warps == replace(warps, transposed=True)


def test_half_the_products_and_accumulators(turned: Callable[..., None]) -> None:
    """Of one row and 128 columns: 16 columns a tile instead of 8."""
    graph = kernel([(1, 16), (16, 128)], [load(NONE)] * 2, [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2)], [(3, NONE)])
    before = planned(graph)[0]
    turned()
    after = planned(graph)[0]
    counts = [products(plan)[0].over.count for plan in (before, after)]
    assert counts[0] == 2 * counts[1] > 0


@pytest.mark.parametrize(
    ("rows", "cols", "less"),
    [(1, 8, False), (1, 16, True), (8, 64, True), (9, 64, False), (16, 64, False), (17, 64, True), (64, 8, False)],
)
def test_only_where_it_pads_less(rows: int, cols: int, less: bool) -> None:
    shape = ProductShape(rows, cols, 64, 1, deferred=False)
    assert layout.needs_less_padding_transposed(shape) is less
    found = layout.warp_options(shape, 4, transposed=True)
    assert {one.transposed for one in found} == {less}
    assert {one.transposed for one in layout.warp_options(shape, 4)} == {False}


def test_schedules_have_both_and_records_tell_them_apart() -> None:
    """Tuning tries it right behind the best of each number of threads; files of before have no such field."""
    graph = mapped(4, 64, 128)
    found = list(schedules(graph, 0, TARGET))
    assert not any(warps.transposed for warps in found[0].warps)
    assert any(warps.transposed for one in found[:4] for warps in one.warps)
    for one in found:
        assert schedule_from_record(schedule_record(one)) == one
        assert make_plan(graph, 0, TARGET, one).schedule == one
    written = msgspec.json.encode(schedule_record(found[0]))
    assert b"transposed" not in written
    other = msgspec.json.encode(schedule_record(next(one for one in found if one.warps[0].transposed)))
    assert b'"transposed":true' in other


def test_a_schedule_that_pads_more_is_refused() -> None:
    graph = mapped(16, 64, 128)
    first = make_plan(graph, 0, TARGET).schedule
    wrong: Schedule = replace(first, warps=tuple(replace(one, transposed=True) for one in first.warps))
    with pytest.raises(UnsupportedError, match="expected warps that cut"):
        make_plan(graph, 0, TARGET, wrong)


# --- the easy wrong versions -----------------------------------------------------------------------------------------


def test_accumulators_that_lie_the_usual_way_are_found(
    turned: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of the transposed product, read as if they were of the product itself."""
    own = fragment_layout

    def swapped(threads: int, warps: Warps, rows: int, cols: int) -> register_layout.Fragment:
        over = own(threads, warps, rows, cols)
        other = {Axis.ROW: Axis.COL, Axis.COL: Axis.ROW}
        return replace(over, slots=tuple(RegisterLoop(other[s.axis], s.extent, s.stride) for s in over.slots))

    turned(Warps(1, 4, 1))
    graph = mapped(8, 32, 64)
    right_everywhere(graph)
    monkeypatch.setattr("mirage_formal.codegen.planning.distributions.fragment_layout", swapped)
    with pytest.raises(AssertionError):
        compare(graph)


def test_a_left_operand_in_registers_is_never_taken_for_a_right_one() -> None:
    """Accumulators of C^T are no fragments of a right operand; they go through shared memory."""
    shape = ProductShape(8, 64, 64, 1, deferred=False)
    later = replace(shape, source=0)
    warps = Warps(1, 4, 1)
    assert layout.can_pack(shape, warps, later, Warps(1, 1, 4))
    for a in (warps, replace(warps, transposed=True)):
        for b in (Warps(1, 1, 4), Warps(1, 1, 4, True)):
            assert layout.can_pack(shape, a, later, b) is not (a.transposed or b.transposed)
