"""Shape, well-formedness and memory checks: every fault at once, and none where there is none."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given

from mirage_formal.graph.graph import (
    BlockGraph,
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
from mirage_formal.graph.types import DTensor, DType, STensor, row_major
from mirage_formal.graph.verifier import DeviceLimits, block_outputs, block_types, faults, kernel_types, shared_bytes
from mirage_formal.support.errors import GraphError
from tests.kit.graphs.graph_strategies import kernel_graphs

F16 = DType.FLOAT16


def test_types_of_a_graph_are_its_own_when_others_have_come_and_gone() -> None:
    known = [KernelGraph((tensor("X", 1, n),), (), (0,)) for n in range(1, 40)]
    for _ in range(3):
        for n, graph in enumerate(known, 1):
            assert kernel_types(graph) == (DTensor((1, n), F16),)
            for m in range(1, 40):  # their identities may be those of graphs that are gone
                assert kernel_types(KernelGraph((tensor("X", 1, 100 * m),), (), (0,)))[0].shape == (1, 100 * m)


def tensor(name: str, *shape: int, dtype: DType = F16) -> Input:
    return Input(name, DTensor(shape, dtype), row_major(shape))


Q, K, V = tensor("Q", 2, 256, 64), tensor("K", 2, 64, 4096), tensor("V", 2, 4096, 64)

SCORES = BlockGraph(
    grid=(2, 8, 16),
    block=(128, 1, 1),
    forloop_range=4,
    reduction_dimx=64,
    inputs=(
        InputIterator((0, None, 1), None),
        InputIterator((0, 2, None), 2),
        InputIterator((0, 1, None), 1),
    ),
    ops=(
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (3,)),
        Op(OpKind.ACCUM_SUM, (4,)),
        Op(OpKind.MATMUL, (4, 2)),
        Op(OpKind.ACCUM_SUM, (6,)),
    ),
    outputs=(OutputSaver(5, (0, 2, 1)), OutputSaver(7, (0, 2, 1))),
)
COMBINE = BlockGraph(
    grid=(2, 16, 1),
    block=(128, 1, 1),
    forloop_range=1,
    reduction_dimx=64,
    inputs=(InputIterator((0, 1, None), None), InputIterator((0, 1, None), None)),
    ops=(
        Op(OpKind.ACCUM_SUM_LAST, (0,)),
        Op(OpKind.ACCUM_SUM_TO_DIMX, (1,)),
        Op(OpKind.DIV, (3, 2)),
    ),
    outputs=(OutputSaver(4, (0, 1, None)),),
)
ATTENTION = KernelGraph((Q, K, V), (GraphDefined((0, 1, 2), SCORES), GraphDefined((3, 4), COMBINE)), (5,))


def test_types_of_split_attention() -> None:
    assert faults(ATTENTION) == []
    types = kernel_types(ATTENTION)
    assert [t.shape for t in types[3:]] == [(2, 256, 1024), (2, 256, 512), (2, 256, 64)]
    tiles = block_types(SCORES, types[:3])
    assert tiles[0] == STensor((1, 16, 64), F16, after_loop=False)
    assert tiles[1].shape == (1, 64, 128)
    assert [t.after_loop for t in tiles] == [False, False, False, False, False, True, False, True]
    assert block_outputs(SCORES, types[:3]) == types[3:5]


def test_shared_bytes_counts_tiles_and_what_is_not_in_place() -> None:
    # Tiles 16x64, 64x128, 128x64; products 16x128 and 16x64; exp and accum_sum are in place; two bytes each.
    expected = 2 * (16 * 64 + 64 * 128 + 128 * 64 + 16 * 128 + 16 * 64)
    assert shared_bytes(SCORES, (Q.tensor, K.tensor, V.tensor)) == expected


def test_thread_graph_needs_only_what_it_writes() -> None:
    """mul, then exp of it: fused, the product needs no buffer of its own beside the result."""
    x = DTensor((8, 8), F16)
    saver = OutputSaver(4, (None, None, None))
    plain = BlockGraph(
        (1, 1, 1),
        (32, 1, 1),
        1,
        64,
        (InputIterator((None, None, None), None),) * 2,
        (Op(OpKind.MUL, (0, 1)), Op(OpKind.EXP, (2,)), Op(OpKind.ACCUM_SUM, (3,))),
        (saver,),
    )
    chain = ThreadGraph(2, (Op(OpKind.MUL, (0, 1)), Op(OpKind.EXP, (2,))), (3,))
    fused = replace(
        plain, ops=(ThreadDefined((0, 1), chain), Op(OpKind.ACCUM_SUM, (2,))), outputs=(replace(saver, operand=3),)
    )
    longer = ThreadGraph(2, (Op(OpKind.MUL, (0, 1)), Op(OpKind.ADD, (2, 0)), Op(OpKind.EXP, (3,))), (4,))
    unary = ThreadGraph(1, (Op(OpKind.EXP, (0,)), Op(OpKind.SILU, (1,))), (2,))
    assert shared_bytes(plain, (x, x)) == 3 * x.bytes
    assert shared_bytes(fused, (x, x)) == 3 * x.bytes
    assert shared_bytes(replace(fused, ops=(ThreadDefined((0, 1), longer), fused.ops[1])), (x, x)) == 3 * x.bytes
    assert shared_bytes(replace(fused, ops=(ThreadDefined((0,), unary), fused.ops[1])), (x, x)) == 2 * x.bytes


def test_all_faults_at_once_and_each_once() -> None:
    graph = KernelGraph(
        (tensor("A", 64, 128), tensor("B", 64, 128), tensor("A", 4, 4, dtype=DType.FLOAT32)),
        (
            Op(OpKind.MATMUL, (0, 1)),
            Op(OpKind.EXP, (3,)),  # not judged: its operand has no type
            Op(OpKind.SUM, (0,)),
            Op(OpKind.ADD, (0, 9)),
            Op(OpKind.ACCUM_SUM, (0,)),
        ),
        (4, 11),
    )
    found = faults(graph)
    assert found == [
        "input 2: expected distinct names, got 'A' twice",
        "op 0 (matmul): inner dimensions differ: left [64, 128] has 128, right [64, 128] has 64",
        "op 2 (sum): expected an attribute dim, got none",
        "op 3 (add): expected operands numbered 0..5, got 9",
        "op 4 (accum_sum): expected an operator of the kernel level, got accum_sum",
        "output 1: expected a tensor numbered 0..7, got 11",
    ]
    with pytest.raises(GraphError) as raised:
        kernel_types(graph)
    assert all(text in str(raised.value) for text in found)
    assert "6 faults" in str(raised.value)


def broken(**changes: object) -> str:
    """The single fault of the score kernel after a change."""
    graph = KernelGraph((Q, K, V), (GraphDefined((0, 1, 2), replace(SCORES, **changes)),), (3,))  # type: ignore[arg-type]
    (fault,) = faults(graph)
    with pytest.raises(GraphError):
        kernel_types(graph)
    return fault


def test_block_faults_name_what_is_wrong() -> None:
    inputs, ops, outputs = SCORES.inputs, SCORES.ops, SCORES.outputs
    assert "multiple of 3" in broken(
        forloop_range=3, inputs=(inputs[0], InputIterator((0, 2, None), 2), InputIterator((0, 1, None), None))
    )
    assert "omap y: expected a dim, because grid y is 8, got none" in broken(
        outputs=(OutputSaver(5, (0, None, 1)), outputs[1])
    )
    assert "expected a tensor behind an accumulator" in broken(outputs=(OutputSaver(4, (0, 2, 1)), outputs[1]))
    assert "expected a dim in 0..2, got 3" in broken(outputs=(OutputSaver(5, (0, 2, 3)), outputs[1]))
    assert "one side of the accumulators" in broken(ops=(*ops, Op(OpKind.ADD, (3, 5))))
    assert "inside the loop, got one behind an accumulator" in broken(ops=(*ops, Op(OpKind.ACCUM_SUM, (5,))))
    assert "operands numbered 0..7, got 8" in broken(ops=(*ops, Op(OpKind.EXP, (8,))))
    assert "expected one operand for each of 2 input iterators, got 3" in broken(inputs=inputs[:2])
    assert "forloop_range" in broken(forloop_range=0)
    assert "grid extents" in broken(grid=(2, 0, 16))


def test_a_block_graph_without_outputs() -> None:
    found = faults(KernelGraph((Q, K, V), (GraphDefined((0, 1, 2), replace(SCORES, outputs=())),), (0,)))
    assert found == ["op 0 (graph_defined): expected at least one output saver, got none"]


def test_non_dividing_grid() -> None:
    text = broken(grid=(2, 8, 24))
    assert text == (
        "op 0 (graph_defined): input iterator 0: imap z: expected dim 1 of extent 256 to be a multiple of grid 24"
    )


def test_slab_is_cut_before_the_loop_chunk() -> None:
    """A grid of 4 and a loop of 2 need 8, although either would divide 4 alone."""
    saver = OutputSaver(1, (0, None, None))
    block = BlockGraph(
        (4, 1, 1), (32, 1, 1), 2, 64, (InputIterator((0, None, None), 0),), (Op(OpKind.ACCUM_SUM, (0,)),), (saver,)
    )
    assert block_types(block, (DTensor((8, 2), F16),))[0].shape == (1, 2)
    with pytest.raises(GraphError, match="extent 1 per block to be a multiple of 2"):
        block_types(block, (DTensor((4, 2), F16),))


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Op(OpKind.EXP, (0, 0)), "expected 1 operands, got 2"),
        (Op(OpKind.RMS_NORM, (0, 1, 1), Attrs(dim=1)), "expected 1..2 operands, got 3"),
        (Op(OpKind.EXP, (0,), Attrs(dim=1)), "expected no attribute dim, got 1"),
        (Op(OpKind.SCALE, (0,)), "expected an attribute factor, got none"),
        (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1, eps=Fraction(0))), "expected a positive eps"),
        (Op(OpKind.SUM, (0,), Attrs(dim=2)), "expected a dim in 0..1, got 2"),
        (Op(OpKind.MAXIMUM, (0,)), "expected 2 operands, or a value in place of the last, got 1 operands"),
        (Op(OpKind.MINIMUM, (0, 0), Attrs(value=Fraction(1))), "expected 2 operands, or a value"),
        (Op(OpKind.ADD, (0,), Attrs(value=Fraction(1))), "expected 2 operands, got 1"),
        (Op(OpKind.ADD, (0, 1)), "expected operands of one element type, got float16, float32"),
        (Op(OpKind.TRANSPOSE, (0,), Attrs(perm=(0, 0))), "expected a permutation"),
        (Op(OpKind.RESHAPE, (0,), Attrs(shape=(3, 3))), "expected 16 elements"),
        (Op(OpKind.RESHAPE, (0,), Attrs(shape=(1,) * 9)), "expected 16 elements"),
        (Op(OpKind.RESHAPE, (0,), Attrs(shape=(*(1,) * 7, 4, 4))), "expected a rank in 1..8, got 9"),
        (Op(OpKind.RUNNING_MAX, (0,), Attrs(dim=0)), "expected an operator of the kernel level"),
    ],
)
def test_operator_faults(op: Op, text: str) -> None:
    graph = KernelGraph((tensor("A", 4, 4), tensor("B", 4, 4, dtype=DType.FLOAT32)), (op,), (2,))
    (fault,) = faults(graph)
    assert text in fault


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Input("a b", DTensor((2,), F16), (1,)), "identifier"),
        (Input("a", DTensor((), F16), ()), "rank in 1..8, got 0"),
        (Input("a", DTensor((0,), F16), (1,)), "extents in 1.."),
        (Input("a", DTensor((1 << 31, 1 << 31), F16), (1, 1)), "elements"),
        (Input("a", DTensor((2,), F16), (1, 1)), "1 strides"),
        (Input("a", DTensor((2,), F16), (-1,)), "none negative"),
        (Input("a", DTensor((1 << 20, 2), F16), (1 << 30, 1)), "span"),
    ],
)
def test_input_faults(item: Input, text: str) -> None:
    graph = KernelGraph((tensor("x", 2, 2), item), (Op(OpKind.EXP, (0,)),), (2,))
    (fault,) = faults(graph)
    assert fault.startswith("input 1: ")
    assert text in fault


def test_output_faults() -> None:
    assert faults(KernelGraph((Q,), (Op(OpKind.EXP, (0,)),), ())) == ["expected at least one output, got none"]
    assert faults(KernelGraph((Q,), (Op(OpKind.EXP, (0,)),), (1, 1))) == ["expected distinct outputs, got [1, 1]"]


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (ThreadGraph(2, (Op(OpKind.EXP, (0,)),), (2,)), "expected one operand for each of 2 inputs"),
        (ThreadGraph(1, (Op(OpKind.MATMUL, (0, 0)),), (1,)), "expected an operator of the thread level"),
        (ThreadGraph(1, (Op(OpKind.EXP, (1,)),), (1,)), "operands numbered 0..0, got 1"),
        (ThreadGraph(1, (Op(OpKind.EXP, (0,)),), (0,)), "results numbered 1..1, got [0]"),
        (ThreadGraph(1, (Op(OpKind.EXP, (0,)),), (2,)), "results numbered 1..1, got [2]"),
        (ThreadGraph(1, (Op(OpKind.EXP, (0,)),), ()), "distinct thread outputs, at least one"),
        (ThreadGraph(1, (Op(OpKind.EXP, (0,)),), (1, 1)), "distinct thread outputs"),
    ],
)
def test_thread_faults(graph: ThreadGraph, text: str) -> None:
    ops = (ThreadDefined((0,), graph), Op(OpKind.ACCUM_SUM, (0,)))
    last = 1 + len(graph.outputs)
    block = BlockGraph(
        (1, 1, 1), (32, 1, 1), 1, 64, (InputIterator((None,) * 3, None),), ops, (OutputSaver(last, (None,) * 3),)
    )
    found = faults(KernelGraph((Q,), (GraphDefined((0,), block),), (1,)))
    assert any(text in fault for fault in found)
    assert len(found) == 1


def test_thread_operands_share_a_stage() -> None:
    mixed = ThreadDefined((0, 1), ThreadGraph(2, (Op(OpKind.ADD, (0, 1)),), (2,)))
    block = BlockGraph(
        (1, 1, 1),
        (32, 1, 1),
        1,
        64,
        (InputIterator((None,) * 3, None),),
        (Op(OpKind.ACCUM_SUM, (0,)), mixed),
        (OutputSaver(1, (None,) * 3),),
    )
    (fault,) = faults(KernelGraph((Q,), (GraphDefined((0,), block),), (1,)))
    assert "one side of the accumulators" in fault


def test_limits() -> None:
    types = kernel_types(ATTENTION)
    # Two tiles of 16x1024 and 16x512, a column of 16, and two tensors of 16x64; two bytes each.
    needed = 2 * (16 * 1024 + 16 * 512 + 16 + 2 * 16 * 64)
    assert needed == shared_bytes(COMBINE, types[3:5]) > shared_bytes(SCORES, types[:3])
    held = sum(t.bytes for t in types)
    assert faults(ATTENTION, DeviceLimits(needed, held, threads=128, blocks=256)) == []
    assert faults(ATTENTION, DeviceLimits(needed - 1, held)) == [
        f"op 1 (graph_defined): expected at most {needed - 1} bytes of shared memory in a block, got {needed}"
    ]
    assert faults(ATTENTION, DeviceLimits(needed, held - 1)) == [
        f"expected at most {held - 1} bytes of device memory, got {held}"
    ]
    assert len(faults(ATTENTION, DeviceLimits(needed, held, threads=127))) == 2
    assert faults(ATTENTION, DeviceLimits(needed, held, blocks=255)) == [
        "op 0 (graph_defined): expected at most 255 blocks, got 256"
    ]


def test_limits_of_a_faulty_graph_do_not_raise() -> None:
    graph = replace(ATTENTION, ops=(GraphDefined((0, 1, 99), SCORES), ATTENTION.ops[1]))
    assert faults(graph, DeviceLimits(1, 1)) != []


@given(kernel_graphs())
def test_types_have_one_entry_for_each_tensor(graph: KernelGraph) -> None:
    types = kernel_types(graph)
    assert len(types) == len(graph.inputs) + sum(op.results for op in graph.ops)
    for op in graph.ops:
        if isinstance(op, GraphDefined):
            operands = tuple(types[n] for n in op.operands)
            inner = block_types(op.graph, operands)
            assert len(inner) == len(op.graph.inputs) + sum(o.results for o in op.graph.ops)
            assert all(inner[s.operand].after_loop for s in op.graph.outputs)
            tiles = sum(t.bytes for t in inner[: len(op.graph.inputs)])
            assert tiles <= shared_bytes(op.graph, operands) <= sum(t.bytes for t in inner)


@given(kernel_graphs())
def test_a_dropped_operator_is_noticed(graph: KernelGraph) -> None:
    """Without its last operator a graph has an output or an operand that does not exist."""
    assert faults(replace(graph, ops=graph.ops[:-1])) != []
