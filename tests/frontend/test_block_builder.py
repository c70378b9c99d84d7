"""Front end of block graphs, with programs as the reference system's documents write them."""

from collections.abc import Callable

import pytest

import mirage_formal as mi
from mirage_formal.graph.graph import GraphDefined, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verifier import block_types, faults, kernel_types
from tests.kit.graphs.function_values import METHODS


def start(grid: object = (4, 1, 1), loop: int = 2) -> tuple[mi.Graph, mi.Tensor, mi.BlockBuilder, mi.BlockTensor]:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    block = mi.new_threadblock_graph(grid_dim=grid, block_dim=(128, 1, 1), forloop_range=loop, reduction_dimx=8)
    return graph, X, block, block.new_input(X, (0, -1, -1), 1)


def test_rms_norm_linear() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 4096), dtype=mi.float16)
    W = graph.new_input(dims=(4096, 4096), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(64, 1, 1), block_dim=(128, 1, 1), forloop_range=64, reduction_dimx=64)
    bX = tb_graph.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    bW = tb_graph.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
    bM = tb_graph.matmul(bX, bW)
    bAccX = tb_graph.forloop_accum(bX, "rms")
    bAccM = tb_graph.forloop_accum(bM)
    bO = tb_graph.div(bAccM, bAccX)
    tb_graph.new_output(stensor=bO, output_map=(1, -1, -1))
    results = graph.customized([X, W], tb_graph)
    graph.mark_output(results[0])
    frozen = graph.freeze()
    assert faults(frozen) == []
    assert kernel_types(frozen)[2].shape == (16, 4096)
    (op,) = frozen.ops
    assert isinstance(op, GraphDefined)
    assert op.operands == (0, 1)
    block = op.graph
    assert (block.grid, block.block, block.forloop_range, block.reduction_dimx) == ((64, 1, 1), (128, 1, 1), 64, 64)
    assert block.inputs == (InputIterator((None, None, None), 1), InputIterator((1, None, None), 0))
    assert block.ops == (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.ACCUM_RMS_LAST, (0,)),
        Op(OpKind.ACCUM_SUM, (2,)),
        Op(OpKind.DIV, (4, 3)),
    )
    assert block.outputs == (OutputSaver(5, (1, None, None)),)


def test_split_attention_with_online_softmax() -> None:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 256, 64))
    K = graph.new_input(dims=(2, 64, 1024))
    V = graph.new_input(dims=(2, 1024, 64))
    block = mi.new_threadblock_graph((2, 4, 1), (128, 1, 1), 8)
    q = block.new_input(Q, (0, 1, -1), None)
    k = block.new_input(K, (0, None, None), 2)
    v = block.new_input(V, (0, -1, -1), 1)
    s = block.mul_scalar(block.matmul(q, k), 0.125)
    top, moved = block.reduction_max(s, 2)
    e = block.exp(block.sub(s, top))
    factor = block.exp(moved)
    den = block.forloop_accum_rescale(e, factor, "sum")
    num = block.forloop_accum_rescale(block.matmul(e, v), factor)
    block.new_output(block.div(num, den), (0, 1, -1))
    (out,) = graph.customized([Q, K, V], block)
    graph.mark_output(out)
    assert faults(graph.freeze()) == []
    assert out.shape == (2, 256, 64)
    assert den.shape == (1, 64, 1)
    assert num.after_loop
    assert not top.after_loop
    # The operator hands on the factor itself: exp of the difference adds nothing.
    kinds = [op.kind for op in block.freeze().ops if isinstance(op, Op)]
    assert kinds.count(OpKind.EXP) == 1
    rescaled = block.freeze().ops[kinds.index(OpKind.ACCUM_RESCALED_SUM_LAST)]
    assert rescaled.operands == (e.number, top.number + 1)
    assert factor is block.exp(moved)


@pytest.mark.parametrize(
    ("operator", "use"),
    [
        ("sqrt", lambda block, x, moved: block.sqrt(moved)),
        ("scale", lambda block, x, moved: -moved),
        ("mul", lambda block, x, moved: x * moved),
        ("forloop_accum", lambda block, x, moved: block.forloop_accum(moved)),
        ("forloop_accum_rescale", lambda block, x, moved: block.forloop_accum_rescale(x, moved)),
        ("new_output", lambda block, x, moved: block.new_output(moved, (0, -1, -1))),
    ],
)
def test_the_difference_of_maxima_is_only_good_for_exp(operator: str, use: Callable[..., object]) -> None:
    _, _, block, x = start()
    _, moved = block.reduction_max(x, 1)
    text = f"{operator}: expected a tensor of this block graph, got the difference of maxima"
    with pytest.raises(mi.GraphError, match=text) as raised:
        use(block, x, moved)
    assert "exp(difference)" in raised.value.hint
    assert "test_block_builder.py:" in raised.value.where


