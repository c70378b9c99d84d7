"""Layers of models through torch.compile(backend="mirage_formal") beside torch.compile(mode="max-autotune"), on a GPU.

    python -m benchmarks.torch_layers --prepare --store DIR [--only NAME...]    where there is no GPU: searches
    python -m benchmarks.torch_layers --store DIR [--only NAME...] [--limit S] [--jobs N] [--cache DIR] [--out DIR]

The layers are those of benchmarks/torch_cells.py. Nothing is searched on the GPU, and what the store has not is left to
Inductor: candidates are tuned there, operators are timed beside Inductor's kernels, and what is slower is left to
Inductor as well. With --cache a later call finds what was timed, and tuning goes on from there. Both sides are compiled
with "max-autotune-no-cudagraphs" and captured in CUDA graphs of ours; weights and inputs rotate through three times the
L2 cache. Cells are compiled side by side and take turns on the GPU. "us" is the median of three rounds, in which ours
and the peers are timed in turns. Errors are norms of differences from float64 over norms, the largest of inputs of
three scales; ours may be twice that of eager and 1e-3. "32 layers" is a token through so many layers with weights of
their own in one graph, each layer compiled by itself, as models are that share the code of their layers.

What is known is written to DIR/torch_layers.jsonl as it comes. --cpu tries all of it with tiny sizes and without a GPU.
The exit status is 0 if every cell is within tolerance and has a time.

Options:
  --store DIR                 the store that has the searches [required]
  --prepare                   search what the store lacks; no GPU is needed
  --only [NAME...]            examples, or cells as llama_layer-b1 [default: all]
  --dtype {float16,bfloat16}  [default: float16]
  --search S                  with --prepare, seconds for each graph [default: 300]
  --tune S                    seconds to measure candidates of a cell [default: 60]
  --measure N                 candidates that are measured; 0 takes the estimates [default: 8]
  --layers N                  layers of the stack; 0 leaves it out [default: 32]
  --limit S                   seconds for everything [default: 280]
  --jobs N                    cells at a time [default: 8]
  --cache DIR                 where kernels and their times are kept; left out, for this call alone
  --out DIR                   where results go [default: $OUT]
  --cpu                       try everything on the CPU with tiny sizes
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from types import SimpleNamespace
from typing import Any

from benchmarks.gpu_cases import rounds
from benchmarks.gpu_jobs import WORKER, Job, Ledger, Result, children, serve, short
from benchmarks.harness import append, options, table
from benchmarks.torch_store import child_turn, prepare, store_in, unpacked

MODE = "max-autotune-no-cudagraphs"
SCALES = (0.1, 1.0, 8.0)
ROUNDS = 3
LAYERS = 32
#: Our time over max-autotune's from which on a cell is missed, and its time is split by kernel.
WANTED = 0.85
_SEED = 12345


#: Writes down something that is known of a cell: what it is, and its value.
Note = Callable[[str, Any], None]


def noting(path: Path, cell: str) -> Note:
    """Write what is known of a cell to a file of JSON lines as it comes."""
    begin = time.perf_counter()

    def note(what: str, value: Any) -> None:
        at = round(time.perf_counter() - begin, 1)
        append(path, json.dumps({"cell": cell, "what": what, "value": value, "at_s": at}))

    return note


def answer(job: Job) -> Result:
    """One cell, in a process that has the GPU for as long as it holds the lock."""
    import torch

    from benchmarks.torch_cells import Cell
    from mirage_formal.torch.modules import backend

    if job["cores"]:  # each pool of workers has as many as there are processors for it
        os.sched_setaffinity(0, job["cores"])
    device = job["device"]
    turn = child_turn(job["lock"], device)
    cell = Cell(*(job[field.name] for field in fields(Cell)))
    note = noting(Path(job["notes"]), cell.name)
    module, args = cell.made(device)
    note("made", None)
    options = {"time_limit": job["tune_s"], "measure": job["measure"], "mode": None if job["tiny"] else MODE}
    calls: dict[str, Any] = {"eager": lambda module: module}
    calls["ours"] = lambda module: torch.compile(
        module, backend=backend.mirage_formal, fullgraph=True, dynamic=False, options=options
    )
    calls["autotune"] = lambda module: torch.compile(module, fullgraph=True, dynamic=False, mode=options["mode"])
    errors: dict[str, float] = {}
    with store_in(Path(job["store"])):
        for name in list(calls):
            try:
                begin = time.perf_counter()
                errors[name] = _error(calls[name], module, args)
                note("compiled", {name: round(time.perf_counter() - begin, 1)})
            except Exception as error:
                note("failed", {name: short(error)})
                del calls[name]
            if name == "ours" and backend.REPORTS:
                note("report", str(backend.REPORTS[-1]))
    note("errors", errors)
    with turn:
        found = _rounds(calls, module, args, note)
    ratio = found.get("ours", math.nan) / found.get("autotune", math.nan)
    if not ratio <= WANTED and not job["tiny"]:
        with turn:
            _split(calls, module, args, note)
    if job["layers"]:
        with store_in(Path(job["store"])), turn:
            _stacked(calls, cell, job["layers"], device, note)
    return {"ratio": ratio}


def _error(make: Any, module: Any, args: Any) -> float:
    """The largest error at three scales of the first argument, against float64; the state that is written is reset."""
    import copy

    import torch

    call, worst = make(module), 0.0
    state = {name: x.clone() for name, x in module.named_buffers()}
    wide = copy.deepcopy(module).double()
    torch.manual_seed(_SEED)
    try:
        for scale in SCALES:
            given = (torch.randn_like(args[0]) * scale, *args[1:])
            found = call(*given)
            want = wide(*(x.double() if x.is_floating_point() else x for x in given))
            error = float((found.double() - want).norm() / want.norm().clamp(min=1e-30))
            worst = error if not error <= worst else worst
    finally:
        for name, x in module.named_buffers():
            x.copy_(state[name])
    return worst


def _rounds(calls: dict[str, Any], module: Any, args: Any, note: Note) -> dict[str, float]:
    """Time all in rounds, in turns: medians, on several modules so that weights are not in the cache."""
    timed = _timed(_round_cells(calls, module, args), calls, note)
    note("us", timed)
    return {name: cell["us"] for name, cell in timed.items()}


def time_rounds(calls: dict[str, Any], module: Any, args: Any) -> dict[str, float]:
    """Time calls in rounds, in turns: medians of microseconds, on several modules so that weights are not in the cache.

    Args:
        calls: Functions by name, each of which makes a call of a module.
        module: The module.
        args: Its arguments.

    Raises:
        RuntimeError: A call cannot be timed.
    """
    cells = _round_cells(calls, module, args)
    if failed := {name: cell["error"] for name, cell in cells.items() if "error" in cell}:
        raise RuntimeError(str(failed))
    return {name: cell["us"] for name, cell in cells.items()}


def _round_cells(calls: dict[str, Any], module: Any, args: Any) -> dict[str, dict[str, Any]]:
    from benchmarks.torch_cells import like, size_of

    kept, size = [(module, args)], size_of(module, args)
    compiled: dict[tuple[str, int], Any] = {}

    def given(seed: int, name: str) -> Any:
        while len(kept) <= seed:
            kept.append(like(module, args, len(kept)))
        own, inputs = kept[seed]
        if (name, seed) not in compiled:
            compiled[name, seed] = calls[name](own)  # the code is compiled already: modules of one class share it
        return [compiled[name, seed], inputs]

    return rounds(
        {name: partial(_measured, partial(given, name=name), size, args[0].is_cuda) for name in calls}, ROUNDS
    )


def _timed(cells: dict[str, dict[str, Any]], calls: dict[str, Any], note: Note) -> dict[str, dict[str, Any]]:
    """Choose the cells that were timed; what failed is written down, and not called again."""
    for name in [name for name, cell in cells.items() if "error" in cell]:
        note("failed", {name: cells.pop(name)["error"]})
        del calls[name]
    return {name: {"us": cell["us"], "runs": cell["runs"]} for name, cell in cells.items()}


def _measured(given: Any, size: int, on_gpu: bool) -> Any:
    """Time a call, by the protocol of all benchmarks; on the CPU by the clock."""
    if on_gpu:
        from mirage_formal.device.measure import TorchRecorder, measure

        return measure(lambda pair: pair[0](*pair[1]), given, size, TorchRecorder())
    pairs = [given(seed) for seed in range(2)]
    for call, inputs in pairs:
        call(*inputs)
    return _by_clock(lambda: [call(*inputs) for call, inputs in pairs * 3], 6)


def _by_clock(call: Callable[[], Any], count: int) -> Any:
    """Time so many calls that are made together; microseconds of one."""
    begin = time.perf_counter()
    call()
    return SimpleNamespace(us=(time.perf_counter() - begin) / count * 1e6)


def _split(calls: dict[str, Any], module: Any, args: Any, note: Note) -> None:
    """Microseconds of each kernel of a call, ours and theirs."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    for name in ("ours", "autotune"):
        if name not in calls:
            continue
        call = calls[name](module)
        try:
            call(*args)
            torch.cuda.synchronize()
            flush = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                for _ in range(10):
                    flush.zero_()
                    call(*args)
                torch.cuda.synchronize()
        except Exception as error:
            note("failed", {f"kernels of {name}": short(error)})
            continue
        rows = []
        for event in seen.key_averages():
            us = getattr(event, "self_device_time_total", 0.0)
            if us and str(event.device_type).endswith("CUDA") and "emset" not in event.key and "fill" not in event.key:
                rows.append([event.key[:90], round(us / 10, 2), round(event.count / 10, 1)])
        note("kernels", {name: sorted(rows, key=lambda row: -row[1])[:14]})


