"""Wrong attention: axes, denominators, scales, parts of keys, masks."""

from tests.kit.proofs.claims import claim, kernel, on, pair


def qkv(b, m, d, n, e):
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g, q, k, v):
    e = g.exp(q @ k)
    return (e / g.reduction(e, 2)) @ v


def split_keys(g, q, k, v, split, loop=1):
    def body(t, q, k, v):
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    return kernel(g, (q.shape[0], split), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], body, loop)


@claim(b=2, n=3, d=2)
def softmax_over_the_queries(b=2, n=256, d=64):
    return pair(qkv(b, n, d, n, d), attention, lambda g, q, k, v: g.softmax(q @ k, 1) @ v)


@claim(b=3, m=2, d=2, n=3)
def softmax_over_the_batch(b=2, m=256, d=64, n=4096):
    return pair(qkv(b, m, d, n, d), attention, lambda g, q, k, v: g.softmax(q @ k, 0) @ v)


@claim(b=2, n=3, d=2)
def denominator_of_the_columns(b=2, n=256, d=64):
    def candidate(g, q, k, v):
        p = g.exp(q @ k)
        return (p / g.reduction(p, 1)) @ v

    return pair(qkv(b, n, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def no_denominator(b=2, m=256, d=64, n=4096):
    return pair(qkv(b, m, d, n, d), attention, lambda g, q, k, v: g.exp(q @ k) @ v)


@claim(b=2, m=2, d=2, n=3)
def the_mean_for_the_sum(b=2, m=256, d=64, n=4096):
    def candidate(g, q, k, v):
        p = g.exp(q @ k)
        return (p @ v) / g.mean(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def no_exponential(b=2, m=256, d=64, n=4096):
    def candidate(g, q, k, v):
        p = g.exp(q @ k)
        return ((q @ k) @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def exponential_of_the_summed_scores_as_denominator(b=2, m=256, d=64, n=4096):
    def candidate(g, q, k, v):
        s = q @ k
        return (g.exp(s) @ v) / g.exp(g.reduction(s, 2))

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_scale_behind_the_softmax(b=2, m=256, d=64, n=4096):
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
        lambda g, q, k, v: g.scale(attention(g, q, k, v), 0.125),
    )


@claim(b=2, m=2, d=2, n=3)
def the_scale_applied_twice(b=2, m=256, d=64, n=4096):
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), g.scale(k, 0.125), v),
    )


@claim(b=2, m=2, d=2, n=3)
def an_eighth_for_a_root_of_it(b=2, m=256, d=96, n=4096):
    return pair(
        qkv(b, m, d, n, d),
        lambda g, q, k, v: attention(g, g.scale(q, 0.1), k, v),
        lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v),
    )


@claim(b=2, n=3)
def keys_not_transposed(b=2, n=64):
    return pair(
        {"Q": (b, n, n), "K": (b, n, n), "V": (b, n, n)},
        lambda g, q, k, v: attention(g, q, g.transpose(k, 1, 2), v),
        attention,
    )


@claim(b=2, n=2)
def keys_and_values_swapped(b=2, n=64):
    return pair(
        {"Q": (b, n, n), "K": (b, n, n), "V": (b, n, n)},
        attention,
        lambda g, q, k, v: attention(g, q, v, k),
    )


