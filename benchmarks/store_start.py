"""How long a process takes, beyond torch's import, to an optimized decoder layer whose searches the store has.

    python -m benchmarks.store_start [--time-limit SECONDS] [--runs N] [--store DIR]

The layer is Llama's: RMSNorm, attention of grouped queries with rotary positions over cached keys and values, a gated
MLP; float16, one token. The first process searches, with the given limit, if the store has not got its answers. Then
each of N processes imports torch, and from there on seconds of time and of processor time are counted until
``mf.optimize`` has returned: medians, with the smallest and largest. Solvers cannot be imported there. Processor time
says more where other programs use the machine as well.

Options:
  --time-limit S  seconds for the search [default: 240.0]
  --runs N        processes that are measured [default: 5]
  --store DIR     the store's directory; without it, a new one
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.abc import MetaPathFinder
from itertools import pairwise
from typing import Any

from benchmarks.harness import in_process, options, spread

STAGES = ("import", "export", "store", "rest", "all")
SOLVERS = ("z3", "cvc5", "galois")


class Forbidden(MetaPathFinder):
    """Solvers are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse solvers."""
        if name.split(".")[0] in SOLVERS:
            raise ImportError(f"{name} is not installed")


def layer() -> tuple[Any, tuple[Any, ...]]:
    """A decoder layer, and what it is called on."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    heads, groups, head, inner, past = 8, 2, 32, 768, 63
    hidden = heads * head

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.RMSNorm(hidden, eps=1e-6), nn.RMSNorm(hidden, eps=1e-6)
            self.q, self.o = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
            self.k, self.v = (nn.Linear(hidden, groups * head, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, hidden, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any, keys: Any, values: Any) -> Any:
            y = self.norm(x)
            q, k, v = (f(y).view(1, 1, -1, head).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = (t * cos + torch.cat((-t[..., head // 2 :], t[..., : head // 2]), -1) * sin for t in (q, k))
            k, v = torch.cat((keys, k), 2), torch.cat((values, v), 2)
            a = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            x = x + self.o(a.transpose(1, 2).reshape(1, 1, hidden))
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    torch.manual_seed(0)
    cache = [torch.randn(1, groups, past, head, dtype=torch.float16) for _ in range(2)]
    positions = [torch.randn(head, dtype=torch.float16) for _ in range(2)]
    return Layer().eval().half(), (torch.randn(1, 1, hidden, dtype=torch.float16), *positions, *cache)


def fresh(limit: float) -> dict[str, Any]:
    """What a process does whose start is measured."""
    sys.meta_path.insert(0, Forbidden())
    import time

    import torch  # noqa: F401

    made = layer()
    wall, processor = time.perf_counter(), time.process_time()
    marks = {"": (0.0, 0.0)}

    def mark(name: str) -> None:
        marks[name] = (time.perf_counter() - wall, time.process_time() - processor)

    import mirage_formal as mf
    from mirage_formal.torch.modules import optimize

    mark("import")
    stages: Any = optimize
    trace, choose = stages.trace_module, stages.choose_operators

    def traced(*given: Any, **named: Any) -> Any:
        found = trace(*given, **named)
        mark("export")
        return found

    def chosen(*given: Any, **named: Any) -> Any:
        found = choose(*given, **named)
        mark("store")
        return found

    stages.trace_module, stages.choose_operators = traced, chosen
    model = mf.optimize(*made, time_limit=limit)
    mark("rest")
    order = list(marks)
    found = {b: [marks[b][i] - marks[a][i] for i in (0, 1)] for a, b in pairwise(order)}
    found["all"] = list(marks["rest"])
    solvers = [name for name in SOLVERS if name in sys.modules]
    regions = [(one.kernels, one.kept) for one in model.mirage_report().regions]
    return {"stages": found, "solvers": solvers, "regions": regions}


def main() -> None:
    """Warm the store, and print the figures."""
    given = options(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MIRAGE_FORMAL_STORE"] = str(given.store or scratch)
        os.environ.pop("MIRAGE_FORMAL_NO_CACHE", None)
        import mirage_formal as mf

        print(mf.optimize(*layer(), time_limit=given.time_limit).mirage_report())
        found = [in_process("benchmarks.store_start:fresh", given.time_limit) for _ in range(given.runs)]
    print(f"solvers loaded: {sorted({name for one in found for name in one['solvers']}) or 'none'}")
    print(f"{'stage':8} {'seconds':>24} {'processor':>24}")
    for stage in STAGES:
        columns = [spread([one["stages"][stage][i] for one in found]) for i in (0, 1)]
        print(f"{stage:8} {columns[0]:>24} {columns[1]:>24}")


if __name__ == "__main__":
    main()
