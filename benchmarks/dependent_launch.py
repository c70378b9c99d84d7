"""What dependent launches save: kernels with and without programmatic dependent launch, measured side by side.

Run on a GPU, with directories of kernels (a RUN_DIR/kernels/NNN-id, one of tests/kit/kernels/device_kernels.py, or
anything above them); NumPy, CuPy and msgspec are enough:

    python -m benchmarks.dependent_launch DIR... [--rounds N]

Each candidate that has a dependent launch is measured as it is and with all launches in order, in turns, by the
protocol of docs/kernels.md (CUDA graphs, a cold cache); the medians of the rounds count. "us a launch" is the
difference over the number of dependent launches: what a target's launch_us is more than its dependent_launch_us. Host
times are of calls that are not captured. Outputs of both ways are compared bit by bit; exit code 1 if they differ
anywhere, or if driver or GPU have no dependent launches.

Options:
  places DIR...
  --rounds N     measurements of each way [default: 7]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness import in_turns, options, table
from benchmarks.harness import row as table_row
from mirage_formal.codegen.executable import (
    LAUNCH_FILE,
    Executable,
    KernelLaunch,
    load_executable,
    without_dependent_launches,
)
from mirage_formal.device.cupy_runner import DeviceRuns, InputSets
from mirage_formal.device.driver.programmatic_launch import launcher
from mirage_formal.device.measure import host_overhead
from mirage_formal.device.runtime import device_name
from mirage_formal.support.errors import MirageError

HEAD = (
    "kernels | launches | dependent | in order us | dependent us | saved us | us a launch | spread % | "
    "host in order us | host dependent us | bits"
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


def row(place: Path, rounds: int) -> tuple[float, bool, str]:
    """Measure a directory: microseconds saved of a dependent launch, whether bits are equal, a line of the table."""
    import cupy

    executable = load_executable(place)
    ways = [DeviceRuns(without_dependent_launches(executable)), DeviceRuns(executable)]
    inputs = InputSets(ways[0])
    # That results are finite is the concern of numerics, and with these inputs need not hold.
    rounds_us = in_turns(ways, lambda way: way.measure(inputs=inputs, finite=False).us, rounds)
    times = [*zip(*rounds_us, strict=True)]
    synchronise = cupy.cuda.Device().synchronize
    given = inputs(0)
    outputs = ways[0].outputs()
    host = [host_overhead(partial(runs.launch, given, outputs), synchronise) for runs in ways]
    slow, quick = (median(some) for some in times)
    dependent, equal = dependents(executable), same(ways, inputs)
    apart = max((max(some) - min(some)) / median(some) for some in times)
    saved = (slow - quick) / dependent
    shown = [f"{value:.2f}" for value in (slow, quick, slow - quick, saved)]
    said = [f"{place.parent.parent.name}/{place.name}", len(executable.launches), dependent, *shown]
    said += [f"{100 * apart:.1f}", *(f"{value:.2f}" for value in host), "equal" if equal else "DIFFER"]
    return saved, equal, table_row(*said)


def main() -> None:
    """Print the table."""
    given = options(__doc__)
    import cupy

    if launcher(cupy.cuda.runtime, str(cupy.cuda.Device().compute_capability)) is None:
        sys.exit("expected a GPU of compute capability 9.0 and a driver for CUDA 12.3 or later, got others")
    version = cupy.cuda.runtime.driverGetVersion()
    print(f"{device_name()}, driver for CUDA {version // 1000}.{version % 1000 // 10}\n")
    print(table(HEAD, [], (0, -1)))
    saved, left, wrong = list[float](), 0, False
    for place in found(given.places):
        try:
            if not dependents(load_executable(place)):
                left += 1
                continue
            us, equal, said = row(place, max(1, given.rounds))
        except MirageError as error:
            wrong = True
            print(f"| {place} |{' |' * 9} {str(error).splitlines()[0]} |", flush=True)
            continue
        saved.append(us)
        wrong |= not equal
        print(said, flush=True)
    if saved:
        print(f"\nmedian of us a launch: {median(saved):.2f}; {len(saved)} candidates")
    print(f"{left} directories have no dependent launch")
    sys.exit(int(wrong or not saved))


if __name__ == "__main__":
    main()
