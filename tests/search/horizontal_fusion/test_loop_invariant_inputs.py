"""Inputs that the loop does not change, behind it: a bias, a residual, what an activation of a product reads.

They are carried there as the largest of equal values (``accum_max``), which is the value itself.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.check.abstract_interpretation import tensor_expressions
from mirage_formal.check.fingerprint.field_interpreter import parts_to_evaluate
from mirage_formal.check.inlining import carried_maxima, inline_threads
from mirage_formal.check.proof.replay import replay
from mirage_formal.codegen.planning.expand import flatten
from mirage_formal.codegen.post_search_rewrites.split_k import split_loop
from mirage_formal.codegen.program.flat_graph import Accumulate
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.logic.terms import unary, var
from mirage_formal.prove.abstract.abstract_domain import expressions
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.horizontal_fusion.union import ResultKernel, fuse_horizontally
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.semantics.float64_reference import run
from mirage_formal.support.errors import FormatError
from tests.search.engine_comparison import K, compare, op, program, search, tensor, tiny

COLUMNS = (1, None, None)
NONE = (None, None, None)


def residual(m: int = 2, k: int = 8, n: int = 6) -> KernelGraph:
    inputs = (tensor("X", m, k), tensor("W", k, n), tensor("R", m, n))
    return program(inputs, op(K.MATMUL, 0, 1), op(K.ADD, 2, 3))


def carrying(space: SearchSpace) -> SearchSpace:
    return replace(space, block_ops=(*space.block_ops, OpKind.ACCUM_MAX))


def block_of(graph: KernelGraph) -> BlockGraph:
    (kernel,) = graph.ops
    assert isinstance(kernel, GraphDefined)
    return kernel.graph


def kernel(fmap: int | None = None, loop: int = 4) -> KernelGraph:
    """The program's only kernel: R comes behind the loop, cut by it or not."""
    source = residual()
    block = BlockGraph(
        grid=(2, 1, 1),
        block=(128, 1, 1),
        forloop_range=loop,
        reduction_dimx=64,
        inputs=(InputIterator(NONE, 1), InputIterator(COLUMNS, 0), InputIterator(COLUMNS, fmap)),
        ops=(Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (3,)), Op(K.ACCUM_MAX, (2,)), Op(K.ADD, (4, 5))),
        outputs=(OutputSaver(6, COLUMNS),),
    )
    return KernelGraph(source.inputs, (GraphDefined((0, 1, 2), block),), (3,))


def test_a_residual_is_added_behind_a_loop() -> None:
    """Both engines find the same; without the operator there is no such kernel with a loop."""
    space = tiny(griddims=[(2, 1, 1)], max_block_ops=5, imaps=[(-1, -1, -1), (0, -1, -1), (1, -1, -1)])
    found = compare(residual(), carrying(space))
    assert not found.reasons
    looped = [graph for graph in found.guided.values() if block_of(graph).forloop_range > 1]
    assert looped
    for graph in looped:
        kinds = [one.kind for one in block_of(graph).ops if isinstance(one, Op)]
        assert kinds.count(K.ACCUM_MAX) == 1
        assert isinstance(prove(residual(), graph), Equivalent)
    plain = search(GuidedEngine(best=None), residual(), space, SearchOptions())
    assert not [graph for graph in plain.values() if block_of(graph).forloop_range > 1]


def test_a_linear_layer_with_a_bias_and_an_activation_is_one_kernel() -> None:
    graph = mf.new_kernel_graph()
    x, w, b = (graph.new_input(dims=dims) for dims in ((64, 768), (768, 3072), (1, 3072)))
    graph.mark_output(graph.gelu(graph.add(graph.matmul(x, w), b)))
    found = search(GuidedEngine(), graph.freeze(), load_space("mlp"), SearchOptions())
    single = [block_of(one) for one in found.values() if len(one.ops) == 1]
    assert any(one.forloop_range > 1 for one in single)


def test_the_spaces_of_the_paper_have_no_such_operator() -> None:
    assert all(OpKind.ACCUM_MAX not in load_space(name).block_ops for name in ("paper", "attention", "tiny"))


