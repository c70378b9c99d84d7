"""Padding rules for products, attention, reductions and norms along and next to dynamic dims; see ``padded_graphs``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch

from mirage_formal.torch.dynamic_shapes.dynamic_extents import DynamicExtent
from mirage_formal.torch.dynamic_shapes.padded_graphs import (
    Behinds,
    BucketTensor,
    OperatorStep,
    PaddingContent,
    Result,
    Rule,
    operator_results,
)
from mirage_formal.torch.imported_values import unsupported_error

_aten = torch.ops.aten
_LOWEST: Final = float("-inf")


# --- products ---------------------------------------------------------------------------------------------------------


def product(first: str, second: str, *, turned: bool = False) -> Rule:
    """Return the rule of a matrix product, with a transposed second operand and an added operand if asked for."""

    def rule(step: OperatorStep) -> Result:
        """Apply a matrix product.

        Sound: along a length that is summed over, one factor is zeros behind it and the other is finite, so the sum is
        over the positions below it. An index along any other dim is that of the operand that has it.
        """
        a, b = step.tensor(first), step.tensor(second)
        inner = b.rank - 1 if turned or b.rank == 1 else b.rank - 2
        if a.extents[-1] != b.extents[inner]:
            raise unsupported_error("expected equal lengths to be summed over")
        if a.long(-1) and PaddingContent.ZERO not in (a.behind[-1], b.behind[inner]):
            a = step.masked(a, [a.rank - 1])
        rows: Behinds = (*a.behind[:-1], *([] if b.rank == 1 else [None]))
        last = b.behind[-2 if turned else -1]
        columns: Behinds = () if b.rank == 1 else (*b.behind[:-2], *([] if a.rank == 1 else [None]), last)
        added = [item for name, item in step.given.items() if name in ("bias", "self") and name not in (first, second)]
        behind = step.joined([rows, columns], product=True)
        if any(isinstance(item, BucketTensor) for item in added):
            more = [item.behind for item in added if isinstance(item, BucketTensor)]
            behind = step.joined([behind, *more])
            behind = tuple(
                b and (PaddingContent.REPEATED if b is PaddingContent.REPEATED else PaddingContent.OTHER)
                for b in behind
            )
        return step.result(step.call({first: a}), behind)

    return rule


def attention(step: OperatorStep) -> Result:
    """Apply attention; keys behind their length have no weight.

    Sound: a mask leaves them out, or they are behind the length of the queries as well and causal attention lets a
    query read no key behind its own place. Weights of 0 times finite values are 0. A query behind its length has a key
    to read: that of the last query below it, or with causal attention the first one.
    """
    q, k, v, given = step.tensor("query"), step.tensor("key"), step.tensor("value"), step.given
    mask, causal = given.get("attn_mask"), given["is_causal"]
    if q.long(-1) or v.long(-1) or k.extents[-2] != v.extents[-2] or given["dropout_p"]:
        raise unsupported_error("expected heads of known extents, keys and values of one length, and no dropout")
    if given.get("enable_gqa") and (k.long(-3) or q.long(-3)):
        raise unsupported_error("expected known numbers of heads")
    rows = [(*q.behind[:-1], None), *((*item.behind[:-2], None, None) for item in (k, v))]
    rows += [(*mask.behind[:-1], None)] if isinstance(mask, BucketTensor) and mask.rank > 1 else []
    found = list(step.joined(rows))
    keys = k.extents[-2]
    if causal and q.long(-2):
        found[-2] = PaddingContent.OTHER
    if not isinstance(keys, DynamicExtent) or (causal and q.extents[-2] == keys):
        return step.result(step.call(), tuple(found))
    if causal:
        raise unsupported_error("expected causal attention of as many queries as keys")
    upper = step.bucket.uppers[keys]
    if mask is None:
        return step.result(step.call({"attn_mask": step.bucket.mask(keys, [1, upper])}), tuple(found))
    if mask.extents[-1] not in (1, keys):
        raise unsupported_error("expected a mask for as many keys as there are")
    kept = step.bucket.mask(keys, [*[1] * (mask.rank - 1), upper])
    if mask.node.meta["val"].dtype is torch.bool:
        both = step.bucket.emit(_aten.logical_and.default, (mask.node, kept))
        return step.result(step.call({"attn_mask": both}), tuple(found))
    return step.result(_attention(step, q, k, v, mask), tuple(found))


def _attention(step: OperatorStep, q: BucketTensor, k: BucketTensor, v: BucketTensor, mask: BucketTensor) -> Any:
    """Write attention as products and a softmax, with numbers that are added to the scores."""
    given, emit = step.given, step.bucket.emit
    keys, values = k.node, v.node
    if given.get("enable_gqa"):
        times = q.node.meta["val"].shape[-3] // k.node.meta["val"].shape[-3]
        keys, values = (emit(_aten.repeat_interleave.self_int, (x, times, -3)) for x in (keys, values))
    scale = q.node.meta["val"].shape[-1] ** -0.5 if given.get("scale") is None else given["scale"]
    scores = emit(_aten.matmul.default, (q.node, emit(_aten.transpose.int, (keys, -2, -1))))
    scores = emit(_aten.add.Tensor, (emit(_aten.mul.Scalar, (scores, scale)), mask.node))
    length = k.extents[-2]
    assert isinstance(length, DynamicExtent)
    shape = [*[1] * (scores.meta["val"].dim() - 1), step.bucket.uppers[length]]
    scores = emit(_aten.where.ScalarOther, (step.bucket.mask(length, shape), scores, _LOWEST))
    return emit(_aten.matmul.default, (emit(_aten.softmax.int, (scores, -1)), values))


# --- along a dim ------------------------------------------------------------------------------------------------------


def _dims(step: OperatorStep, value: BucketTensor) -> list[int]:
    given = step.given.get("dim")
    wanted = given if isinstance(given, list) else [] if given is None else [given]
    return [d % value.rank for d in wanted] or list(range(value.rank))


def _drop_reduced_padding(step: OperatorStep, value: BucketTensor, dims: Sequence[int]) -> Behinds:
    """Return the padding content of the remaining dims of a reduction; zeros and copies stay."""
    keep = bool(step.given.get("keepdim"))
    return tuple(None if d in dims else b for d, b in enumerate(value.behind) if keep or d not in dims)


def sum_rule(step: OperatorStep) -> Result:
    """Apply a sum over dims.

    Sound: zeros behind the length add nothing.
    """
    value = step.tensor("self")
    dims = _dims(step, value)
    return step.result(step.call({"self": step.masked(value, dims)}), _drop_reduced_padding(step, value, dims))


def mean(step: OperatorStep) -> Result:
    """Apply a mean as a sum and a product with 1 / length for each length.

    Sound: a sum over elements times 1 / their number, which is the product of the extents.
    """
    value = step.tensor("self")
    dims = _dims(step, value)
    lengths = [n for n in (value.extents[d] for d in dims) if isinstance(n, DynamicExtent)]
    if not lengths:
        return step.result(step.call(), _drop_reduced_padding(step, value, dims))
    keep, dtype = bool(step.given.get("keepdim")), step.node.meta["val"].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    arguments = (step.masked(value, dims).node, dims, keep)
    found = step.bucket.emit(_aten.sum.dim_IntList, arguments, {"dtype": wide})
    known = prod(n for n in (value.extents[d] for d in dims) if isinstance(n, int))
    if known != 1:
        found = step.bucket.emit(_aten.mul.Scalar, (found, 1 / known))
    for length in lengths:
        part = step.bucket.part(length, wide)
        shape = [1] * found.meta["val"].dim()
        found = step.bucket.emit(_aten.mul.Tensor, (found, step.bucket.emit(_aten.view.default, (part, shape))))
    if wide is not dtype:
        found = step.bucket.emit(_aten.to.dtype, (found, dtype))
    return step.result(found, _drop_reduced_padding(step, value, dims))


def extreme(step: OperatorStep) -> Result:
    """Apply a maximum or minimum over dims.

    Sound: copies of a position below the length change no extreme.
    """
    value = step.tensor("self")
    dims = _dims(step, value)
    if any(value.behind[d] not in (None, PaddingContent.REPEATED) for d in dims):
        raise unsupported_error("what lies behind the length may be larger")
    closed = _drop_reduced_padding(step, value, dims)
    if not isinstance(step.node.meta["val"], tuple | list):
        return step.result(step.call(), closed)
    if any(user.args[1] for user in step.node.users):
        raise unsupported_error("indices may be behind the length")
    return operator_results(step, step.call(), [closed, closed])


def softmax(step: OperatorStep) -> Result:
    """Apply a softmax along a dim.

    Sound: minus infinity behind the length has no weight and adds nothing to the sum.
    """
    value = step.tensor("self")
    dim = step.given["dim"] % value.rank
    behind = list(value.behind)
    if value.long(dim):
        behind[dim] = PaddingContent.ZERO
    found = [PaddingContent.OTHER if b is PaddingContent.ZERO and d != dim else b for d, b in enumerate(behind)]
    return step.result(step.call({"self": step.masked(value, [dim], _LOWEST)}), tuple(found))


def variance_rule(step: OperatorStep) -> Result:
    """Apply a variance or standard deviation along static dims.

    Sound: each index along the other dims is reduced by itself, and that of zeros is zero.
    """
    value = step.tensor("self")
    dims = _dims(step, value)
    if any(value.long(d) for d in dims):
        raise unsupported_error("it works along a dim with a length")
    return step.result(step.call(), _drop_reduced_padding(step, value, dims))


def log_softmax(step: OperatorStep) -> Result:
    """Apply a log-softmax along a static dim.

    Sound: each index along the other dims has its own weights.
    """
    value = step.tensor("self")
    if value.long(step.given["dim"] % value.rank):
        raise unsupported_error("it works along a dim with a length, behind which it would be minus infinity")
    behind = tuple(
        b and (PaddingContent.REPEATED if b is PaddingContent.REPEATED else PaddingContent.OTHER) for b in value.behind
    )
    return step.result(step.call(), behind)


def logsumexp(step: OperatorStep) -> Result:
    """Apply the logarithm of a sum of exponentials, as separate operators.

    Sound: log sum e^x is m + log sum e^(x - m) for any m; copies change no extreme, and zeros no sum.
    """
    value, emit = step.tensor("self"), step.bucket.emit
    dims = _dims(step, value)
    step.total([value])
    if not any(value.long(d) for d in dims):
        return step.result(step.call(), _drop_reduced_padding(step, value, dims))
    largest = emit(_aten.amax.default, (value.node, dims, True))
    apart = emit(_aten.exp.default, (emit(_aten.sub.Tensor, (value.node, largest)),))
    weights = step.masked(BucketTensor(apart, value.extents, value.behind), dims)
    keep = bool(step.given.get("keepdim"))
    found = emit(_aten.log.default, (emit(_aten.sum.dim_IntList, (weights.node, dims, keep)),))
    shape = list(found.meta["val"].shape)
    found = emit(_aten.add.Tensor, (found, emit(_aten.reshape.default, (largest, shape))))
    return step.result(found, _drop_reduced_padding(step, value, dims))


def norm(step: OperatorStep) -> Result:
    """Apply a norm over the last dims, which are static.

    Sound: each index along the other dims is normalised by itself; the root is not of 0, or copies are copies.
    """
    value, weights = step.tensor("input"), step.tensors[1:]
    last = range(value.rank - len(step.given["normalized_shape"]), value.rank)
    if any(value.long(d) for d in last) or any(b is not None for item in weights for b in item.behind):
        raise unsupported_error("it works along a dim with a length")
    if step.given.get("eps") == 0:
        step.total([value])
    behind = tuple(
        b and (PaddingContent.REPEATED if b is PaddingContent.REPEATED else PaddingContent.OTHER) for b in value.behind
    )
    return step.result(step.call(), behind)


def concat(step: OperatorStep) -> Result:
    """Concatenate tensors along a static dim or a new one.

    Sound: an index along other dims stays that index.
    """
    values = step.given["tensors"]
    rank, dim = len(step.extents), step.given.get("dim") or 0
    at = dim % rank
    if isinstance(step.extents[at], DynamicExtent) or any(item.rank == rank and item.long(at) for item in values):
        raise unsupported_error("it puts positions behind a length, which is known when a call is made")
    wide = [item.behind if item.rank == rank else (*item.behind[:at], None, *item.behind[at:]) for item in values]
    zero = [all(row[d] is PaddingContent.ZERO for row in wide) for d in range(rank)]
    behind = tuple(PaddingContent.ZERO if z else b for z, b in zip(zero, step.joined(wide), strict=True))
    return step.result(step.call(), behind)


__all__ = [
    "attention",
    "concat",
    "extreme",
    "log_softmax",
    "logsumexp",
    "mean",
    "norm",
    "product",
    "softmax",
    "sum_rule",
    "variance_rule",
]