def _stacked(calls: dict[str, Any], cell: Any, count: int, device: str, note: Note) -> None:
    """A token through many layers in one graph."""
    import torch

    from benchmarks.torch_cells import like
    from mirage_formal.device.measure import TorchRecorder

    try:
        base, args = cell.made(device)
        layers = [base] + [like(base, args, seed)[0] for seed in range(1, count)]
        stacks: dict[str, Any] = {}
        for name in calls:
            own = [calls[name](layer) for layer in layers]

            def token(own: Any = own) -> Any:
                x = args[0]
                for layer in own:
                    x = layer(x, *args[1:])
                return x

            token()
            stacks[name] = token if device == "cpu" else TorchRecorder().capture([token])[0]
        cells = {name: partial(_replayed, replay, device) for name, replay in stacks.items()}
        timed = _timed(rounds(cells, ROUNDS), calls, note)
        note("layers", {"count": count, "us": {name: cell["us"] for name, cell in timed.items()}})
    except Exception as error:
        note("failed", {f"{count} layers": short(error)})
    finally:
        if device != "cpu":
            torch.cuda.empty_cache()


def _replayed(replay: Any, device: str) -> Any:
    """Time one replay; on the CPU by the clock."""
    from mirage_formal.device.measure import TorchRecorder

    if device == "cpu":
        return _by_clock(replay, 1)
    return SimpleNamespace(us=median(TorchRecorder().time(replay) for _ in range(12)))


