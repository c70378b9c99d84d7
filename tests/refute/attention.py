"""Wrong attention: axes, denominators, scales, parts of keys, masks."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def qkv(b: int, m: int, d: int, n: int, e: int) -> Shapes:
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = g.exp(q @ k)
    return (e / g.reduction(e, 2)) @ v


def split_keys(g: Graph, q: Tensor, k: Tensor, v: Tensor, split: int, loop: int = 1) -> list[Tensor]:
    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    return kernel(g, (q.shape[0], split), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], body, loop)


@claim(b=2, n=3, d=2)
def softmax_over_the_queries(b: int = 2, n: int = 256, d: int = 64) -> Pair:
    return pair(qkv(b, n, d, n, d), attention, lambda g, q, k, v: g.softmax(q @ k, 1) @ v)


@claim(b=3, m=2, d=2, n=3)
def softmax_over_the_batch(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    return pair(qkv(b, m, d, n, d), attention, lambda g, q, k, v: g.softmax(q @ k, 0) @ v)


@claim(b=2, n=3, d=2)
def denominator_of_the_columns(b: int = 2, n: int = 256, d: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = g.exp(q @ k)
        return (p / g.reduction(p, 1)) @ v

    return pair(qkv(b, n, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def no_denominator(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    return pair(qkv(b, m, d, n, d), attention, lambda g, q, k, v: g.exp(q @ k) @ v)


@claim(b=2, m=2, d=2, n=3)
def the_mean_for_the_sum(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = g.exp(q @ k)
        return (p @ v) / g.mean(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def no_exponential(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        p = g.exp(q @ k)
        return ((q @ k) @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def exponential_of_the_summed_scores_as_denominator(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k
        return (g.exp(s) @ v) / g.exp(g.reduction(s, 2))

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_scale_behind_the_softmax(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
        lambda g, q, k, v: g.scale(attention(g, q, k, v), 0.125),
    )


@claim(b=2, m=2, d=2, n=3)
def the_scale_applied_twice(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), g.scale(k, 0.125), v),
    )


@claim(b=2, m=2, d=2, n=3)
def an_eighth_for_a_root_of_it(b: int = 2, m: int = 256, d: int = 96, n: int = 4096) -> Pair:
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.1), k, v),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
    )


@claim(b=2, n=3)
def keys_not_transposed(b: int = 2, n: int = 64) -> Pair:
    return pair(
        {"Q": (b, n, n), "K": (b, n, n), "V": (b, n, n)},
        lambda g, q, k, v: attention(g, q, g.transpose(k, 1, 2), v),
        attention,
    )


@claim(b=2, n=2)
def keys_and_values_swapped(b: int = 2, n: int = 64) -> Pair:
    return pair(
        {"Q": (b, n, n), "K": (b, n, n), "V": (b, n, n)},
        attention,
        lambda g, q, k, v: attention(g, q, v, k),
    )


@claim(b=2, m=2, d=2, n=4, split=2)
def one_part_of_the_denominator(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, split: int = 2) -> Pair:
    """The combining kernel divides every part by its own denominator and adds them up."""

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split)
        parts = g.reshape(o, b, m, split, d) / g.reshape(total, b, m, split, 1)
        return g.reshape(g.reduction(parts, 2), b, m, d)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def normalised_parts_averaged(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, split: int = 16) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split)
        parts = g.reshape(o, b, m, split, d) / g.reshape(total, b, m, split, 1)
        return g.reshape(g.mean(parts, 2), b, m, d)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def numerators_cut_as_if_the_part_varied_fastest(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, split: int = 16
) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o, total = split_keys(g, q, k, v, split)
        top = g.reduction(g.reshape(o, b, m, d, split), 3)
        return g.reshape(top, b, m, d) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def keys_split_in_slabs_and_values_in_strides(
    b: int = 2, m: int = 64, d: int = 64, n: int = 4096, split: int = 16
) -> Pair:
    """Part s of the keys meets every split-th value."""

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        strided = g.reshape(g.transpose(g.reshape(v, b, n // split, split, d), 1, 2), b, n, d)
        o, total = split_keys(g, q, k, strided, split)
        return g.reshape(g.reduction(g.reshape(o, b, m, split, d), 2), b, m, d) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def numerator_and_denominator_of_different_keys(
    b: int = 2, m: int = 64, d: int = 64, n: int = 4096, loop: int = 16
) -> Pair:
    """The denominator is that of a second set of keys."""

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, other: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, other: BlockTensor) -> Saved:
            top = t.forloop_accum(t.exp(q @ k) @ v)
            return top / t.forloop_accum(t.exp(q @ other), "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (other, on(0), 2)], body, loop)

    inputs = {**qkv(b, m, d, n, d), "other": (b, d, n)}
    return pair(inputs, lambda g, q, k, v, other: attention(g, q, k, v), candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def divided_inside_the_loop(b: int = 2, m: int = 64, d: int = 64, n: int = 4096, loop: int = 16) -> Pair:
    """Every iteration divides by its own row sums before they are complete."""

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(q @ k)
            return t.forloop_accum((p / t.reduction(p, 2)) @ v), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def the_denominator_of_the_mean_iteration(b: int = 2, m: int = 64, d: int = 64, n: int = 4096, loop: int = 16) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "mean"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def exp_of_the_accumulated_scores(b: int = 2, m: int = 4, d: int = 64, n: int = 64, loop: int = 4) -> Pair:
    """The head dim is looped over, and exp is taken before its sum is complete."""

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            return t.forloop_accum(t.exp(q @ k)), on(0)

        p = kernel(g, (b,), [(q, on(0), 2), (k, on(0), 1), (v, on(0))], body, loop)
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_mask_is_added_to_the_weights(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return g.softmax(q @ k + mask, 2) @ v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        p = g.exp(q @ k) + g.exp(mask)
        return (p @ v) / g.reduction(p, 2)

    return pair({**qkv(b, m, d, n, d), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_mask_is_missing_below(b: int = 2, m: int = 256, d: int = 64, n: int = 4096) -> Pair:
    def program(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return g.softmax(q @ k + mask, 2) @ v

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (g.exp(q @ k + mask) @ v) / g.reduction(g.exp(q @ k), 2)

    return pair({**qkv(b, m, d, n, d), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def only_the_first_part_of_the_keys_below(b: int = 2, m: int = 256, d: int = 64, n: int = 2048) -> Pair:
    def program(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        p1, p2 = g.exp(q @ k1), g.exp(q @ k2)
        return (p1 @ v1 + p2 @ v2) / g.reduction(p1, 2)

    inputs = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, d), "V2": (b, n, d)}
    return pair(inputs, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_parts_of_the_values_exchanged(b: int = 2, m: int = 256, d: int = 64, n: int = 2048) -> Pair:
    def program(g: Graph, q: Tensor, k1: Tensor, k2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    inputs = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, d), "V2": (b, n, d)}
    return pair(inputs, program, lambda g, q, k1, k2, v1, v2: program(g, q, k1, k2, v2, v1))


@claim(b=2, h=2, m=2, d=2)
def groups_interleaved(b: int = 2, h: int = 2, m: int = 16, d: int = 64) -> Pair:
    """Query head i reads key head i mod b where it should read i div h."""

    def program(g: Graph, q: Tensor, k: Tensor) -> Tensor:
        return q @ g.reshape(g.repeat(g.reshape(k, b, 1, d, d), 1, h), b * h, d, d)

    def candidate(g: Graph, q: Tensor, k: Tensor) -> Tensor:
        return q @ g.reshape(g.repeat(g.reshape(k, 1, b, d, d), 0, h), b * h, d, d)

    return pair({"Q": (b * h, m, d), "K": (b, d, d)}, program, candidate)


@claim(h=2, m=2, d=2)
def heads_joined_without_a_transpose(h: int = 16, m: int = 64, d: int = 96) -> Pair:
    return pair(
        {"O": (h, m, d), "W": (h * d, d)},
        lambda g, o, w: g.reshape(g.transpose(o, 0, 1), m, h * d) @ w,
        lambda g, o, w: g.reshape(o, m, h * d) @ w,
    )