def test_the_difference_of_maxima_of_another_graph() -> None:
    _, _, block, x = start()
    _, _, other, _ = start()
    _, moved = block.reduction_max(x, 1)
    with pytest.raises(mi.GraphError, match="exp: expected a tensor of this block graph"):
        other.exp(moved)
    with pytest.raises(mi.GraphError, match="expected a tensor of a kernel graph"):
        other.new_input(moved, (0, -1, -1))


def test_every_block_operator() -> None:
    _, X, block, x = start()
    y = block.new_input(X, (0, -1, -1), 1)
    inside = {
        OpKind.ADD: block.add(x, y),
        OpKind.SUB: block.sub(x, y),
        OpKind.MUL: block.mul(x, y),
        OpKind.DIV: block.div(x, y),
        **{kind: getattr(block, kind.value)(x) for kind in METHODS},
        OpKind.MAXIMUM: block.maximum(x, y),
        OpKind.MINIMUM: block.minimum(x, y),
        OpKind.EQ: block.eq(x, y),
        OpKind.LT: block.gt(x, y),
        OpKind.LE: block.le(x, y),
        OpKind.GT: block.lt(2, x),
        OpKind.GE: block.ge(x, 3),
        OpKind.SELECT: block.select(block.lt(x, 0), x, y),
        OpKind.LOGICAL_NOT: block.logical_not(block.lt(x, 1)),
        OpKind.DIV_NO_NAN: block.div_no_nan(x, y),
        OpKind.ROUND_FLOAT16: block.round_to(x, "float16"),
        OpKind.ROUND_BFLOAT16: block.round_to(x, "bfloat16"),
        OpKind.SHIFT: block.shift(x, 3),
        OpKind.RMS_NORM: block.rms_norm(x),
        OpKind.SCALE: block.mul_scalar(x, 3),
        OpKind.SUM: block.reduction(x, 1),
        OpKind.MEAN: block.mean(x, 0),
        OpKind.MAX: block.max(x, 0),
        OpKind.SUM_TO_DIMX: block.reduction_to_dimx(x, 1),
        OpKind.CONCAT: block.concat(x, y, 1),
        OpKind.REPEAT: block.repeat(block.reduction(x, 0), 0, 2),
    }
    behind = {
        OpKind.ACCUM_SUM: block.forloop_accum(x),
        OpKind.ACCUM_SUM_LAST: block.forloop_accum(x, "sum"),
        OpKind.ACCUM_MEAN_LAST: block.forloop_accum(x, acc="mean"),
        OpKind.ACCUM_RMS_LAST: block.forloop_accum(x, "rms"),
        OpKind.ACCUM_SUM_TO_DIMX: block.forloop_accum(x, "sum_todimx"),
        OpKind.ACCUM_MAX: block.forloop_accum_max(x),
        OpKind.ACCUM_CONCAT: block.forloop_concat(x, 1),
        OpKind.ACCUM_RESCALED_SUM: block.forloop_accum_rescale(x, block.reduction(x, 1)),
        OpKind.ACCUM_RESCALED_SUM_LAST: block.forloop_accum_rescale(x, block.reduction(x, 1), "sum"),
    }
    block.new_output(behind[OpKind.ACCUM_SUM], (0, -1, -1))
    frozen = block.freeze()
    types = block_types(frozen, (X.type, X.type))
    kinds = {2 + i: op.kind for i, op in enumerate(frozen.ops) if isinstance(op, Op)}
    for kind, handle in (inside | behind).items():
        assert kinds[handle.number] is kind
        assert handle.type == types[handle.number]
    assert all(not t.after_loop for t in inside.values())
    assert all(t.after_loop for t in behind.values())
    assert behind[OpKind.ACCUM_SUM_TO_DIMX].shape == inside[OpKind.SUM_TO_DIMX].shape == (4, 8)
    assert behind[OpKind.ACCUM_CONCAT].shape == (4, 64)
    assert inside[OpKind.RMS_NORM].graph is block
    assert frozen.ops[inside[OpKind.RMS_NORM].number - 2] == Op(OpKind.RMS_NORM, (0,), Attrs(dim=1))


def test_stages_are_kept_apart() -> None:
    _, _, block, x = start()
    a = block.forloop_accum(x)
    with pytest.raises(mi.GraphError, match="one inside the loop and one behind it") as raised:
        block.add(x, a)
    assert "forloop_accum" in raised.value.hint
    with pytest.raises(mi.GraphError, match="expected operands inside the loop"):
        block.forloop_accum(a)
    with pytest.raises(mi.GraphError, match="expected operands inside the loop"):
        block.reduction_max(a, 0)
    with pytest.raises(mi.GraphError, match="behind an accumulator"):
        block.new_output(x, (0, -1, -1))
    assert block.exp(a).after_loop


