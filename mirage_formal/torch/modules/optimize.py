"""Optimized torch modules whose regions are computed by operators made of candidates."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from mirage_formal.frontend.argument_checks import error_at_user_line, warn_ignored
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.options import MEASURED, check_value
from mirage_formal.torch.analysis.conditions import UnmetConditionError
from mirage_formal.torch.capture import load_export
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch
from mirage_formal.torch.convert import parse_rounding
from mirage_formal.torch.deadline import NO_DEADLINE, STOPPED, Deadline, DeadlineReachedError, now
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.modules.custom_operators import TorchOperator
from mirage_formal.torch.modules.function_plan import CallFrame, FunctionPlan, has_hooks
from mirage_formal.torch.modules.graph_rewriter import rewrite
from mirage_formal.torch.modules.inductor import (
    NO_CUDA_GRAPHS,
    can_compile,
    fastest_mode_options,
    inductor_compiler,
    lock_benchmarks,
)
from mirage_formal.torch.modules.module_report import FallbackWarning, ModuleReport
from mirage_formal.torch.modules.profitability import (
    CompilationThread,
    CompiledGraph,
    compile_rest,
    eager_compile,
    faster_regions,
    has_gpu_tensors,
    select_profitable_operators,
)
from mirage_formal.torch.modules.region_search import choose_operators, parse_time_limit
from mirage_formal.torch.modules.trace import FunctionModule, trace_module

if TYPE_CHECKING:
    from mirage_formal.torch.background.background_search import BackgroundSearch
    from mirage_formal.torch.background.plan_swap import PlanSwap
    from mirage_formal.torch.dynamic_shapes.bucket_search import ShapesReport

#: Share of the time limit that searches have where their results are compared with torch.compile afterwards.
_SEARCHES: Final = 0.75
#: Name of the option.
_BACKGROUND: Final = "continue_in_background"


class _OptimizedModule:
    """Base class that an optimized module has in addition to its own class: it holds the plan and the report."""

    _mirage_plan: FunctionPlan | None
    _mirage_report: ModuleReport | ShapesReport
    _mirage_swap: PlanSwap | None = None

    def mirage_report(self) -> ModuleReport | ShapesReport:
        """Return the report of how each region is computed; ``print`` it to read it as text."""
        report, swap = self._mirage_report, self._mirage_swap
        if swap is None or not isinstance(report, ModuleReport):
            return report
        return dataclasses.replace(report, background=swap.remarks())

    def mirage_background(self) -> BackgroundSearch | None:
        """Return the search that continues in the background; None without the option for it, and for a copy."""
        return None if self._mirage_swap is None else self._mirage_swap.search

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_mirage_swap"}
        return _new_optimized, (type(self).__bases__[1],), state


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of ``mirage_formal.optimize`` besides those of the searches.

    Attributes:
        shapes: Dynamic dims of the arguments.
        rounding: "fused" or "exact", as for ``from_torch``.
        guard: Whether calls check the conditions of regions.
        mode: Mode of torch.compile to compare with and to compile the rest in, on a GPU; None for "default".
        begin: Value of ``deadline.now`` from which the time limit counts.
    """

    shapes: Any = None
    rounding: str = "fused"
    guard: bool = False
    mode: str | None = None
    begin: float = field(default_factory=now)


