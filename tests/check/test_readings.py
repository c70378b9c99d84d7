"""The checker's readings of a graph against the project's, which share no code with them, and against integers."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest

from mirage_formal.check.abstract_interpretation import tensor_expressions
from mirage_formal.check.fingerprint import prime_field
from mirage_formal.check.fingerprint.field_interpreter import (
    RandomPoint,
    UndefinedValueError,
    evaluate_steps,
    parts_to_evaluate,
)
from mirage_formal.check.fingerprint.fingerprint import check_fingerprint, is_prime
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OPAQUE, SPECS, Attrs, OpKind
from mirage_formal.graph.verdict import Probable
from mirage_formal.graph.verifier import faults
from mirage_formal.logic.terms import Expr, add
from mirage_formal.prove.abstract.abstract_domain import expressions as theirs
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSettings, fingerprint
from mirage_formal.records.fingerprint import FingerprintRecord
from mirage_formal.support.errors import FormatError, MirageError
from tests.kit.graphs.graph_strategies import FIELD_KINDS, kernel_graphs
from tests.kit.graphs.random_graphs import EXPONENTIALS, ORDERED, ROOTS, random_graph
from tests.kit.runs.known_engine import PROGRAMS, given
from tests.kit.sampling import number

P = 2147024879
Q = 1073512439
KINDS = frozenset(SPECS) - ORDERED


def graphs(kinds: frozenset[OpKind], count: int) -> list[KernelGraph]:
    found = [random_graph(random.Random(seed), kinds) for seed in range(count)]
    return [graph for graph in found if not faults(graph)]


@pytest.mark.parametrize("depth", [1, 2, 64, 65, 1023, 1024, 1025, 5000])
def test_products_are_exact_at_every_depth(depth: int) -> None:
    rng, field = np.random.default_rng(depth), prime_field.prime_field(P)
    a = rng.integers(P - 1000, P, (2, 1, 2, depth), dtype=np.uint64)
    for lead in ((), (1,), (3,)):
        b = rng.integers(P - 1000, P, (*lead, depth, 3), dtype=np.uint64)
        expected = np.matmul(a.astype(object), b.astype(object)) % P
        got = prime_field.matmul(field(a), field(b))
        assert isinstance(got, field)
        assert (np.asarray(got) == expected).all()


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_galois_refuses_a_product_with_one_wrong_element(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(prime_field, "_AT_ONCE", at_once)
    rng, field = np.random.default_rng(1), prime_field.prime_field(P)
    a, b = field(rng.integers(0, P, (3, 1, 5, 7))), field(rng.integers(0, P, (2, 7, 4)))
    right = np.asarray(prime_field.matmul(a, b))
    for place in ((0, 0, 0, 0), (2, 1, 4, 3), (1, 0, 2, 1)):
        wrong = right.copy()
        wrong[place] ^= 1
        monkeypatch.setattr(prime_field, "_float_matmul", lambda *_, wrong=wrong: wrong)
        with pytest.raises(FormatError, match="galois"):
            prime_field.matmul(a, b)


def test_powers_of_omega() -> None:
    omega = pow(7, 2, P)
    exponents = np.array([0, 1, 2, 65535, 65536, Q - 1, Q // 2], dtype=np.uint64)
    got = prime_field.powers_of(omega, exponents, prime_field.prime_field(P), Q)
    assert got.tolist() == [pow(omega, int(e), P) for e in exponents]


def test_primality() -> None:
    for n in range(200):
        assert is_prime(n) == (n > 1 and all(n % d for d in range(2, n))), n
    assert all(is_prime(n) for n in (P, Q, 2**31 - 1))
    # Strong pseudoprimes to many bases.
    assert not any(is_prime(n) for n in (3215031751, 3825123056546413051, 318665857834031151167461))


def test_residues_of_constants() -> None:
    field = prime_field.prime_field(P)
    assert int(prime_field.element_of(Fraction(1, 3), field)) * 3 % P == 1
    assert prime_field.element_of(Fraction(-2), field) == P - 2
    with pytest.raises(ZeroDivisionError):
        prime_field.element_of(Fraction(1, P), field)


def test_a_result_that_leaves_the_field_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of plain arrays would be those of machine words, and galois does not say when it returns one."""
    graph = KernelGraph(given(X=(2, 2)), (Op(OpKind.SUM, (0,), Attrs(dim=0)),), (1,))
    point = RandomPoint(P, Q, pow(7, 2, P), {})
    assert evaluate_steps(graph, point, lambda *_: np.full((2, 2), P - 1, dtype=np.uint64))[0].tolist() == [[P - 2] * 2]
    monkeypatch.setattr(
        "mirage_formal.check.fingerprint.field_interpreter.total", lambda a, axis: np.asarray(a).sum(axis=axis)
    )
    with pytest.raises(TypeError, match="sum has left the field"):
        evaluate_steps(graph, point, lambda *_: np.full((2, 2), P - 1, dtype=np.uint64))


