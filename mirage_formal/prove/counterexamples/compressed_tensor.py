"""Compressed tensors of any size: each axis is partitioned into classes of coordinates at which the tensor is constant.

An input that has a default and few other elements has few classes, and so have all tensors that are computed from it,
however large they are. A sum over an axis is a sum over its classes, each times the number of its coordinates. Nothing
is approximated: the classes of an element's coordinates determine it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.semantics.batched_reference import BatchedDomain
from mirage_formal.semantics.interpreter import evaluate
from mirage_formal.semantics.value_domain import KEEPABLE, LOOP_AXIS, UntiledDomain

#: Classes of the coordinates of one axis, numbered from 0 without gaps; None is one class.
Labels = NDArray[np.int64] | None
#: Coordinates of several axes that a reshape lays one after another, and values of one tensor, at most.
MAX_COORDINATES: Final = 1 << 24
MAX_VALUES: Final = 1 << 23


class TooManyClasses(Exception):
    """A tensor is as large as an uncompressed one, because it has too many different values."""


@dataclass(frozen=True, slots=True)
class CompressedTensor:
    """A tensor [trials, ...]: element (i, j, ...) is ``values[:, labels[0][i], labels[1][j], ...]``."""

    shape: Shape
    labels: tuple[Labels, ...]
    values: NDArray[Any]


class CompressedDomain(UntiledDomain[CompressedTensor]):
    """A domain of compressed tensors for the interpreter.

    Sound: every operator is applied to values whose classes are those of a common refinement, so that each value of the
    result is the operator's at every coordinate of its class; sums count every coordinate.

    Args:
        elements: The domain that computes on the values.
    """

    keeps: Final = KEEPABLE

    def __init__(self, elements: BatchedDomain) -> None:
        self.elements = elements

    # --- elementwise ---------------------------------------------------------------------------------------------

    def unary(self, kind: OpKind, a: CompressedTensor) -> CompressedTensor:
        """Implement ``Domain.unary``."""
        return CompressedTensor(a.shape, a.labels, self.elements.unary(kind, a.values))

    def scale(self, a: CompressedTensor, factor: Fraction) -> CompressedTensor:
        """Implement ``Domain.scale``."""
        return CompressedTensor(a.shape, a.labels, self.elements.scale(a.values, factor))

    def offset(self, a: CompressedTensor, constant: Fraction) -> CompressedTensor:
        """Implement ``Domain.offset``."""
        return CompressedTensor(a.shape, a.labels, self.elements.offset(a.values, constant))

    def binary(self, kind: OpKind, a: CompressedTensor, b: CompressedTensor) -> CompressedTensor:
        """Implement ``Domain.binary``."""
        shape, labels, x, y = refine_pair(a, b, range(len(a.shape)))
        return CompressedTensor(shape, labels, self.elements.binary(kind, x, y))

    # --- sums ----------------------------------------------------------------------------------------------------

    def matmul(self, a: CompressedTensor, b: CompressedTensor, inner: int) -> CompressedTensor:
        """Implement ``Domain.matmul``."""
        rank = len(a.shape)
        shape, labels, x, y = refine_pair(a, b, range(rank - 2))
        common, left, right = _common_refinement(a.labels[-1], b.labels[-2])
        x, y = _take_classes(x, rank, left), _take_classes(y, rank - 1, right)
        number = _class_count(common)
        x = np.broadcast_to(x, (*x.shape[:-1], number)) * _counts(inner, common, x.dtype)
        y = np.broadcast_to(y, (*y.shape[:-2], number, y.shape[-1]))
        _check_size((*(max(m, n) for m, n in zip(x.shape[:-2], y.shape[:-2], strict=True)), x.shape[-2], y.shape[-1]))
        found = self.elements.matmul(x, y, inner)
        lead = tuple(labels[: rank - 2])
        return CompressedTensor(
            (*shape[: rank - 2], a.shape[-2], b.shape[-1]), (*lead, a.labels[-2], b.labels[-1]), found
        )

    def sum(self, a: CompressedTensor, axis: int, extent: int, kept: int) -> CompressedTensor:
        """Implement ``Domain.sum``."""
        if kept > 1:
            a = self.reshape(a, (*a.shape[:axis], extent // kept, kept, *a.shape[axis + 1 :]))
            found = self.sum(a, axis, extent // kept, 1)
            return self.reshape(found, (*a.shape[:axis], kept, *a.shape[axis + 2 :]))
        counts = _shape_along(_counts(extent, a.labels[axis], a.values.dtype), axis + 1, a.values.ndim)
        weighed = a.values * counts
        return _reduced_tensor(a, axis, self.elements.sum(weighed, axis, weighed.shape[axis + 1], 1))

    def softmax(self, a: CompressedTensor, axis: int, extent: int) -> CompressedTensor:
        """Implement ``Domain.softmax``."""
        most = a.values.max(axis=axis + 1, keepdims=True)
        above = self.unary(
            OpKind.EXP, CompressedTensor(a.shape, a.labels, self.elements.binary(OpKind.SUB, a.values, most))
        )
        return self.binary(OpKind.DIV, above, self.sum(above, axis, extent, 1))

    def ordered(
        self, kind: OpKind, operands: tuple[CompressedTensor, ...], axis: int, extent: int
    ) -> tuple[CompressedTensor, ...]:
        """Implement ``Domain.ordered``."""
        if kind is OpKind.MAX:
            (a,) = operands
            return (_reduced_tensor(a, axis, a.values.max(axis=axis + 1, keepdims=True)),)
        # What is carried from one iteration to the next depends on each of them.
        each = [_expand_axis(operand, LOOP_AXIS) for operand in operands]
        if kind is OpKind.RUNNING_MAX:
            found = self.elements.ordered(kind, (each[0].values,), axis, extent)
            return tuple(_reduced_tensor(each[0], axis, values) for values in found)
        assert kind is OpKind.ACCUM_RESCALED_SUM, kind
        shape, labels, x, factor = refine_pair(each[0], each[1], range(len(each[0].shape)))
        classes = tuple(map(_class_count, labels))
        x = np.broadcast_to(x, (len(x), *classes))
        factor = np.broadcast_to(factor, (len(factor), *classes))
        (state,) = self.elements.ordered(kind, (x, factor), axis, extent)
        return (_reduced_tensor(CompressedTensor(shape, labels, x), axis, state),)

    # --- layout --------------------------------------------------------------------------------------------------

    def reshape(self, a: CompressedTensor, shape: Shape) -> CompressedTensor:
        """Implement ``Domain.reshape``."""
        labels: list[Labels] = []
        values, at = a.values, 1
        for olds, news in axis_groups(a.shape, shape):
            inside = [a.labels[i] for i in olds]
            flat = _merge_classes([a.shape[i] for i in olds], inside)
            number = _class_count(flat)
            values = values.reshape(*values.shape[:at], number, *values.shape[at + len(olds) :])
            cut, taken = _split_classes([shape[i] for i in news], flat)
            values = np.take(values, taken.reshape(-1), axis=at)
            values = values.reshape((*values.shape[:at], *taken.shape, *values.shape[at + 1 :]))
            _check_size(values.shape)
            labels += cut
            at += len(news)
        return CompressedTensor(shape, tuple(labels), values)

    def transpose(self, a: CompressedTensor, perm: tuple[int, ...]) -> CompressedTensor:
        """Implement ``Domain.transpose``."""
        values = a.values.transpose((0, *(i + 1 for i in perm)))
        return CompressedTensor(tuple(a.shape[i] for i in perm), tuple(a.labels[i] for i in perm), values)

    def concat(self, a: CompressedTensor, b: CompressedTensor, axis: int) -> CompressedTensor:
        """Implement ``Domain.concat``."""
        shape, labels, x, y = refine_pair(a, b, [i for i in range(len(a.shape)) if i != axis])
        whole = [_class_count(item) for item in labels]
        parts = []
        for item, values in ((a, x), (b, y)):
            size = (len(values), *whole[:axis], _class_count(item.labels[axis]), *whole[axis + 1 :])
            parts.append(np.broadcast_to(values, size))
        along = [_class_numbers(item.shape[axis], item.labels[axis]) for item in (a, b)]
        along[1] = along[1] + _class_count(a.labels[axis])
        extent = a.shape[axis] + b.shape[axis]
        return CompressedTensor(
            (*shape[:axis], extent, *shape[axis + 1 :]),
            (*labels[:axis], np.concatenate(along), *labels[axis + 1 :]),
            np.concatenate(parts, axis=axis + 1),
        )

    def slice(self, a: CompressedTensor, axis: int, start: int, stop: int) -> CompressedTensor:
        """Implement ``Domain.slice``."""
        shape, held = (*a.shape[:axis], stop - start, *a.shape[axis + 1 :]), a.labels[axis]
        if held is None:
            return CompressedTensor(shape, a.labels, a.values)
        chosen, labels = np.unique(held[start:stop], return_inverse=True)
        own = None if len(chosen) == 1 else labels.reshape(-1).astype(np.int64)
        return CompressedTensor(
            shape, (*a.labels[:axis], own, *a.labels[axis + 1 :]), np.take(a.values, chosen, axis=axis + 1)
        )

    def repeat(self, a: CompressedTensor, axis: int, times: int) -> CompressedTensor:
        """Implement ``Domain.repeat``."""
        return CompressedTensor((*a.shape[:axis], times, *a.shape[axis + 1 :]), a.labels, a.values)


def run_compressed(
    graph: KernelGraph, inputs: Sequence[CompressedTensor], elements: BatchedDomain
) -> tuple[CompressedTensor, ...]:
    """Return the outputs of a µGraph on compressed inputs, in the float type of their values.

    Overflow, division by zero and roots of negative numbers give inf or nan without a warning.

    Raises:
        TooManyClasses: A tensor on the way has too many different values.
        GraphError: The graph is not well-formed.
    """
    with np.errstate(all="ignore"):
        return evaluate(graph, inputs, CompressedDomain(elements))


def refine_pair(
    a: CompressedTensor, b: CompressedTensor, axes: Sequence[int]
) -> tuple[Shape, tuple[Labels, ...], NDArray[Any], NDArray[Any]]:
    """Return two tensors over the coarsest common refinement of their classes along these axes.

    Returns:
        Shape and labels of their broadcast, and the values of each; an axis that is one class broadcasts. Other axes
        are those of ``a``.
    """
    shape, labels = list(a.shape), list(a.labels)
    x, y = a.values, b.values
    for axis in axes:
        shape[axis] = max(a.shape[axis], b.shape[axis])
        common, left, right = _common_refinement(a.labels[axis], b.labels[axis])
        x, y = _take_classes(x, axis + 1, left), _take_classes(y, axis + 1, right)
        labels[axis] = common
    _check_size((len(x), *(_class_count(item) for item in labels)))
    return tuple(shape), tuple(labels), x, y


def _common_refinement(a: Labels, b: Labels) -> tuple[Labels, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Return the common refinement of two partitions, and for each of its classes the class in either.

    Classes are None if the partitions are equal, or if one is a single class, which broadcasts.
    """
    if a is None or b is None:
        return (b if a is None else a), None, None
    if a is b or np.array_equal(a, b):
        return a, None, None
    number = _class_count(b)
    pairs, labels = np.unique(a * number + b, return_inverse=True)
    return labels.reshape(-1).astype(np.int64), pairs // number, pairs % number


