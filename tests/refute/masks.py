"""Selections, comparisons, numbers, divisions without NaN and roundings that are not what they should be."""

from fractions import Fraction

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from tests.kit.proofs.claims import Mask, Pair, Saved, Shapes, claim, kernel, on, pair

A = 96
N = 4096


def masked(a: int, n: int) -> Shapes:
    return {"M": Mask(a, n), "X": (a, n), "Y": (a, n)}


def two_masks(a: int, n: int) -> Shapes:
    return {**masked(a, n), "L": Mask(a, n)}


def two(a: int, n: int) -> Shapes:
    return {"X": (a, n), "Y": (a, n)}


def number(g: Graph, mask: Tensor) -> Tensor:
    return g.cast(mask, "float16")


# --- selections ------------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def the_negated_mask(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: g.select(g.logical_not(m), x, y)
    )


@claim(a=2, n=3)
def values_exchanged(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: g.select(m, y, x))


@claim(a=2, n=3)
def a_mask_that_is_left_out(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, 0) + y, lambda g, m, x, y: x + y)


@claim(a=2, n=3)
def zero_for_what_is_not_chosen(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: g.select(m, x, 0))


@claim(a=2, n=3)
def another_number_for_what_is_not_chosen(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, 1) * y, lambda g, m, x, y: g.select(m, x, 2) * y)


@claim(a=2, n=3)
def a_blend_that_keeps_the_second_value(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, x, y), lambda g, m, x, y: number(g, m) * x + y)


@claim(a=2, n=3)
def a_conjunction_for_a_disjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_or(m, l), x, y),
        lambda g, m, x, y, l: g.select(g.logical_and(m, l), x, y),
    )


@claim(a=2, n=3)
def one_mask_of_a_conjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_and(m, l), x, y),
        lambda g, m, x, y, l: g.select(l, x, y),
    )


@claim(a=2, n=3)
def one_mask_of_a_disjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_or(m, l), x, y),
        lambda g, m, x, y, l: g.select(m, x, y),
    )


@claim(a=2, n=3)
def a_negated_conjunction_by_a_conjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_not(g.logical_and(m, l)), x, y),
        lambda g, m, x, y, l: g.select(g.logical_and(g.logical_not(m), g.logical_not(l)), x, y),
    )


@claim(a=2, n=3)
def a_negated_disjunction_by_a_disjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_not(g.logical_or(m, l)), x, y),
        lambda g, m, x, y, l: g.select(g.logical_or(g.logical_not(m), g.logical_not(l)), x, y),
    )


@claim(a=2, n=3)
def masks_added(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_or(m, l), x, 0),
        lambda g, m, x, y, l: g.select(m, x, 0) + g.select(l, x, 0),
    )


@claim(a=2, n=3)
def all_for_any(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(g.max(m, 1), x, y),
        lambda g, m, x, y: g.select(g.logical_not(g.max(g.logical_not(m), 1)), x, y),
    )


@claim(a=2, n=3)
def any_along_the_other_dim(a: int = A, n: int = A) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(g.max(m, 1), x, y),
        lambda g, m, x, y: g.select(g.max(m, 0), x, y),
    )


@claim(a=2, n=3)
def equal_masks_for_a_conjunction(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.logical_and(m, l), x, y),
        lambda g, m, x, y, l: g.select(g.eq(m, l), x, y),
    )


@claim(n=3)
def a_mask_of_rows_for_one_of_columns(n: int = A) -> Pair:
    return pair(
        {"M": Mask(n, 1), "X": (n, n)},
        lambda g, m, x: g.select(m, x, 0),
        lambda g, m, x: g.select(g.transpose(m, 0, 1), x, 0),
    )


@claim(n=3)
def a_transposed_mask(n: int = A) -> Pair:
    return pair(
        masked(n, n),
        lambda g, m, x, y: g.select(m, x, y),
        lambda g, m, x, y: g.select(g.transpose(m, 0, 1), x, y),
    )


@claim(a=2, n=4)
def a_mask_one_position_further(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m[:, :-1], x[:, 1:], 0),
        lambda g, m, x, y: g.select(m[:, 1:], x[:, 1:], 0),
    )


