"""One output element of a µGraph by the float64 reference, computed from the elements that it depends on only.

The backward slice is propagated through the tape as a box for each step: the needed coordinates along every axis. Then
the reference's operators run on the boxes. So an element of a product costs a row and a column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.prove.counterexamples.compressed_tensor import axis_groups
from mirage_formal.semantics.float64_reference import FloatDomain, Floats
from mirage_formal.semantics.straight_line_trace import (
    BinaryStep,
    ConcatStep,
    ConstantStep,
    LoadStep,
    Matmul,
    OrderStep,
    RepeatStep,
    Reshape,
    SliceStep,
    Step,
    SumStep,
    Tape,
    Transpose,
    UnaryStep,
    record_tape,
    step_operands,
)
from mirage_formal.semantics.value_domain import LOOP_AXIS

#: Ascending coordinates along every axis; a box holds the elements at all their combinations.
Box = tuple[NDArray[np.int64], ...]
#: The elements of an input in a box.
Source = Callable[[int, Box], NDArray[Any]]
#: Elements of all boxes together, at most: half a GiB in float64.
MAX_ELEMENTS: Final = 1 << 26


def evaluate_element(graph: KernelGraph, source: Source, output: int, index: tuple[int, ...]) -> float | None:
    """Return one element of an output; None if it depends on too many elements.

    Args:
        graph: A program or a candidate.
        source: A function that returns the elements of the inputs.
        output: Number of the output.
        index: The element.

    Raises:
        GraphError: The graph is not well-formed.
    """
    tape = record_tape(graph)
    boxes = _needed_boxes(tape, tape.outputs[output], index)
    if boxes is None:
        return None
    domain = FloatDomain()
    values: dict[int, Floats] = {}
    with np.errstate(all="ignore"):
        for number in sorted(boxes):
            step = tape.steps[number]
            if isinstance(step, LoadStep):
                values[number] = np.asarray(source(step.index, boxes[number]), dtype=np.float64)
                continue
            wanted = _operand_boxes(step, tape, boxes[number])
            given = [
                _restrict(values[operand], boxes[operand], box)
                for operand, box in zip(step_operands(step), wanted, strict=True)
            ]
            values[number] = _evaluate_step(step, tape, boxes[number], wanted, given, domain)
    return float(values[tape.outputs[output]].reshape(()))


def _needed_boxes(tape: Tape, root: int, index: tuple[int, ...]) -> dict[int, Box] | None:
    """Return, for every needed step, the smallest box that its readers cover; None if the boxes are too large."""
    boxes: dict[int, Box] = {root: tuple(np.array([i]) for i in index)}
    total = 0
    for number in range(root, -1, -1):
        if number not in boxes:
            continue
        total += prod(len(axis) for axis in boxes[number])
        if total > MAX_ELEMENTS:
            return None
        step = tape.steps[number]
        for operand, box in zip(step_operands(step), _operand_boxes(step, tape, boxes[number]), strict=True):
            before = boxes.get(operand)
            boxes[operand] = box if before is None else tuple(map(np.union1d, before, box))
    return boxes


def _operand_boxes(step: Step, tape: Tape, box: Box) -> list[Box]:
    """Return the regions of its operands that a step reads for a region of its result."""
    shapes = [tape.steps[operand].shape for operand in step_operands(step)]
    match step:
        case LoadStep():
            return []
        case UnaryStep() | ConstantStep():
            return [box]
        case BinaryStep():
            return [_broadcast(box, shape) for shape in shapes]
        case Matmul():
            inner = np.arange(step.inner)
            lead = [_broadcast(box[:-2], shape[:-2]) for shape in shapes]
            return [(*lead[0], box[-2], inner), (*lead[1], inner, box[-1])]
        case SumStep():
            folded = np.arange(step.extent // step.kept)[:, None] * step.kept + box[step.axis][None, :]
            return [(*box[: step.axis], folded.reshape(-1), *box[step.axis + 1 :])]
        case Reshape():
            return [_reshape_box(box, step.shape, shapes[0])]
        case Transpose():
            return [tuple(box[step.perm.index(axis)] for axis in range(len(box)))]
        case ConcatStep():
            first = shapes[0][step.axis]
            along = box[step.axis]
            # A box is never empty: of an operand that does not matter one element is read.
            parts = (along[along < first], along[along >= first] - first)
            cut = [part if len(part) else np.zeros(1, dtype=np.int64) for part in parts]
            return [(*box[: step.axis], part, *box[step.axis + 1 :]) for part in cut]
        case SliceStep():
            return [(*box[: step.axis], box[step.axis] + step.start, *box[step.axis + 1 :])]
        case RepeatStep():
            return [(*box[: step.axis], np.zeros(1, dtype=np.int64), *box[step.axis + 1 :])]
        case OrderStep():
            return [_ordered_back(step, shape, box) for shape in shapes]
        case _:
            assert_never(step)


def _broadcast(box: Box, shape: Shape) -> Box:
    zero = np.zeros(1, dtype=np.int64)
    return tuple(zero if extent == 1 else axis for axis, extent in zip(box, shape, strict=True))


def _ordered_back(step: OrderStep, shape: Shape, box: Box) -> Box:
    """Return the box that an ordered reduction reads: every reduced axis, and the loop with its state, as a whole."""
    found = list(_broadcast(box, shape))
    for axis, extent in enumerate(shape):
        if step.shape[axis] != extent or (step.kind is not OpKind.MAX and axis == LOOP_AXIS):
            found[axis] = np.arange(extent)
    return tuple(found)


def _reshape_box(box: Box, shape: Shape, old: Shape) -> Box:
    """Return the coordinates in the old axes of a box in the new axes, run by run."""
    found: list[NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)] * len(old)
    for olds, news in axis_groups(old, shape):
        flat = _flat_indices([box[i] for i in news], [shape[i] for i in news])
        if olds:
            for axis, places in zip(olds, np.unravel_index(flat, [old[i] for i in olds]), strict=True):
                found[axis] = np.unique(places)
    return tuple(found)


def _flat_indices(box: list[NDArray[np.int64]], shape: list[int]) -> NDArray[np.int64]:
    """Return the row-major numbers of the elements in a box."""
    return reduce(
        lambda flat, axis: (flat[:, None] * axis[1] + axis[0][None, :]).reshape(-1),
        zip(box, shape, strict=True),
        np.zeros(1, dtype=np.int64),
    )


def _restrict(values: Floats, held: Box, wanted: Box) -> Floats:
    """Return the elements of a box within a larger one."""
    for axis, (have, want) in enumerate(zip(held, wanted, strict=True)):
        if len(have) != len(want) or not np.array_equal(have, want):
            values = np.take(values, np.searchsorted(have, want), axis=axis)
    return values


def _evaluate_step(
    step: Step, tape: Tape, box: Box, read: list[Box], given: list[Floats], domain: FloatDomain
) -> Floats:
    """Return the elements of a step's result in a box, from those that it reads."""
    match step:
        case UnaryStep():
            return domain.unary(step.kind, given[0])
        case ConstantStep():
            operation = domain.scale if step.kind is OpKind.SCALE else domain.offset
            return operation(given[0], step.value)
        case BinaryStep():
            return domain.binary(step.kind, *given)
        case Matmul():
            return domain.matmul(given[0], given[1], step.inner)
        case SumStep():
            kept = len(box[step.axis])
            return domain.sum(given[0], step.axis, kept * (step.extent // step.kept), kept)
        case Reshape():
            return _reshape_forward(given[0], read[0], box, tape.steps[step.a].shape, step.shape)
        case Transpose():
            return domain.transpose(given[0], step.perm)
        case ConcatStep():
            along, first = box[step.axis], tape.steps[step.a].shape[step.axis]
            parts = [
                np.take(given[0], np.arange((along < first).sum()), axis=step.axis),
                np.take(given[1], np.arange((along >= first).sum()), axis=step.axis),
            ]
            return np.concatenate(parts, axis=step.axis)
        case SliceStep():
            return given[0]
        case RepeatStep():
            return domain.repeat(given[0], step.axis, len(box[step.axis]))
        case OrderStep():
            whole = domain.ordered(step.kind, tuple(given), step.axis, 0)[step.number]
            held = tuple(
                np.arange(extent) if axis == LOOP_AXIS else box[axis] for axis, extent in enumerate(step.shape)
            )
            return whole if step.kind is OpKind.MAX else _restrict(whole, held, box)
        case LoadStep():
            raise AssertionError("inputs are read before")
        case _:
            assert_never(step)


def _reshape_forward(values: Floats, read: Box, box: Box, old: Shape, new: Shape) -> Floats:
    """Return the values of a box in the old axes, rearranged for a box in the new axes, run by run."""
    at = 0
    for olds, news in axis_groups(old, new):
        mine = [read[i] for i in olds]
        flat = _flat_indices([box[i] for i in news], [new[i] for i in news])
        where = np.zeros(len(flat), dtype=np.int64)
        if olds:
            for have, places in zip(mine, np.unravel_index(flat, [old[i] for i in olds]), strict=True):
                where = where * len(have) + np.searchsorted(have, places)
        merged = values.reshape((*values.shape[:at], prod(map(len, mine)), *values.shape[at + len(olds) :]))
        values = np.take(merged, where, axis=at)
        values = values.reshape((*values.shape[:at], *(len(box[i]) for i in news), *values.shape[at + 1 :]))
        at += len(news)
    return values


__all__ = ["Box", "Source", "evaluate_element"]
