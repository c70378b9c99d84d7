"""Kernels of runs beside their peers on a GPU, in one table.

    python -m benchmarks.gpu_bench RUN_DIR... [--top N] [--out DIR] [--no-peers] [--markdown FILE]

RUN_DIR is named <example>-b<batch> (attn-b8) and holds ``kernels`` (python -m mirage_formal.run.built). Of its
first N candidates the fastest counts whose numerics are within tolerance at all scales. Everything is timed by the one
protocol of mirage_formal.device.measure, on torch tensors, in one process; a kernel that breaks the process costs its
row, and a new process goes on with the rest. Peer times are those of benchmarks/peers.py; the floor is the program's
bytes at the copy bandwidth measured beforehand; ratio is the best peer's time over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_table import PEERS, markdown, show, table

ROOT = Path(__file__).resolve().parent.parent
#: Seconds without a word after which a process counts as hung.
SILENCE_S = 150.0
BROKEN = 3


# --- the process that measures ---------------------------------------------------------------------------------------


def work(jobs: list[dict[str, Any]]) -> int:
    """Does jobs, and prints a line of JSON for each; stops at one that breaks the device."""
    for job in jobs:
        begin = time.perf_counter()
        try:
            result = {"bandwidth": bandwidth, "ours": ours, "peer": peer}[job["kind"]](job)
        except Exception as error:
            lines = str(error).strip().splitlines()
            result = {"error": f"{type(error).__name__}: {lines[0][:300] if lines else ''}"}
        result["seconds"] = round(time.perf_counter() - begin, 2)
        print(json.dumps({"job": job, "result": result}), flush=True)
        if "error" in result and not healthy():
            return BROKEN
    return 0


def healthy() -> bool:
    """Whether the device still answers."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:
        return False
    return True


