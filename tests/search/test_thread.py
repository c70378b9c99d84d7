"""Thread fusion: values stay what they were, interior results leave shared memory, a second pass changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_formal.graph.edit import inline_blocks
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
from mirage_formal.graph.ops import COMPARISONS, SPECS, Attrs, Family, Level, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import faults, kernel_types, shared_bytes
from mirage_formal.search.thread import fuse_threads
from mirage_formal.semantics.float64_reference import run

X = (0, None, None)
SHAPE, ROW = (8, 16), (8, 1)


def kernel(ops: list[BlockOp], outputs: list[int], inputs: int = 2, loop: int = 4) -> KernelGraph:
    """Blocks over rows, the loop over columns; input 1 is a column vector when there are three inputs."""
    shapes = [SHAPE, SHAPE, ROW][:inputs]
    iterators = tuple(InputIterator(X, 1 if shape == SHAPE else None) for shape in shapes)
    block = BlockGraph(
        (4, 1, 1), (32, 1, 1), loop, 64, iterators, tuple(ops), tuple(OutputSaver(o, X) for o in outputs)
    )
    given = tuple(Input(f"t{i}", DTensor(s, DType.FLOAT32), (s[1], 1)) for i, s in enumerate(shapes))
    op = GraphDefined(tuple(range(inputs)), block)
    return KernelGraph(given, (op,), tuple(range(inputs, inputs + len(outputs))))


def block_of(graph: KernelGraph) -> BlockGraph:
    op = graph.ops[0]
    assert isinstance(op, GraphDefined)
    return op.graph


def values(graph: KernelGraph, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return run(graph, [rng.uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs])


def same(a: KernelGraph, b: KernelGraph) -> None:
    for x, y in zip(values(a), values(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)


def needs(graph: KernelGraph) -> int:
    types = kernel_types(graph)
    return shared_bytes(block_of(graph), tuple(types[i] for i in graph.ops[0].operands))


def test_a_chain_becomes_one_thread_graph() -> None:
    plain = kernel(
        [
            Op(OpKind.EXP, (0,)),
            Op(OpKind.ADD, (2, 1)),
            Op(OpKind.SCALE, (3,), Attrs(factor=Fraction(1, 3))),
            Op(OpKind.MUL, (4, 0)),
            Op(OpKind.ACCUM_SUM, (5,)),
        ],
        [6],
    )
    fused = fuse_threads(plain)
    inner = ThreadGraph(
        2,
        (
            Op(OpKind.EXP, (0,)),
            Op(OpKind.ADD, (2, 1)),
            Op(OpKind.SCALE, (3,), Attrs(factor=Fraction(1, 3))),
            Op(OpKind.MUL, (4, 0)),
        ),
        (5,),
    )
    assert block_of(fused).ops == (ThreadDefined((0, 1), inner), Op(OpKind.ACCUM_SUM, (2,)))
    assert faults(fused) == []
    same(plain, fused)
    tile = 2 * 4 * 4
    assert needs(plain) == 4 * tile  # two inputs, the sum and the product
    assert needs(fused) == 3 * tile  # two inputs and what leaves the thread graph


def test_a_result_that_two_operators_read_stays() -> None:
    plain = kernel(
        [Op(OpKind.EXP, (0,)), Op(OpKind.SQUARE, (1,)), *[Op(OpKind.ACCUM_SUM, (i,)) for i in (1, 2)]], [3, 4], 1
    )
    assert faults(plain) == []
    assert fuse_threads(plain) == plain


def test_a_diamond_closes_inside_one_thread_graph() -> None:
    plain = kernel(
        [
            Op(OpKind.EXP, (0,)),
            Op(OpKind.SQUARE, (2,)),
            Op(OpKind.ADD, (2, 1)),
            Op(OpKind.MUL, (3, 4)),
            Op(OpKind.ACCUM_SUM, (5,)),
        ],
        [6],
    )
    fused = fuse_threads(plain)
    assert len(block_of(fused).ops) == 2
    same(plain, fused)


def test_no_thread_graph_spans_the_end_of_the_loop() -> None:
    plain = kernel(
        [
            Op(OpKind.EXP, (0,)),
            Op(OpKind.SQUARE, (1,)),
            Op(OpKind.ACCUM_SUM, (2,)),
            Op(OpKind.SQRT, (3,)),
            Op(OpKind.SILU, (4,)),
        ],
        [5],
        inputs=1,
    )
    fused = fuse_threads(plain)
    kinds = [type(op) for op in block_of(fused).ops]
    assert kinds == [ThreadDefined, Op, ThreadDefined]
    same(plain, fused)


def test_a_saved_result_and_a_broadcast_result_stay() -> None:
    saved = kernel([Op(OpKind.ACCUM_SUM, (0,)), Op(OpKind.EXP, (1,)), Op(OpKind.SQUARE, (2,))], [2, 3], inputs=1)
    assert faults(saved) == []
    assert fuse_threads(saved) == saved
    # sqrt of a column that 4 columns read would be computed 4 times if it were fused
    column = kernel(
        [
            Op(OpKind.SQRT, (2,)),
            Op(OpKind.MUL, (0, 3)),
            Op(OpKind.ADD, (4, 1)),
            Op(OpKind.ACCUM_SUM, (5,)),
        ],
        [6],
        inputs=3,
    )
    fused = fuse_threads(column)
    assert block_of(fused).ops[0] == Op(OpKind.SQRT, (2,))
    assert isinstance(block_of(fused).ops[1], ThreadDefined)
    same(column, fused)


def test_a_hand_made_thread_graph_is_extended() -> None:
    inner = ThreadGraph(2, (Op(OpKind.ADD, (0, 1)), Op(OpKind.EXP, (2,))), (3,))
    plain = kernel(
        [
            Op(OpKind.SQUARE, (0,)),
            ThreadDefined((2, 1), inner),
            Op(OpKind.SIGMOID, (3,)),
            Op(OpKind.ACCUM_SUM, (4,)),
        ],
        [5],
    )
    fused = fuse_threads(plain)
    assert len(block_of(fused).ops) == 2
    assert len(inline_blocks(block_of(fused)).ops) == len(inline_blocks(block_of(plain)).ops) == 5
    same(plain, fused)


THREAD = [row for row in SPECS.values() if Level.THREAD in row.levels and not row.required]
UNARY = [row.kind for row in THREAD if row.max_arity == 1 and row.kind is not OpKind.LOGICAL_NOT]
BINARY = [row.kind for row in THREAD if row.family is Family.ARITHMETIC]
COMPARED = sorted(COMPARISONS)


def drawn(seed: int) -> KernelGraph:
    """A random block graph over both stages with shared results, broadcasts and several outputs."""
    rng = random.Random(seed)
    ops: list[BlockOp] = []

    def elementwise(pool: list[int], count: int) -> None:
        for _ in range(count):
            way = rng.random()
            if way < 0.2:
                ops.append(Op(rng.choice(COMPARED), (rng.choice(pool[-4:]), rng.choice(pool))))
                ops.append(Op(OpKind.LOGICAL_NOT, (2 + len(ops),)))
                ops.append(Op(OpKind.SELECT, (2 + len(ops), rng.choice(pool)), Attrs(value=Fraction(1, 3))))
            elif way < 0.6:
                ops.append(Op(rng.choice([*UNARY, OpKind.SCALE]), (rng.choice(pool[-4:]),)))
                if ops[-1].kind is OpKind.SCALE:  # type: ignore[union-attr]
                    ops[-1] = replace(ops[-1], attrs=Attrs(factor=Fraction(rng.randint(1, 9), 16)))  # type: ignore[arg-type]
            else:
                ops.append(Op(rng.choice(BINARY), (rng.choice(pool[-4:]), rng.choice(pool))))
            pool.append(2 + len(ops))

    loop = [2, 0, 1]
    elementwise(loop, rng.randint(2, 7))
    after = []
    for number in loop[-2:]:
        after.append(3 + len(ops))
        ops.append(Op(rng.choice([OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST]), (number,)))
    elementwise(after, rng.randint(0, 5))
    outputs = sorted({after[-1], rng.choice(after)})
    return kernel(ops, outputs, inputs=3)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_their_values(seed: int) -> None:
    plain = drawn(seed)
    assert faults(plain) == []
    fused = fuse_threads(plain)
    assert faults(fused) == []
    with np.errstate(all="ignore"):
        same(plain, fused)
    assert fuse_threads(fused) == fused
    assert fuse_threads(plain) == fused
    assert needs(fused) <= needs(plain)
    assert len(inline_blocks(block_of(fused)).ops) == len(inline_blocks(block_of(plain)).ops)


def test_random_graphs_really_fuse() -> None:
    fused = [sum(isinstance(op, ThreadDefined) for op in block_of(fuse_threads(drawn(s))).ops) for s in range(60)]
    assert sum(fused) > 40


def test_a_program_without_block_graphs_is_returned_as_it_is() -> None:
    given = tuple(Input(n, DTensor((4, 4), DType.FLOAT16), (4, 1)) for n in "ab")
    program = KernelGraph(given, (Op(OpKind.ADD, (0, 1)), Op(OpKind.EXP, (2,))), (3,))
    assert fuse_threads(program) == program
