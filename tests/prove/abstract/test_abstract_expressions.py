"""Abstract expressions of µGraphs.

On inputs that are constant tensors, forgetting indices loses nothing: every element of every tensor must equal its
abstract expression with sum(n, x) read as n * x. This is checked on random graphs against the float64 reference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from mirage_formal.check.abstract_interpretation import output_expressions
from mirage_formal.graph.graph import (
    BlockGraph,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import COMPARISONS, NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.logic.axioms import OPAQUE_FUNCTIONS
from mirage_formal.logic.certificate import audit, to_smt2
from mirage_formal.logic.script import parse_script
from mirage_formal.logic.session import Satisfiability, SubexpressionAnswer, discharge
from mirage_formal.logic.terms import (
    Add,
    Const,
    Div,
    Expr,
    Mul,
    Sum,
    Unary,
    Variable,
    add,
    const,
    div,
    mul,
    postorder,
    sum_,
    unary,
    var,
)
from mirage_formal.prove.abstract.abstract_domain import expressions, pieces
from mirage_formal.prove.abstract.subexpression_oracle import NormalFormOracle
from mirage_formal.semantics.float64_reference import run
from mirage_formal.support.errors import GraphError
from tests.kit.graphs import function_values, workloads
from tests.kit.graphs.random_graphs import random_graph

A, B, C, X, W, Y, Z = (var(n) for n in "ABCXWYZ")


def tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def graph(inputs: list[Input], *ops: Op | GraphDefined, outputs: tuple[int, ...] | None = None) -> KernelGraph:
    last = len(inputs) + sum(op.results for op in ops) - 1
    return KernelGraph(tuple(inputs), ops, outputs or (last,))


def op(kind: OpKind, *operands: int, **attrs: object) -> Op:
    return Op(kind, operands, Attrs(**attrs) if attrs else NO_ATTRS)  # type: ignore[arg-type]


def only(g: KernelGraph) -> Expr:
    (e,) = expressions(g).outputs
    return e


TWO = [tensor("X", 8, 16), tensor("Y", 8, 16)]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (op(OpKind.ADD, 0, 1), add(X, Y)),
        (op(OpKind.SUB, 0, 1), add(X, mul(const(-1), Y))),
        (op(OpKind.MUL, 0, 1), mul(X, Y)),
        (op(OpKind.DIV, 0, 1), div(X, Y)),
        *((op(kind, 0), unary(kind.value, X)) for kind in function_values.VALUES if kind.value in OPAQUE_FUNCTIONS),
        (op(OpKind.SQUARE, 0), mul(X, X)),
        (op(OpKind.ABS, 0), unary("sqrt", mul(X, X))),
        (op(OpKind.RECIPROCAL, 0), div(const(1), X)),
        (op(OpKind.MAXIMUM, 0, 1), unary("maximum", add(X, Y))),
        (op(OpKind.MINIMUM, 0, 1), unary("minimum", add(X, Y))),
        (op(OpKind.EQ, 0, 1), unary("eq", add(X, Y))),
        (op(OpKind.LT, 0, 1), unary("lt", add(X, Y))),
        (op(OpKind.LE, 0, 1), unary("le", add(X, Y))),
        (op(OpKind.GT, 0, 1), unary("lt", add(Y, X))),
        (op(OpKind.GE, 0, 1), unary("le", add(Y, X))),
        (op(OpKind.LT, 0, value=Fraction(1, 2)), unary("lt", add(X, add(mul(const(0), X), const(Fraction(1, 2)))))),
        (op(OpKind.GT, 0, value=Fraction(2)), unary("lt", add(add(mul(const(0), X), const(2)), X))),
        (op(OpKind.DIV_NO_NAN, 0, 1), div(X, Y)),
        (op(OpKind.ROUND_FLOAT16, 0), unary("round_float16", X)),
        (op(OpKind.ROUND_BFLOAT16, 0), unary("round_bfloat16", X)),
        (op(OpKind.SHIFT, 0, shift=Fraction(-3, 8)), add(X, const(Fraction(-3, 8)))),
        (op(OpKind.SLICE, 0, dim=1, start=3, stop=9), X),
        (op(OpKind.PAD, 0, dim=1, before=1, after=0), X),
        (op(OpKind.SCALE, 0, factor=Fraction(3, 8)), mul(const(Fraction(3, 8)), X)),
        (op(OpKind.SUM, 0, dim=1), sum_(16, X)),
        (op(OpKind.SUM, 0, dim=0), sum_(8, X)),
        (op(OpKind.MEAN, 0, dim=1), mul(const(Fraction(1, 16)), sum_(16, X))),
        (op(OpKind.MAX, 0, dim=1), unary("max", X)),
        (op(OpKind.TRANSPOSE, 0, perm=(1, 0)), X),
        (op(OpKind.RESHAPE, 0, shape=(4, 32)), X),
        (op(OpKind.CAST, 0, dtype=DType.FLOAT32), X),
        (op(OpKind.SOFTMAX, 0, dim=1), div(unary("exp", X), sum_(16, unary("exp", X)))),
        (
            op(OpKind.RMS_NORM, 0, dim=1),
            div(X, unary("sqrt", mul(const(Fraction(1, 16)), sum_(16, mul(X, X))))),
        ),
        (
            op(OpKind.RMS_NORM, 0, 1, dim=1, eps=Fraction(1, 100)),
            mul(
                div(
                    X,
                    unary("sqrt", add(mul(const(Fraction(1, 16)), sum_(16, mul(X, X))), const(Fraction(1, 100)))),
                ),
                Y,
            ),
        ),
    ],
    ids=lambda v: v.kind.value if isinstance(v, Op) else "",
)
def test_kernel_operators(operator: Op, expected: Expr) -> None:
    assert only(graph(TWO, operator)) is expected


def test_matmul_and_repeat() -> None:
    assert only(graph([tensor("X", 4, 8, 16), tensor("Y", 4, 16, 2)], op(OpKind.MATMUL, 0, 1))) is sum_(16, mul(X, Y))
    assert only(graph([tensor("X", 1, 16)], op(OpKind.REPEAT, 0, dim=0, times=4))) is X
    assert only(graph([tensor("X", 4, 1), tensor("Y", 1, 2)], op(OpKind.MATMUL, 0, 1))) is mul(X, Y)


def test_scalars() -> None:
    assert only(graph([tensor("X"), tensor("Y")], op(OpKind.MUL, 0, 1))) is mul(X, Y)


def block(accumulate: Op, loop: int = 4, dimx: int = 2, fmap: int | None = 1) -> Expr:
    """X[8, 16] split over 2 blocks by rows and over the loop by columns, then one accumulator."""
    b = BlockGraph(
        (2, 1, 1),
        (128, 1, 1),
        loop,
        dimx,
        (InputIterator((0, None, None), fmap),),
        (accumulate,),
        (OutputSaver(1, (0, None, None)),),
    )
    return only(graph([tensor("X", 8, 16)], GraphDefined((0,), b)))


def test_accumulators() -> None:
    mean_square = mul(const(Fraction(1, 16)), sum_(4, sum_(4, mul(X, X))))
    assert block(op(OpKind.ACCUM_SUM, 0)) is sum_(4, X)
    assert block(op(OpKind.ACCUM_SUM, 0), loop=1) is X
    assert block(op(OpKind.ACCUM_SUM_LAST, 0)) is sum_(4, sum_(4, X))
    assert block(op(OpKind.ACCUM_MEAN_LAST, 0)) is mul(const(Fraction(1, 16)), sum_(4, sum_(4, X)))
    assert block(op(OpKind.ACCUM_RMS_LAST, 0)) is unary("sqrt", mean_square)
    assert block(op(OpKind.ACCUM_SUM_TO_DIMX, 0, dim=1)) is sum_(4, sum_(2, X))
    assert block(op(OpKind.ACCUM_CONCAT, 0, dim=1)) is X
    assert block(op(OpKind.ACCUM_MAX, 0)) is unary("max", X)
    # A tensor that the loop does not split is added once per iteration.
    assert block(op(OpKind.ACCUM_SUM, 0), fmap=None) is sum_(4, X)


def test_the_maximum_of_maxima_is_the_maximum() -> None:
    inner = op(OpKind.MAX, 0, dim=1)
    assert only(graph(TWO, inner, op(OpKind.MAX, 2, dim=0))) is unary("max", X)


def test_concat_then_matmul_is_a_sum_of_products() -> None:
    inputs = [tensor("A", 4, 8), tensor("B", 4, 2), tensor("X", 8, 16), tensor("Y", 2, 16)]
    g = graph(inputs, op(OpKind.CONCAT, 0, 1, dim=1), op(OpKind.CONCAT, 2, 3, dim=0), op(OpKind.MATMUL, 4, 5))
    assert only(g) is add(sum_(8, mul(A, X)), sum_(2, mul(B, Y)))
    assert pieces(g).tensors == ((A,), (B,), (X,), (Y,), (A, B), (X, Y), (only(g),))
    assert expressions(g).tensors[4] is add(A, B)


def test_the_pieces_of_a_concatenation_are_parts_where_its_sum_is_not() -> None:
    """LoRA as concat(X, X A) @ concat(W, B): pruning by the pieces keeps it, by their sum would lose it."""
    inputs = [tensor("X", 16, 256), tensor("W", 256, 64), tensor("A", 256, 16), tensor("B", 16, 64)]
    program = graph(
        inputs, op(OpKind.MATMUL, 0, 1), op(OpKind.MATMUL, 0, 2), op(OpKind.MATMUL, 5, 3), op(OpKind.ADD, 4, 6)
    )
    candidate = graph(
        inputs,
        op(OpKind.MATMUL, 0, 2),
        op(OpKind.CONCAT, 0, 4, dim=1),
        op(OpKind.CONCAT, 1, 3, dim=0),
        op(OpKind.MATMUL, 5, 6),
    )
    oracle = NormalFormOracle(expressions(program).outputs)
    for several in pieces(candidate).tensors:
        assert all(oracle.contains(e) is SubexpressionAnswer.PROVED for e in several)
    assert oracle.contains(expressions(candidate).tensors[5]) is SubexpressionAnswer.REFUTED


def test_operators_on_concatenations_work_piece_by_piece() -> None:
    inputs = [tensor("A", 4, 8), tensor("B", 4, 8), tensor("C", 4, 16)]
    joined = op(OpKind.CONCAT, 0, 1, dim=1)

    def last(*ops: Op) -> tuple[Expr, ...]:
        return pieces(graph(inputs, joined, *ops)).tensors[-1]

    assert last(op(OpKind.EXP, 3)) == (unary("exp", A), unary("exp", B))
    assert last(op(OpKind.MUL, 3, 2)) == (mul(A, C), mul(B, C))
    assert last(op(OpKind.DIV, 2, 3)) == (div(C, A), div(C, B))
    assert last(op(OpKind.SUM, 3, dim=0)) == (sum_(4, A), sum_(4, B))
    assert last(op(OpKind.SUM, 3, dim=1)) == (add(sum_(8, A), sum_(8, B)),)
    assert last(op(OpKind.TRANSPOSE, 3, perm=(1, 0)), op(OpKind.SUM, 4, dim=1)) == (sum_(4, A), sum_(4, B))
    assert last(op(OpKind.RESHAPE, 3, shape=(4, 1, 16))) == (A, B)
    assert last(op(OpKind.RESHAPE, 3, shape=(8, 8))) == (add(A, B),)
    assert last(op(OpKind.ADD, 3, 3)) == (add(A, A), add(B, B))
    assert last(op(OpKind.CONCAT, 3, 2, dim=1)) == (A, B, C)
    assert last(op(OpKind.CONCAT, 3, 2, dim=0)) == (add(A, B), C)
    assert last(op(OpKind.MAX, 3, dim=1)) == (unary("max", add(A, B)),)
    # Rows stay apart through a product, and an operand that is not divided meets every piece of the other.
    down = op(OpKind.TRANSPOSE, 2, perm=(1, 0))
    assert last(down, op(OpKind.MATMUL, 3, 4)) == (add(sum_(8, mul(A, C)), sum_(8, mul(B, C))),)
    rows = op(OpKind.CONCAT, 0, 1, dim=0)
    turned = op(OpKind.TRANSPOSE, 0, perm=(1, 0))
    assert last(rows, turned, op(OpKind.MATMUL, 4, 5)) == (sum_(8, mul(A, A)), sum_(8, mul(B, A)))
    assert last(rows, turned, op(OpKind.TRANSPOSE, 4, perm=(1, 0)), op(OpKind.MATMUL, 0, 6)) == (
        sum_(8, mul(A, A)),
        sum_(8, mul(A, B)),
    )


def test_pieces_cut_differently_meet_in_the_common_refinement() -> None:
    inputs = [tensor("A", 4, 8), tensor("B", 4, 24), tensor("C", 4, 16)]
    g = graph(inputs, op(OpKind.CONCAT, 0, 1, dim=1), op(OpKind.CONCAT, 2, 2, dim=1), op(OpKind.ADD, 3, 4))
    assert pieces(g).outputs == ((add(A, C), add(B, C)),)
    inputs = [*inputs, tensor("X", 4, 16)]
    g = graph(inputs, op(OpKind.CONCAT, 0, 1, dim=1), op(OpKind.CONCAT, 2, 3, dim=1), op(OpKind.ADD, 4, 5))
    assert pieces(g).outputs == ((add(A, C), add(B, C), add(B, X)),)


def test_inputs_need_distinct_names() -> None:
    with pytest.raises(GraphError, match="distinct input names"):
        expressions(graph([tensor("X", 4), tensor("X", 4)], op(OpKind.ADD, 0, 1)))


def masked(*ops: Op) -> KernelGraph:
    """Operators on a mask M and two tensors."""
    mask = Input("M", DTensor((8, 16), DType.BOOL), row_major((8, 16)))
    return graph([mask, *TWO], *ops)


M, NOT_M = var("M"), add(mul(const(-1), var("M")), const(1))


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (op(OpKind.LOGICAL_NOT, 0), NOT_M),
        (
            op(OpKind.SELECT, 0, 1, 2),
            add(unary("select", add(M, X)), unary("select", add(NOT_M, Y))),
        ),
        (op(OpKind.SELECT, 0, 1, value=Fraction(0)), unary("select", add(M, X))),
        (
            op(OpKind.SELECT, 0, 1, value=Fraction(-3)),
            add(unary("select", add(M, X)), unary("select", add(NOT_M, add(mul(const(0), M), const(-3))))),
        ),
    ],
)
def test_operators_on_masks(operator: Op, expected: Expr) -> None:
    """The checker reads them as the same terms; and every operand is part of the result, with a certificate."""
    g = masked(operator)
    assert only(g) is expected
    assert output_expressions(g) == [expected]
    oracle = NormalFormOracle([expected])
    for operand in operator.operands:
        part = (M, X, Y)[operand]
        assert oracle.contains(part) is SubexpressionAnswer.PROVED
        certificate = oracle.certificate(part)
        assert certificate is not None
        for result in discharge(parse_script(to_smt2(certificate))):
            assert result.answer is Satisfiability.UNSAT
    assert oracle.contains(unary("exp", X)) is SubexpressionAnswer.REFUTED


def test_comparisons_and_roundings_are_certified_and_told_apart() -> None:
    for kind in (OpKind.EQ, OpKind.LT, OpKind.LE, OpKind.GT, OpKind.GE, OpKind.ROUND_FLOAT16, OpKind.ROUND_BFLOAT16):
        g = graph(TWO, op(kind, 0, 1) if kind in COMPARISONS else op(kind, 0))
        oracle = NormalFormOracle([only(g)])
        certificate = oracle.certificate(X)
        assert certificate is not None
        assert audit(to_smt2(certificate)).target == only(g)
        for result in discharge(parse_script(to_smt2(certificate))):
            assert result.answer is Satisfiability.UNSAT
    oracle = NormalFormOracle([only(graph(TWO, op(OpKind.LT, 0, 1)))])
    for stranger in (OpKind.EQ, OpKind.LE):
        assert oracle.contains(only(graph(TWO, op(stranger, 0, 1)))) is SubexpressionAnswer.REFUTED
    assert oracle.contains(only(graph(TWO, op(OpKind.ROUND_FLOAT16, 0)))) is SubexpressionAnswer.REFUTED


VALUES: dict[str, object] = {
    "max": lambda x: x,
    **{kind.value: partial(function_values.value, kind) for kind in function_values.VALUES},
    # Functions of the sum of both operands: which of the two is which is forgotten.
    **dict.fromkeys(("maximum", "minimum", "select", "eq", "lt", "le")),
}


def value(root: Expr, inputs: dict[str, float]) -> float:
    """The term with sum(n, x) read as n * x; nan where it has no finite value."""
    out: dict[Expr, float] = {}
    for e in postorder([root]):
        try:
            match e:
                case Variable(name):
                    out[e] = inputs[name]
                case Const(c):
                    out[e] = float(c)
                case Add(a, b):
                    out[e] = out[a] + out[b]
                case Mul(a, b):
                    out[e] = out[a] * out[b]
                case Div(a, b):
                    out[e] = out[a] / out[b] if out[b] else math.nan
                case Sum(n, a):
                    out[e] = n * out[a]
                case Unary(f, a):
                    out[e] = VALUES[f](out[a])  # type: ignore[operator]
        except OverflowError:
            out[e] = math.nan
    return out[root]


#: gelu has several definitions, layer_norm is 0/0 on constants, and pieces have different constants.
KINDS = frozenset(OpKind) - {OpKind.GELU, OpKind.LAYER_NORM, OpKind.CONCAT, OpKind.PAD}
#: Their expression is a function of the sum of both operands.
KINDS -= {OpKind.MAXIMUM, OpKind.MINIMUM, OpKind.SELECT} | COMPARISONS
#: Their factor is 0 in the first iteration, which the index-blind reading does not see.
KINDS -= {OpKind.RUNNING_MAX, OpKind.ACCUM_RESCALED_SUM, OpKind.ACCUM_RESCALED_SUM_LAST}


def test_constant_inputs_give_the_value_of_the_expression() -> None:
    rng = random.Random(17)
    seen: set[OpKind] = set()
    compared = 0
    for _ in range(900):
        g = random_graph(rng, KINDS)
        inputs = {i.name: rng.uniform(0.5, 1.5) for i in g.inputs}
        (got,) = run(g, [np.full(i.tensor.shape, inputs[i.name]) for i in g.inputs])
        expected = value(only(g), inputs)
        if not (np.isfinite(got).all() and math.isfinite(expected)) or abs(expected) > 1e12:
            continue
        # Differences that are rounding errors say nothing.
        assert np.allclose(got, expected, rtol=1e-6, atol=1e-6), (g, only(g))
        compared += 1
        for kernel in g.ops:
            inner = kernel.graph.ops if isinstance(kernel, GraphDefined) else (kernel,)
            seen |= {o.kind for o in inner if isinstance(o, Op)}
    assert compared > 400
    assert seen == KINDS


def test_concatenations_on_constant_inputs() -> None:
    rng = random.Random(4)
    for _ in range(40):
        n, m = rng.randrange(1, 6), rng.randrange(1, 6)
        inputs = [tensor("A", 4, n), tensor("B", 4, m), tensor("X", n, 3), tensor("Y", m, 3)]
        g = graph(
            inputs,
            op(OpKind.CONCAT, 0, 1, dim=1),
            op(OpKind.CONCAT, 2, 3, dim=0),
            op(OpKind.EXP, 4),
            op(OpKind.MATMUL, 6, 5),
        )
        values = {i.name: rng.uniform(0.5, 1.5) for i in inputs}
        (got,) = run(g, [np.full(i.tensor.shape, values[i.name]) for i in inputs])
        assert np.allclose(got, value(only(g), values))


def test_every_operator_has_an_abstract_meaning() -> None:
    """Operators that no test above reaches by value; the walk hands the rest to the domain by kind."""
    inside = (op(OpKind.RUNNING_MAX, 0, dim=1), op(OpKind.ACCUM_RESCALED_SUM, 0, 2), op(OpKind.ACCUM_MAX, 1))
    last = op(OpKind.ACCUM_RESCALED_SUM_LAST, 0, 2)
    b = BlockGraph(
        (1, 1, 1),
        (128, 1, 1),
        4,
        2,
        (InputIterator((None, None, None), 1),),
        (*inside, last),
        tuple(OutputSaver(i, (None, None, None)) for i in (3, 4, 5)),
    )
    g = graph([tensor("X", 8, 16)], GraphDefined((0,), b), outputs=(1, 2, 3))
    largest = unary("max", X)
    factor = unary("exp", add(largest, mul(const(-1), largest)))
    assert expressions(g).outputs == (sum_(4, mul(X, factor)), largest, sum_(4, mul(sum_(4, X), factor)))
    assert only(graph(TWO, op(OpKind.LAYER_NORM, 0, dim=1, eps=Fraction(1)))) is not X


@pytest.mark.parametrize(
    ("program", "candidate"),
    [
        (workloads.rmsnorm, workloads.rmsnorm_fused),
        (workloads.rmsnorm, workloads.rmsnorm_by_hand),
        (workloads.attention, workloads.attention_split),
        (workloads.attention, workloads.attention_one),
        (workloads.qk_norm, workloads.qk_norm_one),
        (workloads.lora, workloads.lora_fused),
        (workloads.gated_mlp, workloads.gated_mlp_fused),
        (workloads.ntrans, workloads.ntrans_fused),
    ],
    ids=lambda f: f.__name__,
)
def test_hand_written_candidates_stay_within_their_programs(
    program: Callable[[], KernelGraph], candidate: Callable[[], KernelGraph]
) -> None:
    oracle = NormalFormOracle(expressions(program()).outputs)
    found = pieces(candidate())
    for several in (*found.tensors, *(t for inside in found.blocks.values() for t in inside)):
        for e in several:
            assert oracle.contains(e) is SubexpressionAnswer.PROVED, str(e)
            certificate = oracle.certificate(e)
            assert certificate is not None
            text = to_smt2(certificate)
            assert audit(text).expression is e
            assert all(r.answer is Satisfiability.UNSAT for r in discharge(parse_script(text)))
