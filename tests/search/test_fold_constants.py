"""Constant tensors become attributes of what reads them: no kernel reads a tensor of which no element matters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import loaded_bytes, run_kernel
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from mirage_formal.search.preprocess import preprocess
from mirage_formal.semantics import float64_reference
from tests.kit.graphs.text_reader import from_text

K = OpKind
Body = Callable[[mf.Graph, mf.Tensor, mf.Tensor, mf.Tensor], mf.Tensor]


def program(body: Body) -> KernelGraph:
    """A program of X, of T, whose elements do not matter, and of a mask M."""
    graph = mf.new_kernel_graph()
    x, t = (graph.new_input((4, 6), name=name) for name in "XT")
    m = graph.new_input((4, 6), dtype=mf.bool_, name="M")
    graph.mark_output(graph.exp(body(graph, x, t, m)))
    return graph.freeze()


def kinds(graph: KernelGraph) -> list[OpKind]:
    return [op.kind for op in graph.ops if isinstance(op, Op)][:-1]


def read(graph: KernelGraph) -> set[str]:
    return {graph.inputs[n].name for op in graph.ops for n in op.operands if n < len(graph.inputs)}


FOLDED: dict[str, tuple[Body, list[OpKind]]] = {
    "maximum": (lambda g, x, t, m: g.maximum(x, g.full_like(t, 2)), [K.MAXIMUM]),
    "minimum, constant first": (lambda g, x, t, m: g.minimum(g.full_like(t, -2), x), [K.MINIMUM]),
    "add": (lambda g, x, t, m: x + g.full_like(t, 2), [K.SHIFT]),
    "sub": (lambda g, x, t, m: x - g.full_like(t, 2), [K.SHIFT]),
    "sub, constant first": (lambda g, x, t, m: g.full_like(t, 2) - x, [K.SCALE, K.SHIFT]),
    "mul": (lambda g, x, t, m: g.full_like(t, 3) * x, [K.SCALE]),
    "div": (lambda g, x, t, m: x / g.full_like(t, 4), [K.SCALE]),
    "div, constant first": (lambda g, x, t, m: g.full_like(t, 4) / x, [K.RECIPROCAL, K.SCALE]),
    "div_no_nan": (lambda g, x, t, m: g.div_no_nan(x, g.full_like(t, 4)), [K.SCALE]),
    "select": (lambda g, x, t, m: g.select(m, x, g.full_like(t, 2)), [K.SELECT]),
    "select, constant first": (lambda g, x, t, m: g.select(m, g.full_like(t, 2), x), [K.LOGICAL_NOT, K.SELECT]),
    "lt": (lambda g, x, t, m: g.select(g.lt(x, g.full_like(t, 1)), x, 0), [K.LT, K.SELECT]),
    "lt, constant first": (lambda g, x, t, m: g.select(g.lt(g.full_like(t, 1), x), x, 0), [K.GT, K.SELECT]),
    "le, constant first": (lambda g, x, t, m: g.select(g.le(g.full_like(t, 1), x), x, 0), [K.GE, K.SELECT]),
    "eq, constant first": (
        lambda g, x, t, m: g.select(g.eq(g.full_like(t, 1), x), 0, x),
        [K.EQ, K.LOGICAL_NOT, K.SELECT],
    ),
    "zero": (lambda g, x, t, m: g.maximum(x, g.scale(t, 0)), [K.MAXIMUM]),
    "a row of constants": (lambda g, x, t, m: x + g.full_like(t[:1], 2), [K.SHIFT]),
    "a constant of a constant": (lambda g, x, t, m: x + g.full_like(g.exp(g.full_like(t, 1)), 2), [K.SHIFT]),
}
#: Whatever is multiplied by 0 or divides it is a constant, or widens the result.
KEPT: dict[str, Body] = {
    "mul by zero": lambda g, x, t, m: x * g.full_like(t, 0),
    "zero divided": lambda g, x, t, m: g.full_like(t, 0) / x,
    "divided where nothing is": lambda g, x, t, m: g.div_no_nan(g.full_like(t, 2), x),
    "a wider constant": lambda g, x, t, m: x[:1] + g.full_like(t, 2),
    "two constants": lambda g, x, t, m: x * g.maximum(g.full_like(t, 1), g.full_like(t, 2)),
    "no constant": lambda g, x, t, m: g.maximum(x, g.scale(t, 2)),
    "a constant in some places": lambda g, x, t, m: g.maximum(x, g.pad(g.full_like(t[1:], 1), 0, 1, 0)),
}


def values(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.choice([-2.0, -0.5, 0.5, 1.0, 2.0, 3.0], (4, 6))
    return [x, rng.standard_normal((4, 6)), rng.integers(0, 2, (4, 6)).astype(np.float64)]


@pytest.mark.parametrize("name", FOLDED)
def test_a_constant_is_an_attribute(name: str) -> None:
    body, wanted = FOLDED[name]
    given = program(body)
    assert any(op.kind is K.SCALE and not op.attrs.factor for op in given.ops if isinstance(op, Op))
    found = preprocess(given).whole
    assert kinds(found) == wanted
    assert read(found) <= {"X", "M"}
    assert isinstance(prove(given, found), Equivalent)
    arrays = values(1)
    (expected,) = float64_reference.run(given, arrays)
    arrays[1] = np.resize([np.nan, np.inf, -np.inf], (4, 6))
    for graph in (given, found):
        assert np.array_equal(float64_reference.run(graph, arrays)[0], expected)


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_operand_of_one_number_stays(name: str) -> None:
    given = program(KEPT[name])
    found = preprocess(given).whole
    assert "T" in read(found)
    assert np.array_equal(float64_reference.run(found, values(2))[0], float64_reference.run(given, values(2))[0])


_KERNEL = """mugraph 1
d0 = input(X) dtype=float16 shape=[64,64]
d1 = input(T) dtype=float16 shape=[64,64]
d2 = graph_defined(d0, d1) grid=[4,1,1] block=[128,1,1] forloop_range=1 reduction_dimx=64 {{
  s0 = input(d0) imap=[0,-,-] fmap=-
  s1 = input(d1) imap=[0,-,-] fmap=-
  {body}
}}
output(d2)
"""
_END = "\n  s{last} = accum_sum(s{value})\n  output(s{last}) omap=[0,-,-]"
_NUMBER = "s2 = {kind}(s0) value=1/2" + _END.format(value=2, last=3)
_TENSOR = "s2 = scale(s1) factor=0\n  s3 = shift(s2) shift=1/2\n  s4 = {kind}(s0, s3)" + _END.format(value=4, last=5)


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_a_kernel_reads_no_tensor_for_a_number(kind: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, 64)).astype(np.float16)
    x[0, :3] = np.nan, np.inf, -np.inf
    (wanted,) = (np.maximum if kind == "maximum" else np.minimum)(x, np.float16(0.5))[None]
    target, counted = load_target("h200"), []
    for body in (_NUMBER, _TENSOR):
        graph = from_text(_KERNEL.format(body=body.format(kind=kind)))
        kernel = lower(make_plan(graph, 0, target))
        arrays = [x, np.full((64, 64), np.nan, np.float16)]
        (found,) = run_kernel(kernel, arrays)
        assert np.array_equal(found.reshape(wanted.shape), wanted, equal_nan=True)
        counted.append(loaded_bytes(kernel, arrays))
    assert counted == [x.nbytes, x.nbytes]
