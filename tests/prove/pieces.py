"""Sums over pieces of a tensor, and the lattice of maximum, minimum, relu and absolute value."""

from mirage_formal import Graph, Tensor
from tests.kit.proofs.claims import Pair, claim, pair


@claim(b=2, k=8, n=3, cut=3)
def a_product_over_two_ranges(b: int = 16, k: int = 4096, n: int = 6144, cut: int = 1000) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: x @ w,
        lambda g, x, w: x[:, :cut] @ w[:cut] + x[:, cut:] @ w[cut:],
    )


def exponentials(g: Graph, q: Tensor, k: Tensor) -> Tensor:
    return g.exp(q @ g.transpose(k, 0, 1))


@claim(b=2, d=4, s=6, cut=2)
def attention_over_two_halves_of_the_keys(b: int = 16, d: int = 64, s: int = 4096, cut: int = 2048) -> Pair:
    def halves(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first, last = exponentials(g, q, k[:cut]), exponentials(g, q, k[cut:])
        return (first @ v[:cut] + last @ v[cut:]) / (g.sum(first, 1) + g.sum(last, 1))

    return pair(
        {"Q": (b, d), "K": (s, d), "V": (s, d)},
        lambda g, q, k, v: g.softmax(q @ g.transpose(k, 0, 1)) @ v,
        halves,
    )


@claim(b=2, k=8, n=3, cut=3)
def a_product_in_another_order(b: int = 16, k: int = 4096, n: int = 6144, cut: int = 1024) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: x @ w,
        lambda g, x, w: g.concat(x[:, cut:], x[:, :cut], 1) @ g.concat(w[cut:], w[:cut], 0),
    )


@claim(a=2, n=3)
def the_larger_and_the_smaller(a: int = 96, n: int = 11008) -> Pair:
    return pair({"X": (a, n), "Y": (a, n)}, lambda g, x, y: g.maximum(x, y) + g.minimum(x, y), lambda g, x, y: x + y)


@claim(b=2, k=4, n=3)
def relu_of_a_scaled_norm(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: g.relu(g.rms_norm(x)) @ w,
        lambda g, x, w: (g.relu(x) @ w) / g.sqrt(g.mean(g.square(x), 1)),
    )


@claim(b=2, k=6)
def the_logarithm_of_softmax(b: int = 16, k: int = 4096) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.log(g.softmax(x)),
        lambda g, x: x - g.log(g.sum(g.exp(x), 1)),
    )
