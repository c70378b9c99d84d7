"""Problems of the kind of KernelBench's on a GPU: right, and how fast beside torch.compile in its default mode.

    python -m benchmarks.torch_problems --prepare --store DIR [--levels 1 2 3] [--search S]   without a GPU: searches
    python -m benchmarks.torch_problems --store DIR [--levels 1 2 3] [--limit S] [--jobs N] [--out DIR]

The problems are the project's own (tests/kit/kernelbench.py), at their own sizes. Each Model is compiled by
torch.compile(backend="mirage_formal") and by torch.compile. Nothing is searched but with --prepare; kernels are the
cost model's best, and what is measured to be slower than Inductor's is left to Inductor. Right is what
`mirage-formal tools kernelbench` calls so: five trials. Both are timed in turns, captured in CUDA graphs, with
inputs that rotate through the L2 cache; medians of three rounds. fast_1 is the share of problems that are right and
faster than torch.compile.

Answers are kept in DIR/torch_problems.jsonl as they come, and a call that was cut is continued by the same call. --cpu
tries it without a GPU, at sizes of at most 64. The exit status is 0 if no problem failed.

Options:
  --store DIR            the store that has the searches [required]
  --prepare              search what the store lacks; no GPU is needed
  --levels [{1,2,3}...]  [default: 1 2 3]
  --only NAME            problems whose names contain this
  --search S             seconds for the searches of a problem [default: 20]
  --limit S              seconds for everything [default: 190]
  --problem-limit S      seconds for one problem, turns waited for [default: 240]
  --jobs N               processes, of up to 20 GB of the GPU's memory each [default: 6]
  --out DIR              where results go [default: $OUT]
  --cpu                  try it on the CPU, with small sizes
"""

from __future__ import annotations

import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.gpu_jobs import WORKER, Job, Ledger, Result, children, serve
from benchmarks.harness import in_turns, options, table
from benchmarks.torch_store import child_turn, prepare, store_in, unpacked

TRIALS, ROUNDS = 5, 3
#: What a search was given counts for one that asks for at most a ninth more.
SEARCH_S = 20.0


def problems(levels: list[int]) -> Iterator[tuple[str, str]]:
    """Names and texts of problems that can be imported whole."""
    from tests.kit.kernelbench import LEVELS

    for level in levels:
        for problem in LEVELS[level]:
            if not problem.refused:
                title = re.sub(r"\W+", "_", problem.title).strip("_")
                yield f"level{level}/{title}", problem.text()


def names_of(name: str, text: str, *, small: bool) -> dict[str, Any]:
    """What a problem's file defines."""
    from mirage_formal.torch.integrations.kernelbench.sizes import halve_numbers

    names: dict[str, Any] = {"__name__": f"problem_{re.sub(r'[^0-9a-zA-Z]', '_', name)}"}
    source = halve_numbers(text, 64)[0] if small else text
    exec(compile(source, name, "exec"), names)
    return names


def backend_options(search: float, **more: Any) -> dict[str, Any]:
    """Of the backend."""
    return {"time_limit": search, "measure": 0, **more}


def searched(name: str, text: str, search: float) -> str:
    """Search what the backend would find, without memory for tensors; say what became of it."""
    import torch

    from mirage_formal.torch.modules import backend

    names = names_of(name, text, small=False)
    with torch.device("meta"):
        module, inputs = _evaluated(names, names["get_init_inputs"]()), names["get_inputs"]()
    asked = backend_options(search, rest="eager")
    torch.compile(module, backend=backend.mirage_formal, dynamic=False, options=asked)(*inputs)
    rows: Any = [row for report in backend.REPORTS for row in getattr(report, "regions", ())]
    return "; ".join(
        one.kept or f"{one.kernels} kernels {one.unfused_us:.0f} -> {one.estimate_us:.0f} us" for one in rows
    )


def answer(job: Job) -> Result:
    """One problem."""
    import torch

    from mirage_formal.torch.integrations.kernelbench.trials import compare_modules
    from mirage_formal.torch.modules import backend

    device = job["device"]
    turn = child_turn(job["lock"], device)
    torch._dynamo.reset()
    backend.REPORTS.clear()
    names = _placed(names_of(job["name"], job["text"], small=job["cpu"]), device)
    asked = backend_options(job["search"], rest="inductor")
    made: list[Any] = []

    def model_new(*given: Any) -> Any:
        made.append(names["Model"](*given).eval())
        return torch.compile(made[-1], backend=backend.mirage_formal, dynamic=False, options=asked)

    try:
        with store_in(Path(job["store"])):
            module = names["Model"](*names["get_init_inputs"]())
            training = module.training
            trials = compare_modules(
                {**names, "Model": lambda *given: _evaluated(names, given)}, {"ModelNew": model_new}, TRIALS
            )
            found: Result = {"correct": trials.answer, "max_error": trials.max_error, "training": training}
            rows: Any = [row for report in backend.REPORTS for row in getattr(report, "regions", ())]
            found["regions"] = len(rows)
            found["kept"] = [row.kept[:80] for row in rows if row.kept]
            found["ours_of"] = sum(not row.kept for row in rows)
            found["regions_us"] = [[row.measured_us, row.others_us] for row in rows if row.measured_us is not None]
            if trials.answer != "passed":
                return {**found, "error": trials.reason[:200]}
            ours = torch.compile(made[-1], backend=backend.mirage_formal, dynamic=False, options=asked)
            theirs = torch.compile(made[-1], dynamic=False)
            us = _timed({"ours": ours, "compile": theirs}, names["get_inputs"], device, turn)
            return {**found, "us": us, "speedup": us["compile"] / us["ours"]}
    finally:
        made.clear()
        if device == "cuda":
            torch.cuda.empty_cache()


