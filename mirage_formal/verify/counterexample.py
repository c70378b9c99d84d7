"""Search for an input on which a candidate differs from its program, and its minimisation.

Inputs are small integers: a default per input and a few entries that differ from it. Many such inputs are evaluated at
once in float64. What is returned was evaluated again in another precision and by the reference, so that the gap is none
of rounding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.errors import ShapeError
from mirage_formal.ir.check import kernel_types
from mirage_formal.ir.counterexample import Counterexample, Entry, Fill
from mirage_formal.ir.graph import KernelGraph
from mirage_formal.ir.types import Shape
from mirage_formal.semantics.batched import run_many, run_watched
from mirage_formal.semantics.footprint import footprint
from mirage_formal.semantics.reference import run

#: Smallest gap that counts, relative to the largest magnitude of the output.
CLEAR: Final = 1e-6
#: What a second float type and the reference may be off by together, relative to the gap: extended precision, or, for
#: graphs of more elements than _PRECISE (no fast product exists in it), single precision.
_SHARE: Final = 0.01
_SINGLE_SHARE: Final = 0.25
_PRECISE: Final = 1 << 20
#: Smallest gap that counts, relative to the magnitude beside which something may have been lost (``run_watched``).
_LOST: Final = 1e-10
#: Outputs below this magnitude are not told apart.
_TINY: Final = 1e-6

#: Defaults in the order of preference: zeros, ones, rows that are not constant, the same without zeros.
_FILLS: Final = (Fill(0, 0), Fill(1, 1), Fill(0, 1), Fill(1, 2))
_MAX_FILLS: Final = 64
#: How many defined defaults are tried in one attempt.
_DEFAULTS: Final = 4
#: Trials evaluated for one default in one attempt, for small graphs.
_TRIALS: Final = 48
#: Elements up to which every one may be changed, and how many may be in larger inputs.
_WHOLE: Final = 2048
_CELLS: Final = 256
#: Elements of one evaluation above which none is made: 1 GiB in float64.
_LARGEST: Final = 1 << 27
#: So many elements of all trials together are evaluated at once.
_AT_ONCE: Final = 1 << 20
#: Elements evaluated in all for one default: small graphs never reach this bound, large ones get few trials.
_WORK: Final = 1 << 30
_FEW: Final = 6
_MINIMAL: Final = 4
_ROUNDS: Final = 60


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One output element of both programs, in float64."""

    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class _Trial:
    """Inputs: a default per input, and values by position in all inputs laid one after another."""

    fills: tuple[Fill, ...]
    cells: Mapping[int, int]

    @property
    def cost(self) -> int:
        """Entries and defaults that a reader has to look at."""
        return len(self.cells) + 2 * sum(fill != _FILLS[0] for fill in self.fills)


def find(program: KernelGraph, candidate: KernelGraph, *, seed: int, attempts: int = 6) -> Counterexample | None:
    """A small input on which the two differ, or None if none was found, which says nothing.

    Args:
        program: The program.
        candidate: A well-formed graph with the same inputs and output shapes.
        seed: The result depends on it and on nothing else.
        attempts: Rounds of random inputs, with entries in -2..2 in the first half and -4..4 in the second.

    Returns:
        Defaults, changed entries, and the first element that differs. Both programs are finite everywhere on it.

    Raises:
        ShapeError: The graphs have other inputs or outputs.
        GraphError: A graph is not well-formed.

    Notes:
        One attempt evaluates both graphs on at most 48 inputs for each of about 4 defaults, and minimising on a few
        hundred more, many at a time: milliseconds for graphs of some hundred elements. Where one evaluation is large
        (4096 x 6144) each attempt makes at most a dozen evaluations a default and minimising some dozens, in which only
        a few coordinates per extent are changed: about that many times what one evaluation in float64 takes, seconds to
        minutes in all. Graphs of which one evaluation holds more than 2^27 elements (every partial product of every
        block and iteration counts) are not evaluated: the answer is None.

    Sound: a Counterexample is returned only if all outputs are finite; the gap is at least 1e-6 of the largest
    magnitude of the output and 1e-10 of the magnitude beside which rounding may have lost it; and the reference,
    float64 with other roundings and extended precision (single precision where that takes too long) agree within a
    hundredth (a quarter) of the gap.
    """
    arena = _Arena(program, candidate)
    if not arena.feasible:
        return None
    rng = random.Random(seed)
    defaults = list(islice(arena.defined(_defaults(len(program.inputs))), _DEFAULTS))
    # Where a default is not defined, it may be with some entries changed.
    others = [(fill,) * len(program.inputs) for fill in (_FILLS if len(defaults) < _DEFAULTS else _FILLS[:1])]
    defaults = list(dict.fromkeys([*defaults, *others]))
    for attempt in range(attempts):
        best: Counterexample | None = None
        least = 0
        largest = 2 if 2 * attempt < attempts else 4
        for fills in defaults:
            trials = [_Trial(fills, {}), *arena.random_trials(rng, fills, largest)]
            for trial in arena.differing(trials)[:3]:
                small = _minimised(arena, trial, rng)
                found = _settled(arena, small) or _settled(arena, trial)
                if found is not None:
                    cost = len(found.entries) + 2 * sum(fill != _FILLS[0] for fill in found.fills)
                    if best is None or cost < least:
                        best, least = found, cost
                    break
            if best is not None and least <= _FEW:
                break
        if best is not None:
            return best
    return None


