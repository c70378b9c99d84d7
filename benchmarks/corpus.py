"""Search the programs of examples/corpus, each in a process of its own, and write a table.

    .venv/bin/python -m benchmarks.corpus [--only PATTERN] [--jobs 2] [--time-limit 60] [--check] [--build] [--emulate]
        [--programs DIR]

A program is searched by ``mf.superoptimize(graph, out=..., time_limit=...)`` and no further option. --check has the
checker establish the run again, --build makes its best candidate's kernels for sm_80 and sm_90a, and --emulate searches
the program at its small sizes and runs the kernels on the CPU emulator. Results are appended to DIR/results.jsonl, and
a later call does what is missing there; --again does everything again. The table is DIR/corpus.md and DIR/corpus.json.

Exit 1 if a program has no candidate, or a stage failed.

Options:
  --only PATTERN...  programs; a shell pattern
  --programs DIR     [default: examples/corpus]
  --out DIR          [default: runs/corpus]
  --jobs N           programs at once [default: 1]
  --time-limit S     seconds of one search [default: 60]
  --kill-after S     seconds of one process [default: 900]
  --check            check the run directories again
  --build            build kernels of the best candidates
  --emulate          run kernels at small sizes on the emulator
  --again            also what has a result
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from benchmarks import harness
from benchmarks.harness import ROOT, command, parser_of
from benchmarks.in_processes import STAGES, Ledger, Row, Task, run_stages

CORPUS = ROOT / "examples" / "corpus"
#: A search that takes longer than this is counted.
SLOW_S = 60.0
_REASON = 160


def files(patterns: Sequence[str] = (), corpus: Path = CORPUS) -> list[Path]:
    """The files of the corpus whose name, or folder/name, matches one of the patterns; all if there are none."""
    found = sorted(corpus.rglob("*.py"))
    return [path for path in found if not patterns or any(_matches(path, corpus, pattern) for pattern in patterns)]


def _matches(path: Path, corpus: Path, pattern: str) -> bool:
    return fnmatch(path.stem, pattern) or fnmatch(path.relative_to(corpus).with_suffix("").as_posix(), pattern)


def tasks(paths: Sequence[Path], stage: str, out: Path, time_limit: float) -> list[Task]:
    """One stage of programs."""
    place, more = (out / "small", ["--small"]) if stage == "emulate" else (out / "runs", [])
    asked = ("--time-limit", time_limit, *more)
    return [
        Task(path.stem, stage, command("benchmarks.stages", stage, path, place / path.stem, *asked)) for path in paths
    ]


def summary(rows: Sequence[Row]) -> dict[str, int]:
    """Counts of what was found by searches."""
    found = [row for row in rows if row.ok]
    return {
        "programs": len(rows),
        "found": len(found),
        "equivalent": sum(row.verdict == "equivalent" for row in found),
        "at or below unfused": sum(not above(row) for row in found),
        "at most half the kernels, the best": sum(2 * row.kernels <= row.unfused_kernels for row in found),
        "at most half the kernels, any": sum(2 * _fewest(row) <= row.unfused_kernels for row in found),
        f"over {SLOW_S:g} s": sum(row.seconds > SLOW_S for row in rows),
    }


def _fewest(row: Row) -> int:
    """Kernels of the reported candidate of fewest that is not estimated above unfused; older rows have the best's."""
    return row.fewest_kernels or row.kernels


def above(row: Row) -> bool:
    """Whether a candidate is estimated above its program, by more than the rounding of a sum."""
    return row.estimate_us > row.unfused_us * (1 + 1e-9)


def table(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """Markdown: the summary, one line for each search, and the stages that failed."""
    counts: list[tuple[str, object]] = [*summary(rows).items()]
    for stage in STAGES:
        if ran := [row for row in others if row.stage == stage]:
            counts.append((f"{stage}: good of all", f"{sum(row.ok for row in ran)} of {len(ran)}"))
    lines = []
    for row in rows:
        found: list[object] = ["", "", "", ""]
        if row.kernels:
            found = [row.kernels, _fewest(row), f"{row.estimate_us:.1f}", f"{row.fewest_us or row.estimate_us:.1f}"]
        kernels, fewest, us, their_us = found
        cells = [row.program, row.operators, kernels, row.unfused_kernels, fewest, us, f"{row.unfused_us:.1f}"]
        cells += [their_us, f"{row.seconds:.1f}", f"{row.peak_mib:.0f}", row.verdict or row.kind, _short(row.reason)]
        lines.append(cells)
    heads = "program | operators | kernels | unfused | fewest | us | unfused us | its us | s | MiB | verdict | reason"
    numbers = harness.table(["", ""], counts).replace("|  |  |", "| | |")
    texts = ["# The corpus", numbers, harness.table(heads, lines, (0, -2, -1))]
    if failed := [(row.program, row.stage, row.kind, _short(row.reason)) for row in others if not row.ok]:
        texts.append(harness.table("program | stage | failed | reason", failed, range(4)))
    return "\n\n".join(texts) + "\n"


def _short(text: str) -> str:
    return " ".join(text.split())[:_REASON]


def written(ledger: Ledger, out: Path) -> str:
    """Write both forms of the table; returns the Markdown."""
    every = sorted(ledger.rows.values(), key=lambda row: (row.program, row.stage))
    rows = [row for row in every if row.stage == "search"]
    others = [row for row in every if row.stage != "search"]
    text = table(rows, others)
    (out / "corpus.md").write_text(text)
    whole = {"summary": summary(rows), "rows": every}
    (out / "corpus.json").write_bytes(msgspec.json.format(msgspec.json.encode(whole)) + b"\n")
    return text


def line(row: Row) -> str:
    """One row as progress."""
    what = f"{row.program} {row.stage}: "
    if row.stage == "search" and row.ok:
        what += f"{row.kernels} of {row.unfused_kernels} kernels, {row.estimate_us:.1f} of {row.unfused_us:.1f} us, "
        if _fewest(row) < row.kernels:
            what += f"{row.fewest_kernels} at {row.fewest_us:.1f} us, "
    return f"{what}{'good' if row.ok else row.kind}, {row.seconds:.1f} s {_short(row.reason)}".rstrip()


def _show(count: int, done: int, row: Row) -> None:
    print(f"[{done}/{count}] {line(row)}", flush=True)


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    paths = files(given.only, given.programs)
    if not paths:
        parser.error(f"expected the name of a program of {given.programs}, got none that matches")
    out = given.out.resolve()
    ledger = Ledger(out / "results.jsonl")

    def wanted(stage: str) -> list[Task]:
        # What was not found has no run to check, and no kernels; the emulator searches for its own.
        usable = [path for path in paths if stage not in ("check", "build") or ledger.rows[path.stem, "search"].ok]
        return tasks(usable, stage, out, given.time_limit)

    rows = run_stages(wanted, ledger, given, _show)
    print(written(ledger, out).split("\n\n| program")[0])
    print(f"{out}/corpus.md")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
