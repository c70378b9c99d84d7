"""What proofs cost with constants as users write them in the programs of examples/, as a Markdown table.

Run: .venv/bin/python -m benchmarks.constant_times [--repeat N]

For each form of tests/prove/equality/constant_forms.py (a scale, a norm's eps, a power): the median milliseconds of
proving and of replaying, over all programs, of the two forms being equal and of each being equal to itself; with 1/8,
and with the 24 natural constants. Exit 1 if something is not proved or refused, or if a median with the natural
constants is more than twice that with 1/8.

Options:
  --repeat N  [default: 1]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from fractions import Fraction

from benchmarks.harness import options, row, table
from benchmarks.proof_times import Costs, costs

# The constants stand with the tests.
from tests.prove.equality.constant_forms import FORMS, NATURAL, Sample, samples, written

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
    print(table("form | proofs | not proved | prove ms, 1/8 | prove ms | replay ms, 1/8 | replay ms", []))
    good = True
    for form in FORMS:
        kinds = ([Fraction(1, 8)], NATURAL.values())
        plain, every = (measured(form, constants, programs, arguments.repeat) for constants in kinds)
        both = [[item for item in some if item is not None] for some in (plain, every)]
        before, after = (statistics.median(item.prove_ms for item in items) for items in both)
        replays = [statistics.median(item.replay_ms for item in items) for items in both]
        missing = len(every) - len(both[1])
        print(row(form, len(both[1]), missing, *(f"{ms:.1f}" for ms in (before, after, *replays))), flush=True)
        good &= not missing and after <= 2 * before
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
