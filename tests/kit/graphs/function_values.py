"""The functions of one element, each from its definition: every part that computes them is compared with this table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.ops import FUNCTIONS, ROUNDINGS, OpKind


def nearest(x: float, digits: int, least: int) -> float:
    """The nearest number of some significant binary digits, ties to even; no spacing is below 2^least."""
    if not math.isfinite(x):
        return x
    step = 2.0 ** max(math.frexp(x)[1] - digits, least)
    return round(x / step) * step


#: Of a float64 of NumPy, which has infinities and NaN; where there is another way than that of the reference semantics,
#: rows take it.
VALUES: Final[dict[OpKind, Callable[[Any], float]]] = {
    OpKind.EXP: np.exp,
    OpKind.SQRT: np.sqrt,
    OpKind.SQUARE: lambda x: x**2,
    OpKind.SILU: lambda x: x / (1.0 + np.exp(-x)),
    OpKind.GELU: lambda x: x * (1.0 + math.erf(x / 2**0.5)) / 2,
    OpKind.RELU: lambda x: x if x > 0 else 0.0,
    OpKind.SIGMOID: lambda x: 1.0 / (1.0 + np.exp(-x)),
    OpKind.TANH: lambda x: 2.0 / (1.0 + np.exp(-2.0 * x)) - 1.0,
    OpKind.ERF: math.erf,
    OpKind.LOG: lambda x: np.log2(x) * np.log(2.0),
    OpKind.ABS: np.fabs,
    OpKind.RECIPROCAL: lambda x: x**-1,
    OpKind.ROUND_FLOAT16: lambda x: nearest(x, 11, -24),
    OpKind.ROUND_BFLOAT16: lambda x: nearest(x, 8, -133),
}
assert VALUES.keys() == FUNCTIONS, "a function without its values"

#: Functions that are methods of graphs and tensors by their own names.
METHODS: Final = tuple(kind for kind in VALUES if kind not in ROUNDINGS)


def value(kind: OpKind, x: float) -> float:
    """The value of a function; NaN where it has none."""
    with np.errstate(all="ignore"):
        return float(VALUES[kind](np.float64(x)))


def values(kind: OpKind, x: NDArray[Any]) -> NDArray[Any]:
    """The values of a function, in the element type of its arguments."""
    return np.array([value(kind, item) for item in x.ravel()], x.dtype).reshape(x.shape)
