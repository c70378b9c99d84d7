"""Kernels that move elements or map them one by one: functions, arithmetic, concatenations, pads, slices, copies.

A result is cut into vectors of neighbouring elements, as wide as its innermost run allows; a thread has several of
them, and all its loads are issued before its first store. What is read is a box of the result for each operand, at
fixed strides: dims that lie one behind another for all of them are one dim, so that a vector's place costs few
divisions. A transposed operand is read along its own rows, in tiles of whole sectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Final

from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import ARITHMETIC, FUNCTIONS, OpKind
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.kernels.lowering.context import TID, loop, when
from mirage_formal.kernels.program.index import Indices
from mirage_formal.kernels.program.integers import ONE, ZERO, negated
from mirage_formal.kernels.program.program import (
    Apply,
    BinaryFn,
    Combine,
    GlobalRead,
    GlobalVector,
    GlobalWrite,
    Int,
    IntExpr,
    Param,
    Program,
    Real,
    Reg,
    Registers,
    SetReg,
    Stmt,
    UnaryFn,
    Value,
    Var,
    binary_fn,
)
from mirage_formal.kernels.target import Target

_THREADS: Final = 128
_VECTOR_BYTES: Final = 16
#: Vectors that a thread has in flight, while there are this many blocks for each multiprocessor.
_IN_FLIGHT: Final = 4
_BLOCKS_PER_SM: Final = 4
_WARP: Final = 32

#: An operand: its type, its strides and where its first element lies, both in elements.
Operand = tuple[DTensor, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class _Box:
    """What is read of an operand: element (i, j, ...) of the result at offset + i * strides[0] + j * strides[1] ...

    Attributes:
        operand: Its number.
        slot: The registers that it is read into; operands that fill different parts of a result share theirs.
        strides: In elements; 0 where the operand is repeated.
        offset: In elements; of the first element of the part that is read.
        low, high: Bounds of that part along the dim that is split.
    """

    operand: int
    slot: int
    strides: tuple[int, ...]
    offset: int
    low: int = 0
    high: int = 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """A result and what it is made of.

    Attributes:
        shape: The result's extents, those of dims that follow one another multiplied.
        steps: Its strides.
        split: The dim along which boxes fill parts of it, if they do.
        boxes: What is read.
    """

    shape: Shape
    steps: tuple[int, ...]
    split: int | None
    boxes: tuple[_Box, ...]

    def joined(self) -> _Layout:
        """The same with as few dims as possible; the row-major order of elements stays."""
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
        return _Layout(shape, tuple(self.steps[d] for d in last), split, boxes)

    def _follows(self, outer: int, inner: int, strides: tuple[int, ...]) -> bool:
        return strides[outer] == strides[inner] * self.shape[inner]

    def cut(self, dim: int, inner: int) -> _Layout:
        """The same with one dim as two, the inner one of this extent; bounds along it are multiples of that."""

        def two(values: tuple[int, ...]) -> tuple[int, ...]:
            return (*values[:dim], values[dim] * inner, *values[dim:])

        shape = (*self.shape[:dim], self.shape[dim] // inner, inner, *self.shape[dim + 1 :])
        split = self.split if self.split is None or self.split <= dim else self.split + 1
        unit = inner if self.split == dim else 1
        boxes = tuple(replace(b, strides=two(b.strides), low=b.low // unit, high=b.high // unit) for b in self.boxes)
        return _Layout(shape, two(self.steps), split, boxes)

    def ordered(self, dims: Sequence[int]) -> _Layout:
        """The same with its dims in another order."""

        def order(values: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(values[d] for d in dims)

        split = None if self.split is None else dims.index(self.split)
        boxes = tuple(replace(b, strides=order(b.strides)) for b in self.boxes)
        return _Layout(order(self.shape), order(self.steps), split, boxes)


def pointwise(
    name: str, op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target, params: tuple[Param, ...]
) -> Program:
    """The kernel of an operator that moves or maps elements.

    Args:
        name: Its name.
        op: Any operator but a product, a reduction or a norm.
        operands: What it reads.
        result: What it writes, row-major.
        target: The GPU that it is for.
        params: The operands and the result.
    """
    layout = _layout(op, operands, result).joined()
    least = min(param.dtype.bytes for param in params)
    width = _VECTOR_BYTES // least
    ends = [end for b in layout.boxes for end in (b.low, b.high)] if layout.split == len(layout.shape) - 1 else []
    runs = [layout.shape[-1] if layout.shape else 1, *ends]
    while any(run % width for run in runs):
        width //= 2
    return _Writer(op, operands, result, target, width, layout).program(name, params)


# --- what is read where ----------------------------------------------------------------------------------------------


def _layout(op: Op, operands: tuple[Operand, ...], result: DTensor) -> _Layout:
    """The result of an operator, and the boxes that it is made of."""
    attrs, (tensor, strides, offset) = op.attrs, operands[0]
    shape, split = result.shape, None
    boxes = [
        _Box(i, i, tuple(0 if n == 1 else s for n, s in zip(given.shape, steps, strict=True)), first)
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
    if split is not None:  # a part of extent 1 has any step there, so the one that follows the dims behind
        behind = next((d for d in range(split + 1, len(shape)) if shape[d] > 1), None)
        for i, b in enumerate(boxes):
            if b.high - b.low == 1:
                step = 1 if behind is None else b.strides[behind] * shape[behind]
                boxes[i] = replace(b, strides=(*b.strides[:split], step, *b.strides[split + 1 :]))
    return _Layout(shape, row_major(shape), split, tuple(boxes))


def _tiled(layout: _Layout, width: int, size: int) -> tuple[_Layout, int]:
    """The layout in vectors, its last dim what a vector holds, and the threads of a block if that has one tile.

    Where no operand has neighbours along the result's rows, a block takes a tile of as many rows as the first operand
    has neighbours in a warp's load, and of several vectors of each: loads and stores then have whole sectors.

    Args:
        layout: A result and what it is made of.
        width: Elements of a vector.
        size: Bytes of an element of the result.
    """
    if not layout.shape:
        boxes = tuple(replace(b, strides=(0,)) for b in layout.boxes)
        return _Layout((1,), (1,), None, boxes), 0
    layout = layout.cut(len(layout.shape) - 1, width)
    strides, last = layout.boxes[0].strides, len(layout.shape) - 1
    near = next((d for d in range(last - 1) if strides[d] == 1 and d != layout.split), None)
    if near is None or layout.split == last - 1 or any(b.strides[last] == 1 for b in layout.boxes):
        return layout, 0
    rows = gcd(layout.shape[near], _WARP)
    vectors = gcd(layout.shape[last - 1], _THREADS // rows)
    if rows * vectors < _WARP or width * vectors * size < _VECTOR_BYTES:
        return layout, 0
    cut = layout.cut(last - 1, vectors).cut(near, rows)
    rest = [d if d <= near else d + 1 for d in range(last) if d != near]
    return cut.ordered([*rest, near, last + 1, near + 1, last + 2]), rows * vectors


# --- statements ------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes one kernel."""

    def __init__(
        self, op: Op, operands: tuple[Operand, ...], result: DTensor, target: Target, width: int, layout: _Layout
    ) -> None:
        self.op, self.operands, self.result, self.width = op, operands, result, width
        self.layout, self.tile = _tiled(layout, width, result.dtype.bytes)
        self.count = result.elements // width
        wanted = 1 if self.tile else self.count // (_THREADS * _BLOCKS_PER_SM * target.sms)
        self.each = next(n for n in (_IN_FLIGHT, 2, 1) if n <= max(1, wanted))
        self.threads = self.tile or min(_THREADS, -(-self.count // _WARP) * _WARP)
        self.blocks = -(-self.count // (self.threads * self.each))
        self.ix = Indices({"bx": self.blocks, "tid": self.threads})

    def program(self, name: str, params: tuple[Param, ...]) -> Program:
        """The kernel."""
        boxes = self.layout.boxes
        # What is repeated along a vector is read once, unless another operand has other vectors of the same registers.
        spread = {b.slot for b in boxes if b.strides[-1] != 0}
        lanes = {b.slot: self.width if b.slot in spread else 1 for b in boxes}
        body: list[Stmt] = [
            Registers(f"v{slot}", self.each * n, initial=0.0 if self.op.kind is OpKind.PAD else None)
            for slot, n in lanes.items()
        ]
        u, _, inside, at = self._vector()
        loads = [stmt for box in boxes for stmt in self._load(box, u, at, lanes[box.slot])]
        body += loop(u, self.each, when(inside, loads), unroll=True)
        u, first, inside, _ = self._vector()
        body += loop(u, self.each, when(inside, tuple(self._store(u, first, lanes))), unroll=True)
        return Program(name, params, (), (self.blocks, 1, 1), self.threads, tuple(body))

    def _vector(self) -> tuple[IntExpr, IntExpr, IntExpr, tuple[IntExpr, ...]]:
        """(which of a thread's vectors, where it begins, whether it is one, its coordinates)."""
        ix, shape, block = self.ix, self.layout.shape[:-1], Var("bx") if self.blocks > 1 else ZERO
        if self.tile:
            at = (*ix.unravel(block, shape[:-2]), *ix.unravel(TID, shape[-2:]))
            return ZERO, ix.ravel(at, self.layout.steps[:-1]), ONE, at
        u = ZERO if self.each == 1 else ix.variable(self.each, "u")
        vector = ix.add(ix.mul(block, self.threads * self.each), ix.mul(u, self.threads), TID)
        return u, ix.mul(vector, self.width), ix.less(vector, self.count), ix.unravel(vector, shape)

    def _load(self, box: _Box, u: IntExpr, at: tuple[IntExpr, ...], lanes: int) -> tuple[Stmt, ...]:
        """Reads what an operand has of one vector."""
        ix, array, param = self.ix, f"v{box.slot}", f"In{box.operand}"
        condition: IntExpr = ONE
        if self.layout.split is not None:
            dim = self.layout.split
            after = ONE if box.low == 0 else negated(ix.less(at[dim], box.low))
            condition = ix.both((after, ix.less(at[dim], box.high)))
            at = (*at[:dim], ix.sub(at[dim], Int(box.low)), *at[dim + 1 :])
        first = ix.add(ix.ravel(at, box.strides[:-1]), Int(box.offset))
        to = ix.mul(u, lanes)
        wide = self._wide(box)
        if wide > 1:
            parts = range(0, lanes, wide)
            found: tuple[Stmt, ...] = tuple(
                GlobalVector(array, ix.add(to, Int(part)), param, ix.add(first, Int(part)), wide) for part in parts
            )
        else:
            k = ZERO if lanes == 1 else ix.variable(lanes, "k")
            item = SetReg(array, ix.add(to, k), GlobalRead(param, ix.add(first, ix.mul(k, box.strides[-1]))))
            found = loop(k, lanes, (item,), unroll=True)
        return when(condition, found)

    def _wide(self, box: _Box) -> int:
        """Elements of one load of an operand."""
        wide = self.width if box.strides[-1] == 1 else 1
        wide = min(wide, _VECTOR_BYTES // self.operands[box.operand][0].dtype.bytes)
        steps = [s for s, n in zip(box.strides[:-1], self.layout.shape[:-1], strict=True) if n > 1]
        while any(step % wide for step in (*steps, box.offset)):
            wide //= 2
        return wide

    def _store(self, u: IntExpr, first: IntExpr, lanes: dict[int, int]) -> Iterator[Stmt]:
        """Computes and writes one vector of the result."""
        ix, most = self.ix, _VECTOR_BYTES // self.result.dtype.bytes
        for part in range(0, self.width, most):
            values = tuple(
                self._value([Reg(f"v{s}", ix.add(ix.mul(u, n), Int(k if n > 1 else 0))) for s, n in lanes.items()])
                for k in range(part, min(part + most, self.width))
            )
            yield GlobalWrite("Out", ix.add(first, Int(part)), values)

    def _value(self, given: list[Reg]) -> Value:
        """An element of the result."""
        kind, attrs = self.op.kind, self.op.attrs
        if kind in FUNCTIONS:
            return Apply(UnaryFn(kind.value), given[0])
        if kind in ARITHMETIC:
            return Combine(binary_fn(kind), *given)
        if kind is OpKind.SCALE:
            assert attrs.factor is not None
            return Combine(BinaryFn.MUL, given[0], Real(float(attrs.factor)))
        if kind is OpKind.SHIFT:
            assert attrs.shift is not None
            return Combine(BinaryFn.ADD, given[0], Real(float(attrs.shift)))
        return given[0]
