"""Right rewrites of norms, softmax and layouts, and of operators into kernels. See ``fuzz_rules``."""

from __future__ import annotations

import random
from fractions import Fraction

from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import Attrs
from tests.kit.fuzz.fuzz import BINARY, UNARY, Mismatch, Terms
from tests.kit.fuzz.fuzz_rules import K, parts, right, scaled, turned


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
