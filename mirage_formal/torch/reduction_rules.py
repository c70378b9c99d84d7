"""Import rules of products, reductions, norms and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import prod, sqrt
from typing import Final

import mirage_formal.torch.index_maps as views
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.types import DType
from mirage_formal.torch.call import LARGEST, NARROW_LARGEST, OperatorCall, Written
from mirage_formal.torch.imported_values import ImportedGraph, ImportedValue, unsupported_error
from mirage_formal.torch.index_maps import View
from mirage_formal.torch.pointwise_rules import log_of_sigmoid, log_one_plus
from mirage_formal.torch.view_propagation import Maker, emit_broadcast_operator, product
from mirage_formal.torch.view_rules import reshape_value, with_view

NO_CONVOLUTION: Final = "programs have no convolution, but for one that looks at one place at a time"


def swap_last_dims(value: ImportedValue) -> ImportedValue:
    """Return a view with the last two dims swapped."""
    return with_view(value, View((*value.view.dims[:-2], value.view.dims[-1], value.view.dims[-2]), value.view.offset))


def _torch_matmul(call: OperatorCall, a: ImportedValue, b: ImportedValue) -> ImportedValue:
    """Write torch's matrix product.

    A vector on the left is a row, a vector on the right is a column, and its dim is dropped.
    """
    first, second = call.alike([a, b])
    left = with_view(first, View(((), *first.view.dims), first.view.offset)) if len(a.shape) == 1 else first
    right = with_view(second, View((*second.view.dims, ()), second.view.offset)) if len(b.shape) == 1 else second
    found = product(call.program, left, right)
    dims = list(found.view.dims)
    if len(b.shape) == 1:
        dims.pop()
    if len(a.shape) == 1:
        dims.pop(-1 if len(b.shape) == 1 else -2)
    return with_view(found, View(tuple(dims), found.view.offset))


def matmul(call: OperatorCall) -> Written:
    """Write ``matmul``: a product of tensors of any rank."""
    names = [name for name in ("other", "mat2", "vec2", "vec", "tensor") if name in call.given]
    return _torch_matmul(call, call.value(), call.value(names[0]))


def linear(call: OperatorCall) -> Written:
    """Write ``linear``: x w^T + b; the transposed weight is a view."""
    weight = call.value("weight")
    found = _torch_matmul(call, call.value("input"), swap_last_dims(weight) if len(weight.shape) > 1 else weight)
    bias = call.optional("bias")
    return found if bias is None else call.map(lambda graph, x, b: graph.add(x, b), found, bias)


def addmm(call: OperatorCall) -> Written:
    """Write ``addmm``: beta c + alpha a b."""
    names = ("mat1", "mat2") if "mat1" in call.given else ("batch1", "batch2")
    found = _torch_matmul(call, call.value(names[0]), call.value(names[1]))
    alpha, beta = call.factor("alpha"), call.number("beta")

    def made(graph: ImportedGraph, x: Tensor, c: Tensor) -> Tensor:
        x = x if alpha == 1 else graph.scale(x, alpha)
        if beta == 0:  # the added term is ignored, even NaN
            return x
        return graph.add(c if beta == 1 else graph.scale(c, beta), x)

    return call.map(made, found, call.value())


def attention(call: OperatorCall) -> Written:
    """Write attention, softmax(q k^T scale + mask) v, with a boolean or additive mask, or a causal one.

    A query without a key has a zero result, as in torch: its exponentials are all 0, and their sum, 0, is not divided
    by.
    """
    q, k, v = (call.value(name) for name in ("query", "key", "value"))
    if call.given["dropout_p"]:
        raise unsupported_error("expected dropout_p = 0, got dropout in training", "call module.eval() first")
    if call.given.get("enable_gqa"):
        k, v = (_repeat_groups(call, item, q.shape[-3]) for item in (k, v))
    scale = Fraction(repr(1 / sqrt(q.shape[-1]))) if call.given.get("scale") is None else call.factor("scale")
    scores = call.map(lambda graph, x: graph.scale(x, scale), _torch_matmul(call, q, swap_last_dims(k)))
    mask = call.optional("attn_mask")
    if call.given["is_causal"]:
        if mask is not None:
            raise unsupported_error("expected attn_mask or is_causal, got both")
        mask = call.triangle(q.shape[-2], k.shape[-2], side="lower")
    if mask is not None and mask.dtype.floating:
        scores, mask = call.map(lambda graph, x, m: graph.add(x, m), scores, mask), None
    weights = _weights(call, scores, mask, len(scores.shape) - 1)
    return _torch_matmul(call, weights, v)


def _repeat_groups(call: OperatorCall, value: ImportedValue, heads: int) -> ImportedValue:
    """Repeat the keys or values of each group for the query heads that share them (grouped-query attention)."""
    *lead, groups, rows, columns = value.shape
    apart = reshape_value(call.program, value, (*lead, groups, 1, rows, columns))
    wide = with_view(apart, views.expand_view(apart.view, (*lead, groups, heads // groups, rows, columns)))
    return reshape_value(call.program, wide, (*lead, heads, rows, columns))


def _softmax(call: OperatorCall, value: ImportedValue, axis: int) -> ImportedValue:
    return emit_broadcast_operator(call.program, [value], lambda g, t, axes: g.softmax(t[0], axes[0]), {axis}, one=True)


def _finite_bound(scores: ImportedValue) -> Fraction:
    """Return a number below all scores that a kernel may store in their type, and that is finite there.

    Scores of float16 are computed in float32, where they may lie below the lowest number of float16.
    """
    return -NARROW_LARGEST[DType.BFLOAT16] if scores.dtype is DType.BFLOAT16 else -LARGEST


def _kept_softmax(call: OperatorCall, scores: ImportedValue, keep: ImportedValue, axis: int) -> ImportedValue:
    """Write the softmax of scores where a mask is 1, and 0 elsewhere.

    Scores that are masked have no influence, not even on the maximum. A fully masked row is 0 / 0.
    """
    lowest = _finite_bound(scores)

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        x, kept = tensors
        largest = graph.max(graph.select(kept, x, lowest), axes[0])
        weights = graph.select(kept, graph.exp(graph.sub(x, largest)), 0)
        return graph.div(weights, graph.sum(weights, axes[0]))

    return emit_broadcast_operator(call.program, [scores, keep], made, {axis}, one=True)


def _weights(call: OperatorCall, scores: ImportedValue, keep: ImportedValue | None, axis: int) -> ImportedValue:
    """Write the weights of attention: a softmax that is 0 for masked scores and for rows of minus infinity only.

    The maximum of such a row is finite, so e to minus infinity less it is 0 and not NaN.
    """
    lowest = _finite_bound(scores)

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        x, *mask = tensors
        kept = graph.select(mask[0], x, lowest) if mask else x
        weights = graph.exp(graph.sub(x, graph.maximum(graph.max(kept, axes[0]), lowest)))
        if mask:
            weights = graph.select(mask[0], weights, 0)
        return graph.div_no_nan(weights, graph.sum(weights, axes[0]))

    return emit_broadcast_operator(call.program, [scores] if keep is None else [scores, keep], made, {axis}, one=True)


def softmax(call: OperatorCall) -> Written:
    """Write ``softmax`` along one dim; minus infinity has weight 0, and a row of only minus infinity has no value."""
    value = call.value()
    axis = call.whole("dim") % max(len(value.shape), 1)
    if value.keep is None:
        return _softmax(call, call.accumulated(value), axis)
    scores = call.accumulated(ImportedValue(value.base, value.view))
    return _kept_softmax(call, scores, value.keep, axis)


def log_softmax(call: OperatorCall) -> Written:
    """Write ``log_softmax`` along one dim."""
    value = call.accumulated(call.value())
    axis = call.whole("dim") % max(len(value.shape), 1)
    return _apply_along_in_float32(call, value, lambda g, t, axes: g.log_softmax(t[0], axes[0]), {axis}, one=True)


def _apply_along_in_float32(
    call: OperatorCall, value: ImportedValue, make: Maker, dims: set[int], *, one: bool = False
) -> ImportedValue:
    """Add a composite operator along dims, with float32 between its steps, as torch computes it.

    The operand is cast to float32, and the result to torch's element type.
    """
    found = emit_broadcast_operator(call.program, [call.cast(value, DType.FLOAT32)], make, dims, one=one)
    return call.cast(found, call.target([value]))


def _reduce_dims(call: OperatorCall, value: ImportedValue, dims: Sequence[int], name: str) -> ImportedValue:
    """Write a reduction over dims, one dim after another; sums of narrow types are kept in float32 in between."""

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        found, dtype = tensors[0], tensors[0].dtype
        if name in ("sum", "mean") and len(axes) > 1:
            found = graph.cast(found, DType.FLOAT32) if dtype is not DType.FLOAT32 else found
        for axis in axes:
            found = getattr(graph, name)(found, axis)
        return found if found.dtype is dtype else graph.cast(found, dtype)

    return emit_broadcast_operator(call.program, [value], made, set(dims))


def _drop_reduced_dims(call: OperatorCall, value: ImportedValue, dims: Sequence[int]) -> ImportedValue:
    """Return a reduced value with its reduced dims of extent 1 (keepdim), or without them."""
    if call.given.get("keepdim"):
        return value
    kept = tuple(digits for axis, digits in enumerate(value.view.dims) if axis not in dims)
    return with_view(value, View(kept, value.view.offset))


def reduction(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a sum, mean, maximum or minimum over dims."""

    def rule(call: OperatorCall) -> Written:
        value = call.accumulated(call.value())
        dims = call.dims("dim", len(value.shape))
        if value.dtype is DType.BOOL:
            raise unsupported_error("expected numbers, got a mask: what torch has of it is integers")
        return _drop_reduced_dims(call, _reduce_dims(call, value, dims, name), dims)

    return rule


