"""Kernels of the examples at reduced extents, found by a search or given, and their Programs held to the reference."""

from __future__ import annotations

import runpy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import mirage_formal as mf
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.planning.planner import make_plan
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import load_target
from mirage_formal.device import emulate
from mirage_formal.graph.formats.json import from_value
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.semantics.float64_reference import run as reference
from tests.kit.kernels import program_interpreter
from tests.kit.paths import REPOSITORY

TARGET = load_target("h200")
#: Unit roundoff of the element types.
ROUND = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24}


def alone(
    op: GraphDefined, operands: Sequence[DTensor], strides: Mapping[int, tuple[int, ...]] | None = None
) -> KernelGraph:
    """A program of one kernel; inputs are row-major unless strides are given."""
    inputs = tuple(
        Input(f"x{i}", tensor, (strides or {}).get(i, row_major(tensor.shape))) for i, tensor in enumerate(operands)
    )
    count = len(inputs)
    kernel = GraphDefined(tuple(range(count)), op.graph)
    return KernelGraph(inputs, (kernel,), tuple(range(count, count + op.results)))


def shrunk(op: GraphDefined, operands: Sequence[DTensor], most_grid: int = 2, most_loop: int = 3) -> KernelGraph:
    """The same kernel with the same tiles, with fewer blocks and iterations."""
    block = op.graph
    tiles = block_types(block, tuple(operands))
    x, y, z = (min(g, most_grid) for g in block.grid)
    grid = (x, y, z)
    loop = min(block.forloop_range, most_loop)
    tensors = []
    for iterator, tile, operand in zip(block.inputs, tiles, operands, strict=False):
        shape = list(tile.shape)
        for axis, dim in enumerate(iterator.imap):
            if dim is not None:
                shape[dim] *= grid[axis]
        if iterator.fmap is not None:
            shape[iterator.fmap] *= loop
        tensors.append(DTensor(tuple(shape), operand.dtype))
    return alone(GraphDefined(op.operands, replace(block, grid=grid, forloop_range=loop)), tensors)


