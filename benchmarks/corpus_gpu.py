"""The corpus's best candidates beside torch.compile on a GPU.

    .venv/bin/python -m benchmarks.corpus_gpu build RUNS --out DIR    # where the solvers are: kernels for sm_90a
    python3 -m benchmarks.corpus_gpu run DIR [--autotune] [--limit S]  # where the GPU is: torch, CuPy, NumPy, msgspec

Numerics come first, --jobs programs at a time, and with them the peers are compiled, so that torch's cache on disk has
them when each program is measured alone. --from and --to name the first and the last program.

RUNS is what benchmarks.corpus has written (runs/corpus/runs). Numerics are compared at scales 0.1, 1 and 8. The peer is
PyTorch on the same operators, eager and compiled, captured in a CUDA graph and timed by the same protocol. The ratio is
the better of torch.compile's times over ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ARCH = "sm_90a"
#: Seconds after which one program's process is ended.
_SILENCE_S = 240.0


def build(runs: Path, out: Path) -> int:
    """Build the best candidate of every run; print which are refused."""
    from benchmarks.stages import best_of
    from mirage_formal.errors import MirageError
    from mirage_formal.kernels.executable import LAUNCH_FILE, save
    from mirage_formal.kernels.target import load_target
    from mirage_formal.options import DEFAULT_TARGET
    from mirage_formal.run.built.build import build as build_kernels

    refused = 0
    for place in sorted(path for path in runs.iterdir() if path.is_dir()):
        if (out / place.name / LAUNCH_FILE).is_file():
            continue
        try:
            program, graph = best_of(place)
            made = build_kernels(graph, program, load_target(DEFAULT_TARGET), (ARCH,))
        except (MirageError, OSError, ValueError) as error:
            refused += 1
            print(f"{place.name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        save(made.executable, out / place.name)
        print(f"{place.name}: built; {made.stable.note or 'stable'}", flush=True)
    return 1 if refused else 0


def times(directory: Path, *, autotune: bool) -> dict[str, Any]:
    """Times of one program."""
    import torch

    from benchmarks.torch_program import draw, torch_program
    from mirage_formal.device.launch import Optimized
    from mirage_formal.device.measure import TorchRecorder, measure
    from mirage_formal.device.runtime import device_name
    from mirage_formal.kernels.executable import load

    executable = load(directory)
    program = executable.program
    found: dict[str, Any] = {"program": directory.name, "launches": len(executable.launches), "device": device_name()}
    torch.cuda.empty_cache()
    torch.compiler.reset()
    optimized = Optimized.of(executable)
    size = sum(item.tensor.bytes for item in program.inputs)
    recorder = TorchRecorder()
    with torch.no_grad():
        eager = torch_program(program)
        given = draw(program.inputs, 7)
        theirs = eager(*given)
        outputs = [torch.empty_like(value).contiguous() for value in theirs]
        optimized(*given, out=outputs)
        apart = [
            float((mine.double() - value.double()).norm() / value.double().norm().clamp(min=1e-30))
            for mine, value in zip(outputs, theirs, strict=True)
        ]
        found["difference"] = max(apart)  # the peer is the same program
        found["ours_us"] = measure(
            lambda x: optimized(*x, out=outputs),
            lambda seed: draw(program.inputs, seed),
            size,
            recorder,
            outputs=outputs,
        ).us
        peers = {"eager": eager, "compile": torch.compile(eager, fullgraph=True)}
        if autotune:
            peers["max-autotune"] = torch.compile(eager, mode="max-autotune-no-cudagraphs", fullgraph=True)
        for name, call in peers.items():
            try:
                call(*draw(program.inputs, 7))
                timed = measure(lambda x, f=call: f(*x), lambda seed: draw(program.inputs, seed), size, recorder)  # type: ignore[misc]
                found[f"{name}_us"] = timed.us
            except Exception as error:
                found[f"{name}_error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    compiled = [found[f"{name}_us"] for name in ("compile", "max-autotune") if f"{name}_us" in found]
    if compiled:
        found["ratio"] = min(compiled) / found["ours_us"]
    return found


def ready(directory: Path) -> dict[str, Any]:
    """Numerics of one program; and its peer compiled, so that torch's cache on disk has it."""
    import cupy
    import torch

    from benchmarks.torch_program import draw, torch_program
    from mirage_formal.claims.numerics.numerics import Inputs, check
    from mirage_formal.device.runs import DeviceRuns
    from mirage_formal.device.runtime import device_name
    from mirage_formal.kernels.executable import load

    executable = load(directory)
    program, runs = executable.program, DeviceRuns(executable)
    record = check(
        program, executable.graph, executable.digest, runs.run, device=device_name(), inputs=Inputs(0, xp=cupy)
    )
    cupy.get_default_memory_pool().free_all_blocks()
    with torch.no_grad():
        torch.compile(torch_program(program), fullgraph=True)(*draw(program.inputs, 7))
    return {"numerics": {str(one.scale): one.answer for one in record.scales}}


