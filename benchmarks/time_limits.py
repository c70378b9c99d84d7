"""Is ``time_limit`` kept, on a machine with other work: calls of ``superoptimize`` beside busy loops, as a table.

Run: .venv/bin/python -m benchmarks.time_limits [--calls N] [--busy N] [--seed N]

Programs are drawn from examples and the corpus, and have 2 to 60 operators and more; each is searched without the store
with limits of 2, 6, 20 and 45 s in turn. A call is late if it takes more than 1 s and more than 10 % beyond its limit.

Exit 1 if more than one call in twenty is late, or one takes twice its limit.

Options:
  --calls N  calls of superoptimize [default: 60]
  --busy N   processes that do nothing but compute [default: 2]
  --seed N   order of the programs [default: 0]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import mirage_formal as mf
from benchmarks.harness import ROOT, options
from benchmarks.stages import program_of
from mirage_formal.support.errors import MirageError

_LIMITS = (2.0, 6.0, 20.0, 45.0)


def _compute() -> None:
    while True:
        pass


def seconds_of(file: Path, limit: float) -> tuple[float, str]:
    """Seconds of one call, and what it gave."""
    graph = program_of(file)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        try:
            given = (
                f"{len(mf.superoptimize(graph, time_limit=limit, out=Path(folder) / 'run', cache=False))} candidates"
            )
        except MirageError as error:
            given = type(error).__name__
        return time.monotonic() - begin, given


def main() -> int:
    """The command line."""
    given = options(__doc__)
    files = [*sorted((ROOT / "examples" / "corpus").rglob("*.py")), *sorted((ROOT / "examples").glob("*.py"))]
    files = [file for file in files if not file.stem.startswith("tour")]
    random.Random(given.seed).shuffle(files)
    others = [get_context("spawn").Process(target=_compute, daemon=True) for _ in range(given.busy)]
    late = twice = 0
    for other in others:
        other.start()
    for number in range(given.calls):
        file, limit = files[number // len(_LIMITS) % len(files)], _LIMITS[number % len(_LIMITS)]
        seconds, said = seconds_of(file, limit)
        over = seconds > max(limit + 1.0, 1.1 * limit)
        late, twice = late + over, twice + (seconds > 2 * limit)
        print(f"{file.stem:28} limit {limit:4.0f} s: {seconds:5.1f} s, {said}{', late' if over else ''}", flush=True)
    print(f"{given.calls} calls beside {given.busy} busy processes: {late} late, {twice} took twice their limit")
    for other in others:
        other.terminate()
    return int(twice > 0 or 20 * late > given.calls)


if __name__ == "__main__":
    sys.exit(main())
