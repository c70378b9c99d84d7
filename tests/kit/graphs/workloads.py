"""Hand-written programs and right candidates for the six workloads, at any size, and programs that are cut into parts.

The latter are larger than the operator limits of small spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

import mirage_formal as mf
from mirage_formal.graph.graph import (
    BlockGraph,
    BlockOp,
    GraphDefined,
    Input,
    InputIterator,
    KernelGraph,
    Op,
    OutputSaver,
)
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.types import Dim3, DimMap, DTensor, DType, row_major
from mirage_formal.semantics import float64_reference

K = OpKind
N = None


def tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def op(kind: OpKind, *operands: int, **attrs: Any) -> Op:
    return Op(kind, operands, Attrs(**attrs) if attrs else NO_ATTRS)


def load(imap: DimMap, fmap: int | None = None) -> InputIterator:
    return InputIterator(imap, fmap)


def kernel(
    operands: Sequence[int],
    grid: Dim3,
    loop: int,
    inputs: Sequence[InputIterator],
    ops: Sequence[BlockOp],
    outputs: Sequence[tuple[int, DimMap]],
    dimx: int = 64,
) -> GraphDefined:
    savers = tuple(OutputSaver(number, omap) for number, omap in outputs)
    return GraphDefined(tuple(operands), BlockGraph(grid, (128, 1, 1), loop, dimx, tuple(inputs), tuple(ops), savers))


# --- RMSNorm: rms_norm(X) W ---


def rmsnorm(b: int = 2, k: int = 4096, n: int = 6144) -> KernelGraph:
    return KernelGraph((tensor("X", b, k), tensor("W", k, n)), (op(K.RMS_NORM, 0, dim=1), op(K.MATMUL, 2, 1)), (3,))


def rmsnorm_fused(
    b: int = 2, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64, rows: int = 1
) -> KernelGraph:
    """One kernel; the division comes after the product."""
    block = kernel(
        (0, 1),
        (grid, rows, 1),
        loop,
        [load((N, 0, N), 1), load((1, N, N), 0)],
        [op(K.MATMUL, 0, 1), op(K.ACCUM_SUM, 2), op(K.ACCUM_RMS_LAST, 0), op(K.DIV, 3, 4)],
        [(5, (1, 0, N))],
    )
    return KernelGraph((tensor("X", b, k), tensor("W", k, n)), (block,), (2,))


def rmsnorm_by_hand(
    b: int = 2, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64, mean_of: int | None = None
) -> KernelGraph:
    """One kernel; the mean of squares from square, scale and two sums."""
    block = kernel(
        (0, 1),
        (grid, 1, 1),
        loop,
        [load((N, N, N), 1), load((1, N, N), 0)],
        [
            op(K.SQUARE, 0),
            op(K.SCALE, 2, factor=Fraction(1, mean_of or k)),
            op(K.SUM, 3, dim=1),
            op(K.ACCUM_SUM, 4),
            op(K.MATMUL, 0, 1),
            op(K.ACCUM_SUM, 6),
            op(K.SQRT, 5),
            op(K.DIV, 7, 8),
        ],
        [(9, (1, N, N))],
    )
    return KernelGraph((tensor("X", b, k), tensor("W", k, n)), (block,), (2,))


# --- attention ---


def _qkv(b: int, m: int, d: int, n: int, e: int) -> tuple[Input, ...]:
    return tensor("Q", b, m, d), tensor("K", b, d, n), tensor("V", b, n, e)


def attention(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> KernelGraph:
    """O = (exp(QK) / rowsum exp(QK)) V."""
    ops = (
        op(K.MATMUL, 0, 1),
        op(K.EXP, 3),
        op(K.SUM, 4, dim=2),
        op(K.DIV, 4, 5),
        op(K.MATMUL, 6, 2),
    )
    return KernelGraph(_qkv(b, m, d, n, e), ops, (7,))


def attention_split(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16, loop: int = 4, rows: int = 1
) -> KernelGraph:
    """Two kernels: keys split over blocks, then combined."""
    first = kernel(
        (0, 1, 2),
        (b, split, rows),
        loop,
        [load((0, N, 1)), load((0, 2, N), 2), load((0, 1, N), 1)],
        [
            op(K.MATMUL, 0, 1),
            op(K.EXP, 3),
            op(K.MATMUL, 4, 2),
            op(K.ACCUM_SUM, 5),
            op(K.ACCUM_SUM_LAST, 4),
        ],
        [(6, (0, 2, 1)), (7, (0, 2, 1))],
    )
    # [b, m, split*e] and [b, m, split]
    second = kernel(
        (3, 4),
        (b, 1, 1),
        1,
        [load((0, N, N)), load((0, N, N))],
        [op(K.ACCUM_SUM_TO_DIMX, 0), op(K.ACCUM_SUM_LAST, 1), op(K.DIV, 2, 3)],
        [(4, (0, N, N))],
        dimx=e,
    )
    return KernelGraph(_qkv(b, m, d, n, e), (first, second), (5,))


def attention_one(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, rows: int = 4, loop: int = 64
) -> KernelGraph:
    """One kernel."""
    block = kernel(
        (0, 1, 2),
        (b, rows, 1),
        loop,
        [load((0, 1, N)), load((0, N, N), 2), load((0, N, N), 1)],
        [
            op(K.MATMUL, 0, 1),
            op(K.EXP, 3),
            op(K.MATMUL, 4, 2),
            op(K.ACCUM_SUM, 5),
            op(K.SUM, 4, dim=2),
            op(K.ACCUM_SUM, 7),
            op(K.DIV, 6, 8),
        ],
        [(9, (0, 1, N))],
    )
    return KernelGraph(_qkv(b, m, d, n, e), (block,), (3,))


def qk_norm(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> KernelGraph:
    """Attention with rms_norm over the head dim of Q and K."""
    ops = (
        op(K.RMS_NORM, 0, dim=2),
        op(K.RMS_NORM, 1, dim=1),
        op(K.MATMUL, 3, 4),
        op(K.EXP, 5),
        op(K.SUM, 6, dim=2),
        op(K.DIV, 6, 7),
        op(K.MATMUL, 8, 2),
    )
    return KernelGraph(_qkv(b, m, d, n, e), ops, (9,))


def qk_norm_one(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, rows: int = 4, loop: int = 64
) -> KernelGraph:
    """One kernel, norms included."""
    block = kernel(
        (0, 1, 2),
        (b, rows, 1),
        loop,
        [load((0, 1, N)), load((0, N, N), 2), load((0, N, N), 1)],
        [
            op(K.RMS_NORM, 0, dim=2),
            op(K.RMS_NORM, 1, dim=1),
            op(K.MATMUL, 3, 4),
            op(K.EXP, 5),
            op(K.MATMUL, 6, 2),
            op(K.ACCUM_SUM, 7),
            op(K.ACCUM_SUM_LAST, 6),
            op(K.DIV, 8, 9),
        ],
        [(10, (0, 1, N))],
    )
    return KernelGraph(_qkv(b, m, d, n, e), (block,), (3,))


# --- LoRA: XW + (XA)B ---


def _lora(b: int, k: int, n: int, r: int) -> tuple[Input, ...]:
    return tensor("X", b, k), tensor("W", k, n), tensor("A", k, r), tensor("B", r, n)


def lora(b: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> KernelGraph:
    ops = (op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.MATMUL, 5, 3), op(K.ADD, 4, 6))
    return KernelGraph(_lora(b, k, n, r), ops, (7,))


def lora_fused(
    b: int = 16, k: int = 256, n: int = 4096, r: int = 16, grid: int = 64, loop: int = 4, rows: int = 1
) -> KernelGraph:
    """One kernel."""
    block = kernel(
        (0, 1, 2, 3),
        (grid, rows, 1),
        loop,
        [load((N, 0, N), 1), load((1, N, N), 0), load((N, N, N), 0), load((1, N, N))],
        [
            op(K.MATMUL, 0, 1),
            op(K.MATMUL, 0, 2),
            op(K.MATMUL, 5, 3),
            op(K.ADD, 4, 6),
            op(K.ACCUM_SUM, 7),
        ],
        [(8, (1, 0, N))],
    )
    return KernelGraph(_lora(b, k, n, r), (block,), (4,))


# --- GatedMLP: silu(X W1) * (X W2) ---


def _gated(b: int, k: int, n: int) -> tuple[Input, ...]:
    return tensor("X", b, k), tensor("W1", k, n), tensor("W2", k, n)


def gated_mlp(b: int = 8, k: int = 4096, n: int = 4096) -> KernelGraph:
    ops = (op(K.MATMUL, 0, 1), op(K.MATMUL, 0, 2), op(K.SILU, 3), op(K.MUL, 5, 4))
    return KernelGraph(_gated(b, k, n), ops, (6,))


def gated_mlp_fused(
    b: int = 8, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64, rows: int = 1
) -> KernelGraph:
    """One kernel."""
    block = kernel(
        (0, 1, 2),
        (grid, rows, 1),
        loop,
        [load((N, 0, N), 1), load((1, N, N), 0), load((1, N, N), 0)],
        [
            op(K.MATMUL, 0, 1),
            op(K.MATMUL, 0, 2),
            op(K.ACCUM_SUM, 3),
            op(K.ACCUM_SUM, 4),
            op(K.SILU, 5),
            op(K.MUL, 7, 6),
        ],
        [(8, (1, 0, N))],
    )
    return KernelGraph(_gated(b, k, n), (block,), (3,))


# --- nTrans: rms_norm(X + alpha * (rms_norm(H) + X)) ---


def _ntrans(b: int, n: int) -> tuple[Input, ...]:
    return tensor("X", b, n), tensor("H", b, n), tensor("alpha", b, n)


def ntrans(b: int = 8, n: int = 4096) -> KernelGraph:
    ops = (
        op(K.RMS_NORM, 1, dim=1),
        op(K.ADD, 3, 0),
        op(K.MUL, 2, 4),
        op(K.ADD, 0, 5),
        op(K.RMS_NORM, 6, dim=1),
    )
    return KernelGraph(_ntrans(b, n), ops, (7,))


def ntrans_fused(b: int = 8, n: int = 4096, grid: int = 8) -> KernelGraph:
    """One kernel, a block per row."""
    block = kernel(
        (0, 1, 2),
        (grid, 1, 1),
        1,
        [load((0, N, N)), load((0, N, N)), load((0, N, N))],
        [
            op(K.ACCUM_SUM, 0),
            op(K.ACCUM_SUM, 1),
            op(K.ACCUM_SUM, 2),
            op(K.RMS_NORM, 4, dim=1),
            op(K.ADD, 6, 3),
            op(K.MUL, 7, 5),
            op(K.ADD, 3, 8),
            op(K.RMS_NORM, 9, dim=1),
        ],
        [(10, (0, N, N))],
    )
    return KernelGraph(_ntrans(b, n), (block,), (3,))


#: A space in which one kernel of six operators is all there is; parts of at most that size are searched.
TINY: dict[str, Any] = {"config": "tiny", "workers": 1, "keep": 2}


def layers(count: int = 2) -> KernelGraph:
    """Equal layers with residuals, a view of the last one, and its softmax: two outputs."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    for number in range(count):
        gate = graph.new_input(dims=(8, 8), name=f"G{number}")
        up = graph.new_input(dims=(8, 8), name=f"U{number}")
        h = graph.rms_norm(x)
        x = graph.add(x, graph.mul(graph.silu(graph.matmul(h, gate)), graph.matmul(h, up)))
    power = graph.exp(graph.reshape(x, (2, 2, 8)))
    graph.mark_output(x)
    graph.mark_output(graph.div(power, graph.reduction(power, 2)))
    return graph.freeze()


