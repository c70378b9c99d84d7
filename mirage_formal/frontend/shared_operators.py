"""Operators that the front end offers both at kernel and at block level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from functools import update_wrapper
from inspect import getdoc, signature
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from mirage_formal.frontend.argument_checks import Number, error_at_user_line, is_number, parse_dim, parse_number
from mirage_formal.frontend.handles import AnyTensor
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.support.errors import UnsupportedError

Owner = TypeVar("Owner")
P = ParamSpec("P")
Found = TypeVar("Found")


def operator_method(
    general: Callable[Concatenate[Owner, OpKind, P], Found], kind: OpKind, words: str
) -> Callable[Concatenate[Owner, P], Found]:
    """Return the method of graphs for one operator, which has the operator's name.

    Args:
        general: The method for operators of one form, which takes the kind first. Its docstring has "..." for the
            words that differ.
        kind: The operator.
        words: Those words.
    """

    def method(graph: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Found:
        return general(graph, kind, *args, **kwargs)

    return describe_method(method, general, kind.value, (getdoc(general) or "").replace("...", words, 1))


def describe_method(
    method: Callable[P, Found], general: Callable[..., object], name: str, text: str
) -> Callable[P, Found]:
    """Return a method with a name, a docstring, and the signature of what it calls without the second parameter."""
    made: Any = update_wrapper(method, general)
    first, _, *others = signature(general).parameters.values()
    made.__signature__ = signature(general).replace(parameters=[first, *others])
    made.__name__, made.__doc__ = name, text
    made.__code__ = made.__code__.replace(co_name=name)  # which the origins of operators have
    return method


class Operators(ABC, Generic[AnyTensor]):
    """Operators of both levels. In sums, differences, products and quotients one operand may be an exact number."""

    @abstractmethod
    def _apply(self, kind: OpKind, operands: tuple[AnyTensor, ...], attrs: Attrs = NO_ATTRS) -> tuple[AnyTensor, ...]:
        """Append an operator and return its results; errors name the user's line."""

    @abstractmethod
    def _align(self, kind: OpKind, a: AnyTensor, b: AnyTensor) -> tuple[AnyTensor, AnyTensor]:
        """Return the operands of an elementwise operator, made equal in rank where the level can do that."""

    @abstractmethod
    def _own(self, operator: str, value: object) -> AnyTensor:
        """Return the value if it is a tensor of this graph; else raise an error."""

    def _one(self, kind: OpKind, operands: tuple[AnyTensor, ...], attrs: Attrs = NO_ATTRS) -> AnyTensor:
        return self._apply(kind, operands, attrs)[0]

    def _unary(self, kind: OpKind, A: AnyTensor) -> AnyTensor:  # noqa: D417
        """Return ..., element by element.

        Args:
            A: The tensor, x in the formula; any shape.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
        """
        return self._one(kind, (self._own(kind.value, A),))

    def _pair(self, kind: OpKind, A: object, B: object) -> AnyTensor:
        a, b = self._own(kind.value, A), self._own(kind.value, B)
        return self._one(kind, self._align(kind, a, b))

    def _along(self, kind: OpKind, A: AnyTensor, dim: int) -> AnyTensor:  # noqa: D417
        """Return the ... over one dim, which stays with extent 1.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape with extent 1 at the dim.

        Raises:
            GraphError: A is no tensor of this graph.
            ShapeError: There is no such dim.
        """
        return self._one(kind, *self._operand_and_dim(kind.value, A, dim))

    def _operand_and_dim(self, operator: str, A: object, dim: object) -> tuple[tuple[AnyTensor], Attrs]:
        """Return a tensor of this graph as the one operand, and one of its dims."""
        a = self._own(operator, A)
        return (a,), Attrs(dim=parse_dim(operator, dim, a.num_dims, repr(a)))

    def matmul(self, A: AnyTensor, B: AnyTensor) -> AnyTensor:
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

    def add(self, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
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

    def sub(self, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
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

    def mul(self, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
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

    def div(self, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
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
            return self._times("div", self._one(OpKind.RECIPROCAL, (self._own("reciprocal", B),)), A)
        return self._pair(OpKind.DIV, A, B)

    def scale(self, A: AnyTensor, c: Number) -> AnyTensor:
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

    def mul_scalar(self, A: AnyTensor, scalar: Number) -> AnyTensor:
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

    def shift(self, A: AnyTensor | Number, c: AnyTensor | Number) -> AnyTensor:
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

    def reduction(self, A: AnyTensor, dim: int) -> AnyTensor:
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
        return self._one(OpKind.SUM, *self._operand_and_dim("reduction", A, dim))

    def concat(self, A: AnyTensor, B: AnyTensor, dim: int) -> AnyTensor:
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

    def repeat(self, A: AnyTensor, dim: int, times: int) -> AnyTensor:
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

    def _scaled(self, operator: str, A: object, c: object) -> AnyTensor:
        factor: Fraction = parse_number(operator, c)
        return self._one(OpKind.SCALE, (self._own(operator, A),), Attrs(factor=factor))

    def _times(self, operator: str, a: AnyTensor, c: object) -> AnyTensor:
        """Return the tensor times a number, itself where that is 1."""
        factor = parse_number(operator, c)
        return a if factor == 1 else self._one(OpKind.SCALE, (a,), Attrs(factor=factor))
