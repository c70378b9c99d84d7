"""Lowering of a plan to a Program: register arrays are declared, and each step becomes statements, in plan order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, assert_never

from mirage_formal.codegen.lowering import copies, mma_lowering, register_reductions, registers, scalar_lowering, stores
from mirage_formal.codegen.lowering.context import LoweringContext, make_conditional
from mirage_formal.codegen.program.flat_graph import Accumulate, RunningMax, defined_tensors
from mirage_formal.codegen.program.integers import ONE, ZERO
from mirage_formal.codegen.program.plan import Plan
from mirage_formal.codegen.program.program import (
    Await,
    Barrier,
    Commit,
    For,
    If,
    Int,
    IntExpr,
    Param,
    Pipeline,
    Program,
    Registers,
    Release,
    Stmt,
    WaitGroups,
    WarpgroupMma,
    all_statements,
)
from mirage_formal.codegen.program.step import (
    Accumulation,
    AdvanceStep,
    AwaitTile,
    BeginProduct,
    BlockReduce,
    Computation,
    EndProduct,
    Fetch,
    GenericOperation,
    Initialize,
    Load,
    Map,
    MatrixMultiply,
    Multiplication,
    MultiplyAccumulate,
    OverlapProducts,
    Prefetch,
    Reduction,
    ReleaseTile,
    Rescale,
    RunningMaximum,
    Step,
    StoreResult,
)

#: Registers for accumulators and running values of a thread at which a loop may run in pairs of iterations, of 255.
_MOST_HELD: Final = 192


def lower(plan: Plan) -> Program:
    """Return the Program of a plan; band masks, whose elements are computed, are no parameters of it."""
    body, *_ = statements(plan)
    producer, pipelines = _produced(plan)
    return Program(
        plan.name,
        tuple(Param(p.name, p.dtype, p.elements, p.written) for p in plan.params if p.band is None),
        plan.buffers,
        plan.grid,
        plan.threads,
        tuple(statement for _, statement in body),
        producer=producer,
        pipelines=pipelines,
    )


def _produced(plan: Plan) -> tuple[tuple[Stmt, ...], tuple[Pipeline, ...]]:
    """Return the producer's statements and its pipelines; none if the schedule has no producer."""
    if not plan.schedule.producer:
        return (), ()
    return copies.produce_tiles(LoweringContext(plan, plan.ops))


def _with_fences(statement: Stmt) -> Stmt:
    """Return a statement whose barriers make shared memory visible to products of warpgroups."""
    match statement:
        case Barrier():
            return Barrier(fenced=True)
        case For() | If():
            return replace(statement, body=tuple(map(_with_fences, statement.body)))
        case _:
            return statement


#: Statements, each with the steps that it belongs to; declarations and the loop belong to none.
Owned = list[tuple[tuple[Step, ...], Stmt]]


def statements(plan: Plan) -> list[Owned]:
    """Return the statements of a plan's body, of its loop, and of each condition that is nested there, in order."""
    cx = LoweringContext(plan, plan.ops)
    body: Owned = [
        ((), Registers(registers.array_name(number), tensor.placement.registers.count))
        for number, tensor in enumerate(plan.tensors)
        if tensor.placement.registers is not None
    ]
    begun = [step.product for step in plan.loop if isinstance(step, BeginProduct)]
    body += [((), Registers(mma_lowering.next_array(one.op.result), one.over.count)) for one in begun]
    body += _lower_steps(cx, plan.before)
    inside: list[Owned] = []
    if plan.loop:
        cx.paired = _runs_in_pairs(plan, begun)
        overlaps = any(isinstance(step, OverlapProducts) for step in plan.loop)
        count = plan.forloop_range // (1 + cx.paired) - overlaps
        variable = cx.ix.named("it", count)
        cx.iteration = cx.ix.mul(variable, 2) if cx.paired else variable
        inside = _skip_iterations(cx, _lower_steps(cx, plan.loop))
        if cx.paired:
            cx.iteration = cx.ix.add(cx.iteration, ONE)
            results = [one.op.result for one in begun]
            for steps, one in _lower_steps(cx, plan.loop):
                inside[0].append((steps, mma_lowering.exchange_products(one, results)))
        body.append(((), For(variable.name, count, tuple(one for _, one in inside[0]))))
        if overlaps:  # the last iteration begins nothing of a next one
            cx.iteration = Int(plan.forloop_range - 1)
            body += _lower_steps(cx, plan.loop)
        cx.iteration = ZERO
    body += _lower_steps(cx, plan.after)
    found = [body, *inside]
    if any(isinstance(one, WarpgroupMma) for one in all_statements([one for _, one in body])):
        found = [[(steps, _with_fences(one)) for steps, one in owned] for owned in found]
    return found