@claim(a=2, n=4)
def a_mask_padded_at_the_other_end(a: int = A, n: int = N) -> Pair:
    return pair(
        {"M": Mask(a, n), "X": (a, n + 1)},
        lambda g, m, x: g.select(m.pad(1, 1, 0), x, 0),
        lambda g, m, x: g.select(m.pad(1, 0, 1), x, 0),
    )


@claim(a=2, n=3)
def masks_side_by_side_the_other_way_round(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(g.concat([m, l], 1), g.concat([x, y], 1), 0),
        lambda g, m, x, y, l: g.select(g.concat([l, m], 1), g.concat([x, y], 1), 0),
    )


@claim(a=2, n=3)
def an_exponential_of_a_selection(a: int = A, n: int = N) -> Pair:
    """exp(0) is 1, not 0."""
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, g.exp(x), 0), lambda g, m, x, y: g.exp(g.select(m, x, 0))
    )


@claim(a=2, n=3)
def a_sum_of_all(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.reduction(g.select(m, x, 0), 1),
        lambda g, m, x, y: g.reduction(x, 1),
    )


@claim(a=2, n=3)
def a_mean_over_all_for_one_over_what_is_kept(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.div_no_nan(g.reduction(g.select(m, x, 0), 1), g.reduction(number(g, m), 1)),
        lambda g, m, x, y: g.mean(g.select(m, x, 0), 1),
    )


@claim(a=2, n=3)
def zero_below_a_largest_value(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.max(g.select(m, x, -10), 1),
        lambda g, m, x, y: g.max(g.select(m, x, 0), 1),
    )


@claim(a=2, n=3)
def a_product_of_selections(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x * y, 0),
        lambda g, m, x, y: g.select(m, x, 0) * g.select(g.logical_not(m), y, 1),
    )


@claim(a=2, n=3)
def a_summand_on_one_side_only(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x, 0) + y,
        lambda g, m, x, y: g.select(m, x + y, 0),
    )


@claim(a=2, n=3)
def selections_exchanged(a: int = A, n: int = N) -> Pair:
    return pair(
        two_masks(a, n),
        lambda g, m, x, y, l: g.select(m, g.select(l, x, 1), 2),
        lambda g, m, x, y, l: g.select(l, g.select(m, x, 1), 2),
    )


@claim(b=2, k=3, n=3)
def a_mask_of_rows_for_what_is_contracted(b: int = 16, k: int = A, n: int = A) -> Pair:
    return pair(
        {"M": Mask(1, k), "X": (b, k), "W": (k, n)},
        lambda g, m, x, w: g.select(m, x, 0) @ w,
        lambda g, m, x, w: x @ g.select(m, w, 0),
    )