def optimize_module(
    module: Any, given: tuple[Sequence[Any], Mapping[str, Any]], asked: Mapping[str, Any], options: ModuleOptions
) -> Any:
    """Return an optimized module that is equivalent to a user's module; see ``mirage_formal.optimize``.

    Args:
        module: The module, or a function of tensors.
        given: Its positional and keyword arguments.
        asked: Options of ``superoptimize``, and ``continue_in_background``.
        options: Further options.
    """
    args, kwargs = given
    if options.guard and options.shapes is not None:
        text = "optimize: expected guard or shapes, got both: tensors behind a length meet no condition"
        raise error_at_user_line(UnsupportedError, text, "leave one of them out")
    asked = dict(asked)
    if continues := check_value(_BACKGROUND, asked.pop(_BACKGROUND, False), bool):
        if options.shapes is not None:
            text = f"optimize: expected {_BACKGROUND} or shapes, got both: searches of buckets are not continued"
            raise error_at_user_line(UnsupportedError, text, "leave one of them out")
        from mirage_formal.torch.background.background_search import expect_store_options

        expect_store_options(asked)
    if isinstance(module, _OptimizedModule):
        raise error_at_user_line(
            UnsupportedError, "optimize: expected a module, got one that is optimized", "give the first one"
        )
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            text = f"optimize: expected a torch module or a function, got {type(module).__name__}"
            raise error_at_user_line(UnsupportedError, text, "give a module, with its arguments as a tuple")
        module = FunctionModule(module)
    if not isinstance(args, tuple | list):
        text = f"optimize: expected the arguments as a tuple, got {type(args).__name__}"
        raise error_at_user_line(UnsupportedError, text, "write optimize(module, (x,))")
    for path, inner in module.named_modules():
        if path and has_hooks(inner):
            text = f"optimize: expected modules without hooks, got one with some: {path}"
            raise error_at_user_line(UnsupportedError, text, "remove its hooks; those of the module itself may stay")
    flat = (tuple(args), dict(kwargs))
    parse_rounding(options.rounding)
    if options.mode is not None:
        asked = _check_mode(options, asked, has_gpu_tensors(pytree.tree_leaves(flat)))
    plan: FunctionPlan | None
    report: ModuleReport | ShapesReport
    swap = None
    if options.shapes is None:
        plan, report, swap = _plan_module(module, flat, asked, options, continues=continues)
    else:
        from mirage_formal.torch.dynamic_shapes.dynamic_plans import plan_for

        deadline = Deadline.after(options.begin, parse_time_limit(asked.get("time_limit")))
        plan, report = plan_for(module, flat, asked, options.shapes, options.rounding, deadline)
    found = _new_optimized(type(module))
    vars(found).update(vars(module), _mirage_plan=plan, _mirage_report=report)
    if swap is not None:
        vars(found).update(_mirage_swap=swap)
        swap.attach(found)
    return found


def _check_mode(options: ModuleOptions, asked: Mapping[str, Any], on_gpu: bool) -> Mapping[str, Any]:
    """Return the options of the searches in a mode; warn if it has no effect.

    Raises:
        SpaceError: There is no such mode.
    """
    inductor_compiler(options.mode)
    if not on_gpu or options.guard or options.shapes is not None:
        warn_ignored("optimize option mode without a GPU, or with guard or shapes,")
    return {**fastest_mode_options(options.mode, asked), **asked}


def _plan_module(
    module: Any,
    given: tuple[tuple[Any, ...], dict[str, Any]],
    asked: Mapping[str, Any],
    options: ModuleOptions,
    *,
    continues: bool,
) -> tuple[FunctionPlan | None, ModuleReport, PlanSwap | None]:
    limit = parse_time_limit(asked.get("time_limit"))
    times, leaves, guard = _PhaseTimes(options.begin), pytree.tree_leaves(given), options.guard
    deadline = Deadline.after(times.begin, limit)
    must = NO_DEADLINE if continues else deadline  # what continues later needs the import
    times.end("loading this package")
    try:
        phase = "loading torch.export"
        load_export(must)
        times.end(phase)
        phase = "import"
        traced = trace_module(module, *given, options.rounding, must)
        rewrite(traced.imported, {})  # what cannot be rewritten is not searched
        must.check()
    except DeadlineReachedError:
        times.end(phase)
        stopped = f"{STOPPED} the module was imported ({phase}): nothing was searched"
        return None, ModuleReport((), (), (), seconds=times.spent, stopped=stopped), None
    imported = traced.imported
    frame = CallFrame.of(module, given, traced)
    times.end("import")
    timed = bool(asked.get("measure", MEASURED)) and has_gpu_tensors(leaves)
    compiled: CompilationThread | None = None
    tensors: list[Any] = []
    if timed and not guard and can_compile(leaves):
        with torch.no_grad():  # compiled graphs are for calls that record no gradients
            tensors = frame.plan_with({}, all_constants=True).inputs(module, *given)[1]
        compiled = _start_compilations(_build(imported, {}), tensors, options.mode)
        asked = asked if limit is None else {**asked, "time_limit": _SEARCHES * limit}
    operators: Mapping[int, TorchOperator]
    try:
        searches = Deadline.after(times.begin, asked.get("time_limit"))
        comparison = compare_with_torch(imported, arguments_of(imported, leaves), deadline=searches)
        times.end("comparison")
        operators, report = choose_operators(imported, asked, comparison=comparison, guard=guard, deadline=searches)
    except BaseException:
        if compiled is not None:
            compiled.cancel()
        raise
    times.end("searches")
    rest: CompiledGraph | None = None
    if timed:
        operators, report = faster_regions(imported, operators, report, eager_compile, deadline)
        if compiled is not None:
            without = compiled.fastest(deadline)
            operators, report, rest = _choose_compiled(imported, operators, report, tensors, without, deadline)
        times.end("measurement")
    report = dataclasses.replace(report, seconds=times.spent)
    plan = None
    if operators or rest is not None:
        plan = frame.plan_with(operators, guard=guard, all_constants=rest is not None)
        if rest is not None and rest.call is not None:
            plan.compile_in(rest.mode, rest.call, tensors)
    if not continues:
        return plan, report, None
    from mirage_formal.torch.background.plan_swap import PlanSwap

    return plan, report, PlanSwap(frame, comparison, asked, operators, report, guard)


