"""Latent attention: keys and values are products of a small cache, and projections are absorbed."""

from tests.kit.proofs.claims import claim, kernel, on, pair


def shapes(h, m, d, n, c):
    """Queries per head, a shared cache C [n,c], up-projections of keys [h,c,d] and values [h,c,d]."""
    return {"Q": (h, m, d), "C": (n, c), "Uk": (h, c, d), "Uv": (h, c, d)}


def heads(g, x, h):
    return g.repeat(g.reshape(x, 1, *x.shape), 0, h)


def program(g, q, cache, uk, uv):
    wide = heads(g, cache, q.shape[0])
    return g.softmax(q @ g.transpose(wide @ uk, 1, 2), 2) @ (wide @ uv)


@claim(h=2, m=2, d=2, n=3, c=2)
def keys_and_values_absorbed(h=16, m=16, d=128, n=4096, c=512):
    def candidate(g, q, cache, uk, uv):
        wide = heads(g, cache, h)
        p = g.exp((q @ g.transpose(uk, 1, 2)) @ g.transpose(wide, 1, 2))
        return ((p @ wide) @ uv) / g.reduction(p, 2)

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def only_keys_absorbed(h=16, m=16, d=128, n=4096, c=512):
    def candidate(g, q, cache, uk, uv):
        wide = heads(g, cache, h)
        p = g.exp((q @ g.transpose(uk, 1, 2)) @ g.transpose(wide, 1, 2))
        return (p / g.reduction(p, 2)) @ (wide @ uv)

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def all_heads_in_one_product_with_the_cache(h=16, m=1, d=128, n=4096, c=512):
    def candidate(g, q, cache, uk, uv):
        low = g.reshape(q @ g.transpose(uk, 1, 2), h * m, c)
        p = g.exp(low @ g.transpose(cache, 0, 1))
        mixed = (p @ cache) / g.reduction(p, 1)
        return g.reshape(mixed, h, m, c) @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=4, c=2, split=2)
def the_cache_split_over_blocks(h=16, m=4, d=96, n=6144, c=320, split=12):
    def candidate(g, q, cache, uk, uv):
        low = g.reshape(q @ g.transpose(uk, 1, 2), h * m, c)
        turned = g.transpose(cache, 0, 1)

        def body(t, q, k, v):
            p = t.exp(q @ k)
            return [(t.forloop_accum(p @ v), on(1)), (t.forloop_accum(p, "sum"), on(1))]

        o, total = kernel(g, (split,), [(low, on()), (turned, on(1)), (cache, on(0))], body)
        mixed = g.reshape(g.reduction(g.reshape(o, h * m, split, c), 1), h * m, c) / g.reduction(total, 1)
        return g.reshape(mixed, h, m, c) @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=4, c=2, loop=2)
def the_cache_in_the_loop_of_one_kernel(h=16, m=4, d=96, n=11008, c=320, loop=43):
    def candidate(g, q, cache, uk, uv):
        low = q @ g.transpose(uk, 1, 2)
        wide = g.reshape(cache, 1, n, c)
        turned = g.transpose(wide, 1, 2)

        def body(t, q, k, v):
            s = q @ k
            m_, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m_))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        mixed = kernel(g, (h,), [(low, on(0)), (turned, on(), 2), (wide, on(), 1)], body, loop)
        return mixed @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, r=2)
def a_part_with_positions_beside_the_part_without(h=16, m=16, d=128, n=4096, r=64):
    inputs = {"Qn": (h, m, d), "Qr": (h, m, r), "Kn": (h, d, n), "Kr": (h, r, n), "V": (h, n, d)}
    return pair(
        inputs,
        lambda g, qn, qr, kn, kr, v: g.softmax(g.concat(qn, qr, 2) @ g.concat(kn, kr, 1), 2) @ v,
        lambda g, qn, qr, kn, kr, v: g.softmax(qn @ kn + qr @ kr, 2) @ v,
    )


@claim(h=2, m=2, d=2, n=3, r=1)
def the_position_part_is_a_factor(h=16, m=16, d=128, n=4096, r=64):
    def candidate(g, qn, qr, kn, kr, v):
        p = g.exp(qn @ kn) * g.exp(qr @ g.repeat(kr, 0, h))
        return (p @ v) / g.reduction(p, 2)

    inputs = {"Qn": (h, m, d), "Qr": (h, m, r), "Kn": (h, d, n), "Kr": (1, r, n), "V": (h, n, d)}
    return pair(
        inputs,
        lambda g, qn, qr, kn, kr, v: g.softmax(g.concat(qn, qr, 2) @ g.concat(kn, g.repeat(kr, 0, h), 1), 2) @ v,
        candidate,
    )


@claim(h=2, m=2, d=2, n=3, c=2, out=2)
def output_projection_absorbed_too(h=16, m=16, d=128, n=4096, c=512, out=2048):
    inputs = {**shapes(h, m, d, n, c), "Wo": (h, d, out)}

    def candidate(g, q, cache, uk, uv, wo):
        wide = heads(g, cache, h)
        p = g.exp(q @ g.transpose(wide @ uk, 1, 2))
        return g.reduction(((p @ wide) @ (uv @ wo)) / g.reduction(p, 2), 0)

    return pair(inputs, lambda g, q, c_, uk, uv, wo: g.reduction(program(g, q, c_, uk, uv) @ wo, 0), candidate)


@claim(b=2, h=2, d=2, n=3, c=2, x=2)
def from_the_hidden_state(b=4, h=12, d=64, n=320, c=96, x=768):
    """Queries, too, come from a product: X (Wq Uk^T) with the cache H Wc."""

    def program(g, x_, hidden, wq, wc, uk):
        q = heads(g, x_, h) @ wq
        return g.softmax(q @ g.transpose(heads(g, hidden @ wc, h) @ uk, 1, 2), 2)

    def candidate(g, x_, hidden, wq, wc, uk):
        absorbed = wq @ g.transpose(uk, 1, 2)
        scores = (heads(g, x_, h) @ absorbed) @ g.transpose(heads(g, hidden @ wc, h), 1, 2)
        e = g.exp(g.sub(scores, g.max(scores, 2)))
        return e / g.reduction(e, 2)

    inputs = {"X": (b, x), "H": (n, x), "Wq": (h, x, d), "Wc": (x, c), "Uk": (h, c, d)}
    return pair(inputs, program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def a_normalised_cache(h=16, m=16, d=128, n=4096, c=512):
    def normed(g, q, cache, uk, uv):
        return program(g, q, g.rms_norm(cache), uk, uv)

    def candidate(g, q, cache, uk, uv):
        below = g.reshape(g.sqrt(g.mean(g.square(cache), 1)), 1, n, 1)
        wide = heads(g, cache, h)
        p = g.exp(q @ g.transpose((wide @ uk) / below, 1, 2))
        return ((p / g.transpose(below, 1, 2)) @ wide) @ uv / g.reduction(p, 2)

    return pair(shapes(h, m, d, n, c), normed, candidate)
