"""compute-sanitizer over the kernels of runs: memcheck and racecheck of one candidate of each.

    python -m benchmarks.gpu_sanitize RUN_DIR... [--bench gpu_bench.json] [--jobs 8] [--out DIR]

The candidate is the one that benchmarks/gpu_bench.py measured, or else the first with kernels.
Only generated kernels are instrumented, not those of CuPy that make the inputs. racecheck fails inside of cuBLAS, for a
product of CuPy alone as well; under it the host computes predefined products (``gpu run --without-library``), so that
the generated kernels beside them get their inputs. Every row names the kernels that were instrumented.

Options:
  runs RUN_DIR...
  --bench FILE     results of gpu_bench.py
  --jobs N         processes at a time [default: 8]
  --limit S        seconds for each [default: 240]
  --out DIR        where the JSON goes [default: $OUT]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.gpu_jobs import runs_among
from benchmarks.harness import command, environment, options

TOOLS = ("memcheck", "racecheck")
FOUND = 77
#: Inputs are drawn in float64, with some temporaries of that size.
LARGE_BYTES = 256 << 20


def best(runs: list[Path], bench: Path | None) -> dict[Path, Path]:
    """The candidate's directory of kernels for each run that has one."""
    chosen: dict[Path, Path] = {}
    rows = json.loads(bench.read_text())["rows"] if bench is not None else []
    measured = {f"{row['example']}-b{row['b']}": Path(row["directory"]).name for row in rows if "ours" in row}
    for run in runs:
        first = sorted((run / "kernels").glob("*/launch.json"))
        if run.name in measured:
            chosen[run] = run / "kernels" / measured[run.name]
        elif first:
            chosen[run] = first[0].parent
    return chosen


def large(directory: Path) -> bool:
    """Whether drawing the inputs takes so much device memory that nothing should run beside it."""
    inputs = json.loads((directory / "launch.json").read_text())["program"]["inputs"]
    return sum(2 * prod(item["shape"]) for item in inputs) > LARGE_BYTES


def sanitize(run: Path, directory: Path, tool: str, limit: float) -> dict[str, Any]:
    """One tool over one candidate: "clean", "found" or why neither."""
    launches = json.loads((directory / "launch.json").read_text())["launches"]
    names = list(dict.fromkeys(launch["name"] for launch in launches if "name" in launch))
    products = any(launch["launch"] == "matmul" for launch in launches)
    host = products and tool == "racecheck"
    filters = [x for name in names for x in ("--kernel-name", f"kernel_name={name}")]
    watched = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), *filters]
    watched += [*command("mirage_formal.gpu", "run", directory), *(["--without-library"] if host else [])]
    begin = time.perf_counter()
    if not names:  # without a filter the tool would watch everything
        return {"run": run.name, "candidate": directory.name, "tool": tool, "outcome": "no generated kernels"}
    row: dict[str, Any] = {"run": run.name, "candidate": directory.name, "tool": tool, "kernels": names}
    row["products"] = "host" if host else "cuBLAS" if products else "none"
    try:
        done = subprocess.run(watched, capture_output=True, text=True, timeout=limit, env=environment())
    except FileNotFoundError:
        return {**row, "outcome": "compute-sanitizer is not installed"}
    except subprocess.TimeoutExpired:
        return {**row, "outcome": f"not finished in {limit:.0f} s"}
    text = done.stdout + done.stderr
    said = re.search(r"(ERROR SUMMARY: \d+ error|RACECHECK SUMMARY: \d+ hazard)[^\n]*", text)
    row |= {"seconds": round(time.perf_counter() - begin, 1), "summary": said[0] if said else ""}
    if done.returncode == FOUND or (said and not re.search(r": 0 ", said[0])):
        return {**row, "outcome": "found", "log": text[-4000:]}
    # Results that leave float16 are for numerics to judge; here it counts that the kernels ran.
    clean = done.returncode in (0, 1) and said is not None and ": FAILED" not in text and "finite" in done.stdout
    return {**row, "outcome": "clean" if clean else "failed", **({} if clean else {"log": text[-4000:]})}


def main() -> int:
    """The command line."""
    given = options(__doc__)
    runs = runs_among(given.runs)
    chosen = best(runs, given.bench)
    work = [(run, directory, tool) for tool in TOOLS for run, directory in chosen.items()]
    with ThreadPoolExecutor(given.jobs) as pool:
        small = [item for item in work if not large(item[1])]
        rows = list(pool.map(lambda item: sanitize(item[0], item[1], item[2], given.limit), small))
    rows += [sanitize(*item, given.limit) for item in work if large(item[1])]
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu_sanitize.json").write_text(json.dumps(rows, indent=1))
    for row in rows:
        what = f"{row['outcome']:8}{row.get('seconds', 0):7.1f} s  {row.get('summary', '')}"
        seen = f"kernels: {', '.join(row.get('kernels', ()))}; products: {row.get('products', 'cuBLAS')}"
        print(f"{row['run']:14}{row['candidate']:20}{row['tool']:11}{what}  {seen}")
    missing = [run.name for run in runs if run not in chosen]
    print(
        f"{sum(row['outcome'] == 'clean' for row in rows)} of {len(rows)} clean; without kernels: {missing or 'none'}"
    )
    return 0 if rows and not missing and all(row["outcome"] == "clean" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
