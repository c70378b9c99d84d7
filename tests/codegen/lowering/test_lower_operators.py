"""Every operator, shape, element type and stride, the generic way and in registers, against the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest

from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.step import GenericOperation, Map, Multiplication
from mirage_formal.codegen.safety.obligation_types import Safe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.device import emulate
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, Shape
from tests.kit.graphs.function_values import METHODS
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels import program_interpreter
from tests.kit.kernels.example_kernels import alone, compare, inputs_for, planned
from tests.kit.sampling import number

K = OpKind
N = None
BOTH = pytest.mark.parametrize("generic", [True, False], ids=["generic", "auto"])


def kernel(
    shapes: Sequence[Shape],
    inputs: Sequence[InputIterator],
    ops: Sequence[BlockOp],
    outputs: Sequence[tuple[int, DimMap]],
    *,
    grid: Dim3 = (1, 1, 1),
    loop: int = 1,
    dimx: int = 4,
    dtype: DType = DType.FLOAT16,
    strides: Mapping[int, tuple[int, ...]] | None = None,
) -> KernelGraph:
    savers = tuple(OutputSaver(number, omap) for number, omap in outputs)
    block = BlockGraph(grid, (128, 1, 1), loop, dimx, tuple(inputs), tuple(ops), savers)
    tensors = [DTensor(shape, dtype) for shape in shapes]
    return alone(GraphDefined(tuple(range(len(shapes))), block), tensors, strides)


NONE = (N, N, N)
ROWS = (0, N, N)


def elementwise(ops: Sequence[BlockOp], shapes: Sequence[Shape], **more: Any) -> KernelGraph:
    """A kernel that applies operators behind an accumulator of each input, two blocks along dim 0."""
    count = len(shapes)
    sums = [op(K.ACCUM_SUM, i) for i in range(count)]
    total = 2 * count + sum(item.results for item in ops)
    maps = [ROWS if shape[0] % 2 == 0 else NONE for shape in shapes]
    return kernel(shapes, [load(m) for m in maps], [*sums, *ops], [(total - 1, ROWS)], grid=(2, 1, 1), **more)


@BOTH
@pytest.mark.parametrize("kind", METHODS)
def test_unary(kind: OpKind, generic: bool) -> None:
    graph = elementwise([op(kind, 1)], [(6, 40)])
    compare(graph, generic=generic, arrays=inputs_for(graph, low=0.01))


@BOTH
@pytest.mark.parametrize("kind", [K.ADD, K.SUB, K.MUL, K.DIV, K.MAXIMUM, K.MINIMUM])
@pytest.mark.parametrize(
    "shapes",
    [((6, 40), (6, 40)), ((6, 40), (6, 1)), ((6, 40), (1, 40)), ((6, 1), (1, 40)), ((6, 3), (1, 1)), ((6,), (1,))],
)
def test_binary_with_broadcast(kind: OpKind, shapes: Sequence[Shape], generic: bool) -> None:
    graph = elementwise([op(kind, 2, 3)], list(shapes))
    compare(graph, generic=generic, arrays=inputs_for(graph, low=0.1))


@BOTH
def test_broadcast_of_middle_dims(generic: bool) -> None:
    graph = elementwise([op(K.MUL, 2, 3)], [(4, 3, 8), (4, 1, 8)])
    compare(graph, generic=generic)
    graph = elementwise([op(K.ADD, 2, 3), op(K.EXP, 4), op(K.SUM, 5, dim=2)], [(2, 3, 5, 8), (1, 3, 1, 8)])
    compare(graph, generic=generic)


@BOTH
@pytest.mark.parametrize("kind", [K.SUM, K.MEAN, K.MAX])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 6, 16), (2, 1, 40), (2, 33, 5)])
def test_reductions_over_any_dim(kind: OpKind, dim: int, shape: Shape, generic: bool) -> None:
    graph = kernel([shape], [load(NONE)], [op(K.ACCUM_SUM, 0), op(K.EXP, 1), op(kind, 2, dim=dim)], [(3, NONE)])
    compare(graph, generic=generic)


@BOTH
def test_sums_of_products_of_square_matrices(generic: bool) -> None:
    """Operand, product and sum have one shape, and still an element of the product is of others' elements."""
    ops = [op(K.RELU, 0), op(K.MATMUL, 2, 1), op(K.ACCUM_SUM, 3)]
    graph = kernel([(16, 48), (48, 16)], [load(NONE, 1), load(NONE, 0)], ops, [(4, NONE)], loop=3)
    _, program = planned(graph, generic=generic)
    assert isinstance(discharge_safety(program).verdict, Safe)
    compare(graph, generic=generic)


