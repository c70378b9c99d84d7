"""What proofs cost with constants as users write them in the programs of examples/, as a Markdown table.

Run: .venv/bin/python -m benchmarks.constant_times [--repeat N]

For each form of tests/kit/proofs/constants.py (a scale, a norm's eps, a power): the median milliseconds of proving and
of replaying, over all programs, of the two forms being equal and of each being equal to itself; with 1/8, and with the
24 natural constants. Exit 1 if something is not proved or refused, or if a median with the natural constants is more
than twice that with 1/8.

Options:
  --repeat N  [default: 1]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from fractions import Fraction

from benchmarks.harness import options
from benchmarks.proof_times import Costs, costs

# The constants stand with the tests.
from tests.kit.proofs.constants import FORMS, NATURAL, Sample, samples, written

#: Proofs of the decoder layer take most of a second.
LONG = "decoder_layer"


def measured(form: str, constants: Iterable[Fraction], programs: Iterable[Sample], repeat: int) -> list[Costs | None]:
    """The costs of every program with every constant in a form."""
    found = []
    for constant in constants:
        for sample in programs:
            here, there = (written(sample.graph, form, constant, other=other) for other in (False, True))
            found += [costs(here, there, repeat), costs(here, here, repeat)]
    return found


def main() -> int:
    """Prints the table."""
    arguments = options(__doc__)
    programs = [sample for sample in samples() if not sample.name.startswith(LONG)]
    print("| form | proofs | not proved | prove ms, 1/8 | prove ms | replay ms, 1/8 | replay ms |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    good = True
    for form in FORMS:
        plain = [item for item in measured(form, [Fraction(1, 8)], programs, arguments.repeat) if item is not None]
        every = measured(form, NATURAL.values(), programs, arguments.repeat)
        found = [item for item in every if item is not None]
        before, after = (statistics.median(item.prove_ms for item in items) for items in (plain, found))
        replays = [statistics.median(item.replay_ms for item in items) for items in (plain, found)]
        times = f"{before:.1f} | {after:.1f} | {replays[0]:.1f} | {replays[1]:.1f}"
        print(f"| {form} | {len(found)} | {len(every) - len(found)} | {times} |", flush=True)
        good &= len(found) == len(every) and after <= 2 * before
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
