"""Mutants of Programs: the claim that a Program realizes its µGraph beside runs on random inputs, as Markdown tables.

    .venv/bin/python -m benchmarks.realizes_mutants [--count 2000] [--seed 0] [--show]

Each mutant has one change of a kernel (tests/kit/kernels/program_mutants.py). Its verdict is held to a run of the
mutant, thread by thread in float32, against the float64 reference, on two draws of inputs.

Exit 1 if the claim holds of a safe mutant that computes something else, if there is an error, or if more than 10 % are
unknown.

Options:
  --count N  mutants [default: 2000]
  --seed N   seed of all draws [default: 0]
  --show     also each mutant that is accepted, and each unknown one
"""

from __future__ import annotations

import sys
import time

from benchmarks.harness import options

# The mutants stand with the tests.
from tests.kit.realizes.mutant_outcomes import Outcome, Row, outcome, sampled, table


def line(row: Row) -> str:
    """One mutant in a line."""
    where = f"{row.case.lowering} {row.case.name}"
    return f"{row.outcome}: {where}: {row.mutant.touched}: {row.mutant.what}: {row.said}"


def main() -> int:
    """Decide all mutants, and print the tables."""
    asked, begin, rows = options(__doc__), time.perf_counter(), []
    shown = {Outcome.WRONG, Outcome.ERROR, Outcome.OVERFLOWS}
    if asked.show:
        shown |= {Outcome.KEPT, Outcome.UNSAFE, Outcome.UNKNOWN, Outcome.DEVIATES_SAME}
    for number, mutant in sampled(asked.count, asked.seed):
        row = outcome(number, mutant, asked.seed)
        rows.append(row)
        if row.outcome in shown:
            print(line(row), flush=True)
    print("\n".join(table(rows, lambda row: row.case.lowering)), end="\n\n")
    print("\n".join(table(rows, lambda row: row.mutant.touched)), end="\n\n")
    print(f"{len(rows)} mutants, seed {asked.seed}, {time.perf_counter() - begin:.0f} s")
    unknown = sum(row.outcome is Outcome.UNKNOWN for row in rows)
    wrong = sum(row.outcome in (Outcome.WRONG, Outcome.ERROR) for row in rows)
    return int(wrong > 0 or unknown * 10 > len(rows))


if __name__ == "__main__":
    sys.exit(main())
