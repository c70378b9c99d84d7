"""Export of a run's directory as a FlashInfer-Bench data set: program, candidates' kernels and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.executable import LAUNCH_FILE, Executable, expect_no_tensor_maps, load_executable
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build, candidates_of
from mirage_formal.kernel_build.built_kernels import KernelRejected
from mirage_formal.records import (
    KERNELS,
    RUN_FILE,
    MeasureRecord,
    NumericsRecord,
    RunRecord,
    decode,
    read_file,
    write_atomic,
)
from mirage_formal.records.measurement import MEASURE_FILE, NUMERICS_FILE
from mirage_formal.records.partition import WHOLE_FILE, WholeRecord
from mirage_formal.run.settings import versions
from mirage_formal.support.errors import RunError, UnsupportedError
from mirage_formal.torch.integrations.flashinfer.record_conversion import (
    AUTHOR,
    definition,
    name_inputs,
    solution,
    trace_record,
    workload,
)
from mirage_formal.torch.integrations.flashinfer.records import BenchTrace, Solution


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Summary of an export: written records and skipped candidates.

    Attributes:
        definition: Name of the definition.
        solutions: Names of the solutions.
        traces: Number of measurements.
        skipped: Candidates without kernels, or with tensor maps, each with the reason.
    """

    definition: str
    solutions: tuple[str, ...]
    traces: int
    skipped: tuple[str, ...]


def export_best(root: Path, out: Path, count: int, op_type: str) -> ExportSummary:
    """Write a run's best candidates.

    Kernels that the run has are taken; those of other candidates are made, which needs the solvers.

    Args:
        root: The run's directory, or a whole program's.
        out: The data set; what is there stays, and files of the same names are replaced.
        count: Most candidates.
        op_type: The kind of operation that the definition names.

    Raises:
        RunError: There is no finished run.
        UnsupportedError: The program has an input that the records cannot describe.
        FormatError: A file of the run is malformed.
    """
    program, target, candidates = candidates_of(root)
    given = name_inputs(program, _title(root))
    defined, work = definition(given, op_type), workload(given, op_type)
    measured: list[BenchTrace] = []
    solutions: list[Solution] = []
    skipped: list[str] = []
    for name, read_graph in candidates:
        if len(solutions) == count:
            break
        try:
            made = _kernels(root / KERNELS / name, read_graph, program, target)
        except KernelRejected as error:
            skipped.append(f"{name}: {error.what}")
            continue
        try:
            expect_no_tensor_maps(made)
        except UnsupportedError as error:
            skipped.append(f"{name}: {error.what}")
            continue
        solved = solution(given, made, target, _describe_candidate(root, name, made, target), op_type)
        solutions.append(solved)
        if (found := _read_measurement(root / KERNELS / name, work, solved)) is not None:
            measured.append(found)
    if not solutions:
        raise RunError(f"expected candidates with kernels, got none: {'; '.join(skipped)[:300]}", where=str(root))
    below = Path(op_type)
    _write(out / "definitions" / below / f"{defined.name}.json", defined)
    _lines(out / "workloads" / below / f"{defined.name}.jsonl", [work])
    for solved in solutions:
        _write(out / "solutions" / AUTHOR / below / defined.name / f"{solved.name}.json", solved)
    if measured:
        _lines(out / "traces" / AUTHOR / below / f"{defined.name}.jsonl", measured)
    return ExportSummary(defined.name, tuple(one.name for one in solutions), len(measured), tuple(skipped))


def _title(root: Path) -> str:
    if (root / WHOLE_FILE).is_file():
        return decode(read_file(root / WHOLE_FILE), WholeRecord, str(root / WHOLE_FILE)).program
    return decode(read_file(root / RUN_FILE), RunRecord, str(root / RUN_FILE)).name


def _kernels(directory: Path, read_graph: Any, program: KernelGraph, target: str) -> Executable:
    if (directory / LAUNCH_FILE).is_file():
        return load_executable(directory)
    return build(read_graph(), program, load_target(target)).executable


def _describe_candidate(root: Path, name: str, made: Executable, target: str) -> str:
    us = estimate(made.graph, load_target(target)).us
    text = f"Candidate {name} of {root.name}: {len(made.launches)} launches, estimated {us:.2f} us on {target}."
    return f"{text} Its equality with the program is said by the run's evidence, which `mirage-formal check` replays."


def _read_measurement(directory: Path, work: BenchTrace, solved: Solution) -> BenchTrace | None:
    files = directory / NUMERICS_FILE, directory / MEASURE_FILE
    if not all(file.is_file() for file in files):
        return None
    numerics = decode(read_file(files[0]), NumericsRecord, str(files[0]))
    measured = decode(read_file(files[1]), MeasureRecord, str(files[1]))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return trace_record(work, solved, numerics, measured, {"mirage_formal": versions()["mirage_formal"]}, now)


def _write(path: Path, record: msgspec.Struct) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def _lines(path: Path, records: list[BenchTrace]) -> None:
    write_atomic(path, b"".join(msgspec.json.encode(record) + b"\n" for record in records))


__all__ = ["ExportSummary", "export_best"]