def projections(widths: tuple[int, ...] = (32, 16, 16)) -> KernelGraph:
    """Products of several widths behind one norm, each an output."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(8, 32), name="X")
    weights = [graph.new_input(dims=(32, width), name=f"W{i}") for i, width in enumerate(widths)]
    h = graph.rms_norm(x)
    for weight in weights:
        graph.mark_output(graph.matmul(h, weight))
    return graph.freeze()


def gates() -> KernelGraph:
    """The new cell and output of a recurrent unit: two outputs, the first of which reads the second."""
    graph = mf.new_kernel_graph()
    f, c, i, j, o = (graph.new_input(dims=(16, 32), name=name) for name in "FCIJO")
    cell = graph.add(graph.mul(graph.sigmoid(f), c), graph.mul(graph.sigmoid(i), graph.tanh(j)))
    graph.mark_output(graph.mul(graph.sigmoid(o), graph.tanh(cell)))
    graph.mark_output(cell)
    return graph.freeze()


def sum_and_norm() -> KernelGraph:
    """A residual sum and its norm, both of which are outputs."""
    graph = mf.new_kernel_graph()
    x, y = graph.new_input(dims=(8, 32), name="X"), graph.new_input(dims=(8, 32), name="Y")
    total = graph.add(x, y)
    graph.mark_output(graph.rms_norm(total))
    graph.mark_output(total)
    return graph.freeze()


def long_chain(width: int = 32) -> KernelGraph:
    """Eighteen elementwise operators on six tensors, and a norm among them: too many for one kernel of any space."""
    graph = mf.new_kernel_graph()
    a, b, c, d, e, f = (graph.new_input(dims=(16, width), name=name) for name in "ABCDEF")
    t = graph.add(graph.mul(graph.sigmoid(a), b), graph.mul(graph.tanh(c), d))
    u = graph.add(graph.mul(graph.exp(t), e), graph.square(f))
    s = graph.add(graph.rms_norm(u), t)
    graph.mark_output(graph.add(graph.mul(graph.relu(s), graph.sigmoid(s)), graph.mul(a, f)))
    return graph.freeze()


#: Adds operators to a graph; what it returns is the output.
Build = Callable[[mf.Graph], mf.Tensor]


def program(build: Build) -> KernelGraph:
    """The program of one output that a function builds."""
    graph = mf.new_kernel_graph()
    graph.mark_output(build(graph))
    return graph.freeze()


def same(one: KernelGraph, other: KernelGraph) -> None:
    """Assert that two graphs have the same results in float64, on normal inputs."""
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(item.tensor.shape) for item in one.inputs]
    for wanted, got in zip(float64_reference.run(one, arrays), float64_reference.run(other, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