def confirm(program: KernelGraph, candidate: KernelGraph, counterexample: Counterexample) -> Evaluation:
    """Both values of the element that a counterexample names, evaluated by the reference.

    Raises:
        ShapeError: It names an input, an output or an element that does not exist.
    """
    arrays = arrays_of(program, counterexample)
    number, index = counterexample.output, counterexample.index
    values = []
    for graph in (program, candidate):
        outputs = run(graph, arrays)
        _inside([out.shape for out in outputs], number, index, "output")
        values.append(float(outputs[number][index]))
    return Evaluation(values[0], values[1])


def arrays_of(program: KernelGraph, counterexample: Counterexample) -> list[NDArray[np.float64]]:
    """The inputs that a counterexample describes, one array per input of the program.

    Raises:
        ShapeError: It has a default too many or too few, or names an element that does not exist.
    """
    shapes = [source.tensor.shape for source in program.inputs]
    if len(counterexample.fills) != len(shapes):
        raise ShapeError(f"counterexample: expected {len(shapes)} defaults, got {len(counterexample.fills)}")
    arrays = [_filled(shape, fill) for shape, fill in zip(shapes, counterexample.fills, strict=True)]
    for entry in counterexample.entries:
        _inside(shapes, entry.input, entry.index, "input")
        arrays[entry.input][entry.index] = entry.value
    return arrays


def _inside(shapes: Sequence[Shape], number: int, index: tuple[int, ...], name: str) -> None:
    if not 0 <= number < len(shapes):
        raise ShapeError(f"counterexample: expected an {name} below {len(shapes)}, got {number}")
    shape = shapes[number]
    if len(index) != len(shape) or any(not 0 <= i < extent for i, extent in zip(index, shape, strict=True)):
        raise ShapeError(f"counterexample: expected an index inside {list(shape)}, got {list(index)}")


def _filled(shape: Shape, fill: Fill) -> NDArray[np.float64]:
    if fill.even == fill.odd:
        return np.full(shape, float(fill.even))
    parity = np.zeros(shape, dtype=np.int64)
    for axis, extent in enumerate(shape):
        parity += np.arange(extent).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.where(parity % 2 == 0, float(fill.even), float(fill.odd))


def _defaults(inputs: int) -> Iterator[tuple[Fill, ...]]:
    """Defaults for all inputs, those with more zeros first; at the end the ones that are equal for all inputs."""
    order = range(len(_FILLS))
    if inputs <= 5:
        choices = sorted(product(order, repeat=inputs), key=lambda choice: (sum(choice), choice))
    else:
        single = [tuple(k if i == j else 0 for i in range(inputs)) for k in order[1:] for j in range(inputs)]
        choices = [(0,) * inputs, *single]
    uniform = [(k,) * inputs for k in order]
    for choice in dict.fromkeys([*choices[:_MAX_FILLS], *uniform]):
        yield tuple(_FILLS[k] for k in choice)


def _interface(graph: KernelGraph) -> tuple[list[Shape], list[Shape]]:
    types = kernel_types(graph)
    return [source.tensor.shape for source in graph.inputs], [types[number].shape for number in graph.outputs]


