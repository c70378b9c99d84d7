"""Scripts in the style of the reference system's benchmarks, demos, tutorials and tests, written for its interface.

A script gets the module under the name ``mi``, as one that has changed its import does, and a function that draws
inputs. It returns what it computed and what NumPy says. ``stops`` is the row of docs/mirage_api.md that ends one that
cannot run here. Extents are small; grids, loops and maps have the form of those that such scripts have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray
#: Computed and expected outputs, pair by pair.
Found = list[tuple[Any, Array]]
Draw = Callable[..., list[Array]]
Script = Callable[[Any, Draw], Found]


@dataclass(frozen=True, slots=True)
class Entry:
    """One script.

    Attributes:
        name: What it is.
        run: Runs it.
        searches: Whether it asks for a search.
        ignores: Options that it is told are without effect.
        stops: The row that refuses it, or "".
    """

    name: str
    run: Script
    searches: bool
    ignores: tuple[str, ...]
    stops: str


SCRIPTS: Final[dict[str, Entry]] = {}


def script(
    name: str, *, searches: bool = False, ignores: Sequence[str] = (), stops: str = ""
) -> Callable[[Script], Script]:
    """Adds a function to the table."""

    def add(run: Script) -> Script:
        assert name not in SCRIPTS
        SCRIPTS[name] = Entry(name, run, searches, tuple(ignores), stops)
        return run

    return add


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def normed(a: Array) -> Array:
    return a / np.sqrt((a * a).mean(axis=-1, keepdims=True))


def silu(a: Array) -> Array:
    return a / (1 + np.exp(-a))


def attention(q: Array, k: Array, v: Array) -> Array:
    e = np.exp(wide(q) @ wide(k))
    return (e / e.sum(axis=-1, keepdims=True)) @ wide(v)


def exp_over_sum(graph: Any, q: Any, k: Any, v: Any) -> Any:
    e = graph.exp(graph.matmul(q, k))
    return graph.matmul(graph.div(e, graph.reduction(e, 2)), v)


# --- benchmarks: one program, one search, calls ----------------------------------------------------------------------


def attention_benchmark(mi: Any, draw: Draw, heads: int, rows: int, keys: int, **options: Any) -> Found:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(heads, rows, 16), dtype=mi.float16)
    K = graph.new_input(dims=(heads, 16, keys), dtype=mi.float16)
    V = graph.new_input(dims=(heads, keys, 16), dtype=mi.float16)
    graph.mark_output(exp_over_sum(graph, Q, K, V))
    best = graph.superoptimize(config="attention", **options)
    tensors = draw((heads, rows, 16), (heads, 16, keys), (heads, keys, 16))
    for _ in range(2):
        outputs = best(inputs=tensors)
    return [(outputs[0], attention(*tensors))]


@script("benchmark: group-query attention", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    return attention_benchmark(mi, draw, 2, 32, 64)


@script("benchmark: multi-head attention", searches=True, ignores=["warmup_iters"])
def _(mi: Any, draw: Draw) -> Found:
    return attention_benchmark(mi, draw, 4, 16, 32, backend="cuda", warmup_iters=16)


@script("benchmark: multi-query attention", searches=True, ignores=["save_codes"])
def _(mi: Any, draw: Draw) -> Found:
    return attention_benchmark(mi, draw, 1, 64, 32, save_codes=True)


@script("benchmark: attention of normalised queries and values", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 16, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 32), dtype=mi.float16)
    V = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    Q = graph.rms_norm(Q, normalized_shape=(16,))
    V = graph.rms_norm(V, normalized_shape=(16,))
    graph.mark_output(exp_over_sum(graph, Q, K, V))
    best = graph.superoptimize(config="attention")
    q, k, v = tensors = draw((2, 16, 16), (2, 16, 32), (2, 32, 16))
    return [(best(inputs=tensors)[0], attention(normed(wide(q)), k, normed(wide(v))))]


def norm_and_product(mi: Any, rows: int, inner: int, columns: int, dtype: Any = None) -> Any:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(rows, inner), dtype=dtype or mi.float16)
    W = graph.new_input(dims=(inner, columns), dtype=dtype or mi.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(X, normalized_shape=(inner,)), W))
    return graph


@script("benchmark: norm and product", searches=True, ignores=["previous_checkpoint"])
def _(mi: Any, draw: Draw) -> Found:
    best = norm_and_product(mi, 4, 32, 32).superoptimize(config="mlp", previous_checkpoint="norm.json")
    x, w = tensors = draw((4, 32), (32, 32))
    return [(best(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("benchmark: product with a low-rank adapter", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, W = graph.new_input((8, 32)), graph.new_input((32, 64))
    A, B = graph.new_input((32, 16)), graph.new_input((16, 64))
    graph.mark_output(graph.add(graph.matmul(X, W), graph.matmul(graph.matmul(X, A), B)))
    best = graph.superoptimize(config="lora")
    x, w, a, b = tensors = draw((8, 32), (32, 64), (32, 16), (16, 64))
    return [(best(inputs=tensors)[0], wide(x) @ wide(w) + wide(x) @ wide(a) @ wide(b))]


@script("benchmark: gated perceptron", searches=True, ignores=["profile_iters"])
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 32), dtype=mi.float16)
    W1 = graph.new_input(dims=(32, 32), dtype=mi.float16)
    W2 = graph.new_input(dims=(32, 32), dtype=mi.float16)
    graph.mark_output(graph.mul(graph.silu(graph.matmul(X, W1)), graph.matmul(X, W2)))
    best = graph.superoptimize(config="mlp", profile_iters=1000)
    x, a, b = tensors = draw((8, 32), (32, 32), (32, 32))
    return [(best(inputs=tensors)[0], silu(wide(x) @ wide(a)) * (wide(x) @ wide(b)))]


@script("benchmark: normalised transformer step", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    H, X, alpha = (graph.new_input(dims=(4, 32), dtype=mi.float16) for _ in range(3))
    moved = graph.add(graph.rms_norm(H, normalized_shape=(32,)), X)
    graph.mark_output(graph.rms_norm(graph.add(X, graph.mul(alpha, moved)), normalized_shape=(32,)))
    best = graph.superoptimize()
    h, x, s = map(wide, tensors := draw((4, 32), (4, 32), (4, 32)))
    return [(best(inputs=tensors)[0], normed(x + s * (normed(h) + x)))]


@script("benchmark: experts", searches=True, ignores=["previous_checkpoint"])
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, A, B = graph.new_input((4, 4, 16)), graph.new_input((4, 16, 16)), graph.new_input((4, 16, 16))
    graph.mark_output(graph.matmul(graph.exp(graph.matmul(X, A)), B))
    best = graph.superoptimize(previous_checkpoint="attention", backend="cuda")
    x, a, b = map(wide, tensors := draw((4, 4, 16), (4, 16, 16), (4, 16, 16)))
    return [(best(inputs=tensors)[0], np.exp(x @ a) @ b)]


# --- layers: several graphs, with array code between them -------------------------------------------------------------


def decoder(mi: Any, draw: Draw, tokens: int, fused: int) -> Found:
    """Projection and gate by two searched graphs; attention of one cache by NumPy."""
    project = norm_and_product(mi, tokens, 32, fused).superoptimize(config="mlp")
    gate = norm_and_product(mi, tokens, 32, 64).superoptimize(config="mlp")
    x, w, w13, keys, values = draw((tokens, 32), (32, fused), (32, 64), (32, 16), (16, 32))
    (projected,) = project(inputs=[x, w])
    mixed = attention(projected[:, :32], keys, values).astype(np.float16)
    (gated,) = gate(inputs=[mixed, w13])
    wanted = normed(attention((normed(wide(x)) @ wide(w)).astype(np.float16)[:, :32], keys, values)) @ wide(w13)
    return [(gated, wanted)]


@script("layer: four tokens for each sequence", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    return decoder(mi, draw, 4, 96)


@script("layer: one token, grouped heads", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    return decoder(mi, draw, 1, 48)


@script("layer: adapters written by hand, over the strides of a slice")
def _(mi: Any, draw: Draw) -> Found:
    def adapted(strides: Sequence[int], *, normed_rows: bool) -> Any:
        graph = mi.new_kernel_graph()
        X = graph.new_input(dims=(4, 32), dtype=mi.float16, strides=strides)
        W = graph.new_input(dims=(32, 64), dtype=mi.float16)
        A = graph.new_input(dims=(32, 16), dtype=mi.float16)
        B = graph.new_input(dims=(16, 64), dtype=mi.float16)
        block = mi.new_threadblock_graph(grid_dim=(4, 1, 1), block_dim=(128, 1, 1), forloop_range=2, reduction_dimx=64)
        bX = block.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
        bW = block.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
        bA = block.new_input(dtensor=A, input_map=(-1, -1, -1), forloop_dim=0)
        bB = block.new_input(dtensor=B, input_map=(1, -1, -1), forloop_dim=-1)
        total = block.add(block.matmul(bX, bW), block.matmul(block.matmul(bX, bA), bB))
        result = block.forloop_accum(total)
        if normed_rows:
            result = block.div(result, block.forloop_accum(bX, "rms"))
        block.new_output(stensor=result, output_map=(1, -1, -1))
        graph.mark_output(graph.customized([X, W, A, B], block)[0])
        return graph

    x, w, a, b = draw((4, 32), (32, 64), (32, 16), (16, 64))
    (first,) = adapted((32, 1), normed_rows=True)(inputs=[x, w, a, b])
    half = first[:, :32]
    steps = tuple(step // half.itemsize for step in half.strides)
    (second,) = adapted(steps, normed_rows=False)(inputs=[half, w, a, b])
    change = wide(w) + wide(a) @ wide(b)
    return [(first, normed(wide(x)) @ change), (second, wide(half) @ change)]


@script("layer: norms behind products", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, W = graph.new_input(dims=(4, 32)), graph.new_input(dims=(32, 32))
    alpha = graph.new_input(dims=(4, 32))
    rows = graph.rms_norm(graph.matmul(X, W), normalized_shape=(32,))
    graph.mark_output(graph.rms_norm(graph.mul(rows, alpha), normalized_shape=(32,)))
    best = graph.superoptimize(config="mlp")
    x, w, s = map(wide, tensors := draw((4, 32), (32, 32), (4, 32)))
    return [(best(inputs=tensors)[0], normed(normed(x @ w) * s))]


# --- demos -----------------------------------------------------------------------------------------------------------


@script("demo: attention on one device", searches=True, ignores=["set_gpu_device_id", "bypass_compile_errors"])
def _(mi: Any, draw: Draw) -> Found:
    mi.set_gpu_device_id(0)
    mi.bypass_compile_errors(True)
    return attention_benchmark(mi, draw, 2, 16, 32)


@script("demo: gated perceptron without a mark", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, W1, W2 = graph.new_input((4, 32)), graph.new_input((32, 32)), graph.new_input((32, 32))
    gate = graph.silu(graph.matmul(X, W1))
    graph.mul(gate, graph.matmul(X, W2))
    best = graph.superoptimize(config="mlp")
    x, a, b = map(wide, tensors := draw((4, 32), (32, 32), (32, 32)))
    return [(best(inputs=tensors)[0], silu(x @ a) * (x @ b))]


@script("demo: norm and product in bfloat16", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    norm_and_product(mi, 1, 32, 64, mi.bfloat16).superoptimize(config="mlp")
    return []


@script("demo: norm and product, verified", searches=True, ignores=["is_formal_verified", "use_cached_graphs"])
def _(mi: Any, draw: Draw) -> Found:
    best = norm_and_product(mi, 2, 32, 48).superoptimize(config="mlp", is_formal_verified=True, use_cached_graphs=True)
    x, w = tensors = draw((2, 32), (32, 48))
    return [(best(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("demo: a time limit and threads", searches=True, ignores=["use_symbolic_search", "max_num_kernel_graph_op"])
def _(mi: Any, draw: Draw) -> Found:
    best = norm_and_product(mi, 4, 32, 64).superoptimize(
        config="mlp",
        search_time_limit_sec=60,
        num_search_thread=1,
        use_symbolic_search=True,
        max_num_kernel_graph_op=5,
        max_num_threadblock_graph_op=-1,
    )
    x, w = tensors = draw((4, 32), (32, 64))
    return [(best(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("demo: lists of grids and loops", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_and_product(mi, 4, 32, 64)
    best = graph.superoptimize(config="mlp", griddims=[(2, 1, 1), (4, 1, 1)], franges=[2], verbose=False)
    x, w = tensors = draw((4, 32), (32, 64))
    return [(best(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("demo: elementwise operators, two outputs by name")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    A = graph.new_input(dims=(12, 251), dtype=mi.float16)
    B = graph.new_input(dims=(12, 251), dtype=mi.float16)
    total = graph.add(A, B)
    twice, power = graph.add(A, total), graph.exp(total)
    a, b = tensors = draw((12, 251), (12, 251))
    first, second = graph(inputs=tensors, outputs=[twice, power])
    return [(first, 2 * wide(a) + wide(b)), (second, np.exp(wide(a) + wide(b)))]


@script("demo: bounds and powers of elements")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, Y = graph.new_input((8, 16)), graph.new_input((8, 1))
    kept = graph.clamp(graph.relu(X), min_val=0.1, max_val=0.8)
    graph.mark_output(graph.div(graph.sqrt(kept), graph.add(graph.square(Y), graph.gelu(kept))))
    x, y = map(wide, tensors := draw((8, 16), (8, 1)))
    kept = np.clip(x, 0.1, 0.8)
    erf = np.vectorize(__import__("math").erf)
    return [(graph(inputs=tensors)[0], np.sqrt(kept) / (y * y + kept * (1 + erf(kept / 2**0.5)) / 2))]


@script("demo: a picture and a checkpoint")
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_and_product(mi, 4, 32, 64)
    graph.visualize("norm")
    graph.to_json("norm.json")
    return []


# --- tutorials -------------------------------------------------------------------------------------------------------


@script("tutorial: what the function returns", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graphs = mi.superoptimize(norm_and_product(mi, 4, 32, 32), config="mlp")
    x, w = tensors = draw((4, 32), (32, 32))
    return [(one(inputs=tensors)[0], normed(wide(x)) @ wide(w)) for one in graphs[:2]]


@script("tutorial: attention of normalised queries and keys", searches=True)
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    Q, K, V = graph.new_input((2, 16, 16)), graph.new_input((2, 16, 32)), graph.new_input((2, 32, 16))
    graph.mark_output(exp_over_sum(graph, graph.rms_norm(Q), graph.rms_norm(K), V))
    best = mi.superoptimize(graph)[0]
    q, k, v = tensors = draw((2, 16, 16), (2, 16, 32), (2, 32, 16))
    return [(best(inputs=tensors)[0], attention(normed(wide(q)), normed(wide(k)), v))]


THREADS = (128, 1, 1)


def norm_kernel(mi: Any, rows: int, strides: Any = None, threads: Any = THREADS, grid: Any = (4, 1, 1)) -> Any:
    graph = mi.new_kernel_graph()
    X = graph.new_input((rows, 64), *([strides[0]] if strides else []), dtype=mi.float16)
    W = graph.new_input((64, 64), *([strides[1]] if strides else []), dtype=mi.float16)
    block = mi.new_threadblock_graph(grid_dim=grid, block_dim=threads, forloop_range=4, reduction_dimx=64)
    down = grid[1] > 1
    bX = block.new_input(dtensor=X, input_map=(0 if down else -1, -1, -1), forloop_dim=1)
    bW = block.new_input(dtensor=W, input_map=(-1, 1, -1) if down else (1, -1, -1), forloop_dim=0)
    product = block.forloop_accum(block.matmul(bX, bW))
    result = block.div(product, block.forloop_accum(bX, "rms"))
    block.new_output(stensor=result, output_map=(0, 1, -1) if down else (1, -1, -1))
    graph.mark_output(graph.customized([X, W], block)[0], (64, 1))
    return graph


@script("kernel: norm and product, printed as CUDA")
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_kernel(mi, 16)
    x, w = tensors = draw((16, 64), (64, 64))
    strides = [tuple(step // 2 for step in tensor.strides) for tensor in tensors]
    text = mi.generate_cuda_program(graph.cygraph, target_cc=80, input_strides=strides)["code"]
    assert "__global__" in text
    return [(graph(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("kernel: norm and product, printed as Triton")
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_kernel(mi, 16)
    x, w = tensors = draw((16, 64), (64, 64))
    assert "@triton.jit" in mi.generate_triton_program(graph.cygraph, target_cc=10)["code"]
    return [(graph(inputs=tensors)[0], normed(wide(x)) @ wide(w))]


@script("kernel: norm and product over columns in memory")
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_kernel(mi, 8, ((1, 8), (1, 64)))
    tensors = [np.asfortranarray(tensor) for tensor in draw((8, 64), (64, 64))]
    return [(graph(inputs=tensors)[0], normed(wide(tensors[0])) @ wide(tensors[1]))]


@script("kernel: norm and product, blocks over rows and columns", ignores=["num_warp_groups", "file_id"])
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_kernel(mi, 32, threads=(256, 1, 1), grid=(2, 4, 1))
    x, w = tensors = draw((32, 64), (64, 64))
    (result,) = graph(inputs=tensors, num_warp_groups=2, pipeline_stages=4, file_id="norm", target_cc=100)
    return [(result, normed(wide(x)) @ wide(w))]


@script("kernel: product of large blocks", ignores=["pipe_stage", "num_warp_groups"])
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph(gpu_dim=(1, 1, 1))
    X, W = graph.new_input((32, 64)), graph.new_input((64, 32))
    block = mi.new_threadblock_graph(
        (2, 2, 1), (256, 1, 1), 4, 64, cluster_dim=(1, 1, 1), pipe_stage=4, num_warp_groups=4
    )
    bX, bW = block.new_input(X, (0, -1, -1), 1), block.new_input(W, (-1, 1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(bX, bW)), (0, 1, -1))
    graph.mark_output(graph.customized([X, W], block)[0])
    x, w = tensors = draw((32, 64), (64, 32))
    return [(graph(inputs=tensors)[0], wide(x) @ wide(w))]


@script("kernel: gated perceptron")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, A, B = graph.new_input((8, 64)), graph.new_input((64, 64)), graph.new_input((64, 64))
    block = mi.new_threadblock_graph((4, 1, 1), THREADS, 4, 64)
    bX = block.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    bA = block.new_input(dtensor=A, input_map=(1, -1, -1), forloop_dim=0)
    bB = block.new_input(dtensor=B, input_map=(1, -1, -1), forloop_dim=0)
    gate = block.silu(block.forloop_accum(block.matmul(bX, bA)))
    block.new_output(block.mul(gate, block.forloop_accum(block.matmul(bX, bB))), (1, -1, -1))
    results = graph.customized([X, A, B], block)
    graph.mark_output(results[0], (64, 1))
    x, a, b = map(wide, tensors := draw((8, 64), (64, 64), (64, 64)))
    outputs = graph(inputs=tensors, outputs=results)
    return [(outputs[0], silu(x @ a) * (x @ b))]


def split_attention(mi: Any, graph: Any, inputs: Any, before: Any, own_values: int | None = 0) -> Any:
    """Partial sums by blocks that share the keys; ``before`` changes the tiles."""
    block = mi.new_threadblock_graph(grid_dim=(2, 4, 2), block_dim=THREADS, forloop_range=2, reduction_dimx=16)
    maps = [((0, -1, 1), -1), ((0, 2, -1), 2), ((own_values if own_values is not None else -1, 1, -1), 1)]
    maps += [((0, -1, -1), -1)] * (len(inputs) - 3)
    tiles = [block.new_input(dtensor=t, input_map=m, forloop_dim=d) for t, (m, d) in zip(inputs, maps, strict=True)]
    q, k, v = before(block, *tiles)
    e = block.exp(block.matmul(q, k))
    block.new_output(stensor=block.forloop_accum(block.matmul(e, v)), output_map=(0, 2, 1))
    block.new_output(stensor=block.forloop_accum(e, "sum"), output_map=(0, 2, 1))
    return graph.customized(inputs, block)


def folded(mi: Any, graph: Any, parts: Any) -> Any:
    block = mi.new_threadblock_graph(grid_dim=(2, 2, 1), block_dim=THREADS, forloop_range=1, reduction_dimx=16)
    above = block.new_input(dtensor=parts[0], input_map=(0, 1, -1), forloop_dim=-1)
    below = block.new_input(dtensor=parts[1], input_map=(0, 1, -1), forloop_dim=-1)
    above, below = block.forloop_accum(above, "sum_todimx"), block.forloop_accum(below, "sum")
    block.new_output(stensor=block.div(above, below), output_map=(0, 1, -1))
    return graph.customized(parts, block)


def heads(mi: Any, graph: Any) -> list[Any]:
    shapes = ((2, 32, 16), (2, 16, 64), (2, 64, 16))
    return [graph.new_input(dims=shape, dtype=mi.float16) for shape in shapes]


@script("kernel: attention with keys split over blocks")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    inputs = heads(mi, graph)
    parts = split_attention(mi, graph, inputs, lambda block, *tiles: tiles)
    results = folded(mi, graph, parts)
    graph.mark_output(results[0], (512, 16, 1))
    q, k, v = tensors = draw((2, 32, 16), (2, 16, 64), (2, 64, 16))
    return [(graph(inputs=tensors, outputs=results)[0], attention(q, k, v))]


@script("kernel: attention with norms inside, without a mark")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    inputs = heads(mi, graph)
    parts = split_attention(mi, graph, inputs, lambda block, q, k, v: (block.rms_norm(q), k, block.rms_norm(v)))
    results = folded(mi, graph, parts)
    q, k, v = tensors = draw((2, 32, 16), (2, 16, 64), (2, 64, 16))
    return [(graph(inputs=tensors, outputs=results)[0], attention(normed(wide(q)), k, normed(wide(v))))]


@script("kernel: attention over latent values", ignores=["output_tensors"])
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    Q, K = graph.new_input((2, 32, 16)), graph.new_input((2, 16, 64))
    V, W = graph.new_input((1, 64, 16)), graph.new_input((2, 16, 16))
    parts = split_attention(
        mi, graph, [Q, K, V, W], lambda block, q, k, v, w: (q, k, block.matmul(v, w)), own_values=None
    )
    results = folded(mi, graph, parts)
    mi.generate_cuda_program(graph.cygraph, target_cc=80, output_tensors=results)
    q, k, v, w = tensors = draw((2, 32, 16), (2, 16, 64), (1, 64, 16), (2, 16, 16))
    return [(graph(inputs=tensors)[0], attention(q, k, wide(v) @ wide(w)))]


@script("kernel: sums of exponentials as outputs", ignores=["enable_online_softmax"])
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    inputs = heads(mi, graph)
    block = mi.new_threadblock_graph(grid_dim=(2, 1, 2), block_dim=THREADS, forloop_range=1, reduction_dimx=64)
    maps = ((0, -1, 1), (0, -1, -1), (0, -1, -1))
    q, k, v = (block.new_input(t, m, -1) for t, m in zip(inputs, maps, strict=True))
    e = block.exp(block.matmul(q, k))
    block.new_output(block.forloop_accum(block.matmul(e, v)), (0, -1, 1))
    block.new_output(block.forloop_accum(e, "sum"), (0, -1, 1))
    above, below = graph.customized(inputs, block)
    graph.mark_output(above)
    graph.mark_output(below)
    q, k, v = map(wide, tensors := draw((2, 32, 16), (2, 16, 64), (2, 64, 16)))
    found = graph(inputs=tensors, enable_online_softmax=True)
    e = np.exp(q @ k)
    return [(found[0], e @ v), (found[1], e.sum(axis=-1, keepdims=True))]


@script("kernel: attention with a maximum that is carried along")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    inputs = heads(mi, graph)
    block = mi.new_threadblock_graph(grid_dim=(2, 2, 1), block_dim=THREADS, forloop_range=4, reduction_dimx=64)
    maps = (((0, 1, -1), -1), ((0, -1, -1), 2), ((0, -1, -1), 1))
    q, k, v = (block.new_input(t, m, d) for t, (m, d) in zip(inputs, maps, strict=True))
    scores = block.matmul(q, k)
    most, change = block.reduction_max(scores, 2)
    e, factor = block.exp(block.sub(scores, most)), block.exp(change)
    below = block.forloop_accum_rescale(e, factor, "sum")
    above = block.forloop_accum_rescale(block.matmul(e, v), factor)
    block.new_output(block.div(above, below), (0, 1, -1))
    graph.mark_output(graph.customized(inputs, block)[0])
    tensors = draw((2, 32, 16), (2, 16, 64), (2, 64, 16))
    return [(graph(inputs=tensors)[0], attention(*tensors))]


@script("kernel: adapter as one product of concatenations")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, W, A, B = (graph.new_input(s) for s in ((16, 32), (32, 64), (32, 16), (16, 64)))
    block = mi.new_threadblock_graph((4, 1, 1), THREADS, 1, 64)
    x = block.new_input(X, (-1, -1, -1), -1)
    w = block.new_input(W, (1, -1, -1), -1)
    a = block.new_input(A, (-1, -1, -1), -1)
    b = block.new_input(B, (1, -1, -1), -1)
    left, right = block.concat(x, block.matmul(x, a), dim=1), block.concat(w, b, dim=0)
    block.new_output(block.forloop_accum(block.matmul(left, right)), (1, -1, -1))
    graph.mark_output(graph.customized([X, W, A, B], block)[0])
    x, w, a, b = map(wide, tensors := draw((16, 32), (32, 64), (32, 16), (16, 64)))
    return [(graph(inputs=tensors)[0], x @ w + x @ a @ b)]


@script("kernel: normalised transformer step, a row for each block")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    inputs = [graph.new_input((8, 64)) for _ in range(3)]
    block = mi.new_threadblock_graph((8, 1, 1), THREADS, 1, 64)
    h, x, s = (block.new_input(t, (0, -1, -1), -1) for t in inputs)
    moved = block.add(x, block.mul(s, block.add(block.rms_norm(h), x)))
    block.new_output(block.forloop_accum(block.rms_norm(moved)), (0, -1, -1))
    graph.mark_output(graph.customized(inputs, block)[0])
    h, x, s = map(wide, tensors := draw((8, 64), (8, 64), (8, 64)))
    return [(graph(inputs=tensors)[0], normed(x + s * (normed(h) + x)))]


@script("kernel: weights of a norm, and a product with columns in memory")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, G = graph.new_input(dims=(1, 64)), graph.new_input(dims=(1, 64))
    W = graph.new_input(dims=(64, 96), strides=(1, 64))
    block = mi.new_threadblock_graph((3, 1, 1), THREADS, 4, 64)
    x, g = (block.new_input(t, (-1, -1, -1), 1) for t in (X, G))
    w = block.new_input(W, (1, -1, -1), 0)
    product = block.forloop_accum(block.matmul(block.mul(x, g), w))
    block.new_output(block.div(product, block.forloop_accum(x, "rms")), (1, -1, -1))
    graph.mark_output(graph.customized([X, G, W], block)[0])
    x, g, w = draw((1, 64), (1, 64), (64, 96))
    columns = np.asfortranarray(w)
    return [(graph(inputs=[x, g, columns])[0], (normed(wide(x)) * wide(g)) @ wide(w))]


@script("kernel: gate and product of one token")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    X, Y, W = graph.new_input((1, 128)), graph.new_input((1, 128)), graph.new_input((128, 32))
    block = mi.new_threadblock_graph((2, 1, 1), THREADS, 4, 64)
    x, y = (block.new_input(t, (-1, -1, -1), 1) for t in (X, Y))
    w = block.new_input(W, (1, -1, -1), 0)
    block.new_output(block.forloop_accum(block.matmul(block.mul(block.silu(x), y), w)), (1, -1, -1))
    graph.mark_output(graph.customized([X, Y, W], block)[0])
    x, y, w = map(wide, tensors := draw((1, 128), (1, 128), (128, 32)))
    return [(graph(inputs=tensors)[0], (silu(x) * y) @ w)]


@script("older name of the search", stops="optimize")
def _(mi: Any, draw: Draw) -> Found:
    graphs = mi.optimize(norm_and_product(mi, 4, 32, 32), griddims=[(2, 16, 1)])
    return [graph.generate_triton_program("program.py") for graph in graphs]


@script("another back end", stops="superoptimize(backend)")
def _(mi: Any, draw: Draw) -> Found:
    graphs = norm_and_product(mi, 16, 64, 64).superoptimize(config="mlp", backend="nki")
    return [mi.generate_nki_program(graph.cygraph, target_cc=10) for graph in graphs]


@script("text for another back end", stops="generate_nki_program")
def _(mi: Any, draw: Draw) -> Found:
    return [(mi.generate_nki_program(norm_and_product(mi, 16, 64, 64).cygraph, target_cc=10), None)]  # type: ignore[list-item]


@script("timing Triton programs", stops="profile_and_select_best_graph")
def _(mi: Any, draw: Draw) -> Found:
    mi.profile_and_select_best_graph([norm_and_product(mi, 4, 32, 32)], backend="triton")
    return []


@script("the search by symbols", stops="search_symbolic")
def _(mi: Any, draw: Draw) -> Found:
    mi.search_symbolic(norm_and_product(mi, 4, 32, 32).cygraph, time_limit_sec=10)
    return []


@script("the store of searched graphs", stops="graph_dataset")
def _(mi: Any, draw: Draw) -> Found:
    mi.graph_dataset.find(norm_and_product(mi, 4, 32, 32).cygraph)
    return []


@script("settings of the process", stops="global_config")
def _(mi: Any, draw: Draw) -> Found:
    mi.global_config.verbose = True
    return []


@script("a graph from a checkpoint", stops="KNGraph.from_json")
def _(mi: Any, draw: Draw) -> Found:
    mi.new_kernel_graph().from_json("saved.json")
    return []


@script("a profile of a kernel", stops="compile(profiling)")
def _(mi: Any, draw: Draw) -> Found:
    tensors = draw((4, 32), (32, 32))
    norm_and_product(mi, 4, 32, 32)(inputs=tensors, profiling=True)
    return []


@script("layouts of inputs below the graph", stops="KNGraph.get_input_dtensors")
def _(mi: Any, draw: Draw) -> Found:
    graph = norm_and_product(mi, 1, 32, 64, mi.bfloat16)
    return [(graph.cygraph.get_input_dtensor_layout(one), None) for one in graph.cygraph.get_input_dtensors()]  # type: ignore[misc]


@script("blocks in clusters", stops="new_threadblock_graph(cluster_dim)")
def _(mi: Any, draw: Draw) -> Found:
    mi.new_threadblock_graph((2, 8, 1), (256, 1, 1), forloop_range=4, reduction_dimx=64, cluster_dim=(1, 8, 1))
    return []


@script("sums over clusters", stops="TBGraph.cluster_accum")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    block = mi.new_threadblock_graph((2, 1, 1), (256, 1, 1), 4, 64)
    block.cluster_accum(block.forloop_accum(block.new_input(graph.new_input((2, 64)), (0, -1, -1), 1), "sum"), "sum")
    return []


@script("warps with tasks of their own", ignores=["pipe_stage"], stops="TBGraph.assign_task")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    block = mi.new_threadblock_graph((4, 1, 1), (256, 1, 1), 4, 64, pipe_stage=4)
    block.assign_task(block.new_input(graph.new_input((16, 64)), (-1, -1, -1), 1), 0)
    return []


@script("several GPUs", stops="new_kernel_graph(gpu_dim)")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph(gpu_dim=(2, 1, 1))
    graph.new_input(dims=(64, 128), gpu_input_map=(1, -1, -1), dtype=mi.float16)
    return []


@script("a sum over GPUs", stops="KNGraph.allreduce")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    graph.mark_output(graph.allreduce(graph.matmul(graph.new_input((4, 8)), graph.new_input((8, 4)))))
    return []


@script("a sum over GPUs behind a kernel", stops="new_output(epilogue)")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    block = mi.new_threadblock_graph((2, 1, 1), (128, 1, 1), 4, 64)
    tile = block.new_input(graph.new_input((16, 64)), (0, -1, -1), 1)
    block.new_output(stensor=block.forloop_accum(tile), output_map=(0, -1, -1), epilogue="allreduce")
    return []


@script("products of 8-bit elements", stops="float8_e4m3")
def _(mi: Any, draw: Draw) -> Found:
    graph = mi.new_kernel_graph()
    graph.new_input(dims=(16, 64), dtype=mi.float8_e4m3)
    return []


@script("a whole model as one kernel", stops="PersistentKernel")
def _(mi: Any, draw: Draw) -> Found:
    mi.PersistentKernel(world_size=1, mpi_rank=0)
    return []


@script("weights of a whole model", stops="KNGraph.attach_torch_tensor")
def _(mi: Any, draw: Draw) -> Found:
    mi.new_kernel_graph().attach_torch_tensor("weight")
    return []
