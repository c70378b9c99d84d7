"""Front end of programs: shapes, element types, constants, names, and errors at the user's line."""

import inspect
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import SPECS, Attrs, Level, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import faults, kernel_types
from tests.kit.graphs.function_values import METHODS


def next_line() -> str:
    """The caller's file and next line, as messages write it."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"tests/frontend/test_kernel_builder.py:{frame.f_back.f_lineno + 1}"


def pair() -> tuple[mf.Graph, mf.Tensor, mf.Tensor]:
    graph = mf.new_kernel_graph()
    Q = graph.new_input(dims=(64, 128), dtype=mf.float16)
    K = graph.new_input(dims=(64, 128), dtype=mf.float16)
    return graph, Q, K


def program(graph: mf.Graph, *outputs: mf.Tensor) -> KernelGraph:
    for output in outputs:
        graph.mark_output(output)
    frozen = graph.freeze()
    assert faults(frozen) == []
    return frozen


def test_attention() -> None:
    graph = mf.new_kernel_graph()
    Q = graph.new_input(dims=(2, 256, 64), dtype=mf.float16)
    K = graph.new_input(dims=(2, 64, 4096), dtype=mf.float16)
    V = graph.new_input(dims=(2, 4096, 64), dtype=mf.float16)
    A = graph.matmul(Q, K)
    E = graph.exp(A)
    S = graph.reduction(E, 2)
    D = graph.div(E, S)
    frozen = program(graph, graph.matmul(D, V))
    assert [item.name for item in frozen.inputs] == ["Q", "K", "V"]
    assert frozen.inputs[1].strides == (64 * 4096, 4096, 1)
    assert frozen.ops == (
        Op(OpKind.MATMUL, (0, 1)),
        Op(OpKind.EXP, (3,)),
        Op(OpKind.SUM, (4,), Attrs(dim=2)),
        Op(OpKind.DIV, (4, 5)),
        Op(OpKind.MATMUL, (6, 2)),
    )
    assert frozen.outputs == (7,)


def test_every_operator() -> None:
    graph = mf.new_kernel_graph()
    A = graph.new_input((4, 8))
    B = graph.new_input((4, 8))
    w = graph.new_input((8,))
    m = graph.new_input((4, 8), "bool")
    made = {
        OpKind.ADD: graph.add(A, B),
        OpKind.SUB: graph.sub(A, B),
        OpKind.MUL: graph.mul(A, B),
        OpKind.DIV: graph.div(A, B),
        **{kind: getattr(graph, kind.value)(A) for kind in METHODS},
        OpKind.MAXIMUM: graph.maximum(A, B),
        OpKind.MINIMUM: graph.minimum(A, B),
        OpKind.EQ: graph.eq(A, B),
        OpKind.LT: graph.lt(A, B),
        OpKind.LE: graph.ge(A, B),
        OpKind.GT: graph.gt(A, 2),
        OpKind.GE: graph.ge(A, Fraction(1, 2)),
        OpKind.SELECT: graph.select(m, A, B),
        OpKind.LOGICAL_NOT: graph.logical_not(m),
        OpKind.DIV_NO_NAN: graph.div_no_nan(A, B),
        OpKind.ROUND_FLOAT16: graph.round_to(A, "float16"),
        OpKind.ROUND_BFLOAT16: graph.round_to(A, "bfloat16"),
        OpKind.SHIFT: graph.shift(A, 2),
        OpKind.SLICE: graph.slice(A, 1, 2, 5),
        OpKind.PAD: graph.pad(A, 0, 1, 2),
        OpKind.SCALE: graph.scale(A, 2),
        OpKind.SUM: graph.reduction(A, -1),
        OpKind.MEAN: graph.mean(A, 0),
        OpKind.MAX: graph.max(A, 1),
        OpKind.SOFTMAX: graph.softmax(A),
        OpKind.RMS_NORM: graph.rms_norm(A),
        OpKind.LAYER_NORM: graph.layer_norm(A, -1, w, w, 1e-5),
        OpKind.TRANSPOSE: graph.transpose(A),
        OpKind.RESHAPE: graph.reshape(A, (8, 4)),
        OpKind.CONCAT: graph.concat(A, B, 0),
        OpKind.REPEAT: graph.repeat(graph.reduction(B, 1), 1, 3),
        OpKind.CAST: graph.cast(A, "float32"),
        OpKind.MATMUL: graph.matmul(A, graph.transpose(B, 0, 1)),
    }
    assert set(made) == {kind for kind, spec in SPECS.items() if Level.KERNEL in spec.levels}
    frozen = program(graph, *made.values())
    kinds = [op.kind for op in frozen.ops if isinstance(op, Op)]
    producers = {}
    number = len(frozen.inputs)
    for op in frozen.ops:
        producers[number] = op
        number += op.results
    for (kind, handle), output in zip(made.items(), frozen.outputs, strict=True):
        op = producers[output]
        assert isinstance(op, Op)
        assert op.kind is kind
        assert kernel_types(frozen)[output] == DTensor(handle.shape, handle.dtype)
    assert kinds.count(OpKind.RESHAPE) == 3  # one asked for, two bring w to the rank of A
    assert made[OpKind.SUM].shape == (4, 1)
    assert made[OpKind.CONCAT].shape == (8, 8)
    assert made[OpKind.CAST].dtype is mf.float32
    assert made[OpKind.REPEAT].shape == (4, 3)


def test_matmul_message_names_the_line_and_the_remedy() -> None:
    graph, Q, K = pair()

    def wrong() -> None:
        lines.append(next_line())
        graph.matmul(Q, K)

    lines: list[str] = []
    with pytest.raises(mf.ShapeError) as raised:
        wrong()
    (where,) = lines
    assert raised.value.where == where
    assert raised.value.what == ("matmul: inner dimensions differ: Q[64,128] has 128, K[64,128] has 64; transpose K?")
    assert str(raised.value).startswith(f"{where}: matmul: inner dimensions differ")
    assert graph.matmul(Q, graph.transpose(K)).shape == (64, 64)


def test_a_rank_mismatch_in_matmul() -> None:
    graph, Q, _ = pair()
    W = graph.new_input((2, 128, 4))
    assert graph.matmul(Q, W).shape == (2, 64, 4)
    V = graph.new_input((3, 2, 64, 8))
    with pytest.raises(mf.ShapeError, match=r"inner dimensions differ: W\[2,128,4\] has 4, V\[3,2,64,8\] has 64"):
        graph.matmul(W, V)
    with pytest.raises(mf.ShapeError, match=r"leading dimensions that are equal or 1 \(operands"):
        graph.matmul(graph.new_input((3, 8, 4)), graph.new_input((2, 4, 8)))


def test_errors_inside_a_users_function_name_its_line() -> None:
    def helper(graph: mf.Graph, a: mf.Tensor, b: mf.Tensor) -> mf.Tensor:
        lines.append(next_line())
        return a @ b

    lines: list[str] = []
    with pytest.raises(mf.ShapeError) as raised:
        helper(*pair())
    assert raised.value.where == lines[0]


def test_names_come_from_the_users_variables() -> None:
    graph = mf.new_kernel_graph()
    alpha = graph.new_input((2, 2))
    beta = graph.new_input((2, 2), name="other")
    listed = [graph.new_input((2, 2)) for _ in range(2)]
    alpha_2 = alpha
    for _ in range(2):
        gamma = graph.new_input((2, 2))
    assert [t.label for t in (alpha, beta, *listed, gamma)] == ["alpha", "other", "input2", "input3", "gamma_2"]
    assert repr(alpha_2) == "alpha[2,2]"
    with pytest.raises(mf.GraphError, match="new identifier as name, got 'alpha'"):
        graph.new_input((2, 2), name="alpha")
    with pytest.raises(mf.GraphError, match="got 'a b'"):
        graph.new_input((2, 2), name="a b")


class Holder:
    """Names of attributes count as well."""

    def __init__(self, graph: mf.Graph) -> None:
        self.weight = graph.new_input((2, 2))


def test_names_from_attributes_and_globals() -> None:
    graph = mf.new_kernel_graph()
    assert Holder(graph).weight.label == "weight"
    exec("X = graph.new_input((2, 2))", {"graph": graph})
    assert graph.inputs[1].label == "X"


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (mf.float16, DType.FLOAT16),
        ("float16", DType.FLOAT16),
        ("half", DType.FLOAT16),
        ("torch.bfloat16", DType.BFLOAT16),
        (np.float32, DType.FLOAT32),
        (np.dtype("float16"), DType.FLOAT16),
    ],
)
def test_dtypes(given: object, dtype: DType) -> None:
    assert mf.new_kernel_graph().new_input((2,), given).dtype is dtype


@pytest.mark.parametrize("given", ["int8", "float64", "float8_e4m3", 941, np.int32, object()])
def test_other_dtypes_are_refused(given: object) -> None:
    with pytest.raises(mf.DTypeError, match="expected one of float16, bfloat16, float32") as raised:
        mf.new_kernel_graph().new_input(dims=(2,), dtype=given)
    assert "test_kernel_builder.py" in raised.value.where


def test_operands_of_different_dtypes() -> None:
    graph = mf.new_kernel_graph()
    A = graph.new_input((2, 2), "float16")
    B = graph.new_input((2, 2), "float32")
    with pytest.raises(mf.DTypeError, match=r"A\[2,2\] float16, B\[2,2\] float32"):
        graph.add(A, B)
    assert graph.add(graph.cast(A, mf.float32), B).dtype is mf.float32


def test_strides_in_either_place() -> None:
    graph = mf.new_kernel_graph()
    A = graph.new_input((4, 8), (1, 4), mf.bfloat16)
    B = graph.new_input((4, 8), mf.bfloat16, (1, 4))
    C = graph.new_input(dims=(4, 8), strides=[1, 4])
    D = graph.new_input((4, 8), None)
    frozen = program(graph, A + B, graph.exp(C), graph.exp(D))
    assert [i.strides for i in frozen.inputs] == [(1, 4), (1, 4), (1, 4), (8, 1)]
    assert [i.tensor.dtype for i in frozen.inputs] == [mf.bfloat16, mf.bfloat16, mf.float16, mf.float16]
    with pytest.raises(mf.ShapeError, match="expected 2 strides"):
        graph.new_input((4, 8), strides=(1,))


@pytest.mark.parametrize(
    "dims", [(), (0, 2), (2, -1), (2.5,), (True,), "ab", (1 << 40,), (1,) * 9, (1 << 30, 1 << 30), None]
)
def test_bad_dims(dims: object) -> None:
    with pytest.raises(mf.ShapeError, match="new_input"):
        mf.new_kernel_graph().new_input(dims)  # type: ignore[arg-type]


def test_exact_constants() -> None:
    graph, Q, K = pair()
    cases: dict[Any, Fraction] = {
        0.1: Fraction(1, 10),
        3: Fraction(3),
        Fraction(1, 3): Fraction(1, 3),
        Decimal("0.25"): Fraction(1, 4),
        np.float32(0.5): Fraction(1, 2),
        np.float64(0.1): Fraction(1, 10),
        1e-30: Fraction(1, 10**30),
    }
    for given in cases:
        graph.mark_output(graph.scale(Q, given))
    for handle in (2 * Q, Q * 2, graph.mul(Q, 2), graph.mul_scalar(Q, 2), np.float32(2) * Q, Q / 4, -K):
        graph.mark_output(handle)
    factors = [op.attrs.factor for op in graph.freeze().ops if isinstance(op, Op)]
    assert factors == [*cases.values(), *[Fraction(2)] * 5, Fraction(1, 4), Fraction(-1)]


def test_what_constants_cannot_do() -> None:
    graph, Q, K = pair()
    for what in (
        lambda: Q / 0,
        lambda: Q + float("nan"),
        lambda: graph.scale(Q, float("nan")),
        lambda: graph.scale(Q, float("inf")),
        lambda: graph.scale(Q, "2"),  # type: ignore[arg-type]
        lambda: graph.scale(Q, True),
        lambda: graph.scale(Q, 10**2000),
        lambda: graph.rms_norm(Q, eps=-1),
        lambda: graph.clamp(Q),
        lambda: graph.pow(Q, K),  # type: ignore[arg-type]
    ):
        with pytest.raises(mf.UnsupportedError) as raised:
            what()
        assert raised.value.hint
        assert raised.value.where.startswith("tests/frontend/test_kernel_builder.py:")


def test_operators_of_python() -> None:
    graph, Q, K = pair()
    frozen = program(graph, Q + K, Q - K, Q * K, Q / K, Q @ graph.transpose(K))
    kinds = [op.kind for op in frozen.ops if isinstance(op, Op)]
    assert kinds == [OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV, OpKind.TRANSPOSE, OpKind.MATMUL]
    assert all(op.operands == (0, 1) for op in frozen.ops[:4])


def test_numpy_broadcast_by_rank() -> None:
    graph = mf.new_kernel_graph()
    X = graph.new_input((2, 3, 4))
    b = graph.new_input((4,))
    m = graph.new_input((3, 1))
    frozen = program(graph, X + b, m * X)
    assert frozen.ops == (
        Op(OpKind.RESHAPE, (1,), Attrs(shape=(1, 1, 4))),
        Op(OpKind.ADD, (0, 3)),
        Op(OpKind.RESHAPE, (2,), Attrs(shape=(1, 3, 1))),
        Op(OpKind.MUL, (5, 0)),
    )
    with pytest.raises(mf.ShapeError, match=r"X\[2,3,4\], c\[1,1,5\]"):
        graph.add(X, graph.new_input((5,), name="c"))


def test_rms_norm_forms() -> None:
    graph = mf.new_kernel_graph()
    X = graph.new_input((2, 3, 4))
    w = graph.new_input((4,))
    v = graph.new_input((3,))
    both = graph.new_input((3, 4))
    plain = graph.rms_norm(X)
    shaped = graph.rms_norm(X, normalized_shape=(4,), weight=w, eps=1e-6)
    middle = graph.rms_norm(X, dim=1, weight=v)
    wide = graph.rms_norm(X, (3, 4), weight=both)
    frozen = program(graph, plain, shaped, middle, wide)
    ops = list(frozen.ops)
    assert ops[0] == Op(OpKind.RMS_NORM, (0,), Attrs(dim=2))
    assert ops[2] == Op(OpKind.RMS_NORM, (0, 5), Attrs(dim=2, eps=Fraction(1, 10**6)))
    assert ops[3] == Op(OpKind.RESHAPE, (2,), Attrs(shape=(1, 3, 1)))
    assert ops[4] == Op(OpKind.RMS_NORM, (0, 7), Attrs(dim=1))
    flat = [op.attrs.shape for op in ops[5:] if isinstance(op, Op) and op.kind is OpKind.RESHAPE]
    assert flat == [(2, 12), (12,), (1, 12), (2, 3, 4)]
    assert [t.shape for t in (plain, shaped, middle, wide)] == [(2, 3, 4)] * 4
    for wrong in ((3,), (2, 3), (2, 2, 3, 4), ()):
        with pytest.raises(mf.ShapeError, match="normalized_shape to be the last dims"):
            graph.rms_norm(X, wrong)
    with pytest.raises(mf.ShapeError, match="weight"):
        graph.rms_norm(X, weight=v)
    with pytest.raises(mf.ShapeError, match="weight"):
        graph.rms_norm(X, (3, 4), weight=w)
    with pytest.raises(mf.ShapeError, match="weight"):
        graph.rms_norm(w, weight=X)


def test_layer_norm_forms() -> None:
    graph = mf.new_kernel_graph()
    X = graph.new_input((2, 4))
    b = graph.new_input((4,))
    frozen = program(graph, graph.layer_norm(X), graph.layer_norm(X, bias=b), graph.layer_norm(X, weight=b, bias=b))
    ops = [op for op in frozen.ops if isinstance(op, Op) and op.kind is not OpKind.RESHAPE]
    assert [(op.kind, len(op.operands)) for op in ops] == [
        (OpKind.LAYER_NORM, 1),
        (OpKind.LAYER_NORM, 1),
        (OpKind.ADD, 2),
        (OpKind.LAYER_NORM, 3),
    ]


def test_transpose_reshape_concat_forms() -> None:
    graph = mf.new_kernel_graph()
    X = graph.new_input((2, 3, 4))
    assert graph.transpose(X).shape == (2, 4, 3)
    assert graph.transpose(X, 0, 2).shape == (4, 3, 2)
    assert graph.transpose(X, (1, 2, 0)).shape == graph.transpose(X, perm=(1, 2, 0)).shape == (3, 4, 2)
    assert graph.reshape(X, (6, -1)).shape == graph.reshape(X, 6, 4).shape == (6, 4)
    assert graph.reshape(X, (2, 3, 4)) is X
    assert graph.concat([X, X, X], 1).shape == graph.concat([X, X, X], dim=1).shape == (2, 9, 4)
    assert graph.concat(A=X, B=X, dim=-1).shape == (2, 3, 8)
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: graph.transpose(X, (0, 1)),
        lambda: graph.transpose(X, 0, 3),
        lambda: graph.reshape(X, (5, -1)),
        lambda: graph.reshape(X, (-1, -1)),
        lambda: graph.reshape(X, (2, 3)),
        lambda: graph.concat([], 1),
        lambda: graph.concat(X, graph.transpose(X), 0),
        lambda: graph.concat(X, X, 3),
        lambda: graph.reduction(X, 3),
        lambda: graph.reduction(X, None),  # type: ignore[arg-type]
    )
    for wrong in wrongs:
        with pytest.raises(mf.ShapeError):
            wrong()


def test_tensors_of_another_graph() -> None:
    graph, Q, _ = pair()
    _, other, _ = pair()
    with pytest.raises(mf.GraphError, match="of another graph"):
        graph.add(Q, other)
    with pytest.raises(mf.GraphError, match="expected a tensor of this graph, got list"):
        graph.exp([1.0])  # type: ignore[arg-type]


def test_outputs() -> None:
    graph, Q, _ = pair()
    with pytest.raises(mf.GraphError, match="expected at least one output"):
        graph.freeze()
    with pytest.raises(mf.GraphError, match=r"got the input Q\[64,128\]"):
        graph.mark_output(Q)
    E = graph.exp(Q)
    graph.mark_output(E, strides=(128, 1))
    with pytest.raises(mf.GraphError, match="marked already"):
        graph.mark_output(E)
    with pytest.raises(mf.UnsupportedError, match="row-major"):
        graph.mark_output(graph.square(Q), strides=(1, 64))
    assert graph.freeze().outputs == (2,)


def test_freeze_drops_what_no_output_needs_and_renumbers() -> None:
    graph = mf.new_kernel_graph()
    A = graph.new_input((2, 2))
    E = graph.exp(A)
    graph.silu(E)
    B = graph.new_input((2, 2))
    frozen = program(graph, graph.add(E, B))
    assert frozen.ops == (Op(OpKind.EXP, (0,)), Op(OpKind.ADD, (2, 1)))
    assert frozen.outputs == (3,)
    graph.new_input((3,), name="unused")
    assert len(graph.freeze().inputs) == 3


def test_tensor_properties() -> None:
    _, Q, _ = pair()
    assert (Q.num_dims, Q.dim(0), Q.dim(1), Q.dtype, Q.shape) == (2, 64, 128, mf.float16, (64, 128))


def test_labels_of_results_stay_short() -> None:
    graph, Q, K = pair()
    S = Q + K
    assert repr(S) == "add(Q,K)[64,128]"
    assert repr(graph.sqrt(graph.silu(graph.exp(S)))) == "t5[64,128]"


def test_customized_is_a_kernel() -> None:
    graph, Q, _ = pair()
    block = mf.new_threadblock_graph((64, 1, 1), (128, 1, 1), 1)
    tile = block.new_input(Q, (0, -1, -1), -1)
    block.new_output(block.forloop_accum(tile), (0, -1, -1))
    (copy,) = graph.customized([Q], block)
    frozen = program(graph, graph.exp(copy))
    assert isinstance(frozen.ops[0], GraphDefined)
    assert frozen.ops[1] == Op(OpKind.EXP, (2,))
