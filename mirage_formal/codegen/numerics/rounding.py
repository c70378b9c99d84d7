"""Evaluation with a running estimate of rounding errors, in an exponent range that exp does not leave.

A value is (mantissa, exponent, variance): mantissa * 2^exponent in float64, and the variance of the error that a kernel
makes on the way to it, in squared units of the mantissa. Errors of different roundings count as independent, with mean
zero (N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis", 2019), so variances add:

- an operation in float32 adds (U |y|)^2 with U = 2^-23, twice float32's unit roundoff: GPU functions are good to 2 ulp;
  exp adds (U (|x| + 2) |y|)^2, because its argument is rounded after a multiplication by log2(e);
- a sum of n terms a_i adds U^2 n (sum a_i^2 + y^2): partial sums walk randomly, or grow evenly towards y;
- an operand of a matrix product is rounded to the element type, unless it is representable: (u |a|)^2, u the element
  type's unit roundoff;
- errors of operands pass through the derivative of the operator; those of squares, quotients, roots and logarithms
  through the change over the interval of the operand (nonlinear_error.py);
- a maximum is taken as exact: in a running maximum, the subtracted value cancels;
- a comparison is exact unless its operands are within their tolerance of each other: then it may come out either way,
  an error of 1, and a selection by it may be either of its values;
- a rounding to an element type adds the change of its result over the interval of the operand (nonlinear_error.py);
- sums and products of exact values that float32 holds are exact.

Only array methods and functions that NumPy and CuPy share are used, so it runs on either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log, pi, sqrt
from typing import Any, Final

import numpy as np

from mirage_formal.codegen.numerics import nonlinear_error
from mirage_formal.codegen.numerics.tolerance import LAMBDA
from mirage_formal.graph.graph import GraphDefined, KernelOp, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType, Shape
from mirage_formal.graph.verifier import block_types
from mirage_formal.semantics.batched_matmul import batched_product
from mirage_formal.semantics.function_table import FUNCTION_SPECS
from mirage_formal.semantics.value_domain import LOOP_AXIS, UntiledDomain

Array = Any

FLOAT32_ERROR: Final = 2.0**-23
#: Digits of the significand, the hidden one included, and the exponent of the smallest subnormal.
DIGITS: Final = {DType.FLOAT16: (11, -24), DType.BFLOAT16: (8, -133), DType.FLOAT32: (24, -149)}
#: Largest finite values.
LARGEST: Final = {DType.FLOAT16: 65504.0, DType.BFLOAT16: 3.3895313892515355e38, DType.FLOAT32: 3.4028234663852886e38}
_U2: Final = FLOAT32_ERROR**2
_LN2: Final = log(2.0)
_FAR: Final = 4000.0  # 2^-4000 is 0 in float64
#: Operators that round to an element type.
_ROUNDS: Final = {OpKind.ROUND_FLOAT16: DType.FLOAT16, OpKind.ROUND_BFLOAT16: DType.BFLOAT16}
_ZERO: Final = -(2.0**200)  # the exponent of what is exactly 0: below that of every other number
_TINY: Final = 400.0  # 2^-400 rounds to 0, and 2^800 is finite


def unit_roundoff(dtype: DType) -> float:
    """Return the largest relative error of rounding to nearest."""
    return float(2.0 ** -DIGITS[dtype][0])


def quantum(x: Array, dtype: DType, xp: Any) -> Array:
    """Return the distance between neighbours of an element type around each value."""
    digits, least = DIGITS[dtype]
    _, exponent = xp.frexp(x)
    return xp.ldexp(xp.ones_like(x), xp.maximum(exponent - digits, least))


def quantize(x: Array, dtype: DType, xp: Any) -> Array:
    """Return float64 values rounded to the nearest of an element type, ties to even, finite even beyond its range."""
    step = quantum(x, dtype, xp)
    return xp.rint(x / step) * step


def store_as(x: Array, dtype: DType, xp: Any) -> Array:
    """Return float64 values as an element type holds them: rounded to it, and infinite beyond its range."""
    if not dtype.floating:
        return x
    rounded = quantize(x, dtype, xp)
    return xp.where(xp.isfinite(x), xp.where(xp.abs(rounded) > LARGEST[dtype], xp.copysign(xp.inf, x), rounded), x)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Values with the variance of their error.

    Attributes:
        mantissa: The mantissas in float64.
        exponent: Whole numbers in float64, of the mantissa's shape; None for 0 everywhere.
        variance: The variance of the error in squared units of the mantissa, of its shape; None for exact values.
        least: A lower bound on a kernel's values that holds for any errors, by their form (squares, for example); in
            units of the mantissa, of its shape, minus infinity where no bound is known. None if none is known anywhere.
    """

    mantissa: Array
    exponent: Array | None = None
    variance: Array | None = None
    least: Array | None = None


