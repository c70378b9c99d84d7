"""Wrong norms: constants, eps, dims, roots and column sums."""

from collections.abc import Callable
from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, Shapes, claim, kernel, on, pair


def xw(b: int, k: int, n: int) -> Shapes:
    return {"X": (b, k), "W": (k, n)}


def norm_linear(g: Graph, x: Tensor, w: Tensor) -> Tensor:
    return g.rms_norm(x) @ w


def rms(g: Graph, x: Tensor, dim: int = 1) -> Tensor:
    return g.sqrt(g.mean(g.square(x), dim))


def fused(
    g: Graph, x: Tensor, w: Tensor, grid: int, loop: int, below: Callable[[BlockBuilder, BlockTensor], BlockTensor]
) -> Tensor:
    def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
        return t.forloop_accum(x @ w) / below(t, x), on(1)

    return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)


@claim(b=2, k=3, n=2)
def the_sum_for_the_mean(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: (x @ w) / g.sqrt(g.reduction(g.square(x), 1)))


@claim(b=2, k=3, n=2)
def no_root(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: (x @ w) / g.mean(g.square(x), 1))


@claim(b=2, k=3, n=2)
def the_mean_instead_of_its_square(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: (x @ w) / g.sqrt(g.square(g.mean(x, 1))))


@claim(b=3, k=3)
def over_the_rows(b: int = 96, k: int = 96) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(x), lambda g, x: g.rms_norm(x, dim=0))


@claim(b=2, k=3, n=2)
def norm_of_the_result(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: g.rms_norm(x @ w))


@claim(b=2, k=3, n=2)
def norm_of_the_weight(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), norm_linear, lambda g, x, w: x @ g.rms_norm(w, dim=0))


@claim(b=2, k=4, n=2)
def mean_over_another_number(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        xw(b, k, n),
        norm_linear,
        lambda g, x, w: (x @ w) / g.sqrt(g.scale(g.reduction(g.square(x), 1), Fraction(1, k // 2))),
    )


@claim(b=2, k=4, n=4, grid=2, loop=2)
def the_loop_is_not_part_of_the_mean(b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64) -> Pair:
    def below(t: BlockBuilder, x: BlockTensor) -> BlockTensor:
        return t.sqrt(t.forloop_accum(t.mean(t.square(x), 1)))

    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop, below))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def roots_summed_over_the_loop(b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64) -> Pair:
    def below(t: BlockBuilder, x: BlockTensor) -> BlockTensor:
        return t.forloop_accum(t.scale(t.sqrt(t.mean(t.square(x), 1)), Fraction(1, loop)))

    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop, below))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def mean_for_root_mean_square(b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64) -> Pair:
    def below(t: BlockBuilder, x: BlockTensor) -> BlockTensor:
        return t.sqrt(t.square(t.forloop_accum(x, "mean")))

    return pair(xw(b, k, n), norm_linear, lambda g, x, w: fused(g, x, w, grid, loop, below))


@claim(b=2, k=4, n=4, grid=2, loop=2)
def every_iteration_normalised_by_itself(
    b: int = 16, k: int = 4096, n: int = 6144, grid: int = 96, loop: int = 64
) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum(t.rms_norm(x, dim=1) @ w), on(1)

        return kernel(g, (grid,), [(x, on(), 1), (w, on(1), 0)], body, loop)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=3, split=2)
def every_part_normalised_by_its_own_squares(b: int = 16, k: int = 4096, n: int = 320, split: int = 16) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum(x @ w) / t.forloop_accum(x, "rms"), on(1)

        parts = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)
        return g.reshape(g.reduction(g.reshape(parts, b, split, n), 1), b, n)

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=4, n=3, split=2)
def squares_of_the_parts_not_added_up(b: int = 16, k: int = 4096, n: int = 320, split: int = 16) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, x: BlockTensor, w: BlockTensor) -> list[Saved]:
            return [(t.forloop_accum(x @ w), on(1)), (t.forloop_accum(t.square(x), "mean"), on(1))]

        parts, squares = kernel(g, (split,), [(x, on(1)), (w, on(0))], body)
        whole = g.reshape(g.reduction(g.reshape(parts, b, split, n), 1), b, n)
        return whole / g.sqrt(g.max(squares, 1))

    return pair(xw(b, k, n), norm_linear, candidate)


@claim(b=2, k=3, n=2)
def a_forgotten_eps(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(xw(b, k, n), lambda g, x, w: g.rms_norm(x, eps=0.01) @ w, norm_linear)


@claim(b=2, k=3, n=2)
def another_eps(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        xw(b, k, n),
        lambda g, x, w: g.rms_norm(x, eps=0.01) @ w,
        lambda g, x, w: g.rms_norm(x, eps=0.1) @ w,
    )


@claim(b=3, k=4)
def an_eps_that_does_not_grow_with_the_scale(b: int = 16, k: int = 4096) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, 2), eps=0.01),
        lambda g, x: g.rms_norm(x, eps=0.01),
    )


@claim(b=3, k=4)
def a_negative_factor_does_not_cancel(b: int = 16, k: int = 4096) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.rms_norm(g.scale(x, -2)), lambda g, x: g.rms_norm(x))


