"""FlashInfer-Bench's records: definition, solution, workload and trace, as in its documents (docs/bridges.md)."""

from __future__ import annotations

from typing import Literal

import msgspec

Status = Literal["PASSED", "INCORRECT_NUMERICAL"]


class ConstantAxis(msgspec.Struct, frozen=True, tag_field="type", tag="const"):
    """An extent that a definition fixes."""

    value: int


class TensorSpec(msgspec.Struct, frozen=True):
    """A tensor: the names of its axes, and its element type."""

    shape: tuple[str, ...]
    dtype: str
    description: str = ""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A program: its tensors, and Python text with a function ``run`` that computes it with torch."""

    name: str
    op_type: str
    description: str
    tags: tuple[str, ...]
    axes: dict[str, ConstantAxis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str


class SourceFile(msgspec.Struct, frozen=True):
    """A file of a solution."""

    path: str
    content: str


class BuildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a solution is called: a function of a file of it that returns the outputs."""

    language: Literal["python"] = "python"
    target_hardware: tuple[str, ...]
    entry_point: str
    dependencies: tuple[str, ...]
    destination_passing_style: bool = False


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that compute a definition."""

    name: str
    definition: str
    description: str
    author: str
    spec: BuildSpec
    sources: tuple[SourceFile, ...]


class RandomInput(msgspec.Struct, frozen=True, tag_field="type", tag="random"):
    """An input that is drawn."""


class BenchWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a definition; it has no variable axes here."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, RandomInput]


class Correctness(msgspec.Struct, frozen=True):
    """The largest differences from float64."""

    max_relative_error: float
    max_absolute_error: float


class Performance(msgspec.Struct, frozen=True):
    """Milliseconds of a call; the reference's are 0, the schema's value for a missing measurement."""

    latency_ms: float
    reference_latency_ms: float = 0.0
    speedup_factor: float = 0.0


class Environment(msgspec.Struct, frozen=True):
    """Environment of a measurement: hardware and library versions."""

    hardware: str
    libs: dict[str, str]


class BenchEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement; one that is not correct has no performance."""

    status: Status
    environment: Environment
    timestamp: str
    log: str
    correctness: Correctness
    performance: Performance | None


class BenchTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of a solution on a workload; a workload alone has neither solution nor evaluation."""

    definition: str
    workload: BenchWorkload
    solution: str | None = None
    evaluation: BenchEvaluation | None = None


__all__ = [
    "BenchEvaluation",
    "BenchTrace",
    "BenchWorkload",
    "BuildSpec",
    "ConstantAxis",
    "Correctness",
    "Definition",
    "Environment",
    "Performance",
    "RandomInput",
    "Solution",
    "SourceFile",
    "TensorSpec",
]
