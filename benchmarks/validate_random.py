"""Random programs at odd extents: the claim of every kernel, and every program's results on the emulator.

    .venv/bin/python -m benchmarks.validate_random [--count 200] [--seed 0]

Each program (tests/kit/fuzz/random_programs.py) is built as it stands, with one kernel for each operator. Its kernels
must compute their µGraph, and its results on the emulator must lie within the tolerance of the numerics, for inputs of
two scales, unless a value between two kernels leaves float16 there. Exit 1 if a kernel is not decided so, or a result
is not within.

Options:
  --count N  programs [default: 200]
  --seed N   seed of the first program [default: 0]
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, Final

import mirage_formal as mf
from benchmarks.harness import options
from mirage_formal.codegen.target import load_target
from mirage_formal.device.emulate import EmulationFault
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import Acceptance, KernelRejected

# The programs stand with the tests.
from tests.kit.fuzz.random_programs import program

#: Standard deviations of the inputs.
_SCALES: Final = (0.1, 1.0)
_OVERFLOW: Final = "a value leaves its element type"


def drawn(seed: int) -> KernelGraph:
    """The program of a seed."""
    scope: dict[str, Any] = {}
    exec(program(seed).text, scope)
    (graph,) = [value.freeze() for value in scope.values() if isinstance(value, mf.Graph)]
    return graph


def outcome(graph: KernelGraph) -> tuple[list[str], str]:
    """The verdict of each kernel, and the result on the emulator with its reasons."""
    try:
        built = build(graph, graph, load_target("h200"), accept=Acceptance.TESTED)
    except KernelRejected as error:
        return [], f"not built: {error}"
    try:
        record = compare_on_emulator(built, scales=_SCALES)
    except EmulationFault as fault:
        return [one.verdict for one in built.realized], str(fault)
    scales = [scale for scale in record.scales if scale.answer != "within"]
    reasons = {output.reason for scale in scales for output in scale.outputs if output.reason}
    answer = _OVERFLOW if scales and all(scale.overflows for scale in scales) else record.answer
    return [one.verdict for one in built.realized], ": ".join((answer, *sorted(reasons)))


def main() -> int:
    """Decide and run all programs, and print the counts."""
    asked, begin = options(__doc__), time.perf_counter()
    verdicts: Counter[str] = Counter()
    results: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.count):
        found, result = outcome(drawn(seed))
        verdicts.update(found)
        results[result.partition(":")[0]] += 1
        if set(found) - {"realizes"} or result != "within":
            print(f"seed {seed}: {found}, emulator: {result}", flush=True)
    print(f"{asked.count} programs from seed {asked.seed}, {time.perf_counter() - begin:.0f} s")
    print(f"kernels: {dict(verdicts)}; results on the emulator: {dict(results)}")
    return int(set(verdicts) != {"realizes"} or bool(set(results) - {"within", _OVERFLOW}))


if __name__ == "__main__":
    sys.exit(main())
