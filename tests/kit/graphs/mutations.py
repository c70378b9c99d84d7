"""Every single change of a µGraph that a faulty search could make, for tests.

``single_mutants`` enumerates them with a label saying what was changed; many are wrong, some are ill-formed, some
compute the same. ``double_mutants`` samples pairs of changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
)
from mirage_formal.graph.ops import SPECS, Attrs, OpKind

UNARY = (OpKind.EXP, OpKind.SQRT, OpKind.SQUARE, OpKind.SILU)
BINARY = (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV)
EXTREMES = (OpKind.MAXIMUM, OpKind.MINIMUM)
COMPARISONS = (OpKind.EQ, OpKind.LT, OpKind.LE, OpKind.GT, OpKind.GE)
ROUNDINGS = (OpKind.ROUND_FLOAT16, OpKind.ROUND_BFLOAT16, OpKind.RELU)
#: The last of these and of the roundings takes no other one's place: what it is changed to stands above.
QUOTIENTS = (OpKind.DIV_NO_NAN, OpKind.DIV)
ACCUMULATORS = (OpKind.ACCUM_SUM, OpKind.ACCUM_SUM_LAST, OpKind.ACCUM_MEAN_LAST, OpKind.ACCUM_RMS_LAST)
REDUCTIONS = (OpKind.SUM, OpKind.MEAN, OpKind.RMS_NORM, OpKind.LAYER_NORM)
DIMS = (None, 0, 1, 2)

Mutant = tuple[str, KernelGraph]
T = TypeVar("T")


def single_mutants(graph: KernelGraph) -> Iterator[Mutant]:
    """All single changes, in a fixed order."""
    for index, op in enumerate(graph.ops):
        if isinstance(op, GraphDefined):
            for label, block in _block(op.graph):
                yield label, _with_op(graph, index, replace(op, graph=block))
        else:
            for label, changed in _op(op):
                yield f"kernel {label}", _with_op(graph, index, changed)
        first = len(graph.inputs) + sum(earlier.results for earlier in graph.ops[:index])
        for label, operands in _operands(op.operands, first):
            yield f"kernel {label}", _with_op(graph, index, replace(op, operands=operands))


def double_mutants(graph: KernelGraph, rng: random.Random, count: int) -> Iterator[Mutant]:
    """``count`` pairs of changes at random, ten for each first change that is drawn."""
    firsts = list(single_mutants(graph))
    for _ in range(count // 10):
        label, once = rng.choice(firsts)
        for second, twice in rng.sample(list(single_mutants(once)), 10):
            yield f"{label} + {second}", twice


def _with_op(graph: KernelGraph, index: int, op: KernelOp) -> KernelGraph:
    return replace(graph, ops=(*graph.ops[:index], op, *graph.ops[index + 1 :]))


def _set(items: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*items[:index], value, *items[index + 1 :])


def _operands(operands: tuple[int, ...], first: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Operands swapped, or replaced by any earlier tensor."""
    for i in range(len(operands)):
        for j in range(i):
            yield "operand order", _set(_set(operands, i, operands[j]), j, operands[i])
        for other in range(first):
            if other != operands[i]:
                yield "operand", _set(operands, i, other)


def _op(op: Op) -> Iterator[tuple[str, Op]]:
    """Another operator or other attributes, same operands."""
    yield from _operator(op)
    match op.kind:
        case OpKind.ACCUM_SUM:
            yield "accumulator", Op(OpKind.ACCUM_SUM_TO_DIMX, op.operands)
            for dim in (0, 1, 2):
                yield "accumulator", Op(OpKind.ACCUM_CONCAT, op.operands, Attrs(dim=dim))
        case OpKind.ACCUM_SUM_TO_DIMX:
            yield "accumulator", Op(OpKind.ACCUM_SUM, op.operands)
            yield "accumulator", Op(op.kind, op.operands, Attrs(dim=0))
        case OpKind.SCALE:
            factor = op.attrs.factor
            assert factor is not None
            for wrong in (Fraction(1), 1 / factor if factor else Fraction(2), factor / 2, -factor, factor**2):
                yield "scale", Op(op.kind, op.operands, Attrs(factor=wrong))
        case OpKind.SHIFT:
            assert op.attrs.shift is not None
            for shift in (-op.attrs.shift, op.attrs.shift + 1):
                yield "shift", Op(op.kind, op.operands, Attrs(shift=shift))
        case OpKind.SLICE:
            assert op.attrs.start is not None
            assert op.attrs.stop is not None
            for step in (-1, 1):
                moved = replace(op.attrs, start=op.attrs.start + step, stop=op.attrs.stop + step)
                yield "slice", Op(op.kind, op.operands, moved)
        case OpKind.PAD:
            yield "pad", Op(op.kind, op.operands, replace(op.attrs, before=op.attrs.after, after=op.attrs.before))
        case kind if kind in REDUCTIONS:
            yield from _reduction(op)


def _operator(op: Op) -> Iterator[tuple[str, Op]]:
    """Another operator of those that are easily mistaken for it, or another number in place of its last operand."""
    group: tuple[OpKind, ...]
    for group, label in (
        (UNARY, "operator"),
        (BINARY, "operator"),
        (EXTREMES, "operator"),
        (COMPARISONS, "comparison"),
        (ACCUMULATORS, "accumulator"),
    ):
        if op.kind in group:
            yield from ((label, Op(kind, op.operands, op.attrs)) for kind in group if kind is not op.kind)
    for group in (ROUNDINGS, QUOTIENTS):
        if op.kind in group[:-1]:
            yield from (("operator", Op(kind, op.operands)) for kind in group if kind is not op.kind)
    if op.attrs.value is not None:
        for value in (op.attrs.value + 1, -op.attrs.value - Fraction(1, 2)):
            yield "value", replace(op, attrs=replace(op.attrs, value=value))