def stored(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Values that the element type holds exactly."""
    return program_interpreter.from_storage(program_interpreter.to_storage(values, dtype), dtype)


def inputs_for(graph: KernelGraph, seed: int = 0, scale: float = 0.3, low: float | None = None) -> list[NDArray[Any]]:
    """Random inputs that their element types hold."""
    rng = np.random.default_rng(seed)
    out = []
    for item in graph.inputs:
        values = rng.standard_normal(item.tensor.shape) * scale
        if not item.tensor.dtype.floating:
            values = np.sign(np.maximum(values, 0))
        if low is not None:
            values = np.abs(values) + low
        out.append(stored(values, item.tensor.dtype))
    return out


def laid_out(array: NDArray[Any], item: Input) -> NDArray[Any]:
    """The elements that an input's strides span."""
    spans = zip(item.tensor.shape, item.strides, strict=True)
    flat = np.zeros(1 + sum((n - 1) * s for n, s in spans), np.float32)
    index = np.zeros(item.tensor.shape, int)
    for dim, stride in enumerate(item.strides):
        shape = [-1 if d == dim else 1 for d in range(array.ndim)]
        index = index + (np.arange(array.shape[dim]) * stride).reshape(shape)
    flat[index] = array
    return flat


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Largest error relative to the largest wanted value."""
    wanted = np.asarray(wanted)
    found = np.asarray(found, np.float64).reshape(wanted.shape)
    return float(np.abs(found - wanted).max() / (np.abs(wanted).max() + 1e-30))


def planned(graph: KernelGraph, *, generic: bool = False) -> tuple[Plan, Program]:
    plan = make_plan(graph, 0, TARGET, generic=generic)
    return plan, lower(plan)


def compare(
    graph: KernelGraph,
    *,
    generic: bool = False,
    arrays: Sequence[NDArray[Any]] | None = None,
    tolerance: float | None = None,
    run: Callable[[Program, Sequence[NDArray[Any]]], Sequence[NDArray[Any]]] = program_interpreter.run,
) -> tuple[Plan, Program, float]:
    """Runs a one-kernel program's Program and compares; returns plan, Program and the largest error."""
    plan, program = planned(graph, generic=generic)
    arrays = inputs_for(graph) if arrays is None else arrays
    found = run(program, [laid_out(a, item) for a, item in zip(arrays, graph.inputs, strict=True)])
    wanted = reference(graph, arrays)
    worst = max(error(f, w) for f, w in zip(found, wanted, strict=True))
    limit = (
        6 * max(ROUND[item.tensor.dtype] for item in graph.inputs if item.tensor.dtype.floating) + 2e-5
        if tolerance is None
        else tolerance
    )
    assert worst < limit, (worst, limit)
    return plan, program, worst


EXAMPLE_FILES = REPOSITORY / "examples"
H200 = load_target("h200")


@dataclass(frozen=True, slots=True)
class Example:
    """A program of examples/ and how it is searched at reduced extents.

    Attributes:
        file, program: Where it is.
        extents: Reduced extents by real ones.
        space: The options of the search that leave less to search.
    """

    file: str
    program: str
    extents: dict[int, int]
    space: dict[str, Any] = field(default_factory=dict)


_HEADS: dict[str, Any] = {"config": "attention", "griddims": [(2, 4, 2), (2, 2, 1), (2, 1, 1)], "franges": [2, 4]}
EXAMPLES: dict[str, Example] = {
    "attn": Example("attn", "attn", {4096: 256, 256: 32}, {**_HEADS}),
    "qk": Example("qknorm", "qk", {4096: 256, 256: 32}, {**_HEADS, "max_kernel_ops": 1}),
    "qv": Example("qknorm", "qv", {4096: 256, 256: 32}, {**_HEADS, "max_kernel_ops": 1}),
    "rmsnorm": Example(
        "rmsnorm", "rmsnorm", {4096: 512, 6144: 384}, {"config": "norm", "griddims": [(4, 1, 1), (4, 2, 1)]}
    ),
    "lora": Example("lora", "lora", {4096: 256}, {"config": "lora", "griddims": [(4, 1, 1), (4, 2, 1)]}),
    "gated_mlp": Example("gated_mlp", "gated_mlp", {4096: 256}, {"config": "mlp", "griddims": [(4, 1, 1), (4, 2, 1)]}),
    "ntrans": Example("ntrans", "ntrans", {4096: 512}, {"config": "norm", "griddims": [(4, 1, 1), (8, 1, 1)]}),
    "decode": Example(
        "decode",
        "decode",
        {4096: 256, 64: 4},
        {"config": "attention", "griddims": [(4, 4, 1), (4, 1, 1)], "franges": [2, 4]},
    ),
}


@cache
def real(name: str, batch: int = 1) -> KernelGraph:
    """An example's program at its real extents."""
    example = EXAMPLES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRAGE_BATCH", str(batch))
        graph: mf.Graph = runpy.run_path(str(EXAMPLE_FILES / f"{example.file}.py"))[example.program]
    return graph.freeze()


@cache
def fastest() -> dict[str, KernelGraph]:
    """Candidates at real extents, by example and batch ("attn-b8"): those that were fastest on an H200."""
    text = Path(__file__).with_name("example_candidates.json").read_bytes()
    return {name: from_value(value, name) for name, value in msgspec.json.decode(text).items()}


def reduced(name: str) -> KernelGraph:
    """The same program at reduced extents."""
    extents = EXAMPLES[name].extents
    inputs = []
    for item in real(name).inputs:
        shape = tuple(extents.get(extent, extent) for extent in item.tensor.shape)
        inputs.append(replace(item, tensor=DTensor(shape, item.tensor.dtype), strides=row_major(shape)))
    return replace(real(name), inputs=tuple(inputs))


@cache
def searched(name: str, keep: int = 2) -> tuple[KernelGraph, ...]:
    """The best candidates of a search at reduced extents, and the best of every other number of kernels."""
    with tempfile.TemporaryDirectory() as where:
        found = mf.superoptimize(
            reduced(name), **EXAMPLES[name].space, keep=keep, out=Path(where) / name, workers=1, measure=0
        )
        return tuple(result.graph for result in found)


@cache
def built(graph: KernelGraph, program: KernelGraph, archs: tuple[str, ...] = ()) -> BuiltKernels:
    """The kernels of a candidate; all of their obligations hold."""
    return build(graph, program, H200, archs)


def kernels(graph: KernelGraph) -> list[KernelGraph]:
    """Each graph-defined kernel of a µGraph alone, with its own tiles, few blocks and few iterations."""
    types = kernel_types(graph)
    ops = [op for op in graph.ops if isinstance(op, GraphDefined)]
    return [shrunk(op, tuple(types[n] for n in op.operands)) for op in ops]


def run_alone(kernel: KernelGraph, position: int, *, sanitize: bool = False) -> float:
    """The largest error of one kernel over what is allowed; at most 1 is right.

    Allowed is the derived tolerance, and 6 unit roundoffs of the largest value where that is more: the tolerance of a
    candidate leaves out errors of maxima, which cancel only in a later kernel.

    Args:
        kernel: A program of one kernel.
        position: Its position in its candidate; later kernels divide by sums of exponentials, so they get positive
            inputs.
        sanitize: Whether it is built with AddressSanitizer and UBSan.

    Raises:
        EmulationFault: The emulator or a sanitizer found a fault.
    """
    program = lower(make_plan(kernel, 0, H200))
    arrays = [a.astype(np.float64) for a in inputs_for(kernel, low=0.1 if position else None)]
    given = [laid_out(a, item) for a, item in zip(arrays, kernel.inputs, strict=True)]
    found = emulate.run_kernel(program, given, sanitize=sanitize)
    wanted = result_comparison.expected_results(kernel, kernel, arrays)
    worst = 0.0
    for result, value, tolerance in zip(found, wanted.values, wanted.tolerances, strict=True):
        least = 6 * ROUND[kernel.inputs[0].tensor.dtype] * np.abs(value).max()
        off = np.abs(result.reshape(value.shape).astype(np.float64) - value)
        ratio = off / np.maximum(tolerance, least)
        worst = max(worst, float(np.where(np.isnan(ratio), np.inf, ratio).max()))
    return worst
