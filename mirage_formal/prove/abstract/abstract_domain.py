"""The abstract-expression domain: one term per tensor, forgetting shapes and indices (Wu et al., OSDI 2025, table 1).

matmul over k is sum(k, mul(a, b)), a reduction over n is sum(n, a), an accumulator over r iterations is sum(r, a) if it
adds and a if it concatenates; repeat, reshape, transpose, iterators and savers are the identity. square(a) is mul(a,
a), sub(a, b) is add(a, mul(-1, b)), mean over n is mul(1/n, sum(n, a)); exp, sqrt, silu, gelu, relu, sigmoid and max
are opaque. A comparison is an opaque function of the sum of its operands; "a where the mask m is 1, else 0" is an
opaque function of add(m, a). A selection between a and b is two of these; the second has add(1, mul(-1, m)) for m. A
number in place of an operand x is add(mul(0, x), number). A quotient that is 0 where its divisor is 0 is a quotient.

A concatenation has one term per piece for as long as its pieces can be told apart, so that concat(W, X) @ concat(Y, Z)
is add(sum(k1, mul(W, Y)), sum(k2, mul(X, Z))). Such a tensor is part of a target if its pieces are; ``pieces`` lists
them, and ``expressions`` shows them as one sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce
from math import prod
from types import MappingProxyType
from typing import Final, TypeVar

from msgspec import Struct, structs

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.logic.terms import Expr, Unary, add, const, div, mul, sum_, unary, var
from mirage_formal.semantics.interpreter import Trace, trace
from mirage_formal.support.errors import GraphError

__all__ = ["Abstract", "AbstractDomain", "Expr", "expressions", "pieces", "program_inputs"]

#: Extents and terms of the pieces along one axis.
Pieces = tuple[tuple[int, Expr], ...]

MINUS_ONE: Final = Fraction(-1)
ONE: Final = Fraction(1)


class Abstract(Struct, frozen=True):
    """A tensor's abstract value.

    Attributes:
        shape: All axes.
        pieces: Extent along ``axis`` and term of each piece; one piece for all but concatenations.
        axis: The axis along which there are several pieces; meaningless for one.
    """

    shape: Shape
    pieces: Pieces
    axis: int = 0

    @property
    def single(self) -> bool:
        """Return whether the value is one term."""
        return len(self.pieces) == 1

    @property
    def term(self) -> Expr:
        """Return the term, or the sum of the pieces' terms."""
        return reduce(add, (e for _, e in self.pieces))

    def along(self, axis: int, extent: int) -> Pieces:
        """Return the pieces along an axis: one piece unless this tensor is divided along it."""
        return self.pieces if not self.single and self.axis == axis else ((extent, self.term),)


def _single_piece(shape: Shape, e: Expr) -> Abstract:
    return Abstract(shape, ((1, e),))


def _join_pieces(shape: Shape, axis: int, parts: Iterable[tuple[int, Expr]]) -> Abstract:
    several = tuple(parts)
    if len({e for _, e in several}) == 1:
        return _single_piece(shape, several[0][1])
    return Abstract(shape, several, axis)


def _map_pieces(a: Abstract, shape: Shape, function: Callable[[Expr], Expr]) -> Abstract:
    return _join_pieces(shape, a.axis, ((n, function(e)) for n, e in a.pieces))


def _is_divided(a: Abstract, axis: int) -> bool:
    return not a.single and a.axis == axis


def _common_refinement(a: Pieces, b: Pieces) -> list[tuple[int, Expr, Expr]]:
    """Return the common refinement of two divisions of one axis."""
    out: list[tuple[int, Expr, Expr]] = []
    left, right = list(reversed(a)), list(reversed(b))
    while left and right:
        (n, x), (m, y) = left.pop(), right.pop()
        step = min(n, m)
        out.append((step, x, y))
        if n > step:
            left.append((n - step, x))
        if m > step:
            right.append((m - step, y))
    return out


def _broadcast(a: Shape, b: Shape) -> Shape:
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


