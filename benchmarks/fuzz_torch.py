"""Random modules of torch: does what is imported compute what the module computes, whatever values it is given?

    .venv/bin/python -m benchmarks.fuzz_torch [--count 20000] [--seed 0] [--jobs 2] [--emulate 0] [--time-limit 10]
                                              [--out runs/fuzz_torch]

Module i has seed SEED + i (tests/kit/torch/random_modules.py): lines from the table of operators and from
models, in float16, bfloat16 and float32. It is imported, each of its programs is evaluated in its own element types,
and compared with torch under the contract of docs/torch.md, on normal and large numbers, the largest and the least,
zeros, infinities, NaN and masks with empty rows and columns (torch/comparison/samples.py). --emulate N also searches
the programs of the first N modules, and runs the kernels of the best candidates on the CPU emulator under the same
contract; it needs g++.

Each violation is printed with the smallest module that has it, and stands in OUT/violations.md. What is drawn depends
on the seeds alone, not on the number of jobs. Exit 1 if there is a violation.

Options:
  --count N       modules [default: 20000]
  --seed N        seed of the first one [default: 0]
  --jobs N        processes at once [default: 2]
  --emulate N     search and emulate the first N [default: 0]
  --time-limit S  seconds of one search [default: 10]
  --out DIR       [default: runs/fuzz_torch]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import in_pool, parser_of, parts, quiet_torch

# The generator stands with the tests.
from tests.kit.torch.random_modules import Violation, emulated, violation

#: Modules in one task, and tasks of one process: torch keeps something of every graph.
_CHUNK = 25
_TASKS = 40


def checked(seeds: Sequence[int], place: Path | None, time_limit: float) -> list[Violation]:
    """What is wrong with some modules.

    Args:
        seeds: Their seeds.
        place: Where to search them; None if they are not searched.
        time_limit: Seconds of each search.
    """
    quiet_torch()
    found = []
    for seed in seeds:
        one = violation(seed) or (None if place is None else emulated(seed, place, time_limit))
        if one is not None:
            found.append(one)
    return found


def written(found: Violation) -> str:
    """A violation as Markdown."""
    return f"## module {found.seed}\n\n{found.said}\n\n```python\n{found.text.rstrip()}\n```\n"


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    if given.count < 1 or given.emulate < 0 or given.emulate > given.count:
        parser.error("expected --count above 0, and --emulate from 0 to it")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plain = parts(given.count - given.emulate, _CHUNK, given.seed + given.emulate)
    tasks: list[tuple[Any, ...]] = [(some, None, given.time_limit) for some in plain]
    searched = parts(given.emulate, 1, given.seed)
    tasks = [*((some, out / "searches", given.time_limit) for some in searched), *tasks]
    begin, done, bad = time.monotonic(), 0, []
    for number, ((seeds, *_), future) in enumerate(in_pool(checked, tasks, given.jobs, _TASKS), 1):
        done += len(seeds)
        for one in future.result():
            bad.append(one)
            print(written(one), flush=True)
        if number % (_TASKS * given.jobs) == 0 or number == len(tasks):
            print(f"[{done}/{given.count}] {len(bad)} violations, {time.monotonic() - begin:.0f} s", flush=True)
    bad.sort(key=lambda one: one.seed)
    (out / "violations.md").write_text("# Violations of the contract\n\n" + "\n".join(map(written, bad)))
    print(f"{given.count} modules, {given.emulate} of them searched and emulated: {len(bad)} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
