"""Random well-formed µGraphs for tests: maps, loops and operators at random, several kernels in a row.

Two grid axes may split one dim, the loop may split a dim that a grid axis splits, tensors may be replicated.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

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
from mirage_formal.graph.ops import SPECS, Attrs, BlockContext, Level, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape, row_major

SHAPES = ((4, 12), (12, 4), (4, 4), (12, 12), (1, 12), (12, 1), (4, 1))
ORDERED = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "none")
ROOTS = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "root")
EXPONENTIALS = frozenset(kind for kind, spec in SPECS.items() if spec.lax.value == "exponential")


@dataclass
class _STensor:
    shape: Shape
    varies: set[int]  # grid axes and the loop (3) on which it depends
    after: bool


def random_graph(rng: random.Random, kinds: frozenset[OpKind], kernels: int = 2) -> KernelGraph:
    """A graph with up to ``kernels`` kernels over operators from ``kinds``."""
    shapes: list[Shape] = [rng.choice(SHAPES) for _ in range(rng.randint(2, 3))]
    inputs = tuple(Input(f"t{i}", DTensor(shape, DType.FLOAT16), row_major(shape)) for i, shape in enumerate(shapes))
    ops: list[KernelOp] = []
    while len(ops) < kernels:
        if rng.random() < 0.3:
            made = _operator(rng, [k for k in kinds if Level.KERNEL in SPECS[k].levels], shapes, None)
            if made is not None:
                ops.append(made[0])
                shapes += made[1]
        else:
            op, produced = _kernel(rng, kinds, shapes)
            if op is not None:
                ops.append(op)
                shapes += produced
    return KernelGraph(inputs, tuple(ops), (len(shapes) - 1,))


def _attrs(rng: random.Random, kind: OpKind, shapes: Sequence[Shape]) -> Attrs:
    shape = shapes[0]
    dim = rng.randrange(len(shape))
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
            return Attrs(dtype=DType.FLOAT32)
        case OpKind.RMS_NORM | OpKind.LAYER_NORM:
            return Attrs(dim=dim, eps=rng.choice([None, Fraction(1, 8)]))
    return Attrs(dim=dim if "dim" in SPECS[kind].required else None)


def _operator(
    rng: random.Random, kinds: Collection[OpKind], shapes: Sequence[Shape], context: BlockContext | None
) -> tuple[Op, list[Shape]] | None:
    """(operator, result shapes) with operands among ``shapes``, or None if a few tries fail."""
    for _ in range(20):
        kind = rng.choice(sorted(kinds))
        spec = SPECS[kind]
        operands = tuple(rng.randrange(len(shapes)) for _ in range(rng.randint(spec.min_arity, spec.max_arity)))
        picked = tuple(shapes[i] for i in operands)
        attrs = _attrs(rng, kind, picked)
        result = spec.shape(attrs, picked, context)
        if not isinstance(result, str):
            return Op(kind, operands, attrs), list(result)
    return None


def _iterator(rng: random.Random, shape: Shape, grid: Sequence[int], iterations: int) -> tuple[InputIterator, _STensor]:
    size = list(shape)
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
    return InputIterator((maps[0], maps[1], maps[2]), loop), _STensor(tuple(size), varies, False)


def _kernel(
    rng: random.Random, kinds: Collection[OpKind], shapes: Sequence[Shape]
) -> tuple[GraphDefined | None, list[Shape]]:
    grid = (rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2, 3)))
    iterations = rng.choice((1, 2, 3))
    operands = tuple(rng.sample(range(len(shapes)), min(len(shapes), rng.randint(1, 3))))
    loaded = [_iterator(rng, shapes[i], grid, iterations) for i in operands]
    tensors = [tensor for _, tensor in loaded]
    ops: list[BlockOp] = []
    context = BlockContext(iterations, 2)
    body = [k for k in kinds if Level.BLOCK in SPECS[k].levels and not SPECS[k].accumulator]
    closing = [k for k in kinds if SPECS[k].accumulator]
    _grow(rng, ops, tensors, body, context, rng.randint(0, 4), after=False)
    _grow(rng, ops, tensors, closing, context, rng.randint(1, 2), after=False)
    done = [i for i, tensor in enumerate(tensors) if tensor.after]
    if not done:
        return None, []
    if rng.random() < 0.6:
        _grow(rng, ops, tensors, body, context, rng.randint(1, 3), after=True)
    done = [i for i, tensor in enumerate(tensors) if tensor.after]
    savers, produced = [], []
    for number in {done[-1], rng.choice(done)}:
        tensor = tensors[number]
        omap = [
            rng.randrange(len(tensor.shape)) if axis in tensor.varies or rng.random() < 0.2 else None
            for axis in range(3)
        ]
        shape = list(tensor.shape)
        for axis, dim in enumerate(omap):
            if dim is not None:
                shape[dim] *= grid[axis]
        savers.append(OutputSaver(number, (omap[0], omap[1], omap[2])))
        produced.append(tuple(shape))
    graph = BlockGraph(grid, (128, 1, 1), iterations, 2, tuple(i for i, _ in loaded), tuple(ops), tuple(savers))
    return GraphDefined(operands, graph), produced


def _grow(
    rng: random.Random,
    ops: list[BlockOp],
    tensors: list[_STensor],
    kinds: Collection[OpKind],
    context: BlockContext,
    count: int,
    *,
    after: bool,
) -> None:
    """Append up to ``count`` operators on tensors before, or behind, the accumulators."""
    for _ in range(count):
        usable = [i for i, tensor in enumerate(tensors) if tensor.after == after]
        if after:
            kinds = [k for k in kinds if k is not OpKind.RUNNING_MAX]
        made = _operator(rng, kinds, [tensors[i].shape for i in usable], context) if kinds else None
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
        if Level.THREAD in spec.levels and rng.random() < 0.3:
            # As a thread graph of two operators: the operator, then a square.
            inner = Op(op.kind, tuple(range(len(numbers))), op.attrs)
            square = Op(OpKind.SQUARE, (len(numbers),))
            ops.append(ThreadDefined(numbers, ThreadGraph(len(numbers), (inner, square), (len(numbers) + 1,))))
        else:
            ops.append(Op(op.kind, numbers, op.attrs))
        tensors.extend(_STensor(tuple(shape), varies, after or closes) for shape in produced)