def _runs_in_pairs(plan: Plan, begun: Sequence[MatrixMultiply]) -> bool:
    """Return whether the loop has two iterations of the plan in each of its own.

    Where a product is begun ahead, its result would be copied at the end of each iteration: up to a tenth of its
    instructions (an H200 takes 3 to 8 % less time without these). In pairs of iterations two arrays take turns.
    Both are then accumulators all the time, so registers must be left beside them.
    """
    carried = {n for op in plan.ops if isinstance(op, Accumulate | RunningMax) for n in defined_tensors(op)}
    places = [plan.tensors[n].placement.registers for n in carried]
    held = sum(place.count for place in places if place is not None) + 2 * sum(one.over.count for one in begun)
    return bool(begun) and plan.forloop_range % 2 == 0 and held <= _MOST_HELD


def _skip_iterations(cx: LoweringContext, inside: Owned) -> list[Owned]:
    """Return the statements of an iteration, run only where they are needed, and those of each nested condition.

    Where a block's loop ends early, barriers and waits end with it. Where it begins late, copies begin as many
    iterations before the first that is needed as they are ahead, for waits count the groups of all of them.
    """
    plan, at = cx.plan, cx.iteration
    ahead = (i for i, (steps, _) in enumerate(inside) if any(isinstance(one, Prefetch | Commit) for one in steps))
    start = 1 + max(ahead) if plan.ring and plan.skips is not None else 0
    begun = cx.begun(at if start == 0 else cx.ix.add(at, Int(plan.stages - 1)))
    if start and plan.stages == plan.forloop_range:  # all copies start before the loop, which counts their groups
        begun = ONE
    nested = _run_if(cx.begun(at), inside[start:]) if start else [inside]
    whole = _run_if(cx.ix.both((begun, cx.unfinished(at))), [*inside[:start], *nested[0]])
    return [*whole, *nested[1:]]


def _run_if(condition: IntExpr, owned: Owned) -> list[Owned]:
    """Return statements that run where a condition of the whole block holds, and, if it is nested, those inside."""
    if condition == ONE:
        return [owned]
    made = make_conditional(condition, [one for _, one in owned], uniform=True)
    return [[((), one) for one in made], owned]


def _lower_steps(cx: LoweringContext, steps: Sequence[Step]) -> Owned:
    """Return the statements of some steps."""
    found: Owned = []
    for group in mma_lowering.group_products(steps):
        if len(group) == 1:
            made = _step(cx, group[0])
        else:
            made = _products(cx, [step for step in group if isinstance(step, Multiplication)])
        found += [(group, one) for one in made]
    return found


def _products(cx: LoweringContext, steps: Sequence[Multiplication]) -> Iterable[Stmt]:
    """Return the statements of products that are computed together, then those that use each result."""
    out = mma_lowering.compute_products(cx, steps)
    for step in steps:
        if isinstance(step, MatrixMultiply):
            out = (*out, *mma_lowering.exchange_partial_sums(cx, step), *_mirror_results(cx, defined_tensors(step.op)))
    return out


