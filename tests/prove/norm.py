"""RMSNorm and LayerNorm: before and after products, written out, folded into weights, split over blocks."""

from fractions import Fraction

from mirage_formal.search.thread import fuse_threads
from tests.kit.proofs.claims import claim, kernel, on, pair


def xw(b, k, n):
    return {"X": (b, k), "W": (k, n)}


def norm_linear(g, x, w):
    return g.rms_norm(x) @ w


def rms(g, x, dim=1):
    return g.sqrt(g.mean(g.square(x), dim))


def fused(g, x, w, grid, loop):
    def body(t, x, w):
        return t.forloop_accum(x @ w) / t.forloop_accum(x, "rms"), on(1)

    return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_division_comes_last(b=16, k=4096, n=6144, grid=96, loop=64):
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop))


@claim(b=2, k=6, n=6, grid=3, loop=2)
def the_division_comes_last_at_11008(b=16, k=11008, n=11008, grid=344, loop=43):
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop))


@claim(b=2, k=3, n=2)
def the_division_comes_last_without_blocks(b=16, k=320, n=96):
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: (x @ w) / rms(g, x))


@claim(b=4, k=4, n=4, grid=2, rows=2, loop=2)
def the_mean_of_squares_by_hand(b=16, k=4096, n=6144, grid=48, rows=4, loop=64):
    def candidate(g, x, w):
        def body(t, x, w):
            squares = t.forloop_accum(t.reduction(t.scale(t.square(x), Fraction(1, k)), 1))
            return t.forloop_accum(x @ w) / t.sqrt(squares), on(1, 0)

        return kernel(g, (grid, rows), [(x, on(y=0), 1), (w, on(1), 0)], body, loop)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_mean_of_squares_in_a_thread_graph(b=16, k=4096, n=6144, grid=48, loop=64):
    def candidate(g, x, w):
        def body(t, x, w):
            squares = t.forloop_accum(t.scale(t.square(x), Fraction(1, k)), "sum")
            return t.forloop_accum(x @ w) / t.sqrt(squares), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)

    left, right = pair(xw(b, k, n), norm_linear, candidate)
    return left, fuse_threads(right)


@claim(b=2, k=4, n=3, split=2)
def the_inner_dim_split_over_blocks(b=16, k=4096, n=320, split=16):
    def candidate(g, x, w):
        def body(t, x, w):
            return [(t.forloop_accum(x @ w), on(1)), (t.forloop_accum(t.square(x), "sum"), on(1))]

        parts, squares = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)
        whole = g.reshape(g.reduction(g.reshape(parts, b, split, n), 1), b, n)
        return whole / g.sqrt(g.scale(g.reduction(squares, 1), Fraction(1, k)))

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=2, split=2)
def partial_sums_in_a_second_kernel(b=16, k=4096, n=64, split=32):
    def candidate(g, x, w):
        def body(t, x, w):
            return [(t.forloop_accum(x @ w), on(1)), (t.forloop_accum(t.square(x), "mean"), on(1))]

        parts, squares = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)

        def combine(t, parts, squares):
            return t.forloop_accum(parts, "sum_todimx") / t.sqrt(t.forloop_accum(squares, "mean")), on(0)

        return kernel(g, (b,), [(parts, on(0)), (squares, on(0))], combine, dimx=n)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=3, n=2)
def gamma_folded_into_the_weight(b=16, k=4096, n=6144):
    def program(g, x, gamma, w):
        return g.rms_norm(x, weight=gamma) @ w

    def candidate(g, x, gamma, w):
        return (x @ (g.reshape(gamma, k, 1) * w)) / rms(g, x)

    return pair({"X": (b, k), "gamma": (k,), "W": (k, n)}, program, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def gamma_in_the_loop(b=16, k=4096, n=11008, grid=43, loop=32):
    def program(g, x, gamma, w):
        return g.rms_norm(x, weight=gamma) @ w

    def candidate(g, x, gamma, w):
        def body(t, x, gamma, w):
            return t.forloop_accum((x * gamma) @ w) / t.forloop_accum(x, "rms"), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (g.reshape(gamma, 1, k), on(), 1), (w, on(1), 0)], body, loop)

    return pair({"X": (b, k), "gamma": (k,), "W": (k, n)}, program, candidate)


@claim(b=2, k=3, n=2)
def an_eps_from_the_norm(b=16, k=4096, n=6144):
    eps = Fraction(1, 100000)

    def candidate(g, x, w):
        return g.rms_norm(x, eps=eps) @ g.scale(w, 2)

    return pair(xw(b, k, n), lambda g, x, w: g.scale(g.rms_norm(x, eps=eps) @ w, 2), candidate)


