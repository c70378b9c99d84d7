"""Models of transformers with random weights and tiny sizes, as modules of tensors, for padded batches and caches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
import transformers

from mirage_formal.torch import from_torch
from mirage_formal.torch.import_result import Imported
from tests.kit.torch.comparison import typed

BATCH: Final = 2
TOKENS: Final = 12
#: Positions of the second sample that are padding; the first one has none.
PADDED: Final = 5
HEADS: Final = 4
GROUPS: Final = 2
HEAD: Final = 8
HIDDEN: Final = HEADS * HEAD

DECODERS: Final = ("llama", "qwen3", "gemma3", "gpt_neox", "mixtral")
FAMILIES: Final = (*DECODERS, "bert", "t5", "whisper")
PADDINGS: Final = ("none", "left", "right")
TYPES: Final = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """A model and what it is given.

    Attributes:
        family: The model.
        attention: Its implementation of attention: "sdpa" or "eager".
        padding: Where the second sample is padded.
        cached: Whether keys and values of earlier tokens are given, and one token is decoded.
        dtype: The element type.
    """

    family: str
    attention: str = "sdpa"
    padding: str = "left"
    cached: bool = False
    dtype: str = "float32"

    def __str__(self) -> str:
        parts = (self.family, self.attention, f"{self.padding} padded", "cached" if self.cached else "", self.dtype)
        return " ".join(part for part in parts if part)


def cases(families: Sequence[str] = FAMILIES, types: Sequence[str] = TYPES) -> list[Case]:
    """Every case."""
    found = []
    for family, attention, padding, cached, dtype in product(
        families, ("sdpa", "eager"), PADDINGS, (False, True), types
    ):
        if cached and family not in (*DECODERS, "whisper"):
            continue  # nothing of theirs is cached, or it is another model's
        found.append(Case(family, attention, padding, cached, dtype))
    return found


def module_of(case: Case) -> torch.nn.Module:
    """The module, in evaluation, with weights that depend on the family alone."""
    torch.manual_seed(1)
    config = _config(case.family)
    config._attn_implementation = case.attention
    dtype = getattr(torch, case.dtype)
    match case.family:
        case "bert":
            made: Any = Encoder(transformers.BertModel(config, add_pooling_layer=False))
        case "t5":
            made = Pair(transformers.T5Model(config))
        case "whisper":
            from transformers.models.whisper.modeling_whisper import WhisperDecoderLayer

            made = Whisper(WhisperDecoderLayer(config, layer_idx=0))
        case family:
            classes = {
                "llama": transformers.LlamaModel,
                "qwen3": transformers.Qwen3Model,
                "gemma3": transformers.Gemma3TextModel,
                "gpt_neox": transformers.GPTNeoXModel,
                "mixtral": transformers.MixtralModel,
            }
            made = Decoder(classes[family](config), cached=case.cached)
    for parameter in made.parameters():  # as large as those of trained models are, not as small as those at the start
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.5 / parameter.shape[-1] ** 0.5)
    return made.eval().to(dtype)


def _config(family: str) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "vocab_size": 32,
        "max_position_embeddings": 64,
    }
    grouped = {**sizes, "num_key_value_heads": GROUPS, "head_dim": HEAD}
    match family:
        case "llama":
            return transformers.LlamaConfig(**grouped)
        case "qwen3":
            return transformers.Qwen3Config(**grouped)
        case "gemma3":
            return transformers.Gemma3TextConfig(
                **grouped, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
            )
        case "gpt_neox":
            return transformers.GPTNeoXConfig(**sizes)
        case "mixtral":
            config = transformers.MixtralConfig(**grouped, num_local_experts=4, num_experts_per_tok=2)
            config._experts_implementation = "batched_mm"  # the others take as many tokens as the router says
            return config
        case "bert":
            return transformers.BertConfig(**sizes)
        case "t5":
            return transformers.T5Config(
                d_model=HIDDEN, d_kv=HEAD, d_ff=48, num_layers=2, num_heads=HEADS, vocab_size=32, dropout_rate=0.0
            )
        case "whisper":
            return transformers.WhisperConfig(
                d_model=HIDDEN, decoder_attention_heads=HEADS, decoder_ffn_dim=48, decoder_layers=1, vocab_size=32
            )
        case _:
            raise ValueError(family)


class Decoder(torch.nn.Module):  # type: ignore[misc]
    """A decoder over embeddings and, if it is cached, keys and values of each layer, which it returns with the new."""

    def __init__(self, model: Any, *, cached: bool) -> None:
        super().__init__()
        self.model, self.cached = model, cached

    def forward(self, x: Any, mask: Any, *past: Any) -> Any:
        if not self.cached:
            return self.model(inputs_embeds=x, attention_mask=mask, use_cache=False).last_hidden_state
        cache = transformers.DynamicCache()
        for number in range(len(past) // 2):
            cache.update(past[2 * number], past[2 * number + 1], number)
        found = self.model(inputs_embeds=x, attention_mask=mask, past_key_values=cache, use_cache=True)
        kept = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return (found.last_hidden_state, *kept)


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """An encoder over embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, mask: Any) -> Any:
        return self.model(inputs_embeds=x, attention_mask=mask).last_hidden_state


