"""Wrong rewrites of one term: what a faulty search or a faulty prover would do. See ``right_rewrites``."""

from __future__ import annotations

import random
from fractions import Fraction

from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import Attrs
from tests.kit.fuzz.rewrite_pairs import COMPARED, Terms
from tests.kit.fuzz.right_rewrites import RIGHT, WRONG, K, matmul_block, parts, scaled, second, split_dim, turned, wrong

__all__ = ["RIGHT", "WRONG"]


def swapped(t: Terms, i: int) -> int:
    a, b = t.rows[i].operands
    return t.op(t.kind(i), b, a)


@wrong(K.SUB, K.DIV, K.MATMUL, K.CONCAT)
def operands_swapped(t: Terms, i: int, rng: random.Random) -> int:
    return t.made(t.kind(i), tuple(reversed(t.rows[i].operands)), t.rows[i].attrs)


@wrong(K.ADD, K.SUB, K.MUL)
def another_binary_operator(t: Terms, i: int, rng: random.Random) -> int:
    kinds = [kind for kind in (K.ADD, K.SUB, K.MUL) if kind is not t.rows[i].kind]
    return t.op(rng.choice(kinds), *t.rows[i].operands)


@wrong(K.EXP, K.SQUARE, K.SILU, K.GELU, K.RELU, K.SIGMOID, K.TANH, K.ERF, K.ABS)
def another_function(t: Terms, i: int, rng: random.Random) -> int:
    kinds = [
        kind for kind in (K.SILU, K.SIGMOID, K.RELU, K.GELU, K.SQUARE, K.TANH, K.ERF) if kind is not t.rows[i].kind
    ]
    return t.op(rng.choice(kinds), *t.rows[i].operands)


@wrong(K.EXP)
def exponential_as_a_sum(t: Terms, i: int, rng: random.Random) -> int:
    a, b = parts(t, t.rows[i].operands[0], K.ADD)
    return t.op(K.ADD, t.op(K.EXP, a), t.op(K.EXP, b))


