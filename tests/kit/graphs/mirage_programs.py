"""Programs in the style of the reference system's documented Python interface, written for it and for nothing here.

Each case is a plain program and, where there is one, a graph of hand-written kernels for the same function, with the
function in NumPy beside them. Extents are small multiples of what tensor cores take, so that kernels can be emulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import mirage_formal as mi

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Case:
    """A function in three forms.

    Attributes:
        program: Makes the plain program.
        config: What ``superoptimize`` is given.
        function: The same in NumPy, in float64.
        kernels: Makes the hand-written graphs, by name.
    """

    program: Callable[[], mi.Graph]
    config: str | None
    function: Callable[..., Array]
    kernels: dict[str, Callable[[], mi.Graph]]


def softmax_without_maximum(a: Array) -> Array:
    e = np.exp(a)
    return e / e.sum(axis=-1, keepdims=True)


def normed(a: Array) -> Array:
    return a / np.sqrt((a * a).mean(axis=-1, keepdims=True))


def silu(a: Array) -> Array:
    return a / (1 + np.exp(-a))


# --- group-query attention -------------------------------------------------------------------------------------------


def gqa() -> mi.Graph:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 128), dtype=mi.float16)
    V = graph.new_input(dims=(2, 128, 16), dtype=mi.float16)
    A = graph.matmul(Q, K)
    E = graph.exp(A)
    S = graph.reduction(E, 2)
    D = graph.div(E, S)
    O = graph.matmul(D, V)  # noqa: E741  # as the reference's programs name it
    graph.mark_output(O)
    return graph


def gqa_split() -> mi.Graph:
    """Keys split over blocks; a second kernel folds the parts."""
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 128), dtype=mi.float16)
    V = graph.new_input(dims=(2, 128, 16), dtype=mi.float16)
    tbgraph1 = mi.new_threadblock_graph(grid_dim=(2, 2, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=16)
    bQ = tbgraph1.new_input(dtensor=Q, input_map=(0, -1, -1), forloop_dim=-1)
    bK = tbgraph1.new_input(dtensor=K, input_map=(0, 2, -1), forloop_dim=2)
    bV = tbgraph1.new_input(dtensor=V, input_map=(0, 1, -1), forloop_dim=1)
    bA = tbgraph1.matmul(bQ, bK)
    bE = tbgraph1.exp(bA)
    bS = tbgraph1.matmul(bE, bV)
    bO1 = tbgraph1.forloop_accum(bS)
    bO2 = tbgraph1.forloop_accum(bE, "sum")
    tbgraph1.new_output(stensor=bO1, output_map=(0, 2, -1))
    tbgraph1.new_output(stensor=bO2, output_map=(0, 2, -1))
    parts = graph.customized([Q, K, V], tbgraph1)
    tbgraph2 = mi.new_threadblock_graph(grid_dim=(2, 2, 1), block_dim=(128, 1, 1), forloop_range=1, reduction_dimx=16)
    bA = tbgraph2.new_input(dtensor=parts[0], input_map=(0, 1, -1), forloop_dim=-1)
    bB = tbgraph2.new_input(dtensor=parts[1], input_map=(0, 1, -1), forloop_dim=-1)
    bA = tbgraph2.forloop_accum(bA, "sum_todimx")
    bB = tbgraph2.forloop_accum(bB, "sum")
    bO = tbgraph2.div(bA, bB)
    tbgraph2.new_output(stensor=bO, output_map=(0, 1, -1))
    results = graph.customized(parts, tbgraph2)
    graph.mark_output(results[0])
    return graph


def gqa_online() -> mi.Graph:
    """One kernel with a running maximum."""
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 128), dtype=mi.float16)
    V = graph.new_input(dims=(2, 128, 16), dtype=mi.float16)
    tbgraph = mi.new_threadblock_graph(grid_dim=(2, 2, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=16)
    bQ = tbgraph.new_input(dtensor=Q, input_map=(0, 1, -1), forloop_dim=-1)
    bK = tbgraph.new_input(dtensor=K, input_map=(0, -1, -1), forloop_dim=2)
    bV = tbgraph.new_input(dtensor=V, input_map=(0, -1, -1), forloop_dim=1)
    bA = tbgraph.matmul(bQ, bK)
    bAMax, bMaxDiff = tbgraph.reduction_max(bA, 2)
    bE = tbgraph.exp(tbgraph.sub(bA, bAMax))
    bRescale = tbgraph.exp(bMaxDiff)
    bSum = tbgraph.forloop_accum_rescale(bE, bRescale, "sum")
    bAccum = tbgraph.forloop_accum_rescale(tbgraph.matmul(bE, bV), bRescale)
    bO = tbgraph.div(bAccum, bSum)
    tbgraph.new_output(stensor=bO, output_map=(0, 1, -1))
    O = graph.customized([Q, K, V], tbgraph)  # noqa: E741
    graph.mark_output(O[0])
    return graph


# --- attention with normalised queries and values --------------------------------------------------------------------


def qk_norm() -> mi.Graph:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    Q = graph.rms_norm(Q, normalized_shape=(16,))
    V = graph.rms_norm(V, normalized_shape=(16,))
    A = graph.matmul(Q, K)
    E = graph.exp(A)
    S = graph.reduction(E, 2)
    D = graph.div(E, S)
    graph.mark_output(graph.matmul(D, V))
    return graph


def qk_norm_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    tbgraph = mi.new_threadblock_graph((2, 2, 1), (128, 1, 1), 2, 16)
    bQ = tbgraph.new_input(Q, (0, 1, -1), -1)
    bK = tbgraph.new_input(K, (0, -1, -1), 2)
    bV = tbgraph.new_input(V, (0, -1, -1), 1)
    bE = tbgraph.exp(tbgraph.matmul(tbgraph.rms_norm(bQ), bK))
    bO = tbgraph.div(
        tbgraph.forloop_accum(tbgraph.matmul(bE, tbgraph.rms_norm(bV))),
        tbgraph.forloop_accum(bE, "sum"),
    )
    tbgraph.new_output(bO, (0, 1, -1))
    graph.mark_output(graph.customized([Q, K, V], tbgraph)[0])
    return graph


# --- norm and product ------------------------------------------------------------------------------------------------


def rms_linear() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    W = graph.new_input(dims=(64, 64), dtype=mi.float16)
    D = graph.rms_norm(X, normalized_shape=(64,))
    graph.mark_output(graph.matmul(D, W))
    return graph


def rms_linear_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    W = graph.new_input(dims=(64, 64), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64)
    bX = tb_graph.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    bW = tb_graph.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
    bM = tb_graph.matmul(bX, bW)
    bAccX = tb_graph.forloop_accum(bX, "rms")
    bAccM = tb_graph.forloop_accum(bM)
    bO = tb_graph.div(bAccM, bAccX)
    tb_graph.new_output(stensor=bO, output_map=(1, -1, -1))
    O = graph.customized([X, W], tb_graph)  # noqa: E741
    graph.mark_output(O[0])
    return graph


def weighted() -> mi.Graph:
    """A norm with weights, and a product with a matrix that is stored by columns."""
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(1, 64), dtype=mi.float16)
    G = graph.new_input(dims=(1, 64), dtype=mi.float16)
    W = graph.new_input(dims=(64, 96), strides=(1, 64), dtype=mi.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(X, G), W))
    return graph


def weighted_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input((1, 64), (64, 1), mi.float16)
    G = graph.new_input((1, 64), (64, 1), mi.float16)
    W = graph.new_input((64, 96), (1, 64), mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(6, 1, 1), block_dim=(128, 1, 1), forloop_range=2, reduction_dimx=64)
    bX = tb_graph.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    bG = tb_graph.new_input(dtensor=G, input_map=(-1, -1, -1), forloop_dim=1)
    bW = tb_graph.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
    bM = tb_graph.forloop_accum(tb_graph.matmul(tb_graph.mul(bX, bG), bW))
    tb_graph.new_output(tb_graph.div(bM, tb_graph.forloop_accum(bX, "rms")), (1, -1, -1))
    graph.mark_output(graph.customized([X, G, W], tb_graph)[0])
    return graph


# --- low-rank adapters -----------------------------------------------------------------------------------------------


def lora() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 32), dtype=mi.float16)
    W = graph.new_input(dims=(32, 64), dtype=mi.float16)
    A = graph.new_input(dims=(32, 16), dtype=mi.float16)
    B = graph.new_input(dims=(16, 64), dtype=mi.float16)
    D = graph.matmul(X, A)
    E = graph.matmul(D, B)
    C = graph.matmul(X, W)
    graph.mark_output(graph.add(C, E))
    return graph


def _lora_inputs(graph: mi.Graph) -> list[mi.Tensor]:
    X = graph.new_input(dims=(16, 32), dtype=mi.float16)
    W = graph.new_input(dims=(32, 64), dtype=mi.float16)
    A = graph.new_input(dims=(32, 16), dtype=mi.float16)
    B = graph.new_input(dims=(16, 64), dtype=mi.float16)
    return [X, W, A, B]


def lora_concat() -> mi.Graph:
    """Both products as one, of two tensors one beside the other."""
    graph = mi.new_kernel_graph()
    inputs = _lora_inputs(graph)
    tb_graph = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=1, reduction_dimx=64)
    bX = tb_graph.new_input(inputs[0], (-1, -1, -1), -1)
    bW = tb_graph.new_input(inputs[1], (1, -1, -1), -1)
    bA = tb_graph.new_input(inputs[2], (-1, -1, -1), -1)
    bB = tb_graph.new_input(inputs[3], (1, -1, -1), -1)
    left = tb_graph.concat(bX, tb_graph.matmul(bX, bA), 1)
    right = tb_graph.concat(bW, bB, 0)
    tb_graph.new_output(tb_graph.forloop_accum(tb_graph.matmul(left, right)), (1, -1, -1))
    graph.mark_output(graph.customized(inputs, tb_graph)[0])
    return graph


def lora_kernel() -> mi.Graph:
    """Three products and a sum."""
    graph = mi.new_kernel_graph()
    inputs = _lora_inputs(graph)
    tb_graph = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=2, reduction_dimx=64)
    bX = tb_graph.new_input(inputs[0], (-1, -1, -1), 1)
    bW = tb_graph.new_input(inputs[1], (1, -1, -1), 0)
    bA = tb_graph.new_input(inputs[2], (-1, -1, -1), 0)
    bB = tb_graph.new_input(inputs[3], (1, -1, -1), -1)
    both = tb_graph.add(tb_graph.matmul(bX, bW), tb_graph.matmul(tb_graph.matmul(bX, bA), bB))
    tb_graph.new_output(tb_graph.forloop_accum(both), (1, -1, -1))
    graph.mark_output(graph.customized(inputs, tb_graph)[0])
    return graph


# --- perceptrons -----------------------------------------------------------------------------------------------------


def gated_mlp() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    W1 = graph.new_input(dims=(64, 64), dtype=mi.float16)
    W2 = graph.new_input(dims=(64, 64), dtype=mi.float16)
    D1 = graph.matmul(X, W1)
    D2 = graph.matmul(X, W2)
    graph.mark_output(graph.mul(graph.silu(D1), D2))
    return graph


def gated_mlp_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    W1 = graph.new_input(dims=(64, 64), dtype=mi.float16)
    W2 = graph.new_input(dims=(64, 64), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64)
    bX = tb_graph.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    bW1 = tb_graph.new_input(dtensor=W1, input_map=(1, -1, -1), forloop_dim=0)
    bW2 = tb_graph.new_input(dtensor=W2, input_map=(1, -1, -1), forloop_dim=0)
    bD1 = tb_graph.forloop_accum(tb_graph.matmul(bX, bW1))
    bD2 = tb_graph.forloop_accum(tb_graph.matmul(bX, bW2))
    bO = tb_graph.mul(tb_graph.silu(bD1), bD2)
    tb_graph.new_output(stensor=bO, output_map=(1, -1, -1))
    graph.mark_output(graph.customized([X, W1, W2], tb_graph)[0])
    return graph


def mlp() -> mi.Graph:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    A = graph.new_input(dims=(64, 32), dtype=mi.float16)
    B = graph.new_input(dims=(32, 64), dtype=mi.float16)
    graph.mark_output(graph.matmul(graph.relu(graph.matmul(X, A)), B))
    return graph


def mlp_kernel() -> mi.Graph:
    """The loop goes over the hidden dim."""
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(16, 64), dtype=mi.float16)
    A = graph.new_input(dims=(64, 32), dtype=mi.float16)
    B = graph.new_input(dims=(32, 64), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(2, 1, 1), block_dim=(128, 1, 1), forloop_range=2, reduction_dimx=64)
    bX = tb_graph.new_input(X, (-1, -1, -1), -1)
    bA = tb_graph.new_input(A, (-1, -1, -1), 1)
    bB = tb_graph.new_input(B, (1, -1, -1), 0)
    bO = tb_graph.forloop_accum(tb_graph.matmul(tb_graph.relu(tb_graph.matmul(bX, bA)), bB))
    tb_graph.new_output(bO, (1, -1, -1))
    graph.mark_output(graph.customized([X, A, B], tb_graph)[0])
    return graph


# --- others ----------------------------------------------------------------------------------------------------------


def ntrans() -> mi.Graph:
    graph = mi.new_kernel_graph()
    H = graph.new_input(dims=(8, 64), dtype=mi.float16)
    X = graph.new_input(dims=(8, 64), dtype=mi.float16)
    alpha = graph.new_input(dims=(8, 64), dtype=mi.float16)
    A = graph.add(graph.rms_norm(H, normalized_shape=(64,)), X)
    B = graph.add(X, graph.mul(alpha, A))
    graph.mark_output(graph.rms_norm(B, normalized_shape=(64,)))
    return graph


def ntrans_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    H = graph.new_input(dims=(8, 64), dtype=mi.float16)
    X = graph.new_input(dims=(8, 64), dtype=mi.float16)
    alpha = graph.new_input(dims=(8, 64), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(grid_dim=(8, 1, 1), block_dim=(128, 1, 1), forloop_range=1, reduction_dimx=64)
    bH, bX, bAlpha = (tb_graph.new_input(t, (0, -1, -1), -1) for t in (H, X, alpha))
    bA = tb_graph.mul(tb_graph.add(tb_graph.rms_norm(bH), bX), bAlpha)
    bO = tb_graph.forloop_accum(tb_graph.rms_norm(tb_graph.add(bX, bA)))
    tb_graph.new_output(bO, (0, -1, -1))
    graph.mark_output(graph.customized([H, X, alpha], tb_graph)[0])
    return graph


def linear_attention() -> mi.Graph:
    """No softmax: the weights are the products; nothing is marked, so the last product is the output."""
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    graph.matmul(graph.matmul(Q, K), V)
    return graph


def linear_attention_kernel() -> mi.Graph:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    tbgraph = mi.new_threadblock_graph((2, 2, 1), (128, 1, 1), 4, 16)
    bQ = tbgraph.new_input(Q, (0, 1, -1), -1)
    bK = tbgraph.new_input(K, (0, -1, -1), 2)
    bV = tbgraph.new_input(V, (0, -1, -1), 1)
    bO = tbgraph.forloop_accum(tbgraph.matmul(tbgraph.matmul(bQ, bK), bV))
    tbgraph.new_output(bO, (0, 1, -1))
    graph.customized([Q, K, V], tbgraph)
    return graph


CASES: dict[str, Case] = {
    "group-query attention": Case(
        gqa,
        "attention",
        lambda q, k, v: softmax_without_maximum(q @ k) @ v,
        {"split keys": gqa_split, "running maximum": gqa_online},
    ),
    "normalised attention": Case(
        qk_norm,
        "attention",
        lambda q, k, v: softmax_without_maximum(normed(q) @ k) @ normed(v),
        {"one kernel": qk_norm_kernel},
    ),
    "norm and product": Case(rms_linear, "mlp", lambda x, w: normed(x) @ w, {"one kernel": rms_linear_kernel}),
    "norm with weights": Case(weighted, None, lambda x, g, w: (normed(x) * g) @ w, {"one kernel": weighted_kernel}),
    "low-rank adapter": Case(
        lora,
        "lora",
        lambda x, w, a, b: x @ w + x @ a @ b,
        {"one product": lora_concat, "three products": lora_kernel},
    ),
    "gated perceptron": Case(gated_mlp, "mlp", lambda x, a, b: silu(x @ a) * (x @ b), {"one kernel": gated_mlp_kernel}),
    "perceptron": Case(mlp, None, lambda x, a, b: np.maximum(x @ a, 0) @ b, {"one kernel": mlp_kernel}),
    "normalised transformer": Case(
        ntrans, None, lambda h, x, alpha: normed(x + alpha * (normed(h) + x)), {"one kernel": ntrans_kernel}
    ),
    "linear attention": Case(
        linear_attention, "attention", lambda q, k, v: q @ k @ v, {"one kernel": linear_attention_kernel}
    ),
}

WRITTEN: dict[str, tuple[Case, Callable[[], mi.Graph]]] = {
    f"{name}, {how}": (case, make) for name, case in CASES.items() for how, make in case.kernels.items()
}


def inputs_of(graph: mi.Graph, make: Callable[[Array, Any], Any], seed: int = 0) -> tuple[list[Any], list[Array]]:
    """Random tensors for a graph's inputs, and the same in float64.

    Args:
        graph: The graph.
        make: Makes a tensor of float32 values, given an element type.
        seed: Seed.
    """
    rng = np.random.default_rng(seed)
    tensors, values = [], []
    for item in graph.freeze().inputs:
        array = rng.standard_normal(item.tensor.shape).astype(np.float32) * 0.3
        tensor = make(array, item.tensor.dtype)
        tensors.append(tensor)
        values.append(array)
    return tensors, values
