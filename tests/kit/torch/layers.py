"""Decoder layers of transformers with random weights, as modules of tensors."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

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
