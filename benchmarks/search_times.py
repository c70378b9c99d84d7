"""Wall-clock of the example searches, certificates and fingerprints included, as a Markdown table.

Run: .venv/bin/python -m benchmarks.search_times [--repeat N] [--workers N]

Options:
  --repeat N   [default: 3]
  --workers N  [default: 2]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, options

EXAMPLES = ("attn", "qknorm", "rmsnorm", "lora", "gated_mlp", "ntrans", "decode", "mha", "mqa", "mla")


def run(example: str, workers: int, out: Path) -> tuple[float, list[dict[str, Any]]]:
    """Seconds of one search as a whole process, and the summaries that it wrote."""
    command = [sys.executable, "-m", "mirage_formal.search", f"examples/{example}.py", "--no-cache"]
    begin = time.perf_counter()
    subprocess.run(
        [*command, "--workers", str(workers), "--out", str(out)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    seconds = time.perf_counter() - begin
    return seconds, [json.loads(path.read_text()) for path in sorted(out.rglob("summary.json"))]


def main() -> None:
    """Print the table."""
    arguments = options(__doc__)
    print(f"{os.cpu_count()} processors, {arguments.workers} workers, median of {arguments.repeat}")
    print("| example | s | states | candidates found | reported |")
    print("|---|---|---|---|---|")
    for example in EXAMPLES:
        seconds = []
        summaries: list[dict[str, Any]] = []
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory() as folder:
                taken, summaries = run(example, arguments.workers, Path(folder) / example)
            seconds.append(taken)
        states = sum(int(str(s["states"])) for s in summaries)
        found = sum(int(str(s["found"])) for s in summaries)
        reported = sum(len(s["candidates"]) for s in summaries)
        print(f"| {example} | {statistics.median(seconds):.1f} | {states:,} | {found:,} | {reported} |", flush=True)


if __name__ == "__main__":
    main()
