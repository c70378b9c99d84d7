"""The table of elementwise functions: one row per function of one element, with a column for each part that reads it.

The operator table (``graph.ops``) has their shapes, levels and classes in the LAX fragment. The checker reads nothing
from here; its own rows are in check/proof/operator_terms.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from importlib import import_module
from math import erf
from typing import Any, Final

from msgspec import Struct

from mirage_formal.graph.ops import FUNCTIONS, OPAQUE, ZERO_AT_ZERO, OpKind

#: Beyond this, the error function is 1 in extended precision, and before it so many factors of its terms matter.
_ERF_IS_ONE: Final = 7
_ERF_TERMS: Final = 400
_PI: Final = "3.14159265358979323846264338327950288"
#: A function of an array, written with the functions of an array module: NumPy or CuPy.
Evaluate = Callable[[Any, Any], Any]


class Reals(Enum):
    """Sets of real numbers, for the domains and the images of functions."""

    ALL = "all"
    NONNEGATIVE = "nonnegative"
    POSITIVE = "positive"
    NONZERO = "nonzero"


class FunctionSpec(Struct, frozen=True):
    """One row of the table.

    Attributes:
        evaluate: The function of an array.
        torch: The function as an expression of PyTorch, with {0} for its operand.
        triton: The function as an expression of Triton in float32.
        latex: Its name in formulas of proofs; empty if proofs write it with other functions.
        domain: Arguments at which it has a value.
        image: Values that it has.
        zero_at_zero: Whether it is 0 at 0.
        keeps_sign: Whether it is positive at positive arguments, and not negative at arguments that are not.
        uninterpreted: Whether proofs know no other law of it than that equal arguments give equal values.
        activation: Whether networks use it as an activation.
        slope: Its largest slope, if rounding errors of its argument are bounded by that alone; else None.
        roundings: Bound of its error on a GPU, in roundings of float32, if errors are bounded by its slope.
        special: Results of the special-function unit that it takes for each element.
    """

    evaluate: Evaluate
    torch: str
    triton: str
    latex: str = ""
    domain: Reals = Reals.ALL
    image: Reals = Reals.ALL
    zero_at_zero: bool = True
    keeps_sign: bool = False
    uninterpreted: bool = False
    activation: bool = False
    slope: float | None = None
    roundings: float = 4.0
    special: int = 0


def sigmoid(xp: Any, x: Any) -> Any:
    """Return 1 / (1 + e^-x) without overflow."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1.0, small) / (1.0 + small)


def error_function(xp: Any, x: Any) -> Any:
    """Return the error function; NumPy has none. In extended precision it is a sum of terms of one sign."""
    if xp.__name__ == "cupy":
        return import_module("cupyx.scipy.special").erf(x)
    if x.dtype.itemsize <= xp.dtype(xp.float64).itemsize:
        return xp.asarray(xp.vectorize(erf, otypes=[xp.float64])(x))
    near = xp.clip(x, -_ERF_IS_ONE, _ERF_IS_ONE)  # d/dx (e^(x^2) erf(x)) is 2x times that and 2/sqrt(pi)
    total = term = near * xp.exp(-near * near) * 2 / xp.sqrt(x.dtype.type(_PI))
    for n in range(3, _ERF_TERMS, 2):
        term = term * 2 * near * near / n
        total = total + term
    return total


def round_to_bfloat16(xp: Any, x: Any) -> Any:
    """Return each element rounded to the nearest bfloat16, ties to even, in the element type that it has.

    A bfloat16 has 8 significant bits and the exponents of float32, so the spacing of its numbers follows from the
    exponent of the element, with the spacing of denormal numbers, 2^-133, as its least value.
    """
    _, exponent = xp.frexp(x)
    step = xp.ldexp(xp.ones_like(x), xp.maximum(exponent - 8, -133))
    rounded = xp.rint(x / step) * step
    found = xp.where(xp.abs(rounded) > float(2**128 - 2**120), xp.copysign(xp.inf, x), rounded)
    return xp.where(xp.isfinite(x), found, x)


