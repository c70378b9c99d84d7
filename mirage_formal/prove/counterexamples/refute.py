"""Search for an input on which a candidate differs from its program, and its minimisation.

Inputs are small integers: a default per input and a few entries that differ from it. Entries may be other numbers where
comparisons and roundings need these. Many such inputs are evaluated at once in float64. A result is evaluated again in
another precision and by the reference, so that rounding does not explain the gap.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mirage_formal.graph.counterexample import Counterexample, DefaultValues
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import Shape
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.counterexamples.sparse_inputs import Trial, counterexample_element
from mirage_formal.prove.counterexamples.trial_evaluator import (
    CLEAR,
    WRITTEN_OUT,
    TrialEvaluator,
    fill_input,
    make_evaluator,
)
from mirage_formal.semantics.float64_reference import run
from mirage_formal.semantics.working_set import working_set_size
from mirage_formal.support.errors import ShapeError

#: Defaults in the order of preference: zeros, ones, rows that are not constant, the same without zeros.
_FILLS: Final = (DefaultValues(0, 0), DefaultValues(1, 1), DefaultValues(0, 1), DefaultValues(1, 2))
#: The default of masks in place of the last of them.
_FLIPPED: Final = DefaultValues(1, 0)
_MAX_FILLS: Final = 64
#: Defined defaults that are tried in one attempt.
_DEFAULTS: Final = 4
_FEW: Final = 6
_MINIMAL: Final = 4


class OutputEvaluation(Struct, frozen=True):
    """One output element of both programs, in float64."""

    expected: float
    got: float


def find_counterexample(
    program: KernelGraph, candidate: KernelGraph, *, seed: int, attempts: int = 6
) -> Counterexample | None:
    """Return a small input on which the two differ; None if none was found, which proves nothing.

    Args:
        program: The program.
        candidate: A well-formed graph with the same inputs and output shapes.
        seed: The result depends on it and on nothing else.
        attempts: Rounds of random inputs, with entries in -2..2 in the first half and -4..4 in the second, and beside
            these near numbers that elements are compared with or that roundings change. Masks are zeros and ones.

    Returns:
        Defaults, changed entries, and the first element that differs. Both programs are finite everywhere on it. None
        for programs with band masks: entries that are changed one by one would not be such a mask.

    Raises:
        ShapeError: The graphs have other inputs or outputs.
        GraphError: A graph is not well-formed.

    Notes:
        One attempt evaluates both graphs on at most 48 inputs for each of about 4 defaults. Minimising evaluates a few
        hundred more, many at a time: milliseconds for graphs of some hundred elements. If one evaluation has more
        than 2^15 elements (every partial product of every block and iteration counts), only a few coordinates per
        extent are changed and tensors are compressed by classes of equal elements (grouped): this cost does not depend
        on extents. The answer is None where the element that differs depends on more than 2^26 elements.

    Sound: a Counterexample is returned only if all outputs are finite; the gap is at least 1e-6 of the largest
    magnitude of the output and 16 times what rounding may have done to both sides (bounded); and the reference (on all
    that the element depends on), float64 with other roundings and extended precision agree within a hundredth of the
    gap.
    """
    if any(item.band is not None for item in program.inputs):
        return None
    place = make_evaluator(program, candidate)
    rng = random.Random(seed)
    masks = place.places.masks
    defaults = list(islice(place.defined(_defaults(masks)), _DEFAULTS))
    # Where a default is not defined, it may be with some entries changed.
    others = [
        _adjust_masks((fill,) * len(masks), masks) for fill in (_FILLS if len(defaults) < _DEFAULTS else _FILLS[:1])
    ]
    defaults = list(dict.fromkeys([*defaults, *others]))
    for attempt in range(attempts):
        best: Counterexample | None = None
        least = 0
        largest = 2 if 2 * attempt < attempts else 4
        for fills in defaults:
            trials = [Trial(fills, {}), *place.random_trials(rng, fills, largest)]
            for trial in place.differing(trials)[:3]:
                small = _minimise(place, trial, rng)
                found = place.confirm(small) or place.confirm(trial)
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


def evaluate_counterexample(
    program: KernelGraph, candidate: KernelGraph, counterexample: Counterexample
) -> OutputEvaluation:
    """Return both values of the element that a counterexample names, evaluated by the reference.

    Raises:
        ShapeError: It names an input, an output or an element that does not exist.
    """
    _check_fit(program, counterexample)
    number, index = counterexample.output, counterexample.index
    values = []
    for graph in (program, candidate):
        types = kernel_types(graph)
        _check_index([types[output].shape for output in graph.outputs], number, index, "output")
        value = counterexample_element(graph, counterexample) if working_set_size(graph) > WRITTEN_OUT else None
        values.append(
            float(run(graph, input_arrays(program, counterexample))[number][index]) if value is None else value
        )
    return OutputEvaluation(values[0], values[1])


def input_arrays(program: KernelGraph, counterexample: Counterexample) -> list[NDArray[np.float64]]:
    """Return the inputs that a counterexample describes, one array per input of the program.

    Raises:
        ShapeError: It has a default too many or too few, or names an element that does not exist.
    """
    shapes = _check_fit(program, counterexample)
    arrays = [fill_input(shape, fill) for shape, fill in zip(shapes, counterexample.fills, strict=True)]
    for entry in counterexample.entries:
        arrays[entry.input][entry.index] = entry.value
    return arrays


def _check_fit(program: KernelGraph, counterexample: Counterexample) -> list[Shape]:
    """Return the shapes of a program's inputs, after a check that a counterexample fits them."""
    shapes = [source.tensor.shape for source in program.inputs]
    if len(counterexample.fills) != len(shapes):
        raise ShapeError(f"counterexample: expected {len(shapes)} defaults, got {len(counterexample.fills)}")
    for entry in counterexample.entries:
        _check_index(shapes, entry.input, entry.index, "input")
    for number, source in enumerate(program.inputs):
        fill, own = counterexample.fills[number], [e.value for e in counterexample.entries if e.input == number]
        if not source.tensor.dtype.floating and not {fill.even, fill.odd, *own} <= {0, 1}:
            raise ShapeError(f"counterexample: expected zeros and ones for the mask {source.name}, got other values")
    return shapes


