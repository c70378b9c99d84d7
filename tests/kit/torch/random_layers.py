"""Decoder layers of transformers with random weights, and random functions, imported and compared.

python -m tests.kit.torch.random_layers 200          # seeds 0 to 199
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from mirage_formal.torch import from_torch
from mirage_formal.torch.import_result import Imported
from tests.kit.torch.comparison import compare

FAMILIES = ("llama", "qwen3", "mistral", "gemma")
_CLASSES = {"llama": "Llama", "qwen3": "Qwen3", "mistral": "Mistral", "gemma": "Gemma"}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of what it reads; no past is a prompt, another one decodes one token.

    Without a mask a prompt's attention is causal, as sdpa is told.
    """

    batch: int = 1
    tokens: int = 16
    past: int = 0
    heads: int = 4
    groups: int = 2
    head: int = 8
    inner: int = 48
    masked: bool = True

    @property
    def hidden(self) -> int:
        return self.heads * self.head


#: Llama 3 8B.
REAL = Sizes(heads=32, groups=8, head=128, inner=14336)


def layer(family: str, attention: str, sizes: Sizes, dtype: Any, device: str) -> torch.nn.Module:
    """One decoder layer with "eager" or "sdpa" attention."""
    name = _CLASSES[family]
    package = import_module(f"transformers.models.{family}")
    config = getattr(package, f"{name}Config")(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.groups,
        head_dim=sizes.head,
        num_hidden_layers=1,
        vocab_size=64,
    )
    config._attn_implementation = attention
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    with torch.device(device):
        made = getattr(module, f"{name}DecoderLayer")(config, 0).eval().to(dtype)
    return Prefill(made, sizes.masked) if not sizes.past else Decode(made)


class Prefill(torch.nn.Module):  # type: ignore[misc]
    """A layer for a prompt."""

    def __init__(self, layer: Any, masked: bool) -> None:
        super().__init__()
        self.layer = layer
        self.masked = masked

    def forward(self, x: Any, mask: Any, cos: Any, sin: Any) -> Any:
        found = self.layer(x, attention_mask=mask if self.masked else None, position_embeddings=(cos, sin))
        return found[0] if isinstance(found, tuple) else found