@claim(a=4, n=4)
def every_block_reads_the_first_rows_of_the_mask(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, m: BlockTensor, x: BlockTensor) -> Saved:
        return t.forloop_accum(t.select(m, x, 0)), on(0)

    return pair(
        {"M": Mask(a, n), "X": (a, n)},
        lambda g, m, x: g.select(m, x, 0),
        lambda g, m, x: kernel(g, (2,), [(m[: a // 2], on()), (x, on(0))], body),
    )


@claim(a=2, n=4)
def a_mask_that_does_not_move_with_the_loop(a: int = A, n: int = N) -> Pair:
    def body(t: BlockBuilder, m: BlockTensor, x: BlockTensor) -> Saved:
        return t.forloop_accum(t.reduction(t.select(m, x, 0), 1)), on()

    return pair(
        {"M": Mask(a, n), "X": (a, n)},
        lambda g, m, x: g.reduction(g.select(m, x, 0), 1),
        lambda g, m, x: kernel(g, (1,), [(m[:, : n // 2], on()), (x, on(), 1)], body, loop=2),
    )


# --- selections of what may have no value ----------------------------------------------------------------------------


@claim(a=2, n=3, positive=True)
def a_quotient_where_the_mask_does_not_hold(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, x / y, 0),
        lambda g, m, x, y: g.select(g.logical_not(m), x / y, 0),
    )


@claim(a=2, n=3, positive=True)
def another_quotient(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x / y, 0), lambda g, m, x, y: g.select(m, y / x, 0)
    )


@claim(a=2, n=3, positive=True)
def what_is_not_chosen_divided_too(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n), lambda g, m, x, y: g.select(m, x / y, x), lambda g, m, x, y: g.select(m, x, x) / y
    )


@claim(a=2, n=3, positive=True)
def another_logarithm(a: int = A, n: int = N) -> Pair:
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.select(m, g.log(x), y),
        lambda g, m, x, y: g.select(m, g.log(x + x), y),
    )


@claim(a=2, n=3, positive=True)
def a_root_that_is_left_out(a: int = A, n: int = N) -> Pair:
    return pair(masked(a, n), lambda g, m, x, y: g.select(m, g.sqrt(x), 0), lambda g, m, x, y: g.select(m, x, 0))


@claim(a=2, n=3, positive=True)
def a_quotient_of_all_kept_values(a: int = A, n: int = N) -> Pair:
    """The sum of quotients is not the quotient of sums."""
    return pair(
        masked(a, n),
        lambda g, m, x, y: g.reduction(g.select(m, x / y, 0), 1),
        lambda g, m, x, y: g.reduction(g.select(m, x, 0), 1) / g.reduction(y, 1),
    )


# --- comparisons -----------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def at_most_for_below(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.lt(g.relu(x), g.relu(y)), x, 1),
        lambda g, x, y: g.select(g.le(g.relu(x), g.relu(y)), x, 1),
    )


@claim(a=2, n=3)
def above_for_below(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.lt(x, y), x, 0),
        lambda g, x, y: g.select(g.lt(y, x), x, 0),
    )


@claim(a=2, n=3)
def above_a_number_for_below_it(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.gt(x, 0), y, 1), lambda g, x, y: g.select(g.lt(x, 0), y, 1)
    )


@claim(a=2, n=3)
def equal_for_different(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.eq(x, y), x, 1), lambda g, x, y: g.select(g.ne(x, y), x, 1)
    )


@claim(a=2, n=3)
def equal_for_at_most(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.le(g.relu(x), g.relu(y)), x, 1),
        lambda g, x, y: g.select(g.eq(g.relu(x), g.relu(y)), x, 1),
    )


@claim(a=2, n=3)
def equal_to_another_number(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.eq(g.relu(x), 0), y, 1),
        lambda g, x, y: g.select(g.eq(g.relu(x), 1), y, 1),
    )


@claim(a=2, n=3)
def equal_to_the_negative(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.eq(g.relu(x) + 1, g.relu(y) + 1), y, 1),
        lambda g, x, y: g.select(g.eq(g.relu(x) + 1, -g.relu(y) - 1), y, 1),
    )


@claim(a=2, n=3)
def below_another_number(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.lt(x, 0), y, 1), lambda g, x, y: g.select(g.lt(x, 1), y, 1)
    )


@claim(a=2, n=3)
def one_side_shifted(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.lt(x, y), x, 1), lambda g, x, y: g.select(g.lt(x + 1, y), x, 1)
    )


@claim(a=2, n=3)
def one_side_scaled(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.select(g.lt(x, y), x, 2), lambda g, x, y: g.select(g.lt(3 * x, y), x, 2)
    )


@claim(a=2, n=3)
def both_sides_squared(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.lt(x, y), x, 2),
        lambda g, x, y: g.select(g.lt(x * x, y * y), x, 2),
    )


@claim(a=2, n=3)
def the_negative_below_zero(a: int = A, n: int = N) -> Pair:
    """Whether a number is 0 does not depend on its sign, whether it is negative does."""
    return pair(
        two(a, n), lambda g, x, y: g.select(g.lt(x, 0), y, 2), lambda g, x, y: g.select(g.lt(-x, 0), y, 2)
    )


@claim(a=2, n=3)
def elu_with_its_sides_exchanged(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.select(g.gt(x, 0), x, g.exp(x) - 1),
        lambda g, x: g.select(g.lt(x, 0), x, g.exp(x) - 1),
    )


@claim(a=2, n=3)
def a_sign_without_its_negative_half(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.select(g.gt(x, 0), y, 0) + g.select(g.lt(x, 0), -y, 0),
        lambda g, x, y: g.select(g.gt(x, 0), y, 0),
    )


