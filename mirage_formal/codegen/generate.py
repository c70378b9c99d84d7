"""Code generation of a µGraph: its kernels in order, launches, and plans, as plain values.

Equal µGraphs and targets give equal results: nothing here depends on time, machine or files. The pipeline builds
kernels with this module, and ``revalidate.rederive`` derives them again from the records of a directory of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mirage_formal.codegen.generated_launches import GeneratedKernel, GeneratedLaunches
from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram, block_groups
from mirage_formal.codegen.joined_launches.joined_kernels import handed_tensors, schedule_with_threads
from mirage_formal.codegen.lowering.strided_regions import Operation
from mirage_formal.codegen.matrix_sides import matrix_side
from mirage_formal.codegen.planning.expand import subtracts_maximum
from mirage_formal.codegen.predefined_kernels import copy_program, operator_program
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.program.program import (
    Commit,
    CopyAsync,
    For,
    GlobalRead,
    GlobalVector,
    GridWait,
    If,
    LaunchDependents,
    LoadMatrix,
    Mma,
    Program,
    Registers,
    Stmt,
    TileCopy,
    WarpgroupMma,
    all_statements,
)
from mirage_formal.codegen.target import Target
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import StorageLocation, launched_operators, storage_locations
from mirage_formal.graph.types import DTensor
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    BufferRecord,
    CompiledRecord,
    KernelPlanRecord,
    LoopRecord,
    ProductLaunch,
    ScheduleRecord,
)
from mirage_formal.support.errors import MirageError, UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.codegen.executable import Compiled

#: Tiles of one predefined operator.
_MOST_TILES: Final = 16
#: No requested schedules: every kernel has the first one that fits.
NO_SCHEDULES: Final[Mapping[int, Schedule]] = MappingProxyType({})
#: No early kernels: every kernel that is followed by another one lets it start late.
NONE_EARLY: Final[Set[int]] = frozenset()
#: No joined kernels: every kernel has a launch of its own.
NONE_JOINED: Final[Set[int]] = frozenset()
#: The options of ``generate``: requested schedules, early kernels and joined kernels.
LaunchOptions = tuple[Mapping[int, Schedule], Set[int], Set[int]]
#: No options: every kernel has the first schedule that fits, and a launch of its own that starts late.
NO_OPTIONS: Final[LaunchOptions] = (NO_SCHEDULES, NONE_EARLY, NONE_JOINED)


def generate(
    graph: KernelGraph,
    target: Target,
    schedules: Mapping[int, Schedule] = NO_SCHEDULES,
    early: Set[int] = NONE_EARLY,
    joined: Set[int] = NONE_JOINED,
) -> GeneratedLaunches:
    """Return the kernels of a µGraph.

    Args:
        graph: A well-formed µGraph.
        target: The GPU that kernels are planned for.
        schedules: Schedules of operators, by position; the others have the first that fits.
        early: Positions of operators whose kernels let the next generated kernel start as soon as they begin.
        joined: Positions of operators whose kernels the last blocks of the launch before run. They have its number of
            threads: a schedule with another one is replaced by the likeliest with that.

    Raises:
        UnsupportedError: An operator cannot be lowered, or its kernel cannot be joined; names it.
    """
    steps: list[GeneratedKernel | ProductLaunch] = []
    types = kernel_types(graph)
    known = storage_locations(graph)
    number = len(graph.inputs)
    needed = set(launched_operators(graph))
    for position, op in enumerate(graph.ops):
        results = tuple(range(number, number + op.results))
        number += op.results
        if position not in needed:
            continue
        try:
            asked = schedules.get(position)
            values = (*op.operands, *results)
            if position in joined:
                steps.append(_joined_kernel(graph, position, values, target, (asked, steps[-1:])))
            elif isinstance(op, GraphDefined):
                steps.append(_graph_defined_kernel(graph, position, values, target, asked))
            else:
                steps.append(_predefined_kernel(graph, position, values, (types, known), target, asked))
        except MirageError as error:  # an assertion that fails is a bug of ours, not a property of the µGraph
            what = f"operator {position} cannot be lowered: {first_line(error)}"
            raise UnsupportedError(what, where="plan") from error
    outputs = _outputs(graph, types, known, steps, target)
    inputs = frozenset(number for number, place in enumerate(known) if place.base < len(graph.inputs))
    return _mark_alone(GeneratedLaunches(tuple(_make_dependent(steps, inputs, early)), tuple(outputs)), target)


def _mark_alone(made: GeneratedLaunches, target: Target) -> GeneratedLaunches:
    """Return the launches, kernels marked ``alone`` of whose launch a multiprocessor holds one block at a time."""
    steps: list[GeneratedKernel | ProductLaunch] = []
    for one in made.launches:
        if isinstance(one, ProductLaunch):
            steps.append(one)
            continue
        alone = resident_blocks(one.program, target) == 1
        kernels = (one.kernel,) if one.then is None else (one.kernel, one.then)
        steps += (replace(own, program=replace(own.program, alone=alone)) for own in kernels)
    return replace(made, steps=tuple(steps))


def resident_blocks(program: Program | JoinedProgram, target: Target) -> int:
    """Return the blocks of a kernel that a multiprocessor holds at a time, register use aside.

    Args:
        program: The kernel.
        target: The GPU.
    """
    there = -(-prod(program.grid) // target.sms)
    return min(there, target.limits.held(program.launch_threads, program.shared_bytes))


#: Statements and expressions after the last of which the next launch may start.
_WORK: Final = (CopyAsync, GlobalRead, GlobalVector, LoadMatrix, Mma, WarpgroupMma)
#: Statements at a kernel's beginning: declarations, and copies whose addresses depend on no computed value.
_BEGIN: Final = (Registers, CopyAsync, Commit, For, If, LaunchDependents)


def _make_dependent(
    steps: Sequence[GeneratedKernel | ProductLaunch], inputs: Set[int], early: Set[int]
) -> tuple[GeneratedKernel | ProductLaunch, ...]:
    """Return the steps, with waits added so that a kernel behind a kernel may start before that one has ended.

    Sound: a launch is dependent only if its kernel waits (``Program.dependent``, which is what launches are made from),
    in every thread. Before that it touches of device memory only parameters that are ``given`` (a rule of form,
    codegen/program/access.py), and these are inputs, or views of them, which no launch writes; what the user's work
    before the call writes there is complete, for the first launch of a call begins behind it. When the kernel goes on,
    the launch before it has ended; by induction every launch of the call has, for each of them ended after its own
    wait. A joined kernel is part of the launch before it, and reads inputs and what that launch or earlier ones have
    written, behind the wait of that launch. The first launch of a call and those beside a product of a library are in
    the order of the stream, so calls don't overlap: what comes behind the last kernel waits for it, and with it for
    all.

    Args:
        steps: The steps in launch order, none dependent.
        inputs: The values that are inputs of the µGraph, and views of them.
        early: See ``generate``.
    """
    made: list[GeneratedKernel | ProductLaunch] = []
    for number, step in enumerate(steps):
        if isinstance(step, GeneratedKernel) and step.joined is None:
            waits = number > 0 and isinstance(steps[number - 1], GeneratedKernel)
            behind = (one for one in steps[number + 1 :] if not (isinstance(one, GeneratedKernel) and one.joined))
            followed = isinstance(next(behind, None), GeneratedKernel)
            program, soon = step.program, followed and step.operator in early
            if followed:
                program = replace(program, body=_add_launch_permission(program.body, 0 if soon else None))
            step = replace(step, program=_add_wait(program, step.values, inputs) if waits else program, early=soon)
        made.append(step)
    return tuple(made)


def _add_wait(program: Program, values: tuple[int, ...], inputs: Set[int]) -> Program:
    """Return a kernel that waits for the previous launch, and starts its first copies of inputs before that.

    So weights are loaded while the previous launch ends. Copies that are moved ahead join the same or an earlier group
    than before, so waits for them stay valid. A producer waits by itself, if it copies anything but inputs.
    """
    pairs = zip(program.params, values, strict=True)
    params = tuple(replace(param, given=value in inputs) for param, value in pairs)
    given = {param.name for param in params if param.given}
    ahead: list[Stmt] = []
    behind: list[Stmt] = []
    begin = True
    for statement in program.body:
        begin = begin and all(isinstance(one, _BEGIN) for one in _nested_nodes(statement) if isinstance(one, Stmt))
        copied = {one.param for one in _nested_nodes(statement) if isinstance(one, CopyAsync)}
        (ahead if begin and copied and copied <= given else behind).append(statement)
    produced = {one.param for one in all_statements(program.producer) if isinstance(one, TileCopy)}
    producer = program.producer if produced <= given else (GridWait(), *program.producer)
    return replace(program, params=params, body=(*ahead, GridWait(), *behind), producer=producer)


def _add_launch_permission(body: tuple[Stmt, ...], at: int | None) -> tuple[Stmt, ...]:
    """Return the body with a permission for the next launch to start, by default after the last read and product.

    If it comes earlier, the threads of that launch wait beside those that work. On an H200 a product of 4 warps on each
    multiprocessor can then take 1.4 times as long. A layer of a model at one token takes 7 % less, for its weights are
    loaded sooner. Only times of all launches together decide (``autotune.finalists``).
    """
    if at is None:
        at = len(body)
        while at and not any(isinstance(one, _WORK) for one in _nested_nodes(body[at - 1])):
            at -= 1
    return (*body[:at], LaunchDependents(), *body[at:])


def _nested_nodes(found: object) -> Iterator[object]:
    """Yield a statement or expression, and everything nested in it."""
    yield found
    if isinstance(found, tuple):
        for one in found:
            yield from _nested_nodes(one)
    elif is_dataclass(found):
        for own in fields(found):
            yield from _nested_nodes(getattr(found, own.name))


def first_line(error: BaseException) -> str:
    """Return the kind of an error, and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _graph_defined_kernel(
    graph: KernelGraph, position: int, values: tuple[int, ...], target: Target, asked: Schedule | None
) -> GeneratedKernel:
    """Return the kernel of a graph-defined operator; ``values`` are the numbers of its operands and results."""
    from mirage_formal.codegen.lowering.assemble import lower  # calls of finished kernels do not need it
    from mirage_formal.codegen.planning.planner import make_plan

    plan = make_plan(graph, position, target, asked)
    passed = tuple(value for value, param in zip(values, plan.params, strict=True) if param.band is None)
    return GeneratedKernel(position, passed, lower(plan), plan, asked)