@BOTH
@pytest.mark.parametrize("dimx", [4, 8, 24])
@pytest.mark.parametrize(("shape", "dim"), [((3, 48), 1), ((5, 96), 1), ((48, 5), 0), ((40, 480), 1)])
def test_sum_to_other_dimx(shape: Shape, dim: int, dimx: int, generic: bool) -> None:
    ops = [op(K.SQUARE, 0), op(K.ACCUM_SUM, 1), op(K.SUM_TO_DIMX, 2, dim=dim)]
    compare(kernel([shape], [load(NONE)], ops, [(3, NONE)], dimx=dimx), generic=generic)


@BOTH
@pytest.mark.parametrize(("shape", "dim"), [((3, 16), 1), ((3, 64), 1), ((16, 3), 0), ((2, 12, 8), 1), ((200, 8), 1)])
@pytest.mark.parametrize("loop", [1, 2])
def test_sum_to_dimx(shape: Shape, dim: int, loop: int, generic: bool) -> None:
    whole = (*shape[:-1], shape[-1] * loop)
    ops = [op(K.SQUARE, 0), op(K.SUM_TO_DIMX, 1, dim=dim), op(K.ACCUM_SUM, 2)]
    compare(kernel([whole], [load(NONE, len(shape) - 1)], ops, [(3, NONE)], loop=loop), generic=generic)
    if dim == len(shape) - 1:
        ops = [op(K.ACCUM_SUM_TO_DIMX, 0)]
        compare(kernel([whole], [load(NONE, dim)], ops, [(1, NONE)], loop=loop), generic=generic)


@BOTH
@pytest.mark.parametrize("shape", [(4, 64), (6, 520), (2, 7), (3, 2048)])
def test_norms(shape: Shape, generic: bool) -> None:
    weights = [op(K.RMS_NORM, 3, 4, dim=1, eps=Fraction(1, 1000)), op(K.LAYER_NORM, 6, 4, 5, dim=1)]
    ops = [op(K.ACCUM_SUM, i) for i in range(3)] + weights
    shapes = [shape, (1, shape[1]), (1, shape[1])]
    graph = kernel(shapes, [load(NONE)] * 3, ops, [(6, NONE), (7, NONE)])
    compare(graph, generic=generic, tolerance=8e-3)
    # Along the rows.
    graph = kernel([shape], [load(NONE)], [op(K.ACCUM_SUM, 0), op(K.RMS_NORM, 1, dim=0)], [(2, NONE)])
    compare(graph, generic=generic)


@BOTH
@pytest.mark.parametrize("dim", [0, 1])
def test_concat_and_repeat(dim: int, generic: bool) -> None:
    shapes = [(4, 8), (4, 8)]
    ops = [op(K.CONCAT, 0, 1, dim=dim), op(K.SQUARE, 2), op(K.ACCUM_SUM, 3)]
    compare(kernel(shapes, [load(NONE)] * 2, ops, [(4, NONE)]), generic=generic)
    ops = [op(K.SUM, 0, dim=dim), op(K.REPEAT, 1, dim=dim, times=5), op(K.EXP, 2), op(K.ACCUM_SUM, 3)]
    compare(kernel(shapes[:1], [load(NONE)], ops, [(4, NONE)]), generic=generic)
    ops = [op(K.SUM, 0, dim=dim), op(K.REPEAT, 1, dim=dim, times=5), op(K.ACCUM_SUM, 2)]
    compare(kernel(shapes[:1], [load(NONE)], ops, [(3, NONE)]), generic=generic)


@BOTH
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_cast_and_scale(dtype: DType, generic: bool) -> None:
    ops = [op(K.SCALE, 0, factor=Fraction(3, 7)), op(K.CAST, 1, dtype=dtype), op(K.ACCUM_SUM, 2)]
    compare(kernel([(4, 24)], [load(NONE)], ops, [(3, NONE)]), generic=generic, tolerance=1e-2)


