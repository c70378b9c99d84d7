"""Elementwise functions that the front end offers at kernel and at block level: primitive ones and compositions.

Compositions are exact: over the real numbers each is the function that its name says.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from mirage_formal.frontend.argument_checks import Number, error_at_user_line, is_number, parse_number
from mirage_formal.frontend.handles import AnyTensor
from mirage_formal.frontend.mask_operators import Masks
from mirage_formal.frontend.shared_operators import Operators, operator_method
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError

#: Larger powers are not multiplied out.
MAX_POWER: Final = 64
#: sqrt(2 / pi) in float64, and the coefficient of the cube, as other systems have them in the approximation of gelu.
_GELU_SLOPE: Final = Fraction("0.7978845608028654")
_GELU_CUBE: Final = Fraction("0.044715")


class Functions(Masks[AnyTensor]):
    """Elementwise functions of graphs, beyond the arithmetic of ``Operators``."""

    exp = operator_method(Operators._unary, OpKind.EXP, "the exponential y = e^x")
    sqrt = operator_method(Operators._unary, OpKind.SQRT, "the square root")
    square = operator_method(Operators._unary, OpKind.SQUARE, "the square y = x x")
    silu = operator_method(Operators._unary, OpKind.SILU, "the sigmoid linear unit y = x / (1 + e^-x)")
    relu = operator_method(Operators._unary, OpKind.RELU, "the maximum of x and 0")
    sigmoid = operator_method(Operators._unary, OpKind.SIGMOID, "the logistic function y = 1 / (1 + e^-x)")
    tanh = operator_method(Operators._unary, OpKind.TANH, "the hyperbolic tangent y = (e^x - e^-x) / (e^x + e^-x)")
    erf = operator_method(Operators._unary, OpKind.ERF, "the error function")
    log = operator_method(Operators._unary, OpKind.LOG, "the natural logarithm (of numbers above 0)")
    abs = operator_method(Operators._unary, OpKind.ABS, "the absolute value")
    reciprocal = operator_method(Operators._unary, OpKind.RECIPROCAL, "the reciprocal y = 1 / x (of numbers but 0)")

    def neg(self, A: AnyTensor) -> AnyTensor:
        """Return the negative y = -x, element by element.

        Args:
            A: The tensor, x in the formula; any shape.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
        """
        return self._scaled("neg", A, -1)

    def rsqrt(self, A: AnyTensor) -> AnyTensor:
        """Return the reciprocal square root y = 1 / sqrt(x), element by element; every element must be above 0.

        Args:
            A: The tensor, x in the formula; any shape.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
        """
        return self._one(OpKind.RECIPROCAL, (self._one(OpKind.SQRT, (self._own("rsqrt", A),)),))

    def pow(self, A: AnyTensor, c: Number) -> AnyTensor:
        """Return every element to a constant power.

        Whole and half powers are products, roots and reciprocals; any other is e^(c log x), for which every element
        must be above 0.

        Args:
            A: The tensor; any shape.
            c: The exact exponent; a float stands for its shortest decimal text.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: c is no finite number, or a whole or half number above 64 or below -64.
        """
        a, power = self._own("pow", A), parse_number("pow", c)
        if power.denominator > 2:
            return self.exp(self._scaled("pow", self.log(a), power))
        if abs(power) > MAX_POWER:
            text = f"pow: expected an exponent in -{MAX_POWER}..{MAX_POWER}, got {power}"
            raise error_at_user_line(UnsupportedError, text, "write exp(c * log(x)) where x is above 0")
        if power == 0:
            return self.full_like(a, 1)
        whole, half = divmod(abs(power), 1)
        found = self._whole_power(a, int(whole)) if whole else None
        if half:
            root = self._one(OpKind.SQRT, (a,))
            found = root if found is None else self._one(OpKind.MUL, (found, root))
        assert found is not None
        return self._one(OpKind.RECIPROCAL, (found,)) if power < 0 else found

    def _whole_power(self, a: AnyTensor, n: int) -> AnyTensor:
        """Return a to the n, by squaring."""
        found: AnyTensor | None = None
        while n:
            if n & 1:
                found = a if found is None else self._one(OpKind.MUL, (found, a))
            n >>= 1
            if n:
                a = self._one(OpKind.SQUARE, (a,))
        assert found is not None
        return found

    def gelu(self, A: AnyTensor, approximate: str = "none") -> AnyTensor:
        """Return the Gaussian error linear unit y = x (1 + erf(x / sqrt(2))) / 2 of every element, or an approximation.

        Args:
            A: The tensor, x in the formula; any shape.
            approximate: "none", or "tanh" for x (1 + tanh(c (x + 0.044715 x^3))) / 2, where c is the decimal of
                sqrt(2 / pi) that float64 has. It is computed as x sigmoid(2 c x (1 + 0.044715 x^2)), which is the same
                number by fewer operators.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: There is no such approximation.
        """
        if approximate == "none":
            return self._unary(OpKind.GELU, A)
        if approximate != "tanh":
            text = f"gelu: expected approximate to be 'none' or 'tanh', got {approximate!r}"
            raise error_at_user_line(UnsupportedError, text, "use one of the two")
        a = self._own("gelu", A)
        slope = self.shift(
            self._times("gelu", self._one(OpKind.SQUARE, (a,)), 2 * _GELU_SLOPE * _GELU_CUBE), 2 * _GELU_SLOPE
        )
        weight = self._one(OpKind.SIGMOID, (self._one(OpKind.MUL, (a, slope)),))
        return self._one(OpKind.MUL, (a, weight))

    def leaky_relu(self, A: AnyTensor, negative_slope: Number = 0.01) -> AnyTensor:
        """Return x where it is above 0, and the slope times x elsewhere: y = (1 - a) relu(x) + a x.

        Args:
            A: The tensor, x in the formula; any shape.
            negative_slope: The exact number a.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: The slope is no finite number.
        """
        slope, x = parse_number("leaky_relu", negative_slope), self._own("leaky_relu", A)
        positive = self._one(OpKind.RELU, (x,))
        if slope == 0:
            return positive
        first = self._times("leaky_relu", positive, 1 - slope)
        return self._one(OpKind.ADD, (first, self._times("leaky_relu", x, slope)))

    def _extreme(self, kind: OpKind, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:  # noqa: D417
        """Return the ... of A and B, element by element, with broadcast; one of them may be a number.

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
        if is_number(A):
            A, B = B, A
        if not is_number(B):
            return self._pair(kind, A, B)
        bound, a = parse_number(kind.value, B), self._own(kind.value, A)
        if kind is OpKind.MAXIMUM and bound == 0:
            return self._one(OpKind.RELU, (a,))
        return self._one(kind, (a,), Attrs(value=bound))

    maximum = operator_method(_extreme, OpKind.MAXIMUM, "larger")
    minimum = operator_method(_extreme, OpKind.MINIMUM, "smaller")

    def clamp(
        self,
        A: AnyTensor,
        min: AnyTensor | Number | None = None,
        max: AnyTensor | Number | None = None,
        *,
        min_val: AnyTensor | Number | None = None,
        max_val: AnyTensor | Number | None = None,
    ) -> AnyTensor:
        """Return every element, but at least ``min`` and then at most ``max``.

        Args:
            A: The tensor; any shape.
            min: A number or a tensor that broadcasts with A; no lower bound if left out.
            max: A number or a tensor that broadcasts with A; no upper bound if left out.
            min_val: The same as ``min``.
            max_val: The same as ``max``.

        Returns:
            A tensor of the broadcast shape, of A's element type.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: A bound does not broadcast.
            UnsupportedError: No bound is given, or a number is not finite.
        """
        a = self._own("clamp", A)
        min, max = (min_val if min is None else min), (max_val if max is None else max)
        if min is None and max is None:
            raise error_at_user_line(UnsupportedError, "clamp: expected min, max or both, got neither", "give a bound")
        if min is not None:
            a = self.maximum(a, min)
        return a if max is None else self.minimum(a, max)

    def where(self, mask: AnyTensor, A: AnyTensor | Number, B: AnyTensor | Number) -> AnyTensor:
        """Return A where a mask is 1 and B where it is 0; see ``select``.

        A mask of numbers instead of booleans is a factor: y = mask A + (1 - mask) B, for any values of the mask.

        Args:
            mask: The mask; it broadcasts with A and B.
            A: A tensor or an exact number.
            B: A tensor or an exact number.

        Returns:
            A tensor of the broadcast shape, of the element type of A and B.

        Raises:
            GraphError: An operand is no tensor of this graph.
            ShapeError: The shapes do not broadcast.
            UnsupportedError: A number is not finite.
        """
        m = self._own("where", mask)
        if m.dtype is DType.BOOL:
            return self.select(m, A, B)
        if is_number(A) and is_number(B):
            # Over the rationals the difference is exact.
            low, difference = parse_number("where", B), parse_number("where", A) - parse_number("where", B)
            return self.shift(self._times("where", m, difference), low)
        chosen = [self._weighted_summand(m, A), self._weighted_summand(None if self._is_zero(B) else self.sub(1, m), B)]
        parts = [part for part in chosen if part is not None]
        return parts[0] if len(parts) == 1 else self._pair(OpKind.ADD, *parts)

    def _weighted_summand(self, weight: AnyTensor | None, value: AnyTensor | Number) -> AnyTensor | None:
        """Return the summand of one of the two values; None if it is 0."""
        return None if weight is None or self._is_zero(value) else self.mul(weight, value)

    @staticmethod
    def _is_zero(value: object) -> bool:
        return is_number(value) and parse_number("where", value) == 0

    def full_like(self, A: AnyTensor, c: Number) -> AnyTensor:
        """Return a tensor of A's shape and element type with the same number everywhere.

        It is written 0 A + c, and kernels read no element of A. Most operators take the number itself, in its place.

        Args:
            A: The tensor; its values do not matter.
            c: The exact number.

        Returns:
            A tensor of A's shape and element type.

        Raises:
            GraphError: A is no tensor of this graph.
            UnsupportedError: c is no finite number.
        """
        return self.shift(self._scaled("full_like", A, 0), c)
