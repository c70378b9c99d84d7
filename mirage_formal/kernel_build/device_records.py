"""GPU records of a candidate's kernels: numerics and times, measured and written to the kernels' directory.

Needs CuPy, NumPy and msgspec: the machine with the GPU has no solver.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mirage_formal.codegen.executable import moved_bytes
from mirage_formal.device.runtime import device_name
from mirage_formal.device.sealed_records import write_measurement, write_numerics
from mirage_formal.records import MeasureRecord, NumericsRecord, TuningRecord

if TYPE_CHECKING:
    from mirage_formal.device.cupy_runner import DeviceRuns


def compare_with_float64(runs: DeviceRuns, seed: int = 0) -> NumericsRecord:
    """Compare the results of kernels on seeded inputs with float64 at every scale.

    Args:
        runs: The loaded kernels; memory that the comparison allocates is freed afterwards.
        seed: Seed of the inputs.
    """
    from mirage_formal.codegen.numerics.result_comparison import Inputs, check  # needs NumPy

    executable, inputs = runs.executable, Inputs(seed, xp=runs.cupy)
    try:
        return check(
            executable.program, executable.graph, executable.digest, runs.run, device=device_name(), inputs=inputs
        )
    finally:
        runs.cupy.get_default_memory_pool().free_all_blocks()


def record_numerics(runs: DeviceRuns, directory: Path, seed: int = 0) -> NumericsRecord:
    """Compare kernels with float64, and write numerics.json.

    Args:
        runs: The loaded kernels.
        directory: Their directory.
        seed: Seed of the inputs.

    Raises:
        RunError: The directory has no manifest.
        FormatError: A file is not the one that the manifest lists.
    """
    record = compare_with_float64(runs, seed)
    write_numerics(directory, record)
    return record


def record_time(runs: DeviceRuns, directory: Path, tuning: TuningRecord | None = None) -> MeasureRecord:
    """Time the kernels, and write measure.json.

    Args:
        runs: The loaded kernels; memory that the measurement allocates is freed afterwards.
        directory: Their directory.
        tuning: Record of how the kernels were chosen, if they were tuned.

    Raises:
        RunError: The directory has no manifest.
        FormatError: A file is not the one that the manifest lists.
    """
    try:
        found = runs.measure()
    finally:
        runs.cupy.get_default_memory_pool().free_all_blocks()
    return write_measurement(directory, found, device_name(), moved_bytes(runs.executable.program), tuning)
