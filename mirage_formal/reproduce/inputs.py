"""Programs of the experiments: the six workloads at any batch, and small versions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import NO_ATTRS, Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major

K = OpKind


def _tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def _op(kind: OpKind, *operands: int, dim: int | None = None) -> Op:
    return Op(kind, operands, NO_ATTRS if dim is None else Attrs(dim=dim))


def _program(inputs: tuple[Input, ...], *ops: Op) -> KernelGraph:
    return KernelGraph(inputs, ops, (len(inputs) + len(ops) - 1,))


def rmsnorm(rows: int, hidden: int, columns: int) -> KernelGraph:
    """Return rms_norm(X) W, with X[rows, hidden] and W[hidden, columns]."""
    inputs = (_tensor("X", rows, hidden), _tensor("W", hidden, columns))
    return _program(inputs, _op(K.RMS_NORM, 0, dim=1), _op(K.MATMUL, 2, 1))


def attention(*lead: int, queries: int, head: int, keys: int, norms: tuple[int, ...] = ()) -> KernelGraph:
    """Return softmax(Q K) V; ``norms`` lists the inputs that are normalised first, along the head dim."""
    inputs = (_tensor("Q", *lead, queries, head), _tensor("K", *lead, head, keys), _tensor("V", *lead, keys, head))
    last = len(lead) + 1
    places = {n: 3 + i for i, n in enumerate(norms)}
    q, k, v = (places.get(n, n) for n in range(3))
    first = 3 + len(norms)
    return _program(
        inputs,
        *(_op(K.RMS_NORM, n, dim=last - 1 if n == 1 else last) for n in norms),
        _op(K.MATMUL, q, k),
        _op(K.EXP, first),
        _op(K.SUM, first + 1, dim=last),
        _op(K.DIV, first + 1, first + 2),
        _op(K.MATMUL, first + 3, v),
    )


def lora(rows: int, hidden: int, rank: int, columns: int) -> KernelGraph:
    """Return X W + (X A) B."""
    return _program(
        (
            _tensor("X", rows, hidden),
            _tensor("W", hidden, columns),
            _tensor("A", hidden, rank),
            _tensor("B", rank, columns),
        ),
        _op(K.MATMUL, 0, 1),
        _op(K.MATMUL, 0, 2),
        _op(K.MATMUL, 5, 3),
        _op(K.ADD, 4, 6),
    )


def gated_mlp(rows: int, hidden: int, columns: int) -> KernelGraph:
    """Return silu(X W1) * (X W2)."""
    return _program(
        (_tensor("X", rows, hidden), _tensor("W1", hidden, columns), _tensor("W2", hidden, columns)),
        _op(K.MATMUL, 0, 1),
        _op(K.SILU, 3),
        _op(K.MATMUL, 0, 2),
        _op(K.MUL, 4, 5),
    )


def ntrans(rows: int, hidden: int) -> KernelGraph:
    """Return rms_norm(X + alpha * (rms_norm(H) + X))."""
    return _program(
        (_tensor("H", rows, hidden), _tensor("X", rows, hidden), _tensor("alpha", rows, hidden)),
        _op(K.RMS_NORM, 0, dim=1),
        _op(K.ADD, 3, 1),
        _op(K.MUL, 2, 4),
        _op(K.ADD, 1, 5),
        _op(K.RMS_NORM, 6, dim=1),
    )


#: The workloads, by name, as functions of the batch.
WORKLOADS: Final[dict[str, Callable[[int], KernelGraph]]] = {
    "gqa": lambda b: attention(2 * b, queries=256, head=64, keys=4096),
    "qknorm-qk": lambda b: attention(2 * b, queries=256, head=64, keys=4096, norms=(0, 1)),
    "qknorm-qv": lambda b: attention(2 * b, queries=256, head=64, keys=4096, norms=(0, 2)),
    "rmsnorm": lambda b: rmsnorm(2 * b, 4096, 6144),
    "lora": lambda b: lora(16 * b, 256, 16, 4096),
    "gated_mlp": lambda b: gated_mlp(8 * b, 4096, 4096),
    "ntrans": lambda b: ntrans(8 * b, 4096),
}
