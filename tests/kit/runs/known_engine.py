"""An engine that finds what it is told, for tests of the checker: small programs of every class, with known kernels."""

from __future__ import annotations

from collections.abc import Sequence
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
)
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, Shape, row_major
from mirage_formal.graph.verdict import Candidate, Probable
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions, Unit, UnitResult

K = OpKind
X: DimMap = (0, None, None)
COLUMNS: DimMap = (1, None, None)
ALL: DimMap = (None, None, None)


def op(kind: OpKind, *operands: int, attrs: Attrs = NO_ATTRS) -> Op:
    return Op(kind, operands, attrs)


def along(dim: int, eps: Fraction | None = None) -> Attrs:
    return Attrs(dim=dim, eps=eps)


def given(**shapes: Shape) -> tuple[Input, ...]:
    return tuple(Input(name, DTensor(s, DType.FLOAT16), row_major(s)) for name, s in shapes.items())


def graph(inputs: tuple[Input, ...], ops: Sequence[KernelOp], *outputs: int) -> KernelGraph:
    return KernelGraph(inputs, tuple(ops), outputs)


def kernel(
    operands: Sequence[int],
    grid: Dim3,
    loop: int,
    iterators: Sequence[tuple[DimMap, int | None]],
    ops: Sequence[BlockOp],
    savers: Sequence[tuple[int, DimMap]],
    dimx: int = 64,
) -> GraphDefined:
    block = BlockGraph(
        grid,
        (128, 1, 1),
        loop,
        dimx,
        tuple(InputIterator(*i) for i in iterators),
        tuple(ops),
        tuple(OutputSaver(*s) for s in savers),
    )
    return GraphDefined(tuple(operands), block)


def attention(b: int = 2, q: int = 8, d: int = 4, k: int = 48) -> list[KernelGraph]:
    """exp(QK) / rowsum V: the program, one kernel, and keys split over blocks with a second kernel.

    48 keys are no power of 2, so that safety has questions for solvers.
    """
    inputs = given(Q=(b, q, d), K=(b, d, k), V=(b, k, d))
    chain = [op(K.MATMUL, 0, 1), op(K.EXP, 3), op(K.SUM, 4, attrs=along(2)), op(K.DIV, 4, 5), op(K.MATMUL, 6, 2)]
    body: list[BlockOp] = [
        op(K.MATMUL, 0, 1),
        op(K.EXP, 3),
        op(K.MATMUL, 4, 2),
        op(K.ACCUM_SUM, 5),
        op(K.ACCUM_SUM_LAST, 4),
    ]
    rows: DimMap = (0, 1, None)
    one = kernel(
        (0, 1, 2),
        (b, 2, 1),
        4,
        [(rows, None), (X, 2), (X, 1)],
        [*body, op(K.DIV, 6, 7)],
        [(8, rows)],
    )
    split = kernel(
        (0, 1, 2),
        (b, 2, 4),
        2,
        [(rows, None), ((0, None, 2), 2), ((0, None, 1), 1)],
        body,
        [(6, (0, 1, 2)), (7, (0, 1, 2))],
    )
    combine = kernel(
        (3, 4),
        (b, 4, 1),
        1,
        [(rows, None), (rows, None)],
        [op(K.ACCUM_SUM_TO_DIMX, 0), op(K.ACCUM_SUM_LAST, 1), op(K.DIV, 2, 3)],
        [(4, rows)],
        dimx=d,
    )
    return [graph(inputs, chain, 7), graph(inputs, [one], 3), graph(inputs, [split, combine], 5)]


def rms_norm(m: int = 4, k: int = 16, n: int = 8) -> list[KernelGraph]:
    """rms_norm(X) W: division after the product."""
    inputs = given(X=(m, k), W=(k, n))
    body = [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2), op(K.ACCUM_RMS_LAST, 0), op(K.DIV, 3, 4)]
    fused = kernel((0, 1), (4, 1, 1), 2, [(ALL, 1), (COLUMNS, 0)], body, [(5, COLUMNS)])
    return [
        graph(inputs, [op(K.RMS_NORM, 0, attrs=along(1)), op(K.MATMUL, 2, 1)], 3),
        graph(inputs, [fused], 2),
    ]


