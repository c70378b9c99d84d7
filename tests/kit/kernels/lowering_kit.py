"""Kernels of the corpus at reduced extents, inputs for them, and their Programs compared with the float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.check import block_types
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.kernels.lowering.assemble import lower
from mirage_formal.kernels.planning.planner import make_plan
from mirage_formal.kernels.program.plan import Plan
from mirage_formal.kernels.program.program import Program
from mirage_formal.kernels.target import load_target
from mirage_formal.semantics.reference import run as reference
from tests.kit.kernels import program_interpreter

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
