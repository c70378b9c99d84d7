"""Special values: forms that are equal over the reals, and are not where masks, zeros and large numbers meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal import Graph, Tensor
from mirage_formal.codegen.numerics.bounded_maxima import bound_maxima
from mirage_formal.codegen.numerics.special_values import SpecialValueFault, check_special_values, special_draws
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.graph.graph import BlockOp, GraphDefined, KernelGraph, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.records import SpecialRecord
from mirage_formal.run.verify.candidate_numerics import evaluate_special_values
from mirage_formal.semantics import float64_reference
from tests.codegen.online_softmax.test_masked_exponentials import FORMS, INPUTS, attention, divided_first
from tests.kit.graphs import workloads as w
from tests.kit.graphs.softmax_forms import TINY, built, tiny
from tests.kit.proofs.claims import program

K = OpKind
Body = Callable[..., Tensor]


def masked(body: Body, *, dtype: object = mf.float16) -> KernelGraph:
    """A program of a mask M, of X and of V."""
    graph = mf.new_kernel_graph()
    m = graph.new_input((16, 16), dtype=mf.bool_, name="M")
    x, v = (graph.new_input((16, 16), dtype=dtype, name=name) for name in "XV")
    graph.mark_output(body(graph, m, x, v))
    return graph.freeze()


def number(m: Tensor) -> Tensor:
    return m.cast(mf.float16)


def selected_exponential(g: Graph, m: Tensor, x: Tensor, v: Tensor) -> Tensor:
    return g.select(m, g.exp(x), 0) @ v


def selected_quotient(g: Graph, m: Tensor, s: Tensor, n: Tensor) -> Tensor:
    return g.select(g.gt(n, 0), s / n, 0)


def sums_of_keys(g: Graph, m: Tensor, s: Tensor, v: Tensor, quotient: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    top = g.max(g.select(m, s, -65504), 1)
    p = g.select(m, g.exp(s - top), 0)
    return quotient(p @ v, g.sum(p, 1))


def attended(g: Graph, m: Tensor, s: Tensor, v: Tensor) -> Tensor:
    return sums_of_keys(g, m, s, v, g.div_no_nan)


#: A program, a candidate that is equal to it over the reals, and what is wrong with it.
WRONG: dict[str, tuple[Body, Body, str]] = {
    "a mask as a factor of what it discards": (
        selected_exponential,
        lambda g, m, x, v: (g.exp(x) * number(m)) @ v,
        "got nan",
    ),
    "a selection of ones as such a factor": (
        selected_exponential,
        lambda g, m, x, v: (g.exp(x) * g.select(m, g.shift(g.scale(x, 0), 1), 0)) @ v,
        "got nan",
    ),
    "a mask as a factor before a division": (
        selected_quotient,
        lambda g, m, s, n: (number(g.gt(n, 0)) * s) / n,
        "zeros: output 0",
    ),
    "a selection of the numerator": (
        selected_quotient,
        lambda g, m, s, n: g.select(g.gt(n, 0), s, 0) / n,
        "zeros: output 0",
    ),
    "a division where there may be no key": (
        attended,
        lambda g, m, s, v: sums_of_keys(g, m, s, v, lambda a, b: a / b),
        "expected 0, got nan",
    ),
    "a value where the program has none": (
        lambda g, m, s, v: sums_of_keys(g, m, s, v, lambda a, b: a / b),
        attended,
        "expected nan, got 0",
    ),
    "a logarithm of what may be negative": (
        lambda g, m, x, v: g.select(m, g.log(x * x), 0),
        lambda g, m, x, v: g.select(m, g.scale(g.log(x), 2), 0),
        "got nan",
    ),
    "a maximum that NaN does not reach": (
        lambda g, m, x, v: g.maximum(x, v),
        lambda g, m, x, v: g.select(g.lt(x, v), v, x),
        "expected nan",
    ),
    "exponentials apart": (
        lambda g, m, x, v: g.exp(x - g.max(x, 1)),
        lambda g, m, x, v: g.exp(x) * g.exp(g.scale(g.max(x, 1), -1)),
        "got nan",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_differs_at_special_values_is_refused(name: str) -> None:
    wanted, other, why = WRONG[name]
    found = evaluate_special_values(masked(wanted), masked(other))
    assert isinstance(found, SpecialValueFault)
    assert why in str(found)


RIGHT: dict[str, tuple[Body, Body]] = {
    "the other branch": (
        selected_exponential,
        lambda g, m, x, v: g.select(g.logical_not(m), 0, g.exp(x)) @ v,
    ),
    "the quotient of a selection": (
        selected_quotient,
        lambda g, m, s, n: g.select(g.logical_not(g.gt(n, 0)), 0, s / n) + g.scale(n, 0),
    ),
    "the division behind the product": (
        lambda g, m, s, v: g.div_no_nan(number(m), g.sum(number(m), 1)) @ v,
        lambda g, m, s, v: g.div_no_nan(number(m) @ v, g.sum(number(m), 1)),
    ),
    "a finite factor": (
        lambda g, m, x, v: g.scale(x @ v, 1 / 8),
        lambda g, m, x, v: g.scale(x, 1 / 8) @ v,
    ),
    "what cancels, where its errors do": (
        lambda g, m, x, v: (x + v) - v,
        lambda g, m, x, v: x + g.scale(v, 0) + (v - v),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_the_same_at_special_values_is_not(name: str) -> None:
    wanted, other = RIGHT[name]
    found = evaluate_special_values(masked(wanted), masked(other))
    assert isinstance(found, SpecialRecord), found
    assert found.draws == len(special_draws(masked(wanted).inputs)) > 10
    assert 0 < found.undefined < found.elements or name == "the division behind the product"


def test_an_overflow_that_a_candidate_removes_is_counted_and_no_fault() -> None:
    wanted = masked(lambda g, m, x, v: g.log(g.exp(x)), dtype=mf.float32)
    other = masked(lambda g, m, x, v: g.scale(x, 1), dtype=mf.float32)
    found = check_special_values(wanted, other, wanted)
    assert isinstance(found, SpecialRecord)
    assert found.overflows > 0
    same = check_special_values(wanted, wanted, wanted)
    assert isinstance(same, SpecialRecord)
    assert same.overflows == 0


def test_a_candidate_may_overflow_where_the_program_does_in_its_types() -> None:
    """exp(400) is a number in float64 and none in float32."""
    wanted = masked(lambda g, m, x, v: v * g.exp(x) * g.exp(x))
    other = masked(lambda g, m, x, v: v * g.sqrt(g.exp(g.scale(x, 4))))
    assert isinstance(check_special_values(wanted, other, wanted), SpecialRecord)


@pytest.mark.parametrize("dtype", [mf.float32, mf.bfloat16])
def test_a_candidate_may_not_overflow_alone_in_its_types(dtype: object) -> None:
    """Squares of the operands are infinite in float32, and finite in float64."""
    wanted = masked(lambda g, m, x, v: g.square(x / x), dtype=dtype)
    other = masked(lambda g, m, x, v: g.square(x) / g.square(x), dtype=dtype)
    found = check_special_values(wanted, other, wanted)
    assert isinstance(found, SpecialValueFault)
    assert (found.draw, found.expected, np.isnan(found.got)) == ("X: values of 1e25", 1.0, True)
    assert isinstance(check_special_values(other, wanted, other), SpecialRecord)


@pytest.mark.parametrize("name", ["rmsnorm", "attention_one", "attention_split", "lora", "gated_mlp", "ntrans"])
def test_fused_kernels_are_the_same_at_special_values(name: str) -> None:
    pairs = {
        "rmsnorm": (w.rmsnorm(n=64, k=512), w.rmsnorm_fused(n=64, k=512, grid=2, loop=4)),
        "attention_one": (w.attention(m=32, n=256), w.attention_one(m=32, n=256, rows=2, loop=4)),
        "attention_split": (w.attention(m=32, n=256), w.attention_split(m=32, n=256, split=4, loop=2)),
        "lora": (w.lora(k=64, n=128), w.lora_fused(k=64, n=128, grid=2, loop=2)),
        "gated_mlp": (w.gated_mlp(k=128, n=64), w.gated_mlp_fused(k=128, n=64, grid=2, loop=2)),
        "ntrans": (w.ntrans(n=512), w.ntrans_fused(n=512)),
    }
    found = evaluate_special_values(*pairs[name])
    assert isinstance(found, SpecialRecord), found
    assert 0 < found.undefined < found.elements


@pytest.mark.parametrize("case", TINY)
def test_a_softmax_needs_its_maximum(case: str) -> None:
    inputs, body = tiny(case)
    _, graph = built(inputs, "", body)

    def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k
        p = g.exp(s - g.max(s, 2))
        return (p / g.sum(p, 2)) @ v

    wanted, form = program(inputs, attention), stabilize(graph)
    assert isinstance(form, KernelGraph)
    found = check_special_values(wanted, graph, wanted)
    assert isinstance(found, SpecialValueFault)
    assert "got nan" in str(found)
    assert isinstance(check_special_values(wanted, form, wanted), SpecialRecord)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("wanted", [attention, divided_first])
def test_attention_without_keys_is_the_same_in_every_form(wanted: Body, name: str) -> None:
    """Masks with empty rows, tiles without a key, scores of minus infinity, and NaN where no mask keeps it."""
    given, other = program(INPUTS, wanted), program(INPUTS, FORMS[name])
    assert isinstance(evaluate_special_values(given, other), SpecialRecord)


@pytest.mark.parametrize("name", FORMS)
def test_attention_that_divides_by_no_key_is_refused(name: str) -> None:
    def divided(op: KernelOp | BlockOp) -> Any:
        if isinstance(op, GraphDefined):
            return replace(op, graph=replace(op.graph, ops=tuple(map(divided, op.graph.ops))))
        return replace(op, kind=K.DIV) if isinstance(op, Op) and op.kind is K.DIV_NO_NAN else op

    other = program(INPUTS, FORMS[name])
    found = evaluate_special_values(program(INPUTS, attention), replace(other, ops=tuple(map(divided, other.ops))))
    assert isinstance(found, SpecialValueFault)
    assert "expected 0, got nan" in str(found)


def test_maxima_under_exponentials_are_numbers_where_all_scores_are_minus_infinity() -> None:
    form = stabilize(w.attention_split(m=32, n=256, split=4, loop=1))
    assert isinstance(form, KernelGraph)
    shapes = [item.tensor.shape for item in form.inputs]
    q, k, v = (np.random.default_rng(0).standard_normal(shape) for shape in shapes)
    q[..., 0], k[..., 0, :64] = 1.0, -np.inf  # the keys of the first of four blocks
    (plain,), (bounded,) = (float64_reference.run(graph, [q, k, v]) for graph in (form, bound_maxima(form)))
    assert np.isnan(plain).all()
    p = np.exp(q @ k[..., 64:] - (q @ k[..., 64:]).max(axis=-1, keepdims=True))
    np.testing.assert_allclose(bounded, (p / p.sum(axis=-1, keepdims=True)) @ v[..., 64:, :], rtol=1e-9)


def test_a_maximum_that_is_a_result_is_minus_infinity() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input((4, 64))
    block = mf.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, 64)
    tile = block.new_input(x, (-1, -1, -1), -1)
    top = block.max(tile, 1)
    block.new_output(block.forloop_accum(top), (-1, -1, -1))
    graph.mark_output(graph.customized([x], block)[0])
    given = graph.freeze()
    assert bound_maxima(given) == given
