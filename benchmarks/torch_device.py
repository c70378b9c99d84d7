"""The tests of modules on a GPU, side by side in processes, each under a time limit; failures in a few lines each.

    python -m benchmarks.torch_device [--limit 110] [--jobs 9] [--out DIR] [--store DIR] [--cpu]
    python -m benchmarks.torch_device --prepare --store DIR        searches for these tests; no GPU is needed

tests/torch/device is divided by the examples that its tests are about, so that kernels are built once in a process.
What became of a test is written to DIR/torch_device.jsonl as it is known: a process that is ended by the limit costs
the tests that it had left, which count as not run. DIR is $OUT, or the current directory. What the store lacks is
searched; it may be a file of benchmarks/torch_store.py. --cpu runs what needs no GPU. The exit status is 0 if every
test that ran has passed, and at least one has.

Options:
  --limit S    seconds for everything [default: 110]
  --jobs N     processes at a time [default: 9]
  --out DIR    where results go [default: $OUT]
  --store DIR  a store that was prepared
  --cpu        run what needs no GPU, on the CPU
  --prepare    search what the store lacks for these tests
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, command, environment, parser_of
from benchmarks.torch_store import migrated, unpacked

TESTS = "tests/torch/device"
EXAMPLES = ("attention", "llama_layer", "lora_linear", "mlp", "ngpt_layer", "norm_qkv", "qwen3_layer", "training_step")
#: Threads of Inductor's in each process.
_THREADS = "2"


@dataclass(frozen=True, slots=True)
class Ended:
    """A process of pytest: what its tests are about, how long it took and how it ended; None if it was cut."""

    name: str
    seconds: float = 0.0
    code: int | None = None


def parts() -> dict[str, tuple[str, ...]]:
    """Divide the tests among processes, the longest first: by name pytest's arguments."""
    file = f"{TESTS}/test_examples_device.py"
    found = {name: (file, "-k", f"[{name}") for name in sorted(EXAMPLES, key=lambda n: "layer" not in n)}
    return {**found, "calls": (f"{TESTS}/test_calls_device.py", f"{TESTS}/test_two_gpus.py")}


def run(given: Namespace) -> tuple[list[Ended], Path]:
    """Run all parts, so many at a time; where their lines are."""
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    lines = (out / "torch_device.jsonl").resolve()
    lines.unlink(missing_ok=True)
    variables = environment(TOLD=str(lines), TORCHINDUCTOR_COMPILE_THREADS=_THREADS)
    if given.cpu:
        variables["MIRAGE_TORCH_DEVICE"] = "cpu"
    if given.store is not None:
        variables["MIRAGE_GPU_STORE"] = str(unpacked(given.store))
    until = time.monotonic() + given.limit

    def ended(name: str, arguments: Sequence[str]) -> Ended:
        begin = time.monotonic()
        if begin >= until:
            return Ended(name)
        options = ["-q", "-W", "default", "-p", "no:cacheprovider", "-p", "tests.kit.torch.outcome_log", "-m", "gpu"]
        asked = command("pytest", *options, *arguments)
        process = subprocess.Popen(asked, cwd=ROOT, env=variables, stderr=errors, stdout=errors, start_new_session=True)
        try:
            code = process.wait(until - begin)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Ended(name)
        return Ended(name, time.monotonic() - begin, code)

    with (out / "torch_device.err").open("wb") as errors, ThreadPoolExecutor(given.jobs) as pool:
        return list(pool.map(ended, *zip(*parts().items(), strict=True))), lines


def prepare(store: Path) -> None:
    """Search what the tests optimize and compile, without memory for tensors."""
    import torch

    store.mkdir(parents=True, exist_ok=True)
    os.environ |= {"MIRAGE_TORCH_DEVICE": "meta", "MIRAGE_GPU_STORE": str(store.resolve())}
    print("{} of {} entries of other code taken over".format(*migrated(store)), flush=True)
    from mirage_formal.torch.modules import backend
    from tests.kit.torch import examples as kit

    for name in kit.EXAMPLES:
        for dtype in ("float16", "bfloat16") if name in ("llama_layer", "mlp") else ("float16",):
            begin = time.monotonic()
            torch._dynamo.reset()
            module, optimized, args = kit.optimized(name, dtype)
            used = sum(not one.kept for one in optimized.mirage_report().regions)
            if dtype == "float16":
                options = {**kit.OPTIONS, "rest": "eager"}
                compiled = torch.compile(module, backend=backend.mirage_formal, fullgraph=True, options=options)
                with torch.no_grad(), kit.stored():
                    compiled(*args)
            print(f"{name} {dtype}: {used} operators [{time.monotonic() - begin:.1f} s]", flush=True)


def shown(every: Sequence[Ended], rows: list[dict[str, Any]]) -> str:
    """Say what became of each process, and the failures."""
    lines = []
    for part in every:
        took = "cut by the limit or not begun" if part.code is None else f"{part.seconds:.0f} s"
        lines.append(f"{part.name:14} {took}{'' if part.code in (0, 1, None) else f', exit {part.code}'}")
    for outcome in ("passed", "failed", "skipped"):
        lines.append(f"{outcome}: {sum(row['outcome'] == outcome for row in rows)}")
    slow = sorted(rows, key=lambda row: -row["seconds"])[:5]
    lines.append("slowest: " + ", ".join(f"{row['test'].split('::')[-1]} {row['seconds']} s" for row in slow))
    for row in rows:
        if row["outcome"] == "failed":
            lines.append(f"--- {row['test'].split('::')[-1]} [{row['seconds']} s]")
            lines += [f"    {text[:200]}" for text in row["said"]]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    if given.prepare:
        if given.store is None:
            parser.error("--prepare needs --store")
        prepare(given.store)
        return 0
    every, lines = run(given)
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []
    print(shown(every, rows))
    good = {row["outcome"] for row in rows} <= {"passed", "skipped"} and any(r["outcome"] == "passed" for r in rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
