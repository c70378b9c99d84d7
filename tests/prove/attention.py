"""Attention in one, two and more kernels, with heads shared, masked, scaled and projected."""

from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import claim, kernel, on, pair


def qkv(b, m, d, n, e):
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g, q, k, v):
    e = g.exp(q @ k)
    return (e / g.reduction(e, 2)) @ v


def split_keys(g, q, k, v, split, loop):
    """Numerators [b,m,split*e] and denominators [b,m,split] of every part of the keys."""

    def body(t, q, k, v):
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    b = q.shape[0]
    return kernel(g, (b, split), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], body, loop)


def one_kernel(g, q, k, v, rows, loop):
    def body(t, q, k, v):
        p = t.exp(q @ k)
        return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 1)

    return kernel(g, (q.shape[0], rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)


@claim(b=2, m=2, d=3, n=8, e=4, split=2, loop=2)
def keys_split_over_blocks(b=2, m=256, d=64, n=4096, e=64, split=16, loop=4):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split, loop)

        def combine(t, o, total):
            return t.forloop_accum(o, "sum_todimx") / t.forloop_accum(total, "sum"), on(0)

        return kernel(g, (b,), [(o, on(0)), (total, on(0))], combine, dimx=e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=4, d=3, n=4, e=2, rows=2, loop=2)
def in_one_kernel(b=2, m=256, d=64, n=4096, e=64, rows=4, loop=64):
    return pair(qkv(b, m, d, n, e), attention, lambda g, q, k, v: one_kernel(g, q, k, v, rows, loop))


@claim(b=2, m=4, d=3, n=4, e=2, rows=2, loop=2)
def in_one_kernel_with_thread_graphs(b=2, m=256, d=64, n=4096, e=64, rows=4, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp(t.scale(q @ k, 0.125))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 1)

        return kernel(g, (b, rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    left, right = pair(qkv(b, m, d, n, e), lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v), candidate)
    return left, fuse_threads(right)


@claim(b=1, m=2, d=2, n=6, e=2, split=3, loop=2)
def split_over_forty_three_blocks(b=16, m=1, d=96, n=11008, e=96, split=43, loop=8):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split, loop)
        whole = g.reduction(g.reshape(o, b, m, split, e), 2)
        return g.reshape(whole, b, m, e) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=3, d=2, n=10, e=3, split=5, loop=2)
def keys_of_extent_320(b=4, m=96, d=96, n=320, e=96, split=5, loop=4):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split, loop)

        def combine(t, o, total):
            return t.forloop_accum(t.reduction_to_dimx(o, 2)) / t.forloop_accum(t.reduction(total, 2)), on(0, 1)

        return kernel(g, (b, m), [(o, on(0, 1)), (total, on(0, 1))], combine, dimx=e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=4, columns=2, loop=2)
def value_columns_split_over_blocks(b=2, m=256, d=64, n=4096, e=128, columns=4, loop=16):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0, 2)

        return kernel(g, (b, columns), [(q, on(0)), (k, on(0), 2), (v, on(0, 2), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=4, n=3, e=2)
def division_after_the_product(b=16, m=256, d=64, n=4096, e=64):
    def candidate(g, q, k, v):
        p = g.exp(q @ k)
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=2, d=2, n=3, e=2)
def scores_shifted_by_their_mean(b=2, m=256, d=64, n=4096, e=64):
    def candidate(g, q, k, v):
        scores = q @ k
        p = g.exp(g.sub(scores, g.mean(scores, 2)))
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def softmax_written_out(b=2, m=256, d=64, n=4096, e=64):
    return pair(qkv(b, m, d, n, e), lambda g, q, k, v: g.softmax(q @ k, 2) @ v, attention)


@claim(b=2, m=2, d=4, n=3, e=2, d_inverse=0.5)
def scores_scaled_or_queries(b=2, m=256, d=64, n=4096, e=64, d_inverse=0.125):
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: g.softmax(g.scale(q @ k, d_inverse), 2) @ v,
        lambda g, q, k, v: attention(g, g.scale(q, d_inverse), k, v),
    )


@claim(b=2, m=2, d=4, n=3, e=2)
def scale_shared_by_queries_and_keys(b=2, m=256, d=64, n=4096, e=64):
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: g.softmax(g.scale(q @ k, 0.125), 2) @ v,
        lambda g, q, k, v: attention(g, g.scale(q, 0.5), g.scale(k, 0.25), v),
    )


