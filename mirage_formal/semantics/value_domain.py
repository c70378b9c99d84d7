"""Interface of the domain of values over which a µGraph is interpreted (see interpreter)."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Generic, Protocol, TypeVar

from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape

T = TypeVar("T")

#: Position of the loop axis among the leading axes of a block tensor.
LOOP_AXIS: Final = 3
#: Leading axes of a block tensor: grid x, y, z and the loop.
LEADING: Final = 4

#: Operators that the interpreter expands unless a domain lists them in ``keeps``.
KEEPABLE: Final = frozenset({OpKind.SILU, OpKind.ABS, OpKind.SOFTMAX})


class Domain(Protocol[T]):
    """Interface of a domain of values; axes count the leading axes too.

    In elementwise operators and matmul, an axis of extent 1 stands for equal slices along it (broadcast).
    """

    @property
    def keeps(self) -> frozenset[OpKind]:
        """Return the operators of ``KEEPABLE`` that this domain implements itself, in ``unary`` or ``softmax``."""

    def unary(self, kind: OpKind, a: T) -> T:
        """Return the result of one of ``FUNCTIONS``; SILU and ABS only if kept."""

    def binary(self, kind: OpKind, a: T, b: T) -> T:
        """Return the result of one of ``ARITHMETIC``, SELECT, EQ, LT or LE on broadcastable operands.

        SELECT of a mask and a value is the value where the mask is 1, and 0 where it is 0, whatever the value is there.
        A comparison gives 1 where it holds and 0 elsewhere.
        """

    def matmul(self, a: T, b: T, inner: int) -> T:
        """Return the product over the last two axes, contracting ``inner`` elements; the axes before them broadcast."""

    def scale(self, a: T, factor: Fraction) -> T:
        """Return the product with an exact constant; with 0 it is 0, whatever ``a`` is."""

    def offset(self, a: T, constant: Fraction) -> T:
        """Return the sum with an exact constant (eps under a root, the 1 of silu)."""

    def sum(self, a: T, axis: int, extent: int, kept: int) -> T:
        """Fold an axis of ``extent`` to ``kept``: result[j] = sum over i of a[i * kept + j]; kept is usually 1."""

    def ordered(self, kind: OpKind, operands: tuple[T, ...], axis: int, extent: int) -> tuple[T, ...]:
        """Return the results of an operator that needs an order on the values, or a state carried around the loop.

        MAX: largest along ``axis``, kept as extent 1. RUNNING_MAX: (m, f) with m the largest along ``axis`` over this
        and all earlier iterations and f = exp(m of the previous iteration - m), 0 in the first. ACCUM_RESCALED_SUM of
        (x, f): the state s = s * f + x after the last iteration; here ``axis`` is the loop and becomes 1.
        """

    def softmax(self, a: T, axis: int, extent: int) -> T:
        """Return the softmax along an axis; called only if SOFTMAX is in ``keeps``."""

    def reshape(self, a: T, shape: Shape) -> T:
        """Return the same elements in row-major order with other axes."""

    def transpose(self, a: T, perm: tuple[int, ...]) -> T:
        """Return ``a`` with its axes permuted: result axis i is axis perm[i] of ``a``."""

    def tiled(self, a: T, axis: int) -> T:
        """Return ``a`` unchanged in value, before one of its axes is divided among blocks or iterations."""

    def concat(self, a: T, b: T, axis: int) -> T:
        """Return ``a`` followed by ``b`` along an axis; all other axes agree."""

    def slice(self, a: T, axis: int, start: int, stop: int) -> T:
        """Return the elements ``start`` to ``stop - 1`` of an axis."""

    def padded(self, a: T, axis: int, before: int, after: int) -> T:
        """Return ``a`` with ``before`` zeros before it and ``after`` zeros behind it along an axis."""

    def repeat(self, a: T, axis: int, times: int) -> T:
        """Return ``a`` with an axis of extent 1 copied ``times`` times."""


class UntiledDomain(Generic[T]):
    """Base class of domains whose values ignore tiling, and in which zeros are values like others."""

    def tiled(self, a: T, axis: int) -> T:
        """Implement ``Domain.tiled``."""
        return a

    def padded(self: Domain[T], a: T, axis: int, before: int, after: int) -> T:
        """Implement ``Domain.padded``."""
        zero = self.scale(self.slice(a, axis, 0, 1), Fraction(0))
        a = self.concat(self.repeat(zero, axis, before), a, axis) if before else a
        return self.concat(a, self.repeat(zero, axis, after), axis) if after else a
