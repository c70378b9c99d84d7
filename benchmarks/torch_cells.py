"""The layers of benchmarks/torch_layers.py: unchanged modules of examples/torch at real sizes, and their searches.

Llama's layer decodes one token of each of b sequences, as of Llama-3-8B with a cache of 1,024 positions; the others see
16 tokens of each of b sequences: Qwen3's layer as of Qwen3-8B, nGPT's of its smallest model, a linear layer of 4,096
with an adapter of rank 16. All weights are random.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.kit.torch.examples import taken

#: Options of the examples at real sizes, and at sizes that a CPU computes at once.
REAL = {
    "llama_layer": "--hidden 4096 --inner 14336 --groups 8 --head 128 --length 1024",
    "qwen3_layer": "--hidden 4096 --inner 12288 --heads 32 --groups 8 --head 128 --tokens 16",
    "lora_linear": "--inputs 4096 --outputs 4096 --rank 16 --tokens 16",
    "ngpt_layer": "--hidden 1024 --inner 4096 --heads 16 --tokens 16",
}
TINY = {
    "llama_layer": "--hidden 64 --inner 128 --groups 2 --head 16 --length 32",
    "qwen3_layer": "--hidden 64 --inner 128 --heads 8 --groups 2 --head 16 --tokens 4",
    "lora_linear": "--inputs 64 --outputs 64 --rank 16 --tokens 4",
    "ngpt_layer": "--hidden 64 --inner 128 --heads 4 --tokens 4",
}
BATCHES = (1, 8)
#: Seconds for the searches of one graph; on a GPU, for measuring candidates.
SEARCH_S, TUNE_S = 300.0, 60.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table.

    Attributes:
        example: Which module.
        batch: Sequences.
        dtype: Element type, as torch names it.
        tiny: Whether sizes are tiny.
    """

    example: str
    batch: int
    dtype: str = "float16"
    tiny: bool = False

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{self.example}-b{self.batch}"

    def made(self, device: str, seed: int = 0) -> tuple[Any, tuple[Any, ...]]:
        """The module, in evaluation and without gradients, and its arguments."""
        torch.manual_seed(seed)
        dtype = getattr(torch, self.dtype)
        options = (TINY if self.tiny else REAL)[self.example].split()
        if self.example == "llama_layer":
            options += ["--batch", str(self.batch), "--dtype", self.dtype]
        module, args = taken(self.example, options, dtype=dtype, device=device)
        if self.example != "llama_layer":
            first, *others = args
            first = first if first.dim() == 3 else first[None]
            args = (torch.randn(self.batch, *first.shape[1:], dtype=dtype, device=device), *others)
        return module.requires_grad_(False).eval(), tuple(args)


def cells(only: Sequence[str], dtype: str, *, tiny: bool) -> list[Cell]:
    """All cells, or those that are named by their examples or by themselves."""
    found = [Cell(name, batch, dtype, tiny) for name in REAL for batch in BATCHES]
    return [cell for cell in found if not only or cell.example in only or cell.name in only]


def searched(cell: Cell, limit: float) -> str:
    """Search what the backend would find in a cell's graph, without memory for it; say what became of it."""
    from mirage_formal.torch.modules import backend

    module, args = cell.made("meta")
    options = {"time_limit": limit, "measure": 0, "rest": "eager"}
    torch.compile(module, backend=backend.mirage_formal, fullgraph=True, options=options)(*args)
    report: Any = backend.REPORTS[-1]
    return "; ".join(
        f"{len(one.operators)} operators {one.unfused_us:.1f} us -> "
        + (f"{one.kernels} kernels {one.estimate_us:.1f} us" if one.estimate_us is not None else one.kept)
        for one in report.regions
    )


def size_of(module: Any, args: Sequence[Any]) -> int:
    """Bytes that a call reads: parameters, buffers, arguments."""
    tensors = [*module.parameters(), *module.buffers(), *args]
    return sum(x.numel() * x.element_size() for x in tensors)


def like(module: Any, args: Sequence[Any], seed: int) -> tuple[Any, tuple[Any, ...]]:
    """Another module of the same classes, so that compiled code is shared, with other weights; and other arguments."""
    torch.manual_seed(seed)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        for weight in twin.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.randn_like(weight) * weight.std())
        fresh = tuple(torch.randn_like(x) if x.is_floating_point() else x.clone() for x in args)
    return twin, fresh
