"""Host time of a call of the kernels in a directory, beside bare launches of CuPy, as many as there are kernels.

Run on a GPU, with the kernels of tests/kit/kernels/device_kernels.py:

    python -m benchmarks.gpu_overhead runs/gpu/fixtures

Exit code 1 if a call takes more than 20 microseconds beyond its bare launches.

Options:
  kernels DIR
"""

from __future__ import annotations

from functools import partial

import cupy
import torch

from benchmarks.harness import options
from mirage_formal.claims.numerics.numerics import draw_all
from mirage_formal.device.launch import Optimized
from mirage_formal.device.measure import host_overhead
from mirage_formal.kernels.executable import load

NAMES = ("lora", "ntrans", "split")
MOST_US = 20.0


def inputs(executable: object) -> list[torch.Tensor]:
    """Drawn inputs with the declared strides."""
    program = executable.program  # type: ignore[attr-defined]
    made = []
    for item, array in zip(program.inputs, draw_all(program, 0, 0.5), strict=True):
        dtype = getattr(torch, item.tensor.dtype.value)
        tensor = torch.empty_strided(item.tensor.shape, item.strides, dtype=dtype, device="cuda")
        made.append(tensor.copy_(torch.from_numpy(array)))
    return made


def main() -> None:
    """Print the table."""
    kernels = options(__doc__).kernels
    synchronise = torch.cuda.synchronize
    bare = cupy.RawKernel('extern "C" __global__ void f(void*, void*, void*, void*, void*) {}', "f")
    arguments = tuple(cupy.zeros(4) for _ in range(5))
    base = host_overhead(lambda: bare((1,), (32,), arguments), synchronise)
    print("| kernels | called with | us | bare launches, us | ratio |")
    print("|---|---|--:|--:|--:|")
    late = False
    for name in NAMES:
        executable = load(kernels / name)
        optimized, given = Optimized.of(executable), inputs(executable)
        out = optimized(*given)
        out = list(out) if isinstance(out, tuple | list) else [out]
        copies = [cupy.asarray(x) for x in given]
        launches = len(executable.launches) * base
        for kind, call in (
            ("torch", partial(optimized, *given)),
            ("torch, out=", partial(optimized, *given, out=out)),
            ("CuPy", partial(optimized, *copies)),
        ):
            taken = host_overhead(call, synchronise)
            late = late or taken - launches > MOST_US
            print(f"| {name} | {kind} | {taken:.1f} | {launches:.1f} | {taken / launches:.2f} |")
    raise SystemExit(int(late))


if __name__ == "__main__":
    main()