class AbstractDomain:
    """The abstract domain of terms for the interpreter."""

    @property
    def keeps(self) -> frozenset[OpKind]:
        """Return the operators that are not expanded: silu is opaque; softmax is expanded."""
        return frozenset({OpKind.SILU})

    def unary(self, kind: OpKind, a: Abstract) -> Abstract:
        """Return a product for square, a quotient for reciprocal, and an opaque function for other operators."""
        if kind is OpKind.SQUARE:
            return _map_pieces(a, a.shape, lambda e: mul(e, e))
        if kind is OpKind.RECIPROCAL:
            return _map_pieces(a, a.shape, lambda e: div(const(ONE), e))
        return _map_pieces(a, a.shape, lambda e: unary(kind.value, e))

    def binary(self, kind: OpKind, a: Abstract, b: Abstract) -> Abstract:
        """Return the operator applied piece by piece, if both are divided alike or one is not divided.

        Operands divided along different axes are taken as one piece, except along one of the axes.
        """
        shape = _broadcast(a.shape, b.shape)
        if a.single and b.single:
            return _single_piece(shape, _BINARY[kind](a.term, b.term))
        axis = b.axis if a.single else a.axis
        if not a.single and not b.single and a.axis != b.axis:
            a = _single_piece(a.shape, a.term)
            axis = b.axis
        both = _common_refinement(a.along(axis, shape[axis]), b.along(axis, shape[axis]))
        return _join_pieces(shape, axis, ((n, _BINARY[kind](x, y)) for n, x, y in both))

    def matmul(self, a: Abstract, b: Abstract, inner: int) -> Abstract:
        """Return sum(k, mul(a, b)), or a sum of such terms over the pieces of the contracted axis."""
        rank = len(a.shape)
        shape = (*_broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
        rows = () if a.single or a.axis == rank - 1 else a.pieces
        columns = () if b.single or b.axis == rank - 2 else b.pieces
        if rows and columns:
            columns, b = (), _single_piece(b.shape, b.term)
        left, right = a.along(rank - 1, inner), b.along(rank - 2, inner)
        if rows:
            return _join_pieces(shape, a.axis, ((n, _contract(((inner, e),), right)) for n, e in rows))
        if columns:
            return _join_pieces(shape, b.axis, ((n, _contract(left, ((inner, e),))) for n, e in columns))
        return _single_piece(shape, _contract(left, right))

    def scale(self, a: Abstract, factor: Fraction) -> Abstract:
        """Return mul(constant, a)."""
        return _map_pieces(a, a.shape, lambda e: mul(const(factor), e))

    def offset(self, a: Abstract, constant: Fraction) -> Abstract:
        """Return add(a, constant)."""
        return _map_pieces(a, a.shape, lambda e: add(e, const(constant)))

    def sum(self, a: Abstract, axis: int, extent: int, kept: int) -> Abstract:
        """Return the expression of a sum of ``extent / kept`` elements."""
        shape = _with_extent(a.shape, axis, kept)
        if not _is_divided(a, axis):
            return _map_pieces(a, shape, lambda e: sum_(extent // kept, e))
        if all(n % kept == 0 for n, _ in a.pieces):
            return _single_piece(shape, reduce(add, (sum_(n // kept, e) for n, e in a.pieces)))
        return _single_piece(shape, sum_(extent // kept, a.term))

    def ordered(self, kind: OpKind, operands: tuple[Abstract, ...], axis: int, extent: int) -> tuple[Abstract, ...]:
        """Return opaque maxima, rescaling factors and rescaled sums.

        The max of a max is one max; a rescaling factor is exp(m - m), for any two iterations.
        """
        a = operands[0]
        if _is_divided(a, axis):
            a = _single_piece(a.shape, a.term)
        shape = _with_extent(a.shape, axis, 1)
        if kind is OpKind.ACCUM_RESCALED_SUM:
            rescaled = self.binary(OpKind.MUL, a, operands[1])
            return (self.sum(rescaled, axis, extent, 1),)
        largest = _map_pieces(a, shape, _max)
        if kind is OpKind.MAX:
            return (largest,)
        assert kind is OpKind.RUNNING_MAX
        return largest, self.unary(OpKind.EXP, self.binary(OpKind.SUB, largest, largest))

    def softmax(self, a: Abstract, axis: int, extent: int) -> Abstract:
        """Return exp(a) over its sum; the interpreter expands softmax itself, so this is for other callers."""
        e = self.unary(OpKind.EXP, a)
        return self.binary(OpKind.DIV, e, self.sum(e, axis, extent, 1))

    def reshape(self, a: Abstract, shape: Shape) -> Abstract:
        """Return the same terms; pieces stay apart if their axis survives."""
        if a.single:
            return structs.replace(a, shape=shape)
        before, extent = prod(a.shape[: a.axis]), a.shape[a.axis]
        for axis, n in enumerate(shape):
            if n == extent and prod(shape[:axis]) == before:
                return Abstract(shape, a.pieces, axis)
        return _single_piece(shape, a.term)

    def transpose(self, a: Abstract, perm: tuple[int, ...]) -> Abstract:
        """Return the value with permuted dims; expressions name no indices, so they stay the same."""
        return Abstract(tuple(a.shape[i] for i in perm), a.pieces, 0 if a.single else perm.index(a.axis))

    def tiled(self, a: Abstract, axis: int) -> Abstract:
        """Return the value as one piece if it is divided along the axis: its pieces cannot be told apart any longer."""
        return _single_piece(a.shape, a.term) if _is_divided(a, axis) else a

    def concat(self, a: Abstract, b: Abstract, axis: int) -> Abstract:
        """Return the concatenation: the pieces of a, then of b, along the axis; equal terms become one piece."""
        parts = [*self._along(a, axis), *self._along(b, axis)]
        return _join_pieces(_with_extent(a.shape, axis, a.shape[axis] + b.shape[axis]), axis, parts)

    def slice(self, a: Abstract, axis: int, start: int, stop: int) -> Abstract:
        """Return the same terms; of several pieces along the axis, those that the slice overlaps."""
        shape = _with_extent(a.shape, axis, stop - start)
        if not _is_divided(a, axis):
            return structs.replace(a, shape=shape)
        kept: list[tuple[int, Expr]] = []
        first = 0
        for n, e in a.pieces:
            met = min(stop, first + n) - max(start, first)
            first += n
            if met > 0:
                kept.append((met, e))
        return _join_pieces(shape, axis, kept)

    def padded(self, a: Abstract, axis: int, before: int, after: int) -> Abstract:
        """Return the same terms: zeros count as elements of the adjacent pieces."""
        (n, first), *rest = self._along(a, axis)
        *rest, (m, last) = [(n + before, first), *rest]
        shape = _with_extent(a.shape, axis, before + a.shape[axis] + after)
        return _join_pieces(shape, axis, [*rest, (m + after, last)])

    def repeat(self, a: Abstract, axis: int, times: int) -> Abstract:
        """Return the value with a longer axis; expressions name no indices, so they stay the same."""
        return structs.replace(a, shape=_with_extent(a.shape, axis, times))

    @staticmethod
    def _along(a: Abstract, axis: int) -> Pieces:
        return a.along(axis, a.shape[axis])


def _contract(left: Pieces, right: Pieces) -> Expr:
    return reduce(add, (sum_(n, mul(x, y)) for n, x, y in _common_refinement(left, right)))


def _with_extent(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _sub(a: Expr, b: Expr) -> Expr:
    return add(a, mul(const(MINUS_ONE), b))


def _function_of_sum(kind: OpKind) -> Callable[[Expr, Expr], Expr]:
    """Return a function of two terms: the opaque function of their sum, named like an operator."""
    return lambda a, b: unary(kind.value, add(a, b))


_BINARY: Final[dict[OpKind, Callable[[Expr, Expr], Expr]]] = {
    OpKind.ADD: add,
    OpKind.SUB: _sub,
    OpKind.MUL: mul,
    OpKind.DIV: div,
    OpKind.DIV_NO_NAN: div,
    **{kind: _function_of_sum(kind) for kind in (OpKind.MAXIMUM, OpKind.MINIMUM)},
    **{kind: _function_of_sum(kind) for kind in (OpKind.SELECT, OpKind.EQ, OpKind.LT, OpKind.LE)},
}


def _max(e: Expr) -> Expr:
    match e:
        case Unary("max", _):
            return e
    return unary("max", e)


def program_inputs(graph: KernelGraph) -> tuple[Abstract, ...]:
    """Return one variable per input, named like it.

    Raises:
        GraphError: Two inputs have one name, so their terms would be equal.
    """
    names = [source.name for source in graph.inputs]
    if len(set(names)) != len(names):
        raise GraphError(f"expected distinct input names, got {names}")
    return tuple(_single_piece(source.tensor.shape, var(source.name)) for source in graph.inputs)


_Out = TypeVar("_Out")


def _trace(graph: KernelGraph, view: Callable[[Abstract], _Out]) -> Trace[_Out]:
    domain: AbstractDomain = AbstractDomain()
    found = trace(graph, program_inputs(graph), domain)
    blocks = {index: tuple(view(a) for a in inside) for index, inside in found.blocks.items()}
    tensors = tuple(view(a) for a in found.tensors)
    return Trace(tensors, MappingProxyType(blocks), tuple(view(a) for a in found.outputs))


def expressions(graph: KernelGraph) -> Trace[Expr]:
    """Return the abstract expression of every tensor of a graph.

    Raises:
        GraphError: The graph is not well-formed, or two inputs share a name.
    """
    return _trace(graph, lambda a: a.term)


def pieces(graph: KernelGraph) -> Trace[tuple[Expr, ...]]:
    """Return, for every tensor, the terms of its pieces: one term, or several for concatenations.

    The tensor is useful for a target if these terms are contained in it.

    Sound: a tensor may be pruned only if one of these is refuted; the sum that ``expressions`` shows for a
    concatenation need not be part of a target that the concatenation is good for.
    """
    return _trace(graph, lambda a: tuple(e for _, e in a.pieces))
