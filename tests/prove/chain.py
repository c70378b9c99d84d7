"""Products of matrices: reassociated, distributed, split into blocks, computed with fewer products."""

from itertools import pairwise

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def squares(count: int, n: int) -> Shapes:
    return {f"M{i}": (n, n) for i in range(count)}


def line(*extents: int) -> Shapes:
    return {f"M{i}": pair_ for i, pair_ in enumerate(pairwise(extents))}


def left_to_right(g: Graph, first: Tensor, *rest: Tensor) -> Tensor:
    for item in rest:
        first = first @ item
    return first


def right_to_left(g: Graph, *items: Tensor) -> Tensor:
    last = items[-1]
    for item in reversed(items[:-1]):
        last = item @ last
    return last


@claim(a=2, b=3, c=4, d=2)
def three_factors(a: int = 16, b: int = 4096, c: int = 4096, d: int = 64) -> Pair:
    return pair(line(a, b, c, d), left_to_right, right_to_left)


@claim(a=2, b=3, c=4, d=2, e=3)
def four_factors_in_pairs(a: int = 96, b: int = 320, c: int = 6144, d: int = 96, e: int = 11008) -> Pair:
    return pair(line(a, b, c, d, e), left_to_right, lambda g, p, q, r, s: (p @ q) @ (r @ s))


@claim(a=2, b=3, c=2, d=3, e=2, f=3)
def five_factors(a: int = 16, b: int = 256, c: int = 64, d: int = 4096, e: int = 96, f: int = 320) -> Pair:
    return pair(line(a, b, c, d, e, f), left_to_right, lambda g, p, q, r, s, t: p @ ((q @ r) @ (s @ t)))


@claim(n=2)
def six_factors(n: int = 4096) -> Pair:
    return pair(squares(6, n), left_to_right, right_to_left)


@claim(n=2)
def seven_factors(n: int = 320) -> Pair:
    return pair(squares(7, n), left_to_right, lambda g, a, b, c, d, e, f, h: (a @ (b @ c)) @ ((d @ e) @ (f @ h)))


@claim(n=3)
def a_cube(n: int = 6144) -> Pair:
    return pair({"A": (n, n)}, lambda g, a: (a @ a) @ a, lambda g, a: a @ (a @ a))


@claim(a=2, b=3, c=2)
def a_transposed_product(a: int = 96, b: int = 320, c: int = 6144) -> Pair:
    return pair(
        line(a, b, c),
        lambda g, x, y: g.transpose(x @ y, 0, 1),
        lambda g, x, y: g.transpose(y, 0, 1) @ g.transpose(x, 0, 1),
    )


@claim(a=2, b=3, c=2, d=3)
def a_transposed_chain(a: int = 96, b: int = 320, c: int = 64, d: int = 4096) -> Pair:
    return pair(
        line(a, b, c, d),
        lambda g, x, y, z: g.transpose((x @ y) @ z, 0, 1),
        lambda g, x, y, z: g.transpose(z, 0, 1) @ g.transpose(x @ y, 0, 1),
    )


@claim(m=2, k=3, n=2)
def a_sum_of_weights(m: int = 16, k: int = 4096, n: int = 4096) -> Pair:
    return pair(
        {"X": (m, k), "U": (k, n), "V": (k, n)},
        lambda g, x, u, v: x @ (u + v),
        lambda g, x, u, v: x @ u + x @ v,
    )


@claim(m=2, k=3, n=2)
def four_products_from_two_sums(m: int = 16, k: int = 4096, n: int = 320) -> Pair:
    return pair(
        {"X": (m, k), "Y": (m, k), "U": (k, n), "V": (k, n)},
        lambda g, x, y, u, v: (x + y) @ g.sub(u, v),
        lambda g, x, y, u, v: g.sub(x @ u + y @ u, x @ v) - y @ v,
    )


@claim(m=2, k=3, n=2)
def a_complex_product_with_three_real_ones(m: int = 96, k: int = 4096, n: int = 320) -> Pair:
    def program(g: Graph, xr: Tensor, xi: Tensor, yr: Tensor, yi: Tensor) -> tuple[Tensor, Tensor]:
        return g.sub(xr @ yr, xi @ yi), xr @ yi + xi @ yr

    def candidate(g: Graph, xr: Tensor, xi: Tensor, yr: Tensor, yi: Tensor) -> tuple[Tensor, Tensor]:
        first, second = xr @ yr, xi @ yi
        both = (xr + xi) @ (yr + yi)
        return g.sub(first, second), g.sub(g.sub(both, first), second)

    inputs = {"Xr": (m, k), "Xi": (m, k), "Yr": (k, n), "Yi": (k, n)}
    return pair(inputs, program, candidate)


