"""Every example's generated kernels on the emulator, built with AddressSanitizer and UBSan.

    .venv/bin/python -m benchmarks.emulate_examples [--examples attn qk ...] [--keep 4] [--plain]

Two kinds of kernels: those of the candidates that a search at reduced extents reports (the best, and the best of every
other number of kernels), whose results are compared with the program's; and those of the candidates that were fastest
on an H200 (tests/example_candidates.json), each alone, with the tiles of real extents, fewer blocks and iterations. A
row is one kernel. The exit status is 1 if a row is not clean.

Options:
  --examples NAME...  [default: all]
  --keep N            candidates that a search reports [default: 4]
  --plain             without sanitizers
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.harness import options
from mirage_formal.codegen.executable import KernelLaunch
from mirage_formal.codegen.numerics.result_comparison import SCALES

# The kernels' makers stand with the tests.
from mirage_formal.device import emulate
from mirage_formal.emulate.runner import compare_on_emulator
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from tests.kit.kernels import example_kernels as kit

#: A kernel, and what became of it: "clean", or a fault in words; seconds.
Row = tuple[str, str, float]


def _outcome(call: Callable[[], str]) -> tuple[str, float]:
    """Whether it is clean or else what is wrong, and seconds."""
    begin = time.perf_counter()
    try:
        result = call()
    except emulate.EmulationFault as fault:
        result = str(fault)
    return result, time.perf_counter() - begin


def whole(name: str, keep: int, *, sanitize: bool = True) -> Iterator[Row]:
    """The kernels of the candidates that a search at reduced extents reports."""
    program = kit.reduced(name)
    for number, candidate in enumerate(kit.searched(name, keep), 1):
        made = kit.built(candidate, program)
        # Without a running maximum exponentials may leave float16 at larger scales.
        scales = (0.1,) if made.stable.note else SCALES

        def call(made: BuiltKernels = made, scales: tuple[float, ...] = scales) -> str:
            record = compare_on_emulator(made, sanitize=sanitize, scales=scales)
            return "clean" if record.answer == "within" else f"results {record.answer} at scales {scales}"

        result, seconds = _outcome(call)
        generated = [x for x in made.executable.launches if isinstance(x, KernelLaunch)]
        for launch in generated:
            yield f"reduced #{number} {launch.name} {_size(launch.grid)}", result, seconds / len(generated)


def alone(row: str, position: int, kernel: KernelGraph, *, sanitize: bool = True) -> Iterator[Row]:
    """One kernel of a candidate with the tiles of real extents."""
    (op,) = kernel.ops
    assert isinstance(op, GraphDefined)

    def call() -> str:
        worst = kit.run_alone(kernel, position, sanitize=sanitize)
        return "clean" if worst <= 1 else f"an error is {worst:.3g} times what is allowed"

    yield f"{row} kernel {position} {_size(op.graph.grid)}", *_outcome(call)


def _size(grid: tuple[int, int, int]) -> str:
    return "x".join(map(str, grid))


def rows(name: str, keep: int, *, sanitize: bool) -> Iterator[Row]:
    """Emulate all kernels of an example."""
    yield from whole(name, keep, sanitize=sanitize)
    for row, candidate in kit.fastest().items():
        example, _, batch = row.rpartition("-b")
        if example == name:
            made = kit.built(candidate, kit.real(name, int(batch)))
            for position, kernel in enumerate(kit.kernels(made.stable.graph)):
                yield from alone(row, position, kernel, sanitize=sanitize)


def main() -> int:
    """The command line."""
    given = options(__doc__, examples=kit.EXAMPLES)
    count, bad = 0, []
    for name in given.examples:
        for kernel, result, seconds in rows(name, given.keep, sanitize=not given.plain):
            count += 1
            print(f"{name:11}{kernel:34}{result.splitlines()[0][:60]:62}{seconds:6.1f} s", flush=True)
            if result != "clean":
                bad.append(f"\n{name}, {kernel}:\n{result}")
    print(f"{count} kernels, {len(bad)} with findings", *bad, sep="\n")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
