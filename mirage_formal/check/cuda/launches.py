"""Check of a µGraph's kernel launches: every operator once, in order, on its own values; plans and machine code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

from mirage_formal.check.check_steps import expect_equal, step
from mirage_formal.check.cuda.cubin import Resources, resources
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import launched_operators, storage_locations
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    LAUNCH_FILE,
    PLAN_FILE,
    Binary,
    CompiledRecord,
    KernelLaunch,
    KernelPlanRecord,
    Launch,
    LaunchRecord,
    PlanRecord,
    ProductLaunch,
    launched_kernels,
    read_file,
    resolve_inside,
    sha256,
)
from mirage_formal.records.kernels import MAP_ALIGN
from mirage_formal.support.errors import FormatError

_SCHEMA = ("mirage_formal.launch", 1)
_MAX_THREADS = 1024


def check_launches(root: Path, record: LaunchRecord, graph: KernelGraph) -> None:
    """Check that the launches compute the operators of the µGraph, as far as their arguments show it.

    Sound: every operator has one launch, or is joined to the launch of the one before it, in order, which reads the
    operator's operands and writes its results, whole, unless its result lies in another tensor
    (``graph.storage_views``), which has all of its elements; a graph-defined one has the grid of its block graph, and
    need not read band masks and views of them, whose elements the µGraph determines; copies make the outputs that
    nothing else makes. What a kernel does with its arguments is not established here, nor how joined kernels share a
    launch.

    Raises:
        CheckFailed: Names the file and step.
    """
    path = root / LAUNCH_FILE
    with step(path, "form of the launches"):
        expect_equal("schema", _SCHEMA, (record.schema, record.version))
    with step(path, "one launch for every operator"):
        copies = _copies(record, graph)
        order = [*launched_operators(graph), *(-1 for _ in copies)]
        parts = [part for one in record.launches for part in (one.kernels if isinstance(one, KernelLaunch) else (one,))]
        expect_equal("operators", order, [part.operator for part in parts])
        names = [part.name for part in parts if isinstance(part, KernelLaunch)]
        expect_equal("names of kernels", len(names), len(set(names)))
    operands = _operands(graph)
    uses = [*(operands[position] for position in launched_operators(graph)), *copies]
    values = _values(record, graph)
    for number, (part, (reads, writes)) in enumerate(zip(parts, uses, strict=True)):
        with step(path, f"launch {number}"):
            _check_launch(part, reads, writes, graph, values)
    for number, launch in enumerate(record.launches):
        if isinstance(launch, KernelLaunch):
            with step(path, f"launch {number}"):
                for name in (launch.source, *(binary.file for binary in launch.cubins.values())):
                    resolve_inside(root, name)
                _check_joined(launch, graph)
            with step(root / launch.source, "source of a kernel"):
                _check_source(root, launch)


def _copies(record: LaunchRecord, graph: KernelGraph) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the reads and writes of copies: outputs that are inputs, or that are listed a second time.

    Raises:
        FormatError: The values of the outputs are not those of the µGraph.
    """
    extra = len(graph.inputs) + sum(op.results for op in graph.ops)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    outputs: list[int] = []
    for tensor in graph.outputs:
        if tensor < len(graph.inputs) or tensor in outputs:
            found.append(((tensor,), (extra,)))
            tensor, extra = extra, extra + 1
        outputs.append(tensor)
    expect_equal("values of the outputs", tuple(outputs), record.outputs)
    return found


def _operands(graph: KernelGraph) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    number = len(graph.inputs)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for op in graph.ops:
        found.append((op.operands, tuple(range(number, number + op.results))))
        number += op.results
    return found


def _values(record: LaunchRecord, graph: KernelGraph) -> list[DTensor]:
    """Return the type of every value, those of copies last."""
    types = list(kernel_types(graph))
    outputs = zip(record.outputs, graph.outputs, strict=True)
    return [*types, *(types[tensor] for value, tensor in outputs if value >= len(types))]


def _check_launch(
    launch: Launch, reads: tuple[int, ...], writes: tuple[int, ...], graph: KernelGraph, values: list[DTensor]
) -> None:
    op = graph.ops[launch.operator] if launch.operator >= 0 else None
    if isinstance(launch, ProductLaunch):
        expect_equal("a predefined product", OpKind.MATMUL, op.kind if isinstance(op, Op) else None)
        expect_equal("operands and result", (*reads, *writes), (launch.a, launch.b, launch.result))
        return
    known = storage_locations(graph)
    if isinstance(op, GraphDefined):
        passed = {argument.value for argument in launch.arguments}
        reads = tuple(value for value in reads if value in passed or not _is_band_mask(graph, known[value].base))
    expect_equal("values", (*reads, *writes), tuple(argument.value for argument in launch.arguments))
    expect_equal("written", (False,) * len(reads) + (True,) * len(writes), tuple(a.written for a in launch.arguments))
    given = tuple(launch.dependent and value < len(known) and known[value].base < len(graph.inputs) for value in reads)
    expect_equal("inputs", (*given, *(False for _ in writes)), tuple(a.given for a in launch.arguments))
    if isinstance(op, GraphDefined):
        expect_equal("grid", op.graph.grid, launch.grid)
    if not (1 <= launch.threads <= _MAX_THREADS and min(launch.grid) >= 1 and launch.shared_bytes >= 0):
        raise FormatError(f"expected launch dimensions, got {launch.grid} blocks of {launch.threads} threads")
    for argument in launch.arguments:
        tensor = values[argument.value]
        span = known[argument.value].span(tensor.shape) if argument.value < len(known) else tensor.elements
        expect_equal(f"elements of value {argument.value}", span, argument.elements)
        if argument.align < 1 or argument.align > 256 or argument.align & (argument.align - 1):
            raise FormatError(f"expected an alignment of a power of 2 up to 256, got {argument.align}")
    for one in launch.tensor_maps:
        expect_equal("argument of a tensor map", True, one.argument < len(reads))
        viewed = launch.arguments[one.argument]
        expect_equal("elements of a tensor map", values[viewed.value].dtype.value, one.dtype)
        expect_equal("elements behind the last row of a tensor map", 0, viewed.elements % one.stride)
        expect_equal("alignment of a tensor map", 0, viewed.align % MAP_ALIGN)


