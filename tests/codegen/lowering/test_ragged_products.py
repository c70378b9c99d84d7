"""Products whose depth is no whole number of steps of 16: on tensor cores all the same, and nothing beyond it counts.

Memory that nobody wrote is a fault to both interpreters, and so is a register: nothing ragged may rest on what happens
to lie there.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.lowering import stores
from mirage_formal.codegen.planning import layout
from mirage_formal.codegen.program.flat_graph import Product
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import CopyAsync, Real, Registers, SetReg, SharedWrite
from mirage_formal.codegen.program.register_layout import Warps
from mirage_formal.codegen.program.serialization import decode_programs, encode_programs
from mirage_formal.codegen.program.step import GenericOperation, Multiplication
from mirage_formal.codegen.safety.obligation_types import Safe, Unsafe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import emulate
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.semantics.float64_reference import run as reference
from tests.codegen.lowering.test_lower import statements
from tests.codegen.lowering.test_lower_operators import NONE, kernel
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import compare, inputs_for, laid_out, planned

K = OpKind
DEPTHS = (1, 5, 16, 17, 33, 77, 100, 257)
#: Relative to the largest value, of products of float32: what one product of TF32 alone would be is 500 times that.
SINGLE = 2e-6


def chained(m: int, depth: int, n: int, loop: int = 1, **more: Any) -> KernelGraph:
    """exp(A B) C: the left operand of the second product is computed, and may stay in registers."""
    ops = [op(K.MATMUL, 0, 1), op(K.EXP, 3), op(K.MATMUL, 4, 2), op(K.ACCUM_SUM, 5)]
    shapes = [(m, 24), (24, depth * loop), (depth * loop, n)]
    inputs = [load(NONE), load(NONE, 1 if loop > 1 else None), load(NONE, 0 if loop > 1 else None)]
    return kernel(shapes, inputs, ops, [(6, NONE)], loop=loop, **more)


def mapped(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """exp(A) B: the left operand is computed, and read in shared memory."""
    ops = [op(K.EXP, 0), op(K.MATMUL, 2, 1), op(K.ACCUM_SUM, 3)]
    return kernel([(m, depth), (depth, n)], [load(NONE)] * 2, ops, [(4, NONE)], **more)


def right(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """A (B C / 4): the right operand is computed."""
    ops = [op(K.MATMUL, 0, 1), op(K.SCALE, 3, factor=Fraction(1, 4)), op(K.MATMUL, 2, 4), op(K.ACCUM_SUM, 5)]
    return kernel([(depth, 24), (24, n), (m, depth)], [load(NONE)] * 3, ops, [(6, NONE)], **more)


def square(m: int, depth: int, n: int, **more: Any) -> KernelGraph:
    """E E with E = exp(A): one tensor is both operands of a product."""
    ops = [op(K.EXP, 0), op(K.MATMUL, 1, 1), op(K.ACCUM_SUM, 2)]
    return kernel([(depth, depth)], [load(NONE)], ops, [(3, NONE)], **more)


def products(plan: Plan) -> list[Multiplication]:
    """The products on tensor cores; there are no others."""
    steps = (*plan.before, *plan.loop, *plan.after)
    assert not any(isinstance(step, GenericOperation) and isinstance(step.op, Product) for step in steps)
    return [step for step in steps if isinstance(step, Multiplication)]


def right_everywhere(graph: KernelGraph, tolerance: float = 8e-3) -> Plan:
    """Emulated and interpreted within rounding of float64, safe, and no product is a loop over scalars."""
    arrays = inputs_for(graph)
    plan, program, _ = compare(graph, arrays=arrays, tolerance=tolerance, run=emulate.run_kernel)
    compare(graph, arrays=arrays, tolerance=tolerance)
    verdict = discharge_safety(program).verdict
    assert isinstance(verdict, Safe), verdict
    assert products(plan)
    assert "dot_" not in emit_cuda(program)
    return plan


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("make", [chained, mapped, right])
def test_every_depth_on_tensor_cores(make: Callable[..., KernelGraph], depth: int) -> None:
    right_everywhere(make(20, depth, 21))
    right_everywhere(make(20, depth, 21, dtype=DType.FLOAT32), tolerance=SINGLE)


@pytest.mark.parametrize(("m", "depth", "n"), [(64, 9, 8), (100, 40, 3), (64, 77, 64)])
def test_accumulators_of_odd_extents_stay_in_registers(m: int, depth: int, n: int) -> None:
    """The second product takes the first one's accumulators, with an odd number of tiles a warp or an even one."""
    for dtype, tolerance in ((DType.FLOAT16, 8e-3), (DType.FLOAT32, SINGLE)):
        plan = right_everywhere(chained(m, depth, n, dtype=dtype), tolerance)
        assert [step.packed for step in products(plan)] == [False, True]