def _take_classes(values: NDArray[Any], axis: int, chosen: NDArray[np.int64] | None) -> NDArray[Any]:
    return values if chosen is None else np.take(values, chosen, axis=axis)


def _class_count(labels: Labels) -> int:
    return 1 if labels is None else int(labels.max()) + 1


def _class_numbers(extent: int, labels: Labels) -> NDArray[np.int64]:
    return np.zeros(extent, dtype=np.int64) if labels is None else labels


def _counts(extent: int, labels: Labels, dtype: Any) -> NDArray[Any]:
    counts = np.array([extent]) if labels is None else np.bincount(labels)
    return counts.astype(dtype)


def _shape_along(numbers: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    return numbers.reshape([-1 if i == axis else 1 for i in range(rank)])


def _check_size(shape: Sequence[int]) -> None:
    if prod(shape) > MAX_VALUES:
        raise TooManyClasses


def _reduced_tensor(a: CompressedTensor, axis: int, values: NDArray[Any]) -> CompressedTensor:
    labels = (*a.labels[:axis], None, *a.labels[axis + 1 :])
    return CompressedTensor((*a.shape[:axis], 1, *a.shape[axis + 1 :]), labels, values)


def _expand_axis(a: CompressedTensor, axis: int) -> CompressedTensor:
    """Return the same tensor with a class for each coordinate of an axis."""
    extent = a.shape[axis]
    if extent == 1:
        return a
    values = np.take(a.values, _class_numbers(extent, a.labels[axis]), axis=axis + 1)
    _check_size(values.shape)
    return CompressedTensor(a.shape, (*a.labels[:axis], np.arange(extent), *a.labels[axis + 1 :]), values)


def _merge_classes(extents: Sequence[int], labels: Sequence[Labels]) -> Labels:
    """Return the classes of several axes merged into one: those of every combination, in row-major order."""
    if all(item is None for item in labels):
        return None
    if prod(extents) > MAX_COORDINATES:
        raise TooManyClasses
    flat = np.zeros(1, dtype=np.int64)
    for extent, item in zip(extents, labels, strict=True):
        flat = (flat[:, None] * _class_count(item) + _class_numbers(extent, item)[None, :]).reshape(-1)
    return flat


def _split_classes(extents: Sequence[int], flat: Labels) -> tuple[list[Labels], NDArray[np.int64]]:
    """Return the classes of the axes into which one axis is split, and the class of the one for each combination."""
    if flat is None:
        return [None] * len(extents), np.zeros((1,) * len(extents), dtype=np.int64)
    table = flat.reshape(tuple(extents))
    cut: list[Labels] = []
    for axis in range(len(extents)):
        slices = np.moveaxis(table, axis, 0).reshape(table.shape[axis], -1)
        first, labels = _distinct_rows(slices)
        table = np.take(table, first, axis=axis)
        cut.append(None if len(first) == 1 else labels)
    return cut, table


def _distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of the first of each set of equal rows, and the set of every row."""
    # Rows with one sum are nearly always equal; where they are not, rows are compared as they are.
    sums = rows @ np.random.default_rng(1).integers(1, 1 << 62, rows.shape[1])
    _, first, labels = np.unique(sums, return_index=True, return_inverse=True)
    if not np.array_equal(rows[first[labels]], rows):
        _, first, labels = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, labels.reshape(-1).astype(np.int64)


def axis_groups(old: Shape, new: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """Yield minimal runs of old and new axes with equally many elements, in order; remaining axes have one element."""
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news, a, b = list[int](), list[int](), 1, 1
        while not (olds or news) or a != b:
            if i < len(old) and (a <= b or j == len(new)):
                olds.append(i)
                a, i = a * old[i], i + 1
            else:
                news.append(j)
                b, j = b * new[j], j + 1
        yield olds, news


__all__ = ["CompressedDomain", "CompressedTensor", "TooManyClasses", "axis_groups", "refine_pair", "run_compressed"]
