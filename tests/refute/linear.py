"""Wrong products, adapters and latent projections."""

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def adapter_inputs(m: int, k: int, n: int, r: int) -> Shapes:
    return {"X": (m, k), "W": (k, n), "A": (k, r), "B": (r, n)}


def adapter(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return x @ w + (x @ a) @ b


@claim(n=3)
def factors_exchanged(n: int = 4096) -> Pair:
    return pair({"A": (n, n), "B": (n, n)}, lambda g, a, b: a @ b, lambda g, a, b: b @ a)


@claim(n=3)
def a_factor_transposed(n: int = 4096) -> Pair:
    return pair({"A": (n, n), "B": (n, n)}, lambda g, a, b: a @ b, lambda g, a, b: a @ g.transpose(b, 0, 1))


@claim(n=3)
def a_transposed_product_in_the_old_order(n: int = 4096) -> Pair:
    return pair(
        {"A": (n, n), "B": (n, n)},
        lambda g, a, b: g.transpose(a @ b, 0, 1),
        lambda g, a, b: g.transpose(a, 0, 1) @ g.transpose(b, 0, 1),
    )


@claim(n=3)
def a_chain_in_another_order(n: int = 320) -> Pair:
    return pair(
        {"A": (n, n), "B": (n, n), "C": (n, n)},
        lambda g, a, b, c: (a @ b) @ c,
        lambda g, a, b, c: (a @ c) @ b,
    )


@claim(n=3)
def a_product_element_by_element(n: int = 320) -> Pair:
    return pair({"A": (n, n), "B": (n, n)}, lambda g, a, b: a @ b, lambda g, a, b: a * b)


@claim(n=3)
def the_square_of_a_sum_without_the_other_cross_term(n: int = 320) -> Pair:
    return pair(
        {"A": (n, n), "B": (n, n)},
        lambda g, a, b: (a + b) @ (a + b),
        lambda g, a, b: a @ a + g.scale(a @ b, 2) + b @ b,
    )


@claim(m=3, k=3)
def a_sum_moved_out_of_a_product(m: int = 96, k: int = 4096) -> Pair:
    """sum_k x_k y_k is no (sum_k x_k) (sum_k y_k)."""
    return pair(
        {"X": (m, k), "Y": (m, k)},
        lambda g, x, y: g.reduction(x * y, 1),
        lambda g, x, y: g.reduction(x, 1) * g.reduction(y, 1),
    )


@claim(m=3, k=4, n=2)
def a_weight_of_the_inner_index_taken_out(m: int = 96, k: int = 96, n: int = 96) -> Pair:
    return pair(
        {"X": (m, k), "d": (1, k), "W": (k, n)},
        lambda g, x, d, w: (x * d) @ w,
        lambda g, x, d, w: (x @ w) * g.mean(d, 1),
    )


@claim(m=2, k=3)
def row_factors_on_the_columns(m: int = 96, k: int = 320) -> Pair:
    return pair(
        {"r": (1, m), "X": (m, k), "W": (k, m)},
        lambda g, r, x, w: r * (x @ w),
        lambda g, r, x, w: g.transpose(r, 0, 1) * (x @ w),
    )


@claim(n=3)
def the_wrong_axis_contracted(n: int = 4096) -> Pair:
    return pair(
        {"X": (n, n), "w": (n, 1)},
        lambda g, x, w: x @ w,
        lambda g, x, w: g.transpose(g.reduction(x * w, 0), 0, 1),
    )


@claim(n=3)
def a_diagonal_summed_instead_of_all(n: int = 96) -> Pair:
    return pair(
        {"X": (n, n), "Y": (n, n)},
        lambda g, x, y: g.reduction(g.reduction(x @ y, 0), 1),
        lambda g, x, y: g.reduction(g.reduction(x * g.transpose(y, 0, 1), 0), 1),
    )


@claim(m=2, k=3, n=2)
def parts_of_one_factor_exchanged(m: int = 16, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"A1": (m, k), "A2": (m, k), "B1": (k, n), "B2": (k, n)},
        lambda g, a1, a2, b1, b2: g.concat(a1, a2, 1) @ g.concat(b1, b2, 0),
        lambda g, a1, a2, b1, b2: g.concat(a1, a2, 1) @ g.concat(b2, b1, 0),
    )


