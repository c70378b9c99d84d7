"""Attention in one, two and more kernels, with heads shared, masked, scaled and projected."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def qkv(b: int, m: int, d: int, n: int, e: int) -> Shapes:
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = g.exp(q @ k)
    return (e / g.reduction(e, 2)) @ v


def split_keys(g: Graph, q: Tensor, k: Tensor, v: Tensor, split: int, loop: int) -> list[Tensor]:
    """Numerators [b,m,split*e] and denominators [b,m,split] of every part of the keys."""

    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    b = q.shape[0]
    return kernel(g, (b, split), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], body, loop)


def one_kernel(g: Graph, q: Tensor, k: Tensor, v: Tensor, rows: int, loop: int) -> Tensor:
    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
        p = t.exp(q @ k)
        return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 1)

    return kernel(g, (q.shape[0], rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)


@claim(b=2, m=2, d=3, n=8, e=4, split=2, loop=2)
def keys_split_over_blocks(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16, loop: int = 4
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split, loop)

        def combine(t: BlockBuilder, o: BlockTensor, total: BlockTensor) -> Saved:
            return t.forloop_accum(o, "sum_todimx") / t.forloop_accum(total, "sum"), on(0)

        return kernel(g, (b,), [(o, on(0)), (total, on(0))], combine, dimx=e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=4, d=3, n=4, e=2, rows=2, loop=2)
def in_one_kernel(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, rows: int = 4, loop: int = 64
) -> Pair:
    return pair(qkv(b, m, d, n, e), attention, lambda g, q, k, v: one_kernel(g, q, k, v, rows, loop))


@claim(b=2, m=4, d=3, n=4, e=2, rows=2, loop=2)
def in_one_kernel_with_thread_graphs(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, rows: int = 4, loop: int = 64
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(t.scale(q @ k, 0.125))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 1)

        return kernel(g, (b, rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    left, right = pair(qkv(b, m, d, n, e), lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v), candidate)
    return left, fuse_threads(right)


@claim(b=1, m=2, d=2, n=6, e=2, split=3, loop=2)
def split_over_forty_three_blocks(
    b: int = 16, m: int = 1, d: int = 96, n: int = 11008, e: int = 96, split: int = 43, loop: int = 8
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split, loop)
        whole = g.reduction(g.reshape(o, b, m, split, e), 2)
        return g.reshape(whole, b, m, e) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=3, d=2, n=10, e=3, split=5, loop=2)
def keys_of_extent_320(
    b: int = 4, m: int = 96, d: int = 96, n: int = 320, e: int = 96, split: int = 5, loop: int = 4
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split, loop)

        def combine(t: BlockBuilder, o: BlockTensor, total: BlockTensor) -> Saved:
            return t.forloop_accum(t.reduction_to_dimx(o, 2)) / t.forloop_accum(t.reduction(total, 2)), on(0, 1)

        return kernel(g, (b, m), [(o, on(0, 1)), (total, on(0, 1))], combine, dimx=e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=4, columns=2, loop=2)
def value_columns_split_over_blocks(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 128, columns: int = 4, loop: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 2)

        return kernel(g, (b, columns), [(q, on(0)), (k, on(0), 2), (v, on(0, 2), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=4, n=3, e=2)
def division_after_the_product(b: int = 16, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = g.exp(q @ k)
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=2, d=2, n=3, e=2)
def scores_shifted_by_their_mean(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k
        p = g.exp(g.sub(scores, g.mean(scores, 2)))
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def softmax_written_out(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(qkv(b, m, d, n, e), lambda g, q, k, v: g.softmax(q @ k, 2) @ v, attention)


@claim(b=2, m=2, d=4, n=3, e=2, d_inverse=0.5)
def scores_scaled_or_queries(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, d_inverse: float = 0.125
) -> Pair:
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: g.softmax(g.scale(q @ k, d_inverse), 2) @ v,
        lambda g, q, k, v: attention(g, g.scale(q, d_inverse), k, v),
    )


@claim(b=2, m=2, d=4, n=3, e=2)
def scale_shared_by_queries_and_keys(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: g.softmax(g.scale(q @ k, 0.125), 2) @ v,
        lambda g, q, k, v: attention(g, g.scale(q, 0.5), g.scale(k, 0.25), v),
    )


@claim(b=2, m=2, d=4, n=4, e=2, loop=2)
def keys_stored_by_rows(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 16) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(g, q, g.transpose(k, 1, 2), v)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = g.transpose(k @ g.transpose(q, 1, 2), 1, 2)

        def body(t: BlockBuilder, s: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(s)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(scores, on(0), 2), (v, on(0), 1)], body, loop)

    return pair({"Q": (b, m, d), "K": (b, n, d), "V": (b, n, e)}, program, candidate)


@claim(b=2, h=2, m=2, d=2, n=3)
def queries_of_a_group_share_their_keys(b: int = 8, h: int = 4, m: int = 16, d: int = 128, n: int = 4096) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide_k = g.repeat(g.reshape(k, b, 1, d, n), 1, h)
        wide_v = g.repeat(g.reshape(v, b, 1, n, d), 1, h)
        e = g.exp(q @ wide_k)
        return (e / g.reduction(e, 3)) @ wide_v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return g.reshape(attention(g, g.reshape(q, b, h * m, d), k, v), b, h, m, d)

    return pair({"Q": (b, h, m, d), "K": (b, d, n), "V": (b, n, d)}, program, candidate)


@claim(b=2, h=2, d=2, n=4, split=2)
def one_key_head_for_all_queries(b: int = 2, h: int = 32, d: int = 128, n: int = 4096, split: int = 16) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e = g.exp(q @ g.repeat(k, 1, h))
        return (e / g.reduction(e, 3)) @ g.repeat(v, 1, h)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = g.reshape(q, b, h, d), g.reshape(k, b, d, n), g.reshape(v, b, n, d)
        o, total = split_keys(g, q, k, v, split, 1)
        o = g.reduction(g.reshape(o, b, h, split, d), 2)
        return o / g.reshape(g.reduction(total, 2), b, h, 1, 1)

    def shaped(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return g.reshape(candidate(g, q, k, v), b, h, 1, d)

    return pair({"Q": (b, h, 1, d), "K": (b, 1, d, n), "V": (b, 1, n, d)}, program, shaped)


@claim(b=2, d=3, n=8, split=4, loop=2)
def one_new_token_per_sequence(b: int = 64, d: int = 128, n: int = 4096, split: int = 16, loop: int = 4) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split, loop)
        return g.reshape(g.reduction(g.reshape(o, b, split, d), 1), b, 1, d) / g.reduction(total, 2)

    return pair(qkv(b, 1, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def keys_in_two_parts(b: int = 2, m: int = 256, d: int = 64, n: int = 2048, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        p1, p2 = g.exp(q @ k1), g.exp(q @ k2)
        return (p1 @ v1 + p2 @ v2) / (g.reduction(p1, 2) + g.reduction(p2, 2))

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=2, d=2, n=5)
def a_cache_and_one_new_key(b: int = 64, d: int = 128, n: int = 4095) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor) -> Tensor:
        return attention(g, q, g.concat(k, k_new, 2), g.concat(v, v_new, 1))

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, k_new: Tensor, v_new: Tensor) -> Tensor:
        old, new = g.exp(q @ k), g.exp(g.reduction(q * g.transpose(k_new, 1, 2), 2))
        return (old @ v + new * v_new) / (g.reduction(old, 2) + new)

    shapes = {"Q": (b, 1, d), "K": (b, d, n), "V": (b, n, d), "k_new": (b, d, 1), "v_new": (b, 1, d)}
    return pair(shapes, program, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def two_parts_of_keys_each_split_over_blocks(
    b: int = 2, m: int = 16, d: int = 64, n: int = 2048, e: int = 64, split: int = 8
) -> Pair:
    def program(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        o1, l1 = split_keys(g, q, k1, v1, split, 1)
        o2, l2 = split_keys(g, q, k2, v2, split, 1)
        o = g.reduction(g.reshape(o1 + o2, b, m, split, e), 2)
        return g.reshape(o, b, m, e) / g.reduction(g.concat(l1, l2, 2), 2)

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def the_mask_is_a_factor(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = g.exp(q @ k) * g.exp(mask)
        return (p @ v) / g.reduction(p, 2)

    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return g.softmax(q @ k + mask, 2) @ v

    return pair({**qkv(b, m, d, n, e), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_bias_of_the_key_goes_into_its_weight(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return g.softmax(q @ k + bias, 2) @ v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        p, w = g.exp(q @ k), g.exp(g.transpose(bias, 1, 2))
        return (p @ (w * v)) / (p @ w)

    return pair({**qkv(b, m, d, n, e), "bias": (b, 1, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_bias_of_the_query_cancels(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return g.softmax(q @ k + bias, 2) @ v

    return pair({**qkv(b, m, d, n, e), "bias": (b, m, 1)}, program, lambda g, q, k, v, bias: attention(g, q, k, v))


@claim(b=2, m=2, d=2, n=3, e=2, out=3)
def output_projection_first(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, out: int = 320) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return attention(g, q, k, v) @ w

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        p = g.exp(q @ k)
        return (p @ (v @ w)) / g.reduction(p, 2)

    return pair({**qkv(b, m, d, n, e), "Wo": (b, e, out)}, program, candidate)


@claim(h=2, m=2, d=2, n=3, out=3)
def output_projection_is_a_sum_over_heads(h: int = 16, m: int = 64, d: int = 96, n: int = 320, out: int = 1536) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return g.reshape(g.transpose(attention(g, q, k, v), 0, 1), m, h * d) @ w

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        per_head = attention(g, q, k, v) @ g.reshape(w, h, d, out)
        return g.reshape(g.reduction(per_head, 0), m, out)

    return pair({**qkv(h, m, d, n, d), "Wo": (h * d, out)}, program, candidate)


@claim(h=2, m=2, d=2, n=3, c=3)
def heads_projected_together(h: int = 12, m: int = 64, d: int = 64, n: int = 320, c: int = 768) -> Pair:
    def program(g: Graph, x: Tensor, w: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = g.transpose(g.reshape(x @ w, m, h, d), 0, 1)
        return attention(g, q, k, v)

    def candidate(g: Graph, x: Tensor, w: Tensor, k: Tensor, v: Tensor) -> Tensor:
        per_head = g.transpose(g.reshape(w, c, h, d), 0, 1)
        p = g.exp(g.repeat(g.reshape(x, 1, m, c), 0, h) @ (per_head @ k))
        return (p @ v) / g.reduction(p, 2)

    return pair({"X": (m, c), "Wq": (c, h * d), "K": (h, d, n), "V": (h, n, d)}, program, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, loop=2)
def normalised_queries_and_keys(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(g, g.rms_norm(q, dim=2), g.rms_norm(k, dim=1), v)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp((q @ k) / (t.sqrt(t.mean(t.square(q), 2)) * t.sqrt(t.mean(t.square(k), 1))))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def normalised_values_divide_the_weights(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(g, g.rms_norm(q, dim=2), k, g.rms_norm(v, dim=2))

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = g.exp((q @ k) / g.sqrt(g.mean(g.square(q), 2)))
        weights = p / g.transpose(g.sqrt(g.mean(g.square(v), 2)), 1, 2)
        return (weights @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def linear_attention_by_association(b: int = 2, m: int = 4096, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: (q @ k) @ v,
        lambda g, q, k, v: q @ (k @ v),
    )


@claim(b=2, m=2, d=2, n=4, e=2, loop=2)
def linear_attention_with_a_denominator(
    b: int = 2, m: int = 1024, d: int = 64, n: int = 4096, e: int = 64, loop: int = 8
) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = g.exp(q) @ g.exp(k)
        return (scores / g.reduction(scores, 2)) @ v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            f = t.exp(k)
            return [(t.forloop_accum(f @ v), on(0)), (t.forloop_accum(f, "sum"), on(0))]

        state, total = kernel(g, (b,), [(k, on(0), 2), (v, on(0), 1)], body, loop)
        f = g.exp(q)
        return (f @ state) / (f @ total)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def two_outputs_share_the_weights(b: int = 2, m: int = 64, d: int = 64, n: int = 1024, e: int = 64) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = g.softmax(q @ k, 2)
        return weights @ v, g.reduction(weights * weights, 2)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        p = g.exp(q @ k)
        total = g.reduction(p, 2)
        return (p @ v) / total, g.reduction(g.square(p), 2) / g.square(total)

    return pair(qkv(b, m, d, n, e), program, candidate)
