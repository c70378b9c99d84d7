"""Static facts about a tensor from the operators that compute it: whether it is always defined, and its sign.

A selection discards the elements that it does not choose, even if these are undefined. So it equals a product with its
mask only if its operand is defined for all inputs; otherwise it is an opaque function.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, assert_never

from msgspec import Struct

from mirage_formal.graph.ops import OpKind
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals


class Sign(IntEnum):
    """Sign that all elements of a tensor are known to have, where they are defined; UNKNOWN allows any."""

    UNKNOWN = 0
    NONNEGATIVE = 1
    POSITIVE = 2


class TensorFacts(Struct, frozen=True):
    """Facts about a tensor.

    Attributes:
        total: Whether each element has a value for all inputs: in its computation no divisor can be 0, no radicand
            negative, and no argument of a logarithm 0 or negative.
        sign: The sign of its elements.
    """

    total: bool
    sign: Sign


INPUT: Final = TensorFacts(True, Sign.UNKNOWN)
#: Steps that keep the sign and definedness of their operand.
_SAME: Final = (
    "split",
    "fold",
    "rename",
    "slice",
    "reshape",
    "transpose",
    "repeat",
    "sum",
    "max",
    "running_max",
    "rewrite",
)


def infer_facts(body: tuple[Any, ...], operands: Sequence[TensorFacts]) -> TensorFacts:
    """Return the facts about a step's result, from the facts about its operands.

    Sound: each row follows from the operator's definition, for all reals.
    """
    total = all(a.total for a in operands)
    sign = operands[0].sign
    match body:
        case ("unary", name):
            return _unary(name, total, sign)
        case ("binary", name):
            return _binary(name, total, sign, operands[1].sign)
        case ("matmul",):
            return TensorFacts(total, min(sign, operands[1].sign))
        case ("scale", factor):
            # Nothing of the operand is left in a product with 0.
            return TensorFacts(total or not factor, sign if factor > 0 else Sign(not factor))
        case ("offset", value):
            if value > 0 and sign is not Sign.UNKNOWN:
                return TensorFacts(total, Sign.POSITIVE)
            return TensorFacts(total, sign if value >= 0 else Sign.UNKNOWN)
        case ("carry", *_):
            return TensorFacts(total, Sign.NONNEGATIVE)
        case ("rescaled",):
            return TensorFacts(total, sign if operands[1].sign is not Sign.UNKNOWN else Sign.UNKNOWN)
        case (name, *_) if name in _SAME:
            return operands[0]
        case _:
            raise AssertionError(body)


def combine_facts(parts: Sequence[TensorFacts]) -> TensorFacts:
    """Return the facts that hold for several tensors side by side."""
    return TensorFacts(all(a.total for a in parts), min(a.sign for a in parts))


def _unary(name: str, total: bool, sign: Sign) -> TensorFacts:
    row = FUNCTION_SPECS[OpKind(name)]
    match row.domain:
        case Reals.NONNEGATIVE:
            total = total and sign is not Sign.UNKNOWN
        case Reals.POSITIVE | Reals.NONZERO:
            total = total and sign is Sign.POSITIVE
        case Reals.ALL:
            pass
        case _:
            assert_never(row.domain)
    match row.image:
        case Reals.POSITIVE:
            return TensorFacts(total, Sign.POSITIVE)
        case Reals.NONNEGATIVE:
            return TensorFacts(total, max(sign, Sign.NONNEGATIVE))
        case _:
            return TensorFacts(total, Sign.UNKNOWN)


def _binary(name: str, total: bool, a: Sign, b: Sign) -> TensorFacts:
    match name:
        case "add":
            return TensorFacts(total, max(a, b) if min(a, b) is not Sign.UNKNOWN else Sign.UNKNOWN)
        case "sub":
            return TensorFacts(total, Sign.UNKNOWN)
        case "mul" | "div_no_nan":
            return TensorFacts(total, min(a, b))
        case "div":
            return TensorFacts(total and b is Sign.POSITIVE, min(a, b))
        case "max":
            return TensorFacts(total, max(a, b))
        case "select":
            return TensorFacts(total, min(b, Sign.NONNEGATIVE))
        case "eq" | "lt" | "le":
            return TensorFacts(total, Sign.NONNEGATIVE)
        case _:
            raise AssertionError(name)
