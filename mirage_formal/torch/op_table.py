"""The table: which operators of ATen can be imported, as what, under which conditions; and why others cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import mirage_formal.torch.pointwise_rules as elements
import mirage_formal.torch.reduction_rules as along
import mirage_formal.torch.view_rules as moves
from mirage_formal.graph.ops import FUNCTIONS, ROUNDINGS, OpKind
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from mirage_formal.torch.call import OperatorCall, Written

#: Element types of tensors: floating-point ones, unless ``masks`` names an argument.
FLOATS: Final = "float16, bfloat16, float32"

#: The operands of most operators of two.
_PAIR: Final = ("self", "other")

#: The extents of the tensors in examples, by their letters.
LETTERS: Final = {
    "a": (4, 6),
    "b": (4, 6),
    "v": (6,),
    "w": (5, 6),
    "u": (5,),
    "x": (2, 3, 4, 6),
    "y": (2, 3, 6, 5),
    "k": (2, 1, 7, 6),
    "s": (2, 5, 6),
    "t": (2, 6, 5),
    "c": (3,),
    "z": (5, 5),
}


@dataclass(frozen=True, slots=True)
class TorchOperatorRow:
    """One operator of torch.

    Attributes:
        name: Its overload, as in "aten.add.Tensor".
        example: A call whose graph has it. Tensors are named by letters, for which ``LETTERS`` has the extents; "p" in
            front of one stands for positive elements, "m" for booleans.
        means: What a program has for it.
        write: Its rule.
        when: Conditions beyond those of torch.
        masks: Arguments that may be tensors of booleans.
        free: Whether it computes nothing: a view, a cast or another name.
        typed: Whether an argument named "other" says an element type only.
        first: Whether only the first of its results can be imported.
        check: Whether it asserts what is known at the import.
        refused: Why it stays with torch; empty if it does not.
    """

    name: str
    example: str
    means: str = ""
    write: Callable[[OperatorCall], Written] = moves.identity_rule
    when: str = ""
    masks: tuple[str, ...] = ()
    free: bool = False
    typed: bool = False
    first: bool = False
    check: bool = False
    refused: str = ""

    @property
    def types(self) -> str:
        """The element types of its tensors."""
        if self.refused:
            return ""
        return FLOATS + ("; bool for " + ", ".join(self.masks) if self.masks else "; bool" if self.free else "")


def _view(name: str, example: str, write: Callable[[OperatorCall], Written], when: str = "") -> TorchOperatorRow:
    return TorchOperatorRow(
        f"aten.{name}", example, "a view: strides of the tensor that is read", write, when, free=True
    )


def _same(name: str, example: str) -> TorchOperatorRow:
    return TorchOperatorRow(f"aten.{name}", example, "its operand", moves.identity_rule, free=True)


def _typed(name: str, example: str, *, typed: bool = False) -> TorchOperatorRow:
    means = "its operand, where float32 is rounded again later; else a cast"
    return TorchOperatorRow(f"aten.{name}", example, means, moves.cast_rule, free=True, typed=typed)


def _one(name: str, example: str, function: str, means: str = "") -> TorchOperatorRow:
    return TorchOperatorRow(f"aten.{name}", example, means or function, elements.unary(function))


def _function(kind: OpKind) -> TorchOperatorRow:
    """Return the row of a function that has one name in torch and in programs."""
    row = FUNCTION_SPECS[kind]
    example = row.torch.format("a" if row.domain is Reals.ALL else "pa")
    return _one(f"{kind.value}.default", example, kind.value)


def _two(name: str, example: str, function: str) -> TorchOperatorRow:
    return TorchOperatorRow(f"aten.{name}", example, function, elements.binary(function), masks=_PAIR)


def _masks(
    name: str,
    example: str,
    means: str,
    write: Callable[[OperatorCall], Written],
    masks: tuple[str, ...],
    when: str = "",
) -> TorchOperatorRow:
    return TorchOperatorRow(f"aten.{name}", example, means, write, when, masks)


def _constant(name: str, example: str, number: int | None = None) -> TorchOperatorRow:
    means = "an attribute of what reads it; a tensor of one element where a tensor is read"
    return TorchOperatorRow(f"aten.{name}", example, means, elements.constant(number), "a finite number", ("self",))


def _not(name: str, example: str, reason: str) -> TorchOperatorRow:
    return TorchOperatorRow(f"aten.{name}", example, refused=reason)


_VIEWS: Final = (
    _view("view.default", "a.view(2, 12)", moves.reshape),
    _view("reshape.default", "torch.reshape(a, (3, 8))", moves.reshape),
    _view("_unsafe_view.default", "torch.ops.aten._unsafe_view(a, [3, 8])", moves.reshape),
    _view("flatten.using_ints", "torch.flatten(x, 1, 2)", moves.reshape),
    _view("unflatten.int", "torch.unflatten(a, 1, (2, 3))", moves.reshape),
    _view("view_as.default", "torch.exp(a).view_as(b)", moves.reshape),
    _view("reshape_as.default", "torch.exp(a).reshape_as(b)", moves.reshape),
    _view("squeeze.default", "torch.squeeze(k)", moves.reshape),
    _view("squeeze.dim", "torch.squeeze(k, 1)", moves.reshape),
    _view("squeeze.dims", "torch.squeeze(k, (1, 2))", moves.reshape),
    _view("unsqueeze.default", "torch.unsqueeze(a, 1)", moves.reshape),
    _view("transpose.int", "torch.transpose(x, 1, 2)", moves.transpose),
    _view("t.default", "torch.t(a)", moves.transpose),
    _view("mT.default", "torch.exp(x).mT", moves.transpose),
    _view("numpy_T.default", "torch.exp(a).T", moves.transpose),
    _view("permute.default", "x.permute(0, 2, 3, 1)", moves.permute),
    _view("movedim.int", "torch.movedim(x, 1, -1)", moves.movedim),
    _view("movedim.intlist", "torch.movedim(x, (0, 1), (2, 0))", moves.movedim),
    _view("expand.default", "v.expand(4, 6)", moves.expand),
    _view("expand_as.default", "v.expand_as(a)", moves.expand),
    _view("broadcast_to.default", "torch.broadcast_to(v, (4, 6))", moves.expand),
    _view("repeat.default", "a.repeat(2, 3)", moves.repeat),
    _view("repeat_interleave.self_int", "torch.repeat_interleave(x, 2, dim=1)", moves.repeat_interleave),
    _view("slice.Tensor", "a[:, 1:5]", moves.slice_, "not empty; of a result, a step that divides the extent"),
    _view("narrow.default", "torch.narrow(a, 1, 1, 3)", moves.narrow),
    _view("select.int", "x[:, 1]", moves.select),
    _view("chunk.default", "torch.chunk(a, 2, dim=1)[1]", moves.chunk),
    _view("split.Tensor", "torch.split(a, 4, dim=1)[1]", moves.split),
    _view("split.sizes", "torch.ops.aten.split.sizes(a, [2, 4], 1)[1]", moves.split),
    _view("unsafe_split.Tensor", "torch.unsafe_split(a, 4, 1)[0]", moves.split),
    _view("unsafe_chunk.default", "torch.unsafe_chunk(a, 2, 1)[0]", moves.chunk),
    _view("split_with_sizes.default", "torch.split(a, [2, 4], dim=1)[1]", moves.split),
    _view("unbind.int", "torch.unbind(x, 1)[2]", moves.unbind),
    _same("contiguous.default", "a.t().contiguous()"),
    _same("clone.default", "torch.clone(a)"),
    _same("alias.default", "torch.ops.aten.alias(a)"),
    _same("detach.default", "torch.exp(a).detach()"),
    _same("detach_.default", "torch.ops.aten.detach_(torch.exp(a))"),
    _same("lift_fresh_copy.default", "torch.ops.aten.lift_fresh_copy(a)"),
    TorchOperatorRow(
        "aten.dropout.default",
        "torch.nn.functional.dropout(a, 0.5, training=False)",
        "its operand",
        moves.dropout,
        "in evaluation",
        free=True,
    ),
    _typed("to.dtype", "torch.exp(a).to(torch.float16)"),
    _typed("to.device", "torch.ops.aten.to.device(torch.exp(a), torch.device('cpu'), torch.float16)"),
    _typed("to.dtype_layout", "torch.ops.aten.to.dtype_layout(torch.exp(a), dtype=torch.float16)"),
    _typed("to.other", "torch.ops.aten.to.other(torch.exp(a), b)", typed=True),
    _typed("_to_copy.default", "torch.ops.aten._to_copy(torch.exp(a), dtype=torch.float16)"),
    _typed("type_as.default", "torch.exp(a).type_as(b)", typed=True),
    TorchOperatorRow(
        "aten._assert_tensor_metadata.default",
        "torch.exp(a.to(torch.float32))",
        "nothing: it asserts what is known at the import",
        check=True,
    ),
)

_ARITHMETIC: Final = (
    _two("add.Tensor", "torch.add(a, v, alpha=2)", "add"),
    _two("add.Scalar", "torch.ops.aten.add.Scalar(a, 2, 3)", "add"),
    _two("sub.Tensor", "a - b", "sub"),
    _two("sub.Scalar", "torch.ops.aten.sub.Scalar(a, 2, 3)", "sub"),
    TorchOperatorRow("aten.rsub.Scalar", "torch.rsub(a, 2, alpha=3)", "sub", elements.rsub),
    _two("mul.Tensor", "a * b", "mul"),
    _two("mul.Scalar", "torch.ops.aten.mul.Scalar(a, 0.5)", "mul"),
    TorchOperatorRow("aten.div.Tensor", "a / pb", "div", elements.div, "a number is not 0"),
    TorchOperatorRow("aten.div.Scalar", "torch.ops.aten.div.Scalar(a, 3)", "div", elements.div, "the number is not 0"),
    TorchOperatorRow(
        "aten.div.Tensor_mode", "torch.div(a, 3, rounding_mode=None)", "div", elements.div, "no rounding_mode"
    ),
    TorchOperatorRow(
        "aten.pow.Tensor_Scalar", "a.pow(3)", "products, roots, reciprocals; else e^(c log x)", elements.power
    ),
    _two("maximum.default", "torch.maximum(a, v)", "maximum"),
    _two("minimum.default", "torch.minimum(a, b)", "minimum"),
    TorchOperatorRow("aten.clamp.default", "torch.clamp(a, -0.5, 0.75)", "maximum, minimum", elements.clamp),
    TorchOperatorRow("aten.clamp.Tensor", "torch.clamp(a, min=v)", "maximum, minimum", elements.clamp),
    TorchOperatorRow("aten.clamp_min.default", "torch.clamp_min(a, 0.25)", "maximum", elements.clamp),
    TorchOperatorRow("aten.clamp_max.default", "torch.clamp_max(a, 0.25)", "minimum", elements.clamp),
    TorchOperatorRow("aten.clamp_min.Tensor", "torch.clamp_min(a, v)", "maximum", elements.clamp),
    TorchOperatorRow("aten.clamp_max.Tensor", "torch.clamp_max(a, v)", "minimum", elements.clamp),
    TorchOperatorRow(
        "aten.hardtanh.default", "torch.nn.functional.hardtanh(a, -0.5, 0.5)", "maximum, minimum", elements.clamp
    ),
    TorchOperatorRow("aten.relu6.default", "torch.nn.functional.relu6(a * 8)", "maximum, minimum", elements.relu6),
    TorchOperatorRow(
        "aten.xlogy.Tensor", "torch.xlogy(a, pb)", "0 where a is 0 and b a number, a log b elsewhere", elements.xlogy
    ),
    _constant("zeros_like.default", "torch.maximum(a, torch.zeros_like(b))", 0),
    _constant("ones_like.default", "a * torch.ones_like(b)", 1),
    _constant("full_like.default", "torch.maximum(a, torch.full_like(b, 0.5))"),
    _constant("new_zeros.default", "torch.maximum(a, v.new_zeros(4, 1))", 0),
    _constant("new_ones.default", "a - v.new_ones(4, 1)", 1),
    _constant("new_full.default", "a / v.new_full((4, 1), 3.0)"),
    _constant("zeros.default", "torch.maximum(a, torch.zeros(6))", 0),
    _constant("ones.default", "a - torch.ones(6)", 1),
    _constant("full.default", "torch.where(ma, a, torch.full((4, 1), 0.25))"),
    _constant("fill.Scalar", "a + torch.fill(b, 2.0)"),
    _masks("diag_embed.default", "torch.diag_embed(a)", "select by a constant mask", elements.diagonal, ("self",)),
    _masks("tril.default", "torch.tril(a, 1)", "select by a constant mask", elements.triangle(lower=True), ("self",)),
    _masks("triu.default", "torch.triu(x, -1)", "select by a constant mask", elements.triangle(lower=False), ("self",)),
    *(
        _masks(f"where.{kind}", f"torch.where(ma, {given})", "select", elements.select_where, ("condition",))
        for kind, given in (
            ("self", "a, b"),
            ("ScalarOther", "a, 2.0"),
            ("ScalarSelf", "2.0, a"),
            ("Scalar", "2.0, 0.5) * torch.exp(a"),
        )
    ),
    _masks(
        "masked_fill.Scalar",
        "torch.softmax(a.masked_fill(ma.logical_not() & mb, float('-inf')), -1)",
        "select; minus infinity in front of a softmax is what is not kept",
        elements.masked_fill,
        ("mask",),
        "minus infinity is read by a softmax only",
    ),
    _masks("masked_fill.Tensor", "a.masked_fill(ma, v.sum())", "select", elements.masked_fill, ("mask",)),
)

_COMPARISONS: Final = (
    *(
        _masks(
            f"{name}.{kind}",
            f"torch.where(torch.{name}(a, {given}), a, b)",
            name,
            elements.comparison(name),
            _PAIR,
            when,
        )
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for kind, given, when in (("Scalar", "0.5", "not an infinity of a narrower range"), ("Tensor", "b", ""))
    ),
    _masks("isnan.default", "torch.where(torch.isnan(a), v, a)", "not (x <= 0 or x >= 0)", elements.is_nan, ()),
    _masks(
        "isinf.default",
        "torch.where(torch.isinf(a), v, a)",
        "|x| > max",
        elements.is_infinite(above=True, below=True),
        (),
    ),
    _masks(
        "isposinf.default",
        "torch.where(torch.isposinf(a), v, a)",
        "x > max",
        elements.is_infinite(above=True, below=False),
        (),
    ),
    _masks(
        "isneginf.default",
        "torch.where(torch.isneginf(a), v, a)",
        "x < -max",
        elements.is_infinite(above=False, below=True),
        (),
    ),
    TorchOperatorRow("aten.nan_to_num.default", "torch.nan_to_num(a, 0.5)", "select, comparisons", elements.nan_to_num),
    _masks(
        "logical_not.default", "torch.where(ma.logical_not(), a, b)", "logical_not", elements.logical_not, ("self",)
    ),
    _masks(
        "bitwise_not.default", "torch.where(~ma, a, b)", "logical_not", elements.logical_not, ("self",), "of booleans"
    ),
    *(
        _masks(f"{name}.{kind}", f"torch.where({given}, a, b)", means, elements.mask_logic(rule), _PAIR, when)
        for rule, means, rows in (
            ("logical_and", "mul", (("logical_and", "default", "torch.logical_and(ma, mb)", ""),)),
            ("logical_and", "mul", (("bitwise_and", "Tensor", "ma & mb", "of booleans"),)),
            ("logical_or", "maximum", (("logical_or", "default", "torch.logical_or(ma, mb)", ""),)),
            ("logical_or", "maximum", (("bitwise_or", "Tensor", "ma | mb", "of booleans"),)),
            ("ne", "logical_not, eq", (("logical_xor", "default", "torch.logical_xor(ma, mb)", ""),)),
            ("ne", "logical_not, eq", (("bitwise_xor", "Tensor", "ma ^ mb", "of booleans"),)),
        )
        for name, kind, given, when in rows
    ),
    *(
        _masks(f"{name}.{kind}", f"torch.where({given}, a, b)", means, along.any_or_all(every=name == "all"), ("self",))
        for name, means in (("any", "max"), ("all", "max of the negation"))
        for kind, given in (
            ("default", f"torch.{name}(ma)"),
            ("dim", f"torch.{name}(ma, 1, keepdim=True)"),
            ("dims", f"torch.{name}(ma, (0, 1), keepdim=True)"),
        )
    ),
)

_FUNCTIONS: Final = (
    *(_function(kind) for kind in FUNCTION_SPECS if kind is not OpKind.GELU and kind not in ROUNDINGS),
    _one("neg.default", "-a", "neg"),
    TorchOperatorRow("aten.log1p.default", "torch.log1p(pa)", "log(1 + x); its series below 1/4", elements.log1p),
    TorchOperatorRow("aten.expm1.default", "torch.expm1(a)", "tanh(x / 2) (e^x + 1)", elements.expm1),
    _one("rsqrt.default", "torch.rsqrt(pa)", "rsqrt", "reciprocal, sqrt"),
    TorchOperatorRow(
        "aten.gelu.default", "torch.nn.functional.gelu(a, approximate='tanh')", "gelu, in both forms", elements.gelu
    ),
    TorchOperatorRow(
        "aten.leaky_relu.default", "torch.nn.functional.leaky_relu(a, 0.2)", "select, scale", elements.leaky_relu
    ),
    TorchOperatorRow("aten.elu.default", "torch.nn.functional.elu(a, 0.5)", "select, expm1", elements.elu),
    TorchOperatorRow("aten.celu.default", "torch.celu(a, 0.5)", "as elu", elements.celu),
    TorchOperatorRow(
        "aten.softshrink.default", "torch.nn.functional.softshrink(a, 0.25)", "select, shift", elements.softshrink
    ),
    TorchOperatorRow("aten.addcmul.default", "torch.addcmul(a, b, v, value=0.5)", "mul, scale, add", elements.addcmul),
    TorchOperatorRow("aten.addcdiv.default", "torch.addcdiv(a, b, pa, value=2)", "div, scale, add", elements.addcdiv),
    TorchOperatorRow("aten.lerp.Scalar", "torch.lerp(a, b, 0.25)", "sub, scale, add", elements.lerp),
    TorchOperatorRow(
        "aten.softplus.default",
        "torch.nn.functional.softplus(a, 2.0)",
        "select, log1p, exp",
        elements.softplus,
    ),
    TorchOperatorRow(
        "aten.log_sigmoid.default",
        "torch.nn.functional.logsigmoid(a)",
        "min(x, 0) - log1p(e^-|x|)",
        elements.log_sigmoid,
    ),
    TorchOperatorRow("aten.mish.default", "torch.nn.functional.mish(a)", "x tanh(log1p(e^x))", elements.mish),
    TorchOperatorRow(
        "aten.hardsigmoid.default", "torch.nn.functional.hardsigmoid(a)", "clamped line", elements.hardsigmoid
    ),
    TorchOperatorRow(
        "aten.hardswish.default", "torch.nn.functional.hardswish(a)", "x times a clamped line", elements.hardswish
    ),
)

_ALONG: Final = (
    TorchOperatorRow(
        "aten.matmul.default", "torch.matmul(x, k.mT)", "matmul; a repeated operand is read once", along.matmul
    ),
    TorchOperatorRow("aten.mm.default", "torch.mm(a, w.t())", "matmul", along.matmul),
    TorchOperatorRow("aten.bmm.default", "torch.bmm(s, t)", "matmul", along.matmul),
    TorchOperatorRow("aten.mv.default", "torch.mv(a, v)", "matmul", along.matmul),
    TorchOperatorRow("aten.dot.default", "torch.dot(v, v * 2)", "matmul", along.matmul),
    TorchOperatorRow(
        "aten.linear.default", "torch.nn.functional.linear(x, w, u)", "matmul, add; w through strides", along.linear
    ),
    TorchOperatorRow("aten.addmm.default", "torch.addmm(u, a, w.t(), beta=2, alpha=3)", "matmul, add", along.addmm),
    TorchOperatorRow("aten.baddbmm.default", "torch.baddbmm(z, s, t, alpha=0.5)", "matmul, add", along.addmm),
    TorchOperatorRow(
        "aten.scaled_dot_product_attention.default",
        "torch.nn.functional.scaled_dot_product_attention(x, k, k, is_causal=True, scale=0.3, enable_gqa=True)",
        "matmul, softmax, matmul; a query without a key has zeros",
        along.attention,
        "in evaluation",
        masks=("attn_mask",),
    ),
    TorchOperatorRow("aten.softmax.int", "torch.softmax(x, 1)", "softmax", along.softmax),
    TorchOperatorRow("aten.log_softmax.int", "torch.log_softmax(x, -1)", "max, exp, sum, log", along.log_softmax),
    TorchOperatorRow("aten.logsumexp.default", "torch.logsumexp(x, (1, 3))", "max, exp, sum, log", along.logsumexp),
    TorchOperatorRow("aten.sum.default", "torch.sum(a)", "sum", along.reduction("sum"), masks=("self",)),
    TorchOperatorRow("aten.sum.dim_IntList", "torch.sum(x, (1, 3), keepdim=True)", "sum", along.reduction("sum")),
    TorchOperatorRow("aten.mean.default", "torch.mean(a)", "mean", along.reduction("mean")),
    TorchOperatorRow("aten.mean.dim", "torch.mean(x, -1)", "mean", along.reduction("mean")),
    TorchOperatorRow("aten.amax.default", "torch.amax(x, 2)", "max", along.reduction("max")),
    TorchOperatorRow("aten.amin.default", "torch.amin(x, (0, 2))", "max of the negatives", along.reduction("min")),
    TorchOperatorRow("aten.max.default", "torch.max(a)", "max", along.reduction("max")),
    TorchOperatorRow("aten.min.default", "torch.min(a)", "max of the negatives", along.reduction("min")),
    TorchOperatorRow(
        "aten.max.dim", "torch.max(x, 1)[0]", "max", along.extreme("max"), "without the indices", first=True
    ),
    TorchOperatorRow(
        "aten.min.dim", "torch.min(x, 2, True)[0]", "as amin", along.extreme("min"), "without the indices", first=True
    ),
    TorchOperatorRow(
        "aten.var.correction",
        "torch.var(x, (1, 3), correction=0)",
        "mean, square, sum",
        along.variance_rule(root=False),
    ),
    TorchOperatorRow("aten.var.dim", "torch.var(x, 3)", "mean, square, sum", along.variance_rule(root=False)),
    TorchOperatorRow(
        "aten.std.correction",
        "torch.std(x, 2, correction=1)",
        "mean, square, sum, sqrt",
        along.variance_rule(root=True),
    ),
    TorchOperatorRow(
        "aten.std.dim", "torch.std(x, 3, unbiased=True)", "mean, square, sum, sqrt", along.variance_rule(root=True)
    ),
    TorchOperatorRow(
        "aten.linalg_vector_norm.default",
        "torch.linalg.vector_norm(x, dim=(1, 3))",
        "square, sum, sqrt; abs, sum; abs, max",
        along.vector_norm,
        "of order 1, 2 or inf",
    ),
    TorchOperatorRow(
        "aten.norm.ScalarOpt_dim", "torch.ops.aten.norm.ScalarOpt_dim(a, 2, [1])", "as above", along.vector_norm
    ),
    TorchOperatorRow("aten.rms_norm.default", "torch.rms_norm(x, (6,), v, 1e-3)", "rms_norm", along.norm("rms_norm")),
    TorchOperatorRow(
        "aten.layer_norm.default", "torch.layer_norm(a, (6,), v, v, 1e-3)", "layer_norm", along.norm("layer_norm")
    ),
    TorchOperatorRow(
        "aten.group_norm.default", "torch.group_norm(x, 3, c, c)", "layer_norm, mul, add", along.group_norm
    ),
    TorchOperatorRow(
        "aten.instance_norm.default",
        "torch.nn.functional.instance_norm(x, weight=c)",
        "layer_norm, mul, add",
        along.instance_norm,
        "with the statistics of its input",
    ),
    *(
        TorchOperatorRow(
            f"aten.{name}", example, "mean", along.average_pool(places), "windows do not overlap and fill the tensor"
        )
        for places, name, example in (
            (1, "avg_pool1d.default", "torch.nn.functional.avg_pool1d(s, 3)"),
            (2, "avg_pool2d.default", "torch.nn.functional.avg_pool2d(x, 2)"),
            (3, "avg_pool3d.default", "torch.nn.functional.avg_pool3d(x, (3, 2, 2))"),
        )
    ),
    *(
        TorchOperatorRow(
            f"aten.{name}", example, "matmul, add", along.convolution, "of one place: kernel_size, stride, groups are 1"
        )
        for name, example in (
            ("conv1d.default", "torch.nn.functional.conv1d(s, w[:, :5, None], u)"),
            ("conv2d.default", "torch.nn.functional.conv2d(x, w[:, :3, None, None], u)"),
            ("conv3d.default", "torch.nn.functional.conv3d(x[None], w[:, :2, None, None, None])"),
        )
    ),
    TorchOperatorRow(
        "aten.pairwise_distance.default",
        "torch.pairwise_distance(a, b, 2, 1e-3)",
        "sub, shift, square, sum, sqrt",
        along.pairwise_distance,
        "p = 2",
    ),
    TorchOperatorRow(
        "aten.mse_loss.default", "torch.nn.functional.mse_loss(a, b)", "sub, square, mean", along.loss(along.square)
    ),
    TorchOperatorRow(
        "aten.l1_loss.default", "torch.ops.aten.l1_loss(a, b, 2)", "sub, abs, sum", along.loss(along.absolute)
    ),
    TorchOperatorRow(
        "aten.huber_loss.default",
        "torch.nn.functional.huber_loss(a, b, delta=0.5)",
        "sub, abs, square, select, mean",
        along.loss(along.huber),
    ),
    TorchOperatorRow(
        "aten.smooth_l1_loss.default",
        "torch.nn.functional.smooth_l1_loss(a, b, beta=0.5)",
        "sub, abs, square, select, mean",
        along.loss(along.huber),
    ),
    TorchOperatorRow(
        "aten.binary_cross_entropy.default",
        "torch.nn.functional.binary_cross_entropy(torch.sigmoid(a), torch.sigmoid(b))",
        "log, log1p, maximum with -100, mul, sub, mean",
        along.cross_entropy,
    ),
    TorchOperatorRow(
        "aten.binary_cross_entropy_with_logits.default",
        "torch.nn.functional.binary_cross_entropy_with_logits(a, b)",
        "as log_sigmoid, mul, sub, mean",
        along.cross_entropy_of_logits,
    ),
    TorchOperatorRow(
        "aten._native_batch_norm_legit_functional.default",
        "torch.ops.aten._native_batch_norm_legit_functional(x, c, c, c, pc, True, 0.2, 1e-5)",
        "mean, sub, square, sqrt, div, mul, add",
        along.batch_norm_training,
        "in training",
    ),
    TorchOperatorRow(
        "aten.batch_norm.default",
        "torch.nn.functional.batch_norm(x, c, pc, c, c)",
        "sub, sqrt, div, mul, add",
        along.batch_norm,
        "in evaluation",
    ),
    TorchOperatorRow(
        "aten._native_batch_norm_legit_no_training.default",
        "torch.ops.aten._native_batch_norm_legit_no_training(x, c, c, c, pc, 0.1, 1e-5)[0]",
        "sub, sqrt, div, mul, add",
        along.batch_norm_alone,
        first=True,
    ),
    TorchOperatorRow("aten.cat.default", "torch.cat([a, v[None], w], 0)", "concat", moves.concat, masks=("tensors",)),
    TorchOperatorRow("aten.stack.default", "torch.stack([a, b], 1)", "concat", moves.stack, masks=("tensors",)),
    TorchOperatorRow(
        "aten.slice_scatter.default",
        "torch.slice_scatter(a, b[:, :2], 1, 1, 3)",
        "concat",
        moves.slice_scatter,
        "a step of 1",
        ("self", "src"),
    ),
    TorchOperatorRow(
        "aten.select_scatter.default",
        "torch.select_scatter(a, v, 0, 2)",
        "concat",
        moves.select_scatter,
        masks=("self", "src"),
    ),
    TorchOperatorRow(
        "aten.index_copy.default",
        "torch.index_copy(a, 0, torch.tensor([1, 2]), b[:2])",
        "concat",
        moves.index_copy,
        "indices that are known at the import and follow one another; not where a module writes its own memory",
        ("self", "source"),
    ),
    TorchOperatorRow(
        "aten.copy.default", "torch.ops.aten.copy(a, v) * b", "what is copied", moves.copy, masks=("self", "src")
    ),
    TorchOperatorRow(
        "aten.fill.Tensor", "a * torch.fill(b, v.sum())", "what it is filled with", moves.fill, masks=("self", "value")
    ),
    TorchOperatorRow(
        "aten.constant_pad_nd.default",
        "torch.nn.functional.pad(a, (1, 2, -1, 3), value=0.5)",
        "pad, slice; of a number that is not 0, select by a constant mask",
        moves.pad,
        "a finite number; elements are left",
        ("self",),
    ),
)

_NO_INDEX: Final = "programs have no integers, so no indices"
_NO_WINDOWS: Final = "programs have no sliding windows"
_NO_PRODUCT: Final = "programs have no products along a dim"

_REFUSED: Final = (
    _not(
        "convolution.default",
        "torch.ops.aten.convolution(x, x.transpose(0, 1), None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1)",
        along.NO_CONVOLUTION,
    ),
    _not("max_pool1d_with_indices.default", "torch.ops.aten.max_pool1d_with_indices(s, [2])[0]", _NO_WINDOWS),
    _not("max_pool2d.default", "torch.nn.functional.max_pool2d(x, 2)", _NO_WINDOWS),
    _not("max_pool3d.default", "torch.nn.functional.max_pool3d(x, 2)", _NO_WINDOWS),
    _not("cumsum.default", "torch.cumsum(a, 1)", "programs have no running sums"),
    _not("cumprod.default", "torch.cumprod(a, 1)", "programs have no running products"),
    _not("prod.default", "torch.prod(a)", _NO_PRODUCT),
    _not("prod.dim_int", "torch.prod(a, 1)", _NO_PRODUCT),
    _not("flip.default", "torch.flip(a, (1,))", "programs have no reversed dims"),
    _not("nll_loss_nd.default", "torch.nn.functional.nll_loss(a, torch.tensor([0, 1, 2, 3]))", _NO_INDEX),
    _not("argmin.default", "torch.argmin(a, 1)", _NO_INDEX),
    *(
        _not(f"{name}.default", f"torch.{name}(a)", f"programs have no function {name}")
        for name in ("sin", "cos")
        if name not in FUNCTIONS
    ),
    _not("embedding.default", "torch.nn.functional.embedding(torch.tensor([0, 2]), a)", _NO_INDEX),
    _not("index.Tensor", "a[torch.tensor([0, 2])]", _NO_INDEX),
    _not("gather.default", "torch.gather(a, 1, torch.zeros(4, 6, dtype=torch.int64))", _NO_INDEX),
    _not("argmax.default", "torch.argmax(a, 1)", _NO_INDEX),
    _not("topk.default", "torch.topk(a, 2)[0]", _NO_INDEX),
    _not("arange.default", "a + torch.arange(6)", _NO_INDEX),
    _not("index_put.default", "torch.index_put(a, (torch.tensor([1]),), b[1])", _NO_INDEX),
    _not("index_select.default", "torch.index_select(a, 1, torch.tensor([0, 2]))", _NO_INDEX),
    _not("sort.default", "torch.sort(a, 1)[0]", "programs do not put elements in order"),
    _not("floor.default", "torch.floor(a)", "programs have no rounding to whole numbers"),
    _not("rand_like.default", "a * torch.rand_like(a)", "programs have no random numbers"),
)

ROWS: Final = (*_VIEWS, *_ARITHMETIC, *_COMPARISONS, *_FUNCTIONS, *_ALONG, *_REFUSED)
assert len({row.name for row in ROWS}) == len(ROWS), "an operator with two rows"


@cache
def rules() -> dict[str, TorchOperatorRow]:
    """The rows by their operators."""
    return {row.name: row for row in ROWS}