def _evaluated(names: Mapping[str, Any], given: Any) -> Any:
    return names["Model"](*given).eval()


def _placed(names: dict[str, Any], device: str) -> dict[str, Any]:
    """A problem whose module and inputs are made on a device."""
    import torch

    own_model, own_inputs = names["Model"], names["get_inputs"]

    def model(*given: Any) -> Any:
        with torch.device(device):
            return own_model(*given)

    def inputs() -> Any:
        with torch.device(device):
            found = own_inputs()
        return [x.to(device) if isinstance(x, torch.Tensor) else x for x in found]

    return {**names, "Model": model, "get_inputs": inputs}


def _timed(calls: dict[str, Any], inputs: Any, device: str, turn: Any) -> dict[str, float]:
    """Medians of rounds in which both are timed in turns."""
    import torch

    from mirage_formal.device.measure import TorchRecorder, measure

    sets: dict[int, Any] = {}

    def given(seed: int) -> Any:
        if seed not in sets:
            torch.manual_seed(seed)
            sets[seed] = inputs()
        return sets[seed]

    def timed(call: Any) -> float:
        if device == "cuda":
            return measure(lambda some: call(*some), given, size, TorchRecorder(), outputs=()).us
        begin = time.perf_counter()
        call(*given(0))
        return 1e6 * (time.perf_counter() - begin)

    for call in calls.values():
        call(*given(0))
    size = sum(x.numel() * x.element_size() for x in given(0) if isinstance(x, torch.Tensor))
    with turn:
        columns = zip(*in_turns([*calls.values()], timed, ROUNDS), strict=True)
    return {name: median(runs) for name, runs in zip(calls, columns, strict=True)}


def show(results: Mapping[str, Result | None]) -> str:
    """The figures of each level, and the problems that stand out."""
    rows = []
    levels = sorted({name.partition("/")[0] for name in results})
    for level in [*levels, "all"]:
        own = {name: one for name, one in results.items() if level in (name.partition("/")[0], "all")}
        done = {name: one for name, one in own.items() if one is not None}
        right = {name: one for name, one in done.items() if one.get("correct") == "passed"}
        ratios = [one["speedup"] for one in right.values() if "speedup" in one]
        used = sum(one.get("ours_of", 0) > 0 for one in right.values())
        mean = geometric_mean(ratios) if ratios else math.nan
        fast, low = sum(ratio > 1 for ratio in ratios), sum(ratio < 0.95 for ratio in ratios)
        cells = [level, len(own), len(done), len(right), used, f"{fast / max(1, len(done)):.2f}", f"{mean:.2f}"]
        rows.append([*cells, f"{min(ratios, default=math.nan):.2f}", low])
    heads = ["level", "problems", "done", "right", "ours used", "fast_1", "geometric mean", "least", "below 0.95"]
    lines = [table(heads, rows)]
    timed = {name: one for name, one in results.items() if one is not None and "speedup" in one}
    ordered = sorted(timed, key=lambda name: timed[name]["speedup"])
    for name in dict.fromkeys([*ordered[:8], *ordered[-8:]]):
        one = timed[name]
        us = one["us"]
        text = (
            f"{us['ours']:.1f} us, torch.compile {us['compile']:.1f} us, operators {one['ours_of']} of {one['regions']}"
        )
        lines.append(f"  {one['speedup']:.3f} {name}: {text} {one['regions_us']}")
    for name, result in results.items():
        if result is not None and "error" in result:
            lines.append(f"  {name}: {result['error'][:200]}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return serve(answer)
    given = options(__doc__)
    if given.prepare:
        cases = problems(given.levels)
        prepare(given.store, ((name, partial(searched, name, text, given.search)) for name, text in cases))
        return 0
    scratch = Path(tempfile.mkdtemp(prefix="mirage_formal-problems-"))
    common = {"lock": str(scratch / "lock"), "store": str(unpacked(given.store)), "search": given.search}
    common["device"] = "cpu" if given.cpu else "cuda"
    jobs: dict[str, Job] = {
        name: {**common, "name": name, "text": text, "cpu": given.cpu}
        for name, text in problems(given.levels)
        if given.only in name
    }
    # Where the store and the lock are does not matter.
    ledger = Ledger(given.out / "torch_problems.jsonl", keys=("name", "cpu"))

    def told(job: Job, result: Result) -> None:
        if "error" in result:
            print(f"{job['name']}: {json.dumps(result)[:200]}", flush=True)

    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    pool = children("benchmarks.torch_problems", given.out, told, ledger, environment)
    pool.do(jobs.values(), processes=given.jobs, limit_s=given.problem_limit, until=time.monotonic() + given.limit)
    results = {name: ledger.get(job) for name, job in jobs.items()}
    print(show(results))
    return 0 if all(one is not None and "error" not in one for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
