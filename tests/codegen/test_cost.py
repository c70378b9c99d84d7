"""The cost model: facts that any roofline must respect, and rough agreement with measured kernels on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_formal.codegen.cost import CANNOT_LAUNCH_US, Cost, block_cost, estimate
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
)
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, Shape, row_major
from mirage_formal.graph.verifier import kernel_types, shared_bytes
from mirage_formal.search.thread import fuse_threads
from mirage_formal.support.errors import GraphError
from tests.kit.processes import calls

H200 = load_target("h200")
X, Y, XY, NONE = (0, None, None), (None, 0, None), (0, 1, None), (None, None, None)


def t(*shape: int) -> DTensor:
    return DTensor(tuple(shape), DType.FLOAT16)


def inputs(*shapes: Shape) -> tuple[Input, ...]:
    return tuple(Input(f"t{i}", t(*shape), row_major(shape)) for i, shape in enumerate(shapes))


def block(
    grid: Dim3,
    loop: int,
    iterators: Sequence[tuple[DimMap, int | None]],
    ops: Sequence[BlockOp],
    savers: Sequence[tuple[int, DimMap]],
) -> BlockGraph:
    return BlockGraph(
        grid,
        (128, 1, 1),
        loop,
        64,
        tuple(InputIterator(*i) for i in iterators),
        tuple(ops),
        tuple(OutputSaver(*o) for o in savers),
    )


def one_kernel(shapes: list[Shape], graph: BlockGraph) -> KernelGraph:
    first = len(shapes)
    op = GraphDefined(tuple(range(first)), graph)
    return KernelGraph(inputs(*shapes), (op,), tuple(range(first, first + len(graph.outputs))))


def rms_norm(b: int, blocks: int = 96, loop: int = 32) -> KernelGraph:
    """Division after the product, one kernel."""
    graph = block(
        (blocks, 1, 1),
        loop,
        [(NONE, 1), ((1, None, None), 0)],
        [
            Op(OpKind.MATMUL, (0, 1)),
            Op(OpKind.ACCUM_SUM, (2,)),
            Op(OpKind.ACCUM_RMS_LAST, (0,)),
            Op(OpKind.DIV, (3, 4)),
        ],
        [(5, (1, None, None))],
    )
    return one_kernel([(2 * b, 4096), (4096, 6144)], graph)


def rms_norm_unfused(b: int) -> KernelGraph:
    ops = (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)), Op(OpKind.MATMUL, (2, 1)))
    return KernelGraph(inputs((2 * b, 4096), (4096, 6144)), ops, (3,))


def gated_mlp(b: int, blocks: int = 64, loop: int = 64) -> KernelGraph:
    graph = block(
        (blocks, 1, 1),
        loop,
        [(NONE, 1), ((1, None, None), 0), ((1, None, None), 0)],
        [
            Op(OpKind.MATMUL, (0, 1)),
            Op(OpKind.MATMUL, (0, 2)),
            Op(OpKind.ACCUM_SUM, (3,)),
            Op(OpKind.ACCUM_SUM, (4,)),
            Op(OpKind.SILU, (5,)),
            Op(OpKind.MUL, (7, 6)),
        ],
        [(8, (1, None, None))],
    )
    return one_kernel([(8 * b, 4096), (4096, 4096), (4096, 4096)], graph)


def lora(b: int) -> KernelGraph:
    graph = block(
        (128, 1, 1),
        1,
        [(NONE, None), ((1, None, None), None), (NONE, None), ((1, None, None), None)],
        [
            Op(OpKind.MATMUL, (0, 1)),
            Op(OpKind.MATMUL, (0, 2)),
            Op(OpKind.MATMUL, (5, 3)),
            Op(OpKind.ADD, (4, 6)),
            Op(OpKind.ACCUM_SUM, (7,)),
        ],
        [(8, (1, None, None))],
    )
    return one_kernel([(16 * b, 256), (256, 4096), (256, 16), (16, 4096)], graph)


def ntrans(b: int) -> KernelGraph:
    graph = block(
        (8 * b, 1, 1),
        1,
        [(X, None)] * 3,
        [
            Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)),
            Op(OpKind.ADD, (3, 1)),
            Op(OpKind.MUL, (4, 2)),
            Op(OpKind.ADD, (5, 1)),
            Op(OpKind.RMS_NORM, (6,), Attrs(dim=1)),
            Op(OpKind.ACCUM_SUM, (7,)),
        ],
        [(8, X)],
    )
    return one_kernel([(8 * b, 4096)] * 3, graph)


def gqa(b: int, splits: int, queries: int = 4, loop: int = 4) -> KernelGraph:
    """Keys split over ``splits`` blocks, exp(QK) in shared memory, combined by a second kernel."""
    q, k, v = (2 * b, 256, 64), (2 * b, 64, 4096), (2 * b, 4096, 64)
    first = block(
        (2 * b, queries, splits),
        loop,
        [((0, 1, None), None), ((0, None, 2), 2), ((0, None, 1), 1)],
        [
            Op(OpKind.MATMUL, (0, 1)),
            Op(OpKind.EXP, (3,)),
            Op(OpKind.MATMUL, (4, 2)),
            Op(OpKind.ACCUM_SUM, (5,)),
            Op(OpKind.ACCUM_SUM_LAST, (4,)),
        ],
        [(6, (0, 1, 2)), (7, (0, 1, 2))],
    )
    second = block(
        (2 * b, 16, 1),
        1,
        [((0, 1, None), None), ((0, 1, None), None)],
        [
            Op(OpKind.ACCUM_SUM_TO_DIMX, (0,)),
            Op(OpKind.ACCUM_SUM_LAST, (1,)),
            Op(OpKind.DIV, (2, 3)),
        ],
        [(4, (0, 1, None))],
    )
    return KernelGraph(inputs(q, k, v), (GraphDefined((0, 1, 2), first), GraphDefined((3, 4), second)), (5,))


def gqa_unfused(b: int) -> KernelGraph:
    ops = (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (3,)),
        Op(OpKind.SUM, (4,), Attrs(dim=2)),
        Op(OpKind.DIV, (4, 5)),
        Op(OpKind.MATMUL, (6, 2)),
    )
    return KernelGraph(inputs((2 * b, 256, 64), (2 * b, 64, 4096), (2 * b, 4096, 64)), ops, (7,))


MEASURED = [
    (rms_norm(1), 16.7),
    (rms_norm(8), 17.6),
    (rms_norm(16), 18.4),
    (rms_norm(1, loop=64), 27.2),
    (gated_mlp(1, loop=32), 21.2),
    (gated_mlp(16, loop=32), 29.1),  # as generated; with wgmma by hand 24.6
    (lora(1), 3.55),
    (lora(8), 4.47),
    (ntrans(1), 1.9),
    (ntrans(16), 2.9),
    (gqa(1, 16), 6.6),
    (gqa(8, 4, queries=2, loop=8), 15.9),
    (gqa(16, 4, loop=16), 40.3),  # as generated; with wgmma by hand 25.5
]


@pytest.mark.parametrize(("graph", "measured"), MEASURED)
def test_it_is_near_measured_kernels_of_the_same_form(graph: KernelGraph, measured: float) -> None:
    assert 0.65 * measured <= estimate(graph, H200).us <= 1.6 * measured


#: cuBLAS on an H200: long sums with few results, rows of 392 bytes, and what it does well.
LIBRARY: list[tuple[Shape, Shape, float]] = [
    ((1, 262144), (262144, 16), 13.8),
    ((1, 262144), (262144, 1), 5.7),
    ((8, 64, 4096), (8, 4096, 64), 8.5),
    ((128, 3072), (3072, 768), 7.9),
    ((128, 768), (768, 768), 4.1),
    ((1536, 196), (196, 384), 7.3),
    ((1536, 384), (384, 196), 7.4),
    ((8, 4096), (4096, 4096), 13.4),
    ((512, 768), (768, 4096), 7.6),
    ((128, 14336), (14336, 4096), 37.8),
]


@pytest.mark.parametrize(("left", "right", "measured"), LIBRARY)
def test_it_is_near_measured_products_of_the_library(left: Shape, right: Shape, measured: float) -> None:
    graph = KernelGraph(inputs(left, right), (Op(OpKind.MATMUL, (0, 1)),), (2,))
    assert 0.65 * measured <= estimate(graph, H200).us <= 1.3 * measured


def test_products_of_float32_by_the_library_take_no_tensor_cores() -> None:
    """cuBLAS multiplies float32 as float32: 137 G operations take at least what 66.9 T of them a second allow."""
    narrow, wide = (
        tuple(
            Input(f"x{i}", DTensor(shape, dtype), row_major(shape))
            for i, shape in enumerate(((1024, 8192), (8192, 8192)))
        )
        for dtype in (DType.FLOAT16, DType.FLOAT32)
    )
    times = [estimate(KernelGraph(own, (Op(OpKind.MATMUL, (0, 1)),), (2,)), H200).us for own in (narrow, wide)]
    peak = 2 * 1024 * 8192 * 8192 / (H200.vector_tflops * 1e6)
    assert peak <= times[1] <= 1.6 * peak
    assert times[0] < 0.2 * times[1]


def test_what_follows_a_product_is_near_its_measured_time() -> None:
    """relu of [512,3072], which the product before it has left in L2: 2.0 us on an H200."""
    ops = (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.RELU, (2,)))
    _, relu = estimate(KernelGraph(inputs((512, 768), (768, 3072)), ops, (3,)), H200).kernels
    assert 0.65 * 2.0 <= relu.us <= 1.35 * 2.0
    assert relu.device_bytes == 0


@pytest.mark.parametrize("b", [1, 8, 16])
def test_fused_forms_beat_library_operators(b: int) -> None:
    assert estimate(rms_norm(b), H200).us < estimate(rms_norm_unfused(b), H200).us
    assert estimate(gqa(b, 16 if b == 1 else 4), H200).us < 0.6 * estimate(gqa_unfused(b), H200).us


MODEL = ("scalar_step_clocks", "scalar_step_slots", "element_copy_slots")
#: The H200, were what is done element by element a hundred times slower.
SLOW = replace(H200, model=replace(H200.model, **{name: 100 * getattr(H200.model, name) for name in MODEL}))


def fused(shapes: list[Shape], strides: dict[int, tuple[int, ...]] | None = None) -> Cost:
    """A product of two whole inputs by one block, on the slow H200."""
    ops = [Op(OpKind.MATMUL, (0, 1)), Op(OpKind.ACCUM_SUM, (2,))]
    graph = block((1, 1, 1), 1, [(NONE, None)] * 2, ops, [(3, NONE)])
    given = tuple(Input(f"t{i}", t(*shape), (strides or {}).get(i, row_major(shape))) for i, shape in enumerate(shapes))
    return estimate(KernelGraph(given, (GraphDefined((0, 1), graph),), (2,)), SLOW)


def test_multiples_of_8_are_charged_nothing_for_elements() -> None:
    for graph, _ in MEASURED:
        assert estimate(graph, SLOW) == estimate(graph, H200)


@pytest.mark.parametrize(
    ("shapes", "strides", "charged"),
    [
        ([(64, 64), (64, 64)], {}, None),
        ([(64, 77), (77, 64)], {}, "both"),
        ([(77, 64), (64, 64)], {}, None),  # odd rows, each of whole copies
        ([(64, 64), (64, 77)], {1: (1, 64)}, None),  # the same with columns first
        ([(64, 64), (64, 64)], {1: (65, 1)}, "both"),
        ([(64, 64), (64, 64)], {1: (66, 1)}, "slots"),  # 4 bytes a copy, and no wait
        ([(64, 68), (68, 64)], {}, "slots"),
    ],
)
def test_narrow_copies_are_charged(shapes: list[Shape], strides: dict[int, tuple[int, ...]], charged: str) -> None:
    (found,) = fused(shapes, strides).kernels
    (wide,) = fused([tuple(-(-n // 8) * 8 for n in shape) for shape in shapes]).kernels
    assert (found.other_flops > wide.other_flops) == (charged is not None)
    assert (found.path_us > wide.path_us) == (charged == "both")


def test_scalar_products_take_what_they_took() -> None:
    """36 x 257 x 64 for each of 128 blocks as a loop of scalars: 60 us on an H200, both operands being float32."""
    graph = block((128, 1, 1), 1, [(X, None)] * 2, [Op(OpKind.MATMUL, (0, 1)), Op(OpKind.ACCUM_SUM, (2,))], [(3, X)])
    types = [DTensor((128, 36, 257), DType.FLOAT32), DTensor((128, 257, 64), DType.FLOAT16)]
    cost, _ = block_cost(graph, types, H200)
    assert 0.65 * 60 <= cost.us <= 1.6 * 60
    for dtype in (DType.FLOAT16, DType.FLOAT32):
        alike, _ = block_cost(graph, [DTensor(x.shape, dtype) for x in types], H200)
        assert alike.us < 0.2 * cost.us
    assert cost.tensor_flops == 0


def test_a_kernel_behind_a_kernel_has_a_shorter_launch() -> None:
    """Not the first one of a call, and none beside a product of the library."""
    slow, quick = (
        replace(H200, model=replace(H200.model, dependent_launch_us=H200.model.launch_us - saved)) for saved in (0, 0.5)
    )
    chained = KernelGraph(
        (Input("x", t(64, 64), (64, 1)),),
        (*(Op(OpKind.EXP, (i,)) for i in range(3)), Op(OpKind.MATMUL, (3, 3)), *(Op(OpKind.EXP, (i,)) for i in (4, 5))),
        (6,),
    )
    before, after = estimate(chained, slow), estimate(chained, quick)
    saved = [round(x.us - y.us, 9) for x, y in zip(before.kernels, after.kernels, strict=True)]
    assert saved == [0, 0.5, 0.5, 0, 0, 0.5]
    assert after.us == pytest.approx(before.us - 1.5)


def test_splitting_the_keys_pays_when_there_are_few_blocks() -> None:
    assert estimate(gqa(1, 16, loop=4), H200).us < estimate(gqa(1, 2, loop=32), H200).us


def test_too_few_blocks_cannot_saturate_the_bandwidth() -> None:
    few, many = (estimate(rms_norm(1, blocks, 16), H200).kernels[0] for blocks in (8, 96))
    assert few.memory_us > 4 * many.memory_us
    assert few.device_bytes == many.device_bytes


def test_a_chain_of_rounds_waits_for_memory() -> None:
    long = estimate(rms_norm(1, 96, 2048), H200)
    assert long.us > 5 * estimate(rms_norm(1, 96, 16), H200).us


def test_bytes_and_operations_are_counted() -> None:
    (kernel,) = estimate(rms_norm(8), H200).kernels
    assert kernel.device_bytes == 2 * (16 * 4096 + 4096 * 6144)  # what it writes stays in L2
    assert kernel.l2_bytes == 2 * (96 * 16 * 4096 + 4096 * 6144 + 16 * 6144)
    assert kernel.tensor_flops == 2 * 16 * 4096 * 6144  # 16 rows transposed: 64 columns fill the rows of a tile
    assert kernel.blocks == 96
    assert kernel.waves == 1
    assert kernel.shared_bytes == 2 * (16 * 128 + 128 * 64 + 16 * 64 + 16 + 16 * 64)


def test_masks_are_bytes() -> None:
    """Those that are read, those that are computed, and those that another kernel reads."""
    mask, x = DTensor((64, 4096), DType.BOOL), t(64, 4096)
    ops = [
        Op(OpKind.LT, (1,), Attrs(value=Fraction(0))),
        Op(OpKind.MUL, (0, 2)),
        Op(OpKind.SELECT, (3, 1), Attrs(value=Fraction(1))),
        Op(OpKind.ACCUM_SUM, (4,)),
        Op(OpKind.ACCUM_MAX, (3,)),
    ]
    graph = block((32, 1, 1), 1, [(X, None)] * 2, ops, [(5, X), (6, X)])
    cost, (values, masks) = block_cost(graph, [mask, x], H200)
    assert (values.dtype, masks.dtype) == (DType.FLOAT16, DType.BOOL)
    assert cost.l2_bytes == 64 * 4096 * (1 + 2 + 2 + 1)
    assert cost.shared_bytes == shared_bytes(graph, (mask, x))
    program = KernelGraph(
        (Input("m", mask, row_major(mask.shape)), *inputs(x.shape)),
        (Op(OpKind.SELECT, (0, 1, 1)), Op(OpKind.EQ, (2, 1))),
        (3,),
    )
    select, compare = estimate(program, H200).kernels
    assert select.l2_bytes == 64 * 4096 * (1 + 2 + 2 + 2)
    assert compare.l2_bytes == 64 * 4096 * (2 + 2 + 1)


def test_results_of_earlier_kernels_come_from_l2() -> None:
    first, second = estimate(gqa(1, 16), H200).kernels
    assert second.device_bytes == 0
    alone, _ = block_cost(
        gqa(1, 16).ops[1].graph,  # type: ignore[union-attr]
        [t(2, 256, 1024), t(2, 256, 16)],
        H200,
    )
    assert alone.device_bytes == second.device_bytes + 2 * 2 * 256 * (1024 + 16)
    assert first.device_bytes == 2 * 2 * (256 * 64 + 2 * 64 * 4096)


def test_replicas_of_a_tensor_beyond_the_cache_are_read_once_per_wave() -> None:
    small = replace(H200, l2_bytes=1 << 20)
    graph = rms_norm(16, blocks=1536, loop=4)
    (kernel,) = estimate(graph, small).kernels
    assert kernel.waves >= 2
    weights, outputs, x = 2 * 4096 * 6144, 2 * 32 * 6144, 2 * 32 * 4096
    assert kernel.device_bytes == weights + x  # X and the outputs fit the half
    tiny = replace(H200, l2_bytes=1 << 16)
    (kernel,) = estimate(graph, tiny).kernels
    assert kernel.device_bytes == weights + outputs + x * kernel.waves


def test_what_several_blocks_read_takes_a_share_of_the_time_of_l2() -> None:
    """And nothing else does: neither what each of them reads alone, nor what is written."""
    graph = rms_norm(16, blocks=1536, loop=4)
    every = replace(H200, model=replace(H200.model, l2_bandwidth_gbs=1.0, l2_reread_share=1.0))
    half = replace(every, model=replace(every.model, l2_reread_share=0.5))
    (dear,), (cheap,) = estimate(graph, every).kernels, estimate(graph, half).kernels
    again = 2 * (1536 - 1) * 32 * 4096  # all blocks read X, each its own columns of the weights
    assert dear.memory_us == pytest.approx(dear.l2_bytes / 1e3)
    assert cheap.memory_us == pytest.approx((dear.l2_bytes - 0.5 * again) / 1e3)
    assert cheap.l2_bytes == dear.l2_bytes
    one = one_kernel(
        [(1536, 4096)],
        block((1536, 1, 1), 1, [(X, None)], [Op(OpKind.EXP, (0,))], [(1, X)]),
    )
    assert estimate(one, half) == estimate(one, every)


def test_a_block_that_fits_nowhere_ranks_last_and_stays_finite() -> None:
    rtx = load_target("rtx4090")
    assert estimate(lora(16), rtx).us >= CANNOT_LAUNCH_US
    assert estimate(lora(1), rtx).us < 1000


def test_thread_fusion_saves_shared_memory() -> None:
    plain = block(
        (32, 1, 1),
        1,
        [(X, None), (X, None)],
        [Op(OpKind.SIGMOID, (0,)), Op(OpKind.MUL, (2, 1)), Op(OpKind.ADD, (3, 1)), Op(OpKind.ACCUM_SUM, (4,))],
        [(5, X)],
    )
    inner = ThreadGraph(2, (Op(OpKind.SIGMOID, (0,)), Op(OpKind.MUL, (2, 1)), Op(OpKind.ADD, (3, 1))), (4,))
    fused = replace(plain, ops=(ThreadDefined((0, 1), inner), Op(OpKind.ACCUM_SUM, (2,))), outputs=(OutputSaver(3, X),))
    before, after = (block_cost(graph, [t(32, 4096), t(32, 4096)], H200)[0] for graph in (plain, fused))
    assert before.shared_bytes == 4 * 8192
    assert after.shared_bytes == 3 * 8192
    assert after.other_flops == before.other_flops
    assert after.path_us < before.path_us
    assert after.compute_us <= before.compute_us


def test_shared_memory_is_counted_as_the_checker_of_graphs_counts_it() -> None:
    for graph, _ in MEASURED:
        types = kernel_types(graph)
        for op, cost in zip(graph.ops, estimate(graph, H200).kernels, strict=True):
            assert isinstance(op, GraphDefined)
            assert cost.shared_bytes == shared_bytes(op.graph, tuple(types[i] for i in op.operands))
        fused = fuse_threads(graph)
        for op, cost in zip(fused.ops, estimate(fused, H200).kernels, strict=True):
            assert isinstance(op, GraphDefined)
            assert cost.shared_bytes == shared_bytes(op.graph, tuple(types[i] for i in op.operands))


def test_it_is_a_sum_over_kernels_and_deterministic() -> None:
    cost = estimate(gqa_unfused(8), H200)
    assert isinstance(cost, Cost)
    assert len(cost.kernels) == 5
    assert cost.us == pytest.approx(sum(kernel.us for kernel in cost.kernels))
    assert cost == estimate(gqa_unfused(8), H200)


def test_more_bandwidth_is_never_slower() -> None:
    slow: Target = replace(H200, bandwidth_gbs=1000.0)
    for graph, _ in MEASURED:
        assert estimate(graph, slow).us >= estimate(graph, H200).us
    assert estimate(rms_norm(1), slow).us > 2 * estimate(rms_norm(1), H200).us


def test_shapes_that_do_not_fit_are_a_mistake() -> None:
    graph = KernelGraph(inputs((4, 8), (4, 8)), (Op(OpKind.MATMUL, (0, 1)),), (2,))
    with pytest.raises(GraphError, match="matmul"):
        estimate(graph, H200)


def test_it_is_fast_enough_for_thousands_of_extents() -> None:
    graph = gqa(1, 16)
    kernel = graph.ops[0]
    assert isinstance(kernel, GraphDefined)
    types = [given.tensor for given in graph.inputs]
    # 178 calls; benchmarks/speed.py has the time, about 22 us.
    assert calls(lambda: block_cost(kernel.graph, types, H200), 1_000) < 400
