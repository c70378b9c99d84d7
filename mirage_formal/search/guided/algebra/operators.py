"""Normal forms of the results of operators, from those of their operands."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from mirage_formal.graph.ops import OpKind
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.masks import Frame, PartMask

#: Operators that take the larger or the smaller of two elements.
EXTREMES: Final = frozenset({OpKind.MAXIMUM, OpKind.MINIMUM})
_MINUS_ONE: Final = Fraction(-1)


def binary(algebra: Algebra, kind: OpKind, a: Form, b: Form) -> Form | None:
    """Normal form of an elementwise operator.

    Args:
        algebra: The forms' algebra.
        kind: One of ``ARITHMETIC``.
        a: Form of the first operand.
        b: Form of the second operand.

    Returns:
        The form; None where it has none.
    """
    match kind:
        case OpKind.ADD:
            return algebra.add(a, b)
        case OpKind.SUB:
            negative = algebra.mul(algebra.constant(_MINUS_ONE), b)
            return None if negative is None else algebra.add(a, negative)
        case OpKind.MUL:
            return algebra.mul(a, b)
        case OpKind.DIV:
            return algebra.div(a, b)
        case _:
            return _extreme(algebra, kind, min(a, b), max(a, b))


def _extreme(algebra: Algebra, kind: OpKind, a: Form, b: Form) -> Form | None:
    """max(a, b) = b + p and min(a, b) = a - p, where p = positive(a - b) is the larger of a - b and 0.

    The operands come in the order of their numbers, so that both orders have one form.
    """
    difference = binary(algebra, OpKind.SUB, a, b)
    if difference is None:
        return None
    positive = algebra.apply("positive", difference)
    return algebra.add(b, positive) if kind is OpKind.MAXIMUM else binary(algebra, OpKind.SUB, a, positive)


def shift(algebra: Algebra, a: Form, summand: Fraction) -> Form:
    """Normal form of a sum with a constant: opaque, because a sum over an index has no form for terms without it."""
    return algebra.apply(f"shift {summand}", a)


def rms_norm(algebra: Algebra, parts: PartMask, a: Form, eps: Fraction | None, frame: Frame) -> Form | None:
    """Normal form of rms_norm over ``parts``: the norm stays an opaque factor. See ``Forms.root_mean_square``."""
    norm = algebra.root_mean_square(parts, a, eps, frame)
    return None if norm is None else algebra.div(a, norm)


def layer_norm(algebra: Algebra, parts: PartMask, a: Form, eps: Fraction | None, frame: Frame) -> Form | None:
    """Normal form of layer_norm over ``parts``, opaque. See ``Forms.layer_norm``."""
    return algebra.layer_norm(parts, a, eps, frame)
