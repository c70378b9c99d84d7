"""Selections by masks, comparisons, numbers as operands, divisions without NaN, roundings."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Mask, Pair, Saved, Shapes, claim, kernel, on, pair

A = 96
N = 4096


def masked(a: int, n: int) -> Shapes:
    return {"M": Mask(a, n), "X": (a, n), "Y": (a, n)}


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def number(g: Graph, mask: Tensor) -> Tensor:
    return g.cast(mask, "float16")


# --- selections of what always has a value ---------------------------------------------------------------------------


@claim(a=2, n=3)
def a_selection_as_a_blend(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: y + number(g, m) * (x - y)
    )


@claim(a=2, n=3)
def a_selection_by_the_negated_mask(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: g.select(g.logical_not(m), y, x)
    )


@claim(a=2, n=3)
def a_selection_of_one_value(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, x) * y, lambda g, m, x, y: x * y)


@claim(a=2, n=3)
def a_selection_beside_zero(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, 0) + y, lambda g, m, x, y: y + x * number(g, m))


@claim(a=2, n=3)
def zero_where_the_mask_holds(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, 0, x) - y, lambda g, m, x, y: x - y - g.select(m, x, 0))


@claim(a=2, n=3)
def a_number_for_what_is_not_chosen(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x, Fraction(1, 3)),
        lambda g, m, x, y: g.select(m, x, 0) + g.select(g.logical_not(m), x * 0 + Fraction(1, 3), 0),
    )


@claim(a=2, n=3)
def a_factor_through_a_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x, 3) * 2, lambda g, m, x, y: g.select(m, x + x, 6)
    )


@claim(a=2, n=3)
def a_shift_through_a_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x, y) + 1, lambda g, m, x, y: g.select(m, x + 1, y + 1)
    )


@claim(a=2, n=3)
def two_selections_by_one_mask(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x, 0) + g.select(m, y, 0),
        lambda g, m, x, y: g.select(m, x + y, 0),
    )


@claim(a=2, n=3)
def halves_put_together(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x, 0) + g.select(g.logical_not(m), x, 0) + y,
        lambda g, m, x, y: y + x,
    )


@claim(a=2, n=3)
def a_selection_in_a_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        {**masked(a, n), "L": Mask(a, n)},
        lambda g, m, x, y, l: g.select(m, g.select(l, x, 0), 0),
        lambda g, m, x, y, l: g.select(g.logical_and(l, m), x, 0),
    )


@claim(a=2, n=3)
def selections_in_either_order(a: int = A, n: int = N) -> Pair:
    return pair(
        {**masked(a, n), "L": Mask(a, n)},
        lambda g, m, x, y, l: g.select(m, g.select(l, x, 0), 0) * y,
        lambda g, m, x, y, l: g.select(l, g.select(m, x * y, 0), 0),
    )


@claim(a=2, n=3)
def a_mask_negated_twice(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(g.logical_not(g.logical_not(m)), x, y),
        lambda g, m, x, y: g.select(m, x, y),
    )


@claim(a=2, n=3)
def a_disjunction_in_another_order(a: int = A, n: int = N) -> Pair:
    return pair(
        {**masked(a, n), "K": Mask(a, n), "L": Mask(a, n)},
        lambda g, m, x, y, k, l: g.select(g.logical_or(g.logical_or(m, k), l), x, y),
        lambda g, m, x, y, k, l: g.select(g.logical_or(l, g.logical_or(k, m)), x, y),
    )


@claim(a=2, n=3)
def any_of_a_mask_row_by_row(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(g.max(g.max(m, 1), 0), x, y),
        lambda g, m, x, y: g.select(g.max(g.max(m, 0), 1), x, y),
    )


@claim(a=2, n=3)
def a_comparison_of_masks(a: int = A, n: int = N) -> Pair:
    return pair(
        {**masked(a, n), "L": Mask(a, n)},
        lambda g, m, x, y, l: g.select(g.eq(m, l), x, y),
        lambda g, m, x, y, l: g.select(g.eq(l, m), x, y),
    )


# --- selections and what moves and sums elements ---------------------------------------------------------------------


@claim(b=2, k=3, n=4)
def rows_kept_before_and_behind_a_product(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"M": Mask(b, 1), "X": (b, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, x @ w, 0),
        lambda g, m, x, w: g.select(m, x, 0) @ w,
    )


@claim(b=2, k=3, n=4)
def columns_kept_before_and_behind_a_product(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"M": Mask(1, n), "X": (b, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, x @ w, 0),
        lambda g, m, x, w: x @ g.select(m, w, 0),
    )


@claim(b=2, k=3, n=4)
def a_mask_of_what_is_contracted(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"M": Mask(1, k), "X": (b, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, x, 0) @ w,
        lambda g, m, x, w: x @ g.select(g.transpose(m, 0, 1), w, 0),
    )


@claim(b=4, k=6, n=4)
def a_masked_product_in_a_loop(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    def body(t: BlockBuilder, m: BlockTensor, x: BlockTensor, w: BlockTensor) -> Saved:
        return t.forloop_accum(t.select(m, x, 0) @ w), on(0, 1)

    return pair(
        {"M": Mask(b, k), "X": (b, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, x, 0) @ w,
        lambda g, m, x, w: kernel(
            g, (2, 2), [(m, on(0), 1), (x, on(0), 1), (w, on(None, 1), 0)], body, loop=2
        ),
    )


@claim(a=2, n=3)
def a_transposed_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.transpose(g.select(m, x, y), 0, 1),
        lambda g, m, x, y: g.select(*(g.transpose(t, 0, 1) for t in (m, x, y))),
    )


@claim(a=2, n=4)
def a_selection_in_another_shape(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.reshape(g.select(m, x, y), a, 2, n // 2),
        lambda g, m, x, y: g.select(*(g.reshape(t, a, 2, n // 2) for t in (m, x, y))),
    )


@claim(a=2, n=6)
def a_slice_of_a_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x, y)[:, 1:-1],
        lambda g, m, x, y: g.select(m[:, 1:-1], x[:, 1:-1], y[:, 1:-1]),
    )


@claim(a=2, n=3)
def selections_side_by_side(a: int = A, n: int = N) -> Pair:
    return pair(
        {**masked(a, n), "L": Mask(a, n)},
        lambda g, m, x, y, l: g.concat([g.select(m, x, 0), g.select(l, y, 0)], 1),
        lambda g, m, x, y, l: g.select(g.concat([m, l], 1), g.concat([x, y], 1), 0),
    )


@claim(a=2, n=3)
def a_padded_mask_keeps_nothing(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": Mask(a, n), "X": (a, n), "Y": (a, n + 2)},
        lambda g, m, x, y: g.reduction(g.select(m.pad(1, 1, 1), y, 0), 1),
        lambda g, m, x, y: g.reduction(g.select(m, y[:, 1:-1], 0), 1),
    )


@claim(a=2, n=4)
def a_mean_of_what_is_kept(a: int = A, n: int = N) -> Pair:
    def candidate(g: Graph, m: Tensor, x: Tensor, y: Tensor) -> Tensor:
        kept = number(g, m)
        return g.div_no_nan(g.reduction(x * kept, 1), g.mean(kept, 1)) / n

    return pair(
        masked(a, n),
        lambda g, m, x, y: g.div_no_nan(g.reduction(g.select(m, x, 0), 1), g.reduction(number(g, m), 1)),
        candidate,
    )


@claim(a=4, n=4)
def a_selection_in_a_kernel(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, m: BlockTensor, x: BlockTensor, y: BlockTensor) -> Saved:
        return t.forloop_concat(t.select(m, t.exp(x), y + 1), 1), on(0)

    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, g.exp(x), y + 1),
        lambda g, m, x, y: kernel(g, (2,), [(m, on(0), 1), (x, on(0), 1), (y, on(0), 1)], body, loop=2),
    )


@claim(a=2, n=3)
def a_mask_of_rows_for_all_columns(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": Mask(a, 1), "X": (a, n)},
        lambda g, m, x: g.select(m, x, 1),
        lambda g, m, x: g.select(m.expand(a, n), x, 1),
    )


@claim(a=2, n=3)
def the_largest_of_what_is_kept(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.max(g.select(m, x, -1000), 1),
        lambda g, m, x, y: g.max(number(g, m) * (x + 1000) - 1000, 1),
    )


@claim(a=2, n=3)
def functions_of_selections(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.gelu(g.select(m, x, y)) + g.exp(g.select(m, x, y)),
        lambda g, m, x, y: g.exp(g.select(g.logical_not(m), y, x)) + g.gelu(g.select(m, x - y, 0) + y),
    )


# --- selections of what may have no value ----------------------------------------------------------------------------


@claim(a=2, n=3, positive=True)
def a_guarded_quotient(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x / y, 0),
        lambda g, m, x, y: g.select(m, g.reciprocal(y) * x, 0),
    )


@claim(a=2, n=3, positive=True)
def a_guarded_quotient_beside_a_value(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x / y, x),
        lambda g, m, x, y: g.select(g.logical_not(m), x, (2 * x) / (y + y)),
    )


@claim(a=2, n=3, positive=True)
def a_guarded_logarithm(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, g.log(x + y), y),
        lambda g, m, x, y: g.select(m, g.log(y + x), 0) + g.select(g.logical_not(m), y, 0),
    )


@claim(a=2, n=3, positive=True)
def a_logarithm_where_it_has_a_value(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.gt(x, 0), g.log(x), 0) * y,
        lambda g, x, y: y * g.select(g.lt(y * 0, x), g.log(x), 0),
    )


@claim(a=2, n=3, positive=True)
def a_guarded_root(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, g.sqrt(x * y), 0),
        lambda g, m, x, y: g.select(m, g.sqrt(y * x), x * 0),
    )


@claim(a=4, n=4, positive=True)
def a_guarded_quotient_in_a_kernel(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, m: BlockTensor, x: BlockTensor, y: BlockTensor) -> Saved:
        return t.forloop_accum(t.reduction(t.select(m, x / y, 0), 1)), on(0)

    return pair(
        masked(a, n),
        lambda g, m, x, y: g.reduction(g.select(m, x / y, 0), 1),
        lambda g, m, x, y: kernel(g, (2,), [(m, on(0), 1), (x, on(0), 1), (y, on(0), 1)], body, loop=2),
    )


@claim(a=2, n=3)
def a_quotient_that_needs_no_guard(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x / (1 + g.exp(y)), 0),
        lambda g, m, x, y: g.select(m, x, 0) * g.sigmoid(-y),
    )


@claim(a=2, n=3)
def kept_rows_of_a_layer_norm(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": Mask(a, 1), "X": (a, n)},
        lambda g, m, x: g.select(m, g.layer_norm(x, 1, eps=Fraction(1, 100)), 0),
        lambda g, m, x: number(g, m) * g.layer_norm(x, 1, eps=Fraction(1, 100)),
    )


@claim(a=2, k=3, n=4)
def kept_rows_of_a_norm_before_a_product(a: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    eps = Fraction(1, 1000)
    return pair(
        {"M": Mask(a, 1), "X": (a, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, g.rms_norm(x, eps=eps), 0) @ w,
        lambda g, m, x, w: g.select(m, x @ w, 0) / g.sqrt(g.mean(g.square(x), 1) + eps),
    )


@claim(a=2, n=3)
def kept_probabilities(a: int = A, n: int = N) -> Pair:
    def candidate(g: Graph, m: Tensor, x: Tensor, y: Tensor) -> Tensor:
        e = g.exp(x)
        return g.select(m, e, 0) / g.reduction(e, 1)

    return pair(masked(a, n), lambda g, m, x, y: g.select(m, g.softmax(x, 1), 0), candidate)


@claim(a=2, n=3)
def kept_logarithms_of_sums_of_exponentials(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": Mask(a, 1), "X": (a, n)},
        lambda g, m, x: g.select(m, g.logsumexp(x, 1), 0),
        lambda g, m, x: number(g, m) * g.log(g.reduction(g.exp(x), 1)),
    )


@claim(a=2, n=3)
def a_divisor_that_is_at_least_one(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x / g.maximum(y, y * 0 + 1), 0),
        lambda g, m, x, y: g.select(m, x, 0) / g.maximum(y * 0 + 1, y),
    )


# --- comparisons -----------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def at_most_is_not_above(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.le(x, y), g.exp(x), y),
        lambda g, x, y: g.select(g.gt(x, y), y, g.exp(x)),
    )


@claim(a=2, n=3)
def at_least_a_number_is_not_below_it(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.ge(x, Fraction(1, 3)), x, y),
        lambda g, x, y: g.select(g.lt(x, Fraction(1, 3)), y, x),
    )


@claim(a=2, n=3)
def above_a_number_by_a_tensor_of_it(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.gt(x, 2), x, y),
        lambda g, x, y: g.select(g.lt(y * 0 + 2, x), x, y),
    )


@claim(a=2, n=3)
def equal_in_either_order(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.eq(x, y), 1, x * y),
        lambda g, x, y: g.select(g.eq(y, x), 1, y * x),
    )


@claim(a=2, n=3)
def equal_if_the_difference_is_zero(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.eq(x, y), 1, x),
        lambda g, x, y: g.select(g.eq(y - x, 0), 1, x),
    )


@claim(a=2, n=3)
def equal_to_a_number(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.eq(x, 1), y, x), lambda g, x, y: g.select(g.eq(1 - x, 0), y, x)
    )


@claim(a=2, n=3)
def different_is_not_equal(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.ne(x, y), x, y * y),
        lambda g, x, y: g.select(g.eq(y, x), y * y, x),
    )


@claim(a=2, n=3)
def both_sides_shifted(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.lt(x + 1, y), x, y),
        lambda g, x, y: g.select(g.lt(x, y - 1), x, y),
    )


@claim(b=2, k=3, n=4)
def a_comparison_of_products(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "V": (k, n), "W": (k, n)},
        lambda g, x, v, w: g.select(g.lt(x @ v, x @ w), x @ v, 0),
        lambda g, x, v, w: g.select(g.lt(x @ (v - w), 0), x @ v, 0),
    )


@claim(a=2, n=3)
def elu_by_either_side(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.select(g.gt(x, 0), x, g.exp(x) - 1),
        lambda g, x: g.select(g.le(x, 0), g.exp(x) - 1, x),
    )


@claim(a=2, n=3)
def a_sign_by_two_comparisons(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: y * (number(g, g.gt(x, 0)) - number(g, g.lt(x, 0))),
        lambda g, x, y: g.select(g.gt(x, 0), y, 0) + g.select(g.lt(x, 0), -y, 0),
    )


@claim(a=4, n=4)
def bounds_in_a_kernel(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, x: BlockTensor) -> Saved:
        below = t.select(t.lt(x, -1), -1, x)
        return t.forloop_concat(t.select(t.gt(below, 1), 1, below), 1), on(0)

    def plain(g: Graph, x: Tensor) -> Tensor:
        below = g.select(g.ge(x, -1), x, -1)
        return g.select(g.le(below, 1), below, 1)

    return pair({"X": (a, n)}, plain, lambda g, x: kernel(g, (2,), [(x, on(0), 1)], body, loop=2))


@claim(a=2, n=3)
def a_window_of_positions(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n), "I": (a, 1), "J": (1, n)},
        lambda g, x, i, j: g.select(g.logical_and(g.le(j, i), g.lt(i - 8, j)), x, 0),
        lambda g, x, i, j: g.select(g.lt(i, j + 8), g.select(g.gt(j, i), 0, x), 0),
    )


# --- divisions without NaN -------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def numbers_out_of_a_division(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.div_no_nan(x, y * 4), lambda g, x, y: g.div_no_nan(x / 4, y)
    )


@claim(a=2, n=3)
def signs_of_a_division(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.div_no_nan(-x, y - x),
        lambda g, x, y: g.div_no_nan(x, x - y),
    )


@claim(a=2, n=3)
def an_exponential_out_of_a_divisor(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.div_no_nan(x, g.exp(y) * x + g.exp(y) * y),
        lambda g, x, y: g.div_no_nan(x, y + x) / g.exp(y),
    )


@claim(a=2, n=3)
def exponentials_of_different_terms(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.div_no_nan(x, g.exp(-y) * x + 2 * y),
        lambda g, x, y: g.div_no_nan(g.exp(y) * x, x + 2 * y * g.exp(y)),
    )


@claim(a=2, n=3)
def a_sum_over_one_divisor(a: int = A, n: int = N) -> Pair:
    return pair(
        {**two(a, n), "Z": (a, n)},
        lambda g, x, y, z: g.div_no_nan(x + y, z),
        lambda g, x, y, z: g.div_no_nan(y, z) + g.div_no_nan(x, z),
    )


@claim(a=2, n=3)
def a_divisor_that_is_never_zero(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.div_no_nan(x, 1 + g.exp(y)), lambda g, x, y: x * g.sigmoid(-y)
    )


@claim(a=2, n=3)
def a_softmax_without_nan(a: int = A, n: int = N) -> Pair:
    def plain(g: Graph, x: Tensor) -> Tensor:
        e = g.exp(x)
        return g.div_no_nan(e, g.reduction(e, 1))

    return pair({"X": (a, n)}, plain, lambda g, x: g.softmax(x, 1))


@claim(b=2, k=3, n=4)
def a_division_before_and_behind_a_product(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "L": (b, 1), "W": (k, n)},
        lambda g, x, l, w: g.div_no_nan(x, l) @ w,
        lambda g, x, l, w: g.div_no_nan(x @ w, l),
    )


@claim(a=2, n=3)
def a_division_in_a_selection(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, g.div_no_nan(x, y), 0),
        lambda g, m, x, y: g.div_no_nan(g.select(m, x, 0), y),
    )


# --- roundings -------------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def a_rounding_of_equal_sums(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.round_to(x + y, "bfloat16") * x,
        lambda g, x, y: x * g.round_to(y + x, "bfloat16"),
    )


@claim(a=2, n=3)
def what_a_rounding_takes_away(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: (x - g.round_to(x, "bfloat16")) * 256 + y,
        lambda g, x, y: y + 256 * x - 256 * g.round_to(x, "bfloat16"),
    )


@claim(a=4, n=4)
def a_rounding_in_a_kernel(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, x: BlockTensor, y: BlockTensor) -> Saved:
        return t.forloop_accum(t.reduction(t.round_to(x * y, "float16"), 1)), on(0)

    return pair(
        two(a, n),
        lambda g, x, y: g.reduction(g.round_to(x * y, "float16"), 1),
        lambda g, x, y: kernel(g, (2,), [(x, on(0), 1), (y, on(0), 1)], body, loop=2),
    )


@claim(b=2, k=4, n=3)
def a_rounded_operand_of_a_product(b: int = 16, k: int = 4096, n: int = 6144) -> Pair:
    return pair(
        {"X": (b, k), "W": (k, n)},
        lambda g, x, w: g.round_to(x, "bfloat16") @ (w + w),
        lambda g, x, w: (g.round_to(x, "bfloat16") * 2) @ w,
    )


# --- numbers that read nothing ---------------------------------------------------------------------------------------


@claim(a=2, n=3)
def nothing_times_anything(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x * 0 + y, lambda g, x, y: g.exp(x) * 0 + 2 * y - y)


@claim(a=2, n=3)
def a_number_as_a_tensor(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: (x * 0 + Fraction(2, 7)) * y, lambda g, x, y: y * Fraction(2, 7))


@claim(a=2, n=3)
def a_sum_of_a_number(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.reduction(x * 0 + 3, 1) + g.reduction(x, 1),
        lambda g, x: g.reduction(x, 1) + 3 * n,
    )


@claim(a=2, n=3, positive=True)
def nothing_of_a_quotient_in_a_selection(a: int = A, n: int = N) -> Pair:
    """The number does not depend on the quotient, so it always has a value."""
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, (x / y) * 0 + 2, 0) * x,
        lambda g, m, x, y: 2 * g.select(m, x, 0),
    )
