"""Optimized torch modules whose regions are computed by operators made of candidates."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.support import options
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.analysis.conditions import UnmetConditionError
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch
from mirage_formal.torch.convert import parse_rounding
from mirage_formal.torch.dynamic_shapes.bucket_search import ShapesReport
from mirage_formal.torch.dynamic_shapes.dynamic_plans import plan_for
from mirage_formal.torch.modules.function_plan import FunctionPlan, has_hooks, plan_module
from mirage_formal.torch.modules.graph_rewriter import rewrite
from mirage_formal.torch.modules.module_report import COMPILER, FallbackWarning, ModuleReport
from mirage_formal.torch.modules.profitability import (
    default_compile,
    eager_compile,
    faster_regions,
    has_gpu_tensors,
)
from mirage_formal.torch.modules.region_search import choose_operators
from mirage_formal.torch.modules.trace import FunctionModule, trace_module


class _OptimizedModule:
    """Base class that an optimized module has in addition to its own class: it holds the plan and the report."""

    _mirage_plan: FunctionPlan | None
    _mirage_report: ModuleReport | ShapesReport

    def mirage_report(self) -> ModuleReport | ShapesReport:
        """Return the report of how each region is computed; ``print`` it to read it as text."""
        return self._mirage_report

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new_optimized, (type(self).__bases__[1],), self.__dict__


def optimize_module(
    module: Any,
    given: tuple[Sequence[Any], Mapping[str, Any]],
    asked: Mapping[str, Any],
    shapes: Any = None,
    rounding: str = "fused",
    *,
    guard: bool = False,
) -> Any:
    """Return an optimized module that is equivalent to a user's module; see ``mirage_formal.optimize``.

    Args:
        module: The module, or a function of tensors.
        given: Its positional and keyword arguments.
        asked: Options of ``superoptimize``.
        shapes: Dynamic dims of the arguments.
        rounding: "fused" or "exact", as for ``from_torch``.
        guard: Whether calls check the conditions of regions.
    """
    args, kwargs = given
    if guard and shapes is not None:
        text = "optimize: expected guard or shapes, got both: tensors behind a length meet no condition"
        raise error_at_user_line(UnsupportedError, text, "leave one of them out")
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
    parse_rounding(rounding)
    plan, report = (
        _plan_module(module, flat, asked, rounding, guard=guard)
        if shapes is None
        else plan_for(module, flat, asked, shapes, rounding)
    )
    found = _new_optimized(type(module))
    vars(found).update(vars(module), _mirage_plan=plan, _mirage_report=report)
    return found


def _plan_module(
    module: Any, given: tuple[tuple[Any, ...], dict[str, Any]], asked: Mapping[str, Any], rounding: str, *, guard: bool
) -> tuple[FunctionPlan | None, ModuleReport]:
    begin = time.monotonic()
    traced = trace_module(module, *given, rounding)
    rewrite(traced.imported, {})  # what cannot be rewritten is not searched
    comparison = compare_with_torch(traced.imported, arguments_of(traced.imported, pytree.tree_leaves(given)))
    operators, report = choose_operators(traced.imported, asked, comparison=comparison, guard=guard, begin=begin)
    if asked.get("measure", options.MEASURED) and has_gpu_tensors(pytree.tree_leaves(given)):
        limit = asked.get("time_limit")
        deadline = float("inf") if limit is None else begin + limit
        operators, report = faster_regions(
            traced.imported, operators, report, eager_compile, {COMPILER: default_compile}, deadline
        )
    plan = None
    if operators:
        chosen = {number: found.overload for number, found in operators.items()}
        graph = rewrite(traced.imported, chosen, guard=guard)
        plan = plan_module(module, given, traced, graph, tuple(dict.fromkeys(operators.values())))
        plan.guarded = guard
    return plan, report


def _new_optimized(base: Any) -> Any:
    """Return a module without state, of the optimized subclass of a class."""
    return object.__new__(_optimized_class(base))


@functools.cache
def _optimized_class(base: Any) -> Any:
    """Return the optimized subclass of a module's class, cached for each class."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
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


__all__ = ["FallbackWarning", "optimize_module"]
