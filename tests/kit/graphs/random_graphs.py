"""Random well-formed µGraphs for tests: maps, loops and operators at random, several kernels in a row.

Two grid axes may split one dim, the loop may split a dim that a grid axis splits, tensors may be replicated.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    KernelOp,
    Op,
    OutputSaver,
    ThreadDefined,
    ThreadGraph,
)
from mirage_formal.graph.ops import SPECS, VALUED, Attrs, BlockContext, Level, OpKind
from mirage_formal.graph.type_rules import device_results, shared_results
from mirage_formal.graph.types import DTensor, DType, Shape, STensor, row_major

SHAPES = ((4, 12), (12, 4), (4, 4), (12, 12), (1, 12), (12, 1), (4, 1))
ORDERED = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "none")
ROOTS = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "root")
EXPONENTIALS = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "exponential")


T = TypeVar("T", DTensor, STensor)
#: Operators whose first operand is a mask.
READS_MASK = (OpKind.SELECT, OpKind.LOGICAL_NOT)


@dataclass
class _Tile:
    tensor: STensor
    varies: set[int]  # grid axes and the loop (3) on which it depends


def random_graph(rng: random.Random, kinds: frozenset[OpKind], kernels: int = 2) -> KernelGraph:
    """A graph with up to ``kernels`` kernels over operators from ``kinds``; often with a mask if one can be read."""
    shapes: list[Shape] = [rng.choice(SHAPES) for _ in range(rng.randint(2, 3))]
    tensors = [DTensor(shape, DType.FLOAT16) for shape in shapes]
    if kinds.intersection(READS_MASK) and rng.random() < 0.6:
        tensors.append(DTensor(rng.choice(shapes), DType.BOOL))
    inputs = tuple(Input(f"t{i}", tensor, row_major(tensor.shape)) for i, tensor in enumerate(tensors))
    ops: list[KernelOp] = []
    while len(ops) < kernels:
        if rng.random() < 0.3:
            made = _operator(rng, [k for k in kinds if Level.KERNEL in SPECS[k].levels], tensors)
            if made is not None:
                ops.append(made[0])
                tensors += made[1]
        else:
            op, produced = _kernel(rng, kinds, tensors)
            if op is not None:
                ops.append(op)
                tensors += produced
    return KernelGraph(inputs, tuple(ops), (len(tensors) - 1,))


def with_masks(graph: KernelGraph, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Values for the inputs of a graph: those of masks are 1 where they are above the median, and else 0."""
    return [
        array if item.tensor.dtype.floating else (array > np.median(array)).astype(array.dtype)
        for item, array in zip(graph.inputs, arrays, strict=True)
    ]