@claim(n=2)
def two_by_two_blocks_with_seven_products(n: int = 2048) -> Pair:
    def program(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        return g.concat(g.concat(a @ e + b @ h, a @ f + b @ k, 1), g.concat(c @ e + d @ h, c @ f + d @ k, 1), 0)

    def candidate(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        m1 = (a + d) @ (e + k)
        m2 = (c + d) @ e
        m3 = a @ g.sub(f, k)
        m4 = d @ g.sub(h, e)
        m5 = (a + b) @ k
        m6 = g.sub(c, a) @ (e + f)
        m7 = g.sub(b, d) @ (h + k)
        top = g.concat(g.sub(m1 + m4, m5) + m7, m3 + m5, 1)
        return g.concat(top, g.concat(m2 + m4, g.sub(m1 + m3, m2) + m6, 1), 0)

    return pair(squares(8, n), program, candidate)


@claim(n=2)
def blocks_of_a_product(n: int = 2048) -> Pair:
    def program(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        left = g.concat(g.concat(a, b, 1), g.concat(c, d, 1), 0)
        return left @ g.concat(g.concat(e, f, 1), g.concat(h, k, 1), 0)

    def candidate(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        return g.concat(g.concat(a @ e + b @ h, a @ f + b @ k, 1), g.concat(c @ e + d @ h, c @ f + d @ k, 1), 0)

    return pair(squares(8, n), program, candidate)


@claim(m=2, k=3, j=2, n=2)
def the_inner_dim_in_two_parts(m: int = 16, k: int = 96, j: int = 320, n: int = 64) -> Pair:
    return pair(
        {"A1": (m, k), "A2": (m, j), "B1": (k, n), "B2": (j, n)},
        lambda g, a1, a2, b1, b2: g.concat(a1, a2, 1) @ g.concat(b1, b2, 0),
        lambda g, a1, a2, b1, b2: a1 @ b1 + a2 @ b2,
    )


@claim(m=2, j=1, k=3, n=2)
def rows_in_two_parts(m: int = 16, j: int = 80, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"A1": (m, k), "A2": (j, k), "B": (k, n)},
        lambda g, a1, a2, b: g.concat(a1, a2, 0) @ b,
        lambda g, a1, a2, b: g.concat(a1 @ b, a2 @ b, 0),
    )


@claim(m=4, k=4, n=6, grid=(3, 2), loop=2)
def a_product_in_blocks(
    m: int = 96, k: int = 4096, n: int = 6144, grid: tuple[int, int] = (48, 12), loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        return kernel(
            g,
            grid,
            [(x, on(y=0), 1), (w, on(1), 0)],
            lambda t, x, w: (t.forloop_accum(x @ w), on(1, 0)),
            loop,
        )

    return pair({"X": (m, k), "W": (k, n)}, lambda g, x, w: x @ w, candidate)


@claim(m=2, k=6, n=4, grid=2, split=3)
def the_inner_dim_over_the_grid(m: int = 16, k: int = 11008, n: int = 4096, grid: int = 32, split: int = 43) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(
            g, (grid, split), [(x, on(y=1)), (w, on(1, 0))], lambda t, x, w: (t.forloop_accum(x @ w), on(1, 0))
        )
        return g.reshape(g.reduction(g.reshape(parts, split, m, n), 0), m, n)

    return pair({"X": (m, k), "W": (k, n)}, lambda g, x, w: x @ w, candidate)


@claim(m=2, k=12, n=2, split=3, loop=2)
def the_inner_dim_over_344_blocks_and_a_loop(
    m: int = 16, k: int = 11008, n: int = 96, split: int = 344, loop: int = 2
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        parts = kernel(
            g, (split,), [(x, on(1), 1), (w, on(0), 0)], lambda t, x, w: (t.forloop_accum(x @ w), on(1)), loop
        )
        return kernel(g, (1,), [(parts, on())], lambda t, p: (t.forloop_accum(p, "sum_todimx"), on()), dimx=n)

    return pair({"X": (m, k), "W": (k, n)}, lambda g, x, w: x @ w, candidate)


@claim(m=2, k=4, n=2, p=2, loop=2)
def two_products_in_one_kernel(m: int = 16, k: int = 4096, n: int = 64, p: int = 96, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, u: BlockTensor, v: BlockTensor) -> Saved:
            return t.forloop_accum((x @ u) @ v), on()

        return kernel(g, (1,), [(x, on(), 1), (u, on(), 0), (v, on())], body, loop)

    return pair({"X": (m, k), "U": (k, n), "V": (n, p)}, lambda g, x, u, v: x @ (u @ v), candidate)


@claim(m=2, k=3, n=2)
def the_sum_of_all_products(m: int = 96, k: int = 320, n: int = 64) -> Pair:
    def program(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return g.reduction(g.reduction(x @ y, 0), 1)

    return pair({"X": (m, k), "Y": (k, n)}, program, lambda g, x, y: g.reduction(x, 0) @ g.reduction(y, 1))


@claim(m=3, n=2)
def the_trace_of_a_product(m: int = 96, n: int = 320) -> Pair:
    def total(g: Graph, x: Tensor) -> Tensor:
        return g.reduction(g.reduction(x, 0), 1)

    def program(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return total(g, x * g.transpose(y, 0, 1))

    return pair({"X": (m, n), "Y": (n, m)}, program, lambda g, x, y: total(g, g.transpose(x, 0, 1) * y))


@claim(m=2, k=3, n=2)
def diagonal_factors_on_both_sides(m: int = 96, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"r": (m, 1), "X": (m, k), "d": (1, k), "Y": (k, n), "c": (1, n)},
        lambda g, r, x, d, y, c: (r * x * d) @ (y * c),
        lambda g, r, x, d, y, c: r * (x @ (g.transpose(d, 0, 1) * y)) * c,
    )


@claim(m=2, k=3, n=2)
def divided_rows(m: int = 96, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"X": (m, k), "s": (m, 1), "Y": (k, n)},
        lambda g, x, s, y: (x / g.exp(s)) @ y,
        lambda g, x, s, y: (x @ y) * g.exp(-s),
    )


@claim(m=2, k=3)
def one_column_is_a_weighted_sum(m: int = 96, k: int = 320) -> Pair:
    return pair(
        {"X": (m, k), "y": (k, 1)},
        lambda g, x, y: x @ y,
        lambda g, x, y: g.reduction(x * g.transpose(y, 0, 1), 1),
    )


@claim(m=3, n=2)
def an_outer_product_is_a_broadcast(m: int = 96, n: int = 320) -> Pair:
    return pair({"x": (m, 1), "y": (1, n)}, lambda g, x, y: x @ y, lambda g, x, y: x * y)
