"""Transposes, reshapes, concatenations, copies and reductions regrouped."""

from fractions import Fraction

from tests.kit.proofs.claims import claim, kernel, on, pair


@claim(a=2, b=3, c=2)
def three_transposes_are_one(a=16, b=96, c=320):
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.transpose(g.transpose(g.transpose(x, 0, 1), 1, 2), 0, 1),
        lambda g, x: g.transpose(x, 0, 2),
    )


@claim(a=2, b=3, c=2)
def a_reshape_through_a_flat_tensor(a=16, b=96, c=320):
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.exp(g.reshape(x, a, b * c)),
        lambda g, x: g.reshape(g.exp(g.reshape(x, a * b * c)), a, b * c),
    )


@claim(a=2, b=3, c=2)
def merged_dims_transposed_together(a=16, b=96, c=320):
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.transpose(g.reshape(x, a * b, c), 0, 1),
        lambda g, x: g.reshape(g.transpose(x, perm=(2, 0, 1)), c, a * b),
    )


@claim(a=6, b=4)
def cut_differently_and_back(a=96, b=320):
    def candidate(g, x):
        cut = g.reshape(x, a // 2, 2, b // 2, 2)
        turned = g.transpose(g.transpose(cut, 0, 3), 0, 3)
        return g.reshape(turned, a, b)

    return pair({"X": (a, b)}, lambda g, x: g.square(x), lambda g, x: g.square(candidate(g, x)))


@claim(a=2, b=3, c=2)
def two_sums_in_either_order(a=16, b=96, c=320):
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.reduction(g.reduction(x, 1), 2),
        lambda g, x: g.reduction(g.reduction(x, 2), 1),
    )


@claim(a=2, b=3, c=2)
def two_sums_as_one_of_the_merged_dim(a=16, b=43, c=256):
    return pair(
        {"X": (a, b, c)},
        lambda g, x: g.reshape(g.reduction(g.reduction(x, 1), 2), a, 1),
        lambda g, x: g.reduction(g.reshape(x, a, b * c), 1),
    )