class RoundingDomain(UntiledDomain[Estimate]):
    """A domain of values with exponents and rounding-error variances; the module describes the rules.

    Args:
        xp: numpy or cupy.
        dtype: Element type that operands of products are rounded to; None tracks no errors.
    """

    keeps: Final = frozenset({OpKind.SILU, OpKind.ABS})

    def __init__(self, xp: Any, dtype: DType | None) -> None:
        self.xp = xp
        self.dtype = dtype

    # --- helpers -----------------------------------------------------------------------------------------------------

    def plain(self, a: Estimate) -> Estimate:
        """Return the same values with exponent 0; values beyond the range of float64 become infinite or 0."""
        if a.exponent is None:
            return a
        xp = self.xp
        shift = xp.clip(a.exponent, -_FAR, _FAR)
        factor, rest = self._powers(shift)
        variance = None if a.variance is None else a.variance * factor * factor * rest * rest
        least = self._scaled(self._scaled(a.least, factor), rest)
        return Estimate(a.mantissa * factor * rest, None, variance, least)

    def _powers(self, shift: Array) -> tuple[Array, Array]:
        """Return two factors whose product is 2^shift, neither of which leaves the range unless the product does."""
        half = self.xp.rint(shift / 2)
        return self.xp.exp2(half), self.xp.exp2(shift - half)

    def _at(self, a: Estimate, exponent: Array) -> Estimate:
        """Return the same values with a larger exponent."""
        own = 0.0 if a.exponent is None else a.exponent
        factor = self.xp.exp2(self.xp.maximum(own - exponent, -_FAR))
        variance = None if a.variance is None else a.variance * factor * factor
        mantissa = self.xp.where(self.xp.isinf(a.mantissa), a.mantissa, a.mantissa * factor)
        return Estimate(mantissa, exponent, variance, self._scaled(a.least, factor))

    def _exponents(self, a: Estimate) -> Array:
        """Return the exponents of values; that of an exact 0 is below every other."""
        if a.exponent is not None:
            return a.exponent
        return self.xp.where(self._nothing(a.mantissa, a.variance), _ZERO, 0.0)

    def _nothing(self, mantissa: Array, variance: Array | None) -> Array:
        """Return where values are exactly 0."""
        return (mantissa == 0) if variance is None else (mantissa == 0) & (variance == 0)

    def _aligned(self, a: Estimate, b: Estimate) -> tuple[Estimate, Estimate]:
        """Return two operands with one exponent, that of the larger one."""
        if a.exponent is None and b.exponent is None:
            return a, b
        shared = self.xp.maximum(self._exponents(a), self._exponents(b))
        return self._at(a, shared), self._at(b, shared)

    def _scaled(self, least: Array | None, factor: Array) -> Array | None:
        """Return a lower bound times a positive factor that may have left the range; unknown bounds stay unknown."""
        if least is None:
            return None
        return self.xp.where((least == 0) | self.xp.isinf(least), least, least * factor)

    def _lowest(self, a: Estimate) -> Array:
        """Return a lower bound on a kernel's values; exact ones are their own bound."""
        if a.variance is None:
            return a.mantissa
        return self.xp.where(a.variance == 0, a.mantissa, -self.xp.inf if a.least is None else a.least)

    def _estimate(
        self, mantissa: Array, exponent: Array | None, *variances: Array | None, least: Array | None = None
    ) -> Estimate:
        known = [v for v in variances if v is not None] if self.dtype is not None else []
        total = known[0] if known else None
        for v in known[1:]:
            total = total + v
        if exponent is not None:
            exponent = self.xp.where(self._nothing(mantissa, total), _ZERO, exponent)
        return Estimate(mantissa, exponent, total, None if self.dtype is None else least)

    def _error(self, y: Array, factor: Array | float = 1.0) -> Array | None:
        return None if self.dtype is None else _U2 * (factor * y) ** 2

    def _exactly(self, y: Array, *operands: Estimate) -> Array | None:
        """Return the error of a sum or product, which is none where exact operands give a number of float32."""
        if self.dtype is None or any(a.variance is not None or a.exponent is not None for a in operands):
            return self._error(y)
        single = y.astype(self.xp.float32).astype(self.xp.float64)
        return None if bool((single == y).all()) else self._error(self.xp.where(single == y, 0.0, y))

    def rounded(self, a: Estimate, dtype: DType) -> Estimate:
        """Return the values after storage in an element type; exactly representable ones keep their error."""
        if self.dtype is None or not dtype.floating:
            return a
        xp, u = self.xp, unit_roundoff(dtype)
        # Below the normal range neighbours stay as far apart as at its end.
        floor = 2.0 ** (DIGITS[dtype][1] - 1)
        if a.exponent is not None:
            # So small values are 0 in every element type; a larger exponent keeps the floor's square finite.
            exponent = xp.maximum(a.exponent, -_TINY)
            a, floor = self._at(a, exponent), floor * xp.exp2(-exponent)
        m = a.mantissa
        error = xp.maximum((u * m) ** 2, xp.where(m == 0, 0.0, floor**2))
        if a.exponent is None:
            exact = quantize(m, dtype, xp) == m
            if a.variance is None and bool(exact.all()):
                return a
            error = xp.where(exact & (True if a.variance is None else a.variance == 0), 0.0, error)
        # Rounding keeps the order, so what is not below 0 stays so.
        least = None if a.least is None else a.least - xp.minimum(xp.abs(a.least), u * xp.abs(a.least) + floor)
        return self._estimate(m, a.exponent, a.variance, error, least=least)

    # --- the domain --------------------------------------------------------------------------------------------------

    def unary(self, kind: OpKind, a: Estimate) -> Estimate:
        """Implement ``Domain.unary``."""
        xp = self.xp
        if kind is OpKind.SQUARE:
            y, exponent = a.mantissa * a.mantissa, None if a.exponent is None else 2 * a.exponent
            if a.variance is None:
                return self._estimate(y, exponent, self._error(y))
            deviation, least = nonlinear_error.square_deviation(a.mantissa, xp.sqrt(a.variance), xp)
            return self._estimate(y, exponent, deviation**2, self._error(y), least=least)
        if kind is OpKind.SQRT:
            return self._sqrt(a)
        if kind is OpKind.RECIPROCAL:
            return self.binary(OpKind.DIV, Estimate(xp.ones_like(a.mantissa)), a)
        if kind in (OpKind.RELU, OpKind.ABS):
            y = FUNCTION_SPECS[kind].evaluate(xp, a.mantissa)
            if a.variance is None:
                return self._estimate(y, a.exponent)
            least = xp.maximum(y - LAMBDA * xp.sqrt(a.variance), 0.0)
            return self._estimate(y, a.exponent, a.variance, least=least)
        if kind is OpKind.LOG:
            return self._log(a)
        a = self.plain(a)
        x = a.mantissa
        if kind is OpKind.EXP:
            return self._exp(x, a.variance)
        if kind in _ROUNDS:
            return self._round(a, _ROUNDS[kind])
        return self._curve(kind, x, a.variance)

    def _curve(self, kind: OpKind, x: Array, variance: Array | None) -> Estimate:
        """Return a function whose slope is bounded, of values with exponent 0."""
        xp, row = self.xp, FUNCTION_SPECS[kind]
        y = row.evaluate(xp, x)
        if kind in (OpKind.TANH, OpKind.ERF):
            slope = 1.0 - y * y if kind is OpKind.TANH else (2.0 / sqrt(pi)) * xp.exp(-x * x)
            # The slope a standard deviation away bounds how fast it changes where errors are not small.
            passed = None if variance is None else variance * xp.minimum(1.13, slope + xp.sqrt(variance)) ** 2
            return self._estimate(y, None, passed, self._error(y, row.roundings))
        assert row.slope is not None, kind
        if kind is OpKind.GELU:
            own = self._error(x, 2.0)
        elif kind in (OpKind.SILU, OpKind.SIGMOID):
            own = self._error(y, xp.abs(x) + 4.0)
        else:
            own = self._error(y, row.roundings)
        passed = None if variance is None else row.slope * row.slope * variance
        return self._estimate(y, None, passed, own)

    def _log(self, a: Estimate) -> Estimate:
        xp, m = self.xp, a.mantissa
        below = xp.where(m > 0, m, 1.0)
        passed = None if a.variance is None else nonlinear_error.logarithm(below, xp.sqrt(a.variance), a.least, xp) ** 2
        y, size = xp.log(m), xp.log(below)
        if a.exponent is not None:
            more = xp.where(m > 0, a.exponent * _LN2, 0.0)
            y, size = y + more, size + more
        # Where the logarithm is near 0 its argument is near 1, and its own error is absolute.
        return self._estimate(y, None, passed, self._error(xp.abs(size) + 1.0, 2.0))

    def _round(self, a: Estimate, dtype: DType) -> Estimate:
        """Return values rounded to an element type, by an operator of the program."""
        xp = self.xp

        def rounded(x: Array) -> Array:
            return store_as(x, dtype, xp)

        passed = (
            None
            if a.variance is None
            else nonlinear_error.step_deviation(a.mantissa, xp.sqrt(a.variance), rounded, xp) ** 2
        )
        return self._estimate(rounded(a.mantissa), None, passed)

    def _exp(self, x: Array, variance: Array | None) -> Estimate:
        xp = self.xp
        exponent = xp.rint(xp.where(xp.isfinite(x), x, 0.0) / _LN2)
        # Of numbers without digits behind the point, what is left is not known.
        y = xp.exp(xp.where(xp.isfinite(x), xp.clip(x - exponent * _LN2, -1.0, 1.0), x))
        passed = None if variance is None else (y * xp.expm1(xp.minimum(xp.sqrt(variance), 50.0))) ** 2
        return self._estimate(y, exponent, passed, self._error(y, xp.abs(xp.where(xp.isfinite(x), x, 0.0)) + 2.0))

    def _sqrt(self, a: Estimate) -> Estimate:
        xp, m, exponent, v, least = self.xp, a.mantissa, a.exponent, a.variance, a.least
        if exponent is not None:
            odd = exponent - 2 * xp.floor(exponent / 2)
            m = m * (1 + odd)
            v = None if v is None else v * (1 + odd) ** 2
            least = self._scaled(least, 1 + odd)
            exponent = xp.floor(exponent / 2)
        y = xp.sqrt(m)
        if v is None:
            return self._estimate(y, exponent, self._error(y))
        passed = nonlinear_error.root(m, xp.sqrt(v), least, xp) ** 2
        least = None if least is None else xp.sqrt(xp.maximum(least, 0.0))
        return self._estimate(y, exponent, passed, self._error(y), least=least)

    def binary(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """Implement ``Domain.binary``."""
        match kind:
            case OpKind.ADD | OpKind.SUB:
                return self._sum(kind, a, b)
            case OpKind.MAXIMUM | OpKind.MINIMUM:
                return self._extreme(kind, self.plain(a), self.plain(b))
            case OpKind.MUL if a is b:
                return self.unary(OpKind.SQUARE, a)
            case OpKind.MUL:
                x, z, va, vb = a.mantissa, b.mantissa, a.variance, b.variance
                y = x * z
                crossed = None if va is None or vb is None else va * vb
                left = None if va is None else va * z * z
                right = None if vb is None else vb * x * x
                return self._estimate(
                    y, self._combined_exponent(a, b, y, 1.0), left, right, crossed, self._exactly(y, a, b)
                )
            case OpKind.DIV:
                return self._quotient(a, b)
            case OpKind.DIV_NO_NAN:
                return self._quotient_or_zero(a, b)
            case OpKind.SELECT:
                return self._selected(a, b)
            case OpKind.EQ | OpKind.LT | OpKind.LE:
                return self._compared(kind, a, b)
            case _:
                raise AssertionError(kind)

    def _sum(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """Return a + b for ADD, or a - b, with the variances of both and of the result's own rounding."""
        c, d = self._aligned(a, b)
        y = c.mantissa + d.mantissa if kind is OpKind.ADD else c.mantissa - d.mantissa
        own = self._exactly(y, a, b)
        if c.exponent is not None:
            return self._estimate(y, c.exponent + self.xp.zeros_like(y), c.variance, d.variance, own)
        known = kind is OpKind.ADD and (a.least is not None or b.least is not None)
        least = self._lowest(a) + self._lowest(b) if known else None
        return self._estimate(y, None, a.variance, b.variance, own, least=least)

    def _quotient(self, a: Estimate, b: Estimate) -> Estimate:
        x, z, va, vb = a.mantissa, b.mantissa, a.variance, b.variance
        y = x / z
        left = None if va is None else va / (z * z)
        moved = None if vb is None else nonlinear_error.reciprocal(z, self.xp.sqrt(vb), b.least, self.xp) ** 2
        right = None if moved is None else moved * (x * x if va is None else x * x + va)
        return self._estimate(y, self._combined_exponent(a, b, y, -1.0), left, right, self._error(y, 2.0))

    def _quotient_or_zero(self, a: Estimate, b: Estimate) -> Estimate:
        """Return a quotient, or 0 where the divisor is 0; nothing is known where only rounding makes it 0."""
        xp, zero = self.xp, b.mantissa == 0
        found = self._quotient(a, replace(b, mantissa=xp.where(zero, 1.0, b.mantissa)))
        y = xp.where(zero, a.mantissa * 0.0, found.mantissa)
        variance = found.variance
        if variance is not None:
            variance = xp.where(zero, 0.0 if b.variance is None else xp.where(b.variance > 0, xp.inf, 0.0), variance)
        return self._estimate(y, found.exponent, variance)

    def _selected(self, mask: Estimate, a: Estimate) -> Estimate:
        """Return values where a mask is 1, and 0 elsewhere, whatever they are there."""
        xp, chosen = self.xp, mask.mantissa != 0
        y = xp.where(chosen, a.mantissa, 0.0)
        exponent = None if a.exponent is None else a.exponent + xp.zeros_like(y)
        if mask.variance is None:
            variance = None if a.variance is None else xp.where(chosen, a.variance, 0.0)
            least = None if a.least is None else xp.where(chosen, a.least, 0.0)
            return self._estimate(y, exponent, variance, least=least)
        # Twice the value: the other part of the selection is as unsure, and may have the other sign.
        doubtful = LAMBDA * xp.sqrt(mask.variance) >= 0.5
        own = 0.0 if a.variance is None else a.variance
        both = own + (2.0 * a.mantissa / LAMBDA) ** 2
        both = xp.where(xp.isfinite(a.mantissa), both, xp.inf)
        variance = xp.where(doubtful, both, xp.where(chosen, own, 0.0))
        least = xp.where(doubtful, xp.minimum(self._lowest(a), 0.0), xp.where(chosen, self._lowest(a), 0.0))
        return self._estimate(y, exponent, variance, least=None if a.least is None else least)

    def _compared(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """Return 1 where a comparison holds and 0 elsewhere, with an error of 1 where rounding may decide it."""
        xp = self.xp
        a, b = self._aligned(a, b)
        x, z = a.mantissa, b.mantissa
        holds = x == z if kind is OpKind.EQ else x < z if kind is OpKind.LT else x <= z
        y = holds.astype(xp.float64)
        if a.variance is None and b.variance is None:
            return Estimate(y)
        total = sum(v for v in (a.variance, b.variance) if v is not None)
        near = (total > 0) & ~(xp.abs(x - z) > LAMBDA * xp.sqrt(total))
        return Estimate(y, None, xp.where(near, (1.0 / LAMBDA) ** 2, 0.0))

    def _extreme(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """Return the larger or smaller of two values, with the larger of their variances."""
        xp = self.xp
        y = (xp.maximum if kind is OpKind.MAXIMUM else xp.minimum)(a.mantissa, b.mantissa)
        if a.variance is None and b.variance is None:
            return Estimate(y)
        left, right = (0.0 if v is None else v for v in (a.variance, b.variance))
        least = (xp.maximum if kind is OpKind.MAXIMUM else xp.minimum)(self._lowest(a), self._lowest(b))
        return Estimate(y, None, xp.maximum(left, right) + xp.zeros_like(y), least)

    def _combined_exponent(self, a: Estimate, b: Estimate, y: Array, sign: float) -> Array | None:
        if a.exponent is None and b.exponent is None:
            return None
        left = 0.0 if a.exponent is None else a.exponent
        return left + (0.0 if b.exponent is None else sign * b.exponent) + self.xp.zeros_like(y)

    def matmul(self, a: Estimate, b: Estimate, inner: int) -> Estimate:
        """Implement ``Domain.matmul``."""
        xp = self.xp
        if self.dtype is not None and self.dtype is not DType.FLOAT32:
            a, b = self.rounded(a, self.dtype), self.rounded(b, self.dtype)
        exponent = None
        if a.exponent is not None:
            rows = a.exponent.max(axis=-1, keepdims=True)
            a, exponent = replace(self._at(a, rows + xp.zeros_like(a.mantissa)), exponent=None), rows
        if b.exponent is not None:
            columns = b.exponent.max(axis=-2, keepdims=True)
            b = replace(self._at(b, columns + xp.zeros_like(b.mantissa)), exponent=None)
            exponent = columns if exponent is None else exponent + columns

        def times(x: Array, z: Array) -> Array:
            return batched_product(x, z, xp.matmul)

        y = times(a.mantissa, b.mantissa)
        if exponent is not None:
            exponent = exponent + xp.zeros_like(y)
        if self.dtype is None:
            return Estimate(y, exponent)
        squares = a.mantissa**2, b.mantissa**2
        right = squares[1] if b.variance is None else squares[1] + b.variance
        left = None if a.variance is None else times(a.variance, right)
        other = None if b.variance is None else times(squares[0], b.variance)
        own = _U2 * inner * (times(*squares) + y * y)
        return self._estimate(y, exponent, left, other, own)

    def scale(self, a: Estimate, factor: Fraction) -> Estimate:
        """Implement ``Domain.scale``."""
        if not factor:
            return Estimate(self.xp.zeros_like(a.mantissa))
        f = float(factor)
        if abs(f) == 1.0:
            least = a.least if f > 0 else None
            return self._estimate(a.mantissa * f, a.exponent, a.variance, least=least)
        y, least = a.mantissa * f, self._scaled(a.least, f) if f > 0 else None
        variance = None if a.variance is None else a.variance * f * f
        return self._estimate(y, a.exponent, variance, self._error(y), least=least)

    def offset(self, a: Estimate, constant: Fraction) -> Estimate:
        """Implement ``Domain.offset``."""
        value = self.xp.full_like(a.mantissa, float(constant))
        if self.dtype is None or float(np.float32(float(constant))) == float(constant):
            return self.binary(OpKind.ADD, a, Estimate(value))
        least = value - FLOAT32_ERROR * self.xp.abs(value)
        return self.binary(OpKind.ADD, a, Estimate(value, None, self._error(value), least))

    def sum(self, a: Estimate, axis: int, extent: int, kept: int) -> Estimate:
        """Implement ``Domain.sum``."""
        terms = extent // kept

        def split(x: Array) -> Array:
            return x.reshape(*x.shape[:axis], terms, kept, *x.shape[axis + 1 :])

        exponent = None
        if a.exponent is not None:
            largest = split(a.exponent).max(axis=axis, keepdims=True)
            shape = split(a.exponent).shape
            a = self._at(a, self.xp.broadcast_to(largest, shape).reshape(a.mantissa.shape))
            exponent = largest.squeeze(axis)
        y = split(a.mantissa).sum(axis=axis)
        if self.dtype is None:
            return Estimate(y, exponent)
        own = _U2 * terms * (split(a.mantissa**2).sum(axis=axis) + y * y)
        passed = None if a.variance is None else split(a.variance).sum(axis=axis)
        least = None if a.least is None else split(a.least).sum(axis=axis)
        return self._estimate(y, exponent, passed, own, least=least)

    def ordered(self, kind: OpKind, operands: tuple[Estimate, ...], axis: int, extent: int) -> tuple[Estimate, ...]:
        """Implement ``Domain.ordered``."""
        xp = self.xp
        values = tuple(self.plain(operand) for operand in operands)
        a = values[0]
        if kind is OpKind.MAX:
            largest = a.mantissa.max(axis=axis, keepdims=True)
            variance = None if a.variance is None else a.variance.max(axis=axis, keepdims=True)
            return (Estimate(largest, None, variance),)
        if kind is OpKind.RUNNING_MAX:
            steps = _steps(a.mantissa.max(axis=axis, keepdims=True), LOOP_AXIS)
            # As kernels begin at the lowest number of float32: it is the largest of a row of minus infinity.
            maxima = [xp.maximum(steps[0], np.finfo(np.float64).min)]
            factors = [xp.zeros_like(steps[0])]
            for step in steps[1:]:
                maxima.append(xp.maximum(maxima[-1], step))
                factors.append(xp.exp(maxima[-2] - maxima[-1]))
            largest, factor = xp.concatenate(maxima, LOOP_AXIS), xp.concatenate(factors, LOOP_AXIS)
            return Estimate(largest), self._estimate(factor, None, self._error(factor, 4.0))
        assert kind is OpKind.ACCUM_RESCALED_SUM, kind
        # Iteration by iteration, as kernels do it.
        parts = [_steps(x, axis) for x in (a.mantissa, values[1].mantissa)]
        count = max(len(part) for part in parts)
        total, variance = parts[0][0], None if a.variance is None else _steps(a.variance, axis)[0]
        for i in range(1, count):
            factor = parts[1][min(i, len(parts[1]) - 1)]
            term = parts[0][min(i, len(parts[0]) - 1)]
            total = total * factor + term
            own = None if a.variance is None else _steps(a.variance, axis)[min(i, len(parts[0]) - 1)]
            carried = None if variance is None else variance * factor * factor
            variance = self._estimate(total, None, carried, own, self._error(total, 4.0)).variance
        return (self._estimate(total, None, variance),)

    def softmax(self, a: Estimate, axis: int, extent: int) -> Estimate:
        """Implement ``Domain.softmax``."""
        weights = self.unary(OpKind.EXP, a)
        return self.binary(OpKind.DIV, weights, self.sum(weights, axis, extent, 1))

    def _each(self, a: Estimate, fn: Callable[[Array], Array]) -> Estimate:
        return Estimate(*(None if x is None else fn(x) for x in (a.mantissa, a.exponent, a.variance, a.least)))

    def reshape(self, a: Estimate, shape: Shape) -> Estimate:
        """Implement ``Domain.reshape``."""
        return self._each(a, lambda x: x.reshape(shape))

    def transpose(self, a: Estimate, perm: tuple[int, ...]) -> Estimate:
        """Implement ``Domain.transpose``."""
        return self._each(a, lambda x: x.transpose(perm))

    def concat(self, a: Estimate, b: Estimate, axis: int) -> Estimate:
        """Implement ``Domain.concat``."""
        both: list[Array | None] = []
        for x, z in ((a.exponent, b.exponent), (a.variance, b.variance)):
            if x is None and z is None:
                both.append(None)
            else:
                left = self.xp.zeros_like(a.mantissa) if x is None else x
                both.append(self.xp.concatenate([left, self.xp.zeros_like(b.mantissa) if z is None else z], axis=axis))
        known = a.exponent is b.exponent is None and (a.least is not None or b.least is not None)
        least = self.xp.concatenate([self._lowest(a), self._lowest(b)], axis=axis) if known else None
        exponent, variance = both
        return Estimate(self.xp.concatenate([a.mantissa, b.mantissa], axis=axis), exponent, variance, least)

    def slice(self, a: Estimate, axis: int, start: int, stop: int) -> Estimate:
        """Implement ``Domain.slice``."""
        where = (*(slice(None),) * axis, slice(start, stop))
        return self._each(a, lambda x: self.xp.broadcast_to(x, a.mantissa.shape)[where])

    def repeat(self, a: Estimate, axis: int, times: int) -> Estimate:
        """Implement ``Domain.repeat``."""
        return self._each(a, lambda x: self.xp.broadcast_to(x, (*x.shape[:axis], times, *x.shape[axis + 1 :])))


def _steps(x: Array, axis: int) -> list[Array]:
    before = (slice(None),) * axis
    return [x[(*before, slice(i, i + 1))] for i in range(x.shape[axis])]


def product_type(op: KernelOp, types: Sequence[DTensor]) -> DType:
    """Return the element type that a kernel rounds the operands of its products to; float32 if it has none.

    Args:
        op: The kernel.
        types: Types of the tensors of its graph.
    """
    operands = tuple(types[number] for number in op.operands)
    if isinstance(op, GraphDefined):
        tiles = block_types(op.graph, operands)
        products = [x for x in op.graph.ops if isinstance(x, Op) and x.kind is OpKind.MATMUL]
        found = [tiles[x.operands[0]].dtype for x in products]
    else:
        found = [operands[0].dtype] if op.kind is OpKind.MATMUL else []
    return next((dtype for dtype in found if dtype is not DType.FLOAT32), DType.FLOAT32)


__all__ = ["LARGEST", "Estimate", "RoundingDomain", "product_type", "quantize", "quantum", "store_as", "unit_roundoff"]