def _joined_kernel(
    graph: KernelGraph,
    position: int,
    values: tuple[int, ...],
    target: Target,
    given: tuple[Schedule | None, Sequence[GeneratedKernel | ProductLaunch]],
) -> GeneratedKernel:
    """Return the kernel of a graph-defined operator that the last blocks of the launch before run.

    Args:
        graph: The µGraph.
        position: The position of the operator.
        values: The numbers of its operands and results.
        target: The GPU.
        given: The schedule that was requested for it, if any, and the step before.

    Raises:
        UnsupportedError: There is no such launch; says why.
    """
    asked, op = given[0], graph.ops[position]
    before = next((one for one in given[1] if isinstance(one, GeneratedKernel) and one.operator >= 0), None)
    own = None if before is None else graph.ops[before.operator]
    if before is None or before.joined or not isinstance(op, GraphDefined) or not isinstance(own, GraphDefined):
        raise UnsupportedError("expected a graph-defined kernel behind one with a launch of its own", where="plan")
    threads = before.program.threads
    if asked is None or asked.threads != threads:
        asked = schedule_with_threads(graph, position, target, threads)
    made = _graph_defined_kernel(graph, position, values, target, asked)
    groups = block_groups((own, op), handed_tensors(graph, (before, made), (own, op)))
    for what in JoinedProgram(before.program, made.program, groups).faults():
        raise UnsupportedError(what, where="plan")
    return replace(made, joined=groups)