def _step(cx: LoweringContext, step: Step) -> Iterable[Stmt]:
    match step:
        case Barrier() | WaitGroups() | Commit():
            return (step,)
        case AwaitTile(tensor):
            return (Await(copies.pipeline_name(tensor), cx.iteration),)
        case ReleaseTile(tensor, iterations):
            item = cx.ix.add(cx.iteration, Int(iterations))
            return () if item == Int(cx.plan.forloop_range) else (Release(copies.pipeline_name(tensor), item),)
        case OverlapProducts():
            following = cx.ix.add(cx.iteration, ONE)
            if following == Int(cx.plan.forloop_range):
                return mma_lowering.compute_products(cx, (step.last,))
            waits = tuple(Await(copies.pipeline_name(number), following) for number in step.awaited)
            return mma_lowering.overlap_products(cx, step, waits)
        case Prefetch():
            at = Int(step.iteration) if step.iteration is not None else cx.ix.add(cx.iteration, Int(cx.plan.stages - 1))
            return (*copies.prefetch(cx, cx.plan.ring, at), Commit())
        case BeginProduct():
            return mma_lowering.begin_product(cx, step.product)
        case EndProduct():
            return mma_lowering.end_product(cx, step.product)
        case AdvanceStep():
            this, cx.iteration = cx.iteration, cx.ix.add(cx.iteration, Int(step.iterations))
            made = tuple(_operation(cx, step.step))
            cx.iteration = this
            return made
        case Fetch():
            if step.asynchronous:
                return copies.copy_asynchronously(cx, step.tensor, cx.iteration)
            return copies.copy_elementwise(cx, step.tensor)
        case Load():
            return (*registers.load_tensor(cx, step.tensor), *_mirror_results(cx, (step.tensor,)))
        case StoreResult():
            return _save(cx, step)
        case _:
            return _operation(cx, step)


def _save(cx: LoweringContext, step: StoreResult) -> Iterable[Stmt]:
    tile = cx.plan.savers[step.saver]
    if cx.tensor(tile.tensor).placement.registers is not None:
        return stores.save_registers(cx, tile)
    return scalar_lowering.save_result(cx, tile)


def _operation(cx: LoweringContext, step: Computation) -> Iterable[Stmt]:
    results = defined_tensors(step.op)
    match step:
        case GenericOperation():
            return (*scalar_lowering.compute_step(cx, step.op), *_pad_results(cx, results))
        case Initialize():
            if cx.tensor(results[0]).placement.registers is None:
                return (*scalar_lowering.initialize_shared(cx, step.op), *_pad_results(cx, results))
            return register_reductions.initialize_registers(cx, step.op)
        case Rescale():
            return register_reductions.rescale(cx, step.op)
        case Accumulation():
            return register_reductions.accumulate(cx, step)
        case MatrixMultiply() | MultiplyAccumulate():
            return _products(cx, (step,))
        case Map():
            out = registers.elementwise(cx, step.op, step.over)
        case Reduction():
            out = register_reductions.reduce(cx, step)
        case BlockReduce():
            out = register_reductions.block_reduce(cx, step)
        case RunningMaximum():
            out = register_reductions.update_running_maximum(cx, step)
        case _:
            assert_never(step)
    return (*out, *_mirror_results(cx, results))


def _mirror_results(cx: LoweringContext, numbers: Iterable[int]) -> tuple[Stmt, ...]:
    """Return the copies to shared memory of results in registers that are read there as well."""
    out: list[Stmt] = []
    for number in numbers:
        placement = cx.tensor(number).placement
        if placement.registers is not None and placement.shared is not None:
            out += stores.copy_registers_to_shared(cx, number)
            out += _pad_results(cx, (number,))
    return tuple(out)


def _pad_results(cx: LoweringContext, numbers: Iterable[int]) -> tuple[Stmt, ...]:
    """Return the stores of padding zeros around results that tensor cores read."""
    out: list[Stmt] = []
    for number in numbers:
        tensor = cx.tensor(number)
        placement = tensor.placement.shared
        if placement is None:
            continue
        whole = (tensor.cols, tensor.rows) if placement.transposed else (tensor.rows, tensor.cols)
        if (placement.rows, placement.cols) != whole:
            out += stores.padding(cx, number)
    return tuple(out)
