"""What proofs cost: seconds of proving and of replaying, and bytes, for the candidates of runs, as a Markdown table.

Run: .venv/bin/python -m benchmarks.proof_times [--repeat N] RUN_DIR...

Single process, processor time, the least of the repetitions. Proving is all that `prove` does; replaying is what the
checker's kernel does, the obligations of the solvers left out.

Options:
  runs RUN_DIR...
  --repeat N       [default: 3]
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from typing import TypeVar

from benchmarks import harness
from mirage_formal.check.proof_composition import replay_composed
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove

T = TypeVar("T")
HEADS = ("prove ms", "replay ms", "proof bytes")


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one candidate."""

    prove_ms: float
    replay_ms: float
    size: int

    def numbers(self) -> tuple[float, float, int]:
        """In the order of HEADS."""
        return self.prove_ms, self.replay_ms, self.size


def measured(work: Callable[[], T], repeat: int) -> tuple[T, float]:
    """What the work returns, and the least number of milliseconds that it took."""
    taken = []
    for _ in range(repeat):
        begin = process_time()
        found = work()
        taken.append(1e3 * (process_time() - begin))
    return found, min(taken)


def costs(program: KernelGraph, graph: KernelGraph, repeat: int) -> Costs | None:
    """What one candidate costs; None if it is not proved."""
    verdict, proving = measured(lambda: prove(program, graph), repeat)
    if not isinstance(verdict, Equivalent):
        return None
    _, replaying = measured(lambda: replay_composed(program, graph, verdict.proof), repeat)
    return Costs(proving, replaying, len(verdict.proof))


def row(name: str, found: list[Costs], unproved: int) -> str:
    """A line of the table: median and maximum of each number."""
    columns = []
    for values in zip(*(item.numbers() for item in found), strict=True):
        form = "{:,.0f}" if isinstance(values[0], int) else "{:.1f}"
        columns += [form.format(statistics.median(values)), form.format(max(values))]
    return harness.row(name, len(found), unproved, *(columns or ["-"] * 2 * len(HEADS)))


def main() -> int:
    """Print the table; exit status 1 if a candidate is not proved."""
    parser = harness.parser_of(__doc__)
    arguments = parser.parse_args()
    heads = " | ".join(f"{head}, median | max" for head in HEADS)
    print(harness.table(f"run | proved | not | {heads}", [], range(3 + 2 * len(HEADS))))
    everything: list[Costs] = []
    unproved = 0
    for path in arguments.runs:
        program = from_json(json.dumps(json.loads((path / "run.json").read_text())["program"]), str(path))
        files = sorted(path.glob("candidates/*/mugraph.json"))
        if not files:
            parser.error(f"{path}: expected the candidates of a run")
        results = [costs(program, from_json(file.read_text(), str(file)), arguments.repeat) for file in files]
        found = [item for item in results if item is not None]
        print(row(path.name, found, len(results) - len(found)), flush=True)
        everything += found
        unproved += len(results) - len(found)
    print(row("**all**", everything, unproved))
    return 1 if unproved else 0


if __name__ == "__main__":
    sys.exit(main())