class Decode(torch.nn.Module):  # type: ignore[misc]
    """A layer for one token over cached keys and values, which it returns with the token's."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        # transformers calls it "cache" from 5.24 on, and warns of the other name.
        known = inspect.signature(layer.forward).parameters
        self.cache = next(name for name in ("cache", "past_key_values") if name in known)

    def forward(self, x: Any, mask: Any, cos: Any, sin: Any, keys: Any, values: Any) -> Any:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache()
        cache.update(keys, values, 0)
        found = self.layer(x, attention_mask=mask, position_embeddings=(cos, sin), **{self.cache: cache})
        return (found[0] if isinstance(found, tuple) else found), cache.layers[0].keys, cache.layers[0].values


def arguments(sizes: Sizes, dtype: Any, device: str, seed: int = 0, *, booleans: bool = False) -> tuple[Any, ...]:
    """The arguments of a layer: hidden states, the causal mask, cosines, sines, and what is cached."""
    torch.manual_seed(seed)
    tokens = 1 if sizes.past else sizes.tokens
    batch = sizes.batch

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, dtype=dtype, device=device)

    seen = torch.ones(tokens, sizes.past + tokens, dtype=torch.bool, device=device).tril(sizes.past)
    seen = seen[None, None].expand(batch, 1, tokens, sizes.past + tokens)
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, torch.finfo(dtype).min)
    found = [normal(batch, tokens, sizes.hidden), seen.contiguous() if booleans else mask]
    found += [normal(batch, tokens, sizes.head), normal(batch, tokens, sizes.head)]
    if sizes.past:
        found += [normal(batch, sizes.groups, sizes.past, sizes.head) for _ in range(2)]
    return tuple(found)


def layer_of(seed: int) -> Imported:
    """Import a random decoder layer of random sizes, and compare it; the import is whole."""
    draw = random.Random(seed)
    groups = draw.choice((1, 2, 3))
    sizes = Sizes(
        batch=draw.choice((1, 1, 2, 3)),
        tokens=draw.choice((1, 2, 5, 16)),
        past=draw.choice((0, 1, 7, 12)),
        heads=groups * draw.choice((1, 2, 4)),
        groups=groups,
        head=draw.choice((4, 8, 10)),
        inner=draw.choice((6, 24, 40)),
        masked=draw.random() < 0.7,
    )
    family, attention = draw.choice(FAMILIES), draw.choice(("eager", "sdpa"))
    torch.manual_seed(seed)
    dtype = draw.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16))
    module = layer(family, attention, sizes, dtype, "cpu")
    given = arguments(sizes, dtype, "cpu", seed, booleans=attention == "sdpa" and draw.random() < 0.5)
    found = from_torch(module, given)
    assert found.graph is not None, (family, attention, sizes, found.report())
    compare(found, module.double(), given, 1e-5)  # over the reals a narrower type changes nothing
    return found


def function_of(seed: int) -> Imported:
    """Import a random function of views, functions and products, and compare it."""
    draw = random.Random(seed)
    count = draw.choice((1, 2, 3))
    shapes = [tuple(draw.choice((1, 2, 3, 4, 6)) for _ in range(draw.choice((2, 3, 4)))) for _ in range(count)]
    torch.manual_seed(seed)
    given = [torch.randn(shape) for shape in shapes]
    given = [g.transpose(0, 1).contiguous().transpose(0, 1) if draw.random() < 0.3 else g for g in given]
    steps = [draw.getrandbits(64) for _ in range(draw.choice((4, 8, 12)))]

    def call(*tensors: Any) -> Any:
        values = list(tensors)
        for step in steps:
            values.append(_step(random.Random(step), values))
        return values[-1] * 1.5, values[-2] + 1

    found = from_torch(call, tuple(given))
    compare(found, call, given, 1e-5)
    return found


def _step(draw: random.Random, values: list[Any]) -> Any:
    """A random operator on one of the last values."""
    value = draw.choice(values[-3:])
    rank = value.dim()
    axis = draw.randrange(rank)
    moves: list[Callable[[], Any]] = [
        lambda: value.permute(draw.sample(range(rank), rank)),
        lambda: value.reshape(_shape(draw, value.numel())),
        lambda: value.unsqueeze(axis) if rank < 5 else value.reshape(-1, 1),
        lambda: value[(slice(None),) * axis + (slice(value.shape[axis] // 2, None),)],
        lambda: value.repeat_interleave(2, axis) if value.numel() < 500 else value.flip(axis),
        lambda: value.unsqueeze(0).expand(3, *value.shape) if rank < 5 and value.numel() < 500 else value.flatten(),
        lambda: torch.cat([value, value.tanh()], axis) if value.numel() < 500 else value.sum(axis, keepdim=True),
        lambda: value.transpose(axis, -1).tanh(),
        lambda: torch.softmax(value, axis),
        lambda: value.mean(axis, keepdim=True) if draw.random() < 0.5 or rank < 2 else value.sum(axis) * 0.1,
        lambda: value * torch.sigmoid(_other(draw, value, values)),
        lambda: value - _other(draw, value, values),
        lambda: _product(draw, value, values),
        lambda: torch.nn.functional.rms_norm(value, value.shape[-1:], eps=1e-3),
        lambda: torch.cumsum(value, axis) if draw.random() < 0.3 else torch.relu(value),
    ]
    return draw.choice(moves)()


def _shape(draw: random.Random, elements: int) -> list[int]:
    found: list[int] = []
    while elements > 1 and len(found) < 4:
        part = draw.choice([n for n in (2, 3, 4, 6, elements) if elements % n == 0])
        found.append(part)
        elements //= part
    return [*found, elements]


def _other(draw: random.Random, value: Any, values: list[Any]) -> Any:
    """A value that broadcasts with another one."""
    for _ in range(5):
        other = draw.choice(values)
        try:
            torch.broadcast_shapes(value.shape, other.shape)
        except RuntimeError:
            continue
        if max(other.dim(), value.dim()) <= 5 and other.numel() * value.numel() < 10**6:
            return other
    return value.amax(-1, keepdim=True)


def _product(draw: random.Random, value: Any, values: list[Any]) -> Any:
    for _ in range(5):
        other = draw.choice(values)
        turned = other.mT if other.dim() > 1 else other
        for right in (other, turned):
            if value.dim() < 2 or right.dim() < 2 or value.shape[-1] != right.shape[-2]:
                continue
            try:
                torch.broadcast_shapes(value.shape[:-2], right.shape[:-2])
            except RuntimeError:
                continue
            return torch.matmul(value, right) * 0.3
    return torch.matmul(value, value.mT) * 0.3 if value.dim() > 1 else value.exp() * 0.1


def main() -> None:
    """Run as many seeds as the command line says."""
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
        layer_of(seed)
        function_of(seed)
        print(seed, "equal", flush=True)


if __name__ == "__main__":
    main()