@wrong(K.EXP)
def factor_outside_the_exponential(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    (b,) = parts(t, a, K.SCALE)
    return scaled(t, t.op(K.EXP, b), t.factor(a))


@wrong(K.EXP)
def sum_outside_the_exponential(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    (b,) = parts(t, a, K.SUM)
    return t.made(K.SUM, (t.op(K.EXP, b),), t.rows[a].attrs)


@wrong(K.SQRT)
def root_of_a_square_as_the_number(t: Terms, i: int, rng: random.Random) -> int:
    return parts(t, t.rows[i].operands[0], K.SQUARE)[0]


@wrong(K.SQRT)
def square_inside_the_root_moved_out(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.MUL)
    return t.op(K.MUL, t.op(K.SQRT, b), parts(t, c, K.SQUARE)[0])


@wrong(K.SQRT)
def root_of_a_sum(t: Terms, i: int, rng: random.Random) -> int:
    a, b = parts(t, t.rows[i].operands[0], K.ADD)
    return t.op(K.ADD, t.op(K.SQRT, a), t.op(K.SQRT, b))


@wrong(K.SQRT)
def root_left_out(t: Terms, i: int, rng: random.Random) -> int:
    return t.rows[i].operands[0]


@wrong(K.SQUARE)
def cross_term_left_out(t: Terms, i: int, rng: random.Random) -> int:
    a, b = parts(t, t.rows[i].operands[0], K.ADD)
    return t.op(K.ADD, t.op(K.SQUARE, a), t.op(K.SQUARE, b))


@wrong(K.SIGMOID, K.SILU, K.GELU, K.RELU, K.TANH, K.ERF)
def argument_negated(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(t.kind(i), scaled(t, t.rows[i].operands[0], -1))


@wrong(K.LOG, K.ABS, K.RECIPROCAL)
def function_left_out(t: Terms, i: int, rng: random.Random) -> int:
    return t.rows[i].operands[0]


@wrong(K.LOG)
def factor_inside_the_logarithm(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.LOG, scaled(t, t.rows[i].operands[0], 2))


@wrong(K.MAXIMUM, K.MINIMUM)
def the_other_extreme(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    return t.made(K.MINIMUM if row.kind is K.MAXIMUM else K.MAXIMUM, row.operands, row.attrs)


@wrong(K.SHIFT)
def another_shift(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.SHIFT, t.rows[i].operands[0], shift=rng.choice((-1, 2)) * t.shift(i))


@wrong(K.SCALE)
def another_factor(t: Terms, i: int, rng: random.Random) -> int:
    factor = t.factor(i)
    choices = (-factor, factor + 1, 2 * factor, factor * factor)
    return scaled(t, t.rows[i].operands[0], rng.choice([c for c in choices if c != factor]))


@wrong(K.SUM, K.MEAN, K.MAX)
def another_reduction(t: Terms, i: int, rng: random.Random) -> int:
    kinds = [kind for kind in (K.SUM, K.MEAN, K.MAX) if kind is not t.rows[i].kind]
    return t.made(rng.choice(kinds), t.rows[i].operands, t.rows[i].attrs)


@wrong(K.SUM, K.MEAN, K.MAX, K.SOFTMAX, K.RMS_NORM, K.LAYER_NORM)
def another_dim(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    rank = len(t.shapes[i])
    if rank < 2:
        return None
    dims = [dim for dim in range(rank) if dim != row.attrs.dim]
    found = t.made(t.kind(i), row.operands, Attrs(dim=rng.choice(dims), eps=row.attrs.eps))
    return turned(t, found) if row.kind in (K.SUM, K.MEAN, K.MAX) else found


@wrong(K.SUM)
def sum_taken_out_of_a_product(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.MUL)
    row = t.rows[i]
    return t.op(K.MUL, t.made(K.SUM, (b,), row.attrs), t.made(K.SUM, (c,), row.attrs))


@wrong(K.SUM)
def sum_of_one_factor_only(t: Terms, i: int, rng: random.Random) -> int:
    """A factor that depends on the index is treated as if it did not: its mean is taken out."""
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.MUL)
    row = t.rows[i]
    return t.op(K.MUL, t.made(K.SUM, (b,), row.attrs), t.made(K.MEAN, (c,), row.attrs))


@wrong(K.MATMUL)
def product_element_by_element(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.MUL, *t.rows[i].operands)


@wrong(K.MATMUL)
def operand_transposed(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    return t.op(K.MATMUL, a, turned(t, b)) if rng.random() < 0.5 else t.op(K.MATMUL, turned(t, a), b)


@wrong(K.MATMUL)
def product_summed_over_a_wrong_axis(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    return turned(t, swapped(t, i)) if t.shapes[a] == t.shapes[b] else None


@wrong(K.MATMUL)
def product_saved_by_the_wrong_axes(t: Terms, i: int, rng: random.Random) -> int:
    return matmul_block(t, i, "omap")


@wrong(K.MATMUL)
def product_with_a_factor_of_the_loop(t: Terms, i: int, rng: random.Random) -> int | None:
    return matmul_block(t, i, "fmap") if split_dim(t.shapes[t.rows[i].operands[0]][-1]) > 1 else None


@wrong(K.RMS_NORM)
def norm_without_the_mean(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.DIV, a, t.op(K.SQRT, t.op(K.SUM, t.op(K.SQUARE, a), dim=t.rows[i].attrs.dim)))


@wrong(K.RMS_NORM, K.LAYER_NORM)
def eps_changed(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    eps = None if row.attrs.eps is not None else Fraction(1, 4)
    return t.made(t.kind(i), row.operands, Attrs(dim=row.attrs.dim, eps=eps))


@wrong(K.RMS_NORM)
def eps_not_scaled(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    if row.attrs.eps is None:
        return None
    return t.made(t.kind(i), (scaled(t, row.operands[0], 3),), row.attrs)


@wrong(K.LAYER_NORM)
def mean_not_subtracted(t: Terms, i: int, rng: random.Random) -> int:
    return t.made(K.RMS_NORM, t.rows[i].operands, t.rows[i].attrs)


@wrong(K.SOFTMAX)
def softmax_without_a_denominator(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.EXP, t.rows[i].operands[0])


@wrong(K.SOFTMAX)
def softmax_shifted_above_only(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    dim = t.rows[i].attrs.dim
    above = t.op(K.EXP, t.op(K.SUB, a, t.op(K.MAX, a, dim=dim)))
    return t.op(K.DIV, above, t.op(K.SUM, t.op(K.EXP, a), dim=dim))


@wrong(K.SOFTMAX)
def softmax_shifted_along_the_row(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    other = [dim for dim in range(len(t.shapes[a])) if dim != t.rows[i].attrs.dim]
    if not other:
        return None
    e = t.op(K.EXP, t.op(K.SUB, a, t.op(K.MAX, a, dim=rng.choice(other))))
    return t.op(K.DIV, e, t.op(K.SUM, e, dim=t.rows[i].attrs.dim))


@wrong(K.SELECT)
def branches_exchanged(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = t.rows[i].operands[:2]
    return t.op(K.SELECT, mask, second(t, i), a)


@wrong(K.SELECT)
def mask_forgotten(t: Terms, i: int, rng: random.Random) -> int:
    return t.rows[i].operands[1]


@wrong(K.SELECT)
def second_branch_forgotten(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = t.rows[i].operands[:2]
    return t.op(K.SELECT, mask, a, value=Fraction(0 if t.rows[i].attrs.value != 0 else 1))


@wrong(K.EXP)
def exponential_inside_the_selection(t: Terms, i: int, rng: random.Random) -> int:
    """exp(0) is 1, and 0 is left outside."""
    mask, a = parts(t, t.rows[i].operands[0], K.SELECT)[:2]
    return t.op(K.SELECT, mask, t.op(K.EXP, a), value=Fraction(0))


@wrong(K.SUM)
def mask_summed_first(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = parts(t, t.rows[i].operands[0], K.SELECT)[:2]
    return t.op(K.SELECT, t.op(K.MAX, mask, dim=t.dim(i)), t.op(K.SUM, a, dim=t.dim(i)), value=Fraction(0))


@wrong(K.LT, K.LE, K.GT, K.GE, K.EQ)
def another_comparison(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    return t.made(rng.choice([kind for kind in COMPARED if kind is not row.kind]), row.operands, row.attrs)


@wrong(K.LT, K.LE, K.GT, K.GE, K.EQ, K.MAXIMUM, K.MINIMUM)
def another_number_compared(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    if row.attrs.value is None:
        return None
    return t.op(t.kind(i), *row.operands, value=row.attrs.value + rng.choice((-1, 1)))


@wrong(K.LOGICAL_NOT)
def negation_forgotten(t: Terms, i: int, rng: random.Random) -> int:
    return t.rows[i].operands[0]


@wrong(K.MUL)
def or_for_and(t: Terms, i: int, rng: random.Random) -> int | None:
    return t.op(K.MAXIMUM, *t.rows[i].operands) if t.masks[i] else None


@wrong(K.DIV_NO_NAN)
def quotient_turned(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.DIV_NO_NAN, *reversed(t.rows[i].operands))


@wrong(K.DIV_NO_NAN)
def quotient_of_zero(t: Terms, i: int, rng: random.Random) -> int:
    """Other than what it takes the place of only where the divisor is 0."""
    return t.op(K.DIV, *t.rows[i].operands)


@wrong(K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def rounding_forgotten(t: Terms, i: int, rng: random.Random) -> int:
    return t.rows[i].operands[0]


@wrong(K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def rounded_to_another_type(t: Terms, i: int, rng: random.Random) -> int:
    other = K.ROUND_BFLOAT16 if t.kind(i) is K.ROUND_FLOAT16 else K.ROUND_FLOAT16
    return t.op(other, *t.rows[i].operands)


@wrong(K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def sum_of_roundings(t: Terms, i: int, rng: random.Random) -> int:
    a, b = parts(t, t.rows[i].operands[0], K.ADD)
    return t.op(K.ADD, t.op(t.kind(i), a), t.op(t.kind(i), b))


@wrong(K.TRANSPOSE)
def reshape_for_a_transpose(t: Terms, i: int, rng: random.Random) -> int | None:
    if min(t.shapes[i]) == 1:
        return None
    return t.op(K.RESHAPE, t.rows[i].operands[0], shape=t.shapes[i])


@wrong(K.RESHAPE)
def reshape_of_the_transpose(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.RESHAPE, turned(t, t.rows[i].operands[0]), shape=t.shapes[i])


@wrong(None)
def negated(t: Terms, i: int, rng: random.Random) -> int:
    return scaled(t, i, -1)


@wrong(None)
def transposed(t: Terms, i: int, rng: random.Random) -> int:
    return turned(t, i)


@wrong(None)
def rows_cut_elsewhere(t: Terms, i: int, rng: random.Random) -> int | None:
    shape = t.shapes[i]
    return t.op(K.RESHAPE, turned(t, i), shape=shape) if len(shape) == 2 and 1 not in shape else None


@wrong(None)
def a_wrong_slab(t: Terms, i: int, rng: random.Random) -> int | None:
    """A copy through a kernel that writes the blocks of one dim in the order of two."""
    shape = t.shapes[i]
    if len(shape) != 2 or shape[0] % 4:
        return None
    load = InputIterator((0, 0, None), None)
    block = BlockGraph(
        (2, shape[0] // 2, 1), (128, 1, 1), 1, 1, (load,), (Op(K.ACCUM_SUM, (0,)),), (OutputSaver(1, (1, 0, None)),)
    )
    like = t.op(K.RESHAPE, i, shape=(shape[0] // 2, 2 * shape[1]))
    return t.op(K.RESHAPE, t.kernel(block, (i,), like), shape=shape)
