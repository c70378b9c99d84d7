"""What dependent launches save: kernels with and without programmatic dependent launch, measured side by side.

Run on a GPU, with directories of kernels (a RUN_DIR/kernels/NNN-id, one of tests/kit/kernels/device_kernels.py, or
anything above them); NumPy, CuPy and msgspec are enough:

    python -m benchmarks.dependent_launch DIR... [--rounds N] [--json FILE]

Each candidate that has a dependent launch is measured as it is and with all launches in order, in turns, by the
protocol of docs/kernels.md (CUDA graphs, a cold cache); the medians of the rounds count. "us a launch" is the
difference over the number of dependent launches: what a target's launch_us is more than its dependent_launch_us. Host
times are of calls that are not captured. Outputs of both ways are compared bit by bit; exit code 1 if they differ
anywhere, or if driver or GPU have no dependent launches.

Options:
  places DIR...
  --rounds N     measurements of each way [default: 7]
  --json FILE    write all figures to this file
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy

from benchmarks.harness import options
from mirage_formal.device.measure import host_overhead
from mirage_formal.device.programmatic_launch import launcher
from mirage_formal.device.runs import DeviceRuns, InputSets
from mirage_formal.device.runtime import device_name
from mirage_formal.errors import MirageError
from mirage_formal.kernels.executable import LAUNCH_FILE, Executable, KernelLaunch, in_order, load

HEAD = (
    "| kernels | launches | dependent | in order us | dependent us | saved us | us a launch | spread % "
    "| host in order us | host dependent us | bits |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
)


def found(places: Sequence[Path]) -> Iterator[Path]:
    """Directories of kernels at or below some places."""
    for place in places:
        yield from sorted({path.parent for path in place.rglob(LAUNCH_FILE)})


def dependents(executable: Executable) -> int:
    """How many launches are dependent."""
    return sum(isinstance(launch, KernelLaunch) and launch.dependent for launch in executable.launches)


def same(ways: Sequence[DeviceRuns], inputs: InputSets, repeats: int = 20) -> bool:
    """Whether both ways give the same bits, call after call on changing inputs; outputs are NaN before."""
    for seed in range(repeats):
        given = inputs(seed % 2)
        results = []
        for runs in ways:
            made = runs.outputs()
            runs.launch(given, made)
            results.append([x.get() for x in made])
        if not all((x == y).all() for x, y in zip(*results, strict=True)):
            return False
    return True


def row(place: Path, rounds: int) -> dict[str, Any]:
    """What is measured of one directory."""
    executable = load(place)
    ways = [DeviceRuns(in_order(executable)), DeviceRuns(executable)]
    inputs = InputSets(ways[0])
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for way in (0, 1) if number % 2 == 0 else (1, 0):
            # That results are finite is the concern of numerics, and with these inputs need not hold.
            times[way].append(ways[way].measure(inputs=inputs, finite=False).us)
    synchronise = cupy.cuda.Device().synchronize
    given = inputs(0)
    outputs = ways[0].outputs()
    host = [host_overhead(partial(runs.launch, given, outputs), synchronise) for runs in ways]
    slow, quick = (median(some) for some in times)
    return {
        "kernels": place.as_posix(),
        "launches": len(executable.launches),
        "dependent": dependents(executable),
        "in_order_us": slow,
        "dependent_us": quick,
        "saved_us": slow - quick,
        "us_a_launch": (slow - quick) / dependents(executable),
        "spread": max((max(some) - min(some)) / median(some) for some in times),
        "host_in_order_us": host[0],
        "host_dependent_us": host[1],
        "same": same(ways, inputs),
        "rounds": times,
    }


def main() -> None:
    """Print the table."""
    given = options(__doc__)
    if launcher(cupy.cuda.runtime, str(cupy.cuda.Device().compute_capability)) is None:
        sys.exit("expected a GPU of compute capability 9.0 and a driver for CUDA 12.3 or later, got others")
    version = cupy.cuda.runtime.driverGetVersion()
    print(f"{device_name()}, driver for CUDA {version // 1000}.{version % 1000 // 10}\n\n{HEAD}")
    rows, left, wrong = [], 0, False
    for place in found(given.places):
        try:
            if not dependents(load(place)):
                left += 1
                continue
            one = row(place, max(1, given.rounds))
        except MirageError as error:
            wrong = True
            print(f"| {place} |{' |' * 9} {str(error).splitlines()[0]} |", flush=True)
            continue
        rows.append(one)
        wrong |= not one["same"]
        shown = (one[key] for key in ("in_order_us", "dependent_us", "saved_us", "us_a_launch"))
        bits = "equal" if one["same"] else "DIFFER"
        print(
            f"| {place.parent.parent.name}/{place.name} | {one['launches']} | {one['dependent']} | "
            f"{' | '.join(f'{value:.2f}' for value in shown)} | {100 * one['spread']:.1f} | "
            f"{one['host_in_order_us']:.2f} | {one['host_dependent_us']:.2f} | {bits} |",
            flush=True,
        )
    if rows:
        print(f"\nmedian of us a launch: {median(one['us_a_launch'] for one in rows):.2f}; {len(rows)} candidates")
    print(f"{left} directories have no dependent launch")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(int(wrong or not rows))


if __name__ == "__main__":
    main()