def _reduction(op: Op) -> Iterator[tuple[str, Op]]:
    for kind in REDUCTIONS:
        for dim in (0, 1, 2):
            if (kind, dim) != (op.kind, op.attrs.dim):
                yield "reduction", Op(kind, op.operands, replace(op.attrs, dim=dim))
    if op.kind is OpKind.RMS_NORM:
        yield "eps", Op(op.kind, op.operands, replace(op.attrs, eps=Fraction(1, 10)))


def _block(block: BlockGraph) -> Iterator[tuple[str, BlockGraph]]:
    for number, iterator in enumerate(block.inputs):
        for label, changed in _iterator(iterator):
            yield label, replace(block, inputs=_set(block.inputs, number, changed))
    for number, saver in enumerate(block.outputs):
        for label, written in _saver(saver, len(block.inputs) + len(block.ops)):
            yield label, replace(block, outputs=_set(block.outputs, number, written))
    for extent in (1, 2, 3, 4):
        if extent != block.forloop_range:
            yield "loop range", replace(block, forloop_range=extent)
        if extent != block.reduction_dimx:
            yield "dimx", replace(block, reduction_dimx=extent)
    yield "grid", replace(block, grid=(block.grid[1], block.grid[0], block.grid[2]))
    for index, op in enumerate(block.ops):
        if not isinstance(op, ThreadDefined):
            for label, other in _op(op):
                yield label, replace(block, ops=_set(block.ops, index, other))
            yield from _without(block, index, op)
            yield from _doubled(block, index, op)
        for label, operands in _operands(op.operands, len(block.inputs) + index):
            yield label, replace(block, ops=_set(block.ops, index, replace(op, operands=operands)))


def _entries(maps: tuple[int | None, ...]) -> Iterator[tuple[bool, tuple[int | None, ...]]]:
    """A map with one entry changed, or two swapped: (whether the last entry is concerned, map)."""
    for axis in range(len(maps)):
        for dim in DIMS:
            if dim != maps[axis]:
                yield axis == 3, _set(maps, axis, dim)
        for other in range(axis):
            if maps[axis] != maps[other]:
                yield axis == 3, _set(_set(maps, axis, maps[other]), other, maps[axis])


def _iterator(iterator: InputIterator) -> Iterator[tuple[str, InputIterator]]:
    for loop, maps in _entries((*iterator.imap, iterator.fmap)):
        yield "fmap" if loop else "imap", replace(iterator, imap=(maps[0], maps[1], maps[2]), fmap=maps[3])


def _saver(saver: OutputSaver, tensors: int) -> Iterator[tuple[str, OutputSaver]]:
    for _, omap in _entries(saver.omap):
        yield "omap", replace(saver, omap=(omap[0], omap[1], omap[2]))
    for operand in range(tensors):
        if operand != saver.operand:
            yield "output", replace(saver, operand=operand)


def _renumber(block: BlockGraph, ops: Sequence[tuple[BlockOp, bool]], number: int, step: int) -> BlockGraph:
    """The block with ``ops`` and every use of a tensor after ``number`` moved by ``step``."""

    def moved(i: int) -> int:
        return i + step if i > number else i

    def use(op: BlockOp, at: bool) -> BlockOp:
        return op if at else replace(op, operands=tuple(moved(i) for i in op.operands))

    return replace(
        block,
        ops=tuple(use(op, at) for op, at in ops),
        outputs=tuple(replace(saver, operand=moved(saver.operand)) for saver in block.outputs),
    )


def _without(block: BlockGraph, index: int, op: Op) -> Iterator[tuple[str, BlockGraph]]:
    """Operator ``index`` left out: its users read its first operand."""
    number = len(block.inputs) + index
    label = "missing accumulator" if SPECS[op.kind].accumulator else "dropped operator"

    def around(i: int) -> int:
        return op.operands[0] if i == number else i - (i > number)

    rest = (*block.ops[:index], *block.ops[index + 1 :])
    yield (
        label,
        replace(
            block,
            ops=tuple(replace(other, operands=tuple(around(i) for i in other.operands)) for other in rest),
            outputs=tuple(replace(saver, operand=around(saver.operand)) for saver in block.outputs),
        ),
    )


def _doubled(block: BlockGraph, index: int, op: Op) -> Iterator[tuple[str, BlockGraph]]:
    """Something put behind operator ``index``: the same accumulator again, a square, a factor, a sum."""
    number = len(block.inputs) + index
    extras = [
        ("extra operator", Op(OpKind.SQUARE, (number,))),
        ("extra operator", Op(OpKind.SCALE, (number,), Attrs(factor=Fraction(3)))),
        ("extra operator", Op(OpKind.ADD, (number, number))),
        ("extra operator", Op(OpKind.SUM, (number,), Attrs(dim=0))),
    ]
    if SPECS[op.kind].accumulator:
        extras.append(("doubled accumulator", Op(OpKind.ACCUM_SUM, (number,))))
    for label, extra in extras:
        tail = [(later, False) for later in block.ops[index + 1 :]]
        shifted = _renumber(block, [*((o, True) for o in block.ops[: index + 1]), (extra, True), *tail], number - 1, 1)
        # Uses of the operator itself now read the extra one; uses of later tensors moved by one.
        yield label, shifted