@claim(m=2, k=3, n=2)
def one_part_left_out(m: int = 16, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"A1": (m, k), "A2": (m, k), "B1": (k, n), "B2": (k, n)},
        lambda g, a1, a2, b1, b2: g.concat(a1, a2, 1) @ g.concat(b1, b2, 0),
        lambda g, a1, a2, b1, b2: a1 @ b1 + a2 @ b1,
    )


@claim(n=2)
def seven_products_with_a_wrong_sign(n: int = 2048) -> Pair:
    def program(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        return g.concat(g.concat(a @ e + b @ h, a @ f + b @ k, 1), g.concat(c @ e + d @ h, c @ f + d @ k, 1), 0)

    def candidate(
        g: Graph, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, h: Tensor, k: Tensor
    ) -> Tensor:
        m1, m2, m3 = (a + d) @ (e + k), (c + d) @ e, a @ g.sub(f, k)
        m4, m5 = d @ g.sub(h, e), (a + b) @ k
        m6, m7 = g.sub(c, a) @ (e + f), g.sub(b, d) @ (h + k)
        top = g.concat(g.sub(m1 + m4, m5) + m7, m3 + m5, 1)
        return g.concat(top, g.concat(g.sub(m2, m4), g.sub(m1 + m3, m2) + m6, 1), 0)

    return pair({f"M{i}": (n, n) for i in range(8)}, program, candidate)


@claim(m=2, k=3, n=2)
def a_complex_product_without_a_minus(m: int = 96, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"Xr": (m, k), "Xi": (m, k), "Yr": (k, n), "Yi": (k, n)},
        lambda g, xr, xi, yr, yi: (g.sub(xr @ yr, xi @ yi), xr @ yi + xi @ yr),
        lambda g, xr, xi, yr, yi: (xr @ yr + xi @ yi, xr @ yi + xi @ yr),
    )


@claim(m=2, k=3, n=2)
def outputs_swapped(m: int = 96, k: int = 320, n: int = 64) -> Pair:
    return pair(
        {"X": (m, k), "U": (k, n), "V": (k, n)},
        lambda g, x, u, v: (x @ u, x @ v),
        lambda g, x, u, v: tuple(reversed((x @ u, x @ v))),
    )


@claim(m=2, k=4, n=4, grid=2, loop=2)
def outputs_of_a_kernel_swapped(m: int = 16, k: int = 4096, n: int = 4096, grid: int = 64, loop: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor, u: Tensor, v: Tensor) -> list[Tensor]:
        def body(t: BlockBuilder, x: BlockTensor, u: BlockTensor, v: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x @ v), on(1)), (t.forloop_accum(x @ u), on(1))]

        return kernel(g, (grid,), [(x, on(), 1), (u, on(1), 0), (v, on(1), 0)], body, loop)

    return pair({"X": (m, k), "U": (k, n), "V": (k, n)}, lambda g, x, u, v: (x @ u, x @ v), candidate)


@claim(m=2, k=3, n=2, r=2)
def the_adapter_left_out(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(adapter_inputs(m, k, n, r), adapter, lambda g, x, w, a, b: x @ w)


@claim(m=2, k=3, n=2, r=2)
def the_adapter_subtracted(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(adapter_inputs(m, k, n, r), adapter, lambda g, x, w, a, b: g.sub(x @ w, (x @ a) @ b))


@claim(m=2, k=3, n=2)
def concatenations_in_different_orders(m: int = 16, k: int = 256, n: int = 4096) -> Pair:
    return pair(
        adapter_inputs(m, k, n, k),
        adapter,
        lambda g, x, w, a, b: g.concat(x, x @ a, 1) @ g.concat(b, w, 0),
    )


@claim(m=2, k=4, n=4, r=2, grid=2, loop=2)
def the_adapter_summed_once_per_iteration(
    m: int = 16, k: int = 256, n: int = 4096, r: int = 16, grid: int = 64, loop: int = 4
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        xa = x @ a

        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, xa: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w + xa @ b), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0), (xa, on()), (b, on(1))], body, loop)

    return pair(adapter_inputs(m, k, n, r), adapter, candidate)