@claim(b=2, k=4, n=2, grid=2)
def an_eps_in_a_block(b=16, k=320, n=6144, grid=12):
    def candidate(g, x, w):
        def body(t, x, w):
            return t.forloop_accum(t.rms_norm(x, dim=1, eps=0.001) @ w), on(1)

        return kernel(g, (grid,), [(x, on()), (w, on(1))], body)

    return pair(xw(b, k, n), lambda g, x, w: g.rms_norm(x, eps=0.001) @ w, candidate)


@claim(b=3, k=4)
def the_eps_grows_with_the_scale(b=16, k=4096):
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, 2), eps=0.04),
        lambda g, x: g.rms_norm(x, eps=0.01),
    )


@claim(b=3, k=4)
def positive_factors_cancel(b=16, k=4096):
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(g.scale(x, 3)), lambda g, x: g.rms_norm(x))


@claim(b=3, k=4)
def negative_factors_change_the_sign(b=16, k=4096):
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(-x), lambda g, x: -g.rms_norm(x))


@claim(b=3, k=4)
def positive_row_factors_cancel(b=16, k=4096):
    return pair(
        {"X": (b, k), "s": (b, 1)},
        lambda g, x, s: g.rms_norm(g.exp(s) * x),
        lambda g, x, s: g.rms_norm(x),
    )


@claim(b=3, k=4)
def twice_is_once(b=16, k=4096):
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(g.rms_norm(x)), lambda g, x: g.rms_norm(x))


@claim(b=3, k=4)
def the_mean_square_of_the_result_is_one(b=16, k=320):
    def candidate(g, x):
        y = g.rms_norm(x)
        return y / g.mean(g.square(y), 1)

    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(x), candidate)


@claim(b=3, k=4, root=2)
def by_the_euclidean_length(b=16, k=4096, root=64):
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(x),
        lambda g, x: g.scale(x, root) / g.sqrt(g.reduction(g.square(x), 1)),
    )


@claim(b=3, k=3)
def by_the_euclidean_length_of_a_scaled_row(b=16, k=6144):
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(x),
        lambda g, x: x / g.sqrt(g.scale(g.reduction(g.square(x), 1), Fraction(1, k))),
    )


@claim(b=3, k=4)
def squares_by_a_product_with_itself(b=16, k=4096):
    def candidate(g, x):
        row, column = g.reshape(x, b, 1, k), g.reshape(x, b, k, 1)
        return x / g.sqrt(g.reshape(g.scale(row @ column, Fraction(1, k)), b, 1))

    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(x), candidate)


@claim(b=2, k=3, n=2)
def along_the_columns_of_a_transpose(b=16, k=320, n=96):
    return pair(
        xw(b, k, n),
        norm_linear,
        lambda g, x, w: g.transpose(g.transpose(w, 0, 1) @ g.rms_norm(g.transpose(x, 0, 1), dim=0), 0, 1),
    )


@claim(b=2, k=3, n=2)
def of_a_residual(b=16, k=4096, n=6144):
    def candidate(g, x, r, w):
        s = x + r
        return (x @ w + r @ w) / rms(g, s)

    return pair({"X": (b, k), "R": (b, k), "W": (k, n)}, lambda g, x, r, w: g.rms_norm(x + r) @ w, candidate)


@claim(b=3, k=4)
def squares_of_a_residual_opened(b=16, k=4096):
    def candidate(g, x, r):
        squares = g.mean(g.square(x), 1) + g.scale(g.mean(x * r, 1), 2) + g.mean(g.square(r), 1)
        return x / g.sqrt(squares) + r / g.sqrt(squares)

    return pair({"X": (b, k), "R": (b, k)}, lambda g, x, r: g.rms_norm(x + r), candidate)


@claim(b=2, h=2, d=3)
def per_head(b=16, h=32, d=96):
    def candidate(g, x):
        x3 = g.reshape(x, b, h, d)
        return g.reshape(x3 / rms(g, x3, 2), b * h, d)

    return pair({"X": (b, h * d)}, lambda g, x: g.rms_norm(g.reshape(x, b * h, d)), candidate)


@claim(b=4, n=3, grid=2)
def of_a_normalised_step(b=16, n=4096, grid=16):
    def program(g, x, h, alpha):
        return g.rms_norm(x + alpha * (g.rms_norm(h) + x))

    def candidate(g, x, h, alpha):
        def body(t, x, h, alpha):
            x, h, alpha = (t.forloop_accum(item) for item in (x, h, alpha))
            return t.rms_norm(x + alpha * (t.rms_norm(h, dim=1) + x), dim=1), on(0)

        return kernel(g, (grid,), [(item, on(0)) for item in (x, h, alpha)], body)

    return pair({"X": (b, n), "H": (b, n), "alpha": (b, n)}, program, candidate)


