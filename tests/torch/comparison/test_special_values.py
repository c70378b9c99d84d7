"""Programs compute what the module computes on values that real models produce: padding, infinities, large numbers.

Each import is evaluated in the module's own element types and held to the contract of docs/torch.md, with torch's own
results as what is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import torch
import torch.nn.functional as F

import mirage_formal as mf
from mirage_formal.graph.graph import Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.import_result import Imported
from tests.kit.torch.comparison import TYPES, held, typed

INF, NAN = float("inf"), float("nan")
types = pytest.mark.parametrize("dtype", TYPES, ids=str)


def kinds(found: Imported) -> list[str]:
    """The operators of a whole import."""
    return [op.kind.value for op in found.regions[0].program.ops if isinstance(op, Op)]


def numbers(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def special(dtype: Any) -> Any:
    """Numbers at which functions have other values than near them."""
    largest = float(torch.finfo(dtype).max)
    least = float(torch.finfo(dtype).smallest_normal) / 16
    sizes = [INF, largest, largest / 3, 1e4, 400.0, 100.0, 88.0, 21.0, 12.0, 3.0, 1.0, 0.3, 1e-3, least, 0.0]
    return torch.tensor([*sizes, *(-n for n in sizes), NAN], dtype=torch.float64).to(dtype)


# --- 1: rows without a key --------------------------------------------------------------------------------------------


def padded(batch: int, tokens: int, missing: int) -> Any:
    """A causal mask of a batch whose last sequence is padded on its left; its first queries have no key."""
    keep = torch.ones(batch, tokens, dtype=torch.bool)
    keep[-1, :missing] = False
    return keep[:, None, None, :] & torch.ones(tokens, tokens, dtype=torch.bool).tril()


@types
@pytest.mark.parametrize("form", ["booleans", "numbers"])
def test_layers_of_attention_over_a_left_padded_batch(form: str, dtype: Any) -> None:
    mask = padded(2, 16, 5)
    given = mask if form == "booleans" else torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -INF)

    def layers(x: Any, w: Any, m: Any) -> Any:
        x = x + F.scaled_dot_product_attention(x, x, x, attn_mask=m) @ w
        return x + F.scaled_dot_product_attention(x, x, x, attn_mask=m) @ w

    x, w = numbers(2, 4, 16, 8).to(dtype), (0.3 * numbers(8, 8, seed=1)).to(dtype)
    found = mf.from_torch(layers, (x, w, given))
    assert found.graph is not None
    (mine,) = typed(found, (x, w, given))
    assert bool(mine.isfinite().all())
    torch.testing.assert_close(mine, layers(x, w, given), rtol=3e-2, atol=3e-2)
    once = held(lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), x, given)
    (weights,) = typed(once, (x, given))
    assert not weights[1, :, :5].any()


@types
@pytest.mark.parametrize("size", [1.0, 100.0, 400.0])
def test_attention_with_every_kind_of_mask(size: float, dtype: Any) -> None:
    q, k, v = ((size * numbers(2, 3, 8, 16, seed=n)).to(dtype) for n in range(3))
    empty = numbers(2, 1, 8, 8, seed=4) > 0.3
    empty[:, :, 2] = False
    empty[:, :, :, 5] = False
    held(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, empty)
    added = numbers(8, 8, seed=5).to(dtype)
    added[3], added[:, 1] = -INF, -INF
    held(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, added)
    lowest = torch.where(empty, 0.0, torch.finfo(dtype).min).to(dtype)
    held(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, lowest)
    held(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    held(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v)


@types
def test_a_softmax_of_nothing_has_no_value_and_keys_that_are_not_kept_have_no_influence(dtype: Any) -> None:
    keep = numbers(6, 8, seed=1) > 0
    keep[2] = False
    x = numbers(6, 8).to(dtype)
    x[~keep] = torch.tensor([NAN, INF, -INF, 1e4], dtype=dtype).repeat(48)[: int((~keep).sum())]

    def filled(x: Any, m: Any) -> Any:
        return torch.softmax(x.masked_fill(~m, -INF), -1)

    found = held(filled, x, keep)
    (mine,) = typed(found, (x, keep))
    assert bool(mine[2].isnan().all())
    held(lambda x, m: torch.softmax(torch.where(m, x, -INF), 0), x, keep)
    held(lambda x: torch.softmax(x, -1), torch.where(keep, numbers(6, 8).to(dtype), -INF))


def test_masks_are_read_as_booleans() -> None:
    x, mask = torch.randn(2, 4, 8, 8), torch.ones(2, 1, 8, 8, dtype=torch.bool).mT
    found = mf.from_torch(lambda x, m: F.scaled_dot_product_attention(x, x, x, attn_mask=m), (x, mask))
    program = found.regions[0].program
    (declared,) = (item for item in program.inputs if item.tensor.dtype is DType.BOOL)
    (item,) = (item for item in found.regions[0].inputs if item.dtype is DType.BOOL)
    assert item.read(mask).data_ptr() == mask.data_ptr()
    assert declared.strides == item.layout.strides
    assert OpKind.SELECT.value in kinds(found)
    assert OpKind.DIV_NO_NAN.value in kinds(found)


# --- 2: what is not chosen has no influence ---------------------------------------------------------------------------

CHOICES: dict[str, Callable[..., Any]] = {
    "a quotient": lambda x, y, m: torch.where(y > 0, x / y, 0.0),
    "a logarithm": lambda x, y, m: torch.where(x > 0, x.log(), 0.0),
    "a large exponential": lambda x, y, m: torch.where(x > 20, x, torch.log1p(torch.exp(x))),
    "a number elsewhere": lambda x, y, m: torch.exp(x).masked_fill(m, 3.0),
    "a tensor elsewhere": lambda x, y, m: torch.exp(x).masked_fill(m, y.nan_to_num().clamp(-9, 9).sum()),
    "both": lambda x, y, m: torch.where(m, x, y),
    "neither": lambda x, y, m: torch.where(x > y, 0.0, -1e4) + torch.where(m, 0.0, 1e-3) * y,
    "below a diagonal": lambda x, y, m: torch.tril(torch.exp(x.reshape(1, -1) + x.reshape(-1, 1))),
    "above a diagonal": lambda x, y, m: torch.triu(1 / x.expand(31, 31), 1),
    "a diagonal": lambda x, y, m: torch.diag_embed(x),
    "where it is a number": lambda x, y, m: torch.where(torch.isnan(x), y, x),
    "where it is finite": lambda x, y, m: torch.where(torch.isfinite(x), x, 0.0),
    "where it is itself": lambda x, y, m: torch.where(x != x, 0.0, x),
    "numbers for all": lambda x, y, m: torch.nan_to_num(x, 1.0),
    "by logic": lambda x, y, m: torch.where((x > 0) & ~m | (y <= 1), x, y),
    "by numbers": lambda x, y, m: torch.where(torch.logical_and(x, y), x, y) * torch.logical_not(x),
    "a product with a mask": lambda x, y, m: x * m,
    "what a row has": lambda x, y, m: torch.where((x > 0).any(), x, y).masked_fill((y < 9).all(), 1.0),
}


@types
@pytest.mark.parametrize("name", CHOICES)
def test_selections_choose(name: str, dtype: Any) -> None:
    x = special(dtype)
    y = x.roll(5)
    held(CHOICES[name], x, y, torch.arange(len(x)) % 3 == 0)


@types
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_are_torchs(name: str, dtype: Any) -> None:
    x = torch.cat([special(dtype), torch.tensor([0.1, -0.1], dtype=torch.float64).to(dtype)])
    compare = getattr(torch, name)
    for other in (0.1, -0.1, 0, 400.0, INF, -INF):
        held(lambda x, other=other: torch.where(compare(x, other), 1.0, x), x)
    held(lambda x, y: torch.where(compare(x, y), 1.0, x), x, x.roll(1))
    held(lambda x: torch.where(compare(x, x), 1.0, x), x)


# --- 3: constants -----------------------------------------------------------------------------------------------------

CONSTANTS: dict[str, Callable[..., Any]] = {
    "elu": lambda x: F.elu(x),
    "elu with a negative factor": lambda x: F.elu(x, -0.5),
    "selu": lambda x: F.selu(x),
    "celu": lambda x: F.celu(x, 0.7),
    "an exponential up to 10": lambda x: torch.exp(x).clamp(max=10),
    "an exponential from 2 on": lambda x: torch.exp(x).clamp(min=2),
    "hardtanh": lambda x: F.hardtanh(x, -3, 2),
    "relu6": lambda x: F.relu6(x),
    "softplus": lambda x: F.softplus(x),
    "softplus, sharper": lambda x: F.softplus(x, 3.0, 5.0),
    "log_sigmoid": lambda x: F.logsigmoid(x),
    "mish": lambda x: F.mish(x),
    "silu": lambda x: F.silu(x),
    "gelu": lambda x: F.gelu(x),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, -0.5),
    "softshrink": lambda x: F.softshrink(x),
    "hardswish": lambda x: F.hardswish(x),
    "hardsigmoid": lambda x: F.hardsigmoid(x),
    "sigmoid": lambda x: torch.sigmoid(x),
    "tanh": lambda x: torch.tanh(x),
    "expm1": lambda x: torch.expm1(x),
    "log1p": lambda x: torch.log1p(x),
    "zeros": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "ones": lambda x: torch.ones_like(x) / x,
    "constants": lambda x: torch.where(x > 1, torch.full_like(x, 0.5), x) + x.new_ones(31) * 2,
}
POWERS = (0, 0.5, 1.5, 2, 2.5, 3, 1.3, -0.5, -1, -1.5, -2, -3, -1.3)


@types
@pytest.mark.parametrize("name", CONSTANTS)
def test_functions_at_special_values(name: str, dtype: Any) -> None:
    held(CONSTANTS[name], special(dtype))


@types
@pytest.mark.parametrize("exponent", POWERS)
def test_powers_at_special_values(exponent: float, dtype: Any) -> None:
    x = special(dtype).repeat(2)[:56]  # torch computes the last elements of a tensor otherwise than the others
    held(lambda x: x.pow(exponent), x)


@types
def test_products_are_not_lost_behind_a_function_that_is_bounded(dtype: Any) -> None:
    x, w = (10 * numbers(4, 8)).to(dtype), (10 * numbers(8, 8, seed=1)).to(dtype)
    for function in (F.selu, F.elu, F.celu, F.logsigmoid, F.softplus):
        found = mf.from_torch(lambda x, w, f=function: f(x @ w), (x, w))
        (mine,) = typed(found, (x, w))
        torch.testing.assert_close(mine, function(x @ w), rtol=2e-2, atol=1e-3)


@types
def test_near_zero_there_are_as_many_digits_as_elsewhere(dtype: Any) -> None:
    x = torch.logspace(-7, -1, 61, dtype=torch.float64).to(dtype)
    x = torch.cat([x, -x])
    for function in (torch.expm1, torch.log1p, F.elu, F.selu):
        held(lambda x, f=function: f(x) / x, x)


# --- 4: composite operators compute in float32 ------------------------------------------------------------------------

COMPOSITE: dict[str, Callable[..., Any]] = {
    "normalize": lambda x, y: F.normalize(x, dim=-1),
    "the 2-norm": lambda x, y: torch.linalg.vector_norm(x, dim=-1),
    "the 1-norm": lambda x, y: torch.linalg.vector_norm(x, 1, dim=(0, 1)),
    "the standard deviation": lambda x, y: torch.std(x, -1),
    "the variance": lambda x, y: torch.var(x / 8, (0, 1), correction=0),
    "the cosine": lambda x, y: F.cosine_similarity(x, y, -1),
    "the distance": lambda x, y: F.pairwise_distance(x[0], y[0]),
    "logsumexp": lambda x, y: torch.logsumexp(x, -1),
    "log_softmax": lambda x, y: torch.log_softmax(x, -1),
    "layer_norm": lambda x, y: F.layer_norm(x, (32,), y[0, 0], y[0, 1]),
    "rms_norm": lambda x, y: F.rms_norm(x, (32,), y[0, 0]),
    "group_norm": lambda x, y: F.group_norm(x, 2, y[0, 0, :4], y[0, 1, :4]),
    "instance_norm": lambda x, y: F.instance_norm(x, weight=y[0, 0, :4]),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0, :4, 0], y[1, :4, 1].abs(), y[0, 0, :4], y[0, 1, :4]),
    "a mean of all": lambda x, y: torch.mean(x * 32),
    "a sum over dims": lambda x, y: torch.sum(x - y, (0, 2)),
    "addcmul": lambda x, y: torch.addcmul(x, x / 8, y / 8, value=-0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.75),
    "huber": lambda x, y: F.huber_loss(x, y, delta=2.0, reduction="none"),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5, reduction="none"),
}


@types
@pytest.mark.parametrize("size", [1.0, 400.0])
@pytest.mark.parametrize("name", COMPOSITE)
def test_composite_operators_compute_in_float32(name: str, size: float, dtype: Any) -> None:
    x, y = ((size * numbers(2, 4, 32, seed=n)).to(dtype) for n in range(2))
    held(COMPOSITE[name], x, y)


@types
def test_rows_of_infinities_have_torchs_sums_of_exponentials(dtype: Any) -> None:
    x = numbers(6, 8).to(dtype)
    x[0], x[1, 3], x[2, 2], x[3], x[4, :2] = -INF, INF, NAN, 400.0, -INF
    held(lambda x: torch.exp(torch.logsumexp(x, -1)), x)
    held(lambda x: torch.logsumexp(x, -1), x)
    held(lambda x: torch.log_softmax(x, -1), x)


# --- 5: logarithms of 0 -----------------------------------------------------------------------------------------------


@types
def test_losses_of_certain_predictions(dtype: Any) -> None:
    p = torch.tensor([-1000.0, -60.0, -9.0, 0.0, 9.0, 60.0, 1000.0, INF, -INF]).to(dtype).repeat(2)
    t = torch.cat([torch.zeros(9), torch.ones(9)]).to(dtype)
    loss = F.binary_cross_entropy
    for reduction in ("none", "mean", "sum"):
        held(lambda p, t, r=reduction: loss(torch.sigmoid(p), t, reduction=r), p, t, moved=False)
    held(lambda p, t: loss(torch.sigmoid(p), t, weight=t + 1, reduction="none"), p, t, moved=False)
    held(lambda p, t: F.binary_cross_entropy_with_logits(p, t, reduction="none"), p, t)
    more = (t[:1] * 0 + 3).expand(18).contiguous()
    call = F.binary_cross_entropy_with_logits
    held(lambda p, t, w: call(p, t, weight=t + 1, pos_weight=w, reduction="none"), p, t, more)


@types
def test_0_times_a_logarithm_is_0_unless_there_is_no_number(dtype: Any) -> None:
    y = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 2.0]).to(dtype)
    for x in (0.0, -0.0, 2.0, NAN):
        held(lambda x, y: torch.xlogy(x, y), torch.full_like(y, x), y)
    held(lambda x: torch.xlogy(x, x), special(dtype).abs())


# --- 6: casts to narrower types ---------------------------------------------------------------------------------------

CASTS: dict[str, Callable[..., Any]] = {
    "what bfloat16 loses": lambda x: (x - x.bfloat16().float()) * 256,
    "what float16 loses": lambda x: (x - x.half().float()) * 4096,
    "through views": lambda x: (x.t() - x.bfloat16().t().contiguous().float()) * 256,
    "by a promotion": lambda x: (x - x.bfloat16() * torch.ones_like(x)) * 256,
    "to and fro": lambda x: x.half().bfloat16().half().float() - x,
    "split in three": lambda x: x - x.bfloat16().float() - (x - x.bfloat16().float()).bfloat16().float(),
}


@pytest.mark.parametrize("rounding", ["fused", "exact"])
@pytest.mark.parametrize("name", CASTS)
def test_what_a_cast_loses_is_lost(name: str, rounding: str) -> None:
    x = torch.cat([numbers(8, 8) * 3, torch.tensor([[1e5, 7e4, -1e6, 1e-9, 0.0, 3e38, INF, -INF]])])
    found = held(CASTS[name], x, rounding=rounding)
    (mine,) = typed(found, (x,))
    assert torch.equal(mine[:, :4].nan_to_num(), CASTS[name](x)[:, :4].nan_to_num()) or "t()" in name
    assert {"round_bfloat16", "round_float16"} & set(kinds(found))


def test_a_cast_whose_result_stays_narrow_is_a_condition_unless_rounding_is_exact() -> None:
    def block(x: Any, w: Any) -> Any:
        return (x.float() * 1.1).half() @ w

    given = (numbers(4, 8).half(), numbers(8, 8, seed=1).half())
    fused = mf.from_torch(block, given)
    assert not {kind for kind in kinds(fused) if kind.startswith("round")}
    mixed = mf.from_torch(lambda x, w: torch.exp(x).half() @ w, (numbers(4, 8), given[1]))
    assert any("intermediate not rounded" in str(note) for note in mixed.notes)
    exact = mf.from_torch(block, given, rounding="exact")
    assert kinds(exact).count("round_float16") == 2
    (mine,) = typed(exact, given)
    torch.testing.assert_close(mine, block(*given), rtol=1e-3, atol=1e-4)


def test_with_exact_roundings_every_operator_on_narrow_types_rounds() -> None:
    def chain(x: Any) -> Any:
        return ((x + 2048) - 2048) * 0.3 + x

    x = numbers(4, 8).half()
    found = mf.from_torch(chain, (x,), rounding="exact")
    assert kinds(found).count("round_float16") == 4
    (mine,) = typed(found, (x,))
    assert torch.equal(mine, chain(x))


def test_there_is_no_other_rounding() -> None:
    with pytest.raises(UnsupportedError, match="expected fused or exact, got 'none'"):
        mf.from_torch(torch.exp, (torch.ones(2),), rounding="none")
    with pytest.raises(UnsupportedError, match="expected fused or exact, got 'none'"):
        mf.optimize(torch.nn.ReLU(), (torch.ones(2),), rounding="none")


def test_float32_in_between_does_not_overflow_where_it_is_rounded_later() -> None:
    x = (400 * numbers(4, 8)).half()
    held(lambda x: (x.float().square() / 1e4).half(), x)
    held(lambda x, w: (x.float() * w * 1e-6).half(), x, torch.full((8,), 1e6))


# --- what stays with torch --------------------------------------------------------------------------------------------

LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "an integer mask": (
        lambda x, m: x.masked_fill(m == 0, 0.0) * 2,
        (torch.ones(4, 6), torch.ones(4, 6, dtype=torch.int64)),
        "expected tensors of torch.float16, torch.bfloat16, torch.float32, torch.bool, got torch.int64",
    ),
    "complex numbers": (
        lambda x: torch.exp(x),
        (torch.ones(4, dtype=torch.complex64),),
        "got torch.complex64",
    ),
    "integers": (lambda x: x + x, (torch.ones(4, dtype=torch.int32),), "got torch.int32"),
    "a constant that is NaN": (
        lambda x, m: torch.where(m, x, NAN) * 2,
        (torch.ones(4), torch.ones(4).bool()),
        "expected a finite",
    ),
    "a comparison with NaN": (lambda x: torch.where(x > NAN, x, 0.0), (torch.ones(4),), "expected a number, got nan"),
    "nothing": (lambda x: torch.cat([x, x]), (torch.ones(0),), "expected at least one element"),
    "a factor of 0": (lambda x: torch.exp(x) * 0, (torch.ones(4),), "expected a factor other than 0"),
    "a tensor of NaN": (lambda x: x + torch.full_like(x, NAN), (torch.ones(4),), "expected a finite"),
    "a number beyond float32": (lambda x: x * 1e39, (torch.ones(4),), "in the range of float32"),
    "a mask as a result": (lambda x: x > 1, (torch.ones(4),), "expected a result of"),
    "a sum of a mask": (lambda m: m.sum() * 1.0, (torch.ones(4).bool(),), "expected numbers, got a mask"),
    "an order of masks": (
        lambda m, x: torch.where(m < m.flip(0), x, 0.0),
        (torch.ones(4).bool(), torch.ones(4)),
        "got masks",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_keep_the_contract_stays_with_torch_and_names_the_line(name: str) -> None:
    call, given, said = LEFT[name]
    found = mf.from_torch(call, given)
    reasons = [item for item in (*found.left, *found.ahead) if said in item.reason]
    assert reasons, found.report()
    assert reasons[0].where is not None
    assert reasons[0].where.path == __file__


def test_masks_of_another_shape_are_torchs_error() -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.export has no graph"):
        mf.from_torch(lambda x, m: torch.where(m, x, 0.0), (torch.ones(4, 6), torch.ones(4, 5).bool()))
