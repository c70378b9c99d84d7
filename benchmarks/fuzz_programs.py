"""Search random programs, each in a process of its own, and hold every answer to what may be asked of it.

    .venv/bin/python -m benchmarks.fuzz_programs [--count 1000] [--seed 0] [--jobs 2] [--time-limit 20] [--check]
                                                 [--emulate]

Program i has seed SEED + i (tests/kit/fuzz/random_programs.py); its text is DIR/programs/pI.py, and DIR/failed.md has
the text of every one that failed. What is asked: it is not refused; a candidate is found; it is proved; it is estimated
at or below the program as it is written; it computes the same in float64 at the program's own extents. --check has the
checker establish the run again; --emulate runs the kernels on the CPU emulator. Results are appended to
DIR/results.jsonl, and a later call does what is missing; --again does everything again.

Exit 1 if one program failed.

Options:
  --count N       programs [default: 1000]
  --seed N        seed of the first one [default: 0]
  --out DIR       [default: runs/fuzz]
  --jobs N        programs at once [default: 1]
  --time-limit S  seconds of one search [default: 20]
  --kill-after S  seconds of one process [default: 600]
  --check         check the run directories again
  --emulate       run the kernels on the emulator
  --again         also what has a result
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.corpus import above, line
from benchmarks.harness import command, parser_of
from benchmarks.in_processes import Ledger, Row, Task, run_stages

# The generator stands with the tests.
from tests.kit.fuzz.random_programs import program


def name_of(seed: int) -> str:
    """Name of a program, and of its file."""
    return f"p{seed}"


def tasks(seeds: Sequence[int], stage: str, out: Path, time_limit: float) -> list[Task]:
    """One stage of programs."""
    found = []
    for name in map(name_of, seeds):
        paths = out / "programs" / f"{name}.py", out / "runs" / name
        asked = command("benchmarks.stages", stage, *paths, "--time-limit", time_limit, "--evaluate")
        found.append(Task(name, stage, asked))
    return found


def fault(row: Row) -> str:
    """What is wrong with an answer, in few words; empty if nothing is."""
    if not row.ok:
        return f"{row.stage}: {row.kind}"
    if row.stage != "search":
        return ""
    if row.verdict != "equivalent":
        return f"verdict: {row.verdict}"
    return "estimated above the program" if above(row) else ""


def report(rows: Sequence[Row], out: Path) -> str:
    """Counts, and the texts of programs that failed, which are also written to failed.md."""
    searches = [row for row in rows if row.stage == "search"]
    failed = [(row, said) for row in rows if (said := fault(row))]
    lines = [f"{len(searches)} programs, {len({row.program for row, _ in failed})} failed"]
    lines += [f"  {count} {said}" for said, count in Counter(said for _, said in failed).most_common()]
    if searches:
        seconds = sorted(row.seconds for row in searches)
        fewer = sum(row.ok and row.kernels < row.unfused_kernels for row in searches)
        half, last = seconds[len(seconds) // 2], seconds[-1]
        lines.append(f"  fewer kernels than written: {fewer}; seconds: median {half:.1f}, longest {last:.1f}")
    text = ["# Random programs that failed", ""]
    for row, said in failed:
        source = (out / "programs" / f"{row.program}.py").read_text()
        text += [f"## {row.program}: {said}", "", row.reason, "", "```python", source.rstrip(), "```", ""]
    (out / "failed.md").write_text("\n".join(text))
    return "\n".join(lines)


def _show(count: int, done: int, row: Row) -> None:
    if (said := fault(row)) or done % 20 == 0 or done == count:
        print(f"[{done}/{count}] {line(row)}{f' FAILED: {said}' if said else ''}", flush=True)


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    if given.count < 1:
        parser.error("expected --count above 0")
    out = given.out.resolve()
    (out / "programs").mkdir(parents=True, exist_ok=True)
    seeds = range(given.seed, given.seed + given.count)
    for seed in seeds:
        (out / "programs" / f"{name_of(seed)}.py").write_text(program(seed).text)
    ledger = Ledger(out / "results.jsonl")

    def wanted(stage: str) -> list[Task]:
        usable = [seed for seed in seeds if stage == "search" or ledger.rows[name_of(seed), "search"].ok]
        return tasks(usable, stage, out, given.time_limit)

    rows = run_stages(wanted, ledger, given, _show)
    print(report(rows, out))
    return 1 if any(fault(row) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
