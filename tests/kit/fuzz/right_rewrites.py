"""Right rewrites of one term of a table (``rewrite_pairs.Terms``); wrong ones are in ``wrong_rewrites``.

A rule takes the table, a term and a random source, and returns the term that takes its place, or None; a Mismatch of
shapes means that it does not apply. ``RIGHT`` and ``WRONG`` map an operator to its rules, None to those of all terms;
they are complete once ``wrong_rewrites`` is imported.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType
from tests.kit.fuzz.rewrite_pairs import BINARY, UNARY, Mismatch, Sign, Terms

K = OpKind
Rule = Callable[[Terms, int, random.Random], int | None]
HALF = Fraction(1, 2)

RIGHT: dict[OpKind | None, list[Rule]] = defaultdict(list)
WRONG: dict[OpKind | None, list[Rule]] = defaultdict(list)


def right(*kinds: OpKind | None) -> Callable[[Rule], Rule]:
    """Registers a rewrite that changes nothing wherever both sides are defined."""

    def put(rule: Rule) -> Rule:
        for kind in kinds:
            RIGHT[kind].append(rule)
        return rule

    return put


def wrong(*kinds: OpKind | None) -> Callable[[Rule], Rule]:
    """Registers a rewrite that changes the result, but on special operands."""

    def put(rule: Rule) -> Rule:
        for kind in kinds:
            WRONG[kind].append(rule)
        return rule

    return put


def parts(t: Terms, i: int, kind: OpKind) -> tuple[int, ...]:
    """The operands of a term of this kind."""
    if t.rows[i].kind is not kind:
        raise Mismatch(kind.value)
    return t.rows[i].operands


def scaled(t: Terms, a: int, factor: Fraction | int) -> int:
    return t.op(K.SCALE, a, factor=Fraction(factor))


def turned(t: Terms, a: int) -> int:
    """The last two dims exchanged."""
    rank = len(t.shapes[a])
    if rank < 2:
        raise Mismatch("a vector")
    return t.op(K.TRANSPOSE, a, perm=(*range(rank - 2), rank - 1, rank - 2))


@right(K.ADD, K.MUL)
def operands_exchanged(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return t.op(t.kind(i), b, a)


@right(K.ADD, K.MUL)
def associated(t: Terms, i: int, rng: random.Random) -> int:
    kind = t.kind(i)
    a, b = t.rows[i].operands
    c, d = parts(t, a, kind)
    return t.op(kind, c, t.op(kind, d, b))


@right(K.SUB)
def difference_as_a_sum(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return t.op(K.ADD, a, scaled(t, b, -1))


@right(K.SUB)
def difference_negated(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return scaled(t, t.op(K.SUB, b, a), -1)


@right(K.MUL, K.MATMUL)
def distributed(t: Terms, i: int, rng: random.Random) -> int:
    kind = t.kind(i)
    a, b = t.rows[i].operands
    if t.rows[a].kind in (K.ADD, K.SUB):
        c, d = t.rows[a].operands
        return t.op(t.kind(a), t.op(kind, c, b), t.op(kind, d, b))
    c, d = parts(t, b, K.ADD)
    return t.op(K.ADD, t.op(kind, a, c), t.op(kind, a, d))


@right(K.MUL)
def product_of_exponentials(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return t.op(K.EXP, t.op(K.ADD, parts(t, a, K.EXP)[0], parts(t, b, K.EXP)[0]))


@right(K.MUL)
def product_as_a_difference_of_squares(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    first, second = t.op(K.SQUARE, t.op(K.ADD, a, b)), t.op(K.SQUARE, t.op(K.SUB, a, b))
    return scaled(t, t.op(K.SUB, first, second), Fraction(1, 4))


@right(K.DIV)
def division_of_a_sum(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    kind = t.rows[a].kind
    if kind not in (K.ADD, K.SUB):
        return None
    c, d = t.rows[a].operands
    return t.op(kind, t.op(K.DIV, c, b), t.op(K.DIV, d, b))


@right(K.DIV)
def division_as_a_reciprocal(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return t.op(K.MUL, t.op(K.DIV, t.one(b), b), a)


@right(K.DIV)
def division_by_an_exponential(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return t.op(K.MUL, a, t.op(K.EXP, scaled(t, parts(t, b, K.EXP)[0], -1)))


@right(K.DIV)
def division_twice(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    c, d = parts(t, a, K.DIV)
    return t.op(K.DIV, c, t.op(K.MUL, d, b))


@right(K.DIV)
def rows_divided_before_the_product(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    c, d = parts(t, a, K.MATMUL)
    if t.shapes[b][-1] != 1:
        return None
    return t.op(K.MATMUL, t.op(K.DIV, c, b), d)


@right(K.EXP)
def exponential_of_a_sum(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    kinds: dict[OpKind | None, OpKind] = {K.ADD: K.MUL, K.SUB: K.DIV}
    kind = kinds.get(t.rows[a].kind)
    if kind is None:
        return None
    b, c = t.rows[a].operands
    return t.op(kind, t.op(K.EXP, b), t.op(K.EXP, c))


@right(K.EXP)
def exponential_of_a_half_squared(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.SQUARE, t.op(K.EXP, scaled(t, a, HALF)))


@right(K.EXP)
def root_of_an_exponential(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.SQRT, t.op(K.EXP, scaled(t, a, 2)))


@right(K.EXP)
def exponential_below(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.DIV, t.one(a), t.op(K.EXP, scaled(t, a, -1)))


@right(K.SQRT)
def root_of_four_times(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return scaled(t, t.op(K.SQRT, scaled(t, a, 4)), HALF)


@right(K.SQRT)
def root_below(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    return t.op(K.DIV, a, i) if t.signs[a] is Sign.POSITIVE else None


@right(K.SQRT)
def root_of_a_product(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.MUL)
    if Sign.ANY in (t.signs[b], t.signs[c]):
        return None
    return t.op(K.MUL, t.op(K.SQRT, b), t.op(K.SQRT, c))


@right(K.SQUARE)
def square_as_a_product(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.MUL, a, a)


@right(K.SQUARE)
def square_of_a_sum(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.ADD)
    cross = scaled(t, t.op(K.MUL, b, c), 2)
    return t.op(K.ADD, t.op(K.ADD, t.op(K.SQUARE, b), cross), t.op(K.SQUARE, c))


@right(K.SILU)
def silu_by_sigmoid(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.MUL, a, t.op(K.SIGMOID, a))


@right(K.SILU)
def silu_by_exponentials(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.DIV, a, t.op(K.ADD, t.one(a), t.op(K.EXP, scaled(t, a, -1))))


@right(K.SIGMOID)
def sigmoid_by_exponentials(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    e = t.op(K.EXP, a)
    return t.op(K.DIV, e, t.op(K.ADD, t.one(a), e))


@right(K.SIGMOID)
def sigmoid_of_the_negative(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.SUB, t.one(a), t.op(K.SIGMOID, scaled(t, a, -1)))


@right(K.TANH)
def tanh_by_sigmoid(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.SHIFT, scaled(t, t.op(K.SIGMOID, scaled(t, a, 2)), 2), shift=Fraction(-1))


@right(K.ABS)
def absolute_value_as_a_root(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.SQRT, t.op(K.SQUARE, t.rows[i].operands[0]))


@right(K.RECIPROCAL)
def reciprocal_as_a_quotient(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.DIV, t.one(a), a)


@right(K.LOG)
def logarithm_of_an_exponential(t: Terms, i: int, rng: random.Random) -> int:
    return parts(t, t.rows[i].operands[0], K.EXP)[0]


@right(K.MAXIMUM, K.MINIMUM)
def extreme_of_negatives(t: Terms, i: int, rng: random.Random) -> int:
    other = K.MINIMUM if t.kind(i) is K.MAXIMUM else K.MAXIMUM
    b, a = (scaled(t, operand, -1) for operand in (t.rows[i].operands[0], second(t, i)))
    return scaled(t, t.op(other, a, b), -1)


@right(K.MAXIMUM, K.MINIMUM)
def extreme_of_a_tensor_of_one_number(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    return None if row.attrs.value is None else t.op(t.kind(i), second(t, i), row.operands[0])


@right(K.SHIFT)
def shift_split(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    return t.op(K.SHIFT, t.op(K.SHIFT, a, shift=Fraction(1, 3)), shift=t.shift(i) - Fraction(1, 3))


@right(K.SCALE)
def factor_split(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    factor = t.factor(i)
    return scaled(t, scaled(t, a, Fraction(2, 3)), factor * Fraction(3, 2))


@right(K.SCALE)
def factor_moved_inside(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    factor, kind = t.factor(i), t.rows[a].kind
    if kind in (K.ADD, K.SUB):
        b, c = t.rows[a].operands
        return t.op(kind, scaled(t, b, factor), scaled(t, c, factor))
    if kind in (K.MUL, K.DIV, K.MATMUL):
        b, c = t.rows[a].operands
        return t.op(kind, scaled(t, b, factor), c)
    return t.made(K.SUM, (scaled(t, parts(t, a, K.SUM)[0], factor),), t.rows[a].attrs)


@right(K.MEAN)
def mean_as_a_scaled_sum(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    dim = t.dim(i)
    return scaled(t, t.op(K.SUM, a, dim=dim), Fraction(1, t.shapes[a][dim]))


@right(K.SUM)
def sum_as_a_scaled_mean(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    dim = t.dim(i)
    return scaled(t, t.op(K.MEAN, a, dim=dim), t.shapes[a][dim])


@right(K.SUM, K.MEAN)
def sum_of_a_sum(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    kind, attrs = t.kind(i), t.rows[i].attrs
    b, c = parts(t, a, K.ADD)
    if t.shapes[b] != t.shapes[c]:
        return None
    return t.op(K.ADD, t.made(kind, (b,), attrs), t.made(kind, (c,), attrs))


@right(K.SUM)
def constant_factor_outside_the_sum(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    dim, kind = t.dim(i), t.rows[a].kind
    if kind not in (K.MUL, K.DIV):
        return None
    b, c = t.rows[a].operands
    if t.shapes[c][dim] != 1 or t.shapes[b] != t.shapes[a]:
        return None
    return t.op(kind, t.op(K.SUM, b, dim=dim), c)


@right(K.SUM)
def sum_of_a_product_by_a_sum_of_a_factor(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    b, c = parts(t, a, K.MATMUL)
    dim, rank = t.dim(i), len(t.shapes[a])
    if dim == rank - 1:
        return t.op(K.MATMUL, b, t.op(K.SUM, c, dim=dim))
    return t.op(K.MATMUL, t.op(K.SUM, b, dim=dim), c) if dim == rank - 2 else None


@right(K.SUM, K.MAX)
def reduction_in_two_stages(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    kind, dim, shape = t.kind(i), t.dim(i), t.shapes[a]
    cut = next((n for n in (2, 3) if shape[dim] % n == 0 and shape[dim] > n), 1)
    split = t.op(K.RESHAPE, a, shape=(*shape[:dim], cut, shape[dim] // cut, *shape[dim + 1 :]))
    stages = t.op(kind, t.op(kind, split, dim=dim), dim=dim + 1)
    return t.op(K.RESHAPE, stages, shape=t.shapes[i])


@right(K.SUM, K.MEAN, K.MAX, K.RMS_NORM, K.SOFTMAX)
def reduction_of_a_transpose(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    rank, dim = len(t.shapes[i]), t.dim(i)
    if rank < 2 or dim < rank - 2 or len(row.operands) > 1:
        return None
    attrs = Attrs(dim=2 * rank - 3 - dim, eps=row.attrs.eps)
    return turned(t, t.made(t.kind(i), (turned(t, row.operands[0]),), attrs))


@right(K.MATMUL)
def product_associated(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    if t.rows[a].kind is K.MATMUL:
        c, d = t.rows[a].operands
        return t.op(K.MATMUL, c, t.op(K.MATMUL, d, b))
    c, d = parts(t, b, K.MATMUL)
    return t.op(K.MATMUL, t.op(K.MATMUL, a, c), d)


@right(K.MATMUL)
def product_of_transposes(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return turned(t, t.op(K.MATMUL, turned(t, b), turned(t, a)))


@right(K.MATMUL)
def product_as_a_sum(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    if len(t.shapes[a]) != 2:
        return None
    (m, k), n = t.shapes[a], t.shapes[b][1]
    wide = t.op(K.MUL, t.op(K.RESHAPE, a, shape=(m, k, 1)), t.op(K.RESHAPE, b, shape=(1, k, n)))
    return t.op(K.RESHAPE, t.op(K.SUM, wide, dim=1), shape=(m, n))


@right(K.ADD)
def two_products_as_one(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    (c, d), (e, f) = parts(t, a, K.MATMUL), parts(t, b, K.MATMUL)
    rank = len(t.shapes[c])
    return t.op(K.MATMUL, t.op(K.CONCAT, c, e, dim=rank - 1), t.op(K.CONCAT, d, f, dim=rank - 2))


def second(t: Terms, i: int) -> int:
    """The last operand of an extreme, a comparison or a selection, or the number in its place as a term."""
    row = t.rows[i]
    assert row.kind is not None
    if row.attrs.value is None:
        return row.operands[-1]
    like = row.operands[-1]
    return t.op(K.SHIFT, scaled(t, like, 0), shift=row.attrs.value)


def has_values(t: Terms, i: int) -> bool:
    """Whether a term has a value for all inputs: a selection discards what has none, and a product does not."""
    norms, divided = (K.RMS_NORM, K.LAYER_NORM), {K.LOG: 0, K.SQRT: 0, K.RECIPROCAL: 0, K.DIV: 1}
    for row in (t.rows[j] for j in t.reachable(i)):
        if row.kind in norms and row.attrs.eps is None:
            return False
        sign = t.signs[row.operands[divided[row.kind]]] if row.kind in divided else Sign.POSITIVE
        if sign is Sign.ANY or (sign is Sign.NONNEGATIVE and row.kind is not K.SQRT):
            return False
    return True


@right(K.SELECT)
def branches_and_mask_turned(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = t.rows[i].operands[:2]
    return t.op(K.SELECT, t.op(K.LOGICAL_NOT, mask), second(t, i), a)


@right(K.SELECT)
def selection_as_a_sum(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = t.rows[i].operands[:2]
    first = t.op(K.SELECT, mask, a, value=Fraction(0))
    return t.op(K.ADD, first, t.op(K.SELECT, t.op(K.LOGICAL_NOT, mask), second(t, i), value=Fraction(0)))


@right(K.SELECT)
def selection_by_a_factor(t: Terms, i: int, rng: random.Random) -> int | None:
    mask, a = t.rows[i].operands[:2]
    b, factor = second(t, i), t.op(K.CAST, mask, dtype=DType.FLOAT32)
    if not (has_values(t, a) and has_values(t, b)):
        return None
    return t.op(K.ADD, b, t.op(K.MUL, factor, t.op(K.SUB, a, b)))


@right(K.SELECT)
def selection_of_a_selection(t: Terms, i: int, rng: random.Random) -> int:
    mask, a = t.rows[i].operands[:2]
    return t.op(K.SELECT, mask, i, second(t, i)) if rng.random() < 0.5 else t.op(K.SELECT, mask, a, i)


@right(K.MUL, K.ADD, K.SUB, K.DIV)
def operator_of_both_branches(t: Terms, i: int, rng: random.Random) -> int | None:
    a, c = t.rows[i].operands
    mask, b = parts(t, a, K.SELECT)[:2]
    if t.shapes[c] != t.shapes[a]:
        return None
    kind = t.kind(i)
    return t.op(K.SELECT, mask, t.op(kind, b, c), t.op(kind, second(t, a), c))


@right(K.EXP, K.SQUARE, K.SCALE, K.TANH, K.SIGMOID, K.RELU, K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def function_of_both_branches(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    (a,) = row.operands
    mask, b = parts(t, a, K.SELECT)[:2]
    kind = t.kind(i)
    return t.op(K.SELECT, mask, t.made(kind, (b,), row.attrs), t.made(kind, (second(t, a),), row.attrs))


@right(K.LT, K.LE, K.GT, K.GE, K.EQ)
def difference_compared(t: Terms, i: int, rng: random.Random) -> int:
    a = t.rows[i].operands[0]
    return t.op(t.kind(i), t.op(K.SUB, a, second(t, i)), value=Fraction(0))


@right(K.LT, K.LE, K.GT, K.GE, K.EQ)
def comparison_turned(t: Terms, i: int, rng: random.Random) -> int:
    turned_around = {K.LT: K.GT, K.LE: K.GE, K.GT: K.LT, K.GE: K.LE, K.EQ: K.EQ}
    return t.op(turned_around[t.kind(i)], second(t, i), t.rows[i].operands[0])


@right(K.LT, K.LE, K.GT, K.GE)
def comparison_negated(t: Terms, i: int, rng: random.Random) -> int:
    opposite = {K.LT: K.GE, K.LE: K.GT, K.GT: K.LE, K.GE: K.LT}
    row = t.rows[i]
    return t.op(K.LOGICAL_NOT, t.made(opposite[t.kind(i)], row.operands, row.attrs))


@right(K.LT, K.LE, K.GT, K.GE, K.EQ)
def both_sides_doubled(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(t.kind(i), scaled(t, t.rows[i].operands[0], 2), scaled(t, second(t, i), 2))


@right(K.LOGICAL_NOT)
def conjunction_negated(t: Terms, i: int, rng: random.Random) -> int:
    a, b = parts(t, t.rows[i].operands[0], K.MUL)
    return t.op(K.MAXIMUM, t.op(K.LOGICAL_NOT, a), t.op(K.LOGICAL_NOT, b))


@right(K.DIV_NO_NAN)
def dividend_scaled(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    return scaled(t, t.op(K.DIV_NO_NAN, a, scaled(t, b, 3)), 3)


@right(K.DIV_NO_NAN)
def exponentials_in_both(t: Terms, i: int, rng: random.Random) -> int:
    a, b = t.rows[i].operands
    factor = t.op(K.EXP, t.op(K.TANH, b))
    return t.op(K.DIV_NO_NAN, t.op(K.MUL, a, factor), t.op(K.MUL, b, factor))


@right(K.DIV_NO_NAN)
def quotient_selected(t: Terms, i: int, rng: random.Random) -> int | None:
    a, b = t.rows[i].operands
    if t.shapes[a] != t.shapes[b] or not has_values(t, i):
        return None
    return t.op(K.SELECT, t.op(K.EQ, b, value=Fraction(0)), scaled(t, a, 0), i)


@right(K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def rounded_twice(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(t.kind(i), i)


@right(K.ROUND_FLOAT16, K.ROUND_BFLOAT16)
def negative_rounded(t: Terms, i: int, rng: random.Random) -> int:
    return scaled(t, t.op(t.kind(i), scaled(t, t.rows[i].operands[0], -1)), -1)


@right(K.RMS_NORM)
def norm_written_out(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    (a,) = row.operands
    if row.attrs.eps is not None:
        return None
    return t.op(K.DIV, a, t.op(K.SQRT, t.op(K.MEAN, t.op(K.SQUARE, a), dim=row.attrs.dim)))


@right(K.RMS_NORM)
def norm_of_a_scaled_operand(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    eps = None if row.attrs.eps is None else 9 * row.attrs.eps
    return t.op(K.RMS_NORM, scaled(t, row.operands[0], 3), dim=row.attrs.dim, eps=eps)


@right(K.LAYER_NORM)
def centred_norm(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    (a,) = row.operands
    centred = t.op(K.SUB, a, t.op(K.MEAN, a, dim=row.attrs.dim))
    return t.op(K.RMS_NORM, centred, dim=row.attrs.dim, eps=row.attrs.eps)


@right(K.LAYER_NORM)
def variance_by_moments(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    (a,) = row.operands
    if row.attrs.eps is not None:
        return None
    mean = t.op(K.MEAN, a, dim=row.attrs.dim)
    variance = t.op(K.SUB, t.op(K.MEAN, t.op(K.SQUARE, a), dim=row.attrs.dim), t.op(K.SQUARE, mean))
    return t.op(K.DIV, t.op(K.SUB, a, mean), t.op(K.SQRT, variance))


@right(K.SOFTMAX)
def softmax_written_out(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    e = t.op(K.EXP, a)
    return t.op(K.DIV, e, t.op(K.SUM, e, dim=t.rows[i].attrs.dim))


@right(K.SOFTMAX)
def softmax_shifted(t: Terms, i: int, rng: random.Random) -> int:
    (a,) = t.rows[i].operands
    dim = t.rows[i].attrs.dim
    shift = t.op(rng.choice((K.MAX, K.MEAN, K.SUM)), a, dim=dim)
    e = t.op(K.EXP, t.op(K.SUB, a, shift))
    return t.op(K.DIV, e, t.op(K.SUM, e, dim=dim))


@right(K.TRANSPOSE, K.RESHAPE)
def layout_before_the_function(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    inner = t.rows[row.operands[0]]
    if inner.kind not in UNARY:
        return None
    return t.made(inner.kind, (t.made(t.kind(i), inner.operands, row.attrs),), inner.attrs)


@right(K.TRANSPOSE)
def transposes_of_both_operands(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    inner = t.rows[row.operands[0]]
    if inner.kind not in BINARY:
        return None
    return t.made(inner.kind, tuple(t.made(t.kind(i), (j,), row.attrs) for j in inner.operands), inner.attrs)


@right(K.CONCAT)
def concatenation_of_transposes(t: Terms, i: int, rng: random.Random) -> int | None:
    row = t.rows[i]
    rank, dim = len(t.shapes[i]), t.dim(i)
    if rank != 2:
        return None
    a, b = row.operands
    return turned(t, t.op(K.CONCAT, turned(t, a), turned(t, b), dim=1 - dim))


@right(*UNARY)
def function_of_both_parts(t: Terms, i: int, rng: random.Random) -> int:
    row = t.rows[i]
    a, b = parts(t, row.operands[0], K.CONCAT)
    dim = t.rows[row.operands[0]].attrs.dim
    return t.op(K.CONCAT, t.made(t.kind(i), (a,), row.attrs), t.made(t.kind(i), (b,), row.attrs), dim=dim)


@right(None)
def transposed_twice(t: Terms, i: int, rng: random.Random) -> int:
    return turned(t, turned(t, i))


@right(None)
def flattened_and_back(t: Terms, i: int, rng: random.Random) -> int:
    shape = t.shapes[i]
    size = 1
    for extent in shape:
        size *= extent
    return t.op(K.RESHAPE, t.op(K.RESHAPE, i, shape=(size,)), shape=shape)


@right(None)
def doubled_less_itself(t: Terms, i: int, rng: random.Random) -> int:
    return t.op(K.SUB, scaled(t, i, 2), i)


@right(None)
def multiplied_and_divided(t: Terms, i: int, rng: random.Random) -> int:
    c = t.op(K.EXP, scaled(t, i, Fraction(1, 8)))
    return t.op(K.DIV, t.op(K.MUL, i, c), c)


def split_dim(extent: int) -> int:
    """A way to cut an extent into equal parts."""
    return next((n for n in (2, 3) if extent % n == 0), 1)


def matmul_block(t: Terms, i: int, fault: str = "") -> int:
    """A product as a kernel with two grid axes and a loop; a fault changes one map."""
    a, b = parts(t, i, K.MATMUL)
    if len(t.shapes[a]) != 2:
        raise Mismatch("rank")
    (m, k), n = t.shapes[a], t.shapes[b][1]
    rows, columns, loop = split_dim(m), split_dim(n), split_dim(k)
    omap = (0, 1, None)
    if fault == "omap":
        omap = (1, 0, None)
        if m // rows * columns != m or n // columns * rows != n:
            raise Mismatch("shape")
    loads = (InputIterator((0, None, None), 1), InputIterator((None, 1, None), None if fault == "fmap" else 0))
    ops = [Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (2,))]
    if fault == "fmap":
        # The whole of b meets the parts of a joined again: b is added once per iteration.
        ops = [Op(K.ACCUM_CONCAT, (0,), Attrs(dim=1)), Op(K.ACCUM_SUM, (1,)), Op(K.MATMUL, (2, 3))]
    block = BlockGraph((rows, columns, 1), (128, 1, 1), loop, 1, loads, tuple(ops), (OutputSaver(1 + len(ops), omap),))
    if rows * columns * loop == 1:
        raise Mismatch("nothing to split")
    return t.kernel(block, (a, b), i)


@right(K.MATMUL)
def product_in_a_kernel(t: Terms, i: int, rng: random.Random) -> int:
    return matmul_block(t, i)


@right(K.SUM)
def sum_in_a_kernel(t: Terms, i: int, rng: random.Random) -> int | None:
    (a,) = t.rows[i].operands
    dim, shape = t.dim(i), t.shapes[a]
    if len(shape) != 2:
        return None
    grid, loop = split_dim(shape[1 - dim]), split_dim(shape[dim])
    load = InputIterator((1 - dim, None, None), dim)
    ops = (Op(K.SUM, (0,), Attrs(dim=dim)), Op(K.ACCUM_SUM, (1,)))
    block = BlockGraph((grid, 1, 1), (128, 1, 1), loop, 1, (load,), ops, (OutputSaver(2, (1 - dim, None, None)),))
    return t.kernel(block, (a,), i)