def expressions(graph: KernelGraph) -> dict[str, Expr]:
    """Of every tensor one: the sum of those of its parts."""
    return {name: reduce(add, terms) for name, terms in tensor_expressions(graph).items()}


def test_abstract_expressions_agree_on_random_graphs() -> None:
    compared = set()
    ordered = set()
    for graph in [*graphs(KINDS, 250), *graphs(frozenset(SPECS), 250)]:
        ordered |= kinds_of(graph) & ORDERED
        mine, trace = expressions(graph), theirs(graph)
        for at, e in enumerate(trace.tensors):
            assert mine[f"k{at}"] is e
        for index, inside in trace.blocks.items():
            for at, e in enumerate(inside):
                assert mine[f"b{index}.{at}"] is e
        compared |= {str(e).split(" ")[0] for e in trace.outputs}
    assert len(compared) >= 8
    assert ordered == ORDERED


def kinds_of(graph: KernelGraph) -> set[OpKind]:
    """Kinds of the operators of a graph, on the kernel and the block level."""
    found = set()
    for op in graph.ops:
        inside = op.graph.ops if isinstance(op, GraphDefined) else (op,)
        found |= {inner.kind for inner in inside if isinstance(inner, Op)}
    return found


MOVERS = (OpKind.CONCAT, OpKind.CONCAT, OpKind.CONCAT, OpKind.MATMUL, OpKind.MATMUL, OpKind.ADD, OpKind.MUL)


@pytest.mark.slow
@hypothesis.settings(max_examples=number(80, 300))
@hypothesis.given(
    kernel_graphs(max_ops=7, kinds=FIELD_KINDS, block_kinds=FIELD_KINDS)
    | kernel_graphs(
        max_ops=9,
        kinds=[*MOVERS, OpKind.SUM, OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.RMS_NORM, OpKind.LAYER_NORM, OpKind.DIV],
        block_kinds=[OpKind.CONCAT, OpKind.MATMUL, OpKind.ACCUM_SUM, OpKind.ACCUM_CONCAT, OpKind.SUM_TO_DIMX],
    )
)
def test_abstract_expressions_agree_on_concatenations(graph: KernelGraph) -> None:
    mine, trace = expressions(graph), theirs(graph)
    hypothesis.target(float(sum(op.kind is OpKind.CONCAT for op in graph.ops if isinstance(op, Op))))
    assert [mine[f"k{i}"] for i in range(len(trace.tensors))] == list(trace.tensors)
    for index, inside in trace.blocks.items():
        assert [mine[f"b{index}.{i}"] for i in range(len(inside))] == list(inside)


