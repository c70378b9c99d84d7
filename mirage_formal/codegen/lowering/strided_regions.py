"""Strided regions read by elementwise and data-movement operators: for each operand a box of the result.

Dims of the result that merge into one dim for all operands are merged, so that an index needs few divisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from mirage_formal.codegen.lowering.context import LOWEST, make_loop
from mirage_formal.codegen.program.index import IndexBuilder
from mirage_formal.codegen.program.integers import ONE, ZERO, negate
from mirage_formal.codegen.program.program import (
    Apply,
    BinaryFn,
    Combine,
    GlobalRead,
    GlobalVector,
    Int,
    IntExpr,
    Real,
    SetReg,
    Stmt,
    Value,
    Where,
    binary_fn,
    unary_fn,
)
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import ARITHMETIC, COMPARISONS, FUNCTIONS, MOVES, SPECS, OpKind
from mirage_formal.graph.types import DTensor, Shape, row_major

#: Bytes of the widest access.
VECTOR_BYTES = 16

#: An operand: its type, its strides and the offset of its first element, both in elements.
Operand = tuple[DTensor, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Box:
    """The region read of an operand: element (i, j, ...) of the result at offset + i * strides[0] + j * strides[1] ...

    Attributes:
        operand: Its number.
        slot: The registers that receive it; operands that fill different parts of a result share a slot.
        strides: Strides in elements; 0 where the operand is repeated.
        offset: The offset in elements of the first element that is read.
        low, high: Bounds of the filled part of the result along the split dim.
    """

    operand: int
    slot: int
    strides: tuple[int, ...]
    offset: int
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """A result and the boxes that fill it.

    Attributes:
        shape: The result's extents, with adjacent dims merged.
        steps: Its strides.
        split: The dim along which boxes fill parts of it, if they do.
        boxes: The boxes.
    """

    shape: Shape
    steps: tuple[int, ...]
    split: int | None
    boxes: tuple[Box, ...]

    def joined(self) -> RegionLayout:
        """Return the layout with as few dims as possible; the row-major order of elements stays."""
        dims = [d for d, n in enumerate(self.shape) if n > 1]
        runs: list[list[int]] = []
        for d in dims:
            if runs and d != self.split and all(self._follows(runs[-1][-1], d, b.strides) for b in self.boxes):
                runs[-1].append(d)
            else:
                runs.append([d])
        last = [run[-1] for run in runs]
        shape = tuple(prod(self.shape[d] for d in run) for run in runs)
        split = next((i for i, run in enumerate(runs) if run[0] == self.split), None)
        unit = 1 if split is None else prod(self.shape[d] for d in runs[split][1:])
        boxes = tuple(
            replace(b, strides=tuple(b.strides[d] for d in last), low=b.low * unit, high=b.high * unit)
            for b in self.boxes
        )
        return RegionLayout(shape, tuple(self.steps[d] for d in last), split, boxes)

    def _follows(self, outer: int, inner: int, strides: tuple[int, ...]) -> bool:
        return strides[outer] == strides[inner] * self.shape[inner]

    def cut(self, dim: int, inner: int) -> RegionLayout:
        """Return the layout with one dim split in two; the inner extent divides the bounds along the dim."""

        def two(values: tuple[int, ...]) -> tuple[int, ...]:
            return (*values[:dim], values[dim] * inner, *values[dim:])

        shape = (*self.shape[:dim], self.shape[dim] // inner, inner, *self.shape[dim + 1 :])
        split = self.split if self.split is None or self.split <= dim else self.split + 1
        unit = inner if self.split == dim else 1
        boxes = tuple(replace(b, strides=two(b.strides), low=b.low // unit, high=b.high // unit) for b in self.boxes)
        return RegionLayout(shape, two(self.steps), split, boxes)


def layout_of(op: Op, operands: tuple[Operand, ...], result: DTensor) -> RegionLayout:
    """Return the layout of an operator's result: the boxes that fill it, or none for a multiple by 0."""
    if op.kind is OpKind.SCALE and not op.attrs.factor:
        return RegionLayout(result.shape, row_major(result.shape), None, ())
    attrs, (tensor, strides, offset) = op.attrs, operands[0]
    shape, split = result.shape, None
    boxes = [
        Box(i, i, tuple(0 if n == 1 else s for n, s in zip(given.shape, steps, strict=True)), first)
        for i, (given, steps, first) in enumerate(operands)
    ]
    match op.kind:
        case OpKind.RESHAPE:
            shape = tensor.shape  # the order of the elements is the same, and the result has no other
        case OpKind.TRANSPOSE:
            assert attrs.perm is not None
            boxes = [replace(boxes[0], strides=tuple(boxes[0].strides[i] for i in attrs.perm))]
        case OpKind.SLICE:
            assert attrs.dim is not None
            assert attrs.start is not None
            boxes = [replace(boxes[0], offset=offset + attrs.start * strides[attrs.dim])]
        case OpKind.PAD:
            assert attrs.dim is not None
            assert attrs.before is not None
            split = attrs.dim
            boxes = [replace(boxes[0], low=attrs.before, high=attrs.before + tensor.shape[split])]
        case OpKind.CONCAT:
            split = attrs.dim
            assert split is not None
            middle = tensor.shape[split]
            boxes = [replace(boxes[0], high=middle), replace(boxes[1], slot=0, low=middle, high=shape[split])]
        case kind if kind is not OpKind.REPEAT and not SPECS[kind].elementwise:
            raise AssertionError(kind)
    if split is not None:  # a part of extent 1 has any step there, so the one that follows the dims behind
        behind = next((d for d in range(split + 1, len(shape)) if shape[d] > 1), None)
        for i, b in enumerate(boxes):
            if b.high - b.low == 1:
                step = 1 if behind is None else b.strides[behind] * shape[behind]
                boxes[i] = replace(b, strides=(*b.strides[:split], step, *b.strides[split + 1 :]))
    return RegionLayout(shape, row_major(shape), split, tuple(boxes))


