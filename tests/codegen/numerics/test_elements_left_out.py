"""Numerics: elements that the program's own operators cannot be relied on to compute are not compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from mirage_formal.codegen.numerics.result_comparison import (
    Inputs,
    Runner,
    check,
    computed_answer,
    draw_all,
    exact_outputs,
    nonfinite_reference_elements,
)
from mirage_formal.codegen.numerics.rounding import quantize
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.records import NumericsRecord

K = OpKind


def _typed(shape: tuple[int, ...], name: str) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def _two_products() -> KernelGraph:
    """(X A) B: at scale 8 the elements of X A are within float16, and most of the result's summands are not."""
    inputs = (_typed((4, 64), "X"), _typed((64, 64), "A"), _typed((64, 64), "B"))
    ops = (
        Op(K.MATMUL, (0, 1), Attrs()),
        Op(K.MATMUL, (3, 2), Attrs()),
        Op(K.SCALE, (4,), Attrs(factor=Fraction(1, 1024))),
    )
    return KernelGraph(inputs, ops, (5,))


def _times(factor: float, graph: KernelGraph) -> Runner:
    """The program's exact results, of which those are infinite whose product is too large in float16."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        x, a, b = arrays
        found = quantize(x @ a, DType.FLOAT16, np) @ b
        value = quantize(found / 1024, DType.FLOAT16, np) * factor
        return [np.where(np.abs(found) > 65504, np.inf, value)]

    return run


def test_what_the_programs_own_operators_lose_is_not_compared() -> None:
    graph = _two_products()
    record = check(graph, graph, "", _times(1.0, graph), device="x")
    large = record.scales[2].outputs[0]
    assert (large.answer, record.answer) == ("within", "within")
    assert 0 < large.lost < large.elements
    assert [scale.outputs[0].lost for scale in record.scales[:2]] == [0, 0]


def test_what_is_not_lost_still_has_to_be_right() -> None:
    graph = _two_products()
    record = check(graph, graph, "", _times(1.5, graph), device="x")
    assert [scale.answer for scale in record.scales] == ["outside"] * 3
    assert computed_answer(record) == "outside"


def test_nothing_is_lost_where_only_the_kernel_overflows() -> None:
    """The same values, but the program scales first: its own operators compute all of them."""
    graph = _two_products()
    ops = (Op(K.SCALE, (1,), Attrs(factor=Fraction(1, 1024))), *graph.ops[:2])
    ops = (ops[0], replace(ops[1], operands=(0, 3)), replace(ops[2], operands=(4, 2)))
    other = KernelGraph(graph.inputs, ops, (5,))
    arrays = draw_all(other, 0, 8.0)
    assert not nonfinite_reference_elements(other, arrays)[0].any()
    record = check(other, other, "", _times(1.0, graph), device="x", inputs=Inputs(scales=(8.0,)))
    assert record.answer == "outside"


def test_nothing_is_said_where_everything_is_lost() -> None:
    """Such a scale decides nothing, and another one has to."""
    graph = _two_products()
    many = check(graph, graph, "", _times(1.0, graph), device="x", inputs=Inputs(scales=(1.0, 512.0)))
    assert [scale.answer for scale in many.scales] == ["within", "undecided"]
    assert many.answer == "undecided"
    assert computed_answer(many) == "within"
    only = check(graph, graph, "", _times(1.0, graph), device="x", inputs=Inputs(scales=(512.0,)))
    assert computed_answer(only) == "undecided"


@pytest.mark.parametrize("kind", [K.EXP, K.SQUARE])
def test_exponentials_that_are_divided_by_their_sum_are_not_lost(kind: K) -> None:
    """Kernels keep them in range, and are asked to; squares that are too large nobody does."""
    ops = (Op(kind, (0,), Attrs()), Op(K.SUM, (1,), Attrs(dim=1)), Op(K.DIV, (1, 2), Attrs()))
    graph = KernelGraph((_typed((8, 64), "X"),), ops, (3,))
    arrays = draw_all(graph, 0, 100.0)
    gone = nonfinite_reference_elements(graph, arrays)[0]
    assert gone.any() == (kind is K.SQUARE)


def test_what_follows_a_quotient_of_exponentials_can_be_lost_again() -> None:
    ops = (
        *(Op(K.EXP, (0,), Attrs()), Op(K.SUM, (1,), Attrs(dim=1)), Op(K.DIV, (1, 2), Attrs())),
        *(Op(K.SCALE, (3,), Attrs(factor=Fraction(10**6))), Op(K.SCALE, (4,), Attrs(factor=Fraction(1, 10**6)))),
    )
    graph = KernelGraph((_typed((2, 4), "X"),), ops, (5,))
    assert nonfinite_reference_elements(graph, draw_all(graph, 0, 1.0))[0].any()


def _product_and(kind: K, factor: float) -> tuple[KernelGraph, Runner]:
    """(X A) B, which is lost in part where it is large, beside a function of Y."""
    product = _two_products()
    y = _typed((4, 4), "Y")
    ops = tuple(replace(op, operands=tuple(n + (n > 2) for n in op.operands)) for op in product.ops)
    graph = KernelGraph((*product.inputs, y), (*ops, Op(kind, (3,), Attrs())), (6, 7))

    def run(arrays: Sequence[Any]) -> list[Any]:
        (first,) = _times(1.0, product)(arrays[:3])
        with np.errstate(all="ignore"):
            return [first, quantize(np.sqrt(arrays[3]), DType.FLOAT16, np) * factor]

    return graph, run


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_what_has_no_exact_value_is_not_lost(factor: float) -> None:
    """Roots of negative numbers: another output that is lost in part makes nothing of them comparable."""
    graph, run = _product_and(K.SQRT, factor)
    record = check(graph, graph, "", run, device="x", inputs=Inputs(scales=(8.0,)))
    first, second = record.scales[0].outputs
    assert (first.answer, second.answer, second.lost) == ("within", "undecided", 0)
    assert computed_answer(record) == "undecided"


def test_an_output_that_nobody_knows_is_not_covered_by_one_that_is_lost() -> None:
    """At a scale at which all of one output is lost, the other is undecided for a reason of its own."""
    graph, run = _product_and(K.SQRT, 1.0)
    record = check(graph, graph, "", run, device="x", inputs=Inputs(scales=(1.0, 512.0)))
    assert [o.lost == o.elements for o in record.scales[1].outputs] == [True, False]
    within = _with_scale_within(record, 0)
    assert (within.scales[0].answer, computed_answer(within)) == ("within", "undecided")


def _with_scale_within(record: NumericsRecord, scale: int) -> NumericsRecord:
    """A record of which one scale is within."""
    one = record.scales[scale]
    outputs = tuple(msgspec.structs.replace(o, answer="within", reason="") for o in one.outputs)
    scales = list(record.scales)
    scales[scale] = msgspec.structs.replace(one, answer="within", outputs=outputs)
    return msgspec.structs.replace(record, scales=tuple(scales))


# --- exponentials ----------------------------------------------------------------------------------------------------


def _exponential(rows: int = 4) -> KernelGraph:
    """exp(X A) B."""
    inputs = (_typed((rows, 64), "X"), _typed((64, 64), "A"), _typed((64, 64), "B"))
    ops = (Op(K.MATMUL, (0, 1), Attrs()), Op(K.EXP, (3,), Attrs()), Op(K.MATMUL, (4, 2), Attrs()))
    return KernelGraph(inputs, ops, (5,))


def _as_stored(factor: float) -> Runner:
    """exp(X A) B as float16 has it: exponentials and sums that are too large are infinite."""

    def run(arrays: Sequence[Any]) -> list[Any]:
        x, a, b = arrays
        with np.errstate(all="ignore"):
            powers = quantize(np.exp(quantize(x @ a, DType.FLOAT16, np)), DType.FLOAT16, np)
            return [quantize(np.where(powers > 65504, np.inf, powers) @ b * factor, DType.FLOAT16, np)]

    return run


def test_exponentials_that_nothing_divides_are_lost() -> None:
    """No kernel keeps them in range, nor do the program's own operators: such a scale decides nothing.

    At scale 8 the exact values are beyond float64, which is no reason to say that there are none.
    """
    graph = _exponential()
    record = check(graph, graph, "", _as_stored(1.0), device="x")
    outputs = [scale.outputs[0] for scale in record.scales]
    assert [one.answer for one in outputs] == ["within", "undecided", "undecided"]
    assert [one.lost == one.elements for one in outputs] == [False, True, True]
    assert not np.isfinite(exact_outputs(graph, draw_all(graph, 0, 8.0))[0]).any()
    assert computed_answer(record) == "within"
    wrong = check(graph, graph, "", _as_stored(1.5), device="x")
    assert computed_answer(wrong) == "outside"


def test_rows_whose_exponentials_are_held_still_have_to_be_right() -> None:
    graph = _exponential(rows=64)
    inputs = Inputs(scales=(0.75,))
    record = check(graph, graph, "", _as_stored(1.0), device="x", inputs=inputs)
    (one,) = record.scales[0].outputs
    assert one.answer == "within"
    assert 0 < one.lost < one.elements
    assert computed_answer(check(graph, graph, "", _as_stored(1.5), device="x", inputs=inputs)) == "outside"


@pytest.mark.parametrize("kind", [K.LOG, K.SQUARE])
def test_sums_of_exponentials_are_not_lost_for_their_logarithm(kind: K) -> None:
    """A kernel can keep log(sum exp) in range by a maximum, and no other function of the sum."""
    ops = (Op(K.EXP, (0,), Attrs()), Op(K.SUM, (1,), Attrs(dim=1)), Op(kind, (2,), Attrs()))
    graph = KernelGraph((_typed((8, 64), "X"),), ops, (3,))
    assert nonfinite_reference_elements(graph, draw_all(graph, 0, 30.0))[0].any() == (kind is K.SQUARE)


def test_what_shares_a_sum_of_exponentials_is_lost_by_itself() -> None:
    """One output divides by the sum, another multiplies by it."""
    ops = (
        *(Op(K.EXP, (0,), Attrs()), Op(K.SUM, (1,), Attrs(dim=1))),
        *(Op(K.DIV, (1, 2), Attrs()), Op(K.MUL, (0, 2), Attrs())),
    )
    graph = KernelGraph((_typed((8, 64), "X"),), ops, (3, 4))
    divided, multiplied = nonfinite_reference_elements(graph, draw_all(graph, 0, 30.0))
    assert not divided.any()
    assert multiplied.any()


def test_a_pole_is_no_value_however_much_is_lost() -> None:
    """exp(X A) B over 0: what is infinite by a division has no exact value, and is not lost."""
    inputs = (_typed((4, 64), "X"), _typed((64, 64), "A"), _typed((64, 64), "B"), _typed((4, 64), "Y"))
    ops = (
        *(Op(K.MATMUL, (0, 1), Attrs()), Op(K.EXP, (4,), Attrs()), Op(K.MATMUL, (5, 2), Attrs())),
        Op(K.DIV, (6, 3), Attrs()),
    )
    graph = KernelGraph(inputs, ops, (7,))
    arrays = draw_all(graph, 0, 1.0)
    arrays[3][:] = 0.0
    assert not nonfinite_reference_elements(graph, arrays)[0].any()
    arrays[3][:] = 1.0
    assert nonfinite_reference_elements(graph, arrays)[0].any()


def test_what_the_programs_own_operators_compute_is_not_lost_though_a_tensor_on_the_way_is_infinite() -> None:
    """x / sqrt(sum x^2) at 60 x: the sum is infinite in float16, and the quotient a number, 0, which is wrong."""
    ops = (
        *(Op(K.SCALE, (0,), Attrs(factor=Fraction(60))), Op(K.SQUARE, (1,), Attrs())),
        *(Op(K.SUM, (2,), Attrs(dim=1)), Op(K.SQRT, (3,), Attrs()), Op(K.DIV, (1, 4), Attrs())),
    )
    graph = KernelGraph((_typed((8, 64), "X"),), ops, (5, 3))
    quotient, total = nonfinite_reference_elements(graph, draw_all(graph, 0, 1.0))
    assert not quotient.any()
    assert not total.any()  # an output that is too large has to be infinite, which ``compare`` sees to
    other = replace(graph, ops=(*ops, Op(K.SUB, (3, 3), Attrs())), outputs=(6,))
    assert nonfinite_reference_elements(other, draw_all(graph, 0, 1.0))[0].all()
