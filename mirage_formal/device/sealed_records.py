"""GPU records of kernels, written to their directory: sealed, and bound to its manifest by digest.

Needs msgspec only: the machine with the device has no solver.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from mirage_formal.device.measure import Measurement
from mirage_formal.records import (
    MANIFEST_FILE,
    MEASURE_FILE,
    NUMERICS_FILE,
    KernelManifestRecord,
    MeasureRecord,
    NumericsRecord,
    TritonRecord,
    TuningRecord,
    open_sealed,
    read_file,
    seal_record,
    sha256,
    write_atomic,
)
from mirage_formal.support.errors import FormatError, RunError


def manifest_digest(directory: Path) -> str:
    """Return the sha256 of the manifest of a directory of kernels, after a check of all listed files.

    Raises:
        RunError: There is no manifest.
        FormatError: A file is not the one that the manifest lists.
    """
    path = directory / MANIFEST_FILE
    hint = "python -m mirage_formal.kernel_build RUN_DIR makes kernels, where the solvers are installed"
    if not path.is_file():
        raise RunError("expected kernels with a manifest, got none", where=str(path), hint=hint)
    data = read_file(path)
    for name, code in open_sealed(data, KernelManifestRecord, str(path)).files.items():
        if Path(name).name != name or sha256(read_file(directory / name)) != code:
            raise FormatError(
                f"expected {name!r} with the digest in the manifest, got other contents", where=str(path), hint=hint
            )
    return sha256(data)


def write_numerics(directory: Path, record: NumericsRecord) -> None:
    """Write numerics.json, sealed and bound to the manifest of the kernels."""
    bound = msgspec.structs.replace(record, kernels=manifest_digest(directory))
    write_atomic(directory / NUMERICS_FILE, seal_record(bound))


def write_measurement(
    directory: Path, found: Measurement, device: str, moved_bytes: int, tuning: TuningRecord | None = None
) -> MeasureRecord:
    """Write measure.json.

    Args:
        directory: The directory of kernels.
        found: The measurement.
        device: Name of the GPU.
        moved_bytes: Lower bound of the bytes that the program moves.
        tuning: Record of how the kernels were chosen, if they were tuned.
    """
    record = MeasureRecord(
        kernels=manifest_digest(directory),
        device=device,
        us=found.us,
        low=found.low,
        high=found.high,
        spread=found.spread,
        replays=found.replays,
        calls=found.calls,
        sets=found.sets,
        moved_bytes=moved_bytes,
        tuning=tuning,
    )
    write_atomic(directory / MEASURE_FILE, seal_record(record))
    return record


def write_triton(directory: Path, found: TritonRecord | None) -> None:
    """Write the results of Triton files, or that none was tried, into the existing measure.json of these kernels.

    Raises:
        RunError: There is no measure.json.
        FormatError: It is not as it was written, or belongs to other kernels.
    """
    path = directory / MEASURE_FILE
    if not path.is_file():
        raise RunError("expected kernels that were measured, got none", where=str(path), hint="tune the run again")
    record = open_sealed(read_file(path), MeasureRecord, str(path))
    if record.kernels != manifest_digest(directory):
        raise FormatError("expected a measurement of these kernels", where=str(path), hint="tune the run again")
    if record.triton != found:
        write_atomic(path, seal_record(msgspec.structs.replace(record, triton=found)))
