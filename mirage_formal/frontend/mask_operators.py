"""Comparisons, selections and masks, at kernel and at block level."""

from __future__ import annotations

from typing import Final

from mirage_formal.frontend.argument_checks import Number, error_at_user_line, is_number, parse_number
from mirage_formal.frontend.handles import AnyTensor
from mirage_formal.frontend.shared_operators import Operators, operator_method
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: a > b is b < a.
_CONVERSE: Final = {
    OpKind.EQ: OpKind.EQ,
    **{OpKind.LT: OpKind.GT, OpKind.LE: OpKind.GE},
    **{OpKind.GT: OpKind.LT, OpKind.GE: OpKind.LE},
}


class Masks(Operators[AnyTensor]):
    """Operators that make boolean masks, and those that read them."""

    def _comparison(self, kind: OpKind, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:  # noqa: D417
        """Return the mask of ..., element by element, with broadcast; one of them may be a number.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A mask of the broadcast shape: 1 where the comparison holds, and 0 elsewhere, also where an operand is NaN.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: A number is not finite.
        """
        if is_number(A):
            return self._comparison(_CONVERSE[kind], B, A)
        if is_number(B):
            return self._one(kind, (self._own(kind.value, A),), Attrs(value=parse_number(kind.value, B)))
        # Of two tensors there is no GT and no GE.
        return self._pair(_CONVERSE[kind], B, A) if kind in (OpKind.GT, OpKind.GE) else self._pair(kind, A, B)

    eq = operator_method(_comparison, OpKind.EQ, "A = B")
    lt = operator_method(_comparison, OpKind.LT, "A < B")
    le = operator_method(_comparison, OpKind.LE, "A ≤ B")
    gt = operator_method(_comparison, OpKind.GT, "A > B")
    ge = operator_method(_comparison, OpKind.GE, "A ≥ B")

    def ne(self, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
        """Return the mask of A ≠ B, element by element, with broadcast; one of them may be a number.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A mask of the broadcast shape: 1 where the comparison holds, and 0 elsewhere, also where an operand is NaN.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: A number is not finite.
        """
        return self.logical_not(self.eq(A, B))

    def logical_not(self, A: AnyTensor) -> AnyTensor:
        """Return the negation of a mask: 1 where it is 0.

        Args:
            A: The mask, of booleans; any shape.

        Returns:
            A mask of A's shape.

        Raises:
            GraphError: A is no tensor of this graph, or no mask.
        """
        return self._unary(OpKind.LOGICAL_NOT, A)

    def logical_and(self, A: AnyTensor, B: AnyTensor) -> AnyTensor:
        """Return the conjunction of two masks: 1 where both are 1.

        Args:
            A: The first mask, of booleans.
            B: The second mask; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A mask of the broadcast shape.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: An operand is no mask.
        """
        return self._pair(OpKind.MUL, self._mask("logical_and", A), self._mask("logical_and", B))

    def logical_or(self, A: AnyTensor, B: AnyTensor) -> AnyTensor:
        """Return the disjunction of two masks: 1 where one of them is 1.

        Args:
            A: The first mask, of booleans.
            B: The second mask; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A mask of the broadcast shape.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: An operand is no mask.
        """
        return self._pair(OpKind.MAXIMUM, self._mask("logical_or", A), self._mask("logical_or", B))

    def _mask(self, operator: str, value: object) -> AnyTensor:
        found = self._own(operator, value)
        if found.dtype is not DType.BOOL:
            text = f"{operator}: expected a mask of booleans, got {found!r} of {found.dtype.value}"
            raise error_at_user_line(UnsupportedError, text, "compare with a number to make a mask")
        return found

    def select(self, mask: AnyTensor, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
        """Return A where a mask is 1, and B where it is 0.

        The value that is not chosen has no influence on the result, also where it is infinite or NaN.

        Args:
            mask: The mask, of booleans; it broadcasts with A and B.
            A: A tensor or an exact number.
            B: A tensor of A's element type or an exact number; one of the two is a tensor.

        Returns:
            A tensor of the broadcast shape, of the element type of A and B.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not broadcast.
            UnsupportedError: The mask has no booleans, both values are numbers, or a number is not finite.
        """
        m = self._mask("select", mask)
        if is_number(A):
            if is_number(B):
                text = "select: expected a tensor among the two values, got two numbers"
                raise error_at_user_line(UnsupportedError, text, "cast the mask, scale it and shift it")
            return self.select(self.logical_not(m), B, A)
        m, a = self._align(OpKind.SELECT, m, self._own("select", A))
        if is_number(B):
            return self._one(OpKind.SELECT, (m, a), Attrs(value=parse_number("select", B)))
        a, b = self._align(OpKind.SELECT, a, self._own("select", B))
        m, a = self._align(OpKind.SELECT, m, a)
        return self._one(OpKind.SELECT, (m, a, b))

    def div_no_nan(self, A: AnyTensor, B: AnyTensor) -> AnyTensor:
        """Return the quotient A / B, element by element, with broadcast, and 0 where B is 0.

        Where B is 0 and A is infinite or NaN the result is NaN.

        Args:
            A: The first tensor.
            B: The second tensor; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A tensor whose extents are the larger ones, of the tensors' element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
        """
        return self._pair(OpKind.DIV_NO_NAN, A, B)

    def round_to(self, A: AnyTensor, dtype: object) -> AnyTensor:
        """Return every element rounded to the nearest number of a narrower element type, ties to even.

        Args:
            A: The tensor; any shape.
            dtype: float16 or bfloat16.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: The element type is neither float16 nor bfloat16.
        """
        kinds = {"float16": OpKind.ROUND_FLOAT16, "bfloat16": OpKind.ROUND_BFLOAT16}
        kind = kinds.get(str(dtype).rpartition(".")[2])
        if kind is None:
            raise error_at_user_line(
                UnsupportedError, f"round_to: expected float16 or bfloat16, got {dtype}", "use one of the two"
            )
        return self._unary(kind, A)
