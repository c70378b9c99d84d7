"""Guided search against exhaustive search, each example in small in the whole tiny space, as a Markdown table.

Run: .venv/bin/python -m benchmarks.differential [NAME ...]

Fails if guided finds a candidate that exhaustive lacks, or lacks one without a named reason. It takes long: exhaustive
search is the definition of the space, and enumerates all of it.

Options:
  names [NAME...]  of the examples in small; all if none is given
"""

from __future__ import annotations

import time

from benchmarks.harness import options
from tests.search.engine_comparison import WHOLE, compare, tiny


def main() -> None:
    """Print the table, a row as soon as it is known."""
    names = options(__doc__).names or list(WHOLE)
    print("| example | guided | exhaustive | by reason | minutes |\n|---|---|---|---|---|", flush=True)
    for name in names:
        begin = time.perf_counter()
        found = compare(WHOLE[name](), tiny())
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(found.reasons.items())) or "-"
        minutes = (time.perf_counter() - begin) / 60
        print(f"| {name} | {len(found.guided)} | {len(found.exhaustive)} | {reasons} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
