"""Subprocess that runs kernels on a GPU: it reads one order per line and answers each with one line.

    python -m mirage_formal.autotune.timing_subprocess

A kernel that breaks the device or hangs costs this process only; ``timing.TimingProcess`` starts another one. Needs
CuPy, NumPy and msgspec.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mirage_formal.autotune.plans import (
    KernelOrigin,
    MeasuredTime,
    PiecePlan,
    TuningDirectory,
    TuningPlan,
    executable_of,
)
from mirage_formal.records import NumericsRecord, TuningRecord
from mirage_formal.support.errors import MirageError

if TYPE_CHECKING:
    from mirage_formal.autotune.triton.triton_runner import TritonFileRunner
    from mirage_formal.graph.types import DType

#: Exit code when the device has stopped responding.
BROKEN: Final = 3


class TimingJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Job of the subprocess: time a kernel, or compare a candidate or a Triton file with float64 and time it.

    Attributes:
        piece, variant: Positions of the kernel and its schedule in the plan; -1 for a candidate.
        replays: Timed replays of a kernel or a Triton file; 0 compares a Triton file with float64.
        directory: Directory of the candidate's kernels; empty for a kernel.
        tuning: Tuning record that is written into the candidate's measurement.
        triton: Path of the Triton file; empty for CUDA kernels.
        cuda: Directory of CUDA kernels of the same program whose timing is interleaved with the file's; empty for none.
    """

    piece: int
    variant: int
    replays: int = 0
    directory: str = ""
    tuning: TuningRecord | None = None
    triton: str = ""
    cuda: str = ""


class TimingOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request to the timing process: a job, and the paths of plan and kernels; or a program.

    Attributes:
        plan: Path of the plan; empty if the job is a candidate.
        place: The tuning directory.
        job: The job; None for a program.
        program: A program as JSON, for which ``compile_reference`` is called; this order has no answer.
    """

    plan: str = ""
    place: str = ""
    job: TimingJob | None = None
    program: str = ""


class TimingAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of one timing job.

    Attributes:
        us, low: Median and least microseconds of a call; 0 if it failed.
        failed: Error message, or empty.
        answer: Verdict on a candidate's numerics: "within", "outside" or "undecided".
        cuda_us: Time of the CUDA kernels whose timing was interleaved with a Triton file's.
        numerics: Numerics of a Triton file that was compared with float64.
        broken: Whether the device has stopped responding, so that this process ends.
    """

    us: float = 0.0
    low: float = 0.0
    failed: str = ""
    answer: str = ""
    cuda_us: float = 0.0
    numerics: NumericsRecord | None = None
    broken: bool = False


class GpuMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First line of the timing process: its GPU, and its versions of driver, torch and Triton.

    Attributes:
        device: Name of the GPU.
        arch: Architecture of the GPU.
        driver: Version of its driver.
        triton: Versions of torch and Triton; empty if it cannot run Triton files.
        lacks: Reason why it cannot run Triton files.
    """

    device: str
    arch: str
    driver: int
    triton: str = ""
    lacks: str = ""


class _PlanKernels:
    """Runner of the kernels of one plan; inputs are drawn once for all schedules of a kernel."""

    def __init__(self, plan: TuningPlan, place: TuningDirectory) -> None:
        self._plan, self._place = plan, place
        self._piece = -1
        self._inputs: Any = None

    def time(self, job: TimingJob) -> TimingAnswer:
        """Time the prepared kernel of a job on the GPU."""
        from mirage_formal.device.cupy_runner import DeviceRuns, InputSets

        piece: PiecePlan = self._plan.pieces[job.piece]
        made = self._place.kernels.get(piece.variants[job.variant].key)
        if made is None:
            raise MirageError("expected a kernel, got none", where="tuning")
        runs = DeviceRuns(executable_of(piece, made))
        if self._piece != job.piece:
            self._inputs = None
            runs.cupy.get_default_memory_pool().free_all_blocks()
            self._inputs, self._piece = InputSets(runs, warm=piece.warm), job.piece
        found = runs.measure(replays=job.replays, inputs=self._inputs, finite=False)
        return TimingAnswer(found.us, found.low)


def compare_and_time(directory: Path, tuning: TuningRecord | None) -> TimingAnswer:
    """Compare a candidate with float64, time it if it is within tolerance, and write both records to its directory."""
    from mirage_formal.codegen.executable import load_executable
    from mirage_formal.codegen.numerics.result_comparison import computed_answer
    from mirage_formal.device.cupy_runner import DeviceRuns
    from mirage_formal.device.sealed_records import manifest_digest
    from mirage_formal.kernel_build.device_records import record_numerics, record_time

    executable = load_executable(directory)
    manifest_digest(directory)  # measure exactly the files that the manifest lists
    runs = DeviceRuns(executable)
    record = record_numerics(runs, directory)
    if computed_answer(record) != "within":
        reasons = "; ".join(o.reason for scale in record.scales for o in scale.outputs if o.reason)
        return TimingAnswer(answer=record.answer, failed=f"expected results within tolerance, got: {reasons[:300]}")
    found = record_time(runs, directory, tuning)
    return TimingAnswer(found.us, found.low, answer=record.answer)


def compile_reference(text: str, xp: Any) -> None:
    """Compute a program's reference at small extents, so that a first comparison with float64 takes no longer.

    CuPy compiles each of its kernels when it is first called on a machine, which takes seconds in all.

    Args:
        text: The program as JSON.
        xp: CuPy, or NumPy, which compiles nothing.
    """
    from mirage_formal.codegen.numerics.result_comparison import Inputs, check, expected_results
    from mirage_formal.codegen.numerics.shrink import shrink
    from mirage_formal.device.elements import bits_to_floats, floats_to_bits
    from mirage_formal.graph.formats.json import from_json
    from mirage_formal.graph.verifier import kernel_types

    full = from_json(text)
    program = shrink(full, full, least_tile=1).program
    types = kernel_types(program)
    given = [item.tensor.dtype for item in program.inputs]
    results = [types[number].dtype for number in program.outputs]

    def stored_values(arrays: Sequence[Any], dtypes: Sequence[DType]) -> list[Any]:
        pairs = zip(arrays, dtypes, strict=True)
        return [bits_to_floats(floats_to_bits(x, dtype, xp), dtype, xp) for x, dtype in pairs]

    def run(arrays: Sequence[Any]) -> list[Any]:
        stored = stored_values(arrays, given)
        return stored_values(expected_results(program, program, stored, xp).values, results)

    check(program, program, "", run, device="", inputs=Inputs(0, xp=xp))
    if xp.__name__ == "cupy":
        xp.random.default_rng(0).standard_normal((2,), dtype=xp.float32)


def describe_machine() -> GpuMachine:
    """Return the GPU of this process, with the versions of its driver and of Triton.

    Raises:
        UnsupportedError: This process has no GPU.
    """
    from mirage_formal.device.runtime import arch_of, current_device, device_name

    driver = import_module("cupy").cuda.runtime.driverGetVersion()
    return GpuMachine(device_name(), arch_of(current_device()), int(driver), *_triton())


def _triton() -> tuple[str, str]:
    """Return the versions of torch and Triton without loading them, or why Triton files cannot be run."""
    missing = [name for name in ("torch", "triton") if util.find_spec(name) is None]
    if missing:
        return "", f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "", "TRITON_INTERPRET is in the environment"
    return f"torch {_version('torch')}, Triton {_version('triton', 'pytorch-triton')}", ""


def _version(*names: str) -> str:
    """Return the version of an installed package, which may have several names."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "of no known version"


