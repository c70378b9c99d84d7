"""Counterexamples of programs with masks: selections, comparisons, roundings and quotients that are 0 at 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage_formal import Graph, Tensor
from mirage_formal.graph.counterexample import Counterexample, CounterexampleEntry, DefaultValues
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Unknown
from mirage_formal.prove.counterexamples.definedness import NEVER, check_conditions
from mirage_formal.prove.counterexamples.refute import evaluate_counterexample, find_counterexample, input_arrays
from mirage_formal.prove.counterexamples.rounding_bounds import BoundedDomain, run_bounded, without_error
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import ShapeError
from tests.kit.proofs.claims import Mask, pair, program

#: Small extents, and extents at which tensors are kept by classes.
SIZES = ((3, 4), (512, 1024))


def numbers(*size: int) -> dict[str, tuple[int, ...]]:
    return {"X": size, "Y": size}


def masked(*size: int) -> dict[str, tuple[int, ...]]:
    return {"M": Mask(*size), "A": size, "B": size}


def refuted(program: KernelGraph, candidate: KernelGraph) -> Counterexample:
    """A counterexample, confirmed by the reference on inputs in which masks are zeros and ones."""
    found = find_counterexample(program, candidate, seed=3)
    assert found is not None
    for source, array in zip(program.inputs, input_arrays(program, found), strict=True):
        assert source.tensor.dtype is not DType.BOOL or set(np.unique(array)) <= {0, 1}
    value = evaluate_counterexample(program, candidate, found)
    assert (value.expected, value.got) == (found.expected, found.got)
    assert value.expected != value.got
    return found


WRONG: dict[str, Callable[..., tuple[KernelGraph, KernelGraph]]] = {
    "branches exchanged": lambda *size: pair(
        masked(*size), lambda g, m, a, b: g.select(m, a, b), lambda g, m, a, b: g.select(m, b, a)
    ),
    "a branch forgotten": lambda *size: pair(
        masked(*size), lambda g, m, a, b: g.select(m, a, b), lambda g, m, a, b: g.select(m, a, 0)
    ),
    "the mask forgotten": lambda *size: pair(
        masked(*size), lambda g, m, a, b: b + g.select(m, a, 0), lambda g, m, a, b: a + b
    ),
    "another number": lambda *size: pair(
        masked(*size), lambda g, m, a, b: g.select(m, a, 2), lambda g, m, a, b: g.select(m, a, 3)
    ),
    "the negation forgotten": lambda *size: pair(
        masked(*size), lambda g, m, a, b: g.select(g.logical_not(m), a, b), lambda g, m, a, b: g.select(m, a, b)
    ),
    "and for or": lambda *size: pair(
        {"M": Mask(*size), "N": Mask(*size), "A": size},
        lambda g, m, n, a: g.select(g.logical_and(m, n), a, 0),
        lambda g, m, n, a: g.select(g.logical_or(m, n), a, 0),
    ),
    "less and less or equal": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.lt(x, y), x, 1), lambda g, x, y: g.select(g.le(x, y), x, 1)
    ),
    "less, turned around": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.lt(x, y), x, 1), lambda g, x, y: g.select(g.lt(y, x), x, 1)
    ),
    "less than a sum": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.lt(g.reduction(x, 1), y), x, 1),
        lambda g, x, y: g.select(g.le(g.reduction(x, 1), y), x, 1),
    ),
    "less than a far number": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.lt(x, 100), y, 1), lambda g, x, y: g.select(g.le(x, 100), y, 1)
    ),
    "another far number": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.lt(x, Fraction(201, 2)), y, 1),
        lambda g, x, y: g.select(g.lt(x, Fraction(203, 2)), y, 1),
    ),
    "equal and not": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.eq(x, y), x, 1), lambda g, x, y: g.select(g.ne(x, y), x, 1)
    ),
    "equal to a number": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.eq(x, 7), y, 1), lambda g, x, y: g.select(g.eq(x, 8), y, 1)
    ),
    "rounded to float16": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.round_to(x, "float16") + y, lambda g, x, y: x + y
    ),
    "rounded to bfloat16": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.round_to(x, "bfloat16") + y, lambda g, x, y: x + y
    ),
    "less than a half": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.lt(x, Fraction(1, 2)), y, 1),
        lambda g, x, y: g.select(g.le(x, Fraction(1, 2)), y, 1),
    ),
    "rounded inside a function that large numbers saturate": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.max(g.sigmoid(g.round_to(x, "bfloat16")), 0),
        lambda g, x, y: g.max(g.sigmoid(x), 0),
    ),
    "rounded scores": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.softmax(g.round_to(x, "float16"), 1), lambda g, x, y: g.softmax(x, 1)
    ),
    "rounded to another type": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.round_to(x, "bfloat16"), lambda g, x, y: g.round_to(x, "float16")
    ),
    "rounded before the sum": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.round_to(x + y, "bfloat16"),
        lambda g, x, y: g.round_to(x, "bfloat16") + g.round_to(y, "bfloat16"),
    ),
    "a discarded logarithm": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.gt(x, 0), g.log(x), y),
        lambda g, x, y: g.select(g.gt(x, 1), g.log(x), y),
    ),
    "zero where nothing is divided": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.div_no_nan(x, y), lambda g, x, y: g.select(g.eq(y, 0), 1, g.div_no_nan(x, y))
    ),
}


@pytest.mark.parametrize("size", SIZES, ids=["small", "large"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_candidates_are_refuted(name: str, size: tuple[int, int]) -> None:
    refuted(*WRONG[name](*size))


RIGHT: dict[str, Callable[..., tuple[KernelGraph, KernelGraph]]] = {
    "the negation exchanges the branches": lambda *size: pair(
        masked(*size), lambda g, m, a, b: g.select(m, a, b), lambda g, m, a, b: g.select(g.logical_not(m), b, a)
    ),
    "not less is greater or equal": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.select(g.ge(x, y), x, 1), lambda g, x, y: g.select(g.lt(x, y), 1, x)
    ),
    "a root squared, which float64 does not compute exactly": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.eq(g.square(g.sqrt(g.square(x) + 2)), g.square(x) + 2), g.relu(y), 1),
        lambda g, x, y: g.relu(y),
    ),
    "exponentials of sums": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.select(g.lt(g.exp(x) * g.exp(y), g.exp(x + y)), x, 1),
        lambda g, x, y: g.select(g.lt(x, x), x, 1),
    ),
    "a rounding behind one that float64 has made": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.round_to(g.scale(g.scale(x, Fraction(257, 3)), 3), "bfloat16"),
        lambda g, x, y: g.round_to(g.scale(x, 257), "bfloat16"),
    ),
    "quotients, where neither divides by 0": lambda *size: pair(
        numbers(*size), lambda g, x, y: g.div_no_nan(x, y), lambda g, x, y: x / y
    ),
    "twice zero at zero": lambda *size: pair(
        numbers(*size),
        lambda g, x, y: g.div_no_nan(x, y),
        lambda g, x, y: g.select(g.eq(y, 0), 0, g.div_no_nan(x, y)),
    ),
}


@pytest.mark.parametrize("size", SIZES, ids=["small", "large"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_candidates_are_not(name: str, size: tuple[int, int]) -> None:
    """Also where what is compared is equal over the reals and not in float64, where nothing may be concluded."""
    assert find_counterexample(*RIGHT[name](*size), seed=3, attempts=3) is None


def test_quotients_differ_at_zero_alone() -> None:
    with_zero, plain = RIGHT["quotients, where neither divides by 0"](2, 3)
    x, y = np.array([[1.0, -2.0, 0.0], [3.0, 0.0, 1.0]]), np.array([[0.0, 4.0, 0.0], [-2.0, 1.0, np.inf]])
    (one,), (other,) = float64_reference.run(with_zero, [x, y]), float64_reference.run(plain, [x, y])
    assert one.tolist() == [[0.0, -0.5, 0.0], [-1.5, 0.0, 0.0]]
    assert np.isfinite(other).tolist() == [[False, True, False], [True, True, True]]
    assert (one == other)[np.isfinite(other)].all()


def test_a_comparison_that_rounding_may_have_decided_is_off_by_one() -> None:
    domain = BoundedDomain()
    x = without_error(np.array([2.0, 2.0, 3.0, np.nan]))
    near = np.stack([np.array([2.0, 2.0 + 1e-15, 4.0, 1.0]), np.array([1e-15, 1e-15, 1e-15, 0.0])])
    for kind in (OpKind.EQ, OpKind.LT, OpKind.LE):
        assert domain.binary(kind, x, near)[1].tolist() == [1.0, 1.0, 0.0, 1.0]
        assert domain.binary(kind, x, x)[1].tolist() == [0.0, 0.0, 0.0, 1.0]
    mask = domain.binary(OpKind.LT, x, near)
    huge = np.stack([np.array([5.0, -7.0, 1.0, np.inf]), np.array([0.5, 0.0, 0.25, np.inf])])
    assert domain.binary(OpKind.SELECT, mask, huge)[1][:3].tolist() == [5.5, 7.0, 0.25]


def test_what_a_selection_discards_adds_no_error() -> None:
    domain = BoundedDomain()
    mask = without_error(np.array([0.0, 1.0, 0.0]))
    lost = np.stack([np.array([np.nan, 2.0, np.inf]), np.array([np.nan, 0.5, np.inf])])
    found = domain.binary(OpKind.SELECT, mask, lost)
    assert found[0].tolist() == [0.0, 2.0, 0.0]
    assert found[1].tolist() == [0.0, 0.5, 0.0]
    assert not domain.scale(lost, Fraction(0)).any()


def test_sums_of_small_integers_are_exact() -> None:
    """So that a comparison of such sums is decided where both are equal."""
    graph = program(
        {"X": (4, 6), "Y": (6, 5)},
        lambda g, x, y: g.scale(g.square(g.reduction(x @ y, 1)), 3) - g.reduction(x, 1) + 7,
    )
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-4, 5, item.tensor.shape).astype(np.float64) for item in graph.inputs]
    ((values, bounds),) = run_bounded(graph, arrays)
    x, y = (array.astype(int) for array in arrays)
    assert (values == 3 * (x @ y).sum(1, keepdims=True) ** 2 - x.sum(1, keepdims=True) + 7).all()
    assert not bounds.any()
    arrays[0][0, 0] = 2.0**52
    ((_, bounds),) = run_bounded(graph, arrays)
    assert bounds.any()


def test_roundings_pass_on_what_they_may_change() -> None:
    """At the middle between two numbers an error of nothing decides for one of the two."""
    domain = BoundedDomain()
    middle = 1.0 + 2.0**-9  # between 1 and 1 + 2^-8, of which bfloat16 has 1 and 1 + 2^-7
    x = np.stack([np.array([1.0, 1.0 + 2.0**-8, middle]), np.array([0.0, 1e-12, 1e-12])])
    y, error = domain.unary(OpKind.ROUND_BFLOAT16, x)
    assert y.tolist() == [1.0, 1.0, 1.0]
    assert error.tolist() == [0.0, 2.0**-7, 0.0]


def test_masks_of_counterexamples_are_zeros_and_ones() -> None:
    left, right = WRONG["branches exchanged"](3, 4)
    found = refuted(left, right)
    for wrong in (
        replace(found, fills=(DefaultValues(2, 2), *found.fills[1:])),
        replace(found, entries=(*found.entries, CounterexampleEntry(0, (0, 0), -1))),
    ):
        with pytest.raises(ShapeError, match="zeros and ones for the mask M"):
            evaluate_counterexample(left, right, wrong)


def test_a_mask_does_not_stand_for_a_tensor() -> None:
    def cast(g: Graph, m: Tensor) -> Tensor:
        return g.cast(m, "float16")

    with pytest.raises(ShapeError, match=r"mask \[2, 3\]"):
        find_counterexample(program({"M": Mask(2, 3)}, cast), program({"M": (2, 3)}, cast), seed=0)


def test_witnesses_have_zeros_and_ones_in_masks() -> None:
    """1 / m is defined where the mask is 1 everywhere; 1 / (m (1 - m)) nowhere, and so it is said."""
    one = program({"M": Mask(4, 4)}, lambda g, m: g.reciprocal(g.cast(m, "float32")))
    assert check_conditions(one, one, doubtful=True) is None
    never = program(
        {"M": Mask(4, 4)},
        lambda g, m: g.reciprocal(g.cast(g.logical_and(m, g.logical_not(m)), "float32")),
    )
    assert check_conditions(never, never, doubtful=True) == Unknown(NEVER)
    total = program({"M": Mask(4, 4), "X": (4, 4)}, lambda g, m, x: g.div_no_nan(x, g.select(m, x, 0)))
    assert check_conditions(total, total, doubtful=True) is None
