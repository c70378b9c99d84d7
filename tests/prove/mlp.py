"""Feed-forward layers: gates, activations written out, hidden units split over blocks."""

from fractions import Fraction

from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import claim, kernel, on, pair


def gated_inputs(b, k, n):
    return {"X": (b, k), "W1": (k, n), "W2": (k, n)}


def gated(g, x, w1, w2):
    return g.silu(x @ w1) * (x @ w2)


def gated_blocks(g, x, w1, w2, grid, loop):
    def body(t, x, w1, w2):
        return t.silu(t.forloop_accum(x @ w1)) * t.forloop_accum(x @ w2), on(1)

    return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)


def ones(g, x):
    return g.exp(g.scale(x, 0))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def in_one_kernel(b=8, k=4096, n=4096, grid=64, loop=64):
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))


@claim(b=2, k=4, n=6, grid=3, loop=2)
def in_one_kernel_of_43_blocks(b=8, k=4096, n=11008, grid=43, loop=64):
    return pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))


@claim(b=2, k=4, n=6, grid=3, loop=2)
def in_one_kernel_with_thread_graphs(b=8, k=4096, n=11008, grid=344, loop=64):
    left, right = pair(gated_inputs(b, k, n), gated, lambda g, x, u, v: gated_blocks(g, x, u, v, grid, loop))
    return left, fuse_threads(right)


@claim(b=2, k=3, n=4)
def silu_by_sigmoid(b=8, k=4096, n=11008):
    def candidate(g, x, w1, w2):
        h = x @ w1
        return (h * (x @ w2)) * g.sigmoid(h)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=3, n=4)
def silu_by_exponentials(b=8, k=4096, n=11008):
    def candidate(g, x, w1, w2):
        h = x @ w1
        return (h * (x @ w2)) / (ones(g, h) + g.exp(-h))

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def silu_by_exponentials_in_one_kernel(b=8, k=4096, n=4096, grid=64, loop=32):
    def candidate(g, x, w1, w2):
        def body(t, x, w1, w2):
            h = t.forloop_accum(x @ w1)
            e = t.exp(h)
            return (h * e) * t.forloop_accum(x @ w2) / (e + ones(t, h)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def silu_by_sigmoid_in_one_kernel(b=8, k=6144, n=4096, grid=64, loop=12):
    def candidate(g, x, w1, w2):
        def body(t, x, w1, w2):
            h = t.forloop_accum(x @ w1)
            return h * t.sigmoid(h) * t.forloop_accum(x @ w2), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), gated, candidate)


@claim(b=4, n=6, grid=2)
def silu_of_a_row_in_blocks(b=96, n=11008, grid=43):
    def candidate(g, x):
        def body(t, x):
            h = t.forloop_accum(x)
            return h / (ones(t, h) + t.exp(-h)), on(1)

        return kernel(g, (grid,), [(x, on(1))], body)

    return pair({"X": (b, n)}, lambda g, x: g.silu(x), candidate)


@claim(b=2, k=3, n=4, p=2, split=2)
def the_whole_layer_split_over_hidden_units(b=8, k=4096, n=11008, p=4096, split=43):
    inputs = {**gated_inputs(b, k, n), "W3": (n, p)}

    def candidate(g, x, w1, w2, w3):
        def body(t, x, w1, w2, w3):
            return t.forloop_accum((t.silu(x @ w1) * (x @ w2)) @ w3), on(1)

        parts = kernel(g, (split,), [(x, on()), (w1, on(1)), (w2, on(1)), (w3, on(0))], body)
        return g.reshape(g.reduction(g.reshape(parts, b, split, p), 1), b, p)

    return pair(inputs, lambda g, x, w1, w2, w3: gated(g, x, w1, w2) @ w3, candidate)


@claim(b=2, k=3, n=4, p=2, loop=2)
def the_whole_layer_looping_over_hidden_units(b=8, k=96, n=320, p=96, loop=5):
    inputs = {**gated_inputs(b, k, n), "W3": (n, p)}

    def candidate(g, x, w1, w2, w3):
        def body(t, x, w1, w2, w3):
            return t.forloop_accum((t.silu(x @ w1) * (x @ w2)) @ w3), on()

        return kernel(g, (1,), [(x, on()), (w1, on(), 1), (w2, on(), 1), (w3, on(), 0)], body, loop)

    return pair(inputs, lambda g, x, w1, w2, w3: gated(g, x, w1, w2) @ w3, candidate)