def _check_joined(launch: KernelLaunch, graph: KernelGraph) -> None:
    """Check that a joined launch has two graph-defined kernels, and at most a counter for each block."""
    if not launch.counters:
        return
    defined = [part.operator >= 0 and isinstance(graph.ops[part.operator], GraphDefined) for part in launch.kernels]
    expect_equal("graph-defined kernels that are joined", [True, True], defined)
    expect_equal("tensor maps of a joined launch", 0, len(launch.tensor_maps))
    if launch.counters > prod(launch.grid):
        raise FormatError(f"expected at most {prod(launch.grid)} counters, got {launch.counters}")


def _is_band_mask(graph: KernelGraph, value: int) -> bool:
    """Return whether a value is an input with a band, which no caller passes."""
    return value < len(graph.inputs) and graph.inputs[value].band is not None


def _check_source(root: Path, launch: KernelLaunch) -> None:
    data = read_file(resolve_inside(root, launch.source))
    expect_equal("sha256", launch.sha256, sha256(data))
    if not re.search(rf"__global__[^;{{]*\b{re.escape(launch.name)}\s*\(", data.decode()):
        raise FormatError(f"expected the kernel {launch.name}, got none of this name")


def check_plans(
    root: Path, record: PlanRecord, launches: tuple[Launch, ...], graph: KernelGraph
) -> Mapping[str, Resources]:
    """Check that the plans are those of the launches, and that their figures are those of the machine code.

    Sound: registers and stack frames are read from the cubins again. ``check_launches`` has established the launches;
    spilled bytes and static shared memory are only compared with them.

    Returns:
        For each architecture, the resource usage in its machine code, the largest of all kernels.

    Raises:
        CheckFailed: Names the file and step.
    """
    path = root / PLAN_FILE
    kernels = launched_kernels(launches)
    with step(path, "one plan for every kernel"):
        expect_equal("kernels", [launch.name for launch in kernels], [plan.kernel for plan in record.kernels])
    found: dict[str, Resources] = {}
    for launch, plan in zip(kernels, record.kernels, strict=True):
        with step(path, f"plan of {plan.kernel}"):
            _check_plan(launch, plan, graph)
        for arch, binary in launch.cubins.items():
            with step(root / binary.file, f"machine code of {plan.kernel} for {arch}"):
                stated = _check_code(root, launch.name, binary, plan.compiled[arch])
                most = found.get(arch, Resources(0, 0))
                found[arch] = Resources(
                    max(most.registers, stated.registers), max(most.stack_bytes, stated.stack_bytes)
                )
    return found


def _check_plan(launch: KernelLaunch, plan: KernelPlanRecord, graph: KernelGraph) -> None:
    op = graph.ops[launch.operator] if launch.operator >= 0 else None
    loop = op.graph.forloop_range if isinstance(op, GraphDefined) else None
    expect_equal("forloop_range", loop, None if plan.loop is None else plan.loop.forloop_range)
    ours = (launch.operator, launch.grid, launch.threads, launch.shared_bytes, sorted(launch.cubins))
    expect_equal("launch", ours, (plan.operator, plan.grid, plan.threads, plan.shared_bytes, sorted(plan.compiled)))
    if plan.loop is not None and plan.loop.shared_lower_bound > plan.shared_bytes:
        raise FormatError(f"expected at least {plan.loop.shared_lower_bound} shared bytes, got {plan.shared_bytes}")
    names = [buffer.name for buffer in plan.buffers]
    expect_equal("distinct buffers", len(names), len(set(names)))
    sizes = {"float16": 2, "bfloat16": 2, "float32": 4, "bool": 1}
    end = max((b.offset + b.elements * sizes[b.dtype] for b in plan.buffers), default=0)
    expect_equal("end of the last buffer", plan.shared_bytes, end)


def _check_code(root: Path, kernel: str, binary: Binary, compiled: CompiledRecord) -> Resources:
    data = read_file(resolve_inside(root, binary.file))
    expect_equal("sha256", binary.sha256, sha256(data))
    expect_equal("spilled bytes in the plan", binary.spill_bytes, compiled.spill_bytes)
    expect_equal("registers in the plan", binary.registers, compiled.registers)
    stated = resources(data, kernel)
    expect_equal("registers and stack frame", stated, Resources(compiled.registers, compiled.stack_bytes))
    return stated
