"""Modules that the project does not name through mf.optimize, beside both modes of torch.compile, on a GPU.

    python -m benchmarks.torch_optimize [--only NAME] [--dtypes TYPE...] [--limit S] [--jobs N] [--out DIR]

The modules are those of benchmarks/programs/torch_modules.py. Each is optimized with a time limit and an empty store,
in the mode "max-autotune-no-cudagraphs"; the limit is for the import, the searches, the kernels and their measurement,
and what is written as seconds is the whole call. What it returns, torch.compile in its default mode, torch.compile in
that mode, and the module itself are captured in CUDA graphs and timed in turns; weights and inputs rotate through three
times the L2 cache; "us" are medians of three rounds. The ratio is the time of the faster mode of torch.compile over
ours. Errors are norms of differences from float64 over norms; ours may be twice that of the module itself and 1e-3.

Modules are optimized side by side, each with its part of the processors, and take turns on the GPU. Answers are kept in
DIR/torch_optimize.jsonl, and a call that was cut is continued by the same call. --cpu tries it with small sizes and
without a GPU. The exit status is 0 if every module is right, and none is slower than 0.98 of the faster mode.

Options:
  --only NAME            modules whose names contain this
  --rows [N...]          [default: 1 16]
  --dtypes [NAME...]     [default: float16 bfloat16]
  --optimize S           time limit of optimize [default: 30]
  --limit S              seconds for everything [default: 500]
  --jobs N               processes [default: 4]
  --out DIR              where results go [default: $OUT]
  --cpu                  try it on the CPU, with small sizes
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.gpu_jobs import WORKER, Job, Ledger, Result, Turn, children, everything_takes, serve
from benchmarks.harness import options, table
from benchmarks.torch_store import store_in

MODE = "max-autotune-no-cudagraphs"
SLOWEST = 0.98


@cache
def _turn(lock: str, device: str) -> Turn:
    """Make this child hold a file's lock whenever it times something."""
    turn = Turn(Path(lock))
    if device != "cpu":
        everything_takes(turn)
    return turn


def answer(job: Job) -> Result:
    """Optimize one module, and time it beside torch.compile."""
    import torch

    import mirage_formal as mf
    from benchmarks.programs.torch_modules import benchmark_modules
    from benchmarks.torch_layers import time_rounds

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    device, dtype = job["device"], getattr(torch, job["dtype"])
    turn = _turn(job["lock"], device)
    chosen = next(one for one in benchmark_modules(small=job["cpu"]) if one.name == job["name"])
    hidden = 64 if job["cpu"] else chosen.hidden or 0
    with torch.device(device):
        module = chosen.make(hidden).to(dtype).eval()
        inputs = tuple(torch.randn(shape).to(dtype) for shape in chosen.inputs(job["rows"], hidden))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as place, store_in(Path(place)):
        ours = mf.optimize(module, inputs, time_limit=job["optimize"], workers=job["workers"], mode=MODE)
        seconds = time.monotonic() - begin
    calls = {
        "ours": lambda own: ours if own is module else _optimized_copy(ours, own),
        "default": lambda own: torch.compile(own, fullgraph=True, dynamic=False),
        "autotune": lambda own: torch.compile(own, fullgraph=True, dynamic=False, mode=MODE),
        "eager": lambda own: own,
    }
    want = module.double()(*(x.double() for x in inputs))
    module.to(dtype)
    errors = {}
    for name, call in calls.items():
        found: Any = call(module)(*inputs)  # type: ignore[no-untyped-call]
        errors[name] = float((found.double() - want).norm() / want.norm())
    report = ours.mirage_report()
    with turn:
        us = time_rounds(calls, module, inputs)
    return {
        "optimize_s": seconds,
        "us": us,
        "errors": errors,
        "regions": [row.kept or f"{row.kernels} kernels, {row.verdict}" for row in report.regions],
        "measured": [report.measured_us, report.others_us, report.eager_us],
        "rest": report.rest,
        "phases": dict(report.seconds),
        "report": str(report),
    }


def _optimized_copy(ours: Any, own: Any) -> Any:
    """Return the optimized module with the parameters of another module of the same class."""
    import copy

    made = copy.copy(ours)
    vars(made).update({name: vars(own)[name] for name in ("_parameters", "_buffers", "_modules")})
    return made


def show(jobs: dict[str, Job], ledger: Ledger) -> tuple[str, bool]:
    """Return the table, and whether every module is right and fast."""
    rows, ratios, good, texts = [], [], True, []
    for name, job in jobs.items():
        found = ledger.get(job)
        if found is None or "error" in found:
            good = False
            texts.append(f"{name}: {'not done' if found is None else found['error']}")
            continue
        us, errors = found["us"], found["errors"]
        ratio = min(us["default"], us["autotune"]) / us["ours"]
        right = errors["ours"] <= 2 * errors["eager"] + 1e-3
        ratios.append(ratio)
        good = good and right and ratio >= SLOWEST
        what = "; ".join(found["regions"])[:60] + (" + torch.compile" if "is compiled" in found["rest"] else "")
        times = [f"{us[key]:.1f}" for key in ("ours", "default", "autotune", "eager")]
        measured = "yes" if None not in found["measured"] else "no"
        error = f"{errors['ours']:.1e}{'' if right else ' WRONG'}"
        phases = " + ".join(f"{spent:.1f}" for spent in found["phases"].values())
        rows.append([name, *times, f"{ratio:.2f}", f"{found['optimize_s']:.1f} ({phases})", measured, error, what])
        if ratio < SLOWEST:
            texts += [f"{name}:", *(f"  {line}" for line in found["report"].splitlines())]
    heads = ["module", "ours, us", "default", "max-autotune", "eager", "ratio", "s", "compared", "error", "regions"]
    mean = geometric_mean(ratios) if ratios else math.nan
    slow = sum(ratio < SLOWEST for ratio in ratios)
    texts.append(f"geometric mean of {len(ratios)} ratios {mean:.2f}, {slow} below {SLOWEST}")
    return "\n".join([table(heads, rows, (0, -1)), *texts]), good


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return serve(answer)
    given = options(__doc__)
    from benchmarks.programs.torch_modules import benchmark_modules

    scratch = Path(tempfile.mkdtemp(prefix="mirage_formal-optimize-"))
    workers = max(1, len(os.sched_getaffinity(0)) // given.jobs)
    common = {
        "lock": str(scratch / "lock"),
        "device": "cpu" if given.cpu else "cuda",
        "cpu": given.cpu,
        "optimize": given.optimize,
        "workers": workers,
    }
    jobs: dict[str, Job] = {}
    for one in benchmark_modules(small=given.cpu):
        for rows in given.rows:
            for dtype in given.dtypes:
                if (given.only or "") in one.name:
                    jobs[f"{one.name}, {rows} rows, {dtype}"] = {
                        **common,
                        "name": one.name,
                        "rows": rows,
                        "dtype": dtype,
                    }
    ledger = Ledger(given.out / "torch_optimize.jsonl", keys=("name", "rows", "dtype", "cpu"))

    def told(job: Job, result: Result) -> None:
        us = {key: round(value, 1) for key, value in result.get("us", {}).items()}
        print(f"{job['name']}, {job['rows']}, {job['dtype']}: {result.get('error', us)}", flush=True)

    environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(workers)}
    pool = children("benchmarks.torch_optimize", given.out, told, ledger, environment)
    pool.do(jobs.values(), processes=given.jobs, limit_s=200, until=time.monotonic() + given.limit)
    text, good = show(jobs, ledger)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
