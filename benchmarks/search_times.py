"""Wall-clock of the example searches, certificates and fingerprints included, as a Markdown table.

Run: .venv/bin/python -m benchmarks.search_times [--repeat N] [--workers N]

Options:
  --repeat N   [default: 3]
  --workers N  [default: 2]
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import ROOT, command, options, row, table

EXAMPLES = ("attn", "qknorm", "rmsnorm", "lora", "gated_mlp", "ntrans", "decode", "mha", "mqa", "mla")


def run(example: str, workers: int) -> tuple[float, list[dict[str, Any]]]:
    """Search as a whole process; its seconds, and the summaries that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ("--no-cache", "--workers", workers, "--out", Path(folder) / example)
        search = command("mirage_formal.search", f"examples/{example}.py", *asked)
        begin = time.perf_counter()
        subprocess.run(search, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        return seconds, [json.loads(path.read_text()) for path in sorted(Path(folder).rglob("summary.json"))]


def main() -> None:
    """Print the table."""
    given = options(__doc__)
    print(f"{os.cpu_count()} processors, {given.workers} workers, median of {given.repeat}")
    print(table("example | s | states | candidates found | reported", [], range(5)))
    for example in EXAMPLES:
        seconds, summaries = zip(*(run(example, given.workers) for _ in range(given.repeat)), strict=True)
        states, found = (sum(int(str(one[key])) for one in summaries[-1]) for key in ("states", "found"))
        reported = sum(len(one["candidates"]) for one in summaries[-1])
        print(row(example, f"{median(seconds):.1f}", f"{states:,}", f"{found:,}", reported), flush=True)


if __name__ == "__main__":
    main()