def run_triton_job(files: TritonFileRunner, job: TimingJob) -> TimingAnswer:
    """Return the numerics of a Triton file, its time, or its time interleaved with that of CUDA kernels."""
    directory, file = Path(job.directory), Path(job.triton)
    if not job.replays:
        from mirage_formal.codegen.numerics.result_comparison import computed_answer

        record = files.compared(directory, file)
        return TimingAnswer(answer=computed_answer(record), numerics=record)
    if not job.cuda:
        found = files.timed(directory, file, job.replays)
        return TimingAnswer(found.us, found.low)
    us, cuda_us = files.in_turns(directory, file, Path(job.cuda), job.replays)
    return TimingAnswer(us, us, cuda_us=cuda_us)


def main() -> int:
    """Read orders from standard input and run their jobs, until the input ends or the device breaks."""
    _write_line(describe_machine())
    kernels: dict[str, _PlanKernels] = {}
    files: TritonFileRunner | None = None
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=TimingOrder)
        if order.plan and order.plan not in kernels:
            place = TuningDirectory(Path(order.place))
            kernels = {order.plan: _PlanKernels(place.plans.read(Path(order.plan)).record.value, place)}
        job = order.job
        if job is None:
            with contextlib.suppress(Exception):  # the comparison itself tells what is wrong
                compile_reference(order.program, import_module("cupy"))
            continue
        try:
            if job.triton:
                files = files or _triton_runner()
                done = run_triton_job(files, job)
            else:
                files = None  # frees its inputs
                candidate = Path(job.directory)
                done = compare_and_time(candidate, job.tuning) if job.directory else kernels[order.plan].time(job)
        except Exception as error:  # any error is this job's failure
            lines = str(error).strip().splitlines()
            done = TimingAnswer(failed=f"{type(error).__name__}: {lines[0][:300] if lines else ''}")
        broken = bool(done.failed) and not _is_device_responding()
        _write_line(msgspec.structs.replace(done, broken=broken))
        if broken:
            return BROKEN
    return 0


def _triton_runner() -> TritonFileRunner:
    """Return the runner of Triton files; loads torch and Triton."""
    from mirage_formal.autotune.triton.triton_runner import TritonFileRunner

    return TritonFileRunner()


def timed_record(key: str, job: TimingJob, answer: TimingAnswer, driver: int, of: KernelOrigin) -> MeasuredTime:
    """Return the record of a timing job that is kept in the tuning directory."""
    parts = of.compiler, of.text, of.code
    return MeasuredTime(key, answer.us, answer.low, job.replays, driver, answer.failed, *parts, settled=True)


def _write_line(value: msgspec.Struct) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


def _is_device_responding() -> bool:
    """Return whether the device still answers."""
    cupy = import_module("cupy")
    try:
        cupy.cuda.Device().synchronize()
        cupy.get_default_memory_pool().free_all_blocks()
    except Exception:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
