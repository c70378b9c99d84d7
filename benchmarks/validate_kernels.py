"""Decide for every kernel of the candidates of runs whether it computes its µGraph: share, reasons and seconds.

Run: .venv/bin/python -m benchmarks.validate_kernels RUN_DIR ... [--count N] [--forms N] [--target NAME]

A directory with several runs counts as all of them. Of each candidate or cover, kernels of its first forms are decided
(kernel_build.candidate_forms), as they are built without a GPU. Exit 1 if one kernel is not proved.

Options:
  runs DIR...
  --count N    candidates of each run [default: 16]
  --forms N    forms of each candidate [default: 1]
  --target NAME  target [default: h200]
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.harness import parser_of, table
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import candidates_of
from mirage_formal.kernel_build.candidate_forms import forms
from mirage_formal.support.errors import MirageError


def graphs(root: Path, count: int, each: int, target: Target) -> Iterator[tuple[str, KernelGraph]]:
    """The forms of a run's candidates, with their names."""
    try:
        _, _, candidates = candidates_of(root)
    except MirageError:  # several runs, or one that has not ended
        for path in sorted(path for path in root.iterdir() if path.is_dir()):
            yield from graphs(path, count, each, target) if (path / "summary.json").is_file() else ()
        return
    for name, read in candidates[:count]:
        for form in forms(read(), target)[:each]:
            yield f"{root.name} {name} {form.name}", form.graph


def main(argv: Sequence[str]) -> int:
    """Prints the table."""
    asked = parser_of(__doc__).parse_args(argv)
    target = load_target(asked.target)
    seconds: list[float] = []
    reasons: Counter[str] = Counter()
    for root in asked.runs:
        for name, graph in graphs(root, asked.count, asked.forms, target):
            for kernel in generate(graph, target).steps:
                if not isinstance(kernel, GeneratedKernel):
                    continue
                verdict = decide_realizes(graph, kernel)
                if isinstance(verdict, Realizes):
                    seconds.append(verdict.seconds)
                else:
                    reasons[verdict.reason] += 1
                    print(f"{name} {kernel.program.name}: {type(verdict).__name__}: {verdict.reason}")
    failed = sum(reasons.values())
    rows = [(len(seconds) + failed, len(seconds), f"{median(seconds):.3f}", f"{max(seconds):.2f}")] if seconds else []
    print(table("kernels | proved | median s | largest s", rows))
    return 1 if failed or not seconds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