# --- statements ------------------------------------------------------------------------------------------------------


def locate(ix: IndexBuilder, layout: RegionLayout, box: Box, at: tuple[IntExpr, ...]) -> tuple[IntExpr, IntExpr]:
    """Return (condition that a box holds an element of the result, position of the element in the operand).

    Args:
        ix: The builder of expressions.
        layout: The layout.
        box: One of its boxes.
        at: Coordinates of the element.
    """
    condition: IntExpr = ONE
    if layout.split is not None:
        dim = layout.split
        after = ONE if box.low == 0 else negate(ix.less(at[dim], box.low))
        condition = ix.both((after, ix.less(at[dim], box.high)))
        at = (*at[:dim], ix.sub(at[dim], Int(box.low)), *at[dim + 1 :])
    return condition, ix.add(ix.ravel(at, box.strides), Int(box.offset))


def load_width(layout: RegionLayout, box: Box, dim: int, most: int) -> int:
    """Return the elements of one load of an operand along a dim of the result: a power of two, at most ``most``.

    The width divides all other strides of the box, its offset, its bounds, and the extent of the dim.
    """
    if box.strides[dim] != 1:
        return 1
    others = [s for d, (s, n) in enumerate(zip(box.strides, layout.shape, strict=True)) if d != dim and n > 1]
    ends = (box.low, box.high) if layout.split == dim else ()
    while any(step % most for step in (*others, *ends, box.offset, layout.shape[dim])):
        most //= 2
    return most


class ElementRun(NamedTuple):
    """The elements of an operand that one thread reads.

    Attributes:
        lanes: The number of elements.
        step: Their distance in memory.
        wide: The elements of one load.
    """

    lanes: int
    step: int
    wide: int


def read_region(ix: IndexBuilder, box: Box, to: IntExpr, first: IntExpr, run: ElementRun) -> tuple[Stmt, ...]:
    """Load elements of an operand into the registers of its slot.

    Args:
        ix: The builder of expressions.
        box: The box of the operand.
        to: The first register.
        first: The position of the first element.
        run: The elements.
    """
    array, param = f"v{box.slot}", f"In{box.operand}"
    if run.wide > 1:
        parts = range(0, run.lanes, run.wide)
        return tuple(GlobalVector(array, ix.add(to, Int(k)), param, ix.add(first, Int(k)), run.wide) for k in parts)
    k = ZERO if run.lanes == 1 else ix.variable(run.lanes, "k")
    item = SetReg(array, ix.add(to, k), GlobalRead(param, ix.add(first, ix.mul(k, run.step))))
    return make_loop(k, run.lanes, (item,), unroll=True)


class Operation(NamedTuple):
    """A predefined operator.

    Attributes:
        op: The operator.
        finite: For a difference, whether the second operand is a maximum, which counts as the lowest finite number
            where it is -inf.
    """

    op: Op
    finite: bool = False

    def __call__(self, given: Sequence[Value]) -> Value:
        """Return an element of the result, from those of the operands."""
        if self.finite:
            given = [given[0], Combine(BinaryFn.MAX, given[1], Real(LOWEST))]
        return _apply_operator(self.op, given)


def _apply_operator(op: Op, given: Sequence[Value]) -> Value:
    kind, attrs = op.kind, op.attrs
    if attrs.value is not None:
        given = [*given, Real(float(attrs.value))]
    if kind in FUNCTIONS or kind is OpKind.LOGICAL_NOT:
        return Apply(unary_fn(kind), given[0])
    if kind in ARITHMETIC or kind in COMPARISONS:
        return Combine(binary_fn(kind), *given)
    if kind is OpKind.SELECT:
        return Where(*given)
    if kind is OpKind.SCALE:
        assert attrs.factor is not None
        return Combine(BinaryFn.MUL, given[0], Real(float(attrs.factor))) if attrs.factor else Real(0.0)
    if kind is OpKind.SHIFT:
        assert attrs.shift is not None
        return Combine(BinaryFn.ADD, given[0], Real(float(attrs.shift)))
    assert kind in MOVES or kind is OpKind.CAST, kind
    return given[0]
