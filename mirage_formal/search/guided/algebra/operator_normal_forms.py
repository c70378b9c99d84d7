"""Normal forms of operators' results, computed from the normal forms of their operands."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from mirage_formal.graph.ops import COMPARISONS, OpKind
from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.normal_forms import MASKS
from mirage_formal.search.guided.algebra.part_masks import Frame, PartMask

#: The equivalent comparison with exchanged operands.
_TURNED: Final = {OpKind.GT: OpKind.LT, OpKind.GE: OpKind.LE}
_MINUS_ONE: Final = Fraction(-1)


def binary_form(algebra: Algebra, kind: OpKind, a: Form, b: Form) -> Form | None:
    """Return the normal form of an elementwise operator with two operands.

    Division without NaN is a product with an opaque function, the inverse that is 0 at 0; the conjunction of masks is
    their product. Comparisons and the disjunction of masks are opaque.

    Args:
        algebra: The algebra that interns the normal forms.
        kind: One of ``ARITHMETIC``, or a comparison.
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
        case OpKind.DIV_NO_NAN:
            return algebra.mul(a, algebra.apply("inverse or 0", b))
        case OpKind.MAXIMUM if algebra.is_mask(a):
            return algebra.apply_several(f"{MASKS}or", (a, b), commutative=True)
        case OpKind.MAXIMUM | OpKind.MINIMUM:
            return _extreme(algebra, kind, min(a, b), max(a, b))
        case OpKind.GT | OpKind.GE:
            return binary_form(algebra, _TURNED[kind], b, a)
        case OpKind.EQ | OpKind.LT | OpKind.LE:
            return algebra.apply_several(f"{MASKS}{kind.value}", (a, b), commutative=kind is OpKind.EQ)
        case _:
            raise AssertionError(kind)


def _extreme(algebra: Algebra, kind: OpKind, a: Form, b: Form) -> Form | None:
    """Return max(a, b) as b + p or min(a, b) as a - p, where p = positive(a - b) is the larger of a - b and 0.

    The operands come in the order of their numbers, so that both orders have one form.
    """
    difference = binary_form(algebra, OpKind.SUB, a, b)
    if difference is None:
        return None
    positive = algebra.apply("positive", difference)
    return algebra.add(b, positive) if kind is OpKind.MAXIMUM else binary_form(algebra, OpKind.SUB, a, positive)


def function_form(algebra: Algebra, kind: OpKind, a: Form) -> Form:
    """Return the normal form of an opaque elementwise function of one operand.

    Args:
        algebra: The algebra that interns the normal forms.
        kind: One of ``FUNCTIONS`` but a square, a negation or cast of a mask.
        a: Form of the operand.
    """
    return algebra.apply(f"{MASKS}not" if kind is OpKind.LOGICAL_NOT else kind.value, a)


def valued_form(algebra: Algebra, kind: OpKind, a: Form, value: Fraction) -> Form:
    """Return the normal form of a comparison with a number, or of an extreme of a tensor and a number: it is opaque."""
    return algebra.apply(f"{MASKS if kind in COMPARISONS else ''}{kind.value} {value}", a)


def selection_form(algebra: Algebra, mask: Form, values: Sequence[Form], value: Fraction | None) -> Form:
    """Return the normal form of a selection. It is opaque: no law moves an operator into or out of its operands.

    Args:
        algebra: The algebra that interns the normal forms.
        mask: Form of the mask.
        values: Forms of the values selected where the mask is 1, and elsewhere.
        value: The number that is selected elsewhere, if it is one.
    """
    name = "select" if value is None else f"select {value}"
    return algebra.apply_several(name, (mask, *values))


def selection_branch_form(algebra: Algebra, mask: Form, value: Form, place: int) -> Form:
    """Return the subterm of a selection's form that stands for the mask and one of the two values.

    Args:
        algebra: The algebra that interns the normal forms.
        mask: Form of the mask.
        value: Form of the value.
        place: 0 if it is selected where the mask is 1, 1 if elsewhere.
    """
    return algebra.add(algebra.argument_at(0, mask), algebra.argument_at(1 + place, value))


def shift_form(algebra: Algebra, a: Form, summand: Fraction) -> Form:
    """Return the normal form of a sum with a constant.

    It is opaque, because a sum over an index has no form for terms without that index.
    """
    return algebra.apply(f"shift {summand}", a)


def rms_norm(algebra: Algebra, parts: PartMask, a: Form, eps: Fraction | None, frame: Frame) -> Form | None:
    """Return the normal form of rms_norm over ``parts``; the norm is an opaque divisor (``Forms.root_mean_square``)."""
    norm = algebra.root_mean_square(parts, a, eps, frame)
    return None if norm is None else algebra.div(a, norm)


def layer_norm(algebra: Algebra, parts: PartMask, a: Form, eps: Fraction | None, frame: Frame) -> Form | None:
    """Return the normal form of layer_norm over ``parts``, which is opaque (``Forms.layer_norm``)."""
    return algebra.layer_norm(parts, a, eps, frame)