class _Arena:
    """Evaluates trials of one program and one candidate."""

    def __init__(self, program: KernelGraph, candidate: KernelGraph) -> None:
        interfaces = [_interface(graph) for graph in (program, candidate)]
        if interfaces[0] != interfaces[1]:
            raise ShapeError(f"candidate: expected inputs and outputs {interfaces[0]}, got {interfaces[1]}")
        self.program = program
        self.candidate = candidate
        self.shapes = [source.tensor.shape for source in program.inputs]
        sizes = [source.tensor.elements for source in program.inputs]
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        self.total = self.offsets[-1]
        work = max(footprint(program), footprint(candidate))
        self.feasible = work <= _LARGEST
        self.second: Any = np.longdouble if work <= _PRECISE else np.float32
        self.share = _SHARE if work <= _PRECISE else _SINGLE_SHARE
        self.width = max(1, min(2 * _TRIALS, _AT_ONCE // work))
        self.budget = max(12, min(_TRIALS, _WORK // (16 * work)))
        self.rounds = max(12, min(_ROUNDS, _WORK // (16 * work)))
        self._bases: dict[tuple[Fill, ...], NDArray[np.float64]] = {}

    def base(self, fills: tuple[Fill, ...]) -> NDArray[np.float64]:
        """The defaults of all inputs laid one after another."""
        if fills not in self._bases:
            # Large inputs are kept for one default only.
            if self.total > _AT_ONCE:
                self._bases.clear()
            parts = [_filled(shape, fill).reshape(-1) for shape, fill in zip(self.shapes, fills, strict=True)]
            self._bases[fills] = np.concatenate(parts)
        return self._bases[fills]

    def inputs(self, trials: Sequence[_Trial], dtype: Any = np.float64) -> list[NDArray[Any]]:
        """Inputs [trials, ...]."""
        flat = np.empty((len(trials), self.total), dtype=dtype)
        for row, trial in zip(flat, trials, strict=True):
            row[:] = self.base(trial.fills)
            if trial.cells:
                row[list(trial.cells)] = list(trial.cells.values())
        return [
            flat[:, start:stop].reshape(len(trials), *shape)
            for shape, start, stop in zip(self.shapes, self.offsets, self.offsets[1:], strict=False)
        ]

    def defined(self, choices: Iterator[tuple[Fill, ...]]) -> Iterator[tuple[Fill, ...]]:
        """The defaults on which both sides are finite everywhere."""
        while chunk := [_Trial(fills, {}) for fills in islice(choices, self.width)]:
            arrays = self.inputs(chunk)
            finite = np.ones(len(chunk), dtype=bool)
            for graph in (self.program, self.candidate):
                for out in run_many(graph, arrays):
                    finite &= _per_trial(np.isfinite(out), np.all)
            yield from (trial.fills for trial, good in zip(chunk, finite, strict=True) if good)

    def differing(self, trials: Sequence[_Trial]) -> list[_Trial]:
        """The trials on which both sides are finite and differ clearly, those of least cost first."""
        found = []
        for start in range(0, len(trials), self.width):
            chunk = trials[start : start + self.width]
            found += [trial for trial, apart in zip(chunk, self._apart(chunk), strict=True) if apart]
        return sorted(found, key=lambda trial: trial.cost)

    def _apart(self, trials: Sequence[_Trial]) -> NDArray[np.bool_]:
        arrays = self.inputs(trials)
        finite = np.ones(len(trials), dtype=bool)
        apart = np.zeros(len(trials), dtype=bool)
        with np.errstate(all="ignore"):
            for a, b in zip(run_many(self.program, arrays), run_many(self.candidate, arrays), strict=True):
                size = np.maximum(_per_trial(np.abs(a), np.max), _per_trial(np.abs(b), np.max))
                finite &= np.isfinite(size)
                apart |= _per_trial(np.abs(a - b), np.max) > CLEAR * np.maximum(size, _TINY)
        return finite & apart

    def random_trials(self, rng: random.Random, fills: tuple[Fill, ...], largest: int) -> list[_Trial]:
        """Trials of few, of several and of all elements changed."""
        places = list(range(self.total)) if self.total <= _WHOLE else self._few_places(rng)
        values = [v for v in range(-largest, largest + 1) if v]
        trials = []
        for number in range(self.budget):
            count = len(places) if number % 4 == 3 else min(len(places), 1 + int(rng.expovariate(6 / len(places))))
            chosen = places if count == len(places) else rng.sample(places, count)
            trials.append(_Trial(fills, self.changed(fills, {place: rng.choice(values) for place in chosen})))
        return trials

    def changed(self, fills: tuple[Fill, ...], cells: Mapping[int, int]) -> dict[int, int]:
        """The cells that are not what the default is."""
        base = self.base(fills)
        return {place: value for place, value in cells.items() if base[place] != value}

    def _few_places(self, rng: random.Random) -> list[int]:
        """Elements at a few coordinates, the same ones for dims of equal extent so that contractions meet."""
        coordinates: dict[int, list[int]] = {}
        places: list[int] = []
        for shape, offset in zip(self.shapes, self.offsets, strict=False):
            for extent in shape:
                if extent not in coordinates:
                    picked = {rng.randrange(extent), rng.randrange(extent), extent - 1, 0}
                    coordinates[extent] = rng.sample(sorted(picked), min(len(picked), 3))
            points = np.array(list(product(*(coordinates[extent] for extent in shape))))
            places += (offset + np.ravel_multi_index(tuple(points.T), shape)).tolist()
        return rng.sample(places, min(len(places), _CELLS))


def _per_trial(array: NDArray[Any], reduce: Any) -> NDArray[Any]:
    return np.asarray(reduce(array.reshape(len(array), -1), axis=1))


def _minimised(arena: _Arena, trial: _Trial, rng: random.Random) -> _Trial:
    """Delta debugging: fewer entries, then smaller values."""
    for _ in range(arena.rounds):
        smaller = arena.differing(_reductions(arena, trial, rng))
        if not smaller:
            break
        together = _joined(trial, smaller)
        trial = (arena.differing([together]) or smaller)[0] if together is not None else smaller[0]
    for _ in range(_MINIMAL):
        simpler = [_Trial(trial.fills, arena.changed(trial.fills, cells)) for cells in _simplifications(trial)]
        found = arena.differing([item for item in simpler if item != trial])
        if not found:
            break
        trial = min(found, key=lambda item: sum(abs(v) + (v < 0) for v in item.cells.values()))
    return trial


def _reductions(arena: _Arena, trial: _Trial, rng: random.Random) -> list[_Trial]:
    """The trial without parts of its entries, large parts first; single ones are among them if there is room."""
    places = list(trial.cells)
    rng.shuffle(places)
    count = len(places)
    kept: list[frozenset[int]] = [frozenset()]
    size = count
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, count, size):
            part = frozenset(places[start : start + size])
            kept.append(frozenset(places) - part)
            if 2 * size < count:
                kept.append(part)
    room = max(2 * arena.budget, 2 * count if count <= arena.budget else 0)
    subsets = sorted(dict.fromkeys(kept), key=len) if count > room else list(dict.fromkeys(kept))
    return [
        _Trial(trial.fills, {place: value for place, value in trial.cells.items() if place in subset})
        for subset in subsets[:room]
        if len(subset) < count
    ]


def _joined(trial: _Trial, smaller: Sequence[_Trial]) -> _Trial | None:
    """What is left if everything that single removals spare is removed together; None if one removal is as good."""
    left = set(trial.cells)
    single = [item for item in smaller if len(item.cells) == len(trial.cells) - 1]
    if len(single) < 2 or len(smaller[0].cells) < len(trial.cells) - len(single):
        return None
    for item in single:
        left &= set(item.cells)
    return _Trial(trial.fills, {place: value for place, value in trial.cells.items() if place in left})


def _simplifications(trial: _Trial) -> Iterator[dict[int, int]]:
    """Entries set to 1 where they are not, all together or one by one; and made positive."""
    yield dict.fromkeys(trial.cells, 1)
    yield {place: abs(value) for place, value in trial.cells.items()}
    for place, value in trial.cells.items():
        for wanted in (1, -1, 2):
            if abs(wanted) + (wanted < 0) < abs(value) + (value < 0):
                yield {**trial.cells, place: wanted}


def _settled(arena: _Arena, trial: _Trial) -> Counterexample | None:
    """The trial as a counterexample, if another precision and the reference confirm the gap."""
    arrays = arena.inputs([trial])
    second = arena.inputs([trial], arena.second)
    sides = []
    beside = 0.0
    for graph in (arena.program, arena.candidate):
        watched, seen = run_watched(graph, arrays)
        beside = max(beside, float(seen[0]))
        readings = [[out[0] for out in found] for found in (watched, run_many(graph, second))]
        sides.append((*readings, list(run(graph, [array[0] for array in arrays]))))
    for number in range(len(arena.program.outputs)):
        left, right = ([reading[number] for reading in side] for side in sides)
        if not all(np.isfinite(item).all() for item in (*left, *right)):
            return None
    for number in range(len(arena.program.outputs)):
        left, right = ([reading[number] for reading in side] for side in sides)
        gap = np.abs(left[2] - right[2])
        error = sum(np.abs(side[2] - other) for side in (left, right) for other in side[:2])
        size = max(float(np.abs(left[2]).max()), float(np.abs(right[2]).max()), _TINY)
        clear = np.argwhere((gap > max(CLEAR * size, _LOST * beside)) & (error <= arena.share * gap))
        if len(clear):
            index = tuple(int(i) for i in clear[0])
            return Counterexample(
                trial.fills, _entries(arena, trial), number, index, float(left[2][index]), float(right[2][index])
            )
    return None


def _entries(arena: _Arena, trial: _Trial) -> tuple[Entry, ...]:
    found = []
    for place, value in sorted(trial.cells.items()):
        number = max(i for i, offset in enumerate(arena.offsets[:-1]) if offset <= place)
        index = np.unravel_index(place - arena.offsets[number], arena.shapes[number])
        found.append(Entry(number, tuple(int(i) for i in index), value))
    return tuple(found)
