"""Sums over the wrong pieces of a tensor, and false laws of maxima and logarithms."""

from tests.kit.proofs.claims import Pair, claim, pair


@claim(b=2, k=8, n=3, cut=3)
def a_product_without_one_range(b: int = 16, k: int = 4096, n: int = 6144, cut: int = 1000) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: x @ w,
        lambda g, x, w: x[:, :cut] @ w[:cut] + x[:, 2 * cut :] @ w[2 * cut :],
    )


@claim(b=2, k=8, n=3, cut=3)
def a_product_with_one_operand_in_another_order(b: int = 16, k: int = 4096, n: int = 6144, cut: int = 1024) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: x @ w,
        lambda g, x, w: g.concat(x[:, cut:], x[:, :cut], 1) @ w,
    )


@claim(a=2, n=3)
def a_maximum_times_what_may_be_negative(a: int = 96, n: int = 11008) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, n), "Z": (a, n)},
        lambda g, x, y, z: g.maximum(x * z, y * z),
        lambda g, x, y, z: g.maximum(x, y) * z,
    )


@claim(a=2, n=3)
def the_square_of_a_maximum(a: int = 96, n: int = 11008) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, n)},
        lambda g, x, y: g.square(g.maximum(x, y)),
        lambda g, x, y: g.maximum(g.square(x), g.square(y)),
    )


@claim(a=2, n=3)
def the_exponential_of_half_the_logarithm_of_a_square(a: int = 96, n: int = 11008) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.exp(g.log(g.square(x)) / 2),
        lambda g, x: x + x * 0,
    )