@claim(b=2, k=3, n=2)
def gamma_forgotten(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    inputs = {"X": (b, k), "gamma": (k,), "W": (k, n)}
    return pair(
        inputs,
        lambda g, x, gamma, w: g.rms_norm(x, weight=gamma) @ w,
        lambda g, x, gamma, w: g.rms_norm(x) @ w,
    )


@claim(b=2, k=3)
def gamma_on_the_columns_of_the_weight(b: int = 16, k: int = 96) -> Pair:
    inputs = {"X": (b, k), "gamma": (k,), "W": (k, k)}
    return pair(
        inputs,
        lambda g, x, gamma, w: g.rms_norm(x, weight=gamma) @ w,
        lambda g, x, gamma, w: g.rms_norm(x) @ (w * gamma),
    )


@claim(b=2, k=3, n=2)
def gamma_before_the_squares(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    inputs = {"X": (b, k), "gamma": (k,), "W": (k, n)}
    return pair(
        inputs,
        lambda g, x, gamma, w: g.rms_norm(x, weight=gamma) @ w,
        lambda g, x, gamma, w: g.rms_norm(x * gamma) @ w,
    )


@claim(b=3, k=4)
def no_mean_subtracted(b: int = 16, k: int = 4096) -> Pair:
    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x, eps=0.01), lambda g, x: g.rms_norm(x, eps=0.01))


@claim(b=3, k=4)
def second_moment_for_the_variance(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return g.sub(x, g.mean(x, 1)) / rms(g, x)

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=3, k=4)
def the_squared_mean_added(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        variance = g.mean(g.square(x), 1) + g.square(mean)
        return g.sub(x, mean) / g.sqrt(variance)

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=3, k=4)
def scaled_by_one_less_over_all(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return g.scale(g.layer_norm(x), Fraction(k - 1, k))

    return pair({"X": (b, k)}, lambda g, x: g.layer_norm(x), candidate)


@claim(b=2, k=4, n=2)
def column_sums_forgotten(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        return g.sub(x @ w, mean) / rms(g, g.sub(x, mean))

    return pair(xw(b, k, n), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=4)
def row_sums_of_the_weight(b: int = 16, k: int = 96) -> Pair:
    def candidate(g: Graph, x: Tensor, w: Tensor) -> Tensor:
        mean = g.mean(x, 1)
        rows = g.transpose(g.reduction(w, 1), 0, 1)
        return g.sub(x @ w, mean * rows) / rms(g, g.sub(x, mean))

    return pair(xw(b, k, k), lambda g, x, w: g.layer_norm(x) @ w, candidate)


@claim(b=2, k=4)
def beta_scaled_by_gamma(b: int = 16, k: int = 4096) -> Pair:
    inputs = {"X": (b, k), "gamma": (k,), "beta": (k,)}
    return pair(
        inputs,
        lambda g, x, gamma, beta: g.layer_norm(x, weight=gamma, bias=beta, eps=0.01),
        lambda g, x, gamma, beta: (g.layer_norm(x, eps=0.01) + beta) * gamma,
    )


@claim(b=3, n=4)
def the_step_from_unnormalised_states(b: int = 8, n: int = 4096) -> Pair:
    return pair(
        {"X": (b, n), "H": (b, n), "alpha": (b, n)},
        lambda g, x, h, alpha: g.rms_norm(x + alpha * (g.rms_norm(h) + x)),
        lambda g, x, h, alpha: g.rms_norm(x + alpha * (h + x)),
    )


@claim(b=3, n=4)
def the_step_away_instead_of_towards(b: int = 8, n: int = 4096) -> Pair:
    return pair(
        {"X": (b, n), "H": (b, n), "alpha": (b, n)},
        lambda g, x, h, alpha: g.rms_norm(x + alpha * (g.rms_norm(h) + x)),
        lambda g, x, h, alpha: g.rms_norm(x + alpha * g.sub(g.rms_norm(h), x)),
    )


@claim(b=3, k=4)
def a_root_of_a_sum_is_no_sum_of_roots(b: int = 16, k: int = 4096) -> Pair:
    def candidate(g: Graph, x: Tensor, r: Tensor) -> Tensor:
        return (x + r) / (rms(g, x) + rms(g, r))

    return pair({"X": (b, k), "R": (b, k)}, lambda g, x, r: g.rms_norm(x + r), candidate)


@claim(b=3, k=4)
def an_eps_scaled_once_instead_of_twice(b: int = 16, k: int = 4096) -> Pair:
    eps, third = Fraction("0.1000000014901161"), Fraction("0.3333333333333333")
    return pair(
        {"X": (b, k)},
        lambda g, x: g.rms_norm(g.scale(x, third), eps=third * eps),
        lambda g, x: g.rms_norm(x, eps=eps),
    )


@claim(b=3, k=4)
def a_scale_behind_a_norm(b: int = 16, k: int = 128) -> Pair:
    return pair(
        {"X": (b, k)},
        lambda g, x: g.scale(g.rms_norm(x), 0.08838834764831845),
        lambda g, x: g.rms_norm(g.scale(x, 0.08838834764831845)),
    )