@claim(m=2, k=4, n=4, r=2, loop=2)
def both_factors_of_the_adapter_looped(m: int = 16, k: int = 256, n: int = 4096, r: int = 16, loop: int = 4) -> Pair:
    """The rank is split by the loop together with the inner dim: cross terms are lost."""

    def candidate(g: Graph, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor, a: BlockTensor, b: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w) + t.forloop_accum(t.reduction(x @ a, 1) * t.reduction(b, 0)), on(1)

        reads = [(x, on(), 1), (w, on(), 0), (a, on(), 0), (b, on(), 0)]
        return kernel(g, (1,), reads, body, loop)

    return pair(adapter_inputs(m, k, n, r), adapter, candidate)


@claim(m=2, k=3, n=2, r=2)
def the_scale_on_the_wrong_summand(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    return pair(
        adapter_inputs(m, k, n, r),
        lambda g, x, w, a, b: x @ w + g.scale((x @ a) @ b, 2),
        lambda g, x, w, a, b: g.scale(x @ w, 2) + (x @ a) @ b,
    )


@claim(m=2, k=3, n=2, r=2)
def two_adapters_without_their_own_factors(m: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> Pair:
    inputs = {"X": (m, k), "A1": (k, r), "A2": (k, r), "B1": (r, n), "B2": (r, n)}
    return pair(
        inputs,
        lambda g, x, a1, a2, b1, b2: (x @ a1) @ b1 + (x @ a2) @ b2,
        lambda g, x, a1, a2, b1, b2: (x @ (a1 + a2)) @ (b1 + b2),
    )


@claim(h=2, m=2, d=2, n=3)
def a_projection_absorbed_without_a_transpose(h: int = 16, m: int = 16, d: int = 128, n: int = 4096) -> Pair:
    def program(g: Graph, q: Tensor, c: Tensor, u: Tensor) -> Tensor:
        return q @ g.transpose(c @ u, 1, 2)

    inputs = {"Q": (h, m, d), "C": (h, n, d), "Uk": (h, d, d)}
    return pair(inputs, program, lambda g, q, c, u: (q @ u) @ g.transpose(c, 1, 2))


@claim(h=2, m=2, d=2, n=3)
def values_projected_by_the_projection_of_keys(h: int = 16, m: int = 16, d: int = 128, n: int = 4096) -> Pair:
    def attention(g: Graph, q: Tensor, c: Tensor, uk: Tensor, uv: Tensor, last: Tensor) -> Tensor:
        p = g.exp((q @ g.transpose(uk, 1, 2)) @ g.transpose(c, 1, 2))
        return ((p @ c) @ last) / g.reduction(p, 2)

    inputs = {"Q": (h, m, d), "C": (h, n, d), "Uk": (h, d, d), "Uv": (h, d, d)}
    return pair(
        inputs,
        lambda g, q, c, uk, uv: attention(g, q, c, uk, uv, uv),
        lambda g, q, c, uk, uv: attention(g, q, c, uk, uv, uk),
    )


@claim(m=2, a=5, b=1, n=2, loop=3)
def features_joined_in_another_order_before_a_loop(
    m: int = 16, a: int = 4000, b: int = 96, n: int = 64, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, z: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum(z @ w), on()

        return kernel(g, (1,), [(g.concat(y, x, 1), on(), 1), (w, on(), 0)], body, loop)

    shapes = {"X": (m, a), "Y": (m, b), "W": (a + b, n)}
    return pair(shapes, lambda g, x, y, w: g.concat(x, y, 1) @ w, candidate)
