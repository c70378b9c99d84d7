"""Candidates whose tiles overhang their tensors: pads before graph-defined kernels, slices behind them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import mirage_formal as mf
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, KernelOp, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import Shape

K = OpKind


class Wrapped:
    """Operators of a candidate, one after another, over a program's inputs."""

    def __init__(self, program: KernelGraph) -> None:
        self.program = program
        self.ops: list[KernelOp] = []
        self.count = len(program.inputs)

    def add(self, op: KernelOp) -> int:
        """The number of its first result."""
        self.ops.append(op)
        self.count += op.results
        return self.count - op.results

    def padded(self, tensor: int, shape: Shape, wanted: Shape) -> int:
        """A tensor with zeros behind the end of each dim."""
        for dim, (have, want) in enumerate(zip(shape, wanted, strict=True)):
            if want > have:
                tensor = self.add(Op(K.PAD, (tensor,), Attrs(dim=dim, before=0, after=want - have)))
        return tensor

    def cut(self, tensor: int, shape: Shape, wanted: Shape) -> int:
        """The first elements of each dim."""
        for dim, (have, want) in enumerate(zip(shape, wanted, strict=True)):
            if want < have:
                tensor = self.add(Op(K.SLICE, (tensor,), Attrs(dim=dim, start=0, stop=want)))
        return tensor

    def graph(self, *outputs: int) -> KernelGraph:
        """The candidate."""
        return KernelGraph(self.program.inputs, tuple(self.ops), outputs)


def up(extent: int, tile: int) -> int:
    """The next multiple."""
    return -(-extent // tile) * tile


def product(m: int, k: int, n: int, tiles: tuple[int, int, int], kind: OpKind | None = None) -> list[KernelGraph]:
    """A program and a candidate: a matrix product, with an elementwise operator behind it; tiles of m, n and k."""
    g = mf.new_kernel_graph()
    a, b = g.new_input(dims=(m, k), name="a"), g.new_input(dims=(k, n), name="b")
    result = g.matmul(a, b)
    g.mark_output(result if kind is None else getattr(g, kind.value)(result))
    program = g.freeze()
    rows, columns, inner = up(m, tiles[0]), up(n, tiles[1]), up(k, tiles[2])
    made = Wrapped(program)
    x, y = made.padded(0, (m, k), (rows, inner)), made.padded(1, (k, n), (inner, columns))
    ops: Sequence[Op] = (Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (2,)), *([Op(kind, (3,))] if kind else []))
    block = BlockGraph(
        (columns // tiles[1], rows // tiles[0], 1),
        (128, 1, 1),
        inner // tiles[2],
        1,
        (InputIterator((None, 0, None), 1), InputIterator((1, None, None), 0)),
        tuple(ops),
        (OutputSaver(1 + len(ops), (1, 0, None)),),
    )
    found = made.cut(made.add(GraphDefined((x, y), block)), (rows, columns), (m, n))
    return [program, made.graph(found)]


def chain(shape: Shape, wanted: Shape, grid: tuple[int, int]) -> list[KernelGraph]:
    """A program and a candidate: exp(x) * x + y, by blocks of a matrix."""
    g = mf.new_kernel_graph()
    x, y = g.new_input(dims=shape, name="x"), g.new_input(dims=shape, name="y")
    g.mark_output(g.add(g.mul(g.exp(x), x), y))
    program = g.freeze()
    made = Wrapped(program)
    inputs = tuple(made.padded(i, shape, wanted) for i in range(2))
    block = BlockGraph(
        (*grid, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, 1, None), None),) * 2,
        (Op(K.EXP, (0,)), Op(K.MUL, (2, 0)), Op(K.ADD, (3, 1)), Op(K.ACCUM_SUM, (4,))),
        (OutputSaver(5, (0, 1, None)),),
    )
    found = made.cut(made.add(GraphDefined(inputs, block)), wanted, shape)
    return [program, made.graph(found)]


