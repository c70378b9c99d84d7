"""What joined launches save: two kernels in one launch and in two, measured side by side.

Run on a GPU, with directories of runs; NumPy, CuPy, NVRTC and the solvers are needed:

    python -m benchmarks.joined_launches RUN_DIR... [--candidates N] [--rounds N] [--replays N]

Of each candidate, every form is built with two launches and, where its kernels can be joined, with one. Schedules are
the likeliest ones; the joined kernel has the number of threads of the first. Both are compared with float64, and
measured in turns by the protocol of docs/kernels.md (CUDA graphs, a cold cache); the medians of the rounds count. Then
the joined one is captured for two streams, each with a workspace of its own, and replayed: "replays" says whether all
outputs were the bits of the first one and all counters 0 behind each. Exit code 1 if anything was wrong.

Options:
  places DIR...
  --candidates N  candidates of a run, the best by estimate first [default: 4]
  --rounds N      measurements of each way [default: 5]
  --replays N     replays on two streams [default: 1000]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import in_turns, options, table
from benchmarks.harness import row as table_row
from mirage_formal.codegen.executable import Executable, KernelLaunch
from mirage_formal.codegen.generate import NO_OPTIONS, NO_SCHEDULES, NONE_EARLY
from mirage_formal.codegen.joined_launches.joined_kernels import joinable_kernels
from mirage_formal.codegen.numerics.result_comparison import Inputs, check
from mirage_formal.codegen.target import load_target
from mirage_formal.device.cupy_runner import DeviceRuns, InputSets
from mirage_formal.device.runtime import arch_of, current_device, device_name
from mirage_formal.kernel_build.build import build_form, candidates_of
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.kernel_build.candidate_forms import forms
from mirage_formal.support.errors import MirageError

HEAD = (
    "candidate | form | blocks | groups of | rounds | registers | two launches us | one us | saved us | spread % | "
    "float64 | replays"
)
#: Replays between two looks at outputs and counters.
BATCH = 10


def built(root: Path, count: int) -> Iterator[tuple[str, str, BuiltKernels, BuiltKernels | str]]:
    """Candidate, form, kernels in launches of their own, and joined, or why not."""
    program, name, candidates = candidates_of(root)
    target, archs = load_target(name), (arch_of(current_device()),)
    for candidate, read in candidates[:count]:
        for one in forms(read(), target, whole=True):
            try:
                apart = build_form(one, program, target, archs, NO_OPTIONS)
            except MirageError:
                continue
            for operator in joinable_kernels(apart.executable):
                options = NO_SCHEDULES, NONE_EARLY, frozenset({operator})
                try:
                    yield candidate, one.name, apart, build_form(one, program, target, archs, options)
                except MirageError as error:
                    yield candidate, one.name, apart, str(error).splitlines()[0]


def counters(runs: DeviceRuns) -> list[int]:
    """The counters of all joined launches."""
    import numpy as np

    found: list[int] = []
    for number, address in runs.loaded._counters.items():
        launch = runs.executable.launches[number]
        assert isinstance(launch, KernelLaunch)
        host = np.full(launch.counters, 7, np.uint32)
        runs.cupy.cuda.runtime.memcpy(host.ctypes.data, address.value, host.nbytes, 2)
        found += host.tolist()
    return found


def replayed(executable: Executable, count: int) -> bool:
    """Whether replays on two streams give the bits of the first call, and leave all counters 0."""
    import cupy

    ways = [DeviceRuns(executable) for _ in range(2)]
    given = InputSets(ways[0])(0)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in ways]
    outputs = [runs.outputs() for runs in ways]
    graphs: list[Any] = []
    cupy.cuda.Device().synchronize()  # inputs and outputs were made on another stream
    for runs, stream, made in zip(ways, streams, outputs, strict=True):
        with stream:
            runs.launch(given, made)
            stream.synchronize()
            stream.begin_capture()
            runs.launch(given, made)
            graphs.append(stream.end_capture())
    expected = [x.copy() for x in outputs[0]]
    cupy.cuda.Device().synchronize()
    for _ in range(max(1, count // BATCH)):
        for made in outputs:
            for value in made:
                value.fill(cupy.iinfo(value.dtype).max)
        cupy.cuda.Device().synchronize()
        for _ in range(BATCH):
            for graph, stream in zip(graphs, streams, strict=True):
                graph.launch(stream)
        cupy.cuda.Device().synchronize()
        equal = all(bool((x == y).all()) for made in outputs for x, y in zip(made, expected, strict=True))
        if not equal or any(any(counters(runs)) for runs in ways):
            return False
    return True


def row(apart: BuiltKernels, joined: BuiltKernels, rounds: int, replays: int) -> tuple[bool, list[Any]]:
    """Whether everything was right, and the cells of the table behind candidate and form."""
    import cupy

    ways = [DeviceRuns(one.executable) for one in (apart, joined)]
    inputs = InputSets(ways[0])
    times = [*zip(*in_turns(ways, lambda way: way.measure(inputs=inputs).us, rounds), strict=True)]
    answers = [
        check(
            one.executable.program,
            one.executable.graph,
            one.executable.digest,
            runs.run,
            device=device_name(),
            inputs=drawn,
        )
        for one, runs in zip((apart, joined), ways, strict=True)
        for drawn in (Inputs(1, (0.1, 1.0), cupy),)
    ]
    again = replayed(joined.executable, replays)
    (launch,) = (x for x in joined.executable.launches if isinstance(x, KernelLaunch) and x.counters)
    groups = joined.joins[launch.name].groups
    used = [code.registers for plan in joined.plans for code in plan.compiled.values()]
    slow, quick = (median(some) for some in times)
    apart_by = max((max(some) - min(some)) / median(some) for some in times)
    said = [answer.answer for answer in answers]
    cells = ["x".join(map(str, launch.grid)), groups.blocks, groups.rounds, max(used, default=0)]
    cells += [f"{slow:.2f}", f"{quick:.2f}", f"{slow - quick:.2f}", f"{100 * apart_by:.1f}", "/".join(said)]
    cells.append("equal" if again else "WRONG")
    return again and "outside" not in said, cells


def main() -> None:
    """Print the table."""
    given = options(__doc__)
    print(f"{device_name()}\n")
    print(table(HEAD, [], (0, 1, -2, -1)))
    right = True
    for root in given.places:
        for candidate, form, apart, joined in built(root, given.candidates):
            if isinstance(joined, str):
                print(table_row(candidate, form, *[""] * 9, joined), flush=True)
                continue
            try:
                good, cells = row(apart, joined, max(1, given.rounds), given.replays)
            except MirageError as error:
                good, cells = False, [*[""] * 9, str(error).splitlines()[0]]
            right &= good
            print(table_row(candidate, form, *cells), flush=True)
    sys.exit(int(not right))


if __name__ == "__main__":
    main()
