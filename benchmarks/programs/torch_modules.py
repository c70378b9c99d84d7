"""Modules of PyTorch that neither the examples nor the tests have, with their inputs, for benchmarks/torch_optimize.py.

Eight are written here. Four are layers of transformers, drawn by a seed from those that take one tensor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

nn: Any = torch.nn
_SEED = 20261129
_DRAWN = 4
#: Layers of transformers that take a tensor of hidden states: module, class of the configuration, class of the layer.
_LAYERS = (
    ("gemma2", "Gemma2Config", "Gemma2MLP"),
    ("phi3", "Phi3Config", "Phi3MLP"),
    ("granite", "GraniteConfig", "GraniteMLP"),
    ("olmo2", "Olmo2Config", "Olmo2MLP"),
    ("nemotron", "NemotronConfig", "NemotronMLP"),
    ("starcoder2", "Starcoder2Config", "Starcoder2MLP"),
    ("gpt_neox", "GPTNeoXConfig", "GPTNeoXMLP"),
    ("t5", "T5Config", "T5LayerFF"),
    ("modernbert", "ModernBertConfig", "ModernBertMLP"),
    ("bert", "BertConfig", "BertIntermediate"),
    ("cohere", "CohereConfig", "CohereMLP"),
    ("stablelm", "StableLmConfig", "StableLmMLP"),
)


class _Modulated(nn.Module):  # type: ignore[misc]  # a base without types
    """A layer norm whose scale and shift are linear in a condition, as in diffusion transformers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.shift, self.scale = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Any, condition: Any) -> Any:
        """Compute the module."""
        c = F.silu(condition)
        return self.norm(x) * (1 + self.scale(c)) + self.shift(c)


class _Excitation(nn.Module):  # type: ignore[misc]  # a base without types
    """Channels weighted by two small layers of themselves."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden, hidden // 16), nn.Linear(hidden // 16, hidden)

    def forward(self, x: Any) -> Any:
        """Compute the module."""
        return x * torch.sigmoid(self.up(torch.relu(self.down(x))))


class _GatedState(nn.Module):  # type: ignore[misc]  # a base without types
    """The end of a state-space block: a gate, a root-mean-square norm, and a product."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.out = nn.RMSNorm(2 * hidden, eps=1e-5), nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, y: Any, z: Any, x: Any) -> Any:
        """Compute the module."""
        return x + self.out(self.norm(y * F.silu(z)))


class _Cosine(nn.Module):  # type: ignore[misc]  # a base without types
    """Log-probabilities of classes by the cosine of features and prototypes."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(1024, hidden))

    def forward(self, x: Any) -> Any:
        """Compute the module."""
        scores = F.normalize(x, dim=-1, eps=1e-3) @ F.normalize(self.prototypes, dim=-1, eps=1e-3).T
        return F.log_softmax(16.0 * scores, -1)


class _Bias(nn.Module):  # type: ignore[misc]  # a base without types
    """One query of each head against a cache, with a bias for each distance."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.bias = nn.Parameter(torch.randn(hidden // 64, 1, 16 * 64))

    def forward(self, x: Any, k: Any, v: Any) -> Any:
        """Compute the module."""
        q = self.query(x).view(x.shape[0], -1, 1, 64)
        scores = q @ k.transpose(-1, -2) / 8.0 + self.bias
        return (torch.softmax(scores, -1) @ v).flatten(1)


class _Bottleneck(nn.Module):  # type: ignore[misc]  # a base without types
    """A residual bottleneck behind a layer norm, as adapters have it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm, self.down, self.up = nn.LayerNorm(hidden), nn.Linear(hidden, 64), nn.Linear(64, hidden)

    def forward(self, x: Any) -> Any:
        """Compute the module."""
        return x + 0.5 * self.up(F.gelu(self.down(self.norm(x))))


class _Highway(nn.Module):  # type: ignore[misc]  # a base without types
    """Two products of one input, one of them a gate between the other and the input."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Any) -> Any:
        """Compute the module."""
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.tanh(self.value(x)) + (1 - gate) * x


class _Squared(nn.Module):  # type: ignore[misc]  # a base without types
    """A feed-forward layer with squared relu behind a norm, and its residual."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.first, self.second = (
            nn.Linear(hidden, 2 * hidden, bias=False),
            nn.Linear(2 * hidden, hidden, bias=False),
        )

    def forward(self, x: Any) -> Any:
        """Compute the module."""
        return x + self.second(torch.square(torch.relu(self.first(self.norm(x)))))


@dataclass(frozen=True, slots=True)
class BenchmarkModule:
    """A module with its inputs.

    Attributes:
        name: Name in tables.
        make: Function of the hidden size that returns the module.
        hidden: Hidden size.
        inputs: Function of rows and hidden size that returns the shapes of its inputs.
    """

    name: str
    make: Callable[[int], Any]
    hidden: int
    inputs: Callable[[int, int], tuple[tuple[int, ...], ...]]


def _rows(rows: int, hidden: int) -> tuple[tuple[int, ...], ...]:
    return ((rows, hidden),)


def _layer(entry: tuple[str, str, str], *, small: bool) -> BenchmarkModule:
    name, configuration, layer = entry
    package = f"transformers.models.{name}"
    made = getattr(import_module(f"{package}.configuration_{name}"), configuration)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "d_model": 64, "d_ff": 128} if small else {}
    config = made(**{key: value for key, value in sizes.items() if hasattr(made(), key)})
    cls = getattr(import_module(f"{package}.modeling_{name}"), layer)
    return BenchmarkModule(layer, lambda _: cls(config), config.hidden_size, lambda rows, hidden: ((rows, 1, hidden),))


def benchmark_modules(*, small: bool = False) -> list[BenchmarkModule]:
    """Return the twelve modules; with ``small``, of sizes that a CPU computes at once."""
    own = [
        BenchmarkModule("modulated norm", _Modulated, 1152, lambda n, hidden: ((n, hidden),) * 2),
        BenchmarkModule("excitation", _Excitation, 2048, _rows),
        BenchmarkModule("gated state", _GatedState, 2048, lambda n, hidden: ((n, 2 * hidden),) * 2 + ((n, hidden),)),
        BenchmarkModule("cosine classes", _Cosine, 1024, _rows),
        BenchmarkModule(
            "biased attention", _Bias, 1024, lambda n, hidden: ((n, hidden),) + ((n, hidden // 64, 1024, 64),) * 2
        ),
        BenchmarkModule("bottleneck", _Bottleneck, 4096, _rows),
        BenchmarkModule("highway", _Highway, 2048, _rows),
        BenchmarkModule("squared relu", _Squared, 2048, _rows),
    ]
    drawn = random.Random(_SEED).sample(_LAYERS, _DRAWN)
    return [*own, *(_layer(entry, small=small) for entry in drawn)]
