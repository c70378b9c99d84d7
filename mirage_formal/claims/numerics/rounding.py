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
  through the change over the interval of the operand (curved.py);
- a maximum is taken as exact: in a running maximum, whatever is subtracted cancels.

Only array methods and functions that NumPy and CuPy share are used, so it runs on either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib import import_module
from math import erf, log, pi, sqrt
from typing import Any, Final

from mirage_formal.claims.numerics import curved
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType, Shape
from mirage_formal.meaning.contract import batched_product
from mirage_formal.meaning.domain import LOOP_AXIS, Untiled

Array = Any

FLOAT32_ERROR: Final = 2.0**-23
#: Digits of the significand, the hidden one included, and the exponent of the smallest subnormal.
DIGITS: Final = {DType.FLOAT16: (11, -24), DType.BFLOAT16: (8, -133), DType.FLOAT32: (24, -149)}
#: Largest finite values.
LARGEST: Final = {DType.FLOAT16: 65504.0, DType.BFLOAT16: 3.3895313892515355e38, DType.FLOAT32: 3.4028234663852886e38}
_U2: Final = FLOAT32_ERROR**2
_LN2: Final = log(2.0)
_FAR: Final = 4000.0  # 2^-4000 is 0 in float64
_TINY: Final = 400.0  # 2^-400 rounds to 0, and 2^800 is finite


def unit_roundoff(dtype: DType) -> float:
    """The largest relative error of rounding to nearest."""
    return float(2.0 ** -DIGITS[dtype][0])


def quantum(x: Array, dtype: DType, xp: Any) -> Array:
    """The distance between neighbours of an element type around each value."""
    digits, least = DIGITS[dtype]
    _, exponent = xp.frexp(x)
    return xp.ldexp(xp.ones_like(x), xp.maximum(exponent - digits, least))


def quantised(x: Array, dtype: DType, xp: Any) -> Array:
    """Float64 values rounded to the nearest of an element type, ties to even; beyond its range they stay finite."""
    step = quantum(x, dtype, xp)
    return xp.rint(x / step) * step


@dataclass(frozen=True, slots=True)
class Estimate:
    """Values with the variance of their error.

    Attributes:
        mantissa: Float64.
        exponent: Whole numbers in float64, of the mantissa's shape; None for 0 everywhere.
        variance: In squared units of the mantissa, of its shape; None for exact values.
        least: What a kernel's values are not below whatever its errors are, by their form, as squares; in units of the
            mantissa, of its shape, minus infinity where nothing is known. None if it is known nowhere.
    """

    mantissa: Array
    exponent: Array | None = None
    variance: Array | None = None
    least: Array | None = None