@BOTH
@pytest.mark.parametrize("loop", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [K.ACCUM_SUM, K.ACCUM_SUM_LAST, K.ACCUM_MEAN_LAST, K.ACCUM_RMS_LAST, K.ACCUM_MAX, K.ACCUM_SUM_TO_DIMX],
)
@pytest.mark.parametrize("rank", [2, 3])
def test_accumulators(kind: OpKind, loop: int, rank: int, generic: bool) -> None:
    shape = (6, 16 * loop) if rank == 2 else (2, 3, 16 * loop)
    ops = [op(K.EXP, 0), op(kind, 1), op(K.SQUARE, 2)]
    graph = kernel([shape], [load(ROWS, rank - 1)], ops, [(3, ROWS)], grid=(2, 1, 1), loop=loop)
    compare(graph, generic=generic)


@BOTH
@pytest.mark.parametrize("loop", [1, 3])
@pytest.mark.parametrize("dim", [0, 1])
def test_accumulated_concat(loop: int, dim: int, generic: bool) -> None:
    ops = [op(K.EXP, 0), op(K.ACCUM_CONCAT, 1, dim=dim), op(K.SUM, 2, dim=1), op(K.SUB, 2, 3)]
    graph = kernel([(4, 8 * loop)], [load(NONE, 1)], ops, [(4, NONE)], loop=loop)
    compare(graph, generic=generic)


@BOTH
def test_invariant_tensors(generic: bool) -> None:
    """What does not depend on the loop is computed once, and accumulated in every iteration all the same."""
    ops = [op(K.EXP, 0), op(K.SUM, 2, dim=1), op(K.MUL, 3, 1), op(K.ACCUM_SUM, 4), op(K.ACCUM_SUM, 2)]
    graph = kernel([(4, 24), (4, 48)], [load(NONE), load(NONE, 1)], ops, [(5, NONE), (6, NONE)], loop=3)
    compare(graph, generic=generic)


@BOTH
def test_thread_graphs(generic: bool) -> None:
    inner = ThreadGraph(2, (Op(K.EXP, (0,)), Op(K.MUL, (2, 1)), Op(K.SQUARE, (3,))), (3, 4))
    ops: list[BlockOp] = [op(K.ACCUM_SUM, 0), op(K.ACCUM_SUM, 1), ThreadDefined((2, 3), inner), op(K.SUM, 5, dim=1)]
    graph = kernel([(4, 24), (1, 24)], [load(NONE)] * 2, ops, [(4, NONE), (6, NONE)])
    compare(graph, generic=generic)


@BOTH
def test_inputs_written_out_again(generic: bool) -> None:
    compare(kernel([(4, 24)], [load(ROWS)], [op(K.ACCUM_SUM, 0)], [(1, ROWS)], grid=(2, 1, 1)), generic=generic)


# --- products


def on_tensor_cores(plan: Plan) -> int:
    steps = (*plan.before, *plan.loop, *plan.after)
    return sum(isinstance(s, Multiplication) for s in steps)


def product(m: int, n: int, k: int, loop: int = 1, **more: Any) -> KernelGraph:
    ops = [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2)]
    return kernel([(m, k * loop), (k * loop, n)], [load(NONE, 1), load(NONE, 0)], ops, [(3, NONE)], loop=loop, **more)


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("loop", [1, 2, 5])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(16, 8, 16), (1, 48, 64), (5, 24, 40), (33, 6, 24), (2, 40, 7), (100, 72, 32), (128, 128, 16)]
)
def test_products(m: int, n: int, k: int, loop: int, generic: bool) -> None:
    # The generic way is slow in the interpreter; as many iterations as slots of a ring are enough for it.
    loop = min(loop, number(3, 5)) if generic else loop
    plan, _, _ = compare(product(m, n, k, loop), generic=generic)
    assert on_tensor_cores(plan) == (0 if generic else 1)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT32])
def test_products_of_other_types(dtype: DType) -> None:
    plan, _, _ = compare(product(20, 24, 32, 2, dtype=dtype))
    assert on_tensor_cores(plan) == 1


@BOTH
@pytest.mark.parametrize("transposed", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 24, 32), (40, 16, 24), (12, 20, 9)])
def test_columns_first(transposed: tuple[int, ...], m: int, n: int, k: int, generic: bool) -> None:
    loop = 2
    strides = {0: (1, m), 1: (1, k * loop)}
    graph = product(m, n, k, loop, strides={i: strides[i] for i in transposed})
    plan, _, _ = compare(graph, generic=generic)
    assert on_tensor_cores(plan) == (0 if generic else 1)


