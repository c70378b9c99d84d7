"""Functions of one or two elements, as text of Triton."""

from __future__ import annotations

from typing import Final, assert_never

from mirage_formal.codegen.program.flat_graph import MapFn
from mirage_formal.codegen.program.program import (
    BinaryFn,
    KernelFn,
    UnaryFn,
    unary_fn,
)
from mirage_formal.graph.ops import OpKind
from mirage_formal.semantics.function_table import FUNCTION_SPECS, ZEROS

#: Maxima of NaN and anything are NaN, as PyTorch has it; Triton's own take the other one.
_NAN: Final = "propagate_nan=tl.PropagateNan.ALL"

#: In Triton, of float32.
_UNARY: Final = {
    **{unary_fn(kind): row.triton for kind, row in FUNCTION_SPECS.items()},
    KernelFn.NEG: "-{0}",
    KernelFn.RSQRT: "tl.rsqrt({0})",
    OpKind.LOGICAL_NOT: "1.0 - {0}",
}
_BINARY: Final = {
    BinaryFn.ADD: "{0} + {1}",
    BinaryFn.SUB: "{0} - {1}",
    BinaryFn.MUL: "{0} * {1}",
    BinaryFn.DIV: "{0} / {1}",
    BinaryFn.MAX: f"tl.maximum({{0}}, {{1}}, {_NAN})",
    BinaryFn.MIN: f"tl.minimum({{0}}, {{1}}, {_NAN})",
    BinaryFn.DIV_NO_NAN: "tl.where({1} == 0.0, {0} * 0.0, {0} / {1})",
    BinaryFn.EQ: "({0} == {1}).to(tl.float32)",
    BinaryFn.LT: "({0} < {1}).to(tl.float32)",
    BinaryFn.LE: "({0} <= {1}).to(tl.float32)",
    BinaryFn.GT: "({0} > {1}).to(tl.float32)",
    BinaryFn.GE: "({0} >= {1}).to(tl.float32)",
}
#: Comparisons that do not hold of two zeros.
STRICT: Final = frozenset({BinaryFn.LT, BinaryFn.GT})
#: The lowest finite float32: where a running maximum starts, and what counts for a maximum that is subtracted under an
#: exponential where that is less, so that the difference is a number.
LOWEST: Final = -3.4028234663852886e38
#: Functions that are 0 at 0.
ZERO_AT_ZERO: Final = frozenset({KernelFn.NEG, *map(unary_fn, ZEROS)})
#: Triton has no hyperbolic tangent outside of its libraries, which its interpreter lacks.
TANH: Final = '''@triton.jit
def _tanh(x):
    """1 - 2 / (exp(2 x) + 1), which cancels near 0: there the first terms of the series."""
    square = x * x
    series = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.1, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
'''


#: The interpreter's own conversion truncates instead of rounding.
ROUND_BFLOAT: Final = '''@triton.jit
def _round_bfloat(x):
    """The nearest bfloat16, ties to even."""
    if SLOW:
        bits = x.to(tl.int32, bitcast=True)
        near = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        return tl.where(tl.abs(x) >= 0.0, near.to(tl.float32, bitcast=True), x)
    else:
        return x.to(tl.bfloat16).to(tl.float32)
'''
#: Helpers for maxima along an axis; of the interpreter's reductions only its own are fast.
LARGEST: Final = f'''@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, {_NAN})


@triton.jit
def _largest(x, axis: tl.constexpr):
    """The largest along an axis, and NaN if there is one."""
    if SLOW:
        return tl.max(x, axis, keep_dims=True) + tl.sum(tl.where(tl.abs(x) >= 0.0, 0.0, x), axis, keep_dims=True)
    else:
        return tl.reduce(x, axis, _larger, keep_dims=True)
'''
#: Functions of a file that others call, by name; some of them ask whether they are interpreted.
HELPERS: Final = {"_tanh": TANH, "_round_bfloat": ROUND_BFLOAT, "_largest": LARGEST}
#: The helper that a function needs.
NEEDED: Final[dict[UnaryFn | BinaryFn | MapFn, str]] = {OpKind.TANH: "_tanh", KernelFn.ROUND_BFLOAT: "_round_bfloat"}


def apply_function(fn: UnaryFn | BinaryFn | MapFn, *operands: str, finite: bool = False) -> str:
    """Return the text of a function's value; operands are names or constants.

    Args:
        fn: The function.
        operands: The arguments.
        finite: For a difference, see ``flat.Elementwise``.
    """
    match fn:
        case BinaryFn.SUB if finite:
            return f"{operands[0]} - {apply_function(BinaryFn.MAX, operands[1], python_float(LOWEST))}"
        case OpKind() | KernelFn():
            return _UNARY[fn].format(*operands)
        case BinaryFn():
            return _BINARY[fn].format(*operands)
        case MapFn.SELECT:
            mask, one, other = operands
            return f"tl.where({mask} != 0.0, {one}, {other})"
        case MapFn.CONSTANT:
            raise AssertionError("a constant needs a shape")
        case _:
            assert_never(fn)


def python_float(value: float) -> str:
    """Return a float as a Python expression; a negative one in parentheses."""
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 else repr(value)
