"""Softmax with a running maximum: rescaled sums, and partial results (m, l, o) over split blocks."""

from tests.kit.proofs.claims import claim, kernel, on, pair


def qkv(b, m, d, n, e):
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e)}


def attention(g, q, k, v):
    return g.softmax(q @ k, 2) @ v


def shifted(g, x, dim):
    e = g.exp(g.sub(x, g.max(x, dim)))
    return e / g.reduction(e, dim)


def partials(g, q, k, v, split, loop):
    """Per part of the keys its maximum [b,m,split], denominator [b,m,split] and numerator [b,m,split*e]."""

    def body(t, q, k, v):
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
def shift_by_the_maximum(b=2, m=256, d=64, n=4096, e=64):
    return pair(qkv(b, m, d, n, e), attention, lambda g, q, k, v: shifted(g, q @ k, 2) @ v)


@claim(b=3, n=5)
def the_shift_cancels(b=96, n=11008):
    def plain(g, x):
        e = g.exp(x)
        return e / g.reduction(e, 1)

    return pair({"X": (b, n)}, plain, lambda g, x: shifted(g, x, 1))


@claim(b=3, n=5)
def any_row_constant_is_a_shift(b=96, n=320):
    def candidate(g, x, c):
        e = g.exp(g.sub(x, c))
        return e / g.reduction(e, 1)

    return pair({"X": (b, n), "c": (b, 1)}, lambda g, x, c: g.softmax(x, 1), candidate)


@claim(b=2, m=2, d=2, n=6, e=2, loop=3)
def running_maximum_in_one_kernel(b=2, m=256, d=64, n=4096, e=64, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=4, d=2, n=4, e=2, rows=2, loop=2)
def row_sums_before_the_rescaled_sum(b=2, m=256, d=64, n=4096, e=64, rows=4, loop=32):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = t.scale(q @ k, 0.125)
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(t.reduction(p, 2), f), on(0, 1)

        return kernel(g, (b, rows), [(q, on(0, 1)), (k, on(0), 2), (v, on(0), 1)], body, loop)

    return pair(qkv(b, m, d, n, e), lambda g, q, k, v: attention(g, g.scale(q, 0.125), k, v), candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def a_loop_of_one_iteration(b=2, m=256, d=64, n=320, e=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            p = t.exp(t.sub(s, t.max(s, 2)))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return kernel(g, (b,), [(q, on(0)), (k, on(0)), (v, on(0))], body)

    return pair(qkv(b, m, d, n, e), attention, candidate)


def combined_by_maxima(g, m, total, o, split):
    """Kernel-level combination of (m, l, o): weights exp(m_part - m)."""
    b, rows, e = o.shape[0], o.shape[1], o.shape[2] // split
    w = g.exp(g.sub(m, g.max(m, 2)))
    parts = g.reshape(o, b, rows, split, e)
    top = g.reduction(g.reshape(w, b, rows, split, 1) * parts, 2)
    return g.reshape(top, b, rows, e) / g.reduction(w * total, 2)


@claim(b=2, m=2, d=2, n=4, e=2, split=2, loop=1)
def partial_results_over_split_blocks(b=2, m=256, d=64, n=4096, e=64, split=16, loop=1):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m = t.max(s, 2)
            p = t.exp(t.sub(s, m))
            saved = (t.forloop_accum(m), t.forloop_accum(p, "sum"), t.forloop_accum(p @ v))
            return [(item, on(0, 2)) for item in saved]

        parts = kernel(g, (b, split), [(q, on(0)), (k, on(0, 2)), (v, on(0, 1))], body)
        return combined_by_maxima(g, *parts, split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=8, e=2, split=2, loop=2)
def partial_results_with_a_loop_in_every_block(b=2, m=256, d=64, n=4096, e=64, split=8, loop=8):
    def candidate(g, q, k, v):
        return combined_by_maxima(g, *partials(g, q, k, v, split, loop), split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=1, m=2, d=2, n=6, e=2, split=3, loop=2)
def partial_results_over_forty_three_blocks(b=4, m=1, d=96, n=11008, e=96, split=43, loop=4):
    def candidate(g, q, k, v):
        return combined_by_maxima(g, *partials(g, q, k, v, split, loop), split)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def partial_results_combined_by_a_second_kernel(b=2, m=256, d=64, n=4096, e=64, split=16):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split, 1)

        def combine(t, m, total, o):
            w = t.exp(t.sub(m, t.max(m, 2)))
            top = t.forloop_accum(t.reduction(w * o, 2))
            return top / t.forloop_accum(t.reduction(w * total, 2)), on(0, 1)

        narrow, wide = (b, m, split, 1), (b, m, split, e)
        parts = [g.reshape(m_, narrow), g.reshape(total, narrow), g.reshape(o, wide)]
        return g.reshape(kernel(g, (b, m), [(part, on(0, 1)) for part in parts], combine), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=8, e=2, split=4, loop=2)
def a_running_maximum_over_the_parts(b=2, m=256, d=64, n=4096, e=64, split=16, loop=4):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split, 1)

        def combine(t, m, total, o):
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
def normalised_parts_weighted_by_their_mass(b=2, m=256, d=64, n=4096, e=64, split=16):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split, 1)
        parts = g.reshape(o, b, m, split, e) / g.reshape(total, b, m, split, 1)
        mass = total * g.exp(g.sub(m_, g.max(m_, 2)))
        weights = g.reshape(mass / g.reduction(mass, 2), b, m, split, 1)
        return g.reshape(g.reduction(weights * parts, 2), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=4, e=2, split=2)
