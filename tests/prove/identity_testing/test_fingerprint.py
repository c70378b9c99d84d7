"""Fingerprints: laws that must hold, laws that must not, logs that can be drawn again from docs/fingerprint.md."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from contextlib import nullcontext
from fractions import Fraction
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest

from mirage_formal.check.fingerprint import field_interpreter
from mirage_formal.check.fingerprint import fingerprint as check_module
from mirage_formal.check.fingerprint.fingerprint import check_fingerprint
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verdict import Different, Probable, Unknown
from mirage_formal.prove.identity_testing import draw
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings, fingerprint
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.semantics.straight_line_trace import ResiduePart
from mirage_formal.support.errors import FormatError, GraphError, UnsupportedError
from tests.kit.graphs import workloads as w

K = OpKind
SMALL = FingerprintSettings(seed=5, prime_bits=20)
BIG = FingerprintSettings(seed=5, prime_bits=31)


def program(shapes: Sequence[Shape], *ops: Op, outputs: tuple[int, ...] | None = None) -> KernelGraph:
    inputs = tuple(w.tensor(f"t{i}", *shape) for i, shape in enumerate(shapes))
    return KernelGraph(inputs, ops, outputs or (len(inputs) + len(ops) - 1,))


X = ((4, 6),)
XY = ((4, 6), (4, 6))
half = Fraction(1, 2)

#: (inputs, one program, another that computes the same over the reals or, for sqrt, where the roots exist)
SAME = {
    "exp(x)exp(y) = exp(x+y)": (
        XY,
        (w.op(K.EXP, 0), w.op(K.EXP, 1), w.op(K.MUL, 2, 3)),
        (w.op(K.ADD, 0, 1), w.op(K.EXP, 2)),
    ),
    "sqrt(x)sqrt(y) = sqrt(xy)": (
        XY,
        (w.op(K.SQRT, 0), w.op(K.SQRT, 1), w.op(K.MUL, 2, 3)),
        (w.op(K.SQRT, 0), w.op(K.SQRT, 1), w.op(K.MUL, 0, 1), w.op(K.SQRT, 4)),
    ),
    "sqrt(x)^2 = x": (
        X,
        (w.op(K.SQRT, 0), w.op(K.SQUARE, 1)),
        (w.op(K.SCALE, 0, factor=Fraction(1)),),
    ),
    "sqrt(sqrt(x)^2) = sqrt(x)": (
        X,
        (w.op(K.SQRT, 0),),
        (w.op(K.SQRT, 0), w.op(K.SQUARE, 1), w.op(K.SQRT, 2)),
    ),
    "sqrt(exp(x)^2) = exp(x)": (X, (w.op(K.EXP, 0),), (w.op(K.EXP, 0), w.op(K.SQUARE, 1), w.op(K.SQRT, 2))),
    "sqrt(x/64) = sqrt(x)/8": (
        X,
        (w.op(K.SCALE, 0, factor=Fraction(1, 64)), w.op(K.SQRT, 1)),
        (w.op(K.SQRT, 0), w.op(K.SCALE, 1, factor=Fraction(1, 8))),
    ),
    "sqrt(x/441) = sqrt(x)/21": (
        X,
        (w.op(K.SCALE, 0, factor=Fraction(1, 441)), w.op(K.SQRT, 1)),
        (w.op(K.SQRT, 0), w.op(K.SCALE, 1, factor=Fraction(1, 21))),
    ),
    "silu(x) = x/(1+exp(-x))": (
        X,
        (w.op(K.SILU, 0),),
        (
            w.op(K.EXP, 0),
            w.op(K.MUL, 0, 1),
            w.op(K.DIV, 1, 1),
            w.op(K.ADD, 1, 3),
            w.op(K.DIV, 2, 4),
        ),
    ),
    "(x+y)/(xy) = 1/x + 1/y": (
        XY,
        (w.op(K.ADD, 0, 1), w.op(K.MUL, 0, 1), w.op(K.DIV, 2, 3)),
        (w.op(K.DIV, 0, 0), w.op(K.DIV, 2, 0), w.op(K.DIV, 2, 1), w.op(K.ADD, 3, 4)),
    ),
    "relu(x+y) = relu(y+x)": (
        XY,
        (w.op(K.ADD, 0, 1), w.op(K.RELU, 2)),
        (w.op(K.ADD, 1, 0), w.op(K.RELU, 2)),
    ),
    "layer_norm by hand": (
        X,
        (w.op(K.LAYER_NORM, 0, dim=1, eps=half),),
        (
            w.op(K.MEAN, 0, dim=1),
            w.op(K.SQUARE, 0),
            w.op(K.MEAN, 2, dim=1),
            w.op(K.SQUARE, 1),
            w.op(K.SUB, 3, 4),
            w.op(K.DIV, 0, 0),
            w.op(K.SCALE, 6, factor=half),
            w.op(K.SUM, 7, dim=1),
            w.op(K.SCALE, 8, factor=Fraction(1, 6)),
            w.op(K.ADD, 5, 9),
            w.op(K.SQRT, 10),
            w.op(K.SUB, 0, 1),
            w.op(K.DIV, 12, 11),
        ),
    ),
}

#: (inputs, one program, one that does not compute the same)
OTHER = {
    "sqrt(x^2) is |x|, not x": (X, (w.op(K.SQUARE, 0), w.op(K.SQRT, 1)), (w.op(K.SCALE, 0, factor=Fraction(1)),)),
    "sqrt(x+y) is not sqrt(x)+sqrt(y)": (
        XY,
        (w.op(K.ADD, 0, 1), w.op(K.SQRT, 2)),
        (w.op(K.SQRT, 0), w.op(K.SQRT, 1), w.op(K.ADD, 2, 3)),
    ),
    "exp(xy) is not exp(x)exp(y)": (
        XY,
        (w.op(K.MUL, 0, 1), w.op(K.EXP, 2)),
        (w.op(K.EXP, 0), w.op(K.EXP, 1), w.op(K.MUL, 2, 3)),
    ),
    "1/n for n": (
        X,
        (w.op(K.MEAN, 0, dim=1),),
        (w.op(K.SUM, 0, dim=1), w.op(K.SCALE, 1, factor=Fraction(6))),
    ),
    "sum for mean": (X, (w.op(K.MEAN, 0, dim=1),), (w.op(K.SUM, 0, dim=1),)),
    "mean over the wrong number": (
        X,
        (w.op(K.MEAN, 0, dim=1),),
        (w.op(K.SUM, 0, dim=1), w.op(K.SCALE, 1, factor=Fraction(1, 4))),
    ),
    "sqrt(n) for 1/sqrt(n)": (
        ((4, 16),),
        (w.op(K.RMS_NORM, 0, dim=1),),
        (
            w.op(K.SQUARE, 0),
            w.op(K.SUM, 1, dim=1),
            w.op(K.SQRT, 2),
            w.op(K.DIV, 0, 3),
            w.op(K.SCALE, 4, factor=Fraction(1, 4)),
        ),
    ),
    "-sqrt(x) for sqrt(x)": (X, (w.op(K.SQRT, 0),), (w.op(K.SQRT, 0), w.op(K.SCALE, 1, factor=Fraction(-1)))),
    "no eps": (X, (w.op(K.RMS_NORM, 0, dim=1, eps=Fraction(1, 10**5)),), (w.op(K.RMS_NORM, 0, dim=1),)),
    "gelu for relu": (X, (w.op(K.GELU, 0),), (w.op(K.RELU, 0),)),
    "silu(2x) for 2 silu(x)": (
        X,
        (w.op(K.SCALE, 0, factor=Fraction(2)), w.op(K.SILU, 1)),
        (w.op(K.SILU, 0), w.op(K.SCALE, 1, factor=Fraction(2))),
    ),
    # MN X + sum(X) against M rowsum(X) + N colsum(X): what an index-blind abstraction cannot tell apart.
    "index-blind sums": (
        X,
        (
            w.op(K.SCALE, 0, factor=Fraction(24)),
            w.op(K.SUM, 0, dim=0),
            w.op(K.SUM, 2, dim=1),
            w.op(K.ADD, 1, 3),
        ),
        (
            w.op(K.SUM, 0, dim=1),
            w.op(K.SCALE, 1, factor=Fraction(4)),
            w.op(K.SUM, 0, dim=0),
            w.op(K.SCALE, 3, factor=Fraction(6)),
            w.op(K.ADD, 2, 4),
        ),
    ),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("settings", [SMALL, BIG])
def test_laws_that_hold(name: str, settings: FingerprintSettings) -> None:
    shapes, left, right = SAME[name]
    for one, other in ((left, right), (right, left)):
        verdict = fingerprint(program(shapes, *one), program(shapes, *other), settings).verdict
        assert isinstance(verdict, Probable), verdict


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("settings", [SMALL, BIG])
def test_laws_that_do_not_hold(name: str, settings: FingerprintSettings) -> None:
    shapes, left, right = OTHER[name]
    for one, other in ((left, right), (right, left), (left, left)):
        verdict = fingerprint(program(shapes, *one), program(shapes, *other), settings).verdict
        assert isinstance(verdict, Probable if one is other else Different), verdict


def test_laws_of_opaque_functions_are_not_assumed() -> None:
    one = program(X, w.op(K.SCALE, 0, factor=Fraction(2)), w.op(K.RELU, 1))
    other = program(X, w.op(K.RELU, 0), w.op(K.SCALE, 1, factor=Fraction(2)))
    result = fingerprint(one, other, SMALL)
    assert isinstance(result.verdict, Different)
    assert result.record.lax == "opaque"
    assert list(result.record.draws[0].opaque_keys) == ["relu"]


@pytest.mark.parametrize("kind", [K.GELU, K.RELU, K.TANH, K.ERF, K.SIGMOID])
def test_zeros_behind_the_end_stay_zeros(kind: OpKind) -> None:
    """A sum of squares does not see them, if the function is 0 at 0; the sigmoid is not."""
    one = program(X, w.op(kind, 0), w.op(K.SQUARE, 1), w.op(K.SUM, 2, dim=1))
    longer = (w.op(K.PAD, 0, dim=1, before=0, after=3), w.op(kind, 1), w.op(K.SQUARE, 2), w.op(K.SUM, 3, dim=1))
    verdict = fingerprint(one, program(X, *longer), SMALL).verdict
    assert isinstance(verdict, Different if kind is K.SIGMOID else Probable)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((w.op(K.EXP, 0), w.op(K.EXP, 1)), "second exponential"),
        ((w.op(K.MAX, 0, dim=1),), "order"),
        ((w.op(K.SCALE, 0, factor=Fraction(1, field_pair(20).q)), w.op(K.EXP, 1)), "no faithful picture"),
        # -1 is no residue, and x^2 always is: there is no x with a root of -x^2.
        ((w.op(K.SQUARE, 0), w.op(K.SCALE, 1, factor=Fraction(-1)), w.op(K.SQRT, 2)), "after 128 redraws"),
        ((w.op(K.SUB, 0, 0), w.op(K.DIV, 0, 1)), "a denominator is 0, still after 128 redraws"),
    ],
)
def test_no_picture_is_unknown_even_for_the_program_itself(ops: tuple[Op, ...], message: str) -> None:
    graph = program(X, *ops)
    result = fingerprint(graph, graph, SMALL)
    assert isinstance(result.verdict, Unknown)
    assert message in result.verdict.reason
    assert result.record.verdict == "unknown"
    assert result.record.reason == result.verdict.reason


def test_an_operator_that_no_output_needs_does_not_matter() -> None:
    graph = program(X, w.op(K.MAX, 0, dim=1), w.op(K.SQUARE, 0))
    assert isinstance(fingerprint(graph, program(X, w.op(K.MUL, 0, 0)), SMALL).verdict, Probable)


def test_the_difference_is_where_it_is_said_to_be() -> None:
    """Output 1, row 2: the candidate doubles one row of the second output by adding it to itself in its own block."""
    shapes = ((4, 6),)
    one = program(shapes, w.op(K.SQUARE, 0), w.op(K.ADD, 0, 0), outputs=(1, 2))
    other = program(
        shapes,
        w.op(K.SQUARE, 0),
        w.op(K.SCALE, 0, factor=Fraction(2)),
        w.op(K.SUB, 1, 1),
        w.op(K.MUL, 3, 0),
        w.op(K.ADD, 2, 4),
        outputs=(1, 5),
    )
    assert isinstance(fingerprint(one, other, SMALL).verdict, Probable)
    swapped = program(shapes, w.op(K.SQUARE, 0), w.op(K.ADD, 0, 0), outputs=(2, 1))
    verdict = fingerprint(one, swapped, SMALL).verdict
    assert isinstance(verdict, Different)
    assert (verdict.seed, verdict.output, verdict.index) == (5, 0, (0, 0))
    p = field_pair(20).p
    x = int(draw.input_residues(draw.stream(5, 0, draw.input_name(0, ResiduePart.P, 0)), (4, 6), p)[0, 0])
    assert (verdict.expected, verdict.got) == (x * x % p, 2 * x % p)
    third = program(shapes, w.op(K.SQUARE, 0), w.op(K.SCALE, 0, factor=Fraction(3)), outputs=(1, 2))
    verdict = fingerprint(one, third, SMALL).verdict
    assert isinstance(verdict, Different)
    assert verdict.output == 1


def test_shapes_must_agree() -> None:
    graph = program(X, w.op(K.SQUARE, 0))
    with pytest.raises(GraphError, match="inputs of shapes"):
        fingerprint(graph, program(((6, 4),), w.op(K.SQUARE, 0)), SMALL)
    with pytest.raises(GraphError, match="outputs of shapes"):
        fingerprint(graph, program(X, w.op(K.SUM, 0, dim=1)), SMALL)
    with pytest.raises(GraphError, match="outputs of shapes"):
        fingerprint(graph, program(X, w.op(K.SQUARE, 0), outputs=(1, 1)), SMALL)


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"rounds": 0}, {"attempts": -1}, {"prime_bits": 40}])
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    graph = program(X, w.op(K.SQUARE, 0))
    with pytest.raises(UnsupportedError):
        fingerprint(graph, graph, FingerprintSettings(**wrong))


# --- redraws ---


def test_rows_of_a_norm_take_two_tries_on_average() -> None:
    """512 rows: all are residues after about log2(512) redraws, each of about half of the rows of the one before."""
    result = fingerprint(w.ntrans(b=512, n=4), w.ntrans_fused(b=512, n=4, grid=8), BIG)
    assert isinstance(result.verdict, Probable)
    redrawn: dict[int, list[int]] = {}
    for entry in result.record.draws[0].redraws:
        bits = np.unpackbits(np.frombuffer(b64decode(entry.mask), dtype=np.uint8))[: prod(entry.shape)]
        assert entry.shape == (512, 1)
        redrawn.setdefault(entry.input, []).append(int(bits.sum()))
    # The inner norm concerns H alone, the outer one X and alpha, and never H again.
    assert 200 < redrawn[1][0] < 312
    assert len(redrawn[1]) < 20
    assert redrawn[0] == redrawn[2]
    for tries in (redrawn[0], redrawn[1]):
        assert 400 < sum(tries) < 640
        assert tries == sorted(tries, reverse=True)


def test_a_zero_denominator_is_drawn_again_and_nothing_else_is() -> None:
    """70,000 denominators in a field of 57,119 elements: about one of them is 0; only those are redrawn."""
    shapes = ((7, 10000), (7, 10000))
    one = program(shapes, w.op(K.DIV, 0, 1))
    other = program(shapes, w.op(K.DIV, 1, 1), w.op(K.DIV, 2, 1), w.op(K.MUL, 0, 3))
    redrawn = 0
    for seed in range(8):
        result = fingerprint(one, other, FingerprintSettings(seed=seed, prime_bits=16))
        assert isinstance(result.verdict, Probable)
        for entry in result.record.draws[0].redraws:
            assert (entry.input, entry.field, entry.cause) == (1, "p", "a denominator is 0")
            redrawn += int(np.unpackbits(np.frombuffer(b64decode(entry.mask), dtype=np.uint8)).sum())
    assert 1 <= redrawn <= 40


def test_a_candidate_that_has_no_value_gets_points_of_its_own_and_leaves_the_session_as_it_was() -> None:
    graph = program(XY, w.op(K.ADD, 0, 1))
    rooted = program(XY, w.op(K.SQRT, 0), w.op(K.SQUARE, 2), w.op(K.ADD, 3, 1))
    session = FingerprintSession(graph, SMALL)
    first = session.check(graph)
    second = session.check(rooted)
    assert isinstance(second.verdict, Probable)
    assert first.record.draws[0].redraws == ()
    assert {entry.input for entry in second.record.draws[0].redraws} == {0}
    assert session.check(graph) == first == fingerprint(graph, graph, SMALL)
    assert session.check(rooted) == second == fingerprint(graph, rooted, SMALL)


def test_rows_that_share_weights_do_not_disturb_each_other() -> None:
    """Norms of the rows of X W: the radicands share W, so only rows of X are redrawn."""
    shapes = ((64, 5), (5, 6))
    graph = program(shapes, w.op(K.MATMUL, 0, 1), w.op(K.RMS_NORM, 2, dim=1))
    result = fingerprint(graph, graph, FingerprintSettings(seed=1, prime_bits=31))
    assert isinstance(result.verdict, Probable)
    assert {entry.input for entry in result.record.draws[0].redraws} == {0}


def test_tensors_that_are_too_large_are_not_evaluated() -> None:
    graph = w.rmsnorm(b=2, k=4, n=4)
    result = fingerprint(graph, graph, FingerprintSettings(prime_bits=20, max_elements=15))
    assert isinstance(result.verdict, Unknown)
    assert "16 elements" in result.verdict.reason
    assert isinstance(fingerprint(graph, graph, FingerprintSettings(prime_bits=20, max_elements=16)).verdict, Probable)


def test_more_multiplications_than_are_wanted_are_not_made() -> None:
    for rows, kind in ((3, Probable), (4, Unknown)):  # 2 * rows * 4 * 5 multiplications
        graph = program(((2, rows, 4), (2, 4, 5)), w.op(K.MATMUL, 0, 1))
        result = fingerprint(graph, graph, FingerprintSettings(prime_bits=20, max_multiplications=120))
        assert isinstance(result.verdict, kind)
    assert result.record.draws == ()
    assert "160 multiplications" in result.record.reason


@pytest.mark.parametrize(("kind", "each"), [(K.SQRT, 256), (K.ABS, 256), (K.EXP, 64), (K.SILU, 128), (K.RELU, 64)])
def test_functions_count_as_multiplications(kind: K, each: int) -> None:
    """Functions of a large tensor take longer than any matrix product that is fingerprinted, and roots are powers."""
    graph = program(((4, 5),), w.op(kind, 0))
    for most, verdict in ((20 * each, Probable), (20 * each - 1, Unknown)):
        result = fingerprint(graph, graph, FingerprintSettings(prime_bits=20, max_multiplications=most))
        assert isinstance(result.verdict, verdict)
    assert f"{20 * each:,} multiplications" in result.record.reason


def test_check_lets_a_fingerprint_that_was_not_made_through_only_where_it_counts_as_many() -> None:
    for rows, enough in ((32, False), (64, True)):  # 2^30 and 2^31 multiplications
        graph = program(((rows, 4096), (4096, 8192)), w.op(K.MATMUL, 0, 1))
        record = fingerprint(graph, graph, FingerprintSettings(prime_bits=31, max_multiplications=1000)).record
        with nullcontext() if enough else pytest.raises(FormatError, match="multiplications are few"):
            check_fingerprint(graph, graph, record)


def test_check_evaluates_a_program_once_for_all_of_its_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its outputs and for the causes of redraws; inputs are drawn once as well, and large ones take long."""
    inputs, one, other = SAME["sqrt(sqrt(x)^2) = sqrt(x)"]
    graph, candidate = program(inputs, *one), program(inputs, *other)
    settings = msgspec.structs.replace(BIG, seed=97)  # no other test's, whose values check may still have
    record = fingerprint(graph, candidate, settings).record
    assert any(entry.attempt for entry in record.draws[0].redraws)
    evaluated, drawn = list[KernelGraph](), list[str]()
    evaluate, stream = field_interpreter.evaluate_steps, check_module._stream

    def counted(graph: KernelGraph, *more: Any) -> Any:
        evaluated.append(graph)
        return evaluate(graph, *more)

    def streamed(*at: Any) -> Any:
        drawn.append(at[-1])
        return stream(*at)

    monkeypatch.setattr(field_interpreter, "evaluate_steps", counted)
    monkeypatch.setattr(check_module, "_stream", streamed)
    assert check_fingerprint(graph, candidate, record)
    assert graph in evaluated
    assert "input/0/p/0" in drawn
    evaluated.clear()
    drawn.clear()
    assert check_fingerprint(graph, candidate, record)
    assert set(evaluated) == {candidate}
    assert "input/0/p/0" not in drawn
    moved = msgspec.structs.replace(record.draws[0], redraws=record.draws[0].redraws[1:])
    with pytest.raises(FormatError):
        check_fingerprint(graph, candidate, msgspec.structs.replace(record, draws=(moved, *record.draws[1:])))


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        ((4096, 2048), w.op(K.SILU, 0)),
        ((4096, 2048), w.op(K.SOFTMAX, 0, dim=1)),
        ((1 << 21, 4), w.op(K.RMS_NORM, 0, dim=1)),
    ],
)
def test_check_counts_functions(shape: tuple[int, int], op: Op) -> None:
    """What counts as 2^30 multiplications is few, and with one row more it is not: a norm has a root for each row."""
    for rows, enough in ((shape[0], False), (shape[0] + 1, True)):
        graph = program(((rows, shape[1]),), op)
        record = fingerprint(graph, graph, FingerprintSettings(prime_bits=31, max_multiplications=1000)).record
        with nullcontext() if enough else pytest.raises(FormatError, match="multiplications are few"):
            check_fingerprint(graph, graph, record)


@pytest.mark.parametrize("settings", [SMALL, BIG])
def test_a_program_that_was_evaluated_before_its_candidates_gives_the_same_results(
    settings: FingerprintSettings,
) -> None:
    for inputs, one, other in SAME.values():
        graph, candidate = program(inputs, *one), program(inputs, *other)
        session = FingerprintSession(graph, settings)
        session.evaluate_program()
        assert session.check(candidate) == fingerprint(graph, candidate, settings)