@claim(b=2, k=3, n=4)
def the_norm_inside_the_gate(b=8, k=4096, n=4096):
    def program(g, x, w1, w2):
        return gated(g, g.rms_norm(x), w1, w2)

    def candidate(g, x, w1, w2):
        below = g.sqrt(g.mean(g.square(x), 1))
        return g.silu((x @ w1) / below) * ((x @ w2) / below)

    return pair(gated_inputs(b, k, n), program, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_norm_inside_the_gate_in_one_kernel(b=8, k=4096, n=11008, grid=86, loop=64):
    def candidate(g, x, w1, w2):
        def body(t, x, w1, w2):
            below = t.forloop_accum(x, "rms")
            return t.silu(t.forloop_accum(x @ w1) / below) * (t.forloop_accum(x @ w2) / below), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w1, on(1), 0), (w2, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), lambda g, x, u, v: gated(g, g.rms_norm(x), u, v), candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def gelu_of_a_biased_product(b=8, k=4096, n=6144, grid=48, loop=64):
    def candidate(g, x, w, bias):
        def body(t, x, w, bias):
            return t.gelu(t.forloop_accum(t.scale(bias, Fraction(1, loop))) + t.forloop_accum(x @ w)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (bias, on(1))], body, loop)

    return pair({"X": (b, k), "W": (k, n), "bias": (1, n)}, lambda g, x, w, c: g.gelu(x @ w + c), candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def relu_of_a_product(b=8, k=4096, n=6144, grid=48, loop=64):
    def candidate(g, x, u, v):
        def body(t, x, u, v):
            return t.relu(t.forloop_accum(x @ u + x @ v)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (u, on(1), 0), (v, on(1), 0)], body, loop)

    return pair(gated_inputs(b, k, n), lambda g, x, u, v: g.relu(x @ (u + v)), candidate)


@claim(b=2, k=3, n=4, p=2, split=2)
def squared_relu_layer_split(b=8, k=4096, n=6144, p=96, split=12):

    def candidate(g, x, w1, w2):
        def body(t, x, w1, w2):
            h = t.relu(x @ w1)
            return t.forloop_accum((h * h) @ w2), on(1)

        parts = kernel(g, (split,), [(x, on()), (w1, on(1)), (w2, on(0))], body)
        return kernel(g, (1,), [(parts, on())], lambda t, p_: (t.forloop_accum(p_, "sum_todimx"), on()), dimx=p)

    inputs = {"X": (b, k), "W1": (k, n), "W2": (n, p)}
    return pair(inputs, lambda g, x, w1, w2: g.square(g.relu(x @ w1)) @ w2, candidate)


@claim(b=2, k=3, n=2)
def a_gate_of_concatenated_weights(b=8, k=4096, n=4096):
    def program(g, x, w1, w2):
        return g.silu(x @ g.concat(w1, w2, 1))

    return pair(gated_inputs(b, k, n), program, lambda g, x, w1, w2: g.concat(g.silu(x @ w1), g.silu(x @ w2), 1))


@claim(b=3, e=2, k=2, n=2)
def experts_weighted_by_softmax(b=16, e=8, k=320, n=96):
    def program(g, gate, x, w):
        mixed = g.reduction(g.transpose(g.reshape(g.softmax(gate, 1), b, e, 1), 0, 1) * (g.repeat(x, 0, e) @ w), 0)
        return g.reshape(mixed, b, n)

    def candidate(g, gate, x, w):
        p = g.exp(gate)
        top = g.reshape(g.transpose(p, 0, 1), e, b, 1) * g.repeat(x, 0, e)
        return g.reshape(g.reduction(top @ w, 0), b, n) / g.reduction(p, 1)

    return pair({"gate": (b, e), "X": (1, b, k), "W": (e, k, n)}, program, candidate)