def test_the_largest_of_the_largest_is_one() -> None:
    ops = (Op(OpKind.MAX, (0,), Attrs(dim=1)), Op(OpKind.MAX, (1,), Attrs(dim=0)))
    found = expressions(KernelGraph(given(X=(4, 4)), ops, (2,)))
    assert found["k1"] is found["k2"] is not found["k0"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_abstract_expressions_agree_on_known_graphs(name: str) -> None:
    for graph in PROGRAMS[name]():
        mine, trace = expressions(graph), theirs(graph)
        assert [mine[f"k{i}"] for i in range(len(trace.tensors))] == list(trace.tensors)


@pytest.mark.slow
def test_fingerprints_agree_on_random_graphs() -> None:
    """A graph against itself: digests, LAX class, bound and redraws, all from two readings."""
    seen: dict[str, int] = {}
    redrawn = 0
    plain = KINDS - EXPONENTIALS
    some = [KINDS, plain, KINDS - ROOTS - OPAQUE, plain - ROOTS - OPAQUE]
    for graph in [graph for kinds in some for graph in graphs(kinds, number(100, 250))]:
        result = fingerprint(graph, graph, FingerprintSettings(seed=3, rounds=2))
        record = msgspec.json.decode(msgspec.json.encode(result.record), type=FingerprintRecord)
        if isinstance(result.verdict, Probable):
            check_fingerprint(graph, graph, record)
            seen[record.lax] = seen.get(record.lax, 0) + 1
            redrawn += any(draw.redraws for draw in record.draws)
    least = number(2, 5)
    assert all(seen.get(lax, 0) >= least for lax in ("linear", "division", "exponential", "root", "opaque")), seen
    assert redrawn >= least


def test_graphs_without_a_picture_are_refused_by_both() -> None:
    refused = 0
    for graph in graphs(frozenset(SPECS), 200):
        if fingerprint(graph, graph, FingerprintSettings()).record.lax == "none":
            refused += 1
            with pytest.raises(FormatError, match="LAX"):
                evaluate_steps(graph, RandomPoint(P, Q, pow(7, 2, P), {}), no_inputs)
    assert refused >= 5


def no_inputs(index: int, part: int) -> np.ndarray:
    raise AssertionError("a graph without a picture is refused before anything is read")


def test_evaluations_that_never_end_are_refused() -> None:
    """Nothing in a well-formed graph ties the loop's range to a shape if no input is split by it."""
    (program, fused) = PROGRAMS["rms_norm"]()[:2]
    op = fused.ops[0]
    assert isinstance(op, GraphDefined)
    whole = tuple(replace(i, fmap=None) for i in op.graph.inputs)
    honest = fingerprint(program, program, FingerprintSettings())
    record = msgspec.json.decode(msgspec.json.encode(honest.record), type=FingerprintRecord)
    changes: tuple[dict[str, Any], ...] = ({"forloop_range": 1 << 31}, {"grid": (1 << 13, 1 << 13, 1)})
    for change in changes:
        block = replace(op.graph, inputs=whole, **change)
        endless = replace(fused, ops=(GraphDefined(op.operands, block),))
        with pytest.raises(MirageError, match="expected"):
            check_fingerprint(program, endless, record)


def test_chunks_of_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    point = RandomPoint(P, Q, pow(7, 2, P), {})
    for name in ("attention", "gated_mlp", "polynomial"):
        program, fused = PROGRAMS[name]()[:2]

        def source(index: int, part: int, graph: KernelGraph = program) -> np.ndarray:
            rng = np.random.default_rng([index, part])
            return rng.integers(0, (P, Q)[part], graph.inputs[index].tensor.shape, dtype=np.uint64)

        expected = evaluate_steps(program, point, source)
        for at_once in (1, 100, 1 << 22):
            monkeypatch.setattr("mirage_formal.check.fingerprint.field_interpreter._AT_ONCE", at_once)
            for got, want in zip(evaluate_steps(fused, point, source), expected, strict=True):
                assert (got == want).all()


def test_undefined_values_are_never_replaced() -> None:
    point = RandomPoint(P, Q, pow(7, 2, P), {})
    pair = given(X=(2, 2), Y=(2, 2))
    quotient = KernelGraph(pair, (Op(OpKind.DIV, (0, 1)),), (2,))
    root = KernelGraph(pair, (Op(OpKind.SQRT, (0,)),), (2,))
    values = {0: np.full((2, 2), P - 1, dtype=np.uint64), 1: np.array([[1, 2], [3, 0]], dtype=np.uint64)}
    with pytest.raises(UndefinedValueError, match="denominator"):
        evaluate_steps(quotient, point, lambda index, part: values[index])
    with pytest.raises(UndefinedValueError, match="residue"):  # -1 is no residue modulo p = 3 mod 4
        evaluate_steps(root, point, lambda index, part: values[index])


def test_a_second_exponential_has_no_picture() -> None:
    graph = KernelGraph(given(X=(2, 2)), (Op(OpKind.EXP, (0,)), Op(OpKind.EXP, (1,))), (2,))
    with pytest.raises(FormatError, match="LAX"):
        parts_to_evaluate(graph)
    single = KernelGraph(given(X=(2, 2)), (Op(OpKind.EXP, (0,)), Op(OpKind.SILU, (0,))), (1, 2))
    assert parts_to_evaluate(single)[0][0] == {0, 1}


def test_a_pair_that_only_looks_equal_is_refused() -> None:
    """MN*X + sum(X) against M*rowsum(X) + N*colsum(X), from the paper: equal abstractly, not equal."""
    inputs = given(X=(3, 5))
    scale = Attrs(factor=Fraction(15))
    one = KernelGraph(
        inputs,
        (
            Op(OpKind.SCALE, (0,), scale),
            Op(OpKind.SUM, (0,), Attrs(dim=0)),
            Op(OpKind.SUM, (2,), Attrs(dim=1)),
            Op(OpKind.ADD, (1, 3)),
        ),
        (4,),
    )
    other = KernelGraph(
        inputs,
        (
            Op(OpKind.SUM, (0,), Attrs(dim=1)),
            Op(OpKind.SCALE, (1,), Attrs(factor=Fraction(3))),
            Op(OpKind.SUM, (0,), Attrs(dim=0)),
            Op(OpKind.SCALE, (3,), Attrs(factor=Fraction(5))),
            Op(OpKind.ADD, (2, 4)),
        ),
        (5,),
    )
    honest = fingerprint(one, one, FingerprintSettings())
    record = msgspec.json.decode(msgspec.json.encode(honest.record), type=FingerprintRecord)
    check_fingerprint(one, one, record)
    with pytest.raises(MirageError, match="candidate"):
        check_fingerprint(one, other, record)