def test_non_dividing_grid_and_loop() -> None:
    graph = mi.new_kernel_graph()
    K = graph.new_input(dims=(16, 64))
    block = mi.new_threadblock_graph((4, 3, 1), (128,), 8)
    with pytest.raises(
        mi.ShapeError, match=r"K\[16,64\]: imap y: expected dim 1 of extent 64 to be a multiple of grid 3"
    ):
        block.new_input(K, (0, 1, -1), None)
    with pytest.raises(mi.ShapeError, match=r"fmap: expected dim 0 of extent 4 per block to be a multiple of 8"):
        block.new_input(K, (0, -1, -1), 0)
    with pytest.raises(mi.ShapeError, match=r"expected a dim in 0\.\.1, got 2"):
        block.new_input(K, (2, -1, -1), -1)
    with pytest.raises(mi.ShapeError, match=r"fmap: expected a dim in 0\.\.1, got 5"):
        block.new_input(K, (0, -1, -1), 5)


@pytest.mark.parametrize("imap", [(0, 1), 0, (0, -2, -1), (0, "x", -1), "012x", None])
def test_bad_maps(imap: object) -> None:
    _, X, block, _ = start()
    with pytest.raises(mi.ShapeError, match="input_map"):
        block.new_input(X, imap, 1)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (((0, 1, 1), (128, 1, 1), 1), "grid_dim"),
        (((1, 1, 1, 1), (128, 1, 1), 1), "grid_dim"),
        (((1, 1, 1), (128, 1.5, 1), 1), "block_dim"),
        (((1, 1, 1), (128, 1, 1), 0), "forloop_range"),
        (((1, 1, 1), (128, 1, 1), "4"), "forloop_range"),
        (((1, 1, 1), (128, 1, 1), 1, 0), "reduction_dimx"),
    ],
)
def test_bad_geometry(arguments: tuple[object, ...], what: str) -> None:
    with pytest.raises(mi.ShapeError, match=what):
        mi.new_threadblock_graph(*arguments)  # type: ignore[arg-type]


def test_outputs_cover_the_grid() -> None:
    _, _, block, x = start(grid=(4, 2, 1))
    a = block.forloop_accum(x)
    with pytest.raises(mi.ShapeError, match="omap y: expected a dim, because grid y is 2, got none"):
        block.new_output(a, (0, -1, -1))
    with pytest.raises(mi.UnsupportedError, match="forloop_dim"):
        block.new_output(a, (0, 1, -1), forloop_dim=0)
    with pytest.raises(mi.GraphError, match="at least one output"):
        block.freeze()


def test_what_is_not_supported() -> None:
    _, X, block, x = start()
    whats: tuple[Callable[[], object], ...] = (
        lambda: block.clamp(x),
        lambda: block.pow(x, x),  # type: ignore[arg-type]
        lambda: block.forloop_accum(x, "max"),
        lambda: block.forloop_accum_rescale(x, x, "mean"),
        lambda: block.add(x, float("nan")),
        lambda: block.new_input(X, (0, -1, -1), 1, store_in_dmem=True),
    )
    for what in whats:
        with pytest.raises(mi.UnsupportedError):
            what()


def test_ranks_are_not_raised_inside_a_block() -> None:
    graph, _, block, x = start()
    v = graph.new_input((64,))
    with pytest.raises(mi.ShapeError, match="expected equal ranks"):
        block.add(x, block.new_input(v, (-1, -1, -1), 0))


def test_products_inside_a_block_are_not_batched() -> None:
    graph = mi.new_kernel_graph()
    A = graph.new_input((2, 4, 4))
    block = mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1)
    a = block.new_input(A, (-1, -1, -1), -1)
    with pytest.raises(mi.ShapeError, match="leading dimensions 1 inside a block"):
        block.matmul(a, a)


def test_tensors_of_the_wrong_level() -> None:
    graph, X, block, x = start()
    with pytest.raises(mi.GraphError, match="a tensor of this block graph"):
        block.exp(X)  # type: ignore[arg-type]
    with pytest.raises(mi.GraphError):
        graph.exp(x)  # type: ignore[arg-type]
    with pytest.raises(mi.GraphError, match="a tensor of a kernel graph"):
        block.new_input(x, (0, -1, -1), 1)
    block.exp(x)
    with pytest.raises(mi.GraphError, match="after an operator"):
        block.new_input(X, (0, -1, -1), 1)


def test_customized_checks_its_inputs() -> None:
    graph, X, block, x = start()
    with pytest.raises(mi.GraphError, match="at least one output"):
        graph.customized([X], block)
    block.new_output(block.forloop_accum(x), (0, -1, -1))
    other = graph.new_input((16, 32))
    half = graph.new_input((16, 64), mi.bfloat16)
    with pytest.raises(mi.GraphError, match="expected 1 inputs, got 2"):
        graph.customized([X, X], block)
    with pytest.raises(mi.ShapeError, match=r"input 0: expected X\[16,64\] as in new_input, got other\[16,32\]"):
        graph.customized([other], block)
    with pytest.raises(mi.DTypeError, match="expected float16, got"):
        graph.customized([half], block)
    with pytest.raises(mi.GraphError, match="expected a block graph, got str"):
        graph.customized([X], "block")  # type: ignore[arg-type]
    # The same block graph may be used on any tensor of that type.
    first, second = graph.customized([X], block), graph.customized([graph.exp(X)], block)
    graph.mark_output(first[0] + second[0])
    assert faults(graph.freeze()) == []
