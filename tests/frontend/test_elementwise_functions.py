"""What the functions of the front end compute, against numpy: whatever is composed is the function of its name."""

import inspect
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_formal as mf
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.semantics.float64_reference import run
from tests.kit.graphs.function_values import METHODS, values

Array = NDArray[Any]

rng = np.random.default_rng(0)
x, y = rng.normal(size=(4, 6, 8)), rng.normal(size=(4, 6, 8))
p = np.abs(x) + 0.1
w8, b8, w68, b68 = (rng.normal(size=shape) for shape in (8, 8, (6, 8), (6, 8)))
W, B5 = rng.normal(size=(5, 8)), rng.normal(size=5)
m01 = (x > 0).astype(float)
above, below = x > 0.5, y < 0.5
near = np.where(above, x, np.round(y))  # elements that are equal to those of x, and others


def lse(a: Array, axis: int, keep: bool = True) -> Array:
    return np.asarray(np.log(np.exp(a).sum(axis=axis, keepdims=keep)))


def ln(a: Array, axes: Any) -> Array:
    return np.asarray((a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + 1e-5))


def rms(a: Array, axes: Any) -> Array:
    return np.asarray(a / np.sqrt((a * a).mean(axes, keepdims=True) + 1e-5))


def nearest_bfloat16(a: Array) -> Array:
    """Numbers of float32 rounded to 16 bits, ties to even, as integers do it."""
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(float)


def cast(t: mf.Tensor) -> mf.Tensor:
    return t.graph.cast(t, "float32")


single = x.astype(np.float32).astype(float)
with np.errstate(all="ignore"):
    logarithm, quotient = np.log(x), x / np.round(y)

