"""The index-exact domain: the meaning of a µGraph as exact terms, with concatenations as pieces.

A value is a grid of pieces: per axis the lengths of its segments, and a tensor for every combination. Without
concatenation there is one piece. Pieces are combined segment by segment after cutting both operands to common segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, product
from math import prod

from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.ops import OpKind
from mirage_formal.ir.types import Shape
from mirage_formal.semantics.domain import LOOP_AXIS
from mirage_formal.semantics.index.tensors import Tensor, Tensors
from mirage_formal.semantics.index.terms import Stuck
from mirage_formal.semantics.walk import evaluate

#: Lengths of the segments of one axis.
Lengths = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A grid of tensors: ``lengths`` per axis, ``parts`` in row-major order."""

    lengths: tuple[Lengths, ...]
    parts: tuple[Tensor, ...]

    @property
    def shape(self) -> Shape:
        return tuple(sum(lengths) for lengths in self.lengths)


def whole(shape: Shape, tensor: Tensor) -> Pieces:
    """A value of one piece."""
    return Pieces(tuple((n,) for n in shape), (tensor,))


def common(a: Lengths, b: Lengths) -> Lengths:
    """The coarsest segments that both refine to."""
    ends = sorted({*accumulate(a), *accumulate(b)})
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


class Exact:
    """The domain of exact terms for the walk; one instance holds the terms and steps of one proof.

    Sound: a concatenation is its operands side by side, and every operator is applied to the pieces of a common cut.
    """

    keeps: frozenset[OpKind] = frozenset()

    def __init__(self) -> None:
        self.tensors = Tensors()

    def input(self, number: int, shape: Shape) -> Pieces:
        """An input of the program."""
        return whole(shape, self.tensors.input(number, shape))

    # --- the domain --------------------------------------------------------------------------------------------

    def unary(self, kind: OpKind, a: Pieces) -> Pieces:
        return Pieces(a.lengths, tuple(self.tensors.unary(kind, part) for part in a.parts))

    def binary(self, kind: OpKind, a: Pieces, b: Pieces) -> Pieces:
        a, b = self._aligned(a, b, range(len(a.lengths)))
        lengths = tuple(x if sum(x) > 1 else y for x, y in zip(a.lengths, b.lengths, strict=True))
        parts = tuple(
            self.tensors.binary(kind, self._at(a, where), self._at(b, where)) for where in self._places(lengths)
        )
        return Pieces(lengths, parts)

    def matmul(self, a: Pieces, b: Pieces, inner: int) -> Pieces:
        last = len(a.lengths) - 1
        a, b = self._aligned(a, b, range(last - 1))
        shared = common(a.lengths[last], b.lengths[last - 1])
        a, b = self._refined(a, last, shared), self._refined(b, last - 1, shared)
        lead = tuple(x if sum(x) > 1 else y for x, y in zip(a.lengths[: last - 1], b.lengths[: last - 1], strict=True))
        lengths = (*lead, a.lengths[last - 1], b.lengths[last])
        parts = []
        for *before, i, j in self._places(lengths):
            terms = (
                self.tensors.matmul(self._at(a, (*before, i, k)), self._at(b, (*before, k, j)))
                for k in range(len(shared))
            )
            parts.append(reduce(self._plus, terms))
        return Pieces(lengths, tuple(parts))

    def scale(self, a: Pieces, factor: Fraction) -> Pieces:
        return Pieces(a.lengths, tuple(self.tensors.scale(part, factor) for part in a.parts))

    def offset(self, a: Pieces, constant: Fraction) -> Pieces:
        return Pieces(a.lengths, tuple(self.tensors.offset(part, constant) for part in a.parts))

    def sum(self, a: Pieces, axis: int, extent: int, kept: int) -> Pieces:
        if kept > 1 and len(a.lengths[axis]) > 1:
            raise Stuck("a fold of a concatenated axis")
        lengths = (*a.lengths[:axis], (kept,), *a.lengths[axis + 1 :])
        parts = []
        for where in self._places(lengths):
            terms = (
                self.tensors.fold(self._at(a, (*where[:axis], k, *where[axis + 1 :])), axis, kept)
                for k in range(len(a.lengths[axis]))
            )
            parts.append(reduce(self._plus, terms))
        return Pieces(lengths, tuple(parts))

    def ordered(self, kind: OpKind, operands: tuple[Pieces, ...], axis: int, extent: int) -> tuple[Pieces, ...]:
        if any(len(lengths) > 1 for a in operands for lengths in a.lengths):
            raise Stuck("a maximum of a concatenated tensor")
        a = operands[0]
        lengths = (*a.lengths[:axis], (1,), *a.lengths[axis + 1 :])
        match kind:
            case OpKind.MAX:
                return (Pieces(lengths, (self.tensors.largest(a.parts[0], axis),)),)
            case OpKind.RUNNING_MAX:
                largest, carry = self.tensors.running(a.parts[0], axis)
                return Pieces(lengths, (largest,)), Pieces(lengths, (carry,))
            case OpKind.ACCUM_RESCALED_SUM:
                return (self._rescaled(a, operands[1]),)
            case _:
                raise AssertionError(f"{kind} needs no order")

    def _rescaled(self, x: Pieces, carry: Pieces) -> Pieces:
        lengths = [a if sum(a) > 1 else b for a, b in zip(x.lengths, carry.lengths, strict=True)]
        lengths[LOOP_AXIS] = (1,)
        return Pieces(tuple(lengths), (self.tensors.rescaled(x.parts[0], carry.parts[0]),))

    def softmax(self, a: Pieces, axis: int, extent: int) -> Pieces:
        raise AssertionError("softmax is expanded by the walk")

    def reshape(self, a: Pieces, shape: Shape) -> Pieces:
        lengths = tuple((n,) for n in shape) if len(a.parts) == 1 else _regrouped(a.lengths, shape)
        places = self._places(lengths)
        parts = []
        for part, where in zip(a.parts, places, strict=True):
            size = tuple(lengths[axis][k] for axis, k in enumerate(where))
            parts.append(self.tensors.reshape(part, size))
        return Pieces(lengths, tuple(parts))

    def transpose(self, a: Pieces, perm: tuple[int, ...]) -> Pieces:
        lengths = tuple(a.lengths[i] for i in perm)
        back = [perm.index(i) for i in range(len(perm))]
        parts = tuple(
            self.tensors.transpose(self._at(a, tuple(where[i] for i in back)), perm) for where in self._places(lengths)
        )
        return Pieces(lengths, parts)

    def concat(self, a: Pieces, b: Pieces, axis: int) -> Pieces:
        a, b = self._aligned(a, b, [i for i in range(len(a.lengths)) if i != axis])
        lengths = (*a.lengths[:axis], (*a.lengths[axis], *b.lengths[axis]), *a.lengths[axis + 1 :])
        first = len(a.lengths[axis])
        parts = []
        for where in self._places(lengths):
            k = where[axis]
            source, at = (a, k) if k < first else (b, k - first)
            parts.append(self._at(source, (*where[:axis], at, *where[axis + 1 :])))
        return Pieces(lengths, tuple(parts))

    def repeat(self, a: Pieces, axis: int, times: int) -> Pieces:
        lengths = (*a.lengths[:axis], (times,), *a.lengths[axis + 1 :])
        return Pieces(lengths, tuple(self.tensors.repeat(part, axis, times) for part in a.parts))

    # --- pieces ------------------------------------------------------------------------------------------------

    def _plus(self, a: Tensor, b: Tensor) -> Tensor:
        return self.tensors.binary(OpKind.ADD, a, b)

    @staticmethod
    def _places(lengths: Sequence[Lengths]) -> Iterator[tuple[int, ...]]:
        return product(*(range(len(segments)) for segments in lengths))

    @staticmethod
    def _at(a: Pieces, where: Sequence[int]) -> Tensor:
        """The piece at a place; an axis of one segment broadcasts."""
        number = 0
        for k, segments in zip(where, a.lengths, strict=True):
            number = number * len(segments) + (k if len(segments) > 1 else 0)
        return a.parts[number]

    def _aligned(self, a: Pieces, b: Pieces, axes: Sequence[int]) -> tuple[Pieces, Pieces]:
        """Both operands cut to common segments along axes, except where one has extent 1."""
        for axis in axes:
            x, y = a.lengths[axis], b.lengths[axis]
            if x != y and sum(x) > 1 and sum(y) > 1:
                segments = common(x, y)
                a, b = self._refined(a, axis, segments), self._refined(b, axis, segments)
        return a, b

    def _refined(self, a: Pieces, axis: int, segments: Lengths) -> Pieces:
        """A value with finer segments along an axis."""
        if a.lengths[axis] == segments:
            return a
        lengths = (*a.lengths[:axis], segments, *a.lengths[axis + 1 :])
        ends = list(accumulate(a.lengths[axis]))
        starts = [0, *accumulate(segments)]
        parts = []
        for where in self._places(lengths):
            start, length = starts[where[axis]], segments[where[axis]]
            source = next(i for i, end in enumerate(ends) if start < end)
            piece = self._at(a, (*where[:axis], source, *where[axis + 1 :]))
            offset = start - (ends[source - 1] if source else 0)
            parts.append(self.tensors.slice(piece, axis, offset, length))
        return Pieces(lengths, tuple(parts))

    def compared(self, a: Pieces, b: Pieces) -> list[tuple[Tensor, Tensor]]:
        """Pairs of pieces of two values of one shape, with the digits of outputs."""
        for axis in range(len(a.lengths)):
            segments = common(a.lengths[axis], b.lengths[axis])
            a, b = self._refined(a, axis, segments), self._refined(b, axis, segments)
        final = self.tensors.final
        return [(final(x), final(y)) for x, y in zip(a.parts, b.parts, strict=True)]


