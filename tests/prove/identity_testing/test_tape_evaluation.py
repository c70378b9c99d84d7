"""Modular arithmetic against galois and Python integers; tapes against a literal evaluation in Z_p x Z_q."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import cache
from typing import Any

import galois
import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import isprime

from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.prove.identity_testing.cone_of_influence import trace_cone
from mirage_formal.prove.identity_testing.draw import field_point
from mirage_formal.prove.identity_testing.modular_arithmetic import Modulus, Powers
from mirage_formal.prove.identity_testing.primes import MAX_BITS, MIN_BITS, PAIRS, field_pair, search_pair
from mirage_formal.prove.identity_testing.tape_evaluation import UndefinedStep, Unrepresentable, run_tape
from mirage_formal.semantics.batched_matmul import FREE_COPY
from mirage_formal.semantics.straight_line_trace import (
    Needs,
    NotLax,
    ResiduePart,
    Tape,
    UnaryStep,
    needed_parts,
    record_tape,
)
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs import reference_interpreter
from tests.kit.graphs import workloads as w
from tests.kit.graphs.random_graphs import EXPONENTIALS, ORDERED, ROOTS, random_graph
from tests.kit.graphs.reference_interpreter import Exact

BITS = (16, 20, 31)


@cache
def _galois(m: int) -> Any:
    """Of a large field without tables of all logarithms, which take longest to make."""
    way = "jit-lookup" if m < 1 << 17 else "jit-calculate"
    return galois.GF(m, primitive_element=galois.primitive_root(m), verify=False, compile=way)


# --- primes ---


@pytest.mark.parametrize("bits", range(16, 32))
def test_pairs_are_what_they_claim(bits: int) -> None:
    pair = field_pair(bits)
    p, q = pair.p, pair.q
    assert galois.is_prime(p)
    assert galois.is_prime(q)
    assert p == 2 * q + 1
    assert p % 4 == q % 4 == 3
    assert (1 << bits) * 7 // 8 - 840 * 2 < p < 1 << bits
    for m in (p, q):
        for small in (2, 3, 5, 7) + ((11, 13) if bits >= 28 else ()):
            assert pow(small, (m - 1) // 2, m) == 1


def test_pairs_are_the_largest() -> None:
    for bits in (16, 20, 24):
        pair = field_pair(bits)
        better = [q for q in range(pair.q + 840, (1 << bits) // 2, 840) if isprime(q) and isprime(2 * q + 1)]
        assert not [q for q in better if 2 * q + 1 < 1 << bits]


@pytest.mark.parametrize("bits", [15, 32, 0, -1])
def test_sizes_out_of_range(bits: int) -> None:
    with pytest.raises(UnsupportedError, match="prime_bits"):
        field_pair(bits)


def test_galois_finds_every_pair_and_the_table_has_no_row_too_many() -> None:
    assert list(PAIRS) == list(range(MIN_BITS, MAX_BITS + 1))
    for bits, pair in PAIRS.items():
        assert pair == search_pair(bits)
        assert galois.is_primitive_root(pair.primitive_root, pair.p)
        assert not any(galois.is_primitive_root(g, pair.p) for g in range(2, pair.primitive_root))


# --- arithmetic ---


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("part", ["p", "q"])
def test_elementwise_against_galois(bits: int, part: str) -> None:
    m = getattr(field_pair(bits), part)
    field, reference = Modulus(m), _galois(m)
    numbers = np.random.default_rng(bits)
    a, b = (numbers.integers(0, m, (7, 37), dtype=np.uint64) for _ in range(2))
    a[0, :3] = b[1, :3] = (0, 1, m - 1)
    b[b == 0] = 1
    x, y = reference(a.astype(np.int64)), reference(b.astype(np.int64))
    assert (field.add(a, b) == np.asarray(x + y)).all()
    assert (field.subtract(a, b) == np.asarray(x - y)).all()
    assert (field.multiply(a, b) == np.asarray(x * y)).all()
    assert (field.inverse(b) == np.asarray(y**-1)).all()
    assert (field.power(a, 5) == np.asarray(x**5)).all()
    assert (field.power(a, 0) == 1).all()
    assert (field.scale(a, m - 1) == np.asarray(-x)).all()
    assert (field.scale(a, 12345) == np.asarray(x * reference(12345))).all()
    assert (field.offset(a, 77) == np.asarray(x + reference(77))).all()
    assert (field.add(a.astype(np.float64), b) == np.asarray(x + y)).all()
    assert field.constant(Fraction(-3, 8)) == int(-reference(3) / reference(8))
    root, bad = field.root(a)
    assert (~bad == x.is_square()).all()
    assert 0.3 < bad.mean() < 0.7
    assert (field.multiply(root, root)[~bad] == a[~bad]).all()
    # The principal root is a residue, and among the two roots that galois knows.
    assert reference(root[~bad].astype(np.int64)).is_square().all()
    other = np.asarray(np.sqrt(x[~bad])).astype(np.uint64)
    assert ((other == root[~bad]) | (other == field.scale(root, m - 1)[~bad])).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 127, 129, 1000, 4099])
def test_inverses_of_every_length(bits: int, size: int) -> None:
    m = field_pair(bits).p
    field = Modulus(m)
    a = np.random.default_rng(size).integers(1, m, size, dtype=np.uint64)
    assert (field.multiply(a, field.inverse(a)) == 1).all()


def test_constants_without_a_faithful_picture() -> None:
    field = Modulus(field_pair(20).p)
    assert field.constant(Fraction(1, field.m)) is None
    assert field.constant(Fraction(field.m, 3)) is None
    assert field.constant(Fraction(0)) == 0


@pytest.mark.parametrize("bits", BITS)
def test_matmul_against_galois(bits: int) -> None:
    m = field_pair(bits).p
    field, reference = Modulus(m), _galois(m)
    numbers = np.random.default_rng(bits)
    for rows, inner, columns in ((3, 5, 7), (9, 70, 4), (4, 130, 33)):
        a = numbers.integers(0, m, (rows, inner), dtype=np.uint64)
        b = numbers.integers(0, m, (inner, columns), dtype=np.uint64)
        want = np.asarray(reference(a.astype(np.int64)) @ reference(b.astype(np.int64)))
        assert (field.matmul(a, b) == want).all()


def _exact(a: NDArray[Any], b: NDArray[Any], m: int) -> NDArray[Any]:
    """Products of Python integers, which never overflow."""
    return np.matmul(a.astype(object), b.astype(object)) % m


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("inner", [1, 64, 65, 2048, 2049, 5000])
def test_matmul_of_the_largest_residues(bits: int, inner: int) -> None:
    """Every entry m - 1, then random ones: partial sums come as near 2^53 as they can."""
    m = field_pair(bits).p
    field = Modulus(m)
    for rows, columns in ((2, 3), (3, 2)):
        a = np.full((rows, inner), m - 1, dtype=np.uint64)
        b = np.full((inner, columns), m - 1, dtype=np.uint64)
        assert (field.matmul(a, b) == inner % m).all()
        a = np.random.default_rng(inner).integers(0, m, (rows, inner), dtype=np.uint64)
        b = np.random.default_rng(rows).integers(m - 50, m, (inner, columns), dtype=np.uint64)
        assert (field.matmul(a, b) == _exact(a, b, m)).all()


def test_plans_stay_exact() -> None:
    for bits in BITS:
        for m in (field_pair(bits).p, field_pair(bits).q):
            for inner in (1, 63, 64, 65, 4096, 1 << 20):
                limbs, width, chunk = Modulus(m)._plan(inner)
                assert limbs * width >= m.bit_length()
                assert (m - 1) * min(m - 1, (1 << width) - 1) * chunk < 1 << 53
                assert chunk >= min(inner, 2048)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 1, 1, 3, 4, 5), (1, 6, 1, 3, 5, 2)),
        ((1, 1, 1, 1, 4, 5), (3, 2, 1, 4, 5, 2)),
        ((3, 2, 1, 4, 4, 5), (1, 1, 1, 1, 5, 2)),
        ((3, 1, 2, 1, 1, 5), (1, 2, 1, 4, 5, 1)),
    ],
)
def test_matmul_with_replicated_axes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    m = field_pair(31).p
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(0, m, shape, dtype=np.uint64) for shape in (left, right))
    assert (Modulus(m).matmul(a, b) == _exact(a, b, m)).all()
    # The same from memory in another order, as imap and fmap give it.
    turned = np.ascontiguousarray(b.transpose(4, 0, 5, 2, 1, 3)).transpose(1, 4, 3, 5, 0, 2)
    assert (Modulus(m).matmul(a, turned) == _exact(a, b, m)).all()


def test_matmul_does_not_copy_a_large_operand_and_is_right_where_it_cannot_merge() -> None:
    m = field_pair(20).p
    numbers = np.random.default_rng(0)
    weights = numbers.integers(0, m, (1024, 2 * FREE_COPY // 1024), dtype=np.uint64).astype(np.float64)
    split = weights.reshape(4, 256, 2, -1)
    # Grid x on the rows of the operand, y on its columns: x cannot be merged into the columns without a copy.
    b = split.transpose(0, 2, 1, 3)
    a = numbers.integers(0, m, (1, 1, 1, 256), dtype=np.uint64)
    want = [[_exact(a[0, 0], b[i, j].astype(np.uint64)[:, :5], m) for j in range(2)] for i in range(4)]
    assert (Modulus(m).matmul(a, b)[..., :5] == np.array(want)).all()


@pytest.mark.parametrize("kept", [1, 2, 3, 6])
def test_sum_folds(kept: int) -> None:
    m = field_pair(31).p
    a = np.full((2, 12, 3), m - 1, dtype=np.uint64)
    a[0, :, 0] = range(12)
    out = Modulus(m).sum(a, 1, kept)
    assert out.shape == (2, kept, 3)
    assert out[0, :, 0].tolist() == [sum(i * kept + j for i in range(12 // kept)) for j in range(kept)]
    assert (out[1] == (-(12 // kept)) % m).all()


@pytest.mark.parametrize("bits", BITS)
def test_powers_of_omega(bits: int) -> None:
    pair = field_pair(bits)
    point = field_point(5, 0, pair)
    assert pow(point.omega, pair.q, pair.p) == 1
    assert point.omega != 1
    x = np.random.default_rng(0).integers(0, pair.q, 500, dtype=np.uint64)
    x[:3] = (0, 1, pair.q - 1)
    got = Powers(Modulus(pair.p), point.omega, pair.q)(x)
    assert got.tolist() == [pow(point.omega, int(v), pair.p) for v in x]


# --- tapes against the literal evaluation ---


POINT = field_point(11, 0, field_pair(20))
LINEAR = frozenset(OpKind) - ORDERED - ROOTS - EXPONENTIALS - {OpKind.EXP, OpKind.DIV}


def _compare(seed: int) -> str:
    """Both evaluations of one random program agree; says whether it has a value, is undefined, or is not LAX."""
    rng = random.Random(seed)
    kinds = [LINEAR, LINEAR | {OpKind.DIV}, LINEAR | {OpKind.EXP, OpKind.DIV}, frozenset(OpKind) - ORDERED][seed % 4]
    graph = random_graph(rng, kinds, kernels=rng.randint(1, 2))
    numbers = np.random.default_rng(seed)
    residues = {
        (i, part): numbers.integers(0, 50 if seed % 3 else m, source.tensor.shape, dtype=np.uint64)
        for i, source in enumerate(graph.inputs)
        for part, m in ((ResiduePart.P, POINT.pair.p), (ResiduePart.Q, POINT.pair.q))
    }
    for i, source in enumerate(graph.inputs):
        if not source.tensor.dtype.floating:  # a mask is the same in both fields
            residues[i, ResiduePart.P] %= 2
            residues[i, ResiduePart.Q] = residues[i, ResiduePart.P]
    arithmetic = Exact(POINT.pair.p, POINT.pair.q, POINT.omega, POINT.keys)
    exact = [arithmetic.array(residues[i, ResiduePart.P], residues[i, ResiduePart.Q]) for i in range(len(graph.inputs))]
    (want,) = reference_interpreter.evaluate(graph, exact, arithmetic)
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    lost = any(value.p is None for value in want.ravel())
    if isinstance(wanted, NotLax):
        assert lost
        return "not LAX"
    got = run_tape(tape, wanted, POINT, lambda index, part: residues[index, part])
    if isinstance(got, UndefinedStep):
        assert lost
        return "undefined"
    assert not lost
    assert isinstance(got, tuple)
    assert got[0].shape == want.shape
    assert got[0].ravel().tolist() == [value.p for value in want.ravel()]
    return "value"


@pytest.mark.parametrize("group", range(8))
def test_tape_equals_literal_evaluation(group: int) -> None:
    """Exactly equal outputs, or undefined on both sides; linear programs up to all operators that have a picture."""
    found = [_compare(20 * group + i) for i in range(20)]
    assert found.count("value") >= 8


def test_random_programs_reach_both_outcomes() -> None:
    assert {_compare(seed) for seed in range(60)} >= {"value", "undefined"}


@pytest.mark.parametrize(
    "ops",
    [
        (w.op(OpKind.EXP, 0), w.op(OpKind.EXP, 1)),
        (w.op(OpKind.SILU, 0), w.op(OpKind.SILU, 1)),
        (w.op(OpKind.SOFTMAX, 0, dim=1), w.op(OpKind.MUL, 1, 0), w.op(OpKind.EXP, 2)),
    ],
)
def test_a_second_exponential_on_a_path_is_not_lax(ops: tuple[Op, ...]) -> None:
    graph = KernelGraph((w.tensor("a", 2, 3),), ops, (len(ops),))
    wanted = needed_parts(record_tape(graph))
    assert isinstance(wanted, NotLax)
    assert "second exponential" in wanted.reason


def _needed(tape: Tape) -> Needs:
    wanted = needed_parts(tape)
    assert not isinstance(wanted, NotLax)
    return wanted


def test_only_needed_parts_are_needed() -> None:
    """Scores of attention are needed in Z_q only, values in Z_p only, the gate of a gated MLP in both."""
    wanted = _needed(record_tape(w.attention(b=1, m=2, d=3, n=4, e=2)))
    assert [wanted[i] for i in range(3)] == [(ResiduePart.Q,), (ResiduePart.Q,), (ResiduePart.P,)]
    wanted = _needed(record_tape(w.gated_mlp(b=2, k=3, n=4)))
    assert [wanted[i] for i in range(3)] == [
        (ResiduePart.P, ResiduePart.Q),
        (ResiduePart.P, ResiduePart.Q),
        (ResiduePart.P,),
    ]
    # An exponential that no output depends on does not count.
    unused = KernelGraph((w.tensor("a", 2),), (w.op(OpKind.EXP, 0), w.op(OpKind.EXP, 1), w.op(OpKind.SQUARE, 0)), (3,))
    assert [parts for parts in _needed(record_tape(unused))] == [(ResiduePart.P,), (), (), (ResiduePart.P,)]


def test_constants_that_vanish_are_reported() -> None:
    graph = KernelGraph((w.tensor("a", 4),), (w.op(OpKind.SCALE, 0, factor=Fraction(1, POINT.pair.p)),), (1,))
    tape = record_tape(graph)
    out = run_tape(tape, _needed(tape), POINT, lambda index, part: np.ones(4, dtype=np.uint64))
    assert isinstance(out, Unrepresentable)
    assert f"1/{POINT.pair.p}" in out.reason


# --- cones ---


@pytest.mark.parametrize("seed", range(60))
def test_nothing_outside_a_cone_has_influence(seed: int) -> None:
    """Change input elements outside the cone of some output elements: those outputs stay."""
    rng = random.Random(seed)
    graph = random_graph(rng, LINEAR | {OpKind.EXP}, kernels=rng.randint(1, 2))
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    if isinstance(wanted, NotLax):
        return
    numbers = np.random.default_rng(seed)
    (output,) = tape.outputs
    mask = numbers.random(tape.steps[output].shape) < 0.2
    found = trace_cone(tape, wanted, [(output, ResiduePart.P, mask)])

    def residues(part: ResiduePart, m: int) -> dict[tuple[int, ResiduePart], NDArray[Any]]:
        return {
            (i, part): numbers.integers(0, m, source.tensor.shape, dtype=np.uint64)
            for i, source in enumerate(graph.inputs)
        }

    first = residues(ResiduePart.P, POINT.pair.p) | residues(ResiduePart.Q, POINT.pair.q)
    other = residues(ResiduePart.P, POINT.pair.p) | residues(ResiduePart.Q, POINT.pair.q)
    mixed = {key: np.where(found.get(key, False), value, other[key]) for key, value in first.items()}
    before = run_tape(tape, wanted, POINT, lambda index, part: first[index, part])
    after = run_tape(tape, wanted, POINT, lambda index, part: mixed[index, part])
    assert isinstance(before, tuple)
    assert isinstance(after, tuple)
    assert (before[0][mask] == after[0][mask]).all()


def test_a_cone_is_no_larger_than_it_must_be() -> None:
    """One row of a norm depends on one row of X; one score on a row of Q and a column of K, in Z_q only."""
    tape = record_tape(w.rmsnorm_fused(b=4, k=12, n=6, grid=3, loop=2))
    wanted = _needed(tape)
    rows = next(step for step in tape.steps if getattr(step, "kind", None) is OpKind.SQRT)
    assert isinstance(rows, UnaryStep)
    mask = np.zeros(rows.shape, dtype=bool)
    mask.reshape(4)[2] = True
    found = trace_cone(tape, wanted, [(rows.a, ResiduePart.P, mask)])
    assert list(found) == [(0, ResiduePart.P)]
    assert np.flatnonzero(found[0, ResiduePart.P].all(axis=1)).tolist() == [2]
    assert found[0, ResiduePart.P].sum() == 12
    tape = record_tape(w.attention_one(b=1, m=4, d=3, n=8, e=3, rows=2, loop=4))
    wanted = _needed(tape)
    number = next(i for i, step in enumerate(tape.steps) if getattr(step, "kind", None) is OpKind.EXP)
    mask = np.zeros(tape.steps[number].shape, dtype=bool)
    mask[0, 1, 0, 3, 0, 1, 0] = True  # Row block 1, iteration 3: query 3, key 6.
    found = trace_cone(tape, wanted, [(number, ResiduePart.P, mask)])
    assert set(found) == {(0, ResiduePart.Q), (1, ResiduePart.Q)}
    assert np.argwhere(found[0, ResiduePart.Q]).tolist() == [[0, 3, i] for i in range(3)]
    assert np.argwhere(found[1, ResiduePart.Q]).tolist() == [[0, i, 6] for i in range(3)]
