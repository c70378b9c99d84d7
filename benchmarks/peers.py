"""What the examples are compared with: torch eager, torch.compile in two modes, and scaled_dot_product_attention.

Keys are transposed for scaled_dot_product_attention before anything is timed.
Programs of examples/ without a running maximum are compared with torch.softmax, which has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mirage_formal.graph.graph import Input
from mirage_formal.torch.modules.eager_execution import DTYPES

Inputs = Sequence[torch.Tensor]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Peer:
    """Something that computes an example: its name, what is done to the inputs beforehand, and what is timed."""

    name: str
    prepare: Callable[[Inputs], list[torch.Tensor]]
    call: Function


def draw(given: Sequence[Input], seed: int, scale: float = 0.1) -> list[torch.Tensor]:
    """Normal numbers in the inputs' shapes, element types and strides."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    made = []
    for item in given:
        values = torch.randn(item.tensor.shape, device="cuda", generator=generator) * scale
        place = torch.empty_strided(item.tensor.shape, item.strides, device="cuda", dtype=DTYPES[item.tensor.dtype])
        made.append(place.copy_(values))
    return made


def _norm(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    if dim != -1:
        return x * torch.rsqrt(x.float().pow(2).mean(dim, keepdim=True)).to(x.dtype)
    return F.rms_norm(x, (x.shape[-1],), eps=0.0)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k, -1) @ v


EAGER: dict[str, Function] = {
    "attn": _attention,
    "decode": _attention,
    "qk": lambda q, k, v: _attention(_norm(q), _norm(k, 1), v),
    "qv": lambda q, k, v: _attention(_norm(q), k, _norm(v)),
    "rmsnorm": lambda x, w: _norm(x) @ w,
    "lora": lambda x, w, a, b: x @ w + (x @ a) @ b,
    "gated_mlp": lambda x, w1, w2: F.silu(x @ w1) * (x @ w2),
    "ntrans": lambda h, x, alpha: _norm(x + alpha * (_norm(h) + x)),
}


def reference(example: str, given: Inputs) -> torch.Tensor:
    """The example in float32, to see that a peer computes it."""
    previous = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return EAGER[example](*(x.float() for x in given))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = previous


def _transposed(given: Inputs) -> list[torch.Tensor]:
    """[batch, 1, rows, head] for all three."""
    q, k, v = given
    return [q.unsqueeze(1), k.transpose(1, 2).contiguous().unsqueeze(1), v.unsqueeze(1)]


def _sdpa(example: str, backend: Any) -> Function:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if example in ("qk", "qv"):
            q = _norm(q)
        if example == "qk":
            k = _norm(k)
        if example == "qv":
            v = _norm(v)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)

    return call


def compiled(function: Function) -> list[Peer]:
    """A function eager, and by torch.compile in its default mode and with max-autotune.

    Everything is captured in a CUDA graph when it is timed, so max-autotune goes without graphs of its own.
    """
    torch.compiler.reset()
    tuned = torch.compile(function, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
    return [
        Peer("eager", list, function),
        Peer("compile", list, torch.compile(function, fullgraph=True, dynamic=False)),
        Peer("autotune", list, tuned),
    ]


def peers(example: str) -> list[Peer]:
    """Everything that an example is compared with."""
    found = compiled(EAGER[example])
    if example in ("attn", "decode", "qk", "qv"):
        found.append(Peer("flash", _transposed, _sdpa(example, SDPBackend.FLASH_ATTENTION)))
        found.append(Peer("cudnn", _transposed, _sdpa(example, SDPBackend.CUDNN_ATTENTION)))
    return found
