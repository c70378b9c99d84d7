"""Hand-written programs and right candidates for the six workloads, at any size, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

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
