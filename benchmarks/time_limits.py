"""Is ``time_limit`` kept, on a machine with other work: calls of ``superoptimize`` beside busy loops, as a table.

Run: .venv/bin/python -m benchmarks.time_limits [--calls N] [--optimize N] [--busy N] [--seed N]

Programs are drawn from examples and the corpus, and have 2 to 60 operators and more; each is searched without the store
with limits of 2, 6, 20 and 45 s in turn. A call is late if it takes more than 1 s and more than 10 % beyond its limit.

With --optimize, calls of ``optimize`` are measured instead: each in a process of its own that has imported torch and
nothing else, on a generated module of 2 to 20 operators (norms, linear layers, softmax, activations, sums with an
earlier result), with limits of 2, 6 and 20 s in turn. It needs torch; no GPU is used.

Exit 1 if more than one call in twenty is late, or one takes twice its limit.

Options:
  --calls N     calls of superoptimize [default: 60]
  --optimize N  calls of optimize, instead of those [default: 0]
  --busy N      processes that do nothing but compute [default: 2]
  --seed N      order of the programs, or seed of the first module [default: 0]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import mirage_formal as mf
from benchmarks.harness import ROOT, options
from benchmarks.stages import program_of
from mirage_formal.support.errors import MirageError

_LIMITS = (2.0, 6.0, 20.0, 45.0)


def _compute() -> None:
    while True:
        pass


def seconds_of(file: Path, limit: float) -> tuple[float, str]:
    """Seconds of one call, and what it gave."""
    graph = program_of(file)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        try:
            given = (
                f"{len(mf.superoptimize(graph, time_limit=limit, out=Path(folder) / 'run', cache=False))} candidates"
            )
        except MirageError as error:
            given = type(error).__name__
        return time.monotonic() - begin, given


def generated_module(seed: int) -> tuple[Any, Any, str]:
    """A module of 2 to 20 operators, its argument and its name."""
    import torch
    from torch import nn

    draw = random.Random(seed)
    width, rows = draw.choice((256, 512, 1024)), draw.choice((1, 16, 64))
    dtype = draw.choice((torch.float16, torch.float32))
    layers: dict[str, Any] = {
        "norm": lambda: draw.choice((nn.RMSNorm(width, eps=1e-6), nn.LayerNorm(width))),
        "linear": lambda: nn.Linear(width, width, bias=draw.random() < 0.5),
        "softmax": lambda: nn.Softmax(-1),
        "activation": lambda: draw.choice((nn.SiLU(), nn.GELU(), nn.ReLU())),
        "add": nn.Identity,
    }
    kinds = draw.choices(list(layers), (3, 4, 1, 3, 2), k=draw.randint(2, 20))

    class Generated(nn.Module):  # type: ignore[misc,unused-ignore]  # torch has no types where it is not installed
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([layers[kind]() for kind in kinds])
            self.read = [draw.randrange(number + 1) for number in range(len(kinds))]

        def forward(self, x: Any) -> Any:
            found = [x]
            for kind, layer, number in zip(kinds, self.layers, self.read, strict=True):
                found.append(found[-1] + found[number] if kind == "add" else layer(found[-1]))
            return found[-1]

    name = f"module {seed}: {len(kinds)} ops, {rows} x {width}"
    return Generated().to(dtype).eval(), torch.randn(rows, width).to(dtype), name


def optimize_seconds(seed: int, limit: float) -> tuple[str, float, str]:
    """Name of a generated module, seconds of a call of ``optimize``, and what it gave."""
    module, x, name = generated_module(seed)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        report = mf.optimize(module, (x,), time_limit=limit, out=Path(folder) / "run", cache=False).mirage_report()
        seconds = time.monotonic() - begin
    replaced = sum(not region.kept for region in report.regions)
    stopped = [region.kept for region in report.regions if region.kept.startswith("stopped")] or [report.stopped]
    phases = ", ".join(f"{phase} {spent:.1f}" for phase, spent in report.seconds)
    said = f"{replaced} of {len(report.regions)} replaced ({phases}) {stopped[0].partition(':')[0]}"
    return name, seconds, said.strip()


def _searches(given: Any) -> Iterator[tuple[str, float, float, str]]:
    """Name, limit, seconds and result of each call of ``superoptimize``."""
    files = [*sorted((ROOT / "examples" / "corpus").rglob("*.py")), *sorted((ROOT / "examples").glob("*.py"))]
    files = [file for file in files if not file.stem.startswith("tour")]
    random.Random(given.seed).shuffle(files)
    for number in range(given.calls):
        file, limit = files[number // len(_LIMITS) % len(files)], _LIMITS[number % len(_LIMITS)]
        yield file.stem, limit, *seconds_of(file, limit)


def _optimizations(given: Any) -> Iterator[tuple[str, float, float, str]]:
    """Name, limit, seconds and result of each call of ``optimize``, in fresh processes."""
    limits = _LIMITS[:3]
    for number in range(given.optimize):
        limit = limits[number % len(limits)]
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            name, seconds, said = pool.submit(optimize_seconds, given.seed + number // len(limits), limit).result()
        yield name, limit, seconds, said


def main() -> int:
    """The command line."""
    given = options(__doc__)
    others = [get_context("spawn").Process(target=_compute, daemon=True) for _ in range(given.busy)]
    calls = late = twice = 0
    for other in others:
        other.start()
    for name, limit, seconds, said in _optimizations(given) if given.optimize else _searches(given):
        over = seconds > max(limit + 1.0, 1.1 * limit)
        calls, late, twice = calls + 1, late + over, twice + (seconds > 2 * limit)
        print(f"{name:28} limit {limit:4.0f} s: {seconds:5.1f} s, {said}{', late' if over else ''}", flush=True)
    print(f"{calls} calls beside {given.busy} busy processes: {late} late, {twice} took twice their limit")
    for other in others:
        other.terminate()
    return int(twice > 0 or 20 * late > calls)


if __name__ == "__main__":
    sys.exit(main())
