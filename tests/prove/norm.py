"""RMSNorm and LayerNorm: before and after products, written out, folded into weights, split over blocks."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def xw(b: int, k: int, n: int) -> Shapes:
    return {"X": (b, k), "W": (k, n)}


def norm_linear(g: Graph, x: Tensor, w: Tensor) -> Tensor:
    return g.rms_norm(x) @ w


def rms(g: Graph, x: Tensor, dim: int = 1) -> Tensor:
    return g.sqrt(g.mean(g.square(x), dim))


def fused(g: Graph, x: Tensor, w: Tensor, grid: int, loop: int) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
        return t.forloop_accum(x @ w) / t.forloop_accum(x, "rms"), on(1)

    return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_division_comes_last(b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop))


@claim(b=2, k=6, n=6, grid=3, loop=2)
def the_division_comes_last_at_11008(
    b: int = 16, k: int = 11008, n: int = 11008, grid: int = 344, loop: int = 43
) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop))


@claim(b=2, k=3, n=2)
def the_division_comes_last_without_blocks(b: int = 16, k: int = 320, n: int = 96) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: (x @ w) / rms(g, x))


@claim(b=4, k=4, n=4, grid=2, rows=2, loop=2)
def the_mean_of_squares_by_hand(
    b: int = 16, k: int = 4096, n: int = 6144, grid: int = 48, rows: int = 4, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            squares = t.forloop_accum(t.reduction(t.scale(t.square(x), Fraction(1, k)), 1))
            return t.forloop_accum(x @ w) / t.sqrt(squares), on(1, 0)

        return kernel(g, (grid, rows), [(x, on(y=0), 1), (w, on(1), 0)], body, loop)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_mean_of_squares_in_a_thread_graph(
    b: int = 16, k: int = 4096, n: int = 6144, grid: int = 48, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            squares = t.forloop_accum(t.scale(t.square(x), Fraction(1, k)), "sum")
            return t.forloop_accum(x @ w) / t.sqrt(squares), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)

    left, right = pair(xw(b, k, n), norm_linear, candidate)
    return left, fuse_threads(right)


@claim(b=2, k=4, n=3, split=2)
def the_inner_dim_split_over_blocks(b: int = 16, k: int = 4096, n: int = 320, split: int = 16) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x @ w), on(1)), (t.forloop_accum(t.square(x), "sum"), on(1))]

        parts, squares = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)
        whole = g.reshape(g.reduction(g.reshape(parts, b, split, n), 1), b, n)
        return whole / g.sqrt(g.scale(g.reduction(squares, 1), Fraction(1, k)))

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=2, split=2)
def partial_sums_in_a_second_kernel(b: int = 16, k: int = 4096, n: int = 64, split: int = 32) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x @ w), on(1)), (t.forloop_accum(t.square(x), "mean"), on(1))]

        parts, squares = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)

        def combine(t: BlockBuilder, parts: BlockTensor, squares: BlockTensor) -> Saved:
            return t.forloop_accum(parts, "sum_todimx") / t.sqrt(t.forloop_accum(squares, "mean")), on(0)

        return kernel(g, (b,), [(parts, on(0)), (squares, on(0))], combine, dimx=n)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=3, n=2)
def gamma_folded_into_the_weight(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    def program(g: Graph, x: Tensor, gamma: Tensor, w: Tensor) -> Tensor:
        return g.rms_norm(x, weight=gamma) @ w

    def candidate(g: Graph, x: Tensor, gamma: Tensor, w: Tensor) -> Tensor:
        return (x @ (g.reshape(gamma, k, 1) * w)) / rms(g, x)

    return pair({"X": (b, k), "gamma": (k,), "W": (k, n)}, program, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def gamma_in_the_loop(b: int = 16, k: int = 4096, n: int = 11008, grid: int = 43, loop: int = 32) -> Pair:
    def program(g: Graph, x: Tensor, gamma: Tensor, w: Tensor) -> Tensor:
        return g.rms_norm(x, weight=gamma) @ w

    def candidate(g: Graph, x: Tensor, gamma: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, gamma: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum((x * gamma) @ w) / t.forloop_accum(x, "rms"), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (g.reshape(gamma, 1, k), on(), 1), (w, on(1), 0)], body, loop)

    return pair({"X": (b, k), "gamma": (k,), "W": (k, n)}, program, candidate)


@claim(b=2, k=3, n=2)
def an_eps_from_the_norm(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    eps = Fraction(1, 100000)

    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        return g.rms_norm(x, eps=eps) @ g.scale(w, 2)

    return pair(xw(b, k, n), lambda g, x, w: g.scale(g.rms_norm(x, eps=eps) @ w, 2), candidate)


@claim(b=2, k=4, n=2, grid=2)
def an_eps_in_a_block(b: int = 16, k: int = 320, n: int = 6144, grid: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum(t.rms_norm(x, dim=1, eps=0.001) @ w), on(1)

        return kernel(g, (grid,), [(x, on()), (w, on(1))], body)

    return pair(xw(b, k, n), lambda g, x, w: g.rms_norm(x, eps=0.001) @ w, candidate)


@claim(b=3, k=4)
def the_eps_grows_with_the_scale(b: int = 16, k: int = 4096) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, 2), eps=0.04),
        lambda g, x: g.rms_norm(x, eps=0.01),
    )


@claim(b=3, k=4)
def positive_factors_cancel(b: int = 16, k: int = 4096) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(g.scale(x, 3)), lambda g, x: g.rms_norm(x))


@claim(b=3, k=4)
def negative_factors_change_the_sign(b: int = 16, k: int = 4096) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(-x), lambda g, x: -g.rms_norm(x))


@claim(b=3, k=4)
def positive_row_factors_cancel(b: int = 16, k: int = 4096) -> Pair:
    return pair(
        {"X": (b, k), "s": (b, 1)},
        lambda g, x, s: g.rms_norm(g.exp(s) * x),
        lambda g, x, s: g.rms_norm(x),
    )


@claim(b=3, k=4)
def twice_is_once(b: int = 16, k: int = 4096) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(g.rms_norm(x)), lambda g, x: g.rms_norm(x))


@claim(b=3, k=4)
def the_mean_square_of_the_result_is_one(b: int = 16, k: int = 320) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        y = g.rms_norm(x)
        return y / g.mean(g.square(y), 1)

    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(x), candidate)


@claim(b=3, k=4, root=2)
def by_the_euclidean_length(b: int = 16, k: int = 4096, root: int = 64) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(x),
        lambda g, x: g.scale(x, root) / g.sqrt(g.reduction(g.square(x), 1)),
    )


@claim(b=3, k=3)
def by_the_euclidean_length_of_a_scaled_row(b: int = 16, k: int = 6144) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(x),
        lambda g, x: x / g.sqrt(g.scale(g.reduction(g.square(x), 1), Fraction(1, k))),
    )


@claim(b=3, k=4)
def squares_by_a_product_with_itself(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        row, column = g.reshape(x, b, 1, k), g.reshape(x, b, k, 1)
        return x / g.sqrt(g.reshape(g.scale(row @ column, Fraction(1, k)), b, 1))

    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(x), candidate)


@claim(b=2, k=3, n=2)
def along_the_columns_of_a_transpose(b: int = 16, k: int = 320, n: int = 96) -> Pair:
    return pair(
        xw(b, k, n),
        norm_linear,
        lambda g, x, w: g.transpose(g.transpose(w, 0, 1) @ g.rms_norm(g.transpose(x, 0, 1), dim=0), 0, 1),
    )


@claim(b=2, k=3, n=2)
def of_a_residual(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    def candidate(g: Graph, x: Tensor, r: Tensor, w: Tensor) -> Tensor:
        s = x + r
        return (x @ w + r @ w) / rms(g, s)

    return pair({"X": (b, k), "R": (b, k), "W": (k, n)}, lambda g, x, r, w: g.rms_norm(x + r) @ w, candidate)


@claim(b=3, k=4)
def squares_of_a_residual_opened(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor, r: Tensor) -> Tensor:
        squares = g.mean(g.square(x), 1) + g.scale(g.mean(x * r, 1), 2) + g.mean(g.square(r), 1)
        return x / g.sqrt(squares) + r / g.sqrt(squares)

    return pair({"X": (b, k), "R": (b, k)}, lambda g, x, r: g.rms_norm(x + r), candidate)


@claim(b=2, h=2, d=3)
def per_head(b: int = 16, h: int = 32, d: int = 96) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        x3 = g.reshape(x, b, h, d)
        return g.reshape(x3 / rms(g, x3, 2), b * h, d)

    return pair({"X": (b, h * d)}, lambda g, x: g.rms_norm(g.reshape(x, b * h, d)), candidate)


@claim(b=4, n=3, grid=2)
def of_a_normalised_step(b: int = 16, n: int = 4096, grid: int = 16) -> Pair:
    def program(g: Graph, x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
        return g.rms_norm(x + alpha * (g.rms_norm(h) + x))

    def candidate(g: Graph, x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, h: BlockTensor, alpha: BlockTensor) -> Saved:
            x, h, alpha = (t.forloop_accum(item) for item in (x, h, alpha))
            return t.rms_norm(x + alpha * (t.rms_norm(h, dim=1) + x), dim=1), on(0)

        return kernel(g, (grid,), [(item, on(0)) for item in (x, h, alpha)], body)

    return pair({"X": (b, n), "H": (b, n), "alpha": (b, n)}, program, candidate)


@claim(b=2, n=3)
def of_a_normalised_step_opened(b: int = 8, n: int = 4096) -> Pair:
    def program(g: Graph, x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
        return g.rms_norm(x + alpha * (g.rms_norm(h) + x))

    def candidate(g: Graph, x: Tensor, h: Tensor, alpha: Tensor) -> Tensor:
        step = alpha * (h / rms(g, h)) + alpha * x + x
        return step / rms(g, step)

    return pair({"X": (b, n), "H": (b, n), "alpha": (b, n)}, program, candidate)


@claim(b=3, k=4)
def variance_by_two_moments(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        return g.sub(x, mean) / g.sqrt(g.sub(g.mean(g.square(x), 1), g.square(mean)))

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=4, k=4, grid=2, loop=2)
def moments_in_one_kernel(b: int = 96, k: int = 6144, grid: int = 12, loop: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x, "mean"), on(0)), (t.forloop_accum(t.square(x), "mean"), on(0))]

        mean, squares = kernel(g, (grid,), [(x, on(0), 1)], body, loop)
        return g.sub(x, mean) / g.sqrt(g.sub(squares, g.square(mean)))

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=3, k=4)
def layer_norm_ignores_a_shift(b: int = 16, k: int = 4096) -> Pair:
    return pair(
        {"X": (b, k), "c": (b, 1)},
        lambda g, x, c: g.layer_norm(x + c, eps=0.01),
        lambda g, x, c: g.layer_norm(x, eps=0.01),
    )


@claim(b=3, k=4)
def layer_norm_is_rms_norm_of_the_centred_row(b: int = 16, k: int = 320) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.layer_norm(x, eps=0.01),
        lambda g, x: g.rms_norm(g.sub(x, g.mean(x, 1)), eps=0.01),
    )


@claim(b=2, k=3, n=2)
def layer_norm_and_linear_by_column_sums(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        below = g.sqrt(g.sub(g.mean(g.square(x), 1), g.square(mean)))
        return g.sub(x @ w, mean * g.reduction(w, 0)) / below

    return pair(xw(b, k, n), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def layer_norm_and_linear_in_one_kernel(
    b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            mean, squares = t.forloop_accum(x, "mean"), t.forloop_accum(t.square(x), "mean")
            centred = t.sub(t.forloop_accum(x @ w), mean * t.forloop_accum(t.reduction(w, 0)))
            return centred / t.sqrt(t.sub(squares, t.square(mean))), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)

    return pair(xw(b, k, n), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=3, n=2)
def gamma_and_beta_folded_into_the_linear_layer(b: int = 16, k: int = 4096, n: int = 320) -> Pair:
    def program(g: Graph, x: Tensor, gamma: Tensor, beta: Tensor, w: Tensor) -> Tensor:
        return g.layer_norm(x, weight=gamma, bias=beta, eps=0.01) @ w

    def candidate(g: Graph, x: Tensor, gamma: Tensor, beta: Tensor, w: Tensor) -> Tensor:
        scaled = g.reshape(gamma, k, 1) * w
        return g.layer_norm(x, eps=0.01) @ scaled + g.reshape(beta, 1, k) @ w

    return pair({"X": (b, k), "gamma": (k,), "beta": (k,), "W": (k, n)}, program, candidate)


@claim(b=3, k=4)
def cosine_similarity(b: int = 96, k: int = 320) -> Pair:
    def program(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return g.reduction(g.rms_norm(x) * g.rms_norm(y), 1)

    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return g.scale(g.reduction(x * y, 1), k) / (
            g.sqrt(g.reduction(g.square(x), 1)) * g.sqrt(g.reduction(g.square(y), 1))
        )

    return pair({"X": (b, k), "Y": (b, k)}, program, candidate)


@claim(b=3, k=4)
def two_roots_are_one(b: int = 96, k: int = 320) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        return (x * y) / g.sqrt(g.mean(g.square(x), 1) * g.mean(g.square(y), 1))

    return pair({"X": (b, k), "Y": (b, k)}, lambda g, x, y: g.rms_norm(x) * g.rms_norm(y), candidate)


@claim(b=3, k=4, n=5)
def a_scale_by_the_root_of_the_head_dim(b: int = 16, k: int = 128, n: int = 4096) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: g.rms_norm(g.scale(x, k**-0.5)) @ w,
        lambda g, x, w: g.scale((x @ w) / rms(g, x), 1),
    )


@claim(b=3, k=4)
def an_eps_of_float32_scaled_with_its_tensor(b: int = 16, k: int = 4096) -> Pair:
    eps, third = Fraction("9.999999747378752e-06"), Fraction("0.3333333333333333")
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, third), eps=third**2 * eps),
        lambda g, x: g.rms_norm(x, eps=eps),
    )
