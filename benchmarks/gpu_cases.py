"""What children of benchmarks/gpu_bench.py and benchmarks/corpus_gpu.py measure: a program's kernels and their peers.

Everything is timed by the one protocol of mirage_formal.device.measure. A row is measured in one process, in rounds:
ours, every peer and the read-only kernels one after another, then all of them again. Medians of the rounds count.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.gpu_jobs import Job, Result, Turn, serve, short

if TYPE_CHECKING:
    from benchmarks.peers import Peer

#: What is measured, by name; each call returns a Measurement.
Cells = dict[str, Callable[[], Any]]
#: Names the file that a process holds while it times candidates of a compiler.
LOCK = "MIRAGE_FORMAL_GPU_LOCK"
ROUNDS = 3
_SEED = 12345
_GRAPH_SEEDS = (1, 2)


@dataclass(frozen=True, slots=True)
class Case:
    """A program that is measured.

    Attributes:
        draw: Inputs of a seed.
        reference: Outputs that results are compared with, from inputs.
        peers: What it is timed beside.
    """

    draw: Callable[[int], list[Any]]
    reference: Callable[[Sequence[Any]], Sequence[Any]]
    peers: Sequence[Peer]


def answer(case_of: Callable[[Job], Case], job: Job) -> Result:
    """What a job is answered, in a process that has the GPU.

    Args:
        case_of: The program that a job is about.
        job: "do" says what: bandwidth, compile, time, numerics or row.
    """
    import torch

    torch.set_grad_enabled(False)
    try:
        if job["do"] == "bandwidth":
            return bandwidth()
        if job["do"] == "numerics":
            return numerics(Path(job["kernels"]))
        case = case_of(job)
        return {"compile": compiled, "time": timed, "row": row}[job["do"]](case, job)
    finally:
        torch.cuda.empty_cache()


def work(case_of: Callable[[Job], Case]) -> int:
    """What a child's main function returns: see gpu_jobs.serve."""
    return serve(functools.partial(answer, case_of))