CASES: dict[str, tuple[Callable[..., Any], list[Array], Any]] = {
    **{kind.value: (operator.methodcaller(kind.value), [p], values(kind, p)) for kind in METHODS},
    "|x|": (lambda t: abs(t), [x], np.abs(x)),
    "recip": (lambda t: 1 / t, [x], 1 / x),
    "2/x": (lambda t: 2 / t, [x], 2 / x),
    "1-x": (lambda t: 1 - t, [x], 1 - x),
    "x+1": (lambda t: t + 1, [x], x + 1),
    "x-1": (lambda t: t - 1, [x], x - 1),
    "**2": (lambda t: t**2, [x], x**2),
    "**3": (lambda t: t**3, [x], x**3),
    "**-2": (lambda t: t**-2, [x], x**-2.0),
    "**-.5": (lambda t: t**-0.5, [p], p**-0.5),
    "**1.5": (lambda t: t**1.5, [p], p**1.5),
    "**.3": (lambda t: t**0.3, [p], p**0.3),
    "**0": (lambda t: t**0, [p], p**0),
    "rsqrt": (lambda t: t.rsqrt(), [p], p**-0.5),
    "gelu": (
        lambda t: t.gelu(approximate="tanh"),
        [x],
        0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "leaky": (lambda t: t.leaky_relu(0.1), [x], np.where(x > 0, x, 0.1 * x)),
    "max2": (lambda t, u: t.maximum(u), [x, y], np.maximum(x, y)),
    "min2": (lambda t, u: t.minimum(u), [x, y], np.minimum(x, y)),
    "clamp": (lambda t: t.clamp(-0.5, 0.5), [x], np.clip(x, -0.5, 0.5)),
    "clamp0": (lambda t: t.clamp(min=0), [x], np.clip(x, 0, None)),
    "sum": (lambda t: t.sum(), [x], x.sum(keepdims=True)),
    "sum12": (lambda t: t.sum((1, 2), keepdim=False), [x], x.sum((1, 2))),
    "mean": (lambda t: t.mean((0, -1)), [x], x.mean((0, 2), keepdims=True)),
    "max": (lambda t: t.max(1, keepdim=False), [x], x.max(1)),
    "min": (lambda t: t.min(), [x], x.min(keepdims=True)),
    "lse": (lambda t: t.logsumexp(1, keepdim=False), [x], lse(x, 1, False)),
    "lsm": (lambda t: t.log_softmax(-1), [x], x - lse(x, 2)),
    "sl": (lambda t: t[:, 1:5], [x], x[:, 1:5]),
    "sl2": (lambda t: t[..., 3:7], [x], x[..., 3:7]),
    "sl3": (lambda t: t[1, None, ::2, -3:], [x], x[1, None, ::2, -3:]),
    "sl4": (lambda t: t[..., 1::3], [x], x[..., 1::3]),
    "sl5": (lambda t: t[::5], [x], x[::5]),
    "T": (lambda t: t.T, [x], x.T),
    "mT": (lambda t: t.mT, [x], x.swapaxes(-1, -2)),
    "split": (lambda t: t.split([2, 4], 1), [x], [x[:, :2], x[:, 2:]]),
    "split5": (lambda t: t.split(5, 2), [x], [x[:, :, :5], x[:, :, 5:]]),
    "chunk": (lambda t: t.chunk(3, 1), [x], [x[:, :2], x[:, 2:4], x[:, 4:]]),
    "iter": (lambda t: [r + 0.5 for r in t], [x], [r + 0.5 for r in x]),
    "pad": (lambda t: t.pad(1, 2, 1), [x], np.pad(x, ((0, 0), (2, 1), (0, 0)))),
    "padv": (lambda t: t.pad(2, 2, 1, value=-7), [x], np.pad(x, ((0, 0), (0, 0), (2, 1)), constant_values=-7)),
    "perm": (lambda t: t.permute(2, 0, 1), [x], x.transpose(2, 0, 1)),
    "expand": (lambda t: t[:, :1].expand(2, -1, 3, -1), [x], np.broadcast_to(x[:, :1], (2, 4, 3, 8))),
    "squeeze": (lambda t: (t[:1] + 1).squeeze(0), [x], x[0] + 1),
    "unsq": (lambda t: t.unsqueeze(1), [x], x[:, None]),
    "flat": (lambda t: t.flatten(1), [x], x.reshape(4, 48)),
    "ri": (lambda t: t.repeat_interleave(3, 1), [x], x.repeat(3, 1)),
    "linear": (lambda t, w, b: t.linear(w, b), [x, W, B5], x @ W.T + B5),
    "addmm": (lambda b, t, w: t.graph.addmm(b, t, w), [B5, x[0], W.T], B5 + x[0] @ W.T),
    "mm1": (lambda t, u: t @ u, [x, y[0].T], x @ y[0].T),
    "mm2": (lambda t, u: t @ u, [x[0], y.swapaxes(1, 2)], x[0] @ y.swapaxes(1, 2)),
    "mm3": (lambda t, u: t @ u, [w8, y.swapaxes(1, 2)], w8 @ y.swapaxes(1, 2)),
    "mm4": (lambda t, u: t @ u, [x, w8], x @ w8),
    "mm5": (lambda t, u: t @ u, [w8, b8], np.array([w8 @ b8])),
    "mm6": (lambda t, u: t[:, None] @ u[None], [x, y.swapaxes(1, 2)], x[:, None] @ y.swapaxes(1, 2)[None]),
    "where": (lambda m, t, u: m.where(t, u), [m01, x, y], np.where(m01 > 0, x, y)),
    "where1": (lambda m, t: m.where(t, -100), [m01, x], np.where(m01 > 0, x, -100)),
    "where2": (lambda m, t: m.where(0, t), [m01, x], np.where(m01 > 0, 0, x)),
    "eq": (lambda t, u: cast(t.eq(u)), [x, near], x == near),
    "ne": (lambda t, u: cast(t.ne(u)), [x, near], x != near),
    "lt": (lambda t, u: cast(t.lt(u)), [x, near], x < near),
    "le": (lambda t, u: cast(t.le(u)), [x, near], x <= near),
    "gt": (lambda t, u: cast(t.gt(u)), [x, near], x > near),
    "ge": (lambda t, u: cast(t.ge(u)), [x, near], x >= near),
    "eq1": (lambda t: cast(t.eq(-1)), [near], near == -1),
    "ne1": (lambda t: cast(t.graph.ne(1, t)), [near], near != 1),
    "lt1": (lambda t: cast(t.lt(1)), [near], near < 1),
    "le1": (lambda t: cast(t.le(1)), [near], near <= 1),
    "gt1": (lambda t: cast(t.gt(1)), [near], near > 1),
    "ge1": (lambda t: cast(t.ge(1)), [near], near >= 1),
    "1lt": (lambda t: cast(t.graph.lt(1, t)), [near], near > 1),
    "1ge": (lambda t: cast(t.graph.ge(1, t)), [near], near <= 1),
    "lt of rows": (lambda t, u: cast(t.lt(u)), [x, w8], x < w8),
    "not": (lambda m: cast(m.logical_not()), [above], ~above),
    "and": (lambda m, n: cast(m.logical_and(n)), [above, below], above & below),
    "or": (lambda m, n: cast(m.logical_or(n)), [above, below], above | below),
    "and of rows": (lambda m, n: cast(m.logical_and(n)), [above, below[0, :1]], above & below[0, :1]),
    "any": (lambda m: cast(m.max(2)), [above], above.any(2, keepdims=True)),
    "select": (lambda m, t, u: m.select(t, u), [above, x, y], np.where(above, x, y)),
    "select1": (lambda m, t: m.select(t, -100), [above, x], np.where(above, x, -100)),
    "select2": (lambda m, t: m.select(0, t), [above, x], np.where(above, 0, x)),
    "select of rows": (lambda m, t, u: m.select(t, u), [above[0], x, y[:, :1]], np.where(above[0], x, y[:, :1])),
    "select by a column": (lambda m, t: m.select(t, 1), [above[..., :1], w8], np.where(above[..., :1], w8, 1)),
    "where of a mask": (lambda m, t, u: m.where(t, u), [above, x, y], np.where(above, x, y)),
    "discarded": (lambda t: t.gt(0).select(t.log(), 0), [x], np.where(x > 0, logarithm, 0)),
    "discarded quotients": (
        lambda t, u: u.eq(0).select(-1, t / u),
        [x, np.round(y)],
        np.where(np.round(y) == 0, -1, quotient),
    ),
    "div_no_nan": (lambda t, u: t.div_no_nan(u), [x, np.round(y)], np.where(np.round(y) == 0, 0, quotient)),
    "float16": (lambda t: t.round_to("float16"), [x * 1e4], (x * 1e4).astype(np.float16).astype(float)),
    "bfloat16": (lambda t: t.round_to(mf.bfloat16), [single], nearest_bfloat16(single)),
    "where3": (lambda m: m.where(2, -100), [m01], np.where(m01 > 0, 2, -100)),
    "ln": (lambda t, w, b: t.graph.layer_norm(t, (6, 8), w, b, 1e-5), [x, w68, b68], ln(x, (1, 2)) * w68 + b68),
    "ln1": (lambda t, b: t.graph.layer_norm(t, bias=b, eps=1e-5), [x, b8], ln(x, 2) + b8),
    "rms": (lambda t, w, b: t.graph.rms_norm(t, (6, 8), w, 1e-5, bias=b), [x, w68, b68], rms(x, (1, 2)) * w68 + b68),
    "relu6": (lambda t: t.clamp(0, 6), [x * 9], np.clip(x * 9, 0, 6)),
}


def program(made: Callable[..., Any], arrays: list[Array]) -> KernelGraph:
    graph = mf.new_kernel_graph()
    found = made(*(graph.new_input(a.shape, "bool" if a.dtype == bool else mf.float32) for a in arrays))
    for tensor in found if isinstance(found, list) else [found]:
        graph.mark_output(tensor)
    return graph.freeze()


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str) -> None:
    made, arrays, expected = CASES[name]
    got = run(program(made, arrays), arrays)
    wanted = expected if isinstance(expected, list) else [expected]
    assert [a.shape for a in got] == [a.shape for a in wanted]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def kinds(made: Callable[..., Any], *arrays: Array) -> list[OpKind]:
    return [op.kind for op in program(made, list(arrays)).ops if isinstance(op, Op)]