@claim(a=2, n=3)
def a_window_that_is_one_wider(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n), "I": (a, 1), "J": (1, n)},
        lambda g, x, i, j: g.select(g.lt(i, j + 1), x, 0),
        lambda g, x, i, j: g.select(g.lt(i, j + 2), x, 0),
    )


@claim(a=2, n=3)
def a_mask_taken_for_its_comparison(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: number(g, g.lt(x, y)) * y,
        lambda g, x, y: number(g, g.lt(x, y)) * y + number(g, g.le(y, x)),
    )


# --- divisions without NaN -------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def operands_of_a_division_exchanged(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: g.div_no_nan(x, y), lambda g, x, y: g.div_no_nan(y, x))


@claim(a=2, n=3)
def a_divisor_that_cancels_where_it_may_be_zero(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.div_no_nan(x, g.relu(y)) * g.relu(y), lambda g, x, y: x * 1
    )


@claim(a=2, n=3)
def something_over_itself(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)}, lambda g, x: g.div_no_nan(g.relu(x), g.relu(x)), lambda g, x: x * 0 + 1
    )


@claim(a=2, n=3)
def a_number_out_of_a_divisor_the_wrong_way(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.div_no_nan(x, 2 * y * y + 1),
        lambda g, x, y: 2 * g.div_no_nan(x, y * y + Fraction(1, 2)),
    )


@claim(a=2, n=3)
def an_exponential_out_of_a_divisor_the_wrong_way(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: g.div_no_nan(x, g.exp(y) * x + g.exp(y)),
        lambda g, x, y: g.exp(y) * g.div_no_nan(x, x + 1),
    )


@claim(a=2, n=3)
def a_sum_of_inverses(a: int = A, n: int = N) -> Pair:
    return pair(
        {**two(a, n), "Z": (a, n)},
        lambda g, x, y, z: g.div_no_nan(x, y * y + z * z),
        lambda g, x, y, z: g.div_no_nan(x, y * y) + g.div_no_nan(x, z * z),
    )


@claim(a=2, n=3)
def a_sign_lost_in_a_division(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n), lambda g, x, y: g.div_no_nan(x, x - y), lambda g, x, y: g.div_no_nan(x, y - x)
    )


@claim(a=2, n=3)
def a_mask_that_only_the_numerator_has(a: int = A, n: int = N) -> Pair:
    def both(g: Graph, m: Tensor, x: Tensor, y: Tensor) -> Tensor:
        p = g.select(m, g.exp(x), 0)
        return g.div_no_nan(p, g.reduction(p, 1))

    return pair(
        masked(a, n),
        both,
        lambda g, m, x, y: g.div_no_nan(g.select(m, g.exp(x), 0), g.reduction(g.exp(x), 1)),
    )


# --- roundings -------------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def a_rounding_that_is_left_out(a: int = A, n: int = N) -> Pair:
    def third(g: Graph, x: Tensor) -> Tensor:
        return x * Fraction(1, 3)

    return pair(
        {"X": (a, n)},
        lambda g, x: (third(g, x) - g.round_to(third(g, x), "bfloat16")) * 1024 + x,
        lambda g, x: x * 1,
    )


@claim(a=2, n=3)
def a_rounding_to_another_type(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.round_to(x * Fraction(1, 3), "bfloat16") * 1024 - x * Fraction(1024, 3),
        lambda g, x: g.round_to(x * Fraction(1, 3), "float16") * 1024 - x * Fraction(1024, 3),
    )


@claim(a=2, n=3)
def a_sum_of_roundings(a: int = A, n: int = N) -> Pair:
    return pair(
        two(a, n),
        lambda g, x, y: (g.round_to((x + y) * Fraction(1, 3), "bfloat16") - (x + y) * Fraction(1, 3)) * 1024,
        lambda g, x, y: (g.round_to(x * Fraction(1, 3), "bfloat16") - x * Fraction(1, 3)) * 1024
        + (g.round_to(y * Fraction(1, 3), "bfloat16") - y * Fraction(1, 3)) * 1024,
    )


@claim(a=2, n=3)
def a_factor_through_a_rounding(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: (g.round_to(x * Fraction(1, 3), "bfloat16") * 3 - x) * 1024,
        lambda g, x: (g.round_to(x, "bfloat16") - x) * 1024,
    )


