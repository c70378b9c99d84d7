"""Small modules of the examples, optimized once in a process, for tests on a GPU.

``MIRAGE_GPU_STORE`` is a store that has their searches (python -m benchmarks.torch_layers --prepare); without it, or
if it lacks one, they are searched. ``MIRAGE_TORCH_DEVICE=cpu`` lets these tests run where there is no GPU, as far as
they need none.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

import mirage_formal as mf
from tests.kit.torch.taken import taken

DEVICE = os.environ.get("MIRAGE_TORCH_DEVICE", "cuda")
EXAMPLES = ("attention", "llama_layer", "lora_linear", "mlp", "ngpt_layer", "norm_qkv", "qwen3_layer", "training_step")
#: Element types by the names of parameters of tests. Llama's layer has an element type of its own.
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
#: Seconds for the searches of one module, where the store has none.
LIMIT_S = 60.0
#: Kernels are the cost model's: tuning is not what these tests are about, and takes a minute.
OPTIONS: dict[str, Any] = {"measure": 0, "time_limit": LIMIT_S}
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}


@contextmanager
def stored() -> Iterator[None]:
    """The store that was prepared, which tests do not use otherwise."""
    place = os.environ.get("MIRAGE_GPU_STORE")
    if not place:
        yield
        return
    before = os.environ.pop("MIRAGE_FORMAL_NO_CACHE", None), os.environ.get("MIRAGE_FORMAL_STORE")
    os.environ["MIRAGE_FORMAL_STORE"] = place
    try:
        yield
    finally:
        for name, value in zip(("MIRAGE_FORMAL_NO_CACHE", "MIRAGE_FORMAL_STORE"), before, strict=True):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def example(name: str, dtype: str, device: str = DEVICE) -> tuple[Any, Any]:
    """An example's module in its small size, with weights that are not random from one call to the next."""
    torch.manual_seed(0)
    given = ("--dtype", dtype) if name == "llama_layer" else ()
    module, args = taken(name, given, dtype=TYPES[dtype], device=device)
    return module, tuple(args)


@cache
def optimized(name: str, dtype: str = "float16") -> tuple[Any, Any, tuple[Any, ...]]:
    """An example's module without gradients, a copy of it that is optimized, and its arguments."""
    module, args = example(name, dtype)
    module.requires_grad_(False)
    with stored():
        return module, mf.optimize(copy.deepcopy(module), args, **OPTIONS), args


def fresh(tensor: Any) -> Any:
    """Other numbers for an argument; what holds no numbers stays."""
    return torch.randn_like(tensor) if tensor.is_floating_point() else tensor.clone()


def close(found: Any, wanted: Any, dtype: str = "float16") -> None:
    """Within what the element type allows, by norms: elements near 0 have no relative error."""
    found, wanted = found.double(), wanted.double()
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    error = float((found - wanted).norm() / wanted.norm().clamp(min=1e-30))
    assert error <= TOLERANCE[dtype], f"relative error {error:.3g}"


__all__ = ["DEVICE", "EXAMPLES", "OPTIONS", "TOLERANCE", "TYPES", "close", "example", "fresh", "optimized", "stored"]
