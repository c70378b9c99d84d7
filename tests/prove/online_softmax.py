"""Softmax with a running maximum: rescaled sums, and partial results (m, l, o) over split blocks."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def qkv(b: int, m: int, d: int, n: int, e: int) -> Shapes:
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return g.softmax(q @ k, 2) @ v


def shifted(g: Graph, x: Tensor, dim: int) -> Tensor:
    e = g.exp(g.sub(x, g.max(x, dim)))
    return e / g.reduction(e, dim)


def partials(g: Graph, q: Tensor, k: Tensor, v: Tensor, split: int, loop: int) -> list[Tensor]:
    """Per part of the keys its maximum [b,m,split], denominator [b,m,split] and numerator [b,m,split*e]."""

    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
        s = q @ k
        m, moved = t.reduction_max(s, 2)
        f = t.exp(moved)
        p = t.exp(t.sub(s, m))
        return [
            (t.forloop_accum_max(m), on(0, 2)),
            (t.forloop_accum_rescale(p, f, "sum"), on(0, 2)),
            (t.forloop_accum_rescale(p @ v, f), on(0, 2)),
        ]

    return kernel(g, (q.shape[0], split), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], body, loop)


@claim(b=2, m=2, d=2, n=3, e=2)
def shift_by_the_maximum(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(qkv(b, m, d, n, e), attention, lambda g, q, k, v: shifted(g, q @ k, 2) @ v)


@claim(b=3, n=5)
def the_shift_cancels(b: int = 96, n: int = 11008) -> Pair:
    def plain(g: Graph, x: Tensor) -> Tensor:
        e = g.exp(x)
        return e / g.reduction(e, 1)

    return pair({"X": (b, n)}, plain, lambda g, x: shifted(g, x, 1))


@claim(b=3, n=5)
def any_row_constant_is_a_shift(b: int = 96, n: int = 320) -> Pair:
    def candidate(g: Graph, x: Tensor, c: Tensor) -> Tensor:
        e = g.exp(g.sub(x, c))
        return e / g.reduction(e, 1)

    return pair({"X": (b, n), "c": (b, 1)}, lambda g, x, c: g.softmax(x, 1), candidate)


@claim(b=2, m=2, d=2, n=6, e=2, loop=3)
def running_maximum_in_one_kernel(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=4, d=2, n=4, e=2, rows=2, loop=2)
def row_sums_before_the_rescaled_sum(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, rows: int = 4, loop: int = 32
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            s = t.scale(q @ k, 0.125)
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(t.reduction(p, 2), f), on(0, 1)

        return kernel(g, (b, rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v), candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_loop_of_one_iteration(b: int = 2, m: int = 256, d: int = 64, n: int = 320, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            s = q @ k
            p = t.exp(t.sub(s, t.max(s, 2)))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0)), (v, on(0))], body)

    return pair(qkv(b, m, d, n, e), attention, candidate)


def combined_by_maxima(g: Graph, m: Tensor, total: Tensor, o: Tensor, split: int) -> Tensor:
    """Kernel-level combination of (m, l, o): weights exp(m_part - m)."""
    b, rows, e = o.shape[0], o.shape[1], o.shape[2] // split
    w = g.exp(g.sub(m, g.max(m, 2)))
    parts = g.reshape(o, b, rows, split, e)
    top = g.reduction(g.reshape(w, b, rows, split, 1) * parts, 2)
    return g.reshape(top, b, rows, e) / g.reduction(w * total, 2)


@claim(b=2, m=2, d=2, n=4, e=2, split=2, loop=1)
def partial_results_over_split_blocks(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16, loop: int = 1
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            s = q @ k
            m = t.max(s, 2)
            p = t.exp(t.sub(s, m))
            saved = (t.forloop_accum(m), t.forloop_accum(p, "sum"), t.forloop_accum(p @ v))
            return [(item, on(0, 2)) for item in saved]

        m_, total, o = kernel(g, (b, split), [(q, on(0)), (k, on(0, 2)), (v, on(0, 1))], body)
        return combined_by_maxima(g, m_, total, o, split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=8, e=2, split=2, loop=2)
def partial_results_with_a_loop_in_every_block(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 8, loop: int = 8
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m_, total, o = partials(g, q, k, v, split, loop)
        return combined_by_maxima(g, m_, total, o, split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=2, d=2, n=6, e=2, split=3, loop=2)
def partial_results_over_forty_three_blocks(
    b: int = 4, m: int = 1, d: int = 96, n: int = 11008, e: int = 96, split: int = 43, loop: int = 4
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m_, total, o = partials(g, q, k, v, split, loop)
        return combined_by_maxima(g, m_, total, o, split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def partial_results_combined_by_a_second_kernel(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m_, total, o = partials(g, q, k, v, split, 1)

        def combine(t: BlockBuilder, m: BlockTensor, total: BlockTensor, o: BlockTensor) -> Saved:
            w = t.exp(t.sub(m, t.max(m, 2)))
            top = t.forloop_accum(t.reduction(w * o, 2))
            return top / t.forloop_accum(t.reduction(w * total, 2)), on(0, 1)

        narrow, wide = (b, m, split, 1), (b, m, split, e)
        parts = [g.reshape(m_, narrow), g.reshape(total, narrow), g.reshape(o, wide)]
        return g.reshape(kernel(g, (b, m), [(part, on(0, 1)) for part in parts], combine), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=8, e=2, split=4, loop=2)
def a_running_maximum_over_the_parts(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16, loop: int = 4
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m_, total, o = partials(g, q, k, v, split, 1)

        def combine(t: BlockBuilder, m: BlockTensor, total: BlockTensor, o: BlockTensor) -> Saved:
            top, moved = t.reduction_max(m, 2)
            f = t.exp(moved)
            w = t.exp(t.sub(m, top))
            numerator = t.forloop_accum_rescale(t.reduction(w * o, 2), f)
            return numerator / t.forloop_accum_rescale(t.reduction(w * total, 2), f), on(0)

        narrow, wide = (b, m, split, 1), (b, m, split, e)
        parts = [g.reshape(m_, narrow), g.reshape(total, narrow), g.reshape(o, wide)]
        return g.reshape(kernel(g, (b,), [(part, on(0), 2) for part in parts], combine, loop), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def normalised_parts_weighted_by_their_mass(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        m_, total, o = partials(g, q, k, v, split, 1)
        parts = g.reshape(o, b, m, split, e) / g.reshape(total, b, m, split, 1)
        mass = total * g.exp(g.sub(m_, g.max(m_, 2)))
        weights = g.reshape(mass / g.reduction(mass, 2), b, m, split, 1)
        return g.reshape(g.reduction(weights * parts, 2), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def normalised_parts_without_maxima(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            p = t.exp(q @ k)
            total = t.forloop_accum(p, "sum")
            return [(t.forloop_accum(p @ v) / total, on(0, 2)), (total, on(0, 2))]

        o, total = kernel(g, (b, split), [(q, on(0)), (k, on(0, 2)), (v, on(0, 1))], body)
        weights = g.reshape(total / g.reduction(total, 2), b, m, split, 1)
        return g.reshape(g.reduction(weights * g.reshape(o, b, m, split, e), 2), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def two_halves_with_their_own_maxima(b: int = 2, m: int = 256, d: int = 64, n: int = 2048, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        s1, s2 = q @ k1, q @ k2
        m1, m2 = g.max(s1, 2), g.max(s2, 2)
        p1, p2 = g.exp(g.sub(s1, m1)), g.exp(g.sub(s2, m2))
        back = g.exp(g.sub(m2, m1))
        top = p1 @ v1 + back * (p2 @ v2)
        return top / (g.reduction(p1, 2) + back * g.reduction(p2, 2))

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=4, n=6, rows=2, split=3)
def rows_of_softmax_in_two_kernels(b: int = 96, n: int = 6144, rows: int = 12, split: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        def first(t: BlockBuilder, x: BlockTensor) -> list[Saved]:
            m, moved = t.reduction_max(x, 1)
            f = t.exp(moved)
            total = t.forloop_accum_rescale(t.exp(t.sub(x, m)), f, "sum")
            return [(t.forloop_accum_max(m), on(0)), (total, on(0))]

        m, total = kernel(g, (rows,), [(x, on(0), 1)], first, split)

        def second(t: BlockBuilder, x: BlockTensor, m: BlockTensor, total: BlockTensor) -> Saved:
            x, m, total = (t.forloop_accum(item) for item in (x, m, total))
            return t.exp(t.sub(x, m)) / total, on(0, 1)

        return kernel(g, (rows, split), [(x, on(0, 1)), (m, on(0)), (total, on(0))], second)

    return pair({"X": (b, n)}, lambda g, x: g.softmax(x, 1), candidate)


@claim(b=3, n=4)
def two_softmaxes_in_a_product(b: int = 96, n: int = 320) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        e = g.exp(g.sub(x, g.max(x, 1)) + g.sub(y, g.max(y, 1)))
        tops = g.reduction(g.exp(g.sub(x, g.max(x, 1))), 1), g.reduction(g.exp(g.sub(y, g.max(y, 1))), 1)
        return e / (tops[0] * tops[1])

    return pair({"X": (b, n), "Y": (b, n)}, lambda g, x, y: g.softmax(x, 1) * g.softmax(y, 1), candidate)


@claim(b=3, n=4)
def softmax_of_softmax_logits_over_a_temperature(b: int = 96, n: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        e = g.exp(g.scale(g.sub(x, g.max(x, 1)), 0.5))
        return e / g.reduction(e, 1)

    return pair({"X": (b, n)}, lambda g, x: g.softmax(g.div(x, 2), 1), candidate)


@claim(b=3, n=4)
def the_square_of_softmax_is_a_softmax_of_twice(b: int = 96, n: int = 4096) -> Pair:
    def program(g: Graph, x: Tensor) -> Tensor:
        s = g.square(g.softmax(x, 1))
        return s / g.reduction(s, 1)

    return pair({"X": (b, n)}, program, lambda g, x: g.softmax(g.scale(x, 2), 1))


@claim(b=2, m=2, d=2, n=5, e=2, loop=3)
def keys_of_a_cache_and_a_new_one_in_one_loop(
    b: int = 8, m: int = 4, d: int = 128, n: int = 4095, e: int = 128, loop: int = 4
) -> Pair:
    """The loop's tiles end elsewhere than the cache, so the concatenation is not taken apart."""

    def whole(g: Graph, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor) -> tuple[Tensor, Tensor]:
        return g.concat(k, k_new, 2), g.concat(v, v_new, 1)

    def candidate(g: Graph, q: Tensor, *rest: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        k, v = whole(g, *rest)
        return kernel(g, (q.shape[0],), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    shapes = {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e), "k_new": (b, d, 1), "v_new": (b, 1, e)}
    return pair(shapes, lambda g, q, *rest: attention(g, q, *whole(g, *rest)), candidate)
