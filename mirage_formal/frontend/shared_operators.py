"""Operators that the front end offers both at kernel and at block level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Generic, TypeVar

from mirage_formal.frontend.argument_checks import Number, error_at_user_line, is_number, parse_dim, parse_number
from mirage_formal.frontend.handles import Handle
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.support.errors import UnsupportedError

H = TypeVar("H", bound=Handle)


class Operators(ABC, Generic[H]):
    """Operators of both levels. In sums, differences, products and quotients one operand may be an exact number."""

    @abstractmethod
    def _apply(self, kind: OpKind, operands: tuple[H, ...], attrs: Attrs = NO_ATTRS) -> tuple[H, ...]:
        """Append an operator and return its results; errors name the user's line."""

    @abstractmethod
    def _align(self, kind: OpKind, a: H, b: H) -> tuple[H, H]:
        """Return the operands of an elementwise operator, made equal in rank where the level can do that."""

    @abstractmethod
    def _own(self, operator: str, value: object) -> H:
        """Return the value if it is a tensor of this graph; else raise an error."""

    def _one(self, kind: OpKind, operands: tuple[H, ...], attrs: Attrs = NO_ATTRS) -> H:
        return self._apply(kind, operands, attrs)[0]

    def _unary(self, kind: OpKind, A: object) -> H:
        return self._one(kind, (self._own(kind.value, A),))

    def _pair(self, kind: OpKind, A: object, B: object) -> H:
        a, b = self._own(kind.value, A), self._own(kind.value, B)
        return self._one(kind, self._align(kind, a, b))

    def _along(self, kind: OpKind, A: object, dim: object, name: str = "") -> H:
        operator = name or kind.value
        a = self._own(operator, A)
        return self._one(kind, (a,), Attrs(dim=parse_dim(operator, dim, a.num_dims, repr(a))))

    def matmul(self, A: H, B: H) -> H:
        """Return the matrix product over the last two dims, without broadcast.

        C[..., i, j] = sum over k of A[..., i, k] B[..., k, j].

        Args:
            A: A tensor of shape [..., m, k].
            B: A tensor of shape [..., k, n], with the same leading dims.

        Returns:
            A tensor of shape [..., m, n].

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not fit.
        """
        return self._one(OpKind.MATMUL, (self._own("matmul", A), self._own("matmul", B)))

    def add(self, A: H | Number, B: H | Number) -> H:
        """Return the sum A + B, element by element, with broadcast; a number is added to every element.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A tensor whose extents are the larger ones, of the tensors' element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: A number is not finite.
        """
        if is_number(B):
            return self.shift(A, B)
        if is_number(A):
            return self.shift(B, A)
        return self._pair(OpKind.ADD, A, B)

    def sub(self, A: H | Number, B: H | Number) -> H:
        """Return the difference A - B, element by element, with broadcast; one operand may be a number.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A tensor whose extents are the larger ones, of the tensors' element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: A number is not finite.
        """
        if is_number(B):
            return self.shift(A, -parse_number("sub", B))
        if is_number(A):
            return self.shift(self._scaled("sub", B, -1), A)
        return self._pair(OpKind.SUB, A, B)

    def mul(self, A: H | Number, B: H | Number) -> H:
        """Return the product A * B, element by element, with broadcast; a number scales.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A tensor whose extents are the larger ones, of A's element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: An operand is a number that the operator does not take.
        """
        if is_number(B):
            return self._scaled("mul", A, B)
        if is_number(A):
            return self._scaled("mul", B, A)
        return self._pair(OpKind.MUL, A, B)

    def div(self, A: H | Number, B: H | Number) -> H:
        """Return the quotient A / B by element, with broadcast; one operand may be a number, the divisor not 0.

        Args:
            A: The first tensor or an exact number.
            B: The second tensor or an exact number; extents are equal or 1, and dims are aligned from the last.

        Returns:
            A tensor whose extents are the larger ones, of the tensors' element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: Extents differ and none is 1.
            UnsupportedError: A number is not finite, or the divisor is 0.
        """
        if is_number(B):
            divisor = parse_number("div", B)
            if divisor == 0:
                raise error_at_user_line(
                    UnsupportedError, "div: expected a divisor other than 0, got 0", "divide by another number"
                )
            return self._scaled("div", A, 1 / divisor)
        if is_number(A):
            return self._times("div", self._unary(OpKind.RECIPROCAL, B), A)
        return self._pair(OpKind.DIV, A, B)

    def scale(self, A: H, c: Number) -> H:
        """Return every element times an exact number: y = c x.

        Args:
            A: The tensor.
            c: The number; a float stands for its shortest decimal text.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: c is not a finite number.
        """
        return self._scaled("scale", A, c)

    def mul_scalar(self, A: H, scalar: Number) -> H:
        """Return every element times an exact number, as ``scale`` does.

        Args:
            A: The tensor.
            scalar: The number.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: The number is not finite.
        """
        return self._scaled("mul_scalar", A, scalar)

    def shift(self, A: H | Number, c: H | Number) -> H:
        """Return every element plus an exact number: y = x + c.

        Args:
            A: The tensor.
            c: The number; a float stands for its shortest decimal text.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: c is not a finite number.
        """
        summand = parse_number("shift", c)
        a = self._own("shift", A)
        return self._one(OpKind.SHIFT, (a,), Attrs(shift=summand)) if summand else a

    def reduction(self, A: H, dim: int) -> H:
        """Return the sum over one dim, which stays with extent 1.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape with extent 1 at the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.SUM, A, dim, "reduction")

    def mean(self, A: H, dim: int) -> H:
        """Return the mean over one dim, which stays with extent 1.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape with extent 1 at the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.MEAN, A, dim)

    def max(self, A: H, dim: int) -> H:
        """Return the maximum over one dim, which stays with extent 1.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape with extent 1 at the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.MAX, A, dim)

    def concat(self, A: H, B: H, dim: int) -> H:
        """Return A followed by B along one dim.

        Args:
            A: The first tensor.
            B: The second tensor; its other extents are A's.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape, but for the dim: its extent is the sum.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: There is no such dim, or other extents differ.
        """
        a, b = self._own("concat", A), self._own("concat", B)
        return self._one(OpKind.CONCAT, (a, b), Attrs(dim=parse_dim("concat", dim, a.num_dims, repr(a))))

    def repeat(self, A: H, dim: int, times: int) -> H:
        """Return a tensor with a dim of extent 1 repeated.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.
            times: Its new extent.

        Returns:
            A tensor of A's shape with extent ``times`` at the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim, or its extent is not 1.
        """
        a = self._own("repeat", A)
        return self._one(OpKind.REPEAT, (a,), Attrs(dim=parse_dim("repeat", dim, a.num_dims, repr(a)), times=times))

    def _scaled(self, operator: str, A: object, c: object) -> H:
        factor: Fraction = parse_number(operator, c)
        return self._one(OpKind.SCALE, (self._own(operator, A),), Attrs(factor=factor))

    def _times(self, operator: str, a: H, c: object) -> H:
        """Return the tensor times a number, itself where that is 1."""
        factor = parse_number(operator, c)
        return a if factor == 1 else self._one(OpKind.SCALE, (a,), Attrs(factor=factor))
