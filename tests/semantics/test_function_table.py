"""Every function of one element has a row of each table, and all rows mean the same function."""

from __future__ import annotations

import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.codegen.numerics.rounding import Estimate, RoundingDomain
from mirage_formal.frontend.elementwise_functions import Functions
from mirage_formal.graph.ops import FUNCTIONS, ROUNDINGS, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.prove.counterexamples.rounding_bounds import BoundedDomain
from mirage_formal.semantics.function_table import FUNCTION_SPECS, UNINTERPRETED, Reals
from tests.kit.graphs.function_values import METHODS, VALUES, values

#: Positive numbers, among them integers, and for functions that are defined everywhere their negatives and 0.
POSITIVE = np.array([2.0**-30, 0.01, 0.4, 1.0, 1.5, 2.0, 7.25, 20.0])
ANY = np.concatenate([-POSITIVE, [0.0], POSITIVE])
every_function = pytest.mark.parametrize("kind", VALUES)


def points(kind: OpKind) -> np.ndarray:
    return ANY if FUNCTION_SPECS[kind].domain is Reals.ALL else POSITIVE


def test_every_function_is_a_method_of_graphs_blocks_and_tensors() -> None:
    for kind in FUNCTIONS - ROUNDINGS:
        for owner in (Functions, mf.Graph, mf.BlockBuilder, mf.Tensor):
            assert callable(getattr(owner, kind.value, None)), f"{owner.__name__}.{kind.value}"
    assert set(METHODS) == FUNCTIONS - ROUNDINGS


@every_function
def test_in_float64(kind: OpKind) -> None:
    x = points(kind)
    np.testing.assert_allclose(FUNCTION_SPECS[kind].evaluate(np, x), values(kind, x), rtol=1e-11, atol=1e-14)


@every_function
def test_signs(kind: OpKind) -> None:
    """What a row says about the values of its function holds of them."""
    row, x = FUNCTION_SPECS[kind], points(kind)
    y = values(kind, x)
    assert row.image is not Reals.POSITIVE or (y > 0).all()
    assert row.image is not Reals.NONNEGATIVE or (y >= 0).all()
    assert not row.keeps_sign or ((y > 0) == (x > 0)).all()
    if row.domain is Reals.ALL:
        assert row.zero_at_zero == (values(kind, np.zeros(1))[0] == 0)
    assert bool(row.latex) >= (kind in UNINTERPRETED)


@every_function
def test_bounds_of_errors_hold(kind: OpKind) -> None:
    """Arguments up to e away give results within the bound that arguments with the error e have."""
    x = points(kind)
    for e in (0.0, 1e-9, 1e-3):
        e = e if FUNCTION_SPECS[kind].domain is Reals.ALL else min(e, float(x.min()) / 2)
        y, bound = BoundedDomain().unary(kind, np.stack([x, np.full_like(x, e)]))
        for other in (x - e, x, x + e):
            assert (np.abs(values(kind, other) - y) <= bound + 1e-12 * np.abs(y) + 1e-15).all()


@every_function
def test_estimates_of_rounding_errors_exist(kind: OpKind) -> None:
    x = points(kind)
    found = RoundingDomain(np, DType.FLOAT16).unary(kind, Estimate(x))
    exact = found.mantissa if found.exponent is None else np.ldexp(found.mantissa, found.exponent.astype(int))
    np.testing.assert_allclose(exact, values(kind, x), rtol=1e-11, atol=1e-14)
    assert found.variance is None or np.isfinite(found.variance).all()


@every_function
def test_extended_precision_stays_extended(kind: OpKind) -> None:
    """A step of the argument that float64 does not see moves the result by the slope there."""
    evaluate, step = FUNCTION_SPECS[kind].evaluate, 2.0**-54
    x = np.ones(1, np.longdouble)
    below, above = evaluate(np, x), evaluate(np, x + step)
    assert below.dtype == np.longdouble
    if kind in ROUNDINGS:
        assert below == above == 1
    else:
        slope = (evaluate(np, np.array([1 + 1e-6])) - evaluate(np, np.array([1 - 1e-6]))) / 2e-6
        np.testing.assert_allclose((above - below) / step, slope, rtol=0.01)
