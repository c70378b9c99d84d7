"""Eager execution of a program by PyTorch: one line for each operator, which torch.compile captures as one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # of the functions made here

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.torch.modules.pytorch_source import torch_source

DTYPES = {
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT32: torch.float32,
    DType.BOOL: torch.bool,
}


def torch_program(program: KernelGraph) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function that computes the program's outputs with torch operators, from the inputs that callers pass."""
    names: dict[str, Any] = {"torch": torch, "F": F}
    exec(torch_source(program), names)
    found: Callable[..., tuple[torch.Tensor, ...]] = names["program"]
    return found
