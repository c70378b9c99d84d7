"""Random kernels with a loop, small enough for float64: products with factors at their operands, sums over the loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from mirage_formal.graph.graph import GraphDefined, Input, InputIterator, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.verifier import faults
from tests.kit.graphs.workloads import kernel, load, op, tensor

K = OpKind
N = None


class _Ops:
    """Operators behind some input iterators."""

    def __init__(self, inputs: int) -> None:
        self.ops: list[Op] = []
        self.first = inputs

    def add(self, kind: OpKind, *operands: int, **attrs: object) -> int:
        self.ops.append(op(kind, *operands, **attrs))
        return self.first + len(self.ops) - 1


def products_with_factors(rng: random.Random, tiny: int = 2) -> KernelGraph:
    """f(A B) V over a loop along the dim between the products, with norms, weights and divisors at the operands.

    Args:
        rng: Draws what is there.
        tiny: The unit of extents.
    """
    heads, rows, depth, keys, columns = 2, 2 * tiny, 4 * tiny, 8 * tiny, 2 * tiny
    loop = rng.choice((1, 2, 4))
    split = rng.choice((1, 2))
    third = rng.choice((1, 2)) if split == 1 else 1
    inputs: list[Input] = [
        tensor("A", heads, rows, depth),
        tensor("B", heads, depth, keys),
        tensor("V", heads, keys, columns),
        tensor("R", heads, 1, keys),
        tensor("S", heads, keys, 1),
        tensor("T", 1, depth, 1),
    ]
    # Axis x: heads, y: rows, z: keys.
    reads = [
        load((0, 1, N)),
        load((0, N, 2), 2),
        load((0, N, 1), 1),
        load((0, N, 2), 2),
        load((0, N, 1), 1),
        load((N,) * 3),
    ]
    w = _Ops(len(inputs))
    a = w.add(K.RMS_NORM, 0, dim=2) if rng.random() < 0.3 else 0
    b = _right(rng, w, 1, norm=1, divisor=3, weight=5)
    scores = w.add(K.MATMUL, a, b)
    if rng.random() < 0.3:
        scores = w.add(K.SCALE, scores, factor=Fraction(1, 2))
    weights = w.add(rng.choice((K.EXP, K.SILU, K.SQUARE)), scores)
    v = _right(rng, w, 2, norm=2, divisor=4, weight=None)
    out = w.add(K.ACCUM_SUM, w.add(K.MATMUL, weights, v))
    if rng.random() < 0.5:
        out = w.add(K.DIV, out, w.add(K.ACCUM_SUM_LAST, weights))
    made = kernel(range(len(inputs)), (heads, split, third), loop, reads, w.ops, [(out, (0, 1, 2))])
    return KernelGraph(tuple(inputs), (made,), (len(inputs),))


def _right(rng: random.Random, w: _Ops, x: int, norm: int, divisor: int, weight: int | None) -> int:
    """A right operand, normalised along a dim, divided, or weighted."""
    if rng.random() < 0.5:
        eps = {"eps": Fraction(1, 8)} if rng.random() < 0.3 else {}
        x = w.add(K.RMS_NORM, x, dim=norm, **eps)
    if rng.random() < 0.4:
        x = w.add(*((K.DIV, x, divisor) if rng.random() < 0.5 else (K.MUL, divisor, x)))
    if weight is not None and rng.random() < 0.3:
        x = w.add(K.MUL, x, weight)
    return x


def sums_over_the_loop(rng: random.Random, tiny: int = 2) -> KernelGraph:
    """Products and reductions that a loop sums, and what comes after it.

    Args:
        rng: Draws what is there.
        tiny: The unit of extents.
    """
    rows, depth, columns = 2 * tiny, 16 * tiny, 8 * tiny
    grid = (rng.choice((1, 2, 4)), rng.choice((1, 2)), 1)
    loop = rng.choice((4, 8))
    inputs = [tensor("X", rows, depth), tensor("W", depth, columns), tensor("Y", depth, columns)]
    w = _Ops(len(inputs))
    x = w.add(rng.choice((K.SILU, K.SQUARE)), 0) if rng.random() < 0.4 else 0
    found = [w.add(K.ACCUM_SUM, w.add(K.MATMUL, x, 1))]
    if rng.random() < 0.5:
        found.append(w.add(K.ACCUM_SUM, w.add(K.MATMUL, x, 2)))
    column: list[int] = []
    for kind in (K.ACCUM_SUM_LAST, K.ACCUM_MEAN_LAST, K.ACCUM_RMS_LAST):
        if rng.random() < 0.4:
            column.append(w.add(kind, x))
    if rng.random() < 0.2:
        column.append(w.add(K.ACCUM_MAX, w.add(K.MAX, x, dim=1)))
    out = found[0]
    for other in (*found[1:], *column):
        out = w.add(rng.choice((K.MUL, K.ADD, K.DIV)), out, other)
    if rng.random() < 0.4:
        out = w.add(rng.choice((K.SILU, K.SQUARE)), out)
    if grid[0] == 1 and rng.random() < 0.5:
        out = w.add(K.SUB, out, w.add(K.MEAN, out, dim=1))
    reads = [load((N, 0, N), 1), load((1, N, N), 0), load((1, N, N), 0)]
    made = kernel((0, 1, 2), grid, loop, reads, w.ops, [(out, (1, 0, N))])
    return KernelGraph(tuple(inputs), (made,), (3,))


def mutants(graph: KernelGraph) -> Iterator[KernelGraph]:
    """Well-formed graphs that differ from this one in one operator, factor, operand or map of a kernel."""
    for position, item in enumerate(graph.ops):
        if not isinstance(item, GraphDefined):
            continue
        block = item.graph
        changed = []
        for number, inner in enumerate(block.ops):
            assert isinstance(inner, Op)
            ops = [replace(inner, kind=kind) for kind in _LIKE.get(inner.kind, ())]
            ops += [replace(inner, operands=inner.operands[::-1])] * (inner.kind in (K.DIV, K.SUB))
            if inner.attrs.factor is not None:
                ops.append(replace(inner, attrs=Attrs(factor=inner.attrs.factor * 2)))
            changed += [replace(block, ops=(*block.ops[:number], one, *block.ops[number + 1 :])) for one in ops]
        for number, iterator in enumerate(block.inputs):
            x, y, z = iterator.imap
            for other in ((y, x, z), (z, y, x), (x, z, y)):
                moved = InputIterator(other, iterator.fmap)
                changed.append(replace(block, inputs=(*block.inputs[:number], moved, *block.inputs[number + 1 :])))
        for number, saver in enumerate(block.outputs):
            moved_saver = replace(saver, omap=saver.omap[::-1])
            changed.append(replace(block, outputs=(*block.outputs[:number], moved_saver, *block.outputs[number + 1 :])))
        for one in changed:
            other_graph = replace(
                graph, ops=(*graph.ops[:position], replace(item, graph=one), *graph.ops[position + 1 :])
            )
            if one != block and not faults(other_graph):
                yield other_graph


_LIKE = {
    K.MUL: (K.ADD, K.DIV),
    K.DIV: (K.MUL,),
    K.MEAN: (K.SUM,),
    K.SUM: (K.MEAN,),
    K.SQRT: (K.SQUARE,),
    K.RECIPROCAL: (K.SQRT,),
    K.SQUARE: (K.SILU,),
    K.SILU: (K.SQUARE,),
    K.ACCUM_SUM_LAST: (K.ACCUM_MEAN_LAST,),
    K.ACCUM_MEAN_LAST: (K.ACCUM_SUM_LAST,),
    K.ACCUM_SUM: (K.ACCUM_MAX,),
    K.ACCUM_MAX: (K.ACCUM_SUM,),
}
