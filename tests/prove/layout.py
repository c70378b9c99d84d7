"""Transposes, reshapes, concatenations, copies and reductions regrouped."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Pair, Saved, claim, kernel, on, pair


@claim(a=2, b=3, c=2)
def three_transposes_are_one(a: int = 16, b: int = 96, c: int = 320) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.transpose(g.transpose(g.transpose(x, 0, 1), 1, 2), 0, 1),
        lambda g, x: g.transpose(x, 0, 2),
    )


@claim(a=2, b=3, c=2)
def a_reshape_through_a_flat_tensor(a: int = 16, b: int = 96, c: int = 320) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.exp(g.reshape(x, a, b * c)),
        lambda g, x: g.reshape(g.exp(g.reshape(x, a * b * c)), a, b * c),
    )


@claim(a=2, b=3, c=2)
def merged_dims_transposed_together(a: int = 16, b: int = 96, c: int = 320) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.transpose(g.reshape(x, a * b, c), 0, 1),
        lambda g, x: g.reshape(g.transpose(x, perm=(2, 0, 1)), c, a * b),
    )


@claim(a=6, b=4)
def cut_differently_and_back(a: int = 96, b: int = 320) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        cut = g.reshape(x, a // 2, 2, b // 2, 2)
        turned = g.transpose(g.transpose(cut, 0, 3), 0, 3)
        return g.reshape(turned, a, b)

    return pair({"X": (a, b)}, lambda g, x: g.square(x), lambda g, x: g.square(candidate(g, x)))


@claim(a=2, b=3, c=2)
def two_sums_in_either_order(a: int = 16, b: int = 96, c: int = 320) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.reduction(g.reduction(x, 1), 2),
        lambda g, x: g.reduction(g.reduction(x, 2), 1),
    )


@claim(a=2, b=3, c=2)
def two_sums_as_one_of_the_merged_dim(a: int = 16, b: int = 43, c: int = 256) -> Pair:
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.reshape(g.reduction(g.reduction(x, 1), 2), a, 1),
        lambda g, x: g.reduction(g.reshape(x, a, b * c), 1),
    )


@claim(a=2, n=6, cut=3)
def a_sum_of_group_sums(a: int = 16, n: int = 11008, cut: int = 43) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.reduction(x, 1),
        lambda g, x: g.reshape(g.reduction(g.reduction(g.reshape(x, a, n // cut, cut), 1), 2), a, 1),
    )


@claim(a=2, n=6, cut=3)
def a_mean_of_group_means(a: int = 16, n: int = 6144, cut: int = 12) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.mean(x, 1),
        lambda g, x: g.reshape(g.mean(g.mean(g.reshape(x, a, n // cut, cut), 2), 1), a, 1),
    )


@claim(a=2, n=5)
def a_mean_is_a_scaled_sum(a: int = 16, n: int = 11008) -> Pair:
    return pair({"X": (a, n)}, lambda g, x: g.mean(x, 1), lambda g, x: g.reduction(g.scale(x, Fraction(1, n)), 1))


@claim(a=2, n=3)
def a_mean_of_copies(a: int = 16, n: int = 96) -> Pair:
    return pair({"x": (a, 1)}, lambda g, x: g.mean(g.repeat(x, 1, n), 1), lambda g, x: g.scale(g.scale(x, 2), 0.5))


@claim(a=2, n=3)
def a_sum_of_copies(a: int = 16, n: int = 96) -> Pair:
    return pair({"x": (a, 1)}, lambda g, x: g.reduction(g.repeat(x, 1, n), 1), lambda g, x: g.scale(x, n))


@claim(a=2, n=3)
def a_broadcast_is_a_copy(a: int = 96, n: int = 320) -> Pair:
    return pair({"X": (a, n), "c": (a, 1)}, lambda g, x, c: x * c, lambda g, x, c: g.repeat(c, 1, n) * x)


@claim(a=2, n=3)
def concatenation_is_associative(a: int = 96, n: int = 320) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, n), "Z": (a, n)},
        lambda g, x, y, z: g.concat(g.concat(x, y, 1), g.exp(z), 1),
        lambda g, x, y, z: g.concat(x, g.concat(y, g.exp(z), 1), 1),
    )


@claim(a=2, n=3, m=2)
def concatenation_and_transpose(a: int = 96, n: int = 320, m: int = 64) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.transpose(g.concat(x, y, 1), 0, 1),
        lambda g, x, y: g.concat(g.transpose(x, 0, 1), g.transpose(y, 0, 1), 0),
    )


@claim(a=2, n=3, m=2)
def a_sum_over_a_concatenation(a: int = 96, n: int = 320, m: int = 64) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.reduction(g.square(g.concat(x, y, 1)), 1),
        lambda g, x, y: g.reduction(g.square(x), 1) + g.reduction(g.square(y), 1),
    )


@claim(a=2, n=3)
def a_mean_over_two_equal_parts(a: int = 96, n: int = 320) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, n)},
        lambda g, x, y: g.mean(g.concat(x, y, 1), 1),
        lambda g, x, y: g.scale(g.mean(x, 1) + g.mean(y, 1), 0.5),
    )


@claim(a=2, n=3)
def a_concatenation_along_rows_as_batch(a: int = 96, n: int = 320) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, n)},
        lambda g, x, y: g.exp(g.reshape(g.concat(x, y, 0), 2, a, n)),
        lambda g, x, y: g.exp(g.concat(g.reshape(x, 1, a, n), g.reshape(y, 1, a, n), 0)),
    )


@claim(a=4, n=6, grid=(2, 3))
def a_copy_in_blocks(a: int = 96, n: int = 11008, grid: tuple[int, int] = (12, 43)) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, grid, [(x, on(0, 1))], lambda t, x: (t.square(t.forloop_accum(x)), on(0, 1)))

    return pair({"X": (a, n)}, lambda g, x: g.square(x), candidate)


@claim(a=4, n=6, loop=3)
def a_copy_through_the_loop(a: int = 96, n: int = 6144, loop: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (2,), [(x, on(0), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 1), on(0)), loop)

    return pair({"X": (a, n)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, grid=(2, 2))
def two_grid_axes_in_one_dim(n: int = 6144, grid: tuple[int, int] = (12, 8)) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, grid, [(x, on(0, 0))], lambda t, x: (t.exp(t.forloop_accum(x)), on(0, 0)))

    return pair({"X": (n, 2)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, grid=2, loop=2)
def the_loop_inside_the_slab(n: int = 6144, grid: int = 12, loop: int = 8) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (grid,), [(x, on(1), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 1), on(1)), loop)

    return pair({"X": (2, n)}, lambda g, x: g.exp(x), candidate)


@claim(m=2, n=8, keep=2, loop=2)
def a_strided_sum_and_its_rest(m: int = 16, n: int = 4096, keep: int = 64, loop: int = 4) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        folded = kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_accum(x, "sum_todimx"), on()), loop, keep)
        return g.reduction(folded, 1)

    return pair({"X": (m, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(m=2, n=6, keep=2)
def a_strided_sum_is_a_sum_over_a_cut(m: int = 16, n: int = 320, keep: int = 64) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (1,), [(x, on())], lambda t, x: (t.forloop_accum(t.reduction_to_dimx(x, 1)), on()), dimx=keep)

    def program(g: Graph, x: Tensor) -> Tensor:
        return g.reshape(g.reduction(g.reshape(x, m, n // keep, keep), 1), m, keep)

    return pair({"X": (m, n)}, program, candidate)


@claim(m=2, n=4, grid=2)
def a_result_copied_by_every_block(m: int = 16, n: int = 320, grid: int = 5) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        wide = kernel(g, (grid,), [(x, on())], lambda t, x: (t.forloop_accum(x, "sum"), on(1)))
        return g.scale(g.reduction(wide, 1), Fraction(1, grid))

    return pair({"X": (m, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(b=2, m=2, k=3, n=2)
def a_batch_as_rows(b: int = 16, m: int = 64, k: int = 320, n: int = 96) -> Pair:
    return pair(
        {"X": (b, m, k), "W": (k, n)},
        lambda g, x, w: x @ g.repeat(g.reshape(w, 1, k, n), 0, b),
        lambda g, x, w: g.reshape(g.reshape(x, b * m, k) @ w, b, m, n),
    )


@claim(h=2, m=2, d=3)
def heads_moved_before_and_after(h: int = 12, m: int = 64, d: int = 96) -> Pair:
    def heads(g: Graph, x: Tensor) -> Tensor:
        return g.transpose(g.reshape(x, m, h, d), 0, 1)

    return pair(
        {"X": (m, h * d), "Y": (m, h * d)},
        lambda g, x, y: heads(g, x) + heads(g, y),
        lambda g, x, y: heads(g, x + y),
    )


@claim(a=2, n=6)
def a_maximum_of_group_maxima(a: int = 16, n: int = 6144) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.exp(g.max(x, 1)),
        lambda g, x: g.exp(g.reshape(g.max(g.max(g.reshape(x, a, n // 2, 2), 2), 1), a, 1)),
    )


@claim(a=2, n=6, loop=3)
def a_maximum_over_a_loop(a: int = 16, n: int = 6144, loop: int = 12) -> Pair:
    def candidate(g: Graph, x: Tensor) -> Tensor:
        return kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_accum_max(t.max(x, 1)), on()), loop)

    return pair({"X": (a, n)}, lambda g, x: g.max(x, 1), candidate)


@claim(a=4, n=3, m=5)
def the_largest_of_two_parts_in_either_order(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.concat(x, y, 1), 1),
        lambda g, x, y: g.max(g.concat(y, x, 1), 1),
    )


@claim(a=4, n=3, m=5)
def the_largest_of_both_dims_of_two_parts(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.max(g.concat(x, y, 1), 1), 0),
        lambda g, x, y: g.max(g.max(g.concat(x, y, 1), 0), 1),
    )


@claim(a=4, n=3, m=5)
def the_largest_of_rows_side_by_side(a: int = 16, n: int = 4096, m: int = 2048) -> Pair:
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.concat(x, y, 1), 0),
        lambda g, x, y: g.concat(g.max(x, 0), g.max(y, 0), 1),
    )


@claim(a=4, n=3, m=6, loop=3)
def the_largest_of_two_parts_of_which_one_is_looped_over(
    a: int = 16, n: int = 4096, m: int = 2048, loop: int = 16
) -> Pair:
    def candidate(g: Graph, x: Tensor, y: Tensor) -> Tensor:
        largest = kernel(g, (1,), [(y, on(), 1)], lambda t, y: (t.forloop_accum_max(t.max(y, 1)), on()), loop)
        return g.max(g.concat(largest, g.max(x, 1), 1), 1)

    return pair({"X": (a, n), "Y": (a, m)}, lambda g, x, y: g.max(g.concat(x, y, 1), 1), candidate)


@claim(a=3, b=5)
def rows_that_no_index_regroups(a: int = 15, b: int = 4096) -> Pair:
    return pair(
        {"X": (a, b), "W": (a, b)},
        lambda g, x, w: g.square(g.exp(g.reshape(x + w, b, a))),
        lambda g, x, w: g.exp(g.scale(g.reshape(x + w, b, a), 2)),
    )


@claim(m=2, a=5, b=1, n=2, loop=3)
def features_joined_and_read_in_a_loop_of_other_tiles(
    m: int = 16, a: int = 4000, b: int = 96, n: int = 64, loop: int = 64
) -> Pair:
    """Neither of the two parts ends where a tile of the loop does."""

    def candidate(g: Graph, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        def body(t: BlockBuilder, z: BlockTensor, w: BlockTensor) -> Saved:
            return t.forloop_accum(z @ w) / t.forloop_accum(z, "rms"), on()

        return kernel(g, (1,), [(g.concat(x, y, 1), on(), 1), (w, on(), 0)], body, loop)

    shapes = {"X": (m, a), "Y": (m, b), "W": (a + b, n)}
    return pair(shapes, lambda g, x, y, w: g.rms_norm(g.concat(x, y, 1)) @ w, candidate)