def test_few_operators() -> None:
    K = OpKind
    assert kinds(lambda t: t**2, x) == [K.SQUARE]
    assert kinds(lambda t: t**-0.5, x) == [K.SQRT, K.RECIPROCAL]
    assert kinds(lambda t: 1 / t, x) == [K.RECIPROCAL]
    assert kinds(lambda t: t + 0 + 1, x) == [K.SHIFT]
    assert kinds(lambda t: t.clamp(min=0), x) == [K.RELU]
    assert kinds(lambda t: t[:, 2:], x) == [K.SLICE]
    assert kinds(lambda t, u: t @ u, x, x[0].T) == [K.RESHAPE, K.MATMUL, K.RESHAPE]
    assert kinds(lambda t, u: t @ u, x, x.swapaxes(1, 2)) == [K.MATMUL]
    assert kinds(lambda m, t: m.where(t, 0), m01, x) == [K.MUL]


def test_constants_are_exact() -> None:
    graph = program(lambda t: 1 - (t + 0.1) * Fraction(1, 3), [x])
    assert [op.attrs for op in graph.ops if isinstance(op, Op)] == [
        Attrs(shift=Fraction(1, 10)),
        Attrs(factor=Fraction(1, 3)),
        Attrs(factor=Fraction(-1)),
        Attrs(shift=Fraction(1)),
    ]