def _predefined_kernel(
    graph: KernelGraph,
    position: int,
    values: tuple[int, ...],
    lying: tuple[Sequence[DTensor], Sequence[StorageLocation]],
    target: Target,
    asked: Schedule | None = None,
) -> GeneratedKernel | ProductLaunch:
    """Return the kernel of a predefined operator; ``lying`` has the type and the memory layout of each value."""
    types, known = lying
    op = graph.ops[position]
    assert isinstance(op, Op)
    if asked is not None and (op.kind is OpKind.MATMUL or asked != tile_schedule(asked.threads, asked.tile)):
        raise UnsupportedError(f"expected no schedule of a predefined {op.kind.value}, got one", where="plan")
    if op.kind is OpKind.MATMUL:
        a, b = op.operands
        matrix_side(types[a].shape, known[a].strides)
        matrix_side(types[b].shape, known[b].strides)
        return ProductLaunch(position, a, b, values[-1])
    operands = tuple((types[i], known[i].strides, known[i].offset) for i in op.operands)
    tile = 0 if asked is None else asked.tile
    name = f"op{position}_{op.kind.value}"
    operation = Operation(op, subtracts_maximum(graph, op, values[-1]))
    made = operator_program(name, operation, operands, types[values[-1]], target, tile)
    if asked is not None and asked.threads != made.threads:
        raise UnsupportedError(f"expected {made.threads} threads of tile {tile}, got {asked.threads}", where="plan")
    return GeneratedKernel(position, values, made, asked=asked)