def test_padded_strides() -> None:
    """Rows that are longer than the tensor, aligned for 16-byte copies or not."""
    for pitch in (40, 43):
        graph = product(16, 24, 32, strides={1: (pitch, 1)})
        plan, program, _ = compare(graph)
        copies = str(program.body).count("CopyAsync(buffer='s1'")
        assert (copies > 0) == (pitch == 40)
        assert plan.params[1].elements == 31 * pitch + 24


@BOTH
@pytest.mark.parametrize("m", [16, 100])
def test_products_that_read_products(m: int, generic: bool) -> None:
    ops = [
        op(K.MATMUL, 0, 1),
        op(K.EXP, 3),
        op(K.MATMUL, 4, 2),
        op(K.ACCUM_SUM, 5),
        op(K.SUM, 4, dim=1),
        op(K.ACCUM_SUM, 7),
        op(K.DIV, 6, 8),
    ]
    shapes = [(m, 32), (32, 96), (96, 40)]
    graph = kernel(shapes, [load(NONE), load(NONE, 1), load(NONE, 0)], ops, [(9, NONE)], loop=3)
    compare(graph, generic=generic)
    # The result as the right operand.
    ops = [op(K.MATMUL, 0, 1), op(K.SCALE, 3, factor=Fraction(1, 4)), op(K.MATMUL, 2, 4), op(K.ACCUM_SUM, 5)]
    shapes = [(m, 32), (32, 48), (24, m)]
    compare(kernel(shapes, [load(NONE)] * 3, ops, [(6, NONE)]), generic=generic, tolerance=8e-3)


@BOTH
def test_online_softmax(generic: bool) -> None:
    """Running maximum and rescaled sums; values that overflow float16 without them."""
    ops = [
        op(K.MATMUL, 0, 1),
        op(K.RUNNING_MAX, 3, dim=2),
        op(K.SUB, 3, 4),
        op(K.EXP, 6),
        op(K.MATMUL, 7, 2),
        op(K.ACCUM_RESCALED_SUM, 8, 5),
        op(K.ACCUM_RESCALED_SUM_LAST, 7, 5),
        op(K.DIV, 9, 10),
    ]
    shapes = [(1, 32, 64), (1, 64, 128), (1, 128, 64)]
    inputs = [load(NONE), load(NONE, 2), load(NONE, 1)]
    graph = kernel(shapes, inputs, ops, [(11, NONE)], loop=4)
    arrays = inputs_for(graph, scale=1.5)
    compare(graph, generic=generic, arrays=arrays)


def test_two_products_that_meet_share_a_distribution() -> None:
    ops = [op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.ACCUM_SUM, 3), op(K.ACCUM_SUM, 4), op(K.MUL, 5, 6)]
    shapes = [(64, 64), (64, 64), (64, 64)]
    graph = kernel(shapes, [load(NONE, 1), load(NONE, 0), load(NONE, 0)], ops, [(7, NONE)], loop=2)
    plan, _ = planned(graph)
    compare(graph)
    placements = [plan.tensors[n].placement for n in (5, 6, 7)]
    assert len({placement.registers for placement in placements}) == 1
    assert all(placement.shared is None for placement in placements)


@pytest.mark.parametrize(("shape", "dim", "times"), [((2, 1, 64), 1, 12), ((2, 1, 36), 1, 5), ((6, 1), 1, 24)])
def test_what_is_repeated_for_a_result_goes_through_registers(shape: Shape, dim: int, times: int) -> None:
    """Its elements are loaded and stored as vectors, not one by one through shared memory."""
    ops = [op(K.REPEAT, 0, dim=dim, times=times), op(K.ACCUM_SUM, 1)]
    graph = kernel([shape], [load(ROWS)], ops, [(2, ROWS)], grid=(2, 1, 1))
    for run in (program_interpreter.run, emulate.run_kernel):
        plan, program, worst = compare(graph, run=run)
        assert worst == 0
    assert not plan.buffers
    assert any(isinstance(step, Map) for step in plan.before)
    assert not any(isinstance(step, GenericOperation) for step in plan.before)
    assert isinstance(discharge_safety(program).verdict, Safe)
