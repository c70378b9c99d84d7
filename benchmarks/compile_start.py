"""How much longer a first call through torch.compile takes with our operators in the graph than without.

    python -m benchmarks.compile_start [--only NAME...] [--time-limit SECONDS] [--runs N] [--store DIR]

For each module of examples/torch, with its own small sizes on the CPU: ``mf.optimize`` makes the module faster, from
searches that the store has (the first process makes them); then ``torch.compile(fullgraph=True)`` compiles the module
as it is and the optimized one, each in processes of its own with an empty cache of Inductor's. Seconds are those of the
first call: Dynamo, Inductor, the compiler of C++, and the call. Medians of N processes. What ``mf.optimize`` takes
itself is printed beside it. The exit status is 0 if every difference is at most 5 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.paths import REPOSITORY

#: Seconds that a first call may take longer.
MOST_S = 5.0
#: Modules whose point is a gradient are compiled without one, as the others.
NAMES = tuple(sorted(path.stem for path in (REPOSITORY / "examples" / "torch").glob("*.py")))


def fresh(name: str, ours: bool, limit: float) -> dict[str, float]:
    """What a process does that is measured: seconds of ``mf.optimize`` and of the first call."""
    import torch

    import mirage_formal as mf
    from tests.kit.torch.examples import taken

    torch.manual_seed(0)
    module, args = taken(name)
    module = module.requires_grad_(False).eval()
    warnings.simplefilter("ignore")
    with torch.no_grad():
        begin = time.perf_counter()
        made: Any = mf.optimize(module, args, time_limit=limit) if ours else module
        optimized = time.perf_counter() - begin
        call = torch.compile(made, fullgraph=True)
        begin = time.perf_counter()
        call(*args)
        first = time.perf_counter() - begin
    return {"optimize": optimized, "first": first}


def _measured(name: str, ours: bool, limit: float, runs: int) -> dict[str, float]:
    """Medians over processes, each with caches of its own."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "benchmarks.compile_start", "--fresh", name, "--time-limit", str(limit)]
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
            done = subprocess.run(
                [*command, *(["--ours"] if ours else [])], capture_output=True, text=True, env=environment
            )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr.strip()[-600:]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(one[key] for one in found) for key in found[0]}


def table(names: Sequence[str], limit: float, runs: int) -> bool:
    """Print a line for each module; whether every difference is small enough."""
    print(f"{'module':16} {'optimize':>9} {'first call':>11} {'without':>9} {'longer':>8}   seconds")
    good = True
    for name in names:
        _measured(name, True, limit, 1)  # searches, where the store lacks them
        ours, theirs = (_measured(name, own, limit, runs) for own in (True, False))
        longer = ours["first"] - theirs["first"]
        good = good and longer <= MOST_S
        columns = f"{ours['optimize']:9.2f} {ours['first']:11.2f} {theirs['first']:9.2f} {longer:8.2f}"
        print(f"{name:16} {columns}", flush=True)
    return good


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NAMES), metavar="NAME", help="modules [default: all]")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for the searches of a module")
    parser.add_argument("--runs", type=int, default=3, help="processes for each median")
    parser.add_argument("--store", type=Path, help="the store's directory; without it, a new one")
    parser.add_argument("--fresh", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fresh:
        print(json.dumps(fresh(given.fresh, given.ours, given.time_limit)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MIRAGE_FORMAL_STORE"] = str(given.store or scratch)
        os.environ.pop("MIRAGE_FORMAL_NO_CACHE", None)
        return 0 if table(given.only, given.time_limit, given.runs) else 1


if __name__ == "__main__":
    sys.exit(main())
