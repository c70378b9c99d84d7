"""Host time of a call of the kernels in a directory, beside bare launches of CuPy, as many as there are kernels.

Run on a GPU, with the kernels of tests/kit/kernels/device_kernels.py:

    python -m benchmarks.gpu_overhead runs/gpu/fixtures

Exit code 1 if a call takes more than 20 microseconds beyond its bare launches.

Options:
  kernels DIR
"""

from __future__ import annotations

from functools import partial

from benchmarks.harness import options, row, table
from mirage_formal.codegen.executable import load_executable
from mirage_formal.device.launch import Optimized
from mirage_formal.device.measure import host_overhead

NAMES = ("lora", "ntrans", "split")
MOST_US = 20.0


def main() -> None:
    """Print the table."""
    kernels = options(__doc__).kernels
    import cupy
    import torch

    from benchmarks.peers import draw

    synchronise = torch.cuda.synchronize
    bare = cupy.RawKernel('extern "C" __global__ void f(void*, void*, void*, void*, void*) {}', "f")
    arguments = tuple(cupy.zeros(4) for _ in range(5))
    base = host_overhead(lambda: bare((1,), (32,), arguments), synchronise)
    print(table("kernels | called with | us | bare launches, us | ratio", [], (0, 1)))
    late = False
    for name in NAMES:
        executable = load_executable(kernels / name)
        optimized, given = Optimized.of(executable), draw(executable.program.inputs, 0)
        out = optimized(*given)
        out = list(out) if isinstance(out, tuple | list) else [out]
        copies = [cupy.asarray(x) for x in given]
        launches = len(executable.launches) * base
        calls = {"torch": partial(optimized, *given), "torch, out=": partial(optimized, *given, out=out)}
        for kind, call in {**calls, "CuPy": partial(optimized, *copies)}.items():
            taken = host_overhead(call, synchronise)
            late = late or taken - launches > MOST_US
            print(row(name, kind, f"{taken:.1f}", f"{launches:.1f}", f"{taken / launches:.2f}"))
    raise SystemExit(int(late))


if __name__ == "__main__":
    main()
