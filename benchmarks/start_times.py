"""From the start of a search's process to its first state, its first finished unit and its end: two checkouts, paired.

Run: .venv/bin/python -m benchmarks.start_times OLD NEW [--pairs N] [--program FILE] [--workers N]

OLD and NEW are directories that contain ``mirage_formal``. Runs of one and the other take turns, the first one of each
pair changing, on the same machine and with the same Python. Printed are medians of seconds of time and of processor
time of all the run's processes, the ratio NEW / OLD of each pair as median with the smallest and largest, and the
difference. Processor time says more where other programs use the machine as well.

Options:
  old DIR
  new DIR
  --pairs N       [default: 10]
  --workers N     [default: 2]
  --program FILE  [default: examples/rmsnorm.py]
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import ROOT, in_turns, options, row, spread

STAGES = ("first state", "first unit", "end")

#: Loaded by every Python of a run.
HOOKS = ROOT / "benchmarks" / "first_state"

_PR_SET_CHILD_SUBREAPER = 36


def run(checkout: Path, program: Path, workers: int) -> dict[str, tuple[float, float]]:
    """Seconds of time and of processor time at each stage; of the unit, which is seen from outside, time alone."""
    with tempfile.TemporaryDirectory() as folder:
        first, out = Path(folder) / "first", Path(folder) / "run"
        environment = {**os.environ, "PYTHONPATH": f"{HOOKS}:{checkout}", "FIRST_STATE": str(first)}
        environment["MIRAGE_FORMAL_NO_CACHE"] = "1"  # an option would be unknown to older checkouts
        command = [sys.executable, "-m", "mirage_formal.search", str(program), "--out", str(out)]
        begin = time.monotonic()
        process = subprocess.Popen(
            [*command, "--workers", str(workers)],
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        unit = None
        cpu, status = 0.0, None
        while status is None:
            time.sleep(0.005)
            if unit is None and (out / "search.jsonl").is_file() and (out / "search.jsonl").stat().st_size:
                unit = time.monotonic() - begin
            pid, code, used = os.wait4(-1, os.WNOHANG)
            while pid:
                cpu += used.ru_utime + used.ru_stime
                status = code if pid == process.pid else status
                pid, code, used = os.wait4(-1, os.WNOHANG) if status is None else (0, 0, used)
        end = time.monotonic() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        cpu += _others()
        if process.returncode or unit is None or not first.is_file():
            raise SystemExit(f"{' '.join(command)} with PYTHONPATH={checkout}: exit code {process.returncode}")
        at, used_by_then = map(float, first.read_text().split())
        return {"first state": (at - begin, used_by_then), "first unit": (unit, float("nan")), "end": (end, cpu)}


def _others() -> float:
    """Processor seconds of the processes that the run left to us, once they have ended."""
    cpu = 0.0
    while True:
        try:
            _, _, used = os.wait4(-1, 0)
        except ChildProcessError:
            return cpu
        cpu += used.ru_utime + used.ru_stime


def _load() -> str:
    return " ".join(f"{x:.1f}" for x in os.getloadavg())


def main() -> None:
    """Print the table."""
    arguments = options(__doc__)
    # A run's server process outlives the process that started it: it is ours then, with the time that it has used.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    checkouts = (arguments.old.resolve(), arguments.new.resolve())
    measure = partial(run, program=arguments.program.resolve(), workers=arguments.workers)
    for checkout in checkouts:  # once for nothing: byte code and files in memory
        measure(checkout)
    print(f"{os.cpu_count()} processors, load {_load()}, {arguments.workers} workers, {arguments.pairs} pairs, medians")
    pairs = in_turns(
        checkouts, partial(run, program=arguments.program.resolve(), workers=arguments.workers), arguments.pairs
    )
    print("| to | of | old s | new s | new / old | old - new s |")
    print("|---|---|--:|--:|---|--:|")
    for stage in STAGES:
        for kind, name in enumerate(("time", "processor time")):
            values = [(old[stage][kind], new[stage][kind]) for old, new in pairs]
            if values[0][0] != values[0][0]:
                continue
            old, new = (statistics.median(side) for side in zip(*values, strict=True))
            gain = statistics.median(a - b for a, b in values)
            ratios = spread([b / a for a, b in values])
            print(row(stage, name, f"{old:.2f}", f"{new:.2f}", ratios, f"{gain:.2f}"))
    print(f"load at the end {_load()}")


if __name__ == "__main__":
    main()