@pytest.mark.parametrize("make", [chained, mapped, right, square])
def test_bfloat16(make: Callable[..., KernelGraph]) -> None:
    right_everywhere(make(33, 21, 9, dtype=DType.BFLOAT16), tolerance=6e-2)


@pytest.mark.parametrize("depth", [3, 24, 50])
def test_in_a_loop(depth: int) -> None:
    """Every iteration is ragged, and its padding is written anew."""
    right_everywhere(chained(40, depth, 16, loop=3))
    right_everywhere(chained(40, depth, 16, loop=3, dtype=DType.FLOAT32), SINGLE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [7, 34])
@pytest.mark.parametrize(("dtype", "tolerance"), [(DType.FLOAT16, 8e-3), (DType.FLOAT32, SINGLE)])
def test_columns_first(depth: int, dtype: DType, tolerance: float) -> None:
    """Inputs whose columns are next to each other in memory."""
    strides = {0: (1, 20), 1: (1, 24), 2: (1, depth)}
    right_everywhere(chained(20, depth, 12, strides=strides, dtype=dtype), tolerance)
    strides = {0: (1, depth), 1: (1, 24), 2: (1, 20)}
    right_everywhere(right(20, depth, 12, strides=strides, dtype=dtype), tolerance)
    right_everywhere(mapped(20, depth, 12, strides={0: (1, 20), 1: (1, depth)}, dtype=dtype), tolerance)


def test_accumulators_are_written_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a place that is padded, whatever the columns: the last pair's second element is a zero of the padding."""
    parts(monkeypatch, Warps(2, 2, 1), Warps(1, 4, 1))
    graph = chained(20, 33, 24)
    plan = right_everywhere(graph)
    assert not products(plan)[1].packed
    shared = [s for s in statements(planned(graph)[1].body) if isinstance(s, SharedWrite) and s.buffer == "s4"]
    assert {len(s.values) for s in shared} == {1, 2, 8}
    assert all(s.values == (Real(0.0),) * len(s.values) for s in shared if len(s.values) != 2)


COPIES = [
    # dtype, rows, columns, strides of the right operand, loop, bytes of its copies
    (DType.FLOAT16, 24, 40, (40, 1), 1, 16),
    (DType.FLOAT16, 24, 44, (44, 1), 1, 8),
    (DType.FLOAT16, 24, 44, (46, 1), 3, 4),
    (DType.FLOAT16, 24, 42, (48, 1), 3, 4),
    (DType.FLOAT16, 24, 43, (48, 1), 1, 0),
    (DType.FLOAT16, 24, 44, (45, 1), 1, 0),
    (DType.BFLOAT16, 20, 44, (1, 60), 3, 8),
    (DType.FLOAT32, 24, 9, (9, 1), 3, 4),
    (DType.FLOAT32, 24, 10, (12, 1), 1, 8),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", COPIES, ids=str)
def test_the_widest_copies_that_alignment_allows(case: tuple[Any, ...]) -> None:
    """Of 16, 8 or 4 bytes, asynchronous and in a ring where there is a loop; element by element for odd ones."""
    dtype, k, n, strides, loop, size = case
    ops = [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2)]
    inputs = [load(NONE, 1 if loop > 1 else None), load(NONE, 0 if loop > 1 else None)]
    graph = kernel(
        [(18, k * loop), (k * loop, n)], inputs, ops, [(3, NONE)], loop=loop, dtype=dtype, strides={1: strides}
    )
    tolerance = 6e-2 if dtype is DType.BFLOAT16 else 8e-3
    plan, program, _ = compare(graph, run=emulate.run_kernel, tolerance=tolerance)
    compare(graph, tolerance=tolerance)
    verdict = discharge_safety(program).verdict
    assert isinstance(verdict, Safe), verdict
    copies = [s.bytes for s in statements(program.body) if isinstance(s, CopyAsync) and s.buffer == "s1"]
    assert set(copies) == ({size} if size else set())
    assert (1 in plan.ring) == (size > 0 and loop > 1)
    assert decode_programs(encode_programs((program,))) == (program,)
    if nvrtc.available():
        assert nvrtc.compile(emit_cuda(program), "sm_90a").spill_bytes == 0