def test_results_keep_a_dim() -> None:
    graph = mf.new_kernel_graph()
    t = graph.new_input((4, 6))
    assert t.sum().shape == (1, 1)
    assert t.sum(keepdim=False).shape == (1,)
    assert t[0, 0].shape == (1,)
    assert (t[:1, :1] + 1).squeeze().shape == (1,)
    assert len(t) == 4
    assert [row.shape for row in t] == [(6,)] * 4


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        (lambda t: t.gelu("fast"), mf.UnsupportedError, "'none' or 'tanh'"),
        (lambda t: t**100, mf.UnsupportedError, "exponent in -64..64"),
        (lambda t: t.clamp(), mf.UnsupportedError, "min, max or both"),
        (lambda t: t.maximum(math.inf), mf.UnsupportedError, "finite number"),
        (lambda t: t[5], mf.ShapeError, "an index in -4..3"),
        (lambda t: t[3:3], mf.ShapeError, "some elements"),
        (lambda t: t[::-1], mf.UnsupportedError, "step of at least 1"),
        (lambda t: t[0, 0, 0], mf.ShapeError, "at most 2 indices"),
        (lambda t: t["a"], mf.ShapeError, "an integer"),
        (lambda t: t.split([1, 2]), mf.ShapeError, "add up to 4"),
        (lambda t: t.split(0), mf.ShapeError, "positive extents"),
        (lambda t: t.chunk(0), mf.ShapeError, "at least one part"),
        (lambda t: t.pad(0, -1, 1), mf.ShapeError, "no negative number"),
        (lambda t: t.expand(3, 6), mf.ShapeError, "expand: expected extents"),
        (lambda t: t.expand(6), mf.ShapeError, "expand: expected extents"),
        (lambda t: t.repeat_interleave(0, 0), mf.ShapeError, "repeats of at least 1"),
        (lambda t: t.flatten(1, 0), mf.ShapeError, "not behind the last.*\n.*swap start_dim and end_dim"),
        (lambda t: t.sum((0, 0)), mf.ShapeError, "each once"),
        (lambda t: t.sum(2), mf.ShapeError, "a dim in -2..1"),
        (lambda t: t @ t, mf.ShapeError, "inner dimensions differ"),
        (lambda t: t.graph.layer_norm(t, (5,)), mf.ShapeError, "normalized_shape to be the last dims"),
    ],
)
def test_what_is_refused(what: Callable[[mf.Tensor], object], error: type[mf.MirageError], text: str) -> None:
    graph = mf.new_kernel_graph()
    t = graph.new_input((4, 6))
    with pytest.raises(error, match=text) as raised:
        what(t)
    assert raised.value.hint
    assert raised.value.where.startswith("tests/frontend/test_elementwise_functions.py:")


def test_methods_take_what_the_functions_of_graphs_take() -> None:
    methods = {
        name: method for name, method in vars(mf.Tensor).items() if inspect.isfunction(method) and name[0] != "_"
    }
    assert len(methods) > 40
    for name, method in methods.items():
        mine = list(inspect.signature(method).parameters.values())[1:]
        theirs = list(inspect.signature(getattr(mf.Graph, name)).parameters.values())[2:]
        assert [(p.name, p.kind, p.default) for p in mine] == [(p.name, p.kind, p.default) for p in theirs][: len(mine)]


def test_lines_of_the_user() -> None:
    graph = mf.new_kernel_graph()
    t = graph.new_input((4, 6))
    graph.mark_output(t[1:] ** 3)
    graph.mark_output(graph.lt(t.tanh(), graph.relu(t)))
    assert {str(o.call) for o in graph.origins().operators if o is not None} == {"[]", "**", "tanh", "relu", "lt"}


@pytest.mark.parametrize("owner", [mf.Graph, mf.Tensor, mf.BlockBuilder])
def test_methods_have_the_names_that_they_are_called_by(owner: type) -> None:
    """A method that is made from a row of another operator has that operator's name."""
    assert [
        name
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if name[0] != "_" and (method.__name__ != name or method.__code__.co_name != name)
    ] == []


def test_types_of_methods() -> None:
    """mypy reads this test: methods that are made from rows have types, and their arguments are checked."""
    graph = mf.new_kernel_graph()
    t = graph.new_input((4, 6))
    assert_type(graph.exp(A=t), mf.Tensor)
    assert_type(t.exp(), mf.Tensor)
    assert_type(t.lt(B=0).where(t, 1).sum(dim=(0, 1), keepdim=False), mf.Tensor)
    assert_type(t.split(2), list[mf.Tensor])
    with pytest.raises(mf.GraphError):
        graph.exp(1)  # type: ignore[arg-type]
    with pytest.raises(mf.ShapeError):
        t.sum("rows")  # type: ignore[arg-type]