def _check_index(shapes: Sequence[Shape], number: int, index: tuple[int, ...], name: str) -> None:
    if not 0 <= number < len(shapes):
        raise ShapeError(f"counterexample: expected an {name} below {len(shapes)}, got {number}")
    shape = shapes[number]
    if len(index) != len(shape) or any(not 0 <= i < extent for i, extent in zip(index, shape, strict=True)):
        raise ShapeError(f"counterexample: expected an index inside {list(shape)}, got {list(index)}")


def _adjust_masks(fills: tuple[DefaultValues, ...], masks: Sequence[bool]) -> tuple[DefaultValues, ...]:
    """Return the defaults with zeros and ones for masks."""
    return tuple(_FLIPPED if mask and fill == _FILLS[3] else fill for fill, mask in zip(fills, masks, strict=True))


def _defaults(masks: Sequence[bool]) -> Iterator[tuple[DefaultValues, ...]]:
    """Yield defaults for all inputs, those with more zeros first; at the end those that are equal for all inputs.

    Args:
        masks: For each input whether it is a mask.
    """
    order, inputs = range(len(_FILLS)), len(masks)
    if inputs <= 5:
        choices = sorted(product(order, repeat=inputs), key=lambda choice: (sum(choice), choice))
    else:
        single = [tuple(k if i == j else 0 for i in range(inputs)) for k in order[1:] for j in range(inputs)]
        choices = [(0,) * inputs, *single]
    uniform = [(k,) * inputs for k in order]
    for choice in dict.fromkeys([*choices[:_MAX_FILLS], *uniform]):
        yield _adjust_masks(tuple(_FILLS[k] for k in choice), masks)


def _minimise(arena: TrialEvaluator, trial: Trial, rng: random.Random) -> Trial:
    """Minimise a trial by delta debugging: fewer entries, then smaller values."""
    for _ in range(arena.rounds):
        smaller = arena.differing(_reductions(arena, trial, rng))
        if not smaller:
            break
        together = _joint_removal(trial, smaller)
        trial = (arena.differing([together]) or smaller)[0] if together is not None else smaller[0]
    for _ in range(_MINIMAL):
        simpler = [Trial(trial.fills, arena.changed(trial.fills, cells)) for cells in _simplifications(trial)]
        found = arena.differing([item for item in simpler if item != trial])
        if not found:
            break
        trial = min(found, key=lambda item: sum(abs(v) + (v < 0) for v in item.cells.values()))
    return trial


def _reductions(arena: TrialEvaluator, trial: Trial, rng: random.Random) -> list[Trial]:
    """Return the trial without parts of its entries, large parts first, and single entries if there is room."""
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
        Trial(trial.fills, {place: value for place, value in trial.cells.items() if place in subset})
        for subset in subsets[:room]
        if len(subset) < count
    ]


def _joint_removal(trial: Trial, smaller: Sequence[Trial]) -> Trial | None:
    """Return the trial without all entries that single removals spare; None if one removal is as good."""
    left = set(trial.cells)
    single = [item for item in smaller if len(item.cells) == len(trial.cells) - 1]
    if len(single) < 2 or len(smaller[0].cells) < len(trial.cells) - len(single):
        return None
    for item in single:
        left &= set(item.cells)
    return Trial(trial.fills, {place: value for place, value in trial.cells.items() if place in left})


def _simplifications(trial: Trial) -> Iterator[dict[int, float]]:
    """Yield the entries made positive, and set to 1, all together or one by one."""
    yield dict.fromkeys(trial.cells, 1)
    yield {place: abs(value) for place, value in trial.cells.items()}
    for place, value in trial.cells.items():
        for wanted in (1, -1, 2):
            if abs(wanted) + (wanted < 0) < abs(value) + (value < 0):
                yield {**trial.cells, place: wanted}


__all__ = ["CLEAR", "OutputEvaluation", "evaluate_counterexample", "find_counterexample", "input_arrays"]
