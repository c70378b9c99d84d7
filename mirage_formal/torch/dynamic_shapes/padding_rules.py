"""Padding rules for ATen operators; see ``padded_graphs`` for the property that a rule has to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from mirage_formal.torch.dynamic_shapes.dynamic_extents import DynamicExtent, Extent
from mirage_formal.torch.dynamic_shapes.masked_reductions import (
    attention,
    concat,
    extreme,
    log_softmax,
    logsumexp,
    mean,
    norm,
    product,
    softmax,
    sum_rule,
    variance_rule,
)
from mirage_formal.torch.dynamic_shapes.padded_graphs import (
    BucketTensor,
    OperatorStep,
    PaddingContent,
    Result,
    Rule,
    operator_results,
)
from mirage_formal.torch.imported_values import unsupported_error
from mirage_formal.torch.op_table import rules

_aten = torch.ops.aten


# --- by elements ------------------------------------------------------------------------------------------------------


def elementwise(step: OperatorStep) -> Result:
    """Apply an elementwise operator.

    Sound: see ``Step.joined``.
    """
    if step.partial:
        step.total(step.tensors)
    return step.result(step.call(), step.joined(item.behind for item in step.tensors))


def zero_preserving(step: OperatorStep) -> Result:
    """Apply an elementwise operator of one tensor that maps 0 to 0.

    Sound: as ``elementwise``; where the operand has zeros, so does the result.
    """
    (value,) = step.tensors
    if step.partial and PaddingContent.OTHER in value.behind:
        raise unsupported_error("it is not defined everywhere, and what lies behind the length is not known")
    return step.result(step.call(), value.behind)


def multiply(step: OperatorStep) -> Result:
    """Apply an elementwise product.

    Sound: see ``Step.joined``.
    """
    return step.result(step.call(), step.joined((item.behind for item in step.tensors), product=True))


def divide(step: OperatorStep) -> Result:
    """Apply an elementwise quotient.

    Sound: positions that are read from the divisor are ones that it has below the length, or copies of them, so they
    are no zeros if the original's are none. Zeros divided by them are zeros.
    """
    first, second = step.given["self"], step.given["other"]
    if isinstance(second, BucketTensor):
        step.total([second])
    behind = step.joined(item.behind for item in (first, second) if isinstance(item, BucketTensor))
    if isinstance(first, BucketTensor) and first.rank == len(behind):
        behind = tuple(a if a is PaddingContent.ZERO else b for a, b in zip(first.behind, behind, strict=True))
    return step.result(step.call(), behind)


# --- views ------------------------------------------------------------------------------------------------------------


def identity_rule(step: OperatorStep) -> Result:
    """Apply an operator that returns its first operand, possibly in another element type.

    Sound: positions stay where they are.
    """
    value = step.tensors[0]
    if step.given.get("train"):
        raise unsupported_error("expected dropout in evaluation")
    return step.result(step.call(), value.behind)


def reshape(step: OperatorStep) -> Result:
    """Apply a reshape that splits and joins only dims between the dynamic ones.

    Sound: then both shapes are the same lengths in the same order, with equally many elements between them, so an index
    along a length stays that index.
    """
    value = step.tensors[0]
    if _segments(value.extents) != _segments(step.extents):
        raise unsupported_error("it joins a dim with a length and others, or splits one")
    behind = iter([b for b in value.behind if b is not None])
    found = tuple(next(behind) if isinstance(n, DynamicExtent) else None for n in step.extents)
    return step.result(step.bucket.emit(_aten.reshape.default, (value.node, step.shape)), found)


def _segments(extents: Sequence[Extent]) -> list[Any]:
    found: list[Any] = [1]
    for extent in extents:
        found = [*found, extent, 1] if isinstance(extent, DynamicExtent) else [*found[:-1], found[-1] * extent]
    return found


def permute(step: OperatorStep) -> Result:
    """Apply a permutation of dims.

    Sound: an index along a dim stays that index.
    """
    value, given = step.tensors[0], step.given
    order = list(range(value.rank))
    name = str(step.node.target)
    if "dims" in given:
        order = [d % value.rank for d in given["dims"]]
    elif "dim0" in given:
        a, b = given["dim0"] % value.rank, given["dim1"] % value.rank
        order[a], order[b] = b, a
    elif name == "aten.numpy_T.default":
        order.reverse()
    elif value.rank > 1:
        order[-2:] = reversed(order[-2:])
    return step.result(step.call(), tuple(value.behind[d] for d in order))


def expand(step: OperatorStep) -> Result:
    """Apply an expansion: a tensor repeated along new dims or dims of one element.

    Sound: an index along a dim that is not repeated stays that index; along one that is, all positions are the same.
    """
    value = step.tensors[0]
    more = len(step.extents) - value.rank
    found: list[PaddingContent | None] = []
    for place, extent in enumerate(step.extents):
        own = value.behind[place - more] if place >= more else None
        found.append(own if own is not None or isinstance(extent, int) else PaddingContent.REPEATED)
    made = step.bucket.emit(_aten.expand.default, (value.node, step.shape))
    return step.result(made, tuple(found))


def along_static_dims(*names: str) -> Rule:
    """Return the rule of an operator that works along static dims, and leaves the others as they are."""

    def rule(step: OperatorStep) -> Result:
        """Apply an operator that works along known dims.

        Sound: the same function of the elements along known dims, for each index along the others.
        """
        value, given = step.tensors[0], step.given
        dims = [given[name] for name in names if name in given]
        flat = [d for item in dims for d in (item if isinstance(item, list) else [item])]
        if not flat or any(d is None or value.long(d) for d in flat):
            raise unsupported_error("it works along a dim with a length")
        outputs = step.node.meta["val"]
        dropped = str(step.node.target) in ("aten.select.int", "aten.unbind.int")
        kept = [b for d, b in enumerate(value.behind) if not (dropped and d == flat[0] % value.rank)]
        if not isinstance(outputs, tuple | list):
            return step.result(step.call(), tuple(kept))
        made = step.call()
        return operator_results(step, made, [tuple(kept) for _ in outputs])

    return rule


def slice_(step: OperatorStep) -> Result:
    """Apply a slice of a static dim, or a full slice of a dynamic one.

    Sound: an index along other dims stays that index; all positions are the tensor itself.
    """
    value = step.tensors[0]
    dim = int(next(iter(step.node.args[1:2]), 0)) % value.rank
    if not value.long(dim):
        if isinstance(step.extents[dim], DynamicExtent):
            raise unsupported_error("it ends at a length")
        return step.result(step.call(), value.behind)
    start = step.node.args[2] if len(step.node.args) > 2 else None
    if step.extents != value.extents or start not in (None, 0):
        raise unsupported_error("it takes some positions of a dim with a length")
    return value


# --- the table --------------------------------------------------------------------------------------------------------

_RESHAPES: Final = "view reshape _unsafe_view view_as reshape_as unsqueeze squeeze squeeze.dim squeeze.dims"
_ELEMENTS: Final = (
    "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar pow.Tensor_Scalar maximum minimum clamp clamp.Tensor"
    " clamp_min clamp_max clamp_min.Tensor clamp_max.Tensor hardtanh relu6 xlogy.Tensor zeros_like ones_like full_like"
    " where.self where.ScalarOther where.ScalarSelf masked_fill.Scalar masked_fill.Tensor logical_not bitwise_not"
    " logical_and bitwise_and.Tensor logical_or bitwise_or.Tensor exp log log1p rsqrt reciprocal sigmoid"
    " softplus log_sigmoid hardsigmoid elu"
)
_ODD: Final = "mul.Scalar div.Scalar neg abs square tanh erf silu relu gelu leaky_relu mish hardswish expm1 sqrt"
_SAME: Final = (
    "contiguous clone alias detach detach_ lift_fresh_copy dropout to.dtype to.device to.dtype_layout to.other"
    " _to_copy type_as"
)


def _rules_by_name(names: str, rule: Rule) -> dict[str, Rule]:
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": rule for name in names.split()}


RULES: Final[dict[str, Rule]] = {
    **_rules_by_name(_ELEMENTS, elementwise),
    **_rules_by_name(_ODD, zero_preserving),
    **_rules_by_name("mul.Tensor", multiply),
    **_rules_by_name("div.Tensor", divide),
    **_rules_by_name(_SAME, identity_rule),
    **_rules_by_name(f"{_RESHAPES} flatten.using_ints unflatten.int", reshape),
    **_rules_by_name("transpose.int t mT numpy_T permute", permute),
    **_rules_by_name("expand expand_as broadcast_to", expand),
    **_rules_by_name(
        "narrow select.int chunk split.Tensor split.sizes split_with_sizes unsafe_split.Tensor",
        along_static_dims("dim"),
    ),
    **_rules_by_name("unsafe_chunk unbind.int repeat_interleave.self_int", along_static_dims("dim")),
    **_rules_by_name("var.correction var.dim std.correction std.dim", variance_rule),
    **_rules_by_name("log_softmax.int", log_softmax),
    **_rules_by_name("slice.Tensor", slice_),
    **_rules_by_name("matmul dot", product("self", "other")),
    "aten.dot.default": product("self", "tensor"),
    **_rules_by_name("mm bmm", product("self", "mat2")),
    **_rules_by_name("mv", product("self", "vec")),
    **_rules_by_name("linear", product("input", "weight", turned=True)),
    **_rules_by_name("addmm", product("mat1", "mat2")),
    **_rules_by_name("baddbmm", product("batch1", "batch2")),
    **_rules_by_name("scaled_dot_product_attention", attention),
    **_rules_by_name("sum sum.dim_IntList", sum_rule),
    **_rules_by_name("mean mean.dim", mean),
    **_rules_by_name("amax amin max min max.dim min.dim", extreme),
    **_rules_by_name("softmax.int", softmax),
    **_rules_by_name("logsumexp", logsumexp),
    **_rules_by_name("rms_norm layer_norm", norm),
    **_rules_by_name("cat stack", concat),
}
assert RULES.keys() <= rules().keys(), "an operator that cannot be imported has no use for a rule"

__all__ = ["RULES"]