def quotients(shape: Shape, tile: int) -> tuple[KernelGraph, KernelGraph]:
    """A program and a candidate: each row by the sum of its squares, by blocks of some rows."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=shape, name="x")
    g.mark_output(g.div(x, g.reduction(g.square(x), 1)))
    program = g.freeze()
    wanted = tuple(up(extent, tile) for extent in shape)
    made = Wrapped(program)
    block = BlockGraph(
        (wanted[0] // tile, 1, 1),
        (128, 1, 1),
        1,
        1,
        (InputIterator((0, None, None), None),),
        (Op(K.SQUARE, (0,)), Op(K.SUM, (1,), Attrs(dim=1)), Op(K.DIV, (0, 2)), Op(K.ACCUM_SUM, (3,))),
        (OutputSaver(4, (0, None, None)),),
    )
    found = made.cut(made.add(GraphDefined((made.padded(0, shape, wanted),), block)), wanted, shape)
    return program, made.graph(found)


def _strides(draw: random.Random, shape: Shape) -> tuple[int, ...]:
    """Rows or columns next to each other, with gaps, and starts of rows that are multiples of 8 or not."""
    order = list(range(len(shape)))
    if draw.random() < 0.4:
        order[-1], order[-2] = order[-2], order[-1]
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim] + draw.choice([0, 0, 0, 1, 3, 8])
        step = up(step, 8) if draw.random() < 0.4 else step
    return tuple(strides)


def drawn(seed: int) -> tuple[KernelGraph, KernelGraph]:
    """A program and a candidate: a batch of products with functions around them, of any extents, strides and tiles."""
    draw = random.Random(seed)
    m, k, n = (draw.choice([1, 3, 5, 8, 13, 16, 17, 24, 31, 40, 61, 72]) for _ in range(3))
    high, wide, deep = draw.choice([8, 16, 32]), draw.choice([8, 16, 24, 32]), draw.choice([8, 16, 32])
    batch, kind = draw.choice([1, 2, 3]), draw.choice([None, K.EXP, K.SILU, K.GELU])
    halved, summed = draw.random() < 0.4, kind is not K.EXP and draw.random() < 0.3
    left, right = (batch, m, k), (batch, k, n)
    g = mf.new_kernel_graph()
    a = g.new_input(dims=left, strides=_strides(draw, left), name="a")
    b = g.new_input(dims=right, strides=_strides(draw, right), name="b")
    result = g.matmul(g.scale(a, 0.5) if halved else a, b)
    result = result if kind is None else getattr(g, kind.value)(result)
    g.mark_output(g.sum(result, 2) if summed else result)
    program = g.freeze()
    rows, inner, columns = up(m, high), up(k, deep), up(n, wide)
    made = Wrapped(program)
    given = made.padded(0, left, (batch, rows, inner)), made.padded(1, right, (batch, inner, columns))
    grid = (1 if summed else columns // wide, rows // high, batch)
    split, each = (2 if grid[0] > 1 else None), (0 if batch > 1 else None)
    ops = [Op(K.SCALE, (0,), Attrs(factor=Fraction(1, 2)))] if halved else []
    ops += [Op(K.MATMUL, (2 if halved else 0, 1)), Op(K.ACCUM_SUM, (2 + len(ops),))]
    ops += [] if kind is None else [Op(kind, (1 + len(ops),))]
    ops += [Op(K.SUM, (1 + len(ops),), Attrs(dim=2))] if summed else []
    block = BlockGraph(
        grid,
        (draw.choice([64, 128]), 1, 1),
        inner // deep,
        1,
        (InputIterator((None, 1, each), 2), InputIterator((split, None, each), 1)),
        tuple(ops),
        (OutputSaver(1 + len(ops), (split, 1, each)),),
    )
    whole, wanted = (batch, rows, 1 if summed else columns), (batch, m, 1 if summed else n)
    return program, made.graph(made.cut(made.add(GraphDefined(given, block)), whole, wanted))


__all__ = ["Wrapped", "chain", "drawn", "product", "up"]