def test_what_the_loop_does_not_change_is_itself_behind_it() -> None:
    good = kernel()
    name = "b0.5"  # behind the accumulator
    assert tensor_expressions(good)[name] == (expressions(good).blocks[0][5],) == (var("R"),)
    parts_to_evaluate(good)  # it has a picture in a finite field
    random = np.random.default_rng(0)
    given = [random.normal(size=one.tensor.shape) for one in good.inputs]
    np.testing.assert_allclose(run(good, given)[0], given[0] @ given[1] + given[2])
    verdict = prove(residual(), good)
    assert isinstance(verdict, Equivalent)
    replay(residual(), good, verdict.proof)


def test_what_the_loop_cuts_is_not() -> None:
    """R has 2 rows; a loop over them leaves one row in each iteration, and the larger one of both behind it."""
    bad = kernel(fmap=0, loop=2)
    name = "b0.5"
    assert tensor_expressions(bad)[name] == (expressions(bad).blocks[0][5],) == (unary("max", var("R")),)
    with pytest.raises(FormatError, match="not LAX"):
        parts_to_evaluate(bad)
    assert not isinstance(prove(residual(), bad), Equivalent)


def test_a_running_maximum_of_what_stays_changes_all_the_same() -> None:
    """Its second result rescales sums, and is another one in the first iteration than in the others."""
    block = block_of(kernel())
    _, plain, _ = inline_threads(block)
    assert carried_maxima(block, plain) == {5}
    running = (op(K.RUNNING_MAX, 2, dim=1), Op(K.ACCUM_MAX, (3,)), Op(K.ACCUM_MAX, (4,)))
    assert carried_maxima(block, running) == frozenset()


def test_nothing_is_accumulated_in_the_kernel() -> None:
    source = kernel()
    (one,) = source.ops
    assert isinstance(one, GraphDefined)
    flat = flatten(one, tuple(given.tensor for given in source.inputs))
    assert [step.operand for step in flat.ops if isinstance(step, Accumulate)] == [3]


def test_where_a_loop_is_split_the_second_kernel_reads_it() -> None:
    source = program(
        (tensor("X", 64, 512), tensor("W", 512, 64), tensor("R", 64, 64)), op(K.MATMUL, 0, 1), op(K.ADD, 2, 3)
    )
    block = replace(block_of(kernel(loop=8)), grid=(2, 1, 1))
    made = split_loop(GraphDefined((0, 1, 2), block), [given.tensor for given in source.inputs], 4, load_target("h200"))
    assert made is not None
    assert (made.loads, made.reads) == ((0, 1), (2,))
    assert len(made.first.outputs) == 1  # parts of the product, and none of what is added
    ops = (GraphDefined((0, 1), made.first), GraphDefined((3, 2), made.second))
    whole = KernelGraph(source.inputs, ops, (4,))
    assert isinstance(prove(source, whole), Equivalent)


def test_kernels_that_read_inputs_as_well_are_united_behind_a_loop() -> None:
    looped = replace(block_of(kernel()), ops=(Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (2,))))
    looped = replace(looped, inputs=looped.inputs[:2], outputs=(OutputSaver(3, COLUMNS),))
    adding = BlockGraph(
        grid=(2, 1, 1),
        block=(128, 1, 1),
        forloop_range=1,
        reduction_dimx=64,
        inputs=(InputIterator(COLUMNS, None),) * 2,
        ops=(Op(K.ADD, (0, 1)), Op(K.ACCUM_SUM, (2,))),
        outputs=(OutputSaver(3, COLUMNS),),
    )
    pieces = [ResultKernel((0, 1), looped, 3, 1.0), ResultKernel((3, 2), adding, 4, 1.0)]
    made = fuse_horizontally(pieces, (3, 4), carry=True)
    assert made is not None
    source = residual()
    both = replace(source, outputs=(3, 4))
    assert isinstance(prove(both, KernelGraph(source.inputs, (made,), (3, 4))), Equivalent)
    assert fuse_horizontally(pieces, (3, 4)) is None
    assert made.graph.forloop_range == 4
