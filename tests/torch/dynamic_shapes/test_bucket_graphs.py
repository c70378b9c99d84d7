"""Graphs of buckets compute at every length what the function does, and hold behind it what their rules say."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mirage_formal.torch.dynamic_shapes.bucket_operators import (
    BucketEntry,
    BucketOperator,
    FunctionText,
    call_of,
    continue_padding,
    length_mask,
)
from mirage_formal.torch.dynamic_shapes.bucket_search import _feed, _HostGraphWriter
from mirage_formal.torch.dynamic_shapes.dynamic_dims import DynamicTrace, trace_dynamic
from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets, DynamicExtent
from mirage_formal.torch.dynamic_shapes.graph_partitioning import BucketPart, DividedGraph, InputForm, divide_parts
from mirage_formal.torch.dynamic_shapes.padded_graphs import BucketTensor, PaddingContent
from mirage_formal.torch.modules.trace import FunctionModule

#: The tensors of a random function, by their extents; -1 is the length.
GIVEN = {"x": (-1, 4), "k": (2, -1, 4), "m": (-1,), "q": (2, 3, 4), "w": (4, 4)}


def example(name: str, length: int, seed: int, dtype: Any) -> Any:
    """A tensor of a random function; booleans for the mask, of which the first is true."""
    made = torch.Generator().manual_seed(seed + 31 * sorted(GIVEN).index(name))
    shape = [length if n == -1 else n for n in GIVEN[name]]
    found = torch.randn(shape, generator=made, dtype=torch.float64)
    if name == "m":
        kept = found > 0
        kept[0] = True
        return kept
    return found.to(dtype)


#: The length of the example by which a random function is made: no other extent has it.
EXAMPLE = 7
#: One step: of two values, the mask and a matrix. Steps are chosen by the example, and ask no extents when they run.
Run = Callable[[Any, Any, Any, Any], Any]


@dataclass
class Random:
    """A function that does what was drawn.

    Attributes:
        choices: Numbers that say what to do next, and with which values.
    """

    choices: Sequence[tuple[int, int, int]]

    def __post_init__(self) -> None:
        x, k, m, q, w = (example(name, EXAMPLE, 0, torch.float64) for name in GIVEN)
        values = [x, k, q]
        self._steps: list[tuple[int, int, Run]] = []
        for what, which, more in self.choices:
            first, second = which % len(values), more % len(values)
            run = STEPS[what % len(STEPS)](values[first], values[second], more)
            if run is not None:
                self._steps.append((first, second, run))
                values.append(run(values[first], values[second], m, w))

    def __call__(self, x: Any, k: Any, m: Any, q: Any, w: Any) -> Any:
        """The last values that were computed."""
        values: list[Any] = [x, k, q]
        for first, second, run in self._steps:
            values.append(run(values[first], values[second], m, w))
        return tuple(values[3:][-3:]) or (x * 2,)


def _long(a: Any) -> list[int]:
    return [d for d, n in enumerate(a.shape) if n == EXAMPLE]


def _mask(m: Any, dims: Sequence[int], rank: int) -> Any:
    return m.view([-1 if d == dims[-1] else 1 for d in range(rank)])


def _where(a: Any, b: Any, n: int) -> Run | None:
    dims, rank = _long(a), a.dim()
    return (lambda a, b, m, w: torch.where(_mask(m, dims, rank), a, -1.5)) if dims else None


def _soft_mask(a: Any, b: Any, n: int) -> Run | None:
    dims, rank = _long(a), a.dim()
    if not dims:
        return None
    return lambda a, b, m, w: torch.softmax(a.masked_fill(~_mask(m, dims, rank), float("-inf")), dims[-1])


def _together(a: Any, b: Any, n: int) -> Run | None:
    kinds: list[Run] = [
        lambda a, b, m, w: a + b,
        lambda a, b, m, w: a * b,
        lambda a, b, m, w: a / (b.square() + 1),
        lambda a, b, m, w: torch.maximum(a, b),
    ]
    return kinds[n // 4 % 4] if a.shape == b.shape else None


def _product(a: Any, b: Any, n: int) -> Run | None:
    kinds: list[Run] = [
        lambda a, b, m, w: a @ b.transpose(-1, -2),
        lambda a, b, m, w: torch.softmax(a @ b.transpose(-1, -2), -1) @ b,
        lambda a, b, m, w: (a @ b.transpose(-1, -2)) @ torch.tanh(b),
    ]
    fits = a.dim() > 1 and b.dim() > 1 and a.shape[-1] == b.shape[-1] and a.dim() <= 3 and b.dim() <= 3
    lead = fits and (a.dim() == 2 or b.dim() == 2 or a.shape[0] == b.shape[0])
    return kinds[n // 4 % 3] if lead else None


def _attention(a: Any, b: Any, n: int) -> Run | None:
    if a.dim() != 3 or b.dim() != 3 or a.shape[-1] != 4 or b.shape[-1] != 4 or a.shape[0] != b.shape[0]:
        return None
    causal = n % 2 == 0 and a.shape[-2] == b.shape[-2]
    masked = n // 2 % 2 == 0 and not causal and b.shape[-2] == EXAMPLE
    return lambda a, b, m, w: F.scaled_dot_product_attention(
        a, b, torch.tanh(b), attn_mask=m[None] if masked else None, is_causal=causal
    )


def _moved(a: Any, b: Any, n: int) -> Run | None:
    d = n // 6 % a.dim() if a.dim() else 0
    kinds: list[Run] = [
        lambda a, b, m, w: a.transpose(0, -1),
        lambda a, b, m, w: a.unsqueeze(d),
        lambda a, b, m, w: torch.cat([a, a * 2], d),
        lambda a, b, m, w: a.select(d, -1),
        lambda a, b, m, w: a.expand(2, *a.shape).contiguous(),
        lambda a, b, m, w: a.flatten(0, 1),
    ]
    return (kinds[n % 6] if a.dim() < 4 else kinds[5]) if a.dim() > 1 else kinds[1]


def _reduced(a: Any, b: Any, n: int) -> Run | None:
    if not a.dim():
        return None
    d, keep = n % a.dim(), n % 2 == 0
    kinds: list[Run] = [
        lambda a, b, m, w: a.sum(d, keepdim=keep),
        lambda a, b, m, w: a.mean(d, keepdim=keep),
        lambda a, b, m, w: a.amax(d, keepdim=keep),
        lambda a, b, m, w: torch.logsumexp(a, d, keepdim=keep),
        lambda a, b, m, w: torch.softmax(a, d),
        lambda a, b, m, w: torch.log_softmax(a, d),
        lambda a, b, m, w: a.sum(),
        lambda a, b, m, w: a.mean(),
        lambda a, b, m, w: torch.cumsum(a, d),
        lambda a, b, m, w: a.amin(d, keepdim=keep),
    ]
    return kinds[n // 4 % len(kinds)]


def _single(a: Any, b: Any, n: int) -> Run | None:
    rows = a.dim() > 0 and a.shape[-1] == 4
    kinds: list[Run] = [
        lambda a, b, m, w: torch.relu(a),
        lambda a, b, m, w: torch.tanh(a) + 0.5,
        lambda a, b, m, w: torch.exp(torch.tanh(a)),
        lambda a, b, m, w: torch.log(a.square() + 1),
        lambda a, b, m, w: torch.reciprocal(torch.sigmoid(a)),
        lambda a, b, m, w: 2 - a,
        lambda a, b, m, w: a @ w if rows else a * 0.5,
        lambda a, b, m, w: F.linear(a, w, w[0]) if rows else a.abs(),
        lambda a, b, m, w: F.rms_norm(a, (4,), w[1], 1e-5) if rows else a.neg(),
        lambda a, b, m, w: F.layer_norm(a, (4,), None, w[1], 1e-5) if rows else F.silu(a),
    ]
    return kinds[n % len(kinds)]


STEPS = (_single, _single, _together, _product, _attention, _moved, _reduced, _reduced, _where, _soft_mask)

#: Random functions.
functions = st.builds(
    Random,
    st.lists(st.tuples(st.integers(0, 119), st.integers(0, 119), st.integers(0, 119)), min_size=2, max_size=9),
)


def traced_function(function: Any, shapes: Any, dtype: Any, length: int = EXAMPLE) -> tuple[DynamicTrace, DividedGraph]:
    """A function's graph and parts."""
    given = tuple(example(name, length, 0, dtype) for name in GIVEN)
    found = trace_dynamic(FunctionModule(function), (given, {}), shapes)
    return found, divide_parts(found.captured, found.buckets)


