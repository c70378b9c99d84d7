"""Sparse inputs of any size, with a default and a few other elements, and the outputs of graphs on them.

Tensors are compressed by the classes of their coordinates (grouped), so that the cost depends on the number of elements
that differ from their default and not on extents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mirage_formal.graph.counterexample import Counterexample, DefaultValues
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DTensor
from mirage_formal.prove.counterexamples.compressed_tensor import CompressedTensor, Labels, refine_pair, run_compressed
from mirage_formal.prove.counterexamples.element import Box, evaluate_element
from mirage_formal.prove.counterexamples.rounding_bounds import BoundedDomain, without_error
from mirage_formal.semantics.batched_reference import BatchedDomain


class Trial(Struct, frozen=True):
    """Trial inputs: a default per input, and values by position in the concatenation of all inputs."""

    fills: tuple[DefaultValues, ...]
    cells: Mapping[int, float]

    @property
    def cost(self) -> int:
        """Return the entries and defaults that a reader has to look at."""
        return len(self.cells) + 2 * sum(fill != DefaultValues(0, 0) for fill in self.fills)


class InputPositions:
    """The positions in the concatenation of all inputs."""

    def __init__(self, tensors: Sequence[DTensor]) -> None:
        shapes = [tensor.shape for tensor in tensors]
        self.shapes = tuple(shapes)
        self.masks = tuple(not tensor.dtype.floating for tensor in tensors)
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]

    @property
    def total(self) -> int:
        """Return the number of positions."""
        return self.offsets[-1]

    def locate(self, place: int) -> tuple[int, tuple[int, ...]]:
        """Return the input of a position, and its element."""
        number = next(i for i, end in enumerate(self.offsets[1:]) if place < end)
        index = np.unravel_index(place - self.offsets[number], self.shapes[number])
        return number, tuple(int(i) for i in index)

    def default(self, fills: tuple[DefaultValues, ...], place: int) -> int:
        """Return the default value at a position."""
        number, index = self.locate(place)
        return fills[number].odd if sum(index) % 2 else fills[number].even


def make_inputs(places: InputPositions, trials: Sequence[Trial], dtype: Any) -> list[CompressedTensor]:
    """Return the inputs [trials, ...] by classes: elements that some trial changes, and the others by index parity."""
    touched: list[list[set[int]]] = [[set() for _ in shape] for shape in places.shapes]
    cells = [{place: places.locate(place) for place in trial.cells} for trial in trials]
    for found in cells:
        for number, index in found.values():
            for axis, i in enumerate(index):
                touched[number][axis].add(i)
    made = []
    for number, shape in enumerate(places.shapes):
        even = all(trial.fills[number].even == trial.fills[number].odd for trial in trials)
        axes = [classes(extent, chosen, parity=not even) for extent, chosen in zip(shape, touched[number], strict=True)]
        parity = sum(
            (
                np.reshape(first % 2, [-1 if d == axis else 1 for d in range(len(shape))])
                for axis, (_, first) in enumerate(axes)
            ),
            start=np.zeros((1,) * len(shape), dtype=np.int64),
        )
        values = np.empty((len(trials), *(len(first) for _, first in axes)), dtype=dtype)
        for row, trial, found in zip(values, trials, cells, strict=True):
            fill = trial.fills[number]
            row[...] = np.where(parity % 2 == 0, fill.even, fill.odd)
            for place, (source, index) in found.items():
                if source == number:
                    # Every coordinate that is touched is a class of its own.
                    where = tuple(0 if item is None else item[i] for (item, _), i in zip(axes, index, strict=True))
                    row[where] = trial.cells[place]
        made.append(CompressedTensor(shape, tuple(item for item, _ in axes), values))
    return made


def classes(extent: int, chosen: set[int], *, parity: bool) -> tuple[Labels, NDArray[np.int64]]:
    """Return the labels of one axis, with the first coordinate of every class."""
    numbers = np.arange(extent) % 2 if parity else np.zeros(extent, dtype=np.int64)
    for rank, i in enumerate(sorted(chosen)):
        numbers[i] = 2 + rank
    _, first, labels = np.unique(numbers, return_index=True, return_inverse=True)
    return (None if len(first) == 1 else labels.reshape(-1).astype(np.int64)), first.astype(np.int64)


class OutputPair(Struct, frozen=True):
    """One output of both graphs [trials, classes...], and the first coordinate of each class along every axis."""

    program: NDArray[Any]
    candidate: NDArray[Any]
    first: tuple[NDArray[np.int64], ...]


def run_pair(
    graphs: tuple[KernelGraph, KernelGraph], inputs: Sequence[CompressedTensor], elements: BatchedDomain
) -> list[OutputPair]:
    """Return all outputs of two graphs of equal output shapes, over common classes.

    Raises:
        TooManyClasses: See ``run_compressed``.
    """
    found = []
    outputs = (run_compressed(graph, inputs, elements) for graph in graphs)
    for a, b in zip(*outputs, strict=True):
        shape, labels, x, y = refine_pair(a, b, range(len(a.shape)))
        size = np.broadcast_shapes(x.shape, y.shape)
        first = tuple(_first(item) for item in labels)
        assert len(first) == len(shape)
        found.append(OutputPair(np.broadcast_to(x, size), np.broadcast_to(y, size), first))
    return found


def _first(labels: Labels) -> NDArray[np.int64]:
    if labels is None:
        return np.zeros(1, dtype=np.int64)
    return np.unique(labels, return_index=True)[1].astype(np.int64)


def run_plain(graphs: tuple[KernelGraph, KernelGraph], inputs: Sequence[CompressedTensor]) -> list[OutputPair]:
    """Return all outputs of two graphs."""
    return run_pair(graphs, inputs, BatchedDomain())


def run_with_bounds(graphs: tuple[KernelGraph, KernelGraph], inputs: Sequence[CompressedTensor]) -> list[OutputPair]:
    """Return all outputs [2, classes...] of two graphs for one trial: values, and bounds on their errors."""
    given = [CompressedTensor(item.shape, item.labels, without_error(item.values[0])) for item in inputs]
    return run_pair(graphs, given, BoundedDomain())


def counterexample_element(graph: KernelGraph, found: Counterexample) -> float | None:
    """Return the element that a counterexample names, by the reference; None if it depends on too many elements."""

    def source(number: int, box: Box) -> NDArray[np.float64]:
        fill = found.fills[number]
        parity = np.zeros((1,) * len(box), dtype=np.int64)
        for axis, along in enumerate(box):
            parity = parity + np.reshape(along % 2, [-1 if d == axis else 1 for d in range(len(box))])
        values = np.where(parity % 2 == 0, float(fill.even), float(fill.odd))
        for entry in found.entries:
            if entry.input == number:
                at = [int(np.searchsorted(along, i)) for along, i in zip(box, entry.index, strict=True)]
                if all(k < len(along) and along[k] == i for k, along, i in zip(at, box, entry.index, strict=True)):
                    values[tuple(at)] = entry.value
        return values

    return evaluate_element(graph, source, found.output, found.index)


__all__ = [
    "InputPositions",
    "OutputPair",
    "Trial",
    "classes",
    "counterexample_element",
    "make_inputs",
    "run_plain",
    "run_with_bounds",
]
