"""Candidates whose tiles overhang their tensors: pads before graph-defined kernels, slices behind them."""

from __future__ import annotations

from collections.abc import Sequence

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


__all__ = ["Wrapped", "chain", "product", "up"]