def test_elements_of_ragged_rows_are_loaded_together() -> None:
    """Rows that no vector fits: several loads of a thread stand before its first store."""
    _, program, _ = compare(mapped(40, 77, 33), run=emulate.run_kernel)
    loads = [s for s in statements(program.body) if isinstance(s, SetReg) and s.array.startswith("e_")]
    (count,) = (s.count for s in statements(program.body) if isinstance(s, Registers) and s.name.startswith("e_"))
    assert len(loads) == 1
    assert 8 <= count <= 16


def test_both_sides_of_one_tensor() -> None:
    right_everywhere(square(0, 19, 0))


def parts(monkeypatch: pytest.MonkeyPatch, *wanted: Warps) -> None:
    """Products are cut in these ways."""
    monkeypatch.setattr(
        "mirage_formal.codegen.planning.schedules.choose_warps", lambda shapes, count: wanted[: len(shapes)]
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", [1, 9, 17, 40, 77, 121])
@pytest.mark.parametrize("cols", [1, 2, 4])
def test_every_way_to_cut_accumulators(depth: int, cols: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps whose parts are ragged, half empty or empty."""
    parts(monkeypatch, Warps(4 // cols, cols, 1), Warps(4 // cols, 1, cols))
    plan = right_everywhere(chained(20, depth, 24))
    assert products(plan)[1].packed


@pytest.mark.parametrize("depth", [5, 33, 77])
def test_uneven_parts_of_operands_in_shared_memory(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where accumulators do not fit the cut that was chosen for them: both operands are padded for all warps."""
    parts(monkeypatch, Warps(2, 2, 1), Warps(1, 1, 4))
    plan = right_everywhere(chained(20, depth, 24))
    assert not products(plan)[1].packed


@pytest.mark.parametrize("cols", [1, 2, 4])
def test_nothing_is_multiplied_by_what_lies_beyond(cols: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One infinite element in each row of C in turn: its column is infinite, and never 0 times infinity."""
    parts(monkeypatch, Warps(4 // cols, cols, 1), Warps(4 // cols, 1, cols))
    graph = chained(16, 41, 48)
    arrays = inputs_for(graph)
    for row in range(41):
        arrays[2][row, row] = np.inf
    _, program = planned(graph)
    (found,) = emulate.run_kernel(program, [laid_out(a, item) for a, item in zip(arrays, graph.inputs, strict=True)])
    with np.errstate(invalid="ignore"):
        (wanted,) = reference(graph, arrays)
    values: NDArray[Any] = np.asarray(found, np.float64).reshape(wanted.shape)
    assert (values[:, :41] == np.inf).all()
    assert np.isfinite(values[:, 41:]).all()


# --- the easy wrong versions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mapped, right])
def test_padding_that_is_not_written_is_found(
    make: Callable[..., KernelGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "padding", lambda cx, number: ())
    graph = make(20, 21, 13)
    _, program = planned(graph)
    assert isinstance(discharge_safety(program).verdict, Unsafe)
    with pytest.raises(emulate.EmulationFault):
        compare(graph, run=emulate.run_kernel)


def test_padding_of_ones_gives_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both operands are computed; zeros of an input alone would hide it."""
    monkeypatch.setattr(stores, "Real", lambda value: Real(1.0))
    with pytest.raises(AssertionError):
        compare(square(0, 19, 0), run=emulate.run_kernel)


def test_rows_that_are_not_padded_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that end with the depth: ldmatrix would leave its buffer, and obligations say so."""
    monkeypatch.setattr("mirage_formal.codegen.planning.mma_selection.inner_extent", lambda inner, warps, packed: inner)
    _, program = planned(right(20, 21, 16))
    assert isinstance(discharge_safety(program).verdict, Unsafe)


@pytest.mark.parametrize("inner", [1, 16, 17, 33, 257])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_depth_covers_every_position(inner: int, count: int, packed: bool) -> None:
    """At least the inner extent, at most what all warps together could take, and no more where it is whole."""
    found = layout.inner_extent(inner, Warps(1, 1, count), packed=packed)
    assert inner <= found < inner + 16 * count + 16
    if inner % (16 * count) == 0:
        assert found == inner
