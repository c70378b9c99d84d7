"""Latent attention: keys and values are products of a small cache, and projections are absorbed."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def shapes(h: int, m: int, d: int, n: int, c: int) -> Shapes:
    """Queries per head, a shared cache C [n,c], up-projections of keys [h,c,d] and values [h,c,d]."""
    return {"Q": (h, m, d), "C": (n, c), "Uk": (h, c, d), "Uv": (h, c, d)}


def heads(g: Graph, x: Tensor, h: int) -> Tensor:
    return g.repeat(g.reshape(x, 1, *x.shape), 0, h)


def program(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
    wide = heads(g, cache, q.shape[0])
    return g.softmax(q @ g.transpose(wide @ uk, 1, 2), 2) @ (wide @ uv)


@claim(h=2, m=2, d=2, n=3, c=2)
def keys_and_values_absorbed(h: int = 16, m: int = 16, d: int = 128, n: int = 4096, c: int = 512) -> Pair:
    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        wide = heads(g, cache, h)
        p = g.exp((q @ g.transpose(uk, 1, 2)) @ g.transpose(wide, 1, 2))
        return ((p @ wide) @ uv) / g.reduction(p, 2)

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def only_keys_absorbed(h: int = 16, m: int = 16, d: int = 128, n: int = 4096, c: int = 512) -> Pair:
    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        wide = heads(g, cache, h)
        p = g.exp((q @ g.transpose(uk, 1, 2)) @ g.transpose(wide, 1, 2))
        return (p / g.reduction(p, 2)) @ (wide @ uv)

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def all_heads_in_one_product_with_the_cache(h: int = 16, m: int = 1, d: int = 128, n: int = 4096, c: int = 512) -> Pair:
    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        low = g.reshape(q @ g.transpose(uk, 1, 2), h * m, c)
        p = g.exp(low @ g.transpose(cache, 0, 1))
        mixed = (p @ cache) / g.reduction(p, 1)
        return g.reshape(mixed, h, m, c) @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=4, c=2, split=2)
def the_cache_split_over_blocks(
    h: int = 16, m: int = 4, d: int = 96, n: int = 6144, c: int = 320, split: int = 12
) -> Pair:
    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        low = g.reshape(q @ g.transpose(uk, 1, 2), h * m, c)
        turned = g.transpose(cache, 0, 1)

        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            p = t.exp(q @ k)
            return [(t.forloop_accum(p @ v), on(1)), (t.forloop_accum(p, "sum"), on(1))]

        o, total = kernel(g, (split,), [(low, on()), (turned, on(1)), (cache, on(0))], body)
        mixed = g.reshape(g.reduction(g.reshape(o, h * m, split, c), 1), h * m, c) / g.reduction(total, 1)
        return g.reshape(mixed, h, m, c) @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=4, c=2, loop=2)
def the_cache_in_the_loop_of_one_kernel(
    h: int = 16, m: int = 4, d: int = 96, n: int = 11008, c: int = 320, loop: int = 43
) -> Pair:
    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        low = q @ g.transpose(uk, 1, 2)
        wide = g.reshape(cache, 1, n, c)
        turned = g.transpose(wide, 1, 2)

        def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            s = q @ k
            m_, moved = t.reduction_max(s, 2)
            f = t.exp(moved)
            p = t.exp(t.sub(s, m_))
            return t.forloop_accum_rescale(p @ v, f) / t.forloop_accum_rescale(p, f, "sum"), on(0)

        mixed = kernel(g, (h,), [(low, on(0)), (turned, on(), 2), (wide, on(), 1)], body, loop)
        return mixed @ uv

    return pair(shapes(h, m, d, n, c), program, candidate)


@claim(h=2, m=2, d=2, n=3, r=2)
def a_part_with_positions_beside_the_part_without(
    h: int = 16, m: int = 16, d: int = 128, n: int = 4096, r: int = 64
) -> Pair:
    inputs = {"Qn": (h, m, d), "Qr": (h, m, r), "Kn": (h, d, n), "Kr": (h, r, n), "V": (h, n, d)}
    return pair(
        inputs,
        lambda g, qn, qr, kn, kr, v: g.softmax(g.concat(qn, qr, 2) @ g.concat(kn, kr, 1), 2) @ v,
        lambda g, qn, qr, kn, kr, v: g.softmax(qn @ kn + qr @ kr, 2) @ v,
    )


@claim(h=2, m=2, d=2, n=3, r=1)
def the_position_part_is_a_factor(h: int = 16, m: int = 16, d: int = 128, n: int = 4096, r: int = 64) -> Pair:
    def candidate(g: Graph, qn: Tensor, qr: Tensor, kn: Tensor, kr: Tensor, v: Tensor) -> Tensor:
        p = g.exp(qn @ kn) * g.exp(qr @ g.repeat(kr, 0, h))
        return (p @ v) / g.reduction(p, 2)

    inputs = {"Qn": (h, m, d), "Qr": (h, m, r), "Kn": (h, d, n), "Kr": (1, r, n), "V": (h, n, d)}
    return pair(
        inputs,
        lambda g, qn, qr, kn, kr, v: g.softmax(g.concat(qn, qr, 2) @ g.concat(kn, g.repeat(kr, 0, h), 1), 2) @ v,
        candidate,
    )


@claim(h=2, m=2, d=2, n=3, c=2, out=2)
def output_projection_absorbed_too(
    h: int = 16, m: int = 16, d: int = 128, n: int = 4096, c: int = 512, out: int = 2048
) -> Pair:
    inputs = {**shapes(h, m, d, n, c), "Wo": (h, d, out)}

    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor, wo: Tensor) -> Tensor:
        wide = heads(g, cache, h)
        p = g.exp(q @ g.transpose(wide @ uk, 1, 2))
        return g.reduction(((p @ wide) @ (uv @ wo)) / g.reduction(p, 2), 0)

    return pair(inputs, lambda g, q, c_, uk, uv, wo: g.reduction(program(g, q, c_, uk, uv) @ wo, 0), candidate)


@claim(b=2, h=2, d=2, n=3, c=2, x=2)
def from_the_hidden_state(b: int = 4, h: int = 12, d: int = 64, n: int = 320, c: int = 96, x: int = 768) -> Pair:
    """Queries, too, come from a product: X (Wq Uk^T) with the cache H Wc."""

    def program(g: Graph, x_: Tensor, hidden: Tensor, wq: Tensor, wc: Tensor, uk: Tensor) -> Tensor:
        q = heads(g, x_, h) @ wq
        return g.softmax(q @ g.transpose(heads(g, hidden @ wc, h) @ uk, 1, 2), 2)

    def candidate(g: Graph, x_: Tensor, hidden: Tensor, wq: Tensor, wc: Tensor, uk: Tensor) -> Tensor:
        absorbed = wq @ g.transpose(uk, 1, 2)
        scores = (heads(g, x_, h) @ absorbed) @ g.transpose(heads(g, hidden @ wc, h), 1, 2)
        e = g.exp(g.sub(scores, g.max(scores, 2)))
        return e / g.reduction(e, 2)

    inputs = {"X": (b, x), "H": (n, x), "Wq": (h, x, d), "Wc": (x, c), "Uk": (h, c, d)}
    return pair(inputs, program, candidate)


@claim(h=2, m=2, d=2, n=3, c=2)
def a_normalised_cache(h: int = 16, m: int = 16, d: int = 128, n: int = 4096, c: int = 512) -> Pair:
    def normed(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        return program(g, q, g.rms_norm(cache), uk, uv)

    def candidate(g: Graph, q: Tensor, cache: Tensor, uk: Tensor, uv: Tensor) -> Tensor:
        below = g.reshape(g.sqrt(g.mean(g.square(cache), 1)), 1, n, 1)
        wide = heads(g, cache, h)
        p = g.exp(q @ g.transpose((wide @ uk) / below, 1, 2))
        return ((p / g.transpose(below, 1, 2)) @ wide) @ uv / g.reduction(p, 2)

    return pair(shapes(h, m, d, n, c), normed, candidate)