def _child(stage: str, *given: str) -> dict[str, Any]:
    """How a process for a stage is started."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return {"args": [sys.executable, "-m", "benchmarks.corpus_gpu", stage, *given], "text": True, "env": environment}


def _started(stage: str, place: Path) -> dict[str, Any]:
    """What a process for one stage of one program prints last, or why there is nothing."""
    try:
        done = subprocess.run(**_child(stage, str(place)), capture_output=True, timeout=_SILENCE_S)
        if done.returncode:
            return {"error": f"{stage}: {done.stderr.strip().splitlines()[-1][:300]}"}
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"error": f"{stage}: {type(error).__name__}"}
    return found


def _timed(places: Sequence[Path], *, autotune: bool) -> Iterator[dict[str, Any]]:
    """What a process that measures one program after another prints of each; the last is the one at which it ended."""
    options = ["--autotune"] if autotune else []
    with subprocess.Popen(**_child("times", *map(str, places), *options), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            told = 0
            for line in child.stdout:
                if line.startswith("{"):
                    told += 1
                    yield json.loads(line)
            if told < len(places):
                yield {"error": f"times: exit code {child.wait()}"}
        finally:
            child.kill()


def run(places: Sequence[Path], out: Path, *, autotune: bool, limit: float, processes: int) -> int:
    """Numerics side by side, then times one after another; the table so far is written after each."""
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    with ThreadPoolExecutor(processes) as pool:
        known = dict(zip(places, pool.map(lambda place: _started("ready", place), places), strict=True))
    print(f"numerics of {len(places)} programs: {time.monotonic() - begin:.0f} s", flush=True)
    left = list(places)
    while left and time.monotonic() - begin < limit:
        for timed in _timed(left, autotune=autotune):
            place = left.pop(0)
            rows.append({"program": place.name, "numerics": {}, **known[place], **timed})
            print(_line(rows[-1]), flush=True)
            (out / "corpus_gpu.json").write_text(json.dumps(rows, indent=1))
            if time.monotonic() - begin > limit:
                break
    text = _table(rows)
    (out / "corpus_gpu.md").write_text(text)
    print(text)
    return 0 if all("ratio" in row and row["numerics"] for row in rows) else 1


def _line(row: dict[str, Any]) -> str:
    if "ours_us" not in row:
        return f"{row['program']}: {row['error']}"
    compiled, eager, ratio = (row.get(name, math.nan) for name in ("compile_us", "eager_us", "ratio"))
    return (
        f"{row['program']}: {row['ours_us']:.2f} us, compile {compiled:.2f}, eager {eager:.2f}, ratio {ratio:.2f}, "
        f"difference {row['difference']:.1e}, {row['numerics']}"
    )


def _table(rows: list[dict[str, Any]]) -> str:
    good = [row for row in rows if "ratio" in row]
    lines = [
        "| program | launches | ours us | compile us | eager us | ratio | difference | numerics |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if "ratio" not in row:
            lines.append(f"| {row['program']} | | | | | | | {row.get('error', row.get('compile_error', ''))} |")
            continue
        answers = ", ".join(row["numerics"].values()) or row.get("error", "")
        times = " | ".join(f"{row.get(name, math.nan):.2f}" for name in ("ours_us", "compile_us", "eager_us", "ratio"))
        lines.append(f"| {row['program']} | {row['launches']} | {times} | {row['difference']:.0e} | {answers} |")
    if good:
        mean = math.exp(sum(math.log(row["ratio"]) for row in good) / len(good))
        least = min(row["ratio"] for row in good)
        lines += [
            "",
            f"{len(good)} of {len(rows)} programs; geometric mean of the ratios {mean:.2f}, least {least:.2f}",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["build", "run", "ready", "times"])
    parser.add_argument("directories", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="where results go")
    parser.add_argument("--autotune", action="store_true", help="also torch.compile's mode max-autotune")
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds after which no program is begun")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="programs whose numerics are computed at once")
    parser.add_argument("--from", dest="first", default="", metavar="NAME", help="the first program")
    parser.add_argument("--to", dest="last", default="~", metavar="NAME", help="the last program")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    first = given.directories[0]
    if given.stage == "build":
        return build(first, given.out)
    if given.stage in ("ready", "times"):
        for place in given.directories:
            found = ready(place) if given.stage == "ready" else times(place, autotune=given.autotune)
            print(json.dumps(found), flush=True)
        return 0
    built = sorted(path for path in first.iterdir() if (path / "launch.json").is_file())
    places = [path for path in built if given.first <= path.name <= given.last]
    return run(places, given.out, autotune=given.autotune, limit=given.limit, processes=given.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
