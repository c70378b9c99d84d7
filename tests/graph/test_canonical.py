"""The canonical form is order-free, idempotent, keeps the function, and tells apart what differs."""

from dataclasses import replace
from itertools import permutations, product
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mirage_formal.graph.canonical import canonical, digest
from mirage_formal.graph.formats.json import encode
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
from mirage_formal.graph.ops import SPECS, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import GraphError
from tests.kit.graphs.graph_strategies import (
    BLOCK_KINDS,
    FIELD_KINDS,
    KERNEL_KINDS,
    block_graphs,
    kernel_graphs,
    rearranged,
)
from tests.kit.sampling import number

SEEDS = st.integers(0, 1 << 30)
FIELD = kernel_graphs(
    kinds=set(KERNEL_KINDS) & FIELD_KINDS - {OpKind.CAST}, block_kinds=set(BLOCK_KINDS) & FIELD_KINDS - {OpKind.CAST}
)


def tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


X, Y = tensor("X", 4, 4), tensor("Y", 4, 4)


@settings(max_examples=number(120, 300))
@given(kernel_graphs(), SEEDS)
def test_order_free_and_idempotent(graph: KernelGraph, seed: int) -> None:
    form = canonical(graph)
    assert canonical(form) == form
    other = rearranged(graph, Random(seed))
    assert canonical(other) == form
    assert digest(other) == digest(graph) == digest(form)


@st.composite
def repetitive(draw: st.DrawFn) -> KernelGraph:
    """Graphs that compute equal values again and again, the hard case of a canonical form."""
    kinds = [OpKind.EXP, OpKind.ADD, OpKind.SUB]
    ops: list[Op] = []
    for count in range(1, 1 + draw(st.integers(2, 6))):
        kind = draw(st.sampled_from(kinds))
        recent = st.integers(0, count - 1)
        ops.append(Op(kind, tuple(draw(recent) for _ in range(SPECS[kind].min_arity))))
    return KernelGraph((X,), tuple(ops), (draw(st.integers(1, len(ops))),))


def least(graph: KernelGraph) -> bytes:
    """The least of all orders of a graph of predefined operators with one input: canonical by definition."""
    count, found = len(graph.ops), []
    for order in permutations(range(count)):
        names, ops = {0: 0}, []
        for index in order:
            op = graph.ops[index]
            assert isinstance(op, Op)
            if any(n not in names for n in op.operands):
                break
            operands = tuple(names[n] for n in op.operands)
            ops.append(Op(op.kind, tuple(sorted(operands)) if SPECS[op.kind].commutative else operands))
            names[index + 1] = len(names)
        else:
            found.append(encode(KernelGraph(graph.inputs, tuple(ops), tuple(names[n] for n in graph.outputs))))
    return min(found)


@settings(max_examples=150)
@given(repetitive(), SEEDS)
def test_repeated_values_rearranged(graph: KernelGraph, seed: int) -> None:
    assert canonical(rearranged(graph, Random(seed))) == canonical(graph)
    assert least(canonical(graph)) == least(graph)


@settings(max_examples=60)
@given(st.lists(repetitive().filter(lambda g: len(g.ops) <= 4), min_size=2, max_size=6))
def test_equal_exactly_if_isomorphic(graphs: list[KernelGraph]) -> None:
    for a, b in product(graphs, repeat=2):
        assert (canonical(a) == canonical(b)) == (least(a) == least(b))


@pytest.mark.parametrize("copies", [2, 5, 9])
def test_many_equal_chains(copies: int) -> None:
    """exp then silu, several times over, all added up: the chains may be written in any order."""
    heads = [Op(OpKind.EXP, (0,))] * copies
    tails = [Op(OpKind.SILU, (1 + i,)) for i in range(copies)]
    sums = [Op(OpKind.ADD, (1 + copies, 2 + copies))]
    sums += [Op(OpKind.ADD, (2 * copies + i, 2 + copies + i)) for i in range(1, copies - 1)]
    graph = KernelGraph((X,), (*heads, *tails, *sums), (len(heads + tails + sums),))
    for seed in range(4):
        assert canonical(rearranged(graph, Random(seed))) == canonical(graph)


@st.composite
def with_free_axes(draw: st.DrawFn) -> KernelGraph:
    operands = tuple(
        draw(st.lists(st.sampled_from([X.tensor, DTensor((4, 8, 4), DType.FLOAT16)]), min_size=1, max_size=3))
    )
    assume(len({len(t.shape) for t in operands}) == 1)
    block = draw(block_graphs(operands, separate_axes=True))
    inputs = tuple(Input(f"i{n}", t, row_major(t.shape)) for n, t in enumerate(operands))
    numbers = tuple(draw(st.permutations(range(len(operands) + len(block.outputs))))[: len(block.outputs)])
    outputs = tuple(len(operands) + i for i, _ in enumerate(numbers))
    return KernelGraph(inputs, (GraphDefined(tuple(range(len(operands))), block),), outputs)