def tile_schedule(threads: int, tile: int) -> Schedule:
    """Return the schedule that selects a tile of a predefined operator with transposed operands."""
    return Schedule(threads, 1, tile=tile)


def alternative_tiles(graph: KernelGraph, position: int, target: Target) -> list[Schedule]:
    """Return the alternative schedules of a predefined operator: other tiles for transposed operands.

    Args:
        graph: A well-formed µGraph.
        position: The position of the operator.
        target: The GPU.
    """
    op = graph.ops[position]
    if isinstance(op, GraphDefined) or op.kind is OpKind.MATMUL:
        return []
    types, known = kernel_types(graph), storage_locations(graph)
    operands = tuple((types[i], known[i].strides, known[i].offset) for i in op.operands)
    result = types[sum((one.results for one in graph.ops[:position]), len(graph.inputs))]
    found: list[Schedule] = []
    try:
        while len(found) < _MOST_TILES:
            tile = len(found) + 1
            made = operator_program("tile", Operation(op), operands, result, target, tile)
            found.append(tile_schedule(made.threads, tile))
    except UnsupportedError:
        return found
    return found


def _outputs(
    graph: KernelGraph,
    types: Sequence[Any],
    known: Sequence[StorageLocation],
    steps: list[GeneratedKernel | ProductLaunch],
    target: Target,
) -> list[int]:
    """Return the value of each output; inputs and repeated outputs are copied to values of their own."""
    outputs: list[int] = []
    extra = len(types)
    for tensor in graph.outputs:
        if tensor >= len(graph.inputs) and tensor not in outputs:
            outputs.append(tensor)
            continue
        place = known[tensor]
        copy = copy_program(f"copy{len(outputs)}", (types[tensor], place.strides, place.offset), target)
        steps.append(GeneratedKernel(-1, (tensor, extra), copy))
        outputs.append(extra)
        extra += 1
    return outputs


def plan_record(kernel: GeneratedKernel, compiled: Mapping[str, Compiled]) -> KernelPlanRecord:
    """Return the plan of a kernel, and the compiler's report about it.

    Args:
        kernel: The kernel.
        compiled: Machine code by architecture.
    """
    program, plan, loop = kernel.program, kernel.plan, None
    if plan is not None:
        loop = LoopRecord(
            forloop_range=plan.forloop_range // plan.schedule.cut,
            cut=plan.schedule.cut,
            stages=plan.stages,
            ring=plan.ring,
            barriers=plan.barriers,
            shared_lower_bound=plan.shared_lower_bound,
        )
    return KernelPlanRecord(
        kernel=program.name,
        operator=kernel.operator,
        grid=program.grid,
        threads=program.launch_threads,
        loop=loop,
        schedule=None if kernel.asked is None else schedule_record(kernel.asked),
        early=kernel.early,
        joined=msgspec.UNSET if kernel.joined is None else True,
        buffers=tuple(
            BufferRecord(name=b.name, dtype=b.dtype.value, elements=b.elements, offset=b.offset) for b in program.shared
        ),
        shared_bytes=program.shared_bytes,
        compiled={arch: compiled_record(code) for arch, code in compiled.items()},
    )


def schedule_record(schedule: Schedule) -> ScheduleRecord:
    """Return a schedule as the record that files hold; ``schedule_from_record`` is the inverse."""
    return msgspec.convert(msgspec.to_builtins(schedule), ScheduleRecord)


def requested_options(plans: Sequence[KernelPlanRecord]) -> LaunchOptions:
    """Return the options of ``generate`` that give the same plans: requested schedules, early and joined kernels."""
    schedules = {one.operator: schedule_from_record(one.schedule) for one in plans if one.schedule is not None}
    early, joined = (one.operator for one in plans if one.early), (one.operator for one in plans if one.joined is True)
    return schedules, frozenset(early), frozenset(joined)


def schedule_from_record(record: ScheduleRecord) -> Schedule:
    """Return the schedule that a record of a file describes; ``schedule_record`` is the inverse."""
    return msgspec.convert(msgspec.to_builtins(record), Schedule)


def compiled_record(code: Compiled) -> CompiledRecord:
    """Return the compiler's report about a kernel for one architecture."""
    return CompiledRecord(
        registers=code.registers,
        spill_bytes=code.spill_bytes,
        stack_bytes=code.stack_bytes,
        shared_bytes=code.shared_bytes,
        compiler=code.compiler,
    )
