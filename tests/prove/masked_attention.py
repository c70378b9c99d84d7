"""Attention of which a mask keeps some keys, without and with maxima subtracted, online and over split keys.

A query without a key has the result 0, and a score that the mask discards has no influence on a maximum.
"""

from collections.abc import Callable
from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Mask, Pair, Saved, Shapes, claim, kernel, on, pair

#: The lowest number of float32.
LOWEST = -Fraction(2**128 - 2**104)


def qkvm(b: int, m: int, d: int, n: int, e: int) -> Shapes:
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e), "M": Mask(b, m, n)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    p = g.select(mask, g.exp(q @ k), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


def shifted(g: Graph, s: Tensor, mask: Tensor) -> Tensor:
    """Exponentials of kept scores, from which the largest kept one is subtracted."""
    return g.select(mask, g.exp(s - g.max(g.select(mask, s, LOWEST), 2)), 0)


def weights(t: BlockBuilder, s: BlockTensor, mask: BlockTensor) -> tuple[BlockTensor, BlockTensor, BlockTensor]:
    """The same in a loop: the exponentials, what states are multiplied with, the maximum so far."""
    largest, moved = t.reduction_max(t.select(mask, s, LOWEST), 2)
    return t.select(mask, t.exp(s - largest), 0), t.exp(moved), largest


def online(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> Saved:
    p, f, _ = weights(t, q @ k, mask)
    return t.div_no_nan(t.forloop_accum_rescale(p @ v, f), t.forloop_accum_rescale(p, f, "sum")), on(0)


def partials(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, split: int, loop: int) -> list[Tensor]:
    """Per part of the keys its maximum [b,m,split], denominator [b,m,split] and numerator [b,m,split*e]."""

    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> list[Saved]:
        p, f, largest = weights(t, q @ k, mask)
        return [
            (t.forloop_accum_max(largest), on(0, 2)),
            (t.forloop_accum_rescale(p, f, "sum"), on(0, 2)),
            (t.forloop_accum_rescale(p @ v, f), on(0, 2)),
        ]

    reads = [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1), (mask, on(0, 2), 2)]
    return kernel(g, (q.shape[0], split), reads, body, loop)


def combined(g: Graph, m: Tensor, total: Tensor, o: Tensor, split: int) -> Tensor:
    b, rows, e = o.shape[0], o.shape[1], o.shape[2] // split
    w = g.exp(m - g.max(m, 2))
    above = g.reduction(g.reshape(w, b, rows, split, 1) * g.reshape(o, b, rows, split, e), 2)
    return g.div_no_nan(g.reshape(above, b, rows, e), g.reduction(w * total, 2))


@claim(b=2, m=2, d=2, n=5, e=2)
def the_largest_kept_score_subtracted(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = shifted(g, q @ k, mask)
        return g.div_no_nan(p @ v, g.reduction(p, 2))

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=5, e=2)
def divided_before_the_values(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = shifted(g, q @ k, mask)
        return g.div_no_nan(p, g.reduction(p, 2)) @ v

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=6, e=2, loop=3)
def a_running_maximum_of_kept_scores(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        reads = [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (mask, on(0), 2)]
        return kernel(g, (b,), reads, online, loop)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=4, d=2, n=6, e=2, loop=3)
def rows_over_blocks_and_keys_in_a_loop(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> Saved:
        found, _ = online(t, q, k, v, mask)
        return found, on(0, 1)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        reads = [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1), (mask, on(0, 1), 2)]
        return kernel(g, (b, 2), reads, body, loop)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def parts_of_the_keys(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return combined(g, *partials(g, q, k, v, mask, split, 1), split)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=8, e=2, split=2, loop=2)
def parts_of_the_keys_with_a_loop_in_each(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 8, loop: int = 8
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return combined(g, *partials(g, q, k, v, mask, split, loop), split)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def parts_combined_by_a_second_kernel(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        largest, total, o = partials(g, q, k, v, mask, split, 1)

        def combine(t: BlockBuilder, m: BlockTensor, total: BlockTensor, o: BlockTensor) -> Saved:
            w = t.exp(m - t.max(m, 2))
            top = t.forloop_accum(t.reduction(w * o, 2))
            return t.div_no_nan(top, t.forloop_accum(t.reduction(w * total, 2))), on(0, 1)

        narrow, wide = (b, m, split, 1), (b, m, split, e)
        parts = [g.reshape(largest, narrow), g.reshape(total, narrow), g.reshape(o, wide)]
        return g.reshape(kernel(g, (b, m), [(part, on(0, 1)) for part in parts], combine), b, m, e)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=5, e=2)
def two_halves_of_the_keys(b: int = 2, m: int = 256, d: int = 64, n: int = 2048, e: int = 64) -> Pair:
    """A cache and new keys, each with a mask and a maximum of its own."""

    def plain(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, k2: Tensor, v2: Tensor, mask2: Tensor) -> Tensor:
        return attention(g, q, g.concat([k, k2], 2), g.concat([v, v2], 1), g.concat([mask, mask2], 2))

    def candidate(
        g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, k2: Tensor, v2: Tensor, mask2: Tensor
    ) -> Tensor:
        s, s2 = q @ k, q @ k2
        top, top2 = (g.max(g.select(one, x, LOWEST), 2) for one, x in ((mask, s), (mask2, s2)))
        largest = g.maximum(top, top2)
        p, p2 = (g.select(one, g.exp(x - y), 0) for one, x, y in ((mask, s, top), (mask2, s2, top2)))
        w, w2 = g.exp(top - largest), g.exp(top2 - largest)
        above = w * (p @ v) + w2 * (p2 @ v2)
        return g.div_no_nan(above, w * g.reduction(p, 2) + w2 * g.reduction(p2, 2))

    more = {"K2": (b, d, n), "V2": (b, n, e), "M2": Mask(b, m, n)}
    return pair({**qkvm(b, m, d, n, e), **more}, plain, candidate)


@claim(b=2, m=2, d=2, n=5, e=2, loop=3)
def a_loop_over_a_cache_and_a_new_key(
    b: int = 8, m: int = 4, d: int = 128, n: int = 4095, e: int = 128, loop: int = 4
) -> Pair:
    """Tiles end elsewhere than the cache, so the concatenations are not taken apart; a softmax of other keys is near."""

    def whole(g: Graph, *parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v, mask, k_new, v_new, mask_new = parts
        return g.concat(k, k_new, 2), g.concat(v, v_new, 1), g.concat(mask, mask_new, 2)

    def plain(g: Graph, q: Tensor, x: Tensor, *parts: Tensor) -> Tensor:
        return attention(g, q, *whole(g, *parts)) + x / g.reduction(x, 2)

    def candidate(g: Graph, q: Tensor, x: Tensor, *parts: Tensor) -> Tensor:
        k, v, mask = whole(g, *parts)
        reads = [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (mask, on(0), 2)]
        return kernel(g, (b,), reads, online, loop) + x / g.reduction(x, 2)

    q, *rest = qkvm(b, m, d, n, e).items()
    more = {"k_new": (b, d, 1), "v_new": (b, 1, e), "m_new": Mask(b, m, 1)}
    return pair({**dict([q]), "X": (b, m, e), **dict(rest), **more}, plain, candidate)


@claim(m=4, d=2, n=4, e=2, loop=2)
def a_causal_mask_for_all_heads(m: int = 256, d: int = 64, n: int = 256, e: int = 64, loop: int = 4) -> Pair:
    """The mask is read once for all batches, and scores have a scale."""

    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> Saved:
        p, f, _ = weights(t, (q @ k) * Fraction(1, 8), mask)
        return t.div_no_nan(t.forloop_accum_rescale(p @ v, f), t.forloop_accum_rescale(p, f, "sum")), on(0)

    def plain(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return attention(g, q * Fraction(1, 8), k, v, mask)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return kernel(g, (2,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (mask, on(), 2)], body, loop)

    shapes = {"Q": (2, m, d), "K": (2, d, n), "V": (2, n, e), "M": Mask(1, m, n)}
    return pair(shapes, plain, candidate)


@claim(b=2, m=2, d=2, n=6, e=2, loop=3)
def padded_keys_of_every_query(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        reads = [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (mask, on(0), 2)]
        return kernel(g, (b,), reads, online, loop)

    return pair({**qkvm(b, m, d, n, e), "M": Mask(b, 1, n)}, attention, candidate)


@claim(b=2, m=2, d=2, n=5, e=2)
def a_softmax_of_kept_scores(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    """Of a row without a key there is no softmax: the divisor is 0 on both sides."""

    def plain(g: Graph, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        p = g.select(g.eq(keep, keep), g.exp(q @ k), 0)
        return (p / g.reduction(p, 2)) @ v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        p = shifted(g, q @ k, g.eq(keep, keep))
        return (p @ v) / g.reduction(p, 2)

    return pair(qkvm(b, m, d, n, e), plain, candidate)


@claim(b=2, m=3, d=2, n=5, e=2)
def behind_a_layer_norm(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    """Scores of normalised queries have values for all inputs, so maxima may be subtracted."""
    eps = Fraction(1, 100_000)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = shifted(g, g.layer_norm(q, 2, eps=eps) @ k, mask)
        return g.div_no_nan(p @ v, g.reduction(p, 2))

    return pair(
        qkvm(b, m, d, n, e),
        lambda g, q, k, v, mask: attention(g, g.layer_norm(q, 2, eps=eps), k, v, mask),
        candidate,
    )


@claim(b=2, m=2, d=2, n=5, e=2)
def an_attention_behind_another(b: int = 2, m: int = 64, d: int = 32, n: int = 256, e: int = 32) -> Pair:
    """The first one's result is what the second one asks with."""

    def twice(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda g, q, k, v, mask: attend(g, attend(g, q, k, v, mask), k, v, mask)

    def stable(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = shifted(g, q @ k, mask)
        return g.div_no_nan(p @ v, g.reduction(p, 2))

    return pair({**qkvm(b, m, d, n, e)}, twice(attention), twice(stable))