@settings(max_examples=150)
@given(with_free_axes(), SEEDS)
def test_grid_axes_are_free(graph: KernelGraph, seed: int) -> None:
    assert canonical(rearranged(graph, Random(seed))) == canonical(graph)
    (op,) = canonical(graph).ops
    assert isinstance(op, GraphDefined)
    assert list(op.graph.grid) == sorted(op.graph.grid, reverse=True)


def _values(graph: KernelGraph, seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    arrays = [random.uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs]
    with np.errstate(all="ignore"):
        return float64_reference.run(graph, arrays)


@settings(max_examples=100)
@given(FIELD, SEEDS)
def test_same_function_and_types(graph: KernelGraph, seed: int) -> None:
    form = canonical(graph)
    assert [kernel_types(form)[n] for n in form.outputs] == [kernel_types(graph)[n] for n in graph.outputs]
    for a, b in zip(_values(graph, seed), _values(form, seed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def _changed(block: BlockGraph, random: Random) -> BlockGraph:
    """A block graph with one map, operand or operator changed; it may be at fault."""
    dims = (None, 0, 1)
    match random.randrange(4):
        case 0:
            at = random.randrange(len(block.inputs))
            imap = (random.choice(dims), random.choice(dims), random.choice(dims))
            inputs = list(block.inputs)
            inputs[at] = InputIterator(imap, random.choice([inputs[at].fmap, *dims]))
            return replace(block, inputs=tuple(inputs))
        case 1:
            at = random.randrange(len(block.outputs))
            omap = (random.choice(dims), random.choice(dims), random.choice(dims))
            savers = list(block.outputs)
            savers[at] = replace(savers[at], omap=omap)
            return replace(block, outputs=tuple(savers))
        case _:
            at = random.randrange(len(block.ops))
            ops = list(block.ops)
            op = ops[at]
            operands = list(op.operands)
            operands[random.randrange(len(operands))] = random.randrange(len(block.inputs) + at)
            ops[at] = replace(op, operands=tuple(operands))
            return replace(block, ops=tuple(ops))


@settings(max_examples=number(80, 200))
@given(FIELD.filter(lambda g: any(isinstance(op, GraphDefined) for op in g.ops)), SEEDS)
def test_graphs_of_one_form_are_equal_functions(graph: KernelGraph, seed: int) -> None:
    """A changed block graph has another digest wherever the change shows in a value."""
    random = Random(seed)
    at = random.choice([i for i, op in enumerate(graph.ops) if isinstance(op, GraphDefined)])
    op = graph.ops[at]
    assert isinstance(op, GraphDefined)
    other = replace(graph, ops=(*graph.ops[:at], replace(op, graph=_changed(op.graph, random)), *graph.ops[at + 1 :]))
    assume(faults(other) == [])
    before, after = _values(graph, seed), _values(other, seed)
    same = all(a.shape == b.shape and np.allclose(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    assert same or digest(other) != digest(graph)


def one_kernel(block: BlockGraph, *inputs: Input) -> KernelGraph:
    operands = tuple(range(len(inputs)))
    return KernelGraph(
        inputs, (GraphDefined(operands, block),), tuple(len(inputs) + i for i in range(len(block.outputs)))
    )


def copy_block(**changes: object) -> BlockGraph:
    """Each block copies its part of one tensor."""
    base = BlockGraph(
        (2, 2, 1),
        (32, 1, 1),
        1,
        64,
        (InputIterator((0, 1, None), None),),
        (Op(OpKind.ACCUM_SUM, (0,)),),
        (OutputSaver(1, (0, 1, None)),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_axes_that_split_one_dim_keep_their_order() -> None:
    """x then y on one dim differs from y then x once the outputs are put together the other way."""
    same = copy_block(inputs=(InputIterator((0, 0, None), None),), outputs=(OutputSaver(1, (0, 0, None)),))
    mixed = copy_block(
        grid=(2, 4, 1), inputs=(InputIterator((0, 0, None), None),), outputs=(OutputSaver(1, (0, 0, None)),)
    )
    other = replace(mixed, grid=(4, 2, 1))
    eight = tensor("X", 8, 4)
    assert digest(one_kernel(mixed, eight)) != digest(one_kernel(other, eight))
    assert canonical(one_kernel(same, eight)) == one_kernel(same, eight)


def test_axes_of_extent_one_do_not_matter() -> None:
    wide = copy_block(grid=(1, 4, 1), inputs=(InputIterator((1, 0, 0), 1),), outputs=(OutputSaver(1, (0, 0, 1)),))
    plain = copy_block(
        grid=(4, 1, 1), inputs=(InputIterator((0, None, None), None),), outputs=(OutputSaver(1, (0, None, None)),)
    )
    assert canonical(one_kernel(wide, X)) == one_kernel(plain, X)


def test_an_unread_dimx_does_not_matter_and_a_read_one_does() -> None:
    assert digest(one_kernel(copy_block(), X)) == digest(one_kernel(copy_block(reduction_dimx=2), X))
    folded = copy_block(
        ops=(Op(OpKind.ACCUM_SUM_TO_DIMX, (0,)),),
        inputs=(InputIterator((0, None, None), None),),
        grid=(2, 1, 1),
        outputs=(OutputSaver(1, (0, None, None)),),
    )
    two, one = replace(folded, reduction_dimx=2), replace(folded, reduction_dimx=1)
    assert digest(one_kernel(two, X)) != digest(one_kernel(one, X))


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": (InputIterator((1, 0, None), None),)},
        {"inputs": (InputIterator((0, None, None), None),), "outputs": (OutputSaver(1, (0, 1, None)),)},
        {"outputs": (OutputSaver(1, (1, 0, None)),)},
        {"forloop_range": 2},
        {"block": (64, 1, 1)},
        {"grid": (4, 2, 1)},
        {"ops": (Op(OpKind.ACCUM_SUM_LAST, (0,)),)},
    ],
)
def test_what_differs_has_another_digest(change: dict[str, object]) -> None:
    """Swapping imap and omap of both axes together would be a renaming; each of these changes is not."""
    assert digest(one_kernel(copy_block(**change), X)) != digest(one_kernel(copy_block(), X))


def test_operands_of_a_kernel_are_unordered() -> None:
    iterator = InputIterator((0, None, None), None)
    block = BlockGraph(
        (2, 1, 1),
        (32, 1, 1),
        1,
        64,
        (iterator, iterator),
        (Op(OpKind.SUB, (0, 1)), Op(OpKind.ACCUM_SUM, (2,))),
        (OutputSaver(3, (0, None, None)),),
    )
    straight = KernelGraph((X, Y), (GraphDefined((0, 1), block),), (2,))
    flipped = replace(block, ops=(Op(OpKind.SUB, (1, 0)), block.ops[1]))
    assert canonical(KernelGraph((X, Y), (GraphDefined((1, 0), flipped),), (2,))) == straight
    assert digest(KernelGraph((X, Y), (GraphDefined((0, 1), flipped),), (2,))) != digest(straight)


def test_thread_graphs_are_put_in_order() -> None:
    def graph(inner: ThreadGraph, operands: tuple[int, ...]) -> KernelGraph:
        block = BlockGraph(
            (1, 1, 1),
            (32, 1, 1),
            1,
            64,
            (InputIterator((None,) * 3, None),) * 2,
            (ThreadDefined(operands, inner), Op(OpKind.ACCUM_SUM, (2,))),
            (OutputSaver(3, (None,) * 3),),
        )
        return one_kernel(block, X, Y)

    first = ThreadGraph(2, (Op(OpKind.EXP, (0,)), Op(OpKind.SILU, (1,)), Op(OpKind.MUL, (2, 3))), (4,))
    second = ThreadGraph(2, (Op(OpKind.SILU, (0,)), Op(OpKind.EXP, (1,)), Op(OpKind.MUL, (2, 3))), (4,))
    assert digest(graph(first, (0, 1))) == digest(graph(second, (1, 0)))
    assert digest(graph(first, (0, 1))) != digest(graph(second, (0, 1)))


def test_equal_results_are_not_merged() -> None:
    twice = KernelGraph((X,), (Op(OpKind.EXP, (0,)), Op(OpKind.EXP, (0,)), Op(OpKind.ADD, (1, 2))), (3,))
    once = KernelGraph((X,), (Op(OpKind.EXP, (0,)), Op(OpKind.ADD, (1, 1))), (2,))
    assert len(canonical(twice).ops) == 3
    assert digest(twice) != digest(once)


def test_digest_covers_the_interface() -> None:
    base = KernelGraph((X, Y), (Op(OpKind.ADD, (0, 1)), Op(OpKind.EXP, (2,))), (2, 3))
    others = [
        replace(base, inputs=(replace(X, name="Z"), Y)),
        replace(base, inputs=(replace(X, strides=(1, 4)), Y)),
        replace(base, inputs=(tensor("X", 4, 1), Y)),
        replace(base, outputs=(3, 2)),
        replace(base, outputs=(3,)),
        replace(base, inputs=tuple(replace(i, tensor=DTensor((4, 4), DType.BFLOAT16)) for i in base.inputs)),
    ]
    digests = {digest(g) for g in (base, *others)}
    assert len(digests) == 1 + len(others)
    assert all(len(d) == 64 for d in digests)


def test_faulty_graphs_are_refused() -> None:
    with pytest.raises(GraphError):
        canonical(KernelGraph((X,), (Op(OpKind.EXP, (1,)),), (1,)))
