"""Evaluators of trial inputs of a program and a candidate: uncompressed, or by classes where that is too large."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, product
from math import ceil, floor
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mirage_formal.graph.counterexample import Counterexample, CounterexampleEntry, DefaultValues
from mirage_formal.graph.graph import KernelGraph, operators
from mirage_formal.graph.ops import ROUNDINGS, OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import output_types
from mirage_formal.prove.counterexamples.compressed_tensor import TooManyClasses
from mirage_formal.prove.counterexamples.rounding_bounds import run_bounded
from mirage_formal.prove.counterexamples.sparse_inputs import (
    InputPositions,
    OutputPair,
    Trial,
    counterexample_element,
    make_inputs,
    run_plain,
    run_with_bounds,
)
from mirage_formal.semantics.batched_reference import run_many
from mirage_formal.semantics.float64_reference import run
from mirage_formal.semantics.working_set import working_set_size
from mirage_formal.support.errors import ShapeError

#: Smallest gap that counts, relative to the largest magnitude of the output.
CLEAR: Final = 1e-6
#: The largest joint error of extended precision and the reference, relative to the gap.
_SHARE: Final = 0.01
#: Smallest gap that counts, relative to the rounding bounds of both sides (bounded).
_SURE: Final = 16.0
#: Outputs below this magnitude are not told apart.
_TINY: Final = 1e-6
#: Trials evaluated for one default in one attempt.
_TRIALS: Final = 48
#: Elements up to which every one may be changed, and how many may be in larger inputs.
_WHOLE: Final = 2048
_CELLS: Final = 256
#: Elements of one evaluation (every partial product of every block and iteration counts) that are written out.
WRITTEN_OUT: Final = 1 << 15
#: Trials that are evaluated at once by classes: those of all of them are put together.
_GROUPED: Final = 8
_ROUNDS: Final = 60
#: The exclusive upper bound on the magnitude of landmarks.
_FAR: Final = 1 << 20


def make_evaluator(program: KernelGraph, candidate: KernelGraph) -> TrialEvaluator:
    """Return the evaluator for two graphs of one interface.

    Raises:
        ShapeError: The graphs have other inputs or outputs.
        GraphError: A graph is not well-formed.
    """
    interfaces = [_interface(graph) for graph in (program, candidate)]
    if interfaces[0] != interfaces[1]:
        raise ShapeError(f"candidate: expected inputs and outputs {interfaces[0]}, got {interfaces[1]}")
    work = max(working_set_size(program), working_set_size(candidate))
    return DenseEvaluator(program, candidate, work) if work <= WRITTEN_OUT else CompressedEvaluator(program, candidate)


def _interface(graph: KernelGraph) -> tuple[list[str], list[str]]:
    return [source.tensor.signature for source in graph.inputs], [tensor.signature for tensor in output_types(graph)]


def critical_values(graphs: Sequence[KernelGraph]) -> tuple[float, ...]:
    """Return numbers at which operators of some graphs change their behaviour, which small integers would miss.

    These are the numbers that comparisons, maxima and minima have in place of an operand, integers next to them, and
    numbers that roundings change: 2^8 + 1 and 2^11 + 1 have a significant bit more than bfloat16 and float16, and
    1 + 3/4096 several.
    """
    found: set[float] = set()
    for op in (op for graph in graphs for op in operators(graph)):
        if op.kind in ROUNDINGS:
            found |= {(1 << 8) + 1, (1 << 11) + 1, 1 + 3 / 4096}
        elif op.kind is not OpKind.SELECT and op.attrs.value is not None and abs(op.attrs.value) < _FAR:
            low, high = floor(op.attrs.value), ceil(op.attrs.value)
            # A number that is no float is not met exactly.
            exact = (
                {float(op.attrs.value)} if low != high and Fraction(float(op.attrs.value)) == op.attrs.value else set()
            )
            found |= {low - 1, low, high, high + 1, *exact}
    return tuple(sorted(found))


class TrialEvaluator(ABC):
    """An evaluator of trials of one program and one candidate.

    Attributes:
        graphs: The program and the candidate.
        places: The positions in the inputs.
        width: Trials that are evaluated at once.
        budget: Trials of one default in one attempt.
        landmarks: Numbers near which operators of the graphs change their behaviour.
        rounds: Rounds of minimising one.
    """

    def __init__(self, program: KernelGraph, candidate: KernelGraph) -> None:
        self.graphs = (program, candidate)
        self.places = InputPositions([source.tensor for source in program.inputs])
        self.landmarks = critical_values(self.graphs)
        self.width = 2 * _TRIALS
        self.budget = _TRIALS
        self.rounds = _ROUNDS

    @abstractmethod
    def sizes(self, trials: Sequence[Trial]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield, for every output, the largest magnitude and the largest gap by trial; nan if not finite."""

    @abstractmethod
    def confirm(self, trial: Trial) -> Counterexample | None:
        """Return the trial as a counterexample, if another precision and the reference confirm the gap; else None."""

    def defined(self, choices: Iterator[tuple[DefaultValues, ...]]) -> Iterator[tuple[DefaultValues, ...]]:
        """Yield the defaults on which both sides are finite everywhere."""
        while chunk := [Trial(fills, {}) for fills in islice(choices, self.width)]:
            finite = np.ones(len(chunk), dtype=bool)
            for size, _ in self.sizes(chunk):
                finite &= np.isfinite(size)
            yield from (trial.fills for trial, good in zip(chunk, finite, strict=True) if good)

    def differing(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials on which both sides are finite and differ clearly, those of least cost first."""
        found = []
        for start in range(0, len(trials), self.width):
            chunk = trials[start : start + self.width]
            found += [trial for trial, apart in zip(chunk, self._apart(chunk), strict=True) if apart]
        return sorted(found, key=lambda trial: trial.cost)

    def _apart(self, trials: Sequence[Trial]) -> NDArray[np.bool_]:
        finite = np.ones(len(trials), dtype=bool)
        apart = np.zeros(len(trials), dtype=bool)
        with np.errstate(all="ignore"):
            for size, gap in self.sizes(trials):
                finite &= np.isfinite(size)
                apart |= gap > CLEAR * np.maximum(size, _TINY)
        return finite & apart

    def random_trials(self, rng: random.Random, fills: tuple[DefaultValues, ...], largest: int) -> list[Trial]:
        """Return trials with few, several and all elements changed."""
        places = list(range(self.places.total)) if self.places.total <= _WHOLE else self._few_places(rng)
        small: list[float] = [v for v in range(-largest, largest + 1) if v]
        trials = []
        for number in range(self.budget):
            # Landmarks stand among small values in every other trial: far ones make exponentials overflow.
            values = small if number % 2 else [*small, *self.landmarks]
            count = len(places) if number % 4 == 3 else min(len(places), 1 + int(rng.expovariate(6 / len(places))))
            chosen = places if count == len(places) else rng.sample(places, count)
            trials.append(Trial(fills, self.changed(fills, {place: rng.choice(values) for place in chosen})))
        return trials

    def changed(self, fills: tuple[DefaultValues, ...], cells: Mapping[int, float]) -> dict[int, float]:
        """Return the cells that differ from the default; an element of a mask is 1 where its value is positive."""
        masks = self.places.masks
        if any(masks):
            cells = {
                place: int(value > 0) if masks[self.places.locate(place)[0]] else value
                for place, value in cells.items()
            }
        return {place: value for place, value in cells.items() if self.places.default(fills, place) != value}

    def _few_places(self, rng: random.Random) -> list[int]:
        """Return elements at a few coordinates, the same for dims of equal extent so that contractions meet."""
        coordinates: dict[int, list[int]] = {}
        places: list[int] = []
        for shape, offset in zip(self.places.shapes, self.places.offsets, strict=False):
            for extent in shape:
                if extent not in coordinates:
                    picked = {rng.randrange(extent), rng.randrange(extent), extent - 1, 0}
                    coordinates[extent] = rng.sample(sorted(picked), min(len(picked), 3))
            points = np.array(list(product(*(coordinates[extent] for extent in shape))))
            places += (offset + np.ravel_multi_index(tuple(points.T), shape)).tolist()
        return rng.sample(places, min(len(places), _CELLS))

    def entries(self, trial: Trial) -> tuple[CounterexampleEntry, ...]:
        """Return the elements that a trial changes: input, index and value of each, in the order of their positions."""
        return tuple(
            CounterexampleEntry(*self.places.locate(place), value) for place, value in sorted(trial.cells.items())
        )


class DenseEvaluator(TrialEvaluator):
    """An evaluator that computes every element of every tensor."""

    def __init__(self, program: KernelGraph, candidate: KernelGraph, work: int) -> None:
        super().__init__(program, candidate)
        self.width = max(1, min(2 * _TRIALS, WRITTEN_OUT // work))
        self._bases: dict[tuple[DefaultValues, ...], NDArray[np.float64]] = {}

    def _base(self, fills: tuple[DefaultValues, ...]) -> NDArray[np.float64]:
        """Return the concatenation of the defaults of all inputs."""
        if fills not in self._bases:
            parts = [fill_input(shape, fill).reshape(-1) for shape, fill in zip(self.places.shapes, fills, strict=True)]
            self._bases[fills] = np.concatenate(parts)
        return self._bases[fills]

    def inputs(self, trials: Sequence[Trial], dtype: Any = np.float64) -> list[NDArray[Any]]:
        """Return one array for each input, of shape [trials, ...]: its values in each of the trials."""
        flat = np.empty((len(trials), self.places.total), dtype=dtype)
        for row, trial in zip(flat, trials, strict=True):
            row[:] = self._base(trial.fills)
            if trial.cells:
                row[list(trial.cells)] = list(trial.cells.values())
        offsets = self.places.offsets
        return [
            flat[:, start:stop].reshape(len(trials), *shape)
            for shape, start, stop in zip(self.places.shapes, offsets, offsets[1:], strict=False)
        ]

    def sizes(self, trials: Sequence[Trial]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Implement ``TrialEvaluator``."""
        arrays = self.inputs(trials)
        yield from map(_sizes, *(run_many(graph, arrays) for graph in self.graphs))

    def confirm(self, trial: Trial) -> Counterexample | None:
        """Implement ``TrialEvaluator``."""
        arrays, second = self.inputs([trial]), self.inputs([trial], np.longdouble)
        given = [array[0] for array in arrays]
        sides = [
            _Side(values, [out[0] for out in run_many(graph, second)], run(graph, given))
            for graph in self.graphs
            for values in [run_bounded(graph, given)]
        ]
        if not all(side.finite for side in sides):
            return None
        for number in range(len(self.graphs[0].outputs)):
            clear = np.argwhere(_differ_clearly(sides[0].readings(number), sides[1].readings(number)))
            if len(clear):
                index = tuple(int(i) for i in clear[0])
                expected, got = (float(side.reference[number][index]) for side in sides)
                return Counterexample(trial.fills, self.entries(trial), number, index, expected, got)
        return None


class _Side(Struct, frozen=True):
    """All outputs of one graph for one trial: with bounds, in extended precision, and by the reference."""

    bounded: Sequence[NDArray[Any]]
    extended: Sequence[NDArray[Any]]
    reference: Sequence[NDArray[Any]]

    @property
    def finite(self) -> bool:
        outputs = (*(item[0] for item in self.bounded), *self.extended, *self.reference)
        return all(bool(np.isfinite(item).all()) for item in outputs)

    def readings(self, number: int) -> _Readings:
        return _Readings(self.bounded[number], (self.extended[number], self.reference[number]))


class _Readings(Struct, frozen=True):
    """One output of one graph: values with bounds, and the same with other roundings; the last is reported."""

    bounded: NDArray[Any]
    others: tuple[NDArray[Any], ...]


class CompressedEvaluator(TrialEvaluator):
    """An evaluator that computes tensors of any size by classes of equal elements (grouped)."""

    def __init__(self, program: KernelGraph, candidate: KernelGraph) -> None:
        super().__init__(program, candidate)
        self.width = _GROUPED
        self.budget = _TRIALS // 2

    def sizes(self, trials: Sequence[Trial]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield largest magnitudes and gaps, as ``TrialEvaluator.sizes``.

        They are nan where a tensor has too many classes of equal elements (``TooManyClasses``).
        """
        try:
            for side in run_plain(self.graphs, make_inputs(self.places, trials, np.float64)):
                yield _sizes(side.program, side.candidate)
        except TooManyClasses:
            if len(trials) == 1:
                yield np.array([np.nan]), np.array([0.0])
                return
            each = [list(self.sizes([trial])) for trial in trials]
            bad = np.array([np.any([np.isnan(size[0]) for size, _ in found]) for found in each])
            for outputs in zip(*each, strict=False):
                sizes, gaps = (np.concatenate(parts) for parts in zip(*outputs, strict=True))
                yield np.where(bad, np.nan, sizes), gaps

    def confirm(self, trial: Trial) -> Counterexample | None:
        """Implement ``TrialEvaluator``; the reference computes the backward slice of the element that differs."""
        try:
            inputs = make_inputs(self.places, [trial], np.float64)
            seen = run_with_bounds(self.graphs, inputs)
            second = run_plain(self.graphs, make_inputs(self.places, [trial], np.longdouble))
        except TooManyClasses:
            return None
        outputs = (item for side in (*seen, *second) for item in (side.program[0], side.candidate[0]))
        if not all(np.isfinite(item).all() for item in outputs):
            return None
        for number, (one, other) in enumerate(zip(seen, second, strict=True)):
            sides = (
                _Readings(one.program, (other.program[0],)),
                _Readings(one.candidate, (other.candidate[0],)),
            )
            clear = _differ_clearly(*sides)
            if clear.any():
                return self._confirmed(trial, number, one, clear, sides)
        return None

    def _confirmed(
        self, trial: Trial, number: int, side: OutputPair, clear: NDArray[np.bool_], sides: tuple[_Readings, _Readings]
    ) -> Counterexample | None:
        """Return the first element of the clearly different classes, if the reference finds the same gap there."""
        where = np.argwhere(clear)
        places = np.stack([first[where[:, axis]] for axis, first in enumerate(side.first)], axis=-1)
        first = int(np.lexsort(places.T[::-1])[0]) if places.size else 0
        classes, index = tuple(where[first]), tuple(int(i) for i in places[first])
        found = Counterexample(trial.fills, self.entries(trial), number, index, 0.0, 0.0)
        values = [counterexample_element(graph, found) for graph in self.graphs]
        if values[0] is None or values[1] is None:
            return None
        size = max(float(np.abs(item.bounded[0]).max()) for item in sides)
        left, right = (
            _Readings(item.bounded[(slice(None), *classes)], (item.others[0][classes], np.asarray(value)))
            for item, value in zip(sides, values, strict=True)
        )
        if not _differ_clearly(left, right, size):
            return None
        return Counterexample(found.fills, found.entries, number, index, values[0], values[1])


def _sizes(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the largest magnitude and the largest gap of two outputs, by trial."""
    with np.errstate(all="ignore"):
        size = np.maximum(_per_trial(np.abs(a), np.max), _per_trial(np.abs(b), np.max))
        return size, _per_trial(np.abs(a - b), np.max)


def _per_trial(array: NDArray[Any], reduce: Any) -> NDArray[Any]:
    return np.asarray(reduce(array.reshape(len(array), -1), axis=1))


def _differ_clearly(left: _Readings, right: _Readings, size: float | None = None) -> NDArray[np.bool_]:
    """Return where both sides differ clearly: by more than rounding may cause, and by all readings.

    Args:
        left: The program's output.
        right: The candidate's.
        size: The largest magnitude of the output, if it is not among the readings.
    """
    with np.errstate(all="ignore"):
        gap = np.abs(left.others[-1] - right.others[-1]).astype(np.float64)
        error = np.zeros_like(gap)
        for side in (left, right):
            for other in (side.bounded[0], *side.others[:-1]):
                error = error + np.abs(side.others[-1] - other).astype(np.float64)
        if size is None:
            size = max(float(np.abs(side.others[-1]).max()) for side in (left, right))
        least = np.maximum(CLEAR * max(size, _TINY), _SURE * (left.bounded[1] + right.bounded[1]))
        found: NDArray[np.bool_] = np.asarray((gap > least) & (error <= _SHARE * gap))
    return found


def fill_input(shape: Shape, fill: DefaultValues) -> NDArray[np.float64]:
    """Return an input filled with a default."""
    if fill.even == fill.odd:
        return np.full(shape, float(fill.even))
    parity = np.zeros(shape, dtype=np.int64)
    for axis, extent in enumerate(shape):
        parity += np.arange(extent).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.where(parity % 2 == 0, float(fill.even), float(fill.odd))


__all__ = ["CLEAR", "WRITTEN_OUT", "TrialEvaluator", "critical_values", "fill_input", "make_evaluator"]
