"""What guard=True costs on the CPU: looking at the conditions of a region, beside what torch takes for the region.

    .venv/bin/python -m benchmarks.torch_guard [--sizes 16 256 1024]

A guard computes in float32 what the conditions are about, as far as the region computes it on the way, and reduces each
once. Times are the least of seven rounds, with one thread.

Options:
  --sizes N...  rows and columns [default: 16 256 1024]
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import mirage_formal as mf
from benchmarks.harness import options
from mirage_formal.torch.analysis.conditions import ConditionGuard

ROUNDS = 7
#: Seconds of a round, about.
_ROUND_S = 0.1

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "log(x) exp(y)": lambda x, y: torch.log(x) * torch.exp(y),
    "exp(x) / sum(y)": lambda x, y: torch.exp(x) / y.sum(1, keepdim=True),
    "log(x @ y) + x": lambda x, y: torch.log(x @ y) + x,
    "softmax(x) y": lambda x, y: torch.softmax(x, 1) * y,
}


def least(call: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    count = max(1, int(_ROUND_S / max(timeit.timeit(call, number=3) / 3, 1e-7)))
    return 1e6 * min(timeit.repeat(call, number=count, repeat=ROUNDS)) / count


def main() -> int:
    """The command line."""
    torch.set_num_threads(1)
    print("| region | rows and columns | conditions | torch, us | looking at them, us |\n|---|--:|--:|--:|--:|")
    for size in options(__doc__).sizes:
        given = torch.rand(size, size) + 1, torch.rand(size, size) + 1
        for name, call in CALLS.items():
            imported = mf.from_torch(call, given)
            (region,) = imported.regions
            guard = ConditionGuard(region.program)
            names = [name for name in imported.arguments if name not in imported.given]
            tensors = region.read(dict(zip(names, given, strict=True)))
            assert guard.unmet(tensors) == ""
            times = least(partial(call, *given)), least(partial(guard.unmet, tensors))
            print(f"| {name} | {size} | {len(guard.conditions)} | {times[0]:.1f} | {times[1]:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
