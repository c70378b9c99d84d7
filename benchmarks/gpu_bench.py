"""Kernels of runs beside their peers on a GPU, in one table.

    python -m benchmarks.gpu_bench RUN_DIR... [--top N] [--out DIR] [--markdown FILE] [--jobs N] [--limit S]
                                              [--backend auto]

RUN_DIR is named <example>-b<batch> (attn-b8) and holds ``kernels`` (python -m mirage_formal.kernel_build). Of its N
candidates that tuning found the fastest, or else of its first N, the fastest counts whose numerics are within tolerance
at all scales. What is done in which order is said in benchmarks/gpu_stages.py, peers are those of benchmarks/peers.py.
The floor is the program's bytes at the copy bandwidth measured in the same run; "read-only" the time of a kernel that
reads the program's inputs and does nothing else (benchmarks/read_only.py); the ratio is the best peer's time over ours,
each the median of three.

With --backend auto the Triton file that ``mirage-formal tune --backend auto`` has taken, if it has, is measured in the
same rounds, in a column of its own: what is ours, and every ratio, stays CUDA C++. From searches to the table of both,
on one machine with a GPU, torch, Triton, CuPy and the solvers:

    python -m benchmarks.gpu_runs --out runs/gpu --count 48 --tune --backend auto
    python -m benchmarks.gpu_bench runs/gpu/*-b* --backend auto --out OUT --markdown OUT/results.md
    python -m benchmarks.gpu_table OUT/gpu_bench.json --auto > OUT/results-auto.md

Answers are kept in DIR/gpu_bench.jsonl as they come: a call that was cut is continued by the same call. What fails or
hangs costs its own cell or row. Exit code 0 if every row has a time of ours within tolerance, all of its peers, and at
most a relative error of 1e-3 in replays of its graph, in Triton as well.

Options:
  runs RUN_DIR...
  --top N                candidates of each run [default: 8]
  --markdown FILE        where the table goes as Markdown
  --backend {cuda,auto}  auto: the Triton files of tuning as well [default: cuda]
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_cases import Case, triton_of, work
from benchmarks.gpu_jobs import WORKER, Job, runs_among
from benchmarks.gpu_stages import ERROR, OPTIONS, Row, candidates, stages
from benchmarks.gpu_table import PEERS, markdown, show, table
from benchmarks.harness import options

_ATTENTION = ("attn", "qk", "qv", "decode")


def case_of(job: Job) -> Case:
    """The program of a job."""
    from benchmarks import peers
    from mirage_formal.codegen.executable import load_executable

    (example, _), given = example_of(job["name"]), load_executable(Path(job["kernels"])).program.inputs
    return Case(lambda seed: peers.draw(given, seed), lambda x: [peers.reference(example, x)], peers.peers(example))


def example_of(name: str) -> tuple[str, int]:
    """Example and batch of a run's name."""
    example, _, batch = name.rpartition("-b")
    return example, int(batch)


def peers_of(name: str) -> list[str]:
    """What a run is timed beside."""
    return [peer for peer in PEERS if peer not in ("flash", "cudnn") or example_of(name)[0] in _ATTENTION]


def good(row: dict[str, Any]) -> bool:
    """Whether nothing is missing in a row of the table."""
    triton = row.get("triton_error")
    return "reason" not in row and not row["missing"] and row["replays_error"] <= ERROR and (triton or 0.0) <= ERROR


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return work(case_of)
    given = options((__doc__ or "") + OPTIONS)
    runs = {run.name: run for run in sorted(runs_among(given.runs), key=lambda run: example_of(run.name))}
    taken = {name: triton_of(candidates(run)) for name, run in runs.items()} if given.backend == "auto" else {}
    more = {name: {"triton": one} for name, one in taken.items() if one is not None}
    measured = stages("benchmarks.gpu_bench", given, peers_of, lambda name: more.get(name, {}))
    found: list[Row] = measured.run({name: candidates(run, given.top) for name, run in runs.items()})
    device = measured.pool.ledger.get({"do": "bandwidth"}) or {}
    command = shlex.join(["python", "-m", "benchmarks.gpu_bench", *sys.argv[1:]])
    rows = table(found, device.get("gbs"))
    written: dict[str, Any] = {"command": command, "device": device, "backend": given.backend, "rows": rows}
    (given.out / "gpu_bench.json").write_text(json.dumps(written, indent=1))
    print(show(written))
    if given.markdown is not None:
        given.markdown.write_text(markdown(written))
    return 0 if all(good(row) for row in written["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
