"""What a process has launched and captured so far makes the gaps between its kernels longer, once and for good.

Run on a GPU; NumPy and CuPy are enough, and torch for --torch:

    python -m benchmarks.launch_state [DIR ...] [--graphs N ...] [--torch]

Each row is a process of its own. It captures 64 calls of one kernel in a CUDA graph and times the graph's replays; then
it captures N more graphs, none of which is ever replayed, or settles as ``measure`` does
(``mirage_formal.device.measure``), with launches; then it times the first graph again. Microseconds a call, medians of
25 replays. The kernels: one that does nothing, one that reads 2.4 MB, and those of candidates, DIR
(RUN_DIR/kernels/NNN-id). With --torch the graphs are torch's, on torch's streams, and the process settles as it does
before torch is measured; otherwise they are CuPy's.

Options:
  kernels [NAME...]       kernels of a candidate
  --graphs [N...]        [default: 1 2 3 16]
  --torch                torch captures [default: CuPy]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness import ROOT, in_process, options
from mirage_formal.device.measure import SETTLING

_SOURCE: Final = ROOT / "benchmarks" / "cuda" / "launch_state.cu"
_CALLS: Final = 64
_BYTES: Final = 2_400_000
_KERNELS: Final = ("nothing", "reading")


def calls(kernel: str) -> list[Callable[[], Any]]:
    """Calls of a kernel on inputs that are more than the cache holds, on CuPy's current stream."""
    import cupy

    if kernel not in _KERNELS:
        from mirage_formal.codegen.executable import load_executable
        from mirage_formal.device.cupy_runner import DeviceRuns, InputSets

        runs = DeviceRuns(load_executable(Path(kernel)))
        sets, outputs = InputSets(runs), runs.outputs()
        return [partial(runs.launch, sets(seed), outputs) for seed in range(_CALLS)]
    function = cupy.RawModule(code=_SOURCE.read_text()).get_function(kernel)
    out = cupy.zeros(1, cupy.float32)
    given = [cupy.zeros(_BYTES // 4, cupy.float32) for _ in range(_CALLS)]
    return [partial(function, (132,), (256,), (x, out, _BYTES // 16)) for x in given]


def _in_torch(call: Callable[[], Any]) -> None:
    import cupy
    import torch

    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        call()


def state(kernel: str, graphs: int, torch: bool) -> dict[str, float]:
    """Microseconds a call before and after so many more graphs are captured, or the process settles: 0 graphs.

    Args:
        kernel: See ``calls``.
        graphs: How many.
        torch: Whether torch captures, or CuPy.
    """
    from mirage_formal.device.measure import CupyRecorder, Recorder, TorchRecorder

    recorder: Recorder = TorchRecorder() if torch else CupyRecorder()
    made = calls(kernel)
    if torch:
        made = [partial(_in_torch, call) for call in made]
    replay, _ = recorder.capture(made)

    def timed() -> float:
        return median([recorder.time(replay) / _CALLS for _ in range(30)][5:])

    before = timed()
    if not graphs:
        recorder.settle()
    for _ in range(graphs):
        recorder.capture(made)
    return {"before": before, "after": timed()}


def main() -> None:
    """The command line."""
    given = options(__doc__)
    print("| kernel | then | us before | us after |\n|---|---|--:|--:|")
    for kernel in (*_KERNELS, *given.kernels):
        for graphs in (*given.graphs, 0):
            found = in_process("benchmarks.launch_state:state", kernel, graphs, given.torch)
            what = f"{graphs} graphs" if graphs else f"{SETTLING} launches"
            name = kernel if kernel in _KERNELS else Path(kernel).name
            print(f"| {name} | {what} | {found['before']:.3f} | {found['after']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