@claim(b=2, m=2, d=4, n=4, e=2, loop=2)
def keys_stored_by_rows(b=2, m=256, d=64, n=4096, e=64, loop=16):
    def program(g, q, k, v):
        return attention(g, q, g.transpose(k, 1, 2), v)

    def candidate(g, q, k, v):
        scores = g.transpose(k @ g.transpose(q, 1, 2), 1, 2)

        def body(t, s, v):
            p = t.exp(s)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(scores, on(0), 2), (v, on(0), 1)], body, loop)

    return pair({"Q": (b, m, d), "K": (b, n, d), "V": (b, n, e)}, program, candidate)


@claim(b=2, h=2, m=2, d=2, n=3)
def queries_of_a_group_share_their_keys(b=8, h=4, m=16, d=128, n=4096):
    def program(g, q, k, v):
        wide_k = g.repeat(g.reshape(k, b, 1, d, n), 1, h)
        wide_v = g.repeat(g.reshape(v, b, 1, n, d), 1, h)
        e = g.exp(q @ wide_k)
        return (e / g.reduction(e, 3)) @ wide_v

    def candidate(g, q, k, v):
        return g.reshape(attention(g, g.reshape(q, b, h * m, d), k, v), b, h, m, d)

    return pair({"Q": (b, h, m, d), "K": (b, d, n), "V": (b, n, d)}, program, candidate)


@claim(b=2, h=2, d=2, n=4, split=2)
def one_key_head_for_all_queries(b=2, h=32, d=128, n=4096, split=16):
    def program(g, q, k, v):
        e = g.exp(q @ g.repeat(k, 1, h))
        return (e / g.reduction(e, 3)) @ g.repeat(v, 1, h)

    def candidate(g, q, k, v):
        q, k, v = g.reshape(q, b, h, d), g.reshape(k, b, d, n), g.reshape(v, b, n, d)
        o, total = split_keys(g, q, k, v, split, 1)
        o = g.reduction(g.reshape(o, b, h, split, d), 2)
        return o / g.reshape(g.reduction(total, 2), b, h, 1, 1)

    def shaped(g, q, k, v):
        return g.reshape(candidate(g, q, k, v), b, h, 1, d)

    return pair({"Q": (b, h, 1, d), "K": (b, 1, d, n), "V": (b, 1, n, d)}, program, shaped)


