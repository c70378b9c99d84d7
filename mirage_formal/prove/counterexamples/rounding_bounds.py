"""Float64 values with an upper bound on their rounding error.

A value and its bound are two stacked arrays, so that the float reference handles all operators that only move elements.
The bounds are worst cases: sums of the terms' bounds, and for every operation its own rounding.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.semantics.batched_reference import BatchedDomain
from mirage_formal.semantics.float64_reference import Floats
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import LOOP_AXIS

#: Relative error of one operation, and of one call of a function of the mathematical library.
_U: Final = 2.0**-53
_CALL: Final = 8 * _U
#: Below this, results lose digits, or are 0 though the exact ones are not.
_LEAST: Final = 2.0**-1022
#: Integers below this one are exact, and so are their sums and products as far as they are below it.
_EXACT: Final = 2.0**53


class BoundedDomain(BatchedDomain):
    """A domain of arrays [2, ...]: values, and upper bounds on their distance from the exact result.

    Sound: to first order in the rounding of the bounds themselves, which are a sum of positive terms. It supports
    evidence that two numbers are different, and no proof.
    """

    def unary(self, kind: OpKind, a: NDArray[Any]) -> NDArray[Any]:
        """Implement ``Domain.unary``."""
        v, e = a
        y = super().unary(kind, v)
        match kind:
            case OpKind.EXP:
                return np.stack([y, y * np.expm1(np.minimum(e, 700.0)) + _CALL * y + _LEAST])
            case OpKind.SQRT:
                below = np.where(v > 0, v, 1.0)
                passed = np.where(v > 0, np.minimum(e / np.sqrt(below), np.sqrt(e)), np.sqrt(e))
                return np.stack([y, passed + _U * y])
            case OpKind.SQUARE:
                own = np.where(_is_exact_integer(y) & _is_exact_integer(v), 0.0, _U * y)
                return np.stack([y, (2 * np.abs(v) + e) * e + own + _underflow_error(y, v != 0)])
            case OpKind.RELU | OpKind.ABS:
                return np.stack([y, e])
            case OpKind.ROUND_FLOAT16 | OpKind.ROUND_BFLOAT16:
                # Roundings are monotone: what lies between two numbers is rounded to what lies between their roundings.
                low = super().unary(kind, np.nextafter(v - e, -np.inf))
                high = super().unary(kind, np.nextafter(v + e, np.inf))
                return np.stack([y, np.where(e == 0, 0.0, np.maximum(high - y, y - low))])
            case OpKind.LOG:
                room = v - e
                passed = np.where(room > 0, e / np.where(room > 0, room, 1.0), np.inf)
                return np.stack([y, passed + _CALL * np.abs(y)])
            case OpKind.RECIPROCAL:
                return self.binary(OpKind.DIV, without_error(np.ones_like(v)), a)
            case _:
                # The error function is near -1 where its sum with 1 is small.
                own = np.abs(v) if kind is OpKind.GELU else np.abs(y)
                slope = FUNCTION_SPECS[kind].slope
                assert slope is not None, kind
                return np.stack([y, slope * e + _CALL * own])

    def binary(self, kind: OpKind, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Implement ``Domain.binary``."""
        (v, e), (w, f) = a, b
        y = super().binary(kind, v, w)
        match kind:
            case OpKind.MAXIMUM | OpKind.MINIMUM:
                return np.stack([y, np.maximum(e, f) + 0.0 * y])
            case OpKind.EQ | OpKind.LT | OpKind.LE:
                return np.stack([y, np.where(_is_decided(a, b), 0.0, 1.0)])
            case OpKind.SELECT:
                return np.stack([y, _selection_error(a, b)])
            case OpKind.MUL:
                passed = np.abs(v) * f + np.abs(w) * e + e * f + _underflow_error(y, (v != 0) & (w != 0))
            case OpKind.DIV | OpKind.DIV_NO_NAN:
                room = np.abs(w) - f
                passed = np.where(room > 0, (e + np.abs(y) * f) / np.where(room > 0, room, 1.0), np.inf)
                passed = passed + _underflow_error(y, v != 0)
                if kind is OpKind.DIV_NO_NAN:  # a divisor that is surely 0 leaves nothing to chance
                    passed = np.where((w == 0) & (f == 0), 0.0, passed)
                return np.stack([y, passed + _U * np.abs(y)])
            case OpKind.ADD | OpKind.SUB:
                passed = e + f
            case _:
                raise AssertionError(kind)
        return np.stack(
            [
                y,
                passed
                + np.where(_is_exact_integer(y) & _is_exact_integer(v) & _is_exact_integer(w), 0.0, _U * np.abs(y)),
            ]
        )

    def scale(self, a: NDArray[Any], factor: Fraction) -> NDArray[Any]:
        """Implement ``Domain.scale``."""
        if not factor:
            return np.zeros_like(a)
        y = super().scale(a[0], factor)
        own = 2 * _U * np.abs(y)
        if factor.denominator == 1:
            own = np.where(_is_exact_integer(y) & _is_exact_integer(a[0]), 0.0, own)
        return np.stack([y, abs(float(factor)) * a[1] + own + _underflow_error(y, a[0] != 0)])

    def offset(self, a: NDArray[Any], constant: Fraction) -> NDArray[Any]:
        """Implement ``Domain.offset``."""
        y = super().offset(a[0], constant)
        own = _U * (np.abs(y) + abs(float(constant)))
        if Fraction(float(constant)) == constant:
            whole = constant.denominator == 1 and abs(constant) < _EXACT
            own = np.where((a[0] == 0) | (whole & _is_exact_integer(y) & _is_exact_integer(a[0])), 0.0, own)
        return np.stack([y, a[1] + own])

    def matmul(self, a: NDArray[Any], b: NDArray[Any], inner: int) -> NDArray[Any]:
        """Implement ``Domain.matmul``."""
        (v, e), (w, f) = a, b
        sizes, others = np.abs(v), np.abs(w)
        # The operands may be sums or products with a count already.
        own = (v.shape[-1] + 4) * _U
        passed = super().matmul(sizes, f, inner) + super().matmul(e, others + f, inner)
        total = super().matmul(sizes, others, inner)
        lost = own * total + v.shape[-1] * _LEAST
        if _is_exact_integer(v).all() and _is_exact_integer(w).all():
            lost = np.where(total < _EXACT, 0.0, lost)
        return np.stack([super().matmul(v, w, inner), passed + lost])

    def sum(self, a: NDArray[Any], axis: int, extent: int, kept: int) -> NDArray[Any]:
        """Implement ``Domain.sum``."""
        found = super().sum(a, axis, extent, kept)
        sizes = super().sum(np.abs(a[:1]), axis, extent, kept)[0]
        lost = (extent // kept + 2) * _U * sizes
        if _is_exact_integer(a[0]).all():
            lost = np.where(sizes < _EXACT, 0.0, lost)
        return np.stack([found[0], found[1] + lost])

    def ordered(
        self, kind: OpKind, operands: tuple[NDArray[Any], ...], axis: int, extent: int
    ) -> tuple[NDArray[Any], ...]:
        """Implement ``Domain.ordered``."""
        if kind is OpKind.MAX:
            return (operands[0].max(axis=axis + 1, keepdims=True),)
        if kind is OpKind.RUNNING_MAX:
            steps = _iterations(operands[0].max(axis=axis + 1, keepdims=True))
            maxima, factors = [steps[0]], [np.zeros_like(steps[0])]
            for step in steps[1:]:
                maxima.append(np.maximum(maxima[-1], step))
                factors.append(self.unary(OpKind.EXP, self.binary(OpKind.SUB, maxima[-2], maxima[-1])))
            return np.concatenate(maxima, LOOP_AXIS + 1), np.concatenate(factors, LOOP_AXIS + 1)
        assert kind is OpKind.ACCUM_RESCALED_SUM, kind
        terms, factors = (_iterations(operand) for operand in operands)
        # Blocks may differ in the factor alone, of which a loop of one iteration uses nothing but that.
        state = np.broadcast_to(terms[0], np.broadcast_shapes(terms[0].shape, factors[0].shape))
        for term, factor in zip(terms[1:], factors[1:], strict=True):
            state = self.binary(OpKind.ADD, self.binary(OpKind.MUL, state, factor), term)
        return (state,)

    def softmax(self, a: NDArray[Any], axis: int, extent: int) -> NDArray[Any]:
        """Implement ``Domain.softmax``."""
        weights = self.unary(OpKind.EXP, a)
        return self.binary(OpKind.DIV, weights, self.sum(weights, axis, extent, 1))


def _is_exact_integer(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are integers so small that sums and products of such as these are exact."""
    return np.asarray((np.abs(values) < _EXACT) & (np.rint(values) == values))


def _is_decided(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where rounding cannot have changed the answer of a comparison.

    Sound: both are exact, or they are further apart than both may be off; anything that is not a number decides
    nothing.
    """
    (v, e), (w, f) = a, b
    exact = (e == 0) & (f == 0) & np.isfinite(v) & np.isfinite(w)
    return np.asarray(exact | (np.abs(v - w) > (e + f) * (1 + 4 * _U)))


def _selection_error(mask: NDArray[Any], a: NDArray[Any]) -> NDArray[Any]:
    """Return the error bound of a selection: that of the value where the mask is 1, and 0 where it is not.

    Sound: a mask is 0 or 1, so one that is off by less than a half is what it should be. Elsewhere the result may be
    either, whatever it is here. Where a mask is surely 0, the value is not looked at.
    """
    (v, e), (m, g) = a, mask
    chosen = np.where(m != 0, e, 0.0)
    return np.where(g < 0.5, chosen, np.abs(v) + e)


def _underflow_error(y: NDArray[Any], nonzero: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the absolute error of underflow."""
    return np.where(nonzero & (np.abs(y) < _LEAST), _LEAST, 0.0)


def _iterations(a: NDArray[Any]) -> list[NDArray[Any]]:
    return [np.take(a, [i], axis=LOOP_AXIS + 1) for i in range(a.shape[LOOP_AXIS + 1])]


def without_error(values: Floats) -> NDArray[Any]:
    """Return values with error bound 0."""
    return np.stack([values, np.zeros_like(values)])


def run_bounded(graph: KernelGraph, arrays: list[Floats]) -> tuple[NDArray[Any], ...]:
    """Return the outputs [2, ...] of a µGraph on exact inputs: values, and upper bounds on their errors.

    Raises:
        GraphError: The graph is not well-formed.
    """
    with np.errstate(all="ignore"):
        return evaluate(graph, [without_error(array) for array in arrays], BoundedDomain())


__all__ = ["BoundedDomain", "run_bounded", "without_error"]