def gated_mlp(m: int = 4, k: int = 16, n: int = 8) -> list[KernelGraph]:
    """silu(X U) * (X V), with a thread graph after fusion."""
    inputs = given(X=(m, k), U=(k, n), V=(k, n))
    chain = [op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.SILU, 3), op(K.MUL, 5, 4)]
    body = [
        op(K.MATMUL, 0, 1),
        op(K.MATMUL, 0, 2),
        op(K.ACCUM_SUM, 3),
        op(K.ACCUM_SUM, 4),
        op(K.SILU, 5),
        op(K.MUL, 7, 6),
    ]
    fused = kernel((0, 1, 2), (4, 1, 1), 4, [(ALL, 1), (COLUMNS, 0), (COLUMNS, 0)], body, [(8, COLUMNS)])
    return [graph(inputs, chain, 6), graph(inputs, [fused], 3)]


def polynomial(m: int = 4, k: int = 8, n: int = 8, r: int = 2) -> list[KernelGraph]:
    """XW + (XA)B: a program without division, which the theorem bounds; also with a concatenation."""
    inputs = given(X=(m, k), W=(k, n), A=(k, r), B=(r, n))
    chain = [op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.MATMUL, 5, 3), op(K.ADD, 4, 6)]
    joined = [
        op(K.MATMUL, 0, 2),
        op(K.CONCAT, 0, 4, attrs=along(1)),
        op(K.CONCAT, 1, 3, attrs=along(0)),
        op(K.MATMUL, 5, 6),
    ]
    body = [
        op(K.MATMUL, 0, 1),
        op(K.MATMUL, 0, 2),
        op(K.MATMUL, 5, 3),
        op(K.ADD, 4, 6),
        op(K.ACCUM_SUM, 7),
    ]
    maps: list[tuple[DimMap, int | None]] = [(ALL, None), (COLUMNS, None), (ALL, None), (COLUMNS, None)]
    fused = kernel((0, 1, 2, 3), (4, 1, 1), 1, maps, body, [(8, COLUMNS)])
    return [graph(inputs, chain, 7), graph(inputs, [fused], 4), graph(inputs, joined, 7)]


def opaque(m: int = 4, n: int = 8) -> list[KernelGraph]:
    """layer_norm(gelu(X), w, b) + relu(X) sigmoid(X) / 3, and a mean: opaque functions, eps, constants."""
    inputs = given(X=(m, n), w=(1, n), b=(1, n))
    third = Attrs(factor=Fraction(1, 3))
    norm = along(1, Fraction(1, 1024))
    chain = [
        op(K.GELU, 0),
        op(K.LAYER_NORM, 3, 1, 2, attrs=norm),
        op(K.RELU, 0),
        op(K.SIGMOID, 0),
        op(K.MUL, 5, 6),
        op(K.SCALE, 7, attrs=third),
        op(K.ADD, 4, 8),
        op(K.MEAN, 9, attrs=along(1)),
    ]
    body: list[BlockOp] = [
        op(K.GELU, 0),
        op(K.LAYER_NORM, 3, 1, 2, attrs=norm),
        op(K.RELU, 0),
        op(K.SIGMOID, 0),
        op(K.MUL, 5, 6),
        op(K.SCALE, 7, attrs=third),
        op(K.ADD, 4, 8),
        op(K.ACCUM_SUM, 9),
        op(K.ACCUM_MEAN_LAST, 9),
    ]
    fused = kernel((0, 1, 2), (2, 1, 1), 1, [(X, None), (ALL, None), (ALL, None)], body, [(10, X), (11, X)])
    return [graph(inputs, chain, 9, 10), graph(inputs, [fused], 3, 4)]


PROGRAMS = {f.__name__: f for f in (attention, rms_norm, gated_mlp, polynomial, opaque)}


class KnownEngine:
    """Finds the graphs above for their programs, each in a unit of its own."""

    name = "known"

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        return [Unit(index, f"unit {index}", str(index)) for index in range(len(self._graphs(program)))]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        candidate = Candidate(self._graphs(program)[unit.index], self.name)
        tally = SearchCounters()
        tally.add("states", 10 + unit.index)
        tally.prune("shape", "block")
        assert options.accept is not None
        good = isinstance(options.accept(candidate), Probable)
        return UnitResult((candidate,) if good else (), tally.stats())

    def _graphs(self, program: KernelGraph) -> list[KernelGraph]:
        return next(graphs for build in PROGRAMS.values() if (graphs := build())[0] == program)