@claim(b=2, m=2, d=2, n=4, split=2)
def one_part_of_the_denominator(b=2, m=256, d=64, n=4096, split=2):
    """The combining kernel divides every part by its own denominator and adds them up."""

    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split)
        parts = g.reshape(o, b, m, split, d) / g.reshape(total, b, m, split, 1)
        return g.reshape(g.reduction(parts, 2), b, m, d)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def normalised_parts_averaged(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split)
        parts = g.reshape(o, b, m, split, d) / g.reshape(total, b, m, split, 1)
        return g.reshape(g.mean(parts, 2), b, m, d)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def numerators_cut_as_if_the_part_varied_fastest(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        o, total = split_keys(g, q, k, v, split)
        top = g.reduction(g.reshape(o, b, m, d, split), 3)
        return g.reshape(top, b, m, d) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def keys_split_in_slabs_and_values_in_strides(b=2, m=64, d=64, n=4096, split=16):
    """Part s of the keys meets every split-th value."""

    def candidate(g, q, k, v):
        strided = g.reshape(g.transpose(g.reshape(v, b, n // split, split, d), 1, 2), b, n, d)
        o, total = split_keys(g, q, k, strided, split)
        return g.reshape(g.reduction(g.reshape(o, b, m, split, d), 2), b, m, d) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def numerator_and_denominator_of_different_keys(b=2, m=64, d=64, n=4096, loop=16):
    """The denominator is that of a second set of keys."""

    def candidate(g, q, k, v, other):
        def body(t, q, k, v, other):
            top = t.forloop_accum(t.exp(q @ k) @ v)
            return top / t.forloop_accum(t.exp(q @ other), "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (other, on(0), 2)], body, loop)

    inputs = {**qkv(b, m, d, n, d), "other": (b, d, n)}
    return pair(inputs, lambda g, q, k, v, other: attention(g, q, k, v), candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def divided_inside_the_loop(b=2, m=64, d=64, n=4096, loop=16):
    """Every iteration divides by its own row sums before they are complete."""

    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp(q @ k)
            return t.forloop_accum((p / t.reduction(p, 2)) @ v), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def the_denominator_of_the_mean_iteration(b=2, m=64, d=64, n=4096, loop=16):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "mean"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def exp_of_the_accumulated_scores(b=2, m=4, d=64, n=64, loop=4):
    """The head dim is looped over, and exp is taken before its sum is complete."""

    def candidate(g, q, k, v):
        def body(t, q, k, v):
            return t.forloop_accum(t.exp(q @ k)), on(0)

        p = kernel(g, (b,), [(q, on(0), 2), (k, on(0), 1), (v, on(0))], body, loop)
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n, d), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_mask_is_added_to_the_weights(b=2, m=256, d=64, n=4096):
    def program(g, q, k, v, mask):
        return g.softmax(q @ k + mask, 2) @ v

    def candidate(g, q, k, v, mask):
        p = g.exp(q @ k) + g.exp(mask)
        return (p @ v) / g.reduction(p, 2)

    return pair({**qkv(b, m, d, n, d), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_mask_is_missing_below(b=2, m=256, d=64, n=4096):
    def program(g, q, k, v, mask):
        return g.softmax(q @ k + mask, 2) @ v

    def candidate(g, q, k, v, mask):
        return (g.exp(q @ k + mask) @ v) / g.reduction(g.exp(q @ k), 2)

    return pair({**qkv(b, m, d, n, d), "mask": (1, m, n)}, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def only_the_first_part_of_the_keys_below(b=2, m=256, d=64, n=2048):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g, q, k1, k2, v1, v2):
        p1, p2 = g.exp(q @ k1), g.exp(q @ k2)
        return (p1 @ v1 + p2 @ v2) / g.reduction(p1, 2)

    inputs = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, d), "V2": (b, n, d)}
    return pair(inputs, program, candidate)


@claim(b=2, m=2, d=2, n=3)
def the_parts_of_the_values_exchanged(b=2, m=256, d=64, n=2048):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    inputs = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, d), "V2": (b, n, d)}
    return pair(inputs, program, lambda g, q, k1, k2, v1, v2: program(g, q, k1, k2, v2, v1))


@claim(b=2, h=2, m=2, d=2)
def groups_interleaved(b=2, h=2, m=16, d=64):
    """Query head i reads key head i mod b where it should read i div h."""

    def program(g, q, k):
        return q @ g.reshape(g.repeat(g.reshape(k, b, 1, d, d), 1, h), b * h, d, d)

    def candidate(g, q, k):
        return q @ g.reshape(g.repeat(g.reshape(k, 1, b, d, d), 0, h), b * h, d, d)

    return pair({"Q": (b * h, m, d), "K": (b, d, d)}, program, candidate)


@claim(h=2, m=2, d=2)
def heads_joined_without_a_transpose(h=16, m=64, d=96):
    return pair(
        {"O": (h, m, d), "W": (h * d, d)},
        lambda g, o, w: g.reshape(g.transpose(o, 0, 1), m, h * d) @ w,
        lambda g, o, w: g.reshape(o, m, h * d) @ w,
    )