def _regrouped(old: tuple[Lengths, ...], shape: Shape) -> tuple[Lengths, ...]:
    """Segments of a reshape: a segmented axis must stay the outermost one of its group."""
    lengths: list[Lengths] = []
    i = j = 0
    while i < len(old) or j < len(shape):
        first_i, first_j = i, j
        left = right = 1
        while (i, j) == (first_i, first_j) or left != right:
            if left <= right and i < len(old):
                left *= sum(old[i])
                i += 1
            else:
                right *= shape[j]
                j += 1
        while i < len(old) and sum(old[i]) == 1:
            i += 1
        while j < len(shape) and shape[j] == 1:
            j += 1
        lengths += _group(old[first_i:i], shape[first_j:j])
    return tuple(lengths)


def _group(old: tuple[Lengths, ...], shape: Shape) -> list[Lengths]:
    out: list[Lengths] = [(n,) for n in shape]
    segmented = [axis for axis, segments in enumerate(old) if len(segments) > 1]
    if not segmented:
        return out
    axis = segmented[0]
    below = prod(sum(segments) for segments in old[axis + 1 :])
    first = next(k for k, n in enumerate(shape) if n > 1)
    unit = prod(shape[first + 1 :])
    outer = all(sum(segments) == 1 for segments in old[:axis])
    if len(segmented) > 1 or not outer or any(n * below % unit for n in old[axis]):
        raise Stuck("a reshape regroups the segments of a concatenated axis")
    out[first] = tuple(n * below // unit for n in old[axis])
    return out


def elements(domain: Exact, graph: KernelGraph, inputs: Sequence[Pieces]) -> tuple[Pieces, ...]:
    """The outputs of a program as exact terms.

    Raises:
        Stuck: Some index does not nest, or an operator has no exact meaning.
    """
    return evaluate(graph, inputs, domain)
