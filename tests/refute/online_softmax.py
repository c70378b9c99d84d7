"""Running maxima and partial results that are rescaled wrongly or not at all."""

from fractions import Fraction

from tests.kit.proofs.claims import claim, kernel, on, pair


def qkv(b, m, d, n):
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, d)}


def attention(g, q, k, v):
    return g.softmax(q @ k, 2) @ v


def looped(g, q, k, v, loop, body):
    return kernel(g, (q.shape[0],), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], body, loop)


def partials(g, q, k, v, split):
    def body(t, q, k, v):
        s = q @ k
        m = t.max(s, 2)
        p = t.exp(t.sub(s, m))
        saved = (t.forloop_accum(m), t.forloop_accum(p, "sum"), t.forloop_accum(p @ v))
        return [(item, on(0, 2)) for item in saved]

    return kernel(g, (q.shape[0], split), [(q, on(0)), (k, on(0, 2)), (v, on(0, 1))], body)


def joined(g, weights, o, split):
    b, m, d = o.shape[0], o.shape[1], o.shape[2] // split
    parts = g.reshape(weights, b, m, split, 1) * g.reshape(o, b, m, split, d)
    return g.reshape(g.reduction(parts, 2), b, m, d)


@claim(b=2, m=2, d=2, n=4, loop=2)
def the_denominator_is_not_rescaled(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum(p, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def the_numerator_is_not_rescaled(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum(p @ v) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def nothing_is_rescaled(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            p = t.exp(t.sub(s, t.reduction_max(s, 2)[0]))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def every_iteration_shifts_by_its_own_maximum(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            p = t.exp(t.sub(s, t.max(s, 2)))
            return t.forloop_accum(p @ v) / t.forloop_accum(p, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def the_shift_of_the_numerator_is_missing(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum(t.exp(s) @ v) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def rescaled_by_the_running_maximum_itself(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m))
            return t.forloop_accum_rescale(p @ v, t.exp(m)) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, loop=2)
def rescaled_by_the_factor_of_unscaled_scores(b=2, m=256, d=64, n=4096, loop=64):
    def candidate(g, q, k, v):
        def body(t, q, k, v):
            s = q @ k
            m, moved = t.reduction_max(t.scale(s, 2), 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, t.scale(m, 0.5)))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        return looped(g, q, k, v, loop, body)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=3, d=2, n=4)
def the_maximum_over_the_queries(b=2, m=256, d=64, n=4096):
    """A shift that is not constant along the row of a softmax."""

    def candidate(g, q, k, v):
        s = q @ k
        p = g.exp(g.sub(s, g.max(s, 1)))
        return (p @ v) / g.reduction(p, 2)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=3, n=4)
def a_shift_that_varies_along_the_row(b=96, n=4096):
    def candidate(g, x, c):
        e = g.exp(g.sub(x, c))
        return e / g.reduction(e, 1)

    return pair({"X": (b, n), "c": (1, n)}, lambda g, x, c: g.softmax(x, 1), candidate)


@claim(b=3, n=4)
def only_the_numerator_is_shifted(b=96, n=4096):
    def candidate(g, x):
        return g.exp(g.sub(x, g.max(x, 1))) / g.reduction(g.exp(x), 1)

    return pair({"X": (b, n)}, lambda g, x: g.softmax(x, 1), candidate)


@claim(b=3, n=4)
def a_shift_by_half_in_the_denominator(b=96, n=4096):
    def candidate(g, x, c):
        return g.exp(g.sub(x, c)) / g.reduction(g.exp(g.sub(x, g.scale(c, 0.5))), 1)

    return pair({"X": (b, n), "c": (b, 1)}, lambda g, x, c: g.softmax(x, 1), candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def parts_combined_without_their_maxima(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        _, total, o = partials(g, q, k, v, split)
        top = g.reduction(g.reshape(o, b, m, split, d), 2)
        return g.reshape(top, b, m, d) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def only_numerators_weighted_by_maxima(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split)
        w = g.exp(g.sub(m_, g.max(m_, 2)))
        return joined(g, w, o, split) / g.reduction(total, 2)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def weights_of_the_other_sign(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split)
        w = g.exp(g.sub(g.max(m_, 2), m_))
        return joined(g, w, o, split) / g.reduction(w * total, 2)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def weights_by_the_denominators_alone(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        _, total, o = partials(g, q, k, v, split)
        weights = total / g.reduction(total, 2)
        parts = g.reshape(o, b, m, split, d) / g.reshape(total, b, m, split, 1)
        return g.reshape(g.reduction(g.reshape(weights, b, m, split, 1) * parts, 2), b, m, d)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=4, split=2)
def numerators_weighted_twice(b=2, m=256, d=64, n=4096, split=16):
    def candidate(g, q, k, v):
        m_, total, o = partials(g, q, k, v, split)
        w = g.exp(g.sub(m_, g.max(m_, 2)))
        return joined(g, g.square(w), o, split) / g.reduction(w * total, 2)

    return pair(qkv(b, m, d, n), attention, candidate)


@claim(b=2, m=2, d=2, n=3)
def two_halves_rescaled_the_wrong_way(b=2, m=256, d=64, n=2048):
    def program(g, q, k1, k2, v1, v2):
        return attention(g, q, g.concat(k1, k2, 2), g.concat(v1, v2, 1))

    def candidate(g, q, k1, k2, v1, v2):
        s1, s2 = q @ k1, q @ k2
        m1, m2 = g.max(s1, 2), g.max(s2, 2)
        p1, p2 = g.exp(g.sub(s1, m1)), g.exp(g.sub(s2, m2))
        back = g.exp(g.sub(m1, m2))
        return (p1 @ v1 + back * (p2 @ v2)) / (g.reduction(p1, 2) + back * g.reduction(p2, 2))

    inputs = {"Q": (b, m, d), "K1": (b, d, n), "K2": (b, d, n), "V1": (b, n, d), "V2": (b, n, d)}
    return pair(inputs, program, candidate)


@claim(a=3, n=6, loop=3)
def the_first_maximum_for_the_last(a=16, n=6144, loop=12):
    """The running maxima are averaged where the last one was wanted."""

    def candidate(g, x):
        def body(t, x):
            return t.scale(t.forloop_accum(t.reduction_max(x, 1)[0]), Fraction(1, loop)), on()

        return kernel(g, (1,), [(x, on(), 1)], body, loop)

    return pair({"X": (a, n)}, lambda g, x: g.max(x, 1), candidate)
