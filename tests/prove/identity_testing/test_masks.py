"""Masks in finite fields: zeros and ones that both fields share, selections, comparisons, roundings."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.check.fingerprint.fingerprint import check_fingerprint
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verdict import Different, Probable, Unknown
from mirage_formal.prove.identity_testing.draw import field_point
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSettings, fingerprint
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.prove.identity_testing.tape_evaluation import run_tape
from mirage_formal.records.fingerprint import FingerprintRecord
from mirage_formal.semantics.straight_line_trace import NotLax, ResiduePart, needed_parts, record_tape
from mirage_formal.support.errors import FormatError, GraphError
from tests.kit.proofs.claims import Mask, Pair, pair, program

SETTINGS = FingerprintSettings(seed=9, rounds=2)
POINT = field_point(11, 0, field_pair(31))
S = (8, 6)
MASKED = {"M": Mask(*S), "A": S, "B": S}
NUMBERS = {"X": S, "Y": S}


def said(made: Pair) -> Probable | Different | Unknown:
    """The verdict; the checker, which shares no code with it, accepts its record and none with another input."""
    result = fingerprint(*made, SETTINGS)
    written = msgspec.json.decode(msgspec.json.encode(result.record), type=FingerprintRecord)
    if isinstance(result.verdict, Probable):
        check_fingerprint(*made, written)
        first = written.draws[0]
        forged = msgspec.structs.replace(first.inputs[0], sha256="0" * 64)
        draws = (msgspec.structs.replace(first, inputs=(forged, *first.inputs[1:])), *written.draws[1:])
        with pytest.raises(FormatError, match="input"):
            check_fingerprint(*made, msgspec.structs.replace(written, draws=draws))
    assert isinstance(result.verdict, Probable | Different | Unknown)
    return result.verdict


def exponent(g: Graph, mask: Tensor, a: Tensor) -> Tensor:
    return g.exp(g.select(mask, a, 0))


def outside(g: Graph, mask: Tensor, a: Tensor) -> Tensor:
    return g.select(mask, g.exp(a), 1)


EQUAL: dict[str, Callable[[], Pair]] = {
    "a mask is the same in an exponent": lambda: pair(
        MASKED, lambda g, m, a, b: exponent(g, m, a) * b, lambda g, m, a, b: outside(g, m, a) * b
    ),
    "a comparison is the same in an exponent": lambda: pair(
        NUMBERS, lambda g, x, y: exponent(g, g.lt(x, y), x), lambda g, x, y: outside(g, g.lt(x, y), x)
    ),
    "a comparison of exponentials in an exponent": lambda: pair(
        NUMBERS,
        lambda g, x, y: exponent(g, g.lt(g.exp(x) * g.exp(y), 2), x),
        lambda g, x, y: outside(g, g.lt(g.exp(x + y), 2), x),
    ),
    "a conjunction of masks": lambda: pair(
        {"M": Mask(*S), "N": Mask(*S), "A": S},
        lambda g, m, n, a: g.select(m, g.select(n, a, 0), 0),
        lambda g, m, n, a: g.select(g.logical_and(n, m), a, 0),
    ),
    "a mask twice": lambda: pair(
        MASKED, lambda g, m, a, b: g.select(m, g.select(m, a, b), b), lambda g, m, a, b: g.select(m, a, b)
    ),
    "the negation exchanges the branches": lambda: pair(
        MASKED, lambda g, m, a, b: g.select(m, a, b), lambda g, m, a, b: g.select(g.logical_not(m), b, a)
    ),
    "a product with the mask as a number": lambda: pair(
        MASKED, lambda g, m, a, b: g.select(m, a, 0) + b, lambda g, m, a, b: g.cast(m, "float16") * a + b
    ),
    "differences are compared": lambda: pair(
        NUMBERS,
        lambda g, x, y: g.select(g.lt(x, y), x, y),
        lambda g, x, y: g.select(g.lt(x - y, 0), x, y),
    ),
    "not less is greater or equal": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.ge(x, y), x, 1), lambda g, x, y: g.select(g.lt(x, y), 1, x)
    ),
    "greater is less, turned around": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.gt(x, 3), y, 1), lambda g, x, y: g.select(g.lt(3 - x, 0), y, 1)
    ),
    "equality has no order": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.eq(x, y), x, 1), lambda g, x, y: g.select(g.eq(y - x, 0), x, 1)
    ),
    "nothing is less than itself": lambda: pair(
        NUMBERS,
        lambda g, x, y: g.select(g.lt(x + y, y + x), x, y) + g.select(g.eq(x, x), x, y) * g.select(g.le(y, y), x, y),
        lambda g, x, y: y + g.square(x),
    ),
    "roundings of equal values": lambda: pair(
        NUMBERS, lambda g, x, y: g.round_to(x + y, "float16"), lambda g, x, y: g.round_to(y + x, "float16")
    ),
    "factors of a divisor": lambda: pair(
        NUMBERS,
        lambda g, x, y: g.div_no_nan(g.exp(x) * x, g.scale(g.exp(x) * y, 3)),
        lambda g, x, y: g.div_no_nan(g.scale(x, Fraction(1, 3)), y),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_equal_agrees(name: str) -> None:
    assert isinstance(said(EQUAL[name]()), Probable)


OTHER: dict[str, Callable[[], Pair]] = {
    "branches exchanged": lambda: pair(
        MASKED, lambda g, m, a, b: g.select(m, a, b), lambda g, m, a, b: g.select(m, b, a)
    ),
    "less or equal": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.lt(x, y), x, y), lambda g, x, y: g.select(g.le(x, y), x, y)
    ),
    "turned around": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.lt(x, y), x, y), lambda g, x, y: g.select(g.lt(y, x), x, y)
    ),
    "equal": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.lt(x, y), x, y), lambda g, x, y: g.select(g.eq(x, y), x, y)
    ),
    "never equal": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.eq(x, y), x, y), lambda g, x, y: g.select(g.eq(x, x), y, x)
    ),
    "another number": lambda: pair(
        NUMBERS, lambda g, x, y: g.select(g.lt(x, 1), x, y), lambda g, x, y: g.select(g.lt(x, 2), x, y)
    ),
    "not rounded": lambda: pair(NUMBERS, lambda g, x, y: g.round_to(x, "float16") + y, lambda g, x, y: x + y),
    "rounded to another type": lambda: pair(
        NUMBERS, lambda g, x, y: g.round_to(x, "float16"), lambda g, x, y: g.round_to(x, "bfloat16")
    ),
    "the mask forgotten": lambda: pair(MASKED, lambda g, m, a, b: g.select(m, a, 0) + b, lambda g, m, a, b: a + b),
    "another divisor": lambda: pair(
        NUMBERS, lambda g, x, y: g.div_no_nan(x, y), lambda g, x, y: g.div_no_nan(x, g.scale(y, 2))
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_not_equal_differs(name: str) -> None:
    assert isinstance(said(OTHER[name]()), Different)


def outputs(graph: KernelGraph, *values: object) -> np.ndarray:
    """The first output at a point, of inputs that are these numbers in both fields."""
    tape = record_tape(graph)
    wanted = needed_parts(tape)
    assert not isinstance(wanted, NotLax)
    arrays = [np.array(value, dtype=np.uint64) for value in values]
    found = run_tape(tape, wanted, POINT, lambda index, part: arrays[index])
    assert isinstance(found, tuple)
    return found[0]


def test_a_quotient_is_zero_where_its_divisor_is() -> None:
    graph = program({"X": (1, 4), "Y": (1, 4)}, lambda g, x, y: g.div_no_nan(x, y))
    p = POINT.pair.p
    assert outputs(graph, [[1, 6, 0, 5]], [[0, 3, 0, p - 1]]).tolist() == [[0, 2, 0, p - 5]]


def test_comparisons_are_bits_of_which_half_are_ones() -> None:
    x = np.arange(4000, dtype=np.uint64).reshape(1, 4000)
    for kind in ("eq", "lt", "le", "gt", "ge"):
        graph = program(
            {"X": (1, 4000), "Y": (1, 4000)}, lambda g, x, y, kind=kind: g.cast(getattr(g, kind)(x, y), "float16")
        )
        found = outputs(graph, x, x[:, ::-1])
        assert set(np.unique(found)) == {0, 1}
        assert 1600 < found.sum() < 2400
        assert outputs(graph, x, x).tolist() == [[int(kind in ("eq", "le", "ge"))] * 4000]


def test_an_exponential_within_a_comparison_is_none_in_the_exponent() -> None:
    """A comparison reads values, which are there behind exponentials; a selection between exponentials does not."""
    made = program(NUMBERS, lambda g, x, y: exponent(g, g.lt(g.exp(x), y), y))
    wanted = needed_parts(record_tape(made))
    assert not isinstance(wanted, NotLax)
    assert wanted[:2] == ((ResiduePart.Q,), (ResiduePart.P, ResiduePart.Q))
    assert isinstance(
        needed_parts(record_tape(program(NUMBERS, lambda g, x, y: exponent(g, g.lt(x, y), g.exp(y))))), NotLax
    )


def test_masks_are_drawn_once_and_anew_where_a_divisor_is_zero() -> None:
    """1 / select(m, x, 0) has a value where all elements of the mask are ones, and so they are drawn."""
    made = program({"M": Mask(*S), "X": S}, lambda g, m, x: g.exp(x) / g.select(m, g.square(x), 0))
    result = fingerprint(made, made, SETTINGS)
    assert isinstance(result.verdict, Probable)
    check_fingerprint(made, made, result.record)
    for draw in result.record.draws:
        assert [(entry.input, entry.field) for entry in draw.inputs] == [(0, "p"), (1, "p"), (1, "q")]
        assert {(entry.input, entry.field) for entry in draw.redraws} >= {(0, "p")}


def test_no_bound_is_stated_for_masks_and_for_quotients_of_zero() -> None:
    """A program whose masks have two values each may differ from another one at one of few points only."""
    for made, reason in (
        (program(MASKED, lambda g, m, a, b: g.select(m, a, b)), "masks have two values"),
        (program(NUMBERS, lambda g, x, y: g.div_no_nan(x, y)), "a quotient that is 0 where its divisor is 0"),
        (program(NUMBERS, lambda g, x, y: g.select(g.gt(x, y), x, y)), "lt is opaque"),
        (program(NUMBERS, lambda g, x, y: g.round_to(x, "bfloat16") + y), "round_bfloat16 is opaque"),
    ):
        result = fingerprint(made, made, SETTINGS)
        assert result.record.bound_log2 is None
        assert result.record.bound_reason.startswith(reason)
        check_fingerprint(made, made, result.record)
        claimed = msgspec.structs.replace(result.record, bound_log2=-50.0, bound_reason="")
        with pytest.raises(FormatError, match="expected the bound None"):
            check_fingerprint(made, made, claimed)


def test_a_mask_does_not_stand_for_a_tensor() -> None:
    def cast(g: Graph, m: Tensor) -> Tensor:
        return g.cast(m, "float16")

    mask, tensor = program({"M": Mask(2, 3)}, cast), program({"M": (2, 3)}, cast)
    with pytest.raises(GraphError, match=r"mask \[2, 3\]"):
        fingerprint(mask, tensor, SETTINGS)
    honest = fingerprint(mask, mask, SETTINGS).record
    with pytest.raises(FormatError, match="inputs that are masks"):
        check_fingerprint(mask, tensor, honest)


def test_only_functions_that_occur_have_keys_in_the_log() -> None:
    made = program(NUMBERS, lambda g, x, y: g.select(g.ge(x, y), g.round_to(x, "float16"), g.select(g.eq(x, 2), y, 1)))
    result = fingerprint(made, made, SETTINGS)
    assert set(result.record.draws[0].opaque_keys) == {"eq", "lt", "round_float16"}
    assert OpKind.DIV_NO_NAN not in POINT.keys