class _PhaseTimes:
    """Seconds of the phases of a call of ``optimize``.

    Args:
        begin: Value of ``deadline.now`` at its start.

    Attributes:
        begin: The same.
        spent: Names of the phases that have ended, with their seconds.
    """

    def __init__(self, begin: float) -> None:
        self.begin = self._last = begin
        self.spent: tuple[tuple[str, float], ...] = ()

    def end(self, phase: str) -> None:
        """End a phase; the next one begins."""
        end = now()
        self.spent += ((phase, end - self._last),)
        self._last = end


def _start_compilations(graph: GraphModule, tensors: Sequence[Any], mode: str | None) -> CompilationThread:
    """Start to compile the graph without operators in the default mode and in one that was asked for."""
    lock_benchmarks()
    modes = dict.fromkeys(("default", mode or "default"))
    compilers = {name: inductor_compiler(name, **NO_CUDA_GRAPHS) for name in modes}
    return CompilationThread(graph, tensors, compilers)


def _choose_compiled(
    imported: Imported,
    operators: Mapping[int, TorchOperator],
    report: ModuleReport,
    tensors: Sequence[Any],
    without: CompiledGraph,
    deadline: Deadline,
) -> tuple[Mapping[int, TorchOperator], ModuleReport, CompiledGraph | None]:
    """Return the operators with which the compiled graph is fastest, and its compilation if that is worth it.

    Args:
        imported: The import.
        operators: Operators that are faster than torch's.
        report: Report on all regions.
        tensors: A tensor for each placeholder of a graph with all constants.
        without: The graph without operators, compiled in time or not.
        deadline: Deadline: a compilation is begun if it ends by then, should it take as long as that one.

    Returns:
        The operators; the report; and the compiled graph, None where torch's operators one by one are as fast, or time
        was short.
    """
    late = dataclasses.replace(report, rest="not compared with torch.compile: no time was left")
    if without.call is None:
        return operators, late, None

    def build(chosen: Mapping[int, TorchOperator]) -> GraphModule:
        deadline.check(without.seconds)
        return _build(imported, chosen)

    compile = inductor_compiler(without.mode, **NO_CUDA_GRAPHS)
    try:
        made = select_profitable_operators(operators, report, build, without, tensors, (compile,))
    except DeadlineReachedError:
        return operators, late, None
    if not operators:
        made = dataclasses.replace(made, compiled=without.call)
    graph, report = made.graph or without.graph, made.report
    call = compile_rest(graph, made, tensors)
    if call is None:
        return made.operators, report, None
    report = dataclasses.replace(
        report, rest=f"what stays with torch is compiled by torch.compile, mode {without.mode}"
    )
    return made.operators, report, CompiledGraph(graph, call, without.mode)


def _build(imported: Imported, operators: Mapping[int, TorchOperator]) -> GraphModule:
    """Return the graph with some regions computed by operators as a module, with a placeholder for each constant."""
    chosen = {number: found.overload for number, found in operators.items()}
    return GraphModule(torch.nn.Module(), rewrite(imported, chosen, all_constants=True))


def _new_optimized(base: Any) -> Any:
    """Return a module without state, of the optimized subclass of a class."""
    return object.__new__(_optimized_class(base))


@functools.cache
def _optimized_class(base: Any) -> Any:
    """Return the optimized subclass of a module's class, cached for each class."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and (swap := self._mirage_swap) is not None and swap.search.arrived:
            swap.install()
        plan = self._mirage_plan
        if plan is None:
            return base.forward(self, *args, **kwargs)
        if plan.guarded and torch.compiler.is_compiling():  # a graph cannot look at values
            return base.forward(self, *args, **kwargs)
        reason, tensors = plan.inputs(self, args, kwargs)
        if not reason and not plan.guarded:
            return plan.run(tensors)
        if not reason:
            try:
                return plan.run(tensors)
            except UnmetConditionError as unmet:
                reason = str(unmet)
        if not torch.compiler.is_compiling() and not plan.said:
            plan.said = True
            text = f"computed by the module itself, as is every such call: {reason}"
            warnings.warn(text, FallbackWarning, stacklevel=4)
        return base.forward(self, *args, **kwargs)

    names = {"forward": forward, "__module__": base.__module__, "__doc__": base.__doc__}
    return type(f"Optimized{base.__name__}", (_OptimizedModule, base), names)


__all__ = ["FallbackWarning", "ModuleOptions", "optimize_module"]