def any_or_all(*, every: bool) -> Callable[[OperatorCall], Written]:
    """Return the rule of ``any`` or ``all`` along dims."""

    def rule(call: OperatorCall) -> Written:
        mask = call.nonzero(call.value())
        dims = call.dims("dim", len(mask.shape))
        if every:
            mask = call.logic(lambda graph, m: graph.logical_not(m), mask)
        found = _drop_reduced_dims(call, _reduce_dims(call, mask, dims, "max"), dims)
        return call.logic(lambda graph, m: graph.logical_not(m), found) if every else found

    return rule


def extreme(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a maximum or minimum along one dim; only its values, not its indices, are imported."""

    def rule(call: OperatorCall) -> Written:
        value = call.value()
        dims = call.dims("dim", len(value.shape))
        return (_drop_reduced_dims(call, _reduce_dims(call, value, dims, name), dims),)

    return rule


def logsumexp(call: OperatorCall) -> Written:
    """Write ``logsumexp``: the maximum m plus log sum e^(x - m); an infinite m is replaced by 0."""
    value = call.value()
    dims = call.dims("dim", len(value.shape))

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        if not axes:
            return tensors[0]
        largest = graph.max(tensors[0], axes[0])
        for axis in axes[1:]:
            largest = graph.max(largest, axis)
        largest = graph.select(graph.le(graph.abs(largest), LARGEST), largest, 0)
        below = graph.sum(graph.exp(graph.sub(tensors[0], largest)), tuple(axes))
        return graph.add(graph.log(below), largest)

    return _drop_reduced_dims(call, _apply_along_in_float32(call, value, made, set(dims)), dims)


def variance_rule(*, root: bool) -> Callable[[OperatorCall], Written]:
    """Return the rule of a variance or standard deviation."""

    def rule(call: OperatorCall) -> Written:
        value = call.value()
        dims = call.dims("dim", len(value.shape))
        correction = call.number("correction") if call.given.get("correction") is not None else Fraction(1)
        if "unbiased" in call.given:
            correction = Fraction(int(bool(call.given["unbiased"])))
        count = prod(value.shape[d] for d in dims)
        if count - correction <= 0:
            raise unsupported_error(f"expected more than {correction} elements, got {count}")

        def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
            x = tensors[0]
            apart = graph.square(graph.sub(x, graph.mean(x, tuple(axes))))
            found = graph.scale(graph.sum(apart, tuple(axes)), 1 / (count - correction))
            return graph.sqrt(found) if root else found

        return _drop_reduced_dims(call, _apply_along_in_float32(call, value, made, set(dims)), dims)

    return rule


def vector_norm(call: OperatorCall) -> Written:
    """Write ``vector_norm``: the 1-norm, the 2-norm or the largest magnitude."""
    value = call.accumulated(call.value())
    dims = call.dims("dim", len(value.shape))
    order = call.given.get("ord", call.given.get("p", 2))
    if order not in (1, 2, float("inf")):
        raise unsupported_error(f"expected a norm of order 1, 2 or inf, got {order}")

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        x = tensors[0]
        if not axes:
            return graph.abs(x)
        if order == 2:
            return graph.sqrt(graph.sum(graph.square(x), tuple(axes)))
        return (graph.sum if order == 1 else graph.max)(graph.abs(x), tuple(axes))

    return _drop_reduced_dims(call, _apply_along_in_float32(call, value, made, set(dims)), dims)


def _normalise(
    call: OperatorCall, name: str, values: Sequence[ImportedValue], dims: set[int], eps: Fraction
) -> ImportedValue:
    """Write an RMS norm or layer norm along dims, with its weight."""

    def made(graph: ImportedGraph, tensors: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
        x, *weight = tensors
        more = {"weight": weight[0]} if weight else {}
        if name == "rms_norm":
            return graph.rms_norm(x, dim=axes[0], eps=eps, **more)
        return graph.layer_norm(x, axes[0], eps=eps, **more)

    return emit_broadcast_operator(call.program, values, made, dims, one=True)


def norm(name: str) -> Callable[[OperatorCall], Written]:
    """Return the rule of a norm over the last dims, with a weight and a bias."""

    def rule(call: OperatorCall) -> Written:
        value = call.value("input")
        rank = len(value.shape)
        dims = set(range(rank - len(call.wholes("normalized_shape")), rank))
        weight, bias = call.optional("weight"), call.optional("bias") if "bias" in call.given else None
        eps = call.given.get("eps")
        exact = Fraction(repr(_epsilon(value))) if eps is None else call.number("eps")
        values = call.alike([value] if weight is None else [value, weight])
        found = _normalise(call, name, values, dims, exact)
        return found if bias is None else call.map(lambda graph, x, b: graph.add(x, b), found, bias)

    return rule


def _epsilon(value: ImportedValue) -> float:
    """Return torch's default epsilon under the root: 2**-23, the machine epsilon of float32, for each type."""
    return {"float16": 2.0**-23, "bfloat16": 2.0**-23, "float32": 2.0**-23}[value.dtype.value]


def _channels(value: ImportedValue, rank: int) -> ImportedValue:
    """Return a vector as a view along dim 1 of a tensor of this rank."""
    return with_view(value, View(((), value.view.dims[0], *((),) * (rank - 2)), value.view.offset))


def group_norm(call: OperatorCall) -> Written:
    """Write ``group_norm``: each group of channels is normalised over its channels and all positions."""
    value, groups = call.value("input"), call.whole("num_groups")
    shape = value.shape
    wide = value if _has_no_affine(call) else call.cast(value, DType.FLOAT32)
    apart = reshape_value(call.program, wide, (shape[0], groups, shape[1] // groups, *shape[2:]))
    dims = set(range(2, len(apart.shape)))
    found = reshape_value(call.program, _normalise(call, "layer_norm", [apart], dims, call.number("eps")), shape)
    return _apply_affine(call, value, found)


def instance_norm(call: OperatorCall) -> Written:
    """Write ``instance_norm``: each channel of each element of the batch is normalised over all positions."""
    if not call.given["use_input_stats"]:
        raise unsupported_error("expected instance_norm with the statistics of its input")
    value = call.value("input")
    wide = value if _has_no_affine(call) else call.cast(value, DType.FLOAT32)
    dims = set(range(2, len(value.shape)))
    return _apply_affine(call, value, _normalise(call, "layer_norm", [wide], dims, call.number("eps")))


def _has_no_affine(call: OperatorCall) -> bool:
    """Return whether a norm has neither weight nor bias, so that it is one operator."""
    return call.given.get("weight") is None and call.given.get("bias") is None


def _apply_affine(call: OperatorCall, value: ImportedValue, found: ImportedValue) -> ImportedValue:
    """Multiply a normalised value by the weight and add the bias, where given; return it in the type of the result."""
    rank = len(found.shape)
    weight, bias = call.optional("weight"), call.optional("bias")
    if weight is not None:
        scale = call.cast(_channels(weight, rank), found.dtype)
        found = call.logic(lambda graph, x, w: graph.mul(x, w), found, scale)
    if bias is not None:
        more = call.cast(_channels(bias, rank), found.dtype)
        found = call.logic(lambda graph, x, b: graph.add(x, b), found, more)
    return call.cast(found, call.target([value]))


def pairwise_distance(call: OperatorCall) -> Written:
    """Write ``pairwise_distance``: the 2-norm of a - b + eps along the last dim."""
    eps = call.number("eps")
    if call.number("p") != 2:
        raise unsupported_error(f"expected p = 2, got {call.given['p']}")
    first, second = call.value("x1"), call.value("x2")
    wanted = call.target([first, second])
    values = [call.cast(value, DType.FLOAT32) for value in (first, second)]
    apart = call.logic(lambda g, a, b: g.square(g.shift(g.sub(a, b), eps)), *values)
    last = (len(apart.shape) - 1,)
    found = call.logic(lambda graph, x: graph.sqrt(x), _reduce_dims(call, apart, last, "sum"))
    return _drop_reduced_dims(call, call.cast(found, wanted), last)


def average_pool(places: int) -> Callable[[OperatorCall], Written]:
    """Return the rule of an average pooling with disjoint windows over the last dims."""

    def rule(call: OperatorCall) -> Written:
        value = call.value()
        window = (call.wholes("kernel_size") * places)[:places]
        stride = (call.wholes("stride") * places)[:places] or window
        lead, extents = value.shape[:-places], value.shape[-places:]
        even = not any(n % k for n, k in zip(extents, window, strict=True))
        own = call.given.get("divisor_override") is not None
        if stride != window or any(call.wholes("padding")) or own or not even:
            raise unsupported_error(
                "expected windows that do not overlap and fill the tensor: stride = kernel_size, no padding"
            )
        counts = [n // k for n, k in zip(extents, window, strict=True)]
        split = reshape_value(
            call.program, value, (*lead, *(n for pair in zip(counts, window, strict=True) for n in pair))
        )
        inside = range(len(lead) + 1, len(split.shape), 2)
        return reshape_value(call.program, _reduce_dims(call, split, inside, "mean"), (*lead, *counts))

    return rule


def convolution(call: OperatorCall) -> Written:
    """Write a convolution with a 1 x 1 kernel as a product over the channels."""
    value, weight, bias = call.value("input"), call.value("weight"), call.optional("bias")
    rank = len(weight.shape)
    plain = set(call.wholes("stride")) <= {1} and not any(call.wholes("padding"))
    if prod(weight.shape[2:]) != 1 or call.whole("groups") != 1 or not plain or len(value.shape) != rank:
        raise unsupported_error(NO_CONVOLUTION)
    matrix = reshape_value(call.program, weight, weight.shape[:2])
    places = reshape_value(call.program, value, (*value.shape[:2], prod(value.shape[2:])))
    found = _torch_matmul(call, matrix, places)
    found = reshape_value(call.program, found, (value.shape[0], weight.shape[0], *value.shape[2:]))
    return found if bias is None else call.map(lambda graph, x, b: graph.add(x, b), found, _channels(bias, rank))


def loss(make: Callable[[OperatorCall, ImportedGraph, Tensor, Tensor], Tensor]) -> Callable[[OperatorCall], Written]:
    """Return the rule of an elementwise loss of two tensors, with its reduction."""

    def rule(call: OperatorCall) -> Written:
        values = call.value(), call.value("target")
        return _reduce_loss(call, call.wide(lambda g, a, b: make(call, g, a, b), *values))

    return rule


def _reduce_loss(call: OperatorCall, found: ImportedValue) -> ImportedValue:
    """Reduce an elementwise loss by the call's reduction: none, mean or sum."""
    reduction = call.whole("reduction")
    if reduction == 0:
        return found
    dims = range(len(found.shape))
    return _drop_reduced_dims(call, _reduce_dims(call, found, dims, "mean" if reduction == 1 else "sum"), dims)


def square(call: OperatorCall, graph: ImportedGraph, a: Tensor, b: Tensor) -> Tensor:
    """Write (a - b)^2."""
    return graph.square(graph.sub(a, b))


def absolute(call: OperatorCall, graph: ImportedGraph, a: Tensor, b: Tensor) -> Tensor:
    """Write |a - b|."""
    return graph.abs(graph.sub(a, b))


def huber(call: OperatorCall, graph: ImportedGraph, a: Tensor, b: Tensor) -> Tensor:
    """Write the Huber or smooth L1 loss.

    With d = |a - b|: d^2 / 2 up to c and c (d - c / 2) from there on; or both over c.
    """
    delta = "delta" in call.given
    bound = call.number("delta" if delta else "beta")
    if bound <= 0:
        raise unsupported_error(f"expected a bound above 0, got {bound}")
    far = absolute(call, graph, a, b)
    near = graph.scale(graph.square(far), Fraction(1, 2) if delta else 1 / (2 * bound))
    beyond = graph.shift(far, -bound / 2)
    if delta and bound != 1:
        beyond = graph.scale(beyond, bound)
    return graph.select(graph.le(far, bound) if delta else graph.lt(far, bound), near, beyond)


def cross_entropy(call: OperatorCall) -> Written:
    """Write the binary cross entropy: -b log a - (1 - b) log(1 - a), with logarithms of at least -100, as in torch."""

    def made(graph: ImportedGraph, a: Tensor, b: Tensor, weight: Tensor | None) -> Tensor:
        near, far = (graph.maximum(x, -100) for x in (graph.log(a), log_one_plus(graph, graph.neg(a))))
        found = graph.sub(graph.mul(graph.shift(b, -1), far), graph.mul(b, near))
        return found if weight is None else graph.mul(found, weight)

    return _reduce_loss(call, call.wide(made, call.value(), call.value("target"), call.optional("weight")))


def cross_entropy_of_logits(call: OperatorCall) -> Written:
    """Write the binary cross entropy of logits: (1 - b) a - (1 + (p - 1) b) log sigmoid(a)."""

    def made(graph: ImportedGraph, a: Tensor, b: Tensor, weight: Tensor | None, positive: Tensor | None) -> Tensor:
        logs = log_of_sigmoid(graph, a)
        if positive is not None:
            logs = graph.mul(graph.shift(graph.mul(graph.shift(positive, -1), b), 1), logs)
        found = graph.sub(graph.mul(graph.sub(1, b), a), logs)
        return found if weight is None else graph.mul(found, weight)

    values = call.value(), call.value("target"), call.optional("weight"), call.optional("pos_weight")
    return _reduce_loss(call, call.wide(made, *values))


def batch_norm(call: OperatorCall) -> Written:
    """Write ``batch_norm`` in evaluation, with the stored mean and variance.

    On the CPU torch first computes one factor and one summand of each channel; on a GPU it first subtracts the mean.
    Over the real numbers both are the same; where a weight or a statistic is infinite they are not.
    """
    if call.given.get("training") or call.optional("running_mean") is None:
        hint = "call module.eval(), and keep track_running_stats=True"
        raise unsupported_error("expected batch_norm with stored statistics, got training or no running_mean", hint)
    value, eps = call.value("input"), call.number("eps")
    mean, variance = (_channels(call.value(name), len(value.shape)) for name in ("running_mean", "running_var"))
    values = [call.cast(item, DType.FLOAT32) for item in (value, mean, variance)]

    def made(graph: ImportedGraph, x: Tensor, m: Tensor, v: Tensor) -> Tensor:
        return graph.div(graph.sub(x, m), graph.sqrt(graph.shift(v, eps)))

    if not call.host:
        return _apply_affine(call, value, call.logic(made, *values))
    rank = len(value.shape)
    weight, bias = (call.optional(name) for name in ("weight", "bias"))
    factor = call.logic(lambda graph, v: graph.reciprocal(graph.sqrt(graph.shift(v, eps))), values[2])
    if weight is not None:
        scale = call.cast(_channels(weight, rank), DType.FLOAT32)
        factor = call.logic(lambda graph, f, w: graph.mul(f, w), factor, scale)
    summand = call.logic(lambda graph, m, f: graph.scale(graph.mul(m, f), -1), values[1], factor)
    if bias is not None:
        more = call.cast(_channels(bias, rank), DType.FLOAT32)
        summand = call.logic(lambda graph, s, b: graph.add(s, b), summand, more)
    found = call.logic(lambda graph, x, f, s: graph.add(graph.mul(x, f), s), values[0], factor, summand)
    return call.cast(found, call.target([value]))


def batch_norm_alone(call: OperatorCall) -> Written:
    """Write ``batch_norm`` in evaluation as the first of several results, the others of which are empty."""
    found = batch_norm(call)
    assert isinstance(found, ImportedValue)
    return (found,)


def batch_norm_training(call: OperatorCall) -> Written:
    """Write ``batch_norm`` in training, with the statistics of the batch, which also update the stored ones."""
    if not call.given["training"]:
        raise unsupported_error("expected the statistics of the batch")
    value, eps, part = call.value("input"), call.number("eps"), call.factor("momentum")
    if part == 1:
        raise unsupported_error("expected momentum other than 1: NaN and infinity times 0 are NaN")
    dims = (0, *range(2, len(value.shape)))
    count = prod(value.shape[d] for d in dims)
    if count < 2:
        raise unsupported_error("expected more than one element of each channel")
    wide = call.cast(value, DType.FLOAT32)
    mean = _reduce_dims(call, wide, dims, "mean")
    apart = call.logic(lambda graph, x, m: graph.sub(x, m), wide, mean)
    spread = _reduce_dims(call, call.logic(lambda graph, x: graph.square(x), apart), dims, "mean")
    root = call.logic(lambda graph, v: graph.sqrt(graph.shift(v, eps)), spread)
    found = _apply_affine(call, value, call.logic(lambda graph, x, r: graph.div(x, r), apart, root))

    def kept(name: str, seen_now: ImportedValue, factor: Fraction) -> ImportedValue:
        def made(graph: ImportedGraph, old: Tensor, new: Tensor) -> Tensor:
            return graph.add(graph.scale(old, 1 - part), graph.scale(new, part * factor))

        before = call.value(name)
        new = call.logic(made, call.cast(before, DType.FLOAT32), seen_now)
        return call.cast(new, before.dtype)

    mean, spread, root = (_drop_reduced_dims(call, each, dims) for each in (mean, spread, root))
    inverse = call.logic(lambda graph, r: graph.reciprocal(r), root)
    more = kept("running_mean", mean, Fraction(1)), kept("running_var", spread, Fraction(count, count - 1))
    return found, mean, inverse, *more