def _cores(number: int, jobs: int) -> list[int]:
    """Processors of one of so many jobs: its own, and as many of its neighbours' twice over; all, if there are few."""
    every = sorted(os.sched_getaffinity(0))
    own = len(every) // jobs
    if own < 2:
        return []
    start = number % jobs * own
    return sorted({every[(start + i) % len(every)] for i in range(min(3 * own, len(every)))})


def show(notes: list[dict[str, Any]], names: list[str]) -> tuple[str, bool]:
    """The table, and whether every cell is right and timed."""
    known: dict[str, dict[str, Any]] = {name: {"failed": {}, "kernels": {}, "compiled": {}} for name in names}
    for line in notes:
        row = known[line["cell"]]
        if line["what"] in ("failed", "kernels", "compiled"):
            row[line["what"]].update(line["value"])
        else:
            row[line["what"]] = line["value"]
        row["at"] = f"{line['what']} after {line['at_s']:.0f} s"
    good, rows, ratios = True, [], []
    for name, row in known.items():
        us = {key: cell["us"] for key, cell in row.get("us", {}).items()}
        errors = row.get("errors", {})
        ours, theirs = us.get("ours"), us.get("autotune")
        ratio = ours / theirs if ours and theirs else None
        within = errors.get("ours", math.inf) <= 2 * errors.get("eager", 0.0) + 1e-3
        good = good and ratio is not None and within
        if ratio is not None:
            ratios.append(ratio)
        cells = [f"{x:.2f}" if x is not None else "-" for x in (ours, theirs, ratio, us.get("eager"))]
        said = " / ".join(f"{errors[key]:.2g}" if key in errors else "-" for key in ("ours", "autotune", "eager"))
        rows.append([name, *cells, said if within else f"{said} OUTSIDE"])
    heads = ["cell", "ours, us", "max-autotune, us", "ratio", "eager, us", "error ours / autotune / eager"]
    lines = [table(heads, rows, (0, -1))]
    if ratios:
        lines.append(f"geometric mean of the ratio: {geometric_mean(ratios):.3f}")
    for name, row in known.items():
        if "layers" in row:
            found = row["layers"]["us"]
            text = ", ".join(f"{key} {value:.0f} us" for key, value in found.items())
            less = f": {1 - found['ours'] / found['autotune']:.1%} less" if {"ours", "autotune"} <= set(found) else ""
            lines.append(f"{name}, {row['layers']['count']} layers, a token: {text}{less}")
        if row["failed"] or "us" not in row:
            lines.append(f"{name}: {row['failed']} last: {row.get('at', 'not begun')}, compiled in {row['compiled']} s")
        for side, kernels in row["kernels"].items():
            lines.append(f"{name}, kernels of {side} (us a call, times a call):")
            lines += [f"  {us:8.2f} {count:4.1f}  {kernel}" for kernel, us, count in kernels]
        if "report" in row:
            texts = row["report"].splitlines()
            lines += [f"{name}, report:", *(f"  {text}" for text in texts if "evidence" not in text)]
    return "\n".join(lines), good


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return serve(answer)
    given = options(__doc__)
    from benchmarks.torch_cells import cells, searched

    every = cells(given.only, given.dtype, tiny=given.cpu)
    if given.prepare:
        prepare(given.store, ((cell.name, partial(searched, cell, given.search)) for cell in every))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    notes = (given.out / "torch_layers.jsonl").resolve()
    notes.unlink(missing_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="mirage_formal-layers-"))
    common = {"notes": str(notes), "store": str(unpacked(given.store)), "lock": str(scratch / "lock")}
    common |= {"tune_s": given.tune, "measure": given.measure, "device": "cpu" if given.cpu else "cuda"}
    jobs: list[Job] = [
        {
            **common,
            **asdict(cell),
            "layers": given.layers if cell.example == "llama_layer" and cell.batch == 1 else 0,
            "cores": _cores(number, min(given.jobs, len(every))),
        }
        for number, cell in enumerate(sorted(every, key=lambda cell: (cell.example == "lora_linear", cell.batch)))
    ]
    threads = str(max(1, (os.cpu_count() or 1) // max(1, given.jobs)))
    cache = (given.cache or scratch / "cache").resolve()
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": threads, "MIRAGE_FORMAL_CACHE": str(cache)}
    ledger = Ledger(scratch / "ledger.jsonl")

    def told(job: Job, result: Result) -> None:
        print(f"{job['example']}-b{job['batch']}: {result}", flush=True)

    pool = children("benchmarks.torch_layers", given.out, told, ledger, environment)
    pool.do(jobs, processes=given.jobs, limit_s=given.limit, until=time.monotonic() + given.limit)
    lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.is_file() else []
    text, good = show(lines, [cell.name for cell in every])
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