class Pair(torch.nn.Module):  # type: ignore[misc]
    """An encoder and a decoder; both are padded."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any, mask: Any, y: Any) -> Any:
        found = self.model(
            inputs_embeds=x,
            attention_mask=mask,
            decoder_inputs_embeds=y,
            decoder_attention_mask=mask,
            use_cache=False,
        )
        return found.last_hidden_state


class Whisper(torch.nn.Module):  # type: ignore[misc]
    """A decoder layer of a model of speech: attention to itself, with a mask, and to what was heard."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, mask: Any, heard: Any, *past: Any) -> Any:
        cache = None
        if past:
            own, other = transformers.DynamicCache(), transformers.DynamicCache()
            own.update(past[0], past[1], 0)
            cache = transformers.EncoderDecoderCache(own, other)
        found = self.layer(x, attention_mask=mask, encoder_hidden_states=heard, past_key_values=cache)
        return found[0] if isinstance(found, tuple) else found


def arguments(case: Case, seed: int = 0) -> tuple[Any, ...]:
    """What the module of a case is given."""
    torch.manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    past = TOKENS - 1 if case.cached else 0
    mask = torch.ones(BATCH, TOKENS, dtype=torch.int64)
    if case.padding == "left":
        mask[1, :PADDED] = 0
    elif case.padding == "right":
        mask[1, TOKENS - PADDED - (1 if case.cached else 0) : TOKENS - (1 if case.cached else 0)] = 0
    x = torch.randn(BATCH, TOKENS - past, HIDDEN)
    kept = [
        torch.randn(BATCH, HEADS if case.family in ("gpt_neox", "whisper") else GROUPS, past, HEAD) for _ in range(4)
    ]
    found = [x, mask]
    if case.family == "t5":
        found.append(torch.randn(BATCH, TOKENS, HIDDEN))
    if case.family == "whisper":
        seen = torch.ones(TOKENS - past, TOKENS, dtype=torch.bool).tril(past) & mask.bool()[:, None, None, :]
        # As its model makes it: a mask of booleans for sdpa, numbers that are added to scores else.
        found[1] = seen if case.attention == "sdpa" else torch.where(seen, 0.0, torch.finfo(dtype).min)
        found.append(torch.randn(BATCH, 7, HIDDEN))
        kept = kept[:2]
    if case.cached:
        found += kept
    return tuple(item.to(dtype) if item.is_floating_point() else item for item in found)


@dataclass(frozen=True)
class Compared:
    """What an import of a case computes beside torch.

    Attributes:
        imported: The import.
        pattern: Whether both have NaN, and infinities, at the same elements.
        ours, eager: For each result the norm of what differs from float64, over its norm.
        nan: How many elements are NaN in torch's results.
    """

    imported: Imported
    pattern: bool
    ours: tuple[float, ...]
    eager: tuple[float, ...]
    nan: int

    @property
    def within(self) -> bool:
        """Whether the pattern is torch's and errors are at most twice those of torch's own operators."""
        return self.pattern and all(a <= 2 * b + 1e-6 for a, b in zip(self.ours, self.eager, strict=True))


def compared(case: Case) -> Compared:
    """Import a case, and compare what its programs compute in the module's own types with torch.

    Results are compared with those of the module in float64; what is padding is a result as any other.
    """
    module, given = module_of(case), arguments(case)
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        own = _flat(module(*given))
        exact = _flat(wide(*(x.double() if x.is_floating_point() else x for x in given)))
        found = from_torch(module, given)
        mine = typed(found, given)
    ours, eager, pattern, nan = [], [], True, 0
    for a, b, e in zip(mine, own, exact, strict=True):
        finite = torch.isfinite(b) & torch.isfinite(e)
        pattern &= bool(torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(torch.isinf(a), torch.isinf(b)))
        size = e[finite].norm().clamp_min(1e-30)
        ours.append(float((a.double() - e)[finite].norm() / size))
        eager.append(float((b.double() - e)[finite].norm() / size))
        nan += int(torch.isnan(b).sum())
    return Compared(found, pattern, tuple(ours), tuple(eager), nan)


def _flat(found: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]