def bandwidth(job: dict[str, Any]) -> dict[str, Any]:
    """GB/s of copies on the device, bytes read and written together."""
    import torch

    from mirage_formal.device.measure import TorchRecorder, summary

    source = torch.randn(1 << 29, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    recorder = TorchRecorder()
    best = 0.0
    for copy in (lambda: target.copy_(source), lambda: torch.neg(source, out=target)):
        replay, _ = recorder.capture([copy] * 4)
        times = [recorder.time(replay) / 4 for _ in range(45)][30:]  # clocks rise while it warms up
        best = max(best, 2 * source.nbytes / summary(times, 4, 1).us / 1e3)
    return {"gbs": best, "device": torch.cuda.get_device_name()}


def ours(job: dict[str, Any]) -> dict[str, Any]:
    """One candidate: numerics at all scales, then its time."""
    import cupy
    import torch

    from benchmarks import peers as other
    from mirage_formal.device.launch import Optimized
    from mirage_formal.device.measure import TorchRecorder, measure
    from mirage_formal.gpu import run_one
    from mirage_formal.kernels.executable import load

    directory = Path(job["directory"])
    report = run_one(directory, measure=False, numerics=True)
    found: dict[str, Any] = {
        key: report.get(key) for key in ("digest", "launches", "registers", "spill_bytes", "answer")
    }
    found["scales"] = [
        {
            "scale": scale["scale"],
            "answer": scale["answer"],
            "error": max(o["max_absolute_error"] for o in scale["outputs"]),
            "tolerance": max(o["max_tolerance"] for o in scale["outputs"]),
            "ratio": max(o["max_ratio"] for o in scale["outputs"]),
            "relative_norm": max(o["relative_norm"] for o in scale["outputs"]),
            "reason": "; ".join(o["reason"] for o in scale["outputs"]),
            "overflows": scale["overflows"],
        }
        for scale in report.get("numerics", {}).get("scales", ())
    ]
    if "error" in report:
        return {**found, "error": report["error"]}
    cupy.get_default_memory_pool().free_all_blocks()
    example, batch = job["example"], job["batch"]
    executable = load(directory)
    optimized = Optimized.of(executable)
    outputs = [
        torch.empty(executable.values[n].shape, device="cuda", dtype=torch.float16) for n in executable.graph.outputs
    ]
    size = sum(item.tensor.bytes for item in executable.graph.inputs)
    recorder = TorchRecorder()
    timed = measure(
        lambda x: optimized(*x, out=outputs),
        lambda seed: other.inputs(example, batch, seed),
        size,
        recorder,
        outputs=outputs,
    )
    given = other.inputs(example, batch, 12345)
    want = other.reference(example, given)
    got = optimized(*given).float()
    found["torch_error"] = float((got - want).norm() / want.norm())
    return {**found, **timed.fields()}


def peer(job: dict[str, Any]) -> dict[str, Any]:
    """One peer of one example."""
    import torch

    from benchmarks import peers as other
    from mirage_formal.device.measure import TorchRecorder, measure

    example, batch = job["example"], job["batch"]
    chosen = next((p for p in other.peers(example) if p.name == job["peer"]), None)
    if chosen is None:
        return {"skipped": True}
    given = other.inputs(example, batch, 12345)
    with torch.no_grad():
        got = chosen.call(*chosen.prepare(given)).float()
        want = other.reference(example, given)
        error = float((got.reshape(want.shape) - want).norm() / want.norm())
    del got, want
    size = sum(x.nbytes for x in given)
    timed = measure(
        lambda x: chosen.call(*x),
        lambda seed: chosen.prepare(other.inputs(example, batch, seed)),
        size,
        TorchRecorder(),
    )
    torch.cuda.empty_cache()
    return {**timed.fields(), "torch_error": error}


# --- the process that keeps the list ---------------------------------------------------------------------------------


def supervise(jobs: list[dict[str, Any]], deadline: float) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every job with its result, in order; a job that ends its process or hangs has a result that says so."""
    left = list(jobs)
    while left:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_bench", "--worker", json.dumps(left)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_pump, args=(process, lines), daemon=True).start()
        failed = ""
        while left and not failed:
            try:
                line = lines.get(timeout=max(1.0, min(SILENCE_S, deadline - time.monotonic())))
            except queue.Empty:
                failed = "hung" if time.monotonic() < deadline else "no time left"
                break
            if line is None:
                failed = f"the process ended ({process.wait()})"
            elif line.startswith("{"):
                done = json.loads(line)
                yield left.pop(0), done["result"]
        process.kill()
        broken = process.wait() == BROKEN
        if failed == "no time left":
            for job in left:
                yield job, {"error": failed}
            return
        if failed and left and not broken:
            yield left.pop(0), {"error": failed}


def _pump(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def plan(runs: list[Path], top: int, peers: bool) -> list[dict[str, Any]]:
    """The jobs: bandwidth, all candidates, then all peers."""
    jobs: list[dict[str, Any]] = [{"kind": "bandwidth"}]
    named = []
    for run in runs:
        example, _, number = run.name.rpartition("-b")
        named.append((run, example, int(number)))
    for run, example, batch in named:
        directories = sorted((run / "kernels").glob("*/launch.json"))[:top]
        jobs += [
            {"kind": "ours", "example": example, "batch": batch, "directory": str(path.parent)} for path in directories
        ]
    if peers:
        jobs += [
            {"kind": "peer", "example": example, "batch": batch, "peer": name}
            for _, example, batch in named
            for name in PEERS
            if name in ("eager", "compile") or example in ("attn", "qk", "qv", "decode")
        ]
    return jobs


def main() -> int:
    """The command line."""
    if len(sys.argv) == 3 and sys.argv[1] == "--worker":
        return work(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--top", type=int, default=8, help="candidates of each run [default: 8]")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="where the JSON goes")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--markdown", type=Path, help="where the table goes as Markdown")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds in all [default: 1800]")
    given = parser.parse_args()
    given.runs.sort(key=lambda run: (run.name.rpartition("-b")[0], int(run.name.rpartition("-b")[2])))
    deadline = time.monotonic() + given.limit
    results: list[dict[str, Any]] = []
    given.out.mkdir(parents=True, exist_ok=True)
    for job, result in supervise(plan(given.runs, given.top, not given.no_peers), deadline):
        results.append({"job": job, "result": result})
        name = " ".join(str(v) for k, v in job.items() if k != "directory") + " " + Path(job.get("directory", "")).name
        shown = result.get("error") or f"{result.get('us', result.get('gbs', 0)):.2f} {result.get('answer', '')}"
        print(f"{name}: {shown} [{result.get('seconds', 0)} s]", flush=True)
        (given.out / "gpu_bench.json").write_text(json.dumps(results, indent=1))
    rows = table(results, given.runs)
    (given.out / "gpu_table.json").write_text(json.dumps(rows, indent=1))
    print(show(rows))
    if given.markdown is not None:
        given.markdown.write_text(markdown(rows, results))
    return 0 if all("ours" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