def hosted_by_torch(found: DividedGraph, names: str) -> tuple[Any, list[BucketOperator]]:
    """A function of the graph's tensors, in which each bucket's graph is computed by torch; and its operators."""

    def unsearched(part: BucketPart) -> Callable[[tuple[int, ...]], BucketEntry | None]:
        def prepare(uppers: tuple[int, ...]) -> BucketEntry:
            bucket = part.written(found.lengths, dict(zip(part.lengths, uppers, strict=True)))
            _states(bucket.known[node.name] for node in part.outputs)
            return BucketEntry(FunctionText.of(bucket.graph), _feed(part, bucket, None, bucket.graph), ())  # type: ignore[arg-type]

        return prepare

    operators = []
    for number, part in enumerate(found.parts):
        operators.append(BucketOperator(f"{names}_{number}", call_of(part), {}, unsearched(part)))
    return torch.fx.GraphModule(torch.nn.Module(), _HostGraphWriter(found, operators).run()), operators


def _states(results: Any) -> None:
    for item in results:
        assert isinstance(item, BucketTensor)
        for extent, behind in zip(item.extents, item.behind, strict=True):
            assert isinstance(extent, DynamicExtent) == isinstance(behind, PaddingContent)


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
    first, second = DynamicExtent("a"), DynamicExtent("b", 1)
    form = InputForm((first, 2, second), (0, 1, 2), None)
    tensor = torch.arange(12.0).view(2, 2, 3)
    found = continue_padding(tensor, form, {first: 2, second: 3}, {first: 4, second: 5})
    places = [min(i, 1) for i in range(4)], [min(i, 2) for i in range(5)]
    assert torch.equal(found, tensor[places[0]][:, :, places[1]])


@pytest.mark.parametrize("length", [1, 3, 8])
def test_ones_below_the_length(length: int) -> None:
    assert length_mask(length, 8, torch.device("cpu")).tolist() == [i < length for i in range(8)]


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