@claim(a=2, n=6, cut=3)
def a_sum_of_group_sums(a=16, n=11008, cut=43):
    return pair(
        {"X": (a, n)},
        lambda g, x: g.reduction(x, 1),
        lambda g, x: g.reshape(g.reduction(g.reduction(g.reshape(x, a, n // cut, cut), 1), 2), a, 1),
    )


@claim(a=2, n=6, cut=3)
def a_mean_of_group_means(a=16, n=6144, cut=12):
    return pair(
        {"X": (a, n)},
        lambda g, x: g.mean(x, 1),
        lambda g, x: g.reshape(g.mean(g.mean(g.reshape(x, a, n // cut, cut), 2), 1), a, 1),
    )


@claim(a=2, n=5)
def a_mean_is_a_scaled_sum(a=16, n=11008):
    return pair({"X": (a, n)}, lambda g, x: g.mean(x, 1), lambda g, x: g.reduction(g.scale(x, Fraction(1, n)), 1))


@claim(a=2, n=3)
def a_mean_of_copies(a=16, n=96):
    return pair({"x": (a, 1)}, lambda g, x: g.mean(g.repeat(x, 1, n), 1), lambda g, x: g.scale(g.scale(x, 2), 0.5))


@claim(a=2, n=3)
def a_sum_of_copies(a=16, n=96):
    return pair({"x": (a, 1)}, lambda g, x: g.reduction(g.repeat(x, 1, n), 1), lambda g, x: g.scale(x, n))


@claim(a=2, n=3)
def a_broadcast_is_a_copy(a=96, n=320):
    return pair({"X": (a, n), "c": (a, 1)}, lambda g, x, c: x * c, lambda g, x, c: g.repeat(c, 1, n) * x)


@claim(a=2, n=3)
def concatenation_is_associative(a=96, n=320):
    return pair(
        {"X": (a, n), "Y": (a, n), "Z": (a, n)},
        lambda g, x, y, z: g.concat(g.concat(x, y, 1), g.exp(z), 1),
        lambda g, x, y, z: g.concat(x, g.concat(y, g.exp(z), 1), 1),
    )


@claim(a=2, n=3, m=2)
def concatenation_and_transpose(a=96, n=320, m=64):
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.transpose(g.concat(x, y, 1), 0, 1),
        lambda g, x, y: g.concat(g.transpose(x, 0, 1), g.transpose(y, 0, 1), 0),
    )


@claim(a=2, n=3, m=2)
def a_sum_over_a_concatenation(a=96, n=320, m=64):
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.reduction(g.square(g.concat(x, y, 1)), 1),
        lambda g, x, y: g.reduction(g.square(x), 1) + g.reduction(g.square(y), 1),
    )


@claim(a=2, n=3)
def a_mean_over_two_equal_parts(a=96, n=320):
    return pair(
        {"X": (a, n), "Y": (a, n)},
        lambda g, x, y: g.mean(g.concat(x, y, 1), 1),
        lambda g, x, y: g.scale(g.mean(x, 1) + g.mean(y, 1), 0.5),
    )


@claim(a=2, n=3)
def a_concatenation_along_rows_as_batch(a=96, n=320):
    return pair(
        {"X": (a, n), "Y": (a, n)},
        lambda g, x, y: g.exp(g.reshape(g.concat(x, y, 0), 2, a, n)),
        lambda g, x, y: g.exp(g.concat(g.reshape(x, 1, a, n), g.reshape(y, 1, a, n), 0)),
    )


@claim(a=4, n=6, grid=(2, 3))
def a_copy_in_blocks(a=96, n=11008, grid=(12, 43)):
    def candidate(g, x):
        return kernel(g, grid, [(x, on(0, 1))], lambda t, x: (t.square(t.forloop_accum(x)), on(0, 1)))

    return pair({"X": (a, n)}, lambda g, x: g.square(x), candidate)


@claim(a=4, n=6, loop=3)
def a_copy_through_the_loop(a=96, n=6144, loop=12):
    def candidate(g, x):
        return kernel(g, (2,), [(x, on(0), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 1), on(0)), loop)

    return pair({"X": (a, n)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, grid=(2, 2))
def two_grid_axes_in_one_dim(n=6144, grid=(12, 8)):
    def candidate(g, x):
        return kernel(g, grid, [(x, on(0, 0))], lambda t, x: (t.exp(t.forloop_accum(x)), on(0, 0)))

    return pair({"X": (n, 2)}, lambda g, x: g.exp(x), candidate)


@claim(n=8, grid=2, loop=2)
def the_loop_inside_the_slab(n=6144, grid=12, loop=8):
    def candidate(g, x):
        return kernel(g, (grid,), [(x, on(1), 1)], lambda t, x: (t.forloop_concat(t.exp(x), 1), on(1)), loop)

    return pair({"X": (2, n)}, lambda g, x: g.exp(x), candidate)


@claim(m=2, n=8, keep=2, loop=2)
def a_strided_sum_and_its_rest(m=16, n=4096, keep=64, loop=4):
    def candidate(g, x):
        folded = kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_accum(x, "sum_todimx"), on()), loop, keep)
        return g.reduction(folded, 1)

    return pair({"X": (m, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(m=2, n=6, keep=2)
def a_strided_sum_is_a_sum_over_a_cut(m=16, n=320, keep=64):
    def candidate(g, x):
        return kernel(g, (1,), [(x, on())], lambda t, x: (t.forloop_accum(t.reduction_to_dimx(x, 1)), on()), dimx=keep)

    def program(g, x):
        return g.reshape(g.reduction(g.reshape(x, m, n // keep, keep), 1), m, keep)

    return pair({"X": (m, n)}, program, candidate)


@claim(m=2, n=4, grid=2)
def a_result_copied_by_every_block(m=16, n=320, grid=5):
    def candidate(g, x):
        wide = kernel(g, (grid,), [(x, on())], lambda t, x: (t.forloop_accum(x, "sum"), on(1)))
        return g.scale(g.reduction(wide, 1), Fraction(1, grid))

    return pair({"X": (m, n)}, lambda g, x: g.reduction(x, 1), candidate)


@claim(b=2, m=2, k=3, n=2)
def a_batch_as_rows(b=16, m=64, k=320, n=96):
    return pair(
        {"X": (b, m, k), "W": (k, n)},
        lambda g, x, w: x @ g.repeat(g.reshape(w, 1, k, n), 0, b),
        lambda g, x, w: g.reshape(g.reshape(x, b * m, k) @ w, b, m, n),
    )


@claim(h=2, m=2, d=3)
def heads_moved_before_and_after(h=12, m=64, d=96):
    def heads(g, x):
        return g.transpose(g.reshape(x, m, h, d), 0, 1)

    return pair(
        {"X": (m, h * d), "Y": (m, h * d)},
        lambda g, x, y: heads(g, x) + heads(g, y),
        lambda g, x, y: heads(g, x + y),
    )


@claim(a=2, n=6)
def a_maximum_of_group_maxima(a=16, n=6144):
    return pair(
        {"X": (a, n)},
        lambda g, x: g.exp(g.max(x, 1)),
        lambda g, x: g.exp(g.reshape(g.max(g.max(g.reshape(x, a, n // 2, 2), 2), 1), a, 1)),
    )


@claim(a=2, n=6, loop=3)
def a_maximum_over_a_loop(a=16, n=6144, loop=12):
    def candidate(g, x):
        return kernel(g, (1,), [(x, on(), 1)], lambda t, x: (t.forloop_accum_max(t.max(x, 1)), on()), loop)

    return pair({"X": (a, n)}, lambda g, x: g.max(x, 1), candidate)


@claim(a=4, n=3, m=5)
def the_largest_of_two_parts_in_either_order(a=16, n=4096, m=2048):
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.concat(x, y, 1), 1),
        lambda g, x, y: g.max(g.concat(y, x, 1), 1),
    )


@claim(a=4, n=3, m=5)
def the_largest_of_both_dims_of_two_parts(a=16, n=4096, m=2048):
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.max(g.concat(x, y, 1), 1), 0),
        lambda g, x, y: g.max(g.max(g.concat(x, y, 1), 0), 1),
    )


@claim(a=4, n=3, m=5)
def the_largest_of_rows_side_by_side(a=16, n=4096, m=2048):
    return pair(
        {"X": (a, n), "Y": (a, m)},
        lambda g, x, y: g.max(g.concat(x, y, 1), 0),
        lambda g, x, y: g.concat(g.max(x, 0), g.max(y, 0), 1),
    )


@claim(a=4, n=3, m=6, loop=3)
def the_largest_of_two_parts_of_which_one_is_looped_over(a=16, n=4096, m=2048, loop=16):
    def candidate(g, x, y):
        largest = kernel(g, (1,), [(y, on(), 1)], lambda t, y: (t.forloop_accum_max(t.max(y, 1)), on()), loop)
        return g.max(g.concat(largest, g.max(x, 1), 1), 1)

    return pair({"X": (a, n), "Y": (a, m)}, lambda g, x, y: g.max(g.concat(x, y, 1), 1), candidate)


@claim(a=3, b=5)
def rows_that_no_index_regroups(a=15, b=4096):
    return pair(
        {"X": (a, b), "W": (a, b)},
        lambda g, x, w: g.square(g.exp(g.reshape(x + w, b, a))),
        lambda g, x, w: g.exp(g.scale(g.reshape(x + w, b, a), 2)),
    )
