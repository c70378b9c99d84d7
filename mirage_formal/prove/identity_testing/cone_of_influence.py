"""Cones of influence: the input elements that elements of a tape's steps depend on, as masks propagated backwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.types import Shape
from mirage_formal.semantics.straight_line_trace import (
    BinaryStep,
    ConcatStep,
    ConstantStep,
    LoadStep,
    Matmul,
    Needs,
    OrderStep,
    RepeatStep,
    Reshape,
    ResiduePart,
    SliceStep,
    Step,
    SumStep,
    Tape,
    Transpose,
    UnaryStep,
    read_part,
)

Mask = NDArray[np.bool_]
#: Masks over input elements, by input and part; inputs that do not matter are absent.
Cone = dict[tuple[int, ResiduePart], Mask]


def trace_cone(tape: Tape, wanted: Needs, roots: Iterable[tuple[int, ResiduePart, Mask]]) -> Cone:
    """Return the input elements on which the masked elements of some steps may depend.

    Args:
        tape: The program.
        wanted: Its needed parts.
        roots: (step, part, mask of its elements).

    Returns:
        For each input part concerned, the mask of its elements. No element outside it has any influence, whatever the
        values; elements inside may have none.
    """
    masks: dict[tuple[int, ResiduePart], Mask] = {}
    for number, part, mask in roots:
        _join(masks, (number, part), mask)
    found: Cone = {}
    for number in range(max((number for number, _ in masks), default=-1), -1, -1):
        step = tape.steps[number]
        for part in wanted[number]:
            seen = masks.pop((number, part), None)
            if seen is None:
                continue
            if isinstance(step, LoadStep):
                _join(found, (step.index, step.drawn(part)), seen)
                continue
            behind = read_part(step, part)
            for operand, mask in _operand_masks(step, seen, tape):
                _join(masks, (operand, behind), mask)
    return found


def _join(masks: dict[tuple[int, ResiduePart], Mask], key: tuple[int, ResiduePart], mask: Mask) -> None:
    before = masks.get(key)
    masks[key] = mask if before is None else before | mask


def _operand_masks(step: Step, mask: Mask, tape: Tape) -> list[tuple[int, Mask]]:
    """Return the masks of a step's operands from the mask of its result."""
    match step:
        case LoadStep():
            return []
        case UnaryStep() | ConstantStep():
            return [(step.a, mask)]
        case BinaryStep():
            return [(operand, _shrink(mask, tape.steps[operand].shape)) for operand in (step.a, step.b)]
        case Matmul():
            left, right = tape.steps[step.a].shape, tape.steps[step.b].shape
            rows = _shrink(_any_along(mask, (-1,)), (*left[:-1], 1))
            columns = _shrink(_any_along(mask, (-2,)), (*right[:-2], 1, right[-1]))
            return [(step.a, np.broadcast_to(rows, left)), (step.b, np.broadcast_to(columns, right))]
        case SumStep():
            shape = (*step.shape[: step.axis], step.extent // step.kept, *step.shape[step.axis :])
            spread = np.broadcast_to(np.expand_dims(mask, step.axis), shape)
            return [(step.a, spread.reshape(tape.steps[step.a].shape))]
        case Reshape():
            return [(step.a, mask.reshape(tape.steps[step.a].shape))]
        case Transpose():
            return [(step.a, mask.transpose(np.argsort(step.perm)))]
        case ConcatStep():
            low, high = np.split(mask, [tape.steps[step.a].shape[step.axis]], axis=step.axis)
            return [(step.a, low), (step.b, high)]
        case SliceStep():
            behind = tape.steps[step.a].shape[step.axis] - step.start - mask.shape[step.axis]
            around = [(step.start, behind) if axis == step.axis else (0, 0) for axis in range(mask.ndim)]
            return [(step.a, np.pad(mask, around))]
        case RepeatStep():
            return [(step.a, _any_along(mask, (step.axis,)))]
        case OrderStep():
            raise AssertionError("needs() has refused this tape")
        case _:
            assert_never(step)


def _shrink(mask: Mask, shape: Shape) -> Mask:
    """Return the mask of a broadcast operand: an element matters if any of its copies does."""
    axes = tuple(i for i, extent in enumerate(shape) if extent == 1 and mask.shape[i] != 1)
    return _any_along(mask, axes) if axes else mask


def _any_along(mask: Mask, axes: tuple[int, ...]) -> Mask:
    return np.asarray(mask.any(axis=axes, keepdims=True))
