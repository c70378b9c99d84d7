"""Check of GPU records: bound to the kernels, complete, and consistent. Nothing is run again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    MEASURE_FILE,
    NUMERICS_FILE,
    Answer,
    MeasureRecord,
    NumericsRecord,
    OutputRecord,
    open_sealed,
    read_file,
)
from mirage_formal.support.errors import FormatError

#: Scales of the inputs, all of which a comparison must have, and the factor of its tolerance (docs/kernels.md).
SCALES: Final = (0.1, 1.0, 8.0)
LAMBDA: Final = 6.0


@dataclass(frozen=True, slots=True)
class Numerics:
    """Result of a comparison with float64: its answer, the largest error over its tolerance, and the device."""

    answer: Answer
    ratio: float
    device: str


def check_numerics(root: Path, manifest: str, graph_digest: str, graph: KernelGraph) -> Numerics | None:
    """Check numerics.json and return its result, None if there is no such file.

    ``manifest`` is the digest of the manifest that the file must name.

    Sound: "within" is only passed on if every output at every scale has finite figures that say so.

    Raises:
        CheckFailed: Names the file and step.
    """
    path = root / NUMERICS_FILE
    if not path.exists() and not path.is_symlink():
        return None
    with step(path, "seal"):
        record = open_sealed(read_file(path), NumericsRecord, NUMERICS_FILE)
    with step(path, "which kernels"):
        expect_equal("sha256 of the manifest", manifest, record.kernels)
        expect_equal("µGraph", graph_digest, record.candidate)
    types = kernel_types(graph)
    worst = 0.0
    with step(path, "complete and consistent numerics"):
        expect_equal("scales", SCALES, tuple(scale.scale for scale in record.scales))
        expect_equal("factor of the tolerance", LAMBDA, record.tolerance_lambda)
        for scale in record.scales:
            expect_equal("outputs", len(graph.outputs), len(scale.outputs))
            for output, number in zip(scale.outputs, graph.outputs, strict=True):
                worst = max(worst, _check_output(output, types[number], f"scale {scale.scale:g}"))
            expect_equal(
                f"answer at scale {scale.scale:g}", _combine_answers([o.answer for o in scale.outputs]), scale.answer
            )
        expect_equal("answer", _combine_answers([scale.answer for scale in record.scales]), record.answer)
    return Numerics(record.answer, worst, record.device)


def _check_output(record: OutputRecord, tensor: DTensor, where: str) -> float:
    """Check one output, and return its largest error over its tolerance.

    Raises:
        FormatError: A figure contradicts another, or the answer.
    """
    expect_equal(f"{where}: elements", tensor.elements, record.elements)
    if record.beyond_range + record.lost > record.elements:
        raise FormatError(f"{where}: expected at most {record.elements} values beyond the range or lost")
    expect_equal(f"{where}: a reason unless it is within", record.answer != "within", bool(record.reason))
    ratio = math.inf if record.max_ratio is None else record.max_ratio
    if record.answer == "outside" and ratio <= 1:
        raise FormatError(f"{where}: expected an error above its tolerance, got {ratio} times")
    if record.answer != "within":
        return ratio
    figures = (
        *(record.max_absolute_error, record.max_relative_error, record.relative_norm, record.max_ulps),
        *(record.largest, record.median_tolerance, record.max_tolerance),
    )
    finite = [x for x in (ratio, *figures) if x is not None and math.isfinite(x) and x >= 0]
    if len(finite) != len(figures) + 1 or not ratio <= 1:
        raise FormatError(f"{where}: expected finite figures and errors within their tolerances, got {record}")
    _, error, relative, _, _, largest, median, most = finite
    slack = 1 + 1e-9
    if error > ratio * most * slack or median > most or (largest and not math.isclose(relative, error / largest)):
        raise FormatError(f"{where}: expected figures that agree, got {record}")
    return ratio


def _combine_answers(answers: list[Answer]) -> Answer:
    """Combine the answers of several comparisons.

    Sound: "within" only if all are, and there is one.
    """
    if "outside" in answers:
        return "outside"
    return "within" if answers and set(answers) == {"within"} else "undecided"


def check_measure(root: Path, manifest: str, program: KernelGraph) -> MeasureRecord | None:
    """Check measure.json and return it, None if there is no such file.

    Raises:
        CheckFailed: Names the file and step.
    """
    path = root / MEASURE_FILE
    if not path.exists() and not path.is_symlink():
        return None
    with step(path, "seal"):
        record = open_sealed(read_file(path), MeasureRecord, MEASURE_FILE)
    with step(path, "which kernels"):
        expect_equal("sha256 of the manifest", manifest, record.kernels)
    with step(path, "consistent times"):
        types = kernel_types(program)
        moved = sum(item.tensor.bytes for item in program.inputs if item.band is None)
        moved += sum(types[i].bytes for i in set(program.outputs))
        expect_equal("bytes that the program moves", moved, record.moved_bytes)
        if not 0 < record.low <= record.us <= record.high < math.inf or not 0 <= record.spread < math.inf:
            raise FormatError(f"expected a median between the fastest and the slowest replay, got {record}")
        if min(record.replays, record.calls, record.sets) < 1:
            raise FormatError(f"expected replays, calls and sets of inputs, got {record}")
    return record