def normalised_parts_without_maxima(b=2, m=256, d=64, n=4096, e=64, split=16):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            p = t.exp(q @ k)
            total = t.forloop_accum(p, "sum")
            return [(t.forloop_accum(p @ v) / total, on(0, 2)), (total, on(0, 2))]

        o, total = kernel(g, (b, split), [(q, on(0)), (k, on(0, 2)), (v, on(0, 1))], body)
        weights = g.reshape(total / g.reduction(total, 2), b, m, split, 1)
        return g.reshape(g.reduction(weights * g.reshape(o, b, m, split, e), 2), b, m, e)

    return pair(qkv(b, m, d, n, e), attention, candidate)


@claim(b=2, m=2, d=2, n=3, e=2)
def two_halves_with_their_own_maxima(b=2, m=256, d=64, n=2048, e=64):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g, q, k1, k2, v1, v2):
        s1, s2 = q @ k1, q @ k2
        m1, m2 = g.max(s1, 2), g.max(s2, 2)
        p1, p2 = g.exp(g.sub(s1, m1)), g.exp(g.sub(s2, m2))
        back = g.exp(g.sub(m2, m1))
        top = p1 @ v1 + back * (p2 @ v2)
        return top / (g.reduction(p1, 2) + back * g.reduction(p2, 2))

    shapes = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, e), "V2": (b, n, e)}
    return pair(shapes, program, candidate)


@claim(b=4, n=6, rows=2, split=3)
def rows_of_softmax_in_two_kernels(b=96, n=6144, rows=12, split=12):
    def candidate(g, x):
        def first(t, x):
            m, moved = t.reduction_max(x, 1)
            f = t.exp(moved)
            total = t.forloop_accum_rescale(t.exp(t.sub(x, m)), f, "sum")
            return [(t.forloop_accum_max(m), on(0)), (total, on(0))]

        m, total = kernel(g, (rows,), [(x, on(0), 1)], first, split)

        def second(t, x, m, total):
            x, m, total = (t.forloop_accum(item) for item in (x, m, total))
            return t.exp(t.sub(x, m)) / total, on(0, 1)

        return kernel(g, (rows, split), [(x, on(0, 1)), (m, on(0)), (total, on(0))], second)

    return pair({"X": (b, n)}, lambda g, x: g.softmax(x, 1), candidate)


@claim(b=3, n=4)
def two_softmaxes_in_a_product(b=96, n=320):
    def candidate(g, x, y):
        e = g.exp(g.sub(x, g.max(x, 1)) + g.sub(y, g.max(y, 1)))
        tops = g.reduction(g.exp(g.sub(x, g.max(x, 1))), 1), g.reduction(g.exp(g.sub(y, g.max(y, 1))), 1)
        return e / (tops[0] * tops[1])

    return pair({"X": (b, n), "Y": (b, n)}, lambda g, x, y: g.softmax(x, 1) * g.softmax(y, 1), candidate)


@claim(b=3, n=4)
def softmax_of_softmax_logits_over_a_temperature(b=96, n=4096):
    def candidate(g, x):
        e = g.exp(g.scale(g.sub(x, g.max(x, 1)), 0.5))
        return e / g.reduction(e, 1)

    return pair({"X": (b, n)}, lambda g, x: g.softmax(g.div(x, 2), 1), candidate)


@claim(b=3, n=4)
def the_square_of_softmax_is_a_softmax_of_twice(b=96, n=4096):
    def program(g, x):
        s = g.square(g.softmax(x, 1))
        return s / g.reduction(s, 1)

    return pair({"X": (b, n)}, program, lambda g, x: g.softmax(g.scale(x, 2), 1))