def bandwidth() -> Result:
    """GB/s of copies on the device, bytes read and written together."""
    import torch

    from mirage_formal.device.measure import TorchRecorder, replay_summary

    source = torch.randn(1 << 29, device="cuda", dtype=torch.float32)
    target = torch.empty_like(source)
    recorder = TorchRecorder()
    best = 0.0
    for copy in (lambda: target.copy_(source), lambda: torch.neg(source, out=target)):
        replay, _ = recorder.capture([copy] * 4)
        times = [recorder.time(replay) / 4 for _ in range(45)][30:]  # clocks rise while it warms up
        best = max(best, 2 * source.nbytes / replay_summary(times, 4, 1).us / 1e3)
    return {"gbs": best, "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def compiled(case: Case, job: Job) -> Result:
    """One peer compiled, so that the compiler's cache on disk has it; and how far its results are off."""
    (peer,) = (peer for peer in case.peers if peer.name == job["peer"])
    from torch._inductor.runtime.benchmarking import benchmarker

    # Several processes that compile at once would otherwise choose among candidates by times that include each other.
    lock, cls = os.environ.get(LOCK), type(benchmarker)
    turn = Turn(None if lock is None else Path(lock))
    with patch.object(cls, "benchmark_gpu", turn.taking(cls.benchmark_gpu)):
        return {"error_norm": _peer_error(case, peer)}


def numerics(directory: Path) -> Result:
    """A candidate's numerics at all scales, and what is to be said of its kernels."""
    from mirage_formal.codegen.executable import KernelLaunch, describe, load_executable
    from mirage_formal.device.cupy_runner import DeviceRuns
    from mirage_formal.kernel_build.device_records import compare_with_float64

    executable = load_executable(directory)
    launches = executable.launches
    binaries = [b for x in launches if isinstance(x, KernelLaunch) for b in x.cubins.values()]
    record = compare_with_float64(DeviceRuns(executable))
    scales = [
        {
            "scale": scale.scale,
            "answer": scale.answer,
            "error": _most(o.max_absolute_error for o in scale.outputs),
            "tolerance": _most(o.max_tolerance for o in scale.outputs),
            "ratio": _most(o.max_ratio for o in scale.outputs),
            "reason": "; ".join(o.reason for o in scale.outputs if o.reason),
        }
        for scale in record.scales
    ]
    return {
        "answer": record.answer,
        "scales": scales,
        "digest": executable.digest,
        "launches": [describe(launch, executable.graph) for launch in launches],
        "registers": max((b.registers for b in binaries), default=0),
        "spill_bytes": max((b.spill_bytes for b in binaries), default=0),
    }


def _most(values: Iterable[float | None]) -> float:
    """The largest; a record holds nothing for what is not finite."""
    return max(math.inf if value is None else value for value in values)


def timed(case: Case, job: Job) -> Result:
    """One candidate's time, once, and how far its results are off: which of them are to be measured at all."""
    ours = cuda_call(case, Path(job["kernels"]))
    return {"us": ours.measure().us, "replays_error": ours.replays_error()}


def row(case: Case, job: Job) -> Result:
    """A candidate beside its peers, beside the time to read its inputs and, if one is named, beside a Triton file.

    Args:
        case: The program.
        job: Beside others "triton": what ``triton_of`` says of the run.
    """
    ours = cuda_call(case, Path(job["kernels"]))
    found: Result = {"replays_error": ours.replays_error(), "notes": {}}
    cells: Cells = {"ours": ours.measure}
    makers: dict[str, Callable[[], Cells]] = {}
    if "triton" in job:
        makers["triton"] = functools.partial(_triton, case, job["triton"], ours.size, found)
    for peer in case.peers:
        if peer.name in job["peers"]:
            makers[peer.name] = functools.partial(_peer, case, peer, ours.size, found)
    if job.get("read_only", True):
        makers["read_only"] = functools.partial(_read_only, ours.size, found)
    for name, make in makers.items():
        try:
            cells |= make()
        except Exception as error:
            found["notes"][name] = {"error": short(error)}
    return {**found, "bytes": ours.size, "cells": rounds(cells, job.get("rounds", ROUNDS))}


def _triton(case: Case, chosen: Mapping[str, Any], size: int, found: Result) -> Cells:
    """Make the cell of a Triton file; its error goes into ``found``."""
    file = triton_call(case, chosen, size)
    found["triton_error"] = file.replays_error()
    return {"triton": file.measure}


def _peer(case: Case, peer: Peer, size: int, found: Result) -> Cells:
    """Make the cell of a peer; its error goes into ``found``."""
    from mirage_formal.device.measure import TorchRecorder, measure

    begin = time.perf_counter()
    found["notes"][peer.name] = {"error_norm": _peer_error(case, peer), "s": time.perf_counter() - begin}
    prepared, recorder = (lambda seed: peer.prepare(case.draw(seed))), TorchRecorder()
    return {peer.name: functools.partial(measure, lambda x: peer.call(*x), prepared, size, recorder)}


def _read_only(size: int, found: Result) -> Cells:
    """Cells of both kernels that only read, each on the grid that is fastest here; all grids' times in ``found``."""
    from benchmarks.read_only import Reader
    from mirage_formal.device.measure import TorchRecorder, measure

    reader, recorder = Reader(size), TorchRecorder()
    tried = {
        variant: measure(reader.call(variant), reader.inputs, reader.size, recorder).us for variant in reader.verified()
    }
    found["read_only_tried"] = {str(variant): us for variant, us in tried.items()}
    cells: Cells = {}
    for kernel in dict.fromkeys(variant.kernel for variant in tried):
        best = min((v for v in tried if v.kernel == kernel), key=lambda v: tried[v])
        found["notes"][kernel] = {"variant": str(best)}
        cells[kernel] = functools.partial(measure, reader.call(best), reader.inputs, reader.size, recorder)
    return cells


def rounds(cells: Mapping[str, Callable[[], Any]], count: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """Measure all cells in turns, so many times; the medians, and how far the rounds are apart.

    Args:
        cells: What is measured, by name; each returns a Measurement.
        count: Rounds.

    Returns:
        For each cell us (the median), low and high (of the rounds), spread (their distance over the median) and runs;
        or the error that ended its measurements.
    """
    runs: dict[str, list[float]] = {name: [] for name in cells}
    errors: dict[str, str] = {}
    for _ in range(count):
        for name, cell in cells.items():
            if name in errors:
                continue
            try:
                runs[name].append(cell().us)
            except Exception as error:
                errors[name] = short(error)
    found: dict[str, dict[str, Any]] = {name: {"error": error} for name, error in errors.items()}
    for name, times in runs.items():
        if name not in errors:
            us, low, high = median(times), min(times), max(times)
            found[name] = {"us": us, "low": low, "high": high, "spread": (high - low) / us, "runs": times}
    return found


class Called:
    """What computes a program on torch tensors.

    Args:
        case: The program.
        run: A function of inputs, which returns new outputs or writes ``outputs``.
        size: Bytes that a call reads.
        outputs: Tensors; None if the function returns new ones.
    """

    def __init__(self, case: Case, run: Callable[..., Any], size: int, outputs: Sequence[Any] | None = None) -> None:
        from mirage_formal.device.measure import TorchRecorder

        self._case, self._run, self._outputs, self._recorder = case, run, outputs, TorchRecorder()
        self.size = size

    def once(self) -> None:
        """Call it."""
        self._run(*self._case.draw(_SEED))

    def measure(self) -> Any:
        """Time it."""
        from mirage_formal.device.measure import measure

        return measure(lambda x: self._run(*x), self._case.draw, self.size, self._recorder, outputs=self._outputs)

    def replays_error(self) -> float:
        """Find the largest relative error of an output in replays of one graph, norms over norms; NaN before each."""
        from mirage_formal.device.measure import replayed_error

        drawn = {seed: self._case.draw(seed) for seed in _GRAPH_SEEDS}
        wanted = {seed: self._case.reference(given) for seed, given in drawn.items()}
        buffers, outputs = self._case.draw(_SEED), list(self._outputs or ())

        def call() -> None:
            found = self._run(*buffers)
            if self._outputs is None:  # those that the captured call has made
                outputs[:] = _several(found)

        def load(seed: int) -> None:
            for buffer, values in zip(buffers, drawn[seed], strict=True):
                buffer.copy_(values)

        return replayed_error(
            call, load, lambda seed: _apart(outputs, wanted[seed]), outputs, self._recorder, _GRAPH_SEEDS
        )


def cuda_call(case: Case, directory: Path) -> Called:
    """Load a candidate's kernels."""
    import torch

    from mirage_formal.codegen.executable import load_executable
    from mirage_formal.device.launch import Optimized
    from mirage_formal.torch.modules.eager_execution import DTYPES

    executable = load_executable(directory)
    types = [executable.values[number] for number in executable.graph.outputs]
    outputs = [torch.empty(t.shape, device="cuda", dtype=DTYPES[t.dtype]) for t in types]
    size = sum(item.tensor.bytes for item in executable.program.inputs)
    return Called(case, functools.partial(Optimized.of(executable), out=outputs), size, outputs)


def triton_of(kernels: Sequence[Path]) -> Result | None:
    """The Triton file that tuning took instead of a run's CUDA kernels, if it did: its kernels' directory, launch
    options and digest.

    Args:
        kernels: The directories of the run's kernels.
    """
    from mirage_formal.records import MEASURE_FILE, MeasureRecord, open_sealed, read_file

    for directory in kernels:
        path = directory / MEASURE_FILE
        record = open_sealed(read_file(path), MeasureRecord, str(path)).triton if path.is_file() else None
        if record is not None and record.backend == "triton":
            (one,) = (one for one in record.tried if one.sha256 == record.chosen)
            return {"kernels": str(directory), "warps": one.warps, "stages": one.stages, "sha256": one.sha256}
    return None


def triton_call(case: Case, chosen: Mapping[str, Any], size: int) -> Called:
    """Load the Triton file that tuning chose; see ``triton_of``."""
    from mirage_formal.autotune.triton.launch_variants import triton_texts
    from mirage_formal.codegen.triton.launch_options import LaunchOptions
    from mirage_formal.kernel_build.triton.triton_callable import load_module

    (one,) = triton_texts(Path(chosen["kernels"]), [LaunchOptions(chosen["warps"], chosen["stages"])])
    if one.digest != chosen["sha256"]:
        raise ValueError("the file is another than the one that tuning chose: tune the run again")
    return Called(case, load_module(one.text).run, size)


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) else [outputs]


def _peer_error(case: Case, peer: Peer) -> float:
    given = case.draw(_SEED)
    return _apart(_several(peer.call(*peer.prepare(given))), case.reference(given))


def _apart(got: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest norm of a difference over the norm of what is wanted; NaN if anything is NaN."""
    found = 0.0
    for mine, value in zip(got, want, strict=True):
        wide = value.double()
        apart = float((mine.double().reshape(wide.shape) - wide).norm() / wide.norm().clamp(min=1e-30))
        if not apart <= found:
            found = apart
        if found != found:
            return found
    return found