FUNCTION_SPECS: Final[dict[OpKind, FunctionSpec]] = {
    OpKind.EXP: FunctionSpec(
        lambda xp, x: xp.exp(x), "torch.exp({0})", "tl.exp({0})", image=Reals.POSITIVE, zero_at_zero=False, special=1
    ),
    OpKind.SQRT: FunctionSpec(
        *(lambda xp, x: xp.sqrt(x), "torch.sqrt({0})", "tl.sqrt({0})"),
        domain=Reals.NONNEGATIVE,
        image=Reals.NONNEGATIVE,
        keeps_sign=True,
        special=1,
    ),
    OpKind.SQUARE: FunctionSpec(lambda xp, x: x * x, "torch.square({0})", "{0} * {0}", image=Reals.NONNEGATIVE),
    OpKind.SILU: FunctionSpec(
        *(lambda xp, x: x * sigmoid(xp, x), "torch.nn.functional.silu({0})", "{0} * tl.sigmoid({0})"),
        keeps_sign=True,
        activation=True,
        slope=1.1,
        special=2,
    ),
    OpKind.GELU: FunctionSpec(
        lambda xp, x: 0.5 * x * (1.0 + error_function(xp, x / xp.sqrt(xp.asarray(2, x.dtype)))),
        "torch.nn.functional.gelu({0})",
        "0.5 * {0} * (1.0 + tl.erf({0} * 0.7071067811865476))",
        keeps_sign=True,
        activation=True,
        slope=1.13,
        special=2,
    ),
    OpKind.RELU: FunctionSpec(
        *(lambda xp, x: xp.maximum(x, 0.0), "torch.relu({0})"),
        "tl.maximum({0}, 0.0, propagate_nan=tl.PropagateNan.ALL)",
        latex=r"\operatorname{relu}",
        image=Reals.NONNEGATIVE,
        uninterpreted=True,
        activation=True,
    ),
    OpKind.SIGMOID: FunctionSpec(
        *(sigmoid, "torch.sigmoid({0})", "tl.sigmoid({0})"),
        image=Reals.POSITIVE,
        activation=True,
        slope=0.25,
        zero_at_zero=False,
        special=2,
    ),
    OpKind.TANH: FunctionSpec(
        *(lambda xp, x: xp.tanh(x), "torch.tanh({0})", "_tanh({0})"),
        keeps_sign=True,
        activation=True,
        slope=1.0,
        special=2,
    ),
    OpKind.ERF: FunctionSpec(
        *(error_function, "torch.erf({0})", "tl.erf({0})", r"\operatorname{erf}"),
        keeps_sign=True,
        uninterpreted=True,
        activation=True,
        slope=1.13,
        special=2,
    ),
    OpKind.LOG: FunctionSpec(
        *(lambda xp, x: xp.log(x), "torch.log({0})", "tl.log({0})", r"\log"),
        domain=Reals.POSITIVE,
        uninterpreted=True,
        zero_at_zero=False,
        special=1,
    ),
    OpKind.ABS: FunctionSpec(lambda xp, x: xp.abs(x), "torch.abs({0})", "tl.abs({0})", image=Reals.NONNEGATIVE),
    OpKind.RECIPROCAL: FunctionSpec(
        *(lambda xp, x: 1.0 / x, "torch.reciprocal({0})", "1.0 / {0}"),
        domain=Reals.NONZERO,
        keeps_sign=True,
        zero_at_zero=False,
        special=1,
    ),
    OpKind.ROUND_FLOAT16: FunctionSpec(
        lambda xp, x: xp.asarray(x.astype(xp.float16).astype(x.dtype)),
        "{0}.to(torch.float16).to({0}.dtype)",
        "{0}.to(tl.float16).to(tl.float32)",
        latex=r"\operatorname{round}_{16}",
        uninterpreted=True,
    ),
    OpKind.ROUND_BFLOAT16: FunctionSpec(
        *(round_to_bfloat16, "{0}.to(torch.bfloat16).to({0}.dtype)", "_round_bfloat({0})"),
        latex=r"\operatorname{round}_{b16}",
        uninterpreted=True,
    ),
}
assert FUNCTION_SPECS.keys() == FUNCTIONS, "a function without a row"
#: Functions that are 0 at 0; of those that finite fields know as random functions, ``ops.ZERO_AT_ZERO`` says the same.
ZEROS: Final = frozenset(kind for kind, row in FUNCTION_SPECS.items() if row.zero_at_zero)
assert ZEROS & OPAQUE == ZERO_AT_ZERO & FUNCTIONS, "zero_at_zero differs"

#: Uninterpreted functions: proofs know no law of them but congruence.
UNINTERPRETED: Final = frozenset(kind for kind, row in FUNCTION_SPECS.items() if row.uninterpreted)
ACTIVATIONS: Final = frozenset(kind for kind, row in FUNCTION_SPECS.items() if row.activation)

__all__ = [
    "ACTIVATIONS",
    "FUNCTION_SPECS",
    "UNINTERPRETED",
    "ZEROS",
    "FunctionSpec",
    "Reals",
    "error_function",
    "round_to_bfloat16",
    "sigmoid",
]