# --- numbers ---------------------------------------------------------------------------------------------------------


@claim(a=2, n=3)
def another_number(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: (x * 0 + 1) * y, lambda g, x, y: (x * 0 + 2) * y)


@claim(a=2, n=3)
def nothing_of_something(a: int = A, n: int = N) -> Pair:
    return pair(two(a, n), lambda g, x, y: x * 0 + y, lambda g, x, y: x + y)


@claim(a=2, n=3)
def a_sum_of_a_number_that_is_the_number(a: int = A, n: int = N) -> Pair:
    return pair(
        {"X": (a, n)},
        lambda g, x: g.reduction(x * 0 + 3, 1) + g.reduction(x, 1),
        lambda g, x: g.reduction(x, 1) + 3,
    )


# --- attention -------------------------------------------------------------------------------------------------------


def qkvm(b: int, m: int, d: int, n: int, e: int) -> Shapes:
    return {"Q": (b, m, d), "K": (b, d, n), "V": (b, n, e), "M": Mask(b, m, n)}


def attention(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    p = g.select(mask, g.exp(q @ k), 0)
    return g.div_no_nan(p @ v, g.reduction(p, 2))


@claim(b=1, m=2, d=2, n=3, e=2)
def attention_to_what_is_discarded(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(
        qkvm(b, m, d, n, e),
        attention,
        lambda g, q, k, v, mask: attention(g, q, k, v, g.logical_not(mask)),
    )


@claim(b=1, m=2, d=2, n=3, e=2)
def a_score_of_zero_for_a_discarded_key(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    return pair(
        qkvm(b, m, d, n, e),
        attention,
        lambda g, q, k, v, mask: g.softmax(g.select(mask, q @ k, 0), 2) @ v,
    )


@claim(b=1, m=2, d=2, n=3, e=2)
def a_maximum_that_only_the_numerator_has(b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Pair:
    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        s = q @ k
        p = g.select(mask, g.exp(s - g.max(g.select(mask, s, -100), 2)), 0)
        return g.div_no_nan(p @ v, g.reduction(g.select(mask, g.exp(s), 0), 2))

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=1, m=3, d=2, n=3, e=2)
def a_mask_of_the_other_triangle(b: int = 2, m: int = 256, d: int = 64, n: int = 256, e: int = 64) -> Pair:
    return pair(
        qkvm(b, m, d, n, e),
        attention,
        lambda g, q, k, v, mask: attention(g, q, k, v, g.transpose(mask, 1, 2)),
    )


@claim(b=1, m=2, d=2, n=4, e=2, loop=2)
def states_that_are_not_rescaled(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, loop: int = 64
) -> Pair:
    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> Saved:
        s = q @ k
        largest, moved = t.reduction_max(t.select(mask, s, -100), 2)
        p, f = t.select(mask, t.exp(s - largest), 0), t.exp(moved)
        return t.div_no_nan(t.forloop_accum(p @ v), t.forloop_accum_rescale(p, f, "sum")), on(0)

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return kernel(g, (b,), [(q, on(0)), (k, on(0), 2), (v, on(0), 1), (mask, on(0), 2)], body, loop)

    return pair(qkvm(b, m, d, n, e), attention, candidate)


@claim(b=1, m=2, d=2, n=4, e=2, split=2)
def parts_added_without_their_weights(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, e: int = 64, split: int = 16
) -> Pair:
    def body(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor, mask: BlockTensor) -> list[Saved]:
        s = q @ k
        p = t.select(mask, t.exp(s - t.max(t.select(mask, s, -100), 2)), 0)
        return [(t.forloop_accum(p, "sum"), on(0, 2)), (t.forloop_accum(p @ v), on(0, 2))]

    def candidate(g: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        reads = [(q, on(0)), (k, on(0, 2)), (v, on(0, 1)), (mask, on(0, 2))]
        total, o = kernel(g, (b, split), reads, body)
        above = g.reduction(g.reshape(o, b, m, split, e), 2)
        return g.div_no_nan(g.reshape(above, b, m, e), g.reduction(total, 2))

    return pair(qkvm(b, m, d, n, e), attention, candidate)
