"""Graphs of buckets compute at every length what the function does, and hold behind it what their rules say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings

from mirage_formal.torch.dynamic_shapes.extents import Buckets, Length
from mirage_formal.torch.dynamic_shapes.operators import continue_padding, kept
from mirage_formal.torch.dynamic_shapes.parts import Form
from tests.kit.torch.varying import GIVEN, Random, example, functions, hosted_by_torch, traced_function

_number = itertools.count()
SHAPES = {"x": {0: (1, 11, 5)}, "k": {1: (1, 11, 5)}, "m": {0: (1, 11, 5)}}


def _settings(examples: int) -> settings:
    health = list(HealthCheck)
    return settings(
        max_examples=examples, phases=[Phase.generate], deadline=None, suppress_health_check=health, derandomize=True
    )


@_settings(3)
@given(functions)
def test_random_functions_at_every_length(function: Random) -> None:
    at_every_length(function)


@pytest.mark.slow
@_settings(60)
@given(functions)
def test_more_random_functions_at_every_length(function: Random) -> None:
    at_every_length(function)


#: Functions whose results are other ones if a rule is wrong, and the steps that they are made of.
PLAIN: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, k, m, q, w: torch.softmax(k, 1),
    "sum": lambda x, k, m, q, w: (x.sum(0), torch.tanh(k).sum((0, 1)), k.sum()),
    "mean": lambda x, k, m, q, w: (x.mean(0), k.mean(), k.mean((0, 1), keepdim=True)),
    "maximum": lambda x, k, m, q, w: (x.amax(0), k.amin(1), torch.max(k, 1).values),
    "logsumexp": lambda x, k, m, q, w: torch.logsumexp(k, (1, 2)),
    "product": lambda x, k, m, q, w: (x.t() @ x, torch.relu(k.transpose(1, 2)) @ k, q @ k.transpose(1, 2) @ k),
    "reciprocal": lambda x, k, m, q, w: (1 / x.abs()).sum(0),
    "attention": lambda x, k, m, q, w: F.scaled_dot_product_attention(q, k, k),
    "masked": lambda x, k, m, q, w: F.scaled_dot_product_attention(q, k, k, attn_mask=m[None]),
    "added": lambda x, k, m, q, w: F.scaled_dot_product_attention(
        q, k, k, attn_mask=torch.where(m, 0.5, -2.0 * k[0, :, 0])[None]
    ),
    "causal": lambda x, k, m, q, w: F.scaled_dot_product_attention(k, k, k, is_causal=True).sum(1),
    "groups": lambda x, k, m, q, w: F.scaled_dot_product_attention(
        torch.cat([q, q])[None], k[None], k[None], enable_gqa=True
    ),
    "last": lambda x, k, m, q, w: (x[-1] * 2, torch.relu(k)[:, -1:]),
    "running": lambda x, k, m, q, w: torch.relu(torch.cumsum(k, 1)) * 2,
    "joined": lambda x, k, m, q, w: F.scaled_dot_product_attention(q, *[torch.cat([k, torch.tanh(q)], 1)] * 2),
    "norms": lambda x, k, m, q, w: (F.layer_norm(k, (4,), w[0], w[1]), F.rms_norm(k - k.mean(1, keepdim=True), (4,))),
    "spread": lambda x, k, m, q, w: (
        k.var(1, correction=0),
        x.std(0, correction=0),
        F.layer_norm(x.t(), (x.shape[0],)),
    ),
    "heads": lambda x, k, m, q, w: F.linear(k.transpose(0, 1).flatten(1, 2), torch.cat([w, w], 1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_functions_at_every_length(name: str) -> None:
    def function(x: Any, k: Any, m: Any, q: Any, w: Any) -> Any:
        found = PLAIN[name](x, k, m, q, w)
        return found if isinstance(found, tuple) else (found,)

    at_every_length(function)


@pytest.mark.parametrize("name", ["last", "running", "spread"])
def test_operators_without_a_rule_are_named(name: str) -> None:
    _, found = traced_function(PLAIN[name], SHAPES, torch.float64)
    assert found.left


def at_every_length(function: Any) -> None:
    traced, found = traced_function(function, SHAPES, torch.float64)
    host, _ = hosted_by_torch(found, f"random{next(_number)}")
    without = frozenset[int]().union(*traced.without.values())
    for length in sorted(set(range(1, 12)) - without):
        arguments = [example(name, length, length, torch.float64) for name in GIVEN]
        wanted = function(*arguments)
        for mine, theirs in zip(host(*arguments), wanted, strict=True):
            assert mine.shape == theirs.shape
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_copies_of_the_last_position_along_two_dims() -> None:
    first, second = Length("a"), Length("b", 1)
    form = Form((first, 2, second), (0, 1, 2), None)
    tensor = torch.arange(12.0).view(2, 2, 3)
    found = continue_padding(tensor, form, {first: 2, second: 3}, {first: 4, second: 5})
    places = [min(i, 1) for i in range(4)], [min(i, 2) for i in range(5)]
    assert torch.equal(found, tensor[places[0]][:, :, places[1]])


@pytest.mark.parametrize("length", [1, 3, 8])
def test_ones_below_the_length(length: int) -> None:
    assert kept(length, 8, torch.device("cpu")).tolist() == [i < length for i in range(8)]


@pytest.mark.parametrize(
    ("where", "uppers"),
    [
        (Buckets(1, 4096, 1024), (1024, 2048, 3072, 4096)),
        (Buckets(1, 30, 16), (16, 30)),
        (Buckets(16, 33, 16), (16, 32, 33)),
        (Buckets(1, 3, 1), (2, 3)),
        (Buckets(5, 6, 8), (6,)),
    ],
)
def test_each_length_has_its_bucket(where: Buckets, uppers: tuple[int, ...]) -> None:
    assert where.uppers() == uppers
    for length in range(where.lowest, where.highest + 1):
        assert where.upper(length) == min(n for n in uppers if n >= length)
    assert where.upper(where.lowest - 1) is None
    assert where.upper(where.highest + 1) is None