@claim(b=2, n=3)
def of_a_normalised_step_opened(b=8, n=4096):
    def program(g, x, h, alpha):
        return g.rms_norm(x + alpha * (g.rms_norm(h) + x))

    def candidate(g, x, h, alpha):
        step = alpha * (h / rms(g, h)) + alpha * x + x
        return step / rms(g, step)

    return pair({"X": (b, n), "H": (b, n), "alpha": (b, n)}, program, candidate)


@claim(b=3, k=4)
def variance_by_two_moments(b=16, k=4096):
    def candidate(g, x):
        mean = g.mean(x, 1)
        return g.sub(x, mean) / g.sqrt(g.sub(g.mean(g.square(x), 1), g.square(mean)))

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=4, k=4, grid=2, loop=2)
def moments_in_one_kernel(b=96, k=6144, grid=12, loop=12):
    def candidate(g, x):
        def body(t, x):
            return [(t.forloop_accum(x, "mean"), on(0)), (t.forloop_accum(t.square(x), "mean"), on(0))]

        mean, squares = kernel(g, (grid,), [(x, on(0), 1)], body, loop)
        return g.sub(x, mean) / g.sqrt(g.sub(squares, g.square(mean)))

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=3, k=4)
def layer_norm_ignores_a_shift(b=16, k=4096):
    return pair(
        {"X": (b, k), "c": (b, 1)},
        lambda g, x, c: g.layer_norm(x + c, eps=0.01),
        lambda g, x, c: g.layer_norm(x, eps=0.01),
    )


@claim(b=3, k=4)
def layer_norm_is_rms_norm_of_the_centred_row(b=16, k=320):
    return pair(
        {"X": (b, k)},
        lambda g, x: g.layer_norm(x, eps=0.01),
        lambda g, x: g.rms_norm(g.sub(x, g.mean(x, 1)), eps=0.01),
    )


@claim(b=2, k=3, n=2)
def layer_norm_and_linear_by_column_sums(b=16, k=4096, n=6144):
    def candidate(g, x, w):
        mean = g.mean(x, 1)
        below = g.sqrt(g.sub(g.mean(g.square(x), 1), g.square(mean)))
        return g.sub(x @ w, mean * g.reduction(w, 0)) / below

    return pair(xw(b, k, n), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=4, n=4, grid=2, loop=2)
def layer_norm_and_linear_in_one_kernel(b=16, k=4096, n=6144, grid=96, loop=64):
    def candidate(g, x, w):
        def body(t, x, w):
            mean, squares = t.forloop_accum(x, "mean"), t.forloop_accum(t.square(x), "mean")
            centred = t.sub(t.forloop_accum(x @ w), mean * t.forloop_accum(t.reduction(w, 0)))
            return centred / t.sqrt(t.sub(squares, t.square(mean))), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)

    return pair(xw(b, k, n), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=3, n=2)
def gamma_and_beta_folded_into_the_linear_layer(b=16, k=4096, n=320):
    def program(g, x, gamma, beta, w):
        return g.layer_norm(x, weight=gamma, bias=beta, eps=0.01) @ w

    def candidate(g, x, gamma, beta, w):
        scaled = g.reshape(gamma, k, 1) * w
        return g.layer_norm(x, eps=0.01) @ scaled + g.reshape(beta, 1, k) @ w

    return pair({"X": (b, k), "gamma": (k,), "beta": (k,), "W": (k, n)}, program, candidate)


@claim(b=3, k=4)
def cosine_similarity(b=96, k=320):
    def program(g, x, y):
        return g.reduction(g.rms_norm(x) * g.rms_norm(y), 1)

    def candidate(g, x, y):
        return g.scale(g.reduction(x * y, 1), k) / (
            g.sqrt(g.reduction(g.square(x), 1)) * g.sqrt(g.reduction(g.square(y), 1))
        )

    return pair({"X": (b, k), "Y": (b, k)}, program, candidate)


@claim(b=3, k=4)
def two_roots_are_one(b=96, k=320):
    def candidate(g, x, y):
        return (x * y) / g.sqrt(g.mean(g.square(x), 1) * g.mean(g.square(y), 1))

    return pair({"X": (b, k), "Y": (b, k)}, lambda g, x, y: g.rms_norm(x) * g.rms_norm(y), candidate)


@claim(b=3, k=4, n=5)
def a_scale_by_the_root_of_the_head_dim(b=16, k=128, n=4096):
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: g.rms_norm(g.scale(x, k**-0.5)) @ w,
        lambda g, x, w: g.scale((x @ w) / rms(g, x), 1),
    )


@claim(b=3, k=4)
def an_eps_of_float32_scaled_with_its_tensor(b=16, k=4096):
    eps, third = Fraction("9.999999747378752e-06"), Fraction("0.3333333333333333")
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, third), eps=third**2 * eps),
        lambda g, x: g.rms_norm(x, eps=eps),
    )
