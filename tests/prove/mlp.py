"""Feed-forward layers: gates, activations written out, hidden units split over blocks."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.frontend.elementwise_functions import Functions
from mirage_formal.frontend.handles import AnyTensor
from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def gated_inputs(b: int, k: int, n: int) -> Shapes:
    return {"X": (b, k), "W1": (k, n), "W2": (k, n)}


def gated(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return g.silu(x @ w1) * (x @ w2)


def gated_blocks(g: Graph, x: Tensor, w1: Tensor, w2: Tensor, grid: int, loop: int) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
        return t.silu(t.forloop_accum(x @ w1)) * t.forloop_accum(x @ w2), on(1)

    return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)


def ones(g: Functions[AnyTensor], x: AnyTensor) -> AnyTensor:
    return g.exp(g.scale(x, 0))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def in_one_kernel(b: int = 8, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64) -> Pair:
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))


@claim(b=2, k=4, n=6, grid=3, loop=2)
def in_one_kernel_of_43_blocks(b: int = 8, k: int = 4096, n: int = 11008, grid: int = 43, loop: int = 64) -> Pair:
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))


@claim(b=2, k=4, n=6, grid=3, loop=2)
def in_one_kernel_with_thread_graphs(
    b: int = 8, k: int = 4096, n: int = 11008, grid: int = 344, loop: int = 64
) -> Pair:
    left, right = pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))
    return left, fuse_threads(right)


@claim(b=2, k=3, n=4)
def silu_by_sigmoid(b: int = 8, k: int = 4096, n: int = 11008) -> Pair:
    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        h = x @ w1
        return (h * (x @ w2)) * g.sigmoid(h)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=3, n=4)
def silu_by_exponentials(b: int = 8, k: int = 4096, n: int = 11008) -> Pair:
    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        h = x @ w1
        return (h * (x @ w2)) / (ones(g, h) + g.exp(-h))

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def silu_by_exponentials_in_one_kernel(
    b: int = 8, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 32
) -> Pair:
    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
            h = t.forloop_accum(x @ w1)
            e = t.exp(h)
            return (h * e) * t.forloop_accum(x @ w2) / (e + ones(t, h)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def silu_by_sigmoid_in_one_kernel(b: int = 8, k: int = 6144, n: int = 4096, grid: int = 64, loop: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
            h = t.forloop_accum(x @ w1)
            return h * t.sigmoid(h) * t.forloop_accum(x @ w2), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=4, n=6, grid=2)
def silu_of_a_row_in_blocks(b: int = 96, n: int = 11008, grid: int = 43) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor) -> Saved:
            h = t.forloop_accum(x)
            return h / (ones(t, h) + t.exp(-h)), on(1)

        return kernel(g, (grid,), [(x, on(1))], body)

    return pair({"X": (b, n)}, lambda g, x: g.silu(x), candidate)


@claim(b=2, k=3, n=4, p=2, split=2)
def the_whole_layer_split_over_hidden_units(
    b: int = 8, k: int = 4096, n: int = 11008, p: int = 4096, split: int = 43
) -> Pair:
    inputs = {**gated_inputs(b, k, n), "W3": (n, p)}

    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor, w3: BlockTensor) -> Saved:
            return t.forloop_accum((t.silu(x @ w1) * (x @ w2)) @ w3), on(1)

        parts = kernel(g, (split,), [(x, on()), (w1, on(1)), (w2, on(1)), (w3, on(0))], body)
        return g.reshape(g.reduction(g.reshape(parts, b, split, p), 1), b, p)

    return pair(inputs, lambda g, x, w1, w2, w3: gated(g, x, w1, w2) @ w3, candidate)


@claim(b=2, k=3, n=4, p=2, loop=2)
def the_whole_layer_looping_over_hidden_units(
    b: int = 8, k: int = 96, n: int = 320, p: int = 96, loop: int = 5
) -> Pair:
    inputs = {**gated_inputs(b, k, n), "W3": (n, p)}

    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor, w3: BlockTensor) -> Saved:
            return t.forloop_accum((t.silu(x @ w1) * (x @ w2)) @ w3), on()

        return kernel(g, (1,), [(x, on()), (w1, on(), 1), (w2, on(), 1), (w3, on(), 0)], body, loop)

    return pair(inputs, lambda g, x, w1, w2, w3: gated(g, x, w1, w2) @ w3, candidate)


@claim(b=2, k=3, n=4)
def the_norm_inside_the_gate(b: int = 8, k: int = 4096, n: int = 4096) -> Pair:
    def program(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return gated(g, g.rms_norm(x), w1, w2)

    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        below = g.sqrt(g.mean(g.square(x), 1))
        return g.silu((x @ w1) / below) * ((x @ w2) / below)

    return pair(gated_inputs(b, k, n), program, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_norm_inside_the_gate_in_one_kernel(
    b: int = 8, k: int = 4096, n: int = 11008, grid: int = 86, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
            below = t.forloop_accum(x, "rms")
            return t.silu(t.forloop_accum(x @ w1) / below) * (t.forloop_accum(x @ w2) / below), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), lambda g, x, u, v: gated(g, g.rms_norm(x), u, v), candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def gelu_of_a_biased_product(b: int = 8, k: int = 4096, n: int = 6144, grid: int = 48, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, bias: BlockTensor) -> Saved:
            return t.gelu(t.forloop_accum(t.scale(bias, Fraction(1, loop))) + t.forloop_accum(x @ w)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (bias, on(1))], body, loop)

    return pair({"X": (b, k), "W": (k, n), "bias": (1, n)}, lambda g, x, w, c: g.gelu(x @ w + c), candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def relu_of_a_product(b: int = 8, k: int = 4096, n: int = 6144, grid: int = 48, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, u: BlockTensor, v: BlockTensor) -> Saved:
            return t.relu(t.forloop_accum(x @ u + x @ v)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (u, on(1), 0), (v, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), lambda g, x, u, v: g.relu(x @ (u + v)), candidate)


@claim(b=2, k=3, n=4, p=2, split=2)
def squared_relu_layer_split(b: int = 8, k: int = 4096, n: int = 6144, p: int = 96, split: int = 12) -> Pair:

    def candidate(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor) -> Saved:
            h = t.relu(x @ w1)
            return t.forloop_accum((h * h) @ w2), on(1)

        parts = kernel(g, (split,), [(x, on()), (w1, on(1)), (w2, on(0))], body)
        return kernel(g, (1,), [(parts, on())], lambda t, p_: (t.forloop_accum(p_, "sum_todimx"), on()), dimx=p)

    inputs = {"X": (b, k), "W1": (k, n), "W2": (n, p)}
    return pair(inputs, lambda g, x, w1, w2: g.square(g.relu(x @ w1)) @ w2, candidate)


@claim(b=2, k=3, n=2)
def a_gate_of_concatenated_weights(b: int = 8, k: int = 4096, n: int = 4096) -> Pair:
    def program(g: Graph, x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        return g.silu(x @ g.concat(w1, w2, 1))

    return pair(gated_inputs(b, k, n), program, lambda g, x, w1, w2: g.concat(g.silu(x @ w1), g.silu(x @ w2), 1))


@claim(b=3, e=2, k=2, n=2)
def experts_weighted_by_softmax(b: int = 16, e: int = 8, k: int = 320, n: int = 96) -> Pair:
    def program(g: Graph, gate: Tensor, x: Tensor, w: Tensor) -> Tensor:
        mixed = g.reduction(g.transpose(g.reshape(g.softmax(gate, 1), b, e, 1), 0, 1) * (g.repeat(x, 0, e) @ w), 0)
        return g.reshape(mixed, b, n)

    def candidate(g: Graph, gate: Tensor, x: Tensor, w: Tensor) -> Tensor:
        p = g.exp(gate)
        top = g.reshape(g.transpose(p, 0, 1), e, b, 1) * g.repeat(x, 0, e)
        return g.reshape(g.reduction(top @ w, 0), b, n) / g.reduction(p, 1)

    return pair({"gate": (b, e), "X": (1, b, k), "W": (e, k, n)}, program, candidate)