class RoundingDomain(Untiled[Estimate]):
    """See the module.

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
        """The same values with exponent 0; what leaves the range of float64 becomes infinite or 0."""
        if a.exponent is None:
            return a
        xp = self.xp
        shift = xp.clip(a.exponent, -_FAR, _FAR)
        factor, rest = self._powers(shift)
        variance = None if a.variance is None else a.variance * factor * factor * rest * rest
        least = self._scaled(self._scaled(a.least, factor), rest)
        return Estimate(a.mantissa * factor * rest, None, variance, least)

    def _powers(self, shift: Array) -> tuple[Array, Array]:
        """Two factors whose product is 2^shift, neither of which leaves the range unless the product does."""
        half = self.xp.rint(shift / 2)
        return self.xp.exp2(half), self.xp.exp2(shift - half)

    def _at(self, a: Estimate, exponent: Array) -> Estimate:
        """The same values with a larger exponent."""
        own = 0.0 if a.exponent is None else a.exponent
        factor = self.xp.exp2(self.xp.maximum(own - exponent, -_FAR))
        variance = None if a.variance is None else a.variance * factor * factor
        return Estimate(a.mantissa * factor, exponent, variance, self._scaled(a.least, factor))

    def _scaled(self, least: Array | None, factor: Array) -> Array | None:
        """A lower end times a factor above 0 that may have left the range; nothing known stays nothing known."""
        if least is None:
            return None
        return self.xp.where((least == 0) | self.xp.isinf(least), least, least * factor)

    def _lowest(self, a: Estimate) -> Array:
        """What a kernel's values are not below; exact ones are what they are."""
        if a.variance is None:
            return a.mantissa
        return self.xp.where(a.variance == 0, a.mantissa, -self.xp.inf if a.least is None else a.least)

    def _made(
        self, mantissa: Array, exponent: Array | None, *variances: Array | None, least: Array | None = None
    ) -> Estimate:
        if self.dtype is None:
            return Estimate(mantissa, exponent)
        known = [v for v in variances if v is not None]
        total = known[0] if known else None
        for v in known[1:]:
            total = total + v
        return Estimate(mantissa, exponent, total, least)

    def _error(self, y: Array, factor: Array | float = 1.0) -> Array | None:
        return None if self.dtype is None else _U2 * (factor * y) ** 2

    def rounded(self, a: Estimate, dtype: DType) -> Estimate:
        """The values after they were stored as elements of a type; those that it can hold exactly keep their error."""
        if self.dtype is None:
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
            exact = quantised(m, dtype, xp) == m
            error = xp.where(exact & (True if a.variance is None else a.variance == 0), 0.0, error)
        # Rounding keeps the order, so what is not below 0 stays so.
        least = None if a.least is None else a.least - xp.minimum(xp.abs(a.least), u * xp.abs(a.least) + floor)
        return self._made(m, a.exponent, a.variance, error, least=least)

    # --- the domain --------------------------------------------------------------------------------------------------

    def unary(self, kind: OpKind, a: Estimate) -> Estimate:
        """See ``Domain.unary``."""
        xp = self.xp
        if kind is OpKind.SQUARE:
            y, exponent = a.mantissa * a.mantissa, None if a.exponent is None else 2 * a.exponent
            if a.variance is None:
                return self._made(y, exponent, self._error(y))
            deviation, least = curved.squared(a.mantissa, xp.sqrt(a.variance), xp)
            return self._made(y, exponent, deviation**2, self._error(y), least=least)
        if kind is OpKind.SQRT:
            return self._sqrt(a)
        if kind is OpKind.RECIPROCAL:
            return self.binary(OpKind.DIV, Estimate(xp.ones_like(a.mantissa)), a)
        a = self.plain(a)
        x = a.mantissa
        if kind is OpKind.EXP:
            return self._exp(x, a.variance)
        if kind in (OpKind.RELU, OpKind.ABS):
            y = xp.maximum(x, 0.0) if kind is OpKind.RELU else xp.abs(x)
            if a.variance is None:
                return Estimate(y)
            return Estimate(y, None, a.variance, xp.maximum(y - curved.LAMBDA * xp.sqrt(a.variance), 0.0))
        if kind is OpKind.LOG:
            below = xp.where(x > 0, x, 1.0)
            passed = None if a.variance is None else curved.logarithm(below, xp.sqrt(a.variance), a.least, xp) ** 2
            # Where the logarithm is near 0 its argument is near 1, and its own error is absolute.
            return self._made(xp.log(x), None, passed, self._error(xp.abs(xp.log(below)) + 1.0, 2.0))
        if kind in (OpKind.TANH, OpKind.ERF):
            y = xp.tanh(x) if kind is OpKind.TANH else self._erf(x)
            slope = 1.0 - y * y if kind is OpKind.TANH else (2.0 / sqrt(pi)) * xp.exp(-x * x)
            # The slope a standard deviation away bounds how fast it changes where errors are not small.
            passed = None if a.variance is None else a.variance * xp.minimum(1.13, slope + xp.sqrt(a.variance)) ** 2
            return self._made(y, None, passed, self._error(y, 4.0))
        if kind is OpKind.GELU:
            y, slope = 0.5 * x * (1.0 + self._erf(x / sqrt(2.0))), 1.13
        else:
            small = xp.exp(-xp.abs(x))
            sigmoid = xp.where(x >= 0, 1.0, small) / (1.0 + small)
            y, slope = (x * sigmoid, 1.1) if kind is OpKind.SILU else (sigmoid, 0.25)
        passed = None if a.variance is None else slope * slope * a.variance
        own = self._error(x, 2.0) if kind is OpKind.GELU else self._error(y, xp.abs(x) + 4.0)
        return self._made(y, None, passed, own)

    def _erf(self, x: Array) -> Array:
        if self.xp.__name__ == "cupy":
            return import_module("cupyx.scipy.special").erf(x)
        return self.xp.vectorize(erf, otypes=[self.xp.float64])(x)

    def _exp(self, x: Array, variance: Array | None) -> Estimate:
        xp = self.xp
        exponent = xp.rint(xp.where(xp.isfinite(x), x, 0.0) / _LN2)
        y = xp.exp(x - exponent * _LN2)
        passed = None if variance is None else (y * xp.expm1(xp.minimum(xp.sqrt(variance), 50.0))) ** 2
        return self._made(y, exponent, passed, self._error(y, xp.abs(xp.where(xp.isfinite(x), x, 0.0)) + 2.0))

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
            return self._made(y, exponent, self._error(y))
        passed = curved.root(m, xp.sqrt(v), least, xp) ** 2
        least = None if least is None else xp.sqrt(xp.maximum(least, 0.0))
        return self._made(y, exponent, passed, self._error(y), least=least)

    def binary(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """See ``Domain.binary``."""
        if kind in (OpKind.ADD, OpKind.SUB):
            if a.exponent is not None or b.exponent is not None:
                zero = 0.0
                shared = self.xp.maximum(
                    zero if a.exponent is None else a.exponent, zero if b.exponent is None else b.exponent
                )
                a, b = self._at(a, shared), self._at(b, shared)
                y = a.mantissa + b.mantissa if kind is OpKind.ADD else a.mantissa - b.mantissa
                return self._made(y, shared + 0.0 * y, a.variance, b.variance, self._error(y))
            y = a.mantissa + b.mantissa if kind is OpKind.ADD else a.mantissa - b.mantissa
            known = kind is OpKind.ADD and (a.least is not None or b.least is not None)
            least = self._lowest(a) + self._lowest(b) if known else None
            return self._made(y, None, a.variance, b.variance, self._error(y), least=least)
        if kind in (OpKind.MAXIMUM, OpKind.MINIMUM):
            return self._extreme(kind, self.plain(a), self.plain(b))
        x, z, va, vb = a.mantissa, b.mantissa, a.variance, b.variance
        if kind is OpKind.MUL and a is b:
            return self.unary(OpKind.SQUARE, a)
        if kind is OpKind.MUL:
            y = x * z
            exponent = self._combined(a, b, y, 1.0)
            crossed = None if va is None or vb is None else va * vb
            left = None if va is None else va * z * z
            right = None if vb is None else vb * x * x
            return self._made(y, exponent, left, right, crossed, self._error(y))
        assert kind is OpKind.DIV, kind
        y = x / z
        exponent = self._combined(a, b, y, -1.0)
        left = None if va is None else va / (z * z)
        moved = None if vb is None else curved.reciprocal(z, self.xp.sqrt(vb), b.least, self.xp) ** 2
        right = None if moved is None else moved * (x * x if va is None else x * x + va)
        return self._made(y, exponent, left, right, self._error(y, 2.0))

    def _extreme(self, kind: OpKind, a: Estimate, b: Estimate) -> Estimate:
        """The larger or smaller of two values, with the larger of their variances: either may be the one."""
        xp = self.xp
        y = (xp.maximum if kind is OpKind.MAXIMUM else xp.minimum)(a.mantissa, b.mantissa)
        if a.variance is None and b.variance is None:
            return Estimate(y)
        left, right = (0.0 if v is None else v for v in (a.variance, b.variance))
        least = (xp.maximum if kind is OpKind.MAXIMUM else xp.minimum)(self._lowest(a), self._lowest(b))
        return Estimate(y, None, xp.maximum(left, right) + xp.zeros_like(y), least)

    def _combined(self, a: Estimate, b: Estimate, y: Array, sign: float) -> Array | None:
        if a.exponent is None and b.exponent is None:
            return None
        left = 0.0 if a.exponent is None else a.exponent
        return left + (0.0 if b.exponent is None else sign * b.exponent) + self.xp.zeros_like(y)

    def matmul(self, a: Estimate, b: Estimate, inner: int) -> Estimate:
        """See ``Domain.matmul``."""
        xp = self.xp
        if self.dtype is not None and self.dtype is not DType.FLOAT32:
            a, b = self.rounded(a, self.dtype), self.rounded(b, self.dtype)
        exponent = None
        if a.exponent is not None:
            rows = a.exponent.max(axis=-1, keepdims=True)
            a, exponent = replace(self._at(a, rows + 0.0 * a.mantissa), exponent=None), rows
        if b.exponent is not None:
            columns = b.exponent.max(axis=-2, keepdims=True)
            b = replace(self._at(b, columns + 0.0 * b.mantissa), exponent=None)
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
        return self._made(y, exponent, left, other, own)

    def scale(self, a: Estimate, factor: Fraction) -> Estimate:
        """See ``Domain.scale``."""
        f = float(factor)
        y, least = a.mantissa * f, self._scaled(a.least, f) if f > 0 else None
        variance = None if a.variance is None else a.variance * f * f
        return self._made(y, a.exponent, variance, self._error(y), least=least)

    def offset(self, a: Estimate, constant: Fraction) -> Estimate:
        """See ``Domain.offset``."""
        return self.binary(OpKind.ADD, a, Estimate(self.xp.full_like(a.mantissa, float(constant))))

    def sum(self, a: Estimate, axis: int, extent: int, kept: int) -> Estimate:
        """See ``Domain.sum``."""
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
        return self._made(y, exponent, passed, own, least=least)

    def ordered(self, kind: OpKind, operands: tuple[Estimate, ...], axis: int, extent: int) -> tuple[Estimate, ...]:
        """See ``Domain.ordered``."""
        xp = self.xp
        values = tuple(self.plain(operand) for operand in operands)
        a = values[0]
        if kind is OpKind.MAX:
            largest = a.mantissa.max(axis=axis, keepdims=True)
            variance = None if a.variance is None else a.variance.max(axis=axis, keepdims=True)
            return (Estimate(largest, None, variance),)
        if kind is OpKind.RUNNING_MAX:
            steps = _steps(a.mantissa.max(axis=axis, keepdims=True), LOOP_AXIS)
            maxima, factors = [steps[0]], [xp.zeros_like(steps[0])]
            for step in steps[1:]:
                maxima.append(xp.maximum(maxima[-1], step))
                factors.append(xp.exp(maxima[-2] - maxima[-1]))
            largest, factor = xp.concatenate(maxima, LOOP_AXIS), xp.concatenate(factors, LOOP_AXIS)
            return Estimate(largest), self._made(factor, None, self._error(factor, 4.0))
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
            variance = self._made(total, None, carried, own, self._error(total, 4.0)).variance
        return (self._made(total, None, variance),)

    def softmax(self, a: Estimate, axis: int, extent: int) -> Estimate:
        """See ``Domain.softmax``."""
        weights = self.unary(OpKind.EXP, a)
        return self.binary(OpKind.DIV, weights, self.sum(weights, axis, extent, 1))

    def _each(self, a: Estimate, fn: Callable[[Array], Array]) -> Estimate:
        return Estimate(*(None if x is None else fn(x) for x in (a.mantissa, a.exponent, a.variance, a.least)))

    def reshape(self, a: Estimate, shape: Shape) -> Estimate:
        """See ``Domain.reshape``."""
        return self._each(a, lambda x: x.reshape(shape))

    def transpose(self, a: Estimate, perm: tuple[int, ...]) -> Estimate:
        """See ``Domain.transpose``."""
        return self._each(a, lambda x: x.transpose(perm))

    def concat(self, a: Estimate, b: Estimate, axis: int) -> Estimate:
        """See ``Domain.concat``."""
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
        """See ``Domain.slice``."""
        where = (*(slice(None),) * axis, slice(start, stop))
        return self._each(a, lambda x: self.xp.broadcast_to(x, a.mantissa.shape)[where])

    def repeat(self, a: Estimate, axis: int, times: int) -> Estimate:
        """See ``Domain.repeat``."""
        return self._each(a, lambda x: self.xp.broadcast_to(x, (*x.shape[:axis], times, *x.shape[axis + 1 :])))


def _steps(x: Array, axis: int) -> list[Array]:
    before = (slice(None),) * axis
    return [x[(*before, slice(i, i + 1))] for i in range(x.shape[axis])]


__all__ = ["Estimate", "RoundingDomain", "quantised", "quantum", "unit_roundoff"]
