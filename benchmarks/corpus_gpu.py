"""The corpus's candidates beside torch.compile on a GPU.

    .venv/bin/python -m benchmarks.corpus_gpu build RUNS --out DIR [--top N]    # where the solvers are: for sm_90a
    python3 -m benchmarks.corpus_gpu run DIR [--autotune] [--top N] [--jobs N]  # where the GPU is: torch, CuPy, NumPy,
                                                                                # msgspec

RUNS is what benchmarks.corpus has written (runs/corpus/runs). With --top the best N candidates (or covers) of each
program get kernels; on the GPU each is timed once, and the fastest of those within tolerance at the most scales is
measured anew. What is done in which order is said in benchmarks/gpu_stages.py; answers are kept in corpus_gpu.jsonl of
--out, and a call that was cut is continued by the same call.

Numerics are compared at scales 0.1, 1 and 8. The peer is PyTorch on the same operators, eager and compiled, captured in
a CUDA graph and timed by the same protocol. The ratio is the better of torch.compile's times over ours.

Options:
  stage {build,run}
  directory DIR
  --top N            candidates of each program [default: 1]
  --autotune         also torch.compile's mode max-autotune
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

import msgspec

from benchmarks import gpu_stages, harness
from benchmarks.gpu_cases import Case, work
from benchmarks.gpu_jobs import WORKER, Job, short
from benchmarks.gpu_stages import COMPILED, OPTIONS, READS, Row, stages

ARCH = "sm_90a"
_HEADS = (
    "program | candidate | launches | ours us | compile us | max-autotune us | eager us | ratio | read-only us | "
    "x read-only | spread % | difference | numerics"
)


def build(runs: Path, out: Path, top: int) -> int:
    """Build the best candidates of every run; print which are refused."""
    from benchmarks.stages import best_few_of
    from mirage_formal.codegen.executable import LAUNCH_FILE, save_executable
    from mirage_formal.codegen.target import load_target
    from mirage_formal.graph.canonical import digest
    from mirage_formal.kernel_build.build import build as build_kernels
    from mirage_formal.records.partition import cover_name
    from mirage_formal.support.errors import MirageError
    from mirage_formal.support.options import Settings

    refused = 0
    for place in sorted(path for path in runs.iterdir() if path.is_dir()):
        try:
            program, graphs = best_few_of(place, top)
        except (MirageError, OSError, ValueError) as error:
            refused += 1
            print(f"{place.name}: {short(error)}", flush=True)
            continue
        for rank, graph in enumerate(graphs, 1):
            name = cover_name(rank, digest(graph))
            target = out / place.name / "kernels" / name
            if (target / LAUNCH_FILE).is_file():
                continue
            try:
                made = build_kernels(graph, program, load_target(Settings().target), (ARCH,))
            except (MirageError, ValueError) as error:
                refused += rank == 1
                print(f"{place.name} {name}: {short(error)}", flush=True)
                continue
            save_executable(made.executable, target)
            print(f"{place.name} {name}: built; {made.stable.note or 'stable'}", flush=True)
    return 1 if refused else 0


def candidates(place: Path, top: int) -> list[Path]:
    """Directories of the best candidates' kernels; those of a program that has one set of them may lie in it."""
    found = gpu_stages.candidates(place, top)
    return found or ([place] if (place / "launch.json").is_file() else [])


def case_of(job: Job) -> Case:
    """The program of a job."""
    from benchmarks.peers import compiled, draw
    from mirage_formal.codegen.executable import load_executable
    from mirage_formal.torch.modules.eager_execution import torch_program

    program = load_executable(Path(job["kernels"])).program
    eager = torch_program(program)
    # The peer is the same program, operator by operator.
    return Case(lambda seed: draw(program.inputs, seed), lambda given: eager(*given), compiled(eager))


def table(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines: list[list[object]] = []
    for row in rows:
        numerics = row.numerics.get(row.chosen or "", {})
        if row.us("ours") is None:
            lines.append([row.name, *[""] * 11, row.reason.replace("|", " ")])
            continue
        times = [row.us(name) for name in ("ours", "compile", "autotune", "eager")]
        reads = row.over(*READS)
        shown = [*times, row.over(*COMPILED), row.us(*READS), None if reads is None else 1 / reads]
        spread = 100 * max(cell["spread"] for cell in row.cells.values() if "spread" in cell)
        answers = ", ".join(scale["answer"] for scale in numerics["scales"])
        answers += "".join(f"; no {name}: {reason}" for name, reason in row.missing.items()).replace("|", " ")
        cells = ["" if value is None else f"{value:.2f}" for value in shown]
        what = [row.name, numerics["digest"][:12], len(numerics["launches"])]
        lines.append([*what, *cells, f"{spread:.1f}", f"{row.found['replays_error']:.0e}", answers])
    text = harness.table(_HEADS, lines, (0, 1, -1)) + "\n"
    if ratios := {row.name: ratio for row in rows if (ratio := row.over(*COMPILED)) is not None}:
        slow = sorted((ratio, name) for name, ratio in ratios.items() if ratio < 0.9)
        within = sum(row.within for row in rows)
        below = ", ".join(f"{name} {ratio:.2f}" for ratio, name in slow) or "none"
        mean, least = geometric_mean(ratios.values()), min(ratios.values())
        text += f"\n{len(ratios)} of {len(rows)} programs; geometric mean of the ratios {mean:.2f}, least {least:.2f}; "
        text += f"{within} within tolerance at all three scales; {len(slow)} below 0.9: {below}.\n"
    return text


def main() -> int:
    """The command line."""
    if sys.argv[1:] == [WORKER]:
        return work(case_of)
    given = harness.options((__doc__ or "") + OPTIONS)
    if given.stage == "build":
        return build(given.directory, given.out, given.top)
    places = {path.name: candidates(path, given.top) for path in sorted(given.directory.iterdir()) if path.is_dir()}
    peers = ["eager", *(name for name in COMPILED if given.autotune or name != "autotune")]
    measured = stages("benchmarks.corpus_gpu", given, lambda name: peers)
    rows = measured.run(places)
    text = table(rows)
    (given.out / "corpus_gpu.json").write_text(json.dumps([msgspec.to_builtins(row) for row in rows], indent=1))
    (given.out / "corpus_gpu.md").write_text(text)
    print(text)
    return 0 if all(row.over(*COMPILED) is not None and not row.missing for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