def _attrs(rng: random.Random, kind: OpKind, given: Sequence[DTensor] | Sequence[STensor]) -> Attrs:
    shape = given[0].shape
    dim = rng.randrange(len(shape))
    if kind in VALUED and len(given) < SPECS[kind].max_arity:
        return Attrs(value=Fraction(rng.randint(-9, 9), rng.randint(1, 9)))
    match kind:
        case OpKind.SCALE:
            return Attrs(factor=Fraction(rng.randint(-9, 9) or 1, rng.randint(1, 9)))
        case OpKind.SHIFT:
            return Attrs(shift=Fraction(rng.randint(-9, 9) or 1, rng.randint(1, 9)))
        case OpKind.SLICE:
            start = rng.randrange(shape[dim])
            return Attrs(dim=dim, start=start, stop=rng.randint(start + 1, shape[dim]))
        case OpKind.PAD:
            return Attrs(dim=dim, before=rng.randint(0, 2), after=rng.randint(1, 2))
        case OpKind.TRANSPOSE:
            perm = list(range(len(shape)))
            rng.shuffle(perm)
            return Attrs(perm=tuple(perm))
        case OpKind.RESHAPE:
            return Attrs(shape=(shape[0] * shape[1] // 2, 2) if shape[0] * shape[1] % 2 == 0 else shape)
        case OpKind.REPEAT:
            return Attrs(dim=dim, times=3)
        case OpKind.CAST:
            return Attrs(dtype=rng.choice((DType.FLOAT16, DType.FLOAT32)))
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return Attrs(dim=dim, eps=rng.choice([None, Fraction(1, 8)]))
    return Attrs(dim=dim if "dim" in SPECS[kind].required else None)


def _operator(
    rng: random.Random, kinds: Collection[OpKind], tensors: Sequence[DTensor]
) -> tuple[Op, list[DTensor]] | None:
    """(operator, results) with operands among the tensors, or None if a few tries fail."""
    for op, operands in _tried(rng, kinds, tensors):
        found = device_results(op.kind, op.attrs, operands)
        if not isinstance(found, str):
            return op, list(found)
    return None


def _tile_operator(
    rng: random.Random, kinds: Collection[OpKind], tensors: Sequence[STensor], context: BlockContext
) -> tuple[Op, list[STensor]] | None:
    for op, operands in _tried(rng, kinds, tensors):
        found = shared_results(op.kind, op.attrs, operands, context)
        if not isinstance(found, str):
            return op, list(found)
    return None


def _tried(rng: random.Random, kinds: Collection[OpKind], tensors: Sequence[T]) -> Iterator[tuple[Op, tuple[T, ...]]]:
    """Operators with operands, whether they fit or not; masks stand where only they do."""
    masks = [i for i, tensor in enumerate(tensors) if not tensor.dtype.floating]
    others = [i for i in range(len(tensors)) if i not in masks]
    for _ in range(20):
        kind = rng.choice(sorted(kinds))
        spec = SPECS[kind]
        every = range(len(tensors))
        first: Sequence[int] = masks if masks and kind in READS_MASK else every
        rest: Sequence[int] = others if others and kind is OpKind.SELECT else every
        count: int = rng.randint(spec.min_arity, spec.max_arity)
        operands = (rng.choice(first), *(rng.choice(rest) for _ in range(count - 1)))
        picked = tuple(tensors[i] for i in operands)
        yield Op(kind, operands, _attrs(rng, kind, picked)), picked


def _iterator(rng: random.Random, tensor: DTensor, grid: Sequence[int], iterations: int) -> tuple[InputIterator, _Tile]:
    size = list(tensor.shape)
    maps = []
    for extent in grid:
        dims = [d for d in range(len(size)) if size[d] % extent == 0]
        dim = rng.choice(dims) if dims and rng.random() < 0.7 else None
        if dim is not None:
            size[dim] //= extent
        maps.append(dim)
    dims = [d for d in range(len(size)) if size[d] % iterations == 0]
    loop = rng.choice(dims) if dims and rng.random() < 0.7 else None
    if loop is not None:
        size[loop] //= iterations
    varies = {a for a in range(3) if maps[a] is not None and grid[a] > 1}
    if loop is not None and iterations > 1:
        varies.add(3)
    tile = STensor(tuple(size), tensor.dtype, after_loop=False)
    return InputIterator((maps[0], maps[1], maps[2]), loop), _Tile(tile, varies)


def _kernel(
    rng: random.Random, kinds: Collection[OpKind], given: Sequence[DTensor]
) -> tuple[GraphDefined | None, list[DTensor]]:
    grid = (rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3)))
    iterations = rng.choice((1, 2, 3))
    operands = tuple(rng.sample(range(len(given)), min(len(given), rng.randint(1, 3))))
    loaded = [_iterator(rng, given[i], grid, iterations) for i in operands]
    tensors = [tensor for _, tensor in loaded]
    ops: list[BlockOp] = []
    context = BlockContext(iterations, 2)
    body = [k for k in kinds if Level.BLOCK in SPECS[k].levels and not SPECS[k].accumulator]
    closing = [k for k in kinds if SPECS[k].accumulator]
    _grow(rng, ops, tensors, body, context, rng.randint(0, 4), after=False)
    _grow(rng, ops, tensors, closing, context, rng.randint(1, 2), after=False)
    done = [i for i, tile in enumerate(tensors) if tile.tensor.after_loop]
    if not done:
        return None, []
    if rng.random() < 0.6:
        _grow(rng, ops, tensors, body, context, rng.randint(1, 3), after=True)
    done = [i for i, tile in enumerate(tensors) if tile.tensor.after_loop]
    savers, produced = [], []
    for number in {done[-1], rng.choice(done)}:
        tensor, varies = tensors[number].tensor, tensors[number].varies
        omap = [rng.randrange(len(tensor.shape)) if axis in varies or rng.random() < 0.2 else None for axis in range(3)]
        shape = list(tensor.shape)
        for axis, dim in enumerate(omap):
            if dim is not None:
                shape[dim] *= grid[axis]
        savers.append(OutputSaver(number, (omap[0], omap[1], omap[2])))
        produced.append(DTensor(tuple(shape), tensor.dtype))
    graph = BlockGraph(grid, (128, 1, 1), iterations, 2, tuple(i for i, _ in loaded), tuple(ops), tuple(savers))
    return GraphDefined(operands, graph), produced


def _grow(
    rng: random.Random,
    ops: list[BlockOp],
    tensors: list[_Tile],
    kinds: Collection[OpKind],
    context: BlockContext,
    count: int,
    *,
    after: bool,
) -> None:
    """Append up to ``count`` operators on tensors before, or behind, the accumulators."""
    for _ in range(count):
        usable = [i for i, tile in enumerate(tensors) if tile.tensor.after_loop == after]
        if after:
            kinds = [k for k in kinds if k is not OpKind.RUNNING_MAX]
        made = _tile_operator(rng, kinds, [tensors[i].tensor for i in usable], context) if kinds else None
        if made is None:
            continue
        op, produced = made
        numbers = tuple(usable[i] for i in op.operands)
        varies = set().union(*(tensors[i].varies for i in numbers))
        closes = SPECS[op.kind].accumulator
        if op.kind is OpKind.RUNNING_MAX and context.forloop_range > 1:
            varies = varies | {3}
        if closes:
            varies = varies - {3}
        spec = SPECS[op.kind]
        if Level.THREAD in spec.levels and rng.random() < 0.3 and produced[0].dtype.floating:
            # As a thread graph of two operators: the operator, then a square.
            inner = Op(op.kind, tuple(range(len(numbers))), op.attrs)
            square = Op(OpKind.SQUARE, (len(numbers),))
            ops.append(ThreadDefined(numbers, ThreadGraph(len(numbers), (inner, square), (len(numbers) + 1,))))
        else:
            ops.append(Op(op.kind, numbers, op.attrs))
        tensors.extend(_Tile(tensor, varies) for tensor in produced)
