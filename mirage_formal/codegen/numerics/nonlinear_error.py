"""Error propagation through nonlinear functions: the change of a result while its operand moves by its error.

The derivative at one point is valid for small errors only: where t cancels, 1 / (t^2 + 1) may be anything up to 1
though its derivative at t is small. So a function is evaluated at the ends of the interval of a kernel's operand: six
standard deviations to either side, and not below the bound that its form implies (t^2 + 1 is at least 1 for any error
of t). A sixth of the change counts as the standard deviation of the result, so that its tolerance is the change itself.

Where the interval reaches a pole there is no such bound. There the derivative is used, which gives a tolerance above
the result itself, since six standard deviations exceed the operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirage_formal.codegen.numerics.tolerance import LAMBDA

Array = Any


def square_deviation(x: Array, deviation: Array, xp: Any) -> tuple[Array, Array]:
    """Return the standard deviation of a square, and a lower bound on the square."""
    far = LAMBDA * deviation
    least = xp.maximum(xp.abs(x) - far, 0.0)
    return (2.0 * xp.abs(x) + far) * deviation, least * least


def reciprocal(z: Array, deviation: Array, least: Array | None, xp: Any) -> Array:
    """Return the standard deviation of 1 / z."""
    size = xp.abs(z)
    low = xp.where(z > 0, _interval_start(size, deviation, least, xp), size - LAMBDA * deviation)

    def one(x: Array) -> Array:
        return 1.0 / x

    return _interval_deviation(size, deviation, low, one, deviation / (size * size), xp)


def logarithm(x: Array, deviation: Array, least: Array | None, xp: Any) -> Array:
    """Return the standard deviation of log x."""
    return _interval_deviation(x, deviation, _interval_start(x, deviation, least, xp), xp.log, deviation / x, xp)


def root(x: Array, deviation: Array, least: Array | None, xp: Any) -> Array:
    """Return the standard deviation of the root of x, which has no pole; values below 0 do not occur in the program."""
    low = xp.maximum(_interval_start(x, deviation, least, xp), 0.0)
    y = xp.sqrt(xp.maximum(x, 0.0))
    return xp.maximum(y - xp.sqrt(low), xp.sqrt(xp.maximum(x, 0.0) + LAMBDA * deviation) - y) / LAMBDA


def step_deviation(x: Array, deviation: Array, function: Callable[[Array], Array], xp: Any) -> Array:
    """Return the standard deviation of a nondecreasing function with jumps."""
    here, far = function(x), LAMBDA * deviation
    return xp.maximum(function(x + far) - here, here - function(x - far)) / LAMBDA


def _interval_start(x: Array, deviation: Array, least: Array | None, xp: Any) -> Array:
    """Return the lower end of the interval; rounding may have put ``least`` above x."""
    low = x - LAMBDA * deviation
    return low if least is None else xp.minimum(xp.maximum(low, least), x)


def _interval_deviation(
    x: Array, deviation: Array, low: Array, function: Callable[[Array], Array], otherwise: Array, xp: Any
) -> Array:
    """Return a sixth of the change of a monotone function over an interval above 0, else ``otherwise``."""
    above = low > 0
    here = function(xp.where(above, x, 1.0))
    down = xp.abs(function(xp.where(above, low, 1.0)) - here)
    up = xp.abs(function(xp.where(above, x + LAMBDA * deviation, 1.0)) - here)
    return xp.where(above, xp.maximum(down, up) / LAMBDA, otherwise)


__all__ = ["logarithm", "reciprocal", "root", "square_deviation", "step_deviation"]