@claim(b=2, d=3, n=8, split=4, loop=2)
def one_new_token_per_sequence(b=64, d=128, n=4096, split=16, loop=4):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split, loop)
        return g.reshape(g.reduction(g.reshape(o, b, split, d), 1), b, 1, d) / g.reduction(total, 2)

    return pair(qkv(b, 1, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def keys_in_two_parts(b=2, m=256, d=64, n=2048, e=64):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g, q, k1, k2, v1, v2):
        p1, p2 = g.exp(q @ k1), g.exp(q @ k2)
        return (p1 @ v1 + p2 @ v2) / (g.reduction(p1, 2) + g.reduction(p2, 2))

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=2, d=2, n=5)
def a_cache_and_one_new_key(b=64, d=128, n=4095):
    def program(g, q, k, v, k_new, v_new):
        return attention(g, q, g.concat(k, k_new, 2), g.concat(v, v_new, 1))

    def candidate(g, q, k, v, k_new, v_new):
        old, new = g.exp(q @ k), g.exp(g.reduction(q * g.transpose(k_new, 1, 2), 2))
        return (old @ v + new * v_new) / (g.reduction(old, 2) + new)

    shapes = {"Q": (b, 1, d), "K": (b, d, n), "V": (b, n, d), "k_new": (b, d, 1), "v_new": (b, 1, d)}
    return pair(shapes, program, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def two_parts_of_keys_each_split_over_blocks(b=2, m=16, d=64, n=2048, e=64, split=8):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g, q, k1, k2, v1, v2):
        o1, l1 = split_keys(g, q, k1, v1, split, 1)
        o2, l2 = split_keys(g, q, k2, v2, split, 1)
        o = g.reduction(g.reshape(o1 + o2, b, m, split, e), 2)
        return g.reshape(o, b, m, e) / g.reduction(g.concat(l1, l2, 2), 2)

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def the_mask_is_a_factor(b=2, m=256, d=64, n=4096, e=64):
    def candidate(g, q, k, v, mask):
        p = g.exp(q @ k) * g.exp(mask)
        return (p @ v) / g.reduction(p, 2)

    def program(g, q, k, v, mask):
        return g.softmax(q @ k + mask, 2) @ v

    return pair({**qkv(b, m, d, n, e), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_bias_of_the_key_goes_into_its_weight(b=2, m=256, d=64, n=4096, e=64):
    def program(g, q, k, v, bias):
        return g.softmax(q @ k + bias, 2) @ v

    def candidate(g, q, k, v, bias):
        p, w = g.exp(q @ k), g.exp(g.transpose(bias, 1, 2))
        return (p @ (w * v)) / (p @ w)

    return pair({**qkv(b, m, d, n, e), "bias": (b, 1, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_bias_of_the_query_cancels(b=2, m=256, d=64, n=4096, e=64):
    def program(g, q, k, v, bias):
        return g.softmax(q @ k + bias, 2) @ v

    return pair({**qkv(b, m, d, n, e), "bias": (b, m, 1)}, program, lambda g, q, k, v, bias: attention(g, q, k, v))


@claim(b=2, m=2, d=2, n=3, e=2, out=3)
def output_projection_first(b=2, m=256, d=64, n=4096, e=64, out=320):
    def program(g, q, k, v, w):
        return attention(g, q, k, v) @ w

    def candidate(g, q, k, v, w):
        p = g.exp(q @ k)
        return (p @ (v @ w)) / g.reduction(p, 2)

    return pair({**qkv(b, m, d, n, e), "Wo": (b, e, out)}, program, candidate)


@claim(h=2, m=2, d=2, n=3, out=3)
def output_projection_is_a_sum_over_heads(h=16, m=64, d=96, n=320, out=1536):
    def program(g, q, k, v, w):
        return g.reshape(g.transpose(attention(g, q, k, v), 0, 1), m, h * d) @ w

    def candidate(g, q, k, v, w):
        per_head = attention(g, q, k, v) @ g.reshape(w, h, d, out)
        return g.reshape(g.reduction(per_head, 0), m, out)

    return pair({**qkv(h, m, d, n, d), "Wo": (h * d, out)}, program, candidate)


@claim(h=2, m=2, d=2, n=3, c=3)
def heads_projected_together(h=12, m=64, d=64, n=320, c=768):
    def program(g, x, w, k, v):
        q = g.transpose(g.reshape(x @ w, m, h, d), 0, 1)
        return attention(g, q, k, v)

    def candidate(g, x, w, k, v):
        per_head = g.transpose(g.reshape(w, c, h, d), 0, 1)
        p = g.exp(g.repeat(g.reshape(x, 1, m, c), 0, h) @ (per_head @ k))
        return (p @ v) / g.reduction(p, 2)

    return pair({"X": (m, c), "Wq": (c, h * d), "K": (h, d, n), "V": (h, n, d)}, program, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, loop=2)
def normalised_queries_and_keys(b=2, m=256, d=64, n=4096, e=64, loop=64):
    def program(g, q, k, v):
        return attention(g, g.rms_norm(q, dim=2), g.rms_norm(k, dim=1), v)

    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp((q @ k) / (t.sqrt(t.mean(t.square(q), 2)) * t.sqrt(t.mean(t.square(k), 1))))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def normalised_values_divide_the_weights(b=2, m=256, d=64, n=4096, e=64):
    def program(g, q, k, v):
        return attention(g, g.rms_norm(q, dim=2), k, g.rms_norm(v, dim=2))

    def candidate(g, q, k, v):
        p = g.exp((q @ k) / g.sqrt(g.mean(g.square(q), 2)))
        weights = p / g.transpose(g.sqrt(g.mean(g.square(v), 2)), 1, 2)
        return (weights @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def linear_attention_by_association(b=2, m=4096, d=64, n=4096, e=64):
    return pair(
        qkv(b, m, d, n, e),
        lambda g, q, k, v: (q @ k) @ v,
        lambda g, q, k, v: q @ (k @ v),
    )


@claim(b=2, m=2, d=2, n=4, e=2, loop=2)
def linear_attention_with_a_denominator(b=2, m=1024, d=64, n=4096, e=64, loop=8):
    def program(g, q, k, v):
        scores = g.exp(q) @ g.exp(k)
        return (scores / g.reduction(scores, 2)) @ v

    def candidate(g, q, k, v):
        def body(t, k, v):
            f = t.exp(k)
            return [(t.forloop_accum(f @ v), on(0)), (t.forloop_accum(f, "sum"), on(0))]

        state, total = kernel(g, (b,), [(k, on(0), 2), (v, on(0), 1)], body, loop)
        f = g.exp(q)
        return (f @ state) / (f @ total)

    return pair(qkv(b, m, d, n, e), program, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def two_outputs_share_the_weights(b=2, m=64, d=64, n=1024, e=64):
    def program(g, q, k, v):
        weights = g.softmax(q @ k, 2)
        return weights @ v, g.reduction(weights * weights, 2)

    def candidate(g, q, k, v):
        p = g.exp(q @ k)
        total = g.reduction(p, 2)
        return (p @ v) / total, g.reduction(g.square(p), 2) / g.square(total)

    return pair(qkv(b, m, d, n, e), program, candidate)
