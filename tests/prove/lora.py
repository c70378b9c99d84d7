"""Low-rank adapters, and linear layers fused side by side."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import Pair, Read, Saved, Shapes, claim, kernel, on, pair


def shapes(b: int, k: int, n: int, r: int) -> Shapes:
    return {"X": (b, k), "W": (k, n), "A": (k, r), "B": (r, n)}


def adapter(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + (x @ a) @ b


@claim(m=2, k=3, n=4, r=2)
def one_product_of_concatenations(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(shapes(m, k, n, r), adapter, lambda g, x, w, a, b: g.concat(x, x @ a, 1) @ g.concat(w, b, 0))


@claim(m=2, k=3, n=2, r=2)
def concatenations_the_other_way_round(m: int = 16, k: int = 256, n: int = 4096, r: int = 96) -> Pair:
    return pair(shapes(m, k, n, r), adapter, lambda g, x, w, a, b: g.concat(x @ a, x, 1) @ g.concat(b, w, 0))


@claim(m=2, k=3, n=4, r=2)
def merged_into_the_weight(m: int = 16, k: int = 4096, n: int = 4096, r: int = 16) -> Pair:
    return pair(shapes(m, k, n, r), adapter, lambda g, x, w, a, b: x @ (w + a @ b))


@claim(m=2, k=3, n=4, r=2)
def adapter_multiplied_first(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(shapes(m, k, n, r), adapter, lambda g, x, w, a, b: x @ (a @ b) + x @ w)


@claim(m=4, k=4, n=4, r=2, grid=2, rows=2, loop=2)
def in_one_kernel(
    m: int = 16, k: int = 256, n: int = 4096, r: int = 16, grid: int = 64, rows: int = 1, loop: int = 4
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, a: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w + (x @ a) @ b), on(1, 0)

        reads: list[Read] = [(x, on(y=0), 1), (w, on(1), 0), (a, on(), 0), (b, on(1))]
        return kernel(g, (grid, rows), reads, body, loop)

    return pair(shapes(m, k, n, r), adapter, candidate)


@claim(m=2, k=4, n=4, r=2, grid=2, loop=2)
def concatenated_in_the_loop(
    m: int = 16, k: int = 256, n: int = 4096, r: int = 16, grid: int = 64, loop: int = 4
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, a: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(t.concat(x, x @ a, 1) @ t.concat(w, b, 0)), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (a, on(), 0), (b, on(1))], body, loop)

    return pair(shapes(m, k, n, r), adapter, candidate)


@claim(m=2, k=4, n=6, r=2, grid=3, loop=2)
def the_sum_closed_before_the_second_factor(
    m: int = 16, k: int = 4096, n: int = 11008, r: int = 16, grid: int = 43, loop: int = 16
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, a: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w) + t.forloop_accum(x @ a @ b), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (a, on(), 0), (b, on(1))], body, loop)

    return pair(shapes(m, k, n, r), adapter, candidate)


@claim(m=2, k=4, n=6, r=2, grid=3, loop=2)
def the_adapter_in_a_kernel_of_its_own(
    m: int = 16, k: int = 4096, n: int = 11008, r: int = 16, grid: int = 344, loop: int = 16
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        xa = kernel(g, (1,), [(x, on(), 1), (a, on(), 0)], lambda t, x, a: (t.forloop_accum(x @ a), on()), loop)

        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, xa: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w) + t.forloop_accum(xa @ b), on(1)

        reads = [(x, on()), (w, on(1)), (xa, on()), (b, on(1))]
        return kernel(g, (grid,), reads, body)

    return pair(shapes(m, k, n, r), adapter, candidate)


@claim(m=2, k=3, n=2, r=2)
def scaled_adapter(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(
        shapes(m, k, n, r),
        lambda g, x, w, a, b: x @ w + g.scale((x @ a) @ b, 2),
        lambda g, x, w, a, b: g.concat(x, g.scale(x, 2) @ a, 1) @ g.concat(w, b, 0),
    )


@claim(m=2, k=3, n=2, r=1, s=2)
def two_adapters_are_one_of_the_summed_rank(m: int = 16, k: int = 256, n: int = 4096, r: int = 16, s: int = 32) -> Pair:
    inputs = {"X": (m, k), "A1": (k, r), "A2": (k, s), "B1": (r, n), "B2": (s, n)}
    return pair(
        inputs,
        lambda g, x, a1, a2, b1, b2: (x @ a1) @ b1 + (x @ a2) @ b2,
        lambda g, x, a1, a2, b1, b2: (x @ g.concat(a1, a2, 1)) @ g.concat(b1, b2, 0),
    )


@claim(m=2, k=3, n=2, r=2)
def three_parts_in_one_product(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    def program(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return x @ w + (x @ a) @ b + bias

    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        zero = g.scale(g.reduction(x, 1), 0)
        return g.concat([x, x @ a, g.exp(zero)], 1) @ g.concat([w, b, bias], 0)

    return pair({**shapes(m, k, n, r), "bias": (1, n)}, program, candidate)


@claim(m=2, k=3, n=2, p=3)
def two_weights_side_by_side(m: int = 16, k: int = 4096, n: int = 4096, p: int = 1024) -> Pair:
    return pair(
        {"X": (m, k), "W1": (k, n), "W2": (k, p)},
        lambda g, x, w1, w2: g.concat(x @ w1, x @ w2, 1),
        lambda g, x, w1, w2: x @ g.concat(w1, w2, 1),
    )


@claim(m=2, k=4, n=2, grid=2, loop=2)
def three_projections_in_one_kernel(m: int = 16, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> list[Tensor]:
        def body(t: BlockBuilder, x: BlockTensor, w1: BlockTensor, w2: BlockTensor, w3: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x @ w), on(1)) for w in (w1, w2, w3)]

        return kernel(g, (grid,), [(x, on(), 1), *((w, on(1), 0) for w in (wq, wk, wv))], body, loop)

    return pair(
        {"X": (m, k), "Wq": (k, n), "Wk": (k, n), "Wv": (k, n)},
        lambda g, x, wq, wk, wv: (x @ wq, x @ wk, x @ wv),
        candidate,
    )


@claim(m=2, k=4, n=4, r=2, grid=2)
def in_one_kernel_with_thread_graphs(m: int = 16, k: int = 256, n: int = 4096, r: int = 16, grid: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, a: BlockTensor, b: BlockTensor) -> Saved:
            low = t.forloop_accum((x @ a) @ b)
            return t.scale(t.scale(low, 0.5) + t.scale(t.forloop_accum(x @ w), 0.5), 2), on(1)

        return kernel(g, (grid,), [(x, on()), (w, on(1)), (a, on()), (b, on(1))], body)

    left, right = pair(shapes(m, k, n, r), adapter, candidate)
    return left, fuse_threads(right)
